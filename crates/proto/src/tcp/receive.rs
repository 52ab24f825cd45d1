//! A segment comes in (RFC 9293, 3.10.7; RFC 7323, 5; RFC 5961).

use super::open::ECN_SETUP;
use super::types::{End, Received, State, Urgent};
use super::{Algorithm, Config, Plain, Tcp};
use crate::time::{Duration, Instant};
use sluicenet_wire::tcp::{Flags, Segment};

/// Shortest time between challenge acknowledgments (RFC 5961, 7; Linux's tcp_invalid_ratelimit): two ends that
/// disagree must not answer each other for ever. In units of 2^36 ps: 550 ms.
const CHALLENGE_INTERVAL: u32 = 8;

/// Where a segment lies, relative to the next byte expected.
struct Placed {
    start: i64,
    end: i64,
    fin: bool,
}

impl Tcp {
    /// Takes a segment in; `ce` tells whether its packet was marked CE.
    #[inline]
    pub fn receive(&mut self, cfg: &Config, now: Instant, seg: &Segment, ce: bool) -> Received {
        let plain = Plain::of(seg).and_then(|plain| self.receive_plain(cfg, now, &plain, ce));
        plain.unwrap_or_else(|| self.receive_any(cfg, now, seg, ce))
    }

    /// `value` becomes the timestamp to echo.
    #[inline(always)]
    pub(super) fn set_ts_recent(&mut self, value: u32, now: Instant) {
        self.ts_recent = value;
        self.ts_recent_at = (now.0 >> 40) as u32;
    }

    /// The next `len` bytes have arrived.
    #[inline(always)]
    pub(super) fn on_in_order(&mut self, cfg: &Config, now: Instant, echo: Option<u32>, len: u64) {
        self.rcv_nxt += len;
        self.acknowledged = false;
        self.ack_pending = self.ack_pending.saturating_add(1);
        match cfg.delayed_ack {
            Some(delay) if self.ack_pending < cfg.ack_every => {
                if self.delack_at == Instant::MAX {
                    self.delack_at = now.saturating_add(delay);
                }
            }
            _ => self.ack_now = true,
        }
        if self.recv_buf < cfg.max_buffer && cfg.auto_buffer {
            self.adapt_recv_buffer(cfg, now, echo);
        }
    }

    /// Any segment in any state.
    #[cold]
    #[inline(never)]
    fn receive_any(&mut self, cfg: &Config, now: Instant, seg: &Segment, ce: bool) -> Received {
        self.stats.segments_received = self.stats.segments_received.wrapping_add(1);
        self.acknowledged = false;
        let received = match self.state {
            State::Closed => {
                self.reply_reset(seg);
                Received::default()
            }
            State::Listen => {
                self.receive_listen(cfg, now, seg);
                Received::default()
            }
            State::SynSent => self.receive_syn_sent(cfg, now, seg),
            _ => self.receive_synchronised(cfg, now, seg, ce),
        };
        self.predict();
        received
    }

