//! TCPlight between guests (Crisan 2014, 5.3.2): a stream over a network that brings every frame once and in order.

use super::app::Open;
use super::host::Host;
use crate::guest::{Body, Socket, SocketId};
use crate::packet::{FlowKey, Packet};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::tcplight::{End, Stream};

/// Passes written bytes to their stream. A closed stream takes no more.
pub(super) fn fill(stream: Option<&mut Stream>, pending: &mut u64, closing: bool) {
    let Some(stream) = stream.filter(|stream| !stream.is_closing()) else { return };
    stream.write(core::mem::take(pending));
    if closing {
        stream.close();
    }
}

impl Host {
    /// One end of a connection that begins here, or was open before the clock started. Both ends compute the same
    /// connection number.
    pub(super) fn light_stream(&self, flow: &FlowKey, how: Open) -> Stream {
        let (connection, buffer) = (self.iss(flow) ^ self.iss(&flow.reverse()), self.config.light_buffer);
        match how {
            Open::LightEstablished => Stream::established(connection, buffer),
            _ => Stream::connect(connection, buffer),
        }
    }

    /// A socket that waits for the segment that opens its connection.
    pub(super) fn listen_light(&mut self, local: FlowKey, priority: Priority) -> SocketId {
        let vm = local.src.vm();
        let index = self.guests[vm as usize].sockets.insert(Socket::new(local, Body::Light(None), priority));
        SocketId { vm, index }
    }

    /// Delivers a segment to an existing socket. The application reads at once.
    pub(super) fn deliver_light(&mut self, now: Instant, id: SocketId, packet: &Packet) {
        let buffer = self.config.light_buffer;
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        let Body::Light(stream) = &mut s.body else { return };
        let segment = packet.light_segment();
        let Some(stream) = stream else {
            *stream = Stream::accept(&segment, buffer);
            self.fill(now, id);
            return self.refresh(now, id);
        };
        // A segment of another connection between the same ports is ignored.
        let Some(heard) = stream.receive(&segment) else { return };
        s.received += stream.read(u64::from(heard.fresh));
        if heard.peer_closed {
            s.closing = true;
        }
        if s.received >= s.next_end {
            self.arrived(now, id);
        }
        if heard.peer_closed {
            self.fill(now, id);
        }
        self.refresh(now, id);
        if heard.closed {
            self.drop_light_if_over(now, id);
        }
    }

    /// Removes a socket whose connection is closed. After an orderly end, the socket stays until all its messages are
    /// confirmed.
    pub(super) fn drop_light_if_over(&mut self, now: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get(id.index) else { return };
        let Body::Light(Some(stream)) = &s.body else { return };
        if !stream.is_closed() || stream.end() == End::Orderly && !s.messages.outbox.is_empty() {
            return;
        }
        self.give_up_unfinished(now, id);
        self.guests[id.vm as usize].remove(id.index);
    }
}
