//! The system calls that no crate has in a safe form: packet sockets in batches, ioctls of devices, and BPF programs.
//!
//! Every function checks its arguments itself, so that it is sound whatever its caller does.
#![allow(unsafe_code)]

pub(super) mod bpf;

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub(super) use bpf::{attach_pass, attached, detach, keep_all, redirect_all};

/// Frames in one system call.
pub(super) const BATCH: usize = 64;

/// `SO_PREFER_BUSY_POLL`: only busy polling polls the device as long as it goes on.
pub(super) const PREFER_BUSY_POLL: i32 = 69;
/// `SO_BUSY_POLL_BUDGET`: frames of one poll.
pub(super) const BUSY_POLL_BUDGET: i32 = 70;

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: i64) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the kernel just made this descriptor for us; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A raw packet socket that sees frames of no protocol until it is bound.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes three numbers.
    owned(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }.into())
}

/// A UDP socket over IPv4.
pub(super) fn udp_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes three numbers.
    owned(unsafe { libc::socket(libc::AF_INET, kind, 0) }.into())
}

/// Ties a packet socket to a device and to frames of `protocol` (`ETH_P_ALL` for all).
pub(super) fn bind_packet(fd: BorrowedFd<'_>, device: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: all zero is an address of this family's plain numbers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = device as i32;
    let len = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the address is alive, and `len` is its size.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }.into()).map(drop)
}

/// Sees every frame of a device, whomever it is for.
pub(super) fn set_promiscuous(fd: BorrowedFd<'_>, device: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: device as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_bytes(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Has a device take in frames for a group address: a device that filters addresses itself drops frames for other groups.
pub(super) fn join_group(fd: BorrowedFd<'_>, device: u32, group: [u8; 6]) -> io::Result<()> {
    let mut request = libc::packet_mreq {
        mr_ifindex: device as i32,
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: 6,
        mr_address: [0; 8],
    };
    request.mr_address[..6].copy_from_slice(&group);
    set_bytes(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

fn set_bytes<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as u32;
    // SAFETY: the value is alive, and `len` is its size.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) }.into()).map(drop)
}

/// Whether the device of a bound packet socket is gone: deleted, or moved to another namespace.
pub(super) fn has_lost_device(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: all zeros are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of the address.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &mut len) }.into())?;
    Ok(address.sll_ifindex < 0)
}

/// Sets a socket's option that is a number.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_bytes(fd, level, name, &value)
}

/// Ties a socket to a device by its name.
pub(super) fn bind_to_device(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let len = name.len() as u32;
    let (fd, name) = (fd.as_raw_fd(), name.as_ptr().cast());
    // SAFETY: the name is alive and has `len` bytes.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name, len) }.into()).map(drop)
}

fn option_words<const N: usize>(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut len = size_of::<[u32; N]>() as u32;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of the words.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, words.as_mut_ptr().cast(), &mut len) }.into())?;
    Ok(words)
}

/// The number of the receive queue that a socket's last frame came from; 0 if none.
pub(super) fn napi_id(fd: BorrowedFd<'_>) -> io::Result<u32> {
    option_words::<1>(fd, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).map(|w| w[0])
}

/// Bytes of memory that the kernel charges a socket for waiting datagrams.
pub(super) fn receive_memory(fd: BorrowedFd<'_>) -> io::Result<u32> {
    option_words::<9>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO).map(|w| w[0])
}

/// Frames a packet socket threw away for want of room since it was last asked.
pub(super) fn packet_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    option_words::<2>(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS).map(|w| w[1])
}

/// Bytes of memory of frames that a socket sent and no stack has taken in yet.
pub(super) fn in_flight(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes = 0i32;
    // SAFETY: this request writes one number, there.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) }.into())?;
    Ok(bytes as u32)
}

/// The virtio header in front of a frame, as the parsers expect it; sockets and TAP devices have its first bytes only.
pub(super) type Header = [u8; 12];
/// Bytes of the header at sockets and TAP devices.
pub(super) const HEADER_BYTES: usize = 10;

/// The place of a frame: offset and length in one memory, and in another for longer frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BufferRange {
    pub at: usize,
    pub len: usize,
    pub rest: (usize, usize),
}

/// The length and header fields of a received frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    /// Bytes of the frame that were written.
    pub len: usize,
    /// The virtio header in front of the frame.
    pub header: Header,
    /// The frame's 802.1Q tag, which the kernel removed.
    pub tag: Option<u16>,
    /// Whether the frame was longer than its buffer range.
    pub cut: bool,
}

