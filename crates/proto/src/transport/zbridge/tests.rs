//! Scripts with a clock, and two ends between which frames are lost, doubled, delayed and reordered.

use super::{Channel, ChannelConfig, Header, Kind, Outgoing, Ranges, Refusal};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

const CONFIG: ChannelConfig =
    ChannelConfig { buffer: 64, period: 16, timeout: Duration::from_ms(27), single_path: true };

fn us(n: u64) -> Instant {
    Instant::ZERO.saturating_add(Duration::from_us(n))
}

fn end(name: u64) -> Channel<u64> {
    Channel::new(CONFIG, Rng::from_words(&[name]))
}

/// Two ends next to each other, and the frames that the second delivered.
struct Pair {
    now: Instant,
    a: Channel<u64>,
    b: Channel<u64>,
    delivered: Vec<u64>,
    freed: usize,
}

impl Pair {
    fn new() -> Pair {
        Pair { now: Instant::ZERO, a: end(1), b: end(2), delivered: Vec::new(), freed: 0 }
    }
    fn bring_b(&mut self, sent: Outgoing<u64>) -> Result<(), (Option<u64>, Refusal)> {
        let Pair { delivered, freed, .. } = self;
        self.b.receive(self.now, &sent.header, sent.frame, &mut |f| delivered.push(f), &mut |_| *freed += 1)
    }
    fn bring_a(&mut self, sent: Outgoing<u64>) -> Result<(), (Option<u64>, Refusal)> {
        let freed = &mut self.freed;
        self.a.receive(self.now, &sent.header, sent.frame, &mut |_| panic!("b sends nothing"), &mut |_| *freed += 1)
    }
    /// Runs until neither end has a frame to send. `loses` says which frames of `a` do not arrive.
    fn drive(&mut self, mut loses: impl FnMut(&Outgoing<u64>) -> bool) {
        loop {
            let (from_a, from_b) = (self.a.poll_transmit(self.now), self.b.poll_transmit(self.now));
            if from_a.is_none() && from_b.is_none() {
                return;
            }
            if let Some(sent) = from_a.filter(|sent| !loses(sent)) {
                let _ = self.bring_b(sent);
            }
            if let Some(sent) = from_b {
                let _ = self.bring_a(sent);
            }
        }
    }
    fn send(&mut self, frames: core::ops::Range<u64>) {
        frames.for_each(|frame| self.a.send(self.now, frame).unwrap());
    }
}

fn is_data(sent: &Outgoing<u64>, frame: u64) -> bool {
    sent.frame == Some(frame)
}

/// The kind of a sent frame.
fn kind(sent: Option<Outgoing<u64>>) -> Option<Kind> {
    sent.map(|sent| sent.header.kind)
}

#[test]
fn a_connection_begins_with_three_frames_as_tcps_does() {
    let mut pair = Pair::new();
    pair.send(7..8);
    let syn = pair.a.poll_transmit(us(0)).unwrap();
    assert_eq!(syn.header.kind, Kind::Syn);
    assert_eq!(pair.a.poll_transmit(us(0)), None, "nothing before both numbers are known");
    pair.bring_b(syn.clone()).unwrap();
    let answer = pair.b.poll_transmit(us(0)).unwrap();
    assert_eq!((answer.header.kind, answer.header.connection), (Kind::SynAck, syn.header.sequence));
    pair.bring_a(answer).unwrap();
    assert_eq!(kind(pair.a.poll_transmit(us(0))), Some(Kind::Ack));
    let data = pair.a.poll_transmit(us(0)).unwrap();
    assert_eq!(data.header.sequence, syn.header.sequence, "the first frame has the connection's number");
    pair.bring_b(data).unwrap();
    assert_eq!(pair.delivered, [7]);
    assert_eq!([pair.a.counters().connections, pair.b.counters().connections], [1, 1]);
}

