//! An end of a link: a port, its counters, and a capture.

use super::Frame;
use crate::port::Port;
use crate::shm;
use crate::tap::{Direction, Tap};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::netbump::QueueId;
use sluicenet_proto::time::Instant;

/// The longest LLDP frame that is kept: one of the usual length.
pub(super) const LLDP_MAX: usize = 1_514;

/// The port at an end of a link. Calls to ports in shared memory are static, for speed.
#[allow(clippy::large_enum_variant)]
pub(super) enum Kind {
    /// Memory shared with a program.
    Shm(shm::Port),
    /// Any other port.
    Other(Box<dyn Port>),
}

impl Kind {
    pub(super) fn get(&self) -> &dyn Port {
        match self {
            Kind::Shm(port) => port,
            Kind::Other(port) => &**port,
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut dyn Port {
        match self {
            Kind::Shm(port) => port,
            Kind::Other(port) => &mut **port,
        }
    }
}

/// The frames of an end, by fate. Frames that it took = frames that the other ends delivered + consumed + dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCounts {
    /// Frames taken from the port, and their bytes.
    pub taken: u64,
    /// Bytes of these frames.
    pub bytes_taken: u64,
    /// Frames delivered to the port, with those that the bump sent itself.
    pub delivered: u64,
    /// Bytes of these frames.
    pub bytes_delivered: u64,
    /// Frames that the bump sent itself to the port.
    pub own: u64,
    /// Frames of the bump's own that found no room and were dropped.
    pub own_lost: u64,
    /// Frames from the port that were for the bump.
    pub consumed: u64,
    /// Further frames into which frames for the port were cut.
    pub segments: u64,
    /// Further frames into which frames from the port were cut for a program.
    pub split: u64,
    /// Frames from the port that the bump dropped.
    pub dropped: Drops,
    /// Frames from the port whose destination has no virtual queue.
    pub unmapped: u64,
    /// Times that the port's next frame had to wait, because the other end had no room.
    pub held_back: u64,
    /// Frames that ports which are gone held, and dropped before the bump saw them.
    pub gone_refused: Drops,
    /// Frames that had been delivered to ports which are gone, and were lost there.
    pub gone_lost: Drops,
}

/// An end of a link, in cache lines of its own.
#[repr(align(128))]
pub(super) struct End {
    pub name: String,
    pub port: Option<Kind>,
    pub tap: Option<Box<Tap>>,
    pub counts: EndCounts,
    /// Whether its next frame waits.
    pub blocked: bool,
    /// Segments of its next frame that were delivered already, and how the frame left the pipeline.
    pub cut: u32,
    pub kept: (Frame, Option<QueueId>),
    /// The last LLDP frame from the other side, and when it came.
    pub lldp: (Vec<u8>, Instant),
}

impl End {
    pub fn new(name: &str) -> End {
        End {
            name: name.to_owned(),
            port: None,
            tap: None,
            counts: EndCounts::default(),
            blocked: false,
            cut: 0,
            kept: (Frame::default(), None),
            lldp: (Vec::with_capacity(LLDP_MAX), Instant::ZERO),
        }
    }

    /// Copies a frame for a capture.
    #[inline(always)]
    pub fn show(&mut self, direction: Direction, len: u32, dropped: Option<DropReason>, bytes: &[u8]) {
        if let Some(tap) = &mut self.tap {
            tap.take(direction, len, dropped, |into| into.copy_from_slice(&bytes[..into.len()]));
        }
    }

    /// Removes the port. Frames inside it are lost with it.
    pub fn unplug(&mut self) -> bool {
        let Some(port) = self.port.take() else { return false };
        let mut inside = port.get().inside();
        inside.lost.count_many(DropReason::PortGone, inside.waiting.into(), 0);
        self.counts.gone_refused.add(&inside.refused);
        self.counts.gone_lost.add(&inside.lost);
        (self.tap, self.blocked, self.cut) = (None, false, 0);
        true
    }
}
