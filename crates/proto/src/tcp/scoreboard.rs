//! The peer's bytes beyond the cumulative acknowledgment (RFC 6675, 3 and 4).

use alloc::vec::Vec;

/// Duplicate acknowledgments that mean a loss (RFC 5681, 3.2; RFC 6675, 2).
pub(super) const DUP_THRESH: u32 = 3;

/// Ranges kept: SACK is advice and may be forgotten, and a peer that acknowledges every other byte must not buy memory.
const MAX_RANGES: usize = 512;

/// Sorted, disjoint, not adjacent ranges that are acknowledged selectively, all above the cumulative acknowledgment.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    ranges: Vec<(u64, u64)>,
    sacked: u32,
}

impl Scoreboard {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.sacked == 0
    }

    /// The first, the middle and the last range, for a caller that prefetches memory.
    #[inline(always)]
    pub(super) fn lines(&self) -> [*const u8; 3] {
        super::lines(&self.ranges)
    }

    /// Bytes acknowledged selectively.
    #[inline(always)]
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// End of the furthest bytes that are acknowledged selectively.
    pub(super) fn highest(&self) -> Option<u64> {
        self.ranges.last().map(|r| r.1)
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
        self.sacked = 0;
    }

    /// Adds `[left, right)`; returns the bytes that were not known before.
    pub(super) fn insert(&mut self, left: u64, right: u64) -> u32 {
        if left >= right {
            return 0;
        }
        let first = self.ranges.partition_point(|r| r.1 < left);
        let last = first + self.ranges[first..].partition_point(|r| r.0 <= right);
        if first == last {
            if self.ranges.len() >= MAX_RANGES {
                return 0;
            }
            self.ranges.insert(first, (left, right));
            let new = (right - left) as u32;
            self.sacked += new;
            return new;
        }
        let known: u64 = self.ranges[first..last].iter().map(|r| r.1 - r.0).sum();
        let merged = (left.min(self.ranges[first].0), right.max(self.ranges[last - 1].1));
        self.ranges[first] = merged;
        self.ranges.drain(first + 1..last);
        let new = (merged.1 - merged.0 - known) as u32;
        self.sacked += new;
        new
    }

    /// Forgets everything below the cumulative acknowledgment.
    pub(super) fn advance(&mut self, una: u64) {
        let gone = self.ranges.partition_point(|r| r.1 <= una);
        for r in self.ranges.drain(..gone) {
            self.sacked -= (r.1 - r.0) as u32;
        }
        if let Some(first) = self.ranges.first_mut() {
            if first.0 < una {
                self.sacked -= (una - first.0) as u32;
                first.0 = una;
            }
        }
    }

    /// The range that holds `position`, or the first above it.
    #[inline]
    fn at(&self, position: u64) -> Option<(u64, u64)> {
        self.ranges.get(self.ranges.partition_point(|r| r.1 <= position)).copied()
    }

    /// Skips acknowledged bytes from `position` on. Returns the start of the next hole, and its end if a range follows.
    #[inline]
    pub(super) fn hole_from(&self, position: u64) -> (u64, Option<u64>) {
        match self.at(position) {
            None => (position, None),
            Some((left, _)) if left > position => (position, Some(left)),
            Some((_, right)) => (right, self.at(right).map(|r| r.0)),
        }
    }

    /// Whether the range at the very edge of the cumulative acknowledgment is known to have arrived: a contradiction.
    pub(super) fn starts_at(&self, una: u64) -> bool {
        self.ranges.first().is_some_and(|r| r.0 <= una)
    }

    /// The highest hole in `[una, end)`.
    pub(super) fn last_hole(&self, una: u64, end: u64) -> Option<(u64, u64)> {
        let mut end = end;
        for &(left, right) in self.ranges.iter().rev() {
            if right < end {
                return Some((right, end));
            }
            end = end.min(left);
        }
        (una < end).then_some((una, end))
    }

    /// Bytes acknowledged selectively below `position`.
    pub(super) fn sacked_below(&self, position: u64) -> u32 {
        if self.ranges.last().is_none_or(|r| r.1 <= position) {
            return self.sacked;
        }
        self.ranges.iter().take_while(|r| r.0 < position).map(|r| (r.1.min(position) - r.0) as u32).sum()
    }

    /// IsLost (RFC 6675, 4): everything not acknowledged below the position returned counts as lost, because
    /// `DUP_THRESH` ranges, or more than `DUP_THRESH - 1` segments' worth of bytes, arrived above it. With it come the
    /// bytes acknowledged from there on.
    pub(super) fn lost_below(&self, mss: u32) -> Option<(u64, u32)> {
        let (mut count, mut bytes) = (0, 0);
        for &(left, right) in self.ranges.iter().rev() {
            count += 1;
            bytes += (right - left) as u32;
            if count >= DUP_THRESH || bytes > (DUP_THRESH - 1) * mss {
                return Some((left, bytes));
            }
        }
        None
    }
}
