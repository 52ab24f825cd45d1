//! The control socket: one JSON object per line in each direction, for the owner of the switch only.
//! A client sends a request (`{"op": "show"}`) and gets `{"ok": ...}` or `{"error": "..."}`, for some reasons
//! `{"refused": {...}}`. A program that attaches to a port in shared memory gets the three descriptors of its port with the
//! answer. It keeps the connection open as long as it uses the port.

use super::capture;
use super::served::{Served, reload};
use super::status::{MacTable, Status, mac_text};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::confine::files::folder_of;
pub use sluicenet_socket::attach::{Attachment, attach};
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 1 << 16;
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// The most connections served at once.
const CONNECTIONS_MAX: usize = 128;
/// How long a request may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take. A switch answers within 15 s: it waits for devices of tenants, but not for longer.
const ANSWERS_IN: Duration = Duration::from_secs(30);
/// How long a switch may take to stop: it first delivers the frames that it holds.
const ENDS_IN: Duration = Duration::from_secs(30);

/// The requests to a switch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The state of the switch and its counters.
    Show,
    /// The switch's name, and the largest IP packet that reaches other servers.
    About,
    /// The forwarding table.
    Macs,
    /// Adds a port, described as in the file.
    AddPort {
        /// The port's name.
        name: String,
        /// `key=value`, as in the file.
        settings: Vec<String>,
    },
    /// Removes a port.
    DelPort {
        /// The port's name.
        name: String,
    },
    /// Attaches to a port in shared memory and returns its descriptors; the port belongs to the caller while the connection
    /// lasts.
    Attach {
        /// The port's name.
        name: String,
    },
    /// Captures the frames at a port, as pcapng after the answer, until the caller shuts its end of the connection.
    Capture {
        /// The port's name.
        port: String,
        /// Bytes kept of each frame; default all.
        snaplen: Option<u32>,
        /// Frames after which the capture ends; default no limit.
        count: Option<u64>,
    },
    /// Reloads the file.
    Reload,
    /// Stops the switch.
    Stop,
}

/// The answers of a switch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Done; a description.
    Ok(String),
    /// The state of the switch and its counters.
    Status(Box<Status>),
    /// The switch's name, and the largest IP packet.
    About(About),
    /// The forwarding table.
    Macs(MacTable),
    /// Not done; the reason.
    Error(String),
    /// Not done, for a reason that callers tell from others.
    Refused {
        /// The reason, in words.
        error: String,
        /// The reason.
        reason: Refusal,
    },
}

/// A reason that callers of a switch tell from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The switch has no port of this name.
    NoSuchPort,
    /// The switch serves as many connections as it can, and has not read the request.
    Busy,
}

/// The facts about a switch that an attachment needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// The switch's name.
    pub name: String,
    /// The size of the largest IP packet that reaches other servers, in bytes; none without an uplink.
    pub mtu: Option<u32>,
    /// Ports that can still be added.
    pub ports_free: usize,
}

/// The control socket of a switch; its file is removed when dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Identifies the socket's file: meanwhile another switch may have created another file at the path.
    file: (u64, u64),
    /// The user that created the socket; the switch may become another user.
    owner: rustix::process::Uid,
}

impl Socket {
    /// Creates the socket; an error if a program answers there already.
    pub fn bind(path: &Path) -> io::Result<Socket> {
        let context = |e: io::Error| io::Error::new(e.kind(), format!("control socket {}: {e}", path.display()));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder_of(path)).map_err(context)?;
        if UnixStream::connect(path).is_ok() {
            return Err(context(io::Error::new(ErrorKind::AddrInUse, "a program answers there already")));
        }
        match std::fs::symlink_metadata(path) {
            Ok(meta) if std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()) => {
                // A file left by a killed switch.
                std::fs::remove_file(path).map_err(context)?;
            }
            Ok(_) => {
                return Err(context(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket")));
            }
            Err(_) => {}
        }
        // From the beginning, no other user may connect.
        let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(mask);
        let listener = bound.map_err(context)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(context)?;
        let file = identity(path).map_err(context)?;
        Ok(Socket { listener, path: path.to_owned(), file, owner: rustix::process::getuid() })
    }

