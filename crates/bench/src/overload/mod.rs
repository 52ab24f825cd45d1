//! The loss study of Crisan 2014, 4.2.3: two senders and a sink, in namespaces or QEMU guests, over a virtual switch.
//! It finds the number and the places of losses.

mod guests;
pub mod load;
mod namespaces;
mod seen;
pub mod sweep;

use super::ovs::{self, Ovs};
use guests::{Guests, SwitchNamespace};
use load::Load;
use seen::{Counted, Seen};
use serde::Serialize;
use sluicenet_dataplane::engine::{Access, Engine, PortReport};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::lan::{Lan, Wiring};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::socket::{Peer, SocketPort};
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::vhost;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_testbed::guest::{GuestError, Nic};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Over which switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// This project's, a valve at each port
    Ours,
    /// The Linux bridge
    Bridge,
    /// Open vSwitch with its datapath in user space
    Ovs,
}

/// Setup of the measurement.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The switch under test.
    pub switch: Switch,
    /// Guests with such a network device; namespaces without.
    pub guests: Option<Nic>,
    /// Whether, over our switch, an agent in the sink's guest reports the free space of its sockets.
    pub agent: bool,
    /// For files of guests and of Open vSwitch.
    pub scratch: PathBuf,
}

/// Kind of the senders and of the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tenants {
    /// Network namespaces, each by a veth pair.
    Namespaces,
    /// QEMU guests with a virtio network device.
    Virtio,
    /// QEMU guests with an emulated Intel one.
    E1000,
}

/// Counts at the six points of measurement: datagrams at 1 and 6, frames at the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// 1: taken by the senders' `send()`.
    pub sent: u64,
    /// 2: sent by their devices.
    pub sender_device: u64,
    /// 3: come in at the switch's ports.
    pub switch_in: u64,
    /// 4: gone out at the port to the sink.
    pub switch_out: u64,
    /// 5: received by its device.
    pub sink_device: u64,
    /// 6: returned by its `recv()`.
    pub received: u64,
}

/// Datagrams lost, by the place where it was counted, on the way from sender to sink.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Points {
    /// In the queues of the senders' devices.
    pub sender_qdisc: u64,
    /// At the senders' devices and their peers; of guests also in QEMU, before the switch's port.
    pub sender_device: u64,
    /// In the switch. For a switch that does not count, losses at no other point.
    pub switch: u64,
    /// At the sink's device and its peer; of a guest also between the switch's port and the guest.
    pub sink_device: u64,
    /// Between the devices and the stack.
    pub softnet: u64,
    /// At the sink's socket.
    pub socket: u64,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The switch under test.
    pub switch: Switch,
    /// Kind of the senders and of the sink.
    pub tenants: Tenants,
    /// Mb/s of datagrams that both senders together were to send; absent when they sent as fast as they could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_mbps: Option<f64>,
    /// How long the senders sent.
    pub seconds: f64,
    /// Bytes of a datagram.
    pub payload: usize,
    /// Datagrams that `send()` took.
    pub sent: u64,
    /// Datagrams that `recv()` returned.
    pub received: u64,
    /// Datagrams that were sent and not received.
    pub lost: u64,
    /// The share of lost datagrams, in percent.
    pub lost_percent: f64,
    /// Mb/s of datagrams that both senders together did send.
    pub sent_mbps: f64,
    /// Mb/s received, from the first datagram to the last.
    pub received_mbps: f64,
    /// Thousands of datagrams received a second, from the first to the last.
    pub received_kpps: f64,
    /// Datagrams that came out of order, twice, or after a gap.
    pub disordered: u64,
    /// Where they were lost.
    pub lost_at: Points,
    /// Counts at the six points of measurement.
    pub passed: Passed,
}

/// Why it could not be measured.
#[derive(Debug)]
pub enum OverloadError {
    /// Something of the kernel's was not to be had.
    Kernel(KernelError),
    /// Open vSwitch did not start.
    Ovs(ovs::OvsError),
    /// No guest, or no answer of it.
    Guest(GuestError),
    /// A socket failed.
    Io(io::Error),
}

