//! The network: a namespace for each host and each bump, and one for the ends of all links at the fabric.

use super::config::{self, device};
use super::plan::{Cable, Host, Plan};
use crate::live::status_of;
use crate::namespaces::{Folder, HOST_DEVICE, HostEnd, Spaces, check, connect, host_queue, plain, wait_for};
use crate::pa::{Endpoint, Endpoints, kernel_name};
use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use rustix::process::Pid;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::{self, Namespace, PREFIX};
use sluicenet_dataplane::process::Program;
use sluicenet_vswitchd::status::Status;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

/// The highest of the system's ordinary priorities.
pub(super) const PRIORITY: i32 = -20;

/// The names of a network's namespaces and files, and of the devices at the fabric.
#[derive(Clone, Debug)]
pub struct Names(pub u32);

impl Names {
    pub fn fabric(&self) -> String {
        format!("{PREFIX}bump{}-fabric", self.0)
    }
    pub fn host(&self, host: usize) -> String {
        format!("{PREFIX}bump{}-h{host}", self.0)
    }
    pub fn bump(&self, bump: usize) -> String {
        format!("{PREFIX}bump{}-b{bump}", self.0)
    }
    pub fn control(&self, bump: usize, folder: &Path) -> PathBuf {
        folder.join(format!("b{bump}.sock"))
    }
    /// The device at an edge of the fabric, by the edge's number.
    pub fn edge(&self, edge: usize) -> String {
        format!("e{edge}")
    }
}

/// A network that is up; removed when dropped.
#[derive(Debug)]
pub struct Network {
    names: Names,
    // The order of the fields matters: programs end before their namespaces are deleted.
    bumps: Vec<Program>,
    /// The fabric's, those of the hosts, and those of the bumps.
    spaces: Spaces,
    folder: Folder,
}

/// What this machine lacks for a plan, a line each.
pub fn missing(plan: &Plan) -> Vec<String> {
    let mut lacks = Vec::new();
    if let Err(e) = netns::may_make_namespaces() {
        lacks.push(e.to_string());
    }
    let name = kernel_name(plan.scenario.tcp.congestion);
    if plan.connects() {
        let has = socket(AddressFamily::INET, SocketType::STREAM, None)
            .and_then(|socket| sockopt::set_tcp_congestion(&socket, name));
        if let Err(e) = has {
            let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            lacks.push(format!(
                "congestion control `{name}` ({e}): `modprobe tcp_{name}`, or a kernel with CONFIG_TCP_CONG_{}; this one has: {}",
                name.to_uppercase(),
                known.unwrap_or_default().trim()
            ));
        }
    }
    lacks
}

impl Network {
    /// Builds the network, and starts its bumps.
    ///
    /// # Errors
    /// A request that the kernel refused, a bump that does not start; [`io::ErrorKind::Interrupted`] when `stop` was raised.
    pub fn build(plan: &Plan, stop: &AtomicBool) -> io::Result<Network> {
        let names = Names(std::process::id());
        let folder = Folder::create(&format!("bump-{}", names.0))?;
        let mut network = Network { names, bumps: Vec::new(), spaces: Spaces::default(), folder };
        network.spaces.add(&network.names.fabric())?;
        for (i, host) in plan.hosts.iter().enumerate() {
            check(stop)?;
            let inside = network.spaces.add(&network.names.host(i))?;
            make_host(plan, host, (network.fabric(), &network.names.edge(i)), &network.spaces[inside])?;
        }
        for i in 0..plan.bumps.len() {
            network.spaces.add(&network.names.bump(i))?;
        }
        for (c, cable) in plan.cables.iter().enumerate() {
            let edges = [0, 1].map(|end| network.names.edge(plan.hosts.len() + 2 * c + end));
            lay(plan, cable, network.fabric(), edges, &network.spaces[1 + plan.hosts.len()..])?;
        }
        config::write(plan, &network.names, &network.folder)?;
        for i in 0..plan.bumps.len() {
            network.start(i)?;
        }
        for i in 0..plan.bumps.len() {
            network.wait_for(i, stop)?;
        }
        Ok(network)
    }

