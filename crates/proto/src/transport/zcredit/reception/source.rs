//! The sources of a receiver, as the receiver knows them.

use super::pace::Pace;
use super::round::{Counted, RoundState};
use crate::time::Instant;
use sluicenet_wire::seq::SeqNumber;

/// A channel of a source.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Channel {
    /// A frame of the channel came over the present connection, so the channel belongs to that connection's peer.
    pub is_connected: bool,
    pub number: u32,
    pub wanted: SeqNumber,
    pub granted: SeqNumber,
    /// Total of credits no longer promised: their frame came, or they were returned or lost.
    pub settled: SeqNumber,
    /// Last reported total of returned credits.
    pub returned: u32,
    /// Last reported total of spent credits.
    pub spent: SeqNumber,
    /// A spent total ahead of `settled`, and the time at which the receiver noticed it.
    pub missing: Option<(SeqNumber, Instant)>,
    /// A granted total that has to be settled by a deadline, and the time at which it was noted.
    pub mark: Option<(SeqNumber, Instant)>,
}

impl Channel {
    pub fn new(number: u32) -> Channel {
        let from = SeqNumber(number);
        Channel {
            number,
            wanted: from,
            granted: from,
            settled: from,
            returned: 0,
            spent: from,
            missing: None,
            mark: None,
            is_connected: false,
        }
    }
    /// Granted credits that are not settled.
    #[inline(always)]
    pub fn outstanding(&self) -> u32 {
        self.granted.since(self.settled) as u32
    }
    #[inline(always)]
    pub fn want(&self) -> u32 {
        self.wanted.since(self.granted).max(0) as u32
    }
    /// Whether totals are plausible: at most 2^30 credits ahead of or behind the granted total.
    pub fn is_in_reach(&self, totals: &[SeqNumber]) -> bool {
        const REACH: u32 = 1 << 30;
        totals.iter().all(|total| total.since(self.granted).unsigned_abs() <= REACH)
    }
    /// Settles credits returned since the last report. Returns their number.
    pub fn settle_returned(&mut self, returned: u32) -> u32 {
        let more = (returned.wrapping_sub(self.returned) as i32).max(0) as u32;
        self.returned = self.returned.wrapping_add(more);
        self.settled = self.settled + more;
        more
    }
    /// Settles credits spent up to a total whose frames never came. Returns their number.
    pub fn give_up(&mut self, spent: SeqNumber) -> u32 {
        let missing = spent.since(self.settled).max(0) as u32;
        self.settled = self.settled + missing;
        self.missing = None;
        missing
    }
}

/// A source. The fields that a frame and a recount touch come first: most sources are not in the cache then.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Source<S> {
    pub pace: Pace,
    /// The source's part in the sums over all sources.
    pub counted: Counted,
    pub weight: u32,
    /// Credits left of the source's turn.
    pub turn: u32,
    /// `late`: credits of ended channels whose frames may still be on their way. `late_until`: time up to which they
    /// are kept.
    pub late: u32,
    /// Credits spent long ago whose frames did not come: probably lost, and not held against the source.
    pub astray: u32,
    pub round_state: RoundState,
    pub is_pending: bool,
    /// All channels counted in `late` belong to the present connection.
    pub late_connected: bool,
    pub channel: Option<Channel>,
    /// Time of the source's last frame or last grant.
    pub moved_at: Instant,
    pub last_heard: Instant,
    pub name: S,
    pub late_until: Instant,
    /// The last channel that the receiver ended, until the source begins another.
    pub ended: Option<u32>,
}

impl<S> Source<S> {
    pub fn is_active(&self) -> bool {
        self.channel.as_ref().is_some_and(|c| c.outstanding() > 0 || c.want() > 0)
    }
    pub fn is_idle(&self) -> bool {
        self.late == 0 && !self.is_pending && !self.is_active()
    }
    /// Credits that are out, over all channels of the source.
    pub fn out(&self) -> u32 {
        self.late + self.channel.as_ref().map_or(0, Channel::outstanding)
    }
    /// Whether the source has a part in the sums over all sources: it wants credits, or some of its credits are out.
    pub fn counts(&self) -> bool {
        self.late > 0 || self.is_active()
    }
    /// Whether the source's counts and waiting place agree with its request and its credits.
    pub fn is_sound(&self) -> bool {
        let want = self.channel.as_ref().map_or(0, Channel::want);
        let waits = want == 0 || self.round_state != RoundState::Nowhere;
        let comes_back = self.round_state != RoundState::Capped || want > 0 && self.out() > 0;
        let weight = if self.is_active() { self.weight } else { 0 };
        let is_counted =
            self.counted.weight == weight && self.counted.quick + self.counted.spare + self.counted.new <= self.out();
        waits && comes_back && is_counted
    }
}
