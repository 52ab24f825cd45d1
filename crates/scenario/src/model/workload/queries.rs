//! Requests and answers in tiers.

use super::world::{PLANNED_MAX, check_apart, check_planned, members};
use super::{Connections, Counts, DSCP_MAX, Hosts, PRIORITY, Transport, World};
use crate::distribution::Distribution;
use crate::distributions::{self, kind_of};
use crate::error::Result;
use crate::files::Files;
use crate::model::LEVELS_MAX;
use crate::setting::{Kind, Section};
use crate::units::{Bytes, POSITIVE_SIZE};
use crate::{HOST_MAX, choices, settings};
use core::ops::Range;
use sluicenet_proto::time::Duration;

/// Queries of an aggregator in two tiers: 32 bits of their number count them.
const QUERIES_MAX: u64 = u32::MAX as u64;
/// Aggregators of two tiers: 16 bits of a query's number name its own.
const AGGREGATORS_MAX: usize = 1 << 16;

choices! {
    /// The servers of the roles of a three-tier partition/aggregate application.
    pub enum Layout {
        /// An HLA, an MLA and a worker on every server; an MLA asks every worker of its chassis, its own host's
        /// included.
        Crisan2014Ch4 = "crisan2014-ch4",
        /// HLAs are the external hosts; an MLA asks the other servers of its rack.
        Crisan2014Ch2 = "crisan2014-ch2",
    }
}

choices! {
    /// Whether messages share connections.
    pub(crate) enum QueryConnections {
        /// They do.
        Persistent = "persistent",
        /// Each query has its own.
        PerQuery = "per-query",
    }
}

impl From<QueryConnections> for Connections {
    fn from(connections: QueryConnections) -> Connections {
        match connections {
            QueryConnections::Persistent => Connections::Persistent,
            QueryConnections::PerQuery => Connections::New,
        }
    }
}

impl Layout {
    fn connections(self) -> Connections {
        match self {
            Layout::Crisan2014Ch4 => Connections::Persistent,
            Layout::Crisan2014Ch2 => Connections::New,
        }
    }
}

