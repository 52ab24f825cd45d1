//! The MAC addresses of neighbours: ARP (RFC 826).

use super::{Core, Socket};
use rustix::io::Errno;
use sluicenet_wire::arp;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The most neighbours that a host knows or asks for.
const NEIGHBOURS_MAX: usize = 4096;
/// How often it asks, and for how long.
const ASK_EVERY: Duration = Duration::from_millis(200);
const ASK_FOR: Duration = Duration::from_secs(3);
/// The age at which an address is confirmed again.
const FRESH_FOR: Duration = Duration::from_secs(60);
/// How often a new host announces itself, and the time between (RFC 5227, 2.3, which has two): the overlay's controller may
/// not have heard yet that the address's previous owner is gone.
pub(super) const ANNOUNCEMENTS: u32 = 3;
const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// Datagrams that wait for a neighbour's address.
const PENDING_MAX: usize = 64;

pub(super) struct Neighbour {
    mac: Option<MacAddress>,
    /// Since when it is asked for or known, and when it was last asked.
    since: Instant,
    asked: Instant,
    streams: Vec<usize>,
    /// Frames of datagrams, with the sockets they are from.
    pending: VecDeque<(usize, Vec<u8>)>,
}

impl Neighbour {
    fn is_awaited(&self) -> bool {
        self.mac.is_none() || !self.pending.is_empty()
    }
}

impl Core {
    /// The address of a neighbour, which is asked for when it is not known.
    pub(super) fn resolve(&mut self, ip: Ipv4Addr) -> io::Result<Option<MacAddress>> {
        let now = self.now;
        if let Some(neighbour) = self.neighbours.get_mut(&ip) {
            // Waiting datagrams go first.
            let mac = neighbour.mac.filter(|_| neighbour.pending.is_empty());
            if mac.is_some()
                && now.duration_since(neighbour.since) >= FRESH_FOR
                && now.duration_since(neighbour.asked) >= ASK_EVERY
            {
                neighbour.asked = now;
                self.ask(ip, MacAddress::BROADCAST);
            }
            return Ok(mac);
        }
        if self.neighbours.len() >= NEIGHBOURS_MAX {
            return Err(Errno::NOBUFS.into());
        }
        self.now = Instant::now();
        let neighbour =
            Neighbour { mac: None, since: self.now, asked: self.now, streams: Vec::new(), pending: VecDeque::new() };
        self.neighbours.insert(ip, neighbour);
        self.ask(ip, MacAddress::BROADCAST);
        self.look_soon();
        Ok(None)
    }

    /// Gives a stream the address of its neighbour.
    pub(super) fn resolve_stream(&mut self, ip: Ipv4Addr, id: usize) -> io::Result<()> {
        match self.resolve(ip)? {
            Some(mac) => self.resolved(id, mac),
            None => self.neighbours.get_mut(&ip).expect("asked for").streams.push(id),
        }
        Ok(())
    }

    /// Has a datagram wait for its neighbour's address; returns whether there was room.
    pub(super) fn wait_for_neighbour(&mut self, ip: Ipv4Addr, id: usize, frame: Vec<u8>) -> bool {
        let Some(neighbour) = self.neighbours.get_mut(&ip).filter(|n| n.pending.len() < PENDING_MAX) else {
            return false;
        };
        neighbour.pending.push_back((id, frame));
        true
    }

    /// Asks for an address; a question that finds no buffer is asked again.
    pub(super) fn ask(&mut self, ip: Ipv4Addr, of: MacAddress) {
        self.say(arp::Operation::Request, MacAddress::default(), ip, of);
    }

    fn say(&mut self, operation: arp::Operation, target_mac: MacAddress, target_ip: Ipv4Addr, to: MacAddress) {
        // A host that must not be taken for the owner of this address asks without it (RFC 5227, 2.1.1).
        let sender_ip = if self.config.answers { self.config.address } else { Ipv4Addr::UNSPECIFIED };
        let sender_mac = self.mac;
        let mut frame = [0; ethernet::MIN_LEN];
        ethernet::Repr { destination: to, source: self.mac, ethertype: EtherType::ARP }.emit(&mut frame);
        arp::Repr { operation, sender_mac, sender_ip, target_mac, target_ip }.emit(&mut frame[ethernet::HEADER_LEN..]);
        // A neighbour that gets no answer asks again.
        if to != self.mac && self.may_send_control(to) {
            self.send_frame(None, to, &[&frame]);
        }
    }

    /// Announces the host, with its address, or without it where the host does not answer for the address.
    pub fn announce(&mut self) {
        self.announcements -= 1;
        self.announce_at = Instant::now() + ANNOUNCE_EVERY;
        self.say(arp::Operation::Request, MacAddress::default(), self.config.address, MacAddress::BROADCAST);
    }

