//! A frame in the simulator: the contents of its headers and its length, in 56 bytes.

mod bridge;
mod bump;
mod roce;
#[cfg(test)]
mod tests;
pub mod xco;
mod zfabric;

pub use bump::UPDATE_MAX;
pub use roce::IP_ROCE_BYTES;

use crate::adapter::AdapterFrame;
use sluicenet_proto::cee::qcn::{Message, Notification};
use sluicenet_proto::frame::{Frame, HostId, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::rng::mix64;
use sluicenet_proto::routing::paths::Path;
use sluicenet_proto::tcp::{Plain, TIMESTAMP_OPTION_BYTES};
use sluicenet_wire::ipv4::Ecn;
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::tcp::{Flags, Segment, SynOptions};

/// A virtual machine by server and number: the inner address of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u32);

impl Address {
    /// VM `vm` of server `host` (below 2^24).
    #[inline(always)]
    pub const fn new(host: HostId, vm: u8) -> Address {
        Address(host << 8 | vm as u32)
    }
    /// The server.
    #[inline(always)]
    pub const fn host(self) -> HostId {
        self.0 >> 8
    }
    /// The VM on that server.
    #[inline(always)]
    pub const fn vm(self) -> u8 {
        self.0 as u8
    }
    /// The address as one word.
    #[inline(always)]
    pub const fn to_bits(self) -> u32 {
        self.0
    }
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A TCP segment.
    #[default]
    Tcp,
    /// A UDP datagram; `seq` and `ack` hold its offset in the flow.
    Udp,
    /// A segment of TCPlight; `seq` is its offset, `ack` its limit, the first word of `extra` its connection.
    Light,
    /// A priority flow control frame.
    Pause,
    /// A message of zCredit; `flags` is its kind, `seq` its channel, `ack`, `ts` and `extra` its numbers.
    Credit,
    /// A zBridge frame without a payload frame; `flags` is its kind, `seq` and `ack` its numbers. The rest holds its
    /// connection and up to three ranges.
    Bridge,
    /// A frame in a tunnel's byte stream, carried beside the bytes as metadata is; `more` is its kind, `serial` its
    /// number.
    Tunnelled,
    /// The contents of an application's header, carried beside the bytes because simulated packets have none.
    Metadata,
    /// A congestion notification: addresses and ports are those of the sampled packet, reversed; `seq` and `ack` hold the
    /// congestion point, `ts` offset and growth of its queue, `flags` the feedback and `window` the packet's priority.
    Notification,
    /// A packet of RoCE (`roce.rs`).
    Roce,
    /// An update between bumps (`bump.rs`).
    Update,
    /// A message of XCo (`xco.rs`); `flags` is its kind, the other fields are its head and its words.
    Xco,
}

/// Smallest Ethernet frame, check sequence included (802.3, 3.2.7).
pub const MIN_ETHERNET_FRAME: u16 = 64;
/// IP and TCP header without options, in bytes.
pub const IP_TCP_BYTES: u16 = 40;
/// IP and UDP header, in bytes.
pub const IP_UDP_BYTES: u16 = 28;

/// IP and TCPlight header, in bytes.
pub const IP_LIGHT_BYTES: u16 = 20 + sluicenet_wire::tcplight::HEADER_LEN as u16;

/// Bits of `Packet::bits`: priority, outer ECN, inner ECN, corrupt.
const ECN_SHIFT: u8 = 3;
const INNER_ECN_SHIFT: u8 = 5;
const CORRUPT: u8 = 0x80;
/// Bits of `Packet::more`: number of SACK blocks, options present, encapsulated, carried by zBridge, acknowledgment
/// requested.
const SACK_COUNT: u8 = 0x03;
const TIMESTAMPS: u8 = 0x04;
const SYN_OPTIONS: u8 = 0x08;
const ENCAPSULATED: u8 = 0x10;
const BRIDGED: u8 = 0x20;
const ACK_REQUEST: u8 = 0x40;
/// Bit of `Packet::more`: the source has chosen the path. The path is in the upper bits of `extra[3]`, from this bit on.
const PATH: u8 = 0x80;
const PATH_SHIFT: u32 = 20;
/// Position in `more` of the kind of a frame in a TCP tunnel; such a frame has no zBridge header.
const TUNNELLED_SHIFT: u8 = 5;

/// A packet's headers and lengths. SACK blocks are stored as 21-bit distances from the acknowledgment number.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Packet {
    dst: Address,
    src: Address,
    sport: u16,
    dport: u16,
    len: u16,
    payload: u16,
    seq: u32,
    ack: u32,
    ts: [u32; 2],
    extra: [u32; 4],
    window: u16,
    flags: u8,
    kind: Kind,
    bits: u8,
    more: u8,
    serial: u16,
}

