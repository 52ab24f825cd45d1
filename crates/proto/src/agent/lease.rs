//! The switch's side: what an agent granted, and for how long.

use crate::time::{Duration, Instant};

/// How long a machine that comes is held for its agent to say something: one that runs answers in far less, and one that boots
/// has none yet.
pub const GRACE: Duration = Duration::from_ms(50);
/// When a mark that was not answered is followed by another.
pub const MARK_AGAIN: Duration = Duration::from_ms(5);
/// The longest lifetime of a grant.
pub const LIFETIME_MAX: Duration = Duration::from_secs(10);
/// A grant is good for so many of its lifetimes while what the guest sends, the agent's word among it, is itself held back.
const EXCUSES: u64 = 3;
/// Frames of one grant.
pub const ROOM_MAX: u32 = 1 << 16;
/// Marks of which an answer is taken: late ones are as good.
const MARKS_KEPT: usize = 8;

/// What happened, in frames and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounters {
    /// Grants that came.
    pub grants: u64,
    /// Those among them that answered no mark of this port.
    pub unmatched: u64,
    /// Marks sent.
    pub marks: u64,
    /// Times the guest had been handed all that was granted.
    pub exhausted: u64,
    /// Times the agent was not heard of any more, and the port no longer limited.
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A machine has come: held until then.
    Starting { until: Instant, at: u64 },
    /// Nobody limits it.
    Open,
    /// No more than so many frames may have been handed over.
    Leased { limit: u64 },
}

/// What a port may hand over. All counts are of the port's own frames, marks left out, since it was made; 64 bits never wrap.
#[derive(Clone, Debug)]
pub struct Lease {
    state: State,
    /// Number of the last mark, and how much had been handed over before it, newest first.
    marks: [Option<(u64, u64)>; MARKS_KEPT],
    next: u64,
    marked_at: Instant,
    /// When the first mark was sent of those that are not answered.
    unanswered: Option<Instant>,
    /// Somebody spoke who has to be sent a mark first.
    wanted: bool,
    room: u32,
    lifetime: Duration,
    heard: Instant,
    expires: Instant,
    was_exhausted: bool,
    /// What happened.
    pub counters: LeaseCounters,
}

impl Lease {
    /// Nobody limits it. Marks are numbered from `first`, at random, so that no answer to a switch before this one fits.
    pub fn new(first: u64) -> Lease {
        Lease {
            state: State::Open,
            marks: [None; MARKS_KEPT],
            next: first,
            marked_at: Instant::ZERO,
            unanswered: None,
            wanted: false,
            room: 0,
            lifetime: Duration::ZERO,
            heard: Instant::ZERO,
            expires: Instant::ZERO,
            was_exhausted: false,
            counters: LeaseCounters::default(),
        }
    }

    /// A machine has come, whose agent may or may not be there.
    pub fn start(&mut self, now: Instant, handed: u64) {
        self.state = State::Starting { until: now.saturating_add(GRACE), at: handed };
        self.marks = [None; MARKS_KEPT];
        (self.wanted, self.unanswered) = (true, None);
    }

    /// How many frames may have been handed over.
    pub fn limit(&self) -> u64 {
        match self.state {
            State::Starting { at, .. } => at,
            State::Open => u64::MAX,
            State::Leased { limit } => limit,
        }
    }

    /// Frames that may still be handed over, when an agent says.
    pub fn granted(&self, handed: u64) -> Option<u64> {
        match self.state {
            State::Leased { limit } => Some(limit.saturating_sub(handed)),
            _ => None,
        }
    }

    /// The agent says it has `room` behind mark `number`, to be believed for `lifetime`, or that it leaves.
    ///
    /// What it once had room for stays good: only its own reading of sockets changes that, and upwards. So grants may be lost,
    /// doubled and out of order.
    pub fn on_grant(&mut self, now: Instant, number: u64, room: u32, lifetime: Duration) {
        self.counters.grants += 1;
        if lifetime == Duration::ZERO {
            self.open();
            return;
        }
        let Some(at) = self.marks.iter().flatten().position(|&(n, _)| n == number) else {
            self.counters.unmatched += 1;
            // An agent that came just now, or one that was there before the switch.
            self.wanted |= !matches!(self.state, State::Leased { .. });
            self.hear(now);
            return;
        };
        let Some((_, before)) = self.marks[at] else { return };
        if at == 0 {
            self.unanswered = None;
        }
        self.room = room.min(ROOM_MAX);
        let limit = before.saturating_add(self.room.into());
        self.state = match self.state {
            State::Leased { limit: known } => State::Leased { limit: limit.max(known) },
            State::Starting { .. } | State::Open => State::Leased { limit },
        };
        self.lifetime = Duration(lifetime.0.min(LIFETIME_MAX.0));
        self.hear(now);
    }

    /// It is there; but one that sees no marks cannot say more for ever.
    fn hear(&mut self, now: Instant) {
        if self.unanswered.is_none_or(|since| now.since(since) < self.lifetime) {
            self.heard = now;
            self.expires = now.saturating_add(self.lifetime);
        }
    }

    /// The guest's own frames are held back, and what its agent says behind them.
    pub fn excuse(&mut self, now: Instant) {
        let longest = self.heard.saturating_add(self.lifetime.saturating_mul(EXCUSES));
        let until = Instant(now.saturating_add(self.lifetime).0.min(longest.0));
        self.expires = self.expires.max(until);
    }

    /// Looks at the clock; whether the agent was lost, just now.
    pub fn poll(&mut self, now: Instant, handed: u64) -> bool {
        match self.state {
            State::Starting { until, .. } if now >= until => {
                self.open();
                false
            }
            State::Leased { .. } if now >= self.expires => {
                self.open();
                self.counters.lost += 1;
                true
            }
            State::Leased { limit } => {
                let exhausted = handed >= limit;
                self.counters.exhausted += u64::from(exhausted && !self.was_exhausted);
                self.was_exhausted = exhausted;
                false
            }
            _ => false,
        }
    }

    fn open(&mut self) {
        self.state = State::Open;
        // An answer to one of them would bring back what was granted long ago.
        self.marks = [None; MARKS_KEPT];
        (self.wanted, self.unanswered, self.was_exhausted) = (false, None, false);
    }

    /// Whether a mark is to be sent: when half of what was granted is gone, so that the answer is there before the rest is.
    pub fn wants_mark(&self, now: Instant, handed: u64) -> bool {
        let again = now.since(self.marked_at) >= MARK_AGAIN;
        match self.state {
            State::Open => self.wanted && again,
            State::Starting { .. } => self.wanted || again,
            State::Leased { limit } => {
                let last = self.marks[0].map_or(0, |(_, before)| before);
                match self.unanswered {
                    Some(_) => again,
                    None => handed > last && limit.saturating_sub(handed) <= u64::from(self.room / 2),
                }
            }
        }
    }

    /// The number of the mark that is sent next.
    pub fn next_mark(&self) -> u64 {
        self.next
    }

    /// A mark is sent now, behind all that was `handed` over; its number.
    pub fn mark(&mut self, now: Instant, handed: u64) -> u64 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.marks.rotate_right(1);
        self.marks[0] = Some((number, handed));
        self.marked_at = now;
        self.wanted = false;
        if matches!(self.state, State::Leased { .. }) {
            self.unanswered = self.unanswered.or(Some(now));
        }
        self.counters.marks += 1;
        number
    }
}
