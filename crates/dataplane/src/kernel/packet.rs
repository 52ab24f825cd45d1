//! A network device as it is: a NIC, a veth, the wire to the fabric. Frames go in and out by a raw packet socket.

use super::error::{KernelError, Tried};
use super::inbox::{Inbox, take_from_inbox};
use super::link::Links;
use super::netns::Namespace;
use super::pool::{Fetched, HEADER_LEN, Pool, TAG_LEN};
use super::sys::{self, BATCH};
use crate::fabric::Device;
use crate::port::{BrokenPort, Delivery, Inside, Offload, Port};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Memory the kernel may hold frames in that were not fetched yet.
const RECEIVE_MEMORY: i32 = 64 << 20;

/// A packet socket at a device: sees what the device receives, whomever it is for, not what it sends; what is sent goes past
/// the device's queueing discipline, so that the caller hears when the device takes no more.
pub(super) fn open(fd: OwnedFd, device: u32) -> io::Result<OwnedFd> {
    let set = |level, name, value| sys::set_option(fd.as_fd(), level, name, value);
    set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_MEMORY)?;
    set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
    set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    sys::set_promiscuous(fd.as_fd(), device)?;
    sys::bind_packet(fd.as_fd(), device, libc::ETH_P_ALL as u16)?;
    Ok(fd)
}

/// What went wrong with frames that were handed to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotSent {
    /// It takes none now.
    Full,
    /// It never takes the first one.
    TooLong,
    /// It is gone.
    Gone,
}

pub(super) fn not_sent(e: &io::Error) -> NotSent {
    match Errno::from_io_error(e) {
        Some(Errno::MSGSIZE | Errno::INVAL) => NotSent::TooLong,
        Some(Errno::NXIO | Errno::NODEV | Errno::BADF) => NotSent::Gone,
        // No memory, no room in the ring, interrupted, or switched off for a while.
        _ => NotSent::Full,
    }
}

/// Frames in and out of a device, in batches, and what was lost.
#[derive(Debug)]
pub struct PacketDevice {
    socket: OwnedFd,
    inbox: Inbox,
    outbox: Pool,
    waiting: VecDeque<u32>,
    mtu: u32,
    counters: PacketCounters,
    drops: Cell<u64>,
}

/// What happened at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounters {
    /// Frames received.
    pub received: u64,
    /// Frames the device took.
    pub sent: u64,
    /// Frames received that were cut short.
    pub bad: u64,
    /// Frames that were longer than the device takes, not sent.
    pub too_long: u64,
    /// Times the device took no more.
    pub device_full: u64,
    /// Frames the kernel threw away because they were not fetched in time.
    pub socket_drops: u64,
}

impl PacketDevice {
    /// The device `name` of a namespace, with `buffers` for frames in each direction.
    pub fn open(namespace: &Namespace, name: &str, buffers: u32) -> Result<PacketDevice, KernelError> {
        let (socket, link) = namespace.enter(|| {
            let link = Links::open()?.get(name)?;
            let socket = sys::packet_socket()
                .and_then(|fd| open(fd, link.index))
                .tried(|| format!("a packet socket at {name}"))?;
            Ok::<_, KernelError>((socket, link))
        })??;
        Ok(PacketDevice {
            socket,
            inbox: Inbox::new(Pool::new(buffers, link.mtu + HEADER_LEN as u32)),
            outbox: Pool::new(buffers, link.mtu + HEADER_LEN as u32),
            waiting: VecDeque::new(),
            mtu: link.mtu,
            counters: PacketCounters::default(),
            drops: Cell::new(0),
        })
    }

    /// The longest payload of its frames, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Receives a batch of frames; how many there were.
    pub fn receive(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<usize> {
        let n = self.fetch()?;
        while self.inbox.next_frame().is_some() {
            let Some(frame) = self.inbox.accept() else { break };
            each(self.inbox.pool().frame(frame.buffer));
            self.inbox.give_back(frame.buffer);
        }
        Ok(n)
    }

    fn fetch(&mut self) -> io::Result<usize> {
        let fetched = match self.inbox.receive(self.socket.as_fd(), false, |_| true) {
            // Said once when a device is switched off; it may come back.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NETDOWN) => Fetched::default(),
            other => other?,
        };
        self.counters.received += fetched.frames as u64;
        self.counters.bad += fetched.bad as u64;
        Ok(fetched.frames)
    }

    /// Whether a frame can be sent.
    pub fn has_room(&self) -> bool {
        self.outbox.free() > 0
    }

    /// Takes a frame to be sent by [`PacketDevice::flush`]; whether there was room for it.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let Some(buffer) = self.outbox.store(frame, Offload::NONE) else { return false };
        self.waiting.push_back(buffer);
        true
    }

