//! The fields of a tenant's frame that the tunnel reads.

use crate::loss::DropReason;
use crate::rng::hash_words;
use sluicenet_wire::ethernet::{self, EtherType};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::{vlan, vxlan};

/// Bytes of the addresses in front of a tag or a type.
const ADDRESSES: usize = 12;

/// A tenant's frame without its 802.1Q tag.
pub(super) struct Untagged<'a> {
    pub addresses: &'a [u8],
    pub ethertype: EtherType,
    pub packet: &'a [u8],
    pub was_tagged: bool,
}

impl<'a> Untagged<'a> {
    /// Removes one tag. `Err` if a tenant must not send the frame.
    pub fn of(frame: &'a [u8]) -> Result<Untagged<'a>, DropReason> {
        let (header, mut packet) = ethernet::Repr::parse(frame).map_err(|_| DropReason::Malformed)?;
        let mut ethertype = header.ethertype;
        let was_tagged = ethertype == EtherType::VLAN;
        if was_tagged {
            let (tag, behind) = vlan::Repr::parse(packet).map_err(|_| DropReason::Malformed)?;
            (ethertype, packet) = (tag.ethertype, behind);
        }
        // A length behind the tag means an LLC frame, which the other end would reject.
        let is_length = ethertype.0 < 0x0600;
        if ethertype == EtherType::VLAN || is_length || header.source.is_group() {
            return Err(DropReason::Malformed);
        }
        // 01-80-C2-00-00-00 to -0F end at their link.
        if header.destination.0[..5] == [0x01, 0x80, 0xC2, 0, 0] && header.destination.0[5] < 0x10 {
            return Err(DropReason::Reserved);
        }
        Ok(Untagged { addresses: &frame[..ADDRESSES], ethertype, packet, was_tagged })
    }

    pub fn ecn(&self) -> Ecn {
        match (self.ethertype, self.packet) {
            (EtherType::IPV4, &[version, tos, ..]) if version >> 4 == 4 && self.packet.len() >= ipv4::HEADER_LEN => {
                Ecn::from_bits(tos)
            }
            (EtherType::IPV6, &[version, class, ..]) if version >> 4 == 6 => Ecn::from_bits(class >> 4),
            _ => Ecn::NotEct,
        }
    }

    /// The protocol and the payload of an IP packet, unless the packet is a later fragment.
    fn transport(&self) -> Option<(u8, &[u8])> {
        match self.ethertype {
            EtherType::IPV4 => {
                let header = self.packet.first_chunk::<{ ipv4::HEADER_LEN }>()?;
                let offset = u16::from_be_bytes([header[6], header[7]]) & 0x1FFF;
                let len = usize::from(header[0] & 0x0F) * 4;
                (offset == 0).then_some((header[9], self.packet.get(len..)?))
            }
            EtherType::IPV6 => Some((*self.packet.get(6)?, self.packet.get(40..)?)),
            _ => None,
        }
    }

    pub fn is_tunnel(&self) -> bool {
        let port = vxlan::UDP_PORT.to_be_bytes();
        self.transport().is_some_and(|(protocol, t)| protocol == Protocol::UDP.0 && t.get(2..4) == Some(&port[..]))
    }

    /// A hash that all frames of a flow share: "a hash of fields from the inner packet" (RFC 7348, 5).
    pub fn flow_hash(&self) -> u64 {
        let word = |bytes: &[u8]| bytes.iter().take(8).fold(0, |word, &b| word << 8 | u64::from(b));
        let addresses = match self.ethertype {
            EtherType::IPV4 => self.packet.get(12..20),
            EtherType::IPV6 => self.packet.get(8..40),
            _ => None,
        };
        let ip = addresses.unwrap_or_default();
        // Later fragments have no ports, so the ports of a first fragment must not be hashed either.
        let whole = self.ethertype != EtherType::IPV4 || self.packet.get(6..8).is_some_and(|f| f[0] & 0x3F | f[1] == 0);
        let (protocol, ports) = match self.transport().filter(|_| whole) {
            Some((protocol @ (6 | 17), t)) => (protocol, t.get(..4).unwrap_or_default()),
            Some((protocol, _)) => (protocol, &[][..]),
            None => (0, &[][..]),
        };
        let mut words =
            [word(&self.addresses[..6]), word(&self.addresses[6..]), u64::from(protocol), word(ports), 0, 0, 0, 0];
        for (word_of, bytes) in words[4..].iter_mut().zip(ip.chunks(8)) {
            *word_of = word(bytes);
        }
        hash_words(&words)
    }
}