    /// Serves requests until the switch stops.
    pub(crate) fn serve<D: Served>(&self, daemon: &Arc<D>) -> io::Result<()> {
        let connections = Arc::new(AtomicUsize::new(0));
        while !daemon.is_stopping() {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(_) if daemon.is_stopping() => break,
                Err(e) => {
                    // Descriptors may have run out; some may be closed soon.
                    daemon.life().log.count("control socket", &e.to_string());
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if daemon.is_stopping() {
                break;
            }
            let peer = rustix::net::sockopt::socket_peercred(&stream);
            if !peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == self.owner) {
                daemon.life().log.count("control socket", "not the owner");
                continue;
            }
            if connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                connections.fetch_sub(1, Ordering::Relaxed);
                daemon.life().log.count("control socket", "too many connections");
                let error = format!("{CONNECTIONS_MAX} connections are open");
                let _ = say(&stream, &Answer::Refused { error, reason: Refusal::Busy }, &[]);
                continue;
            }
            let (daemon, counted) = (daemon.clone(), Counted(connections.clone()));
            std::thread::spawn(move || {
                // A client that disconnects in the middle of a request is no error of the switch.
                let _ = converse(&stream, &daemon, counted);
            });
        }
        Ok(())
    }

    /// A copy of the listening descriptor, used to end the wait for connections.
    pub(crate) fn listener(&self) -> io::Result<OwnedFd> {
        Ok(self.listener.try_clone()?.into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and number of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// A connection that counts against [`CONNECTIONS_MAX`].
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse<D: Served>(stream: &UnixStream, daemon: &Arc<D>, counted: Counted) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if lines.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        if !line.ends_with('\n') {
            return say(stream, &Answer::Error("a request is one line of at most 64 KiB".into()), &[]);
        }
        let request = match serde_json::from_str::<Request>(&line) {
            Ok(request) => request,
            Err(e) => return say(stream, &Answer::Error(format!("not a request: {e}")), &[]),
        };
        match request {
            Request::Attach { name } => {
                let attached = match daemon.attach(&name) {
                    Ok(attached) => attached,
                    Err(e) => {
                        say(stream, &Answer::Error(e), &[])?;
                        continue;
                    }
                };
                let fds = attached.descriptors();
                let mut answer = serde_json::json!({"ok": format!("attached to {name}: memory, kick, wake")});
                if let Some(mac) = attached.mac {
                    answer["mac"] = mac_text(mac).into();
                }
                if let Some(ip) = attached.ip {
                    answer["ip"] = ip.to_string().into();
                }
                if let Some(mtu) = attached.mtu {
                    answer["mtu"] = mtu.into();
                }
                say(stream, &answer, &fds)?;
                // There is one such program for each port: the number of ports bounds them.
                drop(counted);
                // The port belongs to the program until it closes the connection.
                stream.set_read_timeout(None)?;
                let mut rest = [0; 64];
                while !matches!(lines.read(&mut rest), Ok(0) | Err(_)) {}
                return Ok(());
            }
            Request::Capture { port, snaplen, count } => {
                let snaplen = snaplen.unwrap_or(u32::MAX).max(1);
                match daemon.capture(&port, snaplen) {
                    Ok(capture) => {
                        say(stream, &Answer::Ok(format!("capturing port {port}")), &[])?;
                        // Only this thread waits for a slow reader.
                        stream.set_write_timeout(None)?;
                        return capture::serve(stream, &**daemon, &port, capture, snaplen, count);
                    }
                    Err(e) => say(stream, &Answer::Error(e), &[])?,
                }
            }
            Request::Stop => {
                say(stream, &Answer::Ok("stopped".into()), &[])?;
                daemon.stop();
                // The client sees the end of the connection when the process ends.
                loop {
                    std::thread::park();
                }
            }
            Request::Show => {
                let status = daemon.status().map(Box::new);
                let answer = status.map_or_else(|e| Answer::Error(e.to_string()), Answer::Status);
                say(stream, &answer, &[])?;
            }
            Request::Reload => say(stream, &reload(&**daemon), &[])?,
            request => say(stream, &daemon.answer(request), &[])?,
        }
    }
}

fn say(stream: &UnixStream, answer: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer).map_err(io::Error::other)?;
    line.push(b'\n');
    if fds.is_empty() {
        return (&mut &*stream).write_all(&line);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("more descriptors than one message takes"));
    }
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&line)], &mut ancillary, SendFlags::NOSIGNAL)?;
    (&mut &*stream).write_all(&line[sent..])
}

/// Sends a request to a switch.
///
/// # Errors
/// No switch answers at `path`, or the answer is invalid.
pub fn ask(path: &Path, request: &Request) -> io::Result<Answer> {
    let context = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let stream = ask_at(path, request)?;
    let mut answer = String::new();
    BufReader::new(&stream).take(ANSWER_BYTES_MAX).read_line(&mut answer).map_err(context)?;
    serde_json::from_str(&answer).map_err(|e| context(io::Error::new(ErrorKind::InvalidData, e)))
}

/// Connects to a switch and sends a request.
fn ask_at(path: &Path, request: &Request) -> io::Result<UnixStream> {
    let context = |e: io::Error| {
        let hint = match e.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => ": nothing runs there",
            ErrorKind::PermissionDenied => ": it takes root, or the user who started the switch",
            _ => "",
        };
        io::Error::new(e.kind(), format!("{}: {e}{hint}", path.display()))
    };
    let stream = UnixStream::connect(path).map_err(context)?;
    stream.set_read_timeout(Some(ANSWERS_IN)).map_err(context)?;
    let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
    line.push(b'\n');
    (&mut &stream).write_all(&line).map_err(context)?;
    Ok(stream)
}

/// Whether a failed [`ask`] reached no switch: nothing was asked.
pub fn reached_nobody(e: &io::Error) -> bool {
    // Those of connect(2).
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied)
}

/// Stops a switch and waits until it has ended.
///
/// # Errors
/// No switch answers at `path`, the answer is invalid, or the switch does not end in time.
pub fn stop(path: &Path) -> io::Result<Answer> {
    let context = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let stream = ask_at(path, &Request::Stop)?;
    let mut lines = BufReader::new(&stream).take(ANSWER_BYTES_MAX);
    let mut answer = String::new();
    lines.read_line(&mut answer).map_err(context)?;
    stream.set_read_timeout(Some(ENDS_IN)).map_err(context)?;
    match lines.read(&mut [0; 1]) {
        Ok(_) => {}
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(context(io::Error::new(ErrorKind::TimedOut, "it was told to stop, and did not end")));
        }
        // A reset: the switch has ended.
        Err(_) => {}
    }
    serde_json::from_str(&answer).map_err(|e| context(io::Error::new(ErrorKind::InvalidData, e)))
}

/// The control sockets of running switches in a folder, by the names of the switches.
pub fn running(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned();
            UnixStream::connect(&path).is_ok().then_some((name, path))
        })
        .collect();
    found.sort();
    found
}
