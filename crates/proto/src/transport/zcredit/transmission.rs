//! The sending half: Algorithm 5.1.

use super::{Message, QUEUE_MAX, smooth};
use crate::time::{Duration, Instant};
use sluicenet_wire::seq::SeqNumber;

/// A sender repeats its request after this many times its usual wait: the request or its answer may be lost.
const PATIENCE: u64 = 4;

/// Upper bound of the first wait where answers are slow, in multiples of `resync`. A repeated request costs little; a
/// lost one costs much.
const PATIENT_AT_MOST: u64 = 8;

/// How one VM asks another for credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionConfig {
    /// New frames that cause another request while an earlier request is still open. Without an open request, a new
    /// frame causes a request at once.
    pub batch: u32,
    /// Shortest wait before a sender without credits repeats its request. Each further wait is twice as long. Where
    /// grants usually take long, the first wait is four times the usual time, but at most eight times `resync`.
    pub resync: Duration,
    /// Longest time between two repeated requests.
    pub resync_max: Duration,
}

impl Default for TransmissionConfig {
    fn default() -> TransmissionConfig {
        TransmissionConfig { batch: 8, resync: Duration::from_ms(1), resync_max: Duration::from_ms(100) }
    }
}

/// Counters of one sending half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmissionCounters {
    /// Requests sent, for whatever reason.
    pub requests: u64,
    /// Requests that repeated an earlier one because no answer came.
    pub repeated: u64,
    /// Credits returned because their frames were withdrawn.
    pub returned: u64,
    /// New channels begun after the first one, for instance because the receiver ended the last one.
    pub resets: u64,
    /// Messages of another channel, or older than the known totals.
    pub stale: u64,
    /// Invalid messages: grants of more credits than were requested, and messages for a receiver.
    pub absurd: u64,
}

/// The frames of one VM for another VM, and their credits. It counts frames; the caller stores them.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Transmission {
    /// Totals since the channel began. They start at the channel's number.
    wanted: SeqNumber,
    spent: SeqNumber,
    granted: SeqNumber,
    /// The last requested total; `cdt_requested` is `asked - granted`.
    asked: SeqNumber,
    asked_at: Instant,
    /// Time from a request to its repetition, from `waited` and `tries`.
    patience: Duration,
    /// Waiting frames (`tx_occupancy`). Credits granted beyond the spent credits and the waiting frames are returned.
    waiting: u32,
    channel: u32,
    /// A request is due, even without new frames.
    speak: bool,
    /// `waits_since`: time of the first request not granted in full, or of its last partial grant. `waited`: smoothed
    /// time from `waits_since` to the next grant.
    waits_since: Instant,
    waited: Duration,
    /// `tries`: repeated requests since the last grant. `unheard`: repeated requests since the receiver's last message.
    tries: u32,
    unheard: u32,
    /// Total of returned credits. It starts at 0.
    returned: u32,
    config: TransmissionConfig,
    counters: TransmissionCounters,
}

impl Transmission {
    /// Returns a channel without frames. Of two channels between the same VMs, the later number (modulo 2^32) is valid.
    /// A sender that begins anew, for instance after a restart, takes a later number.
    pub fn new(config: TransmissionConfig, channel: u32) -> Transmission {
        let from = SeqNumber(channel);
        let mut transmission = Transmission {
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
            patience: Duration::ZERO,
            speak: false,
            counters: TransmissionCounters::default(),
        };
        transmission.set_patience();
        transmission
    }

    /// The channel's number.
    pub fn channel(&self) -> u32 {
        self.channel
    }
    /// Waiting frames.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }
    /// Unspent credits.
    #[inline(always)]
    pub fn credits(&self) -> u32 {
        self.granted.since(self.spent) as u32
    }
    /// Repeated requests since the last message of the receiver's hypervisor. It answers even without credits to grant.
    pub fn unheard(&self) -> u32 {
        self.unheard
    }
    /// The counters.
    pub fn counters(&self) -> TransmissionCounters {
        self.counters
    }

    /// A new frame waits.
    #[inline]
    pub fn on_arrival(&mut self) {
        self.waiting += 1;
        // Credits still to come for withdrawn frames count for new frames.
        let needed = self.spent + self.waiting;
        if needed > self.wanted {
            self.wanted = needed;
        }
    }

