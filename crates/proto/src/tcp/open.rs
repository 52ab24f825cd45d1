//! Opening: active, passive, at the same time from both sides, and before the clock starts (RFC 9293, 3.5 and 3.10.7).

use super::config::{Config, InitialWindow, MIN_MSS, TIMESTAMP_OPTION_BYTES};
use super::congestion::{Controller, Window};
use super::plain::Prediction;
use super::reassembly::Reassembly;
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;
use super::types::{CacheEntry, End, Received, State, Stats, Urgent};
use super::{Mode, Tcp, Timer};
use crate::time::{Duration, Instant};
use sluicenet_wire::tcp::{Flags, Segment};

/// MSS of a peer that does not announce one (RFC 9293, 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// Largest shift of the window (RFC 7323, 2.3).
const MAX_SHIFT: u8 = 14;
/// Largest window that fits the field.
pub(super) const MAX_FIELD: u32 = 65_535;
/// Connection is set up with ECN: SYN says ECE and CWR, SYN-ACK says ECE alone (RFC 3168, 6.1.1).
pub(super) const ECN_SETUP: Flags = Flags::ECE.with(Flags::CWR);

impl Tcp {
    /// Opens actively, in SYN-SENT; `poll_transmit` returns the SYN.
    pub fn connect(cfg: &Config, now: Instant, iss: u32, cache: Option<&CacheEntry>) -> Tcp {
        let mut tcp = Tcp::new(cfg, State::SynSent, iss, cache);
        tcp.last_data_sent = now;
        tcp
    }

    /// Opens passively, in LISTEN; the first SYN moves the connection to SYN-RECEIVED.
    pub fn listen(cfg: &Config, iss: u32, cache: Option<&CacheEntry>) -> Tcp {
        Tcp::new(cfg, State::Listen, iss, cache)
    }

    /// Returns a connection opened before the clock starts, as after a handshake with the same configuration on both
    /// ends. It has no RTT sample yet.
    pub fn established(cfg: &Config, now: Instant, iss: u32, peer_iss: u32) -> Tcp {
        let mut tcp = Tcp::new(cfg, State::Established, iss, None);
        tcp.irs = peer_iss;
        tcp.ecn_ok = cfg.ecn;
        tcp.mss = cfg.max_payload();
        tcp.snd_shift = tcp.rcv_shift;
        (tcp.snd_una, tcp.snd_nxt, tcp.snd_max) = (1, 1, 1);
        (tcp.rcv_nxt, tcp.rcv_read, tcp.last_ack_sent) = (1, 1, 1);
        (tcp.snd_wl1, tcp.snd_wl2) = (1, 1);
        let field = (tcp.recv_buf >> tcp.rcv_shift).min(MAX_FIELD);
        tcp.snd_wnd = field << tcp.rcv_shift;
        tcp.max_snd_wnd = tcp.snd_wnd;
        tcp.rcv_adv = 1 + u64::from(tcp.snd_wnd);
        if tcp.timestamps_ok {
            // The handshake is over before the clock starts, whenever this end of the connection is made.
            tcp.set_ts_recent(cfg.timestamp(Instant::ZERO), Instant::ZERO);
        }
        tcp.enter_established(cfg, now);
        tcp.predict();
        tcp
    }

