//! Queueing disciplines of devices: what their messages have in common.

use super::netlink::{ACK, DUMP, Message, Netlink, word};
use std::io;

pub(super) const RTM_NEWQDISC: u16 = 36;
pub(super) const RTM_DELQDISC: u16 = 37;
pub(super) const RTM_GETQDISC: u16 = 38;
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_OPTIONS: u16 = 2;
pub(super) const TC_H_ROOT: u32 = 0xffff_ffff;

/// Bytes of `tcmsg`.
pub(super) const HEADER: usize = 20;

/// `tcmsg`.
pub(super) fn header(index: u32, handle: u32, parent: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

/// Removes the queue of a device with this major number; whether it was there. The kernel puts its usual queue there.
pub(super) fn remove_root(netlink: &mut Netlink, index: u32, major: u32) -> io::Result<bool> {
    let mut is_there = false;
    netlink.ask(Message::new(RTM_GETQDISC, DUMP, &header(index, 0, 0)), |_, body| {
        let ours = body.len() >= HEADER && word(body, 4) == index && word(body, 12) == TC_H_ROOT;
        is_there |= ours && word(body, 8) == major << 16;
    })?;
    if is_there {
        netlink.tell(Message::new(RTM_DELQDISC, ACK, &header(index, major << 16, TC_H_ROOT)))?;
    }
    Ok(is_there)
}
