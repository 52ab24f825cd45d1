//! TCP tunnels of a server (Crisan 2014, 5.2.3): all frames from the machines of one server to those of another are the
//! bytes of one TCP connection of their hypervisors. The frames' own transport does not matter.
//!
//! - A frame goes into a tunnel when all bytes of the frame before it have found room in the send buffer. A frame without
//!   room stops the port it came from.
//! - Frames are taken out while the vSwitch has room for them. Without room the connection is not read, and its window
//!   closes.
//! - A server with frames to send opens the connection; both may open it at once. A connection that ended is not
//!   repaired: its unacknowledged frames are handed back, and the next frame opens another connection. The same happens
//!   when the other end forgot the connection because it was restarted.
//! - A server that did not answer is silent until it does: a wait for it would stop all other traffic. The limit on
//!   unanswered transmissions is a time (the user timeout of RFC 9293, 3.10.8). It is not a number of retransmissions,
//!   each of which may wait for a minute. A server that answers and takes nothing is not given up: it stops its tunnel,
//!   and nothing is lost.
//!
//! Both worlds have this box. In simulated servers it is between the vSwitch and the adapter, and segments carry no
//! bytes. In real servers it is between the switch and the link. `N` names a server; a [`Carrier`] holds the bytes.

mod bytes;

pub use bytes::{Bytes, Unacknowledged};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use sluicenet_proto::tcp::{self, End, State, Tcp, Transmit};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::tcp::{Flags, Segment};

/// The port of both ends; there is one connection between two servers.
pub const PORT: u16 = 50_000;

/// A stream that cannot be read any further: its next bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The bytes of a tunnel, in both directions: TCP itself knows only positions.
pub trait Carrier {
    /// A frame put into the tunnel.
    type Frame;
    /// A frame taken out of the tunnel.
    type Arrived;
    /// Information that must be passed beside the segments.
    type Beside;

    /// Puts a frame into the stream; returns its bytes there.
    fn put(&mut self, frame: Self::Frame) -> (u64, Self::Beside);
    /// The other end has the first `upto` bytes of the stream.
    fn acknowledged(&mut self, upto: u64);
    /// Stores bytes of the other end's stream, from `offset` on.
    fn store(&mut self, offset: u64, bytes: &[u8]);
    /// Length of the next frame, once all its bytes are among the first `readable` bytes that were not taken yet.
    ///
    /// # Errors
    /// When the next bytes are no frame.
    fn next(&self, readable: u64) -> Result<Option<u64>, Broken>;
    /// Takes out the frame of `len` bytes that [`Carrier::next`] found.
    fn take(&mut self, len: u64) -> Self::Arrived;
}

/// Counters of tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounters {
    /// Segments sent.
    pub segments_sent: u64,
    /// Segments received.
    pub segments_received: u64,
    /// Segments retransmitted.
    pub resent: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Connections that ended.
    pub ended: u64,
    /// Streams that contained bytes that are no frame.
    pub broken: u64,
}

/// A transmission that the other end has not answered.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    since: Instant,
    /// Time of the last check. Time during which the link took nothing, or nothing was checked here, does not count.
    looked: Instant,
}

impl Unanswered {
    fn new(now: Instant) -> Unanswered {
        Unanswered { since: now, looked: now }
    }
}

/// Number of checks until a server is given up.
const LOOKS: u64 = 4;

#[derive(Debug)]
struct Peer<N, C> {
    name: N,
    tcp: Tcp,
    carrier: C,
    /// Bytes of the last frame that found no room in the send buffer.
    pending: u64,
    is_active: bool,
    is_silent: bool,
    unanswered: Option<Unanswered>,
    /// The tunnel's deadline in `timers`.
    armed_at: Instant,
}

/// A server's tunnels.
#[derive(Debug)]
pub struct Tunnels<N, C> {
    tcp: tcp::Config,
    /// Longest time for which a server may leave a transmission unanswered.
    user_timeout: Duration,
    peers: Vec<Peer<N, C>>,
    by_name: BTreeMap<N, usize>,
    /// Slots of tunnels to servers that are gone.
    free: Vec<usize>,
    /// Tunnels that may have something to send, in turn.
    active: VecDeque<usize>,
    /// Tunnels that may have frames to be read.
    unread: Vec<usize>,
    /// Tunnels whose connections ended.
    ended: Vec<usize>,
    /// Deadlines not yet reported to the caller.
    timers: Vec<(Instant, usize)>,
    /// Counters of ended connections, and of events beside connections.
    before: TunnelCounters,
}

