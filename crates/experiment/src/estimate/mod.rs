//! How long a run will take, told before it starts: its work from the scenario, this machine's speed from a short
//! simulation.
//!
//! No part of a result depends on it.

mod speed;
mod work;

pub use speed::Speed;
pub use work::{Work, expected_bytes};

use sluicenet_scenario::Scenario;

/// How far the real time may be from the expected one, as a factor in both directions. 62 of 82 scenarios of this
/// repository had packet-hops within it; docs/decisions.md tells about the others.
pub const RANGE: f64 = 2.5;
/// The factor upwards where traffic without an end goes on until finite work has ended: each timeout lengthens that, and costs
/// the packets of all others.
const RANGE_OPEN: f64 = 40.0;
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
    /// Seconds to build the network, and to write the rows of its ports.
    pub building_s: f64,
    /// Seconds in all. The real time is expected in [`Estimate::range`].
    pub seconds: f64,
}

impl Estimate {
    /// The estimate of a run on so many threads, whose records are written if it is `recorded`. `None` if its work is not bounded
    /// by the scenario, or it simulates no packets.
    ///
    /// If the run is expected to take longer than a second, this simulates a small network for some 50 ms.
    pub fn of(scenario: &Scenario, threads: usize, recorded: bool) -> Option<Estimate> {
        let estimate = Self::at(Speed::REFERENCE, scenario, threads, recorded)?;
        if estimate.seconds < MEASURED_FROM_S {
            return Some(estimate);
        }
        Speed::measured().map_or(Some(estimate), |speed| Self::at(speed, scenario, threads, recorded))
    }

