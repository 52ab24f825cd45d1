//! The way of a frame through a program: into its lane, and out of it when there is an answer.

use super::super::deliver::Delivered;
use super::super::frame::WIRE_OVERHEAD;
use super::super::round::{Broken, copy_start, report_forwarded};
use super::super::{Bump, Frame, Queues};
use super::lane::{Answer, OWN_SLOTS, SLOTS};
use super::{FRAME_MAX, Kind, Pending, Programs, Running, Work};
use crate::port::{Candidate, Descriptor, Offload, Segmentation};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::netbump::{App, Packet, QueueId, Verdict};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ethernet::{HEADER_LEN, MIN_LEN};
use sluicenet_wire::ipv4::Ecn;
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};

/// The outcome for a frame that might be for a program.
pub(in super::super) enum Entered {
    /// It passes without the program: it has no virtual queue.
    Unseen,
    /// It passes without the program of this lane, which does not run.
    Bypasses(usize),
    /// It is in the lane, or dropped, or waits.
    Decided(Delivered),
}

/// The frames of one buffer on their way into a lane.
struct Way<'a, T> {
    programs: &'a mut Programs,
    lane: usize,
    queues: &'a mut T,
    now: Instant,
    from: usize,
    mapped: Option<QueueId>,
    is_counted: bool,
    was_marked: bool,
}

impl<A: App<Frame>, T: Queues<A::State>> Bump<A, T> {
    /// Gives a frame to the program, if it is for it.
    pub(in super::super) fn offer(
        &mut self,
        now: Instant,
        from: usize,
        shown: Descriptor,
        offload: &Offload,
    ) -> Entered {
        let Some(mut programs) = self.programs.take() else { return Entered::Unseen };
        let outcome = self.enter(&mut programs, now, from, shown, offload);
        if matches!(programs.kind, Kind::Fast(_)) {
            self.send_own_of(&mut programs, 0, now);
            if let Err(Broken(end)) = self.serve_lane(&mut programs, 0, now) {
                self.broken(end);
            }
        }
        self.programs = Some(programs);
        outcome
    }

    /// Counts a frame that has passed without the program of a lane.
    pub(in super::super) fn count_bypassed(&mut self, lane: usize, delivered: &Delivered) {
        if let (Some(programs), Delivered::Done) = (&mut self.programs, delivered) {
            programs.lanes[lane].counts.bypassed += 1;
        }
    }

    fn enter(
        &mut self,
        programs: &mut Programs,
        now: Instant,
        from: usize,
        shown: Descriptor,
        offload: &Offload,
    ) -> Entered {
        let is_notification = self.frame.is_notification();
        let map = &self.maps[if is_notification { from ^ 1 } else { from }];
        let mapped = map.queue_of(self.frame.destination()).filter(|&id| usize::from(id) < self.queues.count());
        let Some(n) = programs.lane(now, mapped) else { return Entered::Unseen };
        let lane = &mut programs.lanes[n];
        // A frame in the lane of all frames is not without a queue before the program has chosen.
        let queue = mapped.or(Some(0));
        let dropped = (Verdict::Drop(DropReason::Extension), queue);
        match (&lane.running, &programs.kind) {
            // While the output has no room for what was decided, the next frame stays in its port.
            (Running::Here, _) if !lane.pending.is_empty() => return Entered::Decided(Delivered::Later),
            (Running::Here | Running::Ready { .. }, _) => {}
            // The frames of the lane go first.
            _ if !lane.pending.is_empty() => return Entered::Decided(Delivered::Later),
            (_, Kind::Safe(safe)) if safe.block => {
                lane.counts.blocked += 1;
                self.finish(from, shown, dropped);
                return Entered::Decided(Delivered::Done);
            }
            _ => return Entered::Bypasses(n),
        }
        let segments = offload.segments(shown.len) as usize;
        if lane.room() < segments {
            let is_answered = match &mut lane.running {
                Running::Ready { memory, .. } => matches!(memory.peek(), Ok(Some(_))),
                _ => false,
            };
            // It is the output that has no room; or the program is too slow.
            if is_answered && segments <= SLOTS as usize {
                return Entered::Decided(Delivered::Later);
            }
            lane.counts.overrun += 1;
            self.finish(from, shown, dropped);
            return Entered::Decided(Delivered::Done);
        }
        let half = self.scratch.len() / 2;
        let (bytes, segment) = self.scratch.split_at_mut(half);
        let bytes = &mut bytes[..shown.len as usize];
        let Some(port) = &self.ends[from].port else { return Entered::Decided(Delivered::Later) };
        port.get().read(shown.buffer, bytes);
        let known = self.frame.bytes();
        bytes[..known.len()].copy_from_slice(known);
        let was_marked = self.frame.ecn() == Ecn::Ce;
        let is_counted = !is_notification;
        let queues = &mut self.queues;
        let mut way = Way { programs, lane: n, queues, now, from, mapped, is_counted, was_marked };
        let decided = match way.put_all::<A::State>(bytes, segment, offload) {
            Ok(frames) => {
                self.ends[from].counts.split += frames as u64 - 1;
                (Verdict::Forward, queue)
            }
            Err(reason) => (Verdict::Drop(reason), queue),
        };
        self.finish(from, shown, decided);
        Entered::Decided(Delivered::Done)
    }

