//! Campaigns of forged frames from one port: none reaches anybody, and all are counted at the attacker.
//!
//! The attacker writes its memory itself: it changes frames after the switch has looked at them, and names buffers again that
//! the switch still holds.

mod frames;
mod oracle;

use super::*;
use frames::*;
use oracle::{Claim, Receiver};
use sluicenet_dataplane::engine::Access as Rules;
use sluicenet_dataplane::region::{BUFFER_BYTES, Buffers, Region, RingCells};
use sluicenet_dataplane::ring::{Consumer, Producer};
use sluicenet_dataplane::shm::region_bytes;
use sluicenet_proto::guard::{Guard, Prefix};
use sluicenet_proto::loss::DropReason::{self, *};
use sluicenet_proto::rng::Rng;
use sluicenet_wire::ethernet::MacAddress;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

const ATTACKER: usize = 0;
const VICTIM: usize = 1;
const GATEWAY: usize = 2;
/// A port without a guard.
const OPEN: usize = 3;
/// Another station of the attacker's port, in some runs.
const BEHIND: usize = 10;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OWN_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 77);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const OWN_6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1);
const FOREIGN_6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 0xFE);

const BUFFERS: u32 = 16;

fn guard(stations: &[usize], addresses: Option<&[&str]>) -> Guard {
    let prefix = |text: &&str| text.parse::<Prefix>().unwrap();
    Guard {
        macs: stations.iter().map(|&n| MacAddress(mac(n))).collect(),
        addresses: addresses.map(|list| list.iter().map(prefix).collect()),
        router: false,
        dhcp_server: false,
    }
}

fn rules(guard: Option<Guard>, domain: Option<u16>) -> Rules {
    Rules { domain, priority: None, guard: guard.map(Arc::new) }
}

/// The attacker's own access to its memory.
struct Attacker {
    buffers: Buffers,
    send: Producer<RingCells>,
    returned: Consumer<RingCells>,
}

impl Attacker {
    fn new(access: &Access) -> Attacker {
        let region = Arc::new(Region::open(access.memory.try_clone().unwrap()).unwrap());
        let ring = |role: usize| RingCells::new(&region, 256 + role * RingCells::bytes(BUFFERS), BUFFERS);
        let at = region_bytes(BUFFERS) - BUFFERS as usize * BUFFER_BYTES;
        let buffers = Buffers::new(&region, at, BUFFERS);
        Attacker { buffers, send: Producer::new(ring(0)), returned: Consumer::new(ring(1)) }
    }

    fn overwrite(&self, buffer: u32, frame: &[u8]) {
        self.buffers.write(buffer, frame);
    }

    /// Names a frame in a buffer; returns whether the ring had room.
    fn send(&mut self, buffer: u32, len: usize) -> bool {
        while self.returned.pop().unwrap().is_some() {}
        self.returned.publish();
        let has_room = self.send.room().unwrap() > 0;
        if has_room {
            self.send.push(u64::from(buffer) | (len as u64) << 32);
            let _ = self.send.publish();
        }
        has_room
    }
}

/// A switch with the attacker at port 0, and clients at the others.
struct World {
    engine: Engine,
    attacker: Attacker,
    others: Vec<Client>,
}

impl World {
    fn new(own: Guard, domain: Option<u16>) -> World {
        let mut engine = Engine::new(4, patient());
        let access = engine.plug_shm(ATTACKER, "attacker", BUFFERS).unwrap();
        let attacker = Attacker::new(&access);
        let others = (1..4).map(|k| open(engine.plug_shm(k, &format!("port-{k}"), BUFFERS).unwrap())).collect();
        let given = |stations: &[MacAddress]| stations.iter().map(|mac| mac.0).collect::<Vec<_>>();
        let victim = guard(&[VICTIM], Some(&["10.0.0.2", "2001:db8::2"]));
        let gateway = guard(&[GATEWAY], Some(&["10.0.0.254", "2001:db8::fe"]));
        for (k, guard) in [(ATTACKER, Some(own)), (VICTIM, Some(victim)), (GATEWAY, Some(gateway)), (OPEN, None)] {
            let stations = guard.as_ref().map_or(vec![], |guard| given(&guard.macs));
            assert!(engine.set_access(k, rules(guard, domain)));
            assert!(stations.into_iter().all(|mac| engine.give(mac, domain.unwrap_or(0), k)));
        }
        World { engine, attacker, others }
    }

