//! A virtual machine: its sockets, served in turn, and its applications' messages, sent and expected.

use crate::adapter::Adapter;
use crate::deadlines::DelayLine;
use crate::packet::{Address, FlowKey, Kind, Packet};
use crate::ring::ShortQueue;
use crate::sockets::Sockets;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::tcp::{CacheEntry, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::roce::QueuePair;
use sluicenet_proto::transport::tcplight::Stream;
use sluicenet_proto::udp::{UdpReceiver, UdpSender};

/// A socket of a VM of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    /// The VM.
    pub vm: u8,
    /// The socket's number in the VM.
    pub index: u32,
}

/// The transport of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// A TCP connection.
    Tcp,
    /// Datagrams.
    Udp,
    /// A TCPlight connection.
    Light,
    /// A queue pair of RoCE.
    Roce,
}

impl Transport {
    /// The transport's name in records and scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Light => "tcplight",
            Transport::Roce => "roce",
        }
    }
}

/// The purpose of a flow; the records contain the application's own names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowLabel {
    /// Index of the flow's kind in the application's list of names.
    pub kind: u8,
    /// The query that the flow belongs to.
    pub query: Option<u64>,
}

/// A flow that ended, or its progress so far: a row of the record.
#[derive(Clone, Copy, Debug)]
pub struct FlowRecord {
    /// Unique in the run: the sender's host and a count.
    pub id: u64,
    /// The flow's purpose.
    pub label: FlowLabel,
    /// The flow's transport.
    pub transport: Transport,
    /// Sender.
    pub src: Address,
    /// Receiver.
    pub dst: Address,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Position of the flow's end in its socket's byte stream.
    pub offset: u64,
    /// Traffic class.
    pub priority: Priority,
    /// Bytes the application sent.
    pub bytes: u64,
    /// Time at which the flow was handed to the socket.
    pub start: Instant,
    /// Time at which the receiving application had all bytes.
    pub end: Option<Instant>,
    /// Bytes the receiving application had, as far as the sender knows.
    pub delivered: u64,
    /// Retransmission timeouts of the connection while this flow was its first unconfirmed message.
    pub timeouts: u32,
    /// Segments retransmitted in the same period.
    pub retransmissions: u32,
    /// Time spent waiting for the timeouts that fired.
    pub timeout_wait: Duration,
    /// Mean round-trip time above the smallest seen on the connection.
    pub queueing: Duration,
    /// Time the sender's link was paused in this traffic class; with several links that take turns, their mean.
    pub paused: Duration,
}

/// A message that was written and is not yet confirmed.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub id: u64,
    pub label: FlowLabel,
    pub tag: u64,
    pub start: Instant,
    pub begin: u64,
    pub end: u64,
    pub before: Before,
}

/// The connection's counters when a message was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    pub timeouts: u32,
    pub retransmissions: u32,
    pub timeout_wait: Duration,
    pub rtt_samples: u64,
    pub rtt_sum: Duration,
    pub paused: Duration,
}

/// A message that was announced and has not fully arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub tag: u64,
    pub begin: u64,
    pub end: u64,
    pub received: u64,
}

// Nearly all sockets are TCP: a box around it would cost every segment a miss to save the few others some bytes. The tag
// stands in front, not in a niche of a field that is never read otherwise.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
#[repr(u8)]
pub(crate) enum Body {
    Tcp(Tcp),
    Udp(UdpSender, UdpReceiver),
    /// `None` until the segment arrives that opens the connection.
    Light(Option<Stream>),
    Roce(Box<QueuePair>),
}

impl Body {
    pub fn transport(&self) -> Transport {
        match self {
            Body::Tcp(_) => Transport::Tcp,
            Body::Udp(..) => Transport::Udp,
            Body::Light(_) => Transport::Light,
            Body::Roce(_) => Transport::Roce,
        }
    }
}

