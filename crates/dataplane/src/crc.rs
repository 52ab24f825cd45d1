//! CRC-32C by the processor's own instruction where it has one: the tables of [`sluicenet_wire::crc`] take longer for a frame than all
//! else that zBridge does with it.

/// Of two pieces, one behind the other.
#[allow(unsafe_code)]
pub fn of(pieces: [&[u8]; 2]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: this processor has the instruction.
        return unsafe { by_instruction(pieces) };
    }
    sluicenet_wire::crc::of(pieces)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction(pieces: [&[u8]; 2]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let mut sum = u32::MAX;
    for piece in pieces {
        let (words, rest) = piece.as_chunks();
        sum = words.iter().fold(u64::from(sum), |sum, word| _mm_crc32_u64(sum, u64::from_le_bytes(*word))) as u32;
        sum = rest.iter().fold(sum, |sum, &byte| _mm_crc32_u8(sum, byte));
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_and_the_tables_say_the_same() {
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i * i / 8) as u8).collect();
        for len in (0..40).chain([1399, 1400, 3000]) {
            for cut in [0, 1, 7, 8, 30] {
                let pieces = bytes[..len].split_at(cut.min(len));
                assert_eq!(of(pieces.into()), sluicenet_wire::crc::of(pieces.into()), "{cut} of {len}");
            }
        }
    }
}
