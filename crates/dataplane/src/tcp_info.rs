//! The kernel's state of a TCP connection (`TCP_INFO`).
//!
//! The structure grows at its end with the kernel, which reports how much of it is filled in. No crate has its newest fields.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Where fields stand in the kernel's structure (`include/uapi/linux/tcp.h`), in bytes.
const TOTAL_RETRANS: usize = 100;
const TOTAL_RTO: usize = 240;
/// More than the structure has.
const ROOM: usize = 512;

/// Of a connection since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments sent again.
    pub retransmitted: u32,
    /// Retransmission timeouts; Linux counts them since 6.7.
    pub timeouts: Option<u16>,
}

/// Reads the state of a connection.
///
/// # Errors
/// This is no TCP socket.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut bytes = [0u8; ROOM];
    let mut len = ROOM as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has as many, and the written length to `len`; the
    // descriptor is borrowed for the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let filled = &bytes[..(len as usize).min(ROOM)];
    let long = filled.get(TOTAL_RETRANS..).and_then(|b| b.first_chunk());
    let short = filled.get(TOTAL_RTO..).and_then(|b| b.first_chunk());
    Ok(TcpInfo {
        retransmitted: long.map_or(0, |b| u32::from_ne_bytes(*b)),
        timeouts: short.map(|b| u16::from_ne_bytes(*b)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_over_loopback_sends_nothing_again_and_a_file_is_none() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(&a).unwrap();
        assert_eq!((info.retransmitted, info.timeouts.unwrap_or(0)), (0, 0));
        assert!(tcp_info(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
