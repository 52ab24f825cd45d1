//! A reload: the switch becomes that of the new file, or it stays that of the old one.
//!
//! 1. All new ports are opened beside the old ones, and others can add and remove ports meanwhile. If one fails for a
//!    reason that [lasts](crate::failure), nothing has changed. A port that fails for a reason that passes is absent, and
//!    tried again every second.
//! 2. A new port may need what an old port holds: its device, its namespace, its socket. Then the old port is closed
//!    first. If the new one fails for a reason that lasts, the old port is opened again.
//! 3. One job of the engine, between two rounds, applies the rest: no frame is forwarded in between.

use super::{Daemon, Running, State, announce, put, reserve, settle, take_out};
use crate::config::{Config, PortConfig, keep_control, objection};
use crate::failure::Failure;
use crate::helper::{Helper, Place};
use crate::opened::{Attempt, Opened, Opening, Ready, may_open, open_together};
use crate::reload::overlay_change;
use crate::status::counted;
use sluicenet_dataplane::engine::{Engine, PortReport};
use sluicenet_dataplane::port::OverlayChange;
use sluicenet_node::gate::StationPolicy;
use sluicenet_node::vale::ValeConfig;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use tracing::info;

/// The difference between the ports of the switch and those of a new file.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// Ports of the switch to close: removed ones, and those that get another kind.
    close: Vec<PortConfig>,
    /// Ports whose endpoint or restrictions change while they run: before and after.
    change: Vec<(PortConfig, PortConfig)>,
    /// Ports to open.
    open: Vec<PortConfig>,
    removed: usize,
}

impl Plan {
    fn between(old: &[PortConfig], new: &[PortConfig]) -> Plan {
        let mut plan = Plan::default();
        for port in old {
            match new.iter().find(|wanted| wanted.name == port.name) {
                None => {
                    plan.close.push(port.clone());
                    plan.removed += 1;
                }
                Some(wanted) if wanted == port => {}
                Some(wanted) if wanted.kind == port.kind => plan.change.push((port.clone(), wanted.clone())),
                Some(wanted) => {
                    plan.close.push(port.clone());
                    plan.open.push(wanted.clone());
                }
            }
        }
        let is_new = |port: &&PortConfig| old.iter().all(|other| other.name != port.name);
        plan.open.extend(new.iter().filter(is_new).cloned());
        plan
    }

    /// The ports to open, in two parts: those that can be opened beside the old ones, and those that need what an old port holds.
    fn early_and_late(&self) -> (Vec<&PortConfig>, Vec<&PortConfig>) {
        self.open.iter().partition(|port| self.close.iter().all(|held| !port.kind.shares_with(&held.kind)))
    }
}

/// A port of the new file, open or absent; and the attempt to open it, if that goes on.
type Tried<T> = (PortConfig, Result<T, Failure>, Option<Opening>);

/// Attempts to open new ports that began before others had to wait.
type Ahead = Vec<(PortConfig, Attempt)>;

/// What a reload has done in the engine.
struct Applied {
    /// The last states of the closed ports.
    last: Vec<PortReport>,
    /// The new ports, in service in these namespaces or absent.
    opened: Vec<Tried<Vec<Place>>>,
}

/// Everything that a reload changes in the engine.
struct Change {
    vale: ValeConfig,
    policy: Option<Option<Arc<StationPolicy>>>,
    overlay: OverlayChange,
    close: Vec<PortConfig>,
    change: Vec<(PortConfig, PortConfig)>,
    open: Vec<Tried<Ready>>,
    /// Ports in networks that the switch joins now, which have told them nothing yet.
    announce: Vec<PortConfig>,
}

impl Change {
    fn apply(self, engine: &mut Engine) -> Applied {
        engine.set_watchdog(self.vale.watchdog);
        engine.set_aging_time(self.vale.aging_time);
        // The new policy comes before its new endpoints send.
        if let Some(policy) = self.policy {
            engine.set_policy(policy);
        }
        let last = self.close.iter().filter_map(|port| take_out(engine, &port.name)).collect();
        self.close.iter().for_each(|port| announce(engine, port, false));
        for (before, _) in &self.change {
            announce(engine, before, false);
            if let Some(k) = engine.port_named(&before.name) {
                engine.forget(k);
            }
        }
        // All addresses of the old file are free before one is given.
        let before = self.close.iter().chain(self.change.iter().map(|(before, _)| before));
        for (mac, domain) in before.flat_map(PortConfig::stations) {
            engine.release(mac, domain);
        }
        engine.change_overlay(&self.overlay);
        for (_, wanted) in self.change {
            let settled = match engine.port_named(&wanted.name) {
                Some(k) => settle(engine, k, &wanted),
                None => reserve(engine, &wanted),
            };
            settled.expect("the file has no more addresses than `stations`");
        }
        let mut opened = Vec::new();
        for (port, ready, opening) in self.open {
            let outcome = ready.and_then(|ready| Ok(put(engine, &port, ready)?));
            if outcome.is_err() {
                reserve(engine, &port).expect("the file has no more addresses than `stations`");
            }
            opened.push((port, outcome, opening));
        }
        self.announce.iter().for_each(|port| announce(engine, port, true));
        Applied { last, opened }
    }
}

