//! The ports that commands added to a switch, as files beside its control socket, one for each port. Only root, or the user
//! that started the switch, can write them. The group of the socket's folder can read them: a switch that is not root's.

use rustix::fs::{FlockOperation, Mode};
use rustix::process::Gid;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Files that are made in such a folder have its group.
const FOLDER_MODE: u32 = 0o2750;
const RECORD_MODE: u32 = 0o640;
/// The size of the largest record.
const BYTES_MAX: u64 = 1 << 16;

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

/// The records of one switch.
#[derive(Clone, Debug)]
pub struct Records {
    folder: PathBuf,
}

impl Records {
    /// Those of the switch with this control socket.
    pub fn at(control: &Path) -> Records {
        Records { folder: control.with_extension("ports") }
    }

    /// The control sockets in a folder whose switches have records, whether they run or not.
    pub fn controls(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let with_records = entries.filter(|path| path.extension().is_some_and(|extension| extension == "ports"));
        let mut controls: Vec<PathBuf> = with_records.map(|path| path.with_extension("sock")).collect();
        controls.sort();
        controls
    }

    /// Has other processes wait until the lock is dropped.
    pub(crate) fn lock(&self) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(|e| self.context(e))?;
        let folder = File::open(&self.folder)?;
        self.let_the_group_read(&folder)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
        Ok(folder)
    }

    /// Gives the folder, and all files that are made in it, the group of the folder around it.
    fn let_the_group_read(&self, folder: &File) -> io::Result<()> {
        let (meta, around) = (folder.metadata()?, self.folder.parent().map(std::fs::metadata).transpose()?);
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o7777 == FOLDER_MODE {
            return Ok(());
        }
        if let Some(gid) = around.map(|around| around.gid()).filter(|gid| *gid != meta.gid()) {
            // A user that is not in this group needs no other reader.
            let _ = rustix::fs::fchown(folder, None, Some(Gid::from_raw(gid)));
        }
        Ok(rustix::fs::fchmod(folder, Mode::from_raw_mode(FOLDER_MODE))?)
    }

    /// All records, by the names of their ports. A file that is none is left out.
    ///
    /// # Errors
    /// The folder cannot be read, or others may write it.
    pub fn all(&self) -> io::Result<Vec<Record>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| self.context(e))?,
        };
        self.check(&std::fs::metadata(&self.folder)?)?;
        let mut all = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let Some(port) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            all.extend(self.get(port)?);
        }
        all.sort_by(|a, b| a.port.cmp(&b.port));
        Ok(all)
    }

    /// The record of a port.
    ///
    /// # Errors
    /// The file cannot be read, or others may write it.
    pub fn get(&self, port: &str) -> io::Result<Option<Record>> {
        let file = match File::open(self.file(port)?) {
            // It may have been removed meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| self.context(e))?,
        };
        self.check(&file.metadata()?)?;
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice::<Record>(&text).ok().filter(|record| record.port == port))
    }

    /// Writes a record, in place of an earlier one of the same port.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let file = self.file(&record.port)?;
        let new = file.with_extension("new");
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        if text.len() as u64 > BYTES_MAX {
            let why = format!("a record has at most {BYTES_MAX} bytes");
            return Err(self.context(io::Error::new(ErrorKind::InvalidInput, why)));
        }
        let write = || {
            let mut out = File::options().write(true).create(true).truncate(true).mode(RECORD_MODE).open(&new)?;
            // Whatever the umask of the caller is.
            rustix::fs::fchmod(&out, Mode::from_raw_mode(RECORD_MODE))?;
            io::Write::write_all(&mut out, &text)?;
            std::fs::rename(&new, &file)
        };
        write().map_err(|e| self.context(e))
    }

    /// Removes the record of a port.
    pub(crate) fn remove(&self, port: &str) -> io::Result<()> {
        match std::fs::remove_file(self.file(port)?) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(self.context(e)),
            _ => {}
        }
        Ok(())
    }

    fn file(&self, port: &str) -> io::Result<PathBuf> {
        match port.is_empty() || port.contains(['/', '\0']) || port.starts_with('.') {
            true => Err(io::Error::new(ErrorKind::InvalidInput, format!("{port:?} is no name of a port"))),
            false => Ok(self.folder.join(format!("{port}.json"))),
        }
    }

    fn check(&self, meta: &std::fs::Metadata) -> io::Result<()> {
        let own = meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw();
        match own && meta.mode() & 0o022 == 0 {
            true => Ok(()),
            false => Err(self.context(io::Error::new(ErrorKind::PermissionDenied, "others may write it"))),
        }
    }

    fn context(&self, e: io::Error) -> io::Error {
        io::Error::new(e.kind(), format!("{}: {e}", self.folder.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_testkit::Dir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_is_found_until_it_is_removed_and_others_may_not_write_it() {
        let dir = Dir::new("attach-records");
        let records = Records::at(&dir.0.join("vs.sock"));
        assert_eq!(records.all().unwrap(), []);
        drop(records.lock().unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&dir.0.join("vs.ports")), FOLDER_MODE);
        let record = Record { port: "red1".into(), netns: Some("red1".into()), ..Record::default() };
        records.write(&record).unwrap();
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&record));
        assert_eq!(mode(&dir.0.join("vs.ports/red1.json")), RECORD_MODE);
        std::fs::write(dir.0.join("vs.ports/other.json"), "{}").unwrap();
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&record));
        let file = dir.0.join("vs.ports/red1.json");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(records.get("red1").unwrap_err().to_string().contains("others may write it"));
        records.remove("red1").unwrap();
        records.remove("red1").unwrap();
        assert_eq!(records.all().unwrap(), []);
        assert!(records.get("../x").is_err());
    }
}
