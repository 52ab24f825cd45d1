//! Opens the ports of a bump, and lays the wire that connects a link's devices when the bump has died.

use super::place;
use crate::bump::config::{Config, WhenDead};
use crate::bump::program;
use crate::config::{PortConfig, PortKind};
use crate::opened::{Opened, PACKET_BUFFERS, may_open, open_all};
use crate::privileges::Rights;
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::{PacketDevice, PacketPort};
use sluicenet_dataplane::kernel::wire::Wire;
use sluicenet_dataplane::port::Port;
use sluicenet_node::vale::ValeConfig;
use sluicenet_proto::time::Instant;
use std::io;

/// A port that is ready for a loop, and where it belongs: loop and end.
pub(super) type Placed = (usize, usize, Opened);

/// Opens all ports; returns them, the capabilities to keep, and what must stay open.
pub(super) fn open(config: &Config) -> io::Result<(Vec<Placed>, CapabilitySet, Vec<Wire>)> {
    // A program runs as another user, who cannot reach this process.
    let mut keep = match &config.program {
        Some(program) if !program.in_process => program::RIGHTS,
        _ => Rights::NONE.run,
    };
    let (mut ready, mut wires) = (Vec::new(), Vec::new());
    let flat: Vec<PortConfig> = config.links.iter().flatten().cloned().collect();
    for port in &flat {
        if let Some(missing) = may_open(&port.kind, None) {
            return Err(io::Error::other(format!("port {}: {missing}", port.name)));
        }
        keep |= port.kind.rights().run;
    }
    let whole: Vec<PortConfig> = flat.iter().filter(|p| config.pipelines == 1 || !is_device(p)).cloned().collect();
    let opened = open_all(&whole, &ValeConfig::default(), None).map_err(io::Error::other)?;
    for (port, attempt) in whole.iter().zip(opened) {
        let opened = attempt.split().0.map_err(|e| io::Error::other(format!("port {}: {e}", port.name)))?;
        let at = flat.iter().position(|other| other.name == port.name).unwrap_or_default();
        ready.push((place(config.pipelines, at / 2, 0), at % 2, opened));
    }
    if config.pipelines > 1 {
        for (at, port) in flat.iter().enumerate() {
            let PortKind::Packet { device, netns } = &port.kind else { continue };
            let namespace = Namespace::named(netns.as_deref())?;
            // The same number for all parts, and another one for each device and process.
            let group = (std::process::id() as u16).wrapping_mul(64).wrapping_add(at as u16);
            for part in 0..config.pipelines {
                let opened = PacketDevice::open_part(&namespace, device, PACKET_BUFFERS, group)?;
                let opened = Opened::Port(Box::new(PacketPort::new(opened)), Vec::new());
                ready.push((place(config.pipelines, at / 2, part), at % 2, opened));
            }
        }
    }
    for (link, [a, b]) in config.links.iter().enumerate() {
        let (PortKind::Packet { device: a, netns }, PortKind::Packet { device: b, .. }) = (&a.kind, &b.kind) else {
            continue;
        };
        let namespace = Namespace::named(netns.as_deref())?;
        match config.when_dead {
            WhenDead::Wire => {
                let mut discard_at = |end: usize| {
                    let parts = ready.iter_mut().filter(|(at, e, _)| at / config.pipelines == link && *e == end);
                    for (.., opened) in parts {
                        if let Opened::Port(port, _) = opened {
                            discard(&mut **port);
                        }
                    }
                };
                wires.push(Wire::lay(&namespace, [a, b], &mut discard_at)?);
            }
            WhenDead::Block => {
                for device in [a, b] {
                    Wire::remove(&namespace, device)?;
                }
            }
        }
    }
    Ok((ready, keep, wires))
}

fn is_device(port: &PortConfig) -> bool {
    matches!(port.kind, PortKind::Packet { .. })
}

/// Discards the frames that a port has received so far.
fn discard(port: &mut dyn Port) {
    loop {
        let mut any = false;
        if port.on_round(Instant::ZERO).is_err() {
            return;
        }
        while let Ok(Some(frame)) = port.next_frame() {
            port.accept();
            port.give_back(frame.buffer);
            any = true;
        }
        if !any {
            return;
        }
    }
}
