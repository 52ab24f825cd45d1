//! The local coordinator of a node: it decides which frames may leave (3.5).
//!
//! The driver holds the frames, in a queue for each destination. It asks [`Coordinator::permit`] before it sends a frame,
//! and calls [`Coordinator::handle_empty`] when a queue has become empty.
//!
//! - A flow is small while its frames fit a small rate. Small flows pass without asking. So ping and acknowledgements do
//!   not wait (4.4).
//! - The frames of a larger flow wait. The coordinator reports the flow, and sends its frames within the slices, or at the
//!   rates, of the directives.
//! - If a queue stays empty for the hysteresis, the slice is given back (3.2, work conservation).
//! - Each directive has the controller's clock. The coordinator keeps the smallest difference between the two clocks, so that
//!   a directive that came late does not make its slice end late (3.5, synchronization).
//! - If no message of the controller comes for a lease, all frames pass until one comes (section 7, fault tolerance). If the
//!   controller works but serves a flow too late, that flow passes for a while, too.

use super::controller::{is_later, is_later_epoch};
use super::{Node, SLICE_MAX, SLICE_MIN, WEIGHT_MAX};
use crate::rng::mix64;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Change, ENTRIES_MAX, Entry, Frame, Head, Message, NOWHERE};

/// Bytes that a small flow may send at once: four full Ethernet frames, as many as a delayed acknowledgement and an answer
/// of some KB have.
pub const SMALL_BURST_BYTES: u64 = 4 * 1_538;
/// Time after which a report or a join is repeated: longer than a round trip in a network with small buffers, and shorter than
/// the shortest slice.
const REPEAT: Duration = Duration::from_us(500);
/// The longest time between two joins; it doubles with each.
const REPEAT_MAX: Duration = Duration::from_ms(64);
/// Parts of a lease after which a coordinator that has reported nothing says that it works. The controller answers, so each
/// hears the other.
const ALIVES: u64 = 4;
/// Eighths of a lease without messages after which the coordinator asks all controllers again: later than two messages of
/// [`ALIVES`] need, and after a standby has taken over.
const SUSPICION: u64 = 5;
const _: () = assert!(SUSPICION > 8 / ALIVES * 2 && SUSPICION < 8);
/// Parts of a lease after which the next controller is asked.
const SEARCHES: u64 = 64;
/// How late a frame may be sent and still count as on time: timers of a host that does nothing else are that coarse.
pub const LATE: Duration = Duration::from_us(20);
/// How much two clocks may drift apart, as 1 in so many: twice the 50 ppm that Ethernet allows each of them (802.3, 22.2.2).
const DRIFT: u64 = 10_000;
/// Time for which a flow waits for a working controller before it sends anyway: longer than 200 senders need for turns of
/// 10 ms, and than a user waits. No lease is longer.
pub const STARVED: Duration = Duration::from_secs(5);
/// Time over which the rate of a flow is measured.
const MEASURE: Duration = Duration::from_ms(2);
/// The longest slice that a controller may give.
pub const LENGTH_MAX: Duration = Duration(SLICE_MAX.0 * WEIGHT_MAX as u64);
/// Slices of unknown flows that wait to be given back.
const RETURNS_MAX: usize = 16;

/// Settings of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Its node.
    pub node: Node,
    /// The rate of its link in kb/s.
    pub rate_kbps: u32,
    /// The controller, and its standby.
    pub controllers: Vec<MacAddress>,
    /// Silence of the controller after which all frames pass, until the controller says another one.
    pub lease: Duration,
    /// Time for which a queue is empty before its slice is given back; none without work conservation.
    pub hysteresis: Option<Duration>,
    /// The rate in kb/s up to which a flow is small; 0 if none is.
    pub small_kbps: u32,
    /// Entries of a report.
    pub entries: usize,
    /// Destinations that it keeps in mind.
    pub flows: usize,
    /// How late a frame may be sent and still count as on time: the flow catches up with its rate by that much.
    pub late: Duration,
    /// A random number.
    pub nonce: u32,
}

