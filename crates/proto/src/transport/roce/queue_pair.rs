//! One end of a connection: a requester, a responder, and the ends of congestion control.

use super::dcqcn::{NotificationPoint, ReactionPoint};
use super::{Config, Packet, Requester, Responder, Stats};
use crate::time::Instant;
use crate::units::Rate;

/// The effect of a packet on its queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// New bytes that arrived in order.
    pub fresh: u16,
    /// Whether packets of this end were acknowledged.
    pub acknowledged: bool,
}

/// A queue pair. Both ends are connected before their first packet.
#[derive(Clone, Debug)]
pub struct QueuePair {
    requester: Requester,
    responder: Responder,
    notification_point: NotificationPoint,
    is_notification_due: bool,
    /// The rate limiter, from the first CNP on.
    limiter: Option<ReactionPoint>,
    /// The rate of the adapter's link.
    line: Rate,
}

impl QueuePair {
    /// A queue pair of an adapter with a link of rate `line`.
    pub fn new(line: Rate) -> QueuePair {
        QueuePair {
            requester: Requester::default(),
            responder: Responder::default(),
            notification_point: NotificationPoint::default(),
            is_notification_due: false,
            limiter: None,
            line,
        }
    }

    /// The application writes `bytes`.
    pub fn post(&mut self, bytes: u64) {
        self.requester.post(bytes);
    }

    /// Events of its requester.
    pub fn stats(&self) -> &Stats {
        self.requester.stats()
    }

    /// The rate limiter as it is at `now`; it exists from the first CNP on.
    pub fn limiter(&self, config: &Config, now: Instant) -> Option<ReactionPoint> {
        let mut limiter = self.limiter.clone()?;
        limiter.handle_timeout(config.dcqcn.as_ref()?, now);
        Some(limiter)
    }

    /// Whether everything written has been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.requester.is_idle()
    }

    /// A packet came in; `is_marked` says whether a switch marked it (CE).
    pub fn receive(&mut self, config: &Config, now: Instant, packet: &Packet, is_marked: bool) -> Heard {
        match packet {
            Packet::Data(data) => {
                if let Some(dcqcn) = config.dcqcn.as_ref().filter(|_| is_marked) {
                    self.is_notification_due |= self.notification_point.on_marked(dcqcn, now);
                }
                Heard { fresh: self.responder.receive(data), acknowledged: false }
            }
            Packet::Reply(reply) => Heard { fresh: 0, acknowledged: self.requester.receive(config, now, reply) },
            Packet::Notification => {
                self.on_notification(config, now);
                Heard::default()
            }
        }
    }

    /// A CNP came in. Without congestion control it has no effect.
    fn on_notification(&mut self, config: &Config, now: Instant) {
        let Some(dcqcn) = &config.dcqcn else { return };
        match &mut self.limiter {
            Some(limiter) => limiter.on_cnp(dcqcn, now),
            None => self.limiter = Some(ReactionPoint::new(dcqcn, now, self.line)),
        }
    }

    /// Whether it has a packet to send, now or when its rate permits.
    pub fn wants_transmit(&self) -> bool {
        self.is_notification_due || self.responder.wants_transmit() || self.requester.wants_transmit()
    }

    /// The next packet: a CNP, an acknowledgment, or data if its time has come.
    pub fn poll_transmit(&mut self, config: &Config, now: Instant) -> Option<Packet> {
        if core::mem::take(&mut self.is_notification_due) {
            return Some(Packet::Notification);
        }
        if let Some(reply) = self.responder.poll_transmit() {
            return Some(Packet::Reply(reply));
        }
        if let (Some(dcqcn), Some(limiter)) = (&config.dcqcn, &mut self.limiter) {
            limiter.handle_timeout(dcqcn, now);
            if limiter.next_transmit() > now {
                return None;
            }
        }
        self.requester.poll_transmit(config, now).map(Packet::Data)
    }

    /// Data of `bytes` leaves, gaps and preamble of its frame included.
    pub fn on_transmit(&mut self, config: &Config, now: Instant, bytes: u32) {
        if let (Some(dcqcn), Some(limiter)) = (&config.dcqcn, &mut self.limiter) {
            limiter.on_transmit(dcqcn, now, bytes);
        }
    }

    /// The next deadline after `now`: data that waits for its rate may leave, or packets in flight are given up.
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let paced = self.limiter.as_ref().filter(|_| self.requester.wants_transmit()).map(ReactionPoint::poll_timeout);
        // Data whose time has come waits for the adapter, not for a deadline.
        paced.filter(|&at| at > now).map_or(self.requester.poll_timeout(), |at| at.min(self.requester.poll_timeout()))
    }

    /// A deadline may have passed.
    pub fn handle_timeout(&mut self, config: &Config, now: Instant) {
        self.requester.handle_timeout(config, now);
        if let (Some(dcqcn), Some(limiter)) = (&config.dcqcn, &mut self.limiter) {
            limiter.handle_timeout(dcqcn, now);
        }
    }
}
