//! zCredit between the machines of servers (Crisan 2014, 5.3.3). Frames wait at their own machine, by destination, until
//! the destination has granted room. They wait again in the destination's receive queue, which never overflows and stops
//! no sender.
//!
//! Both worlds have this box: the simulated server between its machines and the vSwitch, the real one between the switch
//! and the tunnel. `A` names a machine of any server, `T` stands for a frame that waits for a credit, `R` for a received one.

use crate::fair_share;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::Hash;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::index::Index;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zcredit::{Message, Reception, ReceptionConfig, Transmission, TransmissionConfig};

/// Credits of a server's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditConfig {
    /// A machine's receive queue.
    pub reception: ReceptionConfig,
    /// Settings for a machine's requests.
    pub transmission: TransmissionConfig,
    /// Most frames of a machine that may wait; at this number its sockets are stopped. One destination may have a quarter
    /// of them, and at most its [limit](fair_share::limit).
    pub waiting: u32,
    /// Destinations of a machine that are remembered, beyond those with waiting frames.
    pub destinations: usize,
    /// Number of the first channel: after a restart it must be later than all earlier ones, modulo 2^32.
    pub first_channel: u32,
    /// Class of the messages.
    pub priority: Priority,
}

impl CreditConfig {
    /// Settings for receive queues of `rx_queue` frames, granted `batch` at a time, and `tx_queue` frames that wait. No
    /// destination is forgotten. Messages travel in a lossless class, if there is one.
    pub fn new(rx_queue: u32, tx_queue: u32, batch: u32, lossless: PrioritySet) -> CreditConfig {
        CreditConfig {
            reception: ReceptionConfig { queue: rx_queue, batch, ..ReceptionConfig::default() },
            transmission: TransmissionConfig { batch, ..TransmissionConfig::default() },
            waiting: tx_queue,
            destinations: usize::MAX,
            first_channel: 1,
            priority: lossless.iter().next().unwrap_or(0),
        }
    }
}

/// A machine of this server, by its slot.
pub type Vm = usize;

/// Most messages of machines about ended channels that wait to be sent, at a time.
const LAST_WORDS: usize = 256;

/// The effect of a message on the layer below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    Nothing,
    /// The receiver ended the channel: frames sent in it that are still here may have no credit there.
    BeganAnew,
    /// The sender began another channel: credits are kept for frames that may be in flight on a connection, if one still
    /// exists.
    Keeps,
}

#[derive(Debug)]
struct Pair<A, T> {
    destination: A,
    transmission: Transmission,
    frames: VecDeque<T>,
    /// Frames to this destination that left a socket and are not sent yet.
    outgoing: u32,
    /// Sockets that wait because `outgoing` is at its limit.
    parked: Vec<u32>,
    is_active: bool,
    /// Whether it may have a message to send before [`Vnic::quiet_until`].
    is_changed: bool,
}

impl<A, T> Pair<A, T> {
    fn is_idle(&self) -> bool {
        self.outgoing == 0 && self.parked.is_empty() && !self.is_active
    }

    fn standing(&self) -> Standing {
        if self.transmission.may_send() {
            Standing::Sends
        } else if self.is_active && self.frames.is_empty() {
            Standing::Ends
        } else {
            Standing::Waits
        }
    }
}

/// What a pair does in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It waits for a credit, or is not active.
    Waits,
    /// It has no frame, and is not active any more.
    Ends,
    /// It sends a frame.
    Sends,
}

/// The frames and messages of a removed machine.
#[derive(Debug)]
pub struct Cleared<A, T, R> {
    /// Frames that waited for credits.
    pub unsent: Vec<T>,
    /// Received frames that the machine had not taken.
    pub received: Vec<R>,
    /// Messages to send in its name, with their destinations: credits it had are returned at once, and no peer waits for
    /// its credits. A peer that misses its message asks after a while.
    pub last_words: Vec<(A, u32, Message)>,
}

