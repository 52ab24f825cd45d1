//! Offloads in software: finishing a sender's checksum, and cutting a long TCP segment.
//!
//! A frame with an unfinished checksum holds the sum of the pseudo header in its checksum field. The sender gives the
//! offset at which summing starts, and the offset of the field behind it (virtio 1.2, 5.1.6.2). A frame to be cut has one
//! set of headers for all its payload; [`Cutter`] makes the frames that a network card would make.

use crate::Error;
use crate::checksum::{Sum, checksum};
use crate::ethernet;

/// Finishes the checksum over all bytes from `start` on; the field is `offset` bytes behind `start`.
pub fn finish_checksum(frame: &mut [u8], start: usize, offset: usize) -> Result<(), Error> {
    let covered = frame.get_mut(start..).ok_or(Error::Truncated)?;
    if offset > covered.len().saturating_sub(2) || covered.len() < 2 {
        return Err(Error::Truncated);
    }
    let sum = checksum(covered);
    // 0 would mean that there is no checksum (RFC 768); for TCP both values mean zero.
    let sum = if sum == 0 { 0xFFFF } else { sum };
    covered[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Version of the IP header of a frame to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    V4,
    /// IPv6, with or without extension headers.
    V6,
}

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
const TCP: u8 = 6;

/// Cuts a long TCP segment into frames.
#[derive(Clone, Copy, Debug)]
pub struct Cutter<'a> {
    frame: &'a [u8],
    network: Network,
    /// Offsets of the IP header, the TCP header and the payload.
    ip: usize,
    tcp: usize,
    headers: usize,
    segment: usize,
}

