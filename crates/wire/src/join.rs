//! Joins consecutive TCP segments of one stream into one long segment: the inverse of
//! [`offload::Cutter`](crate::offload::Cutter).
//!
//! Only segments that can be separated again are joined. All headers are equal except for lengths, numbers and checksums,
//! each segment but the last has the same length, and every checksum is right. So cutting restores the same segments, and
//! damaged segments stay damaged.

use crate::checksum::{Sum, checksum};
use crate::ethernet::{EtherType, HEADER_LEN};
use crate::ipv4;
use crate::offload::Network;
use crate::seq::SeqNumber;

/// Most bytes of all headers: Ethernet, IPv6, TCP with its options.
pub const HEADERS_MAX: usize = HEADER_LEN + IPV6 + 60;

const IPV6: usize = 40;
const TCP: u8 = 6;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;
/// Flags that belong to a single segment, or mean something else in each.
const ALONE: u8 = SYN | RST | URG | CWR;

/// The first of several segments, and the number of segments joined.
#[derive(Clone, Copy, Debug)]
pub struct Joiner {
    network: Network,
    tcp: usize,
    headers: usize,
    /// Payload bytes of each segment but the last, and of all segments.
    segment: usize,
    payload: usize,
    next: SeqNumber,
    frames: usize,
    /// No segment may follow: the last one was short, or ended the sequence by a flag.
    ended: bool,
    /// Whether the first segment's checksums are known to be right.
    is_sound: bool,
}

/// A segment with a payload in a frame of the right length, without a tag, without IP options or extensions, and
/// unfragmented.
struct Segment<'a> {
    network: Network,
    tcp: usize,
    headers: usize,
    frame: &'a [u8],
}

impl<'a> Segment<'a> {
    fn of(frame: &'a [u8]) -> Option<Segment<'a>> {
        let kind = frame.get(HEADER_LEN - 2..HEADER_LEN)?;
        let behind = frame.len() - HEADER_LEN;
        let (network, tcp) = if kind == EtherType::IPV4.0.to_be_bytes() {
            let ip = frame[HEADER_LEN..].first_chunk::<{ ipv4::HEADER_LEN }>()?;
            // Neither a fragment nor with the reserved bit set.
            let is_whole = ip[6] & 0xBF == 0 && ip[7] == 0;
            let is_it = ip[0] == 0x45 && ip[9] == TCP && is_whole && number(ip, 2) == behind;
            is_it.then_some((Network::V4, HEADER_LEN + ipv4::HEADER_LEN))?
        } else if kind == EtherType::IPV6.0.to_be_bytes() {
            let ip = frame[HEADER_LEN..].first_chunk::<IPV6>()?;
            let is_it = ip[0] >> 4 == 6 && ip[6] == TCP && number(ip, 4) + IPV6 == behind;
            is_it.then_some((Network::V6, HEADER_LEN + IPV6))?
        } else {
            return None;
        };
        let header = frame[tcp..].first_chunk::<20>()?;
        let headers = tcp + usize::from(header[12] >> 4) * 4;
        let is_data = header[13] & ACK != 0 && header[13] & ALONE == 0 && headers >= tcp + 20 && headers < frame.len();
        is_data.then_some(Segment { network, tcp, headers, frame })
    }

    fn sequence(&self) -> SeqNumber {
        let at = self.tcp + 4;
        let bytes = self.frame[at..].first_chunk().copied().unwrap_or_default();
        SeqNumber(u32::from_be_bytes(bytes))
    }

    fn is_last(&self) -> bool {
        self.frame[self.tcp + 13] & (FIN | PSH) != 0
    }

    /// Whether the checksums are right; `verified`: TCP's checksum was checked before.
    fn is_sound(&self, verified: bool) -> bool {
        let Segment { network, tcp, frame, .. } = *self;
        (network == Network::V6 || checksum(&frame[HEADER_LEN..tcp]) == 0)
            && (verified || {
                let mut sum = pseudo(network, frame, frame.len() - tcp);
                sum.add(&frame[tcp..]);
                sum.checksum() == 0
            })
    }
}

impl Joiner {
    /// A joiner that begins with a frame. Only a TCP segment can be followed by others.
    pub fn new(first: &[u8]) -> Joiner {
        let Some(segment) = Segment::of(first) else {
            let network = Network::V4;
            let next = SeqNumber(0);
            return Joiner {
                network,
                tcp: 0,
                headers: 0,
                segment: 0,
                payload: 0,
                next,
                frames: 1,
                ended: true,
                is_sound: false,
            };
        };
        let payload = first.len() - segment.headers;
        Joiner {
            network: segment.network,
            tcp: segment.tcp,
            headers: segment.headers,
            segment: payload,
            payload,
            next: segment.sequence() + payload as u32,
            frames: 1,
            ended: segment.is_last(),
            is_sound: false,
        }
    }