    fn new(cfg: &Config, state: State, iss: u32, cache: Option<&CacheEntry>) -> Tcp {
        debug_assert_eq!(cfg.validate(), Ok(()));
        let rcv_shift = if cfg.window_scaling { shift_for(cfg) } else { 0 };
        let mut tcp = Tcp {
            state,
            mode: Mode::Open,
            prediction: Prediction::NONE,
            window_field: 0,
            acknowledged: false,
            timer: Timer::Retransmit,
            dup_acks: 0,
            ack_pending: 0,
            snd_shift: 0,
            rcv_shift,
            ack_now: false,
            sack_ok: cfg.sack,
            timestamps_ok: cfg.timestamps,
            ecn_ok: false,
            ecn_echo: false,
            cwr_due: false,
            fin_queued: false,
            fin_received: false,
            rexmit_una: false,
            probe_due: false,
            urgent: Urgent::No,
            mss: DEFAULT_MSS,
            iss,
            irs: 0,
            snd_una: 0,
            snd_nxt: 0,
            snd_max: 0,
            snd_end: 1,
            snd_wnd: 0,
            window: Window { cwnd: 0, ssthresh: cfg.initial_ssthresh },
            rcv_nxt: 0,
            rcv_adv: 0,
            rcv_read: 1,
            last_ack_sent: 0,
            ts_recent: 0,
            ts_recent_at: 0,
            main_at: Instant::MAX,
            delack_at: Instant::MAX,
            rtt: Rtt::new(cfg),
            snd_wl1: 0,
            snd_wl2: 0,
            last_data_sent: Instant::ZERO,
            send_buf: cfg.send_buffer,
            recv_buf: cfg.recv_buffer,
            controller: Controller::new(cfg.congestion),
            recover: 0,
            reduced_until: 0,
            high_rxt: 0,
            pipe: 0,
            max_snd_wnd: 0,
            scoreboard: Scoreboard::default(),
            reassembly: Reassembly::default(),
            rescued: false,
            partial_seen: false,
            retries: 0,
            syn_retransmitted: false,
            window_scaling: cfg.window_scaling,
            end: End::Orderly,
            round_ts: 0,
            round_start: 0,
            prior_nxt: 0,
            fin_at: u64::MAX,
            rst_seq: 0,
            recover_fs: 0,
            prr_delivered: 0,
            prr_out: 0,
            rst_ack: 0,
            rst_has_ack: false,
            rexmit_mark: 0,
            challenge_at: 0,
            stats: Stats { rtt_min: Duration::MAX, ..Stats::default() },
        };
        if let Some(entry) = cache.filter(|_| cfg.connection_cache) {
            tcp.rtt.preset(entry.srtt, entry.rttvar);
            tcp.window = Window { cwnd: entry.cwnd, ssthresh: entry.ssthresh };
        }
        tcp
    }

    /// Takes over the options of a SYN: an option is in use when both ends have sent it.
    fn on_syn(&mut self, cfg: &Config, now: Instant, seg: &Segment) {
        self.irs = seg.seq.0;
        (self.rcv_nxt, self.rcv_read, self.last_ack_sent) = (1, 1, 1);
        self.rcv_adv = 1 + u64::from(self.recv_buf.min(MAX_FIELD));
        self.sack_ok &= seg.syn.sack_permitted;
        self.timestamps_ok &= seg.timestamps.is_some();
        match seg.syn.window_scale {
            Some(shift) if self.window_scaling => self.snd_shift = shift.min(MAX_SHIFT),
            _ => (self.window_scaling, self.snd_shift, self.rcv_shift) = (false, 0, 0),
        }
        let peer = seg.syn.mss.unwrap_or(DEFAULT_MSS).max(MIN_MSS);
        self.mss = peer.min(cfg.mss) - if self.timestamps_ok { TIMESTAMP_OPTION_BYTES } else { 0 };
        if let (true, Some((value, _))) = (self.timestamps_ok, seg.timestamps) {
            self.set_ts_recent(value, now);
        }
        // The window of a SYN is never scaled (RFC 7323, 2.2).
        self.snd_wnd = u32::from(seg.window);
        self.max_snd_wnd = self.snd_wnd;
        self.snd_wl1 = 0;
    }