const _: () = assert!(core::mem::size_of::<Packet>() == 56);

/// A distance of a SACK block's edge that fits its field.
const SACK_REACH: u32 = 1 << 21;

/// The framing of an IP packet on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Header and check sequence, in bytes.
    pub header: u16,
    /// Shortest frame, in bytes.
    pub min_frame: u16,
    /// Preamble and start delimiter, in bytes.
    pub preamble: u16,
    /// Smallest gap between frames, in bytes.
    pub gap: u16,
}

impl Framing {
    /// Ethernet: 14 B header, 4 B check sequence, 8 B preamble, 12 B gap.
    pub const ETHERNET: Framing = Framing { header: 18, min_frame: MIN_ETHERNET_FRAME, preamble: 8, gap: 12 };
    /// Ethernet with a CN-TAG of 4 B in each frame of a host (802.1Qau).
    pub const CN_TAGGED: Framing = Framing { header: 22, ..Framing::ETHERNET };
    /// Two bytes of PPP header and nothing between frames, as ns-3's point-to-point links have it.
    pub const PPP: Framing = Framing { header: 2, min_frame: 0, preamble: 0, gap: 0 };

    /// Length of the frame around an IP packet of `ip` bytes. It fits 16 bits: a scenario whose longest frame does not is refused
    /// when it is read, and [`Framing::assert_fits`] asserts that where a world is built.
    #[inline(always)]
    pub const fn frame_len(self, ip: u16) -> u16 {
        debug_assert!(ip <= u16::MAX - self.header, "a frame of more than 65,535 B");
        let len = ip + self.header;
        if len < self.min_frame { self.min_frame } else { len }
    }
    /// Asserts that a frame around the largest IP packet, of `mtu` bytes, has a length of 16 bits.
    pub const fn assert_fits(self, mtu: u64) {
        assert!(mtu <= (u16::MAX - self.header) as u64, "the longest frame has more than 65,535 B");
    }
    /// Bytes a frame takes on the wire beyond its own.
    #[inline(always)]
    pub const fn overhead(self) -> u16 {
        self.preamble + self.gap
    }
}

/// The flow of a packet: addresses and ports, in the order of a [`Packet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    /// Receiver.
    pub dst: Address,
    /// Sender.
    pub src: Address,
    /// The sender's port.
    pub sport: u16,
    /// The receiver's port.
    pub dport: u16,
}

impl FlowKey {
    /// The opposite direction.
    pub const fn reverse(self) -> FlowKey {
        FlowKey { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport }
    }
}

impl Packet {
    /// A TCP segment in a frame.
    #[inline(always)]
    pub fn tcp(flow: FlowKey, segment: &Segment, ect: bool, priority: Priority, framing: Framing) -> Packet {
        let (mut more, mut options) = (0, 0u16);
        let mut extra = [0u32; 4];
        if segment.flags.contains(Flags::SYN) {
            let syn = segment.syn;
            more |= SYN_OPTIONS;
            extra[0] = syn.mss.map_or(0, |m| 1 << 16 | m as u32);
            extra[1] = syn.window_scale.map_or(0, |s| 1 << 8 | s as u32) | (syn.sack_permitted as u32) << 9;
            options += if syn.mss.is_some() { 4 } else { 0 };
            options += if syn.window_scale.is_some() { 4 } else { 0 };
            // SACK-permitted takes the two bytes that pad the timestamp.
            options += if syn.sack_permitted && segment.timestamps.is_none() { 4 } else { 0 };
        } else if !segment.sack.is_empty() {
            let mut packed = 0u128;
            let mut count = 0u8;
            for &(left, right) in segment.sack.as_slice() {
                let (l, r) = (left.0.wrapping_sub(segment.ack.0), right.0.wrapping_sub(segment.ack.0));
                // A block too far away is left out: SACK is advice (RFC 2018, 8).
                if l < SACK_REACH && r < SACK_REACH {
                    packed |= ((r as u128) << 21 | l as u128) << (42 * count);
                    count += 1;
                }
            }
            extra = [packed as u32, (packed >> 32) as u32, (packed >> 64) as u32, (packed >> 96) as u32];
            more |= count;
            options += 4 + 8 * count as u16;
        }
        let plain = Packet::plain(flow, &Plain::without_options(segment), ect, priority, framing);
        let options = options + if segment.timestamps.is_some() { TIMESTAMP_OPTION_BYTES } else { 0 };
        let len = framing.frame_len(IP_TCP_BYTES + options + segment.len);
        Packet { len, extra, more: plain.more | more, ..plain }
    }

