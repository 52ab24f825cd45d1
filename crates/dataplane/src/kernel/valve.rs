//! The veth valve: a tenant's namespace at the switch, without loss from `send()` to `recv()`.
//!
//! ```text
//! send() blocks <- socket's send buffer <- queue of the tenant's device <- ring of the veth (256) <- polled by the switch only
//! recv() <- socket's receive buffer <- the stack, to which frames are handed only when the socket has room for them
//! ```
//! The switch's end of the veth is in NAPI mode, by `gro on`. That stays when the switch is killed, and so does the
//! backpressure. With `napi_defer_hard_irqs` and a long `gro_flush_timeout` only the switch polls the device: one busy poll at
//! a time, when there is room for the frames that it can bring. Before the switch sleeps, it enables the device's interrupts
//! again.
//!
//! A tenant's own segmentation would not go by the ring: a veth whose `tso` is on has its frames go past it
//! (`veth_skb_is_eligible_for_gro`), and past what holds them back. So segments are made in front of the queue (see `hold`),
//! and merged again by the device when it is polled; the packet socket says so by a virtio-net header, and takes such frames for
//! the tenant. Without offload a generic XDP program that passes everything keeps the device from merging.
//!
//! A switch that ends in order has the kernel hold the tenant's queue, empties the ring behind it and delivers all it has; the
//! next one lets the queue go when it can take frames. One that is killed loses what it had accepted, and while none runs then,
//! what is in the ring is lost every 2 s.

mod config;
mod ending;
mod learning;
mod listening;
mod parts;
mod pollers;
mod polling;

use super::device::{DEVICE_RETRY, NotSent, not_sent};
use super::diag::{self, Way};
use super::edge::Edge;
use super::error::KernelError;
use super::inbox::{Inbox, take_from_inbox};
use super::netlink::Netlink;
use super::pool::{Fetched, Pool, TAG_LEN, TOGETHER};
use super::stage::{Found, Frame, Host, Receiver, Sender, Stage};
use super::sys::{self, BATCH};
use super::tenant_queue::{Mark, TenantQueue};
pub use super::veth::Veth;
use crate::port::{BrokenPort, Candidate, Delivery, Inside, Offload, Port, Segmentation};
pub use config::ValveConfig;
use ending::Ending;
use learning::Learning;
pub use listening::Listening;
use listening::{boot_frame, longest_frame};
use parts::Sockets;
pub use parts::{OpenValve, ValveFacts};
pub use pollers::{Pollers, Polls};
use polling::{Rest, Unasked};
use rustix::event::{PollFd, PollFlags};
use sluicenet_node::vale::WatchdogConfig;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{self, Flow};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A port that is shut has one or two frames polled so often, into its socket, so that the kernel does not poll.
const KEEP_SHUT: Duration = Duration::from_secs(1);
/// After this number of rounds without a frame, a port is checked only in every `LOOKS`-th round.
const LOOKS: u32 = 8;
/// Frames longer than the device's own, which their sender left to be cut, that the switch holds at most of the tenant, and
/// for it; without so many free buffers of the first kind there is no poll. What one brings beyond them stays in the socket, which
/// has room for it.
const LARGE: u32 = 256;
const LARGE_STAGE: u32 = 128;
const LARGE_NEEDED: u32 = BATCH as u32;
/// Bytes of a frame that may hold its headers.
const HEADERS_MOST: usize = 128;

/// The port's questions to the kernel about the sockets of its tenant.
#[derive(Debug)]
struct Kernel {
    socket: OwnedFd,
    diag: Netlink,
    routes: Netlink,
    /// The number of the tenant's device.
    device: u32,
}

