//! Frames that the port they are for does not admit now, because of one receiver behind it: a line for each receiver, so that
//! whoever sends to several waits for none but the one.
//!
//! - A line keeps its order, and nobody of it goes before the first.
//! - No line has more of its sender's places than its [part](share::part) (`places`): however many have theirs, another finds some.
//! - Whose line was served last is served last, so that senders to one receiver have turns.

use super::Port;
use crate::share;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::overlay::fib::Station;

/// Lines of a sender; a frame for one more receiver stays with it. A line is looked for among so many.
const LINES_MAX: usize = 128;
const NONE: u32 = u32::MAX;

/// From whom to whom: what is in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey {
    /// The port of the sender.
    pub from: Port,
    /// The port that the receiver is behind.
    pub to: Port,
    /// Traffic class.
    pub priority: Priority,
    /// The receiver's station.
    pub destination: Station,
    /// The sender's.
    pub source: Station,
    /// Which part of the receiver, where it takes frames for some and not for others: as the port that it is behind counts them.
    pub part: u64,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    key: QueueKey,
    head: u32,
    tail: u32,
    len: u32,
}

/// What waits of a sender.
#[derive(Clone, Debug, Default)]
struct Input {
    /// The ports that it waits for, one bit each.
    to: u64,
    lines: Vec<u32>,
    frames: u32,
}

/// All lines of a switch.
#[derive(Clone, Debug)]
pub(super) struct Lines<F> {
    inputs: Vec<Input>,
    lines: Vec<Line>,
    free_lines: Vec<u32>,
    /// Whose turn it is, and who had one in this round.
    turn: VecDeque<u32>,
    served: Vec<u32>,
    /// Frames and their successors in a line.
    frames: Vec<(F, u32)>,
    free_frames: u32,
    waiting: u32,
}

impl<F: Copy> Lines<F> {
    pub fn new(ports: usize) -> Lines<F> {
        Lines {
            inputs: alloc::vec![Input::default(); ports],
            lines: Vec::new(),
            free_lines: Vec::new(),
            turn: VecDeque::new(),
            served: Vec::new(),
            frames: Vec::new(),
            free_frames: NONE,
            waiting: 0,
        }
    }

    /// Frames in all of them.
    pub fn len(&self) -> u32 {
        self.waiting
    }

    /// The ports for which frames of port `j` wait, one bit each.
    #[inline(always)]
    pub fn of(&self, j: Port) -> u64 {
        self.inputs[j].to
    }

    /// Frames of class `p` of port `j`.
    pub fn input_len(&self, j: Port, p: Priority) -> u32 {
        let lines = self.inputs[j].lines.iter().map(|&at| &self.lines[at as usize]);
        lines.filter(|line| line.key.priority == p).map(|line| line.len).sum()
    }

    fn find(&self, key: &QueueKey) -> Option<u32> {
        self.inputs[key.from].lines.iter().copied().find(|&at| self.lines[at as usize].key == *key)
    }

    /// Whether a frame has others to wait for.
    pub fn has(&self, key: &QueueKey) -> bool {
        self.of(key.from) >> key.to & 1 != 0 && self.find(key).is_some()
    }

    /// A frame waits behind those of its line, where that has not its part of the sender's `places`; whether it does.
    pub fn push(&mut self, key: QueueKey, frame: F, places: u32) -> bool {
        let free = places.saturating_sub(self.inputs[key.from].frames);
        let at = self.find(&key);
        if at.map_or(0, |at| self.lines[at as usize].len) >= share::part(places, free) {
            return false;
        }
        let at = match at {
            Some(at) => at,
            None if self.inputs[key.from].lines.len() >= LINES_MAX => return false,
            None => self.begin(key),
        };
        let frame = self.store(frame);
        let line = &mut self.lines[at as usize];
        if line.len == 0 {
            line.head = frame;
        } else {
            self.frames[line.tail as usize].1 = frame;
        }
        line.tail = frame;
        line.len += 1;
        self.count(key.from, 1);
        true
    }

    fn begin(&mut self, key: QueueKey) -> u32 {
        let line = Line { key, head: NONE, tail: NONE, len: 0 };
        let at = match self.free_lines.pop() {
            Some(at) => {
                self.lines[at as usize] = line;
                at
            }
            None => {
                self.lines.push(line);
                self.lines.len() as u32 - 1
            }
        };
        self.inputs[key.from].lines.push(at);
        self.inputs[key.from].to |= 1 << key.to;
        self.turn.push_back(at);
        at
    }

