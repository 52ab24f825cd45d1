//! The loop: takes frames from ports, asks [`Vale`] where they go, and copies them there when there is room.
//!
//! A frame stays in its sender's memory until it is delivered. What is decided about it is decided on a copy of its first
//! bytes, which are also what is delivered: a program that changes a frame after it was checked changes its payload only.
//! Between two ports in shared memory, or two guests, a frame is copied once, straight; between all others by way of memory
//! that nobody else can write.

use crate::port::{BrokenPort, Delivery, Descriptor, Offload, Passed, Port, Segmentation};
use crate::remote::{Jobs, Remote};
use crate::shm;
use crate::tap::{Direction, Tap};
use crate::vhost;
use rustix::event::{PollFd, Timespec};
use sluicenet_node::vale::{Action, Counters, Header, Route, Vale, ValeConfig};
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Frames taken from a port before it is the next one's turn.
const BURST: usize = 64;

/// How often the watchdog looks, far below any detection time.
const WATCH_EVERY: Duration = Duration::from_ms(5);

/// A watchdog that did not look for so long was not there: what it found last may have changed ever since.
const AWAY: Duration = Duration::from_ms(20);

/// How long the loop turns without a frame before it goes to sleep. Turns of ports in shared memory take 0.1 us, those of
/// network devices 10.
const PATIENCE: Duration = Duration::from_us(20);

/// A port without room for so many bytes is stuck.
const SMALL_FRAME: u32 = 60;

/// Events that may wait for whoever reads them; what they tell is counted at the ports in any case.
const EVENTS_MAX: usize = 4096;

/// Room for the largest frame a guest may send to be cut into segments, and its headers.
const SCRATCH_BYTES: usize = 1 << 17;

/// A frame in the memory of the port it came from.
#[derive(Clone, Copy, Debug)]
struct Lent {
    head: [u64; 2],
    buffer: u32,
    /// Its length, above the number of its port.
    len_and_owner: u32,
}

impl Lent {
    #[inline(always)]
    fn new(frame: Descriptor, head: [u64; 2], owner: usize) -> Lent {
        Lent { head, buffer: frame.buffer, len_and_owner: frame.len << 8 | owner as u32 }
    }
    #[inline(always)]
    fn len(self) -> u32 {
        self.len_and_owner >> 8
    }
    #[inline(always)]
    fn owner(self) -> usize {
        (self.len_and_owner & 0xff) as usize
    }
}

/// What the machine at a port may send and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The broadcast domain of all its frames, which then carry no VLAN of their own; without it, the VLAN of each frame.
    pub domain: Option<u16>,
    /// The traffic class of all its frames; without it, what the frame's own 802.1Q tag says.
    pub priority: Option<Priority>,
    /// The only IPv4 address it may send from.
    pub address: Option<Ipv4Addr>,
}

/// What is behind a port. The one without a detour is the one of every frame.
#[allow(clippy::large_enum_variant)]
enum Kind {
    /// Memory that a program shares: the fast path.
    Shm(shm::Port),
    /// The queues of a guest.
    Vhost(Box<vhost::Port>),
    /// Anything else.
    Other(Box<dyn Port>),
}

impl Kind {
    #[inline(always)]
    fn get(&self) -> &dyn Port {
        match self {
            Kind::Shm(port) => port,
            Kind::Vhost(port) => &**port,
            Kind::Other(port) => &**port,
        }
    }
    #[inline(always)]
    fn get_mut(&mut self) -> &mut dyn Port {
        match self {
            Kind::Shm(port) => port,
            Kind::Vhost(port) => &mut **port,
            Kind::Other(port) => &mut **port,
        }
    }
}

/// Calls a method of a port; of one in shared memory or of a guest directly.
macro_rules! call {
    ($kind:expr, $method:ident($($argument:expr),*)) => {
        match $kind {
            Kind::Shm(port) => Port::$method(port, $($argument),*),
            Kind::Vhost(port) => port.$method($($argument),*),
            Kind::Other(port) => port.$method($($argument),*),
        }
    };
}

/// A port that somebody is or was at.
struct Attached {
    name: String,
    kind: Kind,
    access: Access,
    /// Bytes of the frames it sent, and of those it got.
    bytes_from: u64,
    bytes_to: u64,
    /// Who looks on.
    tap: Option<Box<Tap>>,
    /// Copies of a flooded frame beyond the first, by buffer.
    extra: Vec<u8>,
    /// Whether nothing has to be looked at but the first bytes of its frames.
    plain: bool,
    /// Whether it still sends and receives; a port that left stays until its last frame is delivered.
    present: bool,
    /// What it sends has to wait: for a receiver, or until it takes its buffers back.
    blocked: bool,
    /// Segments that have been delivered of the frame that is next for it, by class: of one that is cut on the way.
    cut: [u32; 8],
    /// How much had changed in the switch when its next frame was found to have to wait for a receiver.
    waits_since: Option<u64>,
}

