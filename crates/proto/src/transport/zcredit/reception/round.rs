//! The round: which source is next, and how many credits each source may hold.

use super::pace::{PARTS, TIMES};
use super::source::Channel;
use super::{Reception, ReceptionConfig};
use crate::time::Instant;
use core::hash::Hash;

/// Sources recounted in one `serve` while a source waits for other sources' credits.
const LOOKS: u32 = 2;

/// Most sources passed over in a round.
const PASSED_MAX: usize = 32;

/// Sources recounted when another source becomes active.
pub(super) const LOOKS_OF_NEW: usize = 16;

/// Credits that may be out, however slowly they come back.
const WINDOW_MIN: u32 = 8;

/// Credits of the window in addition to the earned part.
const WINDOW_SOME: u64 = 8;

/// Credits for new sources, in a queue of twice as many frames or more. They about fill a round trip.
const NEW_MAX: u32 = 128;

/// Place where a source waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RoundState {
    /// The source wants no credits.
    #[default]
    Nowhere,
    /// In the round, for room.
    Round,
    /// For spare credits, while all of them are out.
    Spare,
    /// For the arrival of its own frames.
    Capped,
}

/// Kind of credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Credits of a source without a measured pace.
    New,
    /// Credits of a source that holds less than it has earned.
    Earned,
    /// Credits of a source that holds all it has earned. Spare credits need not be earned.
    Spare,
}

/// A source's part in the sums over all sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// The source's weight while it has or wants credits.
    pub weight: u32,
    /// Earned credits, in parts of a credit.
    pub earned: u64,
    /// Held credits within the earned ones.
    pub quick: u32,
    /// Held credits beyond the earned ones, up to the source's part.
    pub spare: u32,
    /// Held credits of a source without a measured pace, up to the part of a new source.
    pub new: u32,
    /// Whether the source has a measured pace and has earned less than one credit.
    pub is_slow: bool,
}

/// Sums of `Counted` over all sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub weight: u64,
    pub earned: u64,
    pub quick: u32,
    pub spare: u32,
    pub new: u32,
    /// `active`: sources that have or want credits. `slow`: active sources with less than one earned credit.
    pub active: u32,
    pub slow: u32,
}

impl Sums {
    pub fn replace(&mut self, old: Counted, new: Counted) {
        self.weight = self.weight - u64::from(old.weight) + u64::from(new.weight);
        self.earned = self.earned - old.earned + new.earned;
        self.quick = self.quick - old.quick + new.quick;
        self.spare = self.spare - old.spare + new.spare;
        self.new = self.new - old.new + new.new;
        self.active = self.active - u32::from(old.weight > 0) + u32::from(new.weight > 0);
        self.slow = self.slow - u32::from(old.is_slow) + u32::from(new.is_slow);
    }
}

/// Shares of the queue, in credits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// Credits that are divided into parts: a quarter of the queue, or three quarters where credits wait for
    /// processors.
    parts: u32,
    /// Credits for new sources: half of the queue, but no more than fills a round trip.
    of_new: u32,
    /// The smallest window.
    window_min: u32,
}

impl Shares {
    pub fn of(config: &ReceptionConfig) -> Shares {
        let queue = config.queue;
        let (quarters, window_min) = if config.shares_processors { (3, queue) } else { (1, WINDOW_MIN.min(queue)) };
        Shares { parts: (queue * quarters).div_ceil(4), of_new: queue.div_ceil(2).min(NEW_MAX), window_min }
    }
}

impl<S: Copy + Ord + Hash> Reception<S> {
    /// A source waits for credits, from now on or still.
    pub(super) fn join(&mut self, now: Instant, at: usize) {
        let source = &mut self.sources[at];
        if source.round_state == RoundState::Nowhere {
            if source.out() == 0 {
                source.pace.on_wanted(now);
            }
            (source.round_state, source.turn) = (RoundState::Round, 0);
            match source.pace.is_new() {
                true => self.waiting.push_front(at),
                false => self.waiting.push_back(at),
            }
        }
    }

    /// The channel of a source has ended. Its entry in a queue stays there until `serve` removes it.
    pub(super) fn leave(&mut self, at: usize) {
        let source = &mut self.sources[at];
        if source.round_state == RoundState::Capped {
            source.round_state = RoundState::Nowhere;
        }
    }

    /// Credits of a source are back, as frames or otherwise.
    #[inline]
    pub(super) fn on_back(&mut self, now: Instant, at: usize, credits: u32) {
        if credits > 0 {
            self.promised -= credits;
            let (source, sources) = (&mut self.sources[at], self.sums.active);
            source.pace.on_back(now, credits, source.out(), &mut self.least, sources);
        }
        self.review(now, at);
    }

