//! The server as the world sees it.

use super::{App, Core, DEADLINES, Io, ServerConfig, Tunnels, ZBridge};
use crate::door::{Device, PortId, PortSet, Step, Wires};
use crate::guest::Guest;
use crate::packet::{Kind, Packet};
use crate::pool::{Handle, Pool};
use alloc::sync::Arc;
use sluicenet_proto::frame::{Frame, HostId, Pause};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::Instant;

/// Cache lines of a guest that a packet touches.
const GUEST_LINES: usize = 2;

/// Cache lines of a socket that an arriving segment touches.
const SOCKET_LINES: usize = 11;

/// A server.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Server<A> {
    core: Core,
    app: A,
}

impl<A: App> Server<A> {
    /// A server with `vms` guests; `router` chooses among several links.
    pub fn new(id: HostId, vms: u8, config: Arc<ServerConfig>, router: Option<Router>, app: A) -> Server<A> {
        assert!((1..=63).contains(&vms));
        Server { core: Core::new(id, vms, config, router), app }
    }

    /// What its applications act on.
    pub fn core(&self) -> &Core {
        &self.core
    }
    /// The same, to collect records.
    pub fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }
    /// Its applications, to look at.
    pub fn app(&self) -> &A {
        &self.app
    }
    /// Its applications.
    pub fn app_mut(&mut self) -> &mut A {
        &mut self.app
    }

    /// Asks the applications to begin: a wake-up with `token` at time zero.
    pub fn start(&mut self, token: u64) {
        self.core.wake_at(Instant::ZERO, token);
    }

    /// A note from another server.
    pub fn receive_note(&mut self, now: Instant, packet: &Packet, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        self.core.receive_note(now, packet);
        self.finish(now, pool, woke);
    }

    /// Lets the applications answer, then moves what can move.
    #[inline(always)]
    fn finish(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        while let Some(event) = self.core.events.pop_front() {
            self.app.handle(now, &mut self.core, event);
        }
        self.core.settle(now, pool);
        self.core.adapter.wake(woke);
    }
}

impl<A: App> Device<Packet> for Server<A> {
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
        let core = &mut self.core;
        let frame = pool.frame(at);
        if let Some(pause) = frame.as_pause() {
            // What fails the check sequence is thrown away unread.
            let pause = if frame.is_corrupt() { Pause::default() } else { pause };
            core.adapter.receive_pause(now, port, &pause);
            pool.release(at);
        } else {
            core.from_wire += 1;
            if frame.is_corrupt() {
                core.drop(pool, DropReason::BadCrc, at);
                return None;
            }
            if core.config.adapter.resequencing.is_none() {
                core.accept(now, pool, at);
            } else {
                let mut in_order = core::mem::take(&mut core.in_order);
                core.adapter.resequence(now, pool, at, &mut |at| in_order.push(at));
                core.note_pauses(now, None);
                for at in in_order.drain(..) {
                    core.accept(now, pool, at);
                }
                core.in_order = in_order;
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
        let core = &mut self.core;
        let sent = core.adapter.poll_transmit(now, port, pool)?;
        if pool.frame(sent).kind() != Kind::Pause {
            core.to_wire += 1;
        }
        // The frame made room: the bridge, or the guests themselves, may go on.
        if core.vswitch.is_some() {
            let has_output =
                || core.zbridge().is_some_and(ZBridge::has_output) || core.tunnels().is_some_and(Tunnels::has_output);
            if core.bridge_ready || core.lossy_ready || has_output() {
                core.settle_virtual(now, pool);
            }
        } else if core.blocked != 0 {
            core.unblock();
            core.pull_all(now, pool);
        }
        core.adapter.wake(woke);
        Some(sent)
    }

    #[inline(always)]
    fn upcoming(&self, port: PortId) -> Option<Handle> {
        self.core.adapter.upcoming(port)
    }

    #[inline(always)]
    fn fetch(
        &self,
        step: Step,
        mut arrivals: impl Iterator<Item = Handle>,
        pool: &Pool<Packet>,
        fetch: impl Fn(*const u8),
    ) {
        let core = &self.core;
        let fetch_guest = |guest: Option<&Guest>| {
            let Some(guest) = guest else { return };
            let first: *const u8 = core::ptr::from_ref(guest).cast();
            (0..GUEST_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
        };
        // One packet of each sort: a window rarely has more for one server, and a burst keeps its memory at hand.
        match step {
            Step::Lists => {
                core.timers.peek().into_iter().for_each(|t| fetch(core::ptr::from_ref(t).cast()));
                core.deadlines.front().into_iter().for_each(|d| fetch(core::ptr::from_ref(d).cast()));
                core.rx.front().into_iter().for_each(|p| fetch(core::ptr::from_ref(p).cast()));
            }
            Step::Frames => {
                core.rx.front().into_iter().for_each(|p| fetch(core::ptr::from_ref(pool.frame(p.packet)).cast()));
                match core.deadlines.front() {
                    Some(&(_, what)) => fetch_guest(core.guests.get((what / DEADLINES) as usize)),
                    None => fetch_guest(core.guests.first()),
                }
            }
            Step::Index | Step::Sockets => {
                if let Some(&(_, what)) = core.deadlines.front()
                    && let Some(next) = core.guests.get((what / DEADLINES) as usize).and_then(|guest| guest.tx.front())
                {
                    match step {
                        Step::Index => fetch(core::ptr::from_ref(next).cast()),
                        _ => fetch(core::ptr::from_ref(pool.frame(next.packet)).cast()),
                    }
                }
                let packet = if core.vswitch.is_some() { core.rx.front().map(|p| p.packet) } else { arrivals.next() };
                let Some(packet) = packet else { return };
                let flow = pool.frame(packet).flow().reverse();
                let Some(guest) = core.guests.get(flow.src.vm() as usize) else { return };
                if step == Step::Index {
                    guest.sockets.index_line(&flow).into_iter().for_each(fetch);
                } else if let Some(at) = guest.sockets.find(&flow).and_then(|number| guest.sockets.socket_line(number))
                {
                    (0..SOCKET_LINES).for_each(|line| fetch(at.wrapping_add(64 * line)));
                }
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        let core = &mut self.core;
        core.run_lines(now, pool);
        core.run_timers(now);
        if core.adapter.poll_timeout().is_some_and(|at| at <= now) {
            let mut in_order = core::mem::take(&mut core.in_order);
            core.adapter.handle_timeout(now, &mut |at| in_order.push(at));
            core.note_pauses(now, None);
            for at in in_order.drain(..) {
                core.accept(now, pool, at);
            }
            core.in_order = in_order;
        }
        self.finish(now, pool, woke);
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        let core = &self.core;
        let timers = core.timers.peek().map_or(Instant::MAX, |r| r.0.0);
        core.deadlines.first().min(core.rx.first()).min(timers).min(core.adapter.poll_timeout().unwrap_or(Instant::MAX))
    }
}
