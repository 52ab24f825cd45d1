//! The messages between a switch and its helper: JSON on sockets that keep the bounds of messages (`SOCK_SEQPACKET`), with
//! descriptors (`SCM_RIGHTS`). A process that closes its end has ended.
//!
//! Requests are numbered, and an answer has the number of its request: `[NUMBER, MESSAGE]`. An answer that comes late, after the
//! switch has given up its request, is thrown away.

use super::device::{Device, Facts, Place};
use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The most bytes of a message, and the most descriptors.
const BYTES_MAX: usize = 1 << 16;
const DESCRIPTORS_MAX: usize = 64;
/// The most bytes of a message about an open port.
const SHORT: usize = 512;

const WRONG_DESCRIPTORS: &str = "a message has a wrong number of descriptors";

/// A message with its number and its descriptors.
type Numbered<T> = (u64, T, Vec<OwnedFd>);

/// Requests of a switch that are about no port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Call {
    /// A socket for a port.
    Port,
    /// The switch obeys the file as it is now.
    Reloaded,
}

/// The answers to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Called {
    /// Done; with the socket, if one was asked for.
    Done,
    /// Not done; the reason.
    Refused(String),
}

/// Requests at the socket of a port: `Listen` and `Open`, or `Keep`, and then the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ask {
    /// Opens the sockets of a port's device, so that no further frame is lost.
    Listen {
        /// The port's name.
        port: String,
        /// Its device, as the switch understands its file.
        device: Device,
    },
    /// Opens the rest, which may take seconds.
    Open,
    /// Keeps a port that is open already: its keeper has ended.
    Keep {
        /// The port's name.
        port: String,
        /// Its device.
        device: Device,
    },
    /// Has the tenant's queue let frames go. Of an open port, as all that follow.
    OpenQueue,
    /// Has it hold them.
    ShutQueue,
    /// Opens further polling sockets.
    Pollers,
}

/// The answers to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Told {
    /// The sockets are open.
    Listening,
    /// The device is open. Its descriptors come along.
    Open {
        /// The facts about it.
        facts: Facts,
        /// The namespaces in which it was opened.
        places: Vec<Place>,
    },
    /// Done.
    Done,
    /// Polling sockets at this port. Three descriptors come along.
    Pollers(u16),
    /// Not done.
    Failed(Failure),
}

