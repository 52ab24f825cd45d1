//! Datagrams that are not lost: those that a socket has no room for wait (`full.rs`), and in time their senders wait, too.

use super::full::Fullness;
use super::receive::Taken;
use super::{Core, Socket, Waiting};
use crate::Ready;
use rustix::io::Errno;
use sluicenet_wire::checksum::PseudoHeader;
use sluicenet_wire::ethernet::{self, MacAddress};
use sluicenet_wire::{ipv4, udp};
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

/// The bytes that a datagram takes in its socket's buffer besides its payload.
const OVERHEAD: usize = 64;

/// A datagram with its sender.
type Received = (SocketAddrV4, Box<[u8]>);

pub(crate) struct Datagram {
    pub port: u16,
    pub waiting: Waiting,
    pub starved: bool,
    room: u32,
    pub peer: Option<SocketAddrV4>,
    pub error: Option<Errno>,
    pub shut_read: bool,
    news: u32,
    queue: VecDeque<Received>,
    bytes: usize,
    pub(super) fullness: Fullness,
}

impl Datagram {
    pub fn ready(&self) -> Ready {
        Ready {
            readable: !self.queue.is_empty() || self.error.is_some() || self.shut_read,
            writable: !self.starved,
            error: self.error.is_some(),
            news: self.news,
            room: self.room,
            ..Ready::default()
        }
    }

    /// A sender that found no buffer, or had to wait for a socket or a neighbour, may try again.
    pub fn retry(&mut self) {
        self.starved = false;
        self.room = self.room.wrapping_add(1);
    }

    /// Whether a datagram of `len` bytes fits into a buffer of `buffer`, or is the only one.
    pub(super) fn has_room(&self, len: usize, buffer: usize) -> bool {
        self.queue.is_empty() || self.bytes + len + OVERHEAD <= buffer
    }

    /// The fill level of its buffer, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn put(&mut self, from: SocketAddrV4, payload: &[u8]) {
        self.news = self.news.wrapping_add(1);
        self.bytes += payload.len() + OVERHEAD;
        self.queue.push_back((from, payload.into()));
    }

    /// The length of the next datagram.
    pub fn next_len(&self) -> Option<usize> {
        self.queue.front().map(|(_, payload)| payload.len())
    }
}

/// The sender, the destination port and the payload of a frame's datagram.
pub(super) fn parse(frame: &[u8]) -> Option<(SocketAddrV4, u16, &[u8])> {
    let (_, packet) = ethernet::Repr::parse(frame).ok()?;
    let (ip, bytes) = ipv4::Repr::parse(packet).ok()?;
    parse_packet(&ip, bytes)
}

fn parse_packet<'a>(ip: &ipv4::Repr, bytes: &'a [u8]) -> Option<(SocketAddrV4, u16, &'a [u8])> {
    let pseudo = PseudoHeader { source: ip.source, destination: ip.destination };
    let (header, payload) = udp::Repr::parse(bytes, &pseudo).ok()?;
    Some((SocketAddrV4::new(ip.source, header.source_port), header.destination_port, payload))
}

impl Core {
    /// Takes a port for datagrams, or a free one for 0; returns the socket. Connected sockets leave their port to another
    /// socket, which then gets the datagrams of all other senders (as in servers that have a socket for each client).
    pub fn bind(&mut self, port: u16) -> io::Result<usize> {
        self.check_for_good()?;
        let port = match port {
            0 => self.free_port(|core, port| !core.datagram_ports.contains_key(&port))?,
            port => port,
        };
        if self.datagrams_at(port).any(|(_, datagram)| datagram.peer.is_none()) {
            return Err(Errno::ADDRINUSE.into());
        }
        let datagram = Datagram {
            port,
            waiting: Waiting::default(),
            starved: false,
            room: 0,
            peer: None,
            error: None,
            shut_read: false,
            news: 0,
            queue: VecDeque::new(),
            bytes: 0,
            fullness: Fullness::default(),
        };
        let id = self.datagrams.insert(datagram);
        self.datagram_ports.entry(port).or_default().push(id);
        Ok(id)
    }

    pub fn datagram_mut(&mut self, id: usize) -> &mut Datagram {
        self.datagrams.get_mut(id).expect("held by its handle")
    }

    fn datagrams_at(&self, port: u16) -> impl Iterator<Item = (usize, &Datagram)> {
        let ids = self.datagram_ports.get(&port).into_iter().flatten();
        ids.filter_map(|&id| Some((id, self.datagrams.get(id)?)))
    }

    /// The socket for datagrams from an address to a port: the one connected to the address, or else an unconnected one.
    fn datagram_for(&self, from: SocketAddrV4, port: u16) -> Option<usize> {
        let readers = || self.datagrams_at(port).filter(|(_, datagram)| !datagram.shut_read);
        let connected = readers().find(|(_, datagram)| datagram.peer == Some(from));
        connected.or_else(|| readers().find(|(_, datagram)| datagram.peer.is_none())).map(|(id, _)| id)
    }

    /// Closes a socket; its unread datagrams are gone.
    pub fn unbind(&mut self, id: usize) {
        if let Some(datagram) = self.datagrams.remove(id) {
            if let Some(ids) = self.datagram_ports.get_mut(&datagram.port) {
                ids.retain(|&other| other != id);
                if ids.is_empty() {
                    self.datagram_ports.remove(&datagram.port);
                }
            }
            if datagram.starved {
                self.destinations.feed(Socket::Datagram(id));
            }
            self.release(id, datagram.fullness);
        }
        self.unpark();
        self.rouse();
    }

