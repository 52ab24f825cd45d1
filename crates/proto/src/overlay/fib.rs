//! The forwarding table of a virtual switch: the port of each station.
//!
//! The table has two kinds of entries. Given entries are the stations of this server's machines; learned entries come from
//! source addresses.
//!
//! A given entry is never displaced and stays after its port is gone. In a full table it displaces a learned entry. The
//! number of entries that a port can cause is bounded, so a machine that invents addresses fills only its own share. The
//! rate of moves is bounded for a station that jumps between ports.

use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// A station's address in one broadcast domain, as a number: 48 bits of MAC address below 12 bits of VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Station(u64);

impl Station {
    /// The station `mac` in a broadcast domain below 4096.
    #[inline(always)]
    pub const fn new(mac: [u8; 6], domain: u16) -> Station {
        let [a, b, c, d, e, f] = mac;
        Station::from_number(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), domain)
    }

    /// Like [`Station::new`], from a number whose lowest byte is the first byte of the address; bits above the 48th are
    /// ignored.
    #[inline(always)]
    pub const fn from_number(mac: u64, domain: u16) -> Station {
        Station(mac & 0xffff_ffff_ffff | (domain as u64 & 0xfff) << 48)
    }

    /// The station as a number: the address as in [`Station::from_number`], below the domain.
    #[inline(always)]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Its broadcast domain.
    #[inline(always)]
    pub const fn domain(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Whether the address names a group of stations (the I/G bit).
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The result of learning a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The station is at this port, as before or from now on.
    Here,
    /// The station was given to another port, or moved too recently: the table stays unchanged.
    Elsewhere(u16),
    /// The table, or this port's share of the table, is full.
    NoRoom,
}

const EMPTY: u64 = u64::MAX;

/// Stands for a missing port: the station's port is gone.
pub const NOBODY: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    station: u64,
    /// When the station was learned or moved.
    since: Instant,
    port: u16,
    given: bool,
}

const VACANT: Entry = Entry { station: EMPTY, since: Instant::ZERO, port: 0, given: false };

/// The table.
#[derive(Clone, Debug)]
pub struct Fib {
    /// Open addressing with linear probing, at most half full.
    entries: Vec<Entry>,
    /// Stations learned behind each port.
    learned: Vec<u32>,
    share: u32,
    used: usize,
    moves_apart: Duration,
}

impl Fib {
    /// A table for `stations` in all behind `ports`; a port can add at most `share` learned stations.
    pub fn new(ports: usize, stations: usize, share: u32) -> Fib {
        let size = (stations.max(1) * 2).next_power_of_two();
        Fib {
            entries: alloc::vec![VACANT; size],
            learned: alloc::vec![0; ports],
            share,
            used: 0,
            moves_apart: Duration::from_ms(100),
        }
    }

