//! Queues whose frames get departure times: they carry out rates, and no timeslices.
//!
//! A frame has its time when it is queued. A slice begins and ends at times that are not known by then, and frames that have
//! got a time cannot be called back when a slice ends. So:
//!
//! - A flow with a rate has this rate. When the permission ends, frames that have a time keep it.
//! - A flow without a permission has the rate of small flows, which every flow may have unasked. No queue is ever shut.
//! - Timeslices are refused and counted: the flow keeps the rate of small flows.
//!
//! Messages do not say whether a permission is a slice. But rate limiting renews a permission after a third of its time, and a slice
//! is followed by another one only at its end. So all permissions are refused until one of them is renewed early. They are
//! refused again after [`LAPSES_MAX`] permissions have ended while frames wait.

use super::valves::Valves;
use crate::kernel::classes::Backlog;
use crate::kernel::departures::Departures;
use sluicenet_proto::time::Instant;
use sluicenet_proto::xco::coordinator::{SMALL_BURST_BYTES, Valve};
use std::io;

/// Permissions that may end one after the other while frames wait: a lost controller lets one of each flow end, and so do three lost
/// directives.
const LAPSES_MAX: u32 = 8;
/// The part of its time that a permission has left when it is renewed early, as 1 in so many: a half, if one renewal is lost a third.
const LEFT: u64 = 4;

/// The queues of an agent that have departure times.
#[derive(Debug)]
pub struct Paced {
    departures: Departures,
    /// The rate of small flows, in bytes per second.
    small: u64,
    flows: Vec<Flow>,
    session: Session,
}

impl Paced {
    /// Bytes that a small flow may send at once.
    pub const SMALL_BURST: u32 = SMALL_BURST_BYTES as u32;

    /// The queues of `destinations`. Without a permission they send `small` bytes per second.
    pub fn new(departures: Departures, destinations: usize, small: u64) -> Paced {
        Paced { departures, small, flows: vec![Flow::default(); destinations], session: Session::default() }
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
        self.flows[n].carries(now, valve, waiting, &mut self.session)
    }
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        show("slices_refused", self.session.slices_refused);
        show("lapsed", self.session.lapsed);
    }
}

/// What the controller does, as its permissions show.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    /// It renews permissions early.
    gives_rates: bool,
    /// Permissions that ended one after the other while frames waited.
    lapses: u32,
    /// Permissions that were refused and ended without renewal: slices.
    slices_refused: u64,
    /// Permissions that were carried out and ended while frames waited.
    lapsed: u64,
}

impl Session {
    fn renewed(&mut self) {
        (self.gives_rates, self.lapses) = (true, 0);
    }

    fn ended(&mut self, waiting: u64) {
        if !self.gives_rates {
            self.slices_refused += 1;
        } else if waiting > 0 {
            self.lapsed += 1;
            self.lapses += 1;
            if self.lapses == LAPSES_MAX {
                (self.gives_rates, self.lapses) = (false, 0);
            }
        }
    }
}

/// What a flow has been permitted.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The begin and the end of its permission.
    permission: Option<(Instant, Instant)>,
}

impl Flow {
    fn carries(&mut self, now: Instant, valve: Valve, waiting: u64, session: &mut Session) -> Valve {
        match valve {
            Valve::Open { until: Instant::MAX, .. } => {
                self.permission = None;
                valve
            }
            Valve::Open { rate_kbps, until } => {
                match self.permission {
                    Some((_, end)) if end == until => {}
                    Some((since, end)) => {
                        let is_early = end.since(now).0 >= end.since(since).0 / LEFT && now < end;
                        if is_early {
                            session.renewed()
                        } else {
                            session.ended(waiting)
                        }
                        self.permission = Some((now, until));
                    }
                    None => self.permission = Some((now, until)),
                }
                match session.gives_rates && rate_kbps.is_some() {
                    true => Valve::Open { rate_kbps, until: Instant::MAX },
                    false => Valve::Shut,
                }
            }
            Valve::Small | Valve::Shut => {
                if self.permission.take().is_some_and(|(_, end)| end <= now) {
                    session.ended(waiting);
                }
                valve
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::time::Duration;

    /// A flow, its controller, and the time.
    #[derive(Default)]
    struct World(Flow, Session, Instant);

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
    fn rates_are_carried_out_as_soon_as_one_is_renewed() {
        let mut world = World::default();
        for ms in (0..100).step_by(4) {
            // Permissions of 12 ms, renewed after 4.
            let expected = if ms == 0 { Valve::Shut } else { ALWAYS(RATE) };
            assert_eq!(world.at(ms, until(ms + 12, RATE), 9_000), expected);
        }
        // The flow gives its permission back, and gets another one, which is believed at once.
        assert_eq!(world.at(101, Valve::Small, 0), Valve::Small);
        assert_eq!(world.at(102, until(114, RATE), 0), ALWAYS(RATE));
        // Nobody controls it.
        assert_eq!(world.at(103, ALWAYS(None), 9_000), ALWAYS(None));
        assert_eq!(world.counts(), [0, 0]);
    }

    #[test]
    fn slices_are_refused_once_each() {
        for rate in [RATE, None] {
            let mut world = World::default();
            for slice in [2, 4, 6] {
                for _ in 0..5 {
                    assert_eq!(world.at(slice - 1, until(slice, rate), 9_000), Valve::Shut);
                }
                assert_eq!(world.at(slice, Valve::Shut, 9_000), Valve::Shut);
            }
            // Slices without a gap: the next directive comes a little earlier than the slice ends, or later.
            world.at(20, until(120, rate), 9_000);
            assert_eq!(world.at(119, until(219, rate), 9_000), Valve::Shut);
            assert_eq!(world.at(220, until(320, rate), 9_000), Valve::Shut);
            assert_eq!(world.counts(), [5, 0]);
        }
    }

    #[test]
    fn a_controller_that_changes_from_rates_to_slices_is_noticed() {
        let mut world = World::default();
        world.at(0, until(12, RATE), 9_000);
        world.at(4, until(16, RATE), 9_000);
        for slice in 0..10u64 {
            let start = 20 + 10 * slice;
            assert_eq!(world.at(start - 1, Valve::Shut, 9_000), Valve::Shut);
            // The permission that was renewed is the first one that lapses.
            let expected = if slice + 1 < LAPSES_MAX.into() { ALWAYS(RATE) } else { Valve::Shut };
            assert_eq!(world.at(start, until(start + 2, RATE), 9_000), expected, "slice {slice}");
        }
        assert_eq!(world.counts(), [2, LAPSES_MAX.into()]);
    }
}
