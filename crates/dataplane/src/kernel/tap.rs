//! A TAP device with backpressure by its queue: the second best kind, for tenants whose sockets the switch may not query.
//! A TAP drops frames when its ring is full. So a token bucket is in front of it: nearly closed (XOFF) while the switch holds
//! many of its frames, and open (XON) when it holds few again. The bucket is changed and never replaced, so that waiting frames
//! and the sending sockets go on waiting. The ring takes frames that were on their way, and the switch empties it eagerly.
//! The tenant may leave TCP segmentation and checksums to be done. Such frames go uncut to ports that take them, and the tenant
//! may receive such frames too.
//! Towards the tenant, the room of its sockets is unknown: full sockets drop frames, and count them.

use super::device::{DEVICE_RETRY, NotSent, not_sent};
use super::error::{KernelError, Tried};
use super::inbox::{Inbox, take_from_inbox};
use super::keeper::{Keeper, OwnKeeper};
use super::link::{Links, OPEN_BURST, OPEN_RATE, TokenBucket};
use super::netns::Namespace;
use super::parts::{Descriptors, Parts};
use super::pool::{HEADER_LEN, Pool, TAG_LEN, first_bytes_of};
use super::sys::{self, Wait};
use crate::agent::Agent;
use crate::port::{BrokenPort, Delivery, Inside, Offload, Port, Segmentation};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Frames in the device's ring: as many as may come before XOFF takes effect, up to 4 ms later.
const RING: u32 = 30_000;
/// Bytes that may wait at the bucket: more than the send buffers of all sockets.
const WAITING_BYTES: u32 = 1_000_000_000;
/// The open bucket.
const OPEN: TokenBucket = TokenBucket { rate: OPEN_RATE, burst: OPEN_BURST, limit: WAITING_BYTES };
/// Rate of the nearly closed bucket in bytes per second: the smallest frames fill the ring behind it in half an hour.
const CLOSED_RATE: u64 = 1_000;
/// Bytes that the kernel may add to the length of a frame, for preamble and tag.
const BURST_SLACK: u32 = 86;
/// Frames read in one round.
const READ_MOST: usize = 256;
/// The most uncut frames, longer than the device's own, in the switch in each direction; and the numbers of them for XOFF and
/// XON.
const LARGE: u32 = 256;
const LARGE_XOFF: u32 = 64;
const LARGE_XON: u32 = 16;

/// The settings of a port.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// The most frames of the tenant in the switch.
    pub buffers: u32,
    /// XOFF: the number of frames at which the queue is stopped.
    pub xoff: u32,
    /// XON: the number of frames at which the queue opens again.
    pub xon: u32,
    /// Whether the tenant may leave checksums and TCP segmentation to be done, and receives such frames.
    pub offload: bool,
    /// Whether an agent in the tenant's namespace reports the room of its sockets.
    pub agent: bool,
}

impl Default for TapConfig {
    fn default() -> TapConfig {
        TapConfig { buffers: 4096, xoff: 1024, xon: 256, offload: true, agent: false }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    received: u64,
    sent: u64,
    whole_sent: u64,
    xoff: u64,
    xon: u64,
    failed_changes: u64,
    bad: u64,
    too_long: u64,
    device_full: u64,
}

/// The switch's end of a TAP device.
#[derive(Debug)]
pub struct TapPort {
    tap: OwnedFd,
    keeper: Box<dyn Keeper>,
    /// A socket that sends a frame through the device, to wake its queue.
    kicker: OwnedFd,
    kick: [u8; 60],
    config: TapConfig,
    longest: u32,
    inbox: Inbox,
    held: bool,
    /// The queue is stopped for good.
    closed: bool,
    /// Whether a frame still has to be sent to wake the queue.
    kick_owed: bool,
    outbox: Pool,
    waiting: VecDeque<u32>,
    now: Instant,
    asleep: bool,
    agent: Option<Box<Agent>>,
    /// Frames that were handed to the tenant or wait in `waiting` for it, without marks.
    handed: u64,
    counters: Counters,
    stats: RefCell<(Links, String, u64)>,
}

/// A TAP device that was made, and is not served yet.
#[derive(Debug)]
pub struct OpenTap {
    tap: OwnedFd,
    keeper: Box<dyn Keeper>,
    kicker: OwnedFd,
    links: Links,
    facts: TapFacts,
}

/// The facts about a TAP device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapFacts {
    name: String,
    mac: [u8; 6],
    mtu: u32,
    /// Frames that it has dropped already.
    drops: u64,
}

