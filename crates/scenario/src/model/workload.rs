//! Who sends what to whom, and when.

use serde::Serialize;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

use super::InputFile;
use crate::distribution::Distribution;
use crate::formats::{Cdf, ConnectionMatrix, HpccFlows, Pair};
use crate::units::{Bytes, canonical};

/// What carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A connection.
    Tcp,
    /// Datagrams.
    Udp,
    /// A connection of TCPlight: a stream over a network that loses nothing.
    TcpLight,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 3] = [Transport::Tcp, Transport::Udp, Transport::TcpLight];

    /// As in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::TcpLight => "tcplight",
        }
    }

    /// Whether it is that of flows of old.
    pub fn is_tcp(&self) -> bool {
        *self == Transport::Tcp
    }
    /// Whether a flow has a connection, to be closed.
    pub fn connects(self) -> bool {
        self != Transport::Udp
    }
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

/// Whether messages share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connections {
    /// Opened before the clock starts and kept.
    Persistent,
    /// A new one for every query (or round).
    New,
}

/// Where the roles of a three-tier partition/aggregate application stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// An HLA, an MLA and a worker on every server; an MLA asks every worker of its chassis, its own host's included.
    Crisan2014Ch4,
    /// HLAs are the external hosts; an MLA asks the other servers of its rack.
    Crisan2014Ch2,
}

/// Hosts by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hosts {
    /// So many of them; which is the workload's to say.
    Count(u32),
    /// These, in this order, none twice.
    List(Vec<u32>),
}

impl Hosts {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Hosts::Count(n) => *n as usize,
            Hosts::List(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The priority (0 to 7) of a workload's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// The same for all.
    Fixed(u8),
    /// The sender's number modulo 8.
    PerHost,
}

/// Three tiers: a client asks a high-level aggregator (HLA), which asks mid-level ones (MLA), which ask workers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartitionAggregate {
    /// Queries in all, warm-up included; until the run's end where absent.
    pub queries: Option<u64>,
    /// Queries at the start which do not count.
    pub warmup_queries: u64,
    /// Bytes of every message in either direction.
    #[serde(serialize_with = "canonical")]
    pub message: Bytes,
    /// Between two queries of the whole network.
    pub inter_arrival: Distribution<Duration>,
    /// Where the roles stand.
    pub layout: Layout,
    /// Whether messages share connections.
    pub connections: Connections,
    /// The level whose subtrees are chassis (or racks).
    pub chassis: u32,
    /// What carries them.
    #[serde(skip_serializing_if = "Transport::is_tcp")]
    pub transport: Transport,
    /// Their priority.
    pub priority: u8,
}

/// Two tiers: aggregators ask workers directly.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartitionAggregate2 {
    /// The aggregators; a count takes the first hosts.
    pub aggregators: Hosts,
    /// The workers of each aggregator; a count takes the hosts after the aggregators.
    pub workers: Hosts,
    /// Whether both count VMs, numbered host by host, instead of hosts.
    pub among_vms: bool,
    /// Bytes of a request.
    #[serde(serialize_with = "canonical")]
    pub request: Bytes,
    /// Bytes of a worker's answer.
    #[serde(serialize_with = "canonical")]
    pub response: Bytes,
    /// Queries of each aggregator, warm-up included; until the run's end where absent.
    pub queries: Option<u64>,
    /// Queries of each at the start which do not count.
    pub warmup_queries: u64,
    /// Between two queries of an aggregator; one upon the other's completion where absent.
    pub inter_arrival: Option<Distribution<Duration>>,
    /// Whether messages share connections.
    pub connections: Connections,
    /// What carries them.
    #[serde(skip_serializing_if = "Transport::is_tcp")]
    pub transport: Transport,
    /// Their priority.
    pub priority: u8,
}

/// Flows from every server to random others until the run's end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Background {
    /// What carries them.
    pub transport: Transport,
    /// Bytes of a flow.
    pub flow_size: Distribution<Bytes>,
    /// Between two flows of a server, before `load`.
    pub inter_arrival: Distribution<Duration>,
    /// Flows within a chassis for each flow that leaves it: 0.3 keeps 0.3/1.3 = 23 % of the flows inside.
    pub intra_ratio: f64,
    /// The level whose subtrees are chassis (or racks).
    pub chassis: u32,
    /// The virtual machine of every server that sends and receives them.
    pub vm: u32,
    /// Divides the times between flows: 2 is twice the load.
    pub load: f64,
    /// Their priority.
    pub priority: u8,
}

