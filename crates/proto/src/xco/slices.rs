//! Timeslice scheduling (3.2): who sends to whom in each timeslice, so that no link is given more than its capacity.
//!
//! Algorithm 1 visits every node whose path shares a link with the path of the node that triggered the event (lines
//! 12-17). This implementation visits only flows whose situation has changed. Each waiting flow is parked at one link of
//! its path that has no room for it. As long as that link has no room, the flow is not feasible, so it need not be
//! visited. When a link gains room, the flows parked there are visited, the one whose node has waited longest first. A
//! flow that is still not feasible moves to another link without room. So after each event no waiting flow is feasible, as
//! after Algorithm 1, but an event touches a few flows instead of all affected ones.
//!
//! | Algorithm 1 | here |
//! |---|---|
//! | contention group (lines 5, 15) | the flows parked at a link |
//! | active contention group (lines 6, 20, 43, 48) | the sum of the rates of a link's active flows |
//! | feasibility (line 33, equation 1) | `Slices::fits` |
//! | "some node in A" (line 28), "omits for clarity" | the node that was served the longest time ago |
//! | pre-emption (lines 40-46) | `Slices::preempt` |
//! | N, nodes with a new schedule (lines 55, 44) | a node is pre-empted at most once an event |
//!
//! The source leaves open how nobody starves. Nodes take turns. A flow that needs several links at once may find each of
//! them busy whenever another is free. If its node has waited for half as long as the turns at its most contended link take,
//! it reserves its place: from then on nodes behind it get only the capacity that it leaves.
//!
//! A call visits a bounded number of flows. If more are left, [`Slices::poll_timeout`] asks for another call at once, and the
//! directives so far can be sent before it.
//!
//! A whole slice needs the full rate of the node's link (`C_x`). With rates within slices (section 7) a flow needs the
//! lowest capacity of its path, and a node may have several slices at once.

use super::flows::{FlowId, Flows, Heap, Key, NONE};
use super::topology::{CAPACITIES_MAX, LinkId, Topology};
use super::{Grant, Limits, Node, Refused, SLICE_MAX, SLICE_MIN, WEIGHT_MAX};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Flows that are visited in one call. A visit takes less than a microsecond, so that directives are sent within some tens
/// of microseconds although links gained room for thousands of flows.
const VISITS_MAX: u32 = 64;

/// Settings of timeslice scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceConfig {
    /// A timeslice of weight 1.
    pub slice: Duration,
    /// Shortest time that a slice runs before its node is pre-empted, and that a pre-emption leaves for the new
    /// destination.
    pub min_run: Duration,
    /// Whether flows have rates within slices.
    pub rates: bool,
}

impl SliceConfig {
    /// Settings for a timeslice: pre-emption after a quarter of it.
    ///
    /// # Panics
    /// With a timeslice that is shorter than [`SLICE_MIN`] or longer than [`SLICE_MAX`].
    pub fn new(slice: Duration) -> SliceConfig {
        assert!((SLICE_MIN..=SLICE_MAX).contains(&slice), "a timeslice has 1 to 10 ms");
        SliceConfig { slice, min_run: Duration(slice.0 / 4), rates: false }
    }
}

/// Counts of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceCounters {
    /// Slices.
    pub granted: u64,
    /// Slices that ended early because their node was pre-empted.
    pub preempted: u64,
    /// Slices that were given back.
    pub returned: u64,
    /// Flows that reserved their place.
    pub reserved: u64,
    /// Flows that were looked at.
    pub visited: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In no heap: only within an event.
    Loose,
    /// Parked at a link.
    Waiting(LinkId),
    Active {
        since: Instant,
        until: Instant,
    },
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    state: State,
    rate: u32,
    /// Place of the rate among the capacities of links.
    class: u8,
    weight: u8,
    /// When the flow was served last, in turns.
    served: u64,
    /// Since when the flow has waited.
    waits_since: Instant,
    /// Its place in the order of turns, if it is reserved.
    reserved: Option<Key>,
    /// Sequence number of its directive.
    directive: u32,
}

