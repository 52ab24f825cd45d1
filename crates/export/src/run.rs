//! A run to export: its folder, checked, with its boxes and links.

use super::error::{ExportError, Missing};
use sluicenet_records::tables::Row;
use sluicenet_records::{Manifest, PauseRow, PortRow, Status, read, rows};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Rows between two reports of progress.
const STRIDE: u64 = 1 << 16;

/// The records of a run that may be exported.
#[derive(Debug)]
pub struct Run {
    dir: PathBuf,
    manifest: Manifest,
    ports: Vec<PortRow>,
}

impl Run {
    /// Opens the result in a folder. With `partial`, the records of a run that did not end are good enough.
    ///
    /// # Errors
    /// A folder that holds no run, records of another version, damaged ones, and an incomplete run without `partial`.
    pub fn open(dir: &Path, partial: bool) -> Result<Run, ExportError> {
        if !Manifest::is_in(dir) {
            let runs = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
            return Err(ExportError::NoRun { dir: dir.into(), run: runs.filter(|run| Manifest::is_in(run)).min() });
        }
        let manifest = Manifest::read(dir)?;
        if manifest.status != Status::Complete && !partial {
            return Err(ExportError::Incomplete { path: dir.join("manifest.json"), status: manifest.status });
        }
        let ports = read(dir)?;
        Ok(Run { dir: dir.into(), manifest, ports })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the run came to its end.
    pub fn is_complete(&self) -> bool {
        self.manifest.status == Status::Complete
    }

    /// The ports of all boxes, as recorded; empty without `record.ports`.
    pub(crate) fn ports(&self) -> &[PortRow] {
        &self.ports
    }

    /// Rows of a table.
    pub(crate) fn rows_of<R: Row>(&self) -> u64 {
        let of_table = self.manifest.parts.iter().filter(|part| part.table == R::TABLE.name);
        of_table.map(|part| part.rows).sum()
    }

    /// Whether pauses happened that no row tells of.
    pub(crate) fn lacks_pauses(&self) -> bool {
        self.rows_of::<PauseRow>() == 0 && self.ports.iter().any(|port| port.xoff_sent > 0)
    }

    /// Shows every row of a table to `see`.
    pub(crate) fn each<R: Row>(
        &self,
        meter: &mut Meter<'_>,
        mut see: impl FnMut(R) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        for row in rows::<R>(&self.dir)? {
            meter.step();
            see(row?)?;
        }
        Ok(())
    }

    /// An error of something in the records that a format has no room for.
    pub(crate) fn unfit(&self, detail: String) -> ExportError {
        ExportError::Unfit { dir: self.dir.clone(), detail }
    }

    /// An error of records that lack something, and what helps besides recording it.
    pub(crate) fn lacks(&self, missing: Vec<Missing>, otherwise: impl Into<String>) -> ExportError {
        ExportError::Lacks { dir: self.dir.clone(), missing, otherwise: otherwise.into() }
    }
}

/// What records lack, with the settings that record it. The interval of queues is one that suits most runs.
pub(crate) const FLOWS: Missing = ("flows", "record.flows = true");
pub(crate) const PORTS: Missing = ("ports", "record.ports = true");
pub(crate) const PAUSES: Missing = ("pauses", "record.pauses = true");
pub(crate) const QUEUES: Missing = ("lengths of queues", "record.queues = \"10 us\"");

/// How much of the rows to read has been read.
pub(crate) struct Meter<'a> {
    rows: u64,
    done: u64,
    tell: &'a mut dyn FnMut(f64),
}

impl<'a> Meter<'a> {
    /// Reports to `tell`, from 0 to 1, while so many rows are read.
    pub fn new(rows: u64, tell: &'a mut dyn FnMut(f64)) -> Meter<'a> {
        Meter { rows: rows.max(1), done: 0, tell }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.done % STRIDE == 0 {
            (self.tell)(self.done as f64 / self.rows as f64);
        }
    }
}

/// The numbers of boxes where hosts and switches share one sequence: hosts first, then switches.
pub(crate) struct Numbers {
    hosts: u32,
}

impl Numbers {
    /// The numbers of a run's boxes.
    ///
    /// # Errors
    /// Records without ports: the first switch has the number of hosts, and nothing else tells it.
    pub fn new(run: &Run) -> Result<Numbers, ExportError> {
        let hosts = run.ports().iter().filter_map(|port| host(&port.node)).max();
        match hosts {
            Some(last) => Ok(Numbers { hosts: last + 1 }),
            None => Err(run.lacks(vec![PORTS], "")),
        }
    }

    /// The number of the box with this name.
    pub fn of(&self, run: &Run, name: &str) -> Result<u32, ExportError> {
        let switch = || name.strip_prefix("switch ")?.parse::<u32>().ok()?.checked_add(self.hosts);
        let other = || match name.starts_with("bump ") {
            true => format!(
                "`{name}`: HPCC's files number hosts and switches, and have no bumps in links; leave [[bump]] out of the \
                 scenario, or export the others: --only fct,qlen"
            ),
            false => format!("`{name}` is neither a host nor a switch"),
        };
        host(name).or_else(switch).ok_or_else(|| run.unfit(other()))
    }

    /// Whether a number is a switch's.
    pub fn is_switch(&self, number: u32) -> bool {
        number >= self.hosts
    }
}

/// The number of the host with this name.
fn host(name: &str) -> Option<u32> {
    name.strip_prefix("host ")?.parse().ok()
}

/// A port: number of its box, number of the port there.
pub(crate) type PortOf = (u32, u16);

/// The other end of each port. Of several links between two boxes the first port of one belongs to the first of the
/// other, as topologies number them.
pub(crate) fn links(run: &Run, numbers: &Numbers) -> Result<BTreeMap<PortOf, PortOf>, ExportError> {
    let mut between: BTreeMap<(u32, u32), Vec<u16>> = BTreeMap::new();
    for port in run.ports() {
        let ends = (numbers.of(run, &port.node)?, numbers.of(run, &port.peer)?);
        between.entry(ends).or_default().push(port.port);
    }
    between.values_mut().for_each(|ports| ports.sort_unstable());
    let mut links = BTreeMap::new();
    for (&(a, b), ports) in &between {
        let there = between.get(&(b, a)).filter(|there| there.len() == ports.len());
        let there = there.ok_or_else(|| run.unfit(format!("the links between boxes {a} and {b} have one end only")))?;
        links.extend(ports.iter().zip(there).map(|(&port, &peer)| ((a, port), (b, peer))));
    }
    Ok(links)
}