/// A socket. Its first cache line has the fields that every segment touches, the tag of the transport included; a TCP
/// connection begins with the second line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Socket {
    pub flow: FlowKey,
    pub priority: Priority,
    /// Whether the socket is in the round of sockets with something to send.
    pub scheduled: bool,
    /// Whether the application closed the socket; it is removed when the last byte is confirmed.
    pub closing: bool,
    /// Deadline of the socket's entry in the timer heap.
    pub timer_at: Instant,
    /// Bytes that the application wrote and that found no room in the socket.
    pub pending: u64,
    pub received: u64,
    /// End position of the first message in the inbox; the highest number when none is awaited.
    pub next_end: u64,
    pub messages: Box<Messages>,
    pub body: Body,
}

const _: () = {
    assert!(core::mem::offset_of!(Socket, body) + align_of::<Body>() == 64);
    assert!(size_of::<Option<Socket>>() <= 64 + 512);
};

/// The messages of a socket's application, apart from the socket: most segments neither begin nor end one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages {
    /// Bytes of all messages so far.
    pub written: u64,
    /// Messages that were sent and are not yet confirmed.
    pub outbox: ShortQueue<Outgoing>,
    /// Messages that are awaited.
    pub inbox: ShortQueue<Incoming>,
}

/// A VM. The fields that every packet touches stand in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Guest {
    pub sockets: Sockets,
    /// Sockets with something to send, served in turn.
    pub ready: ShortQueue<u32>,
    /// Packets on their way from the VM's sockets to its port, and the datagram bytes among them.
    pub tx: DelayLine,
    pub tx_datagram_bytes: u32,
    /// The deadline set for the first of these packets.
    pub tx_deadline: Instant,
    /// UDP sockets whose bytes on the way to the port fill their buffers.
    pub parked: Vec<u32>,
    /// Saved state of closed connections, by peer.
    pub cache: BTreeMap<Address, CacheEntry>,
}

impl Default for Guest {
    fn default() -> Guest {
        Guest {
            sockets: Sockets::default(),
            tx: DelayLine::default(),
            tx_datagram_bytes: 0,
            tx_deadline: Instant::MAX,
            ready: ShortQueue::default(),
            parked: Vec::new(),
            cache: BTreeMap::new(),
        }
    }
}

impl Guest {
    /// Closes a socket for good.
    pub fn remove(&mut self, socket: u32) {
        self.sockets.remove(socket);
        self.ready.retain(|&r| r != socket);
        self.parked.retain(|&r| r != socket);
    }
}

impl Socket {
    pub fn new(flow: FlowKey, body: Body, priority: Priority) -> Socket {
        Socket {
            flow,
            priority,
            scheduled: false,
            closing: false,
            timer_at: Instant::MAX,
            pending: 0,
            received: 0,
            next_end: u64::MAX,
            messages: Box::default(),
            body,
        }
    }

    /// Adds an announced message.
    pub fn expect(&mut self, message: Incoming) {
        self.messages.inbox.push_back(message);
        self.next_end = self.next_end.min(message.end);
    }

    /// Takes the first message of the inbox if all of its bytes have arrived.
    pub fn take_complete(&mut self) -> Option<Incoming> {
        let message = *self.messages.inbox.front().filter(|m| m.end <= self.received)?;
        self.messages.inbox.pop_front();
        self.next_end = self.messages.inbox.front().map_or(u64::MAX, |m| m.end);
        Some(message)
    }

    /// Time that this socket's frames have been paused at the adapter.
    #[inline(never)]
    pub fn paused(&self, now: Instant, adapter: &Adapter) -> Duration {
        let kind = match self.body {
            Body::Tcp(_) => Kind::Tcp,
            Body::Udp(..) => Kind::Udp,
            Body::Light(_) => Kind::Light,
            Body::Roce(_) => Kind::Roce,
        };
        adapter.paused_time(now, self.priority, || Packet::of_flow(self.flow, kind))
    }

    /// The connection's current counters.
    pub fn before(&self, paused: Duration) -> Before {
        match &self.body {
            Body::Tcp(tcp) => {
                let s = tcp.stats();
                Before {
                    timeouts: s.timeouts,
                    retransmissions: s.retransmissions,
                    timeout_wait: s.timeout_wait,
                    rtt_samples: s.rtt_samples as u64,
                    rtt_sum: s.rtt_sum,
                    paused,
                }
            }
            Body::Roce(pair) => {
                let s = pair.stats();
                let (timeouts, retransmissions, timeout_wait) = (s.timeouts, s.retransmissions, s.timeout_wait);
                Before { timeouts, retransmissions, timeout_wait, paused, ..Before::default() }
            }
            Body::Udp(..) | Body::Light(_) => Before { paused, ..Before::default() },
        }
    }

