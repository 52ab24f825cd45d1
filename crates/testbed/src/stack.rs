//! The settings of a scenario's stacks that apply to a testbed. Simulated stacks follow all of them, the kernel's only
//! some.

use sluicenet_scenario::setting::Settings;
use sluicenet_scenario::{Scenario, Tcp, Transport, Warning, Workload};
use std::collections::BTreeSet;

/// Keys of `[tcp]` that apply to a kernel connection, or that do not concern it.
const TAKEN: [&str; 3] = ["congestion", "nagle", "max_buffer"];
/// Keys of other sections that apply only to simulated stacks.
const SIMULATED: [(Transport, &str); 5] = [
    (Transport::Udp, "udp.buffer"),
    (Transport::Udp, "udp.tx_delay"),
    (Transport::Udp, "udp.rx_delay"),
    (Transport::TcpLight, "tcplight.tx_delay"),
    (Transport::TcpLight, "tcplight.rx_delay"),
];

/// The size of a kernel connection's send and receive buffers, in bytes: the largest size of simulated ones, if the
/// scenario gives it; by default the kernel's own.
pub(super) fn kernel_buffer(scenario: &Scenario) -> Option<u32> {
    let tcp = &scenario.tcp;
    let given = |key: &str| scenario.locations.line_of(key).is_some();
    let bytes = match tcp.auto_buffer {
        false if given("tcp.buffer") => tcp.buffer,
        true if given("tcp.max_buffer") => tcp.max_buffer,
        _ => return None,
    };
    // No section allows more than 1 GiB.
    Some(bytes.as_bytes() as u32)
}

/// Warnings about settings of the scenario's stacks that real stacks ignore.
pub(super) fn not_taken(scenario: &Scenario) -> Vec<Warning> {
    let transports: BTreeSet<&str> = transports(scenario).iter().map(|t| t.name()).collect();
    let uses = |transport: Transport| transports.contains(transport.name());
    let by_tunnels = if scenario.overlay.tcp { "; the servers' tunnels take it" } else { "" };
    let fixed = !scenario.tcp.auto_buffer;
    let of_tcp = Tcp::SPEC.keys.iter().map(|key| key.name).filter(|name| !TAKEN.contains(name));
    let of_tcp = of_tcp.filter(|name| !(fixed && ["buffer", "auto_buffer"].contains(name)));
    let of_tcp = of_tcp.map(|name| (Transport::Tcp, format!("tcp.{name}"), by_tunnels));
    let others = SIMULATED.into_iter().map(|(transport, key)| (transport, key.to_owned(), ""));
    let odd = of_tcp.chain(others).filter(|(transport, ..)| uses(*transport));
    odd.filter_map(|(transport, key, but)| {
        let (file, line) = scenario.locations.line_of(&key)?;
        let whose = if transport == Transport::TcpLight { "light sockets have" } else { "the kernel's sockets have" };
        let message = format!("{whose} no `{key}` between real machines{but}");
        Some(Warning { file, line, message })
    })
    .collect()
}

/// The machines' transports and the network below them, as results name them: "TCPlight + zFabric".
pub fn stack(scenario: &Scenario) -> String {
    use sluicenet_scenario::FlowControl::*;
    let names: BTreeSet<&str> = transports(scenario).iter().map(|t| shown(*t)).collect();
    let (credits, zbridge) = (scenario.zcredit.enabled, scenario.zbridge.enabled);
    let below = match (scenario.flow_control(), scenario.overlay.tcp, credits, zbridge) {
        (_, true, false, _) => "TCP".into(),
        (_, true, true, _) => "TCP with credits".into(),
        (_, _, true, true) => "zFabric".into(),
        (Zz, _, false, false) => "PFC".into(),
        (Zz, _, true, false) => "credits".into(),
        (Zz, _, false, true) => "zBridge".into(),
        (Ll, _, false, false) => "Lossy".into(),
        (other, _, credits, zbridge) => {
            let more = [(credits, " with credits"), (zbridge, " with zBridge")].into_iter().filter(|m| m.0);
            more.fold(format!("{other:?}").to_uppercase(), |name, (_, more)| name + more)
        }
    };
    format!("{} + {below}", Vec::from_iter(names).join(", "))
}