    /// Joins the next frame if it continues the segments so far; returns whether it does. `verified` says whether TCP's
    /// checksum is known to be right, for `first` and for `frame`.
    pub fn takes(&mut self, first: &[u8], frame: &[u8], verified: (bool, bool)) -> bool {
        let Joiner { network, tcp, headers, .. } = *self;
        if self.ended || frame.len() > headers + self.segment {
            return false;
        }
        let Some(segment) = Segment::of(frame) else { return false };
        let payload = frame.len() - headers.min(frame.len());
        let fits = headers - HEADER_LEN + self.payload + payload <= usize::from(u16::MAX);
        let follows = (segment.network, segment.tcp, segment.headers) == (network, tcp, headers) && fits;
        if !follows || segment.sequence() != self.next || !self.is_alike(first, frame) {
            return false;
        }
        self.is_sound = self.is_sound || Segment { frame: first, ..segment }.is_sound(verified.0);
        if !self.is_sound || !segment.is_sound(verified.1) {
            return false;
        }
        self.frames += 1;
        self.payload += payload;
        self.next = self.next + payload as u32;
        self.ended = payload < self.segment || segment.is_last();
        true
    }

    /// Whether all header fields except lengths, numbers and checksums are equal, so that cutting makes the same frames.
    fn is_alike(&self, first: &[u8], frame: &[u8]) -> bool {
        let Joiner { network, tcp, headers, frames, .. } = *self;
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let ip = HEADER_LEN;
        let network = match network {
            Network::V4 => {
                // If fragmentation is forbidden, the identification is meaningless (RFC 6864, 4.1).
                let id = (number(first, ip + 4) as u16).wrapping_add(frames as u16);
                let in_turn = first[ip + 6] & 0x40 != 0 || usize::from(id) == number(frame, ip + 4);
                in_turn && same(0, ip + 2) && same(ip + 6, ip + 10) && same(ip + 12, tcp)
            }
            Network::V6 => same(0, ip + 4) && same(ip + 6, tcp),
        };
        let flags = (first[tcp + 13] ^ frame[tcp + 13]) & !(FIN | PSH);
        // Ports, acknowledgement, length of the header, window, urgent pointer, options.
        let transport = same(tcp, tcp + 4) && same(tcp + 8, tcp + 13) && same(tcp + 14, tcp + 16);
        network && flags == 0 && transport && same(tcp + 18, headers)
    }

    /// Number of segments joined.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of the headers in front of each segment, and so in front of the joined payload.
    pub fn headers(&self) -> usize {
        self.headers
    }

    /// Offset of the TCP header.
    pub fn transport(&self) -> usize {
        self.tcp
    }

