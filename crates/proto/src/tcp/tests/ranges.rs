//! Scoreboard and reassembly queue against a plain model: one flag a byte.

use super::super::reassembly::Reassembly;
use super::super::scoreboard::Scoreboard;
use crate::rng::Rng;
use alloc::vec;

const SPACE: u64 = 200;

#[test]
fn the_scoreboard_agrees_with_one_flag_a_byte() {
    for seed in 0..300 {
        let mut rng = Rng::from_words(&[seed, 10]);
        let (mut board, mut model, mut una) = (Scoreboard::default(), vec![false; SPACE as usize], 1);
        for _ in 0..60 {
            if rng.below(5) == 0 {
                una = (una + rng.below(20)).min(SPACE);
                model[..una as usize].fill(false);
                board.advance(una);
            }
            let left = una + 1 + rng.below(SPACE);
            let right = (left + rng.below(30)).min(SPACE);
            if left >= right {
                continue;
            }
            let span = &mut model[left as usize..right as usize];
            let new = span.iter().filter(|b| !**b).count() as u32;
            span.fill(true);
            assert_eq!(board.insert(left, right), new);
            assert_eq!(board.sacked() as usize, model.iter().filter(|b| **b).count());
            for at in una..SPACE {
                let below = model[..at as usize].iter().filter(|b| **b).count() as u32;
                assert_eq!(board.sacked_below(at), below);
                let hole = (at..SPACE).find(|&p| !model[p as usize]).unwrap_or(SPACE);
                let end = (hole..SPACE).find(|&p| model[p as usize]);
                assert_eq!(board.hole_from(at), (hole, end));
            }
            let last = (una..SPACE).rev().find(|&p| !model[p as usize]);
            assert_eq!(board.last_hole(una, SPACE).map(|h| h.1 - 1), last);
        }
    }
}

#[test]
fn is_lost_means_three_ranges_or_more_than_two_segments_above() {
    // RFC 6675, 4.
    let board = |ranges: &[(u64, u64)]| {
        let mut b = Scoreboard::default();
        for &(left, right) in ranges {
            b.insert(left, right);
        }
        b.lost_below(1000)
    };
    assert_eq!(board(&[(1001, 2001), (3001, 4001)]), None);
    assert_eq!(board(&[(1001, 3001)]), None, "exactly two segments are not more than two");
    assert_eq!(board(&[(1001, 3002)]), Some((1001, 2001)));
    assert_eq!(board(&[(1001, 2001), (3001, 4001), (5001, 6001)]), Some((1001, 3000)));
    assert_eq!(board(&[(10, 20), (30, 40), (50, 60), (70, 80)]), Some((30, 30)), "three small ranges do as well");
}

#[test]
fn a_peer_that_acknowledges_every_other_byte_buys_no_memory() {
    let mut board = Scoreboard::default();
    for n in 1..10_000 {
        board.insert(2 * n, 2 * n + 1);
    }
    assert_eq!(board.sacked(), 512);
}

#[test]
fn the_reassembly_queue_agrees_with_one_flag_a_byte() {
    for seed in 0..300 {
        let mut rng = Rng::from_words(&[seed, 11]);
        let (mut queue, mut model, mut next) = (Reassembly::default(), vec![false; SPACE as usize], 1);
        for _ in 0..60 {
            let start = next + rng.below(SPACE);
            let end = (start + 1 + rng.below(20)).min(SPACE);
            if start >= end {
                continue;
            }
            if start == next {
                next = (end..=SPACE).find(|&p| p == SPACE || !model[p as usize]).unwrap();
                assert_eq!(queue.advance(end), next);
                model[..next as usize].fill(false);
            } else {
                let span = &mut model[start as usize..end as usize];
                assert_eq!(queue.contains(start, end), span.iter().all(|b| *b));
                span.fill(true);
                assert!(queue.insert(start, end, u16::MAX));
                let first = queue.blocks(0).as_slice()[0];
                assert!(u64::from(first.0.0) <= start && end <= u64::from(first.1.0));
            }
            assert_eq!(queue.is_empty(), !model.iter().any(|b| *b));
        }
    }
}
