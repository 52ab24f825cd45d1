//! A plain network device: a NIC, a veth, the link to the fabric. Frames go in and out through a raw packet socket.

use super::device::{self, DEVICE_RETRY, NotSent, not_sent, unless_off};
use super::error::{KernelError, Tried};
use super::inbox::{Inbox, take_from_inbox};
use super::landing::Landing;
use super::link::Links;
use super::netns::Namespace;
use super::parts::{Descriptors, Parts};
use super::pool::{Fetched, HEADER_LEN, Pool, TAG_LEN};
use super::segments::{FRAMES, HEADERS, Run};
use super::sys::{self, BATCH, HEADER_BYTES, Header};
use crate::fabric::Device;
use crate::port::{BrokenPort, Delivery, Inside, Offload, Port};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::EtherType;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Frames considered for one system call: four of the longest runs.
const AT_ONCE: usize = 4 * FRAMES;

/// The most frames that are kept in their own memory until the device takes them.
const KEEPS: usize = 1024;

/// The most flushes for which a device that refused a run gets single frames.
const REST_MOST: u32 = 4096;

/// The pieces that cross a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// Frames, as they are on the wire.
    Frames,
    /// Runs of tunnel frames, which the kernel, the device or the receiver cuts; single frames if the kernel does not support
    /// that. Without `sends`, runs are only received.
    Runs {
        /// Whether runs are also sent.
        sends: bool,
    },
}

/// Sends and receives frames at a device in batches, and counts losses.
#[derive(Debug)]
pub struct PacketDevice {
    socket: OwnedFd,
    inbox: Inbox,
    /// For a device with runs: its socket puts a header in front of each frame in both directions.
    landing: Option<Landing>,
    outbox: Pool,
    waiting: VecDeque<Waiting>,
    /// Memory of frames that were kept and have been sent.
    spare: Vec<Vec<u8>>,
    sends_runs: bool,
    /// The flushes during which the device still gets no runs, and their number after the next refusal.
    rest: u32,
    next_rest: u32,
    mtu: u32,
    counters: PacketCounters,
    drops: Cell<u64>,
}

/// A frame to be sent.
#[derive(Debug)]
enum Waiting {
    /// In a buffer of the outbox.
    Copy(u32),
    /// In its own memory.
    Kept(Vec<u8>),
}

impl Waiting {
    fn frame<'a>(&'a self, outbox: &'a Pool) -> &'a [u8] {
        match self {
            Waiting::Copy(buffer) => outbox.frame(*buffer),
            Waiting::Kept(frame) => frame,
        }
    }

    fn copy(&self) -> Option<u32> {
        match self {
            Waiting::Copy(buffer) => Some(*buffer),
            Waiting::Kept(_) => None,
        }
    }
}

/// The counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounters {
    /// Frames received.
    pub received: u64,
    /// Frames the device took.
    pub sent: u64,
    /// Truncated frames received.
    pub bad: u64,
    /// Frames that were too long for the device, and not sent.
    pub too_long: u64,
    /// Times the device took no more.
    pub device_full: u64,
    /// Frames that the kernel dropped because they were not fetched in time; a run counts as one.
    pub socket_drops: u64,
    /// Runs of several frames received.
    pub runs_received: u64,
    /// Runs of several frames the device took.
    pub runs_sent: u64,
    /// Runs that the device refused although it took their frames.
    pub runs_refused: u64,
}

/// A device that was opened, and is not used yet.
#[derive(Debug)]
pub struct OpenPacket {
    socket: OwnedFd,
    facts: PacketFacts,
}

/// The facts about an open device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketFacts {
    mtu: u32,
    /// Whether the socket puts a header in front of each frame, and whether runs are sent.
    headers: bool,
    sends_runs: bool,
}

impl OpenPacket {
    /// Opens a device with these `pieces`.
    pub fn open(namespace: &Namespace, name: &str, pieces: Pieces) -> Result<OpenPacket, KernelError> {
        OpenPacket::open_of(namespace, name, pieces, None)
    }

    fn open_of(
        namespace: &Namespace,
        name: &str,
        pieces: Pieces,
        ethertype: Option<EtherType>,
    ) -> Result<OpenPacket, KernelError> {
        let opened = namespace.enter(|| {
            let link = Links::open()?.get(name)?;
            let opened = sys::packet_socket().and_then(|fd| {
                let headers = |fd: &OwnedFd| sys::set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
                let runs = pieces != Pieces::Frames && headers(&fd).is_ok();
                let fd = match ethertype {
                    Some(ethertype) => device::open_for_type(fd, link.index, ethertype.0),
                    None => device::open_packet_socket(fd, link.index),
                };
                fd.map(|fd| (fd, runs))
            });
            let (socket, headers) = opened.tried(|| format!("a packet socket at {name}"))?;
            let sends_runs = headers && pieces == Pieces::Runs { sends: true };
            Ok::<_, KernelError>(OpenPacket { socket, facts: PacketFacts { mtu: link.mtu, headers, sends_runs } })
        })?;
        opened.map_err(|e| e.within(namespace.name()))
    }

