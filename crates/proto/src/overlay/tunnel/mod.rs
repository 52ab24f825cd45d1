//! The VXLAN tunnel between servers (RFC 7348; Crisan 2014, 3.2.3.1).
//!
//! A tenant is a broadcast domain on each server and a network identifier (VNI) in the tunnel. A frame travels without its
//! own 802.1Q tag: the outer tag carries its priority, the VNI its domain.

mod inner;
mod stream;
mod too_big;

pub use stream::Heard;
pub use too_big::{FrameFragments, too_big_answer};

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

/// Hop limit of an outer datagram.
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
    /// Bytes of the datagram reserved for zBridge's header around a tenant's frame.
    pub reserved: u16,
}

/// Reason for refusing a pair of domain and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBound {
    /// The domain has more than 12 bits, or the network more than 24.
    TooLarge,
    /// The domain or the network is bound to another already.
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

/// A tenant's frame from a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Position of the inner frame in the outer frame.
    pub frame: Range<usize>,
    /// The sending server.
    pub from: Ipv4Addr,
    /// The frame's network.
    pub vni: u32,
    /// The frame's broadcast domain on this server.
    pub domain: u16,
    /// The frame's traffic class.
    pub priority: Priority,
}

/// The kind of a frame received at an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outer {
    /// A tenant's frame.
    Inner(Inner),
    /// No frame of the tunnel: for another receiver, or of another protocol of this server.
    Other,
    /// A frame to drop, with the reason.
    Drop(DropReason),
}

/// The tunnel's state machine: it knows networks and servers, but not the locations of stations.
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

    /// Largest datagram of a tenant: the underlay's largest datagram less the encapsulation (Crisan 2014, line 1210: 1446
    /// B). It is 0 if the underlay carries no more than the headers.
    pub fn inner_mtu(&self) -> u16 {
        self.config.mtu.saturating_sub(ENCAPSULATION_BYTES + self.config.reserved)
    }

    /// Binds a broadcast domain of this server to a network of the overlay.
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

    /// Adds a server of the overlay, with the MAC address of the next hop towards it.
    pub fn admit(&mut self, server: Ipv4Addr, next_hop: MacAddress) {
        self.servers.insert(server, next_hop);
    }

    /// Removes a server from the overlay.
    pub fn expel(&mut self, server: Ipv4Addr) {
        self.servers.remove(&server);
    }

    /// The reason why a frame in two pieces, as [`Tunnel::encapsulate`] takes it, may not go through any tunnel.
    pub fn objection(&self, [frame, rest]: [&[u8]; 2]) -> Option<DropReason> {
        self.check(frame, rest.len()).err()
    }

    /// Checks a frame that has `rest` more bytes.
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

    /// Puts a tenant's frame into `out`, behind all headers of the tunnel. The frame comes in two pieces, and the first
    /// piece has all its headers. `Err` is the reason to drop the frame.
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
        let ports = udp::Repr { source_port: source_port(&inner), destination_port: vxlan::UDP_PORT };
        ports.emit(datagram, None);
        Ok(())
    }

    /// The other servers of the overlay.
    pub fn servers(&self) -> impl Iterator<Item = Ipv4Addr> + '_ {
        self.servers.keys().copied()
    }

    /// The MAC address of the next hop towards a server.
    pub fn next_hop(&self, server: Ipv4Addr) -> Option<MacAddress> {
        self.servers.get(&server).copied()
    }

    /// The [flow](flow_hash) of the outer frame around a tenant's frame, of which the first bytes suffice.
    pub fn outer_flow(&self, frame: &[u8], to: Ipv4Addr) -> Option<u64> {
        let inner = Untagged::of(frame).ok()?;
        let mut out = [0; OUTER];
        let datagram = self.outer(to, Protocol::UDP, 0, Ecn::NotEct, udp::HEADER_LEN, &mut out).ok()?;
        datagram[..2].copy_from_slice(&source_port(&inner).to_be_bytes());
        datagram[2..4].copy_from_slice(&vxlan::UDP_PORT.to_be_bytes());
        Some(flow_hash(&out))
    }

    /// Writes Ethernet, 802.1Q and IPv4 headers for a datagram of `len` bytes to another server; returns the bytes behind
    /// them.
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

    /// Decapsulates a received frame. The inner ECN field is set by the rules of RFC 6040.
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

    /// A datagram of `protocol` for this server: its class, its IPv4 header, its payload, and the position of the payload
    /// in the frame.
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
        // The header is not checked yet: other datagrams are sorted out first.
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
        // The inner frame ends with the datagram; the padding of a short outer frame does not belong to it.
        let start = start + udp::HEADER_LEN + vxlan::HEADER_LEN;
        let range = start..start + inside.len();
        Ok(Some((Inner { frame: range, from: ip.source, vni: tunnel.vni, domain, priority }, ip.ecn)))
    }

    /// The domain of a decapsulated frame. The frame must be one that a server may send through the tunnel.
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

/// A hash that all frames of a flow share: of the addresses, and for IP also of protocol and ports. 0 for a frame that a
/// tenant must not send.
pub fn flow_hash(frame: &[u8]) -> u64 {
    Untagged::of(frame).map_or(0, |frame| frame.flow_hash())
}

/// The outer source port stands for the flow inside (RFC 7348, 5).
fn source_port(inner: &Untagged<'_>) -> u16 {
    FIRST_SOURCE_PORT | (inner.flow_hash() as u16 & !FIRST_SOURCE_PORT)
}

/// A datagram for this server.
struct Datagram<'a> {
    priority: Priority,
    ip: ipv4::Repr,
    payload: &'a [u8],
    /// Position of `payload` in the frame.
    start: usize,
}

/// Sets the ECN field with which the inner packet leaves the tunnel.
fn settle_ecn(inner: &mut [u8], outer: Ecn) -> Result<(), DropReason> {
    let Ok(untagged) = Untagged::of(inner) else { return Err(DropReason::Malformed) };
    let (ethertype, before) = (untagged.ethertype, untagged.ecn());
    let after = ecn_out(outer, before).ok_or(DropReason::BadEcn)?;
    if after != before {
        let packet = &mut inner[ethernet::HEADER_LEN..];
        match ethertype {
            EtherType::IPV4 => ipv4::set_ecn(packet, after),
            // The two bits are in the middle of the second byte; IPv6 has no checksum (RFC 8200, 3).
            _ => packet[1] = packet[1] & 0xCF | (after as u8) << 4,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
