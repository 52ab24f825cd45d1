//! The forwarding table of a virtual switch: the port of each station.
//!
//! The table has two kinds of entries. Given entries are the stations of this server's machines; learned entries come from
//! source addresses.
//!
//! A learned entry ages: it is forgotten after a time without a frame from its station, as in bridges (802.1D). A given
//! entry is never displaced, does not age, and stays after its port is gone. In a full table it displaces a learned entry. The
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

    /// Its address.
    pub const fn mac(self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
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
    /// When the station last sent a frame; kept exact for learned stations only.
    heard: Instant,
    port: u16,
    given: bool,
}

const VACANT: Entry = Entry { station: EMPTY, since: Instant::ZERO, heard: Instant::ZERO, port: 0, given: false };

/// An entry of the table, to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The station.
    pub station: Station,
    /// Its port; [`NOBODY`] if it has none.
    pub port: u16,
    /// When a learned station last sent a frame; none for a given one.
    pub heard: Option<Instant>,
}

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
    /// Where the next search for old entries begins.
    hand: usize,
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
            hand: 0,
        }
    }

    #[inline(always)]
    fn home(station: u64) -> usize {
        (station.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
    }

    #[inline(always)]
    fn slot(&self, station: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut i = Fib::home(station) & mask;
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
        let entry = &mut self.entries[i];
        if entry.station == station.0 && entry.port == port {
            entry.heard = now;
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
        self.entries[i] = Entry { station: station.0, since: now, heard: now, port, given: false };
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
        self.entries[i] = Entry { station: station.0, since: now, heard: now, port, given: true };
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

    /// Looks at the next `slots` slots of the table and forgets learned stations there that sent nothing for `at_most`.
    /// Returns their number.
    pub fn age(&mut self, now: Instant, at_most: Duration, slots: usize) -> usize {
        let mask = self.entries.len() - 1;
        let mut forgotten = 0;
        for _ in 0..slots.min(self.entries.len()) {
            // Once an entry is forgotten, the slot may have another one.
            while self.is_old(self.hand, now, at_most) {
                self.learned[self.entries[self.hand].port as usize] -= 1;
                self.vacate(self.hand);
                forgotten += 1;
            }
            self.hand = (self.hand + 1) & mask;
        }
        forgotten
    }

    fn is_old(&self, i: usize, now: Instant, at_most: Duration) -> bool {
        let entry = &self.entries[i];
        entry.station != EMPTY && !entry.given && now.since(entry.heard) >= at_most
    }

    /// Number of slots, at which [`Fib::age`] looks in turn.
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Known> + '_ {
        let known =
            |e: &Entry| Known { station: Station(e.station), port: e.port, heard: (!e.given).then_some(e.heard) };
        self.entries.iter().filter(|e| e.station != EMPTY).map(known)
    }

    /// Empties a slot: later entries of its run move up, so that a search still finds them.
    fn vacate(&mut self, mut hole: usize) {
        let mask = self.entries.len() - 1;
        self.used -= 1;
        let mut i = hole;
        loop {
            self.entries[hole] = VACANT;
            loop {
                i = (i + 1) & mask;
                if self.entries[i].station == EMPTY {
                    return;
                }
                let home = Fib::home(self.entries[i].station) & mask;
                // Whether the entry's search would pass by the hole.
                if (i.wrapping_sub(home) & mask) >= (i.wrapping_sub(hole) & mask) {
                    break;
                }
            }
            self.entries[hole] = self.entries[i];
            hole = i;
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
    fn a_silent_station_is_forgotten_and_no_other() {
        const AGE: Duration = Duration::from_ms(300_000);
        let at = |s: u64| START + Duration::from_ms(1_000 * s);
        let mut fib = Fib::new(2, 100, 50);
        assert!(fib.give(START, station(1), 0));
        assert!((2..10).all(|n| fib.learn(START, station(n), 1) == Learned::Here));
        // Stations 2 to 5 go on sending.
        assert!((2..6).all(|n| fib.learn(at(100), station(n), 1) == Learned::Here));
        assert_eq!(fib.age(at(299), AGE, fib.slots()), 0);
        assert_eq!(fib.age(at(300), AGE, fib.slots()), 4);
        let known = |fib: &Fib| (1..10).filter(|&n| fib.lookup(station(n)).is_some()).collect::<Vec<u32>>();
        assert_eq!((known(&fib), fib.len(), fib.learned[1]), (alloc::vec![1, 2, 3, 4, 5], 5, 4));
        let mut shown: Vec<_> = fib.iter().map(|known| (known.port, known.heard)).collect();
        shown.sort();
        assert_eq!(shown, [(0, None), (1, Some(at(100))), (1, Some(at(100))), (1, Some(at(100))), (1, Some(at(100)))]);
        // In pieces, the table is looked at as a whole.
        let pieces: usize = (0..fib.slots()).map(|_| fib.age(at(400), AGE, 1)).sum();
        assert_eq!((pieces, known(&fib)), (4, alloc::vec![1]));
    }

    #[test]
    fn whatever_is_forgotten_the_others_are_found() {
        let mut rng = crate::rng::Rng::from_words(&[9]);
        for _ in 0..300 {
            let mut fib = Fib::new(1, 16, 16);
            let mut model = alloc::collections::BTreeMap::new();
            for step in 0..200 {
                let (now, n) = (Instant(step), rng.below(60) as u32);
                if fib.learn(now, station(n), 0) == Learned::Here {
                    model.insert(n, now);
                }
                if rng.below(4) == 0 {
                    let at_most = Duration(1 + rng.below(30));
                    // A look at every slot, in pieces of any size.
                    let mut left = fib.slots();
                    while left > 0 {
                        let slots = 1 + rng.below(left as u64) as usize;
                        fib.age(now, at_most, slots);
                        left -= slots;
                    }
                    model.retain(|_, heard| now.since(*heard) < at_most);
                }
                assert_eq!(fib.len(), model.len());
                for n in 0..60 {
                    assert_eq!(fib.lookup(station(n)).is_some(), model.contains_key(&n), "{n}");
                }
            }
        }
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