impl<N: Copy + Ord, C: Carrier> Tunnels<N, C> {
    /// No tunnels yet. A server that answers nothing for `user_timeout` is given up.
    pub fn new(tcp: tcp::Config, user_timeout: Duration) -> Tunnels<N, C> {
        Tunnels {
            tcp,
            user_timeout,
            peers: Vec::new(),
            by_name: BTreeMap::new(),
            free: Vec::new(),
            active: VecDeque::new(),
            unread: Vec::new(),
            ended: Vec::new(),
            timers: Vec::new(),
            before: TunnelCounters::default(),
        }
    }

    /// The parameters of the tunnels' TCP.
    pub fn tcp(&self) -> &tcp::Config {
        &self.tcp
    }
    /// The slot of the tunnel to a server.
    pub fn find(&self, name: N) -> Option<usize> {
        self.by_name.get(&name).copied()
    }
    /// The server at the tunnel's other end, and the carrier of the tunnel's bytes.
    pub fn peer(&self, at: usize) -> (N, &C) {
        (self.peers[at].name, &self.peers[at].carrier)
    }
    /// The carrier of a tunnel's bytes.
    pub fn carrier_mut(&mut self, at: usize) -> &mut C {
        &mut self.peers[at].carrier
    }
    /// Number of servers with a tunnel.
    pub fn servers(&self) -> usize {
        self.by_name.len()
    }
    /// The carrier of each tunnel's bytes.
    pub fn carriers(&self) -> impl Iterator<Item = &C> {
        self.peers.iter().map(|peer| &peer.carrier)
    }
    /// Whether a tunnel may have something to send.
    pub fn has_output(&self) -> bool {
        !self.active.is_empty()
    }
    /// Whether a tunnel may have frames to be read.
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }
    /// Whether a tunnel takes another frame.
    pub fn has_room(&self, at: usize) -> bool {
        self.peers[at].pending == 0
    }
    /// Whether the server left the last transmission unanswered.
    pub fn is_silent(&self, at: usize) -> bool {
        self.peers[at].is_silent
    }
    /// Counters of all tunnels together.
    pub fn counters(&self) -> TunnelCounters {
        self.peers.iter().fold(self.before, |sum, peer| add(sum, &peer.tcp))
    }

    /// Adds the tunnel to another server, with a connection that is open or waits to be opened.
    pub fn add(&mut self, name: N, tcp: Tcp, carrier: C) -> usize {
        let peer = Peer {
            name,
            tcp,
            carrier,
            pending: 0,
            is_active: false,
            is_silent: false,
            unanswered: None,
            armed_at: Instant::MAX,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.peers[at] = peer;
                at
            }
            None => {
                self.peers.push(peer);
                self.peers.len() - 1
            }
        };
        self.by_name.insert(name, at);
        at
    }

    /// Removes the tunnel to a server that is gone, without a message to that server. The slot is free for another
    /// tunnel, and holds `empty` until then. Returns the old carrier with its contents.
    pub fn remove(&mut self, at: usize, empty: C) -> C {
        let carrier = self.renew(at, 0, empty);
        self.peers[at].is_active = false;
        self.by_name.remove(&self.peers[at].name);
        self.active.retain(|&other| other != at);
        self.unread.retain(|&other| other != at);
        self.ended.retain(|&other| other != at);
        self.timers.retain(|timer| timer.1 != at);
        self.free.push(at);
        carrier
    }

    /// Opens the connection unless it is open or opening.
    pub fn open(&mut self, now: Instant, at: usize, iss: impl FnOnce() -> u32) {
        if self.peers[at].tcp.state() == State::Listen {
            self.peers[at].tcp = Tcp::connect(&self.tcp, now, iss(), None);
            self.touch(at);
        }
    }

    /// Notes an event at a tunnel: the tunnel may have something to send, now or later.
    fn touch(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if !core::mem::replace(&mut peer.is_active, true) {
            self.active.push_back(at);
        }
        self.arm(at);
    }

    fn arm(&mut self, at: usize) {
        let user_timeout = self.user_timeout;
        let peer = &mut self.peers[at];
        let look = peer.unanswered.filter(|_| user_timeout != Duration::MAX);
        let look = look.map(|unanswered| unanswered.looked + Duration(user_timeout.0 / LOOKS));
        // A timer that is too early costs one check; setting it anew with every segment would cost more.
        if let Some(deadline) = peer.tcp.poll_timeout().into_iter().chain(look).min()
            && deadline < peer.armed_at
        {
            peer.armed_at = deadline;
            self.timers.push((deadline, at));
        }
    }

    /// Puts a frame into a tunnel that [has room](Tunnels::has_room); returns the information to pass beside the bytes.
    pub fn send(&mut self, now: Instant, at: usize, frame: C::Frame) -> C::Beside {
        let peer = &mut self.peers[at];
        assert_eq!(peer.pending, 0, "a frame goes in when the one before it is in");
        let (len, beside) = peer.carrier.put(frame);
        peer.pending = len;
        self.push(now, at);
        beside
    }

    /// Moves the rest of a frame into the send buffer.
    fn push(&mut self, now: Instant, at: usize) {
        let peer = &mut self.peers[at];
        if peer.pending > 0 {
            peer.pending -= peer.tcp.send(&self.tcp, now, peer.pending);
        }
        self.touch(at);
    }

    /// The next segment to send, and its tunnel.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(usize, Transmit)> {
        while let Some(at) = self.active.pop_front() {
            let peer = &mut self.peers[at];
            let Some(sent) = peer.tcp.poll_transmit(&self.tcp, now) else {
                peer.is_active = false;
                if peer.tcp.state() == State::Closed && !self.ended.contains(&at) {
                    self.ended.push(at);
                }
                self.arm(at);
                continue;
            };
            if sent.segment.len > 0 || sent.segment.flags.contains(Flags::SYN) {
                peer.unanswered.get_or_insert(Unanswered::new(now));
            }
            self.active.push_back(at);
            return Some((at, sent));
        }
        None
    }

    /// Receives a segment through a tunnel, with its bytes where segments carry any.
    pub fn receive(&mut self, now: Instant, at: usize, segment: &Segment, bytes: &[u8], ce: bool) {
        let peer = &mut self.peers[at];
        if peer.tcp.state() == State::Closed {
            // A closed tunnel begins anew when all its received bytes have been read: a peer that opens it tries again.
            return;
        }
        let offset = if bytes.is_empty() { None } else { peer.tcp.offset_of(segment) };
        let here = |tcp: &Tcp, offset: u64| tcp.received_upto(offset).min(offset + bytes.len() as u64);
        let before = offset.map(|offset| here(&peer.tcp, offset));
        let acked = peer.tcp.bytes_acked();
        let heard = peer.tcp.receive(&self.tcp, now, segment, ce);
        // The answer tells the other end's position, or that it has no room.
        let is_answered = peer.tcp.is_answered();
        if peer.tcp.state() >= State::Established && (is_answered || peer.tcp.bytes_acked() > acked) {
            peer.unanswered = (!is_answered).then_some(Unanswered::new(now));
        }
        if let (Some(offset), Some(before)) = (offset, before) {
            // Bytes that arrive twice count once, at their first arrival. Bytes that TCP does not take are not stored
            // either.
            let after = here(&peer.tcp, offset);
            if after > before {
                peer.carrier.store(before, &bytes[(before - offset) as usize..(after - offset) as usize]);
            }
        }
        peer.carrier.acknowledged(peer.tcp.bytes_acked());
        peer.is_silent &= peer.tcp.state() < State::Established;
        if heard.peer_closed() {
            // No server closes a tunnel: the peer is a stranger, and the bytes still to be read are not a server's.
            peer.tcp.abort();
        }
        self.push(now, at);
        if heard.readable() && !self.unread.contains(&at) {
            self.unread.push(at);
        }
    }

    /// The next complete frame and its tunnel; the tunnels take turns. `turn` is the position in the round, from 0 on.
    pub fn poll_frame(&mut self, now: Instant, turn: &mut usize) -> Option<(usize, C::Arrived)> {
        while !self.unread.is_empty() {
            *turn %= self.unread.len();
            let at = self.unread[*turn];
            let read = self.read(now, at);
            // The tunnel's window may have opened.
            self.touch(at);
            if let Some(frame) = read {
                *turn += 1;
                return Some((at, frame));
            }
            self.unread.remove(*turn);
        }
        None
    }

    /// The next complete frame of one tunnel.
    pub fn poll_frame_of(&mut self, now: Instant, at: usize) -> Option<C::Arrived> {
        self.read(now, at)
    }

    fn read(&mut self, now: Instant, at: usize) -> Option<C::Arrived> {
        let peer = &mut self.peers[at];
        match peer.carrier.next(peer.tcp.readable()) {
            Ok(len) => {
                let len = len?;
                let read = peer.tcp.recv(&self.tcp, now, len);
                assert_eq!(read, len, "what is readable can be read");
                Some(peer.carrier.take(len))
            }
            Err(Broken) => {
                self.before.broken += 1;
                peer.tcp.abort();
                None
            }
        }
    }

    /// Whether a connection has ended and [`Tunnels::poll_ended`] has not yet reported it.
    pub fn has_ended(&self) -> bool {
        self.ended.iter().any(|at| !self.unread.contains(at))
    }

    /// The next tunnel whose connection has ended and whose received bytes are all read: it is to be [begun
    /// anew](Tunnels::renew).
    pub fn poll_ended(&mut self) -> Option<usize> {
        let next = self.ended.iter().position(|at| !self.unread.contains(at))?;
        Some(self.ended.swap_remove(next))
    }

    /// Begins a tunnel anew; returns the old carrier with its contents.
    pub fn renew(&mut self, at: usize, iss: u32, carrier: C) -> C {
        let peer = &mut self.peers[at];
        let ended = core::mem::replace(&mut peer.tcp, Tcp::listen(&self.tcp, iss, None));
        peer.is_silent |= ended.end() == End::TimedOut;
        self.before = add(self.before, &ended);
        self.before.ended += 1;
        (peer.pending, peer.armed_at, peer.unanswered) = (0, Instant::MAX, None);
        core::mem::replace(&mut peer.carrier, carrier)
    }

    /// New deadlines: each is to be [handed back](Tunnels::handle_timeout) when it has come.
    pub fn take_timers(&mut self) -> impl Iterator<Item = (Instant, usize)> + '_ {
        self.timers.drain(..)
    }

    /// Handles a deadline.
    pub fn handle_timeout(&mut self, now: Instant, deadline: Instant, at: usize) {
        let peer = &mut self.peers[at];
        if peer.armed_at == deadline {
            peer.armed_at = Instant::MAX;
            let each = Duration(self.user_timeout.0 / LOOKS);
            if let Some(unanswered) = peer.unanswered.as_mut().filter(|u| now.since(u.looked) >= each) {
                if peer.is_active || now.since(deadline) >= each {
                    unanswered.since += now.since(unanswered.looked);
                }
                unanswered.looked = now;
            }
            if peer.unanswered.is_some_and(|u| now.since(u.since) >= self.user_timeout) {
                (peer.is_silent, peer.unanswered) = (true, None);
                peer.tcp.abort();
            } else if peer.tcp.poll_timeout().is_some_and(|at| at <= now) {
                peer.tcp.handle_timeout(&self.tcp, now);
            }
            self.touch(at);
        }
    }
}

fn add(sum: TunnelCounters, tcp: &Tcp) -> TunnelCounters {
    let stats = tcp.stats();
    TunnelCounters {
        segments_sent: sum.segments_sent + u64::from(stats.segments_sent),
        segments_received: sum.segments_received + u64::from(stats.segments_received),
        resent: sum.resent + u64::from(stats.retransmissions),
        timeouts: sum.timeouts + u64::from(stats.timeouts),
        ..sum
    }
}

#[cfg(test)]
mod tests;
