//! The servers that have a network: frames for a group of a tenant's stations go to these servers.
//!
//! A server says that it has a network by asking for the others, one after the other by address. The controller remembers
//! who asked. The servers ask again and again, so both sides forget a server that is gone. A server also counts as a member
//! if it sends a frame for a group.

use super::controller::RETRANSMIT;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr};
use core::ops::Bound;
use sluicenet_wire::controller::{Kind, Repr, Status};
use sluicenet_wire::ethernet::MacAddress;

/// The pause after the first list of a network. It doubles from list to list, and the lists count from the longest pause on.
const FIRST_PAUSE: Duration = Duration::from_ms(500);
/// The longest pause between two lists.
const PAUSE_MAX: Duration = Duration::from_secs(16);
/// The longest pause between two transmissions while the controller is silent.
const SLOWEST: Duration = Duration::from_ms(640);
/// Time after which a server that is in no list, and sends nothing, no longer has the network.
const MEMBER_FOR: Duration = Duration(3 * PAUSE_MAX.0);
/// Networks of a server, one for each VLAN.
const NETWORKS_MAX: usize = 4096;

/// The controller's side.
#[derive(Clone, Debug, Default)]
pub(super) struct Membership {
    /// The servers of each network, and the time until which each has it.
    members: BTreeMap<(u32, Ipv4Addr), Instant>,
    networks: BTreeMap<Ipv4Addr, usize>,
}

