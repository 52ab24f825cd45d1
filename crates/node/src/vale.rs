//! zVALE, the lossless switch between the machines of one server and its uplink (Crisan 2014, 4.4.2).
//!
//! It knows stations and ports, decides where each frame goes, and holds the frames back by [Algorithm 4.1](VSwitch), one
//! for each traffic class. What a frame is and over what it moves, it does not know: the caller keeps the bytes and gets
//! every frame back, to deliver it or to free it.
//!
//! - A frame for one station waits until there is room, in a lossless class; in a lossy one it is dropped by name.
//! - A frame for all of them stalls nobody: a copy for a port without room is given up by name.
//! - A port that has frames and takes none for the detection time is isolated: what waits for it, and what comes for it, is
//!   dropped by name until it has shown room for the restoration time.
//! - accepted = delivered + dropped by reason + queued, copies counted each: [`Vale::ledger`].

use alloc::vec::Vec;
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::loss::{DropReason, Drops, Full};
use sluicenet_proto::overlay::fib::{Fib, Learned, NOBODY, Station};
use sluicenet_proto::overlay::vswitch::VSwitch;
use sluicenet_proto::time::{Duration, Instant};

/// A port, counted from 0.
pub type Port = usize;

/// What the switch reads of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// For whom.
    pub destination: Station,
    /// From whom.
    pub source: Station,
    /// Traffic class.
    pub priority: Priority,
    /// Whether the destination is a control address that ends at its link.
    pub reserved: bool,
}

/// What the watchdog does about a port that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is isolated: nothing reaches it until it moves again.
    Drop,
    /// It is counted, and waited for.
    Alert,
    /// Nothing.
    Off,
}

/// How a switch is set up.
#[derive(Clone, Debug)]
pub struct ValeConfig {
    /// Frames in each queue.
    pub slots: u32,
    /// Classes whose frames wait; those of the others are dropped when there is no room.
    pub lossless: PrioritySet,
    /// Stations the table holds, and how many of them a port can make it learn.
    pub stations: usize,
    /// The share of a port; never more than an equal one, so that no port can keep another from being learned.
    pub stations_per_port: u32,
    /// Where frames for unknown stations go; without it they are flooded.
    pub uplink: Option<Port>,
    /// What becomes of a port that is stuck.
    pub action: Action,
    /// A port that has frames and takes none for so long is stuck.
    pub detection_time: Duration,
    /// An isolated port that has had room for so long is restored.
    pub restoration_time: Duration,
}

impl Default for ValeConfig {
    /// Times as SONiC's PFC watchdog has them.
    fn default() -> ValeConfig {
        ValeConfig {
            slots: 1024,
            lossless: PrioritySet::ALL,
            stations: 8192,
            stations_per_port: 1024,
            uplink: None,
            action: Action::Drop,
            detection_time: Duration::from_ms(200),
            restoration_time: Duration::from_ms(200),
        }
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To one port.
    To(Port),
    /// To every port but the one it came from: [`Vale::flood`].
    All,
    /// Nowhere; it has been counted.
    Drop(DropReason),
}

/// What went through a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames accepted from it: a copy for each port they were for.
    pub accepted: u64,
    /// Frames handed to it.
    pub delivered: u64,
    /// Times its sender was held back, because its input queue was full, and let go again.
    pub held_back: u64,
    /// Times it was found stuck.
    pub stuck: u64,
    /// Times it was isolated for that.
    pub isolated: u64,
    /// Frames that came from it and were dropped on arrival.
    pub refused: Drops,
    /// Frames for it that were dropped.
    pub dropped: Drops,
}

impl Counters {
    /// Adds those of another port.
    pub fn add(&mut self, other: &Counters) {
        self.accepted += other.accepted;
        self.delivered += other.delivered;
        self.held_back += other.held_back;
        self.stuck += other.stuck;
        self.isolated += other.isolated;
        self.refused.add(&other.refused);
        self.dropped.add(&other.dropped);
    }
}

#[derive(Clone, Copy, Debug)]
enum Health {
    /// It takes frames, or has none; since when it has had some and taken none.
    Moving(Option<Instant>),
    /// Nothing reaches it; since when it has had room.
    Isolated(Option<Instant>),
    /// Nobody is there.
    Absent,
}

