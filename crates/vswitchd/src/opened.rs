//! Opens ports as the file describes them.

use super::config::{PortConfig, PortKind, one_tenant};
use super::failure::Failure;
use super::privileges;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::{PacketDevice, PacketPort};
use sluicenet_dataplane::kernel::tap::{TapConfig, TapPort};
use sluicenet_dataplane::kernel::valve::{Listening, ValveConfig, ValvePort, Veth};
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::vhost;
use sluicenet_node::vale::ValeConfig;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long a starting switch tries to open a port: the kernel needs time to release the device of an earlier switch.
const OPENS_WITHIN: Duration = Duration::from_secs(2);
/// The pause before the next attempt.
const AGAIN: Duration = Duration::from_millis(200);

/// Buffers for frames of a plain device, in each direction.
pub(super) const PACKET_BUFFERS: u32 = 4096;

/// An opened port.
pub(super) enum Opened {
    /// The port is open.
    Port(Box<dyn Port>),
    /// The port is opened after the privileges are dropped, because it has its own thread; also whether the guest has
    /// an agent.
    Later(vhost::Socket, bool),
    /// The port is created when a program attaches.
    Attached,
}

/// A port that can be put into service.
pub(super) enum Ready {
    /// Any port but those below.
    Port(Box<dyn Port>),
    /// The queues of a guest.
    Guest(Box<vhost::Port>),
    /// Nothing to put into service until a program attaches.
    Attached,
}

impl Opened {
    /// Starts the thread of a guest's port; the privileges are dropped by now.
    pub fn ready(self) -> Result<Ready, Failure> {
        Ok(match self {
            Opened::Port(port) => Ready::Port(port),
            Opened::Later(socket, agent) => {
                let port = vhost::Port::open(socket)?;
                Ready::Guest(Box::new(if agent { port.with_agent()? } else { port }))
            }
            Opened::Attached => Ready::Attached,
        })
    }
}

pub(super) fn namespace(name: &Option<String>) -> Result<Namespace, KernelError> {
    match name {
        Some(name) => Namespace::open(name),
        None => Namespace::current(),
    }
}

/// The two ends of a valve's pair, and its settings.
pub(super) struct Pair<'a> {
    switch: Namespace,
    tenant: Namespace,
    device: &'a str,
    tenant_device: &'a str,
    config: ValveConfig,
}

impl Pair<'_> {
    pub fn of<'a>(port: &'a PortConfig, vale: &ValeConfig) -> Result<Option<Pair<'a>>, KernelError> {
        let PortKind::Veth { device, netns, tenant_device, tenant_netns, offload } = &port.kind else {
            return Ok(None);
        };
        let config = ValveConfig { watchdog: vale.watchdog, offload: *offload, ..ValveConfig::default() };
        let (switch, tenant) = (namespace(netns)?, Namespace::open(tenant_netns)?);
        Ok(Some(Pair { switch, tenant, device, tenant_device, config }))
    }

    pub fn veth(&self) -> Veth<'_> {
        Veth {
            switch: &self.switch,
            switch_device: self.device,
            tenant: &self.tenant,
            tenant_device: self.tenant_device,
        }
    }
}

/// The sockets of a valve; `None` for ports of other kinds.
type Sockets<'a> = Option<(Pair<'a>, Listening)>;

/// Checks that no other valve leads to the namespace of a port, also under another name.
pub(super) fn is_alone<'a>(port: &PortConfig, mut others: impl Iterator<Item = &'a PortConfig>) -> Result<(), String> {
    let tenant = |port: &PortConfig| port.kind.tenant().map(Namespace::open).transpose().ok().flatten();
    // A namespace that does not exist is no conflict; opening it will fail.
    let Some(own) = tenant(port) else { return Ok(()) };
    let same = |other: &PortConfig| tenant(other).is_some_and(|its| own.is(&its).unwrap_or(false));
    match others.find(|&other| same(other)) {
        Some(other) => Err(one_tenant(&other.name, &port.name, own.name())),
        None => Ok(()),
    }
}

