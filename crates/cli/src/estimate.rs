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
/// Seconds of a year.
const YEAR_S: f64 = 365.0 * 86_400.0;
/// What one run takes.
pub(super) const RUN: &str = "this run takes";
/// In place of an estimate that there is not.
pub(super) const UNKNOWN: &str = "unknown: the scenario does not bound its packets";

/// The expected work and time of a run, as `validate --json` prints them.
#[derive(Debug, Serialize)]
pub(super) struct Expected {
    packets_end_to_end: u64,
    packet_hops: u64,
    /// On this machine.
    seconds: f64,
    /// Of these, to build the network and to write the rows of its ports.
    seconds_building: f64,
    seconds_min: f64,
    seconds_max: f64,
}

impl Expected {
    /// What is expected of a run on so many threads, with records or without; none where the scenario does not bound it.
    pub fn of(s: &Scenario, threads: usize, recorded: bool) -> Option<Expected> {
        Estimate::of(s, threads, recorded).map(Expected::new)
    }

    /// What is expected of runs of a sweep, so many at a time, and how many are not bounded.
    pub fn of_all<'a>(all: impl IntoIterator<Item = &'a Scenario>, workers: usize) -> (Option<Expected>, usize) {
        let (estimate, unknown) = Estimate::of_all(all, workers);
        (estimate.map(Expected::new), unknown)
    }

    fn new(estimate: Estimate) -> Expected {
        let (seconds_min, seconds_max) = estimate.range();
        let (packets_end_to_end, packet_hops) = (estimate.work.packets as u64, estimate.work.hops as u64);
        let (seconds, seconds_building) = (estimate.seconds, estimate.building_s);
        Expected { packets_end_to_end, packet_hops, seconds, seconds_building, seconds_min, seconds_max }
    }

    /// "about 40 s (16 to 100 s) on this machine: 12.0 M packets from end to end, 70.0 M packet-hops".
    pub fn text(&self) -> String {
        let [packets, hops] =
            [self.packets_end_to_end, self.packet_hops].map(|n| short(n as f64).trim_end().to_owned());
        let building = match self.seconds_building {
            s if s >= 1.0 => format!("; {} of it for the network and the rows of its ports", lasting(s)),
            _ => String::new(),
        };
        let work = format!("{packets} packets from end to end, {hops} packet-hops{building}");
        if self.seconds_max < 1.0 {
            return format!("less than a second: {work}");
        }
        if self.seconds_min > 1e3 * YEAR_S {
            return format!("more than a thousand years on this machine: {work}");
        }
        let [about, from, to] = [self.seconds, self.seconds_min, self.seconds_max].map(lasting);
        format!("about {about} on this machine ({from} to {to}): {work}")
    }

    /// The warning of `what`, "this run takes", if it would last for days.
    pub fn warning(&self, what: &str) -> Option<String> {
        (self.seconds >= WARNED_FROM_S).then(|| {
            format!(
                "warning: {what} days: {}\n  = hint: a shorter scenario.duration, fewer queries or flows, \
                 --level flow, or the variants of a sweep on several machines (sluicenet sweep --shard)",
                self.text()
            )
        })
    }

    /// Tells `what` takes how long, if that is long.
    fn tell(&self, what: &str, unknown: &str) {
        if let Some(warning) = self.warning(what) {
            output::note(&warning);
        } else if self.seconds >= TOLD_FROM_S {
            output::note(&format!("note: {what} {}{unknown}", self.text()));
        }
    }
}

/// Tells what is expected of a run that starts now, if it is long. Its seconds.
pub(super) fn tell(s: &Scenario, threads: usize, recorded: bool) -> Option<f64> {
    let expected = Expected::of(s, threads, recorded)?;
    expected.tell(RUN, "");
    Some(expected.seconds)
}

/// Tells what is expected of runs that start now, so many at a time, if it is long.
pub(super) fn tell_all<'a>(all: impl IntoIterator<Item = &'a Scenario>, workers: usize) {
    let all: Vec<&Scenario> = all.into_iter().collect();
    let (Some(expected), unknown) = Expected::of_all(all.iter().copied(), workers) else { return };
    let unknown = match unknown {
        0 => String::new(),
        n => format!("; and {n} of them take a time that is unknown"),
    };
    expected.tell(&of_runs(all.len(), workers), &unknown);
}

/// "these 12 runs, 2 at a time, take".
pub(super) fn of_runs(runs: usize, workers: usize) -> String {
    match (runs, workers.min(runs)) {
        (1, _) => RUN.into(),
        (_, 1) => format!("these {runs} runs, one after the other, take"),
        (_, workers) => format!("these {runs} runs, {workers} at a time, take"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(seconds: f64) -> Expected {
        let (seconds_min, seconds_max) = (seconds / 2.0, seconds * 2.0);
        let (packets_end_to_end, packet_hops, seconds_building) = (12_000_000, 70_000_000, 0.0);
        Expected { packets_end_to_end, packet_hops, seconds, seconds_building, seconds_min, seconds_max }
    }

    #[test]
    fn the_text_has_the_time_its_range_and_the_work() {
        let work = "12.0 M packets from end to end, 70.0 M packet-hops";
        assert_eq!(expected(40.0).text(), format!("about 40 s on this machine (20 s to 80 s): {work}"));
        assert_eq!(expected(0.1).text(), format!("less than a second: {work}"));
        assert_eq!(expected(9e5).text(), format!("about 10 days on this machine (5 days to 21 days): {work}"));
        assert_eq!(expected(9e8).text(), format!("about 29 years on this machine (14 years to 57 years): {work}"));
        assert_eq!(expected(1e15).text(), format!("more than a thousand years on this machine: {work}"));
        let large = Expected { seconds_building: 32.0, ..expected(40.0) };
        assert!(large.text().ends_with("packet-hops; 32 s of it for the network and the rows of its ports"));
    }

    #[test]
    fn only_days_are_warned_of() {
        assert_eq!(expected(80_000.0).warning(RUN), None);
        let warning = expected(90_000.0).warning(RUN).unwrap();
        assert!(warning.contains("about 25 h") && warning.contains("hint"), "{warning}");
        assert!(warning.starts_with("warning: this run takes days: "), "{warning}");
    }

    #[test]
    fn runs_of_a_sweep_are_counted() {
        assert_eq!(of_runs(12, 2), "these 12 runs, 2 at a time, take");
        assert_eq!([of_runs(3, 1), of_runs(1, 2)], ["these 3 runs, one after the other, take", RUN]);
    }
}
