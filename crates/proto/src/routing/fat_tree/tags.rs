//! The broadcast of failures: a switch tells its neighbours which destinations it cannot reach (Al-Fares 2012, 3.1.8).
//!
//! Another component runs the sessions with neighbours (BFD, RFC 5880): this module sees links that go down and come up.
//! After a failure a link comes up only once both ends have seen the failure, as BFD's handshake ensures. A link delivers
//! messages in order or not at all.
//!
//! | sender | unreachable | receivers |
//! |---|---|---|
//! | an upper switch whose link to a lower one is down | subnet | the other lower switches of its pod, its cores |
//! | a core that receives this message | the same subnet | the upper switches of all other pods |
//! | a core whose link to a pod is down | pod | the upper switches of all other pods |
//! | an upper switch with no core left for a subnet or pod | the same subnet or pod | the lower switches of its pod |
//!
//! The last line is not in the source; without it, frames at such a switch were lost. All its cores lead to the same upper
//! switch of the other pod. If that switch has lost a subnet, every core of the first switch is tagged.

use super::address::{FatTree, Switch};
use super::ports::UpPorts;
use super::table::TwoLevelTable;
use crate::frame::HostId;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Destinations that a switch cannot reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unreachable {
    /// All hosts of a pod.
    Pod(u8),
    /// The hosts at one lower switch.
    Subnet {
        /// The subnet's pod.
        pod: u8,
        /// The lower switch's position in the pod.
        at: u8,
    },
}

impl Unreachable {
    fn pod(self) -> u8 {
        match self {
            Unreachable::Pod(pod) | Unreachable::Subnet { pod, .. } => pod,
        }
    }
}

/// A message to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Everything sent before the link came up is void.
    Forget,
    /// The sender cannot reach these destinations.
    Cannot(Unreachable),
    /// The sender can reach these destinations again.
    Can(Unreachable),
}

/// Counters of received messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that a correctly wired neighbour never sends: about an unknown pod or subnet, about the receiver's own, or
    /// from a side that sends none.
    pub refused: u64,
    /// Messages without news.
    pub repeated: u64,
}

/// The tags of one switch. Their memory is a few bytes for each pod and subnet, whatever neighbours send.
#[derive(Clone, Debug)]
pub struct TagSwitch {
    tree: FatTree,
    own: Switch,
    /// Whether the link is up, by port.
    links: Vec<bool>,
    /// Upward ports that do not reach these destinations. At a core, all tags of a pod come from that pod's port. No set is
    /// empty.
    tags: BTreeMap<Unreachable, UpPorts>,
    /// Destinations reported to the neighbours as unreachable.
    told: BTreeSet<Unreachable>,
    out: VecDeque<(u16, Message)>,
    /// The counters.
    pub counters: Counters,
}

