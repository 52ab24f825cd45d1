//! The effect of one socket on the others of its namespace, and sockets that come, go, stop and read slowly.

use crate::kernel::harness::{Running, possible, receive_all, send_all, wait_for};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::valve::ValveConfig;
use sluicenet_node::vale::WatchdogConfig;
use sluicenet_proto::time::Duration;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};

fn config(isolation_time: Option<Duration>) -> ValveConfig {
    let quick = |time| WatchdogConfig { detection_time: time, isolation_time: time, ..WatchdogConfig::default() };
    ValveConfig { watchdog: isolation_time.map_or(WatchdogConfig::OFF, quick), ..ValveConfig::default() }
}

fn sink(switch: &Running, port: u16, payload: usize) -> Sink {
    Sink::bind(switch.lan().tenant(2), Lan::socket(2, port), payload, 3).unwrap()
}

fn sender(switch: &Running, i: usize, port: u16, payload: usize) -> Sender {
    Sender::new(switch.lan().tenant(i), i as u16, Lan::socket(2, port), payload).unwrap()
}

/// Sends until it is held back: nothing goes for some of its socket's timeouts.
fn send_until_held_back(sender: &mut Sender) {
    let mut held = 0;
    while held < 5 {
        held = if sender.send(32).unwrap() == 0 { held + 1 } else { 0 };
    }
}

fn wait_until_empty(switch: &Running) {
    wait_for(|| switch.counter(2, "waiting_for_sockets") == 0 && switch.remote.run(|e| e.queued()).unwrap() == 0);
}

#[test]
fn a_sink_that_goes_amid_fragments_leaves_nothing_behind() {
    if !possible() {
        return;
    }
    let switch = Running::valves("gone", 3, config(None));
    for _ in 0..4 {
        let stopped = sink(&switch, 7000, 8_000);
        let mut sender = sender(&switch, 0, 7000, 8_000);
        send_until_held_back(&mut sender);
        drop(stopped);
        drop(sender);
        wait_until_empty(&switch);
    }
    let reads = sink(&switch, 7001, 8_000);
    let sender = sender(&switch, 0, 7001, 8_000);
    let reads = std::thread::scope(|scope| {
        scope.spawn(|| send_all(sender, 500));
        receive_all(reads, 500, |_| {})
    });
    assert_eq!((reads.received(), reads.disordered()), (500, 0));
    assert_eq!(switch.counter(2, "stray_fragments"), 0);
}

#[test]
fn a_sink_that_stopped_and_goes_on_gets_fragments_again() {
    if !possible() {
        return;
    }
    let switch = Running::valves("goeson", 3, config(Some(Duration::from_ms(300))));
    let mut stopped = sink(&switch, 7000, 8_000);
    let mut sender = sender(&switch, 0, 7000, 8_000);
    wait_for(|| {
        sender.send(32).unwrap();
        switch.counter(2, "sockets_isolated") > 0
    });
    while stopped.receive(64).unwrap() > 0 {}
    wait_until_empty(&switch);
    let before = stopped.received();
    wait_for(|| {
        sender.send(1).unwrap();
        stopped.receive(64).unwrap();
        stopped.received() >= before + 20
    });
    assert_eq!(switch.kernel_losses(), []);
}

#[test]
fn who_reads_slowly_but_steadily_loses_nothing() {
    if !possible() {
        return;
    }
    // The kernel gives memory back when a quarter of the buffer was read: 23 of these, which takes longer than the detection
    // time.
    let switch = Running::valves("steady", 3, config(Some(Duration::from_ms(1_000))));
    let mut reads = sink(&switch, 7000, 1_000);
    let sender = sender(&switch, 0, 7000, 1_000);
    let count = 4_000;
    let reads = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(sender, count));
        for _ in 0..50 {
            while reads.receive(1).unwrap() == 0 {}
            std::thread::sleep(std::time::Duration::from_millis(80));
        }
        let reads = receive_all(reads, count, |_| {});
        sending.join().unwrap();
        reads
    });
    assert_eq!((reads.received(), reads.disordered()), (count, 0), "{:?}", switch.edge());
    assert_eq!((switch.counter(2, "watchdog"), switch.edge()), (0, vec![]));
}

