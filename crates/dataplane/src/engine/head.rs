//! What is read of a frame's first bytes, and who a frame is for.

use super::attached::{Attached, Lent};
use super::report::Access;
use crate::port::{Descriptor, Port};
use sluicenet_node::vale::{Header, Vale};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::fib::Station;
use std::net::Ipv4Addr;

/// The ports that a frame for all stations of a domain goes to, one bit each.
#[cold]
pub(super) fn members(ports: &[Option<Attached>], domain: u16) -> u64 {
    let is_member = |port: &Option<Attached>| {
        port.as_ref().is_some_and(|a| a.present && a.access.domain.is_none_or(|own| own == domain))
    };
    (0..ports.len()).filter(|&k| is_member(&ports[k])).fold(0, |members, k| members | 1 << k)
}

/// Of these ports, those at which somebody may hear a frame for all: one with an address of the file is no more than that.
#[cold]
pub(super) fn audience(vale: &mut Vale<Lent>, ports: &[Option<Attached>], header: &Header, members: u64) -> u64 {
    let given = |k: usize| ports[k].as_ref().map_or(&[][..], |a| &a.given);
    let mut hears = |k: usize| {
        given(k).is_empty() || vale.may_hear(header, given(k).iter().map(|&(mac, domain)| Station::new(mac, domain)))
    };
    (0..ports.len()).filter(|&k| members >> k & 1 != 0 && hears(k)).fold(0, |all, k| all | 1 << k)
}

/// Puts what was decided about in place of a frame's first bytes, as far as it has them.
#[inline(always)]
pub(super) fn put_head(head: [u64; 2], bytes: &mut [u8]) {
    for (place, half) in bytes.chunks_mut(8).zip(head) {
        place.copy_from_slice(&half.to_le_bytes()[..place.len()]);
    }
}

/// Whether a frame is from that IPv4 address, or carries none.
pub(super) fn is_from(bytes: &[u8], own: Ipv4Addr) -> bool {
    let at = if bytes.get(12..14) == Some(&[0x81, 0x00]) { 16 } else { 12 };
    let source = match bytes.get(at..at + 2) {
        Some([0x08, 0x00]) => bytes.get(at + 14..at + 18),
        // ARP: the sender's protocol address.
        Some([0x08, 0x06]) => bytes.get(at + 16..at + 20),
        _ => return true,
    };
    // A machine that looks for its address asks without one (RFC 5227).
    source == Some(&own.octets()) || source == Some(&[0; 4])
}

/// The 802.1Q tag of a frame, or 0.
#[inline(always)]
pub(super) fn tag(head: [u64; 2]) -> u16 {
    let tagged = head[1] >> 32 & 0xffff == 0x0081;
    if tagged { ((head[1] >> 48) as u16).swap_bytes() } else { 0 }
}

/// The bits of the second half of a frame's first 16 bytes on which its way depends: the rest of the source, the type, and
/// what follows it if that is an 802.1Q tag.
#[inline(always)]
pub(super) fn run_mask(head: [u64; 2]) -> u64 {
    if head[1] >> 32 & 0xffff == 0x0081 { u64::MAX } else { 0xffff_ffff_ffff }
}

/// What the switch reads of a frame's first 16 bytes.
#[inline(always)]
pub(super) fn header(head: [u64; 2]) -> Header {
    // 802.1Q: the priority counts, and the VLAN is a broadcast domain of its own.
    let tag = tag(head);
    Header {
        destination: Station::from_number(head[0], tag),
        source: Station::from_number(head[0] >> 48 | head[1] << 16, tag),
        priority: (tag >> 13) as u8,
        // 01-80-C2-00-00-00 to -0F.
        reserved: head[0] & 0xf0ff_ffff_ffff == 0x00_00_00_c2_80_01,
    }
}

/// The same for a port that may not send everything.
pub(super) fn admit(head: [u64; 2], access: &Access, port: &dyn Port, frame: Descriptor) -> Result<Header, DropReason> {
    let tag = tag(head);
    let own = port.domain(frame.buffer);
    if own.is_none() && access.domain.is_some() && tag & 0xfff != 0 {
        return Err(DropReason::ForgedSource);
    }
    let domain = own.or(access.domain).unwrap_or(tag & 0xfff);
    let priority = access.priority.or_else(|| port.priority(frame.buffer)).unwrap_or((tag >> 13) as u8);
    Ok(Header {
        destination: Station::from_number(head[0], domain),
        source: Station::from_number(head[0] >> 48 | head[1] << 16, domain),
        priority,
        ..header(head)
    })
}
