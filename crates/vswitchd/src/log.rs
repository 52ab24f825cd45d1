//! The log: rare events are logged at once, frequent ones at most once a second with their number.

use super::config::LogFormat;
use super::served::Served;
use super::status::{LOST_BESIDE, PortStatus, Status};
use sluicenet_dataplane::engine::{Event, Happened};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, level_filters::LevelFilter, warn};

/// How often counters are checked.
const EVERY: Duration = Duration::from_secs(1);

/// Starts the log of this process on stderr; only warnings if `quiet`.
pub fn start(format: LogFormat, quiet: bool) {
    let level = if quiet { LevelFilter::WARN } else { LevelFilter::INFO };
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // A process has one log: the first call wins.
    let _ = match format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
    };
}

/// Connections that were refused since the last message: location, reason, number.
#[derive(Debug, Default)]
pub(crate) struct Log {
    refused: Mutex<BTreeMap<(&'static str, String), u64>>,
    /// What was said, by whichever loop's watcher.
    seen: Mutex<Seen>,
}

impl Log {
    /// Counts a refused connection.
    pub fn count(&self, place: &'static str, reason: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry((place, reason.to_owned())).or_default() += 1;
    }

    /// Logs the last refused system calls of a switch that has stopped.
    pub fn say_refused(&self, status: &Status) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).say_refused(status);
    }

    /// Logs events until the switch has stopped.
    pub fn watch(&self, daemon: &impl Served, events: &Receiver<Event>) {
        let mut next = Instant::now() + EVERY;
        loop {
            match events.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Event { port, what }) => match what {
                    Happened::Broken(reason) => {
                        warn!(port, reason, "port broken");
                        daemon.broke(&port, reason);
                    }
                    Happened::Stuck => warn!(port, "port stuck"),
                    Happened::Moves => info!(port, "port moves again"),
                    Happened::Isolated => warn!(port, "port isolated"),
                    Happened::Restored => info!(port, "port restored"),
                    Happened::AgentLost => warn!(port, "agent lost"),
                },
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    next = Instant::now() + EVERY;
                    daemon.every_second();
                    // Locked before the status is read: an older status must not come after a newer one.
                    let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Ok(status) = daemon.status() {
                        seen.say(&status);
                    }
                    drop(seen);
                    let refused = std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner));
                    for ((place, reason), connections) in refused {
                        warn!(place, reason, connections, "connection refused");
                    }
                }
            }
        }
    }
}

