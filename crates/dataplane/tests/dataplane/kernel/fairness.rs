//! Fair shares: senders share the room for fragments, traffic classes share a slow socket, and sockets share their device's
//! queue. Frames for no socket are counted.

use crate::kernel::harness::{Running, possible, receive_all, send_all, valves_at, wait_for};
use sluicenet_dataplane::engine::Access;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_dataplane::kernel::valve::ValveConfig;
use sluicenet_node::vale::WatchdogConfig;
use sluicenet_proto::frame::PrioritySet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

fn config() -> ValveConfig {
    ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() }
}

fn sender(switch: &Running, i: usize, to: usize, payload: usize) -> Sender {
    Sender::new(switch.lan().tenant(i), i as u16, Lan::socket(to, 7000), payload).unwrap()
}

fn sink(switch: &Running, i: usize, payload: usize) -> Sink {
    Sink::bind(switch.lan().tenant(i), Lan::socket(i, 7000), payload, 4).unwrap()
}

/// A UDP datagram of 8 bytes from tenant `from` to a station and an address; the first fragment of a longer one where `more`
/// is so.
fn datagram(from: usize, station: [u8; 6], to: Ipv4Addr, id: u16, more: bool) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 36, 0, 0, if more { 0x20 } else { 0 }, 0, 64, 17, 0, 0];
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip.extend(Lan::address(from).octets());
    ip.extend(to.octets());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes());
    let udp = [0x27, 0x0f, (7000u16 >> 8) as u8, 7000u16 as u8, 0, if more { 96 } else { 16 }, 0, 0];
    [&station[..], &Lan::mac(from), &[8, 0], &ip, &udp, &[7; 8]].concat()
}

fn send_frame(device: &mut PacketDevice, frame: &[u8]) {
    while !device.send(frame) {
        device.flush().unwrap();
    }
    device.flush().unwrap();
}

/// Tenant 3 sends tenant 2 first fragments and nothing else, as fast as it can; tenant 0 sends datagrams in fragments to that
/// one and whole ones to another.
#[test]
fn fragments_without_a_rest_cost_nobody_else_anything() {
    if !possible() {
        return;
    }
    let switch = Running::valves("orphans", 4, config());
    let stop = AtomicBool::new(false);
    let (fragments, others) = (2_000, 20_000);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut device = PacketDevice::open(switch.lan().tenant(3), DEVICE, 256).unwrap();
            let mut sent = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let frame = datagram(3, Lan::mac(2), Lan::address(2), sent as u16, true);
                send_frame(&mut device, &frame);
                sent += 1;
            }
            sent
        });
        wait_for(|| switch.counter(2, "stray_fragments") > 1_000);
        let (to_c, to_b) = (sink(&switch, 2, 8_000), sink(&switch, 1, 1_000));
        let (of_c, of_b) = (sender(&switch, 0, 2, 8_000), sender(&switch, 0, 1, 1_000));
        let started = std::time::Instant::now();
        scope.spawn(|| send_all(of_c, fragments));
        scope.spawn(|| send_all(of_b, others));
        let at_b = scope.spawn(move || (receive_all(to_b, others, |_| {}), started.elapsed()));
        let (at_c, took) = (receive_all(to_c, fragments, |_| {}), started.elapsed());
        let (at_b, took_b) = at_b.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        let flooded = flood.join().unwrap();
        println!(
            "{fragments} datagrams in fragments in {took:?}, {others} others in {took_b:?}, {flooded} orphans in all"
        );
        assert_eq!((at_c.received(), at_c.disordered()), (fragments, 0));
        assert_eq!((at_b.received(), at_b.disordered()), (others, 0));
    });
    assert_eq!(switch.kernel_losses(), []);
}

