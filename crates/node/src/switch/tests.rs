//! A switch of three ports with a host at each, composed of ordinary parts and of parts that only tests have.

use super::*;
use crate::packet::{Address, FlowKey, Framing, Packet};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::table::TableRouter;
use sluicenet_proto::routing::{Policy, Router};
use sluicenet_wire::ipv4::Ecn;

const PORTS: u16 = 3;
/// Payload of a test frame, in bytes; its frame is longer by `HEADERS`.
const PAYLOAD: u16 = 972;
const FRAME: u32 = PAYLOAD as u32 + HEADERS;
const HEADERS: u32 = 46;

struct Links {
    are_idle: bool,
}

impl Wires for Links {
    fn idle(&self, _: PortId) -> bool {
        self.are_idle
    }
}

/// A switch, and the state that tests observe.
struct World<D> {
    switch: D,
    pool: Pool<Packet>,
    woke: PortSet,
    links: Links,
}

fn chassis() -> Chassis {
    Chassis::new(false, true)
}

fn router() -> Router {
    Router::Table(TableRouter::new((0..u32::from(PORTS)).map(|port| alloc::vec![port as u16]), Policy::DModK, 1, 0))
}

/// A world with a drop-tail buffer, and with the given marker and scheduler at each port.
fn world<K: Classify, M: Mark<Packet>, S: Schedule>(
    classifier: K,
    buffer: u32,
    outputs: [(M, S); PORTS as usize],
) -> World<SwitchOf<Router, K, OutputBuffer, M, S>> {
    let buffer = OutputBuffer::new(buffer);
    let switch = SwitchOf::new(chassis(), router(), classifier, (buffer, ()), outputs.into_iter());
    World { switch, pool: Pool::default(), woke: PortSet::default(), links: Links { are_idle: false } }
}

fn marked<M: Mark<Packet>>(markers: [M; 3]) -> World<SwitchOf<Router, ByPriority, OutputBuffer, M, RoundRobin>> {
    world(ByPriority, 1_000_000, markers.map(|marker| (marker, RoundRobin::default())))
}

fn frame(from: u32, to: u32, class: Priority) -> Packet {
    let (src, dst) = (Address::new(from, 0), Address::new(to, 0));
    let mut packet = Packet::udp(FlowKey { src, dst, sport: 1, dport: 2 }, 0, PAYLOAD, class, Framing::ETHERNET);
    packet.set_ecn(Ecn::Ect0);
    packet
}

impl<K: Classify, B: Admit, M: Mark<Packet>, S: Schedule> World<SwitchOf<Router, K, B, M, S>> {
    /// Receives a frame at the port of its source; returns the port at which the frame goes straight out.
    fn receive(&mut self, us: u64, frame: Packet) -> Option<PortId> {
        let at = self.pool.insert(&frame);
        let port = frame.source() as PortId;
        let straight = self.switch.receive(us_of(us), port, at, &mut self.pool, &self.links, &mut self.woke);
        if straight.is_some() {
            assert!(self.woke.is_empty(), "a frame that goes straight through wakes no port");
            self.pool.release(at);
        }
        straight
    }

    fn sends(&mut self, us: u64, port: PortId) -> Option<Packet> {
        let at = self.switch.poll_transmit(us_of(us), port, &mut self.pool, &mut self.woke)?;
        let frame = *self.pool.frame(at);
        self.pool.release(at);
        Some(frame)
    }

    /// The classes of the next frames that a port sends.
    fn classes(&mut self, port: PortId, n: usize) -> Vec<Priority> {
        (0..n).map_while(|_| self.sends(0, port)).map(|frame| frame.priority()).collect()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.switch.chassis.drops.iter().filter(|((.., why), _)| *why == reason).map(|(_, d)| d.0).sum()
    }

    fn balances(&self) {
        let c = &self.switch.chassis;
        let dropped: u64 = c.drops.values().map(|d| d.0).sum();
        assert_eq!(c.frames_in + c.emitted, c.frames_out + dropped + u64::from(c.queued));
        assert_eq!(self.pool.in_use(), c.queued);
        let waiting: u32 = self.switch.egress.iter().map(|e| e.queued_bytes).sum();
        assert_eq!(waiting, self.switch.queues.iter().map(|q| q.bytes).sum());
    }
}

fn us_of(us: u64) -> Instant {
    Instant(Duration::from_us(us).0)
}

