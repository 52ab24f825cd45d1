//! The loop of the central controller: messages from a device, and directives to it.

use super::link::{self, LinkCounters, Turns};
use crate::clock::Clock;
use crate::fabric::Device;
use crate::remote::{Jobs, Remote};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::Instant;
use sluicenet_proto::xco::controller::{Controller, ControllerCounters, Weights};
use sluicenet_proto::xco::slices::SliceCounters;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::Frame;
use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;

/// Batches of frames in a round. Slices that end, and directives, wait for them.
const BATCHES: usize = 8;

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
    clock: Clock,
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
            clock: Clock::start(),
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
        let ControllerLoop { device, controller, own, priority, scratch, counters, .. } = self;
        let mut moved = 0;
        for _ in 0..BATCHES {
            let frames = device.receive(&mut |frame| {
                counters.take(frame, *own, |repr| controller.handle(now, repr.source, &repr.head, &repr.message));
            })?;
            moved += frames;
            if frames == 0 {
                break;
            }
        }
        if controller.poll_timeout() <= now {
            controller.handle_timeout(now);
        }
        while let Some(out) = controller.poll_transmit(now) {
            let frame = Frame::emit(out.to, *own, &out.head, &out.message);
            scratch.clear();
            frame.write(*priority, |bytes| scratch.extend_from_slice(bytes));
            if device.send(scratch)? {
                counters.sent += 1;
            } else {
                counters.unsent += 1;
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
        link::run(self, stop)
    }
}

impl Turns for ControllerLoop {
    fn jobs(&mut self) -> &mut Jobs<ControllerLoop> {
        &mut self.jobs
    }

    fn turn(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        if self.round(now)? == 0 {
            link::sleep(&mut self.jobs, &*self.device, self.controller.poll_timeout().since(now))?;
        }
        Ok(())
    }
}