impl fmt::Display for OverloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverloadError::Kernel(e) => e.fmt(f),
            OverloadError::Ovs(e) => e.fmt(f),
            OverloadError::Guest(e) => e.fmt(f),
            OverloadError::Io(e) => write!(f, "a socket of the experiment: {e}"),
        }
    }
}
impl std::error::Error for OverloadError {}
impl From<KernelError> for OverloadError {
    fn from(e: KernelError) -> OverloadError {
        OverloadError::Kernel(e)
    }
}
impl From<ovs::OvsError> for OverloadError {
    fn from(e: ovs::OvsError) -> OverloadError {
        OverloadError::Ovs(e)
    }
}
impl From<io::Error> for OverloadError {
    fn from(e: io::Error) -> OverloadError {
        OverloadError::Io(e)
    }
}

const SENDERS: usize = 2;
const SINK: usize = 2;

/// How long a first datagram may take: a switch may need some time to know its ports.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// A switch that did not know the sink, and sent to every port, knows the sink so long after its first frame. Open
/// vSwitch updates its memory of flows twice a second.
const LEARNED_WITHIN: Duration = Duration::from_secs(1);

/// Measures once.
pub fn run(setup: &Setup, load: &Load, stop: &AtomicBool) -> Result<Figures, OverloadError> {
    Rig::start(setup)?.measure(load, stop)
}

/// Senders, switch and sink, for any number of measurements. Senders end before the devices that they send through.
#[derive(Debug)]
pub struct Rig {
    switch: Switch,
    guests: Option<Nic>,
    who: Who,
    under: Under,
    namespaces: Namespaces,
}

/// Senders and sink.
#[derive(Debug)]
enum Who {
    Namespaces,
    Guests(Guests),
}

/// The switch.
#[derive(Debug)]
enum Under {
    Ours(Running),
    Bridge,
    Ovs {
        /// Ends with this.
        _running: Ovs,
    },
}

/// The namespaces, which are deleted in the end.
#[derive(Debug)]
enum Namespaces {
    Lan(Lan),
    Switch(SwitchNamespace),
}

impl Namespaces {
    fn switch(&self) -> &Namespace {
        match self {
            Namespaces::Lan(lan) => lan.switch(),
            Namespaces::Switch(namespace) => &namespace.0,
        }
    }
}

impl Rig {
    /// Sets it up and waits until the first datagram came through.
    pub fn start(setup: &Setup) -> Result<Rig, OverloadError> {
        let tag = format!("overload-{}", std::process::id());
        let mut rig = match setup.guests {
            None => Rig::in_namespaces(setup, &tag)?,
            Some(nic) => Rig::in_guests(setup, nic, &tag)?,
        };
        if let (Who::Guests(guests), Under::Ours(running), true) = (&mut rig.who, &rig.under, setup.agent) {
            guests.start_agent(SINK)?;
            running.until_agent(SINK)?;
        }
        let started = Instant::now();
        let first = Load { payload: 64, time: Duration::from_millis(100), rate: Some(0.1) };
        while rig.exchange(&first, &AtomicBool::new(false))?.1.received == 0 {
            if started.elapsed() > SETTLED_WITHIN {
                let why = format!("no datagram came through the switch for {} s", SETTLED_WITHIN.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
            }
        }
        match (&mut rig.who, &rig.namespaces) {
            (Who::Guests(guests), _) => guests.introduce(SINK)?,
            (Who::Namespaces, Namespaces::Lan(lan)) => namespaces::introduce(lan, SINK)?,
            (Who::Namespaces, Namespaces::Switch(_)) => unreachable!("namespaces are in a LAN"),
        }
        std::thread::sleep(LEARNED_WITHIN);
        Ok(rig)
    }

    fn in_namespaces(setup: &Setup, tag: &str) -> Result<Rig, OverloadError> {
        let wiring = match setup.switch {
            Switch::Ours => Wiring::Valve,
            Switch::Bridge => Wiring::Plain,
            // Open vSwitch hands frames on unchanged: checksums have to be in them.
            Switch::Ovs => Wiring::Checksummed,
        };
        let lan = Lan::create(tag, SENDERS + 1, wiring)?;
        (0..=SENDERS).map(|i| lan.tenant(i)).chain([lan.switch()]).try_for_each(Namespace::silence)?;
        let devices: Vec<_> = (0..=SENDERS).map(|i| lan.veth(i).switch_device.to_owned()).collect();
        let under = match setup.switch {
            Switch::Ours => {
                let config = ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() };
                let mut engine = engine();
                for i in 0..=SENDERS {
                    let port = ValvePort::open(lan.veth(i), &config)?;
                    plug(&mut engine, i, Box::new(port))?;
                }
                Under::Ours(Running::start(engine)?)
            }
            Switch::Bridge | Switch::Ovs => kernel_switch(setup, lan.switch(), &devices)?,
        };
        let (switch, guests) = (setup.switch, setup.guests);
        Ok(Rig { switch, guests, who: Who::Namespaces, under, namespaces: Namespaces::Lan(lan) })
    }

