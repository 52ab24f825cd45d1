//! The message to the sender of a packet that is too large.

use super::TTL;
use super::inner::Untagged;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use sluicenet_wire::ethernet::{self, EtherType};
use sluicenet_wire::icmp::{self, TooBig};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};

/// The answer to a tenant's frame that is too large for the tunnel and must not be fragmented: ICMP "fragmentation needed",
/// as if from the frame's destination (RFC 1191, 4). `None` if no message may be sent: for another protocol, if
/// fragmentation is allowed, about an ICMP error, or for an address that is not a host's (RFC 1122, 3.2.2).
pub fn fragmentation_needed(frame: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let inner = Untagged::of(frame).ok()?;
    if inner.ethertype != EtherType::IPV4 {
        return None;
    }
    let (ip, payload) = ipv4::Repr::parse(inner.packet).ok()?;
    let about_an_error = ip.protocol == Protocol::ICMP && !matches!(payload.first(), Some(0 | 8));
    let nobody = |a: Ipv4Addr| a.is_unspecified() || a.is_broadcast() || a.is_multicast() || a.is_loopback();
    if !ip.dont_fragment || about_an_error || nobody(ip.source) || nobody(ip.destination) {
        return None;
    }
    let header_len = usize::from(inner.packet[0] & 0x0F) * 4;
    // The header and 64 bits of its payload (RFC 792).
    let quoted = &inner.packet[..(header_len + 8).min(header_len + payload.len())];
    let at_icmp = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
    let mut answer = alloc::vec![0; at_icmp + icmp::HEADER_LEN];
    answer.extend_from_slice(quoted);
    TooBig { mtu }.emit(&mut answer[at_icmp..]);
    let payload_len = (answer.len() - at_icmp) as u16;
    ipv4::Repr {
        source: ip.destination,
        destination: ip.source,
        protocol: Protocol::ICMP,
        dscp: ip.dscp,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        ttl: TTL,
        payload_len,
    }
    .emit(&mut answer[ethernet::HEADER_LEN..]);
    let (header, _) = ethernet::Repr::parse(frame).ok()?;
    let back = ethernet::Repr { destination: header.source, source: header.destination, ethertype: EtherType::IPV4 };
    back.emit(&mut answer);
    answer.resize(answer.len().max(ethernet::MIN_LEN), 0);
    Some(answer)
}
