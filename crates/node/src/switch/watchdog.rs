//! The PFC watchdog of a switch's ports: it gives up a lossless class that the other end of the link pauses for too long.

use super::flow_control::{FlowControl, Paused, Pfc};
use super::{Admit, Level, Placement, SwitchOf};
use crate::device::{PortId, PortSet};
use crate::pool::Pool;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::{Gate, Rise, Signal};
use sluicenet_proto::cee::watchdog::{Change, Watchdog};
use sluicenet_proto::frame::{Frame, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};

/// The treatment of a class in a storm, as in SONiC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormAction {
    /// Frames that wait, that arrive for the port, or that come in at the port are dropped.
    Drop,
    /// Pauses have no effect.
    Forward,
    /// Storms are counted.
    Alert,
}

/// Settings of the watchdogs of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogConfig {
    /// A paused class that has frames and sends none for this long is in a storm.
    pub detection: Duration,
    /// The storm is over when no pause arrived for this long.
    pub restoration: Duration,
    /// What happens to the class meanwhile.
    pub action: StormAction,
}

/// Storms of a class at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormCounts {
    /// Storms that began.
    pub detected: u64,
    /// Storms that ended.
    pub restored: u64,
}

/// A buffer policy whose lossless classes have a watchdog.
#[derive(Clone, Debug)]
pub struct WatchedBuffer<B>(pub B);

impl<B: Admit<FlowControl = Pfc>> Admit for WatchedBuffer<B> {
    type FlowControl = WatchedPfc;

    #[inline(always)]
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason> {
        self.0.admit(frame, queue_bytes)
    }
    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        self.0.charge(frame)
    }
    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        self.0.discharge(frame)
    }
    fn level(&self, input: PortId, class: Priority) -> Option<Level<'_>> {
        self.0.level(input, class)
    }
    fn buffered(&self, input: PortId, output: PortId, class: Priority) -> u32 {
        self.0.buffered(input, output, class)
    }
}

/// Priority flow control with a watchdog at each port.
#[derive(Clone, Debug)]
pub struct WatchedPfc {
    pfc: Pfc,
    action: StormAction,
    watchdogs: Vec<Watchdog>,
    counts: BTreeMap<(PortId, Priority), StormCounts>,
}

/// The part of a port that every frame touches.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchedPort {
    /// Pauses that have an effect.
    paused: Paused,
    /// Classes whose frames are dropped.
    dropped: PrioritySet,
}

impl WatchedPfc {
    /// The flow control of so many ports with watchdogs.
    pub fn new(pfc: Pfc, config: WatchdogConfig, ports: usize) -> WatchedPfc {
        let WatchdogConfig { detection, restoration, action } = config;
        let watchdogs = alloc::vec![Watchdog::new(detection, restoration); ports];
        WatchedPfc { pfc, action, watchdogs, counts: BTreeMap::new() }
    }

    /// Storms by port and class.
    pub fn storms(&self) -> impl Iterator<Item = (PortId, Priority, StormCounts)> {
        self.counts.iter().map(|(&(port, class), &counts)| (port, class, counts))
    }

    /// Classes that the other end pauses, whether or not this has an effect.
    fn held(&self, at: PortId) -> PrioritySet {
        self.pfc.gate(at).map_or(PrioritySet::NONE, Gate::paused)
    }

    /// Applies the action to the storms of a port.
    fn act(&self, at: PortId, port: &mut WatchedPort) {
        let storms = self.watchdogs[at as usize].storms();
        match self.action {
            StormAction::Drop => port.dropped = storms,
            StormAction::Forward => port.paused.classes.0 &= !storms.0,
            StormAction::Alert => {}
        }
    }

    fn count(&mut self, at: PortId, class: Priority, change: Change) {
        let counts = self.counts.entry((at, class)).or_default();
        match change {
            Change::Detected => counts.detected += 1,
            Change::Restored => counts.restored += 1,
        }
    }
}

impl FlowControl for WatchedPfc {
    type Port = WatchedPort;

    const WATCHES: bool = true;

    #[inline(always)]
    fn paused(port: &WatchedPort) -> PrioritySet {
        Pfc::paused(&port.paused)
    }

