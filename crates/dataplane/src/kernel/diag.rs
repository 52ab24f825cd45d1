//! The room in the UDP sockets of a namespace, as the kernel reports it (`sock_diag`).

use super::netlink::{DUMP, Message, Netlink, attributes, word};
use super::stage::Receiver;
use sluicenet_proto::agent::room;
use sluicenet_wire::flow::Flow;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_SKMEMINFO: u16 = 7;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
/// Whether a socket for IPv6 takes no IPv4.
const INET_DIAG_SKV6ONLY: u16 = 11;
/// Bytes of `inet_diag_msg`.
const ANSWER_LEN: usize = 72;

/// The kernel's report about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    /// Which one it is.
    pub cookie: u64,
    /// Bytes of memory of all waiting datagrams.
    pub used: u32,
    /// Bytes it may take.
    pub limit: u32,
    /// Bytes of memory of the unread datagrams. It falls with each datagram that is read; `used` falls in large steps.
    pub queued: u32,
}

/// All UDP sockets of one address family, added to `all`.
pub(super) fn all_sockets(netlink: &mut Netlink, family: i32, all: &mut Vec<room::Socket>) -> io::Result<()> {
    let mut request = [0u8; 56];
    request[0] = family as u8;
    request[1] = libc::IPPROTO_UDP as u8;
    request[2] = 1 << (INET_DIAG_SKMEMINFO - 1);
    request[4..8].fill(0xff);
    let asked = netlink.ask(Message::new(SOCK_DIAG_BY_FAMILY, DUMP, &request), |_, body| {
        all.extend(read(body).map(|Socket { cookie, used, limit, .. }| room::Socket { cookie, used, limit }));
    });
    match asked {
        // A kernel without it has no such sockets, either.
        Err(e) if e.kind() == io::ErrorKind::NotFound && family == libc::AF_INET6 => Ok(()),
        other => other,
    }
}

/// A socket in an answer.
fn read(body: &[u8]) -> Option<Socket> {
    let rest = body.get(ANSWER_LEN..)?;
    let cookie = u64::from(word(body, 44)) | u64::from(word(body, 48)) << 32;
    let (_, memory) = attributes(rest).find(|&(kind, _)| kind == INET_DIAG_SKMEMINFO)?;
    Some(Socket { cookie, used: word(memory, 0), limit: word(memory, 4), queued: word(body, 56) })
}

/// The socket to which the kernel would give a datagram of `flow` that arrives at device number `device`.
pub(super) fn socket(netlink: &mut Netlink, flow: &Flow, device: u32) -> io::Result<Option<Socket>> {
    // `inet_diag_req_v2`: family, protocol, extensions, padding, states; then the id: ports, addresses, device, cookie.
    let mut request = [0u8; 56];
    let family = if flow.source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    request[0] = family as u8;
    request[1] = protocol(flow);
    request[2] = 1 << (INET_DIAG_SKMEMINFO - 1);
    request[4..8].fill(0xff);
    // As the kernel looks a datagram up: from its remote end to its local one.
    request[8..10].copy_from_slice(&flow.source_port.to_be_bytes());
    request[10..12].copy_from_slice(&flow.destination_port.to_be_bytes());
    for (at, address) in [(12, flow.source), (28, flow.destination)] {
        match address {
            IpAddr::V4(a) => request[at..at + 4].copy_from_slice(&a.octets()),
            IpAddr::V6(a) => request[at..at + 16].copy_from_slice(&a.octets()),
        }
    }
    request[44..48].copy_from_slice(&device.to_ne_bytes());
    // No cookie: any socket.
    request[48..56].fill(0xff);
    let mut found = None;
    let asked = netlink.ask(Message::new(SOCK_DIAG_BY_FAMILY, 0, &request), |_, body| found = read(body).or(found));
    match asked {
        Ok(()) => Ok(found),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn protocol(flow: &Flow) -> u8 {
    (if flow.lite { libc::IPPROTO_UDPLITE } else { libc::IPPROTO_UDP }) as u8
}

/// All sockets to which the kernel may give a datagram for the group of `flow` that arrives at device number `device`. The
/// kernel goes through its sockets and answers for those at the port.
pub(super) fn group(netlink: &mut Netlink, flow: &Flow, device: u32, all: &mut Vec<Receiver>) -> io::Result<()> {
    let families: &[i32] =
        if flow.destination.is_ipv4() { &[libc::AF_INET, libc::AF_INET6] } else { &[libc::AF_INET6] };
    for &family in families {
        let mut request = [0u8; 56];
        request[0] = family as u8;
        request[1] = protocol(flow);
        request[2] = 1 << (INET_DIAG_SKMEMINFO - 1);
        request[4..8].fill(0xff);
        request[8..10].copy_from_slice(&flow.destination_port.to_be_bytes());
        let asked = netlink.ask(Message::new(SOCK_DIAG_BY_FAMILY, DUMP, &request), |_, body| {
            all.extend(receiver(body, flow, device));
        });
        match asked {
            // A kernel without IPv6 or UDP-Lite has no such sockets, either.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// A socket in an answer, if it may receive a datagram for the group of `flow`.
fn receiver(body: &[u8], flow: &Flow, device: u32) -> Option<Receiver> {
    let socket = read(body)?;
    let is_v6 = i32::from(body[0]) == libc::AF_INET6;
    let only_v6 =
        is_v6 && attributes(&body[ANSWER_LEN..]).any(|(kind, value)| kind == INET_DIAG_SKV6ONLY && value == [1]);
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = body[at..at + 16].try_into().ok()?;
        Some(match is_v6 {
            true => Ipv6Addr::from(octets).to_canonical(),
            false => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
        })
    };
    let (own, peer) = (address(8)?, address(24)?);
    let (at_device, peer_port) = (word(body, 40), u16::from_be_bytes([body[6], body[7]]));
    let fits = (own.is_unspecified() || own == flow.destination)
        && (at_device == 0 || at_device == device)
        && !(only_v6 && flow.destination.is_ipv4());
    let peer = (!peer.is_unspecified() || peer_port != 0).then_some((peer, peer_port));
    fits.then_some(Receiver { socket, peer })
}

/// The way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is one of the namespace's own.
    Local,
    /// It is the broadcast address of one of its networks.
    Broadcast,
    /// It is another's.
    Elsewhere,
}

/// The way to an address.
pub(super) fn way(netlink: &mut Netlink, address: IpAddr) -> io::Result<Way> {
    let (family, octets) = match address {
        IpAddr::V4(a) => (libc::AF_INET, a.octets().to_vec()),
        IpAddr::V6(a) => (libc::AF_INET6, a.octets().to_vec()),
    };
    // `rtmsg`: family, lengths of destination and source, service, table, protocol, scope, type, flags.
    let mut request = [0u8; 12];
    request[0] = family as u8;
    request[1] = 8 * octets.len() as u8;
    let mut way = Way::Elsewhere;
    let asked = netlink.ask(Message::new(RTM_GETROUTE, 0, &request).with(RTA_DST, &octets), |kind, body| {
        way = match body.get(7) {
            Some(&RTN_LOCAL) if kind == RTM_NEWROUTE => Way::Local,
            Some(&RTN_BROADCAST) if kind == RTM_NEWROUTE => Way::Broadcast,
            _ => way,
        };
    });
    match asked {
        Ok(()) => Ok(way),
        // No way there.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::EACCES)
            ) =>
        {
            Ok(Way::Elsewhere)
        }
        Err(e) => Err(e),
    }
}
