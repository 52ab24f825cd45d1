//! Opens ports as the file describes them.

use super::config::{PortConfig, PortKind, one_tenant};
use super::failure::Failure;
use super::helper::{self, Device, Facts, Helper, device};
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
) -> Result<Vec<Result<Opened, Failure>>, String> {
    for (i, port) in ports.iter().enumerate() {
        if let Some(missing) = may_open(&port.kind, helper) {
            return Err(format!("port {}: {missing}", port.name));
        }
        is_alone(port, ports[..i].iter())?;
    }
    let until = Instant::now() + OPENS_WITHIN;
    // Frames that tenants sent while no switch ran wait in the kernel, which drops some of them over time. So the sockets of
    // all valves are opened before any port that may take long.
    let begun: Vec<_> = ports.iter().map(|port| begin(port, helper)).collect();
    // Each valve may wait two seconds for the kernel to poll its device; all valves wait at the same time.
    Ok(std::thread::scope(|scope| {
        let patiently = |(port, begun): (&PortConfig, Result<Option<Begun>, Failure>)| {
            let mut opened = begun.and_then(|begun| open(port, begun, vale));
            while opened.is_err() && Instant::now() < until {
                std::thread::sleep(AGAIN);
                opened = open_beside(port, ports, vale, helper);
            }
            opened
        };
        let opening: Vec<_> = ports.iter().zip(begun).map(|this| scope.spawn(move || patiently(this))).collect();
        let join = |opened: ScopedJoinHandle<'_, _>| opened.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        opening.into_iter().map(join).collect()
    }))
}

/// Opens one port of a switch with the other `ports`.
pub(super) fn open_beside(
    port: &PortConfig,
    ports: &[PortConfig],
    vale: &ValeConfig,
    helper: Option<&Arc<Helper>>,
) -> Result<Opened, Failure> {
    if let Some(missing) = may_open(&port.kind, helper) {
        return Err(Failure::lasting(missing));
    }
    is_alone(port, ports.iter().filter(|other| other.name != port.name)).map_err(Failure::lasting)?;
    open(port, begin(port, helper)?, vale)
}

/// A device of which the first sockets are open. Without a helper, this process opens it by its own privileges.
enum Begun {
    Here(device::Begun),
    InHelper(helper::Begun),
}

/// Opens the first sockets of a port's device; `None` for a port that has no device.
fn begin(port: &PortConfig, helper: Option<&Arc<Helper>>) -> Result<Option<Begun>, Failure> {
    let Some(device) = Device::of(port) else { return Ok(None) };
    Ok(Some(match helper {
        Some(helper) => Begun::InHelper(helper.listen(&port.name, device)?),
        None => Begun::Here(device.listen()?),
    }))
}

/// Opens a port, at a device of which the first sockets are open.
fn open(port: &PortConfig, begun: Option<Begun>, vale: &ValeConfig) -> Result<Opened, Failure> {
    let Some(begun) = begun else {
        return Ok(match &port.kind {
            PortKind::VhostUser { socket, agent } => Opened::Later(socket.clone(), *agent),
            _ => Opened::Attached,
        });
    };
    let (Parts { facts, descriptors }, keeper) = match begun {
        Begun::Here(begun) => begun.open()?,
        Begun::InHelper(begun) => begun.open()?,
    };
    Ok(Opened::Port(match (&port.kind, facts, keeper) {
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
    }))
}
