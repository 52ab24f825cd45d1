//! The network: a namespace for each host and each bump, and one for the ends of all links at the fabric.

use super::config::{self, device};
use super::plan::{Cable, Host, Plan};
use crate::pa::{Endpoint, Endpoints, kernel_name};
use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use rustix::process::Pid;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::{Feature, Links, TokenBucket};
use sluicenet_dataplane::kernel::netns::{self, Namespace, PREFIX};
use sluicenet_dataplane::leftovers::{self, Leftover};
use sluicenet_dataplane::process::Program;
use sluicenet_vswitchd::control::{Answer, Request, ask};
use sluicenet_vswitchd::status::Status;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The network device of a host.
const HOST_DEVICE: &str = "eth0";
/// How long a bump may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// The highest of the system's ordinary priorities.
pub(super) const PRIORITY: i32 = -20;
/// Full frames that can wait at a host: the default length of a device's queue.
const HOST_QUEUE: u32 = 1_000;
/// Bytes of a frame besides its packet: for the kernel, and on the wire.
const HEADER: u32 = 14;
const WIRE_HEADER: u32 = 38;

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
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/run/sluicenet/bump-{}", self.0))
    }
    pub fn control(&self, bump: usize, folder: &Path) -> PathBuf {
        folder.join(format!("b{bump}.sock"))
    }
    /// The device at an edge of the fabric, by the edge's number.
    pub fn edge(&self, edge: usize) -> String {
        format!("e{edge}")
    }
}

/// A folder that is deleted when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        if std::fs::remove_dir_all(&self.0).is_ok() {
            leftovers::forget(&Leftover::Folder(self.0.clone()));
        }
    }
}

/// A network that is up; removed when dropped.
#[derive(Debug)]
pub struct Network {
    names: Names,
    // The order of the fields matters: programs end before their namespaces are deleted.
    bumps: Vec<Program>,
    fabric: Option<Namespace>,
    spaces: Vec<Namespace>,
    folder: Folder,
}

impl Drop for Network {
    fn drop(&mut self) {
        self.bumps.clear();
        for namespace in self.spaces.iter().chain(&self.fabric) {
            // `sluicenet clean` finds namespaces that could not be deleted.
            let _ = Namespace::delete(namespace.name());
        }
    }
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
    /// A request that the kernel refused, a bump that does not start; [`ErrorKind::Interrupted`] when `stop` was raised.
    pub fn build(plan: &Plan, stop: &AtomicBool) -> io::Result<Network> {
        let names = Names(std::process::id());
        let place = names.folder();
        leftovers::add(Leftover::Folder(place.clone()))?;
        std::fs::create_dir_all("/run/sluicenet")?;
        DirBuilder::new().mode(0o700).create(&place)?;
        let folder = Folder(place);
        let mut network = Network { names, bumps: Vec::new(), fabric: None, spaces: Vec::new(), folder };
        let space = |name: &str| {
            let namespace = Namespace::create(name)?;
            namespace.silence()?;
            Ok::<_, KernelError>(namespace)
        };
        let fabric = network.fabric.insert(space(&network.names.fabric())?);
        for (i, host) in plan.hosts.iter().enumerate() {
            check(stop)?;
            let inside = space(&network.names.host(i))?;
            make_host(plan, host, (fabric, &network.names.edge(i)), &inside)?;
            network.spaces.push(inside);
        }
        let bumps = (0..plan.bumps.len()).map(|i| space(&network.names.bump(i))).collect::<Result<Vec<_>, _>>()?;
        for (c, cable) in plan.cables.iter().enumerate() {
            let edges = [0, 1].map(|end| network.names.edge(plan.hosts.len() + 2 * c + end));
            lay(plan, cable, fabric, edges, &bumps)?;
        }
        network.spaces.extend(bumps);
        config::write(plan, &network.names, &network.folder.0)?;
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
        self.fabric.as_ref().expect("a built network has it")
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
        match ask(&self.names.control(bump, &self.folder.0), &Request::Show)? {
            Answer::Status(status) => Ok(*status),
            Answer::Error(why) => Err(io::Error::other(why)),
            other => Err(io::Error::new(ErrorKind::InvalidData, format!("{other:?}"))),
        }
    }

    fn start(&mut self, i: usize) -> io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        let file = self.folder.0.join(format!("b{i}.toml"));
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
        self.folder.0.join(format!("b{i}.log"))
    }

    /// Waits until all ports of a bump are there.
    fn wait_for(&mut self, i: usize, stop: &AtomicBool) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            check(stop)?;
            if self.status(i).is_ok_and(|s| s.ports.iter().all(|port| port.number.is_some())) {
                return Ok(());
            }
            if self.bumps[i].try_wait()?.is_some() || Instant::now() > until {
                let said = std::fs::read_to_string(self.log(i)).unwrap_or_default();
                return Err(io::Error::other(format!("bump {i} did not start: {}", said.trim())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Makes a host's link, and its addresses: it knows all other hosts, because the fabric does not flood requests.
fn make_host(plan: &Plan, host: &Host, (fabric, edge): (&Namespace, &str), inside: &Namespace) -> io::Result<()> {
    fabric.enter(|| {
        let mut links = Links::open()?;
        links.create_veth(edge, HOST_DEVICE, inside)?;
        plain(plan, &mut links, edge)
    })??;
    inside.enter(|| {
        let mut links = Links::open()?;
        links.set_mac(HOST_DEVICE, host.mac.0)?;
        plain(plan, &mut links, HOST_DEVICE)?;
        links.add_address(HOST_DEVICE, host.address.into(), crate::Plan::OVERLAY_PREFIX)?;
        // A veth takes frames at any speed. The queue of an adapter has the link's rate, in bytes on the wire.
        let [frame, on_wire] = [HEADER, WIRE_HEADER].map(|header| u64::from(plan.mtu() + header));
        let rate = host.rate.as_bps() / 8 * frame / on_wire;
        let limit = HOST_QUEUE * frame as u32;
        links.set_bucket(HOST_DEVICE, TokenBucket { rate, burst: 2 * frame as u32, limit })?;
        let others = plan.hosts.iter().filter(|other| other.mac != host.mac);
        others.into_iter().try_for_each(|other| links.add_neighbour(HOST_DEVICE, other.address.into(), other.mac.0))?;
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
            plain(plan, &mut links, &from.1)
        })??;
        space.enter(|| plain(plan, &mut Links::open()?, &entry))??;
        from = (space, exit);
    }
    Ok(())
}

/// Has a device carry whole frames with their checksums, and switches it on.
fn plain(plan: &Plan, links: &mut Links, device: &str) -> Result<(), KernelError> {
    let features = [Feature::TxChecksum, Feature::Tso, Feature::Gso, Feature::Gro];
    features.iter().try_for_each(|&f| links.set_feature(device, f, false))?;
    links.set_mtu(device, plan.mtu())?;
    links.up(device)
}

/// Returns an error if `stop` was raised.
fn check(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(io::Error::new(ErrorKind::Interrupted, "stopped")) } else { Ok(()) }
}
