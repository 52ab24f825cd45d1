//! Runs a scenario: builds the world, keeps the records, ends in time, and says how it went.

mod capture;
mod collect;
mod control;
mod describe;
mod failures;
mod figures;
mod flow_level;
mod messages;
mod streams;
mod sweep;

use crate::build::{self, Built};
use crate::workload;
use collect::Collector;
pub use describe::{WORK, WORLD};
pub use figures::{Completion, Figures, ZBridgeTotals, us};
use sluicenet_node::link::NodeId;
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_records::{
    Existing, Found, Input, Options as RecordOptions, QueryRow, RecordError, RecordWriter, RunInfo, RunLog, Status,
    claim, lock, peak_rss_bytes, sha256_hex,
};
use sluicenet_scenario::{self as scenario, Level, Quantity, Scenario, Warning};
use sluicenet_sim::audit::{self, Totals};
use sluicenet_sim::{Control, Engine, RunEnd, deadlock};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
pub use streams::{INTERVALS, Stream, Streams, mbps};
pub use sweep::{Configuration, FlowsBeside, SweepRun, SweepSummary, configurations};

/// Picoseconds of a second.
const PS_PER_S: u128 = 1_000_000_000_000;

/// Reasons that are a want of room in the virtual network.
pub const VIRTUAL_LOSSES: [DropReason; 4] =
    [DropReason::VswitchUplink, DropReason::VswitchVm, DropReason::SocketRx, DropReason::NoCredit];
/// Reasons that are a want of room in the physical network, adapters included.
pub const PHYSICAL_LOSSES: [DropReason; 4] =
    [DropReason::SwitchBuffer, DropReason::HeadroomExceeded, DropReason::AdapterRx, DropReason::AdapterTx];

/// How a run is to be done.
pub struct Options<'a> {
    /// Threads for this one run; the result does not depend on it.
    pub threads: usize,
    /// Where records go; nowhere if absent.
    pub out: Option<PathBuf>,
    /// What to do with a result that is there already.
    pub existing: Existing,
    /// Raised by Ctrl-C: the run stops at the end of the epoch and its records stay readable.
    pub interrupt: &'a AtomicBool,
    /// Told after every epoch.
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
    /// Frames sent on links so far.
    pub hops: u64,
}

/// What is run, before it is run.
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
    /// Frames sent on links.
    pub hops: u64,
    /// Frames of the whole world.
    pub totals: Totals,
    /// Drops of switches and of servers.
    pub switch_drops: Drops,
    /// Drops of servers.
    pub server_drops: Drops,
    /// Every query, finished ones first.
    pub queries: Vec<QueryRow>,
    /// What the flows add up to.
    pub flows: FlowTotals,
    /// Completion times, in picoseconds, of the flows of no query that began after the warm-up.
    pub flow_fct_ps: Vec<u64>,
    /// How long a round of an incast takes at line rate, of the first incast there is.
    pub incast_bound: Option<Duration>,
    /// Flows without an end.
    pub streams: Streams,
    /// The most frames that a machine's receive queue held, where there are credits.
    pub received_max: Option<u32>,
    /// What zBridge did, where there is one.
    pub zbridge: Option<ZBridgeTotals>,
    /// XOFFs sent.
    pub pauses: u64,
    /// Frames lost that were promised to arrive: an error.
    pub violations: u64,
    /// Those among them that were lost for want of a credit.
    pub uncredited: u64,
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
    /// Of a run that ended so, with nothing counted yet.
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
            pauses: 0,
            violations: 0,
            uncredited: 0,
            deadlock: None,
            tcp_bytes: 0,
            cpu_s: 0.0,
            wall_s: 0.0,
            line_mbps: 0.0,
            warnings,
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
    /// Frames dropped for want of room in the physical network, adapters included.
    pub fn physical_losses(&self) -> u64 {
        PHYSICAL_LOSSES.iter().map(|&r| self.server_drops.frames(r) + self.switch_drops.frames(r)).sum()
    }
}

/// Why a run failed.
#[derive(Debug)]
pub enum RunError {
    /// The scenario cannot be built.
    Build(scenario::Error),
    /// Records have no place: nothing was run.
    Place(RecordError),
    /// Records could not be written.
    Records(RecordError),
    /// The books do not balance: an error of this program.
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
            RunError::Place(e) | RunError::Records(e) => write!(f, "{e}"),
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

    /// What the manifest says of it.
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
            scenario: self.scenario.name.clone(),
            scenario_sha256: sha256_hex(text.as_bytes()),
            seed: self.scenario.seed,
            warmup_ps: self.scenario.warmup.as_ps(),
            axes: self.axes.clone(),
            axis_keys: self.axis_keys.clone(),
            parameters: parameters(&self.scenario),
            inputs,
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
        ("flow control", word(&s.flow_control())),
        ("hosts", hosts),
        ("switches", counts.switches.to_string()),
        ("routing", word(&s.topology.routing)),
        ("switch buffer", format!("{} a port, policy {}", s.switch.buffer.written(), word(&s.switch.policy))),
        ("XOFF / XON", pfc),
        ("TCP", word(&s.tcp.congestion)),
        ("RTO base / min / slop", rto),
        ("MTU of a guest", s.host_mtu().written()),
    ];
    let mut all = describe::lines(s);
    all.extend(lines.map(|(name, value)| (name.to_owned(), value)));
    all
}

