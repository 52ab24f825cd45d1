//! Down: from the sockets to the wire, or to the vSwitch.

use super::{Core, DEADLINES, PACE_TIMER, TX, WhenFull, keep_deadline};
use crate::due::Passage;
use crate::guest::{Body, SocketId};
use crate::packet::{IP_LIGHT_BYTES, IP_UDP_BYTES, Kind, Packet};
use crate::pool::{Handle, Pool};
use core::cmp::Reverse;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::loss::{DropReason, Full};
use sluicenet_proto::time::{Duration, Instant};

impl Core {
    #[inline(always)]
    pub(super) fn pull_all(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        while self.runnable != 0 {
            // VMs take turns, one packet each.
            let after = self.runnable & !((2u64 << (self.turn & 63)) - 1);
            let vm = if after != 0 { after } else { self.runnable }.trailing_zeros();
            self.turn = vm;
            if !self.has_room(vm as usize) {
                self.runnable &= !(1 << vm);
                self.blocked |= 1 << vm;
                continue;
            }
            match self.pull(now, vm as usize) {
                Some(packet) => self.launch(now, pool, vm as usize, &packet),
                None => self.runnable &= !(1 << vm),
            }
        }
    }

    /// VMs that waited for room below and have it now.
    pub(super) fn unblock(&mut self) {
        let mut vms = self.blocked;
        while vms != 0 {
            let vm = vms.trailing_zeros() as usize;
            vms &= vms - 1;
            if self.has_room(vm) {
                self.blocked &= !(1 << vm);
                if !self.guests[vm].ready.is_empty() {
                    self.runnable |= 1 << vm;
                }
            }
        }
    }

    /// Whether the stage below VM `vm` takes one more packet.
    #[inline(always)]
    pub(super) fn has_room(&self, vm: usize) -> bool {
        match &self.vswitch {
            Some(v) => match &self.credits {
                Some(credits) if vm < self.machines => credits.has_room(vm),
                _ => v.input_room(vm) > self.guests[vm].tx.len() as u32,
            },
            None => self.config.when_full == WhenFull::Drop || self.adapter.room() >= self.reserved + self.max_frame,
        }
    }

    /// One packet from the next socket of VM `vm`.
    #[inline(always)]
    pub(super) fn pull(&mut self, now: Instant, vm: usize) -> Option<Packet> {
        loop {
            let guest = &mut self.guests[vm];
            let index = guest.ready.pop_front()?;
            let Some(s) = guest.sockets.get_mut(index) else { continue };
            if vm < self.machines && self.credits.as_mut().is_some_and(|c| c.parks(vm, s.flow.dst, index)) {
                continue;
            }
            match &mut s.body {
                Body::Tcp(tcp) => {
                    let sent = tcp.poll_transmit(&self.config.tcp, now);
                    let packet = sent.map(|t| Packet::tcp(s.flow, &t.segment, t.ect, s.priority, self.config.framing));
                    if packet.is_some() && tcp.wants_transmit(&self.config.tcp, now) {
                        guest.ready.push_back(index);
                    } else {
                        s.scheduled = false;
                        keep_deadline(&mut self.timers, s, SocketId { vm: vm as u8, index });
                    }
                    if packet.is_some() {
                        return packet;
                    }
                }
                Body::Light(stream) => {
                    let Some(stream) = stream else {
                        s.scheduled = false;
                        continue;
                    };
                    let mss = u32::from(self.config.mtu - IP_LIGHT_BYTES);
                    let sent = stream.poll_transmit(mss);
                    if stream.wants_transmit() {
                        guest.ready.push_back(index);
                    } else {
                        s.scheduled = false;
                    }
                    let is_over = stream.is_closed();
                    let packet = sent.map(|t| Packet::light(s.flow, &t, s.priority, self.config.framing));
                    if is_over {
                        self.drop_light_if_over(now, SocketId { vm: vm as u8, index });
                    }
                    if packet.is_some() {
                        return packet;
                    }
                }
                Body::Udp(sender, _) => {
                    if guest.tx_datagram_bytes + self.max_frame > self.config.udp_buffer {
                        guest.parked.push(index);
                        continue;
                    }
                    if let Some(at) = sender.poll_timeout().filter(|&at| at > now) {
                        s.scheduled = false;
                        self.timers.push(Reverse((at, PACE_TIMER, (vm as u64) << 32 | index as u64)));
                        continue;
                    }
                    let datagram = sender.poll_transmit_at(now, self.config.mtu - IP_UDP_BYTES);
                    if sender.pending() > 0 {
                        guest.ready.push_back(index);
                    } else {
                        s.scheduled = false;
                    }
                    if let Some((offset, len)) = datagram {
                        return Some(Packet::udp(s.flow, offset, len, s.priority, self.config.framing));
                    }
                }
            }
        }
    }

