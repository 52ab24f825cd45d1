//! The settings of a valve.

use crate::kernel::error::KernelError;
use sluicenet_proto::time::Duration;
use std::io;

/// How a port is set up.
#[derive(Clone, Debug)]
pub struct ValveConfig {
    /// Frames of the tenant that the switch holds at most.
    pub buffers: u32,
    /// Frames for the tenant that wait for its sockets at most.
    pub stage: u32,
    /// Whether the tenant may leave checksums and TCP segments to be made, and gets such frames.
    pub offload: bool,
    /// Frames of one poll; it can bring twice as many.
    pub budget: u32,
    /// A socket that has had frames and took none for so long is isolated, what waits for it dropped by name; without it,
    /// everybody waits for it.
    pub detection_time: Option<Duration>,
}

impl Default for ValveConfig {
    /// The time as SONiC's PFC watchdog has it.
    fn default() -> ValveConfig {
        ValveConfig {
            buffers: 1024,
            stage: 1024,
            offload: true,
            budget: 64,
            detection_time: Some(Duration::from_ms(200)),
        }
    }
}

impl ValveConfig {
    /// Free buffers without which there is no poll: it can bring twice its budget, and a little more.
    pub(super) fn needed(&self) -> u32 {
        2 * self.budget + 64
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        let wrong =
            |why: String| Err(KernelError::new("a valve port", io::Error::new(io::ErrorKind::InvalidInput, why)));
        if !(1..=256).contains(&self.budget) {
            return wrong(format!("a budget of {}: 1 to 256 are expected", self.budget));
        }
        if !(self.needed()..=1 << 16).contains(&self.buffers) {
            return wrong(format!("{} buffers: {} to 65536 are expected", self.buffers, self.needed()));
        }
        if !(1..=1 << 16).contains(&self.stage) {
            return wrong(format!("a stage of {}: 1 to 65536 are expected", self.stage));
        }
        Ok(())
    }
}
