//! Flows without packets: rates over links, from one change to the next.
//!
//! This level has no buffers, pauses, lost windows or timeouts; a scenario that runs at both levels shows the effect. Rates
//! are max-min fair, or follow a model of TCP (Al-Fares 2012, 4.3.5).

mod aimd;
mod ends;
mod max_min;

pub use aimd::Aimd;
pub use max_min::{Crossing, MaxMin};

use ends::Ends;
use sluicenet_proto::time::{Duration, Instant};

const PS_PER_S: u64 = 1_000_000_000_000;

/// The model that sets the rates of flows.
#[derive(Clone, Debug)]
pub enum Rates {
    /// Max-min fair at every instant.
    MaxMin(MaxMin),
    /// TCP's rates, updated every `tick`.
    Aimd {
        /// The rates.
        aimd: Aimd,
        /// A round trip.
        tick: Duration,
    },
}

impl Rates {
    fn rate(&self, flow: u32) -> f64 {
        match self {
            Rates::MaxMin(m) => m.rate(flow),
            Rates::Aimd { aimd, .. } => aimd.rate(flow),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Progress {
    /// Bits still to be delivered at `since`; infinite for a flow without an end.
    left: f64,
    /// Bits delivered until `since`.
    done: f64,
    since: Instant,
    rate: f64,
    is_live: bool,
}

impl Progress {
    fn settle(&mut self, now: Instant) {
        let bits = self.rate * (now.0 - self.since.0) as f64 / PS_PER_S as f64;
        self.since = now;
        self.done += bits.min(self.left);
        self.left = (self.left - bits).max(0.0);
    }

    /// When the flow ends at its current rate.
    fn end(&self) -> Option<Instant> {
        let ps = (self.left / self.rate * PS_PER_S as f64).ceil();
        (ps < u64::MAX as f64).then(|| Instant(self.since.0.saturating_add(ps as u64)))
    }
}

/// A network of links and the flows over it. Changes at one instant take effect together: rates are recomputed when time
/// advances.
#[derive(Clone, Debug)]
pub struct FlowLevel {
    rates: Rates,
    flows: Vec<Progress>,
    ends: Ends,
    now: Instant,
    next_tick: Instant,
    is_changed: bool,
    live: usize,
}

impl FlowLevel {
    /// A network without flows, at time 0.
    pub fn new(rates: Rates) -> FlowLevel {
        FlowLevel {
            rates,
            flows: Vec::new(),
            ends: Ends::default(),
            now: Instant(0),
            next_tick: Instant(0),
            is_changed: false,
            live: 0,
        }
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Number of current flows.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Starts a flow over these links: `bits` long (endless if absent), with at most `limit` bits per second. Its number is
    /// reused after its end.
    pub fn start(&mut self, path: &[Crossing], bits: Option<u64>, limit: f64) -> u32 {
        let flow = match &mut self.rates {
            Rates::MaxMin(m) => m.add(path, limit),
            Rates::Aimd { aimd, .. } => aimd.add(path, limit),
        };
        let at = flow as usize;
        if at == self.flows.len() {
            self.flows.push(Progress::default());
        }
        let left = bits.map_or(f64::INFINITY, |b| b as f64);
        self.flows[at] = Progress { left, since: self.now, is_live: true, ..Progress::default() };
        self.is_changed = true;
        self.live += 1;
        flow
    }

    fn remove(&mut self, flow: u32) {
        self.flows[flow as usize].is_live = false;
        self.ends.set(flow, None);
        match &mut self.rates {
            Rates::MaxMin(m) => m.remove(flow),
            Rates::Aimd { aimd, .. } => aimd.remove(flow),
        }
        self.live -= 1;
        self.is_changed = true;
    }

    /// Reroutes a flow over other links from now on.
    pub fn reroute(&mut self, flow: u32, path: &[Crossing]) {
        match &mut self.rates {
            Rates::MaxMin(m) => m.reroute(flow, path),
            Rates::Aimd { aimd, .. } => aimd.reroute(flow, path),
        }
        self.is_changed = true;
    }

    /// Changes a link's capacity, in bits per second; 0 while the link is down.
    pub fn set_capacity(&mut self, link: u32, capacity: f64) {
        match &mut self.rates {
            Rates::MaxMin(m) => m.set_capacity(link, capacity),
            Rates::Aimd { aimd, .. } => aimd.set_capacity(link, capacity),
        }
        self.is_changed = true;
    }

    /// The capacity of a link, in bits per second.
    pub fn capacity(&self, link: u32) -> f64 {
        match &self.rates {
            Rates::MaxMin(m) => m.capacity(link),
            Rates::Aimd { aimd, .. } => aimd.capacity(link),
        }
    }

    /// Bits that a flow has delivered so far; for an ended flow only until its number is reused.
    pub fn delivered_bits(&self, flow: u32) -> f64 {
        let f = &self.flows[flow as usize];
        let bits = f.rate * (self.now.0 - f.since.0) as f64 / PS_PER_S as f64;
        f.done + if f.is_live { bits.min(f.left) } else { 0.0 }
    }

    /// When the next flow ends or rates next change by themselves; [`Instant::MAX`] if neither is expected.
    pub fn poll_timeout(&mut self) -> Instant {
        self.renew();
        let ticks = matches!(self.rates, Rates::Aimd { .. }) && self.live > 0;
        let tick = if ticks { self.next_tick } else { Instant::MAX };
        self.ends.first().map_or(tick, |(at, _)| at.min(tick))
    }

    /// Advances the time to `now`, which is not past [`FlowLevel::poll_timeout`]. Calls `ended` for each flow that ends, in
    /// the order of their numbers.
    pub fn advance(&mut self, now: Instant, mut ended: impl FnMut(&FlowLevel, u32)) {
        self.renew();
        debug_assert!(now >= self.now);
        self.now = now;
        while let Some((_, flow)) = self.ends.first().filter(|&(at, _)| at <= now) {
            let f = &mut self.flows[flow as usize];
            f.settle(now);
            // The end is rounded up to a picosecond, and doubles have rounding errors: less than a bit is left.
            f.done += std::mem::take(&mut f.left);
            self.remove(flow);
            ended(self, flow);
        }
        if let Rates::Aimd { aimd, tick } = &mut self.rates
            && self.live > 0
            && self.next_tick <= now
        {
            self.next_tick = now + *tick;
            let (flows, ends) = (&mut self.flows, &mut self.ends);
            aimd.tick(|flow, rate| change(&mut flows[flow as usize], flow, rate, now, ends));
        }
    }

    /// Recomputes the rates after changes at this instant.
    fn renew(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let now = self.now;
        let (flows, ends) = (&mut self.flows, &mut self.ends);
        match &mut self.rates {
            Rates::MaxMin(m) => m.settle(|flow, rate| change(&mut flows[flow as usize], flow, rate, now, ends)),
            // A rerouted flow may be slower now; all other rates change only with a tick.
            Rates::Aimd { .. } => {
                for flow in 0..flows.len() as u32 {
                    let rate = self.rates.rate(flow);
                    let f = &mut flows[flow as usize];
                    if f.is_live && f.rate != rate {
                        change(f, flow, rate, now, ends);
                    }
                }
                self.next_tick = self.next_tick.max(now);
            }
        }
    }
}

fn change(f: &mut Progress, flow: u32, rate: f64, now: Instant, ends: &mut Ends) {
    f.settle(now);
    f.rate = rate;
    ends.set(flow, f.end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::rng::Rng;

    fn whole(links: &[u32]) -> Vec<Crossing> {
        links.iter().map(|&link| Crossing { link, share: 1.0 }).collect()
    }

    fn seconds(s: f64) -> Instant {
        Instant((s * PS_PER_S as f64) as u64)
    }

    /// Runs to the end; returns each flow with its end in seconds.
    fn ends(world: &mut FlowLevel) -> Vec<(u32, f64)> {
        let mut seen = Vec::new();
        while !world.is_empty() {
            let at = world.poll_timeout();
            assert!(at < Instant::MAX, "{} flows never end", world.len());
            world.advance(at, |w, flow| seen.push((flow, w.now().0 as f64 / PS_PER_S as f64)));
        }
        seen
    }

    #[test]
    fn who_is_left_takes_what_who_ends_leaves() {
        let mut w = FlowLevel::new(Rates::MaxMin(MaxMin::new([1e9])));
        let (a, b) = (
            w.start(&whole(&[0]), Some(1_000_000_000), f64::INFINITY),
            w.start(&whole(&[0]), Some(500_000_000), f64::INFINITY),
        );
        assert_eq!(ends(&mut w), [(b, 1.0), (a, 1.5)]);
        assert_eq!(w.delivered_bits(a), 1e9);
    }

    #[test]
    fn a_flow_over_a_link_that_is_down_waits_and_one_that_is_sent_around_does_not() {
        let mut w = FlowLevel::new(Rates::MaxMin(MaxMin::new([1e9, 1e9, 1e9])));
        let waits = w.start(&whole(&[0, 1]), Some(1_000_000_000), f64::INFINITY);
        w.advance(seconds(0.25), |_, _| ());
        w.set_capacity(1, 0.0);
        assert_eq!(w.poll_timeout(), Instant::MAX);
        w.advance(seconds(0.5), |_, _| ());
        let around = w.start(&whole(&[0, 1]), Some(1_000_000_000), f64::INFINITY);
        w.advance(seconds(0.6), |_, _| ());
        w.reroute(around, &whole(&[0, 2]));
        w.advance(seconds(1.0), |_, _| ());
        assert_eq!((w.delivered_bits(waits), w.delivered_bits(around)), (0.25e9, 0.4e9));
        w.set_capacity(1, 1e9);
        // Both flows have half of link 0 until one ends: 0.6 and 0.75 Gb are left.
        assert_eq!(ends(&mut w), [(around, 2.2), (waits, 2.35)]);
    }

    #[test]
    fn bits_are_neither_lost_nor_made() {
        for kind in 0..2 {
            let mut rng = Rng::from_words(&[3, kind]);
            let links = 12u64;
            let capacities = (0..links).map(|l| (1 + l % 3) as f64 * 1e9);
            let rates = match kind {
                0 => Rates::MaxMin(MaxMin::new(capacities)),
                _ => Rates::Aimd { aimd: Aimd::new(capacities, 120e6, 1), tick: Duration(100_000_000) },
            };
            let mut w = FlowLevel::new(rates);
            let (mut offered, mut delivered, mut number) = (0.0, 0.0, 0);
            while number < 600 || !w.is_empty() {
                let at = w.poll_timeout();
                let arrival = Instant(w.now().0 + 1 + rng.below(400_000_000));
                if number < 600 && arrival <= at {
                    w.advance(arrival, |w, f| delivered += w.delivered_bits(f));
                    let bits = 1 + rng.below(3_000_000);
                    let first = rng.below(links) as u32;
                    w.start(&whole(&[first, (first + 1) % links as u32]), Some(bits), f64::INFINITY);
                    (offered, number) = (offered + bits as f64, number + 1);
                } else {
                    w.advance(at, |w, f| delivered += w.delivered_bits(f));
                }
            }
            assert!((offered - delivered).abs() < 1e-3, "{offered} {delivered}");
        }
    }
}
