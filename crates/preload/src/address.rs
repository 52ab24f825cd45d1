//! Addresses as C programs have them.

use libc::{AF_INET, AF_UNSPEC, sa_family_t, sockaddr, sockaddr_in, socklen_t};
use std::net::{Ipv4Addr, SocketAddrV4};

const LEN: usize = size_of::<sockaddr_in>();

/// The IPv4 address at a pointer; `None` for one of another family, or none.
///
/// # Safety
/// `len` bytes at `address` have to be the caller's, unless it is null.
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> Option<SocketAddrV4> {
    if address.is_null() || (len as usize) < LEN {
        return None;
    }
    // SAFETY: there are as many bytes, wherever they are aligned.
    let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    (i32::from(address.sin_family) == AF_INET).then_some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)))
}

/// Whether a pointer's target is no address, by which a socket is disconnected.
///
/// # Safety
/// As for [`read`].
pub unsafe fn is_none(address: *const sockaddr, len: socklen_t) -> bool {
    if address.is_null() || (len as usize) < size_of::<sa_family_t>() {
        return false;
    }
    // SAFETY: there are as many bytes, wherever they are aligned.
    let family = unsafe { address.cast::<sa_family_t>().read_unaligned() };
    i32::from(family) == AF_UNSPEC
}

/// Writes an address to a program's memory, as much of it as there is room for, and its whole length.
///
/// # Safety
/// `*len` bytes at `into` have to be the caller's, unless one of them is null.
pub unsafe fn write(address: SocketAddrV4, into: *mut sockaddr, len: *mut socklen_t) {
    if into.is_null() || len.is_null() {
        return;
    }
    // SAFETY: an address of zeros is one.
    let mut c: sockaddr_in = unsafe { std::mem::zeroed() };
    c.sin_family = AF_INET as _;
    c.sin_port = address.port().to_be();
    c.sin_addr.s_addr = u32::from(*address.ip()).to_be();
    // SAFETY: no more than both have; the length is the caller's to be written.
    unsafe {
        let room = (*len as usize).min(LEN);
        std::ptr::copy_nonoverlapping((&raw const c).cast::<u8>(), into.cast::<u8>(), room);
        *len = LEN as socklen_t;
    }
}