impl Background {
    /// The chance that a flow stays in its chassis.
    pub fn intra_probability(&self) -> f64 {
        self.intra_ratio / (1.0 + self.intra_ratio)
    }
}

/// Many to one, at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Incast {
    /// Who sends; a count takes the first hosts that are not the receiver.
    pub senders: Hosts,
    /// Who receives.
    pub receiver: u32,
    /// Bytes from each sender in a round.
    #[serde(serialize_with = "canonical")]
    pub bytes: Bytes,
    /// How often.
    pub rounds: u64,
    /// From the end of a round to the start of the next.
    #[serde(serialize_with = "canonical")]
    pub gap: Duration,
    /// When the first round starts.
    #[serde(serialize_with = "canonical")]
    pub start: Duration,
    /// Whether rounds share connections.
    pub connections: Connections,
    /// What carries them.
    pub transport: Transport,
    /// Their priority.
    pub priority: u8,
}

/// A stretch of a hotspot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// When it ends.
    #[serde(serialize_with = "canonical")]
    pub until: Duration,
    /// What each source offers during it; nothing where 0.
    #[serde(serialize_with = "canonical")]
    pub rate: Rate,
}

/// Several sources offer one destination a load that changes over time, however fast it is taken from them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hotspot {
    /// Who sends; a count takes the first hosts that are not the destination.
    pub sources: Hosts,
    /// Who receives.
    pub destination: u32,
    /// Bytes an application hands over at a time.
    #[serde(serialize_with = "canonical")]
    pub message: Bytes,
    /// The load over time, in order.
    pub phases: Vec<Phase>,
    /// What carries it.
    pub transport: Transport,
    /// Its priority.
    pub priority: u8,
}

/// Who sends to whom in a permutation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Host i to host (i + stride) mod hosts.
    Stride(u32),
    /// A random permutation in which nobody sends to itself.
    Random,
    /// Each host to any other, whoever else sends there.
    NonBijective,
    /// One to one; to a host of the same edge switch or the same pod by chance (Al-Fares 2012, 3.5.2).
    Staggered {
        /// The chance of the same edge switch.
        edge: f64,
        /// The chance of the same pod, and not the same edge switch.
        pod: f64,
    },
    /// One to one; two-level tables send all that comes to hosts of one ID in a pod through one core (Al-Fares 2012, 3.5.2).
    InterPodIncoming,
    /// One to one; the hosts of an edge switch send to hosts of one ID in other pods (Al-Fares 2012, 3.5.2).
    SameIdOutgoing,
    /// All to so many, drawn at random.
    Hotspot(u32),
    /// The pairs of a file.
    File(InputFile<Vec<Pair>>),
}

/// Every host sends to one other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Permutation {
    /// Who to whom.
    pub pattern: Pattern,
    /// Flows of a host: the pattern is drawn so many times.
    #[serde(skip_serializing_if = "is_one")]
    pub flows: u32,
    /// Bytes of each flow; endless where absent.
    #[serde(serialize_with = "canonical")]
    pub bytes: Option<Bytes>,
    /// When the first flow starts.
    #[serde(serialize_with = "canonical")]
    pub start: Duration,
    /// From one flow's start to the next one's.
    #[serde(serialize_with = "canonical")]
    pub stagger: Duration,
    /// What carries them.
    pub transport: Transport,
    /// At which rate datagrams are offered; as fast as they leave where absent.
    #[serde(serialize_with = "canonical")]
    pub rate: Option<Rate>,
    /// Their priority.
    pub priority: Priority,
    /// Whether a host's flows leave from its machines in turn, not from its first.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub per_vm: bool,
    /// The first of those machines.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_vm: u32,
}

impl Permutation {
    /// The priority of what a host sends.
    pub fn priority_of(&self, host: u32) -> u8 {
        match self.priority {
            Priority::Fixed(p) => p,
            Priority::PerHost => (host % 8) as u8,
        }
    }
}

