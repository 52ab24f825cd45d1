//! The memory that the next events of a server will touch, for a world that prefetches it.

use super::host::{DEADLINES, Host};
use crate::guest::{Body, Messages, Socket};
use crate::packet::{Kind, Packet};
use crate::pool::{Handle, Pool};
use sluicenet_proto::tcp::Tcp;
use sluicenet_proto::time::Instant;

/// Progress of a caller of [`Host::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStep {
    /// The box itself is in the cache.
    Lists,
    /// The box's lists are in the cache.
    Frames,
    /// The frames are in the cache that arrive or whose deadline passes.
    Index,
    /// The index of the box's connections is in the cache.
    Sockets,
    /// The usual lines of the sockets are in the cache.
    Unusual,
    /// All of the sockets is in the cache.
    Losses,
}

/// Cache lines of a guest that a packet touches.
const GUEST_LINES: usize = 3;

/// Cache lines of a socket that an arriving segment touches.
const SOCKET_LINES: usize = 1 + Tcp::HOT_LINES;

/// Most packets that reach their sockets, and most VMs that send: few phases have more for one server.
const MOST: usize = 4;

/// A packet on its way to a socket.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    packet: Handle,
    /// Where the look-up of the socket begins in the index of its VM's connections, then the number of the socket.
    socket: u32,
    vm: u8,
}

/// Bit of [`Plan::sending`]: a frame arrives at stages. One test tells whether there is anything to fetch.
const ARRIVES: u8 = 1;

/// The packet events of a server in a phase, as far as they are known when the phase begins.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The end of the phase.
    end: Instant,
    awaited: [Awaited; MOST],
    /// VMs with a packet that leaves the network stack, or whose port becomes free.
    senders: [u8; MOST],
    awaiting: u8,
    /// Twice the number of senders, and [`ARRIVES`].
    sending: u8,
    /// The first frame that arrives, at a server whose stages look up memory for it.
    arrival: Handle,
}

impl Plan {
    /// Nothing happens.
    pub const EMPTY: Plan = Plan {
        end: Instant::ZERO,
        awaited: [Awaited { packet: Handle::NONE, socket: 0, vm: 0 }; MOST],
        senders: [0; MOST],
        awaiting: 0,
        sending: 0,
        arrival: Handle::NONE,
    };

    /// Whether there is nothing more to fetch.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.awaiting | self.sending == 0
    }

    /// Begins a plan of a phase that ends at `end`.
    #[inline(always)]
    pub fn begin(&mut self, end: Instant) {
        (self.end, self.awaiting, self.sending) = (end, 0, 0);
    }

    /// A frame will arrive at the stages.
    #[inline(always)]
    pub fn await_arrival(&mut self, packet: Handle) {
        self.sending |= ARRIVES;
        self.arrival = packet;
    }

    /// The frame that will arrive at the stages, until the sockets are fetched.
    #[inline(always)]
    pub fn arrival(&self) -> Option<Handle> {
        (self.sending & ARRIVES != 0).then_some(self.arrival)
    }

    /// A packet or metadata will reach its socket.
    #[inline(always)]
    pub fn await_packet(&mut self, packet: Handle) {
        if let Some(awaited) = self.awaited.get_mut(self.awaiting as usize) {
            awaited.packet = packet;
            self.awaiting += 1;
        }
    }

    #[inline(always)]
    fn await_sender(&mut self, what: u16) {
        if let Some(sender) = self.senders.get_mut((self.sending >> 1) as usize) {
            *sender = (what / DEADLINES) as u8;
            self.sending += 2;
        }
    }

    #[inline(always)]
    fn awaited(&mut self) -> impl Iterator<Item = &mut Awaited> {
        self.awaited.iter_mut().take(self.awaiting as usize)
    }

    #[inline(always)]
    fn senders(&self) -> impl Iterator<Item = u8> {
        self.senders.iter().take((self.sending >> 1) as usize).copied()
    }
}

