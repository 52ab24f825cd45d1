//! A network that is up: namespaces, the fabric's thread, the controller and the agents. All is removed when it is dropped.

use super::files;
use super::plan::{Host, Plan};
use crate::fabric;
use crate::live::{Progress, status_of};
use crate::namespaces::{Folder, HOST_DEVICE, HostEnd, Spaces, check, connect, host_queue, wait_for};
use crate::pa::{Endpoint, Endpoints};
use sluicenet_dataplane::fabric::{Fabric, Report, Runner};
use sluicenet_dataplane::kernel::edge::Edge;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_dataplane::kernel::packet::{PacketDevice, Pieces};
use sluicenet_dataplane::process::Program;
use sluicenet_proto::frame::HostId;
use sluicenet_vswitchd::control::stop;
use sluicenet_vswitchd::xco::status::XcoStatus;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Frames for which an edge of the fabric has room in each direction: as many as an uplink's queue, and a burst.
const EDGE_BUFFERS: u32 = 2_048;

/// A program of XCo: its name, its control socket and its log.
struct Running {
    name: String,
    control: PathBuf,
    log: PathBuf,
    program: Program,
}

/// The fabric in its thread.
struct FabricThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(io::Result<()>, Report)>,
}

/// A network that is up.
pub(super) struct Network {
    controller: Option<Running>,
    agents: Vec<Running>,
    fabric: Option<FabricThread>,
    /// The kernel's counters of each host's frames, and whether its queue is the kernel's own.
    edges: Vec<(Edge, bool)>,
    /// The fabric's, and those of the hosts. They are deleted when nothing is in them any more.
    spaces: Spaces,
    folder: Folder,
}

/// What this machine lacks for such a testbed, a line each.
pub fn missing() -> Vec<String> {
    let mut lacks: Vec<String> = netns::may_make_namespaces().err().map(|e| e.to_string()).into_iter().collect();
    let tc = Command::new("tc").arg("-V").stdin(Stdio::null()).output();
    if !tc.is_ok_and(|out| out.status.success()) {
        lacks.push("tc, by which agents make their queues; on Debian: apt-get install iproute2".into());
    }
    lacks
}

impl Network {
    /// Builds the network, and waits until all agents have joined the controller.
    ///
    /// # Errors
    /// A request that the kernel refused, or a program that ended; [`io::ErrorKind::Interrupted`] when stopped.
    pub fn up(plan: &Plan, run: u32, progress: Progress<'_>) -> io::Result<Network> {
        let mut network = Network {
            controller: None,
            agents: Vec::new(),
            fabric: None,
            edges: Vec::new(),
            spaces: Spaces::default(),
            folder: Folder::create(&format!("xco-{run}"))?,
        };
        let outside = network.spaces.add(&plan.fabric)?;
        for (number, host) in (0..).zip(&plan.hosts) {
            check(progress.stop)?;
            let inside = network.spaces.add(&host.namespace)?;
            wire(plan, (number, host), (&network.spaces[outside], &network.spaces[inside]))?;
        }
        network.start_fabric(plan)?;
        network.start_programs(plan, progress)?;
        // After the programs, which replace the queues that are counted.
        for (number, host) in (0u32..).zip(&plan.hosts) {
            let inside = Namespace::open(&host.namespace)?;
            let counters = Edge::open(&inside, HOST_DEVICE, &network.spaces[outside], &edge(number))?;
            network.edges.push((counters, !plan.has_agent(number)));
        }
        Ok(network)
    }

    fn start_fabric(&mut self, plan: &Plan) -> io::Result<()> {
        let stations: Vec<_> = plan.hosts.iter().zip(0..).map(|(host, n)| (host.mac, n)).collect();
        let spec = fabric::spec(&plan.scenario, &stations).map_err(io::Error::other)?;
        let fabric = Fabric::new(&spec).map_err(io::Error::other)?;
        let outside = Namespace::open(&plan.fabric)?;
        let device = |n| PacketDevice::open_for(&outside, &edge(n), EDGE_BUFFERS, Pieces::Frames);
        let devices = (0..plan.hosts.len() as HostId).map(device).collect::<Result<Vec<_>, _>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let thread = std::thread::Builder::new().name("fabric".into()).spawn(move || {
            let mut runner = Runner::new(fabric, devices);
            let ran = runner.run(&stops);
            (ran, runner.report())
        })?;
        self.fabric = Some(FabricThread { stop, thread });
        Ok(())
    }

    fn start_programs(&mut self, plan: &Plan, progress: Progress<'_>) -> io::Result<()> {
        let Some(xco) = &plan.scenario.xco else { return Ok(()) };
        let (file, control) = (self.folder.join("c.toml"), self.folder.join("c.sock"));
        std::fs::write(&file, files::controller(plan, xco, &control))?;
        let controller = self.start("the controller", &["xco", "run"], &file, control)?;
        let controller = self.controller.insert(controller);
        controller.wait(progress.stop, |_| true)?;
        for (number, host) in plan.agents() {
            check(progress.stop)?;
            let control = self.folder.join(format!("a{number}.sock"));
            let file = self.folder.join(format!("a{number}.toml"));
            std::fs::write(&file, files::agent(plan, xco, (number, host), &control))?;
            let agent =
                self.start(&format!("the agent of host {number}"), &["xco", "agent", "--once"], &file, control)?;
            self.agents.push(agent);
        }
        for agent in &mut self.agents {
            agent.wait(progress.stop, |status| status.members > 0)?;
        }
        Ok(())
    }

