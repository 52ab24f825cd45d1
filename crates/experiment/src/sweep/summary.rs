//! Results of a sweep's runs, by configuration: the seeds of a configuration are taken together.

use super::table;
use crate::run::{Figures, us};
use serde::{Deserialize, Serialize};
use sluicenet_records::stats::{Summary, mean_over_seeds};
use sluicenet_records::{CELLS, RecordError, SUMMARY, write_file, write_sheet};
use std::collections::BTreeMap;
use std::path::Path;

/// `summary.json` of a sweep.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SweepSummary {
    /// Name of the scenario.
    pub scenario: String,
    /// Every run, in the order of the sweep.
    pub runs: Vec<SweepRun>,
    /// The runs that differ in their seed alone, together.
    #[serde(default)]
    pub configurations: Vec<Configuration>,
}

/// A run of a sweep.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SweepRun {
    /// Name of its folder.
    pub folder: String,
    /// Figures of the run.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Runs that differ in their seed alone. Of every time the mean of the seeds' own; of every count the sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Axis and value.
    pub axes: Vec<(String, String)>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Unit of the times: queries, rounds or flows.
    pub of: String,
    /// How many finished; those of the warm-up are left out.
    pub finished: u64,
    /// How many had begun and did not.
    pub unfinished: u64,
    /// Mean; like the times below, none where nothing finished.
    pub mean_us: Option<f64>,
    /// Half the width of the mean's 95 % confidence interval (Student's t over the seeds' means); none with one seed.
    pub mean_half_width_us: Option<f64>,
    /// Median.
    pub p50_us: Option<f64>,
    /// 95th percentile.
    pub p95_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// 99.9th percentile.
    pub p999_us: Option<f64>,
    /// Retransmission timeouts of all messages, those of the warm-up too.
    pub timeouts: u64,
    /// Segments sent again of all messages.
    pub retransmissions: u64,
    /// Frames lost for want of room in the virtual network.
    pub losses_virtual: u64,
    /// Frames lost by congestion of the physical network.
    pub losses_physical: u64,
    /// Frames thrown away, for any reason.
    #[serde(default)]
    pub drops: u64,
    /// Frames thrown away, by reason.
    #[serde(default)]
    pub drops_by_reason: BTreeMap<String, u64>,
    /// PFC frames sent to stop a peer.
    #[serde(default)]
    pub pauses: u64,
    /// Frames that switches marked with Congestion Experienced.
    #[serde(default)]
    pub marked: u64,
    /// Congestion notifications that switches sent.
    #[serde(default)]
    pub notifications: u64,
    /// Flows that belong to no query, where there are any beside queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowsBeside>,
}

/// The flows of a configuration that also has queries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowsBeside {
    /// How many finished; those of the warm-up are left out.
    pub finished: u64,
    /// How many had begun and did not.
    pub unfinished: u64,
    /// Mean; like the times below, none where nothing finished.
    pub mean_us: Option<f64>,
    /// Median.
    pub p50_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
}

impl FlowsBeside {
    /// Made from the seeds of one configuration; none where a run has no queries or no flows.
    fn of(seeds: &[&Figures]) -> Option<FlowsBeside> {
        let own: Vec<_> =
            seeds.iter().filter(|run| run.queries.is_some()).filter_map(|run| run.flows.as_ref()).collect();
        let together = Summary::over_seeds(&own.iter().map(|flows| flows.summary_us()).collect::<Vec<_>>());
        let us = |us: f64| (together.count > 0).then(|| to_ps(us));
        (!own.is_empty()).then(|| FlowsBeside {
            finished: together.count as u64,
            unfinished: own.iter().map(|flows| flows.unfinished).sum(),
            mean_us: us(together.mean),
            p50_us: us(together.p50),
            p99_us: us(together.p99),
        })
    }
}

impl SweepSummary {
    /// Made from runs, each with its folder.
    pub fn new(scenario: &str, runs: Vec<SweepRun>) -> SweepSummary {
        let configurations = configurations(&runs.iter().map(|run| &run.figures).collect::<Vec<_>>());
        SweepSummary { scenario: scenario.into(), runs, configurations }
    }

    /// The summary that a sweep left in `dir`; `None` where there is no summary of a sweep.
    pub fn read(dir: &Path) -> Option<SweepSummary> {
        serde_json::from_str(&std::fs::read_to_string(dir.join(SUMMARY)).ok()?).ok()
    }

    /// Writes it into the sweep's directory, which is created, and its runs as a table beside it.
    pub fn save(&self, dir: &Path) -> Result<(), RecordError> {
        std::fs::create_dir_all(dir).map_err(RecordError::io(dir, "create the directory"))?;
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        write_file(&dir.join(SUMMARY), text.as_bytes())?;
        write_sheet(&dir.join(CELLS), &table::columns(&self.runs))
    }
}

/// The configurations of some runs, in the order of their first runs.
pub fn configurations(runs: &[&Figures]) -> Vec<Configuration> {
    let mut groups: Vec<Vec<&Figures>> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|group| group[0].axes == run.axes) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups.iter().map(|group| Configuration::of(group)).collect()
}

