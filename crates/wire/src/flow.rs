//! For which socket a frame is: what a host's stack looks at to find it.
//!
//! Only lengths are checked: whoever asks does not consume the frame, and the stack behind it checks the rest.

use crate::ethernet::EtherType;
use crate::ipv4::Protocol;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Both ends of a conversation over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// From where.
    pub source: IpAddr,
    /// Where to.
    pub destination: IpAddr,
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
}

/// What the fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentId {
    /// From where.
    pub source: IpAddr,
    /// Where to.
    pub destination: IpAddr,
    /// The sender's number for it.
    pub id: u32,
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cargo {
    /// A whole UDP datagram for one station.
    Udp(Flow),
    /// The first fragment of one.
    First(Flow, FragmentId),
    /// A later fragment of one, and whether it is the last.
    Later(FragmentId, bool),
    /// A UDP datagram for a group of stations.
    Group,
    /// Anything else, bytes that were cut short included.
    Other,
}

/// IPv6's next header of a fragment (RFC 8200, 4.5).
const FRAGMENT_HEADER: u8 = 44;

/// Reads what a frame carries, behind at most one 802.1Q tag.
pub fn read(frame: &[u8]) -> Cargo {
    parse(frame).unwrap_or(Cargo::Other)
}

fn parse(frame: &[u8]) -> Option<Cargo> {
    let group = frame.first()? & 1 == 1;
    let (kind, packet) = match frame.get(12..14)? {
        [0x81, 0x00] => (frame.get(16..18)?, frame.get(18..)?),
        kind => (kind, frame.get(14..)?),
    };
    let (pieces, source, destination, protocol, payload) = match EtherType(u16::from_be_bytes([kind[0], kind[1]])) {
        EtherType::IPV4 => ipv4(packet)?,
        EtherType(0x86dd) => ipv6(packet)?,
        _ => return None,
    };
    if protocol != Protocol::UDP.0 {
        return None;
    }
    if group {
        return Some(Cargo::Group);
    }
    let (id, offset, more) = pieces.unwrap_or((0, 0, false));
    let fragment = FragmentId { source, destination, id };
    if offset > 0 {
        return Some(Cargo::Later(fragment, !more));
    }
    let &[s0, s1, d0, d1] = payload.first_chunk()?;
    let (source_port, destination_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    let flow = Flow { source, destination, source_port, destination_port };
    Some(if more { Cargo::First(flow, fragment) } else { Cargo::Udp(flow) })
}

/// The number of a fragment, its offset and whether more follow; both addresses; the protocol; what it carries.
type Packet<'a> = (Option<(u32, u16, bool)>, IpAddr, IpAddr, u8, &'a [u8]);

fn ipv4(packet: &[u8]) -> Option<Packet<'_>> {
    let header = packet.first_chunk::<20>()?;
    let len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || len < 20 {
        return None;
    }
    let pieces = u16::from_be_bytes([header[6], header[7]]);
    let id = u16::from_be_bytes([header[4], header[5]]).into();
    let address = |at: usize| IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
    let fragment = Some((id, pieces & 0x1fff, pieces & 0x2000 != 0));
    Some((fragment, address(12), address(16), header[9], packet.get(len..)?))
}

fn ipv6(packet: &[u8]) -> Option<Packet<'_>> {
    let header = packet.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let (source, destination, payload) = (address(8)?, address(24)?, packet.get(40..)?);
    if header[6] != FRAGMENT_HEADER {
        return Some((None, source, destination, header[6], payload));
    }
    let &[next, _, o0, o1, i0, i1, i2, i3] = payload.first_chunk::<8>()?;
    let pieces = u16::from_be_bytes([o0, o1]);
    let fragment = Some((u32::from_be_bytes([i0, i1, i2, i3]), pieces >> 3, pieces & 1 != 0));
    Some((fragment, source, destination, next, payload.get(8..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn ipv4_frame(pieces: u16, protocol: u8) -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        f.extend([0x45, 0, 0, 36, 0, 7, (pieces >> 8) as u8, pieces as u8, 64, protocol, 0, 0]);
        f.extend([10, 0, 0, 2, 10, 0, 0, 1]);
        f.extend([0x10, 0x00, 0x1b, 0x58, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        f
    }
    const FLOW: Flow = Flow {
        source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        destination: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        source_port: 4096,
        destination_port: 7000,
    };
    const ID: FragmentId = FragmentId { source: FLOW.source, destination: FLOW.destination, id: 7 };

    #[test]
    fn what_a_frame_carries() {
        assert_eq!(read(&ipv4_frame(0, 17)), Cargo::Udp(FLOW));
        assert_eq!(read(&ipv4_frame(0x4000, 17)), Cargo::Udp(FLOW), "do not fragment");
        assert_eq!(read(&ipv4_frame(0x2000, 17)), Cargo::First(FLOW, ID));
        assert_eq!(read(&ipv4_frame(0x20b9, 17)), Cargo::Later(ID, false));
        assert_eq!(read(&ipv4_frame(0x00b9, 17)), Cargo::Later(ID, true));
        assert_eq!(read(&ipv4_frame(0, 6)), Cargo::Other);
        let mut tagged = ipv4_frame(0, 17);
        tagged.splice(12..12, [0x81, 0, 0x60, 5]);
        assert_eq!(read(&tagged), Cargo::Udp(FLOW));
        let mut group = ipv4_frame(0, 17);
        group[0] |= 1;
        assert_eq!(read(&group), Cargo::Group);
    }

    #[test]
    fn ipv6_with_and_without_a_fragment_header() {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64];
        let (a, b) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
        f.extend(a.octets());
        f.extend(b.octets());
        let udp = [0x10, 0, 0x1b, 0x58, 0, 8, 0, 0];
        let flow = Flow { source: a.into(), destination: b.into(), ..FLOW };
        let id = FragmentId { source: a.into(), destination: b.into(), id: 9 };
        let mut whole = f.clone();
        whole.extend(udp);
        assert_eq!(read(&whole), Cargo::Udp(flow));
        f[20] = FRAGMENT_HEADER;
        let mut first = f.clone();
        first.extend([17, 0, 0, 1, 0, 0, 0, 9]);
        first.extend(udp);
        assert_eq!(read(&first), Cargo::First(flow, id));
        f.extend([17, 0, 5, 0xa8, 0, 0, 0, 9]);
        assert_eq!(read(&f), Cargo::Later(id, true));
    }

    #[test]
    fn bytes_cut_short_match_nothing() {
        let whole = ipv4_frame(0, 17);
        for len in 0..38 {
            assert_eq!(read(&whole[..len]), Cargo::Other);
        }
        let mut lies = whole.clone();
        lies[14] = 0x4f;
        assert_eq!(read(&lies), Cargo::Other, "a header longer than the packet");
        lies[14] = 0x44;
        assert_eq!(read(&lies), Cargo::Other, "a header shorter than a header");
    }
}