impl Host for Kernel {
    fn find(&mut self, flow: &Flow) -> io::Result<Found> {
        if flow.group && diag::way(&mut self.routes, flow.destination)? == Way::Broadcast {
            return Ok(Found::Group);
        }
        if let Some(socket) = diag::socket(&mut self.diag, flow, self.device)? {
            return Ok(Found::Socket(socket));
        }
        Ok(match diag::way(&mut self.routes, flow.destination)? {
            Way::Local | Way::Broadcast => Found::Nobody,
            Way::Elsewhere => Found::Elsewhere,
        })
    }
    fn find_group(&mut self, flow: &Flow, all: &mut Vec<Receiver>) -> io::Result<Duration> {
        let start = std::time::Instant::now();
        diag::group(&mut self.diag, flow, self.device, all)?;
        Ok(Duration::from_ns(start.elapsed().as_nanos() as u64))
    }
    fn in_flight(&mut self) -> io::Result<u32> {
        sys::in_flight(self.socket.as_fd())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    received: u64,
    sent: u64,
    polls: u64,
    empty_polls: u64,
    bad: u64,
    whole_sent: u64,
    joined_sent: u64,
    device_full: u64,
    shut: u64,
    sleeps: u64,
}

/// The switch's end of a [`Veth`].
#[derive(Debug)]
pub struct ValvePort {
    kernel: Kernel,
    /// Know the number of the device's receive queue, by which the queue is polled.
    pollers: Pollers,
    /// Attached as long as it is open.
    _program: Option<OwnedFd>,
    /// Marks the tenant as served.
    _owner: OwnedFd,
    /// The tenant's own address at its device.
    station: [u8; 6],
    needed: u32,
    longest: u32,
    offload: bool,
    inbox: Inbox,
    /// The frame by which the pollers learned that number; it is not passed on.
    boot: Vec<u8>,
    learning: Learning,
    outbox: Pool,
    stage: Stage,
    now: Instant,
    /// Whether there is no room for a poll.
    shut: bool,
    tenant_queue: TenantQueue,
    /// The progress of the port's end, once the switch ends.
    ending: Option<Ending>,
    /// The frames that the kernel polled.
    unasked: Unasked,
    rest: Rest,
    /// When it was last polled, and the rounds since the last frame.
    polled: Instant,
    quiet: u32,
    device_again: Option<Instant>,
    /// Interrupts are on.
    asleep: bool,
    /// They may still be on, until a frame uses them up.
    interrupts: bool,
    counters: Counters,
    socket_drops: Cell<u64>,
    edge: RefCell<Edge>,
    candidates: Vec<u32>,
}

impl ValvePort {
    /// A port at the pair. Frames that wait there from an earlier switch are kept.
    pub fn open(veth: Veth<'_>, config: &ValveConfig) -> Result<ValvePort, KernelError> {
        Ok(ValvePort::of(Listening::open(veth, config)?.learn(veth, config)?, config))
    }

    /// A port at the pair of an open valve.
    pub fn of(valve: OpenValve, config: &ValveConfig) -> ValvePort {
        let OpenValve { sockets, diag, routes, device, tenant_queue, edge, .. } = valve;
        let Sockets { program, socket, pollers, reserve, owner } = sockets;
        let longest = longest_frame(valve.mtu);
        ValvePort {
            kernel: Kernel { socket, diag, routes, device },
            boot: boot_frame(pollers.port),
            pollers,
            _program: program,
            _owner: owner,
            station: valve.station,
            needed: config.needed(),
            longest,
            offload: config.offload,
            inbox: Inbox::new(Pool::with_large(config.buffers, longest, LARGE)),
            learning: Learning::new(reserve),
            outbox: Pool::with_large(config.stage, longest, LARGE_STAGE),
            stage: Stage::new(valve.charges, config.stage, config.watchdog),
            now: Instant::ZERO,
            shut: false,
            tenant_queue,
            ending: None,
            unasked: Unasked::default(),
            rest: Rest::default(),
            polled: Instant::ZERO,
            quiet: 0,
            device_again: None,
            asleep: false,
            interrupts: false,
            counters: Counters::default(),
            socket_drops: Cell::new(0),
            edge: RefCell::new(edge),
            candidates: Vec::with_capacity(BATCH),
        }
    }

