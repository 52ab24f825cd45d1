//! `[xco]`: explicit coordination of transmissions (Rajanna, Jahagirdar, Shah, Gopalan).

use super::general::Level;
use super::{Counts, Overlay, Server, ZBridge, ZCredit};
use crate::error::Result;
use crate::setting::{Kind, Or, Section};
use crate::units::{DURATION_MAX, POSITIVE_TIME};
use crate::{HOST_MAX, choices, settings};
use core::ops::RangeInclusive;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::{SLICE_MAX, SLICE_MIN, WEIGHT_MAX};

/// Timeslices.
pub const SLICE: RangeInclusive<Duration> = SLICE_MIN..=SLICE_MAX;
/// Leases: within a shorter one no message of a congested network arrives.
pub const LEASE: RangeInclusive<Duration> = Duration::from_ms(10)..=DURATION_MAX;
/// Least and largest rate of a small flow; messages count kb/s.
pub const SMALL: RangeInclusive<Rate> = Rate(0)..=crate::units::RATE_MAX;

choices! {
    /// The kind of XCo's directives.
    pub enum XcoKind {
        /// Who may send to whom in a timeslice, at the rate of its link (3.2).
        Timeslice = "timeslice",
        /// How fast each may send to whom (3.3).
        Rate = "rate",
        /// Timeslices with rates (section 7).
        Hybrid = "hybrid",
    }
}

choices! {
    /// No work conservation.
    pub enum NoHysteresis {
        /// A slice is kept to its end.
        Off = "off",
    }
}

settings! {
    /// XCo: a central controller tells the servers who may send to whom, and when (Rajanna et al.)
    pub model struct Xco in "xco" (s, counts: Counts) {
        /// whether there is a controller, and a local coordinator in each server
        enabled: bool = false,
        /// timeslice: one destination for each server in a timeslice; rate: a rate for each flow; hybrid: timeslices with
        /// rates, for servers whose links are faster than others
        kind: XcoKind = XcoKind::Timeslice,
        /// a timeslice; with kind = "rate" the time between two changes of rates
        // 4: 2 or 10 ms.
        slice: Duration [SLICE] = Duration::from_ms(2),
        /// shortest time that a slice runs before its server is pre-empted for another destination; default a quarter of the
        /// slice
        // 3.2.1 leaves it open.
        min_run: Duration [POSITIVE_TIME] = Duration(slice.0 / 4),
        /// time for which no frame waits before a slice is given back; off: never (no work conservation)
        // 3.2: a few tens of microseconds.
        let hysteresis: Or<Duration, NoHysteresis> [POSITIVE_TIME] = Or::Value(Duration::from_us(50)),
        /// Time for which no frame waits before a slice is given back; never where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field hysteresis: Option<Duration> = hysteresis.value(),
        /// the rate up to which a flow sends without a slice; default 4 % of the link of its server
        // Pings and acknowledgements: those of a TCP flow are 3 % of its rate. The source gives no limit.
        small_flow: Option<Rate> [SMALL],
        /// whether only large flows through congested links are coordinated
        on_demand: bool = false,
        /// the host of the controller, which has no coordinator; default the first external host
        controller: u32 [0..=HOST_MAX] = match counts.external {
            0 if enabled && !s.has("controller") => return Err(s.missing("controller")),
            _ => counts.hosts,
        },
        /// whether each rack and each row of a tree has a controller of its own, beside the coordinator of one of its hosts;
        /// `controller` is then the one of the core
        hierarchical: bool = false,
        /// the host of a second controller, which takes over when the first one is silent; default none
        standby: Option<u32> [0..=HOST_MAX],
        /// silence of the controller after which all frames pass, and of a server after which it gets no more slices; the
        /// standby takes over after half of it
        lease: Duration [LEASE] = Duration::from_ms(100),
        /// when the controller dies; default never
        dies: Option<Duration>,
        /// the priority of XCo's messages
        // In a class of their own they do not wait behind the frames that they are about.
        priority: u8 [0..=7] = 7,
        /// flows with longer timeslices, or higher rates, than others
        #[serde(skip_serializing_if = "Vec::is_empty")]
        weight: Vec<XcoWeight> as (Kind::Tables(&[XcoWeight::SPEC])) = weights(s, counts)?,
    }
}

