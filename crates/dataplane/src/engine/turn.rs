//! One turn of the loop: what ports send is taken, what has room is delivered.

use super::Engine;
use super::attached::{Attached, Kind, Lent, call, pass_run};
use super::finish::{Finished, finish};
use super::head::{admit, audience, header, members, put_head};
use super::offer::{Offered, fits, hand_over, offer};
use super::run::WATCH_EVERY;
use crate::port::{Asking, BrokenPort, Descriptor, Port};
use sluicenet_node::vale::{Header, Route, Vale, Way};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;
use std::sync::atomic::{Ordering, fence};

/// Frames taken from a port before it is the next one's turn.
pub(super) const BURST: usize = 64;

impl Engine {
    /// One turn: takes what ports send and delivers what has room. Returns the number of frames that moved.
    pub fn turn(&mut self) -> usize {
        if self.waits {
            return 0;
        }
        let now = self.now();
        let mut moved = 0;
        // All of them first: what one has fetched from another core's cache is on its way while the next one looks.
        for k in 0..self.upto {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            if call!(&mut attached.kind, on_turn(now)).is_err() {
                self.broken(k);
            }
        }
        // Before what comes now for the same receivers.
        if self.vale.begin_round() > 0 {
            moved += self.serve_lines(now);
        }
        // Who was turned away for a receiver is the first to be asked when there is room, and the next one after that.
        let (first, upto) = (self.first, self.upto);
        self.turned_away = 0;
        for j in (first.min(upto)..upto).chain(0..first.min(upto)) {
            if self.closing && !self.has_fetched(j) {
                continue;
            }
            match self.take_in(now, j) {
                Ok(frames) => moved += frames,
                Err(BrokenPort) => self.broken(j),
            }
        }
        if self.turned_away != 0 {
            let after = self.turned_away & (u64::MAX << first << 1);
            self.first = if after != 0 { after } else { self.turned_away }.trailing_zeros() as usize;
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
            // One for all guests: it waits for what was written to reach them.
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

    #[inline]
    fn take_in(&mut self, now: Instant, j: usize) -> Result<usize, BrokenPort> {
        let Engine { vale, ports, dropped, scratch, changes, turned_away, .. } = self;
        match &mut ports[j] {
            None => return Ok(0),
            Some(attached) => {
                if attached.waits_since == Some(*changes) {
                    return Ok(0);
                }
                (attached.blocked, attached.waits_since) = (false, None);
            }
        }
        let mut taken = 0;
        while taken < BURST {
            let Some(from) = ports[j].as_mut().filter(|a| a.present) else { return Ok(taken) };
            let Some(frame) = call!(&mut from.kind, next_frame())? else {
                from.blocked |= call!(&from.kind, owes_room());
                return Ok(taken);
            };
            // Two numbers and no array, which would be in memory: it is written in halves and read whole, and so only after all that
            // was written before, the receiver's memory, has been fetched from the receiver's core.
            let [low, high] = call!(&from.kind, head(frame.buffer));
            let head = [low, high];
            let header = match (from.plain, &from.kind) {
                (true, _) => header(head),
                (false, kind) => match admit(head, &from.access, kind.get(), frame) {
                    Ok(header) => header,
                    Err(reason) => {
                        vale.refuse(j, reason);
                        from.accept(frame, head, Some(reason));
                        call!(&mut from.kind, give_back(frame.buffer));
                        taken += 1;
                        continue;
                    }
                },
            };
            let lent = Lent::new(frame, head, j);
            match vale.route(now, j, &header) {
                Route::To(k) => {
                    if let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([j, k]) {
                        let in_line = vale.lines_of(j) >> k & 1 != 0;
                        let asks = in_line
                            | match &to.kind {
                                Kind::Other(_) => to.present,
                                Kind::Shm(receiver) => receiver.has_full(),
                                Kind::Vhost(_) => false,
                            };
                        if asks {
                            match ask(vale, from, to, lent, frame, &header, (j, k)) {
                                Asked::Admitted => {}
                                Asked::Taken => {
                                    taken += 1;
                                    continue;
                                }
                                Asked::Held { others } => {
                                    *turned_away |= 1 << j;
                                    if others {
                                        continue;
                                    }
                                    return Ok(taken);
                                }
                            }
                        }
                        // What holds for one frame to a full socket does not hold for the next one.
                        let alike = !(asks && matches!(to.kind, Kind::Shm(_)));
                        let clear = vale.is_clear(k) & to.pace.is_none();
                        if clear
                            && alike
                            && let Some(run) = pass_run(from, to, head, (BURST - taken) as u32)
                        {
                            let run = run?;
                            if run.frames > 0 {
                                vale.pass(j, k, run.frames);
                                taken += run.frames as usize;
                                from.bytes_from += run.bytes;
                                to.bytes_to += run.bytes;
                                continue;
                            }
                        }
                        if !(matches!(to.kind, Kind::Shm(_)) && from.plain & to.tap.is_none()) {
                            match offer(clear, from, to, lent, header.priority, scratch) {
                                Offered::Delivered => {
                                    vale.pass(j, k, 1);
                                    taken += 1;
                                    from.accept(frame, head, None);
                                    call!(&mut from.kind, give_back(frame.buffer));
                                    continue;
                                }
                                Offered::Never(reason) => {
                                    vale.turn_away(j, k, reason);
                                    taken += 1;
                                    from.accept(frame, head, Some(reason));
                                    call!(&mut from.kind, give_back(frame.buffer));
                                    continue;
                                }
                                Offered::NotNow => {}
                            }
                        }
                    }
                    let queued = vale.queue(now, j, k, header.priority, lent, &mut |frame| dropped.push(frame));
                    let Some(from) = &mut ports[j] else { return Ok(taken) };
                    if queued.is_err() {
                        from.blocked = true;
                        if call!(&mut from.kind, hold()) {
                            continue;
                        }
                        // With several classes to show, another may go on though nothing changes here.
                        if matches!(from.kind, Kind::Shm(_)) {
                            from.waits_since = Some(*changes);
                        }
                        return Ok(taken);
                    }
                    from.accept(frame, head, None);
                }
                Route::All => {
                    Engine::hear(ports, now, j, frame, head, &header);
                    let members = members(ports, header.destination.domain());
                    let members = audience(vale, ports, &header, members);
                    let copies = vale.flood(now, j, header.priority, lent, members);
                    let Some(from) = &mut ports[j] else { return Ok(taken) };
                    from.accept(frame, head, None);
                    if copies == 0 {
                        call!(&mut from.kind, give_back(frame.buffer));
                    } else {
                        from.set_extra(frame.buffer, (copies - 1) as u8);
                    }
                }
                Route::Drop(reason) => {
                    let Some(from) = &mut ports[j] else { return Ok(taken) };
                    from.accept(frame, head, Some(reason));
                    call!(&mut from.kind, give_back(frame.buffer));
                }
            }
            taken += 1;
            if !dropped.is_empty() {
                Engine::give_back_dropped(ports, dropped);
            }
        }
        Ok(taken)
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
                sender.copy_to(frame.buffer, frame.len(), frame.head, receiver, empty);
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
                        Finished::Never(reason) => Err(reason),
                    }
                };
                vale.take(now, k, priority);
                if let Err(reason) = outcome {
                    vale.spoil(k, reason);
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

    /// A copy of a frame is done with; after the last its sender has its buffer back.
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

/// What becomes of a frame whose receiver is asked.
enum Asked {
    /// It may be delivered or queued.
    Admitted,
    /// It waits in a line, or was dropped.
    Taken,
    /// It stays the next of its port in its class; whether the port has others.
    Held { others: bool },
}

/// Whether a frame may go on to the port that it is for, and what becomes of it otherwise.
#[inline(never)]
fn ask(
    vale: &mut Vale<Lent>,
    from: &mut Attached,
    to: &mut Attached,
    lent: Lent,
    frame: Descriptor,
    header: &Header,
    (j, k): (usize, usize),
) -> Asked {
    let head = lent.head;
    let read = |into: &mut [u8]| {
        call!(&from.kind, read(frame.buffer, into));
        put_head(head, into);
    };
    let Header { destination, source, priority, .. } = *header;
    let asking = Asking { from: j, domain: destination.domain(), priority, len: frame.len };
    let way = |to: &Attached| {
        let part = call!(&to.kind, part(asking, &read));
        Way { from: j, to: k, priority, destination, source, part }
    };
    let in_line = vale.lines_of(j) >> k & 1 != 0 && vale.has_line(&way(to));
    // That it is broken is found when it is its turn.
    if !in_line && call!(&mut to.kind, admits(asking, &read)).unwrap_or(true) {
        from.turned_away_by = None;
        return Asked::Admitted;
    }
    if vale.wait(way(to), lent, call!(&from.kind, places())) {
        from.turned_away_by = None;
        from.accept(frame, head, None);
        return Asked::Taken;
    }
    let before = from.turned_away_by.replace(k);
    if !vale.hold_back(j, k, priority, before != Some(k)) {
        from.accept(frame, head, Some(DropReason::VswitchVm));
        call!(&mut from.kind, give_back(frame.buffer));
        return Asked::Taken;
    }
    from.blocked = true;
    Asked::Held { others: call!(&mut from.kind, hold()) }
}
