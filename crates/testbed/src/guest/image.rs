//! The file system from which a guest starts.

use super::{GuestError, MARK, Parts, at};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The contents of an image besides busybox and the modules.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Programs of this machine, with their libraries; placed in `/usr/bin` under their own names.
    pub programs: Vec<PathBuf>,
    /// Other files, all executable: their paths and contents.
    pub files: Vec<(PathBuf, Arc<[u8]>)>,
}

/// The initial file system of guests. All guests of a testbed can share it.
#[derive(Clone, Debug)]
pub struct Image {
    path: PathBuf,
    bytes: u64,
}

impl Image {
    /// Memory in MiB for a kernel and a few programs.
    const KERNEL_MIB: u64 = 128;

    /// Writes an image to a file.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn write(parts: &Parts, contents: &Contents, path: &Path) -> Result<Image, GuestError> {
        let bytes = file_system(parts, contents)?;
        std::fs::write(path, &bytes).map_err(at(path))?;
        Ok(Image { path: path.to_owned(), bytes: bytes.len() as u64 })
    }

    /// Opens an existing image.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn open(path: &Path) -> Result<Image, GuestError> {
        let bytes = std::fs::metadata(path).map_err(at(path))?.len();
        Ok(Image { path: path.to_owned(), bytes })
    }

    /// The path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Memory in MiB that a guest needs. While the image is unpacked it is in memory twice, and the unpacked files may
    /// take half of the memory.
    pub fn memory_mib(&self) -> u32 {
        let image = self.bytes.div_ceil(1 << 20);
        u32::try_from(Image::KERNEL_MIB + 5 * image / 2).unwrap_or(u32::MAX)
    }
}

/// The initial file system, in the "newc" format of cpio, which the kernel unpacks.
fn file_system(parts: &Parts, contents: &Contents) -> Result<Vec<u8>, GuestError> {
    let mut archive = Archive::default();
    ["dev", "proc", "sys", "tmp"].iter().for_each(|name| archive.folders(Path::new(name)));
    archive.entry("dev/console", 0o020_600, (5, 1), &[]);
    archive.file(Path::new("bin/busybox"), &parts.busybox)?;
    archive.libraries_of(&parts.busybox)?;
    let mut init = String::from("#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PATH=/bin:/usr/bin\n");
    init += "mount -t proc proc /proc\nmount -t sysfs sysfs /sys\nmount -t devtmpfs dev /dev\n";
    for module in &parts.modules {
        let name = Path::new("modules").join(module.file_name().unwrap_or_default());
        archive.file(&name, module)?;
        init += &format!("insmod /{}\n", name.display());
    }
    for program in &contents.programs {
        archive.file(&Path::new("usr/bin").join(program.file_name().unwrap_or_default()), program)?;
        archive.libraries_of(program)?;
    }
    // A guest must send no frames of its own accord: without IPv6 it does not look for neighbours and routers.
    init += "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6\n";
    init += "ip link set lo up\n";
    init += &format!("stty -echo\nn=0\necho '{MARK}0 0'\n");
    init += "while IFS= read -r line; do\n";
    init += &format!("n=$((n + 1)); sh -c \"$line\" </dev/null 2>&1; code=$?; echo; echo \"{MARK}$n $code\"\n");
    init += "done\n";
    archive.entry("init", 0o100_755, (0, 0), init.as_bytes());
    for (name, data) in &contents.files {
        archive.data(name.strip_prefix("/").unwrap_or(name), data);
    }
    archive.entry("TRAILER!!!", 0, (0, 0), &[]);
    Ok(archive.bytes)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// Adds an entry, unless one of this name exists.
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

    /// Adds a folder and its parents.
    fn folders(&mut self, path: &Path) {
        let mut above: Vec<&Path> = path.ancestors().filter(|p| !p.as_os_str().is_empty()).collect();
        above.reverse();
        above.iter().for_each(|p| self.entry(&p.to_string_lossy(), 0o040_755, (0, 0), &[]));
    }

    /// Adds a file of this machine, as an executable.
    fn file(&mut self, name: &Path, from: &Path) -> Result<(), GuestError> {
        let mut data = std::fs::read(from).map_err(at(from))?;
        leave_out_symbols(&mut data);
        self.data(name, &data);
        Ok(())
    }

    /// Adds the libraries of a program.
    fn libraries_of(&mut self, program: &Path) -> Result<(), GuestError> {
        libraries(program)?.iter().try_for_each(|l| self.file(l.strip_prefix("/").unwrap_or(l), l))
    }

    /// Adds a file, as an executable.
    fn data(&mut self, name: &Path, data: &[u8]) {
        self.folders(name.parent().unwrap_or(Path::new("")));
        self.entry(&name.to_string_lossy(), 0o100_755, (0, 0), data);
    }
}

/// Removes from a program or library the large parts that only debuggers and linkers read: the bytes behind its last
/// segment, and the table of its sections. Leaves files of other kinds unchanged.
fn leave_out_symbols(elf: &mut Vec<u8>) {
    /// `ET_EXEC` and `ET_DYN`. A module (`ET_REL`) needs its sections, by which the kernel links it.
    const LOADED: [u64; 2] = [2, 3];
    let field = |at: usize, len: usize| {
        let bytes = elf.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    let end = || {
        // 64 bits, least significant byte first.
        if elf.get(..6)? != b"\x7fELF\x02\x01" || !LOADED.contains(&field(16, 2)?) {
            return None;
        }
        let (first, size, count) = (field(32, 8)? as usize, field(54, 2)? as usize, field(56, 2)? as usize);
        let mut end = (first + size * count) as u64;
        for header in (0..count).map(|i| first + size * i) {
            // The offset of a segment in the file, and its length there.
            end = end.max(field(header + 8, 8)?.checked_add(field(header + 32, 8)?)?);
        }
        (end <= elf.len() as u64).then_some(end as usize)
    };
    if let Some(end) = end() {
        elf.truncate(end);
        // The offset of the section table, and its number of entries.
        elf[40..48].fill(0);
        elf[60..64].fill(0);
    }
}

/// The libraries of a program and its loader; none for a static program.
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
    fn a_program_runs_without_what_only_debuggers_read() {
        let mut program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let whole = program.len();
        leave_out_symbols(&mut program);
        assert!(program.len() < whole);
        let path = std::env::temp_dir().join(format!("sluicenet-cut-{}", std::process::id()));
        std::fs::write(&path, &program).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let listed = Command::new(&path).arg("--list").output();
        std::fs::remove_file(&path).unwrap();
        assert!(String::from_utf8_lossy(&listed.unwrap().stdout).contains("a_program_runs"));
        for other in [&b"#!/bin/sh\n"[..], b"\x7fELF\x02\x01", b""] {
            let mut data = other.to_vec();
            leave_out_symbols(&mut data);
            assert_eq!(data, other);
        }
    }

    #[test]
    fn libraries_are_those_that_are_files() {
        let text =
            "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n\tx => not found\n";
        assert_eq!(named_libraries(text), [Path::new("/lib/libc.so.6"), Path::new("/lib64/ld.so")]);
        assert!(named_libraries("\tnot a dynamic executable\n").is_empty());
    }
}
