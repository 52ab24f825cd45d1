//! Whether every flow of a connection matrix can start.

use super::htsim_cm::{ConnectionMatrix, Start, TriggerKind};
use super::lines::Reader;
use crate::{Error, Result};

/// Refuses flows that wait for ever, naming the triggers of a cycle; warns of activations that htsim would abort at.
pub(super) fn check_triggers(file: &str, matrix: &ConnectionMatrix, reader: &mut Reader<'_>) -> Result<()> {
    let n = matrix.triggers.len();
    // How often each trigger is activated if every flow ends; how often by the flows that are known to end.
    let mut all = vec![0u32; n];
    let mut certain = vec![0u32; n];
    let activated = |c: usize| {
        let c = &matrix.connections[c];
        [c.send_done, c.recv_done].into_iter().flatten().filter(move |_| c.bytes.is_some()).map(|t| t as usize)
    };
    for c in 0..matrix.connections.len() {
        activated(c).for_each(|t| all[t] += 1);
    }
    let mut started = vec![false; matrix.connections.len()];
    let mut released = vec![0usize; n];
    let mut ready: Vec<usize> = Vec::new();
    for (i, c) in matrix.connections.iter().enumerate() {
        if matches!(c.start, Start::At(_)) {
            started[i] = true;
            ready.push(i);
        }
    }
    while let Some(c) = ready.pop() {
        for t in activated(c) {
            certain[t] += 1;
            let trigger = &matrix.triggers[t];
            let fires = match trigger.kind {
                TriggerKind::Oneshot => released[t] == 0,
                TriggerKind::Multishot => released[t] < trigger.targets.len(),
                TriggerKind::Barrier(count) => certain[t] == count,
            };
            let until = match trigger.kind {
                _ if !fires => released[t],
                TriggerKind::Multishot => released[t] + 1,
                _ => trigger.targets.len(),
            };
            for target in &trigger.targets[released[t]..until] {
                started[*target as usize] = true;
                ready.push(*target as usize);
            }
            released[t] = until;
        }
    }
    if let Some(stuck) = started.iter().position(|s| !s) {
        return Err(why_stuck(file, matrix, stuck, &started, &all));
    }
    for (t, trigger) in matrix.triggers.iter().enumerate() {
        let allowed = match trigger.kind {
            TriggerKind::Oneshot => 1,
            TriggerKind::Barrier(count) => count,
            TriggerKind::Multishot => u32::MAX,
        };
        if all[t] > allowed {
            let (id, n) = (trigger.id, all[t]);
            reader.warn(
                trigger.line,
                format!("trigger {id} is activated {n} times, {allowed} needed: htsim would abort"),
            );
        } else if all[t] < allowed && !matches!(trigger.kind, TriggerKind::Multishot) {
            // No flow waits for it, or the check above would have failed.
            reader.warn(trigger.line, format!("trigger {} never fires; no flow waits for it", trigger.id));
        }
    }
    Ok(())
}

/// Follows the triggers that a flow waits for until one repeats, or none is left that could activate it.
fn why_stuck(file: &str, matrix: &ConnectionMatrix, stuck: usize, started: &[bool], all: &[u32]) -> Error {
    let trigger_of = |flow: usize| match matrix.connections[flow].start {
        Start::Trigger(t) => Some(t as usize),
        Start::At(_) => None,
    };
    // For each trigger, one flow that would activate it and cannot start itself.
    let mut blocker: Vec<Option<usize>> = vec![None; matrix.triggers.len()];
    for (i, c) in matrix.connections.iter().enumerate().filter(|(i, _)| !started[*i]) {
        for t in [c.send_done, c.recv_done].into_iter().flatten().filter(|_| c.bytes.is_some()) {
            blocker[t as usize].get_or_insert(i);
        }
    }
    let mut path: Vec<usize> = Vec::new();
    let mut place = vec![usize::MAX; matrix.triggers.len()];
    let mut flow = stuck;
    while let Some(t) = trigger_of(flow) {
        let trigger = &matrix.triggers[t];
        let text = format!("trigger id {}", trigger.id);
        if place[t] != usize::MAX {
            // Read backwards, the chain of waiting is the order of firing.
            let mut ids: Vec<String> =
                path[place[t]..].iter().rev().map(|t| matrix.triggers[*t].id.to_string()).collect();
            ids.push(ids[0].clone());
            ids.truncate(16);
            return Error::line(
                file,
                trigger.line,
                &text,
                format!("triggers wait for each other: {}", ids.join(" -> ")),
            )
            .hint("a flow of the cycle needs a `start` of its own");
        }
        place[t] = path.len();
        path.push(t);
        match blocker[t] {
            Some(next) => flow = next,
            None => {
                let needed = match trigger.kind {
                    TriggerKind::Barrier(count) => count,
                    TriggerKind::Oneshot => 1,
                    TriggerKind::Multishot => u32::try_from(trigger.targets.len()).unwrap_or(u32::MAX),
                };
                let line = matrix.connections[flow].line;
                let message = format!(
                    "trigger {} is activated {} times and needs {needed}: the flow in line {line} never starts",
                    trigger.id, all[t]
                );
                return Error::line(file, trigger.line, &text, message)
                    .hint("flows activate it by `send_done_trigger` or `recv_done_trigger`");
            }
        }
    }
    Error::line(file, matrix.connections[stuck].line, "", "this flow never starts")
}
