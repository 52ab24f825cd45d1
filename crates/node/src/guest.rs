//! A virtual machine: sockets, served in turn, and what its applications sent and expect.

use crate::packet::{Address, FlowKey, Packet};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::tcp::{CacheEntry, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::udp::{UdpReceiver, UdpSender};

/// A socket of a VM of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    /// The VM.
    pub vm: u8,
    /// Its number there.
    pub index: u32,
}

/// What a flow is for; the application's own names stand in the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowLabel {
    /// Index of the flow's kind in the application's list of names.
    pub kind: u8,
    /// The query it belongs to.
    pub query: Option<u64>,
}

/// A flow that ended, or how far it got: the row of the record.
#[derive(Clone, Copy, Debug)]
pub struct FlowRecord {
    /// Unique in the run: the sender's host and a count.
    pub id: u64,
    /// What it was for.
    pub label: FlowLabel,
    /// TCP (true) or UDP.
    pub tcp: bool,
    /// Sender.
    pub src: Address,
    /// Receiver.
    pub dst: Address,
    /// Traffic class.
    pub priority: Priority,
    /// Bytes the application sent.
    pub bytes: u64,
    /// When it was handed to the socket.
    pub start: Instant,
    /// When the receiving application had all of it.
    pub end: Option<Instant>,
    /// Bytes the receiving application had, as far as the sender knows.
    pub delivered: u64,
    /// Retransmission timeouts while it lasted.
    pub timeouts: u32,
    /// Segments sent again.
    pub retransmissions: u32,
    /// Time spent waiting for the timeouts that fired.
    pub timeout_wait: Duration,
    /// Mean round-trip time above the smallest seen on the connection.
    pub queueing: Duration,
    /// Time the sender's adapter was held in this traffic class.
    pub paused: Duration,
}

/// A message that was written and not yet confirmed.
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

/// What the connection had counted when a message was written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    pub timeouts: u32,
    pub retransmissions: u32,
    pub timeout_wait: Duration,
    pub rtt_samples: u64,
    pub rtt_sum: Duration,
    pub paused: Duration,
}

/// A message that was announced and has not arrived in full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub tag: u64,
    pub begin: u64,
    pub end: u64,
    pub received: u64,
}

// Nearly all sockets are TCP: a box around it would cost every segment a miss to save the few others some bytes.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Tcp(Tcp),
    Udp(UdpSender, UdpReceiver),
}

/// A socket and what its application is waiting for.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub flow: FlowKey,
    pub body: Body,
    pub priority: Priority,
    /// Whether it stands in the round of those with something to send.
    pub scheduled: bool,
    /// Whether the application closed it and it goes when the last byte is confirmed.
    pub closing: bool,
    /// Deadline of its entry in the timer heap.
    pub timer_at: Instant,
    /// Bytes the application wrote that the socket had no room for.
    pub pending: u64,
    pub written: u64,
    pub received: u64,
    pub outbox: VecDeque<Outgoing>,
    pub inbox: VecDeque<Incoming>,
}

/// A VM.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Guest {
    /// Sockets found lately, each at a place its key tells, so that the next segment of a flow finds its socket in one
    /// cache line.
    recent: [(u64, u32); RECENT],
    pub sockets: Vec<Option<Socket>>,
    /// Sockets with something to send, served in turn.
    pub ready: VecDeque<u32>,
    free: Vec<u32>,
    /// By peer address, peer port and own port.
    index: HashMap<u64, u32, FxBuildHasher>,
    /// UDP sockets whose bytes in the VM's transmit path fill their buffer.
    pub parked: Vec<u32>,
    /// What is remembered of closed connections, by peer.
    pub cache: BTreeMap<Address, CacheEntry>,
}

const RECENT: usize = 4;
/// No socket.
const NOWHERE: u32 = u32::MAX;

impl Default for Guest {
    fn default() -> Guest {
        Guest {
            recent: [(0, NOWHERE); RECENT],
            sockets: Vec::new(),
            ready: VecDeque::new(),
            free: Vec::new(),
            index: HashMap::default(),
            parked: Vec::new(),
            cache: BTreeMap::new(),
        }
    }
}

