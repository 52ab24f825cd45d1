//! RFC 9438: the window as a cubic of the time since congestion, flat around where it was.
//!
//! Sums, products and quotients of `f64` are the same on every platform; the one cube root comes from `libm`, not from
//! the platform's library.

use super::{Ack, Congestion, Control, Signal, Window};
use crate::time::{Duration, Instant};

/// Steepness, in segments per cubic second (RFC 9438, 5).
const C: f64 = 0.4;
/// Factor by which congestion reduces the window (RFC 9438, 4.6).
const BETA: f64 = 0.7;
/// Growth, in segments a round trip, at which reducing by `BETA` is as fair as RFC 5681 (RFC 9438, 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// CUBIC; windows are in segments, times in seconds.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    /// Window before the last reduction, lowered by fast convergence; zero for none.
    pub(super) w_max: f64,
    /// Time from the start of the epoch until the window is back at `w_max`.
    pub(super) k: f64,
    /// Window of a Reno-friendly flow.
    w_est: f64,
    /// Window before the last reduction.
    prior: f64,
    /// Growth that does not make a byte yet.
    fraction: f64,
    /// Start of congestion avoidance, moved on by time in which the window was not in use (RFC 9438, 5.8).
    epoch: Instant,
    last_ack: Instant,
    running: bool,
}

impl Cubic {
    fn start(&mut self, now: Instant, cwnd: f64) {
        self.running = true;
        self.epoch = now;
        self.w_est = cwnd;
        self.fraction = 0.0;
        if cwnd < self.w_max {
            self.k = libm::cbrt((self.w_max - cwnd) / C);
        } else {
            // No reduction to come back from, or a timeout (RFC 9438, 4.8): the cubic starts at its flat point.
            (self.k, self.w_max) = (0.0, cwnd);
        }
    }

    /// W_cubic (RFC 9438, figure 1).
    fn at(&self, t: f64) -> f64 {
        let d = t - self.k;
        C * d * d * d + self.w_max
    }
}

impl Control for Cubic {
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        let unused = if ack.limited { Duration::ZERO } else { ack.now.since(self.last_ack) };
        self.last_ack = ack.now;
        if !ack.limited {
            self.epoch = self.epoch.saturating_add(unused);
            return;
        }
        if window.in_slow_start() {
            window.slow_start(ack);
            return;
        }
        let mss = f64::from(ack.mss);
        let cwnd = f64::from(window.cwnd) / mss;
        if !self.running {
            self.start(ack.now, cwnd);
        }
        let acked = f64::from(ack.bytes) / mss;
        let t = seconds(ack.now.since(self.epoch));
        let alpha = if self.w_est < self.prior { ALPHA } else { 1.0 };
        self.w_est += alpha * acked / cwnd;
        let growth = if self.at(t) < self.w_est {
            self.w_est - cwnd
        } else {
            let target = self.at(t + seconds(ack.srtt)).clamp(cwnd, 1.5 * cwnd);
            (target - cwnd) / cwnd * acked
        };
        // A whole number of bytes at a time; the window does not shrink in congestion avoidance.
        self.fraction += growth.max(0.0) * mss;
        let bytes = self.fraction as u32;
        self.fraction -= f64::from(bytes);
        window.grow(bytes);
    }

    fn on_congestion(&mut self, window: &Window, congestion: &Congestion) -> u32 {
        let mss = f64::from(congestion.mss);
        let cwnd = f64::from(window.cwnd) / mss;
        self.prior = cwnd;
        self.w_max = match congestion.signal {
            Signal::Timeout => 0.0,
            // Fast convergence: a flow that did not get back to its old window makes room (RFC 9438, 4.7).
            _ if cwnd < self.w_max => cwnd * (1.0 + BETA) / 2.0,
            _ => cwnd,
        };
        self.running = false;
        ((f64::from(congestion.flight) * BETA) as u32).max(2 * congestion.mss)
    }

    fn on_repeated_timeout(&mut self) {
        // Congestion avoidance begins anew, and flat, whatever window fast recovery would have restored (RFC 9438,
        // 4.8).
        (self.w_max, self.running) = (0.0, false);
    }

    fn on_idle(&mut self, since: Instant, now: Instant) {
        self.epoch = self.epoch.saturating_add(now.since(since));
        self.last_ack = now;
    }
}

fn seconds(d: Duration) -> f64 {
    d.0 as f64 * 1e-12
}
