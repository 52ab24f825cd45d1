//! Flows without an end: how fast they were, and how fair to each other.

use crate::workload::ENDLESS;
use serde::{Deserialize, Serialize};
use sluicenet_node::guest::FlowRecord;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Scenario, Workload};
use sluicenet_sim::EPOCH;
use std::collections::HashMap;

/// Flows that are listed one by one.
const LISTED_MAX: usize = 64;

/// A flow without an end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Server that sends.
    pub src_host: u32,
    /// VM there.
    pub src_vm: u8,
    /// Server that receives.
    pub dst_host: u32,
    /// VM there.
    pub dst_vm: u8,
    /// tcp, udp, tcplight or roce.
    pub transport: String,
    /// Payload delivered after the warm-up, in megabits a second.
    pub mbps: f64,
    /// Rate in each interval since the run began, the warm-up among them; empty where the course was not followed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub course_mbps: Vec<f64>,
}

/// All streams; all zero where there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Streams {
    /// How many.
    pub count: u64,
    /// Their rates together.
    pub total_mbps: f64,
    /// The slowest one's.
    pub min_mbps: f64,
    /// The fastest one's.
    pub max_mbps: f64,
    /// Jain's fairness index of their rates: 1 where all are alike, `1 / count` where one has all.
    pub jain: f64,
    /// How long each interval of a course is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<f64>,
    /// Each of the first 64, in the order of their numbers.
    pub each: Vec<Stream>,
}

impl Streams {
    /// The course of all of them: start and end of each interval in picoseconds, and a rate in megabits a second. None where
    /// the course of any is unknown.
    pub fn courses(&self) -> Option<impl Iterator<Item = (f64, f64, f64)> + '_> {
        let width_ps = self.interval_ms? * 1e9;
        let is_whole = self.count == self.each.len() as u64 && self.each.iter().all(|s| !s.course_mbps.is_empty());
        let of = move |(k, &mbps): (usize, &f64)| (width_ps * k as f64, width_ps * (k + 1) as f64, mbps);
        is_whole.then(|| self.each.iter().flat_map(move |stream| stream.course_mbps.iter().enumerate().map(of)))
    }
}

/// Intervals of a run whose flows are followed.
pub const INTERVALS: u32 = 50;

/// Megabits a second, to a whole bit: smaller digits come from arithmetic.
pub fn mbps(bytes: u64, seconds: f64) -> f64 {
    (bytes as f64 * 8.0 / seconds).round() / 1e6
}

/// How fast flows are while time goes by.
pub struct Course {
    /// A whole number of epochs.
    interval: Duration,
    last: Instant,
    samples: usize,
    /// For each flow, the bytes delivered until `last`, and the rates until then.
    flows: HashMap<u64, (u64, Vec<f64>)>,
}

impl Course {
    /// The course of a run that may have flows without an end.
    pub fn of(s: &Scenario) -> Option<Course> {
        let may = |w: &Workload| match w {
            Workload::Permutation(w) => w.bytes.is_none(),
            Workload::Flow(w) => w.bytes.is_none(),
            Workload::FlowFile(_) => true,
            _ => false,
        };
        let duration = s.duration.filter(|_| s.workloads.iter().any(may))?;
        let epochs = duration.as_ps().div_ceil(u64::from(INTERVALS) * EPOCH.0).max(1);
        let interval = Duration(epochs.saturating_mul(EPOCH.0));
        Some(Course { interval, last: Instant::ZERO, samples: 0, flows: HashMap::new() })
    }

    /// Whether an interval is over at the end of an epoch.
    pub fn is_interval_over(&self, now: Instant) -> bool {
        now >= Instant(self.interval.0.saturating_mul(self.samples as u64 + 1))
    }

    /// One is, with these flows open.
    pub fn take(&mut self, now: Instant, open: &[FlowRecord]) {
        let seconds = now.since(self.last).as_secs_f64();
        for f in open.iter().filter(|f| f.bytes >= ENDLESS) {
            let (before, rates) = self.flows.entry(f.id).or_default();
            // The flow did not exist yet.
            rates.resize(self.samples, 0.0);
            rates.push(mbps(f.delivered.saturating_sub(*before), seconds));
            *before = f.delivered;
        }
        (self.last, self.samples) = (now, self.samples + 1);
    }

