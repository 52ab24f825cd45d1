//! Simulated messages of XCo.

use super::{Address, Framing, Kind, Packet};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::xco::coordinator::Body;
use sluicenet_wire::ethernet::{HEADER_LEN, MIN_LEN, MacAddress};
use sluicenet_wire::xco::{ENTRIES_AT, ENTRY_LEN, Entries, Head, Message};

/// Entries of a simulated report: as many as a packet's fields hold.
pub const REPORT_ENTRIES: usize = 2;
/// Position in `flags` of the number of entries, above the kind.
const COUNT_SHIFT: u8 = 4;

const JOIN: u8 = 1;
const WELCOME: u8 = 2;
const LEAVE: u8 = 3;
const REPORT: u8 = 4;
const DIRECTIVE: u8 = 5;
const FREE: u8 = 6;
const RETURN: u8 = 7;
const ALIVE: u8 = 8;
const ACKNOWLEDGE: u8 = 9;
const LOAD: u8 = 10;
const WINDOWS: u8 = 11;

impl Address {
    /// The link-layer address of messages of XCo from and to this machine's hypervisor.
    pub const fn mac(self) -> MacAddress {
        MacAddress::local(self.0)
    }
    /// The machine with such an address.
    pub const fn of_mac(mac: MacAddress) -> Address {
        let MacAddress([_, _, a, b, c, d]) = mac;
        Address(u32::from_be_bytes([a, b, c, d]))
    }
}

impl Packet {
    /// A message of XCo in a frame of its own.
    ///
    /// # Panics
    /// With a report of more than [`REPORT_ENTRIES`].
    pub fn xco(
        src: Address,
        dst: Address,
        head: &Head,
        body: &Body<'_>,
        priority: Priority,
        framing: Framing,
    ) -> Packet {
        let mut entries = 0;
        let (kind, extra) = match *body {
            Body::Report(report) => {
                assert!(report.len() <= REPORT_ENTRIES, "a simulated report has two entries");
                entries = report.len();
                let mut words = [0; 4];
                for (at, entry) in report.iter().enumerate() {
                    (words[2 * at], words[2 * at + 1]) = (entry.destination, entry.change.to_bits());
                }
                (REPORT, words)
            }
            Body::Message(message) => words(&message),
        };
        let len = MIN_LEN.max(ENTRIES_AT + entries * ENTRY_LEN) - HEADER_LEN;
        Packet {
            dst,
            src,
            len: framing.frame_len(len as u16),
            seq: head.sequence,
            ack: head.token,
            ts: [head.clock_ns as u32, (head.clock_ns >> 32) as u32],
            extra,
            window: head.epoch,
            flags: kind | (entries as u8) << COUNT_SHIFT,
            kind: Kind::Xco,
            bits: priority,
            ..Packet::default()
        }
    }

    /// The message of XCo in the packet. Entries of a report are written to `bytes`.
    pub fn xco_message<'a>(&self, bytes: &'a mut [u8; REPORT_ENTRIES * ENTRY_LEN]) -> (Head, Message<'a>) {
        let head = Head {
            epoch: self.window,
            sequence: self.seq,
            token: self.ack,
            clock_ns: u64::from(self.ts[0]) | u64::from(self.ts[1]) << 32,
        };
        let [a, b, c, d] = self.extra;
        let message = match self.flags & ((1 << COUNT_SHIFT) - 1) {
            JOIN => Message::Join { node: a, rate_kbps: b, nonce: c },
            WELCOME => Message::Welcome { node: a, lease_us: b, nonce: c, on_demand: d != 0 },
            LEAVE => Message::Leave,
            REPORT => {
                for (bytes, word) in bytes.chunks_exact_mut(4).zip(self.extra) {
                    bytes.copy_from_slice(&word.to_be_bytes());
                }
                let bytes = &bytes[..ENTRY_LEN * (self.flags >> COUNT_SHIFT) as usize];
                Message::Report(Entries::parse(bytes).expect("the entries of a simulated report"))
            }
            DIRECTIVE => Message::Directive { destination: a, instead_of: b, rate_kbps: c, length_ns: d },
            FREE => Message::Free { destination: a },
            RETURN => Message::Return { destination: a, directive: b },
            ALIVE => Message::Alive { is_controller: a != 0 },
            LOAD => Message::Load { level: a, load: b },
            WINDOWS => Message::Windows { period_us: a, since_ns: b, parts: c.to_be_bytes() },
            _ => Message::Acknowledge { report: a, refused: b },
        };
        (head, message)
    }
}

/// The kind and the words of a message that is no report.
fn words(message: &Message<'_>) -> (u8, [u32; 4]) {
    match *message {
        Message::Join { node, rate_kbps, nonce } => (JOIN, [node, rate_kbps, nonce, 0]),
        Message::Welcome { node, lease_us, nonce, on_demand } => (WELCOME, [node, lease_us, nonce, on_demand.into()]),
        Message::Leave => (LEAVE, [0; 4]),
        Message::Report(_) => panic!("a report is made from its entries"),
        Message::Directive { destination, instead_of, rate_kbps, length_ns } => {
            (DIRECTIVE, [destination, instead_of, rate_kbps, length_ns])
        }
        Message::Free { destination } => (FREE, [destination, 0, 0, 0]),
        Message::Return { destination, directive } => (RETURN, [destination, directive, 0, 0]),
        Message::Alive { is_controller } => (ALIVE, [is_controller.into(), 0, 0, 0]),
        Message::Acknowledge { report, refused } => (ACKNOWLEDGE, [report, refused, 0, 0]),
        Message::Load { level, load } => (LOAD, [level, load, 0, 0]),
        Message::Windows { period_us, since_ns, parts } => {
            (WINDOWS, [period_us, since_ns, u32::from_be_bytes(parts), 0])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_wire::xco::{Change, Entry};

    #[test]
    fn every_message_travels() {
        let (src, dst) = (Address::new(3, 0), Address::new(70_000, 0));
        assert_eq!(Address::of_mac(dst.mac()), dst);
        let head = Head { epoch: 7, sequence: 8, token: 9, clock_ns: 1 << 40 | 5 };
        let messages = [
            Message::Join { node: 1, rate_kbps: 2, nonce: 3 },
            Message::Welcome { node: 1, lease_us: 2, nonce: 3, on_demand: true },
            Message::Leave,
            Message::Directive { destination: 1, instead_of: 2, rate_kbps: 3, length_ns: 4 },
            Message::Free { destination: 1 },
            Message::Return { destination: 1, directive: 2 },
            Message::Alive { is_controller: true },
            Message::Acknowledge { report: 1, refused: 2 },
            Message::Load { level: 1, load: 2 },
            Message::Windows { period_us: 1, since_ns: 2, parts: [3, 4, 5, 6] },
        ];
        for message in messages {
            let packet = Packet::xco(src, dst, &head, &Body::Message(message), 7, Framing::ETHERNET);
            let mut bytes = Default::default();
            assert_eq!(packet.xco_message(&mut bytes), (head, message));
            assert_eq!(packet.len, 64);
        }
        let entries = [(5, Change::Backlogged), (6, Change::Measured { rate_kbps: 9 })]
            .map(|(destination, change)| Entry { destination, change });
        for count in 0..=2 {
            let report = &entries[..count];
            let packet = Packet::xco(src, dst, &head, &Body::Report(report), 7, Framing::ETHERNET);
            let mut bytes = Default::default();
            let (_, Message::Report(read)) = packet.xco_message(&mut bytes) else { panic!("a report") };
            assert!(read.iter().eq(report.iter().copied()));
        }
    }
}
