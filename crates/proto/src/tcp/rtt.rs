//! Round trip time and retransmission timeout (RFC 6298, with FreeBSD's base, min and slop).

use super::Config;
use crate::time::{Duration, Instant};

/// Doublings of the timeout: FreeBSD's table ends at 64 times for data and for SYN alike.
const MAX_BACKOFF: u8 = 6;

/// The estimator, and the timed segment of a connection without timestamps.
///
/// The fields of a sample stand in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Rtt {
    srtt: u64,
    rttvar: u64,
    /// The timeout as it is armed, kept so that arming costs nothing.
    rto: u64,
    backoff: u8,
    sampled: bool,
    /// A SYN waits `base` even if the cache knows the path.
    opening: bool,
    /// Position whose acknowledgment ends the timing; zero when no segment is timed.
    timed: u64,
    timed_at: Instant,
}

impl Rtt {
    pub(super) fn new(config: &Config) -> Rtt {
        let mut rtt = Rtt {
            srtt: 0,
            rttvar: 0,
            rto: 0,
            timed: 0,
            timed_at: Instant::ZERO,
            backoff: 0,
            sampled: false,
            opening: true,
        };
        rtt.update(config);
        rtt
    }

    /// Starts from the cached values.
    pub(super) fn preset(&mut self, srtt: Duration, rttvar: Duration) {
        (self.srtt, self.rttvar, self.sampled) = (srtt.0, rttvar.0, true);
    }

    pub(super) fn srtt(&self) -> Duration {
        Duration(self.srtt)
    }
    pub(super) fn rttvar(&self) -> Duration {
        Duration(self.rttvar)
    }
    pub(super) fn sampled(&self) -> bool {
        self.sampled
    }
    #[inline(always)]
    pub(super) fn rto(&self) -> Duration {
        Duration(self.rto)
    }

    /// The handshake is done: from now on the timeout is measured, not `base`.
    pub(super) fn opened(&mut self, config: &Config) {
        self.opening = false;
        self.update(config);
    }

    /// RFC 6298, 2.2 and 2.3; a sample ends the backoff (5.7 and Karn's rule: only unambiguous samples get here).
    #[inline]
    pub(super) fn sample(&mut self, config: &Config, rtt: Duration) {
        let r = rtt.0;
        if self.sampled {
            let delta = self.srtt.abs_diff(r);
            self.rttvar = self.rttvar - self.rttvar / 4 + delta / 4;
            self.srtt = self.srtt - self.srtt / 8 + r / 8;
        } else {
            (self.srtt, self.rttvar, self.sampled) = (r, r / 2, true);
        }
        self.backoff = 0;
        self.update(config);
    }

    /// The timer ran out (RFC 6298, 5.5).
    pub(super) fn back_off(&mut self, config: &Config) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.update(config);
    }

    /// A closed window has opened. The backoff of the probes has nothing to do with the path.
    pub(super) fn end_backoff(&mut self, config: &Config) {
        if self.backoff != 0 {
            self.backoff = 0;
            self.update(config);
        }
    }

    /// srtt + max(tick, 4 rttvar) + slop, at least min and at most max (RFC 6298, 2.3). A time measured in whole ticks
    /// can be off by one, however little it varies. FreeBSD doubles before it adds the slop, and doubles at least min
    /// (tcp_timer_rexmt). So a backed off timeout in a fast network grows from slop, not with it.
    #[inline]
    fn update(&mut self, config: &Config) {
        let rto = &config.rto;
        let timeout = if self.opening || !self.sampled {
            rto.base.0.saturating_mul(1 << self.backoff)
        } else {
            let measured = self.srtt.saturating_add(self.rttvar.saturating_mul(4).max(config.tick.0));
            let scaled =
                if self.backoff == 0 { measured } else { measured.max(rto.min.0).saturating_mul(1 << self.backoff) };
            scaled.saturating_add(rto.slop.0).max(rto.min.0)
        };
        self.rto = timeout.min(rto.max.0);
    }

    /// Starts to time the segment that ends at `end`, if no segment is timed.
    #[inline]
    pub(super) fn time(&mut self, end: u64, now: Instant) {
        if self.timed == 0 {
            (self.timed, self.timed_at) = (end, now);
        }
    }

    /// A retransmission makes the timed segment ambiguous (Karn; RFC 6298, 3).
    pub(super) fn stop_timing(&mut self) {
        self.timed = 0;
    }

    /// The sample, if the acknowledgment of everything below `una` ends the timing; in whole ticks.
    #[inline]
    pub(super) fn timed(&mut self, una: u64, now: Instant, tick: Duration) -> Option<Duration> {
        if self.timed == 0 || una < self.timed {
            return None;
        }
        self.timed = 0;
        let elapsed = now.since(self.timed_at).0;
        Some(Duration(elapsed - elapsed % tick.0))
    }
}

impl Config {
    /// The timestamp clock: ticks since the start, and one, because FreeBSD takes an echo of zero for none.
    #[inline(always)]
    pub(super) fn timestamp(&self, now: Instant) -> u32 {
        let ticks = if self.tick == MICROSECOND { microseconds(now) } else { now.0 / self.tick.0 };
        (ticks as u32).wrapping_add(1)
    }
}

/// The tick of every named set.
const MICROSECOND: Duration = Duration::from_us(1);

/// Whole microseconds since the start. Written as `now / 1_000_000` it would be a division like that of any other tick:
/// the compiler sees that both quotients are `now / tick` and drops the constant.
#[inline(always)]
fn microseconds(now: Instant) -> u64 {
    // 10^6 = 2^6 * 15625, and 2^77 / 15625 rounded up errs by less than 15625 * 2^-77 a unit: by less than the distance of
    // n / 15625 to the next whole number for every n below 2^58.
    const SHIFT: u32 = 77;
    const RECIPROCAL: u64 = ((1u128 << SHIFT) / 15_625 + 1) as u64;
    ((u128::from(now.0 >> 6) * u128::from(RECIPROCAL)) >> SHIFT) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn microseconds_are_whole() {
        let mut rng = Rng::from_words(&[77]);
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit]);
        let random = (0..100_000).map(|_| rng.next_u64() >> rng.below(64));
        let instants: alloc::vec::Vec<u64> = edges.chain(random).collect();
        for at in instants {
            let whole = at / 1_000_000 * 1_000_000;
            for ps in [at, whole, whole.wrapping_sub(1), u64::MAX - at] {
                assert_eq!(microseconds(Instant(ps)), ps / 1_000_000, "{ps}");
            }
        }
    }
}
