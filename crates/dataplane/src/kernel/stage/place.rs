//! What waits for one socket, and what that one has room for.

use super::super::diag::Socket;
use super::pieces::Frame;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::Flow;
use std::collections::VecDeque;

/// How long the kernel's answer about a socket's room is believed: others may fill it too.
const ROOM_LASTS: Duration = Duration::from_ms(1);
/// The shortest and the longest time between two questions about one socket that is full.
const ASK_AGAIN: Duration = Duration::from_us(20);
const ASK_AT_LEAST: Duration = Duration::from_ms(1);
/// Of the time between two questions, no more counts as time in which a socket took nothing: beyond it, we were away.
const WATCHED_MOST: Duration = Duration::from_ms(20);

/// A frame that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub frame: Frame,
    /// What the kernel charges for the whole datagram; at its first frame.
    pub need: i64,
    /// At the first frame of a datagram whose frames are known by socket.
    pub flow: Option<Flow>,
    /// It goes with the frame before it.
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
}

#[derive(Debug)]
pub(super) struct Place {
    pub kind: Kind,
    /// By which it is asked about while nothing waits.
    pub flow: Option<Flow>,
    pub queue: VecDeque<Waiting>,
    /// How many of each traffic class are there.
    of_class: [usize; 8],
    /// Bytes that may still be charged to it.
    credit: i64,
    /// It held nothing when it was asked about, and has been sent nothing since: it takes one datagram of any size.
    empty: bool,
    asked: Instant,
    pub ask_next: Instant,
    pause: Duration,
    /// What it held when it was asked about: memory, and bytes to be read.
    used: u32,
    queued: u32,
    /// How long it has been seen to take nothing.
    stuck: Duration,
    pub isolated: bool,
    /// Classes whose share is used up, and that was counted: a bit each.
    full: u8,
    /// The charge of the datagram of which some frames have gone and the others wait at the front.
    begun: i64,
    /// Datagrams in fragments that have gone and that no stack may have taken in: how much had been sent after them, their charge.
    settling: VecDeque<(u64, i64)>,
    /// How much had been sent in all when something last went to it.
    last: u64,
}

impl Place {
    pub fn new(kind: Kind) -> Place {
        Place {
            kind,
            flow: None,
            queue: VecDeque::new(),
            of_class: [0; 8],
            credit: 0,
            empty: false,
            asked: Instant::ZERO,
            ask_next: Instant::ZERO,
            pause: ASK_AGAIN,
            used: 0,
            queued: 0,
            stuck: Duration::ZERO,
            isolated: false,
            full: 0,
            begun: 0,
            settling: VecDeque::new(),
            last: 0,
        }
    }

    /// Nobody has waited for it until now.
    pub fn begin_to_wait(&mut self) {
        self.stuck = Duration::ZERO;
    }

    /// Frames of a class that wait.
    pub fn of_class(&self, class: Priority) -> usize {
        self.of_class[usize::from(class & 7)]
    }

    /// Says whether a class's share is used up; whether it was before.
    pub fn set_full(&mut self, class: Priority, full: bool) -> bool {
        let (bit, before) = (1 << (class & 7), self.full);
        self.full = if full { before | bit } else { before & !bit };
        before & bit != 0
    }

    /// A frame waits, behind all others.
    pub fn push(&mut self, waiting: Waiting) {
        self.of_class[usize::from(waiting.frame.class & 7)] += 1;
        self.queue.push_back(waiting);
    }

    /// Takes its last frame out.
    pub fn pop_last(&mut self) -> Option<Waiting> {
        let waiting = self.queue.pop_back()?;
        self.of_class[usize::from(waiting.frame.class & 7)] -= 1;
        Some(waiting)
    }

    fn pop_first(&mut self) -> Option<Waiting> {
        let waiting = self.queue.pop_front()?;
        self.of_class[usize::from(waiting.frame.class & 7)] -= 1;
        Some(waiting)
    }

    /// What it is charged for that no socket shows.
    pub fn reserved(&self) -> i64 {
        self.begun + self.settling.iter().map(|&(_, charge)| charge).sum::<i64>()
    }

    /// What the kernel said about it, and before that about what is in flight; bytes `sent` in all.
    ///
    /// Frames are taken in in the order in which they went, and memory in flight is at least their bytes: with no more of it than
    /// bytes that went later, a frame is no longer in flight.
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
        // Memory comes back in large steps, a quarter of the buffer; what there is to be read becomes less with each datagram.
        if socket.queued < self.queued || socket.used < self.used || socket.used == 0 {
            self.stuck = Duration::ZERO;
            self.pause = ASK_AGAIN;
            self.isolated = false;
        } else {
            self.stuck += now.since(self.asked).min(WATCHED_MOST);
            self.pause = Duration((2 * self.pause.0).min(ASK_AT_LEAST.0));
        }
        (self.used, self.queued, self.asked) = (socket.used, socket.queued, now);
        self.ask_next = now.saturating_add(self.pause);
    }

    /// Whether it has been seen to take nothing for so long, though something waits.
    pub fn is_stuck(&self, deadline: Duration) -> bool {
        !self.queue.is_empty() && self.stuck >= deadline
    }

    /// The frames that its credit is enough for, `most` of them.
    pub fn fill(&self, now: Instant, most: usize, buffers: &mut Vec<u32>) {
        let fresh = now.since(self.asked) < ROOM_LASTS;
        let (mut credit, mut empty) = (self.credit, self.empty);
        for waiting in self.queue.iter().take(most) {
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

    /// Takes its first frame, which went; `sent` bytes in all with it.
    pub fn take(&mut self, sent: u64) -> Option<Waiting> {
        let waiting = self.pop_first()?;
        self.stuck = Duration::ZERO;
        self.pause = ASK_AGAIN;
        self.last = sent;
        if !matches!(self.kind, Kind::Socket(_)) {
            return Some(waiting);
        }
        self.empty = false;
        if !waiting.follows {
            self.credit -= waiting.need;
        }
        let more = self.queue.front().is_some_and(|next| next.follows);
        if more && !waiting.follows {
            self.begun = waiting.need;
        } else if !more && waiting.follows {
            self.settling.push_back((sent, std::mem::take(&mut self.begun)));
        }
        Some(waiting)
    }

    /// How many frames the datagram at the front has left.
    pub fn first_len(&self) -> usize {
        if self.queue.is_empty() { 0 } else { 1 + self.queue.iter().skip(1).take_while(|w| w.follows).count() }
    }

    /// Gives up the first datagram, or what is left of it.
    pub fn drop_first(&mut self, each: &mut impl FnMut(Waiting)) {
        for _ in 0..self.first_len() {
            self.pop_first().into_iter().for_each(&mut *each);
        }
        // The kernel gives up what it has of it, and no socket sees it.
        self.begun = 0;
    }

    /// Gives up everything.
    pub fn drop_all(&mut self, each: &mut impl FnMut(Waiting)) {
        self.queue.drain(..).for_each(each);
        self.of_class = [0; 8];
        self.begun = 0;
    }

    /// Takes the datagrams of a flow out, but for one that has begun.
    pub fn take_flow(&mut self, flow: &Flow) -> Vec<Waiting> {
        let (mut gone, mut stay, mut goes) = (Vec::new(), VecDeque::new(), false);
        for waiting in self.queue.drain(..) {
            goes = if waiting.follows { goes } else { waiting.flow == Some(*flow) };
            if goes {
                self.of_class[usize::from(waiting.frame.class & 7)] -= 1;
                gone.push(waiting);
            } else {
                stay.push_back(waiting);
            }
        }
        self.queue = stay;
        gone
    }
}
