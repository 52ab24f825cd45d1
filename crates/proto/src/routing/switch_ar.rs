//! Switch adaptive routing (Crisan 2014, 2.3.5): what a switch knows of the congestion behind its upward ports, and the port
//! that it chooses for a frame.

use super::paths::PathPorts;
use crate::frame::HostId;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The division of the frames to a destination among upward ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All frames take the least congested port.
    Binary,
    /// Each port gets frames in proportion to the lack of congestion behind it.
    Fraction,
}

/// Settings of adaptive routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveConfig {
    /// The time after which a congestion level is forgotten.
    pub age: Duration,
    /// The division of frames.
    pub split: Split,
}

/// The largest share of a port: that of one without congestion. A level is a feedback of 0 to 63.
const FULL_SHARE: i32 = 64;

/// Congestion behind one upward port, towards one destination.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    feedback: u8,
    until: Instant,
    /// Frames that the port is owed, in units of shares.
    credit: i32,
}

impl Level {
    fn at(&self, now: Instant) -> u8 {
        if now < self.until { self.feedback } else { 0 }
    }
}

/// The congestion that one switch knows of.
#[derive(Clone, Debug)]
pub struct SwitchAr {
    ports: PathPorts,
    config: AdaptiveConfig,
    /// By destination, a level for each upward port.
    levels: BTreeMap<HostId, Vec<Level>>,
}

impl SwitchAr {
    /// A switch that knows of no congestion.
    pub fn new(ports: PathPorts, config: AdaptiveConfig) -> SwitchAr {
        SwitchAr { ports, config, levels: BTreeMap::new() }
    }

    /// The ports of the switch.
    pub fn ports(&self) -> PathPorts {
        self.ports
    }

    /// Whether the switch remembers congestion towards a destination.
    pub fn knows_of(&self, dst: HostId) -> bool {
        self.levels.contains_key(&dst)
    }

    /// Frames to `dst` meet congestion behind the upward port `port`.
    pub fn learn(&mut self, now: Instant, dst: HostId, port: u16, feedback: u8) {
        let ups = self.ports.ups();
        let levels = self.levels.entry(dst).or_insert_with(|| alloc::vec![Level::default(); ups.len()]);
        let level = &mut levels[usize::from(port - ups.start)];
        (level.feedback, level.until) = (feedback, now.saturating_add(self.config.age));
    }

    /// The upward port for a frame to `dst`, where `routed` is the one of the router.
    pub fn choose(&mut self, now: Instant, dst: HostId, routed: u16) -> u16 {
        let ups = self.ports.ups();
        let Some(levels) = self.levels.get_mut(&dst) else { return routed };
        if levels.iter().all(|level| level.at(now) == 0) {
            // Forgotten.
            self.levels.remove(&dst);
            return routed;
        }
        let first = usize::from(routed - ups.start);
        // The router's port wins a tie, then the ports after it.
        let count = levels.len();
        let in_turn = (0..count).map(|n| (first + n) % count);
        let chosen = match self.config.split {
            Split::Binary => in_turn.min_by_key(|&up| levels[up].at(now)),
            Split::Fraction => {
                let share = |level: &Level| FULL_SHARE - i32::from(level.at(now));
                let all: i32 = levels.iter().map(share).sum();
                levels.iter_mut().for_each(|level| level.credit += share(level));
                let most = in_turn.rev().max_by_key(|&up| levels[up].credit);
                most.inspect(|&up| levels[up].credit -= all)
            }
        };
        ups.start + chosen.unwrap_or(first) as u16
    }
}