    /// As [`Estimate::of`], of runs that are `workers` at a time on one thread each, and recorded: the estimate of all, without
    /// those whose work is not known, and the number of these.
    pub fn of_all<'a>(scenarios: impl IntoIterator<Item = &'a Scenario>, workers: usize) -> (Option<Estimate>, usize) {
        let scenarios: Vec<&Scenario> = scenarios.into_iter().collect();
        let at = |speed: Speed| {
            let known: Vec<Estimate> = scenarios.iter().filter_map(|s| Self::at(speed, s, 1, true)).collect();
            (Self::together(&known, workers), scenarios.len() - known.len())
        };
        let (estimate, unknown) = at(Speed::REFERENCE);
        match estimate {
            Some(Estimate { seconds, .. }) if seconds >= MEASURED_FROM_S => {
                Speed::measured().map_or((estimate, unknown), at)
            }
            _ => (estimate, unknown),
        }
    }

    /// The estimate of these together, so many at a time; none of none.
    fn together(all: &[Estimate], workers: usize) -> Option<Estimate> {
        // The longest one is alone at the end, at worst.
        let longest = all.iter().map(|e| e.seconds).fold(0.0, f64::max);
        let sum = all.iter().copied().reduce(|a, b| Estimate {
            work: Work {
                packets: a.work.packets + b.work.packets,
                hops: a.work.hops + b.work.hops,
                is_open: a.work.is_open || b.work.is_open,
            },
            building_s: a.building_s + b.building_s,
            seconds: a.seconds + b.seconds,
        })?;
        let gain = gain(workers.min(all.len()));
        Some(Estimate { building_s: sum.building_s / gain, seconds: (sum.seconds / gain).max(longest), ..sum })
    }

    /// The estimate at a known speed.
    fn at(speed: Speed, scenario: &Scenario, threads: usize, recorded: bool) -> Option<Estimate> {
        let work = Work::expected(scenario)?;
        let hosts = f64::from(scenario.topology.counts().hosts);
        let credits = if scenario.zcredit.enabled { CREDITS } else { 1.0 };
        let packets = Speed { servers_s: speed.servers_s * credits, ..speed };
        let simulated_s = packets.seconds(&work, scenario.server.virtual_network) * growth(hosts) / gain(threads);
        // One thread builds and writes.
        let building_s = speed.building(scenario, recorded);
        Some(Estimate { work, building_s, seconds: simulated_s + building_s })
    }

    /// The shortest and the longest time that are expected, in seconds.
    pub fn range(&self) -> (f64, f64) {
        let longer = if self.work.is_open { RANGE_OPEN } else { RANGE };
        // Building is the same in both.
        let simulated_s = self.seconds - self.building_s;
        (self.seconds / RANGE, simulated_s * longer + self.building_s * RANGE)
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
        let [short, long] = [1, 10].map(|ms| Estimate::of(&scenario(&text(ms)), 1, false).unwrap());
        let simulated = |e: Estimate| e.seconds - e.building_s;
        assert!((simulated(long) / simulated(short) - 10.0).abs() < 0.1, "{short:?} {long:?}");
        let (least, most) = long.range();
        assert!(least < long.seconds && long.seconds < most);
        assert!(growth(16.0) == 1.0 && growth(8192.0) > 2.0);
        assert_eq!(gain(1), 1.0);
    }

    #[test]
    fn a_long_run_is_told_by_this_machines_speed() {
        let text = "[scenario]\nparameters = \"plain\"\nduration = \"10 h\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n\
                    [[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
        let estimate = Estimate::of(&scenario(text), 1, false).unwrap();
        assert!(estimate.seconds > 86_400.0, "{estimate:?}");
        // A tenth of the reference's speed, or ten times it, would be another computer altogether; a debug build is slower.
        let slower = Speed::measured().unwrap().hop_s / Speed::REFERENCE.hop_s;
        assert!((0.1..1_000.0).contains(&slower), "{slower}");
    }

    #[test]
    fn building_and_rows_of_ports_take_their_time() {
        let text = |k: u32| {
            format!(
                "[scenario]\nparameters = \"plain\"\nduration = \"1 us\"\n[topology]\nkind = \"fat-tree\"\nk = {k}\n\
                 [[workload]]\nkind = \"permutation\"\npattern = \"random\"\nsenders = 2\n"
            )
        };
        let large = scenario(&text(256));
        let at = |recorded| Estimate::at(Speed::REFERENCE, &large, 1, recorded).unwrap();
        // Measured: 9.3 and 32 s.
        assert!((7.0..13.0).contains(&at(false).seconds) && (26.0..40.0).contains(&at(true).seconds), "{:?}", at(true));
        assert!(
            Estimate::of(&large, 1, true).unwrap().seconds
                > Estimate::of(&scenario(&text(4)), 1, true).unwrap().seconds
        );
    }

    #[test]
    fn runs_beside_each_other_take_as_long_as_their_sum_or_the_longest() {
        let one = |seconds| Estimate { work: Work::default(), building_s: 0.0, seconds };
        let together = |all: &[f64], workers| {
            let all: Vec<Estimate> = all.iter().map(|&s| one(s)).collect();
            Estimate::together(&all, workers).map(|e| e.seconds)
        };
        assert_eq!((together(&[], 2), together(&[1.0, 2.0], 1)), (None, Some(3.0)));
        assert_eq!(together(&[1.0, 50.0], 2).map(|s| s >= 50.0), Some(true));
    }

    #[test]
    fn a_run_with_traffic_beside_finite_work_has_a_wide_range() {
        let flow = |src: u32, bytes: &str| format!("[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = 3\n{bytes}");
        let head = "[scenario]\nparameters = \"plain\"\n[topology]\nkind = \"single-switch\"\nhosts = 4\n";
        let finite = format!("{head}{}", flow(0, "bytes = \"1 MB\"\n"));
        let both = format!("{finite}{}", flow(1, ""));
        let width = |text: &str| {
            let estimate = Estimate::of(&scenario(text), 1, false).unwrap();
            estimate.range().1 / estimate.seconds
        };
        assert!(width(&finite) < 3.0 && width(&both) > 30.0, "{} {}", width(&finite), width(&both));
    }

    #[test]
    fn flows_without_packets_have_no_estimate() {
        let text = "[scenario]\nparameters = \"plain\"\nlevel = \"flow\"\nduration = \"1 ms\"\n[topology]\n\
                    kind = \"single-switch\"\nhosts = 2\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n";
        assert_eq!(Estimate::of(&scenario(text), 1, false), None);
    }
}
