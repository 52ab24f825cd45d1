//! Scripted cases with a clock, and a guest whose frames and messages are delayed, lost, duplicated and reordered.

use super::lease::{GRACE, LIFETIME_MAX, Lease, MARK_AGAIN, ROOM_MAX};
use super::room::{BUFFER_DEFAULT, Deadlines, Rooms, Socket, charge};
use super::talk::{Marks, Talk};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

const LIFETIME: Duration = Duration::from_secs(1);

fn ms(n: u64) -> Instant {
    Instant::ZERO.saturating_add(Duration::from_ms(n))
}

/// A port whose agent has answered its first mark, sent before any frame.
fn leased(room: u32) -> (Lease, u64) {
    let mut lease = Lease::new(100);
    lease.on_grant(ms(10), 0, 0, LIFETIME);
    assert!(lease.wants_mark(ms(10), 0));
    let number = lease.mark(ms(10), 0);
    lease.on_grant(ms(11), number, room, LIFETIME);
    (lease, number)
}

#[test]
fn nobody_is_limited_who_has_no_agent() {
    let mut lease = Lease::new(7);
    assert_eq!((lease.limit(), lease.wants_mark(ms(1000), 5)), (u64::MAX, false));
    // A new machine's frames are held back for a moment, and marks are sent again and again.
    lease.start(ms(1000), 5);
    assert_eq!((lease.limit(), lease.wants_mark(ms(1000), 5)), (5, true));
    lease.mark(ms(1000), 5);
    assert!(!lease.wants_mark(ms(1001), 5));
    assert!(lease.wants_mark(ms(1000).saturating_add(MARK_AGAIN), 5));
    assert!(!lease.poll(ms(1000).saturating_add(GRACE), 5));
    assert_eq!((lease.limit(), lease.counters.lost), (u64::MAX, 0));
    // The agent answers late.
    let number = lease.mark(ms(1100), 9);
    lease.on_grant(ms(1200), number, 4, LIFETIME);
    assert_eq!(lease.limit(), 13);
}

#[test]
fn a_grant_counts_from_the_mark_it_answers() {
    let (mut lease, first) = leased(40);
    assert_eq!((lease.limit(), lease.granted(10)), (40, Some(30)));
    // Half of the grant is used: the next mark is due.
    assert!(!lease.wants_mark(ms(12), 19) && lease.wants_mark(ms(12), 20));
    let second = lease.mark(ms(12), 20);
    assert!(!lease.wants_mark(ms(13), 40), "one at a time");
    lease.on_grant(ms(13), second, 38, LIFETIME);
    assert_eq!(lease.limit(), 58);
    // Late, repeated and smaller grants take nothing back.
    lease.on_grant(ms(14), first, 40, LIFETIME);
    lease.on_grant(ms(14), second, 3, LIFETIME);
    assert_eq!(lease.limit(), 58);
    // A grant never exceeds the maximum room.
    lease.on_grant(ms(15), second, u32::MAX, LIFETIME);
    assert_eq!(lease.limit(), 20 + u64::from(ROOM_MAX));
}

#[test]
fn a_full_guest_is_not_asked_but_says_when_it_has_room() {
    let (mut lease, number) = leased(0);
    lease.poll(ms(12), 0);
    assert_eq!((lease.limit(), lease.counters.exhausted), (0, 1));
    assert!(!lease.wants_mark(ms(500), 0));
    lease.on_grant(ms(500), number, 2, LIFETIME);
    assert_eq!(lease.limit(), 2);
    assert!(!lease.wants_mark(ms(501), 0) && lease.wants_mark(ms(501), 1));
}

#[test]
fn a_lost_mark_is_followed_by_another() {
    let (mut lease, _) = leased(4);
    let lost = lease.mark(ms(20), 4);
    assert!(!lease.wants_mark(ms(21), 4));
    let at = ms(20).saturating_add(MARK_AGAIN);
    assert!(lease.wants_mark(at, 4));
    let number = lease.mark(at, 4);
    // The first mark was only late.
    lease.on_grant(ms(26), lost, 1, LIFETIME);
    assert_eq!(lease.limit(), 5);
    lease.on_grant(ms(26), number, 4, LIFETIME);
    assert_eq!(lease.limit(), 8);
}

#[test]
fn an_agent_that_is_lost_limits_nobody() {
    let (mut lease, number) = leased(4);
    assert!(!lease.poll(ms(1010), 4));
    assert!(lease.poll(ms(1011), 4));
    assert!(!lease.poll(ms(1012), 4), "once");
    assert_eq!((lease.limit(), lease.counters.lost), (u64::MAX, 1));
    // The lost agent's last messages come late: it has to answer a new mark first.
    lease.on_grant(ms(1013), number, 4, LIFETIME);
    assert_eq!(lease.limit(), u64::MAX);
    assert!(lease.wants_mark(ms(1013), 9));
    let number = lease.mark(ms(1013), 9);
    lease.on_grant(ms(1014), number, 4, LIFETIME);
    assert_eq!(lease.limit(), 13);
    // An agent that leaves is not lost.
    lease.on_grant(ms(1015), number, 0, Duration::ZERO);
    assert_eq!((lease.limit(), lease.counters.lost), (u64::MAX, 1));
}

