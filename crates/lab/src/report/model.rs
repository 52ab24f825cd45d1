//! What the page shows, computed once: configurations with their seeds pooled, places, levels.

use std::collections::BTreeMap;

use super::{CellInput, FlowSummary};
use crate::records::stats::{MeanInterval, SizeBucket, Summary, mean_over_seeds, slowdown_by_size};
use crate::records::{DropRow, Text};

/// The axis that gives the colours when a sweep has it: the four combinations of lossy and lossless networks.
pub(super) const FLOW_CONTROL: &str = "flow_control";

/// Size buckets of the slowdown curves, as many as HPCC has.
const SIZE_BUCKETS: usize = 20;

/// Everything on the page.
pub(super) struct Model {
    /// Names of the groups, in order of appearance: one panel of every chart each.
    pub groups: Vec<String>,
    /// Names of the series, in order of appearance: one colour each.
    pub series: Vec<String>,
    /// Whether the series are LL, LZ, ZL, ZZ.
    pub is_flow_control: bool,
    /// Whether completion is that of queries; of flows otherwise.
    pub has_queries: bool,
    /// The configurations, by group and then series.
    pub rows: Vec<Row>,
    /// Highest level of a switch; names the levels.
    pub top_level: u8,
}

/// One configuration: all runs with the same axes.
pub(super) struct Row {
    /// Index into `Model::groups`.
    pub group: usize,
    /// Index into `Model::series`.
    pub series: usize,
    /// Completion of queries, or of flows when there are no queries.
    pub completion: Completion,
    /// Its flows.
    pub flows: FlowSummary,
    /// Slowdown of its flows by size.
    pub slowdown: Vec<SizeBucket>,
    /// Frames thrown away by place.
    pub drops: BTreeMap<Place, u64>,
    /// Its ports by level.
    pub levels: BTreeMap<u8, Level>,
}

/// Completion times of a configuration.
#[derive(Default)]
pub(super) struct Completion {
    /// All seeds together.
    pub summary: Summary,
    /// The times in ascending order, in picoseconds.
    pub sorted_ps: Vec<f64>,
    /// The mean over the seeds' means; `None` when nothing finished.
    pub mean: Option<MeanInterval>,
    /// How many did not finish.
    pub unfinished: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments sent again.
    pub retransmissions: u64,
}

/// Where frames died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// A socket's receive buffer.
    Socket,
    /// A queue of a virtual switch.
    Vswitch,
    /// A buffer of an adapter.
    Adapter,
    /// A buffer of a switch of this level.
    Switch(u8),
    /// Bit errors, no route, resequencing.
    Other,
}

impl Place {
    /// From the reason, and for a switch from the level of the box.
    fn of(drop: &DropRow, levels: &BTreeMap<&Text, u8>) -> Place {
        match &*drop.reason {
            "vswitch_uplink" | "vswitch_vm" => Place::Vswitch,
            "adapter_tx" | "adapter_rx" => Place::Adapter,
            "socket_rx" => Place::Socket,
            "switch_buffer" | "headroom_exceeded" => match levels.get(&drop.node) {
                Some(0) => Place::Adapter,
                Some(level) => Place::Switch(*level),
                None => Place::Other,
            },
            _ => Place::Other,
        }
    }

    /// Whether the place is in the virtual network: inside a server, before the adapter.
    pub fn is_virtual(self) -> bool {
        matches!(self, Place::Socket | Place::Vswitch)
    }
}

/// The ports of one level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    /// How many, over all seeds.
    pub ports: u64,
    /// Sum of the time their transmitters were held.
    pub paused_ps: f64,
    /// PFC frames they sent to stop a peer.
    pub xoff_sent: u64,
    /// Longest queue of any of them.
    pub max_queue_bytes: u64,
    /// Sum of their utilisations.
    pub utilisation: f64,
    /// Highest utilisation.
    pub max_utilisation: f64,
}

