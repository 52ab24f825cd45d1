//! Scenarios that a testbed refuses, each with its location in the file and valid alternatives.

use super::super::guest::GUESTS_MAX;
use super::machines::Has;
use super::{Application, SERVERS_MAX};
use sluicenet_experiment::workload::two_tier::Vm;
use sluicenet_proto::time::Duration;
use sluicenet_scenario::formats::HpccLink;
use sluicenet_scenario::{
    FlowControl, FramingKind, LINK_RATE_MIN, Limiters, Link, Result, Scenario, Shape, SlowVm, TenantKind, VirtualSwitch,
};
use sluicenet_vswitchd::config::TcpTunnel;
use std::collections::BTreeMap;

/// The longest delay of a link or a box: a thousand seconds.
const DELAY_MAX: Duration = Duration::from_secs(1_000);
/// The largest buffer of a light socket for bytes that its reader has not taken.
const LIGHT_BUFFER_MAX: u64 = 1 << 30;
/// The largest IP packet of a light socket: a buffer of a port in shared memory less the header of Ethernet.
const LIGHT_MTU_MAX: u32 = 2034;

fn is_guests(scenario: &Scenario) -> bool {
    scenario.testbed.tenants == TenantKind::Guests
}

/// Refuses framing other than Ethernet, too many machines, and features that the virtual switches lack.
pub(super) fn whole(scenario: &Scenario) -> Result<()> {
    let refuse = |key: &str, message: String| Err(scenario.locations.error(key, message));
    let counts = scenario.topology.counts();
    if counts.endpoints() > SERVERS_MAX {
        return refuse("topology", format!("a testbed of {} servers: at most {SERVERS_MAX}", counts.endpoints()));
    }
    if scenario.framing.kind != FramingKind::Ethernet {
        return refuse("framing.kind", "real frames are Ethernet's".into());
    }
    if scenario.roce.is_some() {
        let e = scenario.locations.error("workload", "the testbed's adapters have no queue pairs of RoCE");
        return Err(e.expected("transport = \"tcp\", \"udp\" or \"tcplight\""));
    }
    let guests = is_guests(scenario);
    let machines = counts.hosts * scenario.server.vms + (counts.endpoints() - counts.hosts);
    if guests && machines as usize > GUESTS_MAX {
        let message = format!("a testbed of {machines} guests: at most {GUESTS_MAX}");
        return Err(scenario.locations.error("testbed.tenants", message).expected("fewer of them, or \"namespaces\""));
    }
    if guests && scenario.testbed.switch == VirtualSwitch::Bridge {
        let e = scenario.locations.error("testbed.switch", "guests are at a switch of this project");
        return Err(e.expected("\"zvale\", or testbed.tenants = \"namespaces\""));
    }
    if scenario.testbed.switch == VirtualSwitch::Bridge && scenario.flow_control() != FlowControl::Ll {
        let e = scenario.locations.error("testbed.switch", "a Linux bridge holds nobody back");
        return Err(e.expected("\"zvale\", or scenario.flow_control = \"LL\""));
    }
    let of_switches = [("zcredit", scenario.zcredit.enabled), ("zbridge", scenario.zbridge.enabled)];
    for (name, _) in of_switches.into_iter().filter(|(_, enabled)| *enabled) {
        let key = format!("{name}.enabled");
        if scenario.testbed.switch == VirtualSwitch::Bridge {
            let e = scenario.locations.error(&key, "a Linux bridge has neither credits nor zBridge");
            return Err(e.expected(format!("testbed.switch = \"zvale\", or no [{name}]")));
        }
        if !scenario.vswitch.lossless {
            let e = scenario.locations.error(&key, "what has to wait would be dropped in lossy virtual switches");
            return Err(e.expected(format!("scenario.flow_control = \"ZZ\" or \"ZL\", or no [{name}]")));
        }
    }
    let is_limited = scenario.qcn.is_some_and(|qcn| qcn.limiters != Limiters::Off);
    if is_limited && scenario.testbed.switch == VirtualSwitch::Bridge {
        let e = scenario.locations.error("qcn.limiters", "a Linux bridge has no rate limiters");
        return Err(
            e.expected("testbed.switch = \"zvale\", or \"off\": the switches send notifications, without effect")
        );
    }
    if scenario.overlay.tcp && scenario.testbed.switch == VirtualSwitch::Bridge {
        let e = scenario.locations.error("overlay.transport", "a Linux bridge has no tunnels");
        return Err(e.expected("testbed.switch = \"zvale\", or \"udp\""));
    }
    if scenario.overlay.tcp {
        if scenario.tcp.rto_max < TcpTunnel::RTO_MAX_LEAST {
            let e = scenario.locations.error("tcp.rto_max", "a real tunnel waits longer before it gives up");
            let least = TcpTunnel::RTO_MAX_LEAST.as_us() / 1_000;
            return Err(e.expected(format!("at least {least} ms")));
        }
        // The tunnel is the simulator's TCP over the packets of the physical network.
        let tcp = scenario.tcp_config(scenario.framing.mtu.as_bytes() as u16);
        tcp.validate().map_err(|e| scenario.locations.error("tcp", format!("a real tunnel: {e}")))?;
    }
    if !scenario.policy.is_empty() && scenario.testbed.switch == VirtualSwitch::Bridge {
        let e = scenario.locations.error("policy", "a Linux bridge lets all machines talk to all");
        return Err(e.expected("testbed.switch = \"zvale\", or no [policy]"));
    }
    if let Some(lossy) = scenario.server.lossy_vnic {
        let refuse =
            |why: &str, expected: &str| Err(scenario.locations.error("server.lossy_vnic", why).expected(expected));
        if guests {
            return refuse("guests have one vNIC", "testbed.tenants = \"namespaces\", or no lossy_vnic");
        }
        if lossy == 0 {
            return refuse("what real sockets send by first vNICs is of priority 0", "a priority from 1 to 7");
        }
    }
    Ok(())
}

