//! The veth valve: nothing lost from `send()` to `recv()`.

use crate::kernel::harness::{Running, possible, receive_all, send_all, valves_at, wait_for};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns;
use sluicenet_dataplane::kernel::valve::ValveConfig;
use sluicenet_node::vale::WatchdogConfig;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Experiment 1 of Crisan 2014, 4.2.3: two senders at full speed, a sink with the buffer it has by default.
fn overload(tag: &str, payload: usize, count: u64, mut pause: impl FnMut(&Running, u64) + Send) {
    let switch = Running::valves(tag, 3, ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() });
    let to = Lan::socket(2, 7000);
    let sink = Sink::bind(switch.lan().tenant(2), to, payload, 2).unwrap();
    let senders = [0, 1].map(|i| Sender::new(switch.lan().tenant(i), i as u16, to, payload).unwrap());
    let sink = std::thread::scope(|scope| {
        let sink = scope.spawn(|| receive_all(sink, 2 * count, |received| pause(&switch, received)));
        let senders = senders.map(|s| scope.spawn(move || send_all(s, count)));
        senders.into_iter().for_each(|s| assert_eq!(s.join().unwrap(), count));
        sink.join().unwrap()
    });
    assert_eq!((sink.received(), sink.disordered()), (2 * count, 0), "{:?}", switch.edge());
    assert_eq!(switch.edge(), []);
}

/// With a detection time that a sink which only waits for the processor does not reach.
fn patient() -> ValveConfig {
    let time = Duration::from_ms(3_000);
    let watchdog = WatchdogConfig { detection_time: time, isolation_time: time, ..WatchdogConfig::default() };
    ValveConfig { watchdog, ..ValveConfig::default() }
}

#[test]
fn two_senders_at_full_speed_lose_nothing() {
    if possible() {
        overload("full", 1472, 60_000, |_, _| {});
    }
}

#[test]
fn a_slow_sink_loses_nothing() {
    if possible() {
        overload("slow", 1472, 5_000, |_, _| std::thread::sleep(std::time::Duration::from_micros(500)));
    }
}

#[test]
fn a_sink_that_stops_holds_its_senders_back_and_loses_nothing() {
    if possible() {
        let mut shut = 0;
        overload("stop", 1472, 20_000, move |switch, received| {
            // Twice it goes on only when both senders' valves are shut once more.
            if received >= 8_000 * (shut / 2) && shut < 4 {
                let both = |switch: &Running| switch.counter(0, "shut").min(switch.counter(1, "shut"));
                wait_for(|| both(switch) > shut / 2 && switch.counter(2, "share_used_up") > 0);
                shut += 2;
            }
        });
    }
}

#[test]
fn small_datagrams_lose_nothing() {
    if possible() {
        overload("small", 22, 60_000, |_, _| {});
    }
}

#[test]
fn fragments_lose_nothing() {
    if possible() {
        // 5 fragments each, and a datagram whose charge is half of the sink's buffer.
        overload("frag", 7_000, 3_000, |_, _| {});
        overload("frag2", 60_000, 500, |_, _| {});
    }
}

#[test]
fn sixteen_sockets_share_a_namespace_and_lose_nothing() {
    if !possible() {
        return;
    }
    const SOCKETS: usize = 16;
    let switch = Running::valves("many", 3, ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() });
    let count = 4_000;
    std::thread::scope(|scope| {
        let sinks: Vec<_> = (0..SOCKETS)
            .map(|i| {
                let to = Lan::socket(2, 7000 + i as u16);
                let sink = Sink::bind(switch.lan().tenant(2), to, 1472, SOCKETS as u16).unwrap();
                let sender = Sender::new(switch.lan().tenant(i % 2), i as u16, to, 64 + 88 * i).unwrap();
                scope.spawn(move || send_all(sender, count));
                // Some are slower than others.
                let pause = std::time::Duration::from_micros(50 * i as u64);
                scope.spawn(move || receive_all(sink, count, |_| std::thread::sleep(pause)))
            })
            .collect();
        for sink in sinks {
            let sink = sink.join().unwrap();
            assert_eq!((sink.received(), sink.disordered()), (count, 0), "{:?}", switch.edge());
        }
    });
    assert_eq!(switch.edge(), []);
}

