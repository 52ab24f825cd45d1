//! The congestion point of QCN (802.1Qau) at an output, by class.

use super::{Backlog, Mark, MarkCounts, PortId, Verdict};
use alloc::vec::Vec;
use sluicenet_proto::cee::qcn::{self, CongestionPointConfig, Message, Notification};
use sluicenet_proto::frame::{Frame, PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::qcn as wire;

/// Position of the switch's number in the identifier of a congestion point.
const SWITCH_SHIFT: u32 = 32;

/// Settings of the congestion points of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionPoints {
    /// Settings of each.
    pub point: CongestionPointConfig,
    /// The classes whose queues have one.
    pub classes: PrioritySet,
    /// The priority of notifications. Their class has no congestion point.
    pub priority: Priority,
}

/// The congestion points of one output: one for each class.
#[derive(Clone, Debug)]
pub struct CongestionPoint {
    // In place: every frame needs them.
    config: CongestionPoints,
    points: [qcn::CongestionPoint; PRIORITIES],
    /// Identifier of the first class's point; those of the others follow.
    cpid: u64,
    sent: [u64; PRIORITIES],
    seed: u64,
    /// Number of the switch, which identifies its congestion points.
    switch: u32,
}

impl CongestionPoint {
    /// The congestion points of a switch, which has this number.
    pub fn new(config: CongestionPoints, seed: u64, switch: usize) -> CongestionPoint {
        let seed = Rng::from_words(&[seed, switch as u64, u64::from_be_bytes(*b"qcn pts\0")]).next_u64();
        let points = points(&config.point, seed, PortId::MAX);
        CongestionPoint { config, points, cpid: 0, sent: [0; PRIORITIES], seed, switch: switch as u32 }
    }

    /// The same for one output, with random numbers of its own.
    pub fn of_port(&self, port: PortId) -> CongestionPoint {
        let cpid = u64::from(self.switch) << SWITCH_SHIFT | u64::from(port) << 3;
        CongestionPoint { cpid, points: points(&self.config.point, self.seed, port), ..self.clone() }
    }
}

/// Bytes of the frame of a notification to `to` about a frame to `about`, without the check sequence. `flow` is that of the
/// frame's CN-TAG, if it has one.
pub fn notification_bytes(
    message: &Message,
    priority: Priority,
    about: MacAddress,
    to: MacAddress,
    flow: Option<u16>,
) -> Vec<u8> {
    let Message { cpid, notification: Notification { feedback, offset, delta }, priority: sampled } = *message;
    let frame = wire::Frame {
        destination: to,
        source: MacAddress::switch((cpid >> SWITCH_SHIFT) as u32),
        priority,
        flow,
        message: wire::Repr::of(cpid, (feedback, offset, delta), sampled, about),
    };
    let mut bytes = alloc::vec![0; frame.emitted_len()];
    frame.emit(&mut bytes);
    bytes
}

/// The congestion points of the classes at an output.
fn points(config: &CongestionPointConfig, seed: u64, port: PortId) -> [qcn::CongestionPoint; PRIORITIES] {
    core::array::from_fn(|class| {
        let rng = Rng::from_words(&[seed, u64::from(port), class as u64]);
        qcn::CongestionPoint::new(config, rng)
    })
}

impl<F: Frame> Mark<F> for CongestionPoint {
    #[inline(always)]
    fn on_arrival(&mut self, _now: Instant, backlog: Backlog, frame: &mut F) -> Verdict<F> {
        let class = backlog.class;
        if !self.config.classes.contains(class) {
            return Verdict::Forward;
        }
        let (point, bytes) = (&mut self.points[class as usize], frame.len());
        match point.on_arrival(&self.config.point, bytes, backlog.class_bytes.saturating_add(bytes)) {
            None => Verdict::Forward,
            Some(notification) => {
                self.sent[class as usize] += 1;
                let message =
                    Message { cpid: self.cpid | u64::from(class), notification, priority: frame.priority() };
                Verdict::Emit(frame.notification(&message, self.config.priority))
            }
        }
    }

    fn counts(&self, class: Priority) -> MarkCounts {
        MarkCounts { notifications: self.sent[class as usize], ..MarkCounts::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, FlowKey, Framing, Packet};

    fn point() -> CongestionPoint {
        let point = CongestionPointConfig::crisan2014(20_000);
        let config = CongestionPoints { point, classes: PrioritySet(0x7f), priority: 7 };
        CongestionPoint::new(config, 1, 5).of_port(3)
    }

    /// The notifications about frames of a class that find so many bytes.
    fn notifications(point: &mut CongestionPoint, class: Priority, class_bytes: u32, frames: usize) -> Vec<Packet> {
        let flow = FlowKey { src: Address::new(9, 1), dst: Address::new(4, 2), sport: 10, dport: 20 };
        let backlog = Backlog { port: 3, class, class_bytes, port_bytes: class_bytes };
        let made = |_| {
            let mut frame = Packet::udp(flow, 0, 1_454, class, Framing::ETHERNET);
            match point.on_arrival(Instant::ZERO, backlog, &mut frame) {
                Verdict::Emit(notification) => Some(notification),
                _ => None,
            }
        };
        (0..frames).filter_map(made).collect()
    }

    #[test]
    fn a_notification_goes_to_the_source_and_says_how_full_the_queue_is() {
        let mut point = point();
        let made = notifications(&mut point, 2, 38_500, 1_000);
        let first = made[0];
        assert_eq!((first.destination(), first.source(), first.priority(), first.len()), (9, 4, 7, 64));
        assert_eq!((first.flow().sport, first.flow().dport), (20, 10));
        // A frame of 1,500 B makes the queue 40 KB long: twice the set point, and it grew from nothing.
        let notification = Notification { feedback: 63, offset: 20_000, delta: 40_000 };
        assert_eq!(
            first.as_notification(),
            Some(Message { cpid: 5 << 32 | 3 << 3 | 2, notification, priority: 2 }),
            "from switch 5, output 3, class 2"
        );
        let settled = made[1].as_notification().unwrap().notification;
        assert_eq!((settled.feedback, settled.delta), (12, 0));
        assert_eq!(Mark::<Packet>::counts(&point, 2).notifications, made.len() as u64);
        assert!((15..=40).contains(&made.len()), "{}", made.len());
    }

    #[test]
    fn notifications_have_no_congestion_point_and_an_empty_queue_is_silent() {
        assert_eq!(notifications(&mut point(), 7, 1_000_000, 1_000).len(), 0);
        assert_eq!(notifications(&mut point(), 0, 0, 10_000).len(), 0);
    }
}
