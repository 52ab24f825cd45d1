//! Sockets in the namespaces of tenants.
//! A socket stays in the namespace in which it was created. So one thread enters each namespace to create the sockets, and
//! serves all of them from any namespace.

use super::PaError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sluicenet_socket::TcplightStream;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

/// The folder of named namespaces.
const NAMESPACES: &str = "/run/netns";

/// The endpoint of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The tenant's network namespace, by its name under `/run/netns`; default the namespace of this program.
    pub namespace: Option<String>,
    /// The tenant's address.
    pub address: Ipv4Addr,
}

/// The settings of sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// The congestion control, by the kernel's name.
    pub congestion: &'static str,
    /// Whether short segments wait (RFC 896).
    pub nagle: bool,
    /// Send and receive buffer, in bytes; default the kernel's.
    pub buffer: Option<u32>,
    /// 0 to 7; goes into the packets as a class selector (RFC 2474, 4.2.2).
    pub priority: u8,
}

/// Sets how long reading from a connection of the kernel and writing to it may block.
pub(crate) fn set_timeouts(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

/// A connection over a kernel socket or a light socket.
pub(crate) enum Stream {
    Kernel(TcpStream),
    Light(TcplightStream),
}

impl Stream {
    /// Makes calls fail that would block.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Kernel(stream) => stream.set_nonblocking(true),
            Stream::Light(stream) => {
                stream.set_nonblocking(true);
                Ok(())
            }
        }
    }

    /// Shuts the connection for writing.
    pub fn end_writing(&self) -> io::Result<()> {
        match self {
            Stream::Kernel(stream) => stream.shutdown(Shutdown::Write),
            Stream::Light(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// The local address of the connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Kernel(stream) => stream.local_addr(),
            Stream::Light(stream) => Ok(stream.local_addr().into()),
        }
    }

    /// The remote address of the connection.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Kernel(stream) => stream.peer_addr(),
            Stream::Light(stream) => Ok(stream.peer_addr().into()),
        }
    }

    /// Sets how long reading and writing may block.
    pub fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Kernel(stream) => set_timeouts(stream, timeout),
            Stream::Light(stream) => {
                stream.set_read_timeout(Some(timeout));
                stream.set_write_timeout(Some(timeout));
                Ok(())
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Kernel(stream) => stream.read(into),
            Stream::Light(stream) => (&*stream).read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Kernel(stream) => stream.write(from),
            Stream::Light(stream) => (&*stream).write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Kernel(stream) => stream.flush(),
            Stream::Light(stream) => (&*stream).flush(),
        }
    }
}

/// Moves the thread between namespaces.
pub(crate) struct Namespaces {
    known: BTreeMap<Option<String>, File>,
    here: Option<String>,
}

impl Namespaces {
    /// Starts from the thread's current namespace.
    pub fn new() -> Result<Namespaces, PaError> {
        let home = File::open("/proc/thread-self/ns/net").map_err(|e| PaError::io("the network namespace", &e))?;
        Ok(Namespaces { known: BTreeMap::from([(None, home)]), here: None })
    }

    fn enter(&mut self, namespace: &Option<String>) -> Result<(), PaError> {
        if self.here == *namespace {
            return Ok(());
        }
        let name = namespace.as_deref().unwrap_or("that of this program");
        if !self.known.contains_key(namespace) {
            let file = File::open(format!("{NAMESPACES}/{name}"))
                .map_err(|e| PaError::io(&format!("namespace {name}"), &e))?;
            self.known.insert(namespace.clone(), file);
        }
        move_into_link_name_space(self.known[namespace].as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| PaError::io(&format!("entering namespace {name}"), &e.into()))?;
        self.here.clone_from(namespace);
        Ok(())
    }

    /// A counter of the namespace's stack, as `TcpExt` and `TCPTimeouts`; 0 if the kernel does not have it.
    pub fn counter(&mut self, at: &Endpoint, group: &str, name: &str) -> Result<u64, PaError> {
        self.enter(&at.namespace)?;
        own_counter(group, name)
    }

