//! A switch that is told to stop, and the next one: nothing is lost from `send()` to `recv()`.

#[path = "switching/mod.rs"]
mod switching;

use sluicenet_dataplane::kernel::lan::{Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use switching::Running;

/// Raises a flag when it goes, also when a test fails: who runs beside it ends then.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tells a switch to stop and waits until it has.
fn stop(mut running: Running) -> Running {
    let pid = rustix::process::Pid::from_child(&running.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(running.child.wait().unwrap().success());
    let last = running.line("its last word", |line| line["message"] == "switch stopped");
    assert_eq!((&last["given_up"], &last["queued"]), (&0.into(), &0.into()), "{last}");
    running
}

#[test]
fn a_restart_between_unpaced_senders_and_their_sink_loses_nothing() {
    if let Err(e) = netns::may_make_namespaces() {
        eprintln!("SKIPPED: {e}");
        return;
    }
    const TENANTS: usize = 3;
    let tag = format!("restart-{}", std::process::id());
    let lan = Lan::create(&tag, TENANTS, Wiring::Valve).unwrap();
    // However slow the machine, nobody is given up.
    let mut file = "log = \"json\"\n[watchdog]\naction = \"alert\"\n".to_owned();
    for i in 0..TENANTS {
        let mac = Lan::mac(i).map(|b| format!("{b:02x}")).join(":");
        let (device, switch, tenant) = (lan.veth(i).switch_device, lan.switch().name(), lan.tenant(i).name());
        write!(
            file,
            "[[port]]\nname = \"t{i}\"\nkind = \"veth\"\nmac = \"{mac}\"\ndevice = \"{device}\"\nnetns = \"{switch}\"\n\
             tenant_netns = \"{tenant}\"\n"
        )
        .unwrap();
    }
    let mut switch = Some(Running::heard("restart", &file));
    let to = Lan::socket(2, 7000);
    let mut sink = Sink::bind(lan.tenant(2), to, 1472, 2).unwrap();
    let senders = [0, 1].map(|i| Sender::new(lan.tenant(i), i as u16, to, 1472).unwrap());
    let (ended, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let (sent, sink) = std::thread::scope(|scope| {
        let _ended = Raised(&ended);
        let (ended, received) = (&ended, &received);
        let senders = senders.map(|mut sender| {
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    sender.send(32).unwrap();
                }
                sender.sent()
            })
        });
        let sinking = scope.spawn(move || {
            let mut quiet = 0;
            while quiet < 40 {
                let n = sink.receive(64).unwrap();
                received.store(sink.received(), Ordering::Relaxed);
                quiet = if n > 0 || !ended.load(Ordering::Relaxed) { 0 } else { quiet + 1 };
            }
            sink
        });
        let until = |count| {
            let deadline = Instant::now() + Duration::from_secs(120);
            while received.load(Ordering::Relaxed) < count {
                assert!(Instant::now() < deadline, "nothing is received any more");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for round in 1..=2 {
            until(20_000 * round);
            drop(stop(switch.take().unwrap()));
            switch = Some(Running::heard("restart", &file));
        }
        until(60_000);
        ended.store(true, Ordering::Relaxed);
        let sent: u64 = senders.map(|s| s.join().unwrap()).iter().sum();
        (sent, sinking.join().unwrap())
    });
    assert_eq!((sent - sink.received(), sink.disordered()), (0, 0), "of {sent}");
    stop(switch.unwrap());
}
