//! Two servers and the controller, with well-behaved and misbehaving tenants.

use super::*;
use core::net::Ipv6Addr;
use sluicenet_proto::overlay::controller::{Controller, ControllerConfig};
use sluicenet_proto::time::Duration;
use sluicenet_wire::arp::{self, Operation};
use sluicenet_wire::ethernet::{self, EtherType};
use sluicenet_wire::icmp::TooBig;
use sluicenet_wire::icmpv6::Neighbour;
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::ipv6;

const VNI: u32 = 700;
const OTHER: u32 = 800;

fn server(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, n)
}
fn mac(n: u32) -> MacAddress {
    MacAddress::local(n)
}
fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}
fn key(n: u8) -> Key {
    Key::new(&[n; 32])
}

/// Two ends and a controller that answers at once, or is dead.
struct World {
    now: Instant,
    ends: Vec<Vtep<u32>>,
    controller: Controller,
    alive: bool,
}

impl World {
    fn new() -> World {
        let mut controller = Controller::new(ControllerConfig::default(), 77);
        let end = |n: u8| {
            let tunnel = TunnelConfig { server: server(n), mac: mac(1_000 + u32::from(n)), mtu: 1500, reserved: 0 };
            let mut end = Vtep::new(VtepConfig::new(tunnel), key(n), Rng::from_words(&[n.into()]), 1);
            end.admit(server(3 - n), mac(1_003 - u32::from(n)));
            end.bind(5, VNI).unwrap();
            end.bind(6, OTHER).unwrap();
            end
        };
        let ends = [1, 2].map(end).into();
        (1..=2).for_each(|n| controller.admit(server(n), key(n)));
        let mut world = World { now: Instant(1), ends, controller, alive: true };
        // Station 1 and 3 on server 1, 2 on server 2; station 4 on server 2 is another tenant's.
        for (end, domain, n) in [(0, 5, 1), (0, 5, 3), (1, 5, 2), (1, 6, 4)] {
            assert!(world.ends[end].add_station(world.now, domain, mac(n), ip(n as u8)));
        }
        world.exchange();
        world
    }

    /// Exchanges all pending datagrams.
    fn exchange(&mut self) {
        for n in [0, 1, 0, 1] {
            self.ends[n].handle_timeout(self.now);
            while let Some(datagram) = self.ends[n].poll_control(self.now) {
                if !self.alive {
                    continue;
                }
                if let Some(answer) = self.controller.handle(self.now, server(n as u8 + 1), &datagram) {
                    self.ends[n].handle_control(self.now, &answer);
                }
            }
        }
        while let Some((to, datagram)) = self.controller.poll_transmit(self.now).filter(|_| self.alive) {
            self.ends[usize::from(to.octets()[3] - 1)].handle_control(self.now, &datagram);
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += Duration::from_ms(1);
            self.exchange();
        }
    }

    fn outward(&mut self, end: usize, frame: &[u8], domain: u16) -> (Outward, Vec<u8>) {
        let mut out = Vec::new();
        let outward = self.ends[end].outward(self.now, frame, domain, 3, &mut out);
        (outward, out)
    }

    fn events(&mut self, end: usize) -> Vec<Event<u32>> {
        core::iter::from_fn(|| self.ends[end].poll_event(self.now)).collect()
    }

    /// A frame between servers that already know each other's stations.
    fn tunnelled(&mut self, from: u32, to: u32) -> Vec<u8> {
        let frame = frame(from, to, 100, true);
        if self.outward(0, &frame, 5).0 == Outward::Parked {
            self.exchange();
            self.events(0);
        }
        let (outward, out) = self.outward(0, &frame, 5);
        assert_eq!(outward, Outward::Send);
        out
    }
}

fn frame(from: u32, to: u32, len: usize, dont_fragment: bool) -> Vec<u8> {
    let mut frame = alloc::vec![7; 34 + len];
    ethernet::Repr { destination: mac(to), source: mac(from), ethertype: EtherType::IPV4 }.emit(&mut frame);
    let header = ipv4::Repr {
        source: ip(from as u8),
        destination: ip(to as u8),
        protocol: Protocol(99),
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment,
        ttl: 64,
        payload_len: len as u16,
    };
    header.emit(&mut frame[14..]);
    frame
}

fn request(from: u32, sender: u8, target: u8) -> Vec<u8> {
    let mut frame = alloc::vec![0; 60];
    let all = MacAddress::BROADCAST;
    ethernet::Repr { destination: all, source: mac(from), ethertype: EtherType::ARP }.emit(&mut frame);
    let message = arp::Repr {
        operation: Operation::Request,
        sender_mac: mac(from),
        sender_ip: ip(sender),
        target_mac: MacAddress::default(),
        target_ip: ip(target),
    };
    message.emit(&mut frame[14..]);
    frame
}