/// What happened at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Frames by fate.
    pub counters: Counters,
    /// Bytes of the frames it sent, each counted once.
    pub bytes_from: u64,
    /// Bytes of the frames it got.
    pub bytes_to: u64,
    /// What the port itself counted, by name.
    pub own: Vec<(&'static str, u64)>,
    /// Whether the watchdog keeps everything from it.
    pub isolated: bool,
    /// Frames that wait at its output, by class.
    pub output: [u32; 8],
    /// Frames that wait at its input for an output that is full, by class.
    pub input: [u32; 8],
    /// Frames of it that the switch holds.
    pub lent: u32,
    /// The ports whose full outputs its frames wait for, one bit each.
    pub waits_for: u64,
}

/// Something that happens seldom, and that somebody may want to know at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The port's name.
    pub port: String,
    /// What happened there.
    pub what: Happened,
}

/// What happened at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It is no longer served, for this reason.
    Broken(&'static str),
    /// The watchdog keeps everything from it.
    Isolated,
    /// It no longer does.
    Restored,
    /// The agent in the guest is not heard of any more: the port is no longer limited by it.
    AgentLost,
}

/// Why a port could not be taken into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugError {
    /// Somebody is there.
    Occupied(usize),
    /// There are not so many.
    NoSuchPort(usize),
}

impl std::fmt::Display for PlugError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlugError::Occupied(k) => write!(f, "somebody is at port {k}"),
            PlugError::NoSuchPort(k) => write!(f, "the switch has no port {k}"),
        }
    }
}
impl std::error::Error for PlugError {}
impl From<PlugError> for io::Error {
    fn from(e: PlugError) -> io::Error {
        io::Error::new(io::ErrorKind::AlreadyExists, e)
    }
}

/// A switch and its ports.
pub struct Engine {
    vale: Vale<Lent>,
    ports: Vec<Option<Attached>>,
    /// Beyond this port nobody ever was.
    upto: usize,
    /// Frames the switch dropped for want of room, to be given back.
    dropped: Vec<Lent>,
    /// A frame between two ports, where nobody else can write it.
    scratch: Box<[u8]>,
    watched: Instant,
    started: std::time::Instant,
    jobs: Jobs,
    sleeps: u64,
    /// Grows with every change after which a frame that had to wait may not have to any more.
    changes: u64,
    events: Option<SyncSender<Event>>,
}

impl Engine {
    /// A switch of up to `ports` (1 to 64), nobody at them.
    pub fn new(ports: usize, config: ValeConfig) -> Engine {
        Engine {
            vale: Vale::new(ports, config),
            ports: (0..ports).map(|_| None).collect(),
            upto: 0,
            dropped: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            watched: Instant::ZERO,
            started: std::time::Instant::now(),
            jobs: Jobs::default(),
            sleeps: 0,
            changes: 0,
            events: None,
        }
    }

    /// A handle by which other threads reach the switch while it runs.
    pub fn remote(&mut self) -> io::Result<Remote> {
        self.jobs.remote()
    }

    /// What happens from now on.
    pub fn events(&mut self) -> Receiver<Event> {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        self.events = Some(sender);
        receiver
    }

    fn tell(&self, k: usize, what: Happened) {
        if let (Some(events), Some(attached)) = (&self.events, &self.ports[k]) {
            // Who does not read does not want to know.
            let _ = events.try_send(Event { port: attached.name.clone(), what });
        }
    }

