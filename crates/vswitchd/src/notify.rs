//! What the service manager hears (sd_notify(3)); nothing if none has started the switch.

use super::status::counted;
use sd_notify::NotifyState;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};
use tracing::warn;

/// The socket to the service manager. It is connected before the sandbox, which allows no connections.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    /// The last line of state that the service manager was told.
    last: Mutex<String>,
}

impl Notify {
    /// The socket that the environment names, if it names one.
    pub fn connect() -> Notify {
        let connected = std::env::var_os("NOTIFY_SOCKET").map(|path| {
            let bytes = path.as_bytes();
            let address = match bytes.strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(&path)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            Ok(socket)
        });
        let socket = connected.transpose().unwrap_or_else(|error: io::Error| {
            warn!(%error, "service manager not told");
            None
        });
        Notify { socket, last: Mutex::default() }
    }

    /// The switch serves its ports: at the start, and after a reload.
    pub fn ready(&self, ports: usize, absent: &[String]) {
        self.send(&[NotifyState::Ready]);
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.state(ports, absent);
    }

    /// Tells the number of ports and the absent ones, if either has changed.
    pub fn state(&self, ports: usize, absent: &[String]) {
        let mut line = counted(ports as u64, "port", "ports");
        if !absent.is_empty() {
            line += &format!(", absent: {}", absent.join(", "));
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != line {
            self.send(&[NotifyState::Status(&line)]);
            *last = line;
        }
    }

    /// A reload begins.
    pub fn reloading(&self) {
        let Ok(now) = NotifyState::monotonic_usec_now() else { return };
        self.send(&[NotifyState::Reloading, now]);
    }

    /// The switch delivers the frames that it holds and ends.
    pub fn stopping(&self) {
        self.send(&[NotifyState::Stopping, NotifyState::Status("delivers the frames that it holds")]);
    }

    fn send(&self, state: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut text = String::new();
        state.iter().for_each(|line| writeln!(text, "{line}").expect("a text"));
        if let Err(error) = socket.send(text.as_bytes()) {
            warn!(%error, "service manager not told");
        }
    }
}
