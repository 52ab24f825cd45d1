//! A port in shared memory: the fast path for programs that support it (`docs/shm.md` describes the layout byte by byte).
//! The memory holds buffers of equal size and four rings of entries that name them, as in AF_XDP. The program puts frames into
//! buffers and names them in `send`; the switch names them in `returned` once they are delivered or dropped. The program names
//! empty buffers in `free`; the switch fills them and names them in `receive`. A frame that cannot be delivered keeps its
//! buffer. So a program that sends too fast runs out of buffers, which is the backpressure.

use crate::port::{self, BrokenPort, Candidate, Delivery, Descriptor, Offload, Passed};
use crate::region::{BUFFER_BYTES, Buffers, Region, RingCells};
use crate::ring::{Broken, Consumer, Producer};
use core::sync::atomic::Ordering;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use sluicenet_node::vale::{Action, WatchdogConfig};
use sluicenet_proto::guard::HEAD_LEN;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{self, Cargo, Flow};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// First bytes of the memory: `sluiceP` and the version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluiceP\x01");

/// Shortest and longest frame without its check sequence.
pub const FRAME_BYTES: std::ops::RangeInclusive<usize> = 14..=BUFFER_BYTES;

/// The most invalid entries that are skipped in a round: as many as frames are taken in one.
const SKIPS: u32 = 64;

const AT_MAGIC: usize = 0;
const AT_BUFFERS: usize = 8;
/// The number of full sockets of the program, and their UDP ports, four in each 64-bit word.
const AT_FULL_COUNT: usize = 16;
const AT_FULL: usize = 64;
/// The most sockets that can be reported as full; further full sockets get only the frames that the program accepts for them.
pub const FULL_MAX: usize = 64;
const AT_RINGS: usize = 256;
const _: () = assert!(AT_FULL + 2 * FULL_MAX <= AT_RINGS);
/// A cache line.
const LINE: usize = 64;
/// Bytes of a frame that may hold its UDP port: IPv4 after a tag, with all options.
const HEADERS_MOST: usize = 96;

/// One of the four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Send,
    Returned,
    Receive,
    Free,
}

fn ring(region: &Arc<Region>, buffers: u32, role: Role) -> RingCells {
    RingCells::new(region, AT_RINGS + role as usize * RingCells::bytes(buffers), buffers)
}

fn buffers_at(buffers: u32) -> usize {
    (AT_RINGS + 4 * RingCells::bytes(buffers)).next_multiple_of(4096)
}

/// Bytes of memory of a port with `buffers` buffers.
pub fn region_bytes(buffers: u32) -> usize {
    buffers_at(buffers) + buffers as usize * BUFFER_BYTES
}

/// An entry of a ring: the number of a buffer, and the length of the frame in it.
#[inline(always)]
fn entry(buffer: u32, len: u32) -> u64 {
    buffer as u64 | (len as u64) << 32
}
#[inline(always)]
fn from_entry(entry: u64) -> Descriptor {
    Descriptor { buffer: entry as u32, len: (entry >> 32) as u16 as u32 }
}

impl From<Broken> for BrokenPort {
    fn from(_: Broken) -> BrokenPort {
        BrokenPort
    }
}

/// The descriptors with which a program opens its port.
#[derive(Debug)]
pub struct Access {
    /// The port's memory, for [`Client::open`].
    pub memory: OwnedFd,
    /// Written to wake the switch.
    pub kick: OwnedFd,
    /// Readable when the switch woke the program.
    pub wake: OwnedFd,
}

/// A full socket of a program for which a frame was not admitted.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    udp_port: u16,
    since: Instant,
    /// Whether it has been full for the detection time.
    stuck: bool,
    /// Whether it has been full for the isolation time: its reports are ignored.
    isolated: bool,
}

