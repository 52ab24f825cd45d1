//! A server with a virtual network: gate stages, the vSwitch, network stages, the adapter.

use super::{Chain, Parts};
use crate::deadlines::Timer;
use crate::packet::{Address, Packet};
use crate::pool::{Handle, Pool};
use crate::server::PrefetchStep;
use crate::server::VirtualConfig;
use crate::server::host::{DEADLINES, Host, PORT_FREE};
use crate::server::stages::credits::Credits;
use crate::server::stages::zbridge::ZBridge;
use crate::server::stages::{Context, FIRST_SLOT, Report, Stage};
use alloc::vec::Vec;
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::loss::{DropReason, Drops, Full};
use sluicenet_proto::overlay::bridge::ecn_out;
use sluicenet_proto::overlay::vswitch::VSwitch;
use sluicenet_proto::time::{Duration, Instant};

/// The only lane of network stages.
const UPLINK_LANE: usize = 0;

/// The chain of gate stages `G`, network stages `N` and fixed parts `P`.
#[derive(Debug)]
pub struct Virtualised<G, N, P> {
    vswitch: VSwitch<Handle>,
    /// VMs that may have a frame to receive.
    vm_ready: u64,
    /// VMs whose busy port has a deadline.
    port_waits: u64,
    /// vNICs, and so the number of the vSwitch's port to the network.
    uplink: usize,
    /// One bit for each vNIC.
    vnics: u64,
    /// Whether the vSwitch may have a frame for the network stages.
    uplink_ready: bool,
    /// Speed at which the port of a VM sends: picoseconds a byte, in units of 2^-16 ps.
    tx_speed: u64,
    /// The ports of the VMs.
    ports: Vec<Port>,
    gate: G,
    network: N,
    parts: P,
}

/// The port of a VM.
#[derive(Debug)]
struct Port {
    /// Times at which the port has finished sending, and receiving, the last packet.
    tx_free: Instant,
    rx_free: Instant,
    /// Speed at which it receives, in the unit of the other direction.
    rx_speed: u64,
}