#[test]
fn an_agent_that_speaks_and_sees_no_marks_is_lost_too() {
    let (mut lease, number) = leased(4);
    lease.mark(ms(20), 4);
    let mut lost = Vec::new();
    for t in (20..4000).step_by(100) {
        lease.on_grant(ms(t), number, 0, LIFETIME);
        if lease.wants_mark(ms(t), 4) {
            lease.mark(ms(t), 4);
        }
        if lease.poll(ms(t), 4) {
            lost.push(t);
        }
    }
    assert_eq!((lost.len(), lease.limit()), (1, u64::MAX), "{lost:?}");
    assert!(lost[0] <= 20 + 2 * 1000, "{lost:?}");
}

#[test]
fn an_agent_behind_its_own_guests_frames_has_longer_but_not_for_ever() {
    let (mut lease, _) = leased(4);
    for t in 11..4000 {
        lease.excuse(ms(t));
        assert_eq!(lease.poll(ms(t), 4), t == 3011, "{t}");
    }
    assert_eq!(lease.limit(), u64::MAX);
    // This holds even if the agent asks for a long lifetime.
    let (mut lease, number) = leased(4);
    lease.on_grant(ms(12), number, 4, Duration::from_secs(60));
    assert!(lease.poll(ms(12).saturating_add(LIFETIME_MAX), 4));
}

#[test]
fn the_socket_with_the_least_room_rules() {
    let deadlines = Deadlines { detection: Some(Duration::from_ms(50)), isolation: Some(Duration::from_ms(150)) };
    let mut rooms = Rooms::new(1500, 4096, BUFFER_DEFAULT, deadlines);
    assert_eq!((charge(1500, 4096), charge(9000, 4096), charge(1500, 65_536)), (5_376, 17_664, 66_816));
    let most = rooms.most();
    assert_eq!(most, (BUFFER_DEFAULT - 4096) / 5_376);
    let socket = |cookie, used, limit| Socket { cookie, used, limit };
    let (empty, half, full) = (socket(1, 0, 1 << 20), socket(2, 106_496, 212_992), socket(3, 213_000, 212_992));
    let tiny = socket(4, 0, 4_608);
    assert_eq!(rooms.of(ms(0), &[], 0).frames, most);
    assert_eq!(rooms.of(ms(0), &[empty], 0).frames, most);
    assert_eq!(rooms.of(ms(0), &[empty, half], 0).frames, (106_496 - 4096) / 5_376);
    assert_eq!(rooms.of(ms(0), &[empty, half], 100_000).frames, (6_496 - 4096) / 5_376);
    let room = rooms.of(ms(0), &[tiny, empty], 0);
    assert_eq!((room.frames, room.small), (most, 1));
    // A full socket that no program reads is left out until it moves.
    assert_eq!(rooms.of(ms(10), &[empty, full], 0).frames, 0);
    assert_eq!(rooms.of(ms(59), &[empty, full], 0).stuck, 0);
    let room = rooms.of(ms(159), &[empty, full], 0);
    assert_eq!((room.frames, room.stuck, room.isolated), (0, 1, 0));
    let room = rooms.of(ms(160), &[empty, full], 0);
    assert_eq!((room.frames, room.stuck, room.isolated), (most, 0, 1));
    let moved = socket(3, 212_000, 212_992);
    let room = rooms.of(ms(161), &[empty, moved], 0);
    assert_eq!((room.frames, room.stuck, room.isolated), (0, 0, 0));
    // Without an isolation time the agent waits for the socket.
    let mut patient = Rooms::new(1500, 4096, BUFFER_DEFAULT, Deadlines::default());
    patient.of(ms(0), &[full], 0);
    assert_eq!(patient.of(ms(100_000), &[full], 0).frames, 0);
}

#[test]
fn an_agent_answers_marks_and_says_when_a_full_guest_has_room() {
    let mut talk = Talk::new(38, LIFETIME);
    assert!(talk.find(ms(0), 0, 38), "that it is there");
    talk.say(ms(0), 0, 38);
    // With much room the agent waits for a mark, but still sends ten messages per lifetime.
    assert!(!talk.find(ms(1), 0, 38));
    assert_eq!(talk.pause(ms(1)), Duration::from_ms(99));
    assert!(talk.find(ms(100), 0, 38));
    talk.say(ms(100), 0, 38);
    assert!(talk.find(ms(101), 7, 5), "a mark");
    talk.say(ms(101), 7, 5);
    // With little room it reads the sockets soon again, then less often while nothing changes, and reports more room.
    let mut pauses = Vec::new();
    for _ in 0..6 {
        assert!(!talk.find(ms(101), 7, 5));
        pauses.push(talk.pause(ms(101)).as_us());
    }
    assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    assert!(!talk.find(ms(102), 7, 4) && talk.find(ms(103), 7, 6));
    // An unsent report does not count.
    assert_eq!(talk.pause_unsent(), Duration::from_us(250));
    assert!(talk.find(ms(103), 7, 6));
    talk.say(ms(103), 7, 6);
    assert!(talk.find(ms(104), 7, 20));
    talk.say(ms(104), 7, 20);
    assert!(!talk.find(ms(105), 7, 38), "its switch asks for more when it wants it");
}

