//! The overlay's end in a server (VTEP): the tunnel, the cache of stations' locations, the stations of this server, and
//! the frames that wait for the controller's answer (Crisan 2014, 3.2.3, figure 3.2).
//!
//! - A frame for a station with an unknown server is parked until the controller answers; each tenant has a limit of
//!   parked frames. Beyond the limit, a frame of a lossless class stays with its sender ([`Vtep::admits`]), and a frame
//!   of a lossy class is dropped and counted. The same holds for a silent controller: in a lossless class, frames wait
//!   until the controller can be asked. Only frames for stations that the controller does not know are dropped. One
//!   tenant's unknown stations do not stall any other tenant.
//! - A frame through the tunnel from a station with an unknown location is parked in the receive buffer of its class. In
//!   a lossless class this buffer is the only bound, so that no frame is lost: the class may be paused until the answer
//!   comes or the question is given up. If the controller is known to be silent, only frames of lossless classes wait.
//!   They wait outside that buffer, as parked frames of their tenant.
//! - A frame into the tunnel must come from a station that is registered here.
//! - A frame out of the tunnel must come from the server of its sender.
//! - ARP requests and neighbour solicitations for a station on another server are answered from the mapping. A station of
//!   this server answers them itself. Those for an unknown station, and all other frames for a group, go to every server of
//!   the network, a copy to each ([`groups`]). They and ARP replies go beside credits, numbers and streams: they are lossy.

mod groups;
mod parked;
#[cfg(test)]
mod tests;

use crate::tunnels::PORT;
use crate::uplink::Origin;
pub use groups::is_beside;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use parked::Parked;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::bucket::Bucket;
use sluicenet_proto::overlay::cache::{Cache, CacheConfig, CacheCounters, Found};
use sluicenet_proto::overlay::mapping::{By, Mapping, Question, StationId};
use sluicenet_proto::overlay::members::Members;
use sluicenet_proto::overlay::neighbours;
use sluicenet_proto::overlay::registrar::{Lost, Registrar};
use sluicenet_proto::overlay::seal::{Key, Refused};
use sluicenet_proto::overlay::tunnel::{
    FrameFragments, Heard, Inner, NotBound, Outer, Tunnel, TunnelConfig, too_big_answer,
};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::controller::LEN;
use sluicenet_wire::ethernet::MacAddress;

/// Rate of "fragmentation needed" and "Packet Too Big" messages to a tenant, per second and at once: the limits of Linux for a peer.
const TOLD_PER_SECOND: u64 = 10;
const TOLD_AT_ONCE: u64 = 6;

/// Interval of look-ups while nobody can be asked.
const INSIST: Duration = Duration::from_ms(10);

/// Settings of a server's end.
#[derive(Clone, Debug)]
pub struct VtepConfig {
    /// The tunnel.
    pub tunnel: TunnelConfig,
    /// The cache.
    pub cache: CacheConfig,
    /// Most frames of one tenant that wait for an answer.
    pub parked_per_tenant: usize,
    /// Most frames of all tenants that wait for an answer.
    pub parked: usize,
}

impl VtepConfig {
    /// Settings with at most 256 parked frames of a tenant, and 8,192 in all.
    pub fn new(tunnel: TunnelConfig) -> VtepConfig {
        VtepConfig { tunnel, cache: CacheConfig::default(), parked_per_tenant: 256, parked: 8_192 }
    }
}

