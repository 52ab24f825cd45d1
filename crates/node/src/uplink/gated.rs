//! Queues that XCo's local coordinator opens and closes (Rajanna et al., 3.5): the gate of a real server.
//!
//! - Frames of a pair of VMs wait in a queue of their own until the [`Coordinator`] permits them to leave. Pairs whose frames
//!   may leave take turns. Frames to stations that the file does not list pass without asking.
//! - Only as many permitted frames as the link sends at once wait for the link. So a slice does not end with frames that
//!   were permitted in it and are still here, and a pause of the link costs its frames no other slice.
//! - No frame is dropped. A pair that is full takes no frames, and the switch holds its senders.

use super::Origin;
use super::limits::HELD_MOST;
use super::queues::{Outgoing, Queue, Queues, Waiting};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::Node;
use sluicenet_proto::xco::coordinator::{Coordinator, CoordinatorConfig, CoordinatorCounters, Permit};
use sluicenet_wire::ethernet::{self, ADDRESSES_LEN, MacAddress};
use sluicenet_wire::xco::{LEN_MAX, Received, Repr, receive};

/// Queues of pairs. Frames of further pairs share a queue for each destination: senders cannot fill the memory with addresses.
const PAIRS_MOST: usize = 4096;

/// Settings of a gate.
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// Those of its coordinator.
    pub coordinator: CoordinatorConfig,
    /// The nodes of stations.
    pub stations: BTreeMap<MacAddress, Node>,
    /// Bytes of a pair that wait before its senders are held back.
    pub queue: u64,
    /// The priority of messages.
    pub priority: Priority,
}

/// Counts of a gate, beside those of its coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounters {
    /// Messages sent.
    pub sent: u64,
    /// Messages received, those that were refused included.
    pub received: u64,
    /// Messages that cannot be read.
    pub malformed: u64,
    /// Messages for another address.
    pub elsewhere: u64,
    /// Frames that passed because their destination is not listed.
    pub unlisted: u64,
}

/// The name of a pair: class, VLAN, destination, source.
type Key = u128;

fn key_of(p: Priority, vid: u16, to: MacAddress, from: MacAddress) -> Key {
    let address = |mac: MacAddress| mac.0.iter().fold(0, |all, &byte| all << 8 | Key::from(byte));
    Key::from(p) << 108 | Key::from(vid) << 96 | address(to) << 48 | address(from)
}

/// Destination, source and VLAN of a frame.
fn addresses(frame: &[u8]) -> (MacAddress, MacAddress, u16) {
    let (to, from) = ethernet::addresses(frame).unwrap_or_default();
    let vid = match frame.get(ADDRESSES_LEN..ADDRESSES_LEN + 4) {
        Some(&[0x81, 0x00, a, b]) => u16::from_be_bytes([a, b]) & 0x0FFF,
        _ => 0,
    };
    (to, from, vid)
}

#[derive(Debug)]
struct Pair {
    key: Key,
    class: Priority,
    to: Node,
    queue: Queue<Vec<u8>>,
}

impl Pair {
    fn nobody() -> Pair {
        Pair { key: 0, class: 0, to: 0, queue: Queue::default() }
    }
}

/// The queues of an uplink with a gate.
#[derive(Debug)]
pub struct Gated {
    /// Frames that were permitted, and those that need no permission.
    queues: Queues<Vec<u8>>,
    coordinator: Box<Coordinator>,
    stations: BTreeMap<MacAddress, Node>,
    /// The last destination, and its node.
    last: (MacAddress, Option<Node>),
    own: Node,
    queue_most: u64,
    /// Bytes of permitted frames that wait for the link: as many as it sends in the time by which frames may be late.
    released_most: u64,
    priority: Priority,
    /// Pairs whose frames wait.
    pairs: Vec<Pair>,
    free: Vec<u32>,
    by_key: BTreeMap<Key, u32>,
    /// Pairs to be asked, in turn, by class.
    active: [VecDeque<u32>; PRIORITIES],
    /// Pairs whose first frame may leave at a time, with the turn in which they were asked.
    due: BTreeSet<(Instant, u64, u32)>,
    turn: u64,
    /// Pairs that wait for a directive.
    held: Vec<u32>,
    /// Bytes of pairs, by class, and frames of pairs, by node.
    bytes: [u64; PRIORITIES],
    waiting: BTreeMap<Node, u32>,
    frames: usize,
    /// The time of the last call with one.
    now: Instant,
    counters: GateCounters,
}

