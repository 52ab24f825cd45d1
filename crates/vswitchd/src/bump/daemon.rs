//! A bump as a process: each of its loops has its own thread, and other threads handle requests.

mod loops;
mod open;
mod shown;

use super::config::{Config, Others};
use super::map::Downstream;
use crate::config::{PortConfig, PortKind, keep_control};
use crate::control::{Answer, Request, Socket};
use crate::metrics;
use crate::opened::Ready;
use crate::privileges::{self, Becomes};
use crate::served::{Attached, Life, Served, listen_to_signals, serve_metrics};
use crate::status::Status;
use loops::{new_loops, run_loop};
use open::open;
use shown::neighbour_at;
use sluicenet_dataplane::bump::Loop;
use sluicenet_dataplane::clock::monotonic_ns;
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::tap::{Capture, tap};
use sluicenet_proto::netbump::{self, Map, QueueId};
use sluicenet_proto::units::Rate;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::info;

/// The state that requests change.
#[derive(Debug)]
struct State {
    config: Config,
    /// The virtual queues in use: their downstream ports.
    queues: Vec<(QueueId, Downstream)>,
    /// The speeds that neighbours say their ports have, by end.
    learned: Vec<Option<Rate>>,
    /// Ports in shared memory with a program, and why ports are absent.
    attached: Vec<String>,
    absent: Vec<(String, String)>,
}

/// A running bump.
#[derive(Debug)]
pub struct Daemon {
    remotes: Vec<Remote<dyn Loop>>,
    state: Mutex<State>,
    /// The first virtual queues of unlisted destinations, and all virtual queues.
    capacity: usize,
    life: Life,
}

/// The end of a loop at which a port of a link is: a loop has one link.
fn place(pipelines: usize, link: usize, part: usize) -> usize {
    link * pipelines + part
}

/// The virtual queues of a file: those of the map, and one for each end of a link where unlisted destinations have one.
fn queues_of(config: &Config, learned: &[Option<Rate>], capacity: usize) -> Vec<(QueueId, Downstream)> {
    let mut queues: Vec<(QueueId, Downstream)> = (0..).zip(config.map.ports.iter().cloned()).collect();
    for (at, leads_to) in config.links.iter().flatten().enumerate() {
        let Some(rate) = others_at(config, learned, at) else { continue };
        let port = netbump::Port { rate, buffer_bytes: config.buffer };
        let name = format!("others at {}", leads_to.name);
        queues.push(((capacity + at) as QueueId, Downstream { number: None, name, port }));
    }
    queues
}

/// The speed of the ports to unlisted stations behind an end of a link.
fn others_at(config: &Config, learned: &[Option<Rate>], at: usize) -> Option<Rate> {
    match config.others? {
        Others::Rate(rate) => Some(rate),
        Others::Lldp => learned.get(at).copied().flatten(),
    }
}

/// The maps of the two ends of a link: each that of frames which leave by the other end.
fn maps_of(config: &Config, learned: &[Option<Rate>], link: usize, capacity: usize) -> Vec<Map> {
    let others = |end: usize| {
        let at = 2 * link + end;
        others_at(config, learned, at).map(|_| (capacity + at) as QueueId)
    };
    vec![config.map.map(others(1)), config.map.map(others(0))]
}

