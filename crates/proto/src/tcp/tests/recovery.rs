//! Fast retransmit and recovery: RFC 6675, RFC 6582, RFC 3042.

use super::*;

fn cfg(sack: bool) -> Config {
    Config { sack, delayed_ack: None, ..config() }
}

fn retransmissions(pair: &Pair) -> Vec<(u64, u64)> {
    let us = |s: &Sent| (s.transmit.offset / 1000 + 1, s.at.since(Instant::ZERO).as_us());
    pair.log.iter().filter(|s| s.transmit.retransmission && s.nth != 0).map(us).collect()
}

#[test]
fn sack_repairs_several_holes_in_one_round_trip() {
    // RFC 6675, 5. Round trips take 100 us; loss is seen in the first.
    let mut pair = Pair::established(cfg(true)).losing(&[1, 3, 5, 7]);
    pair.to_write[CLIENT] = 40_000;
    pair.drive(ms(9));
    let again = retransmissions(&pair);
    assert_eq!(again.iter().map(|r| r.0).collect::<Vec<_>>(), [1, 3, 5, 7]);
    assert!(again.iter().all(|r| r.1 <= 200), "{again:?}");
    let stats = pair.client().stats();
    assert_eq!((stats.fast_retransmits, stats.timeouts, stats.retransmissions), (1, 0, 4));
    assert_eq!((pair.client().ssthresh(), pair.read[SERVER]), (5_000, 40_000));
    assert_eq!(pair.server().stats().duplicates, 0);
}

#[test]
fn newreno_repairs_one_hole_a_round_trip() {
    // RFC 6582, 3.2.
    let mut pair = Pair::established(cfg(false)).losing(&[1, 3, 5]);
    pair.to_write[CLIENT] = 40_000;
    pair.drive(ms(9));
    assert_eq!(retransmissions(&pair), [(1, 100), (3, 200), (5, 300)]);
    let stats = pair.client().stats();
    assert_eq!((stats.fast_retransmits, stats.timeouts, pair.read[SERVER]), (1, 0, 40_000));
}

#[test]
fn newreno_sends_new_data_for_duplicates_beyond_half_the_flight() {
    // RFC 6582, 3.2, step 2: nine duplicates of ten segments; half of them is five, so new data starts at the sixth.
    let mut pair = Pair::established(cfg(false)).losing(&[1]);
    pair.to_write[CLIENT] = 40_000;
    pair.drive(us(199));
    let new = pair.client_data().iter().filter(|d| !d.2).count() - 10;
    assert_eq!((new, pair.client().cwnd(), retransmissions(&pair).len()), (4, 5_000, 1));
}

#[test]
fn three_duplicates_are_a_loss_and_two_are_reordering() {
    // RFC 5681, 3.2.
    for (late, fast) in [(2, 0), (3, 1)] {
        for sack in [true, false] {
            let mut pair = Pair::established(cfg(sack));
            pair.to_write[CLIENT] = 1_000 * (late + 1);
            pair.rule = Box::new(|s| if s.nth == 1 && s.from == CLIENT { Fate::Late(us(300)) } else { Fate::Deliver });
            pair.drive(ms(9));
            assert_eq!(pair.client().stats().fast_retransmits, fast, "late {late} sack {sack}");
            assert_eq!(pair.read[SERVER], 1_000 * (late + 1));
        }
    }
}

#[test]
fn limited_transmit_keeps_a_small_window_alive() {
    // RFC 3042: of a window of three the first is lost: two duplicates let two new segments out, and so a third comes.
    for (limited, timeouts) in [(true, 0), (false, 1)] {
        for sack in [true, false] {
            let initial_window = InitialWindow::Segments(3);
            let mut pair = Pair::established(Config { limited_transmit: limited, initial_window, ..cfg(sack) });
            pair = pair.losing(&[1]);
            pair.to_write[CLIENT] = 8_000;
            pair.drive(ms(100));
            assert_eq!(pair.client().stats().timeouts, timeouts, "limited {limited} sack {sack}");
            assert_eq!(pair.read[SERVER], 8_000);
        }
    }
}

#[test]
fn a_hole_at_the_end_of_the_window_is_rescued() {
    // RFC 6675, 4, NextSeg rule 4: the first and the last of ten are lost and there is no new data.
    let mut pair = Pair::established(cfg(true)).losing(&[1, 10]);
    pair.to_write[CLIENT] = 10_000;
    pair.drive(ms(9));
    assert_eq!(retransmissions(&pair).iter().map(|r| r.0).collect::<Vec<_>>(), [1, 10]);
    assert_eq!((pair.client().stats().timeouts, pair.read[SERVER]), (0, 10_000));
}

#[test]
fn a_lost_retransmission_is_left_to_the_timer() {
    // RFC 6675, 5.1.
    let mut pair = Pair::established(cfg(true)).losing(&[2, 11]);
    pair.to_write[CLIENT] = 10_000;
    pair.drive(ms(100));
    let stats = pair.client().stats();
    assert_eq!((stats.fast_retransmits, stats.timeouts, pair.read[SERVER]), (1, 1, 10_000));
}

#[test]
fn the_window_is_reduced_once_however_many_are_lost() {
    // RFC 6675, 5; RFC 5681, 3.2.
    for sack in [true, false] {
        let mut pair = Pair::established(Config { initial_window: InitialWindow::Segments(20), ..cfg(sack) });
        pair = pair.losing(&[2, 4, 6, 8, 11]);
        pair.to_write[CLIENT] = 60_000;
        pair.drive(ms(9));
        assert_eq!((pair.client().stats().fast_retransmits, pair.client().stats().timeouts), (1, 0), "sack {sack}");
        assert_eq!(pair.client().ssthresh(), 10_500, "sack {sack}: 21 segments were in flight");
    }
}

