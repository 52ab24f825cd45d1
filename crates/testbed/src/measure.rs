//! Measures a scenario's applications on a testbed, one variant after the other, and simulates the same scenario.

use super::live::{Live, Progress};
use super::{Origin, Plan, bridge, flows, pa, stack};
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::fabric::Report;
use sluicenet_experiment::run::{self, Figures, Job, Options, Streams};
use sluicenet_proto::loss::DropReason;
use sluicenet_records::Existing;
use sluicenet_scenario::{FlowControl, Scenario};
use sluicenet_vswitchd::status::{PortStatus, Status};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest share of a fabric's events that may be later than the time of a frame. Above this share, links are
/// slower than configured, and the measurement shows the speed of the machine.
pub const LATE_MOST: f64 = 0.05;

/// The figures that a fabric prints when it ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricFigures {
    /// Frames received from servers.
    pub received: u64,
    /// Frames delivered to servers.
    pub delivered: u64,
    /// Frames dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Frames that the kernel lost at its devices.
    pub lost_at_devices: u64,
    /// Times servers and switches were stopped by PFC at its edges, both ways.
    pub stops: u64,
    /// Those of them with which a slow server stopped the fabric.
    pub server_stops: u64,
    /// Priorities that a server held for so long that the fabric gave them up.
    pub storms: u64,
    /// The longest that a server still sent after a pause, in microseconds.
    pub longest_response_us: f64,
    /// Median lateness of events, in microseconds.
    pub late_p50_us: f64,
    /// 99th percentile of the lateness of events, in microseconds.
    pub late_p99_us: f64,
    /// The share of events that were later than the time of a frame.
    pub late_share: f64,
}

impl FabricFigures {
    /// Whether more than [`LATE_MOST`] of the fabric's events were late.
    pub fn is_late(&self) -> bool {
        self.late_share > LATE_MOST
    }

    /// The figures of a fabric that has stopped.
    pub fn of(report: &Report) -> FabricFigures {
        let us = |d: sluicenet_proto::time::Duration| d.0 as f64 / 1e6;
        let by_reason = DropReason::ALL.iter().map(|&r| (r.name().to_owned(), report.drops.frames(r)));
        let device = |name: &str| name.ends_with("socket_drops") || name.ends_with("too_long");
        FabricFigures {
            received: report.ledger.received,
            delivered: report.ledger.delivered,
            dropped: by_reason.filter(|(_, n)| *n > 0).collect(),
            lost_at_devices: report.devices.iter().flatten().filter(|c| device(c.0)).map(|c| c.1).sum(),
            stops: report.edges.iter().map(|e| e.stops + e.own_stops + e.server_stops + e.own_server_stops).sum(),
            server_stops: report.edges.iter().map(|e| e.server_stops + e.own_server_stops).sum(),
            storms: report.edges.iter().map(|e| e.storms.0).sum(),
            longest_response_us: report.edges.iter().map(|e| us(e.response)).fold(0.0, f64::max),
            late_p50_us: us(report.lateness.percentile(50.0)),
            late_p99_us: us(report.lateness.percentile(99.0)),
            late_share: report.late as f64 / report.lateness.count().max(1) as f64,
        }
    }
}

/// Where frames were lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lost {
    /// In the virtual switches, for want of room.
    pub virtual_network: u64,
    /// In the fabric and at servers' links, for want of room.
    pub physical_network: u64,
    /// In the kernel, between a tenant's application and its switch.
    pub edges: u64,
    /// Frames lost in the kernel at these edges, by the ports' counters.
    pub edges_by_place: BTreeMap<String, u64>,
    /// Frames of lossy vNICs lost for want of room anywhere, and in the kernel at these vNICs.
    pub lossy_vnics: u64,
    /// Frames between machines that may not talk to each other.
    pub denied: u64,
    /// Frames dropped for any other reason, such as an unknown destination.
    pub otherwise: u64,
    /// Frames dropped by switches and fabric, by place and reason.
    pub by_reason: BTreeMap<String, u64>,
}

