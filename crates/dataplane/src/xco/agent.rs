//! The loop of an agent: the local coordinator of a host whose frames wait in queues of the kernel.

use super::link::{self, LinkCounters, Turns};
use super::valves::Valves;
use crate::clock::Clock;
use crate::fabric::Device;
use crate::kernel::classes::Backlog;
use crate::remote::{Jobs, Remote};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::Node;
use sluicenet_proto::xco::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorCounters, SMALL_BURST_BYTES, Valve,
};
use sluicenet_wire::ethernet::MacAddress;
use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;

/// How long an ending agent waits until its open queues are empty, and how often it looks.
const DRAIN_AT_MOST: Duration = Duration::from_secs(2);
const DRAIN_EVERY: Duration = Duration::from_ms(5);

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Those of its coordinator.
    pub coordinator: CoordinatorConfig,
    /// The nodes of the queues.
    pub nodes: Vec<Node>,
    /// Its address.
    pub own: MacAddress,
    /// The priority of messages; those of priority 0 have no tag.
    pub priority: Priority,
    /// How often it looks at the queues.
    pub poll: Duration,
    /// Bytes of the longest frame, as the queues count it.
    pub longest: u64,
}

/// The state and the counters of an agent.
#[derive(Clone, Debug)]
pub struct AgentReport {
    /// Whether it has joined a controller.
    pub is_member: bool,
    /// Whether all frames pass.
    pub is_uncontrolled: bool,
    /// Queues with frames.
    pub backlogged: usize,
    /// Bytes that wait.
    pub waiting: u64,
    /// Frames that found no room.
    pub dropped: u64,
    /// Changes of queues.
    pub changes: u64,
    /// Messages.
    pub link: LinkCounters,
    /// Events.
    pub coordinator: CoordinatorCounters,
    /// The counters of the device.
    pub device: Vec<(&'static str, u64)>,
    /// The counters of the kind of queues.
    pub queues: Vec<(&'static str, u64)>,
}

/// A queue.
#[derive(Clone, Copy, Debug)]
struct Queue {
    node: Node,
    /// What it may send.
    valve: Valve,
    /// As it was at the last look.
    backlog: Backlog,
    /// Bytes that had left it when the coordinator was told.
    told: u64,
}

impl Queue {
    /// Its rate in kb/s, and whether that is the rate of a small flow; none while it is shut.
    fn rate(&self, coordinator: &CoordinatorConfig) -> Option<(u32, bool)> {
        match self.valve {
            Valve::Open { rate_kbps, .. } => Some((rate_kbps.unwrap_or(coordinator.rate_kbps), false)),
            Valve::Small => Some((coordinator.small_kbps, true)),
            Valve::Shut => None,
        }
    }
}

/// An agent: its coordinator, its queues, and the device at which it speaks to the controller.
pub struct AgentLoop {
    device: Box<dyn Device + Send>,
    queues: Box<dyn Valves + Send>,
    coordinator: Coordinator,
    config: AgentConfig,
    all: Vec<Queue>,
    /// When the queues are looked at, and when an open one is shut.
    looks_at: Instant,
    shuts_at: Instant,
    /// The time of the last round.
    seen_at: Instant,
    clock: Clock,
    scratch: Vec<u8>,
    changes: u64,
    counters: LinkCounters,
    jobs: Jobs<AgentLoop>,
}

impl fmt::Debug for AgentLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentLoop").field("config", &self.config).field("all", &self.all).finish_non_exhaustive()
    }
}

impl AgentLoop {
    /// An agent that has not joined; its queues are shut.
    pub fn new(device: Box<dyn Device + Send>, queues: Box<dyn Valves + Send>, config: AgentConfig) -> AgentLoop {
        let queue = |&node| Queue { node, valve: Valve::Shut, backlog: Backlog::default(), told: 0 };
        AgentLoop {
            device,
            queues,
            coordinator: Coordinator::new(Instant::ZERO, config.coordinator.clone()),
            all: config.nodes.iter().map(queue).collect(),
            config,
            looks_at: Instant::ZERO,
            shuts_at: Instant::MAX,
            seen_at: Instant::ZERO,
            clock: Clock::start(),
            scratch: Vec::new(),
            changes: 0,
            counters: LinkCounters::default(),
            jobs: Jobs::default(),
        }
    }

    /// The handle of other threads.
    ///
    /// # Errors
    /// No more file descriptors.
    pub fn remote(&mut self) -> io::Result<Remote<AgentLoop>> {
        self.jobs.remote()
    }

    /// The state and the counters.
    pub fn report(&self) -> AgentReport {
        let mut device = Vec::new();
        self.device.counters(&mut |name, n| device.push((name, n)));
        let mut queues = Vec::new();
        self.queues.counters(&mut |name, n| queues.push((name, n)));
        let backlogs = || self.all.iter().map(|queue| queue.backlog);
        AgentReport {
            is_member: self.coordinator.is_member(),
            is_uncontrolled: self.coordinator.is_uncontrolled(self.seen_at),
            backlogged: backlogs().filter(|backlog| backlog.waiting > 0).count(),
            waiting: backlogs().map(|backlog| backlog.waiting).sum(),
            dropped: backlogs().map(|backlog| u64::from(backlog.dropped)).sum(),
            changes: self.changes,
            link: self.counters,
            coordinator: *self.coordinator.counters(),
            device,
            queues,
        }
    }

