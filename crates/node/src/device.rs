//! The interface of a device, common to both worlds: it receives a frame, provides a ready port's next frame, and handles
//! a deadline.

use crate::pool::{Handle, Pool};
use alloc::vec::Vec;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::rng::{hash_words, mix64};
use sluicenet_proto::time::Instant;

/// A port of a box, counted from 0.
pub type PortId = u16;

/// Ports that became ready to send, or stay ready after a poll. A port may be named twice, which costs one idle poll.
#[derive(Clone, Debug, Default)]
pub struct PortSet {
    /// The port that comes next: there is seldom another.
    next: Option<PortId>,
    /// The others, the one after it last.
    others: Vec<PortId>,
}

impl PortSet {
    /// An empty set with room for `ports`.
    pub fn with_capacity(ports: usize) -> PortSet {
        PortSet { next: None, others: Vec::with_capacity(ports) }
    }
    /// Names a port.
    #[inline(always)]
    pub fn insert(&mut self, port: PortId) {
        if let Some(before) = self.next.replace(port) {
            self.others.push(before);
        }
    }
    /// Takes a port out.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<PortId> {
        let port = self.next?;
        self.next = self.others.pop();
        Some(port)
    }
    /// Whether the set is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.next.is_none()
    }
}

/// The order of simultaneous arrivals at a box. It is drawn anew for each instant from seed, box and time alone. No port
/// is favoured, and no result depends on the order in which a world found the arrivals.
#[derive(Clone, Copy, Debug)]
pub struct TieBreak(u64);

impl TieBreak {
    /// The order for the instant `at`, in picoseconds, at the box that the world calls `node`.
    pub fn new(seed: u64, node: u32, at: u64) -> TieBreak {
        TieBreak(hash_words(&[seed, node as u64, at]))
    }
    /// The first sort key of an arrival at `port`; the second is the port's number.
    #[inline(always)]
    pub fn of(self, port: PortId) -> u64 {
        mix64(self.0 ^ mix64(port as u64 + 1))
    }
}

/// The world's information about a box's wires.
pub trait Wires {
    /// Whether the wire of `port` could take a frame now. The data plane may always answer no.
    fn idle(&self, port: PortId) -> bool;
}

/// A box with ports, for frames of one kind.
///
/// Frames stay in place in the caller's [`Pool`]; the interface passes their handles. A box that is given a handle owns
/// it until the box hands it out again or releases it. A wire never takes a frame back: a frame that finds no room is
/// dropped and counted inside the box.
pub trait Device<F: Frame> {
    /// Receives a frame at `port`. `Some` means that the frame goes straight out of the returned port, whose wire was
    /// idle: the caller owns the frame again, no port was woken and no deadline moved. Otherwise the box keeps the frame
    /// or has released it.
    fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        at: Handle,
        pool: &mut Pool<F>,
        wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId>;

    /// Provides the next frame of `port`, whose wire is free; the caller owns the frame. `woke` names `port` again if
    /// more frames could follow.
    fn poll_transmit(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>, woke: &mut PortSet) -> Option<Handle>;

    /// Handles a deadline given by [`Device::poll_timeout`].
    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<F>, woke: &mut PortSet);

    /// The earliest deadline; [`Instant::MAX`] when there is none.
    fn poll_timeout(&self) -> Instant;

    /// The frame that probably follows `sent` on its wire, for a caller that prefetches memory: mostly the one behind it in
    /// its queue.
    #[inline(always)]
    fn next_frame(&self, sent: Handle, pool: &Pool<F>) -> Handle {
        pool.behind(sent)
    }
}
