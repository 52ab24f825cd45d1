//! Simulated packets of RoCE: `flags` is the opcode, `seq` the packet sequence number, `ts` the offset of the payload. `ack` is
//! the length of the message or the number of completed ones, `window` the bit of the opcode's own.

use super::{FlowKey, Framing, Kind, Packet};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::transport::roce::{self, Data, Reply};
use sluicenet_wire::ipv4::{self, Ecn};
use sluicenet_wire::roce::{ICRC_LEN, Opcode, padding};
use sluicenet_wire::udp;

/// Length of the IP packet around a RoCE packet.
const fn ip_len(opcode: Opcode, payload: u16) -> u16 {
    let headers = ipv4::HEADER_LEN + udp::HEADER_LEN + opcode.header_len();
    (headers + payload as usize + padding(payload as usize) + ICRC_LEN) as u16
}

/// Bytes that IP, UDP and RoCE add to the payload of a packet in the middle of a message.
pub const IP_ROCE_BYTES: u16 = ip_len(Opcode::WriteMiddle, 0);

impl Packet {
    /// A RoCE packet in a frame; `ect` says whether its transport supports ECN.
    pub fn roce(flow: FlowKey, packet: &roce::Packet, ect: bool, priority: Priority, framing: Framing) -> Packet {
        let ecn = if ect { Ecn::Ect0 } else { Ecn::NotEct };
        let (opcode, fields) = match *packet {
            roce::Packet::Data(d) => {
                let ts = [d.offset as u32, (d.offset >> 32) as u32];
                let window = u16::from(d.ack_request);
                let fields = Packet { payload: d.len, seq: d.psn, ack: d.message, ts, window, ..Packet::default() };
                (Opcode::of_write(d.is_first, d.is_last), fields)
            }
            roce::Packet::Reply(r) => {
                let window = u16::from(r.is_sequence_error);
                (Opcode::Acknowledge, Packet { seq: r.psn, ack: r.msn, window, ..Packet::default() })
            }
            roce::Packet::Notification => (Opcode::Notification, Packet::default()),
        };
        let FlowKey { src, dst, sport, dport } = flow;
        let len = framing.frame_len(ip_len(opcode, fields.payload));
        let mut packet = Packet { src, dst, sport, dport, len, flags: opcode as u8, kind: Kind::Roce, ..fields };
        packet.bits = priority;
        packet.set_ecn(ecn);
        packet
    }

    /// The operation of a RoCE packet.
    pub fn roce_opcode(&self) -> Opcode {
        Opcode::from_bits(self.flags).unwrap_or_default()
    }

    /// The RoCE packet in the frame.
    pub fn roce_packet(&self) -> roce::Packet {
        match self.roce_opcode() {
            Opcode::Notification => roce::Packet::Notification,
            Opcode::Acknowledge => {
                roce::Packet::Reply(Reply { psn: self.seq, is_sequence_error: self.window != 0, msn: self.ack })
            }
            write => roce::Packet::Data(Data {
                psn: self.seq,
                is_first: write.is_first(),
                is_last: write.is_last(),
                ack_request: self.window != 0,
                len: self.payload,
                offset: u64::from(self.ts[0]) | u64::from(self.ts[1]) << 32,
                message: self.ack,
            }),
        }
    }
}
