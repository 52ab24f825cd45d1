//! A run of a scenario on a testbed, and its simulation.

use super::blocks::Blocks;
use super::finite;
use super::migration::Migration;
use super::network::{Network, endpoints};
use super::plan::{Finite, Plan, Rounds, Traffic};
use super::rounds::{self, Time};
use crate::flows::ends::IP_UDP;
use crate::flows::{self, Driven, real};
use crate::live::Progress;
use crate::measure::{FabricFigures, simulate};
use crate::pa::PaError;
use serde::Serialize;
use sluicenet_experiment::run::{Figures, Streams, mbps};
use sluicenet_records::stats::Summary;
use sluicenet_scenario::Transport;
use sluicenet_vswitchd::xco::status::XcoStatus;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Settings of a measurement that are not those of the scenario.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Bytes of the messages of UDP flows without an end; default a full frame's.
    pub message: Option<u16>,
    /// Whether the scenario is also simulated.
    pub simulate: bool,
    /// Whether rounds are reads of striped blocks, by fio and nbdkit.
    pub blocks: bool,
    /// Whether TCP flows with an end are migrations of guests. The run ends with the last one.
    pub migrate: bool,
}

impl Settings {
    /// Refuses traffic that lacks the workloads of these settings.
    ///
    /// # Errors
    /// The option, and the workloads that it needs.
    pub fn fit(&self, traffic: &Traffic) -> Result<(), String> {
        if self.blocks && traffic.rounds.len() != 1 {
            let count = traffic.rounds.len();
            return Err(format!("--blocks needs exactly one workload `incast`, and there are {count}"));
        }
        if self.migrate && !traffic.finite.iter().any(is_moved) {
            return Err("--migrate needs a TCP flow with `bytes`, and there is none".into());
        }
        Ok(())
    }
}

/// Whether a flow with an end can be a migration.
fn is_moved(finite: &Finite) -> bool {
    finite.flow.transport == Transport::Tcp
}

/// Completion times, in milliseconds; all zero without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// How many.
    pub count: usize,
    /// How many had begun and not ended.
    pub unfinished: usize,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

impl Times {
    fn of(times: impl Iterator<Item = Duration>, unfinished: usize) -> Times {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        let Summary { count, mean, p50, p99, max, .. } = Summary::of(&mut ms);
        Times { count, unfinished, mean_ms: mean, p50_ms: p50, p99_ms: p99, max_ms: max }
    }
}

/// The rounds of all workloads of this kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RoundFigures {
    /// From the request to the last byte.
    pub whole: Times,
    /// From the first byte of any sender to the last byte: the simulator's rounds have no requests.
    pub transfer: Times,
    /// Payload of all finished rounds, in Mb/s of the measured time.
    pub mbps: f64,
}

/// What the programs of XCo did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Programs {
    /// Agents.
    pub agents: usize,
    /// Events of the controller.
    pub controller: BTreeMap<String, u64>,
    /// Events of the agents together.
    pub coordinators: BTreeMap<String, u64>,
    /// Messages that the controller received and sent.
    pub messages: BTreeMap<String, u64>,
}

impl Programs {
    fn of((controller, agents): (XcoStatus, Vec<XcoStatus>)) -> Programs {
        let mut coordinators: BTreeMap<String, u64> = BTreeMap::new();
        for (name, n) in agents.iter().flat_map(|agent| &agent.events) {
            *coordinators.entry(name.clone()).or_default() += n;
        }
        Programs { agents: agents.len(), controller: controller.events, coordinators, messages: controller.messages }
    }

    /// An event of the controller.
    pub fn controller(&self, event: &str) -> u64 {
        self.controller.get(event).copied().unwrap_or(0)
    }

    /// An event of the agents together.
    pub fn coordinators(&self, event: &str) -> u64 {
        self.coordinators.get(event).copied().unwrap_or(0)
    }
}

/// Lost frames, of those that hosts gave to the fabric.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lost {
    /// Frames that the fabric received.
    pub sent: u64,
    /// Frames that it dropped, by reason.
    pub by_reason: BTreeMap<String, u64>,
    /// These in percent of those sent.
    pub percent: f64,
    /// Frames and datagrams that the hosts' kernels dropped, by place.
    pub at_hosts: BTreeMap<String, u64>,
}

/// The simulation of the same scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Simulated {
    /// Flows without an end.
    pub streams: Streams,
    /// Lost frames in percent of those sent.
    pub lost_percent: f64,
    /// Lost frames, by reason.
    pub lost_by_reason: BTreeMap<String, u64>,
    /// Rounds: their times, and their payload.
    pub rounds: Option<RoundFigures>,
    /// Flows with an end.
    pub finite: Option<Times>,
    /// Timeslices, directives and reports.
    pub xco: Option<[u64; 3]>,
}

