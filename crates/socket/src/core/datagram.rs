//! Datagrams that are not lost: a socket without room holds back what comes behind, and so, in time, who sends it.

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
use std::time::Instant;

/// What a datagram counts in its socket's buffer besides its bytes.
const OVERHEAD: usize = 64;

/// A datagram with who sent it.
type Received = (SocketAddrV4, Box<[u8]>);

pub(crate) struct Datagram {
    pub waiting: Waiting,
    pub starved: bool,
    pub peer: Option<SocketAddrV4>,
    pub error: Option<Errno>,
    pub shut_read: bool,
    queue: VecDeque<Received>,
    bytes: usize,
    /// Its program has not read for too long: what comes is lost.
    stalled: bool,
}

impl Datagram {
    pub fn ready(&self) -> Ready {
        Ready {
            readable: !self.queue.is_empty() || self.error.is_some() || self.shut_read,
            writable: !self.starved,
            error: self.error.is_some(),
            ..Ready::default()
        }
    }

    fn put(&mut self, from: SocketAddrV4, payload: &[u8]) {
        self.bytes += payload.len() + OVERHEAD;
        self.queue.push_back((from, payload.into()));
    }

    /// The length of what is read next.
    pub fn next_len(&self) -> Option<usize> {
        self.queue.front().map(|(_, payload)| payload.len())
    }
}

/// A frame that its socket has no room for, and since when.
pub(super) struct Held {
    frame: Vec<u8>,
    since: Instant,
}

impl Core {
    /// Takes a port for datagrams, or one that is free with 0; returns which.
    pub fn bind(&mut self, port: u16) -> io::Result<u16> {
        self.check()?;
        let port = match port {
            0 => self.free_port(|core, port| !core.datagrams.contains_key(&port))?,
            port => port,
        };
        if self.datagrams.contains_key(&port) {
            return Err(Errno::ADDRINUSE.into());
        }
        let datagram = Datagram {
            waiting: Waiting::default(),
            starved: false,
            peer: None,
            error: None,
            shut_read: false,
            queue: VecDeque::new(),
            bytes: 0,
            stalled: false,
        };
        self.datagrams.insert(port, datagram);
        Ok(port)
    }

    pub fn datagram_mut(&mut self, port: u16) -> &mut Datagram {
        self.datagrams.get_mut(&port).expect("held by its handle")
    }

    /// The program has done with a port; what it did not read is gone with it.
    pub fn unbind(&mut self, port: u16) {
        self.datagrams.remove(&port);
        self.unpark();
        self.rouse();
    }

    /// The program reads no more.
    pub fn shut_datagram(&mut self, port: u16) {
        let datagram = self.datagram_mut(port);
        datagram.shut_read = true;
        datagram.queue.clear();
        datagram.bytes = 0;
        self.unpark();
        self.touch(Socket::Datagram(port));
        self.rouse();
    }

    pub(super) fn on_datagram(&mut self, ip: &ipv4::Repr, bytes: &[u8]) -> Taken {
        let pseudo = PseudoHeader { source: ip.source, destination: ip.destination };
        let Ok((header, payload)) = udp::Repr::parse(bytes, &pseudo) else {
            self.counters.malformed += 1;
            return Taken::Done;
        };
        let from = SocketAddrV4::new(ip.source, header.source_port);
        let room = self.config.datagram_buffer as usize;
        let wanted = |datagram: &&mut Datagram| !datagram.shut_read && datagram.peer.is_none_or(|peer| peer == from);
        let Some(datagram) = self.datagrams.get_mut(&header.destination_port).filter(wanted) else {
            self.counters.no_socket += 1;
            return Taken::Done;
        };
        if datagram.bytes + payload.len() + OVERHEAD > room && !datagram.queue.is_empty() {
            if !datagram.stalled {
                return Taken::NoRoom;
            }
            self.counters.stalled += 1;
            return Taken::Done;
        }
        datagram.put(from, payload);
        self.touch(Socket::Datagram(header.destination_port));
        Taken::Done
    }

    /// Keeps a frame that its socket has no room for.
    pub(super) fn hold(&mut self, frame: &[u8]) {
        self.held = Some(Held { frame: frame.to_vec(), since: self.now });
        self.rouse();
    }

    /// Tries again what is held back; whether nothing is any more.
    pub(super) fn retry_held(&mut self) -> bool {
        let Some(held) = self.held.take() else { return true };
        if self.take(&held.frame) == Taken::Done {
            return true;
        }
        if self.config.stall.is_some_and(|stall| self.now.duration_since(held.since) >= stall) {
            self.give_up_on(&held.frame);
            self.take(&held.frame);
            return true;
        }
        self.held = Some(held);
        false
    }

    /// When the frame that is held back is given up.
    pub(super) fn held_until(&self) -> Option<Instant> {
        Some(self.held.as_ref()?.since + self.config.stall?)
    }

    /// The socket that a frame is for loses what comes until its program reads.
    fn give_up_on(&mut self, frame: &[u8]) {
        let at = ethernet::HEADER_LEN;
        if let Ok((_, bytes)) = ipv4::Repr::parse(&frame[at..])
            && let Some(&[high, low]) = bytes.get(2..4)
            && let Some(datagram) = self.datagrams.get_mut(&u16::from_be_bytes([high, low]))
        {
            datagram.stalled = true;
        }
    }

    /// The next datagram of a socket; `None` when there is none. With `peek` it stays.
    pub fn receive_from(
        &mut self,
        port: u16,
        into: &mut [io::IoSliceMut<'_>],
        peek: bool,
    ) -> Option<io::Result<(usize, SocketAddrV4)>> {
        let datagram = self.datagram_mut(port);
        if let Some(error) = datagram.error.take() {
            return Some(Err(error.into()));
        }
        let Some((from, payload)) = datagram.queue.front() else {
            if datagram.shut_read {
                return Some(Ok((0, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))));
            }
            return if self.down { Some(Err(Errno::NETDOWN.into())) } else { None };
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
            datagram.stalled = false;
            self.touch(Socket::Datagram(port));
            self.unpark();
            if self.held.is_some() {
                self.rouse();
            }
        }
        Some(Ok((len, from)))
    }

    /// Who sends has to wait for a socket of this host, or for a neighbour's address.
    fn park(&mut self, port: u16) {
        if !std::mem::replace(&mut self.datagram_mut(port).starved, true) {
            self.parked.push(port);
            self.touch(Socket::Datagram(port));
        }
    }

    /// Whoever was parked may try again.
    pub(super) fn unpark(&mut self) {
        for port in std::mem::take(&mut self.parked) {
            if let Some(datagram) = self.datagrams.get_mut(&port) {
                datagram.starved = false;
                self.touch(Socket::Datagram(port));
            }
        }
    }

    /// Sends a datagram; `None` when it has to wait for a buffer, or for the neighbour's address.
    pub fn send_to(&mut self, port: u16, to: SocketAddrV4, slices: &[io::IoSlice<'_>]) -> Option<io::Result<usize>> {
        if let Err(e) = self.check() {
            return Some(Err(e));
        }
        if let Some(error) = self.datagram_mut(port).error.take() {
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
            if self.take(&frame) == Taken::NoRoom {
                self.park(port);
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
            if !self.wait_for_neighbour(*to.ip(), port, frame) {
                self.park(port);
                return None;
            }
        } else if !self.has_buffers() || !self.send_frame(destination, &[&frame]) {
            self.starve(Socket::Datagram(port));
            return None;
        }
        Some(Ok(len))
    }
}
