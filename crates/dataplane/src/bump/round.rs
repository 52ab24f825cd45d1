//! A round of the loop: frames of each end go to the other end of their link.

use super::deliver::Delivered;
use super::end::{End, EndCounts, Kind, LLDP_MAX};
use super::frame::LINE;
use super::program::Entered;
use super::{Bump, Flow, Frame, Queues, Updates};
use crate::port::{BrokenPort, Descriptor, Port};
use crate::tap::Direction;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::netbump::{App, Map, Notice, Packet, QueueId, Verdict, pass};
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::{HEADER_LEN, MacAddress};
use sluicenet_wire::qcn;

/// Frames taken from an end before it is the next one's turn.
pub(super) const BURST: usize = 64;

/// The end whose port broke.
pub(super) struct Broken(pub usize);

/// Why a burst ended.
enum Stopped {
    /// It is long enough, or there are notifications to be sent.
    Notices,
    /// There are no more frames.
    Empty,
    /// The receiver has no room.
    Full,
    /// The next frame needs more than the two ports.
    Other,
    /// The port of an end broke.
    Broken(usize),
}

/// The decision about a frame, and the number of its virtual queue.
pub(super) type Decided = (Verdict, Option<QueueId>);

/// The pipeline for a frame from a link; `maps` are those of its end and of the other one.
#[inline(always)]
pub(super) fn pipeline<A: App<Frame>, T: Queues<A::State>>(
    app: &A,
    queues: &mut T,
    maps: (&Map, &Map),
    now: Instant,
    frame: &mut Frame,
    notices: &mut Vec<Notice<Flow>>,
) -> Decided {
    // A notification is about frames that go the other way.
    let map = if frame.is_notification() { maps.1 } else { maps.0 };
    match app.classify(frame, map) {
        Some(queue) if usize::from(queue) < queues.count() => {
            (pass(app, &mut queues.slot(queue), now, frame, notices), Some(queue))
        }
        _ => (Verdict::Forward, None),
    }
}

/// Counts what became of a frame from an end.
#[inline(always)]
pub(super) fn account(counts: &mut EndCounts, len: u32, (verdict, queue): Decided) {
    counts.taken += 1;
    counts.bytes_taken += u64::from(len);
    counts.unmapped += u64::from(queue.is_none());
    match verdict {
        Verdict::Forward => {}
        Verdict::Drop(reason) => counts.dropped.count(reason, len.into()),
        Verdict::Consume => counts.consumed += 1,
    }
}

/// Tells the neighbours what was forwarded.
#[inline(always)]
pub(super) fn report_forwarded(updates: &mut Option<Updates>, now: Instant, frame: &Frame, queue: Option<QueueId>) {
    if let (Some(updates), Some(queue)) = (updates, queue)
        && !frame.is_notification()
    {
        updates.on_forward(now, frame.wire_bytes(), queue);
    }
}

impl<A: App<Frame>, T: Queues<A::State>> Bump<A, T> {
    pub(super) fn one_round(&mut self) -> usize {
        // The time of a frame's arrival is that of its round.
        let now = self.now();
        for end in 0..self.ends.len() {
            let Some(port) = &mut self.ends[end].port else { continue };
            let outcome = match port {
                Kind::Shm(port) => port.on_round(now),
                Kind::Other(port) => port.on_round(now),
            };
            if outcome.is_err() {
                self.broken(end);
            }
        }
        let mut moved = self.serve_programs(now);
        for end in 0..self.ends.len() {
            match self.take_from(now, end) {
                Ok(frames) => moved += frames,
                Err(Broken(end)) => self.broken(end),
            }
        }
        if let Some(programs) = &mut self.programs {
            programs.publish();
        }
        if self.updates.is_some() {
            self.send_updates();
        }
        for end in 0..self.ends.len() {
            let outcome = match &mut self.ends[end].port {
                Some(Kind::Shm(port)) => {
                    port.publish();
                    Ok(())
                }
                Some(Kind::Other(port)) => port.publish(),
                None => Ok(()),
            };
            if outcome.is_err() {
                self.broken(end);
            }
        }
        moved
    }

    /// Takes up to [`BURST`] frames from an end.
    #[inline(always)]
    fn take_from(&mut self, now: Instant, from: usize) -> Result<usize, Broken> {
        let Ok([a, b]) = self.ends.get_disjoint_mut([from, from ^ 1]) else { return Ok(0) };
        let unseen = a.tap.is_none() & b.tap.is_none() & !self.closing & self.programs.is_none();
        match (&a.port, &b.port) {
            (Some(Kind::Shm(_)), Some(Kind::Shm(to))) if unseen && !to.has_full() => self.pass_burst(now, from),
            (Some(_), _) => self.take_slowly(now, from),
            (None, _) => Ok(0),
        }
    }

