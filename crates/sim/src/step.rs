//! One box in one phase: all its events, in order, and the frames it sends.

use crate::access::Accesses;
use crate::agenda::Entry;
use crate::event::{Class, Key, MAX_FRAMES, METADATA_PORT, draw_order};
use crate::event_heap::{EventHeap, HeapEvent};
use crate::wire::{ARMED, CAPTURE, ERRORS, FIRST_BIT, PortView, REMOTE, WAKES, Wire};
use sluicenet_node::device::{Device, PortId, PortSet};
use sluicenet_node::packet::{Kind, Packet};
use sluicenet_node::pool::{Handle, Pool};
use sluicenet_proto::frame::Frame;
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::time::Instant;

/// The constants that all threads share.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Length of a window in picoseconds.
    pub window: u64,
    /// The binary logarithm of the number of colours of boxes, 0 or 1.
    colours: u32,
    /// Windows that metadata takes at least: as many as the shortest path between two servers has links, 1 or 2.
    pub metadata_windows: u64,
    /// Length of a phase in picoseconds: as many windows as there are colours.
    pub phase: u64,
    /// ceil(2^64 / phase): division by one multiplication.
    magic: u64,
    /// Number of lanes, a power of two.
    pub lanes: usize,
    /// Phases of one colour that the lanes hold.
    reach: u64,
    /// Bytes that a frame takes on the wire beyond its own length.
    overhead: u32,
    seed: u64,
    /// Most frames per thread at once.
    pub frames_max: u32,
}

impl Timing {
    /// Boxes of `colours` colours, 1 or 2, which exchange frames with other colours only.
    pub fn new(window: u64, (colours, metadata_windows): (u64, u64), lanes: usize, overhead: u32, seed: u64) -> Timing {
        assert!(window > 1 && lanes.is_power_of_two());
        assert!(matches!((colours, metadata_windows), (1, 1 | 2) | (2, 2)));
        let phase = colours * window;
        let reach = lanes as u64 / colours - 1;
        let (magic, colours) = (u64::MAX / phase + 1, colours.trailing_zeros());
        Timing {
            window,
            colours,
            metadata_windows,
            phase,
            magic,
            lanes,
            reach,
            overhead,
            seed,
            frames_max: MAX_FRAMES as u32,
        }
    }

    /// Number of colours.
    pub fn colours(&self) -> u64 {
        1 << self.colours
    }

    /// The time at which a window begins.
    pub fn time_of(&self, window: u64) -> u64 {
        window.saturating_mul(self.window)
    }

    /// The time at which a phase begins: the end of the last one of the same colour.
    pub fn begin(&self, phase: u64) -> u64 {
        self.time_of(phase.saturating_add(1).saturating_sub(self.colours()))
    }

    /// The time from which the events of a phase count. Phase 0 of two colours begins a window before time 0: so this time, and
    /// what is added to it, wraps.
    pub fn origin(&self, phase: u64) -> u64 {
        self.end(phase).wrapping_sub(self.phase)
    }

    /// The time at which a phase ends.
    pub fn end(&self, phase: u64) -> u64 {
        self.time_of(phase.saturating_add(1))
    }

    /// The phase in which a box of this colour is simulated at a time.
    pub fn phase_of(&self, at: u64, colour: u8) -> u64 {
        let window = at / self.window;
        window + ((window ^ u64::from(colour)) & (self.colours() - 1))
    }

    /// The first phase that may have events when time stops at `end` and phase `number` is the next one.
    pub fn oldest(&self, number: u64, end: u64) -> u64 {
        number.min(end / self.window)
    }

    /// The lane of a phase.
    pub fn lane(&self, phase: u64) -> usize {
        phase as usize & (self.lanes - 1)
    }

    #[inline(always)]
    fn phases_in(&self, ps: u64) -> u64 {
        ((ps as u128 * self.magic as u128) >> 64) as u64
    }
}

/// All servers, as metadata finds them.
pub struct Servers<'a> {
    /// Shard of each, and its index there.
    pub location: &'a [(u16, u32)],
    pub accesses: &'a Accesses,
}

/// A frame at the port that sent it.
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

/// An event for a box of another thread, with its frame: a pool belongs to one thread.
#[derive(Clone, Copy, Debug)]
pub struct Parcel {
    pub at: u64,
    pub node: u32,
    pub port: u16,
    pub packet: Packet,
}

