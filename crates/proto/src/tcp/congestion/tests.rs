//! The algorithms alone, by their equations, and over a simulated bottleneck.

use super::super::tests::{Bottleneck, CLIENT, Pair, SERVER, config, ms, us, without_sack};
use super::super::{Config, InitialWindow};
use super::*;
use crate::units::Rate;

const MSS: u32 = 1000;

fn ack(now: Instant, bytes: u32, srtt: Duration) -> Ack {
    Ack { now, bytes, mss: MSS, rtt: Some(srtt), srtt, una: 0, sent: 0, limited: true, after_timeout: false }
}

fn loss(window: &Window, signal: Signal) -> Congestion {
    Congestion { now: Instant::ZERO, flight: window.cwnd, mss: MSS, signal }
}

/// A window after a loss, and rounds of acknowledgments that use it fully, seen each round.
fn after_loss<C: Control>(control: &mut C, before: u32, rtt: Duration, rounds: u32) -> alloc::vec::Vec<(f64, f64)> {
    let mut window = Window { cwnd: before * MSS, ssthresh: before * MSS };
    window.ssthresh = control.on_congestion(&window, &loss(&window, Signal::Loss));
    window.cwnd = window.ssthresh;
    let mut now = Instant::ZERO;
    let mut seen = alloc::vec![];
    for _ in 0..rounds {
        seen.push((now.0 as f64 * 1e-12, f64::from(window.cwnd) / f64::from(MSS)));
        let segments = window.cwnd / MSS;
        for _ in 0..segments {
            now += Duration(rtt.0 / u64::from(segments));
            control.on_ack(&mut window, &ack(now, MSS, rtt));
        }
    }
    seen
}

#[test]
fn cubic_follows_its_function_of_time() {
    // RFC 9438, 4.2, figures 1 and 2: W(t) = C (t - K)^3 + Wmax. RTT 100 ms, so that Reno would be slower.
    let rtt = Duration::from_ms(100);
    let k = libm::cbrt(1000.0 * 0.3 / 0.4);
    let seen = after_loss(&mut Cubic::default(), 1000, rtt, 180);
    assert_eq!(seen[0].1, 700.0);
    for &(t, w) in &seen[1..] {
        let expected = 0.4 * (t - k) * (t - k) * (t - k) + 1000.0;
        assert!((w - expected).abs() < 0.02 * expected + 1.0, "t {t}: {w} for {expected}");
    }
    let at_k = seen.iter().min_by(|a, b| (a.0 - k).abs().total_cmp(&(b.0 - k).abs())).unwrap();
    assert!((at_k.1 - 1000.0).abs() < 5.0, "{at_k:?}: back at Wmax after K = {k}");
    assert!(seen[179].1 > 1200.0, "and beyond");
}

#[test]
fn cubic_is_as_fast_as_reno_where_that_is_faster() {
    // RFC 9438, 4.3: RTT 100 us; alpha = 0.53 segments a round up to the old window, then one.
    let seen = after_loss(&mut Cubic::default(), 40, Duration::from_us(100), 60);
    assert_eq!(seen[0].1, 28.0);
    let rounds_to_40 = seen.iter().position(|s| s.1 >= 40.0).unwrap();
    assert!((21..=25).contains(&rounds_to_40), "{rounds_to_40}");
    let gained = seen[59].1 - seen[49].1;
    assert!((9.0..=10.5).contains(&gained), "{gained}");
}

#[test]
fn cubic_makes_room_when_it_did_not_get_back() {
    // RFC 9438, 4.7: fast convergence; 4.8: after a timeout the function starts at its flat point.
    let mut cubic = Cubic::default();
    let window = |n: u32| Window { cwnd: n * MSS, ssthresh: u32::MAX };
    assert_eq!(cubic.on_congestion(&window(100), &loss(&window(100), Signal::Loss)), 70_000);
    assert_eq!(cubic.w_max, 100.0);
    assert_eq!(cubic.on_congestion(&window(80), &loss(&window(80), Signal::Loss)), 56_000);
    assert_eq!(cubic.w_max, 80.0 * 0.85);
    assert_eq!(cubic.on_congestion(&window(80), &loss(&window(80), Signal::Timeout)), 56_000);
    let mut w = Window { cwnd: 56_000, ssthresh: 56_000 };
    cubic.on_ack(&mut w, &ack(Instant::ZERO, MSS, Duration::from_ms(1)));
    assert_eq!((cubic.k, cubic.w_max), (0.0, 56.0));
}

#[test]
fn cubic_does_not_count_time_in_which_the_window_was_not_used() {
    // RFC 9438, 5.8.
    let rtt = Duration::from_ms(100);
    let mut cubic = Cubic::default();
    let mut window = Window { cwnd: 1_000_000, ssthresh: 1_000_000 };
    window.ssthresh = cubic.on_congestion(&window, &loss(&window, Signal::Loss));
    window.cwnd = window.ssthresh;
    cubic.on_ack(&mut window, &ack(Instant::ZERO, MSS, rtt));
    let mut now = Instant::ZERO;
    for _ in 0..500 {
        now += rtt;
        cubic.on_ack(&mut window, &Ack { limited: false, ..ack(now, MSS, rtt) });
    }
    let before = window.cwnd;
    cubic.on_ack(&mut window, &ack(now + Duration::from_us(1), MSS, rtt));
    assert!(window.cwnd - before < MSS, "{}", window.cwnd - before);
}

