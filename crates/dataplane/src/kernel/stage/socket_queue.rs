//! The frames for one socket, and the room of that socket.

use super::super::diag::Socket;
use super::pieces::Frame;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::Flow;
use std::collections::VecDeque;

/// How long the kernel's answer about a socket's room is valid: other senders may fill the socket too.
const ROOM_LASTS: Duration = Duration::from_ms(1);
/// The shortest and the longest time between two questions about one socket that is full.
const ASK_AGAIN: Duration = Duration::from_us(20);
const ASK_AT_LEAST: Duration = Duration::from_ms(1);
/// A socket that has taken nothing for long is asked about less often: it waits this fraction longer than it did anyway, and
/// many stopped sockets cost no other port its processor.
const ASK_PART: u64 = 16;
/// At most this much of the time between two questions counts as time in which a socket took nothing; for the rest this process
/// may not have run. No question comes later.
const WATCHED_MOST: Duration = Duration::from_ms(20);

/// A waiting frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub frame: Frame,
    /// The kernel's charge for the whole datagram, at its first frame; 0 at the others.
    pub need: i64,
    /// The flow of a datagram for a socket, at its first frame.
    pub flow: Option<Flow>,
    /// Whether the frame belongs to the datagram of the frame before it.
    pub follows: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No credit is needed.
    Open,
    /// No socket is there.
    Nobody,
    /// A socket, by its cookie.
    Socket(u64),
    /// All sockets that receive the datagrams of a group, by the number of the group.
    Group(usize),
}

impl Kind {
    /// Whether frames wait for room.
    pub fn needs_room(self) -> bool {
        matches!(self, Kind::Socket(_) | Kind::Group(_))
    }
}

#[derive(Debug)]
pub(super) struct SocketQueue {
    pub kind: Kind,
    /// A flow to this socket, for questions while no frame waits.
    pub flow: Option<Flow>,
    pub frames: VecDeque<Waiting>,
    /// Frames of each traffic class.
    of_class: [usize; 8],
    /// Bytes that may still be charged to the socket.
    credit: i64,
    /// The socket was empty at the last question, and nothing was sent since: it takes one datagram of any size.
    empty: bool,
    asked: Instant,
    pub ask_next: Instant,
    pause: Duration,
    /// The socket's memory in use and its unread bytes at the last question.
    used: u32,
    queued: u32,
    /// How long the socket has taken nothing.
    stuck: Duration,
    /// Whether it was counted as stuck for that.
    reported: bool,
    pub isolated: bool,
    /// Classes that have used up their share, one bit each; each event is counted once.
    full: u8,
    /// The charge of a group's datagrams that have taken room here and have not gone.
    taken: i64,
    /// Bytes of the next room that are kept for groups' datagrams, and these groups in the order of their turns.
    kept: i64,
    groups: VecDeque<usize>,
    /// Whether the last room was taken for a group's datagram: the next one is for the socket's own frames.
    own_turn: bool,
    /// The charge of a datagram whose first frames have been sent and whose others wait at the front.
    begun: i64,
    /// Fragmented datagrams that were sent and that the stack may not have taken in yet: the bytes sent in all at that time,
    /// and their charge.
    settling: VecDeque<(u64, i64)>,
    /// The bytes sent in all when a frame was last sent to this socket.
    last: u64,
}

impl SocketQueue {
    pub fn new(kind: Kind) -> SocketQueue {
        SocketQueue {
            kind,
            flow: None,
            frames: VecDeque::new(),
            of_class: [0; 8],
            credit: 0,
            empty: false,
            asked: Instant::ZERO,
            ask_next: Instant::ZERO,
            pause: ASK_AGAIN,
            used: 0,
            queued: 0,
            stuck: Duration::ZERO,
            reported: false,
            isolated: false,
            full: 0,
            taken: 0,
            kept: 0,
            groups: VecDeque::new(),
            own_turn: false,
            begun: 0,
            settling: VecDeque::new(),
            last: 0,
        }
    }

    /// The first frame starts to wait.
    pub fn begin_to_wait(&mut self) {
        self.has_moved();
    }

    /// The socket has taken something.
    fn has_moved(&mut self) {
        (self.stuck, self.reported) = (Duration::ZERO, false);
    }

    /// The waiting frames of a class.
    pub fn of_class(&self, class: Priority) -> usize {
        self.of_class[usize::from(class & 7)]
    }