/// Whether a call waits until there is something, or room, for the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The call returns at once.
    No,
    /// The call waits up to the socket's own timeout.
    Yes,
}

/// Receives up to [`BATCH`] frames, one at each of `ranges`; returns their number. With `headers`, the socket puts a header
/// in front of each.
pub(super) fn receive(
    fd: BorrowedFd<'_>,
    wait: Wait,
    headers: bool,
    memory: (&mut [u8], &mut [u8]),
    ranges: &[BufferRange],
    received: &mut [Received; BATCH],
) -> io::Result<usize> {
    let count = ranges.len().min(BATCH);
    let (memory, more) = memory;
    // Room for one control message with `tpacket_auxdata`: 16 bytes of header and 20.
    let mut control = [[0u64; 5]; BATCH];
    // SAFETY: all zero is a valid value of these plain structures.
    let (mut pieces, mut messages): ([[libc::iovec; 3]; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { (zeroed(), zeroed()) };
    for (i, range) in ranges[..count].iter().enumerate() {
        let (at, len) = range.rest;
        for (piece, bytes) in pieces[i].iter_mut().zip([
            &mut received[i].header[..HEADER_BYTES],
            &mut memory[range.at..range.at + range.len],
            &mut more[at..at + len],
        ]) {
            *piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        }
        let first = usize::from(!headers);
        messages[i].msg_hdr.msg_iov = &mut pieces[i][first];
        messages[i].msg_hdr.msg_iovlen = 3 - first;
        messages[i].msg_hdr.msg_control = control[i].as_mut_ptr().cast();
        messages[i].msg_hdr.msg_controllen = size_of::<[u64; 5]>();
    }
    let (fd, none) = (fd.as_raw_fd(), std::ptr::null_mut());
    let flags = if wait == Wait::No { libc::MSG_DONTWAIT } else { libc::MSG_WAITFORONE };
    // SAFETY: the first `count` messages point at pieces and control room that are alive, and these at slices that are ours for
    // the time of the call.
    let n = unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), count as u32, flags, none) };
    let n = match check(n.into()) {
        Ok(n) => n as usize,
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(0),
        Err(e) => return Err(e),
    };
    for ((message, control), received) in messages.iter().zip(&control).zip(received.iter_mut()).take(n) {
        received.len = (message.msg_len as usize).saturating_sub(if headers { HEADER_BYTES } else { 0 });
        received.tag = tag(control, message.msg_hdr.msg_controllen);
        received.cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
    }
    Ok(n)
}

/// The 802.1Q tag in a control message of a packet socket.
fn tag(control: &[u64; 5], len: usize) -> Option<u16> {
    const VLAN_VALID: u32 = 1 << 4;
    // A `cmsghdr` (length, level, type) and a `tpacket_auxdata`: status, length, captured, offsets, TCI, TPID.
    let (level, kind) = (control[1] as u32 as i32, (control[1] >> 32) as i32);
    if len < 36 || level != libc::SOL_PACKET || kind != libc::PACKET_AUXDATA || control[2] as u32 & VLAN_VALID == 0 {
        return None;
    }
    Some(control[4] as u16)
}

/// Sends up to [`BATCH`] frames, with `headers` in front where the socket wants them; returns how many were taken. An error
/// is about the first frame.
pub(super) fn send(fd: BorrowedFd<'_>, wait: Wait, frames: &[&[u8]], headers: Option<&[Header]>) -> io::Result<usize> {
    let flags = if wait == Wait::No { libc::MSG_DONTWAIT } else { 0 };
    let count = frames.len().min(BATCH);
    // SAFETY: all zero is a valid value of these plain structures.
    let (mut pieces, mut messages): ([[libc::iovec; 2]; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { (zeroed(), zeroed()) };
    let piece = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    for (i, frame) in frames[..count].iter().enumerate() {
        let header = headers.map_or(&[][..], |headers| &headers[i][..HEADER_BYTES]);
        pieces[i] = [piece(header), piece(frame)];
        messages[i].msg_hdr.msg_iov = pieces[i].as_mut_ptr();
        messages[i].msg_hdr.msg_iovlen = 2;
    }
    // SAFETY: the first `count` messages point at pieces that are alive, and these at bytes that are only read.
    let n = unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count as u32, flags) };
    check(n.into()).map(|n| n as usize)
}

