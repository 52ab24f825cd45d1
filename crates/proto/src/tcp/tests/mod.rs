//! A world of two ends and a path between them; tests read its segments like a trace.

mod close;
mod data;
mod ecn;
mod fuzz;
mod loss;
mod open;
mod options;
mod ranges;
mod recovery;
mod window;

use super::*;
use crate::units::Rate;
use alloc::boxed::Box;
use alloc::vec::Vec;
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::tcp::{Flags, Segment};

pub(in crate::tcp) const CLIENT: usize = 0;
pub(in crate::tcp) const SERVER: usize = 1;

pub(in crate::tcp) fn ms(n: u64) -> Duration {
    Duration::from_ms(n)
}
pub(in crate::tcp) fn us(n: u64) -> Duration {
    Duration::from_us(n)
}

/// Segments of 1000 bytes of payload and plain options; each test turns on its own subject.
pub(in crate::tcp) fn config() -> Config {
    Config {
        mss: 1012,
        send_buffer: 100_000,
        recv_buffer: 64_000,
        max_buffer: 1_000_000,
        auto_buffer: false,
        initial_window: InitialWindow::Segments(10),
        delayed_ack: Some(ms(5)),
        limited_transmit: false,
        ..Config::crisan2014_ch2()
    }
}

/// Fate of a segment on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Fate {
    Deliver,
    Drop,
    Duplicate,
    Late(Duration),
    Mark,
}

/// A segment as it left one end.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Sent {
    pub at: Instant,
    pub from: usize,
    /// Ordinal of the data segment at its end, from 1; zero for a segment without data.
    pub nth: usize,
    pub transmit: Transmit,
}

impl Sent {
    pub fn seg(&self) -> &Segment {
        &self.transmit.segment
    }
    pub fn has(&self, flags: Flags) -> bool {
        self.seg().flags.contains(flags)
    }
}

struct Flying {
    at: Instant,
    number: usize,
    to: usize,
    segment: Segment,
    marked: bool,
}

/// The bottleneck of the direction from client to server.
pub(in crate::tcp) struct Bottleneck {
    pub rate: Rate,
    pub limit_bytes: u64,
    pub free_at: Instant,
    pub drops: usize,
}

/// Two ends of a path.
pub(in crate::tcp) struct Pair {
    pub cfg: [Config; 2],
    pub ends: [Tcp; 2],
    pub time: Instant,
    pub delay: Duration,
    pub bottleneck: Option<Bottleneck>,
    pub log: Vec<Sent>,
    pub rule: Box<dyn FnMut(&Sent) -> Fate>,
    /// Bytes that the applications still have to write.
    pub to_write: [u64; 2],
    /// Whether the applications read at once.
    pub reading: [bool; 2],
    pub closing: [bool; 2],
    pub read: [u64; 2],
    pub received: [Vec<Received>; 2],
    flying: Vec<Flying>,
    data_segments: [usize; 2],
}

impl Pair {
    pub fn of(client: Tcp, server: Tcp, cfg: [Config; 2]) -> Pair {
        Pair {
            cfg,
            ends: [client, server],
            time: Instant::ZERO,
            delay: us(50),
            bottleneck: None,
            log: Vec::new(),
            rule: Box::new(|_| Fate::Deliver),
            to_write: [0; 2],
            reading: [true; 2],
            closing: [false; 2],
            read: [0; 2],
            received: [Vec::new(), Vec::new()],
            flying: Vec::new(),
            data_segments: [0; 2],
        }
    }

    /// Both ends open before the clock starts.
    pub fn established(cfg: Config) -> Pair {
        let client = Tcp::established(&cfg, Instant::ZERO, 0xffff_f000, 77);
        let server = Tcp::established(&cfg, Instant::ZERO, 77, 0xffff_f000);
        Pair::of(client, server, [cfg.clone(), cfg])
    }

    /// A client that is about to send its SYN, and a server that listens.
    pub fn opening(client: Config, server: Config) -> Pair {
        let c = Tcp::connect(&client, Instant::ZERO, 1000, None);
        let s = Tcp::listen(&server, 0xffff_ffff, None);
        Pair::of(c, s, [client, server])
    }

    pub fn with_rule(mut self, rule: impl FnMut(&Sent) -> Fate + 'static) -> Pair {
        self.rule = Box::new(rule);
        self
    }

    /// Loses the data segments of the client with these numbers, the first being 1.
    pub fn losing(self, numbers: &'static [usize]) -> Pair {
        self.with_rule(move |s| if s.from == CLIENT && numbers.contains(&s.nth) { Fate::Drop } else { Fate::Deliver })
    }

    pub fn client(&self) -> &Tcp {
        &self.ends[CLIENT]
    }
    pub fn server(&self) -> &Tcp {
        &self.ends[SERVER]
    }

    /// The applications write and read, the ends send all they want to; then the next event, if it comes until `end`.
    pub fn step(&mut self, end: Instant) -> bool {
        for side in [CLIENT, SERVER] {
            self.applications(side);
            self.transmit(side);
        }
        let arrival = self.flying.iter().map(|f| (f.at, f.number)).min();
        let deadline = self.ends.iter().filter_map(Tcp::poll_timeout).min();
        let next = arrival.map(|a| a.0).into_iter().chain(deadline).min();
        let Some(next) = next.filter(|&at| at <= end) else { return false };
        self.time = self.time.max(next);
        if let Some((at, number)) = arrival.filter(|a| a.0 <= self.time) {
            let _ = at;
            let index = self.flying.iter().position(|f| f.number == number).unwrap();
            let f = self.flying.swap_remove(index);
            let received = self.ends[f.to].receive(&self.cfg[f.to], self.time, &f.segment, f.marked);
            self.received[f.to].push(received);
        } else {
            for side in [CLIENT, SERVER] {
                self.ends[side].handle_timeout(&self.cfg[side], self.time);
            }
        }
        true
    }

