//! Reactive source-based adaptive routing, R2C2 and R3C2 (Crisan 2014, 2.4).
//!
//! A source begins with the default path to a destination. Each notification adds a path, so that the excess load leaves the
//! hotspot. R3C2 also limits the rate of each path about which notifications come, and adds a path only when all paths in
//! use are limited. Paths are taken out of use when the load falls (R2C2), or when no notification comes (R3C2).

use super::paths::{Path, Paths};
use crate::cee::qcn::{Message, ReactionPoint, ReactionPointConfig};
use crate::cee::source_control::{QueueName, SourceConfig, SourceControl};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Settings of R2C2, or of R3C2 with rate limiters.
#[derive(Clone, Debug)]
pub struct Reactive {
    /// The paths of the network.
    pub paths: Paths,
    /// Settings of R3C2's limiters; R2C2 without them.
    pub limiter: Option<ReactionPointConfig>,
    /// The time after which a path may be taken out of use.
    pub period: Duration,
    /// Seed of the order in which paths are tried.
    pub seed: u64,
}

impl SourceConfig for Reactive {
    fn control(&self, now: Instant, queue: QueueName, link: Rate) -> Box<dyn SourceControl> {
        let mut rng = queue.rng(self.seed, now);
        let mut available = self.paths.others(queue.host, queue.to);
        rng.shuffle(&mut available);
        let (period, timer) = (self.period, now.saturating_add(self.period));
        match self.limiter {
            None => {
                let in_use = alloc::vec![None];
                Box::new(R2c2 { available, in_use, turn: 0, period, timer, bytes: 0, before: 0 })
            }
            Some(limiter) => {
                let config = ReactionPointConfig { max_rate: link, ..limiter };
                let in_use = alloc::vec![InUse::new(None)];
                Box::new(R3c2 { available, in_use, turn: 0, period, timer, config, rng })
            }
        }
    }
}

/// R2C2 of one queue (Algorithm 2.1).
#[derive(Debug)]
struct R2c2 {
    /// Paths that are not in use, the next one to be tried last.
    available: Vec<u16>,
    in_use: Vec<Path>,
    /// The path that sent last.
    turn: usize,
    period: Duration,
    timer: Instant,
    /// Bytes sent in this period, and in the one before.
    bytes: u64,
    before: u64,
}

impl SourceControl for R2c2 {
    fn on_notification(&mut self, _now: Instant, _path: Path, _message: &Message) {
        if let Some(path) = self.available.pop() {
            self.in_use.push(Some(path));
        }
    }
    fn next_transmit(&self) -> Instant {
        Instant::ZERO
    }
    fn on_transmit(&mut self, _now: Instant, bytes: u32) -> Path {
        self.bytes += u64::from(bytes);
        self.turn = (self.turn + 1) % self.in_use.len();
        self.in_use[self.turn]
    }
    fn poll_timeout(&self) -> Instant {
        self.timer
    }
    fn handle_timeout(&mut self, now: Instant) {
        if now < self.timer {
            return;
        }
        self.timer = now.saturating_add(self.period);
        let before = core::mem::replace(&mut self.before, core::mem::take(&mut self.bytes));
        if before > self.before
            && self.in_use.len() > 1
            && let Some(path) = self.in_use.pop().flatten()
        {
            // It is the last one to be tried again.
            self.available.insert(0, path);
        }
    }
    fn is_idle(&self) -> bool {
        self.in_use.len() == 1
    }
    fn rates(&self, _each: &mut dyn FnMut(Path, Rate, Rate)) {}
}

/// A path in use, with its limiter.
#[derive(Debug)]
struct InUse {
    path: Path,
    limiter: Option<ReactionPoint>,
}

impl InUse {
    fn new(path: Path) -> InUse {
        InUse { path, limiter: None }
    }

    fn next_transmit(&self) -> Instant {
        self.limiter.as_ref().map_or(Instant::ZERO, ReactionPoint::next_transmit)
    }
}

