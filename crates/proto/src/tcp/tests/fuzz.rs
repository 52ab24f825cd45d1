//! Nothing lost, nothing twice, nothing out of order; and any segment at any time is survived.

use super::*;
use crate::rng::Rng;
use alloc::format;
use sluicenet_wire::tcp::{SackBlocks, SynOptions};

/// A configuration for each number.
fn any_config(rng: &mut Rng) -> Config {
    let flip = |rng: &mut Rng| rng.below(2) == 0;
    let congestion = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Vegas, Algorithm::Dctcp][rng.below(4) as usize];
    Config {
        sack: flip(rng),
        timestamps: flip(rng),
        window_scaling: flip(rng),
        ecn: flip(rng) || congestion == Algorithm::Dctcp,
        limited_transmit: flip(rng),
        prr: flip(rng),
        restart_after_idle: flip(rng),
        nagle: flip(rng),
        auto_buffer: flip(rng),
        congestion,
        delayed_ack: flip(rng).then(|| ms(5)),
        ack_every: 1 + rng.below(3) as u8,
        reassembly_limit: [3, 200][rng.below(2) as usize],
        recv_buffer: [3_000, 20_000, 200_000][rng.below(3) as usize],
        max_buffer: 250_000,
        max_retries: 30,
        syn_retries: 30,
        rto: RtoConfig { max: ms(300), ..config().rto },
        ..config()
    }
}

#[test]
fn random_loss_reordering_and_duplication_deliver_exactly_what_was_sent() {
    for seed in 0..2_000u64 {
        let mut rng = Rng::from_words(&[seed, 1]);
        let cfgs = [any_config(&mut rng), any_config(&mut rng)];
        let total = [1 + rng.below(120_000), rng.below(60_000)];
        let mut pair = if rng.below(2) == 0 {
            Pair::opening(cfgs[0].clone(), cfgs[1].clone())
        } else {
            Pair::established(cfgs[0].clone())
        };
        let (loss, late) = (rng.below(15), rng.below(30));
        let mut dice = Rng::from_words(&[seed, 2]);
        pair = pair.with_rule(move |s| match dice.below(100) {
            n if n < loss => Fate::Drop,
            n if n < loss + late => Fate::Late(us(dice.below(400))),
            n if n < loss + late + 5 => Fate::Duplicate,
            n if n < loss + late + 15 && s.transmit.ect => Fate::Mark,
            _ => Fate::Deliver,
        });
        pair.to_write = total;
        pair.closing = [true, true];
        // The server's application reads in fits and starts.
        for _ in 0..40 {
            pair.reading[SERVER] = rng.below(2) == 0;
            let time = rng.below(3_000);
            pair.drive(us(time));
        }
        pair.reading = [true, true];
        let mut done = false;
        for _ in 0..4_000 {
            pair.drive(ms(20));
            let over = |t: &Tcp| matches!(t.state(), State::TimeWait | State::Closed);
            done = over(pair.client()) && over(pair.server());
            if done {
                break;
            }
        }
        assert!(done, "seed {seed}: {:?} {:?}\n{:?}\n{:?}", pair.read, total, pair.client(), pair.server());
        assert_eq!(pair.read, [total[1], total[0]], "seed {seed}");
        assert_eq!(pair.server().bytes_received(), total[0], "seed {seed}");
        for side in [CLIENT, SERVER] {
            assert_eq!(pair.ends[side].end(), End::Orderly, "seed {seed} side {side}");
            assert_eq!(pair.ends[side].bytes_acked(), total[side], "seed {seed} side {side}");
        }
    }
}

fn any_segment(rng: &mut Rng, tcp: &Tcp) -> Segment {
    let near = |rng: &mut Rng, base: u32| match rng.below(4) {
        0 => base,
        1 => base.wrapping_add(rng.below(200_000) as u32).wrapping_sub(100_000),
        2 => base.wrapping_add(rng.below(8) as u32).wrapping_sub(4),
        _ => rng.next_u64() as u32,
    };
    let (rcv, snd) = (tcp.wire_ack().0, tcp.wire_seq(tcp.snd_una).0);
    let mut sack = SackBlocks::EMPTY;
    for _ in 0..rng.below(4) {
        sack.push(SeqNumber(near(rng, snd)), SeqNumber(near(rng, snd)));
    }
    let flags = match rng.below(8) {
        0 => rng.next_u64() as u8,
        1 => (Flags::ACK.0 | Flags::FIN.0) | (rng.next_u64() as u8 & Flags::ECE.0),
        _ => Flags::ACK.0 | (rng.next_u64() as u8 & Flags::PSH.0),
    };
    let stamp = near(rng, tcp.ts_recent);
    Segment {
        seq: SeqNumber(near(rng, rcv)),
        ack: SeqNumber(near(rng, snd)),
        window: [0, 1, 100, 65_535, rng.next_u64() as u16][rng.below(5) as usize],
        len: [0, 0, 1, 1000, rng.next_u64() as u16][rng.below(5) as usize],
        flags: Flags(flags),
        timestamps: (rng.below(8) != 0).then(|| (stamp, rng.next_u64() as u32 % 100_000)),
        sack,
        syn: SynOptions {
            mss: (rng.below(2) == 0).then(|| rng.next_u64() as u16),
            window_scale: (rng.below(2) == 0).then(|| rng.next_u64() as u8),
            sack_permitted: rng.below(2) == 0,
        },
    }
}

