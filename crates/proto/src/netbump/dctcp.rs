//! The marking of DCTCP in a bump (Al-Fares 2012, 5.3.2): by the virtual queue as it is, not by an average.

use super::{App, Found, Notice, PACKET_BYTES, Packet, QueueId, Verdict, VirtualQueue};
use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::vec::Vec;

/// Marks every packet that finds more than K bytes. Packets whose transport does not support ECN pass unmarked: the port
/// behind the bump drops them if they do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dctcp {
    /// The marking threshold K, in bytes.
    pub threshold: u32,
}

impl Default for Dctcp {
    /// K = 20 packets, the source's value.
    fn default() -> Dctcp {
        Dctcp { threshold: 20 * PACKET_BYTES }
    }
}

impl<P: Packet> App<P> for Dctcp {
    /// The threshold as a time: that to drain K bytes.
    type State = Duration;

    fn init(&self, _queue: QueueId, rate: Rate) -> Duration {
        rate.time_for(self.threshold.into())
    }

    #[inline(always)]
    fn process(
        &self,
        threshold: &mut Duration,
        now: Instant,
        packet: &mut P,
        queue: &mut VirtualQueue,
        _found: Found,
        _notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict {
        if queue.wait(now) > *threshold {
            packet.mark();
        }
        Verdict::Forward
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bump, Frame};
    use super::*;

    #[test]
    fn packets_beyond_the_threshold_are_marked_and_no_others() {
        let mut bump = Bump::new(Dctcp::default(), Rate::gbps(1));
        // 19 packets of 1,538 B on the wire are 29,222 B, 20 are 30,760 B: K is 30,360 B.
        for n in 1..=40 {
            let (verdict, packet) = bump.pass(Instant::ZERO, Frame::default());
            assert_eq!((verdict, packet.ecn == Ecn::Ce), (Verdict::Forward, n >= 20), "{n}");
        }
        // As soon as the queue is short again nothing is marked.
        let (_, packet) = bump.pass(Instant::ZERO + Duration::from_us(40 * 13), Frame::default());
        assert_eq!(packet.ecn, Ecn::Ect0);
    }

    #[test]
    fn packets_without_ecn_pass() {
        let mut bump = Bump::new(Dctcp::default(), Rate::gbps(1));
        for _ in 0..100 {
            let (verdict, packet) = bump.pass(Instant::ZERO, Frame { capable: false, ..Frame::default() });
            assert_eq!((verdict, packet.ecn), (Verdict::Forward, Ecn::NotEct));
        }
    }

    use sluicenet_wire::ipv4::Ecn;
}
