//! The driver's end of a vhost-user port: a guest without a machine around it.
//!
//! The driver shares memory of its own, sets up queues as QEMU would for a guest, and sends and receives frames. Tests
//! misbehave like a hostile driver through [`Driver::ring`] and [`Driver::memory`].

use super::header::{EVENT_IDX, HEADER_BYTES, MRG_RXBUF, PROTOCOL_FEATURES, header_bytes};
use super::memory::{Desc, Layout, Memory, Ring, Span};
use crate::port::BrokenPort;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Where the memory begins, as the guest counts and as its frontend does.
pub const GUEST_AT: u64 = 0x4000_0000;
const USER_AT: u64 = 0x7000_0000_0000;

/// The properties of the driver.
#[derive(Clone, Copy, Debug)]
pub struct DriverConfig {
    /// Features it knows, of those in [`super::header`].
    pub features: u64,
    /// Pairs of queues.
    pub pairs: u16,
    /// Descriptors in a queue, a power of two.
    pub queue_size: u16,
    /// Bytes of each buffer.
    pub buffer_bytes: u32,
    /// Whether the driver asks the switch to record chains in flight.
    pub inflight: bool,
}

impl Default for DriverConfig {
    /// All features, one pair of queues of 256, buffers for a frame of 1,518 bytes.
    fn default() -> DriverConfig {
        let features = super::header::OFFERED;
        DriverConfig { features, pairs: 1, queue_size: 256, buffer_bytes: 2048, inflight: false }
    }
}

/// A queue, as its driver has it.
#[derive(Debug)]
struct Queue {
    ring: Ring,
    /// Buffer `i`, which descriptor `i` names.
    spans: Vec<Span>,
    /// Chains made available; and how many of them the device knows of.
    avail: u16,
    published: u16,
    /// Used entries taken; and how many there are.
    used: u16,
    used_seen: u16,
    /// Descriptors of no chain.
    free: Vec<u16>,
    kick: EventFd,
    call: EventFd,
}

impl Queue {
    #[inline(always)]
    fn next_used(&mut self) -> Option<(u16, u32)> {
        if self.used == self.used_seen {
            self.used_seen = self.ring.used_idx();
            if self.used == self.used_seen {
                return None;
            }
        }
        let entry = (self.ring.used_id(self.used) as u16, self.ring.used_len(self.used));
        self.used = self.used.wrapping_add(1);
        Some(entry)
    }

    #[inline(always)]
    fn offer(&mut self, head: u16) {
        self.ring.set_avail_entry(self.avail, head);
        self.avail = self.avail.wrapping_add(1);
    }

    /// Shows the device the available chains; returns whether it wants to be kicked.
    #[inline(always)]
    fn publish(&mut self, event_idx: bool) -> bool {
        if self.avail == self.published {
            return false;
        }
        self.ring.set_avail_idx(self.avail);
        let before = std::mem::replace(&mut self.published, self.avail);
        // The index must be seen before it is asked whether the device sleeps, which asks in the other order.
        fence(Ordering::SeqCst);
        if event_idx {
            let event = self.ring.avail_event();
            self.avail.wrapping_sub(event).wrapping_sub(1) < self.avail.wrapping_sub(before)
        } else {
            self.ring.used_flags() & 1 == 0
        }
    }
}

/// A frame the driver received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the frame.
    pub len: usize,
    /// The header in front of the frame.
    pub header: [u8; HEADER_BYTES as usize],
}

/// A virtio network driver and its frontend.
pub struct Driver {
    frontend: Frontend,
    file: OwnedFd,
    memory: Arc<Memory>,
    features: u64,
    config: DriverConfig,
    /// Receive and transmit queues in turn.
    queues: Vec<Queue>,
    inflight: Option<(VhostUserInflight, OwnedFd)>,
    kicks: u64,
}

fn failed(e: impl std::fmt::Display) -> io::Error {
    io::Error::other(e.to_string())
}

