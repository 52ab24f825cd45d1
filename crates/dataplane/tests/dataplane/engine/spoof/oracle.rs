//! What the most lenient receiver takes a frame for. It unwraps every tag and 802.2, skips every header, puts every fragment
//! together, and knows nothing of the guard.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A statement of a frame about its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// "I am this station."
    Mac([u8; 6]),
    /// "I have this address."
    Ip(IpAddr),
    /// "I am a router."
    Router,
    /// "I am a DHCP server."
    DhcpServer,
}

type Datagram = (IpAddr, IpAddr, u32);

/// A receiver, with its fragments.
#[derive(Default)]
pub struct Receiver {
    fragments: BTreeMap<Datagram, Vec<(usize, u8, Vec<u8>)>>,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

impl Receiver {
    pub fn claims(&mut self, frame: &[u8]) -> Vec<Claim> {
        let mut claims = vec![Claim::Mac(frame[6..12].try_into().unwrap())];
        // A frame that breaks off says nothing more.
        let _ = self.read(frame, &mut claims);
        claims
    }

    fn read(&mut self, frame: &[u8], claims: &mut Vec<Claim>) -> Option<()> {
        let mut at = 12;
        loop {
            match word(frame, at)? {
                0x8100 | 0x88A8 | 0x9100 | 0x9200 | 0x9300 | 0x22E9 => at += 4,
                // RFC 1042 and 802.1H: the type follows an organisation.
                0..0x600 if matches!(frame.get(at + 2..at + 8)?, [0xAA | 0xAB, 0xAA | 0xAB, _, 0, 0, 0 | 0xF8]) => {
                    at += 8
                }
                _ => break,
            }
        }
        let packet = frame.get(at + 2..)?;
        match word(frame, at)? {
            0x0800 => self.ipv4(packet, claims),
            0x0806 => arp(packet, claims),
            0x86DD => self.ipv6(packet, claims),
            _ => None,
        }
    }

    fn ipv4(&mut self, packet: &[u8], claims: &mut Vec<Claim>) -> Option<()> {
        let address =
            |at: usize| -> Option<Ipv4Addr> { Some(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?.into()) };
        let (source, destination) = (address(12)?, address(16)?);
        if packet[0] >> 4 != 4 {
            return None;
        }
        if !source.is_unspecified() {
            claims.push(Claim::Ip(source.into()));
        }
        let payload = packet.get(usize::from(packet[0] & 15) * 4..usize::from(word(packet, 2)?).min(packet.len()))?;
        let (pieces, id) = (word(packet, 6)?, word(packet, 4)?);
        let key = (source.into(), destination.into(), u32::from(id) | u32::from(packet[9]) << 16);
        for whole in self.join(key, usize::from(pieces & 0x1FFF) * 8, packet[9], payload) {
            upper(packet[9], &whole, None, claims);
        }
        Some(())
    }

    fn ipv6(&mut self, packet: &[u8], claims: &mut Vec<Claim>) -> Option<()> {
        let address =
            |at: usize| -> Option<Ipv6Addr> { Some(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?.into()) };
        let (source, destination) = (address(8)?, address(24)?);
        if packet[0] >> 4 != 6 {
            return None;
        }
        if !source.is_unspecified() {
            claims.push(Claim::Ip(source.into()));
        }
        let end = (40 + usize::from(word(packet, 4)?)).min(packet.len());
        self.headers(packet[6], packet.get(40..end)?, (source, destination), claims)
    }

    fn headers(&mut self, next: u8, bytes: &[u8], ends: (Ipv6Addr, Ipv6Addr), claims: &mut Vec<Claim>) -> Option<()> {
        match next {
            0 | 43 | 60 => {
                self.headers(*bytes.first()?, bytes.get(usize::from(*bytes.get(1)?) * 8 + 8..)?, ends, claims)
            }
            51 => self.headers(*bytes.first()?, bytes.get(usize::from(*bytes.get(1)?) * 4 + 8..)?, ends, claims),
            44 => {
                let (offset, id) = (word(bytes, 2)?, u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?));
                let key = (ends.0.into(), ends.1.into(), id);
                for whole in self.join(key, usize::from(offset & !7), bytes[0], bytes.get(8..)?) {
                    let _ = self.headers(bytes[0], &whole, ends, claims);
                }
                Some(())
            }
            protocol => {
                upper(protocol, bytes, Some(ends.0), claims);
                Some(())
            }
        }
    }

    /// All datagrams that a receiver may make of its fragments: where they overlap, the first bytes or the last ones count.
    fn join(&mut self, key: Datagram, offset: usize, protocol: u8, bytes: &[u8]) -> Vec<Vec<u8>> {
        let pieces = self.fragments.entry(key).or_default();
        pieces.push((offset, protocol, bytes.to_vec()));
        let mut orders = [pieces.clone(), pieces.iter().rev().cloned().collect()];
        orders
            .iter_mut()
            .filter_map(|pieces| {
                let end = pieces.iter().map(|(offset, _, bytes)| offset + bytes.len()).max()?;
                let mut whole = vec![0; end];
                pieces
                    .iter()
                    .for_each(|(offset, _, bytes)| whole[*offset..offset + bytes.len()].copy_from_slice(bytes));
                pieces.iter().any(|(offset, ..)| *offset == 0).then_some(whole)
            })
            .collect()
    }
}

fn arp(packet: &[u8], claims: &mut Vec<Claim>) -> Option<()> {
    let address = |at: usize| -> Option<Ipv4Addr> { Some(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?.into()) };
    if packet.get(..6)? != [0, 1, 8, 0, 6, 4] || !(1..=2).contains(&word(packet, 6)?) {
        return None;
    }
    let (sender, target) = (address(14)?, address(24)?);
    claims.push(Claim::Mac(packet[8..14].try_into().ok()?));
    let said = if sender.is_unspecified() && packet[7] == 1 { target } else { sender };
    if !said.is_unspecified() {
        claims.push(Claim::Ip(said.into()));
    }
    Some(())
}

fn upper(protocol: u8, bytes: &[u8], source: Option<Ipv6Addr>, claims: &mut Vec<Claim>) -> Option<()> {
    match (protocol, source) {
        (17, _) => {
            let (from, to) = (word(bytes, 0)?, word(bytes, 2)?);
            let [server, client] = if source.is_some() { [547, 546] } else { [67, 68] };
            if from == server || to == client {
                claims.push(Claim::DhcpServer);
            }
        }
        (1, None) if *bytes.first()? == 5 => claims.push(Claim::Router),
        (58, Some(source)) => neighbour(bytes, source, claims)?,
        _ => {}
    }
    Some(())
}

fn neighbour(bytes: &[u8], source: Ipv6Addr, claims: &mut Vec<Claim>) -> Option<()> {
    let kind = *bytes.first()?;
    if kind == 134 || kind == 137 {
        claims.push(Claim::Router);
    }
    if kind == 136 || kind == 135 && source.is_unspecified() {
        let target = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?);
        claims.push(Claim::Ip(target.into()));
    }
    let mut options = bytes.get(
        match kind {
            133 => 8,
            134 => 16,
            135 | 136 => 24,
            _ => return Some(()),
        }..,
    )?;
    while let [option, words, ..] = *options
        && words > 0
    {
        let len = usize::from(words) * 8;
        if option == 1 || option == 2 {
            claims.push(Claim::Mac(options.get(2..8)?.try_into().ok()?));
        }
        options = options.get(len..)?;
    }
    Some(())
}
