//! Content of the page, computed once: configurations with their seeds together, locations, levels.

use std::collections::BTreeMap;

use super::explain::{self, Group, Seen};
use super::loss_locations::{Level, LossLocation};
use super::summary::{KindSummary, Times};
use super::{CellInput, OverTime};
use sluicenet_records::stats::{MeanInterval, SIZE_BUCKETS, SizeBucket, mean_over_seeds, slowdown_over_seeds};
use sluicenet_scenario::{CONGESTION_KEY, FLOW_CONTROL_KEY};

/// Everything on the page.
pub(super) struct Model {
    /// Names of the groups, in order of appearance: one panel of every chart each.
    pub groups: Vec<String>,
    /// Names of the series, in order of appearance: one colour each.
    pub series: Vec<Name>,
    /// Which key the values of the series are of; `None` where their names say that themselves.
    pub series_key: Option<String>,
    /// Whether the series are LL, LZ, ZL, ZZ.
    pub is_flow_control: bool,
    /// Whether the policy of switches is one of the axes.
    policy_varies: bool,
    /// Whether completion is that of queries; of flows otherwise.
    pub has_queries: bool,
    /// The configurations, by group and then series.
    pub rows: Vec<Row>,
    /// Highest level of a switch; names the levels.
    pub top_level: u8,
}

/// Name of a series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Name {
    /// Where it stands alone: "vswitch.slots 1024".
    pub full: String,
    /// Where its key stands beside it: "1024".
    pub value: String,
}

/// One configuration: all runs with the same axes.
pub(super) struct Row {
    /// Index into `Model::groups`.
    pub group: usize,
    /// Index into `Model::series`.
    pub series: usize,
    /// Completion of queries, or of flows when there are no queries.
    pub completion: Completion,
    /// Its flows by kind.
    pub kinds: BTreeMap<String, KindSummary>,
    /// Slowdown of its flows by size.
    pub slowdown: Vec<SizeBucket>,
    /// Frames thrown away by location.
    pub drops: BTreeMap<LossLocation, u64>,
    /// Frames thrown away by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Its ports by level.
    pub levels: BTreeMap<u8, Level>,
    /// The course of its first seed: a mean over seeds would hide bursts.
    pub over_time: OverTime,
}

/// Completion times of a configuration.
#[derive(Default)]
pub(super) struct Completion {
    /// Times after the warm-up. With several seeds, every figure is the mean of the seeds' own.
    pub times: Times,
    /// The mean over the seeds' means; `None` when nothing finished.
    pub mean: Option<MeanInterval>,
    /// Retransmission timeouts of all messages, those of the warm-up too.
    pub timeouts: u64,
    /// Segments sent again of all messages.
    pub retransmissions: u64,
}

impl Model {
    pub fn new(inputs: &[&CellInput]) -> Model {
        let axes = Axes::of(inputs);
        let has_queries = inputs.iter().any(|input| input.queries.is_some());
        let mut model = Model {
            groups: Vec::new(),
            series: Vec::new(),
            series_key: axes.series.as_ref().filter(|key| !speaks_for_itself(key)).cloned(),
            is_flow_control: axes.series.as_deref() == Some(FLOW_CONTROL_KEY),
            policy_varies: axes.series.iter().chain(&axes.groups).any(|key| key == "switch.policy"),
            has_queries,
            rows: Vec::new(),
            top_level: inputs.iter().flat_map(|input| input.levels.keys()).copied().max().unwrap_or(0),
        };
        let mut cells: BTreeMap<(usize, usize), Vec<&CellInput>> = BTreeMap::new();
        for input in inputs {
            let (group, series) = axes.names(input);
            let key = (index_of(&mut model.groups, group), index_of(&mut model.series, series));
            cells.entry(key).or_default().push(input);
        }
        model.rows =
            cells.into_iter().map(|((group, series), seeds)| Row::new(group, series, &seeds, has_queries)).collect();
        model
    }

