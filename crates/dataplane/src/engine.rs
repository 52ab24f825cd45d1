//! The loop: takes frames from ports, asks [`Vale`] where they go, and copies them there when there is room.
//!
//! A frame stays in its sender's memory until it is delivered, and is copied once. What is decided about it is decided on a
//! copy of its first bytes, which are also what is delivered: a program that changes a frame after it was checked changes its
//! payload only.

use crate::shm::{BrokenPort, Descriptor, Port};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use sluicenet_node::vale::{Counters, Header, Route, Vale, ValeConfig};
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::time::{Duration, Instant};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Frames taken from a port before it is the next one's turn.
const BURST: usize = 64;

/// How often the watchdog looks, far below any detection time.
const WATCH_EVERY: Duration = Duration::from_ms(5);

/// Empty turns before the loop goes to sleep: some 20 us.
const PATIENCE: u32 = 200;

/// A frame in the memory of the port it came from.
#[derive(Clone, Copy, Debug)]
struct Lent {
    head: [u64; 2],
    buffer: u32,
    len: u16,
    owner: u8,
}

/// A port that somebody is or was at.
#[derive(Debug)]
struct Attached {
    port: Port,
    /// Copies of a flooded frame beyond the first, by buffer.
    extra: Vec<u8>,
    /// An empty buffer that was taken and not used.
    spare: Option<u32>,
    /// The program wakes the switch, the switch the program.
    kick: OwnedFd,
    wake: OwnedFd,
    /// Whether it still sends and receives; a port that left stays until its last frame is delivered.
    present: bool,
    /// What it sends has to wait: for a receiver, or until it takes its buffers back.
    blocked: bool,
}

impl Attached {
    /// An empty buffer of the program, if it has given one.
    #[inline(always)]
    fn empty_buffer(&mut self) -> Result<Option<u32>, BrokenPort> {
        match self.spare.take() {
            Some(buffer) => Ok(Some(buffer)),
            None => self.port.empty_buffer(),
        }
    }
}

/// What a program needs to open its port.
#[derive(Debug)]
pub struct Access {
    /// The port's memory, for [`crate::shm::Client::open`].
    pub memory: OwnedFd,
    /// Written to wake the switch.
    pub kick: OwnedFd,
    /// Readable when the switch woke the program.
    pub wake: OwnedFd,
}

/// What happened at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortReport {
    /// Frames by fate.
    pub counters: Counters,
    /// Entries that named no buffer, or a frame too short or too long.
    pub bad_entries: u64,
    /// Whether the watchdog keeps everything from it.
    pub isolated: bool,
}

/// A switch and its ports.
#[derive(Debug)]
pub struct Engine {
    vale: Vale<Lent>,
    ports: Vec<Option<Attached>>,
    /// Frames the switch dropped for want of room, to be given back.
    dropped: Vec<Lent>,
    watched: Instant,
    started: std::time::Instant,
}

impl Engine {
    /// A switch of up to `ports` (1 to 64), nobody at them.
    pub fn new(ports: usize, config: ValeConfig) -> Engine {
        Engine {
            vale: Vale::new(ports, config),
            ports: (0..ports).map(|_| None).collect(),
            dropped: Vec::new(),
            watched: Instant::ZERO,
            started: std::time::Instant::now(),
        }
    }

