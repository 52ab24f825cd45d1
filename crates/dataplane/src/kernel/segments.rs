//! Runs of tunnel frames in one piece, as the kernel's UDP segmentation has them (`VIRTIO_NET_HDR_GSO_UDP_L4`): the headers of the
//! first frame, then the payloads of all, one behind the other. A system call, a buffer of the kernel and a way through its layers
//! is then for the run and not for each frame.

use super::sys::Header;
use sluicenet_wire::checksum::checksum;
use sluicenet_wire::vxlan;

const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const GSO_UDP_L4: u8 = 5;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IP: usize = 20;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;

/// Bytes of the headers in front of a payload: Ethernet, a tag, IPv4 without options, UDP.
pub const HEADERS: usize = ETHERNET + TAG + IP + UDP;
/// Bytes of a run behind its Ethernet header and tag: what IPv4 can say.
const LONGEST: usize = 65_535;
/// Frames of a run: the kernel makes 64 of one at most (`UDP_MAX_SEGMENTS` before Linux 6.10), and counts the Ethernet header as payload.
pub const FRAMES: usize = 63;
/// The most that is cut out of one that was received (`UDP_MAX_SEGMENTS` since).
const FRAMES_RECEIVED: usize = 128;

fn number(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Where the IPv4 header of a UDP datagram is that is whole, has no options, and has the frame's length.
fn ip_at(frame: &[u8]) -> Option<usize> {
    let ip = match frame.get(12..14)? {
        [0x08, 0x00] => ETHERNET,
        [0x81, 0x00] if frame.get(16..18)? == [0x08, 0x00] => ETHERNET + TAG,
        _ => return None,
    };
    let header = frame.get(ip..ip + IP + UDP)?;
    let total = number(header, 2);
    let whole = header[6] & 0x3f == 0 && header[7] == 0;
    let fits = total == frame.len() - ip && number(header, IP + 4) + IP == total;
    (header[0] == 0x45 && whole && header[9] == PROTOCOL_UDP && fits).then_some(ip)
}

/// A run of frames in the making.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Where the IPv4 header of the first is, and its payload; 0 of what goes by itself.
    ip: usize,
    payload: usize,
    /// Bytes of the payload of each but the last.
    each: usize,
    /// Bytes of all payloads.
    bytes: usize,
    /// Frames in it.
    pub frames: usize,
    /// A shorter one was the last.
    ended: bool,
}

impl Run {
    /// One that begins with a frame. Only a frame of the tunnel, without a checksum of UDP, has others behind it.
    pub fn new(first: &[u8]) -> Run {
        let alone = Run { ip: 0, payload: 0, each: 0, bytes: 0, frames: 1, ended: true };
        let Some(ip) = ip_at(first) else { return alone };
        let payload = ip + IP + UDP;
        let of_tunnel = number(first, ip + IP + 2) == usize::from(vxlan::UDP_PORT) && number(first, payload - 2) == 0;
        let bytes = first.len() - payload;
        Run { ip, payload, each: bytes, bytes, frames: 1, ended: !of_tunnel || bytes == 0 }
    }

    /// Whether the next frame belongs to it, which it then does: the same headers apart from lengths, identification and checksum
    /// of IPv4, and no longer than the first.
    pub fn takes(&mut self, first: &[u8], frame: &[u8]) -> bool {
        let (ip, payload) = (self.ip, self.payload);
        if self.ended || self.frames == FRAMES || frame.len() <= payload || frame.len() > first.len() {
            return false;
        }
        let bytes = frame.len() - payload;
        let alike = frame[..ip + 2] == first[..ip + 2]
            && frame[ip + 6..ip + 10] == first[ip + 6..ip + 10]
            && frame[ip + 12..ip + IP + 4] == first[ip + 12..ip + IP + 4]
            && frame[payload - 2..payload] == [0, 0]
            && number(frame, ip + 2) == frame.len() - ip
            && number(frame, ip + IP + 4) == UDP + bytes;
        if !alike || IP + UDP + self.bytes + bytes > LONGEST {
            return false;
        }
        self.frames += 1;
        self.bytes += bytes;
        self.ended = bytes < self.each;
        true
    }

    /// Where the payload of each of its frames begins.
    pub fn payload(&self) -> usize {
        self.payload
    }

