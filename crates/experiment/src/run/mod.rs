//! Runs a scenario: builds the world, keeps the records, ends in time, and says how it went.

mod capture;
mod collect;
mod control;
mod describe;
mod execute;
mod failures;
mod figures;
mod flow_level;
mod messages;
mod streams;

use crate::build::{self, Built, Demand};
use crate::workload;
pub use describe::{WORK, WORLD, load, topology_file};
pub use figures::{Completion, Figures, XcoTotals, ZBridgeTotals, us};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_records::{
    Existing, Found, Input, LastParts, Options as RecordOptions, QueryRow, RecordError, RecordWriter, RunInfo, RunLog,
    claim, lock, peak_rss_bytes, sha256_hex,
};
use sluicenet_scenario::{self as scenario, Level, Quantity, Scenario, Warning};
use sluicenet_sim::RunEnd;
use sluicenet_sim::audit::Totals;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
pub use streams::{INTERVALS, Stream, Streams, mbps};

/// Picoseconds of a second.
const PS_PER_S: u128 = 1_000_000_000_000;

/// Reasons that are a want of room in the virtual network.
pub const VIRTUAL_LOSSES: [DropReason; 4] =
    [DropReason::VswitchUplink, DropReason::VswitchVm, DropReason::SocketRx, DropReason::NoCredit];
/// Reasons that are congestion of the physical network, adapters and bumps included: a want of room, or queue management.
pub const PHYSICAL_LOSSES: [DropReason; 7] = [
    DropReason::SwitchBuffer,
    DropReason::EarlyDrop,
    DropReason::Policed,
    DropReason::Extension,
    DropReason::HeadroomExceeded,
    DropReason::AdapterRx,
    DropReason::AdapterTx,
];

/// How a run is to be done.
pub struct Options<'a> {
    /// Threads for this one run; the result does not depend on it.
    pub threads: usize,
    /// Where records go; nowhere if absent.
    pub out: Option<PathBuf>,
    /// Treatment of a result that already exists.
    pub existing: Existing,
    /// Raised by Ctrl-C: the run stops at the end of the epoch and its records stay readable.
    pub interrupt: &'a AtomicBool,
    /// Told once before the first epoch, with nothing done, and after every epoch.
    pub progress: &'a mut dyn FnMut(&Progress),
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Simulated time.
    pub now: Instant,
    /// When it ends at the latest, if that is known.
    pub until: Option<Instant>,
    /// Pieces of finite work left (queries, rounds, flows).
    pub remaining: u64,
    /// Pieces of finite work in all.
    pub total: u64,
    /// Frames sent on links so far, pause frames left out.
    pub hops: u64,
}

/// A run before its start.
pub struct Job {
    /// The scenario.
    pub scenario: Scenario,
    /// The cell of a sweep: axis and value.
    pub axes: Vec<(String, String)>,
    /// The dotted keys of the axes, in their order.
    pub axis_keys: Vec<String>,
    /// Files it read.
    pub inputs: Vec<scenario::Input>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: RunEnd,
    /// Simulated time at the end.
    pub now: Instant,
    /// Frames sent on links, pause frames left out.
    pub hops: u64,
    /// Frames of the whole world.
    pub totals: Totals,
    /// Drops of switches and of servers.
    pub switch_drops: Drops,
    /// Drops of servers.
    pub server_drops: Drops,
    /// Every query, finished ones first.
    pub queries: Vec<QueryRow>,
    /// Totals of the flows.
    pub flows: FlowTotals,
    /// Completion times, in picoseconds, of the flows of no query that began after the warm-up.
    pub flow_fct_ps: Vec<u64>,
    /// How long a round of an incast takes at line rate, of the first incast there is.
    pub incast_bound: Option<Duration>,
    /// Flows without an end.
    pub streams: Streams,
    /// The most frames that a machine's receive queue held, where there are credits.
    pub received_max: Option<u32>,
    /// Totals of zBridge; none without zBridge.
    pub zbridge: Option<ZBridgeTotals>,
    /// What XCo did; none without it.
    pub xco: Option<XcoTotals>,
    /// XOFFs sent.
    pub pauses: u64,
    /// Frames that switches marked.
    pub marked: u64,
    /// Congestion notifications that switches sent.
    pub notifications: u64,
    /// Frames lost that were promised to arrive: an error.
    pub violations: u64,
    /// Frames among the violations that were lost for want of a credit.
    pub uncredited: u64,
    /// The input that lost most frames of a lossless class, and its headroom.
    pub overrun: Option<String>,
    /// The circle of pauses, if the run ended in one.
    pub deadlock: Option<String>,
    /// Payload bytes that reached TCP sockets in order.
    pub tcp_bytes: u64,
    /// CPU seconds of the run phase, all threads.
    pub cpu_s: f64,
    /// Seconds of the run phase.
    pub wall_s: f64,
    /// Payload a second that the links of all hosts carry, in megabits.
    pub line_mbps: f64,
    /// Warnings of the build.
    pub warnings: Vec<Warning>,
    /// The records that are still in memory.
    pub records: LastParts,
}

