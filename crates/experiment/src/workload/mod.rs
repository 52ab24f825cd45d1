//! Applications on the servers: senders, receivers and messages.
//!
//! An application sees only its own server, and is told the necessary facts about other servers. It draws from a random
//! stream of its own, so that nothing depends on the thread that runs the application.

pub mod background;
mod hotspot;
mod incast;
mod partition_aggregate;
mod patterns;
mod planned;
mod shuffle;
pub mod two_tier;

use crate::build::Plan;
pub use incast::{bound as incast_bound, senders as incast_senders};
pub use planned::permutation_pairs;
pub use shuffle::shuffle_order;
use sluicenet_node::guest::SocketId;
use sluicenet_node::packet::{Address, FlowKey};
use sluicenet_node::server::{App, Event, Io, Open, QueryRecord};
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{EPHEMERAL, PORTS, Scenario, Transport, Warning, Workload};
use std::sync::Arc;

/// The token of the first wake-up.
pub const START: u64 = u64::MAX;

/// Purposes of flows, by `FlowLabel::kind`.
pub const KINDS: [&str; 11] = [
    "flow",
    "subquery",
    "request",
    "response",
    "aggregate",
    "background",
    "incast",
    "permutation",
    "poisson",
    "hotspot",
    "shuffle",
];
pub(crate) const FLOW: u8 = 0;
pub(crate) const SUBQUERY: u8 = 1;
pub(crate) const REQUEST: u8 = 2;
pub(crate) const RESPONSE: u8 = 3;
pub(crate) const AGGREGATE: u8 = 4;
pub(crate) const BACKGROUND: u8 = 5;
pub(crate) const INCAST: u8 = 6;
pub(crate) const PERMUTATION: u8 = 7;
pub(crate) const POISSON: u8 = 8;
pub(crate) const HOTSPOT: u8 = 9;
pub(crate) const SHUFFLE: u8 = 10;

/// Bytes an endless flow is given: more than any run can send, and short of where offsets end.
pub const ENDLESS: u64 = 1 << 48;

/// Bits of a tag, token or word that belong to a workload; its number stands above.
const OWN_BITS: u32 = 56;

/// Puts a workload's number above the workload's own value.
pub fn named(workload: u8, own: u64) -> u64 {
    debug_assert!(own >> OWN_BITS == 0);
    (workload as u64) << OWN_BITS | own
}

/// The workload that a query's number in the records names.
pub fn workload_of(query: u64) -> u8 {
    (query >> OWN_BITS) as u8
}

fn own(word: u64) -> u64 {
    word & ((1 << OWN_BITS) - 1)
}

/// Events for the application of a workload; words without the number of the workload.
#[derive(Clone, Copy, Debug)]
pub enum Heard {
    /// The run begins.
    Start,
    /// A message has arrived in full.
    Message {
        /// The socket that received it.
        socket: SocketId,
        /// The sender's name for it.
        tag: u64,
    },
    /// A message sent here has arrived in full.
    Delivered {
        /// Our name for it.
        tag: u64,
    },
    /// An application of the same workload says something.
    Told {
        /// Its words.
        words: [u64; 3],
    },
    /// A time asked for has come.
    Wake {
        /// The token of the request.
        token: u64,
    },
}

/// A query that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenQuery {
    /// Its number, as in the records.
    pub id: u64,
    /// When it came in.
    pub start: Instant,
    /// Whether it is left out of statistics.
    pub warmup: bool,
}

/// The application of a workload on one server.
pub trait HostApp: Send {
    /// Something happened.
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard);
    /// Pieces of finite work that are not done: queries, rounds, flows.
    fn remaining(&self) -> u64;
    /// Queries that ended since the last call.
    fn take_queries(&mut self) -> Vec<QueryRecord> {
        Vec::new()
    }
    /// Queries under way, as far as this server answers for them.
    fn open_queries(&self) -> Vec<OpenQuery> {
        Vec::new()
    }
}

/// Makes the application of a workload on a server, if it has one there.
pub type Maker = Box<dyn Fn(HostId) -> Option<Box<dyn HostApp>>>;

/// All applications of one server.
pub struct HostApps {
    apps: Vec<Option<Box<dyn HostApp>>>,
}

impl HostApps {
    /// Those of a server that no workload uses.
    pub fn none() -> HostApps {
        HostApps { apps: Vec::new() }
    }
    /// Whether no workload uses the server.
    pub fn is_empty(&self) -> bool {
        self.apps.iter().all(Option::is_none)
    }
    /// Pieces of finite work that are not done.
    pub fn remaining(&self) -> u64 {
        self.apps.iter().flatten().map(|s| s.remaining()).sum()
    }
    /// Queries under way.
    pub fn open_queries(&self) -> Vec<OpenQuery> {
        self.apps.iter().flatten().flat_map(|s| s.open_queries()).collect()
    }
}

impl App for HostApps {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, event: Event) {
        let (workload, heard) = match event {
            Event::Wake { token: START } => {
                for app in self.apps.iter_mut().flatten() {
                    app.handle(now, io, Heard::Start);
                }
                return;
            }
            Event::Wake { token } => (token >> OWN_BITS, Heard::Wake { token: own(token) }),
            Event::Message { socket, tag, .. } => (tag >> OWN_BITS, Heard::Message { socket, tag: own(tag) }),
            Event::Delivered { tag, .. } => (tag >> OWN_BITS, Heard::Delivered { tag: own(tag) }),
            Event::Told { words, .. } => {
                (words[0] >> OWN_BITS, Heard::Told { words: [own(words[0]), words[1], words[2]] })
            }
        };
        if let Some(Some(app)) = self.apps.get_mut(workload as usize) {
            app.handle(now, io, heard);
        }
    }

    fn take_queries(&mut self) -> Vec<QueryRecord> {
        self.apps.iter_mut().flatten().flat_map(|s| s.take_queries()).collect()
    }
}

