//! zBridge's header on a simulated packet, in the fields that are free; and zBridge's frames without a payload frame.
//!
//! A carried packet keeps one SACK block of up to three. The network between two servers then loses nothing, and a
//! receiver's first block is the one that counts (RFC 2018, 4).

use super::{ACK_REQUEST, Address, BRIDGED, Framing, Kind, Packet, SACK_COUNT};
use alloc::vec::Vec;
use sluicenet_proto::frame::Priority;
use sluicenet_wire::zbridge::{GROWTH, Header, Kind as Says, OVERHEAD, Ranges};

/// Ranges that fit in one packet; a header with more ranges takes several packets.
const RANGES: usize = 3;
/// Bits of the second word of `extra` that hold part of the first SACK block, or of a SYN's options.
const OWN: u32 = 0x3ff;

const ASK: u8 = 0;
const ACK: u8 = 1;
const NACK: u8 = 2;
const SYN: u8 = 3;
const SYN_ACK: u8 = 4;
const RESET: u8 = 5;
const CLOSE: u8 = 6;
const KEEP: u8 = 7;

impl Packet {
    /// Puts the packet behind a header of [`Says::Data`].
    #[inline]
    pub fn bridge(&mut self, header: &Header) {
        if self.more & SACK_COUNT > 1 {
            self.more = self.more & !SACK_COUNT | 1;
        }
        let asks = header.kind == Says::Data { ack_request: true };
        self.more |= BRIDGED | if asks { ACK_REQUEST } else { 0 };
        self.len += GROWTH as u16;
        self.extra[1] = self.extra[1] & OWN | header.connection & 0xffff_0000;
        self.serial = header.connection as u16;
        (self.extra[2], self.extra[3]) = (header.sequence, header.acknowledgement);
    }

    /// The zBridge header of a carried packet.
    pub fn bridged(&self) -> Option<Header> {
        (self.more & BRIDGED != 0 && self.kind != Kind::Bridge).then(|| Header {
            kind: Says::Data { ack_request: self.more & ACK_REQUEST != 0 },
            connection: self.extra[1] & 0xffff_0000 | u32::from(self.serial),
            sequence: self.extra[2],
            acknowledgement: self.extra[3],
        })
    }

    /// Takes the header off. For a packet without one, returns a header of no connection.
    pub fn unbridge(&mut self) -> Header {
        let kind = Says::Data { ack_request: false };
        let Some(header) = self.bridged() else {
            return Header { kind, connection: 0, sequence: 0, acknowledgement: 0 };
        };
        self.more &= !(BRIDGED | ACK_REQUEST);
        self.len -= GROWTH as u16;
        self.extra[1] &= OWN;
        (self.extra[2], self.extra[3], self.serial) = (0, 0, 0);
        header
    }

    /// The frames for a header without a payload frame: one, or several if the header names many ranges.
    pub fn bridge_frames(
        src: Address,
        dst: Address,
        header: &Header,
        priority: Priority,
        framing: Framing,
    ) -> impl Iterator<Item = Packet> + use<> {
        let (kind, ranges) = match header.kind {
            Says::Ask => (ASK, Ranges::default()),
            Says::Ack | Says::Data { .. } => (ACK, Ranges::default()),
            Says::Nack(ranges) => (NACK, ranges),
            Says::Syn => (SYN, Ranges::default()),
            Says::SynAck => (SYN_ACK, Ranges::default()),
            Says::Reset => (RESET, Ranges::default()),
            Says::Close => (CLOSE, Ranges::default()),
            Says::Keep => (KEEP, Ranges::default()),
        };
        let named: Vec<(u32, u32)> = ranges.as_slice().to_vec();
        let header = *header;
        (0..named.len().div_ceil(RANGES).max(1)).map(move |part| {
            let these = named.iter().skip(part * RANGES).take(RANGES);
            let mut words = [0u32; 2 * RANGES];
            let count = these.zip(words.chunks_exact_mut(2)).map(|(r, w)| w.copy_from_slice(&[r.0, r.1])).count();
            let [a, b, c, d, e, f] = words;
            Packet {
                dst,
                src,
                sport: (f >> 16) as u16,
                dport: f as u16,
                len: framing.frame_len((OVERHEAD + 8 * count) as u16),
                seq: header.sequence,
                ack: header.acknowledgement,
                ts: [a, b],
                extra: [header.connection, c, d, e],
                window: count as u16,
                flags: kind,
                kind: Kind::Bridge,
                bits: priority,
                more: BRIDGED,
                ..Packet::default()
            }
        })
    }

