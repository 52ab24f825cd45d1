//! Priority-based flow control frames (IEEE 802.1Qbb; 802.3 Annex 31D).

use crate::Error;
use crate::ethernet::{self, EtherType, MIN_LEN, MacAddress};

/// Destination of MAC Control frames: the neighbour only (802.3, 31B.1).
pub const DESTINATION: MacAddress = MacAddress([0x01, 0x80, 0xC2, 0x00, 0x00, 0x01]);
/// Opcode of PFC (802.3, 31A); PAUSE of the whole link has 0x0001.
pub const OPCODE: u16 = 0x0101;
/// Bytes of a frame without its check sequence: it is always of the smallest size.
pub const LEN: usize = MIN_LEN;
/// Bits that a unit of pause time lasts at the speed of the link (802.3, 31B.2).
pub const QUANTUM_BITS: u64 = 512;
/// Number of priorities that can be paused.
pub const CLASSES: usize = 8;

/// Bytes up to the padding: header, opcode, class-enable vector, a time for each class.
const FIELDS_LEN: usize = ethernet::HEADER_LEN + 2 + 2 + 2 * CLASSES;

/// A PFC frame, from its destination to its padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The sending port.
    pub source: MacAddress,
    /// Bit n is set if the frame gives a time for priority n.
    pub class_enable: u8,
    /// Pause of each priority in units of [`QUANTUM_BITS`]; 0 ends the pause.
    pub quanta: [u16; CLASSES],
}

impl Repr {
    /// The pause of a priority in quanta; `None` if the frame gives none.
    pub fn quanta_of(&self, priority: u8) -> Option<u16> {
        let quanta = *self.quanta.get(priority as usize)?;
        (self.class_enable >> priority & 1 == 1).then_some(quanta)
    }

    /// Reads a whole frame without its check sequence.
    ///
    /// Another destination, type or opcode is [`Error::Unsupported`]; the reserved half of the class-enable vector and
    /// the padding are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Repr, Error> {
        let (fields, _padding) = bytes.split_first_chunk::<FIELDS_LEN>().ok_or(Error::Truncated)?;
        let (header, control) = ethernet::Repr::parse(fields)?;
        let is_control = header.destination == DESTINATION && header.ethertype == EtherType::MAC_CONTROL;
        let (&[o0, o1, _reserved, class_enable], times) = control.split_first_chunk::<4>().ok_or(Error::Truncated)?;
        if !is_control || u16::from_be_bytes([o0, o1]) != OPCODE {
            return Err(Error::Unsupported);
        }
        let mut quanta = [0; CLASSES];
        for (time, bytes) in quanta.iter_mut().zip(times.chunks_exact(2)) {
            *time = u16::from_be_bytes([bytes[0], bytes[1]]);
        }
        Ok(Repr { source: header.source, class_enable, quanta })
    }

    /// The whole frame without its check sequence.
    pub fn emit(&self) -> [u8; LEN] {
        let mut frame = [0; LEN];
        let header =
            ethernet::Repr { destination: DESTINATION, source: self.source, ethertype: EtherType::MAC_CONTROL };
        header.emit(&mut frame);
        frame[14..16].copy_from_slice(&OPCODE.to_be_bytes());
        frame[17] = self.class_enable;
        for (bytes, time) in frame[18..FIELDS_LEN].chunks_exact_mut(2).zip(self.quanta) {
            bytes.copy_from_slice(&time.to_be_bytes());
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn any(random: &mut random::Random) -> Repr {
        Repr {
            source: MacAddress(random.array()),
            class_enable: random.u64() as u8,
            quanta: core::array::from_fn(|_| random.u64() as u16),
        }
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let repr = any(random);
            assert_eq!(Repr::parse(&repr.emit()), Ok(repr));
        });
        random::never_panics(|random| any(random).emit().to_vec(), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn bytes_of_an_xoff_for_priority_three() {
        let mut quanta = [0; CLASSES];
        quanta[3] = 0xFFFF;
        let repr = Repr { source: MacAddress::local(1), class_enable: 1 << 3, quanta };
        let mut expected = [0; LEN];
        expected[..14].copy_from_slice(&[0x01, 0x80, 0xC2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0x08]);
        expected[14..18].copy_from_slice(&[0x01, 0x01, 0x00, 0x08]);
        expected[24..26].copy_from_slice(&[0xFF, 0xFF]);
        assert_eq!(repr.emit(), expected);
        assert_eq!((repr.quanta_of(3), repr.quanta_of(2), repr.quanta_of(9)), (Some(0xFFFF), None, None));
    }

    #[test]
    fn other_mac_control_frames_are_not_pfc() {
        let frame = Repr::default().emit();
        for (at, value) in [(5, 0x0E), (13, 0x00), (14, 0x00), (15, 0x02)] {
            let mut other = frame;
            other[at] = value;
            assert_eq!(Repr::parse(&other), Err(Error::Unsupported), "byte {at}");
        }
        assert_eq!(Repr::parse(&frame[..FIELDS_LEN - 1]), Err(Error::Truncated));
    }
}
