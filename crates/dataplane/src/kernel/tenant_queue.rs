//! The queue of a tenant's device, which the kernel keeps shut after the switch has ended.
//! The device's queueing discipline is a token bucket in front of a queue. Open, its rate is never reached. Shut, it gets one
//! byte per second, and each frame is charged 65,535 bytes more than it has: one frame goes, and the next one 17.7 hours later.
//! The discipline is changed and never replaced, because a replacement drops the waiting frames. It belongs to the device and
//! not to a process, so that one switch shuts it and another one opens it.
//! The one frame that goes is the first of the queue, or a mark that is sent through it. Either goes while the switch still
//! runs.
//! Open or shut, the bucket cuts frames that are longer than the device's frames. Otherwise the kernel would cut them behind
//! the queue and keep the segments that find the ring full. It would try these one by one and put each refused one behind the
//! rest (`dev_requeue_skb`): TCP segments would arrive out of order.

use super::error::{KernelError, Tried};
use super::keeper::{Keeper, OwnKeeper};
use super::link::{Links, TokenBucket};
use super::parts::Descriptors;
use super::pool::HEADER_LEN;
use super::sys::{self, Wait};
use super::valve::{Pollers, Polls};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// Linux's charge for a full frame with an MTU of 1500, in bytes.
const FULL_FRAME: u64 = 2304;
/// Bytes by which the kernel may count a frame longer than the device's longest, for example for tags.
const BURST_SLACK: u32 = 86;
/// Rate of an open bucket in bytes per second: ten terabits, at which a full frame takes a nanosecond.
const OPEN_RATE: u64 = 1_250_000_000_000;

/// Frames without a receiver that no other program sends: 802's "local experimental" type with our name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Sent through the queue, so that it checks its bucket again. A switch that ended may have left some.
    Kick,
    /// Sent past the queue, behind all frames in the ring.
    Trace,
    /// Sent past the queue to raise the interrupt: the kernel polls once, and then not again by itself.
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

    /// The mark that a frame is, if it is one.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Mark> {
        if frame.get(..HEADER_LEN) != Some(&Mark::HEADER) {
            return None;
        }
        [Mark::Kick, Mark::Trace, Mark::Rouse].into_iter().find(|mark| mark.frame() == frame)
    }
}

/// The outcome of sending a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traced {
    /// The mark is in the ring, behind all frames that had left the queue.
    Sent,
    /// The ring is full.
    Full,
    /// The device takes no frames: it is switched off, or gone.
    Off,
}

/// The queue of a tenant's device, controlled by a switch.
#[derive(Debug)]
pub(super) struct TenantQueue {
    keeper: Box<dyn Keeper>,
    /// Packet sockets at the device: frames of one go through the queue, frames of the other past it.
    through: OwnedFd,
    past: OwnedFd,
    is_shut: bool,
    /// How often it was shut or opened.
    changes: u64,
}

/// The length of the queue at a tenant's device, in frames. An unused queue costs nothing. Waiting frames count against the
/// send buffers of their sockets, by default 212,992 bytes each: 277 datagrams of 8 bytes, or 93 full frames.
///
/// So the machine's memory is the bound: full frames may take a quarter of it. With more sockets than that, no queue is long
/// enough. The bound also applies to frames without a socket, such as those that a tenant forwards.
pub(super) fn queue_frames() -> u32 {
    static FRAMES: OnceLock<u32> = OnceLock::new();
    *FRAMES.get_or_init(|| frames_in(memory()))
}

fn frames_in(memory: u64) -> u32 {
    (memory / 4 / FULL_FRAME).clamp(100_000, i32::MAX as u64) as u32
}

/// Memory of the frames that may wait for a neighbour's address: as much as the queue holds, instead of Linux's 212,992 bytes
/// for one socket.
pub(super) fn unresolved_bytes(queue: u32) -> i32 {
    (u64::from(queue) * FULL_FRAME).min(i32::MAX as u64) as i32
}

/// The machine's memory in bytes; 0 if the kernel does not report it.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Installs the queueing discipline at a device. Frames that wait there already, from an earlier switch, stay.
pub(super) fn prepare(links: &mut Links, device: &str) -> Result<(), KernelError> {
    let longest = longest(links.get(device)?.mtu);
    links.set_queue(device, bucket(OPEN_RATE, longest), queue_frames())
}

