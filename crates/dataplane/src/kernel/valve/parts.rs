//! An open valve, which one process can hand over to another.

use super::pollers::Pollers;
use crate::kernel::edge::{Edge, EdgeFacts};
use crate::kernel::keeper::Keeper;
use crate::kernel::netlink::Netlink;
use crate::kernel::parts::{Descriptors, Parts};
use crate::kernel::tenant_queue::TenantQueue;
use crate::kernel::truesize::TrueSize;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;

/// The sockets of a valve at the switch's end of its pair.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Attached as long as it is open.
    pub program: Option<OwnedFd>,
    pub socket: OwnedFd,
    pub pollers: Pollers,
    /// For a later change of the number.
    pub reserve: Pollers,
    /// The claim on the namespace, valid while this is open.
    pub owner: OwnedFd,
}

/// A valve that can be polled, and is not served yet.
#[derive(Debug)]
pub struct OpenValve {
    pub(super) sockets: Sockets,
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
    pollers: u16,
    reserve: u16,
    edge: EdgeFacts,
    has_program: bool,
}

impl OpenValve {
    /// Its parts, and its keeper, which stays in this process.
    pub fn into_parts(self) -> (Parts<ValveFacts>, Box<dyn Keeper>) {
        let OpenValve { sockets, diag, routes, tenant_queue, edge, .. } = self;
        let Sockets { program, socket, pollers, reserve, owner } = sockets;
        let (keeper, of_queue) = tenant_queue.into_parts();
        let [(pollers, of_pollers), (reserve, of_reserve)] = [pollers, reserve].map(Pollers::into_parts);
        let (edge, of_edge) = edge.into_parts();
        let facts = ValveFacts {
            device: self.device,
            station: self.station,
            mtu: self.mtu,
            charges: self.charges,
            pollers,
            reserve,
            edge,
            has_program: program.is_some(),
        };
        let mut descriptors = vec![socket, owner, diag.into_socket(), routes.into_socket()];
        descriptors.extend(of_pollers.into_iter().chain(of_reserve));
        descriptors.extend(of_queue.into_iter().chain(of_edge).chain(program));
        (Parts { facts, descriptors }, keeper)
    }

    /// The valve of these parts, with a keeper that shuts its tenant's queue.
    ///
    /// # Errors
    /// The descriptors are not as many as the facts say.
    pub fn of(parts: Parts<ValveFacts>, keeper: Box<dyn Keeper>) -> io::Result<OpenValve> {
        let Parts { facts, descriptors } = parts;
        let mut all = Descriptors::of(descriptors);
        let (socket, owner) = (all.next()?, all.next()?);
        let (diag, routes) = (Netlink::of(all.next()?), Netlink::of(all.next()?));
        let pollers = Pollers::next(facts.pollers, &mut all)?;
        let reserve = Pollers::next(facts.reserve, &mut all)?;
        let tenant_queue = TenantQueue::of(keeper, &mut all)?;
        let edge = Edge::of(facts.edge, &mut all)?;
        let program = all.next_if(facts.has_program)?;
        all.end()?;
        let ValveFacts { device, station, mtu, charges, .. } = facts;
        let sockets = Sockets { program, socket, pollers, reserve, owner };
        Ok(OpenValve { sockets, diag, routes, device, station, tenant_queue, mtu, charges, edge })
    }
}
