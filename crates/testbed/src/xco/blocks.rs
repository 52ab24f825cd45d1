//! Rounds as reads of blocks that are striped over servers: `fio` at the receiver, `nbdkit` at the senders, NBD between them
//! (the source has iSCSI).

use super::measure::{RoundFigures, Times};
use super::network::Network;
use super::plan::{Plan, Rounds};
use crate::flows::{Beside, real};
use crate::namespaces::check;
use crate::pa::PaError;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::process::Program;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// NBD's port.
const PORT: u16 = 10_809;
/// The size of a server's device: more than a run reads, so that nothing is read twice in a row.
const DEVICE: &str = "size=64G";
/// The striped device of the client.
const STRIPES: &str = include_str!("stripes.py");
/// The time limit for a server to listen, and for fio to end after the run.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit for fio to end when it is interrupted. Its read may wait for a timeout of TCP.
const ENDS_IN: Duration = Duration::from_secs(2);

/// What this machine lacks for reads of blocks, a line each.
pub fn missing() -> Vec<String> {
    let works = |program: &str, args: &[&str], says: &str| {
        let out = Command::new(program).args(args).stdin(Stdio::null()).output();
        out.is_ok_and(|out| out.status.success() && String::from_utf8_lossy(&out.stdout).contains(says))
    };
    let mut lacks = Vec::new();
    for (program, args, says, package) in [
        ("fio", &["--enghelp"][..], "nbd", "fio"),
        ("nbdkit", &["pattern", "--dump-plugin"], "name=pattern", "nbdkit"),
        ("nbdkit", &["python", "--dump-plugin"], "name=python", "nbdkit-plugin-python"),
        ("/usr/bin/python3", &["-c", "import nbd; print(nbd.NBD)"], "NBD", "python3-libnbd"),
    ] {
        if !works(program, args, says) {
            lacks.push(format!("{package}, for reads of blocks; on Debian: apt-get install {package}"));
        }
    }
    lacks
}

/// The servers, and the device of the client.
#[derive(Debug)]
pub(super) struct Blocks {
    of: Rounds,
    /// They end when this is dropped.
    _programs: Vec<Program>,
    socket: PathBuf,
    client: String,
    output: Mutex<Option<RoundFigures>>,
}

impl Blocks {
    /// Starts the servers of a round's senders, and the device of its receiver, and waits until they answer.
    ///
    /// # Errors
    /// A program that does not start; [`io::ErrorKind::Interrupted`] when `stop` was raised.
    pub fn start(plan: &Plan, network: &Network, of: &Rounds, stop: &AtomicBool) -> io::Result<Blocks> {
        let receiver = &plan.hosts[of.receiver as usize];
        let socket = network.folder().join(format!("blocks{}.sock", of.receiver));
        let script = network.folder().join("stripes.py");
        std::fs::write(&script, STRIPES)?;
        let mut programs = Vec::new();
        let mut device = Command::new("nbdkit");
        device.arg("--foreground").arg("--unix").arg(&socket).arg("python").arg(&script);
        device.arg(format!("unit={}", of.bytes));
        for &sender in &of.senders {
            let host = &plan.hosts[sender as usize];
            let address = host.address.to_string();
            device.arg(format!("server={address}"));
            let mut server = Command::new("nbdkit");
            server.args(["--foreground", "--ipaddr", &address, "--port", &PORT.to_string(), "pattern", DEVICE]);
            let space = network.namespace(sender)?;
            programs.push(spawn(server, network, &space)?);
            let until = Instant::now() + PATIENCE;
            while space.enter(|| TcpStream::connect(SocketAddr::from((host.address, PORT)))).is_ok_and(|c| c.is_err()) {
                alive(&mut programs, until, stop)?;
            }
        }
        let space = network.namespace(of.receiver)?;
        programs.push(spawn(device, network, &space)?);
        let until = Instant::now() + PATIENCE;
        while !socket.exists() {
            alive(&mut programs, until, stop)?;
        }
        let client = receiver.namespace.clone();
        Ok(Blocks { of: of.clone(), _programs: programs, socket, client, output: Mutex::new(None) })
    }

    /// Reads until the run is over. A run that ends before its time interrupts fio, which then has the figures until then.
    pub fn work<'a>(&'a self, plan: &Plan, stop: &'a AtomicBool) -> Beside<'a> {
        let [warmup, duration] = [plan.scenario.warmup, plan.scenario.duration.unwrap_or_default()].map(real);
        let seconds = |time: Duration| format!("{}ms", time.as_millis());
        let block = self.of.bytes * self.of.senders.len() as u64;
        let mut fio = Command::new("fio");
        fio.args([
            "--name=blocks",
            "--ioengine=nbd",
            "--rw=read",
            "--iodepth=1",
            "--time_based=1",
            "--output-format=json",
        ]);
        fio.arg(format!("--uri=nbd+unix:///?socket={}", self.socket.display()));
        fio.arg(format!("--bs={block}")).arg(format!("--size={}", block * 100_000));
        fio.arg(format!("--ramp_time={}", seconds(warmup))).arg(format!("--runtime={}", seconds(duration - warmup)));
        fio.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Box::new(move |over| {
            let figures = self.read(fio, duration, (over, stop)).map_err(|e| PaError::io("fio", &e))?;
            *self.output.lock().unwrap_or_else(PoisonError::into_inner) = figures;
            Ok(())
        })
    }