impl<G: Stage, N: Stage, P: Parts> Virtualised<G, N, P> {
    /// A chain without any frame.
    pub fn new(host: &mut Host, config: &VirtualConfig, gate: G, network: N, parts: P) -> Virtualised<G, N, P> {
        let vnics = host.guests.len();
        let first = (1 << parts.machines(vnics)) - 1;
        let vswitch = match parts.second() {
            // Two ports to the network, as each machine has two vNICs: first vNICs and the first port are lossless.
            Some(_) => VSwitch::mixed(vnics + 2, config.slots, if config.lossless { first | (1 << vnics) } else { 0 }),
            None => VSwitch::new(vnics + 1, config.slots, config.lossless),
        };
        host.max_frame = network.max_frame(gate.max_frame(host.max_frame)) + u32::from(parts.outer());
        let port =
            |vm| Port { tx_free: Instant::ZERO, rx_free: Instant::ZERO, rx_speed: config.receive_ps_per_byte_q16(vm) };
        Virtualised {
            vswitch,
            // Every consumer starts asleep, so that the first frame wakes it.
            vm_ready: u64::MAX,
            port_waits: 0,
            uplink: vnics,
            vnics: (1 << vnics) - 1,
            uplink_ready: true,
            tx_speed: config.vm_ps_per_byte_q16,
            ports: (0..vnics).map(port).collect(),
            gate,
            network,
            parts,
        }
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

    #[inline(always)]
    fn network<R>(
        &mut self,
        host: &mut Host,
        pool: &mut Pool<Packet>,
        call: impl FnOnce(&mut N, &mut Context<'_>) -> R,
    ) -> R {
        call(&mut self.network, &mut Context::new(host, pool, self.gate.slots()))
    }

    /// Whether a vNIC is the first of its machine.
    #[inline(always)]
    fn is_first(&self, vnic: usize) -> bool {
        vnic < self.parts.machines(self.uplink)
    }

    /// The vSwitch port to other servers, for a vNIC.
    #[inline(always)]
    fn uplink_of(&self, vnic: usize) -> usize {
        self.uplink + usize::from(!self.is_first(vnic))
    }

    /// The vSwitch port to a packet's destination.
    #[inline(always)]
    fn output_of(&self, host: &Host, packet: &Packet) -> usize {
        if packet.dst().host() == host.id {
            return packet.dst().vm() as usize;
        }
        self.uplink_of(packet.src().vm() as usize)
    }

    #[inline(always)]
    fn enter_vswitch(&mut self, host: &mut Host, pool: &mut Pool<Packet>, input: usize, output: usize, at: Handle) {
        if output > self.uplink_of(self.uplink - 1) {
            return host.drop_unroutable(pool, at);
        }
        let (uplink, drops) = (self.uplink, &mut host.drops);
        let mut dropped = |k, at| count_in_vswitch(drops, pool, k >= uplink, at);
        if self.vswitch.send(input, output, at, &mut dropped).is_err() {
            // Every sender asks for room before it launches a packet.
            unreachable!("a vSwitch input queue overflowed");
        }
    }

    #[inline(always)]
    fn take_from_vswitch(&mut self, host: &mut Host, pool: &mut Pool<Packet>, port: usize) -> Option<Handle> {
        let (uplink, drops) = (self.uplink, &mut host.drops);
        self.vswitch.receive(port, &mut |k, at| count_in_vswitch(drops, pool, k >= uplink, at))
    }

    /// Whether a frame passes the vSwitch within this instant, without any stage behind it. It then moves at once and takes
    /// no turn of [`run`](Self::run).
    #[inline(always)]
    fn passes_vswitch(&self, output: usize) -> bool {
        P::ONE_AT_A_TIME && self.has_no_stages() && self.vswitch.is_passable(output)
    }

    #[inline(always)]
    fn has_no_stages(&self) -> bool {
        self.gate.slots() == 0 && self.network.slots() == 0
    }

    /// The packet leaves its VM for the vSwitch.
    #[inline(always)]
    fn enter_vswitch_from_vm(&mut self, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        let output = self.output_of(host, pool.frame(at));
        if output == self.uplink && self.passes_vswitch(output) && host.adapter.room::<P::Adapter>() >= host.max_frame {
            self.parts.encapsulate(pool.frame_mut(at));
            return host.enter_adapter::<P::Adapter>(pool, at);
        }
        self.enter_vswitch(host, pool, vm, output, at);
    }

    // To the network.

    /// Network stages take frames from the vSwitch and send their own while the adapter has room; a full adapter always stops them.
    #[inline(never)]
    fn run_network(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        while host.adapter.room::<P::Adapter>() >= host.max_frame {
            let own = match self.network.ready() {
                0 => None,
                _ => self.network(host, pool, |stage, cx| stage.poll_transmit(now, UPLINK_LANE, cx)),
            };
            let at = match own {
                Some(at) => at,
                None => {
                    if !self.uplink_ready || !self.network.takes() {
                        return;
                    }
                    let Some(at) = self.take_from_vswitch(host, pool, self.uplink) else {
                        self.uplink_ready = false;
                        return;
                    };
                    self.uplink_ready = !self.vswitch.sleep_if_empty(self.uplink);
                    match self.network(host, pool, |stage, cx| stage.send(now, UPLINK_LANE, at, cx)) {
                        Some(at) => at,
                        None => continue,
                    }
                }
            };
            self.parts.encapsulate(pool.frame_mut(at));
            host.enter_adapter::<P::Adapter>(pool, at);
        }
    }

    /// Frames of second vNICs go to the adapter.
    #[inline(never)]
    fn run_second_uplink(&mut self, host: &mut Host, pool: &mut Pool<Packet>) {
        let port = self.uplink + 1;
        let has_room = |host: &Host| host.adapter.room_apart::<P::Adapter>() >= host.max_frame;
        while self.parts.second().is_some_and(|second| second.ready) && has_room(host) {
            let taken = self.take_from_vswitch(host, pool, port);
            let is_empty = taken.is_none() || self.vswitch.sleep_if_empty(port);
            let Some(second) = self.parts.second_mut() else { return };
            second.ready = !is_empty;
            let Some(at) = taken else { return };
            self.parts.encapsulate(pool.frame_mut(at));
            host.enter_adapter::<P::Adapter>(pool, at);
        }
    }

    /// Gate stages send frames while the vSwitch has room.
    #[inline(always)]
    fn run_gate(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        let mut lanes = self.gate.ready();
        while lanes != 0 {
            let vm = lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            while self.vswitch.input_room(vm) > 0 {
                let sent = self.gate(host, pool, |stage, cx| stage.poll_transmit(now, vm, cx));
                let Some(at) = sent else { break };
                self.enter_vswitch_from_vm(host, pool, vm, at);
            }
        }
        let mut expects = false;
        while let Some(flow) = self.gate.poll_expected() {
            self.network(host, pool, |stage, cx| stage.expect(now, flow, cx));
            expects = true;
        }
        if expects && self.network.ready() != 0 {
            self.run_network(now, host, pool);
        }
    }

    // To the guests.

    /// A frame goes from the network stages to the vSwitch, without its outer header. Returns whether the frame stays there:
    /// if not, nothing else can move because of it.
    #[inline(always)]
    fn decapsulate_into_vswitch(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) -> bool {
        let packet = pool.frame_mut(at);
        if packet.is_encapsulated() {
            match ecn_out(packet.ecn(), packet.inner_ecn()) {
                Some(inner) => packet.decapsulate(inner, self.parts.outer()),
                None => {
                    host.drop(pool, DropReason::BadEcn, at);
                    return false;
                }
            }
        }
        let vm = packet.dst().vm() as usize;
        if vm < self.uplink && self.passes_vswitch(vm) && self.ports[vm].rx_free <= now {
            self.enter_port(now, host, pool, vm, at);
            return false;
        }
        self.enter_vswitch(host, pool, self.uplink_of(vm), vm, at);
        true
    }

    /// A frame from the wire enters the network stages. Returns whether more than this frame may move now.
    #[inline(always)]
    fn enter_network(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) -> bool {
        match self.network(host, pool, |stage, cx| stage.receive(now, UPLINK_LANE, at, cx)) {
            Some(at) => self.decapsulate_into_vswitch(now, host, pool, at) || !self.has_no_stages(),
            None => {
                self.leave_network(now, host, pool);
                true
            }
        }
    }

    /// Frames that the network stages received go on while the vSwitch has room.
    #[inline(always)]
    fn leave_network(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        while self.network.has_received(UPLINK_LANE) && self.vswitch.input_room(self.uplink) > 0 {
            let received = self.network(host, pool, |stage, cx| stage.poll_receive(now, UPLINK_LANE, cx));
            let Some(at) = received else { return };
            self.decapsulate_into_vswitch(now, host, pool, at);
        }
    }

    /// Whether the network stages and the vSwitch take a frame from the wire.
    #[inline(always)]
    fn takes_from_wire(&self) -> bool {
        !self.network.is_blocked() && self.vswitch.input_room(self.uplink) > 0
    }

    /// Frames that waited in the adapter's receive buffer.
    #[inline(never)]
    fn run_stalled(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        while host.adapter.stalled().is_some() && self.takes_from_wire() {
            let Some(at) = host.adapter.take_stalled(pool) else { break };
            host.record_pauses(now, None);
            self.enter_network(now, host, pool, at);
        }
    }

    /// A frame from the wire finds no room.
    #[cold]
    fn stall(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) {
        let priority = pool.frame(at).priority();
        if let Err(Full(at)) = host.adapter.stall(pool, at) {
            let lossless = host.config.adapter.lossless.contains(priority);
            let reason = if lossless { DropReason::HeadroomExceeded } else { DropReason::AdapterRx };
            host.drop(pool, reason, at);
        }
        // The first of them stops the others.
        let vm = host.adapter.stalled().map(|at| pool.frame(at).dst().vm());
        host.record_pauses(now, vm);
    }

    /// A VM's free port takes a frame.
    #[inline(always)]
    fn enter_port(&mut self, now: Instant, host: &mut Host, pool: &Pool<Packet>, vm: usize, at: Handle) {
        let packet = pool.frame(at);
        let port = &mut self.ports[vm];
        let free = now + Duration((packet.len() as u64 * port.rx_speed) >> 16);
        port.rx_free = free;
        host.enter_rx(free + host.rx_delay(packet), at);
    }

    /// Frames for VMs that gate stages have released.
    fn wake_received(&mut self) {
        if self.gate.has_receive_queues() {
            let vms = self.parts.machines(self.uplink);
            self.vm_ready |= (0..vms).filter(|&vm| self.gate.has_received(vm)).fold(0, |set, vm| set | 1 << vm);
        }
    }

    /// Asks a busy port again when it is free.
    #[inline(always)]
    fn await_port(&mut self, host: &mut Host, vm: usize) {
        if self.port_waits >> vm & 1 == 0 {
            self.port_waits |= 1 << vm;
            host.deadlines.insert(self.ports[vm].rx_free, vm as u16 * DEADLINES + PORT_FREE);
        }
    }

    /// Every one of these VMs whose port is free takes its next frame from the vSwitch.
    fn run_vm_ports(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vms: u64) {
        let mut ready = self.vm_ready & vms;
        while ready != 0 {
            let vm = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            if self.ports[vm].rx_free > now {
                // Busy: the end of the frame asks again, but only when another one waits.
                self.vm_ready &= !(1 << vm);
                self.await_port(host, vm);
                continue;
            }
            let Some(at) = self.take_from_vswitch(host, pool, vm) else {
                self.vm_ready &= !(1 << vm);
                continue;
            };
            let through = if self.is_first(vm) {
                self.gate(host, pool, |stage, cx| stage.receive(now, vm, at, cx))
            } else {
                Some(at)
            };
            if let Some(at) = through {
                self.enter_port(now, host, pool, vm, at);
            }
            // Whether another frame waits is found out at once: the VM then sleeps, or is seen to be busy.
            if self.vswitch.sleep_if_empty(vm) {
                self.vm_ready &= !(1 << vm);
            } else {
                ready |= 1 << vm;
            }
        }
    }

    /// The same through the receive queues of gate stages, which take all frames that the vSwitch has.
    fn run_queued_ports(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vms: u64) {
        let mut ready = self.vm_ready & vms;
        while ready != 0 {
            let vm = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            while let Some(at) = self.take_from_vswitch(host, pool, vm) {
                let through = self.gate(host, pool, |stage, cx| stage.receive(now, vm, at, cx));
                assert!(through.is_none(), "a stage with receive queues keeps every frame");
            }
            self.vswitch.sleep_if_empty(vm);
            self.vm_ready &= !(1 << vm);
            if self.ports[vm].rx_free <= now
                && let Some(at) = self.gate(host, pool, |stage, cx| stage.poll_receive(now, vm, cx))
            {
                self.enter_port(now, host, pool, vm, at);
            }
            if self.gate.has_received(vm) {
                self.await_port(host, vm);
            }
        }
    }

    /// Moves frames until none can move.
    #[inline(never)]
    fn run(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        let vms = self.vnics;
        let first = (1u64 << self.parts.machines(self.uplink)) - 1;
        loop {
            let wakes = self.vswitch.take_wakes();
            self.uplink_ready |= wakes.receivers >> self.uplink & 1 != 0;
            if let Some(second) = self.parts.second_mut() {
                second.ready |= wakes.receivers >> (self.uplink + 1) & 1 != 0;
            }
            // A VM whose port is still busy is not asleep: it asks again when the port is free.
            self.vm_ready |= wakes.receivers & vms;
            self.leave_network(now, host, pool);
            if self.uplink_ready || self.network.ready() != 0 {
                self.run_network(now, host, pool);
            }
            if self.parts.second().is_some_and(|second| second.ready) {
                self.run_second_uplink(host, pool);
            }
            if self.gate.has_receive_queues() {
                if self.parts.second().is_some() {
                    self.run_vm_ports(now, host, pool, vms & !first);
                }
                self.run_queued_ports(now, host, pool, first);
            } else {
                self.run_vm_ports(now, host, pool, vms);
            }
            self.run_gate(now, host, pool);
            // Sockets that a gate stage woke.
            if host.runnable != 0 {
                self.pull_all(now, host, pool);
            }
            if host.adapter.stalled().is_some() {
                self.run_stalled(now, host, pool);
            }
            if host.blocked != 0 {
                self.unblock(host);
                self.pull_all(now, host, pool);
            }
            // Only a frame that entered the vSwitch, or a stage that received one, can have woken a part since.
            if !self.vswitch.has_wakes() && host.runnable == 0 {
                return;
            }
        }
    }

    /// Whether a network port of the vSwitch may have a frame.
    #[inline(always)]
    fn has_output(&self) -> bool {
        self.uplink_ready || self.parts.second().is_some_and(|second| second.ready) || self.network.ready() != 0
    }
}

impl<P: Parts> Virtualised<Credits, ZBridge, P> {
    /// Names the memory that a frame from the wire will touch in the chain.
    #[inline(always)]
    pub fn fetch(&self, step: PrefetchStep, packet: Option<&Packet>, fetch: impl Fn(*const u8)) {
        if step == PrefetchStep::Lists {
            let first = core::ptr::from_ref(self).cast::<u8>();
            (0..size_of::<Self>()).step_by(64).for_each(|at| fetch(first.wrapping_add(at)));
        } else if let Some(packet) = packet.filter(|packet| (packet.dst().vm() as usize) < self.uplink) {
            self.network.fetch(step, packet, &fetch);
            self.gate.fetch(step, packet, &fetch);
        }
    }
}

impl<G: Stage, N: Stage, P: Parts> Chain for Virtualised<G, N, P> {
    type Adapter = P::Adapter;

    #[inline(always)]
    fn has_room(&self, host: &Host, vm: usize) -> bool {
        let below = self.vswitch.input_room(vm) > host.guests[vm].tx.len() as u32;
        if self.is_first(vm) { self.gate.has_room(vm, below) } else { below }
    }
    #[inline(always)]
    fn blocks(&mut self, own: HostId, vm: usize, to: Address, socket: u32) -> bool {
        self.is_first(vm)
            && (self.gate.blocks(vm, to, socket) || to.host() != own && self.network.blocks(vm, to, socket))
    }

    #[inline(always)]
    fn launch(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        host.from_guests += 1;
        let packet = pool.frame(at);
        let to = packet.dst();
        if self.is_first(vm) && self.parts.allows(packet) {
            self.gate.on_launch(vm, to);
            if to.host() != host.id {
                self.network.on_launch(vm, to);
            }
        }
        let delay = host.tx_delay(packet);
        let port = &mut self.ports[vm];
        port.tx_free = port.tx_free.max(now) + Duration((packet.len() as u64 * self.tx_speed) >> 16);
        let through = port.tx_free + delay;
        host.enter_tx(vm, through, packet, at);
    }

    #[inline(always)]
    fn send(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        if !self.parts.allows(pool.frame(at)) {
            return host.drop(pool, DropReason::Denied, at);
        }
        let through =
            if self.is_first(vm) { self.gate(host, pool, |stage, cx| stage.send(now, vm, at, cx)) } else { Some(at) };
        if let Some(at) = through {
            self.enter_vswitch_from_vm(host, pool, vm, at);
        }
    }

    #[inline(always)]
    fn receive(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) -> bool {
        let packet = pool.frame(at);
        let vm = packet.dst().vm() as usize;
        if packet.dst().host() != host.id || vm >= self.uplink {
            if self.network.consumes(packet) {
                return self.enter_network(now, host, pool, at);
            }
            host.drop_unroutable(pool, at);
        } else if !self.parts.allows(packet) {
            // Before a stage keeps or answers it.
            host.drop(pool, DropReason::Denied, at);
        } else if !self.is_first(vm) {
            // A lossy uplink always has room.
            self.decapsulate_into_vswitch(now, host, pool, at);
        } else if self.takes_from_wire() && host.adapter.stalled().is_none() || self.network.consumes(packet) {
            return self.enter_network(now, host, pool, at);
        } else {
            self.stall(now, host, pool, at);
        }
        true
    }

    #[inline(always)]
    fn on_transmit(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        // The frame made room.
        if self.has_output() {
            self.run(now, host, pool);
        }
    }
    #[inline(always)]
    fn settle(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        self.pull_all(now, host, pool);
        if self.vswitch.has_wakes()
            || self.has_output()
            || self.vm_ready & self.vnics | host.blocked | self.gate.ready() != 0
            || host.adapter.stalled().is_some()
            || self.network.has_received(UPLINK_LANE)
        {
            self.run(now, host, pool);
        }
    }

    #[inline(always)]
    fn on_port_free(&mut self, vm: usize) {
        self.port_waits &= !(1 << vm);
        self.vm_ready |= 1 << vm;
    }
    fn handle_timer(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, (at, class, token): Timer) {
        let slot = class - FIRST_SLOT;
        match slot.checked_sub(self.gate.slots()) {
            None => {
                self.gate(host, pool, |stage, cx| stage.handle_timer(now, at, slot, token, cx));
                self.wake_received();
            }
            Some(slot) => self.network(host, pool, |stage, cx| stage.handle_timer(now, at, slot, token, cx)),
        }
    }
    fn receive_metadata(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, packet: &Packet) {
        self.network(host, pool, |stage, cx| stage.receive_metadata(now, packet, cx));
    }
    #[inline(always)]
    fn vms_are_apart(&self) -> bool {
        P::ONE_AT_A_TIME && self.has_no_stages()
    }
    fn report(&self, report: &mut Report) {
        report.queued += u64::from(self.vswitch.queued());
        self.gate.report(report);
        self.network.report(report);
    }
}

/// The lossy vSwitch dropped a frame.
#[cold]
fn count_in_vswitch(drops: &mut Drops, pool: &mut Pool<Packet>, uplink: bool, at: Handle) {
    let reason = if uplink { DropReason::VswitchUplink } else { DropReason::VswitchVm };
    drops.count(reason, pool.frame(at).len() as u64);
    pool.release(at);
}
