//! The record of everything that would outlive this process if it were killed: programs, namespaces, folders.
//!
//! A process records each of them before it makes it, and deletes the entry once it has removed it. So `sluicenet clean` finds
//! the leftovers of processes that have ended, and does not touch those of processes that run.

pub mod clean;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One file for each process that has made something; for root only.
const FOLDER: &str = "/run/sluicenet/made";

/// Something that outlives its process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leftover {
    /// A program that it started.
    Program {
        /// Its process number.
        pid: i32,
        /// When it started, in the kernel's ticks: this distinguishes it from a later process of the same number.
        started: u64,
    },
    /// A network namespace, by name.
    Namespace(String),
    /// A folder with its contents.
    Folder(PathBuf),
    /// The program by which a bump that has ended lets frames pass at a device.
    Wire(Box<Device>),
    /// The queues of XCo's agent at a device.
    Classes(Box<Device>),
    /// The program by which XCo's agent gives departure times at a device, and the queue that carries them out.
    Departures(Box<Device>),
}

/// A device by its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The name or path of the device's namespace.
    pub namespace: String,
    /// The device's name.
    pub device: String,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leftover::Program { pid, .. } => write!(f, "process {pid}"),
            Leftover::Namespace(name) => write!(f, "namespace {name}"),
            Leftover::Folder(path) => write!(f, "{}", path.display()),
            Leftover::Wire(at) => write!(f, "the wire at {}", at.device),
            Leftover::Classes(at) => write!(f, "the classes at {}", at.device),
            Leftover::Departures(at) => write!(f, "the departure times at {}", at.device),
        }
    }
}

impl Leftover {
    fn line(&self) -> String {
        match self {
            Leftover::Program { pid, started } => format!("program {pid} {started}"),
            Leftover::Namespace(name) => format!("namespace {name}"),
            Leftover::Folder(path) => format!("folder {}", path.display()),
            Leftover::Wire(at) => format!("wire {} {}", at.device, at.namespace),
            Leftover::Classes(at) => format!("classes {} {}", at.device, at.namespace),
            Leftover::Departures(at) => format!("departures {} {}", at.device, at.namespace),
        }
    }

    fn of_line(line: &str) -> Option<Leftover> {
        let (kind, rest) = line.split_once(' ')?;
        Some(match kind {
            "program" => {
                let (pid, started) = rest.split_once(' ')?;
                Leftover::Program { pid: pid.parse().ok()?, started: started.parse().ok()? }
            }
            "namespace" => Leftover::Namespace(rest.into()),
            "folder" => Leftover::Folder(rest.into()),
            "wire" | "classes" | "departures" => {
                let (device, namespace) = rest.split_once(' ')?;
                let at = Box::new(Device { namespace: namespace.into(), device: device.into() });
                match kind {
                    "wire" => Leftover::Wire(at),
                    "classes" => Leftover::Classes(at),
                    _ => Leftover::Departures(at),
                }
            }
            _ => return None,
        })
    }
}

/// When process `pid` was started, in the kernel's ticks since boot; `None` if it does not exist or has ended.
pub fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The things that this process has made and not removed.
fn own() -> MutexGuard<'static, BTreeSet<Leftover>> {
    static OWN: Mutex<BTreeSet<Leftover>> = Mutex::new(BTreeSet::new());
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a thing; call this before you make it. Returns whether it was not recorded yet.
///
/// # Errors
/// The record cannot be written, or the name of the thing does not fit into one line.
pub fn add(thing: Leftover) -> io::Result<bool> {
    let line = thing.line();
    if line.chars().any(char::is_control) || Leftover::of_line(&line).as_ref() != Some(&thing) {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("{line:?} cannot be recorded")));
    }
    let mut own = own();
    if !own.insert(thing.clone()) {
        return Ok(false);
    }
    match write(&own) {
        Ok(()) => Ok(true),
        Err(e) => {
            own.remove(&thing);
            Err(e)
        }
    }
}

