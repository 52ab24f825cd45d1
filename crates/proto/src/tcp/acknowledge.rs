//! Handling of an acknowledgment: window, RTT, congestion window, and duplicates.

use super::congestion::{Ack, Congestion, Echo, Signal};
use super::types::Received;
use super::{Config, Mode, Tcp};
use crate::time::{Duration, Instant};
use sluicenet_wire::tcp::{Flags, Segment};

impl Tcp {
    /// An acceptable acknowledgment of `acked` bytes beyond `snd_una`, zero for none.
    pub(super) fn on_ack(
        &mut self,
        cfg: &Config,
        now: Instant,
        seg: &Segment,
        start: i64,
        acked: u32,
        received: &mut Received,
    ) {
        let window_before = self.snd_wnd;
        let seq = (self.rcv_nxt as i64 + start).max(0) as u64;
        self.update_window(seg.window, seq, self.snd_una + u64::from(acked));
        // An answer to a probe: the peer lives.
        if self.snd_nxt == self.snd_una {
            self.retries = 0;
        }
        let sacked_before = self.scoreboard.sacked();
        let newly_sacked = self.take_sack_blocks(seg, acked);
        if acked != 0 {
            let echo = seg.timestamps.map(|(_, echo)| echo);
            self.on_new_ack(cfg, now, echo, acked, seg.flags.contains(Flags::ECE), false);
            received.set(Received::ACKED);
        } else if self.is_duplicate(seg, newly_sacked, window_before) {
            self.on_duplicate_ack(cfg, now);
        }
        if self.mode == Mode::Fast && cfg.prr && self.sack_ok {
            let delivered = i64::from(acked) + i64::from(self.scoreboard.sacked()) - i64::from(sacked_before);
            self.reduce_proportionally(delivered.max(0) as u32);
        }
        if self.ecn_ok && seg.flags.contains(Flags::ECE) {
            self.on_ecn_echo(now, acked);
        }
        if self.fin_queued && self.snd_una > self.snd_end {
            self.on_fin_acked(cfg, now, received);
        }
        self.check_persist(cfg, now);
    }

    /// The peer's window (RFC 9293, 3.10.7.4). Of acknowledgments with equal numbers, the larger window counts: they
    /// may have overtaken each other, and a window does not shrink.
    #[inline(always)]
    pub(super) fn update_window(&mut self, field: u16, seq: u64, ack: u64) {
        let wnd = u32::from(field) << self.snd_shift;
        let newer = self.snd_wl1 < seq
            || (self.snd_wl1 == seq && (self.snd_wl2 < ack || (self.snd_wl2 == ack && wnd > self.snd_wnd)));
        if newer {
            (self.snd_wl1, self.snd_wl2, self.snd_wnd) = (seq, ack, wnd);
            self.max_snd_wnd = self.max_snd_wnd.max(wnd);
        }
    }

    /// A sample from the echoed timestamp (RFC 7323, 4), or from the timed segment.
    #[inline(always)]
    pub(super) fn take_rtt_sample(&mut self, cfg: &Config, now: Instant, echo: Option<u32>) -> Option<Duration> {
        let sample = match echo {
            Some(echo) if self.timestamps_ok => {
                let ticks = cfg.timestamp(now).wrapping_sub(echo);
                // Zero is no echo; an echo from the future is invalid.
                (echo != 0 && ticks as i32 >= 0).then(|| cfg.tick.saturating_mul(u64::from(ticks)))
            }
            _ => self.rtt.timed(self.snd_una, now, cfg.tick),
        }?;
        self.rtt.sample(cfg, sample);
        self.stats.rtt_samples += 1;
        self.stats.rtt_sum = self.stats.rtt_sum.saturating_add(sample);
        self.stats.rtt_min = self.stats.rtt_min.min(sample);
        Some(sample)
    }

    /// New data is acknowledged; `echo` is the echoed timestamp, `ece` the echo of a mark. On a connection on which
    /// everything is `usual`, the fields of loss recovery are not read: they are in other cache lines.
    #[inline(always)]
    pub(super) fn on_new_ack(
        &mut self,
        cfg: &Config,
        now: Instant,
        echo: Option<u32>,
        acked: u32,
        ece: bool,
        usual: bool,
    ) {
        let mode = if usual { Mode::Open } else { self.mode };
        let flight = if usual { (self.snd_nxt - self.snd_una) as u32 } else { self.flight() };
        if self.send_buf < cfg.max_buffer && cfg.auto_buffer {
            self.adapt_send_buffer(cfg);
        }
        self.snd_una += u64::from(acked);
        self.snd_nxt = self.snd_nxt.max(self.snd_una);
        if !usual {
            (self.retries, self.dup_acks) = (0, 0);
        }
        let rtt = self.take_rtt_sample(cfg, now, echo);
        if !usual && (mode != Mode::Open || !self.scoreboard.is_empty()) {
            self.on_new_ack_recovering(now, acked);
        } else {
            self.arm_or_stop(now);
        }
        if mode == Mode::Fast || ece {
            return;
        }
        let mss = u32::from(self.mss);
        let room = self.window.cwnd.saturating_sub(flight);
        // In slow start the window exceeds the bytes in flight by the growth of one acknowledgment.
        let limited = room < mss || (self.window.in_slow_start() && room <= flight);
        let ack = Ack {
            now,
            bytes: acked,
            mss,
            rtt,
            srtt: self.rtt.srtt(),
            una: self.snd_una,
            sent: self.snd_nxt,
            limited,
            after_timeout: mode == Mode::Loss,
        };
        self.controller.on_ack(&mut self.window, &ack);
    }

    /// The timer starts anew with each new acknowledgment and stops when all is acknowledged (RFC 6298, 5.2 and 5.3).
    #[inline(always)]
    pub(super) fn arm_or_stop(&mut self, now: Instant) {
        if self.snd_una == self.snd_max {
            self.main_at = Instant::MAX;
        } else {
            self.arm_retransmit(now);
        }
    }

    /// Whether an acknowledgment is a duplicate: with SACK, new blocks make it one (RFC 6675, 2), otherwise RFC 5681,
    /// 2.
    fn is_duplicate(&self, seg: &Segment, newly_sacked: u32, window_before: u32) -> bool {
        if self.snd_una == self.snd_max {
            return false;
        }
        if self.sack_ok {
            return newly_sacked != 0;
        }
        seg.seq_len() == 0 && self.snd_wnd == window_before
    }

    /// The sender's half of ECN (RFC 3168, 6.1.2): as for a loss, once per window of data.
    fn on_ecn_echo(&mut self, now: Instant, acked: u32) {
        if acked != 0 {
            self.controller.on_echo(&Echo { bytes: acked, una: self.snd_una, sent: self.snd_nxt });
        }
        let flight = ((self.snd_max - self.snd_una) as u32 + acked).min(self.window.cwnd);
        if self.snd_una <= self.reduced_until || self.mode != Mode::Open || flight == 0 {
            return;
        }
        let mss = u32::from(self.mss);
        let congestion = Congestion { now, flight, mss, signal: Signal::Ecn };
        self.window.ssthresh = self.controller.on_congestion(&self.window, &congestion).max(2 * mss);
        self.window.cwnd = self.window.cwnd.min(self.window.ssthresh);
        self.reduced_until = self.snd_max;
        self.cwr_due = true;
        self.stats.ecn_reductions += 1;
    }
}