#[derive(Clone, Debug)]
struct PortState {
    /// Classes with frames for it.
    ready: PrioritySet,
    /// Class served last.
    last: Priority,
    /// Its sender has to wait.
    held: bool,
    health: Health,
    counters: Counters,
}

/// The switch.
#[derive(Clone, Debug)]
pub struct Vale<F> {
    config: ValeConfig,
    fib: Fib,
    ports: Vec<PortState>,
    classes: Vec<VSwitch<F>>,
    /// At ports whose number others have now, and for stations at whose ports nobody is.
    before: Counters,
}

impl<F: Copy> Vale<F> {
    /// A switch of `ports` (1 to 64), all of them absent.
    pub fn new(ports: usize, config: ValeConfig) -> Vale<F> {
        let port = PortState {
            ready: PrioritySet::NONE,
            last: 0,
            held: false,
            health: Health::Absent,
            counters: Counters::default(),
        };
        let class = |p| VSwitch::new(ports, config.slots, config.lossless.contains(p));
        Vale {
            fib: Fib::new(
                ports,
                config.stations,
                config.stations_per_port.min((config.stations / ports.max(1)) as u32),
            ),
            ports: alloc::vec![port; ports],
            classes: (0..PRIORITIES as Priority).map(class).collect(),
            before: Counters::default(),
            config,
        }
    }

    /// Somebody is at port `k`, whose counters start anew.
    pub fn plug(&mut self, k: Port) {
        self.before.add(&core::mem::take(&mut self.ports[k].counters));
        self.ports[k].health = Health::Moving(None);
    }

    /// Nobody is at port `k` any more: `free` gets what waited for it. What comes for stations that were given to it is dropped.
    pub fn unplug(&mut self, k: Port, free: &mut impl FnMut(F)) {
        self.give_up(k, DropReason::PortGone, free);
        self.fib.leave(k as u16);
        self.ports[k].health = Health::Absent;
    }

    /// Gives a station to a port: nobody else can be it. Whether the table had room.
    pub fn give(&mut self, now: Instant, station: Station, k: Port) -> bool {
        self.fib.give(now, station, k as u16)
    }

    /// Keeps a station for a port at which nobody is yet: nobody else can be it. Whether the table had room.
    pub fn reserve(&mut self, now: Instant, station: Station) -> bool {
        self.fib.give(now, station, NOBODY)
    }

    /// Takes back a station at whose port nobody is.
    pub fn release(&mut self, station: Station) {
        self.fib.release(station);
    }

    /// Forgets the stations behind port `k`.
    pub fn forget(&mut self, k: Port) {
        self.fib.forget(k as u16);
    }

    /// Where a frame of port `j` goes. What is dropped or flooded is dealt with after that; what goes to one port is then
    /// [passed](Vale::pass) straight through or [queued](Vale::queue).
    #[inline(always)]
    pub fn route(&mut self, now: Instant, j: Port, header: &Header) -> Route {
        let learned = self.fib.learn(now, header.source, j as u16);
        if header.reserved | header.source.is_group() | (learned != Learned::Here) {
            if let Some(reason) = self.objection(header, learned) {
                return self.refuse(j, reason);
            }
        }
        if header.destination.is_group() {
            return Route::All;
        }
        let Some(k) = self.fib.lookup(header.destination).map(|k| k as Port).or(self.config.uplink) else {
            return Route::All;
        };
        if k == j {
            return self.refuse(j, DropReason::NoRoute);
        }
        match self.ports.get(k).map(|port| port.health) {
            Some(Health::Moving(_)) => Route::To(k),
            Some(Health::Isolated(_)) => self.turn_away(j, k, DropReason::Watchdog),
            Some(Health::Absent) => self.turn_away(j, k, DropReason::PortGone),
            None => self.give_to_nobody(j),
        }
    }

    /// Whether nothing waits for port `k`: a frame may be passed to it before any other.
    #[inline(always)]
    pub fn is_clear(&self, k: Port) -> bool {
        self.ports[k].ready.is_empty()
    }

    /// Frames of port `j` were handed to port `k`, for which nothing waited.
    #[inline(always)]
    pub fn pass(&mut self, j: Port, k: Port, frames: u32) {
        debug_assert!(self.is_clear(k));
        self.ports[j].counters.accepted += u64::from(frames);
        self.ports[k].counters.delivered += u64::from(frames);
    }

