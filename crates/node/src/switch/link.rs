//! Failure and recovery of a switch's links.

use super::{Admit, Chassis, FlowControl, Placement, SwitchOf};
use crate::device::{PortId, PortSet};
use crate::pool::{Handle, Pool};
use sluicenet_proto::frame::{Frame, PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;

impl<R, K, B: Admit, M, S> SwitchOf<R, K, B, M, S> {
    pub(super) fn set_link<F: Frame>(
        &mut self,
        now: Instant,
        port: PortId,
        up: bool,
        pool: &mut Pool<F>,
        woke: &mut PortSet,
    ) {
        if core::mem::replace(&mut self.egress[port as usize].is_dead, !up) != up {
            return;
        }
        match up {
            true => self.link_up(now, port, woke),
            false => self.link_down(now, port, pool, woke),
        }
    }

    fn link_down<F: Frame>(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>, woke: &mut PortSet) {
        for class in 0..PRIORITIES as Priority {
            self.purge(now, (port, class), DropReason::PortGone, pool, woke);
        }
        let e = &mut self.egress[port as usize];
        let stopped = self.flow_control.link_down(now, port, &mut e.flow);
        self.record_pauses(now, port, stopped, false);
    }

    /// Drops the frames in the queue of a port and class.
    pub(super) fn purge<F: Frame>(
        &mut self,
        now: Instant,
        (port, class): (PortId, Priority),
        reason: DropReason,
        pool: &mut Pool<F>,
        woke: &mut PortSet,
    ) {
        let queue = self.at(port, class);
        while let Some((at, input)) = pool.pop(&mut self.queues[queue].list) {
            let bytes = pool.frame(at).len();
            self.chassis.queued -= 1;
            self.queues[queue].bytes -= bytes;
            self.egress[port as usize].queued_bytes -= bytes;
            self.chassis.drop(port, class, reason, at, pool);
            self.give_back(now, Placement { input, output: port, class, bytes }, woke);
        }
        self.egress[port as usize].backlogged.remove(class);
    }

    fn link_up(&mut self, now: Instant, port: PortId, woke: &mut PortSet) {
        let e = &mut self.egress[port as usize];
        let stopped = self.flow_control.link_up(now, port, &mut e.flow, |class| self.buffer.level(port, class));
        if B::FlowControl::is_pending(&e.flow) {
            woke.insert(port);
        }
        self.record_pauses(now, port, stopped, true);
        self.after_flow_control(port, woke);
    }

    fn record_pauses(&mut self, now: Instant, port: PortId, classes: PrioritySet, stop: bool) {
        if self.chassis.record_pauses {
            classes.iter().for_each(|class| self.record_pause(now, port, class, stop));
        }
    }
}

impl Chassis {
    /// Handles a frame on its way to `port` that is lost with the link.
    pub(super) fn lose<F: Frame>(&mut self, port: PortId, at: Handle, pool: &mut Pool<F>) {
        let frame = pool.frame(at);
        if frame.is_pause() {
            self.control_in += 1;
            pool.release(at);
        } else {
            self.frames_in += 1;
            self.drop(port, frame.priority(), DropReason::PortGone, at, pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BufferPolicy, PortConfig, Switch, SwitchConfig};
    use super::*;
    use crate::device::{Device, Wires};
    use crate::packet::{Address, FlowKey, Framing, Packet};
    use crate::switch::PortBuffers;
    use alloc::vec;
    use alloc::vec::Vec;
    use sluicenet_proto::cee::pfc::Watermarks;
    use sluicenet_proto::frame::Pause;
    use sluicenet_proto::routing::table::TableRouter;
    use sluicenet_proto::routing::{Policy, Router};
    use sluicenet_proto::time::Duration;

    struct Busy;

    impl Wires for Busy {
        fn idle(&self, _: PortId) -> bool {
            false
        }
    }

    /// A switch with a host at each of three ports, whose wires are always busy, and the state that tests observe.
    struct World {
        switch: Switch,
        pool: Pool<Packet>,
        woke: PortSet,
    }

    const LOSSLESS: Priority = 3;

    impl World {
        fn new() -> World {
            let config = SwitchConfig {
                buffer: PortBuffers::Alike(100_000),
                policy: BufferPolicy::Output,
                shared: None,
                lossless: PrioritySet(1 << LOSSLESS),
                quanta: 1_000,
                cut_through: false,
                markers: Vec::new(),
                ets: None,
                watchdog: None,
            };
            let marks = Watermarks { xoff: 10_000, xon: 5_000, capacity: 20_000, headroom: 10_000 };
            let port = PortConfig { marks, quantum: Duration::from_us(1), repetition: None };
            let router = TableRouter::new((0..3).map(|port| vec![port]), Policy::DModK, 1, 0);
            let switch = Switch::new(&config, Router::Table(router), &[port; 3], true);
            World { switch, pool: Pool::default(), woke: PortSet::default() }
        }

        fn frame(&mut self, from: u16, to: u32, priority: Priority) -> Handle {
            let (src, dst) = (Address::new(from.into(), 0), Address::new(to, 0));
            let flow = FlowKey { src, dst, sport: 1, dport: 2 };
            self.pool.insert(&Packet::udp(flow, 0, 1_000, priority, Framing::ETHERNET))
        }

        fn receive(&mut self, us: u64, from: u16, to: u32, priority: Priority) {
            let at = self.frame(from, to, priority);
            assert_eq!(self.switch.receive(at_us(us), from, at, &mut self.pool, &Busy, &mut self.woke), None);
        }

        fn hear(&mut self, us: u64, port: PortId, pause: Pause) {
            let at = self.pool.insert(&Frame::from_pause(pause));
            self.switch.receive(at_us(us), port, at, &mut self.pool, &Busy, &mut self.woke);
        }

        fn set_link(&mut self, us: u64, port: PortId, up: bool) {
            self.switch.set_link(at_us(us), port, up, &mut self.pool, &mut self.woke);
        }

        fn woken(&mut self) -> Vec<PortId> {
            let mut ports: Vec<PortId> = core::iter::from_fn(|| self.woke.pop()).collect();
            ports.sort_unstable();
            ports.dedup();
            ports
        }

        /// The next transmission of a port: a frame's destination, or the lossless class's quanta in a pause.
        fn sends(&mut self, us: u64, port: PortId) -> Option<Result<u32, u16>> {
            let at = self.switch.poll_transmit(at_us(us), port, &mut self.pool, &mut self.woke)?;
            let frame = *self.pool.frame(at);
            self.pool.release(at);
            Some(frame.as_pause().map_or(Ok(frame.destination()), |pause| {
                assert!(pause.classes.contains(LOSSLESS));
                Err(pause.quanta[LOSSLESS as usize])
            }))
        }

        fn gone(&self) -> u64 {
            self.switch.drops().iter().filter(|((_, _, why), _)| *why == DropReason::PortGone).map(|(_, d)| d.0).sum()
        }

        fn balances(&self) {
            let dropped: u64 = self.switch.drops().values().map(|d| d.0).sum();
            assert_eq!(self.switch.frames_in(), self.switch.frames_out() + dropped + self.switch.queued());
            assert_eq!(u64::from(self.pool.in_use()), self.switch.queued());
        }
    }

    fn at_us(us: u64) -> Instant {
        Instant(Duration::from_us(us).0)
    }

    #[test]
    fn what_waits_for_a_link_is_lost_with_it_and_what_comes_after_too() {
        let mut w = World::new();
        (0..5).for_each(|_| w.receive(0, 0, 2, 0));
        w.receive(0, 0, 1, 0);
        w.set_link(1, 2, false);
        assert_eq!((w.gone(), w.switch.queued(), w.switch.queue_bytes(2, 0)), (5, 1, 0));
        w.set_link(1, 2, false);
        w.receive(2, 1, 2, 0);
        let on_the_wire = w.frame(2, 0, 0);
        w.switch.lose(2, on_the_wire, &mut w.pool);
        assert_eq!((w.gone(), w.sends(3, 2), w.sends(3, 1)), (7, None, Some(Ok(1))));
        w.balances();
        w.set_link(4, 2, true);
        w.receive(5, 1, 2, 0);
        w.woken();
        assert_eq!((w.sends(5, 2), w.sends(5, 2)), (Some(Err(0)), Some(Ok(2))));
        w.balances();
    }

    #[test]
    fn who_was_stopped_for_a_link_that_fails_goes_on() {
        let mut w = World::new();
        (0..12).for_each(|_| w.receive(0, 0, 2, LOSSLESS));
        w.woken();
        assert_eq!(w.sends(0, 0), Some(Err(1_000)));
        w.set_link(1, 2, false);
        assert_eq!((w.woken(), w.sends(1, 0), w.gone()), (vec![0], Some(Err(0)), 12));
        assert_eq!(
            w.switch.take_pauses().iter().map(|p| (p.port, p.stop)).collect::<Vec<_>>(),
            [(0, true), (0, false)]
        );
        w.balances();
    }

    /// Frames that arrived before the link failed may still be in the buffer when the link is back, and the other end
    /// does not know.
    #[test]
    fn a_lossless_class_waits_over_a_new_link_until_it_is_told_that_it_may_go_on() {
        let mut w = World::new();
        (0..12).for_each(|_| w.receive(0, 2, 0, LOSSLESS));
        assert_eq!(w.sends(0, 2), Some(Err(1_000)));
        w.set_link(1, 2, false);
        assert_eq!((w.switch.queued(), w.gone()), (12, 0));
        // XON would have no receiver.
        (0..8).for_each(|_| assert_eq!(w.sends(2, 0), Some(Ok(0))));
        assert_eq!(w.sends(2, 2), None);
        (0..5).for_each(|_| w.receive(3, 1, 0, LOSSLESS));
        w.woken();
        w.set_link(4, 2, true);
        assert_eq!((w.woken(), w.sends(4, 2)), (vec![2], Some(Err(0))));
        w.receive(5, 1, 2, LOSSLESS);
        w.receive(5, 1, 2, 0);
        assert_eq!((w.sends(5, 2), w.sends(5, 2)), (Some(Ok(2)), None), "the lossy one alone");
        let pause = Pause { classes: PrioritySet(1 << LOSSLESS), quanta: [0; PRIORITIES] };
        w.hear(6, 2, pause);
        assert_eq!((w.woken(), w.sends(6, 2)), (vec![2], Some(Ok(2))));
        // The same for an end that sends no pause at all, when its pause would have run out.
        (0..12).for_each(|_| w.receive(7, 2, 1, LOSSLESS));
        w.set_link(8, 2, false);
        w.set_link(9, 2, true);
        w.receive(10, 0, 2, LOSSLESS);
        assert_eq!((w.sends(10, 2), w.sends(10, 2)), (Some(Err(1_000)), None), "there is no room");
        assert_eq!(w.switch.gate(2).map(|gate| gate.paused()), Some(pause.classes));
        w.woken();
        w.switch.handle_timeout(at_us(1_009), &mut w.pool, &mut w.woke);
        assert!(w.woken().contains(&2));
        let sent: Vec<_> = core::iter::from_fn(|| w.sends(1_009, 2)).collect();
        assert!(sent.contains(&Ok(2)), "{sent:?}");
        w.balances();
    }
}
