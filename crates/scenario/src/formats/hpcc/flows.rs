//! Flows of HPCC's simulator.

use crate::formats::lines::Words;
use crate::{Error, HOSTS_MAX, Quantity, Result, Warning};
use sluicenet_proto::time::Duration;

/// A flow of HPCC's simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HpccFlow {
    /// The sender, a node's id.
    pub src: u32,
    /// The receiver, a node's id.
    pub dst: u32,
    /// Its priority group, 0 to 7.
    pub priority: u8,
    /// The destination port.
    pub port: u16,
    /// Its bytes.
    pub bytes: u64,
    /// When it starts.
    pub start: Duration,
    /// Where in the file.
    pub line: u32,
}

/// The flows of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HpccFlows {
    /// The flows.
    pub flows: Vec<HpccFlow>,
}

impl HpccFlows {
    /// Refuses flows between nodes that `is_host` does not accept.
    ///
    /// # Errors
    /// The first such flow, with its line.
    pub fn check(&self, file: &str, is_host: impl Fn(u32) -> bool) -> Result<()> {
        for f in &self.flows {
            for node in [f.src, f.dst] {
                if !is_host(node) {
                    let text = format!("{} {} {} {} {} ...", f.src, f.dst, f.priority, f.port, f.bytes);
                    return Err(Error::line(file, f.line, &text, format!("there is no host {node} in this network")));
                }
            }
        }
        Ok(())
    }
}

/// Flows a file may hold.
const FLOWS_MAX: u64 = 1 << 26;

/// Reads flows: their number, then `src dst priority port bytes start_seconds` for each. As HPCC's simulator does, it
/// reads as many as the header says and no more.
///
/// # Errors
/// A file with fewer flows than its header says, a number out of range, a flow from a host to itself.
pub fn parse_hpcc_flows(file: &str, bytes: &[u8]) -> Result<(HpccFlows, Vec<Warning>)> {
    let mut words = Words::new(file, bytes);
    let flows = read(&mut words);
    words.reader.ended(flows)
}

fn read(words: &mut Words<'_>) -> Result<HpccFlows> {
    let (_, _, count) = words.number("the number of flows", FLOWS_MAX)?;
    let id_max = 2 * u64::from(HOSTS_MAX) - 1;
    let mut flows: Vec<HpccFlow> = Vec::new();
    for i in 0..count {
        let (line, _, src) = words.number(&format!("the source of flow {} of {count}", i + 1), id_max)?;
        let (dst_line, dst_word, dst) = words.number("a flow's destination", id_max)?;
        if src == dst {
            return Err(words.reader.at(dst_line, dst_word, format!("a flow from host {src} to itself")));
        }
        let (_, _, priority) = words.number("a flow's priority", 7)?;
        let (_, _, port) = words.number("a flow's port", u64::from(u16::MAX))?;
        let (_, _, bytes) = words.number("a flow's size", crate::BYTES_MAX.0)?;
        let (start_line, word) = words.need("a flow's start")?;
        let start = Duration::parse(&format!("{word} s"))
            .map_err(|e| words.reader.at(start_line, word, e.message).expected("seconds"))?;
        if flows.last().is_some_and(|f| f.start > start) {
            words
                .reader
                .warn(line.number, "flows are not in the order of their starts: HPCC's simulator would fail here");
        }
        flows.push(HpccFlow {
            src: src as u32,
            dst: dst as u32,
            priority: priority as u8,
            port: port as u16,
            bytes,
            start,
            line: line.number,
        });
    }
    if let Some((line, _)) = words.next()? {
        let message =
            format!("the header says {count} flows: from here on the file is not read, as by HPCC's simulator");
        words.reader.warn(line.number, message);
    }
    Ok(HpccFlows { flows })
}
