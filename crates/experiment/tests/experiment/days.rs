//! Days' fixture E5 (`scenarios/peers/days-e5.toml`), small.

use crate::worlds::attempt;
use sluicenet_records::{DropRow, FlowRow, read};
use sluicenet_scenario::Scenario;
use sluicenet_testkit::{Dir, repository};
use std::collections::VecDeque;

const FLOW_BYTES: u64 = 1 << 20;
const MSS: u64 = 1_460;
/// Headers of IP and TCP, and the framing of `ppp`.
const HEADERS: u64 = 40 + 2;
/// At 100 Gb/s.
const PS_PER_BYTE: u64 = 80;
const LINK_DELAY_PS: u64 = 1_000_000;
/// Links from a host to one of another pod.
const LINKS: u64 = 6;

fn fixture(dir: &Dir, overrides: &[&str]) -> Vec<FlowRow> {
    let path = repository("scenarios/peers/days-e5.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let overrides: Vec<String> = ["topology.k=4"].iter().chain(overrides).map(ToString::to_string).collect();
    let loaded = Scenario::parse_in(&text, "days-e5.toml", path.parent(), &overrides).unwrap();
    attempt(&loaded, 1, Some(dir.0.clone())).unwrap();
    read::<FlowRow>(&dir.0).unwrap()
}

/// Time of a frame over all links, each of which stores and forwards it.
fn one_way_ps(frame_bytes: u64) -> u64 {
    LINKS * (LINK_DELAY_PS + frame_bytes * PS_PER_BYTE)
}

/// When the last byte of a flow that is alone arrives: the clock of its acknowledgments, by hand. Its links are never full, so
/// frames wait only at the sender, behind each other.
fn alone_ps() -> u64 {
    // Options: the MSS, and window scaling padded to four bytes. The data acknowledges the other end's.
    let syn = HEADERS + 4 + 4;
    let mut free = 2 * one_way_ps(syn);
    let mut now = free;
    let (mut cwnd, mut counted, mut in_slow_start) = (2 * MSS, 0, true);
    let (mut sent, mut acked, mut arrival) = (0, 0, 0);
    let mut acks: VecDeque<(u64, u64)> = VecDeque::new();
    loop {
        while sent < FLOW_BYTES && sent - acked + MSS.min(FLOW_BYTES - sent) <= cwnd {
            let bytes = MSS.min(FLOW_BYTES - sent);
            let start = free.max(now);
            free = start + (bytes + HEADERS) * PS_PER_BYTE;
            // The last segment is short, and catches up with the one before.
            arrival = (start + one_way_ps(bytes + HEADERS)).max(arrival + (bytes + HEADERS) * PS_PER_BYTE);
            acks.push_back((arrival + one_way_ps(HEADERS), bytes));
            sent += bytes;
        }
        if sent == FLOW_BYTES {
            return arrival;
        }
        let (at, bytes) = acks.pop_front().unwrap();
        now = at;
        acked += bytes;
        if in_slow_start {
            cwnd += bytes;
            in_slow_start = cwnd < 65_535;
            continue;
        }
        counted += bytes;
        if counted >= cwnd {
            counted -= cwnd;
            cwnd += MSS;
        }
    }
}

#[test]
fn a_flow_that_is_alone_takes_the_time_of_its_windows() {
    let dir = Dir::new("days-alone");
    let flows = fixture(&dir, &["workload.0.senders=1"]);
    assert_eq!(flows.iter().map(|f| f.fct_ps).collect::<Vec<_>>(), [Some(alone_ps())]);
}

#[test]
fn a_queue_of_packets_loses_acknowledgments_too() {
    // Two flows over one link in each direction need not lose anything with 200 packets, and do with four.
    let dir = Dir::new("days-queues");
    let long = fixture(&dir, &[]);
    assert!(long.len() == 16 && read::<DropRow>(&dir.0).unwrap().is_empty());
    let dir = Dir::new("days-short-queues");
    let short = fixture(&dir, &["switch.buffer=\"4 packets\"", "tcp.rto_min=\"1 ms\""]);
    let lost = read::<DropRow>(&dir.0).unwrap();
    assert!(short.iter().all(|f| f.fct_ps.is_some()) && !lost.is_empty());
    assert!(lost.iter().all(|d| d.reason == "switch_buffer"));
    // Of acknowledgments a queue of as many bytes would have held 143.
    let mean_bytes = |d: &DropRow| d.bytes as f64 / d.frames as f64;
    assert!(lost.iter().any(|d| mean_bytes(d) < 1_502.0), "{lost:?}");
}