    /// A frame of port `j` waits for port `k`. `Err` when its input queue is full: the caller keeps it and asks again.
    /// `free` gets what is dropped for want of room in a lossy class.
    #[inline]
    pub fn queue(
        &mut self,
        now: Instant,
        j: Port,
        k: Port,
        p: Priority,
        frame: F,
        free: &mut impl FnMut(F),
    ) -> Result<(), Full<F>> {
        let Vale { classes, ports, config, .. } = self;
        let uplink = config.uplink;
        let sent = classes[p as usize].send(j, k, frame, &mut |k, frame| {
            ports[k].counters.dropped.count(full(uplink, k), 1);
            free(frame);
        });
        // However often it asks meanwhile.
        let held = core::mem::replace(&mut ports[j].held, sent.is_err());
        if sent.is_err() {
            ports[j].counters.held_back += u64::from(!held);
            return sent;
        }
        ports[j].counters.accepted += 1;
        ports[k].ready.insert(p);
        if let Health::Moving(None) = ports[k].health {
            ports[k].health = Health::Moving(Some(now));
        }
        Ok(())
    }

    /// Port `k` does not admit a frame of port `j` now, for whose receiver behind it enough waits: whether the frame waits with its
    /// sender, for whom that may be nothing `new`. In a lossy class it is dropped.
    #[cold]
    pub fn hold_back(&mut self, j: Port, k: Port, p: Priority, new: bool) -> bool {
        if self.config.lossless.contains(p) {
            self.ports[j].counters.held_back += u64::from(new);
            return true;
        }
        self.turn_away(j, k, full(self.config.uplink, k));
        false
    }

    #[cold]
    fn objection(&self, header: &Header, learned: Learned) -> Option<DropReason> {
        if header.reserved {
            return Some(DropReason::Reserved);
        }
        if header.source.is_group() {
            return Some(DropReason::Malformed);
        }
        // What could not be learned is forwarded all the same; answers to it are flooded.
        matches!(learned, Learned::Elsewhere(_)).then_some(DropReason::ForgedSource)
    }

    /// Queues a copy of a frame of port `j` for every other port of `members` (one bit each) with room; returns how many.
    #[cold]
    #[inline(never)]
    pub fn flood(&mut self, now: Instant, j: Port, p: Priority, frame: F, members: u64) -> u32 {
        let mut copies = 0;
        for k in (0..self.ports.len()).filter(|&k| k != j && members >> k & 1 != 0) {
            match self.ports[k].health {
                Health::Moving(_) => {}
                Health::Isolated(_) => {
                    self.turn_away(j, k, DropReason::Watchdog);
                    continue;
                }
                Health::Absent => continue,
            }
            self.ports[j].counters.accepted += 1;
            let port = &mut self.ports[k];
            match self.classes[p as usize].offer(k, frame) {
                Ok(()) => {
                    port.ready.insert(p);
                    if let Health::Moving(None) = port.health {
                        port.health = Health::Moving(Some(now));
                    }
                    copies += 1;
                }
                Err(Full(_)) => port.counters.dropped.count(DropReason::FloodNoRoom, 1),
            }
        }
        copies
    }

    /// Whether port `k` may have frames to take, of the classes of which it takes any.
    #[inline(always)]
    pub fn is_ready(&self, k: Port, takes: PrioritySet) -> bool {
        self.ports[k].ready.0 & takes.0 != 0
    }

    /// The next frame for port `k`, the classes of which it takes any in turn. It stays the next until it is
    /// [taken](Vale::take).
    #[inline(always)]
    pub fn next(&mut self, k: Port, takes: PrioritySet, free: &mut impl FnMut(F)) -> Option<(Priority, F)> {
        let Vale { classes, ports, config, .. } = self;
        let uplink = config.uplink;
        while let Some(p) = PrioritySet(ports[k].ready.0 & takes.0).next_after(ports[k].last) {
            let next = classes[p as usize].front(k, &mut |k, frame| {
                ports[k].counters.dropped.count(full(uplink, k), 1);
                free(frame);
            });
            match next {
                Some(frame) => return Some((p, frame)),
                None => ports[k].ready.remove(p),
            }
        }
        if ports[k].ready.is_empty()
            && let Health::Moving(since) = &mut ports[k].health
        {
            *since = None;
        }
        None
    }

