//! Controllers of racks, rows and the core (section 7, scalability).
//!
//! A controller is responsible for the flows that meet at its switch: a rack's for those within the rack, a row's for those
//! between its racks, the core's for those between rows. Flows of two controllers of one level share no link, but those of
//! two levels do. So the levels take turns: each has a window in every period, in which its controllers give timeslices by
//! [`Slices`](super::slices::Slices) with the full capacity of all links, and all of these slices end with the window.
//!
//! Once a period each controller tells the one above what its level and those below need. The one at the top divides the
//! next period in proportion and tells those below. A level without load has no window, until its load is heard of. A new
//! division begins with a period, when all slices of the old one are over.
//!
//! A node has a [`Coordinator`] for each level. It asks the one of the level at which it meets the destination.

use super::Node;
use super::coordinator::{Coordinator, Outgoing as FromNode, Permit};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Head, Message};

/// Most levels.
pub const LEVELS_MAX: usize = 4;
/// Parts of a period: those of all levels together.
const WHOLE: u32 = 256;
/// The smallest part of a level with load. Of the shortest period, of 10 slices of 1 ms, it is longer than half a slice.
const PART_MIN: u32 = 16;
/// Time at the end of a window without slices. Clocks of two controllers differ by the time that a message takes, and slices
/// begin and end that much later than their controllers think.
pub const GUARD: Duration = Duration::from_us(100);
/// Periods after which the load of a silent controller is forgotten.
const FORGET: u64 = 4;

/// The windows of all levels in each period from a start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The start of the first period.
    pub start: Instant,
    /// The length of a period.
    pub period: Duration,
    /// Parts of each level, one after the other, in 256ths of the period.
    pub parts: [u8; LEVELS_MAX],
}

impl Windows {
    /// The window of a level that is open, or else the next one. A level without a part has none.
    pub fn next(&self, level: usize, now: Instant) -> Option<(Instant, Instant)> {
        let before: u32 = self.parts[..level].iter().map(|&part| u32::from(part)).sum();
        let part = u32::from(self.parts[level]);
        if part == 0 {
            return None;
        }
        let at = |parts: u32| Duration(self.period.0 / u64::from(WHOLE) * u64::from(parts));
        let period = now.since(self.start).0 / self.period.0;
        let window = |period: u64| {
            let start = self.start + self.period.saturating_mul(period);
            let end = start + at(before + part);
            (start + at(before), Instant(end.0 - GUARD.0.min(end.0)))
        };
        let this = window(period);
        Some(if now < this.1 { this } else { window(period + 1) })
    }

    /// Divides a period in proportion to loads.
    fn divide(&mut self, loads: [u32; LEVELS_MAX]) {
        let active = loads.iter().filter(|&&load| load > 0).count() as u32;
        if active == 0 {
            // As good as any: whoever has load first has a window.
            self.parts = [(WHOLE / LEVELS_MAX as u32) as u8; LEVELS_MAX];
            return;
        }
        let all: u64 = loads.iter().map(|&load| u64::from(load)).sum();
        let spare = u64::from(WHOLE - active * PART_MIN);
        for (part, load) in self.parts.iter_mut().zip(loads) {
            let own = if load > 0 { u64::from(PART_MIN) + spare * u64::from(load) / all } else { 0 };
            *part = own.min(u64::from(WHOLE) - 1) as u8;
        }
    }
}

/// A controller's place among the others.
#[derive(Clone, Debug)]
pub struct HierarchyConfig {
    /// Its level: 0 for a rack.
    pub level: usize,
    /// The controller above; none at the top.
    pub parent: Option<MacAddress>,
    /// The controllers below.
    pub children: Vec<MacAddress>,
    /// The token of messages between controllers.
    pub secret: u32,
    /// The length of a period.
    pub period: Duration,
}