/// The switch's end of a port.
#[derive(Debug)]
pub struct Port {
    region: Arc<Region>,
    buffers: Buffers,
    send: Consumer<RingCells>,
    returned: Producer<RingCells>,
    receive: Producer<RingCells>,
    free: Consumer<RingCells>,
    /// Frames taken from `send` and not yet named in `returned`.
    lent: u32,
    /// Whether the switch wanted an empty buffer and there was none.
    wants_room: bool,
    /// Empty buffers that were taken from `free` and not used yet.
    spare: Vec<u32>,
    /// Invalid entries that may still be skipped in this round.
    skips: u32,
    /// The descriptor by which the program wakes the switch, and the one by which the switch wakes the program.
    kick: OwnedFd,
    wake: OwnedFd,
    /// Full sockets, the beginning of the round, and the watchdog over them.
    refusals: Vec<Refusal>,
    now: Instant,
    watchdog: WatchdogConfig,
    /// Entries that named no buffer, or a frame that was too short or too long.
    pub bad_entries: u64,
    /// How often a socket was full for the detection time while frames waited for it.
    pub sockets_stuck: u64,
    /// How often a socket's reports were ignored because it stayed full for the isolation time.
    pub sockets_ignored: u64,
}

impl Port {
    /// A new port with `buffers` buffers, a power of two from 2 to 65,536.
    pub fn create(name: &str, buffers: u32) -> io::Result<(Port, Access)> {
        assert!(buffers.is_power_of_two() && (2..=1 << 16).contains(&buffers));
        let (region, memory) = Region::create(name, region_bytes(buffers))?;
        let region = Arc::new(region);
        region.word(AT_BUFFERS).store(buffers, Ordering::Relaxed);
        region.long(AT_MAGIC).store(MAGIC, Ordering::Release);
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, wake) = (event()?, event()?);
        let access = Access { memory, kick: kick.try_clone()?, wake: wake.try_clone()? };
        let port = Port {
            region: region.clone(),
            send: Consumer::new(ring(&region, buffers, Role::Send)),
            returned: Producer::new(ring(&region, buffers, Role::Returned)),
            receive: Producer::new(ring(&region, buffers, Role::Receive)),
            free: Consumer::new(ring(&region, buffers, Role::Free)),
            buffers: Buffers::new(&region, buffers_at(buffers), buffers),
            lent: 0,
            wants_room: false,
            spare: Vec::new(),
            skips: SKIPS,
            kick,
            wake,
            refusals: Vec::new(),
            now: Instant::ZERO,
            watchdog: WatchdogConfig::default(),
            bad_entries: 0,
            sockets_stuck: 0,
            sockets_ignored: 0,
        };
        Ok((port, access))
    }

    /// Whether the program reports a full socket. This is checked for each frame, or for each run of frames.
    #[inline(always)]
    pub fn has_full(&self) -> bool {
        self.region.word(AT_FULL_COUNT).load(Ordering::Relaxed) != 0
    }

    fn is_full(&self, udp_port: u16) -> bool {
        let count = (self.region.word(AT_FULL_COUNT).load(Ordering::Acquire) as usize).min(FULL_MAX);
        (0..count).any(|i| {
            let four = self.region.long(AT_FULL + 8 * (i / 4)).load(Ordering::Relaxed);
            (four >> (16 * (i % 4))) as u16 == udp_port
        })
    }

    /// Whether a datagram may go to the program's socket at a UDP port. A socket that stays full for the detection time while
    /// frames wait for it is stuck. If the watchdog drops, its reports are ignored after the isolation time, until it has not
    /// been full.
    #[cold]
    fn admits_to(&mut self, udp_port: u16) -> bool {
        let known = self.refusals.iter().position(|refusal| refusal.udp_port == udp_port);
        match (self.is_full(udp_port), known) {
            (false, None) => true,
            (false, Some(i)) => {
                self.refusals.swap_remove(i);
                true
            }
            (true, None) => {
                // Forgets sockets without waiting frames.
                if self.refusals.len() >= FULL_MAX {
                    let mut known = std::mem::take(&mut self.refusals);
                    known.retain(|refusal| self.is_full(refusal.udp_port));
                    self.refusals = known;
                }
                let has_slot = self.refusals.len() < FULL_MAX;
                if has_slot {
                    self.refusals.push(Refusal { udp_port, since: self.now, stuck: false, isolated: false });
                }
                !has_slot
            }
            (true, Some(i)) => {
                let refusal = &mut self.refusals[i];
                let full = self.now.since(refusal.since);
                let is_late = |time: Option<Duration>| time.is_some_and(|time| full >= time);
                if !refusal.stuck && is_late(self.watchdog.reports_after()) {
                    refusal.stuck = true;
                    self.sockets_stuck += 1;
                }
                if !refusal.isolated && is_late(self.watchdog.isolates_after()) {
                    refusal.isolated = true;
                    self.sockets_ignored += 1;
                }
                refusal.isolated && self.watchdog.action == Action::Drop
            }
        }
    }

    /// Its buffers.
    #[inline(always)]
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The next frame from the program; it stays the next until [`Port::accept`].
    #[inline(always)]
    pub fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        loop {
            let Some(entry) = self.send.peek()? else { return Ok(None) };
            // Each taken frame needs room in `returned`; a program that does not take its buffers back has to wait.
            if self.lent >= self.returned.known_room() && self.lent >= self.returned.room()? {
                return Ok(None);
            }
            let frame = from_entry(entry);
            if frame.buffer < self.buffers.count() && FRAME_BYTES.contains(&(frame.len as usize)) {
                return Ok(Some(frame));
            }
            if self.skips == 0 {
                return Ok(None);
            }
            self.skip();
            self.send.advance();
        }
    }

    /// Counts an invalid entry, which costs time too.
    #[cold]
    fn skip(&mut self) {
        self.bad_entries += 1;
        self.skips -= 1;
    }

    /// Takes the frame that [`Port::next_frame`] showed: its buffer is lent until [`Port::give_back`].
    #[inline(always)]
    pub fn accept(&mut self) {
        self.send.advance();
        self.lent += 1;
    }

    /// Gives a lent buffer back to the program.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u32) {
        self.lent -= 1;
        self.returned.push(entry(buffer, 0));
    }

    /// An empty buffer for a frame to the program, if it has provided one.
    #[inline(always)]
    pub fn empty_buffer(&mut self) -> Result<Option<u32>, BrokenPort> {
        match self.spare.pop() {
            Some(buffer) => Ok(Some(buffer)),
            None => self.fetch_empty_buffer(),
        }
    }

    #[inline(always)]
    fn fetch_empty_buffer(&mut self) -> Result<Option<u32>, BrokenPort> {
        // At most as many frames as `receive` holds can be on their way, even if more buffers were named.
        let taken = self.spare.len() as u32;
        if self.receive.known_room() <= taken && self.receive.room()? <= taken {
            self.wants_room = true;
            return Ok(None);
        }
        while let Some(entry) = self.free.peek()? {
            let buffer = from_entry(entry).buffer;
            if buffer < self.buffers.count() {
                self.free.advance();
                self.wants_room = false;
                return Ok(Some(buffer));
            }
            if self.skips == 0 {
                break;
            }
            self.skip();
            self.free.advance();
        }
        self.wants_room = true;
        Ok(None)
    }

    /// Keeps an empty buffer that was not used for the next frame.
    #[inline(always)]
    pub fn keep_empty(&mut self, buffer: u32) {
        self.spare.push(buffer);
    }

    /// Passes up to `limit` frames to `to` while `to` has room and their first 16 bytes equal `first_bytes`, the last 8 where
    /// `mask` has ones; returns how many.
    #[inline(always)]
    pub fn pass_run(
        &mut self,
        to: &mut Port,
        first_bytes: [u64; 2],
        mask: u64,
        limit: u32,
    ) -> Result<Passed, BrokenPort> {
        let mut passed = Passed::default();
        while passed.frames < limit {
            let Some(frame) = self.next_frame()? else { break };
            let own = self.buffers.first_bytes(frame.buffer);
            if (own[0] ^ first_bytes[0]) | ((own[1] ^ first_bytes[1]) & mask) != 0 {
                break;
            }
            // A broken receiver is found in its own turn.
            let Ok(Some(empty)) = to.empty_buffer() else { break };
            self.copy_to(frame.buffer, frame.len, own, to, empty);
            self.accept();
            self.give_back(frame.buffer);
            passed.frames += 1;
            passed.bytes += u64::from(frame.len);
        }
        Ok(passed)
    }

    /// Copies a frame into an empty buffer of `to`, with `first_bytes` in place of its first 16 bytes.
    #[inline(always)]
    pub fn copy_to(&self, buffer: u32, len: u32, first_bytes: [u64; 2], to: &mut Port, empty: u32) {
        self.buffers.copy(buffer, len as usize, first_bytes, &to.buffers, empty);
        to.hand_over(empty, len);
    }

    /// Copies a frame into an empty buffer of `to`, with the first `len` bytes of `head` in place of its own. The bytes of `head`
    /// behind these are any.
    #[inline(always)]
    pub fn copy_checked(&self, frame: Descriptor, head: &[u8; HEAD_LEN], len: usize, to: &mut Port, empty: u32) {
        if frame.len > LINE as u32 {
            self.buffers.copy_behind_first_line(frame.buffer, frame.len as usize, &to.buffers, empty);
        }
        to.buffers.write(empty, &head[..LINE]);
        if len > LINE {
            to.buffers.write_at(empty, LINE, &head[LINE..len]);
        }
        to.hand_over(empty, frame.len);
    }

    /// Names a filled buffer to the program.
    #[inline(always)]
    pub fn hand_over(&mut self, buffer: u32, len: u32) {
        self.receive.push(entry(buffer, len));
    }

    /// Shows the program the entries of this round, and wakes it if it sleeps.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.send.publish();
        self.free.publish();
        let returned = self.returned.publish();
        if self.receive.publish() | returned {
            // The counter of an eventfd is full only if the program does not read it; then it is readable.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// The destination of a frame, by its first bytes.
fn flow_of(frame: Candidate, read: &dyn Fn(&mut [u8])) -> Cargo {
    let mut start = [0; HEADERS_MOST];
    let start = &mut start[..(frame.len as usize).min(HEADERS_MOST)];
    read(start);
    flow::read_start(start, frame.len as usize)
}

impl port::Port for Port {
    #[inline(always)]
    fn on_round(&mut self, now: Instant) -> Result<(), BrokenPort> {
        self.skips = SKIPS;
        self.now = now;
        if !self.refusals.is_empty() && !self.has_full() {
            self.refusals.clear();
        }
        Ok(())
    }
    #[inline(always)]
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Port::next_frame(self)
    }
    #[inline(always)]
    fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        self.buffers.first_bytes(buffer)
    }
    #[inline(always)]
    fn accept(&mut self) {
        Port::accept(self)
    }
    fn read(&self, buffer: u32, into: &mut [u8]) {
        self.buffers.read(buffer, into)
    }
    #[inline(always)]
    fn give_back(&mut self, buffer: u32) {
        Port::give_back(self, buffer)
    }
    #[inline(always)]
    fn lent(&self) -> u32 {
        self.lent
    }
    #[inline(always)]
    fn owes_room(&self) -> bool {
        self.lent >= self.returned.known_room()
    }
    fn max_frame(&self) -> u32 {
        BUFFER_BYTES as u32
    }
    fn admits(&mut self, frame: Candidate, read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        Ok(match flow_of(frame, read) {
            Cargo::Udp(Flow { destination_port, lite: false, group: false, .. }) => self.admits_to(destination_port),
            _ => true,
        })
    }
    fn part(&self, frame: Candidate, read: &dyn Fn(&mut [u8])) -> u64 {
        match flow_of(frame, read) {
            Cargo::Udp(Flow { destination_port, lite: false, group: false, .. }) => u64::from(destination_port) + 1,
            _ => 0,
        }
    }
    fn waiting_max(&self) -> u32 {
        // The other half of the buffers is for receiving.
        self.buffers.count() / 2
    }
    fn reserve(&mut self, _len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        if self.spare.is_empty() {
            let Some(buffer) = self.fetch_empty_buffer()? else { return Ok(false) };
            self.spare.push(buffer);
        }
        Ok(true)
    }
    fn deliver(&mut self, frame: &Delivery<'_>) {
        let buffer = self.spare.pop().expect("room was reserved");
        self.buffers.write(buffer, frame.bytes);
        self.hand_over(buffer, frame.bytes.len() as u32);
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        Port::publish(self);
        Ok(())
    }
    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        // Empty buffers that the switch does not need do not keep it awake.
        Ok((blocked || self.send.fall_asleep()?) & (!self.wants_room || self.free.fall_asleep()?))
    }
    fn sleeps_on(&self) -> bool {
        true
    }
    fn wake_up(&mut self) {
        self.send.wake_up();
        self.free.wake_up();
        // An empty counter is no error.
        let _ = rustix::io::read(&self.kick, &mut [0u8; 8]);
    }
    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::new(&self.kick, PollFlags::IN));
    }
    fn set_watchdog(&mut self, watchdog: WatchdogConfig) {
        self.watchdog = watchdog;
    }
    fn why_broken(&self) -> &'static str {
        "its program broke the rules of the rings"
    }
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        show("bad_entries", self.bad_entries);
        show("sockets_stuck", self.sockets_stuck);
        let stuck = self.refusals.iter().filter(|refusal| refusal.stuck && !refusal.isolated);
        show("sockets_stuck_now", stuck.count() as u64);
        show("sockets_ignored", self.sockets_ignored);
    }
}