    /// The handshake is done: sets the window for the start.
    fn enter_established(&mut self, cfg: &Config, now: Instant) {
        let mss = u32::from(self.mss);
        let cached = self.rtt.sampled() && self.window.cwnd != 0;
        self.window.cwnd = if self.syn_retransmitted {
            // A lost SYN is a sign of congestion (RFC 5681, 3.1).
            InitialWindow::Segments(1).bytes(mss)
        } else if cached {
            // Half of the last connection's window, as in FreeBSD 9: the path may have changed since.
            (self.window.cwnd / 2).clamp(mss, self.send_buf.max(mss))
        } else {
            cfg.initial_window.bytes(mss)
        };
        self.window.ssthresh = self.window.ssthresh.max(2 * mss);
        self.rtt.opened(cfg);
        self.last_data_sent = now;
        self.retries = 0;
        self.round_ts = cfg.timestamp(now);
        self.round_start = self.rcv_nxt;
        self.state = if self.fin_queued { State::FinWait1 } else { State::Established };
    }

    /// LISTEN (RFC 9293, 3.10.7.2).
    pub(super) fn receive_listen(&mut self, cfg: &Config, now: Instant, seg: &Segment) {
        if seg.flags.contains(Flags::RST) {
            return;
        }
        if seg.flags.contains(Flags::ACK) {
            self.reply_reset(seg);
        } else if seg.flags.contains(Flags::SYN) {
            self.on_syn(cfg, now, seg);
            self.ecn_ok = cfg.ecn && seg.flags.contains(ECN_SETUP);
            self.state = State::SynReceived;
        }
    }

    /// SYN-SENT (RFC 9293, 3.10.7.3).
    pub(super) fn receive_syn_sent(&mut self, cfg: &Config, now: Instant, seg: &Segment) -> Received {
        let mut received = Received::default();
        let acked = seg.ack.0.wrapping_sub(self.iss);
        let has_ack = seg.flags.contains(Flags::ACK);
        if has_ack && (acked == 0 || u64::from(acked) > self.snd_max) {
            if !seg.flags.contains(Flags::RST) {
                self.reply_reset(seg);
            }
            return received;
        }
        if seg.flags.contains(Flags::RST) {
            if has_ack {
                self.drop_connection(End::Reset);
                received.set(Received::CLOSED);
            }
            return received;
        }
        if !seg.flags.contains(Flags::SYN) {
            return received;
        }
        self.on_syn(cfg, now, seg);
        if has_ack {
            self.ecn_ok = cfg.ecn && seg.flags.0 & ECN_SETUP.0 == Flags::ECE.0;
            self.on_syn_acked(cfg, now, seg);
            self.ack_now = true;
            received.set(Received::CONNECTED);
        } else {
            // Simultaneous open: the SYN goes out again, with ACK.
            self.ecn_ok = cfg.ecn && seg.flags.contains(ECN_SETUP);
            self.state = State::SynReceived;
            self.snd_nxt = 0;
        }
        received
    }

    /// Our SYN is acknowledged.
    pub(super) fn on_syn_acked(&mut self, cfg: &Config, now: Instant, seg: &Segment) {
        (self.snd_una, self.snd_nxt) = (1, 1);
        self.snd_wl2 = 1;
        self.main_at = Instant::MAX;
        self.take_rtt_sample(cfg, now, seg.timestamps.map(|(_, echo)| echo));
        self.enter_established(cfg, now);
        self.check_persist(cfg, now);
    }

    /// A repeated SYN in SYN-RECEIVED is answered again, without ECN if the peer has given up on ECN (RFC 3168,
    /// 6.1.1.1).
    pub(super) fn on_duplicate_syn(&mut self, seg: &Segment) {
        self.ecn_ok &= seg.flags.contains(ECN_SETUP);
        self.snd_nxt = 0;
    }
}

/// The shift with which the largest receive buffer fits the window field (RFC 7323, 2.3).
fn shift_for(cfg: &Config) -> u8 {
    let largest = if cfg.auto_buffer { cfg.max_buffer.max(cfg.recv_buffer) } else { cfg.recv_buffer };
    (0..MAX_SHIFT).find(|&shift| largest >> shift <= MAX_FIELD).unwrap_or(MAX_SHIFT)
}