/// Sends up to [`BATCH`] messages in order, each of as many `pieces` as `counts` says; returns how many were taken. An error
/// is about the first message.
pub(super) fn send_scattered(fd: BorrowedFd<'_>, pieces: &[io::IoSlice<'_>], counts: &[usize]) -> io::Result<usize> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    let mut rest = pieces;
    for (message, &count) in messages.iter_mut().zip(counts) {
        let (own, others) = rest.split_at(count);
        rest = others;
        // An `IoSlice` is an `iovec` of memory that is only read.
        message.msg_hdr.msg_iov = own.as_ptr().cast_mut().cast();
        message.msg_hdr.msg_iovlen = count;
    }
    let count = counts.len().min(BATCH) as u32;
    // SAFETY: the first `count` messages point at pieces that are alive, and these at bytes that are only read.
    let n = unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    check(n.into()).map(|n| n as usize)
}

/// One poll of the receive queue whose number the socket has. Data that the socket itself receives is ignored.
pub(super) fn busy_poll(fd: BorrowedFd<'_>) {
    let mut byte = MaybeUninit::<u8>::uninit();
    // SAFETY: at most one byte is written, and there is room for it.
    unsafe { libc::recv(fd.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) };
}

fn interface(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{name}`: a device's name has 1 to 15 bytes"),
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Sends an ethtool command for a device of the socket's namespace; `value` begins with the command, and receives the answer.
///
/// The kernel writes as much as the command says, so only commands of known sizes are taken.
fn ethtool(fd: BorrowedFd<'_>, name: &str, value: &mut [u32]) -> io::Result<()> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let mut request = interface(name)?;
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: the request points at a command with all the room it takes: the callers below ensure that.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL, &mut request) }.into()).map(drop)
}

/// Sets one of a device's features by its `ETHTOOL_S...` command; any socket of its namespace will do.
pub(super) fn set_feature(fd: BorrowedFd<'_>, name: &str, command: u32, on: bool) -> io::Result<()> {
    // Commands of `ethtool_value`: the command and one word.
    ethtool(fd, name, &mut [command, on.into()])
}

/// Sets features of a device by their names in the kernel; `wanted` tells the new value of a feature, if there is one.
pub(super) fn set_features(fd: BorrowedFd<'_>, device: &str, wanted: impl Fn(&str) -> Option<bool>) -> io::Result<()> {
    const GET_COUNT: u32 = 0x37;
    const GET_STRINGS: u32 = 0x1b;
    const SET_FEATURES: u32 = 0x3b;
    const FEATURES: u32 = 4;
    /// Words of a name.
    const NAME: usize = 8;
    // `ethtool_sset_info`: command, reserved, a mask of 64 bits, and here one word.
    let mut count = [GET_COUNT, 0, 1 << FEATURES, 0, 0];
    ethtool(fd, device, &mut count)?;
    let count = count[4] as usize;
    // `ethtool_gstrings`: command, set, count, and as many names; the number of features does not change while a kernel runs.
    let mut names = vec![0; 3 + count * NAME];
    names[..2].copy_from_slice(&[GET_STRINGS, FEATURES]);
    ethtool(fd, device, &mut names)?;
    // `ethtool_sfeatures`: command, number of blocks, and for each 32 features which are meant and which of these are on.
    let blocks = count.div_ceil(32);
    let mut set = vec![0; 2 + 2 * blocks];
    set[..2].copy_from_slice(&[SET_FEATURES, blocks as u32]);
    for (i, name) in names[3..].chunks_exact(NAME).enumerate() {
        let bytes: Vec<u8> = name.iter().flat_map(|w| w.to_ne_bytes()).take_while(|&b| b != 0).collect();
        if let Some(on) = std::str::from_utf8(&bytes).ok().and_then(&wanted) {
            set[2 + 2 * (i / 32)] |= 1 << (i % 32);
            set[3 + 2 * (i / 32)] |= u32::from(on) << (i % 32);
        }
    }
    ethtool(fd, device, &mut set)
}

/// Makes an open `/dev/net/tun` a TAP device of this name: one queue, and [`HEADER_BYTES`] in front of each frame. With
/// `offload` it takes frames without checksums and segmentation.
pub(super) fn make_tap(fd: BorrowedFd<'_>, name: &str, offload: bool) -> io::Result<()> {
    let mut request = interface(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    // SAFETY: this request reads and writes one `ifreq`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request) }.into())?;
    let takes = if offload { libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
    // SAFETY: this request takes a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(takes)) }.into()).map(drop)
}
