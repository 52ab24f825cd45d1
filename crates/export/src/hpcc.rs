//! The files of HPCC's simulator: completion times of flows (`fct`), pauses (`pfc`) and lengths of queues (`qlen`).
//!
//! The lines are those of its `scratch/third.cc` (`qp_finish`, `get_pfc`, `monitor_buffer`). Times are whole
//! nanoseconds: points in time are rounded down, durations up, so that none becomes zero. Hosts have the numbers from 0,
//! and switches those behind the last host.

use super::error::{ExportError, Missing};
use super::given::Given;
use super::output::Output;
use super::run::{FLOWS, Meter, Numbers, PAUSES, PORTS, QUEUES, Run, links};
use sluicenet_records::{FlowRow, PauseRow, QueueRow};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Address of node 0 (`node_id_to_ip`): node n has n in the two octets in the middle.
const FIRST_ADDRESS: u32 = 0x0b00_0001;
/// Nodes that have an address.
const NODES_MAX: u32 = 1 << 16;
/// VMs of a node that have an address: the last octet is 1 and the number of the VM.
const VM_MAX: u8 = 254;
/// Source port of the first flow between two hosts; each further flow has the next one.
const FIRST_PORT: u16 = 10_000;
/// Destination ports by which `fct_analysis.py` tells an incast from other flows.
const PORT: u64 = 100;
const INCAST_PORT: u64 = 200;
/// Interval in which `monitor_buffer` writes what it has counted so far: 100 ms.
const DUMP_PS: u64 = 100_000_000_000;
/// Bytes of a bin of the lengths of queues.
const BIN_BYTES: u64 = 1_000;

/// Writes files to a folder: all of them, or none. Flows have the given destination ports, or those that tell an incast from
/// others. `tell` hears how much of a file is done, from 0 to 1, file after file. Returns the files with their lines.
///
/// # Errors
/// Records that lack what a file needs, numbers that the format has no room for, damaged records, flows that are not
/// given, and a folder that takes no file.
pub fn write(
    run: &Run,
    files: &[File],
    folder: &Path,
    mut ports: Option<Given>,
    tell: &mut dyn FnMut(f64),
) -> Result<Vec<(PathBuf, u64)>, ExportError> {
    check(run, files)?;
    let create = |file: &File| Output::create(&folder.join(file.name()));
    let mut outputs: Vec<Output> = files.iter().map(create).collect::<Result<_, _>>()?;
    let mut lines = Vec::new();
    for (file, out) in files.iter().zip(&mut outputs) {
        lines.push(file.write(run, out, ports.take(), tell)?);
        out.flush()?;
    }
    outputs.into_iter().zip(lines).map(|(out, lines)| Ok((out.finish()?, lines))).collect()
}

/// Fails if the records lack what a file needs.
fn check(run: &Run, files: &[File]) -> Result<(), ExportError> {
    let mut missing: Vec<Missing> = files.iter().filter_map(|file| file.lacks(run)).collect();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let possible: Vec<&str> = files.iter().filter(|file| file.lacks(run).is_none()).map(|file| file.short()).collect();
    let otherwise = match possible.is_empty() {
        true => String::new(),
        false => format!(", or export what is there: --only {}", possible.join(",")),
    };
    if missing.contains(&PORTS) && !run.is_complete() {
        let why = "the run was killed before it wrote its ports, which tell the numbers of switches";
        return Err(run.unfit(format!("{why}: run it again{otherwise}")));
    }
    Err(run.lacks(missing, otherwise))
}

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Completion times of flows.
    Fct,
    /// Pauses and resumptions.
    Pfc,
    /// Lengths of queues.
    Qlen,
}

impl File {
    /// All files.
    pub const ALL: [File; 3] = [File::Fct, File::Pfc, File::Qlen];

