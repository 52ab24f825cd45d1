//! Real virtual machines: QEMU guests at the switch, under software emulation, from the installed Debian cloud kernel and a
//! file system made on the spot: busybox, the modules of the network device, and programs with their libraries.
//!
//! A guest is told what to do through its serial console, one command at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Modules of the network device, each after those it needs, and of what an agent asks the kernel.
const MODULES: [&str; 10] = [
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
];

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
                write!(f, "{what}: needs qemu-system-x86_64, a static busybox and a Debian cloud kernel ")?;
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
    /// What is installed here.
    ///
    /// # Errors
    /// Says the first thing that is missing.
    pub fn find() -> Result<Parts, GuestError> {
        let qemu = program("qemu-system-x86_64")?;
        let busybox = program("busybox")?;
        let boot = Path::new("/boot");
        let name = |p: &PathBuf| p.file_name().is_some_and(|n| is_cloud_kernel(&n.to_string_lossy()));
        let files = std::fs::read_dir(boot).map_err(at(boot))?;
        let kernel = files.flatten().map(|f| f.path()).filter(name).max();
        let kernel = kernel.ok_or_else(|| GuestError::Missing("no /boot/vmlinuz-*cloud*".into()))?;
        let version = kernel.file_name().unwrap_or_default().to_string_lossy().replacen("vmlinuz-", "", 1);
        let mut found = BTreeMap::new();
        let mut folders = vec![PathBuf::from(format!("/lib/modules/{version}/kernel"))];
        while let Some(folder) = folders.pop() {
            for file in std::fs::read_dir(&folder).map_err(at(&folder))?.flatten() {
                let path = file.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(name) = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".ko")) {
                    found.insert(name.to_owned(), path.clone());
                }
            }
        }
        let module = |name: &&str| {
            let missing = || GuestError::Missing(format!("no module {name} of {version}, not compressed"));
            found.get(*name).cloned().ok_or_else(missing)
        };
        let modules = MODULES.iter().map(module).collect::<Result<_, _>>()?;
        Ok(Parts { qemu, busybox, kernel, modules })
    }
}