#[test]
fn every_pth_frame_asks_and_nothing_else_is_said() {
    let mut pair = Pair::new();
    pair.send(0..40);
    let mut asked = Vec::new();
    pair.drive(|sent| {
        if sent.header.kind == (Kind::Data { ack_request: true }) {
            asked.push(sent.frame.unwrap());
        }
        false
    });
    assert_eq!(asked, [15, 31]);
    assert_eq!(pair.delivered, (0..40).collect::<Vec<u64>>());
    assert_eq!((pair.freed, pair.a.in_flight()), (32, 8), "as many as were acknowledged");
    // The rest is sent after the timeout.
    pair.now = pair.a.poll_timeout().unwrap();
    assert_eq!(pair.now, us(27_000));
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert_eq!((pair.freed, pair.a.in_flight(), pair.a.poll_timeout()), (40, 0, None));
    assert_eq!(pair.a.counters().resent, 0);
}

#[test]
fn a_full_buffer_takes_no_more() {
    let mut pair = Pair::new();
    pair.send(0..64);
    assert!(!pair.a.has_room() && pair.a.send(us(0), 64).is_err());
    pair.drive(|_| false);
    assert!(pair.a.has_room());
}

#[test]
fn a_gap_is_said_at_once_where_there_is_one_path() {
    let mut pair = Pair::new();
    pair.send(0..10);
    let mut lost = 0;
    pair.drive(|sent| {
        let loses = (is_data(sent, 3) || is_data(sent, 4)) && lost < 2;
        lost += u64::from(loses);
        loses
    });
    assert_eq!(pair.delivered, (0..10).collect::<Vec<u64>>());
    assert_eq!((pair.a.counters().resent, pair.b.counters().duplicates), (2, 0));
    assert_eq!(pair.a.counters().timeouts, 0);
}

#[test]
fn with_several_paths_it_is_said_when_asked() {
    let mut pair = Pair::new();
    let config = ChannelConfig { single_path: false, ..CONFIG };
    (pair.a, pair.b) = (Channel::new(config, Rng::from_words(&[1])), Channel::new(config, Rng::from_words(&[2])));
    pair.send(0..10);
    let mut lost = false;
    pair.drive(|sent| is_data(sent, 3) && !core::mem::replace(&mut lost, true));
    assert_eq!((pair.delivered.len(), pair.b.early()), (3, 6));
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, (0..10).collect::<Vec<u64>>());
    assert_eq!((pair.a.counters().resent, pair.a.counters().timeouts), (1, 1));
}

#[test]
fn the_last_frame_is_found_missing_by_the_timer() {
    let mut pair = Pair::new();
    pair.send(0..3);
    let mut lost = false;
    pair.drive(|sent| is_data(sent, 2) && !core::mem::replace(&mut lost, true));
    assert_eq!(pair.delivered, [0, 1]);
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, [0, 1, 2]);
}

/// A slow flow whose next frame always comes before the timer would run out.
#[test]
fn frames_put_the_timer_off_no_further() {
    let mut pair = Pair::new();
    let ms = |n: u64| us(1_000 * n);
    pair.send(0..1);
    pair.drive(|_| false);
    assert_eq!(pair.a.poll_timeout(), Some(ms(27)));
    // The second frame is lost, each time it is sent.
    for number in 1..10 {
        pair.now = ms(number);
        pair.send(number..number + 1);
        pair.drive(|sent| is_data(sent, 1));
    }
    assert_eq!((&pair.delivered[..], pair.b.early()), (&[0][..], 8));
    pair.now = pair.a.poll_timeout().unwrap();
    assert_eq!(pair.now, ms(29), "since it last heard that something new had come");
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, (0..10).collect::<Vec<u64>>());
    // A frame sent again is asked for at its own deadline. Once all frames are acknowledged, the next frame starts a
    // new timeout.
    pair.now = pair.a.poll_timeout().unwrap();
    assert_eq!(pair.now, ms(29 + 27));
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert_eq!((pair.a.in_flight(), pair.a.poll_timeout()), (0, None));
    pair.now = ms(60);
    pair.send(10..11);
    pair.drive(|_| false);
    assert_eq!(pair.a.poll_timeout(), Some(ms(60 + 27)));
}

