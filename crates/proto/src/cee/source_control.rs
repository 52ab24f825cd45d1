//! Control of a source's queues: when their frames may leave, and on which path.
//!
//! A congestion notification names a queue of the source's adapter. From then on the queue has a [`SourceControl`], until
//! the control has nothing to do any more.

use super::qcn::{Message, ReactionPoint, ReactionPointConfig};
use crate::frame::{HostId, Priority};
use crate::rng::Rng;
use crate::routing::paths::Path;
use crate::time::Instant;
use crate::units::Rate;
use alloc::boxed::Box;
use core::fmt::Debug;

/// The control of one queue, which begins with the first notification about the queue's frames.
pub trait SourceControl: Debug + Send {
    /// A notification about a frame of the queue, which took this path.
    fn on_notification(&mut self, now: Instant, path: Path, message: &Message);
    /// When the next frame of the queue may leave.
    fn next_transmit(&self) -> Instant;
    /// A frame of the queue leaves. Returns its path.
    fn on_transmit(&mut self, now: Instant, bytes: u32) -> Path;
    /// The next deadline.
    fn poll_timeout(&self) -> Instant;
    /// A deadline may have passed.
    fn handle_timeout(&mut self, now: Instant);
    /// Whether the queue needs no control any more.
    fn is_idle(&self) -> bool;
    /// The rate and the target rate of each limiter, by path.
    fn rates(&self, each: &mut dyn FnMut(Path, Rate, Rate));
}

/// The name of an adapter's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueName {
    /// The adapter's host.
    pub host: HostId,
    /// The destination of its frames.
    pub to: HostId,
    /// Their priority.
    pub priority: Priority,
}

impl QueueName {
    /// The random numbers of a control that begins at `now`.
    pub(crate) fn rng(self, seed: u64, now: Instant) -> Rng {
        let QueueName { host, to, priority } = self;
        Rng::from_words(&[seed, host.into(), to.into(), priority.into(), now.0])
    }
}

/// Settings from which the controls of queues are made.
pub trait SourceConfig: Debug + Send + Sync {
    /// The control of a queue at a link of this rate.
    fn control(&self, now: Instant, queue: QueueName, link: Rate) -> Box<dyn SourceControl>;
    /// Whether each flow has a queue of its own, instead of each destination.
    fn by_flow(&self) -> bool {
        false
    }
}

/// QCN's reaction points: a rate limiter for each queue.
#[derive(Clone, Debug)]
pub struct RateLimiters {
    /// Settings of each; the highest rate is that of the link.
    pub limiter: ReactionPointConfig,
    /// Whether each flow has a limiter of its own (by its CN-TAG), instead of each destination.
    pub by_flow: bool,
    /// Seed of the lengths of cycles.
    pub seed: u64,
}

impl SourceConfig for RateLimiters {
    fn control(&self, now: Instant, queue: QueueName, link: Rate) -> Box<dyn SourceControl> {
        let config = ReactionPointConfig { max_rate: link, ..self.limiter };
        let limiter = ReactionPoint::new(&config, now, link, queue.rng(self.seed, now));
        Box::new(RateLimiter { limiter, config })
    }
    fn by_flow(&self) -> bool {
        self.by_flow
    }
}

#[derive(Debug)]
struct RateLimiter {
    config: ReactionPointConfig,
    limiter: ReactionPoint,
}

impl SourceControl for RateLimiter {
    fn on_notification(&mut self, now: Instant, _path: Path, message: &Message) {
        self.limiter.on_notification(&self.config, now, message.notification.feedback);
    }
    fn next_transmit(&self) -> Instant {
        self.limiter.next_transmit()
    }
    fn on_transmit(&mut self, now: Instant, bytes: u32) -> Path {
        self.limiter.on_transmit(&self.config, now, bytes);
        None
    }
    fn poll_timeout(&self) -> Instant {
        self.limiter.poll_timeout()
    }
    fn handle_timeout(&mut self, now: Instant) {
        self.limiter.handle_timeout(&self.config, now);
    }
    fn is_idle(&self) -> bool {
        self.limiter.is_recovered(&self.config)
    }
    fn rates(&self, each: &mut dyn FnMut(Path, Rate, Rate)) {
        each(None, self.limiter.current_rate(), self.limiter.target_rate());
    }
}
