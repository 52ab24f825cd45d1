//! `[roce]` and `[dcqcn]`: queue pairs of adapters, and their congestion control.

use super::{Framing, Scenario};
use crate::error::{Result, Warning};
use crate::setting::Section;
use crate::settings;
use crate::units::{Bytes, DURATION_MAX, POSITIVE_SIZE, RATE_MAX};
use core::ops::RangeInclusive;
use sluicenet_proto::time::Duration;
use sluicenet_proto::transport::roce::{self, MTU_MAX, MTU_MIN, dcqcn};
use sluicenet_proto::units::Rate;

/// Bytes that IP, UDP, RoCE's headers and CRC add to the payload of a first packet.
const OVERHEAD: u64 = 20 + 8 + 12 + 16 + 4;
/// The path MTUs of InfiniBand.
const MTU: RangeInclusive<Bytes> = Bytes(MTU_MIN as u64)..=Bytes(MTU_MAX as u64);
/// Timers of adapters, which count microseconds.
const TIMER: RangeInclusive<Duration> = Duration::from_us(1)..=DURATION_MAX;
/// Rates of adapters, which count megabits a second.
const RATE: RangeInclusive<Rate> = Rate::mbps(1)..=RATE_MAX;
/// The paper's values.
const ZHU: dcqcn::Config = dcqcn::Config::ZHU_2015;

settings! {
    /// every queue pair of RoCEv2, for workloads with transport = "roce"
    #[derive(Copy)]
    pub model struct Roce in "roce" (s) {
        /// the path MTU: payload of a full packet; a power of two
        mtu: Bytes [MTU] = Roce::DEFAULT.mtu,
        /// packets after which an acknowledgment is requested; the last packet of a message always requests one
        ack_every: u32 [1..=1 << 16] = Roce::DEFAULT.ack_every,
        /// time without progress after which all packets in flight are sent again
        timeout: Duration [TIMER] = Roce::DEFAULT.timeout,
    }
}

impl Roce {
    const DEFAULT: Roce = Roce {
        // The largest that fits into Ethernet's 1,500 B.
        mtu: Bytes(1024),
        // The specification leaves it open [d].
        ack_every: 64,
        // 4.096 us x 2^14, the usual timeout of queue pairs.
        timeout: Duration::from_ns(67_108_864),
    };

    /// Checks the MTU.
    pub(crate) fn check(&self, s: &Section<'_>, framing: &Framing) -> Result<()> {
        if !self.mtu.0.is_power_of_two() {
            return Err(s
                .error("mtu", format!("a path MTU of {} B is not a power of two", self.mtu.0))
                .expected("256, 512, 1024, 2048 or 4096 B"));
        }
        if self.mtu.0 + OVERHEAD > framing.mtu.0 {
            let message = format!(
                "a packet of {} B and {OVERHEAD} B of headers does not fit into framing.mtu ({} B)",
                self.mtu.0, framing.mtu.0
            );
            return Err(s.error_at(&["mtu"], message).hint("lower `mtu`, or raise framing.mtu"));
        }
        Ok(())
    }
}

settings! {
    /// DCQCN, the congestion control of RoCE (Zhu et al. 2015), with the names that adapters use
    #[derive(Copy)]
    pub model struct Dcqcn in "dcqcn" (s) {
        /// whether receivers answer marked packets by CNPs, and senders limit the rates of their queue pairs
        enabled: bool = false,
        /// the part of alpha that an update keeps, in 1024ths: 1024 (1 - g)
        dce_tcp_g: u16 [0..=1023] = ZHU.dce_tcp_g,
        /// time without CNP after which alpha is lowered
        dce_tcp_rtt: Duration [TIMER] = ZHU.dce_tcp_rtt,
        /// alpha at the first CNP, in 1024ths
        initial_alpha_value: u16 [1..=1024] = ZHU.initial_alpha_value,
        /// the rate after the first CNP; 0: it cuts as every other CNP
        rate_to_set_on_first_cnp: Rate = Rate(0),
        /// the lowest factor of a cut, in percent
        rpg_min_dec_fac: u8 [0..=100] = ZHU.rpg_min_dec_fac,
        /// the lowest rate of a queue pair
        rpg_min_rate: Rate [RATE] = ZHU.rpg_min_rate,
        /// a CNP cuts the rate by alpha / 2^(rpg_gd - 10)
        rpg_gd: u8 [10..=11] = ZHU.rpg_gd,
        /// whether each CNP sets the target rate to the rate before the cut, instead of only CNPs after the end of a cycle
        clamp_tgt_rate: bool = ZHU.clamp_tgt_rate,
        /// time of a recovery cycle
        rpg_time_reset: Duration [TIMER] = ZHU.rpg_time_reset,
        /// bytes of a recovery cycle
        rpg_byte_reset: Bytes [POSITIVE_SIZE] = Bytes(ZHU.rpg_byte_reset),
        /// cycles of fast recovery
        rpg_threshold: u32 [1..=100] = ZHU.rpg_threshold,
        /// rise of the target rate in additive increase
        rpg_ai_rate: Rate [RATE] = ZHU.rpg_ai_rate,
        /// rise of the target rate in hyper increase, for each cycle beyond fast recovery
        rpg_hai_rate: Rate [RATE] = ZHU.rpg_hai_rate,
        /// least time between two CNPs of a queue pair
        min_time_between_cnps: Duration = ZHU.min_time_between_cnps,
        /// the priority of CNPs
        cnp_802p_prio: u8 [0..=7] = ZHU.cnp_802p_prio,
    }
}

impl Dcqcn {
    /// Warns if nothing can start it.
    pub(crate) fn warn(&self, s: &Section<'_>, marks: bool, warnings: &mut Vec<Warning>) {
        if self.enabled && !marks {
            let (file, line) = s.line("enabled");
            let message = "DCQCN reacts to marks, and no switch marks frames: it has no effect; add a [[wred]] with \
                           ecn = \"ecn_all\""
                .to_owned();
            warnings.push(Warning { file, line, message });
        }
    }

    /// The settings as the protocol takes them.
    fn config(&self) -> dcqcn::Config {
        dcqcn::Config {
            dce_tcp_g: self.dce_tcp_g,
            dce_tcp_rtt: self.dce_tcp_rtt,
            initial_alpha_value: self.initial_alpha_value,
            rate_to_set_on_first_cnp: Some(self.rate_to_set_on_first_cnp).filter(|rate| rate.0 > 0),
            rpg_min_dec_fac: self.rpg_min_dec_fac,
            rpg_min_rate: self.rpg_min_rate,
            rpg_gd: self.rpg_gd,
            clamp_tgt_rate: self.clamp_tgt_rate,
            rpg_time_reset: self.rpg_time_reset,
            rpg_byte_reset: self.rpg_byte_reset.as_bytes(),
            rpg_threshold: self.rpg_threshold,
            rpg_ai_rate: self.rpg_ai_rate,
            rpg_hai_rate: self.rpg_hai_rate,
            min_time_between_cnps: self.min_time_between_cnps,
            cnp_802p_prio: self.cnp_802p_prio,
        }
    }
}

impl Scenario {
    /// The settings of queue pairs as the protocol takes them; those of a scenario without queue pairs have no effect.
    pub fn roce_config(&self) -> roce::Config {
        let roce = self.roce.unwrap_or(Roce::DEFAULT);
        roce::Config {
            mtu: roce.mtu.as_bytes() as u16,
            ack_every: roce.ack_every,
            timeout: roce.timeout,
            dcqcn: self.dcqcn.as_ref().map(Dcqcn::config),
        }
    }
}
