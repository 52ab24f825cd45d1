//! Scripts with a clock; the algorithms as they are printed; and many sources with lost, doubled, delayed, reordered
//! and forged messages, against a model that knows where every credit is.

mod campaign;
mod fairness;

use super::{Message, NoCredit, Reception, ReceptionConfig, Transmission, TransmissionConfig};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

fn ms(n: u64) -> Instant {
    Instant::ZERO.saturating_add(Duration::from_ms(n))
}

const SMALL: ReceptionConfig = ReceptionConfig {
    queue: 10,
    batch: 1,
    shares_processors: false,
    sources: 4,
    probe_after: Duration::from_ms(100),
    reclaim_after: Duration::from_ms(500),
    ordered: false,
    deadline: Duration::from_secs(1),
};

/// One source has credits for ten frames.
const FOR_TEN: ReceptionConfig = ReceptionConfig { queue: 20, ..SMALL };

fn sender(channel: u32) -> Transmission {
    Transmission::new(TransmissionConfig { batch: 4, ..TransmissionConfig::default() }, channel)
}

/// Delivers messages until neither end has any. Returns their number.
fn talk(now: Instant, t: &mut Transmission, r: &mut Reception<u8>, name: u8) -> usize {
    let mut messages = 0;
    loop {
        let mut quiet = true;
        while let Some((channel, message)) = t.poll_message(now) {
            r.receive(now, name, channel, &message);
            (messages, quiet) = (messages + 1, false);
        }
        while let Some((to, channel, message)) = r.poll_message() {
            assert_eq!(to, name);
            t.receive(now, channel, &message);
            (messages, quiet) = (messages + 1, false);
        }
        if quiet {
            return messages;
        }
    }
}

#[test]
fn a_cold_start_takes_one_round_trip() {
    let (mut t, mut r) = (sender(1), Reception::new(SMALL));
    assert_eq!((t.poll_message(ms(0)), t.poll_timeout()), (None, None));
    t.on_arrival();
    assert!(!t.may_send());
    let (channel, request) = t.poll_message(ms(0)).unwrap();
    assert_eq!((channel, request), (1, Message::Request { wanted: 2, spent: 1, granted: 1, returned: 0 }));
    assert_eq!(t.poll_message(ms(0)), None, "said once");
    r.receive(ms(0), 7, channel, &request);
    let (to, channel, grant) = r.poll_message().unwrap();
    assert_eq!((to, channel, grant), (7, 1, Message::Grant { granted: 2 }));
    assert!(t.receive(ms(0), channel, &grant) && t.may_send());
    t.on_sent();
    r.on_frame(ms(0), 7).unwrap();
    assert_eq!((r.queued(), r.promised(), r.free()), (1, 0, 9));
    r.on_departure(ms(0));
    assert_eq!((r.free(), r.poll_message()), (10, None));
}

#[test]
fn the_queue_is_never_promised_twice() {
    let (mut a, mut b, mut r) = (sender(1), sender(1), Reception::new(SMALL));
    (0..8).for_each(|_| a.on_arrival());
    (0..8).for_each(|_| b.on_arrival());
    talk(ms(0), &mut a, &mut r, 1);
    talk(ms(0), &mut b, &mut r, 2);
    // A source without received frames may have half of the room if it is alone; one of two such sources may have a
    // quarter.
    assert_eq!((a.credits(), b.credits(), r.free()), (5, 3, 2));
    // The room of a sent frame is not free before the VM has taken the frame.
    (0..5).for_each(|_| a.on_sent());
    (0..2).for_each(|_| r.on_frame(ms(0), 1).unwrap());
    assert_eq!((r.free(), r.poll_message()), (2, None));
    (0..3).for_each(|_| r.on_frame(ms(0), 1).unwrap());
    (0..5).for_each(|_| r.on_departure(ms(0)));
    talk(ms(0), &mut a, &mut r, 1);
    assert_eq!((a.credits(), b.waiting() - b.credits(), r.free()), (3, 5, 4));
    (0..3).for_each(|_| a.on_sent());
    (0..3).for_each(|_| r.on_frame(ms(0), 1).unwrap());
    (0..3).for_each(|_| r.on_departure(ms(0)));
    // The remaining source may have more, from its next frame on.
    b.on_sent();
    r.on_frame(ms(0), 2).unwrap();
    r.on_departure(ms(0));
    talk(ms(0), &mut b, &mut r, 2);
    assert_eq!((b.credits(), b.waiting(), r.free()), (7, 7, 3));
    assert_eq!(r.on_frame(ms(0), 1), Err(NoCredit), "not of who has none");
    assert_eq!(r.on_frame(ms(0), 9), Err(NoCredit), "nor of who never asked");
}