    /// A listening socket.
    pub fn listen(&mut self, at: &Endpoint, port: u16, style: Style) -> Result<TcpListener, PaError> {
        let what = || format!("listening at {}:{port}", at.address);
        let listener: TcpListener = self.socket(at, port, style, &what())?.into();
        rustix::net::listen(&listener, 1024).map_err(|e| PaError::io(&what(), &e.into()))?;
        Ok(listener)
    }

    /// Starts to open a connection; it is open once it is writable.
    pub fn connect(&mut self, from: &Endpoint, to: SocketAddrV4, style: Style) -> Result<TcpStream, PaError> {
        let what = || format!("connecting {} with {to}", from.address);
        let stream: TcpStream = self.socket(from, 0, style, &what())?.into();
        match rustix::net::connect(&stream, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(stream),
            Err(e) => Err(PaError::io(&what(), &e.into())),
        }
    }

    /// A blocking datagram socket.
    pub fn datagrams(&mut self, at: &Endpoint, port: u16, style: Style) -> Result<UdpSocket, PaError> {
        let what = || format!("a datagram socket at {}:{port}", at.address);
        self.enter(&at.namespace)?;
        let socket = UdpSocket::bind((at.address, port)).map_err(|e| PaError::io(&what(), &e))?;
        sockopt::set_ip_tos(&socket, style.priority << 5).map_err(|e| PaError::io("IP_TOS", &e.into()))?;
        Ok(socket)
    }

    fn socket(&mut self, at: &Endpoint, port: u16, style: Style, what: &str) -> Result<std::os::fd::OwnedFd, PaError> {
        self.enter(&at.namespace)?;
        let fail = |e: rustix::io::Errno| PaError::io(what, &e.into());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).map_err(fail)?;
        // A server may have listened at this port a moment ago; a connecting socket gets a free port.
        sockopt::set_socket_reuseaddr(&socket, port != 0).map_err(fail)?;
        // Set the buffers before the socket connects or listens, because that fixes the window scale.
        if let Some(bytes) = style.buffer {
            set_buffers(&socket, bytes as usize)
                .map_err(|e| PaError::io(&format!("{what}: buffers of {bytes} bytes"), &e))?;
        }
        self.prepare(&socket, style)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(at.address, port)).map_err(fail)?;
        Ok(socket)
    }

    /// Sets a socket's congestion control and checks it; an accepted connection inherits that of its listener.
    pub fn prepare(&self, socket: impl AsFd, style: Style) -> Result<(), PaError> {
        let socket = socket.as_fd();
        let space = || self.here.clone().unwrap_or_else(|| "that of this program".into());
        let refused = |ran: String| PaError::Congestion {
            wanted: style.congestion,
            ran,
            namespace: space(),
            allowed: std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default(),
        };
        sockopt::set_tcp_congestion(socket, style.congestion).map_err(|e| refused(e.to_string()))?;
        verify(socket, style.congestion).map_err(refused)?;
        sockopt::set_tcp_nodelay(socket, !style.nagle).map_err(|e| PaError::io("TCP_NODELAY", &e.into()))?;
        sockopt::set_ip_tos(socket, style.priority << 5).map_err(|e| PaError::io("IP_TOS", &e.into()))?;
        Ok(())
    }
}

/// Connections that this process may have: background flows pile up while the machine is busy with something else.
const DESCRIPTORS: u64 = 65_536;

/// Lets this process have that many descriptors, or as many as it may.
pub(super) fn raise_descriptors() {
    let has = getrlimit(Resource::Nofile);
    let wanted = |maximum| Rlimit { current: Some(DESCRIPTORS), maximum };
    if has.current.is_none_or(|current| current >= DESCRIPTORS) {
        return;
    }
    // Raising the hard limit needs a privilege.
    if setrlimit(Resource::Nofile, wanted(has.maximum.map(|most| most.max(DESCRIPTORS)))).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: has.maximum, maximum: has.maximum });
    }
}