impl Membership {
    /// Handles a server's question; returns the next server with the network.
    pub(super) fn answer(&mut self, now: Instant, message: &Repr) -> Option<Ipv4Addr> {
        let of = |server| (message.vni, server);
        let networks = self.networks.entry(message.server).or_default();
        if self.members.contains_key(&of(message.server)) || *networks < NETWORKS_MAX {
            let is_new = self.members.insert(of(message.server), now + MEMBER_FOR).is_none();
            *networks += usize::from(is_new);
        }
        loop {
            let after = (Bound::Excluded(of(message.location)), Bound::Included(of(Ipv4Addr::BROADCAST)));
            let (&(vni, server), &until) =
                self.members.range(after).find(|((_, server), _)| *server != message.server)?;
            if now < until {
                return Some(server);
            }
            self.members.remove(&(vni, server));
            if let Some(networks) = self.networks.get_mut(&server) {
                *networks -= 1;
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Network {
    /// The other servers, and when each was heard of last.
    servers: BTreeMap<Ipv4Addr, Instant>,
    /// Whether the lists count: the first ones lack servers that start at this time, too.
    is_known: bool,
    /// The last server of the present list; 0.0.0.0 at its beginning.
    last: Ipv4Addr,
    /// The number of the unanswered question; 0 if there is none.
    request: u64,
    /// When the next question is due, and the pause after it while nobody answers.
    at: Instant,
    wait: Duration,
    /// The pause after the present list.
    pause: Duration,
}

/// A server's side.
#[derive(Clone, Debug)]
pub struct Members {
    server: Ipv4Addr,
    networks: BTreeMap<u32, Network>,
    /// When the next question of any network is due.
    due: Instant,
}

impl Members {
    /// A server without networks.
    pub fn new(server: Ipv4Addr) -> Members {
        Members { server, networks: BTreeMap::new(), due: Instant::MAX }
    }

    /// The server has a network.
    pub fn join(&mut self, vni: u32) {
        self.networks.entry(vni).or_insert(Network {
            servers: BTreeMap::new(),
            is_known: false,
            last: Ipv4Addr::UNSPECIFIED,
            request: 0,
            at: Instant::ZERO,
            wait: RETRANSMIT,
            pause: FIRST_PAUSE,
        });
        self.settle();
    }

    fn settle(&mut self) {
        self.due = self.networks.values().map(|network| network.at).min().unwrap_or(Instant::MAX);
    }

    /// Whether another server has a network; `None` while that is not known.
    pub fn has(&self, vni: u32, server: Ipv4Addr) -> Option<bool> {
        let network = self.networks.get(&vni)?;
        network.is_known.then(|| network.servers.contains_key(&server))
    }

    /// Another server has sent a frame of a network.
    pub fn heard(&mut self, now: Instant, vni: u32, server: Ipv4Addr) {
        if let Some(network) = self.networks.get_mut(&vni) {
            network.servers.insert(server, now);
        }
    }

    /// The next question that is due; `request` draws its number.
    pub fn poll_transmit(&mut self, now: Instant, request: impl FnOnce() -> u64) -> Option<Repr> {
        if now < self.due {
            return None;
        }
        let (&vni, network) = self.networks.iter_mut().find(|(_, network)| network.at <= now)?;
        network.request = request();
        network.at = now + network.wait;
        network.wait = Duration(network.wait.0 * 2).min(SLOWEST);
        let question = Repr {
            kind: Kind::NextMember,
            status: Status::Done,
            mac: MacAddress::default(),
            ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            server: self.server,
            location: network.last,
            epoch: 0,
            vni,
            version: 0,
            request: network.request,
        };
        self.settle();
        Some(question)
    }

    /// When the next question is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.due != Instant::MAX).then_some(self.due)
    }

    /// Takes a genuine answer of the controller; returns whether it answers a question.
    pub fn handle(&mut self, now: Instant, message: &Repr) -> bool {
        let network = self.networks.get_mut(&message.vni);
        let Some(network) = network.filter(|n| n.request == message.request && n.request != 0) else { return false };
        if message.kind != Kind::Answer {
            return false;
        }
        (network.request, network.wait) = (0, RETRANSMIT);
        match message.status {
            // The addresses rise, so a list has an end.
            Status::Done if message.location > network.last => {
                network.servers.insert(message.location, now);
                (network.last, network.at) = (message.location, now);
            }
            _ => {
                network.servers.retain(|_, heard| now.since(*heard) < MEMBER_FOR);
                (network.last, network.is_known) = (Ipv4Addr::UNSPECIFIED, network.pause >= PAUSE_MAX);
                network.at = now + network.pause;
                network.pause = Duration(network.pause.0 * 2).min(PAUSE_MAX);
            }
        }
        self.settle();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn server(n: u8) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, n)
    }

    struct World {
        now: Instant,
        membership: Membership,
        servers: Vec<Members>,
        requests: u64,
        messages: u64,
    }

    impl World {
        fn new(servers: u8) -> World {
            World {
                now: Instant(1),
                membership: Membership::default(),
                servers: (1..=servers).map(|n| Members::new(server(n))).collect(),
                requests: 0,
                messages: 0,
            }
        }

        fn pass(&mut self, ms: u64, alive: impl Fn(u8) -> bool) {
            for _ in 0..ms {
                self.now += Duration::from_ms(1);
                for n in (1..=self.servers.len() as u8).filter(|&n| alive(n)) {
                    let own = &mut self.servers[usize::from(n) - 1];
                    while let Some(question) = own.poll_transmit(self.now, || {
                        self.requests += 1;
                        self.requests
                    }) {
                        self.messages += 1;
                        let next = self.membership.answer(self.now, &question);
                        let status = if next.is_some() { Status::Done } else { Status::Unknown };
                        let location = next.unwrap_or(Ipv4Addr::UNSPECIFIED);
                        assert!(own.handle(self.now, &Repr { kind: Kind::Answer, status, location, ..question }));
                    }
                }
            }
        }

        fn members(&self, n: u8, vni: u32) -> Vec<u8> {
            (1..=9).filter(|&other| self.servers[usize::from(n) - 1].has(vni, server(other)) == Some(true)).collect()
        }
    }

    #[test]
    fn servers_find_each_other_and_only_those_of_their_network() {
        let mut w = World::new(4);
        [1, 2, 4].into_iter().for_each(|n| w.servers[n - 1].join(7));
        [3, 4].into_iter().for_each(|n| w.servers[n - 1].join(8));
        w.pass(15_000, |_| true);
        assert_eq!(w.servers[0].has(7, server(2)), None, "the others may be starting");
        w.pass(1_000, |_| true);
        assert_eq!([w.members(1, 7), w.members(2, 7), w.members(4, 7)], [[2, 4], [1, 4], [1, 2]]);
        assert_eq!([w.members(3, 8), w.members(4, 8)], [[4], [3]]);
        assert_eq!(w.servers[0].has(8, server(4)), None, "a network of others");
        // Lists come ever more seldom: 5 of them for each network in the first 16 s, of 3 and of 2 messages.
        w.pass(120_000, |_| true);
        let before = w.messages;
        w.pass(160_000, |_| true);
        assert_eq!(w.messages - before, 10 * (3 * 3 + 2 * 2));
    }

    #[test]
    fn a_server_that_is_gone_is_forgotten_and_one_that_speaks_is_a_member() {
        let mut w = World::new(3);
        (0..3).for_each(|n| w.servers[n].join(7));
        w.pass(16_000, |_| true);
        w.pass(100_000, |n| n != 3);
        assert_eq!([w.members(1, 7), w.members(2, 7)], [[2], [1]]);
        let now = w.now;
        w.servers[0].heard(now, 7, server(3));
        assert_eq!(w.members(1, 7), [2, 3]);
        w.servers[0].heard(now, 8, server(3));
        assert_eq!(w.servers[0].has(8, server(3)), None, "not in a network that is not here");
    }

    #[test]
    fn a_silent_controller_is_asked_ever_more_seldom_and_answers_count_once() {
        let mut members = Members::new(server(1));
        members.join(7);
        let mut asked = Vec::new();
        for ms in 0..10_000 {
            let now = Instant::ZERO + Duration::from_ms(ms);
            asked.extend(members.poll_transmit(now, || ms + 1).map(|question| (ms, question)));
        }
        let times: Vec<u64> = asked.iter().map(|(ms, _)| *ms).take(8).collect();
        assert_eq!(times, [0, 10, 30, 70, 150, 310, 630, 1_270]);
        let (_, question) = *asked.last().unwrap();
        let now = Instant::ZERO + Duration::from_secs(10);
        let answer = Repr { kind: Kind::Answer, location: server(2), ..question };
        assert!(!members.handle(now, &Repr { request: question.request + 1, ..answer }), "not the number");
        assert!(!members.handle(now, &Repr { request: 0, ..answer }));
        assert!(members.handle(now, &answer) && !members.handle(now, &answer));
        // A list that does not rise ends.
        let question = members.poll_transmit(now, || 99).unwrap();
        assert_eq!(question.location, server(2));
        assert!(members.handle(now, &Repr { kind: Kind::Answer, location: server(2), ..question }));
        assert_eq!(members.poll_timeout(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn a_server_has_a_bounded_number_of_networks() {
        let mut membership = Membership::default();
        let mut members = Members::new(server(1));
        members.join(0);
        let question = members.poll_transmit(Instant(1), || 1).unwrap();
        for vni in 0..10_000 {
            assert_eq!(membership.answer(Instant(1), &Repr { vni, ..question }), None);
        }
        assert_eq!(membership.members.len(), NETWORKS_MAX);
    }
}
