//! Captures of the ports a scenario names, as a pcapng file beside the tables.

use super::RunError;
use crate::build::{Plan, framing};
use crate::workload::HostApps;
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::{self, Framing};
use sluicenet_proto::frame::Frame;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_records::{CAPTURE, RecordError};
use sluicenet_scenario::Scenario;
use sluicenet_sim::pcapng::{Direction, Interface, InterfaceId, LinkType, Packet, PcapngWriter, frame};
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
    /// Where a frame that leaves this port is seen.
    seen_at: BTreeMap<(NodeId, PortId), Tap>,
    /// Frames in the order they are seen, as far as they could still be overtaken.
    waiting: Vec<Seen>,
}

/// Which interfaces, and which way, the frames of a port belong to.
struct Tap {
    interfaces: Vec<(InterfaceId, Direction)>,
    /// Rate of the port's link.
    rate: Rate,
    delay: Duration,
}

/// A frame at one of the ports captured.
struct Seen {
    /// When its first bit left there, or its last one arrived.
    at: Instant,
    interface: InterfaceId,
    direction: Direction,
    node: NodeId,
    packet: packet::Packet,
}

impl Capture {
    /// Starts the captures that the scenario names; none without a directory to write to.
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
        let mut seen_at: BTreeMap<(NodeId, PortId), Tap> = BTreeMap::new();
        let ports = plan.selected(s, "pcapng", &s.record.pcapng).map_err(RunError::Build)?;
        for (node, port) in ports {
            let name = format!("{} port {port}", plan.name(node));
            let interface = Interface::simulated(&name, link, plan.rate(node, port).as_bps());
            let id = writer.interface(&interface).map_err(RecordError::io(&path, "write"))?;
            // A port hears frames from the other end of its link: both ends are tapped.
            let (link, far) = (plan.link(node, port), engine.peer(node, port));
            // Inbound frames come from the far end, or from a bump in the middle of the cable.
            let half = Duration(link.delay.0 / 2);
            let cable = if engine.node(far.0).as_bump().is_some() { link.delay - half } else { link.delay };
            for (at, direction, delay) in
                [((node, port), Direction::Outbound, link.delay), (far, Direction::Inbound, cable)]
            {
                let tap = Tap { interfaces: Vec::new(), rate: link.rate, delay };
                seen_at.entry(at).or_insert(tap).interfaces.push((id, direction));
            }
        }
        for &(node, port) in seen_at.keys() {
            engine.capture(node, port);
        }
        Ok(Capture { open: Some(Open { path, writer, framing, seen_at, waiting: Vec::new() }) })
    }

    /// Takes in the frames of an epoch that ended at `now`, and writes frames that nothing can overtake.
    pub fn write(&mut self, frames: Vec<Captured>, now: Instant) -> Result<(), RecordError> {
        let Some(o) = &mut self.open else { return Ok(()) };
        for Captured { at, node, port, packet } in frames {
            let Some(tap) = o.seen_at.get(&(node, port)) else { continue };
            let on_the_wire = packet.len() as u64 + o.framing.preamble as u64;
            let arrival = Instant(at) + tap.rate.time_for(on_the_wire) + tap.delay;
            for &(interface, direction) in &tap.interfaces {
                let at = if direction == Direction::Inbound { arrival } else { Instant(at) };
                o.waiting.push(Seen { at, interface, direction, node, packet });
            }
        }
        o.write_until(|seen| seen.at < now)
    }

    /// Writes frames seen up to `now`, the end of the run. Frames that had not arrived are left out.
    pub fn finish(&mut self, now: Instant) -> Result<(), RecordError> {
        let Some(o) = &mut self.open else { return Ok(()) };
        o.write_until(|seen| seen.at <= now || seen.direction == Direction::Outbound)?;
        self.flush()
    }

    /// Hands the frames written so far to the operating system.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        match &mut self.open {
            Some(o) => o.writer.flush().map_err(RecordError::io(&o.path, "write")),
            None => Ok(()),
        }
    }
}

impl Open {
    /// Writes those of the waiting frames that `is_selected` selects, by time.
    fn write_until(&mut self, is_selected: impl Fn(&Seen) -> bool) -> Result<(), RecordError> {
        // Frames of one time stay in the order in which they were sent.
        self.waiting.sort_by_key(|seen| seen.at);
        for seen in self.waiting.extract_if(.., |seen| is_selected(seen)) {
            let Seen { at, interface, direction, node, packet } = seen;
            let bytes = frame::bytes(&packet, self.framing, node);
            let original_len = bytes.len() as u32;
            let packet =
                Packet { interface, time_ps: at.as_ps(), direction, bytes: &bytes, original_len, comment: None };
            self.writer.packet(&packet).map_err(RecordError::io(&self.path, "write"))?;
        }
        Ok(())
    }
}
