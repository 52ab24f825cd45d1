//! From a scenario to a world: boxes, links and the applications on them.

mod bumps;
mod congestion;
mod directions;
mod ideal;
mod links;
mod memory;
pub mod server;
mod slowdowns;
mod topology;
mod xco;

pub use bumps::{BumpPlan, Bumps, Hop, Hops, Watched};
pub use directions::Directions;
pub use ideal::{Bits, Frames, Ideal};
pub use links::{LinkKind, link_kinds};
pub use memory::{
    Demand, check as check_memory, needed as needed_bytes, of_rows as rows_bytes, port_rows, rounded as rounded_bytes,
    servers,
};
pub use slowdowns::Slowdowns;
pub use topology::{Attachment, Plan, SwitchPlan};

use crate::workload::{HostApps, Workloads};
use server::server_configs;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_node::packet::Framing;
use sluicenet_node::switch::{
    self, ActiveQueue, AnyRoute, Marker, PortConfig, StormAction, Switch, SwitchConfig, WatchdogConfig,
};
use sluicenet_proto::cee::headroom::{Headroom, PFC_FRAME_BYTES, peer_response};
use sluicenet_proto::cee::pfc::{QUANTUM_BITS, Repetition, Watermarks, quanta_time};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{
    BUFFER_MAX, BufferPolicy, Bytes, Error, Forwarding, FramingKind, Limiters, PfcWatchdog, Quantity, Result, Scenario,
    Warning, WatchdogAction,
};
use sluicenet_sim::world::{Node, World, WorldError};
use std::cmp::Reverse;
use std::sync::Arc;

/// A world, with the knowledge that the records need.
pub struct Built {
    /// The world, ready to run.
    pub world: World<HostApps>,
    /// The network it was built from.
    pub plan: Arc<Plan>,
    /// The applications' names for their flows, and the end of the run.
    pub workloads: Workloads,
    /// Times in an empty network.
    pub ideal: Ideal,
    /// Links that are slower for some time.
    pub slowdowns: Option<Slowdowns>,
    /// Bumps in links; their boxes follow those of the plan.
    pub bumps: Bumps,
    /// Warnings for the user, before the run.
    pub warnings: Vec<Warning>,
}

/// The part of each box of a world: see [`Engine::new`](sluicenet_sim::Engine::new). A bump shares the part of a neighbour.
pub fn parts(plan: &Plan, bumps: &Bumps, threads: usize) -> Vec<u32> {
    let mut part = plan.parts(threads);
    let of_bumps: Vec<u32> = bumps.plans.iter().map(|bump| part[bump.links[0][0].0 as usize]).collect();
    part.extend(of_bumps);
    part
}

/// Framing of packets in this scenario.
pub fn framing(scenario: &Scenario) -> Framing {
    let is_tagged = scenario.qcn.as_ref().is_some_and(|qcn| qcn.limiters == Limiters::Flow);
    match scenario.framing.kind {
        FramingKind::Ethernet if is_tagged => Framing::CN_TAGGED,
        FramingKind::Ethernet => Framing::ETHERNET,
        FramingKind::Ppp => Framing::PPP,
    }
}

/// Bytes on the wire of the largest frame and of a pause frame.
fn wire_bytes(scenario: &Scenario) -> (u32, u32) {
    let framing = framing(scenario);
    let overhead = framing.overhead() as u32;
    framing.assert_fits(scenario.framing.mtu.as_bytes());
    let largest = framing.frame_len(scenario.framing.mtu.as_bytes() as u16) as u32;
    (largest + overhead, PFC_FRAME_BYTES + overhead)
}

/// At most once in so many stops, more XOFFs of one stop are damaged than there is room for.
const STOPS: f64 = 1e12;
/// Where one in five arrives damaged a full frame never comes whole: there is no use in room for more than this.
const SPARE_MAX: u64 = 16;

/// Number of XOFFs of one stop that may be damaged without loss, where the link `back` damages bits.
fn spare_pauses(back: &Direction) -> u64 {
    if back.bit_error_rate == 0.0 {
        return 0;
    }
    let bits = f64::from(8 * PFC_FRAME_BYTES);
    let damaged = -libm::expm1(bits * libm::log1p(-back.bit_error_rate));
    (libm::ceil(libm::log(STOPS) / -libm::log(damaged)) as u64).saturating_sub(1).clamp(1, SPARE_MAX)
}

/// Bytes that still arrive at the receiving end of `into` after an XOFF that travels undamaged over `back`.
fn under_way(scenario: &Scenario, into: &Direction, back: &Direction) -> u64 {
    let (max_frame, pfc_frame) = wire_bytes(scenario);
    Headroom { rate: into.rate, data_delay: into.latency, pause_delay: back.pause_latency, max_frame, pfc_frame }
        .bytes()
}