#[test]
fn a_stuck_socket_is_isolated_and_restored_and_the_others_go_on() {
    if !possible() {
        return;
    }
    let switch = Running::valves("stuck", 2, patient());
    let bind = |port| Sink::bind(switch.lan().tenant(1), Lan::socket(1, port), 1472, 2).unwrap();
    let (mut stuck, other) = (bind(7000), bind(7001));
    let sender = |i, port| Sender::new(switch.lan().tenant(0), i, Lan::socket(1, port), 1472).unwrap();
    // The stuck one is sent far more than buffers hold, which only ends because it is given up.
    send_all(sender(0, 7000), 20_000);
    let other = std::thread::scope(|scope| {
        let sink = scope.spawn(|| receive_all(other, 20_000, |_| {}));
        send_all(sender(1, 7001), 20_000);
        sink.join().unwrap()
    });
    assert_eq!((other.received(), other.disordered()), (20_000, 0));
    assert_eq!(switch.counter(1, "sockets_isolated"), 1);
    wait_for(|| switch.counter(1, "waiting_for_sockets") == 0 && switch.remote.run(|e| e.queued()).unwrap() == 0);
    let dropped = switch.counter(1, "watchdog");
    // What it had got before is still there, and all the rest is accounted for by name.
    let mut before = 0;
    while before + dropped < 20_000 {
        before += stuck.receive(64).unwrap() as u64;
    }
    assert_eq!(before + dropped, 20_000);
    // The switch's counters say the same.
    let counters = switch.report(1).counters;
    assert_eq!(counters.dropped.frames(DropReason::Watchdog), dropped);
    let (accepted, delivered, lost) = switch.remote.run(|engine| engine.ledger()).unwrap();
    assert!(lost >= dropped && accepted - delivered >= dropped, "{accepted} {delivered} {lost} {dropped}");
    // It has moved: what is sent to it now reaches it.
    let mut again = sender(1, 7000);
    again.send(1).unwrap();
    while stuck.receive(64).unwrap() == 0 {
        again.send(1).unwrap();
    }
    assert_eq!(switch.kernel_losses(), []);
}

#[test]
fn nobody_at_a_port_costs_the_others_nothing() {
    if !possible() {
        return;
    }
    let switch = Running::valves("nobody", 2, patient());
    let to = Lan::socket(1, 7001);
    let sink = Sink::bind(switch.lan().tenant(1), to, 1472, 1).unwrap();
    let mut in_vain = Sender::new(switch.lan().tenant(0), 1, Lan::socket(1, 7000), 1472).unwrap();
    let sender = Sender::new(switch.lan().tenant(0), 0, to, 1472).unwrap();
    let sink = std::thread::scope(|scope| {
        let sink = scope.spawn(|| receive_all(sink, 10_000, |_| {}));
        let sender = scope.spawn(|| send_all(sender, 10_000));
        while !sender.is_finished() {
            in_vain.send(32).unwrap();
        }
        sink.join().unwrap()
    });
    assert_eq!((sink.received(), sink.disordered()), (10_000, 0));
    let of_nobody = || switch.counter(1, "no_socket") + switch.counter(1, "no_socket_dropped");
    wait_for(|| of_nobody() == in_vain.sent());
    assert!(switch.counter(1, "no_socket") > 0);
    let dropped = switch.report(1).counters.dropped;
    assert_eq!(dropped.frames(DropReason::NoSocket), switch.counter(1, "no_socket_dropped"));
}

/// A number of a tenant's `/proc/net/snmp`.
fn snmp(switch: &Running, tenant: usize, protocol: &str, name: &str) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    let text = switch.lan().tenant(tenant).enter(read).unwrap().unwrap();
    let mut lines = text.lines().filter(|l| l.starts_with(protocol)).map(|l| l.split(' '));
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    values.nth(names.position(|n| n == name).unwrap()).unwrap().parse().unwrap()
}

