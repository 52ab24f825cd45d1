//! The path of frames through an uplink: the receive buffer and the tunnel.

use super::credits::ZCredit;
use super::kind::{Link, UplinkKind};
use super::tcp_tunnels::TcpTunnels;
use super::zbridge::ZBridge;
use crate::clock::Clock;
use crate::controller::ControllerLink;
use sluicenet_node::credits::Vm;
use sluicenet_node::gate::Gate;
use sluicenet_node::uplink::{self, Origin};
use sluicenet_node::vtep::{Event, Inward, Outward, Vtep, is_beside};
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::overlay::mapping::StationId;
use sluicenet_proto::overlay::tunnel::{FrameFragments, Inner, flow_hash};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::controller::LEN;
use sluicenet_wire::ethernet::{ADDRESSES_LEN, EtherType, HEADER_LEN, MacAddress, inner_type};
use sluicenet_wire::{qcn, vlan, xco, zcredit};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;

/// The longest frame that a tenant may offer to the tunnel: the largest IP packet and a tag. The sender of a frame that is too
/// long for the tunnel can then be told the limit.
pub(super) const LONGEST: u32 = 65_535 + (HEADER_LEN + vlan::TAG_LEN) as u32;

/// The most answers to tenants that may wait for the switch.
const ANSWERS: u32 = 256;

/// The most frames whose memory is kept for reuse: those of a few rounds, and those that one acknowledgement frees.
const SPARE: usize = 4096;

/// The end of a tag after the addresses of a frame.
const BEHIND_TAG: usize = ADDRESSES_LEN + vlan::TAG_LEN;

/// First bytes of a tenant's frame that name its flow: the headers up to the ports, with a tag and the longest options.
const FLOW_BYTES: usize = HEADER_LEN + vlan::TAG_LEN + 64;

/// How often the controller's socket is checked, apart from deadlines.
const CONSULT_EVERY: Duration = Duration::from_us(20);

/// The overlay at an uplink: its state machine, and the connection to the controller.
#[derive(Debug)]
pub(super) struct Overlay {
    pub vtep: Vtep<u32>,
    pub controller: ControllerLink,
    /// When the controller's socket was last checked.
    pub consulted: Option<Instant>,
}

/// A frame for the switch.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub bytes: Vec<u8>,
    pub frame: Range<usize>,
    pub domain: u16,
    pub priority: Priority,
    pub charged: Charge,
}

impl Slot {
    /// Its bytes as they are or were charged to the receive buffer.
    pub fn charged_bytes(&self) -> u32 {
        match self.charged {
            Charge::Buffer(len) | Charge::Beside(len) | Charge::Early(len) | Charge::Stream(len) => len,
            Charge::Answer | Charge::Credit { .. } => 0,
        }
    }
}

/// The limit to which a frame for the switch is charged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Charge {
    /// The number of answers; the uplink has made the frame itself.
    #[default]
    Answer,
    /// The receive buffer, with this number of bytes.
    Buffer(u32),
    /// The buffer of its channel, in which it waits for earlier frames: in the receive buffer it would take their room. Or its
    /// tenant's portion of the frames that wait for a silent controller.
    Early(u32),
    /// The number of frames that were read from streams.
    Stream(u32),
    /// In addition to the receive buffer: the frame was early.
    Beside(u32),
    /// The receive queue of a station, with the station's generation at its number.
    Credit { vm: Vm, generation: u32 },
}

/// The source of the frame that is shown to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// The link's receive buffer.
    OfLink,
    /// The receive queues of credits.
    Credited,
}