#[test]
fn turns_are_in_the_proportion_of_weights() {
    let mut r = Reception::new(ReceptionConfig { queue: 8, batch: 2, ..SMALL });
    let mut ends = [sender(1), sender(1), sender(1)];
    r.set_weight(ms(0), 1, 3);
    ends.iter_mut().for_each(|t| (0..4_000).for_each(|_| t.on_arrival()));
    for _ in 0..3_000 {
        for (name, t) in ends.iter_mut().enumerate() {
            while let Some((channel, message)) = t.poll_message(ms(0)) {
                r.receive(ms(0), name as u8, channel, &message);
            }
        }
        while let Some((to, channel, message)) = r.poll_message() {
            let t = &mut ends[to as usize];
            t.receive(ms(0), channel, &message);
            while t.may_send() {
                t.on_sent();
                r.on_frame(ms(0), to).unwrap();
            }
        }
        if r.queued() > 0 {
            r.on_departure(ms(0));
        }
    }
    let sent = ends.map(|t| 4_000 - t.waiting());
    // Except the first queue of credits, which went to the first source.
    assert!(sent[1].abs_diff(3 * sent[0]) <= 3 * 8 && sent[0].abs_diff(sent[2]) <= 2 * 8, "{sent:?}");
}

#[test]
fn a_lost_request_or_grant_is_made_good() {
    let (mut t, mut r) = (sender(1), Reception::new(SMALL));
    t.on_arrival();
    t.poll_message(ms(0)).unwrap();
    assert_eq!(t.poll_timeout(), Some(ms(1)));
    assert!(t.poll_message(ms(1)).is_some() && t.poll_message(ms(2)).is_none(), "then after twice as long");
    let (channel, request) = t.poll_message(ms(3)).unwrap();
    r.receive(ms(3), 1, channel, &request);
    r.poll_message().unwrap();
    // The grant is lost; a repeated request gets it again.
    let (channel, request) = t.poll_message(t.poll_timeout().unwrap()).unwrap();
    r.receive(ms(9), 1, channel, &request);
    let (_, channel, grant) = r.poll_message().unwrap();
    t.receive(ms(9), channel, &grant);
    t.receive(ms(9), channel, &grant);
    assert_eq!((t.credits(), t.counters().stale, r.counters().granted), (1, 1, 1), "and once is as good as twice");
}

#[test]
fn credits_without_frames_are_returned() {
    let (mut t, mut r) = (sender(1), Reception::new(SMALL));
    (0..6).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    t.on_sent();
    r.on_frame(ms(0), 1).unwrap();
    t.on_withdrawn(4);
    talk(ms(0), &mut t, &mut r, 1);
    assert_eq!((t.credits(), r.promised(), r.free()), (1, 1, 8));
    // The VM ends while one frame is in flight, and before the credit for another frame is granted.
    t.on_sent();
    (0..2).for_each(|_| t.on_arrival());
    let (channel, close) = t.close();
    r.receive(ms(0), 1, channel, &close);
    assert_eq!((r.promised(), r.free()), (1, 8), "room for the one that comes");
    r.on_frame(ms(1), 1).unwrap();
    assert_eq!((r.queued(), r.promised()), (2, 0));
    assert_eq!(r.on_frame(ms(1), 1), Err(NoCredit));
}

