//! Random early detection in a bump (Al-Fares 2012, 5.3.1 and Figure 5.5, lines 9 to 17).

use super::{App, Found, Notice, PACKET_BYTES, Packet, QueueId, Verdict, VirtualQueue, mark_or_drop};
use crate::aqm::{self, Decision, RedConfig};
use crate::loss::DropReason;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::vec::Vec;

/// RED: marks with a probability that rises with the average of the virtual queue, and drops above the maximum threshold.
#[derive(Clone, Debug)]
pub struct Red {
    /// The rule. `packet_time` is that of a packet of usual length at the rate of the virtual queue, and set there.
    pub config: RedConfig,
    /// Seed of the draws.
    pub seed: u64,
}

/// The state of a virtual queue.
#[derive(Clone, Debug)]
pub struct State {
    red: aqm::Red,
    config: RedConfig,
    /// The decay of the average in a picosecond without packets, as a power of two.
    decay_log2: f64,
    /// Idle time by which the average has not decayed yet. While packets find the queue empty and the average is below the
    /// thresholds, nobody needs it.
    idle: Duration,
}

impl State {
    /// The share of the average that is left after the idle time.
    #[inline(always)]
    fn left(&self) -> f64 {
        exp2_of_negative(self.idle.0 as f64 * self.decay_log2)
    }

    /// The average of the queue.
    fn average(&self) -> f64 {
        if self.idle == Duration::ZERO { self.red.average() } else { self.red.average() * self.left() }
    }

    /// Lets the average decay by the idle time; returns whether a packet that finds the queue empty passes.
    #[inline(always)]
    fn decay(&mut self) -> bool {
        let left = self.left();
        self.idle = Duration::ZERO;
        self.red.on_idle(&self.config, left)
    }
}

/// 2^x for x from any negative number to 0, to seven digits: a library's function takes as long as the rest of the pipeline.
#[inline(always)]
fn exp2_of_negative(x: f64) -> f64 {
    /// The series of e^t.
    const C: [f64; 7] = [1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0];
    // Below, nothing is left; this also catches the decay of a weight of 1.
    if x.is_nan() || x < -1_000.0 {
        return 0.0;
    }
    let whole = (x - 0.5) as i64;
    // At most a half.
    let t = (x - whole as f64) * core::f64::consts::LN_2;
    let t2 = t * t;
    // Short chains, which the processor computes side by side.
    let series = (C[0] + C[1] * t) + t2 * ((C[2] + C[3] * t) + t2 * ((C[4] + C[5] * t) + t2 * C[6]));
    series * f64::from_bits(((1_023 + whole) as u64) << 52)
}

impl Red {
    /// The source's values: thresholds of 20 and 60 packets, `w_q` 0.1. It varies `max_p`.
    pub fn alfares2012(max_probability: f64) -> RedConfig {
        RedConfig {
            min_threshold: 20 * PACKET_BYTES,
            max_threshold: 60 * PACKET_BYTES,
            weight: 0.1,
            max_probability,
            counts: true,
            drops_above: true,
            packet_time: crate::time::Duration::ZERO,
        }
    }
}

impl<P: Packet> App<P> for Red {
    type State = State;

    fn init(&self, queue: QueueId, rate: Rate) -> State {
        let config = RedConfig { packet_time: rate.time_for(PACKET_BYTES.into()), ..self.config };
        let decay_log2 = libm::log2(1.0 - config.weight) / config.packet_time.0.max(1) as f64;
        State {
            red: aqm::Red::new(Rng::from_words(&[self.seed, queue.into()])),
            config,
            decay_log2,
            idle: Duration::ZERO,
        }
    }

