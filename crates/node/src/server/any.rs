//! The compiled chains, and the choice among them when the world is built.

use super::app::App;
use super::chain::{Anyone, Bare, Partitioned, Virtualised};
use super::config::ServerConfig;
use super::fetch::Plan;
use super::host::Host;
use super::stages::credits::{Credits, CreditsConfig};
use super::stages::zbridge::ZBridge;
use super::stages::{Report, Stage, StageConfig, compose};
use super::{Server, ServerLedger};
use crate::pool::Handle;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zbridge::ChannelConfig;

/// The chain of boxed stages.
type Rare = Virtualised<Box<dyn Stage>, Box<dyn Stage>, Partitioned>;

/// The settings of a stage as type `T`, if they have this type.
fn is<T: StageConfig>(config: &Arc<dyn StageConfig>) -> Option<&T> {
    (&**config as &dyn Any).downcast_ref()
}

/// A server with one of the compiled chains. [`with_server!`](crate::with_server) reaches the server inside.
#[derive(Debug)]
pub enum AnyServer<A> {
    /// Without a virtual network.
    Bare(Box<Server<A, Bare>>),
    /// With a vSwitch and without stages.
    Plain(Box<Server<A, Virtualised<(), (), Anyone>>>),
    /// zFabric: credits and zBridge.
    ZFabric(Box<Server<A, Virtualised<Credits, ZBridge, Anyone>>>),
    /// Any other combination, with boxed stages.
    Rare(Box<Server<A, Rare>>),
}

/// Evaluates an expression with the server inside an [`AnyServer`](crate::server::AnyServer): one dispatch. The code
/// behind it is compiled for the server's chain.
#[macro_export]
macro_rules! with_server {
    ($any:expr, $server:ident => $then:expr) => {
        match $any {
            $crate::server::AnyServer::Bare($server) => $then,
            $crate::server::AnyServer::Plain($server) => $then,
            $crate::server::AnyServer::ZFabric($server) => $then,
            $crate::server::AnyServer::Rare($server) => $then,
        }
    };
}

impl<A: App> AnyServer<A> {
    /// A server with `vms` guests and the chain of its settings; `router` chooses among several links.
    pub fn new(id: HostId, vms: u8, config: Arc<ServerConfig>, router: Option<Router>, app: A) -> AnyServer<A> {
        let Some(network) = &config.clone().virtual_network else {
            return AnyServer::Bare(Box::new(Server::new(id, vms, config, router, |_| Bare::default(), app)));
        };
        let isolated = config.lossy_vnics.is_some() || config.access.is_some();
        // A compiled chain is chosen if it has exactly these stages.
        let zfabric = match (&network.gate[..], &network.network[..]) {
            ([gate], [bridge]) => is::<CreditsConfig>(gate).zip(is::<ChannelConfig>(bridge)),
            _ => None,
        };
        match zfabric {
            Some((credits, &channel)) if !isolated => {
                let gate = Credits::new(credits, id, vms as usize);
                let bridge = ZBridge::new(channel, config.seed, id);
                let chain = |host: &mut Host| Virtualised::new(host, network, gate, bridge, Anyone);
                AnyServer::ZFabric(Box::new(Server::new(id, vms, config, router, chain, app)))
            }
            None if !isolated && network.gate.is_empty() && network.network.is_empty() => {
                let chain = |host: &mut Host| Virtualised::new(host, network, (), (), Anyone);
                AnyServer::Plain(Box::new(Server::new(id, vms, config, router, chain, app)))
            }
            _ => {
                let seed = config.seed;
                let boxed = |stages: &[Arc<dyn StageConfig>]| {
                    compose(stages.iter().map(|stage| stage.stage(id, vms as usize, seed)).collect())
                };
                let (gate, bridge) = (boxed(&network.gate), boxed(&network.network));
                let isolation = Partitioned::new(config.lossy_vnics, config.access.clone());
                let chain = |host: &mut Host| Virtualised::new(host, network, gate, bridge, isolation);
                AnyServer::Rare(Box::new(Server::new(id, vms, config, router, chain, app)))
            }
        }
    }

    /// The server's guests and its adapter.
    #[inline(always)]
    pub fn host(&self) -> &Host {
        with_server!(self, s => s.host())
    }
    /// The server's guests and its adapter, to collect records.
    #[inline(always)]
    pub fn host_mut(&mut self) -> &mut Host {
        with_server!(self, s => s.host_mut())
    }
    /// The server's applications, read-only.
    pub fn app(&self) -> &A {
        with_server!(self, s => s.app())
    }
    /// The server's applications.
    pub fn app_mut(&mut self) -> &mut A {
        with_server!(self, s => s.app_mut())
    }
    /// The accounts of the server's stages.
    pub fn report(&self) -> Report {
        with_server!(self, s => s.report())
    }
    /// The ledger of the server's packets.
    pub fn ledger(&self) -> ServerLedger {
        with_server!(self, s => s.ledger())
    }
    /// Plans the window that ends at `end`, for a world that prefetches memory; `arrival` is the first frame that
    /// arrives.
    #[inline(always)]
    pub fn plan(&self, end: Instant, arrival: Handle) -> Plan {
        let arrival = if matches!(self, AnyServer::Bare(_)) { arrival } else { Handle::NONE };
        self.host().plan(end, arrival)
    }
    /// Asks the applications to begin: a wake-up with `token` at time zero.
    pub fn start(&mut self, token: u64) {
        with_server!(self, s => s.start(token));
    }
}