#[test]
fn credits_of_the_dead_come_back() {
    let (mut t, mut r) = (sender(1), Reception::new(SMALL));
    (0..6).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    // The source does not answer any more.
    let mut probes = 0;
    while let Some(at) = r.poll_timeout().filter(|&at| at < ms(2_000)) {
        r.handle_timeout(at);
        while let Some((_, _, message)) = r.poll_message() {
            probes += u32::from(message == Message::Probe);
        }
    }
    // The source is not probed after the deadline. Frames it may have sent just before still have room for a while.
    assert!((5..=12).contains(&probes), "{probes}");
    assert_eq!((r.counters().revoked, r.counters().lost, r.free()), (5, 5, 10));
    assert_eq!(r.poll_timeout(), None, "nothing to look after");
}

#[test]
fn who_hoards_credits_loses_them_and_who_lives_begins_anew() {
    let (mut t, mut r) = (sender(1), Reception::new(SMALL));
    (0..6).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    // The source answers, and spends no credits.
    while let Some(at) = r.poll_timeout().filter(|&at| at < ms(1_250)) {
        r.handle_timeout(at);
        talk(at, &mut t, &mut r, 1);
    }
    assert_eq!((r.counters().revoked, t.counters().resets), (5, 1));
    assert_eq!((t.waiting(), t.credits(), r.free()), (6, 5, 0), "room is kept for what may be on its way");
    let at = ms(1_700);
    r.handle_timeout(at);
    assert_eq!((t.channel(), r.free()), (2, 5));
}

#[test]
fn frames_that_never_came_do_not_take_room_for_ever() {
    for ordered in [false, true] {
        let (mut t, mut r) = (sender(1), Reception::new(ReceptionConfig { ordered, ..FOR_TEN }));
        (0..10).for_each(|_| t.on_arrival());
        talk(ms(0), &mut t, &mut r, 1);
        // All frames are sent, and three are lost.
        (0..10).for_each(|_| t.on_sent());
        (0..7).for_each(|_| r.on_frame(ms(0), 1).unwrap());
        (0..7).for_each(|_| r.on_departure(ms(0)));
        (0..10).for_each(|_| t.on_arrival());
        talk(ms(0), &mut t, &mut r, 1);
        assert_eq!((t.credits(), r.promised()), if ordered { (10, 10) } else { (10, 13) });
        if !ordered {
            (0..10).for_each(|_| t.on_sent());
            (0..10).for_each(|_| r.on_frame(ms(0), 1).unwrap());
            (0..10).for_each(|_| r.on_departure(ms(0)));
            while let Some(at) = r.poll_timeout().filter(|&at| at < ms(5_000)) {
                r.handle_timeout(at);
                talk(at, &mut t, &mut r, 1);
                while t.may_send() {
                    t.on_sent();
                    r.on_frame(at, 1).unwrap();
                    r.on_departure(at);
                }
                talk(at, &mut t, &mut r, 1);
            }
            assert_eq!(t.waiting(), 0);
        }
        assert_eq!((r.counters().lost, r.counters().revoked), (3, 0), "ordered: {ordered}");
    }
}

#[test]
fn a_receiver_that_was_restarted_begins_anew() {
    let (mut t, mut r) = (sender(u32::MAX), Reception::new(SMALL));
    (0..4).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    (0..2).for_each(|_| t.on_sent());
    r = Reception::new(SMALL);
    // Grants of the earlier receiver are worth nothing to this one; its next message says so.
    (0..4).for_each(|_| t.on_arrival());
    talk(ms(1), &mut t, &mut r, 1);
    assert_eq!((t.channel(), t.waiting(), t.credits(), r.promised()), (0, 6, 5, 5));
}

#[test]
fn a_sender_that_was_restarted_takes_a_later_number() {
    let (mut t, mut r) = (sender(5), Reception::new(SMALL));
    (0..4).for_each(|_| t.on_arrival());
    let (channel, first) = t.poll_message(ms(0)).unwrap();
    r.receive(ms(0), 1, channel, &first);
    let mut later = sender(6);
    (0..7).for_each(|_| later.on_arrival());
    talk_only(ms(1), &mut later, &mut r);
    assert_eq!((later.credits(), r.promised()), (5, 9), "four may still come for the one before");
    // A message of the earlier source is ignored.
    r.receive(ms(2), 1, channel, &first);
    assert_eq!((r.counters().stale, r.promised()), (1, 9));
    r.handle_timeout(ms(600));
    talk(ms(600), &mut later, &mut r, 1);
    assert_eq!((later.credits(), r.promised()), (5, 5));
}