    #[inline(always)]
    fn is_pending(port: &WatchedPort) -> bool {
        Pfc::is_pending(&port.paused)
    }

    #[inline(always)]
    fn dropped(port: &WatchedPort) -> PrioritySet {
        port.dropped
    }

    fn on_waiting(&mut self, now: Instant, at: PortId, class: Priority) {
        self.watchdogs[at as usize].on_waiting(now, class);
    }

    fn on_sent(&mut self, now: Instant, at: PortId, class: Priority, more: bool) {
        self.watchdogs[at as usize].on_sent(now, class, more);
    }

    fn receive(&mut self, now: Instant, at: PortId, port: &mut WatchedPort, pause: Pause) {
        let stops = |class: &Priority| self.pfc.classes.contains(*class) && pause.quanta[*class as usize] > 0;
        let stopped: PrioritySet = pause.classes.iter().filter(stops).collect();
        self.watchdogs[at as usize].on_pause(now, stopped);
        self.pfc.receive(now, at, &mut port.paused, pause);
        self.act(at, port);
    }

    #[inline(always)]
    fn on_rise(&mut self, at: PortId, port: &mut WatchedPort, class: Priority, level: Level<'_>) -> Option<Rise> {
        self.pfc.on_rise(at, &mut port.paused, class, level)
    }

    #[inline(always)]
    fn on_fall(&mut self, at: PortId, port: &mut WatchedPort, class: Priority, level: Level<'_>) -> bool {
        self.pfc.on_fall(at, &mut port.paused, class, level)
    }

    fn poll(&mut self, now: Instant, at: PortId, port: &mut WatchedPort) -> Option<Pause> {
        self.pfc.poll(now, at, &mut port.paused)
    }

    fn handle_timeout(&mut self, now: Instant, at: PortId, port: &mut WatchedPort) -> bool {
        let is_pending = self.pfc.handle_timeout(now, at, &mut port.paused);
        let held = self.held(at);
        while let Some((class, change)) = self.watchdogs[at as usize].handle_timeout(now, held) {
            self.count(at, class, change);
        }
        self.act(at, port);
        is_pending
    }

    fn poll_timeout(&self, at: PortId) -> Instant {
        let watchdog = self.watchdogs[at as usize].poll_timeout(self.held(at));
        self.pfc.poll_timeout(at).min(watchdog.unwrap_or(Instant::MAX))
    }

    fn link_down(&mut self, now: Instant, at: PortId, port: &mut WatchedPort) -> PrioritySet {
        for class in self.watchdogs[at as usize].storms().iter() {
            self.count(at, class, Change::Restored);
        }
        self.watchdogs[at as usize].forget();
        port.dropped = PrioritySet::NONE;
        self.pfc.link_down(now, at, &mut port.paused)
    }

    fn link_up<'a>(
        &mut self,
        now: Instant,
        at: PortId,
        port: &mut WatchedPort,
        level: impl Fn(Priority) -> Option<Level<'a>>,
    ) -> PrioritySet {
        self.pfc.link_up(now, at, &mut port.paused, level)
    }

    fn gate(&self, at: PortId) -> Option<&Gate> {
        self.pfc.gate(at)
    }

    fn signal(&self, at: PortId) -> Option<&Signal> {
        self.pfc.signal(at)
    }
}

impl<R, K, B: Admit, M, S> SwitchOf<R, K, B, M, S> {
    /// The port in a storm of `class` for which a frame is dropped: its output, or its input.
    #[inline(always)]
    pub(super) fn stormed(&self, input: PortId, output: PortId, class: Priority) -> Option<PortId> {
        let is_dropped = |port: &PortId| B::FlowControl::dropped(&self.egress[*port as usize].flow).contains(class);
        [output, input].into_iter().find(is_dropped)
    }

    /// Tells the watchdog of a port that frames of a class wait.
    pub(super) fn watch(&mut self, now: Instant, port: PortId, class: Priority) {
        self.flow_control.on_waiting(now, port, class);
        if B::FlowControl::paused(&self.egress[port as usize].flow).contains(class) {
            self.chassis.deadline = self.chassis.deadline.min(self.flow_control.poll_timeout(port));
        }
    }

