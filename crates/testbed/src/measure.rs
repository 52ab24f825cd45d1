//! A scenario's applications on a testbed, one variant after the other, and the same simulated.

use super::live::{Live, Progress};
use super::{Origin, Plan, bridge, flows, pa, stack};
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::fabric::Report;
use sluicenet_experiment::run::{self, Figures, Job, Options, Streams};
use sluicenet_proto::loss::DropReason;
use sluicenet_records::Existing;
use sluicenet_scenario::FlowControl;
use sluicenet_vswitchd::status::{PortStatus, Status};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicBool;

/// The share of a fabric's events that may be later than the time of a frame: where more are, links are no longer as fast as they are said
/// to be, and what is measured is how fast the machine is.
pub const LATE_MOST: f64 = 0.05;

/// What a fabric says when it ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricFigures {
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out.
    pub delivered: u64,
    /// Frames dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Frames that the kernel lost at its devices.
    pub lost_at_devices: u64,
    /// Times servers and switches were stopped by PFC at its edges, both ways.
    pub stops: u64,
    /// Priorities that a server held for so long that the fabric gave them up.
    pub storms: u64,
    /// The longest that a server still sent after a pause, in microseconds.
    pub longest_response_us: f64,
    /// By how much events were executed after they were due, in microseconds: half of them by no more, and 99 %.
    pub late_p50_us: f64,
    /// 99 % of them.
    pub late_p99_us: f64,
    /// The share of events that were later than the time of a frame.
    pub late_share: f64,
}

impl FabricFigures {
    /// Whether more than [`LATE_MOST`] of its events were late.
    pub fn is_late(&self) -> bool {
        self.late_share > LATE_MOST
    }

    /// Of a fabric that has stopped.
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
    /// The same, by the ports' counters.
    pub edges_by_place: BTreeMap<String, u64>,
    /// Of what lossy vNICs send, for want of room anywhere, and in the kernel at them.
    pub lossy_vnics: u64,
    /// Between machines that may not talk to each other.
    pub denied: u64,
    /// All that was dropped for any other reason, such as frames for nobody.
    pub otherwise: u64,
    /// What switches and fabric dropped, by who and why.
    pub by_reason: BTreeMap<String, u64>,
}

/// The same scenario simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// Mean completion time.
    pub mean_ms: Option<f64>,
    /// Median.
    pub median_ms: Option<f64>,
    /// Timeouts.
    pub timeouts: u64,
    /// Frames lost for want of room in the virtual network.
    pub lost_virtual: u64,
    /// And in the physical one.
    pub lost_physical: u64,
}

/// What one variant came to.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// What it was: the settings of the sweep.
    pub variant: String,
    /// What machines send by, and what is below that, as "TCPlight + zFabric".
    pub stack: String,
    /// LL, LZ, ZL or ZZ.
    pub flow_control: String,
    /// Between real sockets.
    pub figures: pa::Figures,
    /// Where frames were lost.
    pub lost: Lost,
    /// Times a machine was held back by its virtual switch.
    pub held_back: u64,
    /// The fabric.
    pub fabric: FabricFigures,
    /// Whether so much was late ([`LATE_MOST`]) that these are the machine's figures and not the network's.
    pub limited_by_machine: bool,
    /// The same simulated, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// What one variant of flows without an end came to.
#[derive(Clone, Debug, Serialize)]
pub struct FlowsCell {
    /// What it was: the settings of the sweep.
    pub variant: String,
    /// What machines send by, and what is below that, as "TCPlight + zFabric".
    pub stack: String,
    /// LL, LZ, ZL or ZZ.
    pub flow_control: String,
    /// Whether frames between machines need credits.
    pub credits: bool,
    /// How fast each was, after the warm-up.
    pub streams: Streams,
    /// How long was measured.
    pub measured_s: f64,
    /// Datagrams sent and received in the whole run; the rest was lost, or on its way when it ended.
    pub datagrams: [u64; 2],
    /// Where frames were lost.
    pub lost: Lost,
    /// The most frames that a machine's receive queue held, where there are credits.
    pub received_max_frames: Option<u64>,
    /// The fabric.
    pub fabric: FabricFigures,
    /// Whether so much was late ([`LATE_MOST`]) that these are the machine's figures and not the network's.
    pub limited_by_machine: bool,
    /// The same simulated, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Streams>,
}

impl Cell {
    /// What tells it from others.
    pub fn name(&self) -> &str {
        if self.variant.is_empty() { &self.flow_control } else { &self.variant }
    }
}

impl FlowsCell {
    /// What tells it from others.
    pub fn name(&self) -> &str {
        if self.variant.is_empty() { &self.flow_control } else { &self.variant }
    }
}

