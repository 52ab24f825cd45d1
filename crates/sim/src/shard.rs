//! The part of the world that one thread sweeps: its boxes, their wires, and what will happen to them.
//!
//! Time goes in windows no longer than the shortest way news can take from one box to another. In each window every
//! box with something to do is visited once and does all of it: what it sends arrives in a later window. A *lane* holds
//! the events of one window; the lanes form a ring, and what lies beyond the ring waits in [`Far`].

use crate::event::{Class, Key, MAX_PLACES, NOTE_PORT, draw_order};
use crate::far::{Far, What};
use crate::world::Node;
use sluicenet_node::door::{Device, PortId, PortSet, Wires};
use sluicenet_node::packet::{Kind, Packet};
use sluicenet_node::server::App;
use sluicenet_node::switch::PauseEvent;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::time::Instant;

/// Most lanes: beyond that a box's empty lists would outweigh it.
pub const MAX_LANES: usize = 64;

/// The transmitting end of a link.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Wire {
    /// When the last frame and the gap after it are through.
    pub free_at: u64,
    ps_per_byte_q16: u64,
    latency: u64,
    pause_latency: u64,
    /// Frames and bytes sent, pause frames included.
    pub frames: u64,
    /// Bytes sent.
    pub bytes: u64,
    peer: u32,
    peer_port: u16,
    shard: u16,
    /// Time of the gap after a frame.
    gap_ps: u32,
    flags: u8,
}

/// An event for when the wire is free stands in a lane.
const ARMED: u8 = 1;
/// The receiver acts on the first bit.
const FIRST_BIT: u8 = 2;
/// Frames may arrive damaged.
const ERRORS: u8 = 4;
/// Frames are captured.
pub const CAPTURE: u8 = 8;

impl Wire {
    /// Shard, place and port of the far end.
    pub fn peer(&self) -> (u16, u32, PortId) {
        (self.shard, self.peer, self.peer_port)
    }
}

/// A link's end as the engine builds it.
pub struct WireSpec {
    pub ps_per_byte_q16: u64,
    pub latency: u64,
    pub pause_latency: u64,
    pub first_bit: bool,
    pub bit_error_rate: f64,
    pub peer: u32,
    pub peer_port: u16,
    pub shard: u16,
    pub gap: u8,
}

/// A frame as it left a port.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// When its first bit was sent.
    pub at: u64,
    /// The box, by its number in the world.
    pub node: u32,
    /// The port.
    pub port: PortId,
    /// The frame.
    pub packet: Packet,
}

/// An event for a box of another shard.
#[derive(Clone, Copy, Debug)]
pub struct Parcel {
    at: u64,
    node: u32,
    port: u16,
    packet: Packet,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Place(Packet);

/// What happens in one window, in the order in which it was scheduled.
#[derive(Debug, Default)]
struct Lane {
    frames: Vec<Place>,
    events: Vec<(u32, Key)>,
}

/// The events of a window, box by box.
#[derive(Debug, Default)]
struct Agenda {
    /// Boxes with events, in memory order, and where theirs lie in `keys`.
    boxes: Vec<(u32, (u32, u32))>,
    keys: Vec<Key>,
    /// How many events each box has; all zero between two windows.
    counts: Vec<u32>,
}

/// With fewer events than one for so many boxes, sorting them is cheaper than going through all boxes.
const SPARSE: usize = 16;

impl Agenda {
    fn new(boxes: usize) -> Agenda {
        Agenda { boxes: Vec::new(), keys: Vec::new(), counts: vec![0; boxes] }
    }

    #[inline(always)]
    fn keys(&self, (start, end): (u32, u32)) -> &[Key] {
        &self.keys[start as usize..end as usize]
    }

