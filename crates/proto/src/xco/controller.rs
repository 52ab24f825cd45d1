//! The central controller: sessions with local coordinators, and the messages to and from them.
//!
//! - A coordinator joins with the number of its node and gets a token. Every later message of the two has the token and the
//!   epoch, the number of the controller's start. A sender that does not see their frames can only guess the token.
//! - Sequence numbers of a sender rise. A message that is repeated or comes late changes nothing. Reports are repeated until
//!   they are acknowledged, under new numbers.
//! - A coordinator speaks for its own node only, so a wrong report affects only the flows of its node. A node has a bounded
//!   number of flows, nodes take turns, and a slice ends by the clock of the controller.
//! - A node whose coordinator is silent for a lease is deleted from the schedule (section 7).
//! - A standby hears the active controller. When it hears nothing for half a lease, it takes over under the next epoch.
//!   Coordinators then join it and report their whole backlog. By that time all slices of the other controller are over.

use super::demand::Demand;
use super::hierarchy::{Hierarchy, HierarchyConfig};
use super::rates::Rates;
use super::slices::{SliceConfig, SliceCounters, Slices};
use super::topology::{LinkId, Topology};
use super::{Grant, Limits, Node, Refused, WEIGHT_MAX};
use crate::rng::hash_words;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Change, Head, Message, NOWHERE};

/// Messages that a coordinator may send at once, and the time that one takes afterwards. A coordinator that gives back
/// slice after slice sends one in each round trip, which takes longer. Our choice.
const MESSAGES_BURST: u64 = 256;
const MESSAGE_TIME: Duration = Duration::from_us(5);
/// Parts of a lease after which sessions are checked, and after which a controller tells its standby that it works.
const CHECKS: u64 = 4;
const BEATS: u64 = 16;

/// A kind of directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyConfig {
    /// Timeslices (3.2), also with rates within them.
    Slices(SliceConfig),
    /// Rates (3.3), which change once in this time.
    Rates(Duration),
}

impl PolicyConfig {
    /// The longest time for which a directive holds.
    pub fn longest(&self, weights: &Weights) -> Duration {
        match self {
            PolicyConfig::Slices(slices) => slices.slice.saturating_mul(weights.max().into()),
            PolicyConfig::Rates(period) => *period,
        }
    }
}

/// Weights that are not 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Of single flows, by source and destination.
    pub flows: BTreeMap<(Node, Node), u8>,
    /// Of all other flows of a node: a tenant's nodes have the same.
    pub nodes: BTreeMap<Node, u8>,
}

impl Weights {
    fn of(&self, source: Node, to: Node) -> u8 {
        self.flows.get(&(source, to)).or_else(|| self.nodes.get(&source)).copied().unwrap_or(1)
    }

    fn max(&self) -> u8 {
        self.flows.values().chain(self.nodes.values()).copied().max().unwrap_or(1).clamp(1, WEIGHT_MAX)
    }
}

/// The other controller of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub mac: MacAddress,
    /// The token of messages between the two.
    pub secret: u32,
}

/// Settings of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The kind of its directives.
    pub policy: PolicyConfig,
    /// Its limits.
    pub limits: Limits,
    /// Silence after which one side takes the other for dead.
    pub lease: Duration,
    /// Whether only flows through congested links are coordinated.
    pub on_demand: bool,
    /// Weights of flows and nodes.
    pub weights: Weights,
    /// The address of each node's coordinator, if they are known in advance; empty if any may join.
    pub nodes: Vec<MacAddress>,
    /// The other controller, if there is one.
    pub peer: Option<Peer>,
    /// Its place among controllers of racks, rows and the core, if there are several. Only timeslices have one.
    pub hierarchy: Option<HierarchyConfig>,
    /// Seed of tokens: a secret, where others could guess them from it.
    pub seed: u64,
}

impl ControllerConfig {
    /// Whether a slice of any weight ends twice in a lease.
    fn fits(&self, weights: &Weights) -> bool {
        self.lease.0 / 2 > self.policy.longest(weights).0
    }
}

