//! Captures of ports in the pcapng format, for Wireshark and other readers of this format.
//!
//! The format is that of the Internet-Draft "PCAP Next Generation (pcapng) Capture File Format" (draft-ietf-opsawg-pcapng).
//! Times of simulated ports are virtual and start at zero. No wall-clock time gets into the file, so the same run writes
//! the same bytes. Times of real ports count from an `epoch_s`.

use std::io::{self, Write};

pub mod frame;
#[cfg(test)]
mod tests;

/// Section Header Block.
const SECTION_HEADER: u32 = 0x0A0D_0D0A;
/// Interface Description Block.
const INTERFACE_DESCRIPTION: u32 = 0x0000_0001;
/// Interface Statistics Block.
const INTERFACE_STATISTICS: u32 = 0x0000_0005;
/// Enhanced Packet Block.
const ENHANCED_PACKET: u32 = 0x0000_0006;
/// Shows a reader the byte order; this writer always uses the little-endian one.
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
/// Time resolution as a negative power of ten: nanoseconds, the finest resolution that every reader supports. Wireshark 4.0
/// multiplies the fraction of a second by 10^9 in 64 bits: with picoseconds it shows wrong times from 18.447 ms on.
const TSRESOL_NS: u8 = 9;
/// Picoseconds, the simulator's unit, in a nanosecond.
const PS_PER_NS: u64 = 1_000;

/// Option codes: first those of every block, then those of each kind of block.
mod option {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const SHB_USERAPPL: u16 = 4;
    pub const IF_NAME: u16 = 2;
    pub const IF_SPEED: u16 = 8;
    pub const IF_TSRESOL: u16 = 9;
    pub const IF_TSOFFSET: u16 = 14;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
    pub const EPB_FLAGS: u16 = 2;
}

/// The format of an interface's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum LinkType {
    /// An Ethernet header, without the frame check sequence.
    Ethernet = 1,
    /// A PPP protocol number (RFC 1661), for wires that carry bare IP.
    Ppp = 9,
}

/// A port whose packets are captured.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// The port's name, such as "switch 12 port 3".
    pub name: &'a str,
    /// The format of the port's packets.
    pub link: LinkType,
    /// The port's speed in bits per second; 0 if it has none.
    pub speed_bps: u64,
    /// Captured bytes per packet; 0 for all of them.
    pub snaplen: u32,
    /// The origin of the packets' times, in seconds since 1970.
    pub epoch_s: u64,
}

impl<'a> Interface<'a> {
    /// A port of a simulation: all bytes, times from zero.
    pub fn simulated(name: &'a str, link: LinkType, speed_bps: u64) -> Interface<'a> {
        Interface { name, link, speed_bps, snaplen: 0, epoch_s: 0 }
    }
}

/// The number of an interface in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceId(u32);

/// The direction of a packet, as seen from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// The port received the packet.
    Inbound = 0b01,
    /// The port sent the packet.
    Outbound = 0b10,
}

/// A packet at a port.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The port.
    pub interface: InterfaceId,
    /// Time of the packet's first bit, in picoseconds since the start of the run; the file has whole nanoseconds, rounded
    /// down.
    pub time_ps: u64,
    /// The packet's direction.
    pub direction: Direction,
    /// All bytes of the packet, or the first of them.
    pub bytes: &'a [u8],
    /// Length of the packet on the wire, at least that of `bytes`.
    pub original_len: u32,
    /// A remark for the reader, such as "dropped: switch_buffer"; cut after 65,535 bytes.
    pub comment: Option<&'a str>,
}

/// Writes a capture: one section, any number of interfaces, packets in between.
///
/// Every block is written to `W` in one call; use a `BufWriter` for a file.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    out: W,
    interfaces: u32,
    /// The block under construction, kept for its memory.
    block: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Starts a capture file.
    pub fn new(out: W) -> io::Result<PcapngWriter<W>> {
        let mut writer = PcapngWriter { out, interfaces: 0, block: Vec::new() };
        writer.begin(SECTION_HEADER);
        writer.put(&BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0, and a section of unknown length.
        writer.put(&1u16.to_le_bytes());
        writer.put(&0u16.to_le_bytes());
        writer.put(&u64::MAX.to_le_bytes());
        writer.option(option::SHB_USERAPPL, b"sluicenet");
        writer.option(option::END, b"");
        writer.end()?;
        Ok(writer)
    }

    /// Declares a port; its packets follow later.
    pub fn interface(&mut self, interface: &Interface<'_>) -> io::Result<InterfaceId> {
        self.begin(INTERFACE_DESCRIPTION);
        self.put(&(interface.link as u16).to_le_bytes());
        // Reserved, and the snapshot length, where 0 means "no limit".
        self.put(&[0; 2]);
        self.put(&interface.snaplen.to_le_bytes());
        self.option(option::IF_NAME, up_to_u16(interface.name));
        if interface.speed_bps > 0 {
            self.option(option::IF_SPEED, &interface.speed_bps.to_le_bytes());
        }
        self.option(option::IF_TSRESOL, &[TSRESOL_NS]);
        if interface.epoch_s > 0 {
            self.option(option::IF_TSOFFSET, &interface.epoch_s.to_le_bytes());
        }
        self.option(option::END, b"");
        self.end()?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Writes a packet. Packets of one interface may come in any order of time.
    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        assert!(packet.interface.0 < self.interfaces, "an interface of this file");
        assert!(packet.bytes.len() <= packet.original_len as usize, "no more bytes captured than there were");
        self.begin(ENHANCED_PACKET);
        self.put(&packet.interface.0.to_le_bytes());
        let time_ns = packet.time_ps / PS_PER_NS;
        self.put(&((time_ns >> 32) as u32).to_le_bytes());
        self.put(&(time_ns as u32).to_le_bytes());
        self.put(&(packet.bytes.len() as u32).to_le_bytes());
        self.put(&packet.original_len.to_le_bytes());
        self.put(packet.bytes);
        self.pad();
        if let Some(comment) = packet.comment {
            self.option(option::COMMENT, up_to_u16(comment));
        }
        self.option(option::EPB_FLAGS, &(packet.direction as u32).to_le_bytes());
        self.option(option::END, b"");
        self.end()
    }

    /// Writes how many packets passed an interface until `time_ps`, and how many of them are missing in the file.
    pub fn statistics(&mut self, interface: InterfaceId, time_ps: u64, passed: u64, lost: u64) -> io::Result<()> {
        assert!(interface.0 < self.interfaces, "an interface of this file");
        let time_ns = time_ps / PS_PER_NS;
        self.begin(INTERFACE_STATISTICS);
        self.put(&interface.0.to_le_bytes());
        self.put(&((time_ns >> 32) as u32).to_le_bytes());
        self.put(&(time_ns as u32).to_le_bytes());
        self.option(option::ISB_IFRECV, &passed.to_le_bytes());
        self.option(option::ISB_IFDROP, &lost.to_le_bytes());
        self.option(option::END, b"");
        self.end()
    }

    /// Hands everything written so far to the operating system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Flushes, and returns the underlying writer.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.put(&block_type.to_le_bytes());
        // The length, filled in at the end.
        self.put(&[0; 4]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    /// A block's length stands at both of its ends.
    fn end(&mut self) -> io::Result<()> {
        let len = (self.block.len() as u32 + 4).to_le_bytes();
        self.block[4..8].copy_from_slice(&len);
        self.put(&len);
        self.out.write_all(&self.block)
    }
}

/// The longest prefix of `text` that an option can hold.
fn up_to_u16(text: &str) -> &[u8] {
    let mut end = text.len().min(u16::MAX as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}