    /// Steps until nothing happens any more, or for `time`.
    pub fn drive(&mut self, time: Duration) {
        let end = self.time + time;
        let mut steps = 0;
        while self.step(end) {
            steps += 1;
            assert!(steps < 2_000_000, "no end of events");
        }
        self.time = end;
    }

    fn applications(&mut self, side: usize) {
        let (tcp, cfg) = (&mut self.ends[side], &self.cfg[side]);
        if self.to_write[side] != 0 {
            self.to_write[side] -= tcp.send(cfg, self.time, self.to_write[side]);
        }
        if self.to_write[side] == 0 && self.closing[side] {
            self.closing[side] = false;
            tcp.close(cfg, self.time);
        }
        if self.reading[side] {
            self.read[side] += tcp.recv(cfg, self.time, u64::MAX);
        }
    }

    pub fn transmit(&mut self, side: usize) {
        loop {
            let cfg = &self.cfg[side];
            let wants = self.ends[side].wants_transmit(cfg, self.time);
            let transmit = self.ends[side].poll_transmit(cfg, self.time);
            assert_eq!(wants, transmit.is_some(), "wants_transmit must be exact");
            let Some(transmit) = transmit else { break };
            let len = transmit.segment.len;
            self.data_segments[side] += usize::from(len != 0);
            let nth = if len == 0 { 0 } else { self.data_segments[side] };
            let sent = Sent { at: self.time, from: side, nth, transmit };
            self.log.push(sent);
            let fate = (self.rule)(&sent);
            self.launch(sent, fate);
        }
        check_alive(&self.ends[side], &self.cfg[side], self.time);
    }

    fn launch(&mut self, sent: Sent, fate: Fate) {
        let mut at = self.time + self.delay;
        if let (CLIENT, Some(b)) = (sent.from, &mut self.bottleneck) {
            let bytes = u64::from(sent.seg().len) + 78;
            if b.rate.bytes_in(b.free_at.since(self.time)) + bytes > b.limit_bytes {
                b.drops += 1;
                return;
            }
            b.free_at = b.free_at.max(self.time) + b.rate.time_for(bytes);
            at = b.free_at + self.delay;
        }
        let mut fly = |at, marked| {
            self.flying.push(Flying {
                at,
                number: self.log.len() * 2 + self.flying.len() % 2,
                to: 1 - sent.from,
                segment: sent.transmit.segment,
                marked,
            })
        };
        match fate {
            Fate::Deliver => fly(at, false),
            Fate::Drop => {}
            Fate::Duplicate => {
                fly(at, false);
                fly(at + us(1), false);
            }
            Fate::Late(by) => fly(at + by, false),
            Fate::Mark => {
                assert!(sent.transmit.ect, "only ECT packets can be marked");
                fly(at, true);
            }
        }
    }

    /// Puts a segment into one end by hand.
    pub fn inject(&mut self, to: usize, segment: Segment) -> Received {
        self.ends[to].receive(&self.cfg[to], self.time, &segment, false)
    }

    /// Data segments of the client as (offset, length, retransmission), in the order they left.
    pub fn client_data(&self) -> Vec<(u64, u16, bool)> {
        let of = |s: &Sent| (s.transmit.offset, s.seg().len, s.transmit.retransmission);
        self.log.iter().filter(|s| s.from == CLIENT && s.nth != 0).map(of).collect()
    }

    /// Segments without data of one end.
    pub fn pure_acks(&self, side: usize) -> usize {
        self.log.iter().filter(|s| s.from == side && s.nth == 0).count()
    }
}

/// Outstanding data has a deadline, or a segment to send: a connection never waits without a cause.
pub(in crate::tcp) fn check_alive(tcp: &Tcp, cfg: &Config, now: Instant) {
    let waits = tcp.snd_una < tcp.snd_max || (tcp.can_send() && tcp.snd_nxt < tcp.snd_end);
    if waits && tcp.state != State::Closed {
        assert!(tcp.main_at != Instant::MAX || tcp.wants_transmit(cfg, now), "stalled: {tcp:?}");
    }
    assert!(tcp.snd_una <= tcp.snd_nxt && tcp.snd_nxt <= tcp.snd_max, "{tcp:?}");
    assert!(tcp.snd_max <= tcp.snd_end + 1, "{tcp:?}");
    assert!(tcp.rcv_nxt <= tcp.rcv_adv + 1, "{tcp:?}");
    assert!(tcp.state <= State::Listen || tcp.state == State::SynSent || tcp.rcv_nxt >= 1);
    if tcp.state >= State::Established {
        assert!(tcp.cwnd() >= u32::from(tcp.mss), "{tcp:?}");
    }
}

/// The sequence number of a position of an end.
pub(in crate::tcp) fn seq(tcp: &Tcp, position: u64) -> SeqNumber {
    tcp.wire_seq(position)
}

/// As if the handshake had not agreed on SACK.
pub(in crate::tcp) fn without_sack(tcp: &mut Tcp) {
    tcp.sack_ok = false;
}
