//! Links and switches of a fat-tree that fail and come back while a scenario runs. Both levels use this module. It
//! models the time until switches notice, and their messages to each other (Al-Fares 2012, 3.1.8).
//!
//! A link that comes back before its ends have noticed was never down for them. Messages between switches arrive at
//! once: they take some microseconds where noticing takes milliseconds.

use crate::build::Plan;
use sluicenet_proto::hedera::tree;
use sluicenet_proto::routing::fat_tree::tags::TagSwitch;
use sluicenet_proto::routing::fat_tree::{FatTree, Peer, Switch};
use sluicenet_proto::time::Instant;
use sluicenet_scenario::{PortSelector, Scenario};
use std::collections::{BTreeMap, BTreeSet};

/// A switch, by its number among a plan's, and its port.
pub(super) type End = (u32, u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The link stops carrying frames, or carries frames again.
    Carries,
    /// Its ends know.
    Noticed,
}

/// Something that happens to a link, by its lower end.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: Instant,
    link: End,
    what: What,
    up: bool,
}

/// Changes in an interval of time.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Both ends of links that stop carrying frames, or carry frames again.
    pub carries: Vec<(End, bool)>,
    /// Switches whose knowledge changes, with their new state.
    pub informed: Vec<(u32, TagSwitch)>,
    /// Changes of links that a controller hears of.
    pub links: Vec<(tree::Link, bool)>,
}

/// The failures of a scenario.
#[derive(Debug)]
pub(super) struct Failures {
    tree: FatTree,
    switches: Vec<TagSwitch>,
    events: Vec<Event>,
    next: usize,
    /// Reasons for which links are down, and for which their ends take them for down.
    down: BTreeMap<(What, End), u32>,
}

impl Failures {
    /// The failures of a scenario, if it has any.
    pub fn of(s: &Scenario, plan: &Plan) -> Option<Failures> {
        let tree = FatTree::new(s.topology.fat_tree_k()?).ok().filter(|_| !s.failures.is_empty())?;
        let mut events = Vec::new();
        for f in &s.failures {
            let ends: Vec<End> = match f.port {
                PortSelector::SwitchPort(switch, port) => vec![(switch, port as u16)],
                PortSelector::Switch(switch) => (0..tree.k() as u16).map(|port| (switch, port)).collect(),
                PortSelector::Host(_) => Vec::new(),
            };
            let links: BTreeSet<End> = ends.into_iter().filter_map(|end| lower(tree, end)).collect();
            for link in links {
                let mut event = |at, what, up| events.push(Event { at, link, what, up });
                let at = Instant(f.at.as_ps());
                let noticed = at.saturating_add(f.detection);
                let until = f.until.map(|until| Instant(until.as_ps()));
                event(at, What::Carries, false);
                if let Some(until) = until {
                    event(until, What::Carries, true);
                }
                if until.is_none_or(|until| until > noticed) {
                    event(noticed, What::Noticed, false);
                    if let Some(until) = until {
                        event(until.saturating_add(f.detection), What::Noticed, true);
                    }
                }
            }
        }
        events.sort_by_key(|e| (e.at, e.what, e.link, e.up));
        debug_assert_eq!(plan.switches().len(), tree.switches_total() as usize);
        let switches = tree.switches().map(|s| TagSwitch::new(tree, s)).collect();
        Some(Failures { tree, switches, events, next: 0, down: BTreeMap::new() })
    }

    /// When something happens next.
    pub fn next_event(&self) -> Instant {
        self.events.get(self.next).map_or(Instant::MAX, |e| e.at)
    }

    /// All changes until `now`.
    pub fn turn(&mut self, now: Instant) -> Changes {
        let mut changes = Changes::default();
        let mut is_changed = false;
        while let Some(&Event { at, link, what, up }) = self.events.get(self.next)
            && at <= now
        {
            self.next += 1;
            let reasons = self.down.entry((what, link)).or_default();
            let before = *reasons > 0;
            *reasons = if up { reasons.saturating_sub(1) } else { *reasons + 1 };
            let after = *reasons > 0;
            if before == after {
                continue;
            }
            let ends = [Some(link), other(self.tree, link)].into_iter().flatten();
            match what {
                What::Carries => changes.carries.extend(ends.map(|end| (end, !after))),
                What::Noticed => {
                    for (switch, port) in ends {
                        self.switches[switch as usize].handle_link(port, !after);
                    }
                    changes.links.extend(central(self.tree, link).map(|link| (link, !after)));
                    is_changed = true;
                }
            }
        }
        if is_changed {
            self.talk();
            let all = self.switches.iter().enumerate();
            changes.informed = all.map(|(i, s)| (i as u32, s.clone())).collect();
        }
        changes
    }

    /// Whether the ends of a link take it for up.
    fn is_up(&self, link: End) -> bool {
        self.down.get(&(What::Noticed, link)).is_none_or(|&reasons| reasons == 0)
    }

    /// Switches exchange their pending messages, over links that they take for up.
    fn talk(&mut self) {
        let mut speak: BTreeSet<u32> = (0..self.switches.len() as u32).collect();
        while let Some(switch) = speak.pop_first() {
            while let Some((port, message)) = self.switches[switch as usize].poll_transmit() {
                let end = (switch, port);
                let (Some(to), Some(link)) = (other(self.tree, end), lower(self.tree, end)) else { continue };
                if self.is_up(link) {
                    self.switches[to.0 as usize].handle_message(to.1, message);
                    speak.insert(to.0);
                }
            }
        }
    }
}

/// The switch of a number.
fn switch(tree: FatTree, number: u32) -> Option<Switch> {
    tree.switches().nth(number as usize)
}

/// The other end of a link between switches.
fn other(tree: FatTree, (number, port): End) -> Option<End> {
    match tree.peer(switch(tree, number)?, port) {
        Peer::Switch(peer, its) => Some((tree.index(peer), its)),
        Peer::Host(_) => None,
    }
}

/// The lower end of a link between switches.
fn lower(tree: FatTree, end: End) -> Option<End> {
    Some(end.min(other(tree, end)?))
}

/// A link as a controller names it.
fn central(tree: FatTree, (number, port): End) -> Option<tree::Link> {
    let up = u32::from(port) - tree.half();
    match switch(tree, number)? {
        Switch::Edge { .. } => Some(tree::Link::Edge { edge: number, aggregation: up }),
        Switch::Aggregation { pod, at } => {
            Some(tree::Link::Core { pod: pod.into(), core: up * tree.half() + u32::from(at) })
        }
        Switch::Core { .. } => None,
    }
}
