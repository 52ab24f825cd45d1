//! zBridge at an uplink ([`sluicenet_node::channels`]): what tenants send through the tunnel in its classes is numbered, kept until it is
//! acknowledged and sent again where the network lost or damaged it; what comes is put in order before anybody sees it. Below credits:
//! their messages are safe against loss by themselves and do not come here.

use super::credits::{Station, Unsent};
use super::inside::Inside;
use crate::crc;
use sluicenet_node::channels::{Channels, Sending};
use sluicenet_node::uplink::Origin;
use sluicenet_node::vtep::Outward;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zbridge::{ChannelConfig, Kind};
use sluicenet_wire::ethernet::{ADDRESSES_LEN, EtherType, HEADER_LEN, MacAddress, addresses, inner_type};
use sluicenet_wire::{Error, vlan, zbridge};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

/// A channel: the tenant's number on this server, its own machine, the other one, and the class.
type Name = (u16, MacAddress, MacAddress, Priority);

/// Channels of all tenants; none has more than are free.
const CHANNELS: usize = 4096;

#[derive(Clone, Debug)]
pub(super) enum Cargo {
    /// A frame of a tenant, from its first byte to its last.
    Out(Arc<Vec<u8>>),
    /// A frame for one, by its place.
    In(u32),
}

/// The channels of an uplink.
#[derive(Debug)]
pub(super) struct ZBridge {
    classes: PrioritySet,
    pub channels: Channels<Name, Cargo>,
    /// Frames whose channels took no more, in their order.
    overflow: BTreeMap<Name, VecDeque<Cargo>>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    rng: Rng,
    /// Frames that are not as they were sent.
    pub damaged: u64,
    /// Times the controller was asked whether somebody who does not answer is still there.
    pub silent: u64,
    /// Kept for their memory: what a channel says, and what it delivers and frees.
    said: Vec<u8>,
    in_order: Vec<Cargo>,
    of_no_use: Vec<Cargo>,
}

impl ZBridge {
    pub fn new(config: ChannelConfig, classes: PrioritySet, rng: Rng) -> ZBridge {
        ZBridge {
            classes,
            channels: Channels::new(config, CHANNELS, |name| name.0),
            overflow: BTreeMap::new(),
            timers: BinaryHeap::new(),
            rng,
            damaged: 0,
            silent: 0,
            said: Vec::new(),
            in_order: Vec::new(),
            of_no_use: Vec::new(),
        }
    }

    /// Frames that wait to be sent for the first time.
    pub fn unsent(&self) -> u64 {
        self.channels.unsent() + self.overflow.values().map(|q| q.len() as u64).sum::<u64>()
    }
    /// Whether a channel takes another frame.
    pub fn has_room(&mut self, now: Instant, name: Name) -> bool {
        !self.classes.contains(name.3) || !self.overflow.contains_key(&name) && self.channels.has_room(now, name)
    }
    pub fn has_work(&self, takes: PrioritySet) -> bool {
        self.channels.has_output_of(|name| takes.contains(name.3))
    }
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|timer| timer.0.0)
    }

    fn offer(&mut self, now: Instant, name: Name, cargo: Cargo) {
        let ZBridge { channels, rng, overflow, .. } = self;
        if let Err(full) = channels.send(now, name, cargo, || Rng::from_words(&[rng.next_u64()])) {
            overflow.entry(name).or_default().push_front(full.0);
        }
    }

    /// Frames on their way to a station that have never been sent, in their order: they are here no longer.
    pub fn take_unsent(&mut self, name: Name) -> Vec<Arc<Vec<u8>>> {
        let unsent = self.channels.take_unsent(name);
        let waiting = self.overflow.remove(&name).into_iter().flatten();
        let of = |cargo| if let Cargo::Out(frame) = cargo { Some(frame) } else { None };
        unsent.chain(waiting).filter_map(of).collect()
    }
    /// The channels between two stations.
    pub fn names(&self, (domain, own): Station, (_, other): Station) -> impl Iterator<Item = Name> + use<> {
        self.classes.iter().map(move |class| (domain, own, other, class))
    }

    /// What waited for its channel goes there as far as that has room again.
    fn refill(&mut self, now: Instant, name: Name) {
        if self.overflow.is_empty() {
            return;
        }
        while self.channels.has_room(now, name)
            && let Some(cargo) = self.overflow.get_mut(&name).and_then(VecDeque::pop_front)
        {
            self.offer(now, name, cargo);
        }
        if self.overflow.get(&name).is_some_and(VecDeque::is_empty) {
            self.overflow.remove(&name);
        }
    }

    /// Looks at what is due. Returns a channel that nobody answers; then there may be more.
    fn handle_timeout(&mut self, now: Instant) -> Option<Name> {
        while let Some(&Reverse((due, at))) = self.timers.peek().filter(|timer| timer.0.0 <= now) {
            self.timers.pop();
            let silent = self.channels.handle_timeout(now, due, at);
            if silent.is_some() {
                return silent;
            }
        }
        None
    }
}

