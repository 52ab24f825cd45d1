//! One machine's part of an application that runs on several machines: its synchronisation with the other parts, and
//! its results.

use super::sockets::own_counter;
use super::{Outcome, PaError, Query};
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::kernel::edge::{Stack, StackCounters};
use sluicenet_dataplane::kernel::netns::Namespace;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files that synchronise parts. A part creates a file to report a step, and waits for a file that tells it to go on.
#[derive(Clone, Debug)]
pub struct Cues {
    folder: PathBuf,
    pub(super) device: String,
}

impl Cues {
    /// Report: others may connect to the part.
    pub const LISTENS: &str = "listens";
    /// Order: connect to the others.
    pub const CONNECT: &str = "connect";
    /// Report: the part's connections are open.
    pub const CONNECTED: &str = "connected";
    /// Order: start the clock.
    pub const BEGIN: &str = "begin";
    /// Report: the part has no more queries; it goes on answering.
    pub const DONE: &str = "done";
    /// Order: write the results.
    pub const END: &str = "end";
    /// Report: the results are written.
    pub const TOLD: &str = "told";
    /// Order: close the connections.
    pub const LEAVE: &str = "leave";
    /// A pipe that gets a byte with every report, to wake a process that waits for one.
    pub const WAKE: &str = "wake";
    /// The file of the part's results.
    pub const RESULT: &str = "result";

    /// The cues in `folder`, for the part of a machine with network device `device`.
    pub fn new(folder: &Path, device: &str) -> Cues {
        Cues { folder: folder.to_owned(), device: device.into() }
    }

    pub(super) fn say(&self, word: &str) -> Result<(), PaError> {
        let path = self.folder.join(word);
        std::fs::write(&path, "").map_err(|e| PaError::io(&path.display().to_string(), &e))?;
        let wake = self.folder.join(Cues::WAKE);
        // Open both ends of the pipe, so that no reader is needed.
        let told = OpenOptions::new().read(true).write(true).open(&wake).and_then(|mut pipe| pipe.write_all(b"\n"));
        told.map_err(|e| PaError::io(&wake.display().to_string(), &e))
    }

    pub(super) fn is_told(&self, word: &str) -> bool {
        self.folder.join(word).exists()
    }

    pub(super) fn tell(&self, part: &Part) -> Result<(), PaError> {
        let path = self.folder.join(Cues::RESULT);
        let text = serde_json::to_vec(part).map_err(|e| PaError::io("the result", &e.into()))?;
        std::fs::write(&path, text).map_err(|e| PaError::io(&path.display().to_string(), &e))?;
        self.say(Cues::TOLD)
    }
}

/// Timeouts and retransmissions of one machine's answers to a query of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The query.
    pub query: u64,
    /// Timeouts at this end; none if the kernel does not count them.
    pub timeouts: Option<u32>,
    /// Segments that this end retransmitted.
    pub retransmitted: u32,
}

/// A query: number, aggregator, start and time in nanoseconds, whether it is of the warm-up, timeouts, retransmitted
/// segments.
type Row = (u64, u32, u64, u64, bool, Option<u32>, u32);

/// The results of one machine's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The congestion control of the part's sockets.
    pub congestion: String,
    queries: Vec<Row>,
    unfinished: u64,
    /// Bytes and nanoseconds of each finished flow.
    flows: Vec<(u64, u64)>,
    kernel: [u64; 3],
    time_ns: u64,
    answers: Vec<Answer>,
    /// Frames and segments dropped by the machine's kernel, by place.
    pub edges: BTreeMap<String, u64>,
}

fn ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Part {
    pub(super) fn new(outcome: &Outcome, answers: Vec<Answer>, edges: BTreeMap<String, u64>) -> Part {
        let row = |q: &Query| (q.id, q.aggregator, ns(q.start), ns(q.took), q.warmup, q.timeouts, q.retransmitted);
        Part {
            congestion: outcome.congestion.into(),
            queries: outcome.queries.iter().map(row).collect(),
            unfinished: outcome.unfinished,
            flows: outcome.flows.iter().map(|f| (f.0, ns(f.1))).collect(),
            kernel: outcome.kernel,
            time_ns: ns(outcome.time),
            answers,
            edges,
        }
    }
}