    /// Arranges events by box; those of one box keep their order, which [`Visit`] does not rely on.
    fn arrange(&mut self, events: &mut Vec<(u32, Key)>) {
        self.boxes.clear();
        self.keys.clear();
        if events.len() * SPARSE < self.counts.len() {
            events.sort_unstable();
            for &(node, key) in events.iter() {
                let at = self.keys.len() as u32;
                self.keys.push(key);
                match self.boxes.last_mut() {
                    Some((n, (_, end))) if *n == node => *end = at + 1,
                    _ => self.boxes.push((node, (at, at + 1))),
                }
            }
        } else {
            for &(node, _) in events.iter() {
                self.counts[node as usize] += 1;
            }
            let mut at = 0;
            for (node, count) in self.counts.iter_mut().enumerate() {
                if *count > 0 {
                    self.boxes.push((node as u32, (at, at + *count)));
                    // From here on the count says where the next event of the box goes.
                    at += std::mem::replace(count, at);
                }
            }
            self.keys.resize(events.len(), Key(0));
            for &(node, key) in events.iter() {
                let at = &mut self.counts[node as usize];
                self.keys[*at as usize] = key;
                *at += 1;
            }
            for &(node, _) in &self.boxes {
                self.counts[node as usize] = 0;
            }
        }
        events.clear();
    }
}

/// What all shards share and nobody changes.
#[derive(Clone, Copy, Debug)]
pub struct Clockwork {
    /// Length of a window in picoseconds.
    pub window: u64,
    /// ceil(2^64 / window): division by one multiplication.
    magic: u64,
    /// Number of lanes, a power of two.
    pub lanes: usize,
    /// Bytes a frame takes on the wire beyond its own.
    overhead: u32,
    seed: u64,
}

impl Clockwork {
    pub fn new(window: u64, lanes: usize, overhead: u32, seed: u64) -> Clockwork {
        assert!(window > 1 && lanes.is_power_of_two());
        Clockwork { window, magic: u64::MAX / window + 1, lanes, overhead, seed }
    }
    #[inline(always)]
    fn windows_in(&self, ps: u64) -> u64 {
        ((ps as u128 * self.magic as u128) >> 64) as u64
    }
}

/// A thread's part of the world.
pub struct Shard<A> {
    pub clock: Clockwork,
    pub me: u16,
    pub nodes: Vec<Node<A>>,
    /// The number of each box in the world.
    pub names: Vec<u32>,
    /// First wire of each box.
    base: Vec<u32>,
    pub wires: Vec<Wire>,
    error_rate: Vec<f64>,
    /// Shard and place of every box of the world, for notes to servers.
    pub place_of_host: std::sync::Arc<Vec<(u16, u32)>>,
    lanes: Vec<Lane>,
    agenda: Agenda,
    /// The events of the box that is being visited.
    keys: Vec<Key>,
    timer_at: Vec<u64>,
    far: Far,
    pub outboxes: Vec<Vec<Parcel>>,
    woke: PortSet,
    /// Whether the boxes are too many for the nearest cache, so that fetching ahead pays.
    fetches: bool,
    notes: Vec<Packet>,
    pub pauses: Vec<(u32, PauseEvent)>,
    pub captured: Vec<Captured>,
    /// Earliest window any parcel of this shard will arrive in.
    sent_min: u64,
}

struct PortView<'a> {
    wires: &'a [Wire],
    now: u64,
}

impl Wires for PortView<'_> {
    #[inline(always)]
    fn idle(&self, port: PortId) -> bool {
        self.wires[port as usize].free_at <= self.now
    }
}

/// The window a shard is in.
#[derive(Clone, Copy)]
struct Here {
    start: u64,
    end: u64,
    number: u64,
}

/// What a sweep of one box may touch besides the box.
struct Reach<'a> {
    clock: &'a Clockwork,
    me: u16,
    here: Here,
    lanes: &'a mut [Lane],
    far: &'a mut Far,
    outboxes: &'a mut [Vec<Parcel>],
    captured: &'a mut Vec<Captured>,
    sent_min: &'a mut u64,
}

