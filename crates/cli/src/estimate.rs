//! How long a run will take, in words: before it starts, and in `validate`.

use super::output;
use super::table::{lasting, short};
use serde::Serialize;
use sluicenet_experiment::estimate::Estimate;
use sluicenet_scenario::Scenario;

/// Expected seconds from which a run tells before its start: less is over before it is read.
const TOLD_FROM_S: f64 = 5.0;
/// Expected seconds from which a run is warned of: a day.
const WARNED_FROM_S: f64 = 86_400.0;
/// In place of an estimate that there is not.
pub(super) const UNKNOWN: &str = "unknown: the scenario does not bound its packets";

/// The expected work and time of a run, as `validate --json` prints them.
#[derive(Debug, Serialize)]
pub(super) struct Expected {
    packets_end_to_end: u64,
    packet_hops: u64,
    /// On this machine.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
}

impl Expected {
    /// What is expected of a run on so many threads; none where the scenario does not bound it.
    pub fn of(s: &Scenario, threads: usize) -> Option<Expected> {
        let estimate = Estimate::of(s, threads)?;
        let (seconds_min, seconds_max) = estimate.range();
        let (packets_end_to_end, packet_hops) = (estimate.work.packets as u64, estimate.work.hops as u64);
        Some(Expected { packets_end_to_end, packet_hops, seconds: estimate.seconds, seconds_min, seconds_max })
    }

    /// "about 40 s (16 to 100 s) on this machine: 12.0 M packets from end to end, 70.0 M packet-hops".
    pub fn text(&self) -> String {
        let [packets, hops] =
            [self.packets_end_to_end, self.packet_hops].map(|n| short(n as f64).trim_end().to_owned());
        let work = format!("{packets} packets from end to end, {hops} packet-hops");
        if self.seconds_max < 1.0 {
            return format!("less than a second: {work}");
        }
        let [about, from, to] = [self.seconds, self.seconds_min, self.seconds_max].map(lasting);
        format!("about {about} on this machine ({from} to {to}): {work}")
    }

    /// The warning of a run that would last for days.
    pub fn warning(&self) -> Option<String> {
        (self.seconds >= WARNED_FROM_S).then(|| {
            format!(
                "warning: this run takes days: {}\n  = hint: a shorter scenario.duration, fewer queries or flows, \
                 --level flow, or the variants of a sweep on several machines (sluicenet sweep --shard)",
                self.text()
            )
        })
    }
}

/// Tells what is expected of a run that starts now, if it is long. Its seconds.
pub(super) fn tell(s: &Scenario, threads: usize) -> Option<f64> {
    let expected = Expected::of(s, threads)?;
    if let Some(warning) = expected.warning() {
        output::note(&warning);
    } else if expected.seconds >= TOLD_FROM_S {
        output::note(&format!("note: this run takes {}", expected.text()));
    }
    Some(expected.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(seconds: f64) -> Expected {
        let (seconds_min, seconds_max) = (seconds / 2.0, seconds * 2.0);
        Expected { packets_end_to_end: 12_000_000, packet_hops: 70_000_000, seconds, seconds_min, seconds_max }
    }

    #[test]
    fn the_text_has_the_time_its_range_and_the_work() {
        let work = "12.0 M packets from end to end, 70.0 M packet-hops";
        assert_eq!(expected(40.0).text(), format!("about 40 s on this machine (20 s to 80 s): {work}"));
        assert_eq!(expected(0.1).text(), format!("less than a second: {work}"));
        assert_eq!(expected(9e5).text(), format!("about 10 days on this machine (5 days to 21 days): {work}"));
    }

    #[test]
    fn only_days_are_warned_of() {
        assert_eq!(expected(80_000.0).warning(), None);
        let warning = expected(90_000.0).warning().unwrap();
        assert!(warning.contains("about 25 h") && warning.contains("hint"), "{warning}");
    }
}
