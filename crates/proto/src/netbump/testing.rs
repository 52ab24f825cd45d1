//! A bump with one virtual queue, and its packets, for the tests of the applications.

use super::{App, Fields, Notice, Packet, Port, Slot, Verdict, pass};
use crate::cee::qcn::Message;
use crate::time::Instant;
use crate::units::Rate;
use alloc::vec::Vec;
use sluicenet_wire::ipv4::Ecn;

/// A packet of the tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    pub wire_bytes: u64,
    pub capable: bool,
    pub ecn: Ecn,
    pub flow: (u64, u64),
    pub fields: Fields,
    pub notification: Option<Message>,
}

impl Default for Frame {
    fn default() -> Frame {
        Frame {
            wire_bytes: 1_538,
            capable: true,
            ecn: Ecn::Ect0,
            flow: (1, 2),
            fields: Fields::default(),
            notification: None,
        }
    }
}

impl Packet for Frame {
    type Flow = (u64, u64);
    fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }
    fn destination(&self) -> u64 {
        self.flow.1
    }
    fn flow(&self) -> (u64, u64) {
        self.flow
    }
    fn fields(&self) -> Fields {
        self.fields
    }
    fn ecn(&self) -> Ecn {
        self.ecn
    }
    fn mark(&mut self) -> bool {
        if self.ecn != Ecn::NotEct {
            self.ecn = Ecn::Ce;
        }
        self.ecn != Ecn::NotEct
    }
    fn notification(&self) -> Option<Message> {
        self.notification
    }
}

/// A bump with one virtual queue.
pub struct Bump<A: App<Frame>> {
    app: A,
    pub slot: Slot<A::State>,
    pub now: Instant,
    pub notices: Vec<Notice<(u64, u64)>>,
}

impl<A: App<Frame>> Bump<A> {
    pub fn new(app: A, rate: Rate) -> Bump<A> {
        let slot = Slot::new(&app, 0, Port { rate, buffer_bytes: None });
        Bump { app, slot, now: Instant::ZERO, notices: Vec::new() }
    }

    /// Passes a packet through; returns the decision and the packet as it leaves.
    pub fn pass(&mut self, now: Instant, mut packet: Frame) -> (Verdict, Frame) {
        self.now = now;
        if !packet.capable {
            packet.ecn = Ecn::NotEct;
        }
        let verdict = pass(&self.app, &mut self.slot, now, &mut packet, &mut self.notices);
        (verdict, packet)
    }

    /// Bytes in the virtual queue.
    pub fn bytes(&self) -> u64 {
        self.slot.queue.bytes(self.now)
    }
}
