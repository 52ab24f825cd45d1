//! Two servers, a cable of 100 us that may lose frames, and a clock.

extern crate std;

use super::*;
use crate::uplink::Origin;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Duration;
use sluicenet_wire::stream;
use std::vec;

const CABLE: Duration = Duration::from_us(100);
const MAX_FRAME: u32 = 1460;
const USER_TIMEOUT: Duration = Duration::from_secs(2);

fn config() -> tcp::Config {
    tcp::Config { max_retries: u8::MAX, syn_retries: u8::MAX, ..tcp::Config::crisan2014_tuned() }
}

/// A frame that carries a number.
fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; stream::HEADER_LEN + len.max(22)];
    stream::Repr { len: len.max(22) as u32, priority: 3, vni: 7 }.emit(&mut bytes);
    bytes[stream::HEADER_LEN + 14..][..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[stream::HEADER_LEN + 14..][..8].try_into().unwrap())
}

struct End {
    name: u8,
    tunnels: Tunnels<u8, Bytes>,
    timers: Vec<(Instant, usize)>,
    /// Frames that were lost with connections.
    lost: usize,
}

impl End {
    fn new(other: u8, iss: u32) -> End {
        End::with(config(), other, iss)
    }

    fn with(config: tcp::Config, other: u8, iss: u32) -> End {
        let mut tunnels = Tunnels::new(config, USER_TIMEOUT);
        let tcp = Tcp::listen(tunnels.tcp(), iss, None);
        tunnels.add(other, tcp, Bytes::new(MAX_FRAME));
        End { name: 1 - other, tunnels, timers: Vec::new(), lost: 0 }
    }

    fn send(&mut self, now: Instant, number: u64, len: usize) -> bool {
        if !self.tunnels.has_room(0) {
            return false;
        }
        self.tunnels.open(now, 0, || 5_000);
        self.tunnels.send(now, 0, (frame(number, len), Origin::Switch));
        true
    }

    fn read(&mut self, now: Instant) -> Option<u64> {
        self.tunnels.poll_frame(now, &mut 0).map(|(_, bytes)| number_of(&bytes))
    }

    fn bytes(&self) -> (usize, usize) {
        self.tunnels.peer(0).1.stored()
    }
}

type Flying = (Instant, usize, Segment, Vec<u8>);

struct World {
    now: Instant,
    ends: [End; 2],
    cable: Vec<Flying>,
    rng: Rng,
    /// One segment in `loses` is lost, and one comes late.
    loses: u64,
    cut: bool,
}

impl World {
    fn new() -> World {
        World {
            now: Instant::ZERO,
            ends: [End::new(1, 100), End::new(0, u32::MAX - 50)],
            cable: Vec::new(),
            rng: Rng::from_words(&[5]),
            loses: u64::MAX,
            cut: false,
        }
    }

    fn step(&mut self) {
        let World { now, ends, cable, rng, loses, cut } = self;
        for (n, end) in ends.iter_mut().enumerate() {
            while let Some((at, sent)) = end.tunnels.poll_transmit(*now) {
                let mut bytes = vec![0; usize::from(sent.segment.len)];
                end.tunnels.peer(at).1.copy_to(sent.offset, &mut bytes);
                if !*cut && rng.below(*loses) != 1 {
                    let late = if rng.below(*loses) == 1 { 3 } else { 1 };
                    cable.push((*now + CABLE.saturating_mul(late), 1 - n, sent.segment, bytes));
                }
            }
            while let Some(at) = end.tunnels.poll_ended() {
                let carrier = end.tunnels.renew(at, 77, Bytes::new(MAX_FRAME));
                end.lost += carrier.into_unacknowledged().count();
            }
            end.timers.extend(end.tunnels.take_timers());
        }
        *now += Duration::from_us(50);
        cable.sort_by_key(|flying| flying.0);
        while cable.first().is_some_and(|flying| flying.0 <= *now) {
            let (_, n, segment, bytes) = cable.remove(0);
            ends[n].tunnels.receive(*now, 0, &segment, &bytes, false);
        }
        for end in ends {
            let expired: Vec<_> = end.timers.extract_if(.., |timer| timer.0 <= *now).collect();
            expired.into_iter().for_each(|(deadline, at)| end.tunnels.handle_timeout(*now, deadline, at));
        }
    }