impl Driver {
    /// Connects to the switch at `path` and sets all queues up, empty buffers in those to receive with.
    pub fn connect(path: &Path, config: DriverConfig) -> io::Result<Driver> {
        Driver::over(UnixStream::connect(path)?, config)
    }

    /// Starts a driver over an existing connection.
    pub fn over(connection: UnixStream, config: DriverConfig) -> io::Result<Driver> {
        let n = u64::from(config.queue_size);
        let ring_bytes =
            (16 * n).next_multiple_of(64) + (6 + 2 * n).next_multiple_of(64) + (6 + 8 * n).next_multiple_of(64);
        let queue_bytes = ring_bytes.next_multiple_of(4096) + n * u64::from(config.buffer_bytes);
        let queue_bytes = queue_bytes.next_multiple_of(4096);
        let len = queue_bytes * 2 * u64::from(config.pairs);
        let file = memfd_create("guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len)?;
        let memory = Memory::default().with(Layout { guest: GUEST_AT, user: USER_AT, len, offset: 0 }, &file)?;
        let memory = Arc::new(memory);
        let event = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC);
        let mut queues = Vec::new();
        for k in 0..2 * u64::from(config.pairs) {
            let at = k * queue_bytes;
            let avail = at + (16 * n).next_multiple_of(64);
            let used = avail + (6 + 2 * n).next_multiple_of(64);
            let ring = Ring::new(&memory, config.queue_size, USER_AT + at, USER_AT + avail, USER_AT + used);
            let ring = ring.ok_or_else(|| io::Error::other("a queue outside of its own memory"))?;
            let buffers = GUEST_AT + at + ring_bytes.next_multiple_of(4096);
            let mut spans = Vec::new();
            for i in 0..config.queue_size {
                let addr = buffers + u64::from(i) * u64::from(config.buffer_bytes);
                let flags = if k % 2 == 0 { Desc::WRITE } else { 0 };
                ring.set_desc(i, Desc { addr, len: config.buffer_bytes, flags, next: 0 });
                spans.extend(memory.find(addr, config.buffer_bytes));
            }
            let free = (0..config.queue_size).rev().collect();
            let (kick, call) = (event()?, event()?);
            queues.push(Queue { ring, spans, avail: 0, published: 0, used: 0, used_seen: 0, free, kick, call });
        }
        for queue in queues.iter_mut().step_by(2) {
            while let Some(i) = queue.free.pop() {
                queue.offer(i);
            }
            queue.ring.set_avail_idx(queue.avail);
            queue.published = queue.avail;
        }
        let frontend = Frontend::from_stream(connection, 2 * u64::from(config.pairs));
        let mut driver = Driver { frontend, file, memory, features: 0, config, queues, inflight: None, kicks: 0 };
        driver.set_up(len)?;
        Ok(driver)
    }

    /// Connects to a restarted switch, and goes on with the queues as they are.
    pub fn reconnect(&mut self, path: &Path) -> io::Result<()> {
        self.frontend = Frontend::from_stream(UnixStream::connect(path)?, 2 * u64::from(self.config.pairs));
        let len = rustix::fs::fstat(&self.file)?.st_size as u64;
        self.set_up(len)
    }

