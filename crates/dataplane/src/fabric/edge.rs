//! The edge between the fabric and a real server: the server's adapter.
//! Frames wait here if the server sends faster than its link, or the link delivers faster than the server receives. Each
//! direction has a gate, which its receiver pauses by PFC, and a pause sender towards its sender. The pause sender passes the
//! receiver's pauses on, and sends its own when the buffer fills. So a pause reaches a server at once, as in the simulated
//! world. Frames that a slow server still sends afterwards wait here instead of in a switch.
//! A watchdog gives up on a server that pauses a class forever. Frames for it in that class are dropped by name, and the rest
//! of the fabric goes on.

use sluicenet_node::pool::{Fifo, Handle, Pool};
use sluicenet_proto::cee::pfc::{Gate, Signal, Watermarks};
use sluicenet_proto::cee::watchdog::{Change, Watchdog};
use sluicenet_proto::frame::{Frame, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::time::{Duration, Instant};

use super::frame::{Descriptor, pause_bytes};
use super::ledger::{EdgeCounters, PauseLog};
use super::outside::Outside;
use sluicenet_node::link::NodeId;
use sluicenet_wire::ethernet::MacAddress;

/// Settings of an edge.
#[derive(Clone, Copy, Debug)]
pub struct EdgeConfig {
    /// Priorities under flow control on the link; pauses of others are ignored.
    pub lossless: PrioritySet,
    /// Priorities that the edge pauses when the buffer for frames from the server is full; frames of other priorities are
    /// dropped.
    pub stops_server: PrioritySet,
    /// Watermarks of the buffer for frames from the server, for each priority.
    pub up: Watermarks,
    /// Watermarks of the buffer for frames to the server, for each priority.
    pub down: Watermarks,
    /// Requested pause time, in quanta.
    pub quanta: u16,
    /// Time of one quantum on the link.
    pub quantum: Duration,
    /// A class that the server pauses, and in which no frame moves for this time, is in a storm.
    pub detection_time: Duration,
    /// A storm is over when no pause has come for this time.
    pub restoration_time: Duration,
}

/// The pauses for the sender of one direction: its receiver's, and those of the buffer in between.
#[derive(Clone, Debug, Default)]
struct PauseSender {
    own: Signal,
    /// The receiver's pauses that the sender has not been sent yet.
    relayed: Pause,
}

impl PauseSender {
    /// The receiver is given up: its pauses no longer hold the sender.
    fn let_go(&mut self, p: Priority) {
        if !self.own.stopped().contains(p) {
            self.relayed.classes.insert(p);
            self.relayed.quanta[p as usize] = 0;
        }
    }

    /// The receiver sent a pause.
    fn pass_on(&mut self, pause: &Pause) {
        for p in pause.classes.iter() {
            // A sender that is paused because of the buffer resumes only when the buffer has room; a shorter pause of the
            // receiver would release it too early.
            if !self.own.stopped().contains(p) {
                self.relayed.classes.insert(p);
                self.relayed.quanta[p as usize] = pause.quanta[p as usize];
            }
        }
    }

    fn is_pending(&self) -> bool {
        self.own.is_pending() || !self.relayed.classes.is_empty()
    }

    /// The pending pause frame; `held` are the classes that the receiver pauses.
    fn poll(&mut self, now: Instant, held: PrioritySet, quanta: u16, quantum: Duration) -> Option<Pause> {
        let mut all = core::mem::take(&mut self.relayed);
        if let Some(own) = self.own.poll(now, quanta, quantum.saturating_mul(u64::from(quanta))) {
            for p in own.classes.iter() {
                let i = p as usize;
                // A release by the buffer is not passed on while the receiver still pauses.
                if own.quanta[i] > 0 || !held.contains(p) {
                    all.quanta[i] =
                        if all.classes.contains(p) { all.quanta[i].max(own.quanta[i]) } else { own.quanta[i] };
                    all.classes.insert(p);
                }
            }
        }
        (!all.classes.is_empty()).then_some(all)
    }
}

/// One direction through an edge.
#[derive(Clone, Debug)]
pub(super) struct EdgeDirection {
    lists: [Fifo; PRIORITIES],
    bytes: [u32; PRIORITIES],
    ready: PrioritySet,
    last: Priority,
    frames: u64,
    max_bytes: u32,
    gate: Gate,
    pause_sender: PauseSender,
    marks: Watermarks,
    /// Priorities whose sender is paused when the buffer is full.
    stops: PrioritySet,
    /// Priorities that the receiver may pause.
    may_hold: PrioritySet,
    full: DropReason,
    quanta: u16,
    quantum: Duration,
    /// The watchdog over a receiver that is a server.
    watchdog: Option<Watchdog>,
    pub(super) drops: Drops,
}

impl EdgeDirection {
    fn new(c: &EdgeConfig, marks: Watermarks, stops: PrioritySet, full: DropReason) -> EdgeDirection {
        EdgeDirection {
            lists: Default::default(),
            bytes: [0; PRIORITIES],
            ready: PrioritySet::NONE,
            last: 0,
            frames: 0,
            max_bytes: 0,
            gate: Gate::default(),
            pause_sender: PauseSender::default(),
            marks,
            stops,
            may_hold: c.lossless,
            full,
            quanta: c.quanta,
            quantum: c.quantum,
            watchdog: None,
            drops: Drops::default(),
        }
    }

    /// Its frames.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }
    /// Whether a frame can be sent.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.0 & !self.gate.paused().0 != 0
    }
    /// Whether a pause for its sender is pending.
    pub(super) fn owes_pause(&self) -> bool {
        self.pause_sender.is_pending()
    }

    fn storms(&self) -> PrioritySet {
        self.watchdog.as_ref().map_or(PrioritySet::NONE, Watchdog::storms)
    }

    /// Takes a frame in, or drops it by name.
    pub(super) fn accept(&mut self, now: Instant, at: Handle, pool: &mut Pool<Descriptor>) {
        let frame = pool.frame(at);
        let (p, len) = (frame.priority(), frame.len());
        let i = p as usize;
        let bytes = self.bytes[i].saturating_add(len);
        if self.storms().contains(p) {
            self.drops.count(DropReason::Watchdog, u64::from(len));
            pool.release(at);
            return;
        }
        if bytes > self.marks.capacity {
            let reason = if self.stops.contains(p) { DropReason::HeadroomExceeded } else { self.full };
            self.drops.count(reason, u64::from(len));
            pool.release(at);
            return;
        }
        pool.push(&mut self.lists[i], at, 0);
        self.ready.insert(p);
        self.frames += 1;
        self.bytes[i] = bytes;
        self.max_bytes = self.max_bytes.max(bytes);
        if self.stops.contains(p) {
            self.pause_sender.own.on_rise(p, bytes, &self.marks);
        }
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.on_waiting(now, p);
        }
    }

    /// The next frame; [`EdgeDirection::take`] takes it.
    pub(super) fn front(&self) -> Option<Handle> {
        let p = PrioritySet(self.ready.0 & !self.gate.paused().0).next_after(self.last)?;
        self.lists[p as usize].front()
    }

    /// Takes the frame that [`EdgeDirection::front`] showed.
    pub(super) fn take(&mut self, now: Instant, pool: &mut Pool<Descriptor>) -> Option<Handle> {
        let p = PrioritySet(self.ready.0 & !self.gate.paused().0).next_after(self.last)?;
        let at = self.pop(p, pool)?;
        self.last = p;
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.on_sent(now, p, self.ready.contains(p));
        }
        Some(at)
    }

    fn pop(&mut self, p: Priority, pool: &mut Pool<Descriptor>) -> Option<Handle> {
        let i = p as usize;
        let (at, _) = pool.pop(&mut self.lists[i])?;
        self.frames -= 1;
        self.bytes[i] -= pool.frame(at).len();
        if self.lists[i].is_empty() {
            self.ready.remove(p);
        }
        if self.stops.contains(p) {
            self.pause_sender.own.on_fall(p, self.bytes[i], &self.marks);
        }
        Some(at)
    }

    /// The receiver pauses or resumes classes.
    pub(super) fn on_pause(&mut self, now: Instant, pause: &Pause) {
        let mut pause = *pause;
        pause.classes.0 &= self.may_hold.0;
        self.gate.receive(now, &pause, self.quantum);
        if let Some(watchdog) = &mut self.watchdog {
            let stops = pause.classes.iter().filter(|&p| pause.quanta[p as usize] > 0);
            watchdog.on_pause(now, stops.collect());
            // The pauses of a receiver that was given up are not passed on.
            pause.classes.0 &= !watchdog.storms().0;
        }
        self.pause_sender.pass_on(&pause);
    }

    /// The pause for the sender.
    pub(super) fn poll_pause(&mut self, now: Instant) -> Option<Pause> {
        self.pause_sender.poll(now, self.gate.paused(), self.quanta, self.quantum)
    }

    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<Descriptor>) {
        self.gate.handle_timeout(now);
        self.pause_sender.own.handle_timeout(now);
        while let Some((p, change)) = self.watchdog.as_mut().and_then(|w| w.handle_timeout(now, self.gate.paused())) {
            if change == Change::Detected {
                while let Some(at) = self.pop(p, pool) {
                    self.drops.count(DropReason::Watchdog, u64::from(pool.frame(at).len()));
                    pool.release(at);
                }
                self.pause_sender.let_go(p);
            }
        }
    }

    fn poll_timeout(&self) -> Instant {
        let never = Instant::MAX;
        let watchdog = self.watchdog.as_ref().and_then(|w| w.poll_timeout(self.gate.paused())).unwrap_or(never);
        watchdog
            .min(self.gate.poll_timeout().unwrap_or(never))
            .min(self.pause_sender.own.poll_timeout().unwrap_or(never))
    }
}