/// The results of the simulation of the same scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// Mean completion time of queries.
    pub mean_ms: Option<f64>,
    /// Median completion time of queries.
    pub median_ms: Option<f64>,
    /// Timeouts.
    pub timeouts: u64,
    /// Frames lost for want of room in the virtual network.
    pub lost_virtual: u64,
    /// Frames lost by congestion of the physical network.
    pub lost_physical: u64,
}

/// The results of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The variant's name: the settings of the sweep.
    pub variant: String,
    /// The machines' transport and the network below it, as "TCPlight + zFabric".
    pub stack: String,
    /// LL, LZ, ZL or ZZ.
    pub flow_control: String,
    /// Queries and flows between real sockets.
    pub figures: pa::Figures,
    /// Where frames were lost.
    pub lost: Lost,
    /// Times a machine was held back by its virtual switch.
    pub held_back: u64,
    /// The fabric's figures.
    pub fabric: FabricFigures,
    /// Whether so many events were late ([`LATE_MOST`]) that the figures show the machine and not the network.
    pub limited_by_machine: bool,
    /// The simulation's results, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// The results of one variant of flows without an end.
#[derive(Clone, Debug, Serialize)]
pub struct FlowsCell {
    /// The variant's name: the settings of the sweep.
    pub variant: String,
    /// The machines' transport and the network below it, as "TCPlight + zFabric".
    pub stack: String,
    /// LL, LZ, ZL or ZZ.
    pub flow_control: String,
    /// Whether frames between machines need credits.
    pub credits: bool,
    /// The rate of each stream after the warm-up.
    pub streams: Streams,
    /// Length of the measurement in seconds.
    pub measured_s: f64,
    /// Datagrams sent and received in the whole run. The others were lost, or in flight at the end of the run.
    pub datagrams: [u64; 2],
    /// Where frames were lost.
    pub lost: Lost,
    /// The most frames that a machine's receive queue held, if there are credits.
    pub received_max_frames: Option<u64>,
    /// Times PFC stopped servers and switches at the fabric's edges after the warm-up.
    pub stops_measured: u64,
    /// Those of them with which a slow server stopped the fabric.
    pub server_stops_measured: u64,
    /// The rate limiters of the servers, if they have any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limiters: Option<LimiterFigures>,
    /// The fabric's figures.
    pub fabric: FabricFigures,
    /// Whether so many events were late ([`LATE_MOST`]) that the figures show the machine and not the network.
    pub limited_by_machine: bool,
    /// The simulation's results, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Streams>,
}

/// The rate limiters of the servers in a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LimiterFigures {
    /// Congestion notifications that arrived.
    pub notifications: u64,
    /// Limiters made.
    pub made: u64,
    /// Frames of machines that imitated notifications.
    pub forged: u64,
}

impl LimiterFigures {
    fn of(statuses: &[Status]) -> Option<LimiterFigures> {
        let counters = || statuses.iter().flat_map(|s| &s.ports).flat_map(|p| &p.counters);
        let sum = |of: &str| counters().filter(|(name, _)| name.as_str() == of).map(|(_, n)| *n).sum();
        counters().any(|(name, _)| name == "limiters_made").then(|| LimiterFigures {
            notifications: sum("cnm_received"),
            made: sum("limiters_made"),
            forged: sum("cnm_forged"),
        })
    }
}

impl Cell {
    /// The name that tells this cell from others.
    pub fn name(&self) -> &str {
        if self.variant.is_empty() { &self.flow_control } else { &self.variant }
    }
}

impl FlowsCell {
    /// The name that tells this cell from others.
    pub fn name(&self) -> &str {
        if self.variant.is_empty() { &self.flow_control } else { &self.variant }
    }
}

