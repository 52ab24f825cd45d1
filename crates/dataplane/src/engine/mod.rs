//! The loop: takes frames from ports, asks [`Vale`] where they go, and copies them there when there is room.
//!
//! A frame stays in its sender's memory until it is delivered. What is decided about it is decided on a copy of its first
//! bytes, which are also what is delivered: a program that changes a frame after it was checked changes its payload only.
//! Between two ports in shared memory, or two guests, a frame is copied once, straight; between all others by way of memory
//! that nobody else can write.

mod attached;
mod finish;
mod flood;
mod header;
mod learn;
mod offer;
mod pace;
mod receiver_queues;
mod report;
mod run;
mod stations;
mod turn;

use crate::port::{Inside, OverlayChange, Port};
use crate::remote::{Jobs, Remote};
use crate::shm;
use crate::tap::Tap;
use crate::vhost;
use attached::{Attached, Kind, Lent};
use pace::Pace;
pub use report::{Access, Event, Happened, PlugError, PortReport};
use sluicenet_node::gate::StationPolicy;
use sluicenet_node::vale::{Action, Counters, Vale, ValeConfig};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use stations::KnownStations;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Events that may wait for whoever reads them; what they tell is counted at the ports in any case.
const EVENTS_MAX: usize = 4096;

/// Room for the largest frame a guest may send to be cut into segments, and its headers.
const SCRATCH_BYTES: usize = 1 << 17;
/// A switch and its ports.
pub struct Engine {
    vale: Vale<Lent>,
    ports: Vec<Option<Attached>>,
    /// Beyond this port nobody ever was.
    upto: usize,
    /// Frames the switch dropped for want of room, to be given back.
    dropped: Vec<Lent>,
    /// A frame between two ports, where nobody else can write it.
    scratch: Box<[u8]>,
    watched: Instant,
    started: std::time::Instant,
    jobs: Jobs<Engine>,
    sleeps: u64,
    /// Grows with every change after which a frame that had to wait may not have to any more.
    changes: u64,
    events: Option<SyncSender<Event>>,
    /// Nothing is taken in before [`Engine::begin`].
    waits: bool,
    /// Nothing more is taken in.
    closing: bool,
    /// Whose frames are taken first, and a bit for each whose frame a receiver did not admit in this turn.
    first: usize,
    turned_away: u64,
}

impl Engine {
    /// A switch of up to `ports` (1 to 64), nobody at them.
    pub fn new(ports: usize, config: ValeConfig) -> Engine {
        Engine {
            vale: Vale::new(ports, config),
            ports: (0..ports).map(|_| None).collect(),
            upto: 0,
            dropped: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            watched: Instant::ZERO,
            started: std::time::Instant::now(),
            jobs: Jobs::default(),
            sleeps: 0,
            changes: 0,
            events: None,
            waits: false,
            closing: false,
            first: 0,
            turned_away: 0,
        }
    }

    /// Has no port take its turn before [`Engine::begin`]: those that are plugged one after the other see no frame for one that is
    /// still to come, and hold back whoever they hold.
    pub fn wait(&mut self) {
        self.waits = true;
    }

    /// Ports take their turns.
    pub fn begin(&mut self) {
        self.waits = false;
        self.watched = self.now();
    }

    /// A handle by which other threads reach the switch while it runs.
    pub fn remote(&mut self) -> io::Result<Remote<Engine>> {
        self.jobs.remote()
    }

    /// What happens from now on.
    pub fn events(&mut self) -> Receiver<Event> {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        self.events = Some(sender);
        receiver
    }

    fn tell(&self, k: usize, what: Happened) {
        if let (Some(events), Some(attached)) = (&self.events, &self.ports[k]) {
            // Who does not read does not want to know.
            let _ = events.try_send(Event { port: attached.name.clone(), what });
        }
    }

