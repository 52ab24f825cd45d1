//! The chain of a server: everything between its guests and the wire, composed by type.
//!
//! A [`Server`](super::Server) is generic over its [`Chain`]. A world calls a server at an entry of its device interface; behind it, nothing
//! asks which stages exist. [`AnyServer`](super::AnyServer) is the enum of the chains that are compiled.

mod bare;
mod parts;
mod rare;
mod virtualised;

pub use bare::Bare;
pub use parts::{Parts, Unusual, Usual};
pub use rare::Rare;
pub use virtualised::Virtualised;

use super::host::{DEADLINES, Host, PORT_FREE};
use super::stages::Report;
use crate::adapter::Kind as AdapterKind;
use crate::deadlines::Timer;
use crate::packet::{Address, Kind, Packet};
use crate::pool::{Handle, Pool};
use core::fmt::Debug;
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::time::Instant;

/// The next VM of a set, in turn after VM `last`; the set is not empty.
#[inline(always)]
fn next_vm(set: u64, last: u32) -> u32 {
    let after = set & !((2u64 << (last & 63)) - 1);
    if after != 0 { after } else { set }.trailing_zeros()
}

/// A server's own parts, as its guests and its device interface see them.
pub trait Chain: Debug + Send {
    /// The kind of adapter below it.
    type Adapter: AdapterKind;

    /// Whether the chain has room for one more packet of a VM.
    fn has_room(&self, host: &Host, vm: usize) -> bool;
    /// Whether this socket of a VM must wait because of its destination; `own` is the server.
    fn blocks(&mut self, own: HostId, vm: usize, to: Address, socket: u32) -> bool;
    /// A packet leaves its socket.
    fn launch(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle);
    /// A packet leaves the network stack of its VM.
    fn send(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize, at: Handle);
    /// A frame comes from the wire, in its order. Returns whether more than this frame may move now.
    fn receive(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, at: Handle) -> bool;
    /// The adapter sent a frame and has room again.
    fn on_transmit(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>);
    /// Moves every frame that can move.
    fn settle(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>);
    /// The port of a VM has finished receiving a frame.
    fn on_port_free(&mut self, vm: usize);
    /// A timer of a stage expired.
    fn handle_timer(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, timer: Timer);
    /// Metadata arrived for a stage.
    fn receive_metadata(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, packet: &Packet);
    /// Adds the accounts of its stages.
    fn report(&self, report: &mut Report);
    /// Whether the VMs' packets have nothing in common before they leave their network stacks, so that no order among the
    /// VMs counts.
    #[inline(always)]
    fn vms_are_apart(&self) -> bool {
        false
    }

    /// Takes packets from sockets while the chain has room for them.
    #[inline(always)]
    fn pull_all(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        while host.runnable != 0 {
            // VMs take turns, one packet each.
            let vm = next_vm(host.runnable, host.turn);
            host.turn = vm;
            if !self.has_room(host, vm as usize) {
                host.runnable &= !(1 << vm);
                host.blocked |= 1 << vm;
                continue;
            }
            let own = host.id;
            match host.pull(now, pool, vm as usize, |to, socket| self.blocks(own, vm as usize, to, socket)) {
                Some(at) => {
                    self.launch(now, host, pool, vm as usize, at);
                    if self.vms_are_apart() && host.guests[vm as usize].ready.is_empty() {
                        host.runnable &= !(1 << vm);
                    }
                }
                None => host.runnable &= !(1 << vm),
            }
        }
    }

    /// Lets VMs go on for which there is room again.
    #[inline(always)]
    fn unblock(&mut self, host: &mut Host) {
        let mut vms = host.blocked;
        while vms != 0 {
            let vm = vms.trailing_zeros() as usize;
            vms &= vms - 1;
            if self.has_room(host, vm) {
                host.blocked &= !(1 << vm);
                if !host.guests[vm].ready.is_empty() {
                    host.runnable |= 1 << vm;
                }
            }
        }
    }

    /// Packets of a VM leave its network stack.
    #[inline(always)]
    fn run_tx(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>, vm: usize) {
        while let Some(at) = host.leave_tx(now, vm) {
            let packet = pool.frame(at);
            let (len, kind) = (packet.len(), packet.kind());
            self.send(now, host, pool, vm, at);
            if kind == Kind::Udp {
                host.free_datagram_buffer(vm, len);
            }
        }
        host.set_tx_deadline(vm);
    }

    /// The deadlines of VMs that have come, then packets that reach their sockets.
    #[inline(always)]
    fn run_deadlines(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        while let Some((at, what)) = host.deadlines.pop(now) {
            let vm = (what / DEADLINES) as usize;
            if what % DEADLINES == PORT_FREE {
                self.on_port_free(vm);
            } else if at == host.guests[vm].tx_deadline {
                self.run_tx(now, host, pool, vm);
            }
        }
        if host.rx.first() <= now {
            host.run_rx(now, pool);
        }
    }

    /// Timers that have expired, of sockets, applications and stages.
    #[inline(always)]
    fn run_timers(&mut self, now: Instant, host: &mut Host, pool: &mut Pool<Packet>) {
        while host.timers.first() <= now
            && let Some(timer) = host.next_timer(now)
        {
            self.handle_timer(now, host, pool, timer);
        }
    }
}
