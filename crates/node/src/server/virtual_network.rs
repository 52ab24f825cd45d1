//! Between the guests and the adapter: the vSwitch, the ports of the VMs, the tunnel bridge.

use super::zbridge::passes;
use super::{Access, Core, DEADLINES, LossyVnics, PORT_FREE, ZBridge};
use crate::door::PortId;
use crate::packet::{Address, Packet};
use crate::pool::{Handle, Pool};
use crate::switch::{Cause, PauseEvent};
use sluicenet_proto::frame::Frame;
use sluicenet_proto::loss::{DropReason, Drops, Full};
use sluicenet_proto::overlay::bridge::{ecn_in, ecn_out};
use sluicenet_proto::overlay::vswitch::VSwitch;
use sluicenet_proto::time::Instant;

impl Core {
    #[inline(never)]
    pub(super) fn settle_virtual(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        loop {
            let Some(v) = self.vswitch.as_mut() else { return };
            let wakes = v.take_wakes();
            self.bridge_ready |= wakes.receivers >> uplink & 1 != 0;
            self.lossy_ready |= wakes.receivers >> (uplink + 1) & 1 != 0;
            let vms = (1u64 << uplink) - 1;
            let first = (1u64 << self.machines) - 1;
            // A VM whose port is still busy is not asleep: it asks again when the port is free.
            self.vm_ready |= wakes.receivers & vms;
            if self.zbridge.is_some() {
                self.leave_zbridge(pool);
                self.run_zbridge(now, pool);
            } else if self.tunnels.is_some() {
                self.leave_tunnels(now, pool);
                self.run_tunnels(now, pool);
            } else if self.bridge_ready {
                self.run_bridge(pool);
            }
            if self.lossy_ready {
                self.run_lossy_bridge(pool);
            }
            if self.credits.is_some() {
                if self.vm_ready & vms & !first != 0 {
                    self.run_vm_ports(now, pool, vms & !first);
                }
                self.run_credit_ports(now, pool);
                self.run_credits(now, pool);
                // Greetings that go with requests.
                if self.zbridge().is_some_and(ZBridge::has_output) {
                    self.run_zbridge(now, pool);
                }
                // Sockets that waited because too much did.
                if self.runnable != 0 {
                    self.pull_all(now, pool);
                }
            } else if self.vm_ready & vms != 0 {
                self.run_vm_ports(now, pool, vms);
            }
            if self.adapter.stalled().is_some() {
                self.run_stalled(now, pool);
            }
            if self.blocked != 0 {
                self.unblock();
                self.pull_all(now, pool);
            }
            // Only a frame that entered the vSwitch can have woken somebody since.
            if !self.vswitch.as_ref().is_some_and(VSwitch::has_wakes) {
                return;
            }
        }
    }