/// A program's end of a port.
#[derive(Debug)]
pub struct Client {
    region: Arc<Region>,
    buffers: Buffers,
    send: Producer<RingCells>,
    returned: Consumer<RingCells>,
    receive: Consumer<RingCells>,
    free: Producer<RingCells>,
    /// Buffers to send with.
    stock: Vec<u32>,
    /// The two numbers under which the frame in each buffer was sent, and the buffers under each number.
    under: Vec<[u16; 2]>,
    outstanding: [Vec<u32>; 2],
}

impl Client {
    /// Opens a port by the file of its memory. Half of the buffers are for sending, half for receiving.
    pub fn open(file: OwnedFd) -> io::Result<Client> {
        let region = Arc::new(Region::open(file)?);
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if region.len() < AT_RINGS || region.long(AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(wrong("not a port of this version of sluicenet"));
        }
        let buffers = region.word(AT_BUFFERS).load(Ordering::Relaxed);
        if !buffers.is_power_of_two() || !(2..=1 << 16).contains(&buffers) || region.len() != region_bytes(buffers) {
            return Err(wrong("a port whose memory has not the size that it says"));
        }
        let mut client = Client {
            region: region.clone(),
            send: Producer::new(ring(&region, buffers, Role::Send)),
            returned: Consumer::new(ring(&region, buffers, Role::Returned)),
            receive: Consumer::new(ring(&region, buffers, Role::Receive)),
            free: Producer::new(ring(&region, buffers, Role::Free)),
            buffers: Buffers::new(&region, buffers_at(buffers), buffers),
            stock: (0..buffers / 2).collect(),
            under: vec![[0; 2]; buffers as usize],
            outstanding: [Vec::new(), Vec::new()],
        };
        for buffer in buffers / 2..buffers {
            client.free.push(entry(buffer, 0));
        }
        let _ = client.free.publish();
        Ok(client)
    }

