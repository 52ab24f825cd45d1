//! Two-level routing tables: prefixes, and suffixes behind one of the prefixes (Al-Fares 2012, 3.1.3 to 3.1.5).

use super::address::{FIRST_ID, FatTree, Switch};
use alloc::vec::Vec;
use core::net::Ipv4Addr;

/// The result of a matching prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A terminating prefix: frames leave by this port.
    Port(u16),
    /// The suffixes decide.
    Suffixes,
}

/// A left-handed entry: only the first `length` bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The bits, with zeros behind them.
    pub address: Ipv4Addr,
    /// Number of bits that count, 0 to 32.
    pub length: u8,
    /// The result of a match.
    pub next: Next,
}

/// A right-handed entry: only the last `length` bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suffix {
    /// The bits, with zeros before them.
    pub address: Ipv4Addr,
    /// Number of bits that count, 0 to 32.
    pub length: u8,
    /// The output port.
    pub port: u16,
}

/// A word of a TCAM: it matches addresses that equal `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcamEntry {
    /// The bits.
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
    /// The output port.
    pub port: u16,
}

/// The table of one switch. The suffixes are behind the default prefix, as in all tables of figures 3.5 to 3.7.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TwoLevelTable {
    prefixes: Vec<Prefix>,
    suffixes: Vec<Suffix>,
}

fn prefix_mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - length as u32).unwrap_or(0)
}

fn suffix_mask(length: u8) -> u32 {
    u32::MAX.checked_shr(32 - length as u32).unwrap_or(0)
}

impl Prefix {
    fn matches(&self, to: Ipv4Addr) -> bool {
        (to.to_bits() ^ self.address.to_bits()) & prefix_mask(self.length) == 0
    }
}

impl Suffix {
    fn matches(&self, to: Ipv4Addr) -> bool {
        (to.to_bits() ^ self.address.to_bits()) & suffix_mask(self.length) == 0
    }
}

impl TwoLevelTable {
    /// The table that figures 3.5, 3.6 and 3.7 generate for a switch. Frames for an edge switch's own subnet are switched
    /// without the table ([`FatTree::forward`]).
    pub fn generate(tree: FatTree, switch: Switch) -> TwoLevelTable {
        let (k, half) = (tree.k() as u8, tree.half() as u8);
        let mut table = TwoLevelTable::default();
        let z = match switch {
            // Figure 3.7, lines 3 to 5.
            Switch::Core { .. } => {
                (0..k).for_each(|x| table.add_prefix(Ipv4Addr::new(10, x, 0, 0), 16, u16::from(x)));
                return table;
            }
            // Figure 3.5, lines 3 to 5.
            Switch::Aggregation { pod, at } => {
                (0..half).for_each(|i| table.add_prefix(Ipv4Addr::new(10, pod, i, 0), 24, u16::from(i)));
                half + at
            }
            Switch::Edge { at, .. } => at,
        };
        // Figure 3.5, lines 6 to 9, and figure 3.6: the shift by z makes different switches use different ports for one
        // host ID.
        for i in FIRST_ID..=half + 1 {
            let port = (u16::from(i) - 2 + u16::from(z)) % u16::from(half) + u16::from(half);
            table.add_suffix(Ipv4Addr::new(0, 0, 0, i), 8, port);
        }
        table
    }

    /// Adds a terminating prefix.
    pub fn add_prefix(&mut self, address: Ipv4Addr, length: u8, port: u16) {
        assert!(length <= 32);
        let address = Ipv4Addr::from_bits(address.to_bits() & prefix_mask(length));
        self.prefixes.push(Prefix { address, length, next: Next::Port(port) });
    }

    /// Adds a suffix behind the default prefix; the first suffix also adds the default prefix.
    pub fn add_suffix(&mut self, address: Ipv4Addr, length: u8, port: u16) {
        assert!(length <= 32);
        if self.suffixes.is_empty() {
            self.prefixes.push(Prefix { address: Ipv4Addr::UNSPECIFIED, length: 0, next: Next::Suffixes });
        }
        let address = Ipv4Addr::from_bits(address.to_bits() & suffix_mask(length));
        self.suffixes.push(Suffix { address, length, port });
    }

