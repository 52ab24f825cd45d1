//! Settings of a switch.

use super::Port;
use sluicenet_proto::cee::watchdog::{DETECTION_TIME, RESTORATION_TIME};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;

/// How long a receiver may take nothing before it is isolated. A program that is collecting garbage, or whose host is busy,
/// reads again long before; a stuck receiver holds back only its own senders until then.
pub const ISOLATION_TIME: Duration = Duration::from_secs(10);

/// The watchdog's action on a receiver that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is reported, and isolated after the isolation time: no frame reaches it until it moves again.
    Drop,
    /// It is reported, and its frames wait.
    Alert,
    /// No action.
    Off,
}

/// The watchdog over receivers: ports, and the sockets and guests behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogConfig {
    /// The action on a receiver that is stuck.
    pub action: Action,
    /// A receiver that has frames and takes none for this time is stuck, which is reported.
    pub detection_time: Duration,
    /// A receiver that is stuck for this time is isolated, where the action is to drop. A program that pauses for a shorter
    /// time loses nothing.
    pub isolation_time: Duration,
    /// An isolated port that has had room for this time is restored.
    pub restoration_time: Duration,
}

impl WatchdogConfig {
    /// No receiver is ever found stuck.
    pub const OFF: WatchdogConfig = WatchdogConfig { action: Action::Off, ..WatchdogConfig::DEFAULT };

    const DEFAULT: WatchdogConfig = WatchdogConfig {
        action: Action::Drop,
        detection_time: DETECTION_TIME,
        isolation_time: ISOLATION_TIME,
        restoration_time: RESTORATION_TIME,
    };

    /// After which time a stuck receiver is reported, if at all.
    pub fn reports_after(&self) -> Option<Duration> {
        (self.action != Action::Off).then_some(self.detection_time)
    }

    /// After which time a stuck receiver is isolated, if at all.
    pub fn isolates_after(&self) -> Option<Duration> {
        (self.action == Action::Drop).then_some(self.isolation_time.max(self.detection_time))
    }
}

impl Default for WatchdogConfig {
    fn default() -> WatchdogConfig {
        WatchdogConfig::DEFAULT
    }
}

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct ValeConfig {
    /// Frames in each queue.
    pub slots: u32,
    /// Classes whose frames wait. Frames of other classes are dropped when there is no room.
    pub lossless: PrioritySet,
    /// Most stations in the table.
    pub stations: usize,
    /// Most stations that the table learns from one port. The limit is never more than an equal share, so that no port can
    /// keep another from being learned.
    pub stations_per_port: u32,
    /// A learned station that sends nothing for this time is forgotten; none: never.
    pub aging_time: Option<Duration>,
    /// The port for frames to unknown stations; without it they are flooded.
    pub uplink: Option<Port>,
    /// The watchdog over receivers.
    pub watchdog: WatchdogConfig,
}

impl Default for ValeConfig {
    /// The aging time is that of 802.1D.
    fn default() -> ValeConfig {
        ValeConfig {
            slots: 1024,
            lossless: PrioritySet::ALL,
            stations: 8192,
            stations_per_port: 1024,
            aging_time: Some(Duration::from_ms(300_000)),
            uplink: None,
            watchdog: WatchdogConfig::DEFAULT,
        }
    }
}