    /// The rows of one group.
    pub fn group(&self, group: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.group == group)
    }

    /// Name of a row where both of its names are needed.
    pub fn label(&self, row: &Row) -> String {
        let (group, series) = (self.groups[row.group].as_str(), self.series[row.series].full.as_str());
        // "NewReno ZZ", but "switch.buffer 50 KB, vswitch.slots 64".
        let between = if self.series_key.is_some() { ", " } else { " " };
        [group, series].into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(between)
    }

    /// Whether any configuration has more than one seed.
    pub fn has_seeds(&self) -> bool {
        self.rows.iter().any(|row| row.completion.mean.is_some_and(|mean| mean.seeds > 1))
    }

    /// Notes on flow controls beside each other: facts that the figures show and do not explain.
    pub fn notes(&self) -> Vec<String> {
        if !self.is_flow_control {
            return Vec::new();
        }
        let group = |(i, name): (usize, &String)| -> Group<'_> {
            (name.clone(), self.group(i).map(|row| (self.series[row.series].value.as_str(), row.seen())).collect())
        };
        explain::notes(&self.groups.iter().enumerate().map(group).collect::<Vec<_>>(), self.policy_varies)
    }

    /// Name of a level in a network of this height.
    pub fn level_name(&self, level: u8) -> String {
        match (level, self.top_level) {
            (0, _) => "server".into(),
            (1, 1) => "switch".into(),
            (1, _) => "edge".into(),
            (level, top) if level == top => "core".into(),
            (2, 3) => "aggregation".into(),
            (level, _) => format!("level {level}"),
        }
    }

    pub fn location_name(&self, location: LossLocation) -> String {
        match location {
            LossLocation::Socket => "socket".into(),
            LossLocation::Vswitch => "vSwitch".into(),
            LossLocation::Adapter => "adapter".into(),
            LossLocation::Switch(level) if self.top_level <= 1 => self.level_name(level),
            LossLocation::Switch(level) => format!("{} switch", self.level_name(level)),
            LossLocation::Other => "other".into(),
        }
    }
}

fn index_of<T: PartialEq>(names: &mut Vec<T>, name: T) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// Which axis gives the colours; the others that vary give the panels. Axes by their dotted keys.
struct Axes {
    series: Option<String>,
    groups: Vec<String>,
}

impl Axes {
    fn of(inputs: &[&CellInput]) -> Axes {
        let mut keys: Vec<&str> = Vec::new();
        for key in inputs.iter().flat_map(|input| &input.run.axis_keys) {
            if !keys.contains(&key.as_str()) {
                keys.push(key);
            }
        }
        let varies = |key: &&str| inputs.iter().any(|input| value(input, key) != value(inputs[0], key));
        let mut varying: Vec<String> = keys.into_iter().filter(varies).map(str::to_owned).collect();
        let series = varying.iter().position(|key| key == FLOW_CONTROL_KEY).or(varying.len().checked_sub(1));
        Axes { series: series.map(|i| varying.remove(i)), groups: varying }
    }

    /// Names of the group and of the series of a run.
    fn names(&self, input: &CellInput) -> (String, Name) {
        let full = |key: &String| match (spell(value(input, key)), speaks_for_itself(key)) {
            (value, true) => value,
            (value, false) => format!("{key} {value}"),
        };
        let group = self.groups.iter().map(full).collect::<Vec<_>>().join(", ");
        match &self.series {
            Some(key) => (group, Name { full: full(key), value: spell(value(input, key)) }),
            // Nothing varies: only the name can tell two runs apart, and seeds of one run share it.
            None => {
                let name = input.run.scenario.clone();
                (group, Name { full: name.clone(), value: name })
            }
        }
    }
}

/// Whether the values of a key need no key beside them.
fn speaks_for_itself(key: &str) -> bool {
    [FLOW_CONTROL_KEY, CONGESTION_KEY].contains(&key)
}

