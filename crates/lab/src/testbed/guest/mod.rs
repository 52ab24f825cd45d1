//! Real virtual machines: QEMU guests at the switch, under software emulation, from an installed Debian kernel and a file
//! system made on the spot: busybox, the modules of the network device, and programs with their libraries.
//!
//! A guest is told what to do through its serial console, one command at a time.

pub mod hold;
mod image;
mod needs;

pub use image::{Contents, Image};
pub use needs::{GUESTS_MAX, Needs};

use serde::{Deserialize, Serialize};
use sluicenet_dataplane::kernel::netns::Namespace;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A guest's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Nic {
    /// Made for virtual machines
    Virtio,
    /// Intel's, emulated whole
    E1000,
}

impl Nic {
    /// Its modules, each after those it needs, and those of what an agent asks the kernel.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Nic::Virtio => &[
                "virtio_ring",
                "virtio",
                "virtio_pci_modern_dev",
                "virtio_pci_legacy_dev",
                "virtio_pci",
                "failover",
                "net_failover",
                "virtio_net",
                "inet_diag",
                "udp_diag",
            ],
            Nic::E1000 => &["e1000", "inet_diag", "udp_diag"],
        }
    }

    /// The package of a kernel that has them.
    fn package(self) -> &'static str {
        match self {
            Nic::Virtio => "linux-image-cloud-amd64",
            // The cloud kernel leaves it out.
            Nic::E1000 => "linux-image-amd64",
        }
    }
}

/// The network device of a guest.
pub const GUEST_DEVICE: &str = "eth0";
/// Bytes of a line that a terminal takes at once, less its end (termios(3), canonical mode).
const COMMAND_BYTES_MAX: usize = 4_000;

/// Begins the line that says how a command ended.
const MARK: &str = "=== ";
/// Bytes that a guest may say in answer to one command.
const SAID_BYTES_MAX: usize = 64 << 20;
/// MiB of code that QEMU keeps translated of a guest: it would take up to a gigabyte.
pub const TRANSLATED_MIB: u32 = 64;
/// Congestion controls that a scenario may ask for and a kernel has as a module, where it has one.
const CONGESTION_MODULES: [&str; 1] = ["tcp_vegas"];

/// Why there is no guest, or no answer of it.
#[derive(Debug)]
pub enum GuestError {
    /// This has to be installed first.
    Missing(String),
    /// A file, a program or a socket.
    Io(String, io::Error),
    /// What is to be done is not one line, or too long a one.
    BadCommand(String),
    /// It ended; what its console said last.
    Ended(String),
    /// It did not do this in time; what its console said last.
    Late(String, String),
    /// It said more than this in answer to one command.
    Verbose(usize),
    /// So many guests, of so many MiB in all, where the machine has so many to give.
    Memory(usize, u64, u64),
    /// What was to be done there failed: the command, its exit code, what it said.
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

/// What a guest is made from.
#[derive(Clone, Debug)]
pub struct Parts {
    qemu: PathBuf,
    busybox: PathBuf,
    kernel: PathBuf,
    modules: Vec<PathBuf>,
    /// What starts QEMU, with QEMU's own words behind; QEMU itself where empty.
    launcher: Vec<OsString>,
}

impl Parts {
    /// The same, with QEMU started by another program that becomes it.
    pub fn launched_by(self, launcher: Vec<OsString>) -> Parts {
        Parts { launcher, ..self }
    }

    /// What is installed here for guests with such a network device.
    ///
    /// # Errors
    /// Says the first thing that is missing, and what to install.
    pub fn find(nic: Nic) -> Result<Parts, GuestError> {
        let qemu = program("qemu-system-x86_64")?;
        let busybox = program("busybox")?;
        let boot = Path::new("/boot");
        let files = std::fs::read_dir(boot).map_err(at(boot))?.flatten();
        let mut versions: Vec<String> =
            files.filter_map(|f| f.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned)).collect();
        // Those made for guests are up sooner.
        versions.sort_by_key(|version| (!version.contains("cloud"), std::cmp::Reverse(version.clone())));
        for version in &versions {
            if let Some(modules) = modules(Path::new("/lib/modules").join(version).as_path(), nic) {
                let kernel = boot.join(format!("vmlinuz-{version}"));
                return Ok(Parts { qemu, busybox, kernel, modules, launcher: Vec::new() });
            }
        }
        let (names, package) = (nic.modules().join(", "), nic.package());
        Err(GuestError::Missing(format!(
            "no kernel in /boot with the modules {names}, not compressed ({package} has them)"
        )))
    }
}

