//! Three-tier Partition/Aggregate (Crisan 2014, 2.5.5.1, 3.3.1, 4.5.4): a high-level aggregator (HLA) asks one
//! mid-level aggregator (MLA) in each chassis, which asks the workers there; the answers come back the same way.

use super::{
    AGGREGATE, Context, Heard, HostApp, Maker, OpenQuery, Ports, REQUEST, RESPONSE, SUBQUERY, connect, fresh, kept,
    named, service,
};
use sluicenet_node::guest::{FlowLabel, SocketId};
use sluicenet_node::packet::Address;
use sluicenet_node::server::{Io, QueryRecord};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Connections, Layout, PartitionAggregate, Transport};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most queries of a workload that runs until the end of time: twice the average that a scenario may plan for.
const MAX_QUERIES: u64 = 1 << 23;

/// Ways a message can be part of a query, in the upper bits of its tag.
const KIND_SHIFT: u32 = 48;

struct Shared {
    number: u8,
    seed: u64,
    message: u64,
    priority: u8,
    connections: Connections,
    transport: Transport,
    layout: Layout,
    chassis: Vec<core::ops::Range<HostId>>,
    chassis_of: Vec<u32>,
    hla_vm: u8,
    mla_vm: u8,
    worker_vm: u8,
    warmup_queries: u64,
    warmup: Duration,
    /// Arrivals of each HLA: time and number.
    arrivals: BTreeMap<HostId, Vec<(Instant, u64)>>,
}

/// A query at its HLA.
struct Query {
    start: Instant,
    missing: u32,
}

/// A subquery at its MLA.
struct Subquery {
    reply_to: SocketId,
    missing: u32,
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    next: usize,
    queries: BTreeMap<u64, Query>,
    subqueries: BTreeMap<u64, Subquery>,
    done: Vec<QueryRecord>,
    finished: u64,
    ports: Ports,
}

pub fn maker(cx: &Context<'_>, w: &PartitionAggregate) -> Maker {
    let inner = cx.inner_hosts();
    let mut chassis: Vec<core::ops::Range<HostId>> = Vec::new();
    let mut chassis_of = Vec::with_capacity(inner as usize);
    for host in 0..inner {
        let members = w.members(cx.plan.chassis(host, w.chassis as u8));
        if chassis.last() != Some(&members) {
            chassis.push(members);
        }
        chassis_of.push(chassis.len() as u32 - 1);
    }
    let ch2 = w.layout == Layout::Crisan2014Ch2;
    let hlas: Vec<HostId> =
        if ch2 { (inner..cx.plan.hosts()).collect() } else { chassis.iter().cloned().flatten().collect() };
    let mut rng = Rng::from_words(&[cx.seed(), 0x5051, cx.number as u64]);
    let mut arrivals: BTreeMap<HostId, Vec<(Instant, u64)>> = BTreeMap::new();
    let mut at = Instant::ZERO;
    for query in 0..w.queries.unwrap_or(MAX_QUERIES) {
        at = at.saturating_add(w.inter_arrival.sample(rng.next_u64()));
        if cx.scenario.duration.is_some_and(|d| at.as_ps() >= d.as_ps()) {
            break;
        }
        let hla = hlas[rng.below(hlas.len() as u64) as usize];
        arrivals.entry(hla).or_default().push((at, query));
    }
    let shared = Arc::new(Shared {
        number: cx.number,
        seed: cx.seed(),
        message: w.message.as_bytes(),
        priority: w.priority,
        connections: w.connections,
        transport: w.transport,
        layout: w.layout,
        chassis,
        chassis_of,
        hla_vm: if ch2 { 0 } else { cx.role_vm(0) },
        mla_vm: if ch2 { 0 } else { cx.role_vm(1) },
        worker_vm: if ch2 { 0 } else { cx.role_vm(2) },
        warmup_queries: w.warmup_queries,
        warmup: cx.scenario.warmup,
        arrivals,
    });
    Box::new(move |host| {
        Some(Box::new(Server {
            shared: shared.clone(),
            host,
            next: 0,
            queries: BTreeMap::new(),
            subqueries: BTreeMap::new(),
            done: Vec::new(),
            finished: 0,
            ports: Ports::default(),
        }))
    })
}

impl Server {
    fn arrivals(&self) -> &[(Instant, u64)] {
        self.shared.arrivals.get(&self.host).map_or(&[], Vec::as_slice)
    }

    fn tag(&self, kind: u8, query: u64) -> u64 {
        named(self.shared.number, (kind as u64) << KIND_SHIFT | query)
    }

    fn say(&self, now: Instant, io: &mut dyn Io, socket: SocketId, kind: u8, query: u64) {
        let label = FlowLabel { kind, query: Some(named(self.shared.number, query)) };
        io.send(now, socket, self.shared.message, self.tag(kind, query), label);
    }

