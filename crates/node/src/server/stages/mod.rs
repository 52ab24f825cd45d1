//! The interface of a stage: one part of the chain between a guest's network port and the wire.
//!
//! A server's chain has two positions for stages:
//!
//! ```text
//! guests -> [gate stages] -> vSwitch -> [network stages] -> adapter -> wire
//!             a lane a VM                  one lane
//! ```
//!
//! A *gate* stage stands right below the guests, one lane a VM. With a vSwitch it sees every frame of every VM. A server without a vSwitch
//! has gate stages only, and they see the frames that leave or enter the server. A *network* stage stands between the vSwitch and the
//! adapter and sees the frames that leave or enter the server, all in lane 0. Both implement [`Stage`].
//!
//! A stage never calls its neighbours. The chain carries frames from one to the next, in four steps:
//!
//! | direction | in | out |
//! |---|---|---|
//! | to the network | [`Stage::send`] | [`Stage::poll_transmit`] |
//! | to the guests | [`Stage::receive`] | [`Stage::poll_receive`] |
//!
//! `send` and `receive` give the frame back when it may go on at once. A stage that gives nothing back either keeps the frame and hands it
//! out by the `poll` method of the same direction, or consumes it. All methods have defaults that let every frame through, so a stage
//! implements only the steps in which it acts.
//!
//! `docs/extending/stage.md` builds a gate stage step by step: a token bucket for each VM.
//!
//! A stage that needs frames of its own makes them by [`Context::insert`] in `poll_transmit` (to the network) or `poll_receive` (to the
//! guests) and counts them in [`Report::made`]. A stage that answers a frame from the network consumes it in `receive` by
//! [`Context::release`], counts it in [`Report::consumed`], and hands out the answer by `poll_transmit`. The test stage in
//! `tests.rs` does all of this.
//!
//! # Settings
//!
//! A server's settings name its stages by [`StageConfig`], in two lists from the top down
//! ([`ServerConfig::gate`](crate::server::ServerConfig::gate), [`VirtualConfig::network`](crate::server::VirtualConfig::network)). The
//! world builder fills them, a line for each stage.

mod compose;
mod context;
pub(super) mod credits;
#[cfg(test)]
mod tests;
pub(super) mod tunnels;
pub(super) mod xco;
pub(super) mod zbridge;

pub use compose::{Pair, compose};
pub use context::Context;
pub(super) use context::FIRST_SLOT;

use crate::packet::{Address, Packet};
use crate::pool::Handle;
use alloc::boxed::Box;
use core::any::Any;
use core::fmt::Debug;
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zbridge::ChannelCounters;
pub use xco::XcoReport;

/// A path on which frames go through a stage: the number of their VM in a gate stage, 0 in a network stage.
pub type Lane = usize;

/// Frames of one VM to one destination in one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// The sending VM of this server.
    pub vm: u8,
    /// The destination.
    pub to: Address,
    /// The class.
    pub priority: Priority,
}

/// Accounts of stages, added up over a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames that stages made, repetitions among them.
    pub made: u64,
    /// Frames that stages consumed.
    pub consumed: u64,
    /// Frames in the queues of stages.
    pub queued: u64,
    /// Copies of sent frames, kept for repetition.
    pub copies: u64,
    /// Frames that entered TCP tunnels here.
    pub tunnels_in: u64,
    /// Frames that left TCP tunnels here, and frames announced to them that have not left.
    pub tunnels_out: u64,
    /// The longest receive queue of a VM so far, in frames; `None` without receive queues.
    pub receive_queue_max: Option<u32>,
    /// Counters of zBridge; `None` without it.
    pub channels: Option<ChannelCounters>,
    /// Counters of XCo; empty without it.
    pub xco: alloc::vec::Vec<XcoReport>,
    /// Names of stages whose own accounts contradict each other.
    pub unsound: alloc::vec::Vec<&'static str>,
}

/// The settings of a stage.
pub trait StageConfig: Any + Debug + Send + Sync {
    /// The stage of a server with so many VMs. `seed` is that of the run.
    fn stage(&self, host: HostId, vms: usize, seed: u64) -> Box<dyn Stage>;
}

/// A stage of a server's chain. [The module](self) describes how frames go through it.
pub trait Stage: Debug + Send {
    // Sockets. `lane` is the VM, in a network stage too.