    #[inline(always)]
    fn process(
        &self,
        state: &mut State,
        now: Instant,
        packet: &mut P,
        queue: &mut VirtualQueue,
        found: Found,
        _notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict {
        let bytes = match found.idle {
            Some(idle) => {
                state.idle = Duration(state.idle.0.saturating_add(idle.0));
                // The average before its decay is a bound.
                if state.red.average() < f64::from(state.config.min_threshold) || state.decay() {
                    return Verdict::Forward;
                }
                state.red.on_empty(now);
                0
            }
            None => {
                if state.idle > Duration::ZERO {
                    state.decay();
                }
                queue.bytes(now).min(u32::MAX.into()) as u32
            }
        };
        match state.red.on_arrival(&state.config, now, bytes) {
            Decision::Pass => Verdict::Forward,
            Decision::Mark => mark_or_drop(packet),
            Decision::Drop => Verdict::Drop(DropReason::EarlyDrop),
        }
    }

    fn gauges(&self, state: &State, show: &mut dyn FnMut(&'static str, f64)) {
        show("average_bytes", state.average());
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bump, Frame};
    use super::*;

    /// Packets at twice the drain rate of 1 Gb/s, for `packets` packets: marked and dropped ones, and the longest queue.
    fn overload(max_probability: f64, capable: bool, packets: u64) -> (u64, u64, u64) {
        let mut bump = Bump::new(Red { config: Red::alfares2012(max_probability), seed: 1 }, Rate::gbps(1));
        let mut longest = 0;
        for n in 0..packets {
            // 1,538 B take 12,304 ns.
            bump.pass(Instant(n * 6_152_000), Frame { capable, ..Frame::default() });
            longest = longest.max(bump.bytes());
        }
        (bump.slot.counts.marked, bump.slot.counts.dropped, longest)
    }

    #[test]
    fn nothing_is_marked_below_the_minimum_threshold() {
        // 38 packets at twice the rate leave 19 in the queue.
        assert_eq!(overload(1.0, true, 38).0, 0);
        assert!(overload(1.0, true, 100).0 > 0);
    }

    #[test]
    fn a_sender_that_ignores_marks_is_dropped_at_the_maximum_threshold() {
        let (marked, dropped, longest) = overload(0.1, true, 10_000);
        // Half of the packets cannot pass a port of half the rate.
        assert!(marked > 100 && (4_700..5_100).contains(&dropped), "{marked} {dropped}");
        // The average follows the queue within ten packets.
        assert!((60 * 1_518..75 * 1_538).contains(&longest), "{longest}");
    }

    #[test]
    fn packets_without_ecn_are_dropped_instead_of_marked() {
        let (marked, dropped, longest) = overload(0.1, false, 10_000);
        assert_eq!(marked, 0);
        assert!((4_700..5_100).contains(&dropped), "{dropped}");
        assert!(longest < 75 * 1_538, "{longest}");
    }

    #[test]
    fn a_higher_probability_marks_more() {
        assert!(overload(0.5, true, 150).0 > 2 * overload(0.05, true, 150).0);
    }

    #[test]
    fn the_power_of_two_is_right_to_seven_digits() {
        for n in 0..100_000 {
            let x = -f64::from(n) * 0.000_7;
            let (own, exact) = (exp2_of_negative(x), libm::exp2(x));
            assert!((own / exact - 1.0).abs() < 3e-7, "{x} {own} {exact}");
        }
        assert_eq!((exp2_of_negative(f64::NEG_INFINITY), exp2_of_negative(f64::NAN)), (0.0, 0.0));
        assert_eq!(exp2_of_negative(0.0), 1.0);
    }

    #[test]
    fn the_average_decays_while_the_queue_is_idle() {
        let mut bump = Bump::new(Red { config: Red::alfares2012(0.1), seed: 1 }, Rate::gbps(1));
        (0..30).for_each(|n| _ = bump.pass(Instant(n), Frame::default()));
        let before = bump.slot.state.average();
        // The queue of 30 packets is empty after 369 us; five packet times later the average is down to 0.9^5.
        bump.pass(Instant(30 * 12_304_000 + 5 * 12_144_000), Frame::default());
        let ratio = bump.slot.state.average() / before;
        assert!((0.58..0.60).contains(&ratio), "{ratio}");
    }
}
