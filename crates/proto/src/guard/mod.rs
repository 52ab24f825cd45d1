//! The guard of a port: the addresses from which an endpoint may send, and the services that it may offer.
//!
//! The guard reads the first [`HEAD_LEN`] bytes of a frame. The caller keeps these bytes and delivers them: an endpoint that
//! shares memory with the switch may change the frame after the check.
//!
//! - A listed MAC address is the only source of frames, and the only address that ARP and neighbour discovery may announce.
//! - Listed IP addresses are the only sources of IPv4, IPv6, ARP and neighbour discovery. The link-local address made of the
//!   source MAC address (RFC 4291, appendix A) is always allowed.
//! - An endpoint without an address yet may ask: DHCP, ARP probes (RFC 5227), duplicate address detection (RFC 4862), router
//!   solicitations, and membership reports.
//! - Router advertisements and redirects need `router`, and answers of DHCP servers `dhcp_server`.
//! - Tags are skipped, however many there are. IP in 802.2 frames is refused: some stacks unwrap it (VU#855201).
//! - A header that is not in the first bytes is refused as malformed (RFC 7112, RFC 7113). So is a fragment that hides it.
//!   Neighbour discovery in fragments is refused (RFC 6980).
//!
//! Other types of frames, and the payload of tunnels, are not read: their receivers know no addresses of this network by them.

mod prefix;

#[cfg(test)]
mod tests;

pub use prefix::{BadPrefix, Prefix};

use crate::loss::DropReason::{self, ForgedArp, ForgedDhcp, ForgedIp, ForgedNd, ForgedRa, ForgedSource, Malformed};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use sluicenet_wire::arp::{self, Operation};
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::ipv4::{self, Protocol};
use sluicenet_wire::ipv6::{self, ICMPV6};
use sluicenet_wire::ndp::{Kind, Message};
use sluicenet_wire::vlan::TAG_LEN;

/// Bytes of a frame within which all headers have to be: two tags, an IPv4 header with all options, and ports; or an IPv6
/// header with a neighbour advertisement and five options.
pub const HEAD_LEN: usize = 128;
/// Bytes that suffice for most frames: a cache line.
pub const SHORT_HEAD_LEN: usize = 64;

/// Further types of tags, which older switches use for stacked VLANs.
const OLD_STACKED_VLANS: [u16; 3] = [0x9100, 0x9200, 0x9300];
/// A smaller type is a length (802.3, 3.2.6).
const TYPE_MIN: u16 = 0x0600;
/// 802.2: the service access points of SNAP, without their lowest bits, and of IP and ARP (RFC 1042 and its predecessors).
const SNAP: u8 = 0xAA;
const LLC_IP: u8 = 0x06;
const LLC_ARP: u8 = 0x98;
/// Organisations whose SNAP types are EtherTypes: RFC 1042, and 802.1H.
const ETHERTYPES_IN_SNAP: [[u8; 3]; 2] = [[0, 0, 0], [0, 0, 0xF8]];

/// Bytes of 802.2 that tell the type of the payload.
const LLC_LEN: usize = 8;
/// Bytes of a transport header that may be checked: ports, or an ICMP type.
const TRANSPORT_LEN: usize = 4;

const IGMP: u8 = 2;
const TCP: u8 = Protocol::TCP.0;
/// ICMP's redirect (RFC 792).
const ICMP_REDIRECT: u8 = 5;
/// ICMPv6 from a station without an address: two kinds of solicitations, and membership reports (RFC 3590, 4; RFC 3810, 5.2).
const ASK_WITHOUT_SOURCE: [u8; 5] = [Kind::RouterSolicitation as u8, Kind::NeighbourSolicitation as u8, 131, 132, 143];
/// Ports of DHCP's servers and clients (RFC 2131, 4.1; RFC 8415, 7.2).
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCP6_SERVER: u16 = 547;
const DHCP6_CLIENT: u16 = 546;

/// The part of an allowed frame on which the verdict depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Bytes from its start that must not change, whatever work is left on the frame.
    pub len: usize,
    /// Whether a TCP header is behind them.
    pub is_tcp: bool,
}

impl Checked {
    /// A packet with a transport header at `at`; in a later fragment there is none.
    fn transport(at: usize, protocol: u8, is_first: bool) -> Checked {
        let is_tcp = is_first && protocol == TCP;
        Checked { len: if is_first && !is_tcp { at + TRANSPORT_LEN } else { at }, is_tcp }
    }

    /// Whether work that is left on the frame changes only what is behind these bytes: a checksum of which the bytes from `start`
    /// on are summed, and whose field is `offset` bytes behind, or also segmentation of a TCP header at `start`.
    pub fn allows_work(&self, (start, offset): (usize, usize), is_cut: bool) -> bool {
        if is_cut { self.is_tcp && start == self.len } else { start + offset >= self.len }
    }
}

