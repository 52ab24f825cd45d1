//! Two ends over a network that delivers every frame once and in order, and the failures when the network does not.

use super::{End, Flags, Segment, Stream};
use crate::rng::Rng;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

const BUFFER: u32 = 10_000;

/// Two ends of an open connection.
fn open() -> (Stream, Stream) {
    let mut a = Stream::connect(7, BUFFER);
    let syn = a.poll_transmit(1_000).unwrap();
    let mut b = Stream::accept(&syn, BUFFER).unwrap();
    let answer = b.poll_transmit(1_000).unwrap();
    assert_eq!(answer.flags, Flags::SYN | Flags::ANSWER);
    assert!(a.receive(&answer).unwrap().connected);
    (a, b)
}

/// Delivers all segments. Returns the number of segments of each end.
fn exchange(a: &mut Stream, b: &mut Stream) -> (usize, usize) {
    let (mut of_a, mut of_b) = (0, 0);
    loop {
        let (from_a, from_b) = (a.poll_transmit(1_000), b.poll_transmit(1_000));
        if from_a.is_none() && from_b.is_none() {
            return (of_a, of_b);
        }
        (of_a, of_b) = (of_a + usize::from(from_a.is_some()), of_b + usize::from(from_b.is_some()));
        from_a.iter().for_each(|s| assert!(b.receive(s).is_some()));
        from_b.iter().for_each(|s| assert!(a.receive(s).is_some()));
    }
}

#[test]
fn it_opens_sends_and_closes() {
    let mut a = Stream::connect(7, BUFFER);
    a.write(2_500);
    let syn = a.poll_transmit(1_000).unwrap();
    assert_eq!(syn, Segment { flags: Flags::SYN, connection: 7, offset: 0, limit: BUFFER, len: 0 });
    assert_eq!(a.poll_transmit(1_000), None, "nothing before there is room for it");
    let mut b = Stream::accept(&syn, BUFFER).unwrap();
    let heard = a.receive(&b.poll_transmit(1_000).unwrap()).unwrap();
    assert!(heard.connected && heard.writable);
    a.close();
    let segments: Vec<Segment> = core::iter::from_fn(|| a.poll_transmit(1_000)).collect();
    let places: Vec<(u32, u32)> = segments.iter().map(|s| (s.offset, s.len)).collect();
    assert_eq!(places, [(0, 1_000), (1_000, 1_000), (2_000, 500)]);
    assert_eq!(segments[2].flags, Flags::FIN, "with the last of it");
    segments[..2].iter().for_each(|s| assert_eq!(b.receive(s).unwrap().fresh, 1_000));
    let heard = b.receive(&segments[2]).unwrap();
    assert_eq!((heard.fresh, heard.peer_closed, heard.closed), (500, true, false));
    // The other direction still works.
    b.write(10);
    b.close();
    let last = b.poll_transmit(1_000).unwrap();
    assert!(b.is_closed(), "both have said that they are through");
    assert!(a.receive(&last).unwrap().closed && a.is_closed());
    assert_eq!((a.read(100), b.read(9_999), a.end(), b.end()), (10, 2_500, End::Orderly, End::Orderly));
}

#[test]
fn nothing_is_said_but_data_and_how_much_more_may_come() {
    let (mut a, mut b) = open();
    let mut read = 0;
    let mut said = (0, 0);
    for _ in 0..100 {
        a.write(1_000);
        let (of_a, of_b) = exchange(&mut a, &mut b);
        said = (said.0 + of_a, said.1 + of_b);
        read += b.read(u64::MAX);
    }
    let rest = exchange(&mut a, &mut b);
    assert_eq!((read, said.0, said.1 + rest.1), (100_000, 100, 20), "a word for every half of the buffer");
}

#[test]
fn who_does_not_read_stops_this_connection_and_no_more() {
    let (mut a, mut b) = open();
    a.write(25_000);
    exchange(&mut a, &mut b);
    assert_eq!((b.readable(), a.pending()), (10_000, 15_000));
    // Small reads do not cause a segment.
    b.read(4_999);
    assert_eq!(exchange(&mut a, &mut b), (0, 0));
    b.read(1);
    assert_eq!(exchange(&mut a, &mut b), (5, 1));
    assert_eq!((b.readable(), a.pending()), (10_000, 10_000));
}

#[test]
fn what_comes_twice_is_left_out_and_a_gap_ends_it() {
    let (mut a, mut b) = open();
    a.write(3_000);
    let first = a.poll_transmit(1_000).unwrap();
    let second = a.poll_transmit(1_000).unwrap();
    let third = a.poll_transmit(1_000).unwrap();
    assert_eq!(b.receive(&first).unwrap().fresh, 1_000);
    assert_eq!(b.receive(&first).unwrap().fresh, 0);
    let half = Segment { offset: 500, len: 700, ..first };
    assert_eq!(b.receive(&half).unwrap().fresh, 200);
    assert_eq!(b.receive(&second).unwrap().fresh, 800);
    let mut other = b.clone();
    assert_eq!(b.receive(&third).unwrap().fresh, 1_000);
    let beyond = Segment { offset: 2_500, ..third };
    assert!(other.receive(&beyond).unwrap().closed);
    assert_eq!((other.end(), other.is_closed()), (End::Gap, false));
    let reset = other.poll_transmit(1_000).unwrap();
    assert!(other.is_closed() && a.receive(&reset).unwrap().closed);
    assert_eq!((a.end(), a.poll_transmit(1_000)), (End::Reset, None));
}