    /// Name of the file.
    pub fn name(self) -> &'static str {
        match self {
            File::Fct => "hpcc-fct.txt",
            File::Pfc => "hpcc-pfc.txt",
            File::Qlen => "hpcc-qlen.txt",
        }
    }

    /// The file's name for `--only`.
    pub fn short(self) -> &'static str {
        match self {
            File::Fct => "fct",
            File::Pfc => "pfc",
            File::Qlen => "qlen",
        }
    }

    /// What the file needs and the records lack. The numbers of boxes are those of ports.
    fn lacks(self, run: &Run) -> Option<Missing> {
        match self {
            File::Fct => (run.rows_of::<FlowRow>() == 0).then_some(FLOWS),
            File::Pfc if run.lacks_pauses() => Some(PAUSES),
            File::Qlen if run.rows_of::<QueueRow>() == 0 => Some(QUEUES),
            File::Pfc | File::Qlen => run.ports().is_empty().then_some(PORTS),
        }
    }

    /// Writes the file, and returns its lines.
    fn write(
        self,
        run: &Run,
        out: &mut Output,
        ports: Option<Given>,
        tell: &mut dyn FnMut(f64),
    ) -> Result<u64, ExportError> {
        match self {
            File::Fct => fct(run, out, ports, tell),
            File::Pfc => pfc(run, out, tell),
            File::Qlen => qlen(run, out, tell),
        }
    }
}

/// A flow of a known size.
struct Flow {
    id: u64,
    hosts: (u32, u32),
    /// Addresses of its ends.
    ends: (u32, u32),
    ports: (u16, u64),
    bytes: u64,
    start_ps: u64,
    /// Its completion time and that in an empty network, if it finished.
    times_ps: Option<(u64, u64)>,
}

impl Flow {
    fn of(run: &Run, row: &FlowRow) -> Result<Option<Flow>, ExportError> {
        let Some(bytes) = row.bytes else { return Ok(None) };
        let ends = (address(run, row.src_host, row.src_vm)?, address(run, row.dst_host, row.dst_vm)?);
        let to = if row.kind == "incast" { INCAST_PORT } else { PORT };
        let (id, start_ps, times_ps) = (row.flow_id, row.start_ps, row.fct_ps.zip(row.ideal_ps));
        let hosts = (row.src_host, row.dst_host);
        Ok(Some(Flow { id, hosts, ends, ports: (0, to), bytes, start_ps, times_ps }))
    }
}

/// The address of a host, or of a VM on it.
fn address(run: &Run, host: u32, vm: u8) -> Result<u32, ExportError> {
    if host >= NODES_MAX {
        return Err(run.unfit(format!("host {host}: HPCC's addresses have room for {NODES_MAX} hosts, from 0")));
    }
    if vm > VM_MAX {
        return Err(run.unfit(format!("vm {vm} of host {host}: its address has room for VMs up to {VM_MAX}")));
    }
    Ok(FIRST_ADDRESS + (host << 8) + u32::from(vm))
}

/// `sip dip sport dport size start fct standalone_fct`, in the order in which the flows finished.
fn fct(run: &Run, out: &mut Output, mut to: Option<Given>, tell: &mut dyn FnMut(f64)) -> Result<u64, ExportError> {
    let mut flows = Vec::new();
    run.each(&mut Meter::new(run.rows_of::<FlowRow>(), tell), |row: FlowRow| {
        flows.extend(Flow::of(run, &row)?);
        Ok(())
    })?;
    flows.sort_unstable_by_key(|flow| (flow.start_ps, flow.id));
    let mut next: BTreeMap<(u32, u32), u16> = BTreeMap::new();
    for flow in &mut flows {
        let port = next.entry(flow.ends).or_insert(FIRST_PORT);
        flow.ports.0 = *port;
        // Of 16 bits, there as here.
        *port = port.wrapping_add(1);
        if let Some(to) = &mut to {
            flow.ports.1 = to.take(flow.hosts, Some(flow.bytes))?;
        }
    }
    let end = |flow: &Flow| flow.start_ps.saturating_add(flow.times_ps.map_or(0, |times| times.0));
    flows.retain(|flow| flow.times_ps.is_some());
    flows.sort_unstable_by_key(|flow| (end(flow), flow.id));
    for Flow { ends, ports, bytes, start_ps, times_ps, .. } in &flows {
        let (fct, ideal) = times_ps.unwrap_or_default();
        let (start, fct, ideal) = (start_ps / 1_000, fct.div_ceil(1_000), ideal.div_ceil(1_000));
        writeln!(out, "{:08x} {:08x} {} {} {bytes} {start} {fct} {ideal}", ends.0, ends.1, ports.0, ports.1)?;
    }
    Ok(flows.len() as u64)
}

