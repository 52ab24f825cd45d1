//! Senders and sink in namespaces, each a thread of this program.

use super::load::{self, Load, PORT, Received, Sent, Stack};
use super::{OverloadError, SENDERS, SINK};
use sluicenet_dataplane::kernel::edge;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// When nothing more comes for so long, missing datagrams are lost.
const QUIET: Duration = Duration::from_millis(500);

/// One exchange; it ends early when `stop` is raised.
pub fn exchange(lan: &Lan, load: &Load, stop: &AtomicBool) -> Result<(Vec<Sent>, Received), OverloadError> {
    let to = Lan::socket(SINK, PORT);
    let mut sink = Sink::bind(lan.tenant(SINK), to, load.payload, SENDERS as u16)?;
    let senders = (0..SENDERS).map(|i| Sender::new(lan.tenant(i), i as u16, to, load.payload));
    let senders = senders.collect::<Result<Vec<_>, _>>()?;
    let told = OnceLock::new();
    std::thread::scope(|scope| {
        let told = &told;
        let sinking = scope.spawn(move || load::receive(&mut sink, QUIET, || told.get().copied()));
        let send =
            |mut sender: Sender| scope.spawn(move || load::send(&mut sender, load, || stop.load(Ordering::Relaxed)));
        let sending: Vec<_> = senders.into_iter().map(send).collect();
        let sent: io::Result<Vec<Sent>> = sending.into_iter().map(join).collect();
        // Also when a sender failed: the sink must end.
        let all = sent.as_ref().map_or(0, |sent| sent.iter().map(|s| s.sent).sum());
        told.get_or_init(|| all);
        let received = join(sinking)?;
        Ok((sent?, received))
    })
}

/// Has a tenant send something, so that the switch knows where it is.
pub fn introduce(lan: &Lan, i: usize) -> Result<(), OverloadError> {
    for j in (0..=SENDERS).filter(|&j| j != i) {
        Sender::new(lan.tenant(i), 0, Lan::socket(j, PORT), 64)?.send(1)?;
    }
    Ok(())
}

/// Counters of the kernel at the tenants' devices.
pub fn stacks(lan: &Lan) -> Result<Vec<Stack>, OverloadError> {
    let read = |i| Ok(edge::Stack::open(lan.tenant(i), DEVICE)?.read()?.into());
    (0..=SENDERS).map(read).collect()
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
