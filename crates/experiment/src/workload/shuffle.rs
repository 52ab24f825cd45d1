//! A shuffle (Al-Fares 2012, 4.4.3): every host sends to every other, in an order of its own, a few at a time.
//!
//! All messages of one host are a query, which ends when all of them have arrived. So the longest query is the
//! shuffle's time, and the mean is that of a host.

use super::{Context, Heard, HostApp, Maker, OpenQuery, Ports, SHUFFLE, connect, fresh, named, service};
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::packet::Address;
use sluicenet_node::server::{Io, QueryRecord};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::Shuffle;
use std::sync::Arc;

struct Shared {
    number: u8,
    seed: u64,
    settings: Shuffle,
    warmup: Duration,
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    /// Remaining receivers, the next one last.
    left: Vec<HostId>,
    under_way: u32,
    done: Option<QueryRecord>,
    is_over: bool,
    ports: Ports,
}

pub fn maker(cx: &Context<'_>, w: &Shuffle) -> Maker {
    let shared =
        Arc::new(Shared { number: cx.number, seed: cx.seed(), settings: w.clone(), warmup: cx.scenario.warmup });
    Box::new(move |host| {
        (host < shared.settings.hosts).then(|| {
            let left = shuffle_order(shared.seed, shared.number, host, shared.settings.hosts);
            let shared = shared.clone();
            Box::new(Server { shared, host, left, under_way: 0, done: None, is_over: false, ports: Ports::default() })
                as Box<dyn HostApp>
        })
    })
}

/// The other hosts, of `hosts` in all, in the order of `host`; the first receiver is last.
pub fn shuffle_order(seed: u64, number: u8, host: HostId, hosts: u32) -> Vec<HostId> {
    let mut rng = Rng::from_words(&[seed, 0x5348_5546, number as u64, host as u64]);
    let mut others: Vec<HostId> = (0..hosts).filter(|&h| h != host).collect();
    rng.shuffle(&mut others);
    others
}

impl Server {
    fn query(&self) -> OpenQuery {
        let start = Instant(self.shared.settings.start.as_ps());
        let id = named(self.shared.number, self.host.into());
        OpenQuery { id, start, warmup: start.as_ps() < self.shared.warmup.as_ps() }
    }

    fn send_next(&mut self, now: Instant, io: &mut dyn Io) {
        let shared = self.shared.clone();
        let s = &shared.settings;
        while self.under_way < s.at_a_time
            && let Some(dst) = self.left.pop()
        {
            self.under_way += 1;
            let ends = (Address::new(self.host, 0), Address::new(dst, 0));
            let ports = (self.ports.next(), service(shared.number, 0));
            let socket = connect(now, io, ends, ports, s.priority, fresh(s.transport, None));
            let label = FlowLabel { kind: SHUFFLE, query: Some(named(shared.number, self.host.into())) };
            io.send(now, socket, s.bytes.as_bytes(), named(shared.number, dst.into()), label);
            if s.transport.connects() {
                io.close(now, socket);
            }
        }
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        match heard {
            Heard::Start => {
                io.wake_at(Instant(self.shared.settings.start.as_ps()), named(self.shared.number, 0));
            }
            Heard::Wake { .. } => self.send_next(now, io),
            Heard::Delivered { .. } => {
                self.under_way = self.under_way.saturating_sub(1);
                self.send_next(now, io);
                if self.under_way == 0 && !self.is_over {
                    let OpenQuery { id, start, warmup } = self.query();
                    self.done = Some(QueryRecord { id, aggregator: self.host, start, end: now, warmup });
                    self.is_over = true;
                }
            }
            _ => {}
        }
    }

    fn remaining(&self) -> u64 {
        self.left.len() as u64 + u64::from(self.under_way)
    }

    fn take_queries(&mut self) -> Vec<QueryRecord> {
        self.done.take().into_iter().collect()
    }

    fn open_queries(&self) -> Vec<OpenQuery> {
        if self.is_over { Vec::new() } else { vec![self.query()] }
    }
}