    /// Repeats the announcement when it is due; returns the time of the next one.
    pub(super) fn announced_at(&mut self) -> Option<Instant> {
        if self.announcements > 0 && self.now >= self.announce_at {
            self.announce();
        }
        (self.announcements > 0).then_some(self.announce_at)
    }

    pub(super) fn on_arp(&mut self, from: MacAddress, bytes: &[u8]) {
        let Ok((said, _)) = arp::Repr::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if said.sender_mac.is_group() || said.sender_mac == self.mac {
            self.counters.elsewhere += 1;
            return;
        }
        // A neighbour that was asked for, or that announces its move.
        if self.neighbours.contains_key(&said.sender_ip) {
            self.learn(said.sender_ip, said.sender_mac);
        }
        // Only a station's own frames show that it lives: others may speak in its name, and an overlay answers in the name of
        // the dead.
        if let Some(peer) = self.peers.get_mut(&from).filter(|peer| said.sender_mac == from && peer.open.is_none()) {
            peer.heard = self.now;
        }
        // A request to this port of the switch asks whether a host is there.
        let for_us = said.target_ip == self.config.address && (self.config.answers || said.target_mac == self.mac);
        if said.operation == arp::Operation::Request && for_us {
            self.say(arp::Operation::Reply, said.sender_mac, said.sender_ip, said.sender_mac);
        }
    }

    fn learn(&mut self, ip: Ipv4Addr, mac: MacAddress) {
        let Some(neighbour) = self.neighbours.get_mut(&ip) else { return };
        (neighbour.mac, neighbour.since) = (Some(mac), self.now);
        for id in std::mem::take(&mut neighbour.streams) {
            if self.awaits(id, ip) {
                self.resolved(id, mac);
            }
        }
        self.send_pending(ip);
        self.unpark();
    }

    /// Sends the datagrams that waited for a neighbour, as far as there are buffers.
    pub(super) fn send_pending(&mut self, ip: Ipv4Addr) {
        while self.has_buffers()
            && let Some(mac) = self.neighbours.get(&ip).and_then(|neighbour| neighbour.mac)
            && self.may_send_control(mac)
        {
            let pending = self.neighbours.get_mut(&ip).and_then(|neighbour| neighbour.pending.pop_front());
            let Some((_, mut frame)) = pending else { return };
            frame[..6].copy_from_slice(&mac.0);
            self.send_frame(None, mac, &[&frame]);
            self.unpark();
        }
    }

    /// Asks again for neighbours that did not answer, and gives up those that never do; returns whether any is awaited.
    pub(super) fn ask_again(&mut self) -> bool {
        let now = self.now;
        let mut waiting = false;
        let ips: Vec<Ipv4Addr> = self.neighbours.iter().filter(|(_, n)| n.is_awaited()).map(|(&ip, _)| ip).collect();
        for ip in ips {
            let Some(neighbour) = self.neighbours.get_mut(&ip) else { continue };
            if neighbour.mac.is_some() {
                self.send_pending(ip);
                waiting = true;
            } else if now.duration_since(neighbour.since) >= ASK_FOR {
                self.give_up_neighbour(ip, Errno::HOSTUNREACH);
            } else {
                waiting = true;
                if now.duration_since(neighbour.asked) >= ASK_EVERY {
                    neighbour.asked = now;
                    self.ask(ip, MacAddress::BROADCAST);
                }
            }
        }
        waiting
    }

    /// Whether a datagram or stream waits for a neighbour's address.
    pub(super) fn awaits_neighbours(&self) -> bool {
        self.neighbours.values().any(Neighbour::is_awaited)
    }

    fn give_up_neighbour(&mut self, ip: Ipv4Addr, why: Errno) {
        let Some(neighbour) = self.neighbours.remove(&ip) else { return };
        self.unpark();
        for id in neighbour.streams {
            if self.awaits(id, ip) {
                self.lose(id, why);
            }
        }
        for (id, _) in neighbour.pending {
            self.counters.unresolved += 1;
            if let Some(datagram) = self.datagrams.get_mut(id) {
                datagram.error = Some(why);
                self.touch(Socket::Datagram(id));
            }
        }
    }

    /// Forgets all neighbours; datagrams and streams that wait for an address fail.
    pub(super) fn forget_neighbours(&mut self, why: Errno) {
        for ip in self.neighbours.keys().copied().collect::<Vec<_>>() {
            self.give_up_neighbour(ip, why);
        }
    }

    /// A host is dead: its address is resolved again.
    pub(super) fn forget_neighbour(&mut self, mac: MacAddress) {
        self.neighbours.retain(|_, neighbour| neighbour.mac != Some(mac) || !neighbour.pending.is_empty());
    }

    /// Asks a host with which no stream is open yet to show that it lives.
    pub(super) fn ask_whether_alive(&mut self, ip: Ipv4Addr, mac: MacAddress) {
        self.say(arp::Operation::Request, mac, ip, mac);
    }
}