#[test]
fn tcp_goes_through_whole() {
    if !possible() {
        return;
    }
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    let switch = Running::valves("tcp", 2, ValveConfig::default());
    let sent: Vec<u8> = (0..32 << 20).map(|at: usize| (at * 31 + at / 251) as u8).collect();
    for algorithm in ["reno", "cubic"] {
        // A namespace allows what the system does; what it runs is asked, not assumed.
        let choose = || {
            let _ = std::fs::write(SETTING, algorithm);
            std::fs::read_to_string(SETTING)
        };
        let ran = switch.lan().tenant(0).enter(choose).unwrap().unwrap();
        if ran.trim() != algorithm {
            eprintln!("SKIPPED: {algorithm} is not in net.ipv4.tcp_allowed_congestion_control");
            continue;
        }
        let listener = switch.lan().tenant(1).enter(|| TcpListener::bind(Lan::socket(1, 7000))).unwrap().unwrap();
        let mut stream = switch.lan().tenant(0).enter(|| TcpStream::connect(Lan::socket(1, 7000))).unwrap().unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let mut received = Vec::new();
                peer.read_to_end(&mut received).unwrap();
                received
            });
            stream.write_all(&sent).unwrap();
            drop(stream);
            receiver.join().unwrap()
        });
        assert!(received == sent, "{} bytes of {} with {algorithm}", received.len(), sent.len());
        let again = snmp(&switch, 0, "Tcp:", "RetransSegs");
        eprintln!("32 MiB with {algorithm}: {again} segments sent again so far");
    }
    assert_eq!(switch.edge(), []);
    assert_eq!(snmp(&switch, 1, "Tcp:", "InErrs"), 0);
}

/// The kernel's flag of an address that may still belong to another host (`IFA_F_TENTATIVE`).
const TENTATIVE: u8 = 0x40;

#[test]
fn ipv6_datagrams_are_charged_too() {
    if !possible() {
        return;
    }
    let switch = Running::valves("six", 2, ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() });
    let address = |i: u16| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, i + 1);
    for i in 0..2 {
        let set_up = || {
            let mut links = Links::open()?;
            links.add_address(DEVICE, address(i).into(), 64)?;
            links.add_neighbour(DEVICE, address(1 - i).into(), Lan::mac(usize::from(1 - i)))
        };
        switch.lan().tenant(i.into()).enter(set_up).unwrap().unwrap();
    }
    // A host drops datagrams for an address until it knows that nobody else has it (RFC 4862, 5.4), and until the kernel has a
    // route to it, which it makes later.
    for i in 0..2 {
        let is_ready = || {
            let addresses = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
            let own = format!("{:032x}", u128::from(address(i)));
            let flags = addresses.lines().find_map(|line| line.strip_prefix(&own)?.split_whitespace().nth(3));
            let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
            let is_routed = routes.lines().any(|line| line.starts_with(&format!("{own} 80 ")));
            is_routed && flags.is_some_and(|flags| u8::from_str_radix(flags, 16).unwrap() & TENTATIVE == 0)
        };
        wait_for(|| switch.lan().tenant(i.into()).enter(is_ready).unwrap());
    }
    let to = (std::net::IpAddr::from(address(1)), 7000).into();
    for (round, payload) in [1452, 7_000].into_iter().enumerate() {
        let sink = Sink::bind(switch.lan().tenant(1), to, payload, 1).unwrap();
        let sender = Sender::new(switch.lan().tenant(0), 0, to, payload).unwrap();
        let count = 10_000;
        let sink = std::thread::scope(|scope| {
            let sending = scope.spawn(move || send_all(sender, count));
            // Nothing is received before more has been sent than the socket has room for.
            wait_for(|| switch.counter(0, "shut") > round as u64);
            let sink = receive_all(sink, count, |_| {});
            sending.join().unwrap();
            sink
        });
        assert_eq!((sink.received(), sink.disordered()), (count, 0), "{:?}", switch.edge());
    }
    assert_eq!(switch.edge(), []);
    assert_eq!(switch.counter(1, "stray_fragments"), 0);
}

