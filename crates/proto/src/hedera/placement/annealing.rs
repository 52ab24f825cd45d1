//! Simulated Annealing (Al-Fares 2012, figure 4.3 and 4.2.4): a core for each destination host, swapped between hosts of a pod.

mod aim;
#[cfg(test)]
mod tests;

use crate::hedera::demand::Pair;
use crate::hedera::tree::{Faults, Link, POD_HOSTS_MAX, Path, Tree};
use crate::hedera::{Host, LINK};
use crate::rng::Rng;
use aim::Crowded;
use alloc::vec;
use alloc::vec::Vec;

/// A link in the units of load: sums are exact, so the energy does not drift from its true value.
const UNIT: i32 = 1 << 20;

// All hosts of a pod send over one link.
const _: () = assert!(POD_HOSTS_MAX as i64 * (UNIT as i64) <= i32::MAX as i64);

/// Most hosts for which `c` is half of T0, the best value for a cluster of 16 (4.2.4, 4). For these the source's three
/// generators are enough.
const SMALL_HOSTS: u32 = 16;

/// Below this exponent e^x is less than half of the smallest number that is drawn.
const LEAST_EXPONENT: f64 = -38.0;

/// The result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Steps until the end: all requested steps, or fewer if no link was exceeded any more.
    pub iterations: u32,
    /// Swaps that were kept.
    pub accepted: u32,
    /// Exceeded capacity over all links before the run, in links.
    pub initial_energy: f64,
    /// Exceeded capacity of the best state, which is kept.
    pub energy: f64,
}

/// Flows to a host from below one edge switch.
#[derive(Clone, Copy, Debug)]
struct Inflow {
    edge: u16,
    pod: u16,
    weight: i32,
}

/// Total load that a host receives, in units of load.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    /// From below other edge switches.
    edges: i32,
    /// From other pods, included in `edges`.
    pods: i32,
}

/// The state that is kept between rounds of scheduling, and the memory of a round.
///
/// A pod has a *slot* for each of its hosts, and a slot has a core: in a fat-tree each core of the tree once. Hosts swap
/// slots.
#[derive(Clone, Debug)]
pub struct Annealing {
    tree: Tree,
    /// By host: its slot.
    slot_of: Vec<u32>,
    /// By slot: its host.
    host_at: Vec<u32>,
    /// By slot: its core; within a pod by aggregation switch.
    core_at: Vec<u16>,
    /// By pod and position of an aggregation switch: the first slot whose core is above that switch; and an end.
    reached_by: Vec<u32>,
    aggregation_of: Vec<u16>,
    /// Faults at the last assignment of cores to slots.
    avoided: Faults,
    /// Load less capacity of links from edge to aggregation switches, by edge switch and position, and of the reverse
    /// direction.
    edge_up: Vec<i32>,
    edge_down: Vec<i32>,
    /// Load less capacity of links between aggregation switches and cores, by core and pod.
    core_up: Vec<i32>,
    core_down: Vec<i32>,
    energy: i64,
    begins: Vec<u32>,
    inflows: Vec<Inflow>,
    totals: Vec<Total>,
    /// Load that a swap would move from one path to the other, by edge switch and by pod; zero between two tries.
    edge_net: Vec<i32>,
    pod_net: Vec<i32>,
    /// By edge switch: the last destination with an inflow from it, and the index of that inflow.
    seen: Vec<(u32, u32)>,
    crowded: Crowded,
    best: Best,
}

/// The swaps that lead back to the best state.
#[derive(Clone, Debug, Default)]
struct Best {
    /// Swaps since the best state.
    swaps: Vec<(Host, Host)>,
    /// Slots of the best state, once there were more swaps than hosts.
    slots: Vec<u32>,
}

/// Two hosts of one pod whose cores are swapped.
#[derive(Clone, Copy, Debug)]
struct Swap {
    hosts: [Host; 2],
    cores: [usize; 2],
    aggregations: [usize; 2],
    edges: [usize; 2],
    pod: usize,
}

#[inline(always)]
fn over(load: i32) -> i32 {
    load.max(0)
}

/// Increase of the exceeded load of two links when `net` moves from the first to the second.
#[inline(always)]
fn moved(from: i32, to: i32, net: i32) -> i64 {
    (over(from - net) - over(from) + over(to + net) - over(to)) as i64
}