/// The first phase in which an event can fall, and its origin.
#[derive(Clone, Copy)]
struct First {
    phase: u64,
    origin: u64,
}

/// The current phase of a thread.
#[derive(Clone, Copy)]
pub struct Phase {
    origin: u64,
    pub end: u64,
    /// For later events of the box itself, and for frames, which other colours receive.
    own: First,
    others: First,
}

impl Phase {
    /// Phase `number`, up to `end` at most.
    pub fn new(timing: &Timing, number: u64, end: u64) -> Phase {
        let first = |phase| First { phase, origin: timing.origin(phase) };
        let whole = timing.end(number);
        // A phase that ends early continues later.
        let own = if end < whole { number } else { number + timing.colours() };
        Phase { origin: timing.origin(number), end: end.min(whole), own: first(own), others: first(number + 1) }
    }
}

/// Events that a box scheduled for itself in the rest of the phase, without the first one.
#[derive(Debug, Default)]
pub struct OwnEvents {
    /// In order, from number `next` on.
    keys: Vec<Key>,
    next: usize,
}

impl OwnEvents {
    /// Stores the later one of `key` and `first`, the earliest of all such events; `first` becomes the earlier one.
    #[inline(always)]
    fn insert(&mut self, first: &mut Key, key: Key) {
        let later = (*first).max(key);
        *first = (*first).min(key);
        if later != Key::NEVER {
            self.insert_later(later);
        }
    }

    /// Stores an event, which is mostly later than the others.
    #[inline(always)]
    fn insert_later(&mut self, key: Key) {
        match self.keys.last() {
            Some(&last) if last > key => self.insert_between(key),
            _ => self.keys.push(key),
        }
    }

    #[cold]
    #[inline(never)]
    fn insert_between(&mut self, key: Key) {
        let at = self.next + self.keys[self.next..].partition_point(|&other| other < key);
        self.keys.insert(at, key);
    }

    /// Removes the earliest event.
    #[inline(always)]
    fn pop(&mut self) -> Key {
        match self.keys.get(self.next) {
            Some(&key) => {
                self.next += 1;
                key
            }
            None => {
                self.keys.clear();
                self.next = 0;
                Key::NEVER
            }
        }
    }
}

/// The state that a step may use besides the box.
pub struct StepContext<'a> {
    pub timing: &'a Timing,
    pub me: u16,
    pub phase: Phase,
    pub pool: &'a mut Pool<Packet>,
    pub lanes: &'a mut [Vec<Entry>],
    pub heap: &'a mut EventHeap,
    pub outboxes: &'a mut [Vec<Parcel>],
    pub captured: &'a mut Vec<Captured>,
    /// Earliest arrival of any parcel sent in this phase.
    pub sent_min: &'a mut u64,
    /// Whether the frames exceed the numbers that event keys can hold: the run cannot continue.
    pub is_full: &'a mut bool,
}

