//! The ports that receive a frame for all stations of a domain.

use super::attached::{Attached, Lent};
use sluicenet_node::vale::{Header, Vale};
use sluicenet_proto::overlay::fib::Station;

/// The ports of a broadcast domain, one bit each.
#[cold]
pub(super) fn members(ports: &[Option<Attached>], domain: u16) -> u64 {
    let is_member = |port: &Option<Attached>| {
        port.as_ref().is_some_and(|a| a.present && a.access.domain.is_none_or(|own| own == domain))
    };
    (0..ports.len()).filter(|&k| is_member(&ports[k])).fold(0, |members, k| members | 1 << k)
}

/// Of these ports, those at which a station may receive a flooded frame. Behind a port with addresses from the configuration
/// there are no other stations.
#[cold]
pub(super) fn audience(vale: &mut Vale<Lent>, ports: &[Option<Attached>], header: &Header, members: u64) -> u64 {
    let given = |k: usize| ports[k].as_ref().map_or(&[][..], |a| &a.given);
    let mut hears = |k: usize| {
        given(k).is_empty() || vale.may_hear(header, given(k).iter().map(|&(mac, domain)| Station::new(mac, domain)))
    };
    (0..ports.len()).filter(|&k| members >> k & 1 != 0 && hears(k)).fold(0, |all, k| all | 1 << k)
}
