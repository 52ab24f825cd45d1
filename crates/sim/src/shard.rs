//! The part of the world that one thread simulates: its boxes, their wires and their future events.
//!
//! A *window* is no longer than the shortest path of a message between boxes. If links join only boxes of two different
//! colours, time advances in *phases*: in phase p the boxes of colour p mod 2 process the events of windows p - 1 and p. Frames
//! that they send reach the other colour in phase p + 1 or later. In any other world all boxes have one colour, and phase p is
//! window p. In each phase every box with events has one step. A *lane* holds the events of one phase; the lanes form a ring,
//! and events beyond the ring wait in [`EventHeap`].

use crate::access::Accesses;
use crate::agenda::{Agenda, Entry};
use crate::event::{Class, Key, MAX_FRAMES, METADATA_PORT};
use crate::event_heap::{EventHeap, HeapEvent};
use crate::huge_pages;
use crate::step::{
    AHEAD, Captured, OwnEvents, Parcel, Phase, Servers, Step, StepContext, Timing, arrival, fetch, fetch_far, frame_of,
};
use crate::wire::{ARMED, CAPTURE, WAKES, Wire};
use crate::world::{Make, NetworkBox, Node, NodeRef};
use core::ops::Range;
use sluicenet_node::device::{Device, PortId, PortSet};
use sluicenet_node::packet::Packet;
use sluicenet_node::pool::{Handle, Pool};
use sluicenet_node::server::{App, Plan, PrefetchStep};
use sluicenet_node::switch::{OnSwitch, PauseEvent, Switch};
use sluicenet_node::with_server;
use sluicenet_proto::time::Instant;
use std::sync::Arc;

/// Most lanes: with more lanes, a box's empty lists would outweigh the box.
pub const MAX_LANES: usize = 64;

/// Frames for which a thread's pool has address space, per wire: more than the queues usually hold.
const FRAMES_PER_WIRE: usize = 256;

/// A box and the world's data about it, side by side: each step uses all of it.
pub struct Place<A> {
    pub node: Node<A>,
    /// Time of the box's earliest timer event.
    timer_at: u64,
    /// Its wires in [`Shard::wires`], from the first to the one after the last.
    first_wire: u32,
    end_wire: u32,
    /// The number of the box in the world.
    pub name: u32,
    colour: u8,
}

impl<A> Place<A> {
    /// Box `name` of the world, whose wires are `wires`.
    pub fn new(node: Node<A>, name: u32, colour: u8, wires: Range<u32>) -> Place<A> {
        Place { node, timer_at: u64::MAX, first_wire: wires.start, end_wire: wires.end, name, colour }
    }

    /// The number of the wire of a port.
    pub fn wire(&self, port: PortId) -> usize {
        self.first_wire as usize + port as usize
    }

    /// The box's wires, by number.
    #[inline(always)]
    pub fn span(&self) -> Range<usize> {
        self.first_wire as usize..self.end_wire as usize
    }
}

/// A thread's part of the world.
pub struct Shard<A> {
    pub timing: Timing,
    pub me: u16,
    pub places: Vec<Place<A>>,
    pub wires: Vec<Wire>,
    /// The error rate of each wire; empty if no wire has one.
    error_rate: Vec<f64>,
    /// Shard and index of every box of the world, for metadata to servers, and the number of servers, which come first.
    location: Arc<Vec<(u16, u32)>>,
    hosts: usize,
    accesses: Arc<Accesses>,
    make: Arc<Make<A>>,
    /// Every frame in these boxes and in flight to them.
    pub pool: Pool<Packet>,
    lanes: Vec<Vec<Entry>>,
    agenda: Agenda,
    /// The first box with a link to another thread; the border is all boxes from here on.
    border: u32,
    own_events: OwnEvents,
    heap: EventHeap,
    pub outboxes: Vec<Vec<Parcel>>,
    woke: PortSet,
    /// Whether the boxes exceed the nearest cache, so that prefetching pays.
    fetches: bool,
    metadata: Vec<(Instant, Packet)>,
    pub pauses: Vec<(u32, PauseEvent)>,
    pub captured: Vec<Captured>,
    /// Earliest arrival of any parcel that this shard sent in the last phase, and in the one before: its interior's parcels
    /// may still be under way.
    sent_min: u64,
    sent_before: u64,
    /// Whether an arrival had no number left for its frame: the shard stops.
    pub is_full: bool,
}