/// The results of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The variant's name: the settings of the sweep.
    pub variant: String,
    /// Without XCo, or the kind of directives.
    pub coordination: String,
    /// Flows without an end; none if the run ended within the warm-up, as with migrations that do.
    pub streams: Option<Streams>,
    /// Messages of UDP flows without an end that were sent and received in the whole run.
    pub datagrams: [u64; 2],
    /// Length of the measurement in seconds: from the end of the warm-up until the run ended or was stopped.
    pub measured_s: f64,
    /// Rounds, if there are any that were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<RoundFigures>,
    /// Flows with an end, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finite: Option<Times>,
    /// Bytes of the memory of guests that moved, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrated_bytes: Option<u64>,
    /// Lost frames.
    pub lost: Lost,
    /// The programs of XCo, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xco: Option<Programs>,
    /// The fabric's figures.
    pub fabric: FabricFigures,
    /// Whether so many events were late that the figures show the machine and not the network.
    pub limited_by_machine: bool,
    /// The simulation's results, if requested and not stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

impl Cell {
    /// The name that tells this cell from others.
    pub fn name(&self) -> &str {
        if self.variant.is_empty() { &self.coordination } else { &self.variant }
    }
}

/// Runs one variant on a testbed of its own, which is removed at the end. A run that is stopped has the figures until then.
///
/// # Errors
/// Traffic that does not fit the settings; a request that the system refused; [`ErrorKind::Interrupted`] if it was stopped before anything was measured.
pub fn measure(plan: &Plan, run: u32, label: &str, settings: Settings, progress: Progress<'_>) -> io::Result<Cell> {
    settings.fit(&plan.traffic).map_err(|why| io::Error::new(ErrorKind::InvalidInput, why))?;
    let mut network = Network::up(plan, run, progress)?;
    let ran = traffic(plan, &network, settings, progress);
    let programs = network.statuses();
    let at_hosts = network.lost_at_hosts();
    let report = network.end_fabric();
    drop(network);
    let Ran { outcome, rounds, finite, migrated_bytes } = ran?;
    let (programs, report, mut at_hosts) = (programs?.map(Programs::of), report?, at_hosts?);
    if let Some(programs) = &programs {
        at_hosts.push(("agents' queues", programs.coordinators("dropped_frames")));
    }
    let is_measured = !outcome.measured.is_zero();
    if progress.stop.load(Ordering::Relaxed) && !is_measured && finite.iter().all(Option::is_none) {
        return Err(ErrorKind::Interrupted.into());
    }
    let fabric = FabricFigures::of(&report);
    let dropped: u64 = fabric.dropped.values().sum();
    let simulated = if settings.simulate { simulate(&plan.scenario, progress.stop)? } else { None };
    Ok(Cell {
        variant: label.to_owned(),
        coordination: plan.scenario.xco.as_ref().map_or("without XCo", |xco| xco.kind.name()).to_owned(),
        streams: is_measured.then_some(outcome.streams),
        datagrams: outcome.datagrams,
        measured_s: outcome.measured.as_secs_f64(),
        rounds: rounds.filter(|_| is_measured),
        finite: (!plan.traffic.finite.is_empty()).then(|| {
            let unfinished = finite.iter().filter(|took| took.is_none()).count();
            Times::of(finite.into_iter().flatten(), unfinished)
        }),
        migrated_bytes,
        lost: Lost {
            sent: fabric.received,
            by_reason: fabric.dropped.clone(),
            percent: percent(dropped, fabric.received),
            at_hosts: at_hosts.into_iter().filter(|(_, n)| *n > 0).map(|(place, n)| (place.to_owned(), n)).collect(),
        },
        xco: programs,
        limited_by_machine: fabric.is_late(),
        fabric,
        simulated: simulated.map(|(figures, sent)| Simulated::of(plan, figures, sent)),
    })
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// What the traffic measured.
struct Ran {
    outcome: flows::Outcome,
    /// Rounds, if there are any.
    rounds: Option<RoundFigures>,
    /// The time of each flow with an end that has begun, once it has ended.
    finite: Vec<Option<Duration>>,
    migrated_bytes: Option<u64>,
}

/// Has the hosts send for the duration of the scenario.
fn traffic(plan: &Plan, network: &Network, settings: Settings, progress: Progress<'_>) -> io::Result<Ran> {
    let (scenario, endpoints, stop) = (&plan.scenario, endpoints(plan), progress.stop);
    let Traffic { rounds, finite, .. } = &plan.traffic;
    let failed = |what: &'static str| move |e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
    let blocks = rounds.first().filter(|_| settings.blocks).map(|of| Blocks::start(plan, network, of, stop));
    let blocks = blocks.transpose().map_err(failed("the servers of blocks"))?;
    let by_us = if settings.blocks { &[] } else { &rounds[..] };
    let running: Vec<_> = by_us.iter().map(|of| rounds::Running::new(of, real(scenario.warmup))).collect();
    let (by_qemu, by_us): (Vec<_>, Vec<_>) = finite.iter().partition(|of| settings.migrate && is_moved(of));
    let finite: Vec<_> = by_us.into_iter().map(|f| (f.clone(), finite::Running::default())).collect();
    let guests = by_qemu.into_iter().zip(0..).map(|of| Migration::start(plan, network, of, stop));
    let guests = guests.collect::<io::Result<Vec<_>>>().map_err(failed("a guest"))?;
    // Another thread makes the sockets: it changes its namespace, and the caller's must stay.
    let opened = std::thread::scope(|threads| {
        let opened = threads.spawn(|| {
            let mut work = rounds::open(scenario, &running, &endpoints)?;
            work.extend(finite::open(scenario, &finite, &endpoints, plan.mtu)?);
            Ok::<_, PaError>(work)
        });
        opened.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let mut beside = opened.map_err(io::Error::other)?;
    beside.extend(blocks.iter().map(|blocks| blocks.work(plan, stop)));
    let (enough, moving) = (AtomicBool::new(false), AtomicUsize::new(guests.len()));
    for guest in &guests {
        let (work, enough, moving) = (guest.work(), &enough, &moving);
        beside.push(Box::new(move |over| {
            work(over)?;
            if moving.fetch_sub(1, Ordering::Relaxed) == 1 {
                enough.store(true, Ordering::Relaxed);
            }
            Ok(())
        }));
    }
    let driven = Driven {
        scenario,
        flows: &plan.traffic.endless,
        endpoints: &endpoints,
        mtu: settings.message.map_or(plan.mtu, |bytes| u32::from(bytes) + IP_UDP),
        stop,
        enough: &enough,
    };
    let outcome = flows::drive(&driven, beside, &mut || Ok(())).map_err(io::Error::other)?;
    let by_us = finite.iter().filter(|(_, running)| running.has_begun()).map(|(_, running)| running.took());
    let by_qemu = guests.iter().filter(|guest| guest.has_begun()).map(Migration::took);
    Ok(Ran {
        rounds: match &blocks {
            Some(blocks) => blocks.figures(),
            None => RoundFigures::of(rounds, &running, outcome.measured.as_secs_f64()),
        },
        finite: by_us.chain(by_qemu).collect(),
        migrated_bytes: (!guests.is_empty()).then(|| guests.iter().map(Migration::bytes).sum()),
        outcome,
    })
}

impl RoundFigures {
    fn of(workloads: &[Rounds], running: &[rounds::Running], seconds: f64) -> Option<RoundFigures> {
        if workloads.is_empty() {
            return None;
        }
        let all: Vec<(Vec<Time>, bool)> = running.iter().map(rounds::Running::times).collect();
        let counted = || all.iter().flat_map(|(times, _)| times).filter(|time| time.counts);
        let unfinished = all.iter().filter(|(_, open)| *open).count();
        let bytes = |(of, (times, _)): (&Rounds, &(Vec<Time>, bool))| {
            of.bytes * of.senders.len() as u64 * times.iter().filter(|time| time.counts).count() as u64
        };
        Some(RoundFigures {
            whole: Times::of(counted().map(|time| time.whole), unfinished),
            transfer: Times::of(counted().map(|time| time.transfer), unfinished),
            mbps: mbps(workloads.iter().zip(&all).map(bytes).sum(), seconds),
        })
    }
}

impl Simulated {
    fn of(plan: &Plan, figures: Figures, sent: u64) -> Simulated {
        let times = |c: &sluicenet_experiment::run::Completion| Times {
            count: c.finished as usize,
            unfinished: c.unfinished as usize,
            mean_ms: c.mean_us / 1e3,
            p50_ms: c.p50_us / 1e3,
            p99_ms: c.p99_us / 1e3,
            max_ms: c.max_us / 1e3,
        };
        let rounds = figures.queries.as_ref().filter(|_| !plan.traffic.rounds.is_empty()).map(|queries| {
            let times = times(queries);
            RoundFigures { whole: times, transfer: times, mbps: round_mbps(plan, &figures) }
        });
        Simulated {
            lost_percent: percent(figures.drops, sent),
            finite: figures.flows.as_ref().filter(|_| !plan.traffic.finite.is_empty()).map(times),
            rounds,
            xco: figures.xco.map(|xco| [xco.slices, xco.directives, xco.reports]),
            lost_by_reason: figures.drops_by_reason,
            streams: figures.streams,
        }
    }
}

/// The payload of finished rounds. All rounds of a scenario are of one size, or their rate is that of the first.
fn round_mbps(plan: &Plan, figures: &Figures) -> f64 {
    let Some((of, queries)) = plan.traffic.rounds.first().zip(figures.queries.as_ref()) else { return 0.0 };
    let seconds = figures.simulated_us / 1e6 - real(plan.scenario.warmup).as_secs_f64();
    mbps(of.bytes * of.senders.len() as u64 * queries.finished, seconds.max(1e-9))
}