    /// Time since the switch was made.
    pub fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_ns(self.started.elapsed().as_nanos() as u64)
    }

    /// A port at which nobody is or was.
    pub fn vacant_port(&self) -> Option<usize> {
        self.ports.iter().position(Option::is_none)
    }

    /// How many ports there may be.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// The port of that name at which somebody is.
    pub fn port_named(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|p| p.as_ref().is_some_and(|p| p.present && p.name == name))
    }

    /// Makes a port in shared memory with `buffers` of them (a power of two from 2 to 65,536); nobody may be at it.
    pub fn plug_shm(&mut self, k: usize, name: &str, buffers: u32) -> io::Result<shm::Access> {
        self.check_vacant(k)?;
        let (mut port, access) = shm::Port::create(name, buffers)?;
        let (action, detection_time, restoration_time) = self.vale.watchdog();
        port.set_watchdog(action, detection_time, restoration_time);
        self.attach(k, name, Kind::Shm(port), Access::default());
        Ok(access)
    }

    /// Takes a guest's port into service; nobody may be there.
    pub fn plug_vhost(&mut self, k: usize, name: &str, port: vhost::Port, access: Access) -> Result<(), PlugError> {
        self.check_vacant(k)?;
        self.attach(k, name, Kind::Vhost(Box::new(port)), access);
        Ok(())
    }

    /// Takes any other port into service; nobody may be there.
    pub fn plug(&mut self, k: usize, name: &str, port: Box<dyn Port>, access: Access) -> Result<(), PlugError> {
        self.check_vacant(k)?;
        self.attach(k, name, Kind::Other(port), access);
        Ok(())
    }

    fn check_vacant(&self, k: usize) -> Result<(), PlugError> {
        match self.ports.get(k) {
            None => Err(PlugError::NoSuchPort(k)),
            Some(Some(_)) => Err(PlugError::Occupied(k)),
            Some(None) => Ok(()),
        }
    }

    fn attach(&mut self, k: usize, name: &str, kind: Kind, access: Access) {
        let attached = Attached {
            name: name.to_owned(),
            plain: matches!(kind, Kind::Shm(_)),
            kind,
            access: Access::default(),
            bytes_from: 0,
            bytes_to: 0,
            tap: None,
            extra: Vec::new(),
            present: true,
            blocked: false,
            waits_since: None,
            turned_away_by: None,
            given: Vec::new(),
            known: KnownStations::default(),
            cut: [0; 8],
            pace: None,
        };
        self.ports[k] = Some(attached);
        self.upto = self.upto.max(k + 1);
        self.changes += 1;
        self.set_access(k, access);
        self.vale.plug(k);
    }

    /// Says what the machine at port `k` may send; whether anybody is there.
    pub fn set_access(&mut self, k: usize, access: Access) -> bool {
        let Some(attached) = self.ports[k].as_mut() else { return false };
        attached.access = access;
        attached.settle();
        true
    }

    /// Has frames go to port `k` no faster than at `rate`, which counts their bytes and check sequences; whether anybody is there.
    pub fn set_rate(&mut self, k: usize, rate: Option<Rate>) -> bool {
        self.changes += 1;
        let Some(attached) = self.ports[k].as_mut() else { return false };
        if attached.pace.map(|pace| pace.rate()) != rate {
            attached.pace = rate.map(Pace::new);
        }
        true
    }

    /// Has somebody look on at port `k`; whether anybody is there and nobody looks on already.
    pub fn set_tap(&mut self, k: usize, tap: Tap) -> bool {
        self.sweep_taps();
        let Some(attached) = self.ports[k].as_mut().filter(|a| a.present && a.tap.is_none()) else { return false };
        attached.tap = Some(Box::new(tap));
        attached.settle();
        true
    }

    /// Forgets those who look on no more.
    pub fn sweep_taps(&mut self) {
        for attached in self.ports.iter_mut().flatten().filter(|a| a.tap.as_ref().is_some_and(|t| t.is_closed())) {
            attached.tap = None;
            attached.settle();
        }
    }

    /// Takes a port away. What it sent is still delivered; what waits for it is dropped by name, and so is what comes for a station
    /// that was given to it.
    pub fn unplug(&mut self, k: usize) {
        self.changes += 1;
        self.unlearn(k);
        let Engine { vale, ports, dropped, .. } = self;
        if let Some(attached) = ports[k].as_mut().filter(|a| a.present) {
            attached.present = false;
            vale.unplug(k, &mut |frame| dropped.push(frame));
            // What is inside it ends with it.
            let mut inside = attached.kind.get().inside();
            inside.lost.count_many(DropReason::PortGone, inside.waiting.into(), 0);
            vale.settle(k, &inside.lost, &inside.refused);
            Engine::capture_dropped(ports, k, dropped, DropReason::PortGone);
            if let Some(attached) = ports[k].as_mut() {
                attached.tap = None;
            }
            Engine::give_back_dropped(ports, dropped);
            if ports[k].as_ref().is_some_and(|a| a.kind.get().lent() == 0) {
                ports[k] = None;
            }
        }
    }

    /// Gives a station to a port; whether the table had room.
    pub fn give(&mut self, mac: [u8; 6], domain: u16, k: usize) -> bool {
        let now = self.now();
        self.changes += 1;
        let room = self.vale.give(now, Station::new(mac, domain), k);
        if let Some(attached) = self.ports[k].as_mut().filter(|_| room) {
            attached.given.push((mac, domain));
        }
        room
    }

    /// Keeps a station for a port at which nobody is yet: what comes for it is dropped. Whether the table had room.
    pub fn reserve(&mut self, mac: [u8; 6], domain: u16) -> bool {
        let now = self.now();
        self.changes += 1;
        self.vale.reserve(now, Station::new(mac, domain))
    }

    /// Takes back a station that was given to a port at which nobody is any more, or was kept for one.
    pub fn release(&mut self, mac: [u8; 6], domain: u16) {
        self.changes += 1;
        self.vale.release(Station::new(mac, domain));
    }

    /// Says to every port that leads elsewhere which station is at a port here, or no longer is.
    pub fn announce(&mut self, domain: u16, mac: [u8; 6], address: Ipv4Addr, here: bool) {
        let now = self.now();
        for attached in self.ports.iter_mut().flatten().filter(|a| a.present) {
            if let Kind::Other(port) = &mut attached.kind {
                port.announce(now, domain, mac, address, here);
            }
        }
    }

    /// Says which stations may talk to each other, to every port that leads elsewhere, too; all may where nothing is said. What waits
    /// already goes on.
    pub fn set_policy(&mut self, policy: Option<Arc<StationPolicy>>) {
        for attached in self.ports.iter_mut().flatten().filter(|a| a.present) {
            if let Kind::Other(port) = &mut attached.kind {
                port.set_policy(policy.clone());
            }
        }
        self.vale.set_policy(policy);
        self.changes += 1;
    }

    /// Says to every port that leads elsewhere what became of its servers and networks.
    pub fn change_overlay(&mut self, change: &OverlayChange) {
        for attached in self.ports.iter_mut().flatten().filter(|a| a.present) {
            if let Kind::Other(port) = &mut attached.kind {
                port.change_overlay(change);
            }
        }
        if !change.bound.is_empty() {
            self.tell_again();
        }
    }

    /// Bytes of the largest IP packet that goes wherever a port leads; `None` where none leads elsewhere.
    pub fn mtu(&self) -> Option<u32> {
        self.ports.iter().flatten().filter(|a| a.present).filter_map(|a| a.kind.get().mtu()).min()
    }

    /// Learns which machine is at port `k` before it sends anything, if the port knows.
    pub fn meet(&mut self, k: usize) {
        let now = self.now();
        let Some(attached) = self.ports[k].as_ref().filter(|a| a.present) else { return };
        if let Some(mac) = attached.kind.get().station() {
            let station = Station::new(mac, attached.access.domain.unwrap_or(0));
            self.changes += 1;
            self.vale.learn(now, station, k);
        }
    }

    /// Forgets the stations behind port `k`.
    pub fn forget(&mut self, k: usize) {
        self.changes += 1;
        self.unlearn(k);
        if let Some(attached) = &mut self.ports[k] {
            attached.given.clear();
        }
        self.vale.forget(k);
    }

    /// What happened at port `k`, if anybody is there.
    pub fn report(&self, k: usize) -> Option<PortReport> {
        let attached = self.ports[k].as_ref()?;
        let mut own = Vec::new();
        attached.kind.get().counters(&mut |name, value| own.push((name, value)));
        let inside = self.inside_of(k);
        let mut counters = *self.vale.counters(k);
        counters.delivered -= inside.undelivered();
        counters.dropped.add(&inside.lost);
        counters.refused.add(&inside.refused);
        Some(PortReport {
            name: attached.name.clone(),
            present: attached.present,
            counters,
            inside: inside.waiting,
            bytes_from: attached.bytes_from,
            bytes_to: attached.bytes_to,
            own,
            isolated: self.vale.is_isolated(k),
            rate: attached.pace.map(|pace| pace.rate()),
            output: std::array::from_fn(|p| self.vale.output_len(k, p as Priority)),
            input: std::array::from_fn(|p| self.vale.input_len(k, p as Priority)),
            lent: attached.kind.get().lent(),
            waits_for: self.vale.waits_for(k) | attached.turned_away_by.map_or(0, |by| 1 << by),
        })
    }

    /// What became of frames inside port `k`; of one that left, that is in the books already.
    fn inside_of(&self, k: usize) -> Inside {
        self.ports[k].as_ref().filter(|a| a.present).map_or(Inside::default(), |a| a.kind.get().inside())
    }

    /// What went through ports that are gone.
    pub fn gone(&self) -> Counters {
        let mut gone = *self.vale.before();
        for k in 0..self.ports.len() {
            if self.ports[k].as_ref().is_none_or(|a| !a.present) {
                gone.add(self.vale.counters(k));
            }
        }
        gone
    }

    /// Frames that wait in queues of the switch, a copy for each port.
    pub fn queued(&self) -> u64 {
        self.vale.queued()
    }

    /// Frames that were handed to ports and wait there for their other sides.
    pub fn inside(&self) -> u64 {
        (0..self.ports.len()).map(|k| u64::from(self.inside_of(k).waiting)).sum()
    }

    /// Times the loop went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Changes the watchdog while traffic runs; what is isolated stays so until it moves.
    pub fn set_watchdog(&mut self, action: Action, detection_time: Duration, restoration_time: Duration) {
        self.vale.set_watchdog(action, detection_time, restoration_time);
        for attached in self.ports.iter_mut().flatten() {
            attached.kind.get_mut().set_watchdog(action, detection_time, restoration_time);
        }
    }

    /// Frames accepted, delivered and dropped; panics when they, what is [queued](Engine::queued) and what is [inside](Engine::inside)
    /// ports do not add up, which only a fault of this program can cause.
    pub fn ledger(&self) -> (u64, u64, u64) {
        let (accepted, mut delivered, mut dropped) = self.vale.ledger();
        let mut waiting = self.vale.queued();
        for k in 0..self.ports.len() {
            let inside = self.inside_of(k);
            let is_sound = self.ports[k].as_ref().is_none_or(|attached| attached.kind.get().is_sound());
            assert!(is_sound, "the books of port {k} do not balance inside");
            // A port cannot hold and lose more than it was handed.
            assert!(inside.undelivered() <= self.vale.counters(k).delivered, "the books of a port do not balance");
            delivered -= inside.undelivered();
            dropped += inside.lost.total_frames();
            waiting += u64::from(inside.waiting);
        }
        assert_eq!(accepted, delivered + dropped + waiting, "the switch's books do not balance");
        (accepted, delivered, dropped)
    }
}
