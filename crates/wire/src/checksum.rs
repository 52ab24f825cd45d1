//! The Internet checksum (RFC 1071).

use core::net::Ipv4Addr;

/// What TCP and UDP check besides their own bytes (RFC 9293, 3.1; RFC 768).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PseudoHeader {
    /// Source address of the IPv4 header.
    pub source: Ipv4Addr,
    /// Destination address of the IPv4 header.
    pub destination: Ipv4Addr,
}

impl PseudoHeader {
    /// The checksum over the pseudo header and `bytes`; 0 when `bytes` hold a correct checksum already.
    pub(crate) fn checksum(&self, protocol: u8, bytes: &[u8]) -> u16 {
        let mut sum = Sum::default();
        sum.add(&self.source.octets());
        sum.add(&self.destination.octets());
        sum.add(&[0, protocol]);
        sum.add(&(bytes.len() as u16).to_be_bytes());
        sum.add(bytes);
        sum.checksum()
    }
}

/// The Internet checksum of `bytes`; 0 when they hold a correct checksum already.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.checksum()
}

/// A one's complement sum in the making.
#[derive(Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes in pairs; only the last call may have an odd number of them.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let pairs = bytes.chunks_exact(2);
        let last = pairs.remainder();
        for pair in pairs {
            self.0 += u16::from_be_bytes([pair[0], pair[1]]) as u64;
        }
        if let [byte] = last {
            self.0 += (*byte as u64) << 8;
        }
    }

    pub(crate) fn checksum(&self) -> u16 {
        let mut sum = self.0;
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        // RFC 1071, 3: the sum of these bytes is ddf2.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0x00, 0x01, 0xf2]), !0xf201);
    }
}