    /// The frames that port `k` has received.
    fn received(&mut self, k: usize) -> Vec<Vec<u8>> {
        let client = &mut self.others[k - 1];
        let mut frames = Vec::new();
        let mut bytes = [0; BUFFER_BYTES];
        while let Some(len) = client.receive(&mut bytes).unwrap() {
            frames.push(bytes[..len].to_vec());
        }
        let _ = client.publish();
        frames
    }

    fn refused(&self, k: usize) -> sluicenet_proto::loss::Drops {
        self.engine.report(k).unwrap().counters.refused
    }

    /// Sends one frame; the reason if it is refused, or how many ports it reaches, unchanged.
    fn fate(&mut self, frame: &[u8]) -> Result<usize, DropReason> {
        let before = self.refused(ATTACKER);
        self.attacker.overwrite(0, frame);
        assert!(self.attacker.send(0, frame.len()));
        while round_after_pause(&mut self.engine) > 0 {}
        let got: Vec<Vec<u8>> = (1..4).flat_map(|k| self.received(k)).collect();
        assert!(got.iter().all(|f| f == frame));
        let after = self.refused(ATTACKER);
        match DropReason::ALL.iter().find(|&&reason| after.frames(reason) > before.frames(reason)) {
            Some(reason) => {
                assert_eq!((got.len(), after.total_frames() - before.total_frames()), (0, 1));
                Err(*reason)
            }
            None => Ok(got.len()),
        }
    }
}

#[test]
fn each_forgery_has_its_name_at_the_port_that_sent_it() {
    let own = guard(&[ATTACKER], Some(&["10.0.0.1", "10.0.1.0/24", "2001:db8::1"]));
    let mut world = World::new(own, None);
    let (me, to, all) = (mac(ATTACKER), mac(VICTIM), [0xFF; 6]);
    let four = |from, payload: &[u8]| ethernet(to, me, 0x0800, &ipv4(from, 17, 1, 0, payload));
    let six = |from, next, payload: &[u8]| ethernet(to, me, 0x86DD, &ipv6(from, next, payload));
    let said = |station, address| ethernet(all, me, 0x0806, &arp(2, station, address, OWN));
    let inner = ethernet(to, mac(GATEWAY), 0x0806, &arp(2, me, FOREIGN, OWN));
    let vxlan = udp(4000, 4789, &[&[8, 0, 0, 0, 0, 0, 5, 0], &inner[..]].concat());
    let plain = udp(4000, 4000, &[7; 600]);
    let found = [
        ("honest IPv4", four(OWN, &plain), Ok(1)),
        ("honest IPv4, tagged", tagged(&four(OWN_NETWORK, &plain), 0x8100, 0), Ok(1)),
        ("honest IPv6", six(OWN_6, 17, &plain), Ok(1)),
        ("honest ARP", said(me, OWN), Ok(3)),
        ("honest solicitation", six(link_local(me), 58, &neighbour(135, FOREIGN_6, Some(me))), Ok(1)),
        ("MAC", ethernet(to, mac(GATEWAY), 0x0800, &ipv4(OWN, 17, 1, 0, &plain)), Err(ForgedSource)),
        ("free MAC", ethernet(to, mac(99), 0x88B5, &[0; 46]), Err(ForgedSource)),
        ("IPv4", four(FOREIGN, &plain), Err(ForgedIp)),
        ("IPv4 behind two tags", tagged(&tagged(&four(FOREIGN, &plain), 0x8100, 0), 0x8100, 0), Err(ForgedIp)),
        ("IPv4 fragment", ethernet(to, me, 0x0800, &ipv4(FOREIGN, 17, 1, 0x00B9, &plain)), Err(ForgedIp)),
        ("IPv6", six(FOREIGN_6, 17, &plain), Err(ForgedIp)),
        ("ARP", said(me, FOREIGN), Err(ForgedArp)),
        ("ARP for another station", said(mac(GATEWAY), OWN), Err(ForgedArp)),
        ("ND", six(OWN_6, 58, &neighbour(136, FOREIGN_6, Some(me))), Err(ForgedNd)),
        (
            "ND in a fragment",
            six(OWN_6, 44, &fragment(58, 0, false, 1, &neighbour(136, OWN_6, Some(me)))),
            Err(ForgedNd),
        ),
        ("RA", six(link_local(me), 58, &neighbour(134, OWN_6, None)), Err(ForgedRa)),
        ("RA behind options", six(link_local(me), 60, &options(58, &neighbour(134, OWN_6, None))), Err(ForgedRa)),
        ("DHCP", four(OWN, &udp(67, 68, &[2; 240])), Err(ForgedDhcp)),
        ("DHCPv6", six(link_local(me), 17, &udp(547, 546, &[2; 40])), Err(ForgedDhcp)),
        ("VXLAN from a foreign address", four(FOREIGN, &vxlan), Err(ForgedIp)),
        // The receiver gets a datagram of the attacker's own address, and nobody gets what is inside.
        ("VXLAN", four(OWN, &vxlan), Ok(1)),
        (
            "IPv4 in 802.2",
            ethernet(to, me, 28, &[&[0xAA, 0xAA, 3, 0, 0, 0, 8, 0], &ipv4(FOREIGN, 17, 1, 0, &[])[..]].concat()),
            Err(Malformed),
        ),
    ];
    for (name, frame, expected) in found {
        assert_eq!(world.fate(&frame), expected, "{name}");
    }
    // A port of a tenant sends no other VLAN.
    let mut world = World::new(guard(&[ATTACKER], None), Some(7));
    let mine = ethernet(to, me, 0x88B5, &[0; 46]);
    assert_eq!(world.fate(&tagged(&mine, 0x8100, 5)), Err(ForgedSource));
    assert_eq!(world.fate(&mine), Ok(1));
    for k in 1..4 {
        assert_eq!(world.engine.report(k).unwrap().counters.dropped.total_frames(), 0);
        assert_eq!(world.refused(k).total_frames(), 0);
    }
    world.engine.ledger();
}

