//! Incoming frames, and segments of streams.

use super::conn::{Conn, Key};
use super::{Core, Socket};
use rustix::io::Errno;
use sluicenet_dataplane::port::BrokenPort;
use sluicenet_proto::transport::tcplight::{End, Segment, Stream};
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::ipv4::Protocol;
use sluicenet_wire::tcplight::Flags;
use sluicenet_wire::{ipv4, tcplight};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

/// The fate of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Done,
    /// This datagram socket has no room for the frame.
    NoRoom(usize),
}

impl Core {
    /// Takes in frames, at most this many; returns whether none are left.
    pub fn pump(&mut self, frames: u32) -> bool {
        self.now = Instant::now();
        self.find_stalled();
        if !self.is_up() || !self.retry_held() {
            return true;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut all = false;
        for _ in 0..frames {
            match self.client.receive_and_keep(&mut scratch) {
                Ok(Some(frame)) => {
                    self.counters.received += 1;
                    if !self.take_in(frame, &scratch[..frame.len as usize]) {
                        self.rouse();
                        all = true;
                        break;
                    }
                }
                Ok(None) => {
                    all = true;
                    break;
                }
                Err(BrokenPort) => {
                    self.fail();
                    all = true;
                    break;
                }
            }
        }
        self.scratch = scratch;
        all
    }

    /// Takes a frame in.
    pub(super) fn take(&mut self, frame: &[u8]) -> Taken {
        let Ok((header, packet)) = ethernet::Repr::parse(frame) else {
            self.counters.malformed += 1;
            return Taken::Done;
        };
        if header.source.is_group() || (header.destination != self.mac && header.destination != MacAddress::BROADCAST) {
            self.counters.elsewhere += 1;
            return Taken::Done;
        }
        match header.ethertype {
            EtherType::ARP => self.on_arp(header.source, packet),
            EtherType::IPV4 if header.destination == self.mac => return self.on_packet(header.source, packet),
            _ => self.counters.elsewhere += 1,
        }
        Taken::Done
    }

    fn on_packet(&mut self, mac: MacAddress, packet: &[u8]) -> Taken {
        let Ok((ip, payload)) = ipv4::Repr::parse(packet) else {
            self.counters.malformed += 1;
            return Taken::Done;
        };
        let source_is_host = !(ip.source.is_multicast() || ip.source.is_broadcast() || ip.source.is_unspecified());
        if ip.destination != self.config.address || !source_is_host {
            self.counters.elsewhere += 1;
            return Taken::Done;
        }
        match ip.protocol {
            tcplight::PROTOCOL => self.on_segment(mac, ip.source, payload),
            Protocol::UDP => return self.on_datagram(&ip, payload),
            _ => self.counters.malformed += 1,
        }
        Taken::Done
    }

    fn on_segment(&mut self, mac: MacAddress, source: Ipv4Addr, bytes: &[u8]) {
        let Ok((header, payload)) = tcplight::Repr::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let peer = SocketAddrV4::new(source, header.source_port);
        let key = Key { mac, peer, local: header.destination_port };
        let segment = Segment {
            flags: header.flags,
            connection: header.connection,
            offset: header.offset,
            limit: header.limit,
            len: payload.len() as u32,
        };
        if let Some(&id) = self.by_key.get(&key) {
            let conn = self.conns.get_mut(id).expect("by its key");
            match conn.machine.receive(&segment) {
                Some(heard) => return self.on_heard(id, heard, payload),
                // The other end began a new stream between the same ports: the old one is gone there.
                None if segment.flags == Flags::SYN && self.listeners.contains_key(&key.local) => {
                    self.lose(id, Errno::CONNRESET);
                    if self.by_key.remove(&key).is_some() {
                        self.forget(mac);
                    }
                }
                None => return self.refuse(key, &segment),
            }
        }
        if segment.flags == Flags::SYN {
            return self.on_syn(key, &segment);
        }
        let opening = self.outgoing.get(&(peer, key.local)).copied().filter(|_| segment.flags.contains(Flags::SYN));
        match opening {
            Some(id) if self.answers(id, &segment) => self.on_answer_from_elsewhere(id, key, &segment),
            _ => self.refuse(key, &segment),
        }
    }

    /// Whether a segment answers an attempt to connect.
    fn answers(&self, id: usize, segment: &Segment) -> bool {
        let is_asked_for = |conn: &Conn| conn.is_opening() && conn.machine.connection() == segment.connection;
        segment.flags == Flags::SYN | Flags::ANSWER && self.conns.get(id).is_some_and(is_asked_for)
    }

    /// Another process of the same address has taken the connection: it is at another port of the switch.
    fn on_answer_from_elsewhere(&mut self, id: usize, key: Key, segment: &Segment) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let old = std::mem::replace(&mut conn.key, key);
        if self.by_key.get(&old) == Some(&id) {
            self.by_key.remove(&old);
            self.forget(old.mac);
        }
        self.by_key.insert(key, id);
        self.know(key.mac);
        if let Some(heard) = self.conns.get_mut(id).and_then(|conn| conn.machine.receive(segment)) {
            self.on_heard(id, heard, &[]);
        }
    }

    fn on_heard(&mut self, id: usize, heard: sluicenet_proto::transport::tcplight::Received, payload: &[u8]) {
        let now = self.now;
        let conn = self.conns.get_mut(id).expect("by its key");
        conn.heard = now;
        let fresh = &payload[payload.len() - heard.fresh as usize..];
        let is_read = conn.held && !conn.shut_read || conn.waits_at.is_some();
        if is_read && !fresh.is_empty() {
            self.keep(id, fresh);
        }
        let conn = self.conns.get_mut(id).expect("by its key");
        if heard.fresh > 0 && !is_read {
            if conn.held {
                conn.machine.read(heard.fresh.into());
            } else {
                // These bytes will never be read: the other end has to know.
                conn.machine.abort();
            }
        }
        if heard.closed && conn.error.is_none() {
            conn.error = match conn.machine.end() {
                End::Reset if !conn.opened => Some(Errno::CONNREFUSED),
                // A peer that has closed its direction has said everything that a reader wants to know.
                End::Reset if conn.machine.is_peer_closed() => None,
                End::Reset => Some(Errno::CONNRESET),
                End::Gap | End::Violation => Some(Errno::PROTO),
                End::Orderly | End::Aborted => None,
            };
        }
        if heard.connected || conn.machine.is_open() {
            conn.opened = true;
        }
        if heard.closed || heard.peer_closed {
            self.count(id);
        }
        self.touch(Socket::Stream(id));
        if heard.closed {
            self.drop_if_waiting(id);
        }
        if self.conns.get(id).is_some_and(|conn| conn.machine.wants_transmit()) {
            self.transmit(id);
        }
        if heard.asked {
            self.answer_probe(id);
        }
        self.free_if_over(id);
    }

    /// Reports that the stream is here. Without a buffer for the answer, the peer asks again.
    fn answer_probe(&mut self, id: usize) {
        let Some(conn) = self.conns.get(id) else { return };
        let key = conn.key;
        if let Some(answer) = conn.machine.answer_probe()
            && self.may_send_control(key.mac)
        {
            self.send_segment(None, &key, &answer, &[]);
        }
    }

    /// Answers a segment of an unknown connection.
    pub(super) fn refuse(&mut self, key: Key, segment: &Segment) {
        self.counters.refused += 1;
        let Some(refusal) = Stream::refuse(segment) else { return };
        if key.mac == self.mac || self.may_send_control(key.mac) {
            self.send_segment(None, &key, &refusal, &[]);
        } else {
            self.owe_refusal(key, refusal);
        }
    }
}
