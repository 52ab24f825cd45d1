//! A packet that is too large for the tunnel: the message to its sender, and its fragments.

use super::TTL;
use super::inner::Untagged;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use sluicenet_wire::ethernet::{self, ADDRESSES_LEN, EtherType};
use sluicenet_wire::fragment::Fragments;
use sluicenet_wire::icmp::{self, TooBig};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::{icmpv6, ipv6};

/// The fragments of a tenant's IPv4 packet that is too large for the tunnel, each in a frame without a tag.
#[derive(Clone, Debug)]
pub struct FrameFragments<'a> {
    addresses: &'a [u8],
    fragments: Fragments<'a>,
}

impl<'a> FrameFragments<'a> {
    /// Cuts the packet of a frame into fragments of at most `mtu` bytes. `None` if no router would cut it.
    pub fn of(frame: &'a [u8], mtu: u16) -> Option<FrameFragments<'a>> {
        let inner = Untagged::of(frame).ok().filter(|inner| inner.ethertype == EtherType::IPV4)?;
        let fragments = Fragments::new(inner.packet, mtu.into()).ok()?;
        Some(FrameFragments { addresses: inner.addresses, fragments })
    }

    /// Number of frames, at least one.
    pub fn count(&self) -> usize {
        self.fragments.count()
    }

    /// Writes frame `k` (below [`FrameFragments::count`]) into `out`.
    pub fn emit(&self, k: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.addresses[..ADDRESSES_LEN]);
        out.extend_from_slice(&EtherType::IPV4.0.to_be_bytes());
        self.fragments.emit(k, out);
    }
}

/// The answer to a tenant's frame that is too large for the tunnel and must not be fragmented, as if from the frame's
/// destination: ICMP "fragmentation needed" (RFC 1191, 4) or ICMPv6 "Packet Too Big" (RFC 4443, 3.2). `None` if no message
/// may be sent: for another protocol, if fragmentation is allowed, about an ICMP error, or for an address that is not a
/// host's (RFC 1122, 3.2.2; RFC 4443, 2.4).
pub fn too_big_answer(frame: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let inner = Untagged::of(frame).ok()?;
    let mut answer = match inner.ethertype {
        EtherType::IPV4 => fragmentation_needed(inner.packet, mtu),
        EtherType::IPV6 => packet_too_big(inner.packet, mtu),
        _ => None,
    }?;
    let (header, _) = ethernet::Repr::parse(frame).ok()?;
    let back = ethernet::Repr { destination: header.source, source: header.destination, ethertype: inner.ethertype };
    back.emit(&mut answer);
    answer.resize(answer.len().max(ethernet::MIN_LEN), 0);
    Some(answer)
}

fn fragmentation_needed(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let (ip, payload) = ipv4::Repr::parse(packet).ok()?;
    let about_an_error = ip.protocol == Protocol::ICMP && !matches!(payload.first(), Some(0 | 8));
    let nobody = |a: Ipv4Addr| a.is_unspecified() || a.is_broadcast() || a.is_multicast() || a.is_loopback();
    if !ip.dont_fragment || about_an_error || nobody(ip.source) || nobody(ip.destination) {
        return None;
    }
    let header_len = usize::from(packet[0] & 0x0F) * 4;
    // The header and 64 bits of its payload (RFC 792).
    let quoted = &packet[..(header_len + 8).min(header_len + payload.len())];
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
    Some(answer)
}

fn packet_too_big(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    const HEADERS: usize = ipv6::HEADER_LEN + icmpv6::TOO_BIG_LEN;
    let (ip, payload) = ipv6::Repr::parse(packet).ok()?;
    let nobody = |a: core::net::Ipv6Addr| a.is_unspecified() || a.is_multicast() || a.is_loopback();
    if icmpv6::is_error(&ip, payload) || nobody(ip.source) || nobody(ip.destination) {
        return None;
    }
    // "As much of invoking packet as possible without the ICMPv6 packet exceeding the minimum IPv6 MTU".
    let quoted = &packet[..(ipv6::HEADER_LEN + payload.len()).min(usize::from(ipv6::MIN_MTU) - HEADERS)];
    let mut answer = alloc::vec![0; ethernet::HEADER_LEN + HEADERS];
    answer.extend_from_slice(quoted);
    let header = ipv6::Repr {
        source: ip.destination,
        destination: ip.source,
        next_header: ipv6::ICMPV6,
        traffic_class: ip.traffic_class & !0b11,
        flow_label: 0,
        hop_limit: TTL,
        payload_len: (icmpv6::TOO_BIG_LEN + quoted.len()) as u16,
    };
    let (start, message) = answer.split_at_mut(ethernet::HEADER_LEN + ipv6::HEADER_LEN);
    header.emit(&mut start[ethernet::HEADER_LEN..]);
    icmpv6::TooBig { mtu: mtu.into() }.emit(&header, message);
    Some(answer)
}
