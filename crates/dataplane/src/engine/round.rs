//! A round of the loop: takes frames from ports and delivers those for which there is room.

use super::Engine;
use super::attached::{Attached, Kind, Lent, Rules, call, pass_run};
use super::finish::{Finished, finish};
use super::flood::{audience, members};
use super::header::{admit, header};
use super::offer::{Offered, fits, hand_over, offer};
use super::run::{PATIENCE, WATCH_EVERY};
use crate::port::{BrokenPort, Candidate, Descriptor, Port};
use sluicenet_node::vale::{Header, Ports, QueueKey, Route, Vale};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{self, Cargo};
use std::sync::atomic::{Ordering, fence};

/// Types of frames that may be datagrams, as a number of the first bytes.
const IPV4: u16 = 0x0800u16.swap_bytes();
const IPV6: u16 = 0x86ddu16.swap_bytes();
const TAGGED: u16 = 0x8100u16.swap_bytes();
/// Bytes of a frame that may hold its headers.
const HEADERS_MOST: usize = 128;
/// How long a port's other frames wait after a forged one. A forged frame costs the switch about as much as another one, 0.05 us
/// in shared memory and 1 us at a network device. The pause is shorter than the time for which an idle loop stays awake.
const FORGER_PAUSES: Duration = Duration::from_us(10);
const _: () = assert!(FORGER_PAUSES.0 < PATIENCE.0);
/// Frames taken from a port before it is the next one's turn.
pub(super) const BURST: usize = 64;

impl Engine {
    /// One round of the loop. Returns the number of frames that moved.
    pub fn round(&mut self) -> usize {
        if self.waits {
            return 0;
        }
        let now = self.now();
        let mut moved = 0;
        // A pass over all ports first: the fetches from other cores' caches then overlap.
        for k in 0..self.upto {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            if call!(&mut attached.kind, on_round(now)).is_err() {
                self.broken(k);
            }
        }
        // Before new frames for the same receivers.
        if self.vale.begin_round() > 0 {
            moved += self.serve_receiver_queues(now);
        }
        // A port whose frame was not admitted is asked first in the next round, then the port after it.
        let (first, upto) = (self.first, self.upto);
        self.turned_away = None;
        for j in (first.min(upto)..upto).chain(0..first.min(upto)) {
            if self.closing && !self.has_fetched(j) {
                continue;
            }
            match self.take_in(now, j) {
                Ok(frames) => moved += frames,
                Err(BrokenPort) => self.broken(j),
            }
        }
        if let Some(next) = self.turned_away {
            self.first = next;
        }
        for k in 0..self.upto {
            match self.deliver(now, k) {
                Ok(frames) => moved += frames,
                Err(BrokenPort) => self.broken(k),
            }
        }
        let mut shown = false;
        for k in 0..self.upto {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            match &mut attached.kind {
                Kind::Shm(port) => port.publish(),
                Kind::Vhost(port) => shown |= port.show_used(),
                Kind::Other(port) => {
                    if port.publish().is_err() {
                        self.broken(k);
                    }
                }
            }
        }
        if shown {
            // One fence for all guests, which waits until they can see the writes.
            fence(Ordering::SeqCst);
            for attached in self.ports[..self.upto].iter_mut().flatten().filter(|a| a.present) {
                if let Kind::Vhost(port) = &mut attached.kind {
                    port.call_if_wanted();
                }
            }
        }
        if now.since(self.watched) >= WATCH_EVERY {
            self.watch(now);
        }
        moved
    }

