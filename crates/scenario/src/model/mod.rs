//! The typed, validated model of a scenario: plain data, every default resolved. Each file declares the keys of its
//! sections.

pub(crate) mod active_queue;
pub(crate) mod bump;
mod control;
mod ets;
mod general;
mod hypervisor;
mod network;
mod policy;
mod qcn;
mod record;
mod roce;
mod server;
mod stacks;
mod switch;
mod table;
mod testbed;
mod workload;
mod xco;

pub use active_queue::{Above, CongestionManagement, NotCapable, Red, Wred, WredEcn};
pub use bump::{APPS as BUMP_APPS, Bump, BumpApp, Only, ProgramApp, bump_apps};
pub use control::{Control, Failure, FlowLevel, SharedRates, Slowdown};
pub use ets::Ets;
pub use general::{FlowControl, General, Hypervisor, Level, ParameterSet};
pub use hypervisor::{
    Overlay, Weight, ZBRIDGE_BUFFER_MAX, ZBRIDGE_TIMEOUT, ZBridge, ZCredit, check_channel, check_credits,
};
pub use network::LEVELS_MAX;
pub use network::{Blocks, Counts, FIBRE, Link, OVERSUBSCRIPTION, Routing, Shape, Topology};
pub(crate) use network::{LevelKeys, ShapeKind};
pub use policy::{Party, Policy, Rule, Tenant};
pub use qcn::{Limiters, NoTimer, Qcn, Sampling, Split};
pub use record::{PortSelector, Record};
pub use roce::{Dcqcn, Roce};
pub use server::{Adapter, Queueing, Server, SlowVm, VSwitch, WhenFull};
pub(crate) use server::{QueuePairs, VM_MAX};
pub use stacks::{Congestion, InitialWindow, Off, Tcp, TcpLight, TcpPreset, Udp};
pub(crate) use switch::Beside;
pub use switch::{
    BufferPolicy, Deadlock, Forwarding, Framing, FramingKind, LinkHeadroom, Pfc, PfcWatchdog, PortBuffer, SharedBuffer,
    Switch, WatchdogAction,
};
pub use table::{Figure, Table, TableAxis};
pub use testbed::{TenantKind, Testbed, VirtualSwitch};
pub use workload::{
    Background, Connections, Flow, FlowFile, FlowFileContent, Generated, Hosts, Hotspot, HotspotBenchmark, Incast,
    Layout, LoadBasis, PartitionAggregate, PartitionAggregate2, Pattern, Permutation, Phase, Poisson, Priority,
    Shuffle, Transport, Workload,
};
pub use workload::{EPHEMERAL, PORTS};
pub(crate) use workload::{WORKLOADS, World};
pub use xco::{LEASE as XCO_LEASE, NoHysteresis, SLICE as XCO_SLICE, SMALL as XCO_SMALL, Xco, XcoKind, XcoWeight};

use serde::Serialize;
use std::sync::Arc;

use super::locations::Locations;
use super::setting::{Kind, Settings, Spec};

/// The keys of a scenario: its sections.
pub static ROOT: Spec = crate::tables! {
    /// A scenario of sluicenet.
    ""
    scenario: Kind::Table(General::SPEC),
    topology: Kind::Table(Topology::SPEC),
    control: Kind::Table(Control::SPEC),
    failure: Kind::Tables(&[Failure::SPEC]),
    slowdown: Kind::Tables(&[Slowdown::SPEC]),
    bump: Kind::Tables(&[Bump::SPEC]),
    switch: Kind::Table(Switch::SPEC),
    buffer: Kind::Table(SharedBuffer::SPEC),
    red: Kind::Table(Red::SPEC),
    wred: Kind::Tables(&[Wred::SPEC]),
    qcn: Kind::Table(Qcn::SPEC),
    ets: Kind::Table(Ets::SPEC),
    pfc: Kind::Table(Pfc::SPEC),
    adapter: Kind::Table(Adapter::SPEC),
    server: Kind::Table(Server::SPEC),
    vswitch: Kind::Table(VSwitch::SPEC),
    zcredit: Kind::Table(ZCredit::SPEC),
    zbridge: Kind::Table(ZBridge::SPEC),
    xco: Kind::Table(Xco::SPEC),
    policy: Kind::Table(Policy::SPEC),
    overlay: Kind::Table(Overlay::SPEC),
    framing: Kind::Table(Framing::SPEC),
    tcp: Kind::Table(Tcp::SPEC),
    udp: Kind::Table(Udp::SPEC),
    tcplight: Kind::Table(TcpLight::SPEC),
    roce: Kind::Table(Roce::SPEC),
    dcqcn: Kind::Table(Dcqcn::SPEC),
    flow_level: Kind::Table(FlowLevel::SPEC),
    /// which host sends what to which
    workload: Kind::Tables(WORKLOADS),
    record: Kind::Table(Record::SPEC),
    testbed: Kind::Table(Testbed::SPEC),
    table: Kind::Tables(&[Table::SPEC]),
    /// dotted keys, each with a list of values: all combinations are run
    sweep: Kind::Axes,
};

/// A scenario: all that a run depends on but the program itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// The run as a whole; its keys are those of the scenario itself.
    #[serde(flatten)]
    pub general: General,
    /// The rates of flows; without effect unless `level` is flow.
    pub flow_level: FlowLevel,
    /// The network's shape and its links.
    pub topology: Topology,
    /// The control loop, where the routing has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Links and switches that fail.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Links that are slower for some time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slowdowns: Vec<Slowdown>,
    /// Bumps in links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bumps: Vec<Bump>,
    /// Every switch.
    pub switch: Switch,
    /// One pool of memory for each switch.
    #[serde(skip_serializing_if = "SharedBuffer::is_off")]
    pub buffer: SharedBuffer,
    /// Random early detection at the outputs of every switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub red: Option<Red>,
    /// WRED profiles at the outputs of every switch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wred: Vec<Wred>,
    /// Quantized congestion notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qcn: Option<Qcn>,
    /// Enhanced transmission selection at the outputs of switches and adapters.
    #[serde(skip_serializing_if = "Ets::is_off")]
    pub ets: Ets,
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
    /// Explicit coordination; absent where it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xco: Option<Xco>,
    /// Which VMs may communicate; all if it is empty.
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
    /// Every queue pair; absent where no workload has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roce: Option<Roce>,
    /// Congestion control of queue pairs; absent where it is off or no workload has queue pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dcqcn: Option<Dcqcn>,
    /// The workloads, in the order of the file.
    pub workloads: Vec<Workload>,
    /// The records.
    pub record: Record,
    /// How it is run between real tenants; without effect on a simulation.
    pub testbed: Testbed,
    /// Tables that `run` shows of all variants, beside a source's numbers.
    #[serde(skip)]
    pub tables: Vec<Table>,
    /// The file's text, for errors that show only when the scenario is built.
    #[serde(skip)]
    pub locations: Locations,
}

impl core::ops::Deref for Scenario {
    type Target = General;

    fn deref(&self) -> &General {
        &self.general
    }
}

impl Scenario {
    /// Which networks are lossless.
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
