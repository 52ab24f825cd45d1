//! The receiving half: Algorithm 5.2.

mod pace;
mod round;
mod source;

use self::pace::{Least, Pace};
use self::round::{Counted, LOOKS_OF_NEW, RoundState, Shares, Sums};
use self::source::{Channel, Source};
use super::{Message, QUEUE_MAX};
use crate::index::Index;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::Hash;
use sluicenet_wire::seq::SeqNumber;

/// A source that has spent all its credits, and from which no frame came for this time, has lost frames or is held up.
/// The time is longer than a frame takes on a slow link. It is shorter than the time for which credits are kept for
/// lost frames.
const ASTRAY_AFTER: Duration = Duration::from_ms(10);

/// Cache lines of a source that a frame touches.
const SOURCE_LINES: usize = 3;

/// A VM's receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceptionConfig {
    /// Frames the queue holds (`RXQsize`), and so the most frames on their way to it.
    pub queue: u32,
    /// Credits of one turn of a source of weight 1, and of one grant where that many are needed.
    pub batch: u32,
    /// Whether credits wait for programs that share processors, more than for the network. The time until a credit is
    /// back says little then, and credits for the whole queue may be out.
    pub shares_processors: bool,
    /// Sources known at a time, at least 1. Beyond them, the source that has been idle longest is forgotten.
    pub sources: usize,
    /// A source that has held credits for this time without spending them is probed, again and again.
    pub probe_after: Duration,
    /// Longest time a frame may be on its way. After this time its credit is free again.
    pub reclaim_after: Duration,
    /// Whether the layer below delivers frames and messages of a source in order. A frame reported as sent and not yet
    /// received is then lost, and its credit is free at once.
    pub ordered: bool,
    /// A source that has held credits for this time, and neither spends nor returns any, loses them and its channel.
    pub deadline: Duration,
}

impl Default for ReceptionConfig {
    /// The queue of Crisan 2014, 5.3.3. The times are ours: longer than a pause that a watchdog allows.
    fn default() -> ReceptionConfig {
        ReceptionConfig {
            queue: 512,
            batch: 8,
            shares_processors: false,
            sources: 4096,
            probe_after: Duration::from_ms(100),
            reclaim_after: Duration::from_ms(500),
            ordered: false,
            deadline: Duration::from_secs(1),
        }
    }
}

/// Counters of one receiving half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceptionCounters {
    /// Frames that came with a credit.
    pub frames: u64,
    /// Frames that came without a credit.
    pub without_credit: u64,
    /// Frames without a credit that were sent before the source could know the end of its channel, and found room.
    pub overdue: u64,
    /// Credits granted.
    pub granted: u64,
    /// Credits that were returned.
    pub returned: u64,
    /// Credits whose frames never came.
    pub lost: u64,
    /// Credits that were not spent in time, and taken back.
    pub revoked: u64,
    /// Probes of sources.
    pub probes: u64,
    /// Sources told to begin anew.
    pub resets: u64,
    /// Sources forgotten for want of room.
    pub forgotten: u64,
    /// Messages older than the known totals.
    pub stale: u64,
    /// Messages that contradict themselves or the grants, and are ignored.
    pub absurd: u64,
}

/// A frame came without a granted credit. It has to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCredit;

/// The receive queue of a VM and all its sources, named by `S`. It counts frames; the caller stores them.
#[derive(Clone, Debug)]
pub struct Reception<S> {
    config: ReceptionConfig,
    sources: Vec<Source<S>>,
    by_name: Index<S>,
    /// Sources that want credits and may hold more of them, in the order of the round.
    waiting: VecDeque<usize>,
    /// Sources that want credits and hold all they earned, while all spare credits are out.
    spare: VecDeque<usize>,
    /// Whether each source has a part in `sums`. Most known sources have none, and are not read to find that out.
    counts: Vec<bool>,
    sums: Sums,
    shares: Shares,
    least: Least,
    /// The source that is recounted next, without an event of its own.
    hand: usize,
    /// Sources that have to be told about a grant.
    pending: VecDeque<usize>,
    /// Other messages to send.
    says: VecDeque<(S, u32, Message)>,
    /// Frames in the queue.
    queued: u32,
    /// Most frames in the queue so far.
    queued_max: u32,
    /// Granted credits that are neither a frame in the queue nor free.
    promised: u32,
    /// When sources are checked again.
    look_at: Instant,
    counters: ReceptionCounters,
}