/// An end that answers a greeting waits for a peer that is gone, and has frames for the peer's successor.
#[test]
fn who_is_replaced_within_the_handshake_is_greeted_anew() {
    let mut pair = Pair::new();
    pair.send(0..1);
    let greeting = pair.a.poll_transmit(us(0)).unwrap();
    // The other end takes frames from here, but is not the end that greeted.
    let (mut b, mut other) = (end(2), end(3));
    let (mut delivered, mut free) = (Vec::new(), |_| {});
    b.receive(us(0), &greeting.header, None, &mut |_| {}, &mut free).unwrap();
    b.send(us(0), 7).unwrap();
    let mut now = us(0);
    for _ in 0..20 {
        while let Some(sent) = b.poll_transmit(now) {
            let _ = other.receive(now, &sent.header, sent.frame, &mut |f| delivered.push(f), &mut |_| {});
        }
        while let Some(sent) = other.poll_transmit(now) {
            let _ = b.receive(now, &sent.header, sent.frame, &mut |_| {}, &mut free);
        }
        let next = [b.poll_timeout(), other.poll_timeout()].into_iter().flatten().min();
        let Some(at) = next else { break };
        now = at;
        b.handle_timeout(now);
        other.handle_timeout(now);
    }
    assert_eq!((delivered, b.in_flight(), b.poll_timeout()), ([7].into(), 0, None));
    // Without frames for the new peer, the end does not continue to send to it.
    let (mut b, mut other) = (end(2), end(3));
    b.receive(us(0), &greeting.header, None, &mut |_| {}, &mut free).unwrap();
    let answer = b.poll_transmit(us(0)).unwrap();
    assert!(other.receive(us(0), &answer.header, None, &mut |_| {}, &mut |_| {}).is_err());
    let reset = other.poll_transmit(us(0)).unwrap();
    assert_eq!((reset.header.kind, reset.header.sequence), (Kind::Reset, greeting.header.sequence));
    b.receive(us(0), &reset.header, None, &mut |_| {}, &mut free).unwrap();
    assert_eq!((b.poll_transmit(us(0)), b.poll_timeout()), (None, None));
}

/// Found by the fault campaign. A late greeting replaces the greeting that was answered, when that answer was accepted
/// already.
#[test]
fn two_that_are_connected_to_others_find_each_other() {
    let mut pair = Pair::new();
    pair.send(0..4);
    pair.drive(|_| false);
    pair.b = end(3);
    pair.b.send(us(0), 7).unwrap();
    let greeting = pair.b.poll_transmit(us(0)).unwrap();
    pair.bring_a(greeting).unwrap();
    let answer = pair.a.poll_transmit(us(0)).unwrap();
    let late = Header { kind: Kind::Syn, connection: 0, sequence: 77, acknowledgement: 0 };
    pair.bring_a(Outgoing { header: late, frame: None }).unwrap();
    pair.bring_b(answer).unwrap();
    let (mut a_has, mut now) = (Vec::new(), us(0));
    for _ in 0..20 {
        for _ in 0..10 {
            if let Some(sent) = pair.b.poll_transmit(now) {
                let _ = pair.a.receive(now, &sent.header, sent.frame, &mut |f| a_has.push(f), &mut |_| {});
                pair.a.take_unacknowledged().into_iter().for_each(drop);
            }
            if let Some(sent) = pair.a.poll_transmit(now) {
                let _ = pair.b.receive(now, &sent.header, sent.frame, &mut |_| {}, &mut |_| {});
                if let Some(frames) = pair.b.take_unacknowledged() {
                    frames.for_each(|frame| pair.b.send(now, frame).unwrap());
                }
            }
        }
        let Some(at) = [pair.a.poll_timeout(), pair.b.poll_timeout()].into_iter().flatten().min() else { break };
        now = at;
        pair.a.handle_timeout(now);
        pair.b.handle_timeout(now);
    }
    assert_eq!((a_has, pair.b.in_flight()), ([7].into(), 0));
}

/// Found by the fault campaign (seed 1970). Both ends' timers run out before their answers can be sent, each time, as
/// where the link is held back for longer. One end waits for a peer that is gone; the other has only begun.
#[test]
fn what_an_end_says_by_itself_takes_the_place_of_no_answer() {
    let mut pair = Pair::new();
    let gone = Header { kind: Kind::Syn, connection: 0, sequence: 77, acknowledgement: 0 };
    pair.bring_b(Outgoing { header: gone, frame: None }).unwrap();
    pair.b.send(us(0), 8).unwrap();
    pair.send(7..8);
    let (mut a_has, mut now) = (Vec::new(), us(0));
    for _ in 0..20 {
        let (from_a, from_b) = (pair.a.poll_transmit(now), pair.b.poll_transmit(now));
        if let Some(sent) = from_a {
            let _ = pair.bring_b(sent);
        }
        if let Some(sent) = from_b {
            let _ = pair.a.receive(now, &sent.header, sent.frame, &mut |f| a_has.push(f), &mut |_| {});
        }
        now = now.saturating_add(Duration::from_ms(5_000));
        pair.a.handle_timeout(now);
        pair.b.handle_timeout(now);
    }
    assert_eq!((a_has, &pair.delivered[..]), ([8].into(), &[7][..]));
    assert_eq!((pair.a.in_flight(), pair.b.in_flight()), (0, 0));
}

