//! Closing: in order from either side or both, by reset, by giving up (RFC 9293, 3.6 and 3.10).

use super::types::{End, Received, State, Urgent};
use super::{Config, Tcp, Timer};
use crate::time::Instant;
use sluicenet_wire::tcp::{Flags, Segment};

impl Tcp {
    /// The application sends no more: a FIN follows its written bytes. The application may continue to read.
    pub fn close(&mut self, _cfg: &Config, _now: Instant) {
        match self.state {
            State::Listen => self.drop_connection(End::Orderly),
            State::SynSent if self.snd_end == 1 => self.drop_connection(End::Orderly),
            State::SynSent | State::SynReceived => self.fin_queued = true,
            State::Established => {
                self.fin_queued = true;
                self.state = State::FinWait1;
            }
            State::CloseWait => {
                self.fin_queued = true;
                self.state = State::LastAck;
            }
            _ => {}
        }
        self.predict();
    }

    /// The application gives up: `poll_transmit` returns the RST for the peer, and no other segment.
    pub fn abort(&mut self) {
        let reset = matches!(
            self.state,
            State::SynReceived
                | State::Established
                | State::CloseWait
                | State::FinWait1
                | State::FinWait2
                | State::Closing
                | State::LastAck
        );
        self.close_with_reset(reset, End::Aborted);
        self.predict();
    }

    /// Closes, with a RST to the peer if it may know of the connection.
    pub(super) fn close_with_reset(&mut self, reset: bool, end: End) {
        if self.state == State::Closed {
            return;
        }
        let (seq, ack) = (self.wire_seq(self.snd_max), self.wire_ack());
        self.drop_connection(end);
        if reset {
            (self.urgent, self.rst_seq) = (Urgent::Reset, seq.0);
            (self.rst_has_ack, self.rst_ack) = (true, ack.0);
        }
    }

    /// The connection is gone.
    pub(super) fn drop_connection(&mut self, end: End) {
        self.state = State::Closed;
        self.end = end;
        self.main_at = Instant::MAX;
        self.delack_at = Instant::MAX;
        self.ack_now = false;
        self.ack_pending = 0;
        self.rexmit_una = false;
        self.probe_due = false;
        self.scoreboard.clear();
        self.reassembly.clear();
    }

    /// Answers a segment of no connection (RFC 9293, 3.10.7.1).
    pub(super) fn reply_reset(&mut self, seg: &Segment) {
        if seg.flags.contains(Flags::RST) {
            return;
        }
        self.urgent = Urgent::Reset;
        if seg.flags.contains(Flags::ACK) {
            (self.rst_seq, self.rst_has_ack) = (seg.ack.0, false);
        } else {
            (self.rst_seq, self.rst_has_ack, self.rst_ack) = (0, true, (seg.seq + seg.seq_len()).0);
        }
    }

    /// The peer's FIN has come, in order.
    pub(super) fn on_fin(&mut self, cfg: &Config, now: Instant, received: &mut Received) {
        self.rcv_nxt += 1;
        // The FIN takes no room in the buffer, so it is taken even where the window ends.
        self.rcv_adv = self.rcv_adv.max(self.rcv_nxt);
        self.fin_received = true;
        self.reassembly.clear();
        self.ack_now = true;
        received.set(Received::PEER_CLOSED);
        match self.state {
            State::SynReceived | State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(cfg, now),
            _ => {}
        }
    }

    /// Our FIN is acknowledged.
    pub(super) fn on_fin_acked(&mut self, cfg: &Config, now: Instant, received: &mut Received) {
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.enter_time_wait(cfg, now),
            State::LastAck => {
                self.drop_connection(End::Orderly);
                received.set(Received::CLOSED);
            }
            _ => {}
        }
    }

    /// Waits, or waits again because the peer's FIN came once more (RFC 9293, 3.10.7.4).
    pub(super) fn enter_time_wait(&mut self, cfg: &Config, now: Instant) {
        self.state = State::TimeWait;
        self.timer = Timer::TimeWait;
        self.main_at = now.saturating_add(cfg.time_wait);
    }
}
