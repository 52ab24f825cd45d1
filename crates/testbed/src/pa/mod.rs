//! Partition/Aggregate between real sockets (Crisan 2014, 4.5.1): the two tiers of the source's prototype, where an aggregator
//! asks all workers over connections that are kept open and a query ends with the last answer; beside it background flows,
//! each over a connection of its own (4.5.3). Times and sizes are drawn as the simulated workloads draw them.

mod app;
mod apps;
mod connections;
mod doorbell;
mod guests;
mod part;
mod sockets;
mod stream;

pub use guests::run_in_guests;
pub use part::{Cues, Part, own_edges, sum_of, together};
pub use sockets::Endpoint;
pub(super) use sockets::{Namespaces, Stream, Style, set_timeouts};

use super::{LightEndpoint, LightPort, Plan, Tenant, files};
use serde::Serialize;
use sluicenet_proto::frame::HostId;
use sluicenet_records::stats::{mean_over_seeds, percentile};
use sluicenet_scenario::{Congestion, Scenario};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The endpoints of all VMs, by server and number in the server.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// VMs with kernel sockets.
    pub kernel: BTreeMap<(HostId, u8), Endpoint>,
    /// VMs with light sockets.
    pub light: BTreeMap<(HostId, u8), LightEndpoint>,
}

impl FromIterator<((HostId, u8), Endpoint)> for Endpoints {
    fn from_iter<I: IntoIterator<Item = ((HostId, u8), Endpoint)>>(all: I) -> Endpoints {
        Endpoints { kernel: all.into_iter().collect(), light: BTreeMap::new() }
    }
}

impl Endpoints {
    /// The endpoint of a VM's kernel sockets.
    pub(super) fn kernel(&self, vm: (HostId, u8)) -> Result<&Endpoint, PaError> {
        let nowhere = || PaError::Workload(format!("VM {} of server {} has no endpoint", vm.1, vm.0));
        self.kernel.get(&vm).ok_or_else(nowhere)
    }
}

/// The endpoints of a testbed's tenants: their namespaces, or, seen from a guest, their addresses; also their ports for
/// light sockets.
pub fn endpoints(plan: &Plan) -> Endpoints {
    let namespace = |t: &Tenant| (!plan.has_guests()).then(|| t.namespace.clone());
    let kernel = |t: &Tenant| t.has_kernel().then(|| Endpoint { namespace: namespace(t), address: t.address });
    let files = files::TestbedDir::of_the_machine();
    let light = |t: &Tenant| {
        let LightPort { name: port, address, .. } = t.light()?;
        let control = files.control(&plan.servers[t.host as usize]);
        // A plan has no larger values.
        let (mtu, receive_buffer) = (plan.tenant_mtu as u16, plan.scenario.tcplight.buffer.as_bytes() as u32);
        Some(LightEndpoint { control, port, address, mtu, receive_buffer })
    };
    Endpoints {
        kernel: plan.tenants().filter_map(|t| Some(((t.host, t.vm), kernel(t)?))).collect(),
        light: plan.tenants().filter_map(|t| Some(((t.host, t.vm), light(t)?))).collect(),
    }
}

/// An error that ended an application.
#[derive(Debug)]
pub enum PaError {
    /// A request that the system refused.
    Io {
        /// The request.
        what: String,
        /// The system's error.
        why: String,
    },
    /// A congestion control that is not available.
    Congestion {
        /// The requested congestion control.
        wanted: &'static str,
        /// The congestion control that would run instead, or the system's error.
        ran: String,
        /// The network namespace.
        namespace: String,
        /// The congestion controls that the namespace allows.
        allowed: String,
    },
    /// A workload without a real application.
    Workload(String),
    /// A connection that was not open in time.
    Connect {
        /// The addresses of the connection.
        what: String,
    },
}

impl PaError {
    pub(crate) fn io(what: &str, e: &io::Error) -> PaError {
        let mut why = e.to_string();
        if e.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) {
            why += "; connections open faster than they end: raise the workload's `inter_arrival`, or the limit (`ulimit -n`)";
        }
        PaError::Io { what: what.into(), why }
    }
}

impl std::fmt::Display for PaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PaError::Io { what, why } => write!(f, "{what}: {why}"),
            PaError::Congestion { wanted, ran, namespace, allowed } => write!(
                f,
                "congestion control `{wanted}` cannot be had in namespace {namespace}: {ran}; allowed there: {}",
                allowed.trim()
            ),
            PaError::Workload(message) => f.write_str(message),
            PaError::Connect { what } => write!(f, "no connection in {} s: {what}", CONNECT_TIME.as_secs()),
        }
    }
}

