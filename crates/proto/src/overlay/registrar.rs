//! A server's side of the mapping: it registers its stations with the controller, again and again, until the controller
//! reports another location.

use super::controller::{MODEST, RETRANSMIT};
use super::mapping::StationId;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::Ipv4Addr;
use sluicenet_wire::controller::{Kind, Repr, Status};

/// Time between renewals, and so the longest time for which a restarted controller does not know a station.
pub const RENEW: Duration = Duration::from_secs(5);
/// Longest time between two attempts while the controller is silent.
const SLOWEST: Duration = Duration::from_ms(640);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The station is to be registered; the version of the earlier registration, or 0.
    Claim(u64),
    /// The station is to be removed.
    Leave,
}

#[derive(Clone, Copy, Debug)]
struct Local {
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
    stations: BTreeMap<StationId, Local>,
    deadlines: BTreeSet<(Instant, StationId)>,
    lost: VecDeque<(StationId, Lost)>,
}

impl Registrar {
    /// A server without stations. Its messages are numbered from `first_request`, which must be above all earlier numbers:
    /// nanoseconds of the wall clock will do.
    pub fn new(server: Ipv4Addr, first_request: u64) -> Registrar {
        Registrar {
            server,
            epoch: 0,
            request: first_request,
            stations: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            lost: VecDeque::new(),
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
        let known = self.stations.get(&station).filter(|l| l.state != State::Leave);
        if known.is_none_or(|l| l.modest && l.ip != ip) {
            self.claim(now, station, ip, true);
        }
    }

    /// A station that was [learned](Registrar::learn) no longer lives here.
    pub fn unlearn(&mut self, now: Instant, station: StationId) {
        if self.stations.get(&station).is_some_and(|l| l.modest) {
            self.remove(now, station);
        }
    }

    fn claim(&mut self, now: Instant, station: StationId, ip: Ipv4Addr, modest: bool) {
        self.set(station, Local { ip, modest, state: State::Claim(0), at: now, wait: RETRANSMIT, request: None });
    }

    /// A station is no longer on this server.
    pub fn remove(&mut self, now: Instant, station: StationId) {
        if let Some(&local) = self.stations.get(&station) {
            self.set(station, Local { state: State::Leave, at: now, wait: RETRANSMIT, request: None, ..local });
        }
    }

    /// The IPv4 address of a station on this server.
    pub fn station(&self, station: StationId) -> Option<Ipv4Addr> {
        self.stations.get(&station).filter(|l| l.state != State::Leave).map(|l| l.ip)
    }

    fn set(&mut self, station: StationId, local: Local) {
        if let Some(old) = self.stations.insert(station, local) {
            self.deadlines.remove(&(old.at, station));
        }
        self.deadlines.insert((local.at, station));
    }

    fn forget(&mut self, station: StationId) {
        if let Some(old) = self.stations.remove(&station) {
            self.deadlines.remove(&(old.at, station));
        }
    }

    /// The next message to send now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Repr> {
        let &(_, station) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        let local = *self.stations.get(&station)?;
        self.request += 1;
        let wait = Duration(local.wait.0 * 2).min(SLOWEST);
        self.set(station, Local { at: now + local.wait, wait, request: Some(self.request), ..local });
        let (kind, version) = match local.state {
            State::Claim(_) if local.modest => (Kind::Register, MODEST),
            State::Claim(version) => (Kind::Register, version),
            State::Leave => (Kind::Unregister, 0),
        };
        Some(Repr {
            kind,
            status: Status::Done,
            mac: station.mac,
            ip: local.ip,
            server: self.server,
            location: self.server,
            epoch: self.epoch,
            vni: station.vni,
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
        let station = StationId { vni: message.vni, mac: message.mac };
        if message.kind == Kind::Changed {
            // The station's old server is informed too when another server has claimed the station.
            let elsewhere = message.location != self.server && !message.location.is_unspecified();
            let granted = self.stations.get(&station).is_some_and(|l| match l.state {
                State::Claim(version) => version != 0 && version < message.version,
                State::Leave => false,
            });
            if elsewhere && granted && message.epoch == self.epoch {
                self.forget(station);
                self.lost.push_back((station, Lost::Moved));
            }
            return false;
        }
        let Some(&local) = self.stations.get(&station).filter(|l| l.request == Some(message.request)) else {
            return false;
        };
        let local = Local { request: None, ..local };
        let again = |state, after: Duration| Local { state, at: now + after, wait: RETRANSMIT, ..local };
        match (message.status, local.state) {
            (Status::Stale, State::Claim(_)) => {
                // After a restart the controller does not know the versions that it granted before.
                let state = if message.epoch == self.epoch { local.state } else { State::Claim(0) };
                self.heard_of(message);
                self.set(station, again(state, Duration::ZERO));
            }
            (Status::Stale, State::Leave) => {
                self.heard_of(message);
                self.set(station, again(State::Leave, Duration::ZERO));
            }
            (Status::Done, State::Claim(_)) => self.set(station, again(State::Claim(message.version), RENEW)),
            (Status::Busy, state) => self.set(station, again(state, RETRANSMIT)),
            (Status::Full, State::Claim(version)) => self.set(station, again(State::Claim(version), RENEW)),
            (Status::Moved | Status::Conflict, State::Claim(_)) => {
                self.forget(station);
                let why = if message.status == Status::Moved { Lost::Moved } else { Lost::Conflict };
                self.lost.push_back((station, why));
            }
            (_, State::Leave) => self.forget(station),
            (Status::Unknown, State::Claim(_)) => self.set(station, again(State::Claim(0), RETRANSMIT)),
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