#[test]
fn any_segment_at_any_time_is_survived() {
    for seed in 0..2_000u64 {
        let mut rng = Rng::from_words(&[seed, 3]);
        let cfg = any_config(&mut rng);
        let mut now = Instant::ZERO;
        let mut tcp = match rng.below(4) {
            0 => Tcp::connect(&cfg, now, rng.next_u64() as u32, None),
            1 => Tcp::listen(&cfg, rng.next_u64() as u32, None),
            _ => Tcp::established(&cfg, now, rng.next_u64() as u32, rng.next_u64() as u32),
        };
        for _ in 0..500 {
            match rng.below(12) {
                0 => drop(tcp.send(&cfg, now, rng.below(50_000))),
                1 => drop(tcp.recv(&cfg, now, rng.below(50_000))),
                2 if rng.below(40) == 0 => tcp.close(&cfg, now),
                3 if rng.below(200) == 0 => tcp.abort(),
                4 => {
                    now = tcp.poll_timeout().unwrap_or(now).max(now);
                    tcp.handle_timeout(&cfg, now);
                }
                5 => now += us(rng.below(1000)),
                _ => {
                    let seg = any_segment(&mut rng, &tcp);
                    tcp.receive(&cfg, now, &seg, rng.below(10) == 0);
                }
            }
            for _ in 0..rng.below(20) {
                let wants = tcp.wants_transmit(&cfg, now);
                let got = tcp.poll_transmit(&cfg, now);
                assert_eq!(wants, got.is_some(), "seed {seed}");
                if let Some(t) = got {
                    assert!(t.segment.len <= cfg.mss, "seed {seed}: {t:?}");
                }
            }
            check_alive(&tcp, &cfg, now);
        }
        assert!(tcp.stats().challenge_acks <= 2 + (now.0 / ms(500).0) as u32, "seed {seed}");
    }
}

#[test]
fn prediction_changes_no_result() {
    let mut predicted = 0;
    for seed in 0..200u64 {
        let mut rng = Rng::from_words(&[seed, 4]);
        let cfg = any_config(&mut rng);
        let mut now = Instant::ZERO;
        let mut tcp = Tcp::established(&cfg, now, rng.next_u64() as u32, rng.next_u64() as u32);
        for _ in 0..300 {
            tcp.send(&cfg, now, rng.below(20_000));
            now += us(rng.below(400));
            if tcp.poll_timeout().is_some_and(|at| at <= now) || rng.below(60) == 0 {
                now = now.max(tcp.poll_timeout().unwrap_or(now));
                tcp.handle_timeout(&cfg, now);
            }
            // Mostly the next segment, with an acknowledgment of some of the bytes in flight.
            let ack = tcp.wire_seq(tcp.snd_una) + rng.below(1 + tcp.snd_max - tcp.snd_una) as u32;
            let echo = cfg.timestamp(now).saturating_sub(rng.below(300) as u32).max(1);
            let next = Segment {
                seq: tcp.wire_ack(),
                ack,
                window: 20_000 + rng.below(3) as u16,
                len: [0, 1_000][rng.below(2) as usize],
                flags: Flags::ACK,
                timestamps: tcp.timestamps_ok.then_some((tcp.ts_recent + rng.below(2) as u32, echo)),
                ..Segment::default()
            };
            let seg = if rng.below(20) == 0 { any_segment(&mut rng, &tcp) } else { next };
            let ce = rng.below(10) == 0;
            let mut other = Tcp { prediction: Prediction::NONE, ..tcp.clone() };
            let received = tcp.receive(&cfg, now, &seg, ce);
            assert_eq!(received, other.receive(&cfg, now, &seg, ce), "seed {seed}: {seg:?}");
            if !tcp.timestamps_ok {
                // Never read.
                (other.ts_recent, other.ts_recent_at) = (tcp.ts_recent, tcp.ts_recent_at);
            }
            // What is kept to save work.
            (other.prediction, other.acknowledged) = (tcp.prediction, tcp.acknowledged);
            assert_eq!(format!("{tcp:?}"), format!("{other:?}"), "seed {seed}: {seg:?}");
            tcp.recv(&cfg, now, u64::MAX);
            for _ in 0..rng.below(5) {
                let mut other = Tcp { prediction: Prediction::NONE, ..tcp.clone() };
                predicted += u32::from(tcp.prediction != Prediction::NONE);
                assert_eq!(tcp.wants_transmit(&cfg, now), other.wants_transmit(&cfg, now), "seed {seed}");
                assert_eq!(tcp.poll_transmit(&cfg, now), other.poll_transmit(&cfg, now), "seed {seed}");
                other.prediction = tcp.prediction;
                assert_eq!(format!("{tcp:?}"), format!("{other:?}"), "seed {seed}");
            }
        }
    }
    assert!(predicted > 10_000, "{predicted}");
}

#[test]
fn two_ends_that_disagree_do_not_answer_each_other_for_ever() {
    // RFC 5961, 7 and 10: each finds the other's acknowledgments unacceptable.
    let cfg = config();
    let client = Tcp::established(&cfg, Instant::ZERO, 1, 2);
    let server = Tcp::established(&cfg, Instant::ZERO, 1_000_000_000, 2_000_000_000);
    let mut pair = Pair::of(client, server, [cfg.clone(), cfg]);
    pair.inject(CLIENT, Segment { seq: SeqNumber(9), flags: Flags::ACK, ..Segment::default() });
    pair.to_write[CLIENT] = 10;
    pair.drive(Duration::from_secs(2));
    assert!(pair.log.len() < 60, "{}", pair.log.len());
}
