//! The start and the end of a switch: its ports, its privileges, its threads.

use super::{Daemon, State};
use crate::attach::record::Records;
use crate::config::{Config, PortConfig, objection, port_from_words};
use crate::control::Socket;
use crate::helper::{self, Helper};
use crate::metrics;
use crate::mtu;
use crate::notify::Notify;
use crate::opened::{Attempt, is_alone, open_all};
use crate::privileges::{self, Becomes};
use crate::sandbox::Sandbox;
use crate::served::{Life, listen_to_signals, serve_metrics};
use crate::status::{Snapshot, Status};
use crate::uplink;
use rustix::fs::Mode;
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::engine::Engine;
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::vhost;
use sluicenet_node::gate::StationPolicy;
use sluicenet_proto::time::Duration as Time;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use tracing::{info, warn};

/// The longest time that an ending switch goes on delivering its frames, if endpoints accept some of them; shorter than
/// the wait of `switch stop`.
const DRAIN_AT_MOST: Time = Time::from_secs(20);
/// The time after which it stops delivering if endpoints accept none.
const DRAIN_PATIENCE: Time = Time::from_secs(2);

/// The ports of the file, opened by the helper.
struct InitialPorts {
    uplink: Option<Box<dyn Port>>,
    ports: Vec<(PortConfig, Attempt)>,
}

impl InitialPorts {
    /// Opens the ports.
    fn open(config: &Config, helper: Option<&Arc<Helper>>) -> io::Result<InitialPorts> {
        let uplink = config.uplink.as_ref().map(|uplink| uplink::open_by(helper, uplink, &config.vale)).transpose();
        let uplink = uplink.map_err(|e| io::Error::new(e.kind(), format!("uplink: {e}")))?;
        let opened = open_all(&config.ports, &config.vale, helper).map_err(io::Error::other)?;
        Ok(InitialPorts { uplink, ports: config.ports.iter().cloned().zip(opened).collect() })
    }
}

/// The engine's thread. It returns the outcome of its loop, the number of frames given up at the end, and the last
/// state.
type EngineThread = JoinHandle<(io::Result<()>, u64, Snapshot)>;

/// Runs the engine on its own thread until `stop`, and then delivers the frames that it holds.
fn run_engine(mut engine: Engine, stop: Arc<AtomicBool>) -> io::Result<EngineThread> {
    std::thread::Builder::new().name("switch".into()).spawn(move || {
        let outcome = engine.run(&stop);
        let given_up = if outcome.is_ok() { engine.drain(DRAIN_PATIENCE, DRAIN_AT_MOST) } else { 0 };
        (outcome, given_up, Snapshot::of(&engine))
    })
}

/// The ports that commands added to an earlier switch at this control socket. Ports of the file go before them.
fn attached_ports(config: &Config) -> io::Result<Vec<PortConfig>> {
    let mut ports: Vec<PortConfig> = Vec::new();
    for record in Records::at(&config.control).all()?.into_iter().filter(|record| record.added) {
        let port = match port_from_words(&record.port, &record.settings) {
            Ok(port) => PortConfig { attached: true, ..port },
            Err(e) => {
                warn!(port = record.port, reason = %e.sentence(), "attached port left out");
                continue;
            }
        };
        let all = || config.ports.iter().chain(&ports);
        let clash = all().find_map(|other| Some(port.clash_with(other)?.beside(&other.name)));
        let reason = match clash {
            _ if all().any(|other| other.name == port.name) => format!("there is a port {} already", port.name),
            Some(clash) => clash,
            None if all().count() >= config.ports_max => format!("the switch has {} ports", config.ports_max),
            None if all().chain([&port]).flat_map(PortConfig::stations).count() > config.vale.stations => {
                "`stations` are all given to ports already".to_owned()
            }
            None => {
                let policy = config.policy.as_ref();
                let refused = policy.and_then(|policy| objection(policy, &port, &config.vale, config.uplink.as_ref()));
                match refused.map(|(_, why)| why).or_else(|| is_alone(&port, all()).err()) {
                    Some(why) => why,
                    None => {
                        let before: Vec<PortConfig> = all().cloned().collect();
                        ports.push(PortConfig { further: port.is_further(&before), ..port });
                        continue;
                    }
                }
            }
        };
        warn!(port = port.name, reason, "attached port left out");
    }
    Ok(ports)
}

/// Lets a group connect to the sockets of guests, whatever mask the switch was started with. Nothing else that it makes is for
/// others: all other files have a mode of their own.
fn share_sockets(group: &str) -> io::Result<()> {
    vhost::share_sockets(privileges::group(group)?)?;
    rustix::process::umask(Mode::RWXO);
    Ok(())
}