    /// Takes up to [`BURST`] frames from port `j`; returns how many were passed on or dropped.
    #[inline]
    fn take_in(&mut self, now: Instant, j: usize) -> Result<usize, BrokenPort> {
        match self.may_take(j) {
            May::Take => {}
            May::TakePaced => return self.take_in_paced(now, j),
            May::Wait => return Ok(0),
        }
        let mut taken = 0;
        while taken < BURST {
            let shown = match self.next_shown(j)? {
                Next::Frame(shown) => shown,
                Next::Refused => {
                    taken += 1;
                    continue;
                }
                Next::Forged => {
                    self.pause_forger(now, j);
                    return Ok(taken + 1);
                }
                Next::Nothing => return Ok(taken),
            };
            let outcome = match self.vale.route(now, j, &shown.header) {
                Route::To(k) => self.take_for(now, k, &shown, BURST - taken)?,
                Route::All => self.take_for_all(now, &shown),
                Route::Drop(reason) => self.take_and_drop(&shown, reason),
            };
            match outcome {
                Taken::Frames(frames) => taken += frames,
                Taken::Stop => return Ok(taken),
            }
        }
        Ok(taken)
    }

    /// The port has sent a forged frame: others do not wait for the rest of such frames.
    #[cold]
    #[inline(never)]
    fn pause_forger(&mut self, now: Instant, j: usize) {
        let Some(from) = &mut self.ports[j] else { return };
        from.forger_until = Some(now.saturating_add(FORGER_PAUSES));
        from.settle_turns();
    }

    /// The same for a port whose rate is limited, or that has just sent a forged frame: further frames stay with their sender.
    #[cold]
    #[inline(never)]
    fn take_in_paced(&mut self, now: Instant, j: usize) -> Result<usize, BrokenPort> {
        if let Some(from) = &mut self.ports[j]
            && let Some(until) = from.forger_until
        {
            if now < until {
                return Ok(0);
            }
            from.forger_until = None;
            from.settle_turns();
            if !from.is_limited {
                return self.take_in(now, j);
            }
        }
        let mut taken = 0;
        while taken < BURST {
            let Some(from) = &mut self.ports[j] else { break };
            if from.send_pace.is_some_and(|pace| pace.next() > now) {
                from.blocked = true;
                break;
            }
            let shown = match self.next_shown(j)? {
                Next::Frame(shown) => shown,
                Next::Refused => {
                    taken += 1;
                    continue;
                }
                Next::Forged => {
                    self.pause_forger(now, j);
                    return Ok(taken + 1);
                }
                Next::Nothing => break,
            };
            let outcome = match self.vale.route(now, j, &shown.header) {
                // No further frame goes with this one.
                Route::To(k) => self.take_for(now, k, &shown, 0)?,
                Route::All => self.take_for_all(now, &shown),
                Route::Drop(reason) => self.take_and_drop(&shown, reason),
            };
            let Taken::Frames(frames) = outcome else { break };
            taken += frames;
            let pace = self.ports[j].as_mut().and_then(|from| from.send_pace.as_mut());
            if let Some(pace) = pace.filter(|_| frames > 0) {
                pace.on_frame(now, shown.frame.len);
            }
        }
        Ok(taken)
    }

    /// Whether port `j` may show a frame: nothing has changed while its last frame waited otherwise.
    #[inline(always)]
    fn may_take(&mut self, j: usize) -> May {
        let Some(attached) = &mut self.ports[j] else { return May::Wait };
        if attached.waits_since == Some(self.changes) {
            return May::Wait;
        }
        (attached.blocked, attached.waits_since) = (false, None);
        if attached.is_limited { May::TakePaced } else { May::Take }
    }

    /// The next frame of port `j`; a frame that the port may not send is dropped.
    #[inline(always)]
    fn next_shown(&mut self, j: usize) -> Result<Next, BrokenPort> {
        let Some(from) = self.ports[j].as_mut().filter(|a| a.present) else { return Ok(Next::Nothing) };
        let Some(frame) = call!(&mut from.kind, next_frame())? else {
            from.blocked |= call!(&from.kind, owes_room());
            return Ok(Next::Nothing);
        };
        // Two numbers instead of an array. An array would be in memory, written in halves and read whole: that read waits for
        // all earlier stores, also for those to the receiver's memory, which come from another core's cache.
        let [low, high] = call!(&from.kind, first_bytes(frame.buffer));
        let first_bytes = [low, high];
        let header = match from.rules {
            Rules::None => header(first_bytes),
            Rules::Access => match admit(first_bytes, &from.access, from.kind.get(), frame) {
                Ok(header) => header,
                Err(reason) => {
                    self.vale.refuse(j, reason);
                    from.finish(frame, first_bytes, Some(reason));
                    return Ok(Next::Refused);
                }
            },
            Rules::Guard => match from.check(frame, first_bytes) {
                Ok(header) => header,
                Err(reason) => {
                    self.vale.refuse(j, reason);
                    from.finish(frame, first_bytes, Some(reason));
                    return Ok(Next::Forged);
                }
            },
        };
        Ok(Next::Frame(Shown { from: j, frame, lent: Lent::new(frame, first_bytes, j), header }))
    }

