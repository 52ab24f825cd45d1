//! Flows that are planned before a run: one to one, each to one other, all to all.

use super::world::{PLANNED_MAX, check_drawn, check_planned, check_ports};
use super::{DSCP_MAX, PRIORITY, Priority, Transport, World};
use crate::error::Result;
use crate::files::Files;
use crate::formats::Pair;
use crate::model::{InputFile, VM_MAX};
use crate::setting::{Kind, Section};
use crate::units::{Bytes, DURATION_MAX, POSITIVE_RATE, POSITIVE_SIZE};
use crate::{HOST_MAX, HOSTS_MAX, patterns, settings};
use serde::Serialize;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use std::collections::BTreeMap;

/// Which host sends to which in a permutation.
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
    /// One to one; two-level tables send all that comes to hosts of one ID in a pod through one core (Al-Fares 2012,
    /// 3.5.2).
    InterPodIncoming,
    /// One to one; the hosts of an edge switch send to hosts of one ID in other pods (Al-Fares 2012, 3.5.2).
    SameIdOutgoing,
    /// All to so many, drawn at random.
    Hotspot(u32),
    /// The pairs of a file.
    File(InputFile<Vec<Pair>>),
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

settings! {
    /// each host to one other
    pub model struct Permutation in kind "permutation" (s, world: &World<'_>, files: &mut Files) {
        /// which host sends to which
        let pattern as (Kind::Pattern),
        /// stride: host i sends to i + stride; less than the number of hosts; default half of it
        let stride: Option<u32> [1..=HOST_MAX],
        /// file: lines `src dst`
        let file: Option<String>,
        /// The pattern.
        field pattern: Pattern = patterns::read(s, world, files, (stride, file))?,
        /// flows of a host, with the pattern drawn again for each; default 1
        #[serde(skip_serializing_if = "is_one")]
        flows: u32 [1..=PLANNED_MAX] = 1,
        /// hosts that send, beginning with the first; default all
        #[serde(skip_serializing_if = "Option::is_none")]
        senders: Option<u32> [1..=HOSTS_MAX],
        /// bytes of each flow; 0 is endless; default endless
        let bytes: Option<Bytes>,
        /// Bytes of each flow; endless where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field bytes: Option<Bytes> = bytes.filter(|bytes| bytes.0 > 0),
        /// when the first flow starts; default 0
        start: Duration = Duration::ZERO,
        /// time between the starts of two flows; default 0
        stagger: Duration = Duration::ZERO,
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// rate of the datagrams; default as fast as they leave
        rate: Option<Rate> [POSITIVE_RATE],
        /// per-host: the sender's number modulo 8
        priority: Priority = Priority::Fixed(0),
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
        /// whether a host's flows use its VMs in turn; default: all use the first
        #[serde(skip_serializing_if = "core::ops::Not::not")]
        per_vm: bool = false,
        /// per_vm: the first of these VMs; default 0
        #[serde(skip_serializing_if = "is_zero")]
        first_vm: u32 [0..=VM_MAX] = 0,
    }
}