    /// The namespace with the fabric's end of all links.
    pub(super) fn fabric(&self) -> &Namespace {
        &self.spaces[0]
    }

    /// The device at an edge of the fabric.
    pub(super) fn edge(&self, edge: usize) -> String {
        self.names.edge(edge)
    }

    /// The endpoints of the hosts.
    pub(super) fn endpoints(&self, plan: &Plan) -> Endpoints {
        let endpoint = |(i, host): (usize, &Host)| {
            ((i as u32, 0), Endpoint { namespace: Some(self.names.host(i)), address: host.address })
        };
        plan.hosts.iter().enumerate().map(endpoint).collect()
    }

    /// The status of a bump.
    ///
    /// # Errors
    /// The bump does not answer.
    pub fn status(&self, bump: usize) -> io::Result<Status> {
        status_of(&self.names.control(bump, &self.folder))
    }

    fn start(&mut self, i: usize) -> io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        let file = self.folder.join(format!("b{i}.toml"));
        let log = File::create(self.log(i))?;
        command.args(["bump", "run", "--once"]).arg(file);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let program = Program::spawn(command, None)?;
        // It stands for a computer of its own, as the fabric's thread stands for switches. The threads that it starts inherit the
        // priority; without the privilege it is only later.
        let _ = rustix::process::setpriority_process(Pid::from_raw(program.id() as i32), PRIORITY);
        self.bumps.push(program);
        Ok(())
    }

    fn log(&self, i: usize) -> PathBuf {
        self.folder.join(format!("b{i}.log"))
    }

    /// Waits until all ports of a bump are there.
    fn wait_for(&mut self, i: usize, stop: &AtomicBool) -> io::Result<()> {
        let (log, control) = (self.log(i), self.names.control(i, &self.folder));
        let is_there = || status_of(&control).is_ok_and(|s| s.ports.iter().all(|port| port.number.is_some()));
        wait_for((&format!("bump {i}"), &mut self.bumps[i], &log), stop, is_there)
    }
}

/// Makes a host's link. The host knows all others.
fn make_host(plan: &Plan, host: &Host, (fabric, edge): (&Namespace, &str), inside: &Namespace) -> io::Result<()> {
    let prefix = crate::Plan::OVERLAY_PREFIX;
    let end = HostEnd { space: inside, mac: host.mac, address: host.address, prefix };
    let others = plan.hosts.iter().filter(|other| other.mac != host.mac);
    connect((fabric, edge), &end, plan.mtu(), others.map(|other| (other.address, &other.mac)))?;
    inside.enter(|| {
        Links::open()?.set_bucket(HOST_DEVICE, host_queue(&plan.scenario, host.rate))?;
        if plan.scenario.tcp.ecn {
            std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1")?;
        }
        Ok::<_, io::Error>(())
    })??;
    Ok(())
}

/// Makes the links from one end of a cable through its bumps to the other one.
fn lay(plan: &Plan, cable: &Cable, fabric: &Namespace, edges: [String; 2], bumps: &[Namespace]) -> io::Result<()> {
    let [first, last] = edges;
    let mut from = (fabric, first);
    let entries = cable.hops.iter().map(|hop| (&bumps[hop.bump], device(hop.entry), device(hop.entry ^ 1)));
    let ends = entries.chain([(fabric, last, String::new())]);
    for (space, entry, exit) in ends {
        from.0.enter(|| {
            let mut links = Links::open()?;
            links.create_veth(&from.1, &entry, space)?;
            plain(&mut links, &from.1, plan.mtu())
        })??;
        space.enter(|| plain(&mut Links::open()?, &entry, plan.mtu()))??;
        from = (space, exit);
    }
    Ok(())
}
