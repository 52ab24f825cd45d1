//! NetBump: active queue management for switches that have none, by a bump in the wire (Al-Fares 2012, chapter 5).
//!
//! A bump forwards every packet from one end of a link to the other and never queues it. On the way it estimates how full the
//! output queue of the next switch is where the packet is going, and an *application* marks, drops or changes the packet as
//! that switch would have done. The pipeline (Figure 5.4) is
//!
//! ```text
//! classify -> estimate the drain of the virtual queue -> mark or drop, process -> forward
//! ```
//!
//! [`App`] has the six calls of Table 5.1, [`pass`] is the pipeline. The driver owns the table of virtual queues: all links of
//! a bump share it, and several threads can if the driver locks each [`Slot`].

mod chain;
mod dctcp;
mod filter;
mod l4s;
mod map;
mod qcn;
mod red;
mod updates;
mod virtual_queue;

#[cfg(test)]
mod testing;

pub use chain::{Chain, ChainState, Link, Stock, StockState};
pub use dctcp::Dctcp;
pub use filter::Filter;
pub use l4s::L4s;
pub use map::{Map, Port, QueueId};
pub use qcn::{BumpCongestionPoint, BumpReactionPoint, CongestionPointState, LIMITERS_MAX, ReactionPointState};
pub use red::Red;
pub use updates::{Counts as UpdateCounts, Ports, Receiver, Reporter, Sequence};
pub use virtual_queue::VirtualQueue;

use crate::cee::qcn::Message;
use crate::loss::DropReason;
use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::vec::Vec;
use core::fmt::Debug;
use sluicenet_wire::ipv4::Ecn;

/// Bytes of the packets by which the source counts thresholds: the frames of its testbed, at an MTU of 1,500 B.
pub const PACKET_BYTES: u32 = 1_518;

/// A packet in a bump, in either world.
pub trait Packet {
    /// The name of a flow, from which the driver can address a notification to its sender.
    type Flow: Copy + PartialEq + Debug + Send;

    /// Bytes on the wire, with preamble and gap.
    fn wire_bytes(&self) -> u64;
    /// The destination, as the bump's [`Map`] lists it; for a notification the destination of the packet it is about.
    fn destination(&self) -> u64;
    /// Its flow; for a notification the flow that it is about.
    fn flow(&self) -> Self::Flow;
    /// The fields by which a [`Filter`] chooses packets.
    fn fields(&self) -> Fields;
    /// The ECN field of its outermost IP header.
    fn ecn(&self) -> Ecn;
    /// Marks it with Congestion Experienced if its transport supports ECN; returns whether it does.
    fn mark(&mut self) -> bool;
    /// The message of a congestion notification, if it is one.
    fn notification(&self) -> Option<Message>;
}

/// The fields of a packet by which packets are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The sender: a host in the simulator, an IPv4 address on a wire; 0 if there is none.
    pub source: u64,
    /// The receiver, likewise.
    pub destination: u64,
    /// The sender's port of TCP or UDP, else 0.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// IP's protocol number, else 0.
    pub protocol: u8,
    /// The 802.1Q priority.
    pub priority: u8,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, changed or not.
    Forward,
    /// It is dropped, and taken out of the virtual queue.
    Drop(DropReason),
    /// It was for the bump itself.
    Consume,
}

/// A frame of the bump's own: a notification to the sender of a flow, against the direction of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice<F> {
    /// The flow.
    pub about: F,
    /// The message.
    pub message: Message,
}

/// An application of a bump: the calls of Table 5.1. The state of an application is kept for each virtual queue.
pub trait App<P: Packet> {
    /// The state of a virtual queue.
    type State: Send;

    /// `init`: the state of a virtual queue that drains at `rate`.
    fn init(&self, queue: QueueId, rate: Rate) -> Self::State;

    /// `classify`: the virtual queue of a packet; a packet without one passes unseen.
    #[inline(always)]
    fn classify(&self, packet: &P, map: &Map) -> Option<QueueId> {
        map.queue_of(packet.destination())
    }

