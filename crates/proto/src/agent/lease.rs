//! The switch's side: the number of frames an agent granted, and the lifetime of the grant.

use crate::time::{Duration, Instant};

/// Time for which the port holds back frames for a new machine while its agent has not answered. A running agent answers
/// much faster; a machine that still boots has no agent.
pub const GRACE: Duration = Duration::from_ms(50);
/// Time after which another mark follows an unanswered one.
pub const MARK_AGAIN: Duration = Duration::from_ms(5);
/// The longest lifetime of a grant.
pub const LIFETIME_MAX: Duration = Duration::from_secs(10);
/// A grant lasts at most this many lifetimes while the port holds back the guest's own frames, the agent's messages among
/// them.
const EXCUSES: u64 = 3;
/// Frames of one grant.
pub const ROOM_MAX: u32 = 1 << 16;
/// Number of recent marks whose answers count: late answers are valid too.
const MARKS_KEPT: usize = 8;

/// Events of a port's lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounters {
    /// Grants received.
    pub grants: u64,
    /// Grants that answered no mark of this port.
    pub unmatched: u64,
    /// Marks sent.
    pub marks: u64,
    /// Times the guest had received all granted frames.
    pub exhausted: u64,
    /// Times the agent fell silent and the port stopped limiting the guest.
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A machine was just plugged in: the port holds back its frames until this time.
    Starting { until: Instant, at: u64 },
    /// No agent limits the guest.
    Open,
    /// The port may have handed over at most this many frames in total.
    Leased { limit: u64 },
}

/// The limit on the frames that a port may hand over. All counts are totals of the port's own frames since its creation,
/// without marks; 64 bits never wrap.
#[derive(Clone, Debug)]
pub struct Lease {
    state: State,
    /// Numbers of the latest marks, and frames handed over before each of them, newest first.
    marks: [Option<(u64, u64)>; MARKS_KEPT],
    next: u64,
    marked_at: Instant,
    /// Time of the oldest unanswered mark.
    unanswered: Option<Instant>,
    /// An agent sent a message, and the port has to send it a mark first.
    wanted: bool,
    room: u32,
    lifetime: Duration,
    heard: Instant,
    expires: Instant,
    was_exhausted: bool,
    /// Events so far.
    pub counters: LeaseCounters,
}

impl Lease {
    /// A lease without a limit. Marks are numbered from `first`, a random number, so that answers to an earlier switch do
    /// not match.
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

    /// A machine was plugged in; it may or may not have an agent.
    pub fn start(&mut self, now: Instant, handed: u64) {
        self.state = State::Starting { until: now.saturating_add(GRACE), at: handed };
        self.marks = [None; MARKS_KEPT];
        (self.wanted, self.unanswered) = (true, None);
    }

    /// Total number of frames that the port may have handed over.
    pub fn limit(&self) -> u64 {
        match self.state {
            State::Starting { at, .. } => at,
            State::Open => u64::MAX,
            State::Leased { limit } => limit,
        }
    }

    /// Frames that may still be handed over, if an agent limits them.
    pub fn granted(&self, handed: u64) -> Option<u64> {
        match self.state {
            State::Leased { limit } => Some(limit.saturating_sub(handed)),
            _ => None,
        }
    }

    /// The agent has `room` for frames behind mark `number`, valid for `lifetime`; a lifetime of zero means that it leaves.
    ///
    /// A granted room stays valid: only the guest's own reading of its sockets changes it, and only upwards. So grants may
    /// be lost, duplicated and reordered.
    pub fn on_grant(&mut self, now: Instant, number: u64, room: u32, lifetime: Duration) {
        self.counters.grants += 1;
        if lifetime == Duration::ZERO {
            self.open();
            return;
        }
        let Some(at) = self.marks.iter().flatten().position(|&(n, _)| n == number) else {
            self.counters.unmatched += 1;
            // Either the agent has just started, or it was running before the switch.
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

    /// The agent is alive, but its grants expire if it leaves marks unanswered for too long.
    fn hear(&mut self, now: Instant) {
        if self.unanswered.is_none_or(|since| now.since(since) < self.lifetime) {
            self.heard = now;
            self.expires = now.saturating_add(self.lifetime);
        }
    }

    /// The port holds back the guest's own frames, and with them the agent's messages.
    pub fn excuse(&mut self, now: Instant) {
        let longest = self.heard.saturating_add(self.lifetime.saturating_mul(EXCUSES));
        let until = Instant(now.saturating_add(self.lifetime).0.min(longest.0));
        self.expires = self.expires.max(until);
    }

    /// Checks the time; returns whether the agent has just been lost.
    pub fn poll(&mut self, now: Instant, handed: u64) -> bool {
        match self.state {
            State::Starting { until, .. } if now >= until => {
                // A slow agent can still answer later.
                self.state = State::Open;
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
        // An answer to an old mark would restore an outdated grant.
        self.marks = [None; MARKS_KEPT];
        (self.wanted, self.unanswered, self.was_exhausted) = (false, None, false);
    }

    /// Whether to send a mark: when half of the grant is used, so that the answer arrives before the other half is used.
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

    /// The number of the next mark.
    pub fn next_mark(&self) -> u64 {
        self.next
    }

    /// Records that a mark is sent now, after `handed` frames; returns its number.
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
