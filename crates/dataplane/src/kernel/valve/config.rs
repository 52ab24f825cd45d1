//! The settings of a valve.

use crate::kernel::error::KernelError;
use sluicenet_node::vale::WatchdogConfig;
use std::io;

/// The settings of a port.
#[derive(Clone, Debug)]
pub struct ValveConfig {
    /// The most frames of the tenant in the switch.
    pub buffers: u32,
    /// The most frames that wait for the tenant's sockets.
    pub stage: u32,
    /// Whether the tenant may leave checksums and TCP segmentation to be done, and receives such frames.
    pub offload: bool,
    /// Budget of one poll in frames; a poll can bring twice as many.
    pub budget: u32,
    /// The watchdog over the tenant's sockets.
    pub watchdog: WatchdogConfig,
}

impl Default for ValveConfig {
    fn default() -> ValveConfig {
        ValveConfig { buffers: 1024, stage: 1024, offload: true, budget: 64, watchdog: WatchdogConfig::default() }
    }
}

impl ValveConfig {
    /// Free buffers that a poll needs: it can bring twice its budget and a few more.
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