/// Builds a testbed, has its applications `run`, counts losses, and removes the testbed.
fn in_testbed<T>(
    plan: &Plan,
    origin: &Origin,
    progress: Progress<'_>,
    run: impl FnOnce(&mut Live) -> Result<(T, BTreeMap<String, u64>), pa::PaError>,
) -> io::Result<(T, Vec<Status>, FabricFigures, Lost)> {
    let mut live = Live::up(plan, origin, progress)?;
    let counters = live.made().and_then(|made| Ok(bridge::Counters::open(&made)?));
    let outcome = run(&mut live);
    // Read the counters before any program ends: frames in flight at the end are lost.
    let statuses = live.statuses();
    let of_bridges = counters.and_then(|mut c| Ok(c.read()?));
    let fabric = live.end("fabric");
    live.down()?;
    let (statuses, fabric) = (statuses?, fabric?);
    let fabric: FabricFigures = serde_json::from_str(&fabric).map_err(io::Error::other)?;
    let mut lost = Lost::of(&statuses, &fabric);
    lost.add_bridges(of_bridges?);
    // The error of a stream that ended early names the dropped frames: a missing frame ends a stream.
    let (outcome, of_guests) = outcome.map_err(|e| {
        let by_reason: Vec<String> =
            lost.by_reason.iter().map(|(reason, frames)| format!("{frames} {reason}")).collect();
        io::Error::other(format!("{e} (frames dropped until then: {})", by_reason.join(", ")))
    })?;
    lost.add_guests(of_guests);
    Ok((outcome, statuses, fabric, lost))
}

fn name_of(flow_control: FlowControl) -> String {
    format!("{flow_control:?}").to_uppercase()
}

/// Runs one variant of a scenario of queries; `origin` is the source of the scenario.
///
/// # Errors
/// A request that the system refused; the testbed is down again.
pub fn measure(plan: &Plan, label: &str, origin: &Origin, simulate: bool, progress: Progress<'_>) -> io::Result<Cell> {
    let stop = progress.stop;
    let (outcome, statuses, fabric, lost) = in_testbed(plan, origin, progress, |live| match plan.has_guests() {
        true => pa::run_in_guests(plan, &live.supervisor(), stop),
        false => pa::run(&plan.scenario, &pa::endpoints(plan), stop).map(|outcome| (outcome, BTreeMap::new())),
    })?;
    let simulated = if simulate { self::simulate(&plan.scenario, stop)? } else { None };
    Ok(Cell {
        variant: label.to_owned(),
        stack: stack(&plan.scenario),
        flow_control: name_of(plan.flow_control),
        figures: outcome.figures(),
        lost,
        held_back: statuses.iter().flat_map(|s| &s.ports).map(|p| p.held_back).sum(),
        limited_by_machine: fabric.is_late(),
        fabric,
        simulated: simulated.map(|(figures, _)| Simulated::of(&figures)),
    })
}

/// Runs one variant of a scenario of flows without an end.
///
/// # Errors
/// As [`measure`].
pub fn measure_flows(
    plan: &Plan,
    label: &str,
    origin: &Origin,
    simulate: bool,
    progress: Progress<'_>,
) -> io::Result<FlowsCell> {
    let stop = progress.stop;
    let mut before = FabricFigures::default();
    let (outcome, statuses, fabric, lost) = in_testbed(plan, origin, progress, |live| {
        let mut warm = || {
            let now = live.fabric_now().and_then(|text| Ok(serde_json::from_str(&text)?));
            before = now.map_err(|e| pa::PaError::Workload(format!("the fabric: {e}")))?;
            Ok(())
        };
        Ok((flows::run(&plan.scenario, plan.tenant_mtu, &pa::endpoints(plan), stop, &mut warm)?, BTreeMap::new()))
    })?;
    if outcome.measured.is_zero() {
        return Err(ErrorKind::Interrupted.into());
    }
    let queues = statuses.iter().flat_map(|s| &s.ports).flat_map(|p| &p.counters);
    let simulated = if simulate { self::simulate(&plan.scenario, stop)? } else { None };
    Ok(FlowsCell {
        variant: label.to_owned(),
        stack: stack(&plan.scenario),
        flow_control: name_of(plan.flow_control),
        credits: plan.scenario.zcredit.enabled,
        streams: outcome.streams,
        measured_s: outcome.measured.as_secs_f64(),
        datagrams: outcome.datagrams,
        lost,
        received_max_frames: queues
            .filter(|(name, _)| name.as_str() == "credit_queued_max")
            .map(|(_, most)| *most)
            .max(),
        limited_by_machine: fabric.is_late(),
        stops_measured: fabric.stops - before.stops,
        server_stops_measured: fabric.server_stops - before.server_stops,
        limiters: LimiterFigures::of(&statuses),
        fabric,
        simulated: simulated.map(|(figures, _)| figures.streams),
    })
}

