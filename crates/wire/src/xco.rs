//! Messages of XCo between a local coordinator and a controller, in frames of the project's EtherType (Rajanna,
//! Jahagirdar, Shah, Gopalan: Explicit Coordination to Prevent Congestion in Data Center Networks, 3.5).
//!
//! ```text
//!  0  destination, source, type 0x88B6                       14
//! 14  "slxc"                                                  4
//! 18  version, 1                                              1
//! 19  kind                                                    1
//! 20  epoch: the start of the controller                      2
//! 22  sequence: rises with each message of a sender           4
//! 26  token of the session                                    4
//! 30  clock of the sender, ns                                 8
//! 38  CRC-32C of all other bytes of the frame                 4
//! 42  body: four words, or the entries of a report
//!     zeros up to the shortest frame
//! ```
//!
//! | kind | body |
//! |---|---|
//! | 1 join | node, link rate, nonce |
//! | 2 welcome | node, lease in µs, nonce, flags |
//! | 3 leave | |
//! | 4 report | number of entries; then destination and change for each |
//! | 5 directive | destination, destination that it replaces, rate, length in ns |
//! | 6 free | destination |
//! | 7 return | destination, sequence of the directive |
//! | 8 alive | flags |
//! | 9 acknowledgement | sequence of the report, entries that were refused |
//! | 10 load | level, load |
//! | 11 windows | period in µs, time since its start in ns, parts of four levels |
//!
//! Numbers are big-endian. Rates are in kb/s. Nodes are numbered by the controller's topology.
//!
//! The source calls these messages a layer-3 protocol type; they have an EtherType and no address above Ethernet.

use crate::ethernet::{self, EtherType, HEADER_LEN, MIN_LEN, MacAddress};
use crate::{Error, crc, vlan};

/// 802's second "local experimental" type.
pub const ETHERTYPE: EtherType = EtherType(0x88B6);
/// Most entries of a report. A frame with all of them is shorter than every Ethernet MTU.
pub const ENTRIES_MAX: usize = 128;
/// Bytes of the longest frame without its check sequence.
pub const LEN_MAX: usize = ENTRIES_AT + ENTRIES_MAX * ENTRY_LEN;
/// The highest rate of an entry, in kb/s: the word of an entry has 30 bits for its rate.
pub const ENTRY_RATE_MAX_KBPS: u32 = CHANGE_RATE;
/// In place of a destination: none.
pub const NOWHERE: u32 = u32::MAX;

/// Distinguishes these frames from other experiments.
const MAGIC: [u8; 4] = *b"slxc";
const VERSION: u8 = 1;
const CHECKSUM_AT: usize = HEADER_LEN + 24;
const BODY_AT: usize = HEADER_LEN + 28;
/// Bytes in front of the entries of a report.
pub const ENTRIES_AT: usize = BODY_AT + 4;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 8;
/// Bytes of the body of every message but a report.
const BODY_LEN: usize = 16;
const _: () = assert!(BODY_AT + BODY_LEN <= MIN_LEN && LEN_MAX - HEADER_LEN <= 1500);

/// Bits of an entry's second word: whether the flow is backlogged, whether it is measured, and its rate.
const CHANGE_BACKLOGGED: u32 = 1 << 31;
const CHANGE_MEASURED: u32 = 1 << 30;
const CHANGE_RATE: u32 = CHANGE_MEASURED - 1;
/// Bit of a welcome: flows are free until the controller holds them.
const ON_DEMAND: u32 = 1;
/// Bit of an alive message: a controller sent it.
const FROM_CONTROLLER: u32 = 1;

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

/// A change of the traffic to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Frames wait for a directive.
    Backlogged,
    /// No frame waits any more.
    Idle,
    /// The flow is large and sends freely, at this rate in kb/s.
    Measured {
        /// The measured rate.
        rate_kbps: u32,
    },
}

impl Change {
    /// The change as one word.
    pub const fn to_bits(self) -> u32 {
        match self {
            Change::Backlogged => CHANGE_BACKLOGGED,
            Change::Idle => 0,
            Change::Measured { rate_kbps } => {
                CHANGE_MEASURED | if rate_kbps > CHANGE_RATE { CHANGE_RATE } else { rate_kbps }
            }
        }
    }

