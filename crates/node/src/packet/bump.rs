//! Updates between bumps as packets.

use super::{Framing, Kind, Packet};
use sluicenet_proto::netbump::Sequence;
use sluicenet_proto::time::Duration;
use sluicenet_wire::bump::{Forwarded, Repr};
use sluicenet_wire::ethernet::HEADER_LEN;

/// Most packets in a simulated update.
pub const UPDATE_MAX: usize = 8;

/// Words that hold packets.
fn words(packet: &Packet) -> [u32; UPDATE_MAX] {
    let (t, e) = (packet.ts, packet.extra);
    [t[0], t[1], e[0], e[1], e[2], e[3], packet.src.0, packet.dst.0]
}

impl Packet {
    /// An update about up to [`UPDATE_MAX`] packets. Times are kept in nanoseconds.
    pub fn update(fields: Sequence, packets: &[Forwarded], framing: Framing) -> Packet {
        let mut words = [0; UPDATE_MAX];
        for (word, packet) in words.iter_mut().zip(packets) {
            *word = u32::from(packet.port) << 16 | u32::from(packet.wire_bytes);
        }
        let ns = |d: Duration| u32::try_from(d.0 / 1_000).unwrap_or(u32::MAX);
        let (wait, span) = (ns(fields.wait), ns(fields.span));
        Packet {
            len: framing.frame_len((Repr::emitted_len(packets.len()) - HEADER_LEN) as u16),
            seq: fields.sequence,
            ack: fields.bytes_before,
            ts: [words[0], words[1]],
            extra: [words[2], words[3], words[4], words[5]],
            src: super::Address(words[6]),
            dst: super::Address(words[7]),
            sport: (span >> 16) as u16,
            dport: span as u16,
            window: (wait >> 16) as u16,
            serial: wait as u16,
            payload: packets.len() as u16,
            kind: Kind::Update,
            ..Packet::default()
        }
    }

    /// The fields of an update and its packets.
    pub fn as_update(&self) -> Option<(Sequence, impl ExactSizeIterator<Item = Forwarded> + Clone + use<>)> {
        if self.kind != Kind::Update {
            return None;
        }
        let join = |high: u16, low: u16| Duration::from_ns((u64::from(high) << 16) | u64::from(low));
        let (wait, span) = (join(self.window, self.serial), join(self.sport, self.dport));
        let fields = Sequence { sequence: self.seq, bytes_before: self.ack, wait, span };
        let (words, count) = (words(self), usize::from(self.payload).min(UPDATE_MAX));
        let packet = move |i: usize| Forwarded { wire_bytes: words[i] as u16, port: (words[i] >> 16) as u16 };
        Some((fields, (0..count).map(packet)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn an_update_keeps_its_packets_and_times() {
        let fields = Sequence {
            sequence: 7,
            bytes_before: 99,
            wait: Duration::from_ns(123_456),
            span: Duration::from_ns(4_000_000_000),
        };
        for count in 0..=UPDATE_MAX {
            let packets: Vec<Forwarded> =
                (0..count as u16).map(|i| Forwarded { wire_bytes: 1_500 + i, port: 60_000 + i }).collect();
            let packet = Packet::update(fields, &packets, Framing::ETHERNET);
            let (read, list) = packet.as_update().unwrap();
            assert_eq!((read, list.collect::<Vec<_>>()), (fields, packets));
        }
        // 46 B in front of eight packets of 4 B, the tag and the check sequence.
        let full = Packet::update(fields, &[Forwarded::default(); 8], Framing::ETHERNET);
        assert_eq!(full.len, 46 + 32 + 16 + 4);
    }
}
