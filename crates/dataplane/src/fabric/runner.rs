//! A fabric in real time, between devices.

use super::core::Fabric;
use super::device::Device;
use super::histogram::Histogram;
use super::ledger::{EdgeCounters, Ledger};
use super::outside::Outside;
use rustix::event::{PollFd, PollFlags, Timespec};
use sluicenet_node::link::NodeId;
use sluicenet_proto::loss::Drops;
use sluicenet_proto::time::{Duration, Instant};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The thread busy-waits for nearer events: on a virtual machine a sleeping thread wakes up later than that.
const SPIN: Duration = Duration::from_us(50);
/// The highest of the system's ordinary priorities, for this thread.
const PRIORITY: i32 = -20;
/// The longest sleep, so that the thread notices a stop.
const NAP: Duration = Duration::from_ms(50);
/// Events between two readings of the clock: few, so that measured delays are real.
const EVENTS_A_LOOK: u32 = 16;

/// The report of a fabric in real time.
#[derive(Clone, Debug)]
pub struct Report {
    /// How long it ran.
    pub time: Duration,
    /// Whether the system prefers its thread to others.
    pub preferred: bool,
    /// The delays of events after their planned time.
    pub lateness: Histogram,
    /// Events that were later than the transmission time of the longest frame on a server's link.
    pub late: u64,
    /// The transmission time of the longest frame on a server's link.
    pub frame_time: Duration,
    /// The account of all frames.
    pub ledger: Ledger,
    /// The dropped frames.
    pub drops: Drops,
    /// Each edge.
    pub edges: Vec<EdgeCounters>,
    /// The counters of each edge's device, where frames may be lost outside the fabric.
    pub devices: Vec<Vec<(&'static str, u64)>>,
}

/// A fabric and the devices at its edges.
pub struct Runner {
    fabric: Fabric,
    devices: Devices,
    epoch: std::time::Instant,
    lateness: Histogram,
    late: u64,
    preferred: bool,
    frame_time: Duration,
    /// Frames that a device handed over and the fabric has not taken yet, back to back.
    incoming: Vec<u8>,
    lengths: Vec<usize>,
}

struct Devices {
    devices: Vec<Box<dyn Device + Send>>,
    /// Edges whose devices may keep frames until they are flushed.
    sent_to: Vec<NodeId>,
    failed: Option<io::Error>,
}

impl Outside for Devices {
    fn send(&mut self, _now: Instant, edge: NodeId, frame: &[u8]) -> bool {
        match self.devices[edge as usize].send(frame) {
            Ok(sent) => {
                if self.sent_to.last() != Some(&edge) {
                    self.sent_to.push(edge);
                }
                sent
            }
            Err(e) => {
                self.failed.get_or_insert(named(edge, &e));
                false
            }
        }
    }
}

impl Runner {
    /// A fabric with one device for each edge; its time starts now.
    pub fn new<D: Device + Send + 'static>(fabric: Fabric, devices: Vec<D>) -> Runner {
        assert_eq!(fabric.edges() as usize, devices.len(), "a device for each edge");
        Runner {
            frame_time: fabric.frame_time(),
            fabric,
            devices: Devices {
                devices: devices.into_iter().map(|d| Box::new(d) as _).collect(),
                sent_to: Vec::new(),
                failed: None,
            },
            epoch: std::time::Instant::now(),
            lateness: Histogram::default(),
            late: 0,
            preferred: false,
            incoming: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// When the fabric's time was 0.
    pub fn epoch(&self) -> std::time::Instant {
        self.epoch
    }

    /// Runs until `stop`. The thread asks to be preferred to others, which takes a privilege; without it, it is only later.
    ///
    /// # Errors
    /// A device that is gone; the message names its edge.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        self.run_watched(stop, &mut |_| {})
    }