impl Configuration {
    /// Made from the configuration's seeds, at least one.
    fn of(seeds: &[&Figures]) -> Configuration {
        let own: Vec<Summary> = seeds.iter().map(|run| run.main().summary_us()).collect();
        let means: Vec<f64> = own.iter().filter(|s| s.count > 0).map(|s| s.mean).collect();
        let together = Summary::over_seeds(&own);
        let us = |us: f64| (together.count > 0).then(|| to_ps(us));
        let sum = |of: fn(&Figures) -> u64| seeds.iter().map(|run| of(run)).sum();
        Configuration {
            axes: seeds[0].axes.clone(),
            seeds: seeds.iter().map(|run| run.seed).collect(),
            of: seeds[0].unit().into(),
            finished: together.count as u64,
            unfinished: sum(|run| run.main().unfinished),
            mean_us: us(together.mean),
            mean_half_width_us: mean_over_seeds(&means).and_then(|mean| mean.half_width).map(to_ps),
            p50_us: us(together.p50),
            p95_us: us(together.p95),
            p99_us: us(together.p99),
            p999_us: us(together.p999),
            timeouts: sum(|run| run.timeouts),
            retransmissions: sum(|run| run.retransmissions),
            losses_virtual: sum(|run| run.losses_virtual),
            losses_physical: sum(|run| run.losses_physical),
            drops: sum(|run| run.drops),
            drops_by_reason: by_reason(seeds),
            pauses: sum(|run| run.pauses),
            marked: sum(|run| run.marked),
            notifications: sum(|run| run.notifications),
            flows: FlowsBeside::of(seeds),
        }
    }

    /// Which of LL, LZ, ZL and ZZ it is, where the sweep is over them.
    pub fn flow_control(&self) -> Option<&str> {
        self.axes.iter().find(|axis| axis.0 == FLOW_CONTROL).map(|axis| axis.1.as_str())
    }

    /// Mean time under LL over that of this configuration, with all other settings equal. There is none where either
    /// configuration did not finish its work: times of finished queries alone flatter.
    pub fn gain(&self, all: &[Configuration]) -> Option<f64> {
        let others = |c: &Configuration| -> Vec<(String, String)> {
            c.axes.iter().filter(|axis| axis.0 != FLOW_CONTROL).cloned().collect()
        };
        self.flow_control()?;
        let base = all.iter().find(|c| c.flow_control() == Some("LL") && others(c) == others(self))?;
        let all_finished = self.unfinished == 0 && base.unfinished == 0;
        let (mine, base) = (self.mean_us?, base.mean_us?);
        (all_finished && mine > 0.0 && base > 0.0).then(|| base / mine)
    }
}

fn by_reason(seeds: &[&Figures]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (reason, frames) in seeds.iter().flat_map(|run| &run.drops_by_reason) {
        *all.entry(reason.clone()).or_default() += frames;
    }
    all
}

/// A mean of times in microseconds, to a whole picosecond.
fn to_ps(mean_us: f64) -> f64 {
    us(mean_us * 1e6)
}

/// The axis of LL, LZ, ZL and ZZ, as records name it.
const FLOW_CONTROL: &str = "flow_control";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Completion;

    fn run(axes: &[(&str, &str)], seed: u64, mean_us: f64) -> Figures {
        let queries = Completion { finished: 10, mean_us, p50_us: mean_us, ..Completion::default() };
        let axes = axes.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let drops_by_reason = [("switch_buffer".to_owned(), seed)].into();
        Figures { axes, seed, queries: Some(queries), timeouts: 2, drops: seed, drops_by_reason, ..Figures::default() }
    }

    #[test]
    fn seeds_are_one_configuration_with_students_t() {
        let runs: Vec<Figures> = (1..=3u64)
            .flat_map(|seed| {
                let mean = 1000.0 * seed as f64;
                [run(&[("flow_control", "LL")], seed, 2.0 * mean), run(&[("flow_control", "ZZ")], seed, mean)]
            })
            .collect();
        let found = configurations(&runs.iter().collect::<Vec<_>>());
        assert_eq!(found.len(), 2);
        let zz = &found[1];
        assert_eq!((&zz.seeds[..], zz.mean_us, zz.p50_us), (&[1, 2, 3][..], Some(2000.0), Some(2000.0)));
        assert_eq!((zz.finished, zz.timeouts, zz.gain(&found)), (30, 6, Some(2.0)));
        assert_eq!((zz.drops, zz.drops_by_reason["switch_buffer"]), (6, 6));
        // Mean 2, standard deviation 1, three seeds: 4.303 / sqrt(3).
        assert!((zz.mean_half_width_us.unwrap() - 4303.0 / 3f64.sqrt()).abs() < 1e-6);
        let alone = &configurations(&[&runs[0]])[0];
        assert_eq!((alone.mean_us, alone.mean_half_width_us), (Some(2000.0), None));
        assert_eq!(alone.flows, None);
    }

    #[test]
    fn there_is_no_gain_over_queries_that_did_not_finish() {
        let mut runs = [run(&[("flow_control", "LL")], 1, 2000.0), run(&[("flow_control", "ZZ")], 1, 1000.0)];
        let gains = |runs: &[Figures]| {
            let found = configurations(&runs.iter().collect::<Vec<_>>());
            [found[0].gain(&found), found[1].gain(&found)]
        };
        assert_eq!(gains(&runs), [Some(1.0), Some(2.0)]);
        runs[0].queries.as_mut().unwrap().unfinished = 3;
        assert_eq!(gains(&runs), [None, None]);
    }

    #[test]
    fn flows_beside_queries_are_figures_of_their_own() {
        let mut runs = [run(&[], 1, 1000.0), run(&[], 2, 3000.0)];
        for (run, mean_us) in runs.iter_mut().zip([5.0, 7.0]) {
            run.flows = Some(Completion { finished: 2, unfinished: 1, mean_us, ..Completion::default() });
        }
        let found = configurations(&runs.iter().collect::<Vec<_>>());
        let flows = found[0].flows.as_ref().unwrap();
        assert_eq!((flows.finished, flows.unfinished, flows.mean_us), (4, 2, Some(6.0)));
        runs.iter_mut().for_each(|run| run.queries = None);
        let found = configurations(&runs.iter().collect::<Vec<_>>());
        assert_eq!((&found[0].flows, found[0].finished), (&None, 4), "then they are the figures");
    }
}
