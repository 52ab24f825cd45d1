//! Where frames wait for room in the sockets they are for.
//!
//! A UDP socket that is full throws datagrams away, and no device tells. So the kernel is asked what a socket has room for
//! before frames are handed over, and each datagram is charged what the kernel will charge. One owner of the credit for each
//! socket, whoever sends to it: two senders to one socket share a place, two sockets have two.
//!
//! - What the kernel has been handed and has not yet given to a socket counts as if it were there.
//! - A datagram in fragments goes when all of it is here ([`pieces`]).
//! - Each place has a share of the room, and in it each traffic class one of its own; a frame beyond it stays with its sender, or is
//!   dropped in a class that may lose. A quarter is for what has no socket.
//! - Nobody at a port: the kernel answers and drops. So those frames go at a bounded rate, and what is beyond is dropped here,
//!   by name.
//! - What is not UDP for one station, or not for this host, needs no credit: TCP has a window of its own.

mod pieces;
mod place;

use super::diag::Socket;
use super::truesize::TrueSize;
use pieces::Pieces;
pub(super) use pieces::{Frame, Sender};
use place::{Kind, Place, Waiting};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{Cargo, Flow};
use std::collections::{HashMap, VecDeque};
use std::io;

/// How long a flow goes to the socket that was found for it before it is looked up again.
const FLOW_LASTS: Duration = Duration::from_ms(10);
/// Between two datagrams for which there is no socket: as often as Linux answers by ICMP (`icmp_msgs_per_sec` of 1,000).
const NOBODY_EVERY: Duration = Duration::from_ms(1);
/// Frames for nobody that wait.
const NOBODY_MOST: usize = 64;
/// Flows and sockets that are remembered.
const FLOWS_MOST: usize = 4096;
const SOCKETS_MOST: usize = 1024;

/// Who gets a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A socket.
    Socket(Socket),
    /// It is for this host, and no socket is there: the kernel answers by ICMP.
    Nobody,
    /// Not this host's: it is passed on, or whatever the kernel does with it.
    Elsewhere,
}

/// What is asked of the kernel.
pub(super) trait Host {
    /// Who gets a datagram of a flow.
    fn find(&mut self, flow: &Flow) -> io::Result<Found>;
    /// Bytes of memory of the frames that were sent and no stack has taken in yet.
    fn in_flight(&mut self) -> io::Result<u32>;
}

/// Frames that were dropped here, and questions asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StageCounters {
    /// Of a socket that took nothing for the deadline.
    pub watchdog: u64,
    /// Times a socket was isolated.
    pub isolated: u64,
    /// Times a socket's share was used up.
    pub share_used_up: u64,
    /// For which there was no socket: handed over for the kernel to answer.
    pub no_socket: u64,
    /// The same, beyond the rate at which the kernel answers: dropped here.
    pub no_socket_dropped: u64,
    /// For a group: no credit is asked for.
    pub group: u64,
    /// Fragments of datagrams that were never whole.
    pub stray_fragments: u64,
    /// Questions to the kernel.
    pub queries: u64,
    /// Longer than the device takes.
    pub too_long: u64,
}

/// Frames that wait for sockets.
#[derive(Debug)]
pub(super) struct Stage {
    places: Vec<Place>,
    vacant: Vec<usize>,
    sockets: HashMap<u64, usize>,
    flows: HashMap<Flow, (usize, Instant)>,
    pieces: Pieces,
    /// Places with frames, in the order in which they are served.
    active: VecDeque<usize>,
    /// Frames at sockets' places, and how many there may be with those of datagrams that are not whole.
    waiting: usize,
    room: usize,
    charges: TrueSize,
    deadline: Option<Duration>,
    /// Bytes of all frames that went.
    sent: u64,
    pub counters: StageCounters,
}

const OPEN: usize = 0;
const NOBODY: usize = 1;

impl Stage {
    /// Nothing waits; there are `buffers`. A socket that takes nothing for `deadline` is isolated.
    pub fn new(charges: TrueSize, buffers: u32, deadline: Option<Duration>) -> Stage {
        let buffers = buffers as usize;
        Stage {
            places: vec![Place::new(Kind::Open), Place::new(Kind::Nobody)],
            vacant: Vec::new(),
            sockets: HashMap::new(),
            flows: HashMap::new(),
            pieces: Pieces::new(buffers / 4),
            active: VecDeque::new(),
            waiting: 0,
            room: (buffers - buffers / 4).max(1),
            charges,
            deadline,
            sent: 0,
            counters: StageCounters::default(),
        }
    }

