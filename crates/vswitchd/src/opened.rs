//! Opens ports as the file describes them.

use super::config::{PortConfig, PortKind, one_tenant};
use super::failure::Failure;
use super::helper::{self, Device, Facts, Handed, Helper, Place, device};
use super::privileges;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::{OpenPacket, PacketDevice, PacketPort};
use sluicenet_dataplane::kernel::parts::Parts;
use sluicenet_dataplane::kernel::tap::{OpenTap, TapConfig, TapPort};
use sluicenet_dataplane::kernel::valve::{OpenValve, ValveConfig, ValvePort};
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::vhost;
use sluicenet_node::vale::ValeConfig;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long a start and a reload wait for devices that the helper opens. The ring of a switch that was killed may be full, and the
/// kernel polls it after two seconds. A port that takes longer comes later: only its own tenant can delay it so.
const OPENS_WITHIN: Duration = Duration::from_secs(3);
/// How long a starting switch tries again to get what another program has: an earlier switch needs a moment to end.
const FREE_WITHIN: Duration = Duration::from_secs(1);
/// The pause before the next attempt.
const AGAIN: Duration = Duration::from_millis(50);

/// Buffers for frames of a plain device, in each direction.
pub(super) const PACKET_BUFFERS: u32 = 4096;

/// An opened port.
pub(super) enum Opened {
    /// The port is open, in these namespaces.
    Port(Box<dyn Port>, Vec<Place>),
    /// The port is opened after the privileges are dropped, because it has its own thread; also whether the guest has
    /// an agent.
    Later(vhost::Socket, bool),
    /// The port is created when a program attaches.
    Attached,
}

/// A port that can be put into service.
pub(super) enum Ready {
    /// Any port but those below, and its namespaces.
    Port(Box<dyn Port>, Vec<Place>),
    /// The queues of a guest.
    Guest(Box<vhost::Port>),
    /// Nothing to put into service until a program attaches.
    Attached,
}

impl Opened {
    /// Starts the thread of a guest's port; the privileges are dropped by now.
    pub fn ready(self) -> Result<Ready, Failure> {
        Ok(match self {
            Opened::Port(port, places) => Ready::Port(port, places),
            Opened::Later(socket, agent) => {
                let port = vhost::Port::open(socket)?;
                Ready::Guest(Box::new(if agent { port.with_agent()? } else { port }))
            }
            Opened::Attached => Ready::Attached,
        })
    }
}

/// An attempt to open a port.
pub(super) enum Attempt {
    /// The port is open, or cannot be opened.
    Over(Result<Opened, Failure>),
    /// The helper is opening its device.
    Goes(Opening),
}

/// A port whose device the helper is opening.
#[derive(Debug)]
pub(super) struct Opening {
    /// The port as it was when the attempt began.
    pub port: Box<PortConfig>,
    device: helper::Opening,
}

impl Attempt {
    /// Begins to open one port of a switch with the other `ports`. With a helper, this waits for no device.
    pub fn begin(port: &PortConfig, ports: &[PortConfig], vale: &ValeConfig, helper: Option<&Arc<Helper>>) -> Attempt {
        if let Some(missing) = may_open(&port.kind, helper) {
            return Attempt::Over(Err(Failure::lasting(missing)));
        }
        match is_alone(port, ports.iter().filter(|other| other.name != port.name)) {
            Ok(()) => Attempt::go(port, listen(port, helper), vale),
            Err(why) => Attempt::Over(Err(Failure::lasting(why))),
        }
    }

    /// Goes on at a device of which the first sockets are open.
    fn go(port: &PortConfig, begun: Result<Option<Begun>, Failure>, vale: &ValeConfig) -> Attempt {
        let outcome = match begun {
            Ok(Some(Begun::InHelper(begun))) => match begun.go() {
                Ok(device) => return Attempt::Goes(Opening { port: Box::new(port.clone()), device }),
                Err(failure) => Err(failure),
            },
            Ok(Some(Begun::Here(begun))) => begun.open().and_then(|handed| assemble(port, handed, vale)),
            Ok(None) => Ok(match &port.kind {
                PortKind::VhostUser { socket, agent } => Opened::Later(socket.clone(), *agent),
                _ => Opened::Attached,
            }),
            Err(failure) => Err(failure),
        };
        Attempt::Over(outcome)
    }

