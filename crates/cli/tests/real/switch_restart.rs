//! `sluicenet switch` stops and starts again, as processes, amid tenants that send as fast as they can: sent frames
//! arrive.

use serde_json::Value;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns;
use sluicenet_vswitchd::control::{Answer, Request, ask};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TENANTS: usize = 3;
const PAYLOAD: usize = 1472;
/// Datagrams between two restarts.
const BETWEEN: u64 = 10_000;

/// A valve at each tenant. No port says its `mac`: the switch knows its tenants before they have sent anything.
fn file(tag: &str) -> String {
    let port = |i: usize| {
        format!(
            "[[port]]\nname = \"p{i}\"\nkind = \"veth\"\nnetns = \"sluice-{tag}-switch\"\n\
             tenant_netns = \"sluice-{tag}-{i}\"\ntenant_device = \"{DEVICE}\"\n"
        )
    };
    // However slow the machine, nothing here hangs on time.
    let ports: String = (0..TENANTS).map(port).collect();
    format!("log = \"json\"\n[watchdog]\ndetection_time = \"3600 s\"\n{ports}")
}

/// A switch, started again and again from one folder.
struct Switch {
    folder: PathBuf,
    file: String,
    child: Child,
}

impl Switch {
    fn start(tag: &str) -> Switch {
        let folder = std::env::temp_dir().join(format!("sluicenet-{tag}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = file(tag);
        let child = Switch::process(&folder, &file);
        Switch { folder, file, child }
    }

    fn process(folder: &Path, file: &str) -> Child {
        let mut child = crate::switching::spawn(folder, file, false);
        let until = Instant::now() + Duration::from_secs(120);
        let control = folder.join("run/vs.sock");
        while !matches!(ask(&control, &Request::Show), Ok(Answer::Status(s)) if s.ports.len() == TENANTS) {
            if Instant::now() > until || child.try_wait().unwrap().is_some() {
                let _ = child.kill();
                let mut said = String::new();
                let _ = child.stderr.take().unwrap().read_to_string(&mut said);
                panic!("the switch did not start: {said}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn start_again(&mut self) {
        self.child = Switch::process(&self.folder, &self.file);
    }

    /// Ends it in order; frames it accepted, and how many it could not deliver.
    fn stop(&mut self) -> (u64, u64) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        let mut lines = said.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        let last = lines.rfind(|line| line["message"] == "switch stopped").expect(&said);
        let number = |name: &str| last[name].as_u64().unwrap_or_else(|| panic!("{name} in {last}"));
        (number("accepted"), number("given_up") + number("dropped"))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Raises a flag when dropped, also when a test fails, so that threads beside the test end.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Restarts the switch once for each of `downs`, and leaves it down for so long. `busy` threads beside it only run; the
/// sink rests for `rest` after each batch.
fn restarts(tag: &str, downs: &[Duration], busy: usize, rest: Duration) {
    if let Err(e) = netns::may_make_namespaces() {
        eprintln!("SKIPPED: {e}");
        return;
    }
    let lan = Lan::create(tag, TENANTS, Wiring::Valve).unwrap();
    let to = Lan::socket(2, 7000);
    let mut sink = Sink::bind(lan.tenant(2), to, PAYLOAD, 2).unwrap();
    let senders = [0, 1].map(|i| Sender::new(lan.tenant(i), i as u16, to, PAYLOAD).unwrap());
    let mut switch = Switch::start(tag);
    let (stop, over, received) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let sent = [AtomicU64::new(0), AtomicU64::new(0)];
    let (stop, over, received) = (&stop, &over, &received);
    let total = || sent.iter().map(|s| s.load(Relaxed)).sum::<u64>();
    let (sent, disordered, said) = std::thread::scope(|scope| {
        let _ended = (Raised(stop), Raised(over));
        for _ in 0..busy {
            scope.spawn(|| while !over.load(Relaxed) {});
        }
        let senders = senders.into_iter().zip(&sent).map(|(mut sender, sent)| {
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    sender.send(32).unwrap();
                    sent.store(sender.sent(), Relaxed);
                }
            })
        });
        let senders: Vec<_> = senders.collect();
        let sinking = scope.spawn(move || {
            while !over.load(Relaxed) {
                sink.receive(64).unwrap();
                received.store(sink.received(), Relaxed);
                std::thread::sleep(rest);
            }
            sink
        });
        let more = || {
            let (enough, until) = (received.load(Relaxed) + BETWEEN, Instant::now() + Duration::from_secs(300));
            while received.load(Relaxed) < enough {
                assert!(Instant::now() < until, "nothing goes any more");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let mut said = 0;
        for &down in downs {
            more();
            let (before, began) = (total(), Instant::now());
            let (accepted, given_up) = switch.stop();
            let stopped_in = began.elapsed();
            std::thread::sleep(down);
            let (meanwhile, began) = (total() - before, Instant::now());
            switch.start_again();
            let started_in = began.elapsed();
            println!(
                "{accepted} frames, stopped in {stopped_in:.1?} with {given_up} given up, down for {down:.1?}, started in \
                 {started_in:.1?}; {meanwhile} were sent meanwhile"
            );
            said += given_up;
        }
        more();
        stop.store(true, Relaxed);
        senders.into_iter().for_each(|s| s.join().unwrap());
        // The sockets of these flows are closed, but sent data is still on its way.
        let (sent, until) = (total(), Instant::now() + Duration::from_secs(60));
        while received.load(Relaxed) + said < sent && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Relaxed);
        let sink = sinking.join().unwrap();
        assert_eq!(sink.received(), received.load(Relaxed));
        (sent, sink.disordered(), said)
    });
    let lost = sent - received.load(Relaxed);
    println!("{lost} of {sent} were lost in {} restarts, {disordered} out of order", downs.len());
    // A sink that the machine lets stand for two seconds is not waited for, and that is said.
    assert!(lost <= said, "{lost} were lost, {said} of them said");
    assert!(said > 0 || disordered == 0, "{disordered} out of order");
}

#[test]
fn a_restart_loses_nothing() {
    // Longer than the kernel leaves a device alone.
    restarts("restart", &[Duration::ZERO, Duration::from_secs(3)], 0, Duration::ZERO);
}

#[test]
fn a_restart_with_a_slow_sink_loses_nothing() {
    restarts("restart-slow", &[Duration::from_millis(500)], 0, Duration::from_millis(10));
}

#[test]
#[ignore = "long: two minutes, and all of the machine: five times as many programs at work as there are cores"]
fn long_restarts_under_load_lose_nothing() {
    let cores = std::thread::available_parallelism().unwrap().get();
    restarts("restart-load", &[0, 1, 3, 10, 0, 25].map(Duration::from_secs), 5 * cores, Duration::ZERO);
}
