//! The file descriptor of a network device: a packet socket at it, and the meaning of its errors.

use super::sys;
use rustix::io::Errno;
use sluicenet_proto::time::Duration;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Memory for frames that the kernel holds until they are fetched, in bytes.
const RECEIVE_MEMORY: i32 = 64 << 20;

/// When a full device is tried again: the kernel does not report when it has room.
pub(super) const DEVICE_RETRY: Duration = Duration::from_us(50);

/// Makes `fd` a packet socket at a device. It receives every frame that the device receives, for any destination, and none
/// that the device sends. Frames that it sends bypass the queueing discipline, so that the caller learns when the device is
/// full.
pub(super) fn open_packet_socket(fd: OwnedFd, device: u32) -> io::Result<OwnedFd> {
    open_for_type(fd, device, libc::ETH_P_ALL as u16)
}

/// The same, but it receives only frames of a type, also behind the tag of a priority, which the kernel removes.
pub(super) fn open_for_type(fd: OwnedFd, device: u32, ethertype: u16) -> io::Result<OwnedFd> {
    let set = |level, name, value| sys::set_option(fd.as_fd(), level, name, value);
    set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_MEMORY)?;
    set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
    set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    sys::set_promiscuous(fd.as_fd(), device)?;
    sys::bind_packet(fd.as_fd(), device, ethertype)?;
    Ok(fd)
}

/// Why a device did not take the frames that it was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotSent {
    /// The device takes no frames now.
    Full,
    /// The device never takes the first frame.
    TooLong,
    /// The device is gone.
    Gone,
}

pub(super) fn not_sent(e: &io::Error) -> NotSent {
    match Errno::from_io_error(e) {
        Some(Errno::MSGSIZE | Errno::INVAL) => NotSent::TooLong,
        Some(Errno::NXIO | Errno::NODEV | Errno::BADF) => NotSent::Gone,
        // No memory, no room in the ring, interrupted, or switched off for a while.
        _ => NotSent::Full,
    }
}

/// Received frames; none if the device is switched off. A socket reports that once, and the device may come back.
pub(super) fn unless_off<T: Default>(received: io::Result<T>) -> io::Result<T> {
    match received {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NETDOWN) => Ok(T::default()),
        other => other,
    }
}
