//! Ethernet frames (IEEE 802.3, 3), and their frame check sequence.

use core::fmt;

use crate::Error;

/// Bytes of destination, source and type.
pub const HEADER_LEN: usize = 14;
/// Bytes of destination and source.
pub const ADDRESSES_LEN: usize = 12;
/// Bytes of the frame check sequence.
pub const FCS_LEN: usize = 4;
/// Shortest frame without its check sequence (minFrameSize of 64 bytes less 4); shorter ones are padded.
pub const MIN_LEN: usize = 60;

/// A 48-bit MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Every station.
    pub const BROADCAST: MacAddress = MacAddress([0xFF; 6]);

    /// A locally administered unicast address that holds `number`.
    pub const fn local(number: u32) -> MacAddress {
        let [a, b, c, d] = number.to_be_bytes();
        MacAddress([0x02, 0x00, a, b, c, d])
    }

    /// A locally administered unicast address of the switch with this number; no station has it.
    pub const fn switch(number: u32) -> MacAddress {
        let [a, b, c, d] = number.to_be_bytes();
        MacAddress([0x06, 0x00, a, b, c, d])
    }

    /// Whether the address names a group of stations (the I/G bit).
    pub const fn is_group(self) -> bool {
        self.0[0] & 0x01 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}-{b:02X}-{c:02X}-{d:02X}-{e:02X}-{g:02X}")
    }
}

/// The type of a frame's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP (RFC 826).
    pub const ARP: EtherType = EtherType(0x0806);
    /// IPv6 (RFC 2464).
    pub const IPV6: EtherType = EtherType(0x86DD);
    /// An 802.1Q tag.
    pub const VLAN: EtherType = EtherType(0x8100);
    /// A service tag (802.1ad).
    pub const SERVICE_VLAN: EtherType = EtherType(0x88A8);
    /// MAC Control (802.3, 31): PAUSE and PFC.
    pub const MAC_CONTROL: EtherType = EtherType(0x8808);
    /// A congestion notification message (802.1Qau).
    pub const CNM: EtherType = EtherType(0x22E7);
    /// A congestion notification tag (802.1Qau).
    pub const CN_TAG: EtherType = EtherType(0x22E9);
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Station or group the frame is for.
    pub destination: MacAddress,
    /// Station that sent the frame.
    pub source: MacAddress,
    /// The type of the payload.
    pub ethertype: EtherType,
}

impl Repr {
    /// Reads the header of a frame without its check sequence; returns what follows, padding included.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        let (destination, source) = addresses(bytes).ok_or(Error::Truncated)?;
        let ethertype = EtherType(u16::from_be_bytes([header[12], header[13]]));
        // Below 1536 the field is a length (802.3, 3.2.6): an LLC frame, which this project never sends.
        if ethertype.0 < 0x0600 {
            return Err(Error::Unsupported);
        }
        Ok((Repr { destination, source, ethertype }, rest))
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[0..6].copy_from_slice(&self.destination.0);
        bytes[6..12].copy_from_slice(&self.source.0);
        bytes[12..14].copy_from_slice(&self.ethertype.0.to_be_bytes());
    }
}

/// Destination and source of a frame with a whole header, whatever its payload.
pub fn addresses(frame: &[u8]) -> Option<(MacAddress, MacAddress)> {
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, _, _] = *frame.first_chunk::<HEADER_LEN>()?;
    Some((MacAddress([d0, d1, d2, d3, d4, d5]), MacAddress([s0, s1, s2, s3, s4, s5])))
}

/// The type, or length, of a frame's payload behind at most one tag.
pub fn inner_type(frame: &[u8]) -> Option<EtherType> {
    let at = |at: usize| Some(EtherType(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])));
    match at(ADDRESSES_LEN)? {
        EtherType::VLAN => at(ADDRESSES_LEN + crate::vlan::TAG_LEN),
        other => Some(other),
    }
}

/// CRC-32 of one byte, for every byte, least significant bit first.
const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            // 0xEDB88320 is the generator of 802.3, 3.2.9, with its bits reversed.
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The frame check sequence of a frame (802.3, 3.2.9), in the order its bytes are sent.
pub fn fcs(frame: &[u8]) -> [u8; FCS_LEN] {
    let step = |crc: u32, byte: &u8| CRC_TABLE[(crc as u8 ^ byte) as usize] ^ (crc >> 8);
    (!frame.iter().fold(u32::MAX, step)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::string::ToString;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> Repr {
        Repr {
            destination: MacAddress(random.array()),
            source: MacAddress(random.array()),
            ethertype: EtherType(random.u64() as u16 | 0x0600),
        }
    }

    fn emitted(repr: Repr) -> Vec<u8> {
        let mut bytes = [0; HEADER_LEN + 3];
        repr.emit(&mut bytes);
        bytes.to_vec()
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let repr = any(random);
            assert_eq!(Repr::parse(&emitted(repr)), Ok((repr, &[0, 0, 0][..])));
        });
        random::never_panics(|random| emitted(any(random)), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn a_length_is_not_a_type() {
        let repr = Repr { ethertype: EtherType(46), ..Repr::default() };
        assert_eq!(Repr::parse(&emitted(repr)), Err(Error::Unsupported));
        assert_eq!(Repr::parse(&[0; HEADER_LEN - 1]), Err(Error::Truncated));
    }

    #[test]
    fn fcs_is_crc_32() {
        // The check value every catalogue of CRCs gives for CRC-32/ISO-HDLC.
        assert_eq!(fcs(b"123456789"), 0xCBF4_3926u32.to_le_bytes());
    }

    #[test]
    fn addresses_are_written_as_the_standard_does() {
        assert_eq!(MacAddress::local(0x0A0B_0C0D).to_string(), "02-00-0A-0B-0C-0D");
        assert!(MacAddress::BROADCAST.is_group() && !MacAddress::local(1).is_group());
    }
}