    /// Takes back the buffers that the switch no longer needs.
    #[inline(always)]
    fn reap(&mut self) -> Result<(), BrokenPort> {
        while let Some(entry) = self.returned.pop()? {
            let buffer = from_entry(entry).buffer;
            if buffer >= self.buffers.count() || self.stock.len() >= self.buffers.count() as usize {
                return Err(BrokenPort);
            }
            if !self.outstanding[0].is_empty() {
                self.count_back(buffer);
            }
            self.stock.push(buffer);
        }
        self.returned.publish();
        Ok(())
    }

    /// A buffer that may have been sent under numbers came back.
    #[inline(never)]
    fn count_back(&mut self, buffer: u32) {
        let numbers = std::mem::take(&mut self.under[buffer as usize]);
        for (of, number) in self.outstanding.iter_mut().zip(numbers).filter(|(_, number)| *number != 0) {
            of[usize::from(number)] -= 1;
        }
    }

    /// Sends a frame; `false` if there is no free buffer.
    #[inline(always)]
    pub fn send(&mut self, frame: &[u8]) -> Result<bool, BrokenPort> {
        self.send_parts(&[frame])
    }

    /// Sends a frame that consists of `parts`; `false` as for [`Client::send`].
    #[inline(always)]
    pub fn send_parts(&mut self, parts: &[&[u8]]) -> Result<bool, BrokenPort> {
        Ok(self.send_and_name(parts)?.is_some())
    }