    /// Takes the frame of class `p` that [`Vale::next`] showed for port `k`.
    #[inline(always)]
    pub fn take(&mut self, now: Instant, k: Port, p: Priority) {
        // It stands at the front: nothing has to be moved, so nothing is dropped.
        let taken = self.classes[p as usize].receive(k, &mut |_, _| {});
        debug_assert!(taken.is_some());
        let port = &mut self.ports[k];
        port.last = p;
        port.health = Health::Moving(Some(now));
        port.counters.delivered += 1;
    }

    /// A frame that was [taken](Vale::take) for port `k` turned out to be one that must not be delivered.
    #[cold]
    pub fn spoil(&mut self, k: Port, reason: DropReason) {
        self.ports[k].counters.delivered -= 1;
        self.ports[k].counters.dropped.count(reason, 1);
    }

    /// Of a frame of port `j` that waits for port `k`, so many segments were handed over, which count as frames of their own.
    #[cold]
    pub fn cut(&mut self, j: Port, k: Port, segments: u64) {
        self.ports[j].counters.accepted += segments;
        self.ports[k].counters.delivered += segments;
    }

    /// What port `k` itself dropped is put to its account: of the frames that were handed to it, and of its own that were not seen
    /// here.
    pub fn settle(&mut self, k: Port, lost: &Drops, refused: &Drops) {
        let counters = &mut self.ports[k].counters;
        counters.delivered -= lost.total_frames();
        counters.dropped.add(lost);
        counters.refused.add(refused);
    }

    /// A frame of port `j` that is in order, for port `k`, which can never take it.
    #[cold]
    pub fn turn_away(&mut self, j: Port, k: Port, reason: DropReason) -> Route {
        self.ports[j].counters.accepted += 1;
        self.ports[k].counters.dropped.count(reason, 1);
        Route::Drop(reason)
    }

    /// A frame of port `j` that is in order, for a station at whose port nobody is.
    #[cold]
    fn give_to_nobody(&mut self, j: Port) -> Route {
        self.ports[j].counters.accepted += 1;
        self.before.dropped.count(DropReason::PortGone, 1);
        Route::Drop(DropReason::PortGone)
    }

    /// A frame of port `j` is dropped on arrival.
    #[cold]
    pub fn refuse(&mut self, j: Port, reason: DropReason) -> Route {
        self.ports[j].counters.refused.count(reason, 1);
        Route::Drop(reason)
    }

    fn give_up(&mut self, k: Port, reason: DropReason, free: &mut impl FnMut(F)) {
        let port = &mut self.ports[k];
        port.ready = PrioritySet::NONE;
        for class in &mut self.classes {
            class.drain(k, &mut |frame| {
                port.counters.dropped.count(reason, 1);
                free(frame);
            });
        }
    }

    /// The caller did not come round for `gap`: nobody is stuck for that.
    #[cold]
    pub fn was_away(&mut self, gap: Duration) {
        for port in &mut self.ports {
            match &mut port.health {
                Health::Moving(Some(since)) | Health::Isolated(Some(since)) => *since += gap,
                _ => {}
            }
        }
    }

    /// Looks after port `k`, which has room now or has not; `free` gets what is given up.
    pub fn watch(&mut self, now: Instant, k: Port, has_room: bool, free: &mut impl FnMut(F)) {
        match self.ports[k].health {
            Health::Moving(Some(since)) if now.since(since) >= self.config.detection_time => {
                if self.ports[k].ready.is_empty() || has_room {
                    // It is we who did not come to it.
                    self.ports[k].health = Health::Moving(Some(now));
                    return;
                }
                match self.config.action {
                    Action::Off => {}
                    Action::Alert => {
                        // Counted anew for each detection time that it stays so.
                        self.ports[k].counters.stuck += 1;
                        self.ports[k].health = Health::Moving(Some(now));
                    }
                    Action::Drop => {
                        self.give_up(k, DropReason::Watchdog, free);
                        self.ports[k].counters.stuck += 1;
                        self.ports[k].counters.isolated += 1;
                        self.ports[k].health = Health::Isolated(None);
                    }
                }
            }
            Health::Isolated(since) => {
                self.ports[k].health = match (has_room, since) {
                    (false, _) => Health::Isolated(None),
                    (true, Some(since)) if now.since(since) >= self.config.restoration_time => Health::Moving(None),
                    (true, since) => Health::Isolated(since.or(Some(now))),
                };
            }
            _ => {}
        }
    }

    /// Whether the watchdog keeps everything from port `k`.
    pub fn is_isolated(&self, k: Port) -> bool {
        matches!(self.ports[k].health, Health::Isolated(_))
    }

