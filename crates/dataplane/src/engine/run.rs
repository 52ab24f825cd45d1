//! The loop: round after round, asleep while there is nothing to do, with a watchdog over ports that accept no frames.

use super::Engine;
use super::attached::{Attached, Kind, Lent};
use super::report::Happened;
use crate::port::{BrokenPort, Offload};
use rustix::event::{PollFd, Timespec};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::time::{Duration, Instant};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often the watchdog looks, far below any detection time.
pub(super) const WATCH_EVERY: Duration = Duration::from_ms(5);

/// After a longer gap the watchdog ignores the time since its last look: this process may not have run.
const AWAY: Duration = Duration::from_ms(20);

/// How long the loop runs without a frame before it sleeps. A round takes 0.1 us with ports in shared memory and 10 us with
/// network devices.
pub(super) const PATIENCE: Duration = Duration::from_us(20);

/// After so long without a frame the loop sleeps on where no port needs a round. With many ports a round takes long.
const SILENT: Duration = Duration::from_secs(2);

/// How long frames of lossless classes wait for a guest that is not there: QEMU connects again every second (`reconnect=1`), also
/// after a restart of the switch.
const GUEST_COMES_WITHIN: Duration = Duration::from_secs(3);

/// A port without room for a frame of this length, in bytes, is stuck.
const SMALL_FRAME: u32 = 60;

impl Engine {
    #[cold]
    pub(super) fn watch(&mut self, now: Instant) {
        let gap = now.since(self.watched);
        if gap >= AWAY {
            self.vale.was_away(gap);
        }
        self.watched = now;
        self.changes += 1;
        self.age(now);
        let patience = self.patience_with_guests();
        for k in 0..self.ports.len() {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            if attached.kind.get_mut().lost_agent() {
                self.tell(k, Happened::AgentLost);
            }
            let Some(attached) = self.ports[k].as_mut() else { continue };
            if let Kind::Vhost(port) = &mut attached.kind
                && port.awaits_guest(now, patience)
            {
                self.drop_lossy(k);
            }
            let Some(attached) = self.ports[k].as_mut() else { continue };
            let Ok(has_room) = attached.kind.get_mut().reserve(SMALL_FRAME, &Offload::NONE) else {
                self.broken(k);
                continue;
            };
            let Engine { vale, dropped, ports, .. } = self;
            let (was, before) = (vale.is_isolated(k), dropped.len());
            vale.watch(now, k, has_room, &mut |frame| dropped.push(frame));
            let (is, stuck) = (vale.is_isolated(k), vale.is_stuck(k));
            let Some(attached) = &mut ports[k] else { continue };
            let was_stuck = std::mem::replace(&mut attached.stuck, stuck);
            if is {
                attached.cut = [0; 8];
            } else if was_stuck != stuck {
                self.tell(k, if stuck { Happened::Stuck } else { Happened::Moves });
            }
            let Engine { dropped, ports, .. } = self;
            if was != is {
                Engine::capture_dropped(ports, k, &dropped[before..], DropReason::Watchdog);
                self.tell(k, if is { Happened::Isolated } else { Happened::Restored });
            }
        }
        Engine::give_back_dropped(&mut self.ports, &mut self.dropped);
        self.learn_strangers(now);
    }

    /// How long a frame waits for a guest; `None`: as long as it takes, where no watchdog ends it.
    fn patience_with_guests(&self) -> Option<Duration> {
        match self.vale.lossless().is_empty() {
            true => Some(Duration::ZERO),
            false => self.vale.watchdog().isolates_after().map(|time| time.min(GUEST_COMES_WITHIN)),
        }
    }

    /// Drops the lossy frames that wait for port `k`, to which no guest has come.
    fn drop_lossy(&mut self, k: usize) {
        let lossy = PrioritySet(!self.vale.lossless().0);
        let Engine { vale, dropped, ports, .. } = self;
        let before = dropped.len();
        vale.give_up_classes(k, lossy, DropReason::PortGone, &mut |frame| dropped.push(frame));
        Engine::capture_dropped(ports, k, &dropped[before..], DropReason::PortGone);
    }

    /// Forgets stations that were silent for too long, but not those that a port knows to be there.
    fn age(&mut self, now: Instant) {
        let before = std::mem::replace(&mut self.aged, now);
        let second = |at: Instant| at.0 / Duration::from_secs(1).0;
        if second(now) != second(before) {
            for (k, attached) in self.ports.iter().enumerate() {
                let Some(attached) = attached.as_ref().filter(|a| a.present) else { continue };
                if let Some(mac) = attached.kind.get().station() {
                    self.vale.refresh(now, Station::new(mac, attached.access.domain.unwrap_or(0)), k);
                }
            }
        }
        self.vale.age(now, now.since(before));
    }

    /// Captures frames that are dropped instead of delivered at port `k`.
    #[cold]
    pub(super) fn capture_dropped(ports: &mut [Option<Attached>], k: usize, frames: &[Lent], reason: DropReason) {
        for frame in frames {
            if let Ok([Some(from), Some(to)]) = ports.get_disjoint_mut([frame.owner(), k]) {
                to.capture_lost(from, *frame, reason);
            }
        }
    }

    /// A port is no longer served.
    #[cold]
    pub(super) fn broken(&mut self, k: usize) {
        if let Some(why) = self.ports[k].as_ref().filter(|a| a.present).map(|a| a.kind.get().why_broken()) {
            self.tell(k, Happened::Broken(why));
        }
        self.unplug(k);
    }

