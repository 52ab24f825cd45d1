//! Data that arrived out of order: its ranges and their number of segments, never bytes.

use alloc::vec::Vec;
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::tcp::SackBlocks;

/// A run of bytes that waits for earlier bytes.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    segments: u32,
    /// Arrival count at the run's last growth: the latest run is reported first (RFC 2018, 4).
    stamp: u32,
}

/// Sorted, disjoint, not adjacent runs; the segments in them are bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Reassembly {
    runs: Vec<Run>,
    segments: u32,
    stamp: u32,
}

impl Reassembly {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.segments == 0
    }

    /// The first, the middle and the last run, for a caller that prefetches memory.
    #[inline(always)]
    pub(super) fn lines(&self) -> [*const u8; 3] {
        super::lines(&self.runs)
    }

    /// Whether all of `[start, end)` has arrived.
    pub(super) fn contains(&self, start: u64, end: u64) -> bool {
        let at = self.runs.partition_point(|r| r.end <= start);
        self.runs.get(at).is_some_and(|r| r.start <= start && end <= r.end)
    }

    /// The end of the run that contains this position.
    pub(super) fn end_of(&self, at: u64) -> Option<u64> {
        let run = self.runs.get(self.runs.partition_point(|r| r.end <= at))?;
        (run.start <= at).then_some(run.end)
    }

    /// Adds the segment `[start, end)`; false if the queue is full and it must be dropped.
    pub(super) fn insert(&mut self, start: u64, end: u64, limit: u16) -> bool {
        self.stamp = self.stamp.wrapping_add(1);
        let first = self.runs.partition_point(|r| r.end < start);
        if let Some(run) = self.runs.get_mut(first) {
            if run.start <= start && end <= run.end {
                run.stamp = self.stamp;
                return true;
            }
        }
        if self.segments >= u32::from(limit) {
            return false;
        }
        self.segments += 1;
        let last = first + self.runs[first..].partition_point(|r| r.start <= end);
        let mut run = Run { start, end, segments: 1, stamp: self.stamp };
        if first == last {
            self.runs.insert(first, run);
            return true;
        }
        run.start = start.min(self.runs[first].start);
        run.end = end.max(self.runs[last - 1].end);
        run.segments += self.runs[first..last].iter().map(|r| r.segments).sum::<u32>();
        self.runs[first] = run;
        self.runs.drain(first + 1..last);
        true
    }

    /// Removes the runs that are in order now that everything below `next` has arrived. Returns the new end of the
    /// in-order data.
    pub(super) fn advance(&mut self, next: u64) -> u64 {
        let mut next = next;
        let mut gone = 0;
        for run in &self.runs {
            if run.start > next {
                break;
            }
            next = next.max(run.end);
            self.segments -= run.segments;
            gone += 1;
        }
        self.runs.drain(..gone);
        next
    }

    /// The three runs that grew last, the latest first (RFC 2018, 4).
    pub(super) fn blocks(&self, irs: u32) -> SackBlocks {
        let mut latest: [Option<&Run>; 3] = [None; 3];
        for run in &self.runs {
            let age = |r: &Run| self.stamp.wrapping_sub(r.stamp);
            let mut carried = Some(run);
            for slot in &mut latest {
                match (*slot, carried) {
                    (Some(old), Some(new)) if age(old) <= age(new) => {}
                    (_, None) => break,
                    _ => core::mem::swap(slot, &mut carried),
                }
            }
        }
        let mut blocks = SackBlocks::EMPTY;
        for run in latest.iter().flatten() {
            blocks.push(SeqNumber(irs) + run.start as u32, SeqNumber(irs) + run.end as u32);
        }
        blocks
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.segments = 0;
    }
}