#[derive(Clone, Copy, Debug)]
struct NodeState {
    /// When the node was served last, in turns.
    served: u64,
    /// Since when the node has waited.
    waits_since: Instant,
    active: u32,
    /// An active flow of the node.
    sending: FlowId,
    /// Whether a flow of the node has reserved its place.
    reserves: bool,
    /// The event at which the node was pre-empted last.
    preempted: u64,
}

#[derive(Clone, Copy, Debug)]
struct LinkState {
    capacity: u32,
    /// The sum of the rates of active flows.
    used: u32,
    /// The sum of the rates of all flows.
    wanted: u64,
    /// The flow that has reserved its place here.
    reserved: FlowId,
    /// Flows parked here, by their rates.
    parked: [Heap; CAPACITIES_MAX],
    /// Whether the link is in [`Slices::gained`].
    gained: bool,
}

/// A timeslice scheduler.
#[derive(Clone, Debug)]
pub struct Slices {
    topology: Topology,
    config: SliceConfig,
    flows: Flows<Flow>,
    nodes: Vec<NodeState>,
    links: Vec<LinkState>,
    /// Active flows by the end of their slices.
    ends: Heap,
    /// Links that have gained room in this event.
    gained: Vec<LinkId>,
    /// Services so far: a clock of turns.
    turn: u64,
    event: u64,
    /// The end of the time in which slices may be given, and whether it has come.
    open_until: Instant,
    is_closed: bool,
    grants: VecDeque<Grant>,
    counters: SliceCounters,
}

impl Slices {
    /// A scheduler without flows.
    pub fn new(topology: Topology, config: SliceConfig, limits: Limits) -> Slices {
        let link = |n| LinkState {
            capacity: topology.capacity(n),
            used: 0,
            wanted: 0,
            reserved: NONE,
            parked: [NONE; CAPACITIES_MAX],
            gained: false,
        };
        let node = NodeState {
            served: 0,
            waits_since: Instant::ZERO,
            active: 0,
            sending: NONE,
            reserves: false,
            preempted: 0,
        };
        Slices {
            config,
            flows: Flows::new(topology.nodes(), limits),
            nodes: vec![node; topology.nodes() as usize],
            links: (0..topology.links() as LinkId).map(link).collect(),
            ends: NONE,
            gained: Vec::with_capacity(topology.links()),
            turn: 0,
            event: 0,
            open_until: Instant::MAX,
            is_closed: false,
            grants: VecDeque::with_capacity(topology.nodes() as usize),
            counters: SliceCounters::default(),
            topology,
        }
    }

    /// The counters.
    pub fn counters(&self) -> &SliceCounters {
        &self.counters
    }
    /// Flows with backlog.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }
    /// The network.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
    /// The rate that active flows of a direction have together, in kb/s.
    pub fn used_kbps(&self, link: LinkId) -> u32 {
        self.links[link as usize].used
    }

    // Events.

    /// A node has frames that wait for a destination (scheduling event 3). A known flow keeps its weight.
    ///
    /// # Errors
    /// There is no room for the flow, or it can never be feasible.
    pub fn handle_backlog(&mut self, now: Instant, source: Node, to: Node, weight: u8) -> Result<(), Refused> {
        if self.flows.find(source, to).is_some() {
            return Ok(());
        }
        let nodes = self.topology.nodes();
        if source == to || source.max(to) >= nodes {
            return Err(Refused::NoSuchNode);
        }
        let bottleneck = self.topology.bottleneck(source, to);
        let link = self.topology.capacity(self.topology.first_link(source, to));
        let rate = if self.config.rates { bottleneck } else { link };
        if rate > bottleneck {
            return Err(Refused::TooFast);
        }
        let class = self.topology.capacities().binary_search(&rate).unwrap_or(0) as u8;
        let weight = weight.clamp(1, WEIGHT_MAX);
        let was_idle = self.flows.of_node(source) == 0;
        let state = State::Loose;
        let served = self.turn + 1;
        let flow = Flow { state, rate, class, weight, served, waits_since: now, reserved: None, directive: 0 };
        let f = self.flows.insert(source, to, flow)?;
        self.event += 1;
        self.turn = served;
        if was_idle {
            let node = &mut self.nodes[source as usize];
            (node.served, node.waits_since) = (served, now);
        }
        for link in self.topology.path(source, to) {
            self.links[link as usize].wanted += u64::from(rate);
        }
        let is_settled = self.gained.is_empty();
        if self.is_closed || self.fits(self.topology.first_link(source, to), f, 0) {
            self.queue(f);
        } else {
            self.visit(now, f);
        }
        if is_settled {
            self.settle(now);
        }
        Ok(())
    }