/// Counters of a server's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VtepCounters {
    /// Frames put into the tunnel.
    pub encapsulated: u64,
    /// Frames taken out of the tunnel.
    pub decapsulated: u64,
    /// Frames that waited for an answer.
    pub parked: u64,
    /// Frames dropped because their tenant had too many waiting.
    pub parked_full: u64,
    /// Times that frames of a lossless class went on waiting after the controller said nothing.
    pub parked_on: u64,
    /// ARP requests and neighbour solicitations answered.
    pub arp_answered: u64,
    /// ARP requests and neighbour solicitations that ended here: for stations of this server; and ARP in a network that no
    /// other server has.
    pub arp_ended: u64,
    /// Frames for a group that were sent to other servers.
    pub group_sent: u64,
    /// The copies of them.
    pub group_copies: u64,
    /// Frames for a group, and ARP replies, that came from other servers.
    pub group_received: u64,
    /// Frames for a group, and ARP replies, that were dropped because their tenant sends too many.
    pub group_limited: u64,
    /// Senders told that their packet was too large.
    pub too_big_told: u64,
    /// Datagrams of the controller with a wrong tag.
    pub control_forged: u64,
    /// Datagrams of the controller with a wrong size or format, or without a request.
    pub control_refused: u64,
}

/// The result for a frame to the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outward {
    /// The frame is to be sent, as it stands in the given buffer.
    Send,
    /// The frame goes into the [stream](Vtep::use_streams) to this server, as it stands in the buffer.
    Into(Ipv4Addr),
    /// The frame waits for the controller; [`Vtep::poll_event`] reports the outcome.
    Parked,
    /// The packet is larger than the tunnel's datagrams and may be [cut](FrameFragments): its fragments are to be handed in
    /// instead.
    Cut,
    /// The frame was made here, and nobody can be asked about its destination now.
    NotNow,
    /// A copy of the frame goes to each of these servers: [`Vtep::copy`].
    Copies(Vec<Ipv4Addr>),
    /// The frame ends here, and its purpose is fulfilled.
    Ended,
    /// The frame ends here, and this is the answer to its sender.
    Reply(Vec<u8>),
    /// The frame must be dropped. The optional frame tells the sender.
    Drop(DropReason, Option<Vec<u8>>),
}

/// The result for a frame from the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inward {
    /// The frame is for a station of this server.
    Deliver(Inner),
    /// The frame is for a station of this server, but its sender has to be asked about: [`Vtep::park`] it.
    Ask(Inner, StationId),
    /// The frame is for a group, or an ARP reply: it goes to the switch beside credits, numbers and streams. The station is
    /// its sender if that has to be asked about: [`Vtep::park`] it as lossy then.
    Beside(Inner, Option<StationId>),
    /// The frame is a segment of the stream from another server; the stream's frames [come in by
    /// themselves](Vtep::inward_of_stream).
    Segment(Heard),
    /// The frame does not belong to the tunnel.
    Other,
    /// The frame must be dropped.
    Drop(DropReason),
}

/// The outcome of waiting for the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<C> {
    /// A frame for the tunnel is to be sent, with all its headers.
    Send(Vec<u8>, Priority, Origin),
    /// A frame goes into the stream to a server.
    Into(Vec<u8>, Ipv4Addr, Origin),
    /// A parked frame now counts as its tenant's, and leaves the receive buffer.
    Aside(C),
    /// Copies of a frame for a group, of this domain and class, go to servers.
    Copies(Vec<u8>, Vec<Ipv4Addr>, u16, Priority),
    /// A frame for a station of this server may go to the switch.
    Deliver(C),
    /// A frame for the switch is dropped.
    Drop(C, DropReason),
    /// A frame of this many bytes for the tunnel is dropped.
    DropOut(DropReason, u32),
    /// A frame for the switch: the answer to a sender of this domain and class.
    Reply(Vec<u8>, u16, Priority),
}