impl std::error::Error for PaError {}

/// The time limit for opening persistent connections.
pub(super) const CONNECT_TIME: Duration = Duration::from_secs(30);

/// A query that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The query's number, as in the simulation's records.
    pub id: u64,
    /// The server of the aggregator.
    pub aggregator: HostId,
    /// Time from the start of the applications to the start of the query.
    pub start: Duration,
    /// Completion time.
    pub took: Duration,
    /// Whether statistics leave the query out.
    pub warmup: bool,
    /// Retransmission timeouts of the query's connections meanwhile, at both ends; none if the kernel does not count
    /// them.
    pub timeouts: Option<u32>,
    /// Segments that the query's connections retransmitted meanwhile.
    pub retransmitted: u32,
}

impl Query {
    /// Whether no timeout delayed the query. If the kernel does not count timeouts, whether no segment was
    /// retransmitted.
    pub fn is_timeout_free(&self) -> bool {
        self.timeouts.unwrap_or(self.retransmitted) == 0
    }
}

/// The results of the applications.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The congestion control of every socket.
    pub congestion: &'static str,
    /// Finished queries, in the order of their ends.
    pub queries: Vec<Query>,
    /// Unfinished queries.
    pub unfinished: u64,
    /// Finished background flows: bytes and time.
    pub flows: Vec<(u64, Duration)>,
    /// `TCPTimeouts`, `RetransSegs` and `TCPLossProbes` of all tenants' stacks.
    pub kernel: [u64; 3],
    /// Duration of the run.
    pub time: Duration,
}

/// The figures of an outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The congestion control.
    pub congestion: &'static str,
    /// Finished queries after the warm-up.
    pub queries: usize,
    /// Unfinished queries.
    pub unfinished: u64,
    /// Mean completion time of queries.
    pub mean_ms: Option<f64>,
    /// Half of the mean's 95 % confidence interval, from the means of 20 stretches of the run.
    pub mean_ci95_ms: Option<f64>,
    /// Median completion time of queries.
    pub median_ms: Option<f64>,
    /// 99th percentile of the completion times.
    pub p99_ms: Option<f64>,
    /// Longest completion time.
    pub max_ms: Option<f64>,
    /// Queries without a timeout.
    pub timeout_free: usize,
    /// Median completion time of queries without a timeout.
    pub timeout_free_median_ms: Option<f64>,
    /// Whether the kernel tells which connection timed out. If not, every query with a retransmission counts as one
    /// with a timeout.
    pub timeouts_known: bool,
    /// Timeouts of the connections of the counted queries during these queries; none if the kernel does not tell.
    pub timeouts: Option<u64>,
    /// Timeouts of all tenants' stacks in the whole run, including warm-up and background flows.
    pub run_timeouts: u64,
    /// Segments retransmitted by all tenants' stacks in the whole run.
    pub retransmitted: u64,
    /// Tail loss probes of all tenants' stacks in the whole run (RFC 8985, 7). A probe is no timeout, but with one
    /// segment in flight it is as slow.
    pub loss_probes: u64,
    /// Finished background flows.
    pub flows: usize,
    /// Mean completion time of background flows.
    pub flow_mean_ms: Option<f64>,
    /// Duration of the run.
    pub seconds: f64,
}

/// The number of batches of queries for the confidence interval: successive queries are not independent.
const BATCHES: usize = 20;

impl Outcome {
    /// The figures to print.
    pub fn figures(&self) -> Figures {
        let counted: Vec<&Query> = self.queries.iter().filter(|q| !q.warmup).collect();
        let ms = |q: &Query| q.took.as_secs_f64() * 1e3;
        let sorted = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values
        };
        let at = |values: &[f64], percent| (!values.is_empty()).then(|| percentile(values, percent));
        let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        let all: Vec<f64> = counted.iter().map(|q| ms(q)).collect();
        // Fewer than two queries in a batch give no confidence interval.
        let batches: Vec<f64> = match all.len() / BATCHES {
            0 | 1 => Vec::new(),
            // The batches' sizes differ by at most one query.
            _ => (0..BATCHES)
                .filter_map(|k| mean(&all[k * all.len() / BATCHES..(k + 1) * all.len() / BATCHES]))
                .collect(),
        };
        let free = sorted(counted.iter().filter(|q| q.is_timeout_free()).map(|q| ms(q)).collect());
        let flows: Vec<f64> = self.flows.iter().map(|f| f.1.as_secs_f64() * 1e3).collect();
        let in_order = sorted(all.clone());
        Figures {
            congestion: self.congestion,
            queries: all.len(),
            unfinished: self.unfinished,
            mean_ms: mean(&all),
            mean_ci95_ms: mean_over_seeds(&batches).and_then(|m| m.half_width),
            median_ms: at(&in_order, 50.0),
            p99_ms: at(&in_order, 99.0),
            max_ms: at(&in_order, 100.0),
            timeout_free: free.len(),
            timeout_free_median_ms: at(&free, 50.0),
            timeouts_known: counted.iter().all(|q| q.timeouts.is_some()),
            timeouts: counted.iter().map(|q| q.timeouts.map(u64::from)).sum(),
            run_timeouts: self.kernel[0],
            retransmitted: self.kernel[1],
            loss_probes: self.kernel[2],
            flows: flows.len(),
            flow_mean_ms: mean(&flows),
            seconds: self.time.as_secs_f64(),
        }
    }
}

