//! The buffer a lossless class needs on top of XOFF (802.1Qbb, annex O; the form SONiC uses).

use super::pfc::quanta_time;
use crate::time::Duration;
use crate::units::Rate;

/// Length of a PFC frame from destination address to frame check sequence (802.1Qbb, 36.2: the minimum frame).
pub const PFC_FRAME_BYTES: u32 = 64;

/// The longest response of a peer to a PFC frame, in quanta, up to each rate in Gb/s: the figures that SONiC's
/// `buffer_headroom_mellanox.lua` takes for an adapter or switch of that speed.
const PEER_RESPONSE: [(u64, u16); 6] = [(10, 67), (25, 80), (40, 118), (50, 147), (100, 394), (200, 453)];
/// The same above these rates.
const PEER_RESPONSE_ABOVE: u16 = 905;

/// The longest response of a peer at a link of this rate to a PFC frame, in quanta.
pub fn peer_response_quanta(rate: Rate) -> u16 {
    let of_rate = PEER_RESPONSE.iter().find(|of| rate.as_bps() <= Rate::gbps(of.0).as_bps());
    of_rate.map_or(PEER_RESPONSE_ABOVE, |of| of.1)
}

/// The longest time from a PFC frame's last bit until the peer at a link of this rate has stopped.
pub fn peer_response(rate: Rate) -> Duration {
    quanta_time(peer_response_quanta(rate), rate)
}

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
    fn a_peer_responds_as_slowly_as_an_adapter_of_its_rate_may() {
        let at = |gbps| peer_response(Rate::gbps(gbps));
        assert_eq!(at(10), Duration::from_ps(67 * 51_200));
        assert_eq!(at(100), Duration::from_ps(394 * 5_120), "2.02 us");
        assert_eq!(at(800), Duration::from_ps(905 * 640));
        // Rates between two figures take that of the faster link.
        assert_eq!((at(60), at(1)), (quanta_time(394, Rate::gbps(60)), Duration::from_ps(67 * 512_000)));
        assert_eq!(at(50), Duration::from_ps(147 * 10_240));
        assert_eq!(peer_response(Rate::mbps(12_500)), Duration::from_ps(80 * 40_960));
        assert_eq!(peer_response(Rate::mbps(10_240)), Duration::from_ps(80 * 50_000));
    }

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
