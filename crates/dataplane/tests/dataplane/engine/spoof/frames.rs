//! Frames of an attacker: honest, forged in every field, wrapped in everything that hides them, and damaged.

use super::{ATTACKER, BEHIND, FOREIGN, FOREIGN_6, GATEWAY, OWN, OWN_6, OWN_NETWORK, VICTIM};
use crate::engine::mac;
use sluicenet_proto::rng::Rng;
use std::net::{Ipv4Addr, Ipv6Addr};

const NO_6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

fn any<T: Copy>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.below(list.len() as u64) as usize]
}

pub fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

pub fn ipv4(from: Ipv4Addr, protocol: u8, id: u8, flags_and_offset: u16, payload: &[u8]) -> Vec<u8> {
    let (len, [f0, f1]) = ((20 + payload.len()) as u16, flags_and_offset.to_be_bytes());
    let header = [0x45, 0, (len >> 8) as u8, len as u8, 0, id, f0, f1, 64, protocol, 0, 0];
    [&header[..], &from.octets(), &[10, 0, 0, 2], payload].concat()
}

pub fn ipv6(from: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u16;
    let header = [0x60, 0, 0, 0, (len >> 8) as u8, len as u8, next, 255];
    [&header[..], &from.octets(), &Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1).octets(), payload].concat()
}

pub fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len() as u16;
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &len.to_be_bytes(), &[0, 0], payload].concat()
}

pub fn arp(operation: u8, station: [u8; 6], address: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let header = [0, 1, 8, 0, 6, 4, 0, operation];
    [&header[..], &station, &address.octets(), &[0; 6], &target.octets(), &[0; 18]].concat()
}

/// A message of neighbour discovery with a link-layer address in an option.
pub fn neighbour(kind: u8, target: Ipv6Addr, station: Option<[u8; 6]>) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    if kind >= 135 {
        bytes.extend(target.octets());
    }
    bytes.resize([8, 16, 24, 24, 40][usize::from(kind - 133)], 0);
    if let Some(station) = station {
        bytes.extend([if kind == 136 { 2 } else { 1 }, 1]);
        bytes.extend(station);
    }
    bytes
}

pub fn options(next: u8, payload: &[u8]) -> Vec<u8> {
    [&[next, 0, 1, 4, 0, 0, 0, 0], payload].concat()
}

pub fn fragment(next: u8, offset: u16, more: bool, id: u8, payload: &[u8]) -> Vec<u8> {
    let [o0, o1] = (offset | u16::from(more)).to_be_bytes();
    [&[next, 0, o0, o1, 0, 0, 0, id], payload].concat()
}

pub fn tagged(frame: &[u8], kind: u16, vid: u16) -> Vec<u8> {
    [&frame[..12], &kind.to_be_bytes(), &vid.to_be_bytes(), &frame[12..]].concat()
}

pub fn link_local(station: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = station;
    Ipv6Addr::from([0xFE, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
}

/// A frame with random fields, about half of them the attacker's own.
pub fn random(rng: &mut Rng) -> Vec<u8> {
    let to = any(rng, &[mac(VICTIM), mac(GATEWAY), [0xFF; 6], [0x33, 0x33, 0, 0, 0, 1]]);
    let from = any(rng, &[mac(ATTACKER), mac(ATTACKER), mac(ATTACKER), mac(BEHIND), mac(VICTIM), mac(99)]);
    let address = any(rng, &[OWN, OWN, OWN_NETWORK, FOREIGN, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST]);
    let address_6 = any(rng, &[OWN_6, OWN_6, link_local(from), FOREIGN_6, link_local(mac(VICTIM)), NO_6]);
    let id = rng.below(4) as u8;
    let (kind, packet): (u16, Vec<u8>) = match rng.below(10) {
        0 => (0x88B5, vec![0; 46]),
        1 | 2 => {
            let station = any(rng, &[from, from, mac(VICTIM)]);
            let target = any(rng, &[OWN, FOREIGN, Ipv4Addr::UNSPECIFIED]);
            (0x0806, arp(1 + rng.below(3) as u8, station, address, target))
        }
        3..=5 => {
            let (protocol, payload) = transport(rng, false, from);
            let pieces = any(rng, &[0, 0, 0, 0x2000, 0x2001, 0x0001, 0x00B9]);
            (0x0800, ipv4(address, protocol, id, pieces, &payload))
        }
        _ => {
            let (mut next, mut payload) = transport(rng, true, from);
            for _ in 0..any(rng, &[0, 0, 1, 2, 12]) {
                if rng.below(3) == 0 {
                    payload = fragment(next, any(rng, &[0, 0, 0, 8, 1448]), rng.below(2) == 0, id, &payload);
                    next = 44;
                } else {
                    payload = options(next, &payload);
                    next = any(rng, &[0, 43, 60]);
                }
            }
            (0x86DD, ipv6(address_6, next, &payload))
        }
    };
    let mut frame = if rng.below(12) == 0 {
        let organisation = any(rng, &[[0, 0, 0], [0, 0, 0xF8], [0, 0, 0xC]]);
        let snap = [&[0xAA, 0xAA, 3], &organisation[..], &kind.to_be_bytes(), &packet].concat();
        ethernet(to, from, packet.len() as u16 + 8, &snap)
    } else {
        ethernet(to, from, kind, &packet)
    };
    for _ in 0..any(rng, &[0, 0, 0, 1, 2, 4]) {
        frame = tagged(&frame, any(rng, &[0x8100, 0x8100, 0x88A8, 0x9100, 0x22E9]), any(rng, &[0, 0, 0x6000, 5]));
    }
    if rng.below(8) == 0 {
        for _ in 0..1 + rng.below(3) {
            let at = 12 + rng.below(frame.len() as u64 - 12) as usize;
            frame[at] = rng.next_u64() as u8;
        }
    }
    if rng.below(12) == 0 {
        frame.truncate(14 + rng.below(frame.len() as u64 - 14) as usize);
    }
    frame.truncate(1_514);
    frame
}

/// The protocol of a payload, and the payload.
fn transport(rng: &mut Rng, is_v6: bool, from: [u8; 6]) -> (u8, Vec<u8>) {
    let ports =
        any(rng, &[[4000, 4000], [68, 67], [67, 68], [4000, 68], [546, 547], [547, 546], [4000, 546], [4000, 4789]]);
    let inner = ethernet(mac(VICTIM), mac(GATEWAY), 0x0806, &arp(2, mac(ATTACKER), FOREIGN, OWN));
    let vxlan = [&[8, 0, 0, 0, 0, 0, 5, 0], &inner[..]].concat();
    match rng.below(4) {
        0 => (6, vec![0x50; 20]),
        1 if is_v6 || rng.below(2) == 0 => {
            (17, udp(ports[0], ports[1], if ports[1] == 4789 { &vxlan } else { &[1; 8] }))
        }
        1 => (1, vec![any(rng, &[5, 8]), 0, 0, 0, 0, 0, 0, 0]),
        _ if is_v6 => {
            let target = any(rng, &[OWN_6, link_local(from), FOREIGN_6]);
            let station = any(rng, &[None, Some(from), Some(from), Some(mac(VICTIM))]);
            let kind = any(rng, &[133, 134, 135, 135, 136, 136, 137]);
            (58, neighbour(kind, target, station))
        }
        _ => (2, vec![0x16; 8]),
    }
}