impl Daemon {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a bump until the control socket or a signal stops it.
    ///
    /// # Errors
    /// A port or the control socket cannot be opened, or a system call of a loop fails.
    pub fn run(config: Config) -> io::Result<Status> {
        let socket = Socket::bind(&config.control)?;
        let metrics = config.metrics.map(metrics::Server::bind).transpose()?;
        let becomes = config.user.as_deref().map(Becomes::user).transpose()?.flatten();
        let (ready, keep, _wires) = open(&config)?;
        // Before the first thread starts: each thread has its own privileges.
        let left = privileges::drop_all_but(keep, becomes.as_ref())?;
        let capacity = config.map.capacity();
        let queues = queues_of(&config, &[], capacity);
        let mut loops = new_loops(&config, &queues, capacity)?;
        let events: Vec<_> = loops.iter_mut().map(|one| one.events()).collect();
        let mut remotes = Vec::new();
        for one in &mut loops {
            remotes.push(one.remote()?);
        }
        for (at, end, opened) in ready {
            let port: Box<dyn Port> = match opened.ready().map_err(|e| io::Error::other(e.reason))? {
                Ready::Port(port, _) => port,
                Ready::Guest(port) => port,
                Ready::Attached => continue,
            };
            loops[at].plug(end, port).map_err(io::Error::from)?;
        }
        info!(
            name = config.name,
            pid = std::process::id(),
            control = %config.control.display(),
            links = config.links.len(),
            loops = loops.len(),
            metrics = metrics.as_ref().map(|m| m.address().to_string()),
            uid = left.uid,
            gid = left.gid,
            capabilities = left.capabilities,
            "bump started"
        );
        let (patience, cores) = (config.sleep_after, config.cores.clone());
        let learned = vec![None; 2 * config.links.len()];
        let state = State { config, queues, learned, attached: Vec::new(), absent: Vec::new() };
        let daemon =
            Arc::new(Daemon { remotes, state: Mutex::new(state), capacity, life: Life::new(socket.listener()?) });
        let (signals, signal_thread) = listen_to_signals(&daemon)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (n, one) in loops.into_iter().enumerate() {
            threads.push(run_loop(n, one, cores.get(n).copied(), patience, Arc::clone(&stop))?);
        }
        let mut watchers = Vec::new();
        for events in events {
            let watched = Arc::clone(&daemon);
            watchers.push(std::thread::spawn(move || watched.life.log.watch(&*watched, &events)));
        }
        serve_metrics(&daemon, metrics)?;
        let outcome = socket.serve(&daemon);
        stop.store(true, Ordering::Relaxed);
        // An empty job wakes a sleeping loop, which then sees `stop`.
        daemon.remotes.iter().for_each(|remote| _ = remote.post(|_| {}));
        let (mut reports, mut queues, mut ran) = (Vec::new(), Vec::new(), Ok(()));
        for thread in threads {
            let (outcome, report, table) = thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            reports.push(report);
            queues = table;
            ran = ran.and(outcome);
        }
        signals.close();
        let _ = signal_thread.join();
        watchers.into_iter().for_each(|watcher| _ = watcher.join());
        outcome?;
        ran?;
        let status = daemon.status_of(&reports, &queues, monotonic_ns());
        let l = status.ledger;
        info!(accepted = l.accepted, delivered = l.delivered, dropped = l.dropped, "bump stopped");
        Ok(status)
    }

    /// Runs a job in every loop.
    fn each<R: Send + 'static>(
        &self,
        job: impl Fn(usize, &mut dyn Loop) -> R + Clone + Send + 'static,
    ) -> io::Result<Vec<R>> {
        let one = |(n, remote): (usize, &Remote<dyn Loop>)| {
            let job = job.clone();
            remote.run(move |one| job(n, one))
        };
        self.remotes.iter().enumerate().map(one).collect()
    }

    /// Gives the loops the map of a file and of what was learned; returns how many virtual queues begin anew.
    fn apply(&self, new: Config) -> io::Result<usize> {
        let (before, learned) = {
            let state = self.state();
            (state.queues.clone(), state.learned.clone())
        };
        let queues = queues_of(&new, &learned, self.capacity);
        let anew: Vec<(QueueId, netbump::Port)> =
            queues.iter().filter(|queue| !before.contains(queue)).map(|(id, d)| (*id, d.port)).collect();
        let (changed, config, capacity) = (anew.len(), new.clone(), self.capacity);
        self.each(move |n, one| {
            // The table is one for all loops.
            let anew = if n == 0 { &anew[..] } else { &[] };
            one.set_maps(&maps_of(&config, &learned, n / config.pipelines, capacity), anew);
        })?;
        let mut state = self.state();
        (state.config, state.queues) = (new, queues);
        Ok(changed)
    }

    /// Learns the speeds that neighbours say their ports have.
    fn learn(&self) -> io::Result<()> {
        let config = self.state().config.clone();
        if config.others != Some(Others::Lldp) {
            return Ok(());
        }
        let reports = self.each(|_, one| one.report())?;
        let mut learned = self.state().learned.clone();
        for (at, known) in learned.iter_mut().enumerate() {
            let parts = (0..config.pipelines).map(|part| place(config.pipelines, at / 2, part));
            let said = parts.filter_map(|n| neighbour_at(&reports[n].ends[at % 2])?.mbps).next();
            // A neighbour that falls silent leaves what it has said: its link is as fast as before.
            *known = said.map(|mbps| Rate::mbps(mbps.into())).or(*known);
        }
        if learned != self.state().learned {
            self.state().learned = learned;
            let changed = self.apply(config)?;
            info!(changed, "speeds learned by LLDP");
        }
        Ok(())
    }

    /// The loop and the end of a port.
    fn find(&self, name: &str) -> Option<(usize, usize, PortConfig)> {
        let state = self.state();
        let at = state.config.links.iter().flatten().position(|port| port.name == name)?;
        let port = state.config.links[at / 2][at % 2].clone();
        Some((place(state.config.pipelines, at / 2, 0), at % 2, port))
    }
}

impl Served for Daemon {
    fn life(&self) -> &Life {
        &self.life
    }

