//! The overlay's end in a server (VTEP): the tunnel, the cache of who lives where, the stations of this server, and the frames
//! that wait for the controller's answer (Crisan 2014, 3.2.3, figure 3.2).
//!
//! - A frame for a station whose server is not known is parked until the controller says. A tenant has so many parked frames. What
//!   is more stays with who sends it in a lossless class ([`Vtep::admits`]), and is dropped by name in another. The same where the
//!   controller is silent: in a lossless class what nobody can be asked about waits until somebody can. Only what the controller says
//!   it does not know is dropped. One tenant's unknown stations stall nobody else.
//! - A frame that came through the tunnel from a station of which nobody knows yet where it lives is parked in the receive
//!   buffer of its class. In a lossless class that is all that bounds it, so that nothing is lost: the class may be paused until
//!   the answer comes or the question is given up. For a controller that is known to be silent it waits in a lossless class alone, and
//!   beside that buffer, as one of its tenant's parked frames.
//! - What goes into the tunnel must come from a station that was said to live here.
//! - What came through the tunnel must come from the server on which its sender lives.
//! - ARP never travels: requests are answered from the mapping, where the station is on another server; what a station of this
//!   server is asked it answers itself. No other frame for a group travels either.

mod parked;
#[cfg(test)]
mod tests;

use crate::tunnels::PORT;
use crate::uplink::Origin;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use parked::Parked;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::bucket::Bucket;
use sluicenet_proto::overlay::cache::{Cache, CacheConfig, CacheCounters, Found};
use sluicenet_proto::overlay::mapping::{By, Mapping, Question, StationId};
use sluicenet_proto::overlay::neighbours::{self, Asked};
use sluicenet_proto::overlay::registrar::{Lost, Registrar};
use sluicenet_proto::overlay::seal::{Key, Refused};
use sluicenet_proto::overlay::tunnel::{Heard, Inner, NotBound, Outer, Tunnel, TunnelConfig, fragmentation_needed};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::controller::LEN;
use sluicenet_wire::ethernet::MacAddress;

/// "Fragmentation needed" to a tenant in a second, and at once: as Linux limits them to a peer.
const TOLD_PER_SECOND: u64 = 10;
const TOLD_AT_ONCE: u64 = 6;

/// How soon what nobody could be asked about is looked up again.
const INSIST: Duration = Duration::from_ms(10);

/// How a server's end is set up.
#[derive(Clone, Debug)]
pub struct VtepConfig {
    /// The tunnel.
    pub tunnel: TunnelConfig,
    /// The cache.
    pub cache: CacheConfig,
    /// Frames that wait for an answer, of one tenant and in all.
    pub parked_per_tenant: usize,
    /// In all.
    pub parked: usize,
}

impl VtepConfig {
    /// 256 parked frames of a tenant, 8,192 in all.
    pub fn new(tunnel: TunnelConfig) -> VtepConfig {
        VtepConfig { tunnel, cache: CacheConfig::default(), parked_per_tenant: 256, parked: 8_192 }
    }
}

/// What a server's end counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VtepCounters {
    /// Frames put into the tunnel.
    pub encapsulated: u64,
    /// Frames that came out of it.
    pub decapsulated: u64,
    /// Frames that waited for an answer.
    pub parked: u64,
    /// Frames dropped because their tenant had too many waiting.
    pub parked_full: u64,
    /// Times a controller that said nothing left frames of a lossless class waiting on.
    pub parked_on: u64,
    /// ARP requests answered.
    pub arp_answered: u64,
    /// ARP messages that ended here: announcements, replies, requests for stations of this server.
    pub arp_ended: u64,
    /// Senders told that their packet was too large.
    pub too_big_told: u64,
    /// Datagrams of the controller with a wrong tag.
    pub control_forged: u64,
    /// Datagrams of the controller of another size or format, or that nobody asked for.
    pub control_refused: u64,
}

/// What becomes of a frame for the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outward {
    /// It is to be sent, as it stands in the buffer that was given.
    Send,
    /// It goes into the [stream](Vtep::use_streams) to this server, as it stands in the buffer.
    Into(Ipv4Addr),
    /// It waits for the controller; [`Vtep::poll_event`] says how that ends.
    Parked,
    /// It was made here, and nobody can be asked about its destination now.
    NotNow,
    /// It ends here, having done what it was for.
    Ended,
    /// It ends here, and this is the answer to its sender.
    Reply(Vec<u8>),
    /// It must be dropped. Its sender may be told: with this frame.
    Drop(DropReason, Option<Vec<u8>>),
}