impl<A: App> Shard<A> {
    /// A shard of these boxes, whose wires are all in `wires`, each with its error rate if any has one.
    pub fn new(
        timing: Timing,
        (me, shards): (u16, usize),
        (places, wires, error_rate): (Vec<Place<A>>, Vec<Wire>, Vec<f64>),
        (location, hosts): (Arc<Vec<(u16, u32)>>, u32),
        accesses: Arc<Accesses>,
        make: Arc<Make<A>>,
    ) -> Shard<A> {
        let n = places.len();
        let pool = Pool::with_capacity((wires.len() * FRAMES_PER_WIRE).min(MAX_FRAMES));
        if n > FETCH_FROM {
            huge_pages::ask(pool.address(Handle::from_index(0)), pool.capacity_bytes());
        }
        let crosses = |place: &Place<A>| wires[place.span()].iter().any(|wire| wire.shard != me);
        let border = places.iter().position(crosses).unwrap_or(n) as u32;
        Shard {
            timing,
            me,
            places,
            error_rate,
            location,
            hosts: hosts as usize,
            accesses,
            make,
            pool,
            wires,
            lanes: (0..timing.lanes).map(|_| Vec::new()).collect(),
            agenda: Agenda::new(n, timing.phase),
            border,
            own_events: OwnEvents::default(),
            heap: EventHeap::default(),
            outboxes: (0..shards).map(|_| Vec::new()).collect(),
            woke: PortSet::with_capacity(64),
            fetches: n > FETCH_FROM,
            metadata: Vec::new(),
            pauses: Vec::new(),
            captured: Vec::new(),
            sent_min: u64::MAX,
            sent_before: u64::MAX,
            is_full: false,
        }
    }

    /// The wires of box `n` (its index in this shard).
    pub fn wires_of(&self, n: usize) -> &[Wire] {
        &self.wires[self.places[n].span()]
    }

    /// Frames sent on links.
    pub fn hops(&self) -> u64 {
        self.wires.iter().map(|w| w.frames).sum()
    }

    /// A wire of box `n`.
    fn wire(&mut self, n: usize, port: PortId) -> &mut Wire {
        &mut self.wires[self.places[n].wire(port)]
    }

    /// Marks a wire for capture.
    pub fn capture(&mut self, n: usize, port: PortId) {
        self.wire(n, port).flags |= CAPTURE;
    }

    /// The link of a switch's port fails, or recovers; the next windows begin at `now`.
    pub fn set_link(&mut self, now: Instant, n: usize, port: PortId, up: bool) {
        self.made(n);
        let place = &mut self.places[n];
        let first = place.first_wire as usize;
        let Some(switch) = place.node.as_switch_mut() else { return };
        switch.set_link(now, port, up, &mut self.pool, &mut self.woke);
        while let Some(port) = self.woke.pop() {
            let wire = &mut self.wires[first + port as usize];
            if wire.flags & ARMED == 0 {
                wire.flags |= ARMED;
                self.heap.push(wire.free_at.max(now.as_ps()), n as u32, HeapEvent::WireFree(port));
            }
        }
        let deadline = Device::<Packet>::poll_timeout(&*switch).as_ps();
        if deadline < place.timer_at {
            place.timer_at = deadline.max(now.as_ps());
            self.heap.push(place.timer_at, n as u32, HeapEvent::Timer);
        }
    }

    /// A wire has another rate from the next frame on.
    pub fn set_rate(&mut self, n: usize, port: PortId, ps_per_byte_q16: u64) {
        self.wire(n, port).set_rate(ps_per_byte_q16);
    }

    /// Drops the frames in flight to a switch's port.
    pub fn cut(&mut self, n: usize, port: PortId) {
        let Some(switch) = self.places[n].node.as_switch_mut() else { return };
        let pool = &mut self.pool;
        for lane in &mut self.lanes {
            lane.retain(|e| {
                let stays = e.node != n as u32 || !e.key.is(Class::Arrival) || e.key.port() != port;
                if !stays {
                    switch.lose(port, frame_of(e.key), pool);
                }
                stays
            });
        }
        self.heap.take(n as u32, port, |frame| switch.lose(port, frame, pool));
    }