/// A server's end of the overlay; `C` stands for a frame that came from the link.
#[derive(Clone, Debug)]
pub struct Vtep<C> {
    config: VtepConfig,
    tunnel: Tunnel,
    /// The classes in which servers talk to each other in streams.
    streams: PrioritySet,
    /// Classes in which a frame waits for as long as nobody can be asked about its station.
    lossless: PrioritySet,
    cache: Cache,
    registrar: Registrar,
    key: Key,
    parked: BTreeMap<Question, VecDeque<Parked<C>>>,
    /// The questions that are looked up again at regular intervals.
    insists: BTreeSet<Question>,
    insists_at: Instant,
    /// Time at which a frame that was not admitted may be admitted.
    admits_at: Option<Instant>,
    /// Parked frames that count as their tenant's, by tenant; their total is in `shared`.
    of_tenant: BTreeMap<u32, usize>,
    shared: usize,
    /// All parked frames, including those bounded by the receive buffer.
    total: usize,
    told: BTreeMap<u32, Bucket>,
    /// The servers of each network, and the limits of its frames for groups.
    members: Members,
    group_limits: BTreeMap<u32, Bucket>,
    /// Draws the numbers of the questions about servers.
    rng: Rng,
    /// Stations that sent a frame and are not registered, or not with this address.
    strangers: BTreeMap<(u16, MacAddress), Option<Ipv4Addr>>,
    /// Stations that the switch did not register when it was told of them, or lost again: their frames do not wait.
    unwelcome: BTreeSet<StationId>,
    events: VecDeque<Event<C>>,
    counters: VtepCounters,
}

impl<C: Copy> Vtep<C> {
    /// An end that knows no station. `key` is shared with the controller. `rng` draws unpredictable request numbers.
    /// `first_request` must be above all numbers that this server ever used.
    pub fn new(config: VtepConfig, key: Key, mut rng: Rng, first_request: u64) -> Vtep<C> {
        let server = config.tunnel.server;
        Vtep {
            tunnel: Tunnel::new(config.tunnel.clone()),
            streams: PrioritySet::NONE,
            lossless: PrioritySet::NONE,
            cache: Cache::new(config.cache, server, Rng::from_words(&[rng.next_u64(), rng.next_u64()])),
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
            members: Members::new(server),
            group_limits: BTreeMap::new(),
            rng,
            strangers: BTreeMap::new(),
            unwelcome: BTreeSet::new(),
            events: VecDeque::new(),
            counters: VtepCounters::default(),
            config,
        }
    }

    /// Sets the classes in which servers talk to each other in streams, not in datagrams: a TCP connection for each two
    /// servers.
    pub fn use_streams(&mut self, classes: PrioritySet) {
        self.streams = classes;
    }

    /// Sets the classes in which a frame waits for as long as nobody can be asked about its station.
    pub fn set_waiting_classes(&mut self, lossless: PrioritySet) {
        self.lossless = lossless;
    }

    /// The tunnel.
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// The counters of this end and of its cache.
    pub fn counters(&self) -> (&VtepCounters, &CacheCounters) {
        (&self.counters, self.cache.counters())
    }

    /// Stations here that the controller knows.
    pub fn registered(&self) -> usize {
        self.registrar.registered()
    }

    /// IPv6 addresses of stations here that the controller has given to other stations.
    pub fn addresses_refused(&self) -> u64 {
        self.registrar.refused()
    }

    /// Frames that wait for the controller.
    pub fn waiting(&self) -> usize {
        self.total
    }

    /// Largest datagram of a tenant.
    pub fn inner_mtu(&self) -> u16 {
        self.tunnel.inner_mtu()
    }

    /// Whether a frame of a tenant may go through the tunnel, to any destination.
    pub fn may_carry(&self, frame: &[u8]) -> bool {
        self.tunnel.objection([frame, &[]]).is_none()
    }

    /// Makes a broadcast domain of this server one network of the overlay.
    pub fn bind(&mut self, domain: u16, vni: u32) -> Result<(), NotBound> {
        self.tunnel.bind(domain, vni)?;
        self.members.join(vni);
        Ok(())
    }

    /// Adds another server of the overlay, with the MAC address of the next hop towards it.
    pub fn admit(&mut self, server: Ipv4Addr, next_hop: MacAddress) {
        self.tunnel.admit(server, next_hop);
    }