/// The credits between a machine and the switch.
#[derive(Debug)]
struct Vnic<A, T, R> {
    pairs: Vec<Pair<A, T>>,
    by_destination: Index<A>,
    /// Pairs with frames or messages to send, in turn.
    active: VecDeque<usize>,
    /// Of every pair, side by side: a turn passes over many pairs to find one that sends.
    standings: Vec<Standing>,
    /// Pairs that send, and pairs that end.
    sends: usize,
    ends: usize,
    /// Pairs that have changed since their messages were looked at: with many active pairs, few change at a time.
    changed: Vec<usize>,
    /// No other active pair has a message to send before this time.
    quiet_until: Instant,
    /// Last messages to destinations that were forgotten.
    last_words: VecDeque<(A, u32, Message)>,
    outgoing: u32,
    reception: Reception<A>,
    /// The receive queue.
    rx: VecDeque<R>,
    /// The deadline known to the caller.
    armed_at: Instant,
}

/// The credits of all machines of a server.
#[derive(Debug)]
pub struct Credits<A, T, R = T> {
    config: CreditConfig,
    vnics: Vec<Vnic<A, T, R>>,
    /// Machines that may have a message or a frame to send, one bit each.
    ready: Vec<u64>,
    waiting: u64,
    made: u64,
    consumed: u64,
    /// Later than the number of any ended channel.
    next_channel: u32,
}

impl<A, T, R> Vnic<A, T, R> {
    /// A pair's state has changed: it may have a message or a frame to send.
    #[inline(always)]
    fn change(&mut self, at: usize) {
        self.stand(at, self.pairs[at].standing());
        if !core::mem::replace(&mut self.pairs[at].is_changed, true) {
            self.changed.push(at);
        }
    }

    /// A pair has a frame or a message to send.
    #[inline(always)]
    fn activate(&mut self, at: usize) {
        if !core::mem::replace(&mut self.pairs[at].is_active, true) {
            self.active.push_back(at);
        }
        self.change(at);
    }

    #[inline(always)]
    fn stand(&mut self, at: usize, new: Standing) {
        let old = core::mem::replace(&mut self.standings[at], new);
        self.sends = self.sends + usize::from(new == Standing::Sends) - usize::from(old == Standing::Sends);
        self.ends = self.ends + usize::from(new == Standing::Ends) - usize::from(old == Standing::Ends);
    }

    /// A pair without frames is not active any more.
    fn end(&mut self, at: usize) {
        self.pairs[at].is_active = false;
        self.stand(at, Standing::Waits);
    }

    /// The next pair that sends, in its turn, if it `may` send its frame. Pairs that it passes have had their turns.
    #[inline(always)]
    fn next_to_send(&mut self, mut may: impl FnMut(&T) -> bool) -> Option<usize> {
        debug_assert!(self.pairs.iter().map(Pair::standing).eq(self.standings.iter().copied()));
        if self.sends == 0 && self.ends == 0 {
            return None;
        }
        for _ in 0..self.active.len() {
            let at = self.active.pop_front()?;
            match self.standings[at] {
                Standing::Ends => self.end(at),
                Standing::Waits => self.active.push_back(at),
                Standing::Sends => {
                    self.active.push_back(at);
                    if self.pairs[at].frames.front().is_some_and(&mut may) {
                        return Some(at);
                    }
                }
            }
        }
        None
    }

    /// The next message of the active pairs, in their order.
    fn poll_pairs(&mut self, now: Instant) -> Option<(usize, u32, Message)> {
        if now >= self.quiet_until {
            self.quiet_until = Instant::MAX;
            (0..self.active.len()).for_each(|i| self.change(self.active[i]));
        }
        match self.changed[..] {
            [] => {}
            [at] => {
                if let Some((channel, message)) = self.poll_pair(now, at) {
                    return Some((at, channel, message));
                }
            }
            _ => {
                for i in 0..self.active.len() {
                    let at = self.active[i];
                    if let Some((channel, message)) = self.poll_pair(now, at) {
                        return Some((at, channel, message));
                    }
                }
            }
        }
        // Those that are not active change when they become active.
        while let Some(at) = self.changed.pop() {
            self.pairs[at].is_changed = false;
        }
        debug_assert!(self.active.iter().all(|&at| self.pairs[at].transmission.clone().poll_message(now).is_none()));
        None
    }

