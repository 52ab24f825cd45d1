//! Flow control: closed windows, probes, small windows, window scale, adaptive buffers.

use super::*;

#[test]
fn a_closed_window_is_probed_and_opens_again() {
    // RFC 9293, 3.8.6.1; RFC 1122, 4.2.2.17.
    let mut pair = Pair::established(Config { recv_buffer: 10_000, ..config() });
    pair.reading[SERVER] = false;
    pair.to_write[CLIENT] = 30_000;
    pair.drive(ms(300));
    let probes: Vec<_> = pair.log.iter().filter(|s| s.from == CLIENT && s.seg().len == 1).map(|s| s.at).collect();
    assert!(probes.len() >= 3, "{probes:?}");
    let gaps: Vec<_> = probes.windows(2).map(|w| w[1].since(w[0])).collect();
    assert!(gaps.windows(2).all(|w| w[1] > w[0]), "probes back off: {gaps:?}");
    assert_eq!(pair.client().stats().window_probes as usize, probes.len());
    assert_eq!((pair.client().stats().timeouts, pair.client().stats().fast_retransmits), (0, 0));
    assert_eq!((pair.server().readable(), pair.client().bytes_acked()), (10_000, 10_000));
    pair.reading[SERVER] = true;
    pair.drive(ms(5));
    assert_eq!(pair.read[SERVER], 30_000, "the read sends an update; no probe is needed");
    assert_eq!(pair.client().stats().timeouts, 0);
}

#[test]
fn a_lost_window_update_is_found_out_by_the_probe() {
    let mut pair = Pair::established(Config { recv_buffer: 10_000, ..config() });
    pair.reading[SERVER] = false;
    pair.to_write[CLIENT] = 20_000;
    pair.drive(ms(5));
    pair.rule = Box::new(|s| if s.from == SERVER { Fate::Drop } else { Fate::Deliver });
    pair.reading[SERVER] = true;
    pair.drive(ms(5));
    pair.rule = Box::new(|_| Fate::Deliver);
    pair.drive(ms(100));
    assert_eq!(pair.read[SERVER], 20_000);
}

#[test]
fn a_probed_peer_that_answers_is_never_given_up() {
    // RFC 1122, 4.2.2.17.
    let cfg =
        Config { recv_buffer: 4_000, max_retries: 3, rto: RtoConfig { max: ms(100), ..config().rto }, ..config() };
    let mut pair = Pair::established(cfg);
    pair.reading[SERVER] = false;
    pair.to_write[CLIENT] = 9_000;
    pair.drive(Duration::from_secs(5));
    assert!(pair.client().stats().window_probes > 20);
    assert_eq!(pair.client().state(), State::Established);
    pair.rule = Box::new(|_| Fate::Drop);
    pair.drive(Duration::from_secs(5));
    assert_eq!((pair.client().state(), pair.client().end()), (State::Closed, End::TimedOut));
}

#[test]
fn a_fin_needs_no_window() {
    let mut pair = Pair::established(Config { recv_buffer: 10_000, ..config() });
    pair.reading[SERVER] = false;
    pair.to_write[CLIENT] = 10_000;
    pair.closing[CLIENT] = true;
    pair.drive(ms(10));
    assert_eq!((pair.server().state(), pair.server().readable()), (State::CloseWait, 10_000));
}

#[test]
fn a_reader_of_small_pieces_makes_no_small_windows() {
    // RFC 9293, 3.8.6.2.2: the edge moves by a segment or not at all.
    let mut pair = Pair::established(Config { recv_buffer: 8_000, window_scaling: false, ..config() });
    pair.reading[SERVER] = false;
    pair.to_write[CLIENT] = 30_000;
    for _ in 0..400 {
        pair.drive(us(200));
        pair.read[SERVER] += pair.ends[SERVER].recv(&config(), pair.time, 50);
    }
    let small = pair.client_data().iter().filter(|d| d.1 < 1_000 && d.1 > 1).count();
    assert_eq!(small, 0, "{:?}", pair.client_data());
    assert!(pair.read[SERVER] == 20_000 && pair.client().bytes_acked() >= 26_000);
}

#[test]
fn reading_sends_updates_sparingly() {
    let mut pair = Pair::established(config());
    pair.to_write[CLIENT] = 100_000;
    pair.drive(ms(20));
    assert_eq!(pair.pure_acks(SERVER), 50, "one acknowledgment for two segments, no updates");
}

