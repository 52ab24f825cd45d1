//! What an uplink is set up with.

use sluicenet_proto::cee::headroom::{Headroom, PFC_FRAME_BYTES};
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::cee::watchdog::{DETECTION_TIME, RESTORATION_TIME};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::{FCS_LEN, MIN_LEN, MacAddress};

/// Bytes of a frame on the wire besides itself: preamble, start delimiter and gap.
const GAP: u32 = 20;
/// What a link sends in this time waits for it at most of a class under flow control, and so many bytes at least.
const TRANSMITS: Duration = Duration::from_ms(1);
const TRANSMIT_LEAST: u32 = 64 << 10;
/// What goes to a device at once takes the link this part of what either end may take to answer, at most.
const AHEAD: u64 = 16;
/// A receiver that takes this part of the link's speed is slow, not stuck.
const SLOWEST: u64 = 50;

/// A link and the buffers at this end of it.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The address of this end.
    pub address: MacAddress,
    /// Its speed.
    pub rate: Rate,
    /// Bytes of its longest frame without the check sequence.
    pub max_frame: u32,
    /// Classes under flow control.
    pub lossless: PrioritySet,
    /// Watermarks of each of these classes.
    pub marks: Watermarks,
    /// Receive buffer of each other class, in bytes.
    pub buffer: u32,
    /// Bytes to be sent of a class under flow control above which it takes no more from the switch; of another one, its `buffer`.
    pub transmit: u32,
    /// Quanta that a pause asks for.
    pub quanta: u16,
    /// How far this end may fall behind the link and catch up: as long as its loop may take to come round.
    pub catch_up: Duration,
    /// How far it may be ahead of the link, with frames that a device takes at once: they are at the neighbour later, as if it had answered
    /// later.
    pub ahead: Duration,
    /// A class that has frames and was paused for so long is in a storm; see [`Link::patience`].
    pub detection_time: Duration,
    /// A storm is over when no pause came for so long.
    pub restoration_time: Duration,
}

/// A receive buffer that is too small for flow control on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHeadroom {
    /// Bytes of the buffer of a class.
    pub buffer: u32,
    /// Bytes it must have at least.
    pub needs: u64,
}

impl core::fmt::Display for NoHeadroom {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let NoHeadroom { buffer, needs } = self;
        write!(f, "a receive buffer of {buffer} bytes a class: flow control on this link takes at least {needs}")
    }
}

impl core::error::Error for NoHeadroom {}

impl Link {
    /// A link whose longest frame has `max_frame` bytes (destination to check sequence) and on which either end answers within
    /// `response`: cable, device queues, and the time a loop takes to come round. A class has `buffer` bytes to receive into.
    pub fn new(
        address: MacAddress,
        rate: Rate,
        max_frame: u32,
        response: Duration,
        lossless: PrioritySet,
        buffer: u32,
    ) -> Result<Link, NoHeadroom> {
        assert!(max_frame as usize >= MIN_LEN + FCS_LEN, "a link that carries the shortest frame");
        let headroom = Headroom {
            rate,
            data_delay: response,
            // What the other end fell behind it sends as well.
            pause_delay: Duration(2 * response.0),
            max_frame: max_frame + GAP,
            pfc_frame: PFC_FRAME_BYTES + GAP,
        };
        // Below XOFF there is room for two of the longest frames, or a class that is let go would be stopped by its first.
        let needs = headroom.bytes() + 2 * u64::from(max_frame);
        if u64::from(buffer) < needs {
            return Err(NoHeadroom { buffer, needs });
        }
        let xoff = buffer - headroom.bytes() as u32;
        // Crisan 2014, Table 2.1: XOFF at 97 KB, XON at 80 KB; a frame apart at least.
        let xon = (u64::from(xoff) * 80 / 97).min(u64::from(xoff - max_frame)) as u32;
        Ok(Link {
            address,
            rate,
            max_frame: max_frame - FCS_LEN as u32,
            lossless,
            marks: Watermarks { xoff, xon, capacity: buffer, headroom: buffer - xoff },
            buffer,
            // What is held waits with those who sent it, and nobody else's frames behind it.
            transmit: u32::try_from(rate.bytes_in(TRANSMITS)).unwrap_or(u32::MAX).max(TRANSMIT_LEAST).min(buffer),
            quanta: u16::MAX,
            catch_up: response,
            ahead: Duration::ZERO,
            detection_time: DETECTION_TIME.max(patience(response)),
            restoration_time: RESTORATION_TIME,
        })
    }

    /// Up to `bytes` may go to the device at once, as far as the time that this takes the link is little beside what either end may take
    /// to answer.
    pub fn with_bursts(self, bytes: u32) -> Link {
        Link { ahead: self.rate.time_for(bytes.into()).min(Duration(self.catch_up.0 / AHEAD)), ..self }
    }

    /// The least time after which a pause is a storm. Until a neighbour obeys it sends for as long as either end may take to answer,
    /// and the pause lasts until the receiver behind has taken that: so long at a fiftieth of the link's speed.
    pub fn patience(&self) -> Duration {
        patience(self.catch_up)
    }
}

fn patience(response: Duration) -> Duration {
    response.saturating_mul(SLOWEST)
}
