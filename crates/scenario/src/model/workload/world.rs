//! The network that a workload must fit.

use super::{Hosts, Transport};
use crate::error::Result;
use crate::losses::Losses;
use crate::model::{Adapter, Counts, Server, Shape, Topology, WhenFull};
use crate::setting::Section;
use core::ops::Range;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// Queries and flows that are planned before a run, and so held in memory.
pub(super) const PLANNED_MAX: u32 = 1 << 22;
/// Pairs of hosts that patterns may draw before a run, those of hosts that do not send included: some seconds.
const DRAWN_MAX: u64 = 1 << 28;
/// The first port of connections that are opened anew; the well-known ones of the workloads lie below.
pub const EPHEMERAL: u16 = 10_000;
/// Connections that a host can have open for one workload, each with a port of its own.
pub const PORTS: u32 = u16::MAX as u32 - EPHEMERAL as u32 + 1;
/// Arrivals at a server are at least this far apart on average.
const ARRIVAL_MIN: Duration = Duration::from_ns(1);

/// The network, as workloads see it.
pub(crate) struct World<'a> {
    pub topology: &'a Topology,
    pub counts: Counts,
    pub server: &'a Server,
    pub adapter: &'a Adapter,
    pub duration: Option<Duration>,
    pub losses: Losses,
    /// The priority of each DSCP.
    pub dscp_to_tc: Option<&'a [u8]>,
}

