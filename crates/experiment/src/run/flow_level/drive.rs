//! Runs a scenario's applications from one change of rates to the next.

use super::io::At;
use super::{Happens, Network};
use crate::build::{Ideal, Plan};
use crate::run::messages::{Messages, Seen};
use crate::workload::{HostApps, START};
use sluicenet_node::server::{App, Event};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_records::{RecordError, RecordWriter, Status};
use sluicenet_scenario::Scenario;
use sluicenet_sim::RunEnd;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often rows are collected, of the run's length where that is known.
const EPOCHS: u64 = 500;
/// Steps after which an interrupt is looked for, however long an epoch is.
const STEPS_MAX: u64 = 4096;
/// Minimum length of an epoch, as at the packet level.
const EPOCH_MIN: Duration = Duration::from_us(500);

/// End of the loop, and the reports and questions of the loop between two epochs.
pub(in crate::run) struct Ends<'a> {
    pub until: Option<Instant>,
    /// Whether the run ends with its finite work.
    pub is_finite: bool,
    pub interrupt: &'a AtomicBool,
    /// Told the time and how much is left.
    pub progress: &'a mut dyn FnMut(Instant, u64),
}

/// How a run went.
pub(in crate::run) struct Ended {
    pub end: RunEnd,
    pub now: Instant,
    pub seen: Seen,
    pub tcp_bytes: u64,
}

/// Runs the applications over the rates of their flows.
pub(in crate::run) fn run(
    s: &Scenario,
    (plan, ideal): (Arc<Plan>, Ideal),
    mut apps: Vec<HostApps>,
    mut writer: Option<RecordWriter>,
    ends: Ends<'_>,
) -> Result<Ended, RecordError> {
    let ideal = Arc::new(ideal);
    let mut messages = Messages::new(s, ideal.clone());
    let mut network = Network::new(s, plan, ideal);
    let epoch = Duration((ends.until.map_or(0, |u| u.as_ps()) / EPOCHS).max(EPOCH_MIN.as_ps()));
    let warmup = Instant(s.warmup.as_ps());
    for (host, app) in apps.iter_mut().enumerate() {
        let mut io = At { network: &mut network, host: host as HostId };
        app.handle(Instant::ZERO, &mut io, Event::Wake { token: START });
    }
    let mut next_epoch = Instant::ZERO + epoch;
    let mut queries = Vec::new();
    let mut steps = 0;
    let end = loop {
        steps += 1;
        if steps % STEPS_MAX == 0 && ends.interrupt.load(Ordering::Relaxed) {
            break RunEnd::Interrupted;
        }
        let event = network
            .level
            .poll_timeout()
            .min(network.next_round_at())
            .min(network.next_failure_at())
            .min(network.agenda.peek().map_or(Instant::MAX, |Reverse(d)| d.0));
        let boundary = if network.level.now() < warmup { next_epoch.min(warmup) } else { next_epoch };
        let now = event.min(boundary).min(ends.until.unwrap_or(Instant::MAX));
        if event == Instant::MAX && ends.until.is_none() {
            break RunEnd::Idle;
        }
        step(&mut network, &mut apps, now);
        if now < boundary && ends.until != Some(now) {
            continue;
        }
        // A stretch is over.
        if now >= next_epoch {
            next_epoch = now + epoch;
        }
        let mut ended = std::mem::take(&mut network.ended);
        ended.sort_unstable_by_key(|f| (f.end.unwrap_or(Instant::MAX), f.id));
        messages.write_flows(&mut writer, &ended)?;
        let ended = std::mem::take(&mut queries);
        messages.write_queries(&mut writer, ended)?;
        queries.extend(apps.iter_mut().flat_map(|a| a.take_queries()));
        messages.at(now, || network.open());
        let remaining = apps.iter().map(HostApps::remaining).sum();
        (ends.progress)(now, remaining);
        if ends.interrupt.load(Ordering::Relaxed) {
            break RunEnd::Interrupted;
        }
        if ends.is_finite && ends.until.is_none() && remaining == 0 {
            break RunEnd::Stopped;
        }
        if ends.until == Some(now) {
            break RunEnd::Time;
        }
    };
    let now = network.level.now();
    let mut ended = std::mem::take(&mut network.ended);
    ended.sort_unstable_by_key(|f| (f.end.unwrap_or(Instant::MAX), f.id));
    messages.write_flows(&mut writer, &ended)?;
    queries.extend(apps.iter_mut().flat_map(|a| a.take_queries()));
    let unfinished = apps.iter().enumerate();
    let unfinished = unfinished.flat_map(|(h, a)| a.open_queries().into_iter().map(move |q| (h as HostId, q)));
    let seen = messages.finish(&mut writer, now, queries, &network.open(), unfinished)?;
    if let Some(w) = writer {
        w.finish(match end {
            RunEnd::Interrupted => Status::InterruptedAt { at_ps: now.as_ps() },
            _ => Status::Complete,
        })?;
    }
    Ok(Ended { end, now, seen, tcp_bytes: network.tcp_bytes })
}

/// Moves time to `now`, and performs the events of that time.
fn step(network: &mut Network, apps: &mut [HostApps], now: Instant) {
    let mut left = Vec::new();
    // New flows take the numbers of flows that ended.
    network.level.advance(now, |_, flow| left.push(network.under_way[flow as usize]));
    left.into_iter().for_each(|of| network.left(now, of));
    while let Some(&Reverse((at, number))) = network.agenda.peek() {
        if at > now {
            break;
        }
        network.agenda.pop();
        let Some(what) = network.happens.remove(&number) else { continue };
        let mut hear = |network: &mut Network, host: HostId, event: Event| {
            apps[host as usize].handle(now, &mut At { network, host }, event);
        };
        match what {
            Happens::Wake { host, token } => hear(network, host, Event::Wake { token }),
            Happens::Told { to, from, words } => hear(network, to.host(), Event::Told { to, from, words }),
            Happens::Opened { connection } => {
                network.connections[connection as usize].is_open = true;
                network.begin(now, connection);
            }
            Happens::Arrived { connection, message } => {
                for (host, event) in network.arrived(now, connection, message) {
                    hear(network, host, event);
                }
                network.forget_if_over(connection);
            }
        }
    }
    network.fail(now);
    network.round(now);
}