#[test]
fn an_answer_of_many_gaps_takes_several_frames() {
    let mut pair = Pair::new();
    let config = ChannelConfig { single_path: false, ..CONFIG };
    (pair.a, pair.b) = (Channel::new(config, Rng::from_words(&[1])), Channel::new(config, Rng::from_words(&[2])));
    pair.send(0..64);
    // Every other frame is lost once.
    let mut first = [true; 64];
    pair.drive(|sent| sent.frame.is_some_and(|f| f % 2 == 1 && core::mem::replace(&mut first[f as usize], false)));
    while let Some(at) = pair.a.poll_timeout() {
        pair.now = at;
        pair.a.handle_timeout(at);
        pair.drive(|_| false);
    }
    assert_eq!(pair.delivered, (0..64).collect::<Vec<u64>>());
    assert_eq!(pair.freed, 64);
}

#[test]
fn who_was_restarted_gets_what_was_not_acknowledged_again_if_the_caller_wants() {
    let mut pair = Pair::new();
    pair.send(0..20);
    pair.drive(|_| false);
    assert_eq!(pair.a.in_flight(), 4);
    // The end comes back without memory, and gets frames of a connection it does not know.
    pair.b = end(3);
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert!(!pair.a.has_room(), "the caller has to decide first");
    let unacknowledged: Vec<u64> = pair.a.take_unacknowledged().unwrap().collect();
    assert_eq!(unacknowledged, (16..20).collect::<Vec<u64>>());
    pair.delivered.clear();
    pair.send(16..22);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, (16..22).collect::<Vec<u64>>());
    assert_eq!(pair.a.counters().connections, 2);
}

#[test]
fn who_inquires_learns_in_a_round_trip_whether_the_other_end_is_still_the_one_it_was() {
    let mut pair = Pair::new();
    assert!(!pair.b.inquire(us(0)), "nobody is there");
    pair.send(0..20);
    pair.drive(|_| false);
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert_eq!((pair.b.poll_timeout(), pair.b.in_flight()), (None, 0));
    assert!(pair.b.inquire(pair.now) && pair.b.inquire(pair.now));
    pair.drive(|_| false);
    assert!(!pair.b.take_ended() && pair.b.is_connected(), "it is");
    assert_eq!((pair.b.poll_transmit(pair.now), pair.b.poll_timeout()), (None, None), "and is not asked again");
    pair.a = end(3);
    pair.b.inquire(pair.now);
    // The question is lost, and repeated.
    assert_eq!(kind(pair.b.poll_transmit(pair.now)), Some(Kind::Ask));
    pair.now = pair.b.poll_timeout().unwrap();
    pair.b.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert!(pair.b.take_ended() && !pair.b.is_connected() && !pair.b.take_ended());
    assert_eq!(pair.b.poll_timeout(), None);
    pair.send(20..22);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, (0..22).collect::<Vec<u64>>());
}

#[test]
fn what_was_never_sent_can_be_taken_back() {
    let mut pair = Pair::new();
    pair.send(0..20);
    pair.drive(|_| false);
    pair.b = end(3);
    pair.send(20..24);
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    // The question, and the frames sent until the answer comes.
    assert_eq!(kind(pair.a.poll_transmit(pair.now)), Some(Kind::Ask));
    let sent = pair.a.poll_transmit(pair.now).unwrap();
    assert_eq!(sent.frame, Some(20));
    assert!(pair.bring_b(sent).is_err());
    let reset = pair.b.poll_transmit(pair.now).unwrap();
    pair.bring_a(reset).unwrap();
    assert!(pair.a.take_ended());
    assert_eq!(pair.a.take_unsent().collect::<Vec<u64>>(), [21, 22, 23]);
    assert_eq!(pair.a.take_unacknowledged().unwrap().collect::<Vec<u64>>(), [16, 17, 18, 19, 20]);
    pair.delivered.clear();
    pair.send(21..24);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, [21, 22, 23]);
}

