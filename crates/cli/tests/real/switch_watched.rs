//! Looking at a switch that runs: metrics, log, captures, `top`; and its permissions after it has started.

use crate::switching::{Running, TWO, frame, kick, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

const SAYS: &str = "log = \"json\"\nmetrics = \"0\"\n";

fn heard(name: &str, ports: &str) -> (Running, SocketAddr) {
    let running = Running::heard(name, &format!("{SAYS}{ports}"));
    let started = running.line("it says that it started", |l| l["message"] == "switch started");
    let metrics = started["metrics"].as_str().unwrap().parse().unwrap();
    (running, metrics)
}

fn fetch(metrics: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may hang up on a refused request before all of the request is sent.
    let _ = stream.write_all(request.as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

/// The samples of a page in Prometheus' text format; any other text fails.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let (head, body) = page.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    let mut samples = BTreeMap::new();
    let mut typed = "";
    for line in body.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(rest) => typed = rest.split(' ').next().unwrap(),
            None if line.starts_with("# HELP ") => {}
            None => {
                let (name, value) = line.rsplit_once(' ').expect(line);
                assert!(name.starts_with(typed) && name[typed.len()..].starts_with("{switch=\"vs\""), "{line}");
                assert!(name.ends_with('}'), "{line}");
                assert_eq!(samples.insert(name.to_owned(), value.parse().expect(line)), None, "twice: {line}");
            }
        }
    }
    samples
}

#[test]
fn metrics_are_fetched_and_slow_or_many_clients_harm_nobody() {
    let (running, metrics) = heard("metrics", TWO);
    assert!(metrics.ip().is_loopback());
    let (at_a, mut a) = running.attach("a");
    let (_at_b, _b) = running.attach("b");
    for to in [11, 11, 10] {
        assert!(a.send(&frame(10, to)).unwrap());
    }
    if a.publish() {
        kick(&at_a);
    }
    running.until("three frames", |s| s.ports[0].refused.len() == 1 && s.ledger.delivered == 2);
    // A moment later: an answer may be a moment old.
    std::thread::sleep(Duration::from_millis(150));
    let page = samples(&fetch(metrics, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let of = |name: &str| page.get(name).copied().unwrap_or_else(|| panic!("no {name} in {page:#?}"));
    assert_eq!(of("sluicenet_port_frames_total{switch=\"vs\",port=\"a\",direction=\"in\"}"), 2.0);
    assert_eq!(of("sluicenet_port_frames_total{switch=\"vs\",port=\"b\",direction=\"out\"}"), 2.0);
    assert_eq!(of("sluicenet_port_bytes_total{switch=\"vs\",port=\"b\",direction=\"out\"}"), 120.0);
    assert_eq!(of("sluicenet_port_drops_total{switch=\"vs\",port=\"a\",direction=\"in\",reason=\"no_route\"}"), 1.0);
    assert_eq!(of("sluicenet_port_events_total{switch=\"vs\",port=\"a\",counter=\"bad_entries\"}"), 0.0);
    assert_eq!(of("sluicenet_port_isolated{switch=\"vs\",port=\"a\"}"), 0.0);
    assert!(fetch(metrics, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n").starts_with("HTTP/1.1 403"));
    assert_eq!(fetch(metrics, &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20))), "", "a head without end");
    // Silent connections are closed after a while. Until then further connections are refused, and the refusal is
    // reported.
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(metrics).unwrap()).collect();
    let refused = running.line("too many", |l| l["message"] == "connection refused" && l["place"] == "metrics");
    assert_eq!(refused["reason"], "too many connections");
    for mut stream in silent {
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "nothing was asked");
    }
    samples(&fetch(metrics, "GET /metrics HTTP/1.1\r\n\r\n"));
    assert!(a.send(&frame(10, 11)).unwrap());
    if a.publish() {
        kick(&at_a);
    }
    running.until("it still forwards", |s| s.ledger.delivered == 3);
}

