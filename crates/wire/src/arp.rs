//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use crate::Error;
use crate::ethernet::MacAddress;

/// Bytes of a message.
pub const LEN: usize = 28;

/// Hardware type Ethernet, protocol type IPv4, addresses of 6 and 4 bytes: the first eight bytes but the operation.
const ETHERNET_IPV4: [u8; 6] = [0x00, 0x01, 0x08, 0x00, 6, 4];

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Asks for the MAC address of the target.
    Request = 1,
    /// Tells the MAC address of the sender.
    Reply = 2,
}

/// An ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The operation.
    pub operation: Operation,
    /// MAC address of the sender.
    pub sender_mac: MacAddress,
    /// IPv4 address of the sender.
    pub sender_ip: Ipv4Addr,
    /// MAC address of the target; undefined in a request.
    pub target_mac: MacAddress,
    /// IPv4 address of the target.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// Reads a message; returns the padding behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (message, rest) = bytes.split_first_chunk::<LEN>().ok_or(Error::Truncated)?;
        let operation = match message[6..8] {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return Err(Error::Unsupported),
        };
        if message[..6] != ETHERNET_IPV4 {
            return Err(Error::Unsupported);
        }
        let mac = |at: usize| MacAddress(core::array::from_fn(|i| message[at + i]));
        let ip = |at: usize| Ipv4Addr::from(core::array::from_fn::<u8, 4, _>(|i| message[at + i]));
        let repr = Repr { operation, sender_mac: mac(8), sender_ip: ip(14), target_mac: mac(18), target_ip: ip(24) };
        Ok((repr, rest))
    }

    /// Writes the message into the first [`LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[0..6].copy_from_slice(&ETHERNET_IPV4);
        bytes[6..8].copy_from_slice(&[0, self.operation as u8]);
        bytes[8..14].copy_from_slice(&self.sender_mac.0);
        bytes[14..18].copy_from_slice(&self.sender_ip.octets());
        bytes[18..24].copy_from_slice(&self.target_mac.0);
        bytes[24..28].copy_from_slice(&self.target_ip.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> Repr {
        Repr {
            operation: if random.bool() { Operation::Request } else { Operation::Reply },
            sender_mac: MacAddress(random.array()),
            sender_ip: random.ipv4(),
            target_mac: MacAddress(random.array()),
            target_ip: random.ipv4(),
        }
    }

    fn emitted(repr: Repr) -> Vec<u8> {
        let mut bytes = [0; LEN + 18];
        repr.emit(&mut bytes);
        bytes.to_vec()
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let repr = any(random);
            assert_eq!(Repr::parse(&emitted(repr)), Ok((repr, &[0; 18][..])));
        });
        random::never_panics(|random| emitted(any(random)), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn other_hardware_and_operations_are_not_spoken() {
        let valid = emitted(any(&mut random::Random::new(3)));
        for at in 0..8 {
            let mut other = valid.clone();
            other[at] ^= 0x40;
            assert_eq!(Repr::parse(&other), Err(Error::Unsupported), "byte {at}");
        }
    }
}
