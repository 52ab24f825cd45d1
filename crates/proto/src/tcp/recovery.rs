//! Loss detection and recovery: RFC 6675 with SACK, RFC 6582 without.
//!
//! Both count bytes in flight in `pipe` and leave `cwnd` at the threshold. RFC 6582 inflates the window instead: each
//! duplicate acknowledgment adds a segment. A partial acknowledgment subtracts its bytes and adds a segment. Both give
//! the same sum: each duplicate takes a segment out of the pipe, a partial acknowledgment another, and the
//! retransmission is not counted.

use super::congestion::{Congestion, Signal};
use super::scoreboard::DUP_THRESH;
use super::{Config, Mode, Tcp};
use crate::time::Instant;
use sluicenet_wire::tcp::Segment;

impl Tcp {
    /// Puts SACK blocks on the scoreboard. Returns the number of newly acknowledged bytes. Blocks at or below the
    /// cumulative acknowledgment (duplicate reports, RFC 2883) and blocks of unsent bytes are ignored.
    pub(super) fn take_sack_blocks(&mut self, seg: &Segment, acked: u32) -> u32 {
        if !self.sack_ok {
            return 0;
        }
        let una = self.wire_seq(self.snd_una);
        let sent = self.snd_max.min(self.snd_end);
        let mut new = 0;
        for &(left, right) in seg.sack.as_slice() {
            let (left, right) = (i64::from(left.since(una)), i64::from(right.since(una)));
            if left <= i64::from(acked) || left >= right || self.snd_una + right as u64 > sent {
                continue;
            }
            new += self.scoreboard.insert(self.snd_una + left as u64, self.snd_una + right as u64);
        }
        new
    }

    /// New data is acknowledged during recovery, or while other bytes are acknowledged selectively.
    #[cold]
    pub(super) fn on_new_ack_recovering(&mut self, now: Instant, acked: u32) {
        self.scoreboard.advance(self.snd_una);
        match self.mode {
            Mode::Open => self.arm_or_stop(now),
            Mode::Fast if self.snd_una >= self.recover => self.leave_fast(now),
            Mode::Fast => self.on_partial_ack(now, acked),
            Mode::Loss => {
                if self.snd_una >= self.recover {
                    self.mode = Mode::Open;
                }
                self.update_pipe();
                self.arm_or_stop(now);
            }
        }
    }

    /// All bytes outstanding at the detection of the loss are acknowledged.
    fn leave_fast(&mut self, now: Instant) {
        self.mode = Mode::Open;
        self.rexmit_una = false;
        self.window.cwnd = self.window.ssthresh;
        if !self.sack_ok {
            // No burst into an empty pipe (RFC 6582, 3.2, step 3, option 1).
            let mss = u32::from(self.mss);
            let flight = (self.snd_nxt - self.snd_una) as u32;
            self.window.cwnd = self.window.ssthresh.min(flight.max(mss) + mss);
        }
        self.arm_or_stop(now);
    }

    /// The first hole is filled, and another hole shows.
    fn on_partial_ack(&mut self, now: Instant, acked: u32) {
        if self.sack_ok {
            self.update_pipe();
            self.arm_retransmit(now);
            return;
        }
        // The next hole is lost as well (RFC 6582, 3.2, step 3).
        let mss = u32::from(self.mss);
        self.pipe = self.pipe.saturating_sub(mss.min(acked));
        self.rexmit_una = true;
        if !self.partial_seen {
            // Only the first partial acknowledgment restarts the timer. Many holes are then left to the timeout
            // ("impatient" variant, 4).
            self.partial_seen = true;
            self.arm_retransmit(now);
        }
    }

    /// Handles an acknowledgment of a segment that overtook another.
    #[cold]
    pub(super) fn on_duplicate_ack(&mut self, cfg: &Config, now: Instant) {
        let mss = u32::from(self.mss);
        match self.mode {
            Mode::Fast if !self.sack_ok => self.pipe = self.pipe.saturating_sub(mss),
            Mode::Fast | Mode::Loss => self.update_pipe(),
            Mode::Open => {
                self.dup_acks = self.dup_acks.saturating_add(1);
                let lost = u32::from(self.dup_acks) >= DUP_THRESH
                    || self.scoreboard.lost_below(mss).is_some_and(|(edge, _)| edge > self.snd_una);
                // Not allowed after a timeout before all bytes outstanding at the timeout are acknowledged. Without
                // SACK the very edge is ambiguous: its duplicates may stem from retransmissions (RFC 6582, 3.2, step 2
                // and 4.1).
                let allowed = if self.sack_ok { self.snd_una >= self.recover } else { self.snd_una > self.recover };
                if lost && allowed {
                    self.enter_fast(cfg, now);
                }
            }
        }
    }