    fn receive_synchronised(&mut self, cfg: &Config, now: Instant, seg: &Segment, ce: bool) -> Received {
        let mut received = Received::default();
        let mut shifted;
        let mut seg = seg;
        if self.state == State::SynReceived && seg.flags.contains(Flags::SYN) && seg.seq.0 == self.irs {
            let acks_ours = seg.ack.0.wrapping_sub(self.iss) == 1 && self.snd_max == 1;
            if !seg.flags.contains(Flags::ACK) || !acks_ours {
                if !seg.flags.contains(Flags::RST) {
                    self.on_duplicate_syn(seg);
                }
                return received;
            }
            // The SYN-ACK of a simultaneous open: the SYN is known, so only the acknowledgment counts.
            self.ecn_ok &= seg.flags.0 & ECN_SETUP.0 == Flags::ECE.0 || seg.flags.contains(ECN_SETUP);
            shifted = *seg;
            shifted.seq = seg.seq + 1;
            shifted.flags = Flags(seg.flags.0 & !(Flags::SYN.0 | ECN_SETUP.0));
            seg = &shifted;
            self.ack_now = true;
        }

        let start = i64::from(seg.seq.0.wrapping_sub(self.irs.wrapping_add(self.rcv_nxt as u32)) as i32);
        let wnd = (self.rcv_adv - self.rcv_nxt) as i64;
        if seg.flags.contains(Flags::RST) {
            return self.on_rst(now, start, wnd);
        }
        if self.is_outdated(cfg, now, seg) {
            self.stats.paws_drops += 1;
            self.acknowledge_unacceptable(now, seg);
            return received;
        }
        if self.timestamps_ok && seg.timestamps.is_none() {
            // Timestamps, once agreed, are in every segment (RFC 7323, 3.2).
            return received;
        }
        if seg.flags.contains(Flags::SYN) {
            self.challenge(now);
            return received;
        }
        // Beyond the window, or so far below that it is no mere reordering (RFC 9293, 3.10.7.4).
        let reordered = i64::from(self.recv_buf.max(super::open::MAX_FIELD));
        if start > wnd || start < -reordered {
            self.acknowledge_unacceptable(now, seg);
            return received;
        }
        if !seg.flags.contains(Flags::ACK) {
            return received;
        }
        if self.state == State::SynReceived {
            if seg.ack.0.wrapping_sub(self.iss) != 1 || self.snd_max != 1 {
                self.reply_reset(seg);
                return received;
            }
            self.on_syn_acked(cfg, now, seg);
            received.set(Received::CONNECTED);
        }
        let ack = i64::from(seg.ack.0.wrapping_sub(self.wire_seq(self.snd_una).0) as i32);
        if ack > (self.snd_max - self.snd_una) as i64 || ack < -i64::from(self.max_snd_wnd) {
            self.challenge(now);
            return received;
        }
        if let Some((value, _)) = seg.timestamps {
            let newer = value.wrapping_sub(self.ts_recent) as i32 >= 0 || self.ts_recent_outdated(cfg, now);
            if newer && start <= 0 && (self.rcv_nxt as i64 + start) <= self.last_ack_sent as i64 {
                self.set_ts_recent(value, now);
            }
        }
        if ack >= 0 {
            self.on_ack(cfg, now, seg, start, ack as u32, &mut received);
            if self.state == State::Closed {
                return received;
            }
        }
        self.on_ecn(cfg, seg, ce);
        if seg.seq_len() != 0 {
            let end = start + i64::from(seg.len);
            let placed = Placed { start, end, fin: seg.flags.contains(Flags::FIN) };
            self.on_data(cfg, now, seg, placed, wnd, &mut received);
        }
        received
    }

    /// RFC 5961, 3.2: only a RST with the exact sequence number resets; elsewhere in the window it causes a challenge.
    /// TIME-WAIT is not cut short, since an old duplicate could do this (RFC 1337, 3).
    fn on_rst(&mut self, now: Instant, start: i64, wnd: i64) -> Received {
        let mut received = Received::default();
        if self.state == State::TimeWait {
            return received;
        }
        if start == 0 {
            self.drop_connection(End::Reset);
            received.set(Received::CLOSED);
        } else if start > 0 && start < wnd {
            self.challenge(now);
        }
        received
    }

    /// PAWS (RFC 7323, 5.3): the timestamp is older than that of the last acknowledged segment.
    fn is_outdated(&self, cfg: &Config, now: Instant, seg: &Segment) -> bool {
        let Some((value, _)) = seg.timestamps.filter(|_| self.timestamps_ok) else { return false };
        (value.wrapping_sub(self.ts_recent) as i32) < 0 && !self.ts_recent_outdated(cfg, now)
    }

    /// Whether the connection idled so long that the peer's clock may have wrapped (RFC 7323, 5.5): 24 days, or a
    /// quarter of the numbers at our own tick, which is finer than the standard expects.
    fn ts_recent_outdated(&self, cfg: &Config, now: Instant) -> bool {
        const LONGEST: Duration = Duration::from_secs(24 * 86_400);
        let limit = cfg.tick.saturating_mul(1 << 30).min(LONGEST);
        let idle = ((now.0 >> 40) as u32).wrapping_sub(self.ts_recent_at);
        u64::from(idle) << 40 > limit.0
    }