/// Bytes of a device's longest frame, as the kernel may count it.
fn longest(mtu: u32) -> u32 {
    mtu + HEADER_LEN as u32 + BURST_SLACK
}

/// A bucket for frames of at most `longest` bytes. Its limit is that of the queue behind it.
fn bucket(rate: u64, longest: u32) -> TokenBucket {
    TokenBucket { rate, burst: longest, limit: queue_frames() }
}

/// The keeper of the queue of a device that was [prepared](prepare) and is in this thread's namespace.
pub(super) fn keeper(links: &mut Links, device: &str, polls: Option<Polls>) -> Result<OwnKeeper, KernelError> {
    let longest = longest(links.get(device)?.mtu);
    let (open, shut) = (bucket(OPEN_RATE, longest), bucket(1, longest));
    Ok(OwnKeeper { bucket: links.bucket(device)?, open, shut, charge: u16::MAX, polls })
}

impl TenantQueue {
    /// Its keeper and its descriptors.
    pub fn into_parts(self) -> (Box<dyn Keeper>, Vec<OwnedFd>) {
        (self.keeper, vec![self.through, self.past])
    }

    /// A queue of these parts, which is shut.
    pub fn of(keeper: Box<dyn Keeper>, all: &mut Descriptors) -> io::Result<TenantQueue> {
        Ok(TenantQueue { keeper, through: all.next()?, past: all.next()?, is_shut: true, changes: 0 })
    }

    /// The queue of a device in this thread's namespace, by its keeper. Shuts it.
    pub fn shut(links: &mut Links, device: &str, keeper: Box<dyn Keeper>) -> Result<TenantQueue, KernelError> {
        let link = links.get(device)?;
        let what = || format!("a packet socket at {device}");
        let [through, past] = [sys::packet_socket().tried(what)?, sys::packet_socket().tried(what)?];
        for socket in [&through, &past] {
            sys::bind_packet(socket.as_fd(), link.index, 0).tried(what)?;
        }
        sys::set_option(past.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1).tried(what)?;
        let mut hold = TenantQueue { keeper, through, past, is_shut: false, changes: 0 };
        hold.shut_again().tried(|| format!("holding the queue of {device} (tbf)"))?;
        Ok(hold)
    }

    /// Shuts the queue. One frame still goes, of the tenant or ours.
    pub fn shut_again(&mut self) -> io::Result<()> {
        self.rest()?;
        self.kick();
        Ok(())
    }

    /// Shuts it, but the first frame of the tenant goes and wakes the sleeping switch.
    pub fn rest(&mut self) -> io::Result<()> {
        self.changes += 1;
        self.keeper.shut()?;
        self.is_shut = true;
        Ok(())
    }

    /// Opens it, and waiting frames go.
    pub fn open(&mut self) -> io::Result<()> {
        self.is_shut = false;
        self.changes += 1;
        self.keeper.open()?;
        self.kick();
        Ok(())
    }

    /// Further polling sockets for the device.
    pub fn pollers(&mut self) -> io::Result<Pollers> {
        self.keeper.pollers()
    }

    /// How often it was shut or opened.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Makes the queue check its bucket; this also works if the queue is full.
    fn kick(&self) {
        let _ = sys::send(self.through.as_fd(), Wait::No, &[&Mark::Kick.frame()], None);
    }

    /// Pushes frames that had left the queue and found the ring full into the ring, with a trace behind them.
    pub fn trace(&self) -> Traced {
        self.kick();
        match self.send_past(&Mark::Trace.frame()) {
            Ok(true) => Traced::Sent,
            Ok(false) => Traced::Full,
            Err(_) => Traced::Off,
        }
    }

    /// Uses up the device's interrupt: after it, the kernel does not poll until interrupts are on again.
    pub fn rouse(&self) {
        // A full ring has raised the interrupt already.
        let _ = self.send_past(&Mark::Rouse.frame());
    }

    /// Sends a frame past the queue, unless the ring is full.
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

    /// No frame may have to be cut behind the queue: segments that find the ring full would come in the wrong order.
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
