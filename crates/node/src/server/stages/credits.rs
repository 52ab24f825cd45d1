//! Credits between a server's machines and its vSwitch ([`crate::credits`]): a gate stage.

use super::{Context, Flow, Lane, Report, Stage, StageConfig};
use crate::credits;
use crate::packet::{Address, Kind, Packet};
use crate::pool::Handle;
use crate::server::PrefetchStep;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zcredit::Message;

/// Settings of credits.
#[derive(Clone, Debug)]
pub struct CreditsConfig {
    /// Those of each VM.
    pub credits: credits::CreditConfig,
    /// Machines whose turns are longer where credits are granted in turn, and how many times so.
    pub weights: Arc<BTreeMap<Address, u32>>,
}

impl StageConfig for CreditsConfig {
    fn stage(&self, host: HostId, vms: usize, _seed: u64) -> Box<dyn Stage> {
        Box::new(Credits::new(self, host, vms))
    }
}

/// zCredit for the VMs of a server.
#[derive(Debug)]
pub struct Credits {
    credits: credits::Credits<Address, Handle>,
    host: HostId,
    /// Weights of the sources that have one other than 1.
    weights: Arc<BTreeMap<Address, u32>>,
    expected: VecDeque<Flow>,
}

impl Credits {
    /// Credits of a server with so many VMs, none of which has sent anything.
    pub fn new(config: &CreditsConfig, host: HostId, vms: usize) -> Credits {
        let credits = credits::Credits::new(config.credits, vms);
        Credits { credits, host, weights: config.weights.clone(), expected: VecDeque::new() }
    }

    /// Names the memory that a frame from the network will touch.
    #[inline(always)]
    pub fn fetch(&self, step: PrefetchStep, packet: &Packet, fetch: impl Fn(*const u8)) {
        let (vm, from) = (packet.dst().vm() as usize, packet.src());
        match step {
            PrefetchStep::Frames => self.credits.lines(vm).for_each(fetch),
            PrefetchStep::Index => fetch(self.credits.reception(vm).place_line(from)),
            PrefetchStep::Sockets => self.credits.reception(vm).lines(from).for_each(fetch),
            PrefetchStep::Lists | PrefetchStep::Unusual | PrefetchStep::Losses => {}
        }
    }
}

impl Stage for Credits {
    #[inline(always)]
    fn has_room(&self, lane: Lane, _below: bool) -> bool {
        self.credits.has_room(lane)
    }
    #[inline(always)]
    fn blocks(&mut self, lane: Lane, to: Address, socket: u32) -> bool {
        self.credits.parks(lane, to, socket)
    }
    #[inline(always)]
    fn on_launch(&mut self, lane: Lane, to: Address) {
        self.credits.on_launch(lane, to);
    }

    fn send(&mut self, _now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        self.credits.enqueue(lane, cx.frame(at).dst(), at);
        None
    }
    #[inline(always)]
    fn poll_expected(&mut self) -> Option<Flow> {
        self.expected.pop_front()
    }
    #[inline(always)]
    fn ready(&self) -> u64 {
        self.credits.ready()
    }
    fn poll_transmit(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        let priority = self.credits.config().priority;
        if let Some((to, channel, message)) = self.credits.poll_message(now, lane) {
            if matches!(message, Message::Request { .. })
                && let Some(&at) = self.credits.first_waiting(lane, to)
            {
                self.expected.push_back(Flow { vm: lane as u8, to, priority: cx.frame(at).priority() });
            }
            let own = Address::new(self.host, lane as u8);
            return Some(cx.insert(&Packet::credit(own, to, channel, &message, priority, cx.framing())));
        }
        if let Some((at, freed)) = self.credits.poll_frame(lane, |_| true) {
            cx.wake_sockets(lane, freed);
            return Some(at);
        }
        self.credits.sleep(lane);
        // Only now: a message that found no room below is overdue, and a deadline for it would come at once, again and again.
        if let Some(at) = self.credits.arm(lane) {
            cx.set_timer(at, lane as u64);
        }
        None
    }

    fn has_receive_queues(&self) -> bool {
        true
    }
    fn receive(&mut self, now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let packet = cx.frame(at);
        let from = packet.src();
        if packet.kind() == Kind::Credit {
            let (channel, message) = packet.credit_message();
            cx.release(at);
            if let Some(&weight) = self.weights.get(&from) {
                // Every time: a source that was idle for long may have been forgotten.
                self.credits.set_weight(now, lane, from, weight);
            }
            // A simulated server forgets nobody: its connections last.
            self.credits.on_message(now, lane, from, channel, &message);
        } else if let Err(at) = self.credits.receive(now, lane, from, at) {
            cx.drop(DropReason::NoCredit, at);
        }
        None
    }
    #[inline(always)]
    fn has_received(&self, lane: Lane) -> bool {
        self.credits.has_received(lane)
    }
    fn poll_receive(&mut self, now: Instant, lane: Lane, _cx: &mut Context<'_>) -> Option<Handle> {
        let at = self.credits.take(lane)?;
        self.credits.on_departure(now, lane);
        Some(at)
    }

    fn handle_timer(&mut self, now: Instant, at: Instant, _slot: u8, token: u64, _cx: &mut Context<'_>) {
        let lane = token as Lane;
        if self.credits.armed_at(lane) == at {
            self.credits.handle_timeout(now, lane);
        }
    }

    fn report(&self, report: &mut Report) {
        let (made, consumed) = self.credits.messages();
        report.made += made;
        report.consumed += consumed;
        report.queued += self.credits.queued();
        report.receive_queue_max = report.receive_queue_max.max(Some(self.credits.received_max()));
        if !self.credits.is_sound() {
            report.unsound.push("credits");
        }
    }
}