/// What a controller tells the others, and hears from them.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    config: HierarchyConfig,
    windows: Windows,
    /// Those that begin with the next period.
    next: Option<Windows>,
    /// The load of its own level.
    own: u32,
    /// Loads of each level below a child, and when they were heard of.
    below: BTreeMap<(MacAddress, usize), (u32, Instant)>,
    /// The next period.
    period_at: Instant,
    outgoing: Vec<(MacAddress, Message<'static>)>,
    sequence: u32,
    /// The highest sequence number from each other controller.
    heard: BTreeMap<MacAddress, u32>,
    refused: u64,
}

impl Hierarchy {
    /// A controller that has heard of no other; all levels have windows of the same length.
    ///
    /// # Panics
    /// With a level that does not exist, or a period in which the smallest part is no longer than the guard.
    pub fn new(now: Instant, config: HierarchyConfig) -> Hierarchy {
        assert!(config.level < LEVELS_MAX, "there are at most {LEVELS_MAX} levels");
        assert!(config.period.0 / u64::from(WHOLE / PART_MIN) > 2 * GUARD.0, "a period has windows");
        let mut windows = Windows { start: now, period: config.period, parts: [0; LEVELS_MAX] };
        windows.divide([0; LEVELS_MAX]);
        Hierarchy {
            windows,
            next: None,
            own: 0,
            below: BTreeMap::new(),
            period_at: now,
            outgoing: Vec::new(),
            sequence: 0,
            heard: BTreeMap::new(),
            refused: 0,
            config,
        }
    }

    /// Its level.
    pub fn level(&self) -> usize {
        self.config.level
    }
    /// The window of its level that is open, or else the next one that is known.
    pub fn window(&self, now: Instant) -> Option<(Instant, Instant)> {
        let level = self.config.level;
        let this = self.windows.next(level, now);
        match self.next {
            // The old division is over before; by another clock it could go on for a little longer.
            Some(next) if this.is_none_or(|this| this.0 + GUARD >= next.start) => next.next(level, now.max(next.start)),
            _ => this,
        }
    }

    /// The division of this period.
    pub fn windows(&mut self, now: Instant) -> &Windows {
        if let Some(next) = self.next.take_if(|next| next.start <= now) {
            self.windows = next;
        }
        &self.windows
    }
    /// Messages that were repeated, or that no controller of the hierarchy sent.
    pub fn refused(&self) -> u64 {
        self.refused
    }
    /// What the flows of its own level need.
    pub fn set_load(&mut self, load: u32) {
        self.own = load;
    }

    /// Takes a message of another controller.
    pub fn handle(&mut self, now: Instant, from: MacAddress, head: &Head, message: &Message<'_>) {
        let (is_parent, is_child) = (self.config.parent == Some(from), self.config.children.contains(&from));
        let heard = self.heard.get(&from).copied();
        let is_new = heard.is_none_or(|heard| super::controller::is_later(head.sequence, heard));
        if head.token != self.config.secret || !(is_parent || is_child) || !is_new {
            self.refused += 1;
            return;
        }
        match *message {
            Message::Load { level, load } if is_child && (level as usize) < self.config.level => {
                self.below.insert((from, level as usize), (load, now));
            }
            Message::Windows { period_us, since_ns, parts } if is_parent => {
                let (period, since) = (Duration::from_us(period_us.into()), Duration::from_ns(since_ns.into()));
                let all: u32 = parts.iter().map(|&part| u32::from(part)).sum();
                if period != self.config.period || since >= period || all > WHOLE {
                    self.refused += 1;
                    return;
                }
                self.windows(now);
                let start = Instant((now + period).0.saturating_sub(since.0));
                self.next = Some(Windows { start, period, parts });
                self.tell_windows(now);
            }
            _ => {
                self.refused += 1;
                return;
            }
        }
        self.heard.insert(from, head.sequence);
    }

    /// The load of each level here and below.
    fn loads(&mut self, now: Instant) -> [u32; LEVELS_MAX] {
        let oldest = Instant(now.0.saturating_sub(self.config.period.saturating_mul(FORGET).0));
        self.below.retain(|_, (_, at)| *at >= oldest);
        let mut loads = [0; LEVELS_MAX];
        loads[self.config.level] = self.own;
        for (&(_, level), &(load, _)) in &self.below {
            loads[level] = loads[level].max(load);
        }
        loads
    }