    fn in_guests(setup: &Setup, nic: Nic, tag: &str) -> Result<Rig, OverloadError> {
        let namespace = SwitchNamespace::create(tag)?;
        namespace.0.silence()?;
        let devices: Vec<_> = (0..=SENDERS).map(guests::tap).collect();
        let (who, under) = match (setup.switch, nic) {
            (Switch::Ours, Nic::Virtio) => {
                let mut engine = engine();
                for i in 0..=SENDERS {
                    let mut port = vhost::Port::open(vhost::Socket::Listen(guests::socket(&setup.scratch, i)))?;
                    if setup.agent && i == SINK {
                        port = port.with_agent()?;
                    }
                    engine.plug_vhost(i, &name(i), port, Access::default()).map_err(io::Error::from)?;
                    engine.give(Lan::mac(i), 0, i);
                }
                let running = Running::start(engine)?;
                (Guests::start(setup, nic, &namespace.0, &[])?, Under::Ours(running))
            }
            (Switch::Ours, Nic::E1000) => {
                let (mut engine, mut ends) = (engine(), Vec::new());
                for i in 0..=SENDERS {
                    let (port, end) = SocketPort::pair(setup.agent && i == SINK)?;
                    plug(&mut engine, i, Box::new(port))?;
                    ends.push(end);
                }
                let running = Running::start(engine)?;
                let guests = Guests::start(setup, nic, &namespace.0, &ends)?;
                ends.into_iter().try_for_each(Peer::set_blocking)?;
                (guests, Under::Ours(running))
            }
            (Switch::Bridge | Switch::Ovs, _) => {
                let guests = Guests::start(setup, nic, &namespace.0, &[])?;
                namespace.0.enter(|| {
                    let mut links = Links::open()?;
                    devices.iter().try_for_each(|device| links.up(device))
                })??;
                (guests, kernel_switch(setup, &namespace.0, &devices)?)
            }
        };
        let (switch, guests) = (setup.switch, setup.guests);
        Ok(Rig { switch, guests, who: Who::Guests(who), under, namespaces: Namespaces::Switch(namespace) })
    }

    fn exchange(&mut self, load: &Load, stop: &AtomicBool) -> Result<(Vec<load::Sent>, load::Received), OverloadError> {
        match (&mut self.who, &self.namespaces) {
            (Who::Guests(guests), _) => guests.exchange(load),
            (Who::Namespaces, Namespaces::Lan(lan)) => namespaces::exchange(lan, load, stop),
            (Who::Namespaces, Namespaces::Switch(_)) => unreachable!("namespaces are in a LAN"),
        }
    }

    /// One exchange with such a load, and the counts meanwhile. In namespaces it ends early when `stop` is raised.
    pub fn measure(&mut self, load: &Load, stop: &AtomicBool) -> Result<Figures, OverloadError> {
        let before = self.look()?;
        let (sent_each, seen) = self.exchange(load, stop)?;
        let counted = self.look()?.since(&before);
        let sent: u64 = sent_each.iter().map(|s| s.sent).sum();
        let seconds = sent_each.iter().map(|s| s.seconds).fold(0.0, f64::max);
        let lost = sent.saturating_sub(seen.received);
        let mbps =
            |datagrams: u64, seconds: f64| (datagrams * load.payload as u64 * 8) as f64 / seconds.max(1e-9) / 1e6;
        Ok(Figures {
            switch: self.switch,
            tenants: match self.guests {
                None => Tenants::Namespaces,
                Some(Nic::Virtio) => Tenants::Virtio,
                Some(Nic::E1000) => Tenants::E1000,
            },
            target_mbps: load.rate.map(|rate| rate * SENDERS as f64),
            seconds,
            payload: load.payload,
            sent,
            received: seen.received,
            lost,
            lost_percent: 100.0 * lost as f64 / sent.max(1) as f64,
            sent_mbps: mbps(sent, seconds),
            received_mbps: mbps(seen.received, seen.seconds),
            received_kpps: seen.received as f64 / seen.seconds.max(1e-9) / 1e3,
            disordered: seen.disordered,
            lost_at: counted.points(self.switch, self.guests.is_some(), lost),
            passed: counted.passed(sent, seen.received),
        })
    }