/// Marks frames by a fixed probability.
#[derive(Clone, Debug)]
struct FixedProbability {
    of_1000: u64,
    rng: Rng,
}

impl FixedProbability {
    fn new(of_1000: u64, seed: u64, port: PortId) -> FixedProbability {
        FixedProbability { of_1000, rng: Rng::from_words(&[seed, port.into()]) }
    }
}

impl Mark<Packet> for FixedProbability {
    fn on_arrival(&mut self, _: Instant, _: Backlog, frame: &mut Packet) -> Verdict<Packet> {
        if self.rng.below(1_000) < self.of_1000 {
            assert!(frame.mark());
        }
        Verdict::Forward
    }
}

/// Notifies the source of a frame that finds a long queue, as a congestion point does, and samples again only after a
/// while.
#[derive(Clone, Debug)]
struct Notifier {
    port_bytes: u32,
    again_at: Instant,
}

impl Mark<Packet> for Notifier {
    fn on_arrival(&mut self, now: Instant, backlog: Backlog, sampled: &mut Packet) -> Verdict<Packet> {
        if backlog.port_bytes < self.port_bytes || self.again_at != Instant::MAX {
            return Verdict::Forward;
        }
        self.again_at = now + Duration::from_us(10);
        Verdict::Emit(frame(sampled.destination(), sampled.source(), 7))
    }
    fn poll_timeout(&self) -> Instant {
        self.again_at
    }
    fn handle_timeout(&mut self, now: Instant) {
        if self.again_at <= now {
            self.again_at = Instant::MAX;
        }
    }
}

/// Marks a frame that leaves more bytes of its class behind than `mark`, as DCTCP at departure does, and drops the frame
/// above `drop`.
#[derive(Clone, Debug)]
struct AtDeparture {
    mark: u32,
    drop: u32,
}

impl Mark<Packet> for AtDeparture {
    fn on_departure(&mut self, _: Instant, backlog: Backlog, frame: &mut Packet) -> Verdict<Packet> {
        if backlog.class_bytes > self.mark {
            frame.mark();
        }
        if backlog.class_bytes > self.drop { Verdict::Drop(DropReason::Denied) } else { Verdict::Forward }
    }
}

crate::markers! {
    /// One of these markers at each port.
    enum OfPort {
        None(()),
        Fixed(FixedProbability),
        Notifier(Notifier),
    }
}

/// Marks of 200 frames to port 1. Before every tenth of them a frame goes to port 2.
fn marks(seed: u64) -> Vec<bool> {
    let fixed = |port| FixedProbability::new(250, seed, port);
    let mut w = marked([fixed(0), fixed(1), fixed(2)]);
    let mut seen = Vec::new();
    for n in 0..200 {
        if n % 10 == 0 {
            w.receive(n, frame(0, 2, 0));
        }
        w.receive(n, frame(0, 1, 0));
        seen.push(w.sends(n, 1).unwrap().ecn() == Ecn::Ce);
    }
    w.balances();
    seen
}

#[test]
fn draws_depend_on_seed_and_port_alone() {
    let seen = marks(1);
    let count = seen.iter().filter(|&&marked| marked).count();
    assert!((30..=70).contains(&count), "{count} of 200");
    assert_eq!(seen, marks(1));
    assert_ne!(seen, marks(2));
    let mut alone = marked([1, 2, 3].map(|_| FixedProbability::new(250, 1, 1)));
    let one = |n| {
        alone.receive(n, frame(2, 1, 0));
        alone.sends(n, 1).unwrap().ecn() == Ecn::Ce
    };
    assert_eq!((0..200).map(one).collect::<Vec<_>>(), seen, "frames at other ports draw nothing here");
}

