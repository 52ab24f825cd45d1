//! A server without a virtual network: its guests share the adapter.

use super::Chain;
use crate::deadlines::Timer;
use crate::packet::{Address, Packet};
use crate::pool::{Handle, Pool};
use crate::server::WhenFull;
use crate::server::host::Host;
use crate::server::stages::Report;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::time::{Duration, Instant};

/// The chain without any stage.
#[derive(Debug, Default)]
pub struct Bare {
    /// Bytes in guests' network stacks that will need room in the adapter.
    reserved: u32,
}

impl Chain for Bare {
    #[inline(always)]
    fn has_room(&self, host: &Host, _vm: usize) -> bool {
        host.config.when_full == WhenFull::Drop || host.adapter.room() >= self.reserved + host.max_frame
    }
    #[inline(always)]
    fn blocks(&mut self, _vm: usize, _to: Address, _socket: u32) -> bool {
        false
    }

    #[inline(always)]
    fn launch(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, packet: &Packet) {
        host.from_guests += 1;
        let at = pool.insert(packet);
        let delay = host.tx_delay(packet);
        if packet.dst().host() == host.id {
            host.loop_back(now + delay, pool, at);
        } else if delay == Duration::ZERO {
            host.enter_adapter(pool, at);
        } else {
            self.reserved += packet.len();
            host.enter_tx(vm, now + delay, packet, at);
        }
    }

    #[inline(always)]
    fn send(&mut self, _now: Instant, host: &mut Host, pool: &mut Pool<Packet>, _vm: usize, at: Handle) {
        self.reserved -= pool.frame(at).len();
        host.enter_adapter(pool, at);
    }

    #[inline(always)]
    fn receive(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) {
        let packet = pool.frame(at);
        if packet.dst().host() != host.id || packet.dst().vm() as usize >= host.guests.len() {
            return host.drop_unroutable(pool, at);
        }
        let delay = host.rx_delay(packet);
        if delay == Duration::ZERO {
            host.deliver(now, pool, at);
        } else {
            host.enter_rx(now + delay, at);
        }
    }

    #[inline(always)]
    fn on_transmit(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        if host.blocked != 0 {
            self.unblock(host);
            self.pull_all(now, host, pool);
        }
    }
    #[inline(always)]
    fn settle(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        self.pull_all(now, host, pool);
    }

    fn on_port_free(&mut self, _vm: usize) {}
    fn handle_timer(&mut self, _: Instant, _: &mut Host, _: &mut Pool<Packet>, _timer: Timer) {}
    fn receive_metadata(&mut self, _: Instant, _: &mut Host, _: &mut Pool<Packet>, _packet: &Packet) {}
    fn report(&self, _report: &mut Report) {}
}
