//! What part of the frames that come is one source's.

/// Counted over so many frames of all, by their number and not by a clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Frames of all that had come when counting began.
    since: u64,
    came: u64,
    /// Of as many as are looked at, when it was last counted.
    last: u32,
}

impl Share {
    pub fn new(arrived: u64) -> Share {
        Share { since: arrived, came: 0, last: 0 }
    }

    /// One of this source came.
    #[inline(always)]
    pub fn on_frame(&mut self) {
        self.came += 1;
    }

    /// Those of it among the last `frames` of all: as counted last, or since, where that is more already.
    pub fn among(&mut self, frames: u32, arrived: u64) -> u32 {
        let passed = arrived - self.since;
        if passed >= u64::from(frames) {
            let last = (self.came * u64::from(frames) / passed) as u32;
            *self = Share { last, ..Share::new(arrived) };
        }
        self.last.max(self.came as u32)
    }
}