impl Gated {
    /// A gate whose coordinator has not joined.
    ///
    /// # Panics
    /// As [`Coordinator::new`].
    pub fn new(now: Instant, config: GateConfig) -> Gated {
        let GateConfig { coordinator, stations, queue, priority } = config;
        let released_most = Rate(u64::from(coordinator.rate_kbps) * 1_000).bytes_in(coordinator.late).max(1);
        Gated {
            queues: Queues::default(),
            own: coordinator.node,
            coordinator: Box::new(Coordinator::new(now, coordinator)),
            stations,
            last: (MacAddress::default(), None),
            queue_most: queue,
            released_most,
            priority,
            pairs: Vec::new(),
            free: Vec::new(),
            by_key: BTreeMap::new(),
            active: Default::default(),
            due: BTreeSet::new(),
            turn: 0,
            held: Vec::new(),
            bytes: [0; PRIORITIES],
            waiting: BTreeMap::new(),
            frames: 0,
            now,
            counters: GateCounters::default(),
        }
    }

    /// The counters, and those of the coordinator.
    pub fn counters(&self) -> (&GateCounters, &CoordinatorCounters) {
        (&self.counters, self.coordinator.counters())
    }

    /// Whether the coordinator is a member, whether all frames pass, the pairs whose frames wait, and these frames.
    pub fn state(&self, now: Instant) -> (bool, bool, usize, usize) {
        let is_member = self.coordinator.is_member();
        (is_member, self.coordinator.is_uncontrolled(now), self.by_key.len(), self.frames)
    }

    /// The priority of messages.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    // Messages.

    /// Handles a frame from the link if it is a message; returns whether it is one. The gate has the address `own`.
    pub fn handle_message(&mut self, now: Instant, frame: &[u8], own: MacAddress) -> bool {
        let mut bytes = [0; LEN_MAX];
        match receive(frame, own, &mut bytes) {
            Received::Other => return false,
            Received::Elsewhere => self.counters.elsewhere += 1,
            Received::Malformed => self.counters.malformed += 1,
            Received::Message(Repr { source, head, message, .. }) => {
                self.coordinator.handle(now, source, &head, &message);
                self.wake();
                self.release(now);
            }
        }
        self.counters.received += 1;
        true
    }

    /// Writes the next message to send, as a frame from `own`; whether there is one.
    pub fn poll_message(&mut self, now: Instant, own: MacAddress, into: &mut Vec<u8>) -> bool {
        let Some(out) = self.coordinator.poll_transmit(now) else { return false };
        self.counters.sent += 1;
        out.emit(own).write(self.priority, |bytes| into.extend_from_slice(bytes));
        true
    }

    /// The server shuts down: the controller is told, and all frames pass.
    pub fn leave(&mut self, now: Instant) {
        self.coordinator.leave();
        self.wake();
        self.release(now);
    }

    // Frames.

    /// Whether a frame of a pair may be handed over.
    pub fn has_room_for(&self, p: Priority, vid: u16, to: MacAddress, from: MacAddress) -> bool {
        let pair = self.by_key.get(&key_of(p, vid, to, from));
        pair.is_none_or(|&at| self.pairs[at as usize].queue.bytes < self.queue_most)
    }

    fn node_of(&mut self, to: MacAddress) -> Option<Node> {
        if self.last.0 != to {
            self.last = (to, self.stations.get(&to).copied());
        }
        self.last.1.filter(|&node| node != self.own)
    }

    fn is_full(&self, p: Priority) -> bool {
        self.queues.queues[p as usize].bytes >= self.released_most
    }

    /// Asks for a frame that no other one waits for; whether it may leave now.
    fn passes(&mut self, now: Instant, p: Priority, to: Node, len: u32) -> bool {
        if self.is_full(p) || self.waiting.contains_key(&to) {
            return false;
        }
        if self.coordinator.permit(now, to, wire_bytes(len)) != Permit::Now {
            return false;
        }
        self.coordinator.handle_empty(now, to);
        true
    }

