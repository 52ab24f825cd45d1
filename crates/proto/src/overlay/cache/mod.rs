//! The cache of a virtual switch: the locations of stations, asked of the controller once and kept (Crisan 2014, 3.2.3.2).
//!
//! - A question is repeated every 10 ms until it is answered, and given up after [`TRIES`]. It may be asked again at once if
//!   the controller answered meanwhile: a controller that has just started is busy learning the stations of all servers.
//! - The cache waits before it repeats a question about a station that the controller does not know. A known mapping stays
//!   in use until an answer changes it, even if the mapping is old or the controller silent.
//! - Each tenant has a limit on open questions, on new questions per second and on remembered failures; tenants take turns.
//!   A full table evicts the oldest entry of the tenant with the most entries (FIFO, which the source finds best).
//! - Of two mappings the higher version counts. An answer counts only if it was asked for. An unsolicited change counts
//!   only if its station is in the table and its version is newer.

use super::bucket::Bucket;
use super::controller::RETRANSMIT;
use super::mapping::{By, Mapping, Question, StationId};
use super::registrar::RENEW;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use sluicenet_wire::controller::{Kind, Repr, Status};
use sluicenet_wire::ethernet::MacAddress;

/// Transmissions of a question before the controller counts as silent.
pub const TRIES: u8 = 5;
/// Time after which a mapping is asked about again while it stays in use.
const FRESH: Duration = Duration::from_secs(30);
/// Time for which no question is repeated about a station that the controller does not know or does not answer about.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// Time for which a restarted controller may lack mappings that it had before: three times the interval at which servers
/// register their stations again.
const LEARNS_FOR: Duration = Duration(3 * RENEW.0);
/// Most confirmations of changes that wait to be sent.
const CONFIRMATIONS: usize = 256;
/// Most addresses of a mapping by which its station is found: as many as the controller has of a station.
const ADDRESSES: usize = 1 + super::registrar::ADDRESSES_MAX;

/// Limits of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Mappings in the table.
    pub entries: usize,
    /// Open questions per tenant.
    pub open: usize,
    /// New questions per tenant and second.
    pub per_second: u64,
    /// Remembered failures per tenant.
    pub failures: usize,
}

impl Default for CacheConfig {
    /// 16,384 mappings; per tenant 64 open questions, 1,000 new questions a second and 1,024 failures.
    fn default() -> CacheConfig {
        CacheConfig { entries: 1 << 14, open: 64, per_second: 1_000, failures: 1_024 }
    }
}

/// The immediate result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The station has this mapping.
    Known(Mapping),
    /// The controller does not know the station.
    Unknown,
    /// The controller did not answer a recent question.
    Silent,
    /// The controller is being asked: [`Cache::poll_resolved`] returns the answer.
    Asked,
    /// The tenant asks too many questions.
    Limited,
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The station has this mapping.
    Known(Mapping),
    /// The controller does not know the station.
    Unknown,
    /// The controller did not answer.
    Silent,
}

impl Answer {
    /// The mapping, if the station is known.
    pub fn mapping(self) -> Option<Mapping> {
        match self {
            Answer::Known(mapping) => Some(mapping),
            Answer::Unknown | Answer::Silent => None,
        }
    }
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Frames with a mapping in the table.
    pub hits: u64,
    /// New questions.
    pub misses: u64,
    /// Questions repeated for lack of an answer.
    pub repeated: u64,
    /// Questions about stations that the controller does not know.
    pub unknown: u64,
    /// Questions without an answer.
    pub silent: u64,
    /// Questions refused because their tenant asks too many.
    pub limited: u64,
    /// Mappings evicted to make room for others.
    pub evicted: u64,
    /// Mappings changed by messages.
    pub changed: u64,
    /// Unsolicited answers and changes, and outdated mappings.
    pub stale: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    mapping: Mapping,
    /// The station's addresses that are known.
    addresses: Vec<IpAddr>,
    /// When the controller was last asked about the mapping, and when it will be asked again.
    asked_at: Instant,
    old_at: Instant,
    /// Its position in the order of arrival.
    order: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    request: u64,
    tries: u8,
    /// When the question is repeated; `None` until its first transmission.
    at: Option<Instant>,
}