/// Credits of a source that spent some and started again. Its next message comes before or after the report of the
/// connection's end.
#[test]
fn credits_of_a_connection_that_ended_are_free_at_once() {
    for word_first in [true, false] {
        let (mut t, mut r) = (sender(5), Reception::new(FOR_TEN));
        (0..10).for_each(|_| t.on_arrival());
        talk(ms(0), &mut t, &mut r, 1);
        t.on_sent();
        r.on_frame(ms(0), 1).unwrap();
        r.on_departure(ms(0));
        let mut again = sender(900);
        (0..10).for_each(|_| again.on_arrival());
        if word_first {
            assert!(talk_only(ms(1), &mut again, &mut r), "another channel begins, and credits are kept");
            assert_eq!((again.credits(), r.free()), (10, 1), "nine may be under way");
        }
        r.on_disconnected(ms(2), 1);
        talk_only(ms(2), &mut again, &mut r);
        assert_eq!((again.credits(), r.free(), r.counters().lost), (10, 10, 9), "word first: {word_first}");
        assert!(r.is_sound());
        // None of these frames has come over the present connection, so its end says nothing about them.
        r.on_disconnected(ms(3), 1);
        assert_eq!(r.promised(), 10);
        again.on_sent();
        r.on_frame(ms(4), 1).unwrap();
        r.on_disconnected(ms(5), 1);
        assert_eq!((r.promised(), r.queued()), (0, 1));
    }
}

/// A source that lost a connection, while the receiver lives. Messages about the last channel are answered with a
/// number to begin after.
#[test]
fn who_goes_on_with_credits_of_a_connection_that_ended_is_told() {
    let (mut t, mut r) = (sender(5), Reception::new(SMALL));
    (0..2).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    t.on_sent();
    r.on_frame(ms(0), 1).unwrap();
    r.on_disconnected(ms(1), 1);
    // Also a source that repeats the first message of that channel, or of an earlier one.
    for channel in [5, 4] {
        let first = Message::Request { wanted: channel + 3, spent: channel, granted: channel, returned: 0 };
        r.receive(ms(1), 1, channel, &first);
        assert_eq!(r.poll_message(), Some((1, channel, Message::Reset { last: 5 })));
    }
    (0..4).for_each(|_| t.on_arrival());
    talk(ms(2), &mut t, &mut r, 1);
    assert_eq!((t.channel(), t.credits(), t.waiting()), (6, 5, 5));
}

#[test]
fn frames_that_come_back_wait_for_credits_of_whoever_is_there_now() {
    let (mut t, mut r) = (sender(1), Reception::new(FOR_TEN));
    (0..10).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    (0..7).for_each(|_| t.on_sent());
    // Two of seven frames came, two were lost with the connection, and three were not sent over it.
    (0..2).for_each(|_| r.on_frame(ms(0), 1).unwrap());
    let (channel, last) = t.on_disconnected(3, true).unwrap();
    assert_eq!((t.waiting(), t.credits(), t.channel()), (6, 0, 2));
    // The same receiver knows which frames have come, and no other frame is in flight.
    r.receive(ms(1), 1, channel, &last);
    assert_eq!((r.promised(), r.queued()), (0, 2));
    talk(ms(1), &mut t, &mut r, 1);
    assert_eq!((t.credits(), r.promised()), (6, 6));
    // A new receiver has promised nothing.
    r = Reception::new(FOR_TEN);
    let (channel, last) = t.on_disconnected(0, true).unwrap();
    r.receive(ms(2), 1, channel, &last);
    talk(ms(2), &mut t, &mut r, 1);
    assert_eq!((t.credits(), r.promised(), t.channel()), (6, 6, 3));
    (0..6).for_each(|_| t.on_sent());
    assert_eq!(t.on_disconnected(0, true), None, "nobody has anything to give back");
}

