//! Frames that their port does not admit now because of one receiver behind it. Each receiver has a queue, so that a
//! sender to several receivers waits only for the slow one.
//!
//! - A queue keeps the order of its frames.
//! - A queue has at most its [limit](fair_share::limit) of its sender's slots: with any number of queues, another one
//!   finds free slots.
//! - The queue that was served last is last in turn, so that senders to one receiver alternate.

use super::{Port, Ports};
use crate::fair_share;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::overlay::fib::Station;

/// Most queues of a sender; a frame for another receiver stays with the sender. A search for a queue examines at most
/// this many.
const RECEIVER_QUEUES_MAX: usize = 128;
const NONE: u32 = u32::MAX;

/// The name of a receiver queue: all frames in the queue share these properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey {
    /// The port of the sender.
    pub from: Port,
    /// The port in front of the receiver.
    pub to: Port,
    /// Traffic class.
    pub priority: Priority,
    /// The receiver's station.
    pub destination: Station,
    /// The sender's station.
    pub source: Station,
    /// The receiver's part, as its port numbers parts, where the receiver takes frames for some parts and not for others.
    pub part: u64,
}

#[derive(Clone, Copy, Debug)]
struct ReceiverQueue {
    key: QueueKey,
    head: u32,
    tail: u32,
    len: u32,
}

/// Queues of a sender.
#[derive(Clone, Debug, Default)]
struct Input {
    /// The ports for which the sender's frames wait.
    to: Ports,
    queues: Vec<u32>,
    frames: u32,
}

/// All receiver queues of a switch.
#[derive(Clone, Debug)]
pub(super) struct ReceiverQueues<F> {
    inputs: Vec<Input>,
    queues: Vec<ReceiverQueue>,
    free_queues: Vec<u32>,
    /// Queues in the order of their turns. Queues already served in this round are in `served`.
    turn: VecDeque<u32>,
    served: Vec<u32>,
    /// Frames, each with its successor in its queue.
    frames: Vec<(F, u32)>,
    free_frames: u32,
    waiting: u32,
}

impl<F: Copy> ReceiverQueues<F> {
    pub fn new(ports: usize) -> ReceiverQueues<F> {
        ReceiverQueues {
            inputs: alloc::vec![Input::default(); ports],
            queues: Vec::new(),
            free_queues: Vec::new(),
            turn: VecDeque::new(),
            served: Vec::new(),
            frames: Vec::new(),
            free_frames: NONE,
            waiting: 0,
        }
    }

    /// Frames in all queues.
    pub fn len(&self) -> u32 {
        self.waiting
    }

    /// The ports for which frames of port `j` wait.
    pub fn of(&self, j: Port) -> &Ports {
        &self.inputs[j].to
    }

    /// Whether frames of port `j` wait for port `k`.
    #[inline(always)]
    pub fn has_any(&self, j: Port, k: Port) -> bool {
        let input = &self.inputs[j];
        !input.queues.is_empty() && input.to.contains(k)
    }

    /// Frames of class `p` that came from port `j`.
    pub fn input_len(&self, j: Port, p: Priority) -> u32 {
        let queues = self.inputs[j].queues.iter().map(|&at| &self.queues[at as usize]);
        queues.filter(|queue| queue.key.priority == p).map(|queue| queue.len).sum()
    }

    fn find(&self, key: &QueueKey) -> Option<u32> {
        self.inputs[key.from].queues.iter().copied().find(|&at| self.queues[at as usize].key == *key)
    }

    /// Whether the queue of a frame has other frames.
    pub fn has(&self, key: &QueueKey) -> bool {
        self.has_any(key.from, key.to) && self.find(key).is_some()
    }

    /// Puts a frame into its queue, unless the queue has its share of the sender's `slots`. Returns whether the frame
    /// entered.
    pub fn push(&mut self, key: QueueKey, frame: F, slots: u32) -> bool {
        let free = slots.saturating_sub(self.inputs[key.from].frames);
        let at = self.find(&key);
        if at.map_or(0, |at| self.queues[at as usize].len) >= fair_share::limit(slots, free) {
            return false;
        }
        let at = match at {
            Some(at) => at,
            None if self.inputs[key.from].queues.len() >= RECEIVER_QUEUES_MAX => return false,
            None => self.begin(key),
        };
        let frame = self.store(frame);
        let queue = &mut self.queues[at as usize];
        if queue.len == 0 {
            queue.head = frame;
        } else {
            self.frames[queue.tail as usize].1 = frame;
        }
        queue.tail = frame;
        queue.len += 1;
        self.count(key.from, 1);
        true
    }