/// The privileges that this process lacks to open a port.
pub(super) fn may_open(kind: &PortKind) -> Option<String> {
    privileges::missing(kind.name(), kind.rights().open, privileges::own())
}

/// Opens all ports of a starting switch. A port whose endpoint is not ready has an error of its own.
///
/// # Errors
/// Errors that no endpoint causes.
pub(super) fn open_all(ports: &[PortConfig], vale: &ValeConfig) -> Result<Vec<Result<Opened, Failure>>, String> {
    for (i, port) in ports.iter().enumerate() {
        if let Some(missing) = may_open(&port.kind) {
            return Err(format!("port {}: {missing}", port.name));
        }
        is_alone(port, ports[..i].iter())?;
    }
    let until = Instant::now() + OPENS_WITHIN;
    // Frames that tenants sent while no switch ran wait in the kernel, which drops some of them over time. So the sockets of
    // all valves are opened before any port that may take long.
    let listening: Vec<_> = ports.iter().map(|port| listen(port, vale)).collect();
    // Each valve may wait two seconds for the kernel to poll its device; all valves wait at the same time.
    Ok(std::thread::scope(|scope| {
        let patiently = |(port, listening): (&PortConfig, Result<Sockets<'_>, Failure>)| {
            let mut opened = listening.and_then(|listening| open(port, listening));
            while opened.is_err() && Instant::now() < until {
                std::thread::sleep(AGAIN);
                opened = open_beside(port, ports, vale);
            }
            opened
        };
        let opening: Vec<_> = ports.iter().zip(listening).map(|this| scope.spawn(move || patiently(this))).collect();
        let join = |opened: ScopedJoinHandle<'_, _>| opened.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        opening.into_iter().map(join).collect()
    }))
}

/// Opens one port of a switch with the other `ports`.
pub(super) fn open_beside(port: &PortConfig, ports: &[PortConfig], vale: &ValeConfig) -> Result<Opened, Failure> {
    if let Some(missing) = may_open(&port.kind) {
        return Err(Failure::lasting(missing));
    }
    is_alone(port, ports.iter().filter(|other| other.name != port.name)).map_err(Failure::lasting)?;
    open(port, listen(port, vale)?)
}

/// Opens the sockets of a port that is a valve.
fn listen<'a>(port: &'a PortConfig, vale: &ValeConfig) -> Result<Sockets<'a>, Failure> {
    let Some(pair) = Pair::of(port, vale)? else { return Ok(None) };
    let listening = Listening::open(pair.veth(), &pair.config)?;
    Ok(Some((pair, listening)))
}

/// Opens a port; a valve from its open sockets.
fn open(port: &PortConfig, listening: Sockets<'_>) -> Result<Opened, Failure> {
    Ok(Opened::Port(match &port.kind {
        PortKind::Shm { .. } => return Ok(Opened::Attached),
        PortKind::VhostUser { socket, agent } => return Ok(Opened::Later(socket.clone(), *agent)),
        PortKind::Veth { .. } => match listening {
            Some((pair, listening)) => Box::new(ValvePort::serve(listening, pair.veth(), &pair.config)?),
            None => unreachable!("a valve's sockets are opened first"),
        },
        PortKind::Tap { device, tenant_netns, mtu, offload, agent } => {
            let tenant = Namespace::open(tenant_netns)?;
            let config = TapConfig { offload: *offload, agent: *agent, ..TapConfig::default() };
            Box::new(TapPort::create(&tenant, device, port.mac.unwrap_or_default(), *mtu, &config)?)
        }
        PortKind::Packet { device, netns } => {
            Box::new(PacketPort::new(PacketDevice::open(&namespace(netns)?, device, PACKET_BUFFERS)?))
        }
    }))
}