#[test]
fn a_frame_waits_for_the_answer_and_arrives_in_order() {
    let mut w = World::new();
    for len in 0..5 {
        assert_eq!(w.outward(0, &frame(1, 2, len, false), 5).0, Outward::Parked);
    }
    assert_eq!(w.ends[0].waiting(), 5);
    w.exchange();
    let sent: Vec<Vec<u8>> = w
        .events(0)
        .into_iter()
        .map(|event| match event {
            Event::Send(bytes, 3, _) => bytes,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(sent.iter().enumerate().all(|(len, bytes)| bytes.len() == 54 + 34 + len));
    // The sender is not known yet at the other end either.
    let mut bytes = sent[0].clone();
    let Inward::Ask(inner, station) = w.ends[1].inward(w.now, &mut bytes) else { panic!() };
    assert_eq!((inner.domain, inner.priority, station.mac), (5, 3, mac(1)));
    w.ends[1].park(w.now, station, inner.from, 42, true).unwrap();
    w.exchange();
    assert_eq!(w.events(1), [Event::Deliver(42)]);
    assert!(matches!(w.ends[1].inward(w.now, &mut sent[1].clone()), Inward::Deliver(_)));
    assert_eq!(w.ends[0].waiting() + w.ends[1].waiting(), 0);
}

#[test]
fn requests_for_known_stations_are_answered_and_never_travel() {
    let mut w = World::new();
    assert_eq!(w.outward(0, &request(1, 1, 2), 5).0, Outward::Parked);
    w.exchange();
    let events = w.events(0);
    let [Event::Reply(reply, 5, 3)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&reply[..6], &reply[6..12]), (&mac(1).0[..], &mac(2).0[..]));
    assert!(matches!(w.outward(0, &request(1, 1, 2), 5).0, Outward::Reply(again) if again == *reply));
    // A station of this server answers itself.
    assert_eq!(w.outward(0, &request(1, 1, 3), 5).0, Outward::Parked);
    w.exchange();
    assert_eq!(w.events(0), []);
    // A station of another tenant does not exist here: its neighbours are asked.
    let asked = request(1, 1, 4);
    assert_eq!(w.outward(0, &asked, 5).0, Outward::Parked);
    w.exchange();
    assert_eq!(w.events(0), [Event::Copies(asked.clone(), [server(2)].into(), 5, 3)]);
    assert_eq!(w.outward(0, &asked, 5).0, Outward::Copies([server(2)].into()), "the controller is not asked again");
    // A gratuitous one, which the neighbours may need; and a forged one.
    assert_eq!(w.outward(0, &request(1, 1, 1), 5).0, Outward::Copies([server(2)].into()));
    assert_eq!(w.outward(0, &request(1, 2, 3), 5).0, Outward::Drop(DropReason::ForgedSource, None));
    assert_eq!(w.outward(0, &broadcast(1), 9).0, Outward::Drop(DropReason::NoRoute, None), "a domain of no network");
}

/// A frame for all stations.
fn broadcast(from: u32) -> Vec<u8> {
    let mut all = frame(from, 2, 10, false);
    all[..6].fill(0xFF);
    all
}

/// The copy of a frame for the server of another end.
fn copy(w: &mut World, end: usize, frame: &[u8], domain: u16, to: u8) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(w.ends[end].copy(frame, domain, 3, server(to), &mut out));
    out
}

#[test]
fn a_frame_for_a_group_reaches_the_servers_of_its_network_once_and_goes_no_further() {
    let mut w = World::new();
    w.pass(600);
    assert_eq!(w.outward(0, &broadcast(1), 5).0, Outward::Copies([server(2)].into()));
    let mut sent = copy(&mut w, 0, &broadcast(1), 5, 2);
    let Inward::Beside(inner, Some(station)) = w.ends[1].inward(w.now, &mut sent.clone()) else { panic!() };
    assert_eq!((inner.domain, station), (5, StationId { vni: VNI, mac: mac(1) }), "its sender is asked about first");
    w.ends[1].park(w.now, station, inner.from, 7, false).unwrap();
    w.exchange();
    assert_eq!(w.events(1), [Event::Deliver(7)]);
    let Inward::Beside(inner, None) = w.ends[1].inward(w.now, &mut sent) else { panic!() };
    assert_eq!(&sent[inner.frame], broadcast(1));
    assert_eq!((w.ends[0].counters().0.group_copies, w.ends[1].counters().0.group_received), (1, 1));
    // In the name of a station of another server, and from a station that nobody knows.
    for (from, end) in [(2, DropReason::ForgedSource), (99, DropReason::Unresolved)] {
        let mut forged = copy(&mut w, 0, &broadcast(from), 5, 2);
        let Inward::Beside(inner, Some(station)) = w.ends[1].inward(w.now, &mut forged) else { panic!() };
        w.ends[1].park(w.now, station, inner.from, 8, false).unwrap();
        w.exchange();
        assert_eq!(w.events(1), [Event::Drop(8, end)]);
    }
    // A station that is not registered here; the switch hears of it once.
    assert_eq!(w.outward(0, &broadcast(2), 5).0, Outward::Drop(DropReason::ForgedSource, None));
    assert_eq!(w.outward(0, &broadcast(2), 5).0, Outward::Drop(DropReason::ForgedSource, None));
    assert_eq!(w.ends[0].poll_stranger(), Some((5, mac(2), None)));
    assert_eq!(w.ends[0].poll_stranger(), None);
}