impl OpenTap {
    /// Creates the device `name` in a tenant's namespace, up and without an address. It is removed when it is closed.
    pub fn create(
        tenant: &Namespace,
        name: &str,
        mac: [u8; 6],
        mtu: u32,
        offload: bool,
    ) -> Result<OpenTap, KernelError> {
        let made = tenant.enter(|| {
            let what = || format!("the TAP device {name}");
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let tap = rustix::fs::open("/dev/net/tun", flags, rustix::fs::Mode::empty())
                .tried(|| "/dev/net/tun (CONFIG_TUN)".to_owned())?;
            sys::make_tap(tap.as_fd(), name, offload).tried(what)?;
            let mut links = Links::open()?;
            links.set_mac(name, mac)?;
            links.set_mtu(name, mtu)?;
            links.set_queue_len(name, RING)?;
            links.set_bucket(name, OPEN)?;
            let keeper = Box::new(keeper(&mut links, name)?);
            let kicker = sys::packet_socket().tried(what)?;
            let link = links.get(name)?;
            sys::bind_packet(kicker.as_fd(), link.index, 0).tried(what)?;
            links.up(name)?;
            let drops = drops(&mut links, name)?;
            let facts = TapFacts { name: name.to_owned(), mac, mtu, drops };
            Ok::<_, KernelError>(OpenTap { tap, keeper, kicker, links, facts })
        })?;
        made.map_err(|e| e.within(tenant.name()))
    }

    /// A keeper for a device that was made, whose own keeper has ended.
    pub fn keeper(tenant: &Namespace, name: &str) -> Result<Box<dyn Keeper>, KernelError> {
        let keeper = tenant.enter(|| keeper(&mut Links::open()?, name))?;
        Ok(Box::new(keeper.map_err(|e| e.within(tenant.name()))?))
    }

    /// Its parts, and its keeper, which stays in this process.
    pub fn into_parts(self) -> (Parts<TapFacts>, Box<dyn Keeper>) {
        let OpenTap { tap, keeper, kicker, links, facts } = self;
        (Parts { facts, descriptors: vec![tap, kicker, links.into_socket()] }, keeper)
    }

    /// The device of these parts, with a keeper that holds its queue.
    ///
    /// # Errors
    /// The descriptors are not as many as a device has.
    pub fn of(parts: Parts<TapFacts>, keeper: Box<dyn Keeper>) -> io::Result<OpenTap> {
        let Parts { facts, descriptors } = parts;
        let mut all = Descriptors::of(descriptors);
        let (tap, kicker, links) = (all.next()?, all.next()?, Links::of(all.next()?));
        all.end()?;
        Ok(OpenTap { tap, keeper, kicker, links, facts })
    }
}

impl TapPort {
    /// Creates the device `name` in a tenant's namespace, up and without an address. It is removed with the port.
    pub fn create(
        tenant: &Namespace,
        name: &str,
        mac: [u8; 6],
        mtu: u32,
        config: &TapConfig,
    ) -> Result<TapPort, KernelError> {
        TapPort::of(OpenTap::create(tenant, name, mac, mtu, config.offload)?, config)
    }