/// What an endpoint may send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Its MAC addresses; without any, it may send from every address.
    pub macs: Vec<MacAddress>,
    /// Its IP addresses; `None` allows all.
    pub addresses: Option<Vec<Prefix>>,
    /// Whether it may send router advertisements and redirects.
    pub router: bool,
    /// Whether it may answer as a DHCP server, or forward such answers as a relay.
    pub dhcp_server: bool,
}

impl Guard {
    /// The addresses that only this endpoint has: a longer list belongs to a router.
    pub fn hosts(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().flatten().filter_map(Prefix::host)
    }

    /// The first IPv4 address that only this endpoint has.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.hosts().find_map(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
    }

    /// Whether the endpoint may send from an IPv4 address.
    #[inline]
    pub fn allows_ipv4(&self, address: Ipv4Addr) -> bool {
        self.addresses.as_ref().is_none_or(|list| list.iter().any(|prefix| prefix.has_ipv4(address)))
    }

    /// Whether the endpoint may send from an IPv6 address as `station`.
    #[inline]
    pub fn allows_ipv6(&self, station: MacAddress, address: Ipv6Addr) -> bool {
        let Some(list) = &self.addresses else { return true };
        list.iter().any(|prefix| prefix.has_ipv6(address)) || address == link_local(station)
    }

    /// Whether the endpoint may send a frame; `head` are its first bytes, all of them or [`HEAD_LEN`]. Fewer bytes may suffice;
    /// if not, the frame is [`Malformed`].
    #[inline]
    pub fn check(&self, head: &[u8]) -> Result<Checked, DropReason> {
        let (_, source) = ethernet::addresses(head).ok_or(Malformed)?;
        if !self.macs.is_empty() && !self.macs.contains(&source) {
            return Err(ForgedSource);
        }
        let (kind, packet) = payload(head)?;
        let checked = match kind {
            EtherType::IPV4 => self.check_ipv4(packet),
            EtherType::ARP => self.check_arp(source, packet),
            EtherType::IPV6 => self.check_ipv6(source, packet),
            EtherType(length) if length < TYPE_MIN => Ok(Checked { len: LLC_LEN, is_tcp: false }),
            _ => Ok(Checked { len: 0, is_tcp: false }),
        }?;
        Ok(Checked { len: head.len() - packet.len() + checked.len, ..checked })
    }

    fn check_ipv4(&self, packet: &[u8]) -> Result<Checked, DropReason> {
        let header = packet.first_chunk::<{ ipv4::HEADER_LEN }>().ok_or(Malformed)?;
        let header_len = usize::from(header[0] & 0x0F) * 4;
        if header[0] >> 4 != 4 || header_len < ipv4::HEADER_LEN {
            return Err(Malformed);
        }
        let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
        let protocol = Protocol(header[9]);
        // The first bytes of the payload are in every fragment with offset 0.
        let starts = u16::from_be_bytes([header[6], header[7]]) & 0x1FFF == 0;
        let payload = || packet.get(header_len..).ok_or(Malformed);
        if !self.allows_ipv4(source) {
            // A station without an address asks for one, and reports its groups (RFC 2131, 4.1; RFC 3376, 4.2.13).
            let may_have_none = source.is_unspecified()
                && match protocol {
                    Protocol::UDP if starts => ports(payload()?)? == [DHCP_CLIENT, DHCP_SERVER],
                    Protocol(IGMP) => true,
                    _ => false,
                };
            if !may_have_none {
                return Err(ForgedIp);
            }
        }
        match protocol {
            Protocol::UDP if starts && !self.dhcp_server => {
                is_not_served(ports(payload()?)?, DHCP_SERVER, DHCP_CLIENT)?
            }
            Protocol::ICMP if starts && !self.router => match payload()?.first() {
                None => return Err(Malformed),
                Some(&ICMP_REDIRECT) => return Err(ForgedRa),
                Some(_) => {}
            },
            _ => {}
        }
        Ok(Checked::transport(header_len, protocol.0, starts))
    }

    fn check_arp(&self, source: MacAddress, packet: &[u8]) -> Result<Checked, DropReason> {
        let (message, _) = arp::Repr::parse(packet).map_err(|_| Malformed)?;
        // A probe has no sender address (RFC 5227, 2.1.1). One for a foreign address would keep its owner from using it.
        let is_probe = message.operation == Operation::Request && message.sender_ip.is_unspecified();
        let said = if is_probe { message.target_ip } else { message.sender_ip };
        if !self.is_station(source, message.sender_mac) || !self.allows_ipv4(said) {
            return Err(ForgedArp);
        }
        Ok(Checked { len: arp::LEN, is_tcp: false })
    }

    fn check_ipv6(&self, station: MacAddress, packet: &[u8]) -> Result<Checked, DropReason> {
        let (header, rest) = ipv6::Repr::parse_start(packet).map_err(|_| Malformed)?;
        let upper = ipv6::upper(header.next_header, rest).map_err(|_| Malformed)?;
        let is_first = upper.fragment.is_none_or(|fragment| fragment.offset == 0);
        let icmp_type = match upper.protocol {
            ICMPV6 if is_first => Some(*upper.payload.first().ok_or(Malformed)?),
            _ => None,
        };
        // A station without an address checks one, and asks for routers (RFC 4862, 5.4; RFC 4861, 4.1).
        let may_have_none = header.source.is_unspecified()
            && upper.fragment.is_none()
            && icmp_type.is_some_and(|kind| ASK_WITHOUT_SOURCE.contains(&kind));
        if !may_have_none && !self.allows_ipv6(station, header.source) {
            return Err(ForgedIp);
        }
        let at = ipv6::HEADER_LEN + rest.len() - upper.payload.len();
        let checked = Checked::transport(at, upper.protocol, is_first);
        if !is_first {
            return Ok(checked);
        }
        // Another fragment could overlap the headers behind this one.
        if upper.fragment.is_some() && ipv6::is_extension(upper.protocol) {
            return Err(Malformed);
        }
        if upper.protocol == Protocol::UDP.0 && !self.dhcp_server {
            is_not_served(ports(upper.payload)?, DHCP6_SERVER, DHCP6_CLIENT)?;
        }
        let Some(kind) = icmp_type.and_then(Kind::of) else { return Ok(checked) };
        if matches!(kind, Kind::RouterAdvertisement | Kind::Redirect) && !self.router {
            return Err(ForgedRa);
        }
        if upper.fragment.is_some() {
            return Err(ForgedNd);
        }
        if rest.len() < usize::from(header.payload_len) {
            return Err(Malformed);
        }
        self.check_neighbour(station, header.source, upper.payload)?;
        Ok(Checked { len: at + upper.payload.len(), ..checked })
    }

    /// Checks a whole message of neighbour discovery.
    fn check_neighbour(&self, station: MacAddress, source: Ipv6Addr, message: &[u8]) -> Result<(), DropReason> {
        let message = Message::parse(message).map_err(|_| Malformed)?;
        let says = match message.kind {
            // Duplicate address detection of a foreign address would keep its owner from using it.
            Kind::NeighbourSolicitation if source.is_unspecified() => message.target,
            Kind::NeighbourAdvertisement => message.target,
            _ => None,
        };
        if says.is_some_and(|target| !self.allows_ipv6(station, target)) {
            return Err(ForgedNd);
        }
        // A redirect names the address of another station.
        if message.kind == Kind::Redirect {
            return Ok(());
        }
        for address in message.link_layer_addresses() {
            if !self.is_station(station, address.map_err(|_| Malformed)?) {
                return Err(ForgedNd);
            }
        }
        Ok(())
    }

    /// Whether a MAC address in a message of a frame from `source` is the endpoint's own.
    fn is_station(&self, source: MacAddress, said: MacAddress) -> bool {
        said == source || self.macs.contains(&said)
    }
}

