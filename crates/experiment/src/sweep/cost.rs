//! How long cells will take, from their scenarios alone: long ones start first, so that none is alone at the end.

use super::cell::Cell;
use sluicenet_proto::time::Duration;
use sluicenet_scenario::{FlowFileContent, Scenario, Workload};

/// The work of a run at the level of flows, which simulates no packets, over that of packets.
const FLOW_LEVEL: f64 = 1e-3;

/// The cells in the order to start them: those with most expected work first, others in the order of the sweep.
pub fn longest_first<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<usize> {
    let costs: Vec<f64> = cells.into_iter().map(|cell| expected_bytes(&cell.job.scenario)).collect();
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]));
    order
}

/// The payload that hosts are expected to send, in bytes, as a measure of a run's time: what the workloads ask for, and at
/// most what the hosts' links carry until the scenario's end. At least 1.
pub fn expected_bytes(s: &Scenario) -> f64 {
    let line = s.topology.link.rate.as_bps() as f64 / 8.0 * f64::from(s.topology.counts().hosts);
    let duration_s = s.duration.map(Duration::as_secs_f64);
    let carried = duration_s.map_or(f64::INFINITY, |seconds| line * seconds);
    let asked: f64 = s.workloads.iter().map(|w| asked_bytes(w, s, line, duration_s.unwrap_or(0.0))).sum();
    let bytes = asked.min(carried).max(1.0);
    if s.level.is_packet() { bytes } else { bytes * FLOW_LEVEL }
}

/// The payload of a workload over all hosts, whose links carry `line` bytes a second together; that of endless flows lasts
/// `duration_s`.
fn asked_bytes(workload: &Workload, s: &Scenario, line: f64, duration_s: f64) -> f64 {
    let counts = s.topology.counts();
    let hosts = f64::from(counts.hosts);
    let endless = |senders: f64| line / hosts.max(1.0) * senders * duration_s;
    match workload {
        Workload::Incast(w) => w.senders.len() as f64 * w.bytes.as_bytes() as f64 * w.rounds as f64,
        Workload::Hotspot(w) => {
            let mut from = 0.0;
            let mut bytes = 0.0;
            for phase in &w.phases {
                let until = phase.until.as_secs_f64();
                bytes += (until - from) * phase.rate.as_bps() as f64 / 8.0;
                from = until;
            }
            bytes * w.sources.len() as f64
        }
        Workload::HotspotBenchmark(w) => w.load * endless(hosts),
        Workload::Permutation(w) => {
            let senders = w.senders.map_or(hosts, f64::from);
            w.bytes.map_or(endless(senders), |bytes| bytes.as_bytes() as f64 * senders * f64::from(w.flows))
        }
        Workload::Shuffle(w) => f64::from(w.hosts) * f64::from(w.hosts) * w.bytes.as_bytes() as f64,
        Workload::Flow(w) => w.bytes.map_or(endless(1.0), |bytes| bytes.as_bytes() as f64),
        Workload::FlowFile(w) => match &w.content {
            FlowFileContent::Hpcc { file } => file.content.flows.iter().map(|flow| flow.bytes as f64).sum(),
            // Connections of a matrix have sizes of their own or none.
            FlowFileContent::Htsim { .. } => endless(hosts),
        },
        Workload::Poisson(w) => w.load * line * w.until.as_secs_f64(),
        Workload::Background(w) => {
            let a_second = 1e12 * w.load / w.inter_arrival.mean().max(1.0);
            hosts * a_second * duration_s * w.flow_size.mean()
        }
        Workload::PartitionAggregate(w) => {
            // A query has an answer of every host.
            let query = hosts * w.message.as_bytes() as f64;
            w.queries.map_or(endless(hosts), |queries| queries as f64 * query)
        }
        Workload::PartitionAggregate2(w) => {
            let query = w.workers.len() as f64 * w.response.as_bytes() as f64;
            w.queries.map_or(endless(hosts), |queries| queries as f64 * query)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::cells;

    fn scenario(end: &str) -> String {
        format!(
            "[scenario]\nparameters = \"plain\"\n{end}\n[topology]\nkind = \"single-switch\"\nhosts = 5\n\
             link_rate = \"8 Gb/s\"\n"
        )
    }

    fn expected(text: &str) -> f64 {
        expected_bytes(&Scenario::parse(text, "test").unwrap_or_else(|e| panic!("{e}")).scenario)
    }

    #[test]
    fn more_rounds_senders_and_time_are_more_work() {
        let incast = "[[workload]]\nkind = \"incast\"\nsenders = 4\nreceiver = 4\nbytes = \"10 KB\"\nrounds = 3\n";
        assert_eq!(expected(&(scenario("") + incast)), 4.0 * 10e3 * 3.0);
        let endless = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n";
        // 1 GB/s for 2 ms.
        assert_eq!(expected(&(scenario("duration = \"2 ms\"") + endless)), 2e6);
        // Five hosts cannot send more than 5 GB/s in 2 us.
        assert_eq!(expected(&(scenario("duration = \"2 us\"") + incast)), 1e4);
    }

    #[test]
    fn the_longest_starts_first_and_equal_ones_keep_their_order() {
        let text = scenario("")
            + "[[workload]]\nkind = \"incast\"\nsenders = 4\nreceiver = 4\nbytes = \"10 KB\"\n[sweep]\n\
               \"workload.0.rounds\" = [2, 9, 5]\n\"scenario.seed\" = [1, 2]\n";
        let loaded = Scenario::parse(&text, "test").unwrap();
        assert_eq!(longest_first(&cells(&loaded, None).unwrap()), [2, 3, 4, 5, 0, 1]);
    }
}
