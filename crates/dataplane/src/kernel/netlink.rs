//! Netlink: how the kernel is asked about devices and sockets.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Asks for something.
pub(super) const REQUEST: u16 = 1;
/// Wants to hear that it was done.
pub(super) const ACK: u16 = 4;
/// Wants all there are.
pub(super) const DUMP: u16 = 0x300;
/// Makes it if it is not there.
pub(super) const CREATE: u16 = 0x400;
/// Replaces an existing object.
pub(super) const REPLACE: u16 = 0x100;
/// Only if it is not there.
pub(super) const EXCLUSIVE: u16 = 0x200;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NESTED: u16 = 1 << 15;

/// A request, written from front to back.
#[derive(Clone, Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// A request with its family's fixed header.
    pub fn new(kind: u16, flags: u16, header: &[u8]) -> Message {
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
        bytes.extend_from_slice(header);
        Message(bytes).padded()
    }

    fn padded(mut self) -> Message {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds an attribute.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Message {
        self.0.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.padded()
    }

    /// Adds an attribute that is a name.
    pub fn with_name(self, kind: u16, name: &str) -> Message {
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        self.with(kind, &bytes)
    }

    /// Adds an attribute made of attributes, behind a header of its own.
    pub fn with_nested(mut self, kind: u16, header: &[u8], inside: impl FnOnce(Message) -> Message) -> Message {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(header);
        let mut whole = inside(self.padded());
        let len = (whole.0.len() - start) as u16;
        whole.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        whole.0[start + 2..start + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        whole
    }

    fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.0[6], self.0[7]])
    }
}

/// The attributes in a reply.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !NESTED;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// A number in a reply, 0 where there is none.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|w| w.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// A socket to the kernel, in the namespace it was opened in.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    reply: Vec<u8>,
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Netlink {
    /// For devices, addresses, routes and queueing disciplines.
    pub fn route() -> io::Result<Netlink> {
        Netlink::open(None)
    }

    /// A socket for questions about sockets.
    pub fn diag() -> io::Result<Netlink> {
        Netlink::open(Some(netlink::SOCK_DIAG))
    }

    /// A socket that was opened as above, by this process or another one.
    pub fn of(socket: OwnedFd) -> Netlink {
        Netlink { socket, sequence: 0, reply: vec![0; 1 << 16] }
    }

    /// The socket, for another process.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> io::Result<Netlink> {
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // Errors in words where the kernel has them.
        let (ext_ack, sol_netlink) = (11, 270);
        super::sys::set_option(socket.as_fd(), sol_netlink, ext_ack, 1)?;
        Ok(Netlink::of(socket))
    }

    /// Sends a request, and passes each answer to `show`: the kind, and the bytes behind the header.
    pub fn ask(&mut self, message: Message, mut show: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let Message(mut bytes) = message.clone();
        self.sequence = self.sequence.wrapping_add(1);
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        let several = message.flags() & (ACK | DUMP) != 0;
        loop {
            let (n, _) = match rustix::net::recv(&self.socket, &mut self.reply[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let mut rest = &self.reply[..n];
            while rest.len() >= 16 {
                let len = (word(rest, 0) as usize).clamp(16, rest.len());
                let (one, behind) = (&rest[..len], &rest[len.next_multiple_of(4).min(rest.len())..]);
                rest = behind;
                if word(one, 8) != self.sequence {
                    continue;
                }
                let (kind, flags) = (u16::from_ne_bytes([one[4], one[5]]), u16::from_ne_bytes([one[6], one[7]]));
                match kind {
                    NLMSG_ERROR => return result(&one[16..], flags),
                    // All there is to show, or why there is no more.
                    NLMSG_DONE => return result(one.get(16..20).unwrap_or_default(), flags),
                    kind => show(kind, &one[16..]),
                }
                if !several {
                    return Ok(());
                }
            }
        }
    }

    /// Has something done.
    pub fn tell(&mut self, message: Message) -> io::Result<()> {
        self.ask(message, |_, _| {})
    }
}

/// The result in an acknowledgement: `error, the request's header, attributes with a text`.
fn result(body: &[u8], flags: u16) -> io::Result<()> {
    let error = word(body, 0) as i32;
    if error == 0 {
        return Ok(());
    }
    let why = io::Error::from_raw_os_error(-error);
    const CAPPED: u16 = 0x100;
    let request = if flags & CAPPED != 0 { 16 } else { word(body, 4) as usize };
    let text = body.get(4 + request.next_multiple_of(4)..).and_then(|a| {
        let (_, text) = attributes(a).find(|&(kind, _)| kind == 1)?;
        Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned())
    });
    match text {
        // The kind of the error follows the number; the text is the kernel's.
        Some(text) => Err(io::Error::new(why.kind(), format!("{why} ({text})"))),
        None => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let m = Message::new(16, ACK, &[1, 2, 3, 4]).with(1, &[9]).with_nested(2, &[], |m| m.with_name(3, "ab"));
        assert_eq!(m.flags(), REQUEST | ACK);
        let all: Vec<_> = attributes(&m.0[20..]).collect();
        assert_eq!(all[0], (1, &[9][..]));
        assert_eq!(all[1].0, 2);
        assert_eq!(attributes(all[1].1).collect::<Vec<_>>(), [(3, &b"ab\0"[..])]);
    }

    #[test]
    fn a_reply_cut_short_ends() {
        assert_eq!(attributes(&[8, 0, 1]).count(), 0);
        assert_eq!(attributes(&[8, 0, 1, 0, 5]).count(), 0);
        assert_eq!(attributes(&[0, 0, 1, 0, 5, 0, 0, 0]).count(), 0);
    }
}
