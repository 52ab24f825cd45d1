//! Runs the flows and queries of a plan, reads the bumps' estimates meanwhile, and compares them with the queues.

use super::fabric::Running;
use super::network::{Network, PRIORITY};
use super::plan::Plan;
use super::trace::{Estimate, Queue, Sample, Trace};
use crate::flows;
use crate::live::Progress;
use crate::measure::{FabricFigures, simulate};
use crate::pa::{self, Endpoints, PaError, kernel_name};
use rustix::process::setpriority_process;
use serde::Serialize;
use sluicenet_dataplane::clock::monotonic_ns;
use sluicenet_experiment::run::{Completion, Figures, Streams};
use sluicenet_vswitchd::status::Status;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two readings of the estimates of a bump. A reading takes about a tenth of it from the bump's loop.
const READ_EVERY: Duration = Duration::from_millis(5);
/// The longest that flows beside queries run.
const FLOWS_MAX: sluicenet_proto::time::Duration = sluicenet_proto::time::Duration::from_secs(3_600);
/// Time for frames under way to arrive before the fabric is stopped.
const SETTLE: Duration = Duration::from_millis(50);

/// The counters of a bump.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BumpFigures {
    /// Packets that entered its virtual queues.
    pub packets: u64,
    /// Packets that it marked.
    pub marked: u64,
    /// Packets that its applications dropped.
    pub dropped: u64,
    /// Notifications that it sent.
    pub notices: u64,
    /// Packets that other bumps reported.
    pub reported: u64,
    /// Frames that the kernel dropped before the bump took them.
    pub lost_at_devices: u64,
}

impl BumpFigures {
    fn of(status: &Status) -> BumpFigures {
        let bump = status.bump.as_deref();
        let queues = || bump.iter().flat_map(|bump| &bump.queues);
        let counters = status.ports.iter().flat_map(|port| &port.counters);
        BumpFigures {
            packets: queues().map(|q| q.packets).sum(),
            marked: queues().map(|q| q.marked).sum(),
            dropped: queues().map(|q| q.dropped).sum(),
            notices: queues().map(|q| q.notices).sum(),
            reported: queues().map(|q| q.reported).sum(),
            lost_at_devices: counters.filter(|(name, _)| name.ends_with("socket_drops")).map(|c| c.1).sum(),
        }
    }
}

/// The results of the simulation of the same scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Simulated {
    /// Flows without an end.
    pub streams: Streams,
    /// Completion times of queries.
    pub queries: Option<Completion>,
    /// Frames that were lost by congestion.
    pub lost: u64,
}

/// The results of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The variant's name: the settings of the sweep.
    pub variant: String,
    /// The scale: rates are divided and times multiplied by it; buffers and thresholds stay.
    pub slowdown: u64,
    /// The hosts' congestion control, by the kernel's name, if they have connections; with ECN if it is switched on.
    pub congestion: Option<String>,
    /// Duration of the measurement in seconds.
    pub seconds: f64,
    /// Flows without an end, after the warm-up; none if the run ended within it.
    pub streams: Option<Streams>,
    /// Queries.
    pub queries: Option<pa::Figures>,
    /// The completion time of each query after the warm-up, in milliseconds.
    pub query_ms: Vec<f64>,
    /// The compared queues, after the warm-up, with their estimates.
    pub queues: Vec<Queue>,
    /// The bumps.
    pub bumps: Vec<BumpFigures>,
    /// The fabric.
    pub fabric: FabricFigures,
    /// Whether so many of the fabric's events were late that the figures show the machine and not the network.
    pub limited_by_machine: bool,
    /// The simulation's results, if requested and not stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// What the hosts' programs measured.
#[derive(Debug, Default)]
struct Outcome {
    flows: Option<flows::Outcome>,
    queries: Option<pa::Outcome>,
}

/// The estimates that were read, by bump and number of the downstream port.
type Read = BTreeMap<(usize, u16), Vec<Sample>>;

impl Outcome {
    /// Whether nothing was measured after the warm-up.
    fn is_nothing(&self) -> bool {
        self.flows.as_ref().is_none_or(|flows| flows.measured.is_zero())
            && self.queries.as_ref().is_none_or(|queries| queries.queries.iter().all(|query| query.warmup))
    }
}

/// Builds the network of a plan, runs its applications, and removes the network. A run that is stopped has the figures until then.
///
/// # Errors
/// A request that the system refused, or a bump that died; [`ErrorKind::Interrupted`] if it was stopped before anything was
/// measured. The network is removed.
pub fn measure(plan: &Plan, label: &str, simulates: bool, progress: Progress<'_>) -> io::Result<Cell> {
    let network = Network::build(plan, progress.stop)?;
    let fabric = Running::start(plan, &network)?;
    (progress.say)(&format!("{} hosts and {} bumps run", plan.hosts.len(), plan.bumps.len()));
    let begun_ns = fabric.on_its_clock(monotonic_ns());
    let (outcome, read) = run(plan, &network, &fabric, progress.stop)?;
    let ended_ns = fabric.on_its_clock(monotonic_ns());
    std::thread::sleep(SETTLE);
    let statuses = (0..plan.bumps.len()).map(|i| network.status(i)).collect::<io::Result<Vec<_>>>()?;
    let (report, traces) = fabric.end()?;
    drop(network);
    let figures = FabricFigures::of(&report);
    let warm_ns = begun_ns + plan.scenario.warmup.as_ps() / 1_000;
    let queues = compare(plan, &traces, &read, (warm_ns, ended_ns));
    if progress.stop.load(Ordering::Relaxed) && outcome.is_nothing() {
        return Err(ErrorKind::Interrupted.into());
    }
    let simulated = if simulates { simulate(&plan.scenario, progress.stop)? } else { None };
    let query_ms = |q: &pa::Outcome| -> Vec<f64> {
        q.queries.iter().filter(|q| !q.warmup).map(|q| q.took.as_secs_f64() * 1e3).collect()
    };
    Ok(Cell {
        variant: label.to_owned(),
        slowdown: plan.slowdown,
        congestion: congestion(plan),
        seconds: (ended_ns - begun_ns) as f64 / 1e9,
        streams: outcome.flows.filter(|flows| !flows.measured.is_zero()).map(|flows| flows.streams),
        query_ms: outcome.queries.as_ref().map(query_ms).unwrap_or_default(),
        queries: outcome.queries.map(|queries| queries.figures()),
        queues,
        bumps: statuses.iter().map(BumpFigures::of).collect(),
        limited_by_machine: figures.is_late(),
        fabric: figures,
        simulated: simulated.map(|(figures, _)| Simulated::of(figures)),
    })
}

