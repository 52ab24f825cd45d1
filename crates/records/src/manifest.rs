//! The description of a run in two files: `manifest.json` is the same on every machine, `run.json` is about this
//! machine.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::error::RecordError;
use super::files::{MANIFEST, RUN_LOG, has_parts, write_file};

/// Version of the layout of a result directory. It changes when an older reader would misread the directory.
///
/// 2: `bytes` and `ideal_ps` of a flow without an end are null, the seed is no axis, `axis_keys`. 1: before that.
const FORMAT: u32 = 2;

/// The description of a run: known before the first event, equal on every machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of sluicenet.
    pub tool_version: String,
    /// Version of the scenario's defaults; 1 where a manifest does not name it.
    #[serde(default = "first_defaults")]
    pub defaults: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// SHA-256 of the scenario in canonical form, in hexadecimal.
    pub scenario_sha256: String,
    /// Seed of every random stream.
    pub seed: u64,
    /// End of the warm-up in picoseconds; statistics leave out flows and queries that begin before.
    #[serde(default)]
    pub warmup_ps: u64,
    /// The cell of a sweep: axis and value, as ("congestion", "newreno"). The seed is no axis: runs with the same axes
    /// are seeds of one configuration.
    pub axes: Vec<(String, String)>,
    /// The dotted keys of the axes, in the order of `axes`.
    pub axis_keys: Vec<String>,
    /// The parts of the set-up that a report shows, in order.
    pub parameters: Vec<(String, String)>,
    /// The input files of the scenario.
    pub inputs: Vec<Input>,
    /// Every setting by section and key, defaults included; null where a manifest has none.
    #[serde(default)]
    pub settings: Value,
}

impl RunInfo {
    /// What makes `other` another run: the first setting or input file that differs. None where they are the same.
    pub fn difference(&self, other: &RunInfo) -> Option<String> {
        if (&self.scenario_sha256, self.seed) == (&other.scenario_sha256, other.seed) {
            return None;
        }
        let input = || {
            let changed =
                |input: &&Input| other.inputs.iter().any(|i| i.name == input.name && i.sha256 != input.sha256);
            self.inputs.iter().find(changed).map(|input| format!("{} has other content", input.name))
        };
        let setting = match self.settings.is_null() {
            true => None,
            false => first_difference("", &self.settings, &other.settings),
        };
        Some(setting.or_else(input).map_or("another scenario".into(), |first| format!("another scenario: {first}")))
    }
}

fn first_defaults() -> u32 {
    1
}

/// The first value in which two trees differ, by its path, with both values.
fn first_difference(path: &str, a: &Value, b: &Value) -> Option<String> {
    let inner = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (a, b) {
        _ if a == b => None,
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let of = |all: &'_ Map<String, Value>, key: &str| all.get(key).cloned().unwrap_or_default();
            keys.into_iter().find_map(|key| first_difference(&inner(key), &of(a, key), &of(b, key)))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            (a.iter().zip(b).enumerate()).find_map(|(i, (a, b))| first_difference(&inner(&i.to_string()), a, b))
        }
        _ => Some(format!("{path} is {} there and {} here", shown(a), shown(b))),
    }
}

/// A value for a sentence.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "not set".into(),
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::Object(_) => "a table".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// An input file of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The file's name in the scenario.
    pub name: String,
    /// SHA-256 of the file's bytes, in hexadecimal.
    pub sha256: String,
    /// The file's length.
    pub bytes: u64,
}

impl Input {
    /// The entry for a file's contents.
    pub fn of(name: impl Into<String>, contents: &[u8]) -> Input {
        Input { name: name.into(), sha256: sha256_hex(contents), bytes: contents.len() as u64 }
    }
}

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Still running, or killed before it could write another status.
    #[default]
    Running,
    /// Ran to its end.
    Complete,
    /// Stopped by the user at this simulated time; the rows up to this time are complete.
    InterruptedAt {
        /// Simulated time in picoseconds.
        at_ps: u64,
    },
    /// Stopped by an error.
    Failed(String),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Running => f.write_str("running"),
            Status::Complete => f.write_str("complete"),
            Status::InterruptedAt { at_ps } => write!(f, "interrupted at {at_ps} ps"),
            Status::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}

