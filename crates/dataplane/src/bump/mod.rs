//! A bump in the wire: real frames through the pipeline of NetBump (`sluicenet_proto::netbump`).
//!
//! A bump has links of two ports each. A loop takes the frames of a port and delivers them at the other end of its link. It
//! holds no frame: while the other end has no room, a frame stays in the buffers of the port that it came from, and its sender
//! waits there as at the end of a cable. So a bump adds no buffer to the network, and never drops a frame for want of room.
//!
//! Ends are numbered: link `i` has the ends `2 i` and `2 i + 1`. All loops of a bump use one table of virtual queues.
//!
//! An application is any type that implements [`App`] over [`Frame`]. The loop is compiled for each application
//! ([`Bump`]), and chosen when the bump starts ([`stock`]).

mod deliver;
mod end;
mod frame;
mod neighbours;
pub mod program;
mod queues;
mod report;
mod round;
mod run;
mod stock;

pub use end::EndCounts;
pub use frame::{Flow, Frame, HEADER_BYTES, LINE, WIRE_OVERHEAD, number_of};
pub use neighbours::{LOOPS_MAX, Neighbour, UpdateReport, Updates};
pub use queues::{Own, Queues, Shared};
pub use report::{EndReport, QueueReport, Report};
pub use stock::{Applications, NoApp, loops, loops_with};

use crate::engine::{Event, Happened, PlugError};
use crate::port::Port;
use crate::remote::{Jobs, Remote};
use crate::shm;
use crate::tap::Tap;
use end::End;
use sluicenet_proto::netbump::{self, App, Map, Notice, QueueId, Slot};
use sluicenet_proto::time::{Duration, Instant};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender};

/// Events that may wait for their reader; further ones are lost.
const EVENTS_MAX: usize = 1024;
/// Room for the largest frame that a sender may leave to be cut, and for one of its segments.
const SCRATCH_BYTES: usize = 1 << 17;

/// The links of one loop.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The names of the two ends of each link.
    pub links: Vec<[String; 2]>,
    /// For each end, the virtual queues of the destinations of frames that come in there.
    pub maps: Vec<Map>,
    /// The bump's own address: the source of its notifications and updates.
    pub mac: [u8; 6],
    /// The priority of its notifications.
    pub notification_priority: u8,
    /// The exchange of updates with other bumps.
    pub updates: Option<Updates>,
    /// The origin of times, the same for all loops of a bump.
    pub started: std::time::Instant,
}

/// A loop over links, for one application and one kind of table. Aligned, so that the loops of two threads share no cache line.
#[repr(align(128))]
pub struct Bump<A: App<Frame>, T> {
    app: A,
    queues: T,
    programs: Option<Box<program::Programs>>,
    ends: Vec<End>,
    maps: Vec<Map>,
    mac: [u8; 6],
    notification_priority: u8,
    updates: Option<Updates>,
    started: std::time::Instant,
    frame: Frame,
    notices: Vec<Notice<Flow>>,
    /// A whole frame, in private memory.
    scratch: Box<[u8]>,
    jobs: Jobs<dyn Loop>,
    events: Option<SyncSender<Event>>,
    sleeps: u64,
    closing: bool,
}

/// What a program does with a loop, whatever its application.
pub trait Loop: Send {
    /// One round over all links; returns the number of frames that moved.
    fn round(&mut self) -> usize;

    /// Runs until `stop`. Without `patience` the loop never sleeps; with it, the loop sleeps after that time without a frame.
    fn run(&mut self, stop: &AtomicBool, patience: Option<Duration>) -> io::Result<()>;

    /// Takes no more frames from the other sides, and delivers those that ports have taken, for `at_most`. Returns the number
    /// of frames that are left.
    fn drain(&mut self, at_most: Duration) -> u64;

    /// A handle by which other threads reach the loop while it runs.
    fn remote(&mut self) -> io::Result<Remote<dyn Loop>>;

    /// The events from now on.
    fn events(&mut self) -> Receiver<Event>;

    /// Puts a new port in shared memory with `buffers` buffers at an end.
    fn plug_shm(&mut self, end: usize, buffers: u32) -> io::Result<shm::Access>;

    /// Puts a port of any other kind at an end.
    fn plug(&mut self, end: usize, port: Box<dyn Port>) -> Result<(), PlugError>;

    /// Removes the port at an end; returns whether there was one.
    fn unplug(&mut self, end: usize) -> bool;

    /// The end of this name.
    fn end_named(&self, name: &str) -> Option<usize>;

    /// Captures the frames at an end; returns whether there is a port and no other capture.
    fn set_tap(&mut self, end: usize, tap: Tap) -> bool;

    /// Removes captures that have ended.
    fn sweep_taps(&mut self);

    /// Sets the map of each end, and virtual queues that begin anew for other ports.
    fn set_maps(&mut self, maps: &[Map], ports: &[(QueueId, netbump::Port)]);

    /// The state and the counters. Panics if a frame is not accounted for, which is a bug of this program.
    fn report(&self) -> Report;

    /// The state of the virtual queues, whose table several loops may share.
    fn report_queues(&mut self) -> Vec<QueueReport>;
}

impl<A: App<Frame>, T: Queues<A::State>> Bump<A, T> {
    /// A loop without ports.
    pub fn new(app: A, queues: T, settings: Settings) -> Bump<A, T> {
        let Settings { links, maps, mac, notification_priority, updates, started } = settings;
        assert_eq!(maps.len(), 2 * links.len(), "a map for each end");
        Bump {
            app,
            queues,
            programs: None,
            ends: links.iter().flatten().map(|name| End::new(name)).collect(),
            maps,
            mac,
            notification_priority,
            updates,
            started,
            frame: Frame::default(),
            notices: Vec::with_capacity(16),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            jobs: Jobs::default(),
            events: None,
            sleeps: 0,
            closing: false,
        }
    }

    /// The same with a program from outside.
    pub fn with_program(app: A, queues: T, settings: Settings, mode: program::Mode) -> Bump<A, T> {
        assert_eq!(settings.links.len(), 1, "a program has the ports 0 and 1");
        let mut bump = Bump::new(app, queues, settings);
        let programs = match mode {
            program::Mode::Safe(safe) => program::Programs::safe(safe, bump.now()),
            program::Mode::Fast(program) => program::Programs::fast(program),
        };
        bump.programs = Some(Box::new(programs));
        bump
    }

    /// Time since the bump was started.
    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_ns(self.started.elapsed().as_nanos() as u64)
    }

    fn check_vacant(&self, end: usize) -> Result<(), PlugError> {
        match self.ends.get(end) {
            None => Err(PlugError::NoSuchPort(end)),
            Some(End { port: Some(_), .. }) => Err(PlugError::Occupied(end)),
            Some(_) => Ok(()),
        }
    }

    /// The port at an end is no longer served.
    #[cold]
    fn broken(&mut self, end: usize) {
        let Some(port) = &self.ends[end].port else { return };
        if let Some(events) = &self.events {
            // If the channel is full or closed, the event is dropped.
            let what = Happened::Broken(port.get().why_broken());
            let _ = events.try_send(Event { port: self.ends[end].name.clone(), what });
        }
        self.ends[end].unplug();
    }
}

/// The virtual queues of these ports.
pub fn slots<A: App<Frame>>(app: &A, ports: &[netbump::Port]) -> Vec<Slot<A::State>> {
    ports.iter().enumerate().map(|(id, &port)| Slot::new::<Frame>(app, id as QueueId, port)).collect()
}
