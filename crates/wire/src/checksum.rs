//! The Internet checksum (RFC 1071).

use core::net::Ipv4Addr;

/// The addresses that TCP and UDP include in their checksums (RFC 9293, 3.1; RFC 768).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PseudoHeader {
    /// Source address of the IPv4 header.
    pub source: Ipv4Addr,
    /// Destination address of the IPv4 header.
    pub destination: Ipv4Addr,
}

impl PseudoHeader {
    /// The checksum over the pseudo header and `bytes`; 0 if `bytes` already hold a correct checksum.
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

/// The Internet checksum of `bytes`; 0 if they already hold a correct checksum.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.checksum()
}

/// A partial one's complement sum.
#[derive(Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes in pairs; only the last call may have an odd number of them.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // In the other byte order the sum is the same, with its own bytes swapped (RFC 1071, 2). Four bytes are two pairs,
        // which folding adds to each other.
        let (words, rest) = bytes.as_chunks();
        let sum = words.iter().fold(0, |sum, word| sum + u64::from(u32::from_ne_bytes(*word)));
        self.0 += u64::from(u16::from_be(fold(sum)));
        let (pairs, last) = rest.as_chunks();
        self.0 += pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>();
        if let [byte] = last {
            self.0 += u64::from(*byte) << 8;
        }
    }

    pub(crate) fn checksum(&self) -> u16 {
        !fold(self.0)
    }
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
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

    #[test]
    fn it_is_the_sum_of_all_pairs() {
        crate::random::check(|random| {
            let len = random.below(200) as usize;
            let bytes = random.bytes(len);
            let pairs = bytes.chunks(2).map(|p| u64::from(p[0]) << 8 | p.get(1).map_or(0, |&b| u64::from(b)));
            let mut sum: u64 = pairs.sum();
            while sum > 0xFFFF {
                sum = (sum & 0xFFFF) + (sum >> 16);
            }
            assert_eq!(checksum(&bytes), !(sum as u16));
        });
    }
}
