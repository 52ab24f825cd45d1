//! Data without loss: acknowledgments, small segments, the timer that must not run out.

use super::*;

#[test]
fn every_second_segment_is_acknowledged_at_once_and_an_odd_one_after_the_delay() {
    // RFC 5681, 4.2.
    let mut pair = Pair::established(config());
    pair.to_write[CLIENT] = 5_000;
    pair.drive(ms(3));
    let acks: Vec<_> = pair.log.iter().filter(|s| s.from == SERVER).map(|s| (s.at, s.seg().ack.0)).collect();
    let at = |d| Instant::ZERO + d;
    let ack = |bytes: u64| seq(pair.client(), 1 + bytes).0;
    assert_eq!(acks, [(at(us(50)), ack(2_000)), (at(us(50)), ack(4_000))]);
    assert_eq!(pair.server().poll_timeout(), Some(at(us(50) + ms(5))));
    pair.drive(ms(10));
    let last = pair.log.last().unwrap();
    assert_eq!((last.at, last.seg().ack.0), (at(us(50) + ms(5)), seq(pair.client(), 5_001).0));
    assert_eq!((pair.client().bytes_acked(), pair.client().poll_timeout()), (5_000, None));
}

#[test]
fn an_acknowledgment_rides_on_data() {
    let mut pair = Pair::established(Config { nagle: false, ..config() });
    pair.to_write = [1_000, 1_000];
    pair.drive(ms(2));
    assert_eq!((pair.pure_acks(CLIENT), pair.pure_acks(SERVER)), (0, 0), "both crossed, both are delayed");
    pair.to_write = [500, 0];
    pair.drive(ms(20));
    assert_eq!((pair.pure_acks(CLIENT), pair.pure_acks(SERVER)), (0, 1));
}

#[test]
fn ack_every_one_acknowledges_each_segment() {
    for cfg in [Config { ack_every: 1, ..config() }, Config { delayed_ack: None, ..config() }] {
        let mut pair = Pair::established(cfg);
        pair.to_write[CLIENT] = 7_000;
        pair.drive(ms(1));
        assert_eq!(pair.pure_acks(SERVER), 7);
    }
}

#[test]
fn a_reply_of_15_segments_never_times_out() {
    // The delayed acknowledgment of the odd last segment comes before the timeout (Crisan 2014, 2.5 and Table 3.2).
    for cfg in [Config::crisan2014_ch2(), Config::crisan2014_default(), Config::crisan2014_tuned()] {
        assert_eq!(cfg.validate(), Ok(()));
        for open in [true, false] {
            let mut pair = if open { Pair::established(cfg.clone()) } else { Pair::opening(cfg.clone(), cfg.clone()) };
            for query in 1..=20 {
                pair.to_write[CLIENT] = 100;
                pair.drive(ms(1));
                pair.to_write[SERVER] = 20_000;
                pair.drive(ms(400));
                assert_eq!(pair.read, [20_000 * query, 100 * query]);
            }
            assert!(pair.log.iter().filter(|s| s.from == SERVER && s.nth != 0).count() >= 15 * 18);
            for tcp in &pair.ends {
                assert_eq!((tcp.stats().timeouts, tcp.stats().retransmissions), (0, 0));
            }
        }
    }
}

#[test]
fn a_delayed_acknowledgment_at_or_above_the_timeout_is_refused() {
    let mut cfg = Config::crisan2014_tuned();
    cfg.delayed_ack = Some(ms(100));
    let error = cfg.validate().unwrap_err();
    assert_eq!(error, ConfigError::DelayedAckNotBelowRto { delayed_ack: ms(100), rto_floor: ms(20) });
    assert!(alloc::format!("{error}").contains("100000 us"));
    cfg.delayed_ack = Some(ms(20));
    assert!(cfg.validate().is_err());
    cfg.delayed_ack = None;
    assert_eq!(cfg.validate(), Ok(()));
    assert_eq!(Config { ack_every: 0, ..cfg.clone() }.validate(), Err(ConfigError::ZeroSegments));
    assert_eq!(Config { mss: 100, ..cfg.clone() }.validate(), Err(ConfigError::MssTooSmall(100)));
    assert_eq!(Config { tick: Duration::ZERO, ..cfg.clone() }.validate(), Err(ConfigError::ZeroTick));
    assert_eq!(
        Config { send_buffer: 500_000, ..cfg }.validate(),
        Err(ConfigError::BufferOutOfRange { bytes: 500_000, least: 2 * u32::from(cfg.mss), most: cfg.max_buffer })
    );
}