    /// Schedules the first deadlines of all boxes.
    pub fn start(&mut self) {
        for (n, place) in self.places.iter_mut().enumerate() {
            let deadline = match place.node.kind() {
                NodeRef::Switch(s) => Device::<Packet>::poll_timeout(s),
                NodeRef::Server(s) => with_server!(s, s => s.poll_timeout()),
                NodeRef::Bump(bump) => bump.poll_timeout(),
                NodeRef::Idle => Instant::MAX,
            };
            if deadline != Instant::MAX {
                place.timer_at = deadline.as_ps();
                self.heap.push(deadline.as_ps(), n as u32, HeapEvent::Timer);
            }
        }
    }

    /// The first phase after `phase` that may have an event here or in parcels of this shard that are under way.
    pub fn next_phase(&self, phase: u64) -> u64 {
        let lanes = self.timing.lanes as u64;
        let near = (phase + 1..phase + lanes).find(|&p| !self.lanes[self.timing.lane(p)].is_empty());
        // A window's events fall in the phase of its number or in the one after it.
        let far = self.sent_min.min(self.sent_before).min(self.first_far());
        let far = if far == u64::MAX { u64::MAX } else { far / self.timing.window };
        near.unwrap_or(u64::MAX).min(far).max(phase + 1)
    }

    /// The time of the first event, of which none is in a phase before `from`.
    pub fn next_event(&self, from: u64) -> u64 {
        let mut first = self.first_far();
        for phase in from..from + self.timing.lanes as u64 {
            if self.timing.begin(phase) >= first {
                break;
            }
            let times = self.lanes[self.timing.lane(phase)].iter().map(|e| ({ e.key }).time());
            first = first.min(times.min().map_or(u64::MAX, |time| self.timing.origin(phase).wrapping_add(time)));
        }
        first
    }

    /// The time of the first event that is not in a lane.
    pub fn first_far(&self) -> u64 {
        self.heap.next().unwrap_or(u64::MAX)
    }

    /// Takes the parcels that other shards sent; no phase before `oldest` has events.
    pub fn take_in(&mut self, oldest: u64, parcels: &mut Vec<Parcel>) {
        for p in parcels.drain(..) {
            if p.port == METADATA_PORT {
                self.heap.wake(p.node);
            }
            let frame = self.pool.insert(&p.packet);
            let phase = self.timing.phase_of(p.at, self.places[p.node as usize].colour);
            debug_assert!(phase >= oldest);
            if frame.index() >= self.timing.frames_max {
                self.is_full = true;
            } else if phase < oldest + self.timing.lanes as u64 {
                let key = arrival(p.at.wrapping_sub(self.timing.origin(phase)), p.port, frame);
                self.lanes[self.timing.lane(phase)].push(Entry { node: p.node, key });
                continue;
            }
            self.heap.push(p.at, p.node, HeapEvent::Arrival(p.port, frame));
        }
    }

    /// The boxes, and the other state that a step may use.
    fn split(&mut self, phase: Phase) -> (Boxes<'_, A>, StepContext<'_>, &mut Agenda) {
        let boxes = Boxes {
            places: &mut self.places,
            wires: &mut self.wires,
            error_rate: &self.error_rate,
            servers: Servers { location: &self.location[..self.hosts], accesses: &self.accesses },
            metadata: &mut self.metadata,
            pauses: &mut self.pauses,
            woke: &mut self.woke,
            own_events: &mut self.own_events,
        };
        let context = StepContext {
            timing: &self.timing,
            me: self.me,
            phase,
            pool: &mut self.pool,
            lanes: &mut self.lanes,
            heap: &mut self.heap,
            outboxes: &mut self.outboxes,
            captured: &mut self.captured,
            sent_min: &mut self.sent_min,
            is_full: &mut self.is_full,
        };
        (boxes, context, &mut self.agenda)
    }

    /// Makes the idle boxes that something is on its way to, and moves events that have come within the ring from the heap to
    /// the lanes. No phase before `oldest` has events.
    fn approach(&mut self, oldest: u64) {
        if self.heap.is_waking() {
            self.wake();
        }
        let end = self.timing.time_of(oldest + self.timing.lanes as u64 - 1);
        while let Some((at, node, event)) = self.heap.pop_before(end) {
            let phase = self.timing.phase_of(at, self.places[node as usize].colour);
            debug_assert!(phase >= oldest);
            let time = at.wrapping_sub(self.timing.origin(phase));
            let key = match event {
                HeapEvent::Timer => Key::new(time, Class::Timer, 0, 0),
                HeapEvent::WireFree(port) => Key::new(time, Class::WireFree, port, 0),
                HeapEvent::Arrival(port, frame) => arrival(time, port, frame),
            };
            self.lanes[self.timing.lane(phase)].push(Entry { node, key });
        }
    }

