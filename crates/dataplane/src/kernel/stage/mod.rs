//! Frames wait here until their socket has room for them.
//!
//! A full UDP socket drops datagrams, and no device reports it. So the stage asks the kernel about the room of a socket
//! before it hands frames over, and charges each datagram what the kernel will charge. Each socket has one queue, for all of
//! its senders.
//!
//! - Frames that the kernel has not yet delivered to a socket count as if they were in the socket.
//! - A datagram in fragments goes when all of it is here ([`pieces`]).
//! - Each queue gets a fair share of the room, and in it each traffic class gets its own. A frame beyond the share stays
//!   with its sender; in a lossy class it is dropped. A quarter of the room is for frames without a socket.
//! - For a UDP port without a socket the kernel answers by ICMP and drops the frame. Such frames go at a bounded rate;
//!   frames beyond it are dropped here, by name.
//! - A datagram for a group goes when all its sockets have room ([`group`]).
//! - Frames that are not UDP, or not for this host, need no credit: TCP has a window of its own.

mod group;
mod pieces;
mod socket_queue;

use super::diag::Socket;
use super::truesize::TrueSize;
pub(super) use group::Receiver;
use group::{Group, GroupKey};
use pieces::Pieces;
pub(super) use pieces::{Frame, Sender};
use sluicenet_node::vale::WatchdogConfig;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{Cargo, Flow};
use socket_queue::{Kind, SocketQueue, Waiting};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;

/// How long a flow goes to the socket that was found for it before it is looked up again.
const FLOW_LASTS: Duration = Duration::from_ms(10);
/// Between two datagrams for which there is no socket: as often as Linux answers by ICMP (`icmp_msgs_per_sec` of 1,000).
const NOBODY_EVERY: Duration = Duration::from_ms(1);
/// Waiting frames for ports without a socket.
const NOBODY_MOST: usize = 64;
/// Flows and sockets that the stage remembers.
const FLOWS_MOST: usize = 4096;
const SOCKETS_MOST: usize = 1024;

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A socket.
    Socket(Socket),
    /// All sockets at the port of a group.
    Group,
    /// The frame is for this host, and no socket is there: the kernel answers by ICMP.
    Nobody,
    /// The frame is for another host: the kernel forwards or drops it.
    Elsewhere,
}

/// The questions to the kernel.
pub(super) trait Host {
    /// The receiver of the datagrams of a flow.
    fn find(&mut self, flow: &Flow) -> io::Result<Found>;
    /// All sockets that may receive the datagrams of a group's flow. Returns the time that the question took.
    fn find_group(&mut self, flow: &Flow, all: &mut Vec<Receiver>) -> io::Result<Duration>;
    /// Memory, in bytes, of the frames that were sent and that no stack has taken in yet.
    fn in_flight(&mut self) -> io::Result<u32>;
}

/// Frames that were dropped here, and questions asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StageCounters {
    /// Of a socket that was isolated.
    pub watchdog: u64,
    /// Times a socket had taken nothing for the detection time.
    pub stuck: u64,
    /// Times a socket was isolated.
    pub isolated: u64,
    /// Of those, times a socket was isolated before its time because there were no buffers left.
    pub isolated_for_room: u64,
    /// Times a socket used up its share of the room.
    pub share_used_up: u64,
    /// For which there was no socket: handed over for the kernel to answer.
    pub no_socket: u64,
    /// Datagrams without a socket beyond the rate at which the kernel answers: dropped here.
    pub no_socket_dropped: u64,
    /// For a group.
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
    queues: Vec<SocketQueue>,
    vacant: Vec<usize>,
    sockets: HashMap<u64, usize>,
    flows: HashMap<Flow, (usize, Instant)>,
    /// The queue of each group, and the groups by number.
    groups_by_key: HashMap<GroupKey, usize>,
    groups: Vec<Option<Group>>,
    /// No question about a group comes before.
    ask_groups_next: Instant,
    /// The answer to the last one.
    receivers: Vec<Receiver>,
    pieces: Pieces,
    /// Queues with frames, in the order of service.
    active: VecDeque<usize>,
    /// Frames in the queues of sockets. With the fragments of incomplete datagrams there may be at most `room`.
    waiting: usize,
    room: usize,
    /// All frames that the port can hold here.
    buffers: usize,
    charges: TrueSize,
    watchdog: WatchdogConfig,
    /// Bytes of all frames that went.
    sent: u64,
    pub counters: StageCounters,
}

