//! The virtual switch of zOVN and its lossy twin (Crisan 2014, Algorithm 4.1).
//!
//! Every port has an input queue for frames from its VM (or the wire) and an output queue for frames to it.
//! A sender *pushes*: it enqueues and runs the forwarder, and sleeps when its input queue is full. A receiver *pulls*:
//! it dequeues, and when its output queue is empty runs the forwarder of every input before it sleeps. The forwarder
//! moves a frame only into an output queue with room; in the lossy twin it drops the frame instead, under a name.
//!
//! Inside an input queue frames are kept by destination, so that the forwarder finds movable frames without visiting
//! blocked ones. The same frames move in the same order as in a scan of the whole queue.

use crate::loss::Full;
use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

    /// Of an empty list only the length counts.
    fn of([head, tail, len]: [u32; 3]) -> List {
        List { head, tail, len }
    }

    fn numbers(self) -> [u32; 3] {
        [self.head, self.tail, self.len]
    }
}

/// The ports to wake after a call, one bit each; ports beyond the 64th are not named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// Senders whose input queue has room again.
    pub senders: u64,
    /// Sleeping receivers that have a frame now.
    pub receivers: u64,
}

/// A port.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Port<F> {
    /// Number of outputs for which frames wait at this port's input.
    waits_for: u32,
    input_len: u32,
    /// Frames in this port's output queue.
    output_len: u32,
    /// The first frame of the output queue, which is seldom longer.
    first: Option<F>,
    /// The other frames of the output queue.
    others: List,
    /// Input at which this port's output starts the next pull, so that no port is always first.
    turn: u16,
    /// Whether a full output queue holds frames back.
    lossless: bool,
    /// Whether its sender waits for room, and its receiver for a frame.
    sender_sleeps: bool,
    receiver_sleeps: bool,
}

/// A lossless or lossy switch between the ports of one server. The fields that every frame touches come first.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct VSwitch<F> {
    ports: Vec<Port<F>>,
    wakes: Wakes,
    /// Frames and the index of the next frame in the list.
    frames: Vec<(F, u32)>,
    free: u32,
    queued: u32,
    slots: u32,
    /// Number of inputs with frames that wait for a full output.
    waiting_inputs: u32,
    /// The outputs for which frames wait at input `j`, one bit each, in `words` words from `j * words`.
    rows: Vec<u64>,
    words: usize,
    /// Frames waiting at input `j` for output `k`, at `j * ports + k`.
    waiting: Waiting,
}

/// The lists of all pairs of ports, as head, tail and length. With many ports most of them are never used: their memory
/// is all zeros, which the system provides when it is touched.
type Waiting = Vec<[u32; 3]>;

impl<F: Copy> VSwitch<F> {
    /// A switch of `ports` (1 to 65,535) with `slots` frames in each queue.
    pub fn new(ports: usize, slots: u32, lossless: bool) -> VSwitch<F> {
        VSwitch::with(ports, slots, |_| lossless)
    }

    /// Like [`VSwitch::new`] for at most 64 ports, with one bit for each lossless output.
    pub fn mixed(ports: usize, slots: u32, lossless: u64) -> VSwitch<F> {
        assert!(ports <= 64);
        VSwitch::with(ports, slots, |k| lossless >> k & 1 != 0)
    }

    fn with(ports: usize, slots: u32, lossless: impl Fn(usize) -> bool) -> VSwitch<F> {
        assert!((1..=usize::from(u16::MAX)).contains(&ports) && slots > 0);
        let port = |k| Port {
            waits_for: 0,
            input_len: 0,
            output_len: 0,
            first: None,
            others: List::EMPTY,
            turn: 0,
            lossless: lossless(k),
            sender_sleeps: false,
            receiver_sleeps: false,
        };
        let words = ports.div_ceil(64);
        VSwitch {
            ports: (0..ports).map(port).collect(),
            wakes: Wakes::default(),
            frames: Vec::new(),
            free: NONE,
            queued: 0,
            slots,
            waiting_inputs: 0,
            rows: alloc::vec![0; ports * words],
            words,
            waiting: alloc::vec![[0; 3]; ports * ports],
        }
    }

    /// Free slots of input queue `j`.
    #[inline]
    pub fn input_room(&self, j: usize) -> u32 {
        self.slots - self.ports[j].input_len
    }
    /// Frames in output queue `k`.
    #[inline]
    pub fn output_len(&self, k: usize) -> u32 {
        self.ports[k].output_len
    }
    /// The outputs that frames at input `j` wait for: bit `k % 64` of word `k / 64`.
    pub fn waits_for(&self, j: usize) -> &[u64] {
        &self.rows[j * self.words..][..self.words]
    }
    /// Frames in the switch.
    pub fn queued(&self) -> u32 {
        self.queued
    }

