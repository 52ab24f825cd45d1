//! One door for both worlds: a frame comes in, a port that is ready is asked for its next frame, a deadline passes.

use alloc::vec::Vec;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::time::Instant;

/// A port of a box, counted from 0.
pub type PortId = u16;

/// Ports that became or stay ready to send; a port may be named twice, which costs one idle poll.
#[derive(Clone, Debug, Default)]
pub struct PortSet {
    ports: Vec<PortId>,
}

impl PortSet {
    /// An empty set with room for `ports`.
    pub fn with_capacity(ports: usize) -> PortSet {
        PortSet { ports: Vec::with_capacity(ports) }
    }
    /// Names a port.
    #[inline(always)]
    pub fn insert(&mut self, port: PortId) {
        self.ports.push(port);
    }
    /// Takes one out.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<PortId> {
        self.ports.pop()
    }
    /// Whether none is named.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}

/// What the world says of a box's wires.
pub trait Wires {
    /// Whether the wire of `port` could take a frame now. The data plane may always answer no.
    fn idle(&self, port: PortId) -> bool;
}

/// A box with ports.
///
/// A wire never takes a frame back: what finds no room is dropped by name inside the box.
pub trait Device {
    /// What it sends and receives.
    type Frame: Frame;

    /// A frame came in at `port`. An answer of `Some` means it goes straight out of that port, whose wire was idle: the
    /// box has forgotten it and the caller sends it as it is. Otherwise the box has made a copy or dropped it.
    fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &Self::Frame,
        wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId>;

    /// The wire of `port` is free: its next frame, which the box has already forgotten: the caller takes a copy before
    /// it calls again. `woke` names `port` again if more could follow.
    fn poll_transmit(&mut self, now: Instant, port: PortId, woke: &mut PortSet) -> Option<&Self::Frame>;

    /// Names the memory of the frames that `ports` will probably send next, to a caller that fetches ahead of its use.
    fn fetch_frames(&self, ports: impl Iterator<Item = PortId>, fetch: impl Fn(*const u8));

    /// Names the memory of packets that deadlines before `until` will move.
    fn fetch_lines(&self, _until: Instant, _fetch: impl Fn(*const u8)) {}

    /// Names the memory of the connections those packets belong to; what [`Device::fetch_lines`] named is here by now.
    fn fetch_sockets(&self, _until: Instant, _fetch: impl Fn(*const u8)) {}

    /// A deadline given by [`Device::poll_timeout`] passed.
    fn handle_timeout(&mut self, now: Instant, woke: &mut PortSet);

    /// The earliest deadline; [`Instant::MAX`] when there is none.
    fn poll_timeout(&self) -> Instant;
}
