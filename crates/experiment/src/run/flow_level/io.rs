//! Actions of applications, over the rates of their flows.

use super::{Happens, Message, Network, key};
use sluicenet_node::guest::{FlowLabel, SocketId, Transport};
use sluicenet_node::packet::{Address, FlowKey};
use sluicenet_node::server::{Io, Open};
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::time::{Duration, Instant};

/// The network as the applications of one server see it.
pub(super) struct At<'a> {
    pub network: &'a mut Network,
    pub host: HostId,
}

impl Io for At<'_> {
    fn open(&mut self, now: Instant, flow: FlowKey, priority: Priority, how: Open) -> SocketId {
        let vm = flow.src.vm();
        if let Some(&index) = self.network.by_key.get(&key(&flow)) {
            return SocketId { vm, index };
        }
        let (transport, pace) = match how {
            Open::Established | Open::Handshake => (Transport::Tcp, None),
            Open::LightEstablished | Open::LightHandshake => (Transport::Light, None),
            Open::Datagrams(pace) => (Transport::Udp, pace),
            Open::QueuePair => (Transport::Roce, None),
        };
        let index = self.network.connection(flow, priority, transport, pace);
        if matches!(how, Open::Handshake | Open::LightHandshake) {
            let c = &mut self.network.connections[index as usize];
            c.is_open = false;
            // There and back.
            let way = self.network.alone(&self.network.connections[index as usize], 0);
            self.network.schedule(now + way + way, Happens::Opened { connection: index });
        }
        SocketId { vm, index }
    }

    fn send(&mut self, now: Instant, socket: SocketId, bytes: u64, tag: u64, label: FlowLabel) -> u64 {
        let count = &mut self.network.flow_counts[self.host as usize];
        let id = u64::from(self.host) << 40 | *count;
        *count += 1;
        let c = &mut self.network.connections[socket.index as usize];
        c.written += bytes;
        c.queue.push_back(Message { id, label, tag, start: now, end: c.written, bytes });
        self.network.begin(now, socket.index);
        id
    }

    fn close(&mut self, _: Instant, socket: SocketId) {
        self.network.connections[socket.index as usize].is_closing = true;
        self.network.forget_if_over(socket.index);
    }

    fn tell(&mut self, now: Instant, from: Address, to: Address, words: [u64; 3]) {
        let way = match from.host() == to.host() {
            true => Duration::ZERO,
            false => self.network.ideal.time(from.host(), to.host(), 0, Transport::Udp),
        };
        self.network.schedule(now + way, Happens::Told { to, from, words });
    }

    fn wake_at(&mut self, at: Instant, token: u64) {
        self.network.schedule(at, Happens::Wake { host: self.host, token });
    }
}
