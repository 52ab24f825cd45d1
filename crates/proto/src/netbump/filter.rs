//! Chosen packets: an application can be restricted to them (Al-Fares 2012, 5.1.1).

use super::Fields;
use core::ops::RangeInclusive;

/// The packets that an application acts on. A field that is not given matches every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The senders.
    pub source: Option<RangeInclusive<u64>>,
    /// The receivers.
    pub destination: Option<RangeInclusive<u64>>,
    /// The senders' ports.
    pub source_port: Option<RangeInclusive<u16>>,
    /// The receivers' ports.
    pub destination_port: Option<RangeInclusive<u16>>,
    /// IP's protocol number.
    pub protocol: Option<u8>,
    /// The 802.1Q priorities, one bit each.
    pub priorities: Option<u8>,
}

impl Filter {
    /// Whether it chooses every packet.
    pub fn is_all(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether it chooses a packet with these fields.
    pub fn matches(&self, fields: &Fields) -> bool {
        fn has<T: PartialOrd>(range: &Option<RangeInclusive<T>>, value: &T) -> bool {
            range.as_ref().is_none_or(|range| range.contains(value))
        }
        has(&self.source, &fields.source)
            && has(&self.destination, &fields.destination)
            && has(&self.source_port, &fields.source_port)
            && has(&self.destination_port, &fields.destination_port)
            && self.protocol.is_none_or(|protocol| protocol == fields.protocol)
            && self.priorities.is_none_or(|priorities| priorities >> (fields.priority & 7) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields =
        Fields { source: 7, destination: 9, source_port: 4_000, destination_port: 80, protocol: 6, priority: 3 };

    #[test]
    fn each_field_that_is_given_must_match() {
        assert!(Filter::default().is_all() && Filter::default().matches(&FIELDS));
        let all = Filter {
            source: Some(0..=7),
            destination: Some(9..=9),
            source_port: Some(1..=65_535),
            destination_port: Some(80..=81),
            protocol: Some(6),
            priorities: Some(1 << 3),
        };
        assert!(all.matches(&FIELDS) && !all.is_all());
        let others = [
            Fields { source: 8, ..FIELDS },
            Fields { destination: 8, ..FIELDS },
            Fields { source_port: 0, ..FIELDS },
            Fields { destination_port: 82, ..FIELDS },
            Fields { protocol: 17, ..FIELDS },
            Fields { priority: 2, ..FIELDS },
        ];
        assert!(others.iter().all(|fields| !all.matches(fields)));
    }
}
