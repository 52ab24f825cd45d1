//! The port's buffers, divided among the destinations of its frames.
//!
//! Frames that a destination does not accept keep their buffers. So the frames for one destination get at most their [fair
//! share](limit), and buffers are left for the others. The switch sets waiting frames aside by the same rule; it therefore
//! takes every frame within the rule, and none blocks the frames behind it. Control segments obey the rule too, and wait if
//! they have to.
//!
//! Sockets that send to the same destination divide its buffers: each may use at most twice the buffers that are still free
//! for the destination. A socket that has sent as many frames in a row as there are buffers is exempt.

use super::conn::Conn;
use super::datagram::Datagram;
use super::{Core, Key, RESERVE, Socket};
use sluicenet_dataplane::port::BrokenPort;
use sluicenet_node::fair_share::limit;
use sluicenet_proto::transport::tcplight::Segment;
use sluicenet_wire::ethernet::MacAddress;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Refusals that may wait for buffers, in all and for one host. A peer whose refusal is dropped asks again.
const REFUSALS_MAX: usize = 4096;
const REFUSALS_OF_ONE: usize = 512;
/// Destinations whose frames are counted; all further ones use the remaining buffers.
const COUNTED_MAX: usize = 4096;
/// The number under which frames are not counted.
const UNCOUNTED: u16 = 0;

/// The destinations, by the numbers under which the port counts their buffers.
#[derive(Default)]
pub(super) struct Destinations {
    numbers: HashMap<MacAddress, u16>,
    free: Vec<u16>,
    last: Option<(MacAddress, u16)>,
    /// For each destination, the account of the socket that sent to it last, and the frames since another socket sent or
    /// tried to.
    runs: HashMap<u16, (u16, u32)>,
    /// Sockets that had no buffer for a frame, by its destination.
    starved: BTreeMap<u16, Starved>,
    /// Segments that wait for buffers, by their destination.
    pending: BTreeMap<u16, Pending>,
    /// The refusals among them.
    refusals: usize,
}

#[derive(Default)]
struct Pending {
    /// Streams with a segment to send, each once.
    streams: VecDeque<usize>,
    refusals: VecDeque<(Key, Segment)>,
}

#[derive(Default)]
struct Starved {
    /// Each with the buffers that its frames had at that time.
    sockets: Vec<(Socket, u32)>,
    /// Buffers that all frames for the destination had at that time.
    out: u32,
}

enum Said {
    Refusal(Key, Segment),
    /// The segments of a stream.
    Stream(usize),
}

/// The number under which the port counts the buffers of a socket's frames.
pub(super) fn account(socket: Socket) -> u16 {
    let number = match socket {
        Socket::Stream(id) => 2 * id + 1,
        Socket::Datagram(id) => 2 * id + 2,
        Socket::Listener(_) => return UNCOUNTED,
    };
    number.try_into().unwrap_or(UNCOUNTED)
}

impl Destinations {
    /// Whether a socket or a segment waits for buffers.
    pub fn is_waited_for(&self) -> bool {
        !self.starved.is_empty() || !self.pending.is_empty()
    }

    /// Whether a segment waits.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A socket no longer waits for buffers.
    pub fn feed(&mut self, socket: Socket) {
        self.starved.retain(|_, those| {
            those.sockets.retain(|&(other, _)| other != socket);
            !those.sockets.is_empty()
        });
    }

    /// A stream no longer has a segment to send.
    pub fn disown(&mut self, destination: u16, id: usize) {
        if let Some(pending) = self.pending.get_mut(&destination) {
            pending.streams.retain(|&other| other != id);
        }
        self.settle(destination);
    }

    /// Removes a destination without waiting segments.
    fn settle(&mut self, destination: u16) {
        if self
            .pending
            .get(&destination)
            .is_some_and(|pending| pending.refusals.is_empty() && pending.streams.is_empty())
        {
            self.pending.remove(&destination);
        }
    }

