//! zCredit: a frame is sent to a VM when the VM's hypervisor has granted a credit for the frame (Crisan 2014,
//! Algorithms 5.1 and 5.2).
//!
//! [`Transmission`] is the sending end of a VM towards one other VM. [`Reception`] is the receive queue of a VM with
//! all its senders.
//!
//! zCredit differs from the printed algorithms in two points.
//!
//! - **Nothing leaks.** Algorithm 5.2 grants the first waiting request in part and forgets the rest. It never counts a
//!   grant after a wait. So `total_granted` wraps, `cdt_requested` never comes down, and the sender stalls. Here a
//!   request granted in part keeps its place in the round. Every credit is in exactly one of three places: promised to
//!   a source, a frame in the queue, or free. The three add up to `RXQsize` at all times. `tests::as_printed` keeps the
//!   stall.
//! - **Messages may be lost, doubled, delayed, reordered and forged.** So no message carries a difference. All counts
//!   are totals since the channel began, compared modulo 2^32, and the latest message is valid. A waiting end asks
//!   again.
//!
//! **Credits come back.** A source that holds credits and spends none is probed ([`Message::Probe`]). Credits spent on
//! frames that never came are free again after [`ReceptionConfig::reclaim_after`]. A dead or greedy source spends no
//! credits and returns none. At the [`ReceptionConfig::deadline`] the receiver takes such a source's credits back and
//! ends its channel. Frames sent with these credits at the last moment keep their room for as long as a frame may be on
//! its way.
//!
//! **No source holds a receiver's credits against others.** Round robin alone gives credits to every source that wants
//! some. A source that spends credits slowly then comes to hold all of them, and every source has the speed of the
//! slowest one. So a source's unspent credits are bounded by the time in which its credits come back, compared with the
//! quickest source ([`Reception`], `allowance`). All sources together hold little more than the credits that keep the
//! last link busy. Where the network's ports have room for these frames, no source is stopped there, and turns divide
//! the link.
//!
//! **Credits belong to a connection** where the layer below has connections and reports their end
//! ([`Reception::on_disconnected`], [`Transmission::on_disconnected`]). No frame of an ended connection arrives any
//! more, so its promised room is free. The next connection spends no credits that were promised to the earlier one.

mod reception;
mod transmission;

use crate::time::Duration;

/// A receive queue is shorter than this, in frames, so fewer credits are promised at a time.
const QUEUE_MAX: u32 = 1 << 24;

/// Moves `before` by an eighth of the way to `last`, the newest sample.
fn smooth(before: Duration, last: Duration) -> Duration {
    Duration(before.0 - before.0 / 8 + last.0 / 8).max(Duration(1))
}

#[cfg(test)]
mod tests;

pub use reception::{NoCredit, Reception, ReceptionConfig, ReceptionCounters};
pub use sluicenet_wire::zcredit::Message;
pub use transmission::{Transmission, TransmissionConfig, TransmissionCounters};
