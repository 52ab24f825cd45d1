//! `[topology]`: the network's shape and its links.

use serde::Serialize;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

use super::{InputFile, ParameterSet};
use crate::files::Files;
use crate::formats::{HpccTopology, HtsimTopology};
use crate::setting::Kind;
use crate::topology::{self, Given};
use crate::units::{DELAY, LINK_RATE, Length, canonical};
use crate::{HOST_MAX, HOSTS_MAX, SWITCH_PORTS_MAX, choices, settings};

/// Levels of switches a tree may have.
pub const LEVELS_MAX: u32 = 8;
/// The rate of a pod's hosts, over the rate of its upward link (Al-Fares 2012, 3.5.1: 96 Mb/s each, and 106.67).
pub const OVERSUBSCRIPTION: f64 = 3.6;
/// The time that light takes through a metre of fibre.
pub const FIBRE: Duration = Duration::from_ns(5);
/// Times for a metre of cable: light in a vacuum takes 3.34 ns.
const DELAY_PER_METRE: core::ops::RangeInclusive<Duration> = Duration::from_ps(3_300)..=Duration::from_ns(20);
/// Chances that a bit is wrong on arrival.
const BIT_ERROR_RATE: core::ops::RangeInclusive<f64> = 0.0..=0.5;

choices! {
    /// A kind of network.
    pub(crate) enum ShapeKind {
        /// An extended generalised fat tree.
        Xgft = "xgft",
        /// A k-ary n-tree.
        KAryNTree = "k-ary-n-tree",
        /// A fat-tree.
        FatTree = "fat-tree",
        /// One switch.
        SingleSwitch = "single-switch",
        /// A topology file of HPCC's simulator.
        Hpcc = "hpcc",
        /// A topology file of htsim.
        Htsim = "htsim",
    }
}

/// The shape of a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// An extended generalised fat tree XGFT(h; m_1..m_h; w_1..w_h): a node of level i has `m[i-1]` children and a node
    /// of level i-1 has `w[i-1]` parents, with `links[i-1]` links to each. k-ary n-trees, fat trees of k-port switches
    /// and single switches are told as one of these.
    Xgft {
        /// Children of a node of level 1, 2, ...
        m: Vec<u32>,
        /// Parents of a node of level 0 (a host), 1, ...
        w: Vec<u32>,
        /// Links between a node of level 0 (a host), 1, ... and each of its parents.
        #[serde(skip_serializing_if = "is_single")]
        links: Vec<u32>,
    },
    /// Any graph, from a topology file of HPCC's simulator.
    Hpcc {
        /// The file.
        file: InputFile<HpccTopology>,
    },
    /// Tiers of switches, from a topology file of htsim.
    Htsim {
        /// The file.
        file: InputFile<HtsimTopology>,
    },
}

/// Whether no links are parallel.
fn is_single(links: &[u32]) -> bool {
    links.iter().all(|&n| n == 1)
}

/// How many of each a topology has; within the limits of [`crate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Hosts of the network itself: indices `0..hosts`.
    pub hosts: u32,
    /// External hosts, which follow them: indices `hosts..hosts + external`.
    pub external: u32,
    /// Switches, counted level by level from the edge.
    pub switches: u32,
    /// Ports of all switches, hosts and external hosts.
    pub ports: u32,
}

impl Counts {
    /// Every host that can send: those of the network, then the external ones.
    pub fn endpoints(&self) -> u32 {
        self.hosts + self.external
    }
}

/// What a link is like in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Its rate.
    #[serde(serialize_with = "canonical")]
    pub rate: Rate,
    /// How long light travels.
    #[serde(serialize_with = "canonical")]
    pub delay: Duration,
    /// The chance that a bit is wrong on arrival.
    pub bit_error_rate: f64,
}