/// A question that was answered without a mapping, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure {
    /// Time until which the question is not repeated.
    until: Instant,
    silent: bool,
}

#[derive(Clone, Debug)]
struct Tenant {
    bucket: Bucket,
    open: usize,
    /// Questions to be sent or repeated.
    queue: VecDeque<Question>,
    /// The tenant's mappings in the order of their arrival.
    entries: BTreeMap<u64, MacAddress>,
    failures: BTreeMap<By, Failure>,
    /// Failures in the order of their arrival.
    failed: VecDeque<(By, Instant)>,
}

/// The cache.
#[derive(Clone, Debug)]
pub struct Cache {
    config: CacheConfig,
    server: Ipv4Addr,
    rng: Rng,
    /// The start of the controller that answered last; 0 before the first answer.
    epoch: u32,
    /// Time of the first message from this start of the controller.
    epoch_since: Instant,
    /// Time until which the controller counts as silent.
    silent_until: Instant,
    entries: BTreeMap<StationId, Entry>,
    by_ip: BTreeMap<(u32, IpAddr), MacAddress>,
    arrivals: u64,
    tenants: BTreeMap<u32, Tenant>,
    /// The tenant whose question was sent last.
    turn: u32,
    /// Questions in all queues.
    queued: usize,
    open: BTreeMap<Question, Open>,
    requests: BTreeMap<u64, Question>,
    deadlines: BTreeSet<(Instant, Question)>,
    confirmations: VecDeque<Repr>,
    resolved: VecDeque<(Question, Answer)>,
    counters: CacheCounters,
}

impl Cache {
    /// An empty cache of `server`. Request numbers are drawn from `rng`, which no attacker should be able to predict.
    pub fn new(config: CacheConfig, server: Ipv4Addr, rng: Rng) -> Cache {
        Cache {
            config,
            server,
            rng,
            epoch: 0,
            epoch_since: Instant::ZERO,
            silent_until: Instant::ZERO,
            entries: BTreeMap::new(),
            by_ip: BTreeMap::new(),
            arrivals: 0,
            tenants: BTreeMap::new(),
            turn: 0,
            queued: 0,
            open: BTreeMap::new(),
            requests: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            confirmations: VecDeque::new(),
            resolved: VecDeque::new(),
            counters: CacheCounters::default(),
        }
    }

    /// The counters.
    pub fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// Number of mappings in the table.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the controller left a recent question unanswered and has not answered since.
    pub fn is_silent(&self, now: Instant) -> bool {
        now < self.silent_until
    }

    /// Whether the controller is being asked: [`Cache::poll_resolved`] returns the answer.
    pub fn is_asked(&self, question: Question) -> bool {
        self.open.contains_key(&question)
    }

    /// The location of a station, if it is known already; sends no question.
    pub fn peek(&self, question: Question) -> Option<Mapping> {
        let mapping = |mac| self.entries.get(&StationId { vni: question.vni, mac }).map(|e| e.mapping);
        match question.by {
            By::Mac(mac) => mapping(mac),
            By::Ip(ip) => Some(Mapping { ip, ..mapping(*self.by_ip.get(&(question.vni, ip))?)? }),
        }
    }

    /// The location of a station; asks the controller if it is unknown. The network must be one of this server's.
    pub fn lookup(&mut self, now: Instant, question: Question) -> Found {
        match self.would_find(now, question) {
            Found::Known(mapping) => {
                self.counters.hits += 1;
                self.refresh(now, mapping.station);
                Found::Known(mapping)
            }
            Found::Asked if self.open.contains_key(&question) => Found::Asked,
            Found::Asked | Found::Limited if self.ask(now, question) => Found::Asked,
            Found::Asked | Found::Limited => Found::Limited,
            found @ (Found::Unknown | Found::Silent) => found,
        }
    }

