//! A program in a simulated bump: its frames have the bytes that they would have on a wire, with a payload of zeros.

use crate::{Called, Library, QueueState};
use sluicenet_node::bump::Extension;
use sluicenet_node::device::PortId;
use sluicenet_node::packet::{Address, FlowKey, Framing, Kind, Packet};
use sluicenet_proto::cee::qcn::{Message, Notification};
use sluicenet_proto::frame::Frame;
use sluicenet_proto::netbump::{Port, QueueId, Verdict, VirtualQueue};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use sluicenet_sim::pcapng::frame;
use sluicenet_wire::ipv4::Ecn;
use sluicenet_wire::{ethernet, ipv4, qcn};

/// Room for a frame that a program makes longer.
const ROOM: usize = 64;

/// A program in a simulated bump.
#[derive(Debug)]
pub struct Simulated {
    library: Library,
    rng: Rng,
    queues: Vec<QueueState>,
    framing: Framing,
    /// Ports of the bump's links.
    links_end: u16,
    /// The bytes of the current frame as the program has them, and as they came.
    buffer: Vec<u8>,
    before: Vec<u8>,
    /// Changes of frames and frames of its own that a simulated packet cannot have.
    ignored: u64,
}

impl Simulated {
    /// A program in a bump with `links` links.
    pub fn new(library: Library, framing: Framing, links: usize) -> Simulated {
        let links_end = 2 * links as u16;
        Simulated {
            rng: library.rng(),
            library,
            queues: Vec::new(),
            framing,
            links_end,
            buffer: Vec::new(),
            before: Vec::new(),
            ignored: 0,
        }
    }

    /// Writes the bytes of a frame into the buffer.
    fn write(&mut self, packet: &Packet) {
        self.before = frame::bytes(packet, self.framing, 0);
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.before);
        self.buffer.resize(self.before.len() + ROOM, 0);
    }

    fn called<'a>(&self, now: Instant, from: PortId, packet: &Packet, buffer: &'a mut [u8]) -> Called<'a> {
        let wire_bytes = packet.len() + u32::from(self.framing.overhead());
        Called { len: self.before.len() as u32, buffer, wire_bytes, port: from, mapped: None, now }
    }

    /// Takes over what the program changed, as far as a simulated packet has it: the ECN field.
    fn take_over(&mut self, packet: &mut Packet, len: u32) {
        let after = &self.buffer[..len as usize];
        if after == self.before {
            return;
        }
        if let Some(ecn) = outer_ecn(after)
            && outer_ecn(&self.before).is_some()
        {
            packet.set_ecn(ecn);
        }
        if frame::bytes(packet, self.framing, 0) != after {
            self.ignored += 1;
        }
    }
}

/// The ECN field of the outermost IPv4 header.
fn outer_ecn(frame: &[u8]) -> Option<Ecn> {
    let (header, rest) = ethernet::Repr::parse(frame).ok()?;
    let is_ip = header.ethertype == ethernet::EtherType::IPV4 && rest.len() >= ipv4::HEADER_LEN;
    is_ip.then(|| Ecn::from_bits(rest[1]))
}

/// A frame of a program's own as a packet: a copy of the current one, or a congestion notification.
fn packet_of(bytes: &[u8], current: (&[u8], &Packet)) -> Option<Packet> {
    if bytes == current.0 {
        return Some(*current.1);
    }
    let frame = qcn::Frame::parse(bytes).ok()?;
    let machine = |mac: ethernet::MacAddress| {
        let [_, _, a, b, c, d] = mac.0;
        let bits = u32::from_be_bytes([a & 0x7F, b, c, d]);
        Address::new(bits >> 8, bits as u8)
    };
    let qcn::Repr { feedback, cpid, offset, delta, priority, destination, .. } = frame.message;
    let about = FlowKey { src: machine(frame.destination), dst: machine(destination), sport: 0, dport: 0 };
    let units = |units: i16| i64::from(units) * qcn::QUEUE_UNIT;
    let notification = Notification { feedback, offset: units(offset), delta: units(delta) };
    let message = Message { cpid: u64::from_be_bytes(cpid), notification, priority };
    Some(Packet::of_flow(about, Kind::Udp).notification(&message, frame.priority))
}