    /// Drops the waiting frames of classes that the watchdog of a port has given up. Other frames that wait are news for a
    /// watchdog whose storm has just ended.
    pub(super) fn after_watchdog<F: Frame>(
        &mut self,
        now: Instant,
        port: PortId,
        pool: &mut Pool<F>,
        woke: &mut PortSet,
    ) {
        for class in B::FlowControl::dropped(&self.egress[port as usize].flow).iter() {
            self.purge(now, (port, class), DropReason::PfcStorm, pool, woke);
        }
        for class in self.egress[port as usize].backlogged.iter() {
            self.flow_control.on_waiting(now, port, class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BufferPolicy, PortBuffers, PortConfig, Switch, SwitchConfig};
    use super::*;
    use crate::device::{Device, Wires};
    use crate::packet::{Address, FlowKey, Framing, Packet};
    use sluicenet_proto::cee::pfc::Watermarks;
    use sluicenet_proto::frame::PRIORITIES;
    use sluicenet_proto::routing::table::TableRouter;
    use sluicenet_proto::routing::{Policy, Router};

    struct Busy;

    impl Wires for Busy {
        fn idle(&self, _: PortId) -> bool {
            false
        }
    }

    const LOSSLESS: Priority = 3;

    /// A switch with a host at each of three ports. A storm is found after 100 us and over after 200 us without a pause.
    struct World {
        switch: Switch,
        pool: Pool<Packet>,
        woke: PortSet,
    }

    fn at_us(us: u64) -> Instant {
        Instant(Duration::from_us(us).0)
    }

    impl World {
        fn new(action: StormAction) -> World {
            let (detection, restoration) = (Duration::from_us(100), Duration::from_us(200));
            let config = SwitchConfig {
                buffer: PortBuffers::Alike(100_000),
                policy: BufferPolicy::Output,
                shared: None,
                lossless: PrioritySet(1 << LOSSLESS),
                quanta: 1_000,
                cut_through: false,
                markers: Vec::new(),
                ets: None,
                watchdog: Some(WatchdogConfig { detection, restoration, action }),
            };
            let marks = Watermarks { xoff: 10_000, xon: 5_000, capacity: 20_000, headroom: 10_000 };
            let port = PortConfig { marks, quantum: Duration::from_us(1), repetition: None };
            let router = TableRouter::new((0..3).map(|port| alloc::vec![port]), Policy::DModK, 1, 0);
            let switch = Switch::new(&config, Router::Table(router), &[port; 3], false);
            World { switch, pool: Pool::default(), woke: PortSet::default() }
        }

        fn receive(&mut self, us: u64, from: u16, to: u32, priority: Priority) {
            let (src, dst) = (Address::new(from.into(), 0), Address::new(to, 0));
            let frame = Packet::udp(FlowKey { src, dst, sport: 1, dport: 2 }, 0, 1_000, priority, Framing::ETHERNET);
            let at = self.pool.insert(&frame);
            assert_eq!(self.switch.receive(at_us(us), from, at, &mut self.pool, &Busy, &mut self.woke), None);
        }

        /// Port 2 hears a pause of so many microseconds.
        fn hear(&mut self, us: u64, quanta: u16) {
            let pause = Pause { classes: PrioritySet(1 << LOSSLESS), quanta: [quanta; PRIORITIES] };
            let at = self.pool.insert(&Frame::from_pause(pause));
            self.switch.receive(at_us(us), 2, at, &mut self.pool, &Busy, &mut self.woke);
        }

        /// Frames that port 2 sends now.
        fn sends(&mut self, us: u64) -> usize {
            let mut frames = 0;
            while let Some(at) = self.switch.poll_transmit(at_us(us), 2, &mut self.pool, &mut self.woke) {
                self.pool.release(at);
                frames += 1;
            }
            frames
        }

        fn handle_timeout(&mut self, us: u64) {
            self.switch.handle_timeout(at_us(us), &mut self.pool, &mut self.woke);
        }

        /// The storms of port 2 that began and ended, and all dropped frames.
        fn counts(&self) -> (u64, u64, u64) {
            let of_class = |&(port, class, _): &_| (port, class) == (2, LOSSLESS);
            let StormCounts { detected, restored } =
                self.switch.storms().find(of_class).map(|s| s.2).unwrap_or_default();
            let dropped: u64 = self.switch.drops().values().map(|d| d.0).sum();
            assert_eq!(self.switch.frames_in(), self.switch.frames_out() + dropped + self.switch.queued());
            assert_eq!(u64::from(self.pool.in_use()), self.switch.queued());
            (detected, restored, dropped)
        }

        /// Four frames wait from 10 us on behind a pause from 5 us to 505 us.
        fn stormed(action: StormAction) -> World {
            let mut w = World::new(action);
            w.hear(5, 500);
            (0..4).for_each(|_| w.receive(10, 0, 2, LOSSLESS));
            assert_eq!((w.sends(10), Device::<Packet>::poll_timeout(&w.switch)), (0, at_us(110)));
            w.handle_timeout(109);
            assert_eq!(w.counts(), (0, 0, 0));
            w.handle_timeout(110);
            w
        }
    }

    #[test]
    fn a_storm_drops_what_waits_and_what_comes_and_the_class_is_restored() {
        let mut w = World::stormed(StormAction::Drop);
        assert_eq!((w.counts(), w.switch.queued()), ((1, 0, 4), 0));
        w.receive(120, 0, 2, LOSSLESS);
        w.receive(121, 2, 1, LOSSLESS);
        assert_eq!((w.counts(), w.switch.queued()), ((1, 0, 6), 0), "in both directions");
        assert!(w.switch.drops().keys().all(|&key| key == (2, LOSSLESS, DropReason::PfcStorm)));
        w.receive(122, 0, 1, LOSSLESS);
        w.receive(122, 0, 2, 0);
        assert_eq!((w.counts(), w.sends(122), w.switch.queued()), ((1, 0, 6), 1, 1), "nothing else is");
        w.hear(200, 300);
        w.handle_timeout(399);
        assert_eq!(w.counts(), (1, 0, 6));
        w.handle_timeout(400);
        w.receive(401, 0, 2, LOSSLESS);
        assert_eq!((w.counts(), w.sends(401)), ((1, 1, 6), 0), "the pause lasts until 500 us");
        w.handle_timeout(500);
        assert_eq!((w.counts(), w.sends(500)), ((1, 1, 6), 1));
    }

    #[test]
    fn with_forward_pauses_have_no_effect_and_a_new_storm_is_found() {
        let mut w = World::stormed(StormAction::Forward);
        assert_eq!((w.counts(), w.sends(110)), ((1, 0, 0), 4));
        w.receive(250, 0, 2, LOSSLESS);
        assert_eq!(w.sends(250), 1);
        w.receive(300, 0, 2, LOSSLESS);
        w.handle_timeout(310);
        // The pause lasts until 505 us: the frame is held, and the watchdog counts anew.
        assert_eq!((w.counts(), w.sends(310)), ((1, 1, 0), 0));
        w.handle_timeout(410);
        assert_eq!((w.counts(), w.sends(410)), ((2, 1, 0), 1));
    }

    #[test]
    fn an_alert_counts_and_loses_nothing() {
        let mut w = World::stormed(StormAction::Alert);
        assert_eq!((w.counts(), w.sends(110)), ((1, 0, 0), 0));
        w.handle_timeout(310);
        w.hear(311, 0);
        assert_eq!((w.counts(), w.sends(311)), ((1, 1, 0), 4));
    }

    #[test]
    fn a_class_that_moves_is_in_no_storm_and_a_dead_link_ends_one() {
        let mut w = World::new(StormAction::Drop);
        w.receive(0, 0, 2, LOSSLESS);
        w.receive(0, 0, 2, LOSSLESS);
        assert!(w.switch.poll_transmit(at_us(90), 2, &mut w.pool, &mut w.woke).map(|at| w.pool.release(at)).is_some());
        w.hear(95, 1_000);
        w.handle_timeout(189);
        assert_eq!(w.counts(), (0, 0, 0));
        w.handle_timeout(190);
        assert_eq!(w.counts(), (1, 0, 1));
        w.switch.set_link(at_us(200), 2, false, &mut w.pool, &mut w.woke);
        assert_eq!(w.counts(), (1, 1, 1));
    }
}
