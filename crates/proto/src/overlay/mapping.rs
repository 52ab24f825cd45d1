//! The location of a station, as the controller reports it.

use core::net::{IpAddr, Ipv4Addr};
use sluicenet_wire::controller::{Kind, Repr, Status};
use sluicenet_wire::ethernet::MacAddress;

/// A server's question to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The tenant's network.
    pub vni: u32,
    /// The station, by one of its addresses.
    pub by: By,
}

/// How a station is named in a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// By its MAC address.
    Mac(MacAddress),
    /// By one of its IP addresses.
    Ip(IpAddr),
}

/// A station of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StationId {
    /// The tenant's network.
    pub vni: u32,
    /// Its MAC address.
    pub mac: MacAddress,
}

/// The location of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The station.
    pub station: StationId,
    /// The address by which it was asked for, or its IPv4 address; 0.0.0.0 when it has none.
    pub ip: IpAddr,
    /// The station's server; 0.0.0.0 if it has no location.
    pub location: Ipv4Addr,
    /// The start of the controller that created the mapping.
    pub epoch: u32,
    /// The number of this change among all changes of mappings; higher numbers are newer.
    pub version: u64,
}

impl Mapping {
    /// The mapping in a message.
    pub(super) fn of(message: &Repr) -> Mapping {
        Mapping {
            station: StationId { vni: message.vni, mac: message.mac },
            ip: message.ip,
            location: message.location,
            epoch: message.epoch,
            version: message.version,
        }
    }

    /// A message with this mapping.
    pub(super) fn message(&self, kind: Kind, server: Ipv4Addr, request: u64) -> Repr {
        Repr {
            kind,
            status: Status::Done,
            mac: self.station.mac,
            ip: self.ip,
            server,
            location: self.location,
            epoch: self.epoch,
            vni: self.station.vni,
            version: self.version,
            request,
        }
    }
}
