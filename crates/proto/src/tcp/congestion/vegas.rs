//! TCP Vegas (Brakmo and Peterson 1995) keeps a few of its segments in the queue, and infers their number from the RTT.

use super::{Ack, Congestion, Control, Window, half_of_flight};
use crate::time::Instant;

/// Fewest segments to keep in the queue. The paper measures both 1 and 3, and 2 and 4; the latter are Linux's values too,
/// and leave room for delayed acknowledgments, which let segments go in pairs.
const ALPHA: u64 = 2;
/// Most segments to keep in the queue.
const BETA: u64 = 4;
/// Segments in the queue that end slow start.
const GAMMA: u64 = 1;

/// Vegas: one decision a round trip.
#[derive(Clone, Debug)]
pub struct Vegas {
    /// Smallest RTT seen: the path without a queue, in picoseconds.
    base_rtt: u64,
    /// Smallest RTT of this round: delayed acknowledgments and bursts disturb it least.
    round_rtt: u64,
    /// Position whose acknowledgment ends the round.
    round_end: u64,
    /// Whether slow start grows in this round: every other one, so that the RTT in between is comparable.
    grow: bool,
    /// Whether the window was in full use in this round.
    limited: bool,
}

impl Default for Vegas {
    fn default() -> Vegas {
        Vegas { base_rtt: u64::MAX, round_rtt: u64::MAX, round_end: 0, grow: true, limited: false }
    }
}

impl Vegas {
    fn start_round(&mut self, end: u64) {
        self.round_end = end;
        self.round_rtt = u64::MAX;
        self.limited = false;
    }

    /// Compares the window's rate in an empty network with its real rate.
    fn decide(&mut self, window: &mut Window, mss: u32) {
        let cwnd = u128::from(window.cwnd);
        let (base, rtt) = (u128::from(self.base_rtt), u128::from(self.round_rtt.max(1)));
        // A path shorter than the tick has a base RTT of zero: no queue can be told from it, and only losses guide.
        let queued = if base == 0 { 0 } else { (cwnd * rtt.saturating_sub(base) / rtt) as u64 };
        let segments = |n: u64| n * u64::from(mss);
        if window.in_slow_start() {
            if queued > segments(GAMMA) {
                // Down to the capacity of the path, and a segment (Linux, tcp_vegas_cong_avoid).
                let fits = (cwnd * base.min(rtt) / rtt) as u32;
                window.cwnd = window.cwnd.min(fits.saturating_add(mss)).max(2 * mss);
                window.ssthresh = window.cwnd;
            }
            self.grow = !self.grow;
        } else if queued > segments(BETA) {
            window.cwnd = window.cwnd.saturating_sub(mss).max(2 * mss);
            window.ssthresh = window.ssthresh.min(window.cwnd);
        } else if queued < segments(ALPHA) && self.limited {
            window.grow(mss);
        }
    }
}

impl Control for Vegas {
    fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.base_rtt = self.base_rtt.min(rtt.0);
            self.round_rtt = self.round_rtt.min(rtt.0);
        }
        self.limited |= ack.limited;
        if ack.una >= self.round_end {
            if self.round_rtt != u64::MAX {
                self.decide(window, ack.mss);
            }
            self.start_round(ack.sent);
        }
        if window.in_slow_start() && self.grow && ack.limited {
            window.slow_start(ack);
        }
    }

    fn on_congestion(&mut self, _window: &Window, congestion: &Congestion) -> u32 {
        (self.round_end, self.round_rtt, self.grow) = (0, u64::MAX, true);
        half_of_flight(congestion)
    }

    fn on_idle(&mut self, _since: Instant, _now: Instant) {
        // Samples from before say nothing about the network as it is now; the base RTT does.
        self.start_round(0);
    }
}