fn value<'a>(input: &'a CellInput, key: &str) -> &'a str {
    let run = &input.run;
    run.axis_keys.iter().zip(&run.axes).find(|(k, _)| *k == key).map_or("", |(_, (_, value))| value)
}

/// The names of the field as people write them.
fn spell(value: &str) -> String {
    match value {
        "newreno" => "NewReno".into(),
        "cubic" => "CUBIC".into(),
        "vegas" => "Vegas".into(),
        "dctcp" => "DCTCP".into(),
        other => other.into(),
    }
}

impl Row {
    fn new(group: usize, series: usize, seeds: &[&CellInput], has_queries: bool) -> Row {
        let (mut drops, mut levels) = (BTreeMap::new(), BTreeMap::<u8, Level>::new());
        let mut reasons = BTreeMap::new();
        let mut kinds: BTreeMap<String, Vec<&KindSummary>> = BTreeMap::new();
        for seed in seeds {
            seed.drops.iter().for_each(|(location, frames)| *drops.entry(*location).or_default() += frames);
            seed.reasons.iter().for_each(|(reason, frames)| *reasons.entry(reason.clone()).or_default() += frames);
            seed.levels.iter().for_each(|(level, ports)| levels.entry(*level).or_default().merge(ports));
            seed.flows.kinds.iter().for_each(|(kind, flows)| kinds.entry(kind.to_string()).or_default().push(flows));
        }
        let slowdown: Vec<&[SizeBucket]> =
            seeds.iter().map(|seed| &seed.flows.slowdown[..]).filter(|buckets| !buckets.is_empty()).collect();
        Row {
            group,
            series,
            completion: Completion::new(seeds, has_queries),
            kinds: kinds.into_iter().map(|(kind, seeds)| (kind, KindSummary::over_seeds(&seeds))).collect(),
            slowdown: slowdown_over_seeds(&slowdown, SIZE_BUCKETS),
            drops,
            reasons,
            levels,
            over_time: seeds.first().map_or_else(OverTime::default, |seed| seed.over_time.clone()),
        }
    }

    /// Frames lost for want of room in the virtual network and in the physical one.
    pub fn losses(&self) -> (u64, u64) {
        let full = self.drops.iter().filter(|(location, _)| **location != LossLocation::Other);
        let (virtually, physically): (Vec<_>, Vec<_>) = full.partition(|(location, _)| location.is_virtual());
        let sum = |drops: Vec<(&LossLocation, &u64)>| drops.into_iter().map(|(_, frames)| frames).sum();
        (sum(virtually), sum(physically))
    }

    fn seen(&self) -> Seen {
        let (s, (lost_virtual, lost_physical)) = (self.completion.times.summary, self.losses());
        Seen {
            finished: s.count as u64,
            times: [s.mean, s.p50, s.p99, s.p999],
            timeouts: self.completion.timeouts,
            retransmissions: self.completion.retransmissions,
            lost_virtual,
            lost_physical,
        }
    }
}

impl Completion {
    fn new(seeds: &[&CellInput], has_queries: bool) -> Completion {
        let of = |seed: &&CellInput| if has_queries { seed.queries.clone() } else { Some(seed.flows.times.clone()) };
        let times: Vec<Times> = seeds.iter().filter_map(of).collect();
        let finished: Vec<&Times> = times.iter().filter(|times| times.summary.count > 0).collect();
        let means: Vec<f64> = finished.iter().map(|times| times.summary.mean).collect();
        let unfinished = times.iter().map(|times| times.unfinished).sum();
        Completion {
            times: Times { unfinished, ..Times::over_seeds(&finished) },
            mean: mean_over_seeds(&means),
            timeouts: seeds.iter().map(|seed| seed.timeouts).sum(),
            retransmissions: seeds.iter().map(|seed| seed.retransmissions).sum(),
        }
    }
}
