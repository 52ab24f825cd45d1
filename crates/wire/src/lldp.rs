//! What a neighbour says about itself and its port (IEEE 802.1AB, clause 8; 802.3, 79.3.1).

use crate::Error;
use crate::ethernet::{self, EtherType, MacAddress};

/// The type of the frames.
pub const ETHERTYPE: EtherType = EtherType(0x88CC);
/// The nearest bridge: such frames end at the first one (802.1AB, 7.1).
pub const NEAREST_BRIDGE: MacAddress = MacAddress([0x01, 0x80, 0xC2, 0, 0, 0x0E]);

/// Types of the fields.
const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TIME_TO_LIVE: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;
const ORGANISATION: u8 = 127;
/// 802.3's own field about the physical layer: organisation and subtype.
const MAC_PHY: [u8; 4] = [0x00, 0x12, 0x0F, 1];
/// Subtype of a chassis or port that is a MAC address; all others are shown as text.
const CHASSIS_MAC: u8 = 4;
const PORT_MAC: u8 = 3;

/// The fields that a bump uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The sender's chassis.
    pub chassis: Id<'a>,
    /// The sender's port.
    pub port: Id<'a>,
    /// How long this is true, in seconds; 0 takes it back.
    pub time_to_live_s: u16,
    /// The description of the port.
    pub port_description: &'a [u8],
    /// The name of the system.
    pub system_name: &'a [u8],
    /// The speed of the port's link, in Mb/s, by its operational MAU type, if that is known here.
    pub mbps: Option<u32>,
}

/// The identity of a chassis or of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id<'a> {
    /// A MAC address.
    Mac(MacAddress),
    /// Anything else, mostly text.
    Text(&'a [u8]),
}

impl<'a> Repr<'a> {
    /// Reads a whole frame without its check sequence.
    ///
    /// Another type is [`Error::Unsupported`]; a field that exceeds the frame, or a frame without the three fields that each
    /// must have, is [`Error::Length`].
    pub fn parse(bytes: &'a [u8]) -> Result<Repr<'a>, Error> {
        let (header, mut rest) = ethernet::Repr::parse(bytes)?;
        if header.ethertype != ETHERTYPE {
            return Err(Error::Unsupported);
        }
        let (mut chassis, mut port, mut time_to_live_s) = (None, None, None);
        let (mut port_description, mut system_name, mut mbps) = (&[][..], &[][..], None);
        while let Some((&[t, l], behind)) = rest.split_first_chunk::<2>() {
            let (kind, len) = (t >> 1, usize::from(t & 1) << 8 | usize::from(l));
            let (value, next) = behind.split_at_checked(len).ok_or(Error::Length)?;
            rest = next;
            match kind {
                END => break,
                CHASSIS => chassis = Some(id(value, CHASSIS_MAC)?),
                PORT => port = Some(id(value, PORT_MAC)?),
                TIME_TO_LIVE => {
                    let &[high, low] = value.first_chunk().ok_or(Error::Length)?;
                    time_to_live_s = Some(u16::from_be_bytes([high, low]));
                }
                PORT_DESCRIPTION => port_description = value,
                SYSTEM_NAME => system_name = value,
                // Behind the subtype: autonegotiation, its capabilities, and the operational type.
                ORGANISATION if value.starts_with(&MAC_PHY) && value.len() >= 9 => {
                    mbps = mau_mbps(u16::from_be_bytes([value[7], value[8]]));
                }
                _ => {}
            }
        }
        match (chassis, port, time_to_live_s) {
            (Some(chassis), Some(port), Some(time_to_live_s)) => {
                Ok(Repr { chassis, port, time_to_live_s, port_description, system_name, mbps })
            }
            _ => Err(Error::Length),
        }
    }
}

fn id(value: &[u8], mac: u8) -> Result<Id<'_>, Error> {
    let (&subtype, text) = value.split_first().ok_or(Error::Length)?;
    Ok(match <[u8; 6]>::try_from(text) {
        Ok(address) if subtype == mac => Id::Mac(MacAddress(address)),
        _ => Id::Text(text),
    })
}

/// The speed of a MAU type (RFC 4836, `dot3MauType`, and IANA's list since), in Mb/s.
fn mau_mbps(kind: u16) -> Option<u32> {
    Some(match kind {
        10 | 11 => 10,
        14..=20 => 100,
        21..=30 => 1_000,
        31..=41 | 54..=56 => 10_000,
        // 40GBASE-KR4, -CR4, -SR4, -FR, -LR4 and 100GBASE-CR10 to -ER4.
        70..=74 => 40_000,
        75..=78 => 100_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec::Vec;

    fn frame(mau: u16) -> Vec<u8> {
        let mut bytes = Vec::from([0x01, 0x80, 0xC2, 0, 0, 0x0E, 2, 0, 0, 0, 0, 1, 0x88, 0xCC]);
        let mut field = |kind: u8, value: &[u8]| {
            bytes.extend([kind << 1, value.len() as u8]);
            bytes.extend(value);
        };
        field(CHASSIS, &[4, 2, 0, 0, 0, 0, 1]);
        field(PORT, b"\x05Eth1/7");
        field(TIME_TO_LIVE, &[0, 120]);
        field(SYSTEM_NAME, b"tor-3");
        let [high, low] = mau.to_be_bytes();
        field(ORGANISATION, &[0x00, 0x12, 0x0F, 1, 3, 0, 0, high, low]);
        field(END, &[]);
        bytes
    }

    #[test]
    fn a_port_and_its_speed_are_read() {
        let bytes = frame(30);
        let repr = Repr::parse(&bytes).unwrap();
        assert_eq!((repr.chassis, repr.port), (Id::Mac(MacAddress([2, 0, 0, 0, 0, 1])), Id::Text(b"Eth1/7")));
        assert_eq!((repr.time_to_live_s, repr.system_name, repr.mbps), (120, &b"tor-3"[..], Some(1_000)));
        assert_eq!(Repr::parse(&frame(54)).unwrap().mbps, Some(10_000));
        assert_eq!(Repr::parse(&frame(9_999)).unwrap().mbps, None);
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let bytes = frame(30);
        for len in 0..32 {
            assert!(Repr::parse(&bytes[..len]).is_err(), "{len}");
        }
        let mut other = bytes.clone();
        other[13] = 0xCD;
        assert_eq!(Repr::parse(&other), Err(Error::Unsupported));
        random::never_panics(|random| frame(random.u64() as u16), |bytes| Repr::parse(bytes).is_ok());
    }
}
