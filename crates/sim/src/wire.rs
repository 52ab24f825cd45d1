//! The transmitting ends of links.

use sluicenet_node::device::{PortId, Wires};

/// The transmitting end of a link.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Wire {
    /// When the last frame and the gap after it end.
    pub free_at: u64,
    pub ps_per_byte_q16: u64,
    pub latency: u64,
    pub pause_latency: u64,
    /// Frames sent, pause frames included.
    pub frames: u64,
    /// Bytes sent, pause frames included.
    pub bytes: u64,
    pub peer: u32,
    pub peer_port: u16,
    pub shard: u16,
    /// Bytes of the gap after a frame.
    pub gap: u8,
    pub flags: u8,
}

/// An event is scheduled for the time at which the wire becomes free.
pub const ARMED: u8 = 1;
/// The receiver acts on the first bit.
pub const FIRST_BIT: u8 = 2;
/// Frames may arrive damaged.
pub const ERRORS: u8 = 4;
/// Frames are captured.
pub const CAPTURE: u8 = 8;

/// The wire is slower than usual; at its usual rate the receiver acts on the first bit.
pub const WAS_FIRST_BIT: u8 = 16;
/// The receiver is a box that nothing has reached yet.
pub const WAKES: u8 = 32;
/// The receiver is a box of another thread.
pub const REMOTE: u8 = 64;

/// The parameters of a link's end.
pub struct WireSpec {
    pub ps_per_byte_q16: u64,
    pub latency: u64,
    pub pause_latency: u64,
    pub first_bit: bool,
    pub bit_error_rate: f64,
    pub peer: u32,
    pub peer_port: u16,
    pub shard: u16,
    pub gap: u8,
    /// Whether the receiver is a box that nothing has reached yet.
    pub wakes: bool,
    /// Whether the receiver is a box of another thread.
    pub remote: bool,
}

impl Wire {
    /// No link yet.
    pub const NONE: Wire = Wire {
        free_at: 0,
        ps_per_byte_q16: 0,
        latency: 0,
        pause_latency: 0,
        frames: 0,
        bytes: 0,
        peer: 0,
        peer_port: 0,
        shard: 0,
        gap: 0,
        flags: 0,
    };

    /// Whether there is no link yet.
    pub fn is_none(&self) -> bool {
        self.ps_per_byte_q16 == 0
    }

    pub fn new(s: &WireSpec) -> Wire {
        let mut flags = 0;
        flags |= if s.first_bit { FIRST_BIT } else { 0 };
        flags |= if s.bit_error_rate > 0.0 { ERRORS } else { 0 };
        flags |= if s.wakes { WAKES } else { 0 };
        flags |= if s.remote { REMOTE } else { 0 };
        Wire {
            free_at: 0,
            ps_per_byte_q16: s.ps_per_byte_q16,
            latency: s.latency,
            pause_latency: s.pause_latency,
            frames: 0,
            bytes: 0,
            peer: s.peer,
            peer_port: s.peer_port,
            gap: s.gap,
            flags,
            shard: s.shard,
        }
    }

    /// Another rate: a lower one than its own, or its own again.
    pub fn set_rate(&mut self, ps_per_byte_q16: u64) {
        if ps_per_byte_q16 > self.ps_per_byte_q16 {
            // The receiver would send the frame on faster than it comes.
            if self.flags & FIRST_BIT != 0 {
                self.flags = self.flags & !FIRST_BIT | WAS_FIRST_BIT;
            }
        } else if self.flags & WAS_FIRST_BIT != 0 {
            self.flags = self.flags & !WAS_FIRST_BIT | FIRST_BIT;
        }
        self.ps_per_byte_q16 = ps_per_byte_q16;
    }

    /// Shard, index and port of the peer.
    pub fn peer(&self) -> (u16, u32, PortId) {
        (self.shard, self.peer, self.peer_port)
    }
}

/// The wires of a box at an instant.
pub struct PortView<'a> {
    pub wires: &'a [Wire],
    pub now: u64,
}

impl Wires for PortView<'_> {
    #[inline(always)]
    fn idle(&self, port: PortId) -> bool {
        self.wires[port as usize].free_at <= self.now
    }
}
