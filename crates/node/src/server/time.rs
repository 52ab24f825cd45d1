//! Timers of sockets and applications, and pauses that the adapter sent.

use super::app::Event;
use super::host::{APP_TIMER, Host, PACE_TIMER, SOCKET_TIMER};
use super::roce;
use crate::deadlines::Timer;
use crate::device::PortId;
use crate::guest::{Body, SocketId};
use crate::switch::{Cause, PauseEvent};
use sluicenet_proto::tcp;
use sluicenet_proto::time::Instant;

impl Host {
    /// Runs the timers of sockets and applications that have expired. Returns the next timer of a stage.
    pub(super) fn next_timer(&mut self, now: Instant) -> Option<Timer> {
        while let Some(timer) = self.timers.pop(now) {
            let (at, class, token) = timer;
            let id = SocketId { vm: (token >> 32) as u8, index: token as u32 };
            match class {
                SOCKET_TIMER => self.run_socket_timer(now, at, id),
                PACE_TIMER => self.refresh(now, id),
                APP_TIMER => self.events.push_back(Event::Wake { token }),
                _ => return Some(timer),
            }
        }
        None
    }

    fn run_socket_timer(&mut self, now: Instant, at: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        if s.timer_at != at {
            return; // an earlier entry took its place
        }
        s.timer_at = Instant::MAX;
        let tcp = match &mut s.body {
            Body::Tcp(tcp) => tcp,
            Body::Roce(pair) => {
                pair.handle_timeout(&self.config.roce, now);
                roce::keep_deadline(now, &mut self.timers, s, id);
                return self.refresh(now, id);
            }
            Body::Udp(..) | Body::Light(_) => return,
        };
        if tcp.poll_timeout().is_some_and(|deadline| deadline <= now) {
            tcp.handle_timeout(&self.config.tcp, now);
            if tcp.state() == tcp::State::Closed {
                return self.ended(now, id, true);
            }
        }
        self.refresh(now, id);
    }

    /// Records the pauses that the adapter sent since the last call. Their cause is a VM that does not take its frames,
    /// or frames that wait for earlier ones.
    #[inline(always)]
    pub(super) fn record_pauses(&mut self, now: Instant, vm: Option<u8>) {
        for (priority, stop) in self.adapter.take_told() {
            for port in 0..self.adapter.ports() as PortId {
                let cause = vm.map_or(Cause::Link(port), Cause::Vm);
                self.pauses.push(PauseEvent { at: now, port, priority, stop, cause, cause_is_paused: false });
            }
        }
    }
}
