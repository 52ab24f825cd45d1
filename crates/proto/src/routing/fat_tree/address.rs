//! Switches and hosts of a fat-tree by name, by number and by IP address, and its links (Al-Fares 2012, 3.1.2, figure 3.1).

use crate::frame::HostId;
use crate::routing::xgft::SwitchName;
use core::fmt;
use core::net::Ipv4Addr;

/// Most ports of a switch. The cores' addresses are 10.k.j.i beside pods 10.0 to 10.(k-1), so k must be a byte, and even.
/// (The source's 4.2 million hosts need k = 256, where the cores would have no address.)
pub const PORTS_MAX: u32 = 254;

/// The first byte of every address.
const BLOCK: u8 = 10;

/// The last byte of a pod switch's address.
const OF_SWITCH: u8 = 1;

/// The last byte of the first host's address in a subnet: 1 belongs to the subnet's switch.
pub(super) const FIRST_ID: u8 = 2;

/// Reason why no fat-tree has switches with this number of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatTreeError {
    /// No ports.
    Zero,
    /// The number is odd: half of the ports lead down and half up.
    Odd(u32),
    /// More than [`PORTS_MAX`].
    TooLarge(u32),
}

impl fmt::Display for FatTreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FatTreeError::Zero => write!(f, "a fat-tree needs switches with ports"),
            FatTreeError::Odd(k) => write!(f, "a fat-tree of switches with {k} ports needs an even number"),
            FatTreeError::TooLarge(k) => {
                write!(f, "a fat-tree of switches with {k} ports has no addresses 10.k.j.i: at most {PORTS_MAX} ports")
            }
        }
    }
}

/// A switch. Ports 0 to k/2-1 of pod switches lead down and k/2 to k-1 up; port i of a core leads to pod i.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// Lower switch `at` (0 to k/2-1) of a pod: 10.pod.at.1.
    Edge {
        /// From 0.
        pod: u8,
        /// From 0, left to right.
        at: u8,
    },
    /// Upper switch `at` (0 to k/2-1) of a pod: 10.pod.(k/2+at).1.
    Aggregation {
        /// From 0.
        pod: u8,
        /// From 0, left to right.
        at: u8,
    },
    /// Core 10.k.(row+1).(column+1), at upward port `row` of upper switch `column` of every pod.
    Core {
        /// From 0, from the top.
        row: u8,
        /// From 0, from the left.
        column: u8,
    },
}

/// The device at the other end of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A host.
    Host(HostId),
    /// A switch, and its port at the other end of the link.
    Switch(Switch, u16),
}

/// A fat-tree of k-port switches, stored as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    half: u8,
}

impl FatTree {
    /// A fat-tree of switches with `k` ports.
    ///
    /// # Errors
    /// An odd number of ports, none, or more than addresses allow. Nothing is allocated.
    pub fn new(k: u32) -> Result<FatTree, FatTreeError> {
        match k {
            0 => Err(FatTreeError::Zero),
            k if k > PORTS_MAX => Err(FatTreeError::TooLarge(k)),
            k if k % 2 != 0 => Err(FatTreeError::Odd(k)),
            k => Ok(FatTree { half: (k / 2) as u8 }),
        }
    }

    /// Ports of a switch, and number of pods.
    pub fn k(self) -> u32 {
        2 * self.half()
    }
    /// Half of the ports: hosts of a subnet, lower and upper switches of a pod.
    pub fn half(self) -> u32 {
        self.half as u32
    }
    /// Hosts: k^3/4.
    pub fn hosts(self) -> u32 {
        self.subnets() * self.half()
    }
    /// Subnets, one of each lower switch.
    pub fn subnets(self) -> u32 {
        self.k() * self.half()
    }
    /// Core switches, and equal-cost paths between hosts in different pods: (k/2)^2.
    pub fn cores(self) -> u32 {
        self.half() * self.half()
    }
    /// All switches: 5k^2/4.
    pub fn switches_total(self) -> u32 {
        2 * self.subnets() + self.cores()
    }
    /// Links between hosts and lower switches, lower and upper ones, upper ones and cores: as many each, k^3/4.
    pub fn links_of_a_level(self) -> u32 {
        self.hosts()
    }