impl<S: Copy + Ord + Hash> Reception<S> {
    /// Returns an empty queue without sources.
    pub fn new(config: ReceptionConfig) -> Reception<S> {
        assert!(config.batch >= 1 && config.batch <= config.queue && config.queue < QUEUE_MAX && config.sources >= 1);
        Reception {
            config,
            sources: Vec::new(),
            by_name: Index::default(),
            waiting: VecDeque::new(),
            spare: VecDeque::new(),
            counts: Vec::new(),
            sums: Sums::default(),
            shares: Shares::of(&config),
            least: Least::new(),
            hand: 0,
            pending: VecDeque::new(),
            says: VecDeque::new(),
            queued: 0,
            queued_max: 0,
            promised: 0,
            look_at: Instant::MAX,
            counters: ReceptionCounters::default(),
        }
    }

    /// The address at which the look-up of a source begins, for a caller that prefetches memory.
    #[inline(always)]
    pub fn place_line(&self, source: S) -> *const u8 {
        self.by_name.place_line(&source)
    }
    /// The addresses of a source's usual lines, for a caller that prefetches memory.
    #[inline(always)]
    pub fn lines(&self, source: S) -> impl Iterator<Item = *const u8> + use<S> {
        let first = self.by_name.get(&source).map(|at| self.sources.as_ptr().wrapping_add(at).cast::<u8>());
        first.into_iter().flat_map(|first| (0..SOURCE_LINES).map(move |line| first.wrapping_add(64 * line)))
    }
    /// Frames in the queue.
    pub fn queued(&self) -> u32 {
        self.queued
    }
    /// Most frames in the queue at a time.
    pub fn queued_max(&self) -> u32 {
        self.queued_max
    }
    /// Credits promised to sources.
    pub fn promised(&self) -> u32 {
        self.promised
    }
    /// Room neither taken by frames nor promised.
    pub fn free(&self) -> u32 {
        self.config.queue - self.queued - self.promised
    }
    /// The counters.
    pub fn counters(&self) -> ReceptionCounters {
        self.counters
    }
    /// Whether the accounts are consistent: the queue never held more frames than its size, and its promises cannot
    /// exceed it. Every promise belongs to a source. Every source that wants credits waits in its place.
    pub fn is_sound(&self) -> bool {
        let promised: u32 = self.sources.iter().map(Source::out).sum();
        let room = self.config.queue;
        let mut sums = Sums::default();
        self.sources.iter().for_each(|s| sums.replace(Counted::default(), s.counted));
        let at = |state| self.sources.iter().filter(|s| s.round_state == state).count();
        promised == self.promised
            && self.queued + promised <= room
            && self.queued_max <= room
            && sums == self.sums
            && at(RoundState::Round) == self.waiting.len()
            && at(RoundState::Spare) == self.spare.len()
            && self.sources.iter().all(Source::is_sound)
            && self.sources.iter().map(Source::counts).eq(self.counts.iter().copied())
    }

    /// The receiving VM is gone. Returns a message for each source, so that no source waits for the VM or keeps its
    /// credits.
    pub fn close(self) -> impl Iterator<Item = (S, u32, Message)> {
        let channels = self.sources.into_iter().filter_map(|s| Some((s.name, s.channel?.number)));
        channels.map(|(name, number)| (name, number, Message::Reset { last: number }))
    }

    /// Sets the weight of a source, at least 1; the default is 1. Turns and held credits are in proportion to weights.
    pub fn set_weight(&mut self, now: Instant, source: S, weight: u32) {
        let at = self.slot_of(now, source);
        if let Some(at) = at {
            self.sources[at].weight = weight.max(1);
            self.review(now, at);
        }
    }