impl Reach<'_> {
    /// Lane of an event after this window, or `None` when it lies beyond the ring.
    #[inline(always)]
    fn lane_of(&self, at: u64) -> Option<(usize, u64)> {
        let ahead = at - self.here.end;
        let windows = self.clock.windows_in(ahead);
        if windows >= self.clock.lanes as u64 - 1 {
            return None;
        }
        let lane = (self.here.number + 1 + windows) as usize & (self.clock.lanes - 1);
        Some((lane, ahead - windows * self.clock.window))
    }

    #[inline(always)]
    fn put_key(&mut self, node: u32, lane: usize, key: Key) {
        self.lanes[lane].events.push((node, key));
    }

    #[inline(always)]
    fn arrive(&mut self, at: u64, node: u32, port: u16, packet: &Packet) {
        debug_assert!(at >= self.here.end);
        match self.lane_of(at) {
            Some((lane, time)) => {
                let lane = &mut self.lanes[lane];
                let place = lane.frames.len();
                assert!(place < MAX_PLACES, "more than {MAX_PLACES} frames in a window");
                lane.frames.push(Place(*packet));
                lane.events.push((node, Key::new(time, class_of(port), port, place as u32)));
            }
            None => self.far.push(at, node, What::Arrival(port, *packet)),
        }
    }

    /// An event of a box with itself: into the rest of this window's keys, a lane, or beyond.
    #[inline(always)]
    fn own(&mut self, keys: &mut Vec<Key>, at: u64, node: u32, class: Class, port: u16) {
        if at < self.here.end {
            let key = Key::new(at - self.here.start, class, port, 0);
            let mut i = keys.len();
            while i > 0 && keys[i - 1] > key {
                i -= 1;
            }
            keys.insert(i, key);
            return;
        }
        match self.lane_of(at) {
            Some((lane, time)) => self.put_key(node, lane, Key::new(time, class, port, 0)),
            None => {
                let what = if class == Class::Timer { What::Timer } else { What::WireFree(port) };
                self.far.push(at, node, what);
            }
        }
    }

    /// Starts a frame on a wire that is free; `rare` is what few wires need: error rates, box and port.
    #[inline(always)]
    fn transmit(&mut self, wire: &mut Wire, packet: &Packet, now: u64, rare: (&[f64], u32, PortId)) {
        debug_assert!(wire.free_at <= now);
        let q = wire.ps_per_byte_q16;
        let wire_bytes = (packet.len() + self.clock.overhead) as u64;
        wire.free_at = now + ((wire_bytes * q) >> 16);
        wire.frames += 1;
        wire.bytes += packet.len() as u64;
        let last_bit = wire.free_at - wire.gap_ps as u64;
        let at = if packet.kind() == Kind::Pause {
            last_bit + wire.pause_latency
        } else if wire.flags & FIRST_BIT != 0 {
            now + wire.latency
        } else {
            last_bit + wire.latency
        };
        if wire.flags & (ERRORS | CAPTURE) != 0 {
            let packet = self.transmit_rare(wire, packet, now, rare);
            return self.put_on_wire(wire, at, &packet);
        }
        self.put_on_wire(wire, at, packet);
    }

    #[inline(always)]
    fn put_on_wire(&mut self, wire: &Wire, at: u64, packet: &Packet) {
        if wire.shard == self.me {
            self.arrive(at, wire.peer, wire.peer_port, packet);
        } else {
            self.send_parcel(wire.shard, Parcel { at, node: wire.peer, port: wire.peer_port, packet: *packet });
        }
    }

    /// What few wires do: show frames, or damage them.
    #[cold]
    #[inline(never)]
    fn transmit_rare(&mut self, wire: &Wire, packet: &Packet, now: u64, rare: (&[f64], u32, PortId)) -> Packet {
        let (errors, node, port) = rare;
        let mut packet = *packet;
        if wire.flags & CAPTURE != 0 {
            self.captured.push(Captured { at: now, node, port, packet });
        }
        if wire.flags & ERRORS != 0 {
            let bits = 8.0 * packet.len() as f64;
            // 1 - (1 - p)^bits without losing small p; the draw hangs on the link and the count of frames on it.
            let damaged = -libm::expm1(bits * libm::log1p(-errors[port as usize]));
            let draw = hash_words(&[self.clock.seed, node as u64, port as u64, wire.frames]) >> 11;
            if (draw as f64) < damaged * (1u64 << 53) as f64 {
                packet.corrupt();
            }
        }
        packet
    }

    fn send_parcel(&mut self, shard: u16, parcel: Parcel) {
        *self.sent_min = (*self.sent_min).min(parcel.at);
        self.outboxes[shard as usize].push(parcel);
    }
}