#[test]
fn the_bytes_that_were_checked_are_the_bytes_that_arrive() {
    let own = guard(&[ATTACKER], Some(&["10.0.0.1"]));
    let mut world = World::new(own, None);
    let frame = |from, number: u8| {
        let payload = udp(4000, 4000, &[number; 600]);
        ethernet(mac(VICTIM), mac(ATTACKER), 0x0800, &ipv4(from, 17, number, 0, &payload))
    };
    // More frames than the victim has buffers: the others wait in the attacker's memory.
    let (honest, forged) = (frame(OWN, 1), frame(FOREIGN, 2));
    for buffer in 0..BUFFERS {
        world.attacker.overwrite(buffer, &honest);
        assert!(world.attacker.send(buffer, honest.len()));
    }
    round_after_pause(&mut world.engine);
    assert!(world.engine.queued() > 0);
    (0..BUFFERS).for_each(|buffer| world.attacker.overwrite(buffer, &forged));
    let mut got = Vec::new();
    while got.len() < BUFFERS as usize {
        round_after_pause(&mut world.engine);
        got.extend(world.received(VICTIM));
    }
    let head = 14 + 20 + 8;
    assert!(got.iter().all(|f| f[..head] == honest[..head]));
    assert!(got.iter().any(|f| f[head + 100..] == forged[head + 100..]), "only what nobody checks has changed");

    // A buffer that is named again, as a frame of another type, which nobody checks.
    let other = ethernet(mac(VICTIM), mac(ATTACKER), 0x88B5, &forged[14..]);
    for _ in 0..BUFFERS {
        world.attacker.overwrite(3, &honest);
        assert!(world.attacker.send(3, honest.len()));
        round_after_pause(&mut world.engine);
        world.attacker.overwrite(3, &other);
        world.attacker.send(3, other.len());
        round_after_pause(&mut world.engine);
    }
    let mut got = Vec::new();
    for _ in 0..20 {
        round_after_pause(&mut world.engine);
        got.extend(world.received(VICTIM));
    }
    assert!(got.iter().all(|f| f[12..14] == [0x88, 0xB5] || f[26..30] == OWN.octets()));
    let refused = world.refused(ATTACKER);
    assert_eq!(refused.total_frames(), refused.frames(Malformed), "{refused:?}");
    assert!(refused.frames(Malformed) > 0);
    assert_eq!(world.engine.report(VICTIM).unwrap().counters.dropped.total_frames(), 0);
    world.engine.ledger();
}

