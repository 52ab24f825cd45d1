//! One packet-level run: the engine, epoch by epoch, to its end, and the outcome.

use super::collect::{self, Collector};
use super::figures::violated;
use super::{
    Job, Options, Outcome, PS_PER_S, Progress, RunError, capture, control, cpu_seconds, failures, keep, line_mbps,
    thread_cpu_seconds,
};
use crate::build::{self, Built};
use crate::workload::{self, HostApps};
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_records::{RecordError, RecordWriter, Status};
use sluicenet_scenario::{DURATION_MAX, PORTS, Quantity, Scenario, Warning, WatchdogAction, Workload};
use sluicenet_sim::audit::{self, Totals};
use sluicenet_sim::world::{NodeRef, World};
use sluicenet_sim::{Control, Engine, RunEnd, deadlock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Time for threads to synchronise, which they do once a window; measured with two on cores of their own.
const SYNCHRONISE_NS: u64 = 300;
/// Time to simulate one frame on one link; docs/results/speed.md has the figures.
const HOP_NS: u64 = 60;

/// A warning if several threads cannot pay off: even full frames on all links take less time in a window than threads need to
/// synchronise.
fn few_frames_a_window(s: &Scenario, plan: &build::Plan, window: Duration, threads: usize) -> Option<Warning> {
    let full = s.framing.mtu.as_bytes() + s.framing.header_bytes() + s.framing.gap_bytes();
    let rates: u128 = (0..plan.nodes() as NodeId).map(|node| u128::from(plan.rate_of_all(node).as_bps())).sum();
    let frames = rates * u128::from(window.as_ps()) / (u128::from(full) * 8 * PS_PER_S);
    // Each thread does an equal portion of this work; the time of all others is saved.
    let saved = frames * u128::from(HOP_NS) * (threads as u128 - 1) / threads as u128;
    if threads < 2 || saved >= u128::from(SYNCHRONISE_NS) {
        return None;
    }
    let message = format!(
        "a window is {:.1} ns, as long as the shortest link, and threads meet once a window, which takes some {:.1} us: one \
         thread will be faster than {threads}",
        window.as_ps() as f64 / 1e3,
        SYNCHRONISE_NS as f64 / 1e3
    );
    Some(s.locations.warning("topology.link_delay", message))
}

/// Runs a scenario packet by packet.
pub(super) fn execute(
    job: &Job,
    built: Built,
    writer: Option<RecordWriter>,
    options: Options<'_>,
) -> Result<Outcome, RunError> {
    let s = &job.scenario;
    let Built { world, plan, workloads, ideal, slowdowns, bumps, mut warnings } = built;
    let (mut engine, operator) = Operator::start(s, &plan, &bumps, world, slowdowns, options.threads)?;
    warnings.extend(few_frames_a_window(s, &plan, engine.window(), options.threads));
    let incast_bound = workload::incast_bound(s, &plan, &ideal);
    let line_mbps = line_mbps(s, &plan, &ideal);
    let capture = capture::Capture::start(s, &plan, &mut engine, options.out.as_deref())?;
    let mut collector = Collector::new(s, plan.clone(), bumps, ideal, writer, capture);
    // The caller can tell what to expect, in time that is not the run's.
    let total = collect::remaining(&engine);
    (options.progress)(&Progress { until: until(s), remaining: total, total, ..Progress::default() });
    let clock = if options.threads > 1 { cpu_seconds } else { thread_cpu_seconds };
    let (cpu, wall) = (clock(), std::time::Instant::now());
    let run = Drive { scenario: s, operator, is_finite: workloads.is_finite(), total, progress: options.progress };
    let (end, deadlock) = match run.drive(&mut engine, &mut collector, options.interrupt) {
        Ok(ended) => ended,
        Err(e) => {
            collector.give_up(&e);
            return Err(e.into());
        }
    };
    if end == RunEnd::Full {
        let now = collector.now();
        let full = RunError::Frames { max: engine.frames_max(), at: now };
        collector.finish(engine, now, Status::Failed(full.to_string()))?;
        return Err(full);
    }
    let totals = audited(&engine, &plan)?;
    let now = match (end, s.duration) {
        (RunEnd::Time, Some(duration)) => Instant(duration.as_ps()),
        (RunEnd::Time, None) => END_MAX,
        _ => collector.now(),
    };
    if end == RunEnd::Time && s.duration.is_none() {
        let message = format!("the run has ended at {}, the longest time, before its work", DURATION_MAX.written());
        warnings.push(s.locations.warning("scenario.duration", message));
    }
    warnings.extend(ignored(s, &engine));
    let losses = Losses::of(s, &engine);
    let overrun = overrun(s, &plan, &engine);
    let deadlock = deadlock.map(|circle| name_circle(&plan, &circle));
    let status = match (&deadlock, end) {
        (Some(circle), _) => Status::Failed(format!("deadlock: {circle}")),
        _ if losses.violations > 0 => {
            Status::Failed(violated(losses.violations, losses.uncredited, overrun.as_deref()))
        }
        (None, RunEnd::Interrupted) => Status::InterruptedAt { at_ps: now.as_ps() },
        _ => Status::Complete,
    };
    let mut outcome = Outcome {
        hops: collect::hops(&engine),
        totals,
        switch_drops: losses.switches,
        server_drops: losses.servers,
        incast_bound,
        line_mbps,
        received_max: collect::received_max(&engine),
        zbridge: collect::zbridge(&engine),
        xco: collect::xco(&engine, &plan, s, now),
        violations: losses.violations,
        uncredited: losses.uncredited,
        overrun,
        deadlock,
        tcp_bytes: collect::tcp_bytes(&engine),
        ..Outcome::new(end, now, warnings)
    };
    let collected = collector.finish(engine, now, status)?;
    // The final records belong to the run as well.
    (outcome.cpu_s, outcome.wall_s) = (clock() - cpu, wall.elapsed().as_secs_f64());
    outcome.pauses = collected.pauses;
    outcome.warnings.extend(out_of_ports(s, &collected.reused));
    (outcome.marked, outcome.notifications) = (collected.marked, collected.notifications);
    outcome.records = collected.records;
    outcome.take(collected.seen);
    keep(job, &outcome, options.out.as_deref(), options.threads)?;
    Ok(outcome)
}

/// Changes a network from outside while it runs: slower links; in a fat-tree the control loop, and failures.
struct Operator {
    control: Option<control::Control>,
    failures: Option<failures::Failures>,
    slowdowns: Option<build::Slowdowns>,
    /// When the control loop runs next.
    next_round: Instant,
    hosts: u32,
}

impl Operator {
    /// The engine of a world at its start, and the operator of its network.
    fn start(
        s: &Scenario,
        plan: &build::Plan,
        bumps: &build::Bumps,
        mut world: World<HostApps>,
        slowdowns: Option<build::Slowdowns>,
        threads: usize,
    ) -> Result<(Engine<HostApps>, Operator), RunError> {
        let (control, failures) = (control::Control::of(s, plan), failures::Failures::of(s, plan));
        let hosts = plan.hosts();
        if control.is_some() || failures.is_some() {
            control::install(s, control.as_ref(), &mut world);
        }
        let part = build::parts(plan, bumps, threads);
        let mut engine = Engine::new(world, &part, threads).map_err(|e| RunError::Build(build::refused(s, &e)))?;
        engine.end_epoch(Instant(s.warmup.as_ps()));
        let mut operator = Operator { control, failures, slowdowns, next_round: Instant::ZERO, hosts };
        operator.slow_down(Instant::ZERO, &mut engine);
        if let Some(control) = &operator.control {
            operator.next_round += control.period;
            engine.set_epoch(control.period.min(Duration::from_us(500)));
        }
        if operator.failures.is_some() {
            operator.fail(Instant::ZERO, &mut engine);
        }
        if let Some(interval) = s.record.queues {
            let mut ports = plan.selected(s, "queue_ports", &s.record.queue_ports).map_err(RunError::Build)?;
            // The estimates of the same queues.
            ports.extend(bumps.estimating(plan, &ports));
            engine.sample(interval, ports);
        }
        Ok((engine, operator))
    }

    /// An epoch has ended.
    fn turn(&mut self, now: Instant, engine: &mut Engine<HostApps>) {
        self.slow_down(now, engine);
        if self.failures.as_ref().is_some_and(|failures| now >= failures.next_event()) {
            self.fail(now, engine);
        }
        if let Some(control) = self.control.as_mut().filter(|_| now >= self.next_round) {
            control.turn(now, engine, self.hosts);
            self.next_round = now + control.period;
        }
    }

    /// Applies the slowdowns up to `now`.
    fn slow_down(&mut self, now: Instant, engine: &mut Engine<HostApps>) {
        if let Some(slowdowns) = self.slowdowns.as_mut().filter(|slowdowns| now >= slowdowns.next_event()) {
            slowdowns.turn(now).into_iter().for_each(|(sender, rate)| engine.set_rate(sender, rate));
        }
    }

    /// Applies the failures and repairs up to `now`.
    fn fail(&mut self, now: Instant, engine: &mut Engine<HostApps>) {
        let Some(failures) = &mut self.failures else { return };
        let changes = failures.turn(now);
        control::apply(&changes, self.control.as_mut(), now, engine, self.hosts);
    }
}

/// The end of a run without a duration whose work does not end: from here on the longest delays still fit the clock.
const END_MAX: Instant = Instant(DURATION_MAX.as_ps());
/// Epochs between two searches for a deadlock. A circle of pauses stays, so a search now and then finds it in time.
const EPOCHS_PER_SEARCH: u64 = 8;

/// A circle of paused outputs.
type Circle = Vec<deadlock::PausedOutput>;

/// A run from its first epoch to its last.
struct Drive<'a> {
    scenario: &'a Scenario,
    operator: Operator,
    /// Whether the run ends when every application has ended.
    is_finite: bool,
    /// Pieces of finite work.
    total: u64,
    progress: &'a mut dyn FnMut(&Progress),
}

