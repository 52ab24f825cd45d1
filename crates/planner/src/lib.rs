//! Networks on paper. A line belongs here when it knows a price, a cable or an export of a network that nobody runs.
//!
//! Properties of a k-ary fat-tree: its counts, tables, cost and cables, and exports for other tools (Al-Fares 2012,
//! 2.1.3 and 3).
#![forbid(unsafe_code)]

pub mod cables;
pub mod cost;
pub mod describe;
pub mod export;
pub mod hierarchical;
pub mod prices;
pub mod tables;
pub mod vlans;
