//! The virtual queue: an estimate of the queue at a port of the next switch, from the packets that pass on their way there
//! (Al-Fares 2012, 5.2.1 and Figure 5.5).
//!
//! The source keeps the queue's bytes and the time of the last packet, and drains the bytes when a packet comes. Here the
//! queue is kept as the time at which it will be empty. That is the same leaky bucket, but a packet costs one addition: there
//! is nothing to drain, no division, and no rounding that adds up.

use crate::time::{Duration, Instant};
use crate::units::Rate;

/// The longest wait of a queue without a limit, 53 days. So times do not overflow.
const UNLIMITED: Duration = Duration(1 << 62);

/// A virtual queue. Its bytes are bytes on the wire: a packet counts with its preamble and gap, because the port drains them
/// too.
#[derive(Clone, Debug)]
pub struct VirtualQueue {
    /// When the last of its packets has left.
    empty_at: Instant,
    /// When its current busy period began, or its last one, and when the one before had ended.
    busy_since: Instant,
    idle_since: Instant,
    /// Time of a byte, in units of 2^-16 ps.
    ps_per_byte_q16: u64,
    /// Bytes of a picosecond, in units of 2^-64.
    bytes_per_ps_q64: u64,
    /// The longest wait: that of a full buffer.
    longest: Duration,
    rate: Rate,
    /// Bytes that did not fit into a queue with a limit.
    overflow_bytes: u64,
}

impl VirtualQueue {
    /// An empty queue that drains at `rate`, the speed of the port's link. With a `limit` it never has more bytes.
    pub fn new(rate: Rate, limit_bytes: Option<u64>) -> VirtualQueue {
        let mut queue = VirtualQueue {
            empty_at: Instant::ZERO,
            busy_since: Instant::ZERO,
            idle_since: Instant::ZERO,
            ps_per_byte_q16: 0,
            bytes_per_ps_q64: 0,
            longest: UNLIMITED,
            rate,
            overflow_bytes: 0,
        };
        queue.use_rate(rate);
        if let Some(limit) = limit_bytes {
            queue.longest = rate.time_for(limit);
        }
        queue
    }

    fn use_rate(&mut self, rate: Rate) {
        self.rate = rate;
        self.ps_per_byte_q16 = rate.ps_per_byte_q16();
        // A byte takes longer than a picosecond up to 8 Tb/s.
        let bytes_per_ps = (u128::from(rate.as_bps()) << 64) / 8_000_000_000_000;
        self.bytes_per_ps_q64 = u64::try_from(bytes_per_ps).unwrap_or(u64::MAX);
    }

