//! The port of a physical link: real PFC frames both ways, and the overlay's tunnels, around the machines
//! [`sluicenet_node::uplink`] and [`sluicenet_node::vtep`].
//!
//! Without an overlay it is a trunk: a frame's 802.1Q tag says its broadcast domain and its class; it is put on when the frame
//! leaves and taken off when it comes. With one, each tenant is a
//! domain, and what a station of it sends to a station elsewhere goes through a tunnel to the server where that lives.
//!
//! What arrives is taken from the device at once and charged to the receive buffer of its class until the switch gives it
//! back; what the switch delivers is taken as long as the class has room, and waits here while the neighbour holds the class.

use crate::controller::ControllerLink;
use crate::fabric::Device;
use crate::port::{BrokenPort, Delivery, Descriptor, Offload, Port, Segmentation};
use rustix::event::{PollFd, PollFlags};
use sluicenet_node::uplink::{self, Front, Link};
use sluicenet_node::vtep::{Event, Inward, Outward, Vtep};
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::tunnel::Inner;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::controller::LEN;
use sluicenet_wire::ethernet::{EtherType, HEADER_LEN, MacAddress};
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};
use sluicenet_wire::vlan;
use std::io;
use std::net::Ipv4Addr;
use std::ops::Range;

/// Longest frame that a tenant may offer to the tunnel, so that its sender can be told what fits: what IP can say, and a tag.
const LONGEST: u32 = 65_535 + (HEADER_LEN + vlan::TAG_LEN) as u32;

/// Answers to tenants that wait for the switch to take them.
const ANSWERS: u32 = 256;

/// Where the addresses of a frame end, and a tag behind them.
const ADDRESSES: usize = 12;
const BEHIND_TAG: usize = ADDRESSES + vlan::TAG_LEN;

/// Batches taken from the device in a turn, at most.
const BATCHES: usize = 16;

/// A device that took nothing is tried again after so long.
const TRY_AGAIN: Duration = Duration::from_us(500);

/// The overlay at an uplink: the machine, and the way to the controller.
#[derive(Debug)]
pub struct Overlay {
    vtep: Vtep<u32>,
    controller: ControllerLink,
}

/// A frame for the switch.
#[derive(Debug, Default)]
struct Slot {
    bytes: Vec<u8>,
    frame: Range<usize>,
    domain: u16,
    priority: Priority,
    /// Bytes charged to the receive buffer; none for an answer that was made here.
    charged: Option<u32>,
}

/// What the frames of an uplink go through.
#[derive(Debug)]
struct Inside {
    link: uplink::Uplink<u32, Vec<u8>>,
    overlay: Option<Overlay>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    answers: u32,
    now: Instant,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    /// Frames from the link that are nothing of the tunnel: the kernel has its own copy of them.
    other: u64,
    /// Answers to tenants: ARP, too large.
    answered: u64,
    /// Answers for which there was no room.
    answers_full: u64,
    /// Frames whose checksum or cutting was left to be done and could not be.
    bad_offload: u64,
    /// Frames cut into segments here.
    segmented: u64,
}

/// The port.
#[derive(Debug)]
pub struct Uplink<D> {
    device: D,
    inside: Inside,
    lent: u32,
    /// The device took nothing when it was tried last.
    refused: bool,
}

impl<D: Device> Uplink<D> {
    /// A trunk.
    pub fn trunk(device: D, link: Link) -> Uplink<D> {
        Uplink::new(device, link, None)
    }

    /// The uplink of an overlay, whose tunnels have the link's address.
    pub fn overlay(device: D, link: Link, vtep: Vtep<u32>, controller: ControllerLink) -> Uplink<D> {
        Uplink::new(device, link, Some(Overlay { vtep, controller }))
    }

    fn new(device: D, link: Link, overlay: Option<Overlay>) -> Uplink<D> {
        let inside = Inside {
            link: uplink::Uplink::new(link),
            overlay,
            slots: Vec::new(),
            free: Vec::new(),
            answers: 0,
            now: Instant::ZERO,
            counters: Counters::default(),
        };
        Uplink { device, inside, lent: 0, refused: false }
    }

    /// The flow-controlled link.
    pub fn link(&self) -> &uplink::Uplink<u32, Vec<u8>> {
        &self.inside.link
    }

    fn transmit(&mut self) -> io::Result<()> {
        let Uplink { device, inside, refused, .. } = self;
        *refused = false;
        while let Some(front) = inside.link.front(inside.now) {
            let taken = match front {
                Front::Pause(bytes) => device.send(bytes),
                Front::Frame(bytes) => device.send(bytes),
            };
            if !taken? {
                *refused = true;
                break;
            }
            inside.link.sent(inside.now);
        }
        device.flush()
    }
}

