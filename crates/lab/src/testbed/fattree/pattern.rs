//! Who sends to whom (Al-Fares 2012, 3.5.2, 4.4.1, 4.4.3).

use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::fat_tree::FatTree;
use std::fmt;
use std::str::FromStr;

/// Draws of a staggered mapping until one is 1-to-1.
const TRIES_MAX: u32 = 10_000;

/// A benchmark of the suite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Each host to any other one, and each receives from one.
    Random,
    /// Host x to x + i.
    Stride(u32),
    /// To one's own subnet with the first probability, to one's pod with the second, to the others with what is left; 1-to-1.
    Staggered(f64, f64),
    /// What comes into a pod for one host ID comes, by two-level tables, over one core.
    InterPodIncoming,
    /// Hosts of a subnet send to hosts with the same ID, which by two-level tables is over one upward port.
    SameIdOutgoing,
    /// Each host to any other one, who may receive from several.
    Hotspots,
    /// Each host to every other one, one after the other, in an order of its own.
    Shuffle,
}

/// What a host sends: to whom, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Who sends.
    pub src: HostId,
    /// To whom.
    pub to: Vec<HostId>,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Random => write!(f, "random"),
            Pattern::Stride(i) => write!(f, "stride:{i}"),
            Pattern::Staggered(subnet, pod) => write!(f, "staggered:{subnet}/{pod}"),
            Pattern::InterPodIncoming => write!(f, "inter-pod-incoming"),
            Pattern::SameIdOutgoing => write!(f, "same-id-outgoing"),
            Pattern::Hotspots => write!(f, "hotspots"),
            Pattern::Shuffle => write!(f, "shuffle"),
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let (name, of) = text.split_once(':').map_or((text, None), |(name, of)| (name, Some(of)));
        let whole = |pattern| if of.is_none() { Ok(pattern) } else { Err(format!("{name} takes nothing after it")) };
        match name {
            "random" => whole(Pattern::Random),
            "inter-pod-incoming" => whole(Pattern::InterPodIncoming),
            "same-id-outgoing" => whole(Pattern::SameIdOutgoing),
            "hotspots" => whole(Pattern::Hotspots),
            "shuffle" => whole(Pattern::Shuffle),
            "stride" => match of.map(str::parse) {
                Some(Ok(i)) if i > 0 => Ok(Pattern::Stride(i)),
                _ => Err("a stride is a whole number above 0, as stride:4".into()),
            },
            "staggered" => {
                let both = of.and_then(|of| of.split_once('/'));
                let both = both.and_then(|(a, b)| Some((a.parse::<f64>().ok()?, b.parse::<f64>().ok()?)));
                match both {
                    Some((a, b)) if a >= 0.0 && b >= 0.0 && a + b <= 1.0 + 1e-9 => Ok(Pattern::Staggered(a, b)),
                    _ => Err("two probabilities of at most 1 together, as staggered:0.5/0.3".into()),
                }
            }
            _ => Err(format!(
                "no pattern is called {name:?}: random, stride:I, staggered:SUBNET/POD, inter-pod-incoming, same-id-outgoing, hotspots, shuffle"
            )),
        }
    }
}

impl Pattern {
    /// Who sends to whom; the same for the same seed.
    ///
    /// # Errors
    /// A stride that leads back to the sender.
    pub fn jobs(self, tree: FatTree, seed: u64) -> Result<Vec<Job>, String> {
        let n = tree.hosts();
        let mut rng = Rng::from_words(&[seed, u64::from_be_bytes(*b"fat-tree")]);
        let to: Vec<HostId> = match self {
            Pattern::Random => one_cycle(n, &mut rng),
            Pattern::Stride(i) if i % n == 0 => return Err(format!("with stride:{i}, {n} hosts send to themselves")),
            Pattern::Stride(i) => (0..n).map(|x| (x + i % n) % n).collect(),
            Pattern::Staggered(subnet, pod) => staggered(tree, [subnet, pod], &mut rng),
            Pattern::InterPodIncoming | Pattern::SameIdOutgoing => self.worst_case(tree),
            Pattern::Hotspots => (0..n).map(|x| (x + 1 + rng.below(u64::from(n) - 1) as u32) % n).collect(),
            Pattern::Shuffle => {
                let order = |src| {
                    let mut to: Vec<HostId> = (0..n).filter(|&x| x != src).collect();
                    (1..to.len()).rev().for_each(|i| to.swap(i, rng.below(i as u64 + 1) as usize));
                    Job { src, to }
                };
                return Ok((0..n).map(order).collect());
            }
        };
        Ok((0..).zip(to).map(|(src, to)| Job { src, to: vec![to] }).collect())
    }

    /// Mappings in which the static tables of figures 3.5 to 3.7 collide: an edge switch z sends what is for ID i by its upward port i + z, and so does
    /// the aggregation switch there.
    fn worst_case(self, tree: FatTree) -> Vec<HostId> {
        let (k, half) = (tree.k(), tree.half());
        let host = |pod: u32, switch: u32, id: u32| (pod % k * half + switch) * half + id;
        let mut to = vec![0; tree.hosts() as usize];
        for pod in 0..k {
            for switch in 0..half {
                for id in 0..half {
                    let (src, dst) = match self {
                        // All that is for one ID of a pod comes from edge switches of the same number, so over one core; and below each edge
                        // switch each host sends to another ID.
                        Pattern::InterPodIncoming => {
                            (host(pod + 1 + switch, (id + pod) % half, switch), host(pod, switch, id))
                        }
                        // The ID is the number of the edge switch, for all its hosts.
                        _ => (host(pod, switch, id), host(pod + 1 + id, id, switch)),
                    };
                    to[src as usize] = dst;
                }
            }
        }
        to
    }
}