/// What becomes of a frame from the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inward {
    /// It is for a station of this server.
    Deliver(Inner),
    /// It would be, but its sender has to be asked about: [`Vtep::park`] it.
    Ask(Inner, StationId),
    /// It is a segment of the stream from another server; its frames [come in by themselves](Vtep::inward_of_stream).
    Segment(Heard),
    /// It is nothing of the tunnel.
    Other,
    /// It must be dropped.
    Drop(DropReason),
}

/// How waiting for the controller ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<C> {
    /// A frame for the tunnel is to be sent, with all its headers.
    Send(Vec<u8>, Priority, Origin),
    /// A frame goes into the stream to a server.
    Into(Vec<u8>, Ipv4Addr, Origin),
    /// A frame that is parked still counts as its tenant's, and in no receive buffer, from now on.
    Aside(C),
    /// A frame for a station of this server may go to the switch.
    Deliver(C),
    /// A frame for the switch is dropped.
    Drop(C, DropReason),
    /// A frame for the tunnel of so many bytes is dropped.
    DropOut(DropReason, u32),
    /// A frame for the switch: the answer to a sender of this domain and class.
    Reply(Vec<u8>, u16, Priority),
}

/// A server's end of the overlay; `C` stands for a frame that came from the link.
#[derive(Clone, Debug)]
pub struct Vtep<C> {
    config: VtepConfig,
    tunnel: Tunnel,
    /// The classes in which servers speak to each other in streams.
    streams: PrioritySet,
    /// Classes in which a frame waits for as long as nobody can be asked about its station.
    lossless: PrioritySet,
    cache: Cache,
    registrar: Registrar,
    key: Key,
    parked: BTreeMap<Question, VecDeque<Parked<C>>>,
    /// Of these, the ones that are looked up again at a time.
    insists: BTreeSet<Question>,
    insists_at: Instant,
    /// Somebody was not admitted, and may be then.
    admits_at: Option<Instant>,
    /// Parked frames that count as their tenant's, and all of these.
    of_tenant: BTreeMap<u32, usize>,
    shared: usize,
    /// And with those that the receive buffer bounds.
    total: usize,
    told: BTreeMap<u32, Bucket>,
    events: VecDeque<Event<C>>,
    counters: VtepCounters,
}

impl<C: Copy> Vtep<C> {
    /// An end that knows nobody. `key` is shared with the controller, `rng` draws request numbers that nobody can guess, and
    /// `first_request` is above all numbers that this server ever used.
    pub fn new(config: VtepConfig, key: Key, rng: Rng, first_request: u64) -> Vtep<C> {
        let server = config.tunnel.server;
        Vtep {
            tunnel: Tunnel::new(config.tunnel.clone()),
            streams: PrioritySet::NONE,
            lossless: PrioritySet::NONE,
            cache: Cache::new(config.cache, server, rng),
            registrar: Registrar::new(server, first_request),
            key,
            parked: BTreeMap::new(),
            insists: BTreeSet::new(),
            insists_at: Instant::MAX,
            admits_at: None,
            of_tenant: BTreeMap::new(),
            shared: 0,
            total: 0,
            told: BTreeMap::new(),
            events: VecDeque::new(),
            counters: VtepCounters::default(),
            config,
        }
    }

    /// In these classes servers speak to each other in streams from now on, a TCP connection between two, and not in datagrams.
    pub fn use_streams(&mut self, classes: PrioritySet) {
        self.streams = classes;
    }

    /// A frame of these classes waits from now on for as long as nobody can be asked about its station.
    pub fn set_waiting_classes(&mut self, lossless: PrioritySet) {
        self.lossless = lossless;
    }

    /// The tunnel.
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// What it counted.
    pub fn counters(&self) -> (&VtepCounters, &CacheCounters) {
        (&self.counters, self.cache.counters())
    }

    /// Frames that wait for the controller.
    pub fn waiting(&self) -> usize {
        self.total
    }

    /// Largest datagram of a tenant.
    pub fn inner_mtu(&self) -> u16 {
        self.tunnel.inner_mtu()
    }

    /// Whether a frame of a tenant may go through the tunnel, wherever to.
    pub fn may_carry(&self, frame: &[u8]) -> bool {
        self.tunnel.may_carry(frame)
    }

    /// Makes a broadcast domain of this server one network of the overlay.
    pub fn bind(&mut self, domain: u16, vni: u32) -> Result<(), NotBound> {
        self.tunnel.bind(domain, vni)
    }