    /// Sends a frame that counts under two numbers, one of each kind, until its buffer comes back; 0 does not count. So a
    /// program knows how many buffers each destination and each of its sockets uses.
    pub fn send_parts_under(&mut self, numbers: [u16; 2], parts: &[&[u8]]) -> Result<bool, BrokenPort> {
        let Some(buffer) = self.send_and_name(parts)? else { return Ok(false) };
        for (of, number) in self.outstanding.iter_mut().zip(numbers).filter(|(_, number)| *number != 0) {
            let at = usize::from(number);
            if of.len() <= at {
                of.resize(at + 1, 0);
            }
            of[at] += 1;
        }
        self.under[buffer as usize] = numbers;
        Ok(true)
    }

    /// Buffers that were sent under a number of the first or second kind (0, 1) and have not come back as of the last check.
    pub fn outstanding(&self, kind: usize, number: u16) -> u32 {
        self.outstanding[kind].get(usize::from(number)).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn send_and_name(&mut self, parts: &[&[u8]]) -> Result<Option<u32>, BrokenPort> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(FRAME_BYTES.contains(&len), "a frame of {len} bytes");
        if self.sendable(1)? == 0 {
            return Ok(None);
        }
        let Some(buffer) = self.stock.pop() else { return Ok(None) };
        let mut at = 0;
        for part in parts {
            self.buffers.write_at(buffer, at, part);
            at += part.len();
        }
        self.send.push(entry(buffer, len as u32));
        Ok(Some(buffer))
    }