    /// The next segment for a destination.
    fn next_pending(&mut self, destination: u16) -> Option<Said> {
        let pending = self.pending.get_mut(&destination)?;
        let next = match pending.refusals.pop_front() {
            Some((key, segment)) => {
                self.refusals -= 1;
                Some(Said::Refusal(key, segment))
            }
            None => pending.streams.pop_front().map(Said::Stream),
        };
        self.settle(destination);
        next
    }
}

impl Core {
    /// The number of a host.
    pub(super) fn destination(&mut self, mac: MacAddress) -> u16 {
        let Core { destinations, client, .. } = self;
        if let Some((last, number)) = destinations.last
            && last == mac
        {
            return number;
        }
        let number = match destinations.numbers.get(&mac) {
            Some(&number) => number,
            None => {
                if destinations.numbers.len() == COUNTED_MAX {
                    let Destinations { numbers, free, starved, pending, .. } = destinations;
                    numbers.retain(|_, number| {
                        let is_used = client.outstanding(0, *number) > 0
                            || starved.contains_key(number)
                            || pending.contains_key(number);
                        if !is_used {
                            free.push(*number);
                        }
                        is_used
                    });
                }
                if destinations.numbers.len() == COUNTED_MAX {
                    return UNCOUNTED;
                }
                let number = destinations.free.pop().unwrap_or(destinations.numbers.len() as u16 + 1);
                destinations.numbers.insert(mac, number);
                number
            }
        };
        destinations.last = Some((mac, number));
        number
    }

    /// Whether there is a buffer for one more control segment to a destination.
    pub(super) fn may_send_control(&mut self, mac: MacAddress) -> bool {
        let destination = self.destination(mac);
        self.may_send_to(destination)
    }

    fn may_send_to(&mut self, destination: u16) -> bool {
        self.room_for(destination, 0).is_ok_and(|room| room > 0)
    }

