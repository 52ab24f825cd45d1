//! One interface of a device for both worlds: a frame comes in, a port that is ready is asked for its next frame, a deadline passes.

use crate::pool::{Handle, Pool};
use alloc::vec::Vec;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::rng::{hash_words, mix64};
use sluicenet_proto::time::Instant;

/// A port of a box, counted from 0.
pub type PortId = u16;

/// Ports that became ready to send, or stay so after they were asked; one may be named twice, which costs one idle poll.
#[derive(Clone, Debug, Default)]
pub struct PortSet {
    /// The first one: seldom is there another.
    first: Option<PortId>,
    others: Vec<PortId>,
}

impl PortSet {
    /// An empty set with room for `ports`.
    pub fn with_capacity(ports: usize) -> PortSet {
        PortSet { first: None, others: Vec::with_capacity(ports) }
    }
    /// Names a port.
    #[inline(always)]
    pub fn insert(&mut self, port: PortId) {
        if self.first.is_none() {
            self.first = Some(port);
        } else {
            self.others.push(port);
        }
    }
    /// Takes one out.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<PortId> {
        if self.others.is_empty() { self.first.take() } else { self.others.pop() }
    }
    /// Whether none is named.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

/// The order of what arrives at a box in one instant: drawn anew for each, from nothing but seed, box and time, so that no port
/// is favoured and no result hangs on the order in which a world happened to find out.
#[derive(Clone, Copy, Debug)]
pub struct TieBreak(u64);

impl TieBreak {
    /// That of an instant, in picoseconds, at the box that the world calls `node`.
    pub fn new(seed: u64, node: u32, at: u64) -> TieBreak {
        TieBreak(hash_words(&[seed, node as u64, at]))
    }
    /// What an arrival at `port` is sorted by, before the port's own number.
    #[inline(always)]
    pub fn of(self, port: PortId) -> u64 {
        mix64(self.0 ^ mix64(port as u64 + 1))
    }
}

/// How far a caller of [`Device::fetch`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStep {
    /// The box itself is at hand.
    Lists,
    /// Its lists are, and the frames that arrive or whose deadline passes.
    Index,
    /// The index of its connections is.
    Sockets,
}

/// What the world says of a box's wires.
pub trait Wires {
    /// Whether the wire of `port` could take a frame now. The data plane may always answer no.
    fn idle(&self, port: PortId) -> bool;
}

/// A box with ports, for frames of one kind.
///
/// Frames stay where they are, in the caller's [`Pool`]; the interface passes their handles. A box that is given one owns it
/// until it hands it out again or releases it. A wire never takes a frame back: what finds no room is dropped by name
/// inside the box.
pub trait Device<F: Frame> {
    /// A frame came in at `port`. An answer of `Some` means it goes straight out of that port, whose wire was idle: the
    /// caller owns it again, no port was woken and no deadline moved. Otherwise the box keeps it or has released it.
    fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        at: Handle,
        pool: &mut Pool<F>,
        wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId>;

    /// The wire of `port` is free: its next frame, which is the caller's now. `woke` names `port` again if more could
    /// follow.
    fn poll_transmit(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>, woke: &mut PortSet) -> Option<Handle>;

    /// The frame that `port` will probably send next, for a caller that fetches memory ahead of its use.
    fn upcoming(&self, port: PortId) -> Option<Handle>;

    /// Names the memory that what happens next will touch, to a caller that fetches it ahead: the `arrivals`
    /// and the next deadlines. What a step reads, the steps before have named.
    fn fetch(
        &self,
        _step: PrefetchStep,
        _arrivals: impl Iterator<Item = Handle>,
        _pool: &Pool<F>,
        _fetch: impl Fn(*const u8),
    ) {
    }

    /// A deadline given by [`Device::poll_timeout`] passed.
    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<F>, woke: &mut PortSet);

    /// The earliest deadline; [`Instant::MAX`] when there is none.
    fn poll_timeout(&self) -> Instant;
}
