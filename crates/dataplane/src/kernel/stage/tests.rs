//! The stage against a kernel that is a table of sockets.

use super::*;
use sluicenet_wire::flow::{FragmentId, Piece};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// Sockets as Linux has them: a datagram goes in while the buffer is not over its limit, or is empty; its memory comes back
/// when a quarter of the limit has been read, or all.
#[derive(Default)]
pub(super) struct Buffer {
    cookie: u64,
    limit: u32,
    pub(super) received: u32,
    /// The charges of unread datagrams.
    waiting: VecDeque<u32>,
    /// The charges of datagrams that were read and not yet given back.
    owed: u32,
}

impl Buffer {
    pub(super) fn new(cookie: u64, limit: u32) -> Buffer {
        Buffer { cookie, limit, ..Buffer::default() }
    }
    fn queued(&self) -> u32 {
        self.waiting.iter().sum()
    }
    fn used(&self) -> u32 {
        self.queued() + self.owed
    }
    fn shown(&self) -> Socket {
        Socket { cookie: self.cookie, used: self.used(), limit: self.limit, queued: self.queued() }
    }
    pub(super) fn read(&mut self) {
        self.owed += self.waiting.pop_front().unwrap_or(0);
        if self.waiting.is_empty() || self.owed >= self.limit / 4 {
            self.owed = 0;
        }
    }
    pub(super) fn read_all(&mut self) {
        while !self.waiting.is_empty() {
            self.read();
        }
    }
}

/// Cargo on its way: a frame of a whole datagram, or a fragment.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    cargo: Cargo,
    charge: u32,
    bytes: u32,
}

#[derive(Default)]
pub(super) struct Table {
    /// By port.
    pub(super) sockets: BTreeMap<u16, Buffer>,
    /// Further sockets at a port (`SO_REUSEADDR`), which receive only what goes to groups.
    pub(super) others: Vec<(u16, Buffer)>,
    pub(super) lost: u32,
    pub(super) questions: u32,
    /// How long a question about a group takes.
    pub(super) question_takes: Duration,
    pub(super) on_its_way: VecDeque<Sent>,
    /// Fragments that arrived, by datagram: the bytes and charge so far, the end and the flow.
    partial: BTreeMap<FragmentId, (u32, u32, Option<u32>, Option<Flow>)>,
    /// Addresses that are not this host's.
    elsewhere: Option<IpAddr>,
}

impl Table {
    pub(super) fn add(&mut self, port: u16, cookie: u64, limit: u32) {
        self.sockets.insert(port, Buffer::new(cookie, limit));
    }
    pub(super) fn socket(&mut self, port: u16) -> &mut Buffer {
        self.sockets.get_mut(&port).unwrap()
    }
    /// Takes in this number of frames.
    pub(super) fn arrive_some(&mut self, count: usize) {
        for _ in 0..count {
            let Some(sent) = self.on_its_way.pop_front() else { return };
            let (flow, charge) = match sent.cargo {
                Cargo::Udp(flow) => (flow, sent.charge),
                Cargo::Piece(id, piece, flow) => {
                    let it = self.partial.entry(id).or_default();
                    it.0 += piece.len;
                    it.1 += sent.charge;
                    it.2 = it.2.or(piece.last.then_some(piece.offset + piece.len));
                    it.3 = it.3.or(flow);
                    let (bytes, charge, end, flow) = *it;
                    let Some(flow) = flow.filter(|_| end == Some(bytes)) else { continue };
                    self.partial.remove(&id);
                    (flow, charge)
                }
                _ => continue,
            };
            let port = flow.destination_port;
            let others = self.others.iter_mut().filter(|(at, _)| flow.group && *at == port).map(|(_, socket)| socket);
            for socket in self.sockets.get_mut(&port).into_iter().chain(others) {
                if socket.used() + charge <= socket.limit || socket.used() == 0 {
                    socket.waiting.push_back(charge);
                    socket.received += 1;
                } else {
                    self.lost += 1;
                }
            }
        }
    }
    pub(super) fn arrive(&mut self) {
        self.arrive_some(usize::MAX);
    }
}

