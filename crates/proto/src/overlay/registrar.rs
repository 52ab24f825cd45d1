//! A server's side of the mapping: it registers its stations with the controller, again and again, until the controller
//! reports another location.

use super::controller::{MODEST, RETRANSMIT};
use super::mapping::StationId;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use sluicenet_wire::controller::{Kind, Repr, Status};

/// Time between renewals, and so the longest time for which a restarted controller does not know a station.
pub const RENEW: Duration = Duration::from_secs(5);
/// Most IPv6 addresses of a station: its link-local address, and a few of each prefix (RFC 8981 makes new ones every day).
pub const ADDRESSES_MAX: usize = 8;
/// A station counts as new until a pause between attempts is longer than this, after 150 ms: then the controller is silent.
const NEW: Duration = Duration(RETRANSMIT.0 * 16);
/// Longest time between two attempts while the controller is silent.
const SLOWEST: Duration = Duration::from_ms(640);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is to be registered; the version of the earlier registration, or 0.
    Claim(u64),
    /// It is to be removed.
    Leave,
}

/// A claim to a station, or to one of its IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimed {
    station: StationId,
    address: Option<Ipv6Addr>,
}

impl Claimed {
    fn station(station: StationId) -> Claimed {
        Claimed { station, address: None }
    }

    /// The claim that a message is about.
    fn of(message: &Repr) -> Claimed {
        let station = StationId { vni: message.vni, mac: message.mac };
        let IpAddr::V6(address) = message.ip else { return Claimed::station(station) };
        Claimed { station, address: Some(address) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Local {
    /// The station's IPv4 address.
    ip: Ipv4Addr,
    /// Whether the claim is modest.
    modest: bool,
    state: State,
    /// When the next message is due, and the pause after it.
    at: Instant,
    wait: Duration,
    /// The last unanswered message about the station.
    request: Option<u64>,
}

/// Reason why a station is no longer registered for this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The station is on another server by now.
    Moved,
    /// Another station of the tenant has its IPv4 address.
    Conflict,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Registrar {
    server: Ipv4Addr,
    epoch: u32,
    request: u64,
    claims: BTreeMap<Claimed, Local>,
    deadlines: BTreeSet<(Instant, Claimed)>,
    lost: VecDeque<(StationId, Lost)>,
    refused: u64,
    /// Whether an attempt went unanswered for so long that the controller counts as silent.
    is_silent: bool,
}

impl Registrar {
    /// A server without stations. Its messages are numbered from `first_request`, which must be above all earlier numbers:
    /// nanoseconds of the wall clock will do.
    pub fn new(server: Ipv4Addr, first_request: u64) -> Registrar {
        Registrar {
            server,
            epoch: 0,
            request: first_request,
            claims: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            lost: VecDeque::new(),
            refused: 0,
            is_silent: false,
        }
    }

    /// The start of the controller that answered last; 0 before the first answer.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Adds a station of this server; `ip` is 0.0.0.0 if it has none.
    pub fn add(&mut self, now: Instant, station: StationId, ip: Ipv4Addr) {
        self.claim(now, station, ip, false);
    }

    /// An unnamed station has shown itself here: claims it [modestly](MODEST), unless it was named. A station is claimed
    /// again if the controller gave the station or its address to another server.
    pub fn learn(&mut self, now: Instant, station: StationId, ip: Ipv4Addr) {
        let known = self.claims.get(&Claimed::station(station)).filter(|l| l.state != State::Leave);
        if known.is_none_or(|l| l.modest && l.ip != ip) {
            self.claim(now, station, ip, true);
        }
    }

    /// A station has shown an IPv6 address here: claims the address modestly, and the station if it is unknown. A station has
    /// at most [`ADDRESSES_MAX`] such addresses; returns whether this one is among them.
    pub fn learn_address(&mut self, now: Instant, station: StationId, address: Ipv6Addr) -> bool {
        if self.station(station).is_none() {
            self.learn(now, station, Ipv4Addr::UNSPECIFIED);
        }
        let claimed = Claimed { station, address: Some(address) };
        if self.claims.get(&claimed).is_some_and(|l| l.state != State::Leave) {
            return true;
        }
        let all = self.addresses(station).count();
        let is_live = |claimed: &Claimed| self.claims.get(claimed).is_some_and(|l| l.state != State::Leave);
        let live = self.addresses(station).filter(is_live).count();
        // Those that are to be removed take memory until the controller answers.
        let has_room = live < ADDRESSES_MAX && all < 2 * ADDRESSES_MAX;
        if has_room {
            // The controller has room only once another address is removed.
            let at = if all < ADDRESSES_MAX { now } else { now + RETRANSMIT };
            let (state, ip) = (State::Claim(0), Ipv4Addr::UNSPECIFIED);
            self.set(claimed, Local { ip, modest: true, state, at, wait: RETRANSMIT, request: None });
        }
        has_room
    }

    /// A station no longer has an IPv6 address.
    pub fn unlearn_address(&mut self, now: Instant, station: StationId, address: Ipv6Addr) {
        self.leave(now, Claimed { station, address: Some(address) });
    }

    /// A station that was [learned](Registrar::learn) no longer lives here.
    pub fn unlearn(&mut self, now: Instant, station: StationId) {
        if self.claims.get(&Claimed::station(station)).is_some_and(|l| l.modest) {
            self.remove(now, station);
        }
    }

    fn claim(&mut self, now: Instant, station: StationId, ip: Ipv4Addr, modest: bool) {
        let local = Local { ip, modest, state: State::Claim(0), at: now, wait: RETRANSMIT, request: None };
        self.set(Claimed::station(station), local);
    }

    /// A station is no longer on this server.
    pub fn remove(&mut self, now: Instant, station: StationId) {
        self.forget_addresses(station);
        self.leave(now, Claimed::station(station));
    }

    fn leave(&mut self, now: Instant, claimed: Claimed) {
        if let Some(&local) = self.claims.get(&claimed) {
            self.set(claimed, Local { state: State::Leave, at: now, wait: RETRANSMIT, request: None, ..local });
        }
    }

    /// The IPv4 address of a station on this server.
    pub fn station(&self, station: StationId) -> Option<Ipv4Addr> {
        self.claims.get(&Claimed::station(station)).filter(|l| l.state != State::Leave).map(|l| l.ip)
    }

    /// Whether the controller has not answered yet about a station that was claimed a moment ago: other servers would refuse its
    /// frames. `None` if the station is not claimed.
    pub fn is_new(&self, now: Instant, station: StationId) -> Option<bool> {
        let local = self.claims.get(&Claimed::station(station)).filter(|l| l.state != State::Leave)?;
        let is_asked = local.request.is_some() || local.at <= now + RETRANSMIT;
        Some(local.state == State::Claim(0) && is_asked && local.wait <= NEW)
    }

    /// The claimed IPv6 addresses of a station, those included that are to be removed.
    fn addresses(&self, station: StationId) -> impl Iterator<Item = Claimed> + '_ {
        let any = Ipv6Addr::from_bits(u128::MAX);
        let range = Claimed { station, address: Some(Ipv6Addr::UNSPECIFIED) }..=Claimed { station, address: Some(any) };
        self.claims.range(range).map(|(claimed, _)| *claimed)
    }

    /// Stations that the controller has registered for this server.
    pub fn registered(&self) -> usize {
        let is_registered = |(claimed, local): &(&Claimed, &Local)| {
            claimed.address.is_none() && matches!(local.state, State::Claim(version) if version != 0)
        };
        self.claims.iter().filter(is_registered).count()
    }

    /// IPv6 addresses that the controller refused because another station of the tenant has them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn set(&mut self, claimed: Claimed, local: Local) {
        if let Some(old) = self.claims.insert(claimed, local) {
            self.deadlines.remove(&(old.at, claimed));
        }
        self.deadlines.insert((local.at, claimed));
    }

    fn forget(&mut self, claimed: Claimed) {
        if let Some(old) = self.claims.remove(&claimed) {
            self.deadlines.remove(&(old.at, claimed));
        }
    }

    /// The controller removes the addresses of a station with the station.
    fn forget_addresses(&mut self, station: StationId) {
        let addresses: Vec<Claimed> = self.addresses(station).collect();
        addresses.into_iter().for_each(|claimed| self.forget(claimed));
    }

    /// Another server or station has it.
    fn lose(&mut self, claimed: Claimed, why: Lost) {
        self.forget(claimed);
        match claimed.address {
            Some(_) => self.refused += 1,
            None => {
                self.forget_addresses(claimed.station);
                self.lost.push_back((claimed.station, why));
            }
        }
    }

    /// The controller has said something. If it was silent, all that it did not answer is sent again at once: it may answer
    /// others about the stations of this server from now on.
    pub fn heard(&mut self, now: Instant) {
        if core::mem::take(&mut self.is_silent) {
            let unanswered: Vec<Claimed> =
                self.claims.iter().filter(|(_, l)| l.request.is_some()).map(|(c, _)| *c).collect();
            for claimed in unanswered {
                if let Some(&local) = self.claims.get(&claimed) {
                    self.set(claimed, Local { at: now, wait: RETRANSMIT, ..local });
                }
            }
        }
    }

    /// The next message to send now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Repr> {
        let &(_, claimed) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        let local = *self.claims.get(&claimed)?;
        self.request += 1;
        let wait = Duration(local.wait.0 * 2).min(SLOWEST);
        self.is_silent |= wait > NEW;
        self.set(claimed, Local { at: now + local.wait, wait, request: Some(self.request), ..local });
        let (kind, version) = match local.state {
            State::Claim(_) if local.modest => (Kind::Register, MODEST),
            State::Claim(version) => (Kind::Register, version),
            State::Leave => (Kind::Unregister, 0),
        };
        Some(Repr {
            kind,
            status: Status::Done,
            mac: claimed.station.mac,
            ip: claimed.address.map_or(IpAddr::V4(local.ip), IpAddr::V6),
            server: self.server,
            location: self.server,
            epoch: self.epoch,
            vni: claimed.station.vni,
            version,
            request: self.request,
        })
    }