    fn end(&mut self, at: u32) {
        let QueueKey { from, to, .. } = self.lines[at as usize].key;
        let Lines { inputs, lines, .. } = self;
        let input = &mut inputs[from];
        input.lines.retain(|&other| other != at);
        if !input.lines.iter().any(|&other| lines[other as usize].key.to == to) {
            input.to &= !(1 << to);
        }
        self.free_lines.push(at);
    }

    fn count(&mut self, j: Port, by: i32) {
        let frames = &mut self.inputs[j].frames;
        *frames = frames.wrapping_add_signed(by);
        self.waiting = self.waiting.wrapping_add_signed(by);
    }

    fn store(&mut self, frame: F) -> u32 {
        if self.free_frames == NONE {
            self.frames.push((frame, NONE));
            return self.frames.len() as u32 - 1;
        }
        let at = self.free_frames;
        let place = &mut self.frames[at as usize];
        self.free_frames = place.1;
        *place = (frame, NONE);
        at
    }

    /// A round in which each line has its turn; how many that are.
    pub fn begin_round(&self) -> usize {
        self.turn.len()
    }

    /// The first frame of the line whose turn it is.
    pub fn front(&self) -> Option<(QueueKey, F)> {
        let line = &self.lines[*self.turn.front()? as usize];
        (line.len > 0).then(|| (line.key, self.frames[line.head as usize].0))
    }

    /// It goes.
    pub fn pop(&mut self) -> Option<F> {
        let at = *self.turn.front()?;
        self.pop_of(at)
    }

    fn pop_of(&mut self, at: u32) -> Option<F> {
        let line = &mut self.lines[at as usize];
        if line.len == 0 {
            return None;
        }
        let (frame, next) = self.frames[line.head as usize];
        self.frames[line.head as usize].1 = self.free_frames;
        self.free_frames = line.head;
        (line.head, line.len) = (next, line.len - 1);
        let from = line.key.from;
        self.count(from, -1);
        Some(frame)
    }

    /// It is the next line's turn: of the one that had it frames went, or none did.
    pub fn next(&mut self, went: bool) {
        let Some(at) = self.turn.pop_front() else { return };
        if self.lines[at as usize].len == 0 {
            self.end(at);
        } else if went {
            self.served.push(at);
        } else {
            self.turn.push_back(at);
        }
    }

    /// The round is over: who was served comes after who was not.
    pub fn end_round(&mut self) {
        self.turn.extend(self.served.drain(..));
    }