    /// Frames between two ports in shared memory: each is read once and written once, its first cache line by way of the
    /// pipeline.
    fn pass_burst(&mut self, now: Instant, from: usize) -> Result<usize, Broken> {
        let to = from ^ 1;
        let mut moved = 0;
        while moved < BURST {
            let Bump { app, queues, ends, maps, frame, notices, updates, mac, .. } = self;
            let Ok([a, b]) = ends.get_disjoint_mut([from, to]) else { return Ok(moved) };
            let (Some(Kind::Shm(sender)), Some(Kind::Shm(receiver))) = (&mut a.port, &mut b.port) else {
                return Ok(moved);
            };
            let maps = (&maps[from], &maps[to]);
            // Counted here, where nobody else can look, and not in memory.
            let (mut taken, mut bytes, mut unmapped) = (0u32, 0u64, 0u32);
            let stopped = loop {
                if moved + taken as usize >= BURST || !notices.is_empty() {
                    break Stopped::Notices;
                }
                let shown = match sender.next_frame() {
                    Ok(Some(shown)) => shown,
                    Ok(None) => break Stopped::Empty,
                    Err(BrokenPort) => break Stopped::Broken(from),
                };
                let empty = match receiver.empty_buffer() {
                    Ok(Some(empty)) => empty,
                    Ok(None) => break Stopped::Full,
                    Err(BrokenPort) => break Stopped::Broken(to),
                };
                frame.read(shown.len, |into| sender.buffers().read(shown.buffer, into));
                if app.forward(frame, from as u16) != to as u16 || frame.is_update_for(*mac) || frame.is_lldp() {
                    receiver.keep_empty(empty);
                    break Stopped::Other;
                }
                let decided = pipeline(app, queues, maps, now, frame, notices);
                if decided.0 == Verdict::Forward {
                    receiver.buffers().write(empty, frame.line());
                    if shown.len as usize > LINE {
                        sender.buffers().copy_behind_first_line(
                            shown.buffer,
                            shown.len as usize,
                            receiver.buffers(),
                            empty,
                        );
                        if frame.bytes().len() > LINE {
                            receiver.buffers().write(empty, frame.bytes());
                        }
                    }
                    receiver.hand_over(empty, shown.len);
                    unmapped += u32::from(decided.1.is_none());
                    report_forwarded(updates, now, frame, decided.1);
                    taken += 1;
                    bytes += u64::from(shown.len);
                } else {
                    receiver.keep_empty(empty);
                    account(&mut a.counts, shown.len, decided);
                    moved += 1;
                }
                sender.accept();
                sender.give_back(shown.buffer);
            };
            a.counts.taken += u64::from(taken);
            a.counts.bytes_taken += bytes;
            a.counts.unmapped += u64::from(unmapped);
            b.counts.delivered += u64::from(taken);
            b.counts.bytes_delivered += bytes;
            let full = matches!(stopped, Stopped::Full);
            a.counts.held_back += u64::from(full && !a.blocked);
            a.blocked = full;
            moved += taken as usize;
            self.send_notices(from);
            match stopped {
                Stopped::Notices => {}
                Stopped::Empty | Stopped::Full => return Ok(moved),
                Stopped::Other => return Ok(moved + self.take_slowly(now, from)?),
                Stopped::Broken(end) => return Err(Broken(end)),
            }
        }
        Ok(moved)
    }