    fn begin(&mut self, key: QueueKey) -> u32 {
        let queue = ReceiverQueue { key, head: NONE, tail: NONE, len: 0 };
        let at = match self.free_queues.pop() {
            Some(at) => {
                self.queues[at as usize] = queue;
                at
            }
            None => {
                self.queues.push(queue);
                self.queues.len() as u32 - 1
            }
        };
        self.inputs[key.from].queues.push(at);
        self.inputs[key.from].to.insert(key.to);
        self.turn.push_back(at);
        at
    }

    fn end(&mut self, at: u32) {
        let QueueKey { from, to, .. } = self.queues[at as usize].key;
        let ReceiverQueues { inputs, queues, .. } = self;
        let input = &mut inputs[from];
        input.queues.retain(|&other| other != at);
        if !input.queues.iter().any(|&other| queues[other as usize].key.to == to) {
            input.to.remove(to);
        }
        self.free_queues.push(at);
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
        let slot = &mut self.frames[at as usize];
        self.free_frames = slot.1;
        *slot = (frame, NONE);
        at
    }

    /// Number of turns in a round in which each queue has one.
    pub fn begin_round(&self) -> usize {
        self.turn.len()
    }

    /// The first frame of the queue whose turn it is.
    pub fn front(&self) -> Option<(QueueKey, F)> {
        let queue = &self.queues[*self.turn.front()? as usize];
        (queue.len > 0).then(|| (queue.key, self.frames[queue.head as usize].0))
    }

    /// Takes the frame at [`ReceiverQueues::front`] out.
    pub fn pop(&mut self) -> Option<F> {
        let at = *self.turn.front()?;
        self.pop_of(at)
    }

    fn pop_of(&mut self, at: u32) -> Option<F> {
        let queue = &mut self.queues[at as usize];
        if queue.len == 0 {
            return None;
        }
        let (frame, next) = self.frames[queue.head as usize];
        self.frames[queue.head as usize].1 = self.free_frames;
        self.free_frames = queue.head;
        (queue.head, queue.len) = (next, queue.len - 1);
        let from = queue.key.from;
        self.count(from, -1);
        Some(frame)
    }

    /// Gives the turn to the next queue; `went` is whether frames of the current queue left.
    pub fn next(&mut self, went: bool) {
        let Some(at) = self.turn.pop_front() else { return };
        if self.queues[at as usize].len == 0 {
            self.end(at);
        } else if went {
            self.served.push(at);
        } else {
            self.turn.push_back(at);
        }
    }

    /// Ends the round: served queues come after the others.
    pub fn end_round(&mut self) {
        self.turn.extend(self.served.drain(..));
    }

