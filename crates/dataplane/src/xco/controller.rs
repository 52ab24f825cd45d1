//! The loop of the central controller: messages from a device, and directives to it.

use crate::fabric::Device;
use crate::remote::{Jobs, Remote};
use rustix::event::{PollFd, Timespec};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::xco::controller::{Controller, ControllerCounters, Weights};
use sluicenet_proto::xco::slices::SliceCounters;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Frame, LEN_MAX, Repr, is_message, without_tag};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Batches of frames in a round. Slices that end, and directives, wait for them.
const BATCHES: usize = 8;
/// The longest sleep: a stop is noticed by then.
const SLEEP_MAX: Duration = Duration::from_ms(50);

/// Counts of messages at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Messages received.
    pub received: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages that cannot be read.
    pub malformed: u64,
    /// Messages for another address.
    pub elsewhere: u64,
    /// Frames that are no messages.
    pub other: u64,
    /// Messages for which the device had no room; coordinators ask again.
    pub unsent: u64,
}

/// The state and the counters of a controller.
#[derive(Clone, Debug)]
pub struct ControllerReport {
    /// Whether it gives directives.
    pub is_active: bool,
    /// The number of its start.
    pub epoch: u16,
    /// Nodes that have joined.
    pub members: usize,
    /// Flows with backlog.
    pub flows: usize,
    /// Links that are congested, with coordination on demand.
    pub congested: Option<usize>,
    /// Messages.
    pub link: LinkCounters,
    /// Events.
    pub controller: ControllerCounters,
    /// Timeslices, if it gives any.
    pub slices: Option<SliceCounters>,
    /// The counters of the device.
    pub device: Vec<(&'static str, u64)>,
}

/// A controller and its device.
pub struct ControllerLoop {
    device: Box<dyn Device + Send>,
    controller: Controller,
    own: MacAddress,
    priority: Priority,
    started: std::time::Instant,
    /// A message for which the device had no room.
    refused: bool,
    scratch: Vec<u8>,
    counters: LinkCounters,
    jobs: Jobs<ControllerLoop>,
}

impl fmt::Debug for ControllerLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerLoop")
            .field("own", &self.own)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl ControllerLoop {
    /// A controller with the address `own`, whose clock counts from now on. `priority` is that of its messages; those of priority 0
    /// have no tag.
    pub fn new(
        device: Box<dyn Device + Send>,
        controller: Controller,
        own: MacAddress,
        priority: Priority,
    ) -> ControllerLoop {
        ControllerLoop {
            device,
            controller,
            own,
            priority,
            started: std::time::Instant::now(),
            refused: false,
            scratch: Vec::new(),
            counters: LinkCounters::default(),
            jobs: Jobs::default(),
        }
    }

    /// The handle of other threads.
    ///
    /// # Errors
    /// No more file descriptors.
    pub fn remote(&mut self) -> io::Result<Remote<ControllerLoop>> {
        self.jobs.remote()
    }

    /// Changes the weights of flows, from their next reports on.
    pub fn set_weights(&mut self, weights: Weights) {
        self.controller.set_weights(weights);
    }

    /// The state and the counters.
    pub fn report(&self) -> ControllerReport {
        let mut device = Vec::new();
        self.device.counters(&mut |name, n| device.push((name, n)));
        ControllerReport {
            is_active: self.controller.is_active(),
            epoch: self.controller.epoch(),
            members: self.controller.members(),
            flows: self.controller.flows(),
            congested: self.controller.congested(),
            link: self.counters,
            controller: *self.controller.counters(),
            slices: self.controller.slice_counters().copied(),
            device,
        }
    }

    /// Takes the messages that have arrived, ends what is over, and sends directives. Returns the number of frames that moved.
    ///
    /// # Errors
    /// The device is gone.
    pub fn round(&mut self, now: Instant) -> io::Result<usize> {
        let ControllerLoop { device, controller, own, priority, scratch, counters, refused, .. } = self;
        let mut moved = 0;
        for _ in 0..BATCHES {
            let frames = device.receive(&mut |frame| take(controller, counters, *own, now, frame))?;
            moved += frames;
            if frames == 0 {
                break;
            }
        }
        if controller.poll_timeout() <= now {
            controller.handle_timeout(now);
        }
        *refused = false;
        while let Some(out) = controller.poll_transmit(now) {
            let frame = Frame::emit(out.to, *own, &out.head, &out.message);
            scratch.clear();
            frame.write(*priority, |bytes| scratch.extend_from_slice(bytes));
            if device.send(scratch)? {
                counters.sent += 1;
            } else {
                counters.unsent += 1;
                *refused = true;
            }
            moved += 1;
        }
        device.flush()?;
        Ok(moved)
    }

    /// Runs until `stop`.
    ///
    /// # Errors
    /// The device is gone, or the kernel cannot wait.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        // Slices end within microseconds: the kernel may not put timers off.
        let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1));
        while !stop.load(Ordering::Relaxed) {
            while let Some(job) = self.jobs.next() {
                job(self);
            }
            let now = self.now();
            if self.round(now)? == 0 {
                self.sleep(now)?;
            }
        }
        while let Some(job) = self.jobs.next() {
            job(self);
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_ns(self.started.elapsed().as_nanos() as u64)
    }

    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        let wait = self.controller.poll_timeout().since(now).min(SLEEP_MAX);
        let timeout = Timespec { tv_sec: 0, tv_nsec: (wait.0 / 1_000) as i64 };
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(2);
        self.jobs.waker(&mut fds);
        self.device.wakers(self.refused, &mut fds);
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        self.jobs.wake_up();
        Ok(())
    }
}

/// Takes a frame.
fn take(controller: &mut Controller, counters: &mut LinkCounters, own: MacAddress, now: Instant, frame: &[u8]) {
    if !is_message(frame) {
        counters.other += 1;
        return;
    }
    counters.received += 1;
    let mut bytes = [0; LEN_MAX];
    match without_tag(frame, &mut bytes).and_then(Repr::parse) {
        Ok(repr) if repr.destination != own => counters.elsewhere += 1,
        Ok(Repr { source, head, message, .. }) => controller.handle(now, source, &head, &message),
        Err(_) => counters.malformed += 1,
    }
}