impl Annealing {
    /// Each host of a pod has a core of its own, if there are enough cores; the hosts of an edge switch are spread over the
    /// aggregation switches.
    pub fn new(tree: Tree) -> Annealing {
        let (hosts, per_pod, cores) = (tree.hosts() as usize, tree.hosts_per_pod(), tree.cores());
        let mut annealing = Annealing {
            tree,
            slot_of: vec![0; hosts],
            host_at: vec![0; hosts],
            core_at: vec![0; hosts],
            reached_by: vec![0; (tree.pods * (tree.aggregations_per_pod + 1)) as usize],
            aggregation_of: (0..cores).map(|c| tree.aggregation_of(c) as u16).collect(),
            avoided: Faults::new(tree),
            edge_up: vec![0; (tree.edges() * tree.aggregations_per_pod) as usize],
            edge_down: vec![0; (tree.edges() * tree.aggregations_per_pod) as usize],
            core_up: vec![0; (tree.pods * cores) as usize],
            core_down: vec![0; (tree.pods * cores) as usize],
            energy: 0,
            begins: vec![0; hosts + 1],
            inflows: Vec::new(),
            totals: vec![Total::default(); hosts],
            edge_net: vec![0; tree.edges() as usize],
            pod_net: vec![0; tree.pods as usize],
            seen: Vec::new(),
            crowded: Crowded::new(hosts),
            best: Best::default(),
        };
        for pod in 0..tree.pods {
            let assigned = (0..per_pod).map(|host| {
                let (edge, index) = (host / tree.hosts_per_edge, host % tree.hosts_per_edge);
                let position = (index + edge / tree.cores_per_aggregation) % tree.aggregations_per_pod;
                (tree.core(position, edge % tree.cores_per_aggregation), pod * per_pod + host)
            });
            let assigned = assigned.collect();
            annealing.assign(pod, assigned);
        }
        annealing
    }

    /// The core by which a host receives.
    pub fn core_of(&self, dst: Host) -> u32 {
        self.core_at[self.slot_of[dst as usize] as usize] as u32
    }

    /// The path of all flows from one host to another, even if its links are down.
    pub fn path(&self, src: Host, dst: Host) -> Path {
        let (from, to) = (self.tree.edge_of(src), self.tree.edge_of(dst));
        let core = self.core_of(dst);
        if from == to {
            Path::Edge
        } else if self.tree.pod_of_edge(from) == self.tree.pod_of_edge(to) {
            Path::Aggregation(self.aggregation_of[core as usize])
        } else {
            Path::Core(core as u16)
        }
    }

    /// Searches for an assignment of cores that exceeds links by less, starting from the best state of the last run.
    pub fn run(
        &mut self,
        pairs: impl Iterator<Item = Pair>,
        faults: &Faults,
        iterations: u32,
        rng: &mut Rng,
    ) -> Outcome {
        if self.avoided != *faults {
            self.avoid(faults);
            self.avoided.clone_from(faults);
        }
        self.fill(pairs);
        self.load(faults);
        let initial = self.energy;
        let mut outcome = Outcome { initial_energy: links(initial), ..Outcome::default() };
        self.best.begin();
        let mut best = initial;
        // c = 0.5 T0 or 1000 T0, with the energy in links.
        let factor = if self.tree.hosts() <= SMALL_HOSTS { 0.5 } else { 1_000.0 };
        let scale = -factor * iterations as f64 / UNIT as f64;
        let aims = self.tree.hosts() > SMALL_HOSTS;
        if aims {
            self.find_crowded();
        }
        // The figure counts down to T = 0, where P is undefined: that step is left out.
        for temperature in (1..=iterations).rev() {
            // No state has a lower energy.
            if best == 0 {
                break;
            }
            outcome.iterations += 1;
            let swap = if aims && rng.below(2) == 0 { self.aimed(rng) } else { self.neighbour(rng) };
            let Some(swap) = swap else { continue };
            if !faults.is_empty() && !self.keeps_reach(&swap, faults) {
                continue;
            }
            let change = self.try_swap(&swap);
            if change > 0 {
                let exponent = scale * change as f64 / temperature as f64;
                if exponent < LEAST_EXPONENT || libm::exp(exponent) <= rng.unit_f64() {
                    continue;
                }
            }
            self.swap(&swap, change);
            outcome.accepted += 1;
            if aims {
                swap.hosts.into_iter().for_each(|host| self.crowded.add(host));
            }
            if self.energy < best {
                best = self.energy;
                self.best.begin();
            } else {
                self.best.on_swap(swap.hosts, &self.slot_of);
            }
        }
        self.best.restore(&mut self.slot_of);
        for (host, &slot) in self.slot_of.iter().enumerate() {
            self.host_at[slot as usize] = host as u32;
        }
        outcome.energy = links(best);
        outcome
    }

