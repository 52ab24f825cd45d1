//! What the switch needs of a port, whatever is behind it: a program with shared memory, a QEMU guest, a network device, a
//! tunnel.
//!
//! A port keeps the memory of what its other side sends until the switch has delivered it, and says whether there is room
//! for what the other side is to receive. It never blocks, and it never drops for want of room: what it cannot take stays in the switch. What it drops
//! for another reason it [says](Port::inside), so that the switch's books are right.
//! Everything that comes from the other side is hostile: a port checks it on a private copy before it shows it.

use rustix::event::PollFd;
use sluicenet_node::gate::StationPolicy;
use sluicenet_node::vale::Action;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::Drops;
use sluicenet_proto::time::{Duration, Instant};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A frame that the other side sends, in one of the port's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The port's own number for the place where it lies.
    pub buffer: u32,
    /// Bytes of the frame without its check sequence.
    pub len: u32,
}

/// Why a port is no longer served: its other side broke the rules, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenPort;

/// How a sender wants a frame cut into segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// It is one frame.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// What a sender left to be done to a frame on its way: what a virtio-net header can say, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Where the bytes to be summed start, and how far behind that the sum goes; both inside the frame.
    pub checksum: Option<(u16, u16)>,
    /// Whether it is to be cut.
    pub segmentation: Segmentation,
    /// Bytes of payload in each segment; 0 for one frame.
    pub segment: u16,
    /// Bytes of the headers that go in front of each segment.
    pub headers: u16,
    /// Whether its checksum has been verified, so that the receiver need not.
    pub verified: bool,
}

impl Offload {
    /// Nothing left to do.
    pub const NONE: Offload =
        Offload { checksum: None, segmentation: Segmentation::None, segment: 0, headers: 0, verified: false };

    /// How many frames one of `len` bytes is cut into.
    pub fn segments(&self, len: u32) -> u32 {
        match (self.segmentation, self.segment) {
            (Segmentation::None, _) | (_, 0) => 1,
            (_, segment) => len.saturating_sub(self.headers.into()).div_ceil(segment.into()).max(1),
        }
    }

    /// Whether nothing is left to do.
    #[inline(always)]
    pub fn is_none(&self) -> bool {
        self.checksum.is_none() && self.segmentation == Segmentation::None
    }
}

/// A frame that the switch delivers.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// From the destination address, without its check sequence.
    pub bytes: &'a [u8],
    /// What is left to be done.
    pub offload: Offload,
    /// The broadcast domain it is of.
    pub domain: u16,
    /// Its traffic class.
    pub priority: Priority,
    /// The number at the switch of the port that it came from.
    pub from: usize,
}

/// Whose frame asks to be let in, and which it is: by what a port shares its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// The number at the switch of the port that it comes from.
    pub from: usize,
    /// The broadcast domain it is of.
    pub domain: u16,
    /// Its traffic class.
    pub priority: Priority,
    /// Its bytes.
    pub len: u32,
}

/// What went through at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    /// Frames.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// What became of the other servers of an overlay and of its networks here, while traffic runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverlayChange {
    /// Servers that are of the overlay, and the next hop towards each: new ones, and those that have another.
    pub admitted: Vec<(Ipv4Addr, [u8; 6])>,
    /// Servers that no longer are.
    pub expelled: Vec<Ipv4Addr>,
    /// Broadcast domains that are networks from now on.
    pub bound: Vec<(u16, u32)>,
}

/// What became of frames inside a port, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Frames from the other side that were dropped before the switch saw them.
    pub refused: Drops,
    /// Frames that were delivered to the port and dropped there.
    pub lost: Drops,
    /// Frames that were delivered to the port and wait there for its other side.
    pub waiting: u32,
}

impl Inside {
    /// Frames that were delivered to the port, but not by it.
    pub fn undelivered(&self) -> u64 {
        self.lost.total_frames() + u64::from(self.waiting)
    }
}

/// The switch's end of a port.
pub trait Port: Send {
    /// Once in each turn of the loop, before all else: what must be fetched or sent by system calls, timers that ran out.
    fn on_turn(&mut self, _now: Instant) -> Result<(), BrokenPort> {
        Ok(())
    }

    /// The next frame the other side sends; it stays the next until [`Port::accept`] or [`Port::defer`].
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort>;

    /// Its first 16 bytes, as two numbers with the first byte lowest. They are read once: decided about and delivered.
    fn first_bytes(&self, buffer: u32) -> [u64; 2];

    /// The broadcast domain it says it is of, where a port carries several (a tunnel).
    fn domain(&self, _buffer: u32) -> Option<u16> {
        None
    }

    /// The traffic class it came in, where the port knows (an uplink).
    fn priority(&self, _buffer: u32) -> Option<Priority> {
        None
    }

    /// Takes the frame that [`Port::next_frame`] showed: its buffer is lent until [`Port::give_back`].
    fn accept(&mut self);

    /// The frame shown has to wait; whether the port has one of another class to show in this turn.
    fn defer(&mut self) -> bool {
        false
    }