    /// Time since the switch was made.
    pub fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_ns(self.started.elapsed().as_nanos() as u64)
    }

    /// A port at which nobody is or was.
    pub fn vacant_port(&self) -> Option<usize> {
        self.ports.iter().position(Option::is_none)
    }

    /// How many ports there may be.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// The port of that name at which somebody is.
    pub fn port_named(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|p| p.as_ref().is_some_and(|p| p.present && p.name == name))
    }

    /// Makes a port in shared memory with `buffers` of them (a power of two from 2 to 65,536); nobody may be at it.
    pub fn plug_shm(&mut self, k: usize, name: &str, buffers: u32) -> io::Result<shm::Access> {
        self.check_vacant(k)?;
        let (port, access) = shm::Port::create(name, buffers)?;
        self.attach(k, name, Kind::Shm(port), Access::default());
        Ok(access)
    }

    /// Takes a guest's port into service; nobody may be there.
    pub fn plug_vhost(&mut self, k: usize, name: &str, port: vhost::Port, access: Access) -> Result<(), PlugError> {
        self.check_vacant(k)?;
        self.attach(k, name, Kind::Vhost(Box::new(port)), access);
        Ok(())
    }

    /// Takes any other port into service; nobody may be there.
    pub fn plug(&mut self, k: usize, name: &str, port: Box<dyn Port>, access: Access) -> Result<(), PlugError> {
        self.check_vacant(k)?;
        self.attach(k, name, Kind::Other(port), access);
        Ok(())
    }

    fn check_vacant(&self, k: usize) -> Result<(), PlugError> {
        match self.ports.get(k) {
            None => Err(PlugError::NoSuchPort(k)),
            Some(Some(_)) => Err(PlugError::Occupied(k)),
            Some(None) => Ok(()),
        }
    }

    fn attach(&mut self, k: usize, name: &str, kind: Kind, access: Access) {
        let attached = Attached {
            name: name.to_owned(),
            plain: matches!(kind, Kind::Shm(_)),
            kind,
            access: Access::default(),
            bytes_from: 0,
            bytes_to: 0,
            tap: None,
            extra: Vec::new(),
            present: true,
            blocked: false,
            waits_since: None,
            cut: [0; 8],
        };
        self.ports[k] = Some(attached);
        self.upto = self.upto.max(k + 1);
        self.changes += 1;
        self.set_access(k, access);
        self.vale.plug(k);
    }

    /// Says what the machine at port `k` may send; whether anybody is there.
    pub fn set_access(&mut self, k: usize, access: Access) -> bool {
        let Some(attached) = self.ports[k].as_mut() else { return false };
        attached.access = access;
        attached.settle();
        true
    }

    /// Has somebody look on at port `k`; whether anybody is there and nobody looks on already.
    pub fn set_tap(&mut self, k: usize, tap: Tap) -> bool {
        self.sweep_taps();
        let Some(attached) = self.ports[k].as_mut().filter(|a| a.present && a.tap.is_none()) else { return false };
        attached.tap = Some(Box::new(tap));
        attached.settle();
        true
    }

    /// Forgets those who look on no more.
    pub fn sweep_taps(&mut self) {
        for attached in self.ports.iter_mut().flatten().filter(|a| a.tap.as_ref().is_some_and(|t| t.is_closed())) {
            attached.tap = None;
            attached.settle();
        }
    }

    /// Takes a port away. What it sent is still delivered; what waits for it is dropped by name.
    pub fn unplug(&mut self, k: usize) {
        self.changes += 1;
        let Engine { vale, ports, dropped, .. } = self;
        if let Some(attached) = ports[k].as_mut().filter(|a| a.present) {
            attached.present = false;
            vale.unplug(k, &mut |frame| dropped.push(frame));
            Engine::capture_dropped(ports, k, dropped, DropReason::PortGone);
            if let Some(attached) = ports[k].as_mut() {
                attached.tap = None;
            }
            Engine::give_back_dropped(ports, dropped);
            if ports[k].as_ref().is_some_and(|a| a.kind.get().lent() == 0) {
                ports[k] = None;
            }
        }
    }

    /// Gives a station to a port; whether the table had room.
    pub fn give(&mut self, mac: [u8; 6], domain: u16, k: usize) -> bool {
        let now = self.now();
        self.changes += 1;
        self.vale.give(now, Station::new(mac, domain), k)
    }

    /// Says to every port that leads elsewhere which station is at a port here, or no longer is.
    pub fn announce(&mut self, domain: u16, mac: [u8; 6], address: Ipv4Addr, here: bool) {
        let now = self.now();
        for attached in self.ports.iter_mut().flatten().filter(|a| a.present) {
            if let Kind::Other(port) = &mut attached.kind {
                port.announce(now, domain, mac, address, here);
            }
        }
    }

    /// Forgets the stations behind port `k`.
    pub fn forget(&mut self, k: usize) {
        self.changes += 1;
        self.vale.forget(k);
    }

    /// What happened at port `k`, if anybody is there.
    pub fn report(&self, k: usize) -> Option<PortReport> {
        let attached = self.ports[k].as_ref()?;
        let mut own = Vec::new();
        attached.kind.get().counters(&mut |name, value| own.push((name, value)));
        Some(PortReport {
            name: attached.name.clone(),
            counters: *self.vale.counters(k),
            bytes_from: attached.bytes_from,
            bytes_to: attached.bytes_to,
            own,
            isolated: self.vale.is_isolated(k),
            output: std::array::from_fn(|p| self.vale.output_len(k, p as Priority)),
            input: std::array::from_fn(|p| self.vale.input_len(k, p as Priority)),
            lent: attached.kind.get().lent(),
            waits_for: self.vale.waits_for(k),
        })
    }

    /// Frames that wait, a copy for each port.
    pub fn queued(&self) -> u64 {
        self.vale.queued()
    }

    /// Times the loop went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Changes the watchdog while traffic runs; what is isolated stays so until it moves.
    pub fn set_watchdog(&mut self, action: Action, detection_time: Duration, restoration_time: Duration) {
        self.vale.set_watchdog(action, detection_time, restoration_time);
    }

    /// Frames accepted, delivered and dropped; panics when they and what is queued do not add up, which only a fault of
    /// this program can cause.
    pub fn ledger(&self) -> (u64, u64, u64) {
        let (accepted, delivered, dropped) = self.vale.ledger();
        assert_eq!(accepted, delivered + dropped + self.vale.queued(), "the switch's books do not balance");
        (accepted, delivered, dropped)
    }

    /// One turn: takes what ports send and delivers what has room. Returns the number of frames that moved.
    pub fn turn(&mut self) -> usize {
        let now = self.now();
        let mut moved = 0;
        // All of them first: what one has fetched from another core's cache is on its way while the next one looks.
        for k in 0..self.upto {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            if call!(&mut attached.kind, on_turn(now)).is_err() {
                self.broken(k);
            }
        }
        for j in 0..self.upto {
            match self.take_in(now, j) {
                Ok(frames) => moved += frames,
                Err(BrokenPort) => self.broken(j),
            }
        }
        for k in 0..self.upto {
            match self.deliver(now, k) {
                Ok(frames) => moved += frames,
                Err(BrokenPort) => self.broken(k),
            }
        }
        let mut shown = false;
        for k in 0..self.upto {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            match &mut attached.kind {
                Kind::Shm(port) => port.publish(),
                Kind::Vhost(port) => shown |= port.show_used(),
                Kind::Other(port) => {
                    if port.publish().is_err() {
                        self.broken(k);
                    }
                }
            }
        }
        if shown {
            // One for all guests: it waits for what was written to reach them.
            fence(Ordering::SeqCst);
            for attached in self.ports[..self.upto].iter_mut().flatten().filter(|a| a.present) {
                if let Kind::Vhost(port) = &mut attached.kind {
                    port.call_if_wanted();
                }
            }
        }
        if now.since(self.watched) >= WATCH_EVERY {
            self.watch(now);
        }
        moved
    }

    #[inline]
    fn take_in(&mut self, now: Instant, j: usize) -> Result<usize, BrokenPort> {
        let Engine { vale, ports, dropped, scratch, changes, .. } = self;
        match &mut ports[j] {
            None => return Ok(0),
            Some(attached) => {
                if attached.waits_since == Some(*changes) {
                    return Ok(0);
                }
                (attached.blocked, attached.waits_since) = (false, None);
            }
        }
        let mut taken = 0;
        while taken < BURST {
            let Some(from) = ports[j].as_mut().filter(|a| a.present) else { return Ok(taken) };
            let Some(frame) = call!(&mut from.kind, next_frame())? else {
                from.blocked |= call!(&from.kind, owes_room());
                return Ok(taken);
            };
            // Two numbers and no array, which would be in memory: it is written in halves and read whole, and so only after all that
            // was written before, the receiver's memory, has been fetched from the receiver's core.
            let [low, high] = call!(&from.kind, head(frame.buffer));
            let head = [low, high];
            let header = match (from.plain, &from.kind) {
                (true, _) => header(head),
                (false, kind) => match admit(head, &from.access, kind.get(), frame) {
                    Ok(header) => header,
                    Err(reason) => {
                        vale.refuse(j, reason);
                        from.accept(frame, head, Some(reason));
                        call!(&mut from.kind, give_back(frame.buffer));
                        taken += 1;
                        continue;
                    }
                },
            };
            let lent = Lent::new(frame, head, j);
            match vale.route(now, j, &header) {
                Route::To(k) => {
                    if let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([j, k]) {
                        if vale.is_clear(k)
                            && let Some(run) = pass_run(from, to, head, (BURST - taken) as u32)
                        {
                            let run = run?;
                            if run.frames > 0 {
                                vale.pass(j, k, run.frames);
                                taken += run.frames as usize;
                                from.bytes_from += run.bytes;
                                to.bytes_to += run.bytes;
                                continue;
                            }
                        }
                        if !(matches!(to.kind, Kind::Shm(_)) && from.plain & to.tap.is_none()) {
                            match offer(vale.is_clear(k), from, to, lent, &header, scratch) {
                                Offered::Delivered => {
                                    vale.pass(j, k, 1);
                                    taken += 1;
                                    from.accept(frame, head, None);
                                    call!(&mut from.kind, give_back(frame.buffer));
                                    continue;
                                }
                                Offered::Never(reason) => {
                                    vale.turn_away(j, k, reason);
                                    taken += 1;
                                    from.accept(frame, head, Some(reason));
                                    call!(&mut from.kind, give_back(frame.buffer));
                                    continue;
                                }
                                Offered::NotNow => {}
                            }
                        }
                    }
                    let queued = vale.queue(now, j, k, header.priority, lent, &mut |frame| dropped.push(frame));
                    let Some(from) = &mut ports[j] else { return Ok(taken) };
                    if queued.is_err() {
                        from.blocked = true;
                        if call!(&mut from.kind, hold()) {
                            continue;
                        }
                        // With several classes to show, another may go on though nothing changes here.
                        if matches!(from.kind, Kind::Shm(_)) {
                            from.waits_since = Some(*changes);
                        }
                        return Ok(taken);
                    }
                    from.accept(frame, head, None);
                }
                Route::All => {
                    let members = members(ports, header.destination.domain());
                    let copies = vale.flood(now, j, header.priority, lent, members);
                    let Some(from) = &mut ports[j] else { return Ok(taken) };
                    from.accept(frame, head, None);
                    if copies == 0 {
                        call!(&mut from.kind, give_back(frame.buffer));
                    } else {
                        from.set_extra(frame.buffer, (copies - 1) as u8);
                    }
                }
                Route::Drop(reason) => {
                    let Some(from) = &mut ports[j] else { return Ok(taken) };
                    from.accept(frame, head, Some(reason));
                    call!(&mut from.kind, give_back(frame.buffer));
                }
            }
            taken += 1;
            if !dropped.is_empty() {
                Engine::give_back_dropped(ports, dropped);
            }
        }
        Ok(taken)
    }

    #[inline]
    fn deliver(&mut self, now: Instant, k: usize) -> Result<usize, BrokenPort> {
        let Engine { vale, ports, dropped, scratch, changes, .. } = self;
        let mut delivered = 0;
        if !vale.is_ready(k, PrioritySet::ALL) {
            return Ok(0);
        }
        while let Some(to) = ports[k].as_mut().filter(|a| a.present) {
            let takes = call!(&mut to.kind, takes());
            if !vale.is_ready(k, takes) {
                break;
            }
            let Some((priority, frame)) = vale.next(k, takes, &mut |frame| dropped.push(frame)) else { break };
            let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([frame.owner(), k]) else {
                unreachable!("a frame of nobody, or for its own sender")
            };
            if let (Kind::Shm(sender), Kind::Shm(receiver), true) =
                (&mut from.kind, &mut to.kind, from.plain & to.tap.is_none())
            {
                let Some(empty) = receiver.empty_buffer()? else { break };
                vale.take(now, k, priority);
                sender.copy_to(frame.buffer, frame.len(), frame.head, receiver, empty);
                to.bytes_to += u64::from(frame.len());
            } else if fits(from, to, frame) {
                let offload = call!(&from.kind, offload(frame.buffer));
                let outcome = if call!(&to.kind, takes_offload(&offload)) {
                    if !call!(&mut to.kind, reserve(frame.len(), &offload))? {
                        break;
                    }
                    hand_over(from, to, frame, priority, scratch)
                } else {
                    let mut cut = to.cut[usize::from(priority)];
                    let outcome = finish(from, to, frame, priority, scratch, &mut cut);
                    to.cut[usize::from(priority)] = cut;
                    match outcome? {
                        Finished::NotYet => break,
                        Finished::Delivered => Ok(()),
                        Finished::Never(reason) => Err(reason),
                    }
                };
                vale.take(now, k, priority);
                if let Err(reason) = outcome {
                    vale.spoil(k, reason);
                }
            } else {
                vale.take(now, k, priority);
                vale.spoil(k, DropReason::TooBig);
                to.capture_lost(from, frame, DropReason::TooBig);
            }
            Engine::give_back(ports, frame);
            delivered += 1;
        }
        *changes += delivered as u64;
        if !dropped.is_empty() {
            Engine::give_back_dropped(ports, dropped);
        }
        Ok(delivered)
    }

    /// A copy of a frame is done with; after the last its sender has its buffer back.
    #[inline(always)]
    fn give_back(ports: &mut [Option<Attached>], frame: Lent) {
        let slot = &mut ports[frame.owner()];
        let Some(attached) = slot else { return };
        if let Some(extra) = attached.extra.get_mut(frame.buffer as usize)
            && *extra > 0
        {
            *extra -= 1;
            return;
        }
        call!(&mut attached.kind, give_back(frame.buffer));
        if !attached.present && call!(&attached.kind, lent()) == 0 {
            *slot = None;
        }
    }

    #[cold]
    fn give_back_dropped(ports: &mut [Option<Attached>], dropped: &mut Vec<Lent>) {
        for frame in dropped.drain(..) {
            Engine::give_back(ports, frame);
        }
    }

    #[cold]
    fn watch(&mut self, now: Instant) {
        let gap = now.since(self.watched);
        if gap >= AWAY {
            self.vale.was_away(gap);
        }
        self.watched = now;
        self.changes += 1;
        for k in 0..self.ports.len() {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            if attached.kind.get_mut().lost_agent() {
                self.tell(k, Happened::AgentLost);
            }
            let Some(attached) = self.ports[k].as_mut() else { continue };
            let Ok(has_room) = attached.kind.get_mut().reserve(SMALL_FRAME, &Offload::NONE) else {
                self.broken(k);
                continue;
            };
            let Engine { vale, dropped, ports, .. } = self;
            let (was, before) = (vale.is_isolated(k), dropped.len());
            vale.watch(now, k, has_room, &mut |frame| dropped.push(frame));
            let is = vale.is_isolated(k);
            if is && let Some(attached) = &mut ports[k] {
                attached.cut = [0; 8];
            }
            if was != is {
                Engine::capture_dropped(ports, k, &dropped[before..], DropReason::Watchdog);
                self.tell(k, if is { Happened::Isolated } else { Happened::Restored });
            }
        }
        Engine::give_back_dropped(&mut self.ports, &mut self.dropped);
    }

    /// Shows whoever looks on at port `k` what it does not get.
    #[cold]
    fn capture_dropped(ports: &mut [Option<Attached>], k: usize, frames: &[Lent], reason: DropReason) {
        for frame in frames {
            if let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([frame.owner(), k]) {
                to.capture_lost(from, *frame, reason);
            }
        }
    }

    /// A port is no longer served.
    #[cold]
    fn broken(&mut self, k: usize) {
        if let Some(why) = self.ports[k].as_ref().filter(|a| a.present).map(|a| a.kind.get().why_broken()) {
            self.tell(k, Happened::Broken(why));
        }
        self.unplug(k);
    }

    /// Does what other threads asked for.
    #[cold]
    fn do_jobs(&mut self) {
        while let Some(job) = self.jobs.next() {
            job(self);
        }
    }

    /// Turns until `stop`, asleep while there is nothing to do.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut idle = None;
        while !stop.load(Ordering::Relaxed) {
            if self.jobs.are_there() {
                self.do_jobs();
            }
            if self.turn() > 0 {
                idle = None;
                continue;
            }
            let now = self.now();
            if now.since(*idle.get_or_insert(now)) < PATIENCE {
                std::hint::spin_loop();
                continue;
            }
            idle = None;
            self.sleep()?;
        }
        self.do_jobs();
        Ok(())
    }

    /// Waits until a program wakes the switch, or the watchdog or a port has to look.
    fn sleep(&mut self) -> io::Result<()> {
        let mut quiet = !self.jobs.are_there();
        for k in 0..self.ports.len() {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            // A port that has to wait is not waited for: who lets it go on wakes the switch, or the watchdog looks.
            match attached.kind.get_mut().fall_asleep(attached.blocked) {
                Ok(asleep) => quiet &= asleep,
                Err(BrokenPort) => self.broken(k),
            }
        }
        if quiet {
            self.sleeps += 1;
            let present = || self.ports.iter().flatten().filter(|a| a.present);
            // An isolated port is looked after until it is restored, whether anything moves or not.
            let isolated = (0..self.ports.len()).any(|k| self.vale.is_isolated(k));
            let waiting = isolated || self.vale.queued() > 0 || present().any(|a| a.blocked);
            let mut wait = if waiting { WATCH_EVERY } else { Duration::from_ms(100) };
            let now = self.now();
            for deadline in present().filter_map(|a| a.kind.get().poll_timeout()) {
                wait = Duration(wait.0.min(deadline.0.saturating_sub(now.0)));
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: (wait.0 / 1_000) as i64 };
            let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.ports.len() + 1);
            self.jobs.waker(&mut fds);
            present().for_each(|a| a.kind.get().wakers(&mut fds));
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            if !waiting {
                // Nobody was stuck while there was nothing to do.
                self.watched = self.now();
            }
        }
        self.jobs.wake_up();
        self.ports.iter_mut().flatten().filter(|a| a.present).for_each(|a| a.kind.get_mut().wake_up());
        Ok(())
    }
}

