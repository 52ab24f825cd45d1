//! The ports that commands added to a switch, as files, one for each port. A command of root writes below [`ROOTS`], where only
//! root can: the folder of the control socket may belong to the user that the switch becomes, and such a user could lead root
//! elsewhere by links. A command of another user writes beside the control socket.

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Uid;
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::confine::files::folder_of;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder of root's records, with a folder for each control socket.
const ROOTS: &str = "/run/sluicenet-records";
/// Everybody may read records: the switch does, as a user without rights.
const FOLDER_MODE: u32 = 0o755;
const RECORD_MODE: u32 = 0o644;
/// The file that a command locks. Only its owner may open it, and so hold up other commands.
const LOCK: &str = ".lock";
/// The size of the largest record.
const BYTES_MAX: u64 = 1 << 16;
/// Folders are opened again after another command has removed an empty one.
const ATTEMPTS: usize = 16;

/// A port that a command added, and what was made for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The port's name.
    pub port: String,
    /// Its settings, `key=value` as in the file.
    pub settings: Vec<String>,
    /// Whether the switch was asked for the port, and has not refused it.
    pub added: bool,
    /// The attached namespace, by name or path; `None` for a port that `add-port` added.
    pub netns: Option<String>,
    /// The identity of this namespace if the attachment made it.
    pub made_netns: Option<(u64, u64)>,
    /// The switch's end of the pair.
    pub pair: Option<Pair>,
    /// The namespace of the switch's end, if it is the one that is made for attachments.
    pub own_netns: Option<String>,
    /// A text of the command's caller.
    pub note: Option<String>,
}

/// The switch's end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Its namespace.
    pub netns: String,
    /// Its device.
    pub device: String,
}

/// The records of one switch, as this process may read and write them.
#[derive(Clone, Debug)]
pub struct Records {
    /// Those of root, which a process of another user reads, too.
    roots: Option<Place>,
    /// Where this process writes.
    own: Place,
}

impl Records {
    /// Those of the switch with this control socket.
    pub fn at(control: &Path) -> Records {
        let user = rustix::process::geteuid();
        let roots = Place::of_root(Path::new(ROOTS), control);
        if user.is_root() {
            return Records { roots: None, own: roots };
        }
        Records { roots: Some(roots), own: Place::beside(control, user) }
    }

    /// The control sockets in a folder whose switches have records, whether they run or not.
    pub fn controls(folder: &Path) -> Vec<PathBuf> {
        let names = |path: &Path| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
        };
        let whole = canonical(folder);
        let of_root = names(Path::new(ROOTS)).into_iter().map(|name| decoded(&name));
        let of_root = of_root.filter(|control| control.parent() == Some(&whole));
        let of_root = of_root.filter_map(|control| Some(folder.join(control.file_name()?)));
        let beside =
            names(folder).into_iter().map(PathBuf::from).filter(|name| name.extension() == Some("ports".as_ref()));
        let mut controls: Vec<PathBuf> =
            of_root.chain(beside.map(|name| folder.join(name).with_extension("sock"))).collect();
        controls.sort();
        controls.dedup();
        controls
    }

    /// Has other processes wait until the lock is dropped.
    pub(crate) fn lock(&self) -> io::Result<File> {
        self.own.lock().map_err(|e| self.own.context(e))
    }

    /// All records, by the names of their ports. A file that is none is left out.
    ///
    /// # Errors
    /// A folder cannot be read, or others may write it.
    pub fn all(&self) -> io::Result<Vec<Record>> {
        let mut all: Vec<Record> = Vec::new();
        for place in self.places() {
            for port in place.ports().map_err(|e| place.context(e))? {
                if !all.iter().any(|record| record.port == port) {
                    all.extend(place.get(&port).map_err(|e| place.context(e))?);
                }
            }
        }
        all.sort_by(|a, b| a.port.cmp(&b.port));
        Ok(all)
    }

    /// The record of a port.
    ///
    /// # Errors
    /// The file cannot be read, or others may write it.
    pub fn get(&self, port: &str) -> io::Result<Option<Record>> {
        check_name(port)?;
        for place in self.places() {
            let found = place.get(port).map_err(|e| place.context(e))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Writes a record, in place of an earlier one of the same port.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        check_name(&record.port)?;
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        if text.len() as u64 > BYTES_MAX {
            let why = format!("a record has at most {BYTES_MAX} bytes");
            return Err(self.own.context(io::Error::new(ErrorKind::InvalidInput, why)));
        }
        self.own.write(&record.port, &text).map_err(|e| self.own.context(e))
    }

    /// Removes the record of a port.
    pub(crate) fn remove(&self, port: &str) -> io::Result<()> {
        check_name(port)?;
        self.own.remove(port).map_err(|e| self.own.context(e))
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.roots.iter().chain([&self.own])
    }
}