    /// Whether a socket of a VM may launch one more frame. `below` tells whether the chain below has room for it. Gate stages only: a
    /// network stage stops all VMs by [`Stage::takes`].
    #[inline(always)]
    fn has_room(&self, _lane: Lane, below: bool) -> bool {
        below
    }
    /// Whether this socket must wait although its VM has room, because of its destination. The stage remembers the socket and wakes it by
    /// [`Context::wake_sockets`]. A network stage is asked for destinations in other servers.
    #[inline(always)]
    fn blocks(&mut self, _lane: Lane, _to: Address, _socket: u32) -> bool {
        false
    }
    /// A frame left its socket; [`Stage::send`] follows when the guest's network stack has processed it. A network stage is told of frames
    /// to other servers; a gate stage or a lossy vSwitch can drop them before they reach it.
    #[inline(always)]
    fn on_launch(&mut self, _lane: Lane, _to: Address) {}

    // To the network.

    /// The length in bytes of its longest frame to the network, given that of the frames from above.
    #[inline(always)]
    fn max_frame(&self, from_above: u32) -> u32 {
        from_above
    }
    /// Whether [`Stage::send`] takes a frame now. A network stage is not given any before it has room; a gate stage is, because its guests
    /// asked [`Stage::has_room`] at launch.
    #[inline(always)]
    fn takes(&self) -> bool {
        true
    }
    /// A frame comes from above. Returns it if it may go on at once.
    #[inline(always)]
    fn send(&mut self, _now: Instant, _lane: Lane, at: Handle, _cx: &mut Context<'_>) -> Option<Handle> {
        Some(at)
    }
    /// A stage above is about to send frames of this flow.
    #[inline(always)]
    fn expect(&mut self, _now: Instant, _flow: Flow, _cx: &mut Context<'_>) {}
    /// The next flow of which this stage is about to send frames, for [`Stage::expect`] of the stages below.
    #[inline(always)]
    fn poll_expected(&mut self) -> Option<Flow> {
        None
    }
    /// Lanes for which [`Stage::poll_transmit`] may have a frame, one bit each.
    #[inline(always)]
    fn ready(&self) -> u64 {
        0
    }
    /// The next frame of a lane to the network; the chain has room for it. A lane without one is not [ready](Stage::ready) afterwards, unless
    /// something below it blocks it.
    #[inline(always)]
    fn poll_transmit(&mut self, _now: Instant, _lane: Lane, _cx: &mut Context<'_>) -> Option<Handle> {
        None
    }

    // To the guests.

    /// Whether this frame from the network ends in this stage, so that it needs no room above.
    #[inline(always)]
    fn consumes(&self, _packet: &Packet) -> bool {
        false
    }
    /// Whether frames wait in this stage for room above: later ones may not overtake them.
    #[inline(always)]
    fn is_blocked(&self) -> bool {
        false
    }
    /// Whether a gate stage has receive queues: it takes frames while the port of their VM is busy, and gives none back at once. A gate
    /// stage that holds frames to the guests needs them.
    #[inline(always)]
    fn has_receive_queues(&self) -> bool {
        false
    }
    /// A frame comes from below. Returns it if it may go on at once.
    #[inline(always)]
    fn receive(&mut self, _now: Instant, _lane: Lane, at: Handle, _cx: &mut Context<'_>) -> Option<Handle> {
        Some(at)
    }
    /// Whether [`Stage::poll_receive`] has a frame now. The chain asks after a frame has arrived, when the port of the VM becomes free, and
    /// after a timer of a gate stage.
    #[inline(always)]
    fn has_received(&self, _lane: Lane) -> bool {
        false
    }
    /// The next frame of a lane to the guests; the chain above has room for it.
    #[inline(always)]
    fn poll_receive(&mut self, _now: Instant, _lane: Lane, _cx: &mut Context<'_>) -> Option<Handle> {
        None
    }
    /// Metadata arrived that the peer stage sent beside its frames by [`Context::send_metadata`]. Stages right above the adapter only: network
    /// stages and, in a server without a vSwitch, gate stages.
    #[inline(always)]
    fn receive_metadata(&mut self, _now: Instant, _packet: &Packet, _cx: &mut Context<'_>) {}

    // Time.

    /// How many slots for timers the stage has: one, unless it is composed of several stages.
    #[inline(always)]
    fn slots(&self) -> u8 {
        1
    }
    /// A timer of the stage that was set for `at` expired. Timers cannot be cancelled: a stage ignores one it no longer needs.
    fn handle_timer(&mut self, _now: Instant, _at: Instant, _slot: u8, _token: u64, _cx: &mut Context<'_>) {}

    // Accounting.

    /// Adds the stage's accounts to those of the other stages.
    fn report(&self, _report: &mut Report) {}
}
