//! zBridge's channels of a server's machines (Crisan 2014, 5.3.4), one to each machine elsewhere and traffic class: classes overtake each
//! other. What leaves is numbered, kept until it is acknowledged, and sent again where it was lost; what comes is put in order.
//!
//! Both worlds have this box: between the vSwitch and the adapter of simulated servers, and between the switch and the tunnel of
//! real ones. `N` names a channel, `F` stands for a frame.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use sluicenet_proto::loss::Full;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zbridge::{Channel, ChannelConfig, ChannelCounters, Header, Outgoing, Refusal};

/// Times a channel asks and hears nothing before its other end counts as gone, where somebody wants to know.
const SILENT: u32 = 10;

#[derive(Debug)]
struct Pair<N, F> {
    name: N,
    channel: Channel<F>,
    is_active: bool,
    /// The deadline that stands in the timers.
    armed_at: Instant,
    /// When a frame last came or went.
    used: Instant,
}

/// What is to be sent: to whom, and whether it has been sent before.
#[derive(Debug)]
pub struct Sending<N, F> {
    /// The channel.
    pub name: N,
    /// The header, and what it carries.
    pub outgoing: Outgoing<F>,
    /// Whether what it carries was sent before.
    pub again: bool,
}

/// All channels.
#[derive(Debug)]
pub struct Channels<N, F> {
    config: ChannelConfig,
    pairs: Vec<Pair<N, F>>,
    by_name: BTreeMap<N, usize>,
    /// Places of channels that have ended.
    free: Vec<usize>,
    /// Channels that are kept while nothing is in them.
    limit: usize,
    /// Channels that may have something to send, in turn.
    active: VecDeque<usize>,
    /// Channels that nobody answers.
    silent: Vec<N>,
    /// Deadlines that nobody has been told of yet.
    timers: Vec<(Instant, usize)>,
    /// Counted by channels that are no more.
    before: ChannelCounters,
}

impl<N: Copy + Ord, F: Clone> Channels<N, F> {
    /// None yet; beyond `limit` of them, one with nothing in it ends for each that begins.
    pub fn new(config: ChannelConfig, limit: usize) -> Channels<N, F> {
        Channels {
            config,
            pairs: Vec::new(),
            by_name: BTreeMap::new(),
            free: Vec::new(),
            limit,
            active: VecDeque::new(),
            silent: Vec::new(),
            timers: Vec::new(),
            before: ChannelCounters::default(),
        }
    }

