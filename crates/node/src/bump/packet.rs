//! A simulated packet as the applications of a bump see it.

use crate::packet::{FlowKey, Kind, Packet};
use sluicenet_proto::cee::qcn::Message;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::netbump::{self, Fields};
use sluicenet_wire::ipv4::{Ecn, Protocol};

/// A packet in a bump.
#[derive(Debug)]
pub struct InBump<'a> {
    /// The packet.
    pub packet: &'a mut Packet,
    /// Bytes of preamble and gap.
    pub overhead: u32,
}

impl netbump::Packet for InBump<'_> {
    type Flow = FlowKey;

    #[inline(always)]
    fn wire_bytes(&self) -> u64 {
        (self.packet.len() + self.overhead).into()
    }
    #[inline(always)]
    fn destination(&self) -> u64 {
        // A notification travels the other way.
        match self.packet.kind() {
            Kind::Notification => self.packet.source().into(),
            _ => self.packet.destination().into(),
        }
    }
    /// Limiters and weights are those of two machines, as in the real bump: a notification in a frame names no more.
    fn flow(&self) -> FlowKey {
        let flow = match self.packet.kind() {
            Kind::Notification => self.packet.flow().reverse(),
            _ => self.packet.flow(),
        };
        FlowKey { sport: 0, dport: 0, ..flow }
    }
    fn fields(&self) -> Fields {
        let FlowKey { src, dst, sport, dport } = self.packet.flow();
        let protocol = match self.packet.kind() {
            Kind::Tcp => Protocol::TCP,
            Kind::Udp | Kind::Roce => Protocol::UDP,
            _ => Protocol(0),
        };
        Fields {
            source: src.host().into(),
            destination: dst.host().into(),
            source_port: sport,
            destination_port: dport,
            protocol: protocol.0,
            priority: self.packet.priority(),
        }
    }
    #[inline(always)]
    fn ecn(&self) -> Ecn {
        self.packet.ecn()
    }
    #[inline(always)]
    fn mark(&mut self) -> bool {
        self.packet.mark()
    }
    #[inline(always)]
    fn notification(&self) -> Option<Message> {
        self.packet.as_notification()
    }
}