    /// Another server of the overlay, and the MAC address of the next hop towards it.
    pub fn admit(&mut self, server: Ipv4Addr, next_hop: MacAddress) {
        self.tunnel.admit(server, next_hop);
    }

    /// A server is no longer of the overlay.
    pub fn expel(&mut self, server: Ipv4Addr) {
        self.tunnel.expel(server);
    }

    /// A station lives here; whether its domain is a network.
    pub fn add_station(&mut self, now: Instant, domain: u16, mac: MacAddress, ip: Ipv4Addr) -> bool {
        let vni = self.tunnel.network(domain);
        if let Some(vni) = vni {
            self.registrar.add(now, StationId { vni, mac }, ip);
        }
        vni.is_some()
    }

    /// A station that nobody has named has shown itself here, or is gone; whether its domain is a network. It takes nothing from anybody
    /// ([`Registrar::learn`]).
    pub fn learn_station(&mut self, now: Instant, domain: u16, mac: MacAddress, ip: Ipv4Addr, here: bool) -> bool {
        let vni = self.tunnel.network(domain);
        match vni.map(|vni| StationId { vni, mac }) {
            Some(station) if here => self.registrar.learn(now, station, ip),
            Some(station) => self.registrar.unlearn(now, station),
            None => {}
        }
        vni.is_some()
    }

    /// A station lives here no longer.
    pub fn remove_station(&mut self, now: Instant, domain: u16, mac: MacAddress) {
        if let Some(vni) = self.tunnel.network(domain) {
            self.registrar.remove(now, StationId { vni, mac });
        }
    }

    /// The next station that the controller says lives here no longer.
    pub fn poll_lost(&mut self) -> Option<(StationId, Lost)> {
        self.registrar.poll_lost()
    }

    /// Whether a frame of a class for a station that is not here should be handed over now: one of a lossless class that would have to
    /// wait, and finds no room for that, waits with who sends it.
    pub fn admits(&mut self, now: Instant, domain: u16, destination: MacAddress, priority: Priority) -> bool {
        if !self.lossless.contains(priority) || destination.is_group() {
            return true;
        }
        let Some(vni) = self.tunnel.network(domain) else { return true };
        let again = match self.cache.would_find(now, Question { vni, by: By::Mac(destination) }) {
            Found::Known(_) | Found::Unknown => return true,
            Found::Asked if self.has_room(vni) => return true,
            Found::Asked | Found::Silent | Found::Limited => now + INSIST,
        };
        self.admits_at = Some(self.admits_at.map_or(again, |at| at.min(again)));
        false
    }

    /// A station that somebody should have heard of is silent: the controller is asked whether it is still there, once a second. What
    /// it no longer knows [is dropped](Outward::Drop) from then on. Whether it is asked now.
    pub fn doubt(&mut self, now: Instant, domain: u16, mac: MacAddress) -> bool {
        let Some(vni) = self.tunnel.network(domain) else { return false };
        let asked = self.cache.counters().misses;
        self.cache.doubt(now, StationId { vni, mac });
        self.cache.counters().misses > asked
    }

    /// A frame of a station of this server for one that is not here. With [`Outward::Send`] it stands in `out`.
    pub fn outward(
        &mut self,
        now: Instant,
        frame: &[u8],
        domain: u16,
        priority: Priority,
        out: &mut Vec<u8>,
    ) -> Outward {
        self.outward_of(now, Origin::Switch, [frame, &[]], domain, priority, out)
    }

