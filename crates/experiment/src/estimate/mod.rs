//! How long a run will take, told before it starts: its work from the scenario, this machine's speed from a short
//! simulation.
//!
//! No part of a result depends on it.

mod speed;
mod work;

pub use speed::Speed;
pub use work::{Work, expected_bytes};

use sluicenet_scenario::Scenario;

/// How far the real time may be from the expected one, as a factor in both directions. 20 of 25 scenarios of this
/// repository are within it, and the others end sooner (docs/decisions.md).
pub const RANGE: f64 = 2.5;
/// Expected seconds from which this machine is measured; less is told by the reference's speed, which costs nothing.
const MEASURED_FROM_S: f64 = 1.0;
/// Time of a packet in virtualised servers with zCredit, over that without: it is asked for and granted.
const CREDITS: f64 = 12.0;
/// A second thread's gain over the first, where there is a core for it.
const SECOND_THREAD: f64 = 0.6;
/// Hosts whose state fits into a processor's caches.
const CACHED_HOSTS: f64 = 128.0;
/// Growth of the time for a packet each time the hosts beyond these double.
const GROWTH: f64 = 0.2;

/// The time that a run is expected to take on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Its work.
    pub work: Work,
    /// Seconds. The real time is expected between this over [`RANGE`] and this times it.
    pub seconds: f64,
}

impl Estimate {
    /// The estimate of a run on so many threads. `None` if its work is not bounded by the scenario, or it simulates no
    /// packets.
    ///
    /// If the run is expected to take longer than a second, this simulates a small network for some 50 ms.
    pub fn of(scenario: &Scenario, threads: usize) -> Option<Estimate> {
        let work = Work::expected(scenario)?;
        let is_virtual = scenario.server.virtual_network;
        let hosts = f64::from(scenario.topology.counts().hosts);
        let credits = if scenario.zcredit.enabled { CREDITS } else { 1.0 };
        let seconds = |speed: Speed| {
            let servers_s = speed.servers_s * credits;
            Speed { servers_s, ..speed }.seconds(&work, is_virtual) * growth(hosts) / gain(threads)
        };
        let mut expected = seconds(Speed::REFERENCE);
        if expected >= MEASURED_FROM_S {
            expected = Speed::measured().map_or(expected, seconds);
        }
        Some(Estimate { work, seconds: expected })
    }

    /// The shortest and the longest time that are expected, in seconds.
    pub fn range(&self) -> (f64, f64) {
        (self.seconds / RANGE, self.seconds * RANGE)
    }
}

/// How much longer a packet takes in a network that does not fit into the caches.
fn growth(hosts: f64) -> f64 {
    1.0 + GROWTH * (hosts / CACHED_HOSTS).max(1.0).log2()
}

/// How much sooner so many threads end than one, on the cores that there are.
fn gain(threads: usize) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    1.0 + SECOND_THREAD * (threads.clamp(1, cores) - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Scenario {
        Scenario::parse(text, "test").unwrap_or_else(|e| panic!("{e}")).scenario
    }

    #[test]
    fn ten_times_the_work_takes_ten_times_as_long() {
        let text = |ms: u32| {
            format!(
                "[scenario]\nparameters = \"plain\"\nduration = \"{ms} ms\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n\
                 [[workload]]\nkind = \"permutation\"\npattern = \"random\"\n"
            )
        };
        let [short, long] = [1, 10].map(|ms| Estimate::of(&scenario(&text(ms)), 1).unwrap());
        assert!((long.seconds / short.seconds - 10.0).abs() < 0.1, "{short:?} {long:?}");
        let (least, most) = long.range();
        assert!(least < long.seconds && long.seconds < most);
        assert!(growth(16.0) == 1.0 && growth(8192.0) > 2.0);
        assert_eq!(gain(1), 1.0);
    }

    #[test]
    fn a_long_run_is_told_by_this_machines_speed() {
        let text = "[scenario]\nparameters = \"plain\"\nduration = \"10 h\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n\
                    [[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
        let estimate = Estimate::of(&scenario(text), 1).unwrap();
        assert!(estimate.seconds > 86_400.0, "{estimate:?}");
        // A tenth of the reference's speed, or ten times it, would be another computer altogether; a debug build is slower.
        let slower = Speed::measured().unwrap().hop_s / Speed::REFERENCE.hop_s;
        assert!((0.1..1_000.0).contains(&slower), "{slower}");
    }

    #[test]
    fn flows_without_packets_have_no_estimate() {
        let text = "[scenario]\nparameters = \"plain\"\nlevel = \"flow\"\nduration = \"1 ms\"\n[topology]\n\
                    kind = \"single-switch\"\nhosts = 2\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n";
        assert_eq!(Estimate::of(&scenario(text), 1), None);
    }
}