    /// The subnet a host is in, counted over all pods.
    pub fn subnet_of(self, host: HostId) -> u32 {
        host / self.half()
    }
    /// The lower switch of a subnet counted over all pods.
    pub fn edge(self, subnet: u32) -> Switch {
        Switch::Edge { pod: (subnet / self.half()) as u8, at: (subnet % self.half()) as u8 }
    }
    /// The subnet at a lower switch, counted over all pods.
    pub fn subnet(self, pod: u8, at: u8) -> u32 {
        pod as u32 * self.half() + at as u32
    }
    /// Core number `n`, counted row by row as in figure 3.7.
    pub fn core(self, n: u32) -> Switch {
        Switch::Core { row: (n / self.half()) as u8, column: (n % self.half()) as u8 }
    }

    /// Every switch: lower ones, upper ones, cores.
    pub fn switches(self) -> impl Iterator<Item = Switch> {
        let pods = move |s: u32| ((s / self.half()) as u8, (s % self.half()) as u8);
        let edges = (0..self.subnets()).map(move |s| self.edge(s));
        let upper = (0..self.subnets()).map(move |s| {
            let (pod, at) = pods(s);
            Switch::Aggregation { pod, at }
        });
        edges.chain(upper).chain((0..self.cores()).map(move |n| self.core(n)))
    }

    /// The position of a switch in [`FatTree::switches`].
    pub fn index(self, s: Switch) -> u32 {
        match s {
            Switch::Edge { pod, at } => self.subnet(pod, at),
            Switch::Aggregation { pod, at } => self.subnets() + self.subnet(pod, at),
            Switch::Core { row, column } => 2 * self.subnets() + row as u32 * self.half() + column as u32,
        }
    }

    /// The name of the switch in the extended generalised fat-tree of `Xgft::fat_tree`.
    pub fn name(self, s: Switch) -> SwitchName {
        let name = |level, group, position| SwitchName { level, group, position };
        match s {
            Switch::Edge { pod, at } => name(1, self.subnet(pod, at), 0),
            Switch::Aggregation { pod, at } => name(2, pod as u32, at as u32),
            Switch::Core { row, column } => name(3, 0, row as u32 * self.half() + column as u32),
        }
    }

    /// A switch's address.
    pub fn address(self, s: Switch) -> Ipv4Addr {
        match s {
            Switch::Edge { pod, at } => Ipv4Addr::new(BLOCK, pod, at, OF_SWITCH),
            Switch::Aggregation { pod, at } => Ipv4Addr::new(BLOCK, pod, self.half + at, OF_SWITCH),
            Switch::Core { row, column } => Ipv4Addr::new(BLOCK, 2 * self.half, row + 1, column + 1),
        }
    }

    /// The switch with an address.
    pub fn switch_at(self, address: Ipv4Addr) -> Option<Switch> {
        let [block, pod, at, last] = address.octets();
        let k = 2 * self.half;
        match (block, pod) {
            (BLOCK, pod) if pod < k && at < self.half && last == OF_SWITCH => Some(Switch::Edge { pod, at }),
            (BLOCK, pod) if pod < k && at < k && last == OF_SWITCH => {
                Some(Switch::Aggregation { pod, at: at - self.half })
            }
            (BLOCK, pod) if pod == k && (1..=self.half).contains(&at) && (1..=self.half).contains(&last) => {
                Some(Switch::Core { row: at - 1, column: last - 1 })
            }
            _ => None,
        }
    }

    /// A host's address: 10.pod.switch.ID, with IDs from 2 to k/2+1.
    pub fn host_address(self, host: HostId) -> Option<Ipv4Addr> {
        if host >= self.hosts() {
            return None;
        }
        let subnet = self.subnet_of(host);
        let (pod, at) = ((subnet / self.half()) as u8, (subnet % self.half()) as u8);
        Some(Ipv4Addr::new(BLOCK, pod, at, FIRST_ID + (host % self.half()) as u8))
    }

    /// The host with an address.
    pub fn host_at(self, address: Ipv4Addr) -> Option<HostId> {
        let [block, pod, at, id] = address.octets();
        let in_range = pod < 2 * self.half && at < self.half && id.wrapping_sub(FIRST_ID) < self.half;
        (block == BLOCK && in_range).then(|| self.subnet(pod, at) * self.half() + (id - FIRST_ID) as u32)
    }