fn is_cloud_kernel(name: &str) -> bool {
    name.starts_with("vmlinuz-") && name.contains("cloud")
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

/// What a guest is to be.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// The address of its network device, `eth0`.
    pub mac: [u8; 6],
    /// Its IPv4 address there, in a network of 256.
    pub address: Ipv4Addr,
    /// The socket of its port, at which the switch listens.
    pub socket: PathBuf,
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
        std::fs::write(&image, file_system(parts, config)?).map_err(at(&image))?;
        let listener = UnixListener::bind(&socket).map_err(at(&socket))?;
        listener.set_nonblocking(true).map_err(at(&socket))?;
        let until = Instant::now() + timeout;
        let mut machine = Machine(qemu(parts, config, &image, &socket).spawn().map_err(at(&parts.qemu))?);
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

fn qemu(parts: &Parts, config: &GuestConfig, image: &Path, console: &Path) -> Command {
    let mut command = Command::new(&parts.qemu);
    let memory = config.memory_mib;
    command.args(["-machine", "q35,accel=tcg", "-cpu", "max", "-nodefaults", "-no-user-config", "-display", "none"]);
    command.args(["-m", &memory.to_string()]);
    command.arg("-object").arg(format!("memory-backend-memfd,id=mem,size={memory}M,share=on"));
    command.args(["-numa", "node,memdev=mem"]);
    command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(image);
    command.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1"]);
    command.arg("-chardev").arg(format!("socket,id=console,path={}", console.display()));
    command.args(["-serial", "chardev:console"]);
    command.arg("-chardev").arg(format!("socket,id=port,path={},reconnect=1", config.socket.display()));
    command.args(["-netdev", "vhost-user,id=net,chardev=port"]);
    let mac = config.mac.map(|b| format!("{b:02x}")).join(":");
    // QEMU 7.2 ends with vectors under software emulation.
    command.arg("-device").arg(format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,romfile="));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The initial file system, in the "newc" form of cpio, which the kernel unpacks.
fn file_system(parts: &Parts, config: &GuestConfig) -> Result<Vec<u8>, GuestError> {
    let mut archive = Archive::default();
    ["dev", "proc", "sys", "tmp"].iter().for_each(|name| archive.folders(Path::new(name)));
    archive.entry("dev/console", 0o020_600, (5, 1), &[]);
    archive.file(Path::new("bin/busybox"), &parts.busybox)?;
    let mut init = String::from("#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PATH=/bin:/usr/bin\n");
    init += "mount -t proc proc /proc\nmount -t sysfs sysfs /sys\nmount -t devtmpfs dev /dev\n";
    for module in &parts.modules {
        let name = Path::new("modules").join(module.file_name().unwrap_or_default());
        archive.file(&name, module)?;
        init += &format!("insmod /{}\n", name.display());
    }
    for program in &config.programs {
        archive.file(&Path::new("usr/bin").join(program.file_name().unwrap_or_default()), program)?;
        for library in libraries(program)? {
            archive.file(library.strip_prefix("/").unwrap_or(&library), &library)?;
        }
    }
    init += &format!("ip link set lo up\nip addr add {}/24 dev eth0\nip link set eth0 up\n", config.address);
    init += &format!("stty -echo\nn=0\necho '{MARK}0 0'\n");
    init += "while IFS= read -r line; do\n";
    init += &format!("n=$((n + 1)); sh -c \"$line\" </dev/null 2>&1; code=$?; echo; echo \"{MARK}$n $code\"\n");
    init += "done\n";
    archive.entry("init", 0o100_755, (0, 0), init.as_bytes());
    archive.entry("TRAILER!!!", 0, (0, 0), &[]);
    Ok(archive.bytes)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// One entry, unless there is one of that name.
    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        let inode = self.names.len() as u32;
        let fields = [inode, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|f| self.bytes.extend(format!("{f:08X}").bytes()));
        self.bytes.extend(name.bytes().chain([0]));
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// A folder and those it is in.
    fn folders(&mut self, path: &Path) {
        let mut above: Vec<&Path> = path.ancestors().filter(|p| !p.as_os_str().is_empty()).collect();
        above.reverse();
        above.iter().for_each(|p| self.entry(&p.to_string_lossy(), 0o040_755, (0, 0), &[]));
    }

    /// A file of this machine, which may be executed.
    fn file(&mut self, name: &Path, from: &Path) -> Result<(), GuestError> {
        let data = std::fs::read(from).map_err(at(from))?;
        self.folders(name.parent().unwrap_or(Path::new("")));
        self.entry(&name.to_string_lossy(), 0o100_755, (0, 0), &data);
        Ok(())
    }
}

/// The libraries of a program and what loads them; none of one that is linked statically.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, GuestError> {
    let out = Command::new("ldd").arg(program).output().map_err(at(Path::new("ldd")))?;
    Ok(named_libraries(&String::from_utf8_lossy(&out.stdout)))
}

/// The files that ldd names, as `name => /file (address)` or `/file (address)`.
fn named_libraries(text: &str) -> Vec<PathBuf> {
    let words = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    text.lines().filter_map(words).collect()
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

    #[test]
    fn an_archive_has_every_folder_once_and_before_what_is_in_it() {
        let mut archive = Archive::default();
        archive.folders(Path::new("usr/lib/x"));
        archive.folders(Path::new("usr/lib/y"));
        archive.entry("usr/lib/y/z", 0o100_644, (0, 0), b"five!");
        let text = String::from_utf8_lossy(&archive.bytes).into_owned();
        let at: Vec<_> = ["usr\0", "usr/lib\0", "usr/lib/x\0", "usr/lib/y\0", "usr/lib/y/z\0"]
            .map(|name| text.match_indices(name).map(|(at, _)| at).collect::<Vec<_>>())
            .into();
        assert!(at.iter().all(|places| places.len() == 1), "{at:?}");
        assert!(at.is_sorted(), "{at:?}");
        assert_eq!(archive.bytes.len() % 4, 0);
    }

    #[test]
    fn libraries_are_those_that_are_files() {
        let text =
            "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n\tx => not found\n";
        assert_eq!(named_libraries(text), [Path::new("/lib/libc.so.6"), Path::new("/lib64/ld.so")]);
        assert!(named_libraries("\tnot a dynamic executable\n").is_empty());
    }
}