impl Attached {
    /// Whether its frames may take the straight way.
    fn settle(&mut self) {
        self.plain = matches!(self.kind, Kind::Shm(_)) && self.access == Access::default() && self.tap.is_none();
    }

    /// A frame goes out here, or is dropped on its last step.
    #[inline]
    fn look_at(&mut self, len: u32, bytes: &[u8], dropped: Option<DropReason>) {
        if let Some(tap) = &mut self.tap {
            tap.take(Direction::Out, len, dropped, |into| into.copy_from_slice(&bytes[..into.len()]));
        }
        if dropped.is_none() {
            self.bytes_to += u64::from(len);
        }
    }

    /// Takes the frame that it showed; `dropped`, when that is the end of it.
    #[inline(always)]
    fn accept(&mut self, frame: Descriptor, head: [u64; 2], dropped: Option<DropReason>) {
        self.bytes_from += u64::from(frame.len);
        if let Some(tap) = &mut self.tap {
            let kind = &self.kind;
            tap.take(Direction::In, frame.len, dropped, |into| {
                call!(kind, read(frame.buffer, into));
                put_head(head, into);
            });
        }
        call!(&mut self.kind, accept());
    }

    /// Shows whoever looks on a frame of `from` that this port does not get.
    #[cold]
    fn capture_lost(&mut self, from: &Attached, lent: Lent, reason: DropReason) {
        if let Some(tap) = &mut self.tap {
            tap.take(Direction::Out, lent.len(), Some(reason), |into| {
                call!(&from.kind, read(lent.buffer, into));
                put_head(lent.head, into);
            });
        }
    }