    /// A plain TCP segment in a frame.
    #[inline(always)]
    pub fn plain(flow: FlowKey, segment: &Plain, ect: bool, priority: Priority, framing: Framing) -> Packet {
        let (timestamps, options) = if segment.has_timestamps { (TIMESTAMPS, TIMESTAMP_OPTION_BYTES) } else { (0, 0) };
        let ecn = if ect { Ecn::Ect0 } else { Ecn::NotEct } as u8;
        Packet {
            dst: flow.dst,
            src: flow.src,
            sport: flow.sport,
            dport: flow.dport,
            len: framing.frame_len(IP_TCP_BYTES + options + segment.len),
            payload: segment.len,
            seq: segment.seq.0,
            ack: segment.ack.0,
            ts: [segment.timestamps.0, segment.timestamps.1],
            extra: [0; 4],
            window: segment.window,
            flags: segment.flags.0,
            kind: Kind::Tcp,
            bits: priority | ecn << ECN_SHIFT,
            more: timestamps,
            serial: 0,
        }
    }

    /// A UDP datagram in a frame; `offset` is its position in the flow.
    pub fn udp(flow: FlowKey, offset: u64, payload: u16, priority: Priority, framing: Framing) -> Packet {
        Packet {
            dst: flow.dst,
            src: flow.src,
            sport: flow.sport,
            dport: flow.dport,
            len: framing.frame_len(IP_UDP_BYTES + payload),
            payload,
            seq: offset as u32,
            ack: (offset >> 32) as u32,
            kind: Kind::Udp,
            bits: priority,
            ..Packet::default()
        }
    }

    /// An empty packet, used to look up the route of a flow's packets.
    pub fn of_flow(flow: FlowKey, kind: Kind) -> Packet {
        let FlowKey { src, dst, sport, dport } = flow;
        Packet { dst, src, sport, dport, kind, ..Packet::default() }
    }

    /// Message metadata between applications, never on a wire.
    pub fn metadata(flow: FlowKey, words: [u64; 3]) -> Packet {
        let mut p = Packet {
            dst: flow.dst,
            src: flow.src,
            sport: flow.sport,
            dport: flow.dport,
            kind: Kind::Metadata,
            ..Packet::default()
        };
        p.seq = words[0] as u32;
        p.ack = (words[0] >> 32) as u32;
        p.ts = [words[1] as u32, (words[1] >> 32) as u32];
        p.extra[0] = words[2] as u32;
        p.extra[1] = (words[2] >> 32) as u32;
        p
    }

    /// The words of message metadata.
    pub fn metadata_words(&self) -> [u64; 3] {
        let join = |low: u32, high: u32| low as u64 | (high as u64) << 32;
        [join(self.seq, self.ack), join(self.ts[0], self.ts[1]), join(self.extra[0], self.extra[1])]
    }

    /// The topic of message metadata: the top byte of its third word.
    pub fn metadata_topic(&self) -> u8 {
        (self.extra[1] >> 24) as u8
    }

    /// The TCP segment in the packet, if it is plain.
    #[inline(always)]
    pub fn plain_segment(&self) -> Option<Plain> {
        (self.more & (SACK_COUNT | SYN_OPTIONS) == 0).then(|| self.without_options())
    }

    /// The TCP segment in the packet, without options other than the timestamp.
    #[inline(always)]
    fn without_options(&self) -> Plain {
        Plain {
            seq: SeqNumber(self.seq),
            ack: SeqNumber(self.ack),
            timestamps: (self.ts[0], self.ts[1]),
            has_timestamps: self.more & TIMESTAMPS != 0,
            flags: Flags(self.flags),
            window: self.window,
            len: self.payload,
        }
    }