impl StepContext<'_> {
    /// Lane of an event from `first` on, or `None` when it lies beyond the ring.
    #[inline(always)]
    fn lane_of(&self, at: u64, first: First) -> Option<(usize, u64)> {
        let ahead = at.wrapping_sub(first.origin);
        debug_assert!(ahead <= i64::MAX as u64, "an event before its first phase");
        let phases = self.timing.phases_in(ahead);
        if phases >= self.timing.reach {
            return None;
        }
        let lane = self.timing.lane(first.phase + (phases << self.timing.colours));
        Some((lane, ahead - phases * self.timing.phase))
    }

    /// A frame or metadata arrives at a box of this thread, in `first` or later.
    #[inline(always)]
    fn arrive(&mut self, at: u64, first: First, node: u32, (class, port): (Class, u16), frame: Handle) {
        if frame.index() >= self.timing.frames_max {
            return self.overflow(at, node, port, frame);
        }
        match self.lane_of(at, first) {
            Some((lane, time)) => {
                self.lanes[lane].push(Entry { node, key: Key::new(time, class, port, frame.index()) })
            }
            None => self.heap.push(at, node, HeapEvent::Arrival(port, frame)),
        }
    }

    /// Stores a frame without an event key in the heap, where it is still counted.
    #[cold]
    #[inline(never)]
    fn overflow(&mut self, at: u64, node: u32, port: u16, frame: Handle) {
        *self.is_full = true;
        self.heap.push(at, node, HeapEvent::Arrival(port, frame));
    }

    /// Schedules an event of a box for itself: returns it if it is in this phase, else stores it in a lane or in the heap.
    /// `frame` will probably be read then.
    #[inline(always)]
    fn schedule(&mut self, at: u64, node: u32, class: Class, port: u16, frame: Handle) -> Option<Key> {
        let frame = frame.index() & (MAX_FRAMES as u32 - 1);
        if at < self.phase.end {
            return Some(Key::new(at.wrapping_sub(self.phase.origin), class, port, frame));
        }
        match self.lane_of(at, self.phase.own) {
            Some((lane, time)) => self.lanes[lane].push(Entry { node, key: Key::new(time, class, port, frame) }),
            None => {
                let event = if class == Class::Timer { HeapEvent::Timer } else { HeapEvent::WireFree(port) };
                self.heap.push(at, node, event);
            }
        }
        None
    }

    /// Starts a frame on a free wire; few wires need the error rates of the box, its number and the port.
    #[inline(always)]
    fn transmit(&mut self, wire: &mut Wire, frame: Handle, now: u64, errors: &[f64], node: u32, port: PortId) {
        debug_assert!(wire.free_at <= now);
        let packet = self.pool.frame(frame);
        let (len, pause) = (packet.len(), packet.kind() == Kind::Pause);
        wire.free_at = now + (((len + self.timing.overhead) as u64 * wire.ps_per_byte_q16) >> 16);
        wire.frames += 1;
        wire.bytes += len as u64;
        let last_bit = wire.free_at - ((wire.gap as u64 * wire.ps_per_byte_q16) >> 16);
        let at = if pause {
            last_bit + wire.pause_latency
        } else if wire.flags & FIRST_BIT != 0 {
            now + wire.latency
        } else {
            last_bit + wire.latency
        };
        if wire.flags & (ERRORS | CAPTURE | WAKES | REMOTE) != 0 {
            if wire.flags & (ERRORS | CAPTURE | WAKES) != 0 {
                self.transmit_rare(wire, frame, now, errors, node, port);
            }
            if wire.flags & REMOTE != 0 {
                return self.send(at, wire, frame);
            }
        }
        self.arrive(at, self.phase.others, wire.peer, (Class::Arrival, wire.peer_port), frame);
    }

    /// The rare steps of a transmission: capturing a frame, damaging it, or waking its receiver.
    #[cold]
    #[inline(never)]
    fn transmit_rare(&mut self, wire: &Wire, frame: Handle, now: u64, errors: &[f64], node: u32, port: PortId) {
        if wire.flags & WAKES != 0 {
            self.heap.wake(wire.peer);
        }
        let packet = self.pool.frame_mut(frame);
        if wire.flags & CAPTURE != 0 {
            self.captured.push(Captured { at: now, node, port, packet: *packet });
        }
        if wire.flags & ERRORS != 0 {
            let bits = 8.0 * packet.len() as f64;
            // 1 - (1 - p)^bits without losing small p; the draw depends on the link and its count of frames.
            let damaged = -libm::expm1(bits * libm::log1p(-errors[port as usize]));
            let draw = hash_words(&[self.timing.seed, node as u64, port as u64, wire.frames]) >> 11;
            if (draw as f64) < damaged * (1u64 << 53) as f64 {
                packet.corrupt();
            }
        }
    }

    /// Sends a frame to a box of another thread.
    #[cold]
    #[inline(never)]
    fn send(&mut self, at: u64, wire: &Wire, frame: Handle) {
        self.post(wire.shard, Parcel { at, node: wire.peer, port: wire.peer_port, packet: *self.pool.frame(frame) });
        self.pool.release(frame);
    }

    /// Puts a parcel into the outbox to another thread.
    #[inline(always)]
    fn post(&mut self, shard: u16, parcel: Parcel) {
        *self.sent_min = (*self.sent_min).min(parcel.at);
        self.outboxes[shard as usize].push(parcel);
    }

    /// Sends the metadata of server `from`.
    #[cold]
    pub fn post_metadata(&mut self, from: u32, metadata: &mut Vec<(Instant, Packet)>, servers: &Servers) {
        for (now, packet) in metadata.drain(..) {
            let to = packet.destination();
            let Some(&(shard, node)) = servers.location.get(to as usize) else { continue };
            let at = now.as_ps() + servers.accesses.time(from, to);
            debug_assert!(at >= now.as_ps() + self.timing.metadata_windows * self.timing.window);
            if shard == self.me {
                self.heap.wake(node);
                let frame = self.pool.insert(&packet);
                self.arrive(at, self.phase.own, node, (Class::Metadata, METADATA_PORT), frame);
            } else {
                self.post(shard, Parcel { at, node, port: METADATA_PORT, packet });
            }
        }
    }
}

