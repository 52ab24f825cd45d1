//! Switch adaptive routing (Crisan 2014, 2.3.5): the switch reads the congestion notifications that pass it, and sends frames
//! by the ports that lead past the congestion.
//!
//! A notification that comes in at an upward port tells that frames to the sampled frame's destination meet congestion behind
//! that port. Notifications themselves go up by random ports, so that all switches on all paths learn of the congestion.

use super::Route;
use crate::device::PortId;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::Router;
use sluicenet_proto::routing::paths::PathPorts;
use sluicenet_proto::routing::switch_ar::{AdaptiveConfig, SwitchAr};
use sluicenet_proto::time::Instant;

/// The adaptive routing of one switch.
#[derive(Clone, Debug)]
pub struct Adaptive {
    router: Router,
    congestion: SwitchAr,
    rng: Rng,
}

impl Adaptive {
    /// Adaptive routing above a router that chooses without knowledge of congestion. `rng` draws the paths of
    /// notifications.
    pub fn new(router: Router, ports: PathPorts, config: AdaptiveConfig, rng: Rng) -> Adaptive {
        Adaptive { router, congestion: SwitchAr::new(ports, config), rng }
    }
}

impl Route for Adaptive {
    fn route<F: Frame>(&mut self, now: Instant, input: PortId, frame: &F) -> Result<PortId, PortId> {
        let routed = self.router.route(frame).ok_or(input)?;
        let ports = self.congestion.ports();
        if let Some(message) = frame.as_notification() {
            if ports.is_up(input) {
                // The sampled frame went to the source of its notification.
                self.congestion.learn(now, frame.source(), input, message.notification.feedback);
            }
            let ups = ports.ups();
            let drawn = |rng: &mut Rng| ups.start + rng.below(ups.len() as u64) as PortId;
            return Ok(if ports.is_up(routed) { drawn(&mut self.rng) } else { routed });
        }
        Ok(if ports.is_up(routed) { self.congestion.choose(now, frame.destination(), routed) } else { routed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, FlowKey, Framing, Packet};
    use sluicenet_proto::cee::qcn::{Message, Notification};
    use sluicenet_proto::frame::HostId;
    use sluicenet_proto::routing::Policy;
    use sluicenet_proto::routing::switch_ar::Split;
    use sluicenet_proto::routing::tree::TreeRouter;
    use sluicenet_proto::routing::xgft::Xgft;
    use sluicenet_proto::time::Duration;

    /// The edge switch of hosts 0 and 1 in a tree with four upward ports, 2 to 5.
    fn edge(split: Split) -> Adaptive {
        let tree = Xgft::new(&[2, 4], &[1, 4]).unwrap();
        let s = tree.leaf_parent(0, 0);
        let router = Router::Tree(TreeRouter::new(&tree, s, Policy::DModK, 1, &[]));
        let config = AdaptiveConfig { age: Duration::from_ms(15), split };
        Adaptive::new(router, PathPorts::new(&tree, s), config, Rng::from_words(&[1]))
    }

    fn frame(src: HostId, dst: HostId) -> Packet {
        let flow = FlowKey { src: Address::new(src, 0), dst: Address::new(dst, 0), sport: 1, dport: 2 };
        Packet::udp(flow, 0, 1_000, 0, Framing::ETHERNET)
    }

    /// A notification about a frame from host 0 to `dst` comes in at a port. Returns the port by which it goes on.
    fn notify(switch: &mut Adaptive, at: Instant, dst: HostId, port: PortId, feedback: u8) -> PortId {
        let notification = Notification { feedback, offset: 1, delta: 1 };
        let message = Message { cpid: 0, notification, priority: 0 };
        switch.route(at, port, &frame(0, dst).notification(&message, 7)).unwrap()
    }

    fn ports(switch: &mut Adaptive, at: Instant, dst: HostId, frames: usize) -> [usize; 4] {
        let mut counts = [0; 4];
        (0..frames).for_each(|_| counts[usize::from(switch.route(at, 0, &frame(0, dst)).unwrap()) - 2] += 1);
        counts
    }

    #[test]
    fn frames_leave_the_congested_port_for_a_while() {
        let mut switch = edge(Split::Binary);
        let start = Instant::ZERO;
        // D-mod-k takes the upward port of number 6 mod 4: port 4.
        assert_eq!(ports(&mut switch, start, 6, 10), [0, 0, 10, 0]);
        assert_eq!(notify(&mut switch, start, 6, 4, 20), 0, "to host 0");
        assert_eq!(ports(&mut switch, start, 6, 10), [0, 0, 0, 10]);
        notify(&mut switch, start, 6, 5, 30);
        assert_eq!(ports(&mut switch, start, 6, 10), [10, 0, 0, 0]);
        assert_eq!(ports(&mut switch, start, 7, 10), [0, 0, 0, 10], "another destination");
        // All are congested: back to the least congested.
        notify(&mut switch, start, 6, 2, 40);
        notify(&mut switch, start, 6, 3, 50);
        assert_eq!(ports(&mut switch, start, 6, 10), [0, 0, 10, 0]);
        assert_eq!(ports(&mut switch, start + Duration::from_ms(16), 6, 10), [0, 0, 10, 0]);
        assert!(!switch.congestion.knows_of(6), "forgotten");
    }

    #[test]
    fn a_fraction_of_the_frames_follows_the_level() {
        let mut switch = edge(Split::Fraction);
        for (port, feedback) in [(2, 63), (3, 32), (4, 0), (5, 48)] {
            notify(&mut switch, Instant::ZERO, 4, port, feedback);
        }
        // Shares of 1, 32, 64 and 16.
        assert_eq!(ports(&mut switch, Instant::ZERO, 4, 113 * 10), [10, 320, 640, 160]);
    }

    #[test]
    fn notifications_go_up_by_any_port_and_say_nothing_from_below() {
        let mut switch = edge(Split::Binary);
        let notification = Notification { feedback: 9, offset: 1, delta: 1 };
        let message = Message { cpid: 0, notification, priority: 0 };
        // From host 1's port, to host 5.
        let up = frame(5, 1).notification(&message, 7);
        let mut seen = [false; 4];
        (0..100).for_each(|_| seen[usize::from(switch.route(Instant::ZERO, 1, &up).unwrap()) - 2] = true);
        assert_eq!(seen, [true; 4]);
        assert!((0..8).all(|dst| !switch.congestion.knows_of(dst)));
    }
}
