//! The network: a namespace for each switch and each host, and a shaped veth pair for each link.

use super::controller::{self, Controller, Python, Said};
use super::switch::{self, Plan, Switch};
use crate::fabric::export::{bridge, device, host as host_name};
use serde_json::Value;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::{Feature, Links, TokenBucket};
use sluicenet_dataplane::kernel::netns::{self, Namespace, PREFIX};
use sluicenet_dataplane::remains::{self, Thing};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::fat_tree::{self, FatTree, Peer};
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A host's device.
const HOST_DEVICE: &str = "eth0";
/// Bytes that wait at a port: 20 full frames. Four ports of a switch together keep below the send buffer of the socket that they share (212,992 bytes, a full
/// frame's share is 2,304).
const QUEUE_BYTES: u32 = 30_280;
/// Bytes that go at once: two full frames, fewer than which no timer of the kernel's keeps busy.
const BURST_BYTES: u32 = 3_028;

/// What is to be built.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tree.
    pub tree: FatTree,
    /// Of every link, in bits a second.
    pub rate_bps: u64,
    /// How often the controller reads counters.
    pub poll: Duration,
    /// Who runs the controller.
    pub python: Python,
}

/// A fat-tree that is up; gone when dropped.
#[derive(Debug)]
pub struct Network {
    pub(super) settings: Settings,
    // In this order: programs end before their namespaces are gone.
    pub(super) controller: Option<Controller>,
    pub(super) said: Said,
    switches: Vec<Switch>,
    hosts: Vec<Namespace>,
    /// The switches', in the order of [`FatTree::switches`].
    spaces: Vec<Namespace>,
    folder: Folder,
}

/// A folder that is gone when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        if std::fs::remove_dir_all(&self.0).is_ok() {
            remains::forget(&Thing::Folder(self.0.clone()));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.controller = None;
        self.switches.clear();
        for namespace in self.hosts.iter().chain(&self.spaces) {
            // `sluicenet clean` finds what could not be deleted.
            let _ = Namespace::delete(namespace.name());
        }
    }
}

/// What this machine lacks for a network, a line each.
pub fn missing() -> Vec<String> {
    let mut lacks = Vec::new();
    if let Err(e) = netns::may_make_namespaces() {
        lacks.push(e.to_string());
    }
    let programs: Vec<&str> =
        switch::PROGRAMS.into_iter().filter(|program| switch::installed(program).is_none()).collect();
    if !programs.is_empty() {
        lacks.push(format!("Open vSwitch: no {}; on Debian: apt-get install openvswitch-switch", programs.join(", ")));
    } else if !Path::new(switch::SCHEMA).exists() {
        lacks.push(format!("Open vSwitch: no {}", switch::SCHEMA));
    }
    if !Path::new("/dev/net/tun").exists() {
        lacks.push("/dev/net/tun: Open vSwitch's datapath in user space needs it".into());
    }
    lacks
}

impl Network {
    /// Builds it; the controller is not started.
    ///
    /// # Errors
    /// What the kernel or Open vSwitch refused; [`ErrorKind::Interrupted`] when `stop` was raised.
    pub fn build(settings: Settings, stop: &AtomicBool) -> io::Result<Network> {
        let tree = settings.tree;
        let own = std::process::id();
        let place = PathBuf::from(format!("/run/sluicenet/fattree-{own}"));
        remains::add(Thing::Folder(place.clone()))?;
        std::fs::create_dir_all("/run/sluicenet")?;
        DirBuilder::new().mode(0o700).create(&place)?;
        let folder = Folder(place);
        let mut network = Network {
            settings,
            controller: None,
            said: Said::default(),
            switches: Vec::new(),
            hosts: Vec::new(),
            spaces: Vec::new(),
            folder,
        };
        let space = |name: String| {
            let namespace = Namespace::create(&format!("{PREFIX}ft{own}-{name}"))?;
            namespace.silence()?;
            Ok::<_, io::Error>(namespace)
        };
        for s in tree.switches() {
            network.spaces.push(space(bridge(s))?);
        }
        for host in 0..tree.hosts() {
            network.hosts.push(space(host_name(tree, host))?);
        }
        for s in tree.switches() {
            check(stop)?;
            network.wire(s)?;
        }
        let database = network.folder.0.join("empty.db");
        switch::make_database(&database)?;
        for s in tree.switches() {
            check(stop)?;
            let plan = Plan {
                name: bridge(s),
                datapath_id: u64::from(tree.address(s).to_bits()),
                devices: (0..tree.k() as u16).map(|port| device(s, port)).collect(),
                controller: network.folder.0.join(controller::SOCKET),
                refresh_ms: network.settings.poll.as_millis().clamp(100, 500) as u32,
            };
            let folder = network.folder.0.join(&plan.name);
            let started = Switch::start(plan, folder, &database, network.space(s))?;
            network.switches.push(started);
        }
        Ok(network)
    }

