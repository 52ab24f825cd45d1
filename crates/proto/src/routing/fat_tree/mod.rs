//! The k-ary fat-tree of commodity switches (Al-Fares 2012, chapter 3): its addresses, its tables, and the ways of choosing among
//! its paths that need more than a switch's own arithmetic.
//!
//! | file | has |
//! |---|---|
//! | `address` | switches and hosts by name, number and IP address (3.1.2), and who is linked to whom |
//! | `table` | two-level tables, in two steps and in TCAM order (3.1.3 to 3.1.5) |
//! | `classifier` | the flow classifier (3.1.6, figure 3.11) |
//! | `scheduler` | the central flow scheduler (3.1.7, 3.4.3) |
//! | `reporter` | which flows are large, and their paths in the words of Hedera's scheduler |
//! | `tags` | the broadcast of failures (3.1.8) |
//! | `ports` | a set of upward ports |
//!
//! What forwards frames in a simulation is [`super::tree`], which does by arithmetic what the tables say.

mod address;
pub mod classifier;
pub mod ports;
pub mod reporter;
pub mod scheduler;
mod table;
pub mod tags;

pub use address::{FatTree, FatTreeError, PORTS_MAX, Peer, Switch};
pub use table::{Next, Prefix, Suffix, TcamEntry, TwoLevelTable, first_match};
