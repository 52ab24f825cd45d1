//! TCP's slow start and AIMD, tick by tick and without packets (Al-Fares 2012, 4.3.5).

use super::Crossing;
use crate::slots::insert;
use sluicenet_proto::rng::Rng;

#[derive(Clone, Debug)]
struct Flow {
    path: Box<[Crossing]>,
    limit: f64,
    rate: f64,
    in_slow_start: bool,
    is_live: bool,
}

/// Rates that grow and halve, in bits per second.
#[derive(Clone, Debug)]
pub struct Aimd {
    capacity: Vec<f64>,
    load: Vec<f64>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// The current flows, in the order of the last tick.
    order: Vec<u32>,
    /// Increase of a flow's rate per tick in congestion avoidance, and its initial rate: one segment per round trip.
    step: f64,
    rng: Rng,
}

impl Aimd {
    /// Links with these capacities in bits per second. A tick is a round trip, in which a flow's rate grows by `step` bits
    /// per second.
    pub fn new(capacities: impl IntoIterator<Item = f64>, step: f64, seed: u64) -> Aimd {
        let capacity: Vec<f64> = capacities.into_iter().collect();
        Aimd {
            load: vec![0.0; capacity.len()],
            capacity,
            flows: Vec::new(),
            free: Vec::new(),
            order: Vec::new(),
            step,
            rng: Rng::from_words(&[seed, u64::from_be_bytes(*b"aimdtick")]),
        }
    }

    /// Adds a flow over these links with at most `limit` bits per second; it begins with the next tick.
    pub fn add(&mut self, path: &[Crossing], limit: f64) -> u32 {
        let state = Flow { path: path.into(), limit, rate: 0.0, in_slow_start: true, is_live: true };
        let flow = insert(&mut self.flows, &mut self.free, state);
        self.order.push(flow);
        flow
    }

    /// Removes a flow.
    pub fn remove(&mut self, flow: u32) {
        self.add_to_load(flow, -1.0);
        let f = &mut self.flows[flow as usize];
        (f.is_live, f.rate) = (false, 0.0);
        // The flow's number becomes free after the next tick.
    }

    /// Reroutes a flow over other links, at its old rate if these have room.
    pub fn reroute(&mut self, flow: u32, path: &[Crossing]) {
        self.add_to_load(flow, -1.0);
        self.flows[flow as usize].path = path.into();
        let room = self.room(flow).max(0.0);
        let f = &mut self.flows[flow as usize];
        f.rate = f.rate.min(room);
        self.add_to_load(flow, 1.0);
    }

    /// Changes a link's capacity; 0 while the link is down.
    pub fn set_capacity(&mut self, link: u32, capacity: f64) {
        self.capacity[link as usize] = capacity;
    }

    /// The capacity of a link, bits per second.
    pub fn capacity(&self, link: u32) -> f64 {
        self.capacity[link as usize]
    }

    /// The rate of a flow, bits per second.
    pub fn rate(&self, flow: u32) -> f64 {
        self.flows[flow as usize].rate
    }

    /// The load of a link, bits per second.
    pub fn load(&self, link: u32) -> f64 {
        self.load[link as usize]
    }

    /// Advances by a round trip; calls `changed` for each flow whose rate changed.
    pub fn tick(&mut self, mut changed: impl FnMut(u32, f64)) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|&flow| {
            let is_live = self.flows[flow as usize].is_live;
            if !is_live {
                self.free.push(flow);
            }
            is_live
        });
        for i in (1..order.len()).rev() {
            order.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        // Incremental sums would drift.
        self.load.fill(0.0);
        order.iter().for_each(|&flow| self.add_to_load(flow, 1.0));
        for &flow in &order {
            let room = self.room(flow);
            let f = &mut self.flows[flow as usize];
            let before = f.rate;
            let after = if room <= 0.0 && before > 0.0 {
                f.in_slow_start = false;
                before / 2.0
            } else {
                let more = if f.in_slow_start && before > 0.0 { before } else { self.step };
                (before + more.min(room.max(0.0))).min(f.limit)
            };
            // A link that is down carries nothing; after its recovery, flows begin anew.
            let is_down = f.path.iter().any(|c| self.capacity[c.link as usize] <= 0.0);
            f.in_slow_start |= is_down;
            f.rate = if is_down { 0.0 } else { after };
            let by = f.rate - before;
            if by != 0.0 {
                f.path.iter().for_each(|c| self.load[c.link as usize] += c.share * by);
                changed(flow, f.rate);
            }
        }
        self.order = order;
    }

    /// The bandwidth that the links of a flow have left for it.
    fn room(&self, flow: u32) -> f64 {
        let left = |c: &Crossing| (self.capacity[c.link as usize] - self.load[c.link as usize]) / c.share;
        self.flows[flow as usize].path.iter().map(left).fold(f64::INFINITY, f64::min)
    }

    fn add_to_load(&mut self, flow: u32, times: f64) {
        let f = &self.flows[flow as usize];
        f.path.iter().for_each(|c| self.load[c.link as usize] += times * c.share * f.rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(links: &[u32]) -> Vec<Crossing> {
        links.iter().map(|&link| Crossing { link, share: 1.0 }).collect()
    }

    #[test]
    fn slow_start_doubles_until_the_path_is_full_and_then_rates_halve_and_add() {
        let mut a = Aimd::new([1_000.0], 100.0, 1);
        let flow = a.add(&whole(&[0]), f64::INFINITY);
        let mut course = Vec::new();
        for _ in 0..12 {
            a.tick(|_, _| ());
            course.push(a.rate(flow));
        }
        let saw = [100.0, 200.0, 400.0, 800.0, 1_000.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1_000.0, 500.0];
        assert_eq!(course, saw);
        a.set_capacity(0, 0.0);
        a.tick(|_, _| ());
        assert_eq!(a.rate(flow), 0.0);
        a.set_capacity(0, 1_000.0);
        (0..2).for_each(|_| a.tick(|_, _| ()));
        assert_eq!(a.rate(flow), 200.0);
    }

    #[test]
    fn in_the_long_run_flows_over_one_link_have_alike() {
        let mut a = Aimd::new([1_000.0, 300.0], 10.0, 3);
        let flows: Vec<u32> = (0..3).map(|_| a.add(&whole(&[0]), f64::INFINITY)).collect();
        let (held, gone) = (a.add(&whole(&[0, 1]), 50.0), a.add(&whole(&[0]), f64::INFINITY));
        let mut sums = [0.0; 3];
        for tick in 0..61_000 {
            a.tick(|_, _| ());
            assert!(a.load(0) <= 1_000.0 + 1e-6 && a.rate(held) <= 50.0);
            if tick == 500 {
                a.remove(gone);
            }
            if tick >= 1_000 {
                flows.iter().zip(&mut sums).for_each(|(&f, sum)| *sum += a.rate(f) / 60_000.0);
            }
        }
        let (least, most) = sums.iter().fold((f64::INFINITY, 0.0f64), |(l, m), &s| (l.min(s), m.max(s)));
        assert!(least > 0.9 * most && sums.iter().sum::<f64>() > 650.0, "{sums:?}");
        let next = a.add(&whole(&[1]), f64::INFINITY);
        assert_eq!((next, a.rate(next)), (gone, 0.0));
    }
}
