//! The memory that the next events of a server will touch, for a world that prefetches it.

use super::host::{DEADLINES, Host};
use crate::guest::Body;
use crate::packet::Packet;
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

/// The packet events of a server in a phase, as far as they are known when the phase begins.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first packet that reaches its socket; [`Handle::NONE`] if there is none.
    next: Handle,
    /// Where the look-up of this socket begins in the index of its VM's connections, then the number of the socket.
    socket: u32,
    /// The first VM that sends, then the VM of that socket.
    vm: u8,
    /// A packet leaves the network stack of its VM, or the port of a VM becomes free.
    sends: bool,
}

impl Plan {
    /// Nothing happens.
    pub const EMPTY: Plan = Plan { next: Handle::NONE, socket: 0, vm: 0, sends: false };

    /// Whether there is nothing more to fetch.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        !self.sends & (self.next == Handle::NONE)
    }
}

impl Host {
    /// Plans the phase that ends at `end`. `arrival` is the first frame that arrives, if it reaches its socket without
    /// passing a queue.
    #[inline(always)]
    pub fn plan(&self, end: Instant, arrival: Handle) -> Plan {
        let delivered = if self.rx.first() < end { self.rx.front() } else { Handle::NONE };
        let next = if arrival == Handle::NONE { delivered } else { arrival };
        Plan { next, sends: self.deadlines.first() < end, ..Plan::EMPTY }
    }

    /// Names the memory that a step reads, and adds the findings to the plan.
    #[inline(always)]
    pub fn fetch(&self, step: PrefetchStep, plan: &mut Plan, pool: &Pool<Packet>, fetch: impl Fn(*const u8)) {
        // One packet of each sort: a phase rarely has more for one server, and a burst keeps its memory in the cache.
        match step {
            PrefetchStep::Lists => {
                plan.vm = (self.deadlines.front() / DEADLINES) as u8;
                fetch(pool.address(plan.next));
                fetch(self.rx.second_line());
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
                    plan.sends = false;
                }
                if let Some(packet) = pool.get(plan.next) {
                    let flow = packet.flow().reverse();
                    plan.vm = flow.src.vm();
                    if let Some(guest) = self.guests.get(plan.vm as usize) {
                        plan.socket = guest.sockets.place(&flow);
                        fetch(guest.sockets.place_line(plan.socket));
                    }
                }
            }
            PrefetchStep::Sockets => match self.guests.get(plan.vm as usize).and_then(|g| g.sockets.at(plan.socket)) {
                Some((number, first)) => {
                    plan.socket = number;
                    (0..SOCKET_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
                }
                None => *plan = Plan::EMPTY,
            },
            PrefetchStep::Unusual => match self.planned_tcp(plan).filter(|tcp| !tcp.expects_a_plain_segment()) {
                Some(tcp) => {
                    let rest = core::ptr::from_ref(tcp).cast::<u8>().wrapping_add(64 * Tcp::HOT_LINES);
                    (0..Tcp::COLD_LINES).for_each(|line| fetch(rest.wrapping_add(64 * line)));
                }
                None => *plan = Plan::EMPTY,
            },
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
        match &self.guests.get(plan.vm as usize)?.sockets.get(plan.socket)?.body {
            Body::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }
}
