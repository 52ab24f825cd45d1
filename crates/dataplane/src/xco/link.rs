//! What the loops of a controller and of an agent have in common: messages at their device, and turns.

use crate::fabric::Device;
use crate::remote::Jobs;
use rustix::event::{PollFd, Timespec};
use sluicenet_proto::time::Duration;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{LEN_MAX, Received, Repr, receive};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

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

impl LinkCounters {
    /// Counts a frame, and hands a message for the address `own` on.
    pub(super) fn take(&mut self, frame: &[u8], own: MacAddress, handle: impl FnOnce(&Repr<'_>)) {
        let mut bytes = [0; LEN_MAX];
        match receive(frame, own, &mut bytes) {
            Received::Other => {
                self.other += 1;
                return;
            }
            Received::Elsewhere => self.elsewhere += 1,
            Received::Malformed => self.malformed += 1,
            Received::Message(repr) => handle(&repr),
        }
        self.received += 1;
    }
}

/// A loop on a thread of its own.
pub(super) trait Turns: Sized {
    /// Work from other threads.
    fn jobs(&mut self) -> &mut Jobs<Self>;

    /// Does what there is to do, or sleeps.
    ///
    /// # Errors
    /// The device is gone, or the kernel cannot wait.
    fn turn(&mut self) -> io::Result<()>;
}

/// Takes turns until `stop`.
pub(super) fn run<T: Turns>(of: &mut T, stop: &AtomicBool) -> io::Result<()> {
    // Slices end within microseconds: the kernel may not put timers off.
    let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1));
    while !stop.load(Ordering::Relaxed) {
        work(of);
        of.turn()?;
    }
    work(of);
    Ok(())
}

fn work<T: Turns>(of: &mut T) {
    while let Some(job) = of.jobs().next() {
        job(of);
    }
}

/// Sleeps until there is a job or a frame, at most for `wait`.
pub(super) fn sleep<T>(jobs: &mut Jobs<T>, device: &dyn Device, wait: Duration) -> io::Result<()> {
    let wait = wait.min(SLEEP_MAX);
    let timeout = Timespec { tv_sec: 0, tv_nsec: (wait.0 / 1_000) as i64 };
    let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(2);
    jobs.waker(&mut fds);
    // Messages are not sent again when there is room: coordinators ask again.
    device.wakers(false, &mut fds);
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    jobs.wake_up();
    Ok(())
}