#[test]
fn what_happens_is_logged() {
    let ports = TWO.replace(
        "action = \"off\"",
        "detection_time = \"20 ms\"\nisolation_time = \"40 ms\"\nrestoration_time = \"20 ms\"",
    );
    let (running, _) = heard("log", &ports.replace("buffers = 64", "buffers = 2"));
    let said = |message: &'static str, port: &'static str| {
        running.line(message, |l| l["message"] == message && l["port"] == port)
    };
    assert_eq!(said("port added", "a")["kind"], "shm");
    let (at_a, mut a) = running.attach("a");
    let (at_b, mut b) = running.attach("b");
    said("port attached", "b");
    // One buffer to receive with: more than one frame is one too many.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !running.status().ports[1].isolated {
        assert!(std::time::Instant::now() < until, "b is not isolated");
        let _ = a.send(&frame(10, 11)).unwrap();
        if a.publish() {
            kick(&at_a);
        }
    }
    assert_eq!(said("port stuck", "b")["level"], "WARN");
    assert_eq!(said("port isolated", "b")["level"], "WARN");
    let drops = running.line("drops", |l| l["message"] == "frames dropped");
    assert_eq!(
        (&drops["port"], &drops["direction"], &drops["reason"]),
        (&"b".into(), &"to".into(), &"watchdog".into())
    );
    while b.receive(&mut [0; 64]).unwrap().is_some() {}
    if b.publish() {
        kick(&at_b);
    }
    said("port restored", "b");
    // A program that breaks the rules: more entries than its ring has.
    let memory = at_a.access.memory.try_clone().unwrap();
    rustix::io::pwrite(&memory, &u32::MAX.to_ne_bytes(), 256).unwrap();
    rustix::io::write(&at_a.access.kick, &1u64.to_ne_bytes()).unwrap();
    assert_eq!(said("port broken", "a")["reason"], "its program broke the rules of the rings");
    drop((at_b, b));
    said("port detached", "b");
    running.write(&format!("{SAYS}[[port]]\nname = \"b\"\nkind = \"shm\"\n"));
    running.ask(sluicenet_vswitchd::control::Request::Reload);
    assert_eq!(running.line("reload", |l| l["message"] == "reloaded")["level"], "INFO");
    said("port removed", "a");
}

fn sluicenet(running: &Running, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    command.args(args).arg("--control").arg(running.control());
    command
}

#[test]
fn a_port_is_captured_while_traffic_runs() {
    let running = Running::start("capture", TWO);
    let file = running.folder.join("b.pcapng");
    let path = file.display().to_string();
    let nobody = sluicenet(&running, &["switch", "capture", "b", "-w", &path]).output().unwrap();
    assert!(!nobody.status.success());
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("nobody is at port b"));
    let (at_a, mut a) = running.attach("a");
    let (_at_b, mut b) = running.attach("b");
    let capture =
        sluicenet(&running, &["switch", "capture", "b", "-w", &path, "--count", "6", "--snaplen", "20", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(&file).map_or(0, |m| m.len()) == 0 {
        assert!(std::time::Instant::now() < until, "the capture does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    let again = sluicenet(&running, &["switch", "capture", "b", "-w", "-"]).output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("port b is being captured"));
    for frames in 1..=5 {
        assert!(a.send(&frame(10, 11)).unwrap());
        if a.publish() {
            kick(&at_a);
        }
        running.until("a frame", |s| s.ledger.delivered == frames);
    }
    // The address of another machine: refused, and captured with the reason.
    assert!(b.send(&frame(10, 11)).unwrap());
    if b.publish() {
        kick(&_at_b);
    }
    let ended = capture.wait_with_output().unwrap();
    assert!(ended.status.success());
    let summary: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(summary, serde_json::json!({ "captured": 6, "capture_lost": 0 }));
    // The capture goes to a pipe and ends after its time, with the frames so far.
    let timed = sluicenet(&running, &["switch", "capture", "a", "-w", "-", "--seconds", "0.3"]).output().unwrap();
    assert!(timed.status.success() && timed.stdout.len() > 100, "{}", String::from_utf8_lossy(&timed.stderr));
    let fields =
        ["frame.len", "frame.cap_len", "frame.packet_flags_direction", "frame.comment", "frame.interface_name"];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields", "-E", "separator=|"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = match tshark.output() {
        Ok(output) => output,
        Err(error) => {
            return eprintln!("SKIPPED: the capture is not read back, because tshark cannot be started: {error}");
        }
    };
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').collect()).collect();
    assert_eq!(lines.len(), 6, "{text}");
    for line in &lines[..5] {
        assert_eq!((line[0], line[1], line[3], line[4]), ("60", "20", "", "b"), "{text}");
        assert!(line[2].ends_with('2'), "towards the machine: {text}");
    }
    assert_eq!(lines[5][3], "dropped: forged_source");
    assert!(lines[5][2].ends_with('1'), "from the machine: {text}");
}

#[test]
fn top_says_who_waits_for_whom() {
    let running = Running::start(
        "top",
        &TWO.replace("buffers = 64", "buffers = 8").replace("[watchdog]", "slots = 2\n[watchdog]"),
    );
    let (at_a, mut a) = running.attach("a");
    let (_at_b, _b) = running.attach("b");
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while running.status().ports[0].waits_for.is_empty() {
        assert!(std::time::Instant::now() < until, "a does not wait: {:?}", running.status());
        let _ = a.send(&frame(10, 11)).unwrap();
        if a.publish() {
            kick(&at_a);
        }
    }
    let plain = sluicenet(&running, &["top", "--once", "--interval", "0.1"]).output().unwrap();
    let plain = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.contains("b holds others up: 2 frames wait for it\n└─ a waits for b\n"), "{plain}");
    let json = sluicenet(&running, &["top", "--json", "--interval", "0.1"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["switches"][0]["waiting"][0]["waiters"][0]["port"], "a");
    assert_eq!(json["ports"][1]["output"][0], 2);
    let piped = sluicenet(&running, &["top"]).output().unwrap();
    assert_eq!(piped.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&piped.stderr).contains("stdout is no terminal"));
}

/// Status of each thread of a process, by the kernel's keys.
fn threads(pid: u32) -> Vec<BTreeMap<String, String>> {
    // A thread that has ended meanwhile has no status.
    let status = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("status")).ok()?;
        let pair = |line: &str| line.split_once(':').map(|(k, v)| (k.to_owned(), v.trim().to_owned()));
        Some(text.lines().filter_map(pair).collect())
    };
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(|task| status(task.ok()?.path())).collect()
}

