//! The reaction point: a rate limiter that lowers its rate at each notification and then looks for the rate that the
//! network can carry (802.1Qau, 32.15).
//!
//! After a cut the rate recovers in *cycles*. A cycle ends when a number of bytes has been sent, and another kind of cycle
//! ends when a time has passed. The first five cycles are *fast recovery*: each halves the distance to the *target rate*,
//! the rate before the cut. Later cycles also raise the target: by a small step if one kind of cycle has been counted five
//! times (*active increase*), by a large one if both have (*hyper-active increase*).

use super::{FEEDBACK_MAX, jittered};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::Rate;

/// Settings of a reaction point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactionPointConfig {
    /// The rate without congestion: that of the link.
    pub max_rate: Rate,
    /// The lowest rate.
    pub min_rate: Rate,
    /// Bytes of a cycle in fast recovery.
    pub byte_reset: u32,
    /// Bytes of a cycle after it: half as many in the standard.
    pub byte_reset_after: u32,
    /// Time of a cycle; half of it after fast recovery. Without it only bytes count (Al-Fares 2012, 5.3.3).
    pub time_reset: Option<Duration>,
    /// Cycles of fast recovery.
    pub threshold: u32,
    /// Rise of the target rate in active increase.
    pub ai_rate: Rate,
    /// Rise of the target rate in hyper-active increase, for each cycle beyond fast recovery.
    pub hai_rate: Rate,
    /// A feedback of n cuts the rate by n / 2^gd.
    pub gd: u8,
    /// The lowest factor of a cut, in percent.
    pub min_dec_fac: u8,
    /// Whether several notifications before the end of a cycle keep the target rate, so that the rate comes back to its
    /// value before the first of them (extra fast recovery).
    pub extra_fast_recovery: bool,
}

impl ReactionPointConfig {
    /// Table 2.1 of Crisan 2014.
    pub fn crisan2014(max_rate: Rate) -> ReactionPointConfig {
        ReactionPointConfig {
            max_rate,
            min_rate: Rate(100_000),
            byte_reset: 150_000,
            byte_reset_after: 75_000,
            time_reset: Some(Duration::from_ms(15)),
            threshold: 5,
            ai_rate: Rate::mbps(5),
            hai_rate: Rate::mbps(50),
            // The table's G_d of 0.5 is the cut at the largest feedback: 63 / 128.
            gd: 7,
            min_dec_fac: 50,
            extra_fast_recovery: true,
        }
    }

    /// The length of a cycle: `during` fast recovery, or `after` it.
    fn cycle(&self, during: u64, after: u64, stage: u32, rng: &mut Rng) -> u64 {
        jittered(if stage < self.threshold { during } else { after }, rng)
    }
}

/// A rate limiter.
#[derive(Clone, Debug)]
pub struct ReactionPoint {
    current: Rate,
    target: Rate,
    byte_stage: u32,
    time_stage: u32,
    /// Bytes until the end of the cycle.
    bytes_left: u64,
    /// End of the cycle of time; the last instant without one.
    cycle_end: Instant,
    /// When the next frame may be sent.
    next: Instant,
    rng: Rng,
}

impl ReactionPoint {
    /// The limiter of a sender that receives its first notification while it sends at `rate`.
    pub fn new(config: &ReactionPointConfig, now: Instant, rate: Rate, rng: Rng) -> ReactionPoint {
        let rate = rate.clamp(config.min_rate, config.max_rate);
        let (bytes_left, cycle_end) = (u64::from(config.byte_reset), Instant::MAX);
        ReactionPoint {
            current: rate,
            target: rate,
            byte_stage: 0,
            time_stage: 0,
            bytes_left,
            cycle_end,
            next: now,
            rng,
        }
    }

    /// The rate at which frames may be sent.
    pub fn current_rate(&self) -> Rate {
        self.current
    }

    /// The rate to which the limiter recovers.
    pub fn target_rate(&self) -> Rate {
        self.target
    }

    /// Whether the limiter limits nothing any more: it can be freed when no frame waits for it.
    pub fn is_recovered(&self, config: &ReactionPointConfig) -> bool {
        self.current >= config.max_rate
    }

    /// When the next frame may be sent.
    pub fn next_transmit(&self) -> Instant {
        self.next
    }

    /// End of the cycle of time.
    pub fn poll_timeout(&self) -> Instant {
        self.cycle_end
    }

    /// Handles a notification.
    pub fn on_notification(&mut self, config: &ReactionPointConfig, now: Instant, feedback: u8) {
        if feedback == 0 {
            return;
        }
        if self.byte_stage != 0 || !config.extra_fast_recovery {
            self.target = self.current;
            self.bytes_left = u64::from(config.byte_reset);
        }
        (self.byte_stage, self.time_stage) = (0, 0);
        let feedback = u64::from(feedback.min(FEEDBACK_MAX));
        let cut = |rate: u64| rate - ((u128::from(rate) * u128::from(feedback)) >> config.gd).min(rate.into()) as u64;
        let rate = self.current.0;
        let least = (u128::from(rate) * u128::from(config.min_dec_fac) / 100) as u64;
        self.set_rate(now, Rate(cut(rate).max(least).max(config.min_rate.0)));
        self.cycle_end = config.time_reset.map_or(Instant::MAX, |reset| now + reset);
    }