    /// The drain rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Changes the drain rate. The queue keeps its bytes.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        let bytes = self.bytes(now);
        let limit = self.limit_bytes();
        self.use_rate(rate);
        self.empty_at = now + self.time_of(bytes);
        if let Some(limit) = limit {
            self.longest = rate.time_for(limit);
        }
    }

    /// The most bytes that the queue can have, if there is a limit.
    pub fn limit_bytes(&self) -> Option<u64> {
        (self.longest != UNLIMITED).then(|| self.bytes_of(self.longest))
    }

    #[inline(always)]
    fn time_of(&self, wire_bytes: u64) -> Duration {
        Duration((wire_bytes * self.ps_per_byte_q16) >> 16)
    }

    #[inline(always)]
    fn bytes_of(&self, time: Duration) -> u64 {
        ((u128::from(time.0) * u128::from(self.bytes_per_ps_q64) + (1 << 63)) >> 64) as u64
    }

    /// A packet of `wire_bytes` enters the queue.
    #[inline(always)]
    pub fn arrive(&mut self, now: Instant, wire_bytes: u64) {
        let time = self.time_of(wire_bytes);
        if self.empty_at <= now {
            self.begin_busy_period(now);
        }
        self.empty_at += time;
        self.apply_limit(now);
    }

    #[inline(always)]
    fn begin_busy_period(&mut self, at: Instant) {
        self.idle_since = self.empty_at;
        self.busy_since = at;
        self.empty_at = at;
    }

    /// A packet of `wire_bytes` entered the queue at `at`, and its bump has reported that only now. The result is that of a
    /// report in time unless the queue has been empty several times since.
    pub fn arrive_late(&mut self, now: Instant, at: Instant, wire_bytes: u64) {
        let time = self.time_of(wire_bytes);
        if at >= self.empty_at {
            // It found the queue empty, and nothing has come since.
            self.begin_busy_period(at);
            self.empty_at += time;
        } else if at >= self.busy_since {
            self.empty_at += time;
        } else {
            // It came before the current busy period: the idle time before that period carried some of it.
            let from = self.idle_since.max(at);
            let idle = self.busy_since.since(from);
            let left = Duration(time.0.saturating_sub(idle.0));
            self.empty_at += left;
            if left > Duration::ZERO {
                self.busy_since = from;
            } else {
                self.idle_since = from + time;
            }
        }
        self.apply_limit(now);
    }

    /// A buffer that is full takes nothing more: so an estimate above the truth is right again at the limit.
    #[inline(always)]
    fn apply_limit(&mut self, now: Instant) {
        if self.empty_at.since(now) > self.longest {
            self.overflow_bytes += self.bytes_of(Duration(self.empty_at.since(now).0 - self.longest.0));
            self.empty_at = now + self.longest;
        }
    }

    /// Takes a packet out again that was dropped after it had been counted (Figure 5.5, line 11).
    #[inline(always)]
    pub fn take_back(&mut self, now: Instant, wire_bytes: u64) {
        self.empty_at = Instant(self.empty_at.0.saturating_sub(self.time_of(wire_bytes).0)).max(now);
    }

    /// Bytes in the queue.
    #[inline(always)]
    pub fn bytes(&self, now: Instant) -> u64 {
        self.bytes_of(self.wait(now))
    }

    /// The time that a packet which arrives now would wait.
    #[inline(always)]
    pub fn wait(&self, now: Instant) -> Duration {
        self.empty_at.since(now)
    }

    /// Takes over the state of a queue elsewhere, in which a packet waits for this time.
    pub fn set_wait(&mut self, now: Instant, wait: Duration) {
        if self.empty_at <= now {
            self.begin_busy_period(now);
        }
        self.empty_at = now + wait;
    }

    /// When the queue became empty, or will be.
    #[inline(always)]
    pub fn empty_at(&self) -> Instant {
        self.empty_at
    }

    /// Bytes beyond the limit, since the queue was made. Without a limit: bytes of a wait that is longer than the longest.
    pub fn overflow_bytes(&self) -> u64 {
        self.overflow_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use alloc::vec::Vec;

    const T: Instant = Instant(1_000_000_000);

    /// 1 Gb/s: a byte takes 8 ns.
    fn queue() -> VirtualQueue {
        VirtualQueue::new(Rate::gbps(1), None)
    }

    fn after_us(us: u64) -> Instant {
        T + Duration::from_us(us)
    }

    #[test]
    fn a_queue_fills_with_packets_and_drains_with_time() {
        let mut q = queue();
        assert_eq!(q.bytes(T), 0);
        q.arrive(T, 1_538);
        q.arrive(T, 1_538);
        assert_eq!((q.bytes(T), q.wait(T)), (3_076, Duration::from_ns(24_608)));
        assert_eq!(q.bytes(after_us(12)), 1_576);
        assert_eq!(q.bytes(after_us(25)), 0);
        // Idle time earns nothing.
        q.arrive(after_us(1_000), 1_000);
        assert_eq!(q.bytes(after_us(1_000)), 1_000);
    }

    #[test]
    fn the_estimate_is_that_of_the_leaky_bucket_in_the_source() {
        // Figure 5.5, lines 1 to 8, in rational numbers of bytes times 10^4.
        let (mut tokens, mut last) = (0u64, T);
        let mut q = VirtualQueue::new(Rate::gbps(10), None);
        let mut rng = Rng::from_words(&[1]);
        let mut now = T;
        for _ in 0..100_000 {
            now += Duration(rng.below(1_600_000));
            let len = 84 + rng.below(1_455);
            tokens = tokens.saturating_sub(now.since(last).0 * 10_000 / 800) + len * 10_000;
            last = now;
            q.arrive(now, len);
            assert!(q.bytes(now).abs_diff(tokens / 10_000) <= 1, "{} {tokens}", q.bytes(now));
        }
    }

    #[test]
    fn a_dropped_packet_is_taken_out_again() {
        let mut q = queue();
        q.arrive(T, 2_000);
        q.arrive(T, 500);
        q.take_back(T, 500);
        assert_eq!(q.bytes(T), 2_000);
        // Not more than there is.
        q.take_back(after_us(10), 9_000);
        assert_eq!(q.bytes(after_us(10)), 0);
        q.arrive(after_us(10), 100);
        assert_eq!(q.bytes(after_us(10)), 100);
    }

    #[test]
    fn a_full_buffer_takes_no_more_and_counts_the_rest() {
        let mut q = VirtualQueue::new(Rate::gbps(1), Some(10_000));
        (0..5).for_each(|_| q.arrive(T, 3_000));
        assert_eq!((q.bytes(T), q.overflow_bytes(), q.limit_bytes()), (10_000, 5_000, Some(10_000)));
        q.set_rate(T, Rate::gbps(2));
        assert_eq!((q.bytes(T), q.limit_bytes(), q.wait(T)), (10_000, Some(10_000), Duration::from_us(40)));
    }

    #[test]
    fn a_slow_port_behind_a_fast_link_overflows_no_time() {
        let mut q = VirtualQueue::new(Rate(10_000), None);
        for _ in 0..4_000_000 {
            q.arrive(T, 10_000);
        }
        assert_eq!((q.wait(T), q.limit_bytes()), (UNLIMITED, None));
        assert!(q.overflow_bytes() > 0);
    }

    #[test]
    fn a_late_report_in_a_busy_period_is_as_good_as_one_in_time() {
        let (mut prompt, mut late) = (queue(), queue());
        for q in [&mut prompt, &mut late] {
            q.arrive(T, 10_000);
        }
        prompt.arrive(after_us(10), 1_500);
        late.arrive_late(after_us(60), after_us(10), 1_500);
        assert_eq!(late.bytes(after_us(60)), prompt.bytes(after_us(60)));
    }

    #[test]
    fn a_late_report_counts_the_part_that_had_not_left() {
        // 1,500 B from 0 us to 12 us; 5,000 B of our own from 8 us on.
        let mut q = queue();
        q.arrive(after_us(8), 5_000);
        q.arrive_late(after_us(20), T, 1_500);
        assert_eq!(q.empty_at(), after_us(52));
        // Long gone.
        let mut q = queue();
        q.arrive(after_us(50), 5_000);
        q.arrive_late(after_us(60), T, 1_500);
        assert_eq!(q.empty_at(), after_us(90));
        // Nothing of our own.
        let mut q = queue();
        q.arrive_late(after_us(2), T, 1_500);
        assert_eq!(q.bytes(after_us(2)), 1_250);
    }

    #[test]
    fn late_reports_err_by_no_more_than_comes_meanwhile_and_two_packets() {
        // Two senders, one seen and one reported 25 us late: the estimate is between the queue without the reports under way
        // and the queue with all of them, give or take two packets.
        let mut rng = Rng::from_words(&[7]);
        let delay = Duration::from_us(25);
        let (mut truth, mut estimate) = (queue(), queue());
        let mut under_way: Vec<(Instant, u64)> = Vec::new();
        let mut now = T;
        for _ in 0..50_000 {
            now += Duration::from_ns(rng.below(22_000));
            let len = 84 + rng.below(1_455);
            while let Some(&(at, len)) = under_way.first().filter(|(at, _)| *at + delay <= now) {
                estimate.arrive_late(at + delay, at, len);
                under_way.remove(0);
            }
            truth.arrive(now, len);
            if rng.below(2) == 0 {
                estimate.arrive(now, len)
            } else {
                under_way.push((now, len))
            }
            let missing: u64 = under_way.iter().map(|p| p.1).sum();
            let (truth, estimate) = (truth.bytes(now), estimate.bytes(now));
            assert!(estimate <= truth + 3_076 && estimate + missing + 3_076 >= truth, "{truth} {estimate} {missing}");
        }
    }
}