#[test]
fn a_queue_limited_in_frames_counts_a_short_frame_as_a_long_one() {
    let buffer = OutputFrames::new(2, PORTS.into());
    let outputs = (0..PORTS).map(|_| ((), RoundRobin::default()));
    let switch = SwitchOf::new(chassis(), router(), ByPriority, (buffer, ()), outputs);
    let mut w = World { switch, pool: Pool::default(), woke: PortSet::default(), links: Links { are_idle: false } };
    let short = || {
        let flow = FlowKey { src: Address::new(0, 0), dst: Address::new(1, 0), sport: 1, dport: 2 };
        Packet::udp(flow, 0, 1, 0, Framing::ETHERNET)
    };
    assert!([frame(0, 1, 0), short(), short()].into_iter().all(|frame| w.receive(0, frame).is_none()));
    assert_eq!((w.switch.chassis.queued, w.drops(DropReason::SwitchBuffer)), (2, 1));
    // The frame on the wire is in no queue, nor is one that goes straight through.
    w.sends(1, 1).unwrap();
    w.receive(1, frame(2, 1, 0));
    assert_eq!((w.switch.chassis.queued, w.drops(DropReason::SwitchBuffer)), (2, 1));
    while w.sends(2, 1).is_some() {}
    (w.links.are_idle, w.woke) = (true, PortSet::default());
    assert!((0..5).all(|_| w.receive(3, frame(0, 1, 0)) == Some(1)));
    w.links.are_idle = false;
    assert!([short(), short(), short()].into_iter().all(|frame| w.receive(4, frame).is_none()));
    assert_eq!((w.switch.chassis.queued, w.drops(DropReason::SwitchBuffer)), (2, 2));
    w.balances();
}

#[test]
fn a_frame_that_goes_straight_through_is_marked_too() {
    let mut w = marked([1_000, 1_000, 1_000].map(|p| FixedProbability::new(p, 1, 0)));
    w.links.are_idle = true;
    let at = w.pool.insert(&frame(0, 1, 0));
    let straight = w.switch.receive(us_of(0), 0, at, &mut w.pool, &w.links, &mut w.woke);
    assert_eq!((straight, w.pool.frame(at).ecn()), (Some(1), Ecn::Ce));
}

#[test]
fn a_marker_at_departure_sees_the_queue_behind_the_frame() {
    let marker = AtDeparture { mark: FRAME, drop: 3 * FRAME };
    let mut w = marked([marker.clone(), marker.clone(), marker]);
    (0..6).for_each(|_| assert_eq!(w.receive(0, frame(0, 1, 3)), None));
    w.receive(0, frame(2, 1, 0));
    // Frames of class 3 that leave five and four behind are dropped, and the port goes on to the next class or frame.
    let sent: Vec<_> = core::iter::from_fn(|| w.sends(0, 1)).map(|f| (f.priority(), f.ecn())).collect();
    let (plain, ce) = (Ecn::Ect0, Ecn::Ce);
    assert_eq!(sent, [(0, plain), (3, ce), (3, ce), (3, plain), (3, plain)]);
    assert_eq!(w.drops(DropReason::Denied), 2);
    w.balances();
}

#[test]
fn a_frame_of_a_marker_is_routed_to_the_source_and_counted() {
    let quiet = Notifier { port_bytes: 2 * FRAME, again_at: Instant::MAX };
    let mut w = marked([quiet.clone(), quiet.clone(), quiet]);
    (0..4).for_each(|_| assert_eq!(w.receive(1, frame(0, 1, 0)), None));
    assert_eq!((w.switch.chassis.emitted, w.switch.chassis.queued), (1, 5));
    let told = w.sends(1, 0).unwrap();
    assert_eq!((told.priority(), told.source(), told.destination()), (7, 1, 0));
    assert!(w.sends(1, 0).is_none());
    w.balances();
    // The marker's deadline is the switch's.
    assert_eq!(Device::<Packet>::poll_timeout(&w.switch), us_of(11));
    w.switch.handle_timeout(us_of(11), &mut w.pool, &mut w.woke);
    assert_eq!(Device::<Packet>::poll_timeout(&w.switch), Instant::MAX);
    w.receive(12, frame(2, 1, 0));
    assert_eq!(w.sends(12, 2).map(|f| f.destination()), Some(2));
    w.balances();
}

#[test]
fn a_frame_that_makes_a_marker_send_is_queued_for_a_moment() {
    let eager = Notifier { port_bytes: 0, again_at: Instant::MAX };
    let mut w = marked([eager.clone(), eager.clone(), eager]);
    w.links.are_idle = true;
    assert_eq!(w.receive(1, frame(0, 1, 0)), None);
    let mut woken: Vec<_> = core::iter::from_fn(|| w.woke.pop()).collect();
    woken.sort_unstable();
    assert_eq!(woken, [0, 1]);
    assert_eq!((w.sends(1, 1).map(|f| f.source()), w.sends(1, 0).map(|f| f.source())), (Some(0), Some(1)));
    assert_eq!(w.receive(2, frame(0, 1, 0)), Some(1));
    w.balances();
}

