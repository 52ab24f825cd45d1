//! A tenant's queue, which the kernel goes on holding when the switch has ended.
//!
//! The device's queueing discipline is a token bucket of a rate that nobody reaches, in front of a queue of so many frames. Shut,
//! it gives a byte a second, and each frame is charged 65,535 bytes more than it has: one goes, and the next one 17.7 hours
//! later. It is changed, never replaced, since a replacement throws away what waits; and it is the device's, not a process's, so
//! that one switch shuts it and another one opens it.
//!
//! The one frame that goes is the first of the queue, or a mark that is sent through it: either while there is a switch yet.
//!
//! Open or shut, what is longer than a frame of the device and left to be cut is cut when it comes to the bucket. The kernel would cut it
//! behind the queue otherwise, and keep what finds the ring full; which it tries again one by one, and puts what is refused once more
//! behind the rest (`dev_requeue_skb`): TCP would come in the wrong order.

use super::error::{KernelError, Tried};
use super::link::{Bucket, Links, TokenBucket};
use super::pool::HEADER_LEN;
use super::sys::{self, Wait};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// What Linux charges a full frame of an MTU of 1500.
const FULL_FRAME: u64 = 2304;
/// Bytes by which the kernel may count a frame longer than its device's longest: tags, and the like.
const BURST_SLACK: u32 = 86;
/// Bytes a second of a bucket that is open: ten terabits, of which a full frame takes a nanosecond.
const OPEN_RATE: u64 = 1_250_000_000_000;

/// Frames for nobody, that no other program sends: 802's "local experimental" with our name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Sent through the queue, to have it look whether it may go on. A switch that ended may have left some.
    Kick,
    /// Sent past the queue, behind all that is in the ring.
    Trace,
    /// Sent past the queue, for the kernel to be told of: it polls what is there, and then no more by itself.
    Rouse,
}

impl Mark {
    const LEN: usize = 60;
    const HEADER: [u8; HEADER_LEN] = [2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x88, 0xb5];

    const fn name(self) -> &'static [u8; 15] {
        match self {
            Mark::Kick => b"sluicenet-kick ",
            Mark::Trace => b"sluicenet-trace",
            Mark::Rouse => b"sluicenet-rouse",
        }
    }

    fn frame(self) -> [u8; Mark::LEN] {
        let mut frame = [0; Mark::LEN];
        frame[..HEADER_LEN].copy_from_slice(&Mark::HEADER);
        frame[HEADER_LEN..][..self.name().len()].copy_from_slice(self.name());
        frame
    }

    /// Which one a frame is, if any.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Mark> {
        if frame.get(..HEADER_LEN) != Some(&Mark::HEADER) {
            return None;
        }
        [Mark::Kick, Mark::Trace, Mark::Rouse].into_iter().find(|mark| mark.frame() == frame)
    }
}

/// What became of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traced {
    /// It is in the ring, and with it all that had left the queue.
    Sent,
    /// The ring is full.
    Full,
    /// The device takes nothing from anybody: it is switched off, or gone.
    Off,
}

/// The queue of a tenant's device, in the hands of a switch.
#[derive(Debug)]
pub(super) struct TenantQueue {
    bucket: Bucket,
    /// Packet sockets at the device: one whose frames go through the queue, and one whose frames go past it.
    through: OwnedFd,
    past: OwnedFd,
    longest: u32,
    is_shut: bool,
}

/// Frames that wait at a tenant's device. A queue costs nothing until it is used; and what waits in it its senders have in their sockets'
/// send buffers, of 212,992 bytes each where they did not ask for others: 277 datagrams of 8 bytes, or 93 full frames.
///
/// So what bounds it is the machine's memory, a quarter of which it may take with full frames: where sockets are so many, no queue holds
/// them all. What no socket pays for, such as what a tenant passes on, has its end there too.
pub(super) fn queue_frames() -> u32 {
    static FRAMES: OnceLock<u32> = OnceLock::new();
    *FRAMES.get_or_init(|| frames_in(memory()))
}

fn frames_in(memory: u64) -> u32 {
    (memory / 4 / FULL_FRAME).clamp(100_000, i32::MAX as u64) as u32
}

/// Bytes of memory that wait for a neighbour's address, in place of Linux's 212,992, one socket's: what the queue holds.
pub(super) fn unresolved_bytes(queue: u32) -> i32 {
    (u64::from(queue) * FULL_FRAME).min(i32::MAX as u64) as i32
}

/// The machine's memory, in bytes; 0 where the kernel does not say.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Has a device's frames wait where they can be held. What waits there already, of a switch that was before, stays.
pub(super) fn prepare(links: &mut Links, device: &str) -> Result<(), KernelError> {
    let longest = longest(links.get(device)?.mtu);
    links.set_queue(device, bucket(OPEN_RATE, longest), queue_frames())
}

