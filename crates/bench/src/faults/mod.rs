//! A campaign of faults against zFabric, and against XCo and NetBump. Messages and frames are lost, doubled, late, out of order, damaged and forged.
//! Servers start again, and machines ask for everything and take nothing. Time is the clock of each seed alone, so that
//! a seed always gives the same run.
//!
//! The levels are the machines of a protocol by themselves, the credits of whole servers, and uplinks as a switch has
//! them, back to back. The expected result comes from simple models, which know nothing of the protocols. They count
//! sent and received frames, and limit the credits that each sender may spend.

mod boxes;
mod bump;
mod channels;
mod credits;
mod uplinks;
mod wire;
mod xco;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use wire::Wire;

/// Protocol level under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Two ends of a channel of zBridge.
    Channels,
    /// A receive queue and all senders that ask it for credits.
    Credits,
    /// Servers with several machines, and their credits.
    Boxes,
    /// Uplinks with everything on them: tunnel, credits, channels, pauses, controller.
    Uplinks,
    /// XCo's coordinators and controllers.
    Xco,
    /// Bumps that tell each other what they forward.
    Bump,
}

impl Level {
    /// All of them.
    pub const ALL: [Level; 6] =
        [Level::Channels, Level::Credits, Level::Boxes, Level::Uplinks, Level::Xco, Level::Bump];

    /// Name of the level.
    pub fn name(self) -> &'static str {
        match self {
            Level::Channels => "channels",
            Level::Credits => "credits",
            Level::Boxes => "boxes",
            Level::Uplinks => "uplinks",
            Level::Xco => "xco",
            Level::Bump => "bump",
        }
    }
}

/// Faults injected into the protocols, and traffic that came through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs.
    pub seeds: u64,
    /// Frames that were sent, and that arrived as they were.
    pub sent: u64,
    /// Frames that arrived unchanged.
    pub received: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Seeds whose run broke a rule, each with the broken rule.
    pub violations: Vec<(u64, String)>,
}

impl Tally {
    fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }
}

/// A rule that was broken.
type Broken = String;

/// Runs so many seeds at a level, from `first` on, until `stop`.
pub fn campaign(level: Level, first: u64, seeds: u64, mut stop: impl FnMut() -> bool) -> Tally {
    let mut tally = Tally::default();
    for seed in first..first.saturating_add(seeds) {
        if stop() {
            break;
        }
        let run = AssertUnwindSafe(|| match level {
            Level::Channels => channels::run(seed, &mut tally),
            Level::Credits => credits::run(seed, &mut tally),
            Level::Boxes => boxes::run(seed, &mut tally),
            Level::Uplinks => uplinks::run(seed, &mut tally),
            Level::Xco => xco::run(seed, &mut tally),
            Level::Bump => bump::run(seed, &mut tally),
        });
        // A panic breaks a rule as well, and its seed is worth knowing.
        let done = catch_unwind(run).unwrap_or_else(|_| Err("it panicked".into()));
        tally.seeds += 1;
        if let Err(broken) = done {
            tally.violations.push((seed, broken));
        }
    }
    tally
}

/// Frames sent and received in order, from one sender to one receiver: the whole model of a reliable network.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    sent: u64,
    /// The number after the last that came.
    next: u64,
    received: u64,
    /// Any of the numbers below this one may be missing, because an end started again.
    excused: u64,
}

impl Stream {
    /// Counts a frame that arrived. Without `gaps` it has to be the next one, or the missing ones have to be excused.
    fn on_arrival(&mut self, number: u64, gaps: bool) -> Result<(), Broken> {
        if number >= self.sent {
            return Err(format!("{number} came, and was never sent"));
        }
        if number < self.next {
            return Err(format!("{number} came twice or out of order, after {}", self.next - 1));
        }
        if number > self.next.max(self.excused) && !gaps {
            return Err(format!("{} to {} are missing before {number}", self.next, number - 1));
        }
        (self.next, self.received) = (number + 1, self.received + 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none_broken(level: Level, seeds: u64) -> Tally {
        let tally = campaign(level, 0, seeds, || false);
        assert_eq!(tally.violations, [], "{level:?}");
        assert_eq!(tally.seeds, seeds);
        assert!(tally.received > seeds && tally.received <= tally.sent, "{tally:?}");
        for fault in ["lost", "doubled", "late", "out of order", "restarts"] {
            assert!(tally.faults.get(fault) > Some(&0), "{level:?} has no {fault}: {tally:?}");
        }
        tally
    }

    #[test]
    fn no_fault_breaks_a_channel() {
        none_broken(Level::Channels, 200);
    }

    #[test]
    fn no_fault_breaks_a_receive_queue() {
        none_broken(Level::Credits, 200);
    }

    #[test]
    fn no_fault_breaks_the_credits_of_servers() {
        none_broken(Level::Boxes, 100);
    }

    #[test]
    fn no_fault_breaks_an_uplink() {
        let tally = none_broken(Level::Uplinks, 100);
        assert!(tally.faults.contains_key("bits flipped") && tally.faults.contains_key("forged"));
    }

    #[test]
    fn no_fault_breaks_the_coordination_of_senders() {
        let tally = none_broken(Level::Xco, 60);
        assert!(tally.faults.contains_key("bits flipped") && tally.faults.contains_key("forged"));
    }

    #[test]
    fn no_fault_breaks_the_estimates_of_bumps() {
        let tally = none_broken(Level::Bump, 100);
        assert!(["bits flipped", "forged", "sent again"].iter().all(|fault| tally.faults.contains_key(fault)));
    }

    #[test]
    fn a_seed_is_a_run() {
        for level in Level::ALL {
            assert_eq!(campaign(level, 7, 3, || false), campaign(level, 7, 3, || false), "{level:?}");
        }
    }

    #[test]
    fn a_stream_knows_what_is_missing_twice_and_nobodys() {
        let mut stream = Stream { sent: 5, ..Stream::default() };
        assert!(stream.on_arrival(0, false).is_ok() && stream.on_arrival(0, true).is_err());
        assert!(stream.on_arrival(2, false).is_err() && stream.on_arrival(2, true).is_ok());
        assert!(stream.on_arrival(1, true).is_err() && stream.on_arrival(5, true).is_err());
        let mut stream = Stream { sent: 9, excused: 5, ..Stream::default() };
        assert!(stream.on_arrival(2, false).is_ok() && stream.clone().on_arrival(6, false).is_err());
        assert!(stream.on_arrival(5, false).is_ok() && stream.on_arrival(7, false).is_err());
    }
}
