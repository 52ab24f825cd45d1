//! Frames that wait for the controller: their bounds, the duration of their wait, and its outcome.

use super::{Event, INSIST, Outward, Vtep};
use crate::uplink::Origin;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::cache::{Answer, Found};
use sluicenet_proto::overlay::mapping::{By, Mapping, Question, StationId};
use sluicenet_proto::overlay::neighbours;
use sluicenet_proto::time::Instant;

#[derive(Clone, Debug)]
pub(super) enum Parked<C> {
    Out(Vec<u8>, Priority, Origin),
    /// A frame from the link, with the server that sent it and its bound.
    In(C, Ipv4Addr, Bound),
    /// An ARP request or a neighbour solicitation, and its frame.
    Request(neighbours::Request, Vec<u8>, Priority),
}

/// The bound of a parked frame from the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// The receive buffer of a lossless class, for no longer than a question takes: a longer wait would also hold back
    /// frames of known stations.
    Buffer,
    /// The tenant's share; the frame waits until the controller answers.
    Aside,
    /// The tenant's share; the frame is dropped when the controller says nothing.
    Share,
}

impl<C> Parked<C> {
    /// Whether the frame came from the link and waits until the controller answers.
    pub(super) fn is_aside(&self) -> bool {
        matches!(self, Parked::In(_, _, Bound::Aside))
    }
}

impl<C: Copy> Vtep<C> {
    /// Parks a frame whose sender has to be asked about, as [`Vtep::inward`] said. A `lossless` frame stays in the
    /// caller's receive buffer; where nobody can be asked now, it waits outside the buffer, within its tenant's share.
    /// `Err` when the frame must be dropped.
    pub fn park(
        &mut self,
        now: Instant,
        station: StationId,
        from: Ipv4Addr,
        cargo: C,
        lossless: bool,
    ) -> Result<(), DropReason> {
        let question = Question { vni: station.vni, by: By::Mac(station.mac) };
        let is_asked = !self.cache.is_silent(now) && self.cache.is_asked(question);
        let waits = match (lossless, is_asked) {
            (true, true) => {
                self.keep(question, false, Parked::In(cargo, from, Bound::Buffer));
                true
            }
            (true, false) => {
                let has_room = self.wait(question, || Parked::In(cargo, from, Bound::Aside));
                if has_room {
                    self.events.push_back(Event::Aside(cargo));
                    self.insist(now, question);
                }
                has_room
            }
            (false, true) => self.wait(question, || Parked::In(cargo, from, Bound::Share)),
            (false, false) => false,
        };
        if waits { Ok(()) } else { Err(DropReason::Unresolved) }
    }

    /// Whether a tenant may have another frame parked.
    pub(super) fn has_room(&self, vni: u32) -> bool {
        let of_tenant = self.of_tenant.get(&vni).copied().unwrap_or(0);
        of_tenant < self.config.parked_per_tenant && self.shared < self.config.parked
    }

    pub(super) fn wait(&mut self, question: Question, frame: impl FnOnce() -> Parked<C>) -> bool {
        let has_room = self.has_room(question.vni);
        match has_room {
            true => self.keep(question, true, frame()),
            false => self.counters.parked_full += 1,
        }
        has_room
    }

    /// Parks a frame; `counts` is whether the frame counts as its tenant's, or is bounded otherwise.
    pub(super) fn keep(&mut self, question: Question, counts: bool, frame: Parked<C>) {
        if counts {
            *self.of_tenant.entry(question.vni).or_default() += 1;
            self.shared += 1;
        }
        self.total += 1;
        self.counters.parked += 1;
        self.parked.entry(question).or_default().push_back(frame);
    }

    /// Schedules another look-up of a question for the frames that wait for its answer.
    pub(super) fn insist(&mut self, now: Instant, question: Question) {
        if self.insists.is_empty() {
            self.insists_at = now + INSIST;
        }
        self.insists.insert(question);
    }

    /// Looks up again the questions that nobody could be asked.
    pub(super) fn look_again(&mut self, now: Instant) {
        for question in core::mem::take(&mut self.insists) {
            match self.cache.lookup(now, question) {
                Found::Asked => {}
                Found::Silent | Found::Limited => self.insist(now, question),
                Found::Known(mapping) => self.end_wait(now, question, Answer::Known(mapping)),
                Found::Unknown => self.end_wait(now, question, Answer::Unknown),
            }
        }
    }