impl World<'_> {
    /// Bits a second of the fastest link there is.
    pub fn fastest_host_link(&self) -> u64 {
        let rates: Vec<Rate> = match &self.topology.shape {
            Shape::Hpcc { file } => file.content.links.iter().map(|l| l.rate).collect(),
            _ => self.topology.levels.first().iter().map(|l| l.rate).collect(),
        };
        rates.into_iter().map(Rate::as_bps).max().unwrap_or(self.topology.link.rate.as_bps())
    }

    /// Levels whose subtrees can be chassis; none where the shape has no levels.
    fn levels(&self) -> usize {
        match &self.topology.shape {
            Shape::Xgft { m, .. } => m.len(),
            Shape::Htsim { file } => file.content.tiers.len(),
            Shape::Hpcc { .. } => 0,
        }
    }

    /// Refuses a host that the network has not, or that frames of this priority do not reach.
    pub fn check_host(&self, s: &Section<'_>, name: &str, host: u32, priority: u8) -> Result<()> {
        let endpoints = self.counts.endpoints();
        if host >= endpoints {
            let message = format!("there is no host {host}: the network has {endpoints}, counted from 0");
            return Err(s.error(name, message));
        }
        self.check_reach(s, name, &[host], priority)
    }

    /// Refuses hosts outside if VMs talk to them by their second vNICs, and frames of this priority go by the first
    /// ones.
    pub fn check_reach(&self, s: &Section<'_>, name: &str, hosts: &[u32], priority: u8) -> Result<()> {
        let Some(lossy) = self.server.lossy_vnic.filter(|&lossy| lossy != priority) else { return Ok(()) };
        let Some(outside) = hosts.iter().find(|&&host| host >= self.counts.hosts) else { return Ok(()) };
        let message = format!("host {outside} is external: machines talk to it by their lossy vNICs alone");
        Err(s.error(name, message).hint(format!("set priority = {lossy}")))
    }

    /// Refuses senders of which one is the receiver.
    pub fn check_senders(
        &self,
        s: &Section<'_>,
        (name, senders): (&str, &Hosts),
        receiver: u32,
        priority: u8,
    ) -> Result<()> {
        self.check_reach(s, name, senders.named(), priority)?;
        match senders {
            Hosts::List(list) if list.contains(&receiver) => {
                Err(s.error(name, format!("host {receiver} sends to itself: it is the receiver")))
            }
            Hosts::Count(n) => {
                let others = self.counts.hosts - u32::from(receiver < self.counts.hosts);
                if *n <= others {
                    return Ok(());
                }
                Err(s.error(name, format!("{n} {name}: the network has {others} hosts but the receiver")))
            }
            Hosts::List(_) => Ok(()),
        }
    }

    /// Refuses a transport that repairs nothing where frames of these priorities, a bit each, are lost or reordered, and queue
    /// pairs where adapters have none.
    pub fn check_transport(&self, s: &Section<'_>, transport: Transport, priorities: u8) -> Result<()> {
        match transport {
            Transport::TcpLight => self.losses.check(s, priorities),
            Transport::Roce => self.check_queue_pairs(s),
            Transport::Tcp | Transport::Udp => Ok(()),
        }
    }

    /// Refuses queue pairs behind a virtual switch, which they bypass, and in adapters that drop.
    fn check_queue_pairs(&self, s: &Section<'_>) -> Result<()> {
        if self.server.virtual_network {
            return Err(s
                .error("transport", "queue pairs of RoCE are in the adapter, and here VMs are behind a virtual switch")
                .hint("set server.virtual_network = false, or use another transport"));
        }
        if self.adapter.when_full == WhenFull::Drop {
            return Err(s
                .error("transport", "a full adapter stops its queue pairs, and adapter.when_full is \"drop\"")
                .hint("set adapter.when_full = \"stop\""));
        }
        Ok(())
    }

    /// Refuses a rate of a stream.
    pub fn check_rate(&self, s: &Section<'_>, rate: Option<Rate>, transport: Transport) -> Result<()> {
        if rate.is_none() || !transport.connects() {
            return Ok(());
        }
        Err(s.error("rate", "a stream finds its own rate").hint("`rate` is for transport = \"udp\""))
    }

    /// Refuses chassis of a level that the network has not.
    pub fn check_chassis(&self, s: &Section<'_>, level: u32) -> Result<()> {
        match self.levels() {
            0 => Err(s.error_at(&["chassis", "kind"], "this workload needs chassis, and this network has no levels")),
            levels if level as usize > levels => {
                Err(s.error("chassis", format!("there is no level {level}: the network has {levels}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses members that a chassis of this level has not.
    pub fn check_members(&self, s: &Section<'_>, level: u32, members: Option<&[u32]>) -> Result<()> {
        let Some(members) = members else { return Ok(()) };
        let &[first, last] = members else {
            return Err(s.error("members", format!("{} numbers", members.len())).expected("the first and the last"));
        };
        if first > last {
            return Err(s.error("members", format!("the first ({first}) is after the last ({last})")));
        }
        let Shape::Xgft { m, .. } = &self.topology.shape else {
            let error = s.error("members", "a chassis in a topology file is the whole network");
            return Err(error.hint("leave `members` out, or describe the tree with kind = \"xgft\""));
        };
        let size = m.iter().take(level as usize).product();
        if last < size {
            return Ok(());
        }
        let message = format!("there is no member {last}: a chassis of level {level} has {size} hosts, counted from 0");
        Err(s.error("members", message))
    }
}

/// The members of a chassis.
pub(super) fn members(members: Option<&[u32]>, chassis: Range<u32>) -> Range<u32> {
    match members {
        Some(&[first, last]) => chassis.start + first..(chassis.start + last + 1).min(chassis.end),
        _ => chassis,
    }
}

/// Refuses arrivals that no link could carry even if each is as small as possible: memory would run out.
pub(super) fn check_apart(s: &Section<'_>, mean_ps: f64) -> Result<()> {
    if mean_ps >= ARRIVAL_MIN.as_ps() as f64 {
        return Ok(());
    }
    Err(s.error("inter_arrival", format!("{mean_ps} ps between two arrivals on average")).expected("at least 1 ns"))
}

/// Refuses patterns of so many pairs in all.
pub(super) fn check_drawn(s: &Section<'_>, pairs: u64) -> Result<()> {
    if pairs <= DRAWN_MAX {
        return Ok(());
    }
    let message = format!("the pattern would be drawn for {pairs} pairs: for every host, also if it does not send");
    Err(s.error("flows", message).expected(format!("at most {DRAWN_MAX} in all")))
}

/// Refuses a host that begins so many flows at once: two connections with the same ports would be one.
pub(super) fn check_ports(s: &Section<'_>, transport: Transport, flows: u64) -> Result<()> {
    if !transport.has_streams() || flows <= PORTS.into() {
        return Ok(());
    }
    let message = format!("a host would begin {flows} flows at once, and has {PORTS} ports for those of a workload");
    let error = s.error("flows", message).expected(format!("at most {PORTS} flows of a host"));
    Err(error.hint("divide the flows among several workloads: each has ports of its own"))
}

/// Refuses about `count` planned things, if they would not fit into memory.
pub(super) fn check_planned(s: &Section<'_>, name: &str, what: &str, count: f64) -> Result<()> {
    if count <= f64::from(PLANNED_MAX) {
        return Ok(());
    }
    let error = s.error(name, format!("about {count:.1e} {what} are too many"));
    Err(error.expected(format!("at most {PLANNED_MAX} in a run")))
}