#[test]
fn only_servers_with_the_network_get_a_copy() {
    let mut w = World::new();
    // A third server without the network, which the file names.
    w.ends[0].admit(server(3), mac(1_003));
    assert_eq!(w.outward(0, &broadcast(1), 5).0, Outward::Copies([2, 3].map(server).into()), "not known yet");
    w.pass(16_000);
    assert_eq!(w.outward(0, &broadcast(1), 5).0, Outward::Copies([server(2)].into()));
}

#[test]
fn a_flood_for_groups_is_limited_and_leaves_other_tenants_their_share() {
    let mut w = World::new();
    assert!(w.ends[0].add_station(w.now, 6, mac(5), ip(5)));
    w.pass(600);
    let copied = |w: &mut World, from, domain, frames: usize| {
        let sent = (0..frames).filter(|_| matches!(w.outward(0, &broadcast(from), domain).0, Outward::Copies(_)));
        sent.count()
    };
    assert_eq!(copied(&mut w, 1, 5, 100_000), 256);
    assert_eq!(w.ends[0].counters().0.group_limited, 100_000 - 256);
    assert_eq!(w.outward(0, &broadcast(1), 5).0, Outward::Drop(DropReason::FloodNoRoom, None));
    assert_eq!(copied(&mut w, 5, 6, 100), 100, "another tenant");
    w.pass(10);
    assert_eq!(copied(&mut w, 1, 5, 1_000), 100);
}

#[test]
fn solicitations_for_a_million_addresses_take_bounded_memory_and_no_share_of_others() {
    let mut w = World::new();
    w.pass(600);
    w.alive = false;
    let [me, prefix] = ["2001:db8::1", "2001:db8:1::"].map(|a| a.parse::<Ipv6Addr>().unwrap());
    let mut ended = [0u32; 3];
    for n in 0..1_000_000 {
        let target = Ipv6Addr::from_bits(prefix.to_bits() + n);
        match w.outward(0, &solicitation(1, me, target), 5).0 {
            Outward::Parked => ended[0] += 1,
            Outward::Copies(_) => ended[1] += 1,
            Outward::Drop(DropReason::FloodNoRoom, None) => ended[2] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, [64, 256, 1_000_000 - 64 - 256], "the open questions of a tenant, and its copies at once");
    assert_eq!(w.ends[0].waiting(), 64);
    assert_eq!(w.ends[0].counters().1.limited, 1_000_000 - 64);
    // Another tenant is answered as before.
    w.alive = true;
    assert!(w.ends[0].add_station(w.now, 6, mac(5), ip(5)));
    w.exchange();
    assert_eq!(w.outward(0, &request(5, 5, 4), 6).0, Outward::Parked);
    w.exchange();
    assert!(w.events(0).iter().any(|event| matches!(event, Event::Reply(_, 6, 3))));
}

fn solicitation(from: u32, sender: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let group = ipv6::solicited_node(target);
    let message = Neighbour::Solicitation { target, source: (!sender.is_unspecified()).then_some(mac(from)) };
    let header = message.header(sender, group);
    let mut frame = alloc::vec![0; 54 + usize::from(header.payload_len)];
    let destination = ipv6::group_mac(group);
    ethernet::Repr { destination, source: mac(from), ethertype: EtherType::IPV6 }.emit(&mut frame);
    header.emit(&mut frame[14..]);
    message.emit(&header, &mut frame[54..]);
    frame
}

#[test]
fn solicitations_are_answered_from_the_mapping() {
    let mut w = World::new();
    let [me, other] = ["fe80::1", "fe80::2"].map(|a| a.parse::<Ipv6Addr>().unwrap());
    assert!(w.ends[1].learn_station(w.now, 5, mac(2), other.into(), true));
    w.exchange();
    let asks = solicitation(1, me, other);
    assert_eq!(w.outward(0, &asks, 5).0, Outward::Parked);
    w.exchange();
    let events = w.events(0);
    let [Event::Reply(reply, 5, 3)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&reply[..6], &reply[6..12]), (&mac(1).0[..], &mac(2).0[..]));
    assert_eq!(w.outward(0, &asks, 5).0, Outward::Reply(reply.clone()));
    // It asks whether an address is free that another station has, and whether its own is.
    let taken = solicitation(1, Ipv6Addr::UNSPECIFIED, other);
    assert!(matches!(w.outward(0, &taken, 5).0, Outward::Reply(_)));
    assert!(w.ends[0].learn_station(w.now, 5, mac(1), me.into(), true));
    w.exchange();
    let own = solicitation(1, Ipv6Addr::UNSPECIFIED, me);
    assert_eq!(w.outward(0, &own, 5).0, Outward::Parked);
    w.exchange();
    assert_eq!(w.events(0), [Event::Copies(own, [server(2)].into(), 5, 3)]);
    // The station has the address no longer.
    w.ends[1].learn_station(w.now, 5, mac(2), other.into(), false);
    w.pass(20);
    assert_eq!(w.outward(0, &asks, 5).0, Outward::Parked);
    w.exchange();
    assert!(matches!(w.events(0)[..], [Event::Copies(..)]));
}