    /// Version of the IP header.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Payload bytes of each segment but the last.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// Writes the headers of the long segment, [`Joiner::headers`] bytes in all; TCP's checksum is left to be finished.
    ///
    /// # Panics
    /// If `first` is not the frame that the joiner began with.
    pub fn emit(&self, first: &[u8], last: &[u8], into: &mut [u8; HEADERS_MAX]) {
        let Joiner { network, tcp, headers, payload, .. } = *self;
        let (ip, behind) = (HEADER_LEN, headers - HEADER_LEN + payload);
        into[..headers].copy_from_slice(&first[..headers]);
        match network {
            Network::V4 => {
                into[ip + 2..ip + 4].copy_from_slice(&(behind as u16).to_be_bytes());
                into[ip + 10..ip + 12].fill(0);
                let sum = checksum(&into[ip..tcp]);
                into[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
            }
            Network::V6 => into[ip + 4..ip + 6].copy_from_slice(&((behind - IPV6) as u16).to_be_bytes()),
        }
        into[tcp + 13] |= last[tcp + 13] & (FIN | PSH);
        let sum = !pseudo(network, &into[..], headers - tcp + payload).checksum();
        into[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// The sum of the pseudo header of a segment of `len` bytes.
fn pseudo(network: Network, frame: &[u8], len: usize) -> Sum {
    let mut sum = Sum::default();
    let (from, to) = match network {
        Network::V4 => (HEADER_LEN + 12, HEADER_LEN + ipv4::HEADER_LEN),
        Network::V6 => (HEADER_LEN + 8, HEADER_LEN + IPV6),
    };
    sum.add(&frame[from..to]);
    sum.add(&[0, TCP]);
    sum.add(&(len as u16).to_be_bytes());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Cutter;
    use crate::random::{Random, check};
    use std::vec;
    use std::vec::Vec;

    /// A long segment of `payload` bytes with random headers, and the offset of its TCP header.
    fn long(random: &mut Random, network: Network, payload: usize) -> (Vec<u8>, usize) {
        let mut frame = random.bytes(12);
        let words = 5 + random.below(11) as usize;
        let tcp = match network {
            Network::V4 => {
                frame.extend([0x08, 0x00, 0x45]);
                frame.extend(random.bytes(19));
                let ip = HEADER_LEN;
                (frame[ip + 6], frame[ip + 7], frame[ip + 9]) = (0x40 * random.below(2) as u8, 0, TCP);
                HEADER_LEN + 20
            }
            Network::V6 => {
                frame.extend([0x86, 0xDD, 0x60]);
                frame.extend(random.bytes(39));
                frame[HEADER_LEN + 6] = TCP;
                HEADER_LEN + IPV6
            }
        };
        frame.extend(random.bytes(4 * words));
        frame[tcp + 12] = (words as u8) << 4;
        frame[tcp + 13] = frame[tcp + 13] & !ALONE | ACK;
        frame.extend(random.bytes(payload));
        (frame, tcp)
    }

    fn cut(long: &[u8], network: Network, tcp: usize, segment: usize) -> Vec<Vec<u8>> {
        let cutter = Cutter::new(long, network, tcp, segment).unwrap();
        let one = |k| {
            let mut frame = vec![0; cutter.len(k)];
            cutter.emit(k, false, &mut frame);
            frame
        };
        (0..cutter.count()).map(one).collect()
    }

    /// Joins the first frames; returns the joiner and the long segment.
    fn join(frames: &[Vec<u8>]) -> (Joiner, Vec<u8>) {
        let mut joiner = Joiner::new(&frames[0]);
        let n = 1 + frames[1..].iter().take_while(|f| joiner.takes(&frames[0], f, (false, false))).count();
        assert_eq!(joiner.frames(), n);
        if n == 1 {
            return (joiner, frames[0].clone());
        }
        let mut headers = [0; HEADERS_MAX];
        joiner.emit(&frames[0], &frames[n - 1], &mut headers);
        let mut bytes = headers[..joiner.headers()].to_vec();
        frames[..n].iter().for_each(|f| bytes.extend(&f[joiner.headers()..]));
        (joiner, bytes)
    }

    fn network(random: &mut Random) -> Network {
        if random.bool() { Network::V4 } else { Network::V6 }
    }

    #[test]
    fn what_was_cut_is_joined_and_what_is_joined_is_cut_into_the_same_frames() {
        let mut runs = 0;
        check(|random| {
            let network = network(random);
            let segment = 1 + random.below(1_500) as usize;
            let payload = 1 + random.below(20 * segment as u64) as usize;
            let (frame, tcp) = long(random, network, payload);
            let mut frames = cut(&frame, network, tcp, segment);
            // A segment of another stream follows.
            frames.extend(cut(&long(random, network, 100).0, network, tcp, 100));
            let (joiner, joined) = join(&frames);
            let n = joiner.frames();
            runs += n;
            // The last segment may have an end flag; the stranger is never taken.
            assert!(n == frames.len() - 1, "{n} of {}", frames.len());
            if n == 1 {
                return;
            }
            assert_eq!((joiner.network(), joiner.transport(), joiner.segment()), (network, tcp, segment));
            assert_eq!(cut(&joined, network, tcp, segment), frames[..n]);
            let sum = pseudo(network, &joined, joined.len() - tcp).checksum();
            assert_eq!(joined[tcp + 16..tcp + 18], (!sum).to_be_bytes(), "the checksum is left to be finished");
        });
        assert!(runs > 100_000, "{runs}");
    }

    /// Four segments of 100 bytes without an end flag, and the offset of their TCP headers.
    fn four(network: Network) -> (Vec<Vec<u8>>, usize) {
        let mut random = Random::new(7);
        let (mut frame, tcp) = long(&mut random, network, 400);
        frame[tcp + 13] = ACK;
        if network == Network::V4 {
            frame[HEADER_LEN + 6] = 0;
        }
        (cut(&frame, network, tcp, 100), tcp)
    }

    /// Number of segments joined after a change of the third. With `settle` the third segment's checksums are corrected.
    fn after(network: Network, change: impl Fn(&mut Vec<u8>), settle: bool) -> usize {
        let (mut frames, tcp) = four(network);
        change(&mut frames[2]);
        if settle && frames[2].len() > tcp + 18 {
            let f = &mut frames[2];
            if network == Network::V4 {
                f[HEADER_LEN + 10..HEADER_LEN + 12].fill(0);
                let sum = checksum(&f[HEADER_LEN..tcp]);
                f[HEADER_LEN + 10..HEADER_LEN + 12].copy_from_slice(&sum.to_be_bytes());
            }
            f[tcp + 16..tcp + 18].fill(0);
            let mut sum = pseudo(network, f, f.len() - tcp);
            sum.add(&f[tcp..]);
            let sum = sum.checksum();
            f[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        }
        join(&frames).0.frames()
    }

    #[test]
    fn a_segment_that_is_damaged_or_differs_is_not_joined() {
        for network in [Network::V4, Network::V6] {
            let (frames, tcp) = four(network);
            assert_eq!(after(network, |_| (), true), 4);
            let len = frames[2].len();
            for at in 0..len {
                for bit in 0..8 {
                    // Damaged in flight: the checksums are wrong, except for bits that they do not cover.
                    let mut n = after(network, |f| f[at] ^= 1 << bit, false);
                    assert!(n <= 2, "{network:?} {at} {bit}");
                    // Sent this way: PSH and FIN end the sequence; payload bytes may differ.
                    n = after(network, |f| f[at] ^= 1 << bit, true);
                    let is_end = at == tcp + 13 && (1 << bit == FIN || 1 << bit == PSH);
                    let headers = len - 100;
                    let is_sum = (tcp + 16..tcp + 18).contains(&at)
                        || network == Network::V4 && (HEADER_LEN + 10..HEADER_LEN + 12).contains(&at);
                    let expected = if is_end {
                        3
                    } else if at >= headers || is_sum {
                        4
                    } else {
                        2
                    };
                    assert_eq!(n, expected, "{network:?} {at} {bit}");
                }
            }
            // A length that contradicts the header, or no bytes at all.
            for len in 0..len {
                assert!(after(network, |f| f.truncate(len), true) <= 2);
            }
            assert_eq!(after(network, |f| f.push(0), true), 2);
        }
    }

    #[test]
    fn a_long_segment_is_one_that_ip_can_say() {
        let mut random = Random::new(1);
        let mut frames = Vec::new();
        let (mut frame, tcp) = long(&mut random, Network::V4, 60_000);
        frame[tcp + 13] = ACK;
        frame[HEADER_LEN + 6] = 0x40;
        frames.extend(cut(&frame, Network::V4, tcp, 1_000));
        let sequence = u32::from_be_bytes(*frame[tcp + 4..].first_chunk().unwrap());
        frame[tcp + 4..tcp + 8].copy_from_slice(&sequence.wrapping_add(60_000).to_be_bytes());
        frames.extend(cut(&frame, Network::V4, tcp, 1_000));
        let (joiner, joined) = join(&frames);
        let headers = joiner.headers() - HEADER_LEN;
        assert_eq!(joiner.frames(), (65_535 - headers) / 1_000);
        assert!(joined.len() <= 65_535 + HEADER_LEN);
    }

    #[test]
    fn nothing_panics() {
        let mut joined = 0;
        check(|random| {
            let network = network(random);
            let (frame, tcp) = long(random, network, 40);
            let mut frames = cut(&frame, network, tcp, 10);
            for f in &mut frames {
                for _ in 0..random.below(2) {
                    let at = random.below(f.len() as u64) as usize;
                    f[at] = random.u64() as u8;
                }
                if random.below(4) == 0 {
                    f.truncate(random.below(f.len() as u64 + 1) as usize);
                }
            }
            let mut joiner = Joiner::new(&frames[0]);
            for f in &frames[1..] {
                // Assumes that all checksums are right.
                joined += u32::from(joiner.takes(&frames[0], f, (true, true)));
            }
            if joiner.frames() == 4 {
                joiner.emit(&frames[0], &frames[3], &mut [0; HEADERS_MAX]);
            }
        });
        assert!(joined > 1_000, "{joined}");
    }
}