    /// The bridge takes frames from the vSwitch while the adapter has room; a full adapter always stops it.
    pub(super) fn run_bridge(&mut self, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        let outer = self.encapsulation();
        while self.bridge_ready && self.adapter.room() >= self.max_frame {
            let Some(at) = self.take_from_vswitch(pool, uplink) else {
                self.bridge_ready = false;
                return;
            };
            if outer > 0 {
                let packet = pool.frame_mut(at);
                packet.encapsulate(ecn_in(packet.ecn()), outer);
            }
            self.enter_adapter(pool, at);
            self.bridge_ready = !self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(uplink));
        }
    }

    /// The same of second vNICs: what is for a host outside goes as it is.
    fn run_lossy_bridge(&mut self, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len() + 1;
        let outer = self.encapsulation();
        while self.lossy_ready && self.adapter.room_apart() >= self.max_frame {
            let Some(at) = self.take_from_vswitch(pool, uplink) else {
                self.lossy_ready = false;
                return;
            };
            let packet = pool.frame_mut(at);
            if outer > 0 && self.config.lossy_vnics.is_some_and(|v| packet.dst().host() < v.outside) {
                packet.encapsulate(ecn_in(packet.ecn()), outer);
            }
            self.enter_adapter(pool, at);
            self.lossy_ready = !self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(uplink));
        }
    }

    /// Every one of these VMs whose port is free takes its next frame.
    pub(super) fn run_vm_ports(&mut self, now: Instant, pool: &mut Pool<Packet>, vms: u64) {
        let mut ready = self.vm_ready & vms;
        while ready != 0 {
            let vm = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            let rx_free = self.guests[vm].rx_free;
            if rx_free > now {
                // Busy: the end of the frame asks again, but only when something waits for it.
                self.vm_ready &= !(1 << vm);
                if self.port_waits >> vm & 1 == 0 {
                    self.port_waits |= 1 << vm;
                    self.deadlines.insert(rx_free, vm as u16 * DEADLINES + PORT_FREE);
                }
                continue;
            }
            let Some(at) = self.take_from_vswitch(pool, vm) else {
                self.vm_ready &= !(1 << vm);
                continue;
            };
            self.enter_port(now, pool, vm, at);
            // Whether another frame waits is found out at once: the VM then sleeps, or is seen to be busy.
            if self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(vm)) {
                self.vm_ready &= !(1 << vm);
            } else {
                ready |= 1 << vm;
            }
        }
    }

    /// Frames that waited in the adapter for room in the vSwitch.
    pub(super) fn run_stalled(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        while self.adapter.stalled().is_some()
            && self.vswitch.as_ref().is_some_and(|v| v.input_room(uplink) > 0)
            && !self.zbridge().is_some_and(ZBridge::is_stopped)
        {
            let Some(at) = self.adapter.take_stalled(pool) else { break };
            self.note_pauses(now, None);
            self.enter_bridge(now, pool, at);
        }
    }

    /// The vSwitch port towards a packet's destination.
    pub(super) fn output_of(&self, packet: &Packet) -> usize {
        if packet.dst().host() == self.id {
            return packet.dst().vm() as usize;
        }
        self.uplink_of(packet.src().vm() as usize)
    }

    /// The vSwitch port towards other servers, for a vNIC.
    fn uplink_of(&self, vnic: usize) -> usize {
        self.guests.len() + usize::from(vnic >= self.machines)
    }

    pub(super) fn enter_vswitch(&mut self, pool: &mut Pool<Packet>, input: usize, output: usize, at: Handle) {
        let uplink = self.guests.len();
        if output > self.uplink_of(uplink - 1) {
            return self.drop(pool, DropReason::NoRoute, at);
        }
        if input >= uplink && !self.may_pass(pool.frame(at)) {
            return self.drop(pool, DropReason::Denied, at);
        }
        let Some(v) = self.vswitch.as_mut() else { return };
        let drops = &mut self.drops;
        let mut dropped = |k, at| count_in_vswitch(drops, pool, k >= uplink, at);
        if v.send(input, output, at, &mut dropped).is_err() {
            // Every sender asks for room before it launches a packet.
            unreachable!("a vSwitch input queue overflowed");
        }
    }

    pub(super) fn take_from_vswitch(&mut self, pool: &mut Pool<Packet>, port: usize) -> Option<Handle> {
        let uplink = self.guests.len();
        let drops = &mut self.drops;
        self.vswitch.as_mut()?.receive(port, &mut |k, at| count_in_vswitch(drops, pool, k >= uplink, at))
    }

    pub(super) fn accept_virtual(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let uplink = self.guests.len();
        let packet = pool.frame(at);
        if !self.may_pass(packet) {
            // Before anything is kept or answered.
            return self.drop(pool, DropReason::Denied, at);
        }
        if packet.dst().vm() as usize >= self.machines {
            // Where nothing is held back nothing waits.
            return self.decapsulate_into_vswitch(pool, at);
        }
        let is_stopped = self.zbridge().is_some_and(ZBridge::is_stopped);
        let room = !is_stopped && self.vswitch.as_ref().is_some_and(|v| v.input_room(uplink) > 0);
        if room && self.adapter.stalled().is_none() || passes(pool.frame(at)) {
            self.enter_bridge(now, pool, at);
        } else {
            let priority = pool.frame(at).priority();
            if let Err(Full(at)) = self.adapter.stall(pool, at) {
                let lossless = self.config.adapter.lossless.contains(priority);
                let reason = if lossless { DropReason::HeadroomExceeded } else { DropReason::AdapterRx };
                self.drop(pool, reason, at);
            }
            // The first of them holds up the others.
            let vm = self.adapter.stalled().map(|at| pool.frame(at).dst().vm());
            self.note_pauses(now, vm);
        }
    }

    /// A frame from the wire that has room enters the bridge.
    fn enter_bridge(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        if self.zbridge.is_some() {
            self.enter_zbridge(now, pool, at);
        } else {
            self.decapsulate_into_vswitch(pool, at);
        }
    }

    /// Records what the adapter told its links since the last call: because of a VM that does not take its frames, or of
    /// frames that wait for earlier ones.
    #[inline(always)]
    pub(super) fn note_pauses(&mut self, now: Instant, vm: Option<u8>) {
        for (priority, stop) in self.adapter.take_told() {
            for port in 0..self.adapter.ports() as PortId {
                let cause = vm.map_or(Cause::Link(port), Cause::Vm);
                self.pauses.push(PauseEvent { at: now, port, priority, stop, cause, cause_is_held: false });
            }
        }
    }

    pub(super) fn encapsulation(&self) -> u16 {
        self.config.virtual_network.as_ref().map_or(0, |v| v.encapsulation)
    }

    pub(super) fn decapsulate_into_vswitch(&mut self, pool: &mut Pool<Packet>, at: Handle) {
        let outer = self.encapsulation();
        let packet = pool.frame_mut(at);
        if packet.is_encapsulated() {
            match ecn_out(packet.ecn(), packet.inner_ecn()) {
                Some(inner) => packet.decapsulate(inner, outer),
                None => return self.drop(pool, DropReason::BadEcn, at),
            }
        }
        let vm = packet.dst().vm() as usize;
        self.enter_vswitch(pool, self.uplink_of(vm), vm, at);
    }

    /// Whether who sent a packet may talk to its destination: first vNICs with each other, second ones and hosts outside with each other,
    /// and machines as the policy says.
    #[inline(always)]
    pub(super) fn may_pass(&self, packet: &Packet) -> bool {
        let of_one_stack = |v: &LossyVnics| v.serves(packet.src()) == v.serves(packet.dst());
        self.config.lossy_vnics.as_ref().is_none_or(of_one_stack)
            && self.config.access.as_ref().is_none_or(|access| self.allows(access, packet))
    }

    #[inline(never)]
    fn allows(&self, access: &Access, packet: &Packet) -> bool {
        let machine = |a: Address| {
            let first = self.config.lossy_vnics.map_or(a, |v| v.machine(a));
            (a.host() < access.outside).then_some(first)
        };
        access.policy.allows(machine(packet.src()), machine(packet.dst()))
    }
}

/// The lossy vSwitch threw a frame out.
#[cold]
fn count_in_vswitch(drops: &mut Drops, pool: &mut Pool<Packet>, uplink: bool, at: Handle) {
    let reason = if uplink { DropReason::VswitchUplink } else { DropReason::VswitchVm };
    drops.count(reason, pool.frame(at).len() as u64);
    pool.release(at);
}