#[test]
fn the_reply_of_a_silent_station_reaches_the_asker_beside_credits_and_shows_the_station() {
    let mut w = World::new();
    // Station 8 is named without an address.
    assert!(w.ends[1].add_station(w.now, 5, mac(8), Ipv4Addr::UNSPECIFIED));
    w.pass(600);
    let asks = request(1, 1, 8);
    assert_eq!(w.outward(0, &asks, 5).0, Outward::Parked);
    w.exchange();
    assert!(matches!(w.events(0)[..], [Event::Copies(..)]));
    let mut sent = copy(&mut w, 0, &asks, 5, 2);
    let Inward::Beside(inner, Some(station)) = w.ends[1].inward(w.now, &mut sent) else { panic!() };
    w.ends[1].park(w.now, station, inner.from, 1, false).unwrap();
    w.exchange();
    w.events(1);
    let mut reply = asks.clone();
    ethernet::Repr { destination: mac(1), source: mac(8), ethertype: EtherType::ARP }.emit(&mut reply);
    let message = arp::Repr {
        operation: Operation::Reply,
        sender_mac: mac(8),
        sender_ip: ip(8),
        target_mac: mac(1),
        target_ip: ip(1),
    };
    message.emit(&mut reply[14..]);
    // Nobody would know whether the address is its own: the switch decides that first.
    assert_eq!(w.outward(1, &reply, 5).0, Outward::Drop(DropReason::Unresolved, None));
    assert_eq!(w.ends[1].poll_stranger(), Some((5, mac(8), Some(ip(8)))));
    assert!(w.ends[1].add_station(w.now, 5, mac(8), ip(8)));
    let (outward, mut out) = w.outward(1, &reply, 5);
    assert_eq!(outward, Outward::Send);
    let Inward::Beside(_, Some(station)) = w.ends[0].inward(w.now, &mut out) else { panic!() };
    assert_eq!(station.mac, mac(8));
    // A reply in the name of another.
    reply[14 + 9] ^= 1;
    assert_eq!(w.outward(1, &reply, 5).0, Outward::Drop(DropReason::ForgedSource, None));
}

#[test]
fn what_is_too_large_is_dropped_by_name_and_its_sender_told() {
    let mut w = World::new();
    w.tunnelled(1, 2);
    let (outward, _) = w.outward(0, &frame(1, 2, 1_427, true), 5);
    let Outward::Drop(DropReason::TooBig, Some(told)) = outward else { panic!("{outward:?}") };
    let (ip_header, payload) = ipv4::Repr::parse(&told[14..]).unwrap();
    assert_eq!(ip_header.destination, ip(1));
    assert_eq!(TooBig::parse(payload).unwrap().0.mtu, 1446);
    assert_eq!(w.outward(0, &frame(1, 2, 1_426, true), 5).0, Outward::Send);
    assert_eq!(w.outward(0, &frame(1, 2, 1_427, false), 5).0, Outward::Cut);
    // Neither waits for an unknown station.
    assert_eq!(w.outward(0, &frame(1, 9, 1_427, false), 5).0, Outward::Cut);
    assert!(matches!(w.outward(0, &frame(1, 9, 1_427, true), 5).0, Outward::Drop(DropReason::TooBig, Some(_))));
    assert_eq!(w.ends[0].waiting(), 0);
    // Six at once and ten in a second.
    let told = |w: &mut World| {
        let outward = (0..1_000).map(|_| w.outward(0, &frame(1, 2, 1_427, true), 5).0);
        outward.filter(|o| matches!(o, Outward::Drop(DropReason::TooBig, Some(_)))).count()
    };
    assert_eq!(told(&mut w), 4);
    w.pass(1_000);
    assert_eq!(told(&mut w), 6);
}