    /// A packet left its socket.
    #[inline(always)]
    pub(super) fn launch(&mut self, now: Instant, pool: &mut Pool<Packet>, vm: usize, packet: &Packet) {
        self.from_guests += 1;
        let at = pool.insert(packet);
        let datagram = packet.kind() == Kind::Udp;
        let delay = match packet.kind() {
            Kind::Udp => self.config.udp_tx_delay,
            Kind::Light => self.config.light_tx_delay,
            _ => self.config.tcp_tx_delay,
        };
        match &self.config.virtual_network {
            Some(v) => {
                if vm < self.machines
                    && self.may_pass(packet)
                    && let Some(credits) = &mut self.credits
                {
                    credits.on_launch(vm, packet.dst());
                }
                let guest = &mut self.guests[vm];
                guest.tx_free = guest.tx_free.max(now) + Duration((packet.len() as u64 * v.vm_ps_per_byte_q16) >> 16);
                let through = guest.tx_free + delay;
                self.enter_tx(vm, datagram, through, packet.len(), at);
            }
            None if packet.dst().host() == self.id => self.loop_back(now + delay, pool, at),
            None if delay == Duration::ZERO => self.enter_adapter(pool, at),
            None => {
                self.reserved += packet.len();
                self.enter_tx(vm, datagram, now + delay, packet.len(), at);
            }
        }
    }

    /// A packet that never leaves a server without a vSwitch goes up again.
    #[cold]
    pub(super) fn loop_back(&mut self, time: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let packet = pool.frame(at);
        let vm = packet.dst().vm() as usize;
        if vm >= self.guests.len() {
            return self.drop(pool, DropReason::NoRoute, at);
        }
        let through = time + self.rx_delay(packet);
        self.enter_rx(through, at);
    }

    #[inline(always)]
    pub(super) fn enter_adapter(&mut self, pool: &mut Pool<Packet>, at: Handle) {
        if let Err(Full(at)) = self.adapter.enqueue(pool, at) {
            self.drop(pool, DropReason::AdapterTx, at);
        }
    }

    /// Sends a packet from a socket on its way to the stage below.
    #[inline(always)]
    pub(super) fn enter_tx(&mut self, vm: usize, datagram: bool, through: Instant, len: u32, at: Handle) {
        self.on_the_way += 1;
        let guest = &mut self.guests[vm];
        guest.tx_datagram_bytes += if datagram { len } else { 0 };
        guest.tx.push(Passage { at: through, packet: at });
        if through < guest.tx_due {
            guest.tx_due = through;
            self.deadlines.insert(through, vm as u16 * DEADLINES + TX);
        }
    }

    /// Packets of a VM reach the stage below.
    pub(super) fn run_tx(&mut self, now: Instant, pool: &mut Pool<Packet>, vm: usize) {
        while let Some(Passage { packet, .. }) = self.guests[vm].tx.pop(now) {
            self.on_the_way -= 1;
            self.leave_tx(pool, vm, packet);
        }
        let guest = &mut self.guests[vm];
        guest.tx_due = guest.tx.first();
        if guest.tx_due != Instant::MAX {
            self.deadlines.insert(guest.tx_due, vm as u16 * DEADLINES + TX);
        }
    }

    #[inline(always)]
    pub(super) fn leave_tx(&mut self, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        let packet = pool.frame(at);
        let (len, kind) = (packet.len(), packet.kind());
        // A host outside has no hypervisor: what it may send is the other end's to say.
        if self.vswitch.is_some() && !self.may_pass(packet) {
            self.drop(pool, DropReason::Denied, at);
        } else if vm < self.machines
            && let Some(credits) = &mut self.credits
        {
            credits.hold(vm, packet.dst(), at);
        } else if self.vswitch.is_some() {
            let port = self.output_of(packet);
            self.enter_vswitch(pool, vm, port, at);
        } else {
            self.reserved -= len;
            self.enter_adapter(pool, at);
        }
        if kind == Kind::Udp {
            let guest = &mut self.guests[vm];
            guest.tx_datagram_bytes -= len;
            if !guest.parked.is_empty() {
                guest.ready.extend(guest.parked.drain(..));
                self.runnable |= (1 << vm) & !self.blocked;
            }
        }
    }
}