#[test]
fn a_frame_of_a_marker_can_be_lost_as_any_other() {
    let eager = Notifier { port_bytes: FRAME, again_at: Instant::MAX };
    let [a, b, c] = [eager.clone(), eager.clone(), eager];
    let mut w = world(ByPriority, 2 * FRAME, [a, b, c].map(|marker| (marker, RoundRobin::default())));
    w.switch.set_link(us_of(0), 0, false, &mut w.pool, &mut w.woke);
    (0..2).for_each(|_| assert_eq!(w.receive(1, frame(0, 1, 0)), None));
    assert_eq!((w.switch.chassis.emitted, w.drops(DropReason::PortGone)), (1, 1));
    w.balances();
}

#[test]
fn frames_of_markers_have_memory_of_their_own() {
    let eager = Notifier { port_bytes: FRAME, again_at: Instant::MAX };
    let [a, b, c] = [eager.clone(), eager.clone(), eager];
    let mut w = world(ByPriority, 1 << 30, [a, b, c].map(|marker| (marker, RoundRobin::default())));
    for i in 0..100 {
        // The marker samples again every 10 us.
        w.switch.handle_timeout(us_of(10 * i), &mut w.pool, &mut w.woke);
        (0..2).for_each(|_| assert_eq!(w.receive(10 * i, frame(0, 1, 0)), None));
    }
    let (own, lost) = (w.switch.chassis.own_bytes, w.drops(DropReason::SwitchBuffer));
    assert!(own <= OWN_MAX && own + FRAME > OWN_MAX, "{own}");
    assert!(lost > 0 && lost < w.switch.chassis.emitted, "{lost}");
    w.balances();
    // Room for as many as leave, also with their link.
    assert!(w.sends(1_000, 0).is_some());
    assert_eq!(w.switch.chassis.own_bytes, own - FRAME);
    w.switch.set_link(us_of(1_000), 0, false, &mut w.pool, &mut w.woke);
    assert_eq!(w.switch.chassis.own_bytes, 0);
    w.balances();
}

#[test]
fn ports_of_one_switch_have_different_markers() {
    let fixed = OfPort::Fixed(FixedProbability::new(1_000, 1, 0));
    let notifier = OfPort::Notifier(Notifier { port_bytes: 0, again_at: Instant::MAX });
    let mut w = marked([OfPort::None(()), fixed, notifier]);
    (0..3).for_each(|to| assert_eq!(w.receive(0, frame(1, to, 0)), None));
    let sent =
        |w: &mut World<_>, port| core::iter::from_fn(|| World::sends(w, 0, port)).map(|f| f.ecn()).collect::<Vec<_>>();
    assert_eq!(sent(&mut w, 0), [Ecn::Ect0]);
    assert_eq!(sent(&mut w, 2), [Ecn::Ect0]);
    // The notification from port 2, of class 7, which no marker sees; then the frame for this port.
    assert_eq!(sent(&mut w, 1), [Ecn::Ect0, Ecn::Ce]);
    w.balances();
}

/// The highest class first.
#[derive(Clone, Debug, Default)]
struct StrictPriority;

impl Schedule for StrictPriority {
    fn next<F: Frame>(&mut self, waiting: &Waiting<'_, F>) -> Option<Priority> {
        waiting.ready().iter().last()
    }
}

/// Deficit round robin with weights, as ETS needs it.
#[derive(Clone, Debug)]
struct Weighted {
    quantum: [u32; PRIORITIES],
    deficit: [u32; PRIORITIES],
    current: Priority,
}

impl Weighted {
    fn new(quantum: [u32; PRIORITIES]) -> Weighted {
        Weighted { quantum, deficit: [0; PRIORITIES], current: 0 }
    }
}

impl Schedule for Weighted {
    fn next<F: Frame>(&mut self, waiting: &Waiting<'_, F>) -> Option<Priority> {
        let ready = waiting.ready();
        (0..PRIORITIES).filter(|&c| waiting.bytes(c as Priority) == 0).for_each(|c| self.deficit[c] = 0);
        while !ready.is_empty() {
            let class = self.current as usize;
            let bytes = waiting.first_bytes(self.current);
            if ready.contains(self.current) && bytes <= self.deficit[class] {
                self.deficit[class] -= bytes;
                return Some(self.current);
            }
            self.current = ready.next_after(self.current)?;
            self.deficit[self.current as usize] += self.quantum[self.current as usize];
        }
        None
    }
}

#[test]
fn round_robin_serves_classes_a_frame_each() {
    let mut w = marked([(), (), ()]);
    for class in [5, 5, 5, 2, 0, 0] {
        w.receive(0, frame(0, 1, class));
    }
    assert_eq!(w.classes(1, 9), [2, 5, 0, 5, 0, 5]);
    w.balances();
}