    /// Frames between any ports, through private memory.
    pub(super) fn take_slowly(&mut self, now: Instant, from: usize) -> Result<usize, Broken> {
        let mut moved = 0;
        while moved < BURST {
            let End { port: Some(port), .. } = &mut self.ends[from] else { return Ok(moved) };
            if self.closing && matches!(port, Kind::Shm(_)) {
                return Ok(moved);
            }
            let port = port.get_mut();
            let Some(shown) = port.next_frame().map_err(|_| Broken(from))? else {
                let owes = port.owes_room();
                self.ends[from].blocked = owes;
                return Ok(moved);
            };
            let reason = match shown.len as usize {
                len if len < HEADER_LEN => Some(DropReason::Malformed),
                len if len > self.scratch.len() / 2 => Some(DropReason::TooBig),
                _ => None,
            };
            if let Some(reason) = reason {
                self.finish(from, shown, (Verdict::Drop(reason), None));
                moved += 1;
                continue;
            }
            let offload = port.offload(shown.buffer);
            self.frame.read(shown.len, |into| {
                let known = into.len().min(shown.len as usize);
                port.read(shown.buffer, &mut into[..known]);
            });
            if !offload.is_none() {
                self.frame.count_segments(&offload);
            }
            if self.updates.is_some() && self.frame.is_update_for(self.mac) {
                self.receive_update(now, from, shown);
                moved += 1;
                continue;
            }
            if self.frame.is_lldp() {
                self.keep_lldp(now, from, shown);
            }
            let delivered = match self.offer(now, from, shown, &offload) {
                Entered::Decided(delivered) => delivered,
                Entered::Unseen => self.deliver(now, from, shown, &offload)?,
                Entered::Bypasses(lane) => {
                    let delivered = self.deliver(now, from, shown, &offload)?;
                    self.count_bypassed(lane, &delivered);
                    delivered
                }
            };
            match delivered {
                Delivered::Done => moved += 1,
                Delivered::Later => {
                    let end = &mut self.ends[from];
                    end.counts.held_back += u64::from(!std::mem::replace(&mut end.blocked, true));
                    let others = end.port.as_mut().is_some_and(|port| port.get_mut().defer());
                    if !others {
                        return Ok(moved);
                    }
                }
            }
            self.send_notices(from);
        }
        Ok(moved)
    }

    /// Keeps a copy of what the neighbour at an end says about itself. The frame passes like any other.
    #[cold]
    fn keep_lldp(&mut self, now: Instant, from: usize, shown: Descriptor) {
        let End { port, lldp: (bytes, at), .. } = &mut self.ends[from];
        if let Some(port) = port
            && shown.len as usize <= LLDP_MAX
        {
            bytes.resize(shown.len as usize, 0);
            port.get().read(shown.buffer, bytes);
            *at = now;
        }
    }

    /// Sends the notifications about frames of an end back out of it. A notification without room is dropped and counted: a
    /// bump queues no frame, not even its own.
    #[inline(always)]
    fn send_notices(&mut self, end: usize) {
        if !self.notices.is_empty() {
            self.send_all_notices(end);
        }
    }

    #[cold]
    fn send_all_notices(&mut self, end: usize) {
        let mut notices = std::mem::take(&mut self.notices);
        for Notice { about, message } in notices.drain(..) {
            let notification = message.notification;
            let frame = qcn::Frame {
                destination: MacAddress(about.source),
                source: MacAddress(self.mac),
                priority: self.notification_priority,
                flow: about.tag,
                message: qcn::Repr::of(
                    message.cpid,
                    (notification.feedback, notification.offset, notification.delta),
                    message.priority,
                    MacAddress(about.destination),
                ),
            };
            let mut bytes = [0; 128];
            let len = frame.emitted_len();
            frame.emit(&mut bytes[..len]);
            self.send_own(end, &bytes[..len]);
        }
        self.notices = notices;
    }

    /// Sends a frame of the bump's own at an end.
    pub(super) fn send_own(&mut self, end: usize, bytes: &[u8]) {
        let priority = self.notification_priority;
        match self.ends[end].send_own(bytes, priority) {
            Ok(()) => {}
            Err(BrokenPort) => self.broken(end),
        }
    }
}

impl End {
    fn send_own(&mut self, bytes: &[u8], priority: u8) -> Result<(), BrokenPort> {
        let len = bytes.len() as u32;
        let room = match &mut self.port {
            None => false,
            Some(port) => {
                let port = port.get_mut();
                let mut fits = len <= port.max_frame() && port.takes().contains(priority);
                let candidate = crate::port::Candidate { from: 0, domain: 0, priority, len };
                fits = fits && port.admits(candidate, &|into| copy_start(bytes, into))?;
                fits && port.reserve(len, &crate::port::Offload::NONE)?
            }
        };
        let Some(port) = self.port.as_mut().filter(|_| room) else {
            self.counts.own_lost += 1;
            return Ok(());
        };
        let offload = crate::port::Offload::NONE;
        port.get_mut().deliver(&crate::port::Delivery { bytes, offload, domain: 0, priority, from: 0 });
        self.counts.own += 1;
        self.counts.delivered += 1;
        self.counts.bytes_delivered += u64::from(len);
        self.show(Direction::Out, len, None, bytes);
        Ok(())
    }
}

/// Copies the first bytes of a frame.
pub(super) fn copy_start(bytes: &[u8], into: &mut [u8]) {
    let known = bytes.len().min(into.len());
    into[..known].copy_from_slice(&bytes[..known]);
}
