//! The system calls that no crate has in a safe form: packet sockets in batches, ioctls of devices, and the one BPF program.
//!
//! Every function checks its arguments itself, so that it is sound whatever its caller does.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

/// Commands of bpf(2).
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_DETACH: libc::c_long = 9;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_CREATE: libc::c_long = 28;
/// Kinds of programs, and places where they are attached.
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
/// Bytes of a program's name, and of the attributes of a command.
const NAME_BYTES: usize = 16;
const ATTRIBUTE_WORDS: usize = 32;

/// A command whose attributes are these words, and zeros.
///
/// # Safety
/// Pointers among the words must be valid for the command.
unsafe fn bpf(command: libc::c_long, words: &[u32]) -> libc::c_long {
    let mut attributes = [0u32; ATTRIBUTE_WORDS];
    attributes[..words.len()].copy_from_slice(words);
    // SAFETY: the attributes are alive, bytes behind those that the kernel knows are 0, and the caller vouches for pointers.
    unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) }
}

/// The two words of a pointer.
fn halves(pointer: u64) -> [u32; 2] {
    [pointer as u32, (pointer >> 32) as u32]
}

/// Loads a program of a kind.
fn load(kind: u32, name: &str, flags: u32, program: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let mut words = vec![kind, program.len() as u32];
    words.extend(halves(program.as_ptr() as u64));
    words.extend(halves(license.as_ptr() as u64));
    // No log: level, size, buffer; kernel version.
    words.extend([0, 0, 0, 0, 0, flags]);
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    words.extend(bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])));
    // SAFETY: the program and the license are alive.
    owned(unsafe { bpf(BPF_PROG_LOAD, &words) })
}

/// Puts the program `return XDP_PASS` in front of a device's stack for as long as the descriptor is open.
///
/// The program is of the generic kind, which leaves the device unchanged: a device with such a program merges no TCP
/// segments.
pub(super) fn attach_pass(device: u32) -> io::Result<OwnedFd> {
    const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
    /// Frames in several pieces need not be made one piece first, for which there may be no memory.
    const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
    // r0 = XDP_PASS; exit.
    let program = [0x0000_0002_0000_00b7, 0x0000_0000_0000_0095];
    let loaded = load(BPF_PROG_TYPE_XDP, "", BPF_F_XDP_HAS_FRAGS, &program)?;
    // SAFETY: the attributes are numbers only.
    owned(unsafe { bpf(BPF_LINK_CREATE, &[loaded.as_raw_fd() as u32, device, BPF_XDP, XDP_FLAGS_SKB_MODE]) })
}

/// Sends all frames that arrive at a device out of the device `to` of the same namespace, from now on and after this process.
/// The program has this name.
pub(super) fn redirect_all(device: u32, to: u32, name: &str) -> io::Result<()> {
    // r1 = to; r2 = 0; call bpf_redirect; exit.
    let program = [0x0000_0000_0000_01b7 | u64::from(to) << 32, 0x0000_0000_0000_02b7, 0x0000_0017_0000_0085, 0x95];
    let loaded = load(BPF_PROG_TYPE_SCHED_CLS, name, 0, &program)?;
    // SAFETY: the attributes are numbers only.
    let attached = unsafe { bpf(BPF_PROG_ATTACH, &[device, loaded.as_raw_fd() as u32, BPF_TCX_INGRESS, 0]) };
    check(attached).map(drop)
}

/// Keeps all frames that arrive at a device from its stack and from later programs, for as long as the descriptor is open.
/// Packet sockets still get them.
pub(super) fn keep_all(device: u32, name: &str) -> io::Result<OwnedFd> {
    const BPF_F_BEFORE: u32 = 1 << 3;
    // r0 = TCX_DROP; exit.
    let loaded = load(BPF_PROG_TYPE_SCHED_CLS, name, 0, &[0x0000_0002_0000_00b7, 0x95])?;
    // SAFETY: the attributes are numbers only.
    owned(unsafe { bpf(BPF_LINK_CREATE, &[loaded.as_raw_fd() as u32, device, BPF_TCX_INGRESS, BPF_F_BEFORE]) })
}

/// The programs of this name that were attached to a device and outlive their process.
pub(super) fn attached(device: u32, name: &str) -> io::Result<Vec<OwnedFd>> {
    const PROGRAMS_MAX: usize = 64;
    /// Where the name stands in the kernel's description of a program.
    const NAME_AT: usize = 64;
    let mut ids = [0u32; PROGRAMS_MAX];
    let mut words = [0; ATTRIBUTE_WORDS];
    words[..2].copy_from_slice(&[device, BPF_TCX_INGRESS]);
    words[4..6].copy_from_slice(&halves(ids.as_mut_ptr() as u64));
    words[6] = PROGRAMS_MAX as u32;
    // SAFETY: the kernel writes the count into the attributes and at most as many numbers, both of which are alive.
    let found = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, words.as_mut_ptr(), size_of_val(&words)) };
    check(found)?;
    let mut programs = Vec::new();
    for &id in &ids[..(words[6] as usize).min(PROGRAMS_MAX)] {
        // SAFETY: the attributes are numbers only.
        let Ok(program) = owned(unsafe { bpf(BPF_PROG_GET_FD_BY_ID, &[id]) }) else { continue };
        let mut info = [0u8; NAME_AT + NAME_BYTES];
        let [low, high] = halves(info.as_mut_ptr() as u64);
        let words = [program.as_raw_fd() as u32, info.len() as u32, low, high];
        // SAFETY: the kernel writes no more than the given number of bytes into `info`, which is alive.
        if check(unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &words) }).is_ok()
            && info[NAME_AT..].split(|&b| b == 0).next() == Some(name.as_bytes())
        {
            programs.push(program);
        }
    }
    Ok(programs)
}

/// Detaches a program from a device.
pub(super) fn detach(device: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the attributes are numbers only.
    let detached = unsafe { bpf(BPF_PROG_DETACH, &[device, program.as_raw_fd() as u32, BPF_TCX_INGRESS, 0]) };
    check(detached).map(drop)
}
