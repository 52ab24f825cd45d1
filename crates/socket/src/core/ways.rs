//! The port's buffers, shared among those to whom frames are sent: what one does not take now keeps buffers, and nobody's frames have
//! more than are free. So the first has half of them, and there are always some for another.

use super::conn::Conn;
use super::datagram::Datagram;
use super::{Core, RESERVE, Socket};
use sluicenet_dataplane::port::BrokenPort;
use sluicenet_wire::ethernet::MacAddress;
use std::collections::{BTreeMap, HashMap};

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
    /// Sockets that want to send and had no buffer for it, by the number of who it was for.
    starved: BTreeMap<u16, Starved>,
}

#[derive(Default)]
struct Starved {
    sockets: Vec<Socket>,
    /// Buffers that the frames for that host had then.
    out: u32,
}

impl Ways {
    pub fn is_starved(&self) -> bool {
        !self.starved.is_empty()
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
                    let Ways { numbers, free, starved, .. } = ways;
                    numbers.retain(|_, number| {
                        let is_used = client.outstanding(*number) > 0 || starved.contains_key(number);
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

    /// Whether there are buffers for data to a host.
    pub(super) fn has_buffers_for(&mut self, mac: MacAddress) -> bool {
        let way = self.way(mac);
        match self.room_under(way) {
            Ok(room) => room > 0,
            Err(BrokenPort) => {
                self.fail();
                false
            }
        }
    }

    /// How many more buffers frames may have under a number now, beside those that are left for what the host itself has to say.
    fn room_under(&mut self, way: u16) -> Result<u32, BrokenPort> {
        let enough = RESERVE.max(self.client.outstanding(way)) + 1;
        let free = self.client.sendable(enough)?;
        Ok(free.saturating_sub(RESERVE.max(self.client.outstanding(way))))
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
            let out = self.client.outstanding(way);
            let those = self.ways.starved.entry(way).or_default();
            those.sockets.push(socket);
            those.out = those.out.max(out);
            self.touch(socket);
            self.rouse();
        }
    }

    /// Tells who wanted to send, when there is room for more than a few frames to that host, so that they are not told for each: a part of
    /// all buffers, or of what its frames had.
    pub(super) fn tell_starved(&mut self) {
        if !self.ways.is_starved() || self.client.sendable(u32::MAX).is_err() {
            return;
        }
        let (plenty, mut from) = (self.client.half() / 8, UNCOUNTED);
        while let Some((&way, _)) = self.ways.starved.range(from..).next() {
            from = way + 1;
            let Ok(room) = self.room_under(way) else { return };
            let was_out = self.ways.starved.get(&way).map_or(0, |those| those.out);
            if room == 0 || (room < plenty && 2 * self.client.outstanding(way) > was_out) {
                continue;
            }
            for socket in self.ways.starved.remove(&way).unwrap_or_default().sockets {
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