#[test]
fn an_old_or_forged_greeting_changes_nothing() {
    let mut pair = Pair::new();
    pair.send(0..4);
    pair.drive(|_| false);
    for sequence in [1, 77, u32::MAX] {
        let header = Header { kind: Kind::Syn, connection: 0, sequence, acknowledgement: 0 };
        pair.bring_b(Outgoing { header, frame: None }).unwrap();
        let answer = pair.b.poll_transmit(us(0)).unwrap();
        assert_eq!((answer.header.kind, answer.header.connection), (Kind::SynAck, sequence));
        assert_eq!(pair.bring_a(answer), Err((None, Refusal::Stale)), "who did not greet does not confirm");
        // No other greeting is answered until the other end resets the first one, which may have been a good one.
        let other = Header { kind: Kind::Syn, connection: 0, sequence: 5, acknowledgement: 0 };
        pair.bring_b(Outgoing { header: other, frame: None }).unwrap();
        assert_eq!(pair.b.poll_transmit(us(0)).unwrap().header.connection, sequence);
        let reset = pair.a.poll_transmit(us(0)).unwrap();
        assert_eq!((reset.header.kind, reset.header.sequence), (Kind::Reset, sequence));
        pair.bring_b(reset).unwrap();
    }
    pair.send(4..8);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, (0..8).collect::<Vec<u64>>());
    assert_eq!(pair.b.counters().connections, 1);
}

#[test]
fn absurd_words_are_refused() {
    let mut pair = Pair::new();
    pair.send(0..4);
    pair.drive(|_| false);
    let mut known = None;
    pair.send(4..5);
    pair.drive(|sent| {
        known = Some(sent.header);
        false
    });
    let sound = known.unwrap();
    let mut say = |header: Header, frame| pair.bring_b(Outgoing { header, frame });
    assert_eq!(say(sound, Some(4)), Err((Some(4), Refusal::Duplicate)));
    let far = Header { sequence: sound.sequence.wrapping_add(1_000), ..sound };
    assert_eq!(say(far, Some(9)), Err((Some(9), Refusal::TooFar)));
    let of_nobody = Header { connection: sound.connection ^ 1, ..sound };
    assert_eq!(say(of_nobody, Some(9)), Err((Some(9), Refusal::Stale)));
    let of_the_future = Header { acknowledgement: sound.acknowledgement.wrapping_add(5), ..sound };
    assert_eq!(say(of_the_future, Some(9)), Err((Some(9), Refusal::Stale)));
    let mut ranges = Ranges::default();
    for (first, len) in [(0, u32::MAX), (sound.sequence, u32::MAX), (u32::MAX, 3)] {
        assert!(ranges.push(first, len));
    }
    say(Header { kind: Kind::Nack(ranges), ..sound }, None).unwrap();
    let ask = Header { kind: Kind::Ask, sequence: sound.sequence.wrapping_add(1 << 30), ..sound };
    say(ask, None).unwrap();
    let reset = Header { kind: Kind::Reset, sequence: 12345, ..sound };
    assert_eq!(say(reset, None), Err((None, Refusal::Stale)));
    pair.send(5..9);
    pair.drive(|_| false);
    assert_eq!(pair.delivered, (0..9).collect::<Vec<u64>>());
}

/// Faults of a wire.
#[derive(Clone, Copy)]
struct Faults {
    /// Lost and doubled frames, per thousand.
    lost: u64,
    doubled: u64,
    /// Frames delayed by seconds, per ten thousand.
    late: u64,
    /// Frames take between one and this many microseconds. More than one means several paths.
    spread_us: u64,
}

/// Frames in flight, by arrival time and order of sending.
#[derive(Default)]
struct Wire {
    frames: BTreeMap<(Instant, u64), Outgoing<u64>>,
    sent: u64,
}

