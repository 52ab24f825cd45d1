//! The limit of the rate at which a port receives or sends frames.

use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;

/// If the loop is late, a port may catch up by this much at once.
const LATE_MAX: Duration = Duration::from_ms(1);
/// Bytes of a frame's check sequence, which counts on a link.
const CHECK: u64 = 4;

/// When the next frame may go to a port, or from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate: Rate,
    next: Instant,
}

impl Pace {
    pub fn new(rate: Rate) -> Pace {
        Pace { rate, next: Instant::ZERO }
    }

    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// When the next frame may go.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// A frame of `len` bytes without its check sequence was sent.
    pub fn on_frame(&mut self, now: Instant, len: u32) {
        let earliest = Instant(now.0.saturating_sub(LATE_MAX.0));
        self.next = self.next.max(earliest).saturating_add(self.rate.time_for(u64::from(len) + CHECK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_at_the_rate_and_late_ones_catch_up_by_a_millisecond() {
        // 1,250 bytes at 10 Mb/s take a millisecond.
        let mut pace = Pace::new(Rate::mbps(10));
        let ms = |n| Instant::ZERO + Duration::from_ms(n);
        assert_eq!(pace.next(), Instant::ZERO);
        for n in 5..8 {
            pace.on_frame(ms(n), 1246);
            assert_eq!(pace.next(), ms(n), "the first of all is no reason to wait");
        }
        pace.on_frame(ms(7), 1246);
        assert_eq!(pace.next(), ms(8));
        // The frame came 92 ms late: one frame follows at once, and no more.
        pace.on_frame(ms(100), 1246);
        assert_eq!(pace.next(), ms(100));
        pace.on_frame(ms(100), 1246);
        assert_eq!(pace.next(), ms(101));
        // A rate at which nothing ever ends.
        let mut never = Pace::new(Rate(1));
        never.on_frame(Instant::MAX, u32::MAX);
        assert_eq!(never.next(), Instant::MAX);
    }
}
