//! A result in a few numbers: from its records, and what they do not say from the run's own figures.

use crate::error;
use crate::run::{Job, existing_of};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use serde::Serialize;
use sluicenet_experiment::run::{self, Figures, PHYSICAL_LOSSES, VIRTUAL_LOSSES};
use sluicenet_experiment::sweep::{self, Setting, SweepRun, SweepSummary};
use sluicenet_proto::loss::DropReason;
use sluicenet_records as records;
use sluicenet_records::stats::{Summary as Times, is_after_warmup};
use sluicenet_records::{
    DropRow, Existing, FlowRow, Lock, Manifest, MarkRow, PortRow, QueryRow, RecordError, Sharing, measured_from, read,
    rows,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The numbers in the order to show them, named as `sluicenet run --json` names them.
#[derive(Serialize)]
struct Summary {
    scenario: String,
    seed: u64,
    status: String,
    /// What `finished`, `unfinished` and the times are of: queries where there are any, flows otherwise.
    of: &'static str,
    finished: u64,
    unfinished: u64,
    mean_us: Option<f64>,
    min_us: Option<f64>,
    p50_us: Option<f64>,
    p95_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: Option<f64>,
    timeouts: u64,
    retransmissions: u64,
    drops: u64,
    losses_virtual: u64,
    losses_physical: u64,
    pauses: u64,
    marked: u64,
    notifications: u64,
    drops_by_reason: BTreeMap<String, u64>,
    /// What records do not say: none where the run did not end.
    flow_control: Option<String>,
    mean_round_us: Option<f64>,
    bound_us: Option<f64>,
    simulated_us: Option<f64>,
    packet_hops: Option<u64>,
    packets_end_to_end: Option<u64>,
    lossless_violations: Option<u64>,
    left_out: Option<u64>,
    messages: Option<(u64, u64)>,
}

/// The numbers of a result, as the text of a JSON object.
#[pyfunction]
pub fn summary(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let summary = py.detach(|| summarise(&path)).map_err(error::records)?;
    Ok(serde_json::to_string(&summary).unwrap_or_default())
}

/// Writes the `summary.json` of the sweep in `path`: of its runs by their folders, in this order.
#[pyfunction]
pub fn sweep_summary(py: Python<'_>, path: PathBuf, scenario: &str, folders: Vec<String>) -> PyResult<()> {
    let run = |folder: String| Some(SweepRun { figures: Figures::saved(&path.join(&folder))?, folder });
    py.detach(|| SweepSummary::new(scenario, folders.into_iter().filter_map(run).collect()).save(&path))
        .map_err(error::records)
}

/// A place for a sweep, which no other process can write to until this is released.
#[pyclass(module = "sluicenet._native")]
pub struct Claimed(Option<Lock>);

#[pymethods]
impl Claimed {
    /// Lets others write there.
    fn release(&mut self) {
        self.0 = None;
    }
}

/// Refuses a place for the sweep of these jobs of `scenario` that holds something else, or makes it ready where `force`
/// is set.
#[pyfunction]
pub fn claim_sweep(
    py: Python<'_>,
    path: PathBuf,
    scenario: &str,
    jobs: Vec<PyRef<'_, Job>>,
    existing: &str,
) -> PyResult<Claimed> {
    let existing = existing_of(existing)?;
    let lock = py.detach(|| records::claim_sweep(&path, scenario, existing, Sharing::Alone)).map_err(error::records)?;
    let cells = jobs.iter().map(|job| job.cell());
    match existing {
        Existing::Resume => sweep::check_same(cells, &path).map_err(error::records)?,
        Existing::Force => sweep::remove_others(cells, &path).map_err(error::records)?,
        Existing::Refuse => {}
    }
    Ok(Claimed(Some(lock)))
}

/// The values of an axis with their types: all bool, int or float where all of them are, and text otherwise.
#[pyfunction]
pub fn typed(py: Python<'_>, values: Vec<String>) -> PyResult<Vec<Py<PyAny>>> {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let python = |setting| match setting {
        Setting::Bool(x) => x.into_py_any(py),
        Setting::Int(x) => x.into_py_any(py),
        Setting::Real(x) => x.into_py_any(py),
        Setting::Text(x) => x.into_py_any(py),
    };
    sweep::typed(&values).into_iter().map(python).collect()
}

