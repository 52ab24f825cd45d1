//! RoCEv2: packets of InfiniBand's reliable connection in UDP datagrams (InfiniBand specification, volume 1, annex A17).
//!
//! ```text
//! UDP to port 4791
//!  0  opcode                                                    1   base transport header, BTH (9.2)
//!  1  solicited event 1 bit, migrated 1, pad count 2, version 4
//!  2  partition key                                             2
//!  4  reserved                                                  1
//!  5  destination queue pair                                    3
//!  8  1 bit: acknowledgment requested; reserved                 1
//!  9  packet sequence number, PSN                               3
//!
//!  0  virtual address                                           8   RETH (9.3.3), first packet of a write
//!  8  remote key                                                4
//! 12  length of the message                                     4
//!
//!  0  syndrome                                                  1   AETH (9.3.5), acknowledgments
//!  1  message sequence number, MSN                              3
//!
//!  0  reserved                                                 16   congestion notification packet, CNP (annex A17)
//!
//! payload, padded to a multiple of four; invariant CRC           4
//! ```
//!
//! Numbers are big-endian, except the CRC. Of all operations this module knows RDMA WRITE, its acknowledgments and CNPs.

use crate::{Error, ipv4, udp};
use crc::{CRC_32_ISO_HDLC, Crc, Table};

/// Destination port of the UDP datagrams.
pub const UDP_PORT: u16 = 4791;
/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;
/// Bytes of the extended header of the first packet of a write.
pub const RETH_LEN: usize = 16;
/// Bytes of the extended header of an acknowledgment.
pub const AETH_LEN: usize = 4;
/// Reserved bytes of a congestion notification packet.
pub const CNP_LEN: usize = 16;
/// Bytes of the invariant CRC behind the payload.
pub const ICRC_LEN: usize = 4;
/// Bits of packet sequence numbers, message sequence numbers and the numbers of queue pairs.
pub const NUMBER_BITS: u32 = 24;

const NUMBER_MAX: u32 = (1 << NUMBER_BITS) - 1;
/// The default partition, with full membership.
const PARTITION_KEY: u16 = 0xFFFF;
const MIGRATED: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
/// The credit count of a responder that grants no credits.
const NO_CREDITS: u8 = 31;
/// Negative acknowledgment: PSN sequence error.
const SEQUENCE_ERROR: u8 = 0x60;

static ICRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

/// The operation of a packet: those of the reliable connection service, and CNPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// First of several packets of a write.
    WriteFirst = 0x06,
    /// Neither the first nor the last packet of a write.
    WriteMiddle = 0x07,
    /// Last of several packets of a write.
    WriteLast = 0x08,
    /// The only packet of a write.
    #[default]
    WriteOnly = 0x0A,
    /// An acknowledgment, positive or negative.
    Acknowledge = 0x11,
    /// A congestion notification packet.
    Notification = 0x81,
}

impl Opcode {
    /// The opcode of a packet of a write.
    pub const fn of_write(is_first: bool, is_last: bool) -> Opcode {
        match (is_first, is_last) {
            (true, true) => Opcode::WriteOnly,
            (true, false) => Opcode::WriteFirst,
            (false, true) => Opcode::WriteLast,
            (false, false) => Opcode::WriteMiddle,
        }
    }

    /// The opcode with this number.
    pub const fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0x06 => Opcode::WriteFirst,
            0x07 => Opcode::WriteMiddle,
            0x08 => Opcode::WriteLast,
            0x0A => Opcode::WriteOnly,
            0x11 => Opcode::Acknowledge,
            0x81 => Opcode::Notification,
            _ => return None,
        })
    }

    /// Whether the packet is the first of its write.
    pub const fn is_first(self) -> bool {
        matches!(self, Opcode::WriteFirst | Opcode::WriteOnly)
    }

    /// Whether the packet is the last of its write.
    pub const fn is_last(self) -> bool {
        matches!(self, Opcode::WriteLast | Opcode::WriteOnly)
    }

    /// Bytes of the headers behind the UDP header.
    pub const fn header_len(self) -> usize {
        BTH_LEN
            + match self {
                Opcode::WriteFirst | Opcode::WriteOnly => RETH_LEN,
                Opcode::WriteMiddle | Opcode::WriteLast => 0,
                Opcode::Acknowledge => AETH_LEN,
                Opcode::Notification => CNP_LEN,
            }
    }
}

