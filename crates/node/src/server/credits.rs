//! zCredit between the machines of servers (Crisan 2014, 5.3.3): frames wait at their own machine, by destination, until that has
//! granted room for them, and wait again in its receive queue, which is never full and stops nobody.

use super::{CREDIT_TIMER, Core, DEADLINES, PORT_FREE};
use crate::packet::{Address, Kind, Packet};
use crate::pool::{Handle, Pool};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zcredit::{Message, Reception, ReceptionConfig, Transmission, TransmissionConfig};

/// Credits of a server's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditConfig {
    /// A machine's receive queue.
    pub reception: ReceptionConfig,
    /// How a machine asks.
    pub transmission: TransmissionConfig,
    /// Frames of a machine that may wait, and those of them for one destination: its sockets are stopped by these.
    pub waiting: u32,
    /// See there.
    pub waiting_each: u32,
    /// Class of the messages.
    pub priority: Priority,
}

#[derive(Debug)]
struct Pair {
    destination: Address,
    transmission: Transmission,
    frames: VecDeque<Handle>,
    /// Frames that left a socket for there and are not in the vSwitch yet.
    outgoing: u32,
    /// Sockets that wait because these are too many.
    parked: Vec<u32>,
    is_active: bool,
}

/// What stands between a machine and the vSwitch.
#[derive(Debug)]
struct Vnic {
    pairs: Vec<Pair>,
    by_destination: BTreeMap<Address, usize>,
    /// Pairs with frames or something to say, in turn.
    active: VecDeque<usize>,
    outgoing: u32,
    reception: Reception<Address>,
    /// The receive queue.
    rx: VecDeque<Handle>,
    /// The deadline that stands in the timers.
    armed_at: Instant,
}

/// Those of all machines of a server.
#[derive(Debug)]
pub struct Credits {
    config: CreditConfig,
    vnics: Vec<Vnic>,
    /// Machines that may have something to say or to send.
    ready: u64,
    waiting: u64,
    made: u64,
    consumed: u64,
}

impl Credits {
    pub(super) fn new(config: CreditConfig, vms: usize) -> Credits {
        let vnic = || Vnic {
            pairs: Vec::new(),
            by_destination: BTreeMap::new(),
            active: VecDeque::new(),
            outgoing: 0,
            reception: Reception::new(config.reception),
            rx: VecDeque::new(),
            armed_at: Instant::MAX,
        };
        Credits { config, vnics: (0..vms).map(|_| vnic()).collect(), ready: 0, waiting: 0, made: 0, consumed: 0 }
    }

    /// Frames that wait for a credit or in a receive queue.
    pub fn queued(&self) -> u64 {
        self.waiting + self.vnics.iter().map(|v| v.rx.len() as u64).sum::<u64>()
    }
    /// Messages sent and received.
    pub fn messages(&self) -> (u64, u64) {
        (self.made, self.consumed)
    }
    /// The most frames that a receive queue has held at a time, of all machines.
    pub fn received_max(&self) -> u32 {
        self.vnics.iter().map(|v| v.reception.queued_max()).max().unwrap_or(0)
    }
    /// Whether no receive queue has ever been longer than it may be, and what is counted is what is there.
    pub fn is_sound(&self) -> bool {
        let counts =
            |p: &Pair| p.transmission.waiting() as usize == p.frames.len() && p.frames.len() <= p.outgoing as usize;
        let sound = |v: &Vnic| {
            v.reception.is_sound()
                && v.reception.queued() as usize == v.rx.len()
                && v.pairs.iter().all(counts)
                && v.pairs.iter().map(|p| p.outgoing).sum::<u32>() == v.outgoing
        };
        let waiting: usize = self.vnics.iter().flat_map(|v| &v.pairs).map(|p| p.frames.len()).sum();
        waiting as u64 == self.waiting && self.vnics.iter().all(sound)
    }
    pub(super) fn has_work(&self) -> bool {
        self.ready != 0
    }
    /// Whether a machine may send one more frame, wherever to.
    pub(super) fn has_room(&self, vm: usize) -> bool {
        self.vnics[vm].outgoing < self.config.waiting
    }
    /// Whether it may send one more to this destination; if not, the socket waits until it may.
    pub(super) fn parks(&mut self, vm: usize, destination: Address, socket: u32) -> bool {
        let limit = self.config.waiting_each;
        let pair = self.pair(vm, destination);
        let is_full = pair.outgoing >= limit;
        if is_full {
            pair.parked.push(socket);
        }
        is_full
    }
    /// A frame left its socket.
    pub(super) fn on_launch(&mut self, vm: usize, destination: Address) {
        self.pair(vm, destination).outgoing += 1;
        self.vnics[vm].outgoing += 1;
    }