    /// The program reads no more.
    pub fn shut_datagram(&mut self, id: usize) {
        let datagram = self.datagram_mut(id);
        datagram.shut_read = true;
        datagram.queue.clear();
        datagram.bytes = 0;
        let fullness = std::mem::take(&mut datagram.fullness);
        self.release(id, fullness);
        self.unpark();
        self.touch(Socket::Datagram(id));
        self.rouse();
    }

    pub(super) fn on_datagram(&mut self, ip: &ipv4::Repr, bytes: &[u8]) -> Taken {
        let Some((from, port, payload)) = parse_packet(ip, bytes) else {
            self.counters.malformed += 1;
            return Taken::Done;
        };
        let Some(id) = self.datagram_for(from, port) else {
            self.counters.no_socket += 1;
            return Taken::Done;
        };
        let room = self.config.datagram_buffer as usize;
        let datagram = self.datagram_mut(id);
        if !datagram.takes(payload.len(), room) {
            if !datagram.fullness.stalled {
                return Taken::NoRoom(id);
            }
            self.counters.stalled += 1;
            return Taken::Done;
        }
        datagram.put(from, payload);
        self.look_how_full(id);
        self.touch(Socket::Datagram(id));
        Taken::Done
    }

    /// The next datagram of a socket; `None` when there is none. With `peek` it stays.
    pub fn receive_from(
        &mut self,
        id: usize,
        into: &mut [io::IoSliceMut<'_>],
        peek: bool,
    ) -> Option<io::Result<(usize, SocketAddrV4)>> {
        let datagram = self.datagram_mut(id);
        if let Some(error) = datagram.error.take() {
            return Some(Err(error.into()));
        }
        let Some((from, payload)) = datagram.queue.front() else {
            if datagram.shut_read {
                return Some(Ok((0, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))));
            }
            return if self.is_gone() { Some(Err(Errno::NETDOWN.into())) } else { None };
        };
        let (mut at, from, len) = (0, *from, payload.len());
        for slice in into {
            let part = slice.len().min(len - at);
            slice[..part].copy_from_slice(&payload[at..at + part]);
            at += part;
        }
        if !peek {
            datagram.bytes -= len + OVERHEAD;
            datagram.queue.pop_front();
            self.refill(id);
            self.touch(Socket::Datagram(id));
            self.unpark();
            if self.held.is_some() {
                self.rouse();
            }
        }
        Some(Ok((len, from)))
    }

    /// The sender has to wait for a socket of this host, or for a neighbour's address.
    fn park(&mut self, id: usize) {
        if !std::mem::replace(&mut self.datagram_mut(id).starved, true) {
            self.parked.push(id);
            self.touch(Socket::Datagram(id));
        }
    }

    /// Parked senders may try again.
    pub(super) fn unpark(&mut self) {
        for id in std::mem::take(&mut self.parked) {
            if let Some(datagram) = self.datagrams.get_mut(id) {
                datagram.retry();
                self.touch(Socket::Datagram(id));
            }
        }
    }

    /// Sends a datagram; `None` when it has to wait for a buffer, or for the neighbour's address.
    pub fn send_to(&mut self, id: usize, to: SocketAddrV4, slices: &[io::IoSlice<'_>]) -> Option<io::Result<usize>> {
        if let Err(e) = self.check() {
            return Some(Err(e));
        }
        let port = self.datagram_mut(id).port;
        if let Some(error) = self.datagram_mut(id).error.take() {
            return Some(Err(error.into()));
        }
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        if len + udp::HEADER_LEN + ipv4::HEADER_LEN > usize::from(self.config.mtu) {
            return Some(Err(Errno::MSGSIZE.into()));
        }
        if !self.config.reaches(*to.ip()) || to.ip().is_multicast() || to.ip().is_broadcast() {
            return Some(Err(Errno::NETUNREACH.into()));
        }
        if to.ip().is_unspecified() || to.port() == 0 {
            return Some(Err(Errno::INVAL.into()));
        }
        let headers = ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN;
        let mut frame = vec![0; headers];
        slices.iter().for_each(|slice| frame.extend_from_slice(slice));
        let pseudo = PseudoHeader { source: self.config.address, destination: *to.ip() };
        let header = udp::Repr { source_port: port, destination_port: to.port() };
        header.emit(&mut frame[ethernet::HEADER_LEN + ipv4::HEADER_LEN..], Some(&pseudo));
        if *to.ip() == self.config.address {
            self.put_headers(&mut frame, self.mac, *to.ip(), ipv4::Protocol::UDP, udp::HEADER_LEN + len);
            if self.take(&frame) != Taken::Done {
                self.park(id);
                return None;
            }
            return Some(Ok(len));
        }
        let mac = match self.resolve(*to.ip()) {
            Ok(mac) => mac,
            Err(e) => return Some(Err(e)),
        };
        let destination = mac.unwrap_or(MacAddress::BROADCAST);
        self.put_headers(&mut frame, destination, *to.ip(), ipv4::Protocol::UDP, udp::HEADER_LEN + len);
        if mac.is_none() {
            if !self.wait_for_neighbour(*to.ip(), id, frame) {
                self.park(id);
                return None;
            }
        } else if !self.has_buffers_for(Socket::Datagram(id), destination)
            || !self.send_frame(Some(Socket::Datagram(id)), destination, &[&frame])
        {
            self.starve(Socket::Datagram(id), destination);
            return None;
        }
        Some(Ok(len))
    }
}