/// A sender whose clock was set back between two lives, or that lived half the numbers ago.
#[test]
fn a_sender_that_comes_back_with_an_earlier_number_learns_it() {
    for earlier in [4, 5_u32.wrapping_sub(1 << 20), 5_u32.wrapping_sub((1 << 31) - 1)] {
        let (mut t, mut r) = (sender(5), Reception::new(SMALL));
        t.on_arrival();
        talk(ms(0), &mut t, &mut r, 1);
        t.on_sent();
        r.on_frame(ms(0), 1).unwrap();
        r.on_departure(ms(0));
        let mut again = sender(earlier);
        (0..3).for_each(|_| again.on_arrival());
        assert_eq!(talk(ms(1), &mut again, &mut r, 1), 4, "a request, a word about it, and a round trip");
        assert_eq!((again.channel(), again.credits(), again.counters().resets), (6, 3, 1));
        assert_eq!(r.free(), 7);
    }
}

/// As [`talk`], where the receiver may have messages about another channel.
/// Returns whether the receiver keeps credits for frames of earlier channels of the source.
fn talk_only(now: Instant, t: &mut Transmission, r: &mut Reception<u8>) -> bool {
    let mut keeps = false;
    while let Some((channel, message)) = t.poll_message(now) {
        keeps |= r.receive(now, 1, channel, &message);
    }
    while let Some((_, channel, message)) = r.poll_message() {
        t.receive(now, channel, &message);
    }
    keeps
}

#[test]
fn absurd_words_change_nothing() {
    let (mut t, mut r) = (sender(1), Reception::new(SMALL));
    (0..3).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    let before = (r.promised(), r.free());
    let request = |wanted, spent, granted, returned| Message::Request { wanted, spent, granted, returned };
    let absurd = [
        // Spent credits, or a granted total, beyond the grants.
        request(4, 5, 5, 0),
        request(9, 2, 5, 0),
        request(4, 4, 2, 0),
        // Wanted fewer credits than were spent.
        request(1, 2, 4, 0),
        // Returned more credits than the source had.
        request(4, 4, 4, 4),
        request(4, 4, 4, 1 << 30),
        // Half the numbers ahead.
        request(1 << 31, 1, 4, 0),
        request((1 << 30) + 5, 1, 4, 0),
        Message::Close { spent: 5, returned: 0 },
        Message::Close { spent: 4, returned: 4 },
        Message::Grant { granted: 9 },
        Message::Probe,
        Message::Reset { last: 7 },
    ];
    for (at, message) in absurd.iter().enumerate() {
        r.receive(ms(0), 1, 1, message);
        assert_eq!((r.counters().absurd, r.promised(), r.free()), (at as u64 + 1, before.0, before.1), "{message:?}");
    }
    // A source that wants more than all the room gets credits as room becomes free, like every source.
    r.receive(ms(0), 1, 1, &request(1 << 30, 1, 4, 0));
    assert_eq!((r.promised(), r.free()), (5, 5));
    // And grants that no receiver can have made.
    for granted in [5, 1 << 20, 1 << 31] {
        t.receive(ms(0), 1, &Message::Grant { granted });
    }
    t.receive(ms(0), 1, &request(9, 1, 1, 0));
    t.receive(ms(0), 2, &Message::Grant { granted: 3 });
    assert_eq!((t.credits(), t.waiting()), (3, 3));
    assert_eq!(t.counters().absurd + t.counters().stale, 5);
}