/// One run: the attacker sends random frames, overwrites buffers and names them again; receivers stop now and then. Returns the
/// frames that were refused, that arrived, and that arrived in a foreign name.
fn campaign(seed: u64, is_locked: bool) -> [u64; 3] {
    let mut rng = Rng::from_words(&[seed, 0x5F00F]);
    let stations: &[usize] = if seed % 2 == 0 { &[ATTACKER] } else { &[ATTACKER, BEHIND] };
    let lists: [Option<&[&str]>; 3] = [Some(&["10.0.0.1", "10.0.1.0/24", "2001:db8::1"]), Some(&["10.0.0.1"]), None];
    let addresses = lists[seed as usize % 3];
    let own = guard(stations, addresses);
    let open = Guard { router: true, dhcp_server: true, ..Guard::default() };
    let mut world = World::new(if is_locked { own } else { open }, (seed % 4 == 3).then_some(7));
    let mut receivers: Vec<Receiver> = (0..4).map(|_| Receiver::default()).collect();
    let is_own = |claim: Claim| match claim {
        Claim::Mac(mac) => stations.iter().any(|&n| mac == super::mac(n)),
        Claim::Ip(IpAddr::V4(ip)) => match addresses {
            Some(list) => ip == OWN || list.len() > 1 && ip.octets()[..3] == [10, 0, 1],
            None => true,
        },
        Claim::Ip(IpAddr::V6(ip)) => match addresses {
            Some(list) => list.len() > 1 && ip == OWN_6 || stations.iter().any(|&n| ip == link_local(super::mac(n))),
            None => true,
        },
        Claim::Router | Claim::DhcpServer => false,
    };
    let (mut sent, mut arrived, mut in_foreign_names, mut between) = (0, 0, 0, 0u64);
    for step in 0..60 {
        for _ in 0..rng.below(6) {
            let frame = frames::random(&mut rng);
            let buffer = rng.below(BUFFERS.into()) as u32;
            world.attacker.overwrite(buffer, &frame);
            sent += u64::from(world.attacker.send(buffer, frame.len()));
        }
        // Others talk meanwhile.
        let number = [step; 64];
        let theirs = ethernet(mac(VICTIM), mac(GATEWAY), 0x88B6, &number);
        between += u64::from(world.others[GATEWAY - 1].send(&theirs).unwrap());
        let _ = world.others[GATEWAY - 1].publish();
        for _ in 0..rng.below(4) {
            round_after_pause(&mut world.engine);
            for _ in 0..rng.below(3) {
                let frame = frames::random(&mut rng);
                world.attacker.overwrite(rng.below(BUFFERS.into()) as u32, &frame);
            }
        }
        let last = step == 59;
        for _ in 0..if last { 200 } else { 1 } {
            round_after_pause(&mut world.engine);
            for (k, receiver) in receivers.iter_mut().enumerate().skip(1) {
                if !last && rng.below(3) == 0 {
                    continue;
                }
                for frame in world.received(k) {
                    if frame[12..14] == [0x88, 0xB6] && frame[6..12] == mac(GATEWAY) {
                        assert_eq!(frame, ethernet(mac(VICTIM), mac(GATEWAY), 0x88B6, &[frame[14]; 64]));
                        between -= 1;
                        continue;
                    }
                    arrived += 1;
                    let claims = receiver.claims(&frame);
                    let forged = claims.iter().find(|&&claim| !is_own(claim));
                    assert!(!is_locked || forged.is_none(), "seed {seed}: {forged:?}, port {k} got {frame:02x?}");
                    in_foreign_names += u64::from(forged.is_some());
                }
            }
        }
    }
    assert_eq!(between, 0, "seed {seed}: a frame between others is lost");
    let refused = world.refused(ATTACKER);
    for k in 1..4 {
        let counters = world.engine.report(k).unwrap().counters;
        let without_room = counters.dropped.frames(FloodNoRoom);
        assert_eq!(counters.dropped.total_frames() - without_room, 0, "seed {seed}: {:?}", counters.dropped);
        assert_eq!(counters.refused.total_frames(), 0, "seed {seed}");
    }
    world.engine.ledger();
    assert!(sent > 50, "seed {seed}");
    [refused.total_frames(), arrived, in_foreign_names]
}

#[test]
fn no_forged_frame_reaches_anybody() {
    let sum = |seeds: std::ops::Range<u64>, is_locked: bool| {
        let runs = seeds.map(|seed| campaign(seed, is_locked));
        runs.fold([0; 3], |sums, counts| std::array::from_fn(|i| sums[i] + counts[i]))
    };
    let [refused, arrived, forged] = sum(0..600, true);
    println!("{refused} frames refused, {arrived} arrived, {forged} of them forged");
    assert!(refused > 20_000 && arrived > 5_000 && forged == 0);
    // The same frames from a port without addresses: the oracle finds them.
    let [_, arrived, forged] = sum(0..60, false);
    println!("without a lock {arrived} arrived, {forged} of them forged");
    assert!(forged > 1_000);
}