/// An edge.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    /// From the server to the fabric.
    pub up: EdgeDirection,
    /// From the fabric to the server.
    pub down: EdgeDirection,
    /// Whether the server had no room for the last frame offered.
    pub blocked: bool,
    pub counters: EdgeCounters,
    /// Its own address, from which it sends pause frames.
    address: MacAddress,
    /// A pause frame that found no room.
    owed: Option<Pause>,
    pause_log: PauseLog,
}

impl Edge {
    pub(super) fn new(c: &EdgeConfig, address: MacAddress) -> Edge {
        Edge {
            up: EdgeDirection::new(c, c.up, c.stops_server, DropReason::AdapterTx),
            down: EdgeDirection {
                watchdog: Some(Watchdog::new(c.detection_time, c.restoration_time)),
                ..EdgeDirection::new(c, c.down, c.lossless, DropReason::AdapterRx)
            },
            blocked: false,
            counters: EdgeCounters::default(),
            address,
            owed: None,
            pause_log: PauseLog::default(),
        }
    }

    /// The server sent a frame of priority `p`.
    pub(super) fn hears(&mut self, now: Instant, p: Priority) {
        self.counters.response = self.counters.response.max(self.pause_log.response_time(now, p));
    }

    /// The counters.
    pub(super) fn counters(&self) -> EdgeCounters {
        EdgeCounters {
            stops: self.up.gate.stops(),
            own_stops: self.up.pause_sender.own.stops(),
            server_stops: self.down.gate.stops(),
            own_server_stops: self.down.pause_sender.own.stops(),
            storms: self.down.watchdog.as_ref().map_or((0, 0), Watchdog::counts),
            max_bytes: (self.up.max_bytes, self.down.max_bytes),
            ..self.counters
        }
    }

