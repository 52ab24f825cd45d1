//! Offloads that a sender left to the switch, and checks of a sender's addresses.

use super::*;
use crate::from_ip;
use sluicenet_dataplane::engine::Access as Rules;
use sluicenet_dataplane::port::{BrokenPort, Delivery, Descriptor, Offload, Port, Segmentation};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use std::sync::Arc;

/// Frames a port was given, each with its domain and class.
type Taken = Arc<std::sync::Mutex<Vec<(Vec<u8>, u16, u8)>>>;

/// A port whose other side sends the given frames, and takes every frame.
struct Scripted {
    frames: Vec<(Vec<u8>, Offload)>,
    next: usize,
    lent: u32,
    taken: Taken,
    takes: PrioritySet,
}

impl Port for Scripted {
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(self.frames.get(self.next).map(|(f, _)| Descriptor { buffer: self.next as u32, len: f.len() as u32 }))
    }
    fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        let bytes = &self.frames[buffer as usize].0;
        [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    }
    fn accept(&mut self) {
        (self.next, self.lent) = (self.next + 1, self.lent + 1);
    }
    fn read(&self, buffer: u32, into: &mut [u8]) {
        into.copy_from_slice(&self.frames[buffer as usize].0[..into.len()]);
    }
    fn offload(&self, buffer: u32) -> Offload {
        self.frames[buffer as usize].1
    }
    fn give_back(&mut self, _buffer: u32) {
        self.lent -= 1;
    }
    fn lent(&self) -> u32 {
        self.lent
    }
    fn takes(&mut self) -> PrioritySet {
        self.takes
    }
    fn max_frame(&self) -> u32 {
        1_514
    }
    fn reserve(&mut self, _len: u32, offload: &Offload) -> Result<bool, BrokenPort> {
        assert!(offload.is_none());
        Ok(true)
    }
    fn deliver(&mut self, frame: &Delivery<'_>) {
        self.taken.lock().unwrap().push((frame.bytes.to_vec(), frame.domain, frame.priority));
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        Ok(())
    }
    fn fall_asleep(&mut self, _blocked: bool) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn wake_up(&mut self) {}
    fn wakers<'a>(&'a self, _fds: &mut Vec<rustix::event::PollFd<'a>>) {}
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

fn scripted(frames: Vec<(Vec<u8>, Offload)>, takes: PrioritySet) -> (Box<Scripted>, Taken) {
    let taken = Taken::default();
    (Box::new(Scripted { frames, next: 0, lent: 0, taken: taken.clone(), takes }), taken)
}

