//! Unmodified programs over light sockets, `LD_PRELOAD`: right answers, also when one end is killed.

mod cost;
mod outlive;
mod overlay;
mod processes;
mod programs;

use crate::built;
use crate::switching::Running;
use sluicenet_testkit::netns::{self, Namespaces};
use sluicenet_testkit::{Dir, repository};
use sluicenet_vswitchd::status::Status;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(120);
/// A host that says nothing for so long is dead to others.
const DEAD_AFTER: &str = "2000";

/// The library: built by the test runner or, as this test was, built now.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("sluicenet-preload", "libsluicenet_socket.so", "SLUICENET_PRELOAD"))
}

/// A switch with six ports, and the programs at them.
struct Place {
    switch: Running,
    folder: Dir,
    /// Whether datagrams wait for a program for as long as this machine has no time for it.
    patient: bool,
}

impl Place {
    fn new(name: &str) -> Place {
        Place::of(name, false)
    }

    fn patient(name: &str) -> Place {
        Place::of(name, true)
    }

    fn of(name: &str, patient: bool) -> Place {
        let mut file = String::from(if patient { "[watchdog]\naction = \"off\"\n" } else { "" });
        for n in 1..=6 {
            let _ = writeln!(
                file,
                "[[port]]\nname = \"p{n}\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0{n}\"\nbuffers = 2048"
            );
        }
        library();
        Place {
            switch: Running::start(&format!("sockets-{name}"), &file),
            folder: Dir::new(&format!("sockets-{name}")),
            patient,
        }
    }

    /// A program whose sockets at an address of the light network are light.
    fn command(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> Command {
        let mut command = light(&self.switch, &self.folder, ports, n, program, args);
        if self.patient {
            command.env("SLUICENET_STALL_MS", "off");
        }
        command
    }

    fn start(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> Started {
        let log = std::fs::File::create(self.folder.0.join(format!("{program}-{n}.log"))).unwrap();
        let mut command = self.command(ports, n, program, args);
        Started(command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap())
    }

    fn run(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> Output {
        let command = self.command(ports, n, program, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Started(command.unwrap()).output()
    }

    /// Output of a program that must succeed.
    fn answer(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> String {
        let done = self.run(ports, n, program, args);
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{program} {args:?}: {}\n{out}\n{err}", done.status);
        out.into_owned()
    }

    /// Waits until a port of the light network takes connections.
    fn wait_for(&self, n: u8, port: u16) {
        let start = Instant::now();
        let try_once = format!("import socket; socket.create_connection(('10.1.0.{n}', {port})).close()");
        while !self.run("p6", 6, "python3", &["-c", &try_once]).status.success() {
            assert!(start.elapsed() < PATIENCE, "nobody listens at 10.1.0.{n}:{port}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn file(&self, name: &str, bytes: usize) -> Vec<u8> {
        file_of(&self.folder, name, bytes)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.0.join(name)).unwrap_or_default()
    }

    /// Frames that the switch dropped, but for those to programs that have ended.
    fn dropped(&self) -> u64 {
        self.switch.status().drops().iter().filter(|((_, reason), _)| *reason != "port_gone").map(|(_, n)| n).sum()
    }
}

/// A program whose sockets at an address of the light network are light.
fn light(switch: &Running, folder: &Dir, ports: &str, n: u8, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(&folder.0)
        .env("LD_PRELOAD", library())
        .env("SLUICENET_CONTROL", switch.control())
        .env("SLUICENET_PORT", ports)
        .env("SLUICENET_ADDRESS", format!("10.1.0.{n}/24"))
        .env("SLUICENET_DEAD_AFTER_MS", DEAD_AFTER)
        .stdin(Stdio::null());
    command
}

/// A file of so many bytes with arbitrary values.
fn file_of(folder: &Dir, name: &str, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    let mut state = 1u64;
    for chunk in content.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..chunk.len()]);
    }
    std::fs::write(folder.0.join(name), &content).unwrap();
    content
}

/// The configuration of an nginx with two workers that serves the files of a folder at 10.1.0.1:8080. It writes a line
/// with the number of the worker for each request. Returns its path.
fn nginx_config(folder: &Dir) -> String {
    let path = folder.0.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {path}/{name};\n"))
        .concat();
    let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 2; daemon off; error_log {path}/error.log; pid {path}/pid;\n\
         events {{ worker_connections 512; }}\n\
         http {{ log_format worker '$pid'; access_log {path}/access.log worker; sendfile on; root {path};\n{temporary}\
         server {{ listen 10.1.0.1:8080; }} }}\n"
    );
    folder.file("nginx.conf", &config)
}

/// The workers of that nginx that have served a request.
fn nginx_workers(folder: &Dir) -> Vec<u32> {
    let log = std::fs::read_to_string(folder.0.join("access.log")).unwrap_or_default();
    let mut pids: Vec<u32> = log.lines().filter_map(|l| l.parse().ok()).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// A program that is killed with this value, together with its workers where it leads a process group.
struct Started(Child);

impl Started {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }

    fn output(mut self) -> Output {
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
                bytes
            })
        };
        let out = read(self.0.stdout.take().map(|pipe| Box::new(pipe) as _));
        let err = read(self.0.stderr.take().map(|pipe| Box::new(pipe) as _));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = self.0.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let workers = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &workers]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Whether a program is there; says that the test is skipped where it is not.
fn has(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("PATH=$PATH:/usr/sbin command -v {program}")]).output().unwrap();
    if !found.status.success() {
        println!("SKIPPED: {program} is not installed");
    }
    found.status.success()
}
