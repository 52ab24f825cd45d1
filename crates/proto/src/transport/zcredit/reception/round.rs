//! Who is next, and how much each may have.

use super::Reception;
use super::pace::{PARTS, TIMES};
use super::source::Channel;
use crate::time::Instant;

/// Sources that are counted again where one has to wait for others' credits.
const LOOKS: u32 = 2;

/// Sources that are passed over in a round.
const PASSED_MAX: usize = 32;

/// Sources that are counted again when another one becomes active.
pub(super) const LOOKS_OF_NEW: usize = 16;

/// Credits that may be out whatever comes of them.
const WINDOW_MIN: u64 = 8;

/// Credits beside those that have been earned.
const WINDOW_SOME: u64 = 8;

/// Credits that nobody has to earn, of a queue of twice as many frames and more: about what fills a round trip.
const NEW_MAX: u32 = 128;

/// Where a source waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RoundState {
    /// It wants no credits.
    #[default]
    Nowhere,
    /// For room, in the round.
    Round,
    /// For credits that nobody has earned, of which all are out.
    Spare,
    /// For frames of its own to come.
    Capped,
}

/// What credits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of a source of which nothing is known.
    New,
    /// Of one that holds less than it has earned.
    Earned,
    /// Of one that does not: nobody has to earn them.
    Spare,
}

/// A source's part in the sums of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Its weight while it has credits or wants some.
    pub weight: u32,
    /// What it has earned, in parts of a credit.
    pub earned: u64,
    /// What it may hold by that and by its part.
    pub limit: u32,
    /// What it holds of what it has earned.
    pub quick: u32,
    /// What it holds beyond it, up to its part.
    pub spare: u32,
    /// What it holds while nothing is known of it, up to the part of such a one.
    pub new: u32,
    /// Whether it is known and has not earned any.
    pub is_slow: bool,
}

/// Counted of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub weight: u64,
    pub earned: u64,
    pub quick: u32,
    pub spare: u32,
    pub new: u32,
    /// Sources that have credits or want some, and those of them that have not earned any.
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

impl<S: Copy + Ord> Reception<S> {
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

    /// The channel of a source has ended. Where it stands in a row, it is found there.
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

    /// What a source has or wants is another, or its weight: it is counted, and back in the round if it may have more now. One whose turn
    /// is not over goes on with it.
    #[inline]
    pub(super) fn review(&mut self, now: Instant, at: usize) {
        self.count(now, at);
        if self.sources[at].round_state == RoundState::Capped && self.allowance(at).0 > 0 {
            let kind = self.kind(at);
            self.sources[at].round_state = RoundState::Round;
            match self.sources[at].turn {
                // Behind those that have waited for as much for longer.
                _ if kind == Kind::Spare && !self.spare.is_empty() => {
                    self.sources[at].round_state = RoundState::Spare;
                    self.spare.push_back(at);
                }
                1.. if kind == Kind::Earned => self.waiting.push_front(at),
                _ => self.waiting.push_back(at),
            }
        }
    }

    /// Counts so many sources again, one after the other: what they may hold changes with what others do, and with time, and who does nothing
    /// is seen by nothing else.
    pub(super) fn count_others(&mut self, now: Instant, sources: usize) {
        for _ in 0..sources.min(self.sources.len()) {
            self.hand = if self.hand + 1 < self.sources.len() { self.hand + 1 } else { 0 };
            self.count(now, self.hand);
        }
    }

    #[inline]
    fn count(&mut self, now: Instant, at: usize) {
        let source = &self.sources[at];
        let (weight, earned) =
            if source.is_active() { (source.weight, source.pace.earned(now, &self.least)) } else { (0, 0) };
        let part = self.part(at);
        let limit = (((earned + part + PARTS / 2) / PARTS) as u32).max(1);
        // Of those that are lost as many as of one of which nothing is known.
        let lost = source.lost(self.part_of(at, self.all_of_new()).div_ceil(PARTS) as u32);
        let has = source.out() - lost;
        let quick = has.min((earned / PARTS) as u32);
        let rest = (has - quick).min(limit - quick);
        let (spare, new) = if source.pace.is_new() { (0, rest) } else { (rest, 0) };
        let is_slow = weight > 0 && earned < PARTS && !source.pace.is_new();
        let counted = Counted { weight, earned, limit, quick, spare, new, is_slow };
        self.sums.replace(source.counted, counted);
        self.sources[at].counted = counted;
    }

