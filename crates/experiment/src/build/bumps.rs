//! Bumps in links: their places between two boxes, and the ports whose queues they estimate.

use super::{Directions, Plan, framing, wire_bytes};
use sluicenet_extension::Library;
use sluicenet_extension::simulated::Simulated;
use sluicenet_node::bump::{AGE_MAX, Bump, Config, Neighbour, Program};
use sluicenet_node::device::PortId;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_node::packet::{Address, FlowKey, Kind, Packet};
use sluicenet_proto::netbump::{Chain, Link, Map, Port, QueueId, Receiver, Reporter};
use sluicenet_proto::time::Duration;
use sluicenet_scenario::{BumpApp, Result, Scenario};
use std::collections::BTreeMap;

/// A port whose queue a bump estimates.
pub type Watched = (NodeId, PortId);

/// A bump's place in the network.
#[derive(Clone, Debug)]
pub struct BumpPlan {
    /// The two ends of each link, as boxes and ports of the plan; first the end that the scenario names.
    pub links: Vec<[(NodeId, PortId); 2]>,
    /// The ports whose queues it estimates, in the order of its virtual queues.
    pub watched: Vec<Watched>,
}

/// A direction of a link on its way through a bump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The bump.
    pub bump: usize,
    /// Its port at which frames of this direction come in.
    pub entry: PortId,
    /// From the box or bump before it, and through it.
    pub latency: Duration,
}

/// The bumps in a direction of a link, in the order in which frames pass them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// Each of them; it stores the frame.
    pub hops: Vec<Hop>,
    /// From the last of them to the box behind it.
    pub rest: Duration,
    /// The same for a pause.
    pub pause_rest: Duration,
}

/// The bumps of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Bumps {
    /// Each of them; their boxes follow those of the plan.
    pub plans: Vec<BumpPlan>,
    /// The directions with bumps, by [`Plan::link_index`].
    pub through: BTreeMap<usize, Hops>,
}

/// The bumps that name an end of a link: each with the number of the link among its own.
type Named = Vec<(usize, usize)>;

impl Bumps {
    /// The bumps of a scenario. Adds their delays to `links`, so that buffers are computed for what is under way.
    ///
    /// # Errors
    /// A port that its switch does not have, a bump that is twice in a link, or a link that fails or slows down.
    pub fn place(scenario: &Scenario, plan: &Plan, links: &mut Directions) -> Result<Bumps> {
        let mut named: BTreeMap<Watched, Named> = BTreeMap::new();
        let mut plans = Vec::new();
        for (i, settings) in scenario.bumps.iter().enumerate() {
            let key = format!("bump.{i}.links");
            let mut ends = Vec::new();
            for &selector in &settings.links {
                let near = plan.ports_of(scenario, &key, selector)?;
                let [near] = near[..] else {
                    let message = format!("`{selector}` has {} links", near.len());
                    return Err(scenario.locations.error(&key, message).expected("the port of one link"));
                };
                let far = plan.peer(near.0, near.1);
                if ends.iter().any(|link: &[Watched; 2]| link.contains(&near)) {
                    return Err(scenario.locations.error(&key, format!("the link of `{selector}` is listed twice")));
                }
                named.entry(near).or_default().push((i, ends.len()));
                ends.push([near, far]);
            }
            let watched = watched(plan, &ends);
            plans.push(BumpPlan { links: ends, watched });
        }
        check_links(scenario, plan, &named)?;
        let mut through = BTreeMap::new();
        for &from in named.keys() {
            let to = plan.peer(from.0, from.1);
            for (from, to) in [(from, to), (to, from)] {
                let index = plan.link_index(from.0, from.1);
                through.entry(index).or_insert_with(|| {
                    let near = named.get(&from).into_iter().flatten().map(|&(bump, l)| (bump, 2 * l));
                    let far = named.get(&to).into_iter().flatten().rev().map(|&(bump, l)| (bump, 2 * l + 1));
                    let inside: Vec<(usize, usize)> = near.chain(far).collect();
                    let cable = plan.link(from.0, from.1).delay;
                    let part = Duration(cable.0 / (inside.len() as u64 + 1));
                    let hop = |&(bump, port): &(usize, usize)| Hop {
                        bump,
                        entry: port as PortId,
                        latency: part + scenario.bumps[bump].latency,
                    };
                    let before = part.saturating_mul(inside.len() as u64);
                    let link = links.of(from.0, from.1);
                    let (rest, pause_rest) = (link.latency - before, link.pause_latency - before);
                    Hops { hops: inside.iter().map(hop).collect(), rest, pause_rest }
                });
            }
        }
        for (&index, Hops { hops, rest, pause_rest }) in &through {
            let from = plan.sender(index);
            let mut link = links.of(from.0, from.1);
            let stored = link.rate.time_for(wire_bytes(scenario).0.into());
            let before = hops.iter().fold(Duration::ZERO, |sum, hop| sum + hop.latency + stored);
            (link.latency, link.pause_latency) = (before + *rest, before + *pause_rest);
            links.change(from, link);
        }
        Ok(Bumps { plans, through })
    }