impl TagSwitch {
    /// A switch whose links are all up.
    pub fn new(tree: FatTree, own: Switch) -> TagSwitch {
        TagSwitch {
            tree,
            own,
            links: alloc::vec![true; tree.k() as usize],
            tags: BTreeMap::new(),
            told: BTreeSet::new(),
            out: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// A neighbour is gone or back. [`TagSwitch::poll_transmit`] returns the resulting messages.
    pub fn handle_link(&mut self, port: u16, up: bool) {
        let Some(link) = self.links.get_mut(port as usize) else { return };
        if core::mem::replace(link, up) == up {
            return;
        }
        if up && matches!(self.own, Switch::Edge { .. }) {
            // Lower switches send no messages.
        } else if up {
            self.out.push_back((port, Message::Forget));
            let all: Vec<_> = self.told.iter().copied().filter(|&what| self.concerns(port, what)).collect();
            self.out.extend(all.into_iter().map(|what| (port, Message::Cannot(what))));
        } else {
            self.out.retain(|(to, _)| *to != port);
            self.forget(port);
        }
        self.reconsider_all();
    }

    /// Takes a neighbour's message.
    pub fn handle_message(&mut self, port: u16, message: Message) {
        let what = match message {
            Message::Forget if self.listens_to(port) => {
                self.forget(port);
                return self.reconsider_all();
            }
            Message::Cannot(what) | Message::Can(what) if self.can_be_said(port, what) => what,
            _ => {
                self.counters.refused += 1;
                return;
            }
        };
        let bit = self.bit(port);
        let mut of = self.tags.get(&what).copied().unwrap_or_default();
        let before = of;
        match message {
            Message::Cannot(_) => of.insert(bit),
            _ => of.remove(bit),
        }
        if of == before {
            self.counters.repeated += 1;
            return;
        }
        if of.is_empty() {
            self.tags.remove(&what);
        } else {
            self.tags.insert(what, of);
        }
        match what {
            // The tag affects all subnets of the pod.
            Unreachable::Pod(pod) => {
                let subnets = Unreachable::Subnet { pod, at: 0 }..=Unreachable::Subnet { pod, at: u8::MAX };
                let tagged: Vec<Unreachable> = self.tags.range(subnets).map(|(&what, _)| what).collect();
                self.reconsider(tagged.into_iter().chain([what]).collect());
            }
            Unreachable::Subnet { .. } => self.reconsider(BTreeSet::from([what])),
        }
    }

    /// The next message, and its output port.
    pub fn poll_transmit(&mut self) -> Option<(u16, Message)> {
        self.out.pop_front()
    }

    /// Upward ports, counted from the first upward port, that reach a host as far as this switch knows.
    pub fn usable(&self, to: HostId) -> UpPorts {
        let Switch::Edge { pod, at } = self.tree.edge(self.tree.subnet_of(to)) else { return UpPorts::NONE };
        let of = |what| self.tags.get(&what).copied().unwrap_or_default();
        self.upward().without(of(Unreachable::Pod(pod))).without(of(Unreachable::Subnet { pod, at }))
    }

    /// The port to a host: the table's port if it reaches the host, else another usable port, chosen by the host's subnet;
    /// `None` if there is none.
    pub fn route(&self, table: &TwoLevelTable, to: HostId) -> Option<u16> {
        let port = self.tree.forward(self.own, table, self.tree.host_address(to)?)?;
        let half = self.tree.half() as u16;
        let Some(preferred) = port.checked_sub(half).filter(|_| !matches!(self.own, Switch::Core { .. })) else {
            return self.links[port as usize].then_some(port);
        };
        let usable = self.usable(to);
        if usable.contains(preferred) {
            return Some(port);
        }
        let nth = self.tree.subnet_of(to).checked_rem(usable.count())?;
        usable.iter().nth(nth as usize).map(|up| half + up)
    }

    /// The unreachable destinations, with the upward ports that do not reach them.
    pub fn tags(&self) -> impl Iterator<Item = (Unreachable, UpPorts)> + '_ {
        self.tags.iter().map(|(&what, &ports)| (what, ports))
    }

    /// Upward ports whose link is up.
    fn upward(&self) -> UpPorts {
        let mut up = UpPorts::NONE;
        let links = self.links[self.tree.half() as usize..].iter().enumerate();
        links.filter(|(_, up)| **up).for_each(|(i, _)| up.insert(i as u16));
        up
    }

    /// The position of a port in the sets of tags. A core's tags of a pod come from one port, which needs no number.
    fn bit(&self, port: u16) -> u16 {
        match self.own {
            Switch::Core { .. } => 0,
            _ => port - self.tree.half() as u16,
        }
    }

    /// Whether the neighbour at a port may send messages.
    fn listens_to(&self, port: u16) -> bool {
        let inside = u32::from(port) < self.tree.k();
        inside && (matches!(self.own, Switch::Core { .. }) || u32::from(port) >= self.tree.half())
    }

    /// Whether the neighbour at a port may report these destinations.
    fn can_be_said(&self, port: u16, what: Unreachable) -> bool {
        let exists = u32::from(what.pod()) < self.tree.k()
            && matches!(what, Unreachable::Subnet { at, .. } if u32::from(at) < self.tree.half())
                | matches!(what, Unreachable::Pod(_));
        exists
            && self.listens_to(port)
            && match (self.own, what) {
                (Switch::Core { .. }, Unreachable::Subnet { pod, .. }) => u16::from(pod) == port,
                (Switch::Core { .. }, Unreachable::Pod(_)) => false,
                (Switch::Aggregation { pod, .. }, _) => what.pod() != pod,
                (Switch::Edge { pod, .. }, Unreachable::Pod(of)) => of != pod,
                (Switch::Edge { pod, at }, Unreachable::Subnet { .. }) => what != Unreachable::Subnet { pod, at },
            }
    }

    /// Whether the neighbour at a port must know that this switch does not reach these destinations.
    fn concerns(&self, port: u16, what: Unreachable) -> bool {
        match (self.own, what) {
            (Switch::Edge { .. }, _) => false,
            (Switch::Core { .. }, _) => u16::from(what.pod()) != port,
            (Switch::Aggregation { pod, .. }, Unreachable::Subnet { pod: of, at }) if pod == of => {
                u16::from(at) != port
            }
            (Switch::Aggregation { .. }, _) => u32::from(port) < self.tree.half(),
        }
    }

    /// Whether this switch does not reach these destinations, and reports them to its neighbours in this form.
    fn is_cut(&self, what: Unreachable) -> bool {
        match (self.own, what) {
            (Switch::Edge { .. }, _) => false,
            (Switch::Core { .. }, Unreachable::Pod(pod)) => !self.links[pod as usize],
            (Switch::Core { .. }, subnet) => self.tags.contains_key(&subnet),
            (Switch::Aggregation { pod, .. }, _) if pod == what.pod() => {
                matches!(what, Unreachable::Subnet { at, .. } if !self.links[at as usize])
            }
            (Switch::Aggregation { .. }, _) => {
                let of = |what| self.tags.get(&what).copied().unwrap_or_default();
                let to_pod = self.upward().without(of(Unreachable::Pod(what.pod())));
                match what {
                    Unreachable::Pod(_) => to_pod.is_empty(),
                    // A neighbour that knows of the loss of a whole pod need not know of its subnets.
                    Unreachable::Subnet { .. } => !to_pod.is_empty() && to_pod.without(of(what)).is_empty(),
                }
            }
        }
    }

    fn forget(&mut self, port: u16) {
        if !self.listens_to(port) {
            return;
        }
        let bit = self.bit(port);
        let core = matches!(self.own, Switch::Core { .. });
        self.tags.retain(|what, ports| {
            if !core || u16::from(what.pod()) == port {
                ports.remove(bit);
            }
            !ports.is_empty()
        });
    }

    fn reconsider_all(&mut self) {
        let (k, half) = (self.tree.k() as u8, self.tree.half() as u8);
        let mut all: BTreeSet<Unreachable> = (0..k).map(Unreachable::Pod).collect();
        if let Switch::Aggregation { pod, .. } = self.own {
            all.extend((0..half).map(|at| Unreachable::Subnet { pod, at }));
        }
        all.extend(self.tags.keys());
        all.extend(&self.told);
        self.reconsider(all);
    }

    /// Sends the changes of these destinations. Losses come first, so that no neighbour sends here for lack of a message.
    fn reconsider(&mut self, some: BTreeSet<Unreachable>) {
        let (lost, kept): (Vec<_>, Vec<_>) = some.into_iter().partition(|&what| self.is_cut(what));
        for what in lost {
            if self.told.insert(what) {
                self.tell(what, Message::Cannot(what));
            }
        }
        for what in kept {
            if self.told.remove(&what) {
                self.tell(what, Message::Can(what));
            }
        }
    }

    fn tell(&mut self, what: Unreachable, message: Message) {
        for port in 0..self.tree.k() as u16 {
            if self.links[port as usize] && self.concerns(port, what) {
                self.out.push_back((port, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::routing::fat_tree::Peer;

    /// A switch and its port.
    type End = (Switch, u16);

    /// A network of switches that exchange messages over failing links.
    struct Net {
        tree: FatTree,
        switches: Vec<TagSwitch>,
        tables: Vec<TwoLevelTable>,
        /// Links between switches, by lower end, and whether they are up.
        links: Vec<(End, bool)>,
        /// Messages in flight, by the index and port of the receiving switch.
        flying: BTreeMap<(u32, u16), VecDeque<Message>>,
    }

    impl Net {
        fn new(k: u32) -> Net {
            let tree = FatTree::new(k).unwrap();
            let half = (k / 2) as u16;
            let lower = tree.switches().filter(|s| !matches!(s, Switch::Core { .. }));
            Net {
                tree,
                switches: tree.switches().map(|s| TagSwitch::new(tree, s)).collect(),
                tables: tree.switches().map(|s| TwoLevelTable::generate(tree, s)).collect(),
                links: lower.flat_map(|s| (half..2 * half).map(move |port| ((s, port), true))).collect(),
                flying: BTreeMap::new(),
            }
        }

        fn other(&self, end: End) -> End {
            match self.tree.peer(end.0, end.1) {
                Peer::Switch(s, port) => (s, port),
                Peer::Host(_) => unreachable!("links between switches only"),
            }
        }

        fn is_up(&self, end: End) -> bool {
            let other = self.other(end);
            self.links.iter().find(|l| l.0 == end || l.0 == other).unwrap().1
        }

        /// Changes a link; a failure loses the messages in flight on it. The link's ends are informed separately.
        fn set(&mut self, link: usize, up: bool) -> [End; 2] {
            self.links[link].1 = up;
            let end = self.links[link].0;
            let ends = [end, self.other(end)];
            if !up {
                ends.iter().for_each(|e| drop(self.flying.remove(&(self.tree.index(e.0), e.1))));
            }
            ends
        }

        fn hear(&mut self, end: End, up: bool) {
            self.switches[self.tree.index(end.0) as usize].handle_link(end.1, up);
            self.send(end.0);
        }

        fn send(&mut self, from: Switch) {
            while let Some((port, message)) = self.switches[self.tree.index(from) as usize].poll_transmit() {
                if self.is_up((from, port)) {
                    let to = self.other((from, port));
                    self.flying.entry((self.tree.index(to.0), to.1)).or_default().push_back(message);
                }
            }
        }

        fn deliver(&mut self, to: (u32, u16)) {
            let Some(message) = self.flying.get_mut(&to).and_then(VecDeque::pop_front) else { return };
            self.switches[to.0 as usize].handle_message(to.1, message);
            self.send(self.switches[to.0 as usize].own);
        }

        fn settle(&mut self) {
            let mut delivered = 0;
            while let Some((&to, _)) = self.flying.iter().find(|(_, queue)| !queue.is_empty()) {
                self.deliver(to);
                delivered += 1;
                assert!(delivered < 1_000_000, "they never stop talking");
            }
        }

        fn change(&mut self, link: usize, up: bool) {
            for end in self.set(link, up) {
                self.hear(end, up);
            }
            self.settle();
        }

        /// Whether there is a path up and down over links that are up.
        fn connected(&self, from: HostId, to: HostId) -> bool {
            let (a, b) = (self.tree.subnet_of(from), self.tree.subnet_of(to));
            let (Switch::Edge { pod: p, .. }, Switch::Edge { pod: q, .. }) = (self.tree.edge(a), self.tree.edge(b))
            else {
                unreachable!()
            };
            let half = self.tree.half() as u16;
            let upper = |pod, at: u16| Switch::Aggregation { pod, at: at as u8 };
            a == b
                || (0..half).any(|x| {
                    let ends = self.is_up((self.tree.edge(a), half + x)) && self.is_up((self.tree.edge(b), half + x));
                    let core = |u| self.is_up((upper(p, x), half + u)) && self.is_up((upper(q, x), half + u));
                    ends && (p == q || (0..half).any(core))
                })
        }

        /// Number of switches that a packet passes to its destination.
        fn walk(&self, from: HostId, to: HostId) -> Option<usize> {
            let mut at = self.tree.edge(self.tree.subnet_of(from));
            for passed in 1.. {
                assert!(passed < 6, "a loop from {from} to {to}");
                let i = self.tree.index(at) as usize;
                let port = self.switches[i].route(&self.tables[i], to)?;
                match self.tree.peer(at, port) {
                    Peer::Host(host) => return (host == to).then_some(passed),
                    Peer::Switch(next, _) => {
                        if !self.is_up((at, port)) {
                            return None;
                        }
                        at = next;
                    }
                }
            }
            None
        }

        /// Checks that every host with a path is reached.
        fn check(&self, pairs: impl Iterator<Item = (HostId, HostId)>) {
            let down = || self.links.iter().filter(|l| !l.1).collect::<Vec<_>>();
            for (from, to) in pairs.filter(|(a, b)| a != b) {
                assert_eq!(self.walk(from, to).is_some(), self.connected(from, to), "{from} to {to}: {:?}", down());
            }
        }

        fn all_pairs(&self) -> impl Iterator<Item = (HostId, HostId)> + use<> {
            let hosts = self.tree.hosts();
            (0..hosts).flat_map(move |a| (0..hosts).map(move |b| (a, b)))
        }

        /// Whether no trace of a failure is left.
        fn is_as_new(&self) -> bool {
            let quiet = |s: &TagSwitch| {
                s.tags.is_empty() && s.told.is_empty() && s.out.is_empty() && s.links.iter().all(|&l| l)
            };
            self.switches.iter().all(quiet) && self.switches.iter().all(|s| s.counters.refused == 0)
        }
    }

    #[test]
    fn every_single_and_every_pair_of_link_failures_at_k_4() {
        let mut net = Net::new(4);
        assert_eq!(net.links.len(), 32);
        for first in 0..32 {
            net.change(first, false);
            net.check(net.all_pairs());
            for second in first + 1..32 {
                net.change(second, false);
                net.check(net.all_pairs());
                net.change(second, true);
            }
            net.change(first, true);
            assert!(net.is_as_new());
        }
    }

    #[test]
    fn every_upper_switch_and_core_that_dies_and_comes_back_at_k_4() {
        let mut net = Net::new(4);
        let upper: Vec<Switch> = net.tree.switches().filter(|s| !matches!(s, Switch::Edge { .. })).collect();
        for s in upper {
            let its: Vec<usize> =
                (0..32).filter(|&l| net.links[l].0.0 == s || net.other(net.links[l].0).0 == s).collect();
            its.iter().for_each(|&l| net.change(l, false));
            assert!(net.all_pairs().all(|(a, b)| net.connected(a, b)));
            net.check(net.all_pairs());
            its.iter().for_each(|&l| net.change(l, true));
            assert!(net.is_as_new(), "{s:?}");
        }
    }

    #[test]
    fn random_failures_at_k_8() {
        let mut rng = Rng::from_words(&[8]);
        let mut net = Net::new(8);
        let links = net.links.len() as u64;
        for _ in 0..20 {
            for _ in 0..1 + rng.below(60) {
                net.change(rng.below(links) as usize, false);
            }
            let pairs: Vec<_> = (0..2_000).map(|_| (rng.below(128) as u32, rng.below(128) as u32)).collect();
            net.check(pairs.into_iter());
            (0..links as usize)
                .filter(|&l| !net.links[l].1)
                .collect::<Vec<_>>()
                .iter()
                .for_each(|&l| net.change(l, true));
            assert!(net.is_as_new());
            net.check((0..500).map(|_| (rng.below(128) as u32, rng.below(128) as u32)).collect::<Vec<_>>().into_iter());
        }
    }

    #[test]
    fn links_that_flap_while_messages_fly_and_ends_that_hear_late() {
        for seed in 0..200 {
            let mut rng = Rng::from_words(&[9, seed]);
            let mut net = Net::new(4);
            // Changes that an end has not seen yet, by link.
            let mut unheard: BTreeMap<usize, Vec<(End, bool)>> = BTreeMap::new();
            for step in 0..400 {
                let link = rng.below(32) as usize;
                match rng.below(4) {
                    // A link changes again only when both ends have seen the last change: BFD's handshake.
                    0 if step < 300 && !unheard.contains_key(&link) => {
                        let up = !net.links[link].1;
                        let ends = net.set(link, up);
                        unheard.insert(link, ends.iter().map(|&e| (e, up)).collect());
                    }
                    1 => {
                        let Some(&link) = unheard.keys().nth(rng.below(unheard.len().max(1) as u64) as usize) else {
                            continue;
                        };
                        let changes = unheard.get_mut(&link).unwrap();
                        let (end, up) = changes.swap_remove(rng.below(changes.len() as u64) as usize);
                        net.hear(end, up);
                        unheard.retain(|_, changes| !changes.is_empty());
                    }
                    _ => {
                        let queues: Vec<_> =
                            net.flying.iter().filter(|(_, q)| !q.is_empty()).map(|(&to, _)| to).collect();
                        if !queues.is_empty() {
                            net.deliver(queues[rng.below(queues.len() as u64) as usize]);
                        }
                    }
                }
            }
            unheard.into_values().flatten().for_each(|(end, up)| net.hear(end, up));
            net.settle();
            net.check(net.all_pairs());
            (0..32).filter(|&l| !net.links[l].1).collect::<Vec<_>>().iter().for_each(|&l| net.change(l, true));
            assert!(net.is_as_new(), "seed {seed}");
        }
    }

    #[test]
    fn the_messages_of_3_1_8_and_the_one_it_leaves_out() {
        let mut net = Net::new(4);
        let tree = net.tree;
        let upper = Switch::Aggregation { pod: 2, at: 0 };
        let subnet = Unreachable::Subnet { pod: 2, at: 1 };
        let drain = |s: &mut TagSwitch| core::iter::from_fn(|| s.poll_transmit()).collect::<Vec<_>>();
        // The link between 10.2.2.1 and 10.2.1.1: a tag to the other lower switch (class 2) and to both cores (class 3).
        let s = &mut net.switches[tree.index(upper) as usize];
        s.handle_link(1, false);
        assert_eq!(
            drain(s),
            [(0, Message::Cannot(subnet)), (2, Message::Cannot(subnet)), (3, Message::Cannot(subnet))]
        );
        s.handle_link(1, true);
        assert_eq!(drain(s)[0], (1, Message::Forget));
        // The core forwards it to the other pods.
        let core = &mut net.switches[tree.index(Switch::Core { row: 0, column: 0 }) as usize];
        core.handle_message(2, Message::Cannot(subnet));
        assert_eq!(drain(core).iter().map(|m| m.0).collect::<Vec<_>>(), [0, 1, 3]);
        core.handle_message(2, Message::Cannot(subnet));
        assert_eq!((drain(core), core.counters.repeated), (Vec::new(), 1));
        // A core that loses a pod reports the whole pod.
        core.handle_link(2, false);
        let said = drain(core);
        assert_eq!(said[..3], [0, 1, 3].map(|port| (port, Message::Cannot(Unreachable::Pod(2)))));
        assert_eq!(said[3..], [0, 1, 3].map(|port| (port, Message::Can(subnet))));
        // An upper switch avoids a core; once it has no other, it must inform its lower switches.
        let far = &mut net.switches[tree.index(Switch::Aggregation { pod: 0, at: 0 }) as usize];
        far.handle_message(2, Message::Cannot(subnet));
        assert_eq!((drain(far), far.usable(10).iter().collect::<Vec<_>>()), (Vec::new(), [1].into()));
        far.handle_message(3, Message::Cannot(subnet));
        assert_eq!(drain(far), [(0, Message::Cannot(subnet)), (1, Message::Cannot(subnet))]);
        assert!(far.usable(10).is_empty() && far.usable(8).count() == 2);
    }

    #[test]
    fn what_is_forged_is_refused_and_counted_and_takes_no_memory() {
        let tree = FatTree::new(4).unwrap();
        let pod = Unreachable::Pod;
        let subnet = |pod, at| Unreachable::Subnet { pod, at };
        let cases = [
            // Unknown destinations; the own subnet or pod; a message from below; an unknown port.
            (Switch::Edge { pod: 1, at: 0 }, 2, [pod(4), subnet(0, 2), subnet(255, 255), pod(1), subnet(1, 0)]),
            (Switch::Edge { pod: 1, at: 0 }, 0, [pod(0), subnet(0, 0), subnet(1, 1), pod(2), pod(3)]),
            (Switch::Aggregation { pod: 1, at: 0 }, 2, [pod(1), subnet(1, 0), subnet(1, 1), pod(9), subnet(0, 9)]),
            (Switch::Aggregation { pod: 1, at: 0 }, 1, [pod(0), subnet(0, 0), subnet(1, 1), pod(2), pod(3)]),
            (Switch::Core { row: 0, column: 0 }, 2, [pod(2), pod(1), subnet(1, 0), subnet(2, 2), subnet(4, 0)]),
            (Switch::Core { row: 0, column: 0 }, 400, [pod(2), pod(1), subnet(1, 0), subnet(2, 2), subnet(4, 0)]),
        ];
        for (own, port, forged) in cases {
            let mut s = TagSwitch::new(tree, own);
            for what in forged {
                s.handle_message(port, Message::Cannot(what));
                s.handle_message(port, Message::Can(what));
            }
            assert_eq!((s.counters.refused, s.tags().count(), s.poll_transmit()), (10, 0, None), "{own:?}");
            s.handle_link(999, false);
        }
        let mut s = TagSwitch::new(tree, Switch::Edge { pod: 1, at: 0 });
        s.handle_message(1, Message::Forget);
        assert_eq!(s.counters.refused, 1);
        // Whatever neighbours send, there are four pods and eight subnets.
        let mut rng = Rng::from_words(&[10]);
        for _ in 0..10_000 {
            let what = if rng.below(2) == 0 {
                pod(rng.below(6) as u8)
            } else {
                subnet(rng.below(6) as u8, rng.below(4) as u8)
            };
            s.handle_message(
                rng.below(6) as u16,
                if rng.below(3) == 0 { Message::Can(what) } else { Message::Cannot(what) },
            );
        }
        assert!(s.tags().count() <= 11);
    }
}