/// Bytes that pad a payload to a multiple of four.
pub const fn padding(payload: usize) -> usize {
    payload.wrapping_neg() & 3
}

/// The extended header of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// None: a later packet of a write.
    None,
    /// RETH, of the first packet of a write.
    Write {
        /// The address at the responder.
        address: u64,
        /// The key of the responder's memory.
        key: u32,
        /// Bytes of the message.
        length: u32,
    },
    /// AETH, of an acknowledgment.
    Acknowledge {
        /// Whether it is a negative acknowledgment: the PSN is the one that the responder expects.
        is_sequence_error: bool,
        /// Messages that the responder has completed, modulo 2^24.
        msn: u32,
    },
    /// The reserved bytes of a CNP.
    Notification,
}

/// A packet behind its UDP header, without payload and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The operation.
    pub opcode: Opcode,
    /// The number of the receiving queue pair, 24 bits.
    pub destination: u32,
    /// Whether the requester asks for an acknowledgment.
    pub ack_request: bool,
    /// The packet sequence number, 24 bits.
    pub psn: u32,
    /// The extended header. It must be that of the opcode.
    pub extension: Extension,
}

impl Repr {
    /// Reads the payload of a UDP datagram to [`UDP_PORT`]; returns the payload of the packet. The CRC is not checked: it
    /// covers headers in front of these bytes ([`icrc`]).
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Length`] if a CNP or an acknowledgment has a payload, [`Error::Unsupported`] for other
    /// operations, versions and syndromes.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (fields, rest) = bytes.split_first_chunk::<BTH_LEN>().ok_or(Error::Truncated)?;
        if fields[1] & 0x0F != 0 {
            return Err(Error::Unsupported);
        }
        let opcode = Opcode::from_bits(fields[0]).ok_or(Error::Unsupported)?;
        let pad = usize::from(fields[1] >> 4 & 3);
        let headers = rest.get(..opcode.header_len() - BTH_LEN).ok_or(Error::Truncated)?;
        let behind = &rest[headers.len()..];
        let len = behind.len().checked_sub(ICRC_LEN + pad).ok_or(Error::Truncated)?;
        let extension = extension(opcode, headers)?;
        let has_payload = !matches!(opcode, Opcode::Acknowledge | Opcode::Notification);
        if !has_payload && behind.len() != ICRC_LEN || (len + pad) % 4 != 0 {
            return Err(Error::Length);
        }
        let repr = Repr {
            opcode,
            destination: number(&fields[5..8]),
            ack_request: fields[8] & ACK_REQUEST != 0,
            psn: number(&fields[9..12]),
            extension,
        };
        Ok((repr, &behind[..len]))
    }

    /// Bytes behind the UDP header, with padding and CRC, for a payload of `payload` bytes.
    pub const fn len(&self, payload: usize) -> usize {
        self.opcode.header_len() + payload + padding(payload) + ICRC_LEN
    }

    /// Writes the headers in front of a payload of `payload` bytes. `bytes` has [`Repr::len`] bytes; the CRC is left out.
    /// Panics if `bytes` is shorter than the headers, a number has more than 24 bits or the extension is not the opcode's.
    pub fn emit(&self, bytes: &mut [u8], payload: usize) {
        assert!(self.destination <= NUMBER_MAX && self.psn <= NUMBER_MAX, "numbers have 24 bits");
        bytes[0] = self.opcode as u8;
        bytes[1] = MIGRATED | (padding(payload) as u8) << 4;
        bytes[2..4].copy_from_slice(&PARTITION_KEY.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.destination.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.psn.to_be_bytes());
        bytes[8] = if self.ack_request { ACK_REQUEST } else { 0 };
        let rest = &mut bytes[BTH_LEN..self.opcode.header_len()];
        match self.extension {
            Extension::None => {}
            Extension::Write { address, key, length } => {
                rest[0..8].copy_from_slice(&address.to_be_bytes());
                rest[8..12].copy_from_slice(&key.to_be_bytes());
                rest[12..16].copy_from_slice(&length.to_be_bytes());
            }
            Extension::Acknowledge { is_sequence_error, msn } => {
                assert!(msn <= NUMBER_MAX, "numbers have 24 bits");
                rest[0..4].copy_from_slice(&msn.to_be_bytes());
                rest[0] = if is_sequence_error { SEQUENCE_ERROR } else { NO_CREDITS };
            }
            Extension::Notification => rest.fill(0),
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

fn extension(opcode: Opcode, bytes: &[u8]) -> Result<Extension, Error> {
    Ok(match opcode {
        Opcode::WriteMiddle | Opcode::WriteLast => Extension::None,
        Opcode::Notification => Extension::Notification,
        Opcode::WriteFirst | Opcode::WriteOnly => Extension::Write {
            address: u64::from(number(&bytes[..4])) << 32 | u64::from(number(&bytes[4..8])),
            key: number(&bytes[8..12]),
            length: number(&bytes[12..16]),
        },
        Opcode::Acknowledge => {
            let is_sequence_error = match bytes[0] {
                SEQUENCE_ERROR => true,
                // Any number of credits.
                0..=NO_CREDITS => false,
                _ => return Err(Error::Unsupported),
            };
            Extension::Acknowledge { is_sequence_error, msn: number(&bytes[1..4]) }
        }
    })
}

/// The invariant CRC of an IPv4 packet without options, whose last four bytes are the place of the CRC (annex A17).
/// `None` if the packet is too short.
///
/// It covers 64 bits of ones in place of a local routing header, then the packet. Fields that routers or adapters may change
/// count as ones: traffic class, time to live, both checksums, and the reserved byte of the BTH.
pub fn icrc(packet: &[u8]) -> Option<u32> {
    const HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN + BTH_LEN;
    const VARIANT: [usize; 7] = [1, 8, 10, 11, ipv4::HEADER_LEN + 6, ipv4::HEADER_LEN + 7, 32];
    let (headers, rest) = packet.split_first_chunk::<HEADERS>()?;
    let payload = &rest[..rest.len().checked_sub(ICRC_LEN)?];
    let mut headers = *headers;
    VARIANT.iter().for_each(|&at| headers[at] = 0xFF);
    let mut digest = ICRC.digest();
    digest.update(&[0xFF; 8]);
    digest.update(&headers);
    digest.update(payload);
    Some(digest.finalize())
}

/// Writes the invariant CRC into the last four bytes of an IPv4 packet; it is the only field in little-endian order. Panics if
/// the packet is too short.
pub fn emit_icrc(packet: &mut [u8]) {
    let crc = icrc(packet).expect("a packet with all its headers");
    let at = packet.len() - ICRC_LEN;
    packet[at..].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{self, Random};
    use std::vec::Vec;

    const OPCODES: [Opcode; 6] = [
        Opcode::WriteFirst,
        Opcode::WriteMiddle,
        Opcode::WriteLast,
        Opcode::WriteOnly,
        Opcode::Acknowledge,
        Opcode::Notification,
    ];

    fn any(random: &mut Random) -> (Repr, Vec<u8>) {
        let opcode = OPCODES[random.below(6) as usize];
        let extension = match opcode {
            Opcode::WriteFirst | Opcode::WriteOnly => {
                Extension::Write { address: random.u64(), key: random.u64() as u32, length: random.u64() as u32 }
            }
            Opcode::WriteMiddle | Opcode::WriteLast => Extension::None,
            Opcode::Acknowledge => {
                Extension::Acknowledge { is_sequence_error: random.bool(), msn: random.below(1 << 24) as u32 }
            }
            Opcode::Notification => Extension::Notification,
        };
        let repr = Repr {
            opcode,
            destination: random.below(1 << 24) as u32,
            ack_request: random.bool(),
            psn: random.below(1 << 24) as u32,
            extension,
        };
        let payload = if opcode as u8 > 0x0A { 0 } else { random.below(40) as usize };
        (repr, random.bytes(payload))
    }

    fn emitted((repr, payload): &(Repr, Vec<u8>)) -> Vec<u8> {
        let mut bytes = std::vec![0xEE; repr.len(payload.len())];
        let at = repr.opcode.header_len();
        bytes[at..at + payload.len()].copy_from_slice(payload);
        repr.emit(&mut bytes, payload.len());
        bytes
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let packet = any(random);
            assert_eq!(Repr::parse(&emitted(&packet)), Ok((packet.0, &packet.1[..])));
        });
        random::never_panics(|random| emitted(&any(random)), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn bytes_stand_where_the_specification_has_them() {
        let write = Extension::Write { address: 0x0102_0304_0506_0708, key: 0x090A_0B0C, length: 5 };
        let repr = Repr {
            opcode: Opcode::WriteOnly,
            destination: 0x12_3456,
            ack_request: true,
            psn: 0xAB_CDEF,
            extension: write,
        };
        let bth = [0x0A, 0x70, 0xFF, 0xFF, 0, 0x12, 0x34, 0x56, 0x80, 0xAB, 0xCD, 0xEF];
        let reth = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 5];
        let emitted = emitted(&(repr, b"hello".to_vec()));
        assert_eq!(emitted[..28], [&bth[..], &reth].concat());
        assert_eq!(emitted.len(), 28 + 5 + 3 + ICRC_LEN, "three bytes of padding");
    }

    #[test]
    fn bytes_of_acknowledgments_and_notifications() {
        let reply = |is_sequence_error| Repr {
            opcode: Opcode::Acknowledge,
            destination: 7,
            ack_request: false,
            psn: 9,
            extension: Extension::Acknowledge { is_sequence_error, msn: 3 },
        };
        let bth = [0x11, 0x40, 0xFF, 0xFF, 0, 0, 0, 7, 0, 0, 0, 9];
        for (is_sequence_error, syndrome) in [(false, 0x1F), (true, 0x60)] {
            let bytes = emitted(&(reply(is_sequence_error), Vec::new()));
            assert_eq!((&bytes[..12], &bytes[12..16], bytes.len()), (&bth[..], &[syndrome, 0, 0, 3][..], 20));
        }
        let cnp = Repr { opcode: Opcode::Notification, extension: Extension::Notification, ..reply(false) };
        let bytes = emitted(&(cnp, Vec::new()));
        assert_eq!((bytes[0], &bytes[12..28], bytes.len()), (0x81, &[0; 16][..], 32));
    }

    #[test]
    fn lying_packets_are_errors() {
        let valid = |opcode: Opcode| {
            let extension = match opcode {
                Opcode::Acknowledge => Extension::Acknowledge { is_sequence_error: false, msn: 0 },
                Opcode::Notification => Extension::Notification,
                _ => Extension::None,
            };
            emitted(&(Repr { opcode, destination: 1, ack_request: false, psn: 1, extension }, Vec::new()))
        };
        let changed = |opcode, at: usize, to: u8| {
            let mut bytes = valid(opcode);
            bytes[at] = to;
            Repr::parse(&bytes).map(|(_, payload)| payload.len())
        };
        assert_eq!(changed(Opcode::WriteMiddle, 1, 0x41), Err(Error::Unsupported), "another version");
        assert_eq!(changed(Opcode::WriteMiddle, 0, 0x04), Err(Error::Unsupported), "SEND");
        assert_eq!(changed(Opcode::WriteMiddle, 1, 0x70), Err(Error::Truncated), "padding without bytes");
        assert_eq!(changed(Opcode::Acknowledge, 12, 0x20), Err(Error::Unsupported), "receiver not ready");
        let longer = [valid(Opcode::Notification), std::vec![0; 4]].concat();
        assert_eq!(Repr::parse(&longer), Err(Error::Length));
        assert_eq!(Repr::parse(&valid(Opcode::Acknowledge)[..19]), Err(Error::Truncated));
    }

    #[test]
    fn the_invariant_crc_ignores_what_routers_change() {
        let mut random = Random::new(1);
        let mut packet = random.bytes(100);
        emit_icrc(&mut packet);
        let crc = icrc(&packet);
        for at in 0..96 {
            let mut other = packet.clone();
            other[at] ^= 0x10;
            let is_variant = [1, 8, 10, 11, 26, 27, 32].contains(&at);
            assert_eq!(icrc(&other) == crc, is_variant, "byte {at}");
        }
        assert_eq!(icrc(&packet[..43]), None);
    }
}