/// Says what the user of the switch does not protect, or may not do.
fn warn_of_user(config: &Config, becomes: Option<&Becomes>) {
    let user = becomes.map_or("root", Becomes::name);
    if becomes.is_some_and(Becomes::is_shared) && config.user.is_none() {
        let reason = "there is no account sluicenet, and other services may run as this user; make the account, or name one \
                      as `user`";
        warn!(user, reason, "shared user");
    }
    if rustix::process::geteuid().is_root() {
        let reason = "it may write all files of root and connect to all Unix sockets of this host; name another `user`";
        warn!(user, reason, "switch runs as root");
    }
    for path in config.files() {
        if let Err(e) = rustix::fs::access(path, rustix::fs::Access::READ_OK) {
            let reason = format!("{}: {}; a reload takes it", path.display(), io::Error::from(e));
            warn!(user, reason, "file not readable");
        }
    }
}

impl Daemon {
    /// Runs a switch until the control socket or a signal stops it. A helper opens its devices.
    ///
    /// # Errors
    /// A port or the control socket cannot be opened, or a system call of the engine fails.
    pub fn run(mut config: Config, helper: helper::From<'_>) -> io::Result<Status> {
        let socket = Socket::bind(&config.control)?;
        let helper = Helper::of(helper)?.map(Arc::new);
        config.socket_group.as_deref().map_or(Ok(()), share_sockets)?;
        let attached = attached_ports(&config)?;
        config.ports.extend(attached);
        let metrics = config.metrics.map(metrics::Server::bind).transpose()?;
        let becomes = Becomes::of_switch(config.user.as_deref())?;
        let notify = Notify::connect();
        let mut engine = Engine::new(config.ports_max, config.vale.clone());
        let (remote, events) = (engine.remote()?, engine.events());
        // A frame for a port that is not open yet would be flooded.
        engine.wait();
        let ports = InitialPorts::open(&config, helper.as_ref())?;
        mtu::warnings(&config).iter().for_each(|reason| warn!(reason, "packets too large"));
        // Before the first thread starts: each thread has its own privileges.
        let left = privileges::drop_all_but(CapabilitySet::empty(), becomes.as_ref())?;
        warn_of_user(&config, becomes.as_ref());
        let sandbox = Sandbox::enter(&config)?;
        info!(
            name = config.name,
            pid = std::process::id(),
            control = %config.control.display(),
            metrics = metrics.as_ref().map(|m| m.address().to_string()),
            uid = left.uid,
            gid = left.gid,
            capabilities = left.capabilities,
            sandbox = sandbox.limits,
            "switch started"
        );
        config.warnings().into_iter().for_each(|reason| warn!(reason, "losses to expect"));
        let policy = config.policy.clone();
        let daemon = Arc::new(Daemon {
            remote,
            state: Mutex::new(State { config, ports: Vec::new(), made: 0 }),
            reloads: Mutex::new(()),
            changes: RwLock::new(()),
            life: Life::new(socket.listener()?),
            notify,
            sandbox,
            helper,
        });
        let (signals, signal_thread) = listen_to_signals(&daemon)?;
        let stop = Arc::new(AtomicBool::new(false));
        let switch = run_engine(engine, Arc::clone(&stop))?;
        let watched = Arc::clone(&daemon);
        let watcher =
            std::thread::Builder::new().name("log".into()).spawn(move || watched.life.log.watch(&*watched, &events))?;
        serve_metrics(&daemon, metrics)?;
        let outcome = daemon.install_all(ports, policy).and_then(|()| {
            daemon.tell_ready();
            socket.serve(&daemon)
        });
        daemon.notify.stopping();
        stop.store(true, Ordering::Relaxed);
        // An empty job wakes the engine, which then sees `stop`.
        let _ = daemon.remote.post(|_| {});
        let (ran, given_up, last) = switch.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        // Only now: ports that end may need it.
        daemon.helper.iter().for_each(|helper| helper.end());
        signals.close();
        let _ = signal_thread.join();
        let _ = watcher.join();
        outcome?;
        ran?;
        let status = daemon.status_of(&last);
        daemon.life.log.say_refused(&status);
        let l = status.ledger;
        info!(
            accepted = l.accepted,
            delivered = l.delivered,
            dropped = l.dropped,
            queued = l.queued,
            given_up,
            "switch stopped"
        );
        Ok(status)
    }

    /// Puts the ports that were opened at the start into service.
    fn install_all(&self, initial: InitialPorts, policy: Option<Arc<StationPolicy>>) -> io::Result<()> {
        // The uplink first: its number is in the switch's table.
        if let Some(uplink) = initial.uplink {
            self.install_uplink(uplink)?;
        }
        self.remote.run(move |engine| engine.set_policy(policy))?;
        for (port, attempt) in initial.ports {
            self.begin(port, attempt).map_err(io::Error::other)?;
        }
        self.remote.run(|engine| engine.begin())
    }
}
