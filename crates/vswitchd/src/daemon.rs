//! A switch as a process: its engine has its own thread, and other threads handle requests.

mod absent;
mod start;
mod transaction;

use super::config::{Config, PortConfig, PortKind, UPLINK_NAME, objection, port_from_words};
use super::control::{About, Answer, Refusal, Request};
use super::failure::Failure;
use super::helper::{Helper, Place};
use super::notify::Notify;
use super::opened::{Opened, Opening, Ready, open_beside};
use super::sandbox::Sandbox;
use super::served::{Attached, Life, Served};
use super::status::{Absent, MacTable, Snapshot, Status, counted};
use sluicenet_dataplane::confine::refused;
use sluicenet_dataplane::engine::{Access, Engine, PortReport};
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::shm;
use sluicenet_dataplane::tap::{Capture, tap};
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tracing::{info, warn};

/// The number of the port to other servers.
const UPLINK: usize = 0;

/// A port of the switch, and its state.
#[derive(Debug)]
struct Running {
    config: PortConfig,
    /// Distinguishes the port from earlier ports of the same name.
    id: u64,
    /// Whether a program is attached to the port's memory.
    attached: bool,
    /// The reason if the port is absent: it could not be opened, or broke.
    absent: Option<Absent>,
    /// The attempt to open it that goes on while it is absent.
    opening: Option<Opening>,
    /// The namespaces of its devices while it is in service.
    places: Vec<Place>,
}

#[derive(Debug)]
struct State {
    config: Config,
    ports: Vec<Running>,
    /// The number of ports that were ever added.
    made: u64,
}

impl State {
    /// Adds a port that is in service in these namespaces.
    fn add(&mut self, config: PortConfig, places: Vec<Place>) -> &mut Running {
        self.made += 1;
        let port = Running { config, id: self.made, attached: false, absent: None, opening: None, places };
        self.ports.push(port);
        self.ports.last_mut().expect("it was pushed")
    }

    /// Whether another port of this name, with these addresses, has room.
    fn has_room_for(&self, port: &PortConfig) -> Result<(), String> {
        if self.ports.iter().any(|p| p.config.name == port.name) {
            return Err(format!("there is a port {} already", port.name));
        }
        if self.ports.len() >= self.config.ports_max {
            let ports = counted(self.config.ports_max as u64, "port", "ports");
            return Err(format!("the switch has {ports}, and no other is free"));
        }
        match self.ports.iter().find_map(|other| Some((other, port.clash_with(&other.config)?))) {
            Some((other, clash)) => Err(format!("port {}: {}", port.name, clash.beside(&other.config.name))),
            None => Ok(()),
        }
    }
}

/// A running switch.
#[derive(Debug)]
pub struct Daemon {
    remote: Remote<Engine>,
    state: Mutex<State>,
    /// Held by a reload.
    reloads: Mutex<()>,
    /// Held by all who add or remove ports, but not while a new port is opened; a reload holds it alone.
    changes: RwLock<()>,
    life: Life,
    notify: Notify,
    sandbox: Sandbox,
    /// The process that opens devices; `None` without the privileges for one.
    helper: Option<Arc<Helper>>,
}

impl Served for Daemon {
    fn life(&self) -> &Life {
        &self.life
    }

    fn status(&self) -> io::Result<Status> {
        let snapshot = self.remote.run(|engine| Snapshot::of(engine))?;
        Ok(self.status_of(&snapshot))
    }

    fn reload(&self) -> Result<String, String> {
        self.notify.reloading();
        let outcome = self.become_that_of_file();
        self.tell_ready();
        outcome
    }

    fn answer(&self, request: Request) -> Answer {
        let outcome = match request {
            Request::About => {
                let (name, ports_free) = {
                    let state = self.state();
                    (state.config.name.clone(), state.config.ports_max.saturating_sub(state.ports.len()))
                };
                let mtu = self.remote.run(|engine| engine.mtu());
                return mtu.map_or_else(
                    |e| Answer::Error(e.to_string()),
                    |mtu| Answer::About(About { name, mtu, ports_free }),
                );
            }
            Request::Macs => {
                let table = self.remote.run(|engine| MacTable::of(engine));
                return table.map_or_else(|e| Answer::Error(e.to_string()), Answer::Macs);
            }
            Request::AddPort { name, settings } => port_from_words(&name, &settings)
                .map_err(|e| format!("port {name:?}: {}", e.sentence()))
                .and_then(|port| self.add(PortConfig { attached: true, ..port }))
                .map(|()| format!("port {name} added")),
            Request::DelPort { name } if self.remove(&name) => Ok(format!("port {name} removed")),
            Request::DelPort { name } => {
                return Answer::Refused { error: format!("there is no port {name}"), reason: Refusal::NoSuchPort };
            }
            Request::Show | Request::Reload | Request::Attach { .. } | Request::Capture { .. } | Request::Stop => {
                Err("not here".into())
            }
        };
        outcome.map_or_else(Answer::Error, Answer::Ok)
    }