#[test]
fn the_shift_is_the_smallest_that_fits() {
    // RFC 7323, 2.3.
    for (recv, max, auto, shift) in [
        (64_000, 65_535, true, 0),
        (64_000, 65_536, true, 1),
        (64_000, 256_000, true, 2),
        (64_000, 256_000, false, 0),
        (1_000_000, 1_000_000, false, 4),
    ] {
        let cfg = Config { recv_buffer: recv, max_buffer: max, send_buffer: 64_000, auto_buffer: auto, ..config() };
        let mut pair = Pair::opening(cfg.clone(), cfg);
        pair.drive(ms(1));
        assert_eq!(pair.log[0].seg().syn.window_scale, Some(shift));
        assert_eq!(u32::from(pair.log[0].seg().window), recv.min(65_535), "a SYN's window is not scaled (2.2)");
        assert_eq!(pair.server().snd_wnd, pair.log[2].seg().window as u32 * (1 << shift));
    }
}

#[test]
fn a_large_window_carries_more_than_64_kilobytes() {
    let cfg =
        Config { recv_buffer: 500_000, send_buffer: 500_000, initial_window: InitialWindow::Segments(255), ..config() };
    for (scaling, sent) in [(true, 255_000), (false, 65_000)] {
        let cfg = Config { window_scaling: scaling, ..cfg.clone() };
        let mut pair = Pair::opening(cfg.clone(), cfg);
        pair.drive(ms(1));
        // The SYN could say 65,535 at most; a segment of the server tells the scaled window.
        pair.to_write[SERVER] = 1;
        pair.drive(ms(10));
        pair.to_write[CLIENT] = 400_000;
        pair.step(Instant::ZERO);
        assert_eq!(pair.client_data().iter().map(|d| u32::from(d.1)).sum::<u32>(), sent);
    }
}

#[test]
fn buffers_grow_when_they_limit_the_path() {
    // Crisan 2014, 2.5.3. 1 ms of delay at 10 Gb/s holds far more than the buffers at the start.
    for auto_buffer in [true, false] {
        let cfg = Config {
            auto_buffer,
            recv_buffer: 128_000,
            send_buffer: 128_000,
            max_buffer: 256_000,
            ..Config::crisan2014_tuned()
        };
        let mut pair = Pair::established(cfg);
        pair.delay = ms(1);
        pair.to_write[CLIENT] = 20_000_000;
        pair.drive(ms(100));
        let (buffers, read) = ((pair.client().buffers().0, pair.server().buffers().1), pair.read[SERVER]);
        if auto_buffer {
            assert_eq!(buffers, (256_000, 256_000));
            assert!(read > 8_000_000, "{read}");
        } else {
            assert_eq!(buffers, (128_000, 128_000));
            assert!(read < 7_000_000, "{read}");
        }
    }
}

#[test]
fn the_send_buffer_bounds_what_is_written() {
    let mut pair = Pair::established(Config { send_buffer: 5_000, ..config() });
    let cfg = pair.cfg[CLIENT].clone();
    assert_eq!(pair.ends[CLIENT].send(&cfg, pair.time, 8_000), 5_000);
    assert_eq!((pair.client().send_space(), pair.ends[CLIENT].clone().send(&cfg, pair.time, 1)), (0, 0));
    pair.drive(us(110));
    assert_eq!(pair.client().send_space(), 4_000, "four segments are acknowledged, the fifth is delayed");
    assert!(pair.received[CLIENT].iter().any(|r| r.acked()));
}

#[test]
fn a_window_taken_back_is_no_congestion() {
    // RFC 9293, 3.8.6: a peer should not, but may.
    let mut pair = Pair::established(config());
    pair.rule = Box::new(|s| if s.from == SERVER || s.nth > 0 { Fate::Drop } else { Fate::Deliver });
    pair.to_write[CLIENT] = 30_000;
    pair.step(Instant::ZERO);
    let (seq, ack) = (pair.client().wire_ack(), seq(pair.client(), 1_001));
    let stamp = pair.client().ts_recent;
    let segment =
        Segment { seq, ack, window: 0, flags: Flags::ACK, timestamps: Some((stamp, 1)), ..Segment::default() };
    pair.inject(CLIENT, segment);
    pair.drive(ms(200));
    assert!(pair.client().stats().window_probes > 0);
    assert_eq!((pair.client().ssthresh(), pair.client().snd_nxt), (u32::MAX, pair.client().snd_una));
    let segment = Segment { window: 60_000, ..segment };
    pair.rule = Box::new(|_| Fate::Deliver);
    pair.inject(CLIENT, segment);
    pair.drive(ms(200));
    assert_eq!(pair.client().bytes_acked(), 30_000 - 29_000, "the server never got the first: it waits for it");
}