fn summarise(dir: &Path) -> Result<Summary, RecordError> {
    let manifest = Manifest::read(dir)?;
    let queries: Vec<QueryRow> = read(dir)?;
    let measured = || queries.iter().filter(|q| !q.warmup);
    let warm_ps = measured_from(dir)?;
    let mut flows = Flows::default();
    for flow in rows::<FlowRow>(dir)? {
        flows.add(&flow?, warm_ps);
    }
    // Without a record of flows the queries still know theirs.
    if flows.started == 0 {
        flows.timeouts = queries.iter().map(|q| u64::from(q.timeouts)).sum();
        flows.retransmissions = queries.iter().map(|q| u64::from(q.retransmissions)).sum();
    }
    let of_queries = measured().next().is_some();
    let (mut times_ps, unfinished): (Vec<f64>, u64) = match of_queries {
        true => (
            measured().filter_map(|q| q.completion_ps).map(|ps| ps as f64).collect(),
            measured().filter(|q| q.completion_ps.is_none()).count() as u64,
        ),
        false => (flows.fct_ps, flows.open),
    };
    let reasons = sluicenet_report::reasons(&read::<DropRow>(dir)?);
    let lost = |of: &[DropReason]| of.iter().filter_map(|r| reasons.get(r.name())).sum();
    let pauses = read::<PortRow>(dir)?.iter().map(|p| p.xoff_sent).sum();
    let marks = read::<MarkRow>(dir)?;
    let figures = Figures::saved(dir);
    let f = figures.as_ref();
    let times = Times::of(&mut times_ps);
    // Nothing finished is not "in no time".
    let us = |ps: f64| (times.count > 0).then(|| run::us(ps));
    Ok(Summary {
        scenario: manifest.run.scenario,
        seed: manifest.run.seed,
        status: manifest.status.to_string(),
        of: if of_queries { "queries" } else { "flows" },
        finished: times.count as u64,
        unfinished,
        mean_us: us(times.mean),
        min_us: us(times.min),
        p50_us: us(times.p50),
        p95_us: us(times.p95),
        p99_us: us(times.p99),
        p999_us: us(times.p999),
        max_us: us(times.max),
        timeouts: flows.timeouts,
        retransmissions: flows.retransmissions,
        drops: reasons.values().sum(),
        losses_virtual: lost(&VIRTUAL_LOSSES),
        losses_physical: lost(&PHYSICAL_LOSSES),
        pauses: f.map_or(pauses, |f| f.pauses),
        marked: f.map_or_else(|| marks.iter().map(|m| m.frames).sum(), |f| f.marked),
        notifications: f.map_or_else(|| marks.iter().map(|m| m.notifications).sum(), |f| f.notifications),
        drops_by_reason: reasons,
        flow_control: f.map(|f| f.flow_control.clone()),
        mean_round_us: f.and_then(|f| f.mean_round_us),
        bound_us: f.and_then(|f| f.bound_us),
        simulated_us: f.map(|f| f.simulated_us),
        packet_hops: f.map(|f| f.packet_hops),
        packets_end_to_end: f.map(|f| f.packets_end_to_end),
        lossless_violations: f.map(|f| f.lossless_violations),
        left_out: f.map(|f| f.left_out),
        messages: f.map(|f| f.messages),
    })
}

#[derive(Default)]
struct Flows {
    started: u64,
    /// Unfinished of those that count.
    open: u64,
    timeouts: u64,
    retransmissions: u64,
    fct_ps: Vec<f64>,
}

impl Flows {
    /// Takes a flow in; its time is left out if it began before `warm_ps`.
    fn add(&mut self, row: &FlowRow, warm_ps: u64) {
        let is_measured = is_after_warmup(row, warm_ps);
        self.started += 1;
        self.open += u64::from(row.fct_ps.is_none() && is_measured);
        self.timeouts += u64::from(row.timeouts);
        self.retransmissions += u64::from(row.retransmissions);
        self.fct_ps.extend(row.fct_ps.filter(|_| is_measured).map(|ps| ps as f64));
    }
}