impl Drive<'_> {
    /// Runs to the end; why it ended, and the deadlock that it ended in.
    fn drive(
        mut self,
        engine: &mut Engine<HostApps>,
        collector: &mut Collector,
        interrupt: &AtomicBool,
    ) -> Result<(RunEnd, Option<Circle>), RecordError> {
        // A watchdog that gives up a class resolves a circle.
        let pfc = &self.scenario.pfc;
        let has_pauses = pfc.enabled && pfc.watchdog.is_none_or(|watchdog| watchdog.action == WatchdogAction::Alert);
        let (until, total) = (until(self.scenario), self.total);
        let (mut failure, mut stuck, mut epochs) = (None, None, 0u64);
        let end = engine.run(until.unwrap_or(END_MAX), interrupt, &mut |engine, epoch| {
            let now = epoch.now;
            // Without flow control there are no pause frames to be left out.
            let hops = if pfc.enabled { collect::hops(engine) } else { epoch.hops };
            if let Err(e) = collector.epoch(engine, epoch) {
                failure = Some(e);
                return Control::Stop;
            }
            self.operator.turn(now, engine);
            let remaining = collect::remaining(engine);
            (self.progress)(&Progress { now, until, remaining, total, hops });
            epochs += 1;
            if has_pauses && epochs % EPOCHS_PER_SEARCH == 0 {
                stuck = deadlock::find(engine);
            }
            let done = self.is_finite && until.is_none() && remaining == 0;
            if stuck.is_some() || done { Control::Stop } else { Control::Continue }
        });
        if let Some(e) = failure {
            return Err(e);
        }
        if stuck.is_none() && has_pauses && end != RunEnd::Full {
            stuck = deadlock::find(engine);
        }
        Ok((end, stuck))
    }
}

