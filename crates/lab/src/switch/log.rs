//! The log: what happens seldom at once, what may happen often once a second at most, with how often it did.

use super::config::LogFormat;
use super::daemon::Daemon;
use super::status::{PortStatus, Status};
use sluicenet_dataplane::engine::{Event, Happened};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, level_filters::LevelFilter, warn};

/// How often counters are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Writes the log of this process to stderr from here on; only warnings when `quiet`.
pub fn start(format: LogFormat, quiet: bool) {
    let level = if quiet { LevelFilter::WARN } else { LevelFilter::INFO };
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // A process has one log: whoever started it first keeps it.
    let _ = match format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
    };
}

/// Connections that were refused since it was last said: where, why, how many.
#[derive(Debug, Default)]
pub(super) struct Log {
    refused: Mutex<BTreeMap<(&'static str, String), u64>>,
}

impl Log {
    /// A connection was refused.
    pub fn count(&self, place: &'static str, reason: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry((place, reason.to_owned())).or_default() += 1;
    }

    /// Says what happens until the switch has stopped.
    pub fn watch(&self, daemon: &Daemon, events: &Receiver<Event>) {
        let mut seen = Seen::default();
        let mut next = Instant::now() + EVERY;
        loop {
            match events.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Event { port, what }) => match what {
                    Happened::Broken(reason) => {
                        warn!(port, reason, "port broken");
                        daemon.broke(&port, reason);
                    }
                    Happened::Isolated => warn!(port, "port isolated"),
                    Happened::Restored => info!(port, "port restored"),
                    Happened::AgentLost => warn!(port, "agent lost"),
                },
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    next = Instant::now() + EVERY;
                    daemon.try_again();
                    if let Ok(status) = daemon.status() {
                        seen.say(&status);
                    }
                    let refused = std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner));
                    for ((place, reason), connections) in refused {
                        warn!(place, reason, connections, "connection refused");
                    }
                }
            }
        }
    }
}

/// Drops that were spoken of: by port, "from" it or "to" it, and reason; and sockets that were isolated, by port.
#[derive(Debug, Default)]
struct Seen {
    drops: BTreeMap<(String, &'static str, String), u64>,
    isolated: BTreeMap<String, u64>,
    /// The guests' ports at which a virtual machine monitor is.
    guests: BTreeSet<String>,
}

/// The counter of a port that isolates sockets.
const SOCKETS_ISOLATED: &str = "sockets_isolated";

impl Seen {
    fn say(&mut self, status: &Status) {
        for (port, direction, reason, frames, total) in self.news(status) {
            warn!(port, direction, reason, frames, total, "frames dropped");
        }
        for (port, sockets, total) in self.isolated(status) {
            warn!(port, sockets, total, "sockets isolated");
        }
        let of_guests = status.ports.iter().filter(|p| p.counters.contains_key("connected") && p.is_present());
        let guests: BTreeSet<String> = of_guests.map(|p| p.name.clone()).collect();
        guests.difference(&self.guests).for_each(|port| info!(port, "port attached"));
        self.guests.difference(&guests).for_each(|port| info!(port, "port detached"));
        self.guests = guests;
    }

    /// Sockets of a port's machine that took nothing for so long that they were isolated: port, how many now, and in all.
    fn isolated(&mut self, status: &Status) -> Vec<(String, u64, u64)> {
        let of = |p: &PortStatus| p.counters.get(SOCKETS_ISOLATED).map(|n| (p.name.clone(), *n));
        let now: BTreeMap<String, u64> = status.ports.iter().filter_map(of).collect();
        let before = std::mem::replace(&mut self.isolated, now);
        let new = |(port, total): (&String, &u64)| {
            let before = before.get(port).copied().unwrap_or(0);
            let sockets = if *total >= before { total - before } else { *total };
            (sockets > 0).then(|| (port.clone(), sockets, *total))
        };
        self.isolated.iter().filter_map(new).collect()
    }

    /// What is new: port, direction, reason, how many now, and in all.
    fn news(&mut self, status: &Status) -> Vec<(String, &'static str, String, u64, u64)> {
        let mut now = BTreeMap::new();
        for port in &status.ports {
            let PortStatus { name, refused, dropped, .. } = port;
            for (direction, reasons) in [("from", refused), ("to", dropped)] {
                now.extend(reasons.iter().map(|(r, n)| ((name.clone(), direction, r.clone()), *n)));
            }
        }
        let new = |(key, total): (&(String, &'static str, String), &u64)| {
            let before = self.drops.get(key).copied().unwrap_or(0);
            // A port that somebody new is at counts anew.
            let frames = if *total >= before { total - before } else { *total };
            (frames > 0).then(|| (key.0.clone(), key.1, key.2.clone(), frames, *total))
        };
        let news = now.iter().filter_map(new).collect();
        self.drops = now;
        news
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A switch of these ports.
    pub fn status(ports: &[&str]) -> Status {
        let port = |name: &&str| PortStatus { name: (*name).into(), kind: "shm".into(), ..PortStatus::default() };
        Status { name: "vs".into(), slots: 100, ports: ports.iter().map(port).collect(), ..Status::default() }
    }

    #[test]
    fn each_kind_of_drop_is_said_when_it_grows() {
        let mut seen = Seen::default();
        let mut status = status(&["a", "b"]);
        assert!(seen.news(&status).is_empty());
        status.ports[0].refused.insert("forged_source".into(), 3);
        status.ports[1].dropped.insert("watchdog".into(), 5);
        let expected = [
            ("a".to_owned(), "from", "forged_source".to_owned(), 3, 3),
            ("b".to_owned(), "to", "watchdog".to_owned(), 5, 5),
        ];
        assert_eq!(seen.news(&status), expected);
        assert!(seen.news(&status).is_empty());
        status.ports[1].dropped.insert("watchdog".into(), 7);
        assert_eq!(seen.news(&status), [("b".to_owned(), "to", "watchdog".to_owned(), 2, 7)]);
        // Somebody new is there.
        status.ports[1].dropped.insert("watchdog".into(), 1);
        assert_eq!(seen.news(&status), [("b".to_owned(), "to", "watchdog".to_owned(), 1, 1)]);
    }

    #[test]
    fn sockets_that_are_isolated_are_said_once() {
        let mut seen = Seen::default();
        let mut status = status(&["a", "b"]);
        status.ports[0].counters.insert(SOCKETS_ISOLATED.into(), 0);
        assert!(seen.isolated(&status).is_empty());
        status.ports[0].counters.insert(SOCKETS_ISOLATED.into(), 2);
        assert_eq!(seen.isolated(&status), [("a".to_owned(), 2, 2)]);
        assert!(seen.isolated(&status).is_empty());
        status.ports[0].counters.insert(SOCKETS_ISOLATED.into(), 3);
        assert_eq!(seen.isolated(&status), [("a".to_owned(), 1, 3)]);
    }
}