#[test]
fn an_idle_switch_sleeps_and_wakes() {
    if !possible() {
        return;
    }
    let switch = Running::valves("idle", 2, ValveConfig::default());
    let to = Lan::socket(1, 7000);
    let mut sink = Sink::bind(switch.lan().tenant(1), to, 64, 1).unwrap();
    let mut sender = Sender::new(switch.lan().tenant(0), 0, to, 64).unwrap();
    for k in 1..=20 {
        // Asleep: no poll, however long nothing comes, but those before each of the few times it looks around.
        let before = switch.counter(0, "sleeps");
        wait_for(|| switch.counter(0, "sleeps") > before);
        while sender.send(1).unwrap() == 0 {}
        while sink.received() < k {
            sink.receive(1).unwrap();
        }
    }
    let polls = || (switch.counter(0, "polls"), switch.counter(0, "sleeps"));
    let (polls_before, sleeps_before) = polls();
    wait_for(|| polls().1 >= sleeps_before + 5);
    let (polls_after, sleeps_after) = polls();
    // At each sleep: the turns the loop is patient for, and the polls that let interrupts on.
    let most = 300 * (sleeps_after - sleeps_before);
    assert!(polls_after - polls_before <= most, "{} polls", polls_after - polls_before);
    assert_eq!(switch.edge(), []);
}

/// The variable that makes this program the switch of [`a_killed_switch_keeps_the_backpressure_up`].
const SWITCH_OF: &str = "SLUICENET_TEST_SWITCH_OF";

#[test]
#[ignore = "the switch that another test starts, and kills"]
fn switch_to_be_killed() {
    let Ok(tag) = std::env::var(SWITCH_OF) else { return };
    let lan = Lan::open(&tag, 3).unwrap();
    let ports = valves_at(&lan, 3, &ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() });
    let switch = Running::start(lan, ports);
    println!("ready");
    loop {
        std::thread::park();
        let _ = &switch;
    }
}

/// A switch in a process of its own, ready.
fn switch_process(tag: &str) -> std::process::Child {
    use std::io::BufRead;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kernel::valve::switch_to_be_killed", "--ignored", "--nocapture"])
        .env(SWITCH_OF, tag)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")), "the switch did not start");
    child
}

#[test]
fn a_killed_switch_keeps_the_backpressure_up() {
    if !possible() {
        return;
    }
    let lan = Lan::create("kill", 3, Wiring::Valve).unwrap();
    let mut switch = switch_process("kill");
    let to = Lan::socket(2, 7000);
    let mut sink = Sink::bind(lan.tenant(2), to, 1472, 2).unwrap();
    let sent = [AtomicU64::new(0), AtomicU64::new(0)];
    let total = || sent.iter().map(|s| s.load(Ordering::Relaxed)).sum::<u64>();
    let stop = AtomicBool::new(false);
    let (down, lost) = std::thread::scope(|scope| {
        for i in 0..2 {
            let mut sender = Sender::new(lan.tenant(i), i as u16, to, 1472).unwrap();
            let (sent, stop) = (&sent[i], &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    sender.send(32).unwrap();
                    sent.store(sender.sent(), Ordering::Relaxed);
                }
            });
        }
        while sink.received() < 20_000 {
            sink.receive(64).unwrap();
        }
        switch.kill().unwrap();
        switch.wait().unwrap();
        let before = total();
        // Long enough that both have filled their sockets' buffers, and the kernel has polled once.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let down = total() - before;
        switch = switch_process("kill");
        let after = sink.received();
        while sink.received() < after + 20_000 {
            sink.receive(64).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let mut quiet = 0;
        while quiet < 10 {
            quiet = if sink.receive(64).unwrap() == 0 { quiet + 1 } else { 0 };
        }
        (down, total() - sink.received())
    });
    switch.kill().unwrap();
    switch.wait().unwrap();
    println!("killed for 3 s: the senders sent {down} meanwhile, {lost} were lost");
    // Two sockets' buffers of some 93 frames, the rings of 256, and what the kernel polled.
    assert!(down < 2 * (93 + 256 + 3 * 64), "{down} were sent while no switch ran");
    // What the switch had accepted or was handing over, one more poll, and what the kernel polled while it was down.
    assert!(lost < 2 * (1024 + 128 + 3 * 64) + 512, "{lost} were lost");
}