#[test]
fn a_mark_has_come_when_it_has_come_through_every_queue() {
    let mut marks = Marks::default();
    assert!(marks.take(u64::MAX, 0, 1) && marks.last() == u64::MAX);
    // Queues overtake each other, and numbers wrap.
    assert!(!marks.take(0, 0, 3) && !marks.take(1, 0, 3) && !marks.take(0, 1, 3) && !marks.take(1, 1, 3));
    assert!(!marks.take(1, 1, 3), "the same again");
    assert!(marks.take(1, 2, 3) && marks.last() == 1);
    assert!(!marks.take(0, 2, 3) && marks.last() == 1, "what was overtaken");
    assert!(!marks.take(1, 2, 3), "once");
    // Another switch starts.
    assert!(marks.take(1 << 40, 0, 1) && marks.last() == 1 << 40);
    assert!(marks.take(7, 0, 1) && marks.last() == 7);
}

#[derive(Clone, Copy)]
enum Item {
    Mark(u64),
    /// A frame, and whether it was granted.
    Frame(bool),
}

/// A guest with one socket: the frames in flight to it and the data queued in it.
struct Guest {
    ring: VecDeque<Item>,
    waits: VecDeque<u32>,
    used: u32,
    rooms: Rooms,
    seen: u64,
    lost: u64,
}

impl Guest {
    fn new() -> Guest {
        let rooms = Rooms::new(1500, 4096, BUFFER_DEFAULT, Deadlines::default());
        Guest { ring: VecDeque::new(), waits: VecDeque::new(), used: 0, rooms, seen: 0, lost: 0 }
    }

    /// The guest's kernel takes some frames, and its program reads some datagrams.
    fn work(&mut self, random: &mut Rng) {
        for _ in 0..random.below(20) {
            match self.ring.pop_front() {
                Some(Item::Mark(number)) => self.seen = number,
                Some(Item::Frame(granted)) => {
                    if self.used > BUFFER_DEFAULT {
                        assert!(!granted, "a frame was handed over that there is no room for");
                        self.lost += 1;
                        continue;
                    }
                    let charge = 704 + random.below(u64::from(charge(1500, 4096)) - 703) as u32;
                    self.used += charge;
                    self.waits.push_back(charge);
                }
                None => break,
            }
        }
        for _ in 0..random.below(12) {
            self.used -= self.waits.pop_front().unwrap_or(0);
        }
    }

    /// The message of the guest's agent.
    fn says(&mut self, now: Instant) -> (u64, u32) {
        let socket = Socket { cookie: 1, used: self.used, limit: BUFFER_DEFAULT };
        (self.seen, self.rooms.of(now, &[socket], 0).frames)
    }
}

#[test]
fn whatever_becomes_of_their_words_no_more_is_handed_over_than_there_is_room_for() {
    let (mut total, mut lost, mut regained) = (0, 0, 0);
    for seed in 0..300 {
        let random = &mut Rng::from_words(&[seed, 0xa9e7]);
        let (mut lease, mut guest, mut handed) = (Lease::new(random.next_u64()), Guest::new(), 0u64);
        lease.start(Instant::ZERO, 0);
        let mut words: Vec<(u64, u32)> = Vec::new();
        let (mut now, mut alive) = (Instant::ZERO, true);
        for _ in 0..3_000 {
            now = now.saturating_add(Duration::from_us(random.below(300)));
            guest.work(random);
            if alive && random.below(3) == 0 {
                words.push(guest.says(now));
            }
            // Messages are lost, reordered and repeated.
            if !words.is_empty() && random.below(2) == 0 {
                let at = random.below(words.len() as u64) as usize;
                let (number, room) = if random.below(4) == 0 { words[at] } else { words.swap_remove(at) };
                if random.below(10) > 0 {
                    lease.on_grant(now, number, room, Duration::from_ms(20));
                }
            }
            // The agent and the switch stop and restart.
            if random.below(300) == 0 {
                alive = !alive;
                guest.seen = 0;
            }
            if random.below(1_000) == 0 {
                (lease, handed) = (Lease::new(random.next_u64()), 0);
                lease.start(now, 0);
            }
            lease.poll(now, handed);
            // The guest may drop a mark, like any frame, when memory is short.
            if lease.wants_mark(now, handed) {
                let number = lease.mark(now, handed);
                if random.below(10) > 0 {
                    guest.ring.push_back(Item::Mark(number));
                }
            }
            let granted = lease.granted(handed).is_some();
            for _ in 0..random.below(100).min(lease.limit().saturating_sub(handed)) {
                guest.ring.push_back(Item::Frame(granted));
                handed += 1;
                regained += u64::from(granted);
            }
        }
        (total, lost) = (total + handed, lost + guest.lost);
    }
    // Without an agent frames are lost, so the guest can lose frames; with an agent many frames were granted.
    assert!(lost > 100_000 && regained > 100_000, "{lost} lost, {regained} of {total} granted");
}
