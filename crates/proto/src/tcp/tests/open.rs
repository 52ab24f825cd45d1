//! RFC 9293, 3.5: opening.

use super::*;

#[test]
fn three_way_handshake_agrees_on_options() {
    // RFC 9293, 3.5, figure 6; RFC 7323, 2.2 and 3.2; RFC 2018, 2.
    let mut server = config();
    server.mss = 600;
    let mut pair = Pair::opening(config(), server);
    pair.drive(ms(1));
    let trace: Vec<_> = pair.log.iter().map(|s| (s.from, s.seg().flags, s.seg().seq.0, s.seg().ack.0)).collect();
    let (syn, ack) = (Flags::SYN, Flags::ACK);
    assert_eq!(trace, [(CLIENT, syn, 1000, 0), (SERVER, syn.with(ack), u32::MAX, 1001), (CLIENT, ack, 1001, 0)]);
    for tcp in &pair.ends {
        assert_eq!(tcp.state(), State::Established);
        assert_eq!(tcp.payload_max(), 600 - TIMESTAMP_OPTION_BYTES);
        assert!(tcp.sack_ok && tcp.timestamps_ok && tcp.window_scaling);
        assert_eq!((tcp.srtt(), tcp.stats().rtt_samples), (us(100), 1));
        assert_eq!(tcp.cwnd(), 10 * 588);
    }
    assert!(pair.received[CLIENT][0].connected() && pair.received[SERVER][1].connected());
    assert_eq!(pair.log[0].seg().syn.mss, Some(1012));
    assert_eq!(pair.log[1].seg().syn.mss, Some(600));
}

#[test]
fn an_option_is_used_only_if_both_offer_it() {
    for mask in 0..8u8 {
        let mut server = config();
        (server.sack, server.timestamps, server.window_scaling) = (mask & 1 != 0, mask & 2 != 0, mask & 4 != 0);
        let mut pair = Pair::opening(config(), server.clone());
        pair.to_write = [20_000, 20_000];
        pair.drive(ms(50));
        for tcp in &pair.ends {
            assert_eq!(
                (tcp.sack_ok, tcp.timestamps_ok, tcp.window_scaling),
                (server.sack, server.timestamps, server.window_scaling)
            );
        }
        assert_eq!(pair.read, [20_000, 20_000]);
    }
}

#[test]
fn both_open_at_once() {
    // RFC 9293, 3.5, figure 7.
    let cfg = config();
    let client = Tcp::connect(&cfg, Instant::ZERO, 100, None);
    let server = Tcp::connect(&cfg, Instant::ZERO, 300, None);
    let mut pair = Pair::of(client, server, [cfg.clone(), cfg]);
    pair.to_write = [5_000, 7_000];
    pair.drive(ms(20));
    assert_eq!((pair.client().state(), pair.server().state()), (State::Established, State::Established));
    assert_eq!(pair.read, [7_000, 5_000]);
    assert_eq!(pair.client().stats().timeouts, 0);
}

#[test]
fn a_lost_syn_is_sent_again_after_base_and_the_window_starts_at_one_segment() {
    // RFC 6298, 2.1 and 5.5; RFC 5681, 3.1; base: Crisan 2014, Table 2.1.
    let mut syns = 0;
    let mut pair = Pair::opening(config(), config()).with_rule(move |s| {
        syns += usize::from(s.has(Flags::SYN));
        if s.has(Flags::SYN) && syns <= 2 { Fate::Drop } else { Fate::Deliver }
    });
    pair.drive(ms(100));
    let at: Vec<_> = pair.log.iter().filter(|s| s.from == CLIENT && s.has(Flags::SYN)).map(|s| s.at).collect();
    assert_eq!(at, [Instant::ZERO, Instant::ZERO + ms(10), Instant::ZERO + ms(30)]);
    assert_eq!(pair.client().state(), State::Established);
    assert_eq!(pair.client().cwnd(), 1000);
    assert_eq!(pair.server().cwnd(), 10_000);
    assert_eq!(pair.client().stats().timeout_wait, ms(30));
}