    /// Its parts.
    pub fn into_parts(self) -> Parts<PacketFacts> {
        Parts { facts: self.facts, descriptors: vec![self.socket] }
    }

    /// The device of these parts.
    ///
    /// # Errors
    /// The descriptors are not as many as a device has.
    pub fn of(parts: Parts<PacketFacts>) -> io::Result<OpenPacket> {
        let mut all = Descriptors::of(parts.descriptors);
        let socket = all.next()?;
        all.end()?;
        Ok(OpenPacket { socket, facts: parts.facts })
    }
}

impl PacketDevice {
    /// An open device, with `buffers` for frames in each direction.
    pub fn of(device: OpenPacket, buffers: u32) -> PacketDevice {
        let OpenPacket { socket, facts: PacketFacts { mtu, headers, sends_runs } } = device;
        let longest = mtu + HEADER_LEN as u32;
        PacketDevice {
            socket,
            inbox: Inbox::new(Pool::new(if headers { 0 } else { buffers }, longest)),
            landing: headers.then(|| Landing::new(longest as usize)),
            outbox: Pool::new(buffers, longest),
            waiting: VecDeque::new(),
            spare: Vec::new(),
            sends_runs,
            rest: 0,
            next_rest: 1,
            mtu,
            counters: PacketCounters::default(),
            drops: Cell::new(0),
        }
    }

    /// The device `name` of a namespace, with `buffers` for frames in each direction.
    pub fn open(namespace: &Namespace, name: &str, buffers: u32) -> Result<PacketDevice, KernelError> {
        PacketDevice::open_for(namespace, name, buffers, Pieces::Frames)
    }

    /// Opens a part of a device: the kernel divides its flows between all parts of the same `group`, of any processes. A flow is
    /// of two stations and their ports, in either direction.
    pub fn open_part(namespace: &Namespace, name: &str, buffers: u32, group: u16) -> Result<PacketDevice, KernelError> {
        let device = PacketDevice::open(namespace, name, buffers)?;
        // The kind of the division is 0, by flow.
        sys::set_option(device.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, group.into())
            .tried(|| format!("a part of {name}"))?;
        Ok(device)
    }

    /// Opens a device with these `pieces`.
    pub fn open_for(
        namespace: &Namespace,
        name: &str,
        buffers: u32,
        pieces: Pieces,
    ) -> Result<PacketDevice, KernelError> {
        Ok(PacketDevice::of(OpenPacket::open(namespace, name, pieces)?, buffers))
    }

    /// Opens a device for frames of one type: all others stay with the kernel.
    pub fn open_for_type(
        namespace: &Namespace,
        name: &str,
        buffers: u32,
        ethertype: EtherType,
    ) -> Result<PacketDevice, KernelError> {
        let device = OpenPacket::open_of(namespace, name, Pieces::Frames, Some(ethertype))?;
        Ok(PacketDevice::of(device, buffers))
    }

    /// The longest payload of its frames, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Receives a batch of frames; returns their number.
    pub fn receive(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<usize> {
        if let Some(landing) = &mut self.landing {
            let landed = unless_off(landing.receive(self.socket.as_fd(), each))?;
            self.counters.received += (landed.frames + landed.bad) as u64;
            self.counters.bad += landed.bad as u64;
            self.counters.runs_received += landed.runs as u64;
            return Ok(landed.frames + landed.bad);
        }
        let n = self.fetch()?;
        while self.inbox.next_frame().is_some() {
            let Some(frame) = self.inbox.accept() else { break };
            each(self.inbox.pool().frame(frame.buffer));
            self.inbox.give_back(frame.buffer);
        }
        Ok(n)
    }

    fn fetch(&mut self) -> io::Result<usize> {
        let fetched: Fetched = unless_off(self.inbox.receive(self.socket.as_fd(), false, |_| true))?;
        self.counters.received += fetched.frames as u64;
        self.counters.bad += fetched.bad as u64;
        Ok(fetched.frames)
    }

    /// Whether a frame can be sent.
    pub fn has_room(&self) -> bool {
        self.outbox.free() > 0
    }

    /// Takes a frame for [`PacketDevice::flush`]; returns whether there was room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let Some(buffer) = self.outbox.store(frame, Offload::NONE) else { return false };
        self.waiting.push_back(Waiting::Copy(buffer));
        true
    }

    /// Sends waiting frames until the device is full; returns the number of sent frames.
    pub fn flush(&mut self) -> io::Result<usize> {
        let mut sent = 0;
        let mut runs = self.sends_runs && self.rest == 0;
        if !self.waiting.is_empty() {
            self.rest = self.rest.saturating_sub(1);
        }
        // The length of a refused run while its frames are tried one by one.
        let mut refused = 0;
        while !self.waiting.is_empty() {
            let (first, taken) = self.hand_over(runs && refused == 0);
            match taken {
                Ok(n) => {
                    (0..n).for_each(|_| self.done());
                    sent += n;
                    if refused > 0 {
                        // The device takes the frames although it refused the run.
                        self.counters.runs_refused += 1;
                        (self.rest, self.next_rest) = (self.next_rest, (2 * self.next_rest).min(REST_MOST));
                        (refused, runs) = (0, false);
                    }
                }
                Err(e) => match not_sent(&e) {
                    NotSent::Gone => return Err(e),
                    _ if first > 1 => refused = first,
                    NotSent::Full => {
                        self.counters.device_full += 1;
                        break;
                    }
                    NotSent::TooLong => {
                        self.counters.too_long += 1;
                        self.done();
                    }
                },
            }
        }
        self.counters.sent += sent as u64;
        Ok(sent)
    }