    /// The prefixes, in the order of insertion.
    pub fn prefixes(&self) -> &[Prefix] {
        &self.prefixes
    }

    /// The suffixes, in the order of insertion.
    pub fn suffixes(&self) -> &[Suffix] {
        &self.suffixes
    }

    /// Lookup in two steps (3.1.3, 3.4.1): the longest matching prefix; if it is not terminating, the longest matching
    /// suffix.
    pub fn lookup(&self, to: Ipv4Addr) -> Option<u16> {
        let prefix = self.prefixes.iter().filter(|p| p.matches(to)).max_by_key(|p| p.length)?;
        match prefix.next {
            Next::Port(port) => Some(port),
            Next::Suffixes => self.suffixes.iter().filter(|s| s.matches(to)).max_by_key(|s| s.length).map(|s| s.port),
        }
    }

    /// The table for a TCAM (3.1.4), which uses the first matching entry: left-handed entries at smaller addresses, longest
    /// first, then the right-handed entries. The default prefix needs no word, because its suffixes come last.
    pub fn tcam(&self) -> Vec<TcamEntry> {
        let mut left: Vec<(u8, TcamEntry)> = self
            .prefixes
            .iter()
            .filter_map(|p| match p.next {
                Next::Port(port) => {
                    Some((p.length, TcamEntry { value: p.address.to_bits(), mask: prefix_mask(p.length), port }))
                }
                Next::Suffixes => None,
            })
            .collect();
        let right = |s: &Suffix| {
            (s.length, TcamEntry { value: s.address.to_bits(), mask: suffix_mask(s.length), port: s.port })
        };
        let mut right: Vec<(u8, TcamEntry)> = self.suffixes.iter().map(right).collect();
        left.sort_by_key(|e| core::cmp::Reverse(e.0));
        right.sort_by_key(|e| core::cmp::Reverse(e.0));
        left.into_iter().chain(right).map(|e| e.1).collect()
    }
}

/// The port of the first matching entry, as a TCAM answers.
pub fn first_match(entries: &[TcamEntry], to: Ipv4Addr) -> Option<u16> {
    entries.iter().find(|e| (to.to_bits() ^ e.value) & e.mask == 0).map(|e| e.port)
}

impl FatTree {
    /// The prefix whose traffic a switch must not send up: an edge switch's own subnet, an upper switch's own pod. The
    /// tables of figures 3.5 to 3.7 have no terminating prefix for some addresses there, such as 10.2.2.2. Their packets
    /// would go up and down between upper switch and core for ever.
    pub fn own_prefix(self, switch: Switch) -> Option<(Ipv4Addr, u8)> {
        match switch {
            Switch::Edge { pod, at } => Some((Ipv4Addr::new(10, pod, at, 0), 24)),
            Switch::Aggregation { pod, .. } => Some((Ipv4Addr::new(10, pod, 0, 0), 16)),
            Switch::Core { .. } => None,
        }
    }

