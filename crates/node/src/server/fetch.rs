//! The memory that the next events of a server will touch, for a world that prefetches it.

use super::host::{DEADLINES, Host};
use crate::guest::Guest;
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
}

/// Cache lines of a guest that a packet touches.
const GUEST_LINES: usize = 3;

/// Cache lines of a socket that an arriving segment touches.
const SOCKET_LINES: usize = 1 + Tcp::HOT_LINES;

/// The packet events of a server in a window, as far as they are known when the window begins.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first packet that reaches its socket, as soon as it is known.
    next: Handle,
    /// The first VM that sends, as soon as it is known.
    vm: u8,
    /// A packet leaves the network stack of its VM, or the port of a VM becomes free.
    sends: bool,
    /// A packet reaches its socket.
    receives: bool,
}

impl Plan {
    /// Nothing happens.
    pub const EMPTY: Plan = Plan { next: Handle::NONE, vm: 0, sends: false, receives: false };

    /// Whether there is nothing to fetch.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        !(self.sends | self.receives)
    }
}

impl Host {
    /// Plans the window that ends at `end`. `arrival` is the first frame that arrives, if it reaches its socket without
    /// passing a queue.
    #[inline(always)]
    pub fn plan(&self, end: Instant, arrival: Handle) -> Plan {
        let receives = (self.rx.first() < end) | (arrival != Handle::NONE);
        Plan { next: arrival, vm: 0, sends: self.deadlines.first() < end, receives }
    }

    /// Names the memory that a step reads, and adds the findings to the plan.
    #[inline(always)]
    pub fn fetch(&self, step: PrefetchStep, plan: &mut Plan, pool: &Pool<Packet>, fetch: impl Fn(*const u8)) {
        // One packet of each sort: a window rarely has more for one server, and a burst keeps its memory in the cache.
        match step {
            PrefetchStep::Lists => {
                self.timers.front().into_iter().for_each(|t| fetch(core::ptr::from_ref(t).cast()));
                plan.vm = (self.deadlines.front() / DEADLINES) as u8;
                if plan.next == Handle::NONE {
                    plan.next = self.rx.front();
                    fetch(pool.address(plan.next));
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
                    (0..SOCKET_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
                }
            }
        }
    }

    /// The guest and the flow of the next packet that reaches its socket.
    #[inline(always)]
    fn next_flow(&self, plan: &Plan, pool: &Pool<Packet>) -> Option<(&Guest, FlowKey)> {
        let flow = pool.get(plan.next)?.flow().reverse();
        Some((self.guests.get(flow.src.vm() as usize)?, flow))
    }
}