impl<A: App> Shard<A> {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        clock: Clockwork,
        me: u16,
        shards: usize,
        nodes: Vec<Node<A>>,
        names: Vec<u32>,
        wires: Vec<Vec<WireSpec>>,
        place_of_host: std::sync::Arc<Vec<(u16, u32)>>,
    ) -> Shard<A> {
        let n = nodes.len();
        let mut base = Vec::with_capacity(n);
        let mut flat = Vec::with_capacity(wires.iter().map(Vec::len).sum());
        let mut error_rate = Vec::new();
        for specs in wires {
            base.push(flat.len() as u32);
            for s in specs {
                let mut flags = 0;
                flags |= if s.first_bit { FIRST_BIT } else { 0 };
                flags |= if s.bit_error_rate > 0.0 { ERRORS } else { 0 };
                error_rate.push(s.bit_error_rate);
                flat.push(Wire {
                    free_at: 0,
                    ps_per_byte_q16: s.ps_per_byte_q16,
                    latency: s.latency,
                    pause_latency: s.pause_latency,
                    frames: 0,
                    bytes: 0,
                    peer: s.peer,
                    peer_port: s.peer_port,
                    gap_ps: ((s.gap as u64 * s.ps_per_byte_q16) >> 16) as u32,
                    flags,
                    shard: s.shard,
                });
            }
        }
        if error_rate.iter().all(|&r| r == 0.0) {
            error_rate = Vec::new();
        }
        Shard {
            clock,
            me,
            names,
            base,
            wires: flat,
            error_rate,
            place_of_host,
            lanes: (0..clock.lanes).map(|_| Lane::default()).collect(),
            agenda: Agenda::new(n),
            keys: Vec::new(),
            timer_at: vec![u64::MAX; n],
            far: Far::default(),
            outboxes: (0..shards).map(|_| Vec::new()).collect(),
            woke: PortSet::with_capacity(64),
            fetches: n > FETCH_FROM,
            notes: Vec::new(),
            pauses: Vec::new(),
            captured: Vec::new(),
            sent_min: u64::MAX,
            nodes,
        }
    }

    /// The wires of box `n` (its place in this shard).
    pub fn wires_of(&self, n: usize) -> &[Wire] {
        let end = self.base.get(n + 1).map_or(self.wires.len(), |&b| b as usize);
        &self.wires[self.base[n] as usize..end]
    }

    /// Frames sent on links.
    pub fn hops(&self) -> u64 {
        self.wires.iter().map(|w| w.frames).sum()
    }

    /// Marks a wire for capture.
    pub fn capture(&mut self, n: usize, port: PortId) {
        self.wires[self.base[n] as usize + port as usize].flags |= CAPTURE;
    }

    /// Schedules the first deadlines of all boxes.
    pub fn start(&mut self) {
        for n in 0..self.nodes.len() {
            let due = match &self.nodes[n] {
                Node::Switch(s) => s.poll_timeout(),
                Node::Server(s) => s.poll_timeout(),
            };
            if due != Instant::MAX {
                self.timer_at[n] = due.as_ps();
                self.far.push(due.as_ps(), n as u32, What::Timer);
            }
        }
    }

    /// The first window in which something happens here or in what this shard just sent, if any.
    pub fn next_window(&self, after: u64) -> u64 {
        let lanes = self.clock.lanes as u64;
        let near = (after + 1..after + lanes).find(|w| !self.lanes[(*w % lanes) as usize].events.is_empty());
        let far = self.far.next().map_or(u64::MAX, |at| at / self.clock.window);
        let sent = if self.sent_min == u64::MAX { u64::MAX } else { self.sent_min / self.clock.window };
        near.unwrap_or(u64::MAX).min(far).min(sent)
    }

    /// The first window with something to do before anything has run.
    pub fn first_window(&self) -> u64 {
        self.far.next().map_or(u64::MAX, |at| at / self.clock.window)
    }

    /// Takes in what other shards sent in the window before `number`.
    pub fn take_in(&mut self, number: u64, parcels: &mut Vec<Parcel>) {
        if parcels.is_empty() {
            return;
        }
        let window = self.clock.window;
        // Seen from the end of the window before: every lane but that one is open.
        let here = Here { start: (number - 1) * window, end: number * window, number: number - 1 };
        let mut reach = self.reach(here);
        for p in parcels.drain(..) {
            reach.arrive(p.at, p.node, p.port, &p.packet);
        }
    }

    fn reach(&mut self, here: Here) -> Reach<'_> {
        Reach {
            clock: &self.clock,
            me: self.me,
            here,
            lanes: &mut self.lanes,
            far: &mut self.far,
            outboxes: &mut self.outboxes,
            captured: &mut self.captured,
            sent_min: &mut self.sent_min,
        }
    }

    /// Brings what comes within the ring from beyond it.
    fn approach(&mut self, number: u64) {
        let (window, lanes) = (self.clock.window, self.clock.lanes as u64);
        let end = (number + lanes - 1) * window;
        while let Some((at, node, what)) = self.far.pop_before(end) {
            let w = at / window;
            debug_assert!(w >= number);
            let lane = (w % lanes) as usize;
            let time = at - w * window;
            let key = match what {
                What::Timer => Key::new(time, Class::Timer, 0, 0),
                What::WireFree(port) => Key::new(time, Class::WireFree, port, 0),
                What::Arrival(port, packet) => {
                    let frames = &mut self.lanes[lane].frames;
                    frames.push(Place(packet));
                    Key::new(time, class_of(port), port, frames.len() as u32 - 1)
                }
            };
            self.lanes[lane].events.push((node, key));
        }
    }

    /// Sweeps window `number`: every box with something to do, in memory order.
    pub fn sweep(&mut self, number: u64) {
        self.sent_min = u64::MAX;
        self.approach(number);
        let lane = number as usize & (self.clock.lanes - 1);
        if self.lanes[lane].events.is_empty() {
            return;
        }
        let start = number * self.clock.window;
        let here = Here { start, end: start + self.clock.window, number };
        let mut frames = std::mem::take(&mut self.lanes[lane].frames);
        let mut agenda = std::mem::take(&mut self.agenda);
        agenda.arrange(&mut self.lanes[lane].events);
        for (i, &(n, keys)) in agenda.boxes.iter().enumerate() {
            if self.fetches {
                if let Some(&(n, _)) = agenda.boxes.get(i + 3) {
                    self.fetch_box(n as usize);
                }
                if let Some(&(n, _)) = agenda.boxes.get(i + 2)
                    && let Node::Server(s) = &self.nodes[n as usize]
                {
                    s.fetch_lines(Instant(here.end), fetch);
                }
                if let Some(&(n, keys)) = agenda.boxes.get(i + 1) {
                    self.fetch_frames(here, n as usize, agenda.keys(keys), &frames);
                }
            }
            self.visit(here, n as usize, agenda.keys(keys), &frames);
        }
        frames.clear();
        self.agenda = agenda;
        self.lanes[lane].frames = frames;
    }

    /// Has the memory of a box on the way before it is visited.
    #[inline(always)]
    fn fetch_box(&self, n: usize) {
        let first: *const u8 = match &self.nodes[n] {
            Node::Switch(s) => core::ptr::from_ref(&**s).cast(),
            Node::Server(s) => core::ptr::from_ref(&**s).cast(),
        };
        (0..BOX_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
    }

    /// Has the memory on the way that the events of a box will touch.
    #[inline(always)]
    fn fetch_frames(&self, here: Here, n: usize, keys: &[Key], frames: &[Place]) {
        let keys = &keys[..keys.len().min(FETCH_KEYS)];
        for key in keys.iter().filter(|k| k.is(Class::Arrival)) {
            fetch(core::ptr::from_ref(&frames[key.place()]).cast());
        }
        let free = keys.iter().filter(|k| k.is(Class::WireFree)).map(|k| k.port());
        match &self.nodes[n] {
            Node::Switch(s) => s.fetch_frames(free, fetch),
            Node::Server(s) => {
                s.fetch_frames(free, fetch);
                s.fetch_sockets(Instant(here.end), fetch);
            }
        }
    }

    /// All events of one box in this window, in their order.
    #[inline(always)]
    fn visit(&mut self, here: Here, n: usize, due: &[Key], frames: &[Place]) {
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        keys.extend_from_slice(due);
        sort(&mut keys);
        let base = self.base[n] as usize;
        let end = self.base.get(n + 1).map_or(self.wires.len(), |&b| b as usize);
        let mut visit = Visit {
            name: self.names[n],
            n: n as u32,
            wires: &mut self.wires[base..end],
            errors: if self.error_rate.is_empty() { &[] } else { &self.error_rate[base..end] },
            woke: &mut self.woke,
            timer_at: &mut self.timer_at[n],
            frames,
            reach: Reach {
                clock: &self.clock,
                me: self.me,
                here,
                lanes: &mut self.lanes,
                far: &mut self.far,
                outboxes: &mut self.outboxes,
                captured: &mut self.captured,
                sent_min: &mut self.sent_min,
            },
        };
        // One loop for each kind of box: inside it nothing asks again which kind it is.
        match &mut self.nodes[n] {
            Node::Switch(s) => {
                visit.run(&mut **s, &mut keys, |_, _, _, _| {});
                if s.has_pauses() {
                    self.pauses.extend(s.take_pauses().into_iter().map(|p| (visit.name, p)));
                }
            }
            Node::Server(s) => {
                visit.run(&mut **s, &mut keys, |s, now, packet, woke| s.receive_note(now, packet, woke));
                if s.core().has_notes() {
                    let notes = &mut self.notes;
                    s.core_mut().take_notes(notes);
                    post(&mut visit.reach, notes, &self.place_of_host);
                }
                if s.core().has_pauses() {
                    self.pauses.extend(s.core_mut().take_pauses().into_iter().map(|p| (visit.name, p)));
                }
            }
        }
        self.keys = keys;
    }

    /// Frames on their way: the window after `number` and later, with the box they will reach.
    pub fn in_flight(&self) -> impl Iterator<Item = (u32, u16, &Packet)> {
        let near = self.lanes.iter().flat_map(|lane| {
            let arrivals = lane.events.iter().filter(|(_, k)| k.is(Class::Arrival));
            arrivals.map(|(node, k)| (*node, k.port(), &lane.frames[k.place()].0))
        });
        let far = self.far.iter().filter_map(|(_, node, what)| match what {
            What::Arrival(port, packet) if *port != NOTE_PORT => Some((node, *port, packet)),
            _ => None,
        });
        near.chain(far)
    }
}