    /// A node has no frames for a destination any more; if it has a slice, it gives the slice back (scheduling event 2).
    pub fn handle_idle(&mut self, now: Instant, source: Node, to: Node) {
        if let Some(f) = self.flows.find(source, to) {
            self.event += 1;
            self.remove(now, f);
            self.settle(now);
        }
    }

    /// A node has left: all its flows end.
    pub fn remove_node(&mut self, now: Instant, node: Node) {
        self.event += 1;
        while let Some(f) = self.flows.first(node) {
            self.remove(now, f);
        }
        self.settle(now);
    }

    /// From now on slices are given, and all end until then. A scheduler that was never told gives slices at any time.
    pub fn open(&mut self, now: Instant, until: Instant) {
        (self.open_until, self.is_closed) = (until, false);
        self.settle(now);
    }

    /// What flows through the most loaded link would send, in thousandths of its capacity.
    pub fn load(&self) -> u32 {
        let of_link = |l: &LinkState| (l.wanted * 1_000).div_ceil(u64::from(l.capacity));
        u32::try_from(self.links.iter().map(of_link).max().unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// The end of the next slice, or a time that has passed if there are flows left to visit.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.gained.is_empty() && !self.is_closed {
            return Some(Instant::ZERO);
        }
        (self.ends != NONE).then(|| Instant(self.flows.key(self.ends).0))
    }