    /// Copies the first bytes of a lent or shown frame out.
    fn read(&self, buffer: u32, into: &mut [u8]);

    /// What is left to be done to a lent or shown frame.
    fn offload(&self, _buffer: u32) -> Offload {
        Offload::NONE
    }

    /// The frame in a lent buffer was delivered or dropped.
    fn give_back(&mut self, buffer: u32);

    /// Frames accepted and not yet given back.
    fn lent(&self) -> u32;

    /// Whether the other side has to take buffers back before it can send.
    fn owes_room(&self) -> bool {
        false
    }

    /// The traffic classes of which it takes frames now.
    fn takes(&mut self) -> PrioritySet {
        PrioritySet::ALL
    }

    /// The longest frame it can take in one piece.
    fn max_frame(&self) -> u32;

    /// Whether frames with `offload` may be delivered to it as they are; for all other ports the switch does what is left.
    fn takes_offload(&self, offload: &Offload) -> bool {
        offload.is_none()
    }

    /// Whether a frame, of which `read` copies the first bytes, may be queued for the port. One that may not waits in its sender's
    /// buffer, as far as there are [places](Port::places), so that it is in nobody's way but of those behind it for the same receiver:
    /// what a port says that has room, but not for this one.
    fn admits(&mut self, _frame: Asking, _read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        Ok(true)
    }

    /// Which part of its receiver a frame is for, where it [admits](Port::admits) frames for some parts and not for others: frames for
    /// one part stay in their order, whatever becomes of those for another.
    fn part(&self, _frame: Asking, _read: &dyn Fn(&mut [u8])) -> u64 {
        0
    }

    /// How many of the port's buffers frames may have that wait in the switch for receivers that do not admit them; what goes beyond
    /// waits as the next frame of the port, with all behind it.
    fn waiting_max(&self) -> u32 {
        0
    }

    /// Makes sure of room for a frame of `len` bytes with `offload`, which it keeps until [`Port::deliver`]; whether there is.
    fn reserve(&mut self, len: u32, offload: &Offload) -> Result<bool, BrokenPort>;

    /// Delivers a frame for which room was reserved.
    fn deliver(&mut self, frame: &Delivery<'_>);

    /// Shows the other side what was done in this turn, and wakes it if it sleeps.
    fn publish(&mut self) -> Result<(), BrokenPort>;

    /// Says that the switch is going to sleep; whether it may. What a `blocked` port sends keeps nobody awake.
    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort>;

    /// The switch is awake again.
    fn wake_up(&mut self);

    /// What wakes the switch when it happens.
    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>);

    /// When [`Port::on_turn`] has to be called at the latest.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// A station with an address is at a port of this switch, or no longer is: what a port that leads elsewhere makes known.
    fn announce(&mut self, _now: Instant, _domain: u16, _mac: [u8; 6], _address: Ipv4Addr, _here: bool) {}

    /// A station that nobody has named has shown itself at a port of this switch, with its address or 0.0.0.0, or is gone: what a port that
    /// leads elsewhere makes known as far as that is nobody else's.
    fn learn(&mut self, _now: Instant, _domain: u16, _mac: [u8; 6], _address: Ipv4Addr, _here: bool) {}

    /// Bytes of the largest IP packet that goes through it to wherever it leads; `None` where nothing behind it is told that.
    fn mtu(&self) -> Option<u32> {
        None
    }

    /// What becomes of one of several receivers behind the port that takes nothing for the detection time, and when it is over.
    fn set_watchdog(&mut self, _action: Action, _detection_time: Duration, _restoration_time: Duration) {}

    /// Which stations may talk to each other; what a port that leads elsewhere drops when it comes in all the same.
    fn set_policy(&mut self, _policy: Option<Arc<StationPolicy>>) {}

    /// Servers or networks of the overlay that a port leads into have changed.
    fn change_overlay(&mut self, _change: &OverlayChange) {}

    /// The station of the machine at it, where the port can know before it sends anything.
    fn station(&self) -> Option<[u8; 6]> {
        None
    }

    /// The switch is about to end: from now on nothing more is taken from the other side, which is held back where the port can do
    /// that. What was taken already, and what is on its way, is still shown, and what is delivered still goes.
    fn close(&mut self) {}

    /// After [`Port::close`], how many frames are here that the switch has not taken, or that the other side has not got.
    fn held(&self) -> u32 {
        0
    }

    /// Whether the agent in the guest behind it is not heard of any more, since this was last asked.
    fn lost_agent(&mut self) -> bool {
        false
    }

    /// Whether what it counts of frames inside it adds up, which only a fault of this program can change.
    fn is_sound(&self) -> bool {
        true
    }

    /// What became of frames that are in no queue of the switch, and reached nobody.
    fn inside(&self) -> Inside {
        Inside::default()
    }

    /// What there is to say after it showed itself broken.
    fn why_broken(&self) -> &'static str {
        "its other side broke the rules, or is gone"
    }

    /// The port's own counters, by name.
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64));
}
