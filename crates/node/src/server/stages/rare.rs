//! The stages of any chain, boxed. A combination that has no compiled chain of its own is made of these.

use super::credits::Credits;
use super::tunnels::Tunnels;
use super::zbridge::ZBridge;
use super::{Pair, Stage};
use crate::server::VirtualConfig;
use alloc::boxed::Box;
use alloc::vec::Vec;
use sluicenet_proto::frame::HostId;

/// The gate stages of a server with so many machines, the one nearest to the guests first.
pub fn gate(config: &VirtualConfig, host: HostId, machines: usize) -> Vec<Box<dyn Stage>> {
    let mut stages: Vec<Box<dyn Stage>> = Vec::new();
    if let Some(credits) = config.credits {
        stages.push(Box::new(Credits::new(credits, host, machines, config.weights.clone())));
    }
    stages
}

/// The network stages of a server, the one nearest to the vSwitch first.
pub fn network(config: &VirtualConfig, host: HostId, seed: u64) -> Vec<Box<dyn Stage>> {
    let mut stages: Vec<Box<dyn Stage>> = Vec::new();
    if let Some(channel) = config.zbridge {
        stages.push(Box::new(ZBridge::new(channel, seed, host)));
    } else if let Some(tunnel) = &config.tunnel {
        stages.push(Box::new(Tunnels::new(tunnel.clone(), host)));
    }
    stages
}

/// Composes stages from the top down.
pub fn compose(stages: Vec<Box<dyn Stage>>) -> Box<dyn Stage> {
    let composed = stages.into_iter().rev().reduce(|lower, upper| Box::new(Pair::new(upper, lower)));
    composed.unwrap_or_else(|| Box::new(()))
}