settings! {
    /// three tiers of requests and answers
    pub model struct PartitionAggregate in kind "partition-aggregate" (s, _world: &World<'_>, files: &mut Files) {
        /// number of queries; default until the end of the run
        queries: Option<u64> [1..=u64::from(PLANNED_MAX)],
        /// queries at the start that the statistics exclude; default 0
        warmup_queries: u64 [0..=u64::from(PLANNED_MAX)] = 0,
        /// bytes of every message; default 20 KB
        message: Bytes [POSITIVE_SIZE] = Bytes(20_000),
        /// time between two queries of the whole network
        inter_arrival: Distribution<Duration> as (kind_of::<Duration>()) =
            distributions::required(s, "inter_arrival", files)?,
        /// where the roles are
        layout: Layout,
        /// whether messages share connections
        let connections: Option<QueryConnections>,
        /// Whether messages share connections.
        #[serde(serialize_with = "crate::units::canonical")]
        field connections: Connections = connections.map_or(layout.connections(), Connections::from),
        /// the level whose subtrees are chassis; default 1
        chassis: u32 [1..=LEVELS_MAX] = 1,
        /// the first and the last of the hosts of each chassis that take part, counted from 0; default all
        #[serde(skip_serializing_if = "Option::is_none")]
        members: Option<Vec<u32>> [0..=HOST_MAX],
        /// the transport of the messages; default tcp
        #[serde(skip_serializing_if = "Transport::is_tcp")]
        transport: Transport = Transport::Tcp,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl PartitionAggregate {
    /// The hosts of a chassis that take part.
    pub fn members(&self, chassis: Range<u32>) -> Range<u32> {
        members(self.members.as_deref(), chassis)
    }

    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        match self.layout {
            Layout::Crisan2014Ch4 if world.server.vms < 3 => {
                let message =
                    format!("this layout puts three virtual machines on a server: there are {}", world.server.vms);
                return Err(s.error("layout", message).hint("set server.vms = 3 or more"));
            }
            Layout::Crisan2014Ch2 if world.counts.external == 0 => {
                return Err(s
                    .error("layout", "this layout's queries come from external hosts, and there are none")
                    .hint("set topology.external_hosts = 16"));
            }
            Layout::Crisan2014Ch2 => world.check_reach(s, "layout", &[world.counts.hosts], self.priority)?,
            Layout::Crisan2014Ch4 => {}
        }
        check_queries(s, world, self.queries, self.warmup_queries)?;
        if let (None, Some(duration)) = (self.queries, world.duration) {
            check_planned(s, "inter_arrival", "queries", duration.as_ps() as f64 / self.inter_arrival.mean())?;
        }
        world.check_chassis(s, self.chassis)?;
        world.check_members(s, self.chassis, self.members.as_deref())?;
        world.check_transport(s, self.transport, 1 << self.priority)
    }
}

fn check_queries(s: &Section<'_>, world: &World<'_>, queries: Option<u64>, warmup: u64) -> Result<()> {
    if queries.is_none() && world.duration.is_none() {
        return Err(s.error_here("this workload never ends").hint("give it `queries`, or set scenario.duration"));
    }
    if queries.is_some_and(|q| warmup >= q) {
        return Err(s.error("warmup_queries", "every query is warm-up: none would count"));
    }
    Ok(())
}

choices! {
    /// The unit of counts of aggregators and workers.
    pub(crate) enum Among {
        /// Hosts, where each role has a VM of its own.
        Hosts = "hosts",
        /// VMs, numbered host by host.
        Vms = "vms",
    }
}

impl Among {
    /// The counts of this unit; no VM is outside of the network.
    fn counts(self, world: &World<'_>) -> Counts {
        match self {
            Among::Hosts => world.counts,
            Among::Vms => Counts { hosts: world.counts.hosts * world.server.vms, external: 0, ..world.counts },
        }
    }
}

settings! {
    /// two tiers of requests and answers
    pub model struct PartitionAggregate2 in kind "partition-aggregate-2" (s, world: &World<'_>, files: &mut Files) {
        /// the unit of the two counts: hosts, where each role has a VM of its own, or VMs, numbered host by host;
        /// default hosts
        let among: Among = Among::Hosts,
        /// a count (the first hosts) or a list; default 1
        aggregators: Hosts as (Kind::Hosts) =
            Hosts::read(s, "aggregators", &among.counts(world))?.unwrap_or(Hosts::Count(1)),
        /// a count (the hosts after the aggregators) or a list
        workers: Hosts as (Kind::Hosts) =
            Hosts::read(s, "workers", &among.counts(world))?.ok_or_else(|| s.missing("workers"))?,
        /// Whether both count VMs, numbered host by host, instead of hosts.
        field among_vms: bool = among == Among::Vms,
        /// bytes of a request; default 64 B
        request: Bytes [POSITIVE_SIZE] = Bytes(64),
        /// bytes of a worker's answer
        response: Bytes [POSITIVE_SIZE],
        /// queries of each aggregator; default until the end of the run
        queries: Option<u64> [1..=QUERIES_MAX],
        /// queries at the start that the statistics exclude; default 0
        warmup_queries: u64 [0..=QUERIES_MAX] = 0,
        /// time between two queries of an aggregator; default: the next starts when one completes
        inter_arrival: Option<Distribution<Duration>> as (kind_of::<Duration>()) =
            distributions::read(s, "inter_arrival", files)?,
        /// whether messages share connections
        let connections: QueryConnections = QueryConnections::Persistent,
        /// Whether messages share connections.
        #[serde(serialize_with = "crate::units::canonical")]
        field connections: Connections = connections.into(),
        /// the transport of the messages; default tcp
        #[serde(skip_serializing_if = "Transport::is_tcp")]
        transport: Transport = Transport::Tcp,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl PartitionAggregate2 {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        self.check_roles(s, world)?;
        if !self.among_vms {
            world.check_reach(s, "aggregators", self.aggregators.named(), self.priority)?;
            world.check_reach(s, "workers", self.workers.named(), self.priority)?;
        }
        check_queries(s, world, self.queries, self.warmup_queries)?;
        if let Some(gap) = &self.inter_arrival {
            check_apart(s, gap.mean())?;
        }
        world.check_transport(s, self.transport, 1 << self.priority)
    }

    /// Refuses roles that do not fit the network.
    fn check_roles(&self, s: &Section<'_>, world: &World<'_>) -> Result<()> {
        let (among, what) = if self.among_vms { (Among::Vms, "VMs") } else { (Among::Hosts, "hosts") };
        let count = among.counts(world).hosts;
        let (aggregators, workers) = (&self.aggregators, &self.workers);
        let after = match aggregators {
            Hosts::Count(n) => *n as usize,
            Hosts::List(list) => list.iter().filter(|h| **h < count).count(),
        };
        if self.among_vms {
            let all: Vec<u32> = match aggregators {
                Hosts::Count(n) => (0..*n).collect(),
                Hosts::List(list) => list.clone(),
            };
            let servers: std::collections::BTreeSet<u32> = all.iter().map(|vm| vm / world.server.vms).collect();
            if servers.len() < all.len() {
                return Err(s
                    .error("aggregators", "two aggregators are VMs of one host")
                    .hint(format!("VM v of host h is {} h + v", world.server.vms)));
            }
        }
        match (aggregators, workers) {
            (_, Hosts::Count(n)) if *n as usize + after > count as usize => {
                let message = format!("{n} workers and {after} aggregators are more than the network's {count} {what}");
                return Err(s.error("workers", message));
            }
            (_, Hosts::Count(_)) => {}
            (aggregators, Hosts::List(list)) => {
                let both = match aggregators {
                    Hosts::Count(n) => list.iter().find(|h| *h < n),
                    Hosts::List(a) => {
                        let a: std::collections::BTreeSet<_> = a.iter().collect();
                        list.iter().find(|h| a.contains(h))
                    }
                };
                if let Some(both) = both {
                    return Err(s.error("workers", format!("host {both} is an aggregator and a worker")));
                }
            }
        }
        if aggregators.len() > AGGREGATORS_MAX {
            let message = format!("{} aggregators: at most {AGGREGATORS_MAX}", aggregators.len());
            return Err(s.error("aggregators", message));
        }
        Ok(())
    }
}
