//! Background traffic (Crisan 2014, 2.5.5.1, 3.3): flows from every server to random others.

use super::{BACKGROUND, Context, Heard, HostApp, Maker, Ports, connect, fresh, kept, named, service};
use crate::build::Plan;
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::packet::Address;
use sluicenet_node::server::Io;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Background, Transport};
use std::sync::Arc;

/// Random draws of a server for its background flows, the same in every world.
#[derive(Clone, Debug)]
pub struct Draws {
    host: HostId,
    hosts: u32,
    chassis: core::ops::Range<HostId>,
    settings: Arc<Background>,
    rng: Rng,
}

impl Draws {
    /// The draws of `host` for the workload of this number.
    pub fn new(seed: u64, number: u8, plan: &Plan, host: HostId, settings: &Arc<Background>) -> Draws {
        Draws {
            host,
            hosts: plan.hosts() - plan.external(),
            chassis: plan.chassis(host, settings.chassis as u8),
            settings: settings.clone(),
            rng: Rng::from_words(&[seed, 0x4247, number as u64, host as u64]),
        }
    }

    /// How long it waits before the next flow.
    pub fn pause(&mut self) -> Duration {
        let pause = self.settings.inter_arrival.sample(self.rng.next_u64()).as_ps() as f64 / self.settings.load;
        Duration(pause as u64)
    }

    /// Where the next flow goes and how many bytes it has; nowhere where there is no other server.
    pub fn flow(&mut self) -> Option<(HostId, u64)> {
        let dst = self.destination()?;
        Some((dst, self.settings.flow_size.sample(self.rng.next_u64()).as_bytes().max(1)))
    }

    /// A destination: within the chassis with the probability the ratio gives, never itself.
    fn destination(&mut self) -> Option<HostId> {
        let inside = self.chassis.len() as u64 - 1;
        let outside = self.hosts as u64 - 1 - inside;
        let stay = outside == 0 || inside > 0 && self.rng.unit_f64() < self.settings.intra_probability();
        let draw = self.rng.below(if stay { inside } else { outside }.max(1)) as u32;
        if stay {
            (inside > 0).then(|| self.chassis.start + draw + (self.chassis.start + draw >= self.host) as u32)
        } else {
            Some(if draw < self.chassis.start { draw } else { draw + self.chassis.len() as u32 })
        }
    }
}

struct Server {
    number: u8,
    host: HostId,
    settings: Arc<Background>,
    draws: Draws,
    ports: Ports,
}

pub(crate) fn maker(cx: &Context<'_>, w: &Background) -> Maker {
    let (plan, seed, hosts, number) = (cx.plan.clone(), cx.seed(), cx.inner_hosts(), cx.number);
    let settings = Arc::new(w.clone());
    Box::new(move |host| {
        let sends = host < hosts && settings.sends(plan.chassis(host, settings.chassis as u8), host);
        sends.then(|| {
            let draws = Draws::new(seed, number, &plan, host, &settings);
            let settings = settings.clone();
            Box::new(Server { number, host, settings, draws, ports: Ports::default() }) as Box<dyn HostApp>
        })
    })
}

impl Server {
    fn schedule(&mut self, now: Instant, io: &mut dyn Io) {
        io.wake_at(now.saturating_add(self.draws.pause()), named(self.number, 0));
    }

    fn start_flow(&mut self, now: Instant, io: &mut dyn Io) {
        let Some((dst, bytes)) = self.draws.flow() else { return };
        let s = self.settings.clone();
        let port = service(self.number, 0);
        let (sport, how) = match s.transport {
            Transport::Tcp | Transport::TcpLight | Transport::Roce => (self.ports.next(), fresh(s.transport, None)),
            Transport::Udp => (port, kept(s.transport, None)),
        };
        let ends = (Address::new(self.host, s.vm as u8), Address::new(dst, s.vm as u8));
        let socket = connect(now, io, ends, (sport, port), s.priority, how);
        io.send(now, socket, bytes, named(self.number, 0), FlowLabel { kind: BACKGROUND, query: None });
        if s.transport.connects() {
            io.close(now, socket);
        }
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        match heard {
            Heard::Start => self.schedule(now, io),
            Heard::Wake { .. } => {
                self.start_flow(now, io);
                self.schedule(now, io);
            }
            _ => {}
        }
    }

    fn remaining(&self) -> u64 {
        0
    }
}
