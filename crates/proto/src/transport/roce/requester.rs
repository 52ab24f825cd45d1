//! The requester of a queue pair: cuts messages into packets, and goes back to the first packet that is missing.

use super::{Config, Data, MESSAGE_MAX, OUTSTANDING_MAX, Reply, ahead, wire};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// A message that was begun and is not acknowledged as a whole.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// Its first packet.
    first: u64,
    /// The packet after its last one.
    end: u64,
    /// Offset of its first byte.
    begin: u64,
    len: u64,
}

/// Events of a requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent again.
    pub retransmissions: u32,
    /// Negative acknowledgments that moved the requester back.
    pub sequence_errors: u32,
    /// Timeouts.
    pub timeouts: u32,
    /// Time spent waiting for these timeouts.
    pub timeout_wait: Duration,
}

/// The sending half of a queue pair. Packets are counted with 64 bits; 24 of them travel.
#[derive(Clone, Debug)]
pub struct Requester {
    /// Writes that were not begun, in bytes.
    writes: VecDeque<u64>,
    messages: VecDeque<Message>,
    /// The first packet that is not acknowledged.
    unacknowledged: u64,
    /// The next packet to send.
    next: u64,
    /// The packet after the last one that was ever sent.
    high: u64,
    /// The packet and the offset behind all messages that were begun.
    begun: (u64, u64),
    /// When the packets in flight are given up; the last instant if there are none.
    deadline: Instant,
    stats: Stats,
}

impl Default for Requester {
    fn default() -> Requester {
        Requester {
            writes: VecDeque::new(),
            messages: VecDeque::new(),
            unacknowledged: 0,
            next: 0,
            high: 0,
            begun: (0, 0),
            deadline: Instant::MAX,
            stats: Stats::default(),
        }
    }
}

impl Requester {
    /// The application writes `bytes`, as one message if it is not too long.
    pub fn post(&mut self, bytes: u64) {
        if bytes > 0 {
            self.writes.push_back(bytes);
        }
    }

    /// Its events so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Whether everything written has been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.messages.is_empty() && self.writes.is_empty()
    }

    /// Whether there is a packet to send.
    pub fn wants_transmit(&self) -> bool {
        let has_packet = self.next < self.begun.0 || !self.writes.is_empty();
        has_packet && self.next - self.unacknowledged < OUTSTANDING_MAX
    }

    /// When the packets in flight are given up.
    pub fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// The next packet.
    pub fn poll_transmit(&mut self, config: &Config, now: Instant) -> Option<Data> {
        if !self.wants_transmit() {
            return None;
        }
        if self.next == self.begun.0 {
            self.begin_message(config)?;
        }
        let at = self.messages.partition_point(|m| m.end <= self.next);
        let message = *self.messages.get(at)?;
        let (psn, mtu) = (self.next, u64::from(config.mtu));
        let within = (psn - message.first) * mtu;
        let is_last = psn + 1 == message.end;
        if psn < self.high {
            self.stats.retransmissions += 1;
        }
        if psn == self.unacknowledged {
            self.deadline = now.saturating_add(config.timeout);
        }
        self.next += 1;
        self.high = self.high.max(self.next);
        Some(Data {
            psn: wire(psn),
            is_first: within == 0,
            is_last,
            ack_request: is_last || self.next.is_multiple_of(u64::from(config.ack_every)),
            len: (message.len - within).min(mtu) as u16,
            offset: message.begin + within,
            message: message.len as u32,
        })
    }

    /// Begins the next message.
    fn begin_message(&mut self, config: &Config) -> Option<()> {
        let write = self.writes.front_mut()?;
        let len = (*write).min(MESSAGE_MAX);
        *write -= len;
        if *write == 0 {
            self.writes.pop_front();
        }
        let (first, begin) = self.begun;
        let end = first + len.div_ceil(u64::from(config.mtu));
        self.messages.push_back(Message { first, end, begin, len });
        self.begun = (end, begin + len);
        Some(())
    }

    /// An acknowledgment came in. Returns whether it was about packets that were sent.
    pub fn receive(&mut self, config: &Config, now: Instant, reply: &Reply) -> bool {
        let ahead = ahead(self.unacknowledged, reply.psn);
        let Ok(distance) = u64::try_from(ahead) else { return false };
        let psn = self.unacknowledged + distance;
        if psn >= self.high {
            // No responder acknowledges a packet that was never sent: a ghost of another connection (9.7.5.1.1).
            return false;
        }
        if reply.is_sequence_error {
            self.acknowledge(config, now, psn);
            if psn < self.next {
                self.next = psn;
                self.stats.sequence_errors += 1;
            }
        } else {
            self.acknowledge(config, now, psn + 1);
        }
        true
    }

    /// All packets before `psn` have arrived.
    fn acknowledge(&mut self, config: &Config, now: Instant, psn: u64) {
        self.unacknowledged = psn;
        self.next = self.next.max(psn);
        while self.messages.front().is_some_and(|m| m.end <= psn) {
            self.messages.pop_front();
        }
        self.deadline = if psn == self.high { Instant::MAX } else { now.saturating_add(config.timeout) };
    }

    /// The deadline may have passed: everything in flight is sent again.
    pub fn handle_timeout(&mut self, config: &Config, now: Instant) {
        if now < self.deadline {
            return;
        }
        self.stats.timeouts += 1;
        self.stats.timeout_wait += config.timeout;
        self.next = self.unacknowledged;
        self.deadline = now.saturating_add(config.timeout);
    }
}
