//! `[qcn]`: quantized congestion notification (802.1Qau).

use super::{CongestionManagement, Pfc, Routing, ZBridge};
use crate::error::{Result, Warning};
use crate::setting::{Choice, Or, Section};
use crate::units::{BUFFER, Bytes, POSITIVE_RATE, POSITIVE_TIME};
use crate::{choices, settings};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

choices! {
    /// What a congestion point counts between two samples.
    pub enum Sampling {
        /// Bytes.
        Bytes = "bytes",
        /// Frames.
        Frames = "frames",
    }
}

choices! {
    /// What a rate limiter is for.
    pub enum Limiters {
        /// All frames from a server to a destination, in a priority.
        Destination = "destination",
        /// A flow, which its CN-TAG names.
        Flow = "flow",
        /// There are none: notifications have no effect.
        Off = "off",
    }
}

choices! {
    /// The division of the frames to a destination among the ports of a switch, with routing = "switch-ar".
    pub enum Split {
        /// All frames take the least congested port.
        Binary = "binary",
        /// Each port gets frames in proportion to the lack of congestion behind it.
        Fraction = "fraction",
    }
}

choices! {
    /// No timer.
    pub enum NoTimer {
        /// Only bytes are counted.
        Off = "off",
    }
}

settings! {
    /// quantized congestion notification (802.1Qau): congestion points at every switch output, reaction points in adapters
    #[derive(Copy)]
    pub model struct Qcn in "qcn" (s, fixed: Option<CongestionManagement>, routing: Routing) {
        /// whether switches send congestion notifications
        enabled: bool = fixed.is_some_and(|fixed| fixed.set_point().is_some()),
        /// the queue length at equilibrium, Q_eq
        // Table 2.1: 20 KB, which the standard recommends, or 66 KB.
        set_point: Bytes [BUFFER] = fixed.and_then(CongestionManagement::set_point).unwrap_or(Bytes(20_000)),
        /// the weight w of the queue's growth in the feedback
        weight: u32 [0..=100] = 2,
        /// what a congestion point counts between two samples
        // The standard and Table 2.1 count bytes, Figure 2.3 counts frames.
        sampling: Sampling = Sampling::Bytes,
        /// bytes between two samples without congestion; a tenth at full feedback
        sample_bytes: Bytes [BUFFER] = Bytes(150_000),
        /// frames between two samples, with sampling = "frames"
        sample_frames: u32 [1..=1 << 20] = 100,
        /// the priority of notifications, which have no congestion point
        // In a class of their own they pass the frames that they are about [d].
        priority: u8 [0..=7] = 7,
        /// one rate limiter for each destination or for each flow, or none; with routing = "r3c2" one for each path to a
        /// destination, with routing = "r2c2" none
        limiters: Limiters = if routing == Routing::R2c2 { Limiters::Off } else { Limiters::Destination },
        /// the lowest rate of a limiter
        min_rate: Rate [POSITIVE_RATE] = Rate(100_000),
        /// bytes of a recovery cycle; half of it after fast recovery
        byte_reset: Bytes [BUFFER] = Bytes(150_000),
        /// time of a recovery cycle; half of it after fast recovery; off: only bytes count (Al-Fares 2012, 5.3.3)
        // Table 2.1: CM timer.
        let time_reset: Or<Duration, NoTimer> [POSITIVE_TIME] = Or::Value(Duration::from_ms(15)),
        /// Time of a recovery cycle; only bytes count where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field time_reset: Option<Duration> = time_reset.value(),
        /// cycles of fast recovery
        threshold: u32 [1..=100] = 5,
        /// rise of the target rate in active increase
        ai_rate: Rate [POSITIVE_RATE] = Rate::mbps(5),
        /// rise of the target rate in hyper-active increase
        hai_rate: Rate [POSITIVE_RATE] = Rate::mbps(50),
        /// a feedback of n cuts the rate by n / 2^gd
        // Table 2.1 has G_d 0.5: the cut at full feedback, 63 / 2^7.
        gd: u8 [1..=20] = 7,
        /// the lowest factor of a cut, in percent
        // Table 2.1: min decr. factor 0.5.
        min_decrease_factor: u8 [1..=100] = 50,
        /// whether notifications before the end of a cycle keep the target rate
        extra_fast_recovery: bool = true,
        /// switch-ar: the time after which a switch forgets congestion (default 200 us); r2c2, r3c2: the time after which a
        /// source takes a path out of use (default 15 ms)
        // [d]: the source gives neither. A source waits for the CM timer. In a switch that remembers congestion for so long,
        // all paths are soon congested, and the frames stay on one of them (docs/results/fig-2-21.md).
        path_timeout: Duration [POSITIVE_TIME] = match routing {
            Routing::SwitchAr => Duration::from_us(200),
            _ => Duration::from_ms(15),
        },
        /// switch-ar: whether all frames to a destination take the least congested port, or a fraction each
        // 2.3.5: binary; fractions are an idea for later there.
        split: Split = Split::Binary,
    }
}