/// The type of a frame and the bytes behind all its tags.
#[inline]
fn payload(head: &[u8]) -> Result<(EtherType, &[u8]), DropReason> {
    let mut at = ethernet::ADDRESSES_LEN;
    loop {
        let &[high, low] = head.get(at..).and_then(<[u8]>::first_chunk).ok_or(Malformed)?;
        let kind = EtherType(u16::from_be_bytes([high, low]));
        match kind {
            EtherType::VLAN | EtherType::SERVICE_VLAN | EtherType::CN_TAG => at += TAG_LEN,
            EtherType(kind) if OLD_STACKED_VLANS.contains(&kind) => at += TAG_LEN,
            EtherType(length) if length < TYPE_MIN => {
                let behind = head.get(at + 2..).unwrap_or_default();
                return if may_be_ip(behind) { Err(Malformed) } else { Ok((kind, behind)) };
            }
            _ => return Ok((kind, &head[at + 2..])),
        }
    }
}

/// Whether a receiver of this 802.2 frame may find IP or ARP in it.
#[cold]
fn may_be_ip(llc: &[u8]) -> bool {
    match *llc {
        [to, from, _, a, b, c, ..] if to & !1 == SNAP && from & !1 == SNAP => ETHERTYPES_IN_SNAP.contains(&[a, b, c]),
        [to, ..] => matches!(to & !1, SNAP | LLC_IP | LLC_ARP),
        [] => true,
    }
}

/// The source and the destination port at the start of a UDP datagram.
fn ports(datagram: &[u8]) -> Result<[u16; 2], DropReason> {
    let &[s0, s1, d0, d1] = datagram.first_chunk().ok_or(Malformed)?;
    Ok([u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])])
}

/// An error if a datagram comes from a server, or goes to a client: many clients do not look at its source port.
fn is_not_served([from, to]: [u16; 2], server: u16, client: u16) -> Result<(), DropReason> {
    if from == server || to == client { Err(ForgedDhcp) } else { Ok(()) }
}

/// The link-local address that a station makes of its MAC address (RFC 4291, appendix A).
pub fn link_local(MacAddress([a, b, c, d, e, f]): MacAddress) -> Ipv6Addr {
    Ipv6Addr::from([0xFE, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
}
