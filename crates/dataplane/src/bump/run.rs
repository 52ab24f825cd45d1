//! The loop of a bump: round after round, by default without a pause.

use super::end::Kind;
use super::{Bump, EVENTS_MAX, Frame, Loop, QueueReport, Queues, Report, report};
use crate::engine::{Event, PlugError};
use crate::port::{BrokenPort, Port};
use crate::remote::Remote;
use crate::shm;
use crate::tap::Tap;
use rustix::event::{PollFd, Timespec};
use sluicenet_proto::netbump::{self, App, Map, QueueId, Slot};
use sluicenet_proto::time::Duration;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

/// The longest sleep: timers of ports and reports are looked at so often.
const SLEEP_MAX: Duration = Duration::from_ms(100);
/// The longest sleep while a frame waits for a port that cannot wake the loop.
const BLOCKED_SLEEP_MAX: Duration = Duration::from_ms(1);
/// An ending loop gives up when no frame has moved for this time.
const DRAIN_PATIENCE: Duration = Duration::from_ms(200);

impl<A, T> Loop for Bump<A, T>
where
    A: App<Frame> + Send + 'static,
    A::State: 'static,
    T: Queues<A::State> + 'static,
{
    fn round(&mut self) -> usize {
        self.one_round()
    }

    fn run(&mut self, stop: &AtomicBool, patience: Option<Duration>) -> io::Result<()> {
        let mut idle_since = None;
        while !stop.load(Ordering::Relaxed) {
            if self.jobs.are_there() {
                self.do_jobs();
            }
            if self.one_round() > 0 {
                idle_since = None;
                continue;
            }
            std::hint::spin_loop();
            let Some(patience) = patience else { continue };
            let now = self.now();
            if now.since(*idle_since.get_or_insert(now)) >= patience {
                idle_since = None;
                self.sleep()?;
            }
        }
        self.do_jobs();
        Ok(())
    }

    fn drain(&mut self, at_most: Duration) -> u64 {
        self.closing = true;
        self.ends.iter_mut().filter_map(|end| end.port.as_mut()).for_each(|port| port.get_mut().close());
        let until = self.now().saturating_add(at_most);
        let (mut least, mut moved_at) = (u64::MAX, self.now());
        loop {
            let moved = self.one_round();
            let held = |port: &Kind| u64::from(port.get().held());
            let left: u64 = self.ends.iter().filter_map(|end| end.port.as_ref()).map(held).sum();
            let left = left + self.programs.as_ref().map_or(0, |programs| programs.inside());
            let now = self.now();
            if moved > 0 || left < least {
                (least, moved_at) = (left.min(least), now);
            }
            if left == 0 || now >= until || now.since(moved_at) >= DRAIN_PATIENCE {
                return left;
            }
        }
    }

    fn remote(&mut self) -> io::Result<Remote<dyn Loop>> {
        self.jobs.remote()
    }

    fn events(&mut self) -> Receiver<Event> {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        self.events = Some(sender);
        receiver
    }

    fn plug_shm(&mut self, end: usize, buffers: u32) -> io::Result<shm::Access> {
        self.check_vacant(end)?;
        let (port, access) = shm::Port::create(&self.ends[end].name, buffers)?;
        self.ends[end].port = Some(Kind::Shm(port));
        Ok(access)
    }

    fn plug(&mut self, end: usize, port: Box<dyn Port>) -> Result<(), PlugError> {
        self.check_vacant(end)?;
        self.ends[end].port = Some(Kind::Other(port));
        Ok(())
    }

    fn unplug(&mut self, end: usize) -> bool {
        self.ends.get_mut(end).is_some_and(|end| end.unplug())
    }

    fn end_named(&self, name: &str) -> Option<usize> {
        self.ends.iter().position(|end| end.name == name)
    }

    fn set_tap(&mut self, end: usize, tap: Tap) -> bool {
        self.sweep_taps();
        let Some(end) = self.ends.get_mut(end).filter(|end| end.port.is_some() && end.tap.is_none()) else {
            return false;
        };
        end.tap = Some(Box::new(tap));
        true
    }

    fn sweep_taps(&mut self) {
        self.ends.iter_mut().for_each(|end| _ = end.tap.take_if(|tap| tap.is_closed()));
    }

    fn set_maps(&mut self, maps: &[Map], ports: &[(QueueId, netbump::Port)]) {
        assert_eq!(maps.len(), self.maps.len(), "a map for each end");
        for &(id, port) in ports {
            let new = Slot::new::<Frame>(&self.app, id, port);
            *self.queues.slot(id) = new;
        }
        self.maps = maps.to_vec();
        let now = self.now();
        if let Some(programs) = &mut self.programs {
            programs.set_ports(now, ports);
        }
    }

    fn report(&self) -> Report {
        report::of(self.now(), &self.ends, self.updates.as_ref(), self.programs.as_deref(), self.sleeps)
    }

    fn report_queues(&mut self) -> Vec<QueueReport> {
        let now = self.now();
        let Bump { app, queues, .. } = self;
        (0..queues.count()).map(|id| report::of_queue(app, now, &queues.slot(id as QueueId))).collect()
    }
}

impl<A, T> Bump<A, T>
where
    A: App<Frame> + Send + 'static,
    A::State: 'static,
    T: Queues<A::State> + 'static,
{
    /// Runs the jobs of other threads.
    #[cold]
    fn do_jobs(&mut self) {
        while let Some(job) = self.jobs.next() {
            job(self);
        }
    }

    /// Sleeps until the other side of a port wakes the loop, or a timer needs a round.
    #[cold]
    fn sleep(&mut self) -> io::Result<()> {
        let programs_wait = self.programs.as_mut().is_none_or(|programs| !programs.is_busy());
        let mut quiet = programs_wait && !self.jobs.are_there();
        for end in 0..self.ends.len() {
            let blocked = self.ends[end].blocked;
            let Some(port) = &mut self.ends[end].port else { continue };
            match port.get_mut().fall_asleep(blocked) {
                Ok(asleep) => quiet &= asleep,
                Err(BrokenPort) => self.broken(end),
            }
        }
        if quiet {
            self.sleeps += 1;
            let ports = || self.ends.iter().filter_map(|end| end.port.as_ref());
            let in_lanes = self.programs.as_ref().map_or(0, |programs| programs.inside());
            let waits = in_lanes > 0 || self.ends.iter().any(|end| end.blocked);
            let mut wait = if waits { BLOCKED_SLEEP_MAX } else { SLEEP_MAX };
            let now = self.now();
            let updates = self.updates.as_ref().map(|updates| updates.poll_timeout());
            for due in ports().filter_map(|port| port.get().poll_timeout()).chain(updates) {
                wait = Duration(wait.0.min(due.0.saturating_sub(now.0)));
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: (wait.0 / 1_000) as i64 };
            let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.ends.len() + 1);
            self.jobs.waker(&mut fds);
            ports().for_each(|port| port.get().wakers(&mut fds));
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.jobs.wake_up();
        self.ends.iter_mut().filter_map(|end| end.port.as_mut()).for_each(|port| port.get_mut().wake_up());
        Ok(())
    }
}