    /// Waits until it is over, or the time has come.
    pub fn wait(self, until: Instant, vale: &ValeConfig) -> Attempt {
        let Attempt::Goes(Opening { port, device }) = self else { return self };
        match device.wait(until) {
            Ok(handed) => Attempt::Over(handed.and_then(|handed| assemble(&port, handed, vale))),
            Err(device) => Attempt::Goes(Opening { port, device }),
        }
    }

    /// Its outcome: one that goes on has [failed](Failure::slow) so far.
    pub fn split(self) -> (Result<Opened, Failure>, Option<Opening>) {
        match self {
            Attempt::Over(outcome) => (outcome, None),
            Attempt::Goes(opening) => (Err(Failure::slow()), Some(opening)),
        }
    }

    fn is_busy(&self) -> bool {
        matches!(self, Attempt::Over(Err(failure)) if failure.busy)
    }
}

/// When a start or a reload that begins to open ports now goes on without those that are not open.
fn patience() -> Instant {
    Instant::now() + OPENS_WITHIN
}

/// Begins to open ports of a switch with the other `ports`, all at the same time, and then waits for one after the other.
pub(super) fn open_together<'a>(
    wanted: &[&PortConfig],
    ports: &[PortConfig],
    vale: &'a ValeConfig,
    helper: Option<&Arc<Helper>>,
) -> impl Iterator<Item = (PortConfig, Attempt)> + use<'a> {
    let begin = |&port: &&PortConfig| (port.clone(), Attempt::begin(port, ports, vale, helper));
    let attempts: Vec<(PortConfig, Attempt)> = wanted.iter().map(begin).collect();
    let until = patience();
    attempts.into_iter().map(move |(port, attempt)| (port, attempt.wait(until, vale)))
}

/// Checks that no other valve leads to the namespace of a port, also under another name.
pub(super) fn is_alone<'a>(port: &PortConfig, mut others: impl Iterator<Item = &'a PortConfig>) -> Result<(), String> {
    // A namespace that does not exist is no conflict; opening it will fail.
    let tenant = |port: &'a PortConfig| Namespace::identity_of(port.kind.tenant()?).ok();
    let Some(name) = port.kind.tenant() else { return Ok(()) };
    let Ok(own) = Namespace::identity_of(name) else { return Ok(()) };
    match others.find(|&other| tenant(other) == Some(own)) {
        Some(other) => Err(one_tenant(&other.name, &port.name, name)),
        None => Ok(()),
    }
}

/// The reason for which no port of a kind can be opened before the next start: this process lacks the privileges, or its helper
/// has ended.
pub(super) fn may_open(kind: &PortKind, helper: Option<&Arc<Helper>>) -> Option<String> {
    match helper {
        _ if kind.rights().open.is_empty() => None,
        Some(helper) => helper.missing(),
        None => privileges::missing(kind.name(), kind.rights().open, privileges::own()),
    }
}

