//! Queue pairs of RoCE. They are in the adapter: their packets do not pass a guest's network stack, and each leaves when its
//! rate permits and the adapter has room.

use super::host::{Host, SOCKET_TIMER};
use crate::deadlines::Timers;
use crate::guest::{Body, Socket, SocketId, Topic, metadata};
use crate::packet::{FlowKey, Packet};
use crate::server::ServerConfig;
use alloc::boxed::Box;
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::roce::{self, QueuePair};
use sluicenet_proto::units::Rate;

impl Host {
    /// A queue pair that is connected.
    pub(super) fn queue_pair(&self) -> Body {
        Body::Roce(Box::new(QueuePair::new(self.config.adapter.rate[0])))
    }

    /// Delivers a packet to its queue pair.
    #[inline(never)]
    pub(super) fn deliver_roce(&mut self, now: Instant, id: SocketId, packet: &Packet) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        let Body::Roce(pair) = &mut s.body else { return };
        let is_marked = packet.ecn() == sluicenet_wire::ipv4::Ecn::Ce;
        let heard = pair.receive(&self.config.roce, now, &packet.roce_packet(), is_marked);
        s.received += u64::from(heard.fresh);
        if heard.fresh > 0 && s.received >= s.next_end {
            self.arrived(now, id);
        }
        self.refresh(now, id);
        if heard.acknowledged {
            self.disconnect_if_over(now, id);
        }
    }

    /// Removes a queue pair that the application closed, at both ends, when all its messages are confirmed. The communication
    /// manager, which does this in a real network, is not simulated: metadata takes its place.
    pub(super) fn disconnect_if_over(&mut self, now: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get(id.index) else { return };
        let Body::Roce(pair) = &s.body else { return };
        if !s.closing || !s.messages.outbox.is_empty() || !pair.is_idle() {
            return;
        }
        let flow = s.flow;
        self.guests[id.vm as usize].remove(id.index);
        self.post_metadata(now, metadata(flow, Topic::Disconnect, [0; 3]));
    }

    /// The peer has disconnected its end.
    pub(super) fn disconnected(&mut self, now: Instant, local: &FlowKey) {
        let vm = local.src.vm();
        let Some(index) = self.guests[vm as usize].sockets.find(local) else { return };
        let id = SocketId { vm, index };
        let sockets = &self.guests[vm as usize].sockets;
        if !sockets.get(index).is_some_and(|s| matches!(s.body, Body::Roce(_))) {
            return;
        }
        self.give_up_unfinished(now, id);
        self.guests[vm as usize].remove(index);
    }

    /// The rate limiters of its queue pairs: the flow, its priority, the rate and the target rate.
    pub fn roce_limiters(&self, now: Instant, mut each: impl FnMut(FlowKey, Priority, Rate, Rate)) {
        for s in self.guests.iter().flat_map(|g| g.sockets.iter()) {
            if let Body::Roce(pair) = &s.body
                && let Some(limiter) = pair.limiter(&self.config.roce, now)
            {
                each(s.flow, s.priority, limiter.current_rate(), limiter.target_rate());
            }
        }
    }
}

/// The next packet of a queue pair: `None` if it has none, or none whose time has come.
#[inline(never)]
pub(super) fn poll_transmit(
    config: &ServerConfig,
    now: Instant,
    s: &mut Socket,
    id: SocketId,
    timers: &mut Timers,
) -> Option<Packet> {
    let Body::Roce(pair) = &mut s.body else { return None };
    let settings = &config.roce;
    let Some(sent) = pair.poll_transmit(settings, now) else {
        keep_deadline(now, timers, s, id);
        return None;
    };
    let dcqcn = settings.dcqcn.as_ref();
    let (ect, priority) = match (&sent, dcqcn) {
        (roce::Packet::Notification, Some(dcqcn)) => (false, dcqcn.cnp_802p_prio),
        (roce::Packet::Data(_), Some(_)) => (true, s.priority),
        _ => (false, s.priority),
    };
    let packet = Packet::roce(s.flow, &sent, ect, priority, config.framing);
    if matches!(sent, roce::Packet::Data(_)) {
        pair.on_transmit(settings, now, packet.len() + u32::from(config.framing.overhead()));
    }
    keep_deadline(now, timers, s, id);
    Some(packet)
}

/// Schedules a check of a queue pair at its next deadline.
pub(super) fn keep_deadline(now: Instant, timers: &mut Timers, s: &mut Socket, id: SocketId) {
    let Body::Roce(pair) = &s.body else { return };
    let at = pair.poll_timeout(now);
    if at < s.timer_at {
        // A timer that is too early costs one check.
        s.timer_at = at;
        timers.push((at, SOCKET_TIMER, (id.vm as u64) << 32 | id.index as u64));
    }
}
