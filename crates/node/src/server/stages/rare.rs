//! The stages of any chain, boxed: combinations that have no compiled chain of their own.

use super::credits::Credits;
use super::tunnels::Tunnels;
use super::zbridge::ZBridge;
use super::{Pair, Stage};
use crate::server::VirtualConfig;
use alloc::boxed::Box;
use alloc::vec::Vec;
use sluicenet_proto::frame::HostId;

/// The gate stages of a server with so many machines, the one nearest to the guests first.
pub fn gate(config: &VirtualConfig, host: HostId, machines: usize) -> Box<dyn Stage> {
    let mut stages: Vec<Box<dyn Stage>> = Vec::new();
    if let Some(credits) = config.credits {
        stages.push(Box::new(Credits::new(credits, host, machines, config.weights.clone())));
    }
    compose(stages)
}

/// The network stages of a server, the one nearest to the vSwitch first.
pub fn network(config: &VirtualConfig, host: HostId, seed: u64) -> Box<dyn Stage> {
    let mut stages: Vec<Box<dyn Stage>> = Vec::new();
    if let Some(channel) = config.zbridge {
        stages.push(Box::new(ZBridge::new(channel, seed, host)));
    } else if let Some(tunnel) = &config.tunnel {
        stages.push(Box::new(Tunnels::new(tunnel.clone(), host)));
    }
    compose(stages)
}

/// Composes stages from the top down.
pub fn compose(stages: Vec<Box<dyn Stage>>) -> Box<dyn Stage> {
    let composed = stages.into_iter().rev().reduce(|lower, upper| Box::new(Pair::new(upper, lower)));
    composed.unwrap_or_else(|| Box::new(()))
}