/// The modules of a network device among those of a kernel, without those that are built in; `None` when one is missing.
fn modules(of: &Path, nic: Nic) -> Option<Vec<PathBuf>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![of.join("kernel")];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(&folder).ok()?.flatten() {
            let path = file.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".ko")) {
                found.insert(name.to_owned(), path.clone());
            }
        }
    }
    let built_in = std::fs::read_to_string(of.join("modules.builtin")).unwrap_or_default();
    let is_built_in = |name: &str| built_in.lines().any(|line| line.ends_with(&format!("/{name}.ko")));
    let wanted = nic.modules().iter().filter(|name| !is_built_in(name));
    let mut all: Vec<PathBuf> = wanted.map(|&name| found.get(name).cloned()).collect::<Option<_>>()?;
    all.extend(CONGESTION_MODULES.iter().filter_map(|&name| found.get(name).cloned()));
    Some(all)
}

/// Where a program is.
///
/// # Errors
/// [`GuestError::Missing`] when it is not on the path.
pub fn program(name: &str) -> Result<PathBuf, GuestError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|p| p.is_file()).ok_or_else(|| GuestError::Missing(format!("no {name}")))
}

/// How a guest's network device is at a switch.
#[derive(Debug)]
pub enum Attachment {
    /// By the socket of a port, at which the switch listens: for [`Nic::Virtio`].
    VhostUser(PathBuf),
    /// By a TAP device that QEMU makes, and that ends with it.
    Tap {
        /// The name of the namespace in which it is made; the machine itself stays outside of the tenant's world.
        namespace: String,
        /// Its name there.
        device: String,
    },
    /// By a datagram socket: see [`SocketPort`](sluicenet_dataplane::kernel::socket::SocketPort).
    Socket(OwnedFd),
}

/// What a guest is to be.
#[derive(Debug)]
pub struct GuestConfig {
    /// The address of its network device, `eth0`.
    pub mac: [u8; 6],
    /// Its IPv4 address there.
    pub address: Ipv4Addr,
    /// Bits of that address which are its network's.
    pub prefix: u8,
    /// Its largest IP packet.
    pub mtu: u32,
    /// Which device that is.
    pub nic: Nic,
    /// How it is at the switch.
    pub attachment: Attachment,
    /// Whether it may leave checksums and segments to be made by who takes its frames, where its device can.
    pub offloads: bool,
    /// The queueing discipline of its device, among those that its kernel has built in; the kernel's own choice where absent.
    pub queue: Option<&'static str>,
    /// What it starts from; several may share one.
    pub image: Image,
    /// Its memory, in MiB.
    pub memory_mib: u32,
}

/// How a command in a guest ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its exit code.
    pub code: i32,
    /// What it wrote.
    pub text: String,
}

impl Outcome {
    /// What it wrote, if `command` worked.
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

/// A guest that runs; it is gone when this is.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    console: UnixStream,
    /// What the console said and nobody has taken.
    said: Vec<u8>,
    commands: u64,
}

/// A guest that has been started and does not take commands yet; it is gone when this is.
#[derive(Debug)]
pub struct Booting {
    machine: Machine,
    listener: UnixListener,
    socket: PathBuf,
    set_up: String,
}