    /// Offers the server its waiting pauses and frames, pauses first, until it has no room; `bytes` are those of all frames.
    pub(super) fn hand_out(
        &mut self,
        now: Instant,
        node: NodeId,
        pool: &mut Pool<Descriptor>,
        bytes: &[Vec<u8>],
        outside: &mut impl Outside,
    ) {
        while !self.blocked {
            // A pause that found no room goes first: the next one may revoke it.
            if self.owed.is_none() && self.up.owes_pause() {
                self.owed = self.up.poll_pause(now);
            }
            if let Some(pause) = &self.owed {
                self.blocked = !outside.send(now, node, &pause_bytes(pause, self.address));
                if !self.blocked {
                    self.counters.pauses_sent += 1;
                    self.pause_log.pause(now, pause, self.up.quantum);
                    self.owed = None;
                }
                continue;
            }
            let Some(front) = self.down.front() else { break };
            let frame = &bytes[front.index() as usize];
            self.blocked = !outside.send(now, node, frame);
            if !self.blocked {
                self.counters.delivered.0 += 1;
                self.counters.delivered.1 += frame.len() as u64;
                let taken = self.down.take(now, pool);
                debug_assert_eq!(taken, Some(front));
                pool.release(front);
            }
        }
    }

    /// Whether there is a frame for the link.
    pub(super) fn is_ready(&self) -> bool {
        self.down.owes_pause() || self.up.is_ready()
    }