    fn tell_windows(&mut self, now: Instant) {
        let Some(Windows { start, period, parts }) = self.next else { return };
        // It begins a period after the present one.
        let since_ns = (period.0.saturating_sub(start.since(now).0) / 1_000) as u32;
        let message = Message::Windows { period_us: period.as_us() as u32, since_ns, parts };
        self.outgoing.extend(self.config.children.iter().map(|&child| (child, message)));
    }

    /// When it tells the others next.
    pub fn poll_timeout(&self) -> Instant {
        self.period_at
    }

    /// A period begins: the load is told to the controller above, or the windows to those below.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.period_at {
            return;
        }
        self.period_at = now + self.config.period;
        let loads = self.loads(now);
        match self.config.parent {
            None => {
                let Windows { start, period, .. } = *self.windows(now);
                let passed = now.since(start).0 / period.0;
                let mut next = Windows { start: start + period.saturating_mul(passed + 1), ..self.windows };
                next.divide(loads);
                self.next = Some(next);
                self.tell_windows(now);
            }
            Some(parent) => {
                let levels = (0..).zip(loads).take(self.config.level + 1);
                self.outgoing.extend(levels.map(|(level, load)| (parent, Message::Load { level, load })));
            }
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(MacAddress, Head, Message<'static>)> {
        let (to, message) = self.outgoing.pop()?;
        self.sequence = self.sequence.wrapping_add(1);
        let head = Head { epoch: 0, sequence: self.sequence, token: self.config.secret, clock_ns: now.0 / 1_000 };
        Some((to, head, message))
    }
}

/// The coordinators of a node, one for each level.
#[derive(Clone, Debug)]
pub struct Coordinators {
    /// With the nodes that it meets at the level or below, the narrowest first.
    levels: Vec<(Range<Node>, Coordinator)>,
}

impl Coordinators {
    /// Coordinators of the levels from the lowest up, each with the range of the nodes that are met there or below.
    pub fn new(levels: Vec<(Range<Node>, Coordinator)>) -> Coordinators {
        Coordinators { levels }
    }

    /// Those of each level.
    pub fn levels(&self) -> impl Iterator<Item = &Coordinator> {
        self.levels.iter().map(|(_, coordinator)| coordinator)
    }

    fn of(&mut self, to: Node) -> Option<&mut Coordinator> {
        self.levels.iter_mut().find(|(nodes, _)| nodes.contains(&to)).map(|(_, coordinator)| coordinator)
    }

    /// See [`Coordinator::permit`]; frames to nodes outside of all levels pass.
    pub fn permit(&mut self, now: Instant, to: Node, bytes: u64) -> Permit {
        self.of(to).map_or(Permit::Now, |coordinator| coordinator.permit(now, to, bytes))
    }

    /// See [`Coordinator::handle_empty`].
    pub fn handle_empty(&mut self, now: Instant, to: Node) {
        if let Some(coordinator) = self.of(to) {
            coordinator.handle_empty(now, to);
        }
    }

    /// Takes a message of the controller of any level. The coordinator of the lowest level counts those of strangers.
    pub fn handle(&mut self, now: Instant, from: MacAddress, head: &Head, message: &Message<'_>) {
        let known = self.levels.iter().position(|(_, coordinator)| coordinator.has_controller(from));
        if let Some((_, coordinator)) = self.levels.get_mut(known.unwrap_or(0)) {
            coordinator.handle(now, from, head, message);
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<FromNode<'_>> {
        self.levels.iter_mut().find_map(|(_, coordinator)| coordinator.poll_transmit(now))
    }

    /// A time at which, or before which, something expires.
    pub fn poll_timeout(&self) -> Instant {
        self.levels().map(Coordinator::poll_timeout).min().unwrap_or(Instant::MAX)
    }

    /// See [`Coordinator::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.levels.iter_mut().for_each(|(_, coordinator)| coordinator.handle_timeout(now));
    }
}