/// Sorts keys that are few and in runs: what a port sends comes in order.
#[inline(always)]
fn sort(keys: &mut [Key]) {
    if keys.len() > 24 {
        return keys.sort_unstable();
    }
    for i in 1..keys.len() {
        let key = keys[i];
        let mut j = i;
        while j > 0 && keys[j - 1] > key {
            keys[j] = keys[j - 1];
            j -= 1;
        }
        keys[j] = key;
    }
}

/// Boxes of a shard from which on memory is fetched ahead; measured, not critical.
const FETCH_FROM: usize = 100;

/// Cache lines of a box that every visit touches.
const BOX_LINES: usize = 6;

/// Most events of a box that are looked at ahead: beyond that the first would be pushed out again.
const FETCH_KEYS: usize = 64;

/// Asks for the cache line at `at`.
#[inline(always)]
#[allow(unsafe_code)]
fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it reads nothing a program could see and never faults, whatever the address. A
    // sweep touches more memory than the caches hold; asked for one to three boxes ahead, what is
    // fetched is there when it is needed.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The events of one box in one window.
struct Visit<'a> {
    name: u32,
    n: u32,
    wires: &'a mut [Wire],
    errors: &'a [f64],
    woke: &'a mut PortSet,
    timer_at: &'a mut u64,
    frames: &'a [Place],
    reach: Reach<'a>,
}

