//! The choice of an output for a frame.

use super::Adaptive;
use crate::device::PortId;
use crate::steering::Steering;
use alloc::boxed::Box;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::routing::Router;
use sluicenet_proto::routing::paths::PathPorts;
use sluicenet_proto::time::Instant;

/// The choice of outputs.
pub trait Route {
    /// The output for a frame.
    ///
    /// # Errors
    /// If no output leads to the frame's destination, the port that is charged with the drop.
    fn route<F: Frame>(&mut self, now: Instant, input: PortId, frame: &F) -> Result<PortId, PortId>;

    /// The steering, if there is one.
    fn steering_mut(&mut self) -> Option<&mut Steering> {
        None
    }
}

impl Route for Router {
    #[inline(always)]
    fn route<F: Frame>(&mut self, _now: Instant, input: PortId, frame: &F) -> Result<PortId, PortId> {
        Router::route(self, frame).ok_or(input)
    }
}

/// A router and, for flows beyond the router's choice, the steering of a fat-tree's switch.
#[derive(Clone, Debug)]
pub struct Steered {
    router: Router,
    steering: Box<Steering>,
}

impl Route for Steered {
    #[inline(always)]
    fn route<F: Frame>(&mut self, now: Instant, input: PortId, frame: &F) -> Result<PortId, PortId> {
        let routed = self.router.route(frame).ok_or(input)?;
        self.steering.route(now, input, frame, routed).ok_or(routed)
    }

    fn steering_mut(&mut self) -> Option<&mut Steering> {
        Some(&mut self.steering)
    }
}

/// A router, and the paths that sources choose.
#[derive(Clone, Debug)]
pub struct BySource {
    router: Router,
    ports: PathPorts,
}

impl Route for BySource {
    #[inline(always)]
    fn route<F: Frame>(&mut self, _now: Instant, input: PortId, frame: &F) -> Result<PortId, PortId> {
        let routed = self.router.route(frame).ok_or(input)?;
        // A notification has the path of the sampled frame, but takes the default path itself.
        let path = if frame.as_notification().is_some() { None } else { frame.path() };
        self.ports.port(path, frame.destination(), routed).map_err(|_| input)
    }
}

/// Either choice, for the switches whose choice is not compiled in.
#[derive(Clone, Debug)]
pub enum AnyRoute {
    /// The router's choice.
    Router(Router),
    /// The steering's choice.
    Steered(Steered),
    /// The source's choice.
    BySource(BySource),
    /// The least congested port.
    Adaptive(Box<Adaptive>),
}

impl From<Router> for AnyRoute {
    fn from(router: Router) -> AnyRoute {
        AnyRoute::Router(router)
    }
}

impl Route for AnyRoute {
    #[inline(always)]
    fn route<F: Frame>(&mut self, now: Instant, input: PortId, frame: &F) -> Result<PortId, PortId> {
        match self {
            AnyRoute::Router(router) => Route::route(router, now, input, frame),
            AnyRoute::Steered(steered) => steered.route(now, input, frame),
            AnyRoute::BySource(paths) => paths.route(now, input, frame),
            AnyRoute::Adaptive(adaptive) => adaptive.route(now, input, frame),
        }
    }

    fn steering_mut(&mut self) -> Option<&mut Steering> {
        match self {
            AnyRoute::Steered(steered) => steered.steering_mut(),
            _ => None,
        }
    }
}

impl Steered {
    /// A router with steering.
    pub(super) fn new(router: Router, steering: Steering) -> Steered {
        Steered { router, steering: Box::new(steering) }
    }

    /// The same router with another steering.
    pub(super) fn with(self, steering: Steering) -> Steered {
        Steered::new(self.router, steering)
    }
}

impl AnyRoute {
    /// The choice of sources among the paths of a tree.
    pub fn by_source(router: Router, ports: PathPorts) -> AnyRoute {
        AnyRoute::BySource(BySource { router, ports })
    }

    /// The same router with this steering.
    pub(super) fn with(self, steering: Steering) -> AnyRoute {
        AnyRoute::Steered(match self {
            AnyRoute::Router(router) => Steered::new(router, steering),
            AnyRoute::Steered(steered) => steered.with(steering),
            AnyRoute::BySource(_) | AnyRoute::Adaptive(_) => unreachable!("these switches have no controller"),
        })
    }
}