    /// The change that a word holds.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for bits that contradict each other.
    pub const fn from_bits(bits: u32) -> Result<Change, Error> {
        match bits & (CHANGE_BACKLOGGED | CHANGE_MEASURED) {
            CHANGE_MEASURED => Ok(Change::Measured { rate_kbps: bits & CHANGE_RATE }),
            CHANGE_BACKLOGGED if bits & CHANGE_RATE == 0 => Ok(Change::Backlogged),
            0 if bits == 0 => Ok(Change::Idle),
            _ => Err(Error::Unsupported),
        }
    }
}

/// An entry of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The destination node.
    pub destination: u32,
    /// The change of its traffic.
    pub change: Change,
}

/// The entries of a report, still in their frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries<'a>(&'a [u8]);

impl<'a> Entries<'a> {
    /// Reads entries without the head of a report.
    ///
    /// # Errors
    /// [`Error::Length`] for more than [`ENTRIES_MAX`] or a part of one, [`Error::Unsupported`] for an unknown change.
    pub fn parse(bytes: &'a [u8]) -> Result<Entries<'a>, Error> {
        let (entries, rest) = bytes.as_chunks::<ENTRY_LEN>();
        if entries.len() > ENTRIES_MAX || !rest.is_empty() {
            return Err(Error::Length);
        }
        for entry in entries {
            entry_of(entry)?;
        }
        Ok(Entries(bytes))
    }

    /// The entries, each of which was checked when they were read.
    pub fn iter(self) -> impl Iterator<Item = Entry> + use<'a> {
        let (entries, _) = self.0.as_chunks::<ENTRY_LEN>();
        entries.iter().filter_map(|entry| entry_of(entry).ok())
    }
}

fn entry_of(bytes: &[u8; ENTRY_LEN]) -> Result<Entry, Error> {
    let change = Change::from_bits(word(bytes, 4))?;
    Ok(Entry { destination: word(bytes, 0), change })
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A coordinator registers its node.
    Join {
        /// The node.
        node: u32,
        /// Rate of the node's link in kb/s.
        rate_kbps: u32,
        /// A number that the answer repeats.
        nonce: u32,
    },
    /// The controller accepts a node; the header has the token of the session.
    Welcome {
        /// The node.
        node: u32,
        /// Time without messages of the controller after which the coordinator lets all frames pass.
        lease_us: u32,
        /// The number of the join.
        nonce: u32,
        /// Whether flows are free until the controller holds them.
        on_demand: bool,
    },
    /// A node shuts down.
    Leave,
    /// Changes of a node's traffic.
    Report(Entries<'a>),
    /// Transmission directive.
    Directive {
        /// The destination.
        destination: u32,
        /// The destination whose slice ends at once, or [`NOWHERE`].
        instead_of: u32,
        /// The highest rate in kb/s; 0 for the rate of the link.
        rate_kbps: u32,
        /// Time from the sender's clock to the end of the slice; 0 holds the flow.
        length_ns: u32,
    },
    /// The flow may send without directives until the controller holds it.
    Free {
        /// The destination.
        destination: u32,
    },
    /// A coordinator gives the rest of a slice back: no frame waits for the destination.
    Return {
        /// The destination.
        destination: u32,
        /// The sequence number of the directive.
        directive: u32,
    },
    /// The sender works.
    Alive {
        /// Whether the sender is a controller.
        is_controller: bool,
    },
    /// The controller has read a report.
    Acknowledge {
        /// The sequence number of the report.
        report: u32,
        /// Entries for which there was no room.
        refused: u32,
    },
    /// A controller tells the one above it what its flows need.
    Load {
        /// The level of the flows: 0 for those within a rack.
        level: u32,
        /// What flows through the most loaded link would send, in thousandths of its capacity.
        load: u32,
    },
    /// A controller tells those below it when each level gives timeslices.
    Windows {
        /// Length of a period.
        period_us: u32,
        /// Time from the start of the period to the sender's clock.
        since_ns: u32,
        /// Parts of each level, one after the other, in 256ths of the period.
        parts: [u8; 4],
    },
}

impl Message<'_> {
    /// Whether a controller reads it, and not a coordinator.
    pub fn is_for_controller(&self) -> bool {
        match self {
            Message::Join { .. }
            | Message::Leave
            | Message::Report(_)
            | Message::Return { .. }
            | Message::Load { .. }
            | Message::Windows { .. } => true,
            Message::Alive { is_controller } => !is_controller,
            Message::Welcome { .. }
            | Message::Directive { .. }
            | Message::Free { .. }
            | Message::Acknowledge { .. } => false,
        }
    }
}