    /// Memory held, in bytes.
    pub fn state_bytes(&self) -> usize {
        let loads = 2 * (self.edge_up.capacity() + self.core_up.capacity()) * size_of::<i32>();
        let hosts = (self.slot_of.len() * 2 + self.begins.len()) * size_of::<u32>()
            + self.core_at.len() * size_of::<u16>()
            + self.totals.len() * size_of::<Total>();
        let switches = self.reached_by.len() * size_of::<u32>()
            + self.aggregation_of.len() * size_of::<u16>()
            + self.avoided.state_bytes()
            + (self.edge_net.len() + self.pod_net.len()) * size_of::<i32>()
            + self.seen.capacity() * size_of::<(u32, u32)>();
        let best =
            self.best.swaps.capacity() * size_of::<(Host, Host)>() + self.best.slots.capacity() * size_of::<u32>();
        loads + hosts + switches + best + self.crowded.state_bytes() + self.inflows.capacity() * size_of::<Inflow>()
    }

    /// Assigns cores to the hosts of a pod.
    fn assign(&mut self, pod: u32, mut assigned: Vec<(u32, Host)>) {
        let t = self.tree;
        assigned.sort_unstable_by_key(|&(core, host)| (t.aggregation_of(core), core, host));
        let first = pod * t.hosts_per_pod();
        for (slot, &(core, host)) in (first..).zip(&assigned) {
            self.slot_of[host as usize] = slot;
            self.host_at[slot as usize] = host;
            self.core_at[slot as usize] = core as u16;
        }
        let begins = (pod * (t.aggregations_per_pod + 1)) as usize;
        for a in 0..=t.aggregations_per_pod {
            let before = assigned.partition_point(|&(core, _)| t.aggregation_of(core) < a);
            self.reached_by[begins + a as usize] = first + before as u32;
        }
    }

    /// After a change of links: a host that its core does not reach gets another core of its pod. As few hosts as possible
    /// share a core.
    fn avoid(&mut self, faults: &Faults) {
        let t = self.tree;
        for pod in 0..t.pods {
            let first = pod * t.hosts_per_pod();
            let mut cores: Vec<u32> = (first..first + t.hosts_per_pod()).map(|host| self.core_of(host)).collect();
            let mut sharing = vec![0u32; t.cores() as usize];
            cores.iter().for_each(|&core| sharing[core as usize] += 1);
            // By edge switch and position of the aggregation switch.
            let mut under = vec![0u32; (t.edges_per_pod * t.aggregations_per_pod) as usize];
            let slot = |host: Host, core: u32| {
                (t.edge_of(host) % t.edges_per_pod * t.aggregations_per_pod + t.aggregation_of(core)) as usize
            };
            (first..).zip(&cores).for_each(|(host, &core)| under[slot(host, core)] += 1);
            let has_moved = |cores: &mut [u32], sharing: &mut [u32], under: &mut [u32]| {
                let mut has_moved = false;
                for (host, own) in (first..).zip(cores) {
                    let reached = (0..t.cores()).filter(|&core| reaches(&t, faults, core, host));
                    let least = reached.min_by_key(|&core| (sharing[core as usize], under[slot(host, core)], core));
                    let Some(core) = least else { continue };
                    let is_cut_off = !reaches(&t, faults, *own, host);
                    if is_cut_off || sharing[*own as usize] > sharing[core as usize] + 1 {
                        for (core, sign) in [(*own, -1), (core, 1)] {
                            sharing[core as usize] = sharing[core as usize].wrapping_add_signed(sign);
                            under[slot(host, core)] = under[slot(host, core)].wrapping_add_signed(sign);
                        }
                        (*own, has_moved) = (core, true);
                    }
                }
                has_moved
            };
            // Each move after the first round makes the numbers of hosts per core more even.
            while has_moved(&mut cores, &mut sharing, &mut under) {}
            self.assign(pod, cores.into_iter().zip(first..).collect());
        }
    }