/// A folder of records. Every folder and file on the way to a record, and the record, has to belong to its owner.
#[derive(Clone, Debug)]
struct Place {
    /// A folder that is believed.
    base: PathBuf,
    /// The folders below it, each in the one before; the last one has the records, the first one the lock.
    below: Vec<OsString>,
    owner: Uid,
}

impl Place {
    /// Root's, in a folder of `roots` for each control socket.
    fn of_root(roots: &Path, control: &Path) -> Place {
        let base = roots.parent().unwrap_or(Path::new("/")).to_owned();
        let roots = roots.file_name().unwrap_or_default().to_owned();
        Place { base, below: vec![roots, encoded(control)], owner: Uid::ROOT }
    }

    /// A user's, beside the control socket.
    fn beside(control: &Path, owner: Uid) -> Place {
        let folder = control.with_extension("ports").file_name().unwrap_or_default().to_owned();
        Place { base: folder_of(control).to_owned(), below: vec![folder], owner }
    }

    fn path(&self) -> PathBuf {
        self.below.iter().fold(self.base.clone(), |path, name| path.join(name))
    }

    fn context(&self, e: io::Error) -> io::Error {
        io::Error::new(e.kind(), format!("{}: {e}", self.path().display()))
    }

    /// Opens the first `count` folders below the base, made if `make`; returns the last one, or `None` if one does not exist.
    fn open(&self, count: usize, make: bool) -> io::Result<Option<OwnedFd>> {
        if make {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.base)?;
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let missing = |e: Errno| if e == Errno::NOENT && !make { Ok(None) } else { Err(io::Error::from(e)) };
        let mut at = match rustix::fs::open(&self.base, flags | OFlags::PATH, Mode::empty()) {
            Ok(at) => at,
            Err(e) => return missing(e),
        };
        for name in &self.below[..count] {
            let mode = Mode::from_raw_mode(FOLDER_MODE);
            let made = if make { rustix::fs::mkdirat(&at, name, mode) } else { Err(Errno::EXIST) };
            if !matches!(made, Ok(()) | Err(Errno::EXIST)) {
                made?;
            }
            let folder = match rustix::fs::openat(&at, name, flags | OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(folder) => folder,
                Err(e) => return missing(e),
            };
            self.check(&folder, FileType::Directory)?;
            if made.is_ok() {
                // Whatever the mask of the caller is.
                rustix::fs::fchmod(&folder, mode)?;
            }
            at = folder;
        }
        Ok(Some(at))
    }

    /// Refuses what somebody else could have put there.
    fn check(&self, file: impl AsFd, kind: FileType) -> io::Result<()> {
        let stat = rustix::fs::fstat(file)?;
        let refused = |why: &str| Err(io::Error::new(ErrorKind::PermissionDenied, why));
        if FileType::from_raw_mode(stat.st_mode) != kind {
            return refused("there is something else than a record, or a folder of records");
        }
        match stat.st_uid == self.owner.as_raw() && stat.st_mode & 0o022 == 0 {
            true => Ok(()),
            false => refused("others may write it"),
        }
    }

    fn lock(&self) -> io::Result<File> {
        let folder = self.open(1, true)?.ok_or(Errno::NOENT)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
        self.check(&file, FileType::RegularFile)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok(file.into())
    }

