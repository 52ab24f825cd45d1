//! The guest's side: when its agent speaks, and when it looks again.
//!
//! A mark is answered at once. A guest with room needs no more: its switch sends a mark when half of what was granted is gone. One
//! that has little left is looked at often, and its switch told when there is more.

use crate::time::{Duration, Instant};

/// The shortest and the longest time between two looks at a guest that has little room.
const LOOK_AGAIN: Duration = Duration::from_us(250);
const LOOK_AT_LEAST: Duration = Duration::from_ms(5);
/// It speaks so many times in the lifetime of its word, whatever happens.
const BEATS: u64 = 10;
/// A guest with less than this part of the most there can be has little room.
const LITTLE: u32 = 4;

/// Marks of which some parts are on their way: queues overtake each other.
const MARKS_KEPT: usize = 8;

/// The marks a guest has seen, of which a part comes through each of its receive queues.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Numbers, and a bit for each part that came; newest first.
    parts: [Option<(u64, u64)>; MARKS_KEPT],
    last: u64,
}

impl Marks {
    /// A part (from 0) of a mark of so many (up to 64) has come; whether that was the last missing part of the newest mark.
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
        // One that was overtaken says nothing new; a switch that was restarted counts from anywhere.
        let behind = self.last.wrapping_sub(number);
        let is_newest = behind > MARKS_KEPT as u64;
        if is_newest {
            self.last = number;
        }
        is_newest
    }

    /// The newest mark of which all parts came; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }
}

#[derive(Clone, Copy, Debug)]
struct Said {
    number: u64,
    frames: u32,
    at: Instant,
}

/// What an agent said last.
#[derive(Clone, Debug)]
pub struct Talk {
    most: u32,
    beat: Duration,
    said: Option<Said>,
    /// What it found when it last looked, and how long it waits while that stays so.
    found: u32,
    pause: Duration,
}

impl Talk {
    /// Nothing has been said. `most` is the most room there can be, `lifetime` that of a word.
    pub fn new(most: u32, lifetime: Duration) -> Talk {
        Talk { most, beat: Duration(lifetime.0 / BEATS), said: None, found: most, pause: LOOK_AGAIN }
    }

    fn is_little(&self, frames: u32) -> bool {
        frames < (self.most / LITTLE).max(1)
    }

    /// It has seen mark `number` and found room for so many frames; whether it should say so.
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

    /// It was said, and sent.
    pub fn say(&mut self, now: Instant, number: u64, frames: u32) {
        self.said = Some(Said { number, frames, at: now });
    }

    /// How long to wait for a mark before it looks again.
    pub fn pause(&self, now: Instant) -> Duration {
        let Some(said) = self.said else { return self.pause };
        let beat = Duration(self.beat.0.saturating_sub(now.since(said.at).0));
        if self.is_little(said.frames) { Duration(beat.0.min(self.pause.0)) } else { beat }
    }

    /// The same when what was to be said could not be sent.
    pub fn pause_unsent(&self) -> Duration {
        self.pause
    }
}