    /// The next message of a pair, if it is active and has changed.
    #[inline(always)]
    fn poll_pair(&mut self, now: Instant, at: usize) -> Option<(u32, Message)> {
        let pair = &mut self.pairs[at];
        if !(pair.is_changed && pair.is_active) {
            return None;
        }
        let message = pair.transmission.poll_message(now);
        if message.is_none() {
            self.quiet_until = pair.transmission.poll_timeout().map_or(self.quiet_until, |at| at.min(self.quiet_until));
        }
        message
    }

    /// A time before which no active pair repeats a request.
    #[inline(always)]
    fn earliest_repetition(&self) -> Instant {
        let changed = self.changed.iter().map(|&at| &self.pairs[at]).filter(|pair| pair.is_active);
        changed.filter_map(|pair| pair.transmission.poll_timeout()).fold(self.quiet_until, Instant::min)
    }

    /// Whether a destination with `outgoing` frames may have one more.
    #[inline(always)]
    fn takes(&self, outgoing: u32, waiting: u32) -> bool {
        outgoing < fair_share::limit(waiting, waiting.saturating_sub(self.outgoing)).min(waiting.div_ceil(4))
    }
}

impl<A: Copy + Ord + Hash, T, R> Credits<A, T, R> {
    /// The credits of `vms` machines, none of which has sent anything.
    pub fn new(config: CreditConfig, vms: usize) -> Credits<A, T, R> {
        let mut credits = Credits {
            config,
            vnics: Vec::new(),
            ready: Vec::new(),
            waiting: 0,
            made: 0,
            consumed: 0,
            next_channel: config.first_channel,
        };
        (0..vms).for_each(|_| {
            credits.add();
        });
        credits
    }

    /// Adds a machine.
    pub fn add(&mut self) -> Vm {
        self.vnics.push(Vnic {
            pairs: Vec::new(),
            by_destination: Index::default(),
            active: VecDeque::new(),
            standings: Vec::new(),
            sends: 0,
            ends: 0,
            changed: Vec::new(),
            quiet_until: Instant::MAX,
            last_words: VecDeque::new(),
            outgoing: 0,
            reception: Reception::new(self.config.reception),
            rx: VecDeque::new(),
            armed_at: Instant::MAX,
        });
        self.ready.resize(self.vnics.len().div_ceil(64), 0);
        self.vnics.len() - 1
    }

    /// Removes a machine; another may have its slot.
    pub fn clear(&mut self, vm: Vm) -> Cleared<A, T, R> {
        let vnic = &mut self.vnics[vm];
        let (mut unsent, mut last_words) = (Vec::new(), Vec::from(core::mem::take(&mut vnic.last_words)));
        for pair in vnic.pairs.drain(..) {
            self.next_channel = later(self.next_channel, pair.transmission.channel());
            unsent.extend(pair.frames);
            if pair.transmission.counters().requests > 0 {
                let (channel, message) = pair.transmission.close();
                last_words.push((pair.destination, channel, message));
            }
        }
        self.waiting -= unsent.len() as u64;
        let received = vnic.rx.drain(..).collect();
        vnic.by_destination.clear();
        vnic.active.clear();
        vnic.changed.clear();
        vnic.standings.clear();
        (vnic.sends, vnic.ends, vnic.outgoing) = (0, 0, 0);
        (vnic.quiet_until, vnic.armed_at) = (Instant::MAX, Instant::MAX);
        let reception = core::mem::replace(&mut vnic.reception, Reception::new(self.config.reception));
        last_words.extend(reception.close());
        self.made += last_words.len() as u64;
        Cleared { unsent, received, last_words }
    }

