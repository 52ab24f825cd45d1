//! The network: a namespace for each switch and each host, and a shaped veth pair for each link.

use super::controller::{self, Controller, Python, Said};
use super::shape::{End, Node, Port, Shape};
use super::switch::{self, Plan, Switch};
use crate::namespaces::{Folder, HOST_DEVICE, Spaces, check};
use serde_json::Value;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::{Feature, Links, TokenBucket};
use sluicenet_dataplane::kernel::netns::{self, Namespace, PREFIX};
use sluicenet_planner::export::host as host_name;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::fat_tree::FatTree;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long a host's device trusts an address that it learned by ARP, and the value for a day.
const NEIGHBOURS_REACHABLE_MS: &str = "/proc/sys/net/ipv4/neigh/eth0/base_reachable_time_ms";
const DAY_MS: &str = "86400000";
/// The size of a full frame.
const FRAME_BYTES: u32 = 1_514;
/// The most frames that wait at a port.
const QUEUE_FRAMES: u32 = 20;
/// The send buffer of the socket that the ports of a switch share, and the part of it that a full frame takes.
const SOCKET_BYTES: u32 = 212_992;
const SOCKET_FRAME_BYTES: u32 = 2_304;
/// The burst of a link's token bucket: two full frames. Timers of the kernel cannot keep a link busy with a smaller
/// burst.
const BURST_BYTES: u32 = 2 * FRAME_BYTES;

/// The settings of a network.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The fat-tree whose hosts the network has.
    pub tree: FatTree,
    /// The tree of switches that connects these hosts.
    pub shape: Shape,
    /// The rate of a host's link, in bits a second.
    pub rate_bps: u64,
    /// The interval at which the controller reads counters.
    pub poll: Duration,
    /// The Python that runs the controller.
    pub python: Python,
}

/// A network that is up; removed when dropped.
#[derive(Debug)]
pub struct Network {
    pub(super) settings: Settings,
    // The order of the fields matters: programs end before their namespaces are deleted.
    pub(super) controller: Option<Controller>,
    pub(super) said: Said,
    /// The switches of the network; a switch's number is its index.
    nodes: Vec<Node>,
    switches: Vec<Switch>,
    hosts: Spaces,
    /// The switches' namespaces.
    spaces: Spaces,
    folder: Folder,
}