impl Inside {
    /// A frame came from the link.
    fn arrive(&mut self, frame: &[u8]) {
        if uplink::Uplink::<u32, Vec<u8>>::is_control(frame) {
            self.link.control(self.now, frame);
            return;
        }
        let len = frame.len() as u32;
        let (priority, vid) = tag(frame);
        if frame.len() < HEADER_LEN {
            self.link.refuse_unseen(priority, DropReason::Malformed, len);
            return;
        }
        let Some(overlay) = &mut self.overlay else {
            // In the switch a frame's domain and class are known without its tag; a second one is its sender's.
            let bytes = match frame.get(ADDRESSES..BEHIND_TAG) {
                Some([0x81, 0x00, ..]) if frame.len() >= HEADER_LEN + vlan::TAG_LEN => {
                    [&frame[..ADDRESSES], &frame[BEHIND_TAG..]].concat()
                }
                _ => frame.to_vec(),
            };
            let slot = Slot { frame: 0..bytes.len(), bytes, domain: vid, priority, charged: None };
            if let Some(slot) = self.charge(slot, len) {
                self.link.show(priority, len, slot);
            }
            return;
        };
        let mut bytes = frame.to_vec();
        let (inner, asked) = match overlay.vtep.inward(self.now, &mut bytes) {
            Inward::Deliver(inner) => (inner, None),
            Inward::Ask(inner, station) => (inner, Some(station)),
            Inward::Other => {
                self.counters.other += 1;
                return;
            }
            Inward::Drop(reason) => {
                self.link.refuse_unseen(priority, reason, len);
                return;
            }
        };
        let Inner { frame, domain, from, .. } = inner;
        let Some(slot) = self.charge(Slot { bytes, frame, domain, priority, charged: None }, len) else { return };
        match (asked, &mut self.overlay) {
            (Some(station), Some(overlay)) => {
                if let Err(reason) = overlay.vtep.park(station, from, slot) {
                    self.link.refuse(reason, len);
                    self.release(slot);
                }
            }
            _ => self.link.show(priority, len, slot),
        }
    }

    /// Charges a frame to the receive buffer and keeps it, or drops it by name.
    fn charge(&mut self, slot: Slot, len: u32) -> Option<u32> {
        self.link.charge(slot.priority, len).ok()?;
        Some(self.keep(Slot { charged: Some(len), ..slot }))
    }

    fn keep(&mut self, slot: Slot) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// A frame has left: its memory is free, and its class has room again.
    fn release(&mut self, at: u32) {
        let slot = std::mem::take(&mut self.slots[at as usize]);
        self.free.push(at);
        match slot.charged {
            Some(len) => self.link.release(slot.priority, len),
            None => self.answers -= 1,
        }
    }

    /// A frame for the switch that was made here.
    fn answer(&mut self, bytes: Vec<u8>, domain: u16, priority: Priority) {
        if self.answers >= ANSWERS {
            self.counters.answers_full += 1;
            return;
        }
        self.answers += 1;
        self.counters.answered += 1;
        let len = bytes.len();
        let slot = self.keep(Slot { bytes, frame: 0..len, domain, priority, charged: None });
        self.link.show(priority, len as u32, slot);
    }

    /// One frame of the switch, with nothing left to be done.
    fn leave(&mut self, bytes: &[u8], domain: u16, priority: Priority) {
        let Some(overlay) = &mut self.overlay else {
            let bytes = with_tag(bytes, domain, priority);
            self.link.enqueue(self.now, priority, bytes.len() as u32, bytes);
            return;
        };
        let mut out = Vec::new();
        match overlay.vtep.outward(self.now, bytes, domain, priority, &mut out) {
            Outward::Send => self.link.enqueue(self.now, priority, out.len() as u32, out),
            Outward::Parked | Outward::Ended => {}
            Outward::Reply(answer) => self.answer(answer, domain, priority),
            Outward::Drop(reason, told) => {
                self.link.drop_out(reason, bytes.len() as u32);
                if let Some(answer) = told {
                    self.answer(answer, domain, priority);
                }
            }
        }
    }

    /// A long frame is cut, and each part leaves.
    fn cut(&mut self, frame: &Delivery<'_>, network: Network) -> bool {
        let tcp = usize::from(frame.offload.checksum.unwrap_or_default().0);
        let Ok(cutter) = Cutter::new(frame.bytes, network, tcp, frame.offload.segment.into()) else { return false };
        self.counters.segmented += 1;
        let mut segment = vec![0; cutter.headers() + usize::from(frame.offload.segment)];
        for k in 0..cutter.count() {
            let len = cutter.emit(k, false, &mut segment);
            self.leave(&segment[..len], frame.domain, frame.priority);
        }
        true
    }