    /// The device at port `port` (0 to k-1) of a switch. Consecutive upward ports of an upper switch lead to cores k/2
    /// apart (3, with figure 3.1).
    pub fn peer(self, s: Switch, port: u16) -> Peer {
        assert!(u32::from(port) < self.k(), "{s:?} has no port {port}");
        let half = self.half as u16;
        let up = port.checked_sub(half).map(|u| u as u8);
        match (s, up) {
            (Switch::Edge { pod, at }, None) => Peer::Host(self.subnet(pod, at) * self.half() + u32::from(port)),
            (Switch::Edge { pod, at }, Some(u)) => Peer::Switch(Switch::Aggregation { pod, at: u }, at as u16),
            (Switch::Aggregation { pod, at }, None) => {
                Peer::Switch(Switch::Edge { pod, at: port as u8 }, half + at as u16)
            }
            (Switch::Aggregation { pod, at }, Some(u)) => Peer::Switch(Switch::Core { row: u, column: at }, pod as u16),
            (Switch::Core { row, column }, _) => {
                Peer::Switch(Switch::Aggregation { pod: port as u8, at: column }, half + row as u16)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::xgft::Xgft;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn figure_3_1_and_the_counts_of_chapter_3() {
        let t = FatTree::new(4).unwrap();
        assert_eq!((t.hosts(), t.switches_total(), t.cores(), t.subnets()), (16, 20, 4, 8));
        assert_eq!(t.host_address(2), Some(ip("10.0.1.2")));
        assert_eq!(t.host_at(ip("10.2.0.3")), Some(9));
        assert_eq!(t.switch_at(ip("10.2.2.1")), Some(Switch::Aggregation { pod: 2, at: 0 }));
        assert_eq!(t.switch_at(ip("10.4.2.1")), Some(Switch::Core { row: 1, column: 0 }));
        // 48-port switches: 27,648 hosts, 1,152 subnets of 24, 576 equal-cost paths, 2,880 switches.
        let t = FatTree::new(48).unwrap();
        assert_eq!((t.hosts(), t.subnets(), t.half(), t.cores(), t.switches_total()), (27_648, 1_152, 24, 576, 2_880));
        // Table 2.1.
        assert_eq!([28, 96].map(|k| FatTree::new(k).unwrap().hosts()), [5_488, 221_184]);
    }

    #[test]
    fn every_address_is_one_things_and_is_found_again() {
        for k in [2, 4, 6, 48, 254] {
            let t = FatTree::new(k).unwrap();
            assert_eq!(t.switches().count() as u32, t.switches_total());
            for (i, s) in t.switches().enumerate() {
                assert_eq!((t.switch_at(t.address(s)), t.index(s)), (Some(s), i as u32), "k = {k}");
                assert_eq!(t.host_at(t.address(s)), None);
            }
            for host in (0..t.hosts()).step_by(if k > 100 { 97 } else { 1 }) {
                let address = t.host_address(host).unwrap();
                assert_eq!((t.host_at(address), t.switch_at(address)), (Some(host), None), "k = {k}");
            }
            assert_eq!(t.host_address(t.hosts()), None);
        }
        let t = FatTree::new(4).unwrap();
        for stranger in ["11.0.0.2", "10.4.0.2", "10.0.2.2", "10.0.0.4", "10.0.0.0", "10.4.0.1", "10.4.3.1", "10.5.1.1"]
        {
            assert_eq!((t.host_at(ip(stranger)), t.switch_at(ip(stranger))), (None, None), "{stranger}");
        }
    }

    #[test]
    fn both_ends_of_a_link_name_each_other_and_the_tree_is_that_of_the_xgft() {
        for k in [2, 4, 8] {
            let (t, x) = (FatTree::new(k).unwrap(), Xgft::fat_tree(k).unwrap());
            for (s, name) in t.switches().zip(x.switches()) {
                assert_eq!(t.name(s), name);
                for port in 0..k as u16 {
                    let Peer::Switch(peer, at) = t.peer(s, port) else { continue };
                    assert_eq!(t.peer(peer, at), Peer::Switch(s, port));
                    if let Some(up) = u32::from(port).checked_sub(k / 2).filter(|_| name.level < 3) {
                        assert_eq!(t.name(peer), x.parent(name, up));
                    }
                }
            }
        }
    }

    #[test]
    fn odd_empty_and_enormous_numbers_of_ports_are_refused() {
        assert_eq!(FatTree::new(0), Err(FatTreeError::Zero));
        assert_eq!(FatTree::new(5), Err(FatTreeError::Odd(5)));
        for k in [255, 256, 4_000_000_001, u32::MAX] {
            assert_eq!(FatTree::new(k), Err(FatTreeError::TooLarge(k)));
        }
        assert!(FatTree::new(254).is_ok());
    }
}