    fn start(&self, name: &str, words: &[&str], file: &Path, control: PathBuf) -> io::Result<Running> {
        let log = file.with_extension("log");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(words).arg(file).arg("--quiet");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        Ok(Running { name: name.into(), control, log, program: Program::spawn(command, None)? })
    }

    /// The folder of the network's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The namespace of a host.
    ///
    /// # Errors
    /// The kernel does not open it.
    pub fn namespace(&self, host: HostId) -> io::Result<Namespace> {
        // That of the fabric is the first.
        Ok(Namespace::open(self.spaces[1 + host as usize].name())?)
    }

    /// The states of the controller and of the agents, if there are any.
    ///
    /// # Errors
    /// A program does not answer.
    pub fn statuses(&self) -> io::Result<Option<(XcoStatus, Vec<XcoStatus>)>> {
        let Some(controller) = &self.controller else { return Ok(None) };
        let agents = self.agents.iter().map(Running::status).collect::<io::Result<_>>()?;
        Ok(Some((controller.status()?, agents)))
    }

    /// The frames that the kernel dropped at the hosts since the network was up, by place; those of agents are in their states.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn lost_at_hosts(&mut self) -> io::Result<Vec<(&'static str, u64)>> {
        let mut all = [("queue", 0), ("device", 0), ("fabric's device", 0), ("sockets", 0), ("reassembly", 0)];
        for (edge, own_queue) in &mut self.edges {
            let lost = edge.read()?;
            // The queues of an agent drop the frames by which it has the kernel look. The agent counts the others.
            let queue = if *own_queue { lost.qdisc } else { 0 };
            let places = [queue, lost.tenant_device, lost.switch_device, lost.sockets, lost.reassembly];
            all.iter_mut().zip(places).for_each(|(sum, lost)| sum.1 += lost);
        }
        Ok(all.to_vec())
    }

    /// Ends the fabric; its report.
    ///
    /// # Errors
    /// A device of the fabric was gone.
    pub fn end_fabric(&mut self) -> io::Result<Report> {
        let fabric = self.fabric.take().ok_or_else(|| io::Error::other("the fabric has ended"))?;
        fabric.stop.store(true, Ordering::Relaxed);
        let (ran, report) = fabric.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ran.map(|()| report)
    }
}

/// The hosts' endpoints for sockets.
pub(super) fn endpoints(plan: &Plan) -> Endpoints {
    let of = |host: &Host| Endpoint { namespace: Some(host.namespace.clone()), address: host.address };
    (0..).zip(&plan.hosts).map(|(n, host)| ((n, 0), of(host))).collect()
}

impl Drop for Network {
    fn drop(&mut self) {
        // Agents that are told to stop put their devices in order, all at the same time. What does not answer is killed.
        std::thread::scope(|threads| {
            for running in self.agents.iter().chain(&self.controller) {
                threads.spawn(|| stop(&running.control));
            }
        });
        self.agents.clear();
        self.controller = None;
        let _ = self.end_fabric();
    }
}

impl Running {
    fn status(&self) -> io::Result<XcoStatus> {
        status(&self.name, &self.control)
    }

    /// Waits until the program answers that it is so.
    fn wait(&mut self, stop: &AtomicBool, so: impl Fn(&XcoStatus) -> bool) -> io::Result<()> {
        let Running { name, control, log, program } = self;
        wait_for((name, program, log), stop, || status(name, control).is_ok_and(|status| so(&status)))
    }
}

fn status(name: &str, control: &Path) -> io::Result<XcoStatus> {
    let status = status_of(control).map_err(|e| io::Error::new(e.kind(), format!("{name}: {e}")))?;
    status.xco.map(|xco| *xco).ok_or_else(|| io::Error::other("no program of XCo"))
}

/// The fabric's end of a host's link.
fn edge(number: HostId) -> String {
    format!("edge{number}")
}

/// Makes a host's link.
fn wire(plan: &Plan, (number, host): (HostId, &Host), (outside, inside): (&Namespace, &Namespace)) -> io::Result<()> {
    let end = HostEnd { space: inside, mac: host.mac, address: host.address, prefix: Plan::PREFIX };
    let peers = host.peers.iter().map(|&peer| &plan.hosts[peer as usize]);
    connect((outside, &edge(number)), &end, plan.mtu, peers.map(|peer| (peer.address, &peer.mac)))?;
    // An agent makes queues of its own.
    if !plan.has_agent(number) {
        inside.enter(|| Links::open()?.set_bucket(HOST_DEVICE, host_queue(&plan.scenario, host.rate)))??;
    }
    Ok(())
}