impl Wire {
    fn send(&mut self, now: Instant, frame: &Outgoing<u64>, faults: Faults, random: &mut Rng) {
        let copies = match random.below(1_000) {
            n if n < faults.lost => 0,
            n if n < faults.lost + faults.doubled => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let mut delay = Duration::from_us(10 + random.below(faults.spread_us));
            if random.below(10_000) < faults.late {
                delay = Duration::from_ms(random.below(3_000));
            }
            self.frames.insert((now.saturating_add(delay), self.sent), frame.clone());
            self.sent += 1;
        }
    }
    fn pop_arrived(&mut self, now: Instant) -> Option<Outgoing<u64>> {
        let entry = self.frames.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
    fn next(&self) -> Option<Instant> {
        self.frames.first_key_value().map(|(&(at, _), _)| at)
    }
}

/// Both ends send to each other over wires with faults. Every frame must arrive once and in order, and no frame may be
/// kept.
fn campaign(seed: u64) {
    let mut random = Rng::from_words(&[seed, 1]);
    let single_path = random.below(2) == 0;
    let spread_us = if single_path { 1 } else { 1 + random.below(200) };
    let lost = [0, 1, 20, 100, 300][random.below(5) as usize];
    let mut faults = Faults { lost, doubled: random.below(3) * 30, late: random.below(2) * 20, spread_us };
    let period = 1 + random.below(32) as u32;
    let buffer = period * (2 + random.below(8) as u32);
    let config = ChannelConfig { buffer, period, timeout: Duration::from_ms(1 + random.below(30)), single_path };
    // In one case of four, numbers wrap within the run.
    let mut ends = [1, 2].map(|name| Channel::new(config, Rng::from_words(&[seed, name])));
    if random.below(4) == 0 {
        ends.iter_mut().for_each(|end| end.begin_at(u32::MAX - random.below(50) as u32));
    }
    let frames = 200 + random.below(800);
    let mut wires = [Wire::default(), Wire::default()];
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let mut now = Instant::ZERO;
    let mut steps = 0;
    while received != [frames; 2] || ends.iter().any(|e| e.in_flight() > 0) {
        steps += 1;
        assert!(steps < 2_000_000, "seed {seed}: no end at {received:?} of {frames}");
        for (at, end) in ends.iter_mut().enumerate() {
            while sent[at] < frames && end.send(now, sent[at]).is_ok() {
                sent[at] += 1;
            }
            assert!(end.unsent_and_in_flight() <= buffer as usize && end.early() < buffer as usize);
            assert!(end.take_unacknowledged().is_none(), "seed {seed}: nobody was restarted");
            // At most a few at a time: the wire has a rate.
            for _ in 0..4 {
                let Some(outgoing) = end.poll_transmit(now) else { break };
                wires[at].send(now, &outgoing, faults, &mut random);
            }
        }
        for at in 0..2 {
            while let Some(frame) = wires[1 - at].pop_arrived(now) {
                let mut deliver = |f| {
                    assert_eq!(f, received[at], "seed {seed}: out of order, twice, or a gap");
                    received[at] += 1;
                };
                let _ = ends[at].receive(now, &frame.header, frame.frame, &mut deliver, &mut |_| {});
            }
        }
        let next = wires.iter().filter_map(Wire::next).chain(ends.iter().filter_map(|e| e.poll_timeout()));
        let next = next.min().unwrap_or(now).max(now.saturating_add(Duration::from_us(1)));
        now = if ends.iter().any(|e| e.in_flight() < e.unsent_and_in_flight()) {
            now.saturating_add(Duration::from_us(1))
        } else {
            next
        };
        ends.iter_mut().for_each(|end| end.handle_timeout(now));
        if steps == 100_000 {
            // The faults are over: everything comes to an end.
            faults = Faults { lost: 0, doubled: 0, late: 0, spread_us };
        }
    }
    for (end, wire) in ends.iter().zip(&wires) {
        let counters = end.counters();
        assert_eq!((counters.sent, counters.delivered, end.early()), (frames, frames, 0), "seed {seed}");
        assert!(lost > 0 || faults.late > 0 || !single_path || counters.resent == 0, "seed {seed}: {counters:?}");
        assert!(wire.sent > 0);
    }
}

#[test]
fn nothing_is_lost_twice_or_out_of_order_whatever_the_wires_do() {
    (0..2_000).for_each(campaign);
}

#[test]
fn an_idle_channel_ends_at_both_ends() {
    let mut pair = Pair::new();
    pair.send(0..4);
    pair.drive(|_| false);
    pair.a.close(pair.now);
    assert!(!pair.a.is_closing(), "what it sent is not acknowledged");
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    // The attempt is lost, and repeated.
    pair.a.close(pair.now);
    assert!(pair.a.is_closing() && !pair.a.has_room() && pair.a.send(pair.now, 9).is_err());
    pair.drive(|sent| sent.header.kind == Kind::Close);
    assert!(pair.a.is_closing() && !pair.b.is_over());
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    assert!(pair.a.is_over() && pair.b.is_over());
    assert_eq!((pair.a.poll_timeout(), pair.b.poll_timeout()), (None, None));
    // The channel begins anew.
    pair.send(4..6);
    pair.drive(|_| false);
    assert_eq!((&pair.delivered[..], pair.a.counters().given_up), (&[0, 1, 2, 3, 4, 5][..], 0));
}

/// A copy of a refused attempt comes when the other end has no frames any more, and new frames are in flight to it.
#[test]
fn what_was_refused_once_is_refused_for_good() {
    let mut pair = Pair::new();
    pair.send(0..1);
    pair.drive(|_| false);
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    pair.b.send(pair.now, 70).unwrap();
    let late = pair.b.poll_transmit(pair.now).unwrap();
    pair.a.close(pair.now);
    let attempt = pair.a.poll_transmit(pair.now).unwrap();
    assert_eq!(attempt.header.kind, Kind::Close);
    pair.bring_b(attempt.clone()).unwrap();
    let refusal = pair.b.poll_transmit(pair.now).unwrap();
    assert_eq!((refusal.header.kind, refusal.header.sequence), (Kind::Keep, attempt.header.sequence));
    pair.bring_a(refusal).unwrap();
    assert!(!pair.a.is_closing());
    let mut has = Vec::new();
    let Pair { a, b, now, .. } = &mut pair;
    a.receive(*now, &late.header, late.frame, &mut |f| has.push(f), &mut |_| {}).unwrap();
    assert_eq!(has, [70]);
    // The other end learns that its frame arrived, and is idle. A copy of the attempt ends nothing.
    *now = b.poll_timeout().unwrap();
    b.handle_timeout(*now);
    pair.drive(|_| false);
    assert!(pair.b.is_empty());
    pair.send(1..2);
    let data = pair.a.poll_transmit(pair.now).unwrap();
    pair.bring_b(attempt).unwrap();
    pair.bring_b(data).unwrap();
    assert_eq!((pair.delivered.len(), pair.b.is_over()), (2, false));
    // A new attempt succeeds.
    pair.now = pair.a.poll_timeout().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.drive(|_| false);
    pair.a.close(pair.now);
    pair.drive(|_| false);
    assert!(pair.a.is_over() && pair.b.is_over());
}

/// Both ends close at once, and send frames right after that.
#[test]
fn both_may_end_it_at_once() {
    for delayed in [false, true] {
        let mut pair = Pair::new();
        pair.send(0..1);
        pair.drive(|_| false);
        pair.now = pair.a.poll_timeout().unwrap();
        pair.a.handle_timeout(pair.now);
        pair.drive(|_| false);
        pair.a.close(pair.now);
        pair.b.close(pair.now);
        let (a, b) = (pair.a.poll_transmit(pair.now).unwrap(), pair.b.poll_transmit(pair.now).unwrap());
        pair.bring_b(a).unwrap();
        if delayed {
            // This end has agreed, and begins anew before the other end's attempt arrives.
            pair.b.send(pair.now, 70).unwrap();
        }
        pair.bring_a(b).unwrap();
        let mut has = Vec::new();
        for _ in 0..20 {
            let Pair { a, b, now, .. } = &mut pair;
            if let Some(sent) = b.poll_transmit(*now) {
                let _ = a.receive(*now, &sent.header, sent.frame, &mut |f| has.push(f), &mut |_| {});
            }
            if let Some(sent) = a.poll_transmit(*now) {
                let _ = b.receive(*now, &sent.header, sent.frame, &mut |_| {}, &mut |_| {});
            }
        }
        assert_eq!(has, if delayed { &[70][..] } else { &[] });
        assert_eq!(pair.b.is_over(), !delayed, "{:?}", pair.b);
        assert_eq!(pair.a.counters().given_up + pair.b.counters().given_up, 0);
    }
}