impl Visit<'_> {
    #[inline(never)]
    fn run<D: Device<Frame = Packet>>(
        &mut self,
        device: &mut D,
        keys: &mut Vec<Key>,
        note: impl Fn(&mut D, Instant, &Packet, &mut PortSet),
    ) {
        let mut drawn = 0;
        let mut i = 0;
        while let Some(&first) = keys.get(i) {
            let now = self.reach.here.start + first.time();
            let mut key = first;
            if let Some(&next) = keys.get(i + 1)
                && next.instant() == key.instant()
                && i >= drawn
            {
                drawn = self.draw(keys, i, now);
                key = keys[i];
            }
            i += 1;
            if key.is(Class::Arrival) {
                let packet = &self.frames[key.place()].0;
                let view = PortView { wires: self.wires, now };
                if let Some(port) = device.receive(Instant(now), key.port(), packet, &view, self.woke) {
                    self.reach.transmit(&mut self.wires[port as usize], packet, now, (self.errors, self.name, port));
                }
            } else if key.is(Class::WireFree) {
                self.wires[key.port() as usize].flags &= !ARMED;
                self.woke.insert(key.port());
            } else if key.is(Class::Note) {
                note(device, Instant(now), &self.frames[key.place()].0, self.woke);
            } else if *self.timer_at == now {
                *self.timer_at = u64::MAX;
                device.handle_timeout(Instant(now), self.woke);
            }
            while let Some(port) = self.woke.pop() {
                let wire = &mut self.wires[port as usize];
                if wire.free_at <= now {
                    if let Some(packet) = device.poll_transmit(Instant(now), port, self.woke) {
                        self.reach.transmit(wire, packet, now, (self.errors, self.name, port));
                    }
                } else if wire.flags & ARMED == 0 {
                    wire.flags |= ARMED;
                    self.reach.own(keys, wire.free_at, self.n, Class::WireFree, port);
                }
            }
            let due = device.poll_timeout().as_ps();
            if due < *self.timer_at {
                let due = due.max(now);
                *self.timer_at = due;
                self.reach.own(keys, due, self.n, Class::Timer, 0);
            }
        }
    }

    /// Draws the order of the events that share an instant with the one at `i`; returns where they end.
    #[cold]
    #[inline(never)]
    fn draw(&self, keys: &mut [Key], i: usize, now: u64) -> usize {
        let instant = keys[i].instant();
        // Wires that become free together are told in the order of their ports, and there is one timer.
        let end = i + keys[i..].iter().take_while(|k| k.instant() == instant).count();
        if !(keys[i].is(Class::Arrival) || keys[i].is(Class::Note)) {
            return end;
        }
        let content = |k: Key| content(&self.frames[k.place()].0, k.port());
        draw_order(&mut keys[i..end], self.reach.clock.seed, self.name, now, content);
        end
    }
}

/// News reach other servers when the next window begins, which no frame sent in this one can beat.
#[cold]
fn post(reach: &mut Reach<'_>, notes: &mut Vec<Packet>, place_of_host: &[(u16, u32)]) {
    let at = reach.here.end;
    for packet in notes.drain(..) {
        let Some(&(shard, node)) = place_of_host.get(packet.destination() as usize) else { continue };
        if shard == reach.me {
            reach.arrive(at, node, NOTE_PORT, &packet);
        } else {
            reach.send_parcel(shard, Parcel { at, node, port: NOTE_PORT, packet });
        }
    }
}

#[inline(always)]
fn class_of(port: u16) -> Class {
    if port == NOTE_PORT { Class::Note } else { Class::Arrival }
}

/// What orders two notes of one instant: everything they say.
fn content(packet: &Packet, port: u16) -> u64 {
    if port != NOTE_PORT {
        return 0;
    }
    let f = packet.flow();
    let w = packet.note_words();
    let ports = (f.sport as u64) << 16 | f.dport as u64;
    hash_words(&[(f.src.to_bits() as u64) << 32 | f.dst.to_bits() as u64, ports, w[0], w[1], w[2]])
}
