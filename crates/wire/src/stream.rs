//! The header in front of each frame in the stream of a TCP tunnel between servers: the frame's length, class and network.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |               bytes of the frame that follows                 |
//! +---------------+-----------------------------------------------+
//! |   priority    |                     VNI                       |
//! +---------------+-----------------------------------------------+
//! ```
//!
//! Numbers are big-endian.

use crate::Error;
use crate::ethernet;
use crate::vxlan::MAX_VNI;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Largest traffic class.
const MAX_PRIORITY: u8 = 7;

/// The header of a frame in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Bytes of the frame behind the header, without its check sequence.
    pub len: u32,
    /// The frame's traffic class, 0 to 7.
    pub priority: u8,
    /// The frame's network, 24 bits.
    pub vni: u32,
}

impl Repr {
    /// Reads a header; returns the bytes behind it.
    ///
    /// A frame shorter than its own header is [`Error::Length`], an invalid class is [`Error::Unsupported`].
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (&[l0, l1, l2, l3, priority, v0, v1, v2], rest) =
            bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        if (len as usize) < ethernet::HEADER_LEN {
            return Err(Error::Length);
        }
        if priority > MAX_PRIORITY {
            return Err(Error::Unsupported);
        }
        Ok((Repr { len, priority, vni: u32::from_be_bytes([0, v0, v1, v2]) }, rest))
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        assert!(self.vni <= MAX_VNI && self.priority <= MAX_PRIORITY, "a VNI has 24 bits, a class three");
        bytes[..4].copy_from_slice(&self.len.to_be_bytes());
        bytes[4..8].copy_from_slice(&(u32::from(self.priority) << 24 | self.vni).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn emitted(repr: Repr) -> [u8; HEADER_LEN] {
        let mut bytes = [0xEE; HEADER_LEN];
        repr.emit(&mut bytes);
        bytes
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let len = 14 + random.below(u64::from(u32::MAX) - 14) as u32;
            let repr = Repr { len, priority: random.below(8) as u8, vni: random.below(1 << 24) as u32 };
            assert_eq!(Repr::parse(&emitted(repr)), Ok((repr, &[][..])));
        });
        let valid = |_: &mut random::Random| emitted(Repr { len: 60, priority: 3, vni: 7 }).to_vec();
        random::never_panics(valid, |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn fields_stand_where_the_picture_has_them() {
        assert_eq!(emitted(Repr { len: 0x0102_0304, priority: 5, vni: 0xAB_CDEF }), [1, 2, 3, 4, 5, 0xAB, 0xCD, 0xEF]);
        assert_eq!(Repr::parse(&[0, 0, 0, 60, 0, 0, 0]), Err(Error::Truncated));
        assert_eq!(Repr::parse(&[0, 0, 0, 13, 0, 0, 0, 0]), Err(Error::Length));
        assert_eq!(Repr::parse(&[0, 0, 0, 14, 8, 0, 0, 0]), Err(Error::Unsupported));
    }
}
