//! All applications of all tenants on one thread, or what one tenant has of them.

use super::app::{App, Pa, app};
use super::part::{Answer, Cues, Part, own_edges, own_edges_since};
use super::sockets::{Namespaces, Style, verify};
use super::stream::{Brought, Incoming, NUMBER_BYTES, Outgoing};
use super::{CONNECT_TIME, Outcome, PaError, Place, Places, Query, kernel_name};
use crate::build::Plan;
use crate::scenario::{Connections, Scenario};
use crate::workload::named;
use crate::workload::two_tier::Vm;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use sluicenet_dataplane::tcp_info::tcp_info;
use sluicenet_proto::frame::HostId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where the ports of workloads begin, below those that the kernel gives out.
const PORTS: u16 = 20_000;
/// Bits of a query's number that count an aggregator's own, as in the simulated workload.
const COUNT_BITS: u32 = 32;
/// How long it waits at most, so that it hears that it is to stop.
const NAP: Duration = Duration::from_millis(50);
/// The same before it begins, which it is to do when it is told.
const CUE_NAP: Duration = Duration::from_millis(2);

/// A query that has not ended.
struct Open {
    app: usize,
    aggregator: HostId,
    start: Instant,
    missing: usize,
    connections: Vec<usize>,
    /// Timeouts and retransmissions of its connections before.
    before: Trouble,
}

/// What a connection is for.
#[derive(Clone, Copy)]
enum Role {
    Asks { app: usize },
    Answers { app: usize },
    Sends { start: Instant, bytes: u64 },
    Sinks,
}

struct Connection {
    stream: TcpStream,
    role: Role,
    out: Outgoing,
    into: Incoming,
    /// The other end, which is here too.
    peer: Option<usize>,
    open: bool,
    /// What it answers, and its timeouts and retransmissions before: for who asked, where that is elsewhere.
    answers: Option<(u64, Trouble)>,
}

/// Timeouts, where the kernel counts them, and retransmissions.
type Trouble = (Option<u32>, u32);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Query { app: usize, aggregator: HostId },
    Flow { app: usize, host: HostId },
}

struct World<'a> {
    scenario: &'a Scenario,
    places: &'a Places,
    /// The one machine whose part this is; all are here where absent.
    here: Option<Vm>,
    namespaces: Namespaces,
    apps: Vec<App>,
    epoll: OwnedFd,
    listeners: Vec<(TcpListener, usize)>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections that were opened here, by both of their ends.
    opened: BTreeMap<(SocketAddr, SocketAddr), usize>,
    open: BTreeMap<u64, Open>,
    agenda: BinaryHeap<Reverse<(Duration, What)>>,
    begin: Instant,
    /// What the stacks had counted then.
    before: [u64; 3],
    /// Whether nothing is asked and nothing counts any more.
    over: bool,
    outcome: Outcome,
    /// What held up answers to who is elsewhere.
    answers: Vec<Answer>,
}

/// Above the numbers of connections stand those of listeners.
const LISTENER: u64 = 1 << 32;

/// All of it.
pub(super) fn run(scenario: &Scenario, places: &Places, stop: &AtomicBool) -> Result<Outcome, PaError> {
    let stopped = || stop.load(Ordering::Relaxed);
    let mut world = World::new(scenario, places, None)?;
    world.listen()?;
    world.keep_connections(&stopped)?;
    world.begin()?;
    world.play(|is_done| Ok(is_done || stopped()))?;
    world.outcome()
}

/// The part of the machine that is `here`, in step with the others by `cues`.
pub(super) fn run_part(scenario: &Scenario, places: &Places, here: Vm, cues: &Cues) -> Result<Part, PaError> {
    let mut world = World::new(scenario, places, Some(here))?;
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
    // Whoever left first would break the others' connections.
    cues.tell(&part)?;
    while !cues.is_told(Cues::LEAVE) {
        std::thread::sleep(NAP);
    }
    Ok(part)
}

