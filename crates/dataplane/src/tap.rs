//! Copies of the frames that pass a port, for whoever looks on: never at the cost of those who send and receive them.
//!
//! The switch copies into a bounded queue and goes on; what finds the queue full is counted as lost and not waited for.

use sluicenet_proto::loss::DropReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Frames that may wait for the one who looks on.
const FRAMES_MAX: usize = 8192;

/// Bytes of them.
const BYTES_MAX: usize = 16 << 20;

/// Which way a frame goes, seen from the port as from a network device of a host: towards the switch is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the machine at the port into the switch.
    In,
    /// From the switch to the machine at the port.
    Out,
}

/// A frame that passed a port, or was to pass it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When.
    pub time: Instant,
    /// Which way.
    pub direction: Direction,
    /// Bytes it has.
    pub len: u32,
    /// The first of them, as many as are wanted.
    pub bytes: Box<[u8]>,
    /// Why it went no further.
    pub dropped: Option<DropReason>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting_bytes: AtomicUsize,
    passed: AtomicU64,
    lost: AtomicU64,
    closed: AtomicBool,
}

/// The switch's end.
#[derive(Debug)]
pub struct Tap {
    frames: SyncSender<Captured>,
    shared: Arc<Shared>,
    snaplen: u32,
}

/// The end of the one who looks on.
#[derive(Debug)]
pub struct Capture {
    frames: Receiver<Captured>,
    shared: Arc<Shared>,
}

/// A tap that takes up to `snaplen` bytes of each frame, and what comes out of it.
pub fn tap(snaplen: u32) -> (Tap, Capture) {
    let (sender, receiver) = sync_channel(FRAMES_MAX);
    let shared = Arc::new(Shared::default());
    (Tap { frames: sender, shared: shared.clone(), snaplen }, Capture { frames: receiver, shared })
}

impl Tap {
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    /// Takes a copy of a frame, or counts it, of `len` bytes, the first of which `read` gives.
    #[cold]
    pub(crate) fn take(
        &mut self,
        direction: Direction,
        len: u32,
        dropped: Option<DropReason>,
        read: impl FnOnce(&mut [u8]),
    ) {
        let wanted = len.min(self.snaplen) as usize;
        self.shared.passed.fetch_add(1, Ordering::Relaxed);
        // Only this end adds, so that the bound holds.
        if self.shared.waiting_bytes.load(Ordering::Relaxed) + wanted > BYTES_MAX {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut bytes = vec![0; wanted].into_boxed_slice();
        read(&mut bytes);
        self.shared.waiting_bytes.fetch_add(wanted, Ordering::Relaxed);
        let captured = Captured { time: Instant::now(), direction, len, bytes, dropped };
        if self.frames.try_send(captured).is_err() {
            self.shared.waiting_bytes.fetch_sub(wanted, Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.close();
    }
}

impl Capture {
    /// Nobody looks on any more; the switch forgets the tap when [told](crate::engine::Engine::sweep_taps).
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }

    /// The next frame, waited for so long; the error says whether there will be more.
    pub fn next(&self, wait: Duration) -> Result<Captured, RecvTimeoutError> {
        let captured = self.frames.recv_timeout(wait)?;
        self.shared.waiting_bytes.fetch_sub(captured.bytes.len(), Ordering::Relaxed);
        Ok(captured)
    }

    /// Frames that passed, taken or lost.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }

    /// Frames that found the queue full.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(tap: &mut Tap, len: u32) {
        tap.take(Direction::In, len, None, |bytes| bytes.fill(7));
    }

    #[test]
    fn who_does_not_look_loses_by_count() {
        let (mut tap, capture) = tap(96);
        (0..FRAMES_MAX + 5).for_each(|_| take(&mut tap, 1_500));
        assert_eq!((capture.passed(), capture.lost()), (FRAMES_MAX as u64 + 5, 5));
        let first = capture.next(Duration::ZERO).unwrap();
        assert_eq!((first.len, &*first.bytes), (1_500, &[7; 96][..]));
        take(&mut tap, 60);
        assert_eq!(capture.lost(), 5);
        drop(tap);
        let rest = std::iter::from_fn(|| capture.next(Duration::ZERO).ok()).count();
        assert_eq!(rest, FRAMES_MAX);
        assert_eq!(capture.next(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn memory_is_bounded_by_bytes_too() {
        let (mut tap, capture) = tap(1 << 17);
        (0..1_000).for_each(|_| take(&mut tap, 1 << 17));
        assert_eq!(capture.passed() - capture.lost(), (BYTES_MAX >> 17) as u64);
        capture.next(Duration::ZERO).unwrap();
        take(&mut tap, 1 << 17);
        assert_eq!(capture.passed() - capture.lost(), (BYTES_MAX >> 17) as u64 + 1);
    }
}
