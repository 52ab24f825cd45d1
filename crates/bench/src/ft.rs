//! Workload FT: long TCP flows of a permutation on a fat-tree, to measure this simulator against others.
//!
//! The network is that of the comparison programs. Every link has 10 Gb/s and 1 us. Every output port, the hosts' too,
//! has a drop-tail queue of 100,000 B. Switches store and forward, with two-level routing. Framing takes two bytes, and
//! each segment gets one ACK. It is an ordinary scenario: switch, adapter, TCP and records are those that every
//! scenario runs.

use sluicenet_experiment::run::{self, Job, Options, Outcome, RunError};
use sluicenet_scenario::{Error, Result as ScenarioResult, Scenario};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct FatTree {
    /// Ports of a switch; k^3/4 hosts.
    pub k: u32,
    /// File of pairs "source destination".
    pub permutation: PathBuf,
    /// Simulated time in milliseconds.
    pub ms: f64,
    /// Flow control on all ports instead of drop-tail.
    pub pfc: bool,
    /// Congestion control.
    pub congestion: String,
    /// Seed.
    pub seed: u64,
}

/// The figures of a run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figures {
    /// Ports of a switch.
    pub k: u32,
    /// Hosts.
    pub hosts: u32,
    /// Simulated milliseconds; fewer than asked for after an interrupt.
    pub simulated_ms: f64,
    /// Whether flow control was on.
    pub pfc: bool,
    /// Threads.
    pub threads: usize,
    /// Frames sent on links, pause frames left out.
    pub packet_hops: u64,
    /// CPU seconds of the run phase and of writing its records, all threads.
    pub cpu_s: f64,
    /// Seconds of the same.
    pub wall_s: f64,
    /// Packet-hops per CPU second.
    pub packet_hops_per_cpu_s: f64,
    /// Segments and acknowledgements that one host sent and another received.
    pub packets_end_to_end: u64,
    /// Of these, per CPU second.
    pub packets_end_to_end_per_cpu_s: f64,
    /// Most memory held, in bytes.
    pub peak_rss_bytes: u64,
    /// Frames dropped.
    pub drops: u64,
    /// Payload delivered in order, in Gb/s.
    pub goodput_gbps: f64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// XOFFs sent.
    pub pauses: u64,
}

/// The scenario of a run.
pub fn scenario(ft: &FatTree) -> ScenarioResult<sluicenet_scenario::Loaded> {
    let FatTree { k, permutation, ms, pfc, congestion, seed } = ft;
    let file = std::path::absolute(permutation).unwrap_or_else(|_| permutation.clone());
    let file = serde_json::to_string(&file.to_string_lossy()).unwrap_or_default();
    let ns = (ms * 1e6).round() as u64;
    let when_full = if *pfc { "stop" } else { "drop" };
    let text = format!(
        r#"
[scenario]
name = "ft"
parameters = "plain"
seed = {seed}
duration = "{ns} ns"
[topology]
kind = "fat-tree"
k = {k}
link_rate = "10 Gb/s"
link_delay = "1 us"
routing = "two-level"
[switch]
buffer = "100 KB"
policy = "output"
delay = "0 ns"
forwarding = "store-and-forward"
[pfc]
enabled = {pfc}
xoff = "60 KB"
xon = "40 KB"
[adapter]
buffer = "100 KB"
delay = "0 ns"
queueing = "fifo"
when_full = "{when_full}"
[framing]
kind = "ppp"
mtu = "1500 B"
[tcp]
congestion = "{congestion}"
rto_base = "1 s"
rto_min = "10 ms"
rto_slop = "0 ms"
buffer = "1048576 B"
max_buffer = "1048576 B"
auto_buffer = false
delayed_ack = "off"
ack_every = 1
initial_window = 10
[record]
pauses = true
[[workload]]
kind = "permutation"
pattern = "file"
file = {file}
stagger = "100 ns"
"#
    );
    Scenario::parse_in(&text, "bench ft", Some(std::path::Path::new(".")), &[])
}

/// Runs it.
pub fn run(ft: &FatTree, threads: usize, out: Option<PathBuf>, interrupt: &AtomicBool) -> Result<Figures, RunError> {
    let loaded = scenario(ft).map_err(RunError::Build)?;
    let options =
        Options { threads, out, existing: sluicenet_records::Existing::Force, interrupt, progress: &mut |_| {} };
    let outcome = run::run(&Job::new(&loaded), options)?;
    let Some(outcome) = outcome else { return Err(RunError::Build(Error::file("ft", "nothing was run"))) };
    Ok(figures(ft, threads, &outcome))
}

fn figures(ft: &FatTree, threads: usize, o: &Outcome) -> Figures {
    // The time that was reached: an interrupt ends a run before its duration.
    let seconds = o.now.as_ps() as f64 / 1e12;
    Figures {
        k: ft.k,
        hosts: ft.k * ft.k * ft.k / 4,
        simulated_ms: o.now.as_ps() as f64 / 1e9,
        pfc: ft.pfc,
        threads,
        packet_hops: o.hops,
        cpu_s: o.cpu_s,
        wall_s: o.wall_s,
        packet_hops_per_cpu_s: o.hops as f64 / o.cpu_s.max(0.01),
        packets_end_to_end: o.totals.end_to_end,
        packets_end_to_end_per_cpu_s: o.totals.end_to_end as f64 / o.cpu_s.max(0.01),
        peak_rss_bytes: sluicenet_records::peak_rss_bytes(),
        drops: o.totals.dropped,
        goodput_gbps: if seconds > 0.0 { o.tcp_bytes as f64 * 8.0 / seconds / 1e9 } else { 0.0 },
        timeouts: o.flows.timeouts,
        pauses: o.pauses,
    }
}