impl Host for Table {
    fn find(&mut self, flow: &Flow) -> io::Result<Found> {
        self.questions += 1;
        if self.elsewhere == Some(flow.destination) {
            return Ok(Found::Elsewhere);
        }
        Ok(self.sockets.get(&flow.destination_port).map_or(Found::Nobody, |it| Found::Socket(it.shown())))
    }
    fn find_group(&mut self, flow: &Flow, all: &mut Vec<Receiver>) -> io::Result<Duration> {
        self.questions += 1;
        let port = flow.destination_port;
        let others = self.others.iter().filter(|(at, _)| *at == port).map(|(_, socket)| socket);
        let sockets = self.sockets.get(&port).into_iter().chain(others);
        all.extend(sockets.map(|it| Receiver { socket: it.shown(), peer: None }));
        Ok(self.question_takes)
    }
    fn in_flight(&mut self) -> io::Result<u32> {
        Ok(self.on_its_way.iter().map(|sent| sent.charge.max(sent.bytes)).sum())
    }
}

pub(super) fn flow(source: u16, port: u16) -> Flow {
    let address = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    let (source_port, destination_port) = (source, port);
    Flow { source: address(1), destination: address(2), source_port, destination_port, lite: false, group: false }
}
pub(super) fn to_group(source: u16, port: u16) -> Flow {
    Flow { destination: IpAddr::V4(Ipv4Addr::new(239, 1, 1, 1)), group: true, ..flow(source, port) }
}
pub(super) fn station(port: usize, mac: u8) -> Sender {
    Sender { port, mac: [2, 0, 0, 0, port as u8, mac] }
}
fn charges() -> TrueSize {
    TrueSize::find(1514, |len| Ok::<_, ()>(if len <= 200 { 832 } else { 2304 })).unwrap()
}
pub(super) fn us(n: u64) -> Instant {
    Instant::ZERO + Duration::from_us(n)
}

/// A stage, and the fate of its buffers.
pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) host: Table,
    /// Frames put in, by buffer.
    pub(super) frames: Vec<Sent>,
    pub(super) released: Vec<u32>,
    pub(super) sent: Vec<u32>,
}

impl World {
    /// With a `deadline`, a socket is isolated as soon as it is found stuck.
    pub(super) fn new(deadline: Option<Duration>, sockets: &[(u16, u32)]) -> World {
        let quick = |time| WatchdogConfig { detection_time: time, isolation_time: time, ..WatchdogConfig::default() };
        World::with(deadline.map_or(WatchdogConfig::OFF, quick), sockets)
    }

    pub(super) fn with(watchdog: WatchdogConfig, sockets: &[(u16, u32)]) -> World {
        let mut host = Table::default();
        for (i, &(port, limit)) in sockets.iter().enumerate() {
            host.add(port, i as u64 + 1, limit);
        }
        let stage = Stage::new(charges(), 1024, watchdog);
        World { stage, host, frames: Vec::new(), released: Vec::new(), sent: Vec::new() }
    }

    pub(super) fn insert(&mut self, now: Instant, cargo: Cargo, len: u32) {
        self.insert_from(now, station(0, 0), 0, cargo, len);
    }

    pub(super) fn insert_from(&mut self, now: Instant, sender: Sender, class: Priority, cargo: Cargo, len: u32) {
        let buffer = self.frames.len() as u32;
        self.frames.push(Sent { cargo, charge: charges().of(len), bytes: len });
        let (released, frame) = (&mut self.released, Frame { buffer, len, class });
        self.stage.insert(now, frame, sender, cargo, &mut self.host, &mut |b| released.push(b)).unwrap();
    }

    /// Whether a frame may come; and it comes, if so.
    pub(super) fn offer_from(&mut self, now: Instant, sender: Sender, class: Priority, cargo: Cargo, len: u32) -> bool {
        let may = self.stage.admits(now, sender, class, &cargo, &mut self.host).unwrap();
        if may {
            self.insert_from(now, sender, class, cargo, len);
        }
        may
    }

