//! Who receives: Algorithm 5.2.

use super::pace::{Least, PARTS, Pace, TIMES};
use super::{Message, QUEUE_MAX};
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use sluicenet_wire::seq::SeqNumber;

/// Sources that are counted again where one has to wait for others' credits.
const LOOKS: u32 = 2;

/// Sources that are passed over in a round.
const PASSED_MAX: usize = 32;

/// Sources that are counted again when another one becomes active.
const LOOKS_OF_NEW: usize = 16;

/// Credits beside those that have been earned.
const WINDOW_SOME: u64 = 8;

/// Credits that nobody has to earn, of a queue of twice as many frames and more: about what fills a round trip.
const NEW_MAX: u32 = 128;

/// A source that has spent all it had, and of which nothing has come for so long, has lost it or is held up: longer than a frame of a slow
/// link takes, and not so long as credits are kept for those that are lost.
const ASTRAY_AFTER: Duration = Duration::from_ms(10);

/// A VM's receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceptionConfig {
    /// Frames it holds (`RXQsize`), and so the most that are on their way to it.
    pub queue: u32,
    /// Credits of one turn of a source of weight 1, and of one grant where there is need of so many.
    pub batch: u32,
    /// Credits that may be out whatever comes of them, 1 at least: a few, or as many as keep programs busy that share processors, where it is those
    /// that credits wait for.
    pub window: u32,
    /// Sources it knows at a time, 1 at least; beyond them, the one that has been idle longest is forgotten.
    pub sources: usize,
    /// A source that has had credits for so long without spending them is asked where it is, again and again.
    pub probe_after: Duration,
    /// For how long a frame may be on its way: later, its credit is free again.
    pub reclaim_after: Duration,
    /// Whether the layer below brings frames and messages of a source in the order they were sent: what was said to be spent and is
    /// not there is then lost, and its credit free at once.
    pub ordered: bool,
    /// A source that has had credits for so long, spends none and returns none, loses them and its channel.
    pub deadline: Duration,
}