/// Room that the receiving end of `into` needs above XOFF, with the slowest peer that is allowed for.
fn needed(scenario: &Scenario, into: &Direction, back: &Direction) -> u64 {
    let pfc = &scenario.pfc;
    let longest = pfc.peer_response.unwrap_or_else(|| peer_response(into.rate)).max(pfc.response);
    let worst = Direction { pause_latency: back.pause_latency - pfc.response + longest, ..*back };
    under_way(scenario, into, &worst).saturating_mul(1 + spare_pauses(back))
}

/// Room above XOFF at the receiving end of `into`.
fn headroom(scenario: &Scenario, into: &Direction, back: &Direction) -> u64 {
    let given = of_link(scenario, into, back).or(scenario.pfc.headroom);
    given.map_or_else(|| needed(scenario, into, back), |b| b.as_bytes())
}

/// The delay of the cable of a link.
fn cable(scenario: &Scenario, back: &Direction) -> Duration {
    back.pause_latency - scenario.pfc.response
}

/// The headroom in `[[pfc.link]]` of a link of this rate and delay.
fn of_link(scenario: &Scenario, into: &Direction, back: &Direction) -> Option<Bytes> {
    let delay = cable(scenario, back);
    scenario.pfc.links.iter().find(|of| (of.rate, of.delay) == (into.rate, delay)).map(|of| of.headroom)
}

/// The headroom of ports of a box, and the headroom that they need.
pub fn headroom_at(scenario: &Scenario, plan: &Arc<Plan>, node: u32, ports: impl Iterator<Item = u16>) -> (u64, u64) {
    let links = Directions::new(scenario, plan.clone());
    ports.fold((0, 0), |(given, need), port| {
        let back = links.of(node, port);
        let into = links.back(&back);
        (given + headroom(scenario, &into, &back), need + needed(scenario, &into, &back))
    })
}

/// The memory of the `i`th switch and its shared part, if the switch has one pool.
///
/// # Errors
/// As [`Network::new`].
pub fn memory_of(scenario: &Scenario, i: usize) -> Result<Option<(u64, u64)>> {
    if !scenario.buffer.is_on() {
        return Ok(None);
    }
    let (size, headroom, reserved) = congestion::memory(&Network::new(scenario)?, i);
    Ok(Some((size, size - headroom - reserved)))
}

/// A warning if the headroom that a scenario gives is less than a link needs.
fn small_headroom(scenario: &Scenario, plan: &Plan, links: &Directions) -> Option<Warning> {
    if lossless(scenario).is_empty() || scenario.pfc.headroom.is_none() && scenario.pfc.links.is_empty() {
        return None;
    }
    let of_direction = |l: Direction| {
        let back = links.back(&l);
        (needed(scenario, &l, &back), headroom(scenario, &l, &back), l.to)
    };
    let short = |(most, given, to): &(u64, u64, (u32, u16))| (most.saturating_sub(*given), *most, Reverse(*to));
    let (most, given, (node, port)) = links.iter().map(of_direction).max_by_key(short)?;
    let message = || {
        let name = plan.name(node);
        format!(
            "{given} B of headroom are fewer than the {most} B that can still arrive at {name} port {port} after a pause: \
             frames can be lost there"
        )
    };
    let key = if scenario.pfc.links.is_empty() { "pfc.headroom" } else { "pfc.link" };
    (given < most).then(|| scenario.locations.warning(key, message()))
}

/// A warning if links have no row in `[[pfc.link]]`.
fn unlisted_link(scenario: &Scenario, plan: &Plan, links: &Directions) -> Option<Warning> {
    if lossless(scenario).is_empty() || scenario.pfc.links.is_empty() {
        return None;
    }
    let is_unlisted = |l: &Direction| l.to.0 >= plan.hosts() && of_link(scenario, l, &links.back(l)).is_none();
    let l = links.iter().find(is_unlisted)?;
    let (rate, delay) = (l.rate.written(), cable(scenario, &links.back(&l)).written());
    let instead = scenario.pfc.headroom.map_or("the computed headroom".to_owned(), |bytes| bytes.written());
    let message = format!("no row of [[pfc.link]] is for links of {rate} with {delay} of cable: they have {instead}");
    Some(scenario.locations.warning("pfc.link", message))
}

