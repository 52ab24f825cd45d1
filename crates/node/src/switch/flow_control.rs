//! Flow control between the queues of a port and its wire: pauses from the other end, and pauses for it.

use super::admit::Level;
use crate::device::PortId;
use alloc::vec::Vec;
use core::fmt::Debug;
use sluicenet_proto::cee::pfc::{Gate, Repetition, Rise, Signal};
use sluicenet_proto::frame::{Pause, Priority, PrioritySet};
use sluicenet_proto::time::{Duration, Instant};

/// The flow control of all ports of a switch. `Port` is the part of a port that every frame touches; the switch keeps it beside
/// its queues. After any call, [`FlowControl::paused`] and [`FlowControl::is_pending`] of that part are up to date.
pub trait FlowControl {
    /// The part of a port that every frame touches.
    type Port: Copy + Default + Debug;

    /// Whether ports have a watchdog. Without one, its methods are not called.
    const WATCHES: bool = false;

    /// Classes whose frames the watchdog drops, to the port and from it.
    #[inline(always)]
    fn dropped(_: &Self::Port) -> PrioritySet {
        PrioritySet::NONE
    }

    /// Frames of a class wait: tells the watchdog.
    fn on_waiting(&mut self, _now: Instant, _at: PortId, _class: Priority) {}

    /// A frame of a class has left its queue, and there are `more`: tells the watchdog.
    fn on_sent(&mut self, _now: Instant, _at: PortId, _class: Priority, _more: bool) {}

    /// Classes that the other end of the link stops.
    #[inline(always)]
    fn paused(_: &Self::Port) -> PrioritySet {
        PrioritySet::NONE
    }

    /// Whether a pause frame waits for the wire.
    #[inline(always)]
    fn is_pending(_: &Self::Port) -> bool {
        false
    }

    /// Handles a received pause frame.
    fn receive(&mut self, _now: Instant, _at: PortId, _port: &mut Self::Port, _pause: Pause) {}

    /// A buffer is above XOFF after a frame was added. Returns the reason to tell the other end, if there is one.
    #[inline(always)]
    fn on_rise(&mut self, _at: PortId, _port: &mut Self::Port, _class: Priority, _level: Level<'_>) -> Option<Rise> {
        None
    }

    /// A frame was taken from a buffer. Returns whether the other end may go on.
    #[inline(always)]
    fn on_fall(&mut self, _at: PortId, _port: &mut Self::Port, _class: Priority, _level: Level<'_>) -> bool {
        false
    }

    /// The pause frame that waits for the wire.
    fn poll(&mut self, _now: Instant, _at: PortId, _port: &mut Self::Port) -> Option<Pause> {
        None
    }

    /// Handles a deadline. Returns whether a pause frame now waits for the wire.
    fn handle_timeout(&mut self, _now: Instant, _at: PortId, _port: &mut Self::Port) -> bool {
        false
    }

    /// The next deadline of a port; [`Instant::MAX`] if there is none.
    fn poll_timeout(&self, _at: PortId) -> Instant {
        Instant::MAX
    }

    /// Handles a link that fails. Returns the classes that were stopped over it until now.
    fn link_down(&mut self, _now: Instant, _at: PortId, _port: &mut Self::Port) -> PrioritySet {
        PrioritySet::NONE
    }

    /// Handles a link that carries frames again, with the given levels in the buffer behind it. Returns the classes that
    /// the other end must not send.
    fn link_up<'a>(
        &mut self,
        _now: Instant,
        _at: PortId,
        _port: &mut Self::Port,
        _level: impl Fn(Priority) -> Option<Level<'a>>,
    ) -> PrioritySet {
        PrioritySet::NONE
    }

    /// The gate of a port, if it has one.
    fn gate(&self, _at: PortId) -> Option<&Gate> {
        None
    }

    /// The pauses that a port sends, if it sends any.
    fn signal(&self, _at: PortId) -> Option<&Signal> {
        None
    }
}

/// No flow control: pause frames are ignored, and none is sent.
impl FlowControl for () {
    type Port = ();
}

/// Priority flow control (802.1Qbb).
#[derive(Clone, Debug)]
pub struct Pfc {
    /// Classes under flow control.
    pub(super) classes: PrioritySet,
    /// Pause time sent with XOFF, in quanta.
    quanta: u16,
    /// Empty where no class is under flow control.
    ports: Vec<PfcPort>,
}

/// The part of a port that only pauses touch.
#[derive(Clone, Debug)]
struct PfcPort {
    gate: Gate,
    signal: Signal,
    quantum: Duration,
}