#[test]
fn hostile_20_to_22_what_comes_from_the_wrong_server_or_tenant_is_dropped() {
    let mut w = World::new();
    let mut good = w.tunnelled(1, 2);
    let Inward::Ask(inner, station) = w.ends[1].inward(w.now, &mut good.clone()) else { panic!() };
    w.ends[1].park(w.now, station, inner.from, 1, true).unwrap();
    w.exchange();
    w.events(1);
    assert!(matches!(w.ends[1].inward(w.now, &mut good), Inward::Deliver(_)));
    // A station of server 2 itself, from server 1: asked about, and the mapping wins.
    let inner_at = 54;
    let mut forged = good.clone();
    forged[inner_at + 6..inner_at + 12].copy_from_slice(&mac(2).0);
    let Inward::Ask(inner, station) = w.ends[1].inward(w.now, &mut forged.clone()) else { panic!() };
    w.ends[1].park(w.now, station, inner.from, 2, true).unwrap();
    w.exchange();
    assert_eq!(w.events(1), [Event::Drop(2, DropReason::ForgedSource)]);
    assert_eq!(w.ends[1].inward(w.now, &mut forged.clone()), Inward::Drop(DropReason::ForgedSource), "not asked again");
    // A station of another tenant, in a network that is right.
    let mut other = good.clone();
    other[inner_at + 6..inner_at + 12].copy_from_slice(&mac(4).0);
    let Inward::Ask(inner, station) = w.ends[1].inward(w.now, &mut other) else { panic!() };
    w.ends[1].park(w.now, station, inner.from, 3, true).unwrap();
    w.exchange();
    assert_eq!(w.events(1), [Event::Drop(3, DropReason::Unresolved)]);
    // An unknown network leaves no trace.
    let before = w.ends[1].cache.len();
    let mut unknown = good.clone();
    unknown[inner_at - 2] = 0xEE;
    assert_eq!(w.ends[1].inward(w.now, &mut unknown), Inward::Drop(DropReason::UnknownVni));
    assert_eq!(w.ends[1].cache.len(), before);
    assert!(!w.ends[1].cache.wants_transmit());
}