/// The congestion control of the hosts, if they have connections.
fn congestion(plan: &Plan) -> Option<String> {
    let tcp = &plan.scenario.tcp;
    let ecn = if tcp.ecn { " with ECN" } else { "" };
    plan.connects().then(|| format!("{}{ecn}", kernel_name(tcp.congestion)))
}

/// Runs the applications, and reads the estimates until they have ended or are stopped.
fn run(plan: &Plan, network: &Network, fabric: &Running, stop: &AtomicBool) -> io::Result<(Outcome, Read)> {
    let endpoints = network.endpoints(plan);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let playing = threads.spawn(|| play(plan, &endpoints, &over));
        // Samples are few where this thread waits for a processor.
        let _ = setpriority_process(None, PRIORITY);
        let mut read = Read::new();
        let mut outcome = Ok(());
        while !playing.is_finished() && !stop.load(Ordering::Relaxed) && outcome.is_ok() {
            outcome = read_estimates(plan, network, fabric, &mut read);
            if !fabric.is_running() {
                outcome = Err(io::Error::other("the fabric ended"));
            }
            std::thread::sleep(READ_EVERY);
        }
        over.store(true, Ordering::Relaxed);
        let _ = setpriority_process(None, 0);
        let played = playing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome?;
        Ok((played.map_err(io::Error::other)?, read))
    })
}

/// Runs flows and queries beside each other: flows until their duration is over, or until the last query.
fn play(plan: &Plan, endpoints: &Endpoints, over: &AtomicBool) -> Result<Outcome, PaError> {
    let Some(queries) = &plan.queries else {
        let flows = plan.flows.as_ref().map(|s| flows::run(s, plan.mtu(), endpoints, over, &mut || Ok(())));
        return Ok(Outcome { flows: flows.transpose()?, queries: None });
    };
    let Some(endless) = &plan.flows else {
        return Ok(Outcome { flows: None, queries: Some(pa::run(queries, endpoints, over)?) });
    };
    let mut endless = endless.clone();
    endless.general.duration.get_or_insert(FLOWS_MAX);
    let enough = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let flows = threads.spawn(|| flows::run(&endless, plan.mtu(), endpoints, &enough, &mut || Ok(())));
        let queries = pa::run(queries, endpoints, over);
        enough.store(true, Ordering::Relaxed);
        let flows = flows.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(Outcome { flows: Some(flows?), queries: Some(queries?) })
    })
}

/// Reads the estimates of all bumps for the compared ports.
fn read_estimates(plan: &Plan, network: &Network, fabric: &Running, read: &mut Read) -> io::Result<()> {
    for (i, bump) in plan.bumps.iter().enumerate() {
        let status = network.status(i).map_err(|e| io::Error::new(e.kind(), format!("bump {i}: {e}")))?;
        let Some(status) = status.bump else { continue };
        let at_ns = fabric.on_its_clock(status.read_at_ns);
        for port in bump.downstream.iter().filter(|port| plan.compared.iter().any(|(at, _)| *at == port.at)) {
            let name = port.number.to_string();
            if let Some(queue) = status.queues.iter().find(|queue| queue.port == name) {
                read.entry((i, port.number)).or_default().push(Sample { at_ns, bytes: queue.bytes });
            }
        }
    }
    Ok(())
}

/// The compared queues with their estimates, between two instants.
fn compare(plan: &Plan, traces: &[Trace], read: &Read, (from_ns, to_ns): (u64, u64)) -> Vec<Queue> {
    let mut queues = Vec::new();
    for ((at, name), trace) in plan.compared.iter().zip(traces) {
        let seen = || {
            let of = |(i, bump): (usize, &super::Bump)| {
                bump.downstream.iter().find(|port| port.at == *at).map(|port| (i, port.clone()))
            };
            plan.bumps.iter().enumerate().filter_map(of).collect::<Vec<_>>()
        };
        let rate_bps = seen().first().map_or(0, |(_, port)| port.rate.as_bps());
        let mut queue = Queue::of(name, rate_bps, trace, (from_ns, to_ns));
        for (bump, port) in seen() {
            let samples = read.get(&(bump, port.number)).map(Vec::as_slice).unwrap_or_default();
            let warm: Vec<Sample> = samples.iter().filter(|s| (from_ns..=to_ns).contains(&s.at_ns)).copied().collect();
            queue.estimates.push(Estimate::of(bump, &warm, trace, from_ns));
        }
        queues.push(queue);
    }
    queues
}

impl Simulated {
    fn of(figures: Figures) -> Simulated {
        Simulated { streams: figures.streams, queries: figures.queries, lost: figures.losses_physical }
    }
}