    /// The same of whoever it is, in two pieces, of which the first has all headers. One that was made here waits for an answer as others
    /// do, and is dropped without a word.
    pub fn outward_of(
        &mut self,
        now: Instant,
        origin: Origin,
        frame: [&[u8]; 2],
        domain: u16,
        priority: Priority,
        out: &mut Vec<u8>,
    ) -> Outward {
        let Some(vni) = self.tunnel.network(domain) else { return Outward::Drop(DropReason::NoRoute, None) };
        let (Some(destination), Some(source)) = (mac_at(frame[0], 0), mac_at(frame[0], 6)) else {
            return Outward::Drop(DropReason::Malformed, None);
        };
        let from = StationId { vni, mac: source };
        let Some(address) = self.registrar.station(from) else {
            return Outward::Drop(DropReason::ForgedSource, None);
        };
        if neighbours::arp_of(frame[0]).is_some() {
            return self.arp(now, frame[0], from, address, priority);
        }
        if destination.is_group() {
            return Outward::Drop(DropReason::NoRoute, None);
        }
        let question = Question { vni, by: By::Mac(destination) };
        match self.cache.lookup(now, question) {
            // None overtakes those that wait.
            Found::Known(mapping) if self.total == 0 || !self.parked.contains_key(&question) => {
                self.send(now, frame, &mapping, priority, out)
            }
            Found::Unknown => Outward::Drop(DropReason::Unresolved, None),
            found if origin == Origin::Switch && self.lossless.contains(priority) => {
                // It was admitted: what is more than there is room for is no more than the switch had on its way here.
                self.keep(question, true, Parked::Out(frame.concat(), priority, origin));
                if found != Found::Asked {
                    self.insist(now, question);
                }
                Outward::Parked
            }
            found @ (Found::Asked | Found::Known(_))
                if self.wait(question, || Parked::Out(frame.concat(), priority, origin)) =>
            {
                if found != Found::Asked {
                    self.insist(now, question);
                }
                Outward::Parked
            }
            _ if origin == Origin::Own => Outward::NotNow,
            _ => Outward::Drop(DropReason::Unresolved, None),
        }
    }

    fn send(
        &mut self,
        now: Instant,
        frame: [&[u8]; 2],
        to: &Mapping,
        priority: Priority,
        out: &mut Vec<u8>,
    ) -> Outward {
        if to.location == self.tunnel.server() {
            // It should be here, and is not.
            return Outward::Drop(DropReason::NoRoute, None);
        }
        let (vni, server) = (to.station.vni, to.location);
        let sent = match self.streams.contains(priority) {
            true => self.tunnel.put_in_stream(frame, vni, priority, server, out).map(|()| Outward::Into(server)),
            false => self.tunnel.encapsulate(frame, vni, priority, server, out).map(|()| Outward::Send),
        };
        match sent {
            Ok(sent) => {
                self.counters.encapsulated += 1;
                sent
            }
            Err(DropReason::TooBig) => {
                let new = || Bucket::new(TOLD_PER_SECOND, TOLD_AT_ONCE);
                let may_tell = self.told.entry(to.station.vni).or_insert_with(new).take(now);
                let mtu = self.tunnel.inner_mtu();
                let answer = may_tell.then(|| fragmentation_needed(&frame.concat(), mtu)).flatten();
                self.counters.too_big_told += u64::from(answer.is_some());
                Outward::Drop(DropReason::TooBig, answer)
            }
            Err(reason) => Outward::Drop(reason, None),
        }
    }

    fn arp(&mut self, now: Instant, frame: &[u8], from: StationId, address: Ipv4Addr, priority: Priority) -> Outward {
        let (ip, request) = match neighbours::ask(frame, Some(address)) {
            Asked::For(ip, request) => (ip, request),
            Asked::Nothing => {
                self.counters.arp_ended += 1;
                return Outward::Ended;
            }
            Asked::Forged => return Outward::Drop(DropReason::ForgedSource, None),
            Asked::Malformed => return Outward::Drop(DropReason::Malformed, None),
        };
        let question = Question { vni: from.vni, by: By::Ip(ip) };
        match self.cache.lookup(now, question) {
            Found::Known(mapping) => self.answer(&request, &mapping),
            Found::Asked => match self.wait(question, || Parked::Arp(request, priority)) {
                true => Outward::Parked,
                false => Outward::Drop(DropReason::Unresolved, None),
            },
            Found::Unknown | Found::Silent | Found::Limited => Outward::Drop(DropReason::Unresolved, None),
        }
    }

    fn answer(&mut self, request: &neighbours::Request, mapping: &Mapping) -> Outward {
        if mapping.location == self.tunnel.server() {
            // The request was flooded to it as well.
            self.counters.arp_ended += 1;
            return Outward::Ended;
        }
        self.counters.arp_answered += 1;
        Outward::Reply(neighbours::reply(request, mapping))
    }

    /// A frame from the link, its check sequence gone; what the tunnel changes of it is changed in place.
    pub fn inward(&mut self, now: Instant, frame: &mut [u8]) -> Inward {
        if !self.streams.is_empty() {
            match self.tunnel.find_segment(frame, PORT) {
                Ok(Some(heard)) => return Inward::Segment(heard),
                Ok(None) => {}
                Err(reason) => return Inward::Drop(reason),
            }
        }
        match self.tunnel.decapsulate(frame) {
            // All servers of an overlay speak in streams, or none does.
            Outer::Inner(inner) if self.streams.contains(inner.priority) => Inward::Drop(DropReason::Malformed),
            Outer::Inner(inner) => self.inward_of(now, inner, frame),
            Outer::Other => Inward::Other,
            Outer::Drop(reason) => Inward::Drop(reason),
        }
    }

