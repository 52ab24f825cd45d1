//! Control loops, failures, and the rates of flows.

use super::record::port_of;
use super::{Counts, Level, PortSelector, Routing, Topology};
use crate::error::Result;
use crate::setting::{Kind, Section};
use crate::units::{Bytes, DURATION_MAX, LINK_RATE, POSITIVE_SIZE};
use crate::{choices, settings};
use core::ops::RangeInclusive;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// Steps of annealing: a few seconds of them.
const ITERATIONS_MAX: u32 = 1 << 22;
/// Periods of a control loop: one that takes as long as a few frames is none.
const PERIOD: RangeInclusive<Duration> = Duration::from_us(10)..=DURATION_MAX;
/// Round trips of `aimd`. A step is a frame a tick: in a shorter one it is more than links carry.
const TICK: RangeInclusive<Duration> = Duration::from_us(1)..=DURATION_MAX;
/// Ports of the largest switch that has an address (Al-Fares 2012, 3.1.2).
const FAT_TREE_PORTS_MAX: u32 = sluicenet_proto::routing::fat_tree::PORTS_MAX;

settings! {
    /// the control loop, where topology.routing has one
    pub model struct Control in "control" (s, routing: Routing) {
        /// time between two rounds; default 1 s with flow-classifier and flow-scheduler, 5 s with the others
        // Al-Fares 2012, figure 3.11 and 4.3.4.
        period: Duration [PERIOD] = Duration::from_secs(
            if matches!(routing, Routing::FlowClassifier | Routing::FlowScheduler) { 1 } else { 5 }
        ),
        /// simulated-annealing: steps in a round; default 10000
        // As many as the last line of table 4.6.
        iterations: u32 [1..=ITERATIONS_MAX] = 10_000,
        /// flow-scheduler: a flow is large from this many bytes on; default 100 KB
        // More than a reply has.
        large: Bytes [POSITIVE_SIZE] = Bytes(100_000),
        /// when the central scheduler dies, in the middle of entering a round; default never
        dies: Option<Duration>,
        /// when another scheduler replaces it, without its knowledge; default never
        returns: Option<Duration>,
    }
}

impl Control {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>) -> Result<()> {
        if self.returns.is_some() && self.dies.is_none_or(|dies| self.returns <= Some(dies)) {
            return Err(s.error("returns", "it returns before it dies").hint("`dies` says when it does"));
        }
        Ok(())
    }
}

settings! {
    /// links and switches of a fat-tree that fail while it runs
    pub model struct Failure in "failure" (s, topology: &Topology, counts: &Counts) {
        /// a switch, or one of its ports: "switch 2", "switch 2 port 5"
        port: PortSelector as (Kind::Text) = failing_port(s, topology, counts)?,
        /// when it fails
        at: Duration,
        /// when it works again; default never
        until: Option<Duration>,
        /// how long its neighbours take to notice the failure, and its end; default 30 ms
        // Three of BFD's messages that do not come (RFC 5880), of 10 ms each.
        detection: Duration = Duration::from_ms(30),
    }
}

impl Failure {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>) -> Result<()> {
        if self.until.is_some_and(|until| until <= self.at) {
            return Err(s.error("until", "it is back before it fails"));
        }
        Ok(())
    }
}

settings! {
    /// links that are slower for some time
    pub model struct Slowdown in "slowdown" (s, counts: &Counts) {
        /// an end of the link, or a switch for all of its links: "switch 2 port 5", "switch 2", "host 3"
        port: PortSelector as (Kind::Text) = port_of(s, s.get("port").ok_or_else(|| s.missing("port"))?, counts)?,
        /// the rate of both directions meanwhile
        rate: Rate [LINK_RATE],
        /// when it slows down, at the end of an epoch of 500 us; default 0
        at: Duration = Duration::ZERO,
        /// when it has its own rate again; default never
        until: Option<Duration>,
    }
}

impl Slowdown {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>, level: Level) -> Result<()> {
        if self.until.is_some_and(|until| until <= self.at) {
            return Err(s.error("until", "it is over before it begins"));
        }
        if level == Level::Flow {
            return Err(s
                .error_here("at the flow level links have one rate")
                .hint("scenario.level = \"packet\", or a rate of the level of links in [[topology.level]]"));
        }
        Ok(())
    }
}

fn failing_port(s: &Section<'_>, topology: &Topology, counts: &Counts) -> Result<PortSelector> {
    let stands_in = matches!(topology.routing, Routing::NonBlocking | Routing::Hierarchical);
    let Some(k) = topology.fat_tree_k().filter(|&k| !stands_in && k <= FAT_TREE_PORTS_MAX && counts.external == 0)
    else {
        let error = s.error_here("what fails is told by the switches of a fat-tree, and this network is none");
        return Err(error.hint("topology.kind = \"fat-tree\" of at most 254 ports, without external hosts"));
    };
    if topology.has_parallel_links() {
        let error = s.error_here("failures are told to a fat-tree with one link between two switches");
        return Err(error.hint("leave `links` out of [[topology.level]]"));
    }
    if topology.routing.is_per_frame() {
        let error = s.error_here("switches that choose anew for every frame go around nothing");
        return Err(error.hint("another topology.routing"));
    }
    let port = port_of(s, s.get("port").ok_or_else(|| s.missing("port"))?, counts)?;
    match port {
        PortSelector::Host(_) => Err(s.error("port", "a host has one link: name a switch, or a port of one")),
        PortSelector::SwitchPort(_, port) if port >= k => {
            Err(s.error("port", format!("a switch has ports 0 to {}, not {port}", k - 1)))
        }
        // Edge switches are the first of all, and their lower ports lead to hosts.
        PortSelector::SwitchPort(switch, port) if switch < k * k / 2 && port < k / 2 => {
            Err(s.error("port", "this port leads to a host: name a port between switches"))
        }
        _ => Ok(port),
    }
}

choices! {
    /// How the rates of flows follow from the network, if no packets are simulated.
    pub enum SharedRates {
        /// Max-min fair at every instant.
        MaxMin = "max-min",
        /// TCP's slow start and AIMD, round trip by round trip (Al-Fares 2012, 4.3.5).
        Aimd = "aimd",
    }
}

settings! {
    /// the rates of flows, where scenario.level is flow
    #[derive(Copy, Eq)]
    pub model struct FlowLevel in "flow_level" (s) {
        /// max-min fair, or TCP's slow start and AIMD by ticks
        // Exact, and the quicker of the two.
        rates: SharedRates = SharedRates::MaxMin,
        /// aimd: a round-trip time, in which the rate of a flow grows by one frame of framing.mtu
        // Al-Fares 2012, 4.3.5: a network with a round trip of 100 us, in which 15 MB/s are a segment.
        tick: Duration [TICK] = Duration::from_us(100),
    }
}
