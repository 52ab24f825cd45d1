//! Datagrams in fragments, until all of each are here.
//!
//! The kernel holds fragments where no socket shows them. So it gets a datagram whole or not at all: what is not whole has no
//! claim on any socket's room, and whoever sends first fragments only takes nobody's.
//!
//! What is unfinished is accounted by sender: the port it came from, and at that one the station. A datagram of the usual length is
//! everybody's right; when the room is taken, whoever has most beyond that loses its oldest. A port begins a new one only while there is
//! room for it beside those that others are at, and never waits for long: behind others that begin and do not finish it goes on.

use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{Flow, FragmentId, Piece};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// As long as the kernel waits for the rest of a datagram (`ipfrag_time`).
const LASTS: Duration = Duration::from_secs(30);
/// Of a datagram that others wait for, the next fragment comes in this time; and nobody waits longer for them all to finish.
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

/// Who sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) struct Sender {
    /// The number of the port it came from: what no sender can choose.
    pub port: usize,
    /// The address it says it is from: what tells stations behind one port apart.
    pub mac: [u8; 6],
}

impl Sender {
    /// Of a frame that begins so, from a port.
    pub fn of(port: usize, start: &[u8]) -> Sender {
        let mac = start.get(6..12).and_then(|mac| mac.try_into().ok());
        Sender { port, mac: mac.unwrap_or_default() }
    }
}

#[derive(Debug)]
struct Datagram {
    flow: Option<Flow>,
    /// What is here of it: offset, length, frame.
    pieces: Vec<(u32, u32, Frame)>,
    bytes: u32,
    /// Where it ends, once its last fragment came.
    end: Option<u32>,
    /// When something last came, and how much had come of all of them before.
    moved: (Instant, u64),
}

/// A datagram, by who sends it: nobody else's fragments are of it.
type Key = (Sender, FragmentId);

/// What somebody has unfinished.
#[derive(Default)]
struct Held {
    frames: usize,
    /// How much had come of all when its latest datagram moved, and the frames of that one.
    latest: (u64, usize),
    oldest: Option<u64>,
}

/// Datagrams of which not all fragments are here.
#[derive(Debug)]
pub(super) struct Pieces {
    datagrams: HashMap<Key, Datagram>,
    /// Datagrams of each port.
    ports: HashMap<usize, usize>,
    frames: usize,
    most: usize,
    came: u64,
    /// When one has to be given up at the earliest.
    expires: Instant,
    /// Ports whose datagrams may not begin, since when; and whether they could have asked again after they may.
    waiting: HashMap<usize, (Instant, bool)>,
}

impl Pieces {
    /// Of at most so many frames.
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

    /// Frames that are held.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// For which flow a datagram is, once its first fragment came.
    pub fn flow(&self, sender: Sender, id: &FragmentId) -> Option<Flow> {
        self.datagrams.get(&(sender, *id))?.flow
    }

    /// Whether a datagram more of a port may begin: as many ports are at theirs as the room is enough for. One that has begun others
    /// is not held: that would hold their rest.
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

    /// Ports with datagrams that are worth waiting for: those that move.
    fn at_work(&self, now: Instant) -> usize {
        if self.ports.len() < self.most / WHOLE {
            return self.ports.len();
        }
        let moving = self.datagrams.iter().filter(|(_, datagram)| now.since(datagram.moved.0) < PATIENCE);
        moving.map(|((sender, _), _)| sender.port).collect::<BTreeSet<_>>().len()
    }

    /// Takes a fragment. Returns the datagram if it is whole now: its flow, and its frames in the order in which they came. What
    /// is given up goes to `stray`.
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
            // As the kernel does: the one that came first counts.
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
            // The kernel throws such a datagram away.
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

    /// What is beyond the room goes: of whoever has most unfinished beyond its latest datagram, the oldest. A little more of it, so
    /// that who sends nothing else does not have this looked for each time.
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

    /// Who has most frames beyond its latest datagram; among equals, whose datagrams wait longest.
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

    /// When [`Pieces::expire`] has something to do, or somebody who waits may go on.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let expires = (!self.datagrams.is_empty()).then_some(self.expires);
        let waits = self.waiting.values().map(|(since, _)| since.saturating_add(PATIENCE));
        waits.chain(expires).min()
    }

    /// Forgets who waited and, when it may go on, does not ask any more. Once a turn.
    pub fn forget(&mut self, now: Instant) {
        self.waiting.retain(|_, (since, asked)| now.since(*since) < PATIENCE || !std::mem::replace(asked, true));
    }

    /// Gives up those of which nothing came for long.
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
