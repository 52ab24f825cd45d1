//! A frame on its way to a port of any kind: it is decided upon only when the port has room for it.

use super::end::End;
use super::round::{Broken, Decided, account, copy_start, pipeline, report_forwarded};
use super::{Bump, Frame, Queues};
use crate::port::{Candidate, Delivery, Descriptor, Offload, Segmentation};
use crate::tap::Direction;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::netbump::{App, Verdict};
use sluicenet_proto::time::Instant;
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};

/// Whether a frame is done with.
pub(super) enum Delivered {
    /// It was delivered, dropped or consumed.
    Done,
    /// There is no room for it now; it stays the next frame of its port.
    Later,
}

impl<A: App<Frame>, T: Queues<A::State>> Bump<A, T> {
    /// Takes the frame that an end showed, and gives its buffer back.
    pub(super) fn finish(&mut self, from: usize, shown: Descriptor, decided: Decided) {
        let end = &mut self.ends[from];
        if end.tap.is_some() {
            let known = (shown.len as usize).min(self.scratch.len() / 2);
            if let Some(port) = &end.port {
                port.get().read(shown.buffer, &mut self.scratch[..known]);
            }
            let dropped = match decided.0 {
                Verdict::Drop(reason) => Some(reason),
                _ => None,
            };
            end.show(Direction::In, known as u32, dropped, &self.scratch[..known]);
        }
        if let Some(port) = &mut end.port {
            port.get_mut().accept();
            port.get_mut().give_back(shown.buffer);
        }
        account(&mut end.counts, shown.len, decided);
        (end.blocked, end.cut) = (false, 0);
    }

    /// Passes the frame in `self.frame` through the pipeline and delivers it, if its output has room.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        from: usize,
        shown: Descriptor,
        offload: &Offload,
    ) -> Result<Delivered, Broken> {
        let wanted = usize::from(self.app.forward(&self.frame, from as u16));
        let to = if wanted < self.ends.len() && wanted != from { wanted } else { from ^ 1 };
        let priority = self.frame.priority();
        // The longest frame that the port gets, and the offload with which it gets the whole one.
        let Some(port) = &mut self.ends[to].port else { return Ok(Delivered::Later) };
        let port = port.get_mut();
        let whole = port.takes_offload(offload);
        let piece = match offload.segmentation {
            Segmentation::None => shown.len,
            _ => shown.len.min(u32::from(offload.headers) + u32::from(offload.segment)),
        };
        if piece > port.max_frame() {
            self.finish(from, shown, (Verdict::Drop(DropReason::TooBig), None));
            return Ok(Delivered::Done);
        }
        let candidate = Candidate { from, domain: 0, priority, len: shown.len };
        let frame = &self.frame;
        let room = port.takes().contains(priority)
            && port.admits(candidate, &|into| copy_start(frame.bytes(), into)).map_err(|_| Broken(to))?
            && match whole {
                true => port.reserve(shown.len, offload),
                false => port.reserve(piece, &Offload::NONE),
            }
            .map_err(|_| Broken(to))?;
        if !room {
            return Ok(Delivered::Later);
        }
        let mut decided: Decided = (Verdict::Forward, None);
        if self.ends[from].cut == 0 {
            let Bump { app, queues, maps, frame, notices, .. } = self;
            decided = pipeline(app, queues, (&maps[from], &maps[from ^ 1]), now, frame, notices);
            if decided.0 != Verdict::Forward {
                self.finish(from, shown, decided);
                return Ok(Delivered::Done);
            }
            self.ends[from].kept = (self.frame.clone(), decided.1);
        } else {
            // Some of its segments have left: the frame was decided upon then.
            (self.frame, decided.1) = self.ends[from].kept.clone();
        }
        let half = self.scratch.len() / 2;
        let (bytes, segment) = self.scratch.split_at_mut(half);
        let bytes = &mut bytes[..shown.len as usize];
        let Ok([source, target]) = self.ends.get_disjoint_mut([from, to]) else { return Ok(Delivered::Later) };
        let Some(port) = &source.port else { return Ok(Delivered::Later) };
        port.get().read(shown.buffer, bytes);
        let known = self.frame.bytes();
        bytes[..known.len()].copy_from_slice(known);
        let outcome = match (whole, offload.segmentation) {
            (true, _) => {
                target.give(from, bytes, *offload, priority);
                Ok(Delivered::Done)
            }
            (false, Segmentation::None) => {
                let (start, offset) = offload.checksum.unwrap_or_default();
                finish_checksum(bytes, start.into(), offset.into()).map_err(|_| DropReason::Malformed).map(|()| {
                    target.give(from, bytes, Offload::NONE, priority);
                    Delivered::Done
                })
            }
            (false, _) => cut((source, target), (from, to), bytes, segment, offload, priority)?,
        };
        match outcome {
            Ok(Delivered::Later) => return Ok(Delivered::Later),
            Ok(Delivered::Done) => report_forwarded(&mut self.updates, now, &self.frame, decided.1),
            // Its sender described it wrongly. It had entered its virtual queue.
            Err(reason) => decided.0 = Verdict::Drop(reason),
        }
        self.finish(from, shown, decided);
        Ok(Delivered::Done)
    }
}

/// Cuts a frame and delivers segments while there is room.
#[cold]
fn cut(
    (source, target): (&mut End, &mut End),
    (from, to): (usize, usize),
    bytes: &[u8],
    segment: &mut [u8],
    offload: &Offload,
    priority: u8,
) -> Result<Result<Delivered, DropReason>, Broken> {
    let network = if offload.segmentation == Segmentation::Tcp4 { Network::V4 } else { Network::V6 };
    let (start, _) = offload.checksum.unwrap_or_default();
    let Ok(cutter) = Cutter::new(bytes, network, start.into(), offload.segment.into()) else {
        return Ok(Err(DropReason::Malformed));
    };
    while (source.cut as usize) < cutter.count() {
        let len = cutter.len(source.cut as usize);
        let Some(port) = &mut target.port else { return Ok(Ok(Delivered::Later)) };
        if len > segment.len() || len as u32 > port.get().max_frame() {
            return Ok(Err(DropReason::TooBig));
        }
        if !port.get_mut().reserve(len as u32, &Offload::NONE).map_err(|_| Broken(to))? {
            return Ok(Ok(Delivered::Later));
        }
        cutter.emit(source.cut as usize, false, &mut segment[..len]);
        target.give(from, &segment[..len], Offload::NONE, priority);
        source.cut += 1;
        target.counts.segments += u64::from((source.cut as usize) < cutter.count());
    }
    Ok(Ok(Delivered::Done))
}

impl End {
    /// Delivers a frame for which room was reserved.
    pub(super) fn give(&mut self, from: usize, bytes: &[u8], offload: Offload, priority: u8) {
        if let Some(port) = &mut self.port {
            port.get_mut().deliver(&Delivery { bytes, offload, domain: 0, priority, from });
        }
        self.counts.delivered += 1;
        self.counts.bytes_delivered += bytes.len() as u64;
        self.show(Direction::Out, bytes.len() as u32, None, bytes);
    }
}