impl Extension for Simulated {
    fn init(&mut self, queue: QueueId, port: Port) {
        self.queues.push(self.library.init(queue, port));
    }

    fn classify(&mut self, now: Instant, from: PortId, packet: &Packet, mapped: Option<QueueId>) -> Option<QueueId> {
        if !self.library.chooses() {
            return mapped;
        }
        self.write(packet);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut called = Called { mapped, ..self.called(now, from, packet, &mut buffer) };
        let queue = self.library.classify(&mut called, &mut self.rng, self.queues.len());
        self.buffer = buffer;
        queue
    }

    fn process(
        &mut self,
        now: Instant,
        from: PortId,
        packet: &mut Packet,
        (id, queue): (QueueId, &mut VirtualQueue),
        emitted: &mut Vec<(PortId, Packet)>,
    ) -> Verdict {
        self.write(packet);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut called = Called { mapped: Some(id), ..self.called(now, from, packet, &mut buffer) };
        let (before, links_end) = (&self.before, self.links_end);
        let state = &mut self.queues[usize::from(id)];
        let mut unknown = 0;
        let mut send = |port: u16, bytes: &[u8]| {
            let made = packet_of(bytes, (before, packet)).filter(|_| port < links_end);
            unknown += u64::from(made.is_none());
            emitted.extend(made.map(|made| (port, made)));
            made.is_some()
        };
        let is_counted = packet.as_notification().is_none();
        let outcome = self.library.process(&mut called, (state, queue), is_counted, &mut send);
        self.buffer = buffer;
        self.ignored += unknown;
        if outcome.verdict == Verdict::Forward {
            self.take_over(packet, outcome.len);
        }
        outcome.verdict
    }

    fn estimate_qlen(&self, now: Instant, (id, queue): (QueueId, &VirtualQueue)) -> u64 {
        self.library.estimate_qlen(now, (&self.queues[usize::from(id)], queue))
    }

    fn forward(&mut self, now: Instant, from: PortId, packet: &Packet) -> PortId {
        if !self.library.chooses() {
            return from ^ 1;
        }
        self.write(packet);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut called = self.called(now, from, packet, &mut buffer);
        let port = self.library.forward(&mut called, &mut self.rng, self.links_end);
        self.buffer = buffer;
        port
    }

    fn ignored(&self) -> u64 {
        self.ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_node::switch::notification_bytes;

    #[test]
    fn frames_of_a_programs_own_are_copies_or_notifications() {
        let flow = FlowKey { src: Address::new(300, 2), dst: Address::new(70_000, 1), sport: 5, dport: 6 };
        let packet = Packet::udp(flow, 0, 1_000, 3, Framing::ETHERNET);
        let bytes = frame::bytes(&packet, Framing::ETHERNET, 0);
        let copy = packet_of(&bytes, (&bytes, &packet)).unwrap();
        assert_eq!((copy.flow(), copy.len()), (flow, packet.len()));

        // A notification as the bytes of one of ours, to the sender and about frames to the receiver.
        let notification = Notification { feedback: 30, offset: 640, delta: -128 };
        let message = Message { cpid: 9, notification, priority: 3 };
        let ours = packet.notification(&message, 7);
        let made = frame::bytes(&ours, Framing::ETHERNET, 0);
        let read = packet_of(&made, (&bytes, &packet)).unwrap();
        assert_eq!((read.src(), read.dst(), read.priority()), (ours.src(), ours.dst(), 7));
        assert_eq!(read.as_notification(), Some(message));
        let [about, to] = [flow.dst, flow.src].map(|a| ethernet::MacAddress::local(a.to_bits() | 1 << 31));
        assert_eq!(notification_bytes(&message, 7, about, to, None), made);

        assert!(packet_of(&[0; 60], (&bytes, &packet)).is_none());
    }
}
