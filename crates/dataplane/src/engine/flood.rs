//! The ports that receive a frame for all stations of a domain.

use super::attached::{Attached, Lent};
use sluicenet_node::vale::{Header, Ports, Vale};
use sluicenet_proto::overlay::fib::Station;

/// The ports of a broadcast domain.
#[cold]
pub(super) fn members(ports: &[Option<Attached>], domain: u16) -> Ports {
    let is_member = |port: &Option<Attached>| {
        port.as_ref().is_some_and(|a| a.present && a.access.domain.is_none_or(|own| own == domain))
    };
    (0..ports.len()).filter(|&k| is_member(&ports[k])).collect()
}

/// Of these ports, those at which a station may receive a flooded frame. Behind a port with addresses from the configuration
/// there are no other stations.
#[cold]
pub(super) fn audience(vale: &mut Vale<Lent>, ports: &[Option<Attached>], header: &Header, members: &Ports) -> Ports {
    let given = |k: usize| ports[k].as_ref().map_or(&[][..], |a| &a.given);
    let mut hears = |k: usize| {
        given(k).is_empty() || vale.may_hear(header, given(k).iter().map(|&(mac, domain)| Station::new(mac, domain)))
    };
    (0..ports.len()).filter(|&k| members.contains(k) && hears(k)).collect()
}
