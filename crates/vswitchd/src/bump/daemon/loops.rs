//! The loops of a bump, each with its own thread.

use super::maps_of;
use crate::bump::config::{Config, ProgramConfig, UpdatesConfig, WhenFaulty};
use crate::bump::map::Downstream;
use crate::bump::program::{self, InProcess};
use rustix::thread::{CpuSet, sched_setaffinity};
use sluicenet_dataplane::bump::program::{Mode, Safe};
use sluicenet_dataplane::bump::{Loop, QueueReport, Report, Settings, Updates, loops, loops_with};
use sluicenet_extension::Library;
use sluicenet_proto::netbump::{self, QueueId};
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tracing::warn;

/// How long an ending bump goes on delivering the frames that ports have taken.
const DRAIN_AT_MOST: Duration = Duration::from_secs(2);

/// The loops of a bump, without ports.
pub(super) fn new_loops(
    config: &Config,
    queues: &[(QueueId, Downstream)],
    capacity: usize,
) -> io::Result<Vec<Box<dyn Loop>>> {
    // Spare queues drain at any rate until a reload gives them one.
    let spare = netbump::Port { rate: Rate::gbps(1), buffer_bytes: None };
    let mut ports = vec![spare; capacity + 2 * config.links.len()];
    queues.iter().for_each(|(id, downstream)| ports[usize::from(*id)] = downstream.port);
    let (started, mut settings) = (Instant::now(), Vec::new());
    for (link, [a, b]) in config.links.iter().enumerate() {
        for _ in 0..config.pipelines {
            settings.push(Settings {
                links: vec![[a.name.clone(), b.name.clone()]],
                maps: maps_of(config, &[], link, capacity),
                mac: config.mac,
                notification_priority: config.notification_priority,
                updates: config.updates.as_ref().map(|u| updates_of(u, config, link, settings.len())),
                started,
            });
        }
    }
    let Some(program) = &config.program else { return Ok(loops(config.applications.clone(), &ports, settings)) };
    let modes = modes(program, &ports, queues, settings.len());
    let modes = modes.map_err(|e| io::Error::other(format!("program {}: {e}", program.file)))?;
    Ok(loops_with(modes, &ports, settings))
}

/// How each loop runs the program.
fn modes(
    program: &ProgramConfig,
    ports: &[netbump::Port],
    queues: &[(QueueId, Downstream)],
    loops: usize,
) -> io::Result<Vec<Mode>> {
    let arguments = program.arguments();
    if program.in_process {
        let name = format!("the program `{}`", program.file);
        let library =
            Library::load_named(&name, &program.content, &arguments, program.seed).map_err(io::Error::other)?;
        let library = Arc::new(library);
        return Ok((0..loops).map(|_| Mode::Fast(Box::new(InProcess::new(library.clone())))).collect());
    }
    let starter = program::starter(&program.content, &["bump", "program"], &arguments, program.seed);
    let safe = Safe {
        chooses: starter.try_out()?,
        starter,
        deadline: program.deadline,
        block: program.when_faulty == WhenFaulty::Block,
        ports: ports.to_vec(),
        in_use: queues.iter().map(|(id, _)| *id).collect(),
    };
    Ok((0..loops).map(|_| Mode::Safe(safe.clone())).collect())
}

/// The outcome of a loop, its last state and that of the virtual queues.
pub(super) type LoopThread = JoinHandle<(io::Result<()>, Report, Vec<QueueReport>)>;

/// Runs a loop on its own thread, on this core, until `stop`, and delivers what its ports have taken.
pub(super) fn run_loop(
    n: usize,
    mut one: Box<dyn Loop>,
    core: Option<usize>,
    patience: Option<Duration>,
    stop: Arc<AtomicBool>,
) -> io::Result<LoopThread> {
    std::thread::Builder::new().name(format!("bump-{n}")).spawn(move || {
        if let Some(core) = core {
            let mut set = CpuSet::new();
            if core < CpuSet::MAX_CPU {
                set.set(core);
            }
            if let Err(e) = sched_setaffinity(None, &set) {
                warn!(core, error = %e, "the loop is not pinned");
            }
        }
        let outcome = one.run(&stop, patience);
        if outcome.is_ok() {
            one.drain(DRAIN_AT_MOST);
        }
        let queues = one.report_queues();
        (outcome, one.report(), queues)
    })
}

/// The exchange of updates of a loop.
fn updates_of(updates: &UpdatesConfig, config: &Config, link: usize, own: usize) -> Updates {
    let numbers = config.map.ports.iter().filter_map(|port| port.number).collect();
    // In units of 67 ms: a bump that is started again has a later one, and it takes nine years until they begin anew.
    let incarnation = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() >> 26) as u32;
    // A neighbour is told by the loops of the link that leads to it; the others only listen.
    let neighbours = updates.neighbours.iter().map(|n| {
        let mut neighbour = n.neighbour(n.via.1);
        neighbour.tell &= n.via.0 == link;
        neighbour
    });
    let key = Key::new(&updates.key);
    let batch = (updates.packets as usize, updates.interval);
    Updates::new(key, (updates.bump, own as u32, incarnation), numbers, neighbours.collect(), batch)
}
