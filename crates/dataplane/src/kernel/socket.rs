//! A network device that QEMU emulates, such as an e1000, behind a pair of datagram sockets: one frame per datagram.
//! Such a device reports a frame as sent before its backend has taken it. If the backend has no room, up to 10,000 frames wait
//! in QEMU, and further ones are lost. Only a backend whose `send()` blocks stops the guest, so [`Peer::set_blocking`] makes
//! QEMU's end blocking: a guest whose frame finds no room stands still until there is room. Meanwhile it receives nothing; the
//! switch's watchdog handles two guests that wait for each other.

use super::pool::Pool;
use super::sys::BATCH;
use crate::agent::Agent;
use crate::port::{BrokenPort, Delivery, Descriptor, Inside, Offload, Port};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The most frames of the guest in the switch, and the most frames that wait for the guest.
const BUFFERS: u32 = 256;
/// The longest frame: a packet of 1500 bytes, Ethernet header and tag.
const LONGEST: u32 = 1518;

/// How often a port checks, while the switch sleeps, whether its agent is still there and needs a mark.
const LOOK_EVERY: Duration = Duration::from_ms(10);

/// QEMU's end: for `-netdev socket,fd=`.
#[derive(Debug)]
pub struct Peer(OwnedFd);

impl Peer {
    /// A descriptor for QEMU to inherit.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Makes `send()` block at this end from now on. QEMU disables that once when it starts, so this needs a guest that is up.
    pub fn set_blocking(self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        Ok(rustix::fs::fcntl_setfl(&self.0, flags - OFlags::NONBLOCK)?)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    received: u64,
    sent: u64,
    bad: u64,
    too_long: u64,
}

/// The switch's end.
#[derive(Debug)]
pub struct SocketPort {
    socket: OwnedFd,
    inbox: Pool,
    received: VecDeque<Descriptor>,
    lent: u32,
    outbox: Pool,
    waiting: VecDeque<u32>,
    now: Instant,
    asleep: bool,
    agent: Option<Box<Agent>>,
    /// Frames that were handed to the guest or wait for it, without marks.
    handed: u64,
    counters: Counters,
}

impl SocketPort {
    /// Creates both ends; `agent` tells whether an agent in the guest reports the room of its sockets.
    pub fn pair(agent: bool) -> io::Result<(SocketPort, Peer)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let port = SocketPort {
            socket,
            inbox: Pool::new(BUFFERS, LONGEST),
            received: VecDeque::new(),
            lent: 0,
            outbox: Pool::new(BUFFERS, LONGEST),
            waiting: VecDeque::new(),
            now: Instant::ZERO,
            asleep: false,
            agent: agent.then(Agent::new).transpose()?.map(Box::new),
            handed: 0,
            counters: Counters::default(),
        };
        Ok((port, Peer(peer)))
    }

    fn fetch(&mut self) -> Result<(), BrokenPort> {
        if self.received.is_empty() && self.inbox.free() >= BATCH as u32 {
            let SocketPort { socket, inbox, received, agent, now, counters, .. } = self;
            let push = |pool: &Pool, buffer: u32| {
                received.push_back(Descriptor { buffer, len: pool.frame(buffer).len() as u32 });
                true
            };
            let fetched = inbox.receive(socket.as_fd(), false, push).map_err(|_| BrokenPort)?;
            counters.received += fetched.frames as u64;
            counters.bad += fetched.bad as u64;
            if let Some(agent) = agent {
                received.retain(|frame| {
                    let word = Agent::is_word(inbox.first_bytes(frame.buffer));
                    if word {
                        agent.take(*now, inbox.frame(frame.buffer));
                        inbox.release(frame.buffer);
                    }
                    !word
                });
            }
        }
        Ok(())
    }

    /// Sends the guest's agent a mark, so that it knows how many frames were handed over.
    fn mind_agent(&mut self) {
        let SocketPort { agent: Some(agent), outbox, waiting, now, handed, .. } = self else { return };
        waiting.extend(outbox.mark(agent, *now, *handed));
    }

    fn flush(&mut self) -> Result<(), BrokenPort> {
        while !self.waiting.is_empty() {
            match self.outbox.send(self.socket.as_fd(), false, self.waiting.iter().copied()) {
                Ok(n) => {
                    self.waiting.drain(..n).for_each(|buffer| self.outbox.release(buffer));
                    self.counters.sent += n as u64;
                }
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => break,
                    Some(Errno::MSGSIZE) => {
                        self.counters.too_long += 1;
                        self.waiting.pop_front().into_iter().for_each(|buffer| self.outbox.release(buffer));
                    }
                    _ => return Err(BrokenPort),
                },
            }
        }
        Ok(())
    }
}