choices! {
    /// How a frame's path is chosen if several lead to its destination.
    pub enum Routing {
        /// By the destination's number, level by level.
        DModK = "d-mod-k",
        /// By the source's number, level by level.
        SModK = "s-mod-k",
        /// Anew for every frame.
        Random = "random" | "spray",
        /// By a hash of the flow (ECMP).
        Hash = "hash" | "ecmp",
        /// By a hash of the frame: the same ports as with random.
        HashPacket = "hash-packet",
        /// By a hash of the destination alone (ECMP as in Hedera's testbed).
        HashDestination = "hash-destination",
        /// Al-Fares's deterministic table: up port = (host's index under its edge + own position) mod up ports.
        TwoLevel = "two-level",
        /// The least loaded port, and a few flows moved every period (Al-Fares 2012, 3.1.6).
        FlowClassifier = "flow-classifier",
        /// The least loaded port, and a path of its own for a large flow (Al-Fares 2012, 3.1.7).
        FlowScheduler = "flow-scheduler",
        /// Hedera: a hash of the flow, and the first path with room for an elephant (Al-Fares 2012, 4.2.3).
        GlobalFirstFit = "global-first-fit",
        /// Hedera: a hash of the flow, and a core for each elephant's destination (Al-Fares 2012, 4.2.4).
        SimulatedAnnealing = "simulated-annealing",
        /// The switch's least congested port, as congestion notifications tell (Crisan 2014, 2.3.5).
        SwitchAr = "switch-ar",
        /// The source adds a path at each congestion notification (Crisan 2014, 2.4).
        R2c2 = "r2c2",
        /// The same with a rate limiter for each path.
        R3c2 = "r3c2",
        /// No fat-tree but a tree whose links upwards carry all that hosts can send.
        NonBlocking = "non-blocking",
        /// No fat-tree but a tree whose pods' one link upwards is oversubscribed (Al-Fares 2012, 3.5).
        Hierarchical = "hierarchical",
    }
}

impl Routing {
    /// The oversubscription of the tree that stands in for the fat-tree, if one does.
    pub(crate) fn stands_in(self, oversubscription: f64) -> Option<f64> {
        match self {
            Routing::NonBlocking => Some(1.0),
            Routing::Hierarchical => Some(oversubscription),
            _ => None,
        }
    }

    /// Whether a control loop changes the paths of flows.
    pub fn has_control(self) -> bool {
        use Routing::*;
        matches!(self, FlowClassifier | FlowScheduler | GlobalFirstFit | SimulatedAnnealing)
    }

    /// Whether frames of a flow can overtake each other.
    pub fn reorders(self) -> bool {
        self.divides_flows() || self.has_control()
    }

    /// Whether frames of a flow take several paths at a time.
    pub fn divides_flows(self) -> bool {
        self.is_per_frame() || self.needs_notifications()
    }

    /// Whether a frame's path has nothing to do with that of the frame before it.
    pub fn is_per_frame(self) -> bool {
        matches!(self, Routing::Random | Routing::HashPacket)
    }

    /// Whether paths are chosen by congestion notifications.
    pub fn needs_notifications(self) -> bool {
        self == Routing::SwitchAr || self.is_by_source()
    }

    /// Whether sources choose paths.
    pub fn is_by_source(self) -> bool {
        matches!(self, Routing::R2c2 | Routing::R3c2)
    }
}