impl Lost {
    /// Adds the frames that guests' kernels dropped between their applications and their devices.
    pub(super) fn add_guests(&mut self, places: BTreeMap<String, u64>) {
        self.edges = places.values().fold(self.edges, |sum, n| sum.saturating_add(*n));
        self.edges_by_place.extend(places);
    }

    /// The frames lost since `before`.
    pub(super) fn since(mut self, before: &Lost) -> Lost {
        let minus = |now: &mut BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            now.iter_mut().for_each(|(name, n)| *n = n.saturating_sub(before.get(name).copied().unwrap_or(0)));
            now.retain(|_, n| *n > 0);
        };
        minus(&mut self.edges_by_place, &before.edges_by_place);
        minus(&mut self.by_reason, &before.by_reason);
        Lost {
            virtual_network: self.virtual_network.saturating_sub(before.virtual_network),
            physical_network: self.physical_network.saturating_sub(before.physical_network),
            edges: self.edges.saturating_sub(before.edges),
            lossy_vnics: self.lossy_vnics.saturating_sub(before.lossy_vnics),
            denied: self.denied.saturating_sub(before.denied),
            otherwise: self.otherwise.saturating_sub(before.otherwise),
            ..self
        }
    }

    /// All losses in places where ZZ loses no frame.
    pub fn total(&self) -> u64 {
        self.virtual_network + self.physical_network + self.edges
    }

    /// Adds the frames that the kernel dropped at bridges: those between tenants to the virtual network's losses, those
    /// at uplinks to the physical network's.
    pub(super) fn add_bridges(&mut self, losses: bridge::Losses) {
        let t = losses.tenants;
        let places = [("qdisc", t.qdisc), ("tenant_device", t.tenant_device), ("switch_device", t.switch_device)];
        for (place, frames) in places.into_iter().chain([("softnet", t.softnet)]).filter(|p| p.1 > 0) {
            self.by_reason.insert(format!("bridge {place}"), frames);
            self.virtual_network += frames;
        }
        if losses.uplinks > 0 {
            self.by_reason.insert("bridge uplink_qdisc".into(), losses.uplinks);
            self.physical_network += losses.uplinks;
        }
    }
}

/// Drops between a device and the stack, and at full sockets. The kernel counts them for a whole namespace, not for
/// each device.
const SOFTNET: &str = "edge_softnet";
const SOCKETS: &str = "edge_sockets";
const DENIED: &str = DropReason::Denied.name();

/// Drops for want of room in lossy classes. Where machines have two vNICs, only frames of the second vNICs are in such
/// classes.
const LOSSY_ONLY: [DropReason; 5] = [
    DropReason::VswitchVm,
    DropReason::VswitchUplink,
    DropReason::AdapterTx,
    DropReason::AdapterRx,
    DropReason::SwitchBuffer,
];

