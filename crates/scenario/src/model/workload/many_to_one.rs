//! Many to one: at once, or at a load that changes.

use super::{DSCP_MAX, Hosts, PRIORITY, Transport, World};
use crate::error::Result;
use crate::files::Files;
use crate::setting::{Kind, Section};
use crate::units::{Bytes, POSITIVE_SIZE, POSITIVE_TIME};
use crate::{HOST_MAX, choices, settings};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// Rounds: as many as 56 bits of a message's name leave room for.
const ROUNDS_MAX: u64 = 1 << 40;
/// The load of a source of a hotspot in all: a connection can count it, with room to spare.
const OFFERED_BYTES_MAX: u64 = 1 << 48;

choices! {
    /// Whether messages share connections.
    pub enum Connections {
        /// Opened before the clock starts and kept.
        Persistent = "persistent",
        /// A new one for every query (or round).
        New = "new",
    }
}

settings! {
    /// many to one
    pub model struct Incast in kind "incast" (s, world: &World<'_>, _files: &mut Files) {
        /// a count (the first hosts but the receiver) or a list
        senders: Hosts as (Kind::Hosts) =
            Hosts::read(s, "senders", &world.counts)?.ok_or_else(|| s.missing("senders"))?,
        /// the receiving host
        receiver: u32 [0..=HOST_MAX],
        /// bytes from each sender in a round
        bytes: Bytes [POSITIVE_SIZE],
        /// number of rounds; default 1
        rounds: u64 [1..=ROUNDS_MAX] = 1,
        /// time from the end of a round to the start of the next; default 0
        gap: Duration = Duration::ZERO,
        /// when the first flow starts; default 0
        start: Duration = Duration::ZERO,
        /// whether rounds share connections; default persistent
        connections: Connections = Connections::Persistent,
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl Incast {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        world.check_host(s, "receiver", self.receiver, self.priority)?;
        world.check_senders(s, ("senders", &self.senders), self.receiver, self.priority)?;
        world.check_transport(s, self.transport, 1 << self.priority)
    }
}

settings! {
    /// a stretch of a hotspot
    #[derive(Copy)]
    pub model struct Phase in "phases" (s) {
        /// when it ends
        until: Duration [POSITIVE_TIME],
        /// load of each source in this phase; 0 for none
        rate: Rate,
    }
}

settings! {
    /// many to one, at a load that changes over time
    pub model struct Hotspot in kind "hotspot" (s, world: &World<'_>, _files: &mut Files) {
        /// a count (the first hosts but the destination) or a list
        sources: Hosts as (Kind::Hosts) =
            Hosts::read(s, "sources", &world.counts)?.ok_or_else(|| s.missing("sources"))?,
        /// the receiving host
        destination: u32 [0..=HOST_MAX],
        /// bytes that an application writes at a time; default 10 KB
        message: Bytes [POSITIVE_SIZE] = Bytes(10_000),
        /// the load over time: [{ until = "100 ms", rate = "1 Gb/s" }, ...]
        phases: Vec<Phase> as (Kind::Tables(&[Phase::SPEC])) = phases(s)?,
        /// the transport of the flows; default tcp
        transport: Transport = Transport::Tcp,
        /// the frames' priority, 0 to 7; default 0
        priority: u8 [PRIORITY] = 0,
        /// the DSCP of its frames, instead of priority: switch.dscp_to_tc gives the priority
        let dscp as (Kind::Count(0, DSCP_MAX)),
    }
}

impl Hotspot {
    pub(super) fn check(&self, s: &Section<'_>, world: &World<'_>, _: &mut Files) -> Result<()> {
        world.check_host(s, "destination", self.destination, self.priority)?;
        world.check_senders(s, ("sources", &self.sources), self.destination, self.priority)?;
        world.check_transport(s, self.transport, 1 << self.priority)
    }
}

fn phases(s: &Section<'_>) -> Result<Vec<Phase>> {
    let mut phases: Vec<Phase> = Vec::new();
    let (mut from, mut offered) = (Duration::ZERO, 0u128);
    for t in s.tables("phases")? {
        let phase = Phase::read(&t)?;
        if phase.until <= from {
            return Err(t.error("until", "this phase does not end after the one before it"));
        }
        offered += u128::from(phase.rate.as_bps()) * u128::from(phase.until.as_ps() - from.as_ps()) / 8_000_000_000_000;
        from = phase.until;
        phases.push(phase);
    }
    if phases.is_empty() {
        return Err(s.missing("phases"));
    }
    if offered > u128::from(OFFERED_BYTES_MAX) {
        return Err(s.error("phases", format!("each source would offer {offered} B: at most {OFFERED_BYTES_MAX}")));
    }
    Ok(phases)
}
