//! Programs from outside in a bump: frames are copied for them, and only checked answers take effect.
//!
//! In safe mode each virtual queue has a *lane* to a process of its own: a bounded ring of frames. The loop never waits for
//! the process. The loop keeps the frames of a lane as they came, so that they can go on without the program. In fast mode the
//! program is called in the loop, and its lane holds the segments of at most one frame, while the output has no room.

mod lane;
mod pass;
mod process;

pub use lane::{FRAME_MAX, Served, Work};
pub(super) use pass::Entered;
pub use process::Starter;

use lane::{Answer, Lane, OWN_SLOTS, SLOTS, State};
use process::{Handle, News, START_MAX, What, new_number};
use sluicenet_proto::netbump::{Port, QueueId, Verdict, VirtualQueue};
use sluicenet_proto::time::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The pause before a program is started again, and the longest one: each fault in a row doubles it.
const PAUSE: Duration = Duration::from_ms(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that ran for this time had started well.
const WELL: Duration = Duration::from_secs(10);

/// Longest wait for the end of killed processes, when the loop ends.
const END_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// A program that is called in this process.
pub trait Callable: Send {
    /// Whether the program chooses the virtual queues of its frames.
    fn chooses(&self) -> bool;

    /// The virtual queue of a frame, below `queues`, if the program chooses it.
    fn classify(&mut self, work: &Work, buffer: &mut [u8], queues: usize) -> Option<QueueId>;

    /// The decision about a frame at the start of `buffer`, and its length then. `send` takes frames of the program's own.
    fn process(
        &mut self,
        work: &Work,
        buffer: &mut [u8],
        queue: (QueueId, &mut VirtualQueue),
        send: &mut dyn FnMut(u16, &[u8]) -> bool,
    ) -> (Verdict, u32);
}

/// A program in processes of its own.
#[derive(Clone, Debug)]
pub struct Safe {
    /// How a process is started.
    pub starter: Starter,
    /// Whether the program chooses the virtual queues of its frames: then all frames of a loop share one process.
    pub chooses: bool,
    /// The longest time for one frame.
    pub deadline: Duration,
    /// Whether frames are dropped while the program does not run; otherwise they pass without it.
    pub block: bool,
    /// The ports of all virtual queues.
    pub ports: Vec<Port>,
    /// The virtual queues whose processes are started at once. Others are started with their first frame.
    pub in_use: Vec<QueueId>,
}

/// The counters of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Frames that the program was called with.
    pub called: u64,
    /// Processes that were started.
    pub starts: u64,
    /// Processes that ended by themselves.
    pub crashes: u64,
    /// Processes that were killed, because a frame took longer than the deadline.
    pub timeouts: u64,
    /// Processes that were killed, because they broke the rules of the shared memory.
    pub broke_rules: u64,
    /// Frames that passed without the program, because it did not run.
    pub bypassed: u64,
    /// Frames that were dropped, because the program did not run.
    pub blocked: u64,
    /// Frames that were dropped, because the lane was full.
    pub overrun: u64,
    /// Frames that were dropped, because the program left fewer bytes than an Ethernet header.
    pub damaged: u64,
    /// Frames of the program's own that were refused, because it sent too many or to a port that is not there.
    pub own_refused: u64,
}

/// The state of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneReport {
    /// Its virtual queue; none for the lane of all frames.
    pub queue: Option<QueueId>,
    /// Whether the program runs.
    pub runs: bool,
    /// Frames inside it.
    pub inside: u32,
    /// Its counters.
    pub counts: LaneCounts,
}

/// A frame in a lane.
#[derive(Clone, Copy, Debug)]
struct Pending {
    work: Work,
    from: usize,
    /// In fast mode the program has answered.
    answer: Option<Answer>,
    /// Whether it came with a mark.
    was_marked: bool,
}

/// Whether the process of a lane runs.
enum Running {
    /// It was started at this time; it has no memory yet, or loads its program.
    Starting { since: Instant, memory: Option<(Box<Lane>, Handle)> },
    /// It takes frames.
    Ready { since: Instant, memory: Box<Lane>, _process: Handle },
    /// It was killed, or has ended; the next one is started after this time and not before the end of this one.
    Down { until: Instant, ended: bool },
    /// The program is called in this process.
    Here,
}

/// A lane.
struct Channel {
    queue: Option<QueueId>,
    running: Running,
    /// The number that no other lane of this process has, and that of its own process among those of this lane.
    of_lane: u32,
    number: u64,
    pause: Duration,
    pending: VecDeque<Pending>,
    /// The frames as they came, at the places of their number; in fast mode as the program left them.
    kept: Box<[u8]>,
    next: usize,
    /// When the last answer was taken, or the first frame came.
    progress: Instant,
    /// Frames of the program's own since then.
    own: u32,
    counts: LaneCounts,
}