/// Raises a flag when it goes, also when a test fails: who runs beside it ends then.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_switch_that_ends_in_order_leaves_its_tenants_to_the_next_one() {
    if !possible() {
        return;
    }
    let config = ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() };
    let mut switch = Some(Running::valves("again", 3, config.clone()));
    let to = Lan::socket(2, 7000);
    let lan = |switch: &Option<Running>, i: usize, payload| {
        let lan = switch.as_ref().unwrap().lan();
        (Sink::bind(lan.tenant(2), to, payload, 2).ok(), Sender::new(lan.tenant(i), i as u16, to, payload).unwrap())
    };
    let payload = 1472;
    let (sink, first) = lan(&switch, 0, payload);
    let second = lan(&switch, 1, payload).1;
    let mut sink = sink.unwrap();
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let sent = [AtomicU64::new(0), AtomicU64::new(0)];
    let total = || sent.iter().map(|s| s.load(Ordering::Relaxed)).sum::<u64>();
    let sink = std::thread::scope(|scope| {
        let (stop, received, sent) = (&stop, &received, &sent);
        let senders = [first, second].into_iter().zip(sent).map(|(mut sender, sent)| {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    sender.send(32).unwrap();
                    sent.store(sender.sent(), Ordering::Relaxed);
                }
                sender.sent()
            })
        });
        let senders: Vec<_> = senders.collect();
        let _stopped = Raised(stop);
        let sinking = scope.spawn(move || {
            let mut quiet = 0;
            while quiet < 40 {
                let n = sink.receive(64).unwrap();
                received.store(sink.received(), Ordering::Relaxed);
                quiet = if n > 0 || !stop.load(Ordering::Relaxed) { 0 } else { quiet + 1 };
            }
            sink
        });
        for round in 1..=3 {
            wait_for(|| received.load(Ordering::Relaxed) >= 20_000 * round);
            let (left, lan) = switch.take().unwrap().end();
            assert_eq!(left, 0, "what was there could be delivered");
            let before = total();
            // No switch runs, and who sends is held back.
            wait_for(|| {
                let now = total();
                std::thread::sleep(std::time::Duration::from_millis(200));
                total() == now
            });
            let down = total() - before;
            assert!(down < 2 * (93 + 256 + 64), "{down} were sent while no switch ran");
            // Longer than the kernel leaves a device alone.
            if round == 2 {
                std::thread::sleep(std::time::Duration::from_secs(3));
            }
            let ports = valves_at(&lan, 3, &config);
            switch = Some(Running::start(lan, ports));
        }
        wait_for(|| received.load(Ordering::Relaxed) >= 80_000);
        stop.store(true, Ordering::Relaxed);
        let sent: u64 = senders.into_iter().map(|s| s.join().unwrap()).sum();
        let sink = sinking.join().unwrap();
        let lost = sent - sink.received();
        println!("{lost} of {sent} were lost in three restarts");
        assert_eq!((lost, sink.disordered()), (0, 0), "{:?}", switch.as_ref().unwrap().edge());
        sink
    });
    assert!(sink.received() >= 80_000);
}

#[test]
fn what_a_killed_run_left_is_cleaned() {
    if !possible() {
        return;
    }
    // Only that of this test: others may run beside it.
    let left = Lan::create("left", 1, Wiring::Valve).unwrap();
    std::mem::forget(left);
    let gone = netns::clean_up("left").unwrap();
    assert_eq!(gone, ["sluice-left-0", "sluice-left-switch"]);
    assert_eq!(netns::clean_up("left").unwrap(), Vec::<String>::new());
}
