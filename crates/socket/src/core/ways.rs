//! The port's buffers, shared among those to whom frames are sent: what one does not take now keeps buffers, and nobody's frames have
//! more than their [part], so that there are some for another. The switch sets frames aside that a receiver does not
//! take by the same measure, so that it takes all that are within it: one that was not would stand in front of everybody's. Hence a question, an
//! answer or a window goes by it, too, and waits where it cannot. Sockets that send to the same one share what that has:
//! none of them has more than twice what is left for it, but one that has sent as many frames in a row as there are buffers.

use super::conn::Conn;
use super::datagram::Datagram;
use super::{Core, Key, RESERVE, Socket};
use sluicenet_dataplane::port::BrokenPort;
use sluicenet_node::share::part;
use sluicenet_proto::transport::tcplight::Segment;
use sluicenet_wire::ethernet::MacAddress;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Refusals that wait for buffers, in all and of one host; whoever is not refused for want of them asks again.
const REFUSALS_MAX: usize = 4096;
const REFUSALS_OF_ONE: usize = 512;
/// Hosts whose frames are counted; further ones have what is left by all.
const COUNTED_MAX: usize = 4096;
/// The number under which frames are not counted.
const UNCOUNTED: u16 = 0;

/// The hosts to whom frames are sent, by the numbers under which the port counts their buffers.
#[derive(Default)]
pub(super) struct Ways {
    numbers: HashMap<MacAddress, u16>,
    free: Vec<u16>,
    last: Option<(MacAddress, u16)>,
    /// By the number of a host: which socket sent to it last, by its own, and how many frames since another one did or wanted to.
    runs: HashMap<u16, (u16, u32)>,
    /// Sockets that want to send and had no buffer for it, by the number of who it was for.
    starved: BTreeMap<u16, Starved>,
    /// What is to be said and may not be now, by the number of who it is for.
    due: BTreeMap<u16, Due>,
    /// Refusals among it.
    refusals: usize,
}

#[derive(Default)]
struct Due {
    /// Streams that have something to say, each once.
    streams: VecDeque<usize>,
    refusals: VecDeque<(Key, Segment)>,
}

#[derive(Default)]
struct Starved {
    /// Each with the buffers that its frames had then.
    sockets: Vec<(Socket, u32)>,
    /// Buffers that all frames for that host had then.
    out: u32,
}

enum Said {
    Refusal(Key, Segment),
    /// Whatever that stream has to say.
    Of(usize),
}

/// The number under which the port counts the buffers of a socket's frames.
pub(super) fn line(socket: Socket) -> u16 {
    let number = match socket {
        Socket::Stream(id) => 2 * id + 1,
        Socket::Datagram(id) => 2 * id + 2,
        Socket::Listener(_) => return UNCOUNTED,
    };
    number.try_into().unwrap_or(UNCOUNTED)
}

impl Ways {
    /// Whether somebody waits for buffers to come back.
    pub fn is_waited_for(&self) -> bool {
        !self.starved.is_empty() || !self.due.is_empty()
    }

    /// Whether something is to be said.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// A socket waits for no buffers any more.
    pub fn feed(&mut self, socket: Socket) {
        self.starved.retain(|_, those| {
            those.sockets.retain(|&(other, _)| other != socket);
            !those.sockets.is_empty()
        });
    }

    /// A stream has nothing to say any more.
    pub fn disown(&mut self, way: u16, id: usize) {
        if let Some(due) = self.due.get_mut(&way) {
            due.streams.retain(|&other| other != id);
        }
        self.settle(way);
    }

    /// A host to whom nothing is to be said is not kept.
    fn settle(&mut self, way: u16) {
        if self.due.get(&way).is_some_and(|due| due.refusals.is_empty() && due.streams.is_empty()) {
            self.due.remove(&way);
        }
    }

    /// The next that is to be said to a host.
    fn next_due(&mut self, way: u16) -> Option<Said> {
        let due = self.due.get_mut(&way)?;
        let next = match due.refusals.pop_front() {
            Some((key, segment)) => {
                self.refusals -= 1;
                Some(Said::Refusal(key, segment))
            }
            None => due.streams.pop_front().map(Said::Of),
        };
        self.settle(way);
        next
    }
}

impl Core {
    /// The number of a host.
    pub(super) fn way(&mut self, mac: MacAddress) -> u16 {
        let Core { ways, client, .. } = self;
        if let Some((last, number)) = ways.last
            && last == mac
        {
            return number;
        }
        let number = match ways.numbers.get(&mac) {
            Some(&number) => number,
            None => {
                if ways.numbers.len() == COUNTED_MAX {
                    let Ways { numbers, free, starved, due, .. } = ways;
                    numbers.retain(|_, number| {
                        let is_used = client.outstanding(0, *number) > 0
                            || starved.contains_key(number)
                            || due.contains_key(number);
                        if !is_used {
                            free.push(*number);
                        }
                        is_used
                    });
                }
                if ways.numbers.len() == COUNTED_MAX {
                    return UNCOUNTED;
                }
                let number = ways.free.pop().unwrap_or(ways.numbers.len() as u16 + 1);
                ways.numbers.insert(mac, number);
                number
            }
        };
        ways.last = Some((mac, number));
        number
    }

    /// Whether one more frame to a host, of whatever kind, has a buffer and will be in nobody's way.
    pub(super) fn may_say(&mut self, mac: MacAddress) -> bool {
        let way = self.way(mac);
        self.may_say_under(way)
    }

    fn may_say_under(&mut self, way: u16) -> bool {
        self.room_for(way, 0).is_ok_and(|room| room > 0)
    }

