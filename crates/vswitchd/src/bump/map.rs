//! The map of a bump: which downstream port a destination's packets leave, and how fast that port's link is.

use super::super::config::checks::{Macs, Word};
use super::super::config::text_of;
use sluicenet_dataplane::bump::number_of;
use sluicenet_proto::netbump::{Map, Port, QueueId};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::setting::{Kind, Section, Settings, Spec};
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::units::{BUFFER, LINK_RATE};
use sluicenet_scenario::{Bytes, Result, settings, tables};
use std::collections::BTreeMap;
use std::path::Path;

/// Downstream ports of a bump, and destinations.
const PORTS_MAX: usize = 4096;
const DESTINATIONS_MAX: usize = 1 << 17;
/// Virtual queues beyond those of the file, for ports that a reload adds.
const SPARE: usize = 64;

settings! {
    /// a port of the next switch
    pub(crate) struct PortKeys in "map" (s) {
        /// its number, which updates to other bumps carry
        port: u16 [0..=u16::MAX] ,
        /// the speed of its link
        rate: Rate [LINK_RATE],
        /// its buffer; default that of [bump]
        buffer: Option<Bytes> [BUFFER],
        /// the addresses of the stations behind it
        macs: Macs,
    }
}

/// A map in a file of its own.
static FILE: Spec = tables! {
    /// A map of a bump.
    ""
    map: Kind::Tables(&[PortKeys::SPEC]),
};

/// A downstream port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Downstream {
    /// Its number in updates; `None` for the ports behind which unlisted destinations are.
    pub number: Option<u16>,
    /// Its name for metrics.
    pub name: String,
    /// Rate and buffer.
    pub port: Port,
}

/// The map of a bump's file.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct MapConfig {
    /// The downstream ports: the virtual queues, in their order.
    pub ports: Vec<Downstream>,
    /// The destinations and the numbers of their queues.
    pub destinations: Vec<(u64, QueueId)>,
}

impl MapConfig {
    /// Reads the tables `map` of a section; `buffer` is the default.
    pub fn read(root: &Section<'_>, buffer: Option<Bytes>) -> Result<MapConfig> {
        let mut map = MapConfig::default();
        let mut owners: BTreeMap<[u8; 6], u16> = BTreeMap::new();
        for s in root.tables("map")? {
            let keys = PortKeys::read(&s)?;
            if map.ports.iter().any(|p| p.number == Some(keys.port)) {
                return Err(s.error("port", format!("port {} stands here twice", keys.port)));
            }
            if keys.macs.0.is_empty() {
                let why = format!("no station is behind port {}: no packet would enter its queue", keys.port);
                return Err(s.error("macs", why).hint("leave the port out, or list its stations"));
            }
            let queue = map.ports.len() as QueueId;
            for mac in keys.macs.0 {
                if let Some(other) = owners.insert(mac, keys.port) {
                    let mac = mac.map(|b| format!("{b:02x}")).join(":");
                    let why = format!("{mac} is behind port {other} and behind port {}", keys.port);
                    return Err(s.error("macs", why).expected("each station behind one port"));
                }
                map.destinations.push((number_of(mac), queue));
            }
            let port = Port { rate: keys.rate, buffer_bytes: keys.buffer.or(buffer).map(Bytes::as_bytes) };
            map.ports.push(Downstream { number: Some(keys.port), name: keys.port.to_string(), port });
            if map.ports.len() > PORTS_MAX || map.destinations.len() > DESTINATIONS_MAX {
                return Err(
                    s.error_here(format!("a map has at most {PORTS_MAX} ports and {DESTINATIONS_MAX} stations"))
                );
            }
        }
        Ok(map)
    }

    /// Reads the map in a file of its own, named in the file at `path`.
    pub fn load(s: &Section<'_>, file: &Word, path: &Path, buffer: Option<Bytes>) -> Result<MapConfig> {
        let file = path.parent().unwrap_or(Path::new("")).join(&file.0);
        let text = s.input("map_file", text_of(&file))?;
        let doc = Document::parse(&file.display().to_string(), &text)?;
        MapConfig::read(&Section::root(&doc, &FILE)?, buffer)
    }

    /// Virtual queues: those of the ports, spare ones, and one for each end of a link where unlisted destinations have one.
    pub fn capacity(&self) -> usize {
        self.ports.len() + SPARE
    }

    /// The map of frames that leave by an end; `others` is the queue of unlisted destinations there.
    pub fn map(&self, others: Option<QueueId>) -> Map {
        Map::new(&self.destinations, others)
    }
}