impl FromStr for Status {
    type Err = String;
    fn from_str(text: &str) -> Result<Status, String> {
        let interrupted = || text.strip_prefix("interrupted at ")?.strip_suffix(" ps")?.parse().ok();
        match text {
            "running" => Ok(Status::Running),
            "complete" => Ok(Status::Complete),
            _ => match (interrupted(), text.strip_prefix("failed: ")) {
                (Some(at_ps), _) => Ok(Status::InterruptedAt { at_ps }),
                (None, Some(reason)) => Ok(Status::Failed(reason.to_owned())),
                (None, None) => Err(format!("unknown status {text:?}")),
            },
        }
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A written part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartInfo {
    /// The part's table.
    pub table: String,
    /// The part's file name.
    pub file: String,
    /// The number of rows in the part.
    pub rows: u64,
    /// SHA-256 of the part's bytes, in hexadecimal, to detect damage.
    pub sha256: String,
}

/// `manifest.json`: byte-identical for the same scenario and seed, on any machine and any number of threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout of the directory.
    pub format: u32,
    /// The description of the run.
    #[serde(flatten)]
    pub run: RunInfo,
    /// The progress of the run.
    pub status: Status,
    /// The parts written so far.
    pub parts: Vec<PartInfo>,
}

impl Manifest {
    /// The manifest of a run that has not written anything yet.
    pub fn new(run: RunInfo) -> Manifest {
        Manifest { format: FORMAT, run, status: Status::Running, parts: Vec::new() }
    }

    /// Reads the manifest of a result directory.
    pub fn read(dir: &Path) -> Result<Manifest, RecordError> {
        let path = dir.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(RecordError::io(&path, "read"))?;
        // Check the number of the format first: an older format may lack fields of a newer one.
        let format = serde_json::from_str::<Format>(&text).ok().map(|found| found.format);
        if let Some(format) = format.filter(|&format| format != FORMAT) {
            return Err(RecordError::corrupt(&path, other_format(format)));
        }
        serde_json::from_str(&text).map_err(|e| RecordError::corrupt(&path, e))
    }

    /// Whether a directory holds the result of a run: a manifest of sluicenet, of any format, or a damaged manifest
    /// beside sluicenet's tables. Other programs also have files of this name.
    pub fn is_in(dir: &Path) -> bool {
        let path = dir.join(MANIFEST);
        // Reading a pipe would block for ever.
        if !fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
            return false;
        }
        match fs::read(&path).map(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes)) {
            Ok(Ok(found)) => ["format", "scenario_sha256", "parts"].iter().all(|key| found.get(key).is_some()),
            _ => has_parts(dir),
        }
    }

    /// Writes the manifest, replacing an older one atomically.
    pub(super) fn write(&self, dir: &Path) -> Result<(), RecordError> {
        write_json(&dir.join(MANIFEST), self)
    }
}

/// The number of a manifest's format, without the other fields.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn other_format(format: u32) -> String {
    let whose = if format < FORMAT { "an earlier" } else { "a later" };
    format!(
        "result format {format}, of {whose} version of sluicenet, and this one reads format {FORMAT}: run it again; its \
         Parquet files can still be read by other programs"
    )
}

/// `run.json`: data that depend on the machine and the day. They are never compared, and reading the tables does not
/// need them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunLog {
    /// Wall-clock time of the run.
    pub wall_seconds: f64,
    /// CPU time of the run, all threads.
    pub cpu_seconds: f64,
    /// Frames sent on links, pause frames left out.
    pub packet_hops: u64,
    /// Packets from end to end.
    #[serde(default)]
    pub packets_end_to_end: u64,
    /// Threads used.
    pub threads: u32,
    /// Highest resident memory, if the system tells.
    pub peak_memory_bytes: Option<u64>,
    /// The command line.
    pub command: Vec<String>,
}

impl RunLog {
    /// Reads the log of a result directory.
    pub fn read(dir: &Path) -> Result<RunLog, RecordError> {
        let path = dir.join(RUN_LOG);
        let text = fs::read_to_string(&path).map_err(RecordError::io(&path, "read"))?;
        serde_json::from_str(&text).map_err(|e| RecordError::corrupt(&path, e))
    }

    /// Raises the peak of memory in the log of a result directory to that of this process, after what follows a run.
    pub fn update_peak(dir: &Path) -> Result<(), RecordError> {
        let log = RunLog::read(dir)?;
        RunLog { peak_memory_bytes: log.peak_memory_bytes.max(Some(peak_rss_bytes())), ..log }.write(dir)
    }

    /// A count of the run for each CPU second; a run too short to measure counts as 10 ms.
    pub fn per_cpu_s(&self, count: u64) -> f64 {
        count as f64 / self.cpu_seconds.max(0.01)
    }

    /// Writes the log into a result directory.
    pub fn write(&self, dir: &Path) -> Result<(), RecordError> {
        write_json(&dir.join(RUN_LOG), self)
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), RecordError> {
    let mut text = serde_json::to_string_pretty(value).map_err(|e| RecordError::corrupt(path, e))?;
    text.push('\n');
    write_file(path, text.as_bytes())
}

/// SHA-256 of `bytes` in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The largest resident memory of this process so far, in bytes.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kb = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_its_text() {
        let all = [
            Status::Running,
            Status::Complete,
            Status::InterruptedAt { at_ps: 1_234_567 },
            Status::Failed("disk full: 3 of 5".into()),
        ];
        for status in all {
            assert_eq!(status.to_string().parse(), Ok(status));
        }
        assert!("interrupted at noon".parse::<Status>().is_err());
    }

    #[test]
    fn sha256_is_the_published_one() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
