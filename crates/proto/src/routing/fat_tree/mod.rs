//! The k-ary fat-tree of commodity switches (Al-Fares 2012, chapter 3): its addresses, its tables, and the methods for
//! choosing among its paths that need more than a switch's own arithmetic.
//!
//! | file | content |
//! |---|---|
//! | `address` | switches and hosts by name, number and IP address (3.1.2), and their links |
//! | `table` | two-level tables, in two steps and in TCAM order (3.1.3 to 3.1.5) |
//! | `classifier` | the flow classifier (3.1.6, figure 3.11) |
//! | `scheduler` | the central flow scheduler (3.1.7, 3.4.3) |
//! | `reporter` | large flows, and their paths in the types of Hedera's scheduler |
//! | `tags` | the broadcast of failures (3.1.8) |
//! | `ports` | a set of upward ports |
//!
//! In a simulation [`super::tree`] forwards the frames: its arithmetic gives the same ports as the tables.

mod address;
pub mod classifier;
pub mod ports;
pub mod reporter;
pub mod scheduler;
mod table;
pub mod tags;

pub use address::{FatTree, FatTreeError, PORTS_MAX, Peer, Switch};
pub use table::{Next, Prefix, Suffix, TcamEntry, TwoLevelTable, first_match};
