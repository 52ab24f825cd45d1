//! Sending of a segment. `wants_transmit` and `poll_transmit` use the same decision, so that they agree.

use super::open::{ECN_SETUP, MAX_FIELD};
use super::types::{State, Transmit, Urgent};
use super::{Config, Mode, Plain, Tcp, Timer};
use crate::time::Instant;
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::tcp::{Flags, SackBlocks, Segment, SynOptions};

/// Bytes of a SACK option with `n` blocks and its padding (RFC 2018, 3).
const fn sack_option_bytes(n: u32) -> u32 {
    4 + 8 * n
}

/// Kind of the next segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Reset,
    PriorAck,
    Syn,
    Ack,
    Data(Data),
}

/// A piece of the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    seq: u64,
    len: u32,
    why: Why,
}

/// Parts of a segment that differ between segments of a connection.
struct Piece {
    seq: u64,
    len: u16,
    flags: Flags,
    ect: bool,
    retransmission: bool,
}

/// Rule that sends a piece; it determines which pointer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The next bytes in sequence.
    Next,
    /// The first unacknowledged segment, known to be lost.
    Una,
    /// A hole (RFC 6675, 4, NextSeg 1 and 3).
    Hole,
    /// The last hole, once (NextSeg 4).
    Rescue,
    /// A probe of a closed window.
    Probe,
}

impl Tcp {
    /// Sequence number of a position of ours.
    #[inline(always)]
    pub(super) fn wire_seq(&self, position: u64) -> SeqNumber {
        SeqNumber(self.iss.wrapping_add(position as u32))
    }

    /// Acknowledgment number for all that has arrived in order.
    #[inline(always)]
    pub(super) fn wire_ack(&self) -> SeqNumber {
        SeqNumber(self.irs.wrapping_add(self.rcv_nxt as u32))
    }

    /// Whether data, or a FIN, can go out in this state.
    #[inline(always)]
    pub(super) fn can_send(&self) -> bool {
        self.state >= State::Established && self.state <= State::LastAck
    }

    /// Whether `poll_transmit` would return a segment.
    #[inline(always)]
    pub fn wants_transmit(&self, cfg: &Config, _now: Instant) -> bool {
        self.wants_plain(cfg).unwrap_or_else(|| self.next(cfg).is_some())
    }

    /// The next segment to send, if any; to be called until there is none.
    #[inline]
    pub fn poll_transmit(&mut self, cfg: &Config, now: Instant) -> Option<Transmit> {
        match self.poll_plain(cfg, now) {
            Some(plain) => Some(plain.whole()),
            None => self.poll_any(cfg, now),
        }
    }

    /// The next segment in any state.
    #[cold]
    #[inline(never)]
    fn poll_any(&mut self, cfg: &Config, now: Instant) -> Option<Transmit> {
        let action = self.next(cfg)?;
        self.stats.segments_sent = self.stats.segments_sent.wrapping_add(1);
        let sent = match action {
            Action::Data(data) => {
                let sent = self.send_data(cfg, now, data);
                self.with_blocks(cfg, sent)
            }
            Action::Ack => {
                let sent = self.send_ack(cfg, now);
                self.with_blocks(cfg, sent)
            }
            Action::Syn => self.send_syn(cfg, now),
            Action::Reset => self.send_reset(),
            Action::PriorAck => self.send_prior_ack(cfg, now),
        };
        self.predict();
        Some(sent)
    }

    #[cold]
    #[inline(never)]
    fn next(&self, cfg: &Config) -> Option<Action> {
        if self.urgent != Urgent::No {
            return Some(if self.urgent == Urgent::Reset { Action::Reset } else { Action::PriorAck });
        }
        if self.can_send() {
            // Data segments are full and have no room for SACK blocks, so missing ranges are reported first.
            if !self.ack_now || self.reassembly.is_empty() {
                if let Some(data) = self.next_data(cfg) {
                    return Some(Action::Data(data));
                }
                if self.probe_due {
                    return Some(Action::Data(self.probe()));
                }
            }
        } else if self.snd_nxt == 0 && matches!(self.state, State::SynSent | State::SynReceived) {
            return Some(Action::Syn);
        }
        if self.ack_now { Some(Action::Ack) } else { None }
    }

    /// The next data that the windows and the mode permit.
    #[inline(always)]
    pub(super) fn next_data(&self, cfg: &Config) -> Option<Data> {
        if self.mode == Mode::Open { self.next_in_open(cfg) } else { self.next_in_recovery(cfg) }
    }