    /// Makes the idle boxes that something is on its way to.
    #[cold]
    #[inline(never)]
    fn wake(&mut self) {
        while let Some(n) = self.heap.pop_waking() {
            self.made(n as usize);
        }
    }

    /// Box `n`, made if it was idle.
    pub fn made(&mut self, n: usize) -> &mut Node<A> {
        if self.places[n].node.is_idle() {
            self.places[n].node = (self.make)(self.places[n].name);
            for at in self.places[n].span() {
                let (shard, peer, port) = self.wires[at].peer();
                if shard == self.me {
                    self.wire(peer as usize, port).flags &= !WAKES;
                }
            }
        }
        &mut self.places[n].node
    }

    /// Simulates phase `number` up to `end` at most: one step of every box with events, in memory order.
    pub fn sweep(&mut self, number: u64, end: u64) {
        self.arrange(number, end);
        self.steps(number, end, 0..self.agenda.len());
    }

    /// Puts the events of phase `number` before `end` into the agenda; none if the shard is full.
    pub fn arrange(&mut self, number: u64, end: u64) {
        self.sent_before = std::mem::replace(&mut self.sent_min, u64::MAX);
        if self.is_full {
            return self.agenda.clear();
        }
        self.approach(self.timing.oldest(number, end));
        let lane = &mut self.lanes[self.timing.lane(number)];
        if end < self.timing.end(number) {
            let before = end.wrapping_sub(self.timing.origin(number));
            let later: Vec<Entry> = lane.extract_if(.., |e| ({ e.key }).time() >= before).collect();
            self.agenda.arrange(lane);
            lane.extend(later);
        } else {
            self.agenda.arrange(lane);
        }
    }

    /// Simulates the border in phase `number`.
    pub fn sweep_border(&mut self, number: u64, end: u64) {
        self.steps(number, end, self.agenda.len_before(self.border)..self.agenda.len());
    }

    /// Simulates the other boxes in phase `number`.
    pub fn sweep_interior(&mut self, number: u64, end: u64) {
        self.steps(number, end, 0..self.agenda.len_before(self.border));
    }

    /// One step of the boxes at `turns` in the agenda of phase `number`.
    #[inline(never)]
    fn steps(&mut self, number: u64, end: u64, turns: Range<usize>) {
        let phase = Phase::new(&self.timing, number, end);
        let fetches = self.fetches;
        let (mut boxes, mut context, agenda) = self.split(phase);
        let mut coming = [Coming::NONE; 8];
        for i in turns {
            if fetches {
                boxes.fetch_ahead(&context, agenda, i, &mut coming);
            }
            let (n, keys) = agenda.turn_mut(i);
            boxes.step(&mut context, n, keys);
        }
    }

    /// Frames and metadata in flight, with the box and port they will reach.
    pub fn in_flight(&self) -> impl Iterator<Item = (u32, u16, &Packet)> {
        let near = self
            .lanes
            .iter()
            .flatten()
            .map(|e| (e.node, e.key))
            .filter(|(_, k)| k.is(Class::Arrival) || k.is(Class::Metadata));
        let near = near.map(|(node, k)| (node, k.port(), self.pool.frame(frame_of(k))));
        let beyond = self.heap.iter().filter_map(|(_, node, event)| match event {
            HeapEvent::Arrival(port, frame) => Some((node, *port, self.pool.frame(*frame))),
            _ => None,
        });
        near.chain(beyond)
    }
}

/// The boxes of a shard, without the state they share.
struct Boxes<'a, A> {
    places: &'a mut [Place<A>],
    wires: &'a mut [Wire],
    error_rate: &'a [f64],
    servers: Servers<'a>,
    metadata: &'a mut Vec<(Instant, Packet)>,
    pauses: &'a mut Vec<(u32, PauseEvent)>,
    woke: &'a mut PortSet,
    own_events: &'a mut OwnEvents,
}

/// A switch's turn in a phase.
struct Turn<'s, 'a, 'b> {
    step: &'s mut Step<'a, 'b>,
    events: &'s mut [Key],
}