    /// The settings.
    pub fn config(&self) -> &CreditConfig {
        &self.config
    }
    /// Frames that wait for a credit or in a receive queue.
    pub fn queued(&self) -> u64 {
        self.waiting + self.vnics.iter().map(|v| v.rx.len() as u64).sum::<u64>()
    }
    /// Frames that wait for a credit.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }
    /// Messages sent and received.
    pub fn messages(&self) -> (u64, u64) {
        (self.made, self.consumed)
    }
    /// Largest number of frames in a receive queue so far, over all machines.
    pub fn received_max(&self) -> u32 {
        self.vnics.iter().map(|v| v.reception.queued_max()).max().unwrap_or(0)
    }
    /// A machine's receive queue and its accounting.
    pub fn reception(&self, vm: Vm) -> &Reception<A> {
        &self.vnics[vm].reception
    }
    /// Sets the weight of machine `source` in turns at a machine of this server.
    pub fn set_weight(&mut self, now: Instant, vm: Vm, source: A, weight: u32) {
        self.vnics[vm].reception.set_weight(now, source, weight);
    }
    /// Whether no receive queue has ever exceeded its limit, and all counters match the queues.
    pub fn is_sound(&self) -> bool {
        let counts = |p: &Pair<A, T>| {
            p.transmission.waiting() as usize == p.frames.len() && p.frames.len() <= p.outgoing as usize
        };
        let sound = |v: &Vnic<A, T, R>| {
            v.reception.is_sound()
                && v.reception.queued() as usize >= v.rx.len()
                && v.pairs.iter().all(counts)
                && v.pairs.iter().map(|p| p.outgoing).sum::<u32>() == v.outgoing
        };
        let waiting: usize = self.vnics.iter().flat_map(|v| &v.pairs).map(|p| p.frames.len()).sum();
        waiting as u64 == self.waiting && self.vnics.iter().all(sound)
    }
    /// The addresses of a machine's own lines, for a caller that prefetches memory.
    #[inline(always)]
    pub fn lines(&self, vm: Vm) -> impl Iterator<Item = *const u8> + use<A, T, R> {
        let first = self.vnics.as_ptr().wrapping_add(vm).cast::<u8>();
        (0..size_of::<Vnic<A, T, R>>()).step_by(64).map(move |at| first.wrapping_add(at))
    }
    /// Whether a machine may have a message or a frame to send.
    pub fn has_work(&self) -> bool {
        self.ready.iter().any(|&set| set != 0)
    }
    /// The first machine from `from` on that may have a message or a frame to send. The machine is then cleared until it
    /// is [woken](Credits::wake).
    pub fn next_ready(&mut self, from: Vm) -> Option<Vm> {
        for at in from / 64..self.ready.len() {
            let from_here = if at == from / 64 { u64::MAX << (from % 64) } else { u64::MAX };
            let set = self.ready[at] & from_here;
            if set != 0 {
                let vm = at * 64 + set.trailing_zeros() as usize;
                self.ready[at] &= !(1 << (vm % 64));
                return Some(vm);
            }
        }
        None
    }
    /// The machines among the first 64 that may have a message or a frame to send, one bit each.
    #[inline(always)]
    pub fn ready(&self) -> u64 {
        self.ready.first().copied().unwrap_or(0)
    }
    /// Marks a machine as having no message and no frame to send until it is [woken](Credits::wake).
    pub fn sleep(&mut self, vm: Vm) {
        self.ready[vm / 64] &= !(1 << (vm % 64));
    }
    /// Wakes a machine if its receive queue has a message to send, or if its pairs have not been asked since they may have one.
    #[inline(always)]
    fn wake_for_news(&mut self, now: Instant, vm: Vm) {
        let vnic = &self.vnics[vm];
        if vnic.reception.has_messages() || !vnic.changed.is_empty() || now >= vnic.quiet_until {
            self.wake(vm);
        }
    }
    /// Marks a machine as possibly having a message or a frame to send.
    pub fn wake(&mut self, vm: Vm) {
        self.ready[vm / 64] |= 1 << (vm % 64);
    }

    // The sender.

    /// Whether a machine may send one more frame, to any destination.
    pub fn has_room(&self, vm: Vm) -> bool {
        self.vnics[vm].outgoing < self.config.waiting
    }
    /// Whether a machine may send one more frame to this destination.
    pub fn has_room_for(&self, vm: Vm, destination: A) -> bool {
        let vnic = &self.vnics[vm];
        let pair = vnic.by_destination.get(&destination).map(|at| &vnic.pairs[at]);
        pair.is_none_or(|p| vnic.takes(p.outgoing, self.config.waiting))
    }
    /// Whether a machine may not send one more frame to this destination; if so, the socket waits until it may.
    pub fn parks(&mut self, vm: Vm, destination: A, socket: u32) -> bool {
        let is_full = !self.has_room_for(vm, destination);
        if is_full {
            let at = self.pair(vm, destination);
            self.vnics[vm].pairs[at].parked.push(socket);
        }
        is_full
    }
    /// A frame left its socket.
    pub fn on_launch(&mut self, vm: Vm, destination: A) {
        let at = self.pair(vm, destination);
        let vnic = &mut self.vnics[vm];
        vnic.pairs[at].outgoing += 1;
        vnic.outgoing += 1;
    }

