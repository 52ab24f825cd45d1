//! The typed, validated model of a scenario: plain data, every default resolved.

mod host;
mod network;
mod policy;
mod record;
mod table;
mod testbed;
mod workload;

pub use host::{
    Adapter, Congestion, InitialWindow, Overlay, Queueing, Server, SlowVm, Tcp, TcpLight, TcpPreset, Udp, VSwitch,
    Weight, WhenFull, ZBridge, ZCredit,
};
pub use network::{
    Blocks, BufferPolicy, Control, Counts, Deadlock, Failure, Forwarding, Framing, FramingKind, Link, Pfc, Routing,
    Shape, Switch, Topology,
};
pub use policy::{Party, Policy, Rule, Tenant};
pub use record::{PortSelector, Record};
pub use table::{Figure, Table, TableAxis};
pub use testbed::{TenantKind, Testbed, VirtualSwitch};
pub use workload::{
    Background, Connections, Flow, FlowFile, FlowFileContent, Hosts, Hotspot, Incast, Layout, PartitionAggregate,
    PartitionAggregate2, Pattern, Permutation, Phase, Poisson, Priority, Shuffle, Transport, Workload,
};

use serde::Serialize;
use sluicenet_proto::time::Duration;
use std::sync::Arc;

use super::places::Places;
use super::units::canonical;

/// The set of default values a scenario starts from; two of them are a source's tables, and they are never merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParameterSet {
    /// Crisan 2014, Table 2.1: the CEE network of chapter 2.
    Crisan2014Ch2,
    /// Crisan 2014, Tables 3.1 and 3.2: the overlay networks of chapters 3 and 4.
    Crisan2014Ch3,
    /// A generic 10 Gb/s network of store-and-forward drop-tail switches.
    Plain,
}

/// Which network loses frames and which holds them back: the first letter is the virtual one, the second the physical.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum FlowControl {
    /// Both lossy.
    Ll,
    /// Virtual lossy, physical lossless.
    Lz,
    /// Virtual lossless, physical lossy.
    Zl,
    /// Both lossless.
    Zz,
}

/// What hypervisors put under the transports of their machines (Crisan 2014, 5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hypervisor {
    /// Nothing, and both networks drop frames.
    Lossy,
    /// Nothing, and both networks hold frames back.
    Pfc,
    /// A TCP connection between each two of them, over networks that hold frames back.
    Tcp,
    /// Credits and reliability, over networks that hold frames back.
    ZFabric,
}

impl Hypervisor {
    /// Which networks hold frames back.
    pub fn flow_control(self) -> FlowControl {
        if self == Hypervisor::Lossy { FlowControl::Ll } else { FlowControl::Zz }
    }
}

impl FlowControl {
    /// From its two halves.
    pub fn new(virtual_lossless: bool, physical_lossless: bool) -> FlowControl {
        match (virtual_lossless, physical_lossless) {
            (false, false) => FlowControl::Ll,
            (false, true) => FlowControl::Lz,
            (true, false) => FlowControl::Zl,
            (true, true) => FlowControl::Zz,
        }
    }

    /// Whether the virtual network holds frames back.
    pub fn virtual_lossless(self) -> bool {
        matches!(self, FlowControl::Zl | FlowControl::Zz)
    }

    /// Whether the physical network holds frames back.
    pub fn physical_lossless(self) -> bool {
        matches!(self, FlowControl::Lz | FlowControl::Zz)
    }
}

/// How the rates of flows come to be where there are no packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedRates {
    /// Max-min fair at every instant.
    MaxMin,
    /// TCP's slow start and AIMD, round trip by round trip (Al-Fares 2012, 4.3.5).
    Aimd,
}

/// The rates of flows where there are no packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowLevel {
    /// Who makes them.
    pub rates: SharedRates,
    /// A round trip of `aimd`.
    #[serde(serialize_with = "canonical")]
    pub tick: Duration,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Every packet.
    Packet,
    /// The rates of flows.
    Flow,
}

impl Level {
    /// Whether packets are simulated.
    pub fn is_packet(&self) -> bool {
        *self == Level::Packet
    }
}

/// A scenario: all that a run depends on but the program itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Its name; the file's where it gives none.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The seed of every random choice.
    pub seed: u64,
    /// When to stop; without it the run ends when every finite workload has.
    #[serde(serialize_with = "canonical")]
    pub duration: Option<Duration>,
    /// What is cut from the statistics at the start.
    #[serde(serialize_with = "canonical")]
    pub warmup: Duration,
    /// The set of defaults it started from.
    pub parameters: ParameterSet,
    /// Whether packets or the rates of flows are simulated.
    #[serde(skip_serializing_if = "Level::is_packet")]
    pub level: Level,
    /// The rates of flows; without effect unless `level` is flow.
    pub flow_level: FlowLevel,
    /// The network's shape and its links.
    pub topology: Topology,
    /// The control loop, where the routing has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// What fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Every switch.
    pub switch: Switch,
    /// Priority flow control on every physical link.
    pub pfc: Pfc,
    /// Every server's network adapter.
    pub adapter: Adapter,
    /// Every server.
    pub server: Server,
    /// Every server's virtual switch; without effect unless `server.virtual_network`.
    pub vswitch: VSwitch,
    /// Credits between virtual machines; without effect unless `server.virtual_network`.
    pub zcredit: ZCredit,
    /// Reliability between servers; without effect unless `server.virtual_network`.
    pub zbridge: ZBridge,
    /// Which machines may talk to each other; all of them where there is nothing.
    #[serde(skip_serializing_if = "Policy::is_empty")]
    pub policy: Policy,
    /// The overlay tunnels; without effect unless `server.virtual_network`.
    pub overlay: Overlay,
    /// What a frame costs on the wire.
    pub framing: Framing,
    /// Every TCP stack.
    pub tcp: Tcp,
    /// Every UDP stack.
    pub udp: Udp,
    /// Every TCPlight stack.
    pub tcplight: TcpLight,
    /// Who sends what, in the order of the file.
    pub workloads: Vec<Workload>,
    /// What to write down.
    pub record: Record,
    /// How it is run between real tenants; without effect on a simulation.
    pub testbed: Testbed,
    /// What `run` shows of all variants, beside what a source says.
    #[serde(skip)]
    pub tables: Vec<Table>,
    /// Where the file says all this.
    #[serde(skip)]
    pub places: Places,
}

impl Scenario {
    /// The short name of which networks are lossless.
    pub fn flow_control(&self) -> FlowControl {
        FlowControl::new(self.server.virtual_network && self.vswitch.lossless, self.pfc.enabled)
    }
}

/// An input file of a scenario: its name as written, and what was read from it.
///
/// The content is shared between the variants of a sweep. A canonical form holds the name alone: the bytes are hashed
/// from [`Loaded::inputs`](super::Loaded::inputs).
#[derive(Debug, PartialEq, Serialize)]
pub struct InputFile<T> {
    /// As written in the scenario.
    pub path: String,
    /// What was read.
    #[serde(skip)]
    pub content: Arc<T>,
}

impl<T> Clone for InputFile<T> {
    fn clone(&self) -> Self {
        InputFile { path: self.path.clone(), content: Arc::clone(&self.content) }
    }
}
