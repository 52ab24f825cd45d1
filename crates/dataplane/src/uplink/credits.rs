//! zCredit at an uplink ([`sluicenet_node::credits`]). Frames that tenants of this server send through the tunnel in its
//! classes wait here for credits of their destination. Frames for these tenants wait here in the receive queue of each, until
//! the switch takes them. Neither count against the buffers of PFC: a station that takes no frames pauses no link.

use super::inside::{Charge, Inside};
use super::kind::UplinkKind;
use super::zbridge::ZBridge;
use sluicenet_node::credits::{Cleared, CreditConfig, Credits, Told, Vm};
use sluicenet_node::uplink::Origin;
use sluicenet_node::vtep::Outward;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::{EtherType, MacAddress, addresses, inner_type};
use sluicenet_wire::zcredit::{self, Message};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A station on any server: its tenant's number on this server, and its address.
pub(super) type Station = (u16, MacAddress);

/// Frames that a station sends in its turn.
const BURST: u32 = 8;
/// Rounds over all stations: frames that go to the device together cost less than single ones.
const ROUNDS: u32 = 8;
/// Unanswered requests to a station, over some two seconds, before the controller is asked whether the station still exists.
const SILENT: u32 = 25;

/// Peers that are told when a station leaves, even if the link has no room. Other peers find out when they ask.
const LAST_WORDS: usize = 256;

/// A frame that waits for a credit.
#[derive(Debug)]
pub(super) struct Unsent {
    pub bytes: Arc<Vec<u8>>,
    pub domain: u16,
    pub priority: Priority,
}

#[derive(Debug, Default)]
struct Machine {
    /// `None` if the number is free.
    station: Option<Station>,
    /// Distinguishes frames in the switch of an earlier station with this number.
    generation: u32,
    shown: u32,
    /// Whether the station is in the list of stations with frames to show.
    is_listed: bool,
    /// Its first frame has to wait for the rest of the round.
    waits: bool,
}

/// The counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CreditCounters {
    /// Messages and frames for stations that are not here.
    pub strays: u64,
    /// Stations that did not answer in time.
    pub silent: u64,
}

/// The credits of an uplink.
#[derive(Debug)]
pub(super) struct ZCredit {
    /// The classes in which credits are needed.
    pub classes: PrioritySet,
    /// Stations whose turns are longer.
    weights: BTreeMap<Station, u32>,
    /// The most frames of a station in the switch, so that those of all stations fit into its queue for the uplink.
    shown: u32,
    credits: Credits<Station, Unsent, u32>,
    vms: BTreeMap<Station, Vm>,
    machines: Vec<Machine>,
    free: Vec<Vm>,
    /// Stations with frames to show to the switch, in turn, and those that wait for the next round.
    listed: VecDeque<Vm>,
    waiting: Vec<Vm>,
    /// Stations whose next frames are of classes that the link did not take, and the classes that it took at that time.
    blocked: Vec<Vm>,
    took: PrioritySet,
    /// The station whose turn it is to send.
    turn: Vm,
    /// Kept to reuse its memory.
    ready: Vec<Vm>,
    /// The earliest of all deadlines.
    deadline: Instant,
    pub counters: CreditCounters,
}

impl ZCredit {
    pub fn new(config: CreditConfig, classes: PrioritySet, shown: u32, weights: BTreeMap<Station, u32>) -> ZCredit {
        ZCredit {
            classes,
            weights,
            shown: shown.max(1),
            credits: Credits::new(config, 0),
            vms: BTreeMap::new(),
            machines: Vec::new(),
            free: Vec::new(),
            listed: VecDeque::new(),
            waiting: Vec::new(),
            blocked: Vec::new(),
            took: PrioritySet::NONE,
            turn: 0,
            ready: Vec::new(),
            deadline: Instant::MAX,
            counters: CreditCounters::default(),
        }
    }

    pub fn credits(&self) -> &Credits<Station, Unsent, u32> {
        &self.credits
    }

    /// The credits of a station here, if a class needs credits.
    pub fn of(&mut self, own: Station, class: Priority) -> Option<(&mut Credits<Station, Unsent, u32>, Vm)> {
        let vm = *self.vms.get(&own)?;
        self.classes.contains(class).then_some((&mut self.credits, vm))
    }

    /// Frames that wait to be sent.
    pub fn unsent(&self) -> u64 {
        self.credits.waiting()
    }

