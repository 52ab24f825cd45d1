//! The interface between the switch and a port of any kind: a program with shared memory, a QEMU guest, a network device, a
//! tunnel.
//! A port keeps the frames of its other side in memory until the switch has delivered them. It reports whether its other side
//! has room for a frame. It never blocks, and it never drops a frame because a buffer is full: such a frame stays in the
//! switch. It [reports](Port::inside) frames that it drops for another reason, so that the switch can account for every frame.
//!
//! All data from the other side may be hostile. A port checks it on a private copy before it shows it.

use crate::clock::Clock;
use rustix::event::PollFd;
use sluicenet_node::gate::StationPolicy;
use sluicenet_node::vale::WatchdogConfig;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::Drops;
use sluicenet_proto::time::Instant;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// A frame that the other side sends, in one of the port's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The port's number of the buffer.
    pub buffer: u32,
    /// Bytes of the frame without its check sequence.
    pub len: u32,
}

/// The port's other side broke the rules, or went away; the port is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenPort;

/// How a frame is to be cut into segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// No segmentation: the frame is sent as one.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// The work on a frame that its sender left to the switch or the receiver, as in a virtio-net header; checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Where the summed bytes start, and the offset of the checksum after that; both inside the frame.
    pub checksum: Option<(u16, u16)>,
    /// The kind of segmentation.
    pub segmentation: Segmentation,
    /// Bytes of payload in each segment; 0 for one frame.
    pub segment: u16,
    /// Bytes of the headers in front of each segment.
    pub headers: u16,
    /// Whether its checksum has been verified already.
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
    /// The work that is left.
    pub offload: Offload,
    /// Its broadcast domain.
    pub domain: u16,
    /// Its traffic class.
    pub priority: Priority,
    /// The number of its source port.
    pub from: usize,
}

/// A frame that is to be queued for a port: the fields by which the port divides its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The number of its source port.
    pub from: usize,
    /// Its broadcast domain.
    pub domain: u16,
    /// Its traffic class.
    pub priority: Priority,
    /// Its length in bytes.
    pub len: u32,
}

/// Frames that were passed on together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    /// Frames.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// Changes of the servers of an overlay and of its networks here, while traffic runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverlayChange {
    /// New servers of the overlay, and those with a new next hop; each with its next hop.
    pub admitted: Vec<(Ipv4Addr, [u8; 6])>,
    /// Servers that are no longer part of the overlay.
    pub expelled: Vec<Ipv4Addr>,
    /// Broadcast domains that are networks of the overlay from now on.
    pub bound: Vec<(u16, u32)>,
}

/// The frames inside a port since it was created, by fate.
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
    /// Frames that the switch has delivered to the port, but the port not to its other side.
    pub fn undelivered(&self) -> u64 {
        self.lost.total_frames() + u64::from(self.waiting)
    }
}

/// The switch's end of a port.
pub trait Port: Send {
    /// The port gets a number at a switch with this clock, whose times [`Port::on_round`] shows.
    fn on_plug(&mut self, _clock: Clock) {}

    /// Called first in each round of the loop, for system calls and for timers that have expired.
    fn on_round(&mut self, _now: Instant) -> Result<(), BrokenPort> {
        Ok(())
    }

    /// The next frame the other side sends; it stays the next until [`Port::accept`] or [`Port::defer`].
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort>;

    /// Its first 16 bytes, as two numbers, little endian. They are read once: the switch decides on them and delivers them.
    fn first_bytes(&self, buffer: u32) -> [u64; 2];

    /// The frame's broadcast domain, if the port carries several (a tunnel).
    fn domain(&self, _buffer: u32) -> Option<u16> {
        None
    }

    /// The frame's traffic class, if the port knows it (an uplink).
    fn priority(&self, _buffer: u32) -> Option<Priority> {
        None
    }

    /// Takes the frame that [`Port::next_frame`] showed. Its buffer is lent until [`Port::give_back`].
    fn accept(&mut self);

    /// The frame shown has to wait. Returns whether the port has a frame of another class to show in this round.
    fn defer(&mut self) -> bool {
        false
    }

    /// Copies the first bytes of a lent or shown frame.
    fn read(&self, buffer: u32, into: &mut [u8]);

    /// The work that is left on a lent or shown frame.
    fn offload(&self, _buffer: u32) -> Offload {
        Offload::NONE
    }

    /// The frame in a lent buffer was delivered or dropped.
    fn give_back(&mut self, buffer: u32);

    /// Frames accepted and not yet given back.
    fn lent(&self) -> u32;

    /// Whether the other side cannot send before it gets buffers back.
    fn owes_room(&self) -> bool {
        false
    }

    /// The traffic classes whose frames the port takes now.
    fn takes(&mut self) -> PrioritySet {
        PrioritySet::ALL
    }

