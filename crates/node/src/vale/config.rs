//! How a switch is set up.

use super::Port;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;

/// What the watchdog does about a port that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is isolated: nothing reaches it until it moves again.
    Drop,
    /// It is counted, and waited for.
    Alert,
    /// Nothing.
    Off,
}

/// How a switch is set up.
#[derive(Clone, Debug)]
pub struct ValeConfig {
    /// Frames in each queue.
    pub slots: u32,
    /// Classes whose frames wait; those of the others are dropped when there is no room.
    pub lossless: PrioritySet,
    /// Stations the table holds, and how many of them a port can make it learn.
    pub stations: usize,
    /// The share of a port; never more than an equal one, so that no port can keep another from being learned.
    pub stations_per_port: u32,
    /// Where frames for unknown stations go; without it they are flooded.
    pub uplink: Option<Port>,
    /// What becomes of a port that is stuck.
    pub action: Action,
    /// A port that has frames and takes none for so long is stuck.
    pub detection_time: Duration,
    /// An isolated port that has had room for so long is restored.
    pub restoration_time: Duration,
}

impl Default for ValeConfig {
    /// Times as SONiC's PFC watchdog has them.
    fn default() -> ValeConfig {
        ValeConfig {
            slots: 1024,
            lossless: PrioritySet::ALL,
            stations: 8192,
            stations_per_port: 1024,
            uplink: None,
            action: Action::Drop,
            detection_time: Duration::from_ms(200),
            restoration_time: Duration::from_ms(200),
        }
    }
}