    #[cold]
    fn set_extra(&mut self, buffer: u32, copies: u8) {
        let buffer = buffer as usize;
        if self.extra.len() <= buffer {
            self.extra.resize(buffer + 1, 0);
        }
        self.extra[buffer] = copies;
    }
}

/// Passes frames between two ports of a kind for as long as what was decided about the first, `head`, holds for those that
/// follow; `None` where each has to be looked at.
#[inline(always)]
fn pass_run(from: &mut Attached, to: &mut Attached, head: [u64; 2], limit: u32) -> Option<Result<Passed, BrokenPort>> {
    let unseen = from.tap.is_none() & to.tap.is_none();
    match (&mut from.kind, &mut to.kind) {
        (Kind::Shm(sender), Kind::Shm(receiver)) if from.plain & unseen => {
            Some(sender.pass_run(receiver, head, run_mask(head), limit))
        }
        (Kind::Vhost(sender), Kind::Vhost(receiver)) if unseen & from.access.address.is_none() & to.present => {
            Some(Ok(sender.pass_run(receiver, head, run_mask(head), limit)))
        }
        _ => None,
    }
}

/// What became of a frame that was offered to a port.
enum Offered {
    Delivered,
    NotNow,
    Never(DropReason),
}

/// Delivers a frame that nothing has to wait for, if there is room for it now.
#[inline]
fn offer(
    clear: bool,
    from: &mut Attached,
    to: &mut Attached,
    lent: Lent,
    header: &Header,
    scratch: &mut [u8],
) -> Offered {
    if !fits(from, to, lent) {
        to.capture_lost(from, lent, DropReason::TooBig);
        return Offered::Never(DropReason::TooBig);
    }
    if !clear || !to.present || !call!(&mut to.kind, takes()).contains(header.priority) {
        return Offered::NotNow;
    }
    let offload = call!(&from.kind, offload(lent.buffer));
    // What is left to be done is done when it is the receiver's turn; that one is broken is found then, too.
    if !call!(&to.kind, takes_offload(&offload)) {
        return Offered::NotNow;
    }
    if !call!(&mut to.kind, reserve(lent.len(), &offload)).unwrap_or(false) {
        return Offered::NotNow;
    }
    match hand_over(from, to, lent, header.priority, scratch) {
        Ok(()) => Offered::Delivered,
        Err(reason) => Offered::Never(reason),
    }
}