    /// What goes in front of the payloads: the kernel's header, and the run's own, of as many bytes as [`Run::payload`] says.
    pub fn headers(&self, first: &[u8]) -> (Header, [u8; HEADERS]) {
        let (ip, payload) = (self.ip, self.payload);
        let mut own = [0; HEADERS];
        own[..payload].copy_from_slice(&first[..payload]);
        settle(&mut own[..payload], ip, UDP + self.bytes, number(first, ip + 4) as u16);
        // The kernel adds the bytes to the sum of what is in front of them.
        let length = (UDP + self.bytes) as u16;
        let mut pseudo = [0; 12];
        pseudo[..8].copy_from_slice(&first[ip + 12..ip + IP]);
        pseudo[9] = PROTOCOL_UDP;
        pseudo[10..].copy_from_slice(&length.to_be_bytes());
        put(&mut own, payload - 2, !checksum(&pseudo));
        let mut header: Header = [0; 12];
        (header[0], header[1]) = (NEEDS_CSUM, GSO_UDP_L4);
        for (at, value) in [(2, payload), (4, self.each), (6, ip + IP), (8, 6)] {
            header[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
        }
        (header, own)
    }
}

/// Writes lengths, identification and the checksum of IPv4 for a datagram of `udp` bytes; that of UDP is left out, as the tunnel has it.
fn settle(headers: &mut [u8], ip: usize, udp: usize, identification: u16) {
    put(headers, ip + 2, (IP + udp) as u16);
    put(headers, ip + 4, identification);
    put(headers, ip + 10, 0);
    let sum = checksum(&headers[ip..ip + IP]);
    put(headers, ip + 10, sum);
    put(headers, ip + IP + 4, udp as u16);
    put(headers, ip + IP + 6, 0);
}

/// How many bytes of payload each frame of a run has, by the kernel's header; `None` of what is no run of datagrams.
pub fn segment(header: &Header) -> Option<usize> {
    (header[1] == GSO_UDP_L4).then(|| usize::from(u16::from_le_bytes([header[4], header[5]])))
}

/// Whether a kernel's header speaks of a frame that is to be cut in any way.
pub(super) fn is_whole(header: &Header) -> bool {
    header[1] != 0
}

/// Cuts a run into its frames, of `longest` bytes at most, and hands each on; how many. `None` of what contradicts itself, of which
/// nothing was handed on.
///
/// A frame's headers are written in front of its payload over what has been handed on, so that no payload moves.
pub fn cut(run: &mut [u8], segment: usize, longest: usize, each: &mut impl FnMut(&[u8])) -> Option<usize> {
    let ip = ip_at(run)?;
    let payload = ip + IP + UDP;
    let bytes = run.len() - payload;
    let frames = bytes.div_ceil(segment.max(1));
    if segment == 0 || bytes == 0 || frames > FRAMES_RECEIVED || payload + segment.min(bytes) > longest {
        return None;
    }
    let mut headers = [0; HEADERS];
    headers[..payload].copy_from_slice(&run[..payload]);
    let first = number(run, ip + 4) as u16;
    for k in 0..frames {
        let at = k * segment;
        let end = (payload + at + segment).min(run.len());
        let frame = &mut run[at..end];
        frame[..payload].copy_from_slice(&headers[..payload]);
        settle(frame, ip, UDP + (end - at - payload), first.wrapping_add(k as u16));
        each(frame);
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of the tunnel with `payload` bytes of `fill`, tagged or not.
    fn frame(tagged: bool, port: u16, payload: usize, fill: u8) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1];
        if tagged {
            frame.extend([0x81, 0x00, 0x60, 0x00]);
        }
        frame.extend([0x08, 0x00]);
        let ip = frame.len();
        frame.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 172, 16, 0, 1, 172, 16, 0, 2]);
        frame.extend(port.to_be_bytes());
        frame.extend(vxlan::UDP_PORT.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(std::iter::repeat_n(fill, payload));
        settle(&mut frame, ip, UDP + payload, 0);
        frame
    }

    /// The run that the first frames make, in one piece, and how many these are.
    fn join(frames: &[Vec<u8>]) -> (Header, Vec<u8>, usize) {
        let mut run = Run::new(&frames[0]);
        let n = 1 + frames[1..].iter().take_while(|f| run.takes(&frames[0], f)).count();
        assert_eq!(run.frames, n);
        if n == 1 {
            return ([0; 12], frames[0].clone(), 1);
        }
        let (header, own) = run.headers(&frames[0]);
        let mut bytes = own[..run.payload()].to_vec();
        frames[..n].iter().for_each(|f| bytes.extend(&f[run.payload()..]));
        (header, bytes, n)
    }

    fn parts(run: &mut [u8], segment: usize, longest: usize) -> Option<Vec<Vec<u8>>> {
        let mut parts = Vec::new();
        let n = cut(run, segment, longest, &mut |f: &[u8]| parts.push(f.to_vec()));
        assert_eq!(n.unwrap_or(0), parts.len());
        n.map(|_| parts)
    }

    #[test]
    fn what_is_joined_is_cut_into_the_same_frames() {
        for (tagged, payload, last) in [(true, 1_440, 1_440), (false, 1_472, 1), (true, 20, 20), (false, 33, 32)] {
            let mut frames: Vec<_> = (0..9).map(|i| frame(tagged, 50_000, payload, i)).collect();
            frames.push(frame(tagged, 50_000, last, 9));
            let (header, mut run, n) = join(&frames);
            assert_eq!((n, segment(&header)), (10, Some(payload)));
            let at = if tagged { 18 } else { 14 };
            assert_eq!(number(&run, at + 2), run.len() - at);
            let found = parts(&mut run, payload, 1_518).unwrap();
            for (i, (found, frame)) in found.iter().zip(&frames).enumerate() {
                // As the kernel that cuts a run itself counts them.
                assert_eq!(number(found, at + 4), i);
                assert_eq!(checksum(&found[at..at + IP]), 0);
                let mut same = found.clone();
                settle(&mut same, at, frame.len() - at - IP, 0);
                assert_eq!(&same, frame);
            }
        }
    }

    #[test]
    fn a_run_ends_where_frames_differ() {
        let first = frame(true, 50_000, 1_000, 1);
        let alike = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut other = frame(true, 50_000, 1_000, 2);
            change(&mut other);
            join(&[first.clone(), other]).2 == 2
        };
        assert!(alike(&|_| ()));
        // Identification and checksum are each frame's own.
        assert!(alike(&|f| f[18 + 5] = 7) && alike(&|f| f[18 + 10] = 7));
        // Addresses, tag, type, traffic class, lengths, flags, time to live, protocol, addresses, ports, lengths and checksum of UDP.
        for at in [0, 11, 14, 16, 18, 19, 20, 21, 24, 25, 26, 27, 30, 37, 38, 41, 42, 43, 44, 45] {
            assert!(!alike(&|f| f[at] ^= 1), "{at}");
        }
        assert!(!alike(&|f| f.push(0)) && !alike(&|f| f.truncate(46)) && !alike(&|f| f.truncate(10)));
        let of =
            |frames: &[(usize, u16)]| join(&frames.iter().map(|&(n, p)| frame(true, p, n, 1)).collect::<Vec<_>>()).2;
        assert_eq!(of(&[(100, 50_000), (99, 50_000), (99, 50_000)]), 2, "a shorter one is the last");
        assert_eq!(of(&[(100, 50_000), (101, 50_000)]), 1, "a longer one begins its own");
        assert_eq!(of(&[(0, 50_000), (0, 50_000)]), 1);
        assert_eq!(of(&[(10, 50_000); 100]), FRAMES);
        assert_eq!(of(&[(1_440, 50_000); 63]), 45, "what IPv4 can say");
        let (_, run, _) = join(&vec![frame(true, 50_000, 1_440, 0); 63]);
        assert!(run.len() <= 18 + LONGEST);
        // What is not the tunnel's goes by itself.
        let mut other = frame(true, 50_000, 100, 0);
        other[41] = 53;
        assert_eq!(join(&[other.clone(), other]).2, 1);
        let pause = vec![1; 60];
        assert_eq!(join(&[pause.clone(), pause]).2, 1);
    }

    #[test]
    fn what_contradicts_itself_is_not_cut() {
        let (_, run, _) = join(&vec![frame(true, 50_000, 1_000, 5); 20]);
        assert!(parts(&mut run.clone(), 1_000, 1_518).is_some());
        // Segments of nothing, too many, too long.
        for (segment, longest) in [(0, 1_518), (1, 1_518), (150, 1_518), (1_000, 1_045), (65_535, 1_518)] {
            assert_eq!(parts(&mut run.clone(), segment, longest), None, "{segment}");
        }
        for len in 0..run.len() {
            assert_eq!(parts(&mut run[..len].to_vec(), 1_000, 1_518), None, "{len}");
        }
        for at in 12..46 {
            for bit in 0..8 {
                let mut damaged = run.clone();
                damaged[at] ^= 1 << bit;
                // Cut or not: no panic, and no frame that is longer than may be.
                for part in parts(&mut damaged, 1_000, 1_518).unwrap_or_default() {
                    assert!(part.len() <= 1_046);
                }
            }
        }
        // A run of one frame.
        let mut single = frame(false, 50_000, 30, 1);
        assert_eq!(parts(&mut single, 1_000, 1_518).unwrap(), [frame(false, 50_000, 30, 1)]);
    }
}
