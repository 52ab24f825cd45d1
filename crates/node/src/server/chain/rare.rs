//! The chain of every combination that has no chain of its own: boxed stages, any fixed parts, any adapter.
//!
//! Few measurements use it, so it is one type that is compiled once and is not inlined into the engine.

use super::{Bare, Chain, Unusual, Virtualised};
use crate::adapter::Any;
use crate::deadlines::Timer;
use crate::packet::{Address, Packet};
use crate::pool::{Handle, Pool};
use crate::server::host::Host;
use crate::server::stages::{Report, Stage};
use alloc::boxed::Box;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::Instant;

/// A chain of boxed stages.
// The server around it is boxed.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum Rare {
    /// Without a vSwitch.
    Bare(Bare<Box<dyn Stage>, Any>),
    /// With a vSwitch.
    Virtualised(Virtualised<Box<dyn Stage>, Box<dyn Stage>, Unusual>),
}

macro_rules! each {
    ($rare:expr, $chain:ident => $then:expr) => {
        match $rare {
            Rare::Bare($chain) => $then,
            Rare::Virtualised($chain) => $then,
        }
    };
}

impl Chain for Rare {
    type Adapter = Any;

    #[inline(never)]
    fn has_room(&self, host: &Host, vm: usize) -> bool {
        each!(self, chain => chain.has_room(host, vm))
    }
    #[inline(never)]
    fn blocks(&mut self, own: HostId, vm: usize, to: Address, socket: u32) -> bool {
        each!(self, chain => chain.blocks(own, vm, to, socket))
    }
    #[inline(never)]
    fn launch(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        each!(self, chain => chain.launch(now, host, pool, vm, at));
    }
    #[inline(never)]
    fn send(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        each!(self, chain => chain.send(now, host, pool, vm, at));
    }
    #[inline(never)]
    fn receive(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) -> bool {
        each!(self, chain => chain.receive(now, host, pool, at))
    }
    #[inline(never)]
    fn on_transmit(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        each!(self, chain => chain.on_transmit(now, host, pool));
    }
    #[inline(never)]
    fn settle(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        each!(self, chain => chain.settle(now, host, pool));
    }
    #[inline(never)]
    fn on_port_free(&mut self, vm: usize) {
        each!(self, chain => chain.on_port_free(vm));
    }
    #[inline(never)]
    fn handle_timer(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, timer: Timer) {
        each!(self, chain => chain.handle_timer(now, host, pool, timer));
    }
    #[inline(never)]
    fn receive_metadata(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, packet: &Packet) {
        each!(self, chain => chain.receive_metadata(now, host, pool, packet));
    }
    fn report(&self, report: &mut Report) {
        each!(self, chain => chain.report(report));
    }

    // Loops that call the methods above: each runs within one chain, so that it chooses among the chains only once.

    #[inline(never)]
    fn run_deadlines(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        each!(self, chain => chain.run_deadlines(now, host, pool));
    }
    #[inline(never)]
    fn run_timers(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        each!(self, chain => chain.run_timers(now, host, pool));
    }
}