/// The workloads of a scenario, to be shared out among the servers.
pub struct Workloads {
    makers: Vec<Maker>,
    finite: bool,
    warnings: Vec<Warning>,
}

impl Workloads {
    /// Prepares all workloads of a scenario.
    pub fn new(scenario: &Scenario, plan: &Arc<Plan>) -> Workloads {
        let mut makers: Vec<Maker> = Vec::new();
        let mut warnings = Vec::new();
        for (i, w) in scenario.workloads.iter().enumerate() {
            let cx = Context { scenario, plan, number: i as u8 };
            makers.push(match w {
                Workload::PartitionAggregate(w) => partition_aggregate::maker(&cx, w),
                Workload::PartitionAggregate2(w) => two_tier::maker(&cx, w),
                Workload::Background(w) => background::maker(&cx, w),
                Workload::Incast(w) => incast::maker(&cx, w),
                Workload::Hotspot(w) => hotspot::maker(&cx, w),
                Workload::HotspotBenchmark(w) => hotspot::benchmark(&cx, w),
                Workload::Permutation(w) => planned::permutation(&cx, w),
                Workload::Shuffle(w) => shuffle::maker(&cx, w),
                Workload::Flow(w) => planned::single(&cx, w),
                Workload::FlowFile(w) => planned::file(&cx, w, &mut warnings),
                Workload::Poisson(w) => planned::poisson(&cx, w, &mut warnings),
            });
        }
        let finite = scenario.workloads.iter().any(Workload::is_finite);
        Workloads { makers, finite, warnings }
    }

    /// The applications of one server.
    pub fn apps(&self, host: HostId) -> HostApps {
        HostApps { apps: self.makers.iter().map(|m| m(host)).collect() }
    }
    /// Whether the run ends of itself when the finite work is done.
    pub fn is_finite(&self) -> bool {
        self.finite
    }
    /// Warnings for the user, before the run.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// Input for the preparation of a workload.
pub struct Context<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) number: u8,
}

impl Context<'_> {
    /// Hosts of the network itself.
    pub fn inner_hosts(&self) -> u32 {
        self.plan.hosts() - self.plan.external()
    }
    /// The VM of a role: its own where there are enough, the last one otherwise.
    pub fn role_vm(&self, role: u8) -> u8 {
        role_vm(self.scenario, role)
    }
    pub(crate) fn seed(&self) -> u64 {
        self.scenario.seed
    }
}

/// The VM of a role in a scenario.
pub fn role_vm(scenario: &Scenario, role: u8) -> u8 {
    role.min(scenario.server.vms as u8 - 1)
}

/// A server's supply of ports for new connections.
#[derive(Clone, Debug, Default)]
pub struct Ports(u32);

impl Ports {
    pub(crate) fn next(&mut self) -> u16 {
        let port = u32::from(EPHEMERAL) + self.0;
        self.0 = (self.0 + 1) % PORTS;
        port as u16
    }
}

/// The first well-known port of a workload.
const SERVICES: u16 = 1_000;
/// Well-known ports of a workload: its roles.
const ROLES: u16 = 16;
const _: () = assert!(SERVICES + (u8::MAX as u16 + 1) * ROLES <= EPHEMERAL);

/// The well-known port of a role of a workload.
pub fn service(workload: u8, role: u8) -> u16 {
    SERVICES + u16::from(workload) * ROLES + u16::from(role)
}

/// The workload that has a well-known port.
pub fn workload_at(port: u16) -> u8 {
    (port.saturating_sub(SERVICES) / ROLES) as u8
}

/// Opens a connection, or finds the one that is kept open.
pub fn connect(
    now: Instant,
    io: &mut dyn Io,
    (src, dst): (Address, Address),
    (sport, dport): (u16, u16),
    priority: Priority,
    how: Open,
) -> SocketId {
    io.open(now, FlowKey { src, dst, sport, dport }, priority, how)
}

/// How a flow of `transport` is opened when its connection was there before.
pub fn kept(transport: Transport, pace: Option<Rate>) -> Open {
    match transport {
        Transport::Tcp => Open::Established,
        Transport::TcpLight => Open::LightEstablished,
        Transport::Udp => Open::Datagrams(pace),
        Transport::Roce => Open::QueuePair,
    }
}

/// How a flow of `transport` is opened for itself.
pub fn fresh(transport: Transport, pace: Option<Rate>) -> Open {
    match transport {
        Transport::Tcp => Open::Handshake,
        Transport::TcpLight => Open::LightHandshake,
        Transport::Udp => Open::Datagrams(pace),
        Transport::Roce => Open::QueuePair,
    }
}

/// A transport as records call it.
pub fn carried(transport: Transport) -> sluicenet_node::guest::Transport {
    use sluicenet_node::guest::Transport as Carried;
    match transport {
        Transport::Tcp => Carried::Tcp,
        Transport::Udp => Carried::Udp,
        Transport::TcpLight => Carried::Light,
        Transport::Roce => Carried::Roce,
    }
}