/// When a run ends at the latest, if that is known.
fn until(s: &Scenario) -> Option<Instant> {
    s.duration.map(|d| Instant(d.as_ps()))
}

/// The sums of a run whose frames are all accounted for.
fn audited(engine: &Engine<HostApps>, plan: &build::Plan) -> Result<Totals, RunError> {
    audit::check(engine).map_err(|wrong| {
        let first = &wrong[0];
        RunError::Audit(format!("{}: {}", plan.name(first.node.min(plan.nodes() as u32 - 1)), first.sums))
    })
}

/// A deadlock, with the names of its ports.
fn name_circle(plan: &build::Plan, circle: &Circle) -> String {
    let names: Vec<String> =
        circle.iter().map(|&(n, p, q)| format!("{} port {p} priority {q}", plan.name(n))).collect();
    format!("{} -> {}", names.join(" -> "), names[0])
}

/// The input that lost most frames of a lossless class, with its headroom.
fn overrun(s: &Scenario, plan: &Arc<build::Plan>, engine: &Engine<HostApps>) -> Option<String> {
    let at = |n: NodeId| match engine.node(n).kind() {
        NodeRef::Switch(switch) => switch
            .overruns()
            .map(|(port, class, frames)| (frames, format!(" port {port}, priority {class}"), port..port + 1))
            .max_by_key(|of| of.0),
        NodeRef::Server(server) => {
            let frames = server.host().drops().frames(DropReason::HeadroomExceeded);
            // One buffer holds the headroom of all links.
            (frames > 0).then(|| (frames, String::new(), 0..plan.ports(n) as PortId))
        }
        NodeRef::Bump(_) | NodeRef::Idle => None,
    };
    let worst = (0..engine.nodes() as NodeId).filter_map(|n| Some((n, at(n)?))).max_by_key(|(_, of)| of.0);
    let (n, (frames, port_name, ports)) = worst?;
    let (given, needed) = build::headroom_at(s, plan, n, ports);
    let pool = s.buffer.headroom_pool.filter(|_| engine.node(n).as_switch().is_some());
    let shared = pool.map_or(String::new(), |pool| {
        format!("; all inputs share {} B of headroom (buffer.headroom_pool)", pool.as_bytes())
    });
    Some(format!(
        "{frames} at {}{port_name}, which has {given} B of headroom and can need {needed} B{shared}",
        plan.name(n)
    ))
}