    /// Recounts a source after a change of its credits, its request or its weight. The source returns to the round if
    /// it may hold more now. A source with an unfinished turn continues its turn.
    #[inline]
    pub(super) fn review(&mut self, now: Instant, at: usize) {
        let is_capped = self.sources[at].round_state == RoundState::Capped;
        let limit = self.count_and(now, at, is_capped);
        if is_capped && self.allowance(at, limit).0 > 0 {
            let kind = self.kind(at);
            self.sources[at].round_state = RoundState::Round;
            match self.sources[at].turn {
                // Behind sources that have waited longer for spare credits.
                _ if kind == Kind::Spare && !self.spare.is_empty() => {
                    self.sources[at].round_state = RoundState::Spare;
                    self.spare.push_back(at);
                }
                1.. if kind == Kind::Earned => self.waiting.push_front(at),
                _ => self.waiting.push_back(at),
            }
        }
    }

    /// Recounts `sources` sources, one after the other. The credits a source may hold change with other sources and
    /// with time. No event recounts an idle source.
    pub(super) fn count_others(&mut self, now: Instant, sources: usize) {
        for _ in 0..sources.min(self.sources.len()) {
            self.hand = if self.hand + 1 < self.sources.len() { self.hand + 1 } else { 0 };
            if self.counts[self.hand] {
                self.count(now, self.hand);
            }
            debug_assert!(self.counts[self.hand] == self.sources[self.hand].counts(), "recounted after each change");
        }
    }

    /// Recounts a source.
    fn count(&mut self, now: Instant, at: usize) {
        self.count_and(now, at, false);
    }

    /// Recounts a source. If its limit is asked for, returns it: the most credits that the source may hold, by the sums
    /// before the recount.
    fn count_and(&mut self, now: Instant, at: usize, asks_limit: bool) -> u32 {
        let source = &self.sources[at];
        let (want, outstanding) = source.channel.as_ref().map_or((0, 0), |c| (c.want(), c.outstanding()));
        let (weight, earned) = match want | outstanding {
            0 => (0, 0),
            _ => (source.weight, source.pace.earned(now, &self.least)),
        };
        let is_new = source.pace.is_new();
        // Lost credits are not held against the source, up to the part of a new source.
        let lost = match source.late + source.astray.min(outstanding) {
            0 => 0,
            lost => lost.min(self.part_of(source.weight, self.shares.of_new).div_ceil(PARTS) as u32),
        };
        let out = source.late + outstanding;
        let has = out - lost;
        let quick = has.min((earned / PARTS) as u32);
        let beyond = has - quick;
        // Most sources hold no more than they have earned.
        let limit = if beyond > 0 || asks_limit { self.limit(source.weight, earned, is_new) } else { 0 };
        let rest = if beyond > 0 { beyond.min(limit - quick) } else { 0 };
        let (spare, new) = if is_new { (0, rest) } else { (rest, 0) };
        let is_slow = weight > 0 && earned < PARTS && !is_new;
        let counted = Counted { weight, earned, quick, spare, new, is_slow };
        self.sums.replace(source.counted, counted);
        self.sources[at].counted = counted;
        self.counts[at] = want | out != 0;
        limit
    }

    /// Most credits that a source may hold: its earned credits and its part.
    #[inline(always)]
    fn limit(&self, weight: u32, earned: u64, is_new: bool) -> u32 {
        let credits = if is_new { self.shares.of_new } else { self.shares.parts.min(self.window()) };
        (((earned + self.part_of(weight, credits) + PARTS / 2) / PARTS) as u32).max(1)
    }

    /// Earned credits that may be out: the arrivals in three times the least time a credit is out, and some more. They
    /// keep the last link busy, whatever else is in flight, and few frames wait in front of the link. They are less
    /// than half of the credits that sources may hold. So the round decides which source is next, not the limits of the
    /// sources. The additional credits are the same number for every receiver. Receivers on one link then have equally
    /// many frames waiting there, and share the link equally.
    fn window(&self) -> u32 {
        let queue = u64::from(self.config.queue);
        let most = if self.least.is_probing() { 0 } else { self.sums.earned * 3 / (TIMES * PARTS) + WINDOW_SOME };
        most.max(self.shares.window_min.into()).min(queue) as u32
    }

    /// Credits of the window that are not out. An eighth of the queue is left for new sources.
    fn left(&self) -> u32 {
        let most = self.window().min(self.config.queue - self.config.queue / 8);
        most.saturating_sub(self.sums.quick)
    }

    /// Credits a source may hold in addition, whatever other sources hold: its arrivals in twice the least time. Hardly
    /// any of these frames wait in front of the last link. Without these credits the source would wait for slow
    /// sources, or for sources held up in front of the network.
    fn at_once(&self, at: usize) -> u32 {
        let counted = &self.sources[at].counted;
        let most = (counted.earned * 2).div_ceil(TIMES * PARTS) as u32;
        most.saturating_sub(counted.quick)
    }

    /// Spare credits that are not out. There are as many as are divided into parts, or one for each source that has
    /// earned none.
    fn spare_left(&self) -> u32 {
        let parts = self.shares.parts;
        let all = self.sums.slow.clamp(parts, parts.max(self.config.queue.div_ceil(2)));
        all.saturating_sub(self.sums.spare)
    }

    /// Spare credits that a source takes at a time, by its weight.
    fn stake(&self, at: usize) -> u32 {
        self.sources[at].weight.clamp(1, self.shares.parts)
    }

    /// Credits for new sources that are not out.
    fn new_left(&self) -> u32 {
        self.shares.of_new.saturating_sub(self.sums.new)
    }

