//! The controller: a Python program and its output.

use super::network::Settings;
use crate::namespaces::check;
use serde_json::Value;
use sluicenet_dataplane::process::Program;
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The controller's socket in the network's folder.
pub const SOCKET: &str = "controller.sock";
/// The time limit for the controller to start and to connect to every switch.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this time the controller again uses links of switches that were killed before.
const SETTLED: Duration = Duration::from_millis(1_200);
/// The most lines of output that are kept.
const LINES_MAX: usize = 100_000;

/// A Python that has the package and its extra `fattree`.
#[derive(Clone, Debug)]
pub struct Python(PathBuf);

/// The output of a controller whose dependencies are all installed.
const CHECKED: &[u8] = b"sluicenet.fattree";

/// Looks for a Python with the package: `named`, or else the active environment's, the one of `make build`, or the
/// system's.
///
/// # Errors
/// The missing packages, for each Python tried.
pub fn find_python(named: Option<&Path>) -> Result<Python, String> {
    let active = std::env::var_os("VIRTUAL_ENV").map(|place| Path::new(&place).join("bin/python"));
    let candidates: Vec<PathBuf> = match named {
        Some(named) => vec![named.into()],
        None => active.into_iter().chain([".venv/bin/python".into(), "python3".into()]).collect(),
    };
    let mut why = String::new();
    for python in candidates {
        let check = Command::new(&python).args(["-m", "sluicenet.fattree", "--check"]).stdin(Stdio::null()).output();
        match check {
            Ok(output) if output.status.success() && output.stdout.starts_with(CHECKED) => return Ok(Python(python)),
            Ok(output) if output.status.success() => {
                why += &format!("\n  {}: this is no Python with that package", python.display());
            }
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                let last = text.lines().last().unwrap_or_default();
                why += &format!("\n  {}: {}", python.display(), last.trim_start_matches("error: "));
            }
            Err(e) => why += &format!("\n  {}: {e}", python.display()),
        }
    }
    Err(format!(
        "the controller: no Python with the package sluicenet and its extra `fattree` (os-ken); `make build` makes one in .venv, --python names another{why}"
    ))
}

/// A running controller.
#[derive(Debug)]
pub struct Controller {
    program: Program,
    said: Said,
    /// The index of this controller's first line in `said`.
    from: usize,
    log: PathBuf,
}

/// The output of a network's controllers.
pub type Said = Arc<Mutex<Vec<Value>>>;

impl Controller {
    /// Starts the controller.
    pub fn start(settings: &Settings, routing: &str, seed: u64, folder: &Path, said: &Said) -> io::Result<Controller> {
        let log = folder.join("controller.log");
        let mut command = Command::new(&settings.python.0);
        command.args(["-m", "sluicenet.fattree", "--routing", routing]);
        command.args(["--k", &settings.tree.k().to_string(), "--listen"]);
        command.arg(format!("unix:{}", folder.join(SOCKET).display()));
        command.args(["--link-bps", &settings.rate_bps.to_string(), "--seed", &seed.to_string()]);
        command.args(["--poll", &settings.poll.as_secs_f64().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(std::fs::File::create(&log)?);
        let mut program = Program::spawn(command, None)?;
        let from = lock(said).len();
        if let Some(out) = program.stdout.take() {
            let said = Arc::clone(said);
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let mut said = lock(&said);
                    if let (Ok(value), true) = (serde_json::from_str(&line), said.len() < LINES_MAX) {
                        said.push(value);
                    }
                }
            });
        }
        Ok(Controller { program, said: Arc::clone(said), from, log })
    }

    /// Waits until `count` switches have connected and have their table entries.
    pub fn wait_for_switches(&mut self, count: usize, stop: &AtomicBool) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            check(stop)?;
            let there: BTreeSet<String> = lock(&self.said)[self.from..].iter().filter_map(connected).collect();
            if there.len() >= count {
                std::thread::sleep(SETTLED);
                return Ok(());
            }
            if let Some(status) = self.program.try_wait()? {
                let text = std::fs::read_to_string(&self.log).unwrap_or_default();
                let last = text.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(io::Error::other(format!("the controller ended: {status}: {last}")));
            }
            if Instant::now() > until {
                let why = format!("{} of {count} switches have not found the controller", count - there.len());
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn connected(line: &Value) -> Option<String> {
    (line["event"] == "connected").then(|| line["switch"].as_str().map(str::to_owned))?
}

pub fn lock(said: &Mutex<Vec<Value>>) -> MutexGuard<'_, Vec<Value>> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}
