//! RFC 3168.

use super::*;

fn ecn() -> Config {
    Config { ecn: true, sack: true, ..config() }
}

#[test]
fn the_handshake_agrees_on_ecn() {
    // RFC 3168, 6.1.1.
    for (client, server) in [(true, true), (true, false), (false, true)] {
        let mut pair = Pair::opening(Config { ecn: client, ..config() }, Config { ecn: server, ..config() });
        pair.to_write = [3_000, 3_000];
        pair.drive(ms(20));
        assert_eq!((pair.client().ecn_ok, pair.server().ecn_ok), (client && server, client && server));
        assert_eq!(pair.log[0].has(Flags::ECE.with(Flags::CWR)), client);
        assert_eq!(pair.log[1].has(Flags::ECE), client && server);
        assert!(!pair.log[1].has(Flags::CWR));
        for s in &pair.log {
            assert_eq!(s.transmit.ect, client && server && s.nth != 0, "data alone is marked ECT (6.1.4)");
        }
    }
}

#[test]
fn a_syn_is_sent_again_without_ecn() {
    // RFC 3168, 6.1.1.1.
    let mut pair = Pair::opening(ecn(), ecn())
        .with_rule(|s| if s.has(Flags::SYN.with(Flags::ECE)) { Fate::Drop } else { Fate::Deliver });
    pair.drive(ms(50));
    assert_eq!((pair.client().state(), pair.client().ecn_ok, pair.server().ecn_ok), (State::Established, false, false));
}

#[test]
fn a_mark_is_echoed_until_cwr_and_halves_the_window_once() {
    // RFC 3168, 6.1.2 and 6.1.3.
    let mut pair = Pair::established(ecn()).with_rule(|s| match (s.from, s.nth) {
        (CLIENT, 3..=9) => Fate::Mark,
        _ => Fate::Deliver,
    });
    pair.to_write[CLIENT] = 60_000;
    pair.drive(ms(20));
    let echoes = pair.log.iter().filter(|s| s.from == SERVER && s.has(Flags::ECE)).count();
    let cwr: Vec<_> = pair.log.iter().filter(|s| s.from == CLIENT && s.has(Flags::CWR)).collect();
    assert!(echoes >= 4, "{echoes}");
    assert_eq!(cwr.len(), 1);
    assert!(cwr[0].nth > 10 && !cwr[0].transmit.retransmission);
    assert_eq!(pair.client().stats().ecn_reductions, 1);
    assert_eq!((pair.client().ssthresh(), pair.client().stats().retransmissions), (6_000, 0));
    assert_eq!(pair.read[SERVER], 60_000);
    assert!(!pair.server().ecn_echo);
}

#[test]
fn a_mark_in_each_of_two_windows_halves_twice() {
    let mut pair = Pair::established(ecn()).with_rule(|s| match (s.from, s.nth) {
        (CLIENT, 5 | 40) => Fate::Mark,
        _ => Fate::Deliver,
    });
    pair.to_write[CLIENT] = 100_000;
    pair.drive(ms(20));
    assert_eq!(pair.client().stats().ecn_reductions, 2);
    assert_eq!(pair.log.iter().filter(|s| s.has(Flags::CWR)).count(), 2);
}

#[test]
fn a_loss_and_a_mark_in_one_window_reduce_it_once() {
    // RFC 3168, 6.1.2.
    let mut pair = Pair::established(ecn()).with_rule(|s| match (s.from, s.nth) {
        (CLIENT, 2) => Fate::Mark,
        (CLIENT, 6) => Fate::Drop,
        _ => Fate::Deliver,
    });
    pair.to_write[CLIENT] = 40_000;
    pair.drive(ms(15));
    let stats = pair.client().stats();
    assert_eq!((stats.ecn_reductions, stats.fast_retransmits, stats.timeouts), (1, 1, 0));
    assert!(pair.client().ssthresh() >= 4_000, "{}", pair.client().ssthresh());
    assert_eq!(pair.read[SERVER], 40_000);
    let again: Vec<_> = pair.log.iter().filter(|s| s.transmit.retransmission).collect();
    assert!(again.iter().all(|s| !s.transmit.ect), "what is sent again is not marked (6.1.5)");
}

fn dctcp() -> Config {
    Config { congestion: Algorithm::Dctcp, ..ecn() }
}

/// Positions in the client's stream that the server's acknowledgments reach, with the echo of each.
fn echoes(pair: &Pair) -> Vec<(u32, bool)> {
    let first = pair.log.iter().find(|s| s.from == CLIENT && s.transmit.segment.len != 0).unwrap().transmit.segment.seq;
    let acks = pair.log.iter().filter(|s| s.from == SERVER && s.transmit.segment.ack.since(first) > 0);
    acks.map(|s| (s.transmit.segment.ack.since(first) as u32, s.has(Flags::ECE))).collect()
}

#[test]
fn dctcp_echoes_exactly_the_bytes_that_were_marked() {
    // RFC 8257, 3.2: with an acknowledgment for two segments, each change of the mark is acknowledged at once.
    for marked in [5..=5, 5..=6, 6..=8, 4..=9, 5..=20] {
        let mut pair = Pair::established(dctcp()).with_rule({
            let marked = marked.clone();
            move |s| if s.from == CLIENT && marked.contains(&s.nth) { Fate::Mark } else { Fate::Deliver }
        });
        pair.to_write[CLIENT] = 40_000;
        pair.drive(ms(20));
        assert_eq!(pair.read[SERVER], 40_000);
        let data = |s: &&Sent| s.from == CLIENT && s.transmit.segment.len != 0 && marked.contains(&s.nth);
        let bytes: u32 = pair.log.iter().filter(data).map(|s| u32::from(s.transmit.segment.len)).sum();
        let (mut before, mut echoed) = (0, 0);
        for (to, echo) in echoes(&pair) {
            echoed += if echo { to.saturating_sub(before) } else { 0 };
            before = before.max(to);
        }
        assert_eq!((echoed, before), (bytes, 40_000), "{marked:?}");
        assert!(!pair.server().ecn_echo);
    }
}

#[test]
fn dctcp_goes_on_when_every_segment_is_marked() {
    let mut pair = Pair::established(dctcp()).with_rule(|s| if s.from == CLIENT { Fate::Mark } else { Fate::Deliver });
    pair.to_write[CLIENT] = 100_000;
    pair.drive(ms(100));
    assert_eq!((pair.read[SERVER], pair.client().stats().retransmissions), (100_000, 0));
    assert!(pair.client().stats().ecn_reductions > 5);
    assert!(pair.client().cwnd() >= 2_000);
}
