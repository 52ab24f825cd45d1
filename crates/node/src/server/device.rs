//! The server as the world sees it.

use super::app::{App, Io};
use super::chain::Chain;
use super::host::Host;
use super::stages::Report;
use super::{ServerConfig, ServerLedger};
use crate::adapter::{Extended, Kind as _};
use crate::device::{Device, PortId, PortSet, Wires};
use crate::packet::{Kind, Packet};
use crate::pool::{Handle, Pool};
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::frame::{Frame, HostId, Pause};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::Instant;

/// A server with a chain `C` and applications `A`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Server<A, C> {
    host: Host,
    chain: C,
    app: A,
}

impl<A: App, C: Chain> Server<A, C> {
    /// A server with `vms` guests; `router` chooses among several links, `chain` makes the chain of this host.
    pub fn new(
        id: HostId,
        vms: u8,
        config: Arc<ServerConfig>,
        router: Option<Router>,
        chain: impl FnOnce(&mut Host) -> C,
        app: A,
    ) -> Server<A, C> {
        assert!((1..=63).contains(&vms));
        let mut host = Host::new(id, vms, config, router);
        let chain = chain(&mut host);
        Server { host, chain, app }
    }

    /// The server's guests and its adapter.
    pub fn host(&self) -> &Host {
        &self.host
    }
    /// The server's guests and its adapter, to collect records.
    pub fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }
    /// The chain between guests and wire.
    #[inline(always)]
    pub(super) fn chain(&self) -> &C {
        &self.chain
    }
    /// The server's applications, read-only.
    pub fn app(&self) -> &A {
        &self.app
    }
    /// The server's applications.
    pub fn app_mut(&mut self) -> &mut A {
        &mut self.app
    }
    /// The accounts of the server's stages.
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        self.chain.report(&mut report);
        report
    }
    /// The ledger of the server's packets.
    pub fn ledger(&self) -> ServerLedger {
        self.host.ledger(&self.report())
    }

    /// Asks the applications to begin: a wake-up with `token` at time zero.
    pub fn start(&mut self, token: u64) {
        self.host.wake_at(Instant::ZERO, token);
    }

    /// Receives message metadata from another server: for sockets and applications here, or for a stage.
    pub fn receive_metadata(&mut self, now: Instant, packet: &Packet, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        if packet.kind() == Kind::Metadata {
            self.host.receive_metadata(now, packet);
        } else {
            self.chain.receive_metadata(now, &mut self.host, pool, packet);
        }
        self.finish(now, pool, woke);
    }

    /// Handles frames that the adapter has put in order.
    #[inline(never)]
    fn receive_in_order(&mut self, now: Instant, pool: &mut Pool<Packet>, mut in_order: Vec<Handle>) {
        self.host.record_pauses(now, None);
        for at in in_order.drain(..) {
            self.chain.receive(now, &mut self.host, pool, at);
        }
        self.host.in_order = in_order;
    }

    /// Lets the applications answer, then moves the packets that can move.
    #[inline(always)]
    fn finish(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        while let Some(event) = self.host.events.pop_front() {
            self.app.handle(now, &mut self.host, event);
        }
        self.chain.settle(now, &mut self.host, pool);
        self.host.adapter.wake::<C::Adapter>(woke);
    }
}

impl<A: App, C: Chain> Device<Packet> for Server<A, C> {
    #[inline(always)]
    fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        at: Handle,
        pool: &mut Pool<Packet>,
        _wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId> {
        let host = &mut self.host;
        let frame = pool.frame(at);
        if let Some(pause) = frame.as_pause() {
            // A pause frame that fails the check sequence is discarded unread.
            let pause = if frame.is_corrupt() { Pause::default() } else { pause };
            host.adapter.receive_pause(now, port, &pause);
            pool.release(at);
        } else {
            host.from_wire += 1;
            if frame.is_corrupt() {
                host.drop(pool, DropReason::BadCrc, at);
                return None;
            }
            if C::Adapter::of(&host.adapter).is_some_and(|extended| extended.takes_notifications)
                && frame.kind() == Kind::Notification
            {
                host.adapter.on_notification(now, frame);
                host.notified += 1;
                pool.release(at);
            } else if !C::Adapter::of(&host.adapter).is_some_and(Extended::resequences) {
                if !self.chain.receive(now, host, pool, at) {
                    return None;
                }
            } else {
                let mut in_order = core::mem::take(&mut host.in_order);
                host.adapter.resequence(now, pool, at, &mut |at| in_order.push(at));
                self.receive_in_order(now, pool, in_order);
            }
        }
        self.finish(now, pool, woke);
        None
    }

    #[inline(always)]
    fn poll_transmit(
        &mut self,
        now: Instant,
        port: PortId,
        pool: &mut Pool<Packet>,
        woke: &mut PortSet,
    ) -> Option<Handle> {
        let host = &mut self.host;
        let sent = host.adapter.poll_transmit::<C::Adapter, _>(now, port, pool)?;
        if pool.frame(sent).kind() != Kind::Pause {
            host.to_wire += 1;
        }
        self.chain.on_transmit(now, host, pool);
        host.adapter.wake::<C::Adapter>(woke);
        Some(sent)
    }

    #[inline(never)]
    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        let host = &mut self.host;
        self.chain.run_deadlines(now, host, pool);
        self.chain.run_timers(now, host, pool);
        if host.adapter.poll_timeout().is_some_and(|at| at <= now) {
            let mut in_order = core::mem::take(&mut host.in_order);
            host.adapter.handle_timeout(now, &mut |at| in_order.push(at));
            self.receive_in_order(now, pool, in_order);
        }
        self.finish(now, pool, woke);
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        let host = &self.host;
        let adapter = host.adapter.poll_timeout().unwrap_or(Instant::MAX);
        host.deadlines.first().min(host.rx.first()).min(host.timers.first()).min(adapter)
    }

    #[inline(always)]
    fn next_frame(&self, _sent: Handle, _pool: &Pool<Packet>) -> Handle {
        self.host.adapter.front()
    }
}