    /// `vAQM`: the packet enters the virtual queue.
    #[inline(always)]
    fn vaqm(&self, _state: &mut Self::State, now: Instant, packet: &P, queue: &mut VirtualQueue) {
        queue.arrive(now, packet.wire_bytes());
    }

    /// `estimateQlen`: the bytes in the virtual queue.
    #[inline(always)]
    fn estimate_qlen(&self, _state: &Self::State, now: Instant, queue: &VirtualQueue) -> u64 {
        queue.bytes(now)
    }

    /// `process`: the decision about the packet, which has entered the virtual queue. `found` is the virtual queue as the
    /// packet found it.
    fn process(
        &self,
        state: &mut Self::State,
        now: Instant,
        packet: &mut P,
        queue: &mut VirtualQueue,
        found: Found,
        notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict;

    /// `forward`: the port by which a packet from port `from` leaves: the other end of its link, unless the application
    /// chooses another one.
    #[inline(always)]
    fn forward(&self, _packet: &P, from: u16) -> u16 {
        from ^ 1
    }

    /// Rates of the application's limiters and averages of its queues, by name, for metrics.
    fn gauges(&self, _state: &Self::State, _show: &mut dyn FnMut(&'static str, f64)) {}
}

/// The virtual queue that a packet found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The time that it had been empty, if it was.
    pub idle: Option<Duration>,
}

/// A virtual queue with the state of the application, in a bump's table.
#[derive(Clone, Debug)]
pub struct Slot<S> {
    /// The estimate.
    pub queue: VirtualQueue,
    /// The application's state.
    pub state: S,
    /// The counters.
    pub counts: Counts,
}

/// Counters of a virtual queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that entered it.
    pub packets: u64,
    /// Packets that the application marked.
    pub marked: u64,
    /// Packets that the application dropped.
    pub dropped: u64,
    /// Notifications for the bump.
    pub consumed: u64,
    /// Notifications that the bump sent.
    pub notices: u64,
    /// Packets that neighbouring bumps reported.
    pub reported: u64,
}

impl<S> Slot<S> {
    /// The virtual queue of a port, empty.
    pub fn new<P: Packet>(app: &impl App<P, State = S>, id: QueueId, port: Port) -> Slot<S> {
        let queue = VirtualQueue::new(port.rate, port.buffer_bytes);
        Slot { state: app.init(id, port.rate), queue, counts: Counts::default() }
    }
}

/// The pipeline for one packet, behind its classification (Figures 5.4 and 5.5). Notifications that the application sends are
/// added to `notices`.
#[inline(always)]
pub fn pass<P: Packet, A: App<P>>(
    app: &A,
    slot: &mut Slot<A::State>,
    now: Instant,
    packet: &mut P,
    notices: &mut Vec<Notice<P::Flow>>,
) -> Verdict {
    let Slot { queue, state, counts } = slot;
    let wait = queue.empty_at();
    let found = Found { idle: (wait <= now).then(|| now.since(wait)) };
    let (is_notification, before) = (packet.notification().is_some(), notices.len());
    let was_marked = packet.ecn() == Ecn::Ce;
    if !is_notification {
        counts.packets += 1;
        app.vaqm(state, now, packet, queue);
    }
    let verdict = app.process(state, now, packet, queue, found, notices);
    match verdict {
        Verdict::Forward => counts.marked += u64::from(!was_marked && packet.ecn() == Ecn::Ce),
        Verdict::Drop(_) => {
            counts.dropped += 1;
            if !is_notification {
                queue.take_back(now, packet.wire_bytes());
            }
        }
        Verdict::Consume => counts.consumed += 1,
    }
    counts.notices += (notices.len() - before) as u64;
    verdict
}

/// Marks a packet, or drops it if its transport does not support ECN.
#[inline(always)]
fn mark_or_drop<P: Packet>(packet: &mut P) -> Verdict {
    if packet.mark() { Verdict::Forward } else { Verdict::Drop(DropReason::EarlyDrop) }
}