/// Adds the ports that commands added to those of a new file, unless it has a port of that name.
///
/// # Errors
/// The new file leaves no place for one of them.
fn keep_attached(running: &[PortConfig], new: &mut Config) -> Result<(), String> {
    for port in running.iter().filter(|port| port.attached) {
        if new.ports.iter().any(|other| other.name == port.name) {
            continue;
        }
        let name = &port.name;
        if let Some((other, clash)) = new.ports.iter().find_map(|other| Some((other, other.clash_with(port)?))) {
            return Err(format!("port {}: {}; a command added {name}", other.name, clash.beside(name)));
        }
        if new.ports.len() >= new.ports_max {
            let ports = counted(new.ports_max as u64, "port", "ports");
            return Err(format!("the switch has {ports}: there is none for {name}, which a command added"));
        }
        let policy = new.policy.as_ref();
        if let Some((_, why)) = policy.and_then(|policy| objection(policy, port, &new.vale, new.uplink.as_ref())) {
            return Err(format!("port {name}, which a command added: {why}"));
        }
        let further = port.is_further(&new.ports);
        new.ports.push(PortConfig { further, ..port.clone() });
    }
    let given = new.ports.iter().flat_map(PortConfig::stations).count();
    if given > new.vale.stations {
        let need = counted(given as u64, "MAC address", "MAC addresses");
        return Err(format!(
            "the ports have {need}, with those that commands added: more than the {} `stations`",
            new.vale.stations
        ));
    }
    Ok(())
}

impl Daemon {
    /// Reads the switch's file again and applies the differences, all of them or none; describes them.
    pub(super) fn become_that_of_file(&self) -> Result<String, String> {
        let _one = self.reloads.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = self.open_ahead().unwrap_or_default();
        let _alone = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        let old = self.state().config.clone();
        if !old.has_file() {
            return Err("the switch was started without a file: there is nothing to reload".into());
        }
        let mut new = Config::load(&old.file).map_err(|e| e.to_string())?;
        keep_control(&mut new.control, &new.name, &old.control);
        let overlay = overlay_change(&old, &new)?;
        let running = self.configs();
        keep_attached(&running, &mut new).map_err(|why| format!("{why}; nothing was changed"))?;
        let plan = Plan::between(&running, &new.ports);
        let open = self.prepare(&plan, &old, &new, ahead)?;

        let counts = [overlay.admitted.len(), overlay.expelled.len(), overlay.bound.len()];
        let replaced = plan.close.len() - plan.removed;
        let mut done = counted((plan.open.len() - replaced) as u64, "port added", "ports added");
        done += &format!(", {} removed, {} changed", plan.removed, plan.change.len() + replaced);
        let words = [
            ("server of the overlay added or changed", "servers of the overlay added or changed"),
            ("server of the overlay removed", "servers of the overlay removed"),
            ("network added", "networks added"),
        ];
        for (count, (one, several)) in counts.into_iter().zip(words).filter(|(count, _)| *count > 0) {
            done += &format!(", {}", counted(count as u64, one, several));
        }
        let new_policy = new.policy != old.policy;
        if new_policy {
            done += ", policy changed";
        }
        let joins =
            |port: &&PortConfig| overlay.bound.iter().any(|&(tenant, _)| tenant == port.access.domain.unwrap_or(0));
        let change = Change {
            vale: new.vale.clone(),
            policy: new_policy.then(|| new.policy.clone()),
            announce: new.ports.iter().filter(joins).cloned().collect(),
            overlay,
            close: plan.close.clone(),
            change: plan.change,
            open,
        };
        // Locked over both: a program that attaches meanwhile finds all of the old ports or all of the new ones.
        let mut state = self.state();
        let applied = self.remote.run(move |engine| change.apply(engine)).map_err(|e| e.to_string())?;
        applied.last.iter().for_each(super::log_detached);
        state.become_that_of(new, &plan.close);
        for (port, outcome, opening) in applied.opened {
            if let Some(lost) = state.note(&port.name, outcome, opening, self.helper.as_ref()) {
                done += &format!(", {lost}");
            }
        }
        drop(state);
        self.helper.iter().for_each(|helper| helper.reloaded());
        plan.close.iter().for_each(|port| info!(port = port.name, "port removed"));
        plan.open.iter().for_each(|port| info!(port = port.name, kind = port.kind.name(), "port added"));
        Ok(done)
    }

    /// Opens new ports while others can still add and remove ports: the tenant of a new port may delay it. If this fails, the reload
    /// itself says why.
    fn open_ahead(&self) -> Option<Ahead> {
        let old = self.state().config.clone();
        if !old.has_file() {
            return None;
        }
        let (running, mut new) = (self.configs(), Config::load(&old.file).ok()?);
        keep_attached(&running, &mut new).ok()?;
        let plan = Plan::between(&running, &new.ports);
        Some(open_together(&plan.early_and_late().0, &new.ports, &new.vale, self.helper.as_ref()).collect())
    }

