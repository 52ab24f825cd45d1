//! The application's side of a connection, and the window it leaves to the peer.

use super::open::MAX_FIELD;
use super::types::State;
use super::{Config, Tcp};
use crate::time::Instant;
use sluicenet_wire::tcp::{Flags, Segment};

/// Steps in which adaptive buffers grow (FreeBSD 9, net.inet.tcp.sendbuf_inc and recvbuf_inc).
const SEND_STEP: u32 = 8 * 1024;
const RECV_STEP: u32 = 16 * 1024;

impl Tcp {
    /// The application writes. Returns the number of bytes that the send buffer took.
    pub fn send(&mut self, cfg: &Config, now: Instant, bytes: u64) -> u64 {
        let taken = bytes.min(self.send_space());
        if taken != 0 {
            let idle = self.main_at == Instant::MAX;
            self.snd_end += taken;
            if idle {
                self.check_persist(cfg, now);
            }
        }
        taken
    }

    /// Bytes the send buffer would take.
    pub fn send_space(&self) -> u64 {
        let open = matches!(self.state, State::SynSent | State::SynReceived | State::Established | State::CloseWait);
        if !open || self.fin_queued {
            return 0;
        }
        u64::from(self.send_buf).saturating_sub(self.snd_end - self.snd_una.max(1))
    }

    /// Bytes written and not yet acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.snd_end.saturating_sub(self.snd_una.max(1))
    }

    /// Bytes the application can read in order.
    #[inline]
    pub fn readable(&self) -> u64 {
        (self.rcv_nxt - u64::from(self.fin_received)).saturating_sub(self.rcv_read)
    }

    /// Returns the offset of a segment's payload in the peer's stream, which has to be near the last received bytes.
    /// Returns `None` while the peer's numbers are not known.
    pub fn offset_of(&self, seg: &Segment) -> Option<u64> {
        if self.state <= State::SynSent {
            return None;
        }
        let seq = seg.seq.0.wrapping_add(u32::from(seg.flags.contains(Flags::SYN)));
        let ahead = i64::from(seq.wrapping_sub(self.irs.wrapping_add(self.rcv_nxt as u32)) as i32);
        self.rcv_nxt.checked_add_signed(ahead)?.checked_sub(1)
    }

    /// Returns the end of the received bytes of the peer's stream that are without a gap from `offset` on, in order or
    /// out of order. Returns `offset` where its byte is missing.
    pub fn received_upto(&self, offset: u64) -> u64 {
        if offset < self.bytes_received() {
            return self.bytes_received();
        }
        self.reassembly.end_of(offset + 1).map_or(offset, |end| end - 1)
    }

    /// The application reads up to `max` bytes. Returns the number of bytes read. A window update may become due.
    #[inline]
    pub fn recv(&mut self, _cfg: &Config, _now: Instant, max: u64) -> u64 {
        let taken = max.min(self.readable());
        if taken == 0 {
            return 0;
        }
        self.rcv_read += taken;
        self.acknowledged = false;
        if self.ack_now {
            return taken;
        }
        let peer_sends = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if peer_sends && !self.fin_received {
            let offered = self.offer();
            let held = (self.rcv_adv - self.rcv_nxt) as u32;
            let gain = offered.saturating_sub(held);
            let (mss, buf) = (u32::from(self.mss), self.recv_buf);
            // The peer learns of space with the next acknowledgment anyway. A separate window update is worth sending
            // when the window opens much, or is nearly shut (FreeBSD, tcp_output).
            self.ack_now = gain >= buf / 2
                || (gain >= 2 * mss && (gain >= buf / 4 || held <= buf / 8))
                || (held < mss && gain >= mss);
        }
        taken
    }

    /// The window to offer: the free space, unless the edge would move by less than a segment or half the buffer
    /// (RFC 9293, 3.8.6.2.2); it never moves back.
    #[inline(always)]
    fn offer(&self) -> u32 {
        let buffered = (self.rcv_nxt - self.rcv_read) as u32;
        let free = self.recv_buf.saturating_sub(buffered);
        let held = (self.rcv_adv - self.rcv_nxt) as u32;
        if free >= held.saturating_add((self.recv_buf / 2).min(u32::from(self.mss))) { free } else { held }
    }

    /// The window field of the next segment; moves the right edge. A second call changes nothing.
    #[inline(always)]
    pub(super) fn advertise(&mut self) -> u16 {
        let field = (self.offer() >> self.rcv_shift).min(MAX_FIELD);
        self.rcv_adv = self.rcv_adv.max(self.rcv_nxt + u64::from(field << self.rcv_shift));
        field as u16
    }

    /// The receive buffer grows when more than 7/8 of it arrived within a round trip: the buffer may limit the peer
    /// (Crisan 2014, 2.5.3; FreeBSD 9, tcp_do_segment).
    #[inline(always)]
    pub(super) fn adapt_recv_buffer(&mut self, cfg: &Config, now: Instant, echo: Option<u32>) {
        let over = match echo {
            // The peer echoes a timestamp sent after the round began.
            Some(echo) => echo.wrapping_sub(self.round_ts) as i32 > 0,
            None => {
                let ticks = cfg.timestamp(now).wrapping_sub(self.round_ts);
                self.rtt.sampled() && cfg.tick.saturating_mul(u64::from(ticks)) > self.rtt.srtt()
            }
        };
        if over {
            if self.rcv_nxt - self.round_start > u64::from(self.recv_buf / 8 * 7) {
                self.recv_buf = (self.recv_buf + RECV_STEP).min(cfg.max_buffer);
            }
            self.round_ts = cfg.timestamp(now);
            self.round_start = self.rcv_nxt;
        }
    }

    /// The send buffer grows when it limits the sender. It is nearly full then, while the peer's window and the
    /// congestion window would let all of it out (Crisan 2014, 2.5.3; FreeBSD 9, tcp_output).
    #[inline(always)]
    pub(super) fn adapt_send_buffer(&mut self, cfg: &Config) {
        let buffered = self.snd_end.saturating_sub(self.snd_una);
        if buffered < u64::from(self.send_buf / 8 * 7) {
            return;
        }
        let window = u64::from(self.window.cwnd.min(self.snd_wnd));
        let unsent = self.snd_end.saturating_sub(self.snd_nxt);
        if u64::from(self.snd_wnd) * 5 / 4 >= u64::from(self.send_buf) && window >= unsent {
            self.send_buf = (self.send_buf + SEND_STEP).min(cfg.max_buffer);
        }
    }
}
