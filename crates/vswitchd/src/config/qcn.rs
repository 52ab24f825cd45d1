//! `[qcn]`: rate limiters at the uplink.

use sluicenet_proto::cee::qcn::ReactionPointConfig;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::setting::{Or, Section};
use sluicenet_scenario::units::{BUFFER, POSITIVE_RATE, POSITIVE_TIME, Quantity};
use sluicenet_scenario::{Bytes, NoTimer, Result, choices, settings};

choices! {
    /// What a rate limiter is for.
    pub enum LimitersOf {
        /// All frames of a priority to a destination of the link.
        Destination = "destination",
        /// A flow, which its CN-TAG names.
        Flow = "flow",
    }
}

settings! {
    /// rate limiters at the uplink, controlled by congestion notifications of the network's switches (802.1Qau). The
    /// uplink drops notifications of endpoints
    #[derive(PartialEq, Eq)]
    pub struct Limiting in "qcn" (s, link: Rate) {
        /// what has a rate limiter of its own: a destination of the link, or a flow. Frames of flows get a CN-TAG of four
        /// bytes: use "flow" on all servers or on none; default destination
        limiters: LimitersOf = LimitersOf::Destination,
        /// the lowest rate of a limiter, at most that of the uplink; default 100 kb/s
        let min_rate: Rate [POSITIVE_RATE] = Rate(100_000),
        /// bytes of a recovery cycle; half of it after fast recovery; default 150 KB
        let byte_reset: Bytes [BUFFER] = Bytes(150_000),
        /// time of a recovery cycle; half of it after fast recovery; off: only bytes count; default 15 ms
        let time_reset: Or<Duration, NoTimer> [POSITIVE_TIME] = Or::Value(Duration::from_ms(15)),
        /// cycles of fast recovery; default 5
        let threshold: u32 [1..=100] = 5,
        /// rise of the target rate in active increase; default 5 Mb/s
        let ai_rate: Rate [POSITIVE_RATE] = Rate::mbps(5),
        /// rise of the target rate in hyper-active increase; default 50 Mb/s
        let hai_rate: Rate [POSITIVE_RATE] = Rate::mbps(50),
        /// a feedback of n cuts the rate by n / 2^gd; default 7
        let gd: u8 [1..=20] = 7,
        /// the lowest factor of a cut, in percent; default 50
        let min_decrease_factor: u8 [1..=100] = 50,
        /// whether notifications before the end of a cycle keep the target rate; default true
        let extra_fast_recovery: bool = true,
        /// Settings of each limiter.
        field limiter: ReactionPointConfig = ReactionPointConfig {
            max_rate: link,
            min_rate: at_most(s, min_rate, link)?,
            byte_reset: byte_reset.as_bytes() as u32,
            byte_reset_after: byte_reset.as_bytes() as u32 / 2,
            time_reset: time_reset.value(),
            threshold,
            ai_rate,
            hai_rate,
            gd,
            min_dec_fac: min_decrease_factor,
            extra_fast_recovery,
        },
    }
}

/// Refuses limiters that could not limit.
fn at_most(s: &Section<'_>, least: Rate, link: Rate) -> Result<Rate> {
    if least.as_bps() <= link.as_bps() {
        return Ok(least);
    }
    let message = format!("a limiter's lowest rate of {} is above the rate of the uplink", least.written());
    Err(s.error("min_rate", message).expected(format!("at most {}", link.written())))
}

/// Reads `[qcn]`, if the file has it.
pub(super) fn read(root: &Section<'_>, link: Rate) -> Result<Option<Limiting>> {
    if !root.has("qcn") {
        return Ok(None);
    }
    Limiting::read(&root.section("qcn")?, link).map(Some)
}