    /// Sends `count` frames in each direction, and receives each of them once and in order.
    fn both_directions(&mut self, count: u64) {
        let (mut sent, mut seen) = ([0; 2], [0; 2]);
        for _ in 0..2_000_000 {
            for n in 0..2 {
                let len = 22 + (sent[n] * 97 % 1_400) as usize;
                sent[n] += u64::from(sent[n] < count && self.ends[n].send(self.now, sent[n], len));
                while let Some(number) = self.ends[1 - n].read(self.now) {
                    assert_eq!(number, seen[1 - n]);
                    seen[1 - n] += 1;
                }
            }
            if seen == [count; 2] {
                return;
            }
            self.step();
        }
        panic!("{sent:?} sent, {seen:?} seen");
    }
}

impl World {
    /// Runs until the first end gives up its unanswered transmission; this must happen at its time and no other.
    fn until_given_up(&mut self, since: Instant) {
        while self.ends[0].lost == 0 {
            self.step();
            assert!(self.now.since(since) <= USER_TIMEOUT + Duration::from_us(500), "it still waits");
        }
        assert!(self.now.since(since) >= USER_TIMEOUT);
    }
}

#[test]
fn what_goes_in_comes_out_whoever_opens() {
    // Both open at once.
    let mut w = World::new();
    w.both_directions(2_000);
    // A SYN of both goes out once more, as the answer to the other's.
    assert!(w.ends.iter().all(|end| end.tunnels.counters().resent <= 1));
    // One end opens.
    let mut w = World::new();
    assert!(w.ends[0].send(w.now, 8, 60));
    for _ in 0..20 {
        w.step();
    }
    assert_eq!((w.ends[1].read(w.now), w.ends[1].read(w.now)), (Some(8), None));
    w.both_directions(10);
    (0..1_000).for_each(|_| w.step());
    // Acknowledged bytes are not kept.
    assert_eq!(w.ends.each_ref().map(End::bytes), [(0, 0); 2]);
    assert_eq!(w.ends[0].tunnels.counters().segments_sent, w.ends[1].tunnels.counters().segments_received);
}

#[test]
fn a_cable_that_loses_and_reorders_changes_nothing() {
    let mut w = World::new();
    w.loses = 10;
    w.both_directions(3_000);
    assert!(w.ends.iter().all(|end| end.tunnels.counters().resent > 50 && end.lost == 0));
}

#[test]
fn who_is_not_read_stops_its_sender_and_both_keep_what_their_buffers_hold() {
    let mut w = World::new();
    let mut sent = 0;
    for _ in 0..20_000 {
        sent += u64::from(w.ends[0].send(w.now, sent, 1_000));
        w.step();
    }
    let ((outward, _), (_, inward)) = (w.ends[0].bytes(), w.ends[1].bytes());
    let most = config().max_buffer as usize;
    assert!(inward > 100_000 && inward <= most && outward > 100_000 && outward <= most + 1_008, "{outward} {inward}");
    let stopped = sent;
    (0..1_000).for_each(|_| w.step());
    assert!(!w.ends[0].send(w.now, sent, 1_000), "it takes nothing while nobody reads");
    let mut seen = 0;
    for _ in 0..200_000 {
        if let Some(number) = w.ends[1].read(w.now) {
            assert_eq!(number, seen);
            seen += 1;
        }
        sent += u64::from(sent < stopped + 100 && w.ends[0].send(w.now, sent, 1_000));
        w.step();
    }
    assert_eq!((seen, sent), (stopped + 100, stopped + 100));
}

#[test]
fn a_server_that_starts_again_is_opened_to_again_and_what_was_on_its_way_is_handed_back() {
    for who_speaks in [0, 1] {
        let mut w = World::new();
        w.both_directions(100);
        (0..1_000).for_each(|_| w.step());
        // The frames are not read any more.
        let mut unread = 0;
        while w.ends[0].send(w.now, unread, 1_000) {
            unread += 1;
        }
        w.ends[1] = End::new(0, 123_456);
        w.cable.clear();
        let mut later = 0;
        for _ in 0..40_000 {
            let now = w.now;
            if who_speaks == 1 && later == 0 {
                later += u64::from(w.ends[1].send(now, 1 << 32, 60));
            }
            w.step();
        }
        assert_eq!(w.ends[0].lost as u64, unread, "of end 1 none was acknowledged");
        // And both can send again.
        while w.ends.iter_mut().any(|end| end.read(w.now).is_some()) {}
        w.both_directions(50);
        assert_eq!(w.ends[0].tunnels.counters().ended, 1);
    }
}