    /// Changes the deadline.
    pub fn set_deadline(&mut self, deadline: Option<Duration>) {
        self.deadline = deadline;
    }

    /// Whether no frame can be handed over: none waits, but for the rest of its datagram.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether a frame may come now. One that may not stays where it is: its place has its share of the room.
    ///
    /// The share is half of what is free (Choudhury and Hahne 1998, with a parameter of 1/2): a place alone has a third of the room, and
    /// however many have theirs, another finds some. Each traffic class has such a share of each place, since one whose senders wait takes
    /// whatever becomes free at once, and would leave nothing to one whose senders do not. The rest of a datagram that has begun may
    /// take as much again: where it is now, it waits for nothing else.
    pub fn admits(
        &mut self,
        now: Instant,
        sender: Sender,
        class: Priority,
        cargo: &Cargo,
        host: &mut impl Host,
    ) -> io::Result<bool> {
        let (flow, part) = match cargo {
            Cargo::Udp(flow) => (*flow, 2),
            Cargo::Piece(_, _, Some(flow)) => {
                if !self.pieces.may_begin(now, sender.port) {
                    return Ok(false);
                }
                (*flow, 2)
            }
            Cargo::Piece(id, _, None) => match self.pieces.flow(sender, id) {
                Some(flow) => (flow, 1),
                None => return Ok(true),
            },
            Cargo::Group | Cargo::Other => return Ok(true),
        };
        let free = self.room.saturating_sub(self.waiting + self.pieces.frames());
        let place = self.place_of(now, &flow, host)?;
        let it = &mut self.places[place];
        let full = matches!(it.kind, Kind::Socket(_)) && !it.isolated && it.of_class(class) > free / part;
        if part == 2 {
            let before = it.set_full(class, full);
            self.counters.share_used_up += u64::from(full && !before);
        }
        Ok(!full)
    }

    /// Takes a frame of a sender. The buffers that are done with in consequence go to `release`.
    pub fn insert(
        &mut self,
        now: Instant,
        frame: Frame,
        sender: Sender,
        cargo: Cargo,
        host: &mut impl Host,
        release: &mut impl FnMut(u32),
    ) -> io::Result<()> {
        match cargo {
            Cargo::Udp(flow) => self.insert_whole(now, &flow, &[frame], host, release),
            Cargo::Piece(id, piece, flow) => {
                let strays = &mut self.counters.stray_fragments;
                let stray = &mut |frame: Frame| {
                    *strays += 1;
                    release(frame.buffer);
                };
                self.pieces.expire(now, stray);
                match self.pieces.insert(now, frame, (sender, id), piece, flow, stray) {
                    Some((flow, frames)) => self.insert_whole(now, &flow, &frames, host, release),
                    None => Ok(()),
                }
            }
            Cargo::Group | Cargo::Other => {
                self.counters.group += u64::from(cargo == Cargo::Group);
                self.wait(OPEN, None, &[frame]);
                Ok(())
            }
        }
    }

    fn insert_whole(
        &mut self,
        now: Instant,
        flow: &Flow,
        frames: &[Frame],
        host: &mut impl Host,
        release: &mut impl FnMut(u32),
    ) -> io::Result<()> {
        let mut place = self.place_of(now, flow, host)?;
        if self.places[place].isolated && now >= self.places[place].ask_next {
            place = self.look_up(now, flow, host)?;
        }
        let dropped = if self.places[place].isolated {
            &mut self.counters.watchdog
        } else if place == NOBODY && self.places[NOBODY].queue.len() >= NOBODY_MOST {
            &mut self.counters.no_socket_dropped
        } else {
            self.wait(place, Some(*flow), frames);
            return Ok(());
        };
        *dropped += frames.len() as u64;
        frames.iter().for_each(|frame| release(frame.buffer));
        Ok(())
    }

    /// A datagram waits, in one frame or more.
    fn wait(&mut self, place: usize, flow: Option<Flow>, frames: &[Frame]) {
        let need = frames.iter().map(|frame| i64::from(self.charges.of(frame.len))).sum();
        let waiting = |(i, &frame): (usize, &Frame)| match i {
            0 => Waiting { frame, need, flow, follows: false },
            _ => Waiting { frame, need: 0, flow: None, follows: true },
        };
        let all: Vec<_> = frames.iter().enumerate().map(waiting).collect();
        self.enqueue(place, all);
    }