#[test]
fn one_that_was_open_before_the_clock_started_is_as_any_other() {
    let (mut a, mut b) = (Stream::established(7, BUFFER), Stream::established(7, BUFFER));
    assert!(a.is_open() && a.poll_transmit(1_000).is_none(), "nothing to say");
    a.write(25_000);
    exchange(&mut a, &mut b);
    assert_eq!((a.bytes(), b.bytes(), b.read(u64::MAX)), ((10_000, 0), (0, 10_000), 10_000));
    exchange(&mut a, &mut b);
    assert_eq!(b.readable(), 10_000);
}

#[test]
fn who_gives_up_says_so_and_sends_no_more() {
    let (mut a, mut b) = open();
    a.write(2_500);
    let first = a.poll_transmit(1_000).unwrap();
    a.abort();
    let last = a.poll_transmit(1_000).unwrap();
    assert_eq!((last.flags, last.len, a.poll_transmit(1_000)), (Flags::RESET, 0, None));
    assert!(a.is_closed() && a.end() == End::Aborted);
    b.receive(&first);
    assert!(b.receive(&last).unwrap().closed && !b.is_peer_closed());
    assert_eq!((b.end(), b.read(u64::MAX)), (End::Reset, 1_000), "what had come can be read");
}

#[test]
fn what_may_not_be_ends_it() {
    let (_, b) = open();
    let data = Segment { connection: 7, limit: BUFFER, ..Segment::default() };
    let ends = |segment: Segment| {
        let mut b = b.clone();
        b.receive(&Segment { len: 100, ..data });
        b.receive(&segment).is_some_and(|heard| heard.closed).then(|| b.end())
    };
    assert_eq!(ends(Segment { offset: 100, len: BUFFER - 100, ..data }), None);
    assert_eq!(ends(Segment { offset: 100, len: BUFFER - 99, ..data }), Some(End::Violation), "more than allowed");
    assert_eq!(ends(Segment { offset: 100, len: u32::MAX, ..data }), Some(End::Violation));
    assert_eq!(ends(Segment { offset: 101, ..data }), Some(End::Gap));
    assert_eq!(ends(Segment { offset: 50, flags: Flags::FIN, ..data }), Some(End::Violation), "an end before the end");
    assert_eq!(ends(Segment { flags: Flags::RESET, ..data }), Some(End::Reset));
    let mut finished = b.clone();
    assert!(finished.receive(&Segment { flags: Flags::FIN, ..data }).unwrap().peer_closed);
    assert!(finished.receive(&Segment { len: 1, ..data }).unwrap().closed, "data behind the end");
    // A segment of another connection between the same ports.
    let mut b = b.clone();
    let stray = Segment { connection: 8, ..data };
    assert_eq!(b.receive(&stray), None);
    let refusal = Stream::refuse(&stray).unwrap();
    assert_eq!((refusal.flags, refusal.connection), (Flags::RESET, 8));
    assert_eq!((Stream::refuse(&refusal), b.receive(&refusal)), (None, None));
    // A segment before the connection is open.
    let mut opening = Stream::connect(7, BUFFER);
    assert!(opening.receive(&data).unwrap().closed);
    assert_eq!(opening.poll_transmit(1_000), None, "nobody has heard of it");
    for bad in
        [data, Segment { flags: Flags::SYN, len: 1, ..data }, Segment { flags: Flags::SYN, limit: 1 << 31, ..data }]
    {
        assert!(Stream::accept(&bad, BUFFER).is_none());
    }
    // A limit does not move back, nor ahead by half of all numbers or more.
    let (mut a, _) = open();
    a.write(u64::from(u32::MAX));
    for limit in [0, 5_000, BUFFER, 0x8000_0001] {
        a.receive(&Segment { limit, ..data }).unwrap();
    }
    let sent: u64 = core::iter::from_fn(|| a.poll_transmit(1_000)).map(|s| u64::from(s.len)).sum();
    assert_eq!(sent, u64::from(BUFFER));
}