    fn attach(&self, name: &str) -> Result<Attached<'_>, String> {
        let mut state = self.state();
        let port = state.ports.iter_mut().find(|p| p.config.name == name).ok_or(format!("there is no port {name}"))?;
        let PortKind::Shm { buffers } = port.config.kind else {
            return Err(format!("port {name} is of kind {}: programs attach to shm", port.config.kind.name()));
        };
        if port.attached {
            return Err(format!("somebody is attached to port {name}"));
        }
        let config = port.config.clone();
        let (mac, ip) = (config.mac, config.ipv4());
        let (access, mtu) = self
            .remote
            .run(move |engine| -> io::Result<(shm::Access, Option<u32>)> {
                let k = engine.vacant_port().ok_or(io::Error::other("every port of the switch is in use"))?;
                let access = engine.plug_shm(k, &config.name, buffers)?;
                settle(engine, k, &config).inspect_err(|_| engine.unplug(k))?;
                Ok((access, engine.mtu()))
            })
            .and_then(|made| made)
            .map_err(|e| e.to_string())?;
        port.attached = true;
        info!(port = name, "port attached");
        let (name, id) = (name.to_owned(), port.id);
        // A removed port is no longer in the engine.
        let release = move || {
            let mut state = self.state();
            if let Some(port) = state.ports.iter_mut().find(|p| p.id == id) {
                port.attached = false;
                self.unplug(&name);
            }
        };
        Ok(Attached { access, mac, ip, mtu, release: Some(Box::new(release)) })
    }

    fn capture(&self, name: &str, snaplen: u32) -> Result<Capture, String> {
        let (tap, capture) = tap(snaplen);
        let owned = name.to_owned();
        let set = self.remote.run(move |engine| engine.port_named(&owned).map(|k| engine.set_tap(k, tap)));
        match set.map_err(|e| e.to_string())? {
            None => Err(match self.state().ports.iter().any(|p| p.config.name == name) {
                true => format!("nobody is at port {name}"),
                false => format!("there is no port {name}"),
            }),
            Some(false) => Err(format!("port {name} is being captured")),
            Some(true) => Ok(capture),
        }
    }

    fn close(&self, capture: &Capture) {
        capture.close();
        // A stopped switch has no captures.
        let _ = self.remote.run(|engine| engine.sweep_taps());
    }

    fn broke(&self, name: &str, reason: &str) {
        self.port_broke(name, reason);
    }

    fn every_second(&self) {
        self.look_at_helper();
        self.look_for_lost();
        self.try_again();
        let (ports, absent) = self.count_ports();
        self.notify.state(ports, &absent);
    }
}

impl Daemon {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_ready(&self) {
        let (ports, absent) = self.count_ports();
        self.notify.ready(ports, &absent);
    }

    /// Notices the end of the helper. The ports that are open go on.
    fn look_at_helper(&self) {
        let Some(helper) = &self.helper else { return };
        let pid = helper.pid();
        helper.look(|how| warn!(pid, how, "helper ended"));
    }

    /// The number of ports, and the names of the absent ones.
    fn count_ports(&self) -> (usize, Vec<String>) {
        let state = self.state();
        let absent = state.ports.iter().filter(|p| p.absent.is_some()).map(|p| p.config.name.clone());
        (state.ports.len(), absent.collect())
    }

    fn status_of(&self, snapshot: &Snapshot) -> Status {
        let state = self.state();
        let ports: Vec<PortConfig> = state.ports.iter().map(|p| p.config.clone()).collect();
        let mut status = snapshot.status(&state.config, &ports, self.life.uptime_s());
        status.refused_calls = refused().into_iter().collect();
        status.helper = self.helper.as_deref().map(Helper::status);
        let absent: BTreeMap<&str, &Absent> =
            state.ports.iter().filter_map(|p| Some((p.config.name.as_str(), p.absent.as_ref()?))).collect();
        for port in status.ports.iter_mut().filter(|p| p.number.is_none()) {
            port.absent = absent.get(port.name.as_str()).map(|&why| why.clone());
        }
        status
    }

    /// Whether the policy of the switch allows a port.
    fn check_policy(&self, port: &PortConfig) -> Result<(), String> {
        let state = self.state();
        let Config { policy, vale, uplink, .. } = &state.config;
        match policy.as_ref().and_then(|policy| objection(policy, port, vale, uplink.as_ref())) {
            Some((_, why)) => Err(format!("port {}: {why}", port.name)),
            None => Ok(()),
        }
    }

    /// Opens a port and puts it into service. Meanwhile others can add and remove ports.
    fn add(&self, port: PortConfig) -> Result<(), String> {
        if let Some(why) = self.sandbox.objection(&port.kind) {
            return Err(format!("port {}: {why}", port.name));
        }
        self.check_policy(&port)?;
        self.state().has_room_for(&port)?;
        let vale = self.state().config.vale.clone();
        let opened = open_beside(&port, &self.configs(), &vale, self.helper.as_ref())
            .map_err(|reason| format!("port {}: {reason}", port.name))?;
        let _shared = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        // A reload may have changed it since.
        self.check_policy(&port)?;
        self.install(port, opened)
    }

