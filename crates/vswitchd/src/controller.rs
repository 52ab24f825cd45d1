//! The overlay's controller as a program. Its file has its address and the servers that may use it.

use super::config::checks::{Address, Socket, Word};
use super::config::{key_of, text_of};
use sluicenet_dataplane::controller::Daemon;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_proto::overlay::controller::ControllerConfig;
use sluicenet_proto::overlay::seal::Key;
use sluicenet_scenario::setting::{Kind, Section, Settings, Spec};
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::{Result, settings, tables};
use sluicenet_wire::controller::UDP_PORT;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

static ROOT: Spec = tables! {
    /// The controller of an overlay.
    ""
    controller: Kind::Table(ControllerKeys::SPEC),
    server: Kind::Tables(&[ServerKeys::SPEC]),
};

settings! {
    /// where it is
    struct ControllerKeys in "controller" (s) {
        /// its address and port
        listen: Socket,
        /// its namespace, by name or path; default the one in which it was started
        netns: Option<String>,
        /// the port at which servers receive its messages; default 49789
        servers_port: u16 [1..=u16::MAX] = UDP_PORT,
        /// stations that it keeps in all; default 1048576
        stations: u32 [1..=1 << 24] = 1 << 20,
    }
}

settings! {
    /// a server that may ask and register
    struct ServerKeys in "server" (s) {
        /// its IPv4 address
        address: Address,
        /// the file of the key shared with it: 64 hexadecimal digits
        key: Word,
    }
}

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
        let root = Section::root(&doc, &ROOT)?;
        let ControllerKeys { listen, netns, servers_port, stations } =
            ControllerKeys::read(&root.section("controller")?)?;
        let mut servers: Vec<(Ipv4Addr, [u8; 32])> = Vec::new();
        for s in root.tables("server")? {
            let ServerKeys { address: Address(address), key } = ServerKeys::read(&s)?;
            if servers.iter().any(|(a, _)| *a == address) {
                return Err(s.error("address", format!("server {address} is here twice")));
            }
            servers.push((address, key_of(&s, "key", &key.0, path)?));
        }
        Ok(ControllerFile { listen: listen.0, netns, servers_port, stations: stations as usize, servers })
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