    #[inline(always)]
    fn slot(&self, station: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut i = (station.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask;
        while self.entries[i].station != station && self.entries[i].station != EMPTY {
            i = (i + 1) & mask;
        }
        i
    }

    /// The port of a station.
    #[inline(always)]
    pub fn lookup(&self, station: Station) -> Option<u16> {
        let entry = &self.entries[self.slot(station.0)];
        (entry.station == station.0).then_some(entry.port)
    }

    /// A frame from `station` arrived at `port`.
    #[inline(always)]
    pub fn learn(&mut self, now: Instant, station: Station, port: u16) -> Learned {
        let i = self.slot(station.0);
        let entry = &self.entries[i];
        if entry.station == station.0 && entry.port == port {
            return Learned::Here;
        }
        self.learn_new(now, i, station, port)
    }

    #[cold]
    #[inline(never)]
    fn learn_new(&mut self, now: Instant, i: usize, station: Station, port: u16) -> Learned {
        let old = self.entries[i];
        let known = old.station == station.0;
        if known && (old.given || now.since(old.since) < self.moves_apart) {
            return Learned::Elsewhere(old.port);
        }
        if self.learned[port as usize] >= self.share || !known && !self.has_room() {
            return Learned::NoRoom;
        }
        if known {
            self.learned[old.port as usize] -= 1;
        } else {
            self.used += 1;
        }
        self.learned[port as usize] += 1;
        self.entries[i] = Entry { station: station.0, since: now, port, given: false };
        Learned::Here
    }

    fn has_room(&self) -> bool {
        self.used < self.entries.len() / 2
    }

    /// Gives a station to `port`, which may be [`NOBODY`], and takes it from any other port. In a full table it displaces a
    /// learned station. Returns whether the table has room for it.
    pub fn give(&mut self, now: Instant, station: Station, port: u16) -> bool {
        let mut i = self.slot(station.0);
        let old = self.entries[i];
        if old.station == station.0 {
            if !old.given {
                self.learned[old.port as usize] -= 1;
            }
        } else {
            if !self.has_room() {
                if !self.displace() {
                    return false;
                }
                i = self.slot(station.0);
            }
            self.used += 1;
        }
        self.entries[i] = Entry { station: station.0, since: now, port, given: true };
        true
    }

    /// Forgets the oldest learned station of the port with the most learned stations; returns whether there is one.
    fn displace(&mut self) -> bool {
        let Some(most) = (0..self.learned.len()).max_by_key(|&p| self.learned[p]) else { return false };
        let learned = self.entries.iter().filter(|e| e.station != EMPTY && !e.given && usize::from(e.port) == most);
        let Some(victim) = learned.min_by_key(|e| e.since).map(|e| e.station) else { return false };
        self.learned[most] -= 1;
        self.retain(|e| e.station != victim);
        true
    }

    /// Forgets all stations behind the removed `port`.
    pub fn forget(&mut self, port: u16) {
        self.learned[port as usize] = 0;
        self.retain(|e| e.port != port);
    }

    /// The machine at `port` is gone: forgets learned stations there, and assigns given stations to [`NOBODY`].
    pub fn leave(&mut self, port: u16) {
        self.learned[port as usize] = 0;
        self.retain(|e| e.port != port || e.given);
        self.entries.iter_mut().filter(|e| e.station != EMPTY && e.port == port).for_each(|e| e.port = NOBODY);
    }

    /// Removes a given station that is assigned to [`NOBODY`].
    pub fn release(&mut self, station: Station) {
        if self.lookup(station) == Some(NOBODY) {
            self.retain(|e| e.station != station.0);
        }
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        let kept: Vec<Entry> = self.entries.iter().copied().filter(|e| e.station != EMPTY && keep(e)).collect();
        self.entries.fill(VACANT);
        self.used = kept.len();
        for entry in kept {
            let i = self.slot(entry.station);
            self.entries[i] = entry;
        }
    }

    /// Number of stations in the table.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(n: u32) -> Station {
        let [a, b, c, d] = n.to_be_bytes();
        Station::new([2, 0, a, b, c, d], 0)
    }
    const START: Instant = Instant::ZERO;

    #[test]
    fn it_learns_and_forgets() {
        let mut fib = Fib::new(4, 100, 50);
        for n in 0..40 {
            assert_eq!(fib.learn(START, station(n), (n % 4) as u16), Learned::Here);
        }
        assert!((0..40).all(|n| fib.lookup(station(n)) == Some((n % 4) as u16)));
        assert_eq!(fib.lookup(station(40)), None);
        fib.forget(1);
        assert_eq!(fib.len(), 30);
        assert!((0..40).all(|n| fib.lookup(station(n)) == (n % 4 != 1).then_some((n % 4) as u16)));
        // The same address in another domain is another station.
        assert_eq!(fib.lookup(Station::new([2, 0, 0, 0, 0, 0], 1)), None);
    }

    #[test]
    fn a_port_that_invents_stations_fills_its_own_share() {
        let mut fib = Fib::new(2, 100, 10);
        assert!((0..10).all(|n| fib.learn(START, station(n), 0) == Learned::Here));
        assert!((10..10_000).all(|n| fib.learn(START, station(n), 0) == Learned::NoRoom));
        assert_eq!(fib.learn(START, station(7), 0), Learned::Here);
        assert_eq!(fib.learn(START, station(20_000), 1), Learned::Here);
        assert!(fib.give(START, station(20_001), 0));
        assert_eq!(fib.len(), 12);
    }

