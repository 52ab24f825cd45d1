//! Queues whose frames get departure times: they carry out rates, and no timeslices.
//!
//! A frame has its time when it is queued. A slice begins and ends at times that are not known by then, and frames that have
//! got a time cannot be called back when a slice ends. So:
//!
//! - A flow with a rate has this rate. When the permission ends, frames that have a time keep it.
//! - A flow without a permission has the rate of small flows, which every flow may have unasked. No queue is ever shut.
//! - A timeslice at the rate of the link is refused and counted: the flow keeps the rate of small flows.
//! - Timeslices with a rate (hybrid) look like permissions of rate limiting, except that those are renewed before they end.
//!   After [`LAPSES_MAX`] permissions of a flow have ended while frames wait, its next ones are refused, until one is renewed.

use super::valves::Valves;
use crate::kernel::classes::Backlog;
use crate::kernel::departures::Departures;
use sluicenet_proto::time::Instant;
use sluicenet_proto::xco::coordinator::{SMALL_BURST_BYTES, Valve};
use std::io;

/// Permissions of a flow that may end one after the other while frames wait. A lost controller lets one end; that three directives
/// are lost lets another one end.
const LAPSES_MAX: u32 = 3;

/// The queues of an agent that have departure times.
#[derive(Debug)]
pub struct Paced {
    departures: Departures,
    /// The rate of small flows, in bytes per second.
    small: u64,
    flows: Vec<Flow>,
    counters: Counters,
}

impl Paced {
    /// Bytes that a small flow may send at once.
    pub const SMALL_BURST: u32 = SMALL_BURST_BYTES as u32;

    /// The queues of `destinations`. Without a permission they send `small` bytes per second.
    pub fn new(departures: Departures, destinations: usize, small: u64) -> Paced {
        Paced { departures, small, flows: vec![Flow::default(); destinations], counters: Counters::default() }
    }
}

impl Valves for Paced {
    fn open(&mut self, n: usize, rate: u64, burst: u32) -> io::Result<()> {
        self.departures.open(n, rate, burst);
        Ok(())
    }
    fn shut(&mut self, n: usize) -> io::Result<()> {
        self.departures.open(n, self.small, Paced::SMALL_BURST);
        Ok(())
    }
    fn look(&self) {}
    fn backlogs(&mut self) -> io::Result<&[Backlog]> {
        Ok(self.departures.backlogs())
    }
    fn carries(&mut self, n: usize, now: Instant, valve: Valve, waiting: u64) -> Valve {
        self.flows[n].carries(now, valve, waiting, &mut self.counters)
    }
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        show("slices_refused", self.counters.slices_refused);
        show("lapsed", self.counters.lapsed);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    /// Slices that were refused.
    slices_refused: u64,
    /// Permissions that ended while frames waited.
    lapsed: u64,
}

/// What a flow has been permitted.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The end of the permission that it has.
    until: Option<Instant>,
    /// Permissions that ended one after the other while frames waited.
    lapses: u32,
    /// The end of the last slice that was refused.
    refused: Option<Instant>,
}

impl Flow {
    fn carries(&mut self, now: Instant, valve: Valve, waiting: u64, counters: &mut Counters) -> Valve {
        match valve {
            Valve::Open { until: Instant::MAX, .. } => {
                self.until = None;
                valve
            }
            Valve::Open { rate_kbps: None, until } => self.refuse(until, counters),
            Valve::Open { rate_kbps, until } => {
                if self.until.is_some_and(|end| now < end && until != end) {
                    self.lapses = 0;
                }
                self.until = Some(until);
                match self.lapses < LAPSES_MAX {
                    true => Valve::Open { rate_kbps, until: Instant::MAX },
                    false => self.refuse(until, counters),
                }
            }
            Valve::Small | Valve::Shut => {
                if self.until.take().is_some_and(|end| end <= now) && waiting > 0 {
                    self.lapses = self.lapses.saturating_add(1);
                    counters.lapsed += 1;
                }
                valve
            }
        }
    }

    /// Refuses a slice. Each is counted once.
    fn refuse(&mut self, until: Instant, counters: &mut Counters) -> Valve {
        if self.refused.replace(until) != Some(until) {
            counters.slices_refused += 1;
        }
        Valve::Shut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::time::Duration;

    /// A flow, its counters, and the time.
    #[derive(Default)]
    struct World(Flow, Counters, Instant);

    impl World {
        /// After so many milliseconds, with waiting bytes or without.
        fn at(&mut self, ms: u64, valve: Valve, waiting: u64) -> Valve {
            self.2 = Instant::ZERO + Duration::from_ms(ms);
            self.0.carries(self.2, valve, waiting, &mut self.1)
        }
        fn counts(&self) -> [u64; 2] {
            [self.1.slices_refused, self.1.lapsed]
        }
    }

    fn until(ms: u64, rate_kbps: Option<u32>) -> Valve {
        Valve::Open { rate_kbps, until: Instant::ZERO + Duration::from_ms(ms) }
    }
    const ALWAYS: fn(Option<u32>) -> Valve = |rate_kbps| Valve::Open { rate_kbps, until: Instant::MAX };
    const RATE: Option<u32> = Some(50_000);

    #[test]
    fn rates_are_carried_out_while_they_are_renewed() {
        let mut world = World::default();
        for ms in (0..100).step_by(4) {
            assert_eq!(world.at(ms, until(ms + 12, RATE), 9_000), ALWAYS(RATE));
        }
        // The flow gives its permission back, and gets another one.
        assert_eq!(world.at(101, Valve::Small, 0), Valve::Small);
        assert_eq!(world.at(102, until(114, RATE), 0), ALWAYS(RATE));
        // Nobody controls it.
        assert_eq!(world.at(103, ALWAYS(None), 9_000), ALWAYS(None));
        assert_eq!(world.counts(), [0, 0]);
    }

    #[test]
    fn slices_are_refused_once_each() {
        let mut world = World::default();
        for slice in [2, 4, 6] {
            for _ in 0..5 {
                assert_eq!(world.at(slice - 1, until(slice, None), 9_000), Valve::Shut);
            }
            assert_eq!(world.at(slice, Valve::Shut, 9_000), Valve::Shut);
        }
        assert_eq!(world.counts(), [3, 0]);
    }

    #[test]
    fn slices_with_rates_are_recognized_by_their_ends() {
        let mut world = World::default();
        for (n, start) in [0u64, 10, 20, 30, 40].into_iter().enumerate() {
            let expected = if n < 3 { ALWAYS(RATE) } else { Valve::Shut };
            assert_eq!(world.at(start, until(start + 2, RATE), 9_000), expected, "slice {n}");
            assert_eq!(world.at(start + 2, Valve::Shut, 9_000), Valve::Shut);
        }
        assert_eq!(world.counts(), [2, 5]);
        // A permission that is renewed before it ends is no slice.
        assert_eq!(world.at(50, until(62, RATE), 9_000), Valve::Shut);
        assert_eq!(world.at(54, until(66, RATE), 9_000), ALWAYS(RATE));
        assert_eq!(world.counts(), [3, 5]);
    }
}