/// Warnings of programs in bumps that did what a simulated packet cannot have.
fn ignored(s: &Scenario, engine: &Engine<HostApps>) -> Vec<Warning> {
    let bumps = (0..engine.nodes() as NodeId).filter_map(|n| engine.node(n).as_bump());
    let warning = |(i, count): (usize, u64)| {
        let message = format!(
            "the program changed {count} frames, or sent frames of its own, in a way that simulated packets do not have:              they have an ECN field and no payload, and only congestion notifications and copies can be sent"
        );
        s.locations.warning(&format!("bump.{i}.app.0.file"), message)
    };
    bumps.map(|bump| bump.ignored()).enumerate().filter(|&(_, count)| count > 0).map(warning).collect()
}

/// Warnings of flows that did not end because all ports were in use.
fn out_of_ports(s: &Scenario, reused: &BTreeMap<u8, u64>) -> Vec<Warning> {
    // Messages of a file may share a connection.
    let shares = |number: u8| match s.workloads.get(usize::from(number)) {
        Some(Workload::FlowFile(w)) => w.has_messages(),
        _ => false,
    };
    let warning = |(&number, count): (&u8, &u64)| {
        let flows = if *count == 1 { "flow" } else { "flows" };
        let message = format!(
            "{count} {flows} did not end, opened with the ports of an earlier flow that was still open: a host has {PORTS} \
             ports for the flows of a workload"
        );
        s.locations.warning(&format!("workload.{number}"), message)
    };
    reused.iter().filter(|(number, _)| !shares(**number)).map(warning).collect()
}

/// The frames that a run lost.
struct Losses {
    switches: Drops,
    servers: Drops,
    /// Frames lost although the network promised to deliver them.
    violations: u64,
    /// Frames lost against the promise for want of a credit.
    uncredited: u64,
}

impl Losses {
    fn of(s: &Scenario, engine: &Engine<HostApps>) -> Losses {
        let (switches, servers) = collect::drops(engine);
        // Over a lossless class or zBridge every frame arrives, so a frame that finds no credit there breaks the promise.
        let is_reliable = s.pfc.enabled || s.zbridge.enabled;
        let uncredited = if is_reliable { servers.frames(DropReason::NoCredit) } else { 0 };
        let overran = switches.frames(DropReason::HeadroomExceeded) + servers.frames(DropReason::HeadroomExceeded);
        Losses { switches, servers, violations: uncredited + overran, uncredited }
    }
}