    /// When the next message is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Takes a genuine message from the controller; returns whether it answered a message of this server.
    pub fn handle(&mut self, now: Instant, message: &Repr) -> bool {
        if message.kind == Kind::Changed {
            let station = Claimed::station(StationId { vni: message.vni, mac: message.mac });
            // The station's old server is informed too when another server has claimed the station.
            let elsewhere = message.location != self.server && !message.location.is_unspecified();
            let granted = self.claims.get(&station).is_some_and(|l| match l.state {
                State::Claim(version) => version != 0 && version < message.version,
                State::Leave => false,
            });
            if elsewhere && granted && message.epoch == self.epoch {
                self.lose(station, Lost::Moved);
            }
            return false;
        }
        let claimed = Claimed::of(message);
        let Some(&local) = self.claims.get(&claimed).filter(|l| l.request == Some(message.request)) else {
            return false;
        };
        let local = Local { request: None, ..local };
        let again = |state, after: Duration| Local { state, at: now + after, wait: RETRANSMIT, ..local };
        match (message.status, local.state) {
            (Status::Stale, State::Claim(_)) => {
                // After a restart the controller does not know the versions that it granted before.
                let state = if message.epoch == self.epoch { local.state } else { State::Claim(0) };
                self.heard_of(message);
                self.set(claimed, again(state, Duration::ZERO));
            }
            (Status::Stale, State::Leave) => {
                self.heard_of(message);
                self.set(claimed, again(State::Leave, Duration::ZERO));
            }
            (Status::Done, State::Claim(_)) => self.set(claimed, again(State::Claim(message.version), RENEW)),
            (Status::Busy, state) => self.set(claimed, again(state, RETRANSMIT)),
            (Status::Full, State::Claim(version)) => self.set(claimed, again(State::Claim(version), RENEW)),
            (Status::Moved | Status::Conflict, State::Claim(_)) => {
                self.lose(claimed, if message.status == Status::Moved { Lost::Moved } else { Lost::Conflict });
            }
            (_, State::Leave) => self.forget(claimed),
            (Status::Unknown, State::Claim(_)) => self.set(claimed, again(State::Claim(0), RETRANSMIT)),
        }
        true
    }

