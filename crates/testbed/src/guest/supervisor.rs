//! The process that supervises a testbed's guests: it starts them, serves their consoles, and ends them with itself.
//! A client of its socket sends commands for guests, one JSON object per line, and gets one object per line.

use super::{Attachment, Booting, GUEST_DEVICE, Guest, GuestConfig, GuestError, Image, Nic, Outcome, Parts};
use crate::files::TestbedDir;
use crate::{Plan, Program, Tenant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// How long a guest may take to start, however many start at the same time.
pub const BOOT_TIME: Duration = Duration::from_secs(180);
/// The message when all guests have started.
pub const ALL_UP: &str = "guests run";
/// The message for each guest, in front of its name.
pub const ONE_UP: &str = "guest ";
/// The most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 1 << 14;
/// How often the supervisor checks for a stop.
const NAP: Duration = Duration::from_millis(50);
/// The time for an answer in addition to the command's own time.
const SLACK: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    tenant: String,
    command: String,
    patience_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Done(Outcome),
    Error(String),
}

type Guests = BTreeMap<String, Mutex<Guest>>;

/// Starts the guests of a testbed from its image and serves their consoles until `stop`; `say` gets the progress.
///
/// # Errors
/// The first guest that did not start; the others are ended too.
pub fn run(plan: &Plan, dir: &TestbedDir, say: &dyn Fn(&str), stop: &AtomicBool) -> Result<(), GuestError> {
    let at = |what: PathBuf| move |e: io::Error| GuestError::Io(what.display().to_string(), e);
    let socket = dir.guests();
    let listener = UnixListener::bind(&socket).map_err(at(socket.clone()))?;
    listener.set_nonblocking(true).map_err(at(socket))?;
    let program = std::env::current_exe().map_err(at("this program".into()))?;
    let parts = Parts::find(Nic::Virtio)?;
    let image = Image::open(&dir.image())?;
    let tenants: Vec<&Tenant> = plan.servers.iter().flat_map(|s| &s.tenants).collect();
    let spawn = |tenant: &Tenant| {
        let folder = dir.folder().join(&tenant.namespace);
        std::fs::create_dir_all(&folder).map_err(at(folder.clone()))?;
        let config = GuestConfig {
            mac: tenant.mac.0,
            address: tenant.address,
            prefix: Plan::OVERLAY_PREFIX,
            mtu: plan.tenant_mtu,
            nic: Nic::Virtio,
            attachment: Attachment::VhostUser(dir.port(tenant)),
            offloads: false,
            // The cloud kernel's default, fq_codel, drops frames that wait long, and frames under backpressure do wait long.
            queue: Some("pfifo_fast"),
            memory_mib: image.memory_mib(),
            image: image.clone(),
        };
        let booting = Guest::spawn(&parts, &config, &folder)?;
        let pid = i32::try_from(booting.pid()).unwrap_or(i32::MAX);
        Program::new(&tenant.namespace, pid).record(dir).map_err(at(dir.programs()))?;
        Ok(booting)
    };
    let agent = plan.flow_control.virtual_lossless().then(|| {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("/usr/bin/{name} agent --interface {GUEST_DEVICE} >/tmp/agent 2>&1 &")
    });
    let wait = |booting: Booting| {
        let mut guest = booting.wait(BOOT_TIME)?;
        agent.as_ref().map(|command| guest.must(command, BOOT_TIME)).transpose()?;
        Ok(guest)
    };
    // Starting more at once than there are processors is not faster.
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let guests = std::thread::scope(|scope| {
        let (up, ups) = mpsc::channel::<(&str, Result<Guest, GuestError>)>();
        let (mut waiting, mut guests) = (tenants.iter(), Guests::new());
        let mut boot = || {
            if let Some(tenant) = waiting.next() {
                let (booting, up, wait) = (spawn(tenant)?, up.clone(), &wait);
                scope.spawn(move || up.send((&tenant.namespace, wait(booting))));
            }
            Ok(())
        };
        (0..at_once).try_for_each(|_| boot())?;
        while guests.len() < tenants.len() {
            match ups.recv_timeout(NAP) {
                Ok((name, guest)) => {
                    guests.insert(name.to_owned(), Mutex::new(guest?));
                    say(&format!("{ONE_UP}{name} is up, {} of {}", guests.len(), tenants.len()));
                    boot()?;
                }
                Err(_) if stop.load(Ordering::Relaxed) => return Err(GuestError::Ended("it was stopped".into())),
                Err(_) => {}
            }
        }
        Ok(guests)
    })?;
    say(ALL_UP);
    let guests = Arc::new(guests);
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let guests = guests.clone();
                // These threads are not joined: a long command must not delay the end.
                std::thread::spawn(move || serve(stream, &guests));
            }
            Err(_) => std::thread::sleep(NAP),
        }
    }
    Ok(())
}

/// Answers a client until it disconnects.
fn serve(stream: UnixStream, guests: &Guests) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut reader = BufReader::new(&stream).take(REQUEST_BYTES_MAX);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let answer = answer(&line, guests).unwrap_or_else(Answer::Error);
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        (&stream).write_all(&bytes)?;
        line.clear();
        reader.set_limit(REQUEST_BYTES_MAX);
    }
    Ok(())
}

fn answer(line: &str, guests: &Guests) -> Result<Answer, String> {
    let request: Request = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let guest = guests.get(&request.tenant).ok_or_else(|| format!("there is no guest {}", request.tenant))?;
    let patience = Duration::from_millis(request.patience_ms);
    let outcome = guest.lock().unwrap_or_else(PoisonError::into_inner).run(&request.command, patience);
    outcome.map(Answer::Done).map_err(|e| e.to_string())
}

/// A client of the running testbed's supervisor.
#[derive(Clone, Debug)]
pub struct Supervisor {
    socket: PathBuf,
}

impl Supervisor {
    /// The supervisor of the testbed in `dir`.
    pub fn of(dir: &TestbedDir) -> Supervisor {
        Supervisor { socket: dir.guests() }
    }

    /// Runs a shell command in a guest and waits for its end.
    ///
    /// # Errors
    /// There is no supervisor, or as [`Guest::run`].
    pub fn run(&self, tenant: &str, command: &str, patience: Duration) -> io::Result<Outcome> {
        let mut stream = UnixStream::connect(&self.socket).map_err(|e| {
            io::Error::new(e.kind(), format!("nobody holds the guests ({}): {e}", self.socket.display()))
        })?;
        stream.set_read_timeout(Some(patience + SLACK))?;
        let patience_ms = patience.as_millis() as u64;
        let mut line = serde_json::to_string(&Request { tenant: tenant.into(), command: command.into(), patience_ms })?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the process that holds the guests has ended"));
        }
        match serde_json::from_str(&line)? {
            Answer::Done(outcome) => Ok(outcome),
            Answer::Error(why) => Err(io::Error::other(format!("{tenant}: {why}"))),
        }
    }

    /// Runs a command that must succeed; its output.
    ///
    /// # Errors
    /// As [`Supervisor::run`]; also an exit code other than 0.
    pub fn must(&self, tenant: &str, command: &str, patience: Duration) -> io::Result<String> {
        let outcome = self.run(tenant, command, patience)?;
        outcome.must(command).map_err(|e| io::Error::other(format!("{tenant}: {e}")))
    }
}
