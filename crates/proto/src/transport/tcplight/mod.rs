//! TCPlight: a stream between two applications over a network that brings every frame once and in order (Crisan 2014, 5.3.2).
//!
//! TCPlight keeps these parts of TCP: connections, ports, and the cutting of a stream into segments. It has no
//! acknowledgements, no retransmissions, no window that probes the network, and no timers. zCredit and zBridge below do
//! their work.
//!
//! Points that the source leaves open, or where we differ:
//!
//! - **Each connection has a limit of its own**, which its receiver moves as the application reads. In the source, a
//!   full socket stops all reception of its machine. Stalled applications are left to a collector that was not built. A
//!   program that reads one of its connections before another would stop for ever.
//! - **Every segment says where it stands in its stream.** Below, frames may come twice when a hypervisor was
//!   restarted. Bytes received before are left out. A gap, which must not happen, ends the connection by [`End::Gap`].

#[cfg(test)]
mod tests;

use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::tcplight::Flags;

/// The most that a receiver lets a sender be ahead: half of the numbers there are, less one.
pub const BUFFER_MAX: u32 = (1 << 31) - 1;

/// A segment without its ports and its payload; of the payload it has only the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The segment's flags.
    pub flags: Flags,
    /// Number of the connection.
    pub connection: u32,
    /// Position of the payload in the stream.
    pub offset: u32,
    /// Position up to which the other end may send.
    pub limit: u32,
    /// Bytes of payload.
    pub len: u32,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Both ends have closed the connection, or it is open.
    #[default]
    Orderly,
    /// The other end does not have the connection any more.
    Reset,
    /// This end gave the connection up.
    Aborted,
    /// Bytes are missing that the network below had promised to bring.
    Gap,
    /// The other end broke the protocol.
    Violation,
}

/// Changes that a segment has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The connection is open.
    pub connected: bool,
    /// Number of new bytes at the end of the payload, which can be read.
    pub fresh: u32,
    /// More bytes may be sent.
    pub writable: bool,
    /// The other end sends no more bytes.
    pub peer_closed: bool,
    /// The connection is gone.
    pub closed: bool,
    /// The other end probes the connection: to be [answered](Stream::answer_probe).
    pub asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A SYN is to be sent, or was.
    Opening,
    Open,
    Closed,
}

/// One end of a connection. It counts bytes; the caller stores them. Positions have 64 bits and begin at 0.
#[derive(Clone, Debug)]
pub struct Stream {
    state: State,
    end: End,
    connection: u32,
    buffer: u32,
    /// Bytes sent, bytes that may be sent, and bytes that the application wrote.
    sent: u64,
    may_send: u64,
    written: u64,
    /// Bytes received, bytes read, and bytes that the other end was allowed to send.
    received: u64,
    read: u64,
    allowed: u64,
    /// Flags to send next, besides data.
    pending_flags: Flags,
    /// `closing`: the application writes no more. `fin_sent`: this end has sent its FIN. `fin_received`: the other
    /// end's FIN has come.
    closing: bool,
    fin_sent: bool,
    fin_received: bool,
}

impl Stream {
    fn new(state: State, connection: u32, buffer: u32, may_send: u64, pending_flags: Flags) -> Stream {
        assert!((1..=BUFFER_MAX).contains(&buffer));
        Stream {
            state,
            end: End::Orderly,
            connection,
            buffer,
            sent: 0,
            may_send,
            written: 0,
            received: 0,
            read: 0,
            allowed: 0,
            pending_flags,
            closing: false,
            fin_sent: false,
            fin_received: false,
        }
    }

    /// Opens a connection with a receive buffer of `buffer` bytes. `connection` should be random, so that leftovers of
    /// an earlier connection between the same ports are not taken for this connection's.
    pub fn connect(connection: u32, buffer: u32) -> Stream {
        Stream::new(State::Opening, connection, buffer, 0, Flags::SYN)
    }

    /// Accepts the connection that the segment `syn` opens; `None` when it does not open one.
    pub fn accept(syn: &Segment, buffer: u32) -> Option<Stream> {
        let opens = syn.flags == Flags::SYN && syn.offset == 0 && syn.len == 0 && syn.limit <= BUFFER_MAX;
        let pending_flags = Flags::SYN | Flags::ANSWER;
        opens.then(|| Stream::new(State::Open, syn.connection, buffer, u64::from(syn.limit), pending_flags))
    }