    /// The number of the pair to a destination, which is made if there is none.
    fn pair(&mut self, vm: Vm, destination: A) -> usize {
        let config = &self.config;
        let vnic = &mut self.vnics[vm];
        match vnic.by_destination.get(&destination) {
            Some(at) => at,
            None => {
                let pair = |channel| Pair {
                    destination,
                    transmission: Transmission::new(config.transmission, channel),
                    frames: VecDeque::new(),
                    outgoing: 0,
                    parked: Vec::new(),
                    is_active: false,
                    is_changed: false,
                };
                let is_full = vnic.pairs.len() >= config.destinations;
                let at = match is_full.then(|| vnic.pairs.iter().position(Pair::is_idle)).flatten() {
                    Some(at) => {
                        let old = &vnic.pairs[at];
                        // If no request was sent, no peer knows the channel's number, and another channel can use it.
                        if old.transmission.counters().requests > 0 {
                            self.next_channel = later(self.next_channel, old.transmission.channel());
                        }
                        vnic.by_destination.remove(&old.destination);
                        let old = core::mem::replace(&mut vnic.pairs[at], pair(self.next_channel));
                        let (channel, message) = old.transmission.close();
                        vnic.last_words.push_back((old.destination, channel, message));
                        // A peer that misses its message asks after a while.
                        if vnic.last_words.len() > config.destinations {
                            vnic.last_words.pop_front();
                        }
                        self.ready[vm / 64] |= 1 << (vm % 64);
                        at
                    }
                    None => {
                        vnic.pairs.push(pair(self.next_channel));
                        vnic.standings.push(Standing::Waits);
                        vnic.pairs.len() - 1
                    }
                };
                vnic.by_destination.insert(destination, at);
                at
            }
        }
    }

    /// Accepts a frame from its machine; the frame waits for a credit.
    pub fn enqueue(&mut self, vm: Vm, destination: A, frame: T) {
        let at = self.pair(vm, destination);
        let vnic = &mut self.vnics[vm];
        let pair = &mut vnic.pairs[at];
        pair.transmission.on_arrival();
        pair.frames.push_back(frame);
        vnic.activate(at);
        self.waiting += 1;
        self.wake(vm);
    }

    /// Withdraws everything for an unreachable destination: the frames that wait for it, and the sockets that may go on.
    pub fn withdraw(&mut self, vm: Vm, destination: A) -> (Vec<T>, Vec<u32>) {
        let vnic = &mut self.vnics[vm];
        let Some(at) = vnic.by_destination.get(&destination) else { return Default::default() };
        let pair = &mut vnic.pairs[at];
        let frames = pair.frames.len() as u32;
        pair.transmission.on_withdrawn(frames);
        pair.outgoing -= frames;
        vnic.outgoing -= frames;
        self.waiting -= u64::from(frames);
        let withdrawn = (pair.frames.drain(..).collect(), core::mem::take(&mut pair.parked));
        vnic.change(at);
        withdrawn
    }

    /// The machine's first frame that waits for a credit of this destination.
    pub fn first_waiting(&self, vm: Vm, destination: A) -> Option<&T> {
        let vnic = &self.vnics[vm];
        vnic.pairs[vnic.by_destination.get(&destination)?].frames.front()
    }

    /// Destinations of a machine that left at least `times` requests unanswered: they may be gone.
    pub fn silent(&self, vm: Vm, times: u32) -> impl Iterator<Item = A> {
        let vnic = &self.vnics[vm];
        let silent = move |&at: &usize| {
            let p = &vnic.pairs[at];
            (!p.frames.is_empty() && p.transmission.unheard() >= times).then_some(p.destination)
        };
        vnic.active.iter().filter_map(silent)
    }

    // Messages.

