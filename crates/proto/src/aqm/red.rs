//! Random early detection (Floyd and Jacobson 1993): packets are marked with a probability that rises with the *average*
//! queue length.

use super::Decision;
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// Settings of RED at an output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RedConfig {
    /// The average queue length, in bytes, below which nothing is marked.
    pub min_threshold: u32,
    /// The average queue length from which every packet is marked.
    pub max_threshold: u32,
    /// Weight of a sample in the average, `w_q`.
    pub weight: f64,
    /// The marking probability just below the maximum threshold.
    pub max_probability: f64,
    /// Whether packets since the last mark raise the probability, so that the gaps between marks are spread evenly.
    pub counts: bool,
    /// Whether packets are dropped from the maximum threshold on, even those whose transport understands marks (RFC 3168,
    /// section 7).
    pub drops_above: bool,
    /// Time to send a packet of usual length: an idle queue counts as this many packets that found it empty.
    pub packet_time: Duration,
}

/// The state of RED at an output.
#[derive(Clone, Debug)]
pub struct Red {
    average: f64,
    /// Packets since the last mark, while the average is between the thresholds.
    count: u32,
    /// Start of the idle time, if the queue is empty.
    idle_since: Instant,
    rng: Rng,
}

impl Red {
    /// RED at an empty queue.
    pub fn new(rng: Rng) -> Red {
        Red { average: 0.0, count: 0, idle_since: Instant::ZERO, rng }
    }

    /// The average queue length in bytes.
    pub fn average(&self) -> f64 {
        self.average
    }

    /// A packet arrived at a queue of `queue` bytes.
    #[inline]
    pub fn on_arrival(&mut self, config: &RedConfig, now: Instant, queue: u32) -> Decision {
        if config.weight >= 1.0 {
            self.average = f64::from(queue);
        } else if queue == 0 {
            let packets = now.since(self.idle_since).0 as f64 / config.packet_time.0.max(1) as f64;
            self.average *= libm::pow(1.0 - config.weight, packets);
            // The packet may be sent without ever being in the queue.
            self.idle_since = now;
        } else {
            self.average += config.weight * (f64::from(queue) - self.average);
        }
        let (min, max) = (f64::from(config.min_threshold), f64::from(config.max_threshold));
        if self.average < min {
            self.count = 0;
            return Decision::Pass;
        }
        if self.average >= max {
            self.count = 0;
            return if config.drops_above { Decision::Drop } else { Decision::Mark };
        }
        self.count += 1;
        let line = config.max_probability * (self.average - min) / (max - min);
        if self.rng.unit_f64() >= self.probability(config, line) {
            return Decision::Pass;
        }
        self.count = 0;
        Decision::Mark
    }