/// The receive buffer and the tunnel of an uplink.
#[derive(Debug)]
pub(super) struct Inside<K> {
    pub link: Link<K>,
    pub overlay: Option<Overlay>,
    /// Boxed because both are taken out while they run.
    pub zcredit: Option<Box<ZCredit>>,
    pub zbridge: Option<Box<ZBridge>>,
    pub tcp_tunnels: Option<TcpTunnels>,
    /// The stations that may communicate, if there are restrictions.
    pub gate: Option<Gate>,
    /// The source of the frame shown now.
    shown: Option<Shown>,
    /// The source of the frame shown last.
    last: Option<Shown>,
    pub slots: Vec<Slot>,
    free: Vec<u32>,
    answers: u32,
    /// Memory of earlier frames, for reuse.
    spare: Vec<Vec<u8>>,
    /// Memory of earlier copies without another owner, for reuse.
    spare_copies: Vec<Arc<Vec<u8>>>,
    pub now: Instant,
    /// The clock of the switch, once the port is plugged.
    pub clock: Option<Clock>,
    pub counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Frames from the link that do not belong to the tunnel; the kernel gets its own copy of them.
    pub other: u64,
    /// Answers to tenants: ARP, and messages about packets that are too large.
    pub answered: u64,
    /// Answers for which there was no room.
    pub answers_full: u64,
    /// Packets of tenants that were cut because they were too large for the tunnel, and the fragments that were made of them.
    pub fragmented: u64,
    pub fragments: u64,
    /// Frames of tenants that imitate messages between servers.
    pub forged: u64,
    /// Frames of tenants that imitate congestion notifications.
    pub notifications_forged: u64,
    /// Frames of tenants that imitate messages of XCo.
    pub messages_forged: u64,
    /// Stations announced here that the controller has assigned to another server: they moved, or their address is in use.
    pub stations_lost: u64,
}

impl<K: UplinkKind> Inside<K> {
    pub fn new(link: uplink::Link, overlay: Option<Overlay>, kind: K) -> Inside<K> {
        Inside {
            link: uplink::Uplink::with(link, kind),
            overlay,
            zcredit: None,
            zbridge: None,
            tcp_tunnels: None,
            gate: None,
            shown: None,
            last: None,
            slots: Vec::new(),
            free: Vec::new(),
            answers: 0,
            spare: Vec::new(),
            spare_copies: Vec::new(),
            now: Instant::ZERO,
            clock: None,
            counters: Counters::default(),
        }
    }

    /// Bytes of the longest frame that a trunk takes from the switch.
    pub fn trunk_frame(&self) -> u32 {
        self.link.link().max_frame.saturating_sub(self.link.queues().growth())
    }

