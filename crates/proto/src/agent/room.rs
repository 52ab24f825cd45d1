//! The guest's side: how many frames its sockets can take, whichever socket the frames are for.
//!
//! The destination sockets of a frame are not known in advance, be it for one station or for a group, so the socket with
//! the least room decides. Two kinds of socket are left out and counted. One kind has too small a buffer and would stall
//! all traffic. The other is full and takes nothing for the isolation time: no program reads it.

use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;

/// Default size of a socket's receive buffer in bytes (`net.core.rmem_default`). A program may open a socket of this size
/// at any moment.
pub const BUFFER_DEFAULT: u32 = 212_992;
/// Sockets that cannot hold this many frames are left out.
const FRAMES_MIN: u32 = 8;
/// Bytes the kernel charges for a socket buffer with paged data: its own structures, and the data copied to its front.
const FRONT: u32 = 1_280;
/// Bytes that an interface adds to an IP packet: a header and two tags.
const HEADERS: u32 = 22;

/// A socket as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The kernel's identifier of the socket.
    pub cookie: u64,
    /// Bytes charged for the data queued in it.
    pub used: u32,
    /// Largest number of bytes that may be charged.
    pub limit: u32,
}

/// The room of a guest's sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Frames for which every counted socket has room.
    pub frames: u32,
    /// Sockets that are full and take nothing; the guest's frames wait for them.
    pub stuck: u32,
    /// Sockets left out because no program reads them.
    pub isolated: u32,
    /// Sockets left out because they are too small.
    pub small: u32,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    used: u32,
    /// When the socket last released data or had room.
    moved: Instant,
    isolated: bool,
}

/// The times after which a full socket that takes nothing is counted as stuck, and left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// Until it is counted.
    pub detection: Option<Duration>,
    /// Until it is left out.
    pub isolation: Option<Duration>,
}

/// The most that the kernel charges for a frame at an interface, averaged over many frames: whole pages and the front part.
///
/// virtio_net uses buffers of at most a page, and several for a longer frame (with mergeable buffers). Other drivers of
/// guests use less.
pub const fn charge(mtu: u32, page: u32) -> u32 {
    let frame = mtu.saturating_add(HEADERS);
    let pages = frame.div_ceil(page);
    // The last buffer of several is charged in full, too.
    let pages = if pages > 1 { pages + 1 } else { pages };
    FRONT.saturating_add(pages.saturating_mul(page))
}

/// Reads the guest's sockets.
#[derive(Clone, Debug)]
pub struct Rooms {
    charge: u32,
    /// A page that no frame is charged for: the rest of the memory that buffers are cut from.
    spare: u32,
    buffer: u32,
    deadlines: Deadlines,
    seen: BTreeMap<u64, Seen>,
}

impl Rooms {
    /// For an interface with this `mtu`, a kernel with this `page` size, and new sockets of `buffer` bytes.
    pub fn new(mtu: u32, page: u32, buffer: u32, deadlines: Deadlines) -> Rooms {
        Rooms { charge: charge(mtu, page), spare: page, buffer, deadlines, seen: BTreeMap::new() }
    }

    /// Number of frames that fit into `bytes`.
    fn frames(&self, bytes: u64) -> u32 {
        let frames = bytes.saturating_sub(self.spare.into()) / u64::from(self.charge);
        u32::try_from(frames).unwrap_or(u32::MAX)
    }

    /// The upper limit of the room: the number of frames that a newly opened socket takes.
    pub fn most(&self) -> u32 {
        self.frames(self.buffer.into()).max(1)
    }

    /// The current room. `pending` bytes are in the guest but not yet in a socket: fragments of datagrams.
    pub fn of(&mut self, now: Instant, sockets: &[Socket], pending: u64) -> Room {
        let mut room = Room { frames: self.most(), ..Room::default() };
        let mut seen = BTreeMap::new();
        for socket in sockets {
            if self.frames(socket.limit.into()) < FRAMES_MIN {
                room.small += 1;
                continue;
            }
            let left = u64::from(socket.limit.saturating_sub(socket.used)).saturating_sub(pending);
            let frames = self.frames(left);
            let before = self.seen.get(&socket.cookie).copied();
            let mut it = before.unwrap_or(Seen { used: socket.used, moved: now, isolated: false });
            if frames > 0 || socket.used < it.used {
                (it.moved, it.isolated) = (now, false);
            }
            let waited = now.since(it.moved);
            let is_late = |time: Option<Duration>| time.is_some_and(|time| waited >= time);
            it.isolated |= is_late(self.deadlines.isolation);
            it.used = socket.used;
            seen.insert(socket.cookie, it);
            if it.isolated {
                room.isolated += 1;
                continue;
            }
            room.stuck += u32::from(is_late(self.deadlines.detection));
            room.frames = room.frames.min(frames);
        }
        self.seen = seen;
        room
    }
}
