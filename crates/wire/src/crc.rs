//! CRC-32C (Castagnoli; RFC 3720, B.4), which zFabric's frames carry.

use crc::{CRC_32_ISCSI, Crc, Table};

static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// The CRC of two consecutive pieces. Callers that may use the processor's own instruction use that instead.
pub fn of([first, second]: [&[u8]; 2]) -> u32 {
    let mut digest = CRC.digest();
    digest.update(first);
    digest.update(second);
    digest.finalize()
}

/// A frame without the four bytes at `place`, the position of its checksum; the frame must extend beyond these bytes.
pub(crate) fn all_but(frame: &[u8], place: usize) -> [&[u8]; 2] {
    [&frame[..place], &frame[place + 4..]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_castagnolis() {
        // RFC 3720, B.4: 32 zeros.
        assert_eq!(CRC.checksum(&[0; 32]), 0x8A91_36AA);
        assert_eq!(of(all_but(&[0; 36], 7)), 0x8A91_36AA);
    }
}
