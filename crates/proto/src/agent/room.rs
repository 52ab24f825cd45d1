//! The guest's side: how many frames its sockets take, whichever of them they are for.
//!
//! Nobody says beforehand for which socket a frame is, so the one with the least room rules. Left out are a socket whose buffer is
//! so small that it would hold everything up, and one that is full and takes nothing for the detection time, which is one that
//! nobody reads; both are counted.

use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;

/// Bytes of a socket's receive buffer where nobody said anything else (`net.core.rmem_default`): one that has room for all of
/// its frames may be opened at any moment.
pub const BUFFER_DEFAULT: u32 = 212_992;
/// A socket that cannot hold so many frames is left out.
const FRAMES_MIN: u32 = 8;
/// Bytes the kernel charges for a socket buffer whose data is in pages: its own structures, and what is copied to its front.
const FRONT: u32 = 1_280;
/// What an interface adds to an IP packet: a header and two tags.
const HEADERS: u32 = 22;

/// What the kernel says about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Which one it is.
    pub cookie: u64,
    /// Bytes charged for what waits in it.
    pub used: u32,
    /// Bytes that may be.
    pub limit: u32,
}

/// What there is room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Frames that every socket has room for that counts.
    pub frames: u32,
    /// Sockets left out because nobody reads them.
    pub stuck: u32,
    /// Sockets left out because they are too small.
    pub small: u32,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    used: u32,
    /// When it last took something out, or had room.
    moved: Instant,
    stuck: bool,
}

/// The most that the kernel charges for a frame at an interface, over many of them: whole pages, and what stands in front.
///
/// virtio_net takes buffers of at most a page, several for a frame that is longer than one (with mergeable buffers); the others
/// that guests have take less.
pub const fn charge(mtu: u32, page: u32) -> u32 {
    let frame = mtu.saturating_add(HEADERS);
    let pages = frame.div_ceil(page);
    // The last buffer of several is charged as a whole, too.
    let pages = if pages > 1 { pages + 1 } else { pages };
    FRONT.saturating_add(pages.saturating_mul(page))
}

/// Reads sockets.
#[derive(Clone, Debug)]
pub struct Rooms {
    charge: u32,
    /// A page that is charged to nobody in particular: the rest of the memory that buffers are cut from.
    spare: u32,
    buffer: u32,
    detection: Option<Duration>,
    seen: BTreeMap<u64, Seen>,
}

impl Rooms {
    /// At an interface whose frames are charged `charge`; new sockets have `buffer` bytes. A socket that is full and takes nothing
    /// for `detection` is left out.
    pub fn new(mtu: u32, page: u32, buffer: u32, detection: Option<Duration>) -> Rooms {
        Rooms { charge: charge(mtu, page), spare: page, buffer, detection, seen: BTreeMap::new() }
    }

    /// Frames that go into so many bytes.
    fn frames(&self, bytes: u64) -> u32 {
        let frames = bytes.saturating_sub(self.spare.into()) / u64::from(self.charge);
        u32::try_from(frames).unwrap_or(u32::MAX)
    }

    /// The most there can ever be: what a socket takes that is opened next.
    pub fn most(&self) -> u32 {
        self.frames(self.buffer.into()).max(1)
    }

    /// What there is room for. `pending` bytes are in the guest and in none of its sockets yet: fragments of datagrams.
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
            let mut it = before.unwrap_or(Seen { used: socket.used, moved: now, stuck: false });
            if frames > 0 || socket.used < it.used {
                (it.moved, it.stuck) = (now, false);
            }
            it.stuck |= self.detection.is_some_and(|time| now.since(it.moved) >= time);
            it.used = socket.used;
            seen.insert(socket.cookie, it);
            if it.stuck {
                room.stuck += 1;
            } else {
                room.frames = room.frames.min(frames);
            }
        }
        self.seen = seen;
        room
    }
}
