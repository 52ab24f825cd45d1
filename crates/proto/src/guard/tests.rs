//! Frames of an endpoint with two MAC addresses, an IPv4 address, and an IPv4 and an IPv6 prefix.

use super::*;
use alloc::vec;
use alloc::vec::Vec;

const ME: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MY_OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const MY_IP: [u8; 4] = [10, 0, 0, 1];
const MY_NETWORK: [u8; 4] = [10, 0, 1, 77];
const FOREIGN_IP: [u8; 4] = [10, 0, 0, 9];
const NO_IP: [u8; 4] = [0; 4];

fn guard() -> Guard {
    let addresses = ["10.0.0.1", "10.0.1.0/24", "2001:db8::/64"].map(|text| text.parse().unwrap());
    Guard { macs: vec![MacAddress(ME), MacAddress(MY_OTHER)], addresses: Some(addresses.to_vec()), ..Guard::default() }
}

fn mine() -> Ipv6Addr {
    "2001:db8::1".parse().unwrap()
}
fn foreign() -> Ipv6Addr {
    "2001:db8:0:1::9".parse().unwrap()
}
fn nobody() -> Ipv6Addr {
    Ipv6Addr::UNSPECIFIED
}

/// A frame to everybody with this type and payload.
fn frame(from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xFF; 6], &from[..], &kind.to_be_bytes(), payload].concat()
}

/// The frame behind more tags.
fn tagged(frame: &[u8], tags: &[u16]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|kind| [(kind >> 8) as u8, *kind as u8, 0, 0]).collect::<Vec<_>>();
    [&frame[..12], &tags, &frame[12..]].concat()
}

fn ipv4(source: [u8; 4], protocol: u8, flags_and_offset: u16, payload: &[u8]) -> Vec<u8> {
    let [f0, f1] = flags_and_offset.to_be_bytes();
    let len = 20 + payload.len() as u8;
    let header = [0x45, 0, 0, len, 0, 9, f0, f1, 64, protocol, 0, 0];
    frame(ME, 0x0800, &[&header, &source[..], &[255; 4], payload].concat())
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 12, 0, 0, 1, 2, 3, 4]].concat()
}

fn arp(operation: u8, mac: [u8; 6], ip: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    frame(ME, 0x0806, &[&[0, 1, 8, 0, 6, 4, 0, operation], &mac[..], &ip, &[0; 6], &target, &[0; 18]].concat())
}

fn ipv6(source: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 40];
    ipv6::Repr {
        source,
        destination: "ff02::1".parse().unwrap(),
        traffic_class: 0,
        flow_label: 0,
        next_header,
        hop_limit: 255,
        payload_len: payload.len() as u16,
    }
    .emit(&mut header);
    frame(ME, 0x86DD, &[&header, payload].concat())
}

/// The payload of a fragment whose first header is `next_header`.
fn fragment(next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let [o0, o1] = (offset | u16::from(more)).to_be_bytes();
    [&[next_header, 0, o0, o1, 0, 0, 0, 7], payload].concat()
}

/// Options in front of a header of this type.
fn options(next_header: u8, payload: &[u8]) -> Vec<u8> {
    [&[next_header, 0, 1, 4, 0, 0, 0, 0], payload].concat()
}

