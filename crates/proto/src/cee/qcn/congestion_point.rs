//! The congestion point: it samples the frames that arrive at an output and tells their senders how full its queue is.

use super::{FEEDBACK_MAX, jittered};
use crate::rng::Rng;

/// The unit in which the distance between samples is counted, and the distance without congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Bytes (802.1Qau; Crisan 2014, Table 2.1).
    Bytes(u32),
    /// Frames (Crisan 2014, Figure 2.3).
    Frames(u32),
}

/// Settings of a congestion point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionPointConfig {
    /// The queue length at equilibrium, Q_eq, in bytes.
    pub queue_size_set_point: u32,
    /// The weight of the queue's growth, w.
    pub feedback_weight: u32,
    /// The distance between samples.
    pub sampling: Sampling,
}

impl CongestionPointConfig {
    /// Table 2.1 of Crisan 2014, with Q_eq in bytes.
    pub fn crisan2014(queue_size_set_point: u32) -> CongestionPointConfig {
        CongestionPointConfig { queue_size_set_point, feedback_weight: 2, sampling: Sampling::Bytes(150_000) }
    }

    /// The distance from a sample with this quantised feedback to the next one, without jitter. The rate of samples rises
    /// linearly with the feedback, to ten times at the largest one (Crisan 2014, Figure 2.3).
    pub fn interval(&self, feedback: u8) -> u64 {
        let (Sampling::Bytes(base) | Sampling::Frames(base)) = self.sampling;
        let full = u64::from(FEEDBACK_MAX);
        (u64::from(base) * full / (full + 9 * u64::from(feedback))).max(1)
    }

    /// The quantised feedback of a queue that is `offset` bytes longer than the set point and has grown by `delta` since
    /// the sample before: 0 without congestion.
    fn quantise(&self, offset: i64, delta: i64) -> u8 {
        let weight = i64::from(self.feedback_weight);
        let congestion = offset + weight * delta;
        let largest = i64::from(self.queue_size_set_point) * (2 * weight + 1);
        (congestion.clamp(0, largest) * i64::from(FEEDBACK_MAX) / largest.max(1)) as u8
    }
}

/// The state of a queue, as its congestion point reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The quantised feedback, 1 to 63: the larger, the more congestion.
    pub feedback: u8,
    /// The length of the queue minus the set point, in bytes.
    pub offset: i64,
    /// The growth of the queue since the sample before, in bytes.
    pub delta: i64,
}

/// The state of a congestion point.
#[derive(Clone, Debug)]
pub struct CongestionPoint {
    /// Bytes or frames until the next sample.
    left: u64,
    /// The queue length at the last sample.
    before: u32,
    rng: Rng,
}

impl CongestionPoint {
    /// A congestion point with an empty queue.
    pub fn new(config: &CongestionPointConfig, mut rng: Rng) -> CongestionPoint {
        CongestionPoint { left: jittered(config.interval(0), &mut rng), before: 0, rng }
    }

    /// A frame of `bytes` arrived, with which the queue has `queue` bytes. Returns the notification for its sender.
    #[inline(always)]
    pub fn on_arrival(&mut self, config: &CongestionPointConfig, bytes: u32, queue: u32) -> Option<Notification> {
        let counted = match config.sampling {
            Sampling::Bytes(_) => u64::from(bytes),
            Sampling::Frames(_) => 1,
        };
        if self.left > counted {
            self.left -= counted;
            return None;
        }
        self.sample(config, queue)
    }

    #[cold]
    #[inline(never)]
    fn sample(&mut self, config: &CongestionPointConfig, queue: u32) -> Option<Notification> {
        let offset = i64::from(queue) - i64::from(config.queue_size_set_point);
        let delta = i64::from(queue) - i64::from(self.before);
        self.before = queue;
        let feedback = config.quantise(offset, delta);
        self.left = jittered(config.interval(feedback), &mut self.rng).max(1);
        (feedback > 0).then_some(Notification { feedback, offset, delta })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const FRAME: u32 = 1_500;

    fn config() -> CongestionPointConfig {
        CongestionPointConfig::crisan2014(20_000)
    }

    /// The frames between samples of a queue that stays `queue` bytes long.
    fn gaps(config: &CongestionPointConfig, queue: u32, samples: usize) -> Vec<u64> {
        let mut point = CongestionPoint::new(config, Rng::from_words(&[1]));
        let mut gaps = Vec::new();
        let mut frames = 0;
        while gaps.len() < samples {
            frames += 1;
            if point.on_arrival(config, FRAME, queue).is_some() {
                gaps.push(core::mem::take(&mut frames));
            }
        }
        gaps
    }

    #[test]
    fn feedback_is_offset_and_weighted_growth_in_six_bits() {
        // The feedback is largest at (2w + 1) Q_eq = 100,000 B.
        for (offset, delta, feedback) in [
            (0, 0, 0),
            (-20_000, 5_000, 0),
            (1_000, 0, 0),
            (1_588, 0, 1),
            (10_000, 10_000, 18),
            (30_000, -15_000, 0),
            (50_000, 0, 31),
            (100_000, 0, 63),
            (1_000_000, 1_000_000, 63),
        ] {
            assert_eq!(config().quantise(offset, delta), feedback, "{offset} {delta}");
        }
    }

    #[test]
    fn samples_come_ten_times_as_often_at_the_largest_feedback() {
        let intervals: Vec<u64> = [0, 7, 21, 63].map(|feedback| config().interval(feedback)).into();
        assert_eq!(intervals, [150_000, 75_000, 37_500, 15_000]);
        let by_frames = CongestionPointConfig { sampling: Sampling::Frames(100), ..config() };
        assert_eq!((by_frames.interval(0), by_frames.interval(63)), (100, 10));
    }

    #[test]
    fn the_distance_between_samples_has_a_mean_and_limits() {
        // A queue of five set points beyond the set point: the largest feedback, a sample each 15,000 B, ten frames.
        let gaps = gaps(&config(), 120_000, 10_000);
        let steady = &gaps[1..];
        let mean = steady.iter().sum::<u64>() as f64 / steady.len() as f64;
        // A sample falls on the frame in which its last byte is: half a frame late in the mean.
        assert!((10.0..11.0).contains(&mean), "{mean}");
        assert!(steady.iter().all(|gap| (9..=12).contains(gap)), "{:?}", steady.iter().max());
    }

    #[test]
    fn a_queue_below_its_set_point_that_grows_slowly_is_silent() {
        let config = config();
        let mut point = CongestionPoint::new(&config, Rng::from_words(&[2]));
        for n in 0..100_000 {
            // At most 6,000 B, from 0 B: growth counts twice, but less than the distance to the set point.
            assert_eq!(point.on_arrival(&config, FRAME, n % 6_001), None);
        }
    }

    #[test]
    fn the_notification_has_the_raw_values() {
        let config = config();
        let mut point = CongestionPoint::new(&config, Rng::from_words(&[3]));
        let mut next = |queue| core::iter::repeat_with(|| point.on_arrival(&config, FRAME, queue)).flatten().next();
        assert_eq!(next(70_000), Some(Notification { feedback: 63, offset: 50_000, delta: 70_000 }));
        assert_eq!(next(66_000), Some(Notification { feedback: 23, offset: 46_000, delta: -4_000 }));
    }
}
