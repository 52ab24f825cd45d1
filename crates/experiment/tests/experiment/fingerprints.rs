//! Results stay as they are: `data/fingerprints.json` keeps a hash of the record values and counts of some small
//! scenarios. A changed result is intended and explained in the changelog, or it is a bug.
//!
//! `SLUICENET_FINGERPRINTS=write cargo test -p sluicenet-experiment fingerprints` writes the hashes anew. A hash covers
//! values, not names: columns may be renamed and reordered. A column in which everything is zero, empty or null counts
//! for nothing, so that a feature that is off changes no hash.

use serde::{Deserialize, Serialize};
use sluicenet_experiment::run::Outcome;
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_records::tables::Row;
use sluicenet_records::{DropRow, FlowRow, PauseRow, PortRow, QueryRow, QueueRow, TcpRow, Value, read, sha256_hex};
use sluicenet_scenario::Scenario;
use sluicenet_testkit::{Dir, repository};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

const FILE: &str = "crates/experiment/tests/data/fingerprints.json";
/// Hexadecimal digits of a hash that the file keeps: chance finds an equal one once in 2^64.
const DIGITS: usize = 16;

#[derive(Deserialize, Serialize)]
struct Entry {
    /// A scenario of this repository; swept keys keep their own values.
    file: String,
    /// Overrides of the scenario's settings, so that the run is small or has the feature in question.
    set: Vec<String>,
    /// The hash.
    hash: String,
}

/// The hashes of a table's columns that hold anything.
fn columns<R: Row>(dir: &Path) -> Vec<String> {
    let rows: Vec<R> = read(dir).unwrap_or_else(|e| panic!("{e}"));
    let mut texts = vec![(String::new(), false); R::TABLE.columns.len()];
    for row in &rows {
        row.visit(&mut |column, value| {
            let (text, holds) = &mut texts[column];
            *holds |= !matches!(value, Value::Null | Value::Int(0) | Value::Bool(false) | Value::Real(0.0));
            match value {
                Value::Real(x) => *text += &x.to_bits().to_string(),
                other => *text += &other.to_string(),
            }
            text.push('\n');
        });
    }
    texts.into_iter().filter(|(_, holds)| *holds).map(|(text, _)| sha256_hex(text.as_bytes())).collect()
}

fn drops(d: &Drops) -> Vec<u64> {
    DropReason::ALL.into_iter().flat_map(|r| [d.frames(r), d.bytes(r)]).filter(|&n| n > 0).collect()
}

/// Counts of a run, without names.
fn counts(o: &Outcome) -> String {
    let t = &o.totals;
    let f = &o.flows;
    let z = o.zbridge.unwrap_or_default();
    let numbers = [
        vec![
            o.now.as_ps(),
            // Pause frames count for a fingerprint.
            o.hops + t.pauses,
            t.sent,
            t.delivered,
            t.dropped,
            t.inside,
            t.pauses,
            o.pauses,
            o.violations,
            o.uncredited,
        ],
        vec![o.tcp_bytes, u64::from(o.received_max.unwrap_or(0)), o.queries.len() as u64, o.streams.count],
        vec![f.started, f.finished, f.open_alone, f.warmup_alone, f.timeouts, f.retransmissions],
        vec![z.sent, z.resent, z.delivered, z.duplicates, z.timeouts],
        o.flow_fct_ps.clone(),
        o.streams.each.iter().map(|s| s.mbps.to_bits()).collect(),
        drops(&o.switch_drops),
        drops(&o.server_drops),
    ];
    let text: Vec<String> = numbers.iter().map(|part| format!("{part:?}")).collect();
    text.join("\n")
}

/// The hash of a scenario's results.
fn fingerprint(entry: &Entry, index: usize) -> String {
    let loaded = Scenario::load_with(repository(&entry.file), &entry.set).unwrap_or_else(|e| panic!("{e}"));
    let dir = Dir::new(&format!("fingerprint-{index}"));
    // Some on two threads: no result depends on them. On a busy machine they take long, because threads wait for each other.
    let o = crate::worlds::attempt(&loaded, 1 + usize::from(index % 5 == 0), Some(dir.0.clone()))
        .unwrap_or_else(|e| panic!("{}: {e}", entry.file));
    let mut hashes = [
        columns::<FlowRow>(&dir.0),
        columns::<QueryRow>(&dir.0),
        columns::<PortRow>(&dir.0),
        columns::<DropRow>(&dir.0),
        columns::<PauseRow>(&dir.0),
        columns::<QueueRow>(&dir.0),
        columns::<TcpRow>(&dir.0),
    ]
    .concat();
    assert!(hashes.len() > 5, "{}: nothing is recorded", entry.file);
    let captures = crate::worlds::bytes_of(&dir.0).into_iter().filter(|(name, _)| name.ends_with(".pcapng"));
    hashes.extend(captures.map(|(_, bytes)| sha256_hex(&bytes)));
    hashes.sort();
    sha256_hex(format!("{}\n{}", hashes.join("\n"), counts(&o)).as_bytes())[..DIGITS].to_string()
}

#[test]
fn results_are_what_they_were() {
    let text = std::fs::read_to_string(repository(FILE)).unwrap();
    let mut entries: Vec<Entry> = serde_json::from_str(&text).unwrap();
    assert!(entries.len() >= 20);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = entries.get(index) else { return found };
            found.push((index, fingerprint(entry, index)));
        }
    };
    let mut found: Vec<(usize, String)> = std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().flat_map(|w| w.join().expect("a worker")).collect()
    });
    found.sort();
    if std::env::var("SLUICENET_FINGERPRINTS").is_ok_and(|v| v == "write") {
        found.into_iter().for_each(|(index, hash)| entries[index].hash = hash);
        let lines: Vec<String> = entries.iter().map(|entry| serde_json::to_string(entry).unwrap()).collect();
        std::fs::write(repository(FILE), format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
        return;
    }
    let differ: Vec<String> = found
        .iter()
        .map(|(index, hash)| (&entries[*index], hash))
        .filter(|(entry, hash)| entry.hash != **hash)
        .map(|(entry, hash)| format!("{} {:?}: {} -> {hash}", entry.file, entry.set, entry.hash))
        .collect();
    assert!(
        differ.is_empty(),
        "results have changed:\n{}\nIf that is intended, explain it in CHANGELOG.md with figures from before and after, and run \
         SLUICENET_FINGERPRINTS=write cargo test -p sluicenet-experiment fingerprints",
        differ.join("\n")
    );
}