    /// Runs the jobs of other threads.
    #[cold]
    fn do_jobs(&mut self) {
        while let Some(job) = self.jobs.next() {
            job(self);
        }
    }

    /// Runs until `stop`, and sleeps while there is nothing to do.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let (mut idle, mut has_moved) = (None, true);
        while !stop.load(Ordering::Relaxed) {
            if self.jobs.are_there() {
                self.do_jobs();
            }
            if self.round() > 0 {
                (idle, has_moved) = (None, true);
                continue;
            }
            let now = self.now();
            if now.since(*idle.get_or_insert(now)) < PATIENCE {
                std::hint::spin_loop();
                continue;
            }
            idle = None;
            if std::mem::take(&mut has_moved) {
                self.moved = now;
            }
            self.sleep(stop)?;
        }
        self.do_jobs();
        Ok(())
    }

    /// Takes no more frames in and delivers those in the switch, for `at_most` and at most `patience` without progress. Returns
    /// the number of frames left, which are lost with the switch. Frames that were not taken stay in the memory of programs and
    /// guests, and in the kernel behind devices.
    pub fn drain(&mut self, patience: Duration, at_most: Duration) -> u64 {
        let until = self.now().saturating_add(at_most);
        let (mut least, mut moved_at) = (u64::MAX, self.now());
        if !self.closing {
            self.closing = true;
            self.ports.iter_mut().flatten().filter(|a| a.present).for_each(|a| a.kind.get_mut().close());
            self.waits = false;
        }
        loop {
            let moved = self.round();
            let left = self.queued() + self.held();
            let now = self.now();
            if moved > 0 || left < least {
                (least, moved_at) = (left.min(least), now);
            }
            if left == 0 || now >= until || now.since(moved_at) >= patience {
                return left;
            }
            if moved == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Frames inside ports, in either direction.
    fn held(&self) -> u64 {
        self.ports.iter().flatten().filter(|a| a.present).map(|a| u64::from(a.kind.get().held())).sum()
    }

    /// Whether a port shows frames from the switch's own memory instead of its other side's.
    pub(super) fn has_fetched(&self, k: usize) -> bool {
        self.ports[k].as_ref().is_some_and(|a| matches!(a.kind, Kind::Other(_)))
    }

    /// Sleeps until a program wakes the switch, or the watchdog or a port needs a round.
    fn sleep(&mut self, stop: &AtomicBool) -> io::Result<()> {
        // A switch that sleeps after each frame has no time at which its watchdog looks.
        self.learn_strangers(self.now());
        let mut quiet = !self.jobs.are_there();
        for k in 0..self.ports.len() {
            let Some(attached) = self.ports[k].as_mut().filter(|a| a.present) else { continue };
            // A blocked port does not keep the switch awake: its receiver wakes the switch, or the watchdog does.
            match attached.kind.get_mut().fall_asleep(attached.blocked) {
                Ok(asleep) => quiet &= asleep,
                Err(BrokenPort) => self.broken(k),
            }
        }
        if quiet {
            while !self.wait_for_events()? && !stop.load(Ordering::Relaxed) {}
        }
        self.jobs.wake_up();
        self.ports.iter_mut().flatten().filter(|a| a.present).for_each(|a| a.kind.get_mut().wake_up());
        Ok(())
    }

    /// Waits for events while all sleep; returns whether a round is due.
    fn wait_for_events(&mut self) -> io::Result<bool> {
        self.sleeps += 1;
        let present = || self.ports.iter().flatten().filter(|a| a.present);
        // The watchdog looks at an isolated port until it is restored, even without traffic.
        let isolated = (0..self.ports.len()).any(|k| self.vale.is_isolated(k));
        let waiting = isolated || self.vale.queued() > 0 || present().any(|a| a.blocked);
        let mut wait = if waiting { WATCH_EVERY } else { Duration::from_ms(100) };
        let now = self.now();
        for deadline in present().filter_map(|a| a.kind.get().poll_timeout()) {
            wait = Duration(wait.0.min(deadline.0.saturating_sub(now.0)));
        }
        for k in (0..self.ports.len()).filter(|&k| self.vale.is_ready(k, PrioritySet::ALL)) {
            if let Some(pace) = self.ports[k].as_ref().and_then(|a| a.pace) {
                wait = Duration(wait.0.min(pace.next().0.saturating_sub(now.0)));
            }
        }
        // A port that may not send yet wakes nobody.
        for attached in present().filter(|a| a.blocked) {
            if let Some(pace) = attached.send_pace {
                wait = Duration(wait.0.min(pace.next().0.saturating_sub(now.0)));
            }
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: (wait.0 / 1_000) as i64 };
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.ports.len() + 1);
        self.jobs.waker(&mut fds);
        present().for_each(|a| a.kind.get().wakers(&mut fds));
        let is_called = match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(events) => events > 0,
            Err(rustix::io::Errno::INTR) => true,
            Err(e) => return Err(e.into()),
        };
        let now = self.now();
        if !waiting {
            // No port was stuck while there was nothing to do.
            self.watched = now;
        }
        self.age(now);
        let mut present = self.ports.iter().flatten().filter(|a| a.present).map(|a| a.kind.get());
        let sleeps_on = !is_called
            && !waiting
            && present.all(|port| port.sleeps_on() && port.poll_timeout().is_none_or(|at| at > now));
        // A port that has just moved frames may not hear of the next one: then the round after a sleep finds it.
        Ok(!sleeps_on || now.since(self.moved) < SILENT)
    }
}