    fn pair(&mut self, vm: usize, destination: Address) -> &mut Pair {
        let vnic = &mut self.vnics[vm];
        let next = vnic.pairs.len();
        let at = *vnic.by_destination.entry(destination).or_insert(next);
        if at == next {
            vnic.pairs.push(Pair {
                destination,
                transmission: Transmission::new(self.config.transmission, 1),
                frames: VecDeque::new(),
                outgoing: 0,
                parked: Vec::new(),
                is_active: false,
            });
        }
        &mut vnic.pairs[at]
    }

    fn activate(&mut self, vm: usize, destination: Address) {
        self.ready |= 1 << vm;
        let vnic = &mut self.vnics[vm];
        let Some(&at) = vnic.by_destination.get(&destination) else { return };
        if !core::mem::replace(&mut vnic.pairs[at].is_active, true) {
            vnic.active.push_back(at);
        }
    }

    /// A frame comes from its machine: it waits for a credit.
    pub(super) fn hold(&mut self, vm: usize, destination: Address, at: Handle) {
        let pair = self.pair(vm, destination);
        pair.transmission.on_arrival();
        pair.frames.push_back(at);
        self.waiting += 1;
        self.activate(vm, destination);
    }

    /// A message for a machine, from another.
    fn on_message(&mut self, now: Instant, vm: usize, from: Address, channel: u32, message: &Message) {
        self.consumed += 1;
        match message {
            Message::Request { .. } | Message::Close { .. } => {
                self.vnics[vm].reception.receive(now, from, channel, message);
                self.ready |= 1 << vm;
            }
            Message::Grant { .. } | Message::Probe | Message::Reset => {
                // Nobody is asked who never sent there.
                if self.vnics[vm].by_destination.contains_key(&from) {
                    self.pair(vm, from).transmission.receive(channel, message);
                    self.activate(vm, from);
                }
            }
        }
    }

    /// The next thing that a machine's hypervisor says.
    fn poll_message(&mut self, now: Instant, vm: usize) -> Option<(Address, u32, Message)> {
        let vnic = &mut self.vnics[vm];
        let said = vnic.reception.poll_message().or_else(|| {
            vnic.active.iter().find_map(|&at| {
                let pair = &mut vnic.pairs[at];
                pair.transmission.poll_message(now).map(|(channel, message)| (pair.destination, channel, message))
            })
        });
        self.made += u64::from(said.is_some());
        said
    }

    /// The next frame of a machine for which there is a credit, its destinations in turn. With it, sockets that may go on.
    fn poll_frame(&mut self, vm: usize) -> Option<(Handle, Vec<u32>)> {
        let limit = self.config.waiting_each;
        let vnic = &mut self.vnics[vm];
        for _ in 0..vnic.active.len() {
            let at = vnic.active.pop_front()?;
            let pair = &mut vnic.pairs[at];
            if !pair.transmission.may_send() {
                pair.is_active = !pair.frames.is_empty();
                if pair.is_active {
                    vnic.active.push_back(at);
                }
                continue;
            }
            vnic.active.push_back(at);
            let frame = pair.frames.pop_front()?;
            pair.transmission.on_sent();
            pair.outgoing -= 1;
            vnic.outgoing -= 1;
            self.waiting -= 1;
            let freed = if pair.outgoing < limit { core::mem::take(&mut pair.parked) } else { Vec::new() };
            return Some((frame, freed));
        }
        None
    }

    /// When a machine has to be looked at again, if that is earlier than what was asked for.
    fn arm(&mut self, vm: usize) -> Option<Instant> {
        let vnic = &mut self.vnics[vm];
        let pairs = vnic.active.iter().filter_map(|&at| vnic.pairs[at].transmission.poll_timeout());
        let at = pairs.chain(vnic.reception.poll_timeout()).min()?;
        (at < vnic.armed_at).then(|| {
            vnic.armed_at = at;
            at
        })
    }
}

impl Core {
    /// The credits of its machines, where there are any.
    pub fn credits(&self) -> Option<&Credits> {
        self.credits.as_deref()
    }

