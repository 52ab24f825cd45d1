//! The reaction point: the rate limiter of a queue pair (Zhu et al. 2015, 3.1).
//!
//! A CNP cuts the rate by half of *alpha*, an estimate of congestion that each CNP raises and each time without one lowers.
//! Then the rate recovers in cycles of time and of bytes. The first five cycles halve the distance to the target rate (*fast
//! recovery*). Later cycles also raise the target (*additive increase*, *hyper increase*).
//!
//! At line rate a limiter has no effect, and no timer. Alpha is computed when it is needed, so it has no timer either.

use super::{ALPHA_ONE, Config};
use crate::time::Instant;
use crate::units::Rate;

/// A rate limiter, which begins with the first CNP of its queue pair.
#[derive(Clone, Debug)]
pub struct ReactionPoint {
    line: Rate,
    current: Rate,
    target: Rate,
    alpha: f64,
    /// When alpha was last raised or lowered.
    alpha_at: Instant,
    time_stage: u32,
    byte_stage: u32,
    /// Bytes until the end of the cycle.
    bytes_left: u64,
    /// End of the cycle of time; the last instant at line rate.
    cycle_end: Instant,
    /// When the next packet may be sent.
    next: Instant,
}

impl ReactionPoint {
    /// The limiter of a queue pair that has sent at `line` so far and now receives its first CNP.
    pub fn new(config: &Config, now: Instant, line: Rate) -> ReactionPoint {
        let mut limiter = ReactionPoint {
            line,
            current: line,
            target: line,
            alpha: f64::from(config.initial_alpha_value) / f64::from(ALPHA_ONE),
            alpha_at: now,
            time_stage: 0,
            byte_stage: 0,
            bytes_left: config.rpg_byte_reset,
            cycle_end: Instant::MAX,
            next: now,
        };
        limiter.on_cnp(config, now);
        if let Some(rate) = config.rate_to_set_on_first_cnp {
            let rate = limiter.within(config, rate);
            limiter.target = rate;
            limiter.set_rate(now, rate);
        }
        limiter
    }

    /// The rate at which packets may be sent, R_C.
    pub fn current_rate(&self) -> Rate {
        self.current
    }

    /// The rate to which the limiter recovers, R_T.
    pub fn target_rate(&self) -> Rate {
        self.target
    }

    /// Whether the limiter limits nothing.
    pub fn is_at_line_rate(&self) -> bool {
        self.cycle_end == Instant::MAX
    }

    /// The estimate of congestion at `now`: each `dce_tcp_rtt` without CNP lowers it by the factor 1 - g (equation 2).
    pub fn alpha(&self, config: &Config, now: Instant) -> f64 {
        let periods = now.since(self.alpha_at).0 / config.dce_tcp_rtt.0.max(1);
        self.alpha * libm::pow(config.kept(), periods as f64)
    }

    /// When the next packet may be sent.
    pub fn next_transmit(&self) -> Instant {
        self.next
    }

    /// When a packet that waits must ask again: the rate may rise before its time comes.
    pub fn poll_timeout(&self) -> Instant {
        self.next.min(self.cycle_end)
    }

    /// Handles a CNP (equation 1).
    pub fn on_cnp(&mut self, config: &Config, now: Instant) {
        self.handle_timeout(config, now);
        let alpha = self.alpha(config, now);
        let has_recovered = self.time_stage + self.byte_stage > 0 || self.is_at_line_rate();
        if config.clamp_tgt_rate || has_recovered {
            self.target = self.current;
        }
        let least = self.current.0 / 100 * u64::from(config.rpg_min_dec_fac);
        let share = alpha / f64::from(1u32 << (config.rpg_gd - 10));
        let cut = (self.current.0 as f64 * (1.0 - share)) as u64;
        let rate = self.within(config, Rate(cut.max(least)));
        self.alpha = config.kept() * alpha + config.gain();
        self.alpha_at = now;
        (self.time_stage, self.byte_stage) = (0, 0);
        self.bytes_left = config.rpg_byte_reset;
        self.cycle_end = now.saturating_add(config.rpg_time_reset);
        self.set_rate(now, rate);
    }

    /// Handles a sent packet of `bytes`.
    pub fn on_transmit(&mut self, config: &Config, now: Instant, bytes: u32) {
        self.handle_timeout(config, now);
        self.next = self.next.max(now).saturating_add(self.current.time_for(bytes.into()));
        if self.is_at_line_rate() {
            return;
        }
        match self.bytes_left.checked_sub(bytes.into()) {
            Some(left) if left > 0 => self.bytes_left = left,
            _ => {
                self.bytes_left = config.rpg_byte_reset;
                self.byte_stage += 1;
                self.recover(config, now);
            }
        }
    }

    /// Handles the cycles of time that have ended by `now`.
    pub fn handle_timeout(&mut self, config: &Config, now: Instant) {
        while self.cycle_end <= now {
            let at = self.cycle_end;
            self.cycle_end = at.saturating_add(config.rpg_time_reset);
            self.time_stage += 1;
            self.recover(config, at);
        }
    }

    /// The end of a cycle.
    fn recover(&mut self, config: &Config, now: Instant) {
        let (least, most) = (self.byte_stage.min(self.time_stage), self.byte_stage.max(self.time_stage));
        let rise = if least > config.rpg_threshold {
            config.rpg_hai_rate.0.saturating_mul(u64::from(least - config.rpg_threshold))
        } else if most > config.rpg_threshold {
            config.rpg_ai_rate.0
        } else {
            0
        };
        self.target = Rate(self.target.0.saturating_add(rise)).min(self.line);
        self.set_rate(now, Rate((self.current.0 + self.target.0).div_ceil(2)));
        if self.current == self.line {
            self.cycle_end = Instant::MAX;
        }
    }

    /// Changes the rate. A packet that waits for its time waits for the rest at the new rate.
    fn set_rate(&mut self, now: Instant, rate: Rate) {
        if self.next > now {
            let rest = u128::from(self.next.since(now).0) * u128::from(self.current.0) / u128::from(rate.0.max(1));
            self.next = Instant(now.0.saturating_add(u64::try_from(rest).unwrap_or(u64::MAX)));
        }
        self.current = rate;
    }

    fn within(&self, config: &Config, rate: Rate) -> Rate {
        rate.max(config.rpg_min_rate).min(self.line)
    }
}
