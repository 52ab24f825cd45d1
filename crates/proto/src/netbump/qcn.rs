//! Quantized congestion notification between two bumps (Al-Fares 2012, 5.3.3 and 5.5.3): one bump is the congestion point of
//! the ports behind it, another one, nearer to the senders, is their reaction point.
//!
//! The congestion point differs from that of a switch (`cee/qcn`) in what the source changed: every packet may cause a
//! notification, with a probability that rises with the feedback, and the flow is chosen by the flows' weights in the queue
//! instead of by the packet that has just come.
//!
//! The reaction point cannot hold packets back, because a bump never queues: it drops packets above the rate of their flow.

use super::{App, Found, Notice, PACKET_BYTES, Packet, QueueId, Verdict, VirtualQueue};
use crate::cee::qcn::{Message, Notification, ReactionPoint, ReactionPointConfig};
use crate::loss::DropReason;
use crate::rng::Rng;
use crate::time::Instant;
use crate::units::Rate;
use alloc::vec::Vec;

/// Packets of the virtual queue that a congestion point remembers, to know the flows' weights in it: more than Q_eq holds.
const REMEMBERED: usize = 64;
/// Most flows with a limiter in one virtual queue. A notification about a further flow takes the place of the flow that is
/// limited least.
pub const LIMITERS_MAX: usize = 64;

/// The congestion point.
#[derive(Clone, Debug, PartialEq)]
pub struct BumpCongestionPoint {
    /// The queue length at equilibrium, Q_eq, in bytes.
    pub queue_size_set_point: u32,
    /// The weight of the queue's growth, w.
    pub feedback_weight: u32,
    /// The largest feedback: 32 in the source, 63 in the standard. It also sets how deep a cut can be.
    pub feedback_max: u8,
    /// The probability of a notification at the smallest feedback.
    pub least_probability: f64,
    /// The probability at the largest feedback, where it has its plateau.
    pub plateau: f64,
    /// Identifier of the first virtual queue's congestion point; those of the others follow.
    pub cpid: u64,
    /// Seed of the draws.
    pub seed: u64,
}

impl BumpCongestionPoint {
    /// The source's values: Q_eq 20 KB, w = 1, a largest feedback of 32, a plateau of 20 %; the probability begins at 1 %.
    pub fn alfares2012(cpid: u64, seed: u64) -> BumpCongestionPoint {
        BumpCongestionPoint {
            queue_size_set_point: 20_000,
            feedback_weight: 1,
            feedback_max: 32,
            least_probability: 0.01,
            plateau: 0.2,
            cpid,
            seed,
        }
    }

    /// The feedback about a queue of `bytes` that had `before` bytes when the previous packet had come; 0 without congestion.
    fn feedback(&self, bytes: u64, before: u64) -> (u8, Notification) {
        let offset = bytes as i64 - i64::from(self.queue_size_set_point);
        let delta = bytes as i64 - before as i64;
        let weight = i64::from(self.feedback_weight);
        let largest = (i64::from(self.queue_size_set_point) * (2 * weight + 1)).max(1);
        let congestion = (offset + weight * delta).clamp(0, largest);
        let feedback = (congestion * i64::from(self.feedback_max) / largest) as u8;
        (feedback, Notification { feedback, offset, delta })
    }

    fn probability(&self, feedback: u8) -> f64 {
        let share = f64::from(feedback) / f64::from(self.feedback_max.max(1));
        self.least_probability + (self.plateau - self.least_probability) * share
    }
}

/// The congestion point of a virtual queue.
#[derive(Clone, Debug)]
pub struct CongestionPointState<F> {
    cpid: u64,
    /// Bytes in the queue with the previous packet.
    before: u64,
    /// The last packets of the queue, flow and bytes; `next` is the oldest one.
    recent: Vec<(F, u64)>,
    next: usize,
    rng: Rng,
}

impl<F: Copy> CongestionPointState<F> {
    fn remember(&mut self, flow: F, bytes: u64) {
        if self.recent.len() < REMEMBERED {
            self.recent.push((flow, bytes));
        } else {
            self.recent[self.next] = (flow, bytes);
            self.next = (self.next + 1) % REMEMBERED;
        }
    }

    /// A flow of the queue, drawn by its share of the last `bytes` bytes.
    fn draw(&mut self, bytes: u64) -> Option<F> {
        let known: u64 = self.recent.iter().map(|packet| packet.1).sum();
        let mut at = self.rng.below(bytes.min(known).max(1));
        let newest_first = (1..=self.recent.len()).map(|back| {
            let count = self.recent.len();
            self.recent[(self.next + count - back) % count]
        });
        for (flow, len) in newest_first {
            if at < len {
                return Some(flow);
            }
            at -= len;
        }
        None
    }
}

