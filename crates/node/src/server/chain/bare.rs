//! A server without a virtual network: gate stages, then the adapter that its guests share.

use super::{Chain, next_vm};
use crate::adapter::Kind as AdapterKind;
use crate::deadlines::Timer;
use crate::packet::{Address, Packet};
use crate::pool::{Handle, Pool};
use crate::server::WhenFull;
use crate::server::host::Host;
use crate::server::stages::{Context, FIRST_SLOT, Report, Stage};
use core::marker::PhantomData;
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::time::{Duration, Instant};

/// The chain of gate stages `G` above an adapter of kind `K`. No stage sees the frames within the server.
#[derive(Debug)]
pub struct Bare<G, K> {
    /// Bytes in guests' network stacks that will need room in the adapter.
    reserved: u32,
    /// The VM whose frame the gate stages sent last.
    turn: u32,
    gate: G,
    kind: PhantomData<K>,
}

impl<G: Stage, K: AdapterKind> Bare<G, K> {
    /// A chain without any frame.
    pub fn new(host: &mut Host, gate: G) -> Bare<G, K> {
        host.max_frame = gate.max_frame(host.max_frame);
        Bare { reserved: 0, turn: 0, gate, kind: PhantomData }
    }

    #[inline(always)]
    fn gate<R>(
        &mut self,
        host: &mut Host,
        pool: &mut Pool<Packet>,
        call: impl FnOnce(&mut G, &mut Context<'_>) -> R,
    ) -> R {
        call(&mut self.gate, &mut Context::new(host, pool, 0))
    }

    /// Whether the adapter has room that no packet in a network stack needs.
    #[inline(always)]
    fn adapter_has_room(&self, host: &Host) -> bool {
        host.adapter.room::<K>() >= self.reserved + host.max_frame
    }

    /// A packet leaves its network stack.
    #[inline(always)]
    fn enter_gate(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        if let Some(at) = self.gate(host, pool, |stage, cx| stage.send(now, vm, at, cx)) {
            host.enter_adapter::<K>(pool, at);
        }
    }

    /// Gate stages send frames while the adapter has room. VMs take turns, one frame each.
    #[inline(always)]
    fn run_gate(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        let mut lanes = self.gate.ready();
        while lanes != 0 && self.adapter_has_room(host) {
            let vm = next_vm(lanes, self.turn);
            match self.gate(host, pool, |stage, cx| stage.poll_transmit(now, vm as usize, cx)) {
                Some(at) => {
                    self.turn = vm;
                    host.enter_adapter::<K>(pool, at);
                }
                None => lanes &= !(1 << vm),
            }
        }
        // No stage below prepares for a flow.
        while self.gate.poll_expected().is_some() {}
    }

    /// Moves frames and wakes sockets until nothing can move.
    #[inline(always)]
    fn run(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        loop {
            self.run_gate(now, host, pool);
            if host.blocked != 0 {
                self.unblock(host);
            }
            if host.runnable == 0 {
                return;
            }
            self.pull_all(now, host, pool);
        }
    }

    /// Whether there are stages.
    #[inline(always)]
    fn has_stages(&self) -> bool {
        self.gate.slots() > 0
    }

    /// Frames that gate stages have released go to their guests.
    #[inline(always)]
    fn leave_gate(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        for vm in 0..host.guests.len() {
            while self.gate.has_received(vm) {
                let received = self.gate(host, pool, |stage, cx| stage.poll_receive(now, vm, cx));
                let Some(at) = received else { break };
                enter_guest(now, host, pool, at);
            }
        }
    }
}

/// A frame goes to its guest.
#[inline(always)]
fn enter_guest(now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) {
    let delay = host.rx_delay(pool.frame(at));
    if delay == Duration::ZERO {
        host.deliver(now, pool, at);
    } else {
        host.enter_rx(now + delay, at);
    }
}

impl<G: Stage, K: AdapterKind> Chain for Bare<G, K> {
    type Adapter = K;

    #[inline(always)]
    fn has_room(&self, host: &Host, vm: usize) -> bool {
        let below = host.config.when_full == WhenFull::Drop || self.adapter_has_room(host);
        self.gate.has_room(vm, below)
    }
    #[inline(always)]
    fn blocks(&mut self, own: HostId, vm: usize, to: Address, socket: u32) -> bool {
        to.host() != own && self.gate.blocks(vm, to, socket)
    }

    #[inline(always)]
    fn launch(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        host.from_guests += 1;
        let packet = pool.frame(at);
        let delay = host.tx_delay(packet);
        if packet.dst().host() == host.id {
            return host.loop_back(now + delay, pool, at);
        }
        self.gate.on_launch(vm, packet.dst());
        if delay == Duration::ZERO {
            self.enter_gate(now, host, pool, vm, at);
        } else {
            self.reserved += self.gate.max_frame(packet.len());
            host.enter_tx(vm, now + delay, packet, at);
        }
    }

    #[inline(always)]
    fn send(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        self.reserved -= self.gate.max_frame(pool.frame(at).len());
        self.enter_gate(now, host, pool, vm, at);
    }

    #[inline(always)]
    fn receive(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) -> bool {
        let packet = pool.frame(at);
        let vm = packet.dst().vm() as usize;
        let is_here = packet.dst().host() == host.id && vm < host.guests.len();
        if !is_here && !self.gate.consumes(packet) {
            host.drop_unroutable(pool, at);
            return true;
        }
        let lane = if is_here { vm } else { 0 };
        match self.gate(host, pool, |stage, cx| stage.receive(now, lane, at, cx)) {
            Some(at) => enter_guest(now, host, pool, at),
            None => self.leave_gate(now, host, pool),
        }
        true
    }

    #[inline(always)]
    fn on_transmit(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        if self.has_stages() {
            self.run(now, host, pool);
        } else if host.blocked != 0 {
            self.unblock(host);
            self.pull_all(now, host, pool);
        }
    }
    #[inline(always)]
    fn settle(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        self.pull_all(now, host, pool);
        if self.has_stages() {
            self.run(now, host, pool);
        }
    }

    fn on_port_free(&mut self, _vm: usize) {}
    fn handle_timer(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, (at, class, token): Timer) {
        self.gate(host, pool, |stage, cx| stage.handle_timer(now, at, class - FIRST_SLOT, token, cx));
        self.leave_gate(now, host, pool);
    }
    fn receive_metadata(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, packet: &Packet) {
        self.gate(host, pool, |stage, cx| stage.receive_metadata(now, packet, cx));
        self.leave_gate(now, host, pool);
    }
    fn report(&self, report: &mut Report) {
        self.gate.report(report);
    }
}
