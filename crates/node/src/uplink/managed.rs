//! Queues with [rate limiters](Limits), with [enhanced transmission selection](Ets), or with both.

use super::limits::{Limited, Limits};
use super::queues::{Outgoing, Queues, Waiting};
use alloc::vec::Vec;
use sluicenet_proto::cee::ets::{Ets, EtsConfig};
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::{FCS_LEN, MacAddress};

/// The selection among classes.
#[derive(Clone, Debug)]
struct Selection {
    config: EtsConfig,
    state: Ets,
    /// The state before the current choice.
    before: Ets,
}

/// Queues of an uplink that limits rates of destinations, or shares the link among classes by bandwidth.
#[derive(Debug)]
pub struct Managed<T> {
    queues: Queues<T>,
    limits: Option<Limits<T>>,
    selection: Option<Selection>,
    /// The limited queue of the chosen frame; of the class itself where absent.
    chosen: Option<u64>,
    /// Classes that sent a limited frame last: their other frames are next.
    limited_last: PrioritySet,
}

impl<T: Limited> Managed<T> {
    /// Queues with these parts.
    pub fn new(limits: Option<Limits<T>>, ets: Option<EtsConfig>) -> Managed<T> {
        let selection = |config| Selection { config, state: Ets::default(), before: Ets::default() };
        Managed {
            queues: Queues::default(),
            limits,
            selection: ets.map(selection),
            chosen: None,
            limited_last: PrioritySet::NONE,
        }
    }

    /// The limiters, if there are any.
    pub fn limits(&self) -> Option<&Limits<T>> {
        self.limits.as_ref()
    }

    /// Handles a congestion notification, in its frame. It must be for the station `own`, if one is given. No choice may be
    /// open.
    pub(super) fn on_notification(&mut self, now: Instant, bytes: &[u8], own: Option<MacAddress>) {
        let Managed { queues, limits: Some(limits), .. } = self else { return };
        limits.on_notification(now, bytes, own, |p, is_its| {
            let queue = &mut queues.queues[p as usize];
            let all = core::mem::take(&mut queue.frames);
            let (taken, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|waiting| is_its(&waiting.frame));
            queue.frames = kept.into();
            queue.bytes -= taken.iter().map(|waiting| u64::from(waiting.len)).sum::<u64>();
            if queue.frames.is_empty() {
                queues.ready.remove(p);
            }
            taken
        });
    }

    /// The queue of class `p` that sends next: a limited one, or that of the class itself.
    fn queue_of(&self, now: Instant, p: Priority) -> Option<u64> {
        let first = self.limits.as_ref()?.first(now, p)?;
        let others_turn = self.limited_last.contains(p) && self.queues.ready.contains(p);
        (!others_turn).then_some(first)
    }

    /// The frame that class `p` sends next, from this queue.
    fn first_of(&self, p: Priority, queue: Option<u64>) -> Option<&Waiting<T>> {
        match (queue, &self.limits) {
            (Some(of), Some(limits)) => limits.front(p, of),
            _ => self.queues.queues[p as usize].frames.front(),
        }
    }
}

impl<T: Limited> Outgoing<T> for Managed<T> {
    const IS_MANAGED: bool = true;

    fn push(&mut self, now: Instant, p: Priority, mut frame: Waiting<T>) {
        if let Some(limits) = &mut self.limits {
            if limits.by_flow() {
                frame.len += frame.frame.tag();
            }
            match limits.hold(p, frame) {
                Some(other) => frame = other,
                None => return,
            }
        }
        self.queues.push(now, p, frame);
    }
    fn has_room(&self, p: Priority, most: u64) -> bool {
        self.queues.has_room(p, most) && self.limits.as_ref().is_none_or(|limits| limits.class_has_room(p))
    }
    fn ready(&self, now: Instant) -> PrioritySet {
        let limited = self.limits.as_ref().map_or(PrioritySet::NONE, |limits| limits.ready(now));
        PrioritySet(self.queues.ready.0 | limited.0)
    }
    fn choose(&mut self, now: Instant, among: PrioritySet) -> Option<Priority> {
        let backlogged = self.ready(now);
        let p = match self.selection.take() {
            None => among.next_after(self.queues.turn),
            Some(mut selection) => {
                selection.before = selection.state.clone();
                let bytes = |p: Priority| {
                    let first = self.first_of(p, self.queue_of(now, p));
                    first.map_or(0, |waiting| waiting.len + FCS_LEN as u32)
                };
                let p = selection.state.next(&selection.config, backlogged, among, bytes);
                self.selection = Some(selection);
                p
            }
        }?;
        self.chosen = self.queue_of(now, p);
        Some(p)
    }
    fn unchoose(&mut self) {
        if let Some(selection) = &mut self.selection {
            selection.state = selection.before.clone();
        }
        self.chosen = None;
    }
    fn front(&self, p: Priority) -> Option<&T> {
        self.first_of(p, self.chosen).map(|waiting| &waiting.frame)
    }
    fn pop(&mut self, now: Instant, p: Priority) -> Option<Waiting<T>> {
        let frame = match (self.chosen.take(), &mut self.limits) {
            (Some(of), Some(limits)) => {
                self.limited_last.insert(p);
                self.queues.turn = p;
                limits.pop(now, p, of)?
            }
            (_, limits) => {
                self.limited_last.remove(p);
                let frame = self.queues.pop(now, p)?;
                if let Some(limits) = limits {
                    limits.on_sent(now, p, &frame.frame);
                }
                frame
            }
        };
        Some(frame)
    }
    fn clear(&mut self, p: Priority, each: &mut dyn FnMut(Waiting<T>)) {
        self.queues.clear(p, each);
        if let Some(limits) = &mut self.limits {
            limits.clear(p, each);
        }
    }
    fn frames(&self) -> usize {
        self.queues.frames() + self.limits.as_ref().map_or(0, Limits::frames)
    }
    fn next_departure(&self, paused: PrioritySet) -> Option<Instant> {
        let limited = self.limits.as_ref().and_then(|limits| limits.next_departure(paused));
        self.queues.next_departure(paused).or(limited)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.limits.as_ref().and_then(Limits::poll_timeout)
    }
    fn handle_timeout(&mut self, now: Instant) {
        if let Some(limits) = &mut self.limits {
            limits.handle_timeout(now);
        }
    }
}
