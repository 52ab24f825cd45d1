//! What a TCP segment costs: nanoseconds of one core for a full cycle between two ends (data out, data in, ACK out, ACK
//! in), with the congestion window in use and a read by the application.
//!
//! `cargo run --release -p sluicenet-proto --example tcp_cost`

use sluicenet_proto::tcp::{Algorithm, Config, Tcp};
use sluicenet_proto::time::{Duration, Instant};

const CYCLES: u64 = 4_000_000;
const CONNECTIONS: [usize; 2] = [1, 64];

fn main() {
    println!("size_of::<Tcp>() = {} bytes", size_of::<Tcp>());
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Vegas] {
        for ack_every in [1, 2] {
            for connections in CONNECTIONS {
                let ns = (0..5).map(|_| cycle_ns(algorithm, ack_every, connections)).fold(f64::MAX, f64::min);
                println!("{algorithm:?}, an ACK every {ack_every}, {connections:2} connections: {ns:5.1} ns a segment");
            }
        }
    }
}

fn cycle_ns(algorithm: Algorithm, ack_every: u8, connections: usize) -> f64 {
    let cfg = Config { congestion: algorithm, ack_every, ..Config::crisan2014_tuned() };
    let mut now = Instant::ZERO;
    let pair = |n: u32| (Tcp::established(&cfg, now, n, n + 7), Tcp::established(&cfg, now, n + 7, n));
    let mut pairs: Vec<_> = (0..connections as u32).map(pair).collect();
    // A congestion window's worth is in flight before the clock of the measurement starts.
    let mut flying: Vec<std::collections::VecDeque<_>> = vec![Default::default(); connections];
    for (i, (a, _)) in pairs.iter_mut().enumerate() {
        a.send(&cfg, now, 100_000);
        while let Some(t) = a.poll_transmit(&cfg, now) {
            flying[i].push_back(t.segment);
        }
    }
    let mut cycles = 0;
    let started = std::time::Instant::now();
    while cycles < CYCLES {
        for (i, (a, b)) in pairs.iter_mut().enumerate() {
            now += Duration::from_ns(1_200);
            let data = flying[i].pop_front().expect("never idle");
            let received = b.receive(&cfg, now, &data, false);
            if received.readable() {
                b.recv(&cfg, now, u64::MAX);
            }
            while b.wants_transmit(&cfg, now) {
                let ack = b.poll_transmit(&cfg, now).expect("wanted");
                let received = a.receive(&cfg, now, &ack.segment, false);
                if received.acked() {
                    let space = a.send_space();
                    a.send(&cfg, now, space);
                }
            }
            // As a wire would: asked when it is free, one segment at a time.
            while a.wants_transmit(&cfg, now) {
                flying[i].push_back(a.poll_transmit(&cfg, now).expect("wanted").segment);
                if flying[i].len() > 40 {
                    break;
                }
            }
            std::hint::black_box((a.poll_timeout(), b.poll_timeout()));
            cycles += 1;
        }
    }
    let elapsed = started.elapsed();
    assert!(pairs.iter().all(|(a, _)| a.stats().timeouts == 0 && a.stats().retransmissions == 0));
    elapsed.as_secs_f64() * 1e9 / cycles as f64
}
