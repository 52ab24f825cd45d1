//! Timers: repeated questions, attempts given up, dead hosts.

use super::Core;
use super::conn::Conn;
use rustix::io::Errno;
use sluicenet_wire::ethernet::MacAddress;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// How often the host looks while it waits for an answer.
const LOOK_SOON: Duration = Duration::from_millis(50);
/// The time after which a stream is given up that its program has closed and whose other end goes on.
const LINGER: Duration = Duration::from_secs(60);

/// A host that streams go to.
pub(super) struct Peer {
    streams: u32,
    ip: Ipv4Addr,
    /// An open stream to the peer, as found at the last look: its answers show whether the host lives.
    pub open: Option<usize>,
    pub heard: Instant,
    asked: Instant,
}

impl Core {
    /// A stream goes to a host.
    pub(super) fn know(&mut self, mac: MacAddress) {
        let now = self.now;
        let first = Peer { streams: 0, ip: Ipv4Addr::UNSPECIFIED, open: None, heard: now, asked: now };
        self.peers.entry(mac).or_insert(first).streams += 1;
    }

    /// A stream goes there no more.
    pub(super) fn forget(&mut self, mac: MacAddress) {
        if let Some(peer) = self.peers.get_mut(&mac) {
            peer.streams -= 1;
            if peer.streams == 0 {
                self.peers.remove(&mac);
            }
        }
    }

    /// Something waits for an answer.
    pub(super) fn look_soon(&mut self) {
        self.look_at = self.look_at.min(self.now + LOOK_SOON);
        self.rouse();
    }

    /// Runs the due timers; returns how long the host may sleep, for ever with `None`.
    pub fn look(&mut self) -> Option<Duration> {
        self.now = Instant::now();
        if self.now >= self.look_at {
            let soon =
                self.ask_again() | self.outgoing.values().any(|&id| self.conns.get(id).is_some_and(Conn::is_opening));
            let every = (self.config.dead_after / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
            self.give_up_late();
            self.find_dead(every);
            self.looked = self.now;
            self.look_at = self.now + if soon { every.min(LOOK_SOON) } else { every };
        }
        let waiting = self.conns.len() > 0 || !self.pressed.is_empty() || self.awaits_neighbours();
        let until = self.stalled_at().map_or(self.look_at, |until| until.min(self.look_at));
        let until = waiting.then_some(until).into_iter().chain(self.announced_at()).min();
        until.map(|until| until.saturating_duration_since(self.now))
    }

    /// Gives up attempts to connect that take too long, and closed streams that do not end.
    fn give_up_late(&mut self) {
        for id in self.conns.ids() {
            let Some(conn) = self.conns.get_mut(id) else { continue };
            let age = self.now.duration_since(conn.since);
            if conn.is_opening() && age >= self.config.connect_timeout {
                self.lose(id, Errno::TIMEDOUT);
            } else if !conn.held && conn.waits_at.is_none() && age >= LINGER {
                conn.machine.abort();
                self.transmit(id);
            }
        }
    }

    /// Asks silent hosts whether they live, and their streams whether they are there; ends the streams of dead hosts.
    fn find_dead(&mut self, every: Duration) {
        let (now, dead_after) = (self.now, self.config.dead_after);
        // This process was stopped, or frames were held back: silence does not mean that peers are dead.
        if self.held.is_some() || now.duration_since(self.looked) > 3 * every {
            self.peers.values_mut().for_each(|peer| peer.heard = now);
        }
        self.peers.values_mut().for_each(|peer| peer.open = None);
        let mut probes = Vec::new();
        for id in self.conns.ids() {
            let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.resolved) else { continue };
            if let Some(peer) = self.peers.get_mut(&conn.key.mac) {
                peer.heard = peer.heard.max(conn.heard);
                peer.ip = *conn.key.peer.ip();
                peer.open = conn.machine.probe().map(|_| id).or(peer.open);
            }
            // A restarted host lives, and does not have the stream.
            let quiet = now.duration_since(conn.heard.max(conn.probed)) >= dead_after / 2;
            if quiet
                && conn.key.mac != self.mac
                && let Some(probe) = conn.machine.probe()
            {
                conn.probed = now;
                probes.push((conn.key, probe));
            }
        }
        let own = self.mac;
        let quiet = |peer: &Peer, least: Duration| now.duration_since(peer.heard) >= least;
        let (mut urgent, mut asked) = (Vec::new(), Vec::new());
        for (&mac, peer) in self.peers.iter_mut().filter(|(mac, peer)| **mac != own && quiet(peer, every)) {
            if now.duration_since(peer.asked) < every {
                continue;
            }
            peer.asked = now;
            // An overlay answers ARP in the name of the dead, and of another port that has the address; a stream only its end
            // does.
            match peer.open.and_then(|id| self.conns.get(id)) {
                Some(conn) => urgent.extend(conn.machine.probe().map(|probe| (conn.key, probe))),
                None => asked.push((peer.ip, mac)),
            }
        }
        for (key, probe) in urgent {
            if self.may_send_control(key.mac) {
                self.send_segment(None, &key, &probe, &[]);
            }
        }
        for (key, probe) in probes {
            if self.has_buffers() && self.may_send_control(key.mac) {
                self.send_segment(None, &key, &probe, &[]);
            }
        }
        for (ip, mac) in asked {
            self.ask_whether_alive(ip, mac);
        }
        let dead: Vec<MacAddress> =
            self.peers.iter().filter(|(mac, p)| **mac != own && quiet(p, dead_after)).map(|(&mac, _)| mac).collect();
        for mac in dead {
            self.forget_neighbour(mac);
            for id in self.conns.ids() {
                if self.conns.get(id).is_some_and(|conn| conn.resolved && conn.key.mac == mac) {
                    self.counters.dead += 1;
                    self.lose(id, Errno::TIMEDOUT);
                }
            }
        }
    }
}