    /// A frame of a source takes the room that was promised to it.
    ///
    /// # Errors
    /// The frame has no credit. A late frame of an ended channel is still taken where room is free.
    #[inline]
    pub fn on_frame(&mut self, now: Instant, name: S) -> Result<(), NoCredit> {
        let Some(at) = self.by_name.get(&name) else { return self.without_credit(None) };
        let source = &mut self.sources[at];
        source.last_heard = now;
        match &mut source.channel {
            // Frames of ended channels were sent first, and come first.
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

    /// The connection that carried a source's frames has ended, so no frame comes over it any more. Room promised for
    /// its frames is free. A channel with frames received over this connection has ended; a living sender has heard of
    /// this, too, and begins another channel. A channel without received frames may belong to the present peer.
    pub fn on_disconnected(&mut self, now: Instant, name: S) {
        let Some(at) = self.by_name.get(&name) else { return };
        if core::mem::take(&mut self.sources[at].late_connected) {
            self.give_up_late(now, at);
        }
        let source = &mut self.sources[at];
        if let Some(c) = source.channel.take_if(|c| c.is_connected) {
            (source.ended, source.is_pending) = (Some(c.number), false);
            self.counters.lost += u64::from(c.outstanding());
            self.leave(at);
            self.on_back(now, at, c.outstanding());
        }
        self.serve(now);
    }

    /// Handles a message of a source's hypervisor. The layer below has checked its sender. Returns whether the source
    /// began another channel while credits are kept for frames of earlier channels. These frames cannot come once the
    /// connection has ended.
    pub fn receive(&mut self, now: Instant, source: S, channel: u32, message: &Message) -> bool {
        let mut keeps = false;
        match *message {
            Message::Request { wanted, spent, granted, returned } => {
                let totals = [wanted, spent, granted].map(SeqNumber);
                if let Some(at) = self.slot_of(now, source) {
                    let is_first = spent == channel && granted == channel && returned == 0;
                    let is_new = self.sources[at].channel.is_none_or(|c| c.number != channel);
                    if !is_new || self.begins(now, at, channel, is_first) {
                        self.on_request(now, at, totals, returned);
                        keeps = is_new && self.sources[at].late_connected;
                    }
                }
            }
            Message::Close { spent, returned } => self.on_close(now, source, channel, SeqNumber(spent), returned),
            Message::Grant { .. } | Message::Probe | Message::Reset { .. } => self.counters.absurd += 1,
        }
        self.serve(now);
        keeps
    }

    /// A source requests credits for a channel that is not its present one. Returns whether the channel begins.
    #[cold]
    fn begins(&mut self, now: Instant, at: usize, number: u32, is_first: bool) -> bool {
        let name = self.sources[at].name;
        let known = self.sources[at].channel.map(|c| SeqNumber(number).since(SeqNumber(c.number)));
        match known {
            Some(..=0) => {
                // A late message, or a source whose clock was set back. The source learns this and begins a channel
                // later than the remembered one.
                self.counters.stale += 1;
                let last = self.sources[at].channel.map_or(number, |c| c.number);
                self.say(name, number, Message::Reset { last });
                false
            }
            // The source has not heard the end of its last channel, or an old request came late.
            None if self.sources[at].ended.is_some_and(|last| SeqNumber(number) <= SeqNumber(last)) => {
                self.counters.stale += 1;
                let last = self.sources[at].ended.unwrap_or(number);
                self.say(name, number, Message::Reset { last });
                false
            }
            // A later channel, or the source's first known channel.
            Some(1..) | None if is_first => {
                self.end_channel(now, at);
                if self.config.ordered {
                    self.give_up_late(now, at);
                }
                let source = &mut self.sources[at];
                (source.channel, source.ended) = (Some(Channel::new(number)), None);
                source.pace = Pace::default();
                true
            }
            // The channel began with an earlier receiver, or was ended here.
            Some(1..) | None => {
                self.say(name, number, Message::Reset { last: number });
                false
            }
        }
    }

    /// A source requests credits for its present channel.
    fn on_request(&mut self, now: Instant, at: usize, totals: [SeqNumber; 3], returned: u32) {
        let [wanted, spent, granted] = totals;
        let source = &mut self.sources[at];
        let Some(c) = &mut source.channel else { return };
        let is_sound = spent <= granted && granted <= c.granted && granted <= wanted && spent <= wanted;
        let fits = returned.wrapping_sub(c.returned) as i32 <= c.outstanding() as i32;
        if !is_sound || !fits || !c.is_in_reach(&[wanted, spent, granted]) {
            self.counters.absurd += 1;
            return;
        }
        source.last_heard = now;
        // The source does not know its last grant yet.
        let is_behind = granted < c.granted;
        // A repeated request gets an answer even without new credits, to show that the receiver is alive.
        let is_repeated = !is_behind && wanted <= c.wanted && spent <= c.spent;
        if wanted > c.wanted {
            c.wanted = wanted;
        }
        self.counters.stale += u64::from(is_repeated);
        let freed = c.settle_returned(returned);
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
        let Some(at) = self.by_name.get(&name) else { return };
        let Some(c) = self.sources[at].channel.as_mut().filter(|c| c.number == number) else {
            self.counters.stale += 1;
            return;
        };
        let fits = returned.wrapping_sub(c.returned) as i32 <= c.outstanding() as i32;
        if spent > c.granted || !fits || !c.is_in_reach(&[spent]) {
            self.counters.absurd += 1;
            return;
        }
        let freed = c.settle_returned(returned);
        // Credits granted beyond the spent total will never be spent.
        let floor = if spent > c.settled { spent } else { c.settled };
        let unspent = c.granted.since(floor) as u32;
        c.granted = floor;
        self.counters.returned += u64::from(freed + unspent);
        self.on_back(now, at, freed + unspent);
        self.end_channel(now, at);
    }

    /// Ends a source's channel. Frames that may be on their way keep their room for a while.
    fn end_channel(&mut self, now: Instant, at: usize) {
        let source = &mut self.sources[at];
        let Some(c) = source.channel.take() else { return };
        if c.outstanding() > 0 {
            source.late_connected = c.is_connected && (source.late == 0 || source.late_connected);
            source.late += c.outstanding();
            source.late_until = now.saturating_add(self.config.reclaim_after);
        }
        source.is_pending = false;
        self.leave(at);
        self.review(now, at);
        self.look(now);
    }

    /// Returns the slot of a source. A source without a slot gets one; `None` when all slots belong to sources that are
    /// not idle.
    fn slot_of(&mut self, now: Instant, name: S) -> Option<usize> {
        if let Some(at) = self.by_name.get(&name) {
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
            round_state: RoundState::Nowhere,
            is_pending: false,
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
            self.counts.push(false);
            return Some(self.sources.len() - 1);
        }
        let idle = (0..self.sources.len())
            .filter(|&k| self.sources[k].is_idle() && self.sources[k].round_state == RoundState::Nowhere);
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

    /// Frees the credits of ended channels, whose frames do not come any more.
    fn give_up_late(&mut self, now: Instant, at: usize) {
        let source = &mut self.sources[at];
        source.late_connected = false;
        let late = core::mem::take(&mut source.late);
        self.counters.lost += u64::from(late);
        self.on_back(now, at, late);
    }

    fn tell(&mut self, at: usize) {
        if !core::mem::replace(&mut self.sources[at].is_pending, true) {
            self.pending.push_back(at);
        }
    }

    /// Queues a message that is not a grant, unless too many wait already. A source that needs the message asks again.
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

    /// Whether there is a message to send.
    #[inline(always)]
    pub fn has_messages(&self) -> bool {
        !self.says.is_empty() || !self.pending.is_empty()
    }

    /// Returns the next message with its source and channel.
    pub fn poll_message(&mut self) -> Option<(S, u32, Message)> {
        if let Some(said) = self.says.pop_front() {
            return Some(said);
        }
        while let Some(at) = self.pending.pop_front() {
            let source = &mut self.sources[at];
            let was_pending = core::mem::replace(&mut source.is_pending, false);
            if let (true, Some(c)) = (was_pending, &source.channel) {
                return Some((source.name, c.number, Message::Grant { granted: c.granted.0 }));
            }
        }
        None
    }

    /// Sets the time of the next check where credits are promised.
    fn look(&mut self, now: Instant) {
        if self.look_at == Instant::MAX && self.promised > 0 {
            self.look_at = now.saturating_add(self.config.probe_after);
        }
    }

    /// When sources have to be checked.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.look_at != Instant::MAX).then_some(self.look_at)
    }

    /// Checks sources that have credits.
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
