//! Credits between a server's machines and its vSwitch.

use super::{CREDIT_TIMER, Core, DEADLINES, PORT_FREE};
use crate::credits;
use crate::packet::{Address, Kind, Packet};
use crate::pool::{Handle, Pool};
use core::cmp::Reverse;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zcredit::Message;

/// Those of a simulated server.
pub type Credits = credits::Credits<Address, Handle>;

impl Core {
    /// The credits of its machines, where there are any.
    pub fn credits(&self) -> Option<&Credits> {
        self.credits.as_deref()
    }

    /// Says what there is to say, then sends what may be sent, while the vSwitch has room.
    pub(super) fn run_credits(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let Some(mut credits) = self.credits.take() else { return };
        let mut from = 0;
        while let Some(vm) = credits.next_ready(from) {
            from = vm + 1;
            let is_stopped = loop {
                if self.vswitch.as_ref().is_none_or(|v| v.input_room(vm) == 0) {
                    // Looked at again whenever something has moved.
                    credits.wake(vm);
                    break true;
                }
                let (me, priority) = (Address::new(self.id, vm as u8), credits.config().priority);
                if let Some((to, channel, message)) = credits.poll_message(now, vm) {
                    if matches!(message, Message::Request { .. })
                        && let Some(&at) = credits.first_waiting(vm, to)
                    {
                        self.open_zbridge(now, vm as u8, to, pool.frame(at).priority());
                    }
                    let packet = Packet::credit(me, to, channel, &message, priority, self.config.framing);
                    let at = pool.insert(&packet);
                    self.enter_vswitch(pool, vm, self.output_of(&packet), at);
                } else if let Some((at, freed)) = credits.poll_frame(vm, |_| true) {
                    if !freed.is_empty() {
                        self.guests[vm].ready.extend(freed);
                        self.runnable |= (1 << vm) & !self.blocked;
                    }
                    let output = self.output_of(pool.frame(at));
                    self.enter_vswitch(pool, vm, output, at);
                } else {
                    break false;
                }
            };
            // What could not be said yet may be overdue: a deadline for it would come up at once, again and again.
            if !is_stopped && let Some(at) = credits.arm(vm) {
                self.timers.push(Reverse((at, CREDIT_TIMER, (vm as u64) << 32)));
            }
        }
        self.credits = Some(credits);
    }

    pub(super) fn run_credit_timer(&mut self, now: Instant, at: Instant, vm: usize) {
        let Some(credits) = self.credits.as_mut() else { return };
        if credits.armed_at(vm) == at {
            credits.handle_timeout(now, vm);
        }
    }

    /// Every machine's receive queue takes what the vSwitch has for it, and every machine whose port is free its next frame.
    pub(super) fn run_credit_ports(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let Some(mut credits) = self.credits.take() else { return };
        let mut ready = self.vm_ready & ((1u64 << self.machines) - 1);
        while ready != 0 {
            let vm = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            while let Some(at) = self.take_from_vswitch(pool, vm) {
                let packet = pool.frame(at);
                let from = packet.src();
                if packet.kind() == Kind::Credit {
                    let (channel, message) = packet.credit_message();
                    pool.release(at);
                    let weights = self.config.virtual_network.as_ref().map(|v| &v.weights);
                    if let Some(&weight) = weights.and_then(|w| w.get(&from)) {
                        // Every time: a source that was idle for long may have been forgotten.
                        credits.set_weight(now, vm, from, weight);
                    }
                    // A simulated server forgets nobody: its connections last.
                    credits.on_message(now, vm, from, channel, &message);
                } else if let Err(at) = credits.receive(now, vm, from, at) {
                    self.drop(pool, DropReason::NoCredit, at);
                }
            }
            if let Some(v) = &mut self.vswitch {
                v.sleep_if_empty(vm);
            }
            self.vm_ready &= !(1 << vm);
            if self.guests[vm].rx_free <= now
                && let Some(at) = credits.take(vm)
            {
                credits.on_departure(now, vm);
                self.enter_port(now, pool, vm, at);
            }
            if credits.has_received(vm) && self.port_waits >> vm & 1 == 0 {
                self.port_waits |= 1 << vm;
                self.deadlines.insert(self.guests[vm].rx_free, vm as u16 * DEADLINES + PORT_FREE);
            }
        }
        self.credits = Some(credits);
    }

    /// A machine's free port takes a frame.
    #[inline(always)]
    pub(super) fn enter_port(&mut self, now: Instant, pool: &Pool<Packet>, vm: usize, at: Handle) {
        let packet = pool.frame(at);
        let ps_per_byte = self.config.virtual_network.as_ref().map_or(0, |v| v.receive_ps_per_byte_q16(vm));
        let free = now + Duration((packet.len() as u64 * ps_per_byte) >> 16);
        self.guests[vm].rx_free = free;
        self.enter_rx(free + self.rx_delay(packet), at);
    }
}