impl<P: Packet> App<P> for BumpCongestionPoint {
    type State = CongestionPointState<P::Flow>;

    fn init(&self, queue: QueueId, _rate: Rate) -> Self::State {
        let rng = Rng::from_words(&[self.seed, queue.into(), u64::from_be_bytes(*b"qcn bump")]);
        let recent = Vec::with_capacity(REMEMBERED);
        CongestionPointState { cpid: self.cpid + u64::from(queue), before: 0, recent, next: 0, rng }
    }

    fn process(
        &self,
        state: &mut Self::State,
        now: Instant,
        packet: &mut P,
        queue: &mut VirtualQueue,
        _found: Found,
        notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict {
        if packet.notification().is_some() {
            return Verdict::Forward;
        }
        state.remember(packet.flow(), packet.wire_bytes());
        let bytes = queue.bytes(now);
        let (feedback, notification) = self.feedback(bytes, core::mem::replace(&mut state.before, bytes));
        if feedback > 0
            && state.rng.unit_f64() < self.probability(feedback)
            && let Some(about) = state.draw(bytes)
        {
            let priority = packet.fields().priority;
            notices.push(Notice { about, message: Message { cpid: state.cpid, notification, priority } });
        }
        Verdict::Forward
    }
}

/// The reaction point.
#[derive(Clone, Debug, PartialEq)]
pub struct BumpReactionPoint {
    /// The rule of each limiter. The highest rate is that of the virtual queue, and set there.
    pub limiter: ReactionPointConfig,
    /// Bytes that a flow may send at once beyond its rate.
    pub burst: u32,
    /// Seed of the lengths of cycles.
    pub seed: u64,
}

impl BumpReactionPoint {
    /// The source's values: the byte counter alone, cycles of 600 packets in fast recovery and of 100 after it, an increase of
    /// 1.5 Mb/s, a cut of at most a half. The lowest rate is ours, and so is the burst of ten packets.
    pub fn alfares2012(seed: u64) -> BumpReactionPoint {
        let limiter = ReactionPointConfig {
            max_rate: Rate::gbps(1),
            min_rate: Rate::mbps(1),
            byte_reset: 600 * PACKET_BYTES,
            byte_reset_after: 100 * PACKET_BYTES,
            time_reset: None,
            threshold: 5,
            ai_rate: Rate(1_500_000),
            hai_rate: Rate(1_500_000),
            gd: 7,
            min_dec_fac: 50,
            extra_fast_recovery: false,
        };
        BumpReactionPoint { limiter, burst: 10 * PACKET_BYTES, seed }
    }
}

/// The limiter of a flow.
#[derive(Clone, Debug)]
struct Limiter<F> {
    flow: F,
    point: ReactionPoint,
}

/// The limiters of the flows in a virtual queue.
#[derive(Clone, Debug)]
pub struct ReactionPointState<F> {
    config: ReactionPointConfig,
    limiters: Vec<Limiter<F>>,
    /// Limiters that began so far: a seed for the next one.
    begun: u64,
    queue: QueueId,
}

impl<F: Copy + PartialEq> ReactionPointState<F> {
    /// The limiter of a flow; a new one begins at the full rate.
    fn limiter(&mut self, now: Instant, flow: F, seed: u64) -> &mut Limiter<F> {
        let at = self.limiters.iter().position(|limiter| limiter.flow == flow).unwrap_or_else(|| {
            let rng = Rng::from_words(&[seed, self.queue.into(), self.begun]);
            self.begun += 1;
            let point = ReactionPoint::new(&self.config, now, self.config.max_rate, rng);
            if self.limiters.len() == LIMITERS_MAX {
                let fastest = (0..LIMITERS_MAX).max_by_key(|&i| self.limiters[i].point.current_rate());
                self.limiters.swap_remove(fastest.unwrap_or(0));
            }
            self.limiters.push(Limiter { flow, point });
            self.limiters.len() - 1
        });
        &mut self.limiters[at]
    }
}

impl<P: Packet> App<P> for BumpReactionPoint {
    type State = ReactionPointState<P::Flow>;

    fn init(&self, queue: QueueId, rate: Rate) -> Self::State {
        // The lowest rate is at most that of the port: on a slow one nothing is limited.
        let min_rate = self.limiter.min_rate.min(rate);
        let config = ReactionPointConfig { max_rate: rate, min_rate, ..self.limiter };
        ReactionPointState { config, limiters: Vec::with_capacity(LIMITERS_MAX), begun: 0, queue }
    }