    /// The part of a source of this weight in so many credits, in parts of a credit. A source may hold its part regardless of
    /// its pace.
    fn part_of(&self, weight: u32, credits: u32) -> u64 {
        let weight = u64::from(weight);
        u64::from(credits) * PARTS * weight / self.sums.weight.max(weight)
    }

    /// Returns how many more credits a source may get for its request, or 0 where they are not worth a message. The
    /// second number is the smallest grant worth a message.
    ///
    /// A source may hold its `limit`: its part and its earned credits. A slow source, with a slow link or a stopped program,
    /// holds its part and little more. A source that only lacks credits spends them quickly and soon earns more.
    fn allowance(&self, at: usize, limit: u32) -> (u32, u32) {
        let source = &self.sources[at];
        let has = source.counted.quick + source.counted.spare + source.counted.new;
        let want = source.channel.as_ref().map_or(0, Channel::want);
        let (more, worth) = (want.min(limit.saturating_sub(has)), self.config.batch.min(want).min(limit.div_ceil(8)));
        (if more < worth { 0 } else { more }, worth)
    }

    /// Kind of a source's next credits.
    fn kind(&self, at: usize) -> Kind {
        let source = &self.sources[at];
        let Counted { earned, quick, spare, .. } = source.counted;
        match quick + spare < (earned / PARTS) as u32 {
            _ if source.pace.is_new() && self.new_left() > 0 => Kind::New,
            true => Kind::Earned,
            false => Kind::Spare,
        }
    }

    /// Takes a source out of the round, most often the first one.
    #[inline(always)]
    fn take_out(&mut self, place: usize) {
        match place {
            0 => self.waiting.pop_front(),
            _ => self.waiting.remove(place),
        };
    }

    /// Grants free credits by weighted round robin among waiting sources that hold less than they may.
    pub(super) fn serve(&mut self, now: Instant) {
        if self.waiting.is_empty() && self.spare.is_empty() {
            return;
        }
        let mut looks = LOOKS;
        // The window holds two turns or more of every source.
        let turn =
            (u64::from(self.window()) / (2 * self.sums.weight.max(1))).clamp(1, u64::from(self.config.batch)) as u32;
        let mut left = self.spare_left();
        while let Some(&at) = self.spare.front().filter(|&&at| left >= self.stake(at)) {
            left -= self.stake(at);
            self.spare.pop_front();
            self.sources[at].round_state = RoundState::Round;
            self.waiting.push_back(at);
        }
        let mut passed = 0;
        while let Some(&at) = self.waiting.get(passed) {
            if self.sources[at].channel.as_ref().is_none_or(|c| c.want() == 0) {
                self.sources[at].round_state = RoundState::Nowhere;
                self.take_out(passed);
                continue;
            }
            let limit = self.count_and(now, at, true);
            let (more, worth) = self.allowance(at, limit);
            if more == 0 {
                self.sources[at].round_state = RoundState::Capped;
                self.take_out(passed);
                continue;
            }
            let kind = self.kind(at);
            let left = match kind {
                Kind::New => self.new_left(),
                Kind::Earned => self.left(),
                Kind::Spare => self.spare_left(),
            };
            if left < worth && self.free() > 0 && looks > 0 {
                looks -= 1;
                self.count_others(now, 1);
                continue;
            }
            if kind == Kind::Spare && left < self.stake(at) {
                self.sources[at].round_state = RoundState::Spare;
                self.take_out(passed);
                self.spare.push_back(at);
                continue;
            }
            let (free, at_once) = (self.free(), self.at_once(at));
            let source = &mut self.sources[at];
            let Some(c) = source.channel.as_mut() else { return };
            if source.turn == 0 {
                source.turn = turn.saturating_mul(source.weight);
            }
            let asked = more.min(source.turn);
            // A source without credits does not wait for other sources' credits, which may be long in coming.
            let is_first = c.outstanding() == 0 && self.queued == 0;
            let least = if is_first || kind == Kind::Spare { 1 } else { asked.min(worth) };
            let (left, least) = match kind {
                Kind::Earned if at_once > 0 && (left < least || passed > 0) => (at_once, least.min(at_once)),
                Kind::Earned if passed > 0 => (0, 1),
                _ => (left, least),
            };
            if free < least || passed == PASSED_MAX {
                break;
            }
            if left < least {
                // Sources behind this one may not wait for the last link.
                passed += 1;
                continue;
            }
            let budget = left.min(free);
            let granted = asked.min(budget);
            c.granted = c.granted + granted;
            source.moved_at = now;
            source.turn -= granted;
            self.promised += granted;
            self.counters.granted += u64::from(granted);
            let (has_all, has_had_its_turn) = (c.want() == 0, source.turn == 0);
            source.pace.on_granted(now, granted, source.out());
            if has_all || has_had_its_turn {
                source.turn = 0;
                source.round_state = if has_all { RoundState::Nowhere } else { RoundState::Round };
                self.take_out(passed);
                if !has_all {
                    self.waiting.push_back(at);
                }
            }
            self.count(now, at);
            self.tell(at);
            self.look(now);
        }
    }
}