    /// Credits that may be out, of those that come back: what comes in three times the least time that one is out, and some more. It keeps the
    /// last link busy, whatever else is on the way, and little waits in front of it; and it is less than half of what the sources may have, so
    /// that the round, and not what each may have, says who is next. The some are as many for every receiver: where several share a link, as
    /// much waits for each of them there, and so they share it alike.
    fn window(&self) -> u32 {
        let queue = u64::from(self.config.queue);
        let most = if self.least.is_probing() { 0 } else { self.sums.earned * 3 / (TIMES * PARTS) + WINDOW_SOME };
        let least = if self.config.shares_processors { queue } else { WINDOW_MIN.min(queue) };
        most.clamp(least, queue) as u32
    }

    /// Of these, those that are not out: some of the room is left for who comes next.
    fn left(&self) -> u32 {
        let most = self.window().min(self.config.queue - self.config.queue / 8);
        most.saturating_sub(self.sums.quick)
    }

    /// What more a source may hold whatever others do: what comes of it in two of the least time. Hardly any of it waits in front of
    /// the last link then, and it would wait here for those who are slow, or held up in front of the network.
    fn at_once(&self, at: usize) -> u32 {
        let counted = &self.sources[at].counted;
        let most = (counted.earned * 2).div_ceil(TIMES * PARTS) as u32;
        most.saturating_sub(counted.quick)
    }

    /// Of credits that nobody has to earn, those that are not out: as many as there are for parts, or one for each that has not earned any.
    fn spare_left(&self) -> u32 {
        let parts = self.parts();
        let all = self.sums.slow.clamp(parts, parts.max(self.config.queue.div_ceil(2)));
        all.saturating_sub(self.sums.spare)
    }

    /// Of these a source has so many at a time, by its weight.
    fn stake(&self, at: usize) -> u32 {
        self.sources[at].weight.clamp(1, self.parts())
    }

    /// Credits that are divided into parts: a quarter of the room, or three where credits wait for processors.
    fn parts(&self) -> u32 {
        let quarters = if self.config.shares_processors { 3 } else { 1 };
        (self.config.queue * quarters).div_ceil(4)
    }

    /// Of credits for sources of which nothing is known, those that are not out: half of the room, and not more than fills a round trip.
    fn new_left(&self) -> u32 {
        self.all_of_new().saturating_sub(self.sums.new)
    }

    fn all_of_new(&self) -> u32 {
        self.config.queue.div_ceil(2).min(NEW_MAX)
    }

    /// What a source may hold whatever it makes of it, by weight, in parts of a credit.
    fn part(&self, at: usize) -> u64 {
        match self.sources[at].pace.is_new() {
            true => self.part_of(at, self.all_of_new()),
            false => self.part_of(at, self.parts().min(self.window())),
        }
    }

    fn part_of(&self, at: usize, credits: u32) -> u64 {
        let weight = u64::from(self.sources[at].weight);
        u64::from(credits) * PARTS * weight / self.sums.weight.max(weight)
    }

    /// How many more credits a source may have by what it wants and holds, nothing where that is not worth a message; and what is.
    ///
    /// The most that it may hold is its part and what it has earned: who spends slowly, since his link is slow or he has stopped, has the first
    /// and little more; who only lacks credits is quick with those that he has, and soon has the second.
    fn allowance(&self, at: usize) -> (u32, u32) {
        let source = &self.sources[at];
        let limit = source.counted.limit;
        let has = source.counted.quick + source.counted.spare + source.counted.new;
        let want = source.channel.as_ref().map_or(0, Channel::want);
        let (more, worth) = (want.min(limit.saturating_sub(has)), self.config.batch.min(want).min(limit.div_ceil(8)));
        (if more < worth { 0 } else { more }, worth)
    }

    /// What more credits of a source would be.
    fn kind(&self, at: usize) -> Kind {
        let source = &self.sources[at];
        let Counted { earned, quick, spare, .. } = source.counted;
        match quick + spare < (earned / PARTS) as u32 {
            _ if source.pace.is_new() && self.new_left() > 0 => Kind::New,
            true => Kind::Earned,
            false => Kind::Spare,
        }
    }

    /// Grants what is free, by weighted round robin among those that wait and have not all they may.
    pub(super) fn serve(&mut self, now: Instant) {
        let mut looks = LOOKS;
        // All have two turns and more of what may be out.
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
                self.waiting.remove(passed);
                continue;
            }
            self.count(now, at);
            let (more, worth) = self.allowance(at);
            if more == 0 {
                self.sources[at].round_state = RoundState::Capped;
                self.waiting.remove(passed);
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
                self.waiting.remove(passed);
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
            // Who has none is not made to wait for others' that may be long in coming.
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
                // Others behind it may not wait for the last link.
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
                self.waiting.remove(passed);
                source.round_state = if has_all { RoundState::Nowhere } else { RoundState::Round };
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