    pub(super) fn admits(&mut self, now: Instant, cargo: &Cargo) -> bool {
        self.stage.admits(now, station(0, 0), 0, cargo, &mut self.host).unwrap()
    }

    /// Sends a datagram of `bytes` bytes in fragments, without the fragments `without`.
    pub(super) fn insert_pieces(&mut self, now: Instant, flow: Flow, id: FragmentId, bytes: u32, without: &[u32]) {
        for (i, offset) in (0..bytes).step_by(1480).enumerate() {
            let len = (bytes - offset).min(1480);
            let piece = Piece { offset, len, last: offset + len == bytes };
            if !without.contains(&(i as u32)) {
                self.insert(now, Cargo::Piece(id, piece, (offset == 0).then_some(flow)), len + 34);
            }
        }
    }

    /// The sender's port of the datagram in a buffer.
    pub(super) fn source_of(&self, buffer: u32) -> u16 {
        match self.frames[buffer as usize].cargo {
            Cargo::Udp(flow) => flow.source_port,
            other => panic!("{other:?}"),
        }
    }

    /// Frames that are neither released nor known to wait are missing in the ledger.
    pub(super) fn check(&self) {
        let (stage, mut queued, mut of_sockets) = (&self.stage, 0, 0);
        for (k, queue) in stage.queues.iter().enumerate() {
            queued += queue.frames.len();
            of_sockets += if queue.kind.needs_room() { queue.frames.len() } else { 0 };
            assert_eq!(queue.frames.len(), (0..8).map(|class| queue.of_class(class)).sum::<usize>());
            let served = stage.active.iter().filter(|&&a| a == k).count();
            assert_eq!(served, usize::from(!queue.frames.is_empty()), "queue {k}");
        }
        assert_eq!(of_sockets, stage.waiting);
        assert_eq!(self.frames.len() - self.released.len(), queued + stage.pieces.frames());
    }

    /// One round; sent frames are on their way until [`Table::arrive`].
    pub(super) fn pump(&mut self, now: Instant) {
        let World { stage, host, frames, released, sent } = self;
        let mut buffers = Vec::new();
        for _ in 0..stage.active_queues() {
            let Some(queue) = stage.offer(now, host, 64, &mut buffers, &mut |b| released.push(b)).unwrap() else {
                break;
            };
            for &buffer in &buffers {
                host.on_its_way.push_back(frames[buffer as usize]);
                sent.push(buffer);
            }
            stage.sent(queue, buffers.len(), &mut |b| released.push(b));
        }
    }
}

#[test]
fn no_socket_is_sent_more_than_it_has_room_for() {
    for limit in [212_992, 20_000, 2_304, 1_000] {
        let mut w = World::new(None, &[(7000, limit), (7001, limit)]);
        let (mut now, mut inserted) = (0, 0);
        while w.sent.len() < 3_000 {
            now += 30;
            while inserted < 3_000 && w.frames.len() - w.released.len() < 100 {
                let port = 7000 + (inserted % 2) as u16;
                w.insert(us(now), Cargo::Udp(flow(port, port)), if inserted % 3 == 0 { 100 } else { 1514 });
                inserted += 1;
            }
            w.pump(us(now));
            // The stack is behind now and then; programs take one datagram at a time.
            if now % 4 != 0 {
                w.host.arrive();
            }
            w.host.sockets.values_mut().for_each(Buffer::read);
            assert_eq!(w.host.lost, 0, "limit {limit}");
        }
        // In order for each socket.
        for parity in 0..2 {
            let of_one: Vec<_> = w.sent.iter().filter(|&&b| b % 2 == parity).collect();
            assert!(of_one.is_sorted());
        }
        assert_eq!(w.stage.counters.watchdog, 0);
    }
}

#[test]
fn two_flows_to_one_socket_have_one_credit() {
    let mut w = World::new(None, &[(7000, 10 * 2304)]);
    for i in 0..40 {
        w.insert(us(1), Cargo::Udp(flow(i % 2, 7000)), 1514);
    }
    w.pump(us(1));
    assert_eq!(w.sent.len(), 9, "all but the one that is kept free");
    // Frames on their way count as if they had arrived.
    w.pump(us(2_000));
    assert_eq!(w.sent.len(), 9);
    w.host.arrive();
    assert_eq!(w.host.lost, 0);
}