/// Deletes the entry of a thing that was removed, also from the record of a process that has ended.
pub fn forget(thing: &Leftover) {
    let mut own = own();
    if own.remove(thing) {
        // An entry that stays is harmless: the next clean-up finds nothing there.
        let _ = write(&own);
        return;
    }
    drop(own);
    for mut record in records().unwrap_or_default() {
        if !record.is_alive() && record.things.remove(thing) {
            let _ = record.write();
        }
    }
}

fn write(things: &BTreeSet<Leftover>) -> io::Result<()> {
    let pid = rustix::process::getpid().as_raw_pid();
    let command: Vec<String> = std::env::args().take(12).collect();
    let command = command.join(" ").chars().map(|c| if c.is_control() { ' ' } else { c }).take(100).collect();
    let started = started(pid).unwrap_or_default();
    Record { pid, started, command, things: things.clone() }.write()
}

/// The record of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    pid: i32,
    started: u64,
    /// Its command line.
    command: String,
    things: BTreeSet<Leftover>,
}

impl Record {
    fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    fn file(&self) -> PathBuf {
        Path::new(FOLDER).join(format!("{}-{}", self.pid, self.started))
    }

    fn text(&self) -> String {
        let things = self.things.iter().map(|thing| thing.line() + "\n");
        format!("{}\n", self.command) + &things.collect::<String>()
    }

    fn of(name: &str, text: &str) -> Option<Record> {
        let (pid, started) = name.split_once('-')?;
        let mut lines = text.lines();
        let command = lines.next()?.to_owned();
        let things = lines.filter_map(Leftover::of_line).collect();
        Some(Record { pid: pid.parse().ok()?, started: started.parse().ok()?, command, things })
    }

    /// Replaces the file atomically; removes it if nothing is left.
    fn write(&self) -> io::Result<()> {
        let file = self.file();
        if self.things.is_empty() {
            return match std::fs::remove_file(&file) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
        }
        DirBuilder::new().recursive(true).mode(0o700).create(FOLDER)?;
        let new = file.with_extension("new");
        std::fs::write(&new, self.text())?;
        std::fs::rename(&new, &file)
    }
}

fn records() -> io::Result<Vec<Record>> {
    let entries = match std::fs::read_dir(FOLDER) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io::Error::new(e.kind(), format!("{FOLDER}: {e}"))),
        Ok(entries) => entries,
    };
    let mut records = Vec::new();
    for entry in entries {
        let entry = entry?;
        // Its process may have removed it meanwhile.
        let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
        records.extend(Record::of(&entry.file_name().to_string_lossy(), &text));
    }
    records.sort_by_key(|r| (r.pid, r.started));
    Ok(records)
}

/// The recorded namespaces: those of running processes, and all.
///
/// # Errors
/// A record cannot be read.
pub fn namespaces() -> io::Result<(BTreeSet<String>, BTreeSet<String>)> {
    let (mut alive, mut all) = (BTreeSet::new(), BTreeSet::new());
    for record in records()? {
        let is_alive = record.is_alive();
        for thing in record.things {
            if let Leftover::Namespace(name) = thing {
                if is_alive {
                    alive.insert(name.clone());
                }
                all.insert(name);
            }
        }
    }
    Ok((alive, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let things = [
            Leftover::Program { pid: 12, started: 3_456 },
            Leftover::Namespace("sluice-a-0".into()),
            Leftover::Folder("/tmp/with a space".into()),
        ];
        let record = Record { pid: 7, started: 89, command: "sluicenet bench".into(), things: things.into() };
        let name = record.file();
        let name = name.file_name().unwrap().to_str().unwrap();
        assert_eq!((name, Record::of(name, &record.text())), ("7-89", Some(record)));
        // Other files and lines are ignored.
        assert_eq!((Record::of("7-89.new", "x\n"), Record::of("7-8", "")), (None, None));
        assert_eq!(Record::of("7-8", "x\nship Argo\nprogram 1\n").unwrap().things.len(), 0);
    }

    #[test]
    fn a_name_of_two_lines_is_refused() {
        let error = add(Leftover::Folder("/tmp/two\nlines".into())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_process_is_identified_by_its_start() {
        let own = rustix::process::getpid().as_raw_pid();
        assert!(started(own).is_some_and(|at| at > 0));
        assert_eq!(started(i32::MAX), None);
    }
}