impl Channel {
    fn new(queue: Option<QueueId>, running: Running) -> Channel {
        Channel {
            queue,
            running,
            of_lane: new_number(),
            number: 0,
            pause: PAUSE,
            pending: VecDeque::with_capacity(SLOTS as usize),
            kept: vec![0; SLOTS as usize * FRAME_MAX].into_boxed_slice(),
            next: 0,
            progress: Instant::ZERO,
            own: 0,
            counts: LaneCounts::default(),
        }
    }

    /// The place of a kept frame: the `n`-th of those in the lane, or the next one.
    fn place(&self, n: usize) -> std::ops::Range<usize> {
        let slots = SLOTS as usize;
        let at = (self.next + slots - self.pending.len() + n) % slots * FRAME_MAX;
        at..at + FRAME_MAX
    }

    fn room(&self) -> usize {
        SLOTS as usize - self.pending.len()
    }

    /// The program does not run any more: it is started again after a pause.
    fn stop(&mut self, now: Instant, ended: bool) {
        if let Running::Ready { since, .. } = self.running
            && now.since(since) >= WELL
        {
            self.pause = PAUSE;
        }
        let until = now.saturating_add(self.pause);
        self.pause = Duration((2 * self.pause.0).min(PAUSE_MAX.0));
        // The handle kills it.
        self.running = Running::Down { until, ended };
    }
}

/// The program of a loop: how it runs.
pub enum Mode {
    /// In processes of its own.
    Safe(Safe),
    /// In this process.
    Fast(Box<dyn Callable>),
}

/// The kind of a program.
enum Kind {
    Safe(Box<Safe>),
    Fast(Box<dyn Callable>),
}

/// The program of a loop, and its lanes.
pub(super) struct Programs {
    kind: Kind,
    lanes: Vec<Channel>,
    /// The lane of each virtual queue.
    lane_of: Vec<Option<u16>>,
    news: (Sender<News>, Receiver<News>),
    /// Frames of a program's own in fast mode: ports and lengths, and bytes.
    own: (Vec<(u16, usize)>, Vec<u8>),
    /// A frame on its way out.
    out: Box<[u8]>,
}

impl Programs {
    fn new(kind: Kind, queues: usize) -> Programs {
        Programs {
            kind,
            lanes: Vec::new(),
            lane_of: vec![None; queues],
            news: channel(),
            own: (Vec::with_capacity(OWN_SLOTS as usize), Vec::with_capacity(OWN_SLOTS as usize * FRAME_MAX)),
            out: vec![0; FRAME_MAX].into_boxed_slice(),
        }
    }

    /// A program in this process.
    pub fn fast(program: Box<dyn Callable>) -> Programs {
        let mut all = Programs::new(Kind::Fast(program), 0);
        all.lanes.push(Channel::new(None, Running::Here));
        all
    }

    /// A program in processes of its own, which are started now.
    pub fn safe(safe: Safe, now: Instant) -> Programs {
        let mut all = Programs::new(Kind::Safe(Box::new(safe.clone())), safe.ports.len());
        let first: Vec<QueueId> = if safe.chooses { vec![0] } else { safe.in_use };
        first.into_iter().for_each(|queue| _ = all.lane(now, Some(queue)));
        all
    }

    fn chooses(&self) -> bool {
        match &self.kind {
            Kind::Safe(safe) => safe.chooses,
            Kind::Fast(program) => program.chooses(),
        }
    }

    /// The lane of a virtual queue; a new one is started. None if the frame has no queue, and the program chooses none.
    fn lane(&mut self, now: Instant, queue: Option<QueueId>) -> Option<usize> {
        let one_for_all = self.chooses();
        match &self.kind {
            Kind::Fast(_) => return (one_for_all || queue.is_some()).then_some(0),
            Kind::Safe(_) if one_for_all && !self.lanes.is_empty() => return Some(0),
            Kind::Safe(_) => {}
        }
        let at = usize::from(queue?);
        match self.lane_of.get(at)? {
            Some(lane) => Some(usize::from(*lane)),
            None => {
                let n = self.lanes.len();
                self.lane_of[at] = Some(n as u16);
                // The process starts at the next round.
                let running = Running::Down { until: now, ended: true };
                self.lanes.push(Channel::new(queue.filter(|_| !one_for_all), running));
                Some(n)
            }
        }
    }