#[inline(always)]
fn recent_place(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62) as usize
}

fn index_key(flow: &FlowKey) -> u64 {
    (flow.dst.to_bits() as u64) << 32 | (flow.dport as u64) << 16 | flow.sport as u64
}

impl Guest {
    /// The socket of `flow`, seen from this end.
    #[inline(always)]
    pub fn find(&mut self, flow: &FlowKey) -> Option<u32> {
        let key = index_key(flow);
        let place = &mut self.recent[recent_place(key)];
        if place.0 != key || place.1 == NOWHERE {
            *place = (key, *self.index.get(&key)?);
        }
        Some(place.1)
    }

    /// The socket of `flow` if it was found lately.
    #[inline(always)]
    pub fn find_recent(&self, flow: &FlowKey) -> Option<u32> {
        let key = index_key(flow);
        let place = self.recent[recent_place(key)];
        (place.0 == key && place.1 != NOWHERE).then_some(place.1)
    }

    pub fn insert(&mut self, socket: Socket) -> u32 {
        let key = index_key(&socket.flow);
        let at = match self.free.pop() {
            Some(at) => {
                self.sockets[at as usize] = Some(socket);
                at
            }
            None => {
                // Sockets are large and most guests have few: room for half as many again, not for twice as many.
                if self.sockets.len() == self.sockets.capacity() {
                    self.sockets.reserve_exact((self.sockets.len() / 2).max(1));
                }
                self.sockets.push(Some(socket));
                self.sockets.len() as u32 - 1
            }
        };
        self.index.insert(key, at);
        at
    }

    pub fn remove(&mut self, at: u32) {
        if let Some(s) = self.sockets[at as usize].take() {
            let key = index_key(&s.flow);
            self.index.remove(&key);
            if self.recent[recent_place(key)].0 == key {
                self.recent[recent_place(key)].1 = NOWHERE;
            }
            self.ready.retain(|&r| r != at);
            self.parked.retain(|&r| r != at);
            self.free.push(at);
        }
    }

    pub fn get(&mut self, at: u32) -> Option<&mut Socket> {
        self.sockets.get_mut(at as usize)?.as_mut()
    }
}

impl Socket {
    pub fn new(flow: FlowKey, body: Body, priority: Priority) -> Socket {
        Socket {
            flow,
            body,
            priority,
            scheduled: false,
            closing: false,
            timer_at: Instant::MAX,
            pending: 0,
            written: 0,
            received: 0,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
        }
    }

    /// What the connection has counted so far.
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
            Body::Udp(..) => Before { paused, ..Before::default() },
        }
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
            tcp: matches!(self.body, Body::Tcp(_)),
            src: self.flow.src,
            dst: self.flow.dst,
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

/// What a note between two servers is about, in the top byte of its third word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Topic {
    /// A message will come on this connection: end offset, tag, begin offset.
    Announce = 1,
    /// A message has arrived in full: end offset, time, bytes.
    Done = 2,
    /// Words of an application.
    App = 3,
}

const TOPIC_SHIFT: u32 = 56;
/// In an announcement: the connection was open before the clock started.
pub(crate) const ESTABLISHED: u64 = 1 << 55;
/// In an announcement: a flow of datagrams.
pub(crate) const DATAGRAMS: u64 = 1 << 54;
/// Where the priority of an announced connection stands.
pub(crate) const PRIORITY_SHIFT: u32 = 51;
/// Bits of an offset or a word in a note's third word.
pub(crate) const NOTE_WORD: u64 = (1 << PRIORITY_SHIFT) - 1;

pub(crate) fn note(flow: FlowKey, topic: Topic, words: [u64; 3]) -> Packet {
    Packet::note(flow, [words[0], words[1], words[2] | (topic as u64) << TOPIC_SHIFT])
}

pub(crate) fn topic(words: &[u64; 3]) -> Option<Topic> {
    match words[2] >> TOPIC_SHIFT {
        1 => Some(Topic::Announce),
        2 => Some(Topic::Done),
        3 => Some(Topic::App),
        _ => None,
    }
}