    /// The boxes, for a world whose other boxes are those of the plan, and the links to and from them in place of those that
    /// they are in.
    ///
    /// # Errors
    /// A program that cannot be loaded.
    pub fn build(&self, scenario: &Scenario, plan: &Plan, links: &mut Directions) -> Result<Vec<Bump>> {
        let first = plan.nodes() as NodeId;
        for (&index, Hops { hops, rest, pause_rest }) in &self.through {
            let first_port = plan.sender(index);
            let whole = links.of(first_port.0, first_port.1);
            let mut from = whole.from;
            for (i, hop) in hops.iter().enumerate() {
                let me = first + hop.bump as NodeId;
                let into = Direction {
                    from,
                    to: (me, hop.entry),
                    latency: hop.latency,
                    pause_latency: hop.latency,
                    first_bit: false,
                    // Bits are damaged once on the way.
                    bit_error_rate: if i == 0 { whole.bit_error_rate } else { 0.0 },
                    ..whole
                };
                match i {
                    0 => links.change(first_port, into),
                    _ => links.add(into),
                }
                from = (me, hop.entry ^ 1);
            }
            links.add(Direction { from, latency: *rest, pause_latency: *pause_rest, bit_error_rate: 0.0, ..whole });
        }
        self.update_links(scenario, first).into_iter().for_each(|link| links.add(link));
        let numbers = self.port_numbers();
        (0..self.plans.len()).map(|i| Ok(Bump::new(self.config(scenario, plan, i, &numbers)?))).collect()
    }

    /// The virtual queues for these ports, each by its bump's box and its number there.
    pub fn estimating(&self, plan: &Plan, ports: &[Watched]) -> Vec<(NodeId, QueueId)> {
        let of_bump = |(box_of, place): (NodeId, &BumpPlan)| {
            let queues = (0..).zip(&place.watched).filter(|(_, port)| ports.binary_search(port).is_ok());
            queues.map(|(queue, _)| (box_of, queue)).collect::<Vec<_>>()
        };
        (plan.nodes() as NodeId..).zip(&self.plans).flat_map(of_bump).collect()
    }

    /// For each port whose queue bump `i` estimates, the hosts to which all frames leave it.
    pub fn destinations(&self, plan: &Plan, i: usize) -> Vec<(Watched, Vec<u32>)> {
        let behind = |&(node, port): &Watched| outputs(plan, node).filter(|o| o.1 == port).map(|o| o.0).collect();
        self.plans[i].watched.iter().map(|watched| (*watched, behind(watched))).collect()
    }

