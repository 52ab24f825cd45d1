//! Real virtual machines: QEMU guests at the switch, under software emulation. They use an installed Debian kernel and
//! a generated file system with busybox, the modules of the network device, and programs with their libraries.
//!
//! A guest receives commands through its serial console, one at a time.

mod image;
mod machine;
mod needs;
mod parts;
pub mod supervisor;

pub use image::{Contents, Image};
use machine::{Machine, qemu};
pub use needs::{GUESTS_MAX, Needs};
pub use parts::{Nic, Parts, program};

use serde::{Deserialize, Serialize};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::process::Program;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The network device of a guest.
pub const GUEST_DEVICE: &str = "eth0";
/// The most bytes of a line that a terminal takes, less the line's end (termios(3), canonical mode).
const COMMAND_BYTES_MAX: usize = 4_000;

/// The beginning of the line that reports a command's exit code.
pub(crate) const MARK: &str = "=== ";
/// The most bytes of output of one command.
const SAID_BYTES_MAX: usize = 64 << 20;

/// An error of a guest.
#[derive(Debug)]
pub enum GuestError {
    /// A missing program or kernel.
    Missing(String),
    /// An error with a file, a program or a socket.
    Io(String, io::Error),
    /// A command that is not one line, or that is too long.
    BadCommand(String),
    /// The guest ended; holds the last output of its console.
    Ended(String),
    /// The guest did not finish this command in time; also holds the last output of its console.
    Late(String, String),
    /// A command's output was longer than this.
    Verbose(usize),
    /// Not enough memory: the number of guests, the MiB that they need, the MiB that are available.
    Memory(usize, u64, u64),
    /// A command failed in the guest: the command, its exit code, its output.
    Failed(String, i32, String),
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestError::Missing(what) => {
                write!(f, "{what}: a guest needs qemu-system-x86_64, a static busybox and a Debian kernel ")?;
                f.write_str("(apt-get install qemu-system-x86 busybox-static linux-image-cloud-amd64)")
            }
            GuestError::Io(what, e) => write!(f, "{what}: {e}"),
            GuestError::BadCommand(command) => {
                write!(f, "{command:?}: one line of at most {COMMAND_BYTES_MAX} bytes is expected")
            }
            GuestError::Ended(said) => write!(f, "the guest ended; its console said: {said}"),
            GuestError::Late(what, said) => write!(f, "the guest did not {what} in time; its console said: {said}"),
            GuestError::Verbose(most) => write!(f, "the guest said more than {most} bytes"),
            GuestError::Memory(guests, needed, free) => {
                write!(f, "{guests} guests need {needed} MiB of memory, and this machine has {free} MiB to give: ")?;
                f.write_str("fewer of them (server.vms, topology.hosts), or testbed.tenants = \"namespaces\"")
            }
            GuestError::Failed(command, code, said) => write!(f, "in a guest: {command}: exit code {code}: {said}"),
        }
    }
}

impl std::error::Error for GuestError {}

fn at(path: &Path) -> impl FnOnce(io::Error) -> GuestError {
    move |e| GuestError::Io(path.display().to_string(), e)
}

/// The connection between a guest's network device and a switch.
#[derive(Debug)]
pub enum Attachment {
    /// The socket of a port at which the switch listens, for [`Nic::Virtio`].
    VhostUser(PathBuf),
    /// A TAP device that QEMU creates, and that ends with QEMU.
    Tap {
        /// The name of the namespace in which QEMU runs and creates the device.
        namespace: String,
        /// The device's name in the namespace.
        device: String,
    },
    /// A datagram socket: see [`SocketPort`](sluicenet_dataplane::kernel::socket::SocketPort).
    Socket(OwnedFd),
}

/// The settings of a guest.
#[derive(Debug)]
pub struct GuestConfig {
    /// The MAC address of the guest's network device, `eth0`.
    pub mac: [u8; 6],
    /// The IPv4 address of `eth0`.
    pub address: Ipv4Addr,
    /// The prefix length of this address.
    pub prefix: u8,
    /// The largest IP packet of the device.
    pub mtu: u32,
    /// The kind of network device.
    pub nic: Nic,
    /// The connection with the switch.
    pub attachment: Attachment,
    /// Whether the guest may leave checksums and segmentation to the receiver of its frames, if its device supports
    /// that.
    pub offloads: bool,
    /// The queueing discipline of the device, built into the guest's kernel; default the kernel's choice.
    pub queue: Option<&'static str>,
    /// The guest's image; several guests may share one.
    pub image: Image,
    /// The guest's memory, in MiB.
    pub memory_mib: u32,
}

/// The result of a command in a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The command's exit code.
    pub code: i32,
    /// The command's output.
    pub text: String,
}

impl Outcome {
    /// The output, if `command` succeeded.
    ///
    /// # Errors
    /// An exit code that is not 0.
    pub fn must(self, command: &str) -> Result<String, GuestError> {
        match self.code {
            0 => Ok(self.text),
            code => Err(GuestError::Failed(command.into(), code, self.text.trim().into())),
        }
    }
}

/// A running guest, killed when dropped.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    console: UnixStream,
    /// Output of the console that has not been taken yet.
    said: Vec<u8>,
    commands: u64,
}

/// A guest that has been started and does not take commands yet; killed when dropped.
#[derive(Debug)]
pub struct Booting {
    machine: Machine,
    listener: UnixListener,
    socket: PathBuf,
    set_up: String,
}