/// Refuses settings that the application's tenants and ports do not support.
pub(super) fn application(scenario: &Scenario, application: Application) -> Result<()> {
    if scenario.testbed.switch == VirtualSwitch::Bridge && !scenario.vswitch.slow.is_empty() {
        let e = scenario.locations.error("vswitch.slow", "the ports of a Linux bridge have no rate");
        return Err(e.expected("testbed.switch = \"zvale\", or no [[vswitch.slow]]"));
    }
    if is_guests(scenario) && application == Application::Flows {
        let e = scenario.locations.error("testbed.tenants", "flows are run between namespaces");
        return Err(e.expected("\"namespaces\""));
    }
    Ok(())
}

/// Refuses links that slow motion makes too slow.
pub(crate) fn links(scenario: &Scenario, slow: &Scenario) -> Result<()> {
    let of_file: &[HpccLink] = match &slow.topology.shape {
        Shape::Hpcc { file } => &file.content.links,
        _ => &[],
    };
    let of_file = of_file.iter().flat_map(|l| [("rate", l.rate < LINK_RATE_MIN), ("delay", l.delay > DELAY_MAX)]);
    let of_level = |l: &Link| [("rate", l.rate < LINK_RATE_MIN), ("delay", l.delay > DELAY_MAX)];
    let boxes = [slow.switch.delay, slow.adapter.delay, slow.pfc.response].map(|d| ("delay", d > DELAY_MAX));
    let links = slow.topology.levels.iter().chain([&slow.topology.link]).flat_map(of_level);
    if let Some((what, _)) = links.chain(boxes).chain(of_file).find(|l| l.1) {
        let (rate, delay) = (LINK_RATE_MIN.as_bps(), DELAY_MAX.as_secs_f64());
        return Err(scenario
            .locations
            .error("testbed.slowdown", format!("so slow the network's {what} is out of range"))
            .expected(format!("links of at least {rate} b/s, delays of at most {delay} s")));
    }
    Ok(())
}

/// Refuses settings that machines with light sockets do not support.
pub(super) fn light_sockets(scenario: &Scenario, slow: &Scenario, sockets: &BTreeMap<Vm, Has>) -> Result<()> {
    let refuse = |key: &str, message: String| Err(scenario.locations.error(key, message));
    let light = sockets.values().any(|has| has[1]);
    if light && is_guests(scenario) {
        let e = scenario
            .locations
            .error("testbed.tenants", "TCPlight is run between light sockets, which guests have none of");
        return Err(e.expected("\"namespaces\", or another `transport`"));
    }
    if light && scenario.testbed.switch == VirtualSwitch::Bridge {
        let e = scenario.locations.error("testbed.switch", "a Linux bridge has no ports for light sockets");
        return Err(e.expected("\"zvale\", or another `transport`"));
    }
    let both = |slow: &&SlowVm| sockets.get(&(slow.host, slow.vm as u8)) == Some(&[true, true]);
    if let Some(both) = slow.vswitch.slow.iter().find(both) {
        let why = format!(
            "VM {} of server {} has ports for the kernel's sockets and for light ones, which do not share a rate",
            both.vm, both.host
        );
        return Err(scenario
            .locations
            .error("vswitch.slow", why)
            .expected("flows of TCPlight, or none, to a slow machine"));
    }
    let tenant_mtu = slow.host_mtu().as_bytes() as u32;
    if light && tenant_mtu > LIGHT_MTU_MAX {
        let message = format!("packets of {tenant_mtu} B: those of light sockets have at most {LIGHT_MTU_MAX}");
        return refuse("overlay.mtu", message);
    }
    if light && slow.tcplight.buffer.as_bytes() > LIGHT_BUFFER_MAX {
        let e = scenario.locations.error("tcplight.buffer", "more than a light socket takes ahead of its reader");
        return Err(e.expected("1 GiB at most"));
    }
    Ok(())
}