    /// Frames of class `p` that wait at the output of port `k`.
    pub fn output_len(&self, k: Port, p: Priority) -> u32 {
        self.classes[p as usize].output_len(k)
    }

    /// Frames of class `p` that wait at the input of port `j` because their output is full.
    pub fn input_len(&self, j: Port, p: Priority) -> u32 {
        self.config.slots - self.classes[p as usize].input_room(j)
    }

    /// The ports whose full outputs frames of port `j` wait for, one bit each.
    pub fn waits_for(&self, j: Port) -> u64 {
        self.classes.iter().fold(0, |all, class| all | class.waits_for(j))
    }

    /// Changes the watchdog while traffic runs; what is isolated stays so until it moves.
    pub fn set_watchdog(&mut self, action: Action, detection_time: Duration, restoration_time: Duration) {
        self.config.action = action;
        self.config.detection_time = detection_time;
        self.config.restoration_time = restoration_time;
    }

    /// What went through port `k`.
    pub fn counters(&self, k: Port) -> &Counters {
        &self.ports[k].counters
    }

    /// What went through ports whose number others have now, and what came for stations at whose ports nobody is.
    pub fn before(&self) -> &Counters {
        &self.before
    }

    /// Frames that wait, a copy for each port.
    pub fn queued(&self) -> u64 {
        self.classes.iter().map(|c| u64::from(c.queued())).sum()
    }

    /// Frames accepted, delivered, dropped for a port: accepted = delivered + dropped + [queued](Vale::queued).
    pub fn ledger(&self) -> (u64, u64, u64) {
        let all = self.ports.iter().map(|p| &p.counters).chain([&self.before]);
        all.fold((0, 0, 0), |(a, d, l), c| (a + c.accepted, d + c.delivered, l + c.dropped.total_frames()))
    }
}