    /// Groups the flows by destination; flows below one edge switch pass no link that could be chosen.
    fn fill(&mut self, pairs: impl Iterator<Item = Pair>) {
        let t = self.tree;
        let mut flows: Vec<(Host, u16, i32)> = Vec::new();
        self.begins.fill(0);
        let mut pods = vec![[0i64; 2]; t.pods as usize];
        for pair in pairs {
            let (edge, weight) =
                (t.edge_of(pair.src), (pair.flows as u64 * pair.demand as u64 / (LINK as u64 / UNIT as u64)) as i64);
            if edge == t.edge_of(pair.dst) {
                continue;
            }
            pods[t.pod_of_edge(edge) as usize][0] += weight;
            pods[t.pod_of(pair.dst) as usize][1] += weight;
            flows.push((pair.dst, edge as u16, weight as i32));
            self.begins[pair.dst as usize] += 1;
        }
        assert!(
            pods.iter().flatten().all(|&sum| sum <= POD_HOSTS_MAX as i64 * UNIT as i64),
            "demands exceed the hosts' links"
        );
        let mut sum = 0;
        for begin in &mut self.begins {
            sum += core::mem::replace(begin, sum);
        }
        self.inflows.clear();
        self.inflows.resize(flows.len(), Inflow { edge: 0, pod: 0, weight: 0 });
        for (dst, edge, weight) in flows {
            let at = &mut self.begins[dst as usize];
            let pod = t.pod_of_edge(edge as u32) as u16;
            self.inflows[*at as usize] = Inflow { edge, pod, weight };
            *at += 1;
        }
        // All flows from one edge switch to one host are one inflow. Offsets have advanced by one host.
        self.seen.clear();
        self.seen.resize(t.edges() as usize, (u32::MAX, 0));
        let (mut from, mut to) = (0, 0);
        for dst in 0..t.hosts() {
            let end = core::mem::replace(&mut self.begins[dst as usize], to as u32) as usize;
            let mut total = Total::default();
            let own = t.pod_of(dst) as u16;
            for at in from..end {
                let inflow = self.inflows[at];
                total.edges += inflow.weight;
                total.pods += if inflow.pod == own { 0 } else { inflow.weight };
                let seen = &mut self.seen[inflow.edge as usize];
                if seen.0 == dst {
                    self.inflows[seen.1 as usize].weight += inflow.weight;
                } else {
                    *seen = (dst, to as u32);
                    self.inflows[to] = inflow;
                    to += 1;
                }
            }
            self.totals[dst as usize] = total;
            from = end;
        }
        self.begins[t.hosts() as usize] = to as u32;
        self.inflows.truncate(to);
    }

    /// Computes the loads and the energy of the current state.
    fn load(&mut self, faults: &Faults) {
        let t = self.tree;
        for loads in [&mut self.edge_up, &mut self.edge_down, &mut self.core_up, &mut self.core_down] {
            loads.fill(-UNIT);
        }
        // A link that is down has no capacity.
        if !faults.is_empty() {
            for (index, edge, aggregation) in (0..t.edges())
                .flat_map(|e| (0..t.aggregations_per_pod).map(move |a| (e * t.aggregations_per_pod + a, e, a)))
            {
                if !faults.carries(Link::Edge { edge, aggregation }) {
                    self.edge_up[index as usize] = 0;
                    self.edge_down[index as usize] = 0;
                }
            }
            for (core, pod) in (0..t.cores()).flat_map(|core| (0..t.pods).map(move |pod| (core, pod))) {
                if !faults.carries(Link::Core { pod, core }) {
                    self.core_up[(core * t.pods + pod) as usize] = 0;
                    self.core_down[(core * t.pods + pod) as usize] = 0;
                }
            }
        }
        let n = t.aggregations_per_pod as usize;
        for dst in 0..t.hosts() {
            let (core, pod, edge) = (self.core_of(dst) as usize, t.pod_of(dst), t.edge_of(dst) as usize);
            let aggregation = self.aggregation_of[core] as usize;
            let row = core * t.pods as usize;
            for inflow in &self.inflows[self.begins[dst as usize] as usize..self.begins[dst as usize + 1] as usize] {
                self.edge_up[inflow.edge as usize * n + aggregation] += inflow.weight;
                self.core_up[row + inflow.pod as usize] += if inflow.pod as u32 == pod { 0 } else { inflow.weight };
            }
            self.edge_down[edge * n + aggregation] += self.totals[dst as usize].edges;
            self.core_down[row + pod as usize] += self.totals[dst as usize].pods;
        }
        let links = self.edge_up.iter().chain(&self.edge_down).chain(&self.core_up).chain(&self.core_down);
        self.energy = links.map(|&load| over(load) as i64).sum();
    }