    /// Adds a station of this server.
    pub fn add(&mut self, station: Station) {
        if self.vms.contains_key(&station) {
            return;
        }
        let vm = self.free.pop().unwrap_or_else(|| {
            self.machines.push(Machine::default());
            self.credits.add()
        });
        self.machines[vm].station = Some(station);
        self.vms.insert(station, vm);
    }

    /// Removes a station of this server.
    fn remove(&mut self, station: Station) -> Option<Cleared<Station, Unsent, u32>> {
        let vm = self.vms.remove(&station)?;
        let machine = &mut self.machines[vm];
        *machine = Machine { generation: machine.generation.wrapping_add(1), ..Machine::default() };
        self.listed.retain(|&other| other != vm);
        self.waiting.retain(|&other| other != vm);
        self.blocked.retain(|&other| other != vm);
        self.free.push(vm);
        Some(self.credits.clear(vm))
    }

    /// Whether one more frame from a station here to another may wait.
    pub fn has_room(&self, from: Station, to: MacAddress) -> bool {
        let Some(&vm) = self.vms.get(&from) else { return true };
        self.credits.has_room(vm) && self.credits.has_room_for(vm, (from.0, to))
    }

    /// Applies the effect of a message to the channels between two stations.
    fn settle_with(&mut self, zbridge: &mut ZBridge, now: Instant, vm: Vm, own: Station, peer: Station, told: Told) {
        if told == Told::BeganAnew {
            for name in zbridge.names(own, peer).filter(|name| self.classes.contains(name.3)) {
                let frames = zbridge.take_unsent(name).into_iter();
                let unsent = frames.map(|bytes| Unsent { bytes, domain: own.0, priority: name.3 });
                self.credits.restore(vm, peer, unsent.collect());
            }
        } else if told == Told::Keeps {
            let mut connected = false;
            for name in zbridge.names(own, peer) {
                connected |= zbridge.channels.inquire(now, name);
            }
            if !connected {
                self.credits.expect_nothing(now, vm, peer);
            }
        }
    }

    fn list(&mut self, vm: Vm) {
        let machine = &mut self.machines[vm];
        let may = !machine.is_listed && !machine.waits && machine.shown < self.shown;
        if may && self.credits.has_received(vm) {
            machine.is_listed = true;
            self.listed.push_back(vm);
        }
    }

    /// The slot of the next frame for the switch.
    pub fn front(&self) -> Option<u32> {
        self.credits.first(*self.listed.front()?).copied()
    }

    /// The switch took the frame; its slot, its station, and the station's generation.
    pub fn accept(&mut self) -> Option<(u32, Vm, u32)> {
        let vm = self.listed.pop_front()?;
        let at = self.credits.take(vm)?;
        let machine = &mut self.machines[vm];
        machine.is_listed = false;
        machine.shown += 1;
        let generation = machine.generation;
        self.list(vm);
        Some((at, vm, generation))
    }

    /// The frame has to wait for the rest of this round.
    pub fn defer(&mut self) {
        if let Some(vm) = self.listed.pop_front() {
            (self.machines[vm].is_listed, self.machines[vm].waits) = (false, true);
            self.waiting.push(vm);
        }
    }

    pub fn begin_round(&mut self) {
        for at in 0..self.waiting.len() {
            let vm = self.waiting[at];
            self.machines[vm].waits = false;
            self.list(vm);
        }
        self.waiting.clear();
    }

    /// The switch has delivered a frame of the station with this generation.
    pub fn departed(&mut self, now: Instant, vm: Vm, generation: u32) {
        let machine = &mut self.machines[vm];
        if machine.generation == generation {
            machine.shown -= 1;
            self.credits.on_departure(now, vm);
            self.list(vm);
        }
    }

    /// Whether there are messages or frames to send.
    pub fn has_work(&self) -> bool {
        self.credits.has_work()
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.deadline != Instant::MAX).then_some(self.deadline)
    }

    fn handle_timeout(&mut self, now: Instant) {
        if now < self.deadline {
            return;
        }
        self.deadline = Instant::MAX;
        for vm in 0..self.machines.len() {
            if self.credits.armed_at(vm) <= now {
                self.credits.handle_timeout(now, vm);
            } else {
                self.deadline = self.deadline.min(self.credits.armed_at(vm));
            }
        }
    }
}

