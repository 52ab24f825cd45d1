//! A run of datagrams in one piece, as a device hands it on with the kernel's header: cut, and joined again. What contradicts itself is not
//! cut at all; what is cut has all bytes that came, in order, behind headers that say the truth.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_dataplane::kernel::segments::{FRAMES, Run, cut, segment};
use sluicenet_wire::checksum::checksum;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IP: usize = 20;
const UDP: usize = 8;
/// Of the tunnel.
const PORT: [u8; 2] = 4789u16.to_be_bytes();

/// Makes what came the whole datagram that it nearly never is by itself: type, version, protocol, lengths.
fn settle(frame: &mut [u8], is_tagged: bool, of_tunnel: bool) {
    let ip = if is_tagged { ETHERNET + TAG } else { ETHERNET };
    let Some(len) = frame.len().checked_sub(ip + IP + UDP).map(|bytes| IP + UDP + bytes) else { return };
    let len = (len as u16).to_be_bytes();
    if is_tagged {
        frame[12..14].copy_from_slice(&[0x81, 0x00]);
    }
    frame[ip - 2..ip].copy_from_slice(&[0x08, 0x00]);
    (frame[ip], frame[ip + 9]) = (0x45, 17);
    frame[ip + 2..ip + 4].copy_from_slice(&len);
    frame[ip + 6..ip + 8].copy_from_slice(&[0x40, 0]);
    let udp = (u16::from_be_bytes(len) - IP as u16).to_be_bytes();
    frame[ip + IP + 4..ip + IP + 6].copy_from_slice(&udp);
    if of_tunnel {
        frame[ip + IP + 2..ip + IP + 4].copy_from_slice(&PORT);
        frame[ip + IP + 6..ip + IP + 8].copy_from_slice(&[0, 0]);
    }
}

/// Where the payload of a frame that was cut begins, which has to be as its headers say.
fn payload_at(frame: &[u8], number: u16) -> usize {
    let ip = if frame[12..14] == [0x81, 0x00] { ETHERNET + TAG } else { ETHERNET };
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    assert_eq!(usize::from(word(ip + 2)), frame.len() - ip);
    assert_eq!(usize::from(word(ip + IP + 4)), frame.len() - ip - IP);
    assert_eq!((word(ip + 4), word(ip + IP + 6), checksum(&frame[ip..ip + IP])), (number, 0, 0));
    ip + IP + UDP
}

/// Cuts a run; the payloads, one behind the other, and how many there were.
fn cut_and_check(run: &[u8], segment: usize, longest: usize) -> Option<(Vec<u8>, usize)> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let frames = cut(&mut run.to_vec(), segment, longest, &mut |frame: &[u8]| parts.push(frame.to_vec()));
    assert_eq!(frames.unwrap_or(0), parts.len());
    let ip = if run.get(12..14) == Some(&[0x81, 0x00]) { ETHERNET + TAG } else { ETHERNET };
    let mut bytes = Vec::new();
    for (k, part) in parts.iter().enumerate() {
        assert!(part.len() <= longest);
        let first = u16::from_be_bytes([run[ip + 4], run[ip + 5]]);
        let at = payload_at(part, first.wrapping_add(k as u16));
        assert_eq!((&part[..ip], &part[ip + 8..ip + 10]), (&run[..ip], &run[ip + 8..ip + 10]));
        assert!(part.len() - at == segment || k + 1 == parts.len() && part.len() > at);
        bytes.extend(&part[at..]);
    }
    frames.map(|frames| (bytes, frames))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[how, a, b, c, d], frame)) = bytes.split_first_chunk::<5>() else { return };
    let (each, longest) = (u16::from_le_bytes([a, b]).into(), usize::from(u16::from_le_bytes([c, d])));
    let mut frame = frame.to_vec();
    // Longer than what a fuzzer writes by itself.
    if how & 1 != 0 {
        frame.resize(frame.len() * (1 + usize::from(how >> 4)), how);
    }
    let is_tagged = how & 2 != 0;
    if how & 4 != 0 && frame.len() < 1 << 16 {
        settle(&mut frame, is_tagged, how & 8 != 0);
    }
    if let Some((cut, _)) = cut_and_check(&frame, each, longest) {
        assert_eq!(cut, frame[frame.len() - cut.len()..]);
    }

    // Frames of one flow are joined, as far as they can be, and cut into what they were.
    let lengths = frame.iter().map(|&len| usize::from(len)).chain([0]).collect::<Vec<_>>();
    let mut frames = lengths.iter().map(|&len| {
        let len = ETHERNET + TAG + IP + UDP + if how & 1 != 0 { each % 1_500 } else { len };
        let mut one = frame[..len.min(frame.len())].to_vec();
        one.resize(len, how);
        settle(&mut one, is_tagged, true);
        one
    });
    let Some(first) = frames.next() else { return };
    let mut run = Run::new(&first);
    let mut joined = vec![first.clone()];
    joined.extend(frames.take_while(|frame| run.takes(&first, frame)));
    assert!(run.frames == joined.len() && run.frames <= FRAMES);
    if run.frames > 1 {
        let (header, own) = run.headers(&first);
        let payloads: Vec<u8> = joined.iter().flat_map(|frame| &frame[run.payload()..]).copied().collect();
        let whole = [&own[..run.payload()], &payloads].concat();
        let cut = cut_and_check(&whole, segment(&header).expect("it is a run"), first.len());
        assert_eq!(cut, Some((payloads, joined.len())));
    }
});
