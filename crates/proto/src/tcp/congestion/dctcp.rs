//! RFC 8257: the window shrinks in proportion to the part of the bytes that were marked.

use super::{Ack, Congestion, Control, Echo, NewReno, Signal, Window};

/// Weight of the latest window of data in the estimate (RFC 8257, 4.2).
const G: f64 = 1.0 / 16.0;

/// DCTCP. It grows as NewReno. The receiver must echo marks exactly (RFC 8257, 3.2).
#[derive(Clone, Debug)]
pub struct Dctcp {
    growth: NewReno,
    /// The estimated part of the bytes that are marked, from 0 to 1.
    alpha: f64,
    /// End of the window of data that is observed; 0 before the first acknowledgment.
    window_end: u64,
    /// Bytes acknowledged in this window, and the marked ones among them.
    acked: u32,
    marked: u32,
}

impl Default for Dctcp {
    fn default() -> Dctcp {
        // The first mark halves the window: nothing is known yet (RFC 8257, 4.2).
        Dctcp { growth: NewReno::default(), alpha: 1.0, window_end: 0, acked: 0, marked: 0 }
    }
}

impl Dctcp {
    /// The estimated part of the bytes that are marked.
    #[cfg(test)]
    pub(super) fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Bytes were acknowledged up to position `una`; data up to `sent` has been sent.
    #[inline(always)]
    fn observe(&mut self, bytes: u32, marked: bool, una: u64, sent: u64) {
        self.acked = self.acked.saturating_add(bytes);
        self.marked = self.marked.saturating_add(if marked { bytes } else { 0 });
        if una <= self.window_end {
            return;
        }
        if self.window_end != 0 && self.acked != 0 {
            self.alpha += G * (f64::from(self.marked) / f64::from(self.acked) - self.alpha);
            (self.acked, self.marked) = (0, 0);
        }
        self.window_end = sent;
    }
}

impl Control for Dctcp {
    #[inline(always)]
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        self.observe(ack.bytes, false, ack.una, ack.sent);
        self.growth.on_ack(window, ack);
    }

    fn on_echo(&mut self, echo: &Echo) {
        self.observe(echo.bytes, true, echo.una, echo.sent);
    }

    fn on_congestion(&mut self, window: &Window, congestion: &Congestion) -> u32 {
        let half = self.growth.on_congestion(window, congestion);
        match congestion.signal {
            Signal::Ecn => window.cwnd - (f64::from(window.cwnd) * self.alpha / 2.0) as u32,
            // As any other TCP (RFC 8257, 3.5).
            Signal::Loss | Signal::Timeout => half,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{Duration, Instant};

    const MSS: u32 = 1_000;

    fn ecn() -> Congestion {
        Congestion { now: Instant::ZERO, flight: 100 * MSS, mss: MSS, signal: Signal::Ecn }
    }

    /// Acknowledges windows of a hundred segments, of which the first `marked` are marked.
    fn windows(dctcp: &mut Dctcp, marked: u64, count: u64) {
        let mut window = Window { cwnd: 100 * MSS, ssthresh: MSS };
        let before = dctcp.window_end / u64::from(MSS);
        for n in before..before + 100 * count {
            let (una, sent) = ((n + 1) * u64::from(MSS) + 1, (n + 101) * u64::from(MSS) + 1);
            if (n - before) % 100 < marked {
                dctcp.on_echo(&Echo { bytes: MSS, una, sent });
            } else {
                let (rtt, srtt) = (None, Duration::ZERO);
                let ack = Ack {
                    now: Instant::ZERO,
                    bytes: MSS,
                    mss: MSS,
                    rtt,
                    srtt,
                    una,
                    sent,
                    limited: false,
                    after_timeout: false,
                };
                dctcp.on_ack(&mut window, &ack);
            }
        }
    }

    #[test]
    fn the_first_mark_halves_the_window() {
        let mut dctcp = Dctcp::default();
        let window = Window { cwnd: 100 * MSS, ssthresh: u32::MAX };
        assert_eq!(dctcp.on_congestion(&window, &ecn()), 50 * MSS);
    }

    #[test]
    fn the_estimate_approaches_the_marked_part_by_a_sixteenth_a_window() {
        let mut dctcp = Dctcp::default();
        // The first window starts with the first acknowledgment.
        windows(&mut dctcp, 0, 2);
        assert_eq!(dctcp.alpha(), 15.0 / 16.0);
        windows(&mut dctcp, 20, 100);
        assert!((dctcp.alpha() - 0.2).abs() < 0.01, "{}", dctcp.alpha());
        let window = Window { cwnd: 100 * MSS, ssthresh: MSS };
        let after = dctcp.on_congestion(&window, &ecn());
        assert!((89_000..=91_000).contains(&after), "{after}: a tenth less");
        assert_eq!(dctcp.on_congestion(&window, &Congestion { signal: Signal::Loss, ..ecn() }), 50 * MSS);
        windows(&mut dctcp, 100, 100);
        assert!(dctcp.alpha() > 0.99);
    }
}