    /// The result that [`Cache::lookup`] would have; sends and counts nothing.
    pub fn would_find(&self, now: Instant, question: Question) -> Found {
        if let Some(mapping) = self.peek(question) {
            return Found::Known(mapping);
        }
        if self.open.contains_key(&question) {
            return Found::Asked;
        }
        let Some(tenant) = self.tenants.get(&question.vni) else { return Found::Asked };
        match tenant.failures.get(&question.by).filter(|failure| now < failure.until) {
            Some(Failure { silent: false, .. }) => Found::Unknown,
            Some(_) if self.is_silent(now) => Found::Silent,
            _ if tenant.open < self.config.open && tenant.bucket.has(now) => Found::Asked,
            _ => Found::Limited,
        }
    }

    /// Asks about a mapping that contradicts an observation, unless it was asked about recently. Returns whether the
    /// question is open, so that [`Cache::poll_resolved`] will return its answer.
    pub fn doubt(&mut self, now: Instant, station: StationId) -> bool {
        if let Some(entry) = self.entries.get_mut(&station).filter(|e| now.since(e.asked_at) >= UNKNOWN_FOR) {
            entry.old_at = now;
            self.refresh(now, station);
        }
        self.open.contains_key(&Question { vni: station.vni, by: By::Mac(station.mac) })
    }

    fn refresh(&mut self, now: Instant, station: StationId) {
        let Some(entry) = self.entries.get_mut(&station).filter(|e| e.old_at <= now) else { return };
        (entry.asked_at, entry.old_at) = (now, now + UNKNOWN_FOR);
        let question = Question { vni: station.vni, by: By::Mac(station.mac) };
        if !self.open.contains_key(&question) {
            self.ask(now, question);
        }
    }

    fn tenant(&mut self, vni: u32) -> &mut Tenant {
        let CacheConfig { per_second, open, .. } = self.config;
        self.tenants.entry(vni).or_insert_with(|| Tenant {
            bucket: Bucket::new(per_second, open as u64),
            open: 0,
            queue: VecDeque::new(),
            entries: BTreeMap::new(),
            failures: BTreeMap::new(),
            failed: VecDeque::new(),
        })
    }

    fn ask(&mut self, now: Instant, question: Question) -> bool {
        let most = self.config.open;
        let tenant = self.tenant(question.vni);
        if tenant.open >= most || !tenant.bucket.take(now) {
            self.counters.limited += 1;
            return false;
        }
        tenant.open += 1;
        tenant.queue.push_back(question);
        self.queued += 1;
        let request = self.rng.next_u64();
        self.open.insert(question, Open { request, tries: 0, at: None });
        self.requests.insert(request, question);
        self.counters.misses += 1;
        true
    }

    /// Removes a question from the open ones.
    fn close(&mut self, question: Question) {
        let Some(open) = self.open.remove(&question) else { return };
        self.requests.remove(&open.request);
        match open.at {
            Some(at) => _ = self.deadlines.remove(&(at, question)),
            None => {
                self.tenant(question.vni).queue.retain(|q| *q != question);
                self.queued -= 1;
            }
        }
        self.tenant(question.vni).open -= 1;
    }

    fn fail(&mut self, now: Instant, question: Question, silent: bool) {
        let most = self.config.failures;
        let until = now + UNKNOWN_FOR;
        let tenant = self.tenant(question.vni);
        tenant.failures.insert(question.by, Failure { until, silent });
        tenant.failed.push_back((question.by, until));
        while tenant.failed.len() > most || tenant.failed.front().is_some_and(|(_, until)| *until <= now) {
            let Some((by, until)) = tenant.failed.pop_front() else { break };
            if tenant.failures.get(&by).is_some_and(|failure| failure.until == until) {
                tenant.failures.remove(&by);
            }
        }
        let answer = match self.peek(question) {
            Some(mapping) => Answer::Known(mapping),
            None if silent => Answer::Silent,
            None => Answer::Unknown,
        };
        self.resolved.push_back((question, answer));
    }

