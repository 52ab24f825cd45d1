//! Background traffic (Crisan 2014, 2.5.5.1, 3.3): flows from every server to random others.

use super::{BACKGROUND, Context, Heard, Maker, Ports, Share, connect, fresh, kept, named, service};
use crate::scenario::{Background, Transport};
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::packet::Address;
use sluicenet_node::server::Core;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use std::sync::Arc;

struct Shared {
    number: u8,
    hosts: u32,
    vm: u8,
    intra: f64,
    settings: Background,
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    chassis: core::ops::Range<HostId>,
    rng: Rng,
    ports: Ports,
}

pub(crate) fn maker(cx: &Context<'_>, w: &Background) -> Maker {
    let shared = Arc::new(Shared {
        number: cx.number,
        hosts: cx.inner_hosts(),
        vm: w.vm as u8,
        intra: w.intra_probability(),
        settings: w.clone(),
    });
    let (plan, seed) = (cx.plan.clone(), cx.seed());
    Box::new(move |host| {
        (host < shared.hosts).then(|| {
            Box::new(Server {
                host,
                chassis: plan.chassis(host, shared.settings.chassis as u8),
                rng: Rng::from_words(&[seed, 0x4247, shared.number as u64, host as u64]),
                ports: Ports::default(),
                shared: shared.clone(),
            }) as Box<dyn Share>
        })
    })
}

impl Server {
    /// A destination: within the chassis with the probability the ratio gives, never itself.
    fn destination(&mut self) -> Option<HostId> {
        let inside = self.chassis.len() as u64 - 1;
        let outside = self.shared.hosts as u64 - 1 - inside;
        let stay = outside == 0 || inside > 0 && self.rng.unit_f64() < self.shared.intra;
        let draw = self.rng.below(if stay { inside } else { outside }.max(1)) as u32;
        if stay {
            (inside > 0).then(|| self.chassis.start + draw + (self.chassis.start + draw >= self.host) as u32)
        } else {
            Some(if draw < self.chassis.start { draw } else { draw + self.chassis.len() as u32 })
        }
    }

    fn schedule(&mut self, now: Instant, io: &mut Core) {
        let s = &self.shared.settings;
        let pause = s.inter_arrival.sample(self.rng.next_u64()).as_ps() as f64 / s.load;
        io.wake_at(now.saturating_add(Duration(pause as u64)), named(self.shared.number, 0));
    }

    fn start_flow(&mut self, now: Instant, io: &mut Core) {
        let Some(dst) = self.destination() else { return };
        let shared = self.shared.clone();
        let s = &shared.settings;
        let bytes = s.flow_size.sample(self.rng.next_u64()).as_bytes().max(1);
        let port = service(shared.number, 0);
        let (sport, how) = match s.transport {
            Transport::Tcp => (self.ports.next(), fresh(s.transport, None)),
            Transport::Udp => (port, kept(s.transport, None)),
        };
        let ends = (Address::new(self.host, shared.vm), Address::new(dst, shared.vm));
        let socket = connect(now, io, ends, (sport, port), s.priority, how);
        io.send(now, socket, bytes, named(shared.number, 0), FlowLabel { kind: BACKGROUND, query: None });
        if s.transport == Transport::Tcp {
            io.close(now, socket);
        }
    }
}

impl Share for Server {
    fn handle(&mut self, now: Instant, io: &mut Core, heard: Heard) {
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