    /// NEIGHBOR(): one of the three generators of 4.2.4, with equal probability; `None` if it has fewer than two hosts.
    #[inline(always)]
    fn neighbour(&self, rng: &mut Rng) -> Option<Swap> {
        let t = &self.tree;
        let draw = |rng: &mut Rng, n: u32| rng.below(n as u64) as u32;
        let (first, among, by_slot) = match draw(rng, 6) {
            // Hosts of a pod.
            0 | 1 => (draw(rng, t.pods) * t.hosts_per_pod(), t.hosts_per_pod(), false),
            // Hosts whose cores are above one aggregation switch.
            5 => {
                let (pod, a) = (draw(rng, t.pods), draw(rng, t.aggregations_per_pod));
                let at = (pod * (t.aggregations_per_pod + 1) + a) as usize;
                (self.reached_by[at], self.reached_by[at + 1] - self.reached_by[at], true)
            }
            // Hosts of an edge switch; the third generator gives the same hosts.
            _ => (draw(rng, t.edges()) * t.hosts_per_edge, t.hosts_per_edge, false),
        };
        if among < 2 {
            return None;
        }
        let a = draw(rng, among);
        let b = (a + 1 + draw(rng, among - 1)) % among;
        let hosts = match by_slot {
            true => [a, b].map(|n| self.host_at[(first + n) as usize]),
            false => [first + a, first + b],
        };
        Some(self.between(hosts))
    }

    /// Whether each host can be reached from the other host's core.
    fn keeps_reach(&self, swap: &Swap, faults: &Faults) -> bool {
        let [a, b] = swap.cores.map(|core| core as u32);
        reaches(&self.tree, faults, b, swap.hosts[0]) && reaches(&self.tree, faults, a, swap.hosts[1])
    }

    #[inline(always)]
    fn between(&self, hosts: [Host; 2]) -> Swap {
        let cores = hosts.map(|host| self.core_of(host) as usize);
        Swap {
            hosts,
            cores,
            aggregations: cores.map(|core| self.aggregation_of[core] as usize),
            edges: hosts.map(|host| self.tree.edge_of(host) as usize),
            pod: self.tree.pod_of(hosts[0]) as usize,
        }
    }

    #[inline(always)]
    fn inflows_of(begins: &[u32], host: Host) -> core::ops::Range<usize> {
        begins[host as usize] as usize..begins[host as usize + 1] as usize
    }

    /// Change of the energy by a swap. Only links on the paths of flows to the two hosts are visited.
    #[inline(always)]
    fn try_swap(&mut self, swap: &Swap) -> i64 {
        if swap.cores[0] == swap.cores[1] {
            return 0;
        }
        match swap.aggregations[0] == swap.aggregations[1] {
            true => self.change_of::<false>(swap),
            false => self.change_of::<true>(swap),
        }
    }