/// R3C2 of one queue (Algorithm 2.2).
#[derive(Debug)]
struct R3c2 {
    /// Paths that are not in use, the next one to be tried last.
    available: Vec<u16>,
    in_use: Vec<InUse>,
    /// The path that sent last.
    turn: usize,
    period: Duration,
    /// When a path may be taken out of use: so long after the last notification.
    timer: Instant,
    config: ReactionPointConfig,
    rng: Rng,
}

impl R3c2 {
    /// The next path, in turn, that may send at `now`.
    fn ready(&self, now: Instant) -> Option<usize> {
        let in_turn = (1..=self.in_use.len()).map(|n| (self.turn + n) % self.in_use.len());
        in_turn.into_iter().find(|&n| self.in_use[n].next_transmit() <= now)
    }

    /// Frees limiters that limit nothing any more.
    fn free_limiters(&mut self) {
        for path in &mut self.in_use {
            path.limiter.take_if(|limiter| limiter.is_recovered(&self.config));
        }
    }
}

impl SourceControl for R3c2 {
    fn on_notification(&mut self, now: Instant, path: Path, message: &Message) {
        self.timer = now.saturating_add(self.period);
        // A path may have been taken out of use while the notification was under way.
        let Some(notified) = self.in_use.iter_mut().find(|in_use| in_use.path == path) else { return };
        let (config, rng) = (&self.config, &mut self.rng);
        let new = || ReactionPoint::new(config, now, config.max_rate, Rng::from_words(&[rng.next_u64()]));
        notified.limiter.get_or_insert_with(new).on_notification(config, now, message.notification.feedback);
        if self.in_use.iter().all(|in_use| in_use.limiter.is_some())
            && let Some(path) = self.available.pop()
        {
            self.in_use.push(InUse::new(Some(path)));
        }
    }
    fn next_transmit(&self) -> Instant {
        self.in_use.iter().map(InUse::next_transmit).min().unwrap_or(Instant::ZERO)
    }
    fn on_transmit(&mut self, now: Instant, bytes: u32) -> Path {
        let turn = self.ready(now)?;
        self.turn = turn;
        let in_use = &mut self.in_use[turn];
        if let Some(limiter) = &mut in_use.limiter {
            limiter.on_transmit(&self.config, now, bytes);
        }
        let path = in_use.path;
        self.free_limiters();
        path
    }
    fn poll_timeout(&self) -> Instant {
        let limiters = self.in_use.iter().filter_map(|in_use| in_use.limiter.as_ref());
        limiters.map(ReactionPoint::poll_timeout).fold(self.timer, Instant::min)
    }
    fn handle_timeout(&mut self, now: Instant) {
        for limiter in self.in_use.iter_mut().filter_map(|in_use| in_use.limiter.as_mut()) {
            limiter.handle_timeout(&self.config, now);
        }
        self.free_limiters();
        if now < self.timer {
            return;
        }
        self.timer = now.saturating_add(self.period);
        // The last activated one whose limiter has gone; the default path stays.
        let is_free = |in_use: &InUse| in_use.path.is_some() && in_use.limiter.is_none();
        if self.in_use.len() > 1
            && let Some(at) = self.in_use.iter().rposition(is_free)
            && let Some(path) = self.in_use.remove(at).path
        {
            self.available.insert(0, path);
        }
    }
    fn is_idle(&self) -> bool {
        matches!(self.in_use[..], [InUse { limiter: None, .. }])
    }
    fn rates(&self, each: &mut dyn FnMut(Path, Rate, Rate)) {
        for in_use in &self.in_use {
            let line = self.config.max_rate;
            let rates = in_use.limiter.as_ref().map_or((line, line), |l| (l.current_rate(), l.target_rate()));
            each(in_use.path, rates.0, rates.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cee::qcn::Notification;
    use crate::routing::xgft::Xgft;

    const NOW: Instant = Instant::ZERO;

    fn control(with_limiters: bool) -> Box<dyn SourceControl> {
        let paths = Paths::new(&Xgft::k_ary_n_tree(2, 3).unwrap()).unwrap();
        let limiter = with_limiters.then(|| ReactionPointConfig::crisan2014(Rate::gbps(10)));
        let config = Reactive { paths, limiter, period: Duration::from_ms(15), seed: 1 };
        config.control(NOW, QueueName { host: 0, to: 7, priority: 0 }, Rate::gbps(10))
    }

    fn message(feedback: u8) -> Message {
        Message { cpid: 0, notification: Notification { feedback, offset: 0, delta: 0 }, priority: 0 }
    }

    /// The paths of the next frames of 1,500 B, sent as soon as they may leave.
    fn paths(control: &mut dyn SourceControl, now: Instant, frames: usize) -> Vec<Path> {
        let mut now = now;
        let mut next = |_| {
            now = now.max(control.next_transmit());
            control.on_transmit(now, 1_500)
        };
        (0..frames).map(&mut next).collect()
    }

    #[test]
    fn r2c2_adds_a_path_for_each_notification_and_drops_one_when_the_load_falls() {
        let mut control = control(false);
        assert!(control.is_idle() && paths(&mut *control, NOW, 3) == [None; 3]);
        control.on_notification(NOW, None, &message(1));
        let two = paths(&mut *control, NOW, 4);
        assert!(two[0].is_some() && two[1].is_none() && two[..2] == two[2..], "{two:?}");
        (0..5).for_each(|_| control.on_notification(NOW, None, &message(1)));
        let mut all = paths(&mut *control, NOW, 8);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4, "all four paths and no more");
        // As many bytes in the second period: nothing changes. Fewer in the third: a path less.
        let ms = |n| NOW + Duration::from_ms(n);
        control.handle_timeout(ms(15));
        paths(&mut *control, ms(15), 15);
        control.handle_timeout(ms(30));
        let distinct = |control: &mut dyn SourceControl, now| {
            let mut seen = paths(control, now, 8);
            seen.sort_unstable();
            seen.dedup();
            seen.len()
        };
        assert_eq!(distinct(&mut *control, ms(30)), 4);
        control.handle_timeout(ms(45));
        assert_eq!(distinct(&mut *control, ms(45)), 3);
    }

    #[test]
    fn r3c2_limits_the_path_that_is_congested_and_adds_one_when_all_are() {
        let mut control = control(true);
        control.on_notification(NOW, None, &message(63));
        // The default path has half of the rate; another one is free and carries the rest.
        let sent = paths(&mut *control, NOW, 10);
        let other = sent.iter().find_map(|path| *path).expect("a second path");
        assert!(sent.iter().filter(|path| path.is_none()).count() <= 2, "{sent:?}");
        // A second notification about the default path adds none, because the other one is not limited.
        control.on_notification(NOW, None, &message(63));
        let mut rates = Vec::new();
        control.rates(&mut |path, rate, _| rates.push((path, rate.as_bps())));
        assert_eq!(rates.len(), 2);
        assert!(rates[0].1 < 3_000_000_000 && rates[1] == (Some(other), 10_000_000_000), "{rates:?}");
        control.on_notification(NOW, Some(other), &message(63));
        let mut count = 0;
        control.rates(&mut |_, _, _| count += 1);
        assert_eq!(count, 3);
        // A notification about a path that is not in use changes nothing.
        control.on_notification(NOW, Some(99), &message(63));
        assert!(!control.is_idle());
    }

    #[test]
    fn r3c2_gives_paths_back_when_no_notification_comes() {
        let mut control = control(true);
        control.on_notification(NOW, None, &message(63));
        let mut now = NOW;
        while !control.is_idle() {
            now = control.poll_timeout();
            control.handle_timeout(now);
            paths(&mut *control, now, 200);
            assert!(now < NOW + Duration::from_secs(5));
        }
        assert_eq!(paths(&mut *control, now, 3), [None; 3]);
    }
}