    /// Opens the new ports that are not open yet.
    ///
    /// # Errors
    /// A port cannot be opened, for a reason that lasts. The old ports are in service, as before.
    fn prepare(&self, plan: &Plan, old: &Config, new: &Config, ahead: Ahead) -> Result<Vec<Tried<Ready>>, String> {
        for port in &plan.open {
            let missing = may_open(&port.kind, self.helper.as_ref());
            if let Some(why) = missing.or_else(|| self.sandbox.objection(&port.kind)) {
                return Err(format!("port {}: {why}; nothing was changed", port.name));
            }
        }
        let ((early, late), helper) = (plan.early_and_late(), self.helper.as_ref());
        let mut ports = open_each(&early, new, helper, ahead).map_err(|why| format!("{why}; nothing was changed"))?;
        let blockers = plan.close.iter().filter(|held| late.iter().any(|port| port.kind.shares_with(&held.kind)));
        let closed: Vec<&PortConfig> = blockers.filter(|port| self.unplug(&port.name)).collect();
        match open_each(&late, new, helper, Ahead::new()) {
            Ok(more) => ports.extend(more),
            Err(why) => {
                let lost = self.reopen(&closed, old);
                return Err(match &lost[..] {
                    [] if closed.is_empty() => format!("{why}; nothing was changed"),
                    [] => {
                        let names: Vec<&str> = closed.iter().map(|port| port.name.as_str()).collect();
                        format!(
                            "{why}; nothing was changed, but {} had to be closed and opened again",
                            names.join(", ")
                        )
                    }
                    _ => format!("{why}; the ports of the old file stay, but {}", lost.join(", ")),
                });
            }
        }
        Ok(ports)
    }

    /// Opens ports again that were closed for others. Ports that fail are absent; returns the reasons.
    fn reopen(&self, closed: &[&PortConfig], old: &Config) -> Vec<String> {
        let (ports, helper) = (self.configs(), self.helper.as_ref());
        let mut lost = Vec::new();
        for (port, attempt) in open_together(closed, &ports, &old.vale, helper) {
            let (opened, opening) = attempt.split();
            let outcome = opened.and_then(|opened| self.plug(&port, opened));
            lost.extend(self.state().note(&port.name, outcome, opening, helper));
        }
        lost
    }
}

impl State {
    /// Takes over the ports of a new file, in its order.
    fn become_that_of(&mut self, new: Config, closed: &[PortConfig]) {
        let mut before: Vec<Running> = std::mem::take(&mut self.ports);
        before.retain(|port| closed.iter().all(|closed| closed.name != port.config.name));
        for port in &new.ports {
            match before.iter().position(|running| running.config.name == port.name) {
                Some(at) => {
                    let running = before.swap_remove(at);
                    self.ports.push(Running { config: port.clone(), ..running });
                }
                None => {
                    self.add(port.clone(), Vec::new());
                }
            }
        }
        self.config = new;
    }

    /// Notes the namespaces of a port that is in service, or why it is absent, which is returned, and an attempt that goes on.
    fn note(
        &mut self,
        name: &str,
        outcome: Result<Vec<Place>, Failure>,
        opening: Option<Opening>,
        helper: Option<&Arc<Helper>>,
    ) -> Option<String> {
        let port = self.ports.iter_mut().find(|port| port.config.name == name)?;
        port.opening = opening;
        match outcome {
            Ok(places) => {
                port.places = places;
                None
            }
            Err(failure) => Some(format!("port {name} is absent: {}", port.be_absent(failure.reason, helper))),
        }
    }
}

/// Opens ports of a new file, all at the same time; those `ahead` have had their time. A port that fails for a reason that passes
/// has its failure.
///
/// # Errors
/// The first reason that lasts, with its port. Ports that were opened before are closed again.
fn open_each(
    ports: &[&PortConfig],
    new: &Config,
    helper: Option<&Arc<Helper>>,
    mut ahead: Ahead,
) -> Result<Vec<Tried<Ready>>, String> {
    // What the others hold is free before anything is opened.
    ahead.retain(|(port, _)| ports.contains(&port));
    let is_begun = |port: &PortConfig| ahead.iter().any(|(begun, _)| begun == port);
    let rest: Vec<&PortConfig> = ports.iter().copied().filter(|port| !is_begun(port)).collect();
    let rest = open_together(&rest, &new.ports, &new.vale, helper);
    let now = Instant::now();
    let ahead = ahead.into_iter().map(|(port, attempt)| (port, attempt.wait(now, &new.vale)));
    let mut prepared = Vec::new();
    for (port, attempt) in ahead.chain(rest) {
        let (outcome, opening) = attempt.split();
        match outcome.and_then(Opened::ready) {
            Err(failure) if !failure.passes => return Err(format!("port {}: {failure}", port.name)),
            ready => prepared.push((port, ready, opening)),
        }
    }
    Ok(prepared)
}

#[cfg(test)]
mod tests;
