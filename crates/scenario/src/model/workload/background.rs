//! Random flows beside other workloads, and at a load.

use super::world::{check_apart, check_planned, members};
use super::{DSCP_MAX, PRIORITY, Transport, World};
use crate::distribution::Distribution;
use crate::distributions::{self, kind_of};
use crate::error::Result;
use crate::files::Files;
use crate::formats::Cdf;
use crate::model::{InputFile, LEVELS_MAX, VM_MAX};
use crate::setting::{Kind, Section};
use crate::units::{Bytes, POSITIVE_TIME};
use crate::{HOST_MAX, choices, settings};
use core::ops::Range;
use sluicenet_proto::time::Duration;

settings! {
    /// random flows beside the others
    pub model struct Background in kind "background" (s, world: &World<'_>, files: &mut Files) {
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// bytes of a flow
        flow_size: Distribution<Bytes> as (kind_of::<Bytes>()) = distributions::required(s, "flow_size", files)?,
        /// time between two flows of a server, before `load`
        inter_arrival: Distribution<Duration> as (kind_of::<Duration>()) =
            distributions::required(s, "inter_arrival", files)?,
        /// flows within a chassis for each flow that leaves it; default 0.3
        intra_ratio: f64 [0.0..=1e9] = 0.3,
        /// the level whose subtrees are chassis; default 1
        chassis: u32 [1..=LEVELS_MAX] = 1,
        /// the first and the last of the hosts of each chassis that send, counted from 0; default all. All hosts receive
        #[serde(skip_serializing_if = "Option::is_none")]
        members: Option<Vec<u32>> [0..=HOST_MAX],
        /// the VM that sends and receives them; default the last
        vm: u32 [0..=VM_MAX] = world.server.vms - 1,
        /// factor for the number of flows; default 1
        load: f64 [1e-6..=1e6] = 1.0,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl Background {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        if world.counts.hosts < 2 {
            return Err(s.error_here("background flows need two servers"));
        }
        let vms = world.server.vms;
        if self.vm >= vms {
            return Err(s.error("vm", format!("there is no virtual machine {}: a server has {vms}", self.vm)));
        }
        check_apart(s, self.inter_arrival.mean() / self.load)?;
        world.check_transport(s, self.transport, 1 << self.priority)?;
        world.check_chassis(s, self.chassis)?;
        world.check_members(s, self.chassis, self.members.as_deref())
    }

    /// Whether this host of a chassis sends.
    pub fn sends(&self, chassis: Range<u32>, host: u32) -> bool {
        members(self.members.as_deref(), chassis).contains(&host)
    }

    /// The chance that a flow stays in its chassis: an `intra_ratio` of 0.3 keeps 0.3/1.3 = 23 % of the flows inside.
    pub fn intra_probability(&self) -> f64 {
        self.intra_ratio / (1.0 + self.intra_ratio)
    }
}

choices! {
    /// The bytes that a load counts.
    pub enum LoadBasis {
        /// Those of the flows.
        Payload = "payload",
        /// Those of their frames on a link, with headers, preambles and gaps.
        Wire = "wire",
    }
}

settings! {
    /// random flows at a load
    pub model struct Poisson in kind "poisson" (s, world: &World<'_>, files: &mut Files) {
        /// the file of flow sizes, with bytes and the cumulative percentage on each line
        let cdf: String,
        /// The sizes.
        field cdf: InputFile<Cdf> = s.input("cdf", files.cdf(&cdf))?,
        /// load as a fraction of every host's link
        load: f64 [1e-6..=1.0],
        /// the bytes that `load` counts: those of the flows, or those of their frames on the link with headers, preambles
        /// and gaps; default payload
        load_basis: LoadBasis = LoadBasis::Payload,
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// when the last flow starts; default the scenario's duration
        let until: Option<Duration> [POSITIVE_TIME],
        /// When the last flow starts at the latest.
        #[serde(serialize_with = "crate::units::canonical")]
        field until: Duration = until.or(world.duration).ok_or_else(|| {
            s.error_here("this workload never ends").hint("give it `until`, or set scenario.duration")
        })?,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl Poisson {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        if world.counts.hosts < 2 {
            return Err(s.error_here("flows between random hosts need two"));
        }
        let bytes_per_ps = world.fastest_host_link() as f64 / 8e12;
        let per_host = self.load * bytes_per_ps / self.cdf.content.mean() * self.until.as_ps() as f64;
        check_planned(s, "until", "flows", per_host * f64::from(world.counts.hosts))?;
        world.check_transport(s, self.transport, 1 << self.priority)
    }
}
