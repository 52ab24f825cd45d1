//! Settings of an uplink.

use sluicenet_proto::cee::headroom::{Headroom, PFC_FRAME_BYTES};
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::cee::watchdog::{DETECTION_TIME, RESTORATION_TIME};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::{FCS_LEN, MIN_LEN, MacAddress};

/// Extra bytes of a frame on the wire: preamble, start delimiter and gap.
const GAP: u32 = 20;
/// Limits of a lossless class's transmit queue: the bytes that the link sends in `TRANSMITS`, but at least
/// `TRANSMIT_LEAST`.
const TRANSMITS: Duration = Duration::from_ms(1);
const TRANSMIT_LEAST: u32 = 64 << 10;
/// Frames given to a device at once may take the link at most the response time of either end divided by this number.
const AHEAD: u64 = 16;
/// A receiver at the link's speed divided by this number is slow, not stuck.
const SLOWEST: u64 = 50;

/// A link and the buffers at this end of it.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The address of this end.
    pub address: MacAddress,
    /// The link's speed.
    pub rate: Rate,
    /// Bytes of the link's longest frame without the check sequence.
    pub max_frame: u32,
    /// Classes under flow control.
    pub lossless: PrioritySet,
    /// Watermarks of each of these classes.
    pub marks: Watermarks,
    /// Receive buffer of each other class, in bytes.
    pub buffer: u32,
    /// Limit of the bytes to be sent in a class under flow control. Above the limit the class takes no more frames from
    /// the switch. The limit of any other class is `buffer`.
    pub transmit: u32,
    /// Quanta requested by a pause.
    pub quanta: u16,
    /// Longest time that this end may fall behind the link and catch up: the longest round of its loop.
    pub catch_up: Duration,
    /// Longest time that this end may be ahead of the link, with frames that a device takes at once. The neighbour
    /// receives them later, as if it had answered later.
    pub ahead: Duration,
    /// A class that has frames and was paused for this time is in a storm; see [`Link::patience`].
    pub detection_time: Duration,
    /// A storm is over when no pause came for this time.
    pub restoration_time: Duration,
}

/// A receive buffer that is too small for flow control on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHeadroom {
    /// Bytes of a class's buffer.
    pub buffer: u32,
    /// Bytes that the buffer must have at least.
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
    /// A link whose longest frame has `max_frame` bytes (destination to check sequence) and on which either end answers
    /// within `response`. The response time includes the cable, device queues, and a round of the loop. A class has a
    /// receive buffer of `buffer` bytes.
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
            // The other end also sends the frames with which it catches up.
            pause_delay: Duration(2 * response.0),
            max_frame: max_frame + GAP,
            pfc_frame: PFC_FRAME_BYTES + GAP,
        };
        // Below XOFF there is room for two of the longest frames. Otherwise the first frame of a released class would
        // stop the class again.
        let needs = headroom.bytes() + 2 * u64::from(max_frame);
        if u64::from(buffer) < needs {
            return Err(NoHeadroom { buffer, needs });
        }
        let xoff = buffer - headroom.bytes() as u32;
        // Crisan 2014, Table 2.1: XOFF at 97 KB, XON at 80 KB; at least a frame between them.
        let xon = (u64::from(xoff) * 80 / 97).min(u64::from(xoff - max_frame)) as u32;
        Ok(Link {
            address,
            rate,
            max_frame: max_frame - FCS_LEN as u32,
            lossless,
            marks: Watermarks { xoff, xon, capacity: buffer, headroom: buffer - xoff },
            buffer,
            // Frames beyond this limit wait with their senders, and no other sender's frames wait behind them.
            transmit: u32::try_from(rate.bytes_in(TRANSMITS)).unwrap_or(u32::MAX).max(TRANSMIT_LEAST).min(buffer),
            quanta: u16::MAX,
            catch_up: response,
            ahead: Duration::ZERO,
            detection_time: DETECTION_TIME.max(patience(response)),
            restoration_time: RESTORATION_TIME,
        })
    }

    /// Allows up to `bytes` to go to the device at once. The link must send these bytes in a small part of either end's
    /// response time.
    pub fn with_bursts(self, bytes: u32) -> Link {
        Link { ahead: self.rate.time_for(bytes.into()).min(Duration(self.catch_up.0 / AHEAD)), ..self }
    }

    /// As [`patience`]. A neighbour sends for a response time of either end
    /// before it obeys. The pause lasts until the receiver behind has taken these frames, at a fiftieth of the link's
    /// speed or more.
    pub fn patience(&self) -> Duration {
        patience(self.catch_up)
    }
}

/// The shortest time after which a pause of a link with this response time counts as a storm.
pub fn patience(response: Duration) -> Duration {
    response.saturating_mul(SLOWEST)
}