    /// Frames inside that are not on their way out: that wait to be sent for the first time, or came before their turn.
    pub fn queued(&self) -> u64 {
        self.pairs
            .iter()
            .map(|p| (p.channel.unsent_and_in_flight() - p.channel.in_flight() + p.channel.early()) as u64)
            .sum()
    }
    /// Of those, the ones that wait to be sent.
    pub fn unsent(&self) -> u64 {
        self.pairs.iter().map(|p| (p.channel.unsent_and_in_flight() - p.channel.in_flight()) as u64).sum()
    }
    /// Copies of frames that were sent and not acknowledged.
    pub fn copies(&self) -> u64 {
        self.pairs.iter().map(|p| p.channel.in_flight() as u64).sum()
    }
    /// What all channels have counted.
    pub fn counters(&self) -> ChannelCounters {
        self.by_name.values().fold(self.before, |sum, &at| add(sum, self.pairs[at].channel.counters()))
    }
    /// Whether one may have something to send.
    pub fn has_output(&self) -> bool {
        !self.active.is_empty()
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
    /// Whether a channel is there.
    pub fn contains(&self, name: N) -> bool {
        self.by_name.contains_key(&name)
    }
    /// Whether a channel takes a frame, if it is there.
    pub fn has_room(&self, name: N) -> bool {
        self.by_name.get(&name).is_none_or(|&at| self.pairs[at].channel.has_room())
    }

    /// Its channel; `random` makes the numbers of its connections, which must differ from those of any before.
    fn pair(&mut self, name: N, random: impl FnOnce() -> Rng) -> usize {
        if let Some(&at) = self.by_name.get(&name) {
            return at;
        }
        if self.by_name.len() >= self.limit {
            self.end_an_idle_one();
        }
        let channel = Channel::new(self.config, random());
        let at = match self.free.pop() {
            Some(at) => {
                // It may still be among the active ones.
                let pair = &mut self.pairs[at];
                (pair.name, pair.channel, pair.armed_at) = (name, channel, Instant::MAX);
                at
            }
            None => {
                self.pairs.push(Pair { name, channel, is_active: false, armed_at: Instant::MAX, used: Instant::ZERO });
                self.pairs.len() - 1
            }
        };
        self.by_name.insert(name, at);
        at
    }

    #[cold]
    fn end_an_idle_one(&mut self) {
        let is_idle = |c: &Channel<F>| c.unsent_and_in_flight() + c.early() == 0;
        let idle =
            self.by_name.values().copied().filter(|&at| is_idle(&self.pairs[at].channel) && !self.pairs[at].is_active);
        // The one that was not used for longest: what is only received by is idle between two frames.
        let idle = idle.min_by_key(|&at| (self.pairs[at].used, at));
        if let Some(at) = idle {
            let name = self.pairs[at].name;
            self.end(|other| *other == name, &mut |_| {});
        }
    }

    /// Something happened to a channel: it may have something to say, now or later.
    fn touch(&mut self, at: usize) {
        let pair = &mut self.pairs[at];
        if !core::mem::replace(&mut pair.is_active, true) {
            self.active.push_back(at);
        }
        self.arm(at);
    }

    fn arm(&mut self, at: usize) {
        let pair = &mut self.pairs[at];
        // One that is too early costs a look; setting it anew with every frame would cost more.
        if let Some(due) = pair.channel.poll_timeout()
            && due < pair.armed_at
        {
            pair.armed_at = due;
            self.timers.push((due, at));
        }
    }

    /// A frame is to be sent.
    ///
    /// # Errors
    /// When its channel takes no more.
    pub fn send(&mut self, now: Instant, name: N, frame: F, random: impl FnOnce() -> Rng) -> Result<(), Full<F>> {
        let at = self.pair(name, random);
        self.pairs[at].used = now;
        self.pairs[at].channel.send(now, frame)?;
        self.touch(at);
        Ok(())
    }

    /// Whether one of those that `may` send may have something to send.
    pub fn has_output_of(&self, may: impl Fn(&N) -> bool) -> bool {
        self.active.iter().any(|&at| may(&self.pairs[at].name))
    }

    /// What to send next, of those that `may`.
    pub fn poll_transmit(&mut self, now: Instant, may: impl Fn(&N) -> bool) -> Option<Sending<N, F>> {
        for _ in 0..self.active.len() {
            let at = self.active.pop_front()?;
            let pair = &mut self.pairs[at];
            if !may(&pair.name) {
                self.active.push_back(at);
                continue;
            }
            let resent = pair.channel.counters().resent;
            let Some(outgoing) = pair.channel.poll_transmit(now) else {
                pair.is_active = false;
                continue;
            };
            let (name, again) = (pair.name, pair.channel.counters().resent > resent);
            self.active.push_back(at);
            self.arm(at);
            return Some(Sending { name, outgoing, again });
        }
        None
    }

    /// A frame came for a channel; see [`Channel::receive`].
    ///
    /// # Errors
    /// The frame, where it is not taken.
    #[allow(clippy::too_many_arguments)]
    pub fn receive(
        &mut self,
        now: Instant,
        name: N,
        header: &Header,
        frame: Option<F>,
        random: impl FnOnce() -> Rng,
        deliver: &mut impl FnMut(F),
        free: &mut impl FnMut(F),
    ) -> Result<(), (Option<F>, Refusal)> {
        let at = self.pair(name, random);
        self.pairs[at].used = now;
        let taken = self.pairs[at].channel.receive(now, header, frame, deliver, free);
        self.touch(at);
        taken
    }

    /// What was sent to who forgot everything is not sent again: `free` gets it.
    pub fn free_unacknowledged(&mut self, name: N, free: &mut impl FnMut(F)) {
        let Some(&at) = self.by_name.get(&name) else { return };
        if let Some(frames) = self.pairs[at].channel.take_unacknowledged() {
            frames.for_each(free);
            self.touch(at);
        }
    }

    /// Ends the channels of which that is so; `free` gets their frames, those that were sent, and those that were not or wait for their turn.
    pub fn end(&mut self, mut so: impl FnMut(&N) -> bool, free: &mut impl FnMut(F)) {
        let Channels { pairs, by_name, free: places, before, .. } = self;
        by_name.retain(|name, &mut at| {
            let ends = so(name);
            if ends {
                *before = add(*before, pairs[at].channel.counters());
                pairs[at].channel.end(free);
                places.push(at);
            }
            !ends
        });
    }

    /// Channels whose other ends have not been heard of for some nine seconds at the source's timeout.
    pub fn take_silent(&mut self) -> Vec<N> {
        core::mem::take(&mut self.silent)
    }

    /// Deadlines: each is to be [handed back](Channels::handle_timeout) when it has come.
    pub fn take_timers(&mut self) -> impl Iterator<Item = (Instant, usize)> + '_ {
        self.timers.drain(..)
    }

    /// A deadline has come.
    pub fn handle_timeout(&mut self, now: Instant, due: Instant, at: usize) {
        if let Some(pair) = self.pairs.get_mut(at)
            && pair.armed_at == due
        {
            pair.armed_at = Instant::MAX;
            pair.channel.handle_timeout(now);
            if pair.channel.unheard() >= SILENT {
                self.silent.push(pair.name);
            }
            self.touch(at);
        }
    }
}

fn add(a: ChannelCounters, b: ChannelCounters) -> ChannelCounters {
    ChannelCounters {
        sent: a.sent + b.sent,
        resent: a.resent + b.resent,
        delivered: a.delivered + b.delivered,
        duplicates: a.duplicates + b.duplicates,
        too_far: a.too_far + b.too_far,
        stale: a.stale + b.stale,
        timeouts: a.timeouts + b.timeouts,
        connections: a.connections + b.connections,
    }
}
