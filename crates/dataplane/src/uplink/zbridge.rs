//! zBridge at an uplink ([`sluicenet_node::channels`]). Frames of tenants in its classes are numbered and kept until they are
//! acknowledged. They are sent again if the network lost or damaged them. Arriving frames are put in order before they are
//! passed on. zBridge is below credits, whose messages survive losses by themselves and do not use it.

use super::credits::{Station, Unsent};
use super::inside::Inside;
use super::kind::UplinkKind;
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

/// A channel: the tenant's number on this server, the local VM, the remote VM, and the class.
type Name = (u16, MacAddress, MacAddress, Priority);

/// The channels of all tenants together; no tenant has more than are free.
const CHANNELS: usize = 4096;

#[derive(Clone, Debug)]
pub(super) enum Cargo {
    /// A frame of a tenant, from its first byte to its last.
    Out(Arc<Vec<u8>>),
    /// A frame for a tenant, by its slot.
    In(u32),
}

/// The channels of an uplink.
#[derive(Debug)]
pub(super) struct ZBridge {
    classes: PrioritySet,
    pub channels: Channels<Name, Cargo>,
    /// Frames whose channels are full, in order.
    overflow: BTreeMap<Name, VecDeque<Cargo>>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    rng: Rng,
    /// Damaged frames.
    pub damaged: u64,
    /// Questions to the controller whether a silent peer still exists.
    pub silent: u64,
    /// Kept to reuse their memory: the message of a channel, and the frames that it delivers and frees.
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

    /// Removes the frames of a channel that were never sent, in order.
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

    /// Moves frames that wait for a channel into it while it has room.
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

    /// Handles expired timers. Returns a channel without answers; then there may be more.
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

impl<K: UplinkKind> Inside<K> {
    /// Numbers a frame for the tunnel; returns whether a channel takes it. `kept` is a shared copy of the frame if there is
    /// one.
    pub fn number(&mut self, bytes: &[u8], kept: Option<&Arc<Vec<u8>>>, domain: u16, priority: Priority) -> bool {
        let (now, Some(z), Some(overlay)) = (self.now, &self.zbridge, &self.overlay) else { return false };
        let Some((to, from)) = addresses(bytes) else { return false };
        let kind = &bytes[ADDRESSES_LEN..HEADER_LEN];
        if !z.classes.contains(priority) {
            return false;
        }
        // A frame that waited for a credit was checked before that.
        let is_for_one = || inner_type(bytes) != Some(EtherType::ARP) && !to.is_group();
        if kept.is_none() && !(is_for_one() && overlay.vtep.may_carry(bytes)) {
            return false;
        }
        // The frame travels without its tag, as in the tunnel.
        let frame = if kind == EtherType::VLAN.0.to_be_bytes() {
            Arc::new([&bytes[..ADDRESSES_LEN], &bytes[ADDRESSES_LEN + vlan::TAG_LEN..]].concat())
        } else {
            kept.map_or_else(|| self.copy(bytes), Arc::clone)
        };
        let Some(z) = &mut self.zbridge else { return false };
        let name = (domain, from, to, priority);
        // No frame overtakes waiting frames.
        match z.overflow.get_mut(&name) {
            Some(waiting) => waiting.push_back(Cargo::Out(frame)),
            None => z.offer(now, name, Cargo::Out(frame)),
        }
        true
    }

    /// A frame waits for a requested credit. Opens its channel now, so that the frame does not wait for the handshake as well.
    pub fn open_channel(&mut self, name: Name) {
        let (now, Some(z)) = (self.now, &mut self.zbridge) else { return };
        let ZBridge { classes, channels, rng, .. } = &mut **z;
        if classes.contains(name.3) {
            channels.open(now, name, || Rng::from_words(&[rng.next_u64()]));
        }
    }

    /// Whether there may be frames to send, and the link has room.
    pub fn may_run_zbridge(&self) -> bool {
        self.zbridge.as_ref().is_some_and(|z| z.has_work(self.link.takes()))
    }

    /// Sends the frames of channels while the link has room.
    pub fn run_zbridge(&mut self) {
        let Some(mut z) = self.zbridge.take() else { return };
        let now = self.now;
        // Frames for which there was no free channel.
        let waiting: Vec<Name> = z.overflow.keys().copied().filter(|&name| !z.channels.contains(name)).collect();
        waiting.into_iter().for_each(|name| z.refill(now, name));
        while let Some((domain, _, to, _)) = z.handle_timeout(now) {
            // The peer may only be delayed, and all frames to it may still arrive.
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
        let mut headers = [0; zbridge::HEADERS_LEN];
        let frame: [&[u8]; 2] = match &cargo {
            Some(Cargo::Out(frame)) => {
                let carried = &frame[ADDRESSES_LEN..];
                repr.emit_headers(&mut headers, carried, crc::of);
                [&headers, carried]
            }
            _ => {
                // Every byte is written, so earlier contents do not matter.
                z.said.resize(repr.len(0), 0);
                repr.emit_by(&mut z.said, crc::of);
                [&z.said, &[]]
            }
        };
        match overlay.vtep.outward_of(self.now, Origin::Own, frame, domain, priority, &mut out) {
            Outward::Send => self.link.enqueue_of(self.now, Origin::Own, priority, out.len() as u32, out),
            // The peer does not exist, or the local VM may not send to it.
            Outward::Drop(reason, _) => {
                self.end(z, |other| *other == name, reason);
                self.on_disconnected(z, name);
            }
            Outward::Cut
            | Outward::Copies(_)
            | Outward::NotNow
            | Outward::Parked
            | Outward::Ended
            | Outward::Reply(_)
            | Outward::Into(_) => {}
        }
        if let Some(Cargo::Out(frame)) = cargo {
            self.free(frame);
        }
    }

    /// Ends channels: frames that were never sent are dropped by name.
    fn end(&mut self, z: &mut ZBridge, so: impl Fn(&Name) -> bool, reason: DropReason) {
        let unsent = z.channels.unsent();
        let (mut out, mut arrived) = (Vec::new(), Vec::new());
        z.channels.end(|name| so(name), &mut |cargo| match cargo {
            Cargo::Out(frame) => out.push(frame),
            Cargo::In(at) => arrived.push(at),
        });
        // The oldest frames were sent, and may have arrived.
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

    /// Ends the channels of a station that is gone.
    pub fn end_channels_of(&mut self, (domain, mac): (u16, MacAddress)) {
        let Some(mut z) = self.zbridge.take() else { return };
        self.end(&mut z, |name| (name.0, name.1) == (domain, mac), DropReason::PortGone);
        self.zbridge = Some(z);
    }

    /// A frame has arrived through the tunnel, from its sender's server.
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
            // All frames of these classes are numbered, and no others. So the frame was damaged, or its server is configured
            // differently.
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
                // ARP never goes through the tunnel, and a frame needs a complete type.
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
            // A message of credits has the same type; it is checked there.
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

    /// A connection has ended. Its unsent frames wait for new credits, and the credits that were promised for its sent frames
    /// are free.
    fn on_disconnected(&mut self, z: &mut ZBridge, name: Name) {
        let (domain, own, other, class) = name;
        let (own, other) = ((domain, own), (domain, other));
        let Some((credits, vm)) = self.zcredit.as_mut().and_then(|c| c.of(own, class)) else { return };
        let frames = z.take_unsent(name);
        // The channels of the other classes may be affected too: they are asked, and the last one to learn of the end is the
        // last to end.
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
        // A peer that forgot everything grants no credits for these frames either, and they may have been delivered. The
        // channel counts them.
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
