//! The properties of a frame that the boxes need. In the simulator a frame is a header and a length, in the data plane a
//! descriptor.

use crate::cee::qcn::Message;
use crate::routing::paths::Path;

/// One of the eight 802.1Q priorities, 0 to 7.
pub type Priority = u8;

/// How many priorities there are.
pub const PRIORITIES: usize = 8;

/// A server or an external client, counted from 0 across the whole network.
pub type HostId = u32;

/// A set of priorities, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrioritySet(pub u8);

impl PrioritySet {
    /// None.
    pub const NONE: PrioritySet = PrioritySet(0);
    /// All eight.
    pub const ALL: PrioritySet = PrioritySet(0xff);
    /// Whether `p` is in the set.
    #[inline(always)]
    pub const fn contains(self, p: Priority) -> bool {
        self.0 >> p & 1 != 0
    }
    /// Adds `p`.
    #[inline(always)]
    pub fn insert(&mut self, p: Priority) {
        self.0 |= 1 << p;
    }
    /// Removes `p`.
    #[inline(always)]
    pub fn remove(&mut self, p: Priority) {
        self.0 &= !(1 << p);
    }
    /// Whether the set is empty.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The priorities in the set, lowest first.
    pub fn iter(self) -> impl Iterator<Item = Priority> {
        (0..PRIORITIES as u8).filter(move |&p| self.contains(p))
    }
    /// The next member after `last`, cyclically: the round robin over classes.
    #[inline(always)]
    pub const fn next_after(self, last: Priority) -> Option<Priority> {
        if self.0 == 0 {
            return None;
        }
        let rotated = self.0.rotate_right((last as u32 + 1) & 7);
        Some(((rotated.trailing_zeros() + last as u32 + 1) & 7) as u8)
    }
}

impl FromIterator<Priority> for PrioritySet {
    fn from_iter<I: IntoIterator<Item = Priority>>(priorities: I) -> PrioritySet {
        PrioritySet(priorities.into_iter().fold(0, |set, priority| set | 1 << priority))
    }
}

/// The content of a pause frame: the paused classes and the duration of each pause (802.1Qbb, 36; one quantum is 512 bit
/// times).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Classes that the frame pauses or releases.
    pub classes: PrioritySet,
    /// Quanta per class; 0 ends the pause.
    pub quanta: [u16; PRIORITIES],
}

/// A frame in a queue. Its length is never 0.
#[allow(clippy::len_without_is_empty)]
pub trait Frame: Copy {
    /// Length in bytes from destination address to frame check sequence.
    fn len(&self) -> u32;
    /// Traffic class.
    fn priority(&self) -> Priority;
    /// The source host.
    fn source(&self) -> HostId;
    /// The destination host.
    fn destination(&self) -> HostId;
    /// A value that is the same for all frames of a flow and differs between flows.
    fn flow_hash(&self) -> u64;
    /// A value that differs between the frames of a flow.
    fn frame_hash(&self) -> u64;
    /// Whether the frame check sequence is wrong.
    fn is_corrupt(&self) -> bool;
    /// Whether the frame is a PFC frame.
    fn is_pause(&self) -> bool;
    /// The pause that a PFC frame carries.
    fn as_pause(&self) -> Option<Pause>;
    /// A PFC frame.
    fn from_pause(pause: Pause) -> Self;
    /// Marks the frame with Congestion Experienced (RFC 3168, 5) if its transport supports ECN; returns whether it does.
    fn mark(&mut self) -> bool;
    /// A congestion notification message (802.1Qau) to the source of this frame, of priority `priority`.
    fn notification(&self, message: &Message, priority: Priority) -> Self;
    /// The message of a congestion notification.
    fn as_notification(&self) -> Option<Message>;
    /// The path that the frame's source chose ([`routing::paths`](crate::routing::paths)), if it chose one; for a
    /// notification that of the sampled frame.
    fn path(&self) -> Path {
        None
    }
}
