//! The speed of this machine and of this build, measured by simulating a small network.

use super::work::Work;
use crate::build;
use crate::run::{self, Job, Options, Outcome};
use sluicenet_records::Existing;
use sluicenet_scenario::Scenario;
use std::sync::atomic::AtomicBool;

/// CPU time of a simulated packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds of a packet in the hosts of its ends.
    pub ends_s: f64,
    /// Seconds of a packet on one link and in the box behind it.
    pub hop_s: f64,
    /// Seconds of a packet in the virtualised servers of its ends, in addition.
    pub servers_s: f64,
    /// Seconds to build a port, and its part of the boxes.
    pub port_s: f64,
    /// Seconds to build a server with applications, and each of its machines.
    pub machine_s: f64,
    /// Seconds of a row of the table `ports`, until it is on the page.
    pub row_s: f64,
}

/// Long flows between hosts of a small fat tree.
const HOSTS: &str = "\
[scenario]
parameters = \"plain\"
duration = \"5 ms\"
[topology]
kind = \"fat-tree\"
k = 4
link_rate = \"10 Gb/s\"
[[workload]]
kind = \"permutation\"
pattern = \"stride\"
stride = 8
";
/// Seconds of a packet-hop of these flows on the reference machine, the world's first frames included.
const REFERENCE_HOP_S: f64 = 45e-9;
/// How often they are simulated. The shortest time counts: what disturbs one of them only makes it longer.
const RUNS: usize = 3;

impl Speed {
    /// That of the reference machine, on which docs/results/speed.md was measured, fitted to workload FT, Figure 2.14 and the
    /// demo.
    pub const REFERENCE: Speed = Speed {
        ends_s: 200e-9,
        hop_s: 10e-9,
        servers_s: 220e-9,
        // `bench/flat.toml` for 1 us at k = 160 and 256, without and with the rows of ports.
        port_s: 370e-9,
        row_s: 850e-9,
        // 8,192 servers of 1 to 63 machines.
        machine_s: 1.5e-6,
    };

    /// That of this machine at this moment and of this build. `None` if nothing was simulated.
    pub fn measured() -> Option<Speed> {
        let hops_s = (0..RUNS).filter_map(|_| simulate(HOSTS)).map(|o| o.cpu_s / o.hops as f64);
        let slower = hops_s.min_by(f64::total_cmp)? / REFERENCE_HOP_S;
        let Speed { ends_s, hop_s, servers_s, port_s, machine_s, row_s } = Self::REFERENCE;
        Some(Speed {
            ends_s: slower * ends_s,
            hop_s: slower * hop_s,
            servers_s: slower * servers_s,
            port_s: slower * port_s,
            machine_s: slower * machine_s,
            row_s: slower * row_s,
        })
    }

    /// CPU seconds to build the network of a scenario, and to write the rows of its ports if it is `recorded`.
    pub(super) fn building(&self, s: &Scenario, recorded: bool) -> f64 {
        let ports = f64::from(s.topology.counts().ports);
        let machines = if s.server.virtual_network { f64::from(s.server.vms) } else { 1.0 };
        let rows = if recorded { build::port_rows(s) as f64 } else { 0.0 };
        ports * self.port_s + build::servers(s) as f64 * machines * self.machine_s + rows * self.row_s
    }

    /// CPU seconds of some work.
    pub(super) fn seconds(&self, work: &Work, is_virtual: bool) -> f64 {
        let servers_s = if is_virtual { self.servers_s } else { 0.0 };
        work.packets * (self.ends_s + servers_s) + work.hops * self.hop_s
    }
}

/// A small run without records.
fn simulate(text: &str) -> Option<Outcome> {
    let loaded = Scenario::parse(text, "estimate").ok()?;
    let interrupt = AtomicBool::new(false);
    let options =
        Options { threads: 1, out: None, existing: Existing::Refuse, interrupt: &interrupt, progress: &mut |_| {} };
    let outcome = run::run(&Job::new(&loaded), options).ok()??;
    (outcome.hops > 0 && outcome.cpu_s > 0.0).then_some(outcome)
}