#[test]
fn a_stuck_socket_loses_its_own_frames_only_and_is_restored_when_it_moves() {
    let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 2304 * 8), (7001, 212_992)]);
    for _ in 0..20 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    let mut now = 0;
    while w.stage.counters.isolated == 0 {
        now += 100;
        w.insert(us(now), Cargo::Udp(flow(2, 7001)), 1514);
        w.pump(us(now));
        w.host.arrive();
        w.host.socket(7001).read_all();
    }
    assert!((200_000..=221_000).contains(&now), "{now}");
    let counters = w.stage.counters;
    assert_eq!((counters.watchdog, w.host.lost), (20 - 7, 0));
    w.insert(us(now + 1), Cargo::Udp(flow(1, 7000)), 1514);
    assert_eq!(w.stage.counters.watchdog, 14, "as long as it is stuck");
    // A quarter of its buffer.
    w.host.socket(7000).read();
    w.host.socket(7000).read();
    now += 20_000;
    w.insert(us(now), Cargo::Udp(flow(1, 7000)), 1514);
    w.pump(us(now));
    w.host.arrive();
    assert_eq!((w.stage.counters.watchdog, w.host.lost), (14, 0));
    assert_eq!(w.released.len(), w.frames.len());
}

/// A program that collects garbage, or is looked at by a debugger.
#[test]
fn a_reader_that_pauses_is_reported_and_loses_nothing() {
    let mut w = World::with(WatchdogConfig::default(), &[(7000, 212_992)]);
    let mut now = 0;
    for pause_s in [1, 5, 9] {
        let until = now + pause_s * 1_000_000;
        while now < until {
            // The sender is always there, and as fast as it may be.
            while w.offer_from(us(now), station(0, 0), 0, Cargo::Udp(flow(1, 7000)), 1514) {}
            w.pump(us(now));
            w.host.arrive();
            now += 100;
        }
        assert_eq!(w.stage.stuck_now(), 1);
        // It reads again, and soon has all.
        let resumed = now;
        while !w.stage.is_empty() || w.host.socket(7000).queued() > 0 {
            w.host.socket(7000).read();
            w.pump(us(now));
            w.host.arrive();
            now += 10;
        }
        assert!(now - resumed < 100_000, "{} us", now - resumed);
        let c = w.stage.counters;
        assert_eq!((c.watchdog, c.isolated, w.host.lost, w.stage.stuck_now()), (0, 0, 0, 0));
    }
    assert_eq!((w.stage.counters.stuck, w.released.len()), (3, w.frames.len()));
    // One that never reads again is isolated after 10 s.
    let since = now;
    while w.stage.counters.isolated == 0 {
        while w.offer_from(us(now), station(0, 0), 0, Cargo::Udp(flow(1, 7000)), 1514) && w.stage.counters.isolated == 0
        {
        }
        w.pump(us(now));
        w.host.arrive();
        now += 1_000;
    }
    assert!((9_900_000..10_200_000).contains(&(now - since)), "{}", now - since);
    w.check();
}

/// However many sockets stop, another one is served; those that hold most buffers are isolated first, and none before it is
/// found stuck.
#[test]
fn where_buffers_run_out_stopped_sockets_are_isolated_before_their_time() {
    let stopped = 1_000;
    let ports: Vec<(u16, u32)> = (0..stopped).map(|k| (7000 + k, 1_000)).chain([(1, 212_992)]).collect();
    let mut w = World::with(WatchdogConfig::default(), &ports);
    let mut live = 0;
    for ms in 0..2_000u64 {
        for k in 0..stopped {
            if w.frames.len() - w.released.len() < 1024 {
                w.offer_from(us(1_000 * ms), station(0, 0), 0, Cargo::Udp(flow(1, 7000 + k)), 1514);
            }
        }
        if w.frames.len() - w.released.len() < 1024 {
            live += u64::from(w.offer_from(us(1_000 * ms), station(1, 0), 0, Cargo::Udp(flow(2, 1)), 1514));
        }
        w.pump(us(1_000 * ms));
        w.host.arrive();
        w.host.socket(1).read_all();
        assert!(ms >= 200 || w.stage.counters.isolated == 0, "{ms}");
    }
    let c = w.stage.counters;
    assert!(live > 1_000 && w.host.lost == 0, "{live}");
    assert!(c.isolated_for_room > 0 && c.isolated_for_room == c.isolated, "{c:?}");
    w.check();
}

