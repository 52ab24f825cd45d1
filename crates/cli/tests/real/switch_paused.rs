//! A program that the system stops for five seconds while another one sends to it as fast as it can: with default settings
//! nothing is lost, within a server and between two servers with credits.

use crate::switch_overlay::{Program, controller, file, inside, prepare};
use crate::switching::Running;
use rustix::process::{Pid, Signal, kill_process};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::Sender;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_node::vale::ISOLATION_TIME;
use sluicenet_testkit::Dir;
use sluicenet_testkit::netns::{Namespaces, missing};
use sluicenet_vswitchd::status::Status;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAYLOAD: usize = 1000;
/// Half of the time after which a receiver is isolated.
const PAUSE: Duration = Duration::from_secs(5);
/// A pause after which nothing is said about losses. The reader reads on a moment after it.
const TOO_LONG: Duration = Duration::from_millis(8_000);
const _: () = assert!(TOO_LONG.as_millis() as u64 * 1_000_000_000 < ISOLATION_TIME.0);
/// Datagrams of a sender before the pause, and after it.
const MOVING: u64 = 10_000;

/// A program that counts what it receives, as a process.
struct Reader {
    program: Program,
    at: SocketAddr,
    /// Where the sender's number of datagrams goes.
    sent: PathBuf,
}

impl Reader {
    fn start(netns: &str, at: &str, dir: &Dir, name: &str) -> Reader {
        let [bound, sent] = ["bound", "sent"].map(|file| dir.0.join(format!("{name}-{file}")));
        let mut command = inside(netns, env!("CARGO_BIN_EXE_sluicenet"));
        command.args(["bench", "tenant", "receive", "--at", at, "--senders", "1", "--quiet-seconds", "60"]);
        command.args(["--payload", &PAYLOAD.to_string()]).arg("--bound").arg(&bound).arg("--sent").arg(&sent);
        let program = Program(command.stdout(Stdio::piped()).spawn().unwrap());
        wait("the reader", || bound.exists());
        Reader { program, at: at.parse().unwrap(), sent }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.program.0), signal).unwrap();
    }

    /// Its number of datagrams, and of those out of order, once it has as many as were sent.
    fn finish(mut self, sent: u64) -> (u64, u64) {
        // Never half of the number.
        let whole = self.sent.with_extension("whole");
        std::fs::write(&whole, sent.to_string()).unwrap();
        std::fs::rename(&whole, &self.sent).unwrap();
        let mut said = String::new();
        self.program.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let number = |key: &str| said[key].as_u64().unwrap();
        (number("received"), number("disordered"))
    }
}

fn wait(what: &str, so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A sender at full speed, and a reader that stops meanwhile. Returns the number of datagrams, none of which was lost; `None` if
/// this machine made the pause so long that the reader may have been isolated.
fn pause(from: &Namespace, reader: Reader, sends_from: &Running, receives_at: &Running) -> Option<u64> {
    let (halt, counted) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut sender = Sender::new(from, 0, reader.at, PAYLOAD).unwrap();
    let (sent, paused) = std::thread::scope(|scope| {
        let (halt, counted) = (&halt, &counted);
        let sending = scope.spawn(move || {
            while !halt.load(Ordering::Relaxed) {
                sender.send(u64::MAX).unwrap();
                counted.store(sender.sent(), Ordering::Relaxed);
            }
            sender.sent()
        });
        let more = || {
            let enough = counted.load(Ordering::Relaxed) + MOVING;
            wait("the sender goes on", || counted.load(Ordering::Relaxed) >= enough);
        };
        more();
        reader.signal(Signal::STOP);
        let stopped = Instant::now();
        // Not only the reader's socket: its sender is held.
        receives_at.until("the socket is stuck", |s| counter(s, "sockets_stuck_now") > 0);
        sends_from.until("the sender waits", |s| s.ports.iter().any(|port| port.input.iter().sum::<u32>() > 0));
        std::thread::sleep(PAUSE.saturating_sub(stopped.elapsed()));
        reader.signal(Signal::CONT);
        let paused = stopped.elapsed();
        more();
        halt.store(true, Ordering::Relaxed);
        (sending.join().unwrap(), paused)
    });
    let said = reader.finish(sent);
    if paused >= TOO_LONG {
        return None;
    }
    assert_eq!(said, (sent, 0));
    Some(sent)
}

/// A counter of all ports.
fn counter(status: &Status, name: &str) -> u64 {
    status.ports.iter().filter_map(|port| port.counters.get(name)).sum()
}

#[test]
fn a_reader_that_stops_for_five_seconds_loses_nothing() {
    if let Some(why) = missing() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let dir = Dir::new("paused");
    // A server by itself.
    let tag = format!("paused-{}", std::process::id());
    let lan = Lan::create(&tag, 2, Wiring::Valve).unwrap();
    let port = |i: usize| {
        let netns = lan.tenant(i).name();
        format!(
            "[[port]]\nname = \"t{i}\"\nkind = \"veth\"\nnetns = \"{}\"\ndevice = \"p{i}\"\ntenant_netns = \"{netns}\"\n\
             tenant_device = \"{DEVICE}\"\n",
            lan.switch().name()
        )
    };
    let alone = Running::start("paused", &(port(0) + &port(1)));
    // Two servers.
    let all = Namespaces::new("paused", 6);
    prepare(&all).unwrap();
    let _controller = controller(&all, &dir.0);
    let servers = [1, 2].map(|n| Running::start(&format!("paused{n}"), &file(&all, &dir.0, n, "", "[zcredit]\n")));
    for switch in servers.iter().chain([&alone]) {
        switch.until("everybody is there", |s| s.ports.iter().all(|p| p.number.is_some()));
    }
    let within = Reader::start(lan.tenant(1).name(), &Lan::socket(1, 7000).to_string(), &dir, "within");
    let between = Reader::start(&all.0[4], "10.0.0.4:7000", &dir, "between");
    let from = Namespace::open(&all.0[2]).unwrap();
    // Side by side, because each takes five seconds.
    let (within, between) = std::thread::scope(|scope| {
        let within = scope.spawn(|| pause(lan.tenant(0), within, &alone, &alone));
        let between = pause(&from, between, &servers[0], &servers[1]);
        (within.join().unwrap(), between)
    });
    let (Some(within), Some(between)) = (within, between) else {
        eprintln!("SKIPPED: this machine made a pause of 5 s longer than 8 s");
        return;
    };
    println!("0 lost of {within} within a server, and of {between} between servers");
    for switch in servers.iter().chain([&alone]) {
        let status = switch.status();
        let dropped = |reason: &str| status.ports.iter().filter_map(|port| port.dropped.get(reason)).sum::<u64>();
        assert_eq!(["watchdog", "no_credit"].map(dropped), [0, 0], "{status:?}");
        assert_eq!(counter(&status, "sockets_isolated"), 0);
    }
}
