//! A bump as a process: each of its loops has its own thread, and other threads handle requests.

use super::config::{Config, Others, ProgramConfig, UpdatesConfig, WhenDead, WhenFaulty};
use super::map::Downstream;
use super::program::{self, InProcess};
use super::status::{BumpStatus, LaneStatus, NeighbourStatus, QueueStatus, UpdateStatus};
use crate::config::{PortConfig, PortKind, keep_control};
use crate::control::{Answer, Request, Socket};
use crate::metrics;
use crate::opened::{Opened, PACKET_BUFFERS, Ready, may_open, open_all};
use crate::privileges::{self, Becomes, Rights};
use crate::served::{Attached, Life, Served, listen_to_signals, serve_metrics};
use crate::status::{Ledger, PortStatus, Status, by_name};
use rustix::thread::{CpuSet, sched_setaffinity};
use sluicenet_dataplane::bump::program::{Mode, Safe};
use sluicenet_dataplane::bump::{EndReport, Loop, QueueReport, Report, Settings, Updates, loops, loops_with};
use sluicenet_dataplane::clock::monotonic_ns;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::{PacketDevice, PacketPort};
use sluicenet_dataplane::kernel::wire::Wire;
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::tap::{Capture, tap};
use sluicenet_extension::Library;
use sluicenet_node::vale::ValeConfig;
use sluicenet_proto::loss::Drops;
use sluicenet_proto::netbump::{self, Map, QueueId};
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::time::{Duration as Time, Instant as TimeInstant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::lldp;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// How long an ending bump goes on delivering the frames that ports have taken.
const DRAIN_AT_MOST: Time = Time::from_secs(2);

/// The state that requests change.
#[derive(Debug)]
struct State {
    config: Config,
    /// The virtual queues in use: their downstream ports.
    queues: Vec<(QueueId, Downstream)>,
    /// The speeds that neighbours say their ports have, by end.
    learned: Vec<Option<Rate>>,
    /// Ports in shared memory with a program, and why ports are absent.
    attached: Vec<String>,
    absent: Vec<(String, String)>,
}

/// A running bump.
#[derive(Debug)]
pub struct Daemon {
    remotes: Vec<Remote<dyn Loop>>,
    state: Mutex<State>,
    /// The first virtual queues of unlisted destinations, and all virtual queues.
    capacity: usize,
    life: Life,
}

/// A port that is ready for a loop, and where it belongs: loop and end.
type Placed = (usize, usize, Opened);

/// The end of a loop at which a port of a link is: a loop has one link.
fn place(pipelines: usize, link: usize, part: usize) -> usize {
    link * pipelines + part
}

/// Opens all ports; returns them, the capabilities to keep, and what must stay open.
fn open(config: &Config) -> io::Result<(Vec<Placed>, rustix::thread::CapabilitySet, Vec<Wire>)> {
    // A program runs as another user, who cannot reach this process.
    let mut keep = match &config.program {
        Some(program) if !program.in_process => program::RIGHTS,
        _ => Rights::NONE.run,
    };
    let (mut ready, mut wires) = (Vec::new(), Vec::new());
    let flat: Vec<PortConfig> = config.links.iter().flatten().cloned().collect();
    for port in &flat {
        if let Some(missing) = may_open(&port.kind, None) {
            return Err(io::Error::other(format!("port {}: {missing}", port.name)));
        }
        keep |= port.kind.rights().run;
    }
    let whole: Vec<PortConfig> = flat.iter().filter(|p| config.pipelines == 1 || !is_device(p)).cloned().collect();
    let opened = open_all(&whole, &ValeConfig::default(), None).map_err(io::Error::other)?;
    for (port, attempt) in whole.iter().zip(opened) {
        let opened = attempt.split().0.map_err(|e| io::Error::other(format!("port {}: {e}", port.name)))?;
        let at = flat.iter().position(|other| other.name == port.name).unwrap_or_default();
        ready.push((place(config.pipelines, at / 2, 0), at % 2, opened));
    }
    if config.pipelines > 1 {
        for (at, port) in flat.iter().enumerate() {
            let PortKind::Packet { device, netns } = &port.kind else { continue };
            let namespace = Namespace::named(netns.as_deref())?;
            // The same number for all parts, and another one for each device and process.
            let group = (std::process::id() as u16).wrapping_mul(64).wrapping_add(at as u16);
            for part in 0..config.pipelines {
                let opened = PacketDevice::open_part(&namespace, device, PACKET_BUFFERS, group)?;
                let opened = Opened::Port(Box::new(PacketPort::new(opened)), Vec::new());
                ready.push((place(config.pipelines, at / 2, part), at % 2, opened));
            }
        }
    }
    for (link, [a, b]) in config.links.iter().enumerate() {
        let (PortKind::Packet { device: a, netns }, PortKind::Packet { device: b, .. }) = (&a.kind, &b.kind) else {
            continue;
        };
        let namespace = Namespace::named(netns.as_deref())?;
        match config.when_dead {
            WhenDead::Wire => {
                let mut discard_at = |end: usize| {
                    let parts = ready.iter_mut().filter(|(at, e, _)| at / config.pipelines == link && *e == end);
                    for (.., opened) in parts {
                        if let Opened::Port(port, _) = opened {
                            discard(&mut **port);
                        }
                    }
                };
                wires.push(Wire::lay(&namespace, [a, b], &mut discard_at)?);
            }
            WhenDead::Block => {
                for device in [a, b] {
                    Wire::remove(&namespace, device)?;
                }
            }
        }
    }
    Ok((ready, keep, wires))
}

fn is_device(port: &PortConfig) -> bool {
    matches!(port.kind, PortKind::Packet { .. })
}

/// Discards the frames that a port has received so far.
fn discard(port: &mut dyn Port) {
    loop {
        let mut any = false;
        if port.on_round(TimeInstant::ZERO).is_err() {
            return;
        }
        while let Ok(Some(frame)) = port.next_frame() {
            port.accept();
            port.give_back(frame.buffer);
            any = true;
        }
        if !any {
            return;
        }
    }
}

/// The virtual queues of a file: those of the map, and one for each end of a link where unlisted destinations have one.
fn queues_of(config: &Config, learned: &[Option<Rate>], capacity: usize) -> Vec<(QueueId, Downstream)> {
    let mut queues: Vec<(QueueId, Downstream)> = (0..).zip(config.map.ports.iter().cloned()).collect();
    for (at, leads_to) in config.links.iter().flatten().enumerate() {
        let Some(rate) = others_at(config, learned, at) else { continue };
        let port = netbump::Port { rate, buffer_bytes: config.buffer };
        let name = format!("others at {}", leads_to.name);
        queues.push(((capacity + at) as QueueId, Downstream { number: None, name, port }));
    }
    queues
}

/// The speed of the ports to unlisted stations behind an end of a link.
fn others_at(config: &Config, learned: &[Option<Rate>], at: usize) -> Option<Rate> {
    match config.others? {
        Others::Rate(rate) => Some(rate),
        Others::Lldp => learned.get(at).copied().flatten(),
    }
}

/// What the neighbour at an end says about itself, as long as that is true.
fn neighbour_at(report: &EndReport) -> Option<NeighbourStatus> {
    let (bytes, age) = &report.lldp;
    let repr = lldp::Repr::parse(bytes).ok()?;
    if *age > Time::from_secs(repr.time_to_live_s.into()) {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(255)]).escape_debug().to_string();
    let shown = |id: lldp::Id<'_>| match id {
        lldp::Id::Mac(mac) => mac.to_string(),
        lldp::Id::Text(name) => text(name),
    };
    let system = if repr.system_name.is_empty() { shown(repr.chassis) } else { text(repr.system_name) };
    Some(NeighbourStatus { system, port: shown(repr.port), mbps: repr.mbps })
}

