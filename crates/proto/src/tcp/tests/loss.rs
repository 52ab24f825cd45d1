//! Timeouts: RFC 6298, Karn, and FreeBSD's base, min and slop.

use super::*;

/// Times at which the client sent its first data segment, again and again.
fn times_of_first(pair: &Pair) -> Vec<Duration> {
    let first = |s: &&Sent| s.from == CLIENT && s.nth != 0 && s.transmit.offset == 0;
    pair.log.iter().filter(first).map(|s| s.at.since(Instant::ZERO)).collect()
}

fn rto_config(base: u64, min: u64, slop: u64, max: u64) -> RtoConfig {
    RtoConfig { base: ms(base), min: ms(min), slop: ms(slop), max: ms(max) }
}

#[test]
fn before_the_first_sample_the_timeout_is_base_and_doubles() {
    // RFC 6298, 2.1 and 5.5.
    let mut pair = Pair::established(config()).with_rule(|_| Fate::Drop);
    pair.to_write[CLIENT] = 1_000;
    pair.drive(ms(150));
    assert_eq!(times_of_first(&pair), [ms(0), ms(10), ms(30), ms(70), ms(150)]);
    assert_eq!((pair.client().stats().timeouts, pair.client().stats().timeout_wait), (4, ms(150)));
}

#[test]
fn with_a_sample_it_is_srtt_and_four_rttvar_and_slop_between_min_and_max() {
    // RFC 6298, 2.2; Crisan 2014, Table 3.2. The first sample R sets srtt = R and rttvar = R / 2.
    for (base, min, slop, max, expected) in [
        (10, 2, 20, 64_000, ms(20) + us(300)),
        (3_000, 30, 200, 64_000, ms(200) + us(300)),
        (20, 30, 1, 64_000, ms(30)),
        (5, 2, 20, 10, ms(10)),
    ] {
        let mut pair =
            Pair::established(Config { rto: rto_config(base, min, slop, max), delayed_ack: None, ..config() });
        pair.to_write[CLIENT] = 1_000;
        pair.drive(ms(1));
        assert_eq!((pair.client().srtt(), pair.client().rttvar()), (us(100), us(50)));
        assert_eq!(pair.client().rto(), expected);
        pair.to_write[CLIENT] = 1_000;
        pair.drive(ms(1));
        // The second: srtt keeps, rttvar loses a quarter.
        assert_eq!((pair.client().srtt(), pair.client().rttvar()), (us(100), Duration::from_ps(37_500_000)));
    }
}

#[test]
fn a_backed_off_timeout_doubles_before_the_slop_is_added() {
    // FreeBSD, tcp_timer_rexmt: max(min, srtt + 4 rttvar) doubles, then slop, then max.
    let cfg = Config { rto: rto_config(10, 2, 20, 60), delayed_ack: None, ..config() };
    let mut pair = Pair::established(cfg);
    pair.to_write[CLIENT] = 1_000;
    pair.drive(ms(1));
    let start = pair.log.len();
    pair.rule = Box::new(|_| Fate::Drop);
    pair.to_write[CLIENT] = 1_000;
    pair.drive(ms(400));
    let at: Vec<_> = pair.log[start..].iter().map(|s| s.at).collect();
    let gaps: Vec<_> = at.windows(2).map(|w| w[1].since(w[0])).collect();
    assert_eq!(gaps, [ms(20) + us(300), ms(24), ms(28), ms(36), ms(52), ms(60), ms(60), ms(60)]);
}

#[test]
fn an_ambiguous_acknowledgment_is_no_sample_and_keeps_the_backoff() {
    // Karn; RFC 6298, 3 and 5.7: without timestamps.
    let cfg = Config { timestamps: false, delayed_ack: None, mss: 1000, ..config() };
    let mut pair = Pair::established(cfg).losing(&[1, 2]);
    pair.to_write[CLIENT] = 1_000;
    pair.drive(ms(40));
    assert_eq!(times_of_first(&pair), [ms(0), ms(10), ms(30)]);
    assert_eq!(pair.client().bytes_acked(), 1_000);
    assert_eq!((pair.client().stats().rtt_samples, pair.client().rto()), (0, ms(40)));
    pair.to_write[CLIENT] = 1_000;
    pair.drive(ms(1));
    assert_eq!((pair.client().stats().rtt_samples, pair.client().rto()), (1, ms(20) + us(300)));
}

#[test]
fn a_timestamp_makes_it_unambiguous() {
    // RFC 7323, 4.
    let mut pair = Pair::established(Config { delayed_ack: None, ..config() }).losing(&[1, 2]);
    pair.to_write[CLIENT] = 1_000;
    pair.drive(ms(40));
    assert_eq!((pair.client().stats().rtt_samples, pair.client().srtt()), (1, us(100)));
    assert_eq!(pair.client().rto(), ms(20) + us(300));
}

#[test]
fn rtt_is_measured_in_whole_ticks() {
    for (tick, expected) in [(us(1), us(100)), (us(30), us(90)), (ms(1), ms(0))] {
        for timestamps in [true, false] {
            let cfg = Config { tick, timestamps, delayed_ack: None, ..config() };
            let mut pair = Pair::established(cfg);
            pair.to_write[CLIENT] = 1_000;
            pair.drive(ms(1));
            assert_eq!((pair.client().stats().rtt_samples, pair.client().stats().rtt_sum), (1, expected));
        }
    }
}

