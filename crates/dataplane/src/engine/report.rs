//! What the switch says about its ports, and what is said to it about them.

use sluicenet_node::vale::Counters;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::units::Rate;
use std::io;
use std::net::Ipv4Addr;

/// What the machine at a port may send and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The broadcast domain of all its frames, which then carry no VLAN of their own; without it, the VLAN of each frame.
    pub domain: Option<u16>,
    /// The traffic class of all its frames; without it, what the frame's own 802.1Q tag says.
    pub priority: Option<Priority>,
    /// The only IPv4 address it may send from.
    pub address: Option<Ipv4Addr>,
}

/// What happened at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Whether it is still there: one that left stays until its last frame is delivered.
    pub present: bool,
    /// Frames by fate; what the port itself dropped among them.
    pub counters: Counters,
    /// Bytes of the frames it sent, each counted once.
    pub bytes_from: u64,
    /// Bytes of the frames it got.
    pub bytes_to: u64,
    /// What the port itself counted, by name.
    pub own: Vec<(&'static str, u64)>,
    /// Whether the watchdog keeps everything from it.
    pub isolated: bool,
    /// How fast it takes frames, where that is bounded.
    pub rate: Option<Rate>,
    /// Frames that wait at its output, by class.
    pub output: [u32; 8],
    /// Frames that were handed to it and wait inside it for its other side.
    pub inside: u32,
    /// Frames that wait at its input for an output that is full, by class.
    pub input: [u32; 8],
    /// Frames of it that the switch holds.
    pub lent: u32,
    /// The ports whose full outputs its frames wait for, one bit each.
    pub waits_for: u64,
}

/// Something that happens seldom, and that somebody may want to know at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The port's name.
    pub port: String,
    /// What happened there.
    pub what: Happened,
}

/// What happened at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It is no longer served, for this reason.
    Broken(&'static str),
    /// The watchdog keeps everything from it.
    Isolated,
    /// It no longer does.
    Restored,
    /// The agent in the guest is not heard of any more: the port is no longer limited by it.
    AgentLost,
}

/// Why a port could not be taken into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugError {
    /// Somebody is there.
    Occupied(usize),
    /// There are not so many.
    NoSuchPort(usize),
}

impl std::fmt::Display for PlugError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlugError::Occupied(k) => write!(f, "somebody is at port {k}"),
            PlugError::NoSuchPort(k) => write!(f, "the switch has no port {k}"),
        }
    }
}
impl std::error::Error for PlugError {}
impl From<PlugError> for io::Error {
    fn from(e: PlugError) -> io::Error {
        io::Error::new(io::ErrorKind::AlreadyExists, e)
    }
}