    fn read(
        &self,
        fio: Command,
        duration: Duration,
        (over, stop): (&AtomicBool, &AtomicBool),
    ) -> io::Result<Option<RoundFigures>> {
        let space = Namespace::open(&self.client)?;
        let whole = Instant::now() + duration;
        let mut fio = Program::spawn(fio, Some(&space))?;
        let (mut late_at, mut cut_at) = (None, None);
        while fio.try_wait()?.is_none() {
            let now = Instant::now();
            let (is_over, is_stopped) = (over.load(Ordering::Relaxed), stop.load(Ordering::Relaxed));
            if cut_at.is_none() && (is_stopped || is_over && now < whole) {
                cut_at = Some(now + ENDS_IN);
                kill_process(Pid::from_child(&fio), Signal::INT)?;
            }
            if cut_at.is_some_and(|at| now > at) {
                return Ok(None);
            }
            if is_over && now > *late_at.get_or_insert(now + PATIENCE) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut text = String::new();
        if let Some(mut out) = fio.stdout.take() {
            out.read_to_string(&mut text)?;
        }
        if cut_at.is_some() && text.is_empty() {
            // It was not ready to be interrupted yet.
            return Ok(None);
        }
        // Notes come before the object.
        let at = text.find('{').unwrap_or(0);
        let value: Value = serde_json::from_str(&text[at..]).map_err(|e| io::Error::other(format!("{e}: {text}")))?;
        let all = figures(&value["jobs"][0]["read"]);
        all.map(Some).ok_or_else(|| io::Error::other(format!("its output lacks figures: {text}")))
    }

    /// What fio measured; none if it did not end when it was stopped.
    pub fn figures(&self) -> Option<RoundFigures> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The figures of fio's reads; none if one is missing.
fn figures(read: &Value) -> Option<RoundFigures> {
    let times = &read["clat_ns"];
    let ms = |value: &Value| value.as_f64().map(|ns| ns / 1e6);
    let percentile = |percent: &str| ms(&times["percentile"][percent]);
    let whole = match times["N"].as_u64()? {
        // fio has one read at a time, and gives no percentiles of none.
        0 => Times { unfinished: 1, ..Times::default() },
        count => Times {
            count: count as usize,
            unfinished: 0,
            mean_ms: ms(&times["mean"])?,
            p50_ms: percentile("50.000000")?,
            p99_ms: percentile("99.000000")?,
            max_ms: ms(&times["max"])?,
        },
    };
    Some(RoundFigures { whole, transfer: whole, mbps: read["bw_bytes"].as_f64()? * 8.0 / 1e6 })
}

fn spawn(mut command: Command, network: &Network, space: &Namespace) -> io::Result<Program> {
    let log = std::fs::File::options().create(true).append(true).open(network.folder().join("blocks.log"))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Program::spawn(command, Some(space))
}

/// Waits a little; an error if a program has ended, it is too late, or `stop` was raised.
fn alive(programs: &mut [Program], until: Instant, stop: &AtomicBool) -> io::Result<()> {
    check(stop)?;
    for program in programs {
        if let Some(status) = program.try_wait()? {
            return Err(io::Error::other(format!("nbdkit ended: {status}")));
        }
    }
    if Instant::now() > until {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "nbdkit does not answer"));
    }
    std::thread::sleep(Duration::from_millis(10));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_fio_is_read() {
        let read = serde_json::json!({ "bw_bytes": 11_600_000, "clat_ns": { "N": 58, "mean": 85.5e6, "max": 89.0e6,
            "percentile": { "50.000000": 85.2e6, "99.000000": 88.0e6 } } });
        let all = figures(&read).unwrap();
        assert_eq!((all.mbps, all.whole.count, all.whole.p99_ms), (92.8, 58, 88.0));
        let none = figures(&serde_json::json!({ "bw_bytes": 0, "clat_ns": { "N": 0 } })).unwrap();
        assert_eq!((none.whole.count, none.whole.unfinished, none.mbps), (0, 1, 0.0));
        let lacks = |key: &str| {
            let mut read = read.clone();
            read["clat_ns"].as_object_mut().unwrap().remove(key);
            figures(&read)
        };
        assert_eq!(["N", "mean", "max", "percentile"].map(lacks), [const { None }; 4]);
    }
}