/// The event of an arriving frame or of message metadata.
#[inline(always)]
pub fn arrival(time: u64, port: u16, frame: Handle) -> Key {
    Key::new(time, if port == METADATA_PORT { Class::Metadata } else { Class::Arrival }, port, frame.index())
}

/// The frame of an arrival or of message metadata.
#[inline(always)]
pub fn frame_of(key: Key) -> Handle {
    Handle::from_index(key.frame() as u32)
}

/// Number of events by which the frames of a box are prefetched.
pub const AHEAD: usize = 8;

/// Prefetches the cache line at `at` into the nearest cache.
#[inline(always)]
pub fn fetch(at: *const u8) {
    prefetch::<true>(at);
}

/// Prefetches the cache line at `at` into the second cache: for many lines, or lines needed late. They would push out of the
/// nearest cache what the boxes in between need.
#[inline(always)]
pub fn fetch_far(at: *const u8) {
    prefetch::<false>(at);
}

#[inline(always)]
#[allow(unsafe_code)]
fn prefetch<const NEAREST: bool>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it has no effect that a program can observe and never faults, whatever the address. A
    // phase touches more memory than the caches hold; lines prefetched one to nine boxes ahead are in a cache when they
    // are needed.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if NEAREST { _mm_prefetch::<_MM_HINT_T0>(at.cast()) } else { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The events of one box in one phase.
pub struct Step<'a, 'b> {
    /// The number of the box in the world, and its index in this thread's shard.
    pub name: u32,
    pub n: u32,
    pub wires: &'a mut [Wire],
    pub errors: &'a [f64],
    pub timer_at: &'a mut u64,
    pub woke: &'a mut PortSet,
    pub own_events: &'a mut OwnEvents,
    pub context: &'a mut StepContext<'b>,
}