/// The part of a port that every frame touches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paused {
    /// Classes that the gate stops.
    pub(super) classes: PrioritySet,
    /// Whether a pause frame waits for the wire.
    is_pending: bool,
}

impl Pfc {
    /// Flow control for ports with the given quantum times and repetitions; XOFF lasts `quanta`.
    pub fn new(classes: PrioritySet, quanta: u16, ports: impl Iterator<Item = (Duration, Option<Repetition>)>) -> Pfc {
        let port = |(quantum, repetition)| {
            let signal = Signal::new(repetition);
            PfcPort { gate: Gate::default(), signal, quantum }
        };
        let ports = if classes.is_empty() { Vec::new() } else { ports.map(port).collect() };
        Pfc { classes, quanta, ports }
    }
}

impl FlowControl for Pfc {
    type Port = Paused;

    #[inline(always)]
    fn paused(port: &Paused) -> PrioritySet {
        port.classes
    }

    #[inline(always)]
    fn is_pending(port: &Paused) -> bool {
        port.is_pending
    }

    fn receive(&mut self, now: Instant, at: PortId, port: &mut Paused, mut pause: Pause) {
        // Without lossless classes a pause frame is ignored (HOSTILE 27).
        let Some(pfc) = self.ports.get_mut(at as usize) else { return };
        pause.classes.0 &= self.classes.0;
        pfc.gate.receive(now, &pause, pfc.quantum);
        port.classes = pfc.gate.paused();
    }

    #[inline(always)]
    fn on_rise(&mut self, at: PortId, port: &mut Paused, class: Priority, level: Level<'_>) -> Option<Rise> {
        let rise = self.ports[at as usize].signal.on_rise(class, level.bytes, level.marks)?;
        port.is_pending = true;
        Some(rise)
    }

    #[inline(always)]
    fn on_fall(&mut self, at: PortId, port: &mut Paused, class: Priority, level: Level<'_>) -> bool {
        let signal = &mut self.ports[at as usize].signal;
        if !signal.stopped().contains(class) || !signal.on_fall(class, level.bytes, level.marks) {
            return false;
        }
        port.is_pending = true;
        true
    }

    fn poll(&mut self, now: Instant, at: PortId, port: &mut Paused) -> Option<Pause> {
        port.is_pending = false;
        let pfc = &mut self.ports[at as usize];
        pfc.signal.poll(now, self.quanta, pfc.quantum.saturating_mul(self.quanta.into()))
    }

    fn handle_timeout(&mut self, now: Instant, at: PortId, port: &mut Paused) -> bool {
        let Some(pfc) = self.ports.get_mut(at as usize) else { return false };
        pfc.gate.handle_timeout(now);
        port.classes = pfc.gate.paused();
        let is_pending = pfc.signal.handle_timeout(now);
        port.is_pending |= is_pending;
        is_pending
    }

    fn poll_timeout(&self, at: PortId) -> Instant {
        let Some(pfc) = self.ports.get(at as usize) else { return Instant::MAX };
        [pfc.gate.poll_timeout(), pfc.signal.poll_timeout()].into_iter().flatten().min().unwrap_or(Instant::MAX)
    }

    fn link_down(&mut self, now: Instant, at: PortId, port: &mut Paused) -> PrioritySet {
        *port = Paused::default();
        let Some(pfc) = self.ports.get_mut(at as usize) else { return PrioritySet::NONE };
        pfc.gate.open(now);
        let stopped = pfc.signal.stopped();
        pfc.signal.forget();
        stopped
    }