    /// Hands the device what waits, as much as it takes; how many frames that were.
    pub fn flush(&mut self) -> io::Result<usize> {
        let mut sent = 0;
        while !self.waiting.is_empty() {
            match self.outbox.send(self.socket.as_fd(), false, self.waiting.iter().copied()) {
                Ok(n) => {
                    self.waiting.drain(..n).for_each(|buffer| self.outbox.release(buffer));
                    sent += n;
                }
                Err(e) => match not_sent(&e) {
                    NotSent::Full => {
                        self.counters.device_full += 1;
                        break;
                    }
                    NotSent::TooLong => {
                        self.counters.too_long += 1;
                        self.waiting.pop_front().into_iter().for_each(|buffer| self.outbox.release(buffer));
                    }
                    NotSent::Gone => return Err(e),
                },
            }
        }
        self.counters.sent += sent as u64;
        Ok(sent)
    }

    /// Frames that wait for the device.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What happened so far.
    pub fn counters(&self) -> PacketCounters {
        let new = sys::packet_drops(self.socket.as_fd()).unwrap_or(0);
        self.drops.set(self.drops.get() + u64::from(new));
        PacketCounters { socket_drops: self.drops.get(), ..self.counters }
    }
}

impl AsFd for PacketDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Device for PacketDevice {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        // What the device did not take last time goes before what is answered to the frames of this time.
        PacketDevice::flush(self)?;
        PacketDevice::receive(self, &mut |frame: &[u8]| take(frame))
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        Ok(PacketDevice::send(self, frame))
    }

    fn flush(&mut self) -> io::Result<()> {
        PacketDevice::flush(self).map(drop)
    }

    fn wakers<'a>(&'a self, for_room: bool, fds: &mut Vec<PollFd<'a>>) {
        let room = if for_room || self.waiting() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        fds.push(PollFd::new(&self.socket, PollFlags::IN | room));
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        let counters = PacketDevice::counters(self);
        show("rx_frames", counters.received);
        show("tx_frames", counters.sent);
        show("rx_bad", counters.bad);
        show("tx_too_long", counters.too_long);
        show("tx_full", counters.device_full);
        show("rx_socket_drops", counters.socket_drops);
    }
}

/// A port of the switch that is a plain device: nothing holds the other side back, and what it sends too fast is lost in
/// the kernel and counted.
#[derive(Debug)]
pub struct PacketPort {
    device: PacketDevice,
    now: Instant,
    asleep: bool,
    closed: bool,
}

impl PacketPort {
    /// A port at a device.
    pub fn new(device: PacketDevice) -> PacketPort {
        PacketPort { device, now: Instant::ZERO, asleep: false, closed: false }
    }

    /// Whether another batch can be fetched.
    fn has_room(&self) -> bool {
        self.device.inbox.pool().free() >= BATCH as u32
    }
}

impl Port for PacketPort {
    fn on_turn(&mut self, now: Instant) -> Result<(), BrokenPort> {
        self.now = now;
        self.device.inbox.new_turn();
        if !self.closed && self.device.inbox.is_quiet() && self.has_room() {
            self.device.fetch().map_err(|_| BrokenPort)?;
        }
        Ok(())
    }

    take_from_inbox!(device.inbox);

    fn owes_room(&self) -> bool {
        self.device.inbox.waiting() == 0 && !self.has_room()
    }

    fn max_frame(&self) -> u32 {
        // Of a frame with a tag, which a device does not count; without one the device refuses it.
        self.device.mtu + (HEADER_LEN + TAG_LEN) as u32
    }

    fn reserve(&mut self, _len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        Ok(self.device.has_room())
    }

    fn deliver(&mut self, frame: &Delivery<'_>) {
        let stored = self.device.send(frame.bytes);
        assert!(stored, "room was reserved");
    }

    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.device.flush().map(drop).map_err(|_| BrokenPort)
    }

    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        if !self.has_room() {
            return Ok(blocked);
        }
        self.asleep = true;
        self.device.fetch().map_err(|_| BrokenPort)?;
        Ok(self.device.inbox.is_quiet())
    }

    fn wake_up(&mut self) {
        self.asleep = false;
    }

    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.asleep {
            fds.push(PollFd::new(&self.device.socket, PollFlags::IN));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        // Nothing says when a device takes frames again.
        (self.device.waiting() > 0).then_some(self.now.saturating_add(super::DEVICE_AGAIN))
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn held(&self) -> u32 {
        (self.device.inbox.waiting() + self.device.waiting()) as u32
    }

    fn inside(&self) -> Inside {
        let c = &self.device.counters;
        let mut inside = Inside { waiting: self.device.waiting() as u32, ..Inside::default() };
        inside.lost.count_many(DropReason::TooBig, c.too_long, 0);
        inside.refused.count_many(DropReason::Malformed, c.bad, 0);
        inside
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        let c = self.device.counters();
        show("received", c.received);
        show("sent", c.sent);
        show("bad_frames", c.bad);
        show("too_long", c.too_long);
        show("device_full", c.device_full);
        show("edge_socket_drops", c.socket_drops);
    }
}