const OPEN: usize = 0;
const NOBODY: usize = 1;

impl Stage {
    /// An empty stage with `buffers`.
    pub fn new(charges: TrueSize, buffers: u32, watchdog: WatchdogConfig) -> Stage {
        let buffers = buffers as usize;
        Stage {
            queues: vec![SocketQueue::new(Kind::Open), SocketQueue::new(Kind::Nobody)],
            vacant: Vec::new(),
            sockets: HashMap::new(),
            flows: HashMap::new(),
            groups_by_key: HashMap::new(),
            groups: Vec::new(),
            ask_groups_next: Instant::ZERO,
            receivers: Vec::new(),
            pieces: Pieces::new(buffers / 4),
            active: VecDeque::new(),
            waiting: 0,
            room: (buffers - buffers / 4).max(1),
            buffers,
            charges,
            watchdog,
            sent: 0,
            counters: StageCounters::default(),
        }
    }

    /// Changes the watchdog over sockets.
    pub fn set_watchdog(&mut self, watchdog: WatchdogConfig) {
        self.watchdog = watchdog;
    }

    /// Whether no complete datagram waits.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether a frame may come now. Otherwise its queue has used up its share of the room, and the frame stays where it is.
    ///
    /// The share is half of the free room (Choudhury and Hahne 1998, with a parameter of 1/2). A queue alone gets a third of
    /// the room, and there is always some left for another queue. Each traffic class has such a share in each queue: a class
    /// whose senders wait takes every free buffer at once, and would leave none for a class whose senders do not wait. The
    /// remaining fragments of a datagram get twice this share, since they only wait for each other.
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
            Cargo::Other => return Ok(true),
        };
        if flow.group && !self.may_have_group(now, &flow) {
            return Ok(false);
        }
        let free = self.room.saturating_sub(self.waiting + self.pieces.frames());
        let queue = self.queue_of(now, &flow, host)?;
        let it = &mut self.queues[queue];
        let full = it.kind.needs_room() && !it.isolated && it.of_class(class) > free / part;
        if part == 2 {
            let before = it.set_full(class, full);
            self.counters.share_used_up += u64::from(full && !before);
        }
        Ok(!full)
    }

    /// Takes a frame of a sender, and passes each buffer that is no longer needed to `release`.
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
            Cargo::Other => {
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
        let mut queue = self.queue_of(now, flow, host)?;
        if self.queues[queue].isolated && now >= self.queues[queue].ask_next {
            queue = self.look_up(now, flow, host)?;
        }
        let dropped = if self.queues[queue].isolated {
            &mut self.counters.watchdog
        } else if queue == NOBODY && self.queues[NOBODY].frames.len() >= NOBODY_MOST {
            &mut self.counters.no_socket_dropped
        } else {
            self.wait(queue, Some(*flow), frames);
            return Ok(());
        };
        *dropped += frames.len() as u64;
        frames.iter().for_each(|frame| release(frame.buffer));
        Ok(())
    }

    /// Queues a datagram of one or more frames.
    fn wait(&mut self, queue: usize, flow: Option<Flow>, frames: &[Frame]) {
        let need = frames.iter().map(|frame| i64::from(self.charges.of(frame.len))).sum();
        let waiting = |(i, &frame): (usize, &Frame)| match i {
            0 => Waiting { frame, need, flow, follows: false },
            _ => Waiting { frame, need: 0, flow: None, follows: true },
        };
        let all: Vec<_> = frames.iter().enumerate().map(waiting).collect();
        self.enqueue(queue, all);
    }

    fn enqueue(&mut self, queue: usize, frames: impl IntoIterator<Item = Waiting>) {
        let it = &mut self.queues[queue];
        if it.frames.is_empty() {
            it.begin_to_wait();
            self.active.push_back(queue);
        }
        let before = it.frames.len();
        frames.into_iter().for_each(|waiting| it.push(waiting));
        if it.kind.needs_room() {
            self.waiting += it.frames.len() - before;
        }
        self.rest(queue);
    }

    /// Frames have left a queue.
    fn left(&mut self, queue: usize, count: usize) {
        if self.queues[queue].kind.needs_room() {
            self.waiting -= count;
        }
        self.rest(queue);
    }

    /// Stops the service of a queue without frames.
    fn rest(&mut self, queue: usize) {
        if self.queues[queue].frames.is_empty() {
            self.active.retain(|&other| other != queue);
        }
    }

    /// The queue of a flow.
    fn queue_of(&mut self, now: Instant, flow: &Flow, host: &mut impl Host) -> io::Result<usize> {
        if flow.group && is_group(flow.destination) {
            return Ok(self.group_queue(now, flow).unwrap_or(OPEN));
        }
        // A socket that is found stuck is asked about with its frames; its other flows wait until it moves.
        if let Some(&(queue, since)) = self.flows.get(flow)
            && (now.since(since) < FLOW_LASTS || self.queues[queue].is_reported())
        {
            return Ok(queue);
        }
        self.look_up(now, flow, host)
    }

    /// Asks the kernel for the socket of a flow and its room.
    fn look_up(&mut self, now: Instant, flow: &Flow, host: &mut impl Host) -> io::Result<usize> {
        self.counters.queries += 1;
        // In this order, a frame that arrives between the two answers is counted twice instead of never.
        let in_flight = host.in_flight()?;
        let queue = match host.find(flow)? {
            Found::Nobody => NOBODY,
            Found::Elsewhere => OPEN,
            Found::Group => self.group_queue(now, flow).unwrap_or(OPEN),
            Found::Socket(socket) => {
                let queue = match self.sockets.get(&socket.cookie) {
                    Some(&queue) => queue,
                    None => self.new_queue(socket.cookie),
                };
                let margin = self.charges.largest();
                self.queues[queue].flow = Some(*flow);
                self.queues[queue].learn(now, &socket, in_flight, self.sent, margin);
                queue
            }
        };
        let before = self.flows.get(flow).map(|&(queue, _)| queue);
        if self.flows.len() >= FLOWS_MOST {
            self.flows.clear();
        }
        self.flows.insert(*flow, (queue, now));
        if let Some(before) = before.filter(|&before| before != queue) {
            self.move_flow(flow, before, queue);
        }
        Ok(queue)
    }

    fn new_queue(&mut self, cookie: u64) -> usize {
        if self.sockets.len() >= SOCKETS_MOST {
            self.forget_idle();
        }
        self.add_queue(cookie)
    }

    fn add_queue(&mut self, cookie: u64) -> usize {
        let queue = self.vacant_queue(SocketQueue::new(Kind::Socket(cookie)));
        self.sockets.insert(cookie, queue);
        queue
    }

    fn vacant_queue(&mut self, fresh: SocketQueue) -> usize {
        match self.vacant.pop() {
            Some(queue) => {
                self.queues[queue] = fresh;
                queue
            }
            None => {
                self.queues.push(fresh);
                self.queues.len() - 1
            }
        }
    }

    /// Forgets sockets without waiting frames.
    fn forget_idle(&mut self) {
        self.flows.clear();
        self.forget_members();
        let members: HashSet<usize> = self.groups.iter().flatten().flat_map(Group::queues).collect();
        let (queues, vacant) = (&self.queues, &mut self.vacant);
        self.sockets.retain(|_, &mut queue| {
            let it = &queues[queue];
            let keep = it.is_waited_for() || it.reserved() > 0 || members.contains(&queue);
            if !keep {
                vacant.push(queue);
            }
            keep
        });
    }

    /// Moves the datagrams of a flow to the end of another queue: the flow's socket has changed.
    fn move_flow(&mut self, flow: &Flow, from: usize, to: usize) {
        self.give_back_grants(from, false);
        let frames = self.queues[from].take_flow(flow);
        self.left(from, frames.len());
        self.enqueue(to, frames);
    }

    /// Asks about the flow at the front of a queue when it is time. If the flow has another socket by now, its datagrams move
    /// there. So the queue of a closed socket empties, flow by flow.
    fn look_after(&mut self, now: Instant, queue: usize, host: &mut impl Host) -> io::Result<()> {
        let it = &self.queues[queue];
        if now < it.ask_next {
            return Ok(());
        }
        let first = it.frames.iter().find(|waiting| !waiting.follows).and_then(|waiting| waiting.flow);
        let Some(flow) = first.or(it.flow) else { return Ok(()) };
        let found = self.look_up(now, &flow, host)?;
        if found != queue {
            // The lookup moves datagrams only if it still knew the flow's earlier queue.
            self.move_flow(&flow, queue, found);
        }
        Ok(())
    }

    /// The next queue in turn, and the buffers of up to `most` frames that may go now. Then [`Stage::sent`] reports how many
    /// went. Buffers of dropped frames go to `release`.
    pub fn offer(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        most: usize,
        buffers: &mut Vec<u32>,
        release: &mut impl FnMut(u32),
    ) -> io::Result<Option<usize>> {
        buffers.clear();
        let Some(queue) = self.active.pop_front() else { return Ok(None) };
        self.active.push_back(queue);
        match self.queues[queue].kind {
            Kind::Open => buffers.extend(self.queues[OPEN].frames.iter().take(most).map(|w| w.frame.buffer)),
            Kind::Nobody => self.offer_to_nobody(now, host, most, buffers, release)?,
            Kind::Group(_) => self.offer_to_group(now, queue, host, most, buffers, release)?,
            Kind::Socket(_) => {
                self.queues[queue].fill(now, most, buffers);
                if buffers.is_empty() {
                    self.look_after(now, queue, host)?;
                    self.queues[queue].fill(now, most, buffers);
                }
                if buffers.is_empty() {
                    self.watch(queue, release);
                }
            }
        }
        Ok(Some(queue))
    }

    fn offer_to_nobody(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        most: usize,
        buffers: &mut Vec<u32>,
        release: &mut impl FnMut(u32),
    ) -> io::Result<()> {
        // Datagrams whose socket was closed may exceed the limit.
        while self.queues[NOBODY].frames.len() > NOBODY_MOST.max(self.queues[NOBODY].first_len()) {
            let mut last = true;
            while last && let Some(waiting) = self.queues[NOBODY].pop_last() {
                self.counters.no_socket_dropped += 1;
                release(waiting.frame.buffer);
                last = waiting.follows;
            }
        }
        let it = &mut self.queues[NOBODY];
        let begun = it.frames.front().is_some_and(|first| first.follows);
        if now < it.ask_next && !begun {
            return Ok(());
        }
        it.ask_next = now.saturating_add(NOBODY_EVERY);
        // A socket may have been opened.
        if let Some(flow) = it.frames.front().and_then(|first| first.flow)
            && self.look_up(now, &flow, host)? != NOBODY
        {
            return Ok(());
        }
        let it = &self.queues[NOBODY];
        buffers.extend(it.frames.iter().take(it.first_len().min(most)).map(|w| w.frame.buffer));
        Ok(())
    }

    /// Reports a socket that has taken nothing for the detection time, and drops the frames for one that has taken nothing for
    /// the isolation time, or is the one that holds most buffers when there are none left.
    fn watch(&mut self, queue: usize, release: &mut impl FnMut(u32)) {
        let WatchdogConfig { detection_time, .. } = self.watchdog;
        let it = &mut self.queues[queue];
        if self.watchdog.reports_after().is_some_and(|time| it.becomes_stuck(time)) {
            self.counters.stuck += 1;
        }
        let Some(isolation_time) = self.watchdog.isolates_after() else { return };
        let late = it.is_stuck(isolation_time);
        let in_the_way = || self.has_no_room() && self.fullest(detection_time) == Some(queue);
        if !late && !in_the_way() {
            return;
        }
        let it = &mut self.queues[queue];
        it.isolated = true;
        self.counters.isolated += 1;
        self.counters.isolated_for_room += u64::from(!late);
        let mut count = 0;
        it.drop_all(&mut |waiting| {
            count += 1;
            release(waiting.frame.buffer);
        });
        self.counters.watchdog += count as u64;
        self.left(queue, count);
    }

    /// Whether so few buffers are left that the port may soon take nothing for anybody.
    fn has_no_room(&self) -> bool {
        let others = self.queues[OPEN].frames.len() + self.queues[NOBODY].frames.len() + self.pieces.frames();
        self.waiting + others + self.buffers / 16 >= self.buffers
    }

    /// The sockets that have frames, have taken none for the detection time, and are still waited for.
    pub fn stuck_now(&self) -> u64 {
        self.sockets.values().filter(|&&queue| self.queues[queue].is_reported()).count() as u64
    }

    /// Of the sockets that have taken nothing for a time, the one for which most frames wait.
    fn fullest(&self, stuck_for: Duration) -> Option<usize> {
        let waits_for = |queue: usize| match self.queues[queue].kind {
            Kind::Socket(_) => Some(queue),
            Kind::Group(group) => self.groups[group].as_ref()?.waits_for(),
            Kind::Open | Kind::Nobody => None,
        };
        let waiting =
            self.active.iter().filter_map(|&queue| Some((self.queues[queue].frames.len(), waits_for(queue)?)));
        let stuck = waiting.filter(|&(_, socket)| self.queues[socket].is_stuck(stuck_for));
        stuck.max().map(|(_, socket)| socket)
    }

    /// The first `count` frames of a queue were sent.
    pub fn sent(&mut self, queue: usize, count: usize, release: &mut impl FnMut(u32)) {
        for _ in 0..count {
            let it = &mut self.queues[queue];
            let Some(len) = it.frames.front().map(|first| first.frame.len) else { break };
            self.sent += u64::from(len);
            if let Some(waiting) = it.take(self.sent) {
                release(waiting.frame.buffer);
                if let Kind::Group(group) = it.kind {
                    self.counters.group += 1;
                    let first = waiting.flow.filter(|_| !waiting.follows);
                    self.sent_to_group(queue, group, first.map(|flow| (waiting.need, flow)));
                }
            }
            self.counters.no_socket += u64::from(queue == NOBODY);
        }
        self.left(queue, count);
    }

    /// The first frame of a queue can never be sent: drops its datagram.
    pub fn refuse(&mut self, queue: usize, release: &mut impl FnMut(u32)) {
        let mut count = 0;
        self.give_back_grants(queue, true);
        self.queues[queue].drop_first(&mut |waiting| {
            count += 1;
            release(waiting.frame.buffer);
        });
        self.counters.too_long += count as u64;
        self.left(queue, count);
    }

    /// Drops fragments that have waited too long for the rest of their datagram. Called once a round.
    pub fn expire(&mut self, now: Instant, release: &mut impl FnMut(u32)) {
        self.pieces.forget(now);
        let strays = &mut self.counters.stray_fragments;
        self.pieces.expire(now, &mut |frame| {
            *strays += 1;
            release(frame.buffer);
        });
    }

    /// The number of queues with frames.
    pub fn active_queues(&self) -> usize {
        self.active.len()
    }

    /// When the next queue has to be served at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let queues = self.active.iter().map(|&queue| self.queues[queue].ask_next).min();
        queues.into_iter().chain(self.pieces.poll_timeout()).min()
    }
}

/// Whether an address is always that of a group; directed broadcasts are known to the kernel only.
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

#[cfg(test)]
mod fairness;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod tests;
