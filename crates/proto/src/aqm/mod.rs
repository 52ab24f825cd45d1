//! Active queue management: rules that mark or drop a packet before its queue is full.

mod red;

pub use red::{Red, RedConfig};

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The packet goes on unchanged.
    Pass,
    /// The packet is marked if its transport understands marks; otherwise it is dropped.
    Mark,
    /// The packet is dropped.
    Drop,
}
