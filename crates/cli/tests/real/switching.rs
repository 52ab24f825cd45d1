//! A switch as a process, for tests.
// Each test uses a part of this module.
#![allow(dead_code)]

use serde_json::Value;
use sluicenet_dataplane::shm::Client;
use sluicenet_vswitchd::attach::detach;
use sluicenet_vswitchd::attach::record::Records;
use sluicenet_vswitchd::control::{Answer, Request, ask, attach};
use sluicenet_vswitchd::status::Status;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A switch that runs, in a folder of its own.
pub struct Running {
    pub child: Child,
    pub folder: PathBuf,
    said: Arc<Mutex<Vec<String>>>,
}

impl Running {
    pub fn start(name: &str, file: &str) -> Running {
        Running::start_as(name, file, true)
    }
    /// A switch whose log is kept.
    pub fn heard(name: &str, file: &str) -> Running {
        Running::start_as(name, file, false)
    }
    /// A switch that finds its helper at a socket.
    pub fn helped(name: &str, file: &str, helper: &Path) -> Running {
        let folder = Running::make_folder(name);
        std::fs::write(folder.join("vs.toml"), text(&folder, file)).unwrap();
        let mut command = command(&folder, true);
        let child = command.arg("--helper").arg(helper).spawn().unwrap();
        let running = Running { child, folder, said: Arc::default() };
        running.wait();
        running
    }
    /// The folder of a switch.
    pub fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("sluicenet-switch-{name}-{}", std::process::id()))
    }
    fn make_folder(name: &str) -> PathBuf {
        let folder = Running::place(name);
        let _ = std::fs::remove_dir_all(&folder);
        // A switch that root starts becomes another user, who makes the sockets of guests.
        for folder in [&folder, &folder.join("run")] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
        }
        folder
    }
    fn start_as(name: &str, file: &str, quiet: bool) -> Running {
        let folder = Running::make_folder(name);
        let mut child = spawn(&folder, file, quiet);
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        if let Some(stderr) = child.stderr.take() {
            let said = said.clone();
            std::thread::spawn(move || {
                BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| said.lock().unwrap().push(line));
            });
        }
        let running = Running { child, folder, said };
        running.wait();
        running
    }
    /// Kills the switch, so that it cleans up nothing.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
    /// Starts it again, from the file that it had.
    pub fn again(&mut self) {
        self.child = run(&self.folder, true);
        self.wait();
    }
    pub fn control(&self) -> PathBuf {
        self.folder.join("run/vs.sock")
    }
    pub fn wait(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(self.control()).is_err() {
            assert!(Instant::now() < until, "the switch did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    pub fn write(&self, file: &str) {
        std::fs::write(self.folder.join("vs.toml"), text(&self.folder, file)).unwrap();
    }
    pub fn ask(&self, request: Request) -> Answer {
        ask(&self.control(), &request).unwrap()
    }
    pub fn status(&self) -> Status {
        match self.ask(Request::Show) {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }
    pub fn attach(&self, port: &str) -> (sluicenet_vswitchd::control::Attachment, Client) {
        let attached = attach(&self.control(), port).unwrap();
        let client = Client::open(attached.access.memory.try_clone().unwrap()).unwrap();
        (attached, client)
    }
    /// The first line of the log, an object, of which something is so.
    pub fn line(&self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let said = self.said.lock().unwrap().clone();
            let lines = said.iter().map(|line| serde_json::from_str::<Value>(line).expect(line));
            if let Some(line) = lines.into_iter().find(&so) {
                return line;
            }
            assert!(Instant::now() < until, "{what}: {said:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    /// Waits until something is so.
    pub fn until(&self, what: &str, so: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + Duration::from_secs(60);
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
        // A switch that was stopped before does not answer.
        let last = ask(&self.control(), &Request::Show);
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Root's records are not in this folder.
        for record in Records::at(&self.control()).all().unwrap_or_default() {
            let _ = detach(&self.control(), &record.port);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
        if let (false, Ok(Answer::Status(status))) = (std::thread::panicking(), last) {
            assert!(status.refused_calls.is_empty(), "calls that the sandbox refused: {:?}", status.refused_calls);
        }
    }
}

/// The file of a switch; FOLDER in it is the test's own.
pub fn text(folder: &Path, ports: &str) -> String {
    format!("[switch]\ncontrol = \"FOLDER/run/vs.sock\"\n{ports}").replace("FOLDER", &folder.display().to_string())
}

pub fn spawn(folder: &Path, file: &str, quiet: bool) -> Child {
    std::fs::write(folder.join("vs.toml"), text(folder, file)).unwrap();
    run(folder, quiet)
}

fn run(folder: &Path, quiet: bool) -> Child {
    command(folder, quiet).spawn().unwrap()
}

fn command(folder: &Path, quiet: bool) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    command
        .args(quiet.then_some("--quiet"))
        .args(["--json", "switch", "run"])
        .arg(folder.join("vs.toml"))
        .stdout(Stdio::piped())
        .stderr(if quiet { Stdio::inherit() } else { Stdio::piped() });
    command
}

pub const TWO: &str = "[watchdog]\naction = \"off\"\n\
    [[port]]\nname = \"a\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0a\"\nbuffers = 64\n\
    [[port]]\nname = \"b\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0b\"\nbuffers = 64\n";

pub fn frame(from: u8, to: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    (frame[0], frame[5], frame[6], frame[11]) = (2, to, 2, from);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

pub fn kick(attached: &sluicenet_vswitchd::control::Attachment) {
    rustix::io::write(&attached.access.kick, &1u64.to_ne_bytes()).unwrap();
}
