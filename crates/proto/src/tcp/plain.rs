//! Header prediction (Jacobson 1990): the common segments, in and out.
//!
//! On an open connection on which nothing is out of the ordinary, the next segment is known but for its numbers. One
//! comparison with a [`Prediction`] tells whether a segment is of this kind. The other files handle all others.

use super::types::{Received, State, Transmit, Urgent};
use super::{Config, Mode, Plain, Tcp};
use crate::time::Instant;
use sluicenet_wire::tcp::Flags;

/// Bits in which segments may differ from the prediction.
const UNPREDICTED: Flags = Flags::PSH;

/// Flags, options and mark of the next plain segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prediction(u16);

impl Prediction {
    /// No segment: a segment has eight flags, an option and a mark.
    pub(super) const NONE: Prediction = Prediction(u16::MAX);

    #[inline(always)]
    fn of(flags: Flags, has_timestamps: bool, ce: bool) -> Prediction {
        Prediction(u16::from(flags.0 & !UNPREDICTED.0) | u16::from(has_timestamps) << 8 | u16::from(ce) << 9)
    }
}

impl Tcp {
    /// Predicts the next segment. Called when anything has happened that may change the prediction.
    pub(super) fn predict(&mut self) {
        // A mark is an event if it differs from the mark that is echoed.
        let expected = Prediction::of(Flags::ACK, self.timestamps_ok, self.ecn_echo);
        self.prediction = if self.is_usual() { expected } else { Prediction::NONE };
    }

    /// Whether the connection is open and nothing on it is out of the ordinary.
    fn is_usual(&self) -> bool {
        self.state == State::Established
            && self.mode == Mode::Open
            && self.urgent == Urgent::No
            && (self.dup_acks, self.retries) == (0, 0)
            && !self.probe_due
            && self.fin_at == u64::MAX
            && self.scoreboard.is_empty()
            && self.reassembly.is_empty()
    }

    /// Whether the next segment is predicted, so that [`receive_plain`](Self::receive_plain) probably takes it.
    #[inline(always)]
    pub fn expects_a_plain_segment(&self) -> bool {
        self.prediction != Prediction::NONE
    }

    /// Takes a predicted segment in. `None`: the segment is another one, for [`receive`](Self::receive), and nothing has
    /// changed.
    #[inline(always)]
    pub fn receive_plain(&mut self, cfg: &Config, now: Instant, seg: &Plain, ce: bool) -> Option<Received> {
        let (value, echo) = seg.timestamps;
        let acked = seg.ack.0.wrapping_sub(self.wire_seq(self.snd_una).0);
        let in_flight = self.snd_max - self.snd_una;
        if Prediction::of(seg.flags, seg.has_timestamps, ce) != self.prediction
            || seg.seq != self.wire_ack()
            || (value.wrapping_sub(self.ts_recent) as i32) < 0
            || u64::from(acked) > in_flight
            || u64::from(seg.len) > self.rcv_adv - self.rcv_nxt
            // No new acknowledgment, no data, while data is out: a duplicate.
            || acked == 0 && seg.len == 0 && in_flight != 0
        {
            return None;
        }
        debug_assert!(self.is_usual());
        self.stats.segments_received = self.stats.segments_received.wrapping_add(1);
        let mut received = Received::default();
        if self.rcv_nxt <= self.last_ack_sent {
            self.set_ts_recent(value, now);
        }
        self.update_window(seg.window, self.rcv_nxt, self.snd_una + u64::from(acked));
        let echo = seg.has_timestamps.then_some(echo);
        if acked != 0 {
            self.on_new_ack(cfg, now, echo, acked, false, true);
            received.set(Received::ACKED);
        }
        if self.snd_nxt == self.snd_una && self.snd_nxt < self.snd_end {
            self.check_persist(cfg, now);
        }
        if seg.len != 0 {
            self.on_in_order(cfg, now, echo, u64::from(seg.len));
            received.set(Received::READABLE);
        }
        Some(received)
    }

    /// Whether there is a plain segment to send; `None` if that is not known here.
    #[inline(always)]
    pub(super) fn wants_plain(&self, cfg: &Config) -> Option<bool> {
        if self.prediction == Prediction::NONE {
            return None;
        }
        Some(self.ack_now || self.snd_nxt != self.snd_end && self.next_within(cfg, self.window.cwnd).is_some())
    }

    /// The next segment to send, if it is a plain one on a connection without anything out of the ordinary. `None`: there
    /// may be another one, from [`poll_transmit`](Self::poll_transmit), and nothing has changed.
    #[inline(always)]
    pub fn poll_plain(&mut self, cfg: &Config, now: Instant) -> Option<Transmit<Plain>> {
        if self.prediction == Prediction::NONE {
            return None;
        }
        let data = if self.snd_nxt == self.snd_end { None } else { self.next_within(cfg, self.window.cwnd) };
        if data.is_none() && !self.ack_now {
            return None;
        }
        debug_assert!(self.is_usual());
        self.stats.segments_sent = self.stats.segments_sent.wrapping_add(1);
        Some(match data {
            Some(data) => self.send_data(cfg, now, data),
            None => self.send_ack(cfg, now),
        })
    }
}
