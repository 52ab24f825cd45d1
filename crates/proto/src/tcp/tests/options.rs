//! RFC 7323: timestamps against old duplicates; RFC 5961: acknowledgments out of range.

use super::*;

/// A data segment for the server, as the client would send it now.
fn next_data(pair: &Pair, value: u32) -> Segment {
    Segment {
        seq: pair.server().wire_ack(),
        ack: seq(pair.server(), 1),
        window: 1_000,
        len: 100,
        flags: Flags::ACK,
        timestamps: Some((value, 0)),
        ..Segment::default()
    }
}

#[test]
fn an_old_timestamp_is_dropped_and_answered() {
    // RFC 7323, 5.3.
    let mut pair = Pair::established(config());
    pair.time = Instant::ZERO + ms(5);
    let new = next_data(&pair, 5_000);
    assert!(pair.inject(SERVER, new).readable());
    pair.ends[SERVER].handle_timeout(&config(), pair.time + ms(10));
    pair.transmit(SERVER);
    let old = next_data(&pair, 4_999);
    assert!(!pair.inject(SERVER, old).readable());
    assert_eq!((pair.server().stats().paws_drops, pair.server().bytes_received()), (1, 100));
    pair.transmit(SERVER);
    assert_eq!(pair.log.len(), 2);
    let same = next_data(&pair, 5_000);
    assert!(pair.inject(SERVER, same).readable());
}

#[test]
fn a_segment_without_the_agreed_timestamp_is_dropped() {
    // RFC 7323, 3.2.
    let mut pair = Pair::established(config());
    let bare = Segment { timestamps: None, ..next_data(&pair, 1) };
    assert!(!pair.inject(SERVER, bare).readable());
}

#[test]
fn after_a_long_idle_time_the_timestamp_counts_as_outdated() {
    // RFC 7323, 5.5: here a quarter of 2^32 ticks of 1 us, 18 minutes.
    let mut pair = Pair::established(config());
    pair.time = Instant::ZERO + Duration::from_secs(17 * 60);
    let old = next_data(&pair, u32::MAX - 5);
    assert!(!pair.inject(SERVER, old).readable());
    pair.time = Instant::ZERO + Duration::from_secs(19 * 60);
    assert!(pair.inject(SERVER, old).readable());
}

#[test]
fn the_echo_is_that_of_the_segment_which_made_the_acknowledgment_due() {
    // RFC 7323, 4.3: a delayed acknowledgment echoes the first of the two, so that the delay is part of the RTT.
    let mut pair = Pair::established(config());
    let first = next_data(&pair, 10);
    pair.inject(SERVER, first);
    let second = next_data(&pair, 20);
    pair.inject(SERVER, second);
    pair.transmit(SERVER);
    assert_eq!(pair.log[0].seg().timestamps.unwrap().1, 10);
    // A hole keeps the echo of the segment before it.
    let beyond = Segment { seq: pair.server().wire_ack() + 500, ..next_data(&pair, 30) };
    pair.inject(SERVER, beyond);
    pair.transmit(SERVER);
    assert_eq!(pair.log[1].seg().timestamps.unwrap().1, 10);
}

#[test]
fn an_acknowledgment_of_what_was_never_sent_is_questioned() {
    // RFC 9293, 3.10.7.4; RFC 5961, 5.
    let mut pair = Pair::established(config());
    let wild = Segment { ack: seq(pair.server(), 5_000), ..next_data(&pair, 1) };
    assert!(!pair.inject(SERVER, wild).readable());
    assert_eq!(pair.server().stats().challenge_acks, 1);
    let ancient = Segment { ack: seq(pair.server(), 1) - 1_000_000, ..next_data(&pair, 1) };
    assert!(!pair.inject(SERVER, ancient).readable());
    assert_eq!((pair.server().bytes_received(), pair.server().bytes_acked()), (0, 0));
}

#[test]
fn blocks_of_what_was_never_sent_or_is_acknowledged_are_ignored() {
    // RFC 2018, 5 and RFC 2883.
    let mut pair = Pair::established(config());
    pair.to_write[SERVER] = 10_000;
    pair.transmit(SERVER);
    pair.step(Instant::ZERO);
    let una = seq(pair.server(), 1);
    for (left, right, new) in
        [(una - 500, una, 0), (una, una + 100, 0), (una + 9_000, una + 10_001, 0), (una + 2_000, una + 3_000, 1_000)]
    {
        let mut segment = Segment { len: 0, ack: una, ..next_data(&pair, 1) };
        segment.sack.push(left, right);
        pair.inject(SERVER, segment);
        assert_eq!(pair.server().scoreboard.sacked(), new);
    }
}

#[test]
fn sequence_numbers_wrap_inside_a_transfer() {
    // RFC 9293, 3.4.
    let cfg = config();
    let client = Tcp::established(&cfg, Instant::ZERO, u32::MAX - 20_000, u32::MAX - 10);
    let server = Tcp::established(&cfg, Instant::ZERO, u32::MAX - 10, u32::MAX - 20_000);
    let mut pair = Pair::of(client, server, [cfg.clone(), cfg]).losing(&[18, 19, 25]);
    pair.to_write = [100_000, 5_000];
    pair.drive(ms(100));
    assert_eq!(pair.read, [5_000, 100_000]);
}

#[test]
fn a_connection_stays_small() {
    assert!(size_of::<Tcp>() <= 512, "{}", size_of::<Tcp>());
    assert!(size_of::<Received>() == 1);
}