#[test]
fn who_was_away_has_not_seen_a_socket_stuck() {
    let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 2304)]);
    for _ in 0..5 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    w.pump(us(0));
    w.host.arrive();
    w.pump(us(10_000_000));
    assert_eq!(w.stage.counters.watchdog, 0);
}

#[test]
fn for_nobody_frames_go_at_a_bounded_rate_and_whoever_comes_gets_them_in_order() {
    let mut w = World::new(None, &[]);
    for _ in 0..100 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    assert_eq!(w.stage.counters.no_socket_dropped, 36);
    for ms in 0..10 {
        w.pump(us(1_000 * ms));
        w.pump(us(1_000 * ms + 500));
    }
    assert_eq!((w.stage.counters.no_socket, w.sent.len()), (10, 10));
    w.host.on_its_way.clear();
    w.host.add(7000, 9, 212_992);
    // The first question finds it; from then on all have a queue there.
    for step in 0..3 {
        w.pump(us(20_000 + step));
    }
    w.host.arrive();
    assert_eq!((w.sent.len(), w.host.lost), (64, 0));
    assert!(w.sent.is_sorted());
}

#[test]
fn a_socket_that_is_closed_leaves_its_frames_to_nobody() {
    let mut w = World::new(None, &[(7000, 2304)]);
    for _ in 0..100 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    w.pump(us(0));
    w.host.arrive();
    w.host.sockets.clear();
    for ms in 1..100 {
        w.pump(us(1_000 * ms));
    }
    assert!(w.stage.is_empty());
    let c = w.stage.counters;
    assert_eq!((c.no_socket + c.no_socket_dropped, w.released.len()), (99, 100));
}

#[test]
fn a_datagram_in_fragments_goes_whole_and_is_charged_until_the_stack_has_it() {
    let charge = 5 * 2304;
    let mut w = World::new(None, &[(7000, 2 * charge + 2304)]);
    w.insert_pieces(us(0), flow(1, 7000), id(1), 7_400, &[3]);
    w.insert(us(0), Cargo::Udp(flow(2, 7000)), 1514);
    w.pump(us(0));
    assert_eq!(w.sent, [4], "what is not whole keeps nobody waiting");
    let rest = Piece { offset: 3 * 1480, len: 1480, last: false };
    w.insert(us(1), Cargo::Piece(id(1), rest, None), 1514);
    w.insert_pieces(us(1), flow(1, 7000), id(2), 7_400, &[]);
    w.pump(us(1));
    assert_eq!(w.sent, [4, 0, 1, 2, 3, 5]);
    // All but the last are taken in: the kernel holds them, and no socket shows them.
    w.host.arrive_some(5);
    w.pump(us(2_000));
    assert_eq!(w.sent.len(), 6, "room for one of the two is left, but for what is on its way");
    w.host.arrive();
    w.host.socket(7000).read_all();
    w.pump(us(4_000));
    w.host.arrive();
    assert_eq!((w.sent.len(), w.host.lost), (11, 0));
    assert!(w.stage.is_empty());
    w.check();
}

#[test]
fn many_datagrams_in_fragments_at_once_all_get_through() {
    let mut w = World::new(None, &[(7000, 212_992)]);
    // Eight senders at once: all first fragments come before any other, and the last before those in the middle.
    for part in [0, 4, 1, 3, 2] {
        for k in 0..8 {
            let others: Vec<u32> = (0..5).filter(|&i| i != part).collect();
            w.insert_pieces(us(0), flow(k, 7000), id(k.into()), 7_400, &others);
        }
    }
    for step in 0..100 {
        w.pump(us(100 * step));
        w.host.arrive();
        w.host.socket(7000).read();
    }
    assert_eq!((w.sent.len(), w.host.lost, w.stage.counters.stray_fragments), (40, 0, 0));
    assert!(w.stage.is_empty() && w.stage.pieces.frames() == 0);
    w.check();
}

