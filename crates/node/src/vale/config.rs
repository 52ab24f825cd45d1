//! Settings of a switch.

use super::Port;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;

/// The watchdog's action on a port that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The port is isolated: no frame reaches it until it moves again.
    Drop,
    /// The port is counted, and its frames wait.
    Alert,
    /// No action.
    Off,
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
    /// The action on a port that is stuck.
    pub action: Action,
    /// A port that has frames and takes none for this time is stuck.
    pub detection_time: Duration,
    /// An isolated port that has had room for this time is restored.
    pub restoration_time: Duration,
}

impl Default for ValeConfig {
    /// Times as in SONiC's PFC watchdog, and the aging time of 802.1D.
    fn default() -> ValeConfig {
        ValeConfig {
            slots: 1024,
            lossless: PrioritySet::ALL,
            stations: 8192,
            stations_per_port: 1024,
            aging_time: Some(Duration::from_ms(300_000)),
            uplink: None,
            action: Action::Drop,
            detection_time: Duration::from_ms(200),
            restoration_time: Duration::from_ms(200),
        }
    }
}