/// Sums over flows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowTotals {
    /// Flows that began.
    pub started: u64,
    /// Flows that were delivered in full.
    pub finished: u64,
    /// Flows of no query that began after the warm-up and were not delivered in full.
    pub open_alone: u64,
    /// Flows of no query that began during the warm-up.
    pub warmup_alone: u64,
    /// Retransmission timeouts of all of them, those of the warm-up too.
    pub timeouts: u64,
    /// Segments sent again of all of them.
    pub retransmissions: u64,
    /// Retransmission timeouts of flows of no query that began after the warm-up.
    pub timeouts_alone: u64,
    /// Segments sent again by flows of no query that began after the warm-up.
    pub retransmissions_alone: u64,
}

impl Outcome {
    /// Outcome of a run that ended so, with nothing counted yet.
    fn new(end: RunEnd, now: Instant, warnings: Vec<Warning>) -> Outcome {
        Outcome {
            end,
            now,
            hops: 0,
            totals: Totals::default(),
            switch_drops: Drops::default(),
            server_drops: Drops::default(),
            queries: Vec::new(),
            flows: FlowTotals::default(),
            flow_fct_ps: Vec::new(),
            incast_bound: None,
            streams: Streams::default(),
            received_max: None,
            zbridge: None,
            xco: None,
            pauses: 0,
            marked: 0,
            notifications: 0,
            violations: 0,
            uncredited: 0,
            overrun: None,
            deadlock: None,
            tcp_bytes: 0,
            cpu_s: 0.0,
            wall_s: 0.0,
            line_mbps: 0.0,
            warnings,
            records: LastParts::default(),
        }
    }

    fn take(&mut self, seen: messages::Seen) {
        (self.queries, self.flows) = (seen.queries, seen.flows);
        (self.flow_fct_ps, self.streams) = (seen.fct_ps, seen.streams);
    }

    /// Frames dropped for want of room in the virtual network.
    pub fn virtual_losses(&self) -> u64 {
        VIRTUAL_LOSSES.iter().map(|&r| self.server_drops.frames(r)).sum()
    }
    /// Frames dropped by congestion of the physical network, adapters included.
    pub fn physical_losses(&self) -> u64 {
        PHYSICAL_LOSSES.iter().map(|&r| self.server_drops.frames(r) + self.switch_drops.frames(r)).sum()
    }
}

/// Why a run failed.
#[derive(Debug)]
pub enum RunError {
    /// The scenario cannot be built.
    Build(scenario::Error),
    /// The directory of records is not usable: nothing was run.
    Directory(RecordError),
    /// Records could not be written.
    Records(RecordError),
    /// Frames are missing or counted twice: a bug of this program.
    Audit(String),
    /// More frames at once than a thread can name, of which there are so many.
    Frames {
        /// The most.
        max: u32,
        /// When.
        at: Instant,
    },
}

impl core::fmt::Display for RunError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RunError::Build(e) => write!(f, "{e}"),
            RunError::Directory(e) | RunError::Records(e) => write!(f, "{e}"),
            RunError::Audit(e) => write!(f, "frames are missing or counted twice, which is an error of sluicenet: {e}"),
            RunError::Frames { max, at } => write!(
                f,
                "more than {max} frames at once after {:.3} ms, which is as many as a thread of the simulator can name: a smaller \
                 adapter.buffer, fewer hosts, more --threads, or scenario.level = \"flow\"",
                at.as_ps() as f64 / 1e9
            ),
        }
    }
}

impl std::error::Error for RunError {}

impl From<RecordError> for RunError {
    fn from(e: RecordError) -> RunError {
        RunError::Records(e)
    }
}