    /// The namespace of a switch.
    fn space(&self, s: fat_tree::Switch) -> &Namespace {
        &self.spaces[self.settings.tree.index(s) as usize]
    }

    /// Makes the links of a switch to hosts and to switches above it.
    fn wire(&self, s: fat_tree::Switch) -> io::Result<()> {
        let tree = self.settings.tree;
        let bucket = TokenBucket { rate: self.settings.rate_bps / 8, burst: BURST_BYTES, limit: QUEUE_BYTES };
        let finish = |links: &mut Links, name: &str| {
            links.set_bucket(name, bucket)?;
            links.up(name)
        };
        for port in 0..tree.k() as u16 {
            let own = device(s, port);
            match tree.peer(s, port) {
                Peer::Host(host) => {
                    let there = &self.hosts[host as usize];
                    self.space(s).enter(|| {
                        let mut links = Links::open()?;
                        links.create_veth(&own, HOST_DEVICE, there)?;
                        finish(&mut links, &own)
                    })??;
                    let address = self.address(host);
                    there.enter(|| {
                        let mut links = Links::open()?;
                        // The switch sums nothing up that a sender left to its device, and a frame is at most as long as the link's.
                        for feature in [Feature::TxChecksum, Feature::Tso, Feature::Gso, Feature::Gro] {
                            links.set_feature(HOST_DEVICE, feature, false)?;
                        }
                        links.add_address(HOST_DEVICE, address.into(), 8)?;
                        finish(&mut links, HOST_DEVICE)
                    })??;
                }
                Peer::Switch(upper, at) if tree.index(s) < tree.index(upper) => {
                    let (other, there) = (device(upper, at), self.space(upper));
                    self.space(s).enter(|| {
                        let mut links = Links::open()?;
                        links.create_veth(&own, &other, there)?;
                        finish(&mut links, &own)
                    })??;
                    there.enter(|| finish(&mut Links::open()?, &other))??;
                }
                Peer::Switch(..) => {}
            }
        }
        Ok(())
    }

    /// The tree.
    pub fn tree(&self) -> FatTree {
        self.settings.tree
    }

    /// The namespace of a host.
    pub fn host(&self, host: HostId) -> &Namespace {
        &self.hosts[host as usize]
    }