    /// The next message to the controller that is due.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Repr> {
        if let Some(confirmation) = self.confirmations.pop_front() {
            return Some(confirmation);
        }
        if self.queued == 0 {
            return None;
        }
        let after = self.tenants.range(self.turn + 1..).chain(self.tenants.range(..=self.turn));
        let vni = after.into_iter().find(|(_, t)| !t.queue.is_empty()).map(|(vni, _)| *vni)?;
        self.turn = vni;
        let question = self.tenants.get_mut(&vni)?.queue.pop_front()?;
        self.queued -= 1;
        let open = self.open.get_mut(&question)?;
        open.tries += 1;
        self.counters.repeated += u64::from(open.tries > 1);
        let at = now + RETRANSMIT;
        open.at = Some(at);
        self.deadlines.insert((at, question));
        let (kind, mac, ip) = match question.by {
            By::Mac(mac) => (Kind::ResolveMac, mac, Ipv4Addr::UNSPECIFIED.into()),
            By::Ip(ip) => (Kind::ResolveIp, MacAddress::default(), ip),
        };
        Some(Repr {
            kind,
            status: Status::Done,
            mac,
            ip,
            server: self.server,
            location: Ipv4Addr::UNSPECIFIED,
            epoch: self.epoch,
            vni,
            version: 0,
            request: open.request,
        })
    }

    /// Whether [`Cache::poll_transmit`] has a message.
    pub fn wants_transmit(&self) -> bool {
        !self.confirmations.is_empty() || self.queued > 0
    }

    /// When a question has to be repeated or given up.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Repeats or gives up the questions that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, question)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, question));
            let Some(open) = self.open.get_mut(&question) else { continue };
            open.at = None;
            let tries = open.tries;
            self.tenant(question.vni).queue.push_back(question);
            self.queued += 1;
            if tries >= TRIES {
                self.counters.silent += 1;
                self.silent_until = now + UNKNOWN_FOR;
                self.close(question);
                self.fail(now, question, true);
            }
        }
    }

    /// Notes the controller's current start, taken from its answer to this server.
    pub fn heard_of(&mut self, now: Instant, epoch: u32) {
        if epoch != self.epoch {
            (self.epoch, self.epoch_since) = (epoch, now);
        }
    }

    /// Takes a genuine message from the controller; returns whether the message was for this cache.
    pub fn handle(&mut self, now: Instant, message: &Repr) -> bool {
        match message.kind {
            Kind::Answer => self.answered(now, message),
            Kind::Changed => {
                self.on_change(now, message);
                true
            }
            _ => false,
        }
    }

    fn answered(&mut self, now: Instant, message: &Repr) -> bool {
        let question = self.requests.get(&message.request).copied();
        let fits = |q: &Question| match q.by {
            By::Mac(mac) => q.vni == message.vni && mac == message.mac,
            By::Ip(ip) => q.vni == message.vni && ip == message.ip,
        };
        let Some(question) = question.filter(fits) else {
            return false;
        };
        self.silent_until = Instant::ZERO;
        match message.status {
            Status::Done if !message.location.is_unspecified() => {
                self.close(question);
                self.heard_of(now, message.epoch);
                let mapping = self.keep(now, Mapping::of(message));
                self.resolved.push_back((question, Answer::Known(mapping)));
            }
            Status::Unknown => {
                self.close(question);
                self.heard_of(now, message.epoch);
                self.counters.unknown += 1;
                if let Some(known) = self.peek(question) {
                    let overtaken = known.epoch == message.epoch && known.version > message.version;
                    let learning = known.epoch != message.epoch && now.since(self.epoch_since) < LEARNS_FOR;
                    if overtaken || learning {
                        self.counters.stale += 1;
                    } else {
                        self.forget(known.station);
                    }
                }
                self.fail(now, question, false);
            }
            // The controller has just started, and the station's server may not have registered it yet. Frames that wait for
            // the station meanwhile wait as for a silent controller, but others find that it is not silent.
            Status::Busy => {
                self.heard_of(now, message.epoch);
                if self.open.get(&question).is_some_and(|open| open.tries >= TRIES) {
                    self.close(question);
                    self.fail(now, question, true);
                }
            }
            // No controller that follows the document answers so: the question is repeated, and given up in the end.
            _ => self.counters.stale += 1,
        }
        true
    }

    fn on_change(&mut self, now: Instant, message: &Repr) {
        let mapping = Mapping::of(message);
        if message.epoch != self.epoch {
            // The change is from another start of the controller and may be years old: the controller is asked again.
            self.counters.stale += 1;
            self.doubt(now, mapping.station);
            return;
        }
        if self.confirmations.len() < CONFIRMATIONS {
            self.confirmations.push_back(mapping.message(Kind::Heard, self.server, message.request));
        }
        match self.entries.get(&mapping.station) {
            Some(known) if known.mapping.epoch != mapping.epoch || known.mapping.version < mapping.version => {
                self.counters.changed += 1;
                if mapping.location.is_unspecified() {
                    self.forget(mapping.station);
                } else {
                    self.keep(now, mapping);
                }
            }
            Some(_) => self.counters.stale += 1,
            None => {}
        }
    }

    /// Stores a mapping unless the table has a newer one; returns the mapping in the table.
    fn keep(&mut self, now: Instant, mapping: Mapping) -> Mapping {
        let station = mapping.station;
        let (order, mut addresses) = match self.entries.remove(&station) {
            Some(known) if known.mapping.epoch == mapping.epoch && known.mapping.version > mapping.version => {
                self.counters.stale += 1;
                let newer = Mapping { ip: mapping.ip, ..known.mapping };
                self.entries.insert(station, known);
                return newer;
            }
            Some(known) if (known.mapping.epoch, known.mapping.version) == (mapping.epoch, mapping.version) => {
                (known.order, known.addresses)
            }
            Some(known) => {
                self.forget_addresses(station, &known.addresses);
                (known.order, Vec::new())
            }
            None => {
                if self.entries.len() >= self.config.entries {
                    self.evict();
                }
                self.arrivals += 1;
                let order = self.arrivals;
                self.tenant(station.vni).entries.insert(order, station.mac);
                (order, Vec::new())
            }
        };
        if !mapping.ip.is_unspecified() {
            if !addresses.contains(&mapping.ip) {
                if addresses.len() >= ADDRESSES {
                    self.forget_addresses(station, &[addresses.remove(0)]);
                }
                addresses.push(mapping.ip);
            }
            self.by_ip.insert((station.vni, mapping.ip), station.mac);
        }
        self.entries.insert(station, Entry { mapping, addresses, asked_at: now, old_at: now + FRESH, order });
        mapping
    }

    fn forget(&mut self, station: StationId) {
        let Some(entry) = self.entries.remove(&station) else { return };
        self.forget_addresses(station, &entry.addresses);
        self.tenant(station.vni).entries.remove(&entry.order);
    }

    fn forget_addresses(&mut self, StationId { vni, mac }: StationId, addresses: &[IpAddr]) {
        for &ip in addresses {
            // The address may belong to another station by now.
            if self.by_ip.get(&(vni, ip)) == Some(&mac) {
                self.by_ip.remove(&(vni, ip));
            }
        }
    }

    fn evict(&mut self) {
        let most = self.tenants.iter().max_by_key(|(_, t)| t.entries.len());
        let oldest = most.and_then(|(vni, t)| Some(StationId { vni: *vni, mac: *t.entries.first_key_value()?.1 }));
        if let Some(station) = oldest {
            self.counters.evicted += 1;
            self.forget(station);
        }
    }

    /// The next answered or abandoned question.
    pub fn poll_resolved(&mut self) -> Option<(Question, Answer)> {
        self.resolved.pop_front()
    }
}

#[cfg(test)]
mod tests;