    fn heard_of(&mut self, message: &Repr) {
        self.epoch = message.epoch;
        self.request = self.request.max(message.version);
    }

    /// The next station that is no longer registered for this server.
    pub fn poll_lost(&mut self) -> Option<(StationId, Lost)> {
        self.lost.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_wire::ethernet::MacAddress;

    #[test]
    fn a_station_is_new_until_the_controller_answers_or_is_silent() {
        let server = Ipv4Addr::new(192, 0, 2, 1);
        let station = StationId { vni: 1, mac: MacAddress::local(7) };
        let mut now = Instant::ZERO + Duration::from_secs(1);
        let mut registrar = Registrar::new(server, 1);
        assert_eq!(registrar.is_new(now, station), None, "it is no station of this server");
        registrar.add(now, station, Ipv4Addr::new(10, 0, 0, 7));
        assert_eq!(registrar.is_new(now, station), Some(true));
        let asked = registrar.poll_transmit(now).unwrap();
        assert_eq!(registrar.is_new(now, station), Some(true));
        assert!(registrar.handle(now, &Repr { kind: Kind::Answer, version: 5, ..asked }));
        assert_eq!(registrar.is_new(now, station), Some(false));

        let mut registrar = Registrar::new(server, 1);
        registrar.add(now, station, Ipv4Addr::new(10, 0, 0, 7));
        let claimed = now;
        while registrar.is_new(now, station) == Some(true) {
            now = registrar.poll_timeout().unwrap();
            registrar.poll_transmit(now).unwrap();
            assert!(now.since(claimed) < Duration::from_secs(1), "it is new for ever");
        }
        assert_eq!(now.since(claimed), Duration::from_ms(150));
        // The controller speaks again, about something else: the claim is sent at once, and frames wait for the answer.
        registrar.heard(now);
        assert_eq!(registrar.is_new(now, station), Some(true));
        assert!(registrar.poll_transmit(now).is_some());
        registrar.heard(now);
        assert_eq!(registrar.poll_transmit(now), None, "it was not silent again");
    }
}
