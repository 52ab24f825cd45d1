//! Scalable TCP in a connection, over a bottleneck with a drop-tail queue; `docs/extending.md` puts it beside the crate's
//! tests.

use sluicenet_proto::tcp::{Algorithm, Config, InitialWindow, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::tcp::Segment;
use std::collections::VecDeque;

const RATE: Rate = Rate::gbps(1);
/// One way: 125 segments of 1,000 bytes fill a gigabit for a round trip.
const DELAY: Duration = Duration::from_us(500);
const QUEUE_BYTES: u64 = 100_000;
const HEADER_BYTES: u64 = 78;

#[test]
fn it_fills_a_bottleneck_and_gives_up_an_eighth_at_a_time() {
    let cfg = Config {
        mss: 1_012,
        send_buffer: 1_000_000,
        recv_buffer: 1_000_000,
        max_buffer: 1_000_000,
        auto_buffer: false,
        initial_window: InitialWindow::Segments(10),
        initial_ssthresh: 150_000,
        delayed_ack: None,
        ack_every: 1,
        reassembly_limit: 2_000,
        congestion: Algorithm::Scalable,
        ..Config::crisan2014_tuned()
    };
    let mut sender = Tcp::established(&cfg, Instant::ZERO, 1, 2);
    let mut receiver = Tcp::established(&cfg, Instant::ZERO, 2, 1);
    let mut data: VecDeque<(Instant, Segment)> = VecDeque::new();
    let mut acks: VecDeque<(Instant, Segment)> = VecDeque::new();
    let (mut now, mut free_at, mut drops) = (Instant::ZERO, Instant::ZERO, 0);
    let (mut received, mut in_second_half) = (0, 0);
    let (mut peak, mut smallest_part) = (0, f64::MAX);
    let end = Instant::ZERO + Duration::from_ms(2_000);
    while now < end {
        let space = sender.send_space();
        sender.send(&cfg, now, space);
        let before = (sender.cwnd(), sender.stats().fast_retransmits);
        while let Some(t) = sender.poll_transmit(&cfg, now) {
            let bytes = u64::from(t.segment.len) + HEADER_BYTES;
            if RATE.bytes_in(free_at.since(now)) + bytes > QUEUE_BYTES {
                drops += 1;
                continue;
            }
            free_at = free_at.max(now) + RATE.time_for(bytes);
            data.push_back((free_at + DELAY, t.segment));
        }
        while let Some(t) = receiver.poll_transmit(&cfg, now) {
            acks.push_back((now + DELAY, t.segment));
        }
        let events = [data.front().map(|d| d.0), acks.front().map(|a| a.0), sender.poll_timeout()];
        now = events.into_iter().flatten().min().expect("a connection never waits for nothing");
        if data.front().is_some_and(|d| d.0 == now) {
            let (_, segment) = data.pop_front().unwrap();
            receiver.receive(&cfg, now, &segment, false);
            let bytes = receiver.recv(&cfg, now, u64::MAX);
            received += bytes;
            in_second_half += if now.as_ps() > end.as_ps() / 2 { bytes } else { 0 };
        } else if acks.front().is_some_and(|a| a.0 == now) {
            let (_, segment) = acks.pop_front().unwrap();
            sender.receive(&cfg, now, &segment, false);
        } else {
            sender.handle_timeout(&cfg, now);
        }
        peak = peak.max(sender.cwnd());
        if sender.stats().fast_retransmits > before.1 {
            smallest_part = smallest_part.min(f64::from(sender.ssthresh()) / f64::from(before.0));
        }
    }
    let stats = sender.stats();
    assert!(drops > 0 && stats.fast_retransmits >= 2, "{drops} drops, {stats:?}");
    assert_eq!(stats.timeouts, 0, "{stats:?}");
    assert!((0.85..=0.90).contains(&smallest_part), "an eighth of the window at a loss: {smallest_part}");
    let share = in_second_half as f64 / (0.5 * 2.0 * 125e6 * 1_000.0 / 1_078.0);
    assert!(share > 0.97, "the bottleneck is used: {share}, {received} bytes in all, window up to {peak}");
}