impl Job {
    /// A scenario by itself.
    pub fn new(loaded: &scenario::Loaded) -> Job {
        Job { scenario: loaded.scenario.clone(), axes: Vec::new(), axis_keys: Vec::new(), inputs: loaded.inputs() }
    }

    /// A variant of a sweep, whose scenarios read `inputs`.
    pub fn of_variant(variant: scenario::Variant, inputs: Vec<scenario::Input>) -> Job {
        let (axes, axis_keys) = (variant.axes(), variant.axis_keys());
        Job { axes, axis_keys, scenario: variant.scenario, inputs }
    }

    /// The manifest's description of the run.
    pub fn info(&self) -> RunInfo {
        let inputs: Vec<Input> = self.inputs.iter().map(|i| Input::of(i.path.clone(), &i.bytes)).collect();
        // Two scenarios are the same when their settings and the bytes of their inputs are.
        let mut text = self.scenario.canonical_json().unwrap_or_default();
        for i in &inputs {
            text.push_str(&i.name);
            text.push_str(&i.sha256);
        }
        RunInfo {
            tool_version: env!("CARGO_PKG_VERSION").into(),
            defaults: scenario::DEFAULTS,
            scenario: self.scenario.name.clone(),
            scenario_sha256: sha256_hex(text.as_bytes()),
            seed: self.scenario.seed,
            warmup_ps: self.scenario.warmup.as_ps(),
            axes: self.axes.clone(),
            axis_keys: self.axis_keys.clone(),
            parameters: parameters(&self.scenario),
            inputs,
            settings: self.scenario.settings().unwrap_or_default(),
        }
    }
}

/// The settings a reader of the report wants to see, spelled as a scenario spells them.
fn parameters(s: &Scenario) -> Vec<(String, String)> {
    let counts = s.topology.counts();
    let hosts = match counts.external {
        0 => counts.hosts.to_string(),
        external => format!("{} and {external} external", counts.hosts),
    };
    let pfc = match s.pfc.enabled {
        true => format!("{} / {}", s.pfc.xoff.written(), s.pfc.xon.written()),
        false => "no PFC".into(),
    };
    let rto = [s.tcp.rto_base, s.tcp.rto_min, s.tcp.rto_slop].map(Quantity::written).join(" / ");
    let lines = [
        ("flow control", s.flow_control().name().into()),
        ("hosts", hosts),
        ("switches", counts.switches.to_string()),
        ("routing", s.topology.routing.name().into()),
        ("switch buffer", format!("{} a port, policy {}", s.switch.buffer.written(), s.switch.policy.name())),
        ("XOFF / XON", pfc),
        ("TCP", s.tcp.congestion.name().into()),
        ("RTO base / min / slop", rto),
        ("MTU of a guest", s.host_mtu().written()),
    ];
    let mut all = describe::lines(s);
    all.extend(topology_file(s).map(|file| ("topology".to_owned(), file)));
    all.extend(lines.map(|(name, value)| (name.to_owned(), value)));
    all
}

/// Refuses a scenario whose network cannot be built, or not with its records.
///
/// # Errors
/// As [`RunError::Build`] of [`run`].
pub fn check(s: &Scenario) -> scenario::Result<()> {
    match s.level {
        Level::Packet => build::check(s, Demand { recorded: true, threads: 1 }),
        Level::Flow => flow_level::outline(s).map(drop),
    }
}

/// Runs a scenario. `Ok(None)` when the same result is already there and was to be kept.
pub fn run(job: &Job, options: Options<'_>) -> Result<Option<Outcome>, RunError> {
    let s = &job.scenario;
    let demand = Demand { recorded: options.out.is_some(), threads: options.threads };
    let built = match s.level {
        Level::Packet => Network::Packets(build::build_for(s, demand).map_err(RunError::Build)?),
        Level::Flow => Network::Flows(flow_level::outline(s).map_err(RunError::Build)?),
    };
    let _lock;
    let writer = match &options.out {
        None => None,
        Some(dir) => {
            _lock = lock(dir).map_err(RunError::Directory)?;
            let info = job.info();
            if let Found::Complete(_) = claim(dir, &info, options.existing).map_err(RunError::Directory)? {
                return Ok(None);
            }
            let record = RecordOptions { part_rows: s.record.part_rows as usize, csv: s.record.csv };
            Some(RecordWriter::create(dir, info, record).map_err(RunError::Directory)?)
        }
    };
    match built {
        Network::Packets(built) => execute::execute(job, built, writer, options),
        Network::Flows(outline) => without_packets(job, outline, writer, options),
    }
    .map(Some)
}

