//! The controller: how its device is opened, and what a reload changes.

use super::config::{Common, Config};
use super::daemon::{Daemon, Program};
use super::status::XcoStatus;
use crate::opened::PACKET_BUFFERS;
use crate::privileges::Rights;
use crate::status::Status;
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::controller::unguessable;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::xco::ControllerLoop;
use sluicenet_proto::time::Instant;
use sluicenet_proto::xco::controller::{Controller, ControllerConfig};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::ETHERTYPE;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of a controller's start: later ones are higher, modulo 2^16, if starts are less than 22 days apart. Coordinators
/// without a controller take any.
fn epoch() -> u16 {
    (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60) as u16
}

/// Runs a controller until the control socket or a signal stops it.
///
/// # Errors
/// The device or the control socket cannot be opened, or the device is gone.
pub fn run(config: Config) -> io::Result<Status> {
    Daemon::<ControllerLoop>::run(config)
}

impl Program for ControllerLoop {
    type Config = Config;
    const WHAT: &str = "controller";

    fn common(config: &Config) -> &Common {
        &config.common
    }
    fn common_mut(config: &mut Config) -> &mut Common {
        &mut config.common
    }
    fn load(path: &Path) -> sluicenet_scenario::Result<Config> {
        Config::load(path)
    }
    fn rights() -> CapabilitySet {
        Rights::NONE.run
    }
    fn open(config: &Config) -> io::Result<(ControllerLoop, MacAddress)> {
        let common = &config.common;
        let space = Namespace::named(common.netns.as_deref())?;
        let device = PacketDevice::open_for_type(&space, &common.device, PACKET_BUFFERS, ETHERTYPE)?;
        let own = match common.mac {
            Some(mac) => mac,
            None => MacAddress(space.enter(|| Links::open()?.get(&common.device))??.mac),
        };
        let settings = ControllerConfig { seed: unguessable()?.next_u64(), ..config.controller.clone() };
        // The first of a pair listens for half a lease, whether the other works; the second one for a lease longer.
        let paired = settings.peer.is_some();
        let now = if config.standby { Instant::ZERO + settings.lease } else { Instant::ZERO };
        let controller = Controller::new(now, config.topology.clone(), settings, epoch(), paired);
        Ok((ControllerLoop::new(Box::new(device), controller, own, common.priority), own))
    }
    fn remote(&mut self) -> io::Result<Remote<ControllerLoop>> {
        ControllerLoop::remote(self)
    }
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        ControllerLoop::run(self, stop)
    }
    fn status(&self, config: &Config) -> (XcoStatus, BTreeMap<String, u64>) {
        let report = self.report();
        let counters = report.device.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
        (XcoStatus::of_controller(&report, config.kind.name(), config.topology.nodes()), counters)
    }
    fn reload(remote: &Remote<ControllerLoop>, old: &Config, new: &Config) -> Result<String, String> {
        if new.fixed() != old.fixed() {
            return Err("only [[xco.weight]] can change while the controller runs; nothing was changed".into());
        }
        let weights = new.controller.weights.clone();
        let count = weights.flows.len() + weights.nodes.len();
        remote.run(move |controller| controller.set_weights(weights)).map_err(|e| e.to_string())?;
        Ok(format!("{count} weights"))
    }
}