#[test]
fn a_socket_that_is_not_read_is_in_nobodys_way_but_its_senders() {
    if !possible() {
        return;
    }
    let switch = Running::valves("share", 3, config(None));
    let slow = sink(&switch, 7000, 1_472);
    let mut flood = sender(&switch, 1, 7000, 1_472);
    send_until_held_back(&mut flood);
    assert!(switch.counter(2, "share_used_up") > 0);
    let held = switch.report(1);
    assert_eq!(
        (held.waits_for, held.counters.held_back > 0),
        ([2].into_iter().collect(), true),
        "who waits for whom is said"
    );
    // Another sender, to another socket, and fragments besides.
    for (port, payload) in [(7001, 1_472), (7002, 7_000)] {
        let other = sink(&switch, port, payload);
        let sender = sender(&switch, 0, port, payload);
        let other = std::thread::scope(|scope| {
            scope.spawn(|| send_all(sender, 5_000));
            receive_all(other, 5_000, |_| {})
        });
        assert_eq!((other.received(), other.disordered()), (5_000, 0));
    }
    // TCP, and the neighbour it takes.
    let listening =
        switch.lan().tenant(2).enter(|| std::net::TcpListener::bind(Lan::socket(2, 9000)).unwrap()).unwrap();
    switch.lan().tenant(0).enter(|| drop(std::net::TcpStream::connect(Lan::socket(2, 9000)).unwrap())).unwrap();
    listening.accept().unwrap();
    // The deferred datagrams are still there.
    let slow = receive_all(slow, flood.sent(), |_| {});
    assert_eq!((slow.received(), slow.disordered()), (flood.sent(), 0));
    assert_eq!(switch.edge(), []);
}

#[test]
fn two_senders_to_one_slow_socket_take_turns() {
    if !possible() {
        return;
    }
    let switch = Running::valves("turns", 3, config(None));
    let reads = sink(&switch, 7000, 1_472);
    let mut senders = [0, 1].map(|i| sender(&switch, i, 7000, 1_472));
    senders.iter_mut().for_each(send_until_held_back);
    let sent = |senders: &[Sender; 2]| [senders[0].sent(), senders[1].sent()];
    let before = sent(&senders);
    let reads = std::thread::scope(|scope| {
        let reading = scope.spawn(|| receive_all(reads, before[0] + before[1] + 8_000, |_| {}));
        let sending = senders.map(|mut sender| {
            scope.spawn(move || {
                let most = sender.sent() + 4_000;
                while sender.sent() < most {
                    sender.send(most - sender.sent()).unwrap();
                }
            })
        });
        sending.into_iter().for_each(|s| s.join().unwrap());
        reading.join().unwrap()
    });
    assert_eq!((reads.received(), reads.disordered()), (before[0] + before[1] + 8_000, 0), "{:?}", switch.edge());
    assert_eq!(switch.edge(), []);
}

/// A socket at an address of the link is bound to its device, and its neighbour is not known.
#[test]
fn a_socket_bound_to_its_device_gets_everything_from_the_first_datagram_on() {
    if !possible() {
        return;
    }
    let switch = Running::valves("bound", 3, config(None));
    let address = |i: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 7, i);
    let device = |i: usize| {
        let add = || {
            let mut links = Links::open()?;
            links.add_address(DEVICE, IpAddr::V6(address(i as u16)), 64)?;
            Ok::<_, KernelError>(links.get(DEVICE)?.index)
        };
        switch.lan().tenant(i).enter(add).unwrap().unwrap()
    };
    let (of_sender, of_sink) = (device(0), device(2));
    let at = |device| SocketAddrV6::new(address(2), 7000, 0, device).into();
    let bound = Sink::bind(switch.lan().tenant(2), at(of_sink), 1_400, 1).unwrap();
    let sender = Sender::new(switch.lan().tenant(0), 0, at(of_sender), 1_400).unwrap();
    let bound = std::thread::scope(|scope| {
        scope.spawn(|| send_all(sender, 20_000));
        receive_all(bound, 20_000, |_| {})
    });
    // The order is up to the sender's kernel: frames that it kept until the neighbour was known are overtaken by later ones.
    assert_eq!(bound.received(), 20_000, "{:?}", switch.edge());
    assert_eq!((switch.counter(2, "no_socket_dropped"), switch.edge()), (0, vec![]));
}
