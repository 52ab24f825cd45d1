//! Connections that waited to be accepted at a fork. They are open, so that they cannot move to another process's port of the
//! switch. The process that accepts one, this process or a child, gets the end of a pair of kernel sockets, and this process
//! carries the bytes to and fro.

use crate::mirror::Ends;
use crate::spin::Spin;
use crate::{kernel, own, process};
use light::{Attempt, TcplightStream};
use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The most connections carried so, with two threads each; further waiting ones are reset.
const RELAYED_MAX: usize = 256;
/// Bytes carried in one piece, and of a thread's stack.
const PIECE: usize = 16 << 10;
const STACK: usize = 128 << 10;
/// Where an [`Attempt`] has zeros, and the record of a connection that is open has this.
const AT_OPEN: usize = 14;
const OPEN: u8 = 1;

/// An entry that waits in a listener's pair.
pub enum Waiting {
    Attempt(Attempt),
    Open(SocketAddrV4, OwnedFd),
}

/// Streams to carry once the fork is over.
static OFFERED: Spin<Vec<(TcplightStream, Arc<Carried>)>> = Spin::new(Vec::new());

/// This process's end of the pair.
struct Carried(OwnedFd);

impl Drop for Carried {
    fn drop(&mut self) {
        own::set_own(self.0.as_raw_fd(), false);
    }
}

/// Offers a connection to the next process that accepts at these ends.
pub fn offer(ends: &Ends, stream: TcplightStream) {
    let mut fds = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    let paired = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } == 0;
    if !paired || OFFERED.with(|offered| offered.len()) >= RELAYED_MAX {
        if paired {
            // SAFETY: new descriptors, without another owner.
            fds.iter().for_each(|&fd| drop(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        stream.abort();
        return;
    }
    // SAFETY: new descriptors, without another owner.
    let [here, there] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: a descriptor of ours; where there is no larger number, this one will do.
    let high = unsafe { kernel::fcntl(here.as_raw_fd(), libc::F_DUPFD_CLOEXEC, own::least() as usize) };
    // SAFETY: made just now.
    let here = if high >= 0 { unsafe { OwnedFd::from_raw_fd(high) } } else { here };
    own::set_own(here.as_raw_fd(), true);
    let carried = Arc::new(Carried(here));
    if ends.put_open(stream.peer_addr(), there.as_raw_fd()) {
        OFFERED.with(|offered| offered.push((stream, carried)));
    } else {
        stream.abort();
    }
}

/// In the parent: carries the offered connections.
pub fn begin() {
    for (stream, carried) in OFFERED.with(std::mem::take) {
        let (to, from) = ((stream.clone(), carried.clone()), (stream, carried));
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK);
            // Without a thread the connection ends here, and its other end is told.
            let _ = process::without_signals(|| thread.spawn(f));
        };
        spawn("sluicenet-to", Box::new(move || outwards(&to.0, to.1.0.as_raw_fd())));
        spawn("sluicenet-from", Box::new(move || inwards(&from.0, from.1.0.as_raw_fd())));
    }
}

/// In a child: they are the parent's.
pub fn forget() {
    for (stream, carried) in OFFERED.with(std::mem::take) {
        std::mem::forget(stream);
        drop(carried);
    }
}

/// Carries bytes from the process that accepted the stream to the other end.
fn outwards(stream: &TcplightStream, fd: RawFd) {
    let mut piece = [0u8; PIECE];
    loop {
        // SAFETY: room of ours.
        let got = unsafe { kernel::recv(fd, piece.as_mut_ptr().cast(), piece.len(), 0) };
        let Ok(got) = usize::try_from(got) else {
            if kernel::errno() == libc::EINTR {
                continue;
            }
            // The program closed with bytes unread.
            return stream.abort();
        };
        if got == 0 {
            let _ = stream.shutdown(Shutdown::Write);
            return;
        }
        let mut rest = &piece[..got];
        while !rest.is_empty() {
            match stream.send(&[IoSlice::new(rest)]) {
                Ok(sent) => rest = &rest[sent..],
                Err(_) => {
                    // SAFETY: a descriptor of ours.
                    unsafe { kernel::shutdown(fd, libc::SHUT_RDWR) };
                    return;
                }
            }
        }
    }
}

/// Carries bytes from the other end to the process that accepted the stream.
fn inwards(stream: &TcplightStream, fd: RawFd) {
    let mut piece = [0u8; PIECE];
    while let Ok(got @ 1..) = stream.receive(&mut [IoSliceMut::new(&mut piece)]) {
        let mut rest = &piece[..got];
        while !rest.is_empty() {
            // SAFETY: bytes of ours.
            let sent = unsafe { kernel::send(fd, rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
            match usize::try_from(sent) {
                Ok(sent) => rest = &rest[sent..],
                Err(_) if kernel::errno() == libc::EINTR => {}
                Err(_) => return stream.abort(),
            }
        }
    }
    // SAFETY: a descriptor of ours.
    unsafe { kernel::shutdown(fd, libc::SHUT_WR) };
}

/// Room for one descriptor beside a message.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Puts an open connection, and the socket that leads to it, into a pair; returns whether there was room.
pub fn put(into: RawFd, peer: SocketAddrV4, socket: RawFd) -> bool {
    let mut bytes = [0; Attempt::BYTES];
    bytes[6..10].copy_from_slice(&peer.ip().octets());
    bytes[10..12].copy_from_slice(&peer.port().to_ne_bytes());
    bytes[AT_OPEN] = OPEN;
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 32]);
    // SAFETY: a message of zeros is one, with pieces and room of ours.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(socket);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        kernel::sendmsg(into, &raw const message, flags) == Attempt::BYTES as isize
    }
}

/// The next one that waits in a pair.
pub fn take(from: RawFd) -> Result<Waiting, i32> {
    let mut bytes = [0; Attempt::BYTES];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 32]);
    // SAFETY: as above; the descriptor has no other owner.
    let (got, socket) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>();
        let got = kernel::recvmsg(from, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        let header = if got > 0 { libc::CMSG_FIRSTHDR(&raw const message) } else { std::ptr::null_mut() };
        let has_socket = !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS;
        let socket = has_socket.then(|| libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned());
        (got, socket.map(|fd| OwnedFd::from_raw_fd(fd)))
    };
    match (usize::try_from(got), socket) {
        // The listening process is gone.
        (Ok(0), _) => Err(libc::EINVAL),
        (Ok(Attempt::BYTES), Some(socket)) if bytes[AT_OPEN] == OPEN => {
            let ip = [bytes[6], bytes[7], bytes[8], bytes[9]];
            Ok(Waiting::Open(SocketAddrV4::new(ip.into(), u16::from_ne_bytes([bytes[10], bytes[11]])), socket))
        }
        (Ok(Attempt::BYTES), _) => Ok(Waiting::Attempt(Attempt::from_bytes(&bytes))),
        (Ok(_), _) => Err(libc::ECONNABORTED),
        (Err(_), _) => Err(kernel::errno()),
    }
}