    /// A port at a device that was made.
    ///
    /// # Errors
    /// The settings contradict each other, or the kernel has no random numbers.
    pub fn of(device: OpenTap, config: &TapConfig) -> Result<TapPort, KernelError> {
        if !(config.xon < config.xoff && config.xoff < config.buffers && config.buffers <= 1 << 16) {
            let why = format!("{config:?}: xon < xoff < buffers <= 65536 is expected");
            return Err(KernelError::new("a TAP port", io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let agent = config.agent.then(Agent::new).transpose().tried(|| "random numbers".to_owned())?.map(Box::new);
        let OpenTap { tap, keeper, kicker, links, facts } = device;
        let longest = facts.mtu + HEADER_LEN as u32;
        Ok(TapPort {
            tap,
            keeper,
            kicker,
            kick: kick_frame(facts.mac),
            config: config.clone(),
            longest,
            inbox: Inbox::new(Pool::with_large(config.buffers, longest, LARGE)),
            held: false,
            closed: false,
            kick_owed: false,
            outbox: Pool::with_large(config.buffers, longest, LARGE),
            waiting: VecDeque::new(),
            now: Instant::ZERO,
            asleep: false,
            agent,
            handed: 0,
            counters: Counters::default(),
            stats: RefCell::new((links, facts.name, facts.drops)),
        })
    }

    fn fetch(&mut self) -> Result<(), BrokenPort> {
        let TapPort { tap, inbox, counters, kick, agent, now, .. } = self;
        let mut wanted = |frame: &[u8]| match agent.as_mut().filter(|_| Agent::is_word(first_bytes_of(frame))) {
            Some(agent) => {
                agent.take(*now, frame);
                false
            }
            None => frame != kick.as_slice(),
        };
        for _ in 0..READ_MOST {
            match inbox.read(tap.as_fd(), &mut wanted) {
                Ok(None) => break,
                Ok(Some(wanted)) => counters.received += u64::from(wanted),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => counters.bad += 1,
                Err(e) => match Errno::from_io_error(&e) {
                    // EIO: the device is switched off for a while.
                    Some(Errno::AGAIN | Errno::INTR | Errno::IO) => break,
                    _ => return Err(BrokenPort),
                },
            }
        }
        Ok(())
    }

    /// Sends the tenant's agent a mark, so that it knows how many frames were handed over.
    fn mind_agent(&mut self) {
        let TapPort { agent: Some(agent), outbox, waiting, now, handed, held, .. } = self else { return };
        if *held {
            // Messages of the agent may wait behind stopped frames.
            agent.lease.excuse(*now);
        }
        waiting.extend(outbox.mark(agent, *now, *handed));
    }

    /// Stops the queue or lets it go on.
    fn control(&mut self) {
        let (holds, large) = self.inbox.pool().used();
        let hold = match self.held {
            _ if self.closed => true,
            true => holds > self.config.xon || large > LARGE_XON,
            false => holds >= self.config.xoff || large >= LARGE_XOFF,
        };
        if hold != self.held {
            match if hold { self.keeper.shut() } else { self.keeper.open() } {
                Ok(()) => {
                    self.held = hold;
                    self.kick_owed = !hold;
                    *(if hold { &mut self.counters.xoff } else { &mut self.counters.xon }) += 1;
                }
                // This is tried again in the next round; meanwhile the ring has room.
                Err(_) => self.counters.failed_changes += 1,
            }
        }
        // The opened bucket still sleeps for the time of the closed one, until another frame arrives.
        if self.kick_owed && sys::send(self.kicker.as_fd(), Wait::No, &[&self.kick], None).is_ok() {
            self.kick_owed = false;
        }
    }

    fn flush(&mut self) -> Result<(), BrokenPort> {
        while let Some(&buffer) = self.waiting.front() {
            match self.outbox.write(self.tap.as_fd(), buffer) {
                Ok(()) => self.counters.sent += 1,
                Err(e) => match not_sent(&e) {
                    NotSent::Full => {
                        self.counters.device_full += 1;
                        return Ok(());
                    }
                    NotSent::TooLong => self.counters.too_long += 1,
                    NotSent::Gone => return Err(BrokenPort),
                },
            }
            self.waiting.pop_front();
            self.outbox.release(buffer);
        }
        Ok(())
    }
}

/// The keeper of the queue of a device in this thread's namespace.
fn keeper(links: &mut Links, name: &str) -> Result<OwnKeeper, KernelError> {
    let burst = links.get(name)?.mtu + HEADER_LEN as u32 + BURST_SLACK;
    let shut = TokenBucket { rate: CLOSED_RATE, burst, limit: WAITING_BYTES };
    Ok(OwnKeeper { bucket: links.bucket(name)?, open: OPEN, shut, charge: 0, polls: None })
}

/// Frames that the device and its queue dropped.
fn drops(links: &mut Links, name: &str) -> Result<u64, KernelError> {
    let link = links.get(name)?;
    Ok(link.stats.tx_dropped + links.queue_drops(link.index)?)
}

/// A frame without a receiver that no other program sends: 802's "local experimental" type with our name in it.
fn kick_frame(mac: [u8; 6]) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[0] = 2;
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..27].copy_from_slice(b"sluicenet-xon");
    frame
}

impl Port for TapPort {
    fn on_round(&mut self, now: Instant) -> Result<(), BrokenPort> {
        self.now = now;
        self.inbox.begin_round();
        self.fetch()?;
        self.control();
        self.mind_agent();
        Ok(())
    }

