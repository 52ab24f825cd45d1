//! Hedera: elephants are found at the edge, their demands estimated, and paths chosen for them that do not collide (Al-Fares
//! 2012, chapter 4).

pub mod demand;
pub mod detect;
pub mod placement;
pub mod scheduler;
pub mod tree;

/// A host's link: demands and reservations are whole numbers of its 2^-30th parts, so that sums are exact in any order.
pub const LINK: u32 = 1 << 30;

/// A host by number, edge switch by edge switch.
pub type Host = u32;