    /// Answers an unacceptable segment. A segment with data is answered at once: the peer has missed an acknowledgment,
    /// or probes. Other segments are answered no more often than by challenges.
    fn acknowledge_unacceptable(&mut self, now: Instant, seg: &Segment) {
        if seg.seq_len() != 0 {
            self.ack_now = true;
        } else {
            self.challenge(now);
        }
    }

    /// A challenge acknowledgment (RFC 5961), rationed.
    fn challenge(&mut self, now: Instant) {
        let at = (now.0 >> 36) as u32;
        if at >= self.challenge_at {
            self.challenge_at = at.saturating_add(CHALLENGE_INTERVAL);
            self.stats.challenge_acks += 1;
            self.ack_now = true;
        }
    }

    /// The receiver's half of ECN. A mark is echoed until the sender has reduced its window (RFC 3168, 6.1.3); for DCTCP
    /// acknowledgments echo exactly the segments that were marked.
    fn on_ecn(&mut self, cfg: &Config, seg: &Segment, ce: bool) {
        if !self.ecn_ok {
            return;
        }
        if cfg.congestion == Algorithm::Dctcp {
            if seg.len != 0 && ce != self.ecn_echo {
                self.change_echo(ce);
            }
            return;
        }
        if seg.flags.contains(Flags::CWR) {
            self.ecn_echo = false;
        }
        if ce && seg.len != 0 {
            self.ecn_echo = true;
        }
    }

    /// The first segment after others that were not marked alike (RFC 8257, 3.2): the others are acknowledged at once,
    /// with their own echo.
    fn change_echo(&mut self, ce: bool) {
        if self.ack_pending > 0 {
            // A second change before the acknowledgment is sent has nothing more to acknowledge.
            self.urgent = Urgent::PriorAck;
            self.prior_nxt = self.rcv_nxt as u32;
            self.ack_pending = 0;
            self.delack_at = Instant::MAX;
        }
        self.ecn_echo = ce;
    }

    /// Data and FIN of a segment that has not been ruled out.
    fn on_data(
        &mut self,
        cfg: &Config,
        now: Instant,
        seg: &Segment,
        placed: Placed,
        wnd: i64,
        received: &mut Received,
    ) {
        let Placed { mut start, mut end, mut fin } = placed;
        if self.state == State::TimeWait {
            self.enter_time_wait(cfg, now);
        }
        if self.fin_received || end + i64::from(fin) <= 0 {
            // Received before: the acknowledgment was lost, or is on its way.
            self.stats.duplicates += 1;
            self.ack_now = true;
            return;
        }
        if start < 0 {
            self.stats.duplicates += 1;
            self.ack_now = true;
            start = 0;
        }
        if end > wnd {
            // A probe, or a peer that does not respect the window.
            (end, fin) = (wnd, false);
            self.ack_now = true;
        }
        if fin && self.fin_at == u64::MAX {
            self.fin_at = self.rcv_nxt + end as u64;
        }
        let until = (self.fin_at - self.rcv_nxt).min(i64::MAX as u64) as i64;
        end = end.min(until);
        if start < end {
            if start == 0 {
                self.on_next(cfg, now, seg, end as u64);
                received.set(Received::READABLE);
            } else {
                let (from, to) = (self.rcv_nxt + start as u64, self.rcv_nxt + end as u64);
                // A duplicate acknowledgment for each (RFC 5681, 4.2).
                self.ack_now = true;
                if self.reassembly.contains(from, to) {
                    self.stats.duplicates += 1;
                }
                if !self.reassembly.insert(from, to, cfg.reassembly_limit) {
                    self.stats.reassembly_drops += 1;
                }
            }
        }
        if self.rcv_nxt >= self.fin_at {
            self.on_fin(cfg, now, received);
        }
    }

    /// In-order data, and the data that waited for it.
    fn on_next(&mut self, cfg: &Config, now: Instant, seg: &Segment, len: u64) {
        self.on_in_order(cfg, now, seg.timestamps.map(|(_, echo)| echo), len);
        if !self.reassembly.is_empty() {
            self.rcv_nxt = self.reassembly.advance(self.rcv_nxt).min(self.fin_at);
            // A segment that fills a hole is acknowledged at once (RFC 5681, 4.2).
            self.ack_now = true;
        }
    }
}