    /// Says what there is to say, then sends what may be sent, while the vSwitch has room.
    pub(super) fn run_credits(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let Some(mut credits) = self.credits.take() else { return };
        let mut ready = core::mem::take(&mut credits.ready);
        while ready != 0 {
            let vm = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            let is_stopped = loop {
                if self.vswitch.as_ref().is_none_or(|v| v.input_room(vm) == 0) {
                    // Looked at again whenever something has moved.
                    credits.ready |= 1 << vm;
                    break true;
                }
                let (from, config) = (Address::new(self.id, vm as u8), credits.config);
                if let Some((to, channel, message)) = credits.poll_message(now, vm) {
                    let packet = Packet::credit(from, to, channel, &message, config.priority, self.config.framing);
                    let at = pool.insert(&packet);
                    self.enter_vswitch(pool, vm, self.output_of(&packet), at);
                } else if let Some((at, freed)) = credits.poll_frame(vm) {
                    if !freed.is_empty() {
                        self.guests[vm].ready.extend(freed);
                        self.runnable |= (1 << vm) & !self.blocked;
                    }
                    let output = self.output_of(pool.frame(at));
                    self.enter_vswitch(pool, vm, output, at);
                } else {
                    break false;
                }
            };
            // What could not be said yet may be overdue: a deadline for it would come up at once, again and again.
            if !is_stopped && let Some(at) = credits.arm(vm) {
                self.timers.push(Reverse((at, CREDIT_TIMER, (vm as u64) << 32)));
            }
        }
        self.credits = Some(credits);
    }

    pub(super) fn run_credit_timer(&mut self, now: Instant, at: Instant, vm: usize) {
        let Some(credits) = self.credits.as_mut() else { return };
        let vnic = &mut credits.vnics[vm];
        if vnic.armed_at == at {
            vnic.armed_at = Instant::MAX;
            vnic.reception.handle_timeout(now);
            credits.ready |= 1 << vm;
        }
    }

    /// Every machine's receive queue takes what the vSwitch has for it, and every machine whose port is free its next frame.
    pub(super) fn run_credit_ports(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let Some(mut credits) = self.credits.take() else { return };
        let mut ready = self.vm_ready & ((1u64 << self.guests.len()) - 1);
        while ready != 0 {
            let vm = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            while let Some(at) = self.take_from_vswitch(pool, vm) {
                let packet = pool.frame(at);
                let from = packet.src();
                if packet.kind() == Kind::Credit {
                    let (channel, message) = packet.credit_message();
                    pool.release(at);
                    let weights = self.config.virtual_network.as_ref().map(|v| &v.weights);
                    if let Some(&weight) = weights.and_then(|w| w.get(&from)) {
                        // Every time: a source that was idle for long may have been forgotten.
                        credits.vnics[vm].reception.set_weight(now, from, weight);
                    }
                    credits.on_message(now, vm, from, channel, &message);
                } else if credits.vnics[vm].reception.on_frame(now, from).is_ok() {
                    credits.vnics[vm].rx.push_back(at);
                } else {
                    self.drop(pool, DropReason::NoCredit, at);
                    credits.ready |= 1 << vm;
                }
            }
            if let Some(v) = &mut self.vswitch {
                v.sleep_if_empty(vm);
            }
            self.vm_ready &= !(1 << vm);
            if self.guests[vm].rx_free <= now
                && let Some(at) = credits.vnics[vm].rx.pop_front()
            {
                credits.vnics[vm].reception.on_departure(now);
                credits.ready |= 1 << vm;
                self.enter_port(now, pool, vm, at);
            }
            if !credits.vnics[vm].rx.is_empty() && self.port_waits >> vm & 1 == 0 {
                self.port_waits |= 1 << vm;
                self.deadlines.insert(self.guests[vm].rx_free, vm as u16 * DEADLINES + PORT_FREE);
            }
        }
        self.credits = Some(credits);
    }

    /// A machine's free port takes a frame.
    #[inline(always)]
    pub(super) fn enter_port(&mut self, now: Instant, pool: &Pool<Packet>, vm: usize, at: Handle) {
        let packet = pool.frame(at);
        let ps_per_byte = self.config.virtual_network.as_ref().map_or(0, |v| v.receive_ps_per_byte_q16(vm));
        let free = now + Duration((packet.len() as u64 * ps_per_byte) >> 16);
        self.guests[vm].rx_free = free;
        self.enter_rx(free + self.rx_delay(packet), at);
    }
}

#[cfg(test)]
mod tests;