    /// At the end of the run, of which the last interval may be missing.
    pub fn finish(&mut self, now: Instant, open: &[FlowRecord]) {
        if now.since(self.last).as_ps() > self.interval.as_ps() / 2 {
            self.take(now, open);
        }
    }
}

/// Where they stood when the warm-up was over.
pub struct Mark {
    at: Instant,
    delivered: HashMap<u64, u64>,
}

impl Mark {
    /// From the flows that are open.
    pub fn new(at: Instant, open: &[FlowRecord]) -> Mark {
        Mark { at, delivered: open.iter().filter(|f| f.bytes >= ENDLESS).map(|f| (f.id, f.delivered)).collect() }
    }
}

impl Streams {
    /// Streams of the flows that are open at the end, measured from the mark on.
    pub fn of(open: &[FlowRecord], mark: Option<&Mark>, course: Option<&Course>, now: Instant) -> Streams {
        let rate = |f: &FlowRecord| {
            let (from, before) =
                mark.map_or((Instant::ZERO, 0), |m| (m.at, m.delivered.get(&f.id).copied().unwrap_or(0)));
            let ps = now.since(from.max(f.start)).as_ps().max(1);
            mbps(f.delivered - before, ps as f64 / 1e12)
        };
        let stream = |f: &FlowRecord| Stream {
            src_host: f.src.host(),
            src_vm: f.src.vm(),
            dst_host: f.dst.host(),
            dst_vm: f.dst.vm(),
            transport: f.transport.name().into(),
            mbps: rate(f),
            course_mbps: course.and_then(|c| c.flows.get(&f.id)).map_or(Vec::new(), |(_, rates)| rates.clone()),
        };
        let interval_ms = course.map(|c| c.interval.as_secs_f64() * 1e3);
        Streams::new(open.iter().filter(|f| f.bytes >= ENDLESS).map(stream).collect(), interval_ms)
    }

    /// Streams of all flows, in the order of their numbers, and the length of an interval of their courses.
    pub fn new(mut each: Vec<Stream>, interval_ms: Option<f64>) -> Streams {
        let rates = || each.iter().map(|s| s.mbps);
        let streams = Streams {
            count: each.len() as u64,
            total_mbps: rates().sum(),
            min_mbps: rates().reduce(f64::min).unwrap_or(0.0),
            max_mbps: rates().fold(0.0, f64::max),
            jain: jain(rates()),
            interval_ms: interval_ms.filter(|_| !each.is_empty()),
            each: Vec::new(),
        };
        each.truncate(LISTED_MAX);
        Streams { each, ..streams }
    }

    /// Whether there are no streams.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// `(sum x)^2 / (n sum x^2)`; 0 where nothing moved.
fn jain(rates: impl Iterator<Item = f64> + Clone) -> f64 {
    let (n, sum, squares) = rates.fold((0.0, 0.0, 0.0), |(n, s, q), x| (n + 1.0, s + x, q + x * x));
    if squares == 0.0 { 0.0 } else { (sum * sum / (n * squares) * 1e6).round() / 1e6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_as_long_as_they_say() {
        let text = "[scenario]\nduration = \"70 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 2\n[[workload]]\n\
                    kind = \"flow\"\nsrc = 0\ndst = 1\ntransport = \"udp\"\n";
        let scenario = Scenario::parse(text, "t").unwrap().scenario;
        let mut course = Course::of(&scenario).unwrap();
        // 70 ms / 50 are 2.8 epochs.
        assert_eq!(course.interval, Duration::from_us(1_500));
        let mut ends = Vec::new();
        for epoch in 1..=140 {
            let now = Instant(epoch * EPOCH.0);
            if course.is_interval_over(now) {
                course.take(now, &[]);
                ends.push(now.0 / 1_000_000);
            }
        }
        let expected: Vec<u64> = (1..=46).map(|k| k * 1_500).collect();
        assert_eq!(ends, expected);
    }

    #[test]
    fn jain_is_one_where_all_are_alike_and_one_of_n_where_one_has_all() {
        assert_eq!(jain([3.0, 3.0, 3.0].into_iter()), 1.0);
        assert_eq!(jain([5.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
        // The parking lot of Crisan 2014, 5.4.4: half of a link for one, an eighth for each of four: 0.8 / 1.
        assert_eq!(jain([4.0, 1.0, 1.0, 1.0, 1.0].into_iter()), 0.64);
        assert_eq!(jain([0.0].into_iter()), 0.0);
    }
}