fn shown(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
        Transport::TcpLight => "TCPlight",
        Transport::Roce => "RoCE",
    }
}

fn transports(scenario: &Scenario) -> Vec<Transport> {
    let of = |w: &Workload| match w {
        Workload::PartitionAggregate2(w) => Some(w.transport),
        Workload::Background(w) => Some(w.transport),
        Workload::Permutation(w) => Some(w.transport),
        Workload::Flow(w) => Some(w.transport),
        // No testbed runs the other workloads.
        _ => None,
    };
    scenario.workloads.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Scenario {
        let text = format!("[topology]\nkind = \"single-switch\"\nhosts = 2\n[server]\nvirtual_network = true\n{text}");
        Scenario::parse(&text, "t.toml").unwrap_or_else(|e| panic!("{e}")).scenario
    }

    const FLOW: &str = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n[scenario]\nduration = \"1 s\"\n";

    #[test]
    fn what_the_kernel_has_of_its_own_is_said_with_its_line() {
        let said = |text: &str| -> Vec<String> {
            not_taken(&parsed(text)).iter().map(|w| format!("{}:{} {}", w.file, w.line, w.message)).collect()
        };
        let tcp = "[tcp]\ncongestion = \"cubic\"\nnagle = true\nrto_min = \"300 ms\"\nmax_buffer = \"4 MB\"\n";
        let alone = "t.toml:9 the kernel's sockets have no `tcp.rto_min` between real machines";
        assert_eq!(said(&format!("{tcp}{FLOW}")), [alone]);
        assert_eq!(
            said(&format!("{tcp}{FLOW}hypervisor = \"tcp\"\n")),
            [format!("{alone}; the servers' tunnels take it")]
        );
        // If machines have no TCP, only the tunnels use `[tcp]`.
        let light = FLOW.replace("dst = 1\n", "dst = 1\ntransport = \"tcplight\"\n");
        assert!(said(&format!("{tcp}{light}hypervisor = \"pfc\"\n")).is_empty());
        let delay = "[tcplight]\ntx_delay = \"1 us\"\nbuffer = \"1 MB\"\n";
        assert_eq!(
            said(&format!("{delay}{light}hypervisor = \"pfc\"\n")),
            ["t.toml:7 light sockets have no `tcplight.tx_delay` between real machines"]
        );
    }

    #[test]
    fn a_buffer_is_what_the_scenario_says_and_else_the_kernels_own() {
        let of = |tcp: &str| kernel_buffer(&parsed(&format!("{tcp}{FLOW}")));
        assert_eq!(of(""), None);
        assert_eq!(of("[tcp]\nbuffer = \"64 KB\"\n"), None);
        assert_eq!(of("[tcp]\nmax_buffer = \"256 KB\"\n"), Some(256_000));
        assert_eq!(of("[tcp]\nauto_buffer = false\nbuffer = \"64 KB\"\n"), Some(64_000));
    }

    #[test]
    fn a_stack_is_named_as_results_name_it() {
        let of = |more: &str| stack(&parsed(&format!("{FLOW}{more}")));
        assert_eq!(of("flow_control = \"ZL\"\n"), "TCP + ZL");
        for (hypervisor, name) in [("lossy", "Lossy"), ("pfc", "PFC"), ("tcp", "TCP"), ("zfabric", "zFabric")] {
            assert_eq!(of(&format!("hypervisor = \"{hypervisor}\"\n")), format!("TCP + {name}"));
        }
        assert_eq!(of("hypervisor = \"zfabric\"\n[zbridge]\nenabled = false\n"), "TCP + credits");
    }
}
