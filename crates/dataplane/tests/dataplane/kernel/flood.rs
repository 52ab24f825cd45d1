//! The veth valve under a tenant of a thousand sockets, whose send buffers hold far more than a packet socket.

use crate::kernel::harness::{Running, possible, receive_all, send_all, wait_for};
use sluicenet_dataplane::kernel::lan::Lan;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::valve::ValveConfig;
use sluicenet_node::vale::WatchdogConfig;

/// Three times, all of them begin at once when the switch sleeps: no switch polls then, the kernel does.
#[test]
fn a_thousand_sockets_that_begin_while_the_switch_sleeps_lose_nothing() {
    if !possible() {
        return;
    }
    const SOCKETS: u16 = 1_000;
    const EACH: u64 = 150;
    const PAYLOAD: usize = 1_400;
    let switch =
        Running::valves("thousand", 2, ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() });
    let to = Lan::socket(1, 7000);
    let mut sink = Sink::bind(switch.lan().tenant(1), to, PAYLOAD, SOCKETS).unwrap();
    let tenant = switch.lan().tenant(0);
    let mut senders: Vec<_> = (0..SOCKETS).map(|i| Sender::new(tenant, i, to, PAYLOAD).unwrap()).collect();
    for round in 1..=3 {
        let slept = switch.counter(0, "sleeps");
        wait_for(|| switch.counter(0, "sleeps") > slept);
        let upto = round * EACH;
        sink = std::thread::scope(|scope| {
            let sink = scope.spawn(|| receive_all(sink, upto * u64::from(SOCKETS), |_| {}));
            while senders.iter().any(|s| s.sent() < upto) {
                for sender in senders.iter_mut().filter(|s| s.sent() < upto) {
                    sender.send(upto - sender.sent()).unwrap();
                }
            }
            sink.join().unwrap()
        });
        let all = upto * u64::from(SOCKETS);
        println!("{} of {all}, {:?}", sink.received(), switch.report(0).own);
        assert_eq!((sink.received(), sink.disordered()), (all, 0), "{:?}", switch.edge());
    }
    assert_eq!(switch.edge(), []);
}

/// The kernel gives the device another number each time, and the switch polls by numbers.
#[test]
fn a_port_whose_device_was_switched_off_and_on_goes_on() {
    if !possible() {
        return;
    }
    let switch = Running::valves("offon", 2, ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() });
    let to = Lan::socket(1, 7000);
    let mut sink = Sink::bind(switch.lan().tenant(1), to, 1_400, 4).unwrap();
    let veth = switch.lan().veth(0);
    let set = |up: bool| {
        let state = if up { "up" } else { "down" };
        let run = || std::process::Command::new("ip").args(["link", "set", veth.switch_device, state]).status();
        assert!(veth.switch.enter(run).unwrap().unwrap().success());
    };
    for round in 0..4 {
        let sender = Sender::new(switch.lan().tenant(0), round as u16, to, 1_400).unwrap();
        let all = sink.received() + 10_000;
        sink = std::thread::scope(|scope| {
            let sink = scope.spawn(|| receive_all(sink, all, |_| {}));
            send_all(sender, 10_000);
            sink.join().unwrap()
        });
        assert_eq!((sink.received(), sink.disordered()), (all, 0), "{:?}", switch.report(0).own);
        assert_eq!(switch.counter(0, "learned_again"), round);
        set(false);
        set(true);
        wait_for(|| switch.counter(0, "learned_again") == round + 1);
    }
    // As often as that happens: there are always sockets in reserve.
    for round in 4..12 {
        set(false);
        set(true);
        wait_for(|| switch.counter(0, "learned_again") == round + 1);
    }
}
