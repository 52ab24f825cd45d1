//! All applications of all tenants on one thread, or the part of one tenant.

use super::app::{App, Pa, app};
use super::connections::{BACKLOG, Connection, DOORBELL, LISTENER, Listener, PORTS, Role, Trouble};
use super::doorbell::Doorbell;
use super::part::{Answer, Cues, Part, own_edges, own_edges_since};
use super::sockets::{Namespaces, Style, raise_descriptors};
use super::{CONNECT_TIME, Endpoint, Endpoints, Outcome, PaError, Query, kernel_name};
use crate::light::Hosts;
use crate::stack::kernel_buffer;
use rustix::event::epoll::{self, EventFlags};
use sluicenet_experiment::build::Plan;
use sluicenet_experiment::workload::named;
use sluicenet_experiment::workload::two_tier::Vm;
use sluicenet_proto::frame::HostId;
use sluicenet_scenario::{Connections, Scenario};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The low bits of a query's number, which count an aggregator's own queries, as in the simulated workload.
const COUNT_BITS: u32 = 32;
/// The longest wait for sockets, so that the program notices a stop in time.
const NAP: Duration = Duration::from_millis(50);
/// The longest wait before the start, so that the program notices its cue in time.
const CUE_NAP: Duration = Duration::from_millis(2);

/// A query that has not ended.
pub(super) struct Open {
    pub app: usize,
    pub aggregator: HostId,
    pub start: Instant,
    pub missing: usize,
    pub connections: Vec<usize>,
    /// Timeouts and retransmissions of the query's connections before its start.
    pub before: Trouble,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Query { app: usize, aggregator: HostId },
    Flow { app: usize, host: HostId },
}

pub(super) struct World<'a> {
    pub scenario: &'a Scenario,
    pub endpoints: &'a Endpoints,
    /// The VM that runs here; default all VMs.
    pub here: Option<Vm>,
    pub namespaces: Namespaces,
    pub apps: Vec<App>,
    pub epoll: OwnedFd,
    /// Hosts with light sockets, and their notifications.
    pub hosts: Hosts<'a>,
    pub doorbell: Arc<Doorbell>,
    pub listeners: Vec<(Listener, usize)>,
    pub connections: Vec<Option<Connection>>,
    pub free: Vec<usize>,
    /// Connections opened here, by the addresses of both ends.
    pub opened: BTreeMap<(SocketAddr, SocketAddr), usize>,
    pub open: BTreeMap<u64, Open>,
    pub agenda: BinaryHeap<Reverse<(Duration, What)>>,
    pub begin: Instant,
    /// The stacks' counters at `begin`.
    pub before: [u64; 3],
    /// Whether queries and flows no longer start or count.
    pub over: bool,
    pub outcome: Outcome,
    /// Timeouts and retransmissions of answers to queries of aggregators elsewhere.
    pub answers: Vec<Answer>,
}

/// Runs all applications of all tenants.
pub(super) fn run(scenario: &Scenario, endpoints: &Endpoints, stop: &AtomicBool) -> Result<Outcome, PaError> {
    let stopped = || stop.load(Ordering::Relaxed);
    let mut world = World::new(scenario, endpoints, None)?;
    world.listen()?;
    world.keep_connections(&stopped)?;
    world.begin()?;
    world.play(|is_done| Ok(is_done || stopped()))?;
    world.outcome()
}

/// Runs the part of the machine `here`, in step with the others by `cues`.
pub(super) fn run_part(scenario: &Scenario, endpoints: &Endpoints, here: Vm, cues: &Cues) -> Result<Part, PaError> {
    let mut world = World::new(scenario, endpoints, Some(here))?;
    world.listen()?;
    cues.say(Cues::LISTENS)?;
    world.serve_until(|| cues.is_told(Cues::CONNECT))?;
    world.keep_connections(&|| false)?;
    cues.say(Cues::CONNECTED)?;
    world.serve_until(|| cues.is_told(Cues::BEGIN))?;
    let edges = own_edges(&cues.device)?;
    world.begin()?;
    let (mut said, mut looked) = (false, Instant::now());
    world.play(|is_done| {
        if is_done && !said {
            cues.say(Cues::DONE)?;
            said = true;
        }
        if looked.elapsed() < NAP {
            return Ok(false);
        }
        looked = Instant::now();
        Ok(cues.is_told(Cues::END))
    })?;
    let answering: Vec<usize> = (0..world.connections.len()).collect();
    answering.into_iter().for_each(|at| world.settle(at, None));
    let outcome = world.outcome()?;
    let part = Part::new(&outcome, std::mem::take(&mut world.answers), own_edges_since(&cues.device, &edges)?);
    // The first part to leave would break the connections of the others.
    cues.tell(&part)?;
    while !cues.is_told(Cues::LEAVE) {
        std::thread::sleep(NAP);
    }
    Ok(part)
}