#[test]
fn a_stream_without_frames_is_reset_and_begun_anew() {
    for header in [
        stream::Repr { len: MAX_FRAME + 1, priority: 0, vni: 0 },
        stream::Repr { len: u32::MAX, priority: 0, vni: 0 },
        stream::Repr { len: 13, priority: 0, vni: 0 },
    ] {
        let mut w = World::new();
        w.both_directions(10);
        let mut bytes = frame(0, 60);
        header.emit(&mut bytes);
        let now = w.now;
        w.ends[0].tunnels.send(now, 0, (bytes, Origin::Switch));
        w.ends[0].send(now, 1, 60);
        for _ in 0..1_000 {
            w.step();
            assert_eq!(w.ends[1].read(w.now), None);
        }
        assert_eq!(w.ends.each_ref().map(|end| end.tunnels.counters().ended), [1, 1]);
        assert_eq!(w.ends[1].tunnels.counters().broken, 1);
        w.both_directions(10);
    }
}

#[test]
fn a_server_that_does_not_answer_is_given_up_and_silent_until_it_does() {
    let mut w = World::new();
    w.cut = true;
    assert!(w.ends[0].send(w.now, 0, 60));
    w.until_given_up(Instant::ZERO);
    assert!(w.ends[0].tunnels.is_silent(0));
    w.cut = false;
    let now = w.now;
    w.ends[0].tunnels.open(now, 0, || 9);
    (0..1_000).for_each(|_| w.step());
    assert!(!w.ends[0].tunnels.is_silent(0));
    w.both_directions(10);
}

/// However long a timeout has become, and whatever has been acknowledged before.
#[test]
fn the_time_until_a_server_is_given_up_is_that_and_no_number_of_timeouts() {
    let rto = |max| tcp::RtoConfig { min: max, base: max, max, slop: Duration::ZERO };
    for max in [Duration::from_ms(1), Duration::from_ms(300), Duration::from_secs(60)] {
        let mut w = World::new();
        for end in &mut w.ends {
            *end = End::with(tcp::Config { rto: rto(max), delayed_ack: None, ..config() }, 1 - end.name, 100);
        }
        w.both_directions(50);
        (0..1_000).for_each(|_| w.step());
        w.cut = true;
        let since = w.now;
        assert!(w.ends[0].send(since, 99, 60));
        w.until_given_up(since);
    }
}

/// The other end cannot answer a segment that the link does not send. An end that stood still has not looked for an
/// answer.
#[test]
fn nobody_is_given_up_who_was_not_heard() {
    let mut w = World::new();
    w.both_directions(50);
    let now = w.now;
    assert!(w.ends[0].send(now, 99, 60));
    w.step();
    // No end is polled for a while.
    w.now += USER_TIMEOUT.saturating_mul(2);
    w.step();
    assert!(w.ends[0].send(w.now, 100, 60));
    // Time passes, and the link takes nothing.
    let until = w.now + USER_TIMEOUT.saturating_mul(3);
    while w.now < until {
        let World { now, ends, .. } = &mut w;
        ends[0].timers.extend(ends[0].tunnels.take_timers());
        let expired: Vec<_> = ends[0].timers.extract_if(.., |timer| timer.0 <= *now).collect();
        expired.into_iter().for_each(|(deadline, at)| ends[0].tunnels.handle_timeout(*now, deadline, at));
        *now += Duration::from_ms(1);
    }
    (0..10_000).for_each(|_| w.step());
    assert_eq!((w.ends[1].read(w.now), w.ends[1].read(w.now)), (Some(99), Some(100)));
    assert_eq!((w.ends[0].lost, w.ends[0].tunnels.counters().ended), (0, 0));
}

