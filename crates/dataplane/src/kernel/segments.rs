//! Runs of tunnel frames in one piece, in the form of the kernel's UDP segmentation (`VIRTIO_NET_HDR_GSO_UDP_L4`): the headers
//! of the first frame, then the payloads of all frames. The run needs one system call, one kernel buffer and one pass through
//! the layers, instead of one for each frame.

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
/// Bytes of a run after its Ethernet header and tag: the largest IPv4 packet.
const LONGEST: usize = 65_535;
/// Frames of a run: the kernel cuts a run into 64 frames at most (`UDP_MAX_SEGMENTS` before Linux 6.10), and counts the
/// Ethernet header as payload.
pub const FRAMES: usize = 63;
/// The most frames cut from a received run (`UDP_MAX_SEGMENTS` since Linux 6.10).
const FRAMES_RECEIVED: usize = 128;

fn number(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The offset of the IPv4 header of a complete UDP datagram without options and with the frame's length.
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

/// A run of frames that is being built.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The offsets of the first frame's IPv4 header and payload; 0 for a frame that cannot be joined.
    ip: usize,
    payload: usize,
    /// Payload bytes of each frame except the last.
    each: usize,
    /// Bytes of all payloads.
    bytes: usize,
    /// Frames in the run.
    pub frames: usize,
    /// A shorter frame has ended the run.
    ended: bool,
}

impl Run {
    /// A run that begins with a frame. Only a tunnel frame, without a UDP checksum, can be followed by others.
    pub fn new(first: &[u8]) -> Run {
        let alone = Run { ip: 0, payload: 0, each: 0, bytes: 0, frames: 1, ended: true };
        let Some(ip) = ip_at(first) else { return alone };
        let payload = ip + IP + UDP;
        let of_tunnel = number(first, ip + IP + 2) == usize::from(vxlan::UDP_PORT) && number(first, payload - 2) == 0;
        let bytes = first.len() - payload;
        Run { ip, payload, each: bytes, bytes, frames: 1, ended: !of_tunnel || bytes == 0 }
    }

    /// Appends the next frame if it fits: the same headers apart from lengths, IPv4 identification and checksum, and not longer
    /// than the first frame. Returns whether it fits.
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

    /// The offset of the payload in each of its frames.
    pub fn payload(&self) -> usize {
        self.payload
    }

    /// The headers in front of the payloads: the kernel's, and the run's own of [`Run::payload`] bytes.
    pub fn headers(&self, first: &[u8]) -> (Header, [u8; HEADERS]) {
        let (ip, payload) = (self.ip, self.payload);
        let mut own = [0; HEADERS];
        own[..payload].copy_from_slice(&first[..payload]);
        settle(&mut own[..payload], ip, UDP + self.bytes, number(first, ip + 4) as u16);
        // The kernel adds the payload to the checksum of the header.
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

/// Writes the lengths and the IPv4 identification and checksum for a datagram of `udp` bytes, without a UDP checksum, as in the
/// tunnel.
fn settle(headers: &mut [u8], ip: usize, udp: usize, identification: u16) {
    put(headers, ip + 2, (IP + udp) as u16);
    put(headers, ip + 4, identification);
    put(headers, ip + 10, 0);
    let sum = checksum(&headers[ip..ip + IP]);
    put(headers, ip + 10, sum);
    put(headers, ip + IP + 4, udp as u16);
    put(headers, ip + IP + 6, 0);
}

/// The payload bytes of each frame of a run, from the kernel's header; `None` if it is no run of datagrams.
pub fn segment(header: &Header) -> Option<usize> {
    (header[1] == GSO_UDP_L4).then(|| usize::from(u16::from_le_bytes([header[4], header[5]])))
}

/// Whether the kernel's header describes a frame that is to be cut.
pub(super) fn is_whole(header: &Header) -> bool {
    header[1] != 0
}

/// Cuts a run into frames of at most `longest` bytes and passes each on; returns their number. `None` if the run is
/// inconsistent; then no frame was passed on.
///
/// A frame's headers are written in front of its payload, over earlier frames, so that no payload moves.
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
        // Addresses, tag, type, traffic class, lengths, flags, time to live, protocol, addresses, ports, lengths and checksum
        // of UDP.
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
        // Frames outside the tunnel are sent one by one.
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
