//! A tenant at a TAP, whose sockets cannot be queried from outside: its agent's handling of unread sockets.

use crate::kernel::harness::{Running, possible, receive_all, send_all, wait_for};
use sluicenet_dataplane::engine::{Access, Happened};
use sluicenet_dataplane::kernel::agent::{Agent, AgentConfig, AgentCounters, Notice};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::tap::{TapConfig, TapPort};
use sluicenet_dataplane::port::Port;
use sluicenet_proto::agent::room::Deadlines;
use sluicenet_proto::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};

/// Three tenants at TAPs; the last listens to an agent.
fn taps(tag: &str) -> Running {
    let lan = Lan::create(tag, 3, Wiring::Bare).unwrap();
    let ports = (0..3).map(|i| tap(&lan, i)).collect();
    Running::start(lan, ports)
}

fn tap(lan: &Lan, i: usize) -> Box<dyn Port> {
    let config = TapConfig { agent: i == 2, ..TapConfig::default() };
    let port = TapPort::create(lan.tenant(i), DEVICE, Lan::mac(i), 1500, &config).unwrap();
    lan.configure(i).unwrap();
    Box::new(port)
}

/// Runs an agent for the last tenant during `inside`.
fn with_agent<T>(switch: &Running, inside: impl FnOnce() -> T) -> (T, AgentCounters) {
    let (stop, lan) = (AtomicBool::new(false), switch.lan());
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| {
            let outcome = lan.tenant(2).enter(|| {
                let config = AgentConfig { interface: DEVICE.into(), deadlines: Deadlines::default() };
                let mut agent = Agent::open(config).unwrap();
                agent.run(&stop, &mut |notice| println!("{notice:?}")).unwrap();
                agent.counters
            });
            outcome.unwrap()
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(inside));
        stop.store(true, Ordering::Relaxed);
        let counters = agent.join().unwrap();
        (outcome.unwrap_or_else(|e| std::panic::resume_unwind(e)), counters)
    })
}

#[test]
fn a_stopped_and_a_slow_program_behind_a_tap_lose_nothing_with_an_agent() {
    if !possible() {
        return;
    }
    let switch = taps("agent");
    let to = Lan::socket(2, 7000);
    let count = 10_000;
    let sink = Sink::bind(switch.lan().tenant(2), to, 1472, 2).unwrap();
    let senders = [0, 1].map(|i| Sender::new(switch.lan().tenant(i), i as u16, to, 1472).unwrap());
    let (sink, counters) = with_agent(&switch, || {
        wait_for(|| switch.counter(2, "agent") == 1);
        std::thread::scope(|scope| {
            let senders = senders.map(|s| scope.spawn(move || send_all(s, count)));
            // All senders are paused before anything is received.
            wait_for(|| switch.counter(2, "agent_granted") == 0);
            wait_for(|| switch.counter(0, "xoff") > 0 && switch.counter(1, "xoff") > 0);
            let slow = |received| {
                if received < 1_000 {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            };
            let sink = receive_all(sink, 2 * count, slow);
            senders.into_iter().for_each(|s| assert_eq!(s.join().unwrap(), count));
            sink
        })
    });
    let report = switch.report(2);
    assert_eq!((sink.received(), sink.disordered()), (2 * count, 0), "{report:?}");
    assert_eq!(switch.edge(), []);
    assert!(counters.grants > 0 && switch.counter(2, "agent_held") > 0);
    // The agent said good-bye: the tenant is no longer limited, and nothing was lost.
    wait_for(|| switch.counter(2, "agent") == 0);
    assert_eq!(["agent_lost", "agent_bad"].map(|name| switch.counter(2, name)), [0, 0]);
    println!("{} datagrams, {counters:?}", sink.received());
}

#[test]
fn without_its_agent_a_stopped_program_behind_a_tap_loses() {
    if !possible() {
        return;
    }
    let switch = taps("noagent");
    let to = Lan::socket(2, 7000);
    let mut sink = Sink::bind(switch.lan().tenant(2), to, 1472, 1).unwrap();
    let sender = Sender::new(switch.lan().tenant(0), 0, to, 1472).unwrap();
    let count = 5_000;
    assert_eq!(send_all(sender, count), count);
    wait_for(|| switch.counter(2, "sent") >= count);
    // A default socket holds about a hundred, and the queues of the switch are long empty.
    while sink.receive(64).unwrap() > 0 {}
    assert!(sink.received() < 1_000, "{}", sink.received());
}

#[test]
fn an_agent_outlives_its_interface() {
    if !possible() {
        return;
    }
    let switch = taps("outlives");
    let ((), counters) = with_agent(&switch, || {
        for _ in 0..2 {
            wait_for(|| switch.counter(2, "agent") == 1);
            // As when the switch is started again: the device goes, and another of its name comes.
            switch.remote.run(|engine| engine.unplug(2)).unwrap();
            let port = tap(switch.lan(), 2);
            let plugged = switch.remote.run(move |engine| engine.plug(2, "tenant-2", port, Access::default()));
            plugged.unwrap().unwrap();
        }
        wait_for(|| switch.counter(2, "agent") == 1);
    });
    assert!(counters.marks >= 3, "{counters:?}");
}

#[test]
fn an_agent_that_hangs_limits_nobody_for_long() {
    if !possible() {
        return;
    }
    let switch = taps("hangs");
    let agent = |detection| {
        let config = AgentConfig { interface: DEVICE.into(), deadlines: Deadlines { detection, isolation: None } };
        Agent::open(config)
    };
    let to = Lan::socket(2, 7000);
    let sink = Sink::bind(switch.lan().tenant(2), to, 1472, 1).unwrap();
    let sender = Sender::new(switch.lan().tenant(0), 0, to, 1472).unwrap();
    let (stop, hangs, lan) = (AtomicBool::new(false), AtomicBool::new(false), switch.lan());
    let count = 10_000;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let outcome = lan.tenant(2).enter(|| {
                let mut first = agent(Some(Duration::from_ms(1))).unwrap();
                // There is one at a time.
                let second = agent(None).unwrap_err().to_string();
                assert!(second.contains("the only agent"), "{second}");
                // The agent hangs at the unread socket.
                let mut hang = |notice| {
                    assert_eq!(notice, Notice::Stuck(1));
                    hangs.store(true, Ordering::Relaxed);
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                };
                first.run(&stop, &mut hang).unwrap();
            });
            outcome.unwrap();
        });
        wait_for(|| switch.counter(2, "agent") == 1);
        let sent = scope.spawn(|| send_all(sender, count));
        wait_for(|| hangs.load(Ordering::Relaxed));
        wait_for(|| switch.counter(2, "agent_lost") == 1);
        // No sender is frozen: all datagrams are sent, and those that the guest has no room for are lost there.
        wait_for(|| switch.counter(2, "sent") >= count);
        assert_eq!(switch.counter(2, "agent"), 0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(sent.join().unwrap(), count);
        first.join().unwrap();
    });
    let event = switch.events.lock().unwrap().try_iter().find(|event| event.what == Happened::AgentLost);
    assert_eq!(event.map(|event| event.port).as_deref(), Some("tenant-2"));
    drop(sink);
}