    /// How many frames can be sent now; returned buffers are only collected if there are fewer than `enough`.
    #[inline(always)]
    pub fn sendable(&mut self, enough: u32) -> Result<u32, BrokenPort> {
        if self.stock.len() < enough as usize {
            self.reap()?;
        }
        let mut room = self.send.known_room();
        if room < enough {
            room = self.send.room()?;
        }
        Ok(room.min(self.stock.len() as u32))
    }

    /// Receives a frame into `into`; its length. A frame longer than `into` is truncated.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, BrokenPort> {
        let Some(frame) = self.receive_and_keep(into)? else { return Ok(None) };
        self.give_back(frame.buffer)?;
        Ok(Some(frame.len as usize))
    }

    /// Receives a frame, and keeps its buffer until [`Client::give_back`].
    #[inline(always)]
    pub fn receive_and_keep(&mut self, into: &mut [u8]) -> Result<Option<Descriptor>, BrokenPort> {
        let Some(next) = self.receive.pop()? else { return Ok(None) };
        let frame = from_entry(next);
        if frame.buffer >= self.buffers.count() || frame.len as usize > BUFFER_BYTES {
            return Err(BrokenPort);
        }
        let copied = into.len().min(frame.len as usize);
        self.buffers.read(frame.buffer, &mut into[..copied]);
        Ok(Some(frame))
    }

    /// Returns the buffer of a kept frame.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u32) -> Result<(), BrokenPort> {
        if self.free.known_room() == 0 && self.free.room()? == 0 {
            return Err(BrokenPort);
        }
        self.free.push(entry(buffer, 0));
        Ok(())
    }

    /// Copies the first bytes of a kept frame.
    pub fn read(&self, buffer: u32, into: &mut [u8]) {
        self.buffers.read(buffer, into);
    }

    /// Reports the full sockets at these UDP ports, the first [`FULL_MAX`] of them: the switch leaves their datagrams with the
    /// senders. After a port is removed from the list, the switch must be woken, whether it sleeps or not.
    pub fn set_full(&mut self, udp_ports: &[u16]) {
        let listed = &udp_ports[..udp_ports.len().min(FULL_MAX)];
        for (i, four) in listed.chunks(4).enumerate() {
            let long = four.iter().rev().fold(0, |long, &port| long << 16 | u64::from(port));
            self.region.long(AT_FULL + 8 * i).store(long, Ordering::Relaxed);
        }
        self.region.word(AT_FULL_COUNT).store(listed.len() as u32, Ordering::Release);
    }

    /// Shows the switch the new entries; returns whether it sleeps and has to be woken.
    #[inline(always)]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.receive.publish();
        let sent = self.send.publish();
        self.free.publish() | sent
    }

    /// Announces that the program sleeps until it can receive or send; returns whether it may sleep.
    pub fn fall_asleep(&mut self) -> Result<bool, BrokenPort> {
        self.fall_asleep_until(1)
    }

    /// Falls asleep, for a program that wants to send `enough` frames at once.
    pub fn fall_asleep_until(&mut self, enough: u32) -> Result<bool, BrokenPort> {
        Ok(self.receive.fall_asleep()? & (self.stock.len() >= enough as usize || self.returned.fall_asleep()?))
    }

    /// The number of buffers for sending, and for receiving.
    pub fn half(&self) -> u32 {
        self.buffers.count() / 2
    }
}