    /// Gives up what waits for port `k`, between two rounds.
    pub fn drain(&mut self, k: Port, given_up: &mut impl FnMut(F)) {
        for _ in 0..self.turn.len() {
            let Some(at) = self.turn.pop_front() else { return };
            if self.lines[at as usize].key.to != k {
                self.turn.push_back(at);
                continue;
            }
            while let Some(frame) = self.pop_of(at) {
                given_up(frame);
            }
            self.end(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use sluicenet_proto::rng::Rng;

    fn key(from: Port, to: Port, receiver: u8) -> QueueKey {
        let station = |n| Station::new([2, 0, 0, 0, 0, n], 0);
        QueueKey { from, to, priority: 3, destination: station(receiver), source: station(100), part: 0 }
    }

    /// One round: what `admits` lets go, at most `burst` of a line.
    fn round(lines: &mut Lines<u32>, burst: usize, mut admits: impl FnMut(&QueueKey, u32) -> bool) -> Vec<u32> {
        let mut gone = Vec::new();
        for _ in 0..lines.begin_round() {
            let before = gone.len();
            while gone.len() - before < burst
                && let Some((key, frame)) = lines.front()
                && admits(&key, frame)
            {
                assert_eq!(lines.pop(), Some(frame));
                gone.push(frame);
            }
            lines.next(gone.len() > before);
        }
        lines.end_round();
        gone
    }

    #[test]
    fn a_line_has_no_more_than_is_free() {
        let mut lines = Lines::new(4);
        let fill =
            |lines: &mut Lines<u32>, receiver| (0..100).filter(|&f| lines.push(key(0, 1, receiver), f, 32)).count();
        let had: Vec<usize> = (1..=12).map(|receiver| fill(&mut lines, receiver)).collect();
        assert_eq!(had, [12, 6, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(
            (1..=3).map(|receiver| fill(&mut lines, 12 + receiver)).collect::<Vec<_>>(),
            [1, 0, 0],
            "all are taken"
        );
        // Another sender has places of its own.
        assert!(lines.push(key(2, 1, 1), 0, 32));
        // One goes: there is a place for whoever has none.
        let mut one = false;
        assert_eq!(round(&mut lines, 1, |_, _| !core::mem::replace(&mut one, true)), [0]);
        assert!(!lines.push(key(0, 1, 1), 0, 32) && lines.push(key(0, 1, 14), 0, 32));
        assert_eq!((lines.of(0), lines.of(1), lines.of(2), lines.input_len(0, 3)), (2, 0, 2, 32));
    }

    #[test]
    fn so_many_lines_and_no_more() {
        let mut lines = Lines::new(2);
        let more = (0..=255).filter(|&receiver| lines.push(key(0, 1, receiver), 0, 1 << 20)).count();
        assert_eq!(more, LINES_MAX);
        assert!(lines.push(key(0, 1, 0), 1, 1 << 20), "those that are there go on");
        assert_eq!(round(&mut lines, 8, |_, _| true).len(), LINES_MAX + 1);
        assert_eq!((lines.of(0), lines.len(), lines.begin_round()), (0, 0, 0));
    }

    #[test]
    fn senders_to_one_receiver_have_turns() {
        let mut lines = Lines::new(4);
        let mut had = [0; 3];
        for turn in 0..300 {
            for from in 0..3 {
                while lines.push(key(from, 3, 1), from as u32, 8) {}
            }
            // It takes one frame now and then, and another receiver each of the first sender's.
            let _ = lines.push(key(0, 3, 2), 9, 64);
            let mut room = turn % 2;
            for from in round(&mut lines, 4, |key, _| key.destination != key_to(1) || core::mem::take(&mut room) > 0) {
                if from < 3 {
                    had[from as usize] += 1;
                }
            }
        }
        assert_eq!(had, [50, 50, 50]);
    }
    fn key_to(receiver: u8) -> Station {
        key(0, 0, receiver).destination
    }

    #[test]
    fn nothing_is_lost_twice_or_out_of_order_and_none_has_more_than_its_share() {
        const PORTS: usize = 5;
        for seed in 0..40 {
            let mut rng = Rng::from_words(&[seed]);
            let mut lines = Lines::new(PORTS);
            let mut model: BTreeMap<(Port, Port, u8), VecDeque<u32>> = BTreeMap::new();
            let places = 1 + rng.below(40) as u32;
            let mut number = 0;
            for _ in 0..3_000 {
                match rng.below(10) {
                    0..=6 => {
                        let (from, to) = (rng.below(PORTS as u64) as Port, rng.below(PORTS as u64) as Port);
                        let id = (from, to, rng.below(3) as u8);
                        let all: usize = model.iter().filter(|(k, _)| k.0 == from).map(|(_, line)| line.len()).sum();
                        let own = model.get(&id).map_or(0, VecDeque::len);
                        let may = (own as u32) < share::part(places, places - all as u32);
                        assert_eq!(lines.has(&key(id.0, id.1, id.2)), own > 0);
                        assert_eq!(lines.push(key(id.0, id.1, id.2), number, places), may);
                        if may {
                            model.entry(id).or_default().push_back(number);
                            number += 1;
                        }
                    }
                    7 | 8 => {
                        let open = rng.below(1 << PORTS);
                        let mut left = rng.below(20);
                        let burst = 1 + rng.below(8) as usize;
                        round(&mut lines, burst, |key, frame| {
                            let admits = open >> key.to & 1 != 0 && left > 0;
                            if admits {
                                left -= 1;
                                let receiver = (0..3).find(|&n| key_to(n) == key.destination).unwrap();
                                let line = model.get_mut(&(key.from, key.to, receiver)).unwrap();
                                assert_eq!(line.pop_front(), Some(frame), "in order, and each once");
                            }
                            admits
                        });
                    }
                    _ if rng.below(8) == 0 => {
                        let k = rng.below(PORTS as u64) as Port;
                        let mut given_up = Vec::new();
                        lines.drain(k, &mut |frame| given_up.push(frame));
                        let mut expected: Vec<u32> = model
                            .iter()
                            .filter(|(key, _)| key.1 == k)
                            .flat_map(|(_, line)| line.iter().copied())
                            .collect();
                        model.retain(|key, _| key.1 != k);
                        given_up.sort_unstable();
                        expected.sort_unstable();
                        assert_eq!(given_up, expected);
                    }
                    _ => {}
                }
                model.retain(|_, line| !line.is_empty());
                assert_eq!(lines.len() as usize, model.values().map(VecDeque::len).sum::<usize>());
                assert_eq!(lines.begin_round(), model.len());
                for j in 0..PORTS {
                    let to = model.keys().filter(|key| key.0 == j).fold(0, |to, key| to | 1 << key.1);
                    assert_eq!(lines.of(j), to);
                    let waiting: usize = model.iter().filter(|(key, _)| key.0 == j).map(|(_, line)| line.len()).sum();
                    assert_eq!(lines.input_len(j, 3) as usize, waiting);
                }
            }
        }
    }
}