    /// Gives up the frames that wait for port `k`, between two rounds.
    pub fn drain(&mut self, k: Port, given_up: &mut impl FnMut(F)) {
        for _ in 0..self.turn.len() {
            let Some(at) = self.turn.pop_front() else { return };
            if self.queues[at as usize].key.to != k {
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

    /// One round: frames that `admits` accepts leave, at most `burst` of each queue.
    fn round(
        queues: &mut ReceiverQueues<u32>,
        burst: usize,
        mut admits: impl FnMut(&QueueKey, u32) -> bool,
    ) -> Vec<u32> {
        let mut gone = Vec::new();
        for _ in 0..queues.begin_round() {
            let before = gone.len();
            while gone.len() - before < burst
                && let Some((key, frame)) = queues.front()
                && admits(&key, frame)
            {
                assert_eq!(queues.pop(), Some(frame));
                gone.push(frame);
            }
            queues.next(gone.len() > before);
        }
        queues.end_round();
        gone
    }

    #[test]
    fn a_queue_has_no_more_than_is_free() {
        let mut queues = ReceiverQueues::new(4);
        let fill = |queues: &mut ReceiverQueues<u32>, receiver| {
            (0..100).filter(|&f| queues.push(key(0, 1, receiver), f, 32)).count()
        };
        let had: Vec<usize> = (1..=12).map(|receiver| fill(&mut queues, receiver)).collect();
        assert_eq!(had, [12, 6, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(
            (1..=3).map(|receiver| fill(&mut queues, 12 + receiver)).collect::<Vec<_>>(),
            [1, 0, 0],
            "all are taken"
        );
        // Another sender has slots of its own.
        assert!(queues.push(key(2, 1, 1), 0, 32));
        // One frame leaves: there is a slot for a receiver without a queue.
        let mut one = false;
        assert_eq!(round(&mut queues, 1, |_, _| !core::mem::replace(&mut one, true)), [0]);
        assert!(!queues.push(key(0, 1, 1), 0, 32) && queues.push(key(0, 1, 14), 0, 32));
        let to = |from| queues.of(from).iter().collect::<Vec<_>>();
        assert_eq!((to(0), to(1), to(2), queues.input_len(0, 3)), (alloc::vec![1], alloc::vec![], alloc::vec![1], 32));
    }

    #[test]
    fn so_many_queues_and_no_more() {
        let mut queues = ReceiverQueues::new(2);
        let more = (0..=255).filter(|&receiver| queues.push(key(0, 1, receiver), 0, 1 << 20)).count();
        assert_eq!(more, RECEIVER_QUEUES_MAX);
        assert!(queues.push(key(0, 1, 0), 1, 1 << 20), "those that are there go on");
        assert_eq!(round(&mut queues, 8, |_, _| true).len(), RECEIVER_QUEUES_MAX + 1);
        assert_eq!((*queues.of(0), queues.len(), queues.begin_round()), (Ports::NONE, 0, 0));
    }

    #[test]
    fn senders_to_one_receiver_have_turns() {
        let mut queues = ReceiverQueues::new(4);
        let mut had = [0; 3];
        for turn in 0..300 {
            for from in 0..3 {
                while queues.push(key(from, 3, 1), from as u32, 8) {}
            }
            // The slow receiver takes a frame now and then; another receiver takes each frame of the first sender.
            let _ = queues.push(key(0, 3, 2), 9, 64);
            let mut room = turn % 2;
            for from in round(&mut queues, 4, |key, _| key.destination != key_to(1) || core::mem::take(&mut room) > 0) {
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
            let mut queues = ReceiverQueues::new(PORTS);
            let mut model: BTreeMap<(Port, Port, u8), VecDeque<u32>> = BTreeMap::new();
            let slots = 1 + rng.below(40) as u32;
            let mut number = 0;
            for _ in 0..3_000 {
                match rng.below(10) {
                    0..=6 => {
                        let (from, to) = (rng.below(PORTS as u64) as Port, rng.below(PORTS as u64) as Port);
                        let id = (from, to, rng.below(3) as u8);
                        let all: usize = model.iter().filter(|(k, _)| k.0 == from).map(|(_, queue)| queue.len()).sum();
                        let own = model.get(&id).map_or(0, VecDeque::len);
                        let may = (own as u32) < fair_share::limit(slots, slots - all as u32);
                        assert_eq!(queues.has(&key(id.0, id.1, id.2)), own > 0);
                        assert_eq!(queues.push(key(id.0, id.1, id.2), number, slots), may);
                        if may {
                            model.entry(id).or_default().push_back(number);
                            number += 1;
                        }
                    }
                    7 | 8 => {
                        let open = rng.below(1 << PORTS);
                        let mut left = rng.below(20);
                        let burst = 1 + rng.below(8) as usize;
                        round(&mut queues, burst, |key, frame| {
                            let admits = open >> key.to & 1 != 0 && left > 0;
                            if admits {
                                left -= 1;
                                let receiver = (0..3).find(|&n| key_to(n) == key.destination).unwrap();
                                let queue = model.get_mut(&(key.from, key.to, receiver)).unwrap();
                                assert_eq!(queue.pop_front(), Some(frame), "in order, and each once");
                            }
                            admits
                        });
                    }
                    _ if rng.below(8) == 0 => {
                        let k = rng.below(PORTS as u64) as Port;
                        let mut given_up = Vec::new();
                        queues.drain(k, &mut |frame| given_up.push(frame));
                        let mut expected: Vec<u32> = model
                            .iter()
                            .filter(|(key, _)| key.1 == k)
                            .flat_map(|(_, queue)| queue.iter().copied())
                            .collect();
                        model.retain(|key, _| key.1 != k);
                        given_up.sort_unstable();
                        expected.sort_unstable();
                        assert_eq!(given_up, expected);
                    }
                    _ => {}
                }
                model.retain(|_, queue| !queue.is_empty());
                assert_eq!(queues.len() as usize, model.values().map(VecDeque::len).sum::<usize>());
                assert_eq!(queues.begin_round(), model.len());
                for j in 0..PORTS {
                    let to: Ports = model.keys().filter(|key| key.0 == j).map(|key| key.1).collect();
                    assert_eq!(*queues.of(j), to);
                    let waiting: usize = model.iter().filter(|(key, _)| key.0 == j).map(|(_, queue)| queue.len()).sum();
                    assert_eq!(queues.input_len(j, 3) as usize, waiting);
                }
            }
        }
    }
}