    /// Takes a frame for port `k`: delivers it, with up to `most` frames like it, or queues it.
    #[inline(always)]
    fn take_for(&mut self, now: Instant, k: usize, shown: &Shown, most: usize) -> Result<Taken, BrokenPort> {
        let Engine { vale, ports, scratch, turned_away, first, .. } = self;
        let j = shown.from;
        if let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([j, k]) {
            let has_queue = vale.has_receiver_queues(j, k);
            let asks = has_queue
                | match &to.kind {
                    Kind::Other(_) => to.present,
                    Kind::Shm(receiver) => receiver.has_full(),
                    Kind::Vhost(_) => false,
                };
            if asks {
                match ask(vale, from, to, *shown, k) {
                    Asked::Admitted => {}
                    Asked::Taken => return Ok(Taken::Frames(1)),
                    Asked::Held { others } => {
                        // The first one after the port that was asked first; that port only if there is no other.
                        if turned_away.is_none_or(|other| other == *first) {
                            *turned_away = Some(j);
                        }
                        return Ok(if others { Taken::Frames(0) } else { Taken::Stop });
                    }
                }
            }
            // A full socket does not admit the next frame because it admitted this one.
            let most = if asks && matches!(to.kind, Kind::Shm(_)) { 0 } else { most };
            let passed = pass_now(vale, (from, to), k, shown, most, scratch)?;
            if passed > 0 {
                return Ok(Taken::Frames(passed));
            }
        }
        Ok(self.queue_for(now, k, shown))
    }

    /// Queues a frame for port `k`; if the queues are full, it stays with its sender.
    #[inline(always)]
    fn queue_for(&mut self, now: Instant, k: usize, shown: &Shown) -> Taken {
        let Engine { vale, ports, dropped, changes, .. } = self;
        let queued =
            vale.queue(now, shown.from, k, shown.header.priority, shown.lent, &mut |frame| dropped.push(frame));
        let Some(from) = &mut ports[shown.from] else { return Taken::Stop };
        if queued.is_err() {
            from.blocked = true;
            if call!(&mut from.kind, defer()) {
                return Taken::Frames(0);
            }
            // A port with a queue for each class may have a frame of another class, although nothing has changed here.
            if matches!(from.kind, Kind::Shm(_)) {
                from.waits_since = Some(*changes);
            }
            return Taken::Stop;
        }
        from.accept(shown.frame, shown.lent.first_bytes, None);
        if !dropped.is_empty() {
            Engine::give_back_dropped(ports, dropped);
        }
        Taken::Frames(1)
    }

    /// Queues a copy of a frame for each port of its domain.
    #[inline(always)]
    fn take_for_all(&mut self, now: Instant, shown: &Shown) -> Taken {
        let Engine { vale, ports, .. } = self;
        let Shown { from: j, frame, lent, header } = *shown;
        Engine::hear(ports, now, j, frame, lent.first_bytes, &header);
        let members = members(ports, header.destination.domain());
        let members = audience(vale, ports, &header, &members);
        let members = if header.destination.is_group() && may_be_datagram(lent.first_bytes) {
            match ask_for_group(vale, ports, *shown, members) {
                Ok(members) => members,
                Err(k) => return self.hold_for_group(k, shown),
            }
        } else {
            members
        };
        let copies = vale.flood(now, j, header.priority, lent, &members);
        let Some(from) = &mut ports[j] else { return Taken::Stop };
        if copies == 0 {
            from.finish(frame, lent.first_bytes, None);
        } else {
            from.accept(frame, lent.first_bytes, None);
            from.add_extra(frame.buffer, copies - 1);
        }
        Taken::Frames(1)
    }