impl Host {
    /// Names the memory that a step reads, and adds the findings to the plan.
    #[inline(always)]
    pub fn fetch(&self, step: PrefetchStep, plan: &mut Plan, pool: &Pool<Packet>, fetch: impl Fn(*const u8)) {
        match step {
            PrefetchStep::Lists => {
                fetch(self.adapter.address());
                if self.guests.len() == 1 {
                    self.fetch_guest(0, &fetch);
                } else {
                    // Which of them a packet reaches is not known yet.
                    self.guests.iter().take(MOST).for_each(|guest| fetch(core::ptr::from_ref(guest).cast()));
                }
                if self.rx.first() < plan.end {
                    plan.await_packet(self.rx.front());
                    fetch(pool.address(self.rx.front()));
                    fetch(self.rx.second_line());
                }
                if self.deadlines.first() < plan.end {
                    plan.await_sender(self.deadlines.front());
                    fetch(self.deadlines.second_line());
                    self.fetch_guest(self.deadlines.front(), &fetch);
                }
            }
            PrefetchStep::Frames => {
                for packet in self.rx.others(plan.end).take(MOST - 1) {
                    plan.await_packet(packet);
                    fetch(pool.address(packet));
                }
                for what in self.deadlines.others(plan.end).take(MOST - 1) {
                    plan.await_sender(what);
                    self.fetch_guest(what, &fetch);
                }
            }
            PrefetchStep::Index => {
                for guest in plan.senders().filter_map(|vm| self.guests.get(vm as usize)) {
                    fetch(pool.address(guest.tx.front()));
                    fetch(guest.tx.second_line());
                }
                for awaited in plan.awaited() {
                    let Some(packet) = pool.get(awaited.packet) else { continue };
                    let flow = packet.flow().reverse();
                    awaited.vm = flow.src.vm();
                    if let Some(guest) = self.guests.get(awaited.vm as usize) {
                        awaited.socket = guest.sockets.place(&flow);
                        fetch(guest.sockets.place_line(awaited.socket));
                    }
                }
            }
            PrefetchStep::Sockets => {
                let end = plan.end;
                for guest in plan.senders().filter_map(|vm| self.guests.get(vm as usize)) {
                    guest.tx.others(end).take(MOST - 1).for_each(|packet| fetch(pool.address(packet)));
                }
                plan.sending = 0;
                for awaited in plan.awaited() {
                    match self.guests.get(awaited.vm as usize).and_then(|guest| guest.sockets.at(awaited.socket)) {
                        Some((number, first)) => {
                            awaited.socket = number;
                            (0..SOCKET_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
                        }
                        None => awaited.socket = u32::MAX,
                    }
                }
            }
            PrefetchStep::Unusual => {
                let mut unusual = 0;
                for i in 0..plan.awaiting as usize {
                    let awaited = plan.awaited[i];
                    let (Some(socket), Some(packet)) = (self.awaited_socket(awaited), pool.get(awaited.packet)) else {
                        continue;
                    };
                    if packet.kind() == Kind::Metadata
                        || socket.received + u64::from(packet.payload()) >= socket.next_end
                    {
                        let messages = core::ptr::from_ref(&*socket.messages).cast::<u8>();
                        (0..size_of::<Messages>()).step_by(64).for_each(|at| fetch(messages.wrapping_add(at)));
                    }
                    if let Body::Tcp(tcp) = &socket.body
                        && !tcp.expects_a_plain_segment()
                    {
                        let rest = core::ptr::from_ref(tcp).cast::<u8>().wrapping_add(64 * Tcp::HOT_LINES);
                        (0..Tcp::COLD_LINES).for_each(|line| fetch(rest.wrapping_add(64 * line)));
                        plan.awaited[unusual] = awaited;
                        unusual += 1;
                    }
                }
                plan.awaiting = unusual as u8;
            }
            PrefetchStep::Losses => {
                for i in 0..plan.awaiting as usize {
                    if let Some(Socket { body: Body::Tcp(tcp), .. }) = self.awaited_socket(plan.awaited[i]) {
                        tcp.lines_of_losses().into_iter().for_each(&fetch);
                    }
                }
            }
        }
    }

    /// Names the memory of the VM of a deadline.
    #[inline(always)]
    fn fetch_guest(&self, what: u16, fetch: impl Fn(*const u8)) {
        let guest: *const u8 = self.guests.as_ptr().wrapping_add((what / DEADLINES) as usize).cast();
        (0..GUEST_LINES).for_each(|line| fetch(guest.wrapping_add(64 * line)));
    }

    #[inline(always)]
    fn awaited_socket(&self, awaited: Awaited) -> Option<&Socket> {
        self.guests.get(awaited.vm as usize)?.sockets.get(awaited.socket)
    }
}