impl<K: UplinkKind> Inside<K> {
    /// A station is here from now on, or no longer. In both cases the tunnel must know it now, because it may send last
    /// messages.
    pub fn settle(&mut self, station: Station, here: bool) {
        let Some(z) = &mut self.zcredit else { return };
        if here {
            z.add(station);
            return;
        }
        let class = z.credits.config().priority;
        let Some(Cleared { unsent, received, last_words }) = z.remove(station) else { return };
        for (to, channel, message) in last_words.into_iter().take(LAST_WORDS) {
            // No answer is expected.
            let _ = self.say(station, to.1, channel, message, class);
        }
        for frame in unsent {
            self.link.drop_out(DropReason::PortGone, frame.bytes.len() as u32);
        }
        for at in received {
            let len = self.slots[at as usize].frame.len() as u32;
            self.link.refuse(DropReason::PortGone, len);
            self.release(at);
        }
    }

    /// Queues a tenant's frame for the tunnel until there is a credit; returns whether the frame needs one. Frames of other
    /// classes need none, nor do frames that the tunnel itself answers.
    pub fn wait_for_credit(&mut self, bytes: &[u8], domain: u16, priority: Priority) -> bool {
        let (Some(z), Some(overlay)) = (&mut self.zcredit, &self.overlay) else { return false };
        let Some((to, from)) = addresses(bytes) else { return false };
        let is_bound = z.classes.contains(priority) && !to.is_group();
        let Some(&vm) = z.vms.get(&(domain, from)).filter(|_| is_bound) else { return false };
        // Both end at this server and need no credit.
        if inner_type(bytes) == Some(EtherType::ARP) || !overlay.vtep.may_carry(bytes) {
            return false;
        }
        let to = (domain, to);
        let bytes = self.copy(bytes);
        let Some(z) = &mut self.zcredit else { return false };
        z.credits.on_launch(vm, to);
        z.credits.enqueue(vm, to, Unsent { bytes, domain, priority });
        true
    }

    /// A frame has arrived through the tunnel, in order and from its sender's server. It goes to the switch, or zCredit handles
    /// it.
    pub fn in_order(&mut self, at: u32) {
        let now = self.now;
        let slot = &self.slots[at as usize];
        let (priority, domain) = (slot.priority, slot.domain);
        let bytes = &slot.bytes[slot.frame.clone()];
        let len = slot.charged_bytes();
        let Some(z) = &mut self.zcredit else {
            self.link.show(priority, at);
            return;
        };
        let is_message = inner_type(bytes) == Some(zcredit::ETHERTYPE);
        let message = is_message.then(|| zcredit::Repr::parse(bytes).ok()).flatten();
        let Some((to, from)) = addresses(bytes) else {
            self.link.refuse(DropReason::Malformed, len);
            self.release(at);
            return;
        };
        let vm = z.vms.get(&(domain, to)).copied();
        if let Some(told) = message {
            match vm {
                Some(vm) => {
                    let from = (domain, from);
                    if let (Message::Request { .. }, Some(&weight)) = (&told.message, z.weights.get(&from)) {
                        z.credits.set_weight(now, vm, from, weight);
                    }
                    let told = z.credits.on_message(now, vm, from, told.channel, &told.message);
                    if told != Told::Nothing
                        && let Some(zbridge) = &mut self.zbridge
                    {
                        z.settle_with(zbridge, now, vm, (domain, to), from, told);
                    }
                }
                None => z.counters.strays += 1,
            }
            self.release(at);
        } else if is_message {
            // Damaged, or of another version.
            self.link.refuse(DropReason::Malformed, len);
            self.release(at);
        } else if !z.classes.contains(priority) {
            self.link.show(priority, at);
        } else if let Some(vm) = vm {
            match z.credits.receive(now, vm, (domain, from), at) {
                Ok(()) => {
                    z.list(vm);
                    // From now on the frame is charged to the receive queue of its station.
                    let generation = z.machines[vm].generation;
                    let was =
                        std::mem::replace(&mut self.slots[at as usize].charged, Charge::Credit { vm, generation });
                    self.discharge(was, priority);
                }
                Err(at) => {
                    self.link.refuse(DropReason::NoCredit, len);
                    self.release(at);
                }
            }
        } else {
            z.counters.strays += 1;
            self.link.refuse(DropReason::PortGone, len);
            self.release(at);
        }
    }

    /// Whether there may be messages or frames to send, and the link has room.
    pub fn may_run_credits(&self) -> bool {
        let takes = self.takes();
        self.zcredit.as_ref().is_some_and(|z| {
            let unblocked = !z.blocked.is_empty() && takes.0 & !z.took.0 != 0;
            (z.has_work() || unblocked) && takes.contains(z.credits.config().priority)
        })
    }