    fn configs(&self) -> Vec<PortConfig> {
        self.state().ports.iter().map(|p| p.config.clone()).collect()
    }

    fn install(&self, port: PortConfig, opened: Opened) -> Result<(), String> {
        let mut state = self.state();
        state.has_room_for(&port)?;
        let others: Vec<PortConfig> = state.ports.iter().map(|other| other.config.clone()).collect();
        let port = PortConfig { further: port.is_further(&others), ..port };
        let places = self.plug(&port, opened).map_err(|reason| format!("port {}: {reason}", port.name))?;
        info!(port = port.name, kind = port.kind.name(), "port added");
        state.add(port, places);
        Ok(())
    }

    /// Puts an open port into service; returns its namespaces.
    fn plug(&self, port: &PortConfig, opened: Opened) -> Result<Vec<Place>, Failure> {
        let (config, ready) = (port.clone(), opened.ready()?);
        Ok(self.remote.run(move |engine| put(engine, &config, ready)).and_then(|plugged| plugged)?)
    }

    fn install_uplink(&self, port: Box<dyn Port>) -> io::Result<()> {
        self.remote.run(move |engine| engine.plug(UPLINK, UPLINK_NAME, port, Access::default()))??;
        Ok(())
    }

    /// Removes a port; returns whether there was one of this name.
    fn remove(&self, name: &str) -> bool {
        let _shared = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let Some(at) = state.ports.iter().position(|p| p.config.name == name) else {
            return false;
        };
        let port = state.ports.remove(at);
        self.unplug(name);
        let _ = self.remote.run(move |engine| {
            announce(engine, &port.config, false);
            port.config.stations().for_each(|(mac, domain)| engine.release(mac, domain));
        });
        info!(port = name, "port removed");
        true
    }

    /// Removes a port from the engine and waits for the removal; returns whether it was there.
    fn unplug(&self, name: &str) -> bool {
        let owned = name.to_owned();
        // A stopped switch has no ports, and a broken port is gone already.
        let last = self.remote.run(move |engine| take_out(engine, &owned)).ok().flatten();
        last.iter().for_each(log_detached);
        last.is_some()
    }
}

/// Puts a port into service in the engine, or reserves its endpoint until a program attaches. Returns its namespaces.
fn put(engine: &mut Engine, config: &PortConfig, ready: Ready) -> io::Result<Vec<Place>> {
    if matches!(ready, Ready::Attached) {
        return reserve(engine, config).map(|()| Vec::new());
    }
    let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "every port of the switch is in use");
    let k = engine.vacant_port().ok_or_else(busy)?;
    let mut places = Vec::new();
    match ready {
        Ready::Port(port, its) => {
            engine.plug(k, &config.name, port, config.access.clone())?;
            places = its;
        }
        Ready::Guest(port) => engine.plug_vhost(k, &config.name, *port, config.access.clone())?,
        Ready::Attached => {}
    }
    settle(engine, k, config).inspect_err(|_| engine.unplug(k))?;
    Ok(places)
}

/// Takes a port out of the engine; returns its last state if it was there. Its `mac` stays reserved.
fn take_out(engine: &mut Engine, name: &str) -> Option<PortReport> {
    let k = engine.port_named(name)?;
    let last = engine.report(k);
    engine.unplug(k);
    last
}

fn log_detached(last: &PortReport) {
    let waited = last.output.iter().sum::<u32>() + last.inside;
    let (accepted, delivered) = (last.counters.accepted, last.counters.delivered);
    let dropped = last.counters.dropped.total_frames();
    info!(port = last.name, accepted, delivered, dropped, waited, "port detached");
}

/// Applies the settings of a port's endpoint to the engine.
fn settle(engine: &mut Engine, k: usize, config: &PortConfig) -> io::Result<()> {
    engine.forget(k);
    engine.set_access(k, config.access.clone());
    engine.set_rate(k, config.rate);
    engine.set_send_rate(k, config.send_rate);
    announce(engine, config, true);
    if config.mac.is_none() {
        engine.meet(k);
    }
    // Without an entry in the table, another endpoint could take its address.
    match config.stations().all(|(mac, domain)| engine.give(mac, domain, k)) {
        true => Ok(()),
        false => Err(no_room()),
    }
}

/// Reserves the endpoint of an absent port in the engine, so that no other port receives its frames.
fn reserve(engine: &mut Engine, config: &PortConfig) -> io::Result<()> {
    match config.stations().all(|(mac, domain)| engine.reserve(mac, domain)) {
        true => Ok(()),
        false => Err(no_room()),
    }
}

fn no_room() -> io::Error {
    io::Error::other("`stations` are all given to ports already: there is no room for its `mac`")
}

/// Tells the ports to other servers that an endpoint is at a port, or no longer.
fn announce(engine: &mut Engine, config: &PortConfig, here: bool) {
    if let (Some(mac), Some(own)) = (config.mac, config.ipv4()) {
        let address = if config.further { Ipv4Addr::UNSPECIFIED } else { own };
        engine.announce(config.access.domain.unwrap_or(0), mac, address, here);
    }
}
