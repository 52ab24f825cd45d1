//! Copies of the frames at a port for a capture, which never delays their senders and receivers.
//! The switch copies into a bounded queue. If the queue is full, it counts the copy as lost and goes on.

use sluicenet_proto::loss::DropReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// The most frames that may wait for the capture.
const FRAMES_MAX: usize = 8192;

/// The most bytes of them.
const BYTES_MAX: usize = 16 << 20;

/// The direction of a frame, seen from the port as from a host's network device: towards the switch is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the endpoint at the port into the switch.
    In,
    /// From the switch to the endpoint at the port.
    Out,
}

/// A frame that passed a port, or was dropped there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When it passed.
    pub time: Instant,
    /// Its direction.
    pub direction: Direction,
    /// Its length in bytes.
    pub len: u32,
    /// Its first bytes, up to the wanted number.
    pub bytes: Box<[u8]>,
    /// Why it was dropped, if it was.
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

/// The capture's end.
#[derive(Debug)]
pub struct Capture {
    frames: Receiver<Captured>,
    shared: Arc<Shared>,
}

/// A tap that copies up to `snaplen` bytes of each frame, and the capture that receives the copies.
pub fn tap(snaplen: u32) -> (Tap, Capture) {
    let (sender, receiver) = sync_channel(FRAMES_MAX);
    let shared = Arc::new(Shared::default());
    (Tap { frames: sender, shared: shared.clone(), snaplen }, Capture { frames: receiver, shared })
}

impl Tap {
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    /// Copies a frame of `len` bytes, whose first bytes `read` provides, or counts it as lost.
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
        // Only this end adds frames, so the bound holds.
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
    /// Ends the capture; the switch removes the tap in [`sweep_taps`](crate::engine::Engine::sweep_taps).
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }

    /// The next frame, waiting up to `wait`; the error tells whether there may be more.
    pub fn next(&self, wait: Duration) -> Result<Captured, RecvTimeoutError> {
        let captured = self.frames.recv_timeout(wait)?;
        self.shared.waiting_bytes.fetch_sub(captured.bytes.len(), Ordering::Relaxed);
        Ok(captured)
    }

    /// Frames at the port, copied or lost.
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