#[test]
fn duplicates_after_a_timeout_start_no_recovery() {
    // RFC 6582, 3.2 and 4: segments sent twice come back as duplicates.
    let mut pair = Pair::established(cfg(false));
    pair.rule = Box::new(|s| if s.from == SERVER && s.at.0 < ms(9).0 { Fate::Drop } else { Fate::Deliver });
    pair.to_write[CLIENT] = 10_000;
    pair.drive(ms(50));
    let stats = pair.client().stats();
    assert_eq!((stats.timeouts, stats.fast_retransmits, pair.read[SERVER]), (1, 0, 10_000));
}

#[test]
fn the_reassembly_queue_is_bounded_and_what_it_drops_is_sent_again() {
    // Table 2.1: 200 segments; here 3. RFC 9293 leaves it to the receiver to keep out-of-order data.
    for sack in [true, false] {
        let mut pair = Pair::established(Config { reassembly_limit: 3, ..cfg(sack) }).losing(&[1]);
        pair.to_write[CLIENT] = 10_000;
        pair.drive(ms(200));
        assert!(pair.server().stats().reassembly_drops >= 6);
        assert_eq!(pair.read[SERVER], 10_000);
    }
}

#[test]
fn the_first_sack_block_tells_of_the_latest_segment() {
    // RFC 2018, 4.
    let mut pair = Pair::established(cfg(true)).losing(&[1, 3, 5, 7, 9]);
    pair.to_write[CLIENT] = 10_000;
    pair.drive(us(60));
    let blocks = |s: &Sent| -> Vec<_> {
        s.seg().sack.as_slice().iter().map(|b| (b.0.since(seq(pair.client(), 1)) / 1000, b.1.since(b.0))).collect()
    };
    let acks: Vec<_> = pair.log.iter().filter(|s| s.from == SERVER).map(blocks).collect();
    assert_eq!(acks[0], [(1, 1000)]);
    assert_eq!(acks[1], [(3, 1000), (1, 1000)]);
    assert_eq!(acks[4], [(9, 1000), (7, 1000), (5, 1000)]);
}

#[test]
fn sack_blocks_travel_before_full_data_segments() {
    // A full segment has no room for them beside the timestamp.
    let mut pair = Pair::established(cfg(true)).losing(&[1]);
    pair.to_write = [8_000, 8_000];
    pair.drive(ms(9));
    assert_eq!((pair.client().stats().fast_retransmits, pair.client().stats().timeouts), (1, 0));
    let fits = |s: &Sent| usize::from(s.seg().len) + s.seg().sack.as_slice().len() * 8 <= 1_000;
    assert!(pair.log.iter().all(fits));
    assert_eq!(pair.read, [8_000, 8_000]);
}

#[test]
fn a_retransmission_that_is_lost_too_waits_for_the_timer_unless_later_data_tells() {
    // RFC 6675 cannot know; RFC 8985, 1: data sent after it that arrives shows it.
    for prr in [false, true] {
        let mut pair = Pair::established(Config { prr, ..cfg(true) });
        pair.to_write[CLIENT] = 60_000;
        pair.rule = Box::new(|s| {
            let first_two = s.from == CLIENT && s.nth != 0 && s.transmit.offset == 0 && s.at < Instant::ZERO + us(150);
            if first_two { Fate::Drop } else { Fate::Deliver }
        });
        pair.drive(ms(200));
        assert_eq!(pair.read[SERVER], 60_000);
        let stats = pair.client().stats();
        assert_eq!((stats.timeouts, stats.fast_retransmits), (!prr as u32, 1), "prr {prr}");
    }
}

#[test]
fn proportional_rate_reduction_lets_out_one_segment_for_two_delivered() {
    // RFC 6937, 3.1: twenty in flight, one lost, the window halves: nine new segments for nineteen duplicates, spread
    // over them, where RFC 6675 first waits for half of them and then answers each.
    let mut pair = Pair::established(Config { prr: true, initial_window: InitialWindow::Segments(20), ..cfg(true) });
    pair.to_write[CLIENT] = 60_000;
    pair.rule = Box::new(|s| if s.nth == 1 && s.from == CLIENT { Fate::Drop } else { Fate::Deliver });
    pair.drive(us(190));
    let new = pair.client_data().iter().filter(|d| !d.2).count() - 20;
    assert_eq!(pair.client().ssthresh(), 10_000);
    assert!((8..=9).contains(&new), "{new}");
    assert_eq!(pair.client().stats().retransmissions, 1);
}

#[test]
fn what_recovery_sends_again_is_not_timed() {
    // Karn; RFC 6298, 3: without timestamps. Every round trip takes 100 us and every segment is acknowledged at once, so a
    // sample of anything else is of a segment that was sent twice, or that waited behind one.
    let mut of_recovery = 0;
    for (a, b, c) in (1..=14).flat_map(|a| (a + 1..=16).flat_map(move |b| (b + 1..=20).map(move |c| (a, b, c)))) {
        for sack in [true, false] {
            let mut pair = Pair::established(Config { timestamps: false, mss: 1000, ..cfg(sack) });
            pair.rule =
                Box::new(
                    move |s| {
                        if s.from == CLIENT && [a, b, c].contains(&s.nth) { Fate::Drop } else { Fate::Deliver }
                    },
                );
            pair.to_write[CLIENT] = 40_000;
            pair.drive(ms(100));
            let stats = pair.client().stats();
            assert_eq!(pair.read[SERVER], 40_000);
            assert_eq!(stats.rtt_sum, us(100 * stats.rtt_samples as u64), "{a} {b} {c} sack {sack}: {stats:?}");
            of_recovery += stats.retransmissions;
        }
    }
    assert!(of_recovery > 2_000);
}
