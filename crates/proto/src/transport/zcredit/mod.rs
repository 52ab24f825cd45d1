//! zCredit: a frame is sent to a VM when that VM's hypervisor has granted a credit for it (Crisan 2014, Algorithms 5.1 and 5.2).
//!
//! [`Transmission`] is one VM's end towards one other; [`Reception`] is the receive queue of a VM, with all who send to it.
//!
//! Two things differ from the algorithms as they are printed.
//!
//! - **Nothing leaks.** Algorithm 5.2 grants the first waiting request in part and forgets the rest of it, and never counts what it
//!   grants after a wait, so that `total_granted` wraps and `cdt_requested` never comes down: the sender stalls. Here a request
//!   that was granted in part stays in its place in the round, and every credit is in exactly one of three places: promised to
//!   somebody, a frame in the queue, or free. The three add up to `RXQsize` at all times. `tests::as_printed` keeps the stall.
//! - **Messages may be lost, doubled, delayed, reordered and forged.** So no message says "so many more": all counts are totals since
//!   the channel began, compared modulo 2^32, and the last word wins. Whoever waits asks again.
//!
//! **Credits come back.** Who has been granted credits and spends none is asked where it is ([`Message::Probe`]). Credits
//! that were spent on frames which never came are free again after [`ReceptionConfig::reclaim_after`]; those of somebody who
//! spends none and returns none, whether dead or greedy, are taken back at the [`ReceptionConfig::deadline`] and its channel is
//! ended. Frames that were sent for them just then still have their room, for as long as one may be on its way.
//!
//! **Nobody holds a receiver's credits against others.** Round robin alone gives credits to whoever wants some, and he who spends his
//! slowly comes to hold all of them: then everybody has the slowest one's speed. What a source may have unspent is bounded by how soon its
//! credits come back, beside those of the quickest ([`Reception`], `allowance`); and all together have no more than keeps the last link
//! busy and some more. Where the network's ports have room for that, nobody is stopped there, and turns decide who has how much of the link.
//!
//! **Credits are of a connection**, where the layer below has any and says that one has ended ([`Reception::on_disconnected`],
//! [`Transmission::on_disconnected`]): nothing that was sent by it arrives any more, so that what was promised for it is free, and nothing
//! that was promised to its ends before is spent by the next one.

mod reception;
mod transmission;

use crate::time::Duration;

/// A receive queue is shorter than this, in frames, and so less is promised at a time.
const QUEUE_MAX: u32 = 1 << 24;

/// An eighth of the way to what was seen last.
fn smooth(before: Duration, last: Duration) -> Duration {
    Duration(before.0 - before.0 / 8 + last.0 / 8).max(Duration(1))
}

#[cfg(test)]
mod tests;

pub use reception::{NoCredit, Reception, ReceptionConfig, ReceptionCounters};
pub use sluicenet_wire::zcredit::Message;
pub use transmission::{Transmission, TransmissionConfig, TransmissionCounters};
