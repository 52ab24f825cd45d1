//! Fragmentation of IPv4 datagrams (RFC 791, 2.3 and 3.2).

use crate::Error;
use crate::checksum::checksum;
use crate::ipv4::HEADER_LEN;

/// Bytes of the longest header.
const HEADER_MAX: usize = 60;
/// Offsets count in units of this many bytes.
const UNIT: usize = 8;
/// The largest datagram, header included.
const DATAGRAM_MAX: usize = 65_535;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1FFF;

/// Options of one byte: the end of the list, and no operation.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
/// "This option is copied into all fragments on fragmentation" (RFC 791, 3.1).
const COPIED: u8 = 0x80;

/// The fragments of a datagram, or of a fragment that is still too large.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    header: &'a [u8],
    payload: &'a [u8],
    /// The header of all fragments but the first, with the options that are copied.
    later: [u8; HEADER_MAX],
    later_len: usize,
    /// Bytes of payload in the first fragment and in each later one but the last.
    first: usize,
    each: usize,
}

impl<'a> Fragments<'a> {
    /// Fragments of at most `mtu` bytes. Bytes behind the packet are padding and are left out.
    ///
    /// # Errors
    /// A datagram that must not be fragmented is [`Error::Fragment`]. A header with a wrong checksum, length or option, and
    /// a fragment that ends behind the largest datagram, are the other errors. So is an `mtu` below the 68 bytes that every
    /// link has to carry: [`Error::Length`].
    pub fn new(packet: &'a [u8], mtu: usize) -> Result<Fragments<'a>, Error> {
        let fixed = packet.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        if fixed[0] >> 4 != 4 {
            return Err(Error::Unsupported);
        }
        let header_len = usize::from(fixed[0] & 0x0F) * 4;
        let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if header_len < HEADER_LEN || total_len < header_len || mtu < HEADER_MAX + UNIT {
            return Err(Error::Length);
        }
        let (header, payload) = packet.get(..total_len).ok_or(Error::Truncated)?.split_at(header_len);
        if checksum(header) != 0 {
            return Err(Error::Checksum);
        }
        let field = u16::from_be_bytes([fixed[6], fixed[7]]);
        if field & DONT_FRAGMENT != 0 {
            return Err(Error::Fragment);
        }
        if usize::from(field & OFFSET) * UNIT + payload.len() > DATAGRAM_MAX {
            return Err(Error::Length);
        }
        let (later, later_len) = later_header(header)?;
        let room = |header_len: usize| (mtu - header_len) / UNIT * UNIT;
        let whole = total_len <= mtu;
        let first = if whole { payload.len() } else { room(header_len) };
        Ok(Fragments { header, payload, later, later_len, first, each: room(later_len) })
    }

    /// Number of fragments, at least one.
    pub fn count(&self) -> usize {
        1 + (self.payload.len() - self.first).div_ceil(self.each)
    }

    /// Appends fragment `k` (below [`Fragments::count`]) to `out`.
    pub fn emit(&self, k: usize, out: &mut impl Extend<u8>) {
        let start = if k == 0 { 0 } else { self.first + (k - 1) * self.each };
        let end = (start + if k == 0 { self.first } else { self.each }).min(self.payload.len());
        let from = if k == 0 { self.header } else { &self.later[..self.later_len] };
        let mut header = [0; HEADER_MAX];
        let header = &mut header[..from.len()];
        header.copy_from_slice(from);
        let field = u16::from_be_bytes([header[6], header[7]]) + (start / UNIT) as u16;
        let more = if end < self.payload.len() { MORE_FRAGMENTS } else { 0 };
        let len = (header.len() + end - start) as u16;
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[6..8].copy_from_slice(&(field | more).to_be_bytes());
        header[10..12].fill(0);
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        out.extend(header.iter().copied());
        out.extend(self.payload[start..end].iter().copied());
    }
}

/// The header of a fragment that does not begin the datagram: its options are those with the copied flag.
fn later_header(header: &[u8]) -> Result<([u8; HEADER_MAX], usize), Error> {
    let mut later = [0; HEADER_MAX];
    later[..HEADER_LEN].copy_from_slice(&header[..HEADER_LEN]);
    let mut len = HEADER_LEN;
    let mut options = &header[HEADER_LEN..];
    while let Some(&kind) = options.first() {
        let option = match kind {
            END => break,
            NO_OPERATION => 1,
            _ => usize::from(*options.get(1).ok_or(Error::Truncated)?),
        };
        if option == 0 || kind != NO_OPERATION && option < 2 || option > options.len() {
            return Err(Error::Length);
        }
        if kind & COPIED != 0 {
            later[len..len + option].copy_from_slice(&options[..option]);
            len += option;
        }
        options = &options[option..];
    }
    // The rest of the last word is the end of the list.
    let len = len.next_multiple_of(4);
    later[0] = 0x40 | (len / 4) as u8;
    Ok((later, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{self, Random};
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    /// A datagram, or a fragment of one: options of both kinds, and `payload` bytes from unit `offset` on.
    fn packet(random: &mut Random, payload: usize, field: u16) -> Vec<u8> {
        let mut options = Vec::new();
        for _ in 0..random.below(4) {
            match random.below(3) {
                0 => options.push(NO_OPERATION),
                copied => {
                    let len = 2 + random.below(7) as usize;
                    options.extend([if copied == 1 { COPIED } else { 0 } | 7, len as u8]);
                    options.extend(random.bytes(len - 2));
                }
            }
        }
        options.resize(options.len().next_multiple_of(4), END);
        let header_len = HEADER_LEN + options.len();
        let mut bytes = random.bytes(HEADER_LEN);
        bytes[0] = 0x40 | (header_len / 4) as u8;
        bytes[2..4].copy_from_slice(&((header_len + payload) as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&field.to_be_bytes());
        bytes.extend(options);
        let sum = {
            bytes[10..12].fill(0);
            checksum(&bytes)
        };
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(random.bytes(payload));
        bytes
    }

    fn all(fragments: &Fragments<'_>) -> Vec<Vec<u8>> {
        (0..fragments.count())
            .map(|k| {
                let mut out = Vec::new();
                fragments.emit(k, &mut out);
                out
            })
            .collect()
    }

    fn field(packet: &[u8]) -> u16 {
        u16::from_be_bytes([packet[6], packet[7]])
    }

    fn header_len(packet: &[u8]) -> usize {
        usize::from(packet[0] & 15) * 4
    }

    /// The payload of a datagram as a receiver reassembles it (RFC 815), and whether its last fragment has come.
    fn reassemble(fragments: &[Vec<u8>]) -> (Vec<u8>, bool) {
        let mut parts = BTreeMap::new();
        let mut last = false;
        for f in fragments {
            let (at, payload) = (usize::from(field(f) & OFFSET) * UNIT, &f[header_len(f)..]);
            assert!(parts.insert(at, payload.to_vec()).is_none(), "no two fragments begin at one offset");
            last |= field(f) & MORE_FRAGMENTS == 0;
        }
        let first = *parts.keys().next().unwrap();
        let mut joined = Vec::new();
        for (at, part) in parts {
            assert_eq!(at, first + joined.len(), "no hole and no overlap");
            joined.extend(part);
        }
        (joined, last)
    }

    #[test]
    fn the_fragments_put_together_are_the_datagram_and_each_fits() {
        random::check(|random| {
            let payload = random.below(5_000) as usize;
            let mtu = 68 + random.below(1_500) as usize;
            // An earlier router may have cut it already: then all but its last fragment end at a unit.
            let offset = random.below(100) as u16;
            let more = random.bool();
            let payload = if more { payload / UNIT * UNIT } else { payload };
            let original = packet(random, payload, offset | if more { MORE_FRAGMENTS } else { 0 });
            let mut padded = original.clone();
            padded.resize(original.len() + random.below(20) as usize, 0xEE);
            let fragments = all(&Fragments::new(&padded, mtu).unwrap());
            for (k, f) in fragments.iter().enumerate() {
                assert!(f.len() <= mtu);
                assert_eq!(checksum(&f[..header_len(f)]), 0);
                assert_eq!(usize::from(u16::from_be_bytes([f[2], f[3]])), f.len());
                // Type of service, identification, time to live, protocol and addresses are copied.
                assert_eq!(f[1], original[1]);
                assert_eq!([&f[4..6], &f[8..10], &f[12..20]], [&original[4..6], &original[8..10], &original[12..20]]);
                assert_eq!(field(f) & DONT_FRAGMENT, 0);
                let is_last = k + 1 == fragments.len();
                assert_eq!(field(f) & MORE_FRAGMENTS != 0, more || !is_last);
                assert!(is_last || (f.len() - header_len(f)) % UNIT == 0);
                // None could have been longer by a unit.
                assert!(is_last || f.len() + UNIT > mtu);
            }
            assert_eq!(
                fragments[0][HEADER_LEN..header_len(&fragments[0])],
                original[HEADER_LEN..header_len(&original)]
            );
            let (joined, last) = reassemble(&fragments);
            assert_eq!((&joined[..], last), (&original[header_len(&original)..], !more));
            assert_eq!(usize::from(field(&fragments[0]) & OFFSET), offset.into());
            // A second router on the way cuts the fragments again.
            let again = 68 + random.below(300) as usize;
            let twice: Vec<_> = fragments.iter().flat_map(|f| all(&Fragments::new(f, again).unwrap())).collect();
            assert!(twice.iter().all(|f| f.len() <= again.max(68)));
            assert_eq!(reassemble(&twice), (joined, last));
        });
        let valid = |random: &mut Random| packet(random, 200, 0);
        random::never_panics(valid, |bytes| Fragments::new(bytes, 100).is_ok_and(|f| !all(&f).is_empty()));
    }

    #[test]
    fn options_are_copied_by_their_bit() {
        let mut bytes = vec![0x49, 0, 0, 0, 1, 2, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        // No operation, record route (not copied), loose source route (copied), end.
        bytes.extend([1, 7, 3, 4, 131, 7, 4, 9, 9, 9, 9, 1, 1, 0, 0, 0]);
        bytes.extend([5; 100]);
        let len = (bytes.len() as u16).to_be_bytes();
        bytes[2..4].copy_from_slice(&len);
        let sum = checksum(&bytes[..36]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        let fragments = all(&Fragments::new(&bytes, 76).unwrap());
        assert_eq!(fragments[0][20..36], bytes[20..36]);
        assert_eq!(fragments[0].len(), 36 + 40);
        assert_eq!(fragments[1][..4], [0x47, 0, 0, 28 + 48]);
        assert_eq!(fragments[1][20..28], [131, 7, 4, 9, 9, 9, 9, 0]);
        assert_eq!(fragments.iter().map(|f| field(f)).collect::<Vec<_>>(), [0x2000, 0x2005, 0x000B]);
    }

    #[test]
    fn a_datagram_that_must_not_be_cut_or_cannot_be_is_refused() {
        let mut random = Random::new(7);
        let refused = |bytes: &[u8]| Fragments::new(bytes, 576).err();
        assert_eq!(refused(&packet(&mut random, 1_000, DONT_FRAGMENT)), Some(Error::Fragment));
        // A fragment that would end behind byte 65,535 ("ping of death").
        assert_eq!(refused(&packet(&mut random, 1_000, 8_100)), Some(Error::Length));
        assert_eq!(refused(&packet(&mut random, 1_000, 8_000)), None);
        let good = packet(&mut random, 1_000, 0);
        assert_eq!(refused(&good[..good.len() - 1]), Some(Error::Truncated));
        let mut damaged = good.clone();
        damaged[9] ^= 1;
        assert_eq!(refused(&damaged), Some(Error::Checksum));
        assert_eq!(Fragments::new(&good, 67).err(), Some(Error::Length));
        // An option that is longer than the options, and one without a length.
        for option in [[0x87, 5, 0, 0], [0x87, 1, 0, 0], [1, 1, 1, 0x87]] {
            let mut bytes = vec![0x46, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            bytes.extend(option);
            let sum = checksum(&bytes);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            assert!(refused(&bytes).is_some(), "{option:?}");
        }
    }
}