    /// The next frame for its link; pauses overtake everything.
    pub(super) fn poll_transmit(&mut self, now: Instant, pool: &mut Pool<Descriptor>) -> Option<Handle> {
        if self.down.owes_pause()
            && let Some(pause) = self.down.poll_pause(now)
        {
            return Some(pool.insert(&Descriptor::from_pause(pause)));
        }
        self.up.take(now, pool)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<Descriptor>) {
        self.up.handle_timeout(now, pool);
        self.down.handle_timeout(now, pool);
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.up.poll_timeout().min(self.down.poll_timeout())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::cee::watchdog::{DETECTION_TIME, RESTORATION_TIME};

    const QUANTUM: Duration = Duration::from_us(5);

    fn pause(p: Priority, quanta: u16) -> Pause {
        let mut all = Pause { classes: PrioritySet(1 << p), quanta: [0; PRIORITIES] };
        all.quanta[p as usize] = quanta;
        all
    }

    fn of(told: Option<Pause>, p: Priority) -> Option<u16> {
        told.filter(|t| t.classes.contains(p)).map(|t| t.quanta[p as usize])
    }

    const MARKS: Watermarks = Watermarks { xoff: 100, xon: 50, capacity: 200, headroom: 100 };

    #[test]
    fn a_sender_is_stopped_while_either_the_receiver_or_the_buffer_says_so() {
        let mut sender = PauseSender::default();
        let quanta = u16::MAX;
        let poll = |sender: &mut PauseSender, held| sender.poll(Instant(0), held, quanta, QUANTUM);
        let held = PrioritySet(8);
        sender.pass_on(&pause(3, 700));
        assert_eq!(of(poll(&mut sender, held), 3), Some(700), "passed on as it was said");
        // The buffer fills while the receiver holds; the receiver's letting go is not passed on.
        assert!(sender.own.on_rise(3, 101, &MARKS).is_some());
        assert_eq!(of(poll(&mut sender, held), 3), Some(quanta));
        sender.pass_on(&pause(3, 0));
        assert_eq!(poll(&mut sender, PrioritySet::NONE), None);
        assert!(sender.own.on_fall(3, 50, &MARKS));
        assert_eq!(of(poll(&mut sender, PrioritySet::NONE), 3), Some(0));
        // The buffer drains while the receiver holds: nothing is let go.
        assert!(sender.own.on_rise(3, 101, &MARKS).is_some());
        poll(&mut sender, PrioritySet::NONE);
        sender.pass_on(&pause(3, 9));
        assert_eq!(poll(&mut sender, held), None, "a shorter pause would let it go");
        assert!(sender.own.on_fall(3, 50, &MARKS));
        assert_eq!(poll(&mut sender, held), None);
    }

    #[test]
    fn a_full_buffer_stops_whom_it_may_and_drops_the_others_by_name() {
        let c = EdgeConfig {
            lossless: PrioritySet(0b1000),
            stops_server: PrioritySet(0b1001),
            up: MARKS,
            down: MARKS,
            quanta: 9,
            quantum: QUANTUM,
            detection_time: DETECTION_TIME,
            restoration_time: RESTORATION_TIME,
        };
        let mut edge = Edge::new(&c, MacAddress::local(1));
        let mut pool = Pool::default();
        let frame =
            |priority| Descriptor { len: 64, priority, pause: None, ..Descriptor::from_pause(Pause::default()) };
        for p in [0u8, 1, 3] {
            for _ in 0..4 {
                let at = pool.insert(&frame(p));
                edge.up.accept(Instant(0), at, &mut pool);
                let at = pool.insert(&frame(p));
                edge.down.accept(Instant(0), at, &mut pool);
            }
        }
        let count = |d: &Drops, r| d.frames(r);
        let (up, down) = (&edge.up.drops, &edge.down.drops);
        assert_eq!((count(up, DropReason::HeadroomExceeded), count(up, DropReason::AdapterTx)), (2, 1));
        assert_eq!((count(down, DropReason::HeadroomExceeded), count(down, DropReason::AdapterRx)), (1, 2));
        assert_eq!(edge.up.poll_pause(Instant(0)).map(|p| p.classes), Some(PrioritySet(0b1001)));
        assert_eq!(edge.down.poll_pause(Instant(0)).map(|p| p.classes), Some(PrioritySet(0b1000)));
        // A pause of a priority without flow control stops no sender, and is not passed on.
        edge.up.on_pause(Instant(0), &pause(0, 100));
        assert!(edge.up.gate.paused().is_empty() && !edge.up.owes_pause());
        edge.up.on_pause(Instant(0), &pause(3, 100));
        let mut seen = [0; PRIORITIES];
        while let Some(at) = edge.up.take(Instant(0), &mut pool) {
            seen[pool.frame(at).priority() as usize] += 1;
            pool.release(at);
        }
        assert_eq!((seen[0], seen[1], seen[3]), (3, 3, 0));
        assert_eq!(edge.up.frames(), 3);
        edge.handle_timeout(Instant(0) + QUANTUM.saturating_mul(100), &mut pool);
        assert!(edge.up.is_ready());
    }

    #[test]
    fn a_pause_that_never_ends_costs_its_server_its_frames_and_nobody_else() {
        let c = EdgeConfig {
            lossless: PrioritySet(0b1000),
            stops_server: PrioritySet(0b1000),
            up: MARKS,
            down: Watermarks { capacity: 1_000, ..MARKS },
            quanta: 9,
            quantum: QUANTUM,
            detection_time: DETECTION_TIME,
            restoration_time: RESTORATION_TIME,
        };
        let mut edge = Edge::new(&c, MacAddress::local(1));
        let mut pool = Pool::default();
        let accept = |edge: &mut Edge, pool: &mut Pool<_>, now, priority| {
            let frame = Descriptor { len: 64, priority, pause: None, ..Descriptor::from_pause(Pause::default()) };
            let at = pool.insert(&frame);
            edge.down.accept(now, at, pool);
        };
        let ms = |n| Instant::ZERO + Duration::from_ms(n);
        edge.down.on_pause(ms(0), &pause(3, u16::MAX));
        assert_eq!(of(edge.down.poll_pause(ms(0)), 3), Some(u16::MAX), "the fabric is held for it");
        (0..4).for_each(|_| accept(&mut edge, &mut pool, ms(1), 3));
        assert!(!edge.down.is_ready());
        // The pause is renewed before it runs out after 327 ms.
        edge.down.on_pause(ms(150), &pause(3, u16::MAX));
        edge.handle_timeout(ms(200), &mut pool);
        assert_eq!((edge.down.frames(), edge.down.drops.total_frames()), (4, 0));
        while edge.down.owes_pause() {
            edge.down.poll_pause(ms(200));
        }
        edge.handle_timeout(ms(201), &mut pool);
        assert_eq!((edge.down.frames(), edge.down.drops.frames(DropReason::Watchdog)), (0, 4));
        assert_eq!(of(edge.down.poll_pause(ms(201)), 3), Some(0), "and let go");
        // Frames of the isolated class are dropped, other classes pass, and the server's pauses stop no sender.
        edge.down.on_pause(ms(300), &pause(3, u16::MAX));
        assert!(!edge.down.owes_pause());
        accept(&mut edge, &mut pool, ms(301), 3);
        accept(&mut edge, &mut pool, ms(301), 5);
        assert_eq!((edge.down.frames(), edge.down.drops.frames(DropReason::Watchdog)), (1, 5));
        assert!(edge.down.is_ready());
        // Quiet for the time of restoration: it is served again, once its last pause has run out.
        assert!(edge.poll_timeout() <= ms(501));
        edge.handle_timeout(ms(501), &mut pool);
        assert_eq!(edge.counters().storms, (1, 1));
        accept(&mut edge, &mut pool, ms(502), 3);
        edge.handle_timeout(ms(650), &mut pool);
        assert_eq!((edge.down.frames(), edge.down.drops.total_frames()), (2, 5));
    }
}