    /// What the controller says, what it is to be asked, and the frames that waited for it.
    fn consult(&mut self) {
        let Some(overlay) = &mut self.overlay else { return };
        let now = self.now;
        overlay.vtep.handle_timeout(now);
        let mut bytes = [0; LEN + 1];
        let mut events: Vec<Event<u32>> = Vec::new();
        loop {
            while let Some(event) = overlay.vtep.poll_event(now) {
                events.push(event);
            }
            match overlay.controller.receive(&mut bytes) {
                Some(len) => overlay.vtep.handle_control(now, &bytes[..len]),
                None => break,
            }
        }
        while let Some(datagram) = overlay.vtep.poll_control(now) {
            overlay.controller.send(&datagram);
        }
        for event in events {
            self.resolved(event);
        }
    }

    fn resolved(&mut self, event: Event<u32>) {
        match event {
            Event::Send(bytes, p) => self.link.enqueue(self.now, p, bytes.len() as u32, bytes),
            Event::Deliver(at) => {
                let slot = &self.slots[at as usize];
                self.link.show(slot.priority, slot.charged.unwrap_or_default(), at);
            }
            Event::Drop(at, reason) => {
                let len = self.slots[at as usize].charged.unwrap_or_default();
                self.link.refuse(reason, len);
                self.release(at);
            }
            Event::DropOut(reason, len) => self.link.drop_out(reason, len),
            Event::Reply(bytes, domain, p) => self.answer(bytes, domain, p),
        }
    }
}

impl<D: Device + Send> Port for Uplink<D> {
    fn on_turn(&mut self, now: Instant) -> Result<(), BrokenPort> {
        let Uplink { device, inside, .. } = self;
        inside.now = now;
        inside.link.new_turn();
        inside.link.handle_timeout(now);
        for _ in 0..BATCHES {
            if device.receive(&mut |frame| inside.arrive(frame)).map_err(|_| BrokenPort)? == 0 {
                break;
            }
        }
        inside.consult();
        self.transmit().map_err(|_| BrokenPort)
    }

    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        let Inside { link, slots, .. } = &mut self.inside;
        Ok(link.next_frame().map(|(_, at)| Descriptor { buffer: at, len: slots[at as usize].frame.len() as u32 }))
    }

    fn head(&self, buffer: u32) -> [u64; 2] {
        let mut head = [0; 16];
        self.read(buffer, &mut head);
        [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| head[at + i])))
    }

    fn domain(&self, buffer: u32) -> Option<u16> {
        Some(self.inside.slots[buffer as usize].domain)
    }

    fn priority(&self, buffer: u32) -> Option<Priority> {
        Some(self.inside.slots[buffer as usize].priority)
    }

    fn accept(&mut self) {
        self.inside.link.accept();
        self.lent += 1;
    }

    fn hold(&mut self) -> bool {
        self.inside.link.hold()
    }

    fn read(&self, buffer: u32, into: &mut [u8]) {
        let slot = &self.inside.slots[buffer as usize];
        let frame = &slot.bytes[slot.frame.clone()];
        let len = into.len().min(frame.len());
        into[..len].copy_from_slice(&frame[..len]);
    }

    fn give_back(&mut self, buffer: u32) {
        self.lent -= 1;
        self.inside.release(buffer);
    }

    fn lent(&self) -> u32 {
        self.lent
    }

    fn takes(&mut self) -> PrioritySet {
        self.inside.link.takes()
    }

    fn max_frame(&self) -> u32 {
        if self.inside.overlay.is_some() { LONGEST } else { self.inside.link.link().max_frame }
    }

    fn reserve(&mut self, _len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        // Room is a matter of the class: see `takes`.
        Ok(true)
    }

    fn deliver(&mut self, frame: &Delivery<'_>) {
        let inside = &mut self.inside;
        let Delivery { bytes, offload, domain, priority } = *frame;
        let done = match (offload.segmentation, offload.checksum) {
            (Segmentation::Tcp4, _) => inside.cut(frame, Network::V4),
            (Segmentation::Tcp6, _) => inside.cut(frame, Network::V6),
            (Segmentation::None, None) => {
                inside.leave(bytes, domain, priority);
                true
            }
            (Segmentation::None, Some((start, offset))) => {
                let mut bytes = bytes.to_vec();
                let finished = finish_checksum(&mut bytes, start.into(), offset.into()).is_ok();
                if finished {
                    inside.leave(&bytes, domain, priority);
                }
                finished
            }
        };
        if !done {
            inside.counters.bad_offload += 1;
            inside.link.drop_out(DropReason::Malformed, bytes.len() as u32);
        }
    }

    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.transmit().map_err(|_| BrokenPort)
    }

    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        let idle = blocked || self.inside.link.next_frame().is_none();
        Ok(idle && (self.refused || self.inside.link.front(self.inside.now).is_none()))
    }

    fn wake_up(&mut self) {}

    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.device.wakers(self.refused, fds);
        if let Some(overlay) = &self.inside.overlay {
            fds.push(PollFd::new(&overlay.controller, PollFlags::IN));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let link = self
            .inside
            .link
            .poll_timeout()
            .map(|at| if self.refused { at.max(self.inside.now + TRY_AGAIN) } else { at });
        let overlay = self.inside.overlay.as_ref().and_then(|o| o.vtep.poll_timeout());
        link.into_iter().chain(overlay).min()
    }

    fn announce(&mut self, now: Instant, domain: u16, mac: [u8; 6], address: Ipv4Addr, here: bool) {
        let Some(overlay) = &mut self.inside.overlay else { return };
        if here {
            // A domain that is no network of the overlay stays on this server.
            let _ = overlay.vtep.add_station(now, domain, MacAddress(mac), address);
        } else {
            overlay.vtep.remove_station(now, domain, MacAddress(mac));
        }
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        let link = self.inside.link.counters();
        for p in 0..PRIORITIES {
            show(RECEIVED[p], link.received[p]);
            show(SENT[p], link.sent[p]);
        }
        let (gate, signal, (storms, restored)) = self.inside.link.flow_control();
        show("pauses_received", link.pauses_received);
        show("pauses_sent", link.pauses_sent);
        show("classes_held", gate.stops());
        show("classes_stopped", signal.stops());
        show("storms_detected", storms);
        show("storms_restored", restored);
        show("pauses_lossy", link.pauses_lossy);
        show("pauses_high_bits", link.pauses_high_bits);
        show("control_elsewhere", link.control_elsewhere);
        show("control_short", link.control_short);
        show("control_other", link.control_other);
        for reason in DropReason::ALL {
            let dropped = link.dropped_in.frames(reason) + link.dropped_out.frames(reason);
            if dropped > 0 {
                show(reason.name(), dropped);
            }
        }
        let own = &self.inside.counters;
        show("segmented", own.segmented);
        show("bad_offload", own.bad_offload);
        if let Some(overlay) = &self.inside.overlay {
            let (vtep, cache) = overlay.vtep.counters();
            show("not_tunnel", own.other);
            show("answered", own.answered);
            show("answers_full", own.answers_full);
            show("encapsulated", vtep.encapsulated);
            show("decapsulated", vtep.decapsulated);
            show("parked", vtep.parked);
            show("parked_full", vtep.parked_full);
            show("arp_answered", vtep.arp_answered);
            show("arp_ended", vtep.arp_ended);
            show("too_big_told", vtep.too_big_told);
            show("control_forged", vtep.control_forged);
            show("control_refused", vtep.control_refused);
            show("cache_hits", cache.hits);
            show("cache_misses", cache.misses);
            show("cache_repeated", cache.repeated);
            show("cache_unknown", cache.unknown);
            show("cache_silent", cache.silent);
            show("cache_limited", cache.limited);
            show("cache_evicted", cache.evicted);
            show("cache_changed", cache.changed);
            show("cache_stale", cache.stale);
            show("controller_unreachable", overlay.controller.failed());
        }
        self.device.counters(show);
    }
}