impl Drop for World<'_> {
    /// Shuts the listeners down. A program that is just starting briefly holds a copy of every socket, and the next run
    /// may need to listen there.
    fn drop(&mut self) {
        for (listener, _) in &self.listeners {
            if let Listener::Kernel(listener) = listener {
                let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
            }
        }
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, endpoints: &'a Endpoints, here: Option<Vm>) -> Result<World<'a>, PaError> {
        raise_descriptors();
        let plan = Plan::new(scenario).map_err(|e| PaError::Workload(e.to_string()))?;
        let hosts = plan.hosts() - plan.external();
        let apps = (0u8..).zip(&scenario.workloads).map(|(number, w)| app(scenario, &plan, hosts, number, w));
        let apps = apps.collect::<Result<_, PaError>>()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| PaError::io("epoll", &e.into()))?;
        let doorbell = Doorbell::new()?;
        let congestion = kernel_name(scenario.tcp.congestion);
        let world = World {
            scenario,
            endpoints,
            here,
            namespaces: Namespaces::new()?,
            apps,
            epoll,
            hosts: Hosts::new(&endpoints.light),
            doorbell,
            listeners: Vec::new(),
            connections: Vec::new(),
            free: Vec::new(),
            opened: BTreeMap::new(),
            open: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            begin: Instant::now(),
            before: [0; 3],
            over: false,
            outcome: Outcome { congestion, ..Outcome::default() },
            answers: Vec::new(),
        };
        world.watch(&*world.doorbell, DOORBELL, EventFlags::IN)?;
        Ok(world)
    }

    fn is_here(&self, vm: Vm) -> bool {
        self.here.is_none_or(|here| here == vm)
    }

    /// Starts the clock.
    fn begin(&mut self) -> Result<(), PaError> {
        self.before = self.counters()?;
        self.begin = Instant::now();
        self.schedule_first();
        Ok(())
    }

    /// Runs until `over`, which learns whether all work is done, returns true.
    fn play(&mut self, mut over: impl FnMut(bool) -> Result<bool, PaError>) -> Result<(), PaError> {
        let end = self.scenario.duration.map(|d| Duration::from_nanos(d.as_ps() / 1_000));
        loop {
            let is_late = end.is_some_and(|end| self.begin.elapsed() >= end);
            if is_late {
                self.finish();
            }
            if over(is_late || self.is_done())? {
                break;
            }
            while let Some(&Reverse((at, what))) = self.agenda.peek()
                && at <= self.begin.elapsed()
            {
                self.agenda.pop();
                self.wake(at, what)?;
            }
            let next = self.agenda.peek().map_or(NAP, |Reverse((at, _))| at.saturating_sub(self.begin.elapsed()));
            self.serve(next.min(NAP))?;
        }
        self.finish();
        Ok(())
    }

    /// Ends the measurement: no more queries start, and open ones count as unfinished.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.outcome.time = self.begin.elapsed();
            self.outcome.unfinished = self.open.len() as u64;
            self.open.clear();
            self.agenda.clear();
        }
    }

    /// The results of the run.
    fn outcome(&mut self) -> Result<Outcome, PaError> {
        let after = self.counters()?;
        self.outcome.kernel = std::array::from_fn(|i| after[i] - self.before[i]);
        Ok(std::mem::take(&mut self.outcome))
    }

    /// Serves the sockets until `so` is true.
    fn serve_until(&mut self, so: impl Fn() -> bool) -> Result<(), PaError> {
        while !so() {
            self.serve(CUE_NAP)?;
        }
        Ok(())
    }

    pub(super) fn style(&self, app: usize) -> Style {
        let priority = match &self.apps[app] {
            App::Pa(pa) => pa.workload.priority,
            App::Background { workload, .. } => workload.priority,
        };
        let (congestion, nagle) = (self.outcome.congestion, self.scenario.tcp.nagle);
        Style { congestion, nagle, buffer: kernel_buffer(self.scenario), priority }
    }

    /// Opens all listeners.
    fn listen(&mut self) -> Result<(), PaError> {
        for app in 0..self.apps.len() {
            let vms: Vec<Vm> = match &self.apps[app] {
                App::Pa(pa) => pa.workers.clone(),
                App::Background { workload, hosts, .. } => (0..*hosts).map(|h| (h, workload.vm as u8)).collect(),
            };
            for (host, vm) in vms.into_iter().filter(|&vm| self.is_here(vm)).collect::<Vec<_>>() {
                let (port, number) = (PORTS + app as u16, LISTENER + self.listeners.len() as u64);
                let listener = if self.apps[app].is_light() {
                    let failed = |e| PaError::io("listening at a light socket", &e);
                    let listener = self.hosts.host((host, vm))?.listen(port, BACKLOG).map_err(failed)?;
                    listener.set_nonblocking(true);
                    listener.set_watch(Some(self.doorbell.watch(number)));
                    Listener::Light(listener)
                } else {
                    let endpoint = self.endpoints.kernel((host, vm))?;
                    let listener = self.namespaces.listen(endpoint, port, self.style(app))?;
                    self.watch(&listener, number, EventFlags::IN)?;
                    Listener::Kernel(listener)
                };
                self.listeners.push((listener, app));
            }
        }
        Ok(())
    }

    /// Opens the persistent connections, and waits until both of their ends are open.
    fn keep_connections(&mut self, stopped: &dyn Fn() -> bool) -> Result<(), PaError> {
        for app in 0..self.apps.len() {
            let App::Pa(pa) = &self.apps[app] else { continue };
            if pa.workload.connections != Connections::Persistent {
                continue;
            }
            let here = pa.aggregators.iter().filter(|&&a| self.is_here(a));
            let pairs: Vec<_> = here.flat_map(|&a| pa.workers.iter().map(move |&w| (a, w))).collect();
            for (aggregator, worker) in pairs {
                let at = self.connect(app, aggregator, worker, Role::Asks { app })?;
                if let App::Pa(pa) = &mut self.apps[app] {
                    pa.kept.insert((aggregator.0, worker), at);
                }
            }
        }
        let begin = Instant::now();
        let alone = self.here.is_some();
        while let Some(c) = self.connections.iter().flatten().find(|c| !c.open || c.peer.is_none() && !alone) {
            if begin.elapsed() > CONNECT_TIME {
                let end = |e: std::io::Result<SocketAddr>| e.map_or("?".into(), |a| a.to_string());
                let what = format!("{} with {}", end(c.stream.local_addr()), end(c.stream.peer_addr()));
                return Err(PaError::Connect { what });
            }
            if stopped() {
                break;
            }
            self.serve(NAP)?;
        }
        Ok(())
    }

    fn schedule_first(&mut self) {
        let here = self.here;
        let is_here = |vm: Vm| here.is_none_or(|here| here == vm);
        for app in 0..self.apps.len() {
            match &mut self.apps[app] {
                App::Pa(pa) => {
                    for &(aggregator, _) in pa.aggregators.iter().filter(|&&a| is_here(a)) {
                        let rng = pa.rng.get_mut(&aggregator).expect("one for each");
                        let at =
                            pa.workload.inter_arrival.as_ref().map_or(Duration::ZERO, |d| {
                                Duration::from_nanos(d.sample(rng.next_u64()).as_ps() / 1_000)
                            });
                        self.agenda.push(Reverse((at, What::Query { app, aggregator })));
                    }
                }
                App::Background { workload, draws, .. } => {
                    for (&host, draws) in draws.iter_mut().filter(|d| is_here((*d.0, workload.vm as u8))) {
                        let at = Duration::from_nanos(draws.pause().as_ps() / 1_000);
                        self.agenda.push(Reverse((at, What::Flow { app, host })));
                    }
                }
            }
        }
    }

    /// Whether every finite workload has ended here; without one only the duration ends a run.
    fn is_done(&self) -> bool {
        let mut finite = self.apps.iter().filter_map(|a| match a {
            App::Pa(pa) => Some((pa.workload.queries?, pa)),
            App::Background { .. } => None,
        });
        let here = |pa: &Pa| pa.aggregators.iter().filter(|&&a| self.is_here(a)).count() as u64;
        let done = |(queries, pa): (u64, &Pa)| pa.finished >= queries * here(pa);
        finite.clone().next().is_some() && finite.all(done)
    }

    fn wake(&mut self, at: Duration, what: What) -> Result<(), PaError> {
        match what {
            What::Query { app, aggregator } => self.ask(at, app, aggregator),
            What::Flow { app, host } => {
                let App::Background { workload, draws, .. } = &mut self.apps[app] else { return Ok(()) };
                let draws = draws.get_mut(&host).expect("one for each");
                let (vm, flow) = (workload.vm as u8, draws.flow());
                // The next flow is due a pause after the due time of this one, as in the simulation.
                let next = at + Duration::from_nanos(draws.pause().as_ps() / 1_000);
                self.agenda.push(Reverse((next, what)));
                let Some((dst, bytes)) = flow else { return Ok(()) };
                let role = Role::Sends { start: Instant::now(), bytes };
                let at = self.connect(app, (host, vm), (dst, vm), role)?;
                if let Some(c) = &mut self.connections[at] {
                    c.out.push(0, bytes);
                }
                Ok(())
            }
        }
    }

    /// Starts a query by asking all workers.
    fn ask(&mut self, at: Duration, app: usize, aggregator: HostId) -> Result<(), PaError> {
        let App::Pa(pa) = &mut self.apps[app] else { return Ok(()) };
        let started = pa.started.entry(aggregator).or_default();
        if pa.workload.queries.is_some_and(|most| *started >= most) {
            return Ok(());
        }
        let index = pa.aggregators.iter().position(|a| a.0 == aggregator).expect("an aggregator");
        let own = pa.aggregators[index];
        let query = named(app as u8, (index as u64) << COUNT_BITS | *started);
        *started += 1;
        if let Some(d) = &pa.workload.inter_arrival {
            let rng = pa.rng.get_mut(&aggregator).expect("one for each");
            let next = at + Duration::from_nanos(d.sample(rng.next_u64()).as_ps() / 1_000);
            self.agenda.push(Reverse((next, What::Query { app, aggregator })));
        }
        let App::Pa(pa) = &self.apps[app] else { return Ok(()) };
        let (request, workers) = (pa.workload.request.as_bytes(), pa.workers.clone());
        let kept = workers.iter().map(|&w| pa.kept.get(&(aggregator, w)).copied()).collect::<Vec<_>>();
        let before = self.trouble(kept.iter().flatten().copied());
        let start = Instant::now();
        let mut connections = Vec::with_capacity(workers.len());
        for (worker, kept) in workers.into_iter().zip(kept) {
            let at = match kept {
                Some(at) => at,
                None => self.connect(app, own, worker, Role::Asks { app })?,
            };
            connections.push(at);
        }
        let missing = connections.len();
        self.open.insert(query, Open { app, aggregator, start, missing, connections: connections.clone(), before });
        for at in connections {
            if let Some(c) = &mut self.connections[at] {
                c.out.push(query, request);
            }
            self.write(at)?;
        }
        Ok(())
    }

    /// Counts a complete answer.
    pub(super) fn answered(&mut self, query: u64) {
        let Some(open) = self.open.get_mut(&query) else { return };
        open.missing -= 1;
        let app = open.app;
        if open.missing > 0 {
            return;
        }
        let Some(open) = self.open.remove(&query) else { return };
        let took = open.start.elapsed();
        let now = self.trouble(open.connections.iter().copied());
        let App::Pa(pa) = &mut self.apps[app] else { return };
        pa.finished += 1;
        let start = open.start.saturating_duration_since(self.begin);
        let count = query & ((1 << COUNT_BITS) - 1);
        let warmup =
            count < pa.workload.warmup_queries || start < Duration::from_nanos(self.scenario.warmup.as_ps() / 1_000);
        let timeouts = now.0.zip(open.before.0).map(|(now, before)| now - before);
        let retransmitted = now.1 - open.before.1;
        let aggregator = open.aggregator;
        self.outcome.queries.push(Query { id: query, aggregator, start, took, warmup, timeouts, retransmitted });
        let (again, anew) = (pa.workload.inter_arrival.is_none(), pa.workload.connections == Connections::New);
        if anew {
            open.connections.iter().for_each(|&c| self.close(c));
        }
        if again {
            self.agenda.push(Reverse((self.begin.elapsed(), What::Query { app, aggregator })));
        }
    }

    /// `TCPTimeouts`, `RetransSegs` and `TCPLossProbes` of all namespaces with tenants.
    fn counters(&mut self) -> Result<[u64; 3], PaError> {
        let all = self.endpoints.kernel.values();
        let one_of_each: BTreeMap<&Option<String>, &Endpoint> = all.map(|p| (&p.namespace, p)).collect();
        let mut all = [0; 3];
        for endpoint in one_of_each.into_values() {
            all[0] += self.namespaces.counter(endpoint, "TcpExt", "TCPTimeouts")?;
            all[1] += self.namespaces.counter(endpoint, "Tcp", "RetransSegs")?;
            all[2] += self.namespaces.counter(endpoint, "TcpExt", "TCPLossProbes")?;
        }
        Ok(all)
    }
}
