//! A TAP whose queue is paused: frames of the tenant are not lost.

use crate::kernel::harness::{Running, possible, receive_all, send_all, wait_for};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::tap::{TapConfig, TapPort};
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_dataplane::port::Port;
use sluicenet_node::vale::WatchdogConfig;

/// Two tenants at TAPs, and one at a valve, where frames would be lost for want of room in a socket.
fn taps(tag: &str) -> Running {
    let lan = Lan::create(tag, 3, Wiring::Bare).unwrap();
    let tap = |i| {
        let port = TapPort::create(lan.tenant(i), DEVICE, Lan::mac(i), 1500, &TapConfig::default()).unwrap();
        lan.configure(i).unwrap();
        port
    };
    let config = ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() };
    lan.veth(2).create(Lan::mac(2), 1500).unwrap();
    lan.configure(2).unwrap();
    let valve = ValvePort::open(lan.veth(2), &config).unwrap();
    let ports: Vec<Box<dyn Port>> = vec![Box::new(tap(0)), Box::new(tap(1)), Box::new(valve)];
    Running::start(lan, ports)
}

#[test]
fn a_stopped_sink_holds_taps_and_nothing_is_lost() {
    if !possible() {
        return;
    }
    let switch = taps("tap");
    let to = Lan::socket(2, 7000);
    let count = 20_000;
    let sink = Sink::bind(switch.lan().tenant(2), to, 1472, 2).unwrap();
    let senders = [0, 1].map(|i| Sender::new(switch.lan().tenant(i), i as u16, to, 1472).unwrap());
    let sink = std::thread::scope(|scope| {
        let senders = senders.map(|s| scope.spawn(move || send_all(s, count)));
        // Both are held before anything is received.
        wait_for(|| switch.counter(0, "xoff") > 0 && switch.counter(1, "xoff") > 0);
        let sink = receive_all(sink, 2 * count, |_| {});
        senders.into_iter().for_each(|s| assert_eq!(s.join().unwrap(), count));
        sink
    });
    assert_eq!((sink.received(), sink.disordered()), (2 * count, 0), "{:?}", switch.edge());
    assert_eq!(switch.edge(), []);
    wait_for(|| switch.counter(0, "xon") == switch.counter(0, "xoff"));
    assert_eq!(switch.counter(0, "failed_changes"), 0);
}

#[test]
fn a_tap_receives() {
    if !possible() {
        return;
    }
    let switch = taps("taprx");
    let to = Lan::socket(0, 7000);
    let mut sink = Sink::bind(switch.lan().tenant(0), to, 1472, 3).unwrap();
    let mut sender = Sender::new(switch.lan().tenant(2), 2, to, 1472).unwrap();
    // One at a time: nothing holds back frames that its sockets have no room for.
    for k in 1..=200 {
        while sender.send(1).unwrap() == 0 {}
        while sink.received() < k {
            sink.receive(1).unwrap();
        }
    }
    assert_eq!(sink.disordered(), 0);
}