    /// Time since the switch was made.
    pub fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_ns(self.started.elapsed().as_nanos() as u64)
    }

    /// Makes a port in shared memory with `buffers` of them; nobody may be at it.
    pub fn plug_shm(&mut self, k: usize, name: &str, buffers: u32) -> io::Result<Access> {
        if self.ports[k].is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("somebody is at port {k}")));
        }
        let port = Port::create(name, buffers)?;
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, wake) = (event()?, event()?);
        let access = Access {
            memory: port.region().file().try_clone_to_owned()?,
            kick: kick.try_clone()?,
            wake: wake.try_clone()?,
        };
        let extra = vec![0; buffers as usize];
        self.ports[k] = Some(Attached { port, extra, spare: None, kick, wake, present: true, blocked: false });
        self.vale.plug(k);
        Ok(access)
    }

    /// Takes a port away. What it sent is still delivered; what waits for it is dropped by name.
    pub fn unplug(&mut self, k: usize) {
        let Engine { vale, ports, dropped, .. } = self;
        if let Some(attached) = ports[k].as_mut().filter(|a| a.present) {
            attached.present = false;
            vale.unplug(k, &mut |frame| dropped.push(frame));
            Engine::give_back_dropped(ports, dropped);
            if ports[k].as_ref().is_some_and(|a| a.port.lent() == 0) {
                ports[k] = None;
            }
        }
    }

    /// Gives a station to a port; whether the table had room.
    pub fn give(&mut self, mac: [u8; 6], vlan: u16, k: usize) -> bool {
        let now = self.now();
        self.vale.give(now, Station::new(mac, vlan), k)
    }

    /// What happened at port `k`, if anybody is there.
    pub fn report(&self, k: usize) -> Option<PortReport> {
        let attached = self.ports[k].as_ref()?;
        Some(PortReport {
            counters: *self.vale.counters(k),
            bad_entries: attached.port.bad_entries,
            isolated: self.vale.is_isolated(k),
        })
    }

    /// Frames that wait, a copy for each port.
    pub fn queued(&self) -> u64 {
        self.vale.queued()
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
        for j in 0..self.ports.len() {
            match self.take_in(now, j) {
                Ok(frames) => moved += frames,
                Err(BrokenPort) => self.unplug(j),
            }
        }
        for k in 0..self.ports.len() {
            match self.deliver(now, k) {
                Ok(frames) => moved += frames,
                Err(BrokenPort) => self.unplug(k),
            }
        }
        for attached in self.ports.iter_mut().flatten().filter(|a| a.present) {
            if attached.port.publish() {
                // The counter of an eventfd is full only if nobody reads it: awake enough.
                let _ = rustix::io::write(&attached.wake, &1u64.to_ne_bytes());
            }
        }
        if now.since(self.watched) >= WATCH_EVERY {
            self.watch(now);
        }
        moved
    }

    #[inline]
    fn take_in(&mut self, now: Instant, j: usize) -> Result<usize, BrokenPort> {
        let Engine { vale, ports, dropped, .. } = self;
        if let Some(attached) = &mut ports[j] {
            attached.blocked = false;
        }
        for taken in 0..BURST {
            let Some(from) = ports[j].as_mut().filter(|a| a.present) else { return Ok(taken) };
            let Some(frame) = from.port.next_frame()? else {
                from.blocked = from.port.owes_room();
                return Ok(taken);
            };
            let Descriptor { buffer, len } = frame;
            let head = from.port.buffers().head(buffer);
            let header = header(head);
            let cargo = Lent { head, buffer, len, owner: j as u8 };
            match vale.route(now, j, &header) {
                Route::To(k) => {
                    if vale.is_clear(k)
                        && let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([j, k])
                        && let Some(empty) = to.empty_buffer().unwrap_or(None)
                    {
                        from.port.buffers().copy(buffer, len as usize, head, to.port.buffers(), empty);
                        to.port.deliver(Descriptor { buffer: empty, len });
                        from.port.accept();
                        from.port.give_back(buffer);
                        vale.pass(j, k);
                        continue;
                    }
                    let queued = vale.queue(now, j, k, header.priority, cargo, &mut |frame| dropped.push(frame));
                    let Some(from) = &mut ports[j] else { return Ok(taken) };
                    if queued.is_err() {
                        from.blocked = true;
                        return Ok(taken);
                    }
                    from.port.accept();
                }
                Route::All => {
                    let copies = vale.flood(now, j, header.priority, cargo);
                    from.port.accept();
                    if copies == 0 {
                        from.port.give_back(buffer);
                    } else {
                        from.extra[buffer as usize] = (copies - 1) as u8;
                    }
                }
                Route::Drop(_) => {
                    from.port.accept();
                    from.port.give_back(buffer);
                }
            }
            if !dropped.is_empty() {
                Engine::give_back_dropped(ports, dropped);
            }
        }
        Ok(BURST)
    }

    #[inline]
    fn deliver(&mut self, now: Instant, k: usize) -> Result<usize, BrokenPort> {
        let Engine { vale, ports, dropped, .. } = self;
        let mut delivered = 0;
        while vale.is_ready(k) {
            let Some(to) = ports[k].as_mut().filter(|a| a.present) else { break };
            let Some(empty) = to.empty_buffer()? else { break };
            let Some(frame) = vale.take(now, k, &mut |frame| dropped.push(frame)) else {
                to.spare = Some(empty);
                break;
            };
            if let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([frame.owner as usize, k]) {
                from.port.buffers().copy(frame.buffer, frame.len as usize, frame.head, to.port.buffers(), empty);
                to.port.deliver(Descriptor { buffer: empty, len: frame.len });
            }
            Engine::give_back(ports, frame);
            delivered += 1;
        }
        if !dropped.is_empty() {
            Engine::give_back_dropped(ports, dropped);
        }
        Ok(delivered)
    }

    /// A copy of a frame is done with; after the last its sender has its buffer back.
    #[inline(always)]
    fn give_back(ports: &mut [Option<Attached>], frame: Lent) {
        let slot = &mut ports[frame.owner as usize];
        let Some(attached) = slot else { return };
        let extra = &mut attached.extra[frame.buffer as usize];
        if *extra > 0 {
            *extra -= 1;
            return;
        }
        attached.port.give_back(frame.buffer);
        if !attached.present && attached.port.lent() == 0 {
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
        self.watched = now;
        for k in 0..self.ports.len() {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            let Ok(has_room) = attached.port.has_room() else {
                self.unplug(k);
                continue;
            };
            let Engine { vale, dropped, .. } = self;
            vale.watch(now, k, has_room, &mut |frame| dropped.push(frame));
        }
        Engine::give_back_dropped(&mut self.ports, &mut self.dropped);
    }

    /// Turns until `stop`, asleep while there is nothing to do.
    pub fn run(&mut self, stop: &std::sync::atomic::AtomicBool) -> io::Result<()> {
        let mut idle = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            if self.turn() > 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < PATIENCE {
                std::hint::spin_loop();
                continue;
            }
            idle = 0;
            self.sleep()?;
        }
        Ok(())
    }

    /// Waits until a program wakes the switch, or the watchdog has to look.
    fn sleep(&mut self) -> io::Result<()> {
        let mut quiet = true;
        for k in 0..self.ports.len() {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            // A port that has to wait is not waited for: who lets it go on wakes the switch, or the watchdog looks.
            match attached.port.fall_asleep(attached.blocked) {
                Ok(asleep) => quiet &= asleep,
                Err(BrokenPort) => self.unplug(k),
            }
        }
        if quiet {
            let waiting = self.vale.queued() > 0 || self.ports.iter().flatten().any(|a| a.blocked);
            let timeout = if waiting { WATCH_EVERY } else { Duration::from_ms(100) };
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: (timeout.0 / 1_000) as i64 };
            let kicks: Vec<BorrowedFd<'_>> = self.ports.iter().flatten().map(|a| a.kick.as_fd()).collect();
            let mut fds: Vec<PollFd<'_>> = kicks.iter().map(|k| PollFd::from_borrowed_fd(*k, PollFlags::IN)).collect();
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            for kick in kicks {
                // Nothing to read is as good as something.
                let _ = rustix::io::read(kick, &mut [0u8; 8]);
            }
        }
        self.ports.iter_mut().flatten().for_each(|a| a.port.wake_up());
        Ok(())
    }
}

/// What the switch reads of a frame's first 16 bytes.
#[inline(always)]
fn header(head: [u64; 2]) -> Header {
    // 802.1Q: the priority counts, and the VLAN is a broadcast domain of its own.
    let tagged = head[1] >> 32 & 0xffff == 0x0081;
    let tag = if tagged { ((head[1] >> 48) as u16).swap_bytes() } else { 0 };
    Header {
        destination: Station::from_number(head[0], tag),
        source: Station::from_number(head[0] >> 48 | head[1] << 16, tag),
        priority: (tag >> 13) as u8,
        // 01-80-C2-00-00-00 to -0F.
        reserved: head[0] & 0xf0ff_ffff_ffff == 0x00_00_00_c2_80_01,
    }
}