impl Inside {
    /// A frame for the tunnel, and the same in memory that can be kept, if it is: whether a channel takes it.
    pub fn number(&mut self, bytes: &[u8], kept: Option<&Arc<Vec<u8>>>, domain: u16, priority: Priority) -> bool {
        let (now, Some(z), Some(overlay)) = (self.now, &self.zbridge, &self.overlay) else { return false };
        let Some((to, from)) = addresses(bytes) else { return false };
        let kind = &bytes[ADDRESSES_LEN..HEADER_LEN];
        if !z.classes.contains(priority) {
            return false;
        }
        // What waited for a credit was looked at before that.
        let is_for_one = || inner_type(bytes) != Some(EtherType::ARP) && !to.is_group();
        if kept.is_none() && !(is_for_one() && overlay.vtep.may_carry(bytes)) {
            return false;
        }
        // It travels without its tag, as it would in the tunnel.
        let frame = if kind == EtherType::VLAN.0.to_be_bytes() {
            Arc::new([&bytes[..ADDRESSES_LEN], &bytes[ADDRESSES_LEN + vlan::TAG_LEN..]].concat())
        } else {
            kept.map_or_else(|| self.copy(bytes), Arc::clone)
        };
        let Some(z) = &mut self.zbridge else { return false };
        let name = (domain, from, to, priority);
        // None overtakes those that wait.
        match z.overflow.get_mut(&name) {
            Some(waiting) => waiting.push_back(Cargo::Out(frame)),
            None => z.offer(now, name, Cargo::Out(frame)),
        }
        true
    }

    /// A frame waits for a credit that has been asked for: it need not wait for a greeting then, too.
    pub fn open_channel(&mut self, name: Name) {
        let (now, Some(z)) = (self.now, &mut self.zbridge) else { return };
        let ZBridge { classes, channels, rng, .. } = &mut **z;
        if classes.contains(name.3) {
            channels.open(now, name, || Rng::from_words(&[rng.next_u64()]));
        }
    }

    /// Whether there may be something to send, and the link has room for it.
    pub fn may_run_zbridge(&self) -> bool {
        self.zbridge.as_ref().is_some_and(|z| z.has_work(self.link.takes()))
    }

    /// Sends what channels have to send, while the link has room.
    pub fn run_zbridge(&mut self) {
        let Some(mut z) = self.zbridge.take() else { return };
        let now = self.now;
        // Those that found no place for their channel.
        let waiting: Vec<Name> = z.overflow.keys().copied().filter(|&name| !z.channels.contains(name)).collect();
        waiting.into_iter().for_each(|name| z.refill(now, name));
        while let Some((domain, _, to, _)) = z.handle_timeout(now) {
            // It may be held up, and all that was sent to it arrive yet.
            let asked = self.overlay.as_mut().is_some_and(|overlay| overlay.vtep.doubt(now, domain, to));
            z.silent += u64::from(asked);
        }
        loop {
            let takes = self.link.takes();
            let next = z.channels.poll_transmit(now, |name| takes.contains(name.3));
            let Some(Sending { name, outgoing, .. }) = next else { break };
            self.transmit(&mut z, name, outgoing.header, outgoing.frame);
        }
        z.timers.extend(z.channels.take_timers().map(Reverse));
        self.zbridge = Some(z);
    }

