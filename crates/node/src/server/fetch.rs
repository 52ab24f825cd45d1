//! Which memory the next events of a server will touch, for a world that fetches it ahead.

use super::host::{DEADLINES, Host};
use crate::door::Step;
use crate::guest::Guest;
use crate::packet::{FlowKey, Packet};
use crate::pool::{Handle, Pool};

/// Cache lines of a guest that a packet touches.
const GUEST_LINES: usize = 2;

/// Cache lines of a socket that an arriving segment touches.
const SOCKET_LINES: usize = 11;

impl Host {
    /// Names the memory that a step reads. `arrival` is the first frame that will arrive, if it reaches its socket without passing a queue.
    #[inline(always)]
    pub fn fetch(&self, step: Step, arrival: Option<Handle>, pool: &Pool<Packet>, fetch: impl Fn(*const u8)) {
        // One packet of each sort: a window rarely has more for one server, and a burst keeps its memory at hand.
        let fetch_guest = |guest: &Guest| {
            let first: *const u8 = core::ptr::from_ref(guest).cast();
            (0..GUEST_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
        };
        let next_guest = || self.guests.get((self.deadlines.front()?.1 / DEADLINES) as usize);
        match step {
            Step::Lists => {
                self.timers.front().into_iter().for_each(|t| fetch(core::ptr::from_ref(t).cast()));
                self.deadlines.front().into_iter().for_each(|d| fetch(core::ptr::from_ref(d).cast()));
                self.rx.front().into_iter().for_each(|p| fetch(core::ptr::from_ref(p).cast()));
            }
            Step::Frames => {
                self.rx.front().into_iter().for_each(|p| fetch(pool.address(p.packet)));
                next_guest().or(self.guests.first()).into_iter().for_each(fetch_guest);
            }
            Step::Index => {
                if let Some(next) = next_guest().and_then(|guest| guest.tx.front()) {
                    fetch(core::ptr::from_ref(next).cast());
                }
                if let Some((guest, flow)) = self.next_flow(arrival, pool) {
                    guest.sockets.index_line(&flow).into_iter().for_each(fetch);
                }
            }
            Step::Sockets => {
                if let Some(next) = next_guest().and_then(|guest| guest.tx.front()) {
                    fetch(pool.address(next.packet));
                }
                if let Some((guest, flow)) = self.next_flow(arrival, pool)
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
    fn next_flow(&self, arrival: Option<Handle>, pool: &Pool<Packet>) -> Option<(&Guest, FlowKey)> {
        let packet = arrival.or_else(|| self.rx.front().map(|p| p.packet))?;
        let flow = pool.frame(packet).flow().reverse();
        Some((self.guests.get(flow.src.vm() as usize)?, flow))
    }
}