    /// Records of the unconfirmed messages in their current state. Events that the connection counted since the last
    /// confirmation belong to the first message: the others wait for it, and each event counts once.
    pub fn unfinished(&self, paused: Duration) -> impl Iterator<Item = FlowRecord> {
        self.messages.outbox.iter().enumerate().map(move |(i, m)| {
            let so_far = match &self.body {
                Body::Tcp(tcp) => tcp.bytes_acked(),
                // The sender learns nothing before the message is complete.
                Body::Udp(..) | Body::Light(_) | Body::Roce(_) => m.begin,
            };
            let mut record = self.record(m, None, so_far.clamp(m.begin, m.end) - m.begin, paused);
            if i > 0 {
                (record.timeouts, record.retransmissions, record.timeout_wait) = (0, 0, Duration::ZERO);
            }
            record
        })
    }

    /// The record of a message of this socket.
    pub fn record(&self, m: &Outgoing, end: Option<Instant>, delivered: u64, paused: Duration) -> FlowRecord {
        let now = self.before(paused);
        let samples = now.rtt_samples - m.before.rtt_samples;
        let queueing = match &self.body {
            Body::Tcp(tcp) if samples > 0 => {
                let mean = (now.rtt_sum - m.before.rtt_sum).0 / samples;
                Duration(mean.saturating_sub(tcp.stats().rtt_min.0))
            }
            _ => Duration::ZERO,
        };
        FlowRecord {
            id: m.id,
            label: m.label,
            transport: self.body.transport(),
            src: self.flow.src,
            dst: self.flow.dst,
            ports: (self.flow.sport, self.flow.dport),
            offset: m.end,
            priority: self.priority,
            bytes: m.end - m.begin,
            start: m.start,
            end,
            delivered,
            timeouts: now.timeouts - m.before.timeouts,
            retransmissions: now.retransmissions - m.before.retransmissions,
            timeout_wait: now.timeout_wait - m.before.timeout_wait,
            queueing,
            paused: now.paused - m.before.paused,
        }
    }
}

/// The topic of message metadata, in the top byte of its third word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Topic {
    /// A message will come on this connection: end offset, tag, begin offset.
    Announce = 1,
    /// A message has arrived in full: end offset, time, bytes.
    Done = 2,
    /// Words from an application.
    App = 3,
    /// The peer's queue pair has ended.
    Disconnect = 4,
}

const TOPIC_SHIFT: u32 = 56;
/// In an announcement: the connection was open before the clock started.
pub(crate) const ESTABLISHED: u64 = 1 << 55;
/// In an announcement: a flow of datagrams.
pub(crate) const DATAGRAMS: u64 = 1 << 54;
/// In an announcement: a connection of TCPlight.
pub(crate) const LIGHT: u64 = 1 << 53;
/// In an announcement: a queue pair.
pub(crate) const QUEUE_PAIR: u64 = LIGHT | DATAGRAMS;
/// Position of the priority of an announced connection.
pub(crate) const PRIORITY_SHIFT: u32 = 50;
/// Bits of an offset or a word in the third word of message metadata.
pub(crate) const METADATA_WORD: u64 = (1 << PRIORITY_SHIFT) - 1;

pub(crate) fn metadata(flow: FlowKey, topic: Topic, words: [u64; 3]) -> Packet {
    Packet::metadata(flow, [words[0], words[1], words[2] | (topic as u64) << TOPIC_SHIFT])
}

pub(crate) fn topic(words: &[u64; 3]) -> Option<Topic> {
    match words[2] >> TOPIC_SHIFT {
        1 => Some(Topic::Announce),
        2 => Some(Topic::Done),
        3 => Some(Topic::App),
        4 => Some(Topic::Disconnect),
        _ => None,
    }
}