impl Qcn {
    /// Checks how the keys relate.
    pub(crate) fn check(
        &self,
        s: &Section<'_>,
        (fixed, routing, zbridge): (Option<CongestionManagement>, Routing, &ZBridge),
        pfc: &Pfc,
        warnings: &mut Vec<Warning>,
    ) -> Result<()> {
        if fixed.is_some_and(|fixed| fixed.set_point().is_some() != self.enabled) {
            return Err(s
                .error("enabled", "scenario.congestion_management says whether there is QCN")
                .hint("remove `enabled` or congestion_management"));
        }
        if fixed.and_then(CongestionManagement::set_point).is_some_and(|q| q != self.set_point) {
            return Err(s
                .error("set_point", "scenario.congestion_management says another Q_eq")
                .hint("remove `set_point` or congestion_management"));
        }
        self.check_routing(s, routing, zbridge)?;
        let used = if self.sampling == Sampling::Bytes { "sample_bytes" } else { "sample_frames" };
        for key in ["sample_bytes", "sample_frames"] {
            if s.has(key) && key != used {
                return Err(s
                    .error(key, format!("`{key}` has no effect: congestion points use `{used}`"))
                    .hint("remove it, or change `sampling`"));
            }
        }
        if self.enabled && pfc.enabled && self.set_point >= pfc.xoff {
            let (file, line) = s.line("set_point");
            let message = format!(
                "qcn.set_point ({} B) is not below pfc.xoff ({} B): a queue that one input fills pauses its sender before \
                 QCN slows the source",
                self.set_point.0, pfc.xoff.0
            );
            warnings.push(Warning { file, line, message });
        }
        Ok(())
    }

    /// Checks whether the routing and the limiters fit each other.
    fn check_routing(&self, s: &Section<'_>, routing: Routing, zbridge: &ZBridge) -> Result<()> {
        let word = routing.word();
        if routing.needs_notifications() && !self.enabled {
            return Err(s
                .error_at(
                    &["enabled"],
                    format!("topology.routing = \"{word}\" follows congestion notifications, and there are none"),
                )
                .hint("set qcn.enabled = true"));
        }
        if routing.is_by_source() && zbridge.enabled {
            return Err(s
                .error_here(format!(
                    "zBridge sends all frames between two servers by one path, and \"{word}\" by several"
                ))
                .hint("set zbridge.enabled = false, or another topology.routing"));
        }
        let fits = match routing {
            Routing::R2c2 => self.limiters == Limiters::Off,
            Routing::R3c2 => self.limiters == Limiters::Destination,
            _ => true,
        };
        if !fits {
            let message = format!("limiters = \"{}\" with topology.routing = \"{word}\"", self.limiters.word());
            return Err(s.error("limiters", message).hint("remove `limiters`: the routing says which there are"));
        }
        for (key, of) in [("split", Routing::SwitchAr == routing), ("path_timeout", routing.needs_notifications())] {
            if s.has(key) && !of {
                return Err(s
                    .error(key, format!("`{key}` has no effect with topology.routing = \"{word}\""))
                    .hint("remove it"));
            }
        }
        Ok(())
    }
}
