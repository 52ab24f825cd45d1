//! DCQCN: congestion control of RoCE (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).
//!
//! A switch, the *congestion point*, marks packets by the length of its queue (RED with ECN). The receiver, the
//! *notification point*, answers marked packets by congestion notification packets (CNPs), at most one each 50 us for a queue
//! pair. The sender, the *reaction point*, lowers the rate of the queue pair at each CNP. Without CNPs the rate recovers as
//! that of QCN's reaction point does.
//!
//! Settings have the names that adapters use (`rpg_...`, `dce_tcp_...`).

mod notification_point;
mod reaction_point;
#[cfg(test)]
mod tests;

pub use notification_point::NotificationPoint;
pub use reaction_point::ReactionPoint;

use crate::frame::Priority;
use crate::time::Duration;
use crate::units::Rate;

/// Scale of `dce_tcp_g` and `initial_alpha_value`: ten bits of fraction.
pub const ALPHA_ONE: u16 = 1 << 10;

/// Settings of reaction and notification points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The part of alpha that an update keeps, in 1024ths: 1024 (1 - g).
    pub dce_tcp_g: u16,
    /// Time without CNP after which alpha is lowered.
    pub dce_tcp_rtt: Duration,
    /// Alpha at the first CNP, in 1024ths.
    pub initial_alpha_value: u16,
    /// The rate after the first CNP; without it the first CNP cuts as every other one.
    pub rate_to_set_on_first_cnp: Option<Rate>,
    /// The lowest factor of a cut, in percent.
    pub rpg_min_dec_fac: u8,
    /// The lowest rate.
    pub rpg_min_rate: Rate,
    /// A CNP cuts the rate by alpha / 2^(rpg_gd - 10).
    pub rpg_gd: u8,
    /// Whether each CNP sets the target rate to the rate before the cut; otherwise only a CNP after the end of a cycle does.
    pub clamp_tgt_rate: bool,
    /// Time of a recovery cycle.
    pub rpg_time_reset: Duration,
    /// Bytes of a recovery cycle.
    pub rpg_byte_reset: u64,
    /// Cycles of fast recovery.
    pub rpg_threshold: u32,
    /// Rise of the target rate in additive increase.
    pub rpg_ai_rate: Rate,
    /// Rise of the target rate in hyper increase, for each cycle beyond fast recovery.
    pub rpg_hai_rate: Rate,
    /// Least time between two CNPs of a queue pair.
    pub min_time_between_cnps: Duration,
    /// Priority of CNPs.
    pub cnp_802p_prio: Priority,
}

impl Config {
    /// The paper's values for 40 Gb/s (Zhu et al. 2015, 3.1 and Figure 14), and decisions where it has none.
    pub const ZHU_2015: Config = Config {
        // g = 1/256.
        dce_tcp_g: 1020,
        dce_tcp_rtt: Duration::from_us(55),
        initial_alpha_value: ALPHA_ONE,
        rate_to_set_on_first_cnp: None,
        // Alpha is at most 1, so a cut is at most a half.
        rpg_min_dec_fac: 50,
        // The default of adapters [d].
        rpg_min_rate: Rate::mbps(1),
        rpg_gd: 11,
        clamp_tgt_rate: true,
        rpg_time_reset: Duration::from_us(55),
        rpg_byte_reset: 10_000_000,
        rpg_threshold: 5,
        rpg_ai_rate: Rate::mbps(40),
        // Ten times the additive increase, as in QCN [d].
        rpg_hai_rate: Rate::mbps(400),
        min_time_between_cnps: Duration::from_us(50),
        // The default of adapters [d].
        cnp_802p_prio: 6,
    };

    /// The gain g of alpha.
    fn gain(&self) -> f64 {
        1.0 - self.kept()
    }

    /// 1 - g.
    fn kept(&self) -> f64 {
        f64::from(self.dce_tcp_g) / f64::from(ALPHA_ONE)
    }
}