/// A message of neighbour discovery, with a link-layer address as its option.
fn ndp(icmp_type: u8, target: Option<Ipv6Addr>, mac: Option<[u8; 6]>) -> Vec<u8> {
    let mut bytes = vec![icmp_type, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(target.iter().flat_map(Ipv6Addr::octets));
    bytes.resize([8, 16, 24, 24, 40][usize::from(icmp_type) - 133], 0);
    bytes.extend(mac.iter().flat_map(|mac| [[1 + icmp_type % 2, 1].as_slice(), mac].concat()));
    bytes
}

#[track_caller]
fn check(guard: &Guard, frame: &[u8], expected: Result<(), DropReason>) {
    let verdict = |head: &[u8]| guard.check(head).map(|checked| assert!(checked.len >= 14));
    for tags in [&[][..], &[0x8100], &[0x88A8, 0x8100], &[0x8100, 0x8100, 0x8100], &[0x9100], &[0x22E9]] {
        let frame = tagged(frame, tags);
        assert_eq!(verdict(&frame[..frame.len().min(HEAD_LEN)]), expected, "behind {tags:x?}");
        // Fewer bytes never allow what all of them forbid.
        for len in 0..frame.len().min(HEAD_LEN) {
            let found = verdict(&frame[..len]);
            assert!(found == Err(Malformed) || found == expected, "{len} bytes: {found:?}");
        }
    }
}

#[test]
fn only_listed_stations_send() {
    let guard = guard();
    for (from, expected) in [(ME, Ok(())), (MY_OTHER, Ok(())), (OTHER, Err(ForgedSource))] {
        check(&guard, &frame(from, 0x88B5, &[0; 46]), expected);
    }
    check(&Guard::default(), &frame(OTHER, 0x88B5, &[0; 46]), Ok(()));
}

#[test]
fn ipv4_comes_from_listed_addresses() {
    let guard = guard();
    let whole = udp(4000, 4000);
    for (source, flags, expected) in [
        (MY_IP, 0, Ok(())),
        (MY_NETWORK, 0, Ok(())),
        (FOREIGN_IP, 0, Err(ForgedIp)),
        (FOREIGN_IP, 0x2000, Err(ForgedIp)),
        (FOREIGN_IP, 0x00B9, Err(ForgedIp)),
        (MY_IP, 0x20B9, Ok(())),
        (NO_IP, 0, Err(ForgedIp)),
        ([255; 4], 0, Err(ForgedIp)),
    ] {
        check(&guard, &ipv4(source, 17, flags, &whole), expected);
    }
    // DHCP and IGMP of a station without an address.
    check(&guard, &ipv4(NO_IP, 17, 0, &udp(68, 67)), Ok(()));
    check(&guard, &ipv4(NO_IP, 17, 0x00B9, &udp(68, 67)), Err(ForgedIp));
    check(&guard, &ipv4(NO_IP, 2, 0, &[0x22; 8]), Ok(()));
    check(&guard, &ipv4(NO_IP, 6, 0, &[0; 20]), Err(ForgedIp));
    let mut lies = ipv4(MY_IP, 17, 0, &whole);
    for first in [0x44, 0x65] {
        lies[14] = first;
        check(&guard, &lies, Err(Malformed));
    }
    let anything = Guard { addresses: None, ..guard };
    check(&anything, &ipv4(FOREIGN_IP, 17, 0, &whole), Ok(()));
}

#[test]
fn arp_speaks_for_the_endpoint_alone() {
    let guard = guard();
    for (operation, mac, ip, target, expected) in [
        (1, ME, MY_IP, FOREIGN_IP, Ok(())),
        (2, ME, MY_NETWORK, FOREIGN_IP, Ok(())),
        (2, MY_OTHER, MY_IP, FOREIGN_IP, Ok(())),
        (2, OTHER, MY_IP, FOREIGN_IP, Err(ForgedArp)),
        (1, ME, FOREIGN_IP, FOREIGN_IP, Err(ForgedArp)),
        (2, ME, FOREIGN_IP, MY_IP, Err(ForgedArp)),
        (1, ME, NO_IP, MY_IP, Ok(())),
        (1, ME, NO_IP, FOREIGN_IP, Err(ForgedArp)),
        (2, ME, NO_IP, MY_IP, Err(ForgedArp)),
        (3, ME, MY_IP, MY_IP, Err(Malformed)),
    ] {
        check(&guard, &arp(operation, mac, ip, target), expected);
    }
    // Without listed IP addresses, ARP still names the sender of its frame.
    let anything = Guard { addresses: None, macs: vec![], ..guard };
    check(&anything, &arp(2, ME, FOREIGN_IP, MY_IP), Ok(()));
    check(&anything, &arp(2, OTHER, FOREIGN_IP, MY_IP), Err(ForgedArp));
}

#[test]
fn ipv6_comes_from_listed_addresses_and_the_link_local_one() {
    let guard = guard();
    let whole = udp(4000, 4000);
    let own = link_local(MacAddress(ME));
    assert_eq!(own, "fe80::ff:fe00:1".parse::<Ipv6Addr>().unwrap());
    for (source, expected) in [
        (mine(), Ok(())),
        (own, Ok(())),
        (link_local(MacAddress(OTHER)), Err(ForgedIp)),
        (foreign(), Err(ForgedIp)),
        (nobody(), Err(ForgedIp)),
    ] {
        check(&guard, &ipv6(source, 17, &whole), expected);
        check(&guard, &ipv6(source, 0, &options(17, &whole)), expected);
        check(&guard, &ipv6(source, 44, &fragment(17, 0, true, &whole)), expected);
        check(&guard, &ipv6(source, 44, &fragment(17, 1448, false, &whole)), expected);
        check(&guard, &ipv6(source, 59, &[]), expected);
    }
    let four = Guard { addresses: Some(vec!["10.0.0.1".parse().unwrap()]), ..guard.clone() };
    check(&four, &ipv6(mine(), 17, &whole), Err(ForgedIp));
    // Membership reports come before the first address.
    check(&guard, &ipv6(nobody(), 0, &options(58, &[143, 0, 0, 0, 0, 0, 0, 0])), Ok(()));
    check(&guard, &ipv6(nobody(), 58, &[128, 0, 0, 0, 0, 0, 0, 0]), Err(ForgedIp));
    // Headers that are not in the first bytes: RFC 7112.
    let long = (0..14).fold(whole, |payload, n| options(if n == 0 { 17 } else { 60 }, &payload));
    check(&guard, &ipv6(mine(), 60, &long), Err(Malformed));
}

#[test]
fn neighbour_discovery_speaks_for_the_endpoint_alone() {
    let guard = guard();
    let own = link_local(MacAddress(ME));
    for (source, icmp_type, target, mac, expected) in [
        (mine(), 133, None, Some(ME), Ok(())),
        (nobody(), 133, None, None, Ok(())),
        (mine(), 133, None, Some(OTHER), Err(ForgedNd)),
        (mine(), 135, Some(foreign()), Some(ME), Ok(())),
        (mine(), 135, Some(foreign()), Some(OTHER), Err(ForgedNd)),
        (foreign(), 135, Some(foreign()), Some(ME), Err(ForgedIp)),
        (nobody(), 135, Some(mine()), None, Ok(())),
        (nobody(), 135, Some(own), None, Ok(())),
        (nobody(), 135, Some(foreign()), None, Err(ForgedNd)),
        (nobody(), 136, Some(mine()), Some(ME), Err(ForgedIp)),
        (mine(), 136, Some(mine()), Some(ME), Ok(())),
        (own, 136, Some(own), Some(MY_OTHER), Ok(())),
        (own, 136, Some(foreign()), Some(ME), Err(ForgedNd)),
        (own, 136, Some(mine()), Some(OTHER), Err(ForgedNd)),
        (own, 134, None, Some(ME), Err(ForgedRa)),
        (own, 137, Some(mine()), None, Err(ForgedRa)),
    ] {
        let message = ndp(icmp_type, target, mac);
        check(&guard, &ipv6(source, 58, &message), expected);
        // Behind other headers, and in fragments, as in RFC 7113.
        check(&guard, &ipv6(source, 60, &options(58, &message)), expected);
        let in_fragment = match expected {
            Ok(()) if source.is_unspecified() => Err(ForgedIp),
            Ok(()) => Err(ForgedNd),
            Err(_) if source.is_unspecified() => Err(ForgedIp),
            Err(ForgedRa | ForgedIp) => expected,
            Err(_) => Err(ForgedNd),
        };
        for more in [false, true] {
            check(&guard, &ipv6(source, 44, &fragment(58, 0, more, &message)), in_fragment);
        }
        if in_fragment != Err(ForgedIp) {
            check(&guard, &ipv6(source, 44, &fragment(60, 0, true, &options(58, &message))), Err(Malformed));
            check(&guard, &ipv6(source, 44, &fragment(44, 0, true, &fragment(58, 0, true, &message))), Err(Malformed));
        }
    }
    let mut cut = ipv6(mine(), 58, &ndp(136, Some(mine()), Some(ME)));
    cut.pop();
    check(&guard, &cut, Err(Malformed));
    let no_end = [ndp(136, Some(mine()), None), vec![2, 0, 0, 0, 0, 0, 0, 0]].concat();
    check(&guard, &ipv6(mine(), 58, &no_end), Err(Malformed));
}

#[test]
fn routers_and_dhcp_servers_say_so() {
    let guard = guard();
    let (router, server) = (Guard { router: true, ..guard.clone() }, Guard { dhcp_server: true, ..guard.clone() });
    let own = link_local(MacAddress(ME));
    let advertisement = ipv6(own, 58, &ndp(134, None, None));
    let redirect = ipv6(own, 58, &ndp(137, Some(mine()), None));
    for (frame, reason) in [
        (advertisement, ForgedRa),
        (redirect, ForgedRa),
        (ipv4(MY_IP, 1, 0, &[5, 1, 0, 0, 0, 0, 0, 0]), ForgedRa),
        (ipv4(MY_IP, 17, 0, &udp(67, 68)), ForgedDhcp),
        (ipv4(MY_IP, 17, 0x2000, &udp(67, 67)), ForgedDhcp),
        // Some clients take an offer from any port.
        (ipv4(MY_IP, 17, 0, &udp(4000, 68)), ForgedDhcp),
        (ipv6(own, 17, &udp(547, 546)), ForgedDhcp),
        (ipv6(own, 44, &fragment(17, 0, true, &udp(4000, 546))), ForgedDhcp),
    ] {
        check(&guard, &frame, Err(reason));
        check(&router, &frame, if reason == ForgedRa { Ok(()) } else { Err(reason) });
        check(&server, &frame, if reason == ForgedDhcp { Ok(()) } else { Err(reason) });
    }
    // A router's own link-layer address, and fragments, stay checked.
    let forged = ipv6(own, 58, &[&ndp(134, None, None)[..], &[1, 1], &OTHER].concat());
    check(&router, &forged, Err(ForgedNd));
    check(&router, &ipv6(own, 44, &fragment(58, 0, false, &ndp(134, None, None))), Err(ForgedNd));
    for frame in
        [ipv4(MY_IP, 1, 0, &[8, 0, 0, 0, 0, 0, 0, 0]), ipv4(MY_IP, 17, 0, &udp(68, 67)), ipv6(own, 17, &udp(546, 547))]
    {
        check(&guard, &frame, Ok(()));
    }
    // A fragment without the start of its header: another one could have it.
    check(&guard, &ipv4(MY_IP, 17, 0x2000, &[]), Err(Malformed));
}

#[test]
fn ip_in_802_2_frames_is_refused() {
    let guard = guard();
    for (llc, expected) in [
        (&[0xAA, 0xAA, 3, 0, 0, 0, 8, 0][..], Err(Malformed)),
        (&[0xAB, 0xAA, 3, 0, 0, 0xF8, 0x86, 0xDD], Err(Malformed)),
        (&[0x06, 0x06, 3], Err(Malformed)),
        (&[0x98, 0x98, 3], Err(Malformed)),
        // Spanning tree, and Cisco's discovery.
        (&[0x42, 0x42, 3], Ok(())),
        (&[0xAA, 0xAA, 3, 0, 0, 0xC, 0x20, 0], Ok(())),
    ] {
        check(&guard, &frame(ME, 100, &[llc, &[0; 46]].concat()), expected);
    }
}

#[test]
fn work_that_is_left_on_a_frame_changes_nothing_that_was_checked() {
    let guard = guard();
    let allows = |frame: &[u8], start: usize, offset: usize, is_cut| {
        guard.check(&frame[..frame.len().min(HEAD_LEN)]).unwrap().allows_work((start, offset), is_cut)
    };
    let tcp = ipv4(MY_IP, 6, 0, &[0x50; 40]);
    let datagram = ipv4(MY_IP, 17, 0, &udp(4000, 4000));
    let behind_options = ipv6(mine(), 60, &options(6, &[0x50; 40]));
    let advertisement = ipv6(mine(), 58, &ndp(136, Some(mine()), Some(ME)));
    for (name, frame, start, offset, checksum, cut) in [
        ("TCP", &tcp, 34, 16, true, true),
        ("TCP, at the source address", &tcp, 14, 12, false, false),
        ("TCP, at the type", &tagged(&tcp, &[0x8100]), 14, 2, false, false),
        ("TCP, with another header", &tcp, 38, 16, true, false),
        ("TCP behind a tag", &tagged(&tcp, &[0x8100]), 38, 16, true, true),
        ("UDP", &datagram, 34, 6, true, false),
        ("UDP, at the ports", &datagram, 34, 0, false, false),
        ("UDP, inside a tunnel", &datagram, 60, 16, true, false),
        ("TCP behind options", &behind_options, 62, 16, true, true),
        ("TCP behind options, cut at the options", &behind_options, 54, 16, true, false),
        ("ND, at the target", &advertisement, 54, 8, false, false),
        ("ND, as TCP", &advertisement, 86, 16, true, false),
        ("ARP", &arp(2, ME, MY_IP, MY_IP), 14, 14, false, false),
    ] {
        assert_eq!(
            (allows(frame, start, offset, false), allows(frame, start, offset, true)),
            (checksum, cut),
            "{name}"
        );
    }
}
