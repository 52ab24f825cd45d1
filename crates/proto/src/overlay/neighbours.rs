//! ARP and neighbour solicitations (RFC 4861), answered by the switch: a request for a known station never leaves its server
//! (Crisan 2014, 3.2.3: the controller has the mapping).
//!
//! The controller decides the location of stations, so these messages change no mapping but that of their sender. A message
//! whose sender is not the station of its port is refused by name.

use super::mapping::{Mapping, StationId};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use sluicenet_wire::arp::{self, Operation};
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::icmpv6::{NEIGHBOUR_LEN, Neighbour};
use sluicenet_wire::{ipv6, vlan};

/// All hosts of a link (RFC 4291, 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// The kind of a tenant's ARP message or solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A request for the station with this address, to be answered by [`reply`].
    For(IpAddr, Request),
    /// A gratuitous announcement, or a probe of the station's own address: no answer is needed.
    Nothing,
    /// The answer of a station.
    Reply,
    /// The sender fields contradict the frame or the station's mapping.
    Forged,
    /// The message is not ARP over Ethernet for IPv4.
    Malformed,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    mac: MacAddress,
    ip: IpAddr,
}

impl Request {
    /// The station that asks, in its network.
    pub fn from(&self, vni: u32) -> StationId {
        StationId { vni, mac: self.mac }
    }

    /// Whether the station with this MAC address asks.
    pub fn is_from(&self, mac: MacAddress) -> bool {
        self.mac == mac
    }
}

/// What a frame shows about the station that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The station has this address.
    Address(IpAddr),
    /// Nothing but its MAC address.
    Station,
    /// The station is a router. It answers for itself: an answer in its name would say that it is none (RFC 4861, 7.2.5).
    Router,
}

/// The packet behind the header of an ARP frame, tagged or not.
pub fn arp_of(frame: &[u8]) -> Option<&[u8]> {
    packet_of(frame, EtherType::ARP)
}

fn packet_of(frame: &[u8], ethertype: EtherType) -> Option<&[u8]> {
    let (header, rest) = ethernet::Repr::parse(frame).ok()?;
    match header.ethertype {
        own if own == ethertype => Some(rest),
        EtherType::VLAN => vlan::Repr::parse(rest).ok().filter(|(tag, _)| tag.ethertype == ethertype).map(|t| t.1),
        _ => None,
    }
}

/// The valid message of neighbour discovery in a frame, and its header.
fn neighbour_of(frame: &[u8]) -> Option<(ipv6::Repr, Neighbour)> {
    let (ip, payload) = ipv6::Repr::parse(packet_of(frame, EtherType::IPV6)?).ok()?;
    Some((ip, Neighbour::parse(&ip, payload).ok()?))
}

/// Classifies the ARP message in a tenant's frame; `station` is the IPv4 address of the sender in its mapping, if there is
/// one.
pub fn ask(frame: &[u8], station: Option<Ipv4Addr>) -> Asked {
    let Some(Ok((message, _))) = arp_of(frame).map(arp::Repr::parse) else { return Asked::Malformed };
    let from = &frame[6..12];
    // 0.0.0.0 asks whether an address is free (RFC 5227, 2.1.1).
    let is_probe = message.sender_ip.is_unspecified();
    let fits = is_probe || station.is_none_or(|ip| ip.is_unspecified() || ip == message.sender_ip);
    let ip = message.sender_ip;
    let is_host = !(ip.is_multicast() || ip.is_broadcast() || ip.is_loopback());
    if from != message.sender_mac.0 || message.sender_mac.is_group() || !fits || !is_host {
        return Asked::Forged;
    }
    if message.operation == Operation::Reply {
        return Asked::Reply;
    }
    if message.sender_ip == message.target_ip || is_probe && station == Some(message.target_ip) {
        return Asked::Nothing;
    }
    let request = Request { mac: message.sender_mac, ip: message.sender_ip.into() };
    Asked::For(message.target_ip.into(), request)
}

