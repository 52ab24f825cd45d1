//! Reports about ports, and the restrictions of ports.

use sluicenet_node::vale::{Counters, Ports};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::guard::Guard;
use sluicenet_proto::units::Rate;
use std::io;
use std::sync::Arc;

/// The permissions of the endpoint at a port, and its broadcast domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The broadcast domain of all its frames, which then carry no VLAN of their own; without it, the VLAN of each frame.
    pub domain: Option<u16>,
    /// The traffic class of all its frames; without it, the priority in each frame's 802.1Q tag.
    pub priority: Option<Priority>,
    /// The addresses from which it may send, and the services that it may offer; without it, all.
    pub guard: Option<Arc<Guard>>,
}

/// The state and the counters of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Whether the port is in service. A removed port stays until its last frame is delivered.
    pub present: bool,
    /// Frames by fate, with those that the port itself dropped.
    pub counters: Counters,
    /// Bytes of the frames it sent, each counted once.
    pub bytes_from: u64,
    /// Bytes of the frames that it received.
    pub bytes_to: u64,
    /// The port's own counters, by name.
    pub own: Vec<(&'static str, u64)>,
    /// Whether it has frames and has accepted none for the detection time.
    pub stuck: bool,
    /// Whether the watchdog has isolated it.
    pub isolated: bool,
    /// The limit of the rate at which it receives frames, if there is one.
    pub rate: Option<Rate>,
    /// The limit of the rate at which it sends frames, if there is one.
    pub send_rate: Option<Rate>,
    /// Frames that wait at its output, by class.
    pub output: [u32; 8],
    /// Frames that were delivered to the port and wait inside it for its other side.
    pub inside: u32,
    /// Frames that wait at its input for an output that is full, by class.
    pub input: [u32; 8],
    /// The port's frames in the switch.
    pub lent: u32,
    /// The ports whose full outputs its frames wait for.
    pub waits_for: Ports,
}

/// A rare event that may need attention at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The port's name.
    pub port: String,
    /// The kind of the event.
    pub what: Happened,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The port is no longer served, for this reason.
    Broken(&'static str),
    /// It has frames and has accepted none for the detection time.
    Stuck,
    /// It accepts frames again, and was not isolated.
    Moves,
    /// The watchdog has isolated it.
    Isolated,
    /// The watchdog has restored it.
    Restored,
    /// The agent in the guest has become silent, and no longer limits the port.
    AgentLost,
}

/// Why a port could not be put into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugError {
    /// The port is not vacant.
    Occupied(usize),
    /// The switch has no port of this number.
    NoSuchPort(usize),
}

impl std::fmt::Display for PlugError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlugError::Occupied(k) => write!(f, "port {k} is not vacant"),
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
