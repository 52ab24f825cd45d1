//! Captures of the ports a scenario names, as a pcapng file beside the tables.

use super::RunError;
use crate::build::{Plan, framing};
use crate::records::{CAPTURE, RecordError};
use crate::scenario::Scenario;
use crate::workload::HostApps;
use sluicenet_node::door::PortId;
use sluicenet_node::packet::Framing;
use sluicenet_sim::pcapng::{Direction, Interface, InterfaceId, LinkType, Packet, PcapngWriter, frame};
use sluicenet_sim::world::NodeId;
use sluicenet_sim::{Captured, Engine};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// A capture under way, or none.
pub struct Capture {
    open: Option<Open>,
}

struct Open {
    path: PathBuf,
    writer: PcapngWriter<BufWriter<File>>,
    framing: Framing,
    /// Which interface, and which way, a frame that leaves this port belongs to.
    seen_at: BTreeMap<(NodeId, PortId), Vec<(InterfaceId, Direction)>>,
}

impl Capture {
    /// Starts capturing what the scenario names; nothing without a directory to write to.
    pub fn start(
        s: &Scenario,
        plan: &Plan,
        engine: &mut Engine<HostApps>,
        dir: Option<&Path>,
    ) -> Result<Capture, RunError> {
        let Some(dir) = dir.filter(|_| !s.record.pcapng.is_empty()) else { return Ok(Capture { open: None }) };
        let path = dir.join(CAPTURE);
        let file = File::create(&path).map_err(RecordError::io(&path, "create"))?;
        let framing = framing(s);
        let link = if framing == Framing::PPP { LinkType::Ppp } else { LinkType::Ethernet };
        let mut writer = PcapngWriter::new(BufWriter::new(file)).map_err(RecordError::io(&path, "write"))?;
        let mut seen_at: BTreeMap<(NodeId, PortId), Vec<(InterfaceId, Direction)>> = BTreeMap::new();
        let ports = plan.selected(s, "pcapng", &s.record.pcapng).map_err(RunError::Build)?;
        for (node, port) in ports {
            let name = format!("{} port {port}", plan.name(node));
            let interface = Interface { name: &name, link, speed_bps: plan.rate(node, port).as_bps() };
            let id = writer.interface(&interface).map_err(RecordError::io(&path, "write"))?;
            // A port hears what its link's other end sends: both ends are tapped.
            seen_at.entry((node, port)).or_default().push((id, Direction::Outbound));
            seen_at.entry(plan.peer(node, port)).or_default().push((id, Direction::Inbound));
        }
        for &(node, port) in seen_at.keys() {
            engine.capture(node, port);
        }
        Ok(Capture { open: Some(Open { path, writer, framing, seen_at }) })
    }

    /// Writes frames in the order given.
    pub fn write(&mut self, frames: &[Captured]) -> Result<(), RecordError> {
        let Some(o) = &mut self.open else { return Ok(()) };
        for c in frames {
            let bytes = frame::bytes(&c.packet, o.framing, c.node);
            for &(interface, direction) in o.seen_at.get(&(c.node, c.port)).into_iter().flatten() {
                let original_len = bytes.len() as u32;
                let packet = Packet { interface, time_ps: c.at, direction, bytes: &bytes, original_len, comment: None };
                o.writer.packet(&packet).map_err(RecordError::io(&o.path, "write"))?;
            }
        }
        Ok(())
    }

    /// Hands what was written so far to the operating system.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        match &mut self.open {
            Some(o) => o.writer.flush().map_err(RecordError::io(&o.path, "write")),
            None => Ok(()),
        }
    }
}
