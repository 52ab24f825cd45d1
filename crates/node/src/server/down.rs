//! From the sockets to the chain.

use super::host::{DEADLINES, Host, PACE_TIMER, TX, keep_deadline};
use super::{ServerConfig, roce};
use crate::adapter::Kind as AdapterKind;
use crate::deadlines::Delayed;
use crate::guest::{Body, SocketId};
use crate::packet::{Address, FlowKey, IP_LIGHT_BYTES, IP_UDP_BYTES, Kind, Packet};
use crate::pool::{Handle, Pool};
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::loss::{DropReason, Full};
use sluicenet_proto::tcp::Tcp;
use sluicenet_proto::time::{Duration, Instant};

impl Host {
    /// One packet from the next socket of a VM that no stage blocks. It is written in its place in the pool.
    #[inline(always)]
    pub(super) fn pull(
        &mut self,
        now: Instant,
        pool: &mut Pool<Packet>,
        vm: usize,
        mut blocks: impl FnMut(Address, u32) -> bool,
    ) -> Option<Handle> {
        loop {
            let guest = &mut self.guests[vm];
            let index = guest.ready.pop_front()?;
            let Some(s) = guest.sockets.get_mut(index) else { continue };
            if blocks(s.flow.dst, index) {
                continue;
            }
            match &mut s.body {
                Body::Tcp(tcp) => {
                    let config = &*self.config;
                    let sent = match tcp.poll_plain(&config.tcp, now) {
                        Some(t) => {
                            Some(pool.insert(&Packet::plain(s.flow, &t.segment, t.ect, s.priority, config.framing)))
                        }
                        None => poll_any(tcp, config, now, s.flow, s.priority).map(|packet| pool.insert(&packet)),
                    };
                    if sent.is_some() && tcp.wants_transmit(&config.tcp, now) {
                        guest.ready.push_back(index);
                    } else {
                        s.scheduled = false;
                        keep_deadline(&mut self.timers, s, SocketId { vm: vm as u8, index });
                    }
                    if sent.is_some() {
                        return sent;
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
                    if let Some(packet) = packet {
                        return Some(pool.insert(&packet));
                    }
                }
                Body::Roce(_) => {
                    let id = SocketId { vm: vm as u8, index };
                    let packet = roce::poll_transmit(&self.config, now, s, id, &mut self.timers);
                    if packet.is_none() {
                        s.scheduled = false;
                        continue;
                    }
                    guest.ready.push_back(index);
                    return packet.map(|packet| pool.insert(&packet));
                }
                Body::Udp(sender, _) => {
                    if guest.tx_datagram_bytes + self.max_frame > self.config.udp_buffer {
                        guest.parked.push(index);
                        continue;
                    }
                    if let Some(at) = sender.poll_timeout().filter(|&at| at > now) {
                        s.scheduled = false;
                        self.timers.push((at, PACE_TIMER, (vm as u64) << 32 | index as u64));
                        continue;
                    }
                    let datagram = sender.poll_transmit_at(now, self.config.mtu - IP_UDP_BYTES);
                    if sender.pending() > 0 {
                        guest.ready.push_back(index);
                    } else {
                        s.scheduled = false;
                    }
                    if let Some((offset, len)) = datagram {
                        let packet = Packet::udp(s.flow, offset, len, s.priority, self.config.framing);
                        return Some(pool.insert(&packet));
                    }
                }
            }
        }
    }

    /// Time that a packet takes from its socket to the guest's network port.
    #[inline(always)]
    pub(super) fn tx_delay(&self, packet: &Packet) -> Duration {
        match packet.kind() {
            Kind::Udp => self.config.udp_tx_delay,
            Kind::Light => self.config.light_tx_delay,
            Kind::Roce => Duration::ZERO,
            _ => self.config.tcp_tx_delay,
        }
    }

    /// Sends a packet back up that never leaves a server without a vSwitch.
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
    pub(super) fn enter_adapter<K: AdapterKind>(&mut self, pool: &mut Pool<Packet>, at: Handle) {
        if let Err(Full(at)) = self.adapter.enqueue::<K, _>(pool, at) {
            self.drop(pool, DropReason::AdapterTx, at);
        }
    }

    /// A packet enters the network stack of its VM, and leaves the stack at `through`.
    #[inline(always)]
    pub(super) fn enter_tx(&mut self, vm: usize, through: Instant, packet: &Packet, at: Handle) {
        self.in_stacks += 1;
        let guest = &mut self.guests[vm];
        guest.tx_datagram_bytes += if packet.kind() == Kind::Udp { packet.len() } else { 0 };
        guest.tx.push(Delayed { at: through, packet: at });
        if through < guest.tx_deadline {
            guest.tx_deadline = through;
            self.deadlines.insert(through, vm as u16 * DEADLINES + TX);
        }
    }

    /// The next packet that leaves the network stack of a VM.
    #[inline(always)]
    pub(super) fn leave_tx(&mut self, now: Instant, vm: usize) -> Option<Handle> {
        let delayed = self.guests[vm].tx.pop(now)?;
        self.in_stacks -= 1;
        Some(delayed.packet)
    }

    /// Sets the deadline of the packets that are left in the network stack of a VM.
    #[inline(always)]
    pub(super) fn set_tx_deadline(&mut self, vm: usize) {
        let guest = &mut self.guests[vm];
        guest.tx_deadline = guest.tx.first();
        if guest.tx_deadline != Instant::MAX {
            self.deadlines.insert(guest.tx_deadline, vm as u16 * DEADLINES + TX);
        }
    }

    /// A datagram left the network stack of a VM: its send buffers have room again.
    #[inline(never)]
    pub(super) fn free_datagram_buffer(&mut self, vm: usize, len: u32) {
        let guest = &mut self.guests[vm];
        guest.tx_datagram_bytes -= len;
        if !guest.parked.is_empty() {
            guest.ready.extend(guest.parked.drain(..));
            self.runnable |= (1 << vm) & !self.blocked;
        }
    }
}

/// The next segment of a connection on which something is out of the ordinary.
#[cold]
#[inline(never)]
fn poll_any(tcp: &mut Tcp, config: &ServerConfig, now: Instant, flow: FlowKey, priority: Priority) -> Option<Packet> {
    let sent = tcp.poll_transmit(&config.tcp, now)?;
    Some(Packet::tcp(flow, &sent.segment, sent.ect, priority, config.framing))
}