    fn transmit(&mut self, z: &mut ZBridge, name: Name, header: zbridge::Header, cargo: Option<Cargo>) {
        let (domain, source, destination, priority) = name;
        let repr = zbridge::Repr { destination, source, header };
        let mut out = self.memory();
        let Some(overlay) = &mut self.overlay else { return };
        let mut head = [0; zbridge::HEAD];
        let frame: [&[u8]; 2] = match &cargo {
            Some(Cargo::Out(frame)) => {
                let carried = &frame[ADDRESSES_LEN..];
                repr.emit_head(&mut head, carried, crc::of);
                [&head, carried]
            }
            _ => {
                // All of it is written: what was in it before is not seen.
                z.said.resize(repr.len(0), 0);
                repr.emit_by(&mut z.said, crc::of);
                [&z.said, &[]]
            }
        };
        match overlay.vtep.outward_of(self.now, Origin::Own, frame, domain, priority, &mut out) {
            Outward::Send => self.link.enqueue_of(self.now, Origin::Own, priority, out.len() as u32, out),
            // Nobody is there, or nobody is here who may say this.
            Outward::Drop(reason, _) => {
                self.end(z, |other| *other == name, reason);
                self.on_disconnected(z, name);
            }
            Outward::NotNow | Outward::Parked | Outward::Ended | Outward::Reply(_) | Outward::Into(_) => {}
        }
        if let Some(Cargo::Out(frame)) = cargo {
            self.free(frame);
        }
    }

    /// Ends channels: what was never sent is dropped by name.
    fn end(&mut self, z: &mut ZBridge, so: impl Fn(&Name) -> bool, reason: DropReason) {
        let unsent = z.channels.unsent();
        let (mut out, mut arrived) = (Vec::new(), Vec::new());
        z.channels.end(|name| so(name), &mut |cargo| match cargo {
            Cargo::Out(frame) => out.push(frame),
            Cargo::In(at) => arrived.push(at),
        });
        // The oldest were sent, and may have arrived.
        let unsent = unsent - z.channels.unsent();
        for frame in out.iter().rev().take(unsent as usize) {
            self.link.drop_out(reason, frame.len() as u32);
        }
        z.overflow.retain(|name, waiting| {
            let ends = so(name);
            for cargo in waiting.iter().filter(|_| ends) {
                if let Cargo::Out(frame) = cargo {
                    self.link.drop_out(reason, frame.len() as u32);
                }
            }
            !ends
        });
        for at in arrived {
            let len = self.slots[at as usize].charged_bytes();
            self.link.refuse(reason, len);
            self.release(at);
        }
    }

    /// A station is here no longer, and neither are its channels.
    pub fn end_channels_of(&mut self, (domain, mac): (u16, MacAddress)) {
        let Some(mut z) = self.zbridge.take() else { return };
        self.end(&mut z, |name| (name.0, name.1) == (domain, mac), DropReason::PortGone);
        self.zbridge = Some(z);
    }

