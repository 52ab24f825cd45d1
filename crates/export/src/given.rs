//! The numbers that an input file of another simulator gives its flows. A run of that file does not record them.

use super::error::ExportError;
use sluicenet_scenario::Error;
use sluicenet_scenario::formats::{FILE_BYTES_MAX, Start, parse_connection_matrix, parse_hpcc_flows, read_bounded};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

/// The flows of a file, by the hosts at their ends. A run's flow is the first of its hosts' that has its size and is not
/// taken.
#[derive(Debug)]
pub struct Given {
    file: String,
    flows: BTreeMap<(u32, u32), VecDeque<Flow>>,
}

#[derive(Debug)]
struct Flow {
    bytes: Option<u64>,
    number: u64,
}

impl Given {
    /// The destination ports of a flow file of HPCC's simulator.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of HPCC's; with its line.
    pub fn ports(path: &Path) -> Result<Given, ExportError> {
        let file = path.display().to_string();
        let (mut read, _) = parse_hpcc_flows(&file, &read_bounded(path, &file, FILE_BYTES_MAX)?)?;
        read.flows.sort_by_key(|flow| flow.start);
        let flows = read.flows.iter().map(|f| ((f.src, f.dst), Flow { bytes: Some(f.bytes), number: f.port.into() }));
        Ok(Given::new(file, flows))
    }

    /// The ids of a connection matrix of htsim. A connection without one has the next that is free.
    ///
    /// # Errors
    /// A file that cannot be read, or is no connection matrix; with its line.
    pub fn ids(path: &Path) -> Result<Given, ExportError> {
        let file = path.display().to_string();
        let (mut read, _) = parse_connection_matrix(&file, &read_bounded(path, &file, FILE_BYTES_MAX)?)?;
        let mut free = read.connections.iter().map(|c| u64::from(c.id)).max().unwrap_or(0) + 1..;
        let flow = |c: &sluicenet_scenario::formats::Connection| {
            let id = if c.id == 0 { free.next().unwrap_or_default() } else { c.id.into() };
            ((c.src, c.dst), Flow { bytes: c.bytes, number: id })
        };
        // Those that a trigger starts come in the order of the file.
        read.connections.sort_by_key(|c| match c.start {
            Start::At(time) => Some(time),
            Start::Trigger(_) => None,
        });
        let flows: Vec<_> = read.connections.iter().map(flow).collect();
        Ok(Given::new(file, flows.into_iter()))
    }

    fn new(file: String, given: impl Iterator<Item = ((u32, u32), Flow)>) -> Given {
        let mut flows: BTreeMap<_, VecDeque<Flow>> = BTreeMap::new();
        for (hosts, flow) in given {
            flows.entry(hosts).or_default().push_back(flow);
        }
        Given { file, flows }
    }

    /// The number of the next flow of these hosts with this size.
    pub(crate) fn take(&mut self, hosts: (u32, u32), bytes: Option<u64>) -> Result<u64, ExportError> {
        let flows = self.flows.get_mut(&hosts);
        let found = flows.and_then(|flows| {
            let place = flows.iter().position(|flow| flow.bytes == bytes)?;
            flows.remove(place)
        });
        found.map(|flow| flow.number).ok_or_else(|| {
            let size = bytes.map_or("no end".into(), |bytes| format!("{bytes} B"));
            let message = format!("the run has a flow of {size} from host {} to {} that is not here", hosts.0, hosts.1);
            Error::file(&self.file, message).hint("give the file that the run's flows are from").into()
        })
    }
}
