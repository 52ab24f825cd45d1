//! The applications: their queries and flows, drawn as in the simulation.

use super::PaError;
use super::stream::NUMBER_BYTES;
use sluicenet_experiment::build::Plan;
use sluicenet_experiment::workload::two_tier::Vm;
use sluicenet_experiment::workload::{background, two_tier};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_scenario::{Background, PartitionAggregate2, Scenario, Transport, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One of the workloads.
pub(super) enum App {
    Pa(Pa),
    Background { workload: Background, hosts: u32, draws: BTreeMap<HostId, background::Draws> },
}

pub(super) struct Pa {
    pub workload: PartitionAggregate2,
    pub aggregators: Vec<Vm>,
    pub workers: Vec<Vm>,
    pub rng: BTreeMap<HostId, Rng>,
    pub started: BTreeMap<HostId, u64>,
    pub finished: u64,
    /// The kept connection of each pair.
    pub kept: BTreeMap<(HostId, Vm), usize>,
}

impl App {
    /// Whether the application runs between light sockets.
    pub fn is_light(&self) -> bool {
        let transport = match self {
            App::Pa(pa) => pa.workload.transport,
            App::Background { workload, .. } => workload.transport,
        };
        transport == Transport::TcpLight
    }
}

/// The application of workload `number`, in a network of `hosts` hosts.
pub(super) fn app(scenario: &Scenario, plan: &Plan, hosts: u32, number: u8, w: &Workload) -> Result<App, PaError> {
    match w {
        Workload::PartitionAggregate2(w) => {
            if w.request.as_bytes() < NUMBER_BYTES || w.response.as_bytes() < NUMBER_BYTES {
                return Err(PaError::Workload(format!("requests and responses are of at least {NUMBER_BYTES} B")));
            }
            let (aggregators, workers) = two_tier::roles(scenario, w, hosts);
            let rng = aggregators.iter().map(|&(h, _)| (h, two_tier::draws(scenario.seed, number, h))).collect();
            let (started, kept) = Default::default();
            let workload = w.clone();
            let finished = 0;
            Ok(App::Pa(Pa { workload, aggregators, workers, rng, started, finished, kept }))
        }
        Workload::Background(w) if w.transport.connects() => {
            let settings = Arc::new(w.clone());
            let draws = |h| (h, background::Draws::new(scenario.seed, number, plan, h, &settings));
            let senders = (0..hosts).filter(|&h| w.sends(plan.chassis(h, w.chassis as u8), h));
            Ok(App::Background { workload: w.clone(), hosts, draws: senders.map(draws).collect() })
        }
        other => Err(PaError::Workload(format!("there is no real application for workload `{}`", other.kind()))),
    }
}
