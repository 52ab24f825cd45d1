//! Simulated packets of TCPlight and zCredit, and frames in a TCP tunnel.

use super::{Address, FlowKey, Framing, IP_LIGHT_BYTES, Kind, Packet, TUNNELLED_SHIFT};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::transport::tcplight;
use sluicenet_wire::ethernet;
use sluicenet_wire::tcplight::Flags;
use sluicenet_wire::zcredit::{self, Message};

impl Packet {
    /// A segment of TCPlight in a frame. Its payload is less than 64 KB.
    #[inline(always)]
    pub fn light(flow: FlowKey, segment: &tcplight::Segment, priority: Priority, framing: Framing) -> Packet {
        let payload = segment.len as u16;
        Packet {
            dst: flow.dst,
            src: flow.src,
            sport: flow.sport,
            dport: flow.dport,
            len: framing.frame_len(IP_LIGHT_BYTES + payload),
            payload,
            seq: segment.offset,
            ack: segment.limit,
            extra: [segment.connection, 0, 0, 0],
            flags: segment.flags.0,
            kind: Kind::Light,
            bits: priority,
            ..Packet::default()
        }
    }

    /// The TCPlight segment in the packet.
    #[inline(always)]
    pub fn light_segment(&self) -> tcplight::Segment {
        tcplight::Segment {
            flags: Flags(self.flags),
            connection: self.extra[0],
            offset: self.seq,
            limit: self.ack,
            len: u32::from(self.payload),
        }
    }

    /// A message of zCredit from one VM's hypervisor to another's, in a frame of its own.
    pub fn credit(
        src: Address,
        dst: Address,
        channel: u32,
        message: &Message,
        priority: Priority,
        framing: Framing,
    ) -> Packet {
        let (kind, [a, b, c, d]) = match *message {
            Message::Request { wanted, spent, granted, returned } => (0, [wanted, spent, granted, returned]),
            Message::Grant { granted } => (1, [granted, 0, 0, 0]),
            Message::Probe => (2, [0; 4]),
            Message::Reset { last } => (3, [last, 0, 0, 0]),
            Message::Close { spent, returned } => (4, [spent, returned, 0, 0]),
        };
        Packet {
            dst,
            src,
            len: framing.frame_len((zcredit::LEN - ethernet::HEADER_LEN) as u16),
            seq: channel,
            ack: a,
            ts: [b, c],
            extra: [d, 0, 0, 0],
            flags: kind,
            kind: Kind::Credit,
            bits: priority,
            ..Packet::default()
        }
    }

    /// The channel of a zCredit message, and the message.
    pub fn credit_message(&self) -> (u32, Message) {
        let [a, b, c, d] = [self.ack, self.ts[0], self.ts[1], self.extra[0]];
        let message = match self.flags {
            0 => Message::Request { wanted: a, spent: b, granted: c, returned: d },
            1 => Message::Grant { granted: a },
            2 => Message::Probe,
            3 => Message::Reset { last: a },
            _ => Message::Close { spent: a, returned: b },
        };
        (self.seq, message)
    }

    /// The frame as it travels beside the bytes of a TCP tunnel, with its number there.
    pub fn tunnelled(&self, number: u16) -> Packet {
        let kind = match self.kind {
            Kind::Udp => 1,
            Kind::Light => 2,
            Kind::Credit => 3,
            _ => 0,
        };
        Packet { kind: Kind::Tunnelled, serial: number, more: self.more | kind << TUNNELLED_SHIFT, ..*self }
    }

    /// The frame as it was before [`Packet::tunnelled`], and its number.
    pub fn untunnelled(&self) -> (Packet, u16) {
        let kind = [Kind::Tcp, Kind::Udp, Kind::Light, Kind::Credit][(self.more >> TUNNELLED_SHIFT & 3) as usize];
        let more = self.more & ((1 << TUNNELLED_SHIFT) - 1);
        (Packet { kind, serial: 0, more, ..*self }, self.serial)
    }
}
