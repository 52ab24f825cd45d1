//! A hotspot (802.1Qau's input-generated one; Crisan 2014, 2.6.1): sources offer one destination a load that changes.
//!
//! An application hands messages to its socket at intervals, whether or not earlier ones have left. Messages that the
//! network does not take wait in the socket, and their completion times include that wait.

use super::{BACKGROUND, Context, HOTSPOT, Heard, HostApp, Maker, connect, kept, named, service};
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::packet::Address;
use sluicenet_node::server::Io;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Hosts, Hotspot, HotspotBenchmark, Phase};
use std::sync::Arc;

/// Messages from a host to another one, at a load that changes.
struct Stream {
    settings: Arc<Hotspot>,
    kind: u8,
    /// Where in its own interval between messages the stream begins: streams are not in step.
    offset: f64,
    sent: u64,
    delivered: u64,
    /// Whether the last phase is over.
    over: bool,
}

impl Stream {
    /// The stream of the source with number `place` among `count`.
    fn new(settings: Arc<Hotspot>, kind: u8, (place, count): (usize, usize)) -> Stream {
        Stream { settings, kind, offset: place as f64 / count as f64, sent: 0, delivered: 0, over: false }
    }
}

struct Server {
    number: u8,
    host: HostId,
    streams: Vec<Stream>,
}

pub fn maker(cx: &Context<'_>, w: &Hotspot) -> Maker {
    let sources: Vec<HostId> = match &w.sources {
        Hosts::Count(n) => (0..cx.inner_hosts()).filter(|&h| h != w.destination).take(*n as usize).collect(),
        Hosts::List(list) => list.clone(),
    };
    let (number, settings) = (cx.number, Arc::new(w.clone()));
    Box::new(move |host| {
        let place = sources.iter().position(|&s| s == host)?;
        let stream = Stream::new(settings.clone(), HOTSPOT, (place, sources.len()));
        Some(Box::new(Server { number, host, streams: vec![stream] }))
    })
}

/// Hot flows to one host, and a cold flow from every other.
pub fn benchmark(cx: &Context<'_>, w: &HotspotBenchmark) -> Maker {
    let (number, settings) = (cx.number, w.clone());
    let (hot, sources) = (Arc::new(w.hot()), w.hot_sources());
    Box::new(move |host| {
        let is_hot = sources.iter().position(|&s| s == host);
        let hot = is_hot.map(|place| Stream::new(hot.clone(), HOTSPOT, (place, sources.len())));
        let place = (host as usize, settings.hosts as usize);
        let cold = settings.cold(host).map(|cold| Stream::new(Arc::new(cold), BACKGROUND, place));
        let streams: Vec<Stream> = hot.into_iter().chain(cold).collect();
        (!streams.is_empty()).then(|| Box::new(Server { number, host, streams }) as Box<dyn HostApp>)
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
    fn schedule(&mut self, now: Instant, io: &mut dyn Io, index: usize) {
        let stream = &mut self.streams[index];
        let s = &stream.settings;
        match next(&s.phases, s.message.as_bytes(), stream.sent, stream.offset) {
            Some(at) => io.wake_at(at.max(now), named(self.number, index as u64)),
            None => stream.over = true,
        }
    }

    fn send(&mut self, now: Instant, io: &mut dyn Io, index: usize) {
        let stream = &mut self.streams[index];
        let s = stream.settings.clone();
        let port = service(self.number, index as u8);
        let ends = (Address::new(self.host, 0), Address::new(s.destination, 0));
        let socket = connect(now, io, ends, (port, port), s.priority, kept(s.transport, None));
        let label = FlowLabel { kind: stream.kind, query: None };
        io.send(now, socket, s.message.as_bytes(), named(self.number, index as u64), label);
        stream.sent += 1;
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        match heard {
            Heard::Start => (0..self.streams.len()).for_each(|index| self.schedule(now, io, index)),
            Heard::Wake { token } => {
                self.send(now, io, token as usize);
                self.schedule(now, io, token as usize);
            }
            Heard::Delivered { tag } => self.streams[tag as usize].delivered += 1,
            _ => {}
        }
    }

    fn remaining(&self) -> u64 {
        // The clock is work too: a phase of silence does not end the run.
        self.streams.iter().map(|stream| stream.sent - stream.delivered + !stream.over as u64).sum()
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