    /// Algorithm 4.1, *send*: port `j` offers a frame for port `k`.
    ///
    /// Lossless: `Err(Full)` hands the frame back when the input queue is full; the sender sleeps and
    /// [`VSwitch::take_wakes`] names it when there is room. Lossy: the frame that finds output queue `k` full is
    /// handed to `dropped`.
    #[inline]
    pub fn send(&mut self, j: usize, k: usize, frame: F, dropped: &mut impl FnMut(usize, F)) -> Result<(), Full<F>> {
        if self.ports[j].waits_for == 0 && self.ports[k].output_len < self.slots {
            // No frame waits before this one and there is room: the forwarder would move it at once.
            self.enter_output(k, frame);
            return Ok(());
        }
        self.send_and_wait(j, k, frame, dropped)
    }

    /// Whether a frame that is sent to port `k` would be received at once: the receiver sleeps, and no frame waits for
    /// any port. A caller of both sides may hand the frame over directly: sending and receiving it would leave the
    /// switch as it is.
    #[inline(always)]
    pub fn is_passable(&self, k: usize) -> bool {
        self.waiting_inputs == 0 && self.ports[k].receiver_sleeps
    }

    #[inline(never)]
    fn send_and_wait(
        &mut self,
        j: usize,
        k: usize,
        frame: F,
        dropped: &mut impl FnMut(usize, F),
    ) -> Result<(), Full<F>> {
        if self.ports[j].input_len >= self.slots {
            self.ports[j].sender_sleeps = true;
            return Err(Full(frame));
        }
        let at = self.store(frame);
        let list = &mut self.waiting[j * self.ports.len() + k];
        let mut waiting = List::of(*list);
        push(&mut waiting, &mut self.frames, at);
        *list = waiting.numbers();
        self.queued += 1;
        let port = &mut self.ports[j];
        port.input_len += 1;
        let word = &mut self.rows[j * self.words + k / 64];
        if *word >> (k % 64) & 1 == 0 {
            *word |= 1 << (k % 64);
            self.waiting_inputs += u32::from(port.waits_for == 0);
            port.waits_for += 1;
        }
        self.forward(j, dropped);
        Ok(())
    }

    /// Offers a copy of a flooded frame: it enters output queue `k` now or not at all, so that it stalls no port.
    pub fn offer(&mut self, k: usize, frame: F) -> Result<(), Full<F>> {
        // Frames waiting at an input for `k` came first.
        if self.ports[k].output_len >= self.slots || self.has_waiting_inputs(k) {
            return Err(Full(frame));
        }
        self.enter_output(k, frame);
        Ok(())
    }

    /// Whether frames wait at an input for output `k`.
    pub fn has_waiting_inputs(&self, k: usize) -> bool {
        self.waiting_inputs != 0 && self.is_waited_for(k)
    }

    /// Removes all frames queued for port `k`.
    pub fn drain(&mut self, k: usize, given_up: &mut impl FnMut(F)) {
        while let Some(frame) = self.leave_output(k) {
            given_up(frame);
        }
        // The output stays empty, so each waiting frame moves there and is removed.
        for j in 0..self.ports.len() {
            while let Some(moved) = self.forward_one(j, k) {
                debug_assert!(moved.is_none());
                self.leave_output(k).into_iter().for_each(&mut *given_up);
            }
        }
    }

    #[inline(never)]
    fn is_waited_for(&self, k: usize) -> bool {
        self.rows.iter().skip(k / 64).step_by(self.words).any(|row| row >> (k % 64) & 1 != 0)
    }

    /// Algorithm 4.1, *receive*: port `k` takes its next frame; `None` puts it to sleep.
    #[inline]
    pub fn receive(&mut self, k: usize, dropped: &mut impl FnMut(usize, F)) -> Option<F> {
        let frame = self.leave_output(k);
        if frame.is_some() {
            return frame;
        }
        if self.waiting_inputs == 0 {
            // There is nothing to pull.
            self.next_turn(k);
            self.ports[k].receiver_sleeps = true;
            return None;
        }
        self.receive_by_pull(k, dropped)
    }

