//! The hotspot benchmark of 802's task groups (Crisan 2014, 2.7.1).

use super::{DSCP_MAX, Hotspot, PRIORITY, Transport, World};
use crate::error::Result;
use crate::files::Files;
use crate::model::{Phase, PortSelector, Slowdown};
use crate::setting::{Kind, Section};
use crate::units::{Bytes, POSITIVE_SIZE};
use crate::{HOST_MAX, choices, settings};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

choices! {
    /// The cause of a hotspot.
    pub enum Generated {
        /// The sources offer more than the receiver's link carries.
        Input = "input",
        /// The receiver's link becomes slower than the load.
        Output = "output",
    }
}

settings! {
    /// the hotspot benchmark: hot flows to one host, and cold flows among all others
    pub model struct HotspotBenchmark in kind "hotspot-benchmark" (s, world: &World<'_>, _files: &mut Files) {
        /// the cause: the sources offer more than the receiver's link carries, or the link becomes slower than the load
        generated: Generated,
        /// offered load over the rate at which the hotspot drains: mild below 2, moderate to 10, severe above
        severity: f64 [1.0..=1000.0],
        /// the part of the other hosts that send hot flows, spread evenly: small below 0.1, medium 0.2 to 0.6, large above
        /// 0.9
        degree: f64 [1e-6..=1.0],
        /// the receiver of hot flows; default the last host
        destination: u32 [0..=HOST_MAX] = world.counts.hosts.saturating_sub(1),
        /// output: the load of all hot flows together, as a part of the receiver's link; default 0.9
        load: f64 [1e-6..=1.0] = 0.9,
        /// the load of each host's cold flow, which goes to the host half of the hosts further; default none
        cold: Rate = Rate(0),
        /// when the hotspot begins; default 0
        start: Duration = Duration::ZERO,
        /// when it ends; default the scenario's duration
        let until: Option<Duration>,
        /// When it ends.
        #[serde(serialize_with = "crate::units::canonical")]
        field until: Duration = until.or(world.duration).unwrap_or_default(),
        /// When the cold flows end.
        #[serde(serialize_with = "crate::units::canonical")]
        field end: Duration = world.duration.ok_or_else(|| {
            s.error_here("cold flows never end").hint("set scenario.duration")
        })?,
        /// The rate of the receiver's link.
        #[serde(serialize_with = "crate::units::canonical")]
        field link: Rate = Rate(world.fastest_host_link()),
        /// The number of hosts.
        #[serde(serialize_with = "crate::units::canonical")]
        field hosts: u32 = world.counts.hosts,
        /// bytes that an application writes at a time; default 10 KB
        message: Bytes [POSITIVE_SIZE] = Bytes(10_000),
        /// the transport of all flows; default udp
        transport: Transport = Transport::Udp,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl HotspotBenchmark {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        if self.hosts < 3 {
            return Err(s.error_here("hot and cold flows need three hosts"));
        }
        world.check_host(s, "destination", self.destination, self.priority)?;
        world.check_transport(s, self.transport, 1 << self.priority)?;
        if self.destination >= self.hosts {
            return Err(s.error("destination", format!("host {} is external", self.destination)));
        }
        if self.until <= self.start {
            return Err(s.error_at(&["until", "start"], "the hotspot ends before it begins"));
        }
        if self.until > self.end {
            return Err(s.error("until", "the hotspot ends after the run").expected("at most scenario.duration"));
        }
        let link = self.link.as_bps() as f64;
        if self.cold.as_bps() as f64 > link {
            return Err(s.error("cold", "a host offers more than its link carries"));
        }
        if self.generated == Generated::Input && self.severity > f64::from(self.sources()) {
            let message =
                format!("{} sources cannot offer {} times what one link carries", self.sources(), self.severity);
            return Err(s.error_at(&["severity", "degree"], message).hint("a larger degree has more sources"));
        }
        let drain = self.drain_bps();
        if self.generated == Generated::Output && drain < 1_000_000 {
            let message = format!("the hotspot would drain at {drain} b/s");
            return Err(s.error_at(&["severity", "load"], message).expected("at least 1 Mb/s"));
        }
        if self.generated == Generated::Output && drain >= self.link.as_bps() {
            let error = s.error_at(&["severity", "load"], "the receiver's link would be no slower");
            return Err(error.hint("raise `severity`, or lower `load`"));
        }
        Ok(())
    }

    /// The number of hosts that send hot flows.
    pub fn sources(&self) -> u32 {
        let others = self.hosts - 1;
        ((self.degree * f64::from(others)).round() as u32).clamp(1, others)
    }

    /// The hosts that send hot flows.
    pub fn hot_sources(&self) -> Vec<u32> {
        let (others, count) = (u64::from(self.hosts - 1), u64::from(self.sources()));
        (0..count).map(|i| self.other((i * others / count) as u32)).collect()
    }

    /// The receiver of a host's cold flow.
    pub fn cold_receiver(&self, host: u32) -> u32 {
        let others = self.hosts - 1;
        let place = host - u32::from(host > self.destination);
        self.other((place + others.div_ceil(2)) % others)
    }

    /// The host with this number among those that are not the receiver.
    fn other(&self, place: u32) -> u32 {
        place + u32::from(place >= self.destination)
    }

    /// Bits a second that an output-generated hotspot drains.
    fn drain_bps(&self) -> u64 {
        (self.load * self.link.as_bps() as f64 / self.severity) as u64
    }

    /// The hot flows.
    pub fn hot(&self) -> Hotspot {
        let part = match self.generated {
            Generated::Input => self.severity,
            Generated::Output => self.load,
        };
        let rate = Rate((part * self.link.as_bps() as f64 / f64::from(self.sources())) as u64);
        let silent = Phase { until: self.start, rate: Rate(0) };
        let phases = match self.generated {
            Generated::Input if self.start > Duration::ZERO => vec![silent, Phase { until: self.until, rate }],
            Generated::Input => vec![Phase { until: self.until, rate }],
            Generated::Output => vec![Phase { until: self.end, rate }],
        };
        Hotspot { sources: super::Hosts::List(self.hot_sources()), phases, ..self.flow_to(self.destination) }
    }

    /// The cold flow of a host, if it has one.
    pub fn cold(&self, host: u32) -> Option<Hotspot> {
        let sends = self.cold.as_bps() > 0 && host < self.hosts && host != self.destination;
        sends.then(|| Hotspot {
            sources: super::Hosts::List(vec![host]),
            phases: vec![Phase { until: self.end, rate: self.cold }],
            ..self.flow_to(self.cold_receiver(host))
        })
    }

    fn flow_to(&self, destination: u32) -> Hotspot {
        let (message, transport, priority) = (self.message, self.transport, self.priority);
        Hotspot { sources: super::Hosts::Count(0), destination, message, phases: Vec::new(), transport, priority }
    }

    /// The slower link of an output-generated hotspot.
    pub(crate) fn slowdown(&self) -> Option<Slowdown> {
        (self.generated == Generated::Output).then(|| Slowdown {
            port: PortSelector::Host(self.destination),
            rate: Rate(self.drain_bps()),
            at: self.start,
            until: Some(self.until),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;
    use crate::model::Workload;

    fn scenario(keys: &str) -> Result<Scenario> {
        let text = format!(
            "[scenario]\nduration = \"50 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 9\n[[workload]]\n\
             kind = \"hotspot-benchmark\"\n{keys}\n"
        );
        Ok(Scenario::parse(&text, "t")?.scenario)
    }

    fn benchmark(keys: &str) -> HotspotBenchmark {
        match scenario(keys).unwrap().workloads.remove(0) {
            Workload::HotspotBenchmark(w) => w,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sources_are_spread_and_cold_flows_avoid_the_receiver() {
        let w = benchmark("generated = \"input\"\nseverity = 2.0\ndegree = 0.5\ndestination = 4\ncold = \"1 Gb/s\"");
        assert_eq!(w.hot_sources(), [0, 2, 5, 7]);
        assert!((0..9).filter(|&h| h != 4).all(|h| ![4, h].contains(&w.cold_receiver(h))));
        let receivers: std::collections::BTreeSet<u32> =
            (0..9).filter(|&h| h != 4).map(|h| w.cold_receiver(h)).collect();
        assert_eq!(receivers.len(), 8, "each host receives one cold flow");
        assert!(w.cold(4).is_none() && w.cold(5).unwrap().destination == w.cold_receiver(5));
        // Twice 10 Gb/s from four sources.
        assert_eq!(w.hot().phases, [Phase { until: Duration::from_ms(50), rate: Rate::gbps(5) }]);
    }

    #[test]
    fn an_output_generated_hotspot_is_a_slower_link() {
        let s = scenario(
            "generated = \"output\"\nseverity = 3.0\ndegree = 1.0\nload = 0.6\nstart = \"10 ms\"\nuntil = \"30 ms\"",
        )
        .unwrap();
        let slow = &s.slowdowns[0];
        assert_eq!((slow.port, slow.rate), (PortSelector::Host(8), Rate::gbps(2)));
        assert_eq!((slow.at, slow.until), (Duration::from_ms(10), Some(Duration::from_ms(30))));
    }

    #[test]
    fn settings_that_make_no_hotspot_are_refused() {
        let error = |keys: &str| scenario(keys).unwrap_err().to_string();
        let of = |keys: &str| format!("generated = \"input\"\nseverity = 2.0\ndegree = 0.5\n{keys}");
        let few = error("generated = \"input\"\nseverity = 5.0\ndegree = 0.5");
        assert!(few.contains("4 sources cannot offer 5 times") && few.contains("larger degree"), "{few}");
        let late = error(&of("until = \"51 ms\""));
        assert!(late.contains("ends after the run"), "{late}");
        let never = error(&of("start = \"20 ms\"\nuntil = \"20 ms\""));
        assert!(never.contains("ends before it begins"), "{never}");
        assert!(error(&of("destination = 9")).contains("there is no host 9"));
        assert!(error(&of("cold = \"11 Gb/s\"")).contains("more than its link"));
        let slow = error("generated = \"output\"\nseverity = 1000.0\ndegree = 0.5\nload = 0.05");
        assert!(slow.contains("would drain at 500000 b/s"), "{slow}");
        let usual = error("generated = \"output\"\nseverity = 1.0\ndegree = 0.5\nload = 1.0");
        assert!(usual.contains("would be no slower"), "{usual}");
    }
}