    /// The TCP segment in the packet.
    pub fn segment(&self) -> Segment {
        let mut segment = self.without_options().segment();
        if self.more & SYN_OPTIONS != 0 {
            segment.syn = SynOptions {
                mss: (self.extra[0] >> 16 & 1 != 0).then_some(self.extra[0] as u16),
                window_scale: (self.extra[1] >> 8 & 1 != 0).then_some(self.extra[1] as u8),
                sack_permitted: self.extra[1] >> 9 & 1 != 0,
            };
        } else if self.more & SACK_COUNT != 0 {
            let mut packed = self.extra.iter().rev().fold(0u128, |a, &w| a << 32 | w as u128);
            for _ in 0..self.more & SACK_COUNT {
                let (l, r) = (packed as u32 & (SACK_REACH - 1), (packed >> 21) as u32 & (SACK_REACH - 1));
                segment.sack.push(segment.ack + l, segment.ack + r);
                packed >>= 42;
            }
        }
        segment
    }

    /// Addresses and ports.
    #[inline(always)]
    pub fn flow(&self) -> FlowKey {
        FlowKey { src: self.src, dst: self.dst, sport: self.sport, dport: self.dport }
    }
    /// The receiving VM.
    #[inline(always)]
    pub fn dst(&self) -> Address {
        self.dst
    }
    /// The sending VM.
    #[inline(always)]
    pub fn src(&self) -> Address {
        self.src
    }
    /// The receiver's port.
    #[inline(always)]
    pub fn dport(&self) -> u16 {
        self.dport
    }
    /// The packet's kind.
    #[inline(always)]
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// Payload in bytes.
    #[inline(always)]
    pub fn payload(&self) -> u16 {
        self.payload
    }
    /// A datagram's position in its flow.
    pub fn udp_offset(&self) -> u64 {
        self.seq as u64 | (self.ack as u64) << 32
    }
    /// ECN field of the outermost IP header.
    #[inline(always)]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.bits >> ECN_SHIFT)
    }
    /// Sets the ECN field of the outermost IP header.
    #[inline(always)]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        self.bits = self.bits & !(3 << ECN_SHIFT) | (ecn as u8) << ECN_SHIFT;
    }
    /// ECN field of the inner IP header of an encapsulated packet.
    pub fn inner_ecn(&self) -> Ecn {
        Ecn::from_bits(self.bits >> INNER_ECN_SHIFT)
    }
    /// Whether the packet is in a tunnel.
    #[inline(always)]
    pub fn is_encapsulated(&self) -> bool {
        self.more & ENCAPSULATED != 0
    }
    /// Puts the packet into the tunnel: `bytes` of outer headers in front, with `outer` as their ECN field.
    #[inline]
    pub fn encapsulate(&mut self, outer: Ecn, bytes: u16) {
        debug_assert!(bytes <= u16::MAX - self.len, "a tunnel's frame of more than 65,535 B");
        let inner = self.ecn() as u8;
        self.bits = self.bits & !(3 << INNER_ECN_SHIFT) | inner << INNER_ECN_SHIFT;
        self.set_ecn(outer);
        self.len += bytes;
        self.more |= ENCAPSULATED;
    }
    /// Takes `bytes` of outer headers off; `inner` becomes the packet's ECN field.
    #[inline]
    pub fn decapsulate(&mut self, inner: Ecn, bytes: u16) {
        self.set_ecn(inner);
        self.len -= bytes;
        self.more &= !ENCAPSULATED;
    }
    /// Breaks the frame check sequence, as a bit error does.
    pub fn corrupt(&mut self) {
        self.bits |= CORRUPT;
    }
}