/// Classifies the solicitation in a tenant's frame to a group; `None` for every other frame.
pub fn solicits(frame: &[u8]) -> Option<Asked> {
    let (ip, Neighbour::Solicitation { target, source }) = neighbour_of(frame)? else { return None };
    let mac = MacAddress(frame[6..12].try_into().ok()?);
    if source.is_some_and(|source| source != mac) || mac.is_group() {
        return Some(Asked::Forged);
    }
    Some(Asked::For(target.into(), Request { mac, ip: ip.source.into() }))
}

/// The reply to a request, without a tag, as if from the requested station.
pub fn reply(request: &Request, of: &Mapping) -> Vec<u8> {
    match (of.ip, request.ip) {
        (IpAddr::V4(sender_ip), IpAddr::V4(target_ip)) => {
            let mut frame = alloc::vec![0; ethernet::MIN_LEN];
            let mac = of.station.mac;
            ethernet::Repr { destination: request.mac, source: mac, ethertype: EtherType::ARP }.emit(&mut frame);
            let message = arp::Repr {
                operation: Operation::Reply,
                sender_mac: mac,
                sender_ip,
                target_mac: request.mac,
                target_ip,
            };
            message.emit(&mut frame[ethernet::HEADER_LEN..]);
            frame
        }
        (IpAddr::V6(target), IpAddr::V6(asker)) => advertisement(request.mac, asker, of.station.mac, target),
        _ => Vec::new(),
    }
}

/// The answer of the station with `mac` and `target` to a solicitation. One that asks whether the address is free has no
/// address yet: the answer is for all hosts (RFC 4861, 7.2.4), in a frame for the asker alone (RFC 6085).
fn advertisement(to: MacAddress, asker: Ipv6Addr, mac: MacAddress, target: Ipv6Addr) -> Vec<u8> {
    let solicited = !asker.is_unspecified();
    let message = Neighbour::Advertisement { router: false, solicited, overrides: true, target, address: Some(mac) };
    let header = message.header(target, if solicited { asker } else { ALL_NODES });
    let mut frame = alloc::vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN + NEIGHBOUR_LEN];
    ethernet::Repr { destination: to, source: mac, ethertype: EtherType::IPV6 }.emit(&mut frame);
    let (start, payload) = frame.split_at_mut(ethernet::HEADER_LEN + ipv6::HEADER_LEN);
    header.emit(&mut start[ethernet::HEADER_LEN..]);
    message.emit(&header, payload);
    frame
}

/// The address that the sender of an ARP message claims; none for a probe and for other frames.
pub fn claimed(frame: &[u8]) -> Option<Ipv4Addr> {
    let (message, _) = arp::Repr::parse(arp_of(frame)?).ok()?;
    Some(message.sender_ip).filter(|ip| !ip.is_unspecified())
}

