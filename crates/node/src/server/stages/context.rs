//! What all stages of a server share.

use crate::packet::{FlowKey, Framing, Packet};
use crate::pool::{Handle, Pool};
use crate::server::host::{Host, initial_sequence};
use alloc::vec::Vec;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;

/// Timers of stages come after those of sockets and applications at one instant, in the order of their slots.
pub(in crate::server) const FIRST_SLOT: u8 = 3;

/// A stage's access to its server: frames, timers and sockets.
pub struct Context<'a> {
    pub(in crate::server) host: &'a mut Host,
    pub(in crate::server) pool: &'a mut Pool<Packet>,
    /// The timer slot of the stage that is called.
    pub(super) slot: u8,
}

impl<'a> Context<'a> {
    #[inline(always)]
    pub(in crate::server) fn new(host: &'a mut Host, pool: &'a mut Pool<Packet>, slot: u8) -> Context<'a> {
        Context { host, pool, slot }
    }

    /// The server's number.
    #[inline(always)]
    pub fn id(&self) -> HostId {
        self.host.id
    }
    /// The framing of packets.
    #[inline(always)]
    pub fn framing(&self) -> Framing {
        self.host.config.framing
    }
    /// The seed of the run: a stage derives its random numbers from it and from names of its own.
    pub fn seed(&self) -> u64 {
        self.host.config.seed
    }
    /// The initial sequence number of a TCP connection.
    pub fn initial_sequence(&self, flow: &FlowKey) -> u32 {
        initial_sequence(self.seed(), flow)
    }

    /// A frame.
    #[inline(always)]
    pub fn frame(&self, at: Handle) -> &Packet {
        self.pool.frame(at)
    }
    /// A frame, to change.
    #[inline(always)]
    pub fn frame_mut(&mut self, at: Handle) -> &mut Packet {
        self.pool.frame_mut(at)
    }
    /// Adds a frame of the stage's own.
    #[inline(always)]
    pub fn insert(&mut self, packet: &Packet) -> Handle {
        self.pool.insert(packet)
    }
    /// Removes a frame that the stage consumed.
    #[inline(always)]
    pub fn release(&mut self, at: Handle) {
        self.pool.release(at);
    }
    /// Drops a frame and counts it.
    pub fn drop(&mut self, reason: DropReason, at: Handle) {
        self.host.drop(self.pool, reason, at);
    }

    /// Sets a timer: [`Stage::handle_timer`](super::Stage::handle_timer) is called at `at` with this token.
    #[inline(always)]
    pub fn set_timer(&mut self, at: Instant, token: u64) {
        self.host.timers.push((at, FIRST_SLOT + self.slot, token));
    }
    /// Lets sockets of a VM go on that [`Stage::blocks`](super::Stage::blocks) stopped.
    #[inline(always)]
    pub fn wake_sockets(&mut self, vm: usize, sockets: Vec<u32>) {
        if !sockets.is_empty() {
            self.host.guests[vm].ready.extend(sockets);
            self.host.runnable |= (1 << vm) & !self.host.blocked;
        }
    }
    /// Sends metadata to the peer stage of another server, ahead of the frames that are sent from now on.
    pub fn send_metadata(&mut self, now: Instant, packet: Packet) {
        self.host.metadata.push((now, packet));
    }
}
