//! Servers and external hosts as the scenario wants them.

use super::xco::{Role, XcoStages};
use super::{Directions, Plan, congestion, framing, lossless, repetition, watermarks};
use crate::workload::HostApps;
use sluicenet_node::adapter::{self, AdapterConfig, Patience};
use sluicenet_node::credits::CreditConfig;
use sluicenet_node::device::PortId;
use sluicenet_node::link::Direction;
use sluicenet_node::packet::Address;
use sluicenet_node::server::{
    Access, AnyServer, CreditsConfig, LossyVnics, ServerConfig, StageConfig, TunnelConfig, VirtualConfig,
    WhenFull as NodeWhenFull,
};
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::frame::{HostId, Priority, PrioritySet};
use sluicenet_proto::overlay::policy;
use sluicenet_scenario::{Party, Queueing, Scenario, Weight, WhenFull, ZCredit};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The settings of all hosts; those with the same links share them.
pub(super) struct ServerConfigs {
    /// The settings that differ.
    kinds: Vec<Arc<ServerConfig>>,
    /// Those of each host among them.
    by_host: Vec<u32>,
    external_from: HostId,
    vms: u8,
    plan: Arc<Plan>,
}

impl ServerConfigs {
    /// The server of a host with its applications; an external one is a plain machine.
    pub fn server(&self, host: HostId, apps: HostApps) -> AnyServer<HostApps> {
        let vms = if host >= self.external_from { 1 } else { self.vms };
        let config = self.kinds[self.by_host[host as usize] as usize].clone();
        AnyServer::new(host, vms, config, self.plan.host_router(host), apps)
    }

    /// Whether the server of a host does nothing until something reaches it, if no workload uses the host: it has one link
    /// and no stages.
    pub fn can_be_idle(&self, host: HostId) -> bool {
        let config = &self.kinds[self.by_host[host as usize] as usize];
        let has_stages =
            !config.gate.is_empty() || config.virtual_network.as_ref().is_some_and(|of| !of.network.is_empty());
        config.adapter.rate.len() == 1 && !has_stages
    }
}

/// Key of hosts that are alike. For each link it has the rate in bits a second, the latency inwards and the latency of
/// a pause outwards in picoseconds, and the error rate's bits. It also has whether the host is a server, the slow VMs, and
/// the host's role in XCo.
type Likeness = (Vec<(u64, u64, u64, u64)>, bool, Vec<(u8, u64)>, Option<Role>);

/// How much longer a machine's turns are.
type Weights = BTreeMap<Address, u32>;

pub(super) fn server_configs(
    scenario: &Scenario,
    plan: &Arc<Plan>,
    links: &Directions,
    xco: Option<&XcoStages>,
) -> ServerConfigs {
    let external_from = plan.hosts() - plan.external();
    let mut known: BTreeMap<Likeness, u32> = BTreeMap::new();
    let mut kinds = Vec::new();
    let of_machine = |w: &Weight| (Address::new(w.host, w.vm as u8), w.weight);
    let weights: Arc<Weights> = Arc::new(scenario.zcredit.weight.iter().map(of_machine).collect());
    let access = (!scenario.policy.is_empty()).then(|| Arc::new(access(scenario, external_from)));
    let by_host = (0..plan.hosts())
        .map(|host| {
            let outward = (0..plan.ports(host) as PortId).map(|port| links.of(host, port));
            let of_host: Vec<(Direction, Direction)> = outward.map(|out| (out, links.back(&out))).collect();
            let inside = host < external_from;
            let likeness = of_host.iter().map(|(out, into)| {
                (out.rate.as_bps(), into.latency.0, out.pause_latency.0, out.bit_error_rate.to_bits())
            });
            let slow = scenario.vswitch.slow.iter().filter(|slow| slow.host == host);
            // Both vNICs of a machine are as slow as it is.
            let vnics = if scenario.server.lossy_vnic.is_some() { 2 } else { 1 };
            let vnics = |vm: u32| (0..vnics).map(move |n| (vm + n * scenario.server.vms) as u8);
            let slow = slow.flat_map(|s| vnics(s.vm).map(|vnic| (vnic, s.rate.ps_per_byte_q16())));
            let slow: Vec<(u8, u64)> = slow.collect();
            let role = xco.map(|xco| xco.role(host));
            let key = (likeness.collect(), inside, slow.clone(), role);
            *known.entry(key).or_insert_with(|| {
                kinds.push(Arc::new(server_config(
                    (scenario, plan),
                    &of_host,
                    (inside, external_from),
                    (slow, &weights),
                    &access,
                    xco.zip(role).and_then(|(xco, role)| xco.stage(role, inside)),
                )));
                kinds.len() as u32 - 1
            })
        })
        .collect();
    ServerConfigs { kinds, by_host, external_from, vms: scenario.server.vms as u8, plan: plan.clone() }
}