settings! {
    /// the weight of a server's flows
    #[derive(Copy)]
    pub model struct XcoWeight in "weight" (s) {
        /// the server that sends
        host: u32 [0..=HOST_MAX],
        /// the server that receives; default all without an entry of their own
        to: Option<u32> [0..=HOST_MAX],
        /// length of its timeslices, or height of its rates, relative to a flow without an entry
        weight: u8 [1..=WEIGHT_MAX],
    }
}

fn weights(s: &Section<'_>, counts: Counts) -> Result<Vec<XcoWeight>> {
    let mut weights: Vec<XcoWeight> = Vec::new();
    for t in s.tables("weight")? {
        let weight = XcoWeight::read(&t)?;
        for (key, host) in [("host", Some(weight.host)), ("to", weight.to)] {
            if host.is_some_and(|host| host >= counts.endpoints()) {
                return Err(t.error(key, format!("there are hosts 0 to {}", counts.endpoints() - 1)));
            }
        }
        if weights.iter().any(|other| (other.host, other.to) == (weight.host, weight.to)) {
            return Err(t.error("host", "this flow has a weight already"));
        }
        weights.push(weight);
    }
    Ok(weights)
}

impl Xco {
    /// Checks how the keys relate to each other and to the rest of the scenario.
    pub(crate) fn check(
        &self,
        s: &Section<'_>,
        (level, server, counts): (Level, &Server, Counts),
        (zcredit, zbridge, overlay): (&ZCredit, &ZBridge, &Overlay),
    ) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        if level == Level::Flow {
            let error = s.error("enabled", "at the flow level there are no frames to hold back");
            return Err(error.hint("set scenario.level = \"packet\""));
        }
        if zcredit.enabled || zbridge.enabled || overlay.tcp || server.lossy_vnic.is_some() {
            return Err(s
                .error("enabled", "XCo coordinates the frames of machines only, not those that hypervisors make")
                .hint("use no zcredit, zbridge, TCP tunnels or second vNICs beside it"));
        }
        for (key, host) in [("controller", Some(self.controller)), ("standby", self.standby)] {
            let Some(host) = host else { continue };
            if host >= counts.endpoints() {
                return Err(s.error(key, format!("there are hosts 0 to {}", counts.endpoints() - 1)));
            }
            if host >= counts.hosts && server.virtual_network {
                let error = s.error(key, "an external host is outside of the virtual network");
                return Err(error.hint("name a host of the network, or set server.virtual_network = false"));
            }
        }
        if self.standby == Some(self.controller) {
            return Err(s.error("standby", "a controller is not its own standby"));
        }
        if self.hierarchical && self.kind == XcoKind::Rate {
            let error = s.error_at(
                &["hierarchical", "kind"],
                "controllers of racks, rows and the core take turns with timeslices",
            );
            return Err(error.hint("set xco.kind = \"timeslice\" or \"hybrid\", or leave xco.hierarchical out"));
        }
        if self.hierarchical && (self.standby.is_some() || self.on_demand || self.dies.is_some()) {
            let message =
                "one of several controllers has no standby, does not die, and does not measure the load of links";
            let error = s.error_at(&["hierarchical", "standby", "on_demand", "dies"], message);
            return Err(error.hint("leave out xco.hierarchical, or standby, on_demand and dies"));
        }
        if self.kind == XcoKind::Rate && self.min_run != Duration(self.slice.0 / 4) {
            return Err(s.error("min_run", "rates have no slices that could be pre-empted"));
        }
        let heaviest = self.weight.iter().map(|w| w.weight).max().unwrap_or(1);
        let longest = self.slice.saturating_mul(heaviest.into());
        if self.kind != XcoKind::Rate && self.lease.0 / 2 <= longest.0 {
            let message = format!("half a lease is not longer than the longest slice, {} ms", longest.as_us() / 1000);
            let error = s.error_at(&["lease", "slice", "weight"], message);
            return Err(error.hint("a standby takes over after half a lease, when all slices must be over"));
        }
        Ok(())
    }
}
