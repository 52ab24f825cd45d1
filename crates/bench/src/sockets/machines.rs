//! The two machines, and the streams of their programs.

use super::servers::{CLASS, Servers, TENANT};
use super::{Guest, Placement};
use crate::tcp;
use sluicenet_dataplane::engine::Access;
use sluicenet_dataplane::kernel::lan::Lan;
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_node::vale::WatchdogConfig;
use sluicenet_socket::attach::Attachment;
use sluicenet_socket::{Config, Host, TcplightStream};
use sluicenet_wire::ethernet::MacAddress;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::time::Duration;

/// Buffers of a light socket's port.
const BUFFERS: u32 = 2048;
const PORT: u16 = 7000;
/// Bytes of IP and UDP around a datagram's.
const IP_UDP: usize = 28;
/// A receiver of datagrams that gets none for so long has received all of them.
const SILENCE: Duration = Duration::from_millis(500);

pub struct Machines {
    guest: Guest,
    mtu: u16,
    /// Ports for light sockets, until the hosts take them.
    ports: Vec<(Attachment, Ipv4Addr)>,
    hosts: Vec<Host>,
}

/// One end of a stream from one program to the other.
pub enum Stream {
    Tcp(TcpStream),
    Light(TcplightStream),
    Udp { socket: UdpSocket, payload: usize },
}

impl Machines {
    /// Plugs them, the first one at the first server.
    pub fn new(servers: &mut Servers, guest: Guest, placement: Placement) -> io::Result<Machines> {
        let mtu = servers.mtu();
        let mut ports = Vec::new();
        let at = match placement {
            Placement::Hairpin => [(0, 0), (0, 1)],
            Placement::Servers => [(0, 0), (1, 0)],
        };
        for (i, (server, k)) in at.into_iter().enumerate() {
            let (lan, engine) = (&servers.lan, &mut servers.engines[server]);
            let name = format!("machine-{i}");
            let access = Access { domain: Some(TENANT), priority: Some(CLASS), guard: None };
            if guest == Guest::Tcplight {
                let shared = engine.plug_shm(k, &name, BUFFERS)?;
                engine.set_access(k, access);
                ports.push((Attachment::local(shared, Some(MacAddress(Lan::mac(i)))), Lan::address(i)));
            } else {
                lan.veth(i).create(Lan::mac(i), mtu.into())?;
                let config = ValveConfig {
                    watchdog: WatchdogConfig::OFF,
                    offload: guest == Guest::TcpOffload,
                    ..ValveConfig::default()
                };
                engine.plug(k, &name, Box::new(ValvePort::open(lan.veth(i), &config)?), access)?;
                lan.configure(i)?;
            }
            engine.give(Lan::mac(i), TENANT, k);
            engine.announce(TENANT, Lan::mac(i), Lan::address(i), true);
        }
        Ok(Machines { guest, mtu, ports, hosts: Vec::new() })
    }

    /// Bytes of a program in a frame.
    pub fn payload(&self) -> usize {
        usize::from(self.mtu)
            - match self.guest {
                // IP, and TCP with its time stamps.
                Guest::Tcp | Guest::TcpOffload => 20 + 32,
                Guest::Tcplight => 20 + sluicenet_wire::tcplight::HEADER_LEN,
                Guest::Udp => IP_UDP,
            }
    }

    /// Connections from the first to the second, while the servers run.
    pub fn connect(&mut self, lan: &Lan, streams: u32) -> io::Result<Vec<(Stream, Stream)>> {
        match self.guest {
            Guest::Tcp | Guest::TcpOffload => {
                let both = |(a, b)| (Stream::Tcp(a), Stream::Tcp(b));
                Ok(tcp::connect(lan, streams)?.into_iter().map(both).collect())
            }
            Guest::Udp => (0..streams).map(|i| datagrams(lan, PORT + i as u16, self.payload())).collect(),
            Guest::Tcplight => self.light(streams),
        }
    }

    fn light(&mut self, streams: u32) -> io::Result<Vec<(Stream, Stream)>> {
        for (port, address) in self.ports.drain(..) {
            self.hosts.push(Host::open(port, Config { mtu: self.mtu, ..Config::new(address, 24) })?);
        }
        let listener = self.hosts[1].listen(PORT, 128)?;
        let to = SocketAddrV4::new(self.hosts[1].address(), PORT);
        (0..streams)
            .map(|_| {
                let stream = self.hosts[0].connect(to)?;
                Ok((Stream::Light(stream), Stream::Light(listener.accept()?.0)))
            })
            .collect()
    }

    /// Ends connections that need the servers for their end.
    pub fn disconnect(&mut self) {
        self.hosts.clear();
    }

    /// Segments that the sender's TCP sent again.
    pub fn resent(&self, servers: &Servers) -> io::Result<u64> {
        match self.guest {
            Guest::Tcp | Guest::TcpOffload => tcp::resent(&servers.lan),
            Guest::Tcplight | Guest::Udp => Ok(0),
        }
    }
}

fn datagrams(lan: &Lan, port: u16, payload: usize) -> io::Result<(Stream, Stream)> {
    let receiver = lan.tenant(1).enter(|| UdpSocket::bind(Lan::socket(1, port)))??;
    let sender = lan.tenant(0).enter(|| UdpSocket::bind(Lan::socket(0, port)))??;
    sender.connect(Lan::socket(1, port))?;
    receiver.set_read_timeout(Some(SILENCE))?;
    let end = |socket| Stream::Udp { socket, payload };
    Ok((end(sender), end(receiver)))
}

impl Read for Stream {
    /// A receiver of datagrams is at the end when nothing came for a while.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Light(stream) => (&*stream).read(into),
            Stream::Udp { socket, .. } => match socket.recv(into) {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(0),
                received => received,
            },
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            Stream::Light(stream) => (&*stream).write(from),
            Stream::Udp { socket, payload } => socket.send(&from[..from.len().min(*payload)]),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
