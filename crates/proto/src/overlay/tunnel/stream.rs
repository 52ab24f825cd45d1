//! A tunnel over a stream (Crisan 2014, 5.2.3): the format of its frames, and the TCP segments that carry the stream.

use super::{Datagram, Inner, Tunnel};
use crate::frame::Priority;
use crate::loss::DropReason;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::ops::Range;
use sluicenet_wire::checksum::PseudoHeader;
use sluicenet_wire::ipv4::{Ecn, Protocol};
use sluicenet_wire::tcp::{self, Segment};
use sluicenet_wire::{Error, ethernet, ipv4, stream, vlan};

/// Bytes in front of a segment's header.
const OUTER: usize = ethernet::HEADER_LEN + vlan::TAG_LEN + ipv4::HEADER_LEN;

/// A segment of a stream between servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The sending server.
    pub from: Ipv4Addr,
    /// The segment's header.
    pub segment: Segment,
    /// Position of its payload in the frame.
    pub payload: Range<usize>,
    /// Whether a switch marked the segment.
    pub ce: bool,
}

impl Tunnel {
    /// Writes a tenant's frame, in two pieces as [`Tunnel::encapsulate`] takes it, into `out` in the format of the stream
    /// to a server. `Err` is the reason to drop the frame.
    pub fn put_in_stream(
        &self,
        [frame, rest]: [&[u8]; 2],
        vni: u32,
        priority: Priority,
        to: Ipv4Addr,
        out: &mut Vec<u8>,
    ) -> Result<(), DropReason> {
        let inner = self.check(frame, rest.len())?;
        if !self.has_server(to) {
            return Err(DropReason::UnknownServer);
        }
        let len = (ethernet::HEADER_LEN + inner.packet.len() + rest.len()) as u32;
        out.clear();
        out.resize(stream::HEADER_LEN, 0);
        stream::Repr { len, priority, vni }.emit(out);
        out.extend_from_slice(inner.addresses);
        out.extend_from_slice(&inner.ethertype.0.to_be_bytes());
        out.extend_from_slice(inner.packet);
        out.extend_from_slice(rest);
        Ok(())
    }

    /// Takes a frame from the stream of a server. `Err` is the reason to drop the frame.
    pub fn take_from_stream(&self, bytes: &[u8], from: Ipv4Addr) -> Result<Inner, DropReason> {
        let (header, inside) = stream::Repr::parse(bytes).map_err(|_| DropReason::Malformed)?;
        let domain = self.domain_of(header.vni, inside)?;
        let (vni, priority) = (header.vni, header.priority);
        Ok(Inner { frame: stream::HEADER_LEN..bytes.len(), from, vni, domain, priority })
    }

    /// Largest frame in a stream, without its header there.
    pub fn max_in_stream(&self) -> u32 {
        ethernet::HEADER_LEN as u32 + u32::from(self.inner_mtu())
    }

    /// A frame with a segment from `port` to the same port of a server; `fill` writes its payload. `Err` if there is no
    /// such server.
    pub fn segment(
        &self,
        to: Ipv4Addr,
        port: u16,
        segment: Segment,
        ect: bool,
        priority: Priority,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Vec<u8>, DropReason> {
        let repr = tcp::Repr { source_port: port, destination_port: port, segment };
        let (header_len, payload_len) = (repr.header_len(), usize::from(segment.len));
        let mut out = alloc::vec![0; OUTER + header_len + payload_len];
        let ecn = if ect { Ecn::Ect0 } else { Ecn::NotEct };
        let datagram = self.outer(to, Protocol::TCP, priority, ecn, header_len + payload_len, &mut out)?;
        fill(&mut datagram[header_len..]);
        repr.emit(datagram, &PseudoHeader { source: self.server(), destination: to });
        Ok(out)
    }

    /// The segment in a received frame, if it goes from `port` of another server to `port` of this server.
    ///
    /// # Errors
    /// The reason to drop the frame.
    pub fn find_segment(&self, frame: &[u8], port: u16) -> Result<Option<Heard>, DropReason> {
        let Some(Datagram { ip, payload: datagram, start, .. }) = self.datagram(frame, Protocol::TCP)? else {
            return Ok(None);
        };
        let [p0, p1] = port.to_be_bytes();
        if datagram.get(..4).is_some_and(|ports| ports != [p0, p1, p0, p1]) {
            return Ok(None);
        }
        if !self.has_server(ip.source) {
            return Err(DropReason::UnknownServer);
        }
        let pseudo = PseudoHeader { source: ip.source, destination: ip.destination };
        let (repr, payload) = tcp::Repr::parse(datagram, &pseudo).map_err(|e| match e {
            Error::Checksum => DropReason::BadCrc,
            _ => DropReason::Malformed,
        })?;
        let end = start + datagram.len();
        let payload = end - payload.len()..end;
        Ok(Some(Heard { from: ip.source, segment: repr.segment, payload, ce: ip.ecn == Ecn::Ce }))
    }

    /// Whether the address is that of a server of the overlay.
    pub fn has_server(&self, server: Ipv4Addr) -> bool {
        self.servers.contains_key(&server)
    }
}