/// Whether a port can take a frame at all.
#[inline]
fn fits(from: &Attached, to: &Attached, lent: Lent) -> bool {
    let longest = call!(&to.kind, max_frame());
    let offload = call!(&from.kind, offload(lent.buffer));
    lent.len() as usize <= SCRATCH_BYTES / 2
        && match offload.segmentation {
            Segmentation::None => lent.len() <= longest,
            _ => u32::from(offload.headers) + u32::from(offload.segment) <= longest,
        }
}

/// Copies a frame to a port that has reserved room, by way of memory that nobody else can write.
#[inline]
fn hand_over(
    from: &Attached,
    to: &mut Attached,
    lent: Lent,
    priority: Priority,
    scratch: &mut [u8],
) -> Result<(), DropReason> {
    let (bytes, dropped) = fetch(from, lent, scratch);
    to.look_at(lent.len(), bytes, dropped);
    if let Some(reason) = dropped {
        return Err(reason);
    }
    let offload = call!(&from.kind, offload(lent.buffer));
    let delivery = Delivery { bytes, offload, domain: domain_of(from, lent), priority };
    call!(&mut to.kind, deliver(&delivery));
    Ok(())
}

/// Copies a frame to where nobody else can write it, and looks why its sender may not send it, if so.
#[inline]
fn fetch<'a>(from: &Attached, lent: Lent, scratch: &'a mut [u8]) -> (&'a mut [u8], Option<DropReason>) {
    let bytes = &mut scratch[..lent.len() as usize];
    call!(&from.kind, read(lent.buffer, bytes));
    put_head(lent.head, bytes);
    let forged = from.access.address.is_some_and(|own| !is_from(bytes, own));
    (bytes, forged.then_some(DropReason::ForgedSource))
}

