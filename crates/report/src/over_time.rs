//! A run over time, in intervals: payload, pauses, the longest queue. Courses are means or maxima of an interval, so that a
//! page takes no more for a long run than for a short one.

use sluicenet_experiment::run::Figures;
use sluicenet_records::{FlowRow, PauseRow, QueueRow, RecordError, Source, rows};
use std::path::Path;

/// Intervals of a run: about as many as a panel has points to show.
pub(super) const INTERVALS: usize = 160;

/// What a run did in each of its intervals; a course without records is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverTime {
    /// Simulated time of all intervals together, in picoseconds.
    pub end_ps: f64,
    /// Payload of all flows, in Gb/s. A flow's bytes are spread evenly over its time; those of a flow without an end over
    /// the intervals of its course, if it has one.
    pub payload_gbps: Vec<f64>,
    /// Outputs that a pause held, on average.
    pub paused: Vec<f64>,
    /// The longest of the sampled queues, in bytes.
    pub queue_bytes: Vec<f64>,
}

/// A course in the making; flows come one by one, as they are read for the rest of the page.
pub(super) struct Course {
    end_ps: f64,
    payload: Bins,
    /// Whether flows without an end have courses of their own.
    has_courses: bool,
}

impl Course {
    /// That of a run with these figures, until `end_ps`; a run that did not end has no figures.
    pub fn new(figures: Option<&Figures>, end_ps: f64) -> Course {
        let mut payload = Bins::new(end_ps);
        let courses = figures.and_then(|figures| figures.streams.courses());
        let has_courses = courses.is_some();
        courses.into_iter().flatten().for_each(|(from, to, mbps)| payload.spread(from, to.min(end_ps), mbps / 1e3));
        Course { end_ps, payload, has_courses }
    }

    /// Takes a flow in.
    pub fn add(&mut self, flow: &FlowRow) {
        if flow.bytes.is_none() && self.has_courses {
            return;
        }
        let (start, bits) = (flow.start_ps as f64, 8.0 * flow.delivered_bytes as f64);
        let end = flow.fct_ps.map_or(self.end_ps, |fct| start + fct as f64);
        // Bits over picoseconds are Tb/s.
        self.payload.spread(start, end, 1e3 * bits / (end - start).max(1.0));
    }

    /// With the pauses and queues of the result.
    pub fn finish(self, source: Source<'_>) -> Result<OverTime, RecordError> {
        let Course { end_ps, payload, .. } = self;
        let paused = paused(source, end_ps)?;
        let mut queue = Bins::new(end_ps);
        for sample in rows::<QueueRow>(source)? {
            let sample = sample?;
            queue.raise(sample.time_ps as f64, sample.bytes as f64);
        }
        Ok(OverTime { end_ps, payload_gbps: payload.used(), paused: paused.used(), queue_bytes: queue.used() })
    }
}

impl OverTime {
    /// The middle of an interval, in picoseconds.
    pub fn middle_ps(&self, interval: usize) -> f64 {
        middle_ps(self.end_ps, interval)
    }
}

/// A course of one result: the middle of each interval in picoseconds, and its value.
pub type Points = (Vec<f64>, Vec<f64>);

/// The payload of all flows in Gb/s; no points where no flow is recorded. A run that did not end is drawn as far as its
/// last flow or pause.
///
/// # Errors
/// Records that cannot be read.
pub fn payload_over_time(dir: &Path) -> Result<Points, RecordError> {
    let figures = Figures::saved(dir);
    let mut course = Course::new(figures.as_ref(), end_ps(dir, figures.as_ref())?);
    for flow in rows::<FlowRow>(dir)? {
        course.add(&flow?);
    }
    Ok(points(course.end_ps, course.payload.used()))
}

/// The outputs that a pause held, on average; zero where none was recorded.
///
/// # Errors
/// Records that cannot be read.
pub fn paused_over_time(dir: &Path) -> Result<Points, RecordError> {
    let end_ps = end_ps(dir, Figures::saved(dir).as_ref())?;
    Ok(points(end_ps, paused(dir.into(), end_ps)?.values))
}