impl Step<'_, '_> {
    /// Processes `events` and the events that the box schedules meanwhile. `events` were scheduled by other boxes and in
    /// earlier phases; they are in order and end with [`Key::NEVER`].
    #[inline(always)]
    pub fn run<D: Device<Packet>>(
        &mut self,
        device: &mut D,
        events: &mut [Key],
        receive_metadata: impl Fn(&mut D, Instant, &Packet, &mut Pool<Packet>, &mut PortSet),
    ) {
        let (name, n, errors) = (self.name, self.n, self.errors);
        let (wires, woke, own_events, context) =
            (&mut *self.wires, &mut *self.woke, &mut *self.own_events, &mut *self.context);
        let origin = context.phase.origin;
        let mut timer_at = *self.timer_at;
        let (mut i, mut drawn) = (0, 0);
        // A frame that probably waits for the wire that is looked at.
        let mut waiting = Handle::from_index(0);
        // The next event from other boxes or earlier phases, and the next event scheduled in this step.
        let (mut next, mut own) = (events[0], Key::NEVER);
        loop {
            let mut key = next;
            if own < key {
                key = core::mem::replace(&mut own, own_events.pop());
            } else {
                if key == Key::NEVER {
                    break;
                }
                next = events[i + 1];
                // A switch with many ports has hundreds of events, whose frames are prefetched as it goes.
                if let Some(&key) = events.get(i + AHEAD) {
                    fetch(context.pool.address(frame_of(key)));
                }
                if next.shares_instant(key) {
                    drawn = draw(context, name, events, i, drawn, origin.wrapping_add(key.time()));
                    (key, next) = (events[i], events[i + 1]);
                }
                i += 1;
            }
            let now = origin.wrapping_add(key.time());
            let mut ready = None;
            if key.is(Class::Arrival) {
                let frame = frame_of(key);
                waiting = frame;
                let view = PortView { wires, now };
                if let Some(port) = device.receive(Instant(now), key.port(), frame, context.pool, &view, woke) {
                    debug_assert!(woke.is_empty());
                    context.transmit(&mut wires[port as usize], frame, now, errors, name, port);
                    continue;
                }
            } else if key.is(Class::WireFree) {
                wires[key.port() as usize].flags &= !ARMED;
                ready = Some(key.port());
            } else if key.is(Class::Metadata) {
                let packet = *context.pool.frame(frame_of(key));
                context.pool.release(frame_of(key));
                receive_metadata(device, Instant(now), &packet, context.pool, woke);
            } else if timer_at == now {
                timer_at = u64::MAX;
                device.handle_timeout(Instant(now), context.pool, woke);
            }
            if ready.is_none() {
                ready = woke.pop();
            }
            while let Some(port) = ready {
                let wire = &mut wires[port as usize];
                if wire.free_at <= now {
                    if let Some(frame) = device.poll_transmit(Instant(now), port, context.pool, woke) {
                        // The next frame has often waited for long: it will be needed when the wire is free again.
                        waiting = device.next_frame(frame, context.pool);
                        fetch(context.pool.address(waiting));
                        context.transmit(wire, frame, now, errors, name, port);
                    }
                } else if wire.flags & ARMED == 0 {
                    wire.flags |= ARMED;
                    if let Some(key) = context.schedule(wire.free_at, n, Class::WireFree, port, waiting) {
                        own_events.insert(&mut own, key);
                    }
                }
                ready = woke.pop();
            }
            let deadline = device.poll_timeout().as_ps();
            if deadline < timer_at {
                timer_at = deadline.max(now);
                if let Some(key) = context.schedule(timer_at, n, Class::Timer, 0, Handle::from_index(0)) {
                    own_events.insert(&mut own, key);
                }
            }
        }
        *self.timer_at = timer_at;
    }
}

/// Draws the order of the events that share an instant with event `i`, unless it is drawn up to `drawn`; returns the end of
/// the drawn events.
#[cold]
#[inline(never)]
fn draw(context: &StepContext<'_>, name: u32, keys: &mut [Key], i: usize, drawn: usize, now: u64) -> usize {
    if i < drawn {
        return drawn;
    }
    let instant = keys[i].instant();
    // Free wires are processed in the order of their ports, and there is only one timer.
    let end = i + keys[i..].iter().take_while(|k| k.instant() == instant).count();
    if !(keys[i].is(Class::Arrival) || keys[i].is(Class::Metadata)) {
        return end;
    }
    let content = |k: Key| content(context.pool.frame(frame_of(k)), k.port());
    draw_order(&mut keys[i..end], context.timing.seed, name, now, content);
    end
}

/// Orders arrivals of one instant at one port. Only a pause can arrive beside another frame, and it goes first. Metadata of
/// one connection is ordered by topic, then by the order of its bytes, like the segments it stands for, and then by all its
/// words.
fn content(packet: &Packet, port: u16) -> [u64; 4] {
    if port != METADATA_PORT {
        return [!packet.is_pause() as u64, 0, 0, 0];
    }
    let f = packet.flow();
    let w = packet.metadata_words();
    let flow =
        hash_words(&[(f.src.to_bits() as u64) << 32 | f.dst.to_bits() as u64, (f.sport as u64) << 16 | f.dport as u64]);
    [flow, packet.metadata_topic() as u64, w[0], hash_words(&[flow, w[1], w[2]])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_node::packet::{Address, FlowKey};

    #[test]
    fn metadata_of_a_connection_comes_in_the_order_of_its_bytes() {
        let flow = FlowKey { src: Address::new(1, 0), dst: Address::new(2, 0), sport: 5, dport: 6 };
        let order: Vec<[u64; 4]> = [(1, 10), (1, 20), (1, 3_000), (2, 5), (2, 10)]
            .map(|(topic, end)| content(&Packet::metadata(flow, [end, 99 - topic, topic << 56 | 7]), METADATA_PORT))
            .into();
        assert!(order.is_sorted());
    }
}
