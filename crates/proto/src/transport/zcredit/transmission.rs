//! Who sends: Algorithm 5.1.

use super::{Message, QUEUE_MAX, smooth};
use crate::time::{Duration, Instant};
use sluicenet_wire::seq::SeqNumber;

/// Who waits for longer than so many times what it usually does may have been lost, or its answer.
const PATIENCE: u64 = 4;

/// But no later than after so many times as where answers are quick: one request in that time costs little, and one that was lost much.
const PATIENT_AT_MOST: u64 = 8;

/// How one VM asks another for credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionConfig {
    /// Frames that make it ask for more while it still waits for others; the first is always asked for at once.
    pub batch: u32,
    /// Who waits and hears nothing asks again after so long at least, and then after twice as long each time. Where it takes long until one
    /// is granted, after four times that, and eight times `resync` at most.
    pub resync: Duration,
    /// The longest time between two such requests.
    pub resync_max: Duration,
}

impl Default for TransmissionConfig {
    fn default() -> TransmissionConfig {
        TransmissionConfig { batch: 8, resync: Duration::from_ms(1), resync_max: Duration::from_ms(100) }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmissionCounters {
    /// Requests sent, for whatever reason.
    pub requests: u64,
    /// Those among them that repeated one because nothing was heard.
    pub repeated: u64,
    /// Credits returned, because there was no frame for them any more.
    pub returned: u64,
    /// Times the receiver ended the channel and another began.
    pub resets: u64,
    /// Messages of another channel, or older than what is known.
    pub stale: u64,
    /// Grants of more than was asked for: not believed.
    pub absurd: u64,
}

/// One VM's frames for another, and the credits for them. It counts frames; the caller has them.
#[derive(Clone, Debug)]
pub struct Transmission {
    config: TransmissionConfig,
    channel: u32,
    /// Totals since the channel began, from its number on.
    wanted: SeqNumber,
    spent: SeqNumber,
    granted: SeqNumber,
    /// From 0.
    returned: u32,
    /// Frames that wait (`tx_occupancy`). What is wanted beyond it and beyond what is spent is returned as it is granted.
    waiting: u32,
    /// The last total that was asked for (`cdt_requested` is what it is ahead of `granted`).
    asked: SeqNumber,
    asked_at: Instant,
    /// When it first asked for what it has not been granted, or was granted a part of it last; and for how long it waits then, smoothed.
    waits_since: Instant,
    waited: Duration,
    /// Times it asked again since it was granted something, and since anything was heard.
    tries: u32,
    unheard: u32,
    /// A request is due whatever has been asked for.
    speak: bool,
    counters: TransmissionCounters,
}

impl Transmission {
    /// A channel without frames. Of two channels between the same VMs the one with the later number, modulo 2^32, counts: whoever
    /// begins anew, after a restart for instance, takes a later one.
    pub fn new(config: TransmissionConfig, channel: u32) -> Transmission {
        let from = SeqNumber(channel);
        Transmission {
            config,
            channel,
            wanted: from,
            spent: from,
            granted: from,
            returned: 0,
            waiting: 0,
            asked: from,
            asked_at: Instant::ZERO,
            waits_since: Instant::ZERO,
            waited: Duration::ZERO,
            tries: 0,
            unheard: 0,
            speak: false,
            counters: TransmissionCounters::default(),
        }
    }

    /// Its number.
    pub fn channel(&self) -> u32 {
        self.channel
    }
    /// Frames that wait.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }
    /// Credits for frames.
    #[inline(always)]
    pub fn credits(&self) -> u32 {
        self.granted.since(self.spent) as u32
    }
    /// Times it asked again since anything was heard of the receiver's hypervisor, which answers even when it has nothing to grant.
    pub fn unheard(&self) -> u32 {
        self.unheard
    }
    /// What happened.
    pub fn counters(&self) -> TransmissionCounters {
        self.counters
    }

    /// A frame came, and waits.
    #[inline]
    pub fn on_arrival(&mut self) {
        self.waiting += 1;
        // Less what is to come for frames that are gone.
        let needed = self.spent + self.waiting;
        if needed > self.wanted {
            self.wanted = needed;
        }
    }

    /// Whether the first of the frames that wait may be sent.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.waiting > 0 && self.credits() > 0
    }

    /// It was sent.
    #[inline]
    pub fn on_sent(&mut self) {
        assert!(self.may_send(), "sent without a frame or a credit");
        self.waiting -= 1;
        self.spent = self.spent + 1;
    }

    /// So many of the frames that wait are gone without having been sent: their credits are returned, as soon as they are there.
    pub fn on_withdrawn(&mut self, frames: u32) {
        assert!(frames <= self.waiting);
        self.waiting -= frames;
        self.give_back();
    }

    /// So many frames that were sent come back and wait again, in front of those that do. The channel that they were sent in has ended,
    /// and their credits with it.
    pub fn on_restored(&mut self, frames: u32) {
        self.waiting += frames;
        let needed = self.spent + self.waiting;
        if needed > self.wanted {
            self.wanted = needed;
        }
    }

    /// The connection by which frames went, and credits for them were promised, has ended, and so many of its frames come back and wait
    /// again. Whoever is there now may have promised nothing: another channel begins. What to say about the last one, of which nothing
    /// comes any more where `all` its frames went that way. Nothing where none of its frames or credits is left.
    pub fn on_disconnected(&mut self, restored: u32, all: bool) -> Option<(u32, Message)> {
        if restored == 0 && self.waiting == 0 && self.credits() == 0 {
            return None;
        }
        self.waiting += restored;
        // The receiver counts what has come; earlier than this nothing can be promised.
        let spent = if all { self.granted - QUEUE_MAX } else { self.spent };
        let said = (self.channel, Message::Close { spent: spent.0, returned: self.returned });
        self.begin_anew(self.channel);
        Some(said)
    }

    /// Its VM is gone, and so are all its frames: what to say last.
    pub fn close(self) -> (u32, Message) {
        let returned = self.returned.wrapping_add(self.credits());
        (self.channel, Message::Close { spent: self.granted.0, returned })
    }

    /// What the receiver's hypervisor says. Whether frames may be sent now that could not be before.
    pub fn receive(&mut self, now: Instant, channel: u32, message: &Message) -> bool {
        let could = self.may_send();
        if channel == self.channel {
            self.unheard = 0;
        }
        match *message {
            _ if channel != self.channel => self.counters.stale += 1,
            Message::Grant { granted } => self.on_grant(now, SeqNumber(granted)),
            Message::Probe => self.speak = true,
            Message::Reset { last } => self.begin_anew(last),
            // From one who sends: of no concern here.
            Message::Request { .. } | Message::Close { .. } => self.counters.absurd += 1,
        }
        self.may_send() && !could
    }

    fn on_grant(&mut self, now: Instant, granted: SeqNumber) {
        if granted > self.wanted {
            self.counters.absurd += 1;
            if self.is_blocked() {
                // It remembers one who had this number before, and would answer this one with that one's totals for ever.
                self.begin_anew(self.channel);
            }
        } else if granted > self.granted {
            let waited = now.since(self.waits_since);
            self.waited = if self.waited == Duration::ZERO { waited } else { smooth(self.waited, waited) };
            (self.granted, self.tries, self.waits_since) = (granted, 0, now);
            self.give_back();
        } else {
            // The receiver is there, and has nothing to grant.
            self.counters.stale += 1;
        }
    }

    /// Returns credits that there is no frame for.
    fn give_back(&mut self) {
        let surplus = self.credits().saturating_sub(self.waiting);
        if surplus > 0 {
            self.spent = self.spent + surplus;
            self.returned = self.returned.wrapping_add(surplus);
            self.counters.returned += u64::from(surplus);
            self.speak = true;
        }
    }

    /// Another channel, later than this one and than `last`, which the receiver remembers.
    fn begin_anew(&mut self, last: u32) {
        let (config, waiting, waited, counters) = (self.config, self.waiting, self.waited, self.counters);
        let later = if SeqNumber(last) > SeqNumber(self.channel) { last } else { self.channel };
        *self = Transmission::new(config, later.wrapping_add(1));
        (self.waiting, self.wanted, self.waited, self.counters) = (waiting, self.wanted + waiting, waited, counters);
        self.counters.resets += 1;
        // The receiver has to learn of it, or what it keeps for the last one stays where it is.
        self.speak = true;
    }

    /// Who waits without a credit.
    fn is_blocked(&self) -> bool {
        self.credits() == 0 && self.waiting > 0
    }

    fn patience(&self) -> Duration {
        let Duration(least) = self.config.resync;
        let usual =
            Duration(self.waited.0.saturating_mul(PATIENCE).clamp(least, least.saturating_mul(PATIENT_AT_MOST)));
        usual.saturating_mul(1 << self.tries.min(31)).min(self.config.resync_max)
    }

    /// What there is to say, once.
    pub fn poll_message(&mut self, now: Instant) -> Option<(u32, Message)> {
        let more = self.wanted.since(self.asked) as u32;
        // What was asked for has been granted, or enough has come since.
        let asks = more > 0 && (self.granted >= self.asked || more >= self.config.batch);
        let again = !asks && !self.speak && self.poll_timeout().is_some_and(|at| at <= now);
        if !(asks || again || self.speak) {
            return None;
        }
        if again {
            self.tries += 1;
            self.unheard += 1;
            self.counters.repeated += 1;
        }
        if self.granted >= self.asked {
            self.waits_since = now;
        }
        (self.asked, self.asked_at, self.speak) = (self.wanted, now, false);
        self.counters.requests += 1;
        let (wanted, spent, granted) = (self.wanted.0, self.spent.0, self.granted.0);
        Some((self.channel, Message::Request { wanted, spent, granted, returned: self.returned }))
    }

    /// When it asks again, unless something is heard.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.is_blocked().then(|| self.asked_at.saturating_add(self.patience()))
    }
}