/// More datagrams than one queue of 100,000 frames: of sockets that each send until they are held back.
#[test]
fn hundreds_of_sockets_with_small_datagrams_lose_nothing() {
    if !possible() {
        return;
    }
    let switch = Running::valves("crowd", 2, config());
    let bind = |i: usize| {
        switch.lan().tenant(i).enter(|| UdpSocket::bind((Lan::address(i), 7000 * i as u16)).unwrap()).unwrap()
    };
    let at = bind(1);
    let sockets: Vec<UdpSocket> = (0..450).map(|_| bind(0)).collect();
    let mut sent = 0u64;
    for socket in &sockets {
        socket.connect(Lan::socket(1, 7000)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let before = sent;
        // The socket has room again for each frame that the queue drops, and the loop would never end.
        while sent < before + 10_000 {
            match socket.send(&[1; 8]) {
                Ok(_) => sent += 1,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(sent < before + 10_000, "nothing holds a socket back: {:?}", switch.edge());
    }
    assert!(sent > 110_000, "{sent} wait: no more than one queue held before");
    at.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let mut received = 0;
    while received < sent {
        match at.recv(&mut [0; 16]) {
            Ok(_) => received += 1,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    assert_eq!((received, switch.edge()), (sent, vec![]));
    println!("{received} of {sent} datagrams of {} sockets", sockets.len());
}

/// Tenant 0 sends in a lossless class, tenant 1 in one that may lose, both to a socket that is slower than either.
#[test]
fn beside_a_lossless_class_another_gets_its_turn() {
    const FROM_EACH: u64 = 500;
    if !possible() {
        return;
    }
    let lan = Lan::create("beside", 3, Wiring::Valve).unwrap();
    let access = |priority| Access { priority, ..Access::default() };
    let ports = valves_at(&lan, 3, &config()).into_iter().zip([Some(3), Some(0), None].map(access)).collect();
    let switch = Running::start_with(lan, PrioritySet(1 << 3), ports);
    let at = switch.lan().tenant(2).enter(|| UdpSocket::bind(Lan::socket(2, 7000)).unwrap()).unwrap();
    at.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    let stop = AtomicBool::new(false);
    let mut next = [0u64; 2];
    let mut receive = |upto: &dyn Fn([u64; 2], bool) -> bool| {
        let (mut bytes, mut quiet) = ([0; 2_000], false);
        while !upto(next, quiet) {
            quiet = at.recv(&mut bytes).is_err();
            if quiet {
                continue;
            }
            let number = u64::from_be_bytes(bytes[..8].try_into().unwrap());
            let (who, number) = ((number >> 48) as usize, number & ((1 << 48) - 1));
            assert!(if who == 0 { number == next[0] } else { number >= next[1] }, "{who}: {number} after {next:?}");
            // Of the lossless class each, of the other how many.
            next[who] += 1;
        }
        next
    };
    let senders = std::thread::scope(|scope| {
        let sending = [0, 1].map(|i| {
            let (mut sender, stop) = (sender(&switch, i, 2, 1_400), &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    sender.send(32).unwrap();
                }
                sender.sent()
            })
        });
        // Both senders send, and wait or are turned away.
        wait_for(|| {
            switch.report(0).counters.held_back > 0 && switch.report(2).counters.dropped.total_frames() > 1_000
        });
        let slowly = |next: [u64; 2], _: bool| {
            if (next[0] + next[1]) % 16 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            // As many frames of either class; without a round of its own, the second class never gets room.
            next[1] >= FROM_EACH || next[0] >= 100 * FROM_EACH
        };
        let [lossless, lossy] = receive(&slowly);
        stop.store(true, Ordering::Relaxed);
        println!("{lossless} of the lossless class beside {lossy} of the other");
        assert!(lossy == FROM_EACH && lossless > 0, "{lossless} beside {lossy}");
        // The senders' remaining frames arrive, so that the senders see that they are to stop.
        receive(&|_, quiet| quiet && sending.iter().all(|s| s.is_finished()));
        sending.map(|s| s.join().unwrap())
    });
    let [lossless, _] = receive(&|next, quiet| next[0] == senders[0] || quiet);
    assert_eq!((lossless, switch.kernel_losses()), (senders[0], vec![]));
}

#[test]
fn what_is_for_an_address_that_is_not_there_is_counted() {
    if !possible() {
        return;
    }
    let switch = Running::valves("address", 2, config());
    let mut device = PacketDevice::open(switch.lan().tenant(0), DEVICE, 16).unwrap();
    for id in 0..100 {
        let frame = datagram(0, Lan::mac(1), Ipv4Addr::new(10, 77, 0, 99), id, false);
        send_frame(&mut device, &frame);
    }
    wait_for(|| switch.counter(1, "edge_address") == 100);
    assert_eq!(switch.kernel_losses(), [(1, "edge_address", 100)]);
}
