//! The overlay's controller as a program: its file names the servers that may ask it, and its address.

use super::config::{ipv4, key_of, text_of};
use sluicenet_dataplane::controller::Daemon;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_proto::overlay::controller::ControllerConfig;
use sluicenet_proto::overlay::seal::Key;
use sluicenet_scenario::Result;
use sluicenet_scenario::keys::Kind::*;
use sluicenet_scenario::keys::{Spec, k};
use sluicenet_scenario::section::Section;
use sluicenet_scenario::tree::Document;
use sluicenet_wire::controller::UDP_PORT;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

static ROOT: Spec = Spec {
    name: "",
    doc: "The controller of an overlay.",
    keys: &[k("controller", Table(&CONTROLLER), CONTROLLER.doc), k("server", Tables(&[&SERVER]), SERVER.doc)],
};

static CONTROLLER: Spec = Spec {
    name: "controller",
    doc: "where it is",
    keys: &[
        k("listen", Text, "its address and port"),
        k("netns", Text, "its namespace, by name or path; default the one in which it was started"),
        k("servers_port", Count(1, 65_535), "the port at which servers receive its messages; default 49789"),
        k("stations", Count(1, 1 << 24), "stations that it keeps in all; default 1048576"),
    ],
};

static SERVER: Spec = Spec {
    name: "server",
    doc: "a server that may ask and register",
    keys: &[
        k("address", Text, "its IPv4 address"),
        k("key", Text, "the file of the key shared with it: 64 hexadecimal digits"),
    ],
};

/// The configuration of a controller.
#[derive(Clone, Debug)]
pub struct ControllerFile {
    listen: SocketAddrV4,
    netns: Option<String>,
    servers_port: u16,
    stations: usize,
    servers: Vec<(Ipv4Addr, [u8; 32])>,
}

impl ControllerFile {
    /// Reads a file.
    ///
    /// # Errors
    /// The first error, with its location.
    pub fn load(path: &Path) -> Result<ControllerFile> {
        let doc = Document::parse(&path.display().to_string(), &text_of(path)?)?;
        let root = Section::new(&doc, &ROOT, &doc.root, None)?;
        let section = root.section("controller", &CONTROLLER)?;
        let listen =
            section.text("listen")?.ok_or_else(|| section.missing("listen"))?.parse().map_err(|_| {
                section.error("listen", "this is no address with a port").expected("as 172.16.0.1:49789")
            })?;
        let mut servers: Vec<(Ipv4Addr, [u8; 32])> = Vec::new();
        for (table, span) in root.tables("server")? {
            let server = Section::new(&doc, &SERVER, table, Some(span))?;
            let address = ipv4(&server, "address")?;
            if servers.iter().any(|(a, _)| *a == address) {
                return Err(server.error("address", format!("server {address} is here twice")));
            }
            servers.push((address, key_of(&server, "key", path)?));
        }
        Ok(ControllerFile {
            listen,
            netns: section.text("netns")?.map(str::to_owned),
            servers_port: section.count("servers_port", 1..=65_535)?.map_or(UDP_PORT, |port| port as u16),
            stations: section.count("stations", 1..=1 << 24)?.unwrap_or(1 << 20) as usize,
            servers,
        })
    }

    /// Opens the controller's socket.
    ///
    /// # Errors
    /// The namespace or the address is not available.
    pub fn open(&self) -> io::Result<Daemon> {
        let namespace = match &self.netns {
            Some(name) => Namespace::open(name)?,
            None => Namespace::current()?,
        };
        let config = ControllerConfig { stations: self.stations, ..ControllerConfig::default() };
        let mut daemon = namespace.enter(|| Daemon::bind(self.listen, self.servers_port, config))??;
        for (address, key) in &self.servers {
            daemon.admit(*address, Key::new(key));
        }
        Ok(daemon)
    }
}