/// Whether a frame may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Now; it is counted as sent.
    Now,
    /// At this time.
    At(Instant),
    /// When a directive comes.
    Wait,
}

/// What a queue may send that its driver opens and shuts, without seeing its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valve {
    /// At this rate in kb/s, until this time. With an end and no rate it is a timeslice.
    Open {
        /// The highest rate; none for that of the link.
        rate_kbps: Option<u32>,
        /// The end; [`Instant::MAX`] until something changes.
        until: Instant,
    },
    /// As a small flow: bursts of [`SMALL_BURST_BYTES`] at the rate of small flows. Frames that wait then are those of a larger
    /// flow.
    Small,
    /// Nothing.
    Shut,
}

/// Counts of a coordinator. Those of refused messages name their reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorCounters {
    /// Slices and rates received.
    pub directives: u64,
    /// Slices given back.
    pub returned: u64,
    /// Reports sent, repetitions included.
    pub reports: u64,
    /// Frames of small flows.
    pub small: u64,
    /// Frames that passed because no controller was there.
    pub uncontrolled: u64,
    /// Flows that passed because the controller served them too late.
    pub starved: u64,
    /// Messages from an address that is no controller.
    pub strangers: u64,
    /// Messages with another token or epoch.
    pub forged: u64,
    /// Messages that were repeated or came late.
    pub stale: u64,
    /// Messages whose clock is behind that of an earlier one.
    pub backwards: u64,
    /// Directives that were over when they came.
    pub expired: u64,
    /// Directives for flows without frames.
    pub unknown: u64,
    /// Directives for longer than a slice may be, which were cut.
    pub too_long: u64,
    /// Flows that the controller had no room for.
    pub refused: u64,
    /// Messages that only coordinators send.
    pub misdirected: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    until: Instant,
    rate_kbps: u32,
    next_at: Instant,
    directive: u32,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Whether frames wait.
    is_backlogged: bool,
    /// What the controller has acknowledged.
    reported: Change,
    slice: Option<Slice>,
    /// When the slice is given back; [`Instant::MAX`] while frames come.
    idle_at: Instant,
    /// When a small flow may send a whole burst again.
    small_at: Instant,
    /// Since when its first frame waits.
    waits_since: Instant,
    /// Until when it may send without directives.
    free_until: Instant,
    /// With coordination on demand: whether the controller holds it.
    is_held: bool,
    measured_since: Instant,
    measured_bytes: u64,
    measured_kbps: u32,
}

impl Flow {
    fn new(now: Instant) -> Flow {
        Flow {
            is_backlogged: false,
            reported: Change::Idle,
            slice: None,
            idle_at: Instant::MAX,
            small_at: Instant::ZERO,
            waits_since: Instant::MAX,
            free_until: Instant::ZERO,
            is_held: false,
            measured_since: now,
            measured_bytes: 0,
            measured_kbps: 0,
        }
    }

    /// What the controller should know.
    fn state(&self) -> Change {
        if self.is_backlogged || self.slice.is_some() {
            Change::Backlogged
        } else if self.measured_kbps > 0 {
            Change::Measured { rate_kbps: self.measured_kbps }
        } else {
            Change::Idle
        }
    }

