//! From the chain to the sockets.

use super::app::Event;
use super::host::{Host, fill_tcp, keep_tcp_deadline};
use crate::deadlines::Delayed;
use crate::guest::{Body, METADATA_WORD, Socket, SocketId, Topic, metadata};
use crate::packet::{FlowKey, Kind, Packet};
use crate::pool::{Handle, Pool};
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::tcp::{Config as TcpConfig, Received, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ipv4::Ecn;
use sluicenet_wire::tcplight::Flags as LightFlags;

/// A message of datagrams counts as incomplete if data of the message so many further on has arrived before its own.
const OVERTAKING_MESSAGES: usize = 64;

impl Host {
    #[inline(always)]
    pub(super) fn rx_delay(&self, packet: &Packet) -> Duration {
        match packet.kind() {
            Kind::Udp => self.config.udp_rx_delay,
            Kind::Light => self.config.light_rx_delay,
            Kind::Roce => Duration::ZERO,
            _ => self.config.tcp_rx_delay,
        }
    }

    /// Sends a packet on its way to its socket.
    #[inline(always)]
    pub(super) fn enter_rx(&mut self, through: Instant, at: Handle) {
        self.in_stacks += 1;
        self.rx.push(Delayed { at: through, packet: at });
    }

    /// Delivers the packets that have passed the guests' network stacks to their sockets.
    #[inline(never)]
    pub(super) fn run_rx(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        while let Some(Delayed { at, packet, .. }) = self.rx.pop(now) {
            self.in_stacks -= 1;
            self.deliver(at, pool, packet);
        }
    }

    /// Delivers a packet to its socket.
    #[inline(always)]
    pub(super) fn deliver(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        self.to_guests += 1;
        let packet = pool.frame(at);
        let vm = packet.dst().vm();
        let local = packet.flow().reverse();
        match self.guests[vm as usize].sockets.find(&local) {
            Some(index) => self.deliver_to(now, SocketId { vm, index }, packet),
            None => self.deliver_to_nobody(now, packet, local),
        }
        pool.release(at);
    }

    #[inline(always)]
    pub(super) fn deliver_to(&mut self, now: Instant, id: SocketId, packet: &Packet) {
        let guest = &mut self.guests[id.vm as usize];
        let Some(s) = guest.sockets.get_mut(id.index) else { return };
        let Body::Tcp(tcp) = &mut s.body else { return self.deliver_other(now, id, packet) };
        let config = &self.config.tcp;
        let ce = packet.ecn() == Ecn::Ce;
        let plain = packet.plain_segment().and_then(|segment| tcp.receive_plain(config, now, &segment, ce));
        let heard = plain.unwrap_or_else(|| receive_any(tcp, config, now, packet));
        if heard.readable() {
            s.received += tcp.recv(config, now, u64::MAX);
        }
        if s.received >= s.next_end || heard.peer_closed() || heard.closed() {
            return self.deliver_event(now, id, heard);
        }
        if heard.acked() || heard.connected() {
            fill_tcp(tcp, &mut s.pending, s.closing, config, now);
        }
        keep_tcp_deadline(&mut self.timers, tcp, &mut s.timer_at, id);
        if !s.scheduled && tcp.wants_transmit(config, now) {
            s.scheduled = true;
            guest.ready.push_back(id.index);
            self.runnable |= 1 << id.vm;
        }
    }

    /// Delivers a packet of another transport than TCP.
    #[inline(never)]
    fn deliver_other(&mut self, now: Instant, id: SocketId, packet: &Packet) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        match &mut s.body {
            Body::Tcp(_) => {}
            Body::Udp(_, receiver) => {
                receiver.receive(packet.udp_offset(), packet.payload());
                self.datagram(now, id, packet.udp_offset(), packet.payload());
            }
            Body::Light(_) => self.deliver_light(now, id, packet),
            Body::Roce(_) => self.deliver_roce(now, id, packet),
        }
    }

    /// The segment completed a message, or the peer's stream.
    #[inline(never)]
    fn deliver_event(&mut self, now: Instant, id: SocketId, heard: Received) {
        if heard.readable() {
            self.arrived(now, id);
        }
        if heard.acked() || heard.connected() {
            self.fill(now, id);
        }
        if heard.peer_closed() || heard.closed() {
            self.ended(now, id, heard.closed());
        }
        self.refresh(now, id);
    }

    /// Handles a segment without a socket: a SYN opens one, any other segment has no receiver.
    #[cold]
    pub(super) fn deliver_to_nobody(&mut self, now: Instant, packet: &Packet, local: FlowKey) {
        if packet.kind() == Kind::Light && packet.light_segment().flags == LightFlags::SYN {
            let id = self.listen_light(local, packet.priority());
            return self.deliver_to(now, id, packet);
        }
        if packet.kind() != Kind::Tcp || !packet.segment().flags.contains(sluicenet_wire::tcp::Flags::SYN) {
            return;
        }
        let id = self.listen(local, packet.priority());
        self.deliver_to(now, id, packet);
    }

    pub(super) fn listen(&mut self, local: FlowKey, priority: Priority) -> SocketId {
        let vm = local.src.vm();
        let cache = self.guests[vm as usize].cache.get(&local.dst);
        let tcp = Tcp::listen(&self.config.tcp, self.iss(&local), cache);
        let index = self.guests[vm as usize].sockets.insert(Socket::new(local, Body::Tcp(tcp), priority));
        SocketId { vm, index }
    }

    /// Handles a connection that the peer closed, or that is gone.
    #[cold]
    pub(super) fn ended(&mut self, now: Instant, id: SocketId, closed: bool) {
        let guest = &mut self.guests[id.vm as usize];
        let Some(s) = guest.sockets.get_mut(id.index) else { return };
        s.closing = true;
        let Body::Tcp(tcp) = &s.body else { return };
        let (peer, remembered) = (s.flow.dst, tcp.cache_entry());
        if self.config.tcp.connection_cache
            && let Some(entry) = remembered
        {
            guest.cache.insert(peer, entry);
        }
        if closed {
            self.give_up_unfinished(now, id);
            self.guests[id.vm as usize].remove(id.index);
        } else {
            self.fill(now, id);
        }
    }

    /// Records the messages of a connection that ended before they were confirmed.
    pub(super) fn give_up_unfinished(&mut self, now: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get(id.index) else { return };
        self.flows.extend(s.unfinished(s.paused(now, &self.adapter)));
    }

    /// Hands the messages that are complete to the application.
    #[inline(never)]
    pub(super) fn arrived(&mut self, now: Instant, id: SocketId) {
        loop {
            let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
            let Some(m) = s.take_complete() else { return };
            let flow = s.flow;
            let bytes = m.end - m.begin;
            self.events.push_back(Event::Message { socket: id, tag: m.tag, bytes });
            self.post_metadata(now, metadata(flow, Topic::Done, [m.end, now.as_ps(), bytes & METADATA_WORD]));
        }
    }

    /// Adds a datagram to its message.
    pub(super) fn datagram(&mut self, now: Instant, id: SocketId, offset: u64, len: u16) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        let flow = s.flow;
        let Some(at) = s.messages.inbox.iter().position(|m| offset >= m.begin && offset < m.end) else { return };
        let Some(m) = s.messages.inbox.get_mut(at) else { return };
        m.received += len as u64;
        let m = *m;
        if m.received >= m.end - m.begin {
            s.messages.inbox.remove(at);
            self.events.push_back(Event::Message { socket: id, tag: m.tag, bytes: m.end - m.begin });
            self.post_metadata(now, metadata(flow, Topic::Done, [m.end, now.as_ps(), m.received & METADATA_WORD]));
        } else if at >= OVERTAKING_MESSAGES {
            // A part of the oldest message was lost; the message's sender is told how much arrived. Messages without any
            // data behind them may still be on their way, however many there are.
            if let Some(m) = s.messages.inbox.pop_front() {
                self.post_metadata(now, metadata(flow, Topic::Done, [m.end, u64::MAX, m.received & METADATA_WORD]));
            }
        }
    }
}

/// A segment that is not plain, or on a connection on which something is out of the ordinary.
#[cold]
#[inline(never)]
fn receive_any(tcp: &mut Tcp, config: &TcpConfig, now: Instant, packet: &Packet) -> Received {
    tcp.receive(config, now, &packet.segment(), packet.ecn() == Ecn::Ce)
}