    fn enqueue(&mut self, place: usize, frames: impl IntoIterator<Item = Waiting>) {
        let it = &mut self.places[place];
        if it.queue.is_empty() {
            it.begin_to_wait();
            self.active.push_back(place);
        }
        let before = it.queue.len();
        frames.into_iter().for_each(|waiting| it.push(waiting));
        if matches!(it.kind, Kind::Socket(_)) {
            self.waiting += it.queue.len() - before;
        }
        self.rest(place);
    }

    /// Frames left a place.
    fn left(&mut self, place: usize, count: usize) {
        if matches!(self.places[place].kind, Kind::Socket(_)) {
            self.waiting -= count;
        }
        self.rest(place);
    }

    /// A place without frames is not served.
    fn rest(&mut self, place: usize) {
        if self.places[place].queue.is_empty() {
            self.active.retain(|&other| other != place);
        }
    }

    /// Where the frames of a flow wait.
    fn place_of(&mut self, now: Instant, flow: &Flow, host: &mut impl Host) -> io::Result<usize> {
        if let Some(&(place, since)) = self.flows.get(flow)
            && now.since(since) < FLOW_LASTS
        {
            return Ok(place);
        }
        self.look_up(now, flow, host)
    }

    /// Asks the kernel for the socket of a flow, and learns what it has room for.
    fn look_up(&mut self, now: Instant, flow: &Flow, host: &mut impl Host) -> io::Result<usize> {
        self.counters.queries += 1;
        // In this order: what moves between the two answers is counted twice, not never.
        let in_flight = host.in_flight()?;
        let place = match host.find(flow)? {
            Found::Nobody => NOBODY,
            Found::Elsewhere => OPEN,
            Found::Socket(socket) => {
                let place = match self.sockets.get(&socket.cookie) {
                    Some(&place) => place,
                    None => self.new_place(socket.cookie),
                };
                let margin = self.charges.largest();
                self.places[place].flow = Some(*flow);
                self.places[place].learn(now, &socket, in_flight, self.sent, margin);
                place
            }
        };
        let before = self.flows.get(flow).map(|&(place, _)| place);
        if self.flows.len() >= FLOWS_MOST {
            self.flows.clear();
        }
        self.flows.insert(*flow, (place, now));
        if let Some(before) = before.filter(|&before| before != place) {
            self.move_flow(flow, before, place);
        }
        Ok(place)
    }

    fn new_place(&mut self, cookie: u64) -> usize {
        if self.sockets.len() >= SOCKETS_MOST {
            self.forget_idle();
        }
        let fresh = Place::new(Kind::Socket(cookie));
        let place = match self.vacant.pop() {
            Some(place) => {
                self.places[place] = fresh;
                place
            }
            None => {
                self.places.push(fresh);
                self.places.len() - 1
            }
        };
        self.sockets.insert(cookie, place);
        place
    }

    /// Forgets sockets for which nothing waits.
    fn forget_idle(&mut self) {
        self.flows.clear();
        let (places, vacant) = (&self.places, &mut self.vacant);
        self.sockets.retain(|_, &mut place| {
            let keep = !places[place].queue.is_empty() || places[place].reserved() > 0;
            if !keep {
                vacant.push(place);
            }
            keep
        });
    }

    /// The datagrams of a flow that wait at one place go to the end of another: the socket they are for has changed.
    fn move_flow(&mut self, flow: &Flow, from: usize, to: usize) {
        let frames = self.places[from].take_flow(flow);
        self.left(from, frames.len());
        self.enqueue(to, frames);
    }

    /// Asks about a place when it is time, by what waits at its front: if that one's socket is another by now, it goes there, and
    /// the next one is asked about next. So a place whose socket is gone empties, each datagram by its own flow.
    fn look_after(&mut self, now: Instant, place: usize, host: &mut impl Host) -> io::Result<()> {
        let it = &self.places[place];
        if now < it.ask_next {
            return Ok(());
        }
        let first = it.queue.iter().find(|waiting| !waiting.follows).and_then(|waiting| waiting.flow);
        let Some(flow) = first.or(it.flow) else { return Ok(()) };
        let found = self.look_up(now, &flow, host)?;
        if found != place {
            // What it was believed to be may have been forgotten.
            self.move_flow(&flow, place, found);
        }
        Ok(())
    }

