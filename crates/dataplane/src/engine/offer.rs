//! A frame passes from one port to another, uncut and with its offloads.

use super::SCRATCH_BYTES;
use super::attached::{Attached, Lent, call};
use super::header::tag;
use crate::port::{Delivery, Port, Segmentation};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::loss::DropReason;

/// The outcome for a frame that was offered to a port.
pub(super) enum Offered {
    Delivered,
    NotNow,
    Never(DropReason),
}

/// Delivers a frame at once if no frame waits and there is room.
#[inline]
pub(super) fn offer(
    clear: bool,
    from: &mut Attached,
    to: &mut Attached,
    lent: Lent,
    priority: Priority,
    scratch: &mut [u8],
) -> Offered {
    if !fits(from, to, lent) {
        to.capture_lost(from, lent, DropReason::TooBig);
        return Offered::Never(DropReason::TooBig);
    }
    if !clear || !to.present || !call!(&mut to.kind, takes()).contains(priority) {
        return Offered::NotNow;
    }
    let offload = call!(&from.kind, offload(lent.buffer));
    // Work that is left on the frame is done in the receiver's turn, where a broken receiver is found too.
    if !call!(&to.kind, takes_offload(&offload)) {
        return Offered::NotNow;
    }
    if !call!(&mut to.kind, reserve(lent.len(), &offload)).unwrap_or(false) {
        return Offered::NotNow;
    }
    match hand_over(from, to, lent, priority, scratch) {
        Ok(()) => Offered::Delivered,
        Err(reason) => Offered::Never(reason),
    }
}

/// Whether a port can take a frame at all.
#[inline]
pub(super) fn fits(from: &Attached, to: &Attached, lent: Lent) -> bool {
    let longest = call!(&to.kind, max_frame());
    let offload = call!(&from.kind, offload(lent.buffer));
    lent.len() as usize <= SCRATCH_BYTES / 2
        && match offload.segmentation {
            Segmentation::None => lent.len() <= longest,
            _ => u32::from(offload.headers) + u32::from(offload.segment) <= longest,
        }
}

/// Copies a frame through private memory to a port that has reserved room.
#[inline]
pub(super) fn hand_over(
    from: &Attached,
    to: &mut Attached,
    lent: Lent,
    priority: Priority,
    scratch: &mut [u8],
) -> Result<(), DropReason> {
    let bytes = fetch(from, lent, scratch)?;
    to.look_at(lent.len(), bytes);
    let offload = call!(&from.kind, offload(lent.buffer));
    let delivery = Delivery { bytes, offload, domain: domain_of(from, lent), priority, from: lent.owner() };
    call!(&mut to.kind, deliver(&delivery));
    Ok(())
}

/// Copies a frame to private memory; an error if its sender has overwritten what was checked.
#[inline]
pub(super) fn fetch<'a>(from: &Attached, lent: Lent, scratch: &'a mut [u8]) -> Result<&'a mut [u8], DropReason> {
    let bytes = &mut scratch[..lent.len() as usize];
    if from.read(lent.buffer, lent.first_bytes, bytes) { Ok(bytes) } else { Err(DropReason::Malformed) }
}

/// The broadcast domain of a frame.
#[inline]
pub(super) fn domain_of(from: &Attached, lent: Lent) -> u16 {
    let own = call!(&from.kind, domain(lent.buffer));
    own.or(from.access.domain).unwrap_or_else(|| tag(lent.first_bytes) & 0xfff)
}
