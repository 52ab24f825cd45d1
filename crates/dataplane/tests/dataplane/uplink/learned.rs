//! Machines that no file names make themselves known to the overlay, and take nothing from those that are named.

use super::*;

fn announcement(from: usize, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = request(from, from);
    let message = arp::Repr {
        operation: Operation::Request,
        sender_mac: mac(from),
        sender_ip: address,
        target_mac: MacAddress::default(),
        target_ip: if address.is_unspecified() { ip(1) } else { address },
    };
    message.emit(&mut frame[14..]);
    frame
}

/// Two servers: stations 1 and 2 of the first are named; at the second one, port 0 is anybody's, and port 1 is station 4's, whose address
/// its file does not say.
fn servers(address: &impl Fn(u8) -> Ipv4Addr) -> [Server; 2] {
    let (a, b) = Local::pair().unwrap();
    let mut servers = [overlay(1, a, address), overlay(2, b, address)];
    for (k, station) in [(0, 3), (1, 4)] {
        let engine = &mut servers[1].engine;
        engine.announce(DOMAIN, mac(station).0, ip(station), false);
        engine.forget(k);
        engine.set_access(k, Access { guard: None, ..access(station) });
    }
    assert!(servers[1].engine.give(mac(4).0, DOMAIN, 1));
    servers
}

/// Who is told to have an address, if anybody is.
fn who_has(servers: &mut [Server; 2], address: usize) -> Option<MacAddress> {
    // Who is not known is asked for at the other server.
    let asked = |server: &Server| server.own("group_sent") + server.own("group_limited");
    let before = asked(&servers[0]);
    while servers[0].receive(0).is_some() {}
    assert!(servers[0].send(0, &request(1, address)));
    let mut told = None;
    until(servers, |[a, _]| {
        // Its neighbour hears the question, too.
        while a.receive(1).is_some() {}
        while let Some(reply) = a.receive(0) {
            if reply[..6] == mac(1).0 {
                told = Some(arp::Repr::parse(&reply[14..]).unwrap().0.sender_mac);
            }
        }
        told.is_some() || asked(a) > before
    });
    told
}

/// Asks until somebody has it: who is not known is not asked about again for a second.
fn until_has(servers: &mut [Server; 2], address: usize, station: usize) {
    let start = Instant::now();
    while who_has(servers, address) != Some(mac(station)) {
        assert!(start.elapsed().as_secs() < 60, "nobody has {}", ip(address));
    }
}

#[test]
fn a_machine_that_announces_itself_is_found_before_it_sends_anything_else() {
    let address = network();
    let mut controller = controller(&address);
    let mut servers = servers(&address);
    assert_eq!(servers[1].engine.mtu(), Some(1446), "what goes through the tunnel");
    assert_eq!(who_has(&mut servers, 3), None);
    servers[1].send(0, &announcement(3, ip(3)));
    until_has(&mut servers, 3, 3);
    servers[0].send(0, &frame(1, 3, 11, 100));
    until(&mut servers, |[_, b]| b.number(0) == Some(11));
    servers[1].send(0, &frame(3, 1, 12, 100));
    until(&mut servers, |[a, _]| a.number(0) == Some(12));
    // One that has given its address up to nobody, as a process more of a machine, may send, and is sent to by who heard of it.
    servers[1].send(1, &announcement(4, Ipv4Addr::UNSPECIFIED));
    servers[1].send(1, &frame(4, 1, 13, 100));
    until(&mut servers, |[a, _]| a.number(0) == Some(13));
    servers[0].send(0, &frame(1, 4, 14, 100));
    until(&mut servers, |[_, b]| b.number(1) == Some(14));
    assert_eq!(who_has(&mut servers, 4), None);
    // It says its address after all.
    let mut said = Instant::now();
    servers[1].send(1, &announcement(4, ip(4)));
    while who_has(&mut servers, 4) != Some(mac(4)) {
        // Once a second it is heard.
        if said.elapsed().as_millis() > 1_100 {
            said = Instant::now();
            servers[1].send(1, &announcement(4, ip(4)));
        }
    }
    // Who goes away is nowhere.
    servers[1].engine.unplug(0);
    let start = Instant::now();
    while who_has(&mut servers, 3).is_some() {
        assert!(start.elapsed().as_secs() < 60, "it is still there");
    }
    for server in &servers {
        server.engine.ledger();
    }
    assert_eq!(controller.stop(), 3, "two of the first server, and one");
}

#[test]
fn a_machine_that_announces_another_ones_station_or_address_does_not_get_it() {
    let address = network();
    let mut controller = controller(&address);
    let mut servers = servers(&address);
    // Station 1 is registered: it may send.
    servers[0].send(0, &request(1, 9));
    until(&mut servers, |[a, _]| a.own("group_sent") == 1);
    servers[1].send(0, &announcement(3, ip(3)));
    until_has(&mut servers, 3, 3);
    let forged = |servers: &[Server; 2]| servers[1].own("forged_source");
    // A port that is one station's speaks for no other.
    servers[1].send(1, &announcement(5, ip(5)));
    servers[1].send(1, &frame(5, 1, 1, 100));
    until(&mut servers, |servers| forged(servers) == 2);
    assert_eq!(who_has(&mut servers, 5), None);
    // One that is anybody's does not get the station or the address of somebody on another server.
    for (station, address) in [(2, 77), (6, 2)] {
        let lost = servers[1].own("stations_lost");
        servers[1].send(0, &announcement(station, ip(address)));
        until(&mut servers, |[_, b]| b.own("stations_lost") == lost + 1);
    }
    servers[1].send(0, &frame(6, 1, 2, 100));
    until(&mut servers, |servers| forged(servers) == 3);
    // Nor what a file gives to another port here, or in the name of others, or an address of nobody.
    servers[1].engine.set_access(1, access(4));
    for frame in [
        announcement(7, ip(4)),
        announcement(7, Ipv4Addr::BROADCAST),
        announcement(7, Ipv4Addr::new(224, 0, 0, 1)),
        [&announcement(7, ip(7))[..6], &mac(8).0, &announcement(7, ip(7))[12..]].concat(),
        announcement(7, ip(7))[..40].to_vec(),
    ] {
        servers[1].send(0, &frame);
    }
    until(&mut servers, |servers| forged(servers) >= 7);
    assert_eq!((who_has(&mut servers, 7), who_has(&mut servers, 77)), (None, None));
    assert_eq!(who_has(&mut servers, 3), Some(mac(3)));
    // But one to which a file gives the same address is a process more of that machine.
    assert_eq!(who_has(&mut servers, 8), None);
    for k in [0, 1] {
        servers[1].engine.set_access(k, Access { guard: Some(from_ip(ip(8).octets())), ..access(4) });
    }
    servers[1].send(0, &announcement(8, ip(8)));
    until_has(&mut servers, 8, 8);
    servers[1].engine.set_access(0, Access { guard: None, ..access(3) });
    // One that invents stations has some, and no more.
    for station in 100..200 {
        servers[1].send(0, &announcement(station, ip(station)));
        servers[1].engine.round();
    }
    let start = Instant::now();
    until(&mut servers, |_| start.elapsed().as_millis() > 300);
    let stations = controller.stop();
    assert!((4 + 2..=2 + 16).contains(&stations), "{stations}");
}
