//! The guest's side: when its agent sends messages, and when it reads the sockets again.
//!
//! A mark is answered at once. A guest with much room sends little else: its switch sends a mark when half of the grant is
//! used. An agent with little room reads the sockets often and tells the switch when there is more room.

use crate::time::{Duration, Instant};

/// The shortest and the longest time between two reads of the sockets of a guest with little room.
const LOOK_AGAIN: Duration = Duration::from_us(250);
const LOOK_AT_LEAST: Duration = Duration::from_ms(5);
/// Messages per lifetime of a grant, even without a change.
const BEATS: u64 = 10;
/// A guest has little room if it has less than this fraction of the maximum.
const LITTLE: u32 = 4;

/// Marks that may be incomplete at the same time: queues overtake each other.
const MARKS_KEPT: usize = 8;

/// The marks that a guest has seen. A part of each mark comes through each receive queue.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Numbers, and a bit for each received part; newest first.
    parts: [Option<(u64, u64)>; MARKS_KEPT],
    last: Option<u64>,
}

impl Marks {
    /// Takes part `part` (from 0) of `parts` (up to 64) of a mark; returns whether it completed the newest mark.
    pub fn take(&mut self, number: u64, part: u8, parts: u8) -> bool {
        let at = match self.parts.iter().position(|seen| seen.is_some_and(|(n, _)| n == number)) {
            Some(at) => at,
            None => {
                self.parts.rotate_right(1);
                self.parts[0] = Some((number, 0));
                0
            }
        };
        let Some((_, seen)) = &mut self.parts[at] else { return false };
        *seen |= 1u64.checked_shl(part.into()).unwrap_or(0);
        if seen.count_ones() < parts.into() {
            return false;
        }
        // An overtaken mark is no news; a restarted switch counts from any number.
        let is_newest = self.last.is_none_or(|last| last.wrapping_sub(number) > MARKS_KEPT as u64);
        if is_newest {
            self.last = Some(number);
        }
        is_newest
    }

    /// The newest complete mark; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last.unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Said {
    number: u64,
    frames: u32,
    at: Instant,
}

/// The state of an agent: its last message and its last reading.
#[derive(Clone, Debug)]
pub struct Talk {
    most: u32,
    beat: Duration,
    said: Option<Said>,
    /// The room found at the last reading, and the pause while it stays the same.
    found: u32,
    pause: Duration,
}

impl Talk {
    /// An agent that has sent nothing. `most` is the maximum room, `lifetime` that of a grant.
    pub fn new(most: u32, lifetime: Duration) -> Talk {
        Talk { most, beat: Duration(lifetime.0 / BEATS), said: None, found: most, pause: LOOK_AGAIN }
    }

    fn is_little(&self, frames: u32) -> bool {
        frames < (self.most / LITTLE).max(1)
    }

    /// The agent has seen mark `number` and found room for `frames`; returns whether it should report them.
    pub fn find(&mut self, now: Instant, number: u64, frames: u32) -> bool {
        self.pause = match frames == self.found {
            true => Duration((2 * self.pause.0).min(LOOK_AT_LEAST.0)),
            false => LOOK_AGAIN,
        };
        self.found = frames;
        self.said.is_none_or(|said| {
            said.number != number
                || now.since(said.at) >= self.beat
                || (self.is_little(said.frames) && frames > said.frames)
        })
    }

    /// The report was sent.
    pub fn say(&mut self, now: Instant, number: u64, frames: u32) {
        self.said = Some(Said { number, frames, at: now });
    }

    /// How long to wait for a mark before the next reading.
    pub fn pause(&self, now: Instant) -> Duration {
        let Some(said) = self.said else { return self.pause };
        let beat = Duration(self.beat.0.saturating_sub(now.since(said.at).0));
        if self.is_little(said.frames) { Duration(beat.0.min(self.pause.0)) } else { beat }
    }

    /// Like [`Talk::pause`], after a report that could not be sent.
    pub fn pause_unsent(&self) -> Duration {
        self.pause
    }
}