    /// Counts of all devices, ports and kernels between senders and sink so far.
    fn look(&mut self) -> Result<Seen, OverloadError> {
        let stacks = match (&mut self.who, &self.namespaces) {
            (Who::Guests(guests), _) => guests.stacks()?,
            (Who::Namespaces, Namespaces::Lan(lan)) => namespaces::stacks(lan)?,
            (Who::Namespaces, Namespaces::Switch(_)) => unreachable!("namespaces are in a LAN"),
        };
        let device = |i: usize| match &self.namespaces {
            Namespaces::Lan(lan) => Some(lan.veth(i).switch_device.to_owned()),
            Namespaces::Switch(_) if self.switch == Switch::Ours => None,
            Namespaces::Switch(_) => Some(guests::tap(i)),
        };
        let devices =
            (0..=SENDERS).map(|i| device(i).map(|name| seen::device(self.namespaces.switch(), &name)).transpose());
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let ports = match &self.under {
            Under::Ours(running) => Some(running.reports()?),
            Under::Bridge | Under::Ovs { .. } => None,
        };
        let counted = stacks.into_iter().zip(devices).enumerate();
        Ok(Seen(
            counted.map(|(i, (stack, device))| Counted::new(stack, device, ports.as_ref().map(|p| &p[i]))).collect(),
        ))
    }
}

fn name(i: usize) -> String {
    format!("tenant-{i}")
}

/// Our switch; the experiment's receivers are slow, and none is stuck.
fn engine() -> Engine {
    Engine::new(SENDERS + 1, ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() })
}

fn plug(engine: &mut Engine, i: usize, port: Box<dyn sluicenet_dataplane::port::Port>) -> Result<(), OverloadError> {
    engine.plug(i, &name(i), port, Access::default()).map_err(io::Error::from)?;
    engine.give(Lan::mac(i), 0, i);
    Ok(())
}

/// A switch of others, with those devices as its ports.
fn kernel_switch(setup: &Setup, namespace: &Namespace, devices: &[String]) -> Result<Under, OverloadError> {
    if setup.switch == Switch::Ovs {
        return Ok(Under::Ovs { _running: Ovs::start(namespace, &setup.scratch, devices)? });
    }
    namespace.enter(|| {
        let mut links = Links::open()?;
        links.create_bridge("br0")?;
        devices.iter().try_for_each(|device| links.set_master(device, "br0"))?;
        links.up("br0")
    })??;
    Ok(Under::Bridge)
}

/// Our switch on a thread of its own, which ends with this.
#[derive(Debug)]
struct Running {
    remote: Remote<Engine>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Running {
    fn start(mut engine: Engine) -> io::Result<Running> {
        let (remote, end) = (engine.remote()?, Arc::new(AtomicBool::new(false)));
        let ended = end.clone();
        let thread = std::thread::Builder::new().name("switch".into()).spawn(move || engine.run(&ended))?;
        Ok(Running { remote, end, thread: Some(thread) })
    }

    /// Waits until the agent behind a port has said something.
    fn until_agent(&self, port: usize) -> Result<(), OverloadError> {
        let started = Instant::now();
        loop {
            let own = self.reports()?.swap_remove(port).own;
            if own.contains(&("agent", 1)) {
                return Ok(());
            }
            if started.elapsed() > SETTLED_WITHIN {
                let why = format!("the agent in the sink's guest said nothing for {} s", SETTLED_WITHIN.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reports of all ports.
    fn reports(&self) -> io::Result<Vec<PortReport>> {
        self.remote.run(|engine| (0..=SENDERS).map(|i| engine.report(i).unwrap_or_default()).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // A thread that has stopped by itself need not be woken.
        let _ = self.remote.post(|_| ());
        if let Some(thread) = self.thread.take() {
            // Callers have already heard the thread's error.
            let _ = thread.join();
        }
    }
}