/// Logged drops by port, direction ("from" or "to" the port) and reason; other counters by port and name.
#[derive(Debug, Default)]
struct Seen {
    drops: BTreeMap<(String, &'static str, String), u64>,
    counters: BTreeMap<(String, &'static str), u64>,
    /// Faults of a bump's program, by downstream port and counter.
    faults: BTreeMap<(String, &'static str), u64>,
    /// Refused system calls by name.
    refused_calls: BTreeMap<String, u64>,
    /// The guests' ports with a virtual machine monitor.
    guests: BTreeSet<String>,
}

/// Counters of ports that are logged when they increase.
const SOCKETS_STUCK: &str = "sockets_stuck";
const SOCKETS_ISOLATED: &str = "sockets_isolated";
const SOCKETS_IGNORED: &str = "sockets_ignored";
const STORMS: &str = "storms_detected";
const LATE: &str = "late_frames";
const RUN_OUT: &str = "pauses_run_out";
const SILENT: &str = "cache_silent";
/// Counters of a bump's program that are logged when they increase.
const FAULTS: [(&str, &str); 3] = [
    ("crashes", "program ended by itself"),
    ("timeouts", "program killed at its deadline"),
    ("broke_rules", "program killed because it damaged the shared memory"),
];

impl Seen {
    fn say(&mut self, status: &Status) {
        for (port, direction, reason, frames, total) in self.news(status) {
            warn!(port, direction, reason, frames, total, "frames dropped");
        }
        for (port, counter, new, total) in self.grown(status) {
            match counter {
                SOCKETS_STUCK => warn!(port, sockets = new, total, "sockets stuck"),
                SOCKETS_ISOLATED | SOCKETS_IGNORED => warn!(port, sockets = new, total, "sockets isolated"),
                STORMS => warn!(port, classes = new, total, "pause storm"),
                SILENT => warn!(port, questions = new, total, "controller silent"),
                RUN_OUT => warn!(port, pauses = new, total, "pause ran out"),
                LATE => warn!(port, frames = new, total, "neighbour slow to pause"),
                place => warn!(port, place, frames = new, total, "frames lost beside the switch"),
            }
        }
        for (port, counter, faults, total) in self.new_faults(status) {
            let what = FAULTS.iter().find(|(name, _)| *name == counter).map_or(counter, |(_, what)| what);
            warn!(port, faults, total, "{what}");
        }
        self.say_refused(status);
        let of_guests = status.ports.iter().filter(|p| p.counters.contains_key("connected") && p.is_present());
        let guests: BTreeSet<String> = of_guests.map(|p| p.name.clone()).collect();
        guests.difference(&self.guests).for_each(|port| info!(port, "port attached"));
        self.guests.difference(&guests).for_each(|port| info!(port, "port detached"));
        self.guests = guests;
    }

    fn say_refused(&mut self, status: &Status) {
        let before = std::mem::replace(&mut self.refused_calls, status.refused_calls.clone());
        for (call, total) in &status.refused_calls {
            let new = total - before.get(call).copied().unwrap_or(0);
            if new > 0 {
                warn!(call, refused = new, total, "call refused");
            }
        }
    }

    /// The counters that increased: port, counter, the increase, and the total.
    fn grown(&mut self, status: &Status) -> Vec<(String, &'static str, u64, u64)> {
        let mut now = BTreeMap::new();
        for port in &status.ports {
            let of = |name| port.counters.get(name).map(|n| ((port.name.clone(), name), *n));
            now.extend(
                [SOCKETS_STUCK, SOCKETS_ISOLATED, SOCKETS_IGNORED, STORMS, LATE, RUN_OUT, SILENT]
                    .into_iter()
                    .chain(LOST_BESIDE)
                    .filter_map(of),
            );
        }
        let before = std::mem::replace(&mut self.counters, now);
        let new = |(key, total): (&(String, &'static str), &u64)| {
            let before = before.get(key).copied().unwrap_or(0);
            // A port with a new endpoint counts from zero.
            let new = if *total >= before { total - before } else { *total };
            (new > 0).then(|| (key.0.clone(), key.1, new, *total))
        };
        self.counters.iter().filter_map(new).collect()
    }

    /// Faults of a bump's program: downstream port, counter, the increase, and the total.
    fn new_faults(&mut self, status: &Status) -> Vec<(String, &'static str, u64, u64)> {
        let mut news = Vec::new();
        for lane in status.bump.iter().flat_map(|bump| &bump.lanes) {
            for (name, _) in FAULTS {
                let total = lane.counters.get(name).copied().unwrap_or(0);
                let before = self.faults.insert((lane.port.clone(), name), total).unwrap_or(0);
                if total > before {
                    news.push((lane.port.clone(), name, total - before, total));
                }
            }
        }
        news
    }

    /// New drops: port, direction, reason, the increase, and the total.
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
            // A port with a new endpoint counts from zero.
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
    use crate::bump::status::{BumpStatus, LaneStatus};

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
        // A new endpoint is attached to the port.
        status.ports[1].dropped.insert("watchdog".into(), 1);
        assert_eq!(seen.news(&status), [("b".to_owned(), "to", "watchdog".to_owned(), 1, 1)]);
    }

    #[test]
    fn each_fault_of_a_program_is_said_once() {
        let mut seen = Seen::default();
        let mut status = status(&["a"]);
        let lane = LaneStatus { port: "3".into(), ..LaneStatus::default() };
        status.bump = Some(Box::new(BumpStatus { lanes: vec![lane], ..BumpStatus::default() }));
        assert!(seen.new_faults(&status).is_empty());
        let mut count = |name: &str, n| {
            status.bump.as_mut().unwrap().lanes[0].counters.insert(name.into(), n);
            seen.new_faults(&status)
        };
        assert_eq!(count("crashes", 2), [("3".to_owned(), "crashes", 2, 2)]);
        assert_eq!(count("starts", 3), []);
        assert_eq!(count("timeouts", 1), [("3".to_owned(), "timeouts", 1, 1)]);
        assert_eq!(count("broke_rules", 1), [("3".to_owned(), "broke_rules", 1, 1)]);
        assert_eq!(count("crashes", 3), [("3".to_owned(), "crashes", 1, 3)]);
    }

    #[test]
    fn what_a_port_counts_of_trouble_is_said_when_it_grows() {
        let mut seen = Seen::default();
        let mut status = status(&["a", "b"]);
        status.ports[0].counters.insert(SOCKETS_ISOLATED.into(), 0);
        assert!(seen.grown(&status).is_empty());
        status.ports[0].counters.insert(SOCKETS_ISOLATED.into(), 2);
        assert_eq!(seen.grown(&status), [("a".to_owned(), SOCKETS_ISOLATED, 2, 2)]);
        assert!(seen.grown(&status).is_empty());
        status.ports[0].counters.insert(SOCKETS_ISOLATED.into(), 3);
        status.ports[1].counters.insert(STORMS.into(), 1);
        let expected = [("a".to_owned(), SOCKETS_ISOLATED, 1, 3), ("b".to_owned(), STORMS, 1, 1)];
        assert_eq!(seen.grown(&status), expected);
    }
}