#[test]
fn a_probe_changes_nothing_and_finds_out_whether_there_is_still_somebody() {
    assert!(Stream::connect(7, BUFFER).probe().is_none(), "not before it is open");
    let (mut a, mut b) = open();
    for bytes in [0, 1_000, 10_000] {
        a.write(bytes);
        exchange(&mut a, &mut b);
        b.read(u64::MAX);
        exchange(&mut a, &mut b);
        let probes = [a.probe().unwrap(), b.probe().unwrap()];
        let before = (a.room(), b.room(), a.bytes(), b.bytes());
        let heard = [b.receive(&probes[0]).unwrap(), a.receive(&probes[1]).unwrap()];
        assert!(heard.iter().all(|h| h.asked && !h.writable && !h.closed && h.fresh == 0));
        let answers = [a.answer_probe().unwrap(), b.answer_probe().unwrap()];
        let heard = [b.receive(&answers[0]).unwrap(), a.receive(&answers[1]).unwrap()];
        assert!(heard.iter().all(|h| *h == super::Received::default()), "which asks nothing and says nothing else");
        assert_eq!((a.room(), b.room(), a.bytes(), b.bytes()), before);
        assert!(a.poll_transmit(1_000).is_none() && b.poll_transmit(1_000).is_none(), "nothing to answer");
    }
    assert_eq!(Stream::refuse(&a.probe().unwrap()).unwrap().flags, Flags::RESET);
    b.close();
    exchange(&mut a, &mut b);
    assert!(b.receive(&a.probe().unwrap()).is_some_and(|heard| !heard.closed), "half closed is not gone");
    a.abort();
    assert!(a.probe().is_none());
}

/// Streams both ways with buffers, segments and habits of any kind, through the point where numbers wrap.
fn any_conversation(seed: u64) {
    let mut random = Rng::from_words(&[seed, 3]);
    let size = |random: &mut Rng| {
        let most = [3, 100, 70_000][random.below(3) as usize];
        1 + random.below(most) as u32
    };
    let buffers = [size(&mut random), size(&mut random)];
    let mss = size(&mut random);
    let mut a = Stream::connect(seed as u32, buffers[0]);
    let syn = a.poll_transmit(mss).unwrap();
    let mut b = Stream::accept(&syn, buffers[1]).unwrap();
    if random.below(3) == 0 {
        // Positions as after 4 GB.
        let start = (1 << 32) - random.below(1_000);
        a.receive(&b.poll_transmit(mss).unwrap()).unwrap();
        for (own, other) in [(&mut a, buffers[1]), (&mut b, buffers[0])] {
            (own.sent, own.written, own.received, own.read) = (start, start, start, start);
            (own.allowed, own.may_send) = (own.limit(), start + u64::from(other));
        }
    }
    let begin = a.sent;
    let mut ends = [a, b];
    let total = [random.below(5_000), random.below(5_000)];
    let (mut wires, mut left, mut read) = ([VecDeque::new(), VecDeque::new()], total, [0; 2]);
    for step in 0.. {
        assert!(step < 1_000_000, "seed {seed}: no end at {read:?} of {total:?}");
        let at = random.below(2) as usize;
        match random.below(4) {
            0 if left[at] > 0 => {
                let bytes = left[at].min(1 + random.below(3_000));
                ends[at].write(bytes);
                left[at] -= bytes;
                if left[at] == 0 {
                    ends[at].close();
                }
            }
            0 if total[at] == 0 => ends[at].close(),
            1 => read[at] += ends[at].read(1 + random.below(2_000)),
            2 => wires[at].extend(ends[at].poll_transmit(mss)),
            _ => {
                if let Some(segment) = wires[1 - at].pop_front() {
                    let before = ends[at].received;
                    let heard = ends[at].receive(&segment).unwrap();
                    assert_eq!(ends[at].received - before, u64::from(heard.fresh));
                }
            }
        }
        assert!(ends.iter().zip(buffers).all(|(end, buffer)| end.readable() <= u64::from(buffer)), "seed {seed}");
        if ends.iter().all(|end| end.is_closed() && end.readable() == 0) && wires.iter().all(VecDeque::is_empty) {
            break;
        }
    }
    assert_eq!(read, [total[1], total[0]], "seed {seed}");
    assert!(ends.iter().zip(total).all(|(end, total)| end.sent - begin == total && end.end == End::Orderly));
}

#[test]
fn any_conversation_comes_to_its_end() {
    (0..3_000).for_each(any_conversation);
}

#[test]
fn no_segment_makes_it_panic() {
    let mut random = Rng::from_words(&[4]);
    let near = |random: &mut Rng| match random.below(3) {
        0 => random.next_u64() as u32,
        1 => random.below(2 * u64::from(BUFFER)) as u32,
        _ => 0,
    };
    for _ in 0..20_000 {
        let (mut a, mut b) = open();
        for _ in 0..20 {
            let flags = Flags(random.below(16) as u8 & random.below(16) as u8);
            let (offset, limit, len) = (near(&mut random), near(&mut random), near(&mut random));
            b.receive(&Segment { flags, connection: 7, offset, limit, len });
            if !b.closing {
                b.write(random.below(100));
            }
            b.read(random.below(1_000));
            if random.below(20) == 0 {
                b.close();
            }
            b.poll_transmit(1 + random.below(1_000) as u32).into_iter().for_each(|s| {
                a.receive(&s);
            });
            assert!(b.readable() <= u64::from(BUFFER) && b.sent <= b.may_send && b.sent <= b.written);
        }
    }
}