    /// Removes a server from the overlay.
    pub fn expel(&mut self, server: Ipv4Addr) {
        self.tunnel.expel(server);
    }

    /// Adds a station of this server. Returns whether the station's domain is a network.
    pub fn add_station(&mut self, now: Instant, domain: u16, mac: MacAddress, ip: Ipv4Addr) -> bool {
        let vni = self.tunnel.network(domain);
        if let Some(vni) = vni {
            self.unwelcome.remove(&StationId { vni, mac });
            self.registrar.add(now, StationId { vni, mac }, ip);
        }
        vni.is_some()
    }

    /// Notes that an unnamed station has appeared here, or an IPv6 address of any station; or that it is gone. Returns whether
    /// the station's domain is a network. The station takes nothing from other stations ([`Registrar::learn`]).
    pub fn learn_station(&mut self, now: Instant, domain: u16, mac: MacAddress, ip: IpAddr, here: bool) -> bool {
        let Some(vni) = self.tunnel.network(domain) else { return false };
        let station = StationId { vni, mac };
        if here {
            self.unwelcome.remove(&station);
        }
        match (ip, here) {
            (IpAddr::V4(ip), true) => self.registrar.learn(now, station, ip),
            (IpAddr::V4(_), false) => self.registrar.unlearn(now, station),
            (IpAddr::V6(ip), true) => _ = self.registrar.learn_address(now, station, ip),
            (IpAddr::V6(ip), false) => self.registrar.unlearn_address(now, station, ip),
        }
        true
    }

    /// Removes a station of this server.
    pub fn remove_station(&mut self, now: Instant, domain: u16, mac: MacAddress) {
        if let Some(vni) = self.tunnel.network(domain) {
            self.registrar.remove(now, StationId { vni, mac });
        }
    }

    /// The next station that, according to the controller, no longer lives on this server.
    pub fn poll_lost(&mut self) -> Option<(StationId, Lost)> {
        let lost = self.registrar.poll_lost()?;
        self.turn_from(lost.0);
        Some(lost)
    }

    /// Whether frames of a class may leave a station: those of a lossless class wait until the controller knows a new station,
    /// because other servers refuse frames of a station that it does not know. The switch hears of a station that is not
    /// registered here ([`Vtep::poll_stranger`]), and the frames wait until it has decided.
    pub fn may_send(&mut self, now: Instant, domain: u16, source: MacAddress, priority: Priority) -> bool {
        let Some(vni) = self.tunnel.network(domain).filter(|_| self.lossless.contains(priority)) else { return true };
        let station = StationId { vni, mac: source };
        let waits = match self.registrar.is_new(now, station) {
            Some(is_new) => is_new,
            None => !self.unwelcome.contains(&station) && self.note_stranger(domain, source, None),
        };
        !waits || self.ask_again(now)
    }

    /// Whether a frame of a class for a remote station should be handed over now. A frame of a lossless class that would
    /// have to wait, and finds no room for that, waits with its sender.
    pub fn admits(&mut self, now: Instant, domain: u16, destination: MacAddress, priority: Priority) -> bool {
        if !self.lossless.contains(priority) || destination.is_group() {
            return true;
        }
        let Some(vni) = self.tunnel.network(domain) else { return true };
        match self.cache.would_find(now, Question { vni, by: By::Mac(destination) }) {
            Found::Known(_) | Found::Unknown => true,
            Found::Asked if self.has_room(vni) => true,
            Found::Asked | Found::Silent | Found::Limited => self.ask_again(now),
        }
    }

    /// A frame is not admitted now, and its sender asks again a moment later.
    fn ask_again(&mut self, now: Instant) -> bool {
        let again = now + INSIST;
        self.admits_at = Some(self.admits_at.map_or(again, |at| at.min(again)));
        false
    }