/// Opens all ports of a starting switch. A port whose endpoint is not ready has an error of its own.
///
/// # Errors
/// Errors that no endpoint causes.
pub(super) fn open_all(
    ports: &[PortConfig],
    vale: &ValeConfig,
    helper: Option<&Arc<Helper>>,
) -> Result<Vec<Attempt>, String> {
    for (i, port) in ports.iter().enumerate() {
        if let Some(missing) = may_open(&port.kind, helper) {
            return Err(format!("port {}: {missing}", port.name));
        }
        is_alone(port, ports[..i].iter())?;
    }
    // Frames that tenants sent while no switch ran wait in the kernel, which drops some of them over time. So the sockets of
    // all valves are opened before any port that may take long.
    let begun: Vec<_> = ports.iter().map(|port| listen(port, helper)).collect();
    let (until, free) = (patience(), Instant::now() + FREE_WITHIN);
    // Each valve may wait two seconds for the kernel to poll its device; all valves wait at the same time.
    Ok(std::thread::scope(|scope| {
        let patiently = |(port, begun): (&PortConfig, Result<Option<Begun>, Failure>)| {
            let mut attempt = Attempt::go(port, begun, vale).wait(until, vale);
            while attempt.is_busy() && Instant::now() < free {
                std::thread::sleep(AGAIN);
                attempt = Attempt::begin(port, ports, vale, helper).wait(until, vale);
            }
            attempt
        };
        let opening: Vec<_> = ports.iter().zip(begun).map(|this| scope.spawn(move || patiently(this))).collect();
        let join = |opened: ScopedJoinHandle<'_, _>| opened.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        opening.into_iter().map(join).collect()
    }))
}

/// Opens one port of a switch with the other `ports`, however long that takes.
pub(super) fn open_beside(
    port: &PortConfig,
    ports: &[PortConfig],
    vale: &ValeConfig,
    helper: Option<&Arc<Helper>>,
) -> Result<Opened, Failure> {
    match Attempt::begin(port, ports, vale, helper) {
        Attempt::Over(outcome) => outcome,
        Attempt::Goes(opening) => assemble(port, opening.device.finish()?, vale),
    }
}

/// A device of which the first sockets are open. Without a helper, this process opens it by its own privileges.
pub(super) enum Begun {
    Here(device::Begun),
    InHelper(helper::Begun),
}

impl Begun {
    /// Opens the rest, and waits until it is open.
    pub fn open(self) -> Result<Handed, Failure> {
        match self {
            Begun::Here(begun) => begun.open(),
            Begun::InHelper(begun) => begun.open(),
        }
    }
}

/// Opens the first sockets of the device of a port, or of the uplink.
pub(super) fn begin(name: &str, device: Device, helper: Option<&Arc<Helper>>) -> Result<Begun, Failure> {
    Ok(match helper {
        Some(helper) => Begun::InHelper(helper.listen(name, device)?),
        None => Begun::Here(device.listen()?),
    })
}

/// Opens the first sockets of a port's device; `None` for a port that has no device.
fn listen(port: &PortConfig, helper: Option<&Arc<Helper>>) -> Result<Option<Begun>, Failure> {
    Device::of(port).map(|device| begin(&port.name, device, helper)).transpose()
}

/// The port of an open device.
fn assemble(port: &PortConfig, handed: Handed, vale: &ValeConfig) -> Result<Opened, Failure> {
    let Handed { parts: Parts { facts, descriptors }, keeper, places } = handed;
    let open: Box<dyn Port> = match (&port.kind, facts, keeper) {
        (PortKind::Veth { offload, .. }, Facts::Veth(facts), Some(keeper)) => {
            let config = ValveConfig { watchdog: vale.watchdog, offload: *offload, ..ValveConfig::default() };
            Box::new(ValvePort::of(OpenValve::of(Parts { facts, descriptors }, keeper)?, &config))
        }
        (PortKind::Tap { offload, agent, .. }, Facts::Tap(facts), Some(keeper)) => {
            let config = TapConfig { offload: *offload, agent: *agent, ..TapConfig::default() };
            Box::new(TapPort::of(OpenTap::of(Parts { facts, descriptors }, keeper)?, &config)?)
        }
        (_, Facts::Packet(facts), None) => {
            let device = OpenPacket::of(Parts { facts, descriptors })?;
            Box::new(PacketPort::new(PacketDevice::of(device, PACKET_BUFFERS)))
        }
        _ => return Err(Failure::lasting("the helper's answer is about another kind of port".into())),
    };
    Ok(Opened::Port(open, places))
}