/// A frame, from its destination to its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The receiver.
    pub destination: MacAddress,
    /// The sender.
    pub source: MacAddress,
    /// The head of the message.
    pub head: Head,
    /// The message.
    pub message: Message<'a>,
}

/// What every message has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The start of the controller; a later one is higher, modulo 2^16.
    pub epoch: u16,
    /// The number of the message among those of its sender, modulo 2^32.
    pub sequence: u32,
    /// The session; 0 before the controller has given one.
    pub token: u32,
    /// The sender's clock.
    pub clock_ns: u64,
}

/// Whether a frame is a message of XCo, behind any number of tags.
pub fn is_message(frame: &[u8]) -> bool {
    let mut at = ethernet::ADDRESSES_LEN;
    while let Some(&[a, b]) = frame.get(at..at + 2).and_then(|bytes| bytes.first_chunk()) {
        match EtherType(u16::from_be_bytes([a, b])) {
            EtherType::VLAN | EtherType::SERVICE_VLAN => at += vlan::TAG_LEN,
            other => return other == ETHERTYPE,
        }
    }
    false
}

/// What a frame is to a receiver of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// No message.
    Other,
    /// A message for another address.
    Elsewhere,
    /// A message that cannot be read.
    Malformed,
    /// A message for this address.
    Message(Repr<'a>),
}

/// Reads a frame that has come to the address `own`.
pub fn receive<'a>(frame: &'a [u8], own: MacAddress, into: &'a mut [u8; LEN_MAX]) -> Received<'a> {
    if !is_message(frame) {
        return Received::Other;
    }
    match without_tag(frame, into).and_then(Repr::parse) {
        Ok(repr) if repr.destination != own => Received::Elsewhere,
        Ok(repr) => Received::Message(repr),
        Err(_) => Received::Malformed,
    }
}

/// A message without the tag of its priority, which may stand in front of its type. A tag of a VLAN stays, so that the frame is
/// no message: VLANs belong to tenants.
///
/// # Errors
/// [`Error::Length`] for a tagged frame that is longer than any message.
pub fn without_tag<'a>(frame: &'a [u8], into: &'a mut [u8; LEN_MAX]) -> Result<&'a [u8], Error> {
    let at = ethernet::ADDRESSES_LEN;
    let Some(&[0x81, 0x00, a, b]) = frame.get(at..at + vlan::TAG_LEN).and_then(|tag| tag.first_chunk()) else {
        return Ok(frame);
    };
    if u16::from_be_bytes([a, b]) & 0x0FFF != 0 {
        return Ok(frame);
    }
    let len = frame.len() - vlan::TAG_LEN;
    if len > LEN_MAX {
        return Err(Error::Length);
    }
    into[..at].copy_from_slice(&frame[..at]);
    into[at..len].copy_from_slice(&frame[at + vlan::TAG_LEN..]);
    Ok(&into[..len])
}