/// The maps of the two ends of a link: each that of frames which leave by the other end.
fn maps_of(config: &Config, learned: &[Option<Rate>], link: usize, capacity: usize) -> Vec<Map> {
    let others = |end: usize| {
        let at = 2 * link + end;
        others_at(config, learned, at).map(|_| (capacity + at) as QueueId)
    };
    vec![config.map.map(others(1)), config.map.map(others(0))]
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

impl Daemon {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a bump until the control socket or a signal stops it.
    ///
    /// # Errors
    /// A port or the control socket cannot be opened, or a system call of a loop fails.
    pub fn run(config: Config) -> io::Result<Status> {
        let socket = Socket::bind(&config.control)?;
        let metrics = config.metrics.map(metrics::Server::bind).transpose()?;
        let becomes = config.user.as_deref().map(Becomes::user).transpose()?.flatten();
        let (ready, keep, _wires) = open(&config)?;
        // Before the first thread starts: each thread has its own privileges.
        let left = privileges::drop_all_but(keep, becomes.as_ref())?;
        let capacity = config.map.capacity();
        let queues = queues_of(&config, &[], capacity);
        let mut loops = new_loops(&config, &queues, capacity)?;
        let events: Vec<_> = loops.iter_mut().map(|one| one.events()).collect();
        let mut remotes = Vec::new();
        for one in &mut loops {
            remotes.push(one.remote()?);
        }
        for (at, end, opened) in ready {
            let port: Box<dyn Port> = match opened.ready().map_err(|e| io::Error::other(e.reason))? {
                Ready::Port(port, _) => port,
                Ready::Guest(port) => port,
                Ready::Attached => continue,
            };
            loops[at].plug(end, port).map_err(io::Error::from)?;
        }
        info!(
            name = config.name,
            pid = std::process::id(),
            control = %config.control.display(),
            links = config.links.len(),
            loops = loops.len(),
            metrics = metrics.as_ref().map(|m| m.address().to_string()),
            uid = left.uid,
            gid = left.gid,
            capabilities = left.capabilities,
            "bump started"
        );
        let (patience, cores) = (config.sleep_after, config.cores.clone());
        let learned = vec![None; 2 * config.links.len()];
        let state = State { config, queues, learned, attached: Vec::new(), absent: Vec::new() };
        let daemon =
            Arc::new(Daemon { remotes, state: Mutex::new(state), capacity, life: Life::new(socket.listener()?) });
        let (signals, signal_thread) = listen_to_signals(&daemon)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (n, one) in loops.into_iter().enumerate() {
            threads.push(run_loop(n, one, cores.get(n).copied(), patience, Arc::clone(&stop))?);
        }
        let mut watchers = Vec::new();
        for events in events {
            let watched = Arc::clone(&daemon);
            watchers.push(std::thread::spawn(move || watched.life.log.watch(&*watched, &events)));
        }
        serve_metrics(&daemon, metrics)?;
        let outcome = socket.serve(&daemon);
        stop.store(true, Ordering::Relaxed);
        // An empty job wakes a sleeping loop, which then sees `stop`.
        daemon.remotes.iter().for_each(|remote| _ = remote.post(|_| {}));
        let (mut reports, mut queues, mut ran) = (Vec::new(), Vec::new(), Ok(()));
        for thread in threads {
            let (outcome, report, table) = thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            reports.push(report);
            queues = table;
            ran = ran.and(outcome);
        }
        signals.close();
        let _ = signal_thread.join();
        watchers.into_iter().for_each(|watcher| _ = watcher.join());
        outcome?;
        ran?;
        let status = daemon.status_of(&reports, &queues, monotonic_ns());
        let l = status.ledger;
        info!(accepted = l.accepted, delivered = l.delivered, dropped = l.dropped, "bump stopped");
        Ok(status)
    }

    /// Runs a job in every loop.
    fn each<R: Send + 'static>(
        &self,
        job: impl Fn(usize, &mut dyn Loop) -> R + Clone + Send + 'static,
    ) -> io::Result<Vec<R>> {
        let one = |(n, remote): (usize, &Remote<dyn Loop>)| {
            let job = job.clone();
            remote.run(move |one| job(n, one))
        };
        self.remotes.iter().enumerate().map(one).collect()
    }

    fn status_of(&self, reports: &[Report], queues: &[QueueReport], read_at_ns: u64) -> Status {
        let state = self.state();
        let config = &state.config;
        let mut status = Status {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.life.uptime_s(),
            sleeps: reports.iter().map(|report| report.sleeps).sum(),
            // A bump has no queues that could be full.
            slots: u32::MAX,
            ..Status::default()
        };
        let (mut consumed, mut own, mut own_lost, mut unmapped) = (0, 0, 0, 0);
        let mut neighbours = std::collections::BTreeMap::new();
        for (at, port) in config.links.iter().flatten().enumerate() {
            let (link, end) = (at / 2, at % 2);
            let parts = (0..config.pipelines).map(|part| place(config.pipelines, link, part));
            let of = |end: usize| parts.clone().filter_map(move |n| reports.get(n)?.ends.get(end));
            let mut shown = PortStatus { name: port.name.clone(), kind: port.kind.name().into(), ..Default::default() };
            let (mut refused, mut dropped) = (Drops::default(), Drops::default());
            for report in of(end) {
                let EndReport { present, counts, refused: r, lost, inside, own: counters, .. } = report;
                shown.number = shown.number.or(present.then_some(at));
                shown.accepted += counts.taken;
                shown.delivered += counts.delivered;
                shown.bytes_from += counts.bytes_taken;
                shown.bytes_to += counts.bytes_delivered;
                shown.held_back += counts.held_back;
                shown.inside += inside;
                refused.add(r);
                dropped.add(lost);
                for (name, n) in counters {
                    *shown.counters.entry((*name).to_owned()).or_default() += n;
                }
                if let Some(neighbour) = neighbour_at(report) {
                    neighbours.insert(port.name.clone(), neighbour);
                }
                consumed += counts.consumed;
                own += counts.own;
                own_lost += counts.own_lost;
                unmapped += counts.unmapped;
            }
            let other = &config.links[link][end ^ 1].name;
            if of(end).any(|report| report.blocked) {
                shown.waits_for.push(other.clone());
            }
            // Frames from the other end that were for this one.
            of(end ^ 1).for_each(|report| dropped.add(&report.counts.dropped));
            (shown.refused, shown.dropped) = (by_name(&refused), by_name(&dropped));
            if let Some((_, why)) = state.absent.iter().find(|(name, _)| *name == port.name) {
                let (reason, again) = (why.clone(), crate::status::Again::NextStart);
                shown.absent = Some(crate::status::Absent { reason, again }).filter(|_| shown.number.is_none());
            }
            status.ports.push(shown);
        }
        for [all, delivered, consumed, dropped] in reports.iter().map(Report::ledger) {
            status.ledger.accepted += all - consumed;
            status.ledger.delivered += delivered;
            status.ledger.dropped += dropped;
        }
        let Ledger { accepted, delivered, dropped, .. } = status.ledger;
        status.ledger.queued = accepted.saturating_sub(delivered + dropped);
        let shown = |(id, downstream): &(QueueId, Downstream)| {
            let q = queues.get(usize::from(*id))?;
            let mut gauges = std::collections::BTreeMap::new();
            q.gauges.iter().for_each(|(name, value)| *gauges.entry((*name).to_owned()).or_default() += value);
            Some(QueueStatus {
                port: downstream.name.clone(),
                rate_bps: q.rate.as_bps(),
                bytes: q.bytes,
                limit_bytes: q.limit_bytes,
                overflow_bytes: q.overflow_bytes,
                packets: q.counts.packets,
                marked: q.counts.marked,
                dropped: q.counts.dropped,
                consumed: q.counts.consumed,
                notices: q.counts.notices,
                reported: q.counts.reported,
                gauges,
            })
        };
        let names = |[a, b]: &[PortConfig; 2]| [a.name.clone(), b.name.clone()];
        status.bump = Some(Box::new(BumpStatus {
            links: config.links.iter().map(names).collect(),
            mac: config.mac.map(|b| format!("{b:02x}")).join(":"),
            loops: reports.len(),
            sleeps: config.sleep_after.is_some(),
            when_dead: config.when_dead.name().into(),
            neighbours,
            consumed,
            own,
            own_lost,
            unmapped,
            read_at_ns,
            queues: state.queues.iter().filter_map(shown).collect(),
            program: config.program.as_ref().map(|program| program.file.clone()),
            lanes: lanes_status(&state, reports),
            updates: updates_status(reports),
        }));
        status
    }

    /// Gives the loops the map of a file and of what was learned; returns how many virtual queues begin anew.
    fn apply(&self, new: Config) -> io::Result<usize> {
        let (before, learned) = {
            let state = self.state();
            (state.queues.clone(), state.learned.clone())
        };
        let queues = queues_of(&new, &learned, self.capacity);
        let anew: Vec<(QueueId, netbump::Port)> =
            queues.iter().filter(|queue| !before.contains(queue)).map(|(id, d)| (*id, d.port)).collect();
        let (changed, config, capacity) = (anew.len(), new.clone(), self.capacity);
        self.each(move |n, one| {
            // The table is one for all loops.
            let anew = if n == 0 { &anew[..] } else { &[] };
            one.set_maps(&maps_of(&config, &learned, n / config.pipelines, capacity), anew);
        })?;
        let mut state = self.state();
        (state.config, state.queues) = (new, queues);
        Ok(changed)
    }

    /// Learns the speeds that neighbours say their ports have.
    fn learn(&self) -> io::Result<()> {
        let config = self.state().config.clone();
        if config.others != Some(Others::Lldp) {
            return Ok(());
        }
        let reports = self.each(|_, one| one.report())?;
        let mut learned = self.state().learned.clone();
        for (at, known) in learned.iter_mut().enumerate() {
            let parts = (0..config.pipelines).map(|part| place(config.pipelines, at / 2, part));
            let said = parts.filter_map(|n| neighbour_at(&reports[n].ends[at % 2])?.mbps).next();
            // A neighbour that falls silent leaves what it has said: its link is as fast as before.
            *known = said.map(|mbps| Rate::mbps(mbps.into())).or(*known);
        }
        if learned != self.state().learned {
            self.state().learned = learned;
            let changed = self.apply(config)?;
            info!(changed, "speeds learned by LLDP");
        }
        Ok(())
    }

    /// The loop and the end of a port.
    fn find(&self, name: &str) -> Option<(usize, usize, PortConfig)> {
        let state = self.state();
        let at = state.config.links.iter().flatten().position(|port| port.name == name)?;
        let port = state.config.links[at / 2][at % 2].clone();
        Some((place(state.config.pipelines, at / 2, 0), at % 2, port))
    }
}