#[test]
fn a_lost_syn_ack_is_sent_again_by_either_end() {
    let mut lost = false;
    let mut pair = Pair::opening(config(), config()).with_rule(move |s| {
        let first = s.from == SERVER && !lost;
        lost |= s.from == SERVER;
        if first { Fate::Drop } else { Fate::Deliver }
    });
    pair.to_write[CLIENT] = 3_000;
    pair.drive(ms(100));
    assert_eq!((pair.server().state(), pair.read[SERVER]), (State::Established, 3_000));
}

#[test]
fn the_third_segment_may_be_lost() {
    let mut pair = Pair::opening(config(), config()).with_rule(|s| {
        if s.from == CLIENT && s.nth == 0 && !s.has(Flags::SYN) && s.at.0 < ms(1).0 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.drive(ms(200));
    assert_eq!(pair.server().state(), State::Established);
}

#[test]
fn a_syn_is_given_up_after_its_retries() {
    let cfg = Config { syn_retries: 3, ..config() };
    let mut pair = Pair::opening(cfg.clone(), cfg).with_rule(|_| Fate::Drop);
    pair.drive(Duration::from_secs(10));
    assert_eq!((pair.client().state(), pair.client().end()), (State::Closed, End::TimedOut));
    assert_eq!(pair.log.len(), 4);
}

#[test]
fn a_syn_to_nobody_is_refused() {
    // RFC 9293, 3.10.7.1.
    let mut pair = Pair::opening(config(), config());
    pair.ends[SERVER].close(&config(), Instant::ZERO);
    assert_eq!(pair.server().state(), State::Closed);
    pair.drive(ms(10));
    assert!(pair.log[1].has(Flags::RST) && pair.log[1].seg().ack.0 == 1001);
    assert_eq!((pair.client().state(), pair.client().end()), (State::Closed, End::Reset));
}

#[test]
fn an_acknowledgment_of_nothing_sent_is_reset_while_opening() {
    // RFC 9293, 3.5.2 and 3.10.7.3.
    let mut pair = Pair::opening(config(), config());
    pair.transmit(CLIENT);
    pair.inject(CLIENT, Segment { ack: SeqNumber(5), flags: Flags::ACK, ..Segment::default() });
    pair.transmit(CLIENT);
    let rst = pair.log[1].seg();
    assert_eq!((rst.flags, rst.seq), (Flags::RST, SeqNumber(5)));
    assert_eq!(pair.client().state(), State::SynSent);
}

#[test]
fn data_written_before_the_handshake_follows_it() {
    let mut pair = Pair::opening(config(), config());
    pair.to_write[CLIENT] = 2_500;
    pair.closing[CLIENT] = true;
    pair.drive(ms(50));
    assert_eq!((pair.read[SERVER], pair.server().state()), (2_500, State::CloseWait));
}

#[test]
fn the_cache_gives_a_new_connection_its_timeout_and_half_its_window() {
    // FreeBSD 9, host cache; RFC 9040.
    let entry = CacheEntry { srtt: us(300), rttvar: us(20), cwnd: 40_000, ssthresh: 30_000 };
    for cache in [true, false] {
        let cfg = Config { connection_cache: cache, ..config() };
        let client = Tcp::connect(&cfg, Instant::ZERO, 1, Some(&entry));
        assert_eq!(client.rto(), ms(10), "a SYN waits base");
        let mut pair = Pair::of(client, Tcp::listen(&cfg, 2, None), [cfg.clone(), cfg]);
        pair.drive(ms(1));
        let tcp = pair.client();
        if cache {
            assert_eq!((tcp.cwnd(), tcp.ssthresh(), tcp.srtt()), (20_000, 30_000, us(275)));
        } else {
            assert_eq!((tcp.cwnd(), tcp.ssthresh(), tcp.srtt()), (10_000, u32::MAX, us(100)));
        }
        assert_eq!(tcp.cache_entry().map(|e| e.srtt), Some(tcp.srtt()));
    }
}

#[test]
fn initial_windows() {
    // RFC 3390, 1.
    assert_eq!(InitialWindow::Rfc3390.bytes(1460), 4380);
    assert_eq!(InitialWindow::Rfc3390.bytes(536), 2144);
    assert_eq!(InitialWindow::Rfc3390.bytes(9000), 18_000);
    assert_eq!(InitialWindow::Segments(10).bytes(1448), 14_480);
}
