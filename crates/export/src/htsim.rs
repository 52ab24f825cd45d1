//! The log of flows of htsim, as `htsim_ndp` prints it and the scripts beside it read it.
//!
//! A line `startflow NAME CWND - rts - at US` when a flow starts, and `Flow NAME flow_id ID finished at US total bytes N`
//! when it has finished. `NAME` is `ndp_SRC_DST`: scripts find the hosts by it, whatever the transport. Records have
//! neither a window nor a request to send, so a dash takes their places.

use super::error::ExportError;
use super::given::Given;
use super::output::Output;
use super::run::{FLOWS, Meter, Run};
use sluicenet_records::FlowRow;
use std::path::{Path, PathBuf};

/// Name of the file.
pub const FILE: &str = "htsim-flows.txt";

/// A flow, with its number in the log.
struct Flow {
    id: u64,
    number: u64,
    hosts: (u32, u32),
    /// Its size, if it has an end.
    bytes: Option<u64>,
    start_ps: u64,
    /// When it finished.
    end_ps: Option<u64>,
}

/// Writes the log. Flows have the given ids, or count from 1 in the order of their starts. `tell` hears how much of the
/// records is read, from 0 to 1. Returns the file and its lines.
///
/// # Errors
/// Records without flows, damaged ones, flows that are not given, and a file that cannot be written.
pub fn write(
    run: &Run,
    path: &Path,
    ids: Option<Given>,
    tell: &mut dyn FnMut(f64),
) -> Result<(PathBuf, u64), ExportError> {
    if run.rows_of::<FlowRow>() == 0 {
        return Err(run.lacks(vec![FLOWS], ""));
    }
    let mut out = Output::create(path)?;
    let mut flows = Vec::new();
    run.each(&mut Meter::new(run.rows_of::<FlowRow>(), tell), |row: FlowRow| {
        let end_ps = row.fct_ps.map(|fct| row.start_ps.saturating_add(fct));
        let hosts = (row.src_host, row.dst_host);
        flows.push(Flow { id: row.flow_id, number: 0, hosts, bytes: row.bytes, start_ps: row.start_ps, end_ps });
        Ok(())
    })?;
    flows.sort_unstable_by_key(|flow| (flow.start_ps, flow.id));
    number(&mut flows, ids)?;
    let starts = flows.iter().map(|flow| (flow.start_ps, false, flow));
    let ends = flows.iter().filter_map(|flow| Some((flow.end_ps?, true, flow)));
    let mut events: Vec<(u64, bool, &Flow)> = starts.chain(ends).collect();
    events.sort_unstable_by_key(|&(time_ps, is_end, flow)| (time_ps, is_end, flow.number));
    for &(time_ps, is_end, flow) in &events {
        let (name, time) = (format!("ndp_{}_{}", flow.hosts.0, flow.hosts.1), us(time_ps));
        match flow.bytes.filter(|_| is_end) {
            Some(bytes) => {
                writeln!(out, "Flow {name} flow_id {} finished at {time} total bytes {bytes}", flow.number)?;
            }
            None => writeln!(out, "startflow {name} CWND - rts - at {time}")?,
        }
    }
    Ok((out.finish()?, events.len() as u64))
}

/// Gives flows their numbers in the log.
fn number(flows: &mut [Flow], ids: Option<Given>) -> Result<(), ExportError> {
    let Some(mut ids) = ids else {
        // htsim has no flow 0.
        flows.iter_mut().zip(1..).for_each(|(flow, number)| flow.number = number);
        return Ok(());
    };
    for flow in flows {
        flow.number = ids.take(flow.hosts, flow.bytes)?;
    }
    Ok(())
}

/// A time in microseconds, to the picosecond.
fn us(time_ps: u64) -> String {
    format!("{}.{:06}", time_ps / 1_000_000, time_ps % 1_000_000)
}