    /// The next place in turn that has frames, and the buffers of those that may go now, `most` of them.
    ///
    /// After that, [`Stage::sent`] says how many went. What is dropped goes to `release`.
    pub fn offer(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        most: usize,
        buffers: &mut Vec<u32>,
        release: &mut impl FnMut(u32),
    ) -> io::Result<Option<usize>> {
        buffers.clear();
        let Some(place) = self.active.pop_front() else { return Ok(None) };
        self.active.push_back(place);
        match self.places[place].kind {
            Kind::Open => buffers.extend(self.places[OPEN].queue.iter().take(most).map(|w| w.frame.buffer)),
            Kind::Nobody => self.offer_to_nobody(now, host, most, buffers, release)?,
            Kind::Socket(_) => {
                self.places[place].fill(now, most, buffers);
                if buffers.is_empty() {
                    self.look_after(now, place, host)?;
                    self.places[place].fill(now, most, buffers);
                }
                if buffers.is_empty() {
                    self.watch(place, release);
                }
            }
        }
        Ok(Some(place))
    }

    fn offer_to_nobody(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        most: usize,
        buffers: &mut Vec<u32>,
        release: &mut impl FnMut(u32),
    ) -> io::Result<()> {
        // Those that lost their socket.
        while self.places[NOBODY].queue.len() > NOBODY_MOST.max(self.places[NOBODY].first_len()) {
            let mut last = true;
            while last && let Some(waiting) = self.places[NOBODY].pop_last() {
                self.counters.no_socket_dropped += 1;
                release(waiting.frame.buffer);
                last = waiting.follows;
            }
        }
        let it = &mut self.places[NOBODY];
        let begun = it.queue.front().is_some_and(|first| first.follows);
        if now < it.ask_next && !begun {
            return Ok(());
        }
        it.ask_next = now.saturating_add(NOBODY_EVERY);
        // Somebody may have come.
        if let Some(flow) = it.queue.front().and_then(|first| first.flow)
            && self.look_up(now, &flow, host)? != NOBODY
        {
            return Ok(());
        }
        let it = &self.places[NOBODY];
        buffers.extend(it.queue.iter().take(it.first_len().min(most)).map(|w| w.frame.buffer));
        Ok(())
    }

    /// Gives up what waits for a socket that has taken nothing for the deadline.
    fn watch(&mut self, place: usize, release: &mut impl FnMut(u32)) {
        let it = &mut self.places[place];
        if !self.deadline.is_some_and(|deadline| it.is_stuck(deadline)) {
            return;
        }
        it.isolated = true;
        self.counters.isolated += 1;
        let mut count = 0;
        it.drop_all(&mut |waiting| {
            count += 1;
            release(waiting.frame.buffer);
        });
        self.counters.watchdog += count as u64;
        self.left(place, count);
    }

    /// The first `count` frames of a place went.
    pub fn sent(&mut self, place: usize, count: usize, release: &mut impl FnMut(u32)) {
        for _ in 0..count {
            let it = &mut self.places[place];
            let Some(len) = it.queue.front().map(|first| first.frame.len) else { break };
            self.sent += u64::from(len);
            if let Some(waiting) = it.take(self.sent) {
                release(waiting.frame.buffer);
            }
            self.counters.no_socket += u64::from(place == NOBODY);
        }
        self.left(place, count);
    }

    /// The first frame of a place can never go, and so its datagram cannot.
    pub fn refuse(&mut self, place: usize, release: &mut impl FnMut(u32)) {
        let mut count = 0;
        self.places[place].drop_first(&mut |waiting| {
            count += 1;
            release(waiting.frame.buffer);
        });
        self.counters.too_long += count as u64;
        self.left(place, count);
    }

    /// Gives up what has waited too long for the rest of its datagram. Once a turn.
    pub fn expire(&mut self, now: Instant, release: &mut impl FnMut(u32)) {
        self.pieces.forget(now);
        let strays = &mut self.counters.stray_fragments;
        self.pieces.expire(now, &mut |frame| {
            *strays += 1;
            release(frame.buffer);
        });
    }

    /// How many places have frames.
    pub fn places(&self) -> usize {
        self.active.len()
    }

    /// When a place has to be looked after at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let places = self.active.iter().map(|&place| self.places[place].ask_next).min();
        places.into_iter().chain(self.pieces.poll_timeout()).min()
    }
}

#[cfg(test)]
mod shares;
#[cfg(test)]
mod tests;