    /// A frame as it stood in the stream from another server.
    pub fn inward_of_stream(&mut self, now: Instant, bytes: &[u8], from: Ipv4Addr) -> Inward {
        match self.tunnel.take_from_stream(bytes, from) {
            Ok(inner) if self.streams.contains(inner.priority) => self.inward_of(now, inner, bytes),
            Ok(_) => Inward::Drop(DropReason::Malformed),
            Err(reason) => Inward::Drop(reason),
        }
    }

    /// What came out of a tunnel: whether its sender lives where it comes from.
    fn inward_of(&mut self, now: Instant, inner: Inner, frame: &[u8]) -> Inward {
        let bytes = &frame[inner.frame.clone()];
        let (Some(destination), Some(mac)) = (mac_at(bytes, 0), mac_at(bytes, 6)) else {
            return Inward::Drop(DropReason::Malformed);
        };
        if destination.is_group() || neighbours::arp_of(bytes).is_some() {
            // No server of the overlay sends these through a tunnel.
            return Inward::Drop(DropReason::NoRoute);
        }
        let station = StationId { vni: inner.vni, mac };
        let question = Question { vni: inner.vni, by: By::Mac(mac) };
        match self.cache.lookup(now, question) {
            Found::Known(mapping) if mapping.location == inner.from => {
                // None of a lossless class overtakes those that wait; no other may wait for them.
                if self.total > 0
                    && self.lossless.contains(inner.priority)
                    && self.parked.get(&question).is_some_and(|all| all.iter().any(Parked::is_aside))
                {
                    return Inward::Ask(inner, station);
                }
                self.counters.decapsulated += 1;
                Inward::Deliver(inner)
            }
            // It may have moved a moment ago.
            Found::Known(_) if self.cache.doubt(now, station) => Inward::Ask(inner, station),
            Found::Known(_) => Inward::Drop(DropReason::ForgedSource),
            Found::Asked => Inward::Ask(inner, station),
            Found::Silent | Found::Limited if self.lossless.contains(inner.priority) => Inward::Ask(inner, station),
            Found::Unknown | Found::Silent | Found::Limited => Inward::Drop(DropReason::Unresolved),
        }
    }

    /// A datagram that is said to be the controller's. [`Vtep::poll_event`] is to be asked before anything else is done.
    pub fn handle_control(&mut self, now: Instant, datagram: &[u8]) {
        let message = match self.key.open(datagram) {
            Ok(message) if message.server == self.tunnel.server() => message,
            Ok(_) | Err(Refused::Malformed(_)) => {
                self.counters.control_refused += 1;
                return;
            }
            Err(Refused::Forged) => {
                self.counters.control_forged += 1;
                return;
            }
        };
        if self.registrar.handle(now, &message) {
            self.cache.heard_of(now, self.registrar.epoch());
        } else if !self.cache.handle(now, &message) {
            self.counters.control_refused += 1;
        }
    }

    /// The next datagram for the controller.
    pub fn poll_control(&mut self, now: Instant) -> Option<[u8; LEN]> {
        let message = self.cache.poll_transmit(now).or_else(|| self.registrar.poll_transmit(now))?;
        Some(self.key.seal(&message))
    }

    /// When [`Vtep::handle_timeout`] and [`Vtep::poll_control`] have something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let now = self.cache.wants_transmit().then_some(Instant::ZERO);
        let insists = (!self.insists.is_empty()).then_some(self.insists_at);
        let timers = [now, insists, self.admits_at, self.cache.poll_timeout(), self.registrar.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// Repeats and gives up what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.cache.handle_timeout(now);
        self.admits_at = self.admits_at.filter(|&at| now < at);
        if !self.insists.is_empty() && self.insists_at <= now {
            self.look_again(now);
        }
    }

    /// The next frame whose waiting ended.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event<C>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let (question, answer) = self.cache.poll_resolved()?;
            self.end_wait(now, question, answer);
        }
    }
}

fn mac_at(frame: &[u8], at: usize) -> Option<MacAddress> {
    frame.get(at..at + 6)?.try_into().ok().map(MacAddress)
}
