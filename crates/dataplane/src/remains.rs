//! What a process made that would be there after it if it were killed: written down as it is made, struck out as it is removed, so
//! that `sluicenet clean` finds what is left of those that are gone, and leaves alone what those have that live.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A file for each process that has made something, for root alone.
const FOLDER: &str = "/run/sluicenet/made";
/// How long a program may take to be gone that was killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something that outlives its process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A program it started, and when that began, in the kernel's ticks.
    Program {
        /// Its number.
        pid: i32,
        /// What tells it from another one of that number.
        started: u64,
    },
    /// A network namespace, by name.
    Namespace(String),
    /// A folder with all that is in it.
    Folder(PathBuf),
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thing::Program { pid, .. } => write!(f, "process {pid}"),
            Thing::Namespace(name) => write!(f, "namespace {name}"),
            Thing::Folder(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Thing {
    fn line(&self) -> String {
        match self {
            Thing::Program { pid, started } => format!("program {pid} {started}"),
            Thing::Namespace(name) => format!("namespace {name}"),
            Thing::Folder(path) => format!("folder {}", path.display()),
        }
    }

    fn of_line(line: &str) -> Option<Thing> {
        let (kind, rest) = line.split_once(' ')?;
        Some(match kind {
            "program" => {
                let (pid, started) = rest.split_once(' ')?;
                Thing::Program { pid: pid.parse().ok()?, started: started.parse().ok()? }
            }
            "namespace" => Thing::Namespace(rest.into()),
            "folder" => Thing::Folder(rest.into()),
            _ => return None,
        })
    }

    /// Removes it; whether it was there.
    fn remove(&self) -> io::Result<bool> {
        match self {
            Thing::Program { pid, started } => {
                let runs = || self::started(*pid) == Some(*started);
                let (true, Some(number)) = (runs(), Pid::from_raw(*pid)) else { return Ok(false) };
                match kill_process(number, Signal::KILL) {
                    // It ended just now.
                    Err(rustix::io::Errno::SRCH) => return Ok(false),
                    other => other?,
                }
                let until = Instant::now() + PATIENCE;
                while runs() {
                    if Instant::now() > until {
                        return Err(io::Error::new(ErrorKind::TimedOut, format!("{self} was killed and does not end")));
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok(true)
            }
            Thing::Namespace(name) => match crate::kernel::netns::Namespace::delete(name) {
                Ok(()) => Ok(true),
                Err(e) if e.why().kind() == ErrorKind::NotFound => Ok(false),
                Err(e) => Err(e.into()),
            },
            Thing::Folder(path) => match std::fs::remove_dir_all(path) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
                Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
            },
        }
    }
}

/// When process `pid` was started, in the kernel's ticks since it booted; `None` when there is none, or it has ended.
pub fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name stands in brackets and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// What this process has made and not removed.
fn own() -> MutexGuard<'static, BTreeSet<Thing>> {
    static OWN: Mutex<BTreeSet<Thing>> = Mutex::new(BTreeSet::new());
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes down that this process makes something, to be called before it does; whether that is new.
///
/// # Errors
/// When it cannot be written, or is nothing that can stand in a line.
pub fn add(thing: Thing) -> io::Result<bool> {
    let line = thing.line();
    if line.chars().any(char::is_control) || Thing::of_line(&line).as_ref() != Some(&thing) {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("{line:?} cannot be written down")));
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

/// Strikes out what was removed, also where a process had made it that is gone.
pub fn forget(thing: &Thing) {
    let mut own = own();
    if own.remove(thing) {
        // What cannot be struck out is looked for in vain by whoever cleans up.
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

fn write(things: &BTreeSet<Thing>) -> io::Result<()> {
    let pid = rustix::process::getpid().as_raw_pid();
    let command: Vec<String> = std::env::args().take(12).collect();
    let command = command.join(" ").chars().map(|c| if c.is_control() { ' ' } else { c }).take(100).collect();
    let started = started(pid).unwrap_or_default();
    Record { pid, started, command, things: things.clone() }.write()
}

/// What a process has made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    pid: i32,
    started: u64,
    /// How it was called.
    command: String,
    things: BTreeSet<Thing>,
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
        let things = lines.filter_map(Thing::of_line).collect();
        Some(Record { pid: pid.parse().ok()?, started: started.parse().ok()?, command, things })
    }

    /// All of it or nothing; where nothing is left, no file.
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
        // One that was struck out meanwhile is not there any more.
        let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
        records.extend(Record::of(&entry.file_name().to_string_lossy(), &text));
    }
    records.sort_by_key(|r| (r.pid, r.started));
    Ok(records)
}

/// What was removed, and what was not because somebody uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Removed.
    pub gone: Vec<String>,
    /// Left alone, and why.
    pub kept: Vec<String>,
}

/// Removes what processes made that are gone, of those that are `wanted` by their numbers.
///
/// # Errors
/// What could not be removed.
pub fn clean(wanted: impl Fn(i32) -> bool) -> io::Result<Cleaned> {
    let mut cleaned = Cleaned::default();
    let own = rustix::process::getpid().as_raw_pid();
    for record in records()?.into_iter().filter(|r| wanted(r.pid) && r.pid != own) {
        if record.is_alive() {
            let things: Vec<String> = record.things.iter().map(Thing::to_string).collect();
            cleaned.kept.push(format!(
                "of process {}, which runs ({}): {}",
                record.pid,
                record.command,
                things.join(", ")
            ));
            continue;
        }
        // Programs first: they stand first.
        for thing in &record.things {
            if thing.remove()? {
                cleaned.gone.push(thing.to_string());
            }
        }
        match std::fs::remove_file(record.file()) {
            // The last thing was struck out on the way.
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(cleaned)
}

/// The namespaces of processes that live, and all that were written down.
///
/// # Errors
/// When what was written down cannot be read.
pub fn namespaces() -> io::Result<(BTreeSet<String>, BTreeSet<String>)> {
    let (mut alive, mut all) = (BTreeSet::new(), BTreeSet::new());
    for record in records()? {
        let is_alive = record.is_alive();
        for thing in record.things {
            if let Thing::Namespace(name) = thing {
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
            Thing::Program { pid: 12, started: 3_456 },
            Thing::Namespace("sluice-a-0".into()),
            Thing::Folder("/tmp/with a space".into()),
        ];
        let record = Record { pid: 7, started: 89, command: "sluicenet bench".into(), things: things.into() };
        let name = record.file();
        let name = name.file_name().unwrap().to_str().unwrap();
        assert_eq!((name, Record::of(name, &record.text())), ("7-89", Some(record)));
        // What is no record is none, and what is no thing none.
        assert_eq!((Record::of("7-89.new", "x\n"), Record::of("7-8", "")), (None, None));
        assert_eq!(Record::of("7-8", "x\nship Argo\nprogram 1\n").unwrap().things.len(), 0);
    }

    #[test]
    fn what_cannot_stand_in_a_line_is_refused() {
        let error = add(Thing::Folder("/tmp/two\nlines".into())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_process_is_known_by_when_it_began() {
        let own = rustix::process::getpid().as_raw_pid();
        assert!(started(own).is_some_and(|at| at > 0));
        assert_eq!(started(i32::MAX), None);
    }
}
