//! CRC-32C by the processor's own instructions where it has them. With the tables of [`sluicenet_wire::crc`], the sum of a
//! frame takes longer than all other work of zBridge.
//!
//! The instruction for eight bytes takes three cycles, and the next one can begin in each cycle. So long pieces are summed in
//! three lanes, and a carry-less multiplication combines their sums (Gopal et al. 2011, "Fast CRC Computation for iSCSI
//! Polynomial Using CRC32 Instruction").

/// Of two pieces, one behind the other.
#[allow(unsafe_code)]
pub fn of(pieces: [&[u8]; 2]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") && std::arch::is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: this processor has the instructions.
        return unsafe { by_instruction(pieces) };
    }
    sluicenet_wire::crc::of(pieces)
}

/// The polynomial, the coefficient of x^0 in the highest bit.
#[cfg(target_arch = "x86_64")]
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// Words of 64 bits in a lane at most, and at least, below which three are no faster than one.
#[cfg(target_arch = "x86_64")]
const LANE_MOST: usize = 192;
#[cfg(target_arch = "x86_64")]
const LANE_LEAST: usize = 8;

/// The factors of a sum, by the number n of words behind it: x^(64 n - 33). A product of two sums has one power more than
/// their coefficients say, and the instruction that reduces it adds 32.
#[cfg(target_arch = "x86_64")]
const POWERS: [u32; 2 * LANE_MOST + 1] = {
    let mut powers = [0; 2 * LANE_MOST + 1];
    // x^0, and then x^31 of the first.
    let (mut power, mut n, mut steps) = (1 << 31, 1, 31);
    while n < powers.len() {
        while steps > 0 {
            power = if power & 1 == 1 { power >> 1 ^ POLYNOMIAL } else { power >> 1 };
            steps -= 1;
        }
        powers[n] = power;
        (n, steps) = (n + 1, 64);
    }
    powers
};

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn by_instruction(pieces: [&[u8]; 2]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let mut sum = u64::from(u32::MAX);
    for piece in pieces {
        let (mut words, rest) = piece.as_chunks();
        while words.len() >= 3 * LANE_LEAST {
            let lane = (words.len() / 3).min(LANE_MOST);
            let (first, behind) = words.split_at(lane);
            let (second, behind) = behind.split_at(lane);
            let (third, behind) = behind.split_at(lane);
            let (mut b, mut c) = (0, 0);
            for ((x, y), z) in first.iter().zip(second).zip(third) {
                sum = _mm_crc32_u64(sum, u64::from_le_bytes(*x));
                b = _mm_crc32_u64(b, u64::from_le_bytes(*y));
                c = _mm_crc32_u64(c, u64::from_le_bytes(*z));
            }
            sum = c ^ behind_it(sum, POWERS[2 * lane]) ^ behind_it(b, POWERS[lane]);
            words = behind;
        }
        sum = words.iter().fold(sum, |sum, word| _mm_crc32_u64(sum, u64::from_le_bytes(*word)));
        sum = rest.iter().fold(sum, |sum, &byte| u64::from(_mm_crc32_u8(sum as u32, byte)));
    }
    !sum as u32
}

/// The sum with zeros appended, where `power` is the factor for their number.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn behind_it(sum: u64, power: u32) -> u64 {
    use std::arch::x86_64::{_mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64};
    let product = _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(sum as i64), _mm_cvtsi64_si128(power.into()));
    _mm_crc32_u64(0, _mm_cvtsi128_si64(product) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_and_the_tables_say_the_same() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * i / 8) as u8).collect();
        for len in (0..700).chain([1399, 1400, 1460, 3000, 4607, 4608, 4609, 9999]) {
            for cut in [0, 1, 7, 8, 30, 500] {
                let pieces = bytes[..len].split_at(cut.min(len));
                assert_eq!(of(pieces.into()), sluicenet_wire::crc::of(pieces.into()), "{cut} of {len}");
            }
        }
    }
}
