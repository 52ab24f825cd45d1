//! `sluicenet switch` stops and starts again as a process, amid tenants that send as fast as they can: nothing is lost.

mod switching;

use serde_json::Value;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns;
use sluicenet_lab::switch::control::{Answer, Request, ask};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn file(tag: &str) -> String {
    let macs = std::env::var("RESTART_NOMAC").is_err();
    let port = |i: usize| {
        let mac = Lan::mac(i).map(|b| format!("{b:02x}")).join(":");
        let mac = if macs { format!("mac = \"{mac}\"\n") } else { String::new() };
        format!(
            "[[port]]\nname = \"p{i}\"\nkind = \"veth\"\n{mac}netns = \"sluice-{tag}-switch\"\n\
             tenant_netns = \"sluice-{tag}-{i}\"\ntenant_device = \"{DEVICE}\"\n"
        )
    };
    let watchdog = std::env::var("RESTART_WATCHDOG").unwrap_or("detection_time = \"60 s\"".into());
    format!("[watchdog]\n{watchdog}\n{}", (0..3).map(port).collect::<String>())
}

fn start(folder: &Path, file: &str) -> Child {
    let child = switching::spawn(folder, file, std::env::var("RESTART_LOUD").is_err());
    let until = Instant::now() + Duration::from_secs(120);
    while UnixStream::connect(folder.join("run/vs.sock")).is_err() {
        assert!(Instant::now() < until, "the switch did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn up(folder: &Path) {
    while !matches!(ask(&folder.join("run/vs.sock"), &Request::Show).unwrap(), Answer::Status(s) if s.ports.iter().filter(|p| p.number.is_some()).count() == 3) {}
}

fn stop(mut child: Child) -> Value {
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    serde_json::from_str(&said).expect(&said)
}

fn var(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |v| v.parse().unwrap())
}

#[test]
fn restarts() {
    let tag = "rst";
    let _ = netns::clean_up(tag);
    let (rounds, down) = (var("RESTART_ROUNDS", 3), Duration::from_millis(var("RESTART_DOWN_MS", 0)));
    let slow = Duration::from_micros(var("RESTART_SLOW_US", 0));
    let busy = var("RESTART_BUSY", 0);
    let lan = Lan::create(tag, 3, Wiring::Valve).unwrap();
    let folder = std::env::temp_dir().join(format!("sluicenet-restart-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = file(tag);
    let to = Lan::socket(2, 7000);
    let mut sink = Sink::bind(lan.tenant(2), to, 1472, 2).unwrap();
    let senders = [0, 1].map(|i| Sender::new(lan.tenant(i), i as u16, to, 1472).unwrap());
    let (stopped, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let sent = [AtomicU64::new(0), AtomicU64::new(0)];
    let total = || sent.iter().map(|s| s.load(Relaxed)).sum::<u64>();
    std::thread::scope(|scope| {
        let mut loads: Vec<Child> = (0..busy)
            .map(|_| std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
            .collect();
        let mut running = start(&folder, &file);
        up(&folder);
        let (stopped, received, over) = (&stopped, &received, &over);
        for (mut sender, sent) in senders.into_iter().zip(&sent) {
            scope.spawn(move || {
                while !stopped.load(Relaxed) {
                    sender.send(32).unwrap();
                    sent.store(sender.sent(), Relaxed);
                }
            });
        }
        scope.spawn(move || {
            while !over.load(Relaxed) {
                sink.receive(64).unwrap();
                received.store(sink.received(), Relaxed);
                if !slow.is_zero() {
                    std::thread::sleep(slow);
                }
            }
            println!("{} received, {} disordered", sink.received(), sink.disordered());
        });
        let mut stops = Vec::new();
        for _ in 0..rounds {
            let (more, until) = (received.load(Relaxed) + 20_000, Instant::now() + Duration::from_secs(60));
            while received.load(Relaxed) < more && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let (before, at) = (total(), Instant::now());
            let last = stop(running);
            let took = at.elapsed();
            std::thread::sleep(down);
            let (during, at) = (total() - before, Instant::now());
            running = start(&folder, &file);
            up(&folder);
            println!("stop {took:?}, sent meanwhile {during}, start {:?}, {:?}", at.elapsed(), last["ledger"]);
            stops.push(last);
        }
        std::thread::sleep(Duration::from_secs(2));
        stopped.store(true, Relaxed);
        let mut quiet = 0;
        let mut before = 0;
        while quiet < 30 {
            std::thread::sleep(Duration::from_millis(100));
            let now = received.load(Relaxed);
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
        stops.push(stop(running));
        over.store(true, Relaxed);
        for load in &mut loads {
            load.kill().unwrap();
            load.wait().unwrap();
        }
        println!("sent {} received {} LOST {}", total(), received.load(Relaxed), total() - received.load(Relaxed));
        for last in stops {
            for p in last["ports"].as_array().unwrap() {
                let own: Vec<String> = p["counters"].as_object().into_iter().flatten()
                    .chain(p["dropped"].as_object().into_iter().flatten())
                    .chain(p["refused"].as_object().into_iter().flatten())
                    .filter(|(k, v)| (!k.starts_with("polls") || k.starts_with("edge")) && v.as_u64() != Some(0) )
                    .map(|(k, v)| format!("{k}={v}")).collect();
                println!("  {} accepted={} delivered={} inside={} {}", p["name"], p["accepted"], p["delivered"], p["waiting"], own.join(" "));
            }
            println!("  {}", last["ledger"]);
        }
    });
    let _ = std::fs::remove_dir_all(&folder);
}
