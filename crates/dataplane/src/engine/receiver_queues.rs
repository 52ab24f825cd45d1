//! The switch delivers frames that wait for one receiver behind a port, once that port admits them.

use super::Engine;
use super::attached::{Kind, call};
use super::offer::{Offered, offer};
use super::round::BURST;
use crate::port::{Candidate, Port};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;

impl Engine {
    /// Serves each receiver queue once. Returns the number of frames that moved.
    #[cold]
    pub(super) fn serve_receiver_queues(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        for _ in 0..self.vale.begin_round() {
            let mut went = 0;
            while went < BURST && self.serve_front(now) {
                went += 1;
            }
            self.vale.next_receiver_queue(went > 0);
            moved += went;
        }
        self.vale.end_round();
        Engine::give_back_dropped(&mut self.ports, &mut self.dropped);
        moved
    }

    /// Passes on the first frame of the current queue; returns whether it was passed on.
    fn serve_front(&mut self, now: Instant) -> bool {
        let Engine { vale, ports, dropped, scratch, .. } = self;
        let Some((key, lent)) = vale.front_for_receiver() else { return false };
        let (j, k, priority) = (key.from, key.to, key.priority);
        let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([j, k]) else {
            unreachable!("a frame of nobody, or for nobody")
        };
        let read = |into: &mut [u8]| {
            from.read(lent.buffer, lent.first_bytes, into);
        };
        let candidate = Candidate { from: j, domain: key.destination.domain(), priority, len: lent.len() };
        // A broken receiver is found in its own turn.
        if !call!(&mut to.kind, admits(candidate, &read)).unwrap_or(true) {
            return false;
        }
        if !(matches!(to.kind, Kind::Shm(_)) && from.plain & to.tap.is_none()) {
            let clear = vale.is_clear(k) & to.pace.is_none();
            let reason = match offer(clear, from, to, lent, priority, scratch) {
                Offered::Delivered => None,
                Offered::Never(reason) => Some(reason),
                Offered::NotNow => return self.queue_front(now),
            };
            vale.dequeue_for_receiver();
            match reason {
                None => vale.pass(j, k, 1),
                Some(DropReason::Malformed) => drop(vale.refuse(j, DropReason::Malformed)),
                Some(reason) => drop(vale.turn_away(j, k, reason)),
            }
            dropped.push(lent);
            return true;
        }
        self.queue_front(now)
    }

    /// Moves the first frame of the current queue to the output queue of its port, if there is room.
    fn queue_front(&mut self, now: Instant) -> bool {
        let Engine { vale, dropped, .. } = self;
        let Some((key, lent)) = vale.front_for_receiver() else { return false };
        if !vale.has_room(key.from, key.priority) {
            return false;
        }
        vale.dequeue_for_receiver();
        let queued = vale.queue(now, key.from, key.to, key.priority, lent, &mut |frame| dropped.push(frame));
        debug_assert!(queued.is_ok(), "it has room");
        true
    }
}