    /// Leaves a datagram for a group with its sender, because port `k` does not admit its copy now.
    #[cold]
    fn hold_for_group(&mut self, k: usize, shown: &Shown) -> Taken {
        let Engine { vale, ports, turned_away, first, .. } = self;
        let Some(from) = &mut ports[shown.from] else { return Taken::Stop };
        let before = from.turned_away_by.replace(k);
        vale.leave_with_sender(shown.from, k, shown.header.priority, before != Some(k));
        from.blocked = true;
        if turned_away.is_none_or(|other| other == *first) {
            *turned_away = Some(shown.from);
        }
        if call!(&mut from.kind, defer()) { Taken::Frames(0) } else { Taken::Stop }
    }

    #[inline(always)]
    fn take_and_drop(&mut self, shown: &Shown, reason: DropReason) -> Taken {
        let Some(from) = &mut self.ports[shown.from] else { return Taken::Stop };
        from.finish(shown.frame, shown.lent.first_bytes, Some(reason));
        Taken::Frames(1)
    }

    #[inline]
    fn deliver(&mut self, now: Instant, k: usize) -> Result<usize, BrokenPort> {
        let Engine { vale, ports, dropped, scratch, changes, .. } = self;
        let mut delivered = 0;
        if !vale.is_ready(k, PrioritySet::ALL) {
            return Ok(0);
        }
        while let Some(to) = ports[k].as_mut().filter(|a| a.present) {
            if to.pace.is_some_and(|pace| pace.next() > now) {
                break;
            }
            let takes = call!(&mut to.kind, takes());
            if !vale.is_ready(k, takes) {
                break;
            }
            let Some((priority, frame)) = vale.next(k, takes, &mut |frame| dropped.push(frame)) else { break };
            let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([frame.owner(), k]) else {
                unreachable!("a frame of nobody, or for its own sender")
            };
            if let (Kind::Shm(sender), Kind::Shm(receiver), true) =
                (&mut from.kind, &mut to.kind, from.plain & to.tap.is_none())
            {
                let Some(empty) = receiver.empty_buffer()? else { break };
                vale.take(now, k, priority);
                sender.copy_to(frame.buffer, frame.len(), frame.first_bytes, receiver, empty);
                to.bytes_to += u64::from(frame.len());
            } else if fits(from, to, frame) {
                let offload = call!(&from.kind, offload(frame.buffer));
                let outcome = if call!(&to.kind, takes_offload(&offload)) {
                    if !call!(&mut to.kind, reserve(frame.len(), &offload))? {
                        break;
                    }
                    hand_over(from, to, frame, priority, scratch)
                } else {
                    let mut cut = to.cut[usize::from(priority)];
                    let mut segments = 0;
                    let outcome = finish(from, to, frame, priority, scratch, &mut cut, &mut segments);
                    to.cut[usize::from(priority)] = cut;
                    vale.cut(frame.owner(), k, segments);
                    match outcome? {
                        Finished::NotYet => break,
                        Finished::Delivered => Ok(()),
                        Finished::Never(reason) => {
                            // Its rest is not for the next frame.
                            to.cut[usize::from(priority)] = 0;
                            Err(reason)
                        }
                    }
                };
                vale.take(now, k, priority);
                match outcome {
                    Ok(()) => {}
                    // Its sender changed it.
                    Err(DropReason::Malformed) => vale.recall(frame.owner(), k, DropReason::Malformed),
                    Err(reason) => vale.spoil(k, reason),
                }
            } else {
                vale.take(now, k, priority);
                vale.spoil(k, DropReason::TooBig);
                to.capture_lost(from, frame, DropReason::TooBig);
            }
            if let Some(pace) = ports[k].as_mut().and_then(|to| to.pace.as_mut()) {
                pace.on_frame(now, frame.len());
            }
            Engine::give_back(ports, frame);
            delivered += 1;
        }
        *changes += delivered as u64;
        if !dropped.is_empty() {
            Engine::give_back_dropped(ports, dropped);
        }
        Ok(delivered)
    }