impl<'a> Repr<'a> {
    /// Reads a whole frame without its check sequence.
    ///
    /// Another type, magic, version or kind, and an unknown change, is [`Error::Unsupported`]; damaged bytes are
    /// [`Error::Checksum`]; more entries than the frame has bytes are [`Error::Truncated`], and more than
    /// [`ENTRIES_MAX`] are [`Error::Length`].
    pub fn parse(bytes: &'a [u8]) -> Result<Repr<'a>, Error> {
        let (header, rest) = ethernet::Repr::parse(bytes)?;
        if header.ethertype != ETHERTYPE {
            return Err(Error::Unsupported);
        }
        if bytes.len() < MIN_LEN {
            return Err(Error::Truncated);
        }
        if rest[..4] != MAGIC || rest[4] != VERSION {
            return Err(Error::Unsupported);
        }
        if word(bytes, CHECKSUM_AT) != crc::of(crc::all_but(bytes, CHECKSUM_AT)) {
            return Err(Error::Checksum);
        }
        let head = Head {
            epoch: u16::from_be_bytes([rest[6], rest[7]]),
            sequence: word(rest, 8),
            token: word(rest, 12),
            clock_ns: u64::from(word(rest, 16)) << 32 | u64::from(word(rest, 20)),
        };
        let [a, b, c, d] = [0, 4, 8, 12].map(|at| word(bytes, BODY_AT + at));
        let message = match rest[5] {
            JOIN => Message::Join { node: a, rate_kbps: b, nonce: c },
            WELCOME => Message::Welcome { node: a, lease_us: b, nonce: c, on_demand: d & ON_DEMAND != 0 },
            LEAVE => Message::Leave,
            REPORT => Message::Report(entries(bytes, a)?),
            DIRECTIVE => Message::Directive { destination: a, instead_of: b, rate_kbps: c, length_ns: d },
            FREE => Message::Free { destination: a },
            RETURN => Message::Return { destination: a, directive: b },
            ALIVE => Message::Alive { is_controller: a & FROM_CONTROLLER != 0 },
            ACKNOWLEDGE => Message::Acknowledge { report: a, refused: b },
            LOAD => Message::Load { level: a, load: b },
            WINDOWS => Message::Windows { period_us: a, since_ns: b, parts: c.to_be_bytes() },
            _ => return Err(Error::Unsupported),
        };
        Ok(Repr { destination: header.destination, source: header.source, head, message })
    }
}

/// The entries of a report, all of them well-formed.
fn entries(bytes: &[u8], count: u32) -> Result<Entries<'_>, Error> {
    let count = count as usize;
    if count > ENTRIES_MAX {
        return Err(Error::Length);
    }
    Entries::parse(bytes.get(ENTRIES_AT..ENTRIES_AT + count * ENTRY_LEN).ok_or(Error::Truncated)?)
}