    #[inline(never)]
    fn receive_by_pull(&mut self, k: usize, dropped: &mut impl FnMut(usize, F)) -> Option<F> {
        self.pull(k, dropped);
        let frame = self.leave_output(k);
        self.ports[k].receiver_sleeps |= frame.is_none();
        frame
    }

    /// The next frame that port `k` would receive, without removing it.
    pub fn front(&mut self, k: usize, dropped: &mut impl FnMut(usize, F)) -> Option<F> {
        if self.ports[k].output_len == 0 {
            self.pull(k, dropped);
        }
        self.ports[k].first
    }

    /// Puts port `k` to sleep if no frame waits for it, as an empty receive does. Returns whether it sleeps.
    #[inline]
    pub fn sleep_if_empty(&mut self, k: usize) -> bool {
        let empty = !self.has_frame_for(k);
        self.ports[k].receiver_sleeps |= empty;
        empty
    }

    /// Whether port `k` would receive a frame now.
    #[inline]
    pub fn has_frame_for(&self, k: usize) -> bool {
        self.ports[k].output_len > 0 || self.waiting_inputs != 0 && self.is_waited_for(k)
    }

    /// Whether a port was woken since [`VSwitch::take_wakes`].
    #[inline(always)]
    pub fn has_wakes(&self) -> bool {
        self.wakes.receivers | self.wakes.senders != 0
    }

    /// The ports woken since the last call.
    #[inline]
    pub fn take_wakes(&mut self) -> Wakes {
        core::mem::take(&mut self.wakes)
    }

    /// The forwarder of input `j`: every output with room takes its waiting frames.
    #[inline(never)]
    fn forward(&mut self, j: usize, dropped: &mut impl FnMut(usize, F)) {
        for word in 0..self.words {
            let mut outputs = self.rows[j * self.words + word];
            while outputs != 0 {
                let k = 64 * word + outputs.trailing_zeros() as usize;
                outputs &= outputs - 1;
                while let Some(moved) = self.forward_one(j, k) {
                    if let Some(frame) = moved {
                        dropped(k, frame);
                    }
                }
            }
        }
    }

    /// Runs the forwarder of every input because output `k` is empty: one frame of each pair of ports in turn.
    #[inline]
    fn pull(&mut self, k: usize, dropped: &mut impl FnMut(usize, F)) {
        let first = self.next_turn(k);
        if self.waiting_inputs != 0 {
            self.pull_from(first, dropped);
        }
    }

    /// The input at which output `k` starts its pull.
    #[inline(always)]
    fn next_turn(&mut self, k: usize) -> usize {
        let ports = self.ports.len();
        let turn = &mut self.ports[k].turn;
        let first = usize::from(*turn);
        *turn = if first + 1 < ports { first as u16 + 1 } else { 0 };
        first
    }