/// One end of a connection between switch and helper.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    /// The number of the request that was sent, or received, last.
    number: AtomicU64,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Channel {
    fn new(socket: OwnedFd) -> Channel {
        Channel { socket, number: AtomicU64::new(0) }
    }

    /// The two ends of a new connection.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel::new(one), Channel::new(other)))
    }

    /// A connection to the helper at a socket.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel::new(socket))
    }

    /// Whether the other process has ended.
    pub fn has_ended(&self) -> bool {
        let looked = rustix::net::recv(&self.socket, &mut [0u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(looked, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
    }

    /// An end that another process made.
    ///
    /// # Errors
    /// It is no socket of this kind.
    pub fn of(socket: OwnedFd) -> io::Result<Channel> {
        match sockopt::socket_type(&socket) {
            Ok(SocketType::SEQPACKET) => Ok(Channel::new(socket)),
            _ => Err(io::Error::new(ErrorKind::InvalidInput, "this is no socket of a switch")),
        }
    }

    /// Another descriptor of this end.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends a message, with the number of the last request.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let numbered = (self.number.load(Ordering::Relaxed), message);
        let bytes = serde_json::to_vec(&numbered).map_err(io::Error::other)?;
        if bytes.len() > BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(invalid("a message is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(invalid("more descriptors than one message takes"));
        }
        loop {
            match rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                sent => return Ok(sent.map(drop)?),
            }
        }
    }

    /// Waits for a request; `None` if the other process has ended.
    ///
    /// # Errors
    /// It is too long, none of these messages, or has other than `descriptors` descriptors, unless that is `None`.
    pub fn receive<T: DeserializeOwned>(&self, descriptors: Option<usize>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_into(&mut vec![0; BYTES_MAX], descriptors).map(|request| self.begins(request))
    }

    /// The same, of a request about an open port.
    pub fn receive_short<T: DeserializeOwned>(
        &self,
        descriptors: Option<usize>,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_into(&mut [0; SHORT], descriptors).map(|request| self.begins(request))
    }

    /// What is sent from now on answers this request.
    fn begins<T>(&self, request: Option<Numbered<T>>) -> Option<(T, Vec<OwnedFd>)> {
        request.map(|(number, message, came)| {
            self.number.store(number, Ordering::Relaxed);
            (message, came)
        })
    }

    /// Waits for the answer to the last request; one to an earlier request is thrown away.
    fn answer_into<T: DeserializeOwned>(
        &self,
        bytes: &mut [u8],
        descriptors: Option<usize>,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        loop {
            match self.receive_into(bytes, None) {
                Ok(Some((number, ..))) if number != self.number.load(Ordering::Relaxed) => {}
                Ok(Some((_, _, came))) if descriptors.is_some_and(|wanted| came.len() != wanted) => {
                    return Err(invalid(WRONG_DESCRIPTORS));
                }
                Ok(Some((_, message, came))) => return Ok((message, came)),
                Ok(None) => return Err(ended()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(no_answer()),
                Err(e) => return Err(e),
            }
        }
    }

    fn receive_into<T: DeserializeOwned>(
        &self,
        bytes: &mut [u8],
        descriptors: Option<usize>,
    ) -> io::Result<Option<Numbered<T>>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        // Without room for them, the kernel closes descriptors that nobody wants.
        let room = if descriptors == Some(0) { &mut [] } else { &mut space[..] };
        let mut control = RecvAncillaryBuffer::new(room);
        let received = loop {
            let slices = &mut [IoSliceMut::new(bytes)];
            match rustix::net::recvmsg(&self.socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                received => break received?,
            }
        };
        let mut came = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(all) = message {
                came.extend(all);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(invalid("a message is too long"));
        }
        let wrong = descriptors.is_some_and(|wanted| came.len() != wanted);
        if received.flags.contains(ReturnFlags::CTRUNC) || wrong {
            return Err(invalid(WRONG_DESCRIPTORS));
        }
        let message = serde_json::from_slice(&bytes[..received.bytes]);
        let (number, message) = message.map_err(|e| invalid(&format!("this is no message: {e}")))?;
        Ok(Some((number, message, came)))
    }

    /// An end at which answers may take so long.
    pub fn patient(self, patience: Duration) -> io::Result<Channel> {
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(patience))?;
        Ok(self)
    }

    /// Sends a request and waits for its answer.
    pub fn ask<T: DeserializeOwned>(
        &self,
        request: &impl Serialize,
        descriptors: Option<usize>,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        self.tell(request)?;
        self.told(descriptors)
    }

    /// The same, about an open port.
    pub fn ask_short<T: DeserializeOwned>(&self, request: &impl Serialize) -> io::Result<(T, Vec<OwnedFd>)> {
        self.tell(request)?;
        self.answer_into(&mut [0; SHORT], None)
    }

    /// Waits for the answer to a request that was [told](Channel::tell).
    pub fn told<T: DeserializeOwned>(&self, descriptors: Option<usize>) -> io::Result<(T, Vec<OwnedFd>)> {
        self.answer_into(&mut vec![0; BYTES_MAX], descriptors)
    }

    /// Whether a message has come by a time, or the other process has ended.
    pub fn has_message(&self, until: Instant) -> io::Result<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other? > 0),
            }
        }
    }

    /// Sends a request.
    pub fn tell(&self, request: &impl Serialize) -> io::Result<()> {
        self.number.fetch_add(1, Ordering::Relaxed);
        match self.send(request, &[]) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(ended()),
            sent => sent,
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(ErrorKind::BrokenPipe, "the helper has ended")
}