    /// A copy of a frame is no longer needed; the last one returns the buffer to its sender.
    #[inline(always)]
    fn give_back(ports: &mut [Option<Attached>], frame: Lent) {
        let slot = &mut ports[frame.owner()];
        let Some(attached) = slot else { return };
        if let Some(extra) = attached.extra.get_mut(frame.buffer as usize)
            && *extra > 0
        {
            *extra -= 1;
            return;
        }
        call!(&mut attached.kind, give_back(frame.buffer));
        if !attached.present && call!(&attached.kind, lent()) == 0 {
            *slot = None;
        }
    }

    #[cold]
    pub(super) fn give_back_dropped(ports: &mut [Option<Attached>], dropped: &mut Vec<Lent>) {
        for frame in dropped.drain(..) {
            Engine::give_back(ports, frame);
        }
    }
}

/// A frame that a port shows. The steps inlined into [`Engine::take_in`] take a reference; others take a copy, so that the
/// frame itself stays in registers.
#[derive(Clone, Copy)]
struct Shown {
    /// The port.
    from: usize,
    frame: Descriptor,
    lent: Lent,
    header: Header,
}

/// Whether frames of a port may be taken now.
enum May {
    Take,
    /// At a limited rate, or after a pause.
    TakePaced,
    Wait,
}

/// The next frame of a port.
enum Next {
    Frame(Shown),
    /// The port may not send it; it was dropped.
    Refused,
    /// The endpoint may not send it; it was dropped, and the turn of the port ends.
    Forged,
    Nothing,
}

/// The outcome for a frame that was shown.
enum Taken {
    /// The number of frames that were passed on or dropped; 0 if the frame waits and the port may have others.
    Frames(usize),
    /// The frame waits, and the port has no other.
    Stop,
}

/// Delivers a frame to port `k` at once if nothing has to wait, with up to `most` frames like it; returns the number of
/// delivered frames.
#[inline(always)]
fn pass_now(
    vale: &mut Vale<Lent>,
    (from, to): (&mut Attached, &mut Attached),
    k: usize,
    shown: &Shown,
    most: usize,
    scratch: &mut [u8],
) -> Result<usize, BrokenPort> {
    let Shown { from: j, frame, lent, header } = *shown;
    let clear = vale.is_clear(k) & to.pace.is_none();
    if clear
        && most > 0
        && let Some(run) = pass_run(from, to, (lent.buffer, lent.first_bytes), most as u32)
    {
        let run = run?;
        if run.frames > 0 {
            vale.pass(j, k, run.frames);
            from.bytes_from += run.bytes;
            to.bytes_to += run.bytes;
            return Ok(run.frames as usize);
        }
    }
    if matches!(to.kind, Kind::Shm(_)) && from.plain & to.tap.is_none() {
        return Ok(0);
    }
    let dropped = match offer(clear, from, to, lent, header.priority, scratch) {
        Offered::Delivered => {
            vale.pass(j, k, 1);
            None
        }
        Offered::Never(reason) => {
            match reason {
                DropReason::Malformed => vale.refuse(j, reason),
                _ => vale.turn_away(j, k, reason),
            };
            Some(reason)
        }
        Offered::NotNow => return Ok(0),
    };
    from.finish(frame, lent.first_bytes, dropped);
    Ok(1)
}