    #[inline(always)]
    fn next_in_open(&self, cfg: &Config) -> Option<Data> {
        let mut window = self.window.cwnd;
        if self.dup_acks != 0 && cfg.limited_transmit {
            // RFC 3042: each of the first two duplicates has taken a segment out of the network.
            window += u32::from(self.dup_acks.min(2)) * u32::from(self.mss);
        }
        self.next_within(cfg, window)
    }

    /// The next data that `window` and the peer's window permit.
    #[inline(always)]
    pub(super) fn next_within(&self, cfg: &Config, window: u32) -> Option<Data> {
        let flight = (self.snd_nxt - self.snd_una) as u32;
        self.next_in_sequence(cfg, self.snd_nxt, window.min(self.snd_wnd).saturating_sub(flight), flight == 0)
    }

    /// Data from `seq` on, or the FIN, within `room`; small segments wait (RFC 9293, 3.7.4 and 3.8.6.2.1).
    #[inline(always)]
    fn next_in_sequence(&self, cfg: &Config, seq: u64, room: u32, idle: bool) -> Option<Data> {
        let waiting = self.snd_end.wrapping_sub(seq);
        let mss = u32::from(self.mss);
        let next = |len| Some(Data { seq, len, why: Why::Next });
        if waiting > u64::from(mss) && waiting < 1 << 63 {
            if room >= mss {
                return next(mss);
            }
            // Part of the waiting data is worth a segment if it fills half of the peer's largest window so far.
            let worth = seq < self.snd_max || room >= self.max_snd_wnd / 2;
            return if room != 0 && worth { next(room) } else { None };
        }
        if waiting > u64::from(mss) {
            // Beyond the FIN.
            return None;
        }
        let len = waiting as u32;
        if len > room {
            let worth = seq < self.snd_max || room >= self.max_snd_wnd / 2;
            return if room != 0 && worth { next(room) } else { None };
        }
        let may_send = if len == 0 { self.fin_queued } else { self.fin_queued || len == mss || idle || !cfg.nagle };
        if may_send || (len != 0 && seq < self.snd_max) { next(len) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn next_in_recovery(&self, cfg: &Config) -> Option<Data> {
        let mss = u32::from(self.mss);
        let room = self.window.cwnd.saturating_sub(self.pipe);
        let edge = self.snd_una + u64::from(self.snd_wnd);
        if self.mode == Mode::Loss {
            if room < mss && self.pipe != 0 {
                return None;
            }
            let (seq, hole_end) = self.scoreboard.hole_from(self.snd_nxt);
            let mut data = self.next_in_sequence(cfg, seq, room.min(left(edge, seq)), self.pipe == 0)?;
            data.len = data.len.min(hole_end.map_or(u32::MAX, |end| left(end, seq)));
            return Some(data);
        }
        // The peer's window may have shrunk below the sent bytes.
        let again = |seq: u64, end: u64, why| {
            let len = mss.min(left(end.min(self.snd_end), seq)).min(left(edge, seq));
            let fin = self.fin_queued && seq + u64::from(len) == self.snd_end;
            (len != 0 || fin).then_some(Data { seq, len, why })
        };
        if self.rexmit_una {
            let (seq, end) = self.scoreboard.hole_from(self.snd_una);
            return again(seq, end.unwrap_or(self.snd_max), Why::Una);
        }
        if room < mss {
            return None;
        }
        let new = self.next_in_sequence(cfg, self.snd_nxt, room.min(left(edge, self.snd_nxt)), false);
        if !self.sack_ok {
            return new;
        }
        // NextSeg (RFC 6675, 4): a hole that is lost, else new data, else any hole, else the last one once.
        let (seq, end) = self.scoreboard.hole_from(self.high_rxt.max(self.snd_una));
        let hole = end.and_then(|end| again(seq, end, Why::Hole));
        let lost = self.scoreboard.lost_below(mss).is_some_and(|(edge, _)| seq < edge);
        if lost && hole.is_some() {
            return hole;
        }
        new.or(hole).or_else(|| self.rescue(&again))
    }

    fn rescue(&self, again: &dyn Fn(u64, u64, Why) -> Option<Data>) -> Option<Data> {
        if self.rescued {
            return None;
        }
        let end = self.snd_max.min(self.snd_end);
        let (left, right) = self.scoreboard.last_hole(self.snd_una, end)?;
        again(left.max(right.saturating_sub(u64::from(self.mss))), right, Why::Rescue)
    }

    /// Data of a window probe: as many bytes as fit a small window, one byte if the window is shut.
    fn probe(&self) -> Data {
        let waiting = self.snd_end.saturating_sub(self.snd_nxt).min(u64::from(self.mss)) as u32;
        Data { seq: self.snd_nxt, len: waiting.min(self.snd_wnd.max(1)), why: Why::Probe }
    }

    #[inline(always)]
    pub(super) fn send_data(&mut self, cfg: &Config, now: Instant, data: Data) -> Transmit<Plain> {
        let Data { seq, len, why } = data;
        if self.snd_nxt == self.snd_una && self.mode == Mode::Open {
            self.restart_if_idle(cfg, now);
        }
        self.last_data_sent = now;
        let last = seq + u64::from(len) == self.snd_end;
        let fin = last && self.fin_queued;
        let end = seq + u64::from(len) + u64::from(fin);
        let retransmission = end <= self.snd_max;

        let mut flags = Flags::ACK;
        if last && len != 0 {
            flags = flags.with(Flags::PSH);
        }
        if fin {
            flags = flags.with(Flags::FIN);
        }
        // Neither retransmissions nor probes are marked (RFC 3168, 6.1.5 and 6.1.6).
        let ect = self.ecn_ok && len != 0 && !retransmission && why != Why::Probe;
        if ect && self.cwr_due {
            flags = flags.with(Flags::CWR);
            self.cwr_due = false;
        }

        match why {
            Why::Next => self.snd_nxt = end,
            Why::Una => {
                self.rexmit_una = false;
                self.high_rxt = self.high_rxt.max(end);
                self.rexmit_mark = self.snd_max as u32;
            }
            Why::Hole => {
                self.high_rxt = end;
                self.rexmit_mark = self.snd_max as u32;
            }
            Why::Rescue => self.rescued = true,
            Why::Probe => {
                self.probe_due = false;
                self.stats.window_probes += 1;
            }
        }
        if self.mode != Mode::Open {
            // Without SACK the duplicates pay for the retransmission (RFC 6582, 3.2: it is not part of the flight).
            if self.sack_ok || why != Why::Una {
                self.pipe = self.pipe.saturating_add(len);
                self.prr_out = self.prr_out.saturating_add(len);
            }
            if why != Why::Probe {
                self.snd_nxt = self.snd_nxt.max(end);
            }
        }
        if retransmission {
            self.stats.retransmissions += 1;
            self.rtt.stop_timing();
        } else if !self.timestamps_ok && seq >= self.snd_max {
            self.rtt.time(end, now);
        }
        self.snd_max = self.snd_max.max(end);
        if why == Why::Probe {
            self.timer = Timer::Persist;
            self.main_at = now.saturating_add(self.rtt.rto());
        } else if self.main_at == Instant::MAX || self.timer == Timer::Persist {
            self.arm_retransmit(now);
        }
        self.emit(cfg, now, Piece { seq, len: len as u16, flags, ect, retransmission })
    }

    #[inline(always)]
    pub(super) fn send_ack(&mut self, cfg: &Config, now: Instant) -> Transmit<Plain> {
        // While a window is probed the byte beyond it does not count: a number behind it would not be acceptable.
        let probing = self.timer == Timer::Persist && self.main_at != Instant::MAX;
        let seq = if probing { self.snd_nxt } else { self.snd_max };
        self.emit(cfg, now, Piece { seq, len: 0, flags: Flags::ACK, ect: false, retransmission: false })
    }

    /// Acknowledges the segments before the last one, whose mark is echoed from now on.
    #[cold]
    fn send_prior_ack(&mut self, cfg: &Config, now: Instant) -> Transmit {
        self.urgent = Urgent::No;
        let flags = if self.ecn_echo { Flags::ACK } else { Flags::ACK.with(Flags::ECE) };
        let prior = self.rcv_nxt - u64::from((self.rcv_nxt as u32).wrapping_sub(self.prior_nxt));
        self.last_ack_sent = self.last_ack_sent.max(prior);
        let segment = Segment {
            seq: self.wire_seq(self.snd_max),
            ack: SeqNumber(self.irs.wrapping_add(self.prior_nxt)),
            // The right edge stays.
            window: ((self.rcv_adv - prior) >> self.rcv_shift).min(u64::from(MAX_FIELD)) as u16,
            len: 0,
            flags,
            timestamps: if self.timestamps_ok { Some((cfg.timestamp(now), self.ts_recent)) } else { None },
            sack: SackBlocks::EMPTY,
            syn: SynOptions::default(),
        };
        Transmit { segment, offset: self.snd_max.saturating_sub(1), ect: false, retransmission: false }
    }

    /// Adds SACK blocks to an acknowledgment, as many as fit beside its payload.
    fn with_blocks(&self, cfg: &Config, sent: Transmit<Plain>) -> Transmit {
        let mut sent = sent.whole();
        if !self.sack_ok || self.reassembly.is_empty() {
            return sent;
        }
        let room = u32::from(self.mss.min(cfg.max_payload())).saturating_sub(u32::from(sent.segment.len));
        for (n, &(left, right)) in (1..).zip(self.reassembly.blocks(self.irs).as_slice()) {
            if sack_option_bytes(n) <= room {
                sent.segment.sack.push(left, right);
            }
        }
        sent
    }

    /// Builds a segment of an open connection. Its acknowledgment is no longer pending.
    #[inline(always)]
    fn emit(&mut self, cfg: &Config, now: Instant, piece: Piece) -> Transmit<Plain> {
        if !self.acknowledged {
            self.acknowledge();
        }
        debug_assert!(!self.ack_now && self.ack_pending == 0 && self.delack_at == Instant::MAX);
        #[cfg(test)]
        assert_eq!((self.window_field, self.rcv_nxt), (self.clone().advertise(), self.last_ack_sent));
        let segment = Plain {
            seq: self.wire_seq(piece.seq),
            ack: self.wire_ack(),
            timestamps: if self.timestamps_ok { (cfg.timestamp(now), self.ts_recent) } else { (0, 0) },
            has_timestamps: self.timestamps_ok,
            flags: if self.ecn_echo { piece.flags.with(Flags::ECE) } else { piece.flags },
            window: self.window_field,
            len: piece.len,
        };
        let Piece { seq, ect, retransmission, .. } = piece;
        Transmit { segment, offset: seq.saturating_sub(1), ect, retransmission }
    }

    /// The next segment acknowledges everything that has come.
    #[inline(always)]
    fn acknowledge(&mut self) {
        self.window_field = self.advertise();
        self.ack_now = false;
        self.ack_pending = 0;
        self.delack_at = Instant::MAX;
        self.last_ack_sent = self.rcv_nxt;
        self.acknowledged = true;
    }

    #[cold]
    fn send_syn(&mut self, cfg: &Config, now: Instant) -> Transmit {
        let answer = self.state == State::SynReceived;
        let retransmission = self.snd_max != 0;
        let mut flags = if answer { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        if answer && self.ecn_ok {
            flags = flags.with(Flags::ECE);
        } else if !answer && cfg.ecn && !self.syn_retransmitted {
            // The retransmitted SYN goes without ECN, since a device on the path may drop it (RFC 3168, 6.1.1.1).
            flags = flags.with(ECN_SETUP);
        }
        (self.snd_nxt, self.snd_max) = (1, 1);
        if retransmission {
            self.stats.retransmissions += 1;
            self.rtt.stop_timing();
        } else {
            self.rtt.time(1, now);
        }
        self.arm_retransmit(now);
        self.ack_now = false;
        let segment = Segment {
            seq: self.wire_seq(0),
            ack: if answer { self.wire_ack() } else { SeqNumber(0) },
            window: self.recv_buf.min(MAX_FIELD) as u16,
            len: 0,
            flags,
            timestamps: if self.timestamps_ok { Some((cfg.timestamp(now), self.ts_recent)) } else { None },
            sack: SackBlocks::EMPTY,
            syn: SynOptions {
                mss: Some(cfg.mss),
                window_scale: if self.window_scaling { Some(self.rcv_shift) } else { None },
                sack_permitted: self.sack_ok,
            },
        };
        Transmit { segment, offset: 0, ect: false, retransmission }
    }

    #[cold]
    fn send_reset(&mut self) -> Transmit {
        self.urgent = Urgent::No;
        let mut segment = Segment { seq: SeqNumber(self.rst_seq), flags: Flags::RST, ..Segment::default() };
        if self.rst_has_ack {
            let ack = self.rst_ack;
            segment.ack = SeqNumber(ack);
            segment.flags = segment.flags.with(Flags::ACK);
        }
        Transmit { segment, offset: 0, ect: false, retransmission: false }
    }

    /// After an RTO without sending, the window says nothing about the path any more (RFC 5681, 4.1).
    #[inline(always)]
    fn restart_if_idle(&mut self, cfg: &Config, now: Instant) {
        if cfg.restart_after_idle && now.since(self.last_data_sent) > self.rtt.rto() {
            let initial = cfg.initial_window.bytes(u32::from(self.mss));
            self.window.cwnd = self.window.cwnd.min(initial);
            self.controller.on_idle(self.last_data_sent, now);
        }
    }
}

/// Bytes from `seq` to `end`, at most 2^32 - 1; 0 if `end` lies behind `seq`.
#[inline(always)]
fn left(end: u64, seq: u64) -> u32 {
    u32::try_from(end.saturating_sub(seq)).unwrap_or(u32::MAX)
}
