//! The loop: takes frames from ports, asks [`Vale`] where they go, and copies them there when there is room.
//! A frame stays in its sender's memory until it is delivered. The switch decides on a private copy of its first bytes and
//! delivers this copy. So a program that changes a frame after the check changes only its payload.
//!
//! Between two ports in shared memory, or between two guests, a frame is copied once, directly. Between all others it is copied
//! through private memory.

mod attached;
mod finish;
mod flood;
mod guarded;
mod header;
mod learn;
mod offer;
mod pace;
mod receiver_queues;
mod report;
mod round;
mod run;
mod stations;

use crate::clock::Clock;
use crate::port::{Inside, OverlayChange, Port};
use crate::remote::{Jobs, Remote};
use crate::shm;
use crate::tap::Tap;
use crate::vhost;
use attached::{Attached, Kind, Lent, Rules};
use pace::Pace;
pub use report::{Access, Event, Happened, PlugError, PortReport};
use sluicenet_node::gate::StationPolicy;
use sluicenet_node::vale::{Counters, Vale, ValeConfig, WatchdogConfig};
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

/// Events that may wait for their reader; further ones are lost, but the ports count them too.
const EVENTS_MAX: usize = 4096;

/// Room for the largest frame that a guest may leave to be cut into segments, and for its headers.
const SCRATCH_BYTES: usize = 1 << 17;
/// A switch and its ports.
pub struct Engine {
    vale: Vale<Lent>,
    ports: Vec<Option<Attached>>,
    /// One more than the highest port number that was ever used.
    upto: usize,
    /// Frames that the switch dropped because a queue was full; their buffers are to be given back.
    dropped: Vec<Lent>,
    /// A frame on its way between two ports, in private memory.
    scratch: Box<[u8]>,
    watched: Instant,
    /// When the loop last became idle after a frame had moved.
    moved: Instant,
    /// When a part of the forwarding table was last searched for old stations.
    aged: Instant,
    clock: Clock,
    jobs: Jobs<Engine>,
    sleeps: u64,
    /// Incremented with every change after which a waiting frame may have room.
    changes: u64,
    events: Option<SyncSender<Event>>,
    /// No frame is taken in before [`Engine::begin`].
    waits: bool,
    /// No further frame is taken in.
    closing: bool,
    /// The port whose frames are taken first, and the next one: the first after it whose frame was not admitted.
    first: usize,
    turned_away: Option<usize>,
}

impl Engine {
    /// A switch of up to `ports` ports (1 to [`PORTS_MAX`](sluicenet_node::vale::PORTS_MAX)), all vacant.
    pub fn new(ports: usize, config: ValeConfig) -> Engine {
        Engine {
            vale: Vale::new(ports, config),
            ports: (0..ports).map(|_| None).collect(),
            upto: 0,
            dropped: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            watched: Instant::ZERO,
            moved: Instant::ZERO,
            aged: Instant::ZERO,
            clock: Clock::start(),
            jobs: Jobs::default(),
            sleeps: 0,
            changes: 0,
            events: None,
            waits: false,
            closing: false,
            first: 0,
            turned_away: None,
        }
    }

    /// Takes no frame in before [`Engine::begin`]. Ports that are plugged one after the other then see no frame for a later
    /// port, and their senders wait.
    pub fn wait(&mut self) {
        self.waits = true;
    }

    /// Starts to take frames in.
    pub fn begin(&mut self) {
        self.waits = false;
        self.watched = self.now();
    }

    /// A handle by which other threads reach the switch while it runs.
    pub fn remote(&mut self) -> io::Result<Remote<Engine>> {
        self.jobs.remote()
    }

    /// The events from now on.
    pub fn events(&mut self) -> Receiver<Event> {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        self.events = Some(sender);
        receiver
    }

    fn tell(&self, k: usize, what: Happened) {
        if let (Some(events), Some(attached)) = (&self.events, &self.ports[k]) {
            // If the channel is full or closed, the event is dropped.
            let _ = events.try_send(Event { port: attached.name.clone(), what });
        }
    }

    /// Time since the switch was created.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// A vacant port.
    pub fn vacant_port(&self) -> Option<usize> {
        self.ports.iter().position(Option::is_none)
    }

