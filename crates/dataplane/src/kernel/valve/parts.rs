//! An open valve, which one process can hand over to another.

use super::listening::Poller;
use crate::kernel::edge::{Edge, EdgeFacts};
use crate::kernel::netlink::Netlink;
use crate::kernel::parts::{Descriptors, Parts};
use crate::kernel::tenant_queue::{QueueFacts, TenantQueue};
use crate::kernel::truesize::TrueSize;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;

/// A valve that can be polled, and is not served yet.
#[derive(Debug)]
pub struct OpenValve {
    pub(super) program: Option<OwnedFd>,
    pub(super) socket: OwnedFd,
    pub(super) poller: Poller,
    /// For later changes of the number.
    pub(super) reserve: Vec<Poller>,
    /// The claim on the namespace.
    pub(super) owner: OwnedFd,
    /// For questions to the tenant's kernel about its sockets.
    pub(super) diag: Netlink,
    /// For questions about its addresses.
    pub(super) routes: Netlink,
    /// The tenant's device: its number, its address, its queue, which is shut.
    pub(super) device: u32,
    pub(super) station: [u8; 6],
    pub(super) tenant_queue: TenantQueue,
    /// The longest payload of the pair.
    pub(super) mtu: u32,
    pub(super) charges: TrueSize,
    pub(super) edge: Edge,
}

/// The facts about an open valve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValveFacts {
    device: u32,
    station: [u8; 6],
    mtu: u32,
    charges: TrueSize,
    /// The ports of the polling sockets.
    poller: u16,
    reserve: Vec<u16>,
    queue: QueueFacts,
    edge: EdgeFacts,
    has_program: bool,
}

impl OpenValve {
    /// Its parts.
    pub fn into_parts(self) -> Parts<ValveFacts> {
        let OpenValve { program, socket, poller, reserve, owner, diag, routes, tenant_queue, edge, .. } = self;
        let (queue, of_queue) = tenant_queue.into_parts();
        let (edge, of_edge) = edge.into_parts();
        let facts = ValveFacts {
            device: self.device,
            station: self.station,
            mtu: self.mtu,
            charges: self.charges,
            poller: poller.port,
            reserve: reserve.iter().map(|poller| poller.port).collect(),
            queue,
            edge,
            has_program: program.is_some(),
        };
        let mut descriptors = vec![socket, owner, diag.into_socket(), routes.into_socket(), poller.fd];
        descriptors.extend(reserve.into_iter().map(|poller| poller.fd));
        descriptors.extend(of_queue.into_iter().chain(of_edge).chain(program));
        Parts { facts, descriptors }
    }

    /// The valve of these parts.
    ///
    /// # Errors
    /// The descriptors are not as many as the facts say.
    pub fn of(parts: Parts<ValveFacts>) -> io::Result<OpenValve> {
        let Parts { facts, descriptors } = parts;
        let mut all = Descriptors::of(descriptors);
        let (socket, owner) = (all.next()?, all.next()?);
        let (diag, routes) = (Netlink::of(all.next()?), Netlink::of(all.next()?));
        let poller = Poller { fd: all.next()?, port: facts.poller };
        let reserve = facts.reserve.iter().map(|&port| Ok(Poller { fd: all.next()?, port }));
        let reserve = reserve.collect::<io::Result<_>>()?;
        let tenant_queue = TenantQueue::of(&facts.queue, &mut all)?;
        let edge = Edge::of(facts.edge, &mut all)?;
        let program = all.next_if(facts.has_program)?;
        all.end()?;
        let ValveFacts { device, station, mtu, charges, .. } = facts;
        Ok(OpenValve {
            program,
            socket,
            poller,
            reserve,
            owner,
            diag,
            routes,
            device,
            station,
            tenant_queue,
            mtu,
            charges,
            edge,
        })
    }
}