#[test]
fn privileges_are_dropped_after_the_start() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: a switch does not become somebody else, because this is not root");
    }
    let own = rustix::process::geteuid().as_raw();
    // Without `user`: the account of `packaging/`, if this system has it.
    let packaged = Command::new("id").args(["-u", "sluicenet"]).output().unwrap().stdout;
    let packaged = String::from_utf8(packaged).unwrap().trim().parse().unwrap_or(65534);
    let users = [(None, if is_root { packaged } else { own }), (Some("nobody"), 65534), (Some("root"), 0)];
    for (user, uid) in users.into_iter().take(if is_root { 3 } else { 1 }) {
        let line = user.map_or(String::new(), |user| format!("user = \"{user}\"\n"));
        let name = user.unwrap_or("default");
        let mut running = Running::heard(&format!("user-{name}"), &format!("log = \"json\"\n{line}{TWO}"));
        let started = running.line("it started", |l| l["message"] == "switch started");
        assert_eq!(started["capabilities"], "none");
        // The switch reports its start before its threads do.
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let mut own = threads(running.child.id());
        while own.len() < 4 {
            assert!(std::time::Instant::now() < until, "{own:?}");
            std::thread::sleep(Duration::from_millis(5));
            own = threads(running.child.id());
        }
        for thread in own {
            for key in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                assert_eq!(thread[key], "0000000000000000", "{key} of {}", thread["Name"]);
            }
            assert!(!is_root || thread["CapBnd"] == "0000000000000000");
            assert_eq!(thread["NoNewPrivs"], "1");
            assert_eq!(thread["Uid"].split_whitespace().collect::<Vec<_>>(), vec![uid.to_string(); 4]);
            assert!(!is_root || uid == 0 || thread["Groups"].is_empty());
        }
        // The user who started the switch still reaches it, and the switch still serves.
        let (at_a, mut a) = running.attach("a");
        let (_at_b, _b) = running.attach("b");
        assert!(a.send(&frame(10, 11)).unwrap());
        if a.publish() {
            kick(&at_a);
        }
        running.until("a frame", |s| s.ledger.delivered == 1);
        running.ask(sluicenet_vswitchd::control::Request::Stop);
        assert!(running.child.wait().unwrap().success());
    }
    let running = Running::start("user-none", TWO);
    let file = running.folder.join("other.toml");
    std::fs::write(&file, text(&running.folder, "user = \"no-such-user\"\n").replace("vs.sock", "other.sock")).unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(["switch", "run"]).arg(&file).output();
    let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(refused.contains("there is no user no-such-user"), "{refused}");
}
