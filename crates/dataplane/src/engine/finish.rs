//! The switch finishes a frame for a receiver that cannot do the work that the sender left.

use super::SCRATCH_BYTES;
use super::attached::{Attached, Lent, call};
use super::offer::{domain_of, fetch};
use crate::port::{BrokenPort, Delivery, Offload, Port, Segmentation};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::loss::DropReason;
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};

/// The outcome for such a frame.
pub(super) enum Finished {
    Delivered,
    NotYet,
    Never(DropReason),
}

/// Finishes a frame and delivers it. If it is cut, its first `cut` segments have been delivered already. All segments that are
/// delivered now, except the frame's last one, are added to `segments`.
#[cold]
pub(super) fn finish(
    from: &Attached,
    to: &mut Attached,
    lent: Lent,
    priority: Priority,
    scratch: &mut [u8],
    cut: &mut u32,
    segments: &mut u64,
) -> Result<Finished, BrokenPort> {
    let offload = call!(&from.kind, offload(lent.buffer));
    let domain = domain_of(from, lent);
    let (scratch, segment) = scratch.split_at_mut(SCRATCH_BYTES / 2);
    let bytes = match fetch(from, lent, scratch) {
        Ok(bytes) => bytes,
        Err(reason) => return Ok(Finished::Never(reason)),
    };
    let (start, offset) = offload.checksum.unwrap_or_default();
    let network = match offload.segmentation {
        Segmentation::None => {
            if !call!(&mut to.kind, reserve(lent.len(), &Offload::NONE))? {
                return Ok(Finished::NotYet);
            }
            if finish_checksum(bytes, start.into(), offset.into()).is_err() {
                return Ok(Finished::Never(DropReason::Malformed));
            }
            to.look_at(lent.len(), bytes);
            let delivery = Delivery { bytes, offload: Offload::NONE, domain, priority, from: lent.owner() };
            call!(&mut to.kind, deliver(&delivery));
            return Ok(Finished::Delivered);
        }
        Segmentation::Tcp4 => Network::V4,
        Segmentation::Tcp6 => Network::V6,
    };
    // The sender changed the headers after they were read, or described the frame wrongly.
    let Ok(cutter) = Cutter::new(bytes, network, start.into(), offload.segment.into()) else {
        return Ok(Finished::Never(DropReason::Malformed));
    };
    while (*cut as usize) < cutter.count() {
        let len = cutter.len(*cut as usize);
        if len > segment.len() || len as u32 > call!(&to.kind, max_frame()) {
            return Ok(Finished::Never(DropReason::TooBig));
        }
        if !call!(&mut to.kind, reserve(len as u32, &Offload::NONE))? {
            return Ok(Finished::NotYet);
        }
        cutter.emit(*cut as usize, false, &mut segment[..len]);
        to.look_at(len as u32, &segment[..len]);
        let delivery =
            Delivery { bytes: &segment[..len], offload: Offload::NONE, domain, priority, from: lent.owner() };
        call!(&mut to.kind, deliver(&delivery));
        *cut += 1;
        *segments += u64::from((*cut as usize) < cutter.count());
    }
    *cut = 0;
    Ok(Finished::Delivered)
}