/// A choice by the word that a scenario has for it.
fn word(choice: &impl serde::Serialize) -> String {
    match serde_json::to_value(choice) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// What it takes threads to meet, which they do once a window: two on cores of their own, measured.
const MEETING_NS: u64 = 300;
/// What a frame on a link takes to simulate; docs/results/speed.md has the figures.
const HOP_NS: u64 = 60;

/// A warning where several threads cannot pay: where even full frames on all links at once are, in a window, less work
/// than meeting is.
fn few_frames_a_window(s: &Scenario, plan: &build::Plan, window: Duration, threads: usize) -> Option<Warning> {
    let full = s.framing.mtu.as_bytes() + s.framing.header_bytes() + s.framing.gap_bytes();
    let rates: u128 = (0..plan.nodes() as NodeId).map(|node| u128::from(plan.rate_of_all(node).as_bps())).sum();
    let frames = rates * u128::from(window.as_ps()) / (u128::from(full) * 8 * PS_PER_S);
    // Of so much work all but one thread's share is saved.
    let saved = frames * u128::from(HOP_NS) * (threads as u128 - 1) / threads as u128;
    if threads < 2 || saved >= u128::from(MEETING_NS) {
        return None;
    }
    let message = format!(
        "a window is {:.1} ns, as long as the shortest link, and threads meet once a window, which takes some {:.1} us: one \
         thread will be faster than {threads}",
        window.as_ps() as f64 / 1e3,
        MEETING_NS as f64 / 1e3
    );
    Some(s.places.warning("topology.link_delay", message))
}

/// Runs a scenario. `Ok(None)` when the same result is already there and was to be kept.
pub fn run(job: &Job, options: Options<'_>) -> Result<Option<Outcome>, RunError> {
    let s = &job.scenario;
    let built = match s.level {
        Level::Packet => Network::Packets(build::build(s).map_err(RunError::Build)?),
        Level::Flow => Network::Flows(flow_level::outline(s).map_err(RunError::Build)?),
    };
    let _lock;
    let writer = match &options.out {
        None => None,
        Some(dir) => {
            _lock = lock(dir).map_err(RunError::Place)?;
            let info = job.info();
            if let Found::Complete(_) = claim(dir, &info, options.existing).map_err(RunError::Place)? {
                return Ok(None);
            }
            let record = RecordOptions { part_rows: s.record.part_rows as usize, csv: s.record.csv };
            Some(RecordWriter::create(dir, info, record).map_err(RunError::Place)?)
        }
    };
    match built {
        Network::Packets(built) => execute(job, built, writer, options),
        Network::Flows(outline) => without_packets(job, outline, writer, options),
    }
    .map(Some)
}

/// What is run.
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
    let bits = ideal.bits_on(BYTES, workload::carried(transport)).link;
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

fn execute(job: &Job, built: Built, writer: Option<RecordWriter>, options: Options<'_>) -> Result<Outcome, RunError> {
    let s = &job.scenario;
    let Built { mut world, plan, workloads, ideal, warnings } = built;
    let mut control = control::Control::of(s, &plan);
    let mut failures = failures::Failures::of(s, &plan);
    if control.is_some() || failures.is_some() {
        control::install(s, control.as_ref(), &mut world, plan.hosts());
    }
    let mut engine = Engine::new(world, options.threads).map_err(|e| RunError::Build(build::refused(s, &e)))?;
    let mut warnings = warnings;
    warnings.extend(few_frames_a_window(s, &plan, engine.window(), options.threads));
    let until = s.duration.map(|d| Instant(d.as_ps()));
    let mut next_round = Instant::ZERO;
    if let Some(control) = &control {
        next_round += control.period;
        engine.set_epoch(control.period.min(Duration::from_us(500)));
    }
    if let Some(failures) = &mut failures {
        let changes = failures.turn(Instant::ZERO);
        control::apply(&changes, control.as_mut(), Instant::ZERO, &mut engine, plan.hosts());
    }
    let incast_bound = workload::incast_bound(s, &plan, &ideal);
    let line_mbps = line_mbps(s, &plan, &ideal);
    if let Some(interval) = s.record.queues {
        let ports = plan.selected(s, "queue_ports", &s.record.queue_ports).map_err(RunError::Build)?;
        engine.sample(interval, ports);
    }
    let capture = capture::Capture::start(s, &plan, &mut engine, options.out.as_deref())?;
    let mut collector = Collector::new(s, plan.clone(), ideal, writer, capture);
    let total = collect::remaining(&engine);
    let clock = if options.threads > 1 { cpu_seconds } else { thread_cpu_seconds };
    let (cpu, wall) = (clock(), std::time::Instant::now());
    let mut failure = None;
    let mut stuck = None;
    let mut epochs = 0u64;
    let progress = options.progress;
    let end = engine.run(until.unwrap_or(Instant::MAX), options.interrupt, &mut |engine, epoch| {
        let (now, hops) = (epoch.now, epoch.hops);
        if let Err(e) = collector.epoch(engine, epoch) {
            failure = Some(e);
            return Control::Stop;
        }
        if let Some(failures) = failures.as_mut().filter(|f| now >= f.due()) {
            let changes = failures.turn(now);
            control::apply(&changes, control.as_mut(), now, engine, plan.hosts());
        }
        if let Some(control) = control.as_mut().filter(|_| now >= next_round) {
            control.turn(now, engine, plan.hosts());
            next_round = now + control.period;
        }
        let remaining = collect::remaining(engine);
        progress(&Progress { now, until, remaining, total, hops });
        epochs += 1;
        // A circle does not go away: looking now and then finds it in time.
        if s.pfc.enabled && epochs % 8 == 0 {
            stuck = deadlock::find(engine);
        }
        let done = workloads.is_finite() && until.is_none() && remaining == 0;
        if stuck.is_some() || done { Control::Stop } else { Control::Continue }
    });
    if let Some(e) = failure {
        collector.give_up(&e);
        return Err(e.into());
    }
    if end == RunEnd::Full {
        let full = RunError::Frames { max: engine.frames_max(), at: collector.now() };
        let now = collector.now();
        collector.finish(engine, now, Status::Failed(full.to_string()))?;
        return Err(full);
    }
    if stuck.is_none() && s.pfc.enabled {
        stuck = deadlock::find(&engine);
    }
    let totals = audit::check(&engine).map_err(|wrong| {
        let first = &wrong[0];
        RunError::Audit(format!("{}: {}", plan.name(first.node.min(plan.nodes() as u32 - 1)), first.books))
    })?;
    let now = match end {
        RunEnd::Time => until.unwrap_or(collector.now()),
        _ => collector.now(),
    };
    let deadlock = stuck.map(|circle| {
        let names: Vec<String> =
            circle.iter().map(|&(n, p, q)| format!("{} port {p} priority {q}", plan.name(n))).collect();
        format!("{} -> {}", names.join(" -> "), names[0])
    });
    let (switch_drops, server_drops) = collect::drops(&engine);
    // What a lossless class or zBridge brings arrives, or credits were of no use.
    let is_reliable = s.pfc.enabled || s.zbridge.enabled;
    let uncredited = if is_reliable { server_drops.frames(DropReason::NoCredit) } else { 0 };
    let violations = uncredited
        + switch_drops.frames(DropReason::HeadroomExceeded)
        + server_drops.frames(DropReason::HeadroomExceeded);
    let status = match (&deadlock, end) {
        (Some(circle), _) => Status::Failed(format!("deadlock: {circle}")),
        _ if violations > 0 => Status::Failed(violated(violations, uncredited)),
        (None, RunEnd::Interrupted) => Status::InterruptedAt { at_ps: now.as_ps() },
        _ => Status::Complete,
    };
    let mut outcome = Outcome {
        hops: engine.hops(),
        totals,
        switch_drops,
        server_drops,
        incast_bound,
        line_mbps,
        received_max: collect::received_max(&engine),
        zbridge: collect::zbridge(&engine),
        violations,
        uncredited,
        deadlock,
        tcp_bytes: collect::tcp_bytes(&engine),
        ..Outcome::new(end, now, warnings)
    };
    let collected = collector.finish(engine, now, status)?;
    // What is recorded at the end belongs to the run as well.
    (outcome.cpu_s, outcome.wall_s) = (clock() - cpu, wall.elapsed().as_secs_f64());
    outcome.pauses = collected.pauses;
    outcome.take(collected.seen);
    keep(job, &outcome, options.out.as_deref(), options.threads)?;
    Ok(outcome)
}

/// What is said of frames that were promised to arrive.
fn violated(violations: u64, uncredited: u64) -> String {
    match violations - uncredited {
        0 => format!("{uncredited} frames lost for want of a credit"),
        overran if uncredited == 0 => format!("{overran} frames lost in a lossless class"),
        overran => format!("{overran} frames lost in a lossless class, and {uncredited} for want of a credit"),
    }
}

fn write_log(dir: &Path, outcome: &Outcome, threads: usize) -> Result<(), RunError> {
    let log = RunLog {
        wall_seconds: outcome.wall_s,
        cpu_seconds: outcome.cpu_s,
        packet_hops: outcome.hops,
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

#[cfg(test)]
mod tests {
    use super::violated;

    #[test]
    fn what_was_lost_is_said_and_for_want_of_what() {
        assert_eq!(violated(3, 0), "3 frames lost in a lossless class");
        assert_eq!(violated(3, 3), "3 frames lost for want of a credit");
        assert_eq!(violated(5, 3), "2 frames lost in a lossless class, and 3 for want of a credit");
    }
}