    /// Frames in lanes.
    pub fn inside(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.pending.len() as u64).sum()
    }

    /// Whether a process has a frame to answer: then the loop must not sleep.
    pub fn is_busy(&mut self) -> bool {
        self.lanes.iter_mut().any(|lane| match &mut lane.running {
            Running::Ready { memory, .. } => !lane.pending.is_empty() && memory.peek() == Ok(None),
            Running::Starting { .. } => true,
            Running::Down { .. } | Running::Here => false,
        })
    }

    pub fn report(&self) -> Vec<LaneReport> {
        let one = |lane: &Channel| LaneReport {
            queue: lane.queue,
            runs: matches!(lane.running, Running::Ready { .. } | Running::Here),
            inside: lane.pending.len() as u32,
            counts: lane.counts,
        };
        self.lanes.iter().map(one).collect()
    }

    /// Virtual queues begin anew for other ports: so do their programs, and at once.
    pub fn set_ports(&mut self, now: Instant, ports: &[(QueueId, Port)]) {
        let Kind::Safe(safe) = &mut self.kind else { return };
        for &(id, port) in ports {
            safe.ports[usize::from(id)] = port;
            let lane = if safe.chooses { Some(0) } else { self.lane_of[usize::from(id)].map(usize::from) };
            if let Some(lane) = lane
                && matches!(self.lanes[lane].running, Running::Ready { .. })
            {
                self.lanes[lane].running = Running::Down { until: now, ended: false };
            }
        }
    }

    /// Processes that have started, ended or must be killed; and those whose time has come.
    fn watch(&mut self, now: Instant) {
        let Programs { kind: Kind::Safe(safe), lanes, news, .. } = self else { return };
        while let Ok((lane, number, what)) = news.1.try_recv() {
            let lane = &mut lanes[lane];
            if lane.number != number {
                continue;
            }
            match what {
                What::Started(memory, process) => match &mut lane.running {
                    Running::Starting { memory: none, .. } => *none = Some((memory, process)),
                    // It took too long; its handle kills it.
                    _ => drop(process),
                },
                What::Ended => match &mut lane.running {
                    Running::Down { ended, .. } => *ended = true,
                    _ => {
                        lane.counts.crashes += 1;
                        lane.stop(now, true);
                    }
                },
            }
        }
        for (n, lane) in lanes.iter_mut().enumerate() {
            match &mut lane.running {
                Running::Starting { since, memory } => {
                    let state = memory.as_ref().map_or(State::Loading, |(memory, _)| memory.state());
                    let since = *since;
                    match state {
                        State::Ready(_) => {
                            if let Some((memory, process)) = memory.take() {
                                lane.running = Running::Ready { since: now, memory, _process: process };
                            }
                        }
                        State::Failed => {
                            lane.counts.crashes += 1;
                            lane.stop(now, false);
                        }
                        State::Loading if now.since(since).0 > START_MAX.as_nanos() as u64 * 1_000 => {
                            lane.counts.timeouts += 1;
                            lane.stop(now, false);
                        }
                        State::Loading => {}
                    }
                }
                Running::Ready { memory, .. } => {
                    let is_late = !lane.pending.is_empty() && now.since(lane.progress) > safe.deadline;
                    // An answer that waits for room is no fault of the program.
                    if is_late && memory.peek() == Ok(None) {
                        lane.counts.timeouts += 1;
                        lane.stop(now, false);
                    }
                }
                Running::Down { until, ended: true } if lane.pending.is_empty() && now >= *until => {
                    lane.number += 1;
                    match safe.starter.start(safe.ports.clone(), (n, lane.of_lane), lane.number, news.0.clone()) {
                        Ok(()) => {
                            lane.counts.starts += 1;
                            lane.running = Running::Starting { since: now, memory: None };
                        }
                        Err(_) => lane.stop(now, true),
                    }
                }
                _ => {}
            }
        }
    }

    /// Shows the processes the frames of this round.
    pub fn publish(&mut self) {
        for lane in &mut self.lanes {
            if let Running::Ready { memory, .. } = &mut lane.running {
                memory.publish();
            }
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let is_alive = |lane: &&Channel| !matches!(lane.running, Running::Here | Running::Down { ended: true, .. });
        let mut alive = self.lanes.iter().filter(is_alive).count();
        // Their handles kill the processes.
        self.lanes.clear();
        while alive > 0 {
            match self.news.1.recv_timeout(END_MAX) {
                Ok((_, _, What::Ended)) => alive -= 1,
                Ok((_, _, What::Started(..))) => {}
                // The kernel does not end it yet; nothing waits for it.
                Err(_) => return,
            }
        }
    }
}
