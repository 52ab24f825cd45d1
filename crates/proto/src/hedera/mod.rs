//! Hedera: elephants are found at the edge, their demands estimated, and non-colliding paths chosen for them (Al-Fares
//! 2012, chapter 4).

pub mod demand;
pub mod detect;
pub mod placement;
pub mod scheduler;
pub mod tree;

/// A host's link: demands and reservations are integer multiples of 2^-30 of a link, so that sums are exact in any order.
pub const LINK: u32 = 1 << 30;

/// A host by number, edge switch by edge switch.
pub type Host = u32;