impl Booting {
    /// The process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.machine.0.id()
    }

    /// Waits until the guest takes commands, and configures its network device.
    ///
    /// # Errors
    /// The guest ends, or does not take commands in time.
    pub fn wait(mut self, timeout: Duration) -> Result<Guest, GuestError> {
        let until = Instant::now() + timeout;
        let console = loop {
            match self.listener.accept() {
                Ok((console, _)) => break console,
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(at(&self.socket)(e)),
                Err(_) if Instant::now() > until => return Err(GuestError::Late("start".into(), String::new())),
                Err(_) if self.machine.has_ended() => return Err(GuestError::Ended(String::new())),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        console.set_nonblocking(false).map_err(at(&self.socket))?;
        console.set_read_timeout(Some(Duration::from_millis(100))).map_err(at(&self.socket))?;
        let mut guest = Guest { machine: self.machine, console, said: Vec::new(), commands: 0 };
        guest.outcome("come up", until)?;
        guest.must(&self.set_up, until.saturating_duration_since(Instant::now()))?;
        Ok(guest)
    }
}

impl Guest {
    /// Starts a guest. `folder`, the guest's own, is for its console.
    ///
    /// # Errors
    /// A socket that cannot be made, or a program that cannot be started.
    pub fn spawn(parts: &Parts, config: &GuestConfig, folder: &Path) -> Result<Booting, GuestError> {
        let socket = folder.join("console");
        let listener = UnixListener::bind(&socket).map_err(at(&socket))?;
        listener.set_nonblocking(true).map_err(at(&socket))?;
        let command = qemu(parts, config, &socket)?;
        let namespace = match &config.attachment {
            Attachment::Tap { namespace, .. } => {
                Some(Namespace::open(namespace).map_err(|e| at(&parts.qemu)(e.into()))?)
            }
            Attachment::VhostUser(_) | Attachment::Socket(_) => None,
        };
        let machine = Machine(Program::spawn(command, namespace.as_ref()).map_err(at(&parts.qemu))?);
        let (address, prefix, mtu) = (config.address, config.prefix, config.mtu);
        let queue = config.queue.map(|q| format!("echo {q} >/proc/sys/net/core/default_qdisc && "));
        let queue = queue.unwrap_or_default();
        let set_up = format!("{queue}ip addr add {address}/{prefix} dev eth0 && ip link set eth0 mtu {mtu} up");
        Ok(Booting { machine, listener, socket, set_up })
    }

    /// Starts a guest and waits until it takes commands.
    ///
    /// # Errors
    /// As [`Guest::spawn`] and [`Booting::wait`].
    pub fn start(parts: &Parts, config: &GuestConfig, folder: &Path, timeout: Duration) -> Result<Guest, GuestError> {
        Guest::spawn(parts, config, folder)?.wait(timeout)
    }

    /// Runs a command that must succeed; its output.
    ///
    /// # Errors
    /// As [`Guest::run`]; also an exit code other than 0.
    pub fn must(&mut self, command: &str, timeout: Duration) -> Result<String, GuestError> {
        self.run(command, timeout)?.must(command)
    }

    /// Runs one line in the guest's shell and waits for its end.
    ///
    /// # Errors
    /// A command that is not one line, a guest that has ended, or a command that takes longer than `timeout`.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<Outcome, GuestError> {
        if command.len() > COMMAND_BYTES_MAX || command.chars().any(char::is_control) {
            return Err(GuestError::BadCommand(command.into()));
        }
        self.commands += 1;
        let sent = self.console.write_all(format!("{command}\n").as_bytes());
        sent.map_err(|e| GuestError::Io("the guest's console".into(), e))?;
        self.outcome(command, Instant::now() + timeout)
    }

    /// Reads until the last command has ended, and skips the results of earlier commands that timed out.
    fn outcome(&mut self, what: &str, until: Instant) -> Result<Outcome, GuestError> {
        loop {
            while let Some((number, outcome)) = next_outcome(&mut self.said) {
                if number == self.commands {
                    return Ok(outcome);
                }
            }
            let said = || String::from_utf8_lossy(&self.said).into_owned();
            if Instant::now() > until {
                return Err(GuestError::Late(what.into(), said()));
            }
            let mut bytes = [0; 4096];
            match self.console.read(&mut bytes) {
                Ok(0) => return Err(GuestError::Ended(said())),
                Ok(n) if self.said.len() + n > SAID_BYTES_MAX => return Err(GuestError::Verbose(SAID_BYTES_MAX)),
                Ok(n) => self.said.extend(&bytes[..n]),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) if self.machine.has_ended() => return Err(GuestError::Ended(said())),
                Err(e) => return Err(GuestError::Io("the guest's console".into(), e)),
            }
        }
    }
}

/// Takes the output up to the next line with a command's exit code; returns the command's number and result.
fn next_outcome(said: &mut Vec<u8>) -> Option<(u64, Outcome)> {
    let (mut taken, mut bytes) = (String::new(), 0);
    for line in said.split_inclusive(|&b| b == b'\n').filter(|line| line.ends_with(b"\n")) {
        bytes += line.len();
        let line = String::from_utf8_lossy(line).replace('\r', "");
        if let Some((number, code)) = line.strip_prefix(MARK).and_then(|l| l.trim_end().split_once(' '))
            && let (Ok(number), Ok(code)) = (number.parse(), code.parse())
        {
            said.drain(..bytes);
            return Some((number, Outcome { code, text: taken }));
        }
        taken += &line;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_with_its_own_mark_and_no_other() {
        let mut said = b"=== 0 0\r\nhello\r\n=== x\r\n=== 1 ".to_vec();
        assert_eq!(next_outcome(&mut said), Some((0, Outcome { code: 0, text: String::new() })));
        assert_eq!(next_outcome(&mut said), None, "not before the end of the line");
        said.extend(b"3\r\nmore");
        assert_eq!(next_outcome(&mut said), Some((1, Outcome { code: 3, text: "hello\n=== x\n".into() })));
        assert_eq!(said, b"more");
    }
}