    /// The number of each watched port in updates.
    pub fn port_numbers(&self) -> BTreeMap<Watched, u16> {
        let mut ports: Vec<Watched> = self.plans.iter().flat_map(|plan| plan.watched.iter().copied()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports.into_iter().zip(0..).collect()
    }

    /// The bumps that exchange updates with bump `i`: those it reports to, and those that report to it.
    fn partners(&self, scenario: &Scenario, i: usize) -> Vec<usize> {
        let tells = |a: usize, b: usize| scenario.bumps[a].neighbours.contains(&(b as u32));
        (0..self.plans.len()).filter(|&other| tells(i, other) || tells(other, i)).collect()
    }

    /// The links between bumps that exchange updates.
    fn update_links(&self, scenario: &Scenario, first: NodeId) -> Vec<Direction> {
        let port = |of: usize, to: usize| {
            let at = self.partners(scenario, of).iter().position(|&other| other == to).unwrap_or(0);
            (first + of as NodeId, (2 * self.plans[of].links.len() + at) as PortId)
        };
        let direction = |a: usize, b: usize| Direction {
            from: port(a, b),
            to: port(b, a),
            rate: scenario.topology.link.rate,
            latency: scenario.bumps[a].update_delay,
            first_bit: false,
            pause_latency: scenario.bumps[a].update_delay,
            bit_error_rate: 0.0,
        };
        (0..self.plans.len())
            .flat_map(|a| self.partners(scenario, a).into_iter().map(move |b| (a, b)))
            .map(|(a, b)| direction(a, b))
            .collect()
    }

    fn config(&self, scenario: &Scenario, plan: &Plan, i: usize, numbers: &BTreeMap<Watched, u16>) -> Result<Config> {
        let (settings, place) = (&scenario.bumps[i], &self.plans[i]);
        let id = |port: &Watched| place.watched.iter().position(|w| w == port).map(|at| at as QueueId);
        // Frames that come in at one end are on their way to the box at the other one.
        let maps = place.links.iter().flat_map(|&[near, far]| [far, near]).map(|(next, _)| {
            let entries: Vec<(u64, QueueId)> =
                outputs(plan, next).filter_map(|(host, port)| Some((host.into(), id(&(next, port))?))).collect();
            Map::new(&entries, None)
        });
        let port = |&(node, port): &Watched| Port {
            rate: plan.rate(node, port),
            buffer_bytes: settings.buffer.map(|bytes| bytes.as_bytes()),
        };
        let neighbour = |other: usize| Neighbour {
            reporter: settings
                .neighbours
                .contains(&(other as u32))
                .then(|| Reporter::new(settings.update_packets as usize, settings.update_interval)),
            receiver: Receiver::new(scenario.bumps[other].update_delay, AGE_MAX),
        };
        Ok(Config {
            maps: maps.collect(),
            ports: place.watched.iter().map(port).collect(),
            port_numbers: place.watched.iter().map(|port| numbers[port]).collect(),
            program: program(scenario, plan, i)?,
            neighbours: self.partners(scenario, i).into_iter().map(neighbour).collect(),
            notification_priority: settings.notification_priority,
            framing: framing(scenario),
        })
    }
}

/// The applications of bump `i`.
fn program(scenario: &Scenario, plan: &Plan, i: usize) -> Result<Program> {
    let settings = &scenario.bumps[i];
    let seed = scenario.seed.wrapping_add(i as u64);
    if let [BumpApp::Program(app)] = &settings.app[..] {
        let arguments: Vec<&str> = app.arguments.split_whitespace().collect();
        let name = format!("the program `{}`", app.file.path);
        let library = Library::load_named(&name, &app.file.content, &arguments, seed).map_err(|e| {
            let message = format!("`{}` is no program for a bump: {e}", app.file.path);
            scenario.locations.error(&format!("bump.{i}.app.0.file"), message)
        })?;
        let program = Simulated::new(library, framing(scenario), settings.links.len());
        return Ok(Program::Extension(Box::new(program)));
    }
    // Switches number their congestion points by their own number, so that bumps follow after them.
    let cpid = (plan.switches().len() as u64 + i as u64) << 32;
    let link = |app: &BumpApp| app.stock(seed, cpid).map(|(app, filter)| Link { app, filter });
    Ok(Program::Chain(Chain(settings.app.iter().filter_map(link).collect())))
}

/// Refuses links with bumps that fail or slow down.
fn check_links(scenario: &Scenario, plan: &Plan, named: &BTreeMap<Watched, Named>) -> Result<()> {
    let has_bump = |end: &Watched| named.contains_key(end) || named.contains_key(&plan.peer(end.0, end.1));
    for (i, slowdown) in scenario.slowdowns.iter().enumerate() {
        let key = format!("slowdown.{i}.port");
        if plan.ports_of(scenario, &key, slowdown.port)?.iter().any(has_bump) {
            let message = format!("a bump is in a link of `{}`, which keeps its speed", slowdown.port);
            return Err(scenario.locations.error(&key, message));
        }
    }
    if !named.is_empty() && !scenario.failures.is_empty() {
        let error = scenario.locations.error("failure", "links with bumps do not fail, and this scenario has bumps");
        return Err(error.hint("remove [[bump]] or [[failure]]"));
    }
    Ok(())
}

/// For each host, the output of a switch that all frames to the host take, if there is only one.
fn outputs(plan: &Plan, next: NodeId) -> impl Iterator<Item = (u32, PortId)> + '_ {
    let router = plan.switches().get((next as usize).wrapping_sub(plan.hosts() as usize)).map(|switch| &switch.router);
    (0..plan.hosts()).filter_map(move |host| {
        let to = FlowKey { dst: Address::new(host, 0), ..FlowKey::default() };
        match router?.candidate_ports(&Packet::of_flow(to, Kind::Udp))[..] {
            [port] => Some((host, port)),
            _ => None,
        }
    })
}

/// The ports whose queues the bump in these links can estimate.
fn watched(plan: &Plan, links: &[[(NodeId, PortId); 2]]) -> Vec<Watched> {
    let mut ports: Vec<Watched> = Vec::new();
    for &(next, entry) in links.iter().flatten() {
        // Nothing goes back where it came from.
        ports.extend(outputs(plan, next).map(|(_, port)| (next, port)).filter(|&(_, port)| port != entry));
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}