    /// Fetches the polled frames; if there are none and there is room, polls once.
    fn fetch(&mut self) -> Result<(), BrokenPort> {
        let fetched = self.drain()?;
        let unasked = self.unasked.fetched(fetched);
        if !self.interrupts {
            // A shut queue lets one frame go.
            if unasked && !self.rest.is_held() {
                self.keep_shut();
            }
        } else if unasked {
            // The frame that woke the port used up the interrupt; the next check sees further frames.
            self.interrupts = false;
        } else {
            self.interrupts_off();
        }
        if fetched > 0 {
            return Ok(());
        }
        if !self.has_room() {
            if self.shut {
                self.stay_shut(false);
            } else {
                self.counters.shut += 1;
                self.shut = true;
                self.keep_shut();
            }
            return Ok(());
        }
        self.shut = false;
        self.poll(false)
    }

    /// Whether there are buffers for the frames of a poll.
    fn has_room(&self) -> bool {
        self.inbox.pool().free() >= self.needed && self.inbox.pool().free_large() >= LARGE_NEEDED
    }

    /// A check takes some system calls. A quiet port is checked only now and then, so that it does not delay others.
    fn is_worth_a_look(&mut self) -> bool {
        self.quiet += 1;
        if self.quiet == 2 * LOOKS {
            self.quiet = LOOKS;
        }
        self.quiet <= LOOKS
    }

    /// Polls once; `calm` if interrupts are to come afterwards.
    fn poll(&mut self, calm: bool) -> Result<(), BrokenPort> {
        self.counters.polls += 1;
        self.polled = self.now;
        let poller = if calm { &self.pollers.calm } else { &self.pollers.busy };
        sys::busy_poll(poller.as_fd());
        if self.drain()? == 0 {
            self.counters.empty_polls += 1;
        }
        self.unasked.polled();
        Ok(())
    }

    /// Fetches the polled frames for which there are buffers.
    fn drain(&mut self) -> Result<usize, BrokenPort> {
        let ValvePort { inbox, kernel, boot, counters, ending, quiet, rest, learning, now, .. } = self;
        let (mut all, mut theirs) = (0, 0);
        while inbox.pool().has_room_for_any() {
            let wanted = |frame: &[u8]| match Mark::of(frame) {
                Some(Mark::Kick) => {
                    rest.wake();
                    false
                }
                Some(Mark::Rouse) => false,
                Some(Mark::Trace) => {
                    ending.iter_mut().for_each(Ending::traced);
                    false
                }
                None => *boot != frame,
            };
            let fetched = match inbox.receive(kernel.socket.as_fd(), true, wanted) {
                Ok(fetched) => fetched,
                // Reported once when the device is switched off; it may come back.
                Err(e) if e.raw_os_error() == Some(libc::ENETDOWN) => {
                    learning.forget(*now);
                    Fetched::default()
                }
                // The virtio-net header cannot describe the first frame, which is lost.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    counters.bad += 1;
                    rest.came(*now, 1);
                    Fetched::default()
                }
                Err(_) => return Err(BrokenPort),
            };
            if fetched.frames > 0 {
                *quiet = 0;
            }
            counters.received += (fetched.frames - fetched.unwanted) as u64;
            counters.bad += fetched.bad as u64;
            all += fetched.frames;
            theirs += fetched.frames - fetched.unwanted;
            if fetched.frames < BATCH {
                break;
            }
        }
        if theirs > 0 {
            rest.came(*now, theirs);
        }
        Ok(all)
    }

    /// Hands over the frames for which sockets have room.
    fn pump(&mut self) -> Result<(), BrokenPort> {
        let ValvePort { kernel, outbox, stage, candidates, counters, now, device_again, offload, .. } = self;
        let most = if *offload { TOGETHER } else { BATCH };
        if device_again.is_some_and(|again| *now < again) {
            return Ok(());
        }
        *device_again = None;
        for _ in 0..stage.active_queues() {
            let offered = stage.offer(*now, kernel, most, candidates, &mut |buffer| outbox.release(buffer));
            let Some(queue) = offered.map_err(|_| BrokenPort)? else { break };
            if candidates.is_empty() {
                continue;
            }
            let socket = kernel.socket.as_fd();
            let sent = match offload {
                true => outbox.send_joined(socket, candidates),
                false => outbox.send_each(socket, candidates),
            };
            match sent {
                Ok(sent) => {
                    counters.sent += sent.frames as u64;
                    counters.joined_sent += sent.joined as u64;
                    stage.sent(queue, sent.frames, &mut |buffer| outbox.release(buffer));
                    if sent.full {
                        counters.device_full += 1;
                        *device_again = Some(now.saturating_add(DEVICE_RETRY));
                        break;
                    }
                }
                Err(e) => match not_sent(&e) {
                    NotSent::Full => {
                        counters.device_full += 1;
                        *device_again = Some(now.saturating_add(DEVICE_RETRY));
                        break;
                    }
                    NotSent::TooLong => stage.refuse(queue, &mut |buffer| outbox.release(buffer)),
                    NotSent::Gone => return Err(BrokenPort),
                },
            }
        }
        Ok(())
    }
}