    /// Has a stream send a segment as soon as there is a buffer.
    pub(super) fn owe(&mut self, id: usize, mac: MacAddress) {
        let destination = self.destination(mac);
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.pending.is_none()) else { return };
        conn.pending = Some(destination);
        self.destinations.pending.entry(destination).or_default().streams.push_back(id);
        self.rouse();
    }

    /// Sends a refusal as soon as there is a buffer; drops it if too many wait.
    pub(super) fn owe_refusal(&mut self, key: Key, refusal: Segment) {
        let destination = self.destination(key.mac);
        if self.destinations.refusals < REFUSALS_MAX {
            let pending = self.destinations.pending.entry(destination).or_default();
            if pending.refusals.len() < REFUSALS_OF_ONE {
                pending.refusals.push_back((key, refusal));
                self.destinations.refusals += 1;
            }
            self.rouse();
        }
    }

    /// Segments and sockets that wait for buffers.
    #[cfg(test)]
    pub fn waits(&self) -> [usize; 2] {
        let owed =
            self.destinations.pending.values().map(|pending| pending.streams.len() + pending.refusals.len()).sum();
        [owed, self.destinations.starved.values().map(|those| those.sockets.len()).sum()]
    }

    /// Sends the waiting segments for which there are buffers.
    pub(super) fn send_pending_segments(&mut self) {
        let mut from = UNCOUNTED;
        while let Some((&destination, _)) = self.destinations.pending.range(from..).next() {
            from = destination + 1;
            while self.may_send_to(destination) {
                match self.destinations.next_pending(destination) {
                    None => break,
                    Some(Said::Refusal(key, segment)) => drop(self.send_segment(None, &key, &segment, &[])),
                    Some(Said::Stream(id)) => {
                        if let Some(conn) = self.conns.get_mut(id) {
                            conn.pending = None;
                        }
                        self.transmit(id);
                    }
                }
            }
        }
    }

    /// Whether there are buffers for data of a socket to a destination.
    pub(super) fn has_buffers_for(&mut self, socket: Socket, mac: MacAddress) -> bool {
        let destination = self.destination(mac);
        match self.room_for(destination, RESERVE) {
            Ok(room) => room > 0 && self.is_within_limit(socket, destination, room),
            Err(BrokenPort) => {
                self.fail();
                false
            }
        }
    }

    /// How many more buffers the frames for a destination may use now, if `left` stay free.
    fn room_for(&mut self, destination: u16, left: u32) -> Result<u32, BrokenPort> {
        let buffers = self.client.half();
        // With this many free buffers there is room, and the returned ones need not be counted.
        let enough = (self.client.outstanding(0, destination) + 1 + buffers / 4).max(left + 1);
        let free = self.client.sendable(enough)?;
        Ok(limit(buffers, free).saturating_sub(self.client.outstanding(0, destination)).min(free.saturating_sub(left)))
    }

    /// Whether a socket may use another of the `room` buffers of its destination.
    fn is_within_limit(&self, socket: Socket, destination: u16, room: u32) -> bool {
        let run = self.destinations.runs.get(&destination).copied().unwrap_or_default();
        let is_alone = run.0 == account(socket) && run.1 >= self.client.half();
        is_alone || self.client.outstanding(1, account(socket)) < room.saturating_mul(2)
    }

    /// A socket sends a frame to a destination.
    pub(super) fn count_run(&mut self, socket: Socket, destination: u16) {
        let run = self.destinations.runs.entry(destination).or_default();
        *run = if run.0 == account(socket) { (run.0, run.1.saturating_add(1)) } else { (account(socket), 0) };
    }

    /// Notes that a socket has no buffer for a frame; it is told when there are some.
    pub(super) fn starve(&mut self, socket: Socket, mac: MacAddress) {
        let starved = match socket {
            Socket::Stream(id) => self.conns.get_mut(id).map(|conn| &mut conn.starved),
            Socket::Datagram(id) => self.datagrams.get_mut(id).map(|datagram| &mut datagram.starved),
            Socket::Listener(_) => None,
        };
        if let Some(starved) = starved
            && !std::mem::replace(starved, true)
        {
            let destination = self.destination(mac);
            let [out, own] =
                [(0, destination), (1, account(socket))].map(|(kind, number)| self.client.outstanding(kind, number));
            let those = self.destinations.starved.entry(destination).or_default();
            those.sockets.push((socket, own));
            let run = self.destinations.runs.entry(destination).or_default();
            if run.0 != account(socket) {
                run.1 = 0;
            }
            those.out = those.out.max(out);
            self.touch(socket);
            self.rouse();
        }
    }

    /// Tells sockets that wait for buffers. To tell them once for many frames, it waits until an eighth of all buffers is
    /// free for the destination, or half of those that its frames had; and for a socket, until a quarter of its own have come
    /// back.
    pub(super) fn tell_starved(&mut self) {
        if self.destinations.starved.is_empty() || self.client.sendable(u32::MAX).is_err() {
            return;
        }
        let (plenty, mut from) = (self.client.half() / 8, UNCOUNTED);
        while let Some((&destination, _)) = self.destinations.starved.range(from..).next() {
            from = destination + 1;
            let Ok(room) = self.room_for(destination, RESERVE) else { return };
            let was_out = self.destinations.starved.get(&destination).map_or(0, |those| those.out);
            if room == 0 || (room < plenty && 2 * self.client.outstanding(0, destination) > was_out) {
                continue;
            }
            let mut those = self.destinations.starved.remove(&destination).unwrap_or_default();
            let all = std::mem::take(&mut those.sockets);
            let (told, waiting): (Vec<(Socket, u32)>, _) = all.into_iter().partition(|&(socket, was)| {
                let own = u64::from(self.client.outstanding(1, account(socket)));
                self.is_within_limit(socket, destination, room) && (4 * own <= 3 * u64::from(was) || own == 0)
            });
            those.sockets = waiting;
            if !those.sockets.is_empty() {
                self.destinations.starved.insert(destination, those);
            }
            for (socket, _) in told {
                match socket {
                    Socket::Stream(id) => self.conns.get_mut(id).into_iter().for_each(Conn::retry),
                    Socket::Datagram(id) => self.datagrams.get_mut(id).into_iter().for_each(Datagram::retry),
                    Socket::Listener(_) => {}
                }
                self.touch(socket);
            }
        }
    }
}
