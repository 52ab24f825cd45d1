//! The queues of an adapter that are under the control of their source ([`SourceControl`]). A queue whose next frame may not leave yet is *held*: it stands apart from the queues that
//! take turns for the link, so that the others pass it.

use super::link::Link;
use crate::pool::{Fifo, Handle, Pool};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::cee::qcn::Message;
use sluicenet_proto::cee::source_control::{SourceConfig, SourceControl};
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::routing::paths::Path;
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;

/// A queue under control.
#[derive(Debug)]
struct Queue {
    control: Box<dyn SourceControl>,
    /// Its frames, while it is held.
    held: Option<Fifo>,
    /// Its earliest entry among the deadlines.
    scheduled: Instant,
}

/// The controlled queues of one link.
#[derive(Debug, Default)]
pub(super) struct Controls {
    queues: BTreeMap<u32, Queue>,
    deadlines: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Controls {
    /// Whether any queue is under control.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Appends a frame to its queue, if the queue is held.
    #[inline]
    pub fn push_held<F: Frame>(&mut self, pool: &mut Pool<F>, key: u32, at: Handle) -> bool {
        if self.queues.is_empty() {
            return false;
        }
        match self.queues.get_mut(&key).and_then(|queue| queue.held.as_mut()) {
            Some(list) => {
                pool.push(list, at, 0);
                true
            }
            None => false,
        }
    }

    /// Holds a queue of the link if its next frame may not leave yet. Returns whether it does.
    pub fn hold_back(&mut self, now: Instant, link: &mut Link, turn: usize) -> bool {
        let key = link.active[turn].key;
        let Some(queue) = self.queues.get_mut(&key).filter(|queue| queue.control.next_transmit() > now) else {
            return false;
        };
        queue.held = Some(link.deactivate(turn));
        schedule(&mut self.deadlines, key, queue);
        true
    }

    /// Holds all queues of the link whose next frame may not leave yet.
    pub fn hold_all_back(&mut self, now: Instant, link: &mut Link) {
        let mut turn = 0;
        while turn < link.active.len() {
            turn += usize::from(!self.hold_back(now, link, turn));
        }
    }

    /// A frame of a queue leaves. Returns its path.
    pub fn on_transmit(&mut self, now: Instant, key: u32, bytes: u32) -> Path {
        let queue = self.queues.get_mut(&key)?;
        let path = queue.control.on_transmit(now, bytes);
        schedule(&mut self.deadlines, key, queue);
        path
    }

    /// A notification about a frame of a queue; `new` makes the queue's control.
    pub fn on_notification(
        &mut self,
        now: Instant,
        (key, path): (u32, Path),
        message: &Message,
        new: impl FnOnce() -> Box<dyn SourceControl>,
    ) {
        let queue =
            self.queues.entry(key).or_insert_with(|| Queue { control: new(), held: None, scheduled: Instant::MAX });
        queue.control.on_notification(now, path, message);
        schedule(&mut self.deadlines, key, queue);
    }

    /// The next deadline. It may be too early.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    /// Deadlines have passed: queues whose next frame may leave go back to the link.
    pub fn handle_timeout(&mut self, now: Instant, link: &mut Link) {
        while let Some(&Reverse((at, key))) = self.deadlines.peek()
            && at <= now
        {
            self.deadlines.pop();
            let Some(queue) = self.queues.get_mut(&key) else { continue };
            if at != queue.scheduled {
                continue;
            }
            queue.scheduled = Instant::MAX;
            if queue.control.poll_timeout() <= now {
                queue.control.handle_timeout(now);
            }
            if queue.control.next_transmit() <= now
                && let Some(list) = queue.held.take()
            {
                link.activate(key, list);
            }
            if queue.held.is_none() && queue.control.is_idle() {
                self.queues.remove(&key);
            } else {
                schedule(&mut self.deadlines, key, queue);
            }
        }
    }

    /// The limiters of the link: the key of each queue, and path, rate and target rate.
    pub fn rates(&self, mut each: impl FnMut(u32, Path, Rate, Rate)) {
        for (&key, queue) in &self.queues {
            queue.control.rates(&mut |path, rate, target| each(key, path, rate, target));
        }
    }
}

/// Puts the next deadline of a queue among the others, unless an earlier one of the queue is there.
fn schedule(deadlines: &mut BinaryHeap<Reverse<(Instant, u32)>>, key: u32, queue: &mut Queue) {
    let release = if queue.held.is_some() { queue.control.next_transmit() } else { Instant::MAX };
    let at = release.min(queue.control.poll_timeout());
    if at < queue.scheduled {
        queue.scheduled = at;
        deadlines.push(Reverse((at, key)));
    }
}

/// The control of the frames that leave an adapter: its settings, and the controlled queues of each link.
#[derive(Debug)]
pub(super) struct Source {
    pub host: HostId,
    pub config: Arc<dyn SourceConfig>,
    pub links: Vec<Controls>,
}

impl Source {
    pub fn new(host: HostId, config: Arc<dyn SourceConfig>, links: usize) -> Source {
        Source { host, config, links: (0..links).map(|_| Controls::default()).collect() }
    }

    /// When the first queue may leave its hold, or has another deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.links.iter().filter_map(Controls::poll_timeout).min()
    }
}