    /// Parked frames of tenants on this server.
    pub fn parked_out(&self) -> usize {
        let of_tenant = |p: &&Parked<C>| !matches!(p, Parked::In(..) | Parked::Out(_, _, Origin::Own));
        let parked = self.parked.values().flatten().filter(of_tenant).count();
        let of_switch = |e: &&Event<C>| {
            let is_sent = matches!(e, Event::Send(_, _, Origin::Switch) | Event::Into(_, _, Origin::Switch));
            is_sent || matches!(e, Event::Copies(..) | Event::DropOut(..))
        };
        // Frames whose wait has ended and whose outcome was not yet polled.
        parked + self.events.iter().filter(|e| of_switch(e)).count()
    }

    /// Ends a question and the wait of its frames. If nobody answered, frames of a lossless class go on waiting.
    pub(super) fn end_wait(&mut self, now: Instant, question: Question, answer: Answer) {
        let mut frames = self.parked.remove(&question).unwrap_or_default();
        if answer == Answer::Silent {
            let (mut kept, mut given_up) = (VecDeque::new(), VecDeque::new());
            for mut parked in frames {
                if let Parked::In(cargo, _, bound @ Bound::Buffer) = &mut parked
                    && self.has_room(question.vni)
                {
                    *bound = Bound::Aside;
                    self.events.push_back(Event::Aside(*cargo));
                    *self.of_tenant.entry(question.vni).or_default() += 1;
                    self.shared += 1;
                }
                let waits_on = match &parked {
                    Parked::Out(_, priority, Origin::Switch) => self.lossless.contains(*priority),
                    other => other.is_aside(),
                };
                if waits_on { kept.push_back(parked) } else { given_up.push_back(parked) }
            }
            frames = given_up;
            if !kept.is_empty() {
                self.counters.parked_on += 1;
                self.parked.insert(question, kept);
                self.insist(now, question);
            }
        }
        let shared = frames.iter().filter(|f| !matches!(f, Parked::In(_, _, Bound::Buffer))).count();
        self.total -= frames.len();
        self.shared -= shared;
        if let Some(of_tenant) = self.of_tenant.get_mut(&question.vni) {
            *of_tenant -= shared;
        }
        let mapping = answer.mapping();
        for parked in frames {
            self.resolve(now, question.vni, mapping.as_ref(), parked);
        }
    }

    fn resolve(&mut self, now: Instant, vni: u32, mapping: Option<&Mapping>, parked: Parked<C>) {
        let domain = self.tunnel.domain(vni).unwrap_or_default();
        let event = match (parked, mapping) {
            (Parked::In(cargo, from, _), Some(mapping)) if mapping.location == from => {
                self.counters.decapsulated += 1;
                Event::Deliver(cargo)
            }
            (Parked::In(cargo, ..), Some(_)) => Event::Drop(cargo, DropReason::ForgedSource),
            (Parked::In(cargo, ..), None) => Event::Drop(cargo, DropReason::Unresolved),
            (Parked::Out(frame, priority, origin), Some(mapping)) => {
                let mut out = Vec::new();
                match self.send(now, [&frame, &[]], mapping, priority, &mut out) {
                    Outward::Send => Event::Send(out, priority, origin),
                    Outward::Into(server) => Event::Into(out, server, origin),
                    Outward::Drop(..) if origin == Origin::Own => return,
                    Outward::Drop(reason, told) => {
                        self.events.extend(told.map(|told| Event::Reply(told, domain, priority)));
                        Event::DropOut(reason, frame.len() as u32)
                    }
                    Outward::Cut
                    | Outward::Parked
                    | Outward::NotNow
                    | Outward::Copies(_)
                    | Outward::Ended
                    | Outward::Reply(_) => {
                        unreachable!("a parked frame fits: it is sent or dropped")
                    }
                }
            }
            (Parked::Out(_, _, Origin::Own), None) => return,
            (Parked::Out(frame, ..), None) => Event::DropOut(DropReason::Unresolved, frame.len() as u32),
            (Parked::Request(request, _, priority), Some(mapping)) if !request.is_from(mapping.station.mac) => {
                match self.answer(&request, mapping) {
                    Outward::Reply(frame) => Event::Reply(frame, domain, priority),
                    _ => return,
                }
            }
            (Parked::Request(request, frame, priority), _) => match self.ask_all(now, &frame, request.from(vni)) {
                Outward::Copies(servers) => Event::Copies(frame, servers, domain, priority),
                Outward::Drop(reason, _) => Event::DropOut(reason, frame.len() as u32),
                _ => return,
            },
        };
        self.events.push_back(event);
    }
}
