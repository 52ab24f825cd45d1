//! The destination socket of a frame: the fields by which a host's stack finds the socket.
//!
//! Only lengths are checked: callers do not consume the frame, and the stack behind them checks the rest.

use crate::ethernet::EtherType;
use crate::ipv4::Protocol;
use crate::ipv6::{AUTHENTICATION, FRAGMENT, is_extension};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Both ends of a conversation over UDP or UDP-Lite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Whether it is UDP-Lite (RFC 3828), whose ports are apart from those of UDP.
    pub lite: bool,
    /// Whether it goes to a group of stations: all sockets of the port may receive it, not one.
    pub group: bool,
}

/// The identification that the fragments of one datagram share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentId {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
    /// The sender's number for the datagram.
    pub id: u32,
}

/// The position of a fragment in its datagram, in bytes behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of its first byte.
    pub offset: u32,
    /// Its length.
    pub len: u32,
    /// Whether it is the last fragment.
    pub last: bool,
}

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cargo {
    /// A whole UDP datagram, for one station or a group.
    Udp(Flow),
    /// A fragment of a UDP datagram; the first fragment also has the flow.
    Piece(FragmentId, Piece, Option<Flow>),
    /// Any other content, including truncated bytes.
    Other,
}

/// UDP-Lite's protocol number (RFC 3828, 3).
const UDP_LITE: u8 = 136;
/// Most extension headers that are skipped: each may occur once, destination options twice (RFC 8200, 4.1).
const EXTENSIONS_MOST: usize = 6;
/// The longest datagram, in bytes behind the IP header.
const DATAGRAM_MOST: u32 = 65_535;

/// The content of a frame, behind at most one 802.1Q tag.
pub fn read(frame: &[u8]) -> Cargo {
    read_start(frame, frame.len())
}

/// The content of a frame of `len` bytes, from its first bytes.
pub fn read_start(start: &[u8], len: usize) -> Cargo {
    parse(start, len).unwrap_or(Cargo::Other)
}

fn parse(frame: &[u8], len: usize) -> Option<Cargo> {
    let on_group = frame.first()? & 1 == 1;
    let (kind, packet) = match frame.get(12..14)? {
        [0x81, 0x00] => (frame.get(16..18)?, frame.get(18..)?),
        kind => (kind, frame.get(14..)?),
    };
    let ip = match EtherType(u16::from_be_bytes([kind[0], kind[1]])) {
        EtherType::IPV4 => ipv4(packet)?,
        EtherType::IPV6 => ipv6(packet)?,
        _ => return None,
    };
    let lite = ip.protocol == UDP_LITE;
    if ip.protocol != Protocol::UDP.0 && !lite {
        return None;
    }
    let Ip { source, destination, .. } = ip;
    // A stack goes by the address, whatever the frame's own says; a directed broadcast is known by the frame.
    let group = match destination {
        _ if on_group => true,
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    };
    let ports = |payload: &[u8]| {
        let &[s0, s1, d0, d1] = payload.first_chunk()?;
        let (source_port, destination_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        Some(Flow { source, destination, source_port, destination_port, lite, group })
    };
    let Some((id, offset, more)) = ip.fragment.filter(|&(_, offset, more)| offset > 0 || more) else {
        return ports(ip.payload).map(Cargo::Udp);
    };
    // A stack drops fragments that exceed their frame, have a length that is no multiple of 8, or exceed the longest
    // datagram.
    let before = frame.len() - packet.len() + ip.at;
    let end = offset + ip.len;
    if ip.len == 0 || before + ip.len as usize > len || (more && ip.len % 8 != 0) || end > DATAGRAM_MOST {
        return None;
    }
    let flow = if offset == 0 { Some(ports(ip.payload)?) } else { None };
    let piece = Piece { offset, len: ip.len, last: !more };
    Some(Cargo::Piece(FragmentId { source, destination, id }, piece, flow))
}

/// The fields of an IP packet's headers.
struct Ip<'a> {
    /// The fragment's identification, its offset in bytes, and whether more fragments follow.
    fragment: Option<(u32, u32, bool)>,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// The available part of the payload.
    payload: &'a [u8],
    /// Where in the packet a fragment's data starts, and its length.
    at: usize,
    len: u32,
}

fn ipv4(packet: &[u8]) -> Option<Ip<'_>> {
    let header = packet.first_chunk::<20>()?;
    let len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || len < 20 {
        return None;
    }
    let pieces = u16::from_be_bytes([header[6], header[7]]);
    let id = u16::from_be_bytes([header[4], header[5]]).into();
    let address = |at: usize| IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
    Some(Ip {
        fragment: Some((id, u32::from(pieces & 0x1fff) * 8, pieces & 0x2000 != 0)),
        source: address(12),
        destination: address(16),
        protocol: header[9],
        payload: packet.get(len..)?,
        at: len,
        len: u32::from(u16::from_be_bytes([header[2], header[3]])).saturating_sub(len as u32),
    })
}

