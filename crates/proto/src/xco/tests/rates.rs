//! Rate limiting: 1/5 Gb/s and 10/13 Gb/s of section 4.2, weights, and sums that never exceed a link.

use super::{GBPS, rows};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::xco::rates::Rates;
use crate::xco::{Limits, Node};
use alloc::collections::BTreeMap;

const PERIOD: Duration = Duration::from_ms(2);
const LIMITS: Limits = Limits { flows: 64, flows_per_node: 16 };

fn after(rounds: u64) -> Instant {
    Instant::ZERO + PERIOD.saturating_mul(rounds)
}

/// The rates that flows were given last.
fn rates(policy: &mut Rates, last: &mut BTreeMap<(Node, Node), u32>) -> usize {
    let mut count = 0;
    while let Some(grant) = policy.poll_grant() {
        last.insert((grant.source, grant.destination), grant.rate_kbps);
        count += 1;
    }
    count
}

#[test]
fn five_senders_share_one_receiver() {
    let mut policy = Rates::new(rows(1, 1, 6, 10 * GBPS), PERIOD, LIMITS);
    let mut last = BTreeMap::new();
    for n in 1..6 {
        policy.handle_backlog(after(0), n, 0, 1).unwrap();
    }
    // The first has the whole link until the others have been given room.
    assert_eq!(rates(&mut policy, &mut last), 1);
    assert_eq!(last[&(1, 0)], GBPS);
    policy.handle_timeout(after(1));
    assert_eq!(rates(&mut policy, &mut last), 5);
    assert!(last.values().all(|&rate| rate == GBPS / 5), "{last:?}");
    // Nothing changes: permissions are renewed before they end.
    policy.handle_timeout(after(2));
    assert_eq!(rates(&mut policy, &mut last), 0);
    policy.handle_timeout(after(3));
    assert_eq!(rates(&mut policy, &mut last), 5);
    policy.handle_idle(1, 0);
    policy.remove_node(2);
    policy.handle_timeout(after(4));
    rates(&mut policy, &mut last);
    assert_eq!(last[&(3, 0)], GBPS / 3);
}

#[test]
fn thirteen_senders_share_an_uplink() {
    let mut policy = Rates::new(rows(2, 1, 13, 10 * GBPS), PERIOD, LIMITS);
    let mut last = BTreeMap::new();
    for n in 0..13 {
        policy.handle_backlog(after(0), n, 13 + n, 1).unwrap();
    }
    policy.handle_timeout(after(1));
    rates(&mut policy, &mut last);
    assert!(last.values().all(|&rate| rate == 10 * GBPS / 13), "{last:?}");
}

#[test]
fn shares_follow_weights() {
    let mut policy = Rates::new(rows(1, 1, 3, GBPS), PERIOD, LIMITS);
    let mut last = BTreeMap::new();
    policy.handle_backlog(after(0), 1, 0, 3).unwrap();
    policy.handle_backlog(after(0), 2, 0, 1).unwrap();
    policy.handle_timeout(after(1));
    rates(&mut policy, &mut last);
    assert_eq!((last[&(1, 0)], last[&(2, 0)]), (GBPS * 3 / 4, GBPS / 4));
}

#[test]
fn no_link_is_given_more_than_it_has() {
    for seed in 0..30 {
        let mut rng = Rng::from_words(&[seed]);
        let topology = rows(2, 2, 3, 2 * GBPS);
        let nodes = u64::from(topology.nodes());
        let capacity: alloc::vec::Vec<u64> =
            (0..topology.links() as u32).map(|n| topology.capacity(n).into()).collect();
        let mut policy = Rates::new(topology, PERIOD, LIMITS);
        let mut now = Instant::ZERO;
        for _ in 0..300 {
            now += Duration::from_us(rng.below(1_500));
            policy.handle_timeout(now);
            let (a, b) = (rng.below(nodes) as Node, rng.below(nodes) as Node);
            if rng.below(2) == 0 {
                let _ = policy.handle_backlog(now, a, b, 1 + rng.below(4) as u8);
            } else {
                policy.handle_idle(a, b);
            }
            for (n, &capacity) in capacity.iter().enumerate() {
                assert!(policy.given_kbps(n as u32) <= capacity, "seed {seed}, link {n}");
            }
        }
    }
}