/// Counts of a controller. Those of refused messages name their reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerCounters {
    /// Nodes that joined.
    pub joined: u64,
    /// Nodes that left.
    pub left: u64,
    /// Nodes that were deleted because they were silent.
    pub silent: u64,
    /// Reports.
    pub reports: u64,
    /// Directives sent, those that hold or free a flow included.
    pub directives: u64,
    /// Slices given back.
    pub returned: u64,
    /// Joins in the name of a node that another address has, or for a node that does not exist.
    pub impostors: u64,
    /// Messages without the token of a session, or from an address without a session.
    pub forged: u64,
    /// Messages that were repeated or came late, and returns of slices that are over.
    pub stale: u64,
    /// Messages beyond the rate that a coordinator may have.
    pub flooded: u64,
    /// Flows beyond the number that a node may have.
    pub node_full: u64,
    /// Flows for which the controller has no room.
    pub full: u64,
    /// Flows whose node is faster than a link of the path, with whole timeslices.
    pub too_fast: u64,
    /// Flows to nodes that do not exist.
    pub no_such_node: u64,
    /// Flows that a controller of another level is responsible for.
    pub other_level: u64,
    /// Messages that only controllers send.
    pub misdirected: u64,
    /// Times at which this controller took over.
    pub takeovers: u64,
    /// Nodes that joined with another link rate than the topology has.
    pub other_rate: u64,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    mac: MacAddress,
    token: u32,
    nonce: u32,
    /// Sequence numbers of the last message to it, and from it.
    sent: u32,
    received: u32,
    heard_at: Instant,
    /// When its budget of messages is whole again.
    whole_at: Instant,
}

#[derive(Clone, Debug)]
enum Policy {
    Slices(Box<Slices>),
    Rates(Box<Rates>),
}