    /// Delivers the frames whose answers have come, and watches over the processes; returns the number of frames that moved.
    pub(in super::super) fn serve_programs(&mut self, now: Instant) -> usize {
        let Some(mut programs) = self.programs.take() else { return 0 };
        let mut moved = 0;
        for n in 0..programs.lanes.len() {
            self.send_own_of(&mut programs, n, now);
            match self.serve_lane(&mut programs, n, now) {
                Ok(frames) => moved += frames,
                Err(Broken(end)) => self.broken(end),
            }
        }
        programs.watch(now);
        self.programs = Some(programs);
        moved
    }

    /// Sends the frames of the program's own: a bounded number for each frame that it was called with.
    fn send_own_of(&mut self, programs: &mut Programs, n: usize, now: Instant) {
        let Programs { lanes, own, out, .. } = programs;
        let lane = &mut lanes[n];
        let mut at = 0;
        for (port, len) in own.0.drain(..) {
            self.send_own(port.into(), &own.1[at..at + len]);
            at += len;
        }
        own.1.clear();
        for _ in 0..OWN_SLOTS {
            let Running::Ready { memory, .. } = &mut lane.running else { return };
            match memory.next_own(out) {
                Ok(Some((port, len))) => {
                    let fits = usize::from(port) < self.ends.len() && len >= HEADER_LEN && lane.own < OWN_SLOTS;
                    lane.own += u32::from(fits);
                    lane.counts.own_refused += u64::from(!fits);
                    if fits {
                        self.send_own(port.into(), &out[..len]);
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    lane.counts.broke_rules += 1;
                    lane.stop(now, false);
                }
            }
        }
    }

    fn serve_lane(&mut self, programs: &mut Programs, n: usize, now: Instant) -> Result<usize, Broken> {
        let chooses = programs.chooses();
        let Programs { kind, lanes, out, .. } = programs;
        let lane = &mut lanes[n];
        let block = matches!(kind, Kind::Safe(safe) if safe.block);
        let mut moved = 0;
        while let Some(&head) = lane.pending.front() {
            let mut answer = match (&mut lane.running, head.answer) {
                (_, Some(answer)) => answer,
                (Running::Ready { memory, .. }, None) => match memory.peek() {
                    Ok(Some(answer)) => answer,
                    Ok(None) => break,
                    Err(_) => {
                        lane.counts.broke_rules += 1;
                        lane.stop(now, false);
                        continue;
                    }
                },
                // Without its program the frame goes on as it came, or not at all.
                _ if block => Answer { verdict: Verdict::Drop(DropReason::Extension), queue: head.work.mapped, len: 0 },
                _ => Answer { verdict: Verdict::Forward, queue: head.work.mapped, len: head.work.len },
            };
            let runs = matches!(lane.running, Running::Ready { .. });
            if answer.verdict == Verdict::Forward && (answer.len as usize) < HEADER_LEN {
                answer.verdict = Verdict::Drop(DropReason::Extension);
                lane.counts.damaged += 1;
            }
            if answer.verdict == Verdict::Forward {
                let bytes = &mut out[..answer.len as usize];
                match &lane.running {
                    Running::Ready { memory, .. } => memory.read(bytes),
                    _ => bytes.copy_from_slice(&lane.kept[lane.place(0)][..answer.len as usize]),
                }
                match self.give(head.from, bytes)? {
                    Given::Done => {}
                    Given::NoRoom => break,
                    Given::TooLong => answer.verdict = Verdict::Drop(DropReason::TooBig),
                }
            }
            let wire_bytes = u64::from(head.work.wire_bytes);
            let queue = answer.queue.filter(|&id| usize::from(id) < self.queues.count());
            if let Some(id) = queue {
                let mut slot = self.queues.slot(id);
                let late = runs && chooses && head.work.is_counted;
                slot.counts.packets += u64::from(late);
                if late && !matches!(answer.verdict, Verdict::Drop(_)) {
                    slot.queue.arrive(now, wire_bytes);
                }
                match answer.verdict {
                    Verdict::Forward => {
                        let is_marked = self.frame.ecn() == Ecn::Ce;
                        slot.counts.marked += u64::from(is_marked && !head.was_marked);
                    }
                    Verdict::Drop(_) => {
                        slot.counts.dropped += 1;
                        if head.answer.is_none() && !chooses && head.work.is_counted {
                            slot.queue.take_back(now, wire_bytes);
                        }
                    }
                    Verdict::Consume => slot.counts.consumed += 1,
                }
            }
            match answer.verdict {
                Verdict::Forward => report_forwarded(&mut self.updates, now, &self.frame, queue),
                Verdict::Drop(reason) => self.ends[head.from].counts.dropped.count(reason, head.work.len.into()),
                Verdict::Consume => self.ends[head.from].counts.consumed += 1,
            }
            match &mut lane.running {
                Running::Ready { memory, .. } => {
                    memory.advance();
                    lane.counts.called += 1;
                }
                Running::Here => lane.counts.called += 1,
                _ if block => lane.counts.blocked += 1,
                _ => lane.counts.bypassed += 1,
            }
            lane.pending.pop_front();
            (lane.progress, lane.own) = (now, 0);
            moved += 1;
        }
        Ok(moved)
    }

    /// Delivers a frame from a lane, if its output has room. The frame is in `self.frame` then.
    fn give(&mut self, from: usize, bytes: &[u8]) -> Result<Given, Broken> {
        let (to, len) = (from ^ 1, bytes.len() as u32);
        self.frame.read(len, |into| copy_start(bytes, into));
        let priority = self.frame.priority();
        let Some(port) = &mut self.ends[to].port else { return Ok(Given::NoRoom) };
        let port = port.get_mut();
        if len > port.max_frame() {
            return Ok(Given::TooLong);
        }
        let candidate = Candidate { from, domain: 0, priority, len };
        let room = port.takes().contains(priority)
            && port.admits(candidate, &|into| copy_start(bytes, into)).map_err(|_| Broken(to))?
            && port.reserve(len, &Offload::NONE).map_err(|_| Broken(to))?;
        if !room {
            return Ok(Given::NoRoom);
        }
        self.ends[to].give(from, bytes, Offload::NONE, priority);
        Ok(Given::Done)
    }
}

/// What became of a frame from a lane.
enum Given {
    Done,
    NoRoom,
    TooLong,
}

impl<T> Way<'_, T> {
    /// Puts a frame into the lane as it would be on a wire: with its checksums, and cut into its segments. Returns how many
    /// frames that are; there is room for them.
    fn put_all<S>(&mut self, bytes: &mut [u8], segment: &mut [u8], offload: &Offload) -> Result<usize, DropReason>
    where
        T: Queues<S>,
    {
        let (start, offset) = offload.checksum.unwrap_or_default();
        let network = match offload.segmentation {
            Segmentation::None => {
                if bytes.len() > FRAME_MAX {
                    return Err(DropReason::TooBig);
                }
                if offload.checksum.is_some() {
                    finish_checksum(bytes, start.into(), offset.into()).map_err(|_| DropReason::Malformed)?;
                }
                self.put(bytes);
                return Ok(1);
            }
            Segmentation::Tcp4 => Network::V4,
            Segmentation::Tcp6 => Network::V6,
        };
        let cutter = Cutter::new(bytes, network, start.into(), offload.segment.into());
        let cutter = cutter.map_err(|_| DropReason::Malformed)?;
        let count = cutter.count();
        if count > self.programs.lanes[self.lane].room() || cutter.len(0) > FRAME_MAX.min(segment.len()) {
            return Err(DropReason::TooBig);
        }
        for k in 0..count {
            let len = cutter.emit(k, false, segment);
            self.put(&segment[..len]);
        }
        Ok(count)
    }