    /// The longest frame it can take in one piece.
    fn max_frame(&self) -> u32;

    /// Whether frames with `offload` may be delivered as they are. Otherwise the switch does the work that is left.
    fn takes_offload(&self, offload: &Offload) -> bool {
        offload.is_none()
    }

    /// Whether a frame may be queued for the port; `read` copies its first bytes. A port that has room, but none for the
    /// receiver of this frame, returns false. Then the frame waits in its sender's buffer, if the sender has [buffers for
    /// that](Port::waiting_max), and blocks only later frames for the same receiver.
    fn admits(&mut self, _frame: Candidate, _read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        Ok(true)
    }

    /// Whether a datagram for a group may be queued for the port, as [`Port::admits`]. If not, a lossless one stays with its
    /// sender.
    fn admits_group(&mut self, _frame: Candidate, _read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        Ok(true)
    }

    /// The receiver of a frame behind the port, if the port [admits](Port::admits) frames for some receivers and not for
    /// others. Frames for one receiver stay in order; frames for others may overtake them.
    fn part(&self, _frame: Candidate, _read: &dyn Fn(&mut [u8])) -> u64 {
        0
    }

    /// The port's buffers that may be used by frames that wait for receivers that do not admit them. A further such frame stays
    /// the next frame of the port, and blocks all frames behind it.
    fn waiting_max(&self) -> u32 {
        0
    }

    /// Reserves room for a frame of `len` bytes with `offload` until [`Port::deliver`]; returns whether there is room.
    fn reserve(&mut self, len: u32, offload: &Offload) -> Result<bool, BrokenPort>;

    /// Delivers a frame for which room was reserved.
    fn deliver(&mut self, frame: &Delivery<'_>);

    /// Shows the other side the frames and buffers of this round, and wakes it if it sleeps.
    fn publish(&mut self) -> Result<(), BrokenPort>;

    /// The switch wants to sleep. Returns whether it may; frames from a `blocked` port do not keep it awake.
    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort>;

    /// The switch is awake again.
    fn wake_up(&mut self);

    /// Whether a port that fell asleep needs no round until one of its wakers or its deadline wakes the switch.
    fn sleeps_on(&self) -> bool {
        false
    }

    /// The events that wake the switch.
    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>);

    /// When [`Port::on_round`] has to be called at the latest.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// A configured station is at a port of this switch, or no longer. A port to other servers makes that known there.
    fn announce(&mut self, _now: Instant, _domain: u16, _mac: [u8; 6], _address: Ipv4Addr, _here: bool) {}

    /// Tells the port about a station of this switch: a station that is not configured has appeared, with its address or
    /// 0.0.0.0, or has left. Or a station has an IPv6 address, or has it no longer. A port to other servers announces that there,
    /// unless the address belongs to another station.
    fn learn(&mut self, _now: Instant, _domain: u16, _mac: [u8; 6], _address: IpAddr, _here: bool) {}

    /// The next station that sent a frame to other servers and is not announced there, or not with this address.
    fn poll_stranger(&mut self) -> Option<(u16, [u8; 6], Option<Ipv4Addr>)> {
        None
    }

    /// Bytes of the largest IP packet that it carries to other servers; `None` if it leads to none.
    fn mtu(&self) -> Option<u32> {
        None
    }

    /// Configures the watchdog over the receivers behind the port.
    fn set_watchdog(&mut self, _watchdog: WatchdogConfig) {}

    /// The stations that may communicate. A port to other servers drops all other frames that arrive there.
    fn set_policy(&mut self, _policy: Option<Arc<StationPolicy>>) {}

    /// Servers or networks of the port's overlay have changed.
    fn change_overlay(&mut self, _change: &OverlayChange) {}

    /// The station at the port, if the port knows it before the station sends.
    fn station(&self) -> Option<[u8; 6]> {
        None
    }

    /// The switch is about to end. From now on the port takes nothing more from its other side, and makes it wait if it can.
    /// The port still shows frames that it has taken or that are on their way, and still sends delivered frames.
    fn close(&mut self) {}

    /// After [`Port::close`], the frames in the port that the switch has not taken yet or the other side has not received yet.
    fn held(&self) -> u32 {
        0
    }

    /// Whether the agent in the guest behind it has become silent since the last call.
    fn lost_agent(&mut self) -> bool {
        false
    }

    /// Whether the port accounts for every frame inside it; false is a bug of this program.
    fn is_sound(&self) -> bool {
        true
    }

    /// The frames inside the port that have not reached its other side.
    fn inside(&self) -> Inside {
        Inside::default()
    }

    /// The cause, after the port broke.
    fn why_broken(&self) -> &'static str {
        "its other side broke the rules, or is gone"
    }

    /// The port's own counters, by name.
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64));
}
