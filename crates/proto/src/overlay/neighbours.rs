//! ARP, answered by the switch: a tenant's request never leaves its server (Crisan 2014, 3.2.3: the controller has the
//! mapping).
//!
//! The controller decides the location of stations, so ARP messages change no mapping. Replies and gratuitous announcements
//! are not forwarded. A message whose sender is not the station of its port is refused by name.

use super::mapping::Mapping;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use sluicenet_wire::arp::{self, Operation};
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::vlan;

/// The kind of a tenant's ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A request for the station with this address, to be answered by [`reply`].
    For(Ipv4Addr, Request),
    /// A gratuitous announcement, a probe of the station's own address, or a reply: no answer is needed.
    Nothing,
    /// The sender fields contradict the station's mapping.
    Forged,
    /// The message is not ARP over Ethernet for IPv4.
    Malformed,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    mac: MacAddress,
    ip: Ipv4Addr,
}

/// The packet behind the header of an ARP frame, tagged or not.
pub fn arp_of(frame: &[u8]) -> Option<&[u8]> {
    let (header, rest) = ethernet::Repr::parse(frame).ok()?;
    match header.ethertype {
        EtherType::ARP => Some(rest),
        EtherType::VLAN => vlan::Repr::parse(rest).ok().filter(|(tag, _)| tag.ethertype == EtherType::ARP).map(|t| t.1),
        _ => None,
    }
}

/// Classifies the ARP message in a tenant's frame; `station` is the IPv4 address of the sender in its mapping, if there is
/// one.
pub fn ask(frame: &[u8], station: Option<Ipv4Addr>) -> Asked {
    let Some(Ok((message, _))) = arp_of(frame).map(arp::Repr::parse) else { return Asked::Malformed };
    let from = &frame[6..12];
    // 0.0.0.0 asks whether an address is free (RFC 5227, 2.1.1).
    let is_probe = message.sender_ip.is_unspecified();
    let fits = is_probe || station.is_none_or(|ip| ip.is_unspecified() || ip == message.sender_ip);
    if from != message.sender_mac.0 || message.sender_mac.is_group() || !fits {
        return Asked::Forged;
    }
    if message.operation == Operation::Reply || message.sender_ip == message.target_ip {
        return Asked::Nothing;
    }
    if is_probe && station == Some(message.target_ip) {
        return Asked::Nothing;
    }
    Asked::For(message.target_ip, Request { mac: message.sender_mac, ip: message.sender_ip })
}

/// The reply to a request, without a tag, as if from the requested station.
pub fn reply(request: &Request, of: &Mapping) -> Vec<u8> {
    let mut frame = alloc::vec![0; ethernet::MIN_LEN];
    let mac = of.station.mac;
    ethernet::Repr { destination: request.mac, source: mac, ethertype: EtherType::ARP }.emit(&mut frame);
    let message = arp::Repr {
        operation: Operation::Reply,
        sender_mac: mac,
        sender_ip: of.ip,
        target_mac: request.mac,
        target_ip: request.ip,
    };
    message.emit(&mut frame[ethernet::HEADER_LEN..]);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::mapping::StationId;

    const ME: MacAddress = MacAddress::local(1);
    const MY_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OTHER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

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

    #[test]
    fn a_request_gets_the_reply_of_the_mapping() {
        let frame = message(|_| {});
        let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
        for frame in [frame, tagged] {
            let Asked::For(ip, request) = ask(&frame, Some(MY_IP)) else { panic!() };
            assert_eq!(ip, OTHER_IP);
            let station = StationId { vni: 1, mac: MacAddress::local(2) };
            let mapping = Mapping { station, ip, location: Ipv4Addr::LOCALHOST, epoch: 1, version: 1 };
            let reply = reply(&request, &mapping);
            let (header, rest) = ethernet::Repr::parse(&reply).unwrap();
            assert_eq!((header.destination, header.source), (ME, MacAddress::local(2)));
            let (message, _) = arp::Repr::parse(rest).unwrap();
            assert_eq!((message.operation, message.sender_ip), (Operation::Reply, OTHER_IP));
            assert_eq!((message.sender_mac, message.target_ip), (MacAddress::local(2), MY_IP));
        }
    }

    #[test]
    fn announcements_are_harmless_and_forgers_refused() {
        let asked = |change: fn(&mut arp::Repr)| ask(&message(change), Some(MY_IP));
        assert_eq!(asked(|m| m.target_ip = MY_IP), Asked::Nothing);
        assert_eq!(asked(|m| m.operation = Operation::Reply), Asked::Nothing);
        assert_eq!(asked(|m| m.sender_ip = OTHER_IP), Asked::Forged, "another's address");
        assert_eq!(asked(|m| m.sender_mac = MacAddress::local(9)), Asked::Forged, "another's MAC");
        assert_eq!(asked(|m| (m.sender_ip, m.target_ip) = (OTHER_IP, OTHER_IP)), Asked::Forged);
        // RFC 5227: a probe of the station's own address, and one of another address.
        assert_eq!(asked(|m| (m.sender_ip, m.target_ip) = (Ipv4Addr::UNSPECIFIED, MY_IP)), Asked::Nothing);
        assert!(matches!(asked(|m| m.sender_ip = Ipv4Addr::UNSPECIFIED), Asked::For(OTHER_IP, _)));
        assert_eq!(ask(&message(|_| {})[..41], None), Asked::Malformed);
        assert_eq!(arp_of(&[0; 60]), None);
    }
}