#[test]
fn a_small_segment_waits_while_data_is_in_flight() {
    // RFC 9293, 3.7.4: Nagle.
    for (nagle, expected) in [(true, [100, 200].as_slice()), (false, &[100, 100, 100])] {
        let mut pair = Pair::established(Config { nagle, ..config() });
        for _ in 0..3 {
            pair.ends[CLIENT].send(&pair.cfg[CLIENT], pair.time, 100);
            pair.transmit(CLIENT);
        }
        pair.drive(ms(20));
        let lens: Vec<_> = pair.client_data().iter().map(|d| d.1).collect();
        assert_eq!(lens, expected);
        assert_eq!(pair.read[SERVER], 300);
    }
}

#[test]
fn the_first_flight_is_the_initial_window_and_slow_start_doubles_it() {
    // RFC 3465, 2.2: two segments of growth for an acknowledgment of two.
    let mut pair = Pair::established(config());
    pair.to_write[CLIENT] = 90_000;
    pair.drive(us(60));
    assert_eq!(pair.client_data().len(), 10);
    pair.drive(us(60));
    assert_eq!((pair.client().cwnd(), pair.client_data().len()), (20_000, 30));
}

#[test]
fn slow_start_ends_at_the_initial_threshold() {
    // From 10 segments, 20 are passed in the second round trip; without a threshold the window would then be 80.
    for congestion in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Vegas, Algorithm::Dctcp] {
        let cfg = Config { congestion, ecn: true, initial_ssthresh: 20_000, ..config() };
        let mut pair = Pair::established(cfg);
        pair.to_write[CLIENT] = 90_000;
        pair.drive(us(180));
        assert_eq!(pair.client().ssthresh(), 20_000, "{congestion:?}");
        // Vegas doubles its window every other round trip.
        let least = if congestion == Algorithm::Vegas { 12_000 } else { 20_000 };
        assert!((least..=23_000).contains(&pair.client().cwnd()), "{congestion:?}: {}", pair.client().cwnd());
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    // RFC 9438, 4.6 and RFC 7661, 1: an unused window proves nothing.
    for congestion in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Vegas, Algorithm::Dctcp] {
        let mut pair = Pair::established(Config { congestion, ecn: true, restart_after_idle: false, ..config() });
        for _ in 0..50 {
            pair.to_write[CLIENT] = 2_000;
            pair.drive(ms(1));
        }
        assert_eq!(pair.client().cwnd(), 10_000, "{congestion:?}");
    }
}

#[test]
fn an_idle_connection_starts_again_from_the_initial_window() {
    // RFC 5681, 4.1.
    for (restart, cwnd) in [(true, 10_000), (false, 50_000)] {
        let mut pair = Pair::established(Config { restart_after_idle: restart, ..config() });
        pair.to_write[CLIENT] = 200_000;
        pair.drive(ms(20));
        assert!(pair.client().cwnd() >= 50_000);
        let before = pair.client().cwnd();
        let rto = pair.client().rto();
        pair.drive(rto + ms(1));
        pair.to_write[CLIENT] = 1_000;
        pair.drive(us(10));
        assert_eq!(pair.client().cwnd(), if restart { cwnd } else { before });
    }
}

#[test]
fn the_segment_that_ends_what_was_written_says_push() {
    let mut pair = Pair::established(config());
    pair.to_write[CLIENT] = 2_500;
    pair.drive(ms(1));
    let pushed: Vec<_> = pair.log.iter().filter(|s| s.nth != 0).map(|s| s.has(Flags::PSH)).collect();
    assert_eq!(pushed, [false, false, true]);
}