    /// The names of ports with files.
    fn ports(&self) -> io::Result<Vec<String>> {
        let Some(folder) = self.open(self.below.len(), false)? else { return Ok(Vec::new()) };
        let mut ports = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let port = entry.file_name().to_str().ok().and_then(|name| name.strip_suffix(".json"));
            ports.extend(port.filter(|port| check_name(port).is_ok()).map(str::to_owned));
        }
        Ok(ports)
    }

    fn get(&self, port: &str) -> io::Result<Option<Record>> {
        let Some(folder) = self.open(self.below.len(), false)? else { return Ok(None) };
        // A pipe is not waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&folder, file_name(port), flags, Mode::empty()) {
            // It may have been removed meanwhile.
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        self.check(&file, FileType::RegularFile)?;
        let mut text = Vec::new();
        File::from(file).take(BYTES_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice::<Record>(&text).ok().filter(|record| record.port == port))
    }

    fn write(&self, port: &str, text: &[u8]) -> io::Result<()> {
        let mut attempts = 0;
        loop {
            match self.write_once(port, text) {
                Err(e) if e.kind() == ErrorKind::NotFound && attempts < ATTEMPTS => attempts += 1,
                written => return written,
            }
        }
    }

    fn write_once(&self, port: &str, text: &[u8]) -> io::Result<()> {
        let folder = self.open(self.below.len(), true)?.ok_or(Errno::NOENT)?;
        let (new, mode) = (format!(".{port}.new"), Mode::from_raw_mode(RECORD_MODE));
        match rustix::fs::unlinkat(&folder, &new, AtFlags::empty()) {
            // That of a command that was killed.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut out = File::from(rustix::fs::openat(&folder, &new, flags, mode)?);
        // Whatever the mask of the caller is.
        rustix::fs::fchmod(&out, mode)?;
        io::Write::write_all(&mut out, text)?;
        Ok(rustix::fs::renameat(&folder, &new, &folder, file_name(port))?)
    }

    fn remove(&self, port: &str) -> io::Result<()> {
        let Some(folder) = self.open(self.below.len(), false)? else { return Ok(()) };
        match rustix::fs::unlinkat(&folder, file_name(port), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        // The folder goes with its last record; the first one stays, because it has the lock.
        if let ([_, .., last], Some(above)) = (&self.below[..], self.open(self.below.len() - 1, false)?) {
            let _ = rustix::fs::unlinkat(&above, last, AtFlags::REMOVEDIR);
        }
        Ok(())
    }
}

fn file_name(port: &str) -> String {
    format!("{port}.json")
}

fn check_name(port: &str) -> io::Result<()> {
    match port.is_empty() || port.contains(['/', '\0']) || port.starts_with('.') {
        true => Err(io::Error::new(ErrorKind::InvalidInput, format!("{port:?} is no name of a port"))),
        false => Ok(()),
    }
}

/// A folder without links and relative parts. One that cannot be looked at is taken as it is written.
fn canonical(folder: &Path) -> PathBuf {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    folder.canonicalize().or_else(|_| std::path::absolute(folder)).unwrap_or_else(|_| folder.to_owned())
}

/// The path of a control socket as the name of one folder: `/run/a.sock` is `run%2Fa.sock`.
fn encoded(control: &Path) -> OsString {
    let folder = canonical(control.parent().unwrap_or(Path::new("")));
    let whole = folder.join(control.file_name().unwrap_or_default());
    let bytes = whole.as_os_str().as_bytes();
    let mut name = Vec::new();
    for &byte in bytes.strip_prefix(b"/").unwrap_or(bytes) {
        match byte {
            b'/' => name.extend(b"%2F"),
            b'%' => name.extend(b"%25"),
            _ => name.push(byte),
        }
    }
    OsString::from_vec(name)
}

/// The path of a control socket whose records are in a folder of this name.
fn decoded(name: &OsStr) -> PathBuf {
    let mut path = vec![b'/'];
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match rest {
            [b'%', b'2', b'F', after @ ..] => (b'/', after),
            [b'%', b'2', b'5', after @ ..] => (b'%', after),
            _ => (byte, after),
        };
        path.push(byte);
        rest = after;
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_testkit::Dir as Folder;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// Records as those of root, but in a folder of the test, and of its user.
    fn records(dir: &Folder) -> Records {
        let own = Place::of_root(&dir.0.join("records"), &dir.0.join("vs.sock"));
        Records { roots: None, own: Place { owner: rustix::process::geteuid(), ..own } }
    }

    fn red1() -> Record {
        Record { port: "red1".into(), netns: Some("red1".into()), ..Record::default() }
    }

    fn refusal<T: std::fmt::Debug>(tried: io::Result<T>) -> String {
        tried.unwrap_err().to_string()
    }

    #[test]
    fn a_record_is_found_until_it_is_removed_and_everybody_reads_it() {
        let dir = Folder::new("attach-records");
        let records = records(&dir);
        assert_eq!((records.all().unwrap(), records.get("red1").unwrap()), (vec![], None));
        drop(records.lock().unwrap());
        records.write(&red1()).unwrap();
        records.write(&Record { added: true, ..red1() }).unwrap();
        let found = Record { added: true, ..red1() };
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&found));
        let folder = records.own.path();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        let modes =
            [&dir.0.join("records"), &folder, &folder.join("red1.json"), &dir.0.join("records/.lock")].map(|p| mode(p));
        assert_eq!(modes, [FOLDER_MODE, FOLDER_MODE, RECORD_MODE, 0o600]);
        std::fs::write(folder.join("other.json"), "{}").unwrap();
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&found));
        std::fs::remove_file(folder.join("other.json")).unwrap();
        assert!(records.get("../x").is_err() && records.remove(".x").is_err());
        records.remove("red1").unwrap();
        records.remove("red1").unwrap();
        assert_eq!(records.all().unwrap(), []);
        assert!(!folder.exists() && dir.0.join("records").exists());
    }

    #[test]
    fn a_planted_link_leads_nowhere() {
        let dir = Folder::new("attach-links");
        let records = records(&dir);
        let victim = dir.file("victim", "whole");
        let untouched = || assert_eq!(std::fs::read_to_string(&victim).unwrap(), "whole");
        records.write(&red1()).unwrap();
        let folder = records.own.path();
        // In place of the record, of the new one, and of the lock.
        std::fs::remove_file(folder.join("red1.json")).unwrap();
        symlink(&victim, folder.join("red1.json")).unwrap();
        assert!(records.get("red1").is_err() && records.all().is_err());
        symlink(&victim, folder.join(".red1.new")).unwrap();
        records.write(&red1()).unwrap();
        assert_eq!(records.get("red1").unwrap(), Some(red1()));
        untouched();
        symlink(&victim, dir.0.join("records/.lock")).unwrap();
        assert!(records.lock().is_err());
        untouched();
        // In place of the folders.
        for level in [folder.clone(), dir.0.join("records")] {
            std::fs::remove_dir_all(&level).unwrap();
            std::fs::create_dir_all(dir.0.join("elsewhere")).unwrap();
            symlink(dir.0.join("elsewhere"), &level).unwrap();
            assert!(records.write(&red1()).is_err() && records.all().is_err() && records.remove("red1").is_err());
            assert_eq!(std::fs::read_dir(dir.0.join("elsewhere")).unwrap().count(), 0);
            std::fs::remove_file(&level).unwrap();
        }
    }

    #[test]
    fn a_planted_pipe_holds_nobody_up() {
        let dir = Folder::new("attach-pipe");
        let records = records(&dir);
        records.write(&red1()).unwrap();
        let file = records.own.path().join("red1.json");
        std::fs::remove_file(&file).unwrap();
        let pipe = |path: &Path| {
            rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        };
        pipe(&file);
        assert!(refusal(records.get("red1")).contains("something else than a record"));
        assert!(refusal(records.all()).contains("something else than a record"));
        pipe(&dir.0.join("records/.lock"));
        assert!(refusal(records.lock()).contains("something else than a record"));
    }

    #[test]
    fn what_is_somebody_elses_or_open_to_others_is_refused() {
        let dir = Folder::new("attach-owner");
        let records = records(&dir);
        records.write(&red1()).unwrap();
        let folder = records.own.path();
        for (path, safe) in
            [(folder.join("red1.json"), RECORD_MODE), (folder, FOLDER_MODE), (dir.0.join("records"), FOLDER_MODE)]
        {
            let set = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            set(safe | 0o020);
            assert!(refusal(records.get("red1")).contains("others may write it"), "{path:?}");
            set(safe);
            assert_eq!(records.get("red1").unwrap(), Some(red1()));
        }
        // The files of this user, to a process that believes another one.
        let owner = Uid::from_raw(records.own.owner.as_raw() + 1);
        let others = Records { roots: None, own: Place { owner, ..records.own.clone() } };
        assert!(refusal(others.get("red1")).contains("others may write it"));
        assert!(refusal(others.write(&red1())).contains("others may write it"));
        assert!(refusal(others.lock()).contains("others may write it"));
    }

    #[test]
    fn a_user_reads_the_records_of_root_and_writes_its_own() {
        let dir = Folder::new("attach-both");
        let user = rustix::process::geteuid();
        let (roots, own) = (records(&dir), Place::beside(&dir.0.join("vs.sock"), user));
        roots.write(&red1()).unwrap();
        let both = Records { roots: Some(roots.own), own };
        let blue = Record { port: "blue".into(), ..Record::default() };
        both.write(&blue).unwrap();
        assert!(dir.0.join("vs.ports/blue.json").exists());
        assert_eq!(both.all().unwrap(), [blue, red1()]);
        assert_eq!(both.get("red1").unwrap(), Some(red1()));
        assert_eq!(Records::controls(&dir.0), [dir.0.join("vs.sock")]);
    }

    #[test]
    fn the_name_of_a_folder_tells_its_control_socket() {
        for (path, name) in
            [("/run/sluicenet/a.sock", "run%2Fsluicenet%2Fa.sock"), ("/no-such/1%2F.sock", "no-such%2F1%252F.sock")]
        {
            let encoded = encoded(Path::new(path));
            assert_eq!(encoded, name);
            assert_eq!(decoded(&encoded), Path::new(path));
        }
    }
}