/// Found by the fault campaign (seed 2005 of the uplinks). A restarted sender takes its old number, and the receiver
/// continues with totals that the new sender cannot have.
#[test]
fn who_comes_back_with_its_old_number_takes_another() {
    let (mut t, mut r) = (sender(1), Reception::new(SMALL));
    (0..3).for_each(|_| t.on_arrival());
    talk(ms(0), &mut t, &mut r, 1);
    for _ in 0..3 {
        t.on_sent();
        r.on_frame(ms(0), 1).unwrap();
        r.on_departure(ms(0));
    }
    t = sender(1);
    t.on_arrival();
    talk(ms(1), &mut t, &mut r, 1);
    assert_eq!((t.channel(), t.credits(), t.counters().absurd), (2, 1, 1));
    t.on_sent();
    r.on_frame(ms(1), 1).unwrap();
    assert!(r.is_sound());
}

#[test]
fn names_are_bounded() {
    let mut r = Reception::new(SMALL);
    // Four sources are served and idle again, and then many more: those idle longest are forgotten.
    for name in 0..100u8 {
        let mut t = sender(1);
        t.on_arrival();
        talk(ms(name.into()), &mut t, &mut r, name);
        t.on_sent();
        r.on_frame(ms(name.into()), name).unwrap();
        r.on_departure(ms(name.into()));
    }
    assert_eq!((r.counters().forgotten, r.free()), (96, 10));
    // Sources with credits are not forgotten.
    let mut busy: Vec<Transmission> = (0..4).map(|_| sender(9)).collect();
    for (name, t) in busy.iter_mut().enumerate() {
        t.on_arrival();
        talk(ms(200), t, &mut r, name as u8);
    }
    let mut more = sender(9);
    more.on_arrival();
    let (channel, request) = more.poll_message(ms(200)).unwrap();
    r.receive(ms(200), 99, channel, &request);
    assert_eq!((r.poll_message(), r.promised()), (None, 4));
}

/// Random messages about existing channels, from sources that spend their grants or do not. Every place in the queue is
/// in one state, and sources that keep to the rules are served.
#[test]
fn every_message_keeps_the_sums() {
    let mut random = Rng::from_words(&[5]);
    for _ in 0..300 {
        let mut r = Reception::new(SMALL);
        let mut honest = sender(1);
        let (mut now, mut served) = (ms(0), 0);
        for _ in 0..2_000 {
            now = now.saturating_add(Duration::from_ms(random.below(20)));
            let mut word = || {
                let far = [0, 0, 0, 1 << 30, u32::MAX - 20][random.below(5) as usize];
                far.wrapping_add(random.below(40) as u32)
            };
            let (channel, a, b, c, d) = (word() % 4, word(), word(), word(), word());
            let message = match random.below(4) {
                0 => Message::Close { spent: a, returned: b },
                _ => Message::Request { wanted: a, spent: b, granted: c, returned: d % 4 },
            };
            r.receive(now, 1, channel, &message);
            let _ = r.on_frame(now, 1);
            honest.on_arrival();
            while let Some((channel, message)) = honest.poll_message(now) {
                r.receive(now, 2, channel, &message);
            }
            r.handle_timeout(now);
            while let Some((to, channel, message)) = r.poll_message() {
                if to == 2 {
                    honest.receive(now, channel, &message);
                }
            }
            while honest.may_send() {
                honest.on_sent();
                assert_eq!(r.on_frame(now, 2), Ok(()));
                served += 1;
            }
            if r.queued() > 0 {
                r.on_departure(now);
            }
            assert_eq!(r.queued() + r.promised() + r.free(), SMALL.queue);
            assert!(r.is_sound());
        }
        assert!(served >= 500, "{served} of 2,000");
    }
}

/// Algorithms 5.1 and 5.2 to the letter.
mod as_printed {
    use super::VecDeque;

    #[derive(Default)]
    pub struct Transmission {
        pub tx_occupancy: i64,
        pub cdt_received: i64,
        pub cdt_requested: i64,
    }

    impl Transmission {
        /// The forwarder: a frame, a request, or nothing.
        pub fn forward(&mut self) -> (bool, Option<i64>) {
            if self.tx_occupancy > 0 && self.cdt_received > 0 {
                self.cdt_received -= 1;
                self.tx_occupancy -= 1;
                return (true, None);
            }
            let delta = self.tx_occupancy - self.cdt_requested;
            if delta > 0 {
                self.cdt_requested += delta;
                return (false, Some(delta));
            }
            (false, None)
        }
        pub fn grant(&mut self, credits: i64) {
            self.cdt_received += credits;
            self.cdt_requested -= credits;
        }
    }