    /// Whether it can be forgotten.
    fn is_over(&self, now: Instant) -> bool {
        self.state() == Change::Idle
            && self.reported == Change::Idle
            && self.small_at <= now
            && self.free_until <= now
            && now.since(self.measured_since) > MEASURE
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Session {
    epoch: u16,
    token: u32,
    controller: MacAddress,
    on_demand: bool,
    /// Of the last message.
    sequence: u32,
    clock_ns: u64,
    /// The smallest difference of the clocks in ns, and when it was seen.
    offset_ns: i64,
    offset_at: Instant,
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// The receiver.
    pub to: MacAddress,
    /// The head.
    pub head: Head,
    /// The message.
    pub body: Body<'a>,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Any but a report.
    Message(Message<'static>),
    /// A report.
    Report(&'a [Entry]),
}

impl Outgoing<'_> {
    /// The frame, from this address.
    pub fn emit(&self, source: MacAddress) -> Frame {
        match self.body {
            Body::Message(message) => Frame::emit(self.to, source, &self.head, &message),
            Body::Report(entries) => Frame::report(self.to, source, &self.head, entries),
        }
    }
}

/// A local coordinator.
#[derive(Clone, Debug)]
pub struct Coordinator {
    config: CoordinatorConfig,
    lease: Duration,
    session: Option<Session>,
    /// When a controller was heard last; at first when the coordinator started.
    heard_at: Instant,
    flows: BTreeMap<Node, Flow>,
    sequence: u32,
    /// The report that is not acknowledged: its entries, and the sequence numbers of its first and last sending.
    entries: Vec<Entry>,
    report: (u32, u32),
    /// When the report is repeated; [`Instant::MAX`] if none is under way.
    repeats_at: Instant,
    /// Joins without an answer, and when the next is due.
    joins: u32,
    joins_at: Instant,
    alive_at: Instant,
    returns: VecDeque<(Node, u32)>,
    /// Whether a flow may differ from its report.
    is_dirty: bool,
    /// Whether it is to tell the controller that it leaves, and whether it has.
    leaves: bool,
    has_left: bool,
    /// No timer expires before.
    timeout: Instant,
    /// The highest epoch of a controller so far.
    epoch: Option<u16>,
    counters: CoordinatorCounters,
}

impl Coordinator {
    /// A coordinator that has not joined.
    ///
    /// # Panics
    /// Without a controller, or with reports of no entry or more than a frame takes.
    pub fn new(now: Instant, config: CoordinatorConfig) -> Coordinator {
        assert!(!config.controllers.is_empty(), "a coordinator has a controller");
        assert!((1..=ENTRIES_MAX).contains(&config.entries), "a report has 1 to {ENTRIES_MAX} entries");
        Coordinator {
            lease: config.lease,
            session: None,
            heard_at: now,
            flows: BTreeMap::new(),
            sequence: 0,
            entries: Vec::with_capacity(config.entries),
            report: (0, 0),
            repeats_at: Instant::MAX,
            joins: 0,
            // Nodes that start together do not join together.
            joins_at: now + Duration(u64::from(config.nonce) % REPEAT.0),
            alive_at: Instant::MAX,
            returns: VecDeque::with_capacity(RETURNS_MAX),
            is_dirty: false,
            leaves: false,
            has_left: false,
            timeout: now,
            epoch: None,
            counters: CoordinatorCounters::default(),
            config,
        }
    }

    /// The counters.
    pub fn counters(&self) -> &CoordinatorCounters {
        &self.counters
    }
    /// Whether it has joined a controller.
    pub fn is_member(&self) -> bool {
        self.session.is_some()
    }
    /// Whether this is the address of one of its controllers.
    pub fn has_controller(&self, mac: MacAddress) -> bool {
        self.config.controllers.contains(&mac)
    }
    /// Whether all frames pass because no controller is heard, or because it has left.
    pub fn is_uncontrolled(&self, now: Instant) -> bool {
        self.has_left || now.since(self.heard_at) > self.lease
    }

    // Frames.

    /// Whether the first waiting frame to a node may leave. `bytes` is its length on the wire.
    pub fn permit(&mut self, now: Instant, to: Node, bytes: u64) -> Permit {
        if self.is_uncontrolled(now) {
            self.counters.uncontrolled += 1;
            return Permit::Now;
        }
        let on_demand = self.session.is_some_and(|session| session.on_demand);
        let (small, link, late) = (self.config.small_kbps, self.config.rate_kbps, self.config.late);
        let Some(flow) = self.flow(now, to) else { return Permit::Wait };
        flow.idle_at = Instant::MAX;
        if flow.free_until > now {
            flow.is_backlogged = false;
            return Permit::Now;
        }
        if on_demand && !flow.is_held {
            if flow.measure(now, bytes, small) {
                self.is_dirty = true;
            }
            return Permit::Now;
        }
        if let Some(slice) = &mut flow.slice {
            let time = time_for(bytes, if slice.rate_kbps == 0 { link } else { slice.rate_kbps });
            if slice.next_at > now {
                flow.is_backlogged = true;
                return if slice.next_at + time <= slice.until { Permit::At(slice.next_at) } else { Permit::Wait };
            }
            if now + time <= slice.until {
                slice.next_at = slice.next_at.max(Instant(now.0.saturating_sub(late.0))) + time;
                flow.waits_since = Instant::MAX;
                return Permit::Now;
            }
        } else if small > 0 && !flow.is_backlogged && flow.reported == Change::Idle {
            let burst = time_for(SMALL_BURST_BYTES, small);
            let time = time_for(bytes, small);
            if flow.small_at.since(now) + time <= burst {
                flow.small_at = flow.small_at.max(now) + time;
                self.counters.small += 1;
                return Permit::Now;
            }
        }
        if !flow.is_backlogged || flow.waits_since == Instant::MAX {
            flow.is_backlogged = true;
            flow.waits_since = flow.waits_since.min(now);
            let starved = flow.waits_since + STARVED;
            self.is_dirty = true;
            self.wake(starved);
        }
        Permit::Wait
    }

    /// The last waiting frame to a node has left.
    pub fn handle_empty(&mut self, now: Instant, to: Node) {
        let hysteresis = self.config.hysteresis;
        let Some(flow) = self.flows.get_mut(&to) else { return };
        flow.waits_since = Instant::MAX;
        if !flow.is_backlogged && flow.slice.is_none() {
            return;
        }
        flow.is_backlogged = false;
        match (flow.slice, hysteresis) {
            (Some(_), Some(hysteresis)) => {
                flow.idle_at = now + hysteresis;
                self.wake(now + hysteresis);
            }
            (Some(_), None) => {}
            (None, _) => self.is_dirty = true,
        }
    }

    /// What the queue to a node may send, where the driver sees no frames: `waiting` bytes wait in it, and `sent` bytes have left it
    /// since the last call. Call this regularly, and after each message.
    pub fn valve(&mut self, now: Instant, to: Node, waiting: u64, sent: u64) -> Valve {
        let link = self.config.rate_kbps;
        let free = Valve::Open { rate_kbps: None, until: Instant::MAX };
        if self.is_uncontrolled(now) {
            self.counters.uncontrolled += u64::from(sent > 0);
            return free;
        }
        let on_demand = self.session.is_some_and(|session| session.on_demand);
        let (small, hysteresis) = (self.config.small_kbps, self.config.hysteresis);
        let is_active = waiting > 0 || sent > 0;
        let Some(flow) = self.flow(now, to) else { return Valve::Shut };
        if flow.free_until > now {
            (flow.is_backlogged, flow.waits_since) = (false, Instant::MAX);
            return Valve::Open { rate_kbps: Some(link), until: flow.free_until };
        }
        if on_demand && !flow.is_held {
            if flow.measure(now, sent, small) {
                self.is_dirty = true;
            }
            return free;
        }
        if let Some(slice) = flow.slice.filter(|slice| slice.until > now) {
            flow.is_backlogged = waiting > 0;
            if sent > 0 || waiting == 0 {
                flow.waits_since = Instant::MAX;
            }
            match hysteresis {
                Some(_) if waiting > 0 => flow.idle_at = Instant::MAX,
                // A queue of the kernel that sends at its rate is mostly empty.
                Some(hysteresis) if is_active || flow.idle_at == Instant::MAX => {
                    flow.idle_at = now + hysteresis;
                    self.timeout = self.timeout.min(now + hysteresis);
                }
                _ => {}
            }
            let rate_kbps = (slice.rate_kbps > 0).then_some(slice.rate_kbps);
            return Valve::Open { rate_kbps, until: slice.until };
        }
        if waiting == 0 {
            let valve = if small > 0 && flow.reported == Change::Idle { Valve::Small } else { Valve::Shut };
            if flow.is_backlogged {
                (flow.is_backlogged, flow.waits_since) = (false, Instant::MAX);
                self.is_dirty = true;
            }
            return valve;
        }
        if !flow.is_backlogged || flow.waits_since == Instant::MAX {
            flow.is_backlogged = true;
            flow.waits_since = flow.waits_since.min(now);
            let starved = flow.waits_since + STARVED;
            self.is_dirty = true;
            self.wake(starved);
        }
        Valve::Shut
    }

    /// The flow to a node; none if there are too many and none of them is over.
    fn flow(&mut self, now: Instant, to: Node) -> Option<&mut Flow> {
        if !self.flows.contains_key(&to) {
            if self.flows.len() >= self.config.flows {
                self.flows.retain(|_, flow| !flow.is_over(now));
                if self.flows.len() >= self.config.flows {
                    return None;
                }
            }
            self.flows.insert(to, Flow::new(now));
        }
        self.flows.get_mut(&to)
    }

    fn wake(&mut self, at: Instant) {
        self.timeout = self.timeout.min(at);
    }

    // Messages.

    /// The node shuts down: the controller is told, and from now on all frames pass.
    pub fn leave(&mut self) {
        self.leaves = self.session.is_some();
        self.has_left = true;
    }

    /// Takes a message.
    pub fn handle(&mut self, now: Instant, from: MacAddress, head: &Head, message: &Message<'_>) {
        if !self.config.controllers.contains(&from) {
            self.counters.strangers += 1;
            return;
        }
        if let Message::Welcome { node, lease_us, nonce, on_demand } = *message {
            return self.welcome(now, from, head, (node, nonce), lease_us, on_demand);
        }
        let Some(session) = self
            .session
            .as_mut()
            .filter(|session| session.controller == from && session.token == head.token && session.epoch == head.epoch)
        else {
            self.counters.forged += 1;
            return;
        };
        if !is_later(head.sequence, session.sequence) {
            self.counters.stale += 1;
            return;
        }
        if head.clock_ns < session.clock_ns {
            self.counters.backwards += 1;
            return;
        }
        (session.sequence, session.clock_ns) = (head.sequence, head.clock_ns);
        let offset_ns = session.align(now, head.clock_ns);
        (self.heard_at, self.joins, self.joins_at) = (now, 0, Instant::MAX);
        match *message {
            Message::Directive { destination, instead_of, rate_kbps, length_ns } => {
                if instead_of != NOWHERE
                    && let Some(flow) = self.flows.get_mut(&instead_of)
                {
                    flow.slice = None;
                    self.is_dirty = true;
                }
                let ends_ns = (head.clock_ns as i64).saturating_add(offset_ns).saturating_add(length_ns.into());
                self.directive(now, destination, rate_kbps, (length_ns, ends_ns), head.sequence);
            }
            Message::Free { destination } => {
                if let Some(flow) = self.flows.get_mut(&destination) {
                    (flow.is_held, flow.slice, flow.is_backlogged) = (false, None, false);
                    (flow.reported, flow.waits_since, flow.idle_at) = (Change::Idle, Instant::MAX, Instant::MAX);
                    self.is_dirty = true;
                }
            }
            Message::Acknowledge { report, refused } => {
                // All repetitions have the same entries. Where a round trip takes longer than a repetition waits, only
                // earlier ones are ever acknowledged in time.
                let (first, last) = self.report;
                let is_ours = !is_later(first, report) && !is_later(report, last);
                if is_ours && self.repeats_at != Instant::MAX {
                    self.acknowledged(refused);
                } else {
                    self.counters.stale += 1;
                }
            }
            Message::Alive { .. } => {}
            Message::Join { .. }
            | Message::Welcome { .. }
            | Message::Leave
            | Message::Report(_)
            | Message::Return { .. }
            | Message::Load { .. }
            | Message::Windows { .. } => self.counters.misdirected += 1,
        }
    }

    fn welcome(
        &mut self,
        now: Instant,
        from: MacAddress,
        head: &Head,
        (node, nonce): (Node, u32),
        lease_us: u32,
        on_demand: bool,
    ) {
        if node != self.config.node || nonce != self.config.nonce {
            self.counters.forged += 1;
            return;
        }
        // A controller that was started again after a long time may count from anywhere. While there is no other, it is taken.
        if !self.is_uncontrolled(now) && self.epoch.is_some_and(|epoch| is_later_epoch(epoch, head.epoch)) {
            self.counters.stale += 1;
            return;
        }
        if self.session.is_some_and(|session| session.token == head.token) {
            // An answer to a join that was repeated.
            (self.heard_at, self.joins, self.joins_at) = (now, 0, Instant::MAX);
            return;
        }
        let clock_ns = head.clock_ns;
        self.session = Some(Session {
            epoch: head.epoch,
            token: head.token,
            controller: from,
            on_demand,
            sequence: head.sequence,
            clock_ns,
            offset_ns: offset(now, clock_ns),
            offset_at: now,
        });
        self.epoch = Some(head.epoch);
        self.heard_at = now;
        self.lease = Duration::from_us(lease_us.into()).clamp(SLICE_MIN, STARVED);
        (self.joins, self.joins_at) = (0, Instant::MAX);
        self.alive_at = now + Duration(self.lease.0 / ALIVES);
        // The controller knows nothing: every flow is reported anew.
        (self.repeats_at, self.is_dirty) = (Instant::MAX, true);
        self.entries.clear();
        self.returns.clear();
        for flow in self.flows.values_mut() {
            (flow.reported, flow.slice, flow.idle_at, flow.is_held) = (Change::Idle, None, Instant::MAX, false);
        }
        self.timeout = now;
    }

    fn directive(&mut self, now: Instant, to: Node, rate_kbps: u32, (length_ns, ends_ns): (u32, i64), directive: u32) {
        let hysteresis = self.config.hysteresis;
        let Some(flow) = self.flows.get_mut(&to) else {
            self.counters.unknown += 1;
            if length_ns > 0 && self.returns.len() < RETURNS_MAX {
                self.returns.push_back((to, directive));
            }
            return;
        };
        if length_ns == 0 {
            (flow.is_held, flow.slice, flow.measured_kbps) = (true, None, 0);
            self.is_dirty = true;
            return;
        }
        let latest = now + LENGTH_MAX;
        let mut until = Instant(u64::try_from(ends_ns).unwrap_or(0).saturating_mul(1_000));
        if until <= now {
            self.counters.expired += 1;
            return;
        }
        if until > latest {
            self.counters.too_long += 1;
            until = latest;
        }
        let next_at = flow.slice.map_or(now, |slice| slice.next_at);
        let rate_kbps = if rate_kbps == 0 { 0 } else { rate_kbps.min(self.config.rate_kbps) };
        flow.slice = Some(Slice { until, rate_kbps, next_at, directive });
        (flow.is_held, flow.idle_at) = (true, Instant::MAX);
        self.counters.directives += 1;
        let mut wake = until;
        if !flow.is_backlogged
            && let Some(hysteresis) = hysteresis
        {
            flow.idle_at = now + hysteresis;
            wake = wake.min(flow.idle_at);
        }
        self.wake(wake);
    }

    fn acknowledged(&mut self, refused: u32) {
        self.repeats_at = Instant::MAX;
        self.is_dirty = true;
        self.counters.refused += u64::from(refused);
        for entry in self.entries.drain(..) {
            if let Some(flow) = self.flows.get_mut(&entry.destination) {
                flow.reported = entry.change;
            }
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing<'_>> {
        let clock_ns = now.0 / 1_000;
        if self.joins_at <= now && !self.has_left {
            // The controllers in turn.
            let to = self.config.controllers[self.joins as usize % self.config.controllers.len()];
            let pause = if self.is_uncontrolled(now) || self.session.is_none() {
                REPEAT.saturating_mul(1 << self.joins.min(16)).min(REPEAT_MAX)
            } else {
                // Soon enough that a standby is found before the lease is over.
                REPEAT.max(Duration(self.lease.0 / SEARCHES))
            };
            let longer = mix64(u64::from(self.config.nonce) << 32 | u64::from(self.joins)) % pause.0;
            self.joins_at = now + Duration(pause.0 / 2 + longer);
            self.joins = self.joins.saturating_add(1);
            self.wake(self.joins_at);
            let CoordinatorConfig { node, rate_kbps, nonce, .. } = self.config;
            let head = Head { epoch: 0, sequence: self.next(), token: 0, clock_ns };
            return Some(Outgoing { to, head, body: Body::Message(Message::Join { node, rate_kbps, nonce }) });
        }
        let session = self.session?;
        let head =
            Head { epoch: session.epoch, sequence: self.sequence.wrapping_add(1), token: session.token, clock_ns };
        let message = |message| Some(Outgoing { to: session.controller, head, body: Body::Message(message) });
        if core::mem::take(&mut self.leaves) {
            self.next();
            (self.session, self.joins_at) = (None, Instant::MAX);
            return message(Message::Leave);
        }
        if let Some((destination, directive)) = self.returns.pop_front() {
            self.next();
            self.counters.returned += 1;
            return message(Message::Return { destination, directive });
        }
        if self.repeats_at == Instant::MAX && self.is_dirty {
            self.gather();
        }
        if !self.entries.is_empty() && (self.repeats_at == Instant::MAX || self.repeats_at <= now) {
            let number = self.next();
            let first = if self.repeats_at == Instant::MAX { number } else { self.report.0 };
            self.report = (first, number);
            self.repeats_at = now + REPEAT;
            self.alive_at = now + Duration(self.lease.0 / ALIVES);
            self.wake(self.repeats_at);
            self.counters.reports += 1;
            return Some(Outgoing { to: session.controller, head, body: Body::Report(&self.entries) });
        }
        if self.alive_at <= now {
            self.next();
            self.alive_at = now + Duration(self.lease.0 / ALIVES);
            self.wake(self.alive_at);
            return message(Message::Alive { is_controller: false });
        }
        None
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Collects flows that differ from what the controller knows.
    fn gather(&mut self) {
        self.is_dirty = false;
        for (&destination, flow) in &mut self.flows {
            let change = flow.state();
            if change == flow.reported {
                continue;
            }
            if self.entries.len() == self.config.entries {
                self.is_dirty = true;
                return;
            }
            self.entries.push(Entry { destination, change });
        }
    }

    // Time.

    /// A time at which, or before which, something expires.
    pub fn poll_timeout(&self) -> Instant {
        self.timeout
    }

    /// Slices end or are given back, reports are repeated, controllers are silent.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timeout > now {
            return;
        }
        let mut next = Instant::MAX;
        if self.session.is_some() {
            let suspicious_at = self.heard_at + Duration(self.lease.0 / 8 * SUSPICION);
            if now < suspicious_at {
                next = suspicious_at;
            } else if self.joins_at == Instant::MAX {
                self.joins_at = now;
            }
        }
        // At those that have come, poll_transmit has a message and sets the next.
        next =
            [self.repeats_at, self.joins_at, self.alive_at].into_iter().filter(|&at| at > now).fold(next, Instant::min);
        for (&to, flow) in &mut self.flows {
            if let Some(slice) = flow.slice {
                if flow.idle_at <= now && slice.until > now {
                    flow.slice = None;
                    flow.idle_at = Instant::MAX;
                    flow.reported = Change::Idle;
                    self.returns.push_back((to, slice.directive));
                } else if slice.until <= now {
                    flow.slice = None;
                    flow.idle_at = Instant::MAX;
                    self.is_dirty = true;
                } else {
                    next = next.min(slice.until).min(flow.idle_at);
                }
            }
            if flow.measured_kbps > 0 && now.since(flow.measured_since) > MEASURE.saturating_mul(4) {
                flow.measured_kbps = 0;
                self.is_dirty = true;
            } else if flow.measured_kbps > 0 {
                next = next.min(flow.measured_since + MEASURE.saturating_mul(5));
            }
            if flow.waits_since != Instant::MAX {
                let starved = flow.waits_since + STARVED;
                if starved <= now {
                    (flow.waits_since, flow.free_until) = (now, now + self.lease);
                    self.counters.starved += 1;
                } else {
                    next = next.min(starved);
                }
            }
        }
        self.timeout = next;
    }
}

/// For tests.
#[cfg(test)]
impl Coordinator {
    /// The same without work conservation.
    pub(super) fn without_hysteresis(&self) -> Coordinator {
        let mut other = self.clone();
        other.config.hysteresis = None;
        other
    }

    /// The same with small flows.
    pub(super) fn with_small(&self, kbps: u32) -> Coordinator {
        let mut other = self.clone();
        other.config.small_kbps = kbps;
        other
    }

    /// The head of its last message in its session.
    pub(super) fn head(&self) -> Head {
        let session = self.session.expect("it has joined");
        Head { epoch: session.epoch, sequence: self.sequence, token: session.token, clock_ns: 0 }
    }

    /// The head of the last message that it took.
    pub(super) fn heard(&self) -> Head {
        let Session { epoch, sequence, token, clock_ns, .. } = self.session.expect("it has joined");
        Head { epoch, sequence, token, clock_ns }
    }
}

impl Flow {
    /// Counts a frame of a flow that sends freely; whether its rate is news.
    fn measure(&mut self, now: Instant, bytes: u64, large_kbps: u32) -> bool {
        self.measured_bytes += bytes;
        let time = now.since(self.measured_since);
        if time < MEASURE {
            return false;
        }
        let kbps = u128::from(self.measured_bytes) * 8_000_000_000 / u128::from(time.0.max(1));
        let kbps = u32::try_from(kbps).unwrap_or(u32::MAX);
        (self.measured_since, self.measured_bytes) = (now, 0);
        let before = self.measured_kbps;
        self.measured_kbps = if kbps > large_kbps { kbps } else { 0 };
        // Changes of less than an eighth are noise.
        let differs = self.measured_kbps.abs_diff(before) > before / 8;
        if !differs {
            self.measured_kbps = before;
        }
        differs
    }
}

impl Session {
    /// Takes the clock of a message; the difference between the clocks without the time that messages wait on their way.
    fn align(&mut self, now: Instant, clock_ns: u64) -> i64 {
        let seen = offset(now, clock_ns);
        let drift = (now.since(self.offset_at).0 / 1_000 / DRIFT) as i64;
        self.offset_ns = seen.min(self.offset_ns.saturating_add(drift));
        self.offset_at = now;
        self.offset_ns
    }
}

/// How far a clock is ahead of another one, in nanoseconds. A clock may be a lie.
fn offset(now: Instant, clock_ns: u64) -> i64 {
    ((now.0 / 1_000) as i64).saturating_sub(clock_ns as i64)
}

/// The time of so many bytes at a rate in kb/s: a bit at 1 kb/s takes 10^9 ps.
fn time_for(bytes: u64, kbps: u32) -> Duration {
    Duration((bytes * 8_000_000_000).div_ceil(u64::from(kbps.max(1))))
}