fn ipv6(packet: &[u8]) -> Option<Ip<'_>> {
    let header = packet.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let (source, destination) = (address(8)?, address(24)?);
    let whole = packet.get(40..)?;
    let (mut payload, mut protocol, mut fragment, mut at) = (whole, header[6], None, 40);
    for _ in 0..EXTENSIONS_MOST {
        let &[next, size, ..] = match protocol {
            header if is_extension(header) => payload.first_chunk::<8>()?,
            _ => break,
        };
        let next_is_piece = protocol == FRAGMENT;
        let len = match protocol {
            FRAGMENT => {
                let &[_, _, o0, o1, i0, i1, i2, i3] = payload.first_chunk::<8>()?;
                let pieces = u16::from_be_bytes([o0, o1]);
                fragment = Some((u32::from_be_bytes([i0, i1, i2, i3]), u32::from(pieces & !7), pieces & 1 != 0));
                8
            }
            AUTHENTICATION => (usize::from(size) + 2) * 4,
            _ => (usize::from(size) + 1) * 8,
        };
        (protocol, payload) = (next, payload.get(len..)?);
        if next_is_piece {
            at = 40 + whole.len() - payload.len();
        }
        // In a later fragment no header follows.
        if fragment.is_some_and(|(_, offset, _)| offset > 0) {
            break;
        }
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let len = (length + 40).saturating_sub(at) as u32;
    Some(Ip { fragment, source, destination, protocol, payload, at, len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipv6::{DESTINATION_OPTIONS, HOP_BY_HOP};
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
        lite: false,
        group: false,
    };
    const ID: FragmentId = FragmentId { source: FLOW.source, destination: FLOW.destination, id: 7 };

    #[test]
    fn what_a_frame_carries() {
        assert_eq!(read(&ipv4_frame(0, 17)), Cargo::Udp(FLOW));
        assert_eq!(read(&ipv4_frame(0x4000, 17)), Cargo::Udp(FLOW), "do not fragment");
        let piece = |offset, last| Piece { offset, len: 16, last };
        assert_eq!(read(&ipv4_frame(0x2000, 17)), Cargo::Piece(ID, piece(0, false), Some(FLOW)));
        assert_eq!(read(&ipv4_frame(0x20b9, 17)), Cargo::Piece(ID, piece(1480, false), None));
        assert_eq!(read(&ipv4_frame(0x00b9, 17)), Cargo::Piece(ID, piece(1480, true), None));
        assert_eq!(read(&ipv4_frame(0x3fff, 17)), Cargo::Other, "beyond the longest datagram");
        let mut odd = ipv4_frame(0x20b9, 17);
        odd[17] = 35;
        assert_eq!(read(&odd), Cargo::Other, "not in steps of 8 bytes");
        odd[17] = 44;
        assert_eq!(read(&odd), Cargo::Other, "longer than its frame");
        let mut padded = ipv4_frame(0x00b9, 17);
        padded.extend([0; 10]);
        assert_eq!(read(&padded), Cargo::Piece(ID, piece(1480, true), None), "what Ethernet adds does not count");
        let first = ipv4_frame(0x2000, 17);
        assert_eq!(read_start(&first[..40], first.len()), read(&first), "its start says it all");
        assert_eq!(read(&ipv4_frame(0, 6)), Cargo::Other);
        let mut tagged = ipv4_frame(0, 17);
        tagged.splice(12..12, [0x81, 0, 0x60, 5]);
        assert_eq!(read(&tagged), Cargo::Udp(FLOW));
        assert_eq!(read(&ipv4_frame(0, 136)), Cargo::Udp(Flow { lite: true, ..FLOW }));
        // A directed broadcast is known by the frame's address, any other group by that of the packet.
        let mut group = ipv4_frame(0, 17);
        group[0] |= 1;
        assert_eq!(read(&group), Cargo::Udp(Flow { group: true, ..FLOW }));
        for address in [[239, 1, 1, 1], [255; 4]] {
            let mut group = ipv4_frame(0, 17);
            group[30..34].copy_from_slice(&address);
            assert_eq!(
                read(&group),
                Cargo::Udp(Flow { group: true, destination: Ipv4Addr::from(address).into(), ..FLOW })
            );
        }
    }

    #[test]
    fn ipv6_with_and_without_a_fragment_header() {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 17, 64];
        let (a, b) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
        f.extend(a.octets());
        f.extend(b.octets());
        let udp = [0x10, 0, 0x1b, 0x58, 0, 8, 0, 0];
        let flow = Flow { source: a.into(), destination: b.into(), ..FLOW };
        let id = FragmentId { source: a.into(), destination: b.into(), id: 9 };
        let mut whole = f.clone();
        whole.extend(udp);
        assert_eq!(read(&whole), Cargo::Udp(flow));
        f[20] = FRAGMENT;
        let mut first = f.clone();
        first.extend([17, 0, 0, 1, 0, 0, 0, 9]);
        first.extend(udp);
        assert_eq!(read(&first), Cargo::Piece(id, Piece { offset: 0, len: 8, last: false }, Some(flow)));
        let mut later = f.clone();
        later.extend([17, 0, 5, 0xa8, 0, 0, 0, 9]);
        later.extend([44; 8]);
        assert_eq!(read(&later), Cargo::Piece(id, Piece { offset: 1448, len: 8, last: true }, None));
        // The kernel also skips options before and behind the fragment header.
        f[20] = DESTINATION_OPTIONS;
        let mut options = f.clone();
        options.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        options.extend(udp);
        assert_eq!(read(&options), Cargo::Udp(flow));
        f[20] = HOP_BY_HOP;
        f.extend([FRAGMENT, 0, 1, 4, 0, 0, 0, 0]);
        f.extend([DESTINATION_OPTIONS, 0, 0, 1, 0, 0, 0, 9]);
        f.extend([17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        f.extend(udp);
        f[19] = 40;
        assert_eq!(read(&f), Cargo::Piece(id, Piece { offset: 0, len: 24, last: false }, Some(flow)));
        assert_eq!(read(&f[..f.len() - 9]), Cargo::Other, "a header is cut short");
        // Endless headers.
        f.truncate(54);
        f[20] = HOP_BY_HOP;
        f.extend([0; 200]);
        assert_eq!(read(&f), Cargo::Other);
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