    /// Handles a message for a machine from another machine.
    pub fn on_message(&mut self, now: Instant, vm: Vm, from: A, channel: u32, message: &Message) -> Told {
        self.consumed += 1;
        match message {
            Message::Request { .. } | Message::Close { .. } => {
                let keeps = self.vnics[vm].reception.receive(now, from, channel, message);
                self.wake_for_news(now, vm);
                if keeps { Told::Keeps } else { Told::Nothing }
            }
            // The channel is from before a restart of this server, and its end was never reported or the report was lost.
            // None of its credits will be spent.
            Message::Probe
                if is_before(channel, self.config.first_channel) && self.channel(vm, from) != Some(channel) =>
            {
                self.say_last(vm, (from, channel, Message::Close { spent: channel, returned: 0 }));
                Told::Nothing
            }
            Message::Grant { .. } | Message::Probe | Message::Reset { .. } => {
                // A machine without a channel to `from` has nothing to tell it.
                let vnic = &mut self.vnics[vm];
                let Some(at) = vnic.by_destination.get(&from) else { return Told::Nothing };
                let transmission = &mut vnic.pairs[at].transmission;
                let last = transmission.channel();
                transmission.receive(now, channel, message);
                let told = if transmission.channel() == last { Told::Nothing } else { Told::BeganAnew };
                vnic.activate(at);
                self.wake(vm);
                told
            }
        }
    }

    /// Takes back unsent frames from the layer below. The credits spent on them were of a channel that has ended, so they
    /// wait for others.
    pub fn restore(&mut self, vm: Vm, to: A, frames: Vec<T>) {
        let count = frames.len() as u32;
        if count > 0 {
            let at = self.put_back(vm, to, frames);
            self.vnics[vm].pairs[at].transmission.on_restored(count);
            self.vnics[vm].activate(at);
            self.wake(vm);
        }
    }

    /// Handles the end of a connection between a machine and a peer. No frame sent on it in either direction is delivered
    /// any more, and the credits of both ends are void on the next connection. `frames` come back from it unsent. `all`
    /// says that no other connection carries frames between the two.
    pub fn on_disconnected(&mut self, now: Instant, vm: Vm, peer: A, frames: Vec<T>, all: bool) {
        let count = frames.len() as u32;
        if count > 0 || self.vnics[vm].by_destination.get(&peer).is_some() {
            let at = self.put_back(vm, peer, frames);
            let said = self.vnics[vm].pairs[at].transmission.on_disconnected(count, all);
            self.vnics[vm].activate(at);
            if let Some((channel, message)) = said {
                self.say_last(vm, (peer, channel, message));
            }
            self.wake(vm);
        }
        if all {
            self.expect_nothing(now, vm, peer);
        }
    }

    /// The number of a machine's channel to another.
    fn channel(&self, vm: Vm, to: A) -> Option<u32> {
        let vnic = &self.vnics[vm];
        Some(vnic.pairs[vnic.by_destination.get(&to)?].transmission.channel())
    }

    /// Queues a message about a channel that has ended.
    fn say_last(&mut self, vm: Vm, said: (A, u32, Message)) {
        let last_words = &mut self.vnics[vm].last_words;
        last_words.push_back(said);
        // A peer that misses its message finds out after a while.
        if last_words.len() > LAST_WORDS {
            last_words.pop_front();
        }
        self.wake(vm);
    }

    /// Frees the room kept for a machine from which no earlier connection will deliver frames.
    pub fn expect_nothing(&mut self, now: Instant, vm: Vm, from: A) {
        self.vnics[vm].reception.on_disconnected(now, from);
        self.wake(vm);
    }

    /// Puts frames that had left in front of those that wait. Returns their pair.
    fn put_back(&mut self, vm: Vm, to: A, frames: Vec<T>) -> usize {
        let count = frames.len() as u32;
        self.waiting += u64::from(count);
        let at = self.pair(vm, to);
        let vnic = &mut self.vnics[vm];
        vnic.outgoing += count;
        let pair = &mut vnic.pairs[at];
        pair.outgoing += count;
        frames.into_iter().rev().for_each(|frame| pair.frames.push_front(frame));
        at
    }

