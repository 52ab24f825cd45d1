//! Chains of stages are stages: the empty one, a pair, and a boxed one.

use super::{Context, Flow, Lane, Report, Stage};
use crate::packet::{Address, Packet};
use crate::pool::Handle;
use alloc::boxed::Box;
use alloc::vec::Vec;
use sluicenet_proto::time::Instant;

/// Composes stages from the top down.
pub fn compose(stages: Vec<Box<dyn Stage>>) -> Box<dyn Stage> {
    let composed = stages.into_iter().rev().reduce(|lower, upper| Box::new(Pair::new(upper, lower)));
    composed.unwrap_or_else(|| Box::new(()))
}

/// No stage.
impl Stage for () {
    #[inline(always)]
    fn slots(&self) -> u8 {
        0
    }
}

/// A stage above another one.
#[derive(Debug)]
pub struct Pair<U, L> {
    upper: U,
    lower: L,
}

impl<U: Stage, L: Stage> Pair<U, L> {
    /// Composes two stages.
    pub fn new(upper: U, lower: L) -> Pair<U, L> {
        Pair { upper, lower }
    }

    /// Calls the lower stage with its own timer slot.
    #[inline(always)]
    fn lower<R>(&mut self, cx: &mut Context<'_>, call: impl FnOnce(&mut L, &mut Context<'_>) -> R) -> R {
        let slots = self.upper.slots();
        cx.slot += slots;
        let result = call(&mut self.lower, cx);
        cx.slot -= slots;
        result
    }
}

impl<U: Stage, L: Stage> Stage for Pair<U, L> {
    fn has_room(&self, lane: Lane, below: bool) -> bool {
        self.upper.has_room(lane, self.lower.has_room(lane, below))
    }
    fn blocks(&mut self, lane: Lane, to: Address, socket: u32) -> bool {
        self.upper.blocks(lane, to, socket) || self.lower.blocks(lane, to, socket)
    }
    fn on_launch(&mut self, lane: Lane, to: Address) {
        self.upper.on_launch(lane, to);
        self.lower.on_launch(lane, to);
    }

    fn max_frame(&self, from_above: u32) -> u32 {
        self.lower.max_frame(self.upper.max_frame(from_above))
    }
    fn takes(&self) -> bool {
        self.upper.takes() && self.lower.takes()
    }
    fn send(&mut self, now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let at = self.upper.send(now, lane, at, cx)?;
        self.lower(cx, |stage, cx| stage.send(now, lane, at, cx))
    }
    fn expect(&mut self, now: Instant, flow: Flow, cx: &mut Context<'_>) {
        self.upper.expect(now, flow, cx);
        self.lower(cx, |stage, cx| stage.expect(now, flow, cx));
    }
    fn poll_expected(&mut self) -> Option<Flow> {
        self.upper.poll_expected().or_else(|| self.lower.poll_expected())
    }
    fn ready(&self) -> u64 {
        self.upper.ready() | self.lower.ready()
    }
    fn poll_transmit(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        loop {
            let sent = self.lower(cx, |stage, cx| stage.poll_transmit(now, lane, cx));
            if sent.is_some() || !self.lower.takes() {
                return sent;
            }
            let at = self.upper.poll_transmit(now, lane, cx)?;
            while let Some(flow) = self.upper.poll_expected() {
                self.lower(cx, |stage, cx| stage.expect(now, flow, cx));
            }
            let through = self.lower(cx, |stage, cx| stage.send(now, lane, at, cx));
            if through.is_some() {
                return through;
            }
        }
    }

    fn consumes(&self, packet: &Packet) -> bool {
        self.lower.consumes(packet) || self.upper.consumes(packet)
    }
    fn is_blocked(&self) -> bool {
        self.upper.is_blocked() || self.lower.is_blocked()
    }
    fn has_receive_queues(&self) -> bool {
        self.upper.has_receive_queues() || self.lower.has_receive_queues()
    }
    fn receive(&mut self, now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let at = self.lower(cx, |stage, cx| stage.receive(now, lane, at, cx))?;
        self.upper.receive(now, lane, at, cx)
    }
    fn has_received(&self, lane: Lane) -> bool {
        self.upper.has_received(lane) || self.lower.has_received(lane)
    }
    fn poll_receive(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        loop {
            let received = self.upper.poll_receive(now, lane, cx);
            if received.is_some() || self.upper.is_blocked() {
                return received;
            }
            let at = self.lower(cx, |stage, cx| stage.poll_receive(now, lane, cx))?;
            let through = self.upper.receive(now, lane, at, cx);
            if through.is_some() {
                return through;
            }
        }
    }
    fn receive_metadata(&mut self, now: Instant, packet: &Packet, cx: &mut Context<'_>) {
        self.upper.receive_metadata(now, packet, cx);
        self.lower(cx, |stage, cx| stage.receive_metadata(now, packet, cx));
    }

    fn slots(&self) -> u8 {
        self.upper.slots() + self.lower.slots()
    }
    fn handle_timer(&mut self, now: Instant, at: Instant, slot: u8, token: u64, cx: &mut Context<'_>) {
        match slot.checked_sub(self.upper.slots()) {
            None => self.upper.handle_timer(now, at, slot, token, cx),
            Some(slot) => self.lower(cx, |stage, cx| stage.handle_timer(now, at, slot, token, cx)),
        }
    }

    fn report(&self, report: &mut Report) {
        self.upper.report(report);
        self.lower.report(report);
    }
}

/// A stage that is chosen when the world is built.
impl Stage for Box<dyn Stage> {
    fn has_room(&self, lane: Lane, below: bool) -> bool {
        (**self).has_room(lane, below)
    }
    fn blocks(&mut self, lane: Lane, to: Address, socket: u32) -> bool {
        (**self).blocks(lane, to, socket)
    }
    fn on_launch(&mut self, lane: Lane, to: Address) {
        (**self).on_launch(lane, to)
    }
    fn max_frame(&self, from_above: u32) -> u32 {
        (**self).max_frame(from_above)
    }
    fn takes(&self) -> bool {
        (**self).takes()
    }
    fn send(&mut self, now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        (**self).send(now, lane, at, cx)
    }
    fn expect(&mut self, now: Instant, flow: Flow, cx: &mut Context<'_>) {
        (**self).expect(now, flow, cx)
    }
    fn poll_expected(&mut self) -> Option<Flow> {
        (**self).poll_expected()
    }
    fn ready(&self) -> u64 {
        (**self).ready()
    }
    fn poll_transmit(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        (**self).poll_transmit(now, lane, cx)
    }
    fn consumes(&self, packet: &Packet) -> bool {
        (**self).consumes(packet)
    }
    fn is_blocked(&self) -> bool {
        (**self).is_blocked()
    }
    fn has_receive_queues(&self) -> bool {
        (**self).has_receive_queues()
    }
    fn receive(&mut self, now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        (**self).receive(now, lane, at, cx)
    }
    fn has_received(&self, lane: Lane) -> bool {
        (**self).has_received(lane)
    }
    fn poll_receive(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        (**self).poll_receive(now, lane, cx)
    }
    fn receive_metadata(&mut self, now: Instant, packet: &Packet, cx: &mut Context<'_>) {
        (**self).receive_metadata(now, packet, cx)
    }
    fn slots(&self) -> u8 {
        (**self).slots()
    }
    fn handle_timer(&mut self, now: Instant, at: Instant, slot: u8, token: u64, cx: &mut Context<'_>) {
        (**self).handle_timer(now, at, slot, token, cx)
    }
    fn report(&self, report: &mut Report) {
        (**self).report(report)
    }
}
