//! Deadlines: the main timer (retransmission, window probe, TIME-WAIT) and the delayed acknowledgment.

use super::congestion::{Congestion, Signal};
use super::types::{End, State};
use super::{Config, Mode, Tcp, Timer};
use crate::time::Instant;

impl Tcp {
    /// The earliest deadline.
    #[inline(always)]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let at = self.deadline();
        if at == Instant::MAX { None } else { Some(at) }
    }

    /// The same; [`Instant::MAX`] when there is none.
    #[inline(always)]
    pub fn deadline(&self) -> Instant {
        self.main_at.min(self.delack_at)
    }

    /// Handles expired deadlines; a call before the deadline has no effect.
    pub fn handle_timeout(&mut self, cfg: &Config, now: Instant) {
        if self.delack_at <= now {
            self.delack_at = Instant::MAX;
            self.ack_now = true;
        }
        if self.main_at <= now && self.main_at != Instant::MAX {
            match self.timer {
                Timer::Retransmit => self.on_retransmission_timeout(cfg, now),
                Timer::Persist => self.on_persist_timeout(cfg),
                Timer::TimeWait => self.drop_connection(End::Orderly),
            }
            self.predict();
        }
    }

    /// Arms the retransmission timer anew (RFC 6298, 5.1 and 5.3).
    #[inline(always)]
    pub(super) fn arm_retransmit(&mut self, now: Instant) {
        self.timer = Timer::Retransmit;
        self.main_at = now.saturating_add(self.rtt.rto());
    }

    fn on_retransmission_timeout(&mut self, cfg: &Config, now: Instant) {
        self.stats.timeouts += 1;
        self.stats.timeout_wait += self.rtt.rto() + now.since(self.main_at);
        self.main_at = Instant::MAX;
        self.retries = self.retries.saturating_add(1);
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        if self.retries > if opening { cfg.syn_retries } else { cfg.max_retries } {
            self.close_with_reset(self.state != State::SynSent, End::TimedOut);
            return;
        }
        self.rtt.back_off(cfg);
        self.rtt.stop_timing();
        if opening {
            self.syn_retransmitted = true;
            self.snd_nxt = 0;
            return;
        }
        if self.snd_wnd == 0 && self.snd_una < self.snd_end {
            // The peer took its window back. This is no congestion; a probe asks when the window opens (RFC 9293,
            // 3.8.6.1).
            self.snd_nxt = self.snd_una;
            (self.mode, self.dup_acks, self.rexmit_una) = (Mode::Open, 0, false);
            self.scoreboard.clear();
            self.probe_due = true;
            return;
        }
        self.enter_loss(now);
    }

    /// RFC 5681, 3.1 and RFC 6675, 5.1: the threshold is half of the bytes in flight, the window is one segment, and
    /// all unacknowledged bytes are sent again.
    fn enter_loss(&mut self, now: Instant) {
        let mss = u32::from(self.mss);
        let flight = self.flight();
        // A second timeout without progress says nothing new (RFC 5681, 3.1), nor does a timeout that ends fast
        // recovery. The threshold has been set for this window of data. Most outstanding bytes are lost then, so they
        // are no measure, and could let the threshold rise. Linux, tcp_enter_loss, has the same rule.
        if self.retries <= 1 && self.mode != Mode::Fast {
            let congestion = Congestion { now, flight, mss, signal: Signal::Timeout };
            self.window.ssthresh = self.controller.on_congestion(&self.window, &congestion).max(2 * mss);
        } else {
            self.controller.on_repeated_timeout();
        }
        self.window.cwnd = mss;
        // Selective acknowledgments are kept, unless the peer seems to have dropped their data (RFC 2018, 8). The peer
        // then leaves a range at the very edge unacknowledged, or retransmissions bring no progress.
        if self.retries > 1 || self.scoreboard.starts_at(self.snd_una) {
            self.scoreboard.clear();
        }
        self.mode = Mode::Loss;
        (self.dup_acks, self.rexmit_una, self.pipe) = (0, false, 0);
        self.snd_nxt = self.snd_una;
        self.recover = self.snd_max;
        self.reduced_until = self.snd_max;
        self.cwr_due = self.ecn_ok;
    }

    /// Probes the closed window, until the peer answers or seems dead (RFC 1122, 4.2.2.17).
    fn on_persist_timeout(&mut self, cfg: &Config) {
        self.main_at = Instant::MAX;
        if self.next_data(cfg).is_some() {
            return;
        }
        self.retries = self.retries.saturating_add(1);
        if self.retries > cfg.max_retries {
            self.close_with_reset(true, End::TimedOut);
            return;
        }
        self.rtt.back_off(cfg);
        self.probe_due = true;
    }

    /// Arms the probe of a window that permits no data while no data is in flight. Disarms the probe when the window
    /// has opened.
    pub(super) fn check_persist(&mut self, cfg: &Config, now: Instant) {
        let waiting = self.snd_nxt == self.snd_una && self.snd_nxt < self.snd_end && self.can_send();
        let probing = self.timer == Timer::Persist && self.main_at != Instant::MAX;
        if !waiting || (self.main_at != Instant::MAX && !probing) {
            return;
        }
        if self.next_data(cfg).is_none() {
            if !probing && !self.probe_due {
                self.timer = Timer::Persist;
                self.main_at = now.saturating_add(self.rtt.rto());
            }
        } else {
            self.probe_due = false;
            if probing {
                self.main_at = Instant::MAX;
                self.rtt.end_backoff(cfg);
            }
        }
    }
}