    /// Sets whether a class has used up its share; returns whether it had before.
    pub fn set_full(&mut self, class: Priority, full: bool) -> bool {
        let (bit, before) = (1 << (class & 7), self.full);
        self.full = if full { before | bit } else { before & !bit };
        before & bit != 0
    }

    /// Queues a frame at the end.
    pub fn push(&mut self, waiting: Waiting) {
        self.of_class[usize::from(waiting.frame.class & 7)] += 1;
        self.frames.push_back(waiting);
    }

    /// Removes the last frame.
    pub fn pop_last(&mut self) -> Option<Waiting> {
        let waiting = self.frames.pop_back()?;
        self.of_class[usize::from(waiting.frame.class & 7)] -= 1;
        Some(waiting)
    }

    fn pop_first(&mut self) -> Option<Waiting> {
        let waiting = self.frames.pop_front()?;
        self.of_class[usize::from(waiting.frame.class & 7)] -= 1;
        Some(waiting)
    }

    /// The charge for frames that the socket does not show yet.
    pub fn reserved(&self) -> i64 {
        self.taken + self.begun + self.settling.iter().map(|&(_, charge)| charge).sum::<i64>()
    }

    /// The kernel's answers about the memory in flight, and then about the socket; `sent` bytes were sent in all.
    ///
    /// The stack takes frames in order, and the memory in flight is at least the bytes of the frames in flight. So a frame
    /// has arrived if at least as many bytes were sent after it as there is memory in flight.
    pub fn learn(&mut self, now: Instant, socket: &Socket, in_flight: u32, sent: u64, margin: u32) {
        let arrived = |then: u64| sent - then >= u64::from(in_flight);
        while self.settling.front().is_some_and(|&(then, _)| arrived(then)) {
            self.settling.pop_front();
        }
        let in_flight = if arrived(self.last) { 0 } else { in_flight };
        let margin = if socket.limit >= 8 * margin { margin } else { 0 };
        let reserved = self.reserved();
        self.credit =
            i64::from(socket.limit) - i64::from(socket.used) - i64::from(in_flight) - reserved - i64::from(margin);
        self.empty = socket.used == 0 && in_flight == 0 && reserved == 0;
        // Memory is returned in large steps, a quarter of the buffer; the unread bytes decrease with each datagram.
        if socket.queued < self.queued || socket.used < self.used || socket.used == 0 {
            self.has_moved();
            self.pause = ASK_AGAIN;
            self.isolated = false;
        } else {
            self.stuck += now.since(self.asked).min(WATCHED_MOST);
            self.pause = Duration((2 * self.pause.0).min(self.longest_pause().0));
        }
        (self.used, self.queued, self.asked) = (socket.used, socket.queued, now);
        self.ask_next = now.saturating_add(self.pause);
    }

    /// The longest time until the next question.
    pub fn longest_pause(&self) -> Duration {
        // Frames for an isolated socket do not wait: it is asked about as often as at first, when frames come.
        let waited = if self.isolated { Duration::ZERO } else { Duration(self.stuck.0 / ASK_PART) };
        ASK_AT_LEAST.max(waited).min(WATCHED_MOST)
    }

    /// The group's sockets were asked about; the next question comes after `longest` at the latest.
    pub fn ask_again(&mut self, now: Instant, longest: Duration) {
        self.ask_next = now.saturating_add(self.pause);
        self.pause = Duration((2 * self.pause.0).min(longest.max(ASK_AGAIN).0));
    }

    /// Takes room for a datagram of a group, unless it is another's turn.
    pub fn take_room(&mut self, now: Instant, group: usize, need: i64) -> bool {
        let first = self.groups.front().copied();
        let is_others_turn = self.own_turn && !self.frames.is_empty() || first.is_some_and(|first| first != group);
        let fresh = now.since(self.asked) < ROOM_LASTS;
        if is_others_turn || !fresh || !(self.credit >= need || self.empty) {
            return false;
        }
        if first.is_some() {
            self.keep_no_room(group, need);
        }
        self.own_turn = true;
        self.credit -= need;
        self.taken += need;
        self.empty = false;
        true
    }

    /// Keeps room for a group's datagram, in its turn.
    pub fn keep_room(&mut self, group: usize, need: i64) {
        self.groups.push_back(group);
        self.kept += need;
    }

    /// Keeps it no longer.
    pub fn keep_no_room(&mut self, group: usize, need: i64) {
        self.groups.retain(|&other| other != group);
        self.kept -= need;
    }