/// The network to run.
// One of them, once a run.
#[allow(clippy::large_enum_variant)]
enum Network {
    Packets(Built),
    Flows(build::Outline),
}

fn without_packets(
    job: &Job,
    outline: build::Outline,
    writer: Option<RecordWriter>,
    options: Options<'_>,
) -> Result<Outcome, RunError> {
    let s = &job.scenario;
    let build::Outline { plan, workloads, ideal, warnings } = outline;
    let incast_bound = workload::incast_bound(s, &plan, &ideal);
    let line_mbps = line_mbps(s, &plan, &ideal);
    let apps: Vec<_> = (0..plan.hosts()).map(|host| workloads.apps(host)).collect();
    let total = apps.iter().map(workload::HostApps::remaining).sum();
    let (cpu, wall) = (thread_cpu_seconds(), std::time::Instant::now());
    let until = s.duration.map(|d| Instant(d.as_ps()));
    let progress = options.progress;
    let ends = flow_level::Ends {
        until,
        is_finite: workloads.is_finite(),
        interrupt: options.interrupt,
        progress: &mut |now, remaining| progress(&Progress { now, until, remaining, total, hops: 0 }),
    };
    let ended = flow_level::run(s, (plan, ideal), apps, writer, ends)?;
    let mut outcome = Outcome {
        incast_bound,
        line_mbps,
        tcp_bytes: ended.tcp_bytes,
        cpu_s: thread_cpu_seconds() - cpu,
        wall_s: wall.elapsed().as_secs_f64(),
        ..Outcome::new(ended.end, ended.now, warnings)
    };
    outcome.take(ended.seen);
    keep(job, &outcome, options.out.as_deref(), 1)?;
    Ok(outcome)
}

/// Payload a second that the links of all hosts carry, in megabits, as the first workload's frames carry it.
fn line_mbps(s: &Scenario, plan: &build::Plan, ideal: &build::Ideal) -> f64 {
    const BYTES: u64 = 1_000_000_000;
    let transport = match s.workloads.first() {
        Some(scenario::Workload::Permutation(w)) => w.transport,
        Some(scenario::Workload::Flow(w)) => w.transport,
        Some(scenario::Workload::Shuffle(w)) => w.transport,
        _ => scenario::Transport::Tcp,
    };
    let bits = ideal.frames.bits_on(BYTES, workload::carried(transport)).link;
    let hosts = 0..plan.hosts() - plan.external();
    let rate: f64 = hosts.map(|host| plan.host_rate(host).as_bps() as f64).sum();
    rate * (8 * BYTES) as f64 / bits as f64 / 1e6
}

/// Keeps the log of a run and its figures beside its records.
fn keep(job: &Job, outcome: &Outcome, out: Option<&Path>, threads: usize) -> Result<(), RunError> {
    if let Some(dir) = out {
        write_log(dir, outcome, threads)?;
        Figures::of(job, outcome).save(dir)?;
    }
    Ok(())
}

fn write_log(dir: &Path, outcome: &Outcome, threads: usize) -> Result<(), RunError> {
    let log = RunLog {
        wall_seconds: outcome.wall_s,
        cpu_seconds: outcome.cpu_s,
        packet_hops: outcome.hops,
        packets_end_to_end: outcome.totals.end_to_end,
        threads: threads as u32,
        peak_memory_bytes: Some(peak_rss_bytes()),
        command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
    };
    Ok(log.write(dir)?)
}

/// CPU seconds of this process so far, user and system, all threads.
pub fn cpu_seconds() -> f64 {
    cpu_seconds_of("/proc/self/stat")
}

/// CPU seconds of this thread so far: those of one run where several run beside each other.
fn thread_cpu_seconds() -> f64 {
    // The scheduler's own count is in nanoseconds; a kernel may be without it.
    let exact = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = exact.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()).filter(|ns| *ns > 0);
    ns.map_or_else(|| cpu_seconds_of("/proc/thread-self/stat"), |ns| ns as f64 / 1e9)
}

fn cpu_seconds_of(stat: &str) -> f64 {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    // Fields 14 and 15, counted after the command's closing bracket, in clock ticks of 10 ms.
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().skip(11).take(2).filter_map(|x| x.parse().ok()).collect())
        .unwrap_or_default();
    // A sum of nothing is minus zero.
    (fields.iter().sum::<f64>() + 0.0) / 100.0
}