    take_from_inbox!(inbox);

    fn max_frame(&self) -> u32 {
        // Including a tag, which a device does not count.
        self.longest + TAG_LEN as u32
    }

    fn takes_offload(&self, offload: &Offload) -> bool {
        self.config.offload || offload.is_none()
    }

    fn reserve(&mut self, len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        let granted = self.agent.as_ref().is_none_or(|agent| self.handed < agent.lease.limit());
        Ok(granted && self.outbox.has_room(len))
    }

    fn deliver(&mut self, frame: &Delivery<'_>) {
        let Some(buffer) = self.outbox.store(frame.bytes, frame.offload) else { unreachable!("room was reserved") };
        self.counters.whole_sent += u64::from(frame.offload.segmentation != Segmentation::None);
        self.waiting.push_back(buffer);
        self.handed += 1;
    }

    fn lost_agent(&mut self) -> bool {
        self.agent.as_mut().is_some_and(|agent| agent.was_lost())
    }

    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.flush()
    }

    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        self.fetch()?;
        self.control();
        // A blocked port goes on emptying its ring, unless its own buffers are full.
        self.asleep = self.inbox.pool().has_room_for_any();
        Ok(!self.kick_owed && (blocked || self.inbox.is_quiet()))
    }

    fn wake_up(&mut self) {
        self.asleep = false;
    }

    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.asleep {
            fds.push(PollFd::new(&self.tap, PollFlags::IN));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.now.saturating_add(DEVICE_RETRY))
    }

    fn close(&mut self) {
        self.closed = true;
        self.control();
    }

    fn held(&self) -> u32 {
        // Each round empties the ring, as far as there are buffers.
        (self.inbox.waiting() + self.waiting.len()) as u32
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
        show("whole_received", self.inbox.whole());
        show("whole_sent", c.whole_sent);
        show("xoff", c.xoff);
        show("xon", c.xon);
        show("failed_changes", c.failed_changes);
        show("bad_frames", c.bad);
        show("too_long", c.too_long);
        show("device_full", c.device_full);
        let (links, name, before) = &mut *self.stats.borrow_mut();
        // A device that is gone has no counters.
        if let Ok(drops) = drops(links, name) {
            show("edge_tap", drops.saturating_sub(*before));
        }
        if let Some(agent) = &self.agent {
            agent.counters(self.handed, show);
        }
    }
}