impl<'a> Cutter<'a> {
    /// For a frame with its TCP header at `tcp`, to be cut into segments of `segment` bytes. Its lengths and checksums are
    /// ignored and written anew.
    pub fn new(frame: &'a [u8], network: Network, tcp: usize, segment: usize) -> Result<Cutter<'a>, Error> {
        let mut ip = ethernet::HEADER_LEN;
        // 802.1Q and 802.1ad tags.
        while matches!(frame.get(ip - 2..ip), Some([0x81, 0x00] | [0x88, 0xA8])) && ip < ethernet::HEADER_LEN + 8 {
            ip += 4;
        }
        let expected: &[u8] = if network == Network::V4 { &[0x08, 0x00] } else { &[0x86, 0xDD] };
        if frame.get(ip - 2..ip).ok_or(Error::Truncated)? != expected {
            return Err(Error::Unsupported);
        }
        let first = *frame.get(ip).ok_or(Error::Truncated)?;
        let (version, at_least) = if network == Network::V4 { (4, 20) } else { (6, 40) };
        if first >> 4 != version {
            return Err(Error::Unsupported);
        }
        if tcp < ip + at_least || frame.len() < tcp + 20 {
            return Err(Error::Truncated);
        }
        if network == Network::V4 && (tcp - ip != usize::from(first & 15) * 4 || frame[ip + 9] != TCP) {
            return Err(Error::Unsupported);
        }
        if network == Network::V6 && tcp == ip + at_least && frame[ip + 6] != TCP {
            return Err(Error::Unsupported);
        }
        let headers = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
        if headers < tcp + 20 || headers > frame.len() {
            return Err(Error::Truncated);
        }
        if segment == 0 || headers - ip + segment > usize::from(u16::MAX) {
            return Err(Error::Length);
        }
        Ok(Cutter { frame, network, ip, tcp, headers, segment })
    }

    /// Bytes of the headers in front of each segment.
    pub fn headers(&self) -> usize {
        self.headers
    }

    /// Number of frames, at least one.
    pub fn count(&self) -> usize {
        (self.frame.len() - self.headers).div_ceil(self.segment).max(1)
    }

    /// Bytes of frame `k`.
    pub fn len(&self, k: usize) -> usize {
        self.headers + (self.frame.len() - self.headers - k * self.segment).min(self.segment)
    }

    /// Whether there are no frames, which is never the case.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes frame `k` (below [`Cutter::count`]) and returns its length; `into` has at least [`Cutter::len`] bytes. With
    /// `left` the checksum stays unfinished, as in the long segment.
    pub fn emit(&self, k: usize, left: bool, into: &mut [u8]) -> usize {
        let Cutter { frame, ip, tcp, headers, .. } = *self;
        let len = self.len(k);
        let from = headers + k * self.segment;
        let into = &mut into[..len];
        into[..headers].copy_from_slice(&frame[..headers]);
        into[headers..].copy_from_slice(&frame[from..from + len - headers]);

        let mut pseudo = Sum::default();
        match self.network {
            Network::V4 => {
                let id = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]).wrapping_add(k as u16);
                into[ip + 2..ip + 4].copy_from_slice(&((len - ip) as u16).to_be_bytes());
                into[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
                into[ip + 10..ip + 12].fill(0);
                let sum = checksum(&into[ip..tcp]);
                into[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
                pseudo.add(&into[ip + 12..ip + 20]);
            }
            Network::V6 => {
                into[ip + 4..ip + 6].copy_from_slice(&((len - ip - 40) as u16).to_be_bytes());
                pseudo.add(&into[ip + 8..ip + 40]);
            }
        }
        pseudo.add(&[0, TCP]);
        pseudo.add(&((len - tcp) as u16).to_be_bytes());

        let sequence = u32::from_be_bytes([frame[tcp + 4], frame[tcp + 5], frame[tcp + 6], frame[tcp + 7]]);
        let sequence = sequence.wrapping_add((k * self.segment) as u32);
        into[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        if k > 0 {
            // CWR answers one echo and is sent only once (RFC 3168, 6.1.2).
            into[tcp + 13] &= !CWR;
        }
        if k + 1 < self.count() {
            into[tcp + 13] &= !(FIN | PSH);
        }
        into[tcp + 16..tcp + 18].copy_from_slice(&(!pseudo.checksum()).to_be_bytes());
        if !left {
            let sum = checksum(&into[tcp..]);
            into[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, check};
    use std::vec;
    use std::vec::Vec;

    /// A long TCP segment: headers of random lengths with `payload` behind them; and the offsets of its IP and TCP headers.
    fn long(random: &mut Random, network: Network, payload: usize) -> (Vec<u8>, usize, usize) {
        let mut frame = random.bytes(12);
        for _ in 0..random.below(3) {
            frame.extend([0x81, 0x00]);
            frame.extend(random.bytes(2));
        }
        let ip = frame.len() + 2;
        match network {
            Network::V4 => {
                let words = 5 + random.below(11) as usize;
                frame.extend([0x08, 0x00, 0x40 | words as u8]);
                frame.extend(random.bytes(4 * words - 1));
                frame[ip + 9] = TCP;
            }
            Network::V6 => {
                frame.extend([0x86, 0xDD, 0x60]);
                frame.extend(random.bytes(39));
                frame[ip + 6] = TCP;
            }
        }
        let tcp = frame.len();
        let words = 5 + random.below(11) as usize;
        frame.extend(random.bytes(4 * words));
        frame[tcp + 12] = (words as u8) << 4;
        frame.extend(random.bytes(payload));
        (frame, ip, tcp)
    }

    fn network(random: &mut Random) -> Network {
        if random.bool() { Network::V4 } else { Network::V6 }
    }

    /// The receiver's sum over pseudo header and segment; 0 if the checksum is right.
    fn received(network: Network, frame: &[u8], ip: usize, tcp: usize) -> u16 {
        let addresses = if network == Network::V4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
        let mut bytes = frame[addresses].to_vec();
        bytes.extend([0, TCP]);
        bytes.extend(((frame.len() - tcp) as u16).to_be_bytes());
        bytes.extend(&frame[tcp..]);
        checksum(&bytes)
    }

    #[test]
    fn the_frames_put_together_are_the_long_one_and_each_is_right_by_itself() {
        check(|random| {
            let network = network(random);
            let payload = random.below(6_000) as usize;
            let segment = 1 + random.below(2_000) as usize + payload / 200;
            let (frame, ip, tcp) = long(random, network, payload);
            let cutter = Cutter::new(&frame, network, tcp, segment).unwrap();
            let headers = cutter.headers();
            assert_eq!(headers + payload, frame.len());
            let mut joined = Vec::new();
            for k in 0..cutter.count() {
                let mut made = vec![0xEE; cutter.len(k)];
                assert_eq!(cutter.emit(k, false, &mut made), made.len());
                assert_eq!(received(network, &made, ip, tcp), 0);
                let last = k + 1 == cutter.count();
                assert!(made.len() == headers + segment || last);
                let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
                assert_eq!(
                    number(&made[tcp + 4..tcp + 8]),
                    number(&frame[tcp + 4..tcp + 8]).wrapping_add(joined.len() as u32)
                );
                let flags = frame[tcp + 13] & if last { 0xFF } else { !(FIN | PSH) };
                assert_eq!(made[tcp + 13], flags & if k == 0 { 0xFF } else { !CWR });
                // All bytes except lengths, numbers, flags and checksums are copied.
                assert_eq!(made[..ip], frame[..ip]);
                match network {
                    Network::V4 => {
                        assert_eq!(checksum(&made[ip..tcp]), 0);
                        assert_eq!(made[ip + 2..ip + 4], ((made.len() - ip) as u16).to_be_bytes());
                        let id = |f: &[u8]| u16::from_be_bytes([f[ip + 4], f[ip + 5]]);
                        assert_eq!(id(&made), id(&frame).wrapping_add(k as u16));
                        assert_eq!(made[ip + 12..tcp], frame[ip + 12..tcp]);
                    }
                    Network::V6 => {
                        assert_eq!(made[ip + 4..ip + 6], ((made.len() - ip - 40) as u16).to_be_bytes());
                        assert_eq!(made[ip + 6..tcp], frame[ip + 6..tcp]);
                    }
                }
                // Finishing the checksum later gives the same result.
                let mut later = vec![0; made.len()];
                cutter.emit(k, true, &mut later);
                finish_checksum(&mut later, tcp, 16).unwrap();
                assert_eq!(received(network, &later, ip, tcp), 0);
                joined.extend_from_slice(&made[headers..]);
            }
            assert_eq!(joined, frame[headers..]);
        });
    }

    #[test]
    fn a_finished_checksum_is_one_that_a_receiver_accepts() {
        check(|random| {
            let (start, offset) = (random.below(60) as usize, 2 * random.below(20) as usize);
            let len = start + offset + 2 + random.below(100) as usize;
            let mut frame = random.bytes(len);
            let pseudo: [u8; 8] = random.array();
            let mut sum = Sum::default();
            sum.add(&pseudo);
            frame[start + offset..start + offset + 2].copy_from_slice(&(!sum.checksum()).to_be_bytes());
            finish_checksum(&mut frame, start, offset).unwrap();
            let mut all = pseudo.to_vec();
            all.extend(&frame[start..]);
            assert_eq!(checksum(&all), 0);
            assert_ne!(frame[start + offset..start + offset + 2], [0, 0]);
        });
    }

    #[test]
    fn numbers_that_lie_are_refused_and_nothing_panics() {
        let mut seen = [0u32; 2];
        check(|random| {
            let network = network(random);
            let len = random.below(300) as usize;
            let (mut frame, _, mut tcp) = long(random, network, len);
            for _ in 0..random.below(4) {
                let at = random.below(frame.len() as u64) as usize;
                frame[at] = random.u64() as u8;
            }
            if random.below(4) == 0 {
                tcp = random.below(400) as usize;
            }
            let frame = &frame[..frame.len() - random.below(frame.len() as u64 / 2) as usize];
            let segment = random.below(70_000) as usize;
            let cut = Cutter::new(frame, network, tcp, segment);
            seen[cut.is_ok() as usize] += 1;
            if let Ok(cutter) = cut {
                let mut into = vec![0; frame.len()];
                for k in 0..cutter.count() {
                    cutter.emit(k, false, &mut into);
                }
            }
            let (start, offset) = (random.below(400) as usize, random.below(70_000) as usize);
            let inside = start + offset + 2 <= frame.len();
            assert_eq!(finish_checksum(&mut frame.to_vec(), start, offset).is_ok(), inside);
        });
        assert!(seen.iter().all(|&n| n > 1_000), "{seen:?}");
    }
}