    /// Takes messages, looks at the queues if it is time, opens and shuts them, and sends messages. Returns the number of messages
    /// that moved. `clock` tells the time whenever it is asked.
    ///
    /// # Errors
    /// The device or the queues are gone.
    pub fn round(&mut self, clock: impl Fn() -> Instant) -> io::Result<usize> {
        let AgentLoop { device, coordinator, config, counters, .. } = self;
        // Asked for each message, behind its arrival: with an earlier time the controller's clock would seem to be ahead.
        let mut moved = device.receive(&mut |frame| {
            counters
                .take(frame, config.own, |repr| coordinator.handle(clock(), repr.source, &repr.head, &repr.message));
        })?;
        let now = clock();
        self.seen_at = now;
        let (looks, ends) = (self.looks_at <= now, coordinator.poll_timeout() <= now);
        if looks {
            self.looks_at = now + config.poll;
            for (queue, backlog) in self.all.iter_mut().zip(self.queues.backlogs()?) {
                queue.backlog = *backlog;
            }
        }
        if ends {
            coordinator.handle_timeout(now);
        }
        if looks || ends || moved > 0 || self.shuts_at <= now {
            self.set(now)?;
        }
        while let Some(out) = self.coordinator.poll_transmit(now) {
            self.scratch.clear();
            out.emit(self.config.own).write(self.config.priority, |bytes| self.scratch.extend_from_slice(bytes));
            if self.device.send(&self.scratch)? {
                self.counters.sent += 1;
            } else {
                self.counters.unsent += 1;
            }
            moved += 1;
        }
        self.device.flush()?;
        Ok(moved)
    }

    /// Asks for each queue, and opens and shuts them.
    fn set(&mut self, now: Instant) -> io::Result<()> {
        let (settings, longest) = (&self.config.coordinator, self.config.longest);
        let late = settings.late;
        let mut opened = false;
        self.shuts_at = Instant::MAX;
        for (n, queue) in self.all.iter_mut().enumerate() {
            let (before, sent) = (queue.rate(settings), queue.backlog.sent.saturating_sub(queue.told));
            queue.told = queue.backlog.sent;
            let valve = self.coordinator.valve(now, queue.node, queue.backlog.waiting, sent);
            queue.valve = self.queues.carries(n, now, valve, queue.backlog.waiting);
            if let Valve::Open { rate_kbps, until } = queue.valve {
                // An opened queue sends a burst at once, and one frame leaves when it is shut: it is shut so much earlier.
                let rate = kbps(rate_kbps.unwrap_or(settings.rate_kbps));
                let early = rate.time_for(rate.bytes_in(late).max(longest) + longest);
                let shuts_at = Instant(until.0.saturating_sub(early.0));
                match until < Instant::MAX && shuts_at <= now {
                    true => queue.valve = Valve::Shut,
                    false => self.shuts_at = self.shuts_at.min(shuts_at),
                }
            }
            let rate = queue.rate(settings);
            if rate == before {
                continue;
            }
            self.changes += 1;
            let Some((rate_kbps, is_small)) = rate else {
                self.queues.shut(n)?;
                continue;
            };
            let rate = kbps(rate_kbps);
            let burst = if is_small { SMALL_BURST_BYTES } else { rate.bytes_in(late) };
            self.queues.open(n, (rate.as_bps() / 8).max(1), u32::try_from(burst).unwrap_or(u32::MAX))?;
            opened = true;
        }
        if opened {
            self.queues.look();
        }
        Ok(())
    }

    /// Runs until `stop`; then all frames pass, until the queues are empty.
    ///
    /// # Errors
    /// The device or the queues are gone, or the kernel cannot wait.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        link::run(self, stop)?;
        self.coordinator.leave();
        let clock = self.clock;
        let until = clock.now() + DRAIN_AT_MOST;
        loop {
            let now = clock.now();
            self.looks_at = now;
            self.round(|| clock.now())?;
            if now >= until || self.all.iter().all(|queue| queue.backlog.waiting == 0) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(DRAIN_EVERY.as_us() / 1_000));
        }
    }
}

impl Turns for AgentLoop {
    fn jobs(&mut self) -> &mut Jobs<AgentLoop> {
        &mut self.jobs
    }

    fn turn(&mut self) -> io::Result<()> {
        let clock = self.clock;
        if self.round(|| clock.now())? == 0 {
            let next = self.coordinator.poll_timeout().min(self.looks_at).min(self.shuts_at);
            link::sleep(&mut self.jobs, &*self.device, next.since(self.seen_at))?;
        }
        Ok(())
    }
}

fn kbps(kbps: u32) -> Rate {
    Rate(u64::from(kbps.max(1)) * 1_000)
}