    /// Sends some of the waiting frames, in `runs` or one by one. Returns the number of frames in the first piece, and how many
    /// frames were taken; an error is about the first piece.
    fn hand_over(&mut self, runs: bool) -> (usize, io::Result<usize>) {
        if self.landing.is_none() {
            // Without headers, no frame is kept in its own memory.
            let copies = self.waiting.iter().map_while(Waiting::copy);
            return (1, self.outbox.send(self.socket.as_fd(), false, copies));
        }
        let outbox = &self.outbox;
        let mut pieces = [Run::new(&[]); BATCH];
        let mut count = 0;
        let mut first: &[u8] = &[];
        for waiting in self.waiting.iter().take(AT_ONCE) {
            let frame = waiting.frame(outbox);
            if runs && count > 0 && pieces[count - 1].takes(first, frame) {
                continue;
            }
            if count == BATCH {
                break;
            }
            (pieces[count], first) = (Run::new(frame), frame);
            count += 1;
        }
        let pieces = &pieces[..count];
        let mut heads: [(Header, [u8; HEADERS]); BATCH] = [([0; 12], [0; HEADERS]); BATCH];
        let mut at = 0;
        for (run, head) in pieces.iter().zip(&mut heads) {
            if run.frames > 1 {
                *head = run.headers(self.waiting[at].frame(outbox));
            }
            at += run.frames;
        }
        let mut slices = [io::IoSlice::new(&[]); 2 * BATCH + AT_ONCE];
        let mut counts = [0; BATCH];
        let (mut used, mut at) = (0, 0);
        for ((run, (header, own)), count) in pieces.iter().zip(&heads).zip(&mut counts) {
            let before = used;
            let mut push = |bytes| {
                slices[used] = io::IoSlice::new(bytes);
                used += 1;
            };
            push(&header[..HEADER_BYTES]);
            let payload = if run.frames > 1 { run.payload() } else { 0 };
            if payload > 0 {
                push(&own[..payload]);
            }
            self.waiting.range(at..at + run.frames).for_each(|waiting| push(&waiting.frame(outbox)[payload..]));
            at += run.frames;
            *count = used - before;
        }
        let taken = sys::send_scattered(self.socket.as_fd(), &slices[..used], &counts[..count]);
        let first = pieces.first().map_or(0, |run| run.frames);
        let taken = taken.map(|n| {
            let sent_runs = pieces[..n].iter().filter(|run| run.frames > 1).count();
            self.counters.runs_sent += sent_runs as u64;
            if sent_runs > 0 {
                self.next_rest = 1;
            }
            pieces[..n].iter().map(|run| run.frames).sum()
        });
        (first, taken)
    }

    /// Removes the first waiting frame: it was sent, or never can be.
    fn done(&mut self) {
        match self.waiting.pop_front() {
            Some(Waiting::Copy(buffer)) => self.outbox.release(buffer),
            Some(Waiting::Kept(frame)) => self.spare.push(frame),
            None => {}
        }
    }

    /// Frames that wait for the device.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The counters so far.
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
        // Frames from the last call go before answers to frames of this call.
        PacketDevice::flush(self)?;
        PacketDevice::receive(self, &mut |frame: &[u8]| take(frame))
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        Ok(PacketDevice::send(self, frame))
    }

    fn keeps(&self) -> bool {
        self.landing.is_some() && self.waiting.len() < KEEPS
    }

    fn keep(&mut self, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        if !Device::keeps(self) {
            return Err(frame);
        }
        self.waiting.push_back(Waiting::Kept(frame));
        Ok(())
    }

    fn spare(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
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
        show("segmentation", self.sends_runs.into());
        show("rx_runs", counters.runs_received);
        show("tx_runs", counters.runs_sent);
        show("tx_runs_refused", counters.runs_refused);
    }
}

/// A port at a plain device, without backpressure: frames that the other side sends too fast are lost in the kernel and
/// counted.
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
    fn on_round(&mut self, now: Instant) -> Result<(), BrokenPort> {
        self.now = now;
        self.device.inbox.begin_round();
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
        // Including a tag, which the device does not count. The device refuses a longer frame without a tag.
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
        // A socket reports only once that its device was switched off, and a device is switched off before it is gone.
        if sys::has_lost_device(self.device.socket.as_fd()).map_err(|_| BrokenPort)? {
            return Err(BrokenPort);
        }
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
        // The kernel does not report when the device has room.
        (self.device.waiting() > 0).then_some(self.now.saturating_add(DEVICE_RETRY))
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn held(&self) -> u32 {
        (self.device.inbox.waiting() + self.device.waiting()) as u32
    }

    fn why_broken(&self) -> &'static str {
        "its device is gone"
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