impl Port for ValvePort {
    fn set_watchdog(&mut self, watchdog: WatchdogConfig) {
        self.stage.set_watchdog(watchdog);
    }

    fn on_round(&mut self, now: Instant) -> Result<(), BrokenPort> {
        self.now = now;
        self.inbox.begin_round();
        if self.ending.is_some() {
            self.end()?;
        } else {
            if self.inbox.is_quiet() && self.is_worth_a_look() {
                self.fetch()?;
            }
            if self.learning.deadline().is_some() {
                self.learn_again()?;
            } else {
                self.let_go()?;
            }
            if now.since(self.polled) >= KEEP_SHUT {
                self.keep_shut();
            }
        }
        let ValvePort { stage, outbox, .. } = self;
        stage.expire(now, &mut |buffer| outbox.release(buffer));
        if !self.stage.is_empty() {
            self.pump()?;
        }
        Ok(())
    }

    take_from_inbox!(inbox);

    fn owes_room(&self) -> bool {
        self.inbox.waiting() == 0 && !self.has_room()
    }

    fn max_frame(&self) -> u32 {
        // Including a tag, which the device does not count. The device refuses a longer frame without a tag.
        self.longest + TAG_LEN as u32
    }

    fn admits(&mut self, frame: Candidate, read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        let (mut start, len) = ([0; HEADERS_MOST], frame.len as usize);
        let start = &mut start[..HEADERS_MOST.min(len)];
        read(start);
        let ValvePort { kernel, stage, now, .. } = self;
        let sender = Sender::of(frame.from, start);
        let cargo = flow::read_start(start, len);
        stage.admits(*now, sender, frame.priority, &cargo, kernel).map_err(|_| BrokenPort)
    }

    fn admits_group(&mut self, frame: Candidate, read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        self.admits(frame, read)
    }

    fn takes_offload(&self, offload: &Offload) -> bool {
        self.offload || offload.is_none()
    }

    fn reserve(&mut self, len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        Ok(self.outbox.has_room(len))
    }

    fn deliver(&mut self, frame: &Delivery<'_>) {
        let ValvePort { kernel, outbox, stage, now, counters, .. } = self;
        let Some(buffer) = outbox.store(frame.bytes, frame.offload) else { unreachable!("room was reserved") };
        counters.whole_sent += u64::from(frame.offload.segmentation != Segmentation::None);
        let sender = Sender::of(frame.from, frame.bytes);
        let stored = Frame { buffer, len: frame.bytes.len() as u32, class: frame.priority };
        let release = &mut |buffer| outbox.release(buffer);
        // A kernel that no longer answers is found when frames are handed over.
        let _ = stage.insert(*now, stored, sender, flow::read(frame.bytes), kernel, release);
    }