/// The combined results of all parts, with queries in the order of their ends, each by its aggregator's clock.
pub fn together(congestion: &'static str, parts: &[Part]) -> Outcome {
    let mut all = Outcome { congestion, ..Outcome::default() };
    let mut answers: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    for part in parts {
        for a in &part.answers {
            let sum = answers.entry(a.query).or_default();
            // Guests may report any number: avoid overflow.
            sum.0 = sum.0.saturating_add(a.timeouts.unwrap_or(0));
            sum.1 = sum.1.saturating_add(a.retransmitted);
        }
        all.unfinished = all.unfinished.saturating_add(part.unfinished);
        all.flows.extend(part.flows.iter().map(|f| (f.0, Duration::from_nanos(f.1))));
        all.time = all.time.max(Duration::from_nanos(part.time_ns));
        (0..3).for_each(|i| all.kernel[i] = all.kernel[i].saturating_add(part.kernel[i]));
    }
    let query = |&(id, aggregator, start, took, warmup, timeouts, retransmitted): &Row| {
        let others = answers.get(&id).copied().unwrap_or_default();
        Query {
            id,
            aggregator,
            start: Duration::from_nanos(start),
            took: Duration::from_nanos(took),
            warmup,
            timeouts: timeouts.map(|own| own.saturating_add(others.0)),
            retransmitted: retransmitted.saturating_add(others.1),
        }
    };
    all.queries = parts.iter().flat_map(|p| p.queries.iter().map(query)).collect();
    all.queries.sort_by_key(|q| (q.start + q.took, q.id));
    all
}

/// Counters of segments that TCP received and dropped, or refused (`/proc/net/netstat`).
const TCP_DROPS: [&str; 6] =
    ["TCPBacklogDrop", "TCPRcvQDrop", "TCPZeroWindowDrop", "PFMemallocDrop", "ListenDrops", "TCPMinTTLDrop"];

/// The sum of several machines' kernel drops, by place.
pub fn sum_of<'a>(machines: impl Iterator<Item = &'a BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (name, n) in machines.flatten() {
        let known: &mut u64 = sum.entry(name.clone()).or_default();
        *known = known.saturating_add(*n);
    }
    sum
}

/// The drops of this machine's own kernel between its programs and a device, by place.
///
/// # Errors
/// Counters that cannot be read.
pub fn own_edges(device: &str) -> Result<BTreeMap<String, u64>, PaError> {
    let failed = |e: &dyn std::fmt::Display| PaError::Io { what: format!("counters of {device}"), why: e.to_string() };
    let here = Namespace::current().map_err(|e| failed(&e))?;
    let counted = Stack::open(&here, device).and_then(|mut stack| stack.read()).map_err(|e| failed(&e))?;
    let StackCounters { qdisc, not_sent, not_received, softnet, sockets, reassembly, .. } = counted;
    let mut tcp = 0;
    for name in TCP_DROPS {
        tcp += own_counter("TcpExt", name)?;
    }
    let all = [
        ("qdisc", qdisc),
        ("not_sent", not_sent),
        ("not_received", not_received),
        ("softnet", softnet),
        ("sockets", sockets),
        ("reassembly", reassembly),
        ("tcp", tcp),
    ];
    Ok(all.into_iter().map(|(name, n)| (format!("guest_{name}"), n)).collect())
}

/// The drops of this machine's kernel since `before`, without places that dropped nothing.
pub(super) fn own_edges_since(device: &str, before: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>, PaError> {
    let mut now = own_edges(device)?;
    now.iter_mut().for_each(|(name, n)| *n = n.saturating_sub(before.get(name).copied().unwrap_or(0)));
    now.retain(|_, n| *n > 0);
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_together_what_one_process_would_have_seen() {
        let query = |id, start, took, timeouts| Query {
            id,
            aggregator: id as u32,
            start: Duration::from_millis(start),
            took: Duration::from_millis(took),
            warmup: false,
            timeouts,
            retransmitted: 1,
        };
        let part = |queries, unfinished, answers| {
            let outcome = Outcome {
                congestion: "reno",
                queries,
                unfinished,
                flows: vec![(7, Duration::from_millis(3))],
                kernel: [1, 2, 3],
                time: Duration::from_secs(unfinished),
            };
            let part = Part::new(&outcome, answers, BTreeMap::new());
            // As it goes through the console.
            serde_json::from_str(&serde_json::to_string(&part).unwrap()).unwrap()
        };
        let answer = |query, timeouts| Answer { query, timeouts, retransmitted: 4 };
        let one: Part = part(vec![query(1, 0, 50, Some(1)), query(2, 60, 10, None)], 2, vec![answer(3, Some(2))]);
        let two = part(vec![query(3, 10, 20, Some(0))], 3, vec![answer(1, Some(5)), answer(2, None), answer(9, None)]);
        let all = together("reno", &[one, two]);
        let seen: Vec<_> = all.queries.iter().map(|q| (q.id, q.timeouts, q.retransmitted)).collect();
        assert_eq!(seen, [(3, Some(2), 5), (1, Some(6), 5), (2, None, 5)]);
        assert_eq!((all.unfinished, all.kernel, all.flows.len()), (5, [2, 4, 6], 2));
        assert_eq!(all.time, Duration::from_secs(3));
    }
}
