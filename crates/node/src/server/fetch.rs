//! Which memory the next events of a server will touch, for a world that fetches it ahead.

use super::host::{DEADLINES, Host};
use crate::door::Step;
use crate::guest::Guest;
use crate::packet::{FlowKey, Packet};
use crate::pool::{Handle, Pool};
use sluicenet_proto::time::Instant;

/// Cache lines of a guest that a packet touches.
const GUEST_LINES: usize = 2;

/// Cache lines of a socket that an arriving segment touches.
const SOCKET_LINES: usize = 11;

/// What happens to the packets of a server in a window, as far as is known when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first frame that arrives, if it reaches its socket without passing a queue.
    arrival: Handle,
    /// A packet leaves the network stack of its VM, or the port of a VM becomes free.
    sends: bool,
    /// A packet reaches its socket.
    receives: bool,
}

impl Plan {
    /// Nothing happens.
    pub const EMPTY: Plan = Plan { arrival: Handle::NONE, sends: false, receives: false };

    /// Whether there is nothing to fetch.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        !(self.sends | self.receives)
    }
}

impl Host {
    /// Plans the window that ends at `end`.
    #[inline(always)]
    pub fn plan(&self, end: Instant, arrival: Handle) -> Plan {
        let receives = (self.rx.first() < end) | (arrival != Handle::NONE);
        Plan { arrival, sends: self.deadlines.first() < end, receives }
    }

    /// Names the memory that a step reads.
    #[inline(always)]
    pub fn fetch(&self, step: Step, plan: Plan, pool: &Pool<Packet>, fetch: impl Fn(*const u8)) {
        // One packet of each sort: a window rarely has more for one server, and a burst keeps its memory at hand.
        let Plan { sends, receives, arrival } = plan;
        let next_guest = || self.guests.get((self.deadlines.front()?.1 / DEADLINES) as usize);
        match step {
            Step::Lists => {
                self.timers.front().into_iter().for_each(|t| fetch(core::ptr::from_ref(t).cast()));
                self.deadlines.front().filter(|_| sends).into_iter().for_each(|d| fetch(core::ptr::from_ref(d).cast()));
                self.rx.front().filter(|_| receives).into_iter().for_each(|p| fetch(core::ptr::from_ref(p).cast()));
            }
            Step::Frames => {
                if receives && let Some(next) = self.rx.front() {
                    fetch(pool.address(next.packet));
                }
                if let Some(guest) = if sends { next_guest() } else { self.guests.first() } {
                    let first: *const u8 = core::ptr::from_ref(guest).cast();
                    (0..GUEST_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
                }
            }
            Step::Index => {
                if sends && let Some(next) = next_guest().and_then(|guest| guest.tx.front()) {
                    fetch(core::ptr::from_ref(next).cast());
                }
                if receives && let Some((guest, flow)) = self.next_flow(arrival, pool) {
                    guest.sockets.index_line(&flow).into_iter().for_each(fetch);
                }
            }
            Step::Sockets => {
                if sends && let Some(next) = next_guest().and_then(|guest| guest.tx.front()) {
                    fetch(pool.address(next.packet));
                }
                if receives
                    && let Some((guest, flow)) = self.next_flow(arrival, pool)
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
    fn next_flow(&self, arrival: Handle, pool: &Pool<Packet>) -> Option<(&Guest, FlowKey)> {
        let packet = if arrival != Handle::NONE { arrival } else { self.rx.front()?.packet };
        let flow = pool.frame(packet).flow().reverse();
        Some((self.guests.get(flow.src.vm() as usize)?, flow))
    }
}
