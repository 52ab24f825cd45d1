//! Collects the fragments of datagrams until each datagram is complete.
//! The kernel keeps fragments where no socket shows them. So it gets only complete datagrams. An incomplete one has no claim on
//! a socket's room, and a sender of first fragments only cannot use up any.
//! Unfinished datagrams are counted by sender: the source port, and the station behind it. Every sender may have one datagram
//! of the usual length. When the room is full, the sender with the most fragments beyond that loses its oldest datagram. A port
//! may begin a new datagram only if there is room beside the unfinished datagrams of other ports. It never waits long for
//! others that begin datagrams and do not finish them.

use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{Flow, FragmentId, Piece};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How long the kernel waits for the rest of a datagram (`ipfrag_time`).
const LASTS: Duration = Duration::from_secs(30);
/// The time for the next fragment of a datagram that other ports wait for, and the longest wait for all of these datagrams.
const PATIENCE: Duration = Duration::from_ms(5);
/// Fragments of the longest datagram at an MTU of 1500.
const WHOLE: usize = 45;

/// A frame in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Frame {
    pub buffer: u32,
    pub len: u32,
    /// Its traffic class.
    pub class: Priority,
}

/// The sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) struct Sender {
    /// The number of its source port, which no sender can forge.
    pub port: usize,
    /// Its source address, which distinguishes stations behind one port.
    pub mac: [u8; 6],
}

impl Sender {
    /// The sender of a frame from a port, by the frame's first bytes.
    pub fn of(port: usize, start: &[u8]) -> Sender {
        let mac = start.get(6..12).and_then(|mac| mac.try_into().ok());
        Sender { port, mac: mac.unwrap_or_default() }
    }
}

#[derive(Debug)]
struct Datagram {
    flow: Option<Flow>,
    /// The fragments here: offset, length, frame.
    pieces: Vec<(u32, u32, Frame)>,
    bytes: u32,
    /// The datagram's length, once its last fragment has arrived.
    end: Option<u32>,
    /// When the last fragment arrived, and how many fragments of all datagrams had arrived before.
    moved: (Instant, u64),
}

/// A datagram by its sender, so that fragments of other senders do not belong to it.
type Key = (Sender, FragmentId);

/// The unfinished datagrams of a sender.
#[derive(Default)]
struct Held {
    frames: usize,
    /// The count of all fragments when the sender's latest datagram grew, and the frames of that datagram.
    latest: (u64, usize),
    oldest: Option<u64>,
}

/// Incomplete datagrams.
#[derive(Debug)]
pub(super) struct Pieces {
    datagrams: HashMap<Key, Datagram>,
    /// The number of datagrams of each port.
    ports: HashMap<usize, usize>,
    frames: usize,
    most: usize,
    came: u64,
    /// When the first of them expires at the earliest.
    expires: Instant,
    /// Ports that may not begin a datagram, with the time of their first attempt, and whether they have had the chance to ask
    /// again after the wait.
    waiting: HashMap<usize, (Instant, bool)>,
}

impl Pieces {
    /// For at most `room` frames.
    pub fn new(most: usize) -> Pieces {
        Pieces {
            datagrams: HashMap::new(),
            ports: HashMap::new(),
            frames: 0,
            most: most.max(1),
            came: 0,
            expires: Instant::ZERO,
            waiting: HashMap::new(),
        }
    }

    /// The number of frames here.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// The flow of a datagram, once its first fragment has arrived.
    pub fn flow(&self, sender: Sender, id: &FragmentId) -> Option<Flow> {
        self.datagrams.get(&(sender, *id))?.flow
    }

    /// Whether a port may begin a further datagram: as many ports as have room may have one. A port with unfinished datagrams
    /// does not wait, since their remaining fragments would wait too.
    pub fn may_begin(&mut self, now: Instant, port: usize) -> bool {
        let may = self.ports.contains_key(&port)
            || self.at_work(now) < (self.most / WHOLE).max(1)
            || self.waiting.get(&port).is_some_and(|(since, _)| now.since(*since) >= PATIENCE);
        if may {
            self.waiting.remove(&port);
        } else {
            self.waiting.entry(port).or_insert((now, false));
        }
        may
    }

    /// Ports whose datagrams still grow, so that others wait for them.
    fn at_work(&self, now: Instant) -> usize {
        if self.ports.len() < self.most / WHOLE {
            return self.ports.len();
        }
        let moving = self.datagrams.iter().filter(|(_, datagram)| now.since(datagram.moved.0) < PATIENCE);
        moving.map(|((sender, _), _)| sender.port).collect::<BTreeSet<_>>().len()
    }