    #[test]
    fn the_table_as_a_whole_is_bounded() {
        let mut fib = Fib::new(1, 4, 1_000);
        assert!((0..4).all(|n| fib.learn(START, station(n), 0) == Learned::Here));
        assert_eq!(fib.learn(START, station(4), 0), Learned::NoRoom);
        assert_eq!(fib.lookup(station(6)), None);
        // A given station displaces a learned one, but no given one.
        assert!((10..14).all(|n| fib.give(START, station(n), 0)));
        assert_eq!((fib.len(), fib.learned[0]), (4, 0));
        assert!(!fib.give(START, station(14), 0) && fib.give(START, station(13), 0));
        assert!((10..14).all(|n| fib.lookup(station(n)) == Some(0)));
        fib.forget(0);
        assert_eq!((fib.len(), fib.learn(START, station(1), 0)), (0, Learned::Here));
    }

    #[test]
    fn what_is_displaced_was_learned_longest_ago_behind_who_made_it_learn_most() {
        let mut fib = Fib::new(2, 8, 6);
        assert!((0..2).all(|n| fib.learn(START, station(n), 1) == Learned::Here));
        for n in [7, 5, 6, 4, 3, 2] {
            assert_eq!(fib.learn(START + Duration::from_ms(u64::from(9 - n)), station(n), 0), Learned::Here);
        }
        assert!(fib.give(START, station(9), 1));
        assert_eq!((fib.lookup(station(7)), fib.len(), fib.learned[0]), (None, 8, 5));
        assert!((0..7).all(|n| fib.lookup(station(n)).is_some()) && fib.lookup(station(9)) == Some(1));
    }

    #[test]
    fn a_given_station_whose_port_is_gone_is_nobodys_until_it_is_taken_back() {
        let mut fib = Fib::new(3, 100, 50);
        assert!(fib.give(START, station(1), 0) && fib.give(START, station(2), NOBODY));
        fib.learn(START, station(3), 0);
        fib.leave(0);
        assert_eq!([1, 2, 3].map(|n| fib.lookup(station(n))), [Some(NOBODY), Some(NOBODY), None]);
        // No other port can learn the station.
        let later = START + Duration::from_ms(900);
        assert_eq!(fib.learn(later, station(1), 1), Learned::Elsewhere(NOBODY));
        assert!(fib.give(later, station(1), 0));
        fib.release(station(1));
        fib.release(station(2));
        assert_eq!((fib.lookup(station(1)), fib.lookup(station(2)), fib.len()), (Some(0), None, 1));
        assert_eq!(fib.learn(later, station(2), 1), Learned::Here);
        assert_eq!(fib.learned, [0, 1, 0]);
    }

    #[test]
    fn a_given_station_cannot_be_taken_and_a_jumping_one_is_followed_slowly() {
        let mut fib = Fib::new(3, 100, 50);
        fib.give(START, station(1), 0);
        assert_eq!(fib.learn(START + Duration::from_ms(900), station(1), 2), Learned::Elsewhere(0));
        fib.learn(START, station(2), 0);
        // HOSTILE 25: a thousand moves a second are ten in the table, and the last one counts.
        let mut moves = 0;
        let mut at = 0;
        for ms in 0..1_000u64 {
            let port = (ms % 2) as u16;
            if fib.learn(START + Duration::from_ms(ms), station(2), port) == Learned::Here && port != at {
                (moves, at) = (moves + 1, port);
            }
        }
        assert!((5..=10).contains(&moves), "{moves}");
        assert_eq!(fib.learn(START + Duration::from_ms(1_200), station(2), 2), Learned::Here);
        assert_eq!(fib.lookup(station(2)), Some(2));
        fib.give(START, station(2), 1);
        assert_eq!((fib.lookup(station(2)), fib.len()), (Some(1), 2));
        // The share of the old port is free again.
        assert_eq!(fib.learned, [0, 0, 0]);
    }
}