pub(super) fn no_answer() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the helper does not answer")
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn refusal(received: io::Result<Option<(Ask, Vec<OwnedFd>)>>) -> String {
        received.unwrap_err().to_string()
    }

    #[test]
    fn messages_and_descriptors_arrive_as_they_were_sent() {
        let (here, there) = Channel::pair().unwrap();
        let device = Device::Packet { device: "eno1".into(), netns: None };
        let ask = Ask::Listen { port: "lan".into(), device };
        here.send(&ask, &[]).unwrap();
        here.send(&Ask::Open, &[]).unwrap();
        assert_eq!(there.receive::<Ask>(Some(0)).unwrap().unwrap().0, ask);
        assert_eq!(there.receive::<Ask>(Some(0)).unwrap().unwrap().0, Ask::Open);
        let all: Vec<OwnedFd> = (0..DESCRIPTORS_MAX).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        let all: Vec<BorrowedFd<'_>> = all.iter().map(AsFd::as_fd).collect();
        there.send(&Called::Done, &all).unwrap();
        let (done, came) = here.receive::<Called>(None).unwrap().unwrap();
        assert_eq!((done, came.len()), (Called::Done, DESCRIPTORS_MAX));
        rustix::io::write(&came[63], &1u64.to_ne_bytes()).unwrap();
        drop(here);
        assert!(there.receive::<Ask>(Some(0)).unwrap().is_none());
    }

    #[test]
    fn no_message_has_other_descriptors_than_it_should() {
        let (here, there) = Channel::pair().unwrap();
        let one = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let wrong = "a message has a wrong number of descriptors";
        for (sent, wanted) in [(1, 0), (2, 1), (0, 1)] {
            here.send(&Ask::Open, &vec![one.as_fd(); sent]).unwrap();
            assert_eq!(refusal(there.receive(Some(wanted))), wrong, "{sent} of {wanted}");
        }
        // Nobody has kept the descriptors: the pipe's end is closed.
        let (read, write) = std::io::pipe().unwrap();
        here.send(&Ask::Open, &[write.as_fd()]).unwrap();
        assert_eq!(refusal(there.receive(Some(0))), wrong);
        drop(write);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]).unwrap(), 0);
        assert!(here.send(&Ask::Open, &vec![one.as_fd(); DESCRIPTORS_MAX + 1]).is_err());
        here.send(&Ask::Open, &[]).unwrap();
        assert_eq!(there.receive::<Ask>(Some(0)).unwrap().unwrap().0, Ask::Open, "the next message");
    }

    #[test]
    fn a_late_answer_is_none_to_the_next_request() {
        let (here, there) = Channel::pair().unwrap();
        let here = here.patient(Duration::from_millis(10)).unwrap();
        let hear = || there.receive::<Ask>(Some(0)).unwrap().unwrap().0;
        let late = here.ask::<Told>(&Ask::OpenQueue, None).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        here.tell(&Ask::Pollers).unwrap();
        assert_eq!(hear(), Ask::OpenQueue);
        let one = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        there.send(&Told::Done, &[]).unwrap();
        assert_eq!(here.told::<Told>(Some(0)).unwrap_err().kind(), ErrorKind::TimedOut, "it is the answer to another");
        assert_eq!(hear(), Ask::Pollers);
        there.send(&Told::Pollers(7), &[one.as_fd()]).unwrap();
        let (told, came) = here.told::<Told>(Some(1)).unwrap();
        assert_eq!((told, came.len()), (Told::Pollers(7), 1));
        // The helper may answer what nobody waits for any more, also with descriptors.
        there.send(&Told::Pollers(7), &[one.as_fd()]).unwrap();
        here.tell(&Ask::ShutQueue).unwrap();
        assert_eq!(hear(), Ask::ShutQueue);
        there.send(&Told::Done, &[]).unwrap();
        assert_eq!(here.told::<Told>(Some(0)).unwrap().0, Told::Done);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (here, there) = Channel::pair().unwrap();
        let raw =
            |bytes: &[u8]| assert_eq!(rustix::net::send(&here.socket, bytes, SendFlags::empty()), Ok(bytes.len()));
        let long = serde_json::to_vec(&"x".repeat(BYTES_MAX)).unwrap();
        assert!(here.send(&"x".repeat(BYTES_MAX), &[]).is_err());
        raw(&long);
        assert_eq!(refusal(there.receive(Some(0))), "a message is too long");
        let device = Device::Packet { device: "eno1".into(), netns: None };
        let whole = serde_json::to_vec(&(1, Ask::Listen { port: "lan".into(), device })).unwrap();
        // Each message that is cut short, and others.
        for len in 1..whole.len() {
            raw(&whole[..len]);
            assert!(refusal(there.receive(Some(0))).starts_with("this is no message"), "{len}");
        }
        for bytes in
            [&b"\0"[..], b"{}", b"\"close\"", b"[1]", b"[-1,\"open\"]", b"\"open\"", b"\xff\xfe", b"[[[[[[[[[["]
        {
            raw(bytes);
            assert!(refusal(there.receive(Some(0))).starts_with("this is no message"), "{bytes:?}");
        }
        raw(&whole);
        assert!(there.receive::<Ask>(Some(0)).unwrap().is_some());
    }
}