    fn status(&self) -> io::Result<Status> {
        let reports = self.each(|_, one| one.report())?;
        // The table is one for all loops.
        let (queues, read_at_ns) = self.remotes[0].run(|one| (one.report_queues(), monotonic_ns()))?;
        Ok(self.status_of(&reports, &queues, read_at_ns))
    }

    fn reload(&self) -> Result<String, String> {
        let old = self.state().config.clone();
        let mut new = Config::load_with(&old.file, old.app_file.as_ref()).map_err(|e| e.to_string())?;
        keep_control(&mut new.control, &new.name, &old.control);
        let same = [
            ("name", new.name == old.name),
            ("control", new.control == old.control),
            ("[[link]]", new.links == old.links),
            ("[[app]]", format!("{:?}", new.applications) == format!("{:?}", old.applications)),
            ("[[app]], or the program's file,", new.program == old.program),
            ("[updates]", new.updates == old.updates),
            ("pipelines", new.pipelines == old.pipelines),
            ("cores", new.cores == old.cores),
            ("sleep_after", new.sleep_after == old.sleep_after),
            ("notification_priority", new.notification_priority == old.notification_priority),
            ("user", new.user == old.user),
            ("metrics", new.metrics == old.metrics),
            ("log", new.log == old.log),
            ("others", new.others == old.others),
            ("mac", new.mac == old.mac),
            ("when_dead", new.when_dead == old.when_dead),
        ];
        if let Some((what, _)) = same.iter().find(|(_, same)| !same) {
            return Err(format!("`{what}` cannot change while the bump runs; nothing was changed"));
        }
        if new.updates.is_some() && new.map.ports != old.map.ports {
            return Err("the ports of the map cannot change while the bump has [updates]; nothing was changed".into());
        }
        if new.map.ports.len() > self.capacity {
            return Err(format!("the bump was started with room for {} ports; nothing was changed", self.capacity));
        }
        let stations = new.map.destinations.len();
        let changed = self.apply(new).map_err(|e| e.to_string())?;
        Ok(format!("{stations} stations, {changed} virtual queues begin anew"))
    }

    fn answer(&self, request: Request) -> Answer {
        let outcome = match request {
            Request::About | Request::AddPort { .. } | Request::DelPort { .. } => {
                Err("a bump has the links of its file: change the file and start it again".into())
            }
            Request::Macs => Err("a bump has no forwarding table".into()),
            Request::Show | Request::Reload | Request::Attach { .. } | Request::Capture { .. } | Request::Stop => {
                Err("not here".into())
            }
        };
        outcome.map_or_else(Answer::Error, Answer::Ok)
    }

    fn attach(&self, name: &str) -> Result<Attached<'_>, String> {
        let (at, end, port) = self.find(name).ok_or(format!("there is no port {name}"))?;
        let PortKind::Shm { buffers } = port.kind else {
            return Err(format!("port {name} is of kind {}: programs attach to shm", port.kind.name()));
        };
        let mut state = self.state();
        if state.attached.iter().any(|other| other == name) {
            return Err(format!("somebody is attached to port {name}"));
        }
        let access = self.remotes[at]
            .run(move |one| {
                // A port that broke, or whose program has gone.
                one.unplug(end);
                one.plug_shm(end, buffers)
            })
            .and_then(|plugged| plugged)
            .map_err(|e| e.to_string())?;
        state.attached.push(name.to_owned());
        info!(port = name, "port attached");
        let name = name.to_owned();
        let release = move || {
            let _ = self.remotes[at].run(move |one| one.unplug(end));
            self.state().attached.retain(|other| *other != name);
            info!(port = name, "port detached");
        };
        Ok(Attached { access, mac: port.mac, ip: None, mtu: None, release: Some(Box::new(release)) })
    }

    fn capture(&self, name: &str, snaplen: u32) -> Result<Capture, String> {
        let (at, end, _) = self.find(name).ok_or(format!("there is no port {name}"))?;
        if self.state().config.pipelines > 1 {
            return Err(format!("port {name} has several pipelines: capture at its device, with tcpdump"));
        }
        let (tap, capture) = tap(snaplen);
        match self.remotes[at].run(move |one| one.set_tap(end, tap)).map_err(|e| e.to_string())? {
            true => Ok(capture),
            false => Err(format!("nobody is at port {name}, or it is being captured")),
        }
    }

    fn close(&self, capture: &Capture) {
        capture.close();
        let _ = self.each(|_, one| one.sweep_taps());
    }

    fn broke(&self, name: &str, reason: &str) {
        self.state().absent.push((name.to_owned(), reason.to_owned()));
    }

    fn every_second(&self) {
        // A stopped bump learns nothing.
        let _ = self.learn();
    }
}