/// A frame that is being written.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl Frame {
    /// The whole frame without its check sequence.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the whole frame in parts, with the tag of a priority; without one for priority 0.
    pub fn write(&self, priority: u8, mut put: impl FnMut(&[u8])) {
        let (addresses, rest) = self.as_bytes().split_at(ethernet::ADDRESSES_LEN);
        put(addresses);
        if priority > 0 {
            put(&[0x81, 0x00, priority << 5, 0]);
        }
        put(rest);
    }

    /// Writes a message that is not a report.
    ///
    /// # Panics
    /// With a report: [`Frame::report`] writes those.
    pub fn emit(destination: MacAddress, source: MacAddress, head: &Head, message: &Message<'_>) -> Frame {
        let (kind, body) = match *message {
            Message::Join { node, rate_kbps, nonce } => (JOIN, [node, rate_kbps, nonce, 0]),
            Message::Welcome { node, lease_us, nonce, on_demand } => {
                (WELCOME, [node, lease_us, nonce, if on_demand { ON_DEMAND } else { 0 }])
            }
            Message::Leave => (LEAVE, [0; 4]),
            Message::Report(_) => panic!("a report is written from its entries"),
            Message::Directive { destination, instead_of, rate_kbps, length_ns } => {
                (DIRECTIVE, [destination, instead_of, rate_kbps, length_ns])
            }
            Message::Free { destination } => (FREE, [destination, 0, 0, 0]),
            Message::Return { destination, directive } => (RETURN, [destination, directive, 0, 0]),
            Message::Alive { is_controller } => (ALIVE, [if is_controller { FROM_CONTROLLER } else { 0 }, 0, 0, 0]),
            Message::Acknowledge { report, refused } => (ACKNOWLEDGE, [report, refused, 0, 0]),
            Message::Load { level, load } => (LOAD, [level, load, 0, 0]),
            Message::Windows { period_us, since_ns, parts } => {
                (WINDOWS, [period_us, since_ns, u32::from_be_bytes(parts), 0])
            }
        };
        let mut frame = Frame::begin(destination, source, head, kind, MIN_LEN);
        for (at, word) in body.iter().enumerate() {
            frame.put(BODY_AT + 4 * at, *word);
        }
        frame.seal()
    }

    /// Writes a report.
    ///
    /// # Panics
    /// With more than [`ENTRIES_MAX`] entries.
    pub fn report(destination: MacAddress, source: MacAddress, head: &Head, entries: &[Entry]) -> Frame {
        assert!(entries.len() <= ENTRIES_MAX, "a report has at most {ENTRIES_MAX} entries");
        let len = MIN_LEN.max(ENTRIES_AT + entries.len() * ENTRY_LEN);
        let mut frame = Frame::begin(destination, source, head, REPORT, len);
        frame.put(BODY_AT, entries.len() as u32);
        for (n, entry) in entries.iter().enumerate() {
            frame.put(ENTRIES_AT + n * ENTRY_LEN, entry.destination);
            frame.put(ENTRIES_AT + n * ENTRY_LEN + 4, entry.change.to_bits());
        }
        frame.seal()
    }

    fn begin(destination: MacAddress, source: MacAddress, head: &Head, kind: u8, len: usize) -> Frame {
        let mut frame = Frame { bytes: [0; LEN_MAX], len };
        ethernet::Repr { destination, source, ethertype: ETHERTYPE }.emit(&mut frame.bytes);
        let fields = &mut frame.bytes[HEADER_LEN..];
        fields[..4].copy_from_slice(&MAGIC);
        fields[4..6].copy_from_slice(&[VERSION, kind]);
        fields[6..8].copy_from_slice(&head.epoch.to_be_bytes());
        fields[8..12].copy_from_slice(&head.sequence.to_be_bytes());
        fields[12..16].copy_from_slice(&head.token.to_be_bytes());
        fields[16..24].copy_from_slice(&head.clock_ns.to_be_bytes());
        frame
    }

    fn put(&mut self, at: usize, word: u32) {
        self.bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    fn seal(mut self) -> Frame {
        let sum = crc::of(crc::all_but(self.as_bytes(), CHECKSUM_AT));
        self.put(CHECKSUM_AT, sum);
        self
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec::Vec;

    const ENDS: (MacAddress, MacAddress) = (MacAddress::local(2), MacAddress::local(1));

    fn any_head(random: &mut random::Random) -> Head {
        let mut word = || random.u64();
        Head { epoch: word() as u16, sequence: word() as u32, token: word() as u32, clock_ns: word() }
    }

    fn any_message(random: &mut random::Random) -> Message<'static> {
        let mut word = || random.u64() as u32;
        let (a, b, c, d) = (word(), word(), word(), word());
        match random.below(10) {
            0 => Message::Join { node: a, rate_kbps: b, nonce: c },
            1 => Message::Welcome { node: a, lease_us: b, nonce: c, on_demand: d & 1 != 0 },
            2 => Message::Leave,
            3 => Message::Directive { destination: a, instead_of: b, rate_kbps: c, length_ns: d },
            4 => Message::Free { destination: a },
            5 => Message::Return { destination: a, directive: b },
            6 => Message::Alive { is_controller: a & 1 != 0 },
            7 => Message::Load { level: a, load: b },
            8 => Message::Windows { period_us: a, since_ns: b, parts: c.to_be_bytes() },
            _ => Message::Acknowledge { report: a, refused: b },
        }
    }

    fn any_entries(random: &mut random::Random) -> Vec<Entry> {
        let count = random.below(ENTRIES_MAX as u64 + 1);
        let mut entry = |_| {
            let change = match random.below(3) {
                0 => Change::Backlogged,
                1 => Change::Idle,
                _ => Change::Measured { rate_kbps: random.u64() as u32 & ENTRY_RATE_MAX_KBPS },
            };
            Entry { destination: random.u64() as u32, change }
        };
        (0..count).map(&mut entry).collect()
    }

    fn any_frame(random: &mut random::Random) -> Vec<u8> {
        let head = any_head(random);
        let frame = if random.below(2) == 0 {
            Frame::emit(ENDS.0, ENDS.1, &head, &any_message(random))
        } else {
            Frame::report(ENDS.0, ENDS.1, &head, &any_entries(random))
        };
        frame.as_bytes().to_vec()
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let (head, message) = (any_head(random), any_message(random));
            let frame = Frame::emit(ENDS.0, ENDS.1, &head, &message);
            assert_eq!(frame.as_bytes().len(), MIN_LEN);
            assert_eq!(Repr::parse(frame.as_bytes()), Ok(Repr { destination: ENDS.0, source: ENDS.1, head, message }));
        });
        random::never_panics(any_frame, |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn round_trip_of_a_report() {
        random::check(|random| {
            let (head, entries) = (any_head(random), any_entries(random));
            let frame = Frame::report(ENDS.0, ENDS.1, &head, &entries);
            let repr = Repr::parse(frame.as_bytes()).unwrap();
            let Message::Report(read) = repr.message else { panic!("{repr:?}") };
            assert_eq!((repr.head, read.iter().collect::<Vec<_>>()), (head, entries));
        });
    }

    #[test]
    fn bytes_of_a_directive() {
        let head = Head { epoch: 0x0102, sequence: 0x0304_0506, token: 0x0708_090A, clock_ns: 0x0B };
        let message =
            Message::Directive { destination: 0x11, instead_of: NOWHERE, rate_kbps: 1_000_000, length_ns: 2_000_000 };
        let mut expected = [0; MIN_LEN];
        expected[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB6]);
        expected[14..30].copy_from_slice(&[b's', b'l', b'x', b'c', 1, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0A]);
        expected[37] = 0x0B;
        expected[42..58]
            .copy_from_slice(&[0, 0, 0, 0x11, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x0F, 0x42, 0x40, 0, 0x1E, 0x84, 0x80]);
        // Apart from the checksum.
        let mut frame = Frame::emit(ENDS.0, ENDS.1, &head, &message).as_bytes().to_vec();
        assert_ne!(frame[38..42], [0; 4]);
        frame[38..42].fill(0);
        assert_eq!(frame, expected);
    }

    #[test]
    fn what_is_not_one_is_refused() {
        let head = Head::default();
        let sealed = |change: &dyn Fn(&mut Frame)| {
            let entries = [Entry { destination: 1, change: Change::Backlogged }; 4];
            let mut frame = Frame::report(ENDS.0, ENDS.1, &head, &entries);
            change(&mut frame);
            frame.seal()
        };
        let refused = |change: &dyn Fn(&mut Frame)| Repr::parse(sealed(change).as_bytes()).map(|_| ()).unwrap_err();
        for (at, value) in [(13, 0xB5), (14, b'S'), (18, 2), (19, 0), (19, 12)] {
            assert_eq!(refused(&|frame| frame.bytes[at] = value), Error::Unsupported, "byte {at}");
        }
        assert_eq!(refused(&|frame| frame.put(BODY_AT, 5)), Error::Truncated);
        assert_eq!(refused(&|frame| frame.put(BODY_AT, 1_000_000)), Error::Length);
        assert_eq!(refused(&|frame| frame.put(ENTRIES_AT + 4, 1)), Error::Unsupported);
        assert_eq!(refused(&|frame| frame.put(ENTRIES_AT + 4, 3 << 30)), Error::Unsupported);
        assert_eq!(Repr::parse(&sealed(&|_| {}).as_bytes()[..59]), Err(Error::Truncated));
    }

    #[test]
    fn one_bit_that_is_another_is_seen() {
        random::check(|random| {
            let mut frame = any_frame(random);
            let bit = random.below(frame.len() as u64 * 8) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(Repr::parse(&frame).is_err(), "bit {bit}");
        });
    }
}
