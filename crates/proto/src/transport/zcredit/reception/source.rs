//! Who sends to a receiver, as that knows it.

use super::pace::Pace;
use super::round::{Counted, RoundState};
use crate::time::Instant;
use sluicenet_wire::seq::SeqNumber;

/// A channel of a source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    pub number: u32,
    pub wanted: SeqNumber,
    pub granted: SeqNumber,
    /// Credits that are no longer promised: their frame came, they were returned, or lost.
    pub settled: SeqNumber,
    /// The last total of those that were returned.
    pub returned: u32,
    /// The last total that it said it has spent.
    pub spent: SeqNumber,
    /// One of those totals, beyond what had settled when it was looked at, and when that was.
    pub missing: Option<(SeqNumber, Instant)>,
    /// What had been granted when it had settled all before, and when that was.
    pub mark: Option<(SeqNumber, Instant)>,
    /// A frame of it came by the connection that there is: it is of that connection's other end.
    pub is_connected: bool,
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
    /// Credits that it may spend.
    #[inline(always)]
    pub fn outstanding(&self) -> u32 {
        self.granted.since(self.settled) as u32
    }
    pub fn want(&self) -> u32 {
        self.wanted.since(self.granted).max(0) as u32
    }
    /// Whether totals are where a channel can be: nobody is 2^30 credits ahead of or behind what is known.
    pub fn is_in_reach(&self, totals: &[SeqNumber]) -> bool {
        const REACH: u32 = 1 << 30;
        totals.iter().all(|total| total.since(self.granted).unsigned_abs() <= REACH)
    }
    /// Credits that were returned since it was last said are free. Returns how many.
    pub fn settle_returned(&mut self, returned: u32) -> u32 {
        let more = (returned.wrapping_sub(self.returned) as i32).max(0) as u32;
        self.returned = self.returned.wrapping_add(more);
        self.settled = self.settled + more;
        more
    }
    /// Settles what was spent up to a total and never came. Returns how many.
    pub fn give_up(&mut self, spent: SeqNumber) -> u32 {
        let missing = spent.since(self.settled).max(0) as u32;
        self.settled = self.settled + missing;
        self.missing = None;
        missing
    }
}

#[derive(Clone, Debug)]
pub(super) struct Source<S> {
    pub name: S,
    pub weight: u32,
    pub channel: Option<Channel>,
    /// Credits of channels that have ended, whose frames may still be on their way, and until when.
    pub late: u32,
    pub late_until: Instant,
    /// All of those channels were of the connection that there is.
    pub late_connected: bool,
    /// What is left of its turn.
    pub turn: u32,
    pub round_state: RoundState,
    pub is_pending: bool,
    pub pace: Pace,
    /// When a frame of it came last, or it was granted something.
    pub moved_at: Instant,
    /// Credits that it has spent without a frame for long: lost, probably, and not held against it.
    pub astray: u32,
    /// What of it is in the sums of all.
    pub counted: Counted,
    pub last_heard: Instant,
    /// The last channel that was taken from it, until it begins another.
    pub ended: Option<u32>,
}

impl<S> Source<S> {
    pub fn is_active(&self) -> bool {
        self.channel.as_ref().is_some_and(|c| c.outstanding() > 0 || c.want() > 0)
    }
    pub fn is_idle(&self) -> bool {
        self.late == 0 && !self.is_pending && !self.is_active()
    }
    /// Credits that are out, by all its channels.
    pub fn out(&self) -> u32 {
        self.late + self.channel.as_ref().map_or(0, Channel::outstanding)
    }
    /// Of these, those that are lost, probably, or of channels that have ended: not held against it, up to so many.
    pub fn lost(&self, most: u32) -> u32 {
        let lost = self.channel.as_ref().map_or(0, |c| self.astray.min(c.outstanding()));
        (self.late + lost).min(most)
    }
    /// Whether what it is counted as, and where it waits, is what it wants and has.
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