    /// The highest possible number of ports.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// The port in service with this name.
    pub fn port_named(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|p| p.as_ref().is_some_and(|p| p.present && p.name == name))
    }

    /// The name of the port in service with this number.
    pub fn port_name(&self, k: usize) -> Option<&str> {
        self.ports.get(k)?.as_ref().filter(|port| port.present).map(|port| port.name.as_str())
    }

    /// Puts a new port in shared memory with `buffers` buffers (a power of two from 2 to 65,536) into service; port `k` must be
    /// vacant.
    pub fn plug_shm(&mut self, k: usize, name: &str, buffers: u32) -> io::Result<shm::Access> {
        self.check_vacant(k)?;
        let (mut port, access) = shm::Port::create(name, buffers)?;
        port.set_watchdog(self.vale.watchdog());
        self.attach(k, name, Kind::Shm(port), Access::default());
        Ok(access)
    }

    /// Puts a guest's port into service; port `k` must be vacant.
    pub fn plug_vhost(&mut self, k: usize, name: &str, port: vhost::Port, access: Access) -> Result<(), PlugError> {
        self.check_vacant(k)?;
        self.attach(k, name, Kind::Vhost(Box::new(port)), access);
        Ok(())
    }

    /// Puts a port of any other kind into service; port `k` must be vacant.
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

    fn attach(&mut self, k: usize, name: &str, mut kind: Kind, access: Access) {
        kind.get_mut().on_plug(self.clock);
        let attached = Attached {
            name: name.to_owned(),
            rules: Rules::None,
            plain: matches!(kind, Kind::Shm(_)),
            kind,
            access: Access::default(),
            guarded: None,
            bytes_from: 0,
            bytes_to: 0,
            tap: None,
            extra: Vec::new(),
            present: true,
            blocked: false,
            waits_since: None,
            stuck: false,
            turned_away_by: None,
            given: Vec::new(),
            known: KnownStations::default(),
            cut: [0; 8],
            pace: None,
            send_pace: None,
            forger_until: None,
            is_limited: false,
        };
        self.ports[k] = Some(attached);
        self.upto = self.upto.max(k + 1);
        self.changes += 1;
        self.set_access(k, access);
        self.vale.plug(k);
    }

    /// Sets the permissions of the endpoint at port `k`; returns whether there is such a port.
    pub fn set_access(&mut self, k: usize, access: Access) -> bool {
        let Some(attached) = self.ports[k].as_mut() else { return false };
        attached.access = access;
        attached.settle();
        true
    }

    /// Limits the rate at which port `k` receives frames, with their check sequences; returns whether there is an endpoint.
    pub fn set_rate(&mut self, k: usize, rate: Option<Rate>) -> bool {
        self.changes += 1;
        let Some(attached) = self.ports[k].as_mut() else { return false };
        if attached.pace.map(|pace| pace.rate()) != rate {
            attached.pace = rate.map(Pace::new);
        }
        true
    }

    /// Limits the rate at which port `k` sends frames, with their check sequences; returns whether there is an endpoint. Frames
    /// above it wait with their sender.
    pub fn set_send_rate(&mut self, k: usize, rate: Option<Rate>) -> bool {
        self.changes += 1;
        let Some(attached) = self.ports[k].as_mut() else { return false };
        if attached.send_pace.map(|pace| pace.rate()) != rate {
            attached.send_pace = rate.map(Pace::new);
            attached.settle_turns();
        }
        true
    }

    /// Captures the frames at port `k`; returns whether there is an endpoint and no other capture.
    pub fn set_tap(&mut self, k: usize, tap: Tap) -> bool {
        self.sweep_taps();
        let Some(attached) = self.ports[k].as_mut().filter(|a| a.present && a.tap.is_none()) else { return false };
        attached.tap = Some(Box::new(tap));
        attached.settle();
        true
    }

    /// Removes captures that have ended.
    pub fn sweep_taps(&mut self) {
        for attached in self.ports.iter_mut().flatten().filter(|a| a.tap.as_ref().is_some_and(|t| t.is_closed())) {
            attached.tap = None;
            attached.settle();
        }
    }

    /// Removes a port. Its frames in the switch are still delivered. Frames that wait for it are dropped by name, and so are
    /// later frames for its configured stations.
    pub fn unplug(&mut self, k: usize) {
        self.changes += 1;
        self.unlearn(k);
        let Engine { vale, ports, dropped, .. } = self;
        if let Some(attached) = ports[k].as_mut().filter(|a| a.present) {
            attached.present = false;
            vale.unplug(k, &mut |frame| dropped.push(frame));
            // Frames inside the port are lost with it.
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

    /// Assigns a station to a port; returns whether the table had room.
    pub fn give(&mut self, mac: [u8; 6], domain: u16, k: usize) -> bool {
        let now = self.now();
        self.changes += 1;
        let room = self.vale.give(now, Station::new(mac, domain), k);
        if let Some(attached) = self.ports[k].as_mut().filter(|_| room) {
            attached.given.push((mac, domain));
        }
        room
    }

    /// Reserves a station for a port that is not in service yet: frames for it are dropped. Returns whether the table had room.
    pub fn reserve(&mut self, mac: [u8; 6], domain: u16) -> bool {
        let now = self.now();
        self.changes += 1;
        self.vale.reserve(now, Station::new(mac, domain))
    }

    /// Releases a reserved station, or a station of a port that is no longer in service.
    pub fn release(&mut self, mac: [u8; 6], domain: u16) {
        self.changes += 1;
        self.vale.release(Station::new(mac, domain));
    }

    /// Tells every port to other servers that a station is at a port here, or no longer.
    pub fn announce(&mut self, domain: u16, mac: [u8; 6], address: Ipv4Addr, here: bool) {
        let now = self.now();
        for attached in self.ports.iter_mut().flatten().filter(|a| a.present) {
            if let Kind::Other(port) = &mut attached.kind {
                port.announce(now, domain, mac, address, here);
            }
        }
    }

    /// Sets the stations that may communicate, also for every port to other servers; `None` allows all. Waiting frames are
    /// still delivered.
    pub fn set_policy(&mut self, policy: Option<Arc<StationPolicy>>) {
        for attached in self.ports.iter_mut().flatten().filter(|a| a.present) {
            if let Kind::Other(port) = &mut attached.kind {
                port.set_policy(policy.clone());
            }
        }
        self.vale.set_policy(policy);
        self.changes += 1;
    }

    /// Tells every port to other servers how servers and networks of its overlay have changed.
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

    /// Bytes of the largest IP packet that every port to other servers carries; `None` if there is no such port.
    pub fn mtu(&self) -> Option<u32> {
        self.ports.iter().flatten().filter(|a| a.present).filter_map(|a| a.kind.get().mtu()).min()
    }

    /// Learns the station at port `k` before it sends, if the port knows it.
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

    /// The state and the counters of port `k`, if it is or was in service.
    pub fn report(&self, k: usize) -> Option<PortReport> {
        let attached = self.ports[k].as_ref()?;
        let mut own = Vec::new();
        attached.kind.get().counters(&mut |name, value| own.push((name, value)));
        let inside = self.inside_of(k);
        let mut waits_for = self.vale.waits_for(k);
        attached.turned_away_by.iter().for_each(|&by| waits_for.insert(by));
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
            stuck: self.vale.is_stuck(k),
            isolated: self.vale.is_isolated(k),
            rate: attached.pace.map(|pace| pace.rate()),
            send_rate: attached.send_pace.map(|pace| pace.rate()),
            output: std::array::from_fn(|p| self.vale.output_len(k, p as Priority)),
            input: std::array::from_fn(|p| self.vale.input_len(k, p as Priority)),
            lent: attached.kind.get().lent(),
            waits_for,
        })
    }

    /// The frames inside port `k`; for a removed port they are already part of the switch's counters.
    fn inside_of(&self, k: usize) -> Inside {
        self.ports[k].as_ref().filter(|a| a.present).map_or(Inside::default(), |a| a.kind.get().inside())
    }

    /// The sum of the counters of removed ports.
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

    /// Frames that were delivered to ports and wait there for the other side.
    pub fn inside(&self) -> u64 {
        (0..self.ports.len()).map(|k| u64::from(self.inside_of(k).waiting)).sum()
    }

    /// Times the loop went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Changes the time after which a silent station is forgotten.
    pub fn set_aging_time(&mut self, aging_time: Option<Duration>) {
        self.vale.set_aging_time(aging_time);
    }

    /// The forwarding table, in no order, with the time since a learned station was last heard.
    pub fn stations(&self) -> impl Iterator<Item = (Station, u16, Option<Duration>)> + '_ {
        let now = self.now();
        self.vale.stations().map(move |known| (known.station, known.port, known.heard.map(|heard| now.since(heard))))
    }

    /// Changes the watchdog while traffic runs. An isolated port stays isolated until it accepts frames again.
    pub fn set_watchdog(&mut self, watchdog: WatchdogConfig) {
        self.vale.set_watchdog(watchdog);
        for attached in self.ports.iter_mut().flatten() {
            attached.kind.get_mut().set_watchdog(watchdog);
        }
    }

    /// Frames accepted, delivered and dropped. Panics if these, the [queued](Engine::queued) frames and those
    /// [inside](Engine::inside) ports do not add up, which is a bug of this program.
    pub fn ledger(&self) -> (u64, u64, u64) {
        let (accepted, mut delivered, mut dropped) = self.vale.ledger();
        let mut waiting = self.vale.queued();
        for k in 0..self.ports.len() {
            let inside = self.inside_of(k);
            let is_sound = self.ports[k].as_ref().is_none_or(|attached| attached.kind.get().is_sound());
            assert!(is_sound, "port {k} does not account for every frame inside it");
            // A port cannot have more frames inside than were delivered to it.
            assert!(
                inside.undelivered() <= self.vale.counters(k).delivered,
                "a port has more frames inside than it received"
            );
            delivered -= inside.undelivered();
            dropped += inside.lost.total_frames();
            waiting += u64::from(inside.waiting);
        }
        assert_eq!(accepted, delivered + dropped + waiting, "the switch does not account for every frame");
        (accepted, delivered, dropped)
    }
}