    /// The output port of `switch`, with its table `table`. An edge switch switches frames for its own subnet, and no
    /// switch sends up frames for missing hosts of its own prefix.
    pub fn forward(self, switch: Switch, table: &TwoLevelTable, to: Ipv4Addr) -> Option<u16> {
        let port = match (switch, self.host_at(to)) {
            (Switch::Edge { pod, at }, Some(host)) if self.subnet_of(host) == self.subnet(pod, at) => {
                return Some((host % self.half()) as u16);
            }
            _ => table.lookup(to)?,
        };
        let own = self
            .own_prefix(switch)
            .is_some_and(|(address, length)| (address.to_bits() ^ to.to_bits()) & prefix_mask(length) == 0);
        (!own || u32::from(port) < self.half()).then_some(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HostId;
    use crate::rng::Rng;
    use crate::routing::Policy;
    use crate::routing::fat_tree::Peer;
    use crate::routing::probe::Probe;
    use crate::routing::tree::TreeRouter;
    use crate::routing::xgft::Xgft;
    use alloc::vec;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn table(k: u32, switch: &str) -> TwoLevelTable {
        let tree = FatTree::new(k).unwrap();
        TwoLevelTable::generate(tree, tree.switch_at(ip(switch)).unwrap())
    }

    /// The switches on a packet's path.
    fn walk(tree: FatTree, tables: &[TwoLevelTable], from: HostId, to: HostId) -> Vec<Switch> {
        let address = tree.host_address(to).unwrap();
        let mut at = tree.edge(tree.subnet_of(from));
        let mut passed = vec![at];
        loop {
            let port = tree.forward(at, &tables[tree.index(at) as usize], address).unwrap();
            match tree.peer(at, port) {
                Peer::Host(host) => {
                    assert_eq!(host, to);
                    return passed;
                }
                Peer::Switch(next, _) => at = next,
            }
            assert!(passed.len() < 5, "{passed:?} is a loop");
            passed.push(at);
        }
    }

    fn tables(tree: FatTree) -> Vec<TwoLevelTable> {
        tree.switches().map(|s| TwoLevelTable::generate(tree, s)).collect()
    }

    #[test]
    fn figure_3_3_the_table_at_10_2_2_1() {
        let t = table(4, "10.2.2.1");
        let prefix = |a, length, next| Prefix { address: ip(a), length, next };
        let expected = [
            prefix("10.2.0.0", 24, Next::Port(0)),
            prefix("10.2.1.0", 24, Next::Port(1)),
            prefix("0.0.0.0", 0, Next::Suffixes),
        ];
        assert_eq!(t.prefixes(), expected);
        let suffix = |a, port| Suffix { address: ip(a), length: 8, port };
        assert_eq!(t.suffixes(), [suffix("0.0.0.2", 2), suffix("0.0.0.3", 3)]);
        assert_eq!((t.lookup(ip("10.2.1.2")), t.lookup(ip("10.3.0.3"))), (Some(1), Some(3)));
    }

    #[test]
    fn figure_3_4_the_same_in_a_tcam() {
        let t = table(4, "10.2.2.1").tcam();
        let masks: Vec<u32> = t.iter().map(|e| e.mask).collect();
        assert_eq!(masks, [0xffff_ff00, 0xffff_ff00, 0xff, 0xff]);
        // "10.2.0.3 matches the left-handed entry 10.2.0.X and the right-handed entry X.X.X.3 ... forwarded on port 0."
        assert_eq!((first_match(&t, ip("10.2.0.3")), first_match(&t, ip("10.3.1.2"))), (Some(0), Some(2)));
        assert_eq!(first_match(&t, ip("10.3.1.9")), None);
    }

    #[test]
    fn the_routing_example_of_3_1_5() {
        let tree = FatTree::new(4).unwrap();
        let to = ip("10.2.0.3");
        // Port 2 at 10.0.1.1, to 10.0.2.1, and port 3 there: as the text says.
        assert_eq!(table(4, "10.0.1.1").lookup(to), Some(2));
        assert_eq!(table(4, "10.0.2.1").lookup(to), Some(3));
        let (from, to) = (tree.host_at(ip("10.0.1.2")).unwrap(), tree.host_at(to).unwrap());
        let passed: Vec<Ipv4Addr> = walk(tree, &tables(tree), from, to).into_iter().map(|s| tree.address(s)).collect();
        // The text goes on to core 10.4.1.1, which is at port 2 of 10.0.2.1: docs/decisions.md.
        assert_eq!(passed, ["10.0.1.1", "10.0.2.1", "10.4.2.1", "10.2.2.1", "10.2.0.1"].map(ip));
        assert_eq!(table(4, "10.4.2.1").lookup(ip("10.2.0.3")), Some(2));
        assert_eq!(table(4, "10.2.2.1").lookup(ip("10.2.0.3")), Some(0));
        // The second flow, 10.0.1.3 to 10.2.0.2, goes by 10.0.3.1.
        assert_eq!(table(4, "10.0.1.1").lookup(ip("10.2.0.2")), Some(3));
        assert_eq!(
            tree.peer(Switch::Edge { pod: 0, at: 1 }, 3),
            Peer::Switch(tree.switch_at(ip("10.0.3.1")).unwrap(), 1)
        );
    }

    #[test]
    fn two_steps_and_first_match_agree_and_tables_are_small() {
        let mut rng = Rng::from_words(&[3, 4]);
        for k in [2u32, 4, 6, 8, 48] {
            let tree = FatTree::new(k).unwrap();
            for s in tree.switches() {
                let t = TwoLevelTable::generate(tree, s);
                let tcam = t.tcam();
                // 3.1.5: "no more than k first-level prefixes or k/2 second-level suffixes"; 3.1.4: k entries.
                assert!(t.prefixes().len() as u32 <= k && t.suffixes().len() as u32 <= k / 2 && tcam.len() as u32 <= k);
                let some = if k > 8 { 60 } else { tree.hosts() };
                for n in 0..some {
                    let host = if k > 8 { rng.below(tree.hosts() as u64) as u32 } else { n };
                    let to = tree.host_address(host).unwrap();
                    assert_eq!(t.lookup(to), first_match(&tcam, to), "k = {k}, {s:?}, {to}");
                }
            }
        }
    }

    #[test]
    fn every_host_is_reached_from_every_other_without_a_loop() {
        for k in [2u32, 4, 6, 8] {
            let tree = FatTree::new(k).unwrap();
            let tables = tables(tree);
            let x = Xgft::fat_tree(k).unwrap();
            for (from, to) in
                (0..tree.hosts()).flat_map(|a| (0..tree.hosts()).map(move |b| (a, b))).filter(|(a, b)| a != b)
            {
                let passed = walk(tree, &tables, from, to);
                assert_eq!(passed.len() as u8, 2 * x.nca_level(from, to) - 1, "the path is shortest");
            }
        }
    }

    #[test]
    fn hosts_of_a_subnet_are_spread_over_all_cores_by_their_id_and_the_senders_switch() {
        let tree = FatTree::new(8).unwrap();
        let tables = tables(tree);
        // One ID, senders in all four subnets of a pod: four upper switches (3.1.5, the reason for the shift).
        let mut upper: Vec<Switch> = (0..4).map(|e| walk(tree, &tables, e * 4, 40)[1]).collect();
        upper.sort_unstable();
        upper.dedup();
        assert_eq!(upper.len(), 4);
    }

    #[test]
    fn what_nobody_has_is_dropped_and_does_not_go_round() {
        let tree = FatTree::new(4).unwrap();
        let tables = tables(tree);
        // 10.2.2.2 has the suffix of a host and the subnet of an upper switch: its pod would send it up, and the core down
        // again.
        let stranger = ip("10.2.2.2");
        assert_eq!((table(4, "10.4.1.1").lookup(stranger), table(4, "10.2.2.1").lookup(stranger)), (Some(2), Some(2)));
        let mut rng = Rng::from_words(&[3, 6]);
        let below = |rng: &mut Rng, n| rng.below(n) as u8;
        for case in 0..20_000 {
            let to = match case {
                0 => stranger,
                _ => Ipv4Addr::new(10, below(&mut rng, 6), below(&mut rng, 6), below(&mut rng, 6)),
            };
            let mut at = tree.switches().nth(rng.below(20) as usize).unwrap();
            for passed in 0.. {
                assert!(passed < 6, "{to} goes round");
                let Some(port) = tree.forward(at, &tables[tree.index(at) as usize], to) else { break };
                match tree.peer(at, port) {
                    Peer::Switch(next, _) => at = next,
                    Peer::Host(host) => {
                        assert_eq!(tree.host_at(to), Some(host));
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn the_arithmetic_of_the_simulated_switches_is_what_the_tables_say() {
        let mut rng = Rng::from_words(&[3, 5]);
        for k in [2u32, 4, 6, 8, 48] {
            let (tree, x) = (FatTree::new(k).unwrap(), Xgft::fat_tree(k).unwrap());
            for s in tree.switches() {
                if k > 8 && rng.below(20) != 0 {
                    continue;
                }
                let table = TwoLevelTable::generate(tree, s);
                let router = TreeRouter::new(&x, tree.name(s), Policy::TwoLevel, 1, &[]);
                for host in (0..tree.hosts()).step_by(if k > 8 { 31 } else { 1 }) {
                    let to = tree.host_address(host).unwrap();
                    assert_eq!(
                        tree.forward(s, &table, to),
                        router.route(&Probe { src: 0, dst: host, flow: 0, frame: 0 }),
                        "k = {k}, {s:?}, {to}"
                    );
                }
            }
        }
    }
}