/// Settings of a host with these links, each as the direction out and the direction in.
fn server_config(
    (scenario, plan): (&Scenario, &Plan),
    links: &[(Direction, Direction)],
    (inside, outside): (bool, HostId),
    (slow, weights): (Vec<(u8, u64)>, &Arc<Weights>),
    access: &Option<Arc<Access>>,
    xco: Option<Arc<dyn StageConfig>>,
) -> ServerConfig {
    let a = &scenario.adapter;
    let buffer = a.buffer.as_bytes() as u32;
    // One receive buffer stops all links, and takes all frames that they still bring.
    let marks = links.iter().map(|(out, into)| watermarks(scenario, buffer, into, out)).reduce(|all, one| Watermarks {
        capacity: all.capacity.saturating_add(one.capacity - one.xoff),
        headroom: all.headroom.saturating_add(one.headroom),
        ..all
    });
    let adapter = AdapterConfig {
        buffer,
        queueing: match a.queueing {
            Queueing::Voq => adapter::Queueing::Voq,
            Queueing::Fifo => adapter::Queueing::Fifo,
        },
        lossless: lossless(scenario),
        // A host outside has one vNIC, and one buffer.
        apart: scenario.server.lossy_vnic.filter(|_| inside).map_or(PrioritySet::NONE, |p| PrioritySet(1 << p)),
        quanta: scenario.pfc.quanta,
        rate: links.iter().map(|(out, _)| out.rate).collect(),
        repetition: links.iter().map(|(out, into)| repetition(scenario, into, out)).collect(),
        marks: marks.expect("a host has a link"),
        resequencing: a.resequencing.map(|buffered| Patience { buffered, placed: a.reordering.unwrap_or(buffered) }),
        ets: scenario.ets.config.clone().map(Arc::new),
        notifications: scenario.qcn.is_some(),
        source: scenario.qcn.as_ref().and_then(|qcn| congestion::source(scenario, plan, qcn)),
    };
    let virtual_network = (inside && scenario.server.virtual_network).then(|| VirtualConfig {
        slots: scenario.vswitch.slots,
        lossless: scenario.vswitch.lossless,
        vm_ps_per_byte_q16: scenario.vswitch.vm_rate.ps_per_byte_q16(),
        slow,
        // A TCP tunnel's segments have the hypervisor's own headers.
        encapsulation: match scenario.overlay.enabled && !scenario.overlay.tcp {
            true => scenario.overlay.encapsulation.as_bytes() as u16,
            false => 0,
        },
        network: network_stages(scenario),
    });
    let mtu = scenario.host_mtu().as_bytes() as u16;
    ServerConfig {
        framing: framing(scenario),
        mtu,
        tcp: scenario.tcp_config(mtu),
        tcp_tx_delay: scenario.tcp.tx_delay,
        tcp_rx_delay: scenario.tcp.rx_delay,
        udp_tx_delay: scenario.udp.tx_delay,
        udp_rx_delay: scenario.udp.rx_delay,
        udp_buffer: scenario.udp.buffer.as_bytes() as u32,
        light_buffer: scenario.tcplight.buffer.as_bytes() as u32,
        light_tx_delay: scenario.tcplight.tx_delay,
        light_rx_delay: scenario.tcplight.rx_delay,
        roce: scenario.roce_config(),
        when_full: match a.when_full {
            WhenFull::Stop => NodeWhenFull::Stop,
            WhenFull::Drop => NodeWhenFull::Drop,
        },
        gate: xco.into_iter().chain(inside.then(|| gate_stages(scenario, weights)).into_iter().flatten()).collect(),
        virtual_network,
        lossy_vnics: scenario.server.lossy_vnic.map(|priority| LossyVnics {
            priority,
            machines: scenario.server.vms as u8,
            outside,
        }),
        access: access.clone(),
        adapter: Arc::new(adapter),
        seed: scenario.seed,
    }
}