    /// Handles a sent frame.
    pub fn on_transmit(&mut self, config: &ReactionPointConfig, now: Instant, bytes: u32) {
        self.next = self.next.max(now) + self.current.time_for(bytes.into());
        match self.bytes_left.checked_sub(bytes.into()) {
            Some(left) if left > 0 => self.bytes_left = left,
            _ => {
                self.byte_stage += 1;
                self.bytes_left = config.cycle(
                    config.byte_reset.into(),
                    config.byte_reset_after.into(),
                    self.byte_stage,
                    &mut self.rng,
                );
                self.recover(config, now);
            }
        }
    }

    /// Handles the end of a cycle of time.
    pub fn handle_timeout(&mut self, config: &ReactionPointConfig, now: Instant) {
        let Some(reset) = config.time_reset.filter(|_| now >= self.cycle_end) else { return };
        self.time_stage += 1;
        self.cycle_end = now + Duration(config.cycle(reset.0, reset.0 / 2, self.time_stage, &mut self.rng));
        self.recover(config, now);
    }

    /// The end of a cycle.
    fn recover(&mut self, config: &ReactionPointConfig, now: Instant) {
        let (least, most) = (self.byte_stage.min(self.time_stage), self.byte_stage.max(self.time_stage));
        if (self.byte_stage == 1 || self.time_stage == 1) && self.target.0 / 10 > self.current.0 {
            // A target out of reach would raise the rate too fast after many cuts.
            self.target = Rate(self.target.0 / 8);
        } else if least > config.threshold {
            let cycles = u64::from(least - config.threshold);
            self.target = Rate(self.target.0.saturating_add(config.hai_rate.0.saturating_mul(cycles)));
        } else if most > config.threshold {
            self.target = Rate(self.target.0.saturating_add(config.ai_rate.0));
        }
        self.target = self.target.min(config.max_rate);
        self.set_rate(now, Rate((self.current.0 + self.target.0).div_ceil(2)));
    }

