//! Attaching to a port in shared memory of a running switch, over its control socket (`docs/switch.md`).

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde_json::{Value, json};
use sluicenet_dataplane::shm;
use sluicenet_wire::ethernet::MacAddress;
use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port in shared memory of a running switch, attached as long as this value lives.
#[derive(Debug)]
pub struct Attachment {
    /// Its memory, and the descriptors that wake the two sides.
    pub access: shm::Access,
    /// The port's address in the switch's file.
    pub mac: Option<MacAddress>,
    /// The only IPv4 address it may send from.
    pub ip: Option<Ipv4Addr>,
    /// Bytes of the largest IP packet to endpoints on other servers; `None` if the switch has no uplink.
    pub mtu: Option<u16>,
    connection: Option<UnixStream>,
    address: Option<PortAddress>,
}

/// The address of a port: the control socket of its switch, and the port's name.
#[derive(Clone, Debug)]
pub(crate) struct PortAddress {
    control: PathBuf,
    name: String,
}

impl Attachment {
    /// A port of a switch in this process.
    pub fn local(access: shm::Access, mac: Option<MacAddress>) -> Attachment {
        Attachment { access, mac, ip: None, mtu: None, connection: None, address: None }
    }

    /// Moves the descriptors to numbers from `least` on, if there are free ones. A [`Host`](crate::Host) keeps these numbers,
    /// even when it attaches again. For programs that rely on the numbers of their own descriptors.
    #[must_use]
    pub fn with_numbers_from(self, least: RawFd) -> Attachment {
        let high = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(&fd, least).unwrap_or(fd);
        let Attachment { access: shm::Access { memory, kick, wake }, connection, .. } = self;
        let access = shm::Access { memory, kick: high(kick), wake: high(wake) };
        Attachment { access, connection: connection.map(|stream| high(stream.into()).into()), ..self }
    }

    /// The parts for a host: the port, the connection that is closed when the switch ends, and the port's address.
    pub(crate) fn into_parts(self) -> (Granted, Option<UnixStream>, Option<PortAddress>) {
        let Attachment { access, mac, ip, mtu, connection, address } = self;
        (Granted { access, mac, ip, mtu }, connection, address)
    }

    /// The connection that is closed when the switch ends.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(AsFd::as_fd)
    }
}

/// The grant of a switch for an attached port.
pub(crate) struct Granted {
    pub access: shm::Access,
    pub mac: Option<MacAddress>,
    pub ip: Option<Ipv4Addr>,
    pub mtu: Option<u16>,
}

/// Attaches to a port in shared memory. When this switch has ended, a [`Host`](crate::Host) looks for a new one at the same
/// path.
///
/// # Errors
/// No switch answers at `path`, there is no such port, or a program is attached to it.
pub fn attach(path: &Path, name: &str) -> io::Result<Attachment> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The program may change its working directory before it looks again.
    let address = PortAddress { control: std::path::absolute(path)?, name: name.to_owned() };
    address.ask_on(&stream)?;
    let Granted { access, mac, ip, mtu } = answer(&stream)?;
    Ok(Attachment { access, mac, ip, mtu, connection: Some(stream), address: Some(address) })
}

impl PortAddress {
    /// Asks the switch for the port, without waiting; the [answer] arrives later on the returned connection.
    pub fn ask(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.control)?)?;
        let stream = UnixStream::from(socket);
        self.ask_on(&stream)?;
        Ok(stream)
    }

    fn ask_on(&self, mut stream: &UnixStream) -> io::Result<()> {
        stream.write_all(format!("{}\n", json!({"op": "attach", "name": self.name})).as_bytes())
    }
}

/// The switch's answer to the request for a port; `EAGAIN` if it has not arrived.
pub(crate) fn answer(stream: impl AsFd) -> io::Result<Granted> {
    let mut answer = vec![0; 1 << 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut answer)];
    let got = rustix::net::recvmsg(stream, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let not_an_answer = || io::Error::new(ErrorKind::InvalidData, "not the answer of a switch");
    let answer: Value = serde_json::from_slice(&answer[..got]).map_err(|_| not_an_answer())?;
    if let Some(text) = answer["error"].as_str().or(answer["refused"]["error"].as_str()) {
        return Err(io::Error::other(text.to_owned()));
    }
    let [memory, kick, wake] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| not_an_answer())?;
    let mac = answer["mac"].as_str().map(|text| parse_mac(text).ok_or_else(not_an_answer)).transpose()?;
    let ip = answer["ip"].as_str().map(|text| text.parse().map_err(|_| not_an_answer())).transpose()?;
    // A switch that does not report it leaves the choice to the program.
    let mtu = answer.get("mtu").map(|mtu| mtu.as_u64().ok_or_else(not_an_answer)).transpose()?;
    let mtu = mtu.map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
    Ok(Granted { access: shm::Access { memory, kick, wake }, mac, ip, mtu })
}

/// Six bytes in hexadecimal with colons between them.
fn parse_mac(text: &str) -> Option<MacAddress> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddress(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_in_text() {
        assert_eq!(parse_mac("02:00:00:00:0a:ff"), Some(MacAddress([2, 0, 0, 0, 10, 255])));
        for bad in ["", "02:00:00:00:0a", "02:00:00:00:0a:ff:00", "02:00:00:00:0a:1ff", "zz:00:00:00:00:00"] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
    }
}