/// The stages below the guests, from the guests down.
fn gate_stages(scenario: &Scenario, weights: &Arc<Weights>) -> Vec<Arc<dyn StageConfig>> {
    let mut stages = Vec::new();
    stages.extend(scenario.zcredit.enabled.then(|| credits(scenario, weights)));
    stages
}

/// The stages between the vSwitch and the adapter, from the vSwitch down.
fn network_stages(scenario: &Scenario) -> Vec<Arc<dyn StageConfig>> {
    let mut stages = Vec::new();
    stages.extend(scenario.zbridge.enabled.then(|| zbridge(scenario)));
    stages.extend(scenario.overlay.tcp.then(|| tunnel(scenario)));
    stages
}

fn credits(scenario: &Scenario, weights: &Arc<Weights>) -> Arc<dyn StageConfig> {
    let ZCredit { rx_queue, tx_queue, batch, .. } = scenario.zcredit;
    let credits = CreditConfig::new(rx_queue, tx_queue, batch, PrioritySet(1 << first_class(scenario)));
    Arc::new(CreditsConfig { credits, weights: weights.clone() })
}

fn zbridge(scenario: &Scenario) -> Arc<dyn StageConfig> {
    // All frames between two servers take one path, unless each frame is given its own.
    Arc::new(scenario.zbridge.channel(!scenario.topology.routing.divides_flows()))
}

fn tunnel(scenario: &Scenario) -> Arc<dyn StageConfig> {
    let mtu = scenario.framing.mtu.as_bytes() as u16;
    Arc::new(TunnelConfig {
        tcp: scenario.tcp_config(mtu),
        priority: first_class(scenario),
        max_frame: u32::from(framing(scenario).frame_len(mtu)),
    })
}

/// Access policy of the scenario: the pairs of machines that may talk.
pub fn access(scenario: &Scenario, outside: HostId) -> Access {
    let machine = |host: u32, vm: u32| Address::new(host, vm as u8);
    let party = |party: Party| match party {
        Party::Tenant(number) => policy::Party::Tenant(number),
        Party::Machine(host, vm) => policy::Party::Machine(machine(host, vm)),
        Party::Outside => policy::Party::Outside,
    };
    let numbered = (0..).zip(&scenario.policy.tenant);
    let tenants =
        numbered.flat_map(|(n, tenant)| tenant.machines.iter().map(move |&(host, vm)| (machine(host, vm), n)));
    let rules =
        scenario.policy.rule.iter().map(|rule| policy::Rule { between: rule.between.map(party), allow: rule.allow });
    Access { policy: policy::Policy::new(tenants.collect(), rules.collect()), outside }
}

/// The class of messages between hypervisors: a lossless class, where there is one, and never that of lossy vNICs.
fn first_class(scenario: &Scenario) -> Priority {
    let lossy = scenario.server.lossy_vnic.map_or(PrioritySet::NONE, |p| PrioritySet(1 << p));
    let others = PrioritySet(!lossy.0);
    lossless(scenario).iter().next().or_else(|| others.iter().next()).unwrap_or(0)
}
