//! VXLAN headers (RFC 7348).

use crate::Error;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Destination port of the outer UDP datagram (RFC 7348, 5).
pub const UDP_PORT: u16 = 4789;
/// Largest network identifier.
pub const MAX_VNI: u32 = (1 << 24) - 1;

/// The flag of a valid network identifier.
const FLAG_I: u8 = 0x08;

/// The header between the outer UDP header and the inner Ethernet frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
}

impl Repr {
    /// Reads a header; returns the inner frame.
    ///
    /// A clear I flag is [`Error::Unsupported`]; reserved bits are "ignored on receipt" (RFC 7348, 5).
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (&[flags, _, _, _, v0, v1, v2, _], inner) =
            bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        if flags & FLAG_I == 0 {
            return Err(Error::Unsupported);
        }
        Ok((Repr { vni: u32::from_be_bytes([0, v0, v1, v2]) }, inner))
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        assert!(self.vni <= MAX_VNI, "a VNI has 24 bits");
        bytes[0..4].copy_from_slice(&[FLAG_I, 0, 0, 0]);
        bytes[4..8].copy_from_slice(&(self.vni << 8).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn emitted(vni: u32) -> [u8; HEADER_LEN] {
        let mut bytes = [0xEE; HEADER_LEN];
        Repr { vni }.emit(&mut bytes);
        bytes
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let vni = random.below(1 << 24) as u32;
            let mut bytes = emitted(vni);
            // All bits except the I flag and the VNI are reserved.
            let noise = random.array::<HEADER_LEN>();
            for at in [0, 1, 2, 3, 7] {
                bytes[at] |= noise[at];
            }
            assert_eq!(Repr::parse(&bytes), Ok((Repr { vni }, &[][..])));
        });
        random::never_panics(|_| emitted(7).to_vec(), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn bits_stand_where_the_rfc_has_them() {
        assert_eq!(emitted(0xABCDEF), [0x08, 0, 0, 0, 0xAB, 0xCD, 0xEF, 0]);
        assert_eq!(Repr::parse(&[0xF7, 0, 0, 0, 0, 0, 1, 0]), Err(Error::Unsupported));
        assert_eq!(Repr::parse(&[0x08; 7]), Err(Error::Truncated));
    }
}