/// Fragments that once stopped another tenant's socket for all senders: first fragments without the rest, and a repeated one.
#[test]
fn who_sends_no_rest_takes_nobodys_room() {
    let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 212_992)]);
    for k in 0..4 {
        w.insert_pieces(us(0), flow(9, 7000), id(100 + k), 7_400, &[1, 2, 3, 4]);
    }
    for _ in 0..4 {
        w.insert_pieces(us(0), flow(9, 7000), id(200), 2_000, &[1]);
    }
    w.insert_pieces(us(0), flow(9, 7000), id(200), 2_000, &[0]);
    assert_eq!(w.stage.counters.stray_fragments, 3, "those that came again");
    for n in 0..1_000 {
        let now = us(1_000 * n);
        w.insert(now, Cargo::Udp(flow(1, 7000)), 1514);
        w.pump(now);
        w.host.arrive();
        w.host.socket(7000).read_all();
    }
    let c = w.stage.counters;
    assert_eq!((w.sent.len(), c.watchdog, c.isolated, w.host.lost), (1_002, 0, 0, 0));
    // Datagrams with missing fragments are given up, whatever else arrives.
    assert_eq!(w.stage.poll_timeout(), Some(us(30_000_000)));
    let released = &mut w.released;
    w.stage.expire(us(30_000_000), &mut |b| released.push(b));
    assert_eq!((w.stage.counters.stray_fragments, w.stage.pieces.frames(), w.stage.poll_timeout()), (7, 0, None));
    w.check();
}

#[test]
fn pieces_that_do_not_fit_together_are_given_up_as_the_kernel_does() {
    let mut w = World::new(None, &[(7000, 212_992)]);
    let piece = |w: &mut World, k, offset, len, last| {
        let piece = Piece { offset, len, last };
        w.insert(us(0), Cargo::Piece(id(k), piece, (offset == 0).then_some(flow(1, 7000))), len + 34);
        (w.stage.counters.stray_fragments, w.stage.pieces.frames())
    };
    piece(&mut w, 1, 0, 800, false);
    assert_eq!(piece(&mut w, 1, 400, 800, true), (2, 0), "overlap");
    piece(&mut w, 2, 800, 80, true);
    assert_eq!(piece(&mut w, 2, 1600, 80, true), (4, 0), "two ends");
    piece(&mut w, 3, 800, 80, false);
    assert_eq!(piece(&mut w, 3, 80, 80, true), (6, 0), "more behind the end");
    // However many there are: the ones of which nothing came for longest go first, some more of them at once.
    for k in 0..1_000 {
        let (strays, frames) = piece(&mut w, 1_000 + k, 0, 800, false);
        assert_eq!((strays + frames as u64, frames <= 256), (6 + k as u64 + 1, true));
    }
    let (strays, frames) = piece(&mut w, 1_999, 800, 80, true);
    assert_eq!(strays + frames as u64, 6 + 1_000 - 1, "the latest became whole");
    assert!(frames >= 256 - 256 / 16 - 1);
    w.check();
}

/// A sink that is killed while datagrams in fragments come: nothing stays.
#[test]
fn the_queue_of_a_closed_socket_empties_flow_by_flow() {
    let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 20_000)]);
    for k in 0..30 {
        w.insert_pieces(us(0), flow(k, 7000), id(k.into()), 8_000, &[]);
    }
    w.pump(us(0));
    assert!(!w.sent.is_empty());
    w.host.arrive();
    w.host.sockets.clear();
    for n in 1..2_000 {
        w.pump(us(1_000 * n));
        w.host.arrive();
        w.check();
    }
    let c = w.stage.counters;
    assert!(w.stage.is_empty() && c.no_socket > 0);
    assert_eq!((w.released.len(), c.isolated), (w.frames.len(), 0));
}