/// Repetition of pause messages over `back`, if `back` damages bits. XON is repeated when the other end would have sent
/// something. XOFF is refreshed before its quanta run out, as often as there is headroom for damaged XOFFs. Each
/// refresh takes the time that its frames need to leave.
pub fn repetition(scenario: &Scenario, into: &Direction, back: &Direction) -> Option<Repetition> {
    let (max_frame, pfc_frame) = wire_bytes(scenario);
    let leave = u64::from(max_frame + pfc_frame);
    let fit = u64::from(scenario.pfc.quanta) * QUANTUM_BITS / 8 / leave;
    (back.bit_error_rate > 0.0).then(|| Repetition {
        xon_again: into.rate.time_for(under_way(scenario, into, back)),
        refreshes: (1 + spare_pauses(back)).min(fit.saturating_sub(1)).max(1) as u32,
    })
}

/// Refuses links that hold more than a buffer can have above XOFF.
fn check_headroom(scenario: &Scenario, links: &Directions) -> Result<()> {
    if lossless(scenario).is_empty() {
        return Ok(());
    }
    let of_link = |l: &Direction| headroom(scenario, l, &links.back(l));
    match links.iter().map(|l| (of_link(&l), l.rate)).max() {
        Some((bytes, rate)) if bytes > BUFFER_MAX.0 => {
            // The key of a delay that explains most of it, if there is one: a level or a file may have delays, too.
            let mut delays = [
                ("topology.link_delay", scenario.topology.link.delay),
                ("adapter.delay", scenario.adapter.delay),
                ("switch.delay", scenario.switch.delay),
                ("pfc.response", scenario.pfc.response),
            ];
            delays.sort_by_key(|delay| Reverse(delay.1));
            let explains = |delay: Duration| rate.bytes_in(delay).saturating_mul(4) >= bytes;
            let key = delays.iter().find(|delay| explains(delay.1)).map_or("topology.level", |delay| delay.0);
            let message = format!("a link needs {bytes} B of headroom: at most {} B", BUFFER_MAX.0);
            let hint = "this many bytes arrive before a pause takes effect: use shorter delays, slower links or a faster \
                        pfc.response";
            Err(scenario.locations.error(key, message).hint(hint))
        }
        _ => Ok(()),
    }
}

/// Refuses pauses that run out before they can be renewed. The renewal is due at half of the pause and may find a frame
/// on the wire. Both times are at the speed of the link whose bit times the quanta count.
fn check_quanta(scenario: &Scenario) -> Result<()> {
    let (max_frame, pfc_frame) = wire_bytes(scenario);
    let least = (2 * (max_frame + pfc_frame) as u64 * 8).div_ceil(QUANTUM_BITS);
    if lossless(scenario).is_empty() || scenario.pfc.quanta as u64 >= least {
        return Ok(());
    }
    let quanta = scenario.pfc.quanta;
    Err(scenario
        .locations
        .error("pfc.quanta", format!("a pause of {quanta} quanta runs out before it can be renewed"))
        .hint(format!("at least {least}: twice the longest frame and a pause frame, of 64 B each")))
}

/// Watermarks of a buffer with XOFF at `xoff`, at the receiving end of `into`, which is stopped over `back`.
pub fn watermarks(scenario: &Scenario, xoff: u32, into: &Direction, back: &Direction) -> Watermarks {
    let room = headroom(scenario, into, back).min(BUFFER_MAX.0) as u32;
    let headroom = under_way(scenario, into, back).min(BUFFER_MAX.0) as u32;
    // XOFF and XON are as far apart as in a switch: a hysteresis is a hysteresis.
    let span = (scenario.pfc.xoff.as_bytes() - scenario.pfc.xon.as_bytes()) as u32;
    Watermarks { xoff, xon: xoff.saturating_sub(span), capacity: xoff.saturating_add(room), headroom }
}

/// Classes whose frames the network holds back.
pub fn lossless(scenario: &Scenario) -> PrioritySet {
    if scenario.pfc.enabled { PrioritySet(scenario.pfc.lossless) } else { PrioritySet::NONE }
}

/// Time of one pause quantum on a link.
pub fn quantum(rate: Rate) -> Duration {
    quanta_time(1, rate)
}

/// Why the engine refuses a world, where the scenario says it.
pub fn refused(scenario: &Scenario, e: &WorldError) -> Error {
    let key = match e {
        WorldError::NoDelay { .. } => "topology.link_delay",
        WorldError::Port { .. } | WorldError::TooManyPorts { .. } => "topology",
    };
    scenario.locations.error(key, e.to_string())
}

/// The physical network of a scenario, for either world: boxes and links, and the settings of each switch.
pub struct Network {
    scenario: Scenario,
    /// Boxes and links.
    pub plan: Arc<Plan>,
    /// Both directions of its links.
    pub links: Directions,
    slowdowns: Option<Slowdowns>,
    bumps: Bumps,
    xco: Option<xco::XcoStages>,
    pub(crate) warnings: Vec<Warning>,
}