/// The broadcast domain a frame is of.
#[inline]
fn domain_of(from: &Attached, lent: Lent) -> u16 {
    let own = call!(&from.kind, domain(lent.buffer));
    own.or(from.access.domain).unwrap_or_else(|| tag(lent.head) & 0xfff)
}

/// What became of a frame of which something is left to be done.
enum Finished {
    Delivered,
    NotYet,
    Never(DropReason),
}

/// Does what a sender left to be done to a frame, for a receiver that cannot; of a frame that is cut, `cut` segments have
/// been delivered already.
#[cold]
fn finish(
    from: &Attached,
    to: &mut Attached,
    lent: Lent,
    priority: Priority,
    scratch: &mut [u8],
    cut: &mut u32,
) -> Result<Finished, BrokenPort> {
    let offload = call!(&from.kind, offload(lent.buffer));
    let domain = domain_of(from, lent);
    let (scratch, segment) = scratch.split_at_mut(SCRATCH_BYTES / 2);
    let (bytes, dropped) = fetch(from, lent, scratch);
    if let Some(reason) = dropped {
        to.look_at(lent.len(), bytes, dropped);
        return Ok(Finished::Never(reason));
    }
    let (start, offset) = offload.checksum.unwrap_or_default();
    let network = match offload.segmentation {
        Segmentation::None => {
            if !call!(&mut to.kind, reserve(lent.len(), &Offload::NONE))? {
                return Ok(Finished::NotYet);
            }
            if finish_checksum(bytes, start.into(), offset.into()).is_err() {
                return Ok(Finished::Never(DropReason::Malformed));
            }
            to.look_at(lent.len(), bytes, None);
            let delivery = Delivery { bytes, offload: Offload::NONE, domain, priority };
            call!(&mut to.kind, deliver(&delivery));
            return Ok(Finished::Delivered);
        }
        Segmentation::Tcp4 => Network::V4,
        Segmentation::Tcp6 => Network::V6,
    };
    // A sender that changed its headers after they were read, or whose frame is not what it said.
    let Ok(cutter) = Cutter::new(bytes, network, start.into(), offload.segment.into()) else {
        return Ok(Finished::Never(DropReason::Malformed));
    };
    while (*cut as usize) < cutter.count() {
        let len = cutter.len(*cut as usize);
        if len > segment.len() || len as u32 > call!(&to.kind, max_frame()) {
            *cut = 0;
            return Ok(Finished::Never(DropReason::TooBig));
        }
        if !call!(&mut to.kind, reserve(len as u32, &Offload::NONE))? {
            return Ok(Finished::NotYet);
        }
        cutter.emit(*cut as usize, false, &mut segment[..len]);
        to.look_at(len as u32, &segment[..len], None);
        let delivery = Delivery { bytes: &segment[..len], offload: Offload::NONE, domain, priority };
        call!(&mut to.kind, deliver(&delivery));
        *cut += 1;
    }
    *cut = 0;
    Ok(Finished::Delivered)
}

