//! The VXLAN tunnel between servers (RFC 7348; Crisan 2014, 3.2.3.1).
//!
//! A tenant is a broadcast domain on each server and a network identifier (VNI) in the tunnel. A frame travels without its
//! own 802.1Q tag: the outer one has its priority, the VNI its domain.

mod inner;
mod stream;
mod too_big;

pub use stream::Heard;
pub use too_big::fragmentation_needed;

use super::bridge::{ENCAPSULATION_BYTES, ecn_in, ecn_out};
use crate::frame::Priority;
use crate::loss::DropReason;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::ops::Range;
use inner::Untagged;
use sluicenet_wire::checksum::PseudoHeader;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::{udp, vlan, vxlan, zbridge};

/// Hops an outer datagram may take.
const TTL: u8 = 64;
/// The outer source port is of the dynamic range (RFC 7348, 5: 49152 to 65535).
const FIRST_SOURCE_PORT: u16 = 49_152;
/// Bytes of the outer headers, with the 802.1Q tag.
const OUTER: usize = ENCAPSULATION_BYTES as usize;
const _: () =
    assert!(OUTER == ethernet::HEADER_LEN + vlan::TAG_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN + vxlan::HEADER_LEN);

/// This server's end of all its tunnels.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// The server's address in the underlay.
    pub server: Ipv4Addr,
    /// The MAC address of its uplink.
    pub mac: MacAddress,
    /// Largest datagram of the underlay.
    pub mtu: u16,
    /// Bytes of it that are kept for what zBridge puts around a tenant's frame.
    pub reserved: u16,
}

/// What is wrong with a pair of domain and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBound {
    /// The domain has more than 12 bits, or the network more than 24.
    TooLarge,
    /// One of them is bound to another already.
    Taken,
}

impl fmt::Display for NotBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotBound::TooLarge => "a domain has 12 bits and a network 24",
            NotBound::Taken => "the domain or the network is bound to another already",
        })
    }
}

impl core::error::Error for NotBound {}

/// A frame of a tenant that came out of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Where it stands in the outer frame.
    pub frame: Range<usize>,
    /// The server that sent it.
    pub from: Ipv4Addr,
    /// Its network.
    pub vni: u32,
    /// The same, as this server's broadcast domain.
    pub domain: u16,
    /// Its traffic class.
    pub priority: Priority,
}

/// What came in at an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outer {
    /// A tenant's frame.
    Inner(Inner),
    /// Nothing of the tunnel: for somebody else, or another protocol of this server.
    Other,
    /// To be dropped.
    Drop(DropReason),
}

/// The tunnel machine: it knows networks and servers, not who lives where.
#[derive(Clone, Debug)]
pub struct Tunnel {
    config: TunnelConfig,
    networks: BTreeMap<u16, u32>,
    domains: BTreeMap<u32, u16>,
    servers: BTreeMap<Ipv4Addr, MacAddress>,
}

impl Tunnel {
    /// A tunnel without networks or servers.
    pub fn new(config: TunnelConfig) -> Tunnel {
        Tunnel { config, networks: BTreeMap::new(), domains: BTreeMap::new(), servers: BTreeMap::new() }
    }

    /// The server's address in the underlay.
    pub fn server(&self) -> Ipv4Addr {
        self.config.server
    }

    /// Largest datagram of a tenant: that of the underlay less the encapsulation (Crisan 2014, line 1210: 1446 B); an underlay
    /// that carries no more than the headers carries nothing.
    pub fn inner_mtu(&self) -> u16 {
        self.config.mtu.saturating_sub(ENCAPSULATION_BYTES + self.config.reserved)
    }

    /// Makes a broadcast domain of this server one network of the overlay.
    pub fn bind(&mut self, domain: u16, vni: u32) -> Result<(), NotBound> {
        if domain > 0xfff || vni > vxlan::MAX_VNI {
            return Err(NotBound::TooLarge);
        }
        let (bound, other) = (self.networks.get(&domain), self.domains.get(&vni));
        if bound.is_some_and(|&v| v != vni) || other.is_some_and(|&d| d != domain) {
            return Err(NotBound::Taken);
        }
        self.networks.insert(domain, vni);
        self.domains.insert(vni, domain);
        Ok(())
    }

    /// The network of a domain.
    pub fn network(&self, domain: u16) -> Option<u32> {
        self.networks.get(&domain).copied()
    }

    /// The domain of a network.
    pub fn domain(&self, vni: u32) -> Option<u16> {
        self.domains.get(&vni).copied()
    }