/// Asks the ports that are to receive a datagram for a group. In a lossless class the datagram waits until all admit it: `Err`
/// names one that does not. In a lossy class only those that admit it get a copy. Other frames for all stations ask nobody.
#[cold]
#[inline(never)]
fn ask_for_group(
    vale: &mut Vale<Lent>,
    ports: &mut [Option<Attached>],
    shown: Shown,
    mut members: Ports,
) -> Result<Ports, usize> {
    let Shown { from: j, frame, lent, header } = shown;
    let Header { destination, priority, .. } = header;
    let Some(from) = &mut ports[j] else { return Ok(members) };
    let read = |from: &Attached, into: &mut [u8]| {
        from.read(frame.buffer, lent.first_bytes, into);
    };
    let mut start = [0; HEADERS_MOST];
    let start = &mut start[..HEADERS_MOST.min(frame.len as usize)];
    read(from, start);
    if flow::read_start(start, frame.len as usize) == Cargo::Other {
        return Ok(members);
    }
    let held_by = from.turned_away_by;
    let candidate = Candidate { from: j, domain: destination.domain(), priority, len: frame.len };
    let count = ports.len();
    let mut admits = |k: usize| {
        let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([j, k]) else { return true };
        let Kind::Other(port) = &mut to.kind else { return true };
        // A broken receiver is found in its own turn.
        port.admits_group(candidate, &|into| read(from, into)).unwrap_or(true)
    };
    let all = (0..count).filter(|&k| k != j && members.contains(k) && !vale.is_isolated(k));
    if !vale.is_lossless(priority) {
        let refuse: Vec<usize> = all.filter(|&k| !admits(k)).collect();
        for k in refuse {
            vale.turn_away(j, k, DropReason::FloodNoRoom);
            members.remove(k);
        }
        return Ok(members);
    }
    // The port that held it is asked first.
    let first = held_by.filter(|&k| members.contains(k));
    let refuses = first.into_iter().chain(all.filter(|&k| first != Some(k))).find(|&k| !admits(k));
    if let Some(k) = refuses.or_else(|| vale.flood_waits_for(j, priority, &members)) {
        return Err(k);
    }
    if let Some(from) = &mut ports[j] {
        from.turned_away_by = None;
    }
    Ok(members)
}

/// Whether a frame for all stations may be a datagram, by its type; a tagged one may be.
#[inline(always)]
fn may_be_datagram(first_bytes: [u64; 2]) -> bool {
    matches!((first_bytes[1] >> 32) as u16, IPV4 | IPV6 | TAGGED)
}

/// The answer of a receiver that was asked about a frame.
enum Asked {
    /// The frame may be delivered or queued.
    Admitted,
    /// The frame waits in the queue of its receiver, or was dropped.
    Taken,
    /// The frame stays the next one of its port in its class; `others` tells whether the port has further frames.
    Held { others: bool },
}

/// Asks the receiver of a frame, port `k`, whether the frame may go on; otherwise the frame waits or is dropped.
#[inline(never)]
fn ask(vale: &mut Vale<Lent>, from: &mut Attached, to: &mut Attached, shown: Shown, k: usize) -> Asked {
    let Shown { from: j, frame, lent, header } = shown;
    let first_bytes = lent.first_bytes;
    let read = |into: &mut [u8]| {
        from.read(frame.buffer, first_bytes, into);
    };
    let Header { destination, source, priority, .. } = header;
    let candidate = Candidate { from: j, domain: destination.domain(), priority, len: frame.len };
    let key = |to: &Attached| {
        let part = call!(&to.kind, part(candidate, &read));
        QueueKey { from: j, to: k, priority, destination, source, part }
    };
    let has_queue = vale.has_receiver_queues(j, k) && vale.has_receiver_queue(&key(to));
    // A broken receiver is found in its own turn.
    if !has_queue && call!(&mut to.kind, admits(candidate, &read)).unwrap_or(true) {
        from.turned_away_by = None;
        return Asked::Admitted;
    }
    if vale.enqueue_for_receiver(key(to), lent, call!(&from.kind, waiting_max())) {
        from.turned_away_by = None;
        from.accept(frame, first_bytes, None);
        return Asked::Taken;
    }
    let before = from.turned_away_by.replace(k);
    if !vale.leave_with_sender(j, k, priority, before != Some(k)) {
        from.finish(frame, first_bytes, Some(DropReason::VswitchVm));
        return Asked::Taken;
    }
    from.blocked = true;
    Asked::Held { others: call!(&mut from.kind, defer()) }
}