#[test]
fn a_strict_scheduler_serves_the_highest_class_first() {
    let mut w = world(ByPriority, 1_000_000, [(); 3].map(|()| ((), StrictPriority)));
    for class in [0, 5, 2, 5, 0] {
        w.receive(0, frame(0, 1, class));
    }
    assert_eq!(w.classes(1, 9), [5, 5, 2, 0, 0]);
}

#[test]
fn a_weighted_scheduler_shares_by_bytes() {
    let mut quantum = [0; PRIORITIES];
    (quantum[1], quantum[6]) = (FRAME, 3 * FRAME);
    let mut w = world(ByPriority, 1_000_000, [(); 3].map(|()| ((), Weighted::new(quantum))));
    for class in [1, 6] {
        (0..20).for_each(|_| assert_eq!(w.receive(0, frame(0, 1, class)), None));
    }
    let sent = w.classes(1, 16);
    assert_eq!(sent.iter().filter(|&&class| class == 6).count(), 12, "{sent:?}");
    w.balances();
}

/// Two classes: urgent frames and the rest.
struct Halves;

impl Classify for Halves {
    fn class<F: Frame>(&self, _: PortId, frame: &F) -> Priority {
        u8::from(frame.priority() >= 4)
    }
}

#[test]
fn the_class_decides_about_queue_and_buffer() {
    let mut w = world(Halves, 2 * FRAME, [(); 3].map(|()| ((), StrictPriority)));
    for priority in [0, 3, 1, 4, 7] {
        w.receive(0, frame(0, 1, priority));
    }
    assert_eq!(w.switch.chassis.drops.keys().copied().collect::<Vec<_>>(), [(1, 0, DropReason::SwitchBuffer)]);
    assert_eq!(w.classes(1, 9), [4, 7, 0, 3]);
    w.balances();
}

#[test]
fn a_paused_class_waits_and_its_input_is_stopped() {
    const LOSSLESS: Priority = 3;
    let classes = PrioritySet(1 << LOSSLESS);
    let marks = Watermarks { xoff: 2 * FRAME, xon: FRAME, capacity: 4 * FRAME, headroom: FRAME };
    let buffer = Lossless::new(classes, alloc::vec![marks; PORTS.into()], OutputBuffer::new(9 * FRAME));
    let pfc = Pfc::new(classes, 100, (0..PORTS).map(|_| (Duration::from_us(1), None)));
    let outputs = (0..PORTS).map(|_| (FixedProbability::new(1_000, 1, 0), StrictPriority));
    let switch = SwitchOf::new(chassis(), router(), ByPriority, (buffer, pfc), outputs);
    let links = Links { are_idle: false };
    let mut w = World { switch, pool: Pool::default(), woke: PortSet::default(), links };
    let mut pause = Pause { classes: PrioritySet::ALL, quanta: [0; PRIORITIES] };
    (pause.quanta[LOSSLESS as usize], pause.quanta[0]) = (50, 50);
    let at = w.pool.insert(&Packet::from_pause(pause));
    w.switch.receive(us_of(0), 1, at, &mut w.pool, &w.links, &mut w.woke);
    (0..3).for_each(|_| assert_eq!(w.receive(1, frame(0, 1, LOSSLESS)), None));
    w.receive(1, frame(0, 1, 0));
    // Class 0 is under no flow control: the pause does not concern it.
    assert_eq!(w.classes(1, 9), [0]);
    let told = w.sends(1, 0).and_then(|f| f.as_pause()).unwrap();
    assert_eq!((told.classes, told.quanta[LOSSLESS as usize]), (classes, 100));
    let [event] = core::mem::take(&mut w.switch.chassis.pauses)[..] else { panic!("one pause") };
    assert_eq!((event.port, event.stop, event.cause, event.cause_is_paused), (0, true, Cause::Output(1), true));
    w.switch.handle_timeout(us_of(50), &mut w.pool, &mut w.woke);
    let sent = w.sends(50, 1).unwrap();
    assert_eq!((sent.priority(), sent.ecn()), (LOSSLESS, Ecn::Ce));
    assert_eq!(w.classes(1, 1), [LOSSLESS]);
    let told = w.sends(51, 0).and_then(|f| f.as_pause()).unwrap();
    assert_eq!(told.quanta[LOSSLESS as usize], 0);
}
