//! The header in front of each frame of a virtio network device (virtio 1.2, 5.1.6), and the offloads it asks for.

use crate::port::{Offload, Segmentation};

/// A feature that guest and device agree on, by its number.
macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => { $($(#[$doc])* pub const $name: u64 = 1 << $bit;)* };
}
features! {
    /// The device finishes checksums.
    CSUM = 0;
    /// The guest takes frames with an unfinished checksum.
    GUEST_CSUM = 1;
    /// The guest takes long TCP segments over IPv4.
    GUEST_TSO4 = 7;
    /// The guest takes long TCP segments over IPv6.
    GUEST_TSO6 = 8;
    /// The device takes long TCP segments over IPv4.
    HOST_TSO4 = 11;
    /// The device takes long TCP segments over IPv6.
    HOST_TSO6 = 12;
    /// A frame may lie in several of the guest's buffers.
    MRG_RXBUF = 15;
    /// Several pairs of queues.
    MQ = 22;
    /// Descriptors in tables of their own.
    INDIRECT_DESC = 28;
    /// Each side says up to where the other need not wake it.
    EVENT_IDX = 29;
    /// The frontend speaks vhost-user's protocol features.
    PROTOCOL_FEATURES = 30;
    /// virtio 1.0 or later.
    VERSION_1 = 32;
}

/// All that is offered to guests.
pub const OFFERED: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | HOST_TSO4
    | HOST_TSO6
    | MRG_RXBUF
    | MQ
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1;

/// Bytes of a header, and of one of a guest older than virtio 1.0 without mergeable buffers.
pub const HEADER_BYTES: u32 = 12;
const OLD_HEADER_BYTES: u32 = 10;

/// Bytes of the header with these features.
pub const fn header_bytes(features: u64) -> u32 {
    if features & (VERSION_1 | MRG_RXBUF) == 0 { OLD_HEADER_BYTES } else { HEADER_BYTES }
}

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// Headers in front of those that may be cut: Ethernet and IPv4.
const LEAST_TCP_AT: u16 = 34;
/// Where a TCP header has its checksum and its own length.
pub const TCP_CHECKSUM: u16 = 16;
const TCP_OFFSET: u32 = 12;

/// Segments that a frame may be left to be cut into: of 64 KB, those of the smallest size that Linux sends
/// (`tcp_min_snd_mss`, 48 bytes less 12 of options).
const MAX_SEGMENTS: u32 = 65_536 / 36;

/// A header that contradicts its frame, or the negotiated features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeader;

/// The offloads that the header of a frame of `len` bytes asks for, with these features; `byte` reads one byte of the frame.
#[inline(always)]
pub fn parse(
    header: &[u8; HEADER_BYTES as usize],
    len: u32,
    features: u64,
    byte: impl FnOnce(u32) -> u8,
) -> Result<Offload, BadHeader> {
    if header[0] & NEEDS_CSUM == 0 && header[1] == GSO_NONE {
        return Ok(Offload::NONE);
    }
    parse_offload(header, len, features, byte)
}

#[inline(never)]
fn parse_offload(
    header: &[u8; HEADER_BYTES as usize],
    len: u32,
    features: u64,
    byte: impl FnOnce(u32) -> u8,
) -> Result<Offload, BadHeader> {
    let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (segment, start, offset) = (number(4), number(6), number(8));
    let covered = u32::from(start) + u32::from(offset) + 2;
    if header[0] & NEEDS_CSUM == 0 || features & CSUM == 0 || start < 14 || covered > len {
        return Err(BadHeader);
    }
    let checksum = Some((start, offset));
    let (segmentation, feature) = match header[1] {
        GSO_NONE => return Ok(Offload { checksum, ..Offload::NONE }),
        GSO_TCPV4 => (Segmentation::Tcp4, HOST_TSO4),
        GSO_TCPV6 => (Segmentation::Tcp6, HOST_TSO6),
        _ => return Err(BadHeader),
    };
    let start_u32 = u32::from(start);
    if features & feature == 0 || segment == 0 || offset != TCP_CHECKSUM || start < LEAST_TCP_AT || start_u32 + 20 > len
    {
        return Err(BadHeader);
    }
    // The length of the headers that a guest gives is a hint only (5.1.6.2.1); the TCP header says it.
    let headers = start_u32 + u32::from(byte(start_u32 + TCP_OFFSET) >> 4) * 4;
    if headers < start_u32 + 20 || headers > len {
        return Err(BadHeader);
    }
    let offload = Offload { checksum, segmentation, segment, headers: headers as u16, verified: false };
    if offload.segments(len) > MAX_SEGMENTS { Err(BadHeader) } else { Ok(offload) }
}

/// The header for a frame in `buffers` of the guest's buffers, which asks the guest for the offloads of `offload`.
#[inline(always)]
pub fn emit(offload: &Offload, buffers: u16) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[10..12].copy_from_slice(&buffers.to_le_bytes());
    if offload.verified {
        header[0] = DATA_VALID;
    }
    if let Some((start, offset)) = offload.checksum {
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&start.to_le_bytes());
        header[8..10].copy_from_slice(&offset.to_le_bytes());
    }
    let kind = match offload.segmentation {
        Segmentation::None => return header,
        Segmentation::Tcp4 => GSO_TCPV4,
        Segmentation::Tcp6 => GSO_TCPV6,
    };
    header[1] = kind;
    header[2..4].copy_from_slice(&offload.headers.to_le_bytes());
    header[4..6].copy_from_slice(&offload.segment.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, gso: u8, segment: u16, start: u16, offset: u16) -> [u8; 12] {
        let mut header = [0; 12];
        (header[0], header[1]) = (flags, gso);
        header[4..6].copy_from_slice(&segment.to_le_bytes());
        header[6..8].copy_from_slice(&start.to_le_bytes());
        header[8..10].copy_from_slice(&offset.to_le_bytes());
        header
    }

    #[test]
    fn what_is_asked_for_comes_out_as_it_went_in() {
        let plain = header(0, 0, 7, 60_000, 60_000);
        assert_eq!(parse(&plain, 60, 0, |_| panic!("nothing to read")), Ok(Offload::NONE));
        let long = header(NEEDS_CSUM, GSO_TCPV6, 1_440, 54, 16);
        let offload = parse(&long, 60_000, OFFERED, |at| if at == 66 { 0x80 } else { 0 }).unwrap();
        let expected = Offload {
            checksum: Some((54, 16)),
            segmentation: Segmentation::Tcp6,
            segment: 1_440,
            headers: 86,
            verified: false,
        };
        assert_eq!(offload, expected);
        let again = emit(&offload, 3);
        assert_eq!(parse(&again, 60_000, OFFERED, |_| 0x80), Ok(expected));
        assert_eq!(again[2..4], [86, 0]);
        assert_eq!(again[10..], [3, 0]);
        assert_eq!(emit(&Offload { verified: true, ..Offload::NONE }, 1), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn absurd_headers_are_refused() {
        let good = [NEEDS_CSUM as u16, GSO_TCPV4 as u16, 1_460, 34, 16];
        let with = |change: (usize, u16), len, features, doff| {
            let mut n = good;
            n[change.0] = change.1;
            parse(&header(n[0] as u8, n[1] as u8, n[2], n[3], n[4]), len, features, |_| doff)
        };
        assert!(with((2, 1_460), 4_000, OFFERED, 0x50).is_ok());
        for (change, len, features, doff) in [
            ((0, 0), 4_000, OFFERED, 0x50),                  // segments without a checksum
            ((1, 2), 4_000, OFFERED, 0x50),                  // no such kind
            ((1, 3), 4_000, OFFERED, 0x50),                  // UDP was not offered
            ((1, 0x81), 4_000, OFFERED, 0x50),               // ECN was not
            ((2, 0), 4_000, OFFERED, 0x50),                  // segments of nothing
            ((2, 2), 4_000, OFFERED, 0x50),                  // a frame of a byte or two for each
            ((3, 13), 4_000, OFFERED, 0x50),                 // sums the addresses
            ((3, 20), 4_000, OFFERED, 0x50),                 // no room for an IP header
            ((3, 65_535), 4_000, OFFERED, 0x50),             // beyond the end
            ((3, 3_983), 4_000, OFFERED, 0x50),              // the last byte beyond the end
            ((4, 6), 4_000, OFFERED, 0x50),                  // not TCP's
            ((4, 65_535), 4_000, OFFERED, 0x50),             // beyond the end
            ((2, 1_460), 53, OFFERED, 0x50),                 // TCP header cut off
            ((2, 1_460), 4_000, OFFERED, 0x40),              // TCP header shorter than one
            ((2, 1_460), 60, OFFERED, 0xf0),                 // TCP header beyond the end
            ((2, 1_460), 4_000, OFFERED & !HOST_TSO4, 0x50), // not agreed on
            ((2, 1_460), 4_000, OFFERED & !CSUM, 0x50),
        ] {
            assert_eq!(with(change, len, features, doff), Err(BadHeader), "{change:?} {len} {doff:x}");
        }
    }
}
