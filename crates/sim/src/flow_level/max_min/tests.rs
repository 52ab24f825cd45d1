//! After changes, the rates equal those of filling all flows from zero.

use super::*;
use sluicenet_proto::rng::Rng;

/// Fills all flows together from zero, as in the definition.
fn from_nothing(capacities: &[f64], flows: &[(Vec<Crossing>, f64)]) -> Vec<f64> {
    let mut rates = vec![None; flows.len()];
    while rates.iter().any(Option::is_none) {
        let share = |path: &[Crossing], link: u32| path.iter().filter(|c| c.link == link).map(|c| c.share).sum::<f64>();
        let open_at = |link: u32, rates: &[Option<f64>]| -> f64 {
            let open = flows.iter().zip(rates).filter(|(_, r)| r.is_none());
            open.map(|((path, _), _)| share(path, link)).sum()
        };
        let left = |link: u32, rates: &[Option<f64>]| {
            let used = flows.iter().zip(rates).map(|((path, _), r)| share(path, link) * r.unwrap_or(0.0));
            capacities[link as usize] - used.sum::<f64>()
        };
        let of_links = (0..capacities.len() as u32).filter(|&l| open_at(l, &rates) > 0.0);
        let level = of_links
            .map(|l| left(l, &rates).max(0.0) / open_at(l, &rates))
            .chain(flows.iter().zip(&rates).filter(|(_, r)| r.is_none()).map(|((_, limit), _)| *limit))
            .fold(f64::INFINITY, f64::min);
        let now = rates.clone();
        for (i, (path, limit)) in flows.iter().enumerate() {
            let is_held = |c: &Crossing| left(c.link, &now).max(0.0) / open_at(c.link, &now) <= level * (1.0 + 1e-12);
            if now[i].is_none() && (*limit <= level || path.iter().any(is_held)) {
                rates[i] = Some(level);
            }
        }
    }
    rates.into_iter().map(Option::unwrap).collect()
}

fn whole(links: &[u32]) -> Vec<Crossing> {
    links.iter().map(|&link| Crossing { link, share: 1.0 }).collect()
}

#[test]
fn a_flow_that_is_spread_has_a_part_of_each_link() {
    let mut m = MaxMin::new([10.0, 3.0]);
    let half = [0, 1].map(|link| Crossing { link, share: 0.5 });
    let (spread, other) = (m.add(&half, f64::INFINITY), m.add(&whole(&[0]), f64::INFINITY));
    m.settle(|_, _| ());
    assert_eq!((m.rate(spread), m.rate(other), m.load(0), m.load(1)), (6.0, 7.0, 10.0, 3.0));
}

#[test]
fn one_link_is_divided_and_what_one_leaves_is_the_others() {
    let mut m = MaxMin::new([10.0, 4.0]);
    let (a, b, c) =
        (m.add(&whole(&[0]), f64::INFINITY), m.add(&whole(&[0, 1]), f64::INFINITY), m.add(&whole(&[1]), 1.0));
    let mut said = Vec::new();
    m.settle(|flow, rate| said.push((flow, rate)));
    said.sort_by_key(|s| s.0);
    assert_eq!(said, [(a, 7.0), (b, 3.0), (c, 1.0)]);
    m.remove(c);
    said.clear();
    m.settle(|flow, rate| said.push((flow, rate)));
    said.sort_by_key(|s| s.0);
    assert_eq!(said, [(a, 6.0), (b, 4.0)]);
    m.set_capacity(1, 0.0);
    m.settle(|_, _| ());
    assert_eq!((m.rate(a), m.rate(b), m.load(0)), (10.0, 0.0, 10.0));
}

#[test]
fn whatever_changes_the_rates_are_those_of_filling_all_from_nothing() {
    let mut rng = Rng::from_words(&[11]);
    for case in 0..60u64 {
        let links = 2 + rng.below(14) as usize;
        let mut capacities: Vec<f64> = (0..links).map(|_| (1 + rng.below(10)) as f64 * 1e9).collect();
        let mut m = MaxMin::new(capacities.iter().copied());
        let mut live: Vec<(u32, Vec<Crossing>, f64)> = Vec::new();
        for _ in 0..120 {
            for _ in 0..1 + rng.below(2) {
                let path = |rng: &mut Rng| {
                    let mut path: Vec<u32> = (0..1 + rng.below(5)).map(|_| rng.below(links as u64) as u32).collect();
                    path.sort_unstable();
                    path.dedup();
                    let share = |rng: &mut Rng| [1.0, 0.5, 0.25][rng.below(3) as usize];
                    path.iter().map(|&link| Crossing { link, share: share(rng) }).collect::<Vec<_>>()
                };
                match rng.below(8) {
                    0 | 1 if !live.is_empty() => {
                        let gone = live.swap_remove(rng.below(live.len() as u64) as usize);
                        m.remove(gone.0);
                    }
                    2 if !live.is_empty() => {
                        let i = rng.below(live.len() as u64) as usize;
                        live[i].1 = path(&mut rng);
                        m.reroute(live[i].0, &live[i].1);
                    }
                    3 => {
                        let link = rng.below(links as u64) as usize;
                        capacities[link] = rng.below(8) as f64 * 1e9;
                        m.set_capacity(link as u32, capacities[link]);
                    }
                    _ => {
                        let limit = if rng.below(3) == 0 { rng.below(4_000) as f64 * 1e6 } else { f64::INFINITY };
                        let path = path(&mut rng);
                        live.push((m.add(&path, limit), path, limit));
                    }
                }
            }
            let before: Vec<f64> = live.iter().map(|l| m.rate(l.0)).collect();
            let mut said = std::collections::BTreeMap::new();
            m.settle(|flow, rate| assert!(said.insert(flow, rate).is_none()));
            let flows: Vec<_> = live.iter().map(|l| (l.1.clone(), l.2)).collect();
            for ((l, want), before) in live.iter().zip(from_nothing(&capacities, &flows)).zip(before) {
                let rate = m.rate(l.0);
                assert!((rate - want).abs() <= 1.0 + want * 1e-6, "case {case}: {rate} is not {want}");
                assert_eq!(said.get(&l.0).copied().unwrap_or(before), rate, "who changes is named");
            }
        }
    }
}