impl Port for SocketPort {
    fn on_round(&mut self, now: Instant) -> Result<(), BrokenPort> {
        self.now = now;
        self.fetch()?;
        self.mind_agent();
        Ok(())
    }

    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(self.received.front().copied())
    }

    fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        self.inbox.first_bytes(buffer)
    }

    fn accept(&mut self) {
        if self.received.pop_front().is_some() {
            self.lent += 1;
        }
    }

    fn read(&self, buffer: u32, into: &mut [u8]) {
        into.copy_from_slice(&self.inbox.frame(buffer)[..into.len()]);
    }

    fn give_back(&mut self, buffer: u32) {
        self.lent -= 1;
        self.inbox.release(buffer);
    }

    fn lent(&self) -> u32 {
        self.lent
    }

    fn owes_room(&self) -> bool {
        self.received.is_empty() && self.inbox.free() < BATCH as u32
    }

    fn max_frame(&self) -> u32 {
        LONGEST
    }

    fn reserve(&mut self, _len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        let granted = self.agent.as_ref().is_none_or(|agent| self.handed < agent.lease.limit());
        Ok(granted && self.outbox.free() > 0)
    }

    fn defer(&mut self) -> bool {
        if let Some(agent) = &mut self.agent {
            // Messages of the agent may wait behind this frame.
            agent.lease.excuse(self.now);
        }
        false
    }

    fn lost_agent(&mut self) -> bool {
        self.agent.as_mut().is_some_and(|agent| agent.was_lost())
    }

    fn deliver(&mut self, frame: &Delivery<'_>) {
        let Some(buffer) = self.outbox.store(frame.bytes, Offload::NONE) else { unreachable!("room was reserved") };
        self.waiting.push_back(buffer);
        self.handed += 1;
    }

    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.flush()
    }

    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        self.asleep = !blocked;
        if blocked {
            return Ok(true);
        }
        self.fetch()?;
        Ok(self.received.is_empty())
    }

    fn wake_up(&mut self) {
        self.asleep = false;
    }

    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.asleep);
        events.set(PollFlags::OUT, !self.waiting.is_empty());
        if !events.is_empty() {
            fds.push(PollFd::new(&self.socket, events));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.agent.is_some().then(|| self.now.saturating_add(LOOK_EVERY))
    }

    fn inside(&self) -> Inside {
        let c = &self.counters;
        let mut inside = Inside { waiting: self.outbox.frames_in(&self.waiting), ..Inside::default() };
        inside.lost.count_many(DropReason::TooBig, c.too_long, 0);
        inside.refused.count_many(DropReason::Malformed, c.bad, 0);
        inside
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.counters;
        show("received", c.received);
        show("sent", c.sent);
        show("bad_frames", c.bad);
        show("too_long", c.too_long);
        if let Some(agent) = &self.agent {
            agent.counters(self.handed, show);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_waits_until_the_switch_has_taken_what_came_before() {
        let (mut port, peer) = SocketPort::pair(false).unwrap();
        let qemu = std::os::unix::net::UnixDatagram::from(peer.descriptor().unwrap());
        let mut sent = 0u64;
        while qemu.send(&[7; 1514]).is_ok() {
            sent += 1;
        }
        assert!(sent > 0, "no room at all");
        peer.set_blocking().unwrap();
        let held = std::thread::spawn(move || (0..1000).try_for_each(|_| qemu.send(&[7; 1514]).map(drop)));
        let mut seen = 0;
        while seen < sent + 1000 {
            port.on_round(Instant::ZERO).unwrap();
            while let Some(frame) = port.next_frame().unwrap() {
                assert_eq!(frame.len, 1514);
                port.accept();
                port.give_back(frame.buffer);
                seen += 1;
            }
        }
        held.join().unwrap().unwrap();
        assert_eq!((seen, port.counters.bad), (sent + 1000, 0));
    }

    #[test]
    fn what_the_guest_has_no_room_for_waits() {
        let (mut port, peer) = SocketPort::pair(false).unwrap();
        let qemu = std::os::unix::net::UnixDatagram::from(peer.descriptor().unwrap());
        let bytes = [9; 1514];
        let frame = Delivery { bytes: &bytes, offload: Offload::NONE, domain: 0, priority: 0, from: 0 };
        let mut delivered = 0;
        while port.reserve(1514, &Offload::NONE).unwrap() {
            port.deliver(&frame);
            port.publish().unwrap();
            delivered += 1;
        }
        assert!(delivered > u64::from(BUFFERS), "what the socket holds, and what waits for it");
        // Frames that the socket did not take wait in the port, and the port reports their number.
        assert_eq!(u64::from(port.inside().waiting), delivered - port.counters.sent);
        let mut received = 0;
        while received < delivered {
            port.publish().unwrap();
            while qemu.recv(&mut [0; 2000]).is_ok() {
                received += 1;
            }
        }
        assert_eq!((port.counters.sent, port.inside().waiting), (delivered, 0));
        drop((qemu, peer));
        port.deliver(&frame);
        assert_eq!(port.publish(), Err(BrokenPort), "nobody is there any more");
    }
}
