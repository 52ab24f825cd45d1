//! Programs that report which datagrams they admit, and senders that wait for a full socket.

use super::*;
use sluicenet_dataplane::shm::FULL_MAX;
use sluicenet_node::vale::Action;
use sluicenet_proto::loss::DropReason;

/// A UDP datagram to a port, as short as may be.
fn datagram(from: usize, to: usize, udp_port: u16) -> Vec<u8> {
    let mut bytes = [&mac(to)[..], &mac(from), &[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
    bytes.extend([10, 0, 0, from as u8, 10, 0, 0, to as u8, 0, 9]);
    bytes.extend(udp_port.to_be_bytes());
    bytes.extend([0, 8, 0, 0]);
    bytes.resize(60, 0);
    bytes
}

/// The UDP ports and numbers of a program's datagrams.
fn datagrams(client: &mut Client) -> Vec<(u16, u64)> {
    let (mut got, mut bytes) = (Vec::new(), [0; 64]);
    while client.receive(&mut bytes).unwrap().is_some() {
        got.push((u16::from_be_bytes([bytes[36], bytes[37]]), u64::from_le_bytes(bytes[44..52].try_into().unwrap())));
    }
    let _ = client.publish();
    got
}
fn numbered(from: usize, to: usize, udp_port: u16, number: u64) -> Vec<u8> {
    let mut bytes = datagram(from, to, udp_port);
    bytes[44..52].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn a_datagram_to_a_full_socket_waits_and_nothing_else_does() {
    let (mut engine, mut clients) = switch(3, 64, patient());
    let [a, b, c] = &mut clients[..] else { panic!() };
    let ports = |client: &mut Client| datagrams(client).into_iter().map(|(port, _)| port).collect::<Vec<u16>>();
    let full: Vec<u16> = (100..100 + FULL_MAX as u16).collect();
    c.set_full(&full);
    for port in [1, 163, 2] {
        assert!(a.send(&datagram(0, 2, port)).unwrap());
    }
    assert!(b.send(&datagram(1, 2, 3)).unwrap() && b.send(&datagram(1, 2, 164)).unwrap());
    let (_, _) = (a.publish(), b.publish());
    for _ in 0..10 {
        engine.round();
    }
    assert_eq!(ports(c), [1, 2, 3, 164]);
    let report = engine.report(0).unwrap();
    assert_eq!((report.waits_for, report.lent, report.input[0], engine.queued()), ([2].into_iter().collect(), 1, 1, 1));
    c.set_full(&full[..63]);
    engine.round();
    assert_eq!(ports(c), [163]);
    assert_eq!((engine.ledger(), engine.queued()), ((5, 5, 0), 0));
}

#[test]
fn who_sends_to_one_that_admits_nothing_reaches_another_one() {
    let (mut engine, mut clients) = switch(4, 64, patient());
    clients[2].set_full(&[7]);
    let (mut sent, mut got) = ([0; 2], Vec::new());
    // As many datagrams as one socket may keep waiting, of 32, and any number to the other socket.
    for turn in 0..2_000 {
        if sent[0] < 12 && turn % 2 == 0 {
            assert!(clients[0].send(&numbered(0, 2, 7, sent[0])).unwrap());
            sent[0] += 1;
        }
        assert!(clients[0].send(&numbered(0, 3, 7, sent[1])).unwrap(), "nothing is in its way");
        sent[1] += 1;
        let _ = clients[0].publish();
        engine.round();
        got.extend(datagrams(&mut clients[3]));
    }
    assert_eq!(got, (0..2_000).map(|number| (7, number)).collect::<Vec<_>>());
    assert_eq!((engine.queued(), engine.report(0).unwrap().lent), (12, 12));
    // One more datagram waits as the next frame of the port, and so does the frame behind it.
    assert!(clients[0].send(&numbered(0, 2, 7, 12)).unwrap() && clients[0].send(&numbered(0, 3, 7, 2_000)).unwrap());
    // A port that has sent nothing so far has places of its own.
    assert!(clients[1].send(&numbered(1, 2, 7, 100)).unwrap());
    let _ = (clients[0].publish(), clients[1].publish());
    for _ in 0..10 {
        engine.round();
    }
    assert_eq!((datagrams(&mut clients[3]), datagrams(&mut clients[2])), (vec![], vec![]));
    assert_eq!((engine.queued(), engine.report(0).unwrap().counters.held_back), (13, 1));
    clients[2].set_full(&[]);
    for _ in 0..10 {
        engine.round();
    }
    let (mine, others): (Vec<_>, Vec<_>) = datagrams(&mut clients[2]).into_iter().partition(|&(_, n)| n < 100);
    assert_eq!((mine, others), ((0..13).map(|number| (7, number)).collect(), vec![(7, 100)]));
    assert_eq!(datagrams(&mut clients[3]), [(7, 2_000)]);
    assert_eq!((engine.ledger(), engine.queued()), ((2_015, 2_015, 0), 0));
}

#[test]
fn lines_end_with_their_receiver_and_not_with_their_sender() {
    for receiver_leaves in [true, false] {
        let (mut engine, mut clients) = switch(3, 64, patient());
        clients[2].set_full(&[7]);
        for number in 0..5 {
            assert!(clients[0].send(&numbered(0, 2, 7, number)).unwrap());
        }
        let _ = clients[0].publish();
        engine.round();
        assert_eq!((engine.ledger(), engine.queued()), ((5, 0, 0), 5));
        if receiver_leaves {
            engine.unplug(2);
            assert_eq!((engine.ledger(), engine.queued()), ((5, 0, 5), 0));
            assert_eq!(engine.gone().dropped.frames(DropReason::PortGone), 5);
            assert_eq!((clients[0].sendable(32).unwrap(), engine.report(0).unwrap().lent), (27, 0), "not shown yet");
            engine.round();
            assert_eq!(clients[0].sendable(32).unwrap(), 32);
        } else {
            engine.unplug(0);
            engine.round();
            assert!(!engine.report(0).unwrap().present && engine.queued() == 5);
            clients[2].set_full(&[]);
            engine.round();
            engine.round();
            assert_eq!(datagrams(&mut clients[2]), (0..5).map(|number| (7, number)).collect::<Vec<_>>());
            assert!(engine.report(0).is_none());
            assert_eq!((engine.ledger(), engine.queued()), ((5, 5, 0), 0));
        }
    }
}

#[test]
fn a_socket_that_stays_full_is_not_believed_for_ever() {
    let config = ValeConfig { watchdog: quick(Duration::from_ms(20)), ..ValeConfig::default() };
    let (mut engine, mut clients) = switch(2, 64, config);
    let [a, b] = &mut clients[..] else { panic!() };
    b.set_full(&[7]);
    assert!(a.send(&datagram(0, 1, 7)).unwrap());
    let _ = a.publish();
    engine.round();
    assert_eq!(b.receive(&mut [0; 64]), Ok(None));
    let start = std::time::Instant::now();
    while b.receive(&mut [0; 64]) == Ok(None) {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "held back for ever");
        engine.round();
    }
    assert!(start.elapsed() >= std::time::Duration::from_millis(15));
}

#[test]
fn a_full_socket_is_waited_for_where_the_watchdog_does_not_drop() {
    for (action, stuck) in [(Action::Alert, 1), (Action::Off, 0)] {
        let config =
            ValeConfig { watchdog: WatchdogConfig { action, ..quick(Duration::from_ms(1)) }, ..ValeConfig::default() };
        let (mut engine, mut clients) = switch(2, 64, config);
        let [a, b] = &mut clients[..] else { panic!() };
        b.set_full(&[7]);
        assert!(a.send(&datagram(0, 1, 7)).unwrap());
        let _ = a.publish();
        let own = |engine: &Engine| engine.report(1).unwrap().own;
        let start = std::time::Instant::now();
        // Many times the detection time, and until it was found stuck, where it is to be.
        while start.elapsed().as_millis() < 30 || own(&engine)[1] != ("sockets_stuck", stuck) {
            assert!(start.elapsed().as_secs() < 60, "{action:?}: {:?}", own(&engine));
            engine.round();
            assert_eq!(b.receive(&mut [0; 64]), Ok(None), "{action:?}");
        }
        let now = ("sockets_stuck_now", stuck);
        assert_eq!(own(&engine)[1..], [("sockets_stuck", stuck), now, ("sockets_ignored", 0)]);
        // A switch that may drop meanwhile drops, and a program that reads gets the datagrams.
        if action == Action::Alert {
            b.set_full(&[]);
        } else {
            engine.set_watchdog(quick(Duration::from_ms(1)));
        }
        while b.receive(&mut [0; 64]) == Ok(None) {
            assert!(start.elapsed().as_secs() < 60, "held back for ever");
            engine.round();
        }
    }
}