fn points(end_ps: f64, values: Vec<f64>) -> Points {
    ((0..values.len()).map(|interval| middle_ps(end_ps, interval)).collect(), values)
}

fn middle_ps(end_ps: f64, interval: usize) -> f64 {
    end_ps * (interval as f64 + 0.5) / INTERVALS as f64
}

/// How long a run was: as it ended, or until its last flow or pause.
fn end_ps(dir: &Path, figures: Option<&Figures>) -> Result<f64, RecordError> {
    if let Some(figures) = figures {
        return Ok(figures.simulated_us * 1e6);
    }
    let end_ps = |start_ps: u64, lasted_ps: Option<u64>| start_ps.saturating_add(lasted_ps.unwrap_or(0));
    let mut last_ps = 0;
    for flow in rows::<FlowRow>(dir)? {
        let flow = flow?;
        last_ps = last_ps.max(end_ps(flow.start_ps, flow.fct_ps));
    }
    for pause in rows::<PauseRow>(dir)? {
        let pause = pause?;
        last_ps = last_ps.max(end_ps(pause.start_ps, pause.duration_ps));
    }
    Ok(last_ps as f64)
}

fn paused(source: Source<'_>, end_ps: f64) -> Result<Bins, RecordError> {
    let mut paused = Bins::new(end_ps);
    for pause in rows::<PauseRow>(source)? {
        let pause = pause?;
        let start = pause.start_ps as f64;
        paused.spread(start, pause.duration_ps.map_or(end_ps, |d| start + d as f64), 1.0);
    }
    Ok(paused)
}

/// A value for each interval.
struct Bins {
    width_ps: f64,
    values: Vec<f64>,
    is_used: bool,
}

impl Bins {
    fn new(end_ps: f64) -> Bins {
        Bins { width_ps: end_ps / INTERVALS as f64, values: vec![0.0; INTERVALS], is_used: false }
    }

    fn interval(&self, time_ps: f64) -> usize {
        ((time_ps / self.width_ps) as usize).min(INTERVALS - 1)
    }

    /// Adds `value` from `start` to `end`, to each interval by its share.
    fn spread(&mut self, start: f64, end: f64, value: f64) {
        if self.width_ps <= 0.0 {
            return;
        }
        self.is_used = true;
        for i in self.interval(start)..=self.interval(end) {
            let from = self.width_ps * i as f64;
            let share = (end.min(from + self.width_ps) - start.max(from)) / self.width_ps;
            self.values[i] += value * share.max(0.0);
        }
    }

    /// Raises an interval to `value`.
    fn raise(&mut self, time_ps: f64, value: f64) {
        if self.width_ps <= 0.0 {
            return;
        }
        self.is_used = true;
        let i = self.interval(time_ps);
        self.values[i] = self.values[i].max(value);
    }

    fn used(self) -> Vec<f64> {
        if self.is_used { self.values } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_by_the_intervals_that_it_covers() {
        let mut bins = Bins::new(160.0);
        assert!(Bins::new(1.0).used().is_empty());
        let mut unended = Bins::new(0.0);
        unended.spread(0.0, 5.0, 1.0);
        unended.raise(1.0, 1.0);
        assert!(unended.used().is_empty());
        bins.spread(0.5, 3.0, 2.0);
        bins.spread(159.0, 160.0, 1.0);
        bins.spread(7.25, 7.75, 4.0);
        assert_eq!(bins.values[..4], [1.0, 2.0, 2.0, 0.0]);
        assert_eq!((bins.values[7], bins.values[159]), (2.0, 1.0));
        assert_eq!(bins.values.iter().sum::<f64>(), 2.0 * 2.5 + 1.0 + 2.0);
        let mut queue = Bins::new(160.0);
        queue.raise(3.2, 5.0);
        queue.raise(3.9, 4.0);
        queue.raise(160.0, 1.0);
        assert_eq!((queue.values[3], queue.values[159]), (5.0, 1.0));
    }
}