    fn put<S>(&mut self, bytes: &[u8])
    where
        T: Queues<S>,
    {
        let chooses = self.programs.chooses();
        let Programs { kind, lanes, own, .. } = &mut *self.programs;
        let lane = &mut lanes[self.lane];
        let (now, len) = (self.now, bytes.len() as u32);
        let mut work = Work {
            len,
            wire_bytes: len.max(MIN_LEN as u32) + WIRE_OVERHEAD,
            port: self.from as u16,
            mapped: self.mapped,
            now,
            found_wait: Duration::ZERO,
            is_counted: self.is_counted,
        };
        let place = lane.place(lane.pending.len());
        lane.kept[place.clone()][..bytes.len()].copy_from_slice(bytes);
        if lane.pending.is_empty() {
            (lane.progress, lane.own) = (now, 0);
        }
        let mut answer = None;
        match (kind, &mut lane.running) {
            (Kind::Fast(program), _) => {
                let buffer = &mut lane.kept[place];
                let queue = match chooses {
                    true => program.classify(&work, buffer, self.queues.count()),
                    false => self.mapped,
                };
                answer = Some(match queue {
                    None => Answer { verdict: Verdict::Forward, queue, len },
                    Some(id) => {
                        work.mapped = queue;
                        let mut slot = self.queues.slot(id);
                        slot.counts.packets += u64::from(self.is_counted);
                        let mut send = |port: u16, frame: &[u8]| {
                            let fits = port < 2 && (HEADER_LEN..=FRAME_MAX).contains(&frame.len());
                            let fits = fits && own.0.len() < OWN_SLOTS as usize;
                            if fits {
                                own.0.push((port, frame.len()));
                                own.1.extend_from_slice(frame);
                            }
                            lane.counts.own_refused += u64::from(!fits);
                            fits
                        };
                        let (verdict, len) = program.process(&work, buffer, (id, &mut slot.queue), &mut send);
                        Answer { verdict, queue, len }
                    }
                });
            }
            (Kind::Safe(_), running) => {
                if let (Some(id), false) = (self.mapped, chooses) {
                    let mut slot = self.queues.slot(id);
                    work.found_wait = slot.queue.wait(now);
                    if self.is_counted {
                        slot.queue.arrive(now, work.wire_bytes.into());
                        slot.counts.packets += 1;
                    }
                }
                if let Running::Ready { memory, .. } = running
                    && memory.push(&work, bytes).is_err()
                {
                    lane.counts.broke_rules += 1;
                    lane.stop(now, false);
                }
            }
        }
        lane.pending.push_back(Pending { work, from: self.from, answer, was_marked: self.was_marked });
        lane.next = (lane.next + 1) % SLOTS as usize;
    }
}