    fn process(
        &self,
        state: &mut Self::State,
        now: Instant,
        packet: &mut P,
        queue: &mut VirtualQueue,
        _found: Found,
        _notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict {
        let flow = packet.flow();
        if let Some(message) = packet.notification() {
            let config = state.config;
            let limiter = state.limiter(now, flow, self.seed);
            limiter.point.on_notification(&config, now, message.notification.feedback);
            return Verdict::Consume;
        }
        let Some(at) = state.limiters.iter().position(|limiter| limiter.flow == flow) else { return Verdict::Forward };
        let point = &mut state.limiters[at].point;
        let tolerance = queue.rate().time_for(self.burst.into());
        if point.next_transmit().since(now) > tolerance {
            return Verdict::Drop(DropReason::Policed);
        }
        point.on_transmit(&state.config, now, packet.wire_bytes() as u32);
        if point.is_recovered(&state.config) {
            state.limiters.swap_remove(at);
        }
        Verdict::Forward
    }

    fn gauges(&self, state: &Self::State, show: &mut dyn FnMut(&'static str, f64)) {
        show("limited_flows", state.limiters.len() as f64);
        for limiter in &state.limiters {
            show("limiter_bps", limiter.point.current_rate().as_bps() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bump, Frame};
    use super::*;
    const MICRO: u64 = 1_000_000;

    fn congestion_point() -> BumpCongestionPoint {
        BumpCongestionPoint::alfares2012(7 << 16, 1)
    }

    fn notification(feedback: u8) -> Option<Message> {
        let notification = Notification { feedback, offset: 0, delta: 0 };
        Some(Message { cpid: 1, notification, priority: 0 })
    }

    #[test]
    fn feedback_is_offset_and_growth_in_steps_up_to_the_largest() {
        let point = congestion_point();
        // The largest one at 3 Q_eq = 60,000 B.
        for (bytes, before, feedback) in [
            (0, 0, 0),
            (20_000, 20_000, 0),
            (15_000, 10_000, 0),
            (40_000, 40_000, 10),
            (40_000, 20_000, 21),
            (40_000, 70_000, 0),
            (80_000, 80_000, 32),
            (500_000, 0, 32),
        ] {
            assert_eq!(point.feedback(bytes, before).0, feedback, "{bytes} {before}");
        }
        assert!((point.probability(0) - 0.01).abs() < 1e-12 && (point.probability(32) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn notifications_are_as_frequent_as_the_profile_says() {
        let mut bump = Bump::new(congestion_point(), Rate::gbps(1));
        // A queue that stays at 80 KB: the plateau.
        bump.slot.queue.arrive(Instant::ZERO, 78_462);
        for n in 0..100_000 {
            bump.pass(Instant(n * 12_304_000), Frame::default());
        }
        let notices = bump.notices.len();
        assert!((19_000..21_000).contains(&notices), "{notices}");
        assert_eq!(bump.slot.counts.notices, notices as u64);
        let Notice { about, message } = bump.notices[500];
        assert_eq!((about, message.cpid, message.notification.feedback), ((1, 2), 7 << 16, 32));
    }

    #[test]
    fn below_the_set_point_nobody_is_notified() {
        let mut bump = Bump::new(congestion_point(), Rate::gbps(1));
        (0..100_000).for_each(|n| _ = bump.pass(Instant(n * 12_304_000), Frame::default()));
        assert!(bump.notices.is_empty());
    }

    #[test]
    fn flows_are_notified_by_their_weight_in_the_queue() {
        let mut bump = Bump::new(congestion_point(), Rate::gbps(1));
        bump.slot.queue.arrive(Instant::ZERO, 60_000);
        // Of each eight packets six are of an elephant, one is a large one and one a small one of two others.
        for n in 0..200_000u64 {
            let (source, wire_bytes) = match n % 8 {
                0 => (2, 1_538),
                1 => (3, 84),
                _ => (1, 1_538),
            };
            let now = Instant(n * (7 * 1_538 + 84) * 1_000);
            bump.pass(now, Frame { flow: (source, 9), wire_bytes, ..Frame::default() });
        }
        let share = |source| {
            let of_source = bump.notices.iter().filter(|n| n.about.0 == source).count();
            of_source as f64 / bump.notices.len() as f64
        };
        // By bytes: 9,228, 1,538 and 84 of 10,850.
        assert!((0.84..0.86).contains(&share(1)), "{}", share(1));
        assert!((0.13..0.155).contains(&share(2)) && (0.005..0.011).contains(&share(3)), "{} {}", share(2), share(3));
    }

    /// Packets of a flow at 1 Gb/s for a time; how many passed.
    fn offer(bump: &mut Bump<BumpReactionPoint>, from: u64, until: u64, flow: (u64, u64)) -> u64 {
        let mut passed = 0;
        let mut now = from;
        while now < until {
            let (verdict, _) = bump.pass(Instant(now), Frame { flow, ..Frame::default() });
            passed += u64::from(verdict == Verdict::Forward);
            now += 12_304_000;
        }
        passed
    }

    #[test]
    fn a_flow_is_held_to_its_rate_and_recovers() {
        let mut bump = Bump::new(BumpReactionPoint::alfares2012(1), Rate::gbps(1));
        let second = 1_000_000 * MICRO;
        assert_eq!(offer(&mut bump, 0, second / 100, (1, 2)), 813);
        // Three cuts by a quarter: 422 Mb/s, until 600 packets have passed.
        for _ in 0..3 {
            let frame = Frame { notification: notification(32), ..Frame::default() };
            assert_eq!(bump.pass(Instant(second / 100), frame).0, Verdict::Consume);
        }
        let in_10_ms = offer(&mut bump, second / 100, second / 50, (1, 2));
        assert!((340..356).contains(&in_10_ms), "{in_10_ms}");
        assert_eq!(offer(&mut bump, second / 100, second / 50, (3, 2)), 813, "another flow is not limited");
        // Without more notifications it comes back to the rate before the last cut and then beyond it.
        let rate = |bump: &Bump<BumpReactionPoint>| bump.slot.state.limiters[0].point.current_rate().0;
        let mut at = second / 50;
        while rate(&bump) < 560_000_000 {
            offer(&mut bump, at, at + second / 100, (1, 2));
            at += second / 100;
            assert!(at < second, "{}", rate(&bump));
        }
        while !bump.slot.state.limiters.is_empty() {
            offer(&mut bump, at, at + second, (1, 2));
            at += second;
            assert!(at < 60 * second);
        }
    }

    #[test]
    fn notifications_about_a_thousand_flows_use_no_more_memory() {
        let mut bump = Bump::new(BumpReactionPoint::alfares2012(1), Rate::gbps(1));
        for source in 0..1_000 {
            let feedback = if source < 10 { 32 } else { 1 };
            let frame = Frame { flow: (source, 2), notification: notification(feedback), ..Frame::default() };
            bump.pass(Instant::ZERO, frame);
        }
        let limiters = &bump.slot.state.limiters;
        assert_eq!(limiters.len(), LIMITERS_MAX);
        assert!((0..10).all(|source| limiters.iter().any(|l| l.flow.0 == source)), "the slowest ones stay");
    }

    #[test]
    fn two_bumps_hold_three_flows_of_line_rate_below_two_fifths_of_the_queue() {
        // Figure 5.17: three UDP flows of 1 Gb/s for a port of 1 Gb/s. The notifications take 100 us to the other bump.
        let mut cp = Bump::new(congestion_point(), Rate::gbps(1));
        let mut rp = Bump::new(BumpReactionPoint::alfares2012(2), Rate::gbps(1));
        let mut under_way: Vec<(u64, Notice<(u64, u64)>)> = Vec::new();
        let (mut longest, mut served) = (0, 0u64);
        let end = 2_000_000 * MICRO;
        let mut now = 0;
        while now < end {
            for source in 0..3 {
                while under_way.first().is_some_and(|&(at, _)| at <= now) {
                    let (_, Notice { about, message }) = under_way.remove(0);
                    rp.pass(Instant(now), Frame { flow: about, notification: Some(message), ..Frame::default() });
                }
                let packet = Frame { flow: (source, 9), ..Frame::default() };
                if rp.pass(Instant(now), packet).0 == Verdict::Forward {
                    cp.pass(Instant(now), packet);
                    if now > end / 2 {
                        longest = longest.max(cp.bytes());
                        served += packet.wire_bytes;
                    }
                    under_way.extend(cp.notices.drain(..).map(|notice| (now + 100 * MICRO, notice)));
                }
            }
            now += 12_304_000;
        }
        // 1 Gb/s are 125 MB in a second.
        assert!(longest <= 40_000, "{longest}");
        assert!(served > 115_000_000, "{served}");
    }
}
