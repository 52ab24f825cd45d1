//! zBridge: between two VMs on different servers, frames are neither lost nor doubled nor out of order (Crisan 2014,
//! Algorithm 5.3), at the price of next to nothing where the network does none of that.
//!
//! [`Channel`] is one end of it, for both directions. Frames have sequence numbers. The sender keeps a copy of each until it is
//! acknowledged, asks for an acknowledgement with every `P`-th and where it has heard nothing for a time; the receiver answers what
//! it has and what it lacks. Where all frames take one path, it says so at once when one is missing. No loss ever slows it down:
//! in a lossless network it means a broken frame and not a full queue.
//!
//! What the source does not say:
//!
//! - **Connections.** Both ends give one a random number, which is also their first sequence number, and which every frame names, so
//!   that what is left of an old connection never counts for a new one. Who is asked to begin while it has a connection goes on with
//!   that until the new one is confirmed: an old or forged greeting changes nothing.
//! - **Who was restarted** has no memory of what it delivered. What was not acknowledged is handed back to the caller
//!   ([`Channel::take_unacknowledged`]), who may send it again: frames may come twice then, and never out of order.

mod channel;
mod receiver;
mod sender;

#[cfg(test)]
mod tests;

pub use channel::{Channel, ChannelConfig, ChannelCounters, Outgoing, Refusal};
pub use sluicenet_wire::zbridge::{Header, Kind, RANGES_MAX, Ranges};
