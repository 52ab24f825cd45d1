//! Scalable TCP (T. Kelly, "Scalable TCP: Improving Performance in Highspeed Wide Area Networks", CCR 33(2), 2003): a
//! loss is made good in the same number of round trips whatever the window.

use super::{Ack, Congestion, Control, Window, half_of_flight};

/// Bytes acknowledged for each byte the window grows by (Kelly 2003, 2: a = 0.01).
const ACKED_PER_BYTE: u32 = 100;
/// The part of the window that congestion takes away (Kelly 2003, 2: b = 0.125).
const TAKEN: u32 = 8;
/// Up to so many segments it is RFC 5681, so that others live beside it (Kelly 2003, 2: the legacy window).
const LEGACY_SEGMENTS: u32 = 16;

/// Scalable TCP.
#[derive(Clone, Debug, Default)]
pub struct Scalable {
    /// Bytes acknowledged that have not made the window grow yet.
    acked: u32,
}

fn is_legacy(window: &Window, mss: u32) -> bool {
    window.cwnd <= LEGACY_SEGMENTS * mss
}

impl Control for Scalable {
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        if !ack.limited {
            return;
        }
        if window.in_slow_start() {
            window.slow_start(ack);
            return;
        }
        // RFC 5681 grows by a segment for each window acknowledged, which is a byte for each cwnd / mss bytes.
        let per_byte = if is_legacy(window, ack.mss) { (window.cwnd / ack.mss).max(1) } else { ACKED_PER_BYTE };
        self.acked = self.acked.saturating_add(ack.bytes);
        window.grow(self.acked / per_byte);
        self.acked %= per_byte;
    }

    fn on_congestion(&mut self, window: &Window, congestion: &Congestion) -> u32 {
        self.acked = 0;
        if is_legacy(window, congestion.mss) {
            return half_of_flight(congestion);
        }
        (congestion.flight - congestion.flight / TAKEN).max(2 * congestion.mss)
    }
}