#[test]
fn who_reads_slowly_but_steadily_is_never_stuck() {
    for pause_ms in [5, 10, 100, 190] {
        let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 212_992)]);
        let mut read = 0;
        for ms in 0..20_000 {
            while w.frames.len() - w.released.len() < 100 {
                w.insert(us(1_000 * ms), Cargo::Udp(flow(1, 7000)), 1042);
            }
            w.pump(us(1_000 * ms));
            w.host.arrive();
            if ms % pause_ms == 0 {
                w.host.socket(7000).read();
                read += 1;
            }
        }
        let c = w.stage.counters;
        assert_eq!((c.isolated, c.watchdog, w.host.lost), (0, 0, 0), "every {pause_ms} ms, {read}");
    }
}

#[test]
fn an_isolated_socket_takes_fragments_again_once_it_reads() {
    let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 212_992)]);
    let mut n = 0;
    let mut one_more = |w: &mut World, ms: u64| {
        n += 1;
        w.insert_pieces(us(1_000 * ms), flow(1, 7000), id(n), 8_000, &[]);
        w.pump(us(1_000 * ms));
        w.host.arrive();
    };
    for ms in 0..2_000 {
        one_more(&mut w, ms);
    }
    assert_eq!(w.stage.counters.isolated, 1);
    w.host.socket(7000).read_all();
    let before = w.sent.len();
    for ms in 2_000..2_100 {
        one_more(&mut w, ms);
        w.host.socket(7000).read_all();
    }
    assert_eq!((w.sent.len() - before, w.host.lost), (100 * 6, 0));
}

#[test]
fn each_queue_has_a_share_and_frames_without_a_socket_have_room() {
    let ports: Vec<(u16, u32)> = (0..20).map(|k| (7000 + k, 1_000)).collect();
    let mut w = World::new(None, &ports);
    let mut now = 0;
    for k in 0..20 {
        let cargo = Cargo::Udp(flow(1, 7000 + k));
        let mut taken = 0;
        while w.admits(us(now), &cargo) {
            w.insert(us(now), cargo, 1514);
            taken += 1;
        }
        now += 1;
        assert!(taken >= 1 && (k > 0 || taken == 257), "queue {k} has {taken}");
        assert!(w.admits(us(now), &Cargo::Other));
    }
    assert_eq!(w.stage.counters.share_used_up, 20);
    assert!(w.frames.len() - w.released.len() <= 768 + 20);
    // A socket whose program reads again is admitted to.
    w.host.socket(7000).read_all();
    now += 2_000;
    while !w.admits(us(now), &Cargo::Udp(flow(1, 7000))) {
        now += 1_000;
        w.pump(us(now));
        w.host.arrive();
        w.host.socket(7000).read_all();
    }
    w.check();
}

#[test]
fn what_is_for_another_host_needs_no_credit() {
    let mut w = World::new(None, &[]);
    w.host.elsewhere = Some(flow(1, 1).destination);
    for k in 0..200 {
        w.insert(us(k), Cargo::Udp(flow(1, 7000)), 1514);
        w.pump(us(k));
    }
    assert_eq!((w.sent.len(), w.stage.counters.no_socket_dropped), (200, 0));
}