    /// Whether the first waiting frame may be sent.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.waiting > 0 && self.credits() > 0
    }

    /// The first waiting frame was sent.
    #[inline]
    pub fn on_sent(&mut self) {
        assert!(self.may_send(), "sent without a frame or a credit");
        self.waiting -= 1;
        self.spent = self.spent + 1;
    }

    /// `frames` waiting frames were withdrawn unsent. Their credits are returned as soon as they are granted.
    pub fn on_withdrawn(&mut self, frames: u32) {
        assert!(frames <= self.waiting);
        self.waiting -= frames;
        self.give_back();
    }

    /// `frames` sent frames come back and wait again, ahead of the other waiting frames. Their channel has ended, and
    /// its credits with it.
    pub fn on_restored(&mut self, frames: u32) {
        self.waiting += frames;
        let needed = self.spent + self.waiting;
        if needed > self.wanted {
            self.wanted = needed;
        }
    }

    /// The connection that carried frames and credits has ended, and `restored` of its frames wait again. The present
    /// receiver may have promised nothing, so another channel begins. `all` says that every frame of the old channel
    /// went over this connection, so none arrives any more. Returns the last message about the old channel, or `None`
    /// where no frames or credits are left.
    pub fn on_disconnected(&mut self, restored: u32, all: bool) -> Option<(u32, Message)> {
        if restored == 0 && self.waiting == 0 && self.credits() == 0 {
            return None;
        }
        self.waiting += restored;
        // The receiver counts arrived frames itself. No open promise is older than this total.
        let spent = if all { self.granted - QUEUE_MAX } else { self.spent };
        let said = (self.channel, Message::Close { spent: spent.0, returned: self.returned });
        self.begin_anew(self.channel);
        Some(said)
    }

    /// The sending VM is gone, and so are all its frames. Returns the last message.
    pub fn close(self) -> (u32, Message) {
        let returned = self.returned.wrapping_add(self.credits());
        (self.channel, Message::Close { spent: self.granted.0, returned })
    }

    /// Handles a message of the receiver's hypervisor. Returns whether frames may be sent now that could not be sent
    /// before.
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
            // Only receivers get these messages.
            Message::Request { .. } | Message::Close { .. } => self.counters.absurd += 1,
        }
        self.may_send() && !could
    }

    fn on_grant(&mut self, now: Instant, granted: SeqNumber) {
        if granted > self.wanted {
            self.counters.absurd += 1;
            if self.is_blocked() {
                // The receiver remembers an older channel of this number, and would answer with its totals for ever.
                self.begin_anew(self.channel);
            }
        } else if granted > self.granted {
            let waited = now.since(self.waits_since);
            self.waited = if self.waited == Duration::ZERO { waited } else { smooth(self.waited, waited) };
            (self.granted, self.tries, self.waits_since) = (granted, 0, now);
            self.set_patience();
            self.give_back();
        } else {
            // The receiver is alive and has nothing to grant.
            self.counters.stale += 1;
        }
    }

    /// Returns credits without a frame.
    fn give_back(&mut self) {
        let surplus = self.credits().saturating_sub(self.waiting);
        if surplus > 0 {
            self.spent = self.spent + surplus;
            self.returned = self.returned.wrapping_add(surplus);
            self.counters.returned += u64::from(surplus);
            self.speak = true;
        }
    }

    /// Begins a channel with a number later than the present one and later than `last`, which the receiver remembers.
    fn begin_anew(&mut self, last: u32) {
        let (config, waiting, waited, counters) = (self.config, self.waiting, self.waited, self.counters);
        let later = if SeqNumber(last) > SeqNumber(self.channel) { last } else { self.channel };
        *self = Transmission::new(config, later.wrapping_add(1));
        (self.waiting, self.wanted, self.waited, self.counters) = (waiting, self.wanted + waiting, waited, counters);
        self.set_patience();
        self.counters.resets += 1;
        // The receiver has to learn of the new channel, or it keeps the old channel's credits.
        self.speak = true;
    }

    /// Whether frames wait without a credit.
    #[inline(always)]
    fn is_blocked(&self) -> bool {
        self.credits() == 0 && self.waiting > 0
    }

    fn set_patience(&mut self) {
        let Duration(least) = self.config.resync;
        let usual =
            Duration(self.waited.0.saturating_mul(PATIENCE).clamp(least, least.saturating_mul(PATIENT_AT_MOST)));
        self.patience = usual.saturating_mul(1 << self.tries.min(31)).min(self.config.resync_max);
    }

    /// Returns the next message and its channel, if a message is due.
    #[inline]
    pub fn poll_message(&mut self, now: Instant) -> Option<(u32, Message)> {
        let more = self.wanted.since(self.asked) as u32;
        // The last request was granted in full, or enough frames came since.
        let asks = more > 0 && (self.granted >= self.asked || more >= self.config.batch);
        let again = !asks && !self.speak && self.poll_timeout().is_some_and(|at| at <= now);
        if !(asks || again || self.speak) {
            return None;
        }
        if again {
            self.tries += 1;
            self.set_patience();
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

    /// When the request is repeated, unless a message comes.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.is_blocked().then(|| self.asked_at.saturating_add(self.patience))
    }
}
