//! The process that a testbed's guests belong to: it starts them, speaks with their consoles for others, and its end is theirs.
//!
//! Whoever may open its socket says, an object a line, what which guest is to do, and gets an object a line.

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

/// How long a guest may take to come up, however many others do at the same time.
pub const BOOT_TIME: Duration = Duration::from_secs(180);
/// What is said when all are up.
pub const ALL_UP: &str = "guests run";
/// What is said of each, before its name.
pub const ONE_UP: &str = "guest ";
/// Bytes of a request.
const REQUEST_BYTES_MAX: u64 = 1 << 14;
/// How often it looks whether it is to end.
const NAP: Duration = Duration::from_millis(50);
/// What an answer may take to come back beyond what the command was given.
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

/// Starts the guests of a testbed from its image and serves their consoles until `stop`; `say` is told how far it is.
///
/// # Errors
/// The first guest that did not come up; the others are gone, too.
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
            // The cloud kernel's own, fq_codel, throws away what waits long: what is held back waits long.
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
    // More at once than there are processors are not up sooner.
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
                // Not waited for: a command that takes long must not keep all of it from ending.
                std::thread::spawn(move || serve(stream, &guests));
            }
            Err(_) => std::thread::sleep(NAP),
        }
    }
    Ok(())
}

/// Answers whoever has connected, until it goes.
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

/// The guests of the testbed that is up, by way of the process that holds them.
#[derive(Clone, Debug)]
pub struct Supervisor {
    socket: PathBuf,
}

impl Supervisor {
    /// Of the testbed in `place`.
    pub fn of(dir: &TestbedDir) -> Supervisor {
        Supervisor { socket: dir.guests() }
    }

    /// Has a guest's shell do one line and waits for its end.
    ///
    /// # Errors
    /// When nobody holds guests, or as [`Guest::run`].
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

    /// Has a guest do what must work; what it said.
    ///
    /// # Errors
    /// As [`Supervisor::run`]; besides an exit code that is not 0.
    pub fn must(&self, tenant: &str, command: &str, patience: Duration) -> io::Result<String> {
        let outcome = self.run(tenant, command, patience)?;
        outcome.must(command).map_err(|e| io::Error::other(format!("{tenant}: {e}")))
    }
}