/// All to all: each host sends to every other in an order of its own, a few at a time (Al-Fares 2012, 4.4.3).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shuffle {
    /// Who takes part: the first hosts.
    pub hosts: u32,
    /// Bytes of each transfer.
    #[serde(serialize_with = "canonical")]
    pub bytes: Bytes,
    /// Transfers of a host under way at once.
    pub at_a_time: u32,
    /// When the first begin.
    #[serde(serialize_with = "canonical")]
    pub start: Duration,
    /// What carries them.
    pub transport: Transport,
    /// Their priority.
    pub priority: u8,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// Who sends.
    pub src: u32,
    /// Its machine.
    #[serde(skip_serializing_if = "is_zero")]
    pub src_vm: u32,
    /// Who receives.
    pub dst: u32,
    /// Its machine.
    #[serde(skip_serializing_if = "is_zero")]
    pub dst_vm: u32,
    /// Its bytes; endless where absent.
    #[serde(serialize_with = "canonical")]
    pub bytes: Option<Bytes>,
    /// When it starts.
    #[serde(serialize_with = "canonical")]
    pub start: Duration,
    /// What carries it.
    pub transport: Transport,
    /// At which rate datagrams are offered; as fast as they leave where absent.
    #[serde(serialize_with = "canonical")]
    pub rate: Option<Rate>,
    /// Its priority.
    pub priority: u8,
}

/// What a flow file held.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "format", rename_all = "kebab-case")]
pub enum FlowFileContent {
    /// Flows of HPCC's simulator, each with its own priority.
    Hpcc {
        /// The file.
        file: InputFile<HpccFlows>,
    },
    /// A connection matrix of htsim.
    Htsim {
        /// The file.
        file: InputFile<ConnectionMatrix>,
    },
}

/// The flows of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowFile {
    /// The flows.
    pub content: FlowFileContent,
    /// What carries them.
    pub transport: Transport,
    /// Their priority; the file's own (or 0) where absent.
    pub priority: Option<u8>,
}

/// Open-loop flows between random hosts: sizes from a file, arrivals Poisson at a share of the hosts' link rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Poisson {
    /// The sizes.
    pub cdf: InputFile<Cdf>,
    /// The share of every host's link that is offered, 0 to 1.
    pub load: f64,
    /// What carries them.
    pub transport: Transport,
    /// When the last flow starts at the latest.
    #[serde(serialize_with = "canonical")]
    pub until: Duration,
    /// Their priority.
    pub priority: u8,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Workload {
    /// Three tiers of requests and answers.
    PartitionAggregate(PartitionAggregate),
    /// Two tiers of requests and answers.
    #[serde(rename = "partition-aggregate-2")]
    PartitionAggregate2(PartitionAggregate2),
    /// Random flows beside the others.
    Background(Background),
    /// Many to one.
    Incast(Incast),
    /// Many to one, at a load that changes.
    Hotspot(Hotspot),
    /// Each to one other.
    Permutation(Permutation),
    /// All to all.
    Shuffle(Shuffle),
    /// One to one.
    Flow(Flow),
    /// The flows of a file.
    FlowFile(FlowFile),
    /// Random flows at a load.
    Poisson(Poisson),
}

impl Workload {
    /// Its name in a scenario.
    pub fn kind(&self) -> &'static str {
        match self {
            Workload::PartitionAggregate(_) => "partition-aggregate",
            Workload::PartitionAggregate2(_) => "partition-aggregate-2",
            Workload::Background(_) => "background",
            Workload::Incast(_) => "incast",
            Workload::Hotspot(_) => "hotspot",
            Workload::Permutation(_) => "permutation",
            Workload::Shuffle(_) => "shuffle",
            Workload::Flow(_) => "flow",
            Workload::FlowFile(_) => "flow-file",
            Workload::Poisson(_) => "poisson",
        }
    }

    /// Whether it ends by itself, so that a run without a duration may wait for it.
    pub fn is_finite(&self) -> bool {
        match self {
            Workload::PartitionAggregate(w) => w.queries.is_some(),
            Workload::PartitionAggregate2(w) => w.queries.is_some(),
            Workload::Background(_) => false,
            Workload::Permutation(w) => w.bytes.is_some(),
            Workload::Flow(w) => w.bytes.is_some(),
            Workload::Incast(_) | Workload::Hotspot(_) | Workload::Shuffle(_) => true,
            Workload::FlowFile(_) | Workload::Poisson(_) => true,
        }
    }
}
