//! A flow with an end as the live migration of an idle QEMU guest (4.5): its time, and its bytes.

use super::network::Network;
use super::plan::{Finite, Plan};
use crate::flows::Beside;
use crate::flows::ends::nap;
use crate::guest::{Contents, GuestError, Image, MARK, Nic, Parts};
use crate::namespaces::check;
use crate::pa::PaError;
use serde_json::{Value, json};
use sluicenet_dataplane::process::Program;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The port at which the first guest is awaited.
const FIRST_PORT: u16 = 4_444;
/// The time limit for a guest to boot, and for QEMU to answer.
const BOOTS_IN: Duration = Duration::from_secs(180);
const ANSWERS_IN: Duration = Duration::from_secs(20);
/// How often QEMU is asked.
const LOOK: Duration = Duration::from_millis(20);

/// What this machine lacks for guests, a line each.
pub fn missing() -> Vec<String> {
    Parts::find(Nic::Virtio).err().map(|e| format!("guests, for migrations: {e}")).into_iter().collect()
}

/// A guest that is to move.
#[derive(Debug)]
pub(super) struct Migration {
    of: Finite,
    /// They end when this is dropped.
    _machines: [Program; 2],
    monitor: PathBuf,
    uri: String,
    begun: AtomicBool,
    took_ms: AtomicU64,
    bytes: AtomicU64,
}

impl Migration {
    /// Boots a guest at the sender of a flow, and has the receiver await it.
    ///
    /// # Errors
    /// A program that does not start, or a guest that does not boot; [`ErrorKind::Interrupted`] when `stop` was raised.
    pub fn start(plan: &Plan, network: &Network, of: (&Finite, u16), stop: &AtomicBool) -> io::Result<Migration> {
        let (of, number) = of;
        let failed = |e: GuestError| io::Error::other(e.to_string());
        let parts = Parts::find(Nic::Virtio).map_err(failed)?;
        let image = Image::write(&parts, &Contents::default(), &network.folder().join("image")).map_err(failed)?;
        let console = network.folder().join(format!("guest{number}.console"));
        let [monitor, other] = ["from", "to"].map(|end| network.folder().join(format!("guest{number}-{end}.qmp")));
        let uri = format!("tcp:{}:{}", plan.hosts[of.flow.to.0 as usize].address, FIRST_PORT + number);
        let mut source = qemu(&parts, &image, &monitor);
        source.arg("-chardev").arg(format!("file,id=console,path={}", console.display()));
        let mut source = Program::spawn(source, Some(&network.namespace(of.flow.from.0)?))?;
        let until = Instant::now() + BOOTS_IN;
        while !std::fs::read_to_string(&console).unwrap_or_default().contains(MARK) {
            alive(&mut source, (until, stop), "the guest did not boot")?;
        }
        let mut target = qemu(&parts, &image, &other);
        target.args(["-chardev", "null,id=console", "-incoming", &uri]);
        let mut target = Program::spawn(target, Some(&network.namespace(of.flow.to.0)?))?;
        let until = Instant::now() + ANSWERS_IN;
        while Monitor::open(&other).is_err() {
            alive(&mut target, (until, stop), "QEMU did not start")?;
        }
        let (begun, took_ms, bytes) = Default::default();
        Ok(Migration { of: of.clone(), _machines: [source, target], monitor, uri, begun, took_ms, bytes })
    }

    /// Moves the guest when its flow begins.
    pub fn work(&self) -> Beside<'_> {
        Box::new(move |over| {
            nap(Instant::now() + self.of.flow.start, over);
            if over.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.begun.store(true, Ordering::Relaxed);
            self.run(over).map_err(|e| PaError::io("the migration of a guest", &e))
        })
    }

    fn run(&self, over: &AtomicBool) -> io::Result<()> {
        let mut monitor = Monitor::open(&self.monitor)?;
        monitor.ask("migrate", &json!({ "uri": self.uri }))?;
        while !over.load(Ordering::Relaxed) {
            let now = monitor.ask("query-migrate", &json!({}))?;
            self.bytes.store(now["ram"]["transferred"].as_u64().unwrap_or(0), Ordering::Relaxed);
            match now["status"].as_str() {
                Some("completed") => {
                    self.took_ms.store(now["total-time"].as_u64().unwrap_or(0).max(1), Ordering::Relaxed);
                    return Ok(());
                }
                Some("failed" | "cancelled") => return Err(io::Error::other(now.to_string())),
                _ => std::thread::sleep(LOOK),
            }
        }
        Ok(())
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// How long it took, if it ended in time.
    pub fn took(&self) -> Option<Duration> {
        Some(self.took_ms.load(Ordering::Relaxed)).filter(|&ms| ms > 0).map(Duration::from_millis)
    }

    /// Bytes of the guest's memory that were sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A guest without devices, which does nothing once it has booted.
fn qemu(parts: &Parts, image: &Image, monitor: &Path) -> Command {
    let mut command = Command::new(&parts.qemu);
    command.args(["-accel", "tcg,tb-size=64", "-machine", "q35", "-cpu", "max", "-nodefaults", "-no-user-config"]);
    command.args(["-display", "none", "-no-reboot", "-m", &image.memory_mib().to_string()]);
    command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(image.path());
    command.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check"]);
    command.args(["-serial", "chardev:console"]);
    command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", monitor.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits a little; an error if the program has ended, it is too late, or `stop` was raised.
fn alive(program: &mut Program, (until, stop): (Instant, &AtomicBool), why: &str) -> io::Result<()> {
    check(stop)?;
    if let Some(status) = program.try_wait()? {
        return Err(io::Error::other(format!("{why}: QEMU ended: {status}")));
    }
    if Instant::now() > until {
        return Err(io::Error::new(ErrorKind::TimedOut, why));
    }
    std::thread::sleep(LOOK);
    Ok(())
}

/// QEMU's monitor: a line of JSON for each request and each answer.
struct Monitor {
    lines: BufReader<UnixStream>,
}

impl Monitor {
    fn open(path: &Path) -> io::Result<Monitor> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWERS_IN))?;
        let mut monitor = Monitor { lines: BufReader::new(stream) };
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn ask(&mut self, what: &str, arguments: &Value) -> io::Result<Value> {
        let request = json!({ "execute": what, "arguments": arguments });
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes())?;
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "QEMU ended"));
            }
            let mut answer: Value = serde_json::from_str(&line)?;
            if answer.get("error").is_some() {
                return Err(io::Error::other(answer["error"].to_string()));
            }
            // Its greeting, and events, are no answers.
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }
}