/// Builds a testbed, has its applications `run`, counts, removes it.
fn in_testbed<T>(
    plan: &Plan,
    origin: &Origin,
    progress: Progress<'_>,
    run: impl FnOnce(&Live) -> Result<(T, BTreeMap<String, u64>), pa::PaError>,
) -> io::Result<(T, Vec<Status>, FabricFigures, Lost)> {
    let mut live = Live::up(plan, origin, progress)?;
    let counters = live.made().and_then(|made| Ok(bridge::Counters::open(&made)?));
    let outcome = run(&live);
    // Before anything ends: what is on its way then is lost.
    let statuses = live.statuses();
    let of_bridges = counters.and_then(|mut c| Ok(c.read()?));
    let fabric = live.end("fabric");
    live.down()?;
    let (statuses, fabric) = (statuses?, fabric?);
    let fabric: FabricFigures = serde_json::from_str(&fabric).map_err(io::Error::other)?;
    let mut lost = Lost::of(&statuses, &fabric);
    lost.add_bridges(of_bridges?);
    // A stream that ends does so because of what is missing in it.
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

/// Runs one variant of a scenario of queries; `origin` is where it comes from.
///
/// # Errors
/// What the system refused; the testbed is down again.
pub fn measure(plan: &Plan, label: &str, origin: &Origin, simulate: bool, progress: Progress<'_>) -> io::Result<Cell> {
    let stop = progress.stop;
    let (outcome, statuses, fabric, lost) = in_testbed(plan, origin, progress, |live| match plan.has_guests() {
        true => pa::run_in_guests(plan, &live.supervisor(), stop),
        false => pa::run(&plan.scenario, &pa::endpoints(plan), stop).map(|outcome| (outcome, BTreeMap::new())),
    })?;
    let simulated = if simulate { Some(Simulated::of(&simulated(plan, stop)?)) } else { None };
    Ok(Cell {
        variant: label.to_owned(),
        stack: stack(&plan.scenario),
        flow_control: name_of(plan.flow_control),
        figures: outcome.figures(),
        lost,
        held_back: statuses.iter().flat_map(|s| &s.ports).map(|p| p.held_back).sum(),
        limited_by_machine: fabric.is_late(),
        fabric,
        simulated,
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
    let (outcome, statuses, fabric, lost) =
        in_testbed(plan, origin, progress, |_| Ok((flows::run(plan, &pa::endpoints(plan), stop)?, BTreeMap::new())))?;
    if outcome.measured.is_zero() {
        return Err(ErrorKind::Interrupted.into());
    }
    let queues = statuses.iter().flat_map(|s| &s.ports).flat_map(|p| &p.counters);
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
        fabric,
        simulated: if simulate { Some(simulated(plan, stop)?.streams) } else { None },
    })
}

impl Lost {
    /// What guests' kernels threw away between their applications and their devices.
    pub(super) fn add_guests(&mut self, places: BTreeMap<String, u64>) {
        self.edges = places.values().fold(self.edges, |sum, n| sum.saturating_add(*n));
        self.edges_by_place.extend(places);
    }

    /// What was lost since `before`.
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

    /// All that was lost where none may be in ZZ.
    pub fn total(&self) -> u64 {
        self.virtual_network + self.physical_network + self.edges
    }

    /// What the kernel threw away at bridges: between tenants it is the virtual network's loss, at uplinks the physical one's.
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

/// Drops between a device and the stack, and at full sockets: of all that is in a namespace, whichever device it came by.
const SOFTNET: &str = "edge_softnet";
const SOCKETS: &str = "edge_sockets";
const DENIED: &str = DropReason::Denied.name();

/// For want of room in classes that nothing waits in: where machines have two vNICs only the second ones are in any.
const LOSSY_ONLY: [DropReason; 5] = [
    DropReason::VswitchVm,
    DropReason::VswitchUplink,
    DropReason::AdapterTx,
    DropReason::AdapterRx,
    DropReason::SwitchBuffer,
];

impl Lost {
    /// What switches and a fabric have counted since they began.
    pub(super) fn of(statuses: &[Status], fabric: &FabricFigures) -> Lost {
        let is_congestion = |name: &str| DropReason::ALL.iter().any(|r| r.name() == name && r.is_congestion());
        let mut lost = Lost::default();
        // Only lossy vNICs have such ports. What they lose is said apart.
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
                // What came over the fabric and had no room is lost behind it.
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
                    // The kernel counts this one for the whole machine, and every port shows the same.
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

fn simulated(plan: &Plan, stop: &AtomicBool) -> io::Result<Figures> {
    let job = Job { scenario: plan.scenario.clone(), axes: Vec::new(), axis_keys: Vec::new(), inputs: Vec::new() };
    let options = Options { threads: 1, out: None, existing: Existing::Refuse, interrupt: stop, progress: &mut |_| {} };
    let outcome = run::run(&job, options).map_err(|e| io::Error::other(e.to_string()))?;
    let outcome = outcome.ok_or_else(|| io::Error::other("the simulation kept no result"))?;
    Ok(Figures::of(&job, &outcome))
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