impl Model {
    pub fn new(inputs: &[CellInput]) -> Model {
        let axes = Axes::of(inputs);
        let has_queries = inputs.iter().any(|input| !input.queries.is_empty());
        let mut model = Model {
            groups: Vec::new(),
            series: Vec::new(),
            is_flow_control: axes.series.as_deref() == Some(FLOW_CONTROL),
            has_queries,
            rows: Vec::new(),
            top_level: inputs.iter().flat_map(|input| &input.ports).map(|port| port.level).max().unwrap_or(0),
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

    /// What a row is called where both of its names are needed.
    pub fn label(&self, row: &Row) -> String {
        let (group, series) = (&self.groups[row.group], &self.series[row.series]);
        [group, series].into_iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>().join(" ")
    }

    /// What a level is called in a network of this height.
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

    pub fn place_name(&self, place: Place) -> String {
        match place {
            Place::Socket => "socket".into(),
            Place::Vswitch => "vSwitch".into(),
            Place::Adapter => "adapter".into(),
            Place::Switch(level) if self.top_level <= 1 => self.level_name(level),
            Place::Switch(level) => format!("{} switch", self.level_name(level)),
            Place::Other => "other".into(),
        }
    }
}

fn index_of(names: &mut Vec<String>, name: String) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// Which axis gives the colours; the others that vary give the panels.
struct Axes {
    series: Option<String>,
    groups: Vec<String>,
}

impl Axes {
    fn of(inputs: &[CellInput]) -> Axes {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in inputs.iter().flat_map(|input| &input.axes) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let varies = |name: &&str| inputs.iter().any(|input| value(input, name) != value(&inputs[0], name));
        let mut varying: Vec<String> = names.into_iter().filter(varies).map(str::to_owned).collect();
        let series = varying.iter().position(|name| name == FLOW_CONTROL).or(varying.len().checked_sub(1));
        Axes { series: series.map(|i| varying.remove(i)), groups: varying }
    }

    /// Names of the group and of the series of a run.
    fn names(&self, input: &CellInput) -> (String, String) {
        let group = self.groups.iter().map(|axis| spell(value(input, axis))).collect::<Vec<_>>().join(", ");
        match &self.series {
            Some(axis) => (group, spell(value(input, axis))),
            // Nothing varies: only the label can tell two runs apart, and seeds of one run share it.
            None => (group, input.label.clone()),
        }
    }
}

fn value<'a>(input: &'a CellInput, axis: &str) -> &'a str {
    input.axes.iter().find(|(name, _)| name == axis).map_or("", |(_, value)| value)
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
        let mut row = Row {
            group,
            series,
            completion: Completion::new(seeds, has_queries),
            flows: FlowSummary::default(),
            slowdown: Vec::new(),
            drops: BTreeMap::new(),
            levels: BTreeMap::new(),
        };
        for seed in seeds {
            row.flows.merge(&seed.flows);
            let levels: BTreeMap<&Text, u8> = seed.ports.iter().map(|port| (&port.node, port.level)).collect();
            for drop in &seed.drops {
                *row.drops.entry(Place::of(drop, &levels)).or_default() += drop.frames;
            }
            for port in &seed.ports {
                let level = row.levels.entry(port.level).or_default();
                level.ports += 1;
                level.paused_ps += port.paused_ps as f64;
                level.xoff_sent += port.xoff_sent;
                level.max_queue_bytes = level.max_queue_bytes.max(port.max_queue_bytes);
                level.utilisation += port.utilisation;
                level.max_utilisation = level.max_utilisation.max(port.utilisation);
            }
        }
        row.slowdown = slowdown_by_size(&mut row.flows.total().slowdown, SIZE_BUCKETS);
        row
    }

    /// Frames lost in the virtual network and in the physical one.
    pub fn losses(&self) -> (u64, u64) {
        let sum =
            |virtually: bool| self.drops.iter().filter(|(p, _)| p.is_virtual() == virtually).map(|(_, n)| n).sum();
        (sum(true), sum(false))
    }
}

impl Completion {
    fn new(seeds: &[&CellInput], has_queries: bool) -> Completion {
        let mut completion = Completion::default();
        let mut means = Vec::new();
        for seed in seeds {
            let times = if has_queries { completion.add_queries(seed) } else { completion.add_flows(seed) };
            if !times.is_empty() {
                means.push(times.iter().sum::<f64>() / times.len() as f64);
            }
            completion.sorted_ps.extend(times);
        }
        completion.summary = Summary::of(&mut completion.sorted_ps);
        completion.mean = mean_over_seeds(&means);
        completion
    }

    fn add_queries(&mut self, seed: &CellInput) -> Vec<f64> {
        let mut times = Vec::new();
        for query in seed.queries.iter().filter(|query| !query.warmup) {
            match query.completion_ps {
                Some(ps) => times.push(ps as f64),
                None => self.unfinished += 1,
            }
            self.timeouts += query.timeouts as u64;
            self.retransmissions += query.retransmissions as u64;
        }
        times
    }

    fn add_flows(&mut self, seed: &CellInput) -> Vec<f64> {
        let total = seed.flows.total();
        self.unfinished += total.flows - total.fct_ps.len() as u64;
        self.timeouts += total.timeouts;
        self.retransmissions += total.retransmissions;
        total.fct_ps
    }
}