/// `time node type interface pause`, of the port that is paused (1) or resumed (0).
fn pfc(run: &Run, out: &mut Output, tell: &mut dyn FnMut(f64)) -> Result<u64, ExportError> {
    let numbers = Numbers::new(run)?;
    let links = links(run, &numbers)?;
    let mut events = Vec::new();
    run.each(&mut Meter::new(run.rows_of::<PauseRow>(), tell), |row: PauseRow| {
        let from = (numbers.of(run, &row.node)?, row.port);
        let no_link = || run.unfit(format!("pause {}: no link at port {} of {}", row.pause_id, row.port, row.node));
        let paused = *links.get(&from).ok_or_else(no_link)?;
        events.push((row.start_ps, row.pause_id, false, paused));
        events.extend(
            row.duration_ps.map(|duration| (row.start_ps.saturating_add(duration), row.pause_id, true, paused)),
        );
        Ok(())
    })?;
    // A port that is resumed and paused at once is resumed first: the later pause has the larger number.
    events.sort_unstable();
    for &(time_ps, _, is_over, (node, port)) in &events {
        let (kind, pause) = (u8::from(numbers.is_switch(node)), u8::from(!is_over));
        // ns-3 numbers interfaces from 0 and gives 0 to the loopback.
        writeln!(out, "{} {node} {kind} {} {pause}", time_ps / 1_000, u32::from(port) + 1)?;
    }
    Ok(events.len() as u64)
}

/// How often the queue of each port of a switch was so many KB long, since the first sample.
#[derive(Default)]
struct Lengths(BTreeMap<(u32, u32), Vec<u32>>);

impl Lengths {
    fn add(&mut self, port: (u32, u32), bytes: u64) {
        let (counts, bin) = (self.0.entry(port).or_default(), (bytes / BIN_BYTES) as usize);
        if counts.len() <= bin {
            counts.resize(bin + 1, 0);
        }
        counts[bin] += 1;
    }

    /// `time: T`, and a line `node interface count count ...` for each port.
    fn write(&self, time_ps: u64, out: &mut Output) -> Result<u64, ExportError> {
        writeln!(out, "time: {}", time_ps / 1_000)?;
        for ((node, interface), counts) in &self.0 {
            write!(out, "{node} {interface}")?;
            for count in counts {
                write!(out, " {count}")?;
            }
            writeln!(out)?;
        }
        Ok(1 + self.0.len() as u64)
    }
}

/// The lengths of queues so far, every 100 ms, and at the last sample.
fn qlen(run: &Run, out: &mut Output, tell: &mut dyn FnMut(f64)) -> Result<u64, ExportError> {
    let numbers = Numbers::new(run)?;
    let (mut lengths, mut now, mut lines) = (Lengths::default(), None, 0);
    run.each(&mut Meter::new(run.rows_of::<QueueRow>(), tell), |row: QueueRow| {
        let before = now.replace(row.time_ps).filter(|&before| before != row.time_ps && before % DUMP_PS == 0);
        if let Some(before) = before {
            lines += lengths.write(before, out)?;
        }
        let node = numbers.of(run, &row.node)?;
        if numbers.is_switch(node) {
            lengths.add((node, u32::from(row.port) + 1), row.bytes);
        }
        Ok(())
    })?;
    if let Some(last) = now {
        lines += lengths.write(last, out)?;
    }
    Ok(lines)
}
