//! The 802.1Q tag (IEEE 802.1Q, 9.6): the four bytes behind `EtherType::VLAN`.

use crate::Error;
use crate::ethernet::EtherType;

/// Bytes that a tag adds to a frame, counted from behind the tag's EtherType: control information and the inner type.
pub const TAG_LEN: usize = 4;

/// The tag control information, and the type behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 0 to 4095; 0 means that only the priority is valid.
    pub vid: u16,
    /// The type behind the tag.
    pub ethertype: EtherType,
}

impl Repr {
    /// Reads a tag; returns the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (&[c0, c1, t0, t1], rest) = bytes.split_first_chunk::<TAG_LEN>().ok_or(Error::Truncated)?;
        let repr = Repr {
            priority: c0 >> 5,
            drop_eligible: c0 & 0x10 != 0,
            vid: u16::from_be_bytes([c0 & 0x0F, c1]),
            ethertype: EtherType(u16::from_be_bytes([t0, t1])),
        };
        Ok((repr, rest))
    }

    /// Writes the tag into the first [`TAG_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        assert!(self.priority <= 7 && self.vid <= 0x0FFF, "a priority of 3 bits and a VLAN of 12");
        let control = (self.priority as u16) << 13 | (self.drop_eligible as u16) << 12 | self.vid;
        bytes[0..2].copy_from_slice(&control.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.ethertype.0.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> Repr {
        Repr {
            priority: random.below(8) as u8,
            drop_eligible: random.bool(),
            vid: random.below(4096) as u16,
            ethertype: EtherType(random.u64() as u16),
        }
    }

    fn emitted(repr: Repr) -> Vec<u8> {
        let mut bytes = [0; TAG_LEN + 1];
        repr.emit(&mut bytes);
        bytes.to_vec()
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let repr = any(random);
            assert_eq!(Repr::parse(&emitted(repr)), Ok((repr, &[0][..])));
        });
        random::never_panics(|random| emitted(any(random)), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn bits_stand_where_the_standard_has_them() {
        let repr = Repr { priority: 5, drop_eligible: true, vid: 0xABC, ethertype: EtherType::IPV4 };
        assert_eq!(emitted(repr), [0xBA, 0xBC, 0x08, 0x00, 0]);
    }
}