#[test]
fn a_timeout_is_a_tick_above_a_round_trip_that_does_not_vary() {
    // RFC 6298, 2.3: RTO = SRTT + max(G, 4 RTTVAR). 100 us are 90 us in ticks of 30 us; without G the timer would be early.
    let rto = RtoConfig { min: us(1), slop: us(0), ..config().rto };
    for timestamps in [true, false] {
        let mut pair = Pair::established(Config { tick: us(30), timestamps, rto, delayed_ack: None, ..config() });
        for _ in 0..80 {
            pair.to_write[CLIENT] = 1_000;
            pair.drive(us(300));
        }
        let stats = pair.client().stats();
        assert_eq!((pair.client().srtt(), pair.client().rto()), (us(90), us(120)), "{timestamps}");
        assert_eq!((stats.rtt_samples, stats.timeouts), (80, 0), "{timestamps}");
    }
}

#[test]
fn a_timeout_that_ends_fast_recovery_flattens_the_cubic() {
    // RFC 9438, 4.8: K = 0 and W_max = cwnd when congestion avoidance begins after a timeout. Of 59 segments the 20th is lost
    // twice; with round trips of 500 ms the cubic alone decides, and towards the old W_max it would gain 16 segments in 2 s.
    let rto = RtoConfig { base: ms(3_000), min: ms(1_000), slop: ms(0), max: ms(64_000) };
    let initial_window = InitialWindow::Segments(40);
    let cfg = Config { rto, initial_window, congestion: Algorithm::Cubic, delayed_ack: None, ..config() };
    let mut lost = 0;
    let mut pair = Pair::established(cfg).with_rule(move |s| {
        lost += usize::from(s.from == CLIENT && s.nth != 0 && s.transmit.offset == 19_000);
        if s.transmit.offset == 19_000 && s.from == CLIENT && lost <= 2 { Fate::Drop } else { Fate::Deliver }
    });
    pair.delay = ms(250);
    pair.to_write[CLIENT] = 10_000_000;
    pair.drive(ms(2_600));
    let stats = pair.client().stats();
    assert_eq!((stats.fast_retransmits, stats.timeouts, pair.client().ssthresh()), (1, 1, 41_300));
    while pair.client().cwnd() < 41_300 {
        pair.drive(ms(100));
    }
    let before = pair.client().cwnd();
    pair.drive(ms(2_000));
    let gained = pair.client().cwnd() - before;
    assert!((1_000..6_000).contains(&gained), "{gained}");
    assert_eq!(pair.client().stats().timeouts, 1);
}

#[test]
fn after_a_timeout_slow_start_goes_through_the_hole() {
    // RFC 5681, 3.1; RFC 3465, 2.3: all ten lost; one segment, then two, then four; the threshold is half the flight.
    for sack in [true, false] {
        let mut pair =
            Pair::established(Config { sack, delayed_ack: None, ..config() }).losing(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        pair.to_write[CLIENT] = 10_000;
        pair.drive(ms(15));
        let again: Vec<_> = pair.log.iter().filter(|s| s.transmit.retransmission).map(|s| s.at).collect();
        let rounds = [0, 1, 1, 2, 2, 2, 2, 3, 3, 3].map(|n| Instant::ZERO + ms(10) + us(100 * n));
        assert_eq!(again, rounds);
        assert_eq!((pair.client().ssthresh(), pair.client().stats().timeouts), (5_000, 1));
        assert_eq!((pair.read[SERVER], pair.server().stats().duplicates), (10_000, 0));
    }
}

#[test]
fn a_timeout_does_not_send_again_what_is_acknowledged_selectively() {
    // RFC 6675, 5.1: the tail and the first segment are lost, and the first segment's retransmission as well. Rescue
    // and rule 3 of NextSeg repair the tail, the timeout repairs the first segment, and no segment arrives twice.
    let mut pair = Pair::established(Config { delayed_ack: None, ..config() }).losing(&[1, 9, 10, 11]);
    pair.to_write[CLIENT] = 10_000;
    pair.drive(ms(50));
    let again: Vec<_> = pair.client_data().iter().filter(|d| d.2).map(|d| d.0).collect();
    assert_eq!(again, [0, 9_000, 8_000, 0]);
    assert_eq!((pair.client().stats().timeouts, pair.server().stats().duplicates), (1, 0));
    assert_eq!(pair.read[SERVER], 10_000);
}

#[test]
fn a_peer_that_drops_what_it_acknowledged_selectively_is_sent_everything() {
    // RFC 2018, 8: blocks for all but the first segment, and then the peer forgets them.
    let mut pair = Pair::established(Config { delayed_ack: None, ..config() }).losing(&[1]);
    pair.rule =
        Box::new(|s| if s.from == CLIENT && s.at.0 < ms(9).0 && s.nth != 1 { Fate::Deliver } else { Fate::Drop });
    pair.to_write[CLIENT] = 8_000;
    pair.drive(ms(9));
    pair.ends[SERVER].reassembly.clear();
    pair.rule = Box::new(|_| Fate::Deliver);
    pair.drive(ms(500));
    assert_eq!((pair.read[SERVER], pair.client().bytes_acked()), (8_000, 8_000));
}

#[test]
fn the_wait_for_timeouts_is_counted_from_the_last_progress() {
    let mut pair = Pair::established(config()).losing(&[10]);
    pair.to_write[CLIENT] = 10_000;
    pair.drive(ms(100));
    let stats = pair.client().stats();
    assert_eq!((stats.timeouts, pair.read[SERVER]), (1, 10_000));
    // Progress ended with the delayed acknowledgment of the ninth segment at 5.1 ms or before.
    assert!(stats.timeout_wait >= ms(20) && stats.timeout_wait < ms(27), "{:?}", stats.timeout_wait);
}