/// A TCP segment of `payload` bytes over IPv4 that is to be cut into segments of 1,000.
fn long_segment(payload: usize) -> (Vec<u8>, Offload) {
    let mut bytes = frame(0, 1, 0, 54 + payload);
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..54].copy_from_slice(&[0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    for (i, byte) in bytes[54..].iter_mut().enumerate() {
        *byte = i as u8;
    }
    let offload = Offload {
        checksum: Some((34, 16)),
        segmentation: Segmentation::Tcp4,
        segment: 1_000,
        headers: 54,
        verified: false,
    };
    (bytes, offload)
}

#[test]
fn what_a_sender_left_to_be_done_is_done_for_a_receiver_that_cannot() {
    let mut engine = Engine::new(2, patient());
    let (segment, offload) = long_segment(4_500);
    let long = (frame(0, 1, 0, 3_000), Offload::NONE);
    let (port, _) = scripted(vec![(segment.clone(), offload), long, (segment.clone(), offload)], PrioritySet::ALL);
    engine.plug(0, "sender", port, Default::default()).unwrap();
    let mut client = open(plug(&mut engine, 1, 4));
    // Two buffers at a time: each segment is cut in several goes.
    let mut received = Vec::new();
    for _ in 0..100 {
        engine.round();
        let mut bytes = [0; 2048];
        while let Some(len) = client.receive(&mut bytes).unwrap() {
            received.push(bytes[..len].to_vec());
        }
        let _ = client.publish();
    }
    assert_eq!(received.len(), 10);
    for cut in received.chunks(5) {
        let payload: Vec<u8> = cut.iter().flat_map(|f| f[54..].iter().copied()).collect();
        assert_eq!(payload, segment[54..]);
        for (k, f) in cut.iter().enumerate() {
            assert_eq!(u32::from_be_bytes(f[38..42].try_into().unwrap()), 1 + 1_000 * k as u32);
            assert_eq!(usize::from(u16::from_be_bytes([f[16], f[17]])), f.len() - 14);
        }
    }
    assert_eq!(engine.report(1).unwrap().counters.dropped.frames(DropReason::TooBig), 1);
    // A segment counts as a frame.
    assert_eq!(engine.ledger(), (11, 10, 1));
    assert_eq!(engine.report(0).unwrap().lent, 0);
}

#[test]
fn a_port_says_of_which_classes_and_where_its_machine_may_be() {
    let mut engine = Engine::new(3, patient());
    let tagged = |tag: u16, number: u64| {
        let mut bytes = frame(0, 2, number, 64);
        bytes[12..14].copy_from_slice(&[0x81, 0x00]);
        bytes[14..16].copy_from_slice(&tag.to_be_bytes());
        (bytes, Offload::NONE)
    };
    let ip = |last: u8| {
        let mut bytes = frame(0, 2, 0, 64);
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[14] = 0x45;
        bytes[26..30].copy_from_slice(&[10, 0, 0, last]);
        (bytes, Offload::NONE)
    };
    let frames = vec![tagged(3 << 13, 1), tagged(5, 2), tagged(7 << 13, 3), ip(1), ip(9)];
    let (sender, _) = scripted(frames, PrioritySet::ALL);
    let access = Rules { domain: Some(40), priority: Some(6), guard: Some(from_ip([10, 0, 0, 1])) };
    engine.plug(0, "sender", sender, access.clone()).unwrap();
    // The receiver is held for the class of all of them.
    let (receiver, taken) = scripted(Vec::new(), PrioritySet(!(1 << 6)));
    engine.plug(2, "receiver", receiver, Rules { domain: Some(40), ..Rules::default() }).unwrap();
    assert!(engine.give(mac(0), 40, 0) && engine.give(mac(2), 40, 2));
    for _ in 0..10 {
        round_after_pause(&mut engine);
    }
    assert!(taken.lock().unwrap().is_empty());
    // A VLAN of its own and a foreign address are refused; the rest waits, in class 6 whatever its tag was.
    let refused = engine.report(0).unwrap().counters.refused;
    assert_eq!([DropReason::ForgedSource, DropReason::ForgedIp].map(|reason| refused.frames(reason)), [1, 1]);
    assert_eq!((engine.queued(), engine.report(2).unwrap().output[6]), (3, 3));
    engine.unplug(2);
    let (receiver, taken) = scripted(Vec::new(), PrioritySet::ALL);
    engine.plug(2, "receiver", receiver, Rules { domain: Some(40), ..Rules::default() }).unwrap();
    engine.give(mac(2), 40, 2);
    let (sender, _) = scripted(vec![ip(1), ip(9), tagged(0, 4)], PrioritySet::ALL);
    engine.unplug(0);
    engine.plug(0, "sender", sender, access).unwrap();
    engine.give(mac(0), 40, 0);
    for _ in 0..10 {
        round_after_pause(&mut engine);
    }
    // Of another address than its own nothing is delivered.
    let of: Vec<(u16, u8)> = taken.lock().unwrap().iter().map(|&(_, domain, priority)| (domain, priority)).collect();
    assert_eq!(of, [(40, 6); 2]);
    assert_eq!(engine.report(0).unwrap().counters.refused.frames(DropReason::ForgedIp), 1);
    engine.ledger();
}