    /// A stream has something to say to a host as soon as that may be.
    pub(super) fn owe(&mut self, id: usize, mac: MacAddress) {
        let way = self.way(mac);
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.due.is_none()) else { return };
        conn.due = Some(way);
        self.ways.due.entry(way).or_default().streams.push_back(id);
        self.rouse();
    }

    /// A refusal is to be said as soon as that may be; of too many for one host, or in all, none is.
    pub(super) fn owe_refusal(&mut self, key: Key, refusal: Segment) {
        let way = self.way(key.mac);
        if self.ways.refusals < REFUSALS_MAX {
            let due = self.ways.due.entry(way).or_default();
            if due.refusals.len() < REFUSALS_OF_ONE {
                due.refusals.push_back((key, refusal));
                self.ways.refusals += 1;
            }
            self.rouse();
        }
    }

    /// How much is to be said and could not be, and how many sockets wait for buffers.
    #[cfg(test)]
    pub fn waits(&self) -> [usize; 2] {
        let owed = self.ways.due.values().map(|due| due.streams.len() + due.refusals.len()).sum();
        [owed, self.ways.starved.values().map(|those| those.sockets.len()).sum()]
    }

    /// Says what may be said by now.
    pub(super) fn say_due(&mut self) {
        let mut from = UNCOUNTED;
        while let Some((&way, _)) = self.ways.due.range(from..).next() {
            from = way + 1;
            while self.may_say_under(way) {
                match self.ways.next_due(way) {
                    None => break,
                    Some(Said::Refusal(key, segment)) => drop(self.send_segment(None, &key, &segment, &[])),
                    Some(Said::Of(id)) => {
                        if let Some(conn) = self.conns.get_mut(id) {
                            conn.due = None;
                        }
                        self.transmit(id);
                    }
                }
            }
        }
    }

    /// Whether there are buffers for data of a socket to a host.
    pub(super) fn has_buffers_for(&mut self, socket: Socket, mac: MacAddress) -> bool {
        let way = self.way(mac);
        match self.room_for(way, RESERVE) {
            Ok(room) => room > 0 && self.is_within_share(socket, way, room),
            Err(BrokenPort) => {
                self.fail();
                false
            }
        }
    }

    /// How many more buffers frames may have under a number now, where so many are left for others.
    fn room_for(&mut self, way: u16, left: u32) -> Result<u32, BrokenPort> {
        let places = self.client.half();
        // Where so many are free there is room, whatever came back since the last look.
        let enough = (self.client.outstanding(0, way) + 1 + places / 4).max(left + 1);
        let free = self.client.sendable(enough)?;
        Ok(part(places, free).saturating_sub(self.client.outstanding(0, way)).min(free.saturating_sub(left)))
    }

    /// Whether a socket's frames have less than their share, or nobody shares, where so much room is left for the host.
    fn is_within_share(&self, socket: Socket, way: u16, room: u32) -> bool {
        let run = self.ways.runs.get(&way).copied().unwrap_or_default();
        let is_alone = run.0 == line(socket) && run.1 >= self.client.half();
        is_alone || self.client.outstanding(1, line(socket)) < room.saturating_mul(2)
    }

    /// A frame of a socket goes to a host.
    pub(super) fn count_run(&mut self, socket: Socket, way: u16) {
        let run = self.ways.runs.entry(way).or_default();
        *run = if run.0 == line(socket) { (run.0, run.1.saturating_add(1)) } else { (line(socket), 0) };
    }

    /// Who wanted to send to a host and had no buffer is told when there are some.
    pub(super) fn starve(&mut self, socket: Socket, mac: MacAddress) {
        let starved = match socket {
            Socket::Stream(id) => self.conns.get_mut(id).map(|conn| &mut conn.starved),
            Socket::Datagram(id) => self.datagrams.get_mut(id).map(|datagram| &mut datagram.starved),
            Socket::Listener(_) => None,
        };
        if let Some(starved) = starved
            && !std::mem::replace(starved, true)
        {
            let way = self.way(mac);
            let [out, own] = [(0, way), (1, line(socket))].map(|(kind, number)| self.client.outstanding(kind, number));
            let those = self.ways.starved.entry(way).or_default();
            those.sockets.push((socket, own));
            let run = self.ways.runs.entry(way).or_default();
            if run.0 != line(socket) {
                run.1 = 0;
            }
            those.out = those.out.max(out);
            self.touch(socket);
            self.rouse();
        }
    }

    /// Tells who wanted to send, when there is room for more than a few frames to that host, so that they are not told for each: a part of
    /// all buffers, or of what its frames had; and of a share, where a quarter of what the socket's frames had has come back.
    pub(super) fn tell_starved(&mut self) {
        if self.ways.starved.is_empty() || self.client.sendable(u32::MAX).is_err() {
            return;
        }
        let (plenty, mut from) = (self.client.half() / 8, UNCOUNTED);
        while let Some((&way, _)) = self.ways.starved.range(from..).next() {
            from = way + 1;
            let Ok(room) = self.room_for(way, RESERVE) else { return };
            let was_out = self.ways.starved.get(&way).map_or(0, |those| those.out);
            if room == 0 || (room < plenty && 2 * self.client.outstanding(0, way) > was_out) {
                continue;
            }
            let mut those = self.ways.starved.remove(&way).unwrap_or_default();
            let all = std::mem::take(&mut those.sockets);
            let (told, waiting): (Vec<(Socket, u32)>, _) = all.into_iter().partition(|&(socket, was)| {
                let own = u64::from(self.client.outstanding(1, line(socket)));
                self.is_within_share(socket, way, room) && (4 * own <= 3 * u64::from(was) || own == 0)
            });
            those.sockets = waiting;
            if !those.sockets.is_empty() {
                self.ways.starved.insert(way, those);
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