    /// Takes a fragment. Returns the datagram if it is complete now: its flow, and its frames in order of arrival. Dropped
    /// fragments go to `stray`.
    pub fn insert(
        &mut self,
        now: Instant,
        frame: Frame,
        key: Key,
        piece: Piece,
        flow: Option<Flow>,
        stray: &mut impl FnMut(Frame),
    ) -> Option<(Flow, Vec<Frame>)> {
        self.came += 1;
        let ports = &mut self.ports;
        let it = self.datagrams.entry(key).or_insert_with(|| {
            *ports.entry(key.0.port).or_default() += 1;
            Datagram { flow: None, pieces: Vec::new(), bytes: 0, end: None, moved: (now, 0) }
        });
        let end = piece.offset + piece.len;
        if it.pieces.iter().any(|&(offset, len, _)| (offset, len) == (piece.offset, piece.len)) {
            // As in the kernel, the first one counts.
            stray(frame);
            return None;
        }
        it.moved = (now, self.came);
        it.flow = it.flow.or(flow);
        let overlaps = it.pieces.iter().any(|&(offset, len, _)| offset < end && piece.offset < offset + len);
        it.pieces.push((piece.offset, piece.len, frame));
        it.bytes += piece.len;
        self.frames += 1;
        let two_ends = piece.last && it.end.replace(end).is_some();
        let beyond = it.end.is_some_and(|last| it.pieces.iter().any(|&(offset, len, _)| offset + len > last));
        if overlaps || two_ends || beyond {
            // The kernel drops such a datagram.
            self.give_up(&key, stray);
            return None;
        }
        if it.end == Some(it.bytes)
            && let Some(flow) = it.flow
        {
            return Some((flow, self.take_out(&key)));
        }
        self.make_room(stray);
        self.expires = if self.datagrams.len() == 1 { now.saturating_add(LASTS) } else { self.expires };
        None
    }

    /// Drops fragments beyond the room: the oldest datagrams of the sender with the most unfinished frames beyond its latest
    /// datagram. Drops a few more than necessary, so that a flood of fragments does not cause this search for each one.
    fn make_room(&mut self, stray: &mut impl FnMut(Frame)) {
        while self.frames > self.most
            && let Some(port) = self.heaviest(|sender| Some(sender.port))
            && let Some(heaviest) = self.heaviest(|sender| (sender.port == port).then_some(*sender))
        {
            let its = self.datagrams.iter().filter(|((sender, _), _)| *sender == heaviest);
            let mut its: Vec<(u64, Key)> = its.map(|(key, datagram)| (datagram.moved.1, *key)).collect();
            its.sort_unstable_by_key(|&(moved, _)| moved);
            for (i, (_, key)) in its.iter().enumerate() {
                if i > 0 && (i + 1 == its.len() || self.frames + self.most / 16 <= self.most) {
                    break;
                }
                self.give_up(key, stray);
            }
        }
    }

    /// The sender with the most frames beyond its latest datagram; among equals, the one whose datagrams wait longest.
    fn heaviest<K: Ord + Copy>(&self, who: impl Fn(&Sender) -> Option<K>) -> Option<K> {
        let mut all: BTreeMap<K, Held> = BTreeMap::new();
        for ((sender, _), datagram) in &self.datagrams {
            let Some(whose) = who(sender) else { continue };
            let held = all.entry(whose).or_default();
            let (frames, moved) = (datagram.pieces.len(), datagram.moved.1);
            held.frames += frames;
            held.latest = held.latest.max((moved, frames));
            held.oldest = Some(held.oldest.map_or(moved, |oldest| oldest.min(moved)));
        }
        let weight = |held: &Held| (held.frames - held.latest.1.min(WHOLE), Reverse(held.oldest));
        all.into_iter().max_by_key(|(_, held)| weight(held)).map(|(whose, _)| whose)
    }

    fn take_out(&mut self, key: &Key) -> Vec<Frame> {
        let Some(gone) = self.datagrams.remove(key) else { return Vec::new() };
        self.frames -= gone.pieces.len();
        if let Some(left) = self.ports.get_mut(&key.0.port) {
            *left -= 1;
            if *left == 0 {
                self.ports.remove(&key.0.port);
            }
        }
        gone.pieces.into_iter().map(|(_, _, frame)| frame).collect()
    }

    fn give_up(&mut self, key: &Key, stray: &mut impl FnMut(Frame)) {
        self.take_out(key).into_iter().for_each(stray);
    }

    /// When [`Pieces::expire`] has work, or a waiting port may go on.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let expires = (!self.datagrams.is_empty()).then_some(self.expires);
        let waits = self.waiting.values().map(|(since, _)| since.saturating_add(PATIENCE));
        waits.chain(expires).min()
    }

    /// Forgets ports that waited and no longer ask although they may go on. To be called once a round.
    pub fn forget(&mut self, now: Instant) {
        self.waiting.retain(|_, (since, asked)| now.since(*since) < PATIENCE || !std::mem::replace(asked, true));
    }

    /// Drops datagrams that have not grown for a long time.
    pub fn expire(&mut self, now: Instant, stray: &mut impl FnMut(Frame)) {
        if self.datagrams.is_empty() || now < self.expires {
            return;
        }
        while let Some((key, datagram)) = self.datagrams.iter().min_by_key(|(_, d)| d.moved.1) {
            let (key, since) = (*key, datagram.moved.0);
            if now.since(since) < LASTS {
                self.expires = since.saturating_add(LASTS);
                return;
            }
            self.give_up(&key, stray);
        }
    }
}