    /// Empty memory for a frame.
    pub fn memory(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// A frame has left: keeps its memory for reuse.
    pub fn reuse(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < SPARE {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// A copy of a frame, in shared memory for repeated sending.
    pub fn copy(&mut self, bytes: &[u8]) -> Arc<Vec<u8>> {
        let mut copy = self.spare_copies.pop().unwrap_or_default();
        let Some(memory) = Arc::get_mut(&mut copy) else { return Arc::new(bytes.to_vec()) };
        memory.clear();
        memory.extend_from_slice(bytes);
        copy
    }

    /// A copy is no longer needed.
    pub fn free(&mut self, mut kept: Arc<Vec<u8>>) {
        if self.spare_copies.len() < SPARE && Arc::get_mut(&mut kept).is_some() {
            self.spare_copies.push(kept);
        }
    }

    /// A frame has arrived from the link.
    pub fn arrive(&mut self, frame: &[u8]) {
        if uplink::Uplink::<u32, Vec<u8>>::is_control(frame) {
            self.link.control(self.now, frame);
            return;
        }
        if K::IS_MANAGED {
            self.arrive_managed(frame);
        } else {
            self.arrive_data(frame);
        }
    }

    /// A frame of a network with congestion notifications has arrived: notifications end here, and CN-TAGs too.
    fn arrive_managed(&mut self, frame: &[u8]) {
        // A notification on a trunk is for the station that sent the frame.
        let own = self.overlay.as_ref().map(|_| self.link.link().address);
        if K::notify(&mut self.link, self.clock, &mut self.now, frame, own) {
            return;
        }
        if self.link.queues().limits().is_none() || qcn::flow_of(frame).is_none() {
            return self.arrive_data(frame);
        }
        let at = qcn::tag_position(frame);
        let mut bytes = self.memory();
        bytes.extend_from_slice(&frame[..at]);
        bytes.extend_from_slice(&frame[at + qcn::TAG_LEN..]);
        self.arrive_data(&bytes);
        self.reuse(bytes);
    }

    fn arrive_data(&mut self, frame: &[u8]) {
        let len = frame.len() as u32;
        let (priority, vid) = tag(frame);
        if frame.len() < HEADER_LEN {
            self.link.refuse_unseen(priority, DropReason::Malformed, len);
            return;
        }
        let Some(overlay) = &mut self.overlay else {
            if is_denied(&mut self.gate, vid, frame, priority) {
                self.link.refuse_unseen(priority, DropReason::Denied, len);
                return;
            }
            // The switch knows the frame's domain and class without its tag. A second tag belongs to the sender.
            let bytes = match frame.get(ADDRESSES_LEN..BEHIND_TAG) {
                Some([0x81, 0x00, ..]) if frame.len() >= HEADER_LEN + vlan::TAG_LEN => {
                    [&frame[..ADDRESSES_LEN], &frame[BEHIND_TAG..]].concat()
                }
                _ => frame.to_vec(),
            };
            let slot = Slot { frame: 0..bytes.len(), bytes, domain: vid, priority, charged: Charge::Answer };
            if let Some(slot) = self.charge(slot, len) {
                self.link.show(priority, slot);
            }
            return;
        };
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(frame);
        let (inner, asked) = match overlay.vtep.inward(self.now, &mut bytes) {
            Inward::Deliver(inner) => (inner, None),
            Inward::Ask(inner, station) => (inner, Some(station)),
            Inward::Beside(inner, asked) => return self.arrive_beside(inner, asked, bytes, len),
            Inward::Segment(heard) => {
                self.segment(priority, len, &heard, &bytes);
                self.reuse(bytes);
                return;
            }
            Inward::Other => {
                self.counters.other += 1;
                return;
            }
            Inward::Drop(reason) => {
                self.link.refuse_unseen(priority, reason, len);
                return;
            }
        };
        if is_denied(&mut self.gate, inner.domain, &bytes[inner.frame.clone()], priority) {
            // Before the frame is stored, granted or acknowledged.
            self.link.refuse_unseen(priority, DropReason::Denied, len);
            self.reuse(bytes);
            return;
        }
        let Inner { frame, domain, from, .. } = inner;
        let Some(slot) = self.charge(Slot { bytes, frame, domain, priority, charged: Charge::Answer }, len) else {
            return;
        };
        match (asked, &mut self.overlay) {
            (Some(station), Some(overlay)) => {
                let lossless = self.link.link().lossless.contains(priority);
                if let Err(reason) = overlay.vtep.park(self.now, station, from, slot, lossless) {
                    self.link.refuse(reason, len);
                    self.release(slot);
                }
            }
            _ => self.arrived(slot),
        }
    }

    /// A frame for a group, or an ARP reply, has arrived. It goes to the switch at once: it has neither credit nor number. While
    /// its sender is asked about, it takes no room in the receive buffer.
    #[cold]
    fn arrive_beside(&mut self, inner: Inner, asked: Option<StationId>, bytes: Vec<u8>, len: u32) {
        let Inner { frame, domain, from, priority, .. } = inner;
        if is_denied(&mut self.gate, domain, &bytes[frame.clone()], priority) {
            self.link.refuse_unseen(priority, DropReason::Denied, len);
            return self.reuse(bytes);
        }
        let Some(slot) = self.charge(Slot { bytes, frame, domain, priority, charged: Charge::Answer }, len) else {
            return;
        };
        let (Some(station), Some(overlay)) = (asked, &mut self.overlay) else {
            return self.link.show(priority, slot);
        };
        match overlay.vtep.park(self.now, station, from, slot, false) {
            Ok(()) => self.put_aside(slot),
            Err(reason) => {
                self.link.refuse(reason, len);
                self.release(slot);
            }
        }
    }

    /// A station appears here, or leaves. `tell` informs the tunnel: about a new station at once, and about a leaving one
    /// after its last messages.
    pub fn house(
        &mut self,
        now: Instant,
        station: (u16, MacAddress),
        here: bool,
        tell: impl FnOnce(&mut Vtep<u32>, MacAddress),
    ) {
        self.now = now;
        if !here {
            self.settle(station, false);
            self.end_channels_of(station);
        }
        let Some(overlay) = &mut self.overlay else { return };
        tell(&mut overlay.vtep, station.1);
        if here {
            self.settle(station, true);
        }
    }

    /// Charges a frame to the receive buffer and stores it, or drops it by name.
    fn charge(&mut self, slot: Slot, len: u32) -> Option<u32> {
        self.link.charge(self.now, slot.priority, len).ok()?;
        Some(self.keep(Slot { charged: Charge::Buffer(len), ..slot }))
    }

    pub fn keep(&mut self, slot: Slot) -> u32 {
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

    /// A frame has left: frees its memory and its room.
    pub fn release(&mut self, at: u32) {
        let slot = std::mem::take(&mut self.slots[at as usize]);
        self.free.push(at);
        self.reuse(slot.bytes);
        self.discharge(slot.charged, slot.priority);
    }

    /// Frees the room that a frame was charged to.
    pub fn discharge(&mut self, charged: Charge, priority: Priority) {
        match charged {
            Charge::Buffer(len) => self.link.release(priority, len),
            Charge::Beside(len) => self.link.release_beside(priority, len),
            Charge::Early(_) => {}
            Charge::Stream(_) => {
                if let Some(z) = &mut self.tcp_tunnels {
                    z.departed();
                }
            }
            Charge::Credit { vm, generation } => {
                if let Some(z) = &mut self.zcredit {
                    z.departed(self.now, vm, generation);
                }
            }
            Charge::Answer => self.answers -= 1,
        }
    }

    /// The frame is charged to the buffer in which it waits from now on, and no longer to the receive buffer.
    pub fn put_aside(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        let (priority, len) = (slot.priority, slot.charged_bytes());
        let was = std::mem::replace(&mut slot.charged, Charge::Early(len));
        self.discharge(was, priority);
    }

    /// The frame no longer waits for earlier ones.
    pub fn charge_beside(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if let Charge::Early(len) = slot.charged {
            slot.charged = Charge::Beside(len);
            self.link.charge_beside(slot.priority, len);
        }
    }

    /// Answers a tenant with a frame of the uplink's own.
    fn answer(&mut self, bytes: Vec<u8>, domain: u16, priority: Priority) {
        if self.answers >= ANSWERS {
            self.counters.answers_full += 1;
            return;
        }
        self.answers += 1;
        self.counters.answered += 1;
        let len = bytes.len();
        let slot = self.keep(Slot { bytes, frame: 0..len, domain, priority, charged: Charge::Answer });
        self.link.show(priority, slot);
    }

    // To the switch.

    /// The next frame for the switch; it stays the next until it is accepted or deferred.
    pub fn next_frame(&mut self) -> Option<u32> {
        let credited = self.zcredit.as_ref().and_then(|z| z.front());
        if self.shown.is_none() {
            let of_link = self.link.next_frame().is_some();
            self.shown = match (of_link, credited.is_some()) {
                (true, true) if self.last == Some(Shown::OfLink) => Some(Shown::Credited),
                (true, _) => Some(Shown::OfLink),
                (false, true) => Some(Shown::Credited),
                (false, false) => None,
            };
        }
        match self.shown? {
            Shown::OfLink => self.link.next_frame().map(|(_, at)| at),
            Shown::Credited => credited,
        }
    }

    /// Whether there is a frame for the switch.
    pub fn has_frame(&mut self) -> bool {
        self.link.next_frame().is_some() || self.zcredit.as_ref().is_some_and(|z| z.front().is_some())
    }

    /// The switch took the frame shown.
    pub fn accept(&mut self) {
        self.last = self.shown.take();
        match self.last {
            Some(Shown::OfLink) => self.link.accept(),
            Some(Shown::Credited) => {
                if let Some((at, vm, generation)) = self.zcredit.as_mut().and_then(|z| z.accept()) {
                    self.slots[at as usize].charged = Charge::Credit { vm, generation };
                }
            }
            None => {}
        }
    }

    /// Defers the frame shown for the rest of this round; returns whether there is another.
    pub fn defer(&mut self) -> bool {
        match self.shown.take() {
            Some(Shown::OfLink) => {
                self.link.defer();
            }
            Some(Shown::Credited) => {
                if let Some(z) = &mut self.zcredit {
                    z.defer();
                }
            }
            None => {}
        }
        self.has_frame()
    }

    /// A new round begins: deferred frames may be tried again.
    pub fn begin_round(&mut self) {
        self.link.begin_round();
        if let Some(z) = &mut self.zcredit {
            z.begin_round();
        }
    }

    // From the switch.

    /// The classes whose frames the uplink takes.
    pub fn takes(&self) -> PrioritySet {
        match &self.tcp_tunnels {
            Some(z) => z.takes(self.link.takes()),
            None => self.link.takes(),
        }
    }

    /// Whether the rate limiters have room for a frame of a tenant. `read` gives its first bytes.
    pub fn limits_admit(&self, domain: u16, class: Priority, to: MacAddress, read: &dyn Fn(&mut [u8])) -> bool {
        let Some(limits) = self.link.queues().limits().filter(|limits| !limits.is_empty()) else { return true };
        let first_bytes = || {
            let mut bytes = [0; FLOW_BYTES];
            read(&mut bytes);
            bytes
        };
        let Some(overlay) = &self.overlay else {
            // A tag is no part of the flow.
            return limits.has_room(class, to, || flow_hash(&first_bytes()));
        };
        // A frame whose server is unknown waits for the controller, which has its own limits.
        let tunnel = overlay.vtep.tunnel();
        let Some(server) = overlay.vtep.server_of(domain, to) else { return true };
        let Some(next_hop) = tunnel.next_hop(server) else { return true };
        limits.has_room(class, next_hop, || tunnel.outer_flow(&first_bytes(), server).unwrap_or(0))
    }

    /// Takes a frame from the switch.
    pub fn leave(&mut self, bytes: &[u8], domain: u16, priority: Priority) {
        let has_control = self.zcredit.is_some() || self.zbridge.is_some();
        if has_control && inner_type(bytes) == Some(zcredit::ETHERTYPE) {
            // Tenants may not send messages between servers.
            self.counters.forged += 1;
            self.link.drop_out(DropReason::Reserved, bytes.len() as u32);
            return;
        }
        if K::IS_MANAGED && self.link.queues().limits().is_some() && qcn::is_notification(bytes) {
            // Only the network notifies.
            self.counters.notifications_forged += 1;
            self.link.drop_out(DropReason::Reserved, bytes.len() as u32);
            return;
        }
        if K::IS_MANAGED && self.link.queues().gate().is_some() && xco::is_message(bytes) {
            // Only the gate speaks to the controller, and only the controller to gates.
            self.counters.messages_forged += 1;
            self.link.drop_out(DropReason::Reserved, bytes.len() as u32);
            return;
        }
        if !self.wait_for_credit(bytes, domain, priority) {
            self.send(bytes, None, domain, priority);
        }
    }

    /// Sends a frame to the link, through the tunnel if there is one. `kept` is a shared copy of a frame that waited for a
    /// credit.
    pub fn send(&mut self, bytes: &[u8], kept: Option<&Arc<Vec<u8>>>, domain: u16, priority: Priority) {
        if self.number(bytes, kept, domain, priority) {
            return;
        }
        let Some(overlay) = &mut self.overlay else {
            let bytes = with_tag(bytes, domain, priority);
            self.link.enqueue(self.now, priority, bytes.len() as u32, bytes);
            return;
        };
        let mut out = self.spare.pop().unwrap_or_default();
        match overlay.vtep.outward(self.now, bytes, domain, priority, &mut out) {
            Outward::Send => self.link.enqueue(self.now, priority, out.len() as u32, out),
            Outward::Into(server) => self.put_in_stream(server, out, Origin::Switch),
            Outward::NotNow | Outward::Parked | Outward::Ended => {}
            Outward::Cut => self.cut(bytes, domain, priority),
            Outward::Copies(servers) => self.replicate(bytes, &servers, domain, priority),
            Outward::Reply(answer) => self.answer(answer, domain, priority),
            Outward::Drop(reason, told) => {
                self.link.drop_out(reason, bytes.len() as u32);
                if let Some(answer) = told {
                    self.answer(answer, domain, priority);
                }
            }
        }
    }

    /// Cuts a packet that is too large for the tunnel. Each fragment is a frame of its own, with its own credit and number.
    #[cold]
    fn cut(&mut self, bytes: &[u8], domain: u16, priority: Priority) {
        let Some(overlay) = &self.overlay else { return };
        let Some(fragments) = FrameFragments::of(bytes, overlay.vtep.inner_mtu()) else { return };
        self.counters.fragmented += 1;
        self.counters.fragments += fragments.count() as u64;
        let mut fragment = self.memory();
        for k in 0..fragments.count() {
            fragments.emit(k, &mut fragment);
            self.leave(&fragment, domain, priority);
        }
        self.reuse(fragment);
    }

    /// Sends a copy of a frame for a group to each server. The first takes the room that the switch asked for; the others are
    /// dropped where the link has no room.
    #[cold]
    fn replicate(&mut self, bytes: &[u8], servers: &[Ipv4Addr], domain: u16, priority: Priority) {
        let mut origin = Origin::Switch;
        for &server in servers {
            if origin == Origin::Own && !self.link.takes().contains(priority) {
                self.link.drop_out(DropReason::FloodNoRoom, bytes.len() as u32);
                continue;
            }
            let mut out = self.memory();
            let Some(overlay) = &mut self.overlay else { return };
            if overlay.vtep.copy(bytes, domain, priority, server, &mut out) {
                self.link.enqueue_of(self.now, origin, priority, out.len() as u32, out);
                origin = Origin::Own;
            } else {
                self.reuse(out);
            }
        }
    }

    /// The next station that sent a frame and is not registered, or not with this address.
    pub fn poll_stranger(&mut self) -> Option<(u16, MacAddress, Option<Ipv4Addr>)> {
        self.overlay.as_mut()?.vtep.poll_stranger()
    }

    /// Sends the messages of the gate, if there is one.
    #[inline]
    pub fn run_gate(&mut self) {
        let (now, own) = (self.now, self.link.link().address);
        if self.link.queues().gate().is_none() {
            return;
        }
        loop {
            let mut bytes = self.memory();
            let Some(gate) = self.link.queues_mut().gate_mut() else { return };
            let priority = gate.priority();
            if !gate.poll_message(now, own, &mut bytes) {
                self.reuse(bytes);
                return;
            }
            self.link.enqueue_of(now, Origin::Own, priority, bytes.len() as u32, bytes);
        }
    }

    /// Exchanges messages with the controller, and handles the frames that waited for its answers.
    pub fn consult(&mut self) {
        let Some(overlay) = &mut self.overlay else { return };
        let now = self.now;
        // A check is a system call; a round may be much shorter than an answer takes.
        let due = overlay.vtep.poll_timeout().is_some_and(|at| at <= now);
        if !due && overlay.consulted.is_some_and(|at| now.since(at) < CONSULT_EVERY) {
            return;
        }
        overlay.consulted = Some(now);
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
        while overlay.vtep.poll_lost().is_some() {
            self.counters.stations_lost += 1;
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
            Event::Send(bytes, p, origin) => {
                self.link.enqueue_of(self.now, origin, p, bytes.len() as u32, bytes);
            }
            Event::Into(bytes, server, origin) => self.put_in_stream(server, bytes, origin),
            Event::Aside(at) => self.put_aside(at),
            Event::Copies(bytes, servers, domain, p) => self.replicate(&bytes, &servers, domain, p),
            Event::Deliver(at) => {
                self.charge_beside(at);
                let slot = &self.slots[at as usize];
                match is_beside(&slot.bytes[slot.frame.clone()]) {
                    true => self.link.show(slot.priority, at),
                    false => self.arrived(at),
                }
            }
            Event::Drop(at, reason) => {
                let len = self.slots[at as usize].charged_bytes();
                self.link.refuse(reason, len);
                self.release(at);
            }
            Event::DropOut(reason, len) => self.link.drop_out(reason, len),
            Event::Reply(bytes, domain, p) => self.answer(bytes, domain, p),
        }
    }
}

/// Whether an arrived frame is between stations that may not communicate.
pub(super) fn is_denied(gate: &mut Option<Gate>, domain: u16, frame: &[u8], class: Priority) -> bool {
    let Some(gate) = gate else { return false };
    let station = |at: usize| Some(Station::new(frame.get(at..at + 6)?.try_into().ok()?, domain));
    match (station(0), station(6)) {
        (Some(to), Some(from)) => !to.is_group() && !gate.allows(from, to, class),
        _ => false,
    }
}

/// The priority and VLAN of a frame's tag, or 0 and 0.
fn tag(frame: &[u8]) -> (Priority, u16) {
    match frame.get(ADDRESSES_LEN..BEHIND_TAG) {
        Some(&[0x81, 0x00, a, b]) => (a >> 5, u16::from_be_bytes([a & 0x0F, b])),
        _ => (0, 0),
    }
}

/// A frame with a tag of its class and domain; without a tag if both are 0 and it had none.
#[inline(always)]
fn with_tag(frame: &[u8], domain: u16, priority: Priority) -> Vec<u8> {
    let control = (u16::from(priority) << 13 | domain & 0x0FFF).to_be_bytes();
    let is_tagged = frame.get(ADDRESSES_LEN..HEADER_LEN) == Some(&EtherType::VLAN.0.to_be_bytes());
    if is_tagged && frame.len() >= HEADER_LEN + vlan::TAG_LEN {
        let mut bytes = frame.to_vec();
        // The drop eligible bit is kept from the sender.
        bytes[14] = control[0] | frame[14] & 0x10;
        bytes[15] = control[1];
        return bytes;
    }
    if control == [0, 0] || frame.len() < HEADER_LEN {
        return frame.to_vec();
    }
    [&frame[..ADDRESSES_LEN], &EtherType::VLAN.0.to_be_bytes(), &control, &frame[ADDRESSES_LEN..]].concat()
}