fn new_loops(config: &Config, queues: &[(QueueId, Downstream)], capacity: usize) -> io::Result<Vec<Box<dyn Loop>>> {
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
type LoopThread = JoinHandle<(io::Result<()>, Report, Vec<QueueReport>)>;

fn run_loop(
    n: usize,
    mut one: Box<dyn Loop>,
    core: Option<usize>,
    patience: Option<Time>,
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

/// The lanes of a program, of all loops of a virtual queue together.
fn lanes_status(state: &State, reports: &[Report]) -> Vec<LaneStatus> {
    let mut all: Vec<LaneStatus> = Vec::new();
    for lane in reports.iter().flat_map(|report| &report.lanes) {
        let named = |id: QueueId| state.queues.iter().find(|(other, _)| *other == id).map(|(_, d)| d.name.clone());
        let port = lane.queue.map_or(Some("all".into()), named).unwrap_or_else(|| "gone".into());
        let at = all.iter().position(|other| other.port == port).unwrap_or_else(|| {
            all.push(LaneStatus { port, runs: true, ..LaneStatus::default() });
            all.len() - 1
        });
        let (sum, c) = (&mut all[at], &lane.counts);
        sum.runs &= lane.runs;
        sum.inside += u64::from(lane.inside);
        let counters = [
            ("called", c.called),
            ("starts", c.starts),
            ("crashes", c.crashes),
            ("timeouts", c.timeouts),
            ("broke_rules", c.broke_rules),
            ("bypassed", c.bypassed),
            ("blocked", c.blocked),
            ("overrun", c.overrun),
            ("damaged", c.damaged),
            ("own_refused", c.own_refused),
        ];
        counters.into_iter().for_each(|(name, n)| *sum.counters.entry(name.to_owned()).or_default() += n);
    }
    all
}

fn updates_status(reports: &[Report]) -> Option<UpdateStatus> {
    let mut all: Option<UpdateStatus> = None;
    for updates in reports.iter().filter_map(|report| report.updates.as_ref()) {
        let sum = all.get_or_insert_default();
        sum.sent += updates.sent;
        sum.forged += updates.forged;
        sum.damaged += updates.damaged;
        sum.strangers += updates.strangers;
        for (bump, c) in &updates.neighbours {
            let counts = sum.neighbours.entry(*bump).or_default();
            let more = [c.merged, c.lost, c.stale, c.unknown_ports, c.estimated_bytes];
            counts.iter_mut().zip(more).for_each(|(n, more)| *n += more);
        }
    }
    all
}

impl Served for Daemon {
    fn life(&self) -> &Life {
        &self.life
    }

    fn status(&self) -> io::Result<Status> {
        let reports = self.each(|_, one| one.report())?;
        // The table is one for all loops.
        let (queues, read_at_ns) = self.remotes[0].run(|one| (one.report_queues(), monotonic_ns()))?;
        Ok(self.status_of(&reports, &queues, read_at_ns))
    }

    fn reload(&self) -> Result<String, String> {
        let old = self.state().config.clone();
        let mut new = Config::load_with(&old.file, old.app_file.as_ref()).map_err(|e| e.to_string())?;
        keep_control(&mut new.control, &new.name, &old.control);
        let same = [
            ("name", new.name == old.name),
            ("control", new.control == old.control),
            ("[[link]]", new.links == old.links),
            ("[[app]]", format!("{:?}", new.applications) == format!("{:?}", old.applications)),
            ("[[app]], or the program's file,", new.program == old.program),
            ("[updates]", new.updates == old.updates),
            ("pipelines", new.pipelines == old.pipelines),
            ("cores", new.cores == old.cores),
            ("sleep_after", new.sleep_after == old.sleep_after),
            ("notification_priority", new.notification_priority == old.notification_priority),
            ("user", new.user == old.user),
            ("metrics", new.metrics == old.metrics),
            ("log", new.log == old.log),
            ("others", new.others == old.others),
            ("mac", new.mac == old.mac),
            ("when_dead", new.when_dead == old.when_dead),
        ];
        if let Some((what, _)) = same.iter().find(|(_, same)| !same) {
            return Err(format!("`{what}` cannot change while the bump runs; nothing was changed"));
        }
        if new.updates.is_some() && new.map.ports != old.map.ports {
            return Err("the ports of the map cannot change while the bump has [updates]; nothing was changed".into());
        }
        if new.map.ports.len() > self.capacity {
            return Err(format!("the bump was started with room for {} ports; nothing was changed", self.capacity));
        }
        let stations = new.map.destinations.len();
        let changed = self.apply(new).map_err(|e| e.to_string())?;
        Ok(format!("{stations} stations, {changed} virtual queues begin anew"))
    }

    fn answer(&self, request: Request) -> Answer {
        let outcome = match request {
            Request::About | Request::AddPort { .. } | Request::DelPort { .. } => {
                Err("a bump has the links of its file: change the file and start it again".into())
            }
            Request::Macs => Err("a bump has no forwarding table".into()),
            Request::Show | Request::Reload | Request::Attach { .. } | Request::Capture { .. } | Request::Stop => {
                Err("not here".into())
            }
        };
        outcome.map_or_else(Answer::Error, Answer::Ok)
    }

    fn attach(&self, name: &str) -> Result<Attached<'_>, String> {
        let (at, end, port) = self.find(name).ok_or(format!("there is no port {name}"))?;
        let PortKind::Shm { buffers } = port.kind else {
            return Err(format!("port {name} is of kind {}: programs attach to shm", port.kind.name()));
        };
        let mut state = self.state();
        if state.attached.iter().any(|other| other == name) {
            return Err(format!("somebody is attached to port {name}"));
        }
        let access = self.remotes[at]
            .run(move |one| {
                // A port that broke, or whose program has gone.
                one.unplug(end);
                one.plug_shm(end, buffers)
            })
            .and_then(|plugged| plugged)
            .map_err(|e| e.to_string())?;
        state.attached.push(name.to_owned());
        info!(port = name, "port attached");
        let name = name.to_owned();
        let release = move || {
            let _ = self.remotes[at].run(move |one| one.unplug(end));
            self.state().attached.retain(|other| *other != name);
            info!(port = name, "port detached");
        };
        Ok(Attached { access, mac: port.mac, ip: None, mtu: None, release: Some(Box::new(release)) })
    }

    fn capture(&self, name: &str, snaplen: u32) -> Result<Capture, String> {
        let (at, end, _) = self.find(name).ok_or(format!("there is no port {name}"))?;
        if self.state().config.pipelines > 1 {
            return Err(format!("port {name} has several pipelines: capture at its device, with tcpdump"));
        }
        let (tap, capture) = tap(snaplen);
        match self.remotes[at].run(move |one| one.set_tap(end, tap)).map_err(|e| e.to_string())? {
            true => Ok(capture),
            false => Err(format!("nobody is at port {name}, or it is being captured")),
        }
    }

    fn close(&self, capture: &Capture) {
        capture.close();
        let _ = self.each(|_, one| one.sweep_taps());
    }

    fn broke(&self, name: &str, reason: &str) {
        self.state().absent.push((name.to_owned(), reason.to_owned()));
    }

    fn every_second(&self) {
        // A stopped bump learns nothing.
        let _ = self.learn();
    }
}
