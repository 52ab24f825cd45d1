//! Policies that use digits of the hosts' numbers.

use super::{Choose, Fields, Key, Ports};

/// By digits of the destination (Crisan 2014, 2.3.2).
pub struct DModK;

impl Choose for DModK {
    const KEY: Key = Key::Destination;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.digit(frame.destination())
    }
}

/// By digits of the source (Crisan 2014, 2.3.2).
pub struct SModK;

impl Choose for SModK {
    const KEY: Key = Key::Ends;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.digit(frame.source())
    }
}

/// The two-level tables of a fat-tree: host index under its edge switch plus own position (Al-Fares 2012, 3.1).
pub struct TwoLevel;

impl Choose for TwoLevel {
    const KEY: Key = Key::Destination;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.index(frame.destination())
    }
}
