//! `sluicenet switch`: a process that serves programs, is asked, reloads and stops; what strangers send it harms nobody.

use serde_json::Value;
use sluicenet_dataplane::shm::Client;
use sluicenet_lab::switch::control::{Answer, Request, ask, attach};
use sluicenet_lab::switch::status::Status;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A switch that runs, in a folder of its own.
struct Running {
    child: Child,
    folder: PathBuf,
}

impl Running {
    fn start(name: &str, file: &str) -> Running {
        let folder = std::env::temp_dir().join(format!("sluicenet-switch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let running = Running { child: spawn(&folder, file), folder };
        running.wait();
        running
    }
    fn control(&self) -> PathBuf {
        self.folder.join("run/vs.sock")
    }
    fn wait(&self) {
        let until = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(self.control()).is_err() {
            assert!(Instant::now() < until, "the switch did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    fn write(&self, file: &str) {
        std::fs::write(self.folder.join("vs.toml"), text(&self.folder, file)).unwrap();
    }
    fn ask(&self, request: Request) -> Answer {
        ask(&self.control(), &request).unwrap()
    }
    fn status(&self) -> Status {
        match self.ask(Request::Show) {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }
    fn attach(&self, port: &str) -> (sluicenet_lab::switch::control::Attachment, Client) {
        let attached = attach(&self.control(), port).unwrap();
        let client = Client::open(attached.access.memory.try_clone().unwrap()).unwrap();
        (attached, client)
    }
    /// Waits until something is so.
    fn until(&self, what: &str, so: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let status = self.status();
            if so(&status) {
                return status;
            }
            assert!(Instant::now() < until, "{what}: {status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn text(folder: &Path, ports: &str) -> String {
    format!("[switch]\ncontrol = \"{}/run/vs.sock\"\n{ports}", folder.display())
}

fn spawn(folder: &Path, file: &str) -> Child {
    std::fs::write(folder.join("vs.toml"), text(folder, file)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_sluicenet"))
        .args(["--quiet", "--json", "switch", "run"])
        .arg(folder.join("vs.toml"))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

const TWO: &str = "[watchdog]\naction = \"off\"\n\
    [[port]]\nname = \"a\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0a\"\nbuffers = 64\n\
    [[port]]\nname = \"b\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0b\"\nbuffers = 64\n";

fn frame(from: u8, to: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    (frame[0], frame[5], frame[6], frame[11]) = (2, to, 2, from);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn kick(attached: &sluicenet_lab::switch::control::Attachment) {
    rustix::io::write(&attached.access.kick, &1u64.to_ne_bytes()).unwrap();
}

#[test]
fn programs_attach_and_their_frames_go_through() {
    let running = Running::start("attach", TWO);
    let mode = std::fs::metadata(running.control()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the control socket is its owner's");
    let (at_a, mut a) = running.attach("a");
    let (_at_b, mut b) = running.attach("b");
    assert!(attach(&running.control(), "a").unwrap_err().to_string().contains("somebody is attached"));
    assert!(attach(&running.control(), "c").unwrap_err().to_string().contains("no port c"));
    for _ in 0..10 {
        assert!(a.send(&frame(10, 11)).unwrap());
    }
    if a.publish() {
        kick(&at_a);
    }
    let status = running.until("ten frames", |s| s.ledger.delivered == 10);
    assert_eq!((status.ports[0].accepted, status.ports[1].delivered), (10, 10));
    let mut into = [0; 2048];
    for _ in 0..10 {
        assert_eq!(b.receive(&mut into).unwrap(), Some(60));
        assert_eq!(into[..60], frame(10, 11));
    }
    // Who goes away takes the port along; the next one finds it as new.
    drop((at_a, a));
    running.until("the port is free", |s| s.ports[0].number.is_none());
    running.attach("a");
}

#[test]
fn ports_and_watchdog_change_while_traffic_runs() {
    let running = Running::start("reload", TWO);
    let (at_a, mut a) = running.attach("a");
    let (_at_b, mut b) = running.attach("b");
    running.write(&format!("{TWO}[[port]]\nname = \"c\"\nkind = \"shm\"\n").replace("off", "drop"));
    assert!(
        matches!(running.ask(Request::Reload), Answer::Ok(text) if text.starts_with("1 ports added, 0 removed, 0 changed"))
    );
    let (_at_c, _c) = running.attach("c");
    // Nobody else can be the machine of a port: its address is given.
    assert!(a.send(&frame(11, 12)).unwrap());
    if a.publish() {
        kick(&at_a);
    }
    running.until("a forged frame", |s| s.ports[0].refused.get("forged_source") == Some(&1));
    assert!(a.send(&frame(10, 11)).unwrap());
    if a.publish() {
        kick(&at_a);
    }
    running.until("a frame", |s| s.ports[1].delivered == 1);
    assert_eq!(b.receive(&mut [0; 64]).unwrap(), Some(60));
    // What cannot change is refused, and nothing changes.
    std::fs::write(
        running.folder.join("vs.toml"),
        text(&running.folder, TWO).replace("[switch]", "[switch]\nslots = 5"),
    )
    .unwrap();
    assert!(matches!(running.ask(Request::Reload), Answer::Error(text) if text.contains("`slots` cannot change")));
    running.write("[[port]]\nname = 3\n");
    assert!(matches!(running.ask(Request::Reload), Answer::Error(text) if text.contains("vs.toml:4")));
    assert_eq!(running.status().ports.len(), 3);
    let settings = vec!["kind=shm".to_owned(), "buffers=8".to_owned()];
    assert!(matches!(running.ask(Request::AddPort { name: "d".into(), settings: settings.clone() }), Answer::Ok(_)));
    assert!(matches!(running.ask(Request::AddPort { name: "d".into(), settings }), Answer::Error(_)));
    assert!(matches!(running.ask(Request::DelPort { name: "c".into() }), Answer::Ok(_)));
    assert!(matches!(running.ask(Request::DelPort { name: "c".into() }), Answer::Error(_)));
    assert_eq!(running.status().ports.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["a", "b", "d"]);
}

#[test]
fn an_idle_switch_sleeps_and_stops_when_told() {
    let mut running = Running::start("idle", TWO);
    let (_at_a, _a) = running.attach("a");
    running.until("it sleeps", |s| s.sleeps > 2);
    let refused = Command::new(env!("CARGO_BIN_EXE_sluicenet"))
        .args(["switch", "run"])
        .arg(running.folder.join("vs.toml"))
        .output();
    let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(refused.contains("a switch answers there already"), "{refused}");
    assert!(matches!(running.ask(Request::Stop), Answer::Ok(_)));
    let mut report = String::new();
    running.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(running.child.wait().unwrap().success());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["ports"][0]["name"], "a");
    assert!(!running.control().exists());
}

#[test]
fn what_strangers_say_harms_nobody() {
    let running = Running::start("strangers", TWO);
    for words in [
        "\n",
        "{}\n",
        "{\"op\": \"fly\"}\n",
        "{\"op\": \"attach\", \"x\": 1}\n",
        "\u{fffd}\u{0}\n",
        &format!("{}\n", "x".repeat(1 << 17)),
    ] {
        let mut stream = UnixStream::connect(running.control()).unwrap();
        // It may have hung up before all is said.
        let _ = stream.write_all(words.as_bytes());
        let mut answer = String::new();
        let _ = BufReader::new(&stream).read_line(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("{\"error\":"), "{answer}");
    }
    let half: Vec<UnixStream> = (0..50)
        .map(|_| {
            let mut stream = UnixStream::connect(running.control()).unwrap();
            stream.write_all(b"{\"op\":").unwrap();
            stream
        })
        .collect();
    assert_eq!(running.status().ports.len(), 2);
    drop(half);
}

#[test]
fn a_socket_left_behind_is_taken_over_and_a_file_is_not() {
    let mut running = Running::start("left", TWO);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert!(running.control().exists());
    running.child = spawn(&running.folder, TWO);
    running.wait();
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    std::fs::remove_file(running.control()).unwrap();
    std::fs::write(running.control(), "mine").unwrap();
    running.child = spawn(&running.folder, TWO);
    assert_eq!(running.child.wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::read_to_string(running.control()).unwrap(), "mine");
}