#[test]
fn a_moved_station_is_followed_and_its_frames_are_not_lost() {
    let mut w = World::new();
    let good = w.tunnelled(1, 2);
    let Inward::Ask(inner, station) = w.ends[1].inward(w.now, &mut good.clone()) else { panic!() };
    w.ends[1].park(w.now, station, inner.from, 1, true).unwrap();
    w.exchange();
    w.events(1);
    // Station 2 moves to server 1: station 1's frames for it must not go to server 2 any more.
    w.pass(1_100);
    let now = w.now;
    w.ends[0].add_station(now, 5, mac(2), ip(2));
    w.pass(200);
    assert_eq!(w.outward(0, &frame(1, 2, 10, true), 5).0, Outward::Drop(DropReason::NoRoute, None), "it is here");
    assert_eq!(w.ends[1].poll_lost().map(|(s, why)| (s.mac, why)), Some((mac(2), Lost::Moved)));
    // Station 1 moves to server 2, and server 2 sends on its behalf at once.
    w.ends[1].add_station(now, 5, mac(1), ip(1));
    let frame = frame(1, 3, 10, true);
    while w.outward(1, &frame, 5).0 != Outward::Send {
        w.pass(1);
        w.events(1);
    }
    let (_, mut bytes) = w.outward(1, &frame, 5);
    match w.ends[0].inward(w.now, &mut bytes) {
        Inward::Deliver(_) => {}
        Inward::Ask(inner, station) => {
            w.ends[0].park(w.now, station, inner.from, 9, true).unwrap();
            w.pass(20);
            assert_eq!(w.events(0), [Event::Deliver(9)]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dead_controller_or_a_flooding_tenant_harms_only_those_concerned() {
    let mut w = World::new();
    let good = frame(1, 2, 10, true);
    w.tunnelled(1, 2);
    let now = w.now;
    w.ends[0].add_station(now, 6, mac(3), ip(3));
    w.exchange();
    w.alive = false;
    // A tenant asks for stations that nobody has, at a hundred frames a millisecond.
    let (mut parked, mut dropped) = (0, 0);
    for n in 0..50_000u32 {
        match w.outward(0, &frame(1, 10_000 + n, 10, true), 5).0 {
            Outward::Parked => parked += 1,
            Outward::Drop(DropReason::Unresolved, None) => dropped += 1,
            other => panic!("{other:?}"),
        }
        if n % 100 == 0 {
            w.pass(1);
            dropped += w.events(0).len();
            // Frames for known stations go on; another tenant's question is asked.
            assert_eq!(w.outward(0, &good, 5).0, Outward::Send);
        }
        assert!(w.ends[0].waiting() <= 256 + 1);
    }
    assert_eq!(w.outward(0, &frame(3, 4, 10, true), 6).0, Outward::Parked);
    w.alive = true;
    w.pass(20);
    let events = w.events(0);
    assert!(events.iter().any(|e| matches!(e, Event::Send(..))), "station 4 was found");
    w.pass(100);
    dropped += events.len() - 1 + w.events(0).len();
    // No frame vanishes silently: each drop was counted by reason.
    assert_eq!((w.ends[0].waiting(), dropped), (0, 50_000));
    assert!(parked > 64);
}

#[test]
fn a_burst_from_a_station_nobody_knows_yet_waits_whole_and_for_a_silent_controller_beside_the_buffer() {
    let mut w = World::new();
    let good = w.tunnelled(1, 2);
    let arrive = |w: &mut World, n, lossless| match w.ends[1].inward(w.now, &mut good.clone()) {
        Inward::Ask(inner, station) => w.ends[1].park(w.now, station, inner.from, n, lossless),
        other => panic!("{other:?}"),
    };
    // In a lossless class the receive buffer is the only bound, in a lossy one the tenant's share.
    w.alive = false;
    assert!((0..5_000).all(|n| arrive(&mut w, n, true).is_ok()));
    assert_eq!((0..5_000).filter(|&n| arrive(&mut w, n, false).is_ok()).count(), 256);
    w.pass(9);
    w.alive = true;
    w.pass(2);
    let delivered = w.events(1);
    assert_eq!(delivered.len(), 5_256);
    assert!(delivered[..5_000].iter().cloned().eq((0..5_000).map(Event::Deliver)), "in order");
    // Another station, and a controller that died. A frame of a lossless class waits until the controller answers,
    // outside the receive buffer and within its tenant's share. A frame of a lossy class is given up with its question.
    w.alive = false;
    w.ends[1].set_waiting_classes(PrioritySet(1 << 3));
    let arrive = |w: &mut World, from, n, lossless| {
        let mut other = good.clone();
        other[54 + 6..54 + 12].copy_from_slice(&mac(from).0);
        match w.ends[1].inward(w.now, &mut other) {
            Inward::Ask(inner, station) => w.ends[1].park(w.now, station, inner.from, n, lossless),
            other => panic!("{other:?}"),
        }
    };
    arrive(&mut w, 3, 1, true).unwrap();
    arrive(&mut w, 3, 2, false).unwrap();
    w.pass(60);
    assert_eq!(w.events(1), [Event::Aside(1), Event::Drop(2, DropReason::Unresolved)]);
    // A station that the controller will not know.
    arrive(&mut w, 7, 3, true).unwrap();
    assert_eq!(arrive(&mut w, 7, 4, false), Err(DropReason::Unresolved));
    let more: Vec<u32> = (10..300).filter(|&n| arrive(&mut w, 3, n, true).is_ok()).collect();
    assert!(more.iter().copied().eq(10..10 + 254), "{more:?}");
    let aside: Vec<u32> = core::iter::once(3).chain(more.iter().copied()).collect();
    assert!(w.events(1).into_iter().eq(aside.into_iter().map(Event::Aside)));
    w.pass(3_000);
    assert_eq!((w.events(1), w.ends[1].waiting()), (Vec::new(), 256));
    w.alive = true;
    w.pass(1_200);
    let events = w.events(1);
    assert!(events.contains(&Event::Drop(3, DropReason::Unresolved)));
    let delivered = events.into_iter().filter(|event| *event != Event::Drop(3, DropReason::Unresolved));
    assert!(delivered.eq(core::iter::once(1).chain(more).map(Event::Deliver)), "in order");
    assert_eq!((w.ends[1].waiting(), w.ends[1].shared), (0, 0));
}

/// When the address of a station is requested, the station is found although its frames wait for a silent controller.
#[test]
fn in_a_lossy_class_nobody_waits_for_frames_that_are_parked() {
    let mut w = World::new();
    w.ends[1].set_waiting_classes(PrioritySet(1 << 3));
    let (lossless, mut lossy) = (w.tunnelled(1, 2), Vec::new());
    assert_eq!(w.ends[0].outward(w.now, &frame(1, 2, 100, true), 5, 1, &mut lossy), Outward::Send);
    let inward = |w: &mut World, bytes: &[u8]| w.ends[1].inward(w.now, &mut bytes.to_vec());
    let park = |w: &mut World, n| match inward(w, &lossless) {
        Inward::Ask(inner, station) => w.ends[1].park(w.now, station, inner.from, n, true),
        other => panic!("{other:?}"),
    };
    w.alive = false;
    park(&mut w, 1).unwrap();
    w.pass(60);
    assert_eq!(w.events(1), [Event::Aside(1)]);
    w.alive = true;
    assert_eq!(w.outward(1, &request(2, 2, 1), 5).0, Outward::Parked);
    w.exchange();
    assert!(matches!(inward(&mut w, &lossy), Inward::Deliver(_)));
    park(&mut w, 2).unwrap();
    w.pass(20);
    let delivered = w.events(1).into_iter().filter(|event| matches!(event, Event::Deliver(_)));
    assert!(delivered.eq([1, 2].map(Event::Deliver)), "in order");
}

#[test]
fn a_station_that_does_not_live_here_sends_nothing_into_the_tunnel() {
    let mut w = World::new();
    assert_eq!(w.outward(0, &frame(2, 1, 10, true), 5).0, Outward::Drop(DropReason::ForgedSource, None));
    assert_eq!(w.outward(0, &frame(99, 2, 10, true), 5).0, Outward::Drop(DropReason::ForgedSource, None));
    assert_eq!(w.outward(0, &request(99, 1, 2), 5).0, Outward::Drop(DropReason::ForgedSource, None));
    assert!(!w.ends[0].cache.wants_transmit(), "nobody was asked about it");
}

#[test]
fn lossless_frames_of_a_station_that_appears_wait_until_the_switch_has_decided() {
    let mut w = World::new();
    w.ends[0].set_waiting_classes(PrioritySet(1 << 1));
    let appears = mac(50);
    let may_send = |w: &mut World, priority| w.ends[0].may_send(w.now, 5, appears, priority);
    assert!(!may_send(&mut w, 1) && may_send(&mut w, 0), "lossy frames do not wait");
    assert!(w.ends[0].poll_timeout().is_some_and(|at| at <= w.now + INSIST));
    // The switch does not want it: its frames are dropped by name.
    assert_eq!(w.ends[0].poll_stranger(), Some((5, appears, None)));
    assert!(may_send(&mut w, 1));
    assert_eq!(w.outward(0, &frame(50, 2, 10, true), 5).0, Outward::Drop(DropReason::ForgedSource, None));
    // The switch changes its mind: its frames wait for the controller, and no longer.
    assert_eq!(w.ends[0].poll_stranger(), Some((5, appears, None)));
    assert!(w.ends[0].learn_station(w.now, 5, appears, IpAddr::V4(Ipv4Addr::UNSPECIFIED), true));
    assert!(!may_send(&mut w, 1));
    w.exchange();
    assert!(may_send(&mut w, 1));
    // It appears at another server: its frames do not wait here while it is turned away.
    assert!(w.ends[1].add_station(w.now, 5, appears, ip(50)));
    w.exchange();
    assert!(matches!(w.ends[0].poll_lost(), Some((station, Lost::Moved)) if station.mac == appears));
    assert!(may_send(&mut w, 1));
    // Strangers without end take no more memory, and nobody waits for ever.
    for n in 0..1_000 {
        w.ends[0].may_send(w.now, 5, mac(2_000 + n), 1);
    }
    assert_eq!(core::iter::from_fn(|| w.ends[0].poll_stranger()).count(), 64);
    assert!(w.ends[0].unwelcome.len() <= 64);
}

#[test]
fn hostile_23_a_forged_controller_is_not_heard() {
    let mut w = World::new();
    w.alive = false;
    w.outward(0, &frame(1, 2, 10, true), 5);
    let asked = w.ends[0].poll_control(w.now).unwrap();
    let answer = w.controller.handle(w.now, server(1), &asked).unwrap();
    let mut rng = Rng::from_words(&[1]);
    for _ in 0..20_000 {
        let mut forged = answer.to_vec();
        forged[rng.below(LEN as u64) as usize] ^= 1 << rng.below(8);
        forged.truncate(rng.below(LEN as u64 * 3) as usize);
        if forged != answer {
            w.ends[0].handle_control(w.now, &forged);
        }
    }
    assert_eq!(w.events(0), []);
    let refused = w.ends[0].counters().0.control_forged + w.ends[0].counters().0.control_refused;
    assert!(refused > 19_000);
    w.ends[0].handle_control(w.now, &answer);
    assert!(matches!(w.events(0)[..], [Event::Send(..)]));
    w.ends[0].handle_control(w.now, &answer);
    assert_eq!(w.ends[0].counters().0.control_forged + w.ends[0].counters().0.control_refused, refused + 1, "a replay");
    assert_eq!(w.events(0), []);
}

/// The results of an end for frames of a lossless class, and the outcome of their wait.
#[test]
fn in_a_lossless_class_what_nobody_can_be_asked_about_waits() {
    let mut w = World::new();
    w.ends[0].set_waiting_classes(PrioritySet(1 << 3));
    w.alive = false;
    let mut parked = 0;
    while w.ends[0].admits(w.now, 5, mac(2), 3) {
        assert_eq!(w.outward(0, &frame(1, 2, parked, false), 5).0, Outward::Parked);
        parked += 1;
    }
    assert_eq!(parked, 256, "the rest stays with who sends it");
    assert!(
        w.ends[0].admits(w.now, 5, mac(2), 4) && w.ends[0].admits(w.now, 6, mac(2), 3),
        "others do not wait for it"
    );
    // These frames were on their way in the switch when the last one was admitted.
    assert_eq!(w.outward(0, &frame(1, 2, parked, false), 5).0, Outward::Parked);
    // A frame of another class is given up when the question is.
    let lossy = |w: &mut World| w.ends[0].outward(w.now, &frame(1, 9, 1, false), 5, 4, &mut Vec::new());
    assert_eq!(lossy(&mut w), Outward::Drop(DropReason::Unresolved, None), "its tenant has no room");
    for _ in 0..300 {
        w.pass(10);
        assert_eq!(w.events(0), []);
    }
    assert_eq!((w.ends[0].waiting(), w.ends[0].parked_out()), (257, 257));
    assert!(w.ends[0].counters().0.parked_on > 1 && w.ends[0].counters().1.silent > 1);
    let deadline = w.ends[0].poll_timeout().unwrap();
    assert!(deadline.since(w.now) <= Duration::from_ms(10), "whoever sleeps until then looks in time");
    w.alive = true;
    for _ in 0..1_000 {
        w.pass(1);
        if !w.ends[0].events.is_empty() || w.ends[0].waiting() == 0 {
            break;
        }
    }
    // The frames go in order, and none overtakes them.
    let lens: Vec<usize> = w
        .events(0)
        .iter()
        .map(|event| match event {
            Event::Send(bytes, 3, Origin::Switch) => bytes.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(lens.windows(2).all(|pair| pair[1] == pair[0] + 1) && lens.len() == 257);
    assert!(w.ends[0].admits(w.now, 5, mac(2), 3));
    assert_eq!((w.outward(0, &frame(1, 2, 0, false), 5).0, w.ends[0].waiting()), (Outward::Send, 0));
}

#[test]
fn what_the_controller_does_not_know_is_dropped_in_a_lossless_class_too() {
    let mut w = World::new();
    w.ends[0].set_waiting_classes(PrioritySet(1 << 3));
    assert!(w.ends[0].admits(w.now, 5, mac(9), 3));
    assert_eq!(w.outward(0, &frame(1, 9, 1, false), 5).0, Outward::Parked);
    w.exchange();
    assert_eq!(w.events(0), [Event::DropOut(DropReason::Unresolved, 35)]);
    assert!(w.ends[0].admits(w.now, 5, mac(9), 3), "to be dropped");
    assert_eq!(w.outward(0, &frame(1, 9, 1, false), 5).0, Outward::Drop(DropReason::Unresolved, None));
}

/// A tenant that asks too much waits until it may ask again, and is told when to look.
#[test]
fn who_asks_too_much_waits() {
    let mut w = World::new();
    w.ends[0].set_waiting_classes(PrioritySet(1 << 3));
    let mut refused = 0;
    for n in 0..200 {
        while !w.ends[0].admits(w.now, 5, mac(1_000 + n), 3) {
            refused += 1;
            let deadline = w.ends[0].poll_timeout().unwrap();
            assert!(deadline > w.now && deadline.since(w.now) <= Duration::from_ms(10));
            w.now = deadline;
            w.exchange();
        }
        assert_eq!(w.outward(0, &frame(1, 1_000 + n, 1, false), 5).0, Outward::Parked);
        w.exchange();
    }
    assert!(refused > 0);
    assert_eq!((w.events(0).len(), w.ends[0].counters().1.limited), (200, 0));
}

/// A station that was moved away without notice: one more question reveals the move.
#[test]
fn a_doubt_ends_what_the_controller_does_not_know() {
    let mut w = World::new();
    w.tunnelled(1, 2);
    w.pass(1_500);
    assert!(w.ends[0].doubt(w.now, 5, mac(2)) && !w.ends[0].doubt(w.now, 5, mac(2)), "once a second");
    w.exchange();
    assert_eq!(w.outward(0, &frame(1, 2, 1, false), 5).0, Outward::Send, "it is still there");
    w.ends[1].remove_station(w.now, 5, mac(2));
    // The message is lost.
    for _ in 0..300 {
        w.now += Duration::from_ms(1);
        while let Some(datagram) = w.ends[1].poll_control(w.now) {
            w.controller.handle(w.now, server(2), &datagram);
        }
        while w.controller.poll_transmit(w.now).is_some() {}
    }
    assert_eq!(w.outward(0, &frame(1, 2, 1, false), 5).0, Outward::Send);
    w.now += Duration::from_secs(1);
    assert!(w.ends[0].doubt(w.now, 5, mac(2)));
    w.exchange();
    assert_eq!(w.outward(0, &frame(1, 2, 1, false), 5).0, Outward::Drop(DropReason::Unresolved, None));
}
