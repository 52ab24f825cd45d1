//! Messages and queries that ended: their rows, their times and their sums, alike at both levels.

use super::FlowTotals;
use super::streams::{Course, Mark, Streams};
use crate::build::Ideal;
use crate::workload::{ENDLESS, KINDS, OpenQuery, workload_of};
use sluicenet_node::guest::FlowRecord;
use sluicenet_node::server::QueryRecord;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::Instant;
use sluicenet_records::{FlowRow, QueryRow, RecordError, RecordWriter};
use sluicenet_scenario::Scenario;
use std::collections::HashMap;
use std::sync::Arc;

/// Sums over the flows of a query.
#[derive(Clone, Copy, Debug, Default)]
struct QuerySums {
    flows: u32,
    timeouts: u32,
    retransmissions: u32,
}

/// Results of a run's messages.
pub struct Seen {
    pub queries: Vec<QueryRow>,
    pub flows: FlowTotals,
    pub fct_ps: Vec<u64>,
    pub streams: Streams,
}

/// The messages and queries of a run, as they end.
pub struct Messages {
    /// Whether flows, and queries, are rows of the records.
    flow_rows: bool,
    query_rows: bool,
    ideal: Arc<Ideal>,
    flows: FlowTotals,
    fct_ps: Vec<u64>,
    warmup: Instant,
    /// Where flows without an end stood when the warm-up was over.
    mark: Option<Mark>,
    course: Option<Course>,
    sums: HashMap<u64, QuerySums>,
    queries: Vec<QueryRow>,
}

impl Messages {
    pub fn new(s: &Scenario, ideal: Arc<Ideal>) -> Messages {
        Messages {
            flow_rows: s.record.flows,
            query_rows: s.record.queries,
            ideal,
            flows: FlowTotals::default(),
            fct_ps: Vec::new(),
            warmup: Instant(s.warmup.as_ps()),
            mark: None,
            course: Course::of(s),
            sums: HashMap::new(),
            queries: Vec::new(),
        }
    }

    /// These ended, or stand so at the end of the run.
    pub fn write_flows(&mut self, writer: &mut Option<RecordWriter>, flows: &[FlowRecord]) -> Result<(), RecordError> {
        for f in flows {
            self.flows.started += 1;
            self.flows.finished += f.end.is_some() as u64;
            self.flows.timeouts += f.timeouts as u64;
            self.flows.retransmissions += f.retransmissions as u64;
            if let Some(query) = f.label.query {
                let sums = self.sums.entry(query).or_default();
                sums.flows += 1;
                sums.timeouts += f.timeouts;
                sums.retransmissions += f.retransmissions;
            } else if f.start < self.warmup {
                self.flows.warmup_alone += 1;
            } else {
                self.flows.timeouts_alone += f.timeouts as u64;
                self.flows.retransmissions_alone += f.retransmissions as u64;
                match f.end {
                    Some(end) => self.fct_ps.push(end.since(f.start).as_ps()),
                    None => self.flows.open_alone += 1,
                }
            }
        }
        if let Some(w) = writer.as_mut().filter(|_| self.flow_rows) {
            let rows: Vec<FlowRow> = flows.iter().map(|f| self.flow_row(f)).collect();
            w.write(&rows)?;
        }
        Ok(())
    }

    fn flow_row(&self, f: &FlowRecord) -> FlowRow {
        let bytes = Some(f.bytes).filter(|&b| b < ENDLESS);
        let ideal = bytes.map(|b| self.ideal.of_priority(f.priority).time(f.src.host(), f.dst.host(), b, f.transport));
        let fct = f.end.map(|end| end.since(f.start));
        FlowRow {
            flow_id: f.id,
            kind: KINDS[f.label.kind as usize].into(),
            transport: f.transport.name().into(),
            src_host: f.src.host(),
            src_vm: f.src.vm(),
            dst_host: f.dst.host(),
            dst_vm: f.dst.vm(),
            priority: f.priority,
            bytes,
            start_ps: f.start.as_ps(),
            fct_ps: fct.map(|d| d.as_ps()),
            delivered_bytes: f.delivered,
            ideal_ps: ideal.map(|d| d.as_ps()),
            slowdown: fct.zip(ideal).map(|(d, ideal)| d.as_ps() as f64 / ideal.as_ps().max(1) as f64),
            timeouts: f.timeouts,
            retransmissions: f.retransmissions,
            timeout_wait_ps: f.timeout_wait.as_ps(),
            queueing_ps: f.queueing.as_ps(),
            paused_ps: f.paused.as_ps(),
            query_id: f.label.query,
        }
    }

    /// These ended.
    pub fn write_queries(
        &mut self,
        writer: &mut Option<RecordWriter>,
        mut ended: Vec<QueryRecord>,
    ) -> Result<(), RecordError> {
        ended.sort_unstable_by_key(|q| (q.end, q.id));
        let rows = ended
            .iter()
            .map(|q| {
                let sums = self.sums.remove(&q.id).unwrap_or_default();
                let open = OpenQuery { id: q.id, start: q.start, warmup: q.warmup };
                row(q.aggregator, &open, Some(q.end.since(q.start).as_ps()), sums)
            })
            .collect();
        self.add_queries(writer, rows)
    }

    fn add_queries(&mut self, writer: &mut Option<RecordWriter>, rows: Vec<QueryRow>) -> Result<(), RecordError> {
        if let Some(w) = writer.as_mut().filter(|_| self.query_rows) {
            w.write(&rows)?;
        }
        self.queries.extend(rows);
        Ok(())
    }

    /// The time is `now`; `open` returns the flows that have not ended.
    pub fn at(&mut self, now: Instant, open: impl Fn() -> Vec<FlowRecord>) {
        if self.mark.is_none() && self.warmup > Instant::ZERO && now >= self.warmup {
            self.mark = Some(Mark::new(now, &open()));
        }
        if let Some(course) = self.course.as_mut().filter(|course| course.is_interval_over(now)) {
            course.take(now, &open());
        }
    }

    /// The end of the run, with unfinished flows, and unfinished queries with the servers that answer them.
    pub fn finish(
        &mut self,
        writer: &mut Option<RecordWriter>,
        now: Instant,
        ended: Vec<QueryRecord>,
        open: &[FlowRecord],
        unfinished: impl Iterator<Item = (HostId, OpenQuery)>,
    ) -> Result<Seen, RecordError> {
        if let Some(course) = &mut self.course {
            course.finish(now, open);
        }
        let streams = Streams::of(open, self.mark.as_ref(), self.course.as_ref(), now);
        self.write_flows(writer, open)?;
        self.write_queries(writer, ended)?;
        let sums = |id: u64| self.sums.get(&id).copied().unwrap_or_default();
        let mut rows: Vec<QueryRow> = unfinished.map(|(host, q)| row(host, &q, None, sums(q.id))).collect();
        rows.sort_unstable_by_key(|q| q.query_id);
        self.add_queries(writer, rows)?;
        let (queries, fct_ps) = (std::mem::take(&mut self.queries), std::mem::take(&mut self.fct_ps));
        Ok(Seen { queries, flows: self.flows, fct_ps, streams })
    }
}

fn row(aggregator: HostId, q: &OpenQuery, completion_ps: Option<u64>, sums: QuerySums) -> QueryRow {
    QueryRow {
        query_id: q.id,
        workload: workload_of(q.id),
        aggregator_host: aggregator,
        start_ps: q.start.as_ps(),
        completion_ps,
        flows: sums.flows,
        timeouts: sums.timeouts,
        retransmissions: sums.retransmissions,
        warmup: q.warmup,
    }
}