    /// RFC 6675, 5, step 4; RFC 6582, 3.2, step 2.
    fn enter_fast(&mut self, _cfg: &Config, now: Instant) {
        let mss = u32::from(self.mss);
        let outstanding = (self.snd_max - self.snd_una) as u32;
        if self.snd_una > self.reduced_until {
            // Bytes that limited transmit sent beyond the window do not count (RFC 5681, 3.2, step 2).
            let flight = outstanding.min(self.window.cwnd);
            let congestion = Congestion { now, flight, mss, signal: Signal::Loss };
            self.window.ssthresh = self.controller.on_congestion(&self.window, &congestion).max(2 * mss);
        } else {
            // ECN has reduced the window for this window of data already (RFC 3168, 6.1.2).
            self.window.ssthresh = self.window.cwnd.max(2 * mss);
        }
        self.window.cwnd = self.window.ssthresh;
        self.stats.fast_retransmits += 1;
        self.mode = Mode::Fast;
        self.recover = self.snd_max;
        self.reduced_until = self.snd_max;
        self.cwr_due = self.ecn_ok;
        self.high_rxt = self.snd_una;
        (self.rexmit_una, self.rescued, self.partial_seen) = (true, false, false);
        self.dup_acks = 0;
        if self.sack_ok {
            self.update_pipe();
        } else {
            self.pipe = outstanding.saturating_sub(DUP_THRESH * mss);
        }
        (self.recover_fs, self.prr_delivered, self.prr_out) = (outstanding, 0, 0);
        self.rtt.stop_timing();
        self.arm_retransmit(now);
    }

    /// Permits sending in proportion to the `delivered` bytes (RFC 6937, 3.1). Recovery then neither stops for half a
    /// round trip nor sends all lost bytes at once into the queue that has just overflowed.
    #[cold]
    pub(super) fn reduce_proportionally(&mut self, delivered: u32) {
        let mss = u32::from(self.mss);
        let ssthresh = self.window.ssthresh;
        self.resend_what_was_overtaken(mss);
        self.prr_delivered = self.prr_delivered.saturating_add(delivered);
        let allowed = if self.pipe > ssthresh {
            let share = u64::from(self.prr_delivered) * u64::from(ssthresh);
            let share = share.div_ceil(u64::from(self.recover_fs.max(1)));
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.prr_out)
        } else {
            // Slow start towards the threshold: the reduction bound of the RFC.
            let limit = self.prr_delivered.saturating_sub(self.prr_out).max(delivered).saturating_add(mss);
            (ssthresh - self.pipe).min(limit)
        };
        self.window.cwnd = self.pipe.saturating_add(allowed);
    }

    /// A retransmission is lost when enough bytes sent after it have arrived. RFC 6675 alone waits for the timer. RFC
    /// 8985 solves this; counted here in segments, as Linux did before it.
    fn resend_what_was_overtaken(&mut self, mss: u32) {
        let Some(highest) = self.scoreboard.highest() else { return };
        let beyond = (highest as u32).wrapping_sub(self.rexmit_mark) as i32;
        if self.high_rxt > self.snd_una && beyond > (DUP_THRESH * mss) as i32 {
            self.high_rxt = self.snd_una;
            self.rexmit_una = true;
            self.update_pipe();
        }
    }

    /// SetPipe (RFC 6675, 4): sent bytes that are neither acknowledged nor lost, and bytes that were sent again. After
    /// a timeout: bytes sent since, less acknowledged bytes.
    fn update_pipe(&mut self) {
        let una = self.snd_una;
        if self.mode != Mode::Fast {
            let sent = (self.snd_nxt - una) as u32;
            self.pipe = sent.saturating_sub(self.scoreboard.sacked_below(self.snd_nxt));
            return;
        }
        if !self.sack_ok {
            return;
        }
        let outstanding = ((self.snd_max - una) as u32).saturating_sub(self.scoreboard.sacked());
        let lost = match self.scoreboard.lost_below(u32::from(self.mss)) {
            Some((edge, above)) => ((edge - una) as u32).saturating_sub(self.scoreboard.sacked().saturating_sub(above)),
            None => 0,
        };
        let again = match self.high_rxt.saturating_sub(una) {
            0 => 0,
            sent => (sent as u32).saturating_sub(self.scoreboard.sacked_below(self.high_rxt)),
        };
        self.pipe = outstanding.saturating_sub(lost).saturating_add(again);
    }
}