    /// The connection from a VM here to a VM there, for messages of `role`.
    fn connection(&mut self, now: Instant, io: &mut dyn Io, from: u8, to: Address, role: u8) -> SocketId {
        let shared = &self.shared;
        let (sport, how) = match shared.connections {
            Connections::Persistent => (service(shared.number, role), kept(shared.transport, None)),
            Connections::New => (self.ports.next(), fresh(shared.transport, None)),
        };
        let ends = (Address::new(self.host, from), to);
        connect(now, io, ends, (sport, service(shared.number, role)), shared.priority, how)
    }

    fn schedule(&self, io: &mut dyn Io) {
        if let Some(&(at, _)) = self.arrivals().get(self.next) {
            io.wake_at(at, named(self.shared.number, 0));
        }
    }

    /// A client's query reaches this HLA: one MLA of each chassis is asked.
    fn ask_mlas(&mut self, now: Instant, io: &mut dyn Io, query: u64) {
        let shared = self.shared.clone();
        let mut rng = Rng::from_words(&[shared.seed, 0x4d4c_4153, shared.number as u64, query]);
        self.queries.insert(query, Query { start: now, missing: shared.chassis.len() as u32 });
        for chassis in &shared.chassis {
            let mla = chassis.start + rng.below(chassis.len() as u64) as u32;
            let socket = self.connection(now, io, shared.hla_vm, Address::new(mla, shared.mla_vm), 0);
            self.say(now, io, socket, SUBQUERY, query);
        }
    }

    /// A subquery reaches this MLA: the workers of its chassis are asked.
    fn ask_workers(&mut self, now: Instant, io: &mut dyn Io, reply_to: SocketId, query: u64) {
        let shared = self.shared.clone();
        let chassis = shared.chassis[shared.chassis_of[self.host as usize] as usize].clone();
        let workers: Vec<HostId> = match shared.layout {
            Layout::Crisan2014Ch4 => chassis.collect(),
            Layout::Crisan2014Ch2 => chassis.filter(|&h| h != self.host).collect(),
        };
        self.subqueries.insert(query, Subquery { reply_to, missing: workers.len() as u32 });
        if workers.is_empty() {
            self.answer_hla(now, io, query);
        }
        for worker in workers {
            let socket = self.connection(now, io, shared.mla_vm, Address::new(worker, shared.worker_vm), 1);
            self.say(now, io, socket, REQUEST, query);
        }
    }

    fn answer_hla(&mut self, now: Instant, io: &mut dyn Io, query: u64) {
        if let Some(s) = self.subqueries.remove(&query) {
            self.say(now, io, s.reply_to, AGGREGATE, query);
        }
    }

    /// A requester with a connection of its own closes the connection when the answer is there.
    fn hang_up(&self, now: Instant, io: &mut dyn Io, socket: SocketId) {
        if self.shared.connections == Connections::New {
            io.close(now, socket);
        }
    }

    fn is_warmup(&self, query: u64, start: Instant) -> bool {
        query < self.shared.warmup_queries || start.as_ps() < self.shared.warmup.as_ps()
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        match heard {
            Heard::Start => self.schedule(io),
            Heard::Wake { .. } => {
                while let Some(&(at, query)) = self.arrivals().get(self.next).filter(|a| a.0 <= now) {
                    debug_assert!(at <= now);
                    self.next += 1;
                    self.ask_mlas(now, io, query);
                }
                self.schedule(io);
            }
            Heard::Message { socket, tag } => {
                let query = tag & ((1 << KIND_SHIFT) - 1);
                match (tag >> KIND_SHIFT) as u8 {
                    SUBQUERY => self.ask_workers(now, io, socket, query),
                    REQUEST => self.say(now, io, socket, RESPONSE, query),
                    RESPONSE => {
                        self.hang_up(now, io, socket);
                        let Some(s) = self.subqueries.get_mut(&query) else { return };
                        s.missing -= 1;
                        if s.missing == 0 {
                            self.answer_hla(now, io, query);
                        }
                    }
                    _ => {
                        self.hang_up(now, io, socket);
                        let Some(q) = self.queries.get_mut(&query) else { return };
                        q.missing -= 1;
                        if q.missing > 0 {
                            return;
                        }
                        let start = q.start;
                        self.queries.remove(&query);
                        self.finished += 1;
                        let warmup = self.is_warmup(query, start);
                        let id = named(self.shared.number, query);
                        self.done.push(QueryRecord { id, aggregator: self.host, start, end: now, warmup });
                    }
                }
            }
            Heard::Delivered { .. } | Heard::Told { .. } => {}
        }
    }

    fn remaining(&self) -> u64 {
        self.arrivals().len() as u64 - self.finished
    }

    fn take_queries(&mut self) -> Vec<QueryRecord> {
        std::mem::take(&mut self.done)
    }

    fn open_queries(&self) -> Vec<OpenQuery> {
        let open = |(&query, q): (&u64, &Query)| OpenQuery {
            id: named(self.shared.number, query),
            start: q.start,
            warmup: self.is_warmup(query, q.start),
        };
        self.queries.iter().map(open).collect()
    }
}
