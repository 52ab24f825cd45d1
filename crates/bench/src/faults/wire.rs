//! A wire with faults.

use super::Tally;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use std::collections::BTreeMap;

/// Rates of faults, per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub lost: u64,
    pub doubled: u64,
    /// By up to three seconds.
    pub late: u64,
    /// Overtaken by those behind it.
    pub overtaken: u64,
}

impl Faults {
    /// Rates by the seed.
    pub fn any(rng: &mut Rng) -> Faults {
        Faults {
            lost: [0, 5, 50, 100][rng.below(4) as usize],
            doubled: [0, 20, 80][rng.below(3) as usize],
            late: [0, 2, 10][rng.below(3) as usize],
            overtaken: [0, 10, 100][rng.below(3) as usize],
        }
    }
}

/// Things on their way, by their time of arrival.
#[derive(Debug)]
pub(super) struct Wire<T> {
    flying: BTreeMap<(Instant, u64), T>,
    sent: u64,
}

/// How long a thing travels.
const LATENCY: Duration = Duration::from_us(10);

impl<T: Clone> Wire<T> {
    pub fn new() -> Wire<T> {
        Wire { flying: BTreeMap::new(), sent: 0 }
    }

    pub fn send(&mut self, now: Instant, thing: T, faults: Faults, rng: &mut Rng, tally: &mut Tally) {
        let mut hit = |rate: u64, name| {
            let hit = rate > 0 && rng.below(1_000) < rate;
            if hit {
                tally.count(name);
            }
            hit
        };
        if hit(faults.lost, "lost") {
            return;
        }
        let copies = if hit(faults.doubled, "doubled") { 2 } else { 1 };
        let (late, overtaken) = (hit(faults.late, "late"), hit(faults.overtaken, "out of order"));
        for _ in 0..copies {
            let beyond = match (late, overtaken) {
                (true, _) => Duration::from_ms(rng.below(3_000)),
                (_, true) => Duration::from_us(rng.below(300)),
                _ => Duration::ZERO,
            };
            self.flying.insert((now + LATENCY + beyond, self.sent), thing.clone());
            self.sent += 1;
        }
    }

    /// The next thing that has arrived by `now`.
    pub fn pop_arrived(&mut self, now: Instant) -> Option<T> {
        let first = self.flying.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
    /// When the next thing arrives.
    pub fn next(&self) -> Option<Instant> {
        self.flying.first_key_value().map(|(&(at, _), _)| at)
    }
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.flying.values()
    }
}