    /// `EDGES`: links between edge and aggregation switches change, too.
    #[inline(always)]
    fn change_of<const EDGES: bool>(&mut self, swap: &Swap) -> i64 {
        let Annealing {
            tree, begins, inflows, edge_up, edge_down, core_up, core_down, edge_net, pod_net, totals, ..
        } = self;
        let (n, pods, own) = (tree.aggregations_per_pod as usize, tree.pods as usize, swap.pod);
        let of = swap.hosts.map(|host| &inflows[Annealing::inflows_of(begins, host)]);
        for (inflows, sign) in of.iter().zip([1, -1]) {
            for inflow in *inflows {
                if EDGES {
                    edge_net[inflow.edge as usize] += sign * inflow.weight;
                }
                pod_net[inflow.pod as usize] += sign * inflow.weight;
            }
        }
        // Both hosts' pod: its own flows to the hosts pass no core.
        pod_net[own] = 0;
        let rows = swap.cores.map(|core| core * pods);
        let [a, b] = swap.aggregations;
        let mut change = 0;
        for inflow in of.into_iter().flatten() {
            if EDGES {
                let net = core::mem::take(&mut edge_net[inflow.edge as usize]);
                let row = inflow.edge as usize * n;
                change += moved(edge_up[row + a], edge_up[row + b], net);
            }
            let pod = inflow.pod as usize;
            let net = core::mem::take(&mut pod_net[pod]);
            change += moved(core_up[rows[0] + pod], core_up[rows[1] + pod], net);
        }
        let [first, second] = swap.hosts.map(|host| totals[host as usize]);
        change += moved(core_down[rows[0] + own], core_down[rows[1] + own], first.pods - second.pods);
        if EDGES {
            let [x, y] = swap.edges.map(|edge| edge * n);
            if x == y {
                change += moved(edge_down[x + a], edge_down[x + b], first.edges - second.edges);
            } else {
                change += moved(edge_down[x + a], edge_down[x + b], first.edges);
                change += moved(edge_down[y + b], edge_down[y + a], second.edges);
            }
        }
        change
    }

    /// Performs a swap: moves the flows and the hosts.
    fn swap(&mut self, swap: &Swap, change: i64) {
        let (n, pods, own) = (self.tree.aggregations_per_pod as usize, self.tree.pods as usize, swap.pod);
        for (side, &host) in swap.hosts.iter().enumerate() {
            let ([from, to], [a, b]) = match side {
                0 => (swap.cores, swap.aggregations),
                _ => ([swap.cores[1], swap.cores[0]], [swap.aggregations[1], swap.aggregations[0]]),
            };
            for inflow in &self.inflows[Annealing::inflows_of(&self.begins, host)] {
                let row = inflow.edge as usize * n;
                self.edge_up[row + a] -= inflow.weight;
                self.edge_up[row + b] += inflow.weight;
                let pod = inflow.pod as usize;
                let weight = if pod == own { 0 } else { inflow.weight };
                self.core_up[from * pods + pod] -= weight;
                self.core_up[to * pods + pod] += weight;
            }
            let total = self.totals[host as usize];
            self.edge_down[swap.edges[side] * n + a] -= total.edges;
            self.edge_down[swap.edges[side] * n + b] += total.edges;
            self.core_down[from * pods + own] -= total.pods;
            self.core_down[to * pods + own] += total.pods;
        }
        let [x, y] = swap.hosts.map(|host| host as usize);
        self.slot_of.swap(x, y);
        self.host_at[self.slot_of[x] as usize] = x as u32;
        self.host_at[self.slot_of[y] as usize] = y as u32;
        self.energy += change;
    }
}

/// Whether frames from a core reach a host.
fn reaches(tree: &Tree, faults: &Faults, core: u32, host: Host) -> bool {
    faults.carries(Link::Core { pod: tree.pod_of(host), core })
        && faults.carries(Link::Edge { edge: tree.edge_of(host), aggregation: tree.aggregation_of(core) })
}

fn links(energy: i64) -> f64 {
    energy as f64 / UNIT as f64
}

impl Best {
    /// The current state is the best.
    fn begin(&mut self) {
        self.swaps.clear();
        self.slots.clear();
    }

    /// Two hosts have swapped slots since the best state.
    fn on_swap(&mut self, hosts: [Host; 2], slot_of: &[u32]) {
        if !self.slots.is_empty() {
            return;
        }
        self.swaps.push((hosts[0], hosts[1]));
        if self.swaps.len() > slot_of.len() {
            let mut slots = slot_of.to_vec();
            self.restore(&mut slots);
            self.slots = slots;
        }
    }

    fn restore(&mut self, slot_of: &mut [u32]) {
        if !self.slots.is_empty() {
            slot_of.copy_from_slice(&self.slots);
        }
        for (a, b) in self.swaps.drain(..).rev() {
            slot_of.swap(a as usize, b as usize);
        }
    }
}