/// Bytes of a device's longest frame, as the kernel may count it.
fn longest(mtu: u32) -> u32 {
    mtu + HEADER_LEN as u32 + BURST_SLACK
}

/// A bucket for frames of so many bytes at most. Its limit is that of the queue behind it.
fn bucket(rate: u64, longest: u32) -> TokenBucket {
    TokenBucket { rate, burst: longest, limit: queue_frames() }
}

impl TenantQueue {
    /// At a device that was [prepared](prepare) and is in the namespace of this thread; from now on it is shut.
    pub fn shut(links: &mut Links, device: &str) -> Result<TenantQueue, KernelError> {
        let link = links.get(device)?;
        let what = || format!("a packet socket at {device}");
        let [through, past] = [sys::packet_socket().tried(what)?, sys::packet_socket().tried(what)?];
        for socket in [&through, &past] {
            sys::bind_packet(socket.as_fd(), link.index, 0).tried(what)?;
        }
        sys::set_option(past.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1).tried(what)?;
        let mut hold =
            TenantQueue { bucket: links.bucket(device)?, through, past, longest: longest(link.mtu), is_shut: false };
        hold.shut_again().tried(|| format!("holding the queue of {device} (tbf)"))?;
        Ok(hold)
    }

    /// Shuts it; one frame goes yet, of the tenant's or ours.
    pub fn shut_again(&mut self) -> io::Result<()> {
        self.bucket.change_charged(bucket(1, self.longest), u16::MAX)?;
        self.is_shut = true;
        self.kick();
        Ok(())
    }

    /// Shuts it for as long as nothing is sent; the first frame goes, for who sleeps to be woken by.
    pub fn rest(&mut self) -> io::Result<()> {
        self.bucket.change_charged(bucket(1, self.longest), u16::MAX)?;
        self.is_shut = true;
        Ok(())
    }

    /// Opens it, and what waits goes.
    pub fn open(&mut self) -> io::Result<()> {
        self.is_shut = false;
        self.bucket.change(bucket(OPEN_RATE, self.longest))?;
        self.kick();
        Ok(())
    }

    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Has the queue look at its bucket. A queue that is full looks all the same.
    fn kick(&self) {
        let _ = sys::send(self.through.as_fd(), Wait::No, &[&Mark::Kick.frame()], None);
    }

    /// Has what left the queue and found the ring full go there, and a trace behind it.
    pub fn trace(&self) -> Traced {
        self.kick();
        match self.send_past(&Mark::Trace.frame()) {
            Ok(true) => Traced::Sent,
            Ok(false) => Traced::Full,
            Err(_) => Traced::Off,
        }
    }

    /// Spends the device's interrupt: once it was told that there is something, the kernel does not poll until interrupts are on.
    pub fn rouse(&self) {
        // Where the ring is full it was told.
        let _ = self.send_past(&Mark::Rouse.frame());
    }

    /// Sends a frame past the queue; not if the ring is full.
    pub fn send_past(&self, frame: &[u8]) -> io::Result<bool> {
        match sys::send(self.past.as_fd(), Wait::No, &[frame], None) {
            Ok(_) => Ok(true),
            Err(e) => match Errno::from_io_error(&e) {
                Some(Errno::NOBUFS | Errno::AGAIN | Errno::INTR | Errno::NOMEM) => Ok(false),
                _ => Err(e),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_as_long_as_a_quarter_of_the_memory() {
        assert_eq!(frames_in(24 << 30), 2_796_202);
        assert_eq!((frames_in(0), frames_in(u64::MAX)), (100_000, i32::MAX as u32));
        assert_eq!((unresolved_bytes(100_000), unresolved_bytes(u32::MAX)), (230_400_000, i32::MAX));
        assert!(memory() > 1 << 20);
    }

    /// Behind the queue none may be left to be cut: what finds the ring full would come in the wrong order.
    #[test]
    fn a_bucket_takes_no_more_than_a_frame_at_once() {
        for rate in [1, OPEN_RATE] {
            let bucket = bucket(rate, longest(1_500));
            assert!((1_518..3_000).contains(&bucket.burst), "{bucket:?}");
        }
    }

    #[test]
    fn marks_are_told_from_all_else() {
        for mark in [Mark::Kick, Mark::Trace, Mark::Rouse] {
            assert_eq!(Mark::of(&mark.frame()), Some(mark));
            assert_eq!(Mark::of(&mark.frame()[..59]), None);
            let mut other = mark.frame();
            other[59] = 1;
            assert_eq!(Mark::of(&other), None);
        }
        assert_eq!(Mark::of(&[]), None);
        assert_eq!(Mark::of(&[0; 60]), None);
    }
}