impl Network {
    /// # Errors
    /// Faults that show only now: links that hold more than a buffer, a graph in two parts, a cycle of lossless
    /// buffers, a slowdown of a port that does not exist.
    pub fn new(scenario: &Scenario) -> Result<Network> {
        let mut warnings = Vec::new();
        match Network::checked(scenario, &mut warnings) {
            Ok(network) => Ok(Network { warnings, ..network }),
            Err(e) => Err(e.after(warnings)),
        }
    }

    fn checked(scenario: &Scenario, warnings: &mut Vec<Warning>) -> Result<Network> {
        let plan = Arc::new(Plan::new(scenario)?);
        warnings.extend(plan.check_deadlock(scenario)?);
        let mut links = Directions::new(scenario, plan.clone());
        let bumps = Bumps::place(scenario, &plan, &mut links)?;
        warnings.extend(small_headroom(scenario, &plan, &links));
        warnings.extend(unlisted_link(scenario, &plan, &links));
        check_headroom(scenario, &links)?;
        check_quanta(scenario)?;
        congestion::check_limiters(scenario, &plan)?;
        let slowdowns = Slowdowns::of(scenario, &plan)?;
        let xco = xco::XcoStages::of(scenario, &plan)?;
        let scenario = scenario.clone();
        let network = Network { scenario, plan, links, slowdowns, bumps, xco, warnings: Vec::new() };
        congestion::check_buffers(&network)?;
        Ok(network)
    }

    /// The direction that leaves a port, and the direction that comes back to the port.
    pub fn link(&self, node: u32, port: u16) -> (Direction, Direction) {
        let out = self.links.of(node, port);
        (out, self.links.back(&out))
    }

    /// Settings that the ports of the `i`th switch share.
    pub fn switch_config(&self, i: usize) -> SwitchConfig {
        let s = &self.scenario;
        SwitchConfig {
            buffer: self.plan.switches()[i].buffers.clone(),
            policy: match s.switch.policy {
                BufferPolicy::Output => switch::BufferPolicy::Output,
                BufferPolicy::Input => switch::BufferPolicy::Input,
                BufferPolicy::Pooled => switch::BufferPolicy::Pooled,
            },
            shared: s.buffer.is_on().then(|| congestion::shared_buffer(self, i)),
            lossless: lossless(s),
            quanta: s.pfc.quanta,
            cut_through: s.switch.forwarding == Forwarding::CutThrough,
            markers: [
                // A line for each marker.
                ActiveQueue::new(congestion::rules(self, i), s.seed, i).map(Marker::from),
                congestion::points(s, i).map(Marker::from),
            ]
            .into_iter()
            .flatten()
            .collect(),
            ets: s.ets.config.clone().map(Arc::new),
            watchdog: s.pfc.watchdog.filter(|_| s.pfc.enabled).map(watchdog),
        }
    }

    /// The choice of outputs in the `i`th switch.
    pub fn route(&self, i: usize) -> AnyRoute {
        congestion::route(&self.scenario, &self.plan, i)
    }

    /// The `i`th switch.
    fn switch(&self, i: usize) -> Switch {
        Switch::new(&self.switch_config(i), self.route(i), &self.ports(i), self.scenario.record.pauses)
    }

    /// Whether switches do nothing, and nobody asks them, until a frame reaches them.
    fn switches_can_be_idle(&self) -> bool {
        let s = &self.scenario;
        s.failures.is_empty() && !s.topology.routing.has_control() && s.pfc.watchdog.is_none()
    }

    /// The ports of the `i`th switch.
    pub fn ports(&self, i: usize) -> Vec<PortConfig> {
        let node = self.plan.hosts() + i as u32;
        let of_port = |port: usize| {
            let (out, into) = self.link(node, port as u16);
            let marks = watermarks(&self.scenario, self.scenario.pfc.xoff.as_bytes() as u32, &into, &out);
            PortConfig { marks, quantum: quantum(out.rate), repetition: repetition(&self.scenario, &into, &out) }
        };
        (0..self.plan.ports(node)).map(of_port).collect()
    }
}

fn watchdog(of: PfcWatchdog) -> WatchdogConfig {
    let action = match of.action {
        WatchdogAction::Drop => StormAction::Drop,
        WatchdogAction::Forward => StormAction::Forward,
        WatchdogAction::Alert => StormAction::Alert,
    };
    WatchdogConfig { detection: of.detection_time, restoration: of.restoration_time, action }
}