    /// Runs as [`Runner::run`] does; `watch` sees the fabric after each of its events.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub fn run_watched(&mut self, stop: &AtomicBool, watch: &mut impl FnMut(&Fabric)) -> io::Result<()> {
        self.preferred = rustix::process::setpriority_process(None, PRIORITY).is_ok();
        let mut awake: Vec<(NodeId, bool)> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            self.catch_up(stop, watch);
            for &(edge, has_room) in &awake {
                if has_room && self.fabric.is_blocked(edge) {
                    let now = self.stamp();
                    self.fabric.has_room(now, edge, &mut self.devices);
                }
                self.take_from(edge)?;
            }
            self.flush()?;
            if let Some(e) = self.devices.failed.take() {
                return Err(e);
            }
            awake.clear();
            self.wait(&mut awake)?;
        }
        Ok(())
    }

    /// Lets the devices send the frames that they have collected.
    fn flush(&mut self) -> io::Result<()> {
        for edge in std::mem::take(&mut self.devices.sent_to) {
            self.devices.devices[edge as usize].flush().map_err(|e| named(edge, &e))?;
        }
        Ok(())
    }

    /// The report so far.
    pub fn report(&self) -> Report {
        let counters = |device: &(dyn Device + Send)| {
            let mut all = Vec::new();
            device.counters(&mut |name, count| all.push((name, count)));
            all
        };
        Report {
            time: self.clock().since(Instant::ZERO),
            preferred: self.preferred,
            lateness: self.lateness.clone(),
            late: self.late,
            frame_time: self.frame_time,
            ledger: self.fabric.ledger(),
            drops: self.fabric.drops(),
            edges: (0..self.fabric.edges()).map(|e| self.fabric.counters(e)).collect(),
            devices: self.devices.devices.iter().map(|device| counters(&**device)).collect(),
        }
    }

    fn clock(&self) -> Instant {
        Instant(self.epoch.elapsed().as_nanos() as u64 * 1_000)
    }

    /// The time of frames that enter now: not after the next event.
    fn stamp(&self) -> Instant {
        let now = self.clock();
        self.fabric.next_event().map_or(now, |at| at.min(now)).max(self.fabric.now())
    }

    /// Executes the events up to now at their planned time, and measures their delay.
    fn catch_up(&mut self, stop: &AtomicBool, watch: &mut impl FnMut(&Fabric)) {
        let mut now = self.clock();
        let mut events = 0u32;
        while let Some(due) = self.fabric.next_event().filter(|&due| due <= now) {
            let late = now.since(due);
            self.lateness.record(late);
            self.late += u64::from(late > self.frame_time);
            self.fabric.step(&mut self.devices);
            watch(&self.fabric);
            events = events.wrapping_add(1);
            if events % EVENTS_A_LOOK == 0 {
                // Finished frames do not wait for later events.
                if let Err(e) = self.flush() {
                    self.devices.failed.get_or_insert(e);
                    return;
                }
                now = self.clock();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }

    fn take_from(&mut self, edge: NodeId) -> io::Result<()> {
        self.incoming.clear();
        self.lengths.clear();
        let (bytes, lengths) = (&mut self.incoming, &mut self.lengths);
        let mut take = |frame: &[u8]| {
            bytes.extend_from_slice(frame);
            lengths.push(frame.len());
        };
        self.devices.devices[edge as usize].receive(&mut take).map_err(|e| named(edge, &e))?;
        let mut at = 0;
        for i in 0..self.lengths.len() {
            let end = at + self.lengths[i];
            let now = self.stamp();
            self.fabric.receive(now, edge, &self.incoming[at..end], &mut self.devices);
            at = end;
        }
        Ok(())
    }

    /// Waits for a device or for the next event; the devices with frames, and those with room.
    fn wait(&mut self, awake: &mut Vec<(NodeId, bool)>) -> io::Result<()> {
        let next = self.fabric.next_event().map_or(NAP, |at| at.since(self.clock()));
        // Shortly before an event it only checks the devices.
        let sleep = Duration(next.0.saturating_sub(SPIN.0).min(NAP.0));
        let timeout = Timespec { tv_sec: 0, tv_nsec: (sleep.0 / 1_000) as i64 };
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        let mut owners = Vec::new();
        for (edge, device) in (0..).zip(&self.devices.devices) {
            device.wakers(self.fabric.is_blocked(edge), &mut fds);
            owners.resize(fds.len(), edge);
        }
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        for (fd, edge) in fds.iter().zip(owners) {
            let happened = fd.revents();
            if !happened.is_empty() {
                let room = !(happened & (PollFlags::OUT | PollFlags::ERR | PollFlags::HUP)).is_empty();
                awake.push((edge, room));
            }
        }
        Ok(())
    }
}

fn named(edge: NodeId, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("the device at edge {edge} of the fabric: {e}"))
}
