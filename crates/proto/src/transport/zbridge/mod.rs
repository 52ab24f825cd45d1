//! zBridge: between two VMs on different servers, frames are neither lost nor doubled nor out of order (Crisan 2014,
//! Algorithm 5.3), at the price of next to nothing where the network does none of that.
//!
//! [`Channel`] is one end of the channel between two VMs, for both directions. Frames have sequence numbers. The sender
//! keeps a copy of each frame until the frame is acknowledged. The sender asks for an acknowledgement with every `P`-th
//! frame, and after a time without any message. The receiver answers which frames it has and which are missing. Where
//! all frames take one path, the receiver reports a missing frame at once. No loss ever slows the sender down: in a
//! lossless network a loss means a broken frame and not a full queue.
//!
//! Points that the source leaves open:
//!
//! - **Connections.** Both ends give a connection a random number, which is also their first sequence number. Every
//!   frame names the number, so leftovers of an old connection never count for a new one. An end that is asked to begin
//!   while it has a connection keeps this connection until the new one is confirmed. An old or forged greeting changes
//!   nothing.
//! - **A restarted end** has no memory of its deliveries. The other end hands its unacknowledged frames back to the
//!   caller ([`Channel::take_unacknowledged`]), who may send them again. Frames may come twice then, and never out of
//!   order.

mod channel;
mod receiver;
mod sender;

#[cfg(test)]
mod tests;

pub use channel::{Channel, ChannelConfig, ChannelCounters, Numbered, Outgoing, Refusal};
pub use sluicenet_wire::zbridge::{Header, Kind, RANGES_MAX, Ranges};
