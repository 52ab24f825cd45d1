//! What a run writes down.

use core::fmt;
use serde::Serialize;
use sluicenet_proto::time::Duration;

use super::{Counts, Hosts};
use crate::error::{Result, Warning};
use crate::setting::{Kind, Section};
use crate::settings;
use crate::tree::{Node, Value};
use crate::units::POSITIVE_TIME;

/// Ports by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub enum PortSelector {
    /// A host's port: `host 3`.
    Host(u32),
    /// Every port of a switch: `switch 2`.
    Switch(u32),
    /// One port of a switch: `switch 2 port 5`.
    SwitchPort(u32, u32),
}

impl fmt::Display for PortSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSelector::Host(h) => write!(f, "host {h}"),
            PortSelector::Switch(s) => write!(f, "switch {s}"),
            PortSelector::SwitchPort(s, p) => write!(f, "switch {s} port {p}"),
        }
    }
}

impl From<PortSelector> for String {
    fn from(p: PortSelector) -> String {
        p.to_string()
    }
}

/// How long samples wait in memory, and how many may.
const EPOCH: Duration = Duration::from_us(500);
const SAMPLES_MAX: u64 = 1 << 22;

settings! {
    /// what a run writes down
    pub model struct Record in "record" (s, counts: &Counts) {
        /// one row for each flow; default true
        flows: bool = true,
        /// one row for each query; default true
        queries: bool = true,
        /// one row for each port; default true
        ports: bool = true,
        /// interval of queue samples; default no samples
        queues: Option<Duration> [POSITIVE_TIME],
        /// ports with sampled queues, as ["host 3", "switch 2 port 5"]; default all
        queue_ports: Vec<PortSelector> as (Kind::Ports) = selected(s, "queue_ports", counts)?,
        /// interval of TCP samples, taken at the ends of epochs of 500 us; default no samples
        tcp: Option<Duration> [POSITIVE_TIME],
        /// hosts with sampled connections: a count (the first hosts) or a list; default all
        tcp_hosts: Option<Hosts> as (Kind::Hosts) = Hosts::read(s, "tcp_hosts", counts)?,
        /// interval of samples of rate limiters, taken at the ends of epochs of 500 us; default no samples
        #[serde(skip_serializing_if = "Option::is_none")]
        limiters: Option<Duration> [POSITIVE_TIME],
        /// one row for each pause; default false
        pauses: bool = false,
        /// also write comma-separated files; default false
        csv: bool = false,
        /// the ports whose frames are captured
        pcapng: Vec<PortSelector> as (Kind::Ports) = selected(s, "pcapng", counts)?,
        /// the most rows of a part file
        // A few MiB of a table.
        part_rows: u32 [1..=1 << 30] = 1 << 20,
    }
}

impl Record {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>, counts: &Counts, warn: &mut Vec<Warning>) -> Result<()> {
        for (key, of, is_sampled) in
            [("queue_ports", "queues", self.queues.is_some()), ("tcp_hosts", "tcp", self.tcp.is_some())]
        {
            if s.has(key) && !is_sampled {
                let (file, line) = s.line(key);
                warn.push(Warning { file, line, message: format!("`{key}` has no effect without `{of}`") });
            }
        }
        let Some(interval) = self.queues else { return Ok(()) };
        let ports_of = |p: &PortSelector| match p {
            PortSelector::Switch(_) => u64::from(counts.ports / counts.switches.max(1)),
            PortSelector::Host(_) | PortSelector::SwitchPort(..) => 1,
        };
        let sampled = match self.queue_ports.len() {
            0 => u64::from(counts.ports),
            _ => self.queue_ports.iter().map(ports_of).sum(),
        };
        // Samples so close would not fit into memory while they wait to be written.
        let count = u128::from(sampled) * u128::from(EPOCH.as_ps()) / u128::from(interval.as_ps());
        if count <= u128::from(SAMPLES_MAX) {
            return Ok(());
        }
        Err(s
            .error("queues", format!("{count} samples in every {} us are too many", EPOCH.as_us()))
            .expected(format!("at most {SAMPLES_MAX}"))
            .hint("sample less often, or name fewer in `queue_ports`"))
    }
}

/// A list of ports by name.
pub(super) fn selected(s: &Section<'_>, name: &str, counts: &Counts) -> Result<Vec<PortSelector>> {
    let Some(node) = s.get(name) else { return Ok(Vec::new()) };
    let Value::List(list) = &node.value else { return Err(s.wrong(node, "a list of ports")) };
    list.iter().map(|node| port_of(s, node, counts)).collect()
}

/// A port by name: `host N`, `switch N`, `switch N port P`.
pub(super) fn port_of(s: &Section<'_>, node: &Node, counts: &Counts) -> Result<PortSelector> {
    const FORMS: &str = "\"host 3\", \"switch 2\" or \"switch 2 port 5\"";
    let Value::Text(text) = &node.value else { return Err(s.wrong(node, FORMS)) };
    let words: Vec<&str> = text.split_whitespace().take(5).collect();
    let none = || {
        let shown: String = text.chars().take(60).collect();
        s.doc.error(node.span, format!("`{shown}` names no port")).expected(FORMS)
    };
    let number = |word: &str, what: &str, count: u32| match word.parse::<u32>() {
        Ok(n) if n < count => Ok(n),
        Ok(n) if what == "port" => Err(s
            .doc
            .error(node.span, format!("there is no port {n}: no switch has more than {count}, counted from 0"))),
        Ok(n) => Err(s.doc.error(node.span, format!("there is no {what} {n}: {count} in all, counted from 0"))),
        Err(_) => Err(none()),
    };
    Ok(match words[..] {
        ["host", n] => PortSelector::Host(number(n, "host", counts.endpoints())?),
        ["switch", n] => PortSelector::Switch(number(n, "switch", counts.switches)?),
        ["switch", n, "port", p] => {
            // Which ports a switch has is known when the network is built; a bound holds already.
            PortSelector::SwitchPort(number(n, "switch", counts.switches)?, number(p, "port", counts.ports)?)
        }
        _ => return Err(none()),
    })
}