/// The kernel's name of a congestion control. For one that only the simulator has, a name that the kernel refuses.
pub fn kernel_name(congestion: Congestion) -> &'static str {
    match congestion {
        Congestion::NewReno => "reno",
        Congestion::Cubic => "cubic",
        Congestion::Vegas => "vegas",
        Congestion::Dctcp => "dctcp",
        // For congestion controls that users add as in docs/extending.md.
        #[allow(unreachable_patterns)]
        _ => "simulated-only",
    }
}

/// Runs the applications of a scenario, as written (see [`super::slowed`]), between `endpoints`, until every finite one
/// has ended, its duration is over, or `stop`.
///
/// # Errors
/// A workload without a real application, a VM without an endpoint, or a request that the system refused.
pub fn run(scenario: &Scenario, endpoints: &Endpoints, stop: &AtomicBool) -> Result<Outcome, PaError> {
    // Use another thread: it changes its namespace, and the caller's must stay.
    std::thread::scope(|threads| {
        let apps = std::thread::Builder::new().name("sluice-pa".into());
        let running = apps
            .spawn_scoped(threads, || apps::run(scenario, endpoints, stop))
            .map_err(|e| PaError::io("a thread", &e))?;
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs the part of VM `here` in the applications of a scenario, in step with the others by `cues`.
///
/// # Errors
/// As [`run`].
pub fn run_part(scenario: &Scenario, endpoints: &Endpoints, here: (HostId, u8), cues: &Cues) -> Result<Part, PaError> {
    apps::run_part(scenario, endpoints, here, cues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_leave_out_the_warm_up_and_tell_timeouts_apart() {
        let query = |n: u64| Query {
            id: n,
            aggregator: 0,
            start: Duration::from_millis(n),
            took: Duration::from_millis(if n % 10 == 0 { 200 } else { 1 + n % 2 }),
            warmup: n < 100,
            timeouts: Some(u32::from(n % 10 == 0)),
            retransmitted: 1,
        };
        let outcome = Outcome { queries: (0..500).map(query).collect(), kernel: [50, 500, 7], ..Outcome::default() };
        let f = outcome.figures();
        assert_eq!((f.queries, f.timeout_free, f.timeouts_known), (400, 360, true));
        // Timeouts of the warm-up count only for the whole run.
        assert_eq!((f.timeouts, f.run_timeouts), (Some(40), 50));
        assert_eq!((f.retransmitted, f.loss_probes), (500, 7));
        assert_eq!((f.median_ms, f.p99_ms, f.timeout_free_median_ms), (Some(2.0), Some(200.0), Some(2.0)));
        let mean = (40.0 * 200.0 + 160.0 * 1.0 + 200.0 * 2.0) / 400.0;
        assert!((f.mean_ms.unwrap() - mean).abs() < 1e-9);
        assert!(f.mean_ci95_ms.unwrap() < 1e-9, "every stretch is the same");
        // 50 queries are 20 stretches of two or three, not 25 of two.
        let outcome = Outcome { queries: (100..150).map(query).collect(), ..Outcome::default() };
        let ms: Vec<f64> = outcome.queries.iter().map(|q| q.took.as_secs_f64() * 1e3).collect();
        let means: Vec<f64> =
            (0..20).map(|k| &ms[k * 5 / 2..(k + 1) * 5 / 2]).map(|s| s.iter().sum::<f64>() / s.len() as f64).collect();
        assert_eq!(
            (means.len(), outcome.figures().mean_ci95_ms),
            (20, mean_over_seeds(&means).and_then(|m| m.half_width))
        );
        let nothing = Outcome::default().figures();
        assert_eq!((nothing.mean_ms, nothing.mean_ci95_ms, nothing.queries), (None, None, 0));
    }
}
