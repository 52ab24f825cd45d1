//! RFC 9293, 3.6: every way to end.

use super::*;

fn states(pair: &Pair) -> (State, State) {
    (pair.client().state(), pair.server().state())
}

#[test]
fn one_side_closes_then_the_other() {
    // RFC 9293, 3.6, figure 12.
    let mut pair = Pair::established(config());
    pair.to_write[CLIENT] = 1_500;
    pair.closing[CLIENT] = true;
    pair.step(Instant::MAX);
    assert_eq!(states(&pair), (State::FinWait1, State::Established));
    pair.drive(ms(10));
    assert_eq!(states(&pair), (State::FinWait2, State::CloseWait));
    assert!(pair.received[SERVER].iter().any(|r| r.peer_closed()));
    pair.to_write[SERVER] = 3_000;
    pair.drive(ms(10));
    assert_eq!(pair.read, [3_000, 1_500], "the closed side goes on reading");
    pair.closing[SERVER] = true;
    pair.drive(us(20));
    assert_eq!(states(&pair), (State::FinWait2, State::LastAck));
    pair.drive(ms(10));
    assert_eq!(states(&pair), (State::TimeWait, State::Closed));
    pair.drive(Duration::from_secs(60));
    assert_eq!(states(&pair), (State::Closed, State::Closed));
    assert_eq!((pair.client().end(), pair.server().end()), (End::Orderly, End::Orderly));
    assert_eq!((pair.client().bytes_received(), pair.server().bytes_received()), (3_000, 1_500));
    assert_eq!((pair.client().bytes_acked(), pair.server().bytes_acked()), (1_500, 3_000));
}

#[test]
fn both_close_at_once() {
    // RFC 9293, 3.6, figure 13.
    let mut pair = Pair::established(config());
    pair.closing = [true, true];
    pair.drive(us(60));
    assert_eq!(states(&pair), (State::Closing, State::Closing));
    pair.drive(ms(10));
    assert_eq!(states(&pair), (State::TimeWait, State::TimeWait));
}

#[test]
fn a_lost_fin_is_sent_again() {
    for lost in 1..=2 {
        let mut fins = 0;
        let mut pair = Pair::established(config()).with_rule(move |s| {
            fins += usize::from(s.has(Flags::FIN));
            if s.has(Flags::FIN) && fins == lost { Fate::Drop } else { Fate::Deliver }
        });
        pair.to_write[CLIENT] = 5_000;
        pair.closing = [true, true];
        pair.drive(ms(200));
        assert_eq!(pair.read[SERVER], 5_000);
        assert!(matches!(states(&pair), (State::TimeWait | State::Closed, State::TimeWait | State::Closed)));
    }
}

#[test]
fn time_wait_answers_a_fin_again_and_waits_anew() {
    // RFC 9293, 3.10.7.4.
    let mut acks = 0;
    let mut pair = Pair::established(config()).with_rule(move |s| {
        acks += usize::from(s.from == CLIENT && s.nth == 0 && !s.has(Flags::FIN));
        if s.from == CLIENT && !s.has(Flags::FIN) && acks == 1 { Fate::Drop } else { Fate::Deliver }
    });
    pair.closing[CLIENT] = true;
    pair.drive(ms(1));
    pair.closing[SERVER] = true;
    pair.drive(ms(1));
    assert_eq!(states(&pair), (State::TimeWait, State::LastAck));
    let first = pair.client().poll_timeout().unwrap();
    pair.drive(ms(50));
    assert_eq!(states(&pair), (State::TimeWait, State::Closed));
    assert!(pair.client().poll_timeout().unwrap() > first);
}

#[test]
fn abort_resets_the_peer_even_with_data_in_flight() {
    // RFC 9293, 3.10.5. With data in flight, the RST's number is not the expected one. The peer challenges it (RFC
    // 5961, 3.2) and the answer is exact.
    for bytes in [0, 20_000] {
        let mut pair = Pair::established(config());
        pair.to_write[CLIENT] = bytes;
        pair.rule = Box::new(|s| if s.nth == 2 { Fate::Drop } else { Fate::Deliver });
        pair.step(Instant::ZERO);
        pair.ends[CLIENT].abort();
        pair.drive(ms(10));
        assert_eq!(states(&pair), (State::Closed, State::Closed));
        assert_eq!((pair.client().end(), pair.server().end()), (End::Aborted, End::Reset));
        assert!(pair.received[SERVER].iter().any(|r| r.closed()));
        assert_eq!((pair.client().poll_timeout(), pair.server().poll_timeout()), (None, None));
    }
}

#[test]
fn only_the_exact_reset_is_obeyed() {
    // RFC 5961, 3.2.
    let mut pair = Pair::established(config());
    let next = pair.server().wire_ack();
    let rst = |n: SeqNumber| Segment { seq: n, flags: Flags::RST, ..Segment::default() };
    assert!(!pair.inject(SERVER, rst(next + 100)).closed());
    assert_eq!((pair.server().state(), pair.server().stats().challenge_acks), (State::Established, 1));
    assert!(!pair.inject(SERVER, rst(next - 1)).closed());
    assert!(!pair.inject(SERVER, rst(next + 70_000)).closed());
    assert_eq!(pair.server().state(), State::Established);
    assert!(pair.inject(SERVER, rst(next)).closed());
    assert_eq!(pair.server().state(), State::Closed);
}

#[test]
fn a_syn_in_an_open_connection_is_challenged() {
    // RFC 5961, 4.2: at most one answer in half a second.
    let mut pair = Pair::established(config());
    let stamp = pair.client().ts_recent;
    for _ in 0..10 {
        let seq = pair.server().wire_ack();
        let flags = Flags::SYN;
        pair.inject(SERVER, Segment { seq, flags, timestamps: Some((stamp, 0)), ..Segment::default() });
        pair.transmit(SERVER);
    }
    assert_eq!((pair.server().state(), pair.log.len()), (State::Established, 1));
}

#[test]
fn an_old_reset_does_not_end_time_wait() {
    // RFC 1337, 3.
    let mut pair = Pair::established(config());
    pair.closing = [true, true];
    pair.drive(ms(10));
    let seq = pair.client().wire_ack();
    pair.inject(CLIENT, Segment { seq, flags: Flags::RST, ..Segment::default() });
    assert_eq!(pair.client().state(), State::TimeWait);
}

#[test]
fn a_fin_that_overtakes_its_data_waits_for_it() {
    let mut pair =
        Pair::established(config()).with_rule(|s| if s.nth == 1 { Fate::Late(us(200)) } else { Fate::Deliver });
    pair.to_write[CLIENT] = 1_000;
    pair.step(Instant::ZERO);
    pair.closing[CLIENT] = true;
    pair.drive(us(100));
    assert_eq!((pair.server().state(), pair.read[SERVER]), (State::Established, 0));
    pair.drive(us(200));
    assert_eq!((pair.server().state(), pair.read[SERVER]), (State::CloseWait, 1_000));
}

#[test]
fn a_peer_that_is_gone_is_given_up() {
    let cfg = Config { max_retries: 5, ..config() };
    let mut pair = Pair::established(cfg).with_rule(|s| if s.at.0 > 0 { Fate::Drop } else { Fate::Deliver });
    pair.time = Instant::ZERO + us(1);
    pair.to_write[CLIENT] = 1_000;
    pair.drive(Duration::from_secs(10));
    assert_eq!((pair.client().state(), pair.client().end()), (State::Closed, End::TimedOut));
    assert!(pair.log.last().unwrap().has(Flags::RST));
    assert_eq!(pair.client().stats().retransmissions, 5);
}