impl Default for ReceptionConfig {
    /// The queue of Crisan 2014, 5.3.3. Times: ours; longer than a pause that a watchdog allows.
    fn default() -> ReceptionConfig {
        ReceptionConfig {
            queue: 512,
            batch: 8,
            window: 8,
            sources: 4096,
            probe_after: Duration::from_ms(100),
            reclaim_after: Duration::from_ms(500),
            ordered: false,
            deadline: Duration::from_secs(1),
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceptionCounters {
    /// Frames that came with a credit.
    pub frames: u64,
    /// Frames that came without one.
    pub without_credit: u64,
    /// Those among them that had been sent before the source could know that its channel was ended, and had room all the same.
    pub overdue: u64,
    /// Credits granted.
    pub granted: u64,
    /// Credits that were returned.
    pub returned: u64,
    /// Credits whose frames never came.
    pub lost: u64,
    /// Credits that were not spent in time, and taken back.
    pub revoked: u64,
    /// Sources that were asked where they are.
    pub probes: u64,
    /// Sources that were told to begin anew.
    pub resets: u64,
    /// Sources forgotten for want of room.
    pub forgotten: u64,
    /// Messages older than what is known.
    pub stale: u64,
    /// Messages that contradict themselves or what was granted: not believed.
    pub absurd: u64,
}

/// A frame came that no credit was granted for: it has to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCredit;

/// A channel of a source.
#[derive(Clone, Copy, Debug)]
struct Channel {
    number: u32,
    wanted: SeqNumber,
    granted: SeqNumber,
    /// Credits that are no longer promised: their frame came, they were returned, or lost.
    settled: SeqNumber,
    /// The last total of those that were returned.
    returned: u32,
    /// The last total that it said it has spent.
    spent: SeqNumber,
    /// One of those totals, beyond what had settled when it was looked at, and when that was.
    missing: Option<(SeqNumber, Instant)>,
    /// What had been granted when it had settled all before, and when that was.
    mark: Option<(SeqNumber, Instant)>,
    /// A frame of it came by the connection that there is: it is of that connection's other end.
    is_connected: bool,
}

impl Channel {
    fn new(number: u32) -> Channel {
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
    fn outstanding(&self) -> u32 {
        self.granted.since(self.settled) as u32
    }
    fn want(&self) -> u32 {
        self.wanted.since(self.granted).max(0) as u32
    }
    /// Settles what was spent up to a total and never came. Returns how many.
    fn give_up(&mut self, spent: SeqNumber) -> u32 {
        let missing = spent.since(self.settled).max(0) as u32;
        self.settled = self.settled + missing;
        self.missing = None;
        missing
    }
}

/// Where a source waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
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
struct Counted {
    /// Its weight while it has credits or wants some.
    weight: u32,
    /// What it has earned, in parts of a credit.
    earned: u64,
    /// What it may hold by that, and in all.
    may: u32,
    limit: u32,
    /// What it holds of the former.
    quick: u32,
    /// What it holds beyond it, up to its part.
    spare: u32,
    /// What it holds while nothing is known of it, up to the part of such a one.
    new: u32,
    /// 1 where it has credits or wants some, and where it has not earned any.
    active: u32,
    slow: u32,
}

/// Counted of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    weight: u64,
    earned: u64,
    quick: u32,
    spare: u32,
    new: u32,
    active: u32,
    slow: u32,
}

impl Sums {
    fn replace(&mut self, old: Counted, new: Counted) {
        self.weight = self.weight - u64::from(old.weight) + u64::from(new.weight);
        self.earned = self.earned - old.earned + new.earned;
        self.quick = self.quick - old.quick + new.quick;
        self.spare = self.spare - old.spare + new.spare;
        self.new = self.new - old.new + new.new;
        self.active = self.active - old.active + new.active;
        self.slow = self.slow - old.slow + new.slow;
    }
}

#[derive(Clone, Debug)]
struct Source<S> {
    name: S,
    weight: u32,
    channel: Option<Channel>,
    /// Credits of channels that have ended, whose frames may still be on their way, and until when.
    late: u32,
    late_until: Instant,
    /// All of those channels were of the connection that there is.
    late_connected: bool,
    /// What is left of its turn.
    turn: u32,
    place: Place,
    is_due: bool,
    pace: Pace,
    /// When a frame of it came last, or it was granted something.
    moved_at: Instant,
    /// Credits that it has spent without a frame for long: lost, probably, and not held against it.
    astray: u32,
    /// What of it is in the sums of all.
    counted: Counted,
    last_heard: Instant,
    /// The last channel that was taken from it, until it begins another.
    ended: Option<u32>,
}

impl<S> Source<S> {
    fn is_active(&self) -> bool {
        self.channel.as_ref().is_some_and(|c| c.outstanding() > 0 || c.want() > 0)
    }
    fn is_idle(&self) -> bool {
        self.late == 0 && !self.is_due && !self.is_active()
    }
    /// Credits that are out, by all its channels.
    fn out(&self) -> u32 {
        self.late + self.channel.as_ref().map_or(0, Channel::outstanding)
    }
    /// Of these, those that are lost, probably, or of channels that have ended: not held against it, up to so many.
    fn lost(&self, most: u32) -> u32 {
        let lost = self.channel.as_ref().map_or(0, |c| self.astray.min(c.outstanding()));
        (self.late + lost).min(most)
    }
    /// Whether what it is counted as, and where it waits, is what it wants and has.
    fn is_sound(&self) -> bool {
        let want = self.channel.as_ref().map_or(0, Channel::want);
        let waits = want == 0 || self.place != Place::Nowhere;
        let comes_back = self.place != Place::Capped || want > 0 && self.out() > 0;
        let weight = if self.is_active() { self.weight } else { 0 };
        let is_counted =
            self.counted.weight == weight && self.counted.quick + self.counted.spare + self.counted.new <= self.out();
        waits && comes_back && is_counted && self.pace.out() == self.out()
    }
}

/// The receive queue of a VM and all who send to it, named by `S`. It counts frames; the caller has them.
#[derive(Clone, Debug)]
pub struct Reception<S> {
    config: ReceptionConfig,
    sources: Vec<Source<S>>,
    by_name: BTreeMap<S, usize>,
    /// Those that want credits and may have more of them, in the order of the round.
    waiting: VecDeque<usize>,
    /// Those that want some and have all they earned, where all that nobody has earned are out.
    spare: VecDeque<usize>,
    sums: Sums,
    least: Least,
    /// The source that is counted again next, whatever comes of it.
    hand: usize,
    /// Those that have to be told what they were granted.
    due: VecDeque<usize>,
    /// Other things to say.
    says: VecDeque<(S, u32, Message)>,
    /// Frames in the queue.
    queued: u32,
    /// The most there have been.
    queued_max: u32,
    /// Credits that have been granted, and are neither a frame in the queue nor free.
    promised: u32,
    /// When sources are looked at again.
    look_at: Instant,
    counters: ReceptionCounters,
}

impl<S: Copy + Ord> Reception<S> {
    /// An empty queue that nobody sends to.
    pub fn new(config: ReceptionConfig) -> Reception<S> {
        assert!(
            config.batch >= 1
                && config.batch <= config.queue
                && config.queue < QUEUE_MAX
                && config.window >= 1
                && config.sources >= 1
        );
        Reception {
            config,
            sources: Vec::new(),
            by_name: BTreeMap::new(),
            waiting: VecDeque::new(),
            spare: VecDeque::new(),
            sums: Sums::default(),
            least: Least::new(),
            hand: 0,
            due: VecDeque::new(),
            says: VecDeque::new(),
            queued: 0,
            queued_max: 0,
            promised: 0,
            look_at: Instant::MAX,
            counters: ReceptionCounters::default(),
        }
    }

    /// Frames in the queue.
    pub fn queued(&self) -> u32 {
        self.queued
    }
    /// The most there have been at a time.
    pub fn queued_max(&self) -> u32 {
        self.queued_max
    }
    /// Credits promised to sources.
    pub fn promised(&self) -> u32 {
        self.promised
    }
    /// Room that is neither.
    pub fn free(&self) -> u32 {
        self.config.queue - self.queued - self.promised
    }
    /// What happened.
    pub fn counters(&self) -> ReceptionCounters {
        self.counters
    }
    /// Whether the queue has never held more than it may, cannot come to by what is promised, every promise is somebody's, and everybody
    /// who wants credits is where they come from.
    pub fn is_sound(&self) -> bool {
        let promised: u32 = self.sources.iter().map(Source::out).sum();
        let room = self.config.queue;
        let mut sums = Sums::default();
        self.sources.iter().for_each(|s| sums.replace(Counted::default(), s.counted));
        let at = |place| self.sources.iter().filter(|s| s.place == place).count();
        promised == self.promised
            && self.queued + promised <= room
            && self.queued_max <= room
            && sums == self.sums
            && at(Place::Round) == self.waiting.len()
            && at(Place::Spare) == self.spare.len()
            && self.sources.iter().all(Source::is_sound)
    }

    /// Its VM is gone: what to tell whom, so that nobody goes on waiting for it or keeps credits of it.
    pub fn close(self) -> impl Iterator<Item = (S, u32, Message)> {
        let channels = self.sources.into_iter().filter_map(|s| Some((s.name, s.channel?.number)));
        channels.map(|(name, number)| (name, number, Message::Reset { last: number }))
    }

    /// Sources have turns, and may hold credits, in the proportion of their weights: 1 unless said otherwise, at least 1.
    pub fn set_weight(&mut self, now: Instant, source: S, weight: u32) {
        let at = self.place(now, source);
        if let Some(at) = at {
            self.sources[at].weight = weight.max(1);
            self.review(now, at);
        }
    }

    /// A frame of a source comes: it takes the room that was promised to it.
    ///
    /// # Errors
    /// When there was no promise: all room is others'.
    #[inline]
    pub fn on_frame(&mut self, now: Instant, name: S) -> Result<(), NoCredit> {
        let Some(&at) = self.by_name.get(&name) else { return self.without_credit(None) };
        let source = &mut self.sources[at];
        source.last_heard = now;
        match &mut source.channel {
            // What was sent first comes first.
            _ if source.late > 0 => source.late -= 1,
            Some(c) if c.outstanding() > 0 => (c.settled, c.is_connected) = (c.settled + 1, true),
            _ => return self.without_credit(Some(at)),
        }
        source.moved_at = now;
        self.enqueue();
        self.counters.frames += 1;
        self.on_back(now, at, 1);
        Ok(())
    }

    #[cold]
    fn without_credit(&mut self, at: Option<usize>) -> Result<(), NoCredit> {
        self.counters.without_credit += 1;
        let source = at.map(|at| &self.sources[at]);
        let Some((name, ended)) = source.and_then(|s| Some((s.name, s.ended?))) else { return Err(NoCredit) };
        self.say(name, ended, Message::Reset { last: ended });
        if self.free() == 0 {
            return Err(NoCredit);
        }
        self.enqueue();
        self.counters.overdue += 1;
        Ok(())
    }

    #[inline(always)]
    fn enqueue(&mut self) {
        self.queued += 1;
        self.queued_max = self.queued_max.max(self.queued);
    }

    /// The VM took a frame out of its queue.
    #[inline]
    pub fn on_departure(&mut self, now: Instant) {
        self.queued -= 1;
        self.serve(now);
    }

    /// Nothing comes any more by the connection that a source's frames came by. What was promised for them is free, and the channel of
    /// which some came has ended: if its other end lives, it has heard of this, too, and begins another. A channel of which none has come
    /// may be of whoever is there now.
    pub fn on_disconnected(&mut self, now: Instant, name: S) {
        let Some(&at) = self.by_name.get(&name) else { return };
        if core::mem::take(&mut self.sources[at].late_connected) {
            self.give_up_late(now, at);
        }
        let source = &mut self.sources[at];
        if let Some(c) = source.channel.take_if(|c| c.is_connected) {
            (source.ended, source.is_due) = (Some(c.number), false);
            self.counters.lost += u64::from(c.outstanding());
            self.leave(at);
            self.on_back(now, at, c.outstanding());
        }
        self.serve(now);
    }

    /// A source's channel, and whether credits are kept for frames of those before, which cannot come if the connection has ended.
    pub fn channel(&self, name: S) -> Option<(u32, bool)> {
        let source = &self.sources[*self.by_name.get(&name)?];
        Some((source.channel.as_ref()?.number, source.late_connected))
    }

    /// What a source's hypervisor says. Who it is from, the layer below has seen to.
    pub fn receive(&mut self, now: Instant, source: S, channel: u32, message: &Message) {
        match *message {
            Message::Request { wanted, spent, granted, returned } => {
                self.on_request(now, source, channel, [wanted, spent, granted].map(SeqNumber), returned);
            }
            Message::Close { spent, returned } => self.on_close(now, source, channel, SeqNumber(spent), returned),
            Message::Grant { .. } | Message::Probe | Message::Reset { .. } => self.counters.absurd += 1,
        }
        self.serve(now);
    }

    fn on_request(&mut self, now: Instant, name: S, number: u32, totals: [SeqNumber; 3], returned: u32) {
        let [wanted, spent, granted] = totals;
        let is_first = spent.0 == number && granted.0 == number && returned == 0;
        let Some(at) = self.place(now, name) else { return };
        let known = self.sources[at].channel.map(|c| SeqNumber(number).since(SeqNumber(c.number)));
        match known {
            Some(0) => {}
            Some(..0) => {
                // Late, or of one whose clock was set back: that learns it, and begins later than what is remembered.
                self.counters.stale += 1;
                let last = self.sources[at].channel.map_or(number, |c| c.number);
                self.say(name, number, Message::Reset { last });
                return;
            }
            // What its last one was ended with it has not heard, or it says this again after that.
            None if self.sources[at].ended.is_some_and(|last| SeqNumber(number) <= SeqNumber(last)) => {
                self.counters.stale += 1;
                let last = self.sources[at].ended.unwrap_or(number);
                self.say(name, number, Message::Reset { last });
                return;
            }
            // A later one, or the first that is heard of.
            Some(1..) | None if is_first => {
                self.end_channel(now, at);
                if self.config.ordered {
                    self.give_up_late(now, at);
                }
                let source = &mut self.sources[at];
                (source.channel, source.ended) = (Some(Channel::new(number)), None);
                source.pace.begin_anew();
            }
            // It began with somebody who was here before, or was ended here.
            Some(1..) | None => {
                self.say(name, number, Message::Reset { last: number });
                return;
            }
        }
        let source = &mut self.sources[at];
        let Some(c) = &mut source.channel else { return };
        let is_sound = spent <= granted && granted <= c.granted && granted <= wanted && spent <= wanted;
        let fits = returned.wrapping_sub(c.returned) as i32 <= c.outstanding() as i32;
        if !is_sound || !fits || !in_reach(c, &[wanted, spent, granted]) {
            self.counters.absurd += 1;
            return;
        }
        source.last_heard = now;
        // It does not know yet what it was granted.
        let is_behind = granted < c.granted;
        // Who asks again is told that somebody is here, though there is nothing to grant.
        let is_repeated = !is_behind && wanted <= c.wanted && spent <= c.spent;
        if wanted > c.wanted {
            c.wanted = wanted;
        }
        self.counters.stale += u64::from(is_repeated);
        let freed = settle_returned(c, returned);
        if spent > c.spent {
            c.spent = spent;
        }
        let lost = if self.config.ordered { c.give_up(spent) } else { 0 };
        let wants = c.want() > 0;
        if spent == c.granted && now.since(source.moved_at) >= ASTRAY_AFTER {
            source.astray = c.outstanding();
        }
        self.counters.returned += u64::from(freed);
        self.counters.lost += u64::from(lost);
        if wants {
            self.join(now, at);
        }
        let is_new = self.sources[at].counted.weight == 0;
        self.on_back(now, at, freed + lost);
        if is_new {
            self.count_others(now, LOOKS_OF_NEW);
        }
        if is_behind || is_repeated {
            self.tell(at);
        }
        self.look(now);
    }

    fn on_close(&mut self, now: Instant, name: S, number: u32, spent: SeqNumber, returned: u32) {
        let Some(&at) = self.by_name.get(&name) else { return };
        let Some(c) = self.sources[at].channel.as_mut().filter(|c| c.number == number) else {
            self.counters.stale += 1;
            return;
        };
        let fits = returned.wrapping_sub(c.returned) as i32 <= c.outstanding() as i32;
        if spent > c.granted || !fits || !in_reach(c, &[spent]) {
            self.counters.absurd += 1;
            return;
        }
        let freed = settle_returned(c, returned);
        // What is granted beyond what it had spent, nobody will spend.
        let floor = if spent > c.settled { spent } else { c.settled };
        let unspent = c.granted.since(floor) as u32;
        c.granted = floor;
        self.counters.returned += u64::from(freed + unspent);
        self.on_back(now, at, freed + unspent);
        self.end_channel(now, at);
    }

    /// Ends a source's channel: the frames that may be on their way keep their room for a while.
    fn end_channel(&mut self, now: Instant, at: usize) {
        let source = &mut self.sources[at];
        let Some(c) = source.channel.take() else { return };
        if c.outstanding() > 0 {
            source.late_connected = c.is_connected && (source.late == 0 || source.late_connected);
            source.late += c.outstanding();
            source.late_until = now.saturating_add(self.config.reclaim_after);
        }
        source.is_due = false;
        self.leave(at);
        self.review(now, at);
        self.look(now);
    }

    /// The place of a source, which it is given when it has none; `None` when all places are taken by others that are not idle.
    fn place(&mut self, now: Instant, name: S) -> Option<usize> {
        if let Some(&at) = self.by_name.get(&name) {
            return Some(at);
        }
        let source = Source {
            name,
            weight: 1,
            channel: None,
            late: 0,
            late_until: Instant::ZERO,
            late_connected: false,
            turn: 0,
            place: Place::Nowhere,
            is_due: false,
            pace: Pace::default(),
            moved_at: now,
            astray: 0,
            counted: Counted::default(),
            last_heard: now,
            ended: None,
        };
        if self.sources.len() < self.config.sources {
            self.by_name.insert(name, self.sources.len());
            self.sources.push(source);
            return Some(self.sources.len() - 1);
        }
        let idle =
            (0..self.sources.len()).filter(|&k| self.sources[k].is_idle() && self.sources[k].place == Place::Nowhere);
        let Some(at) = idle.min_by_key(|&k| (self.sources[k].last_heard, k)) else {
            self.counters.absurd += 1;
            return None;
        };
        self.by_name.remove(&self.sources[at].name);
        self.by_name.insert(name, at);
        self.sources[at] = source;
        self.counters.forgotten += 1;
        Some(at)
    }

    /// A source waits for credits, from now on or still.
    fn join(&mut self, now: Instant, at: usize) {
        let source = &mut self.sources[at];
        if source.place == Place::Nowhere {
            source.pace.on_wanted(now);
            (source.place, source.turn) = (Place::Round, 0);
            match source.pace.is_new() {
                true => self.waiting.push_front(at),
                false => self.waiting.push_back(at),
            }
        }
    }

    /// The channel of a source has ended. Where it stands in a row, it is found there.
    fn leave(&mut self, at: usize) {
        let source = &mut self.sources[at];
        if source.place == Place::Capped {
            source.place = Place::Nowhere;
        }
    }

    /// Credits of a source are back, as frames or otherwise.
    #[inline]
    fn on_back(&mut self, now: Instant, at: usize, credits: u32) {
        if credits > 0 {
            self.promised -= credits;
            self.sources[at].pace.on_back(now, credits, &mut self.least, self.sums.active.into());
        }
        self.review(now, at);
    }

    /// What a source has or wants is another, or its weight: it is counted, and back in the round if it may have more now. One whose turn
    /// is not over goes on with it.
    #[inline]
    fn review(&mut self, now: Instant, at: usize) {
        self.count(now, at);
        if self.sources[at].place == Place::Capped && self.allowance(at).0 > 0 {
            let kind = self.kind(at);
            self.sources[at].place = Place::Round;
            match self.sources[at].turn {
                // Behind those that have waited for as much for longer.
                _ if kind == Kind::Spare && !self.spare.is_empty() => {
                    self.sources[at].place = Place::Spare;
                    self.spare.push_back(at);
                }
                1.. if kind == Kind::Earned => self.waiting.push_front(at),
                _ => self.waiting.push_back(at),
            }
        }
    }

    /// Counts so many sources again, one after the other: what they may hold changes with what others do, and with time, and who does nothing
    /// is seen by nothing else.
    fn count_others(&mut self, now: Instant, sources: usize) {
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
        let may = (earned / PARTS) as u32;
        // Of those that are lost as many as of one of which nothing is known.
        let lost = source.lost(self.part_of(at, self.all_of_new()).div_ceil(PARTS) as u32);
        let has = source.out() - lost;
        let quick = has.min(may);
        let rest = (has - quick).min(limit - quick);
        let (spare, new) = if source.pace.is_new() { (0, rest) } else { (rest, 0) };
        let active = u32::from(weight > 0);
        let slow = u32::from(weight > 0 && earned < PARTS && !source.pace.is_new());
        let counted = Counted { weight, earned, may, limit, quick, spare, new, active, slow };
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
        most.clamp(u64::from(self.config.window).min(queue), queue) as u32
    }

    /// Of these, those that are not out: some of the room is left for who comes next.
    fn left(&self) -> u32 {
        let most = self.window().min(self.config.queue - self.config.queue / 8);
        most.saturating_sub(self.sums.quick)
    }

    /// What more a source may hold whatever others do: what comes of it in one and a half of the least time. It does not wait in front of the
    /// last link then, and would wait here for those who are slow.
    fn at_once(&self, at: usize) -> u32 {
        let counted = &self.sources[at].counted;
        let most = (counted.earned * 3).div_ceil(2 * TIMES * PARTS) as u32;
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

    /// Credits that are divided into parts: a quarter of the room, or three where all of it may be out whatever comes of it.
    fn parts(&self) -> u32 {
        let ReceptionConfig { queue, window, .. } = self.config;
        let quarters = if window >= queue && queue >= 16 { 3 } else { 1 };
        (queue * quarters).div_ceil(4)
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
        match source.counted.quick + source.counted.spare < source.counted.may {
            _ if source.pace.is_new() && self.new_left() > 0 => Kind::New,
            true => Kind::Earned,
            false => Kind::Spare,
        }
    }

    /// Frames of channels that have ended do not come any more.
    fn give_up_late(&mut self, now: Instant, at: usize) {
        let source = &mut self.sources[at];
        source.late_connected = false;
        let late = core::mem::take(&mut source.late);
        self.counters.lost += u64::from(late);
        self.on_back(now, at, late);
    }

    fn tell(&mut self, at: usize) {
        if !core::mem::replace(&mut self.sources[at].is_due, true) {
            self.due.push_back(at);
        }
    }

    /// Says something that is not a grant, unless there is too much of that already: whoever needs it asks again.
    fn say(&mut self, to: S, channel: u32, message: Message) {
        const SAYS_MAX: usize = 64;
        if self.says.len() < SAYS_MAX {
            match message {
                Message::Probe => self.counters.probes += 1,
                _ => self.counters.resets += 1,
            }
            self.says.push_back((to, channel, message));
        }
    }

    /// Grants what is free, by weighted round robin among those that wait and have not all they may.
    fn serve(&mut self, now: Instant) {
        let mut looks = LOOKS;
        // All have two turns and more of what may be out.
        let turn =
            (u64::from(self.window()) / (2 * self.sums.weight.max(1))).clamp(1, u64::from(self.config.batch)) as u32;
        let mut left = self.spare_left();
        while let Some(&at) = self.spare.front().filter(|&&at| left >= self.stake(at)) {
            left -= self.stake(at);
            self.spare.pop_front();
            self.sources[at].place = Place::Round;
            self.waiting.push_back(at);
        }
        let mut passed = 0;
        while let Some(&at) = self.waiting.get(passed) {
            if self.sources[at].channel.as_ref().is_none_or(|c| c.want() == 0) {
                self.sources[at].place = Place::Nowhere;
                self.waiting.remove(passed);
                continue;
            }
            self.count(now, at);
            let (more, worth) = self.allowance(at);
            if more == 0 {
                self.sources[at].place = Place::Capped;
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
                self.sources[at].place = Place::Spare;
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
            source.pace.on_granted(now, granted);
            self.promised += granted;
            self.counters.granted += u64::from(granted);
            let (has_all, has_had_its_turn) = (c.want() == 0, source.turn == 0);
            if has_all || has_had_its_turn {
                source.turn = 0;
                self.waiting.remove(passed);
                source.place = if has_all { Place::Nowhere } else { Place::Round };
                if !has_all {
                    self.waiting.push_back(at);
                }
            }
            self.count(now, at);
            self.tell(at);
            self.look(now);
        }
    }

    /// What there is to say, to whom and about which channel, once.
    pub fn poll_message(&mut self) -> Option<(S, u32, Message)> {
        if let Some(said) = self.says.pop_front() {
            return Some(said);
        }
        while let Some(at) = self.due.pop_front() {
            let source = &mut self.sources[at];
            let was_due = core::mem::replace(&mut source.is_due, false);
            if let (true, Some(c)) = (was_due, &source.channel) {
                return Some((source.name, c.number, Message::Grant { granted: c.granted.0 }));
            }
        }
        None
    }

    /// There is something to look after: looks in a while.
    fn look(&mut self, now: Instant) {
        if self.look_at == Instant::MAX && self.promised > 0 {
            self.look_at = now.saturating_add(self.config.probe_after);
        }
    }

    /// When sources have to be looked at.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.look_at != Instant::MAX).then_some(self.look_at)
    }

    /// Looks at sources that have credits.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.look_at {
            return;
        }
        self.look_at = Instant::MAX;
        for at in 0..self.sources.len() {
            self.look_after(now, at);
            self.review(now, at);
        }
        self.serve(now);
        self.look(now);
    }

    fn look_after(&mut self, now: Instant, at: usize) {
        let config = self.config;
        if now >= self.sources[at].late_until {
            self.give_up_late(now, at);
        }
        let Some(c) = &mut self.sources[at].channel else { return };
        match c.missing {
            Some((spent, since)) if spent > c.settled && now.since(since) >= config.reclaim_after => {
                let lost = c.give_up(spent);
                self.counters.lost += u64::from(lost);
                self.on_back(now, at, lost);
            }
            Some((spent, _)) if spent > c.settled => {}
            _ => c.missing = (c.spent > c.settled).then_some((c.spent, now)),
        }
        let source = &mut self.sources[at];
        let Some(c) = &mut source.channel else { return };
        match c.mark {
            _ if c.outstanding() == 0 => c.mark = None,
            Some((granted, _)) if c.settled >= granted => c.mark = Some((c.granted, now)),
            None => c.mark = Some((c.granted, now)),
            Some((_, since)) => {
                let (name, number) = (source.name, c.number);
                if now.since(since) >= config.deadline {
                    self.counters.revoked += u64::from(c.outstanding());
                    self.end_channel(now, at);
                    self.sources[at].ended = Some(number);
                    self.say(name, number, Message::Reset { last: number });
                } else {
                    self.say(name, number, Message::Probe);
                }
            }
        }
    }
}

/// Whether totals are where a channel can be: nobody is 2^30 credits ahead of or behind what is known.
fn in_reach(c: &Channel, totals: &[SeqNumber]) -> bool {
    const REACH: u32 = 1 << 30;
    totals.iter().all(|total| total.since(c.granted).unsigned_abs() <= REACH)
}

/// Credits that were returned since it was last said are free.
fn settle_returned(c: &mut Channel, returned: u32) -> u32 {
    let more = (returned.wrapping_sub(c.returned) as i32).max(0) as u32;
    c.returned = c.returned.wrapping_add(more);
    c.settled = c.settled + more;
    more
}