    /// Timeslices expire (scheduling event 1): all, or as many as a call may visit flows for.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.settle(now);
        let visited_max = self.counters.visited + u64::from(VISITS_MAX);
        while (self.gained.is_empty() || self.is_closed)
            && self.counters.visited < visited_max
            && self.poll_timeout().is_some_and(|at| at <= now)
        {
            self.event += 1;
            let f = self.ends;
            self.stop(now, f);
            self.queue(f);
            self.settle(now);
        }
    }

    /// The next directive to send.
    pub fn poll_grant(&mut self) -> Option<Grant> {
        self.grants.pop_front()
    }

    /// Remembers the sequence number of the directive of a flow.
    pub fn set_directive(&mut self, source: Node, to: Node, sequence: u32) {
        if let Some(f) = self.flows.find(source, to) {
            self.flows[f].directive = sequence;
        }
    }

    /// Whether a flow has a slice by this directive.
    pub fn has_slice(&self, source: Node, to: Node, directive: u32) -> bool {
        self.flows.find(source, to).is_some_and(|f| {
            let flow = &self.flows[f];
            matches!(flow.state, State::Active { .. }) && flow.directive == directive
        })
    }

    // Decisions.

    /// The place of a flow in the order of turns: nodes first, then the flows of a node.
    fn place(&self, f: FlowId) -> Key {
        let flow = &self.flows[f];
        flow.reserved.unwrap_or_else(|| (self.nodes[self.flows.source(f) as usize].served, flow.served))
    }

    /// Whether a link has room for a flow (equation 1), if `freed` of it is released.
    fn fits(&self, link: LinkId, f: FlowId, freed: u32) -> bool {
        let l = &self.links[link as usize];
        let ahead = l.reserved != NONE && l.reserved != f && self.place(l.reserved) < self.place(f);
        let reserved = if ahead { self.flows[l.reserved].rate } else { 0 };
        u64::from(l.used) + u64::from(reserved) + u64::from(self.flows[f].rate)
            <= u64::from(l.capacity) + u64::from(freed)
    }

    fn path(&self, f: FlowId) -> super::topology::Path<'_> {
        let (source, to) = self.flows.ends(f);
        self.topology.path(source, to)
    }

    /// Lines 30 to 57: the flow is served if it is feasible, or parked. It is parked at the link of its own node only if no
    /// other link is full, so that it is visited when it could pre-empt another flow of the node.
    fn visit(&mut self, now: Instant, f: FlowId) {
        self.counters.visited += 1;
        let Some(full) = self.path(f).filter(|&link| !self.fits(link, f, 0)).last() else {
            let length = self.config.slice.saturating_mul(self.flows[f].weight.into());
            return self.start(now, f, now.saturating_add(length).min(self.open_until), None);
        };
        if !self.preempt(now, f) {
            if self.is_overdue(now, f) {
                self.reserve(f);
            }
            self.park(f, full);
        }
    }

    /// Lines 40 to 46: a node that has sent to another destination for long enough sends to this one, if the path has room
    /// apart from what the node uses itself. The new slice ends when the old one would have, so that the node does not
    /// keep the links that both paths share for longer than a slice.
    fn preempt(&mut self, now: Instant, f: FlowId) -> bool {
        let source = self.flows.source(f);
        let NodeState { active, sending: old, preempted, .. } = self.nodes[source as usize];
        if active != 1 || preempted == self.event {
            return false;
        }
        let State::Active { since, until } = self.flows[old].state else { return false };
        if now.since(since) < self.config.min_run || until.since(now) < self.config.min_run {
            return false;
        }
        let shares = |link: LinkId| self.path(old).any(|of_old| of_old == link);
        let freed = |link| if shares(link) { self.flows[old].rate } else { 0 };
        if self.path(f).any(|link| !self.fits(link, f, freed(link))) {
            return false;
        }
        self.nodes[source as usize].preempted = self.event;
        self.counters.preempted += 1;
        self.stop(now, old);
        self.start(now, f, until, Some(self.flows.ends(old).1));
        self.visit(now, old);
        true
    }

    fn start(&mut self, now: Instant, f: FlowId, until: Instant, instead_of: Option<Node>) {
        let (source, destination) = self.flows.ends(f);
        let rate = self.flows[f].rate;
        for link in self.topology.path(source, destination) {
            self.links[link as usize].used += rate;
        }
        self.turn += 1;
        let node = &mut self.nodes[source as usize];
        node.served = self.turn;
        node.active += 1;
        node.sending = f;
        self.release(f);
        self.flows[f].state = State::Active { since: now, until };
        self.flows[f].served = self.turn;
        let mut ends = self.ends;
        self.flows.push(&mut ends, f, (until.0, self.turn));
        self.ends = ends;
        self.counters.granted += 1;
        let length = until.since(now);
        self.grants.push_back(Grant { source, destination, instead_of, rate_kbps: rate, length });
    }

    /// Lines 18 to 21: the slice of an active flow ends.
    fn stop(&mut self, now: Instant, f: FlowId) {
        let mut ends = self.ends;
        self.flows.take(&mut ends, f);
        self.ends = ends;
        let (source, to) = self.flows.ends(f);
        let rate = self.flows[f].rate;
        for link in self.topology.path(source, to) {
            self.links[link as usize].used -= rate;
            gain(&mut self.links, &mut self.gained, link);
        }
        self.turn += 1;
        let flow = &mut self.flows[f];
        (flow.state, flow.served, flow.waits_since) = (State::Loose, self.turn, now);
        let node = &mut self.nodes[source as usize];
        node.active -= 1;
        (node.served, node.waits_since) = (self.turn, now);
        if node.active > 0 && node.sending == f {
            let mut at = self.flows.first(source);
            while let Some(other) = at {
                if matches!(self.flows[other].state, State::Active { .. }) {
                    self.nodes[source as usize].sending = other;
                }
                at = self.flows.next(other);
            }
        }
    }

    /// Has a flow visited in its turn, after those that have waited longer: it is parked at a link that may have room.
    fn queue(&mut self, f: FlowId) {
        let (source, to) = self.flows.ends(f);
        let own = self.topology.first_link(source, to);
        self.park(f, own);
        gain(&mut self.links, &mut self.gained, own);
    }

    fn park(&mut self, f: FlowId, link: LinkId) {
        let (class, key) = (self.flows[f].class as usize, self.place(f));
        let mut heap = self.links[link as usize].parked[class];
        self.flows.push(&mut heap, f, key);
        self.links[link as usize].parked[class] = heap;
        self.flows[f].state = State::Waiting(link);
    }

    /// Ends a flow.
    fn remove(&mut self, now: Instant, f: FlowId) {
        match self.flows[f].state {
            State::Active { .. } => {
                self.counters.returned += 1;
                self.stop(now, f);
            }
            State::Waiting(link) => {
                let class = self.flows[f].class as usize;
                let mut heap = self.links[link as usize].parked[class];
                self.flows.take(&mut heap, f);
                self.links[link as usize].parked[class] = heap;
            }
            State::Loose => {}
        }
        self.release(f);
        let (source, to) = self.flows.ends(f);
        for link in self.topology.path(source, to) {
            self.links[link as usize].wanted -= u64::from(self.flows[f].rate);
        }
        self.flows.remove(f);
    }

    /// Visits flows parked at links that gained room, in the order of turns, until no such link has room for one or the call
    /// has visited enough.
    fn settle(&mut self, now: Instant) {
        // A slice that is shorter than `min_run` is not worth its directive.
        self.is_closed |= self.open_until.since(now) < self.config.min_run;
        if self.is_closed {
            return;
        }
        for _ in 0..VISITS_MAX {
            let Some((link, class)) = self.next_parked(now) else { return };
            let mut heap = self.links[link as usize].parked[class];
            let Some(f) = self.flows.pop(&mut heap) else { continue };
            self.links[link as usize].parked[class] = heap;
            self.flows[f].state = State::Loose;
            if self.flows.key(f) == self.place(f) {
                self.visit(now, f);
            } else {
                // Its node was served meanwhile: its turn is later.
                self.park(f, link);
            }
        }
    }

    /// The link and the heap with the flow whose turn is next, among the links that gained room.
    fn next_parked(&mut self, now: Instant) -> Option<(LinkId, usize)> {
        let mut next: Option<(Key, LinkId, usize)> = None;
        let classes = self.topology.capacities().len();
        let mut at = 0;
        while let Some(&link) = self.gained.get(at) {
            let mut has_room = false;
            for class in 0..classes {
                let f = self.links[link as usize].parked[class];
                if f == NONE {
                    continue;
                }
                let is_late = self.flows.key(f) != self.place(f);
                if !is_late && self.flows[f].reserved.is_none() && self.is_overdue(now, f) {
                    self.reserve(f);
                }
                if is_late || self.fits(link, f, 0) {
                    has_room = true;
                    let key = self.flows.key(f);
                    if next.is_none_or(|(least, ..)| key < least) {
                        next = Some((key, link, class));
                    }
                }
            }
            if has_room {
                at += 1;
            } else {
                self.links[link as usize].gained = false;
                self.gained.swap_remove(at);
            }
        }
        next.map(|(_, link, class)| (link, class))
    }

    /// Whether a flow has waited for too long: its node for half as long as the turns at its most contended link take, or
    /// the flow itself for as many turns as its node has flows.
    fn is_overdue(&self, now: Instant, f: FlowId) -> bool {
        let node = &self.nodes[self.flows.source(f) as usize];
        if self.flows[f].reserved.is_some() || node.reserves {
            return false;
        }
        // At least one turn: most visits end here.
        let (alone, waited) = (node.active == 0, now.since(self.flows[f].waits_since));
        if waited < self.config.slice && !(alone && now.since(node.waits_since).0 >= self.config.slice.0 / 2) {
            return false;
        }
        let turns = |link: LinkId| {
            let l = &self.links[link as usize];
            l.wanted.div_ceil(u64::from(l.capacity))
        };
        let turns = self.path(f).map(turns).max().unwrap_or(0);
        let patience = self.config.slice.saturating_mul(turns);
        let of_flow = patience.saturating_mul(self.flows.of_node(self.flows.source(f)).into());
        alone && now.since(node.waits_since).0 >= patience.0 / 2 || waited >= of_flow
    }

    /// Reserves the present place of a flow in the order of turns, at all links of its path. It needs no reservation at the
    /// link of its own node while one slice takes all of that link: when the slice ends, the flow comes first.
    fn reserve(&mut self, f: FlowId) {
        self.counters.reserved += 1;
        let place = self.place(f);
        self.flows[f].reserved = Some(place);
        let (source, to) = self.flows.ends(f);
        let own = &self.links[self.topology.first_link(source, to) as usize];
        let node = &mut self.nodes[source as usize];
        node.reserves = true;
        let skipped = usize::from(node.active == 1 && own.used == own.capacity);
        for link in self.topology.path(source, to).skip(skipped) {
            let holder = self.links[link as usize].reserved;
            if holder == NONE || place < self.place(holder) {
                self.links[link as usize].reserved = f;
                gain(&mut self.links, &mut self.gained, link);
            }
        }
    }

    /// Ends the reservation of a flow, if it has one.
    fn release(&mut self, f: FlowId) {
        if self.flows[f].reserved.take().is_none() {
            return;
        }
        let (source, to) = self.flows.ends(f);
        self.nodes[source as usize].reserves = false;
        for link in self.topology.path(source, to) {
            if self.links[link as usize].reserved == f {
                self.links[link as usize].reserved = NONE;
                gain(&mut self.links, &mut self.gained, link);
            }
        }
    }

    // For tests.

    /// Whether the rates of active flows fit all links and agree with what is counted, and no waiting flow is feasible.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut used = vec![0u64; self.links.len()];
        let mut wanted = vec![0u64; self.links.len()];
        let mut place = 0;
        while let Some(f) = self.flows.at_or_after(place) {
            place = f + 1;
            let flow = &self.flows[f];
            for link in self.path(f) {
                wanted[link as usize] += u64::from(flow.rate);
                used[link as usize] +=
                    if matches!(flow.state, State::Active { .. }) { u64::from(flow.rate) } else { 0 };
            }
            match flow.state {
                State::Loose => panic!("{:?} is nowhere", self.flows.ends(f)),
                State::Waiting(_) if !self.gained.is_empty() => {}
                State::Waiting(_) => {
                    let is_feasible = self.path(f).all(|link| self.fits(link, f, 0));
                    assert!(!is_feasible, "{:?} waits although it is feasible", self.flows.ends(f));
                }
                State::Active { .. } => {}
            }
        }
        for (n, l) in self.links.iter().enumerate() {
            assert_eq!((u64::from(l.used), l.wanted), (used[n], wanted[n]), "link {n}");
            assert!(l.used <= l.capacity, "link {n} is given {} of {}", l.used, l.capacity);
        }
    }

    #[cfg(test)]
    pub(super) fn has_backlog(&self, node: Node) -> bool {
        self.flows.of_node(node) > 0
    }

    /// The destinations of active flows, by source.
    #[cfg(test)]
    pub(super) fn active(&self) -> Vec<(Node, Node)> {
        let all = core::iter::successors(self.flows.at_or_after(0), |&f| self.flows.at_or_after(f + 1));
        let is_active = |&f: &FlowId| matches!(self.flows[f].state, State::Active { .. });
        let mut active: Vec<_> = all.filter(is_active).map(|f| self.flows.ends(f)).collect();
        active.sort_unstable();
        active
    }
}

/// Notes that a link may have gained room.
fn gain(links: &mut [LinkState], gained: &mut Vec<LinkId>, link: LinkId) {
    if !links[link as usize].gained {
        links[link as usize].gained = true;
        gained.push(link);
    }
}