impl Drop for World<'_> {
    /// A program that is just being started has a copy of every socket for a moment, in which the next run may want to listen.
    fn drop(&mut self) {
        for (listener, _) in &self.listeners {
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, places: &'a Places, here: Option<Vm>) -> Result<World<'a>, PaError> {
        let plan = Plan::new(scenario).map_err(|e| PaError::Workload(e.to_string()))?;
        let hosts = plan.hosts() - plan.external();
        let apps = (0u8..).zip(&scenario.workloads).map(|(number, w)| app(scenario, &plan, hosts, number, w));
        let apps = apps.collect::<Result<_, PaError>>()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| PaError::io("epoll", &e.into()))?;
        let congestion = kernel_name(scenario.tcp.congestion);
        Ok(World {
            scenario,
            places,
            here,
            namespaces: Namespaces::new()?,
            apps,
            epoll,
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
        })
    }

    fn is_here(&self, vm: Vm) -> bool {
        self.here.is_none_or(|here| here == vm)
    }

    /// The clock starts.
    fn begin(&mut self) -> Result<(), PaError> {
        self.before = self.counters()?;
        self.begin = Instant::now();
        self.schedule_first();
        Ok(())
    }

    /// Runs until `over`, which is told whether all is done that is to be done.
    fn play(&mut self, mut over: impl FnMut(bool) -> Result<bool, PaError>) -> Result<(), PaError> {
        let end = self.scenario.duration.map(|d| Duration::from_nanos(d.as_ps() / 1_000));
        loop {
            let is_late = end.is_some_and(|end| self.begin.elapsed() >= end);
            if is_late {
                self.close_the_books();
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
        self.close_the_books();
        Ok(())
    }

    /// Nothing is asked any more, and what has not ended has not.
    fn close_the_books(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            self.outcome.time = self.begin.elapsed();
            self.outcome.unfinished = self.open.len() as u64;
            self.open.clear();
            self.agenda.clear();
        }
    }

    /// What it came to.
    fn outcome(&mut self) -> Result<Outcome, PaError> {
        let after = self.counters()?;
        self.outcome.kernel = std::array::from_fn(|i| after[i] - self.before[i]);
        Ok(std::mem::take(&mut self.outcome))
    }

    /// Does what the sockets ask for until something is so.
    fn serve_until(&mut self, so: impl Fn() -> bool) -> Result<(), PaError> {
        while !so() {
            self.serve(CUE_NAP)?;
        }
        Ok(())
    }

    fn style(&self, app: usize) -> Style {
        let priority = match &self.apps[app] {
            App::Pa(pa) => pa.workload.priority,
            App::Background { workload, .. } => workload.priority,
        };
        Style { congestion: self.outcome.congestion, nagle: self.scenario.tcp.nagle, priority }
    }

    fn place(&self, host: HostId, vm: u8) -> Result<&'a Place, PaError> {
        self.places.get(&(host, vm)).ok_or_else(|| PaError::Workload(format!("VM {vm} of server {host} has no place")))
    }

    /// All that others connect to.
    fn listen(&mut self) -> Result<(), PaError> {
        for app in 0..self.apps.len() {
            let vms: Vec<Vm> = match &self.apps[app] {
                App::Pa(pa) => pa.workers.clone(),
                App::Background { workload, draws } => draws.keys().map(|&h| (h, workload.vm as u8)).collect(),
            };
            for (host, vm) in vms.into_iter().filter(|&vm| self.is_here(vm)).collect::<Vec<_>>() {
                let listener = self.namespaces.listen(self.place(host, vm)?, PORTS + app as u16, self.style(app))?;
                let number = LISTENER + self.listeners.len() as u64;
                self.watch(&listener, number, EventFlags::IN)?;
                self.listeners.push((listener, app));
            }
        }
        Ok(())
    }

    fn watch(&self, source: impl AsFd, number: u64, flags: EventFlags) -> Result<(), PaError> {
        epoll::add(&self.epoll, source, EventData::new_u64(number), flags).map_err(|e| PaError::io("epoll", &e.into()))
    }

    /// Opens the connections that are kept, and waits until both of their ends are there.
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

    fn connect(&mut self, app: usize, from: (HostId, u8), to: (HostId, u8), role: Role) -> Result<usize, PaError> {
        let to = SocketAddrV4::new(self.place(to.0, to.1)?.address, PORTS + app as u16);
        let stream = self.namespaces.connect(self.place(from.0, from.1)?, to, self.style(app))?;
        let local = stream.local_addr().map_err(|e| PaError::io("the address of a socket", &e))?;
        let at = self.add(stream, role)?;
        self.opened.insert((local, to.into()), at);
        Ok(at)
    }

    fn add(&mut self, stream: TcpStream, role: Role) -> Result<usize, PaError> {
        let at = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        // Told of each change once: a connection is read and written until it would block.
        self.watch(&stream, at as u64, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET)?;
        let (out, into) = Default::default();
        self.connections[at] = Some(Connection { stream, role, out, into, peer: None, open: false, answers: None });
        Ok(at)
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
                App::Background { workload, draws } => {
                    for (&host, draws) in draws.iter_mut().filter(|d| is_here((*d.0, workload.vm as u8))) {
                        let at = Duration::from_nanos(draws.pause().as_ps() / 1_000);
                        self.agenda.push(Reverse((at, What::Flow { app, host })));
                    }
                }
            }
        }
    }

    /// Whether every finite workload has ended, as far as it is here; without one only the duration ends a run.
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
                let App::Background { workload, draws } = &mut self.apps[app] else { return Ok(()) };
                let draws = draws.get_mut(&host).expect("one for each");
                let (vm, flow) = (workload.vm as u8, draws.flow());
                // The next one a pause after this one was due, as in the simulated world.
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

    /// A query begins: all workers are asked.
    fn ask(&mut self, at: Duration, app: usize, aggregator: HostId) -> Result<(), PaError> {
        let App::Pa(pa) = &mut self.apps[app] else { return Ok(()) };
        let started = pa.started.entry(aggregator).or_default();
        if pa.workload.queries.is_some_and(|most| *started >= most) {
            return Ok(());
        }
        let place = pa.aggregators.iter().position(|a| a.0 == aggregator).expect("an aggregator");
        let own = pa.aggregators[place];
        let query = named(app as u8, (place as u64) << COUNT_BITS | *started);
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

    /// Timeouts and retransmissions of connections so far, at both ends.
    fn trouble(&self, connections: impl Iterator<Item = usize>) -> Trouble {
        let mut all = (Some(0), 0);
        for c in connections.filter_map(|at| self.connections[at].as_ref()) {
            let other = c.peer.and_then(|p| self.connections[p].as_ref());
            for end in [Some(c), other].into_iter().flatten() {
                let info = tcp_info(&end.stream).unwrap_or_default();
                all.0 = all.0.zip(info.timeouts).map(|(sum, n)| sum + u32::from(n));
                all.1 += info.retransmitted;
            }
        }
        all
    }

    /// Writes down what has held up the answer that a connection gave last, and that it answers `next` now.
    fn settle(&mut self, at: usize, next: Option<u64>) {
        let now = self.trouble(std::iter::once(at));
        let Some(c) = &mut self.connections[at] else { return };
        let before = std::mem::replace(&mut c.answers, next.map(|query| (query, now)));
        if let Some((query, before)) = before
            && before != now
        {
            let timeouts = now.0.zip(before.0).map(|(now, before)| now - before);
            self.answers.push(Answer { query, timeouts, retransmitted: now.1 - before.1 });
        }
    }

    /// Waits for at most so long, and does what the sockets ask for.
    fn serve(&mut self, wait: Duration) -> Result<(), PaError> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(PaError::io("epoll", &e.into())),
        }
        for event in events {
            let (number, flags) = (event.data.u64(), event.flags);
            if number >= LISTENER {
                self.accept((number - LISTENER) as usize)?;
                continue;
            }
            let at = number as usize;
            if flags.contains(EventFlags::OUT) {
                self.write(at)?;
            }
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
                self.read(at)?;
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) -> Result<(), PaError> {
        loop {
            let (socket, app) = &self.listeners[listener];
            let app = *app;
            let (stream, from) = match socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(PaError::io("a connection that comes in", &e)),
            };
            let local = stream.local_addr().map_err(|e| PaError::io("the address of a socket", &e))?;
            stream.set_nonblocking(true).map_err(|e| PaError::io("a connection that comes in", &e))?;
            let style = self.style(app);
            self.namespaces.prepare(&stream, style)?;
            let role = match &self.apps[app] {
                App::Pa(_) => Role::Answers { app },
                App::Background { .. } => Role::Sinks,
            };
            let at = self.add(stream, role)?;
            // Both ends are here; a stranger's connection is served like any other, and counts for nothing.
            let opener = self.opened.get(&(from, local)).copied();
            if let Some(c) = &mut self.connections[at] {
                (c.open, c.peer) = (true, opener);
            }
            if let Some(c) = opener.and_then(|o| self.connections[o].as_mut()) {
                c.peer = Some(at);
            }
        }
    }

    fn write(&mut self, at: usize) -> Result<(), PaError> {
        let Some(c) = &mut self.connections[at] else { return Ok(()) };
        if !c.open {
            match rustix::net::sockopt::socket_error(&c.stream) {
                Ok(Ok(())) if c.stream.peer_addr().is_ok() => {
                    c.open = true;
                    verify(&c.stream, self.outcome.congestion).map_err(|ran| PaError::Congestion {
                        wanted: self.outcome.congestion,
                        ran,
                        namespace: "of an open connection".into(),
                        allowed: String::new(),
                    })?;
                }
                Ok(Ok(())) => return Ok(()),
                Ok(Err(e)) | Err(e) => return Err(PaError::io("a connection", &e.into())),
            }
        }
        let had = !c.out.is_empty();
        c.out.send(&mut c.stream).map_err(|e| PaError::io("sending", &e))?;
        if had && c.out.is_empty() && matches!(c.role, Role::Sends { .. }) {
            // The sink reads to the end of it.
            c.stream.shutdown(std::net::Shutdown::Write).map_err(|e| PaError::io("the end of a flow", &e))?;
        }
        Ok(())
    }

    fn read(&mut self, at: usize) -> Result<(), PaError> {
        let Some(c) = &mut self.connections[at] else { return Ok(()) };
        let sizes = |app: usize| match &self.apps[app] {
            App::Pa(pa) => (pa.workload.request.as_bytes(), pa.workload.response.as_bytes()),
            App::Background { .. } => (NUMBER_BYTES, NUMBER_BYTES),
        };
        let len = match c.role {
            Role::Asks { app } => sizes(app).1,
            Role::Answers { app } => sizes(app).0,
            Role::Sends { .. } | Role::Sinks => u64::MAX,
        };
        let Brought { numbers, closed } =
            c.into.receive(&mut c.stream, len).map_err(|e| PaError::io("receiving", &e))?;
        match c.role {
            Role::Asks { .. } => {
                for query in numbers {
                    self.answered(query);
                }
            }
            Role::Answers { app } => {
                let response = sizes(app).1;
                numbers.iter().for_each(|&query| c.out.push(query, response));
                if self.here.is_some() {
                    numbers.iter().for_each(|&query| self.settle(at, Some(query)));
                }
                self.write(at)?;
            }
            Role::Sinks if closed => {
                let opener = c.peer.and_then(|p| self.connections[p].as_ref());
                if let Some(Connection { role: Role::Sends { start, bytes }, .. }) = opener {
                    self.outcome.flows.push((*bytes, start.elapsed()));
                }
            }
            // The sink is elsewhere, and has closed because it has all of it.
            Role::Sends { start, bytes } if closed && self.here.is_some() && c.out.is_empty() && !self.over => {
                self.outcome.flows.push((bytes, start.elapsed()));
            }
            Role::Sends { .. } | Role::Sinks => {}
        }
        if closed && self.here.is_some() {
            self.settle(at, None);
        }
        if closed {
            self.close(at);
        }
        Ok(())
    }

    /// An answer is whole.
    fn answered(&mut self, query: u64) {
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

    fn close(&mut self, at: usize) {
        let Some(c) = self.connections[at].take() else { return };
        if let (Ok(local), Ok(peer)) = (c.stream.local_addr(), c.stream.peer_addr()) {
            self.opened.remove(&(local, peer));
        }
        if let Some(p) = c.peer.and_then(|p| self.connections[p].as_mut()) {
            p.peer = None;
        }
        self.free.push(at);
    }

    /// `TCPTimeouts`, `RetransSegs` and `TCPLossProbes` of all namespaces there are tenants in.
    fn counters(&mut self) -> Result<[u64; 3], PaError> {
        let one_of_each: BTreeMap<&Option<String>, &Place> = self.places.values().map(|p| (&p.namespace, p)).collect();
        let mut all = [0; 3];
        for place in one_of_each.into_values() {
            all[0] += self.namespaces.counter(place, "TcpExt", "TCPTimeouts")?;
            all[1] += self.namespaces.counter(place, "Tcp", "RetransSegs")?;
            all[2] += self.namespaces.counter(place, "TcpExt", "TCPLossProbes")?;
        }
        Ok(all)
    }
}