/// The ports that a frame for all stations of a domain goes to, one bit each.
#[cold]
fn members(ports: &[Option<Attached>], domain: u16) -> u64 {
    let is_member = |port: &Option<Attached>| {
        port.as_ref().is_some_and(|a| a.present && a.access.domain.is_none_or(|own| own == domain))
    };
    (0..ports.len()).filter(|&k| is_member(&ports[k])).fold(0, |members, k| members | 1 << k)
}

/// Puts what was decided about in place of a frame's first bytes, as far as it has them.
#[inline(always)]
fn put_head(head: [u64; 2], bytes: &mut [u8]) {
    for (place, half) in bytes.chunks_mut(8).zip(head) {
        place.copy_from_slice(&half.to_le_bytes()[..place.len()]);
    }
}

/// Whether a frame is from that IPv4 address, or carries none.
fn is_from(bytes: &[u8], own: Ipv4Addr) -> bool {
    let at = if bytes.get(12..14) == Some(&[0x81, 0x00]) { 16 } else { 12 };
    let source = match bytes.get(at..at + 2) {
        Some([0x08, 0x00]) => bytes.get(at + 14..at + 18),
        // ARP: the sender's protocol address.
        Some([0x08, 0x06]) => bytes.get(at + 16..at + 20),
        _ => return true,
    };
    // A machine that looks for its address asks without one (RFC 5227).
    source == Some(&own.octets()) || source == Some(&[0; 4])
}

/// The 802.1Q tag of a frame, or 0.
#[inline(always)]
fn tag(head: [u64; 2]) -> u16 {
    let tagged = head[1] >> 32 & 0xffff == 0x0081;
    if tagged { ((head[1] >> 48) as u16).swap_bytes() } else { 0 }
}

/// The bits of the second half of a frame's first 16 bytes on which its way depends: the rest of the source, the type, and
/// what follows it if that is an 802.1Q tag.
#[inline(always)]
fn run_mask(head: [u64; 2]) -> u64 {
    if head[1] >> 32 & 0xffff == 0x0081 { u64::MAX } else { 0xffff_ffff_ffff }
}

/// What the switch reads of a frame's first 16 bytes.
#[inline(always)]
fn header(head: [u64; 2]) -> Header {
    // 802.1Q: the priority counts, and the VLAN is a broadcast domain of its own.
    let tag = tag(head);
    Header {
        destination: Station::from_number(head[0], tag),
        source: Station::from_number(head[0] >> 48 | head[1] << 16, tag),
        priority: (tag >> 13) as u8,
        // 01-80-C2-00-00-00 to -0F.
        reserved: head[0] & 0xf0ff_ffff_ffff == 0x00_00_00_c2_80_01,
    }
}

/// The same for a port that may not send everything.
fn admit(head: [u64; 2], access: &Access, port: &dyn Port, frame: Descriptor) -> Result<Header, DropReason> {
    let tag = tag(head);
    let own = port.domain(frame.buffer);
    if own.is_none() && access.domain.is_some() && tag & 0xfff != 0 {
        return Err(DropReason::ForgedSource);
    }
    let domain = own.or(access.domain).unwrap_or(tag & 0xfff);
    let priority = access.priority.or_else(|| port.priority(frame.buffer)).unwrap_or((tag >> 13) as u8);
    Ok(Header {
        destination: Station::from_number(head[0], domain),
        source: Station::from_number(head[0] >> 48 | head[1] << 16, domain),
        priority,
        ..header(head)
    })
}
