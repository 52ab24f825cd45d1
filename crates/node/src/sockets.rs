//! The sockets of a VM, found by their flow.

use crate::guest::Socket;
use crate::packet::FlowKey;
use alloc::vec::Vec;

/// No socket.
const NOWHERE: u32 = u32::MAX;
/// Odd, and without a pattern: the golden ratio's fraction.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    socket: u32,
}

const EMPTY: Entry = Entry { key: 0, socket: NOWHERE };

/// Sockets by number, with a hash index in open addressing: a look-up is one cache line, whose address is known ahead.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sockets {
    /// A power of two of entries, at most half of them taken; none before the first socket.
    index: Vec<Entry>,
    /// The upper bits of a spread key that are its place in the index are those above this one.
    shift: u32,
    sockets: Vec<Option<Socket>>,
    free: Vec<u32>,
}

/// Peer address, peer port and own port: eight bytes of a packet of the peer.
#[inline(always)]
fn key_of(flow: &FlowKey) -> u64 {
    (flow.sport as u64) << 48 | (flow.dport as u64) << 32 | flow.dst.to_bits() as u64
}

impl Sockets {
    /// Place of a key in an index that is not empty.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(SPREAD) >> (self.shift & 63)) as usize
    }

    /// The socket of `flow`, seen from this end.
    #[inline(always)]
    pub fn find(&self, flow: &FlowKey) -> Option<u32> {
        let key = key_of(flow);
        let mut at = self.home(key);
        loop {
            // There is no entry in an empty index.
            let entry = self.index.get(at)?;
            if entry.socket == NOWHERE {
                return None;
            }
            if entry.key == key {
                return Some(entry.socket);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// The place at which the look-up of `flow` begins, for a caller that prefetches memory.
    #[inline(always)]
    pub fn place(&self, flow: &FlowKey) -> u32 {
        self.home(key_of(flow)) as u32
    }

    /// The address of a place, for a caller that prefetches memory.
    #[inline(always)]
    pub fn place_line(&self, place: u32) -> *const u8 {
        self.index.as_ptr().wrapping_add(place as usize).cast()
    }

    /// The number and the address of the socket at a place, which is mostly that of the flow; found without reading the
    /// socket, for a caller that prefetches memory.
    #[inline(always)]
    pub fn at(&self, place: u32) -> Option<(u32, *const u8)> {
        let number = self.index.get(place as usize)?.socket;
        Some((number, core::ptr::from_ref(self.sockets.get(number as usize)?).cast()))
    }

    /// Adds a socket; returns its number.
    pub fn insert(&mut self, socket: Socket) -> u32 {
        let key = key_of(&socket.flow);
        let number = match self.free.pop() {
            Some(number) => {
                self.sockets[number as usize] = Some(socket);
                number
            }
            None => {
                // Sockets are large and most guests have few: room for half as many again, not for twice as many.
                if self.sockets.len() == self.sockets.capacity() {
                    self.sockets.reserve_exact((self.sockets.len() / 2).max(1));
                }
                self.sockets.push(Some(socket));
                self.sockets.len() as u32 - 1
            }
        };
        if 2 * (self.sockets.len() - self.free.len()) > self.index.len() {
            let larger = alloc::vec![EMPTY; (2 * self.index.len()).max(4)];
            self.shift = u64::BITS - larger.len().trailing_zeros();
            let old = core::mem::replace(&mut self.index, larger);
            old.into_iter().filter(|e| e.socket != NOWHERE).for_each(|e| self.enter(e));
        }
        self.enter(Entry { key, socket: number });
        number
    }

    fn enter(&mut self, entry: Entry) {
        let mut at = self.home(entry.key);
        while self.index[at].socket != NOWHERE {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = entry;
    }

    /// Removes a socket.
    pub fn remove(&mut self, number: u32) {
        let Some(socket) = self.sockets.get_mut(number as usize).and_then(Option::take) else { return };
        self.free.push(number);
        let (key, mask) = (key_of(&socket.flow), self.index.len() - 1);
        let mut hole = self.home(key);
        while self.index[hole].socket != number {
            hole = (hole + 1) & mask;
        }
        // Later entries without a gap move up, unless an entry would move before its home. So no tombstone is needed.
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let entry = self.index[next];
            if entry.socket == NOWHERE {
                break;
            }
            let home = self.home(entry.key);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.index[hole] = entry;
                hole = next;
            }
        }
        self.index[hole] = EMPTY;
    }

    /// A socket by its number.
    #[inline(always)]
    pub fn get(&self, number: u32) -> Option<&Socket> {
        self.sockets.get(number as usize)?.as_ref()
    }

    /// A socket by its number, mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Socket> {
        self.sockets.get_mut(number as usize)?.as_mut()
    }

    /// All sockets, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Body;
    use crate::packet::Address;
    use alloc::collections::BTreeMap;
    use sluicenet_proto::rng::Rng;
    use sluicenet_proto::udp::{UdpReceiver, UdpSender};

    #[test]
    fn it_finds_what_was_put_in_and_nothing_else() {
        let mut rng = Rng::from_words(&[9]);
        let (mut sockets, mut expected) = (Sockets::default(), BTreeMap::new());
        for _ in 0..20_000 {
            // Few flows, so that they come and go often and stand side by side.
            let peer = Address::new(rng.below(40) as u32, rng.below(3) as u8);
            let flow = FlowKey { src: Address::new(1, 0), dst: peer, sport: rng.below(3) as u16, dport: 80 };
            let name = (peer, flow.sport);
            assert_eq!(sockets.find(&flow), expected.get(&name).copied());
            match expected.remove(&name) {
                Some(number) => sockets.remove(number),
                None => {
                    let body = Body::Udp(UdpSender::new(), UdpReceiver::default());
                    let number = sockets.insert(Socket::new(flow, body, 0));
                    assert_eq!(sockets.get_mut(number).map(|s| s.flow), Some(flow));
                    expected.insert(name, number);
                }
            }
        }
        assert_eq!(sockets.iter().count(), expected.len());
    }
}