    fn set_up(&mut self, len: u64) -> io::Result<()> {
        self.frontend.set_owner().map_err(failed)?;
        let offered = self.frontend.get_features().map_err(failed)?;
        self.features = offered & (self.config.features | PROTOCOL_FEATURES);
        let protocol = self.frontend.get_protocol_features().map_err(failed)?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        self.frontend.set_protocol_features(protocol & wanted).map_err(failed)?;
        self.frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        self.frontend.set_features(self.features).map_err(failed)?;
        if self.config.inflight {
            let queues = self.queues.len() as u16;
            if self.inflight.is_none() {
                let asked = VhostUserInflight::new(0, 0, queues, self.config.queue_size);
                let (given, file) = self.frontend.get_inflight_fd(&asked).map_err(failed)?;
                self.inflight = Some((given, file.into()));
            }
            if let Some((given, file)) = &self.inflight {
                self.frontend.set_inflight_fd(given, file.as_raw_fd()).map_err(failed)?;
            }
        }
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST_AT,
            memory_size: len,
            userspace_addr: USER_AT,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region]).map_err(failed)?;
        for index in 0..self.queues.len() {
            // Only the used index is known, not the index at which the device would go on (as after a crash of the device).
            let next = self.queues[index].ring.used_idx();
            self.start_queue(index, next)?;
        }
        Ok(())
    }

    /// Tells the switch about a queue that is not running, the next entry of which is `next`.
    pub fn start_queue(&mut self, index: usize, next: u16) -> io::Result<()> {
        let n = u64::from(self.config.queue_size);
        let queue = &self.queues[index];
        let at = USER_AT + self.queue_at(index);
        let avail = at + (16 * n).next_multiple_of(64);
        let config = VringConfigData {
            queue_max_size: self.config.queue_size,
            queue_size: self.config.queue_size,
            flags: 0,
            desc_table_addr: at,
            used_ring_addr: avail + (6 + 2 * n).next_multiple_of(64),
            avail_ring_addr: avail,
            log_addr: None,
        };
        self.frontend.set_vring_num(index, self.config.queue_size).map_err(failed)?;
        self.frontend.set_vring_addr(index, &config).map_err(failed)?;
        self.frontend.set_vring_base(index, next).map_err(failed)?;
        self.frontend.set_vring_call(index, &queue.call).map_err(failed)?;
        self.frontend.set_vring_kick(index, &queue.kick).map_err(failed)?;
        self.frontend.set_vring_enable(index, true).map_err(failed)
    }

    /// Has the switch stop a queue; returns its next available entry.
    pub fn stop_queue(&mut self, index: usize) -> io::Result<u16> {
        self.frontend.get_vring_base(index).map(|base| base as u16).map_err(failed)
    }

    fn queue_at(&self, index: usize) -> u64 {
        let len = rustix::fs::fstat(&self.file).map_or(0, |s| s.st_size as u64);
        len / self.queues.len() as u64 * index as u64
    }

    /// The frontend's end of the connection.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// The file of the memory.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The negotiated features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// A queue: even ones are to receive, odd ones to send.
    pub fn ring(&self, index: usize) -> &Ring {
        &self.queues[index].ring
    }

    /// Times it woke the switch.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Wakes the switch for a queue.
    pub fn kick(&mut self, index: usize) {
        self.kicks += 1;
        // The write fails only if the counter is full, and then a wake-up is pending already.
        let _ = self.queues[index].kick.write(1);
    }

    /// Sends a frame; `false` when there are too few buffers: the switch holds them back.
    #[inline(always)]
    pub fn send(&mut self, frame: &[u8]) -> Result<bool, BrokenPort> {
        self.send_with(0, &[0; HEADER_BYTES as usize], frame)
    }

    /// Sends a frame by a pair of queues with this header, over as many buffers as it takes.
    #[inline(always)]
    pub fn send_with(
        &mut self,
        pair: usize,
        header: &[u8; HEADER_BYTES as usize],
        frame: &[u8],
    ) -> Result<bool, BrokenPort> {
        let header = &header[..header_bytes(self.features) as usize];
        let size = self.config.buffer_bytes as usize;
        let total = header.len() + frame.len();
        let needed = total.div_ceil(size);
        let queue = &mut self.queues[2 * pair + 1];
        if queue.free.len() < needed {
            reap(queue)?;
            if queue.free.len() < needed {
                return Ok(false);
            }
        }
        let Some(head) = queue.free.pop() else { return Ok(false) };
        let span = queue.spans[head as usize];
        let first = frame.len().min(size - header.len());
        self.memory.write(span, 0, header);
        self.memory.write(span, header.len(), &frame[..first]);
        let mut desc = Desc::from_halves(queue.ring.desc_addr(head), 0);
        desc.len = (header.len() + first) as u32;
        if needed == 1 {
            queue.ring.set_desc(head, desc);
        } else {
            let mut at = head;
            for piece in frame[first..].chunks(size) {
                let Some(next) = queue.free.pop() else { return Err(BrokenPort) };
                queue.ring.set_desc(at, Desc { flags: Desc::NEXT, next, ..desc });
                self.memory.write(queue.spans[next as usize], 0, piece);
                desc = Desc { addr: queue.ring.desc_addr(next), len: piece.len() as u32, flags: 0, next: 0 };
                at = next;
            }
            queue.ring.set_desc(at, desc);
        }
        queue.offer(head);
        Ok(true)
    }

    /// Receives a frame into `into` without its header; returns its length.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, BrokenPort> {
        Ok(self.receive_with(0, into)?.map(|received| received.len))
    }

    /// Receives a frame from the queues of `pair`, with its header. Bytes that do not fit into `into` are cut off.
    #[inline(always)]
    pub fn receive_with(&mut self, pair: usize, into: &mut [u8]) -> Result<Option<Received>, BrokenPort> {
        let header_bytes = header_bytes(self.features) as usize;
        let queue = &mut self.queues[2 * pair];
        let Some((id, len)) = queue.next_used() else { return Ok(None) };
        let span = *queue.spans.get(id as usize).ok_or(BrokenPort)?;
        if len > span.len || (len as usize) < header_bytes {
            return Err(BrokenPort);
        }
        let mut header = [0; HEADER_BYTES as usize];
        self.memory.read(span, 0, &mut header[..header_bytes]);
        let len = len as usize - header_bytes;
        let copied = len.min(into.len());
        self.memory.read(span, header_bytes, &mut into[..copied]);
        queue.offer(id);
        let mut received = Received { len, header };
        if self.features & MRG_RXBUF != 0 {
            for _ in 1..u16::from_le_bytes([header[10], header[11]]) {
                let (id, len) = queue.next_used().ok_or(BrokenPort)?;
                let span = *queue.spans.get(id as usize).ok_or(BrokenPort)?;
                let from = received.len.min(into.len());
                let upto = (received.len + len as usize).min(into.len());
                self.memory.read(span, 0, &mut into[from..upto]);
                queue.offer(id);
                received.len += len as usize;
            }
        }
        Ok(Some(received))
    }

    /// Buffers to send with, once those that came back are taken.
    pub fn free_buffers(&mut self, pair: usize) -> Result<usize, BrokenPort> {
        let queue = &mut self.queues[2 * pair + 1];
        reap(queue)?;
        Ok(queue.free.len())
    }

    /// Shows the switch the changes of the queues, and wakes it if it sleeps.
    #[inline(always)]
    pub fn publish(&mut self) {
        for index in 0..self.queues.len() {
            if self.queues[index].publish(self.features & EVENT_IDX != 0) {
                self.kick(index);
            }
        }
    }

    /// Gives the guest a page of memory more, as if it had been plugged in while it runs.
    pub fn add_memory(&mut self, guest: u64) -> io::Result<()> {
        let file = memfd_create("more", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, 4096)?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: guest,
            memory_size: 4096,
            userspace_addr: USER_AT + guest,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        self.frontend.add_mem_region(&region).map_err(failed)?;
        Ok(())
    }

    /// Shows the switch the changes of the queues, and never wakes it.
    pub fn publish_silently(&mut self) {
        for queue in &mut self.queues {
            let _ = queue.publish(self.features & EVENT_IDX != 0);
        }
    }
}

/// Takes back the chains that the device has given back.
#[inline(always)]
fn reap(queue: &mut Queue) -> Result<(), BrokenPort> {
    while let Some((id, _)) = queue.next_used() {
        let mut at = id;
        loop {
            if at >= queue.ring.size() || queue.free.len() >= queue.spans.len() {
                return Err(BrokenPort);
            }
            queue.free.push(at);
            let rest = Desc::from_halves(0, queue.ring.desc_rest(at));
            if rest.flags & Desc::NEXT == 0 {
                break;
            }
            at = rest.next;
        }
    }
    Ok(())
}
