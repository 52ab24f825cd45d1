//! What time brings: packets that are through a stage, timers, and what they set in motion.

use super::{
    APP_TIMER, CREDIT_TIMER, Core, DEADLINES, Event, PACE_TIMER, PORT_FREE, TUNNEL_TIMER, Tunnels, ZBRIDGE_TIMER,
    ZBridge,
};
use crate::due::Passage;
use crate::guest::{Body, SocketId};
use crate::packet::Packet;
use crate::pool::Pool;
use core::cmp::Reverse;
use sluicenet_proto::tcp;
use sluicenet_proto::time::Instant;

impl Core {
    /// The stages and ports whose time has come.
    pub(super) fn run_lines(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        while let Some((at, what)) = self.deadlines.pop(now) {
            let vm = (what / DEADLINES) as usize;
            if what % DEADLINES == PORT_FREE {
                self.port_waits &= !(1 << vm);
                self.vm_ready |= 1 << vm;
            } else if at == self.guests[vm].tx_due {
                self.run_tx(now, pool, vm);
            }
        }
        while let Some(Passage { at, packet, .. }) = self.rx.pop(now) {
            self.on_the_way -= 1;
            self.deliver(at, pool, packet);
        }
    }

    pub(super) fn run_timers(&mut self, now: Instant) {
        while let Some(&Reverse((at, class, what))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let id = SocketId { vm: (what >> 32) as u8, index: what as u32 };
            match class {
                APP_TIMER => self.events.push_back(Event::Wake { token: what }),
                PACE_TIMER => self.refresh(now, id),
                CREDIT_TIMER => self.run_credit_timer(now, at, usize::from(id.vm)),
                TUNNEL_TIMER => self.run_tunnel_timer(now, at, what as usize),
                ZBRIDGE_TIMER => self.run_zbridge_timer(now, at, what as usize),
                _ => self.run_socket_timer(now, at, id),
            }
        }
    }

    pub(super) fn run_socket_timer(&mut self, now: Instant, at: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        if s.timer_at != at {
            return; // an earlier entry took its place
        }
        s.timer_at = Instant::MAX;
        let Body::Tcp(tcp) = &mut s.body else { return };
        if tcp.poll_timeout().is_some_and(|due| due <= now) {
            tcp.handle_timeout(&self.config.tcp, now);
            if tcp.state() == tcp::State::Closed {
                return self.ended(now, id, true);
            }
        }
        self.refresh(now, id);
    }

    /// Moves everything that can move now: sockets to the stage below, vSwitch to adapter, vSwitch to VMs.
    #[inline(always)]
    pub(super) fn settle(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        self.pull_all(now, pool);
        if let Some(v) = &self.vswitch {
            let vms = (1u64 << self.guests.len()) - 1;
            let ready = self.vm_ready & vms | self.blocked;
            let waits = || {
                self.adapter.stalled().is_some()
                    || self.credits.as_ref().is_some_and(|c| c.has_work())
                    || self.zbridge().is_some_and(ZBridge::has_work)
                    || self.tunnels().is_some_and(Tunnels::has_work)
            };
            if v.has_wakes() || self.bridge_ready || self.lossy_ready || ready != 0 || waits() {
                self.settle_virtual(now, pool);
            }
        }
    }
}