impl Policy {
    fn topology(&self) -> &Topology {
        match self {
            Policy::Slices(slices) => slices.topology(),
            Policy::Rates(rates) => rates.topology(),
        }
    }
    fn handle_backlog(&mut self, now: Instant, source: Node, to: Node, weight: u8) -> Result<(), Refused> {
        match self {
            Policy::Slices(slices) => slices.handle_backlog(now, source, to, weight),
            Policy::Rates(rates) => rates.handle_backlog(now, source, to, weight),
        }
    }
    fn handle_idle(&mut self, now: Instant, source: Node, to: Node) {
        match self {
            Policy::Slices(slices) => slices.handle_idle(now, source, to),
            Policy::Rates(rates) => rates.handle_idle(source, to),
        }
    }
    fn remove_node(&mut self, now: Instant, node: Node) {
        match self {
            Policy::Slices(slices) => slices.remove_node(now, node),
            Policy::Rates(rates) => rates.remove_node(node),
        }
    }
    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Policy::Slices(slices) => slices.handle_timeout(now),
            Policy::Rates(rates) => rates.handle_timeout(now),
        }
    }
    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Policy::Slices(slices) => slices.poll_timeout(),
            Policy::Rates(rates) => rates.poll_timeout(),
        }
    }
    fn poll_grant(&mut self) -> Option<Grant> {
        match self {
            Policy::Slices(slices) => slices.poll_grant(),
            Policy::Rates(rates) => rates.poll_grant(),
        }
    }
    fn set_directive(&mut self, source: Node, to: Node, sequence: u32) {
        match self {
            Policy::Slices(slices) => slices.set_directive(source, to, sequence),
            Policy::Rates(rates) => rates.set_directive(source, to, sequence),
        }
    }
    fn has_directive(&self, source: Node, to: Node, sequence: u32) -> bool {
        match self {
            Policy::Slices(slices) => slices.has_slice(source, to, sequence),
            Policy::Rates(rates) => rates.has_directive(source, to, sequence),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Active,
    Standby { heard_at: Instant },
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The receiver.
    pub to: MacAddress,
    /// The head.
    pub head: Head,
    /// The message.
    pub message: Message<'static>,
}

/// A controller.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControllerConfig,
    policy: Policy,
    demand: Option<Demand>,
    hierarchy: Option<Hierarchy>,
    /// When the next window begins, and its end.
    window: Option<(Instant, Instant)>,
    epoch: u16,
    role: Role,
    sessions: Vec<Option<Session>>,
    by_mac: BTreeMap<MacAddress, Node>,
    /// Answers that wait for [`Controller::poll_transmit`].
    answers: VecDeque<(Node, Message<'static>)>,
    /// Sessions so far, for tokens.
    opened: u64,
    checks_at: Instant,
    beats_at: Instant,
    /// Sequence number of messages to the other controller, and of the last one from it.
    peer_sent: u32,
    counters: ControllerCounters,
}

impl Controller {
    /// A controller without sessions, in its first epoch. A standby waits for the other controller to fall silent.
    ///
    /// # Panics
    /// With a lease in which a slice of the largest weight does not end twice: a standby could not know that slices of the
    /// other controller are over.
    pub fn new(now: Instant, topology: Topology, config: ControllerConfig, epoch: u16, is_standby: bool) -> Controller {
        assert!(config.fits(&config.weights), "half a lease is longer than every slice");
        let has_windows = config.hierarchy.is_none() || matches!(config.policy, PolicyConfig::Slices(_));
        assert!(has_windows, "rates are given at any time, and levels take turns");
        let nodes = topology.nodes() as usize;
        let demand = config.on_demand.then(|| Demand::new(&topology, config.limits));
        let hierarchy = config.hierarchy.clone().map(|place| Hierarchy::new(now, place));
        let policy = match config.policy {
            PolicyConfig::Slices(slices) => {
                let mut slices = Slices::new(topology, slices, config.limits);
                if hierarchy.is_some() {
                    // Until its first window.
                    slices.open(now, now);
                }
                Policy::Slices(Box::new(slices))
            }
            PolicyConfig::Rates(period) => Policy::Rates(Box::new(Rates::new(topology, period, config.limits))),
        };
        Controller {
            policy,
            demand,
            window: hierarchy.as_ref().and_then(|hierarchy| hierarchy.window(now)),
            hierarchy,
            epoch,
            role: if is_standby { Role::Standby { heard_at: now } } else { Role::Active },
            sessions: alloc::vec![None; nodes],
            by_mac: BTreeMap::new(),
            answers: VecDeque::new(),
            opened: 0,
            checks_at: now + Duration(config.lease.0 / CHECKS),
            beats_at: now,
            peer_sent: 0,
            counters: ControllerCounters::default(),
            config,
        }
    }

    /// The counters.
    pub fn counters(&self) -> &ControllerCounters {
        &self.counters
    }
    /// Changes the weights of flows, from their next reports on.
    ///
    /// # Panics
    /// With weights with which [`Controller::new`] panics.
    pub fn set_weights(&mut self, weights: Weights) {
        assert!(self.config.fits(&weights), "half a lease is longer than every slice");
        self.config.weights = weights;
    }
    /// The counters of timeslices, where there are any.
    pub fn slice_counters(&self) -> Option<&SliceCounters> {
        match &self.policy {
            Policy::Slices(slices) => Some(slices.counters()),
            Policy::Rates(_) => None,
        }
    }
    /// Links that are congested, with coordination on demand.
    pub fn congested(&self) -> Option<usize> {
        self.demand.as_ref().map(Demand::congested)
    }
    /// Whether it gives directives.
    pub fn is_active(&self) -> bool {
        self.role == Role::Active
    }
    /// The number of its start.
    pub fn epoch(&self) -> u16 {
        self.epoch
    }
    /// Nodes that have joined.
    pub fn members(&self) -> usize {
        self.by_mac.len()
    }
    /// Flows with backlog.
    pub fn flows(&self) -> usize {
        match &self.policy {
            Policy::Slices(slices) => slices.flows(),
            Policy::Rates(rates) => rates.flows(),
        }
    }
    /// The rate in kb/s that flows may send at over a direction of a link at this time.
    pub fn allowed_kbps(&self, link: LinkId) -> u64 {
        match &self.policy {
            Policy::Slices(slices) => slices.used_kbps(link).into(),
            Policy::Rates(rates) => rates.given_kbps(link),
        }
    }

    // Input.

    /// Takes a message.
    pub fn handle(&mut self, now: Instant, from: MacAddress, head: &Head, message: &Message<'_>) {
        if let Message::Alive { is_controller: true } = message {
            return self.handle_peer(now, from, head);
        }
        if let Message::Load { .. } | Message::Windows { .. } = message {
            match &mut self.hierarchy {
                Some(hierarchy) => {
                    hierarchy.handle(now, from, head, message);
                    self.plan_window(now);
                }
                None => self.counters.misdirected += 1,
            }
            return;
        }
        if !self.is_active() {
            return;
        }
        if let Message::Join { node, rate_kbps, nonce } = *message {
            return self.join(now, from, head, node, rate_kbps, nonce);
        }
        let Some((node, session)) =
            self.session(from).filter(|(_, session)| session.token == head.token && head.epoch == self.epoch)
        else {
            self.counters.forged += 1;
            return;
        };
        if !is_later(head.sequence, session.received) {
            self.counters.stale += 1;
            return;
        }
        if session.whole_at.since(now) >= MESSAGE_TIME.saturating_mul(MESSAGES_BURST) {
            self.counters.flooded += 1;
            return;
        }
        let whole_at = session.whole_at.max(now) + MESSAGE_TIME;
        if let Some(session) = &mut self.sessions[node as usize] {
            (session.received, session.heard_at, session.whole_at) = (head.sequence, now, whole_at);
        }
        match *message {
            Message::Leave => {
                self.counters.left += 1;
                self.close(now, node);
            }
            Message::Report(entries) => {
                let mut refused = 0;
                for entry in entries.iter() {
                    if let Err(reason) = self.report(now, node, entry.destination, entry.change) {
                        refused += 1;
                        self.count(reason);
                    }
                }
                self.counters.reports += 1;
                self.answers.push_back((node, Message::Acknowledge { report: head.sequence, refused }));
            }
            Message::Return { destination, directive } => {
                if self.policy.has_directive(node, destination, directive) {
                    self.counters.returned += 1;
                    self.idle(now, node, destination);
                } else {
                    self.counters.stale += 1;
                }
            }
            Message::Alive { .. } => self.answers.push_back((node, Message::Alive { is_controller: true })),
            Message::Join { .. }
            | Message::Welcome { .. }
            | Message::Directive { .. }
            | Message::Free { .. }
            | Message::Acknowledge { .. }
            | Message::Load { .. }
            | Message::Windows { .. } => self.counters.misdirected += 1,
        }
    }

    fn session(&self, from: MacAddress) -> Option<(Node, Session)> {
        let node = *self.by_mac.get(&from)?;
        Some((node, self.sessions[node as usize]?))
    }

    fn join(&mut self, now: Instant, from: MacAddress, head: &Head, node: Node, rate_kbps: u32, nonce: u32) {
        let is_known = self.config.nodes.get(node as usize).is_none_or(|&mac| mac == from);
        let elsewhere = self.by_mac.get(&from).is_some_and(|&other| other != node);
        let Some(session) = self.sessions.get(node as usize).filter(|_| is_known && !elsewhere) else {
            self.counters.impostors += 1;
            return;
        };
        let repeated = session.is_some_and(|s| s.mac == from && s.nonce == nonce);
        // A coordinator that has just started again waits until its own lease is over.
        if !repeated && session.is_some_and(|s| now.since(s.heard_at) < self.config.lease) {
            self.counters.impostors += 1;
            return;
        }
        if !repeated {
            self.close(now, node);
            let topology = self.policy.topology();
            let own = topology.capacity(topology.first_link(node, node));
            self.counters.other_rate += u64::from(rate_kbps != own);
            self.opened += 1;
            let words = [self.config.seed, u64::from(node), u64::from(self.epoch), self.opened];
            let token = hash_words(&words) as u32 | 1;
            self.sessions[node as usize] = Some(Session {
                mac: from,
                token,
                nonce,
                sent: 0,
                received: head.sequence,
                heard_at: now,
                whole_at: now,
            });
            self.by_mac.insert(from, node);
            self.counters.joined += 1;
        }
        let lease_us = u32::try_from(self.config.lease.as_us()).unwrap_or(u32::MAX);
        let on_demand = self.config.on_demand;
        self.answers.push_back((node, Message::Welcome { node, lease_us, nonce, on_demand }));
    }

    /// Ends the session of a node, and its flows.
    fn close(&mut self, now: Instant, node: Node) {
        let Some(session) = self.sessions[node as usize].take() else { return };
        self.by_mac.remove(&session.mac);
        self.policy.remove_node(now, node);
        if let Some(demand) = &mut self.demand {
            demand.remove_node(now, self.policy.topology(), node);
        }
    }

    fn report(&mut self, now: Instant, source: Node, to: Node, change: Change) -> Result<(), Refused> {
        if to == source || to >= self.policy.topology().nodes() {
            return Err(Refused::NoSuchNode);
        }
        let level = self.hierarchy.as_ref().map(Hierarchy::level);
        if level.is_some_and(|level| self.policy.topology().level(source, to) != level) {
            return Err(Refused::OtherLevel);
        }
        match (change, &mut self.demand) {
            (Change::Idle, _) => self.idle(now, source, to),
            (Change::Measured { .. }, None) => {}
            (Change::Measured { rate_kbps }, Some(demand)) => {
                demand.handle_measured(now, self.policy.topology(), (source, to), rate_kbps)?;
            }
            (Change::Backlogged, None) => self.backlog(now, source, to)?,
            (Change::Backlogged, Some(demand)) => {
                demand.handle_backlog(now, self.policy.topology(), source, to)?;
                if demand.is_held(source, to) {
                    self.backlog(now, source, to)?;
                }
            }
        }
        Ok(())
    }

    fn backlog(&mut self, now: Instant, source: Node, to: Node) -> Result<(), Refused> {
        let weight = self.config.weights.of(source, to);
        self.policy.handle_backlog(now, source, to, weight)
    }

    fn idle(&mut self, now: Instant, source: Node, to: Node) {
        self.policy.handle_idle(now, source, to);
        if let Some(demand) = &mut self.demand {
            demand.handle_idle(now, self.policy.topology(), source, to);
        }
    }

    fn count(&mut self, reason: Refused) {
        match reason {
            Refused::NoSuchNode => self.counters.no_such_node += 1,
            Refused::NodeFull => self.counters.node_full += 1,
            Refused::Full => self.counters.full += 1,
            Refused::TooFast => self.counters.too_fast += 1,
            Refused::OtherLevel => self.counters.other_level += 1,
        }
    }

    /// The other controller works.
    fn handle_peer(&mut self, now: Instant, from: MacAddress, head: &Head) {
        if self.config.peer.is_none_or(|peer| peer.mac != from || peer.secret != head.token) {
            self.counters.forged += 1;
            return;
        }
        let is_behind = is_later_epoch(head.epoch, self.epoch);
        match &mut self.role {
            Role::Standby { heard_at } => {
                *heard_at = now;
                if is_behind {
                    self.epoch = head.epoch;
                }
            }
            Role::Active if is_behind => {
                // It was taken for dead, and another has taken over.
                for node in 0..self.policy.topology().nodes() {
                    self.close(now, node);
                }
                self.answers.clear();
                self.epoch = head.epoch;
                self.role = Role::Standby { heard_at: now };
            }
            Role::Active => self.counters.stale += 1,
        }
    }

    // Time.

    /// When something expires next.
    pub fn poll_timeout(&self) -> Instant {
        match self.role {
            Role::Standby { heard_at } => heard_at + Duration(self.config.lease.0 / 2),
            Role::Active => {
                let beats = if self.config.peer.is_some() { self.beats_at } else { Instant::MAX };
                let window = self.window.map_or(Instant::MAX, |window| window.0);
                let period = self.hierarchy.as_ref().map_or(Instant::MAX, Hierarchy::poll_timeout);
                let policy = self.policy.poll_timeout().unwrap_or(Instant::MAX);
                [policy, self.checks_at, beats, window, period].into_iter().fold(Instant::MAX, Instant::min)
            }
        }
    }

    /// Slices that end, nodes that are silent, another controller that is.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Role::Standby { heard_at } = self.role {
            if now.since(heard_at).0 < self.config.lease.0 / 2 {
                return;
            }
            self.role = Role::Active;
            self.epoch = self.epoch.wrapping_add(1);
            self.counters.takeovers += 1;
            (self.checks_at, self.beats_at) = (now, now);
        }
        self.policy.handle_timeout(now);
        if let (Some(hierarchy), Policy::Slices(slices)) = (&mut self.hierarchy, &mut self.policy) {
            if hierarchy.poll_timeout() <= now {
                hierarchy.set_load(slices.load());
                hierarchy.handle_timeout(now);
                self.plan_window(now);
            }
            self.open_window(now);
        }
        if self.checks_at <= now {
            self.checks_at = now + Duration(self.config.lease.0 / CHECKS);
            if let Some(demand) = &mut self.demand {
                demand.handle_timeout(now, self.policy.topology());
            }
            for node in 0..self.policy.topology().nodes() {
                let is_silent = |session: &Session| now.since(session.heard_at) > self.config.lease;
                if self.sessions[node as usize].as_ref().is_some_and(is_silent) {
                    self.counters.silent += 1;
                    self.close(now, node);
                }
            }
        }
    }

    /// Windows may have changed: the next one is planned anew.
    fn plan_window(&mut self, now: Instant) {
        if let Some(hierarchy) = &self.hierarchy {
            self.window = hierarchy.window(now);
        }
    }

    /// Slices are given from the start of a window on.
    fn open_window(&mut self, now: Instant) {
        let Policy::Slices(slices) = &mut self.policy else { return };
        let Some((from, until)) = self.window.filter(|window| window.0 <= now) else { return };
        slices.open(now, until);
        if let Some(hierarchy) = &self.hierarchy {
            self.window = hierarchy.window(until.max(from)).filter(|next| next.0 > now);
        }
    }

    // Output.

    /// The next message to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if !self.is_active() {
            return None;
        }
        if let Some((to, head, message)) = self.hierarchy.as_mut().and_then(|hierarchy| hierarchy.poll_transmit(now)) {
            return Some(Outgoing { to, head, message });
        }
        while let Some((node, answer)) = self.answers.pop_front() {
            if let Some(outgoing) = self.address(now, node, answer) {
                return Some(outgoing);
            }
        }
        while let Some(order) = self.demand.as_mut().and_then(Demand::poll_order) {
            let (source, destination) = (order.source, order.destination);
            let message = if order.hold {
                Message::Directive { destination, instead_of: NOWHERE, rate_kbps: 0, length_ns: 0 }
            } else {
                self.policy.handle_idle(now, source, destination);
                Message::Free { destination }
            };
            if let Some(outgoing) = self.address(now, source, message) {
                self.counters.directives += 1;
                return Some(outgoing);
            }
        }
        while let Some(Grant { source, destination, instead_of, rate_kbps, length }) = self.policy.poll_grant() {
            let length_ns = u32::try_from(length.0 / 1_000).unwrap_or(u32::MAX);
            let instead_of = instead_of.unwrap_or(NOWHERE);
            let message = Message::Directive { destination, instead_of, rate_kbps, length_ns };
            if let Some(outgoing) = self.address(now, source, message) {
                self.policy.set_directive(source, destination, outgoing.head.sequence);
                self.counters.directives += 1;
                return Some(outgoing);
            }
        }
        let peer = self.config.peer.filter(|_| self.beats_at <= now)?;
        self.beats_at = now + Duration(self.config.lease.0 / BEATS);
        self.peer_sent = self.peer_sent.wrapping_add(1);
        let head = Head { epoch: self.epoch, sequence: self.peer_sent, token: peer.secret, clock_ns: now.0 / 1_000 };
        Some(Outgoing { to: peer.mac, head, message: Message::Alive { is_controller: true } })
    }

    /// A message to a node that has a session.
    fn address(&mut self, now: Instant, node: Node, message: Message<'static>) -> Option<Outgoing> {
        let session = self.sessions[node as usize].as_mut()?;
        session.sent = session.sent.wrapping_add(1);
        let (sequence, token) = (session.sent, session.token);
        let head = Head { epoch: self.epoch, sequence, token, clock_ns: now.0 / 1_000 };
        Some(Outgoing { to: session.mac, head, message })
    }
}

/// Whether a sequence number comes after another one, modulo 2^32.
pub(super) fn is_later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Whether an epoch comes after another one, modulo 2^16.
pub(super) fn is_later_epoch(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) > 0
}
