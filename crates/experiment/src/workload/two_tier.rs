//! Two-tier Partition/Aggregate (Crisan 2014, 4.5.1 to 4.5.3): aggregators ask workers directly.

use super::{
    Context, Heard, HostApp, Maker, OpenQuery, Ports, REQUEST, RESPONSE, connect, fresh, kept, named, role_vm, service,
};
use sluicenet_node::guest::{FlowLabel, SocketId};
use sluicenet_node::packet::Address;
use sluicenet_node::server::{Io, QueryRecord};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Connections, Distribution, Hosts, PartitionAggregate2, Scenario, Transport};
use std::collections::BTreeMap;
use std::sync::Arc;

const KIND_SHIFT: u32 = 48;
/// Bits of a query's number that count an aggregator's own; its place in the list of aggregators stands above.
const COUNT_BITS: u32 = 32;

struct Shared {
    number: u8,
    seed: u64,
    aggregators: Vec<Vm>,
    workers: Vec<Vm>,
    request: u64,
    response: u64,
    queries: u64,
    endless: bool,
    warmup_queries: u64,
    warmup: Duration,
    inter_arrival: Option<Distribution<Duration>>,
    connections: Connections,
    transport: Transport,
    priority: u8,
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    /// Its place among the aggregators, if it is one.
    aggregator: Option<u64>,
    rng: Rng,
    started: u64,
    finished: u64,
    open: BTreeMap<u64, (Instant, u32)>,
    done: Vec<QueryRecord>,
    ports: Ports,
}

/// A VM: its server and its number there.
pub type Vm = (HostId, u8);

/// The aggregators and the workers of a scenario's network with so many `hosts`.
pub fn roles(scenario: &Scenario, w: &PartitionAggregate2, hosts: u32) -> (Vec<Vm>, Vec<Vm>) {
    let vms = scenario.server.vms;
    let all = if w.among_vms { hosts * vms } else { hosts };
    let aggregators: Vec<u32> = match &w.aggregators {
        Hosts::Count(n) => (0..all).take(*n as usize).collect(),
        Hosts::List(l) => l.clone(),
    };
    let workers: Vec<u32> = match &w.workers {
        Hosts::Count(n) => (0..all).filter(|h| !aggregators.contains(h)).take(*n as usize).collect(),
        Hosts::List(l) => l.clone(),
    };
    let place =
        |role: u8| move |n: &u32| if w.among_vms { (n / vms, (n % vms) as u8) } else { (*n, role_vm(scenario, role)) };
    (aggregators.iter().map(place(0)).collect(), workers.iter().map(place(1)).collect())
}

/// Random stream for the times between the queries of an aggregator, the same in every world.
pub fn draws(seed: u64, number: u8, host: HostId) -> Rng {
    Rng::from_words(&[seed, 0x50_4132, number as u64, host as u64])
}

pub(crate) fn maker(cx: &Context<'_>, w: &PartitionAggregate2) -> Maker {
    let (aggregators, workers) = roles(cx.scenario, w, cx.inner_hosts());
    let shared = Arc::new(Shared {
        number: cx.number,
        seed: cx.seed(),
        request: w.request.as_bytes(),
        response: w.response.as_bytes(),
        queries: w.queries.unwrap_or(u64::MAX),
        endless: w.queries.is_none(),
        warmup_queries: w.warmup_queries,
        warmup: cx.scenario.warmup,
        inter_arrival: w.inter_arrival.clone(),
        connections: w.connections,
        transport: w.transport,
        priority: w.priority,
        aggregators,
        workers,
    });
    Box::new(move |host| {
        let aggregator = shared.aggregators.iter().position(|a| a.0 == host).map(|i| i as u64);
        if aggregator.is_none() && !shared.workers.iter().any(|w| w.0 == host) {
            return None;
        }
        Some(Box::new(Server {
            host,
            aggregator,
            rng: draws(shared.seed, shared.number, host),
            started: 0,
            finished: 0,
            open: BTreeMap::new(),
            done: Vec::new(),
            ports: Ports::default(),
            shared: shared.clone(),
        }))
    })
}

impl Server {
    fn ask(&mut self, now: Instant, io: &mut dyn Io) {
        let Some(aggregator) = self.aggregator.filter(|_| self.started < self.shared.queries) else { return };
        let shared = self.shared.clone();
        let query = aggregator << COUNT_BITS | self.started;
        self.started += 1;
        self.open.insert(query, (now, shared.workers.len() as u32));
        let own = shared.aggregators[aggregator as usize];
        for &(worker, vm) in &shared.workers {
            let (sport, how) = match shared.connections {
                Connections::Persistent => (service(shared.number, 0), kept(shared.transport, None)),
                Connections::New => (self.ports.next(), fresh(shared.transport, None)),
            };
            let ends = (Address::new(own.0, own.1), Address::new(worker, vm));
            let socket = connect(now, io, ends, (sport, service(shared.number, 0)), shared.priority, how);
            self.say(now, io, socket, REQUEST, query, shared.request);
        }
        self.schedule(now, io);
    }

    fn say(&self, now: Instant, io: &mut dyn Io, socket: SocketId, kind: u8, query: u64, bytes: u64) {
        let tag = named(self.shared.number, (kind as u64) << KIND_SHIFT | query);
        io.send(now, socket, bytes, tag, FlowLabel { kind, query: Some(named(self.shared.number, query)) });
    }

    fn schedule(&mut self, now: Instant, io: &mut dyn Io) {
        if let Some(d) = &self.shared.inter_arrival
            && self.started < self.shared.queries
        {
            io.wake_at(now.saturating_add(d.sample(self.rng.next_u64())), named(self.shared.number, 0));
        }
    }

    fn is_warmup(&self, query: u64, start: Instant) -> bool {
        let count = query & ((1 << COUNT_BITS) - 1);
        count < self.shared.warmup_queries || start.as_ps() < self.shared.warmup.as_ps()
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        match heard {
            Heard::Start if self.aggregator.is_some() => match self.shared.inter_arrival {
                Some(_) => self.schedule(now, io),
                None => self.ask(now, io),
            },
            Heard::Wake { .. } => self.ask(now, io),
            Heard::Message { socket, tag } => {
                let query = tag & ((1 << KIND_SHIFT) - 1);
                if (tag >> KIND_SHIFT) as u8 == REQUEST {
                    return self.say(now, io, socket, RESPONSE, query, self.shared.response);
                }
                if self.shared.connections == Connections::New {
                    io.close(now, socket);
                }
                let Some((start, missing)) = self.open.get_mut(&query) else { return };
                *missing -= 1;
                if *missing > 0 {
                    return;
                }
                let start = *start;
                self.open.remove(&query);
                self.finished += 1;
                let warmup = self.is_warmup(query, start);
                let id = named(self.shared.number, query);
                self.done.push(QueryRecord { id, aggregator: self.host, start, end: now, warmup });
                if self.shared.inter_arrival.is_none() {
                    self.ask(now, io);
                }
            }
            _ => {}
        }
    }

    fn remaining(&self) -> u64 {
        if self.aggregator.is_none() || self.shared.endless { 0 } else { self.shared.queries - self.finished }
    }

    fn take_queries(&mut self) -> Vec<QueryRecord> {
        std::mem::take(&mut self.done)
    }

    fn open_queries(&self) -> Vec<OpenQuery> {
        let open = |(&query, &(start, _)): (&u64, &(Instant, _))| OpenQuery {
            id: named(self.shared.number, query),
            start,
            warmup: self.is_warmup(query, start),
        };
        self.open.iter().map(open).collect()
    }
}