    /// The datagram that took room will not go.
    pub fn give_room_back(&mut self, need: i64) {
        self.taken -= need;
        self.credit += need;
        self.own_turn = false;
    }

    /// The datagram that took room has gone, after which `sent` bytes were sent in all; in fragments if it `settles`.
    pub fn use_room(&mut self, need: i64, settles: bool, sent: u64) {
        self.taken -= need;
        if settles {
            self.settling.push_back((sent, need));
        }
        self.has_moved();
        self.pause = ASK_AGAIN;
        self.last = sent;
    }

    /// Whether frames wait for the socket: its own, or those of a group.
    pub fn is_waited_for(&self) -> bool {
        !self.frames.is_empty() || self.kept > 0
    }

    /// Whether frames wait and the socket has taken nothing for `deadline`.
    pub fn is_stuck(&self, deadline: Duration) -> bool {
        self.is_waited_for() && self.stuck >= deadline
    }

    /// Whether the socket is found stuck now, for the first time since it last took something.
    pub fn becomes_stuck(&mut self, deadline: Duration) -> bool {
        self.is_stuck(deadline) && !std::mem::replace(&mut self.reported, true)
    }

    /// Whether the socket was found stuck, has taken nothing since, and is still waited for.
    pub fn is_reported(&self) -> bool {
        self.reported && self.is_waited_for() && !self.isolated
    }

    /// Up to `most` frames that the socket's credit covers.
    pub fn fill(&self, now: Instant, most: usize, buffers: &mut Vec<u32>) {
        let fresh = now.since(self.asked) < ROOM_LASTS;
        let kept = if self.own_turn { 0 } else { self.kept };
        let (mut credit, mut empty) = (self.credit - kept, self.empty && kept == 0);
        for waiting in self.frames.iter().take(most) {
            if !waiting.follows {
                if !fresh || !(credit >= waiting.need || empty) {
                    return;
                }
                credit -= waiting.need;
                empty = false;
            }
            buffers.push(waiting.frame.buffer);
        }
    }

    /// The room that is taken for datagrams of groups, and the room that is kept for them.
    #[cfg(test)]
    pub fn room_of_groups(&self) -> (i64, i64) {
        (self.taken, self.kept)
    }

    /// Removes the first frame, after it was sent; `sent` bytes were then sent in all.
    pub fn take(&mut self, sent: u64) -> Option<Waiting> {
        let waiting = self.pop_first()?;
        self.has_moved();
        self.pause = ASK_AGAIN;
        self.last = sent;
        if !matches!(self.kind, Kind::Socket(_)) {
            return Some(waiting);
        }
        self.empty = false;
        self.own_turn = false;
        if !waiting.follows {
            self.credit -= waiting.need;
        }
        let more = self.frames.front().is_some_and(|next| next.follows);
        if more && !waiting.follows {
            self.begun = waiting.need;
        } else if !more && waiting.follows {
            self.settling.push_back((sent, std::mem::take(&mut self.begun)));
        }
        Some(waiting)
    }

    /// The remaining frames of the first datagram.
    pub fn first_len(&self) -> usize {
        if self.frames.is_empty() { 0 } else { 1 + self.frames.iter().skip(1).take_while(|w| w.follows).count() }
    }

    /// Drops the first datagram, or its remaining frames.
    pub fn drop_first(&mut self, each: &mut impl FnMut(Waiting)) {
        for _ in 0..self.first_len() {
            self.pop_first().into_iter().for_each(&mut *each);
        }
        // The kernel drops the frames that it has, and no socket sees the datagram.
        self.begun = 0;
    }

    /// Drops all frames.
    pub fn drop_all(&mut self, each: &mut impl FnMut(Waiting)) {
        self.frames.drain(..).for_each(each);
        self.of_class = [0; 8];
        self.begun = 0;
    }

    /// Removes the datagrams of a flow, except one that was sent in part.
    pub fn take_flow(&mut self, flow: &Flow) -> Vec<Waiting> {
        let (mut gone, mut stay, mut goes) = (Vec::new(), VecDeque::new(), false);
        for waiting in self.frames.drain(..) {
            goes = if waiting.follows { goes } else { waiting.flow == Some(*flow) };
            if goes {
                self.of_class[usize::from(waiting.frame.class & 7)] -= 1;
                gone.push(waiting);
            } else {
                stay.push_back(waiting);
            }
        }
        self.frames = stay;
        gone
    }
}