    /// Returns an open connection with equal buffers at both ends.
    pub fn established(connection: u32, buffer: u32) -> Stream {
        let mut stream = Stream::new(State::Open, connection, buffer, u64::from(buffer), Flags::default());
        stream.allowed = u64::from(buffer);
        stream
    }

    /// Returns the answer to a segment of an unknown connection, or `None` for a segment that is itself such an answer.
    pub fn refuse(segment: &Segment) -> Option<Segment> {
        let refusal = Segment { flags: Flags::RESET, connection: segment.connection, ..Segment::default() };
        (!segment.flags.contains(Flags::RESET)).then_some(refusal)
    }

    /// Whether the connection is open.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }
    /// Whether the connection is gone and has no flags left to send.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && self.pending_flags == Flags::default()
    }
    /// Whether the application writes no more.
    pub fn is_closing(&self) -> bool {
        self.closing
    }
    /// The connection's number, chosen by the end that opened it.
    pub fn connection(&self) -> u32 {
        self.connection
    }
    /// How the connection ended.
    pub fn end(&self) -> End {
        self.end
    }
    /// Whether the other end sends no more bytes.
    pub fn is_peer_closed(&self) -> bool {
        self.fin_received
    }
    /// Bytes sent and received since the connection was opened.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent, self.received)
    }
    /// Bytes that the other end takes beyond the sent ones.
    pub fn room(&self) -> u64 {
        if self.state == State::Open { self.may_send - self.sent } else { 0 }
    }
    /// Returns a probe, a segment without news that asks whether the other end still has the connection. The probe
    /// changes nothing there. An end with the connection [answers](Stream::answer_probe) it; an end without it
    /// [refuses](Stream::refuse) it.
    pub fn probe(&self) -> Option<Segment> {
        let (offset, limit) = (self.sent as u32, self.received as u32);
        let probe = Segment { connection: self.connection, offset, limit, ..Segment::default() };
        (self.state == State::Open && self.pending_flags == Flags::default()).then_some(probe)
    }
    /// Returns the answer to a [probe](Stream::probe). The answer is no probe itself.
    pub fn answer_probe(&self) -> Option<Segment> {
        self.probe().map(|probe| Segment { flags: Flags::ANSWER, ..probe })
    }
    /// Lets the other end be `buffer` bytes ahead from now on. Earlier permissions remain, so a smaller buffer takes
    /// effect when enough bytes were read.
    pub fn set_buffer(&mut self, buffer: u32) {
        assert!((1..=BUFFER_MAX).contains(&buffer));
        self.buffer = buffer;
    }
    /// The receive buffer in bytes: how far the other end may be ahead.
    pub fn buffer(&self) -> u32 {
        self.buffer
    }
    /// Most bytes that may have to be kept for the application before it reads again: unread bytes and bytes that may
    /// still come.
    pub fn promised(&self) -> u64 {
        match self.fin_received || self.state == State::Closed {
            true => self.readable(),
            false => self.limit() - self.read,
        }
    }
    /// Bytes written and not sent.
    pub fn pending(&self) -> u64 {
        self.written - self.sent
    }
    /// Bytes that can be read.
    pub fn readable(&self) -> u64 {
        self.received - self.read
    }

    /// The application writes `bytes`.
    pub fn write(&mut self, bytes: u64) {
        assert!(!self.closing, "written after it was closed");
        self.written += bytes;
    }

    /// The application reads up to `bytes`; returns how many.
    pub fn read(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.readable());
        self.read += bytes;
        bytes
    }

    /// The application writes no more. Written bytes are still sent.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Gives the connection up at once. Unsent bytes are not sent.
    pub fn abort(&mut self) {
        self.give_up(End::Aborted);
    }

    fn give_up(&mut self, end: End) {
        if self.state != State::Closed {
            // The other end does not know a connection whose first segment was not sent.
            self.pending_flags = if self.pending_flags.contains(Flags::SYN) { Flags::default() } else { Flags::RESET };
            (self.state, self.end) = (State::Closed, end);
        }
    }

    fn limit(&self) -> u64 {
        self.allowed.max(self.read + u64::from(self.buffer))
    }

    /// Whether the other end has to learn a new limit: this end has room for half a buffer more than it announced.
    pub fn owes_limit(&self) -> bool {
        !self.fin_received && self.limit() - self.allowed >= u64::from(self.buffer / 2 + self.buffer % 2)
    }

    fn owes_fin(&self) -> bool {
        self.closing && !self.fin_sent && self.sent == self.written
    }

    /// Whether there is something to send.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        if self.pending_flags != Flags::default() {
            return true;
        }
        let data = self.sent < self.written.min(self.may_send);
        self.state == State::Open && (data || self.owes_fin() || self.owes_limit())
    }

    /// The next segment, with at most `mss` bytes of payload, at least 1.
    pub fn poll_transmit(&mut self, mss: u32) -> Option<Segment> {
        if !self.wants_transmit() {
            return None;
        }
        let pending = core::mem::take(&mut self.pending_flags);
        if pending == Flags::RESET {
            return Some(Segment { flags: pending, connection: self.connection, ..Segment::default() });
        }
        let is_syn = pending.contains(Flags::SYN);
        let allowed = self.written.min(self.may_send) - self.sent;
        let len = if is_syn { 0 } else { allowed.min(u64::from(mss)) as u32 };
        let (offset, limit) = (self.sent as u32, self.limit());
        self.sent += u64::from(len);
        self.allowed = limit;
        let mut flags = pending;
        if !is_syn && self.owes_fin() {
            flags = flags | Flags::FIN;
            self.fin_sent = true;
            self.end_if_both();
        }
        Some(Segment { flags, connection: self.connection, offset, limit: limit as u32, len })
    }

    fn end_if_both(&mut self) {
        if self.fin_sent && self.fin_received {
            self.state = State::Closed;
        }
    }

    /// Handles a segment for this connection's ports. Returns `None` for a segment of another connection, which is to
    /// be [refused](Stream::refuse).
    #[inline]
    pub fn receive(&mut self, segment: &Segment) -> Option<Received> {
        if segment.connection != self.connection {
            return None;
        }
        let mut heard = Received::default();
        if self.state == State::Closed {
            return Some(heard);
        }
        if segment.flags.contains(Flags::RESET) {
            (self.state, self.end, self.pending_flags) = (State::Closed, End::Reset, Flags::default());
            heard.closed = true;
            return Some(heard);
        }
        if segment.flags.contains(Flags::SYN) {
            // A repeated SYN is the network's doing.
            let answers = segment.flags.contains(Flags::ANSWER);
            if self.state == State::Opening && answers {
                self.state = State::Open;
                heard.connected = true;
            } else if self.state == State::Opening {
                return Some(self.violated(End::Violation));
            }
        } else if self.state == State::Opening {
            return Some(self.violated(End::Violation));
        }
        let (sent, may_send) = (self.sent, self.may_send);
        self.may_send = self.may_send.max(sent.saturating_add_signed(ahead(segment.limit, sent)));
        heard.writable = self.may_send > may_send;
        // A segment without payload carries a new limit, which is above all bytes sent here, or flags. Without either,
        // it is a probe.
        heard.asked = segment.flags == Flags::default() && segment.len == 0 && ahead(segment.limit, sent) <= 0;
        self.take_payload(segment, heard)
    }

    fn take_payload(&mut self, segment: &Segment, mut heard: Received) -> Option<Received> {
        let begin = ahead(segment.offset, self.received);
        let end = begin + i64::from(segment.len);
        if begin > 0 {
            return Some(self.violated(End::Gap));
        }
        if end > 0 {
            let end = self.received + end as u64;
            if self.fin_received || end > self.allowed {
                return Some(self.violated(End::Violation));
            }
            heard.fresh = (end - self.received) as u32;
            self.received = end;
        }
        if segment.flags.contains(Flags::FIN) && !self.fin_received {
            if end < 0 {
                return Some(self.violated(End::Violation));
            }
            self.fin_received = true;
            heard.peer_closed = true;
            self.end_if_both();
            heard.closed = self.state == State::Closed;
        }
        Some(heard)
    }

    fn violated(&mut self, end: End) -> Received {
        self.give_up(end);
        Received { closed: true, ..Received::default() }
    }
}

/// Returns how far a number on the wire is ahead of a position; negative if it is behind.
fn ahead(number: u32, position: u64) -> i64 {
    i64::from(SeqNumber(number).since(SeqNumber(position as u32)))
}