    /// Lossless classes wait until the other end allows them to send: it may have no room.
    fn link_up<'a>(
        &mut self,
        now: Instant,
        at: PortId,
        port: &mut Paused,
        level: impl Fn(Priority) -> Option<Level<'a>>,
    ) -> PrioritySet {
        let mut stopped = PrioritySet::NONE;
        let Some(pfc) = self.ports.get_mut(at as usize) else { return stopped };
        pfc.gate.wait_for_peer(now, self.classes, now + pfc.quantum.saturating_mul(self.quanta.into()));
        for class in self.classes.iter() {
            if let Some(Level { bytes, marks }) = level(class)
                && pfc.signal.greet(class, bytes, marks)
            {
                stopped.insert(class);
            }
        }
        *port = Paused { classes: pfc.gate.paused(), is_pending: true };
        stopped
    }

    fn gate(&self, at: PortId) -> Option<&Gate> {
        self.ports.get(at as usize).map(|pfc| &pfc.gate)
    }

    fn signal(&self, at: PortId) -> Option<&Signal> {
        self.ports.get(at as usize).map(|pfc| &pfc.signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::cee::pfc::Watermarks;
    use sluicenet_proto::frame::PRIORITIES;

    const CLASSES: PrioritySet = PrioritySet(0b1100);
    const MARKS: Watermarks = Watermarks { xoff: 20, xon: 10, capacity: 40, headroom: 20 };

    fn pfc() -> Pfc {
        Pfc::new(CLASSES, 100, [(Duration(5), None), (Duration(10), None)].into_iter())
    }

    fn pause(quanta: u16) -> Pause {
        Pause { classes: PrioritySet::ALL, quanta: [quanta; PRIORITIES] }
    }

    fn level(bytes: u32) -> Level<'static> {
        Level { bytes, marks: &MARKS }
    }

    #[test]
    fn pauses_from_the_other_end_stop_lossless_classes_for_quanta_of_their_link() {
        let (mut pfc, mut port) = (pfc(), Paused::default());
        pfc.receive(Instant(0), 1, &mut port, pause(100));
        assert_eq!(
            (Pfc::paused(&port), pfc.poll_timeout(1), pfc.poll_timeout(0)),
            (CLASSES, Instant(1_000), Instant::MAX)
        );
        assert!(!pfc.handle_timeout(Instant(1_000), 1, &mut port));
        assert_eq!((Pfc::paused(&port), pfc.poll_timeout(1)), (PrioritySet::NONE, Instant::MAX));
        pfc.receive(Instant(2_000), 1, &mut port, pause(100));
        pfc.receive(Instant(2_100), 1, &mut port, pause(0));
        assert_eq!((Pfc::paused(&port), pfc.gate(1).map(|gate| gate.received())), (PrioritySet::NONE, Some(3)));
    }

    #[test]
    fn the_other_end_is_told_of_xoff_and_of_xon() {
        let (mut pfc, mut port) = (pfc(), Paused::default());
        assert_eq!(pfc.on_rise(0, &mut port, 2, level(21)), Some(Rise::Stopped));
        assert!(Pfc::is_pending(&port) && !pfc.on_fall(0, &mut port, 3, level(0)));
        let told = pfc.poll(Instant(0), 0, &mut port).unwrap();
        assert_eq!((told.classes, told.quanta[2], Pfc::is_pending(&port)), (PrioritySet(0b100), 100, false));
        assert_eq!(pfc.on_rise(0, &mut port, 2, level(22)), None);
        // Half of the pause has passed: it is renewed.
        assert!(pfc.handle_timeout(Instant(250), 0, &mut port) && Pfc::is_pending(&port));
        pfc.poll(Instant(250), 0, &mut port).unwrap();
        assert!(!pfc.on_fall(0, &mut port, 2, level(11)) && pfc.on_fall(0, &mut port, 2, level(10)));
        assert_eq!(pfc.poll(Instant(300), 0, &mut port).map(|told| told.quanta[2]), Some(0));
        assert_eq!(pfc.signal(0).map(|signal| (signal.sent(), signal.stops())), Some((3, 1)));
    }

    #[test]
    fn a_new_link_waits_for_the_other_end_and_tells_it_of_full_buffers() {
        let (mut pfc, mut port) = (pfc(), Paused::default());
        pfc.on_rise(0, &mut port, 2, level(21));
        pfc.receive(Instant(0), 0, &mut port, pause(100));
        assert_eq!(pfc.link_down(Instant(1), 0, &mut port), PrioritySet(0b100));
        assert_eq!((Pfc::paused(&port), Pfc::is_pending(&port)), (PrioritySet::NONE, false));
        let stopped = pfc.link_up(Instant(2), 0, &mut port, |class| Some(level(if class == 3 { 21 } else { 0 })));
        assert_eq!((stopped, Pfc::paused(&port), Pfc::is_pending(&port)), (PrioritySet(0b1000), CLASSES, true));
    }

    #[test]
    fn without_lossless_classes_pauses_are_ignored() {
        let mut pfc = Pfc::new(PrioritySet::NONE, 100, [(Duration(5), None)].into_iter());
        let mut port = Paused::default();
        pfc.receive(Instant(0), 0, &mut port, pause(100));
        assert_eq!((Pfc::paused(&port), pfc.poll_timeout(0)), (PrioritySet::NONE, Instant::MAX));
        assert!(pfc.gate(0).is_none() && pfc.signal(0).is_none());
        assert_eq!(core::mem::size_of::<<() as FlowControl>::Port>(), 0);
        assert!(!<() as FlowControl>::is_pending(&()) && <() as FlowControl>::paused(&()).is_empty());
    }
}