impl Frame for Packet {
    #[inline(always)]
    fn len(&self) -> u32 {
        self.len as u32
    }
    #[inline(always)]
    fn priority(&self) -> Priority {
        self.bits & 7
    }
    #[inline(always)]
    fn source(&self) -> HostId {
        self.src.host()
    }
    #[inline(always)]
    fn destination(&self) -> HostId {
        self.dst.host()
    }
    fn flow_hash(&self) -> u64 {
        // All frames of a channel take one path (Crisan 2014, 5.3.4).
        if self.more & BRIDGED != 0 {
            return mix64((self.src.0 as u64) << 32 | self.dst.0 as u64);
        }
        let ports = (self.sport as u64) << 16 | self.dport as u64;
        mix64((self.src.0 as u64) << 32 | self.dst.0 as u64) ^ mix64(ports << 8 | self.kind as u64)
    }
    fn frame_hash(&self) -> u64 {
        self.flow_hash() ^ mix64((self.serial as u64) << 32 | self.seq as u64) ^ (self.ack as u64).rotate_left(17)
    }
    #[inline(always)]
    fn is_corrupt(&self) -> bool {
        self.bits & CORRUPT != 0
    }
    #[inline(always)]
    fn is_pause(&self) -> bool {
        self.kind == Kind::Pause
    }
    #[inline(always)]
    fn as_pause(&self) -> Option<Pause> {
        if self.kind != Kind::Pause {
            return None;
        }
        let mut quanta = [0; PRIORITIES];
        for (i, q) in quanta.iter_mut().enumerate() {
            *q = (self.extra[i / 2] >> (16 * (i % 2))) as u16;
        }
        Some(Pause { classes: PrioritySet(self.flags), quanta })
    }
    fn from_pause(pause: Pause) -> Packet {
        let mut extra = [0u32; 4];
        for (i, &q) in pause.quanta.iter().enumerate() {
            extra[i / 2] |= (q as u32) << (16 * (i % 2));
        }
        // Control frames travel in no class of their own: they pass everything but the frame on the wire.
        Packet { len: MIN_ETHERNET_FRAME, kind: Kind::Pause, flags: pause.classes.0, extra, ..Packet::default() }
    }
    #[inline]
    fn mark(&mut self) -> bool {
        let is_capable = self.ecn() != Ecn::NotEct;
        if is_capable {
            self.set_ecn(Ecn::Ce);
        }
        is_capable
    }
    fn notification(&self, message: &Message, priority: Priority) -> Packet {
        let units = |bytes: i64| bytes.clamp(i32::MIN.into(), i32::MAX.into()) as i32 as u32;
        let Message { cpid, notification: Notification { feedback, offset, delta }, priority: sampled } = *message;
        Packet {
            dst: self.src,
            src: self.dst,
            sport: self.dport,
            dport: self.sport,
            len: MIN_ETHERNET_FRAME,
            seq: cpid as u32,
            ack: (cpid >> 32) as u32,
            ts: [units(offset), units(delta)],
            window: u16::from(sampled),
            flags: feedback,
            kind: Kind::Notification,
            bits: priority,
            more: self.more & PATH,
            extra: [0, 0, 0, self.extra[3]],
            serial: self.serial,
            ..Packet::default()
        }
    }
    #[inline(always)]
    fn as_notification(&self) -> Option<Message> {
        (self.kind == Kind::Notification).then(|| Message {
            cpid: u64::from(self.seq) | u64::from(self.ack) << 32,
            notification: Notification {
                feedback: self.flags,
                offset: i64::from(self.ts[0] as i32),
                delta: i64::from(self.ts[1] as i32),
            },
            priority: self.window as Priority,
        })
    }
    #[inline(always)]
    fn path(&self) -> Path {
        (self.more & PATH != 0).then_some((self.extra[3] >> PATH_SHIFT) as u16)
    }
}

impl AdapterFrame for Packet {
    #[inline(always)]
    fn serial(&self) -> u16 {
        self.serial
    }
    /// Adapters place the packets of queue pairs.
    #[inline(always)]
    fn is_placed(&self) -> bool {
        self.kind == Kind::Roce
    }
    #[inline(always)]
    fn set_serial(&mut self, serial: u16) {
        self.serial = serial;
    }
    fn set_path(&mut self, path: Path) {
        // The other kinds, and packets that zBridge carries, use these bits themselves.
        let has_room = matches!(self.kind, Kind::Tcp | Kind::Udp | Kind::Light | Kind::Roce | Kind::Notification);
        let Some(path) = path.filter(|_| has_room && self.more & BRIDGED == 0) else { return };
        if self.kind == Kind::Tcp && self.more & SACK_COUNT == SACK_COUNT {
            // Two SACK blocks leave room: SACK is advice (RFC 2018, 8).
            self.more -= 1;
        }
        self.more |= PATH;
        self.extra[3] = self.extra[3] & ((1 << PATH_SHIFT) - 1) | u32::from(path) << PATH_SHIFT;
    }
    fn flow_number(&self) -> u32 {
        let flow = if self.kind == Kind::Notification { self.flow().reverse() } else { self.flow() };
        let ends = u64::from(flow.src.0) << 32 | u64::from(flow.dst.0);
        (mix64(ends ^ mix64(u64::from(flow.sport) << 16 | u64::from(flow.dport))) >> 35) as u32
    }
}
