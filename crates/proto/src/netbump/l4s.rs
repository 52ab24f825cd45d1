//! The marking ramp of L4S in a bump (RFC 9332, Appendix A.1: the native AQM of the low-latency queue).

use super::{App, Found, Notice, Packet, QueueId, Verdict, VirtualQueue};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::vec::Vec;
use sluicenet_wire::ipv4::Ecn;

/// Marks packets with ECT(1) by the time that they would wait: never below `minimum`, always from `minimum + range` on, and
/// in between with a probability that rises linearly. Other packets pass unmarked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L4s {
    /// The wait from which packets are marked, `minTh`.
    pub minimum: Duration,
    /// The width of the ramp.
    pub range: Duration,
    /// Seed of the draws.
    pub seed: u64,
}

impl L4s {
    /// RFC 9332's values: 800 us and 400 us.
    pub fn rfc9332(seed: u64) -> L4s {
        L4s { minimum: Duration::from_us(800), range: Duration::from_us(400), seed }
    }
}

impl<P: Packet> App<P> for L4s {
    type State = Rng;

    fn init(&self, queue: QueueId, _rate: Rate) -> Rng {
        Rng::from_words(&[self.seed, queue.into(), u64::from_be_bytes(*b"l4s ramp")])
    }

    #[inline(always)]
    fn process(
        &self,
        rng: &mut Rng,
        now: Instant,
        packet: &mut P,
        queue: &mut VirtualQueue,
        _found: Found,
        _notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict {
        let above = queue.wait(now).0.saturating_sub(self.minimum.0);
        if above > 0 && packet.ecn() == Ecn::Ect1 && rng.below(self.range.0.max(1)) < above {
            packet.mark();
        }
        Verdict::Forward
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bump, Frame};
    use super::*;

    /// The share of packets that are marked at a wait of `us`.
    fn share(us: u64, ecn: Ecn) -> f64 {
        let mut bump = Bump::new(L4s::rfc9332(3), Rate::gbps(10));
        let mut marked = 0;
        for n in 0..10_000 {
            // A queue of this wait, in which a packet of 64 B and no more drains at once.
            let now = Instant(n * 2_000_000_000);
            bump.slot.queue.arrive(now, us * 1_250);
            let (_, packet) = bump.pass(now, Frame { ecn, wire_bytes: 84, ..Frame::default() });
            marked += u32::from(packet.ecn == Ecn::Ce);
        }
        f64::from(marked) / 10_000.0
    }

    #[test]
    fn the_ramp_rises_from_the_minimum_to_the_end_of_its_range() {
        assert_eq!(share(799, Ecn::Ect1), 0.0);
        assert!((0.24..0.26).contains(&share(900, Ecn::Ect1)), "{}", share(900, Ecn::Ect1));
        assert!((0.74..0.76).contains(&share(1_100, Ecn::Ect1)));
        assert_eq!(share(1_200, Ecn::Ect1), 1.0);
    }

    #[test]
    fn classic_packets_are_left_to_others() {
        for ecn in [Ecn::NotEct, Ecn::Ect0] {
            assert_eq!(share(1_900, ecn), 0.0);
        }
    }
}