    /// Changes the rate. A frame that waits for its time waits for the rest at the new rate.
    fn set_rate(&mut self, now: Instant, rate: Rate) {
        if self.next > now {
            let rest = u128::from(self.next.since(now).0) * u128::from(self.current.0) / u128::from(rate.0.max(1));
            self.next = now.saturating_add(Duration(u64::try_from(rest).unwrap_or(u64::MAX)));
        }
        self.current = rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const NOW: Instant = Instant::ZERO;

    fn config() -> ReactionPointConfig {
        ReactionPointConfig::crisan2014(Rate::gbps(10))
    }

    fn limiter(mbps: u64) -> ReactionPoint {
        ReactionPoint::new(&config(), NOW, Rate::mbps(mbps), Rng::from_words(&[1]))
    }

    /// The end of a cycle of bytes: more than its length is sent.
    fn byte_cycle(rp: &mut ReactionPoint, config: &ReactionPointConfig) -> (u64, u64) {
        rp.on_transmit(config, NOW, 200_000);
        (rp.current.0 / 1_000, rp.target.0 / 1_000)
    }

    fn time_cycle(rp: &mut ReactionPoint, config: &ReactionPointConfig) -> (u64, u64) {
        rp.handle_timeout(config, rp.cycle_end);
        (rp.current.0 / 1_000, rp.target.0 / 1_000)
    }

    /// Current and target rate in Kb/s, computed by hand.
    #[test]
    fn the_rate_follows_a_trace_by_hand_step_by_step() {
        let config = config();
        let mut rp = limiter(4_000);
        rp.on_notification(&config, NOW, 32);
        assert_eq!((rp.current, rp.target), (Rate::mbps(3_000), Rate::mbps(4_000)), "a cut by 32 / 128");
        let fast: Vec<(u64, u64)> = (0..5).map(|_| byte_cycle(&mut rp, &config)).collect();
        let halved = [3_500_000, 3_750_000, 3_875_000, 3_937_500, 3_968_750].map(|rate| (rate, 4_000_000));
        assert_eq!(fast, halved);
        assert_eq!(byte_cycle(&mut rp, &config), (3_986_875, 4_005_000), "active increase");
        assert_eq!(byte_cycle(&mut rp, &config), (3_998_437, 4_010_000));
        // The timer is in fast recovery still, the bytes are not: active increase.
        for cycle in 1..=5 {
            assert_eq!(time_cycle(&mut rp, &config).1, 4_010_000 + 5_000 * cycle);
        }
        assert_eq!((rp.byte_stage, rp.time_stage), (7, 5));
        let before = rp.current.0 / 1_000;
        let target = 4_035_000 + 50_000;
        assert_eq!(time_cycle(&mut rp, &config), ((before + target) / 2, target), "hyper-active increase");
        assert_eq!(time_cycle(&mut rp, &config).1, target + 100_000, "two cycles beyond fast recovery");
        // The next notification sets the target to the rate at which the sender sends.
        let rate = rp.current;
        rp.on_notification(&config, NOW, 1);
        assert_eq!((rp.target, rp.byte_stage, rp.time_stage), (rate, 0, 0));
        assert_eq!(rp.current.0, rate.0 - rate.0 / 128);
    }

    #[test]
    fn notifications_within_a_cycle_keep_the_target_in_extra_fast_recovery() {
        for (extra_fast_recovery, target) in [(true, 4_000), (false, 3_000)] {
            let config = ReactionPointConfig { extra_fast_recovery, ..config() };
            let mut rp = limiter(4_000);
            rp.on_notification(&config, NOW, 32);
            rp.on_notification(&config, NOW, 32);
            assert_eq!((rp.current, rp.target), (Rate::mbps(2_250), Rate::mbps(target)));
        }
    }

    #[test]
    fn no_notification_cuts_more_than_half_or_below_the_least_rate() {
        let steep = ReactionPointConfig { gd: 6, ..config() };
        let mut rp = limiter(4_000);
        rp.on_notification(&steep, NOW, 63);
        assert_eq!(rp.current, Rate::mbps(2_000), "63 / 64 would be more than half");
        (0..40).for_each(|_| rp.on_notification(&steep, NOW, 63));
        assert_eq!((rp.current, rp.target), (Rate(100_000), Rate::mbps(4_000)));
        // A target of forty thousand times the rate is lowered first.
        assert_eq!(byte_cycle(&mut rp, &steep), (250_050, 500_000));
        rp.on_notification(&steep, NOW, 0);
        assert_eq!(rp.byte_stage, 1, "no feedback, no congestion");
    }

    #[test]
    fn a_limiter_comes_back_to_the_rate_of_the_link_and_not_above() {
        let config = config();
        let mut rp = limiter(10_000);
        rp.on_notification(&config, NOW, 63);
        let mut now = NOW;
        let mut cycles = 0;
        while !rp.is_recovered(&config) {
            now = rp.poll_timeout();
            rp.handle_timeout(&config, now);
            rp.on_transmit(&config, now, 200_000);
            cycles += 1;
            assert!(rp.current <= config.max_rate && cycles < 100);
        }
        // Five cycles of some 15 ms, then cycles of half that time.
        assert!((Duration::from_ms(75)..Duration::from_ms(250)).contains(&now.since(NOW)), "{now:?}");
    }

    #[test]
    fn cycles_are_halved_after_fast_recovery_and_drawn() {
        let config = config();
        let mut rp = limiter(4_000);
        rp.on_notification(&config, NOW, 10);
        assert_eq!((rp.bytes_left, rp.cycle_end), (150_000, NOW + Duration::from_ms(15)));
        let mut lengths = Vec::new();
        for _ in 0..200 {
            byte_cycle(&mut rp, &config);
            lengths.push(rp.bytes_left);
        }
        assert!(lengths[..4].iter().all(|length| (127_500..=172_500).contains(length)), "{lengths:?}");
        assert!(lengths[4..].iter().all(|length| (63_750..=86_250).contains(length)));
        let mean = lengths[4..].iter().sum::<u64>() / 196;
        assert!((73_000..77_000).contains(&mean) && lengths[10] != lengths[11], "{mean}");
    }

    #[test]
    fn without_a_timer_only_bytes_count() {
        let config = ReactionPointConfig { time_reset: None, ..config() };
        let mut rp = limiter(4_000);
        rp.on_notification(&config, NOW, 10);
        assert_eq!(rp.poll_timeout(), Instant::MAX);
        rp.handle_timeout(&config, NOW + Duration::from_secs(1));
        assert_eq!(rp.time_stage, 0);
        (0..50).for_each(|_| _ = byte_cycle(&mut rp, &config));
        let rise = 5_000 * 45;
        assert_eq!(rp.target.0 / 1_000, 4_000_000 + rise, "active increase, never hyper-active");
    }

    #[test]
    fn frames_leave_at_the_rate_and_a_new_rate_holds_for_the_one_that_waits() {
        let config = config();
        let mut rp = limiter(1_000);
        rp.on_transmit(&config, NOW, 1_500);
        assert_eq!(rp.next_transmit(), NOW + Duration::from_us(12));
        // After half of the time the rate is cut to three quarters: the other half takes four thirds of its time.
        let half = NOW + Duration::from_us(6);
        rp.on_notification(&config, half, 32);
        assert_eq!(rp.next_transmit(), half + Duration::from_us(8));
        rp.on_transmit(&config, half + Duration::from_us(8), 1_500);
        assert_eq!(rp.next_transmit(), half + Duration::from_us(8) + Duration::from_us(16));
        // A pause earns no credit.
        let later = NOW + Duration::from_ms(1);
        rp.on_transmit(&config, later, 1_500);
        assert_eq!(rp.next_transmit(), later + Duration::from_us(16));
    }
}
