//! The flows of a file.

use super::{DSCP_MAX, PORTS, PRIORITY, Transport, World};
use crate::error::{Error, Result, Warning};
use crate::files::Files;
use crate::formats::{Connection, ConnectionMatrix, HpccFlows, Start, TriggerKind};
use crate::model::{InputFile, Shape};
use crate::setting::{Kind, Section};
use crate::{choices, settings};
use serde::Serialize;
use std::collections::BTreeSet;

choices! {
    /// The format of a file of flows.
    pub(crate) enum FlowFormat {
        /// Flows of HPCC's simulator.
        Hpcc = "hpcc",
        /// A connection matrix of htsim.
        Htsim = "htsim",
    }
}

/// The flows of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "format", rename_all = "kebab-case")]
pub enum FlowFileContent {
    /// Flows of HPCC's simulator, each with its own priority.
    Hpcc {
        /// The file.
        file: InputFile<HpccFlows>,
    },
    /// A connection matrix of htsim.
    Htsim {
        /// The file.
        file: InputFile<ConnectionMatrix>,
    },
}

settings! {
    /// the flows of a file
    pub model struct FlowFile in kind "flow-file" (s, world: &World<'_>, files: &mut Files) {
        /// hpcc: flows; htsim: a connection matrix
        let format: FlowFormat,
        /// the file, relative to the scenario's folder
        let file: String,
        /// The flows.
        field content: FlowFileContent = content(s, format, &file, world, files)?,
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// the frames' priority; default the file's own, or 0
        priority: Option<u8> [PRIORITY],
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

fn content(
    s: &Section<'_>,
    format: FlowFormat,
    path: &str,
    world: &World<'_>,
    files: &mut Files,
) -> Result<FlowFileContent> {
    let endpoints = world.counts.endpoints();
    if format == FlowFormat::Hpcc {
        let file = s.input("file", files.hpcc_flows(path))?;
        match &world.topology.shape {
            Shape::Hpcc { file: t } => file.content.check(path, |n| t.content.host_of(n).is_some())?,
            _ => file.content.check(path, |n| n < endpoints)?,
        }
        return Ok(FlowFileContent::Hpcc { file });
    }
    let file = s.input("file", files.matrix(path))?;
    let matrix = &file.content;
    files.warnings.extend(matrix.check_nodes(path, endpoints)?);
    matrix.check(path, endpoints)?;
    if let Some(f) = matrix.failures.first() {
        return Err(Error::line(path, f.line, "failure ...", "failed links are not simulated")
            .hint("remove the line: a scenario must not quietly differ from its file"));
    }
    if let Some(c) = matrix.connections.iter().find(|c| c.prio.is_some()) {
        let message = "`prio` is htsim's order of flows at a sender, not a frame's priority: not used".to_string();
        files.warnings.push(Warning { file: path.into(), line: c.line, message });
    }
    Ok(FlowFileContent::Htsim { file })
}

impl FlowFile {
    /// Whether one of its flows ends.
    pub(super) fn is_finite(&self) -> bool {
        match &self.content {
            FlowFileContent::Hpcc { .. } => true,
            FlowFileContent::Htsim { file } => {
                file.content.connections.is_empty() || file.content.connections.iter().any(|c| c.bytes.is_some())
            }
        }
    }

    /// Whether several of its flows are messages on one connection.
    pub fn has_messages(&self) -> bool {
        match &self.content {
            FlowFileContent::Hpcc { .. } => false,
            FlowFileContent::Htsim { file } => file.content.connections.iter().any(|c| c.is_message),
        }
    }

    /// Refuses a host that begins more streams at one time than it has ports for.
    fn check_ports(&self) -> Result<()> {
        if !self.transport.has_streams() {
            return Ok(());
        }
        let (path, mut begun): (&str, Vec<(Start, u32, u32)>) = match &self.content {
            FlowFileContent::Hpcc { file } => {
                (&file.path, file.content.flows.iter().map(|f| (Start::At(f.start), f.src, f.line)).collect())
            }
            FlowFileContent::Htsim { file } => {
                let ConnectionMatrix { connections, triggers, .. } = &*file.content;
                let mut known = BTreeSet::new();
                // Messages share their connection, and a multishot begins one flow at a time.
                let is_new = |c: &&Connection| !c.is_message || known.insert(c.id);
                let at_once = |c: &&Connection| match c.start {
                    Start::At(_) => true,
                    Start::Trigger(t) => triggers.get(t as usize).is_some_and(|t| t.kind != TriggerKind::Multishot),
                };
                let new = connections.iter().filter(at_once).filter(is_new);
                (&file.path, new.map(|c| (c.start, c.src, c.line)).collect())
            }
        };
        begun.sort_unstable();
        let ports = PORTS as usize;
        let beyond = (ports..begun.len()).find(|&i| {
            let ((first, src, _), (last, of, _)) = (begun[i - ports], begun[i]);
            (first, src) == (last, of)
        });
        let Some(&(_, src, line)) = beyond.and_then(|i| begun.get(i)) else { return Ok(()) };
        let message = format!("host {src} begins more than {PORTS} flows at one time, and has as many ports");
        let error =
            Error::line(path, line, "", message).expected(format!("at most {PORTS} flows of a host at one time"));
        Err(error.hint("divide the flows among several files, each of a workload: each has ports of its own"))
    }

    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        let by = |own: u8| self.priority.unwrap_or(own);
        match &self.content {
            FlowFileContent::Hpcc { file } if !matches!(world.topology.shape, Shape::Hpcc { .. }) => {
                for f in &file.content.flows {
                    world.check_reach(s, "file", &[f.src, f.dst], by(f.priority & 7))?;
                }
            }
            // A graph has no hosts outside.
            FlowFileContent::Hpcc { .. } => {}
            FlowFileContent::Htsim { file } => {
                for c in &file.content.connections {
                    world.check_reach(s, "file", &[c.src, c.dst], by(0))?;
                }
            }
        }
        self.check_ports()?;
        let priorities = match (self.priority, &self.content) {
            (Some(p), _) => 1 << p,
            (None, FlowFileContent::Htsim { .. }) => 1,
            (None, FlowFileContent::Hpcc { .. }) => u8::MAX,
        };
        world.check_transport(s, self.transport, priorities)
    }
}