/// Parts of a scenario that a flow-level run needs.
pub struct Outline {
    /// The network.
    pub plan: Arc<Plan>,
    /// The applications' names for their flows, and the end of the run.
    pub workloads: Workloads,
    /// Times in an empty network.
    pub ideal: Ideal,
    /// Warnings for the user, before the run.
    pub warnings: Vec<Warning>,
}

/// The network of a scenario and its workloads, without its boxes.
///
/// # Errors
/// As [`Network::new`].
pub fn outline(scenario: &Scenario) -> Result<Outline> {
    let Network { plan, links, bumps, mut warnings, .. } = Network::new(scenario)?;
    let workloads = Workloads::new(scenario, &plan);
    warnings.extend(workloads.warnings().iter().cloned());
    Ok(Outline { ideal: Ideal::new(scenario, plan.clone(), &links, &bumps), plan, workloads, warnings })
}

/// Refuses a scenario whose network cannot be built, without its boxes and workloads.
///
/// # Errors
/// As [`Network::new`], a network for which there is not enough memory, and a port in `[record]` that does not exist.
pub fn check(scenario: &Scenario, demand: Demand) -> Result<()> {
    memory::check(scenario, demand)?;
    let Network { plan, warnings, .. } = Network::new(scenario)?;
    memory::check_threads(scenario, &plan, demand)?;
    check_records(scenario, &plan).map_err(|e| e.after(warnings))
}

/// Refuses ports in `[record]` that do not exist.
fn check_records(scenario: &Scenario, plan: &Plan) -> Result<()> {
    let record = &scenario.record;
    for (key, selectors) in [("queue_ports", &record.queue_ports), ("pcapng", &record.pcapng)] {
        for &selector in selectors {
            plan.ports_of(scenario, &format!("record.{key}"), selector)?;
        }
    }
    Ok(())
}

/// Builds the world of a scenario.
///
/// # Errors
/// As [`check`].
pub fn build(scenario: &Scenario) -> Result<Built> {
    build_for(scenario, Demand::LEAST)
}

/// Builds the world of a scenario that will be run so.
///
/// # Errors
/// As [`check`].
pub fn build_for(scenario: &Scenario, demand: Demand) -> Result<Built> {
    memory::check(scenario, demand)?;
    let mut network = Network::new(scenario)?;
    let plan = network.plan.clone();
    memory::check_threads(scenario, &plan, demand)?;
    check_records(scenario, &plan).map_err(|e| e.after(network.warnings.clone()))?;

    let workloads = Workloads::new(scenario, &plan);
    let mut nodes: Vec<Node<HostApps>> = Vec::with_capacity(plan.nodes());
    let servers = server_configs(scenario, &plan, &network.links, network.xco.take().as_ref());
    for host in 0..plan.hosts() {
        let apps = workloads.apps(host);
        // The first server starts in any case, and time with it.
        if host > 0 && apps.is_empty() && servers.can_be_idle(host) {
            nodes.push(Node::IDLE);
            continue;
        }
        let mut server = servers.server(host, apps);
        server.start(crate::workload::START);
        nodes.push(Node::Server(server));
    }
    let switch = |i| if network.switches_can_be_idle() { Node::IDLE } else { Node::switch(network.switch(i)) };
    nodes.extend((0..plan.switches().len()).map(switch));
    let (slowdowns, mut warnings) = (network.slowdowns.take(), std::mem::take(&mut network.warnings));
    let (mut links, bumps) = (network.links.clone(), network.bumps.clone());
    let ideal = Ideal::new(scenario, plan.clone(), &links, &bumps);
    nodes.extend(bumps.build(scenario, &plan, &mut links)?.into_iter().map(Node::bump));
    warnings.extend(workloads.warnings().iter().cloned());
    let (t, u, l) = (&scenario.tcp, &scenario.udp, &scenario.tcplight);
    let delays = [t.rx_delay, u.tx_delay, u.rx_delay, l.tx_delay, l.rx_delay];
    let stage_latency = delays.into_iter().fold(t.tx_delay, Duration::max);
    let hosts = plan.hosts();
    let make = Arc::new(move |node: NodeId| match node.checked_sub(hosts) {
        None => Node::Server(servers.server(node, HostApps::none())),
        Some(switch) => Node::switch(network.switch(switch as usize)),
    });
    let links = Box::new(move |each: &mut dyn FnMut(&Direction)| links.iter().for_each(|link| each(&link)));
    let world = World { nodes, hosts, make, links, framing: framing(scenario), stage_latency, seed: scenario.seed };
    Ok(Built { world, plan, workloads, ideal, slowdowns, bumps, warnings })
}