#[test]
fn who_answers_and_takes_nothing_is_not_given_up() {
    let mut w = World::new();
    let mut sent = 0;
    // Ten times the time after which a silent server is given up.
    while w.now < Instant::ZERO.saturating_add(USER_TIMEOUT.saturating_mul(10)) {
        sent += u64::from(w.ends[0].send(w.now, sent, 1_000));
        w.step();
    }
    assert_eq!((w.ends[0].lost, w.ends[0].tunnels.counters().ended), (0, 0));
    let mut seen = 0;
    while seen < sent {
        assert!(w.now < Instant::ZERO.saturating_add(USER_TIMEOUT.saturating_mul(20)), "{seen} of {sent}");
        while let Some(number) = w.ends[1].read(w.now) {
            assert_eq!(number, seen);
            seen += 1;
        }
        w.step();
    }
}

#[test]
fn who_is_gone_leaves_its_place_to_another() {
    let mut w = World::new();
    w.both_directions(20);
    let now = w.now;
    // With frames in it that are not acknowledged, and others that are not read.
    (0..3).for_each(|number| assert!(w.ends[0].send(now, number, 100)));
    (0..3).for_each(|number| assert!(w.ends[1].send(now, number, 100)));
    (0..10).for_each(|_| w.step());
    w.cut = true;
    assert!(w.ends[0].send(w.now, 3, 100));
    w.step();
    let End { tunnels, .. } = &mut w.ends[0];
    let (before, unacknowledged) = (tunnels.counters(), tunnels.peer(0).1.unacknowledged());
    let carrier = tunnels.remove(0, Bytes::new(MAX_FRAME));
    assert!(unacknowledged > 0 && carrier.into_unacknowledged().count() == unacknowledged);
    assert_eq!((tunnels.find(1), tunnels.counters().ended), (None, before.ended + 1));
    assert_eq!(tunnels.counters().segments_sent, before.segments_sent, "what it counted stays");
    assert!(!tunnels.has_output() && !tunnels.has_unread() && !tunnels.has_ended());
    for name in 2..100 {
        let tcp = Tcp::listen(tunnels.tcp(), 7, None);
        let at = tunnels.add(name, tcp, Bytes::new(MAX_FRAME));
        assert_eq!(at, 0, "one slot for one after the other");
        tunnels.open(now, at, || 3);
        assert!(tunnels.poll_transmit(now).is_some());
        assert_eq!(tunnels.remove(at, Bytes::new(MAX_FRAME)).into_unacknowledged().count(), 0);
    }
    // Old deadlines have no effect.
    let timers: Vec<_> = w.ends[0].timers.drain(..).collect();
    let End { tunnels, .. } = &mut w.ends[0];
    timers.into_iter().for_each(|(deadline, at)| tunnels.handle_timeout(deadline, deadline, at));
    assert!(tunnels.poll_transmit(now).is_none());
}

/// Random segments of any kind: whatever they do to the connection, no buffer grows beyond its bounds and no end panics.
#[test]
fn segments_of_any_kind_bring_nobody_down() {
    let mut rng = Rng::from_words(&[11]);
    for _ in 0..200 {
        let mut w = World::new();
        w.both_directions(3);
        for _ in 0..200 {
            let near = |rng: &mut Rng, bases: [u32; 2]| {
                let base = bases[rng.below(2) as usize];
                sluicenet_wire::seq::SeqNumber(base.wrapping_add(rng.below(1 << 18) as u32).wrapping_sub(1 << 12))
            };
            let bytes = vec![rng.next_u64() as u8; rng.below(1_400) as usize];
            let n = rng.below(2) as usize;
            let (own, other) = ([100, u32::MAX - 50][n], [u32::MAX - 50, 100][n]);
            let segment = Segment {
                seq: near(&mut rng, [other, 5_000]),
                ack: near(&mut rng, [own, 5_000]),
                window: rng.next_u64() as u16,
                len: bytes.len() as u16,
                flags: sluicenet_wire::tcp::Flags(rng.next_u64() as u8 | [0x10, 0][rng.below(2) as usize]),
                timestamps: (rng.below(4) != 0).then(|| (rng.next_u64() as u32, rng.next_u64() as u32)),
                ..Segment::default()
            };
            let now = w.now;
            w.ends[n].tunnels.receive(now, 0, &segment, &bytes, false);
            w.step();
            w.ends[n].send(now, 1, 60);
            while w.ends.iter_mut().any(|end| end.read(now).is_some()) {}
            assert!(w.ends.iter().all(|end| end.bytes().1 <= config().max_buffer as usize));
        }
    }
}