impl OnSwitch<Packet> for Turn<'_, '_, '_> {
    #[inline(always)]
    fn run(self, switch: &mut impl Device<Packet>) {
        self.step.run(switch, self.events, |_, _, _, _, _| {});
    }
}

impl<A: App> Boxes<'_, A> {
    /// Prefetches the memory that the next boxes will use. A chain of look-ups spans several boxes: each stage reads memory
    /// that the stage before has prefetched while another box had its step. The first stages prefetch into the second cache
    /// only: the lines of so many boxes would fill the nearest one.
    #[inline(always)]
    fn fetch_ahead(&self, context: &StepContext<'_>, agenda: &Agenda, i: usize, coming: &mut [Coming; 8]) {
        if let Some(n) = agenda.node(i + 9) {
            self.fetch_box(n);
        }
        fetch(context.pool.address(context.pool.next_free()));
        self.fetch_server(context, agenda, i + 6, &mut coming[(i + 6) & 7]);
        self.fetch_switch(context.pool, agenda, i + SWITCH_AHEAD);
        self.fetch_step(context.pool, &mut coming[(i + 5) & 7], PrefetchStep::Frames);
        self.fetch_step(context.pool, &mut coming[(i + 4) & 7], PrefetchStep::Index);
        self.fetch_step(context.pool, &mut coming[(i + 3) & 7], PrefetchStep::Sockets);
        self.fetch_step(context.pool, &mut coming[(i + 2) & 7], PrefetchStep::Unusual);
        self.fetch_step(context.pool, &mut coming[(i + 1) & 7], PrefetchStep::Losses);
    }

    #[inline(always)]
    fn fetch_box(&self, n: usize) {
        let first: *const u8 = match &self.places[n].node {
            Node::Network(network) => core::ptr::from_ref(reached(network.as_deref())).cast(),
            // Every server begins with its host.
            Node::Server(s) => core::ptr::from_ref(s.host()).cast(),
        };
        (0..BOX_LINES).for_each(|line| fetch_far(first.wrapping_add(64 * line)));
    }

    /// Fetches the ports of a switch and the frames that arrive at it.
    #[inline(always)]
    fn fetch_switch(&self, pool: &Pool<Packet>, agenda: &Agenda, i: usize) {
        let Some((n, keys)) = agenda.turn(i) else { return };
        let place = &self.places[n];
        let Node::Network(network) = &place.node else { return };
        keys.iter().take(AHEAD).for_each(|&key| fetch_far(pool.address(frame_of(key))));
        let wires = place.span();
        // Few events use few of many ports, and which is not known before the frames are routed.
        if wires.len() <= PORTS_PER_EVENT * keys.len() {
            self.wires[wires].iter().for_each(|w| fetch_far(core::ptr::from_ref(w).cast()));
            if let NetworkBox::Switch(Switch::Unwatched(s)) = reached(network.as_deref()) {
                s.fetch(fetch_far);
            }
        }
    }

    /// Fetches the lists of a server and the frames that arrive at it, and begins its plan.
    #[inline(always)]
    fn fetch_server(&self, context: &StepContext<'_>, agenda: &Agenda, i: usize, coming: &mut Coming) {
        coming.plan.begin(Instant(context.phase.end));
        let Some((n, keys)) = agenda.turn(i) else { return };
        let place = &self.places[n];
        let Node::Server(s) = &place.node else { return };
        coming.n = n as u32;
        fetch(self.wires.as_ptr().wrapping_add(place.first_wire as usize).cast());
        // Without queues between wire and socket: mostly several frames of one connection.
        let mut first = s.is_bare();
        for &key in keys.iter().take(AHEAD) {
            fetch(context.pool.address(frame_of(key)));
            if key.is(Class::Metadata) | (key.is(Class::Arrival) & first) {
                coming.plan.await_packet(frame_of(key));
                first = false;
            }
        }
        s.host().fetch(PrefetchStep::Lists, &mut coming.plan, context.pool, fetch);
        if s.fetches_stages()
            && let Some(&key) = keys.iter().take(AHEAD).find(|key| key.is(Class::Arrival))
        {
            coming.plan.await_arrival(frame_of(key));
            s.fetch_stages(PrefetchStep::Lists, &coming.plan, context.pool, fetch);
        }
    }

    #[inline(always)]
    fn fetch_step(&self, pool: &Pool<Packet>, coming: &mut Coming, step: PrefetchStep) {
        if !coming.plan.is_empty()
            && let Node::Server(s) = &self.places[coming.n as usize].node
        {
            s.fetch_stages(step, &coming.plan, pool, fetch);
            s.host().fetch(step, &mut coming.plan, pool, fetch);
        }
    }

    /// Processes all events of one box in this phase, in order; [`Key::NEVER`] follows them.
    #[inline(always)]
    fn step(&mut self, context: &mut StepContext<'_>, n: usize, events: &mut [Key]) {
        let place = &mut self.places[n];
        let wires = place.span();
        let errors = if self.error_rate.is_empty() { &[] } else { &self.error_rate[wires.clone()] };
        let mut step = Step {
            name: place.name,
            n: n as u32,
            wires: &mut self.wires[wires],
            errors,
            timer_at: &mut place.timer_at,
            woke: self.woke,
            own_events: self.own_events,
            context,
        };
        // One loop for each kind of box, so that the loop never checks the kind.
        match &mut place.node {
            Node::Network(network) => match reached(network.as_deref_mut()) {
                NetworkBox::Switch(Switch::Unwatched(s)) => {
                    s.run(Turn { step: &mut step, events });
                    if s.has_pauses() {
                        self.pauses.extend(s.take_pauses().into_iter().map(|p| (step.name, p)));
                    }
                }
                _ => self.step_apart(context, n, events),
            },
            Node::Server(s) => {
                with_server!(s, s => {
                    step.run(&mut **s, events, |s, now, packet, pool, woke| s.receive_metadata(now, packet, pool, woke));
                });
                let host = s.host_mut();
                if host.has_metadata() {
                    host.take_metadata(self.metadata);
                    step.context.post_metadata(step.name, self.metadata, &self.servers);
                }
                if host.has_pauses() {
                    self.pauses.extend(host.take_pauses().into_iter().map(|p| (step.name, p)));
                }
            }
        }
    }

    /// Processes all events of a bump or of a switch with a watchdog. It makes a step of its own, out of line: if the address
    /// of the other boxes' step left their loops, the compiler would keep that step in memory.
    #[cold]
    #[inline(never)]
    fn step_apart(&mut self, context: &mut StepContext<'_>, n: usize, events: &mut [Key]) {
        let place = &mut self.places[n];
        let wires = place.span();
        let errors = if self.error_rate.is_empty() { &[] } else { &self.error_rate[wires.clone()] };
        let mut step = Step {
            name: place.name,
            n: n as u32,
            wires: &mut self.wires[wires],
            errors,
            timer_at: &mut place.timer_at,
            woke: self.woke,
            own_events: self.own_events,
            context,
        };
        let Node::Network(network) = &mut place.node else { return };
        match reached(network.as_deref_mut()) {
            NetworkBox::Bump(bump) => step.run(bump, events, |_, _, _, _, _| {}),
            NetworkBox::Switch(switch) => {
                if let Switch::Watched(s) = switch {
                    step.run(s, events, |_, _, _, _, _| {});
                }
                self.pauses.extend(switch.take_pauses().into_iter().map(|p| (step.name, p)));
            }
        }
    }
}

/// A box with events.
#[inline(always)]
#[allow(unsafe_code)]
fn reached<T>(network: Option<T>) -> T {
    // SAFETY: whatever sends to an idle box names it in `EventHeap::wake`; `Shard::approach` makes these boxes before a
    // phase looks at any event, and no box becomes idle again. A check would cost every step of a switch some instructions.
    unsafe { network.unwrap_unchecked() }
}

/// Number of boxes of a shard from which on memory is prefetched. With 284 virtualised servers and switches prefetching takes
/// a tenth more instructions and a fifth less time.
const FETCH_FROM: usize = 100;

/// The number of boxes between a switch whose ports are prefetched and the box that has its step. Ports are many lines: they
/// go to the second cache.
const SWITCH_AHEAD: usize = 4;

/// The memory of all ports of a switch is prefetched if its turn has an event for each so many ports.
const PORTS_PER_EVENT: usize = 8;

/// Cache lines of a box that every step touches.
const BOX_LINES: usize = 8;

/// A box whose step comes soon.
#[derive(Clone, Copy)]
struct Coming {
    n: u32,
    /// The packet events expected in the step, if the box is a server.
    plan: Plan,
}

impl Coming {
    const NONE: Coming = Coming { n: 0, plan: Plan::EMPTY };
}
