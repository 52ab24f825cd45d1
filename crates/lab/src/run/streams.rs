//! Flows without an end: how fast they were, and how fair to each other.

use crate::workload::ENDLESS;
use serde::{Deserialize, Serialize};
use sluicenet_node::guest::FlowRecord;
use sluicenet_proto::time::Instant;
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
    /// tcp, udp or tcplight.
    pub transport: String,
    /// Payload delivered after the warm-up, in megabits a second.
    pub mbps: f64,
}

/// All of them; all zero where there are none.
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
    /// Each of the first 64, in the order of their numbers.
    pub each: Vec<Stream>,
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
    /// Of the flows that are open at the end, measured from the mark on.
    pub fn of(open: &[FlowRecord], mark: Option<&Mark>, now: Instant) -> Streams {
        let rate = |f: &FlowRecord| {
            let (from, before) =
                mark.map_or((Instant::ZERO, 0), |m| (m.at, m.delivered.get(&f.id).copied().unwrap_or(0)));
            let ps = now.since(from.max(f.start)).as_ps().max(1);
            // To a whole bit a second: what lies below is the arithmetic's.
            ((f.delivered - before) as f64 * 8e12 / ps as f64).round() / 1e6
        };
        let stream = |f: &FlowRecord| Stream {
            src_host: f.src.host(),
            src_vm: f.src.vm(),
            dst_host: f.dst.host(),
            dst_vm: f.dst.vm(),
            transport: f.transport.name().into(),
            mbps: rate(f),
        };
        Streams::new(open.iter().filter(|f| f.bytes >= ENDLESS).map(stream).collect())
    }

    /// Of all flows, in the order of their numbers.
    pub fn new(mut each: Vec<Stream>) -> Streams {
        let rates = || each.iter().map(|s| s.mbps);
        let streams = Streams {
            count: each.len() as u64,
            total_mbps: rates().sum(),
            min_mbps: rates().reduce(f64::min).unwrap_or(0.0),
            max_mbps: rates().fold(0.0, f64::max),
            jain: jain(rates()),
            each: Vec::new(),
        };
        each.truncate(LISTED_MAX);
        Streams { each, ..streams }
    }

    /// Whether there are none.
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
    use super::jain;

    #[test]
    fn jain_is_one_where_all_are_alike_and_one_of_n_where_one_has_all() {
        assert_eq!(jain([3.0, 3.0, 3.0].into_iter()), 1.0);
        assert_eq!(jain([5.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
        // The parking lot of Crisan 2014, 5.4.4: half of a link for one, an eighth for each of four: 0.8 / 1.
        assert_eq!(jain([4.0, 1.0, 1.0, 1.0, 1.0].into_iter()), 0.64);
        assert_eq!(jain([0.0].into_iter()), 0.0);
    }
}