/// Random frames in random order: no socket is sent more than it has room for, and no frame is forgotten. When nothing waits,
/// nothing is reserved, and a socket whose reader has read everything is not isolated.
#[test]
fn whatever_comes_in_whatever_order() {
    for seed in 1..=60u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut w = World::new(Some(Duration::from_ms(200)), &[(0, 212_992), (1, 20_000), (2, 2_304)]);
        let (mut now, mut cookie) = (0, 100);
        for _ in 0..3_000 {
            now += [1, 30, 700, 40_000][random(4) as usize];
            let port = random(4) as u16;
            let its = flow(random(5) as u16, port);
            match random(12) {
                0..=2 => w.insert(us(now), Cargo::Udp(its), 60 + random(1_400) as u32),
                3 => w.insert_pieces(us(now), its, id(random(1 << 30) as u32), 1_481 + random(9_000) as u32, &[]),
                // Never whole, or doubled.
                4 => w.insert_pieces(us(now), its, id(random(20) as u32), 9_000, &[random(7) as u32]),
                5 => w.insert(us(now), [Cargo::Other, Cargo::Udp(to_group(1, port))][random(2) as usize], 100),
                6..=7 => w.host.arrive_some(random(20) as usize),
                8 => w.host.sockets.values_mut().take(random(4) as usize).for_each(Buffer::read),
                9 => w.host.sockets.values_mut().take(random(4) as usize).for_each(Buffer::read_all),
                10 if seed % 2 == 0 && random(20) == 0 => drop(w.host.sockets.remove(&port)),
                11 if seed % 2 == 0 && random(5) == 0 && !w.host.sockets.contains_key(&port) => {
                    cookie += 1;
                    w.host.add(port, cookie, 212_992);
                }
                _ => w.pump(us(now)),
            }
            w.check();
        }
        // A socket that took another's queue also gets the other's frames on their way. Only such sockets may lose frames.
        assert!(w.host.lost == 0 || seed % 2 == 0, "seed {seed}");
        for port in 0..4 {
            if !w.host.sockets.contains_key(&port) {
                cookie += 1;
                w.host.add(port, cookie, 212_992);
            }
        }
        for _ in 0..3_000 {
            now += 500;
            w.pump(us(now));
            w.host.arrive();
            w.host.sockets.values_mut().for_each(Buffer::read_all);
        }
        let released = &mut w.released;
        w.stage.expire(us(now + 60_000_000), &mut |b| released.push(b));
        w.check();
        assert!(w.stage.is_empty(), "seed {seed}");
        assert_eq!(w.released.iter().collect::<BTreeSet<_>>().len(), w.frames.len(), "each buffer comes back once");
        now += 60_000_000;
        let sent = w.sent.len();
        for port in 0..4 {
            w.insert(us(now), Cargo::Udp(flow(50, port)), 1514);
        }
        for step in 0..3 {
            w.pump(us(now + step));
            w.host.arrive();
        }
        assert_eq!(w.sent.len() - sent, 4, "seed {seed}: nobody is isolated who has read everything");
        let known = |queue: &&SocketQueue| queue.flow.is_some_and(|f| f.source_port == 50);
        assert!(w.stage.queues.iter().filter(known).all(|queue| queue.reserved() == 0 && !queue.isolated));
    }
}

#[test]
fn what_needs_no_credit_waits_for_nobody() {
    let mut w = World::new(None, &[(7000, 2304)]);
    for _ in 0..10 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    w.insert(us(0), Cargo::Other, 1514);
    w.pump(us(0));
    assert_eq!(w.sent, [0, 10]);
}

#[test]
fn a_million_flows_take_bounded_memory() {
    let mut w = World::new(None, &[]);
    for i in 0..100_000u32 {
        w.insert(us(i.into()), Cargo::Udp(flow(i as u16, (i >> 8) as u16)), 100);
        let piece = Piece { offset: 0, len: 80, last: false };
        w.insert(us(i.into()), Cargo::Piece(id(i), piece, Some(flow(i as u16, 1))), 114);
    }
    assert!(w.stage.flows.len() <= FLOWS_MOST && w.stage.pieces.frames() <= 256);
    assert!(w.frames.len() - w.released.len() <= NOBODY_MOST + 256);
    w.host.on_its_way.clear();
    for i in 0..5_000u16 {
        w.host.add(i, u64::from(i) + 1, 212_992);
        w.insert(us(200_000 + u64::from(i)), Cargo::Udp(flow(i, i)), 100);
        w.pump(us(200_000 + u64::from(i)));
        w.host.arrive();
    }
    assert!(w.stage.sockets.len() <= SOCKETS_MOST && w.stage.queues.len() <= SOCKETS_MOST + 2);
}

pub(super) fn id(id: u32) -> FragmentId {
    FragmentId { source: flow(1, 1).source, destination: flow(1, 1).destination, id }
}