    /// Another server of the overlay, and the MAC address of the next hop towards it.
    pub fn admit(&mut self, server: Ipv4Addr, next_hop: MacAddress) {
        self.servers.insert(server, next_hop);
    }

    /// A server is no longer of the overlay.
    pub fn expel(&mut self, server: Ipv4Addr) {
        self.servers.remove(&server);
    }

    /// Whether a frame may go through a tunnel, wherever to.
    pub fn may_carry(&self, frame: &[u8]) -> bool {
        self.check(frame, 0).is_ok()
    }

    /// A frame that goes on for `rest` bytes.
    fn check<'a>(&self, frame: &'a [u8], rest: usize) -> Result<Untagged<'a>, DropReason> {
        let inner = Untagged::of(frame)?;
        let around = if inner.ethertype == zbridge::ETHERTYPE { self.config.reserved } else { 0 };
        if inner.packet.len() + rest > usize::from(self.inner_mtu().saturating_add(around)) {
            return Err(DropReason::TooBig);
        }
        if inner.is_tunnel() {
            return Err(DropReason::NestedTunnel);
        }
        Ok(inner)
    }

    /// Puts a tenant's frame into `out`, with all headers of the tunnel in front. It comes in two pieces, of which the first has all its
    /// headers. `Err` says why it must be dropped.
    pub fn encapsulate(
        &self,
        [frame, rest]: [&[u8]; 2],
        vni: u32,
        priority: Priority,
        to: Ipv4Addr,
        out: &mut Vec<u8>,
    ) -> Result<(), DropReason> {
        let inner = self.check(frame, rest.len())?;
        let inner_len = ethernet::HEADER_LEN + inner.packet.len() + rest.len();
        let datagram_len = udp::HEADER_LEN + vxlan::HEADER_LEN + inner_len;
        out.clear();
        out.reserve(OUTER + inner_len);
        out.resize(OUTER, 0);
        let datagram = self.outer(to, Protocol::UDP, priority, ecn_in(inner.ecn()), datagram_len, out)?;
        vxlan::Repr { vni }.emit(&mut datagram[udp::HEADER_LEN..]);
        out.extend_from_slice(inner.addresses);
        out.extend_from_slice(&inner.ethertype.0.to_be_bytes());
        out.extend_from_slice(inner.packet);
        out.extend_from_slice(rest);
        let datagram = &mut out[OUTER - udp::HEADER_LEN - vxlan::HEADER_LEN..];
        let source_port = FIRST_SOURCE_PORT | (inner.flow_hash() as u16 & !FIRST_SOURCE_PORT);
        udp::Repr { source_port, destination_port: vxlan::UDP_PORT }.emit(datagram, None);
        Ok(())
    }

    /// Writes Ethernet, 802.1Q and IPv4 in front of a datagram of `len` bytes for another server; returns what is behind them.
    fn outer<'a>(
        &self,
        to: Ipv4Addr,
        protocol: Protocol,
        priority: Priority,
        ecn: Ecn,
        len: usize,
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], DropReason> {
        let next_hop = *self.servers.get(&to).ok_or(DropReason::UnknownServer)?;
        let (header, rest) = out.split_at_mut(ethernet::HEADER_LEN);
        ethernet::Repr { destination: next_hop, source: self.config.mac, ethertype: EtherType::VLAN }.emit(header);
        let (tag, rest) = rest.split_at_mut(vlan::TAG_LEN);
        vlan::Repr { priority, drop_eligible: false, vid: 0, ethertype: EtherType::IPV4 }.emit(tag);
        let (ip, rest) = rest.split_at_mut(ipv4::HEADER_LEN);
        ipv4::Repr {
            source: self.config.server,
            destination: to,
            protocol,
            // The class selector of the priority (RFC 2474, 4.2.2), for routers on the way.
            dscp: priority << 3,
            ecn,
            identification: 0,
            // "VTEPs MUST NOT fragment" (RFC 7348, 4.3).
            dont_fragment: true,
            ttl: TTL,
            payload_len: len as u16,
        }
        .emit(ip);
        Ok(rest)
    }

    /// Takes a received frame apart. The ECN field of what is inside becomes what RFC 6040 says.
    pub fn decapsulate(&self, frame: &mut [u8]) -> Outer {
        match self.find_inner(frame) {
            Ok(Some((inner, outer_ecn))) => match settle_ecn(&mut frame[inner.frame.clone()], outer_ecn) {
                Ok(()) => Outer::Inner(inner),
                Err(reason) => Outer::Drop(reason),
            },
            Ok(None) => Outer::Other,
            Err(reason) => Outer::Drop(reason),
        }
    }

    /// A datagram of a protocol for this server, behind its IPv4 header: its class, that header, and where it begins in the frame.
    fn datagram<'a>(&self, frame: &'a [u8], protocol: Protocol) -> Result<Option<Datagram<'a>>, DropReason> {
        let Ok((header, mut rest)) = ethernet::Repr::parse(frame) else { return Ok(None) };
        let (mut ethertype, mut priority) = (header.ethertype, 0);
        if ethertype == EtherType::VLAN {
            let (tag, behind) = vlan::Repr::parse(rest).map_err(|_| DropReason::Malformed)?;
            (ethertype, priority, rest) = (tag.ethertype, tag.priority, behind);
        }
        if header.destination != self.config.mac || ethertype != EtherType::IPV4 {
            return Ok(None);
        }
        // Before the header is believed: is it a datagram for this server at all?
        let (Some(of), Some(destination)) = (rest.get(9), rest.get(16..20)) else {
            return Err(DropReason::Malformed);
        };
        if *of != protocol.0 || destination != self.config.server.octets() {
            return Ok(None);
        }
        let (ip, payload) = ipv4::Repr::parse(rest).map_err(|_| DropReason::Malformed)?;
        let start = frame.len() - rest.len() + usize::from(rest[0] & 0x0F) * 4;
        Ok(Some(Datagram { priority, ip, payload, start }))
    }

    fn find_inner(&self, frame: &[u8]) -> Result<Option<(Inner, Ecn)>, DropReason> {
        let Some(Datagram { priority, ip, payload: datagram, start }) = self.datagram(frame, Protocol::UDP)? else {
            return Ok(None);
        };
        if datagram.get(2..4).is_some_and(|port| port != vxlan::UDP_PORT.to_be_bytes()) {
            return Ok(None);
        }
        let pseudo = PseudoHeader { source: ip.source, destination: ip.destination };
        let (_, payload) = udp::Repr::parse(datagram, &pseudo).map_err(|_| DropReason::Malformed)?;
        let (tunnel, inside) = vxlan::Repr::parse(payload).map_err(|_| DropReason::Malformed)?;
        if !self.servers.contains_key(&ip.source) {
            return Err(DropReason::UnknownServer);
        }
        let domain = self.domain_of(tunnel.vni, inside)?;
        // It ends where the datagram does; padding of a short outer frame is not of it.
        let start = start + udp::HEADER_LEN + vxlan::HEADER_LEN;
        let range = start..start + inside.len();
        Ok(Some((Inner { frame: range, from: ip.source, vni: tunnel.vni, domain, priority }, ip.ecn)))
    }

    /// The domain of a frame that came out of a tunnel, which has to be one that a server sends through it.
    fn domain_of(&self, vni: u32, inside: &[u8]) -> Result<u16, DropReason> {
        let domain = self.domain(vni).ok_or(DropReason::UnknownVni)?;
        // "Decapsulated frames with an inner VLAN tag should be discarded" (RFC 7348, 6.1).
        let inner = Untagged::of(inside)?;
        if inner.was_tagged {
            return Err(DropReason::Malformed);
        }
        if inner.is_tunnel() {
            return Err(DropReason::NestedTunnel);
        }
        Ok(domain)
    }
}

/// A datagram for this server.
struct Datagram<'a> {
    priority: Priority,
    ip: ipv4::Repr,
    payload: &'a [u8],
    /// Where `payload` begins in the frame.
    start: usize,
}

/// Gives the inner packet the ECN field that it leaves the tunnel with.
fn settle_ecn(inner: &mut [u8], outer: Ecn) -> Result<(), DropReason> {
    let Ok(untagged) = Untagged::of(inner) else { return Err(DropReason::Malformed) };
    let (ethertype, before) = (untagged.ethertype, untagged.ecn());
    let after = ecn_out(outer, before).ok_or(DropReason::BadEcn)?;
    if after != before {
        let packet = &mut inner[ethernet::HEADER_LEN..];
        match ethertype {
            EtherType::IPV4 => ipv4::set_ecn(packet, after),
            // The two bits stand in the middle of the second byte; IPv6 has no checksum (RFC 8200, 3).
            _ => packet[1] = packet[1] & 0xCF | (after as u8) << 4,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