    #[inline(never)]
    fn pull_from(&mut self, first: usize, dropped: &mut impl FnMut(usize, F)) {
        let mut moved_any = true;
        while moved_any {
            moved_any = false;
            for i in 0..self.ports.len() {
                let j = (first + i) % self.ports.len();
                if self.ports[j].waits_for == 0 {
                    continue;
                }
                for word in 0..self.words {
                    let mut outputs = self.rows[j * self.words + word];
                    while outputs != 0 {
                        let k = 64 * word + outputs.trailing_zeros() as usize;
                        outputs &= outputs - 1;
                        if let Some(moved) = self.forward_one(j, k) {
                            moved_any = true;
                            if let Some(frame) = moved {
                                dropped(k, frame);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Moves one frame from input `j` to output `k`: `None` if none can move, `Some(Some(frame))` if the frame was dropped
    /// for lack of room.
    #[inline]
    fn forward_one(&mut self, j: usize, k: usize) -> Option<Option<F>> {
        let full = self.ports[k].output_len >= self.slots;
        if full && self.ports[k].lossless {
            return None;
        }
        let list = &mut self.waiting[j * self.ports.len() + k];
        let mut waiting = List::of(*list);
        let at = pop(&mut waiting, &self.frames)?;
        *list = waiting.numbers();
        let port = &mut self.ports[j];
        if waiting.len == 0 {
            self.rows[j * self.words + k / 64] &= !(1 << (k % 64));
            port.waits_for -= 1;
            self.waiting_inputs -= u32::from(port.waits_for == 0);
        }
        self.queued -= 1;
        port.input_len -= 1;
        if core::mem::take(&mut port.sender_sleeps) {
            self.wakes.senders |= bit(j);
        }
        let frame = self.take(at);
        if full {
            return Some(Some(frame));
        }
        self.enter_output(k, frame);
        Some(None)
    }

    #[inline(always)]
    fn enter_output(&mut self, k: usize, frame: F) {
        let port = &mut self.ports[k];
        port.output_len += 1;
        self.queued += 1;
        if port.first.is_none() {
            port.first = Some(frame);
        } else {
            self.enter_others(k, frame);
        }
        if self.ports[k].receiver_sleeps {
            self.ports[k].receiver_sleeps = false;
            self.wakes.receivers |= bit(k);
        }
    }

    #[inline(never)]
    fn enter_others(&mut self, k: usize, frame: F) {
        let at = self.store(frame);
        push(&mut self.ports[k].others, &mut self.frames, at);
    }

    #[inline(always)]
    fn leave_output(&mut self, k: usize) -> Option<F> {
        let port = &mut self.ports[k];
        let frame = port.first.take()?;
        port.output_len -= 1;
        self.queued -= 1;
        if port.output_len > 0 {
            self.move_up(k);
        }
        Some(frame)
    }

    #[inline(never)]
    fn move_up(&mut self, k: usize) {
        if let Some(at) = pop(&mut self.ports[k].others, &self.frames) {
            let frame = self.take(at);
            self.ports[k].first = Some(frame);
        }
    }

    fn store(&mut self, frame: F) -> u32 {
        if self.free != NONE {
            let at = self.free;
            let slot = &mut self.frames[at as usize];
            self.free = slot.1;
            slot.0 = frame;
            at
        } else {
            self.frames.push((frame, NONE));
            self.frames.len() as u32 - 1
        }
    }

    fn take(&mut self, at: u32) -> F {
        let slot = &mut self.frames[at as usize];
        slot.1 = self.free;
        self.free = at;
        slot.0
    }
}

/// The bit of a port in [`Wakes`].
fn bit(k: usize) -> u64 {
    if k < 64 { 1 << k } else { 0 }
}

#[inline]
fn push<F>(list: &mut List, frames: &mut [(F, u32)], at: u32) {
    frames[at as usize].1 = NONE;
    if list.len == 0 {
        list.head = at;
    } else {
        frames[list.tail as usize].1 = at;
    }
    list.tail = at;
    list.len += 1;
}

#[inline]
fn pop<F>(list: &mut List, frames: &[(F, u32)]) -> Option<u32> {
    if list.len == 0 {
        return None;
    }
    let at = list.head;
    list.head = frames[at as usize].1;
    list.len -= 1;
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use alloc::collections::VecDeque;

    fn no_drop(_: usize, _: u32) {
        panic!("a lossless switch dropped a frame")
    }

    #[test]
    fn a_frame_that_passes_leaves_the_switch_as_it_is() {
        let mut rng = Rng::from_words(&[7]);
        let mut passed = 0;
        for lossless in [false, true] {
            let mut s = VSwitch::new(4, 2, lossless);
            for frame in 0..20_000u32 {
                let (j, k) = (rng.below(4) as usize, rng.below(4) as usize);
                if rng.below(2) == 0 {
                    if s.receive(k, &mut |_, _| ()).is_some() {
                        s.sleep_if_empty(k);
                    }
                    s.take_wakes();
                } else if s.is_passable(k) {
                    let before = alloc::format!("{s:?}");
                    s.send(j, k, frame, &mut |_, _| unreachable!()).unwrap();
                    assert_eq!(s.receive(k, &mut |_, _| unreachable!()), Some(frame));
                    assert!(s.sleep_if_empty(k));
                    assert_eq!(s.take_wakes(), Wakes { senders: 0, receivers: 1 << k });
                    assert_eq!(alloc::format!("{s:?}"), before);
                    passed += 1;
                } else {
                    let _ = s.send(j, k, frame, &mut |_, _| ());
                }
            }
        }
        assert!(passed > 1_000, "{passed}");
    }

    #[test]
    fn a_fast_sender_sleeps_and_the_receiver_wakes_it() {
        let mut s = VSwitch::new(2, 2, true);
        for f in 0..4 {
            s.send(0, 1, f, &mut no_drop).unwrap();
        }
        assert_eq!(s.send(0, 1, 4, &mut no_drop), Err(Full(4)));
        assert_eq!((s.output_len(1), s.input_room(0)), (2, 0));
        // The output queue is drained before the next pull, as in the algorithm.
        assert_eq!(s.receive(1, &mut no_drop), Some(0));
        assert_eq!(s.receive(1, &mut no_drop), Some(1));
        assert_eq!(s.take_wakes(), Wakes::default());
        assert_eq!(s.receive(1, &mut no_drop), Some(2));
        assert_eq!(s.take_wakes(), Wakes { senders: 1, receivers: 0 });
    }

    #[test]
    fn a_fast_receiver_sleeps_and_the_sender_wakes_it() {
        let mut s = VSwitch::new(3, 2, true);
        assert_eq!(s.receive(2, &mut no_drop), None);
        s.send(0, 2, 7, &mut no_drop).unwrap();
        assert_eq!(s.take_wakes(), Wakes { senders: 0, receivers: 4 });
        s.send(1, 2, 8, &mut no_drop).unwrap();
        assert_eq!(s.take_wakes(), Wakes::default());
        assert_eq!((s.receive(2, &mut no_drop), s.receive(2, &mut no_drop)), (Some(7), Some(8)));
    }

    #[test]
    fn lossless_and_lossy_outputs_stand_side_by_side() {
        // Inputs 0 and 1 send to output 2, which is lossless, and to output 3, which is lossy.
        let mut s = VSwitch::mixed(4, 2, 1 << 2);
        let mut lost = Vec::new();
        for f in 0..4 {
            s.send(0, 2, f, &mut no_drop).unwrap();
            s.send(1, 3, 10 + f, &mut |k, f| lost.push((k, f))).unwrap();
        }
        assert_eq!((s.input_room(0), s.input_room(1), s.queued()), (0, 2, 6));
        assert_eq!(lost, [(3, 12), (3, 13)]);
        assert_eq!(s.send(0, 2, 4, &mut no_drop), Err(Full(4)));
        let mut took = |k| core::iter::from_fn(|| s.receive(k, &mut no_drop)).collect::<Vec<u32>>();
        assert_eq!((took(2), took(3)), (alloc::vec![0, 1, 2, 3], alloc::vec![10, 11]));
    }

    #[test]
    fn a_stopped_receiver_blocks_only_those_who_send_to_it() {
        let mut s = VSwitch::new(3, 2, true);
        for f in 0..3 {
            s.send(0, 1, f, &mut no_drop).unwrap();
        }
        assert_eq!((s.output_len(1), s.input_room(0)), (2, 1));
        s.send(0, 2, 9, &mut no_drop).unwrap();
        assert_eq!(s.receive(2, &mut no_drop), Some(9));
    }

    #[test]
    fn the_lossy_twin_drops_what_finds_the_output_full() {
        let mut s = VSwitch::new(2, 2, false);
        let mut lost = Vec::new();
        for f in 0..5 {
            s.send(0, 1, f, &mut |k, f| lost.push((k, f))).unwrap();
        }
        assert_eq!(lost, [(1, 2), (1, 3), (1, 4)]);
        assert_eq!(s.queued(), 2);
    }

    /// The algorithm as printed: one FIFO per input, and a forwarder that scans all of it.
    struct Printed {
        slots: usize,
        input: Vec<VecDeque<(usize, u32)>>,
        output: Vec<VecDeque<u32>>,
    }

    impl Printed {
        fn forwarder(&mut self, j: usize) {
            let mut kept = VecDeque::new();
            while let Some((k, f)) = self.input[j].pop_front() {
                if self.output[k].len() < self.slots { self.output[k].push_back(f) } else { kept.push_back((k, f)) }
            }
            self.input[j] = kept;
        }
        fn send(&mut self, j: usize, k: usize, f: u32) -> bool {
            if self.input[j].len() >= self.slots {
                return false;
            }
            self.input[j].push_back((k, f));
            self.forwarder(j);
            true
        }
    }

    #[test]
    fn one_sender_at_a_time_it_moves_frames_as_the_printed_algorithm_does() {
        // With one input the order of the printed loop over inputs cannot matter: the states must agree after each step.
        let mut rng = Rng::from_words(&[41]);
        for case in 0..200 {
            let slots = 1 + rng.below(6) as usize;
            let mut s = VSwitch::new(4, slots as u32, true);
            let mut p =
                Printed { slots, input: alloc::vec![VecDeque::new(); 4], output: alloc::vec![VecDeque::new(); 4] };
            for f in 0..300 {
                let k = 1 + rng.below(3) as usize;
                if rng.below(2) == 0 {
                    assert_eq!(s.send(0, k, f, &mut no_drop).is_ok(), p.send(0, k, f), "case {case}");
                } else {
                    if p.output[k].is_empty() {
                        p.forwarder(0);
                    }
                    assert_eq!(s.receive(k, &mut no_drop), p.output[k].pop_front(), "case {case}");
                }
                assert_eq!(s.input_room(0) as usize, slots - p.input[0].len());
            }
        }
    }

    #[test]
    fn nothing_is_lost_twice_or_out_of_order_between_two_ports() {
        let mut rng = Rng::from_words(&[42]);
        for case in 0..120 {
            let (ports, slots) = (2 + rng.below(5) as usize, 1 + rng.below(8) as u32);
            // Some of the switches have hundreds of ports, of which a few are used.
            let ports = if case < 100 { ports } else { 64 + rng.below(400) as usize };
            let used: Vec<usize> = (0..ports.min(6)).map(|i| i * (ports - 1) / 5.min(ports - 1)).collect();
            let mut s = VSwitch::new(ports, slots, true);
            let mut sent = alloc::vec![0u32; ports * ports];
            let mut seen = sent.clone();
            for _ in 0..2_000 {
                let mut one = || used[rng.below(used.len() as u64) as usize];
                let (j, k) = (one(), one());
                if rng.below(2) == 0 {
                    let n = sent[j * ports + k];
                    let frame = ((j as u32) << 16) | n;
                    sent[j * ports + k] += s.send(j, k, frame, &mut no_drop).is_ok() as u32;
                } else if let Some(frame) = s.receive(k, &mut no_drop) {
                    let j = (frame >> 16) as usize;
                    assert_eq!(frame & 0xffff, seen[j * ports + k]);
                    seen[j * ports + k] += 1;
                }
                let waits = used.iter().map(|&j| s.waits_for(j).iter().map(|word| word.count_ones()).sum::<u32>());
                assert!(waits.eq(used.iter().map(|&j| s.ports[j].waits_for)));
            }
            for k in 0..ports {
                while let Some(frame) = s.receive(k, &mut no_drop) {
                    seen[(frame >> 16) as usize * ports + k] += 1;
                }
            }
            assert_eq!(sent, seen);
            assert_eq!((s.queued(), s.waiting_inputs), (0, 0));
        }
    }

    #[test]
    fn the_front_is_what_is_received_next() {
        let mut rng = Rng::from_words(&[43]);
        let mut s = VSwitch::new(4, 2, true);
        let mut received = 0;
        for f in 0..5_000 {
            let (j, k) = (rng.below(4) as usize, rng.below(4) as usize);
            let _ = s.send(j, k, f, &mut no_drop);
            let k = rng.below(4) as usize;
            let front = s.front(k, &mut no_drop);
            let queued = s.queued();
            assert_eq!(s.front(k, &mut no_drop), front);
            if rng.below(2) == 0 {
                assert_eq!(s.receive(k, &mut no_drop), front);
                assert_eq!(s.queued(), queued - u32::from(front.is_some()));
                received += u32::from(front.is_some());
            }
        }
        assert!(received > 1_000);
    }

    #[test]
    fn a_copy_of_a_flood_goes_now_or_not_at_all() {
        let mut s = VSwitch::new(3, 2, true);
        for f in 0..3 {
            s.send(0, 1, f, &mut no_drop).unwrap();
        }
        assert_eq!((s.offer(1, 8), s.offer(2, 9)), (Err(Full(8)), Ok(())));
        // Frames that wait have precedence.
        assert_eq!(s.receive(1, &mut no_drop), Some(0));
        assert_eq!(s.offer(1, 8), Err(Full(8)));
        assert_eq!([1, 1, 1].map(|k| s.receive(k, &mut no_drop)), [Some(1), Some(2), None]);
        assert_eq!(s.offer(1, 8), Ok(()));
        assert_eq!(s.receive(1, &mut no_drop), Some(8));
    }

    #[test]
    fn a_port_that_is_given_up_holds_nothing_and_nobody() {
        for lossless in [true, false] {
            let mut s = VSwitch::new(4, 2, lossless);
            let mut lost = Vec::new();
            s.send(0, 1, 99, &mut no_drop).unwrap();
            for f in 0..4 {
                for j in 0..3 {
                    let _ = s.send(j, 3, f, &mut |_, f| lost.push(f));
                }
            }
            let queued = s.queued();
            let mut given_up = Vec::new();
            s.drain(3, &mut |f| given_up.push(f));
            assert_eq!((given_up.len() as u32, s.queued()), (queued - 1, 1));
            assert!((0..3).all(|j| s.input_room(j) == 2));
            assert_eq!(s.receive(1, &mut no_drop), Some(99));
        }
    }
}