    /// The server of a remote station, if it is known now; sends no question.
    pub fn server_of(&self, domain: u16, destination: MacAddress) -> Option<Ipv4Addr> {
        let vni = self.tunnel.network(domain)?;
        self.cache.peek(Question { vni, by: By::Mac(destination) }).map(|mapping| mapping.location)
    }

    /// Asks the controller about a silent station, at most once a second. Frames for a station that the controller no
    /// longer knows [are dropped](Outward::Drop) from then on. Returns whether the controller is asked now.
    pub fn doubt(&mut self, now: Instant, domain: u16, mac: MacAddress) -> bool {
        let Some(vni) = self.tunnel.network(domain) else { return false };
        let asked = self.cache.counters().misses;
        self.cache.doubt(now, StationId { vni, mac });
        self.cache.counters().misses > asked
    }

    /// Handles a frame of a station of this server for a remote station. With [`Outward::Send`] the result stands in
    /// `out`.
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

    /// Handles a frame of any origin for a remote station, in two pieces; the first has all headers. A frame that was
    /// made here waits for an answer like any other, and is dropped without a message.
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
            return self.refuse_stranger(domain, source, frame[0]);
        };
        if neighbours::arp_of(frame[0]).is_some() {
            return self.arp(now, frame[0], from, address, priority, out);
        }
        if destination.is_group() {
            return self.for_group(now, frame, from, priority);
        }
        let question = Question { vni, by: By::Mac(destination) };
        match self.cache.lookup(now, question) {
            // No frame overtakes the waiting frames.
            Found::Known(mapping) if self.total == 0 || !self.parked.contains_key(&question) => {
                self.send(now, frame, &mapping, priority, out)
            }
            Found::Unknown => Outward::Drop(DropReason::Unresolved, None),
            // A frame that cannot go into the tunnel does not wait for it.
            _ if self.tunnel.objection(frame).is_some() => {
                let reason = self.tunnel.objection(frame).unwrap_or(DropReason::Malformed);
                self.refuse(now, frame, vni, reason)
            }
            found if origin == Origin::Switch && self.lossless.contains(priority) => {
                // The frame was admitted: any excess over the room is only frames that the switch had on their way here.
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
            // The station should be here, and is not.
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
            Err(reason) => self.refuse(now, frame, vni, reason),
        }
    }

    /// Refuses a frame that may not go into the tunnel. A packet that is too large is cut if it may be; otherwise its sender
    /// is told.
    #[cold]
    fn refuse(&mut self, now: Instant, frame: [&[u8]; 2], vni: u32, reason: DropReason) -> Outward {
        if reason != DropReason::TooBig {
            return Outward::Drop(reason, None);
        }
        let (frame, mtu) = (frame.concat(), self.tunnel.inner_mtu());
        if FrameFragments::of(&frame, mtu).is_some() {
            return Outward::Cut;
        }
        let new = || Bucket::new(TOLD_PER_SECOND, TOLD_AT_ONCE);
        let may_tell = self.told.entry(vni).or_insert_with(new).take(now);
        let answer = may_tell.then(|| too_big_answer(&frame, mtu)).flatten();
        self.counters.too_big_told += u64::from(answer.is_some());
        Outward::Drop(reason, answer)
    }

    /// Handles a frame from the link, without its check sequence; the tunnel changes the frame in place.
    pub fn inward(&mut self, now: Instant, frame: &mut [u8]) -> Inward {
        if !self.streams.is_empty() {
            match self.tunnel.find_segment(frame, PORT) {
                Ok(Some(heard)) => return Inward::Segment(heard),
                Ok(None) => {}
                Err(reason) => return Inward::Drop(reason),
            }
        }
        match self.tunnel.decapsulate(frame) {
            // All servers of an overlay talk in streams, or none does.
            Outer::Inner(inner)
                if self.streams.contains(inner.priority) && !groups::is_beside(&frame[inner.frame.clone()]) =>
            {
                Inward::Drop(DropReason::Malformed)
            }
            Outer::Inner(inner) => self.inward_of(now, inner, frame),
            Outer::Other => Inward::Other,
            Outer::Drop(reason) => Inward::Drop(reason),
        }
    }

    /// Handles a frame as it stood in the stream from another server.
    pub fn inward_of_stream(&mut self, now: Instant, bytes: &[u8], from: Ipv4Addr) -> Inward {
        match self.tunnel.take_from_stream(bytes, from) {
            Ok(inner) if self.streams.contains(inner.priority) && !groups::is_beside(&bytes[inner.frame.clone()]) => {
                self.inward_of(now, inner, bytes)
            }
            Ok(_) => Inward::Drop(DropReason::Malformed),
            Err(reason) => Inward::Drop(reason),
        }
    }

    /// Checks that the sender of a frame from a tunnel lives on the server that sent the frame.
    fn inward_of(&mut self, now: Instant, inner: Inner, frame: &[u8]) -> Inward {
        let bytes = &frame[inner.frame.clone()];
        let Some(mac) = mac_at(bytes, 6) else {
            return Inward::Drop(DropReason::Malformed);
        };
        let station = StationId { vni: inner.vni, mac };
        if groups::is_beside(bytes) {
            return self.beside(now, inner, station, bytes);
        }
        let question = Question { vni: inner.vni, by: By::Mac(mac) };
        match self.cache.lookup(now, question) {
            Found::Known(mapping) if mapping.location == inner.from => {
                // A lossless frame does not overtake the waiting frames; other frames must not wait for them.
                if self.total > 0
                    && self.lossless.contains(inner.priority)
                    && self.parked.get(&question).is_some_and(|all| all.iter().any(Parked::is_aside))
                {
                    return Inward::Ask(inner, station);
                }
                self.counters.decapsulated += 1;
                Inward::Deliver(inner)
            }
            // The station may have moved a moment ago.
            Found::Known(_) if self.cache.doubt(now, station) => Inward::Ask(inner, station),
            Found::Known(_) => Inward::Drop(DropReason::ForgedSource),
            Found::Asked => Inward::Ask(inner, station),
            Found::Silent | Found::Limited if self.lossless.contains(inner.priority) => Inward::Ask(inner, station),
            Found::Unknown | Found::Silent | Found::Limited => Inward::Drop(DropReason::Unresolved),
        }
    }

    /// Handles a datagram that claims to be the controller's. [`Vtep::poll_event`] must be called before anything else is
    /// done.
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
        self.registrar.heard(now);
        if self.registrar.handle(now, &message) {
            self.cache.heard_of(now, self.registrar.epoch());
        } else if !self.members.handle(now, &message) && !self.cache.handle(now, &message) {
            self.counters.control_refused += 1;
        }
    }

    /// The next datagram for the controller.
    pub fn poll_control(&mut self, now: Instant) -> Option<[u8; LEN]> {
        let message = self.cache.poll_transmit(now).or_else(|| self.registrar.poll_transmit(now));
        let rng = &mut self.rng;
        let message = message.or_else(|| self.members.poll_transmit(now, || rng.next_u64() | 1))?;
        Some(self.key.seal(&message))
    }

    /// Time for the next [`Vtep::handle_timeout`] and [`Vtep::poll_control`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let now = self.cache.wants_transmit().then_some(Instant::ZERO);
        let insists = (!self.insists.is_empty()).then_some(self.insists_at);
        let machines = [self.cache.poll_timeout(), self.registrar.poll_timeout(), self.members.poll_timeout()];
        let timers = [now, insists, self.admits_at].into_iter().chain(machines);
        timers.flatten().min()
    }

    /// Repeats requests and gives up questions whose deadlines have come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.cache.handle_timeout(now);
        self.admits_at = self.admits_at.filter(|&at| now < at);
        if !self.insists.is_empty() && self.insists_at <= now {
            self.look_again(now);
        }
    }

    /// The next outcome of a wait.
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