/// The network's requirements that this machine lacks, a line each.
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
    /// Builds the network without starting a controller.
    ///
    /// # Errors
    /// A request that the kernel or Open vSwitch refused; [`ErrorKind::Interrupted`] when `stop` was raised.
    pub fn build(settings: Settings, stop: &AtomicBool) -> io::Result<Network> {
        let tree = settings.tree;
        let own = std::process::id();
        let folder = Folder::create(&format!("fattree-{own}"))?;
        let nodes = settings.shape.nodes(tree, settings.rate_bps);
        let mut network = Network {
            settings,
            controller: None,
            said: Said::default(),
            nodes: nodes.clone(),
            switches: Vec::new(),
            hosts: Spaces::default(),
            spaces: Spaces::default(),
            folder,
        };
        let name = |name: &str| format!("{PREFIX}ft{own}-{name}");
        for node in &nodes {
            network.spaces.add(&name(&node.name))?;
        }
        for host in 0..tree.hosts() {
            network.hosts.add(&name(&host_name(tree, host)))?;
        }
        for n in 0..nodes.len() {
            check(stop)?;
            network.wire(n)?;
        }
        let database = network.folder.join("empty.db");
        switch::make_database(&database)?;
        for (node, space) in nodes.into_iter().zip(network.spaces.iter()) {
            check(stop)?;
            let folder = network.folder.join(&node.name);
            let plan = Plan {
                name: node.name,
                datapath_id: node.datapath_id,
                devices: node.ports.into_iter().map(|port| port.device).collect(),
                controller: network.folder.join(controller::SOCKET),
                refresh_ms: network.settings.poll.as_millis().clamp(100, 500) as u32,
            };
            network.switches.push(Switch::start(plan, folder, &database, space)?);
        }
        Ok(network)
    }

    /// Makes the links of a switch to hosts and to switches above it.
    fn wire(&self, n: usize) -> io::Result<()> {
        let finish = |links: &mut Links, name: &str, bucket: TokenBucket| {
            links.set_bucket(name, bucket)?;
            links.up(name)
        };
        for Port { device: own, to, rate_bps, upward } in &self.nodes[n].ports {
            let bucket = |ports| TokenBucket { rate: rate_bps / 8, burst: BURST_BYTES, limit: queue_bytes(ports) };
            let here = bucket(self.nodes[n].ports.len());
            match *to {
                End::Host(host) => {
                    let there = &self.hosts[host as usize];
                    self.spaces[n].enter(|| {
                        let mut links = Links::open()?;
                        links.create_veth(own, HOST_DEVICE, there)?;
                        finish(&mut links, own, here)
                    })??;
                    let address = self.address(host);
                    there.enter(|| {
                        let mut links = Links::open()?;
                        // The switch computes no checksums that a sender left to its device, and no frame may be longer
                        // than the link's MTU.
                        for feature in [Feature::TxChecksum, Feature::Tso, Feature::Gso, Feature::Gro] {
                            links.set_feature(HOST_DEVICE, feature, false)?;
                        }
                        links.add_address(HOST_DEVICE, address.into(), 8)?;
                        finish(&mut links, HOST_DEVICE, bucket(1))?;
                        // A host asks only once for a neighbour's address: requests may be lost on full links, and
                        // datagrams would wait for the answer.
                        std::fs::write(NEIGHBOURS_REACHABLE_MS, DAY_MS)
                    })??;
                }
                End::Switch(upper, at) if *upward => {
                    let there = &self.spaces[upper];
                    let ports = &self.nodes[upper].ports;
                    let (other, bucket) = (&ports[at].device, bucket(ports.len()));
                    self.spaces[n].enter(|| {
                        let mut links = Links::open()?;
                        links.create_veth(own, other, there)?;
                        finish(&mut links, own, here)
                    })??;
                    there.enter(|| finish(&mut Links::open()?, other, bucket))??;
                }
                End::Switch(..) => {}
            }
        }
        Ok(())
    }

    /// The fat-tree whose hosts the network has.
    pub fn tree(&self) -> FatTree {
        self.settings.tree
    }

    /// The namespace of a host.
    pub fn host(&self, host: HostId) -> &Namespace {
        &self.hosts[host as usize]
    }

    /// A host's address.
    pub fn address(&self, host: HostId) -> Ipv4Addr {
        self.settings.tree.host_address(host).expect("a host of the tree")
    }

    /// Starts a controller in place of the running one, and waits until every switch has connected.
    ///
    /// # Errors
    /// The controller ends, or some switch does not connect within a minute.
    pub fn start_controller(&mut self, routing: &str, seed: u64, stop: &AtomicBool) -> io::Result<()> {
        let count = self.nodes.len();
        self.launch_controller(routing, seed)?.wait_for_switches(count, stop)
    }

    /// Starts a controller as [`Network::start_controller`] does, without waiting.
    pub(super) fn launch_controller(&mut self, routing: &str, seed: u64) -> io::Result<&mut Controller> {
        // Two controllers cannot listen at one socket.
        self.controller = None;
        let new = Controller::start(&self.settings, routing, seed, &self.folder, &self.said)?;
        Ok(self.controller.insert(new))
    }

    /// Waits until every running switch has connected to the controller, if one runs.
    pub(super) fn wait_for_controller(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let count = self.switches.iter_mut().map(Switch::is_running).filter(|&runs| runs).count();
        self.controller.as_mut().map_or(Ok(()), |controller| controller.wait_for_switches(count, stop))
    }

    /// The controllers' output from line `from` on.
    pub(super) fn said(&self, from: usize) -> Vec<Value> {
        controller::lock(&self.said).get(from..).unwrap_or_default().to_vec()
    }

    /// The number of the switch called `name`.
    fn number(&self, name: &str) -> io::Result<usize> {
        let found = self.nodes.iter().position(|node| node.name == name);
        found.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, format!("no switch is called {name}")))
    }

    /// Kills a switch. Its ports lose their carrier, as without power.
    pub(super) fn kill(&mut self, name: &str) -> io::Result<()> {
        let n = self.number(name)?;
        self.switches[n].kill();
        self.each_device(n, Links::down)
    }

    /// Starts a switch that was killed.
    pub(super) fn revive(&mut self, name: &str) -> io::Result<()> {
        let n = self.number(name)?;
        self.each_device(n, Links::up)?;
        self.switches[n].revive(&self.spaces[n])
    }

    /// Deletes a switch's entries.
    pub(super) fn flush(&self, name: &str) -> io::Result<()> {
        self.switches[self.number(name)?].flush()
    }

    /// Undoes the effects of faults: every switch runs, every link is up.
    ///
    /// # Errors
    /// A switch that fails to start.
    pub fn restore(&mut self) -> io::Result<()> {
        for n in 0..self.nodes.len() {
            self.each_device(n, Links::up)?;
            if !self.switches[n].is_running() {
                self.switches[n].revive(&self.spaces[n])?;
            }
        }
        Ok(())
    }

    /// Sets the link at a port up or down.
    pub(super) fn set_link(&self, name: &str, port: usize, up: bool) -> io::Result<()> {
        let n = self.number(name)?;
        let device = &self.nodes[n].ports[port].device;
        let set = if up { Links::up } else { Links::down };
        Ok(self.spaces[n].enter(|| set(&mut Links::open()?, device))??)
    }

    fn each_device(
        &self,
        n: usize,
        set: impl Fn(&mut Links, &str) -> Result<(), KernelError> + Sync,
    ) -> io::Result<()> {
        let ports = &self.nodes[n].ports;
        self.spaces[n].enter(|| {
            let mut links = Links::open()?;
            ports.iter().try_for_each(|port| set(&mut links, &port.device))
        })??;
        Ok(())
    }

    /// The counters of the ports by which switches send up.
    pub(super) fn upward(&self) -> io::Result<Upward> {
        let mut opened = Vec::new();
        for (node, space) in self.nodes.iter().zip(self.spaces.iter()) {
            let ports = node.ports.iter().filter(|port| port.upward);
            let devices: Vec<String> = ports.map(|port| port.device.clone()).collect();
            if !devices.is_empty() {
                opened.push((space.enter(Links::open)??, devices));
            }
        }
        Ok(Upward(opened))
    }
}

/// The ports by which switches send up, switch by switch.
#[derive(Debug)]
pub(super) struct Upward(Vec<(Links, Vec<String>)>);

impl Upward {
    /// The frames that each port has sent, switch by switch and port by port.
    pub(super) fn sent_frames(&mut self) -> io::Result<Vec<u64>> {
        let mut sent = Vec::new();
        for (links, devices) in &mut self.0 {
            for device in devices {
                sent.push(links.get(device)?.stats.tx_packets);
            }
        }
        Ok(sent)
    }

    /// The devices, in the order of [`Upward::sent_frames`].
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|(_, devices)| devices).map(String::as_str)
    }
}

/// The queue of each of `ports` ports of one switch: together they stay below the send buffer of their socket.
fn queue_bytes(ports: usize) -> u32 {
    let frames = SOCKET_BYTES / SOCKET_FRAME_BYTES / ports.max(1) as u32;
    // A bucket takes no queue that is smaller than its burst.
    frames.clamp(2, QUEUE_FRAMES) * FRAME_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_switch_keep_below_their_sockets_buffer() {
        assert_eq!([1, 4, 5, 10].map(|ports| queue_bytes(ports) / FRAME_BYTES), [20, 20, 18, 9]);
    }
}