    /// The queue became empty.
    pub fn on_empty(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// A packet found the queue empty, and the caller has computed how much of the average is left. Returns whether the packet
    /// passes because the average is below the thresholds.
    #[inline(always)]
    pub fn on_idle(&mut self, config: &RedConfig, share: f64) -> bool {
        self.average *= share;
        let passes = self.average < f64::from(config.min_threshold);
        if passes {
            self.count = 0;
        }
        passes
    }

    /// The probability for the next packet, where that of the line through the thresholds is `line`.
    fn probability(&self, config: &RedConfig, line: f64) -> f64 {
        if !config.counts {
            return line;
        }
        // The packet is number `count` since the last mark. Marked with line / (1 - (count - 1) line), each number from 1
        // to 1 / line is as likely.
        let before = f64::from(self.count - 1) * line;
        if before < 1.0 { line / (1.0 - before) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// Table 2.1 of Crisan 2014, for packets of 1,500 B at 10 Gb/s.
    fn config() -> RedConfig {
        RedConfig {
            min_threshold: 25_600,
            max_threshold: 76_800,
            weight: 0.002,
            max_probability: 0.02,
            counts: false,
            drops_above: false,
            packet_time: Duration::from_ns(1_200),
        }
    }

    /// RED with an average of `queue` bytes.
    fn settled(queue: u32) -> Red {
        Red { average: f64::from(queue), ..Red::new(Rng::from_words(&[1])) }
    }

    fn marks(config: &RedConfig, queue: u32, packets: usize) -> Vec<bool> {
        let mut red = settled(queue);
        (0..packets).map(|_| red.on_arrival(config, Instant::ZERO, queue) == Decision::Mark).collect()
    }

    #[test]
    fn without_the_count_the_probability_is_the_line() {
        // A tenth, a half and nine tenths of the way: chi-square with one degree of freedom, at 0.1 %.
        for (queue, p) in [(30_720, 0.002), (51_200, 0.01), (71_680, 0.018)] {
            let n = 1_000_000;
            let marked = marks(&config(), queue, n).iter().filter(|&&m| m).count() as f64;
            let expected = p * n as f64;
            let chi = (marked - expected).powi(2) / expected + (marked - expected).powi(2) / (n as f64 - expected);
            assert!(chi < 10.83, "{queue}: {marked} marks, {expected} expected");
        }
    }

    #[test]
    fn with_a_weight_of_one_each_packet_is_judged_by_the_queue_that_it_finds() {
        let config = RedConfig { weight: 1.0, ..config() };
        let mut red = settled(100_000);
        assert_eq!(red.on_arrival(&config, Instant::ZERO, 0), Decision::Pass, "a queue that has just become empty");
        assert_eq!(red.on_arrival(&config, Instant::ZERO, 76_800), Decision::Mark);
    }

    #[test]
    fn with_the_count_gaps_are_even_up_to_the_inverse_of_the_probability() {
        let config = RedConfig { counts: true, ..config() };
        // The line is at 1 %: gaps from 1 to 100.
        let mut gaps = vec![0u32; 100];
        let mut gap = 0;
        for marked in marks(&config, 51_200, 1_000_000) {
            gap += 1;
            if marked {
                gaps[gap - 1] += 1;
                gap = 0;
            }
        }
        let n: u32 = gaps.iter().sum();
        let expected = f64::from(n) / 100.0;
        let chi: f64 = gaps.iter().map(|&g| (f64::from(g) - expected).powi(2) / expected).sum();
        // 99 degrees of freedom at 0.1 %.
        assert!(chi < 148.2 && n > 19_000, "{chi} {n}");
    }

    #[test]
    fn below_the_thresholds_nothing_is_marked_and_above_everything() {
        assert!(marks(&config(), 25_599, 100_000).iter().all(|marked| !marked));
        assert!(marks(&config(), 76_800, 1_000).iter().all(|&marked| marked));
        let drops = RedConfig { drops_above: true, ..config() };
        assert_eq!(settled(76_800).on_arrival(&drops, Instant::ZERO, 76_800), Decision::Drop);
    }

    #[test]
    fn a_burst_is_judged_by_the_average() {
        let mut red = Red::new(Rng::from_words(&[1]));
        // Fifty packets that find 100 KB move the average by a tenth of that.
        for _ in 0..50 {
            assert_eq!(red.on_arrival(&config(), Instant::ZERO, 100_000), Decision::Pass);
        }
        assert!((9_000.0..10_000.0).contains(&red.average()), "{}", red.average());
    }

    #[test]
    fn idle_time_counts_as_packets_that_found_the_queue_empty() {
        let (mut idle, mut busy) = (settled(50_000), settled(50_000));
        idle.on_empty(Instant::ZERO);
        // A thousand packets take 1.2 ms.
        idle.on_arrival(&config(), Instant::ZERO + Duration::from_us(1_200), 0);
        // A sample of one byte for each packet.
        (0..1_000).for_each(|_| _ = busy.on_arrival(&config(), Instant::ZERO, 1));
        assert!((idle.average() - busy.average()).abs() < 1.0, "{} {}", idle.average(), busy.average());
        assert!((6_000.0..7_000.0).contains(&idle.average()), "{}", idle.average());
    }
}