/// What a frame shows about its sender; `None` if its messages contradict the frame. The first 86 bytes, of a frame without
/// a tag, suffice for a message without further options.
pub fn shown(frame: &[u8]) -> Option<Shown> {
    let mac = MacAddress(frame.get(6..12)?.try_into().ok()?);
    if mac.is_group() {
        return None;
    }
    if let Some(message) = arp_of(frame) {
        let (message, _) = arp::Repr::parse(message).ok()?;
        let ip = message.sender_ip;
        let is_address = !(ip.is_multicast() || ip.is_broadcast() || ip.is_loopback());
        let shown = if ip.is_unspecified() { Shown::Station } else { Shown::Address(ip.into()) };
        return (message.sender_mac == mac && is_address).then_some(shown);
    }
    let (address, link_layer) = match neighbour_of(frame) {
        None => return Some(Shown::Station),
        Some((_, Neighbour::Router)) => return Some(Shown::Router),
        Some((ip, Neighbour::Solicitation { target, source })) => {
            (if ip.source.is_unspecified() { target } else { ip.source }, source)
        }
        Some((_, Neighbour::Advertisement { router: true, .. })) => return Some(Shown::Router),
        Some((_, Neighbour::Advertisement { target, address, .. })) => (target, address),
    };
    let is_own = link_layer.is_none_or(|address| address == mac);
    (is_own && !address.is_loopback()).then_some(Shown::Address(address.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: MacAddress = MacAddress::local(1);
    const MY_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OTHER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const MY_SIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const OTHER_SIX: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    fn message(change: impl FnOnce(&mut arp::Repr)) -> Vec<u8> {
        let mut frame = alloc::vec![0; 60];
        let header = ethernet::Repr { destination: MacAddress::BROADCAST, source: ME, ethertype: EtherType::ARP };
        header.emit(&mut frame);
        let mut message = arp::Repr {
            operation: Operation::Request,
            sender_mac: ME,
            sender_ip: MY_IP,
            target_mac: MacAddress::default(),
            target_ip: OTHER_IP,
        };
        change(&mut message);
        message.emit(&mut frame[14..]);
        frame
    }

    fn six(message: Neighbour, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
        let header = message.header(from, to);
        let mut frame = alloc::vec![0; 54 + usize::from(header.payload_len)];
        let destination = ipv6::group_mac(to);
        ethernet::Repr { destination, source: ME, ethertype: EtherType::IPV6 }.emit(&mut frame);
        header.emit(&mut frame[14..]);
        message.emit(&header, &mut frame[54..]);
        frame
    }

    fn tagged(frame: &[u8]) -> Vec<u8> {
        [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat()
    }

    fn mapping(ip: IpAddr) -> Mapping {
        let station = StationId { vni: 1, mac: MacAddress::local(2) };
        Mapping { station, ip, location: Ipv4Addr::LOCALHOST, epoch: 1, version: 1 }
    }

    #[test]
    fn a_request_gets_the_reply_of_the_mapping() {
        let frame = message(|_| {});
        for frame in [tagged(&frame), frame] {
            let Asked::For(ip, request) = ask(&frame, Some(MY_IP)) else { panic!() };
            assert_eq!(ip, IpAddr::V4(OTHER_IP));
            let reply = reply(&request, &mapping(ip));
            let (header, rest) = ethernet::Repr::parse(&reply).unwrap();
            assert_eq!((header.destination, header.source), (ME, MacAddress::local(2)));
            let (message, _) = arp::Repr::parse(rest).unwrap();
            assert_eq!((message.operation, message.sender_ip), (Operation::Reply, OTHER_IP));
            assert_eq!((message.sender_mac, message.target_ip), (MacAddress::local(2), MY_IP));
        }
    }

    #[test]
    fn a_solicitation_gets_an_advertisement_that_a_host_accepts() {
        let group = ipv6::solicited_node(OTHER_SIX);
        let asks = |source| Neighbour::Solicitation { target: OTHER_SIX, source };
        // The second one asks whether its address is free.
        for (frame, asker, to) in [
            (six(asks(Some(ME)), MY_SIX, group), MY_SIX, MY_SIX),
            (six(asks(None), Ipv6Addr::UNSPECIFIED, group), Ipv6Addr::UNSPECIFIED, ALL_NODES),
        ] {
            for frame in [tagged(&frame), frame] {
                let Some(Asked::For(ip, request)) = solicits(&frame) else { panic!() };
                assert_eq!((ip, request.ip), (OTHER_SIX.into(), asker.into()));
                let reply = reply(&request, &mapping(ip));
                let (header, _) = ethernet::Repr::parse(&reply).unwrap();
                assert_eq!((header.destination, header.source), (ME, MacAddress::local(2)));
                let (ip, told) = neighbour_of(&reply).unwrap();
                assert_eq!((ip.source, ip.destination), (OTHER_SIX, to));
                let solicited = asker != Ipv6Addr::UNSPECIFIED;
                let Neighbour::Advertisement { router: false, solicited: s, overrides: true, target, address } = told
                else {
                    panic!("{told:?}")
                };
                assert_eq!((s, target, address), (solicited, OTHER_SIX, Some(MacAddress::local(2))));
            }
        }
        let forged = six(asks(Some(MacAddress::local(9))), MY_SIX, group);
        assert_eq!(solicits(&forged), Some(Asked::Forged));
        let told = Neighbour::Advertisement {
            router: false,
            solicited: false,
            overrides: true,
            target: MY_SIX,
            address: Some(ME),
        };
        assert_eq!(solicits(&six(told, MY_SIX, ALL_NODES)), None);
        assert_eq!(solicits(&message(|_| {})), None);
    }

    #[test]
    fn announcements_are_harmless_and_forgers_refused() {
        let asked = |change: fn(&mut arp::Repr)| ask(&message(change), Some(MY_IP));
        assert_eq!(asked(|m| m.target_ip = MY_IP), Asked::Nothing);
        assert_eq!(asked(|m| m.operation = Operation::Reply), Asked::Reply);
        assert_eq!(asked(|m| m.sender_ip = OTHER_IP), Asked::Forged, "another's address");
        assert_eq!(asked(|m| m.sender_mac = MacAddress::local(9)), Asked::Forged, "another's MAC");
        assert_eq!(asked(|m| (m.sender_ip, m.target_ip) = (OTHER_IP, OTHER_IP)), Asked::Forged);
        assert_eq!(ask(&message(|m| m.sender_ip = Ipv4Addr::BROADCAST), None), Asked::Forged, "nobody's address");
        // RFC 5227: a probe of the station's own address, and one of another address.
        assert_eq!(asked(|m| (m.sender_ip, m.target_ip) = (Ipv4Addr::UNSPECIFIED, MY_IP)), Asked::Nothing);
        let probe = asked(|m| m.sender_ip = Ipv4Addr::UNSPECIFIED);
        assert!(matches!(probe, Asked::For(IpAddr::V4(OTHER_IP), _)));
        assert_eq!(ask(&message(|_| {})[..41], None), Asked::Malformed);
        assert_eq!(arp_of(&[0; 60]), None);
    }

    #[test]
    fn a_station_shows_itself_by_what_it_sends() {
        let address = |ip: Ipv6Addr| Some(Shown::Address(ip.into()));
        assert_eq!(shown(&message(|_| {})), Some(Shown::Address(MY_IP.into())));
        assert_eq!(shown(&message(|m| m.sender_ip = Ipv4Addr::UNSPECIFIED)), Some(Shown::Station));
        assert_eq!(shown(&message(|m| m.sender_ip = Ipv4Addr::BROADCAST)), None);
        assert_eq!(shown(&message(|m| m.sender_mac = MacAddress::local(9))), None, "another's MAC");
        assert_eq!(shown(&message(|_| {})[..41]), None);
        let asks = |source| Neighbour::Solicitation { target: OTHER_SIX, source };
        let group = ipv6::solicited_node(OTHER_SIX);
        assert_eq!(shown(&six(asks(Some(ME)), MY_SIX, group)), address(MY_SIX));
        assert_eq!(shown(&six(asks(Some(MacAddress::local(9))), MY_SIX, group)), None, "another's MAC");
        assert_eq!(shown(&six(asks(None), Ipv6Addr::UNSPECIFIED, group)), address(OTHER_SIX), "its future address");
        let tells = |router, mac| Neighbour::Advertisement {
            router,
            solicited: false,
            overrides: true,
            target: MY_SIX,
            address: Some(mac),
        };
        let told = six(tells(false, ME), MY_SIX, ALL_NODES);
        assert_eq!((shown(&told), shown(&tagged(&told))), (address(MY_SIX), address(MY_SIX)));
        assert_eq!(shown(&six(tells(false, MacAddress::local(9)), MY_SIX, ALL_NODES)), None);
        assert_eq!(shown(&six(tells(true, ME), MY_SIX, ALL_NODES)), Some(Shown::Router));
        // Any other frame shows the station.
        let mut damaged = told;
        damaged[70] ^= 1;
        assert_eq!(shown(&damaged), Some(Shown::Station));
        damaged[6] = 1;
        assert_eq!(shown(&damaged), None, "from a group");
    }
}