/// Gives a socket buffers for this many bytes of payload; the kernel counts twice as many, because of its own overhead.
fn set_buffers(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let socket = socket.as_fd();
    // Without the privilege, at most the system's `rmem_max` and `wmem_max`.
    sockopt::set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))?;
    sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes))?;
    let has = sockopt::socket_recv_buffer_size(socket)?.min(sockopt::socket_send_buffer_size(socket)?);
    if has < bytes {
        return Err(io::Error::other(format!("this system gives {has}")));
    }
    Ok(())
}

/// Checks a socket's congestion control; an error names the actual one.
pub(super) fn verify(socket: impl AsFd, congestion: &str) -> Result<(), String> {
    match sockopt::tcp_congestion(socket) {
        Ok(ran) if ran == congestion => Ok(()),
        Ok(ran) => Err(ran),
        Err(e) => Err(e.to_string()),
    }
}

/// A counter of the stack of this thread's namespace; 0 if the kernel does not have it.
pub(super) fn own_counter(group: &str, name: &str) -> Result<u64, PaError> {
    let file = if group == "TcpExt" { "netstat" } else { "snmp" };
    let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))
        .map_err(|e| PaError::io(&format!("the counters in {file}"), &e))?;
    Ok(counter(&text, group, name).unwrap_or(0))
}

/// A counter in the format of `/proc/net/netstat`: a line of names and a line of values for each group.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix(group)?.strip_prefix(':'));
    let (names, values) = (lines.next()?, lines.next()?);
    let endpoint = names.split_whitespace().position(|n| n == name)?;
    values.split_whitespace().nth(endpoint)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_group_and_name() {
        let text = "TcpExt: A TCPTimeouts B\nTcpExt: 1 22 3\nIpExt: A B\nIpExt: 8 9\n";
        assert_eq!(counter(text, "TcpExt", "TCPTimeouts"), Some(22));
        assert_eq!(counter(text, "IpExt", "A"), Some(8));
        assert_eq!(counter(text, "TcpExt", "C"), None);
        assert_eq!(counter("TcpExt: A\n", "TcpExt", "A"), None);
    }

    #[test]
    fn more_descriptors_than_a_shell_has() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(1_024), maximum }).unwrap();
        raise_descriptors();
        let has = getrlimit(Resource::Nofile);
        assert!(has.current.is_none_or(|n| n >= DESCRIPTORS || Some(n) == has.maximum), "{has:?}");
    }

    #[test]
    fn a_namespace_that_is_not_there_and_a_control_that_is_not_are_errors_that_name_them() {
        let mut all = Namespaces::new().unwrap();
        let style = Style { congestion: "reno", nagle: false, buffer: Some(64_000), priority: 0 };
        let nowhere = Endpoint { namespace: Some("sluice-nowhere".into()), address: Ipv4Addr::LOCALHOST };
        let e = all.listen(&nowhere, 0, style).unwrap_err().to_string();
        assert!(e.contains("sluice-nowhere"), "{e}");
        let here = Endpoint { namespace: None, address: Ipv4Addr::LOCALHOST };
        let e = all.listen(&here, 0, Style { congestion: "nosuch", ..style }).unwrap_err().to_string();
        assert!(e.contains("nosuch") && e.contains("that of this program"), "{e}");
        let listener = all.listen(&here, 0, style).unwrap();
        let has = [sockopt::socket_recv_buffer_size(&listener), sockopt::socket_send_buffer_size(&listener)];
        assert!(has.iter().all(|has| (64_000..=128_000).contains(has.as_ref().unwrap())), "{has:?}");
        let e = PaError::io("a socket", &io::Error::from(rustix::io::Errno::MFILE)).to_string();
        assert!(e.contains("a socket: ") && e.contains("inter_arrival"), "{e}");
        assert!(verify(&listener, "reno").is_ok() && verify(&listener, "cubic") == Err("reno".into()));
    }
}
