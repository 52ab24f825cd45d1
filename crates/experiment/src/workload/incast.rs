//! Incast: many send to one at once, round after round.

use super::{Context, Heard, HostApp, INCAST, Maker, OpenQuery, Ports, carried, connect, fresh, kept, named, service};
use crate::build::{Ideal, Plan};
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::packet::Address;
use sluicenet_node::server::{Io, QueryRecord};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Connections, Hosts, Incast, Scenario, Workload};
use std::sync::Arc;

struct Shared {
    number: u8,
    settings: Incast,
    senders: Vec<HostId>,
    warmup: Duration,
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    /// Rounds that ended, at the receiver.
    round: u64,
    started: Instant,
    missing: usize,
    done: Vec<QueryRecord>,
    ports: Ports,
}

/// The hosts that take part: senders, in order.
pub fn senders(hosts: u32, w: &Incast) -> Vec<HostId> {
    match &w.senders {
        Hosts::Count(n) => (0..hosts).filter(|&h| h != w.receiver).take(*n as usize).collect(),
        Hosts::List(l) => l.clone(),
    }
}

/// How long a round of the scenario's first incast takes when the receiver's link never rests from the first frame that
/// can reach it to the last; [`Ideal::many_to_one`]. A handshake, where rounds have connections of their own, is extra.
pub fn bound(scenario: &Scenario, plan: &Plan, ideal: &Ideal) -> Option<Duration> {
    scenario.workloads.iter().find_map(|w| match w {
        Workload::Incast(w) => {
            let senders = senders(plan.hosts() - plan.external(), w);
            Some(ideal.of_priority(w.priority).many_to_one(
                &senders,
                w.receiver,
                w.bytes.as_bytes(),
                carried(w.transport),
            ))
        }
        _ => None,
    })
}

pub fn maker(cx: &Context<'_>, w: &Incast) -> Maker {
    let shared = Arc::new(Shared {
        number: cx.number,
        settings: w.clone(),
        senders: senders(cx.inner_hosts(), w),
        warmup: cx.scenario.warmup,
    });
    Box::new(move |host| {
        (host == shared.settings.receiver || shared.senders.contains(&host)).then(|| {
            Box::new(Server {
                host,
                round: 0,
                started: Instant(shared.settings.start.as_ps()),
                missing: shared.senders.len(),
                done: Vec::new(),
                ports: Ports::default(),
                shared: shared.clone(),
            }) as Box<dyn HostApp>
        })
    })
}

impl Server {
    fn is_receiver(&self) -> bool {
        self.host == self.shared.settings.receiver
    }

    /// Whether the round under way began before measurement does.
    fn is_warmup(&self) -> bool {
        self.started.as_ps() < self.shared.warmup.as_ps()
    }

    fn send(&mut self, now: Instant, io: &mut dyn Io, round: u64) {
        let shared = self.shared.clone();
        let s = &shared.settings;
        let port = service(shared.number, 0);
        let (sport, how) = match s.connections {
            Connections::Persistent => (port, kept(s.transport, None)),
            Connections::New => (self.ports.next(), fresh(s.transport, None)),
        };
        let ends = (Address::new(self.host, 0), Address::new(s.receiver, 0));
        let socket = connect(now, io, ends, (sport, port), s.priority, how);
        let label = FlowLabel { kind: INCAST, query: Some(named(shared.number, round)) };
        io.send(now, socket, s.bytes.as_bytes(), named(shared.number, round), label);
        if s.connections == Connections::New && s.transport.connects() {
            io.close(now, socket);
        }
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        let shared = self.shared.clone();
        match heard {
            Heard::Start if !self.is_receiver() => {
                io.wake_at(Instant(shared.settings.start.as_ps()), named(shared.number, 0));
            }
            Heard::Wake { token } => self.send(now, io, token),
            // The receiver says when the next round begins; where the gap is shorter than a message takes, it begins late.
            Heard::Told { words } => io.wake_at(Instant(words[1]).max(now), named(shared.number, words[0])),
            Heard::Message { .. } if self.is_receiver() => {
                self.missing -= 1;
                if self.missing > 0 {
                    return;
                }
                let warmup = self.is_warmup();
                let (id, start) = (named(shared.number, self.round), self.started);
                self.done.push(QueryRecord { id, aggregator: self.host, start, end: now, warmup });
                self.round += 1;
                if self.round == shared.settings.rounds {
                    return;
                }
                self.missing = shared.senders.len();
                self.started = now + shared.settings.gap;
                for &sender in &shared.senders {
                    let words = [named(shared.number, self.round), self.started.as_ps(), 0];
                    io.tell(now, Address::new(self.host, 0), Address::new(sender, 0), words);
                }
            }
            _ => {}
        }
    }

    fn remaining(&self) -> u64 {
        if self.is_receiver() { self.shared.settings.rounds - self.round } else { 0 }
    }

    fn take_queries(&mut self) -> Vec<QueryRecord> {
        std::mem::take(&mut self.done)
    }

    fn open_queries(&self) -> Vec<OpenQuery> {
        if self.remaining() == 0 {
            return Vec::new();
        }
        let id = named(self.shared.number, self.round);
        vec![OpenQuery { id, start: self.started, warmup: self.is_warmup() }]
    }
}