/// A random permutation in which nobody stays: a single cycle (Sattolo).
fn one_cycle(n: u32, rng: &mut Rng) -> Vec<HostId> {
    let mut to: Vec<HostId> = (0..n).collect();
    (1..n as usize).rev().for_each(|i| to.swap(i, rng.below(i as u64) as usize));
    to
}

/// Host by host, a class by its probability and one of those who are free there; from the beginning where nobody is. After many tries, as if it were random.
fn staggered(tree: FatTree, [subnet, pod]: [f64; 2], rng: &mut Rng) -> Vec<HostId> {
    let n = tree.hosts();
    let class = |a: HostId, b: HostId| {
        let (a, b) = (tree.subnet_of(a), tree.subnet_of(b));
        if a == b { 0 } else { 1 + usize::from(a / tree.half() != b / tree.half()) }
    };
    'tries: for _ in 0..TRIES_MAX {
        let mut free: Vec<HostId> = (0..n).collect();
        let mut to = Vec::new();
        for src in 0..n {
            let drawn = rng.below(1 << 53) as f64 / (1u64 << 53) as f64;
            let wanted = usize::from(drawn >= subnet) + usize::from(drawn >= subnet + pod);
            let fits: Vec<usize> =
                (0..free.len()).filter(|&i| free[i] != src && class(src, free[i]) == wanted).collect();
            if fits.is_empty() {
                continue 'tries;
            }
            to.push(free.swap_remove(fits[rng.below(fits.len() as u64) as usize]));
        }
        return to;
    }
    one_cycle(n, rng)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::routing::fat_tree::{Peer, TwoLevelTable};
    use std::collections::BTreeMap;

    fn all() -> Vec<Pattern> {
        let names = "random stride:1 stride:8 staggered:1/0 staggered:0.5/0.3 inter-pod-incoming same-id-outgoing hotspots shuffle";
        names.split(' ').map(|name| name.parse().unwrap()).collect()
    }

    /// The load of each link between switches by the static tables, in flows, worst first.
    fn loads(k: u32, pattern: Pattern) -> Vec<usize> {
        let tree = FatTree::new(k).unwrap();
        let mut loads = BTreeMap::new();
        for job in pattern.jobs(tree, 1).unwrap() {
            let to = tree.host_address(job.to[0]).unwrap();
            let mut at = tree.edge(tree.subnet_of(job.src));
            loop {
                let port = tree.forward(at, &TwoLevelTable::generate(tree, at), to).unwrap();
                let Peer::Switch(next, _) = tree.peer(at, port) else { break };
                *loads.entry((at, port)).or_insert(0) += 1;
                at = next;
            }
        }
        let mut loads: Vec<usize> = loads.into_values().collect();
        loads.sort_unstable_by(|a, b| b.cmp(a));
        loads
    }

    #[test]
    fn each_is_read_as_it_is_written_and_every_host_sends_to_another() {
        for k in [4, 6] {
            let tree = FatTree::new(k).unwrap();
            for pattern in all() {
                assert_eq!(pattern.to_string().parse(), Ok(pattern));
                let jobs = pattern.jobs(tree, 3).unwrap();
                assert_eq!(jobs, pattern.jobs(tree, 3).unwrap());
                assert_eq!(jobs.len() as u32, tree.hosts());
                assert!(jobs.iter().all(|job| !job.to.contains(&job.src)), "{pattern}");
                let mut to: Vec<HostId> = jobs.iter().map(|job| job.to[0]).collect();
                to.sort_unstable();
                to.dedup();
                let is_one_to_one = to.len() as u32 == tree.hosts();
                assert!(is_one_to_one || matches!(pattern, Pattern::Hotspots | Pattern::Shuffle), "{pattern}");
            }
            assert_eq!(Pattern::Shuffle.jobs(tree, 1).unwrap()[0].to.len() as u32, tree.hosts() - 1);
        }
    }

    #[test]
    fn the_worst_cases_of_3_5_2_collide_by_static_tables_and_strides_do_not() {
        for k in [4, 6] {
            let half = k as usize / 2;
            assert_eq!(loads(k, Pattern::Stride(k * k / 4))[0], 1);
            // All hosts of a subnet share a link up to the aggregation switch, up to the core, and down from there.
            let outgoing = loads(k, Pattern::SameIdOutgoing);
            let shared = outgoing.iter().filter(|&&load| load == half).count();
            assert!(outgoing[0] == half && shared >= 3 * (k * k * k / 4) as usize / half, "{outgoing:?}");
            let incoming = loads(k, Pattern::InterPodIncoming);
            assert_eq!((incoming[0], incoming.iter().filter(|&&load| load == 1).count() > 0), (half, true));
        }
    }

    #[test]
    fn what_is_none_is_told() {
        for text in ["", "rand", "stride", "stride:0", "stride:x", "staggered:0.9/0.9", "staggered:nan/0", "random:1"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        assert!(Pattern::Stride(16).jobs(FatTree::new(4).unwrap(), 0).is_err());
    }
}
