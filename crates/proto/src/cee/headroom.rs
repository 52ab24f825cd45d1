//! The buffer a lossless class needs on top of XOFF (802.1Qbb, annex O; the form SONiC uses).

use crate::time::Duration;
use crate::units::Rate;

/// Length of a PFC frame from destination address to frame check sequence (802.1Qbb, 36.2: the minimum frame).
pub const PFC_FRAME_BYTES: u32 = 64;

/// The delays and frame sizes that decide how many bytes still arrive after a buffer reaches XOFF.
#[derive(Clone, Copy, Debug)]
pub struct Headroom {
    /// Speed of the link.
    pub rate: Rate,
    /// Latency of data from the remote transmitter to this buffer: cable, PHY and pipelines.
    pub data_delay: Duration,
    /// Latency of the PFC frame from here to the remote transmitter's gate, its response time included.
    pub pause_delay: Duration,
    /// Largest frame in either direction, in bytes on the wire (preamble and gap included).
    pub max_frame: u32,
    /// A PFC frame in bytes on the wire.
    pub pfc_frame: u32,
}

impl Headroom {
    /// Bytes to keep free above XOFF so that nothing is ever dropped.
    ///
    /// A whole frame crosses XOFF, so that the buffer may stand almost a largest frame above it. In the worst case the
    /// PFC frame then waits behind a largest frame that has just started, takes its own time on the wire and
    /// `pause_delay` to act, and just before it acts the peer starts a largest frame: all that time and
    /// `data_delay` the link keeps delivering.
    pub fn bytes(&self) -> u64 {
        let in_flight = self.rate.bytes_in(self.data_delay + self.pause_delay);
        in_flight + 3 * self.max_frame as u64 + self.pfc_frame as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_zero_metres_it_is_three_frames_and_a_pause() {
        // The frame that crosses XOFF, the frame before the pause, the pause, and the frame that had just started: 4,698 B.
        // Crisan 2014, Table 2.1 leaves only 3,000 B between 97 and 100 KB.
        let h = Headroom {
            rate: Rate::gbps(10),
            data_delay: Duration::ZERO,
            pause_delay: Duration::ZERO,
            max_frame: 1538,
            pfc_frame: 84,
        };
        assert_eq!(h.bytes(), 3 * 1538 + 84);
        let far = Headroom { data_delay: Duration::from_ns(500), pause_delay: Duration::from_ns(500), ..h };
        assert_eq!(far.bytes(), 3 * 1538 + 84 + 1250);
    }
}