    fn publish(&mut self) -> Result<(), BrokenPort> {
        if self.stage.is_empty() { Ok(()) } else { self.pump() }
    }

    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        // Without room, the tenant's frames stay in the kernel; the port wants no interrupt and no poll by the kernel.
        if !self.has_room() {
            return Ok(!self.stay_shut(true) && blocked);
        }
        if !self.inbox.is_quiet() {
            return Ok(false);
        }
        self.asleep = true;
        self.counters.sleeps += 1;
        if self.learning.deadline().is_none() {
            self.rest();
        }
        self.interrupts_on()?;
        Ok(self.inbox.is_quiet())
    }

    fn sleeps_on(&self) -> bool {
        self.asleep && self.inbox.is_quiet()
    }

    fn wake_up(&mut self) {
        self.quiet = 0;
        self.asleep = false;
    }

    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.asleep {
            fds.push(PollFd::new(&self.kernel.socket, PollFlags::IN));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let rest = if self.asleep { self.rest.deadline(self.now) } else { None };
        let stage = self.device_again.or_else(|| self.stage.poll_timeout());
        stage.into_iter().chain(rest).chain(self.learning.deadline()).min()
    }

    fn station(&self) -> Option<[u8; 6]> {
        Some(self.station)
    }

    fn close(&mut self) {
        self.wake_up();
        self.begin_to_end();
    }

    fn held(&self) -> u32 {
        let (small, large) = self.outbox.used();
        // Frames that the tenant's kernel has not taken in yet are not in its sockets, where the next switch looks for them.
        let on_its_way = sys::in_flight(self.kernel.socket.as_fd()).unwrap_or(0) > 0;
        let ended = self.ending.as_ref().is_none_or(Ending::is_settled);
        self.inbox.waiting() as u32 + small + large + u32::from(!ended || on_its_way)
    }

    fn inside(&self) -> Inside {
        let (small, large) = self.outbox.used();
        let mut inside = Inside { waiting: small + large, ..Inside::default() };
        let s = &self.stage.counters;
        for (reason, frames) in [
            (DropReason::Watchdog, s.watchdog),
            (DropReason::NoSocket, s.no_socket_dropped),
            (DropReason::StrayFragment, s.stray_fragments),
            (DropReason::TooBig, s.too_long),
        ] {
            inside.lost.count_many(reason, frames, 0);
        }
        inside.refused.count_many(DropReason::Malformed, self.counters.bad, 0);
        inside
    }

    fn why_broken(&self) -> &'static str {
        match self.learning.deadline() {
            _ if self.learning.gone => "its device is gone",
            Some(_) => "its device was switched off, and the port has no sockets left to learn how to poll it",
            None => "its device is gone, or the kernel does not answer",
        }
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.counters;
        show("received", c.received);
        show("sent", c.sent);
        show("whole_received", self.inbox.whole());
        show("whole_sent", c.whole_sent);
        show("joined_sent", c.joined_sent);
        show("polls", c.polls);
        show("empty_polls", c.empty_polls);
        show("shut", c.shut);
        show("sleeps", c.sleeps);
        show("learned_again", self.learning.learned);
        show("queue_changes", self.tenant_queue.changes());
        show("unasked", self.unasked.frames);
        show("bad_frames", c.bad);
        show("device_full", c.device_full);
        let s = &self.stage.counters;
        let (small, large) = self.outbox.used();
        show("waiting_for_sockets", (small + large).into());
        show("socket_queries", s.queries);
        show("watchdog", s.watchdog);
        show("sockets_stuck", s.stuck);
        show("sockets_stuck_now", self.stage.stuck_now());
        show("sockets_isolated", s.isolated);
        show("isolated_for_room", s.isolated_for_room);
        show("share_used_up", s.share_used_up);
        show("no_socket", s.no_socket);
        show("no_socket_dropped", s.no_socket_dropped);
        show("group", s.group);
        show("stray_fragments", s.stray_fragments);
        show("too_long", s.too_long);
        let new = sys::packet_drops(self.kernel.socket.as_fd()).unwrap_or(0);
        self.socket_drops.set(self.socket_drops.get() + u64::from(new));
        show("edge_packet_socket", self.socket_drops.get());
        // A device that is gone has no counters.
        if let Ok(edge) = self.edge.borrow_mut().read() {
            show("edge_qdisc", edge.qdisc);
            show("edge_tenant_device", edge.tenant_device);
            // Each time it was full, the device counted a drop of a frame that the port still has.
            show("edge_switch_device", edge.switch_device.saturating_sub(c.device_full));
            show("edge_softnet", edge.softnet);
            show("edge_sockets", edge.sockets);
            show("edge_reassembly", edge.reassembly);
            show("edge_address", edge.address);
        }
    }
}