    /// The header in such a frame.
    pub fn bridge_header(&self) -> Header {
        let kind = match self.flags {
            ASK => Says::Ask,
            ACK => Says::Ack,
            NACK => {
                let [_, c, d, e] = self.extra;
                let f = u32::from(self.sport) << 16 | u32::from(self.dport);
                let all = [(self.ts[0], self.ts[1]), (c, d), (e, f)];
                let mut ranges = Ranges::default();
                all.iter().take(usize::from(self.window)).for_each(|&(first, len)| {
                    ranges.push(first, len);
                });
                Says::Nack(ranges)
            }
            SYN => Says::Syn,
            SYN_ACK => Says::SynAck,
            CLOSE => Says::Close,
            KEEP => Says::Keep,
            _ => Says::Reset,
        };
        Header { kind, connection: self.extra[0], sequence: self.seq, acknowledgement: self.ack }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::flow;
    use super::*;
    use sluicenet_proto::transport::tcplight;
    use sluicenet_wire::seq::SeqNumber;
    use sluicenet_wire::tcp::{Flags, SackBlocks, Segment, SynOptions};

    const HEADER: Header = Header {
        kind: Says::Data { ack_request: true },
        connection: 0x8123_fedc,
        sequence: u32::MAX,
        acknowledgement: 0x8000_0001,
    };

    #[test]
    fn what_is_carried_comes_out_as_it_went_in() {
        let mut sack = SackBlocks::EMPTY;
        sack.push(SeqNumber(2_000_000), SeqNumber(2_097_151));
        let data = Segment { len: 900, flags: Flags::ACK, timestamps: Some((u32::MAX, 4)), sack, ..Segment::default() };
        let syn = SynOptions { mss: Some(1384), window_scale: Some(14), sack_permitted: true };
        let open = Segment { flags: Flags::SYN, syn, timestamps: Some((1, 0)), ..Segment::default() };
        let light = tcplight::Segment { connection: u32::MAX, limit: 1 << 31, len: 1_000, ..Default::default() };
        let ether = Framing::ETHERNET;
        let message = sluicenet_wire::zcredit::Message::Request { wanted: 1, spent: 2, granted: 3, returned: u32::MAX };
        let all = [
            Packet::tcp(flow(), &data, true, 3, ether),
            Packet::tcp(flow(), &open, false, 3, ether),
            Packet::light(flow(), &light, 3, ether),
            Packet::udp(flow(), 1 << 40, 700, 3, ether),
            Packet::credit(flow().src, flow().dst, 7, &message, 3, ether),
        ];
        for packet in all {
            let mut carried = packet;
            carried.bridge(&HEADER);
            assert_eq!((carried.bridged(), carried.len), (Some(HEADER), packet.len + 22));
            assert_eq!(carried.unbridge(), HEADER);
            assert_eq!(alloc::format!("{carried:?}"), alloc::format!("{packet:?}"));
            assert_eq!(carried.bridged(), None);
        }
        // Of several SACK blocks the first stays.
        let first = (sack.as_slice()[0].0, sack.as_slice()[0].1);
        sack.push(SeqNumber(5), SeqNumber(9));
        sack.push(SeqNumber(15), SeqNumber(19));
        let mut carried = Packet::tcp(flow(), &Segment { sack, ..data }, true, 3, ether);
        carried.bridge(&HEADER);
        assert_eq!(carried.unbridge(), HEADER);
        assert_eq!(carried.segment().sack.as_slice(), [first]);
    }

    #[test]
    fn what_carries_nothing_comes_out_as_it_went_in() {
        let (src, dst) = (flow().src, flow().dst);
        let made = |kind| -> Vec<Packet> {
            Packet::bridge_frames(src, dst, &Header { kind, ..HEADER }, 3, Framing::ETHERNET).collect()
        };
        for kind in [Says::Ask, Says::Ack, Says::Syn, Says::SynAck, Says::Reset, Says::Close, Says::Keep] {
            let [packet] = made(kind)[..] else { panic!("one frame") };
            assert_eq!((packet.bridge_header(), packet.len), (Header { kind, ..HEADER }, 64));
        }
        let mut ranges = Ranges::default();
        (1..=7).for_each(|n| assert!(ranges.push(n << 28, u32::MAX - n)));
        let parts = made(Says::Nack(ranges));
        assert_eq!(parts.iter().map(|p| p.len).collect::<Vec<u16>>(), [64, 64, 64]);
        let named: Vec<(u32, u32)> = parts
            .iter()
            .flat_map(|p| match p.bridge_header() {
                Header { kind: Says::Nack(ranges), connection: 0x8123_fedc, .. } => ranges.as_slice().to_vec(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(named, ranges.as_slice());
    }
}