const RECEIVED: [&str; PRIORITIES] =
    ["received_0", "received_1", "received_2", "received_3", "received_4", "received_5", "received_6", "received_7"];
const SENT: [&str; PRIORITIES] = ["sent_0", "sent_1", "sent_2", "sent_3", "sent_4", "sent_5", "sent_6", "sent_7"];

/// The priority and VLAN of a frame's tag, or 0 and 0.
fn tag(frame: &[u8]) -> (Priority, u16) {
    match frame.get(ADDRESSES..BEHIND_TAG) {
        Some(&[0x81, 0x00, a, b]) => (a >> 5, u16::from_be_bytes([a & 0x0F, b])),
        _ => (0, 0),
    }
}

/// A frame with a tag of its class and domain; without one where both are 0 and it had none.
fn with_tag(frame: &[u8], domain: u16, priority: Priority) -> Vec<u8> {
    let control = (u16::from(priority) << 13 | domain & 0x0FFF).to_be_bytes();
    let is_tagged = frame.get(ADDRESSES..HEADER_LEN) == Some(&EtherType::VLAN.0.to_be_bytes());
    if is_tagged && frame.len() >= HEADER_LEN + vlan::TAG_LEN {
        let mut bytes = frame.to_vec();
        // The drop eligible bit is its sender's.
        bytes[14] = control[0] | frame[14] & 0x10;
        bytes[15] = control[1];
        return bytes;
    }
    if control == [0, 0] || frame.len() < HEADER_LEN {
        return frame.to_vec();
    }
    [&frame[..ADDRESSES], &EtherType::VLAN.0.to_be_bytes(), &control, &frame[ADDRESSES..]].concat()
}
