//! RFC 5681: slow start, then a segment a round trip; half on congestion.

use super::{Ack, Congestion, Control, Window, half_of_flight};

/// NewReno: the window grows by counting bytes (RFC 3465, 2.1), which needs no division.
#[derive(Clone, Debug, Default)]
pub struct NewReno {
    /// Bytes acknowledged since the window last grew in congestion avoidance.
    acked: u32,
}

impl Control for NewReno {
    #[inline(always)]
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        if !ack.limited {
            return;
        }
        if window.in_slow_start() {
            window.slow_start(ack);
            return;
        }
        self.acked = self.acked.saturating_add(ack.bytes);
        if self.acked >= window.cwnd {
            self.acked -= window.cwnd;
            window.grow(ack.mss);
        }
    }

    fn on_congestion(&mut self, _window: &Window, congestion: &Congestion) -> u32 {
        self.acked = 0;
        half_of_flight(congestion)
    }
}
