//! Datagrams in fragments, until all of each are here.
//!
//! The kernel holds fragments where no socket shows them. So it gets a datagram whole or not at all: what is not whole has no
//! claim on any socket's room, and whoever sends first fragments only takes nobody's.

use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{Flow, FragmentId, Piece};
use std::collections::HashMap;

/// As long as the kernel waits for the rest of a datagram (`ipfrag_time`).
const LASTS: Duration = Duration::from_secs(30);
/// When most of the room is taken, a datagram of which nothing came for so long is not waited for by new ones.
const STALE: Duration = Duration::from_ms(50);

/// A frame in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub buffer: u32,
    pub len: u32,
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

/// Datagrams of which not all fragments are here.
#[derive(Debug)]
pub(super) struct Pieces {
    datagrams: HashMap<FragmentId, Datagram>,
    frames: usize,
    most: usize,
    came: u64,
    /// When one has to be given up at the earliest.
    expires: Instant,
}

impl Pieces {
    /// Of at most so many frames.
    pub fn new(most: usize) -> Pieces {
        Pieces { datagrams: HashMap::new(), frames: 0, most: most.max(1), came: 0, expires: Instant::ZERO }
    }

    /// Frames that are held.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// For which flow a datagram is, once its first fragment came.
    pub fn flow(&self, id: &FragmentId) -> Option<Flow> {
        self.datagrams.get(id)?.flow
    }

    /// Whether a datagram more may begin: half the room is for those that have.
    pub fn may_begin(&self, now: Instant) -> bool {
        2 * self.frames < self.most || self.oldest().is_some_and(|(_, since)| now.since(since) >= STALE)
    }

    fn oldest(&self) -> Option<(FragmentId, Instant)> {
        let (id, datagram) = self.datagrams.iter().min_by_key(|(_, d)| d.moved.1)?;
        Some((*id, datagram.moved.0))
    }

    /// Takes a fragment. Returns the datagram if it is whole now: its flow, and its frames in the order in which they came. What
    /// is given up goes to `stray`.
    pub fn insert(
        &mut self,
        now: Instant,
        frame: Frame,
        id: FragmentId,
        piece: Piece,
        flow: Option<Flow>,
        stray: &mut impl FnMut(Frame),
    ) -> Option<(Flow, Vec<Frame>)> {
        self.came += 1;
        let fresh = || Datagram { flow: None, pieces: Vec::new(), bytes: 0, end: None, moved: (now, 0) };
        let it = self.datagrams.entry(id).or_insert_with(fresh);
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
            self.give_up(&id, stray);
            return None;
        }
        if it.end == Some(it.bytes)
            && let Some(flow) = it.flow
        {
            self.frames -= it.pieces.len();
            let whole = self.datagrams.remove(&id)?;
            return Some((flow, whole.pieces.into_iter().map(|(_, _, frame)| frame).collect()));
        }
        while self.frames > self.most
            && let Some((oldest, _)) = self.oldest()
        {
            self.give_up(&oldest, stray);
        }
        self.expires = if self.datagrams.len() == 1 { now.saturating_add(LASTS) } else { self.expires };
        None
    }

    fn give_up(&mut self, id: &FragmentId, stray: &mut impl FnMut(Frame)) {
        let Some(gone) = self.datagrams.remove(id) else { return };
        self.frames -= gone.pieces.len();
        gone.pieces.into_iter().for_each(|(_, _, frame)| stray(frame));
    }

    /// When [`Pieces::expire`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.datagrams.is_empty()).then_some(self.expires)
    }

    /// Gives up those of which nothing came for long.
    pub fn expire(&mut self, now: Instant, stray: &mut impl FnMut(Frame)) {
        if self.datagrams.is_empty() || now < self.expires {
            return;
        }
        while let Some((id, since)) = self.oldest() {
            if now.since(since) < LASTS {
                self.expires = since.saturating_add(LASTS);
                return;
            }
            self.give_up(&id, stray);
        }
    }
}