    /// The next message of a machine's hypervisor.
    pub fn poll_message(&mut self, now: Instant, vm: Vm) -> Option<(A, u32, Message)> {
        let vnic = &mut self.vnics[vm];
        let said = vnic.last_words.pop_front().or_else(|| vnic.reception.poll_message()).or_else(|| {
            let (at, channel, message) = vnic.poll_pairs(now)?;
            Some((vnic.pairs[at].destination, channel, message))
        });
        self.made += u64::from(said.is_some());
        said
    }

    /// The machine's next frame that has a credit and `may` be sent; its destinations take turns. Also returns the
    /// sockets that may go on.
    pub fn poll_frame(&mut self, vm: Vm, may: impl FnMut(&T) -> bool) -> Option<(T, Vec<u32>)> {
        let vnic = &mut self.vnics[vm];
        let at = vnic.next_to_send(may)?;
        let pair = &mut vnic.pairs[at];
        let frame = pair.frames.pop_front()?;
        pair.transmission.on_sent();
        pair.outgoing -= 1;
        vnic.outgoing -= 1;
        self.waiting -= 1;
        let takes = vnic.takes(vnic.pairs[at].outgoing, self.config.waiting);
        let freed = if takes { core::mem::take(&mut vnic.pairs[at].parked) } else { Vec::new() };
        vnic.change(at);
        Some((frame, freed))
    }

    // The receiver.

    /// Accepts a frame that arrived with its credit; it waits in its machine's receive queue.
    ///
    /// # Errors
    /// The frame, when it has no credit.
    pub fn receive(&mut self, now: Instant, vm: Vm, from: A, frame: R) -> Result<(), R> {
        let vnic = &mut self.vnics[vm];
        if vnic.reception.on_frame(now, from).is_err() {
            self.wake(vm);
            return Err(frame);
        }
        vnic.rx.push_back(frame);
        Ok(())
    }
    /// Whether a machine has frames to take.
    pub fn has_received(&self, vm: Vm) -> bool {
        !self.vnics[vm].rx.is_empty()
    }
    /// The next frame for a machine to take.
    pub fn first(&self, vm: Vm) -> Option<&R> {
        self.vnics[vm].rx.front()
    }
    /// Takes a machine's next frame out of the queue. The frame counts as queued until it has
    /// [departed](Credits::on_departure).
    pub fn take(&mut self, vm: Vm) -> Option<R> {
        self.vnics[vm].rx.pop_front()
    }
    /// Notes that a machine has taken a frame: there is room for another.
    pub fn on_departure(&mut self, now: Instant, vm: Vm) {
        self.vnics[vm].reception.on_departure(now);
        self.wake_for_news(now, vm);
    }

    // Time.

    /// A machine's next deadline, if it is earlier than the one last returned.
    pub fn arm(&mut self, vm: Vm) -> Option<Instant> {
        let vnic = &mut self.vnics[vm];
        let reception = vnic.reception.poll_timeout();
        if vnic.earliest_repetition().min(reception.unwrap_or(Instant::MAX)) >= vnic.armed_at {
            return None;
        }
        let (mut earliest, mut quiet_until) = (reception.unwrap_or(Instant::MAX), Instant::MAX);
        for pair in vnic.active.iter().map(|&at| &vnic.pairs[at]) {
            let at = pair.transmission.poll_timeout().unwrap_or(Instant::MAX);
            earliest = earliest.min(at);
            quiet_until = if pair.is_changed { quiet_until } else { quiet_until.min(at) };
        }
        vnic.quiet_until = quiet_until;
        (earliest < vnic.armed_at).then(|| {
            vnic.armed_at = earliest;
            earliest
        })
    }
    /// A machine's deadline, as far as it is known to the caller.
    pub fn armed_at(&self, vm: Vm) -> Instant {
        self.vnics[vm].armed_at
    }
    /// Handles the deadline returned by [`Credits::arm`].
    pub fn handle_timeout(&mut self, now: Instant, vm: Vm) {
        self.vnics[vm].armed_at = Instant::MAX;
        self.vnics[vm].reception.handle_timeout(now);
        self.wake(vm);
    }
}

/// The channel number after `ended`, but not before `free`.
fn later(free: u32, ended: u32) -> u32 {
    let next = ended.wrapping_add(1);
    if is_before(free, next) { next } else { free }
}

/// Whether a channel's number is before another's, modulo 2^32.
fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

#[cfg(test)]
mod tests;
