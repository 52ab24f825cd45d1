//! Quantized congestion notification (802.1Qau, clauses 30 to 32): the congestion point at an output of a switch, and the
//! reaction point at a sender.
//!
//! Names of settings are those of the standard's MIB (`ieee8021Cn...`), without their prefix.

pub mod congestion_point;
pub mod reaction_point;

use crate::frame::Priority;
use crate::rng::Rng;

pub use congestion_point::{CongestionPoint, CongestionPointConfig, Notification, Sampling};
pub use reaction_point::{ReactionPoint, ReactionPointConfig};

/// The largest quantised feedback: six bits.
pub const FEEDBACK_MAX: u8 = 63;

/// A congestion notification message, without the addresses of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Identifier of the congestion point.
    pub cpid: u64,
    /// The state of its queue.
    pub notification: Notification,
    /// The priority of the sampled frame.
    pub priority: Priority,
}

/// A length drawn evenly from 85 to 115 % of `mean`, so that samples and cycles of different flows do not stay in step.
fn jittered(mean: u64, rng: &mut Rng) -> u64 {
    let least = mean - mean * 15 / 100;
    least + rng.below(mean * 30 / 100 + 1)
}