    /// A frame that came through the tunnel, from the server where its sender lives.
    pub fn arrived(&mut self, at: u32) {
        let slot = &self.slots[at as usize];
        let bytes = &slot.bytes[slot.frame.clone()];
        let (domain, priority, len) = (slot.domain, slot.priority, slot.charged_bytes());
        let is_for_it = inner_type(bytes) == Some(zbridge::ETHERTYPE);
        let Some(mut z) = self.zbridge.take_if(|z| is_for_it || z.classes.contains(priority)) else {
            self.in_order(at);
            return;
        };
        if !(is_for_it && z.classes.contains(priority)) {
            // All that is sent in these classes is numbered, and nothing else is: it was damaged, or is of a server that is set up
            // otherwise.
            z.damaged += 1;
            self.link.refuse(DropReason::BadCrc, len);
            self.release(at);
            self.zbridge = Some(z);
            return;
        }
        match zbridge::Repr::parse_by(bytes, crc::of) {
            Ok((repr, carried)) => {
                let name = (domain, repr.destination, repr.source, priority);
                let is_data = matches!(repr.header.kind, Kind::Data { .. });
                // ARP never travels, and what carries no whole type is no frame.
                let arp = EtherType::ARP.0.to_be_bytes();
                if is_data && carried.get(..2).is_none_or(|kind| kind == arp) {
                    self.link.refuse(DropReason::Malformed, len);
                    self.release(at);
                    self.zbridge = Some(z);
                    return;
                }
                let frame = is_data.then_some(Cargo::In(at));
                self.take_numbered(&mut z, name, &repr.header, frame, at);
            }
            // Another protocol of this type: a message about credits, which is checked there.
            Err(Error::Unsupported) if self.zcredit.is_some() => {
                self.zbridge = Some(z);
                self.in_order(at);
                return;
            }
            Err(_) => {
                z.damaged += 1;
                self.link.refuse(DropReason::BadCrc, len);
                self.release(at);
            }
        }
        self.zbridge = Some(z);
    }

    /// A connection has ended. What was not sent by it waits for credits of whoever is there now, and credits that were promised for what
    /// was are free.
    fn on_disconnected(&mut self, z: &mut ZBridge, name: Name) {
        let (domain, own, other, class) = name;
        let (own, other) = ((domain, own), (domain, other));
        let Some((credits, vm)) = self.zcredit.as_mut().and_then(|c| c.of(own, class)) else { return };
        let frames = z.take_unsent(name);
        // Those of other classes are those of the last end, too: they are asked, and the last one to hear it is the last to end.
        let mut all = true;
        for sibling in z.names(own, other) {
            all &= sibling == name || !z.channels.inquire(self.now, sibling);
        }
        let unsent = frames.into_iter().map(|bytes| Unsent { bytes, domain, priority: class });
        credits.on_disconnected(self.now, vm, other, unsent.collect(), all);
    }

    fn take_numbered(&mut self, z: &mut ZBridge, name: Name, header: &zbridge::Header, frame: Option<Cargo>, at: u32) {
        let is_data = frame.is_some();
        if is_data {
            let slot = &mut self.slots[at as usize];
            slot.frame.start += zbridge::unwrap(&mut slot.bytes[slot.frame.clone()]);
        }
        let ZBridge { channels, rng, in_order, of_no_use, .. } = z;
        let taken = channels.receive(
            self.now,
            name,
            header,
            frame,
            || Rng::from_words(&[rng.next_u64()]),
            &mut |cargo| in_order.push(cargo),
            &mut |cargo| of_no_use.push(cargo),
        );
        // Who forgot everything has no credits to give for it either; and it may have been delivered. The channel counts it.
        channels.free_unacknowledged(name, &mut |_| {});
        if channels.take_ended(name) {
            self.on_disconnected(z, name);
        }
        z.refill(self.now, name);
        if taken.is_err() || !is_data {
            self.release(at);
        } else if !z.in_order.iter().any(|cargo| matches!(cargo, Cargo::In(other) if *other == at)) {
            self.put_aside(at);
        }
        for cargo in z.of_no_use.drain(..) {
            match cargo {
                Cargo::In(at) => {
                    let len = self.slots[at as usize].charged_bytes();
                    self.link.refuse(DropReason::PortGone, len);
                    self.release(at);
                }
                Cargo::Out(frame) => self.free(frame),
            }
        }
        for cargo in z.in_order.drain(..) {
            if let Cargo::In(at) = cargo {
                self.charge_beside(at);
                self.in_order(at);
            }
        }
    }
}
