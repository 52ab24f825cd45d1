//! A hotspot (802.1Qau's input-generated one; Crisan 2014, 2.6.1): sources offer one destination a load that changes.
//!
//! An application hands messages to its socket at intervals, whether or not earlier ones have left. Messages that the
//! network does not take wait in the socket, and their completion times include that wait.

use super::{Context, HOTSPOT, Heard, HostApp, Maker, connect, kept, named, service};
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::packet::Address;
use sluicenet_node::server::Io;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Hosts, Hotspot, Phase};
use std::sync::Arc;

struct Shared {
    number: u8,
    settings: Hotspot,
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    /// Where in its own interval between messages a source begins: sources are not in step.
    offset: f64,
    sent: u64,
    delivered: u64,
    /// Whether the last phase is over.
    over: bool,
}

pub fn maker(cx: &Context<'_>, w: &Hotspot) -> Maker {
    let sources: Vec<HostId> = match &w.sources {
        Hosts::Count(n) => (0..cx.inner_hosts()).filter(|&h| h != w.destination).take(*n as usize).collect(),
        Hosts::List(list) => list.clone(),
    };
    let shared = Arc::new(Shared { number: cx.number, settings: w.clone() });
    Box::new(move |host| {
        let place = sources.iter().position(|&s| s == host)?;
        let offset = place as f64 / sources.len() as f64;
        Some(Box::new(Server { shared: shared.clone(), host, offset, sent: 0, delivered: 0, over: false }))
    })
}

/// When a source hands over its next message, having handed over `sent`; none after the last phase.
///
/// The load is integrated over the phases, so that a phase is not charged for the pace of the one before it.
fn next(phases: &[Phase], message: u64, sent: u64, offset: f64) -> Option<Instant> {
    let mut wanted = (sent as f64 + offset) * message as f64 * 8.0;
    let mut from = Duration::ZERO;
    for p in phases {
        let (rate, seconds) = (p.rate.as_bps() as f64, (p.until.as_ps() - from.as_ps()) as f64 * 1e-12);
        let bits = rate * seconds;
        if wanted < bits {
            return Some(Instant(from.as_ps() + (wanted / rate * 1e12) as u64));
        }
        wanted -= bits;
        from = p.until;
    }
    None
}

impl Server {
    fn schedule(&mut self, now: Instant, io: &mut dyn Io) {
        let s = &self.shared.settings;
        match next(&s.phases, s.message.as_bytes(), self.sent, self.offset) {
            Some(at) => io.wake_at(at.max(now), named(self.shared.number, 0)),
            None => self.over = true,
        }
    }

    fn send(&mut self, now: Instant, io: &mut dyn Io) {
        let shared = self.shared.clone();
        let s = &shared.settings;
        let port = service(shared.number, 0);
        let ends = (Address::new(self.host, 0), Address::new(s.destination, 0));
        let socket = connect(now, io, ends, (port, port), s.priority, kept(s.transport, None));
        let label = FlowLabel { kind: HOTSPOT, query: None };
        io.send(now, socket, s.message.as_bytes(), named(shared.number, 0), label);
        self.sent += 1;
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        match heard {
            Heard::Start => self.schedule(now, io),
            Heard::Wake { .. } => {
                self.send(now, io);
                self.schedule(now, io);
            }
            Heard::Delivered { .. } => self.delivered += 1,
            _ => {}
        }
    }

    fn remaining(&self) -> u64 {
        // The clock is work too: a phase of silence does not end the run.
        self.sent - self.delivered + !self.over as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::units::Rate;

    #[test]
    fn messages_follow_the_load() {
        let phase = |ms, gbps| Phase { until: Duration::from_ms(ms), rate: Rate::gbps(gbps) };
        let phases = [phase(1, 1), phase(2, 8), phase(3, 0), phase(4, 1)];
        let mut count = [0; 4];
        let mut sent = 0;
        let mut last = Instant::ZERO;
        while let Some(at) = next(&phases, 10_000, sent, 0.0) {
            assert!(at >= last, "{sent}");
            last = at;
            count[(at.as_ps() / 1_000_000_000) as usize] += 1;
            sent += 1;
        }
        // 1 Gb/s is 12.5 messages of 10 KB in a millisecond, 8 Gb/s is 100.
        assert_eq!(count, [13, 100, 0, 12]);
        assert_eq!(next(&phases, 10_000, 0, 0.5), Some(Instant(40_000_000)));
    }
}
