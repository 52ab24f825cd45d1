//! The fields of a frame's first bytes on which the switch decides.

use super::report::Access;
use crate::port::{Descriptor, Port};
use sluicenet_node::vale::Header;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::fib::Station;

/// Overwrites a frame's first bytes with those that the switch has checked; a short frame takes only as many as it has.
#[inline(always)]
pub(super) fn put_first_bytes(first_bytes: [u64; 2], bytes: &mut [u8]) {
    for (part, half) in bytes.chunks_mut(8).zip(first_bytes) {
        part.copy_from_slice(&half.to_le_bytes()[..part.len()]);
    }
}

/// The 802.1Q tag of a frame, or 0.
#[inline(always)]
pub(super) fn tag(first_bytes: [u64; 2]) -> u16 {
    let tagged = first_bytes[1] >> 32 & 0xffff == 0x0081;
    if tagged { ((first_bytes[1] >> 48) as u16).swap_bytes() } else { 0 }
}

/// The bits of the second half of a frame's first 16 bytes on which its destination port depends: the rest of the source
/// address, the type, and the tag after it if that type is 802.1Q.
#[inline(always)]
pub(super) fn run_mask(first_bytes: [u64; 2]) -> u64 {
    if first_bytes[1] >> 32 & 0xffff == 0x0081 { u64::MAX } else { 0xffff_ffff_ffff }
}

/// The header in a frame's first 16 bytes.
#[inline(always)]
pub(super) fn header(first_bytes: [u64; 2]) -> Header {
    // 802.1Q: the tag gives the priority, and each VLAN is a broadcast domain.
    let tag = tag(first_bytes);
    Header {
        destination: Station::from_number(first_bytes[0], tag),
        source: Station::from_number(first_bytes[0] >> 48 | first_bytes[1] << 16, tag),
        priority: (tag >> 13) as u8,
        // 01-80-C2-00-00-00 to -0F.
        reserved: first_bytes[0] & 0xf0ff_ffff_ffff == 0x00_00_00_c2_80_01,
    }
}

/// The header of a frame from a port with restrictions; an error if the port may not send the frame.
pub(super) fn admit(
    first_bytes: [u64; 2],
    access: &Access,
    port: &dyn Port,
    frame: Descriptor,
) -> Result<Header, DropReason> {
    let tag = tag(first_bytes);
    let own = port.domain(frame.buffer);
    if own.is_none() && access.domain.is_some() && tag & 0xfff != 0 {
        return Err(DropReason::ForgedSource);
    }
    let domain = own.or(access.domain).unwrap_or(tag & 0xfff);
    let priority = access.priority.or_else(|| port.priority(frame.buffer)).unwrap_or((tag >> 13) as u8);
    Ok(Header {
        destination: Station::from_number(first_bytes[0], domain),
        source: Station::from_number(first_bytes[0] >> 48 | first_bytes[1] << 16, domain),
        priority,
        ..header(first_bytes)
    })
}