    /// Lets a frame wait in the queue of its pair.
    fn hold(&mut self, key: Key, class: Priority, to: Node, frame: Waiting<Vec<u8>>) {
        let key = match self.by_key.contains_key(&key) || self.by_key.len() < PAIRS_MOST {
            true => key,
            false => key_of(class, 0, MacAddress::default(), MacAddress::default()) | Key::from(to),
        };
        let at = match self.by_key.get(&key) {
            Some(&at) => at,
            None => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.pairs.push(Pair::nobody());
                    self.pairs.len() as u32 - 1
                });
                self.by_key.insert(key, at);
                let pair = &mut self.pairs[at as usize];
                (pair.key, pair.class, pair.to) = (key, class, to);
                self.active[class as usize].push_back(at);
                at
            }
        };
        self.bytes[class as usize] += u64::from(frame.len);
        *self.waiting.entry(to).or_default() += 1;
        self.frames += 1;
        self.pairs[at as usize].queue.push(frame);
    }

    /// What the coordinator allows may have changed.
    fn wake(&mut self) {
        let due = core::mem::take(&mut self.due);
        for at in self.held.drain(..).chain(due.into_iter().map(|(.., at)| at)) {
            let class = self.pairs[at as usize].class;
            self.active[class as usize].push_back(at);
        }
    }

    /// Moves frames that may leave to the queues of the link.
    fn release(&mut self, now: Instant) {
        while let Some(&(at, _, pair)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            self.active[self.pairs[pair as usize].class as usize].push_back(pair);
        }
        for p in 0..PRIORITIES as Priority {
            while !self.is_full(p)
                && let Some(at) = self.active[p as usize].pop_front()
            {
                self.ask(now, at);
            }
        }
    }

    /// Asks for the first frame of a pair.
    fn ask(&mut self, now: Instant, at: u32) {
        let pair = &mut self.pairs[at as usize];
        let Some(len) = pair.queue.frames.front().map(|first| first.len) else { return };
        let (p, to) = (pair.class, pair.to);
        match self.coordinator.permit(now, to, wire_bytes(len)) {
            Permit::At(time) => {
                self.turn += 1;
                self.due.insert((time, self.turn, at));
            }
            Permit::Wait => self.held.push(at),
            Permit::Now => {
                let Some(frame) = pair.queue.pop() else { return };
                match pair.queue.frames.is_empty() {
                    true => {
                        self.by_key.remove(&pair.key);
                        self.free.push(at);
                    }
                    false => self.active[p as usize].push_back(at),
                }
                self.queues.push(now, p, frame);
                self.left(now, p, to, len);
            }
        }
    }

    /// A frame no longer waits.
    fn left(&mut self, now: Instant, p: Priority, to: Node, len: u32) {
        self.bytes[p as usize] -= u64::from(len);
        self.frames -= 1;
        let Some(waiting) = self.waiting.get_mut(&to) else { return };
        *waiting -= 1;
        if *waiting == 0 {
            self.waiting.remove(&to);
            self.coordinator.handle_empty(now, to);
        }
    }
}

/// Bytes of a frame on the wire.
fn wire_bytes(len: u32) -> u64 {
    u64::from(len + super::WIRE_OVERHEAD)
}

impl Outgoing<Vec<u8>> for Gated {
    const IS_MANAGED: bool = true;

    fn push(&mut self, now: Instant, p: Priority, frame: Waiting<Vec<u8>>) {
        if frame.origin == Origin::Own {
            return self.queues.push(now, p, frame);
        }
        let (to, from, vid) = addresses(&frame.frame);
        let Some(node) = self.node_of(to) else {
            self.counters.unlisted += 1;
            return self.queues.push(now, p, frame);
        };
        if self.passes(now, p, node, frame.len) {
            return self.queues.push(now, p, frame);
        }
        self.hold(key_of(p, vid, to, from), p, node, frame);
        self.release(now);
    }
    fn has_room(&self, p: Priority, most: u64) -> bool {
        self.queues.has_room(p, most) && self.bytes[p as usize] < HELD_MOST
    }
    fn ready(&self, now: Instant) -> PrioritySet {
        self.queues.ready(now)
    }
    fn choose(&mut self, now: Instant, among: PrioritySet) -> Option<Priority> {
        self.queues.choose(now, among)
    }
    fn unchoose(&mut self) {}
    fn front(&self, p: Priority) -> Option<&Vec<u8>> {
        self.queues.front(p)
    }
    fn pop(&mut self, now: Instant, p: Priority) -> Option<Waiting<Vec<u8>>> {
        let frame = self.queues.pop(now, p);
        self.release(now);
        frame
    }
    fn clear(&mut self, p: Priority, each: &mut dyn FnMut(Waiting<Vec<u8>>)) {
        self.queues.clear(p, each);
        let (now, pairs) = (self.now, &self.pairs);
        self.held.retain(|&at| pairs[at as usize].class != p);
        self.due.retain(|&(.., at)| pairs[at as usize].class != p);
        self.active[p as usize].clear();
        let its: Vec<u32> = self.by_key.values().copied().filter(|&at| pairs[at as usize].class == p).collect();
        for at in its {
            let pair = &mut self.pairs[at as usize];
            let (to, queue) = (pair.to, core::mem::take(&mut pair.queue));
            self.by_key.remove(&pair.key);
            self.free.push(at);
            for frame in queue.frames {
                self.left(now, p, to, frame.len);
                each(frame);
            }
        }
    }
    fn frames(&self) -> usize {
        self.queues.frames() + self.frames
    }
    fn next_departure(&self, paused: PrioritySet) -> Option<Instant> {
        self.queues.next_departure(paused)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due.first().map_or(Instant::MAX, |(at, ..)| *at);
        Some(due.min(self.coordinator.poll_timeout()))
    }
    fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.coordinator.poll_timeout() <= now {
            self.coordinator.handle_timeout(now);
            self.wake();
        }
        self.release(now);
    }
}