    pub struct Reception {
        pub size: i64,
        pub total_granted: i64,
        pub wait: VecDeque<i64>,
    }

    impl Reception {
        pub fn departure(&mut self) -> Option<i64> {
            self.total_granted -= 1;
            let requested = self.wait.pop_front()?;
            Some(requested.min(self.size - self.total_granted))
        }
        pub fn request(&mut self, requested: i64) -> Option<i64> {
            if self.total_granted < self.size {
                let delta = requested.min(self.size - self.total_granted);
                self.total_granted += delta;
                return Some(delta);
            }
            self.wait.push_back(requested);
            None
        }
    }
}

/// One sender with many frames and a queue of two. The algorithms as printed stop for ever; ours do not.
#[test]
fn the_stall_of_the_algorithm_as_printed() {
    let mut t = as_printed::Transmission { tx_occupancy: 20, ..Default::default() };
    let mut r = as_printed::Reception { size: 2, total_granted: 0, wait: VecDeque::new() };
    let mut delivered = 0;
    loop {
        let (sent, request) = t.forward();
        let granted = request.and_then(|n| r.request(n));
        let granted = granted.or(if sent { r.departure() } else { None });
        delivered += u32::from(sent);
        if let Some(n) = granted {
            t.grant(n);
        } else if !sent && request.is_none() {
            break;
        }
    }
    // The sender asked for 20 credits and was granted 2; the other 18 are requested for ever.
    assert_eq!((delivered, t.tx_occupancy, t.cdt_requested), (2, 18, 18));

    let (mut t, mut r) = (sender(1), Reception::new(ReceptionConfig { queue: 2, ..SMALL }));
    (0..20).for_each(|_| t.on_arrival());
    let mut delivered = 0;
    loop {
        talk(ms(0), &mut t, &mut r, 1);
        if !t.may_send() {
            break;
        }
        t.on_sent();
        r.on_frame(ms(0), 1).unwrap();
        r.on_departure(ms(0));
        delivered += 1;
    }
    assert_eq!((delivered, t.waiting(), r.free()), (20, 0, 2));
}

/// Items in flight, by arrival time and order of sending.
struct Wire<T> {
    things: BTreeMap<(Instant, u64), T>,
    sent: u64,
}

impl<T> Wire<T> {
    fn new() -> Wire<T> {
        Wire { things: BTreeMap::new(), sent: 0 }
    }
    fn send(&mut self, at: Instant, thing: T) {
        self.things.insert((at, self.sent), thing);
        self.sent += 1;
    }
    fn pop_arrived(&mut self, now: Instant) -> Option<T> {
        let entry = self.things.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

/// Where credits are long in coming, a waiting sender does not repeat requests for credits in flight. A sender whose
/// request was lost repeats it.
#[test]
fn who_usually_waits_long_asks_again_later() {
    let mut t = sender(1);
    let mut asked = Vec::new();
    for round in 0..20 {
        let began = ms(40 * round);
        t.on_arrival();
        let mut requests = 0;
        for now in 0..20 {
            while t.poll_message(began.saturating_add(Duration::from_ms(now))).is_some() {
                requests += 1;
            }
        }
        let granted = 2 + round as u32;
        t.receive(began.saturating_add(Duration::from_ms(20)), 1, &Message::Grant { granted });
        t.on_sent();
        asked.push(requests);
    }
    // Requests are repeated at first after 1, 3, 7 and 15 ms, then after 8 ms.
    assert_eq!((asked[0], &asked[1..]), (5, &[2; 19][..]));
    t.on_arrival();
    assert!(t.poll_message(ms(1_000)).is_some());
    assert_eq!(t.poll_timeout(), Some(ms(1_008)));
    assert!(t.poll_message(ms(1_008)).is_some());
    assert_eq!(t.poll_timeout(), Some(ms(1_024)));
}
