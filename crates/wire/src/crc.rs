//! CRC-32C (Castagnoli; RFC 3720, B.4), which zFabric's frames carry.

use crc::{CRC_32_ISCSI, Crc, Table};

static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// Of a frame without the four bytes at `place`, where it stands itself; the frame reaches beyond that.
pub(crate) fn of_all_but(frame: &[u8], place: usize) -> u32 {
    let mut digest = CRC.digest();
    digest.update(&frame[..place]);
    digest.update(&frame[place + 4..]);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_castagnolis() {
        // RFC 3720, B.4: 32 zeros.
        assert_eq!(CRC.checksum(&[0; 32]), 0x8A91_36AA);
        assert_eq!(of_all_but(&[0; 36], 7), 0x8A91_36AA);
    }
}