    /// Sends messages and frames, station by station, while the link has room.
    pub fn run_credits(&mut self) {
        let Some(mut z) = self.zcredit.take() else { return };
        let now = self.now;
        z.handle_timeout(now);
        let class = z.credits.config().priority;
        let takes = self.takes();
        if takes.0 & !z.took.0 != 0 {
            z.blocked.drain(..).for_each(|vm| z.credits.wake(vm));
        }
        z.took = takes;
        let mut ready = std::mem::take(&mut z.ready);
        for _ in 0..ROUNDS {
            let mut from = 0;
            while let Some(vm) = z.credits.next_ready(from) {
                ready.push(vm);
                from = vm + 1;
            }
            let first = ready.partition_point(|&vm| vm < z.turn);
            ready.rotate_left(first);
            for vm in ready.drain(..) {
                if self.takes().contains(class) {
                    z.turn = vm + 1;
                    self.run_station(&mut z, vm, class);
                } else {
                    z.credits.wake(vm);
                }
            }
            if !z.has_work() || !self.takes().contains(class) {
                break;
            }
        }
        z.ready = ready;
        self.zcredit = Some(z);
    }

    fn run_station(&mut self, z: &mut ZCredit, vm: Vm, class: Priority) {
        let now = self.now;
        let Some((domain, me)) = z.machines[vm].station else { return };
        let mut sent = 0;
        loop {
            if sent >= BURST || !self.takes().contains(class) {
                z.credits.wake(vm);
                return;
            }
            if let Some((to, channel, message)) = z.credits.poll_message(now, vm) {
                let is_request = matches!(message, Message::Request { .. });
                let waits = z.credits.first_waiting(vm, to).map(|frame| frame.priority).filter(|_| is_request);
                match self.say((domain, me), to.1, channel, message, class) {
                    Ok(true) => {
                        if let Some(class) = waits {
                            self.open_channel((domain, me, to.1, class));
                        }
                    }
                    Ok(false) => {}
                    Err(reason) => self.give_up(z, vm, to, reason),
                }
                continue;
            }
            let takes = self.takes();
            let mut is_blocked = false;
            let next = z.credits.poll_frame(vm, |frame: &Unsent| {
                let may = takes.contains(frame.priority);
                is_blocked |= !may;
                may
            });
            if is_blocked {
                z.took = PrioritySet(z.took.0 & takes.0);
                if !z.blocked.contains(&vm) {
                    z.blocked.push(vm);
                }
            }
            let Some((frame, _)) = next else { break };
            self.send(&frame.bytes, Some(&frame.bytes), frame.domain, frame.priority);
            self.free(frame.bytes);
            sent += 1;
        }
        if let Some(overlay) = &mut self.overlay {
            for to in z.credits.silent(vm, SILENT) {
                z.counters.silent += u64::from(overlay.vtep.doubt(now, to.0, to.1));
            }
        }
        if let Some(at) = z.credits.arm(vm) {
            z.deadline = z.deadline.min(at);
        }
    }

    /// Sends a message if the receiver's server is known; returns whether it was sent.
    fn say(
        &mut self,
        (domain, me): Station,
        to: MacAddress,
        channel: u32,
        message: Message,
        class: Priority,
    ) -> Result<bool, DropReason> {
        let frame = zcredit::Repr { destination: to, source: me, channel, message }.emit();
        let mut out = self.memory();
        let Some(overlay) = &mut self.overlay else { return Ok(false) };
        match overlay.vtep.outward_of(self.now, Origin::Own, [&frame, &[]], domain, class, &mut out) {
            Outward::Send => self.link.enqueue_of(self.now, Origin::Own, class, out.len() as u32, out),
            Outward::Into(server) => self.put_in_stream(server, out, Origin::Own),
            Outward::Drop(reason, _) => return Err(reason),
            Outward::Cut
            | Outward::Copies(_)
            | Outward::NotNow
            | Outward::Parked
            | Outward::Ended
            | Outward::Reply(_) => return Ok(false),
        }
        Ok(true)
    }

    /// A station is unreachable: drops its waiting frames by name.
    fn give_up(&mut self, z: &mut ZCredit, vm: Vm, to: Station, reason: DropReason) {
        let (unsent, _) = z.credits.withdraw(vm, to);
        for frame in unsent {
            self.link.drop_out(reason, frame.bytes.len() as u32);
        }
    }
}