/// Why a frame of a lossy class for port `k` is dropped.
#[cold]
fn full(uplink: Option<Port>, k: Port) -> DropReason {
    if uplink == Some(k) { DropReason::VswitchUplink } else { DropReason::VswitchVm }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_port_does_not_admit_waits_in_a_lossless_class_only() {
        let lossless = PrioritySet(!(1 << 3));
        let mut vale: Vale<u8> = Vale::new(2, ValeConfig { lossless, ..ValeConfig::default() });
        (0..2).for_each(|k| vale.plug(k));
        assert!(vale.hold_back(0, 1, 0, true) && vale.hold_back(0, 1, 0, false));
        assert!(!vale.hold_back(0, 1, 3, true));
        let (sender, receiver) = (vale.counters(0), vale.counters(1));
        assert_eq!((sender.held_back, sender.accepted), (1, 1));
        assert_eq!(receiver.dropped.frames(DropReason::VswitchVm), 1);
    }
    use sluicenet_proto::rng::Rng;

    fn station(n: u8) -> Station {
        Station::new([2, 0, 0, 0, 0, n], 0)
    }
    fn header(from: u8, to: u8, priority: Priority) -> Header {
        Header { destination: station(to), source: station(from), priority, reserved: false }
    }
    const EVERYBODY: Station = Station::new([0xff; 6], 0);
    fn nothing(_: u32) {
        panic!("a lossless switch dropped a frame")
    }

    /// A switch at whose port `n` is station `n`.
    fn plugged(ports: u8, config: ValeConfig) -> Vale<u32> {
        let mut vale = Vale::new(ports as usize, config);
        for n in 0..ports {
            vale.plug(n as usize);
            vale.give(Instant::ZERO, station(n), n as usize);
        }
        vale
    }
    fn small() -> ValeConfig {
        ValeConfig { slots: 4, ..ValeConfig::default() }
    }
    #[derive(Debug, PartialEq, Eq)]
    enum Verdict {
        Queued(u32),
        Dropped(DropReason),
        Full,
    }
    impl Vale<u32> {
        /// All that a caller does who never passes a frame straight through.
        fn accept(&mut self, now: Instant, j: Port, h: &Header, frame: u32, free: &mut impl FnMut(u32)) -> Verdict {
            match self.route(now, j, h) {
                Route::To(k) => match self.queue(now, j, k, h.priority, frame, free) {
                    Ok(()) => Verdict::Queued(1),
                    Err(_) => Verdict::Full,
                },
                Route::All => Verdict::Queued(self.flood(now, j, h.priority, frame, u64::MAX)),
                Route::Drop(reason) => Verdict::Dropped(reason),
            }
        }
    }
    fn taken(vale: &mut Vale<u32>, now: Instant, k: Port) -> Option<u32> {
        taken_of(vale, now, k, PrioritySet::ALL).map(|(_, frame)| frame)
    }
    fn taken_of(vale: &mut Vale<u32>, now: Instant, k: Port, takes: PrioritySet) -> Option<(Priority, u32)> {
        let (p, frame) = vale.next(k, takes, &mut nothing)?;
        vale.take(now, k, p);
        Some((p, frame))
    }
    fn balanced<F: Copy>(vale: &Vale<F>) {
        let (accepted, delivered, dropped) = vale.ledger();
        assert_eq!(accepted, delivered + dropped + vale.queued());
    }

    #[test]
    fn frames_wait_for_a_slow_receiver_and_nothing_is_lost() {
        let mut vale = plugged(3, small());
        let mut rng = Rng::from_words(&[7]);
        let (mut sent, mut seen) = ([0u32; 2], [0u32; 2]);
        for i in 0..20_000u64 {
            let now = Instant(i);
            let j = rng.below(2) as usize;
            let frame = (j as u32) << 24 | sent[j];
            match vale.accept(now, j, &header(j as u8, 2, 3), frame, &mut nothing) {
                Verdict::Queued(1) => sent[j] += 1,
                verdict => assert_eq!(verdict, Verdict::Full),
            }
            if rng.below(3) == 0
                && let Some(frame) = taken(&mut vale, now, 2)
            {
                let j = (frame >> 24) as usize;
                assert_eq!(frame & 0xff_ffff, seen[j]);
                seen[j] += 1;
            }
            balanced(&vale);
        }
        // Two senders at full speed share what the receiver takes.
        assert!(seen[0].abs_diff(seen[1]) < seen[0] / 10, "{seen:?}");
        assert!(vale.counters(0).held_back > 100);
    }

    #[test]
    fn a_lossless_class_waits_while_a_lossy_one_drops_by_name() {
        let mut vale = plugged(2, ValeConfig { lossless: PrioritySet(1 << 3), ..small() });
        let mut freed = 0;
        for frame in 0..20 {
            for p in [3, 0] {
                vale.accept(Instant(1), 0, &header(0, 1, p), frame, &mut |_| freed += 1);
            }
        }
        assert_eq!(freed, 16);
        assert_eq!(vale.counters(1).dropped.frames(DropReason::VswitchVm), 16);
        assert_eq!(vale.counters(0).held_back, 12);
        balanced(&vale);
        // Both classes are served in turn.
        let order: Vec<u32> = core::iter::from_fn(|| taken(&mut vale, Instant(2), 1)).collect();
        assert_eq!(order.len(), 12);
    }

    #[test]
    fn a_flooded_copy_for_an_isolated_port_is_counted() {
        let mut vale = plugged(3, small());
        let at = Instant::ZERO + Duration::from_ms(1);
        vale.accept(at, 0, &header(0, 1, 0), 1, &mut nothing);
        let mut freed = 0;
        vale.watch(at + Duration::from_ms(300), 1, false, &mut |_| freed += 1);
        assert!(vale.is_isolated(1) && freed == 1);
        let h = Header { destination: EVERYBODY, ..header(0, 0, 0) };
        assert_eq!(vale.accept(at, 0, &h, 2, &mut nothing), Verdict::Queued(1));
        assert_eq!(vale.counters(1).dropped.frames(DropReason::Watchdog), 2);
        assert_eq!(vale.ledger(), (3, 0, 2));
        balanced(&vale);
    }

    #[test]
    fn a_port_that_invents_stations_keeps_no_other_from_being_learned() {
        // Whatever its share is said to be.
        let mut vale: Vale<u32> = Vale::new(4, ValeConfig { stations: 64, stations_per_port: 1_000, ..small() });
        (0..4).for_each(|k| vale.plug(k));
        for k in 0..3 {
            for n in 0..10_000u32 {
                let [_, _, c, d] = n.to_be_bytes();
                let source = Station::new([2, 1, k as u8, c, d, 0], 0);
                vale.route(Instant(1), k, &Header { source, ..header(0, 9, 0) });
            }
        }
        vale.route(Instant(1), 3, &header(8, 9, 0));
        assert_eq!(vale.route(Instant(1), 0, &header(7, 8, 0)), Route::To(3));
        assert!((20..84).all(|n| vale.give(Instant(1), station(n), 0)));
        assert!(!vale.give(Instant(1), station(84), 0));
    }

    #[test]
    fn a_flood_stalls_nobody() {
        let mut vale = plugged(4, small());
        for frame in 0..10 {
            let h = Header { destination: EVERYBODY, ..header(0, 0, 0) };
            let verdict = vale.accept(Instant(1), 0, &h, frame, &mut nothing);
            assert_eq!(verdict, if frame < 4 { Verdict::Queued(3) } else { Verdict::Queued(1) });
            // Only port 3 takes what it gets.
            assert_eq!(taken(&mut vale, Instant(1), 3), Some(frame));
            balanced(&vale);
        }
        assert_eq!(vale.counters(1).dropped.frames(DropReason::FloodNoRoom), 6);
        // A broadcast domain ends where it ends.
        assert_eq!(vale.flood(Instant(1), 0, 0, 11, 1 << 3 | 1), 1);
        assert_eq!(taken(&mut vale, Instant(1), 3), Some(11));
        // Unknown stations are everybody's without an uplink, and the uplink's with one.
        let mut vale = plugged(4, ValeConfig { uplink: Some(3), ..small() });
        assert_eq!(vale.accept(Instant(1), 0, &header(0, 77, 0), 5, &mut nothing), Verdict::Queued(1));
        assert_eq!(taken(&mut vale, Instant(1), 3), Some(5));
    }

    #[test]
    fn what_a_machine_must_not_send_is_refused_by_name() {
        let mut vale = plugged(3, small());
        let mut refused = |h: Header| vale.accept(Instant(1), 0, &h, 1, &mut nothing);
        assert_eq!(refused(Header { reserved: true, ..header(0, 1, 0) }), Verdict::Dropped(DropReason::Reserved));
        assert_eq!(refused(header(2, 1, 0)), Verdict::Dropped(DropReason::ForgedSource));
        assert_eq!(refused(Header { source: EVERYBODY, ..header(0, 1, 0) }), Verdict::Dropped(DropReason::Malformed));
        assert_eq!(refused(header(0, 0, 0)), Verdict::Dropped(DropReason::NoRoute));
        assert_eq!(vale.counters(0).refused.total_frames(), 4);
        balanced(&vale);
    }

    #[test]
    fn the_watchdog_isolates_a_stuck_port_and_restores_it() {
        let mut vale = plugged(3, small());
        let ms = |n| Instant::ZERO + Duration::from_ms(n);
        for frame in 0..8 {
            assert_eq!(vale.accept(ms(0), 0, &header(0, 2, 0), frame, &mut nothing), Verdict::Queued(1));
        }
        assert_eq!(vale.accept(ms(1), 0, &header(0, 2, 0), 8, &mut nothing), Verdict::Full);
        vale.watch(ms(199), 2, false, &mut nothing);
        assert!(!vale.is_isolated(2));
        let mut freed = 0;
        vale.watch(ms(200), 2, false, &mut |_| freed += 1);
        assert!(vale.is_isolated(2));
        assert_eq!((freed, vale.queued()), (8, 0));
        // Who sent to it goes on; what comes for it is dropped by name.
        assert_eq!(vale.accept(ms(201), 0, &header(0, 1, 0), 9, &mut nothing), Verdict::Queued(1));
        let dropped = Verdict::Dropped(DropReason::Watchdog);
        assert_eq!(vale.accept(ms(202), 1, &header(1, 2, 0), 10, &mut nothing), dropped);
        balanced(&vale);
        // Room for a moment does not restore it.
        vale.watch(ms(300), 2, true, &mut nothing);
        vale.watch(ms(350), 2, false, &mut nothing);
        vale.watch(ms(400), 2, true, &mut nothing);
        vale.watch(ms(599), 2, true, &mut nothing);
        assert!(vale.is_isolated(2));
        vale.watch(ms(600), 2, true, &mut nothing);
        assert!(!vale.is_isolated(2));
        assert_eq!(vale.accept(ms(601), 1, &header(1, 2, 0), 11, &mut nothing), Verdict::Queued(1));
        assert_eq!(taken(&mut vale, ms(602), 2), Some(11));
        assert_eq!(vale.counters(2).isolated, 1);
        balanced(&vale);
    }

    #[test]
    fn the_switch_own_absence_isolates_nobody() {
        let mut vale = plugged(3, small());
        let ms = |n| Instant::ZERO + Duration::from_ms(n);
        vale.accept(ms(0), 0, &header(0, 2, 0), 1, &mut nothing);
        vale.watch(ms(10), 2, false, &mut nothing);
        vale.was_away(Duration::from_ms(500));
        vale.watch(ms(510), 2, false, &mut nothing);
        assert!(!vale.is_isolated(2));
        vale.watch(ms(699), 2, false, &mut nothing);
        assert!(!vale.is_isolated(2));
        vale.watch(ms(700), 2, false, &mut |_| {});
        assert!(vale.is_isolated(2));
    }

    #[test]
    fn the_watchdog_only_says_so_if_asked_to() {
        for (action, stuck) in [(Action::Alert, 2), (Action::Off, 0)] {
            let mut vale = plugged(2, ValeConfig { action, ..small() });
            vale.accept(Instant(1), 0, &header(0, 1, 0), 1, &mut nothing);
            for ms in (0..500).step_by(5) {
                vale.watch(Instant(1) + Duration::from_ms(ms), 1, false, &mut nothing);
            }
            assert_eq!((vale.counters(1).stuck, vale.counters(1).isolated), (stuck, 0));
            assert_eq!(taken(&mut vale, Instant(2), 1), Some(1));
        }
    }

    #[test]
    fn a_port_takes_only_the_classes_it_wants() {
        let mut vale = plugged(2, small());
        for p in [1, 3, 5] {
            vale.accept(Instant(1), 0, &header(0, 1, p), u32::from(p), &mut nothing);
        }
        let only = PrioritySet(1 << 3);
        assert_eq!(taken_of(&mut vale, Instant(1), 1, only), Some((3, 3)));
        assert_eq!((taken_of(&mut vale, Instant(1), 1, only), vale.is_ready(1, only)), (None, false));
        // The others still wait, and the watchdog still knows.
        vale.watch(Instant(1) + Duration::from_ms(200), 1, false, &mut |_| {});
        assert!(vale.is_isolated(1) && vale.queued() == 0);
        balanced(&vale);
    }

    #[test]
    fn ports_come_and_go() {
        let mut vale = plugged(3, small());
        for frame in 0..3 {
            vale.accept(Instant(1), 0, &header(0, 2, 0), frame, &mut nothing);
        }
        let mut freed = 0;
        vale.unplug(2, &mut |_| freed += 1);
        assert_eq!((freed, vale.queued()), (3, 0));
        // Its station was given to it: nobody else gets what is for it, or can be it.
        let gone = Verdict::Dropped(DropReason::PortGone);
        assert_eq!(vale.accept(Instant(2), 0, &header(0, 2, 0), 4, &mut nothing), gone);
        let forged = Verdict::Dropped(DropReason::ForgedSource);
        assert_eq!(vale.accept(Instant(2), 1, &header(2, 0, 0), 4, &mut nothing), forged);
        assert_eq!((taken(&mut vale, Instant(2), 1), vale.before().dropped.frames(DropReason::PortGone)), (None, 1));
        balanced(&vale);
        // Once it is taken back it is unknown, and flooded to those who are there.
        vale.release(station(2));
        assert_eq!(vale.accept(Instant(2), 0, &header(0, 2, 0), 4, &mut nothing), Verdict::Queued(1));
        assert_eq!(taken(&mut vale, Instant(2), 1), Some(4));
        assert!(vale.reserve(Instant(2), station(9)));
        assert_eq!(vale.accept(Instant(2), 0, &header(0, 9, 0), 4, &mut nothing), gone);
        vale.plug(2);
        vale.accept(Instant(3), 2, &header(2, 0, 0), 5, &mut nothing);
        assert_eq!(vale.accept(Instant(3), 0, &header(0, 2, 0), 6, &mut nothing), Verdict::Queued(1));
        assert_eq!(taken(&mut vale, Instant(3), 2), Some(6));
        balanced(&vale);
        // What is counted at a port is of whoever is there now; the books are of all.
        assert_eq!((vale.counters(2).accepted, vale.counters(2).delivered), (1, 1));
        assert_eq!(vale.counters(2).dropped.total_frames(), 0);
        assert_eq!(vale.ledger(), (8, 2, 5));
    }
}
