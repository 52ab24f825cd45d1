//! The compiled chains, and the choice among them when the world is built.

use super::app::App;
use super::chain::{Bare, Rare, Unusual, Usual, Virtualised};
use super::config::ServerConfig;
use super::host::Host;
use super::stages::credits::{Credits, CreditsConfig};
use super::stages::zbridge::ZBridge;
use super::stages::{Report, StageConfig, compose};
use super::{Plan, PrefetchStep, Server, ServerLedger};
use crate::adapter::{Any, Basic};
use crate::packet::Packet;
use crate::pool::Pool;
use alloc::boxed::Box;
use alloc::sync::Arc;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::Router;
use sluicenet_proto::transport::zbridge::ChannelConfig;

/// The settings of a stage as type `T`, if they have this type.
fn is<T: StageConfig>(config: &Arc<dyn StageConfig>) -> Option<&T> {
    (&**config as &dyn core::any::Any).downcast_ref()
}

/// A server with one of the compiled chains. [`with_server!`](crate::with_server) reaches the server inside.
#[derive(Debug)]
pub enum AnyServer<A> {
    /// Without a virtual network and without stages.
    Bare(Box<Server<A, Bare<(), Basic>>>),
    /// The same, with an adapter of several links, or with control of its queues.
    Extended(Box<Server<A, Bare<(), Any>>>),
    /// With a vSwitch and without stages.
    Plain(Box<Server<A, Virtualised<(), (), Usual>>>),
    /// zFabric: credits and zBridge.
    ZFabric(Box<Server<A, Virtualised<Credits, ZBridge, Usual>>>),
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
            $crate::server::AnyServer::Extended($server) => $then,
            $crate::server::AnyServer::Plain($server) => $then,
            $crate::server::AnyServer::ZFabric($server) => $then,
            $crate::server::AnyServer::Rare($server) => $then,
        }
    };
}

impl<A: App> AnyServer<A> {
    /// A server with `vms` guests and the chain of its settings; `router` chooses among several links.
    pub fn new(id: HostId, vms: u8, config: Arc<ServerConfig>, router: Option<Router>, app: A) -> AnyServer<A> {
        let (settings, seed) = (config.clone(), config.seed);
        let boxed = |stages: &[Arc<dyn StageConfig>]| {
            compose(stages.iter().map(|stage| stage.stage(id, vms as usize, seed)).collect())
        };
        let gate = &settings.gate[..];
        let Some(network) = &settings.virtual_network else {
            if gate.is_empty() && settings.adapter.is_basic() {
                let chain = |host: &mut Host| Bare::new(host, ());
                return AnyServer::Bare(Box::new(Server::new(id, vms, config, router, chain, app)));
            }
            if gate.is_empty() {
                let chain = |host: &mut Host| Bare::new(host, ());
                return AnyServer::Extended(Box::new(Server::new(id, vms, config, router, chain, app)));
            }
            let chain = |host: &mut Host| Rare::Bare(Bare::new(host, boxed(gate)));
            return AnyServer::Rare(Box::new(Server::new(id, vms, config, router, chain, app)));
        };
        let outer = network.encapsulation;
        let isolated = settings.lossy_vnics.is_some() || settings.access.is_some();
        let usual = (!isolated && outer > 0 && settings.adapter.is_basic()).then(|| Usual::new(outer));
        // A compiled chain is chosen if it has exactly these stages.
        let zfabric = match (gate, &network.network[..]) {
            ([credits], [bridge]) => is::<CreditsConfig>(credits).zip(is::<ChannelConfig>(bridge)),
            _ => None,
        };
        match (usual, zfabric) {
            (Some(usual), Some((credits, &channel))) => {
                let credits = Credits::new(credits, id, vms as usize);
                let bridge = ZBridge::new(channel, seed, id);
                let chain = |host: &mut Host| Virtualised::new(host, network, credits, bridge, usual);
                AnyServer::ZFabric(Box::new(Server::new(id, vms, config, router, chain, app)))
            }
            (Some(usual), None) if gate.is_empty() && network.network.is_empty() => {
                let chain = |host: &mut Host| Virtualised::new(host, network, (), (), usual);
                AnyServer::Plain(Box::new(Server::new(id, vms, config, router, chain, app)))
            }
            _ => {
                let (gate, bridge, parts) = (boxed(gate), boxed(&network.network), Unusual::new(&settings, outer));
                let chain = |host: &mut Host| Rare::Virtualised(Virtualised::new(host, network, gate, bridge, parts));
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
    /// Whether frames from the wire reach their sockets without passing a queue.
    #[inline(always)]
    pub fn is_bare(&self) -> bool {
        matches!(self, AnyServer::Bare(_))
    }
    /// Whether its stages look up their own memory for a frame from the wire, for a world that prefetches it.
    #[inline(always)]
    pub fn fetches_stages(&self) -> bool {
        matches!(self, AnyServer::ZFabric(_))
    }
    /// Names the memory that the arriving frame of the plan will touch in the stages.
    #[inline(always)]
    pub fn fetch_stages(&self, step: PrefetchStep, plan: &Plan, pool: &Pool<Packet>, fetch: impl Fn(*const u8)) {
        if let Some(at) = plan.arrival()
            && let AnyServer::ZFabric(s) = self
        {
            s.chain().fetch(step, pool.get(at), fetch);
        }
    }
    /// Asks the applications to begin: a wake-up with `token` at time zero.
    pub fn start(&mut self, token: u64) {
        with_server!(self, s => s.start(token));
    }
}
