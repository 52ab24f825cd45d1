//! Real virtual machines: QEMU guests at the switch, under software emulation, from an installed Debian kernel and a file
//! system made on the spot: busybox, the modules of the network device, and programs with their libraries.
//!
//! A guest is told what to do through its serial console, one command at a time.

mod image;

use serde::Serialize;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::process::Program;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// Bytes of a line that a terminal takes at once, less its end (termios(3), canonical mode).
const COMMAND_BYTES_MAX: usize = 4_000;

/// Begins the line that says how a command ended.
const MARK: &str = "=== ";

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
}

impl Parts {
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
                return Ok(Parts { qemu, busybox, kernel: boot.join(format!("vmlinuz-{version}")), modules });
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
    wanted.map(|&name| found.get(name).cloned()).collect()
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
        /// Whether the guest may leave checksums and segments to be done by who takes its frames.
        offloads: bool,
    },
    /// By a datagram socket: see [`SocketPort`](sluicenet_dataplane::kernel::socket::SocketPort).
    Socket(OwnedFd),
}

/// What a guest is to be.
#[derive(Debug)]
pub struct GuestConfig {
    /// The address of its network device, `eth0`.
    pub mac: [u8; 6],
    /// Its IPv4 address there, in a network of 256.
    pub address: Ipv4Addr,
    /// Which device that is.
    pub nic: Nic,
    /// How it is at the switch.
    pub attachment: Attachment,
    /// Programs it has beside busybox.
    pub programs: Vec<PathBuf>,
    /// Its memory, in MiB.
    pub memory_mib: u32,
}

/// How a command in a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit code.
    pub code: i32,
    /// What it wrote.
    pub text: String,
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

impl Guest {
    /// Starts a guest and waits until it takes commands. `folder` is for its files, and its own.
    ///
    /// # Errors
    /// When something cannot be read or started, or the guest is not up in time.
    pub fn start(parts: &Parts, config: &GuestConfig, folder: &Path, timeout: Duration) -> Result<Guest, GuestError> {
        let (image, socket) = (folder.join("initramfs"), folder.join("console"));
        std::fs::write(&image, image::file_system(parts, config)?).map_err(at(&image))?;
        let listener = UnixListener::bind(&socket).map_err(at(&socket))?;
        listener.set_nonblocking(true).map_err(at(&socket))?;
        let until = Instant::now() + timeout;
        let command = qemu(parts, config, &image, &socket)?;
        let namespace = match &config.attachment {
            Attachment::Tap { namespace, .. } => {
                Some(Namespace::open(namespace).map_err(|e| at(&parts.qemu)(e.into()))?)
            }
            Attachment::VhostUser(_) | Attachment::Socket(_) => None,
        };
        let spawned = Program::spawn(command, namespace.as_ref());
        let mut machine = Machine(spawned.map_err(at(&parts.qemu))?);
        let console = loop {
            match listener.accept() {
                Ok((console, _)) => break console,
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(at(&socket)(e)),
                Err(_) if Instant::now() > until => return Err(GuestError::Late("start".into(), String::new())),
                Err(_) if machine.has_ended() => return Err(GuestError::Ended(String::new())),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        console.set_nonblocking(false).map_err(at(&socket))?;
        console.set_read_timeout(Some(Duration::from_millis(100))).map_err(at(&socket))?;
        let mut guest = Guest { machine, console, said: Vec::new(), commands: 0 };
        guest.outcome("come up", until)?;
        Ok(guest)
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

/// A virtual machine that is killed when it is no longer needed, or nobody is there any more who would need it.
#[derive(Debug)]
struct Machine(Program);

impl Machine {
    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

fn qemu(parts: &Parts, config: &GuestConfig, image: &Path, console: &Path) -> Result<Command, GuestError> {
    let mut command = Command::new(&parts.qemu);
    let memory = config.memory_mib;
    command.args([
        "-machine",
        "q35,accel=tcg",
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
    command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(image);
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
        Attachment::Tap { device, offloads, .. } => {
            let vnet_hdr = if *offloads { "on" } else { "off" };
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
        Nic::Virtio => format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,romfile="),
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