impl Booting {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.machine.0.id()
    }

    /// Waits until it takes commands, and gives its device an address.
    ///
    /// # Errors
    /// When it ends, or is not up in time.
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
    /// Starts a guest. `folder` is for its console, and its own.
    ///
    /// # Errors
    /// When something cannot be made or started.
    pub fn spawn(parts: &Parts, config: &GuestConfig, folder: &Path) -> Result<Booting, GuestError> {
        let socket = folder.join("console");
        let listener = UnixListener::bind(&socket).map_err(at(&socket))?;
        listener.set_nonblocking(true).map_err(at(&socket))?;
        let mut command = qemu(parts, config, &socket)?;
        let spawned = match &config.attachment {
            Attachment::Tap { namespace, .. } => {
                let namespace = Namespace::open(namespace);
                namespace.and_then(|n| n.enter(|| command.spawn())).map_err(io::Error::from).and_then(|spawned| spawned)
            }
            Attachment::VhostUser(_) | Attachment::Socket(_) => command.spawn(),
        };
        let machine = Machine(spawned.map_err(at(&parts.qemu))?);
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

    /// Has it do what must work; what it said.
    ///
    /// # Errors
    /// As [`Guest::run`]; besides an exit code that is not 0.
    pub fn must(&mut self, command: &str, timeout: Duration) -> Result<String, GuestError> {
        self.run(command, timeout)?.must(command)
    }

    /// Has the guest's shell do one line and waits for its end.
    ///
    /// # Errors
    /// When it is no line, the guest is gone, or it takes longer than `timeout`.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<Outcome, GuestError> {
        if command.len() > COMMAND_BYTES_MAX || command.chars().any(char::is_control) {
            return Err(GuestError::BadCommand(command.into()));
        }
        self.commands += 1;
        let sent = self.console.write_all(format!("{command}\n").as_bytes());
        sent.map_err(|e| GuestError::Io("the guest's console".into(), e))?;
        self.outcome(command, Instant::now() + timeout)
    }

    /// Reads until the last command has ended; those that were given up before it are left out.
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

/// Takes what was said up to the next line that says how a command ended, and its number.
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

/// A virtual machine that is killed when it is no longer needed.
#[derive(Debug)]
struct Machine(Child);

impl Machine {
    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a virtio device leaves to be done by others.
const OFFLOADS: [&str; 10] = [
    "csum",
    "guest_csum",
    "gso",
    "host_tso4",
    "host_tso6",
    "host_ufo",
    "guest_tso4",
    "guest_tso6",
    "guest_ufo",
    "guest_ecn",
];

fn qemu(parts: &Parts, config: &GuestConfig, console: &Path) -> Result<Command, GuestError> {
    let mut words = parts.launcher.iter().map(OsString::as_os_str).chain([parts.qemu.as_os_str()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    let memory = config.memory_mib;
    command.arg("-accel").arg(format!("tcg,tb-size={TRANSLATED_MIB}"));
    command.args([
        "-machine",
        "q35",
        "-cpu",
        "max",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]);
    command.args(["-m", &memory.to_string()]);
    command.arg("-object").arg(format!("memory-backend-memfd,id=mem,size={memory}M,share=on"));
    command.args(["-numa", "node,memdev=mem"]);
    command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(config.image.path());
    // A machine that is emulated on busy processors may miss the timer's test, and the kernel would end there.
    command.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check"]);
    command.arg("-chardev").arg(format!("socket,id=console,path={}", console.display()));
    command.args(["-serial", "chardev:console"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    match &config.attachment {
        Attachment::VhostUser(socket) => {
            command.arg("-chardev").arg(format!("socket,id=port,path={},reconnect=1", socket.display()));
            command.args(["-netdev", "vhost-user,id=net,chardev=port"]);
        }
        Attachment::Tap { device, .. } => {
            let vnet_hdr = if config.offloads { "on" } else { "off" };
            let tap = format!("tap,id=net,ifname={device},script=no,downscript=no,vhost=off,vnet_hdr={vnet_hdr}");
            command.arg("-netdev").arg(tap);
        }
        Attachment::Socket(end) => {
            // The one descriptor that a child gets without inheriting all.
            command.stdin(end.try_clone().map_err(|e| GuestError::Io("the guest's socket".into(), e))?);
            command.args(["-netdev", "socket,id=net,fd=0"]);
        }
    }
    let mac = config.mac.map(|b| format!("{b:02x}")).join(":");
    command.arg("-device").arg(match config.nic {
        // QEMU 7.2 ends with vectors under software emulation.
        Nic::Virtio if config.offloads => format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,romfile="),
        Nic::Virtio => {
            format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,romfile=,{}", OFFLOADS.join("=off,") + "=off")
        }
        Nic::E1000 => format!("e1000,netdev=net,mac={mac},romfile="),
    });
    Ok(command)
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
