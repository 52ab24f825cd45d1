//! The memory that the next events of a server will touch, for a world that prefetches it.

use super::host::{DEADLINES, Host};
use crate::guest::{Body, Guest};
use crate::packet::{FlowKey, Packet};
use crate::pool::{Handle, Pool};
use sluicenet_proto::tcp::Tcp;
use sluicenet_proto::time::Instant;

/// Progress of a caller of [`Host::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStep {
    /// The box itself is in the cache.
    Lists,
    /// The box's lists are in the cache, and the frames that arrive or whose deadline passes.
    Index,
    /// The index of the box's connections is in the cache.
    Sockets,
    /// The usual lines of the socket are in the cache.
    Unusual,
    /// All of the socket is in the cache.
    Losses,
}

/// Cache lines of a guest that a packet touches.
const GUEST_LINES: usize = 3;

/// Cache lines of a socket that an arriving segment touches.
const SOCKET_LINES: usize = 1 + Tcp::HOT_LINES;

const NO_SOCKET: u32 = u32::MAX;

/// The packet events of a server in a phase, as far as they are known when the phase begins.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first packet that reaches its socket, as soon as it is known.
    next: Handle,
    /// The socket of this packet, as soon as it is known, and its VM.
    socket: u32,
    to: u8,
    /// The first VM that sends, as soon as it is known.
    vm: u8,
    /// A packet leaves the network stack of its VM, or the port of a VM becomes free.
    sends: bool,
    /// A packet reaches its socket.
    receives: bool,
}

impl Plan {
    /// Nothing happens.
    pub const EMPTY: Plan = Plan { next: Handle::NONE, socket: NO_SOCKET, to: 0, vm: 0, sends: false, receives: false };

    /// Whether there is nothing to fetch.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        !(self.sends | self.receives)
    }
}

impl Host {
    /// Plans the phase that ends at `end`. `arrival` is the first frame that arrives, if it reaches its socket without
    /// passing a queue.
    #[inline(always)]
    pub fn plan(&self, end: Instant, arrival: Handle) -> Plan {
        let receives = (self.rx.first() < end) | (arrival != Handle::NONE);
        Plan { next: arrival, sends: self.deadlines.first() < end, receives, ..Plan::EMPTY }
    }

    /// Names the memory that a step reads, and adds the findings to the plan.
    #[inline(always)]
    pub fn fetch(&self, step: PrefetchStep, plan: &mut Plan, pool: &Pool<Packet>, fetch: impl Fn(*const u8)) {
        // One packet of each sort: a phase rarely has more for one server, and a burst keeps its memory in the cache.
        match step {
            PrefetchStep::Lists => {
                self.timers.front().into_iter().for_each(|t| fetch(core::ptr::from_ref(t).cast()));
                plan.vm = (self.deadlines.front() / DEADLINES) as u8;
                if plan.next == Handle::NONE {
                    plan.next = self.rx.front();
                    fetch(pool.address(plan.next));
                    fetch(self.rx.second_line());
                }
                fetch(self.adapter.address());
                let guest: *const u8 = self.guests.as_ptr().wrapping_add(plan.vm as usize).cast();
                (0..GUEST_LINES).for_each(|line| fetch(guest.wrapping_add(64 * line)));
            }
            PrefetchStep::Index => {
                if plan.sends
                    && let Some(guest) = self.guests.get(plan.vm as usize)
                {
                    fetch(pool.address(guest.tx.front()));
                    fetch(guest.tx.second_line());
                }
                if plan.receives
                    && let Some((guest, flow)) = self.next_flow(plan, pool)
                {
                    guest.sockets.index_line(&flow).into_iter().for_each(fetch);
                }
            }
            PrefetchStep::Sockets => {
                if plan.receives
                    && let Some((guest, flow)) = self.next_flow(plan, pool)
                    && let Some(number) = guest.sockets.find(&flow)
                    && let Some(first) = guest.sockets.socket_line(number)
                {
                    (plan.socket, plan.to) = (number, flow.src.vm());
                    (0..SOCKET_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
                }
            }
            PrefetchStep::Unusual => {
                let Some(tcp) = self.planned_tcp(plan) else { return };
                if tcp.expects_a_plain_segment() {
                    plan.socket = NO_SOCKET;
                } else {
                    let rest = core::ptr::from_ref(tcp).cast::<u8>().wrapping_add(64 * Tcp::HOT_LINES);
                    (0..Tcp::COLD_LINES).for_each(|line| fetch(rest.wrapping_add(64 * line)));
                }
            }
            PrefetchStep::Losses => {
                if let Some(tcp) = self.planned_tcp(plan) {
                    tcp.lines_of_losses().into_iter().for_each(fetch);
                }
            }
        }
    }

    /// The connection that the next packet reaches.
    #[inline(always)]
    fn planned_tcp(&self, plan: &Plan) -> Option<&Tcp> {
        if plan.socket == NO_SOCKET {
            return None;
        }
        match &self.guests.get(plan.to as usize)?.sockets.get(plan.socket)?.body {
            Body::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    /// The guest and the flow of the next packet that reaches its socket.
    #[inline(always)]
    fn next_flow(&self, plan: &Plan, pool: &Pool<Packet>) -> Option<(&Guest, FlowKey)> {
        let flow = pool.get(plan.next)?.flow().reverse();
        Some((self.guests.get(flow.src.vm() as usize)?, flow))
    }
}
