//! The physical network: topology, switches, priority flow control, framing.

use serde::Serialize;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

use super::InputFile;
use super::record::PortSelector;
use crate::formats::{HpccTopology, HtsimTopology};
use crate::units::{Bytes, canonical};

/// The shape of a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// An extended generalised fat tree XGFT(h; m_1..m_h; w_1..w_h): a node of level i has `m[i-1]` children and a node
    /// of level i-1 has `w[i-1]` parents. k-ary n-trees, fat trees of k-port switches and single switches are told
    /// as one of these.
    Xgft {
        /// Children of a node of level 1, 2, ...
        m: Vec<u32>,
        /// Parents of a node of level 0 (a host), 1, ...
        w: Vec<u32>,
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

/// How a frame's path is chosen where several lead to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// By the destination's number, level by level.
    DModK,
    /// By the source's number, level by level.
    SModK,
    /// Anew for every frame.
    Random,
    /// By a hash of the flow (ECMP).
    Hash,
    /// By a hash of the destination alone (ECMP as in Hedera's testbed).
    HashDestination,
    /// Al-Fares's deterministic table: up port = (host's index under its edge + own position) mod up ports.
    TwoLevel,
    /// The least loaded port, and a few flows moved every period (Al-Fares 2012, 3.1.6).
    FlowClassifier,
    /// The least loaded port, and a path of its own for a large flow (Al-Fares 2012, 3.1.7).
    FlowScheduler,
    /// Hedera: a hash of the flow, and the first path with room for an elephant (Al-Fares 2012, 4.2.3).
    GlobalFirstFit,
    /// Hedera: a hash of the flow, and a core for each elephant's destination (Al-Fares 2012, 4.2.4).
    SimulatedAnnealing,
    /// No fat-tree but a tree whose links upwards carry all that hosts can send.
    NonBlocking,
    /// No fat-tree but a tree whose pods' one link upwards is oversubscribed (Al-Fares 2012, 3.5).
    Hierarchical,
}

impl Routing {
    /// Whether a control loop changes the paths of flows.
    pub fn has_control(self) -> bool {
        use Routing::*;
        matches!(self, FlowClassifier | FlowScheduler | GlobalFirstFit | SimulatedAnnealing)
    }

    /// Whether frames of a flow can overtake each other.
    pub fn reorders(self) -> bool {
        self == Routing::Random || self.has_control()
    }
}

/// A link, or a switch with all of its links, that carries nothing for a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// The switch, or one of its ports.
    pub port: PortSelector,
    /// From when on.
    #[serde(serialize_with = "canonical")]
    pub at: Duration,
    /// Until when; to the end where absent.
    #[serde(serialize_with = "canonical")]
    pub until: Option<Duration>,
    /// How long its neighbours take to notice.
    #[serde(serialize_with = "canonical")]
    pub detection: Duration,
}

/// The control loop of those routings that have one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Control {
    /// Time between two rounds.
    #[serde(serialize_with = "canonical")]
    pub period: Duration,
    /// Steps of annealing in a round.
    pub iterations: u32,
    /// Bytes from which on the flow scheduler takes a flow for large.
    #[serde(serialize_with = "canonical")]
    pub large: Bytes,
    /// When the central scheduler dies, over what it is entering; never where absent.
    #[serde(serialize_with = "canonical")]
    pub dies: Option<Duration>,
    /// When another takes its place, which knows nothing; never where absent.
    #[serde(serialize_with = "canonical")]
    pub returns: Option<Duration>,
}

/// The network's shape and its links.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// The shape.
    pub shape: Shape,
    /// External hosts' links, and every link where there are no levels to tell apart.
    pub link: Link,
    /// The links by level, level 1 (host to edge) first; empty where a file gives every link.
    pub levels: Vec<Link>,
    /// Client ports attached round robin to the switches of the top level.
    pub external_hosts: u32,
    /// The choice of paths.
    pub routing: Routing,
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
    /// The parts of a tree of two levels or more.
    pub fn blocks(&self) -> Option<Blocks> {
        let m = match &self.shape {
            Shape::Xgft { m, .. } => m.clone(),
            Shape::Htsim { file } => file.content.as_xgft().0,
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

/// What bounds a switch's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferPolicy {
    /// Each output's queue holds one buffer.
    Output,
    /// Each input's frames, wherever they wait, fill one buffer.
    Input,
    /// All frames of the switch fill the sum of its ports' buffers.
    Pooled,
}

/// When a switch forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// As soon as the head is in, where the output is free and not faster than the input.
    CutThrough,
    /// When the last bit is in.
    StoreAndForward,
}

/// Every switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Switch {
    /// Buffer of a port.
    #[serde(serialize_with = "canonical")]
    pub buffer: Bytes,
    /// What the buffer bounds.
    pub policy: BufferPolicy,
    /// From input to output.
    #[serde(serialize_with = "canonical")]
    pub delay: Duration,
    /// When it forwards.
    pub forwarding: Forwarding,
}

/// What to do about a cyclic buffer dependency in lossless priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deadlock {
    /// Do not run.
    Refuse,
    /// Run, with a warning.
    Warn,
    /// Do not look.
    Ignore,
}

/// Priority flow control (802.1Qbb) on every physical link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pfc {
    /// Whether the physical network is lossless.
    pub enabled: bool,
    /// The lossless priorities, bit p for priority p.
    pub lossless: u8,
    /// Pause when an input's occupancy reaches this.
    #[serde(serialize_with = "canonical")]
    pub xoff: Bytes,
    /// Resume when it is back at this.
    #[serde(serialize_with = "canonical")]
    pub xon: Bytes,
    /// Room above XOFF for what still arrives; computed from the link, and its bit errors, where absent.
    #[serde(serialize_with = "canonical")]
    pub headroom: Option<Bytes>,
    /// From a PFC frame's last bit to the peer's standing still.
    #[serde(serialize_with = "canonical")]
    pub response: Duration,
    /// Pause time asked for, in quanta of 512 bit times.
    pub quanta: u16,
    /// What to do about a cyclic buffer dependency.
    pub deadlock: Deadlock,
}

/// A family of framings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FramingKind {
    /// 18 bytes of header and FCS, 20 of preamble and gap, 64 at least.
    Ethernet,
    /// 2 bytes of header and nothing else, as ns-3's point-to-point link.
    Ppp,
}

/// What a frame costs on the wire.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Framing {
    /// The family.
    pub kind: FramingKind,
    /// The largest IP packet of the physical network.
    #[serde(serialize_with = "canonical")]
    pub mtu: Bytes,
}

impl Framing {
    /// Bytes of header and trailer which count in buffers too.
    pub fn header_bytes(&self) -> u64 {
        match self.kind {
            FramingKind::Ethernet => 18,
            FramingKind::Ppp => 2,
        }
    }

    /// Bytes of preamble and gap, which take wire time alone.
    pub fn gap_bytes(&self) -> u64 {
        match self.kind {
            FramingKind::Ethernet => 20,
            FramingKind::Ppp => 0,
        }
    }

    /// The shortest frame, header included.
    pub fn min_frame_bytes(&self) -> u64 {
        match self.kind {
            FramingKind::Ethernet => 64,
            FramingKind::Ppp => 0,
        }
    }
}