impl Lost {
    /// The losses that switches and a fabric have counted since they began.
    pub(super) fn of(statuses: &[Status], fabric: &FabricFigures) -> Lost {
        let is_congestion = |name: &str| DropReason::ALL.iter().any(|r| r.name() == name && r.is_congestion());
        let mut lost = Lost::default();
        // Only lossy vNICs have packet ports. Their losses are reported apart.
        let is_lossy = |port: &PortStatus| port.kind == "packet";
        let two_vnics = statuses.iter().flat_map(|s| &s.ports).any(is_lossy);
        let only_lossy = |name: &str| two_vnics && LOSSY_ONLY.iter().any(|r| r.name() == name);
        for port in statuses.iter().flat_map(|s| &s.ports) {
            let uplink = port.kind == "uplink";
            if is_lossy(port) {
                let edges = port.counters.iter().filter(|(name, _)| name.starts_with("edge_"));
                lost.lossy_vnics += edges.map(|(_, frames)| frames).sum::<u64>();
            }
            let mut named = |who: &str, name: &str, frames: u64| {
                *lost.by_reason.entry(format!("{who} {name}")).or_default() += frames;
            };
            port.dropped.iter().for_each(|(name, frames)| named(&format!("{} dropped", port.kind), name, *frames));
            port.refused.iter().for_each(|(name, frames)| named(&format!("{} refused", port.kind), name, *frames));
            for (name, frames) in &port.dropped {
                let place = match name.as_str() {
                    name if only_lossy(name) => &mut lost.lossy_vnics,
                    name if is_congestion(name) => &mut lost.virtual_network,
                    _ => &mut lost.otherwise,
                };
                *place += frames;
            }
            for (name, frames) in &port.refused {
                // Frames that the switch refused from the uplink for want of room are losses of the physical network.
                let place = match name.as_str() {
                    DENIED => &mut lost.denied,
                    name if only_lossy(name) => &mut lost.lossy_vnics,
                    name if uplink && is_congestion(name) => &mut lost.physical_network,
                    _ => &mut lost.otherwise,
                };
                *place += frames;
            }
            for (name, frames) in &port.counters {
                if name.starts_with("edge_") && !is_lossy(port) {
                    let known = lost.edges_by_place.entry(name.clone()).or_default();
                    // The kernel counts softnet drops for the whole machine, and every port shows the same number.
                    *known = if name == SOFTNET { (*known).max(*frames) } else { *known + frames };
                }
            }
        }
        for (name, frames) in &fabric.dropped {
            lost.by_reason.insert(format!("fabric {name}"), *frames);
            let place = match name.as_str() {
                name if only_lossy(name) => &mut lost.lossy_vnics,
                name if is_congestion(name) => &mut lost.physical_network,
                _ => &mut lost.otherwise,
            };
            *place += frames;
        }
        for shared in [SOFTNET, SOCKETS].into_iter().filter(|_| two_vnics) {
            lost.lossy_vnics += lost.edges_by_place.remove(shared).unwrap_or(0);
        }
        lost.edges_by_place.retain(|_, frames| *frames > 0);
        lost.edges = lost.edges_by_place.values().sum::<u64>() + fabric.lost_at_devices;
        lost
    }
}

/// Simulates a scenario; its figures, and the frames that were sent. None if it was stopped: the figures would be of another time
/// than those beside them.
pub(super) fn simulate(scenario: &Scenario, stop: &AtomicBool) -> io::Result<Option<(Figures, u64)>> {
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let job = Job { scenario: scenario.clone(), axes: Vec::new(), axis_keys: Vec::new(), inputs: Vec::new() };
    let options = Options { threads: 1, out: None, existing: Existing::Refuse, interrupt: stop, progress: &mut |_| {} };
    let outcome = run::run(&job, options).map_err(|e| io::Error::other(e.to_string()))?;
    let outcome = outcome.ok_or_else(|| io::Error::other("the simulation kept no result"))?;
    let figures = Figures::of(&job, &outcome);
    Ok((!figures.is_interrupted()).then_some((figures, outcome.totals.sent)))
}

impl Simulated {
    fn of(figures: &Figures) -> Simulated {
        let ms = |us: f64| us / 1e3;
        Simulated {
            mean_ms: figures.queries.as_ref().map(|q| ms(q.mean_us)),
            median_ms: figures.queries.as_ref().map(|q| ms(q.p50_us)),
            timeouts: figures.timeouts,
            lost_virtual: figures.losses_virtual,
            lost_physical: figures.losses_physical,
        }
    }
}