impl Permutation {
    /// The priority of the frames of a host.
    pub fn priority_of(&self, host: u32) -> u8 {
        match self.priority {
            Priority::Fixed(p) => p,
            Priority::PerHost => (host % 8) as u8,
        }
    }

    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        if let Pattern::File(file) = &self.pattern {
            for pair in file.content.iter() {
                world.check_reach(s, "file", &[pair.0, pair.1], self.priority_of(pair.0))?;
            }
        }
        world.check_transport(s, self.transport, self.priority.bits())?;
        let (first_vm, vms) = (self.first_vm, world.server.vms);
        if first_vm > 0 && !self.per_vm {
            return Err(s.error("first_vm", "`first_vm` means nothing without per_vm = true"));
        }
        if first_vm >= vms {
            return Err(s.error("first_vm", format!("there is no virtual machine {first_vm}: a server has {vms}")));
        }
        let (hosts, endpoints) = (world.counts.hosts, world.counts.endpoints());
        let known = if matches!(self.pattern, Pattern::File(_)) { endpoints } else { hosts };
        if let Some(senders) = self.senders.filter(|&senders| senders > known) {
            let error = s.error("senders", format!("{senders} senders: the network has {known} hosts"));
            return Err(error.expected(format!("from 1 to {known}")).hint("leave `senders` out if all send"));
        }
        let senders = self.senders.unwrap_or(known);
        // Flows of all senders, and of the busiest one, each time that the pattern is drawn; and pairs drawn for it.
        let (all, busiest, drawn): (u64, u64, u64) = match &self.pattern {
            Pattern::File(file) => {
                let mut of_host: BTreeMap<u32, u64> = BTreeMap::new();
                for pair in file.content.iter().filter(|pair| pair.0 < senders) {
                    *of_host.entry(pair.0).or_default() += 1;
                }
                (of_host.values().sum(), of_host.values().copied().max().unwrap_or(0), file.content.len() as u64)
            }
            _ => (senders.into(), 1, hosts.into()),
        };
        let flows = u64::from(self.flows);
        check_planned(s, "flows", "flows", (flows * all) as f64)?;
        check_drawn(s, flows * drawn)?;
        check_ports(s, self.transport, flows * busiest)?;
        let staggered = u128::from(self.stagger.as_ps()) * u128::from(endpoints);
        if u128::from(self.start.as_ps()) + staggered > u128::from(DURATION_MAX.as_ps()) {
            return Err(s.error_at(&["stagger", "start"], "the last flow would start after 2400 h"));
        }
        world.check_rate(s, self.rate, self.transport)
    }
}

settings! {
    /// all to all
    // Each host sends to every other in an order of its own, a few at a time (Al-Fares 2012, 4.4.3).
    pub model struct Shuffle in kind "shuffle" (s, world: &World<'_>, _files: &mut Files) {
        /// number of hosts that take part, beginning with the first; default all
        hosts: u32 [2..=HOSTS_MAX] = world.counts.hosts,
        /// bytes from each host to each other host
        bytes: Bytes [POSITIVE_SIZE],
        /// transfers of a host in progress at once; default 1
        at_a_time: u32 [1..=HOSTS_MAX] = 1,
        /// start of the first transfers; default 0
        start: Duration = Duration::ZERO,
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl Shuffle {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        let all = world.counts.hosts;
        if all < 2 {
            return Err(s.error_here("a shuffle needs two hosts"));
        }
        if let Some(node) = s.get("hosts")
            && self.hosts > all
        {
            return Err(s.out_of_range(node, "hosts", self.hosts, (2, all)));
        }
        // A host's list of those it has yet to send to.
        check_planned(s, "hosts", "transfers", f64::from(self.hosts) * f64::from(self.hosts - 1))?;
        world.check_transport(s, self.transport, 1 << self.priority)
    }
}

settings! {
    /// one to one
    pub model struct Flow in kind "flow" (s, _world: &World<'_>, _files: &mut Files) {
        /// the sending host
        src: u32 [0..=HOST_MAX],
        /// its VM; default 0
        #[serde(skip_serializing_if = "is_zero")]
        src_vm: u32 [0..=VM_MAX] = 0,
        /// the receiving host
        dst: u32 [0..=HOST_MAX],
        /// its VM; must differ from the sender's if dst is src; default 0
        #[serde(skip_serializing_if = "is_zero")]
        dst_vm: u32 [0..=VM_MAX] = 0,
        /// its bytes; 0 is endless; default endless
        let bytes: Option<Bytes>,
        /// Its bytes; endless where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field bytes: Option<Bytes> = bytes.filter(|bytes| bytes.0 > 0),
        /// when the first flow starts; default 0
        start: Duration = Duration::ZERO,
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// rate of the datagrams; default as fast as they leave
        rate: Option<Rate> [POSITIVE_RATE],
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl Flow {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        let (src, dst) = ((self.src, self.src_vm), (self.dst, self.dst_vm));
        for ((name, name_vm), (host, vm)) in [(("src", "src_vm"), src), (("dst", "dst_vm"), dst)] {
            world.check_host(s, name, host, self.priority)?;
            // External hosts have one.
            let vms = if host < world.counts.hosts { world.server.vms } else { 1 };
            if vm >= vms {
                return Err(s.error(name_vm, format!("there is no virtual machine {vm}: host {host} has {vms}")));
            }
        }
        if src == dst {
            return Err(s.error("dst", format!("host {} sends to itself", self.src)));
        }
        world.check_transport(s, self.transport, 1 << self.priority)?;
        world.check_rate(s, self.rate, self.transport)
    }
}