settings! {
    /// the network's shape and its links
    pub model struct Topology in "topology" (s, set: ParameterSet, files: &mut Files) {
        /// the kind of network
        let kind: ShapeKind,
        /// xgft: children of a node of level 1, 2, ...
        let m: Option<Vec<u32>> [1..=HOSTS_MAX],
        /// xgft: parents of a node of level 0 (links of a host), 1, ...
        let w: Option<Vec<u32>> [1..=HOSTS_MAX],
        /// k-ary-n-tree: children of a switch; fat-tree: ports of a switch
        let k: Option<u32> [2..=1 << 16],
        /// k-ary-n-tree: levels of switches
        let n: Option<u32> [1..=LEVELS_MAX],
        /// k-ary-n-tree: parents of a switch of level 1, 2, ... n-1, if fewer than k
        let slimmed: Option<Vec<u32>> [1..=1 << 16],
        /// single-switch: hosts
        let hosts: Option<u32> [1..=HOSTS_MAX],
        /// hpcc, htsim: the file, relative to the scenario's folder
        let file: Option<String>,
        /// every link's rate
        // Tables 2.1 and 3.1: link speed 10 Gb/s.
        let link_rate: Rate [LINK_RATE] = Rate::gbps(10),
        /// every link's delay
        // 10 m of fibre at 5 ns/m [d]: neither table gives a cable.
        let link_delay: Duration [DELAY] = set.plain_or(Duration::from_us(1), Duration::from_ns(50)),
        /// the length of every link's cable, instead of link_delay: "40 m"
        let cable: Option<Length>,
        /// the time that light takes through a metre of cable; default 5 ns
        // Glass with a refractive index of 1.468 takes 4.90 ns; SONiC's templates count 198,000 km/s, which is 5.05 ns.
        let delay_per_metre: Duration [DELAY_PER_METRE] = FIBRE,
        /// the chance that a bit is wrong on arrival; default 0
        let bit_error_rate: f64 [BIT_ERROR_RATE] = 0.0,
        /// links of one level, if they differ
        let level as (Kind::Tables(&[LevelKeys::SPEC])),
        /// fat-tree: the rate of a pod's hosts divided by the rate of its upward link, with hierarchical routing;
        /// default 3.6
        let oversubscription: f64 [1.0..=1000.0] = OVERSUBSCRIPTION,
        /// client ports at the top level's switches; default 0
        let external_hosts: u32 [0..=HOST_MAX] = 0,
        /// how a frame chooses among paths; default hash, in trees of the source's sets d-mod-k
        let routing: Option<Routing>,
        /// The shape.
        field shape: Shape =
            topology::shape(s, (kind, routing, external_hosts), Given { m, w, k, n, slimmed, hosts, file }, files)?,
        /// External hosts' links, and every link where there are no levels to tell apart.
        field link: Link = {
            let delay = topology::cable_delay(s, (cable, delay_per_metre), "link_delay")?.unwrap_or(link_delay);
            Link { rate: link_rate, delay, bit_error_rate }
        },
        /// The links by level, level 1 (host to edge) first; empty where a file gives every link.
        field levels: Vec<Link> = {
            let fat_tree = routing.filter(|_| kind == ShapeKind::FatTree);
            let up = fat_tree.and_then(|routing| routing.stands_in(oversubscription));
            topology::levels(s, &shape, (link, delay_per_metre), up)?
        },
        /// The time that light takes through a metre of cable.
        #[serde(skip)]
        field delay_per_metre: Duration = delay_per_metre,
        /// Client ports attached round robin to the switches of the top level.
        field external_hosts: u32 = external_hosts,
        /// The choice of paths.
        #[serde(serialize_with = "canonical")]
        field routing: Routing = topology::fitting(s, &shape, routing, kind == ShapeKind::FatTree, set)?,
    }
}

settings! {
    /// links of one level
    pub(crate) struct LevelKeys in "topology.level" (s) {
        /// 1 is between hosts and edge switches
        level: u32 [1..=LEVELS_MAX],
        /// their rate
        rate: Option<Rate> [LINK_RATE],
        /// their delay
        delay: Option<Duration> [DELAY],
        /// the length of their cables, instead of delay
        cable: Option<Length>,
        /// the chance that a bit is wrong on arrival
        bit_error_rate: Option<f64> [BIT_ERROR_RATE],
        /// parallel links between two boxes; default 1
        links: Option<u32> [1..=SWITCH_PORTS_MAX],
    }
}

/// How many hosts the parts of a tree have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Those of an edge switch.
    pub edge: u32,
    /// Those of a pod: all below one link of the top level.
    pub pod: u32,
}

impl Topology {
    /// How many hosts, switches and ports; checked against the limits when the scenario was read.
    pub fn counts(&self) -> Counts {
        topology::counts(&self.shape, self.external_hosts)
    }

    /// Whether several links join two boxes of a tree that no file describes.
    pub(crate) fn has_parallel_links(&self) -> bool {
        matches!(&self.shape, Shape::Xgft { links, .. } if !is_single(links))
    }

    /// The parts of a tree of two levels or more.
    pub fn blocks(&self) -> Option<Blocks> {
        let m = match &self.shape {
            Shape::Xgft { m, .. } => m.clone(),
            Shape::Htsim { file } => file.content.as_pgft().0,
            Shape::Hpcc { .. } => return None,
        };
        let (_, below) = m.split_last()?;
        Some(Blocks { edge: *below.first()?, pod: below.iter().product() })
    }

    /// Ports of a switch of the fat-tree (Al-Fares 2012, 3.1) whose pods and edge switches these are, of 4 or more.
    pub fn fat_tree_k(&self) -> Option<u32> {
        let Shape::Xgft { m, .. } = &self.shape else { return None };
        let k = *m.last()?;
        (k >= 4 && k % 2 == 0 && *m == [k / 2, k / 2, k]).then_some(k)
    }
}