    /// A host's address.
    pub fn address(&self, host: HostId) -> Ipv4Addr {
        self.settings.tree.host_address(host).unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// Starts a controller in place of the one that runs, and waits until it has every switch.
    ///
    /// # Errors
    /// When it ends, or does not have them within a minute.
    pub fn start_controller(&mut self, routing: &str, seed: u64, stop: &AtomicBool) -> io::Result<()> {
        let count = self.settings.tree.switches_total() as usize;
        self.launch_controller(routing, seed)?.wait_for_switches(count, stop)
    }

    /// The same without waiting.
    pub(super) fn launch_controller(&mut self, routing: &str, seed: u64) -> io::Result<&mut Controller> {
        // Two cannot listen at one place.
        self.controller = None;
        let new = Controller::start(&self.settings, routing, seed, &self.folder.0, &self.said)?;
        Ok(self.controller.insert(new))
    }

    /// What controllers have said, from line `from` on.
    pub(super) fn said(&self, from: usize) -> Vec<Value> {
        controller::lock(&self.said).get(from..).unwrap_or_default().to_vec()
    }

    /// A switch by its place in [`FatTree::switches`].
    pub(super) fn switch(&mut self, s: fat_tree::Switch) -> &mut Switch {
        &mut self.switches[self.settings.tree.index(s) as usize]
    }

    /// Kills a switch; as without power, its ports have no carrier.
    pub(super) fn kill(&mut self, s: fat_tree::Switch) -> io::Result<()> {
        self.switch(s).kill();
        self.each_device(s, Links::down)
    }

    /// Starts a switch that was killed.
    pub(super) fn revive(&mut self, s: fat_tree::Switch) -> io::Result<()> {
        self.each_device(s, Links::up)?;
        let at = self.settings.tree.index(s) as usize;
        self.switches[at].revive(&self.spaces[at])
    }

    /// Undoes what faults have done: every switch runs, every link is up.
    ///
    /// # Errors
    /// A switch that does not start.
    pub fn restore(&mut self) -> io::Result<()> {
        for s in self.settings.tree.switches() {
            self.each_device(s, Links::up)?;
            let at = self.settings.tree.index(s) as usize;
            if !self.switches[at].is_running() {
                self.switches[at].revive(&self.spaces[at])?;
            }
        }
        Ok(())
    }

    /// The link at a port goes down or comes up.
    pub(super) fn set_link(&self, s: fat_tree::Switch, port: u16, up: bool) -> io::Result<()> {
        let name = device(s, port);
        let set = if up { Links::up } else { Links::down };
        Ok(self.space(s).enter(|| set(&mut Links::open()?, &name))??)
    }

    fn each_device(
        &mut self,
        s: fat_tree::Switch,
        set: impl Fn(&mut Links, &str) -> Result<(), KernelError> + Sync,
    ) -> io::Result<()> {
        let devices = self.switch(s).devices().to_vec();
        self.space(s).enter(|| {
            let mut links = Links::open()?;
            devices.iter().try_for_each(|name| set(&mut links, name))
        })??;
        Ok(())
    }

    /// Counters of the ports by which switches below the cores send up.
    pub(super) fn upward(&self) -> io::Result<Upward> {
        let tree = self.settings.tree;
        let lower = tree.switches().take(2 * tree.subnets() as usize);
        let opened = lower.map(|s| Ok((s, self.space(s).enter(Links::open)??)));
        Ok(Upward { tree, links: opened.collect::<io::Result<_>>()? })
    }

    /// The entries of every switch, by its name.
    ///
    /// # Errors
    /// When one does not say.
    pub fn entries(&self) -> io::Result<Vec<(String, String)>> {
        let tree = self.settings.tree;
        tree.switches().zip(&self.switches).map(|(s, switch)| Ok((bridge(s), switch.entries()?))).collect()
    }
}

/// The ports by which switches below the cores send up.
#[derive(Debug)]
pub(super) struct Upward {
    tree: FatTree,
    links: Vec<(fat_tree::Switch, Links)>,
}

impl Upward {
    /// Frames each has sent, switch by switch and port by port.
    pub(super) fn sent_frames(&mut self) -> io::Result<Vec<u64>> {
        let ports = self.tree.half() as u16..self.tree.k() as u16;
        let mut sent = Vec::new();
        for (s, links) in &mut self.links {
            for port in ports.clone() {
                sent.push(links.get(&device(*s, port))?.stats.tx_packets);
            }
        }
        Ok(sent)
    }
}

/// Whether somebody wants this to end.
pub(super) fn check(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(io::Error::new(ErrorKind::Interrupted, "stopped")) } else { Ok(()) }
}