#[test]
fn reno_grows_by_a_segment_a_round() {
    // RFC 5681, 3.1; RFC 3465, 2.1.
    let seen = after_loss(&mut NewReno::default(), 40, Duration::from_us(100), 30);
    assert_eq!(seen[0].1, 20.0);
    assert!((seen[29].1 - 49.0).abs() <= 1.0, "{}", seen[29].1);
}

#[test]
fn slow_start_counts_bytes_and_is_careful_after_a_timeout() {
    // RFC 3465, 2.2 and 2.3.
    for (bytes, after_timeout, grown) in
        [(1000, false, 1000), (2000, false, 2000), (9000, false, 2000), (300, false, 300), (9000, true, 1000)]
    {
        let mut window = Window { cwnd: 10_000, ssthresh: u32::MAX };
        window.slow_start(&Ack { after_timeout, ..ack(Instant::ZERO, bytes, Duration::ZERO) });
        assert_eq!(window.cwnd, 10_000 + grown);
    }
}

/// A bottleneck of 1 Gb/s with 1 ms of propagation both ways: 125 segments of 1000 bytes in flight fill it.
fn bottleneck(congestion: Algorithm, limit_bytes: u64, initial_ssthresh: u32) -> Pair {
    let cfg = Config {
        congestion,
        send_buffer: 1_000_000,
        recv_buffer: 1_000_000,
        initial_window: InitialWindow::Segments(4),
        initial_ssthresh,
        reassembly_limit: 2_000,
        ..config()
    };
    let mut pair = Pair::established(cfg);
    pair.delay = us(500);
    pair.bottleneck = Some(Bottleneck { rate: Rate::gbps(1), limit_bytes, free_at: Instant::ZERO, drops: 0 });
    pair.to_write[CLIENT] = u64::MAX / 2;
    pair
}

fn queued(pair: &Pair) -> u64 {
    let b = pair.bottleneck.as_ref().unwrap();
    b.rate.bytes_in(b.free_at.since(pair.time)) / 1078
}

#[test]
fn vegas_keeps_between_alpha_and_beta_segments_in_the_queue() {
    // Brakmo and Peterson 1995, 3.2; one segment more or less for the data on the wire.
    let mut pair = bottleneck(Algorithm::Vegas, 10_000_000, u32::MAX);
    pair.drive(ms(400));
    let mut seen = alloc::vec![];
    let start = pair.read[SERVER];
    for _ in 0..100 {
        pair.drive(us(1_100));
        seen.push(queued(&pair));
    }
    let mean = seen.iter().sum::<u64>() as f64 / 100.0;
    assert!((1.0..=5.0).contains(&mean), "{seen:?}");
    assert!(*seen.iter().max().unwrap() <= 6, "{seen:?}");
    assert_eq!((pair.client().stats().retransmissions, pair.bottleneck.as_ref().unwrap().drops), (0, 0));
    let share = (pair.read[SERVER] - start) as f64 / (110e-3 * 125e6 * 1000.0 / 1078.0);
    assert!(share > 0.97, "the bottleneck is used: {share}");
}

#[test]
fn loss_based_algorithms_fill_the_queue_and_recover_without_timeouts() {
    for congestion in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut pair = bottleneck(congestion, 200_000, 200_000);
        pair.drive(ms(1_000));
        let stats = pair.client().stats();
        assert!(stats.fast_retransmits >= 2, "{congestion:?} {stats:?}");
        assert_eq!(stats.timeouts, 0, "{congestion:?}");
        assert_eq!(u64::from(pair.server().stats().duplicates), 0, "{congestion:?}");
        let start = pair.read[SERVER];
        pair.drive(ms(1_000));
        let share = (pair.read[SERVER] - start) as f64 / (125e6 * 1000.0 / 1078.0);
        assert!(share > 0.95, "{congestion:?}: {share}");
    }
}

#[test]
fn slow_start_far_beyond_the_path_ends_well() {
    // Twice the capacity of path and queue is sent. Half of it is lost, and its retransmissions, too. Then the window
    // settles.
    for congestion in [Algorithm::NewReno, Algorithm::Cubic] {
        for sack in [true, false] {
            let mut pair = bottleneck(congestion, 200_000, u32::MAX);
            if !sack {
                pair.ends.iter_mut().for_each(without_sack);
            }
            pair.drive(ms(2_000));
            let timeouts = pair.client().stats().timeouts;
            assert!(timeouts <= 2, "{congestion:?} sack {sack}: {timeouts}");
            let start = pair.read[SERVER];
            pair.drive(ms(500));
            let share = (pair.read[SERVER] - start) as f64 / (0.5 * 125e6 * 1000.0 / 1078.0);
            assert!(share > 0.95, "{congestion:?} sack {sack}: {share}");
        }
    }
}
