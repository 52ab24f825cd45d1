//! Helpers of the tests.

use sluicenet_dataplane::engine::{Access, Engine, Event, PortReport};
use sluicenet_dataplane::kernel::lan::{Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns;
use sluicenet_dataplane::kernel::valve::{Listening, ValveConfig, ValvePort};
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::remote::Remote;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Whether namespaces can be made; says why the test is skipped, if not.
pub fn possible() -> bool {
    match netns::may_make_namespaces() {
        Ok(()) => true,
        Err(e) => {
            eprintln!("SKIPPED: {e}");
            false
        }
    }
}

/// A switch that runs on a thread of its own, and its tenants.
pub struct Running {
    stop: Arc<AtomicBool>,
    pub remote: Remote<Engine>,
    thread: Option<JoinHandle<Engine>>,
    lan: Option<Lan>,
    pub events: Mutex<Receiver<Event>>,
}

/// Valves at tenants, all their sockets first, as a switch opens them.
pub fn valves_at(lan: &Lan, tenants: usize, config: &ValveConfig) -> Vec<Box<dyn Port>> {
    let listening: Vec<_> = (0..tenants).map(|i| Listening::open(lan.veth(i), config).unwrap()).collect();
    // Each may wait for its own tenant's first frame.
    std::thread::scope(|scope| {
        let serve = |(i, at): (usize, Listening)| {
            scope.spawn(move || ValvePort::of(at.learn(lan.veth(i), config).unwrap(), config))
        };
        let serving: Vec<_> = listening.into_iter().enumerate().map(serve).collect();
        serving.into_iter().map(|port| -> Box<dyn Port> { Box::new(port.join().unwrap()) }).collect()
    })
}

impl Running {
    /// A valve at each of the tenants.
    pub fn valves(tag: &str, tenants: usize, config: ValveConfig) -> Running {
        let lan = Lan::create(tag, tenants, Wiring::Valve).unwrap();
        let ports = valves_at(&lan, tenants, &config);
        Running::start(lan, ports)
    }

    /// Ends the switch in order; returns the undelivered frames and the tenants.
    pub fn end(self) -> (u64, Lan) {
        self.stop.store(true, Ordering::Relaxed);
        // The engine looks once more.
        let _ = self.remote.post(|_| ());
        let mut running = self;
        let mut engine = running.thread.take().unwrap().join().unwrap();
        let left = engine.drain(Duration::from_secs(60), Duration::from_secs(60));
        let (accepted, delivered, dropped) = engine.ledger();
        assert!(left > 0 || accepted == delivered + dropped);
        (left, running.lan.take().unwrap())
    }

    /// Port `i` is at tenant `i`. Without a watchdog at the ports: however slow the machine, only tests about it may hang on
    /// time.
    pub fn start(lan: Lan, ports: Vec<Box<dyn Port>>) -> Running {
        let ports = ports.into_iter().map(|port| (port, Access::default())).collect();
        Running::start_with(lan, PrioritySet::ALL, ports)
    }

    /// Starts a switch with some lossless classes, and with the permissions of each port.
    pub fn start_with(lan: Lan, lossless: PrioritySet, ports: Vec<(Box<dyn Port>, Access)>) -> Running {
        let vale = ValeConfig { lossless, watchdog: WatchdogConfig::OFF, ..ValeConfig::default() };
        let mut engine = Engine::new(ports.len(), vale);
        for (i, (port, access)) in ports.into_iter().enumerate() {
            engine.plug(i, &format!("tenant-{i}"), port, access).unwrap();
            assert!(engine.give(Lan::mac(i), 0, i));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (remote, events) = (engine.remote().unwrap(), engine.events());
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            engine.run(&flag).unwrap();
            engine
        });
        Running { stop, remote, thread: Some(thread), lan: Some(lan), events: Mutex::new(events) }
    }

    pub fn lan(&self) -> &Lan {
        self.lan.as_ref().unwrap()
    }

    pub fn report(&self, k: usize) -> PortReport {
        self.remote.run(move |engine| engine.report(k)).unwrap().unwrap()
    }

    pub fn counter(&self, k: usize, name: &str) -> u64 {
        let report = self.report(k);
        report.own.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    /// Everything that the kernel threw away at the ports; and that the switch's sums balance.
    pub fn edge(&self) -> Vec<(usize, &'static str, u64)> {
        let (_, _, dropped) = self.remote.run(|engine| engine.ledger()).unwrap();
        let ports = self.remote.run(|engine| engine.port_count()).unwrap();
        // The IPv6 multicasts that a tenant sends now and then never make a sender wait.
        let flooded = |k| self.report(k).counters.dropped.frames(DropReason::FloodNoRoom);
        assert_eq!(dropped, (0..ports).map(flooded).sum::<u64>());
        self.kernel_losses()
    }

    /// Everything that the kernel threw away at the ports.
    pub fn kernel_losses(&self) -> Vec<(usize, &'static str, u64)> {
        let ports = self.remote.run(|engine| engine.port_count()).unwrap();
        let all = (0..ports).flat_map(|k| self.report(k).own.into_iter().map(move |(n, v)| (k, n, v)));
        // The whole system's: other programs lose frames there, too; ours would be missed at the sinks.
        let all = all.filter(|(_, name, _)| name.starts_with("edge_") && *name != "edge_softnet");
        all.filter(|(_, _, value)| *value > 0).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The engine looks once more.
        let _ = self.remote.post(|_| ());
        // An engine that was ended has no thread.
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || !matches!(ended, Some(Err(_))));
    }
}

/// Sends `count` datagrams, however long it takes.
pub fn send_all(mut sender: Sender, count: u64) -> u64 {
    while sender.sent() < count {
        sender.send(count - sender.sent()).unwrap();
    }
    sender.sent()
}

/// Waits until something is so: for five minutes, however loaded the machine.
pub fn wait_for(mut so: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !so() {
        assert!(started.elapsed().as_secs() < 300, "what was waited for does not happen");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Receives until `count` have come, or nothing more comes for half a minute.
pub fn receive_all(mut sink: Sink, count: u64, mut pause: impl FnMut(u64)) -> Sink {
    let mut quiet = 0;
    while sink.received() < count && quiet < 600 {
        pause(sink.received());
        quiet = if sink.receive(64).unwrap() == 0 { quiet + 1 } else { 0 };
    }
    sink
}
