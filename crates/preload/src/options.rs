//! Options of light sockets: those that mean something, those that change nothing here, and no others.

use crate::sock::{Kind, Name, Sock, milliseconds};
use libc::{c_int, c_void, socklen_t};
use std::sync::atomic::{AtomicI32, Ordering};

/// The congestion control of a light stream in `getsockopt`.
const CONGESTION: &[u8] = b"tcplight\0";

/// Options without an effect here: a light socket behaves that way already, or has nothing to change. Their values are kept
/// for `getsockopt`. The flag tells whether an option is only on or off.
pub const KEPT: [(Name, bool); 19] = [
    ((libc::SOL_SOCKET, libc::SO_REUSEADDR), true),
    ((libc::SOL_SOCKET, libc::SO_REUSEPORT), true),
    ((libc::SOL_SOCKET, libc::SO_KEEPALIVE), true),
    ((libc::SOL_SOCKET, libc::SO_OOBINLINE), true),
    ((libc::SOL_SOCKET, libc::SO_RCVLOWAT), false),
    ((libc::SOL_SOCKET, libc::SO_PRIORITY), false),
    ((libc::IPPROTO_TCP, libc::TCP_NODELAY), true),
    ((libc::IPPROTO_TCP, libc::TCP_CORK), true),
    ((libc::IPPROTO_TCP, libc::TCP_QUICKACK), true),
    ((libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), false),
    ((libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), false),
    ((libc::IPPROTO_TCP, libc::TCP_KEEPCNT), false),
    ((libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), false),
    ((libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT), false),
    ((libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), false),
    ((libc::IPPROTO_IP, libc::IP_TOS), false),
    ((libc::IPPROTO_IP, libc::IP_TTL), false),
    ((libc::IPPROTO_IP, libc::IP_MTU_DISCOVER), false),
    ((libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT), true),
];

/// The value of an option that is kept; `None` for any other.
fn kept(sock: &Sock, name: Name) -> Option<c_int> {
    sock.options.values.with(|values| values.iter().find(|(known, _)| *known == name).map(|&(_, value)| value))
}

fn timeval(milliseconds: &AtomicI32) -> Vec<u8> {
    let all = i64::from(milliseconds.load(Ordering::Relaxed));
    [(all / 1_000).to_ne_bytes(), (all % 1_000 * 1_000).to_ne_bytes()].concat()
}

/// The value of an option.
///
/// # Safety
/// As for `getsockopt` of the C library.
pub unsafe fn get(
    sock: &Sock,
    level: c_int,
    name: c_int,
    into: *mut c_void,
    len: *mut socklen_t,
) -> Result<usize, i32> {
    let number = |n: c_int| Ok(n.to_ne_bytes().to_vec());
    let value: Result<Vec<u8>, i32> = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let error = match &sock.kind {
                Kind::Stream(stream) => stream.take_error(),
                Kind::Datagram(datagram) => datagram.take_error(),
                _ => None,
            };
            number(error.map_or(0, |e| crate::number(&e)))
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => number(if sock.is_stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM }),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => number(libc::AF_INET),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => {
            number(if sock.is_stream { libc::IPPROTO_TCP } else { libc::IPPROTO_UDP })
        }
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            number(c_int::from(matches!(sock.kind, Kind::Listener(..) | Kind::Attempts(_))))
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = sock.options.linger.load(Ordering::Relaxed);
            Ok([c_int::from(seconds >= 0).to_ne_bytes(), seconds.max(0).to_ne_bytes()].concat())
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Ok(timeval(&sock.options.receive_timeout)),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Ok(timeval(&sock.options.send_timeout)),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(1 << 20),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(if sock.is_stream { 1 << 20 } else { 256 << 10 }),
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => number(0),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => number(1_446),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Ok(CONGESTION.to_vec()),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(info(sock)),
        name => kept(sock, name).map_or(Err(libc::ENOPROTOOPT), number),
    };
    let value = value?;
    if into.is_null() || len.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: no more than there is room for.
    unsafe {
        let copied = value.len().min(*len as usize);
        std::ptr::copy_nonoverlapping(value.as_ptr(), into.cast(), copied);
        *len = copied as socklen_t;
    }
    Ok(0)
}

/// Linux's `struct tcp_info`, as far as it applies: the state, and the size of a segment. Nothing is ever retransmitted.
fn info(sock: &Sock) -> Vec<u8> {
    const ESTABLISHED: u8 = 1;
    const CLOSE: u8 = 7;
    const SND_MSS_AT: usize = 16;
    const RCV_MSS_AT: usize = 20;
    let mut info = vec![0; 104];
    let open = matches!(&sock.kind, Kind::Stream(stream) if !stream.is_opening() && !stream.ready().closed);
    info[0] = if open { ESTABLISHED } else { CLOSE };
    for at in [SND_MSS_AT, RCV_MSS_AT] {
        info[at..at + 4].copy_from_slice(&1_446u32.to_ne_bytes());
    }
    info
}

/// Sets an option.
///
/// # Safety
/// As for `setsockopt` of the C library.
pub unsafe fn set(sock: &Sock, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Result<usize, i32> {
    if value.is_null() {
        return Err(libc::EFAULT);
    }
    let words = |at: usize| -> Result<i64, i32> {
        if (len as usize) < 8 * at + 8 {
            return Err(libc::EINVAL);
        }
        // SAFETY: there are as many bytes.
        Ok(unsafe { value.cast::<i64>().add(at).read_unaligned() })
    };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            sock.options.receive_timeout.store(milliseconds([words(0)?, words(1)?]), Ordering::Relaxed);
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            sock.options.send_timeout.store(milliseconds([words(0)?, words(1)?]), Ordering::Relaxed);
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            if len < 8 {
                return Err(libc::EINVAL);
            }
            // SAFETY: there are as many bytes.
            let [on, seconds] = unsafe { value.cast::<[c_int; 2]>().read_unaligned() };
            sock.options.linger.store(if on != 0 { seconds } else { -1 }, Ordering::Relaxed);
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
        name => {
            let (_, is_switch) = KEPT.iter().find(|(known, _)| *known == name).ok_or(libc::ENOPROTOOPT)?;
            if (len as usize) < size_of::<c_int>() {
                return Err(libc::EINVAL);
            }
            // SAFETY: there are as many bytes.
            let value = unsafe { value.cast::<c_int>().read_unaligned() };
            let value = if *is_switch { c_int::from(value != 0) } else { value };
            sock.options.values.with(|values| {
                values.retain(|(known, _)| *known != name);
                values.push((name, value));
            });
        }
    }
    Ok(0)
}
