//! Where frames wait for room in the sockets they are for.
//!
//! A UDP socket that is full throws datagrams away, and no device tells. So the kernel is asked what a socket has room for
//! before frames are handed over, and each frame is charged what the kernel will charge. One owner of the credit for each
//! socket, whoever sends to it: two senders to one socket share a place, two sockets have two.
//!
//! - What the kernel has been handed and has not yet given to a socket counts as if it were there.
//! - A datagram in fragments is charged the most there is when its first fragment goes, and settled when its last goes: until
//!   then the kernel holds it where no socket shows it.
//! - Nobody at a port: the kernel answers and drops. So those frames go at a bounded rate, and what is beyond is dropped here,
//!   by name.
//! - What is not UDP for one station needs no credit: TCP has a window of its own.

use super::diag::Socket;
use super::truesize::TrueSize;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::{Cargo, Flow, FragmentId};
use std::collections::{HashMap, VecDeque};
use std::io;

/// How long the kernel's answer about a socket's room is believed: others may fill it too.
const ROOM_LASTS: Duration = Duration::from_ms(1);
/// How long a flow goes to the socket that was found for it before it is looked up again.
const FLOW_LASTS: Duration = Duration::from_ms(10);
/// The shortest and the longest time between two questions about one socket that is full.
const ASK_AGAIN: Duration = Duration::from_us(20);
const ASK_AT_LEAST: Duration = Duration::from_ms(1);
/// Between two frames for which there is no socket: as often as Linux answers by ICMP (`icmp_msgs_per_sec` of 1,000).
const NOBODY_EVERY: Duration = Duration::from_ms(1);
/// Frames for nobody that wait.
const NOBODY_MOST: usize = 64;
/// A socket that is asked about less often than this before the deadline has not been seen to be stuck: we were away.
const ASKED_AT_LEAST: u32 = 10;
/// Flows and sockets that are remembered.
const FLOWS_MOST: usize = 4096;
const SOCKETS_MOST: usize = 1024;
/// Datagrams in pieces; the kernel gives one up after 30 s (`ipfrag_time`).
const PARTIAL_MOST: usize = 256;
const PARTIAL_LASTS: Duration = Duration::from_secs(30);
/// The longest datagram with its headers, in bytes.
const DATAGRAM_MOST: u32 = 65_535;

/// What is asked of the kernel.
pub(super) trait Host {
    /// The socket to which a datagram of a flow would go.
    fn socket(&mut self, flow: &Flow) -> io::Result<Option<Socket>>;
    /// Bytes of memory of the frames that were sent and no stack has taken in yet.
    fn in_flight(&mut self) -> io::Result<u32>;
}

/// Frames that were dropped here, and questions asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StageCounters {
    /// Of a socket that took nothing for the deadline.
    pub watchdog: u64,
    /// Times a socket was isolated.
    pub isolated: u64,
    /// For which there was no socket: handed over for the kernel to answer.
    pub no_socket: u64,
    /// The same, beyond the rate at which the kernel answers: dropped here.
    pub no_socket_dropped: u64,
    /// For a group: no credit is asked for.
    pub group: u64,
    /// Fragments of datagrams whose first was not seen.
    pub stray_fragments: u64,
    /// Questions to the kernel.
    pub queries: u64,
    /// Longer than the device takes.
    pub too_long: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    buffer: u32,
    charge: u32,
    cargo: Cargo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No credit is needed.
    Open,
    /// No socket is there.
    Nobody,
    /// A socket, by its cookie.
    Socket(u64),
}

#[derive(Debug)]
struct Place {
    kind: Kind,
    /// By which it is asked about.
    flow: Option<Flow>,
    queue: VecDeque<Waiting>,
    /// Fragments of datagrams whose first has gone. They are charged already, and wait behind nobody: what others wait for may
    /// be that these datagrams are settled.
    begun: VecDeque<Waiting>,
    /// Bytes that may still be charged to it.
    credit: i64,
    /// It held nothing when it was asked about, and has been sent nothing since: it takes one datagram of any size.
    empty: bool,
    asked: Instant,
    ask_next: Instant,
    pause: Duration,
    /// What it held when it was asked about.
    used: u32,
    /// When something last went to it, or it took something out, or it had nothing to wait for.
    moved: Instant,
    asks: u32,
    isolated: bool,
    /// Charged for datagrams of which the last fragment has not gone.
    reserved: i64,
}

impl Place {
    fn new(kind: Kind, now: Instant) -> Place {
        Place {
            kind,
            flow: None,
            queue: VecDeque::new(),
            begun: VecDeque::new(),
            credit: 0,
            empty: false,
            asked: Instant::ZERO,
            ask_next: Instant::ZERO,
            pause: ASK_AGAIN,
            used: 0,
            moved: now,
            asks: 0,
            isolated: false,
            reserved: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.begun.is_empty()
    }

    /// What the kernel said about it, `in_flight` having been asked before.
    fn learn(&mut self, now: Instant, socket: &Socket, in_flight: u32, margin: u32) {
        let margin = if socket.limit >= 8 * margin { margin } else { 0 };
        self.credit =
            i64::from(socket.limit) - i64::from(socket.used) - i64::from(in_flight) - self.reserved - i64::from(margin);
        self.empty = socket.used == 0 && in_flight == 0 && self.reserved == 0;
        self.asked = now;
        self.asks = self.asks.saturating_add(1);
        if socket.used < self.used || self.empty {
            self.moved = now;
            self.asks = 0;
            self.pause = ASK_AGAIN;
            self.isolated = false;
        } else {
            self.pause = Duration((2 * self.pause.0).min(ASK_AT_LEAST.0));
        }
        self.used = socket.used;
        self.ask_next = now.saturating_add(self.pause);
    }

    /// Whether a frame may go that is charged so much.
    fn affords(&self, waiting: &Waiting, credit: i64, empty: bool, whole: i64) -> bool {
        match waiting.cargo {
            Cargo::Udp(_) => credit >= i64::from(waiting.charge) || empty,
            Cargo::First(..) => credit >= whole || empty,
            _ => true,
        }
    }
}

/// A datagram of which not all fragments have gone.
#[derive(Clone, Copy, Debug)]
struct Partial {
    place: usize,
    since: Instant,
    /// What its fragments are charged so far, once the first has gone.
    charged: Option<u32>,
}

/// Frames that wait for sockets.
#[derive(Debug)]
pub(super) struct Stage {
    places: Vec<Place>,
    vacant: Vec<usize>,
    sockets: HashMap<u64, usize>,
    flows: HashMap<Flow, (usize, Instant)>,
    partial: HashMap<FragmentId, Partial>,
    /// Places with frames, in the order in which they are served.
    active: VecDeque<usize>,
    charges: TrueSize,
    /// The charge for the longest datagram in fragments.
    whole: i64,
    deadline: Option<Duration>,
    pub counters: StageCounters,
}

const OPEN: usize = 0;
const NOBODY: usize = 1;

impl Stage {
    /// Nothing waits. `mtu` is that of the device behind; a socket that takes nothing for `deadline` is isolated.
    pub fn new(charges: TrueSize, mtu: u32, deadline: Option<Duration>) -> Stage {
        // Fragments carry multiples of 8 bytes behind at least 20 of header.
        let piece = (mtu.saturating_sub(20) & !7).max(8);
        let whole = i64::from(DATAGRAM_MOST.div_ceil(piece)) * i64::from(charges.largest());
        Stage {
            places: vec![Place::new(Kind::Open, Instant::ZERO), Place::new(Kind::Nobody, Instant::ZERO)],
            vacant: Vec::new(),
            sockets: HashMap::new(),
            flows: HashMap::new(),
            partial: HashMap::new(),
            active: VecDeque::new(),
            charges,
            whole,
            deadline,
            counters: StageCounters::default(),
        }
    }

    /// Changes the deadline.
    pub fn set_deadline(&mut self, deadline: Option<Duration>) {
        self.deadline = deadline;
    }

    /// Whether frames wait.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Takes a frame of `len` bytes in a buffer. The buffers that are done with in consequence go to `release`.
    pub fn insert(
        &mut self,
        now: Instant,
        buffer: u32,
        len: u32,
        cargo: Cargo,
        host: &mut impl Host,
        release: &mut impl FnMut(u32),
    ) -> io::Result<()> {
        let charge = self.charges.of(len);
        let place = match cargo {
            Cargo::Udp(flow) => self.place_of(now, &flow, host)?,
            Cargo::First(flow, id) => {
                let place = self.place_of(now, &flow, host)?;
                self.expire(now, self.partial.len() >= PARTIAL_MOST);
                self.partial.insert(id, Partial { place, since: now, charged: None });
                place
            }
            Cargo::Later(id, _) => match self.partial.get(&id) {
                Some(partial) => partial.place,
                None => {
                    self.counters.stray_fragments += 1;
                    OPEN
                }
            },
            Cargo::Group => {
                self.counters.group += 1;
                OPEN
            }
            Cargo::Other => OPEN,
        };
        if self.places[place].isolated {
            self.look_after(now, place, host)?;
        }
        if self.places[place].isolated {
            self.counters.watchdog += 1;
            release(buffer);
        } else if place == NOBODY && self.places[NOBODY].queue.len() >= NOBODY_MOST {
            self.counters.no_socket_dropped += 1;
            release(buffer);
        } else {
            self.wait(now, place, Waiting { buffer, charge, cargo });
        }
        Ok(())
    }

    fn wait(&mut self, now: Instant, place: usize, waiting: Waiting) {
        let it = &mut self.places[place];
        if it.is_idle() {
            it.moved = now;
            it.asks = 0;
            self.active.push_back(place);
        }
        let begun = match waiting.cargo {
            Cargo::Later(id, _) => self.partial.get(&id).is_some_and(|p| p.place == place && p.charged.is_some()),
            _ => false,
        };
        if begun { it.begun.push_back(waiting) } else { it.queue.push_back(waiting) }
    }

    /// Where the frames of a flow wait.
    fn place_of(&mut self, now: Instant, flow: &Flow, host: &mut impl Host) -> io::Result<usize> {
        if let Some(&(place, since)) = self.flows.get(flow)
            && now.since(since) < FLOW_LASTS
        {
            return Ok(place);
        }
        self.look_up(now, flow, host)
    }

    /// Asks the kernel for the socket of a flow, and learns what it has room for.
    fn look_up(&mut self, now: Instant, flow: &Flow, host: &mut impl Host) -> io::Result<usize> {
        self.counters.queries += 1;
        // In this order: what moves between the two answers is counted twice, not never.
        let in_flight = host.in_flight()?;
        let place = match host.socket(flow)? {
            None => NOBODY,
            Some(socket) => {
                let place = match self.sockets.get(&socket.cookie) {
                    Some(&place) => place,
                    None => self.new_place(now, socket.cookie),
                };
                let margin = self.charges.largest();
                self.places[place].flow = Some(*flow);
                self.places[place].learn(now, &socket, in_flight, margin);
                place
            }
        };
        let before = self.flows.get(flow).map(|&(place, _)| place);
        if self.flows.len() >= FLOWS_MOST {
            self.flows.clear();
        }
        self.flows.insert(*flow, (place, now));
        if let Some(before) = before.filter(|&before| before != place) {
            self.move_flow(now, flow, before, place);
        }
        Ok(place)
    }

    fn new_place(&mut self, now: Instant, cookie: u64) -> usize {
        if self.sockets.len() >= SOCKETS_MOST {
            self.forget_idle();
        }
        let fresh = Place::new(Kind::Socket(cookie), now);
        let place = match self.vacant.pop() {
            Some(place) => {
                self.places[place] = fresh;
                place
            }
            None => {
                self.places.push(fresh);
                self.places.len() - 1
            }
        };
        self.sockets.insert(cookie, place);
        place
    }

    /// Forgets sockets for which nothing waits.
    fn forget_idle(&mut self) {
        self.flows.clear();
        let (places, vacant, partial) = (&self.places, &mut self.vacant, &self.partial);
        self.sockets.retain(|_, &mut place| {
            let keep = !places[place].is_idle() || partial.values().any(|p| p.place == place);
            if !keep {
                vacant.push(place);
            }
            keep
        });
    }

    /// The frames of a flow that wait at one place go to the end of another: the socket they are for has changed.
    fn move_flow(&mut self, now: Instant, flow: &Flow, from: usize, to: usize) {
        let queue = std::mem::take(&mut self.places[from].queue);
        let (mut ids, mut stay) = (Vec::new(), VecDeque::new());
        for waiting in queue {
            let goes = match waiting.cargo {
                Cargo::Udp(its) => its == *flow,
                Cargo::First(its, id) if its == *flow => {
                    ids.push(id);
                    true
                }
                Cargo::Later(id, _) => ids.contains(&id),
                _ => false,
            };
            if goes {
                if let Cargo::First(_, id) = waiting.cargo
                    && let Some(partial) = self.partial.get_mut(&id)
                {
                    partial.place = to;
                }
                self.wait(now, to, waiting);
            } else {
                stay.push_back(waiting);
            }
        }
        self.places[from].queue = stay;
        self.rest(from);
    }

    /// Asks about a place when it is time.
    fn look_after(&mut self, now: Instant, place: usize, host: &mut impl Host) -> io::Result<()> {
        let it = &self.places[place];
        if now < it.ask_next {
            return Ok(());
        }
        let first = it.queue.front().and_then(|w| match w.cargo {
            Cargo::Udp(flow) | Cargo::First(flow, _) => Some(flow),
            _ => None,
        });
        let Some(flow) = first.or(it.flow) else { return Ok(()) };
        let found = self.look_up(now, &flow, host)?;
        if found != place {
            // Its flow goes elsewhere now; what is left is asked about another time.
            self.move_flow(now, &flow, place, found);
            let it = &mut self.places[place];
            it.ask_next = now.saturating_add(ASK_AT_LEAST);
            it.isolated = false;
        }
        Ok(())
    }

    /// The next place in turn that has frames, and the buffers of those that may go now, `most` of them.
    ///
    /// After that, [`Stage::sent`] says how many went. What is dropped goes to `release`.
    pub fn offer(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        most: usize,
        buffers: &mut Vec<u32>,
        release: &mut impl FnMut(u32),
    ) -> io::Result<Option<usize>> {
        buffers.clear();
        let Some(place) = self.active.pop_front() else { return Ok(None) };
        self.active.push_back(place);
        match self.places[place].kind {
            Kind::Open => buffers.extend(self.places[OPEN].queue.iter().take(most).map(|w| w.buffer)),
            Kind::Nobody => self.offer_to_nobody(now, host, buffers, release)?,
            Kind::Socket(_) => {
                self.fill(now, place, most, buffers);
                if buffers.is_empty() {
                    self.look_after(now, place, host)?;
                    self.fill(now, place, most, buffers);
                }
                if buffers.is_empty() {
                    self.watch(now, place, release);
                }
            }
        }
        Ok(Some(place))
    }

    /// The frames at a place that its credit is enough for.
    fn fill(&self, now: Instant, place: usize, most: usize, buffers: &mut Vec<u32>) {
        let it = &self.places[place];
        buffers.extend(it.begun.iter().take(most).map(|w| w.buffer));
        if now.since(it.asked) >= ROOM_LASTS {
            // What it had room for then says nothing.
            return;
        }
        let (mut credit, mut empty) = (it.credit, it.empty);
        let most = most - buffers.len();
        for waiting in it.queue.iter().take(most) {
            if !it.affords(waiting, credit, empty, self.whole) {
                return;
            }
            match waiting.cargo {
                Cargo::Udp(_) => credit -= i64::from(waiting.charge),
                Cargo::First(..) => credit -= self.whole,
                _ => {}
            }
            empty = false;
            buffers.push(waiting.buffer);
        }
    }

    fn offer_to_nobody(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        buffers: &mut Vec<u32>,
        release: &mut impl FnMut(u32),
    ) -> io::Result<()> {
        let most = self.places[NOBODY].queue.len().min(NOBODY_MOST);
        for waiting in self.places[NOBODY].queue.drain(most..) {
            self.counters.no_socket_dropped += 1;
            release(waiting.buffer);
        }
        if now < self.places[NOBODY].ask_next {
            return Ok(());
        }
        self.places[NOBODY].ask_next = now.saturating_add(NOBODY_EVERY);
        let Some(first) = self.places[NOBODY].queue.front() else { return Ok(()) };
        let buffer = first.buffer;
        // Somebody may have come.
        if let Cargo::Udp(flow) | Cargo::First(flow, _) = first.cargo
            && self.look_up(now, &flow, host)? != NOBODY
        {
            return Ok(());
        }
        buffers.push(buffer);
        Ok(())
    }

    /// Gives up what waits for a socket that has taken nothing for the deadline.
    fn watch(&mut self, now: Instant, place: usize, release: &mut impl FnMut(u32)) {
        let it = &mut self.places[place];
        let Some(deadline) = self.deadline else { return };
        if it.is_idle() || now.since(it.moved) < deadline || it.asks < ASKED_AT_LEAST {
            return;
        }
        it.isolated = true;
        self.counters.isolated += 1;
        for waiting in it.begun.drain(..).chain(it.queue.drain(..)) {
            self.counters.watchdog += 1;
            release(waiting.buffer);
        }
        self.rest(place);
    }

    /// The first `count` frames of a place went.
    pub fn sent(&mut self, now: Instant, place: usize, count: usize, release: &mut impl FnMut(u32)) {
        if count == 0 {
            return;
        }
        let Stage { places, partial, counters, whole, .. } = self;
        let it = &mut places[place];
        it.moved = now;
        it.asks = 0;
        it.pause = ASK_AGAIN;
        let begun = count.min(it.begun.len());
        let mut firsts = Vec::new();
        for waiting in it.begun.drain(..begun).chain(it.queue.drain(..count - begun)) {
            it.empty = false;
            match waiting.cargo {
                _ if place == NOBODY => counters.no_socket += 1,
                Cargo::Udp(_) => it.credit -= i64::from(waiting.charge),
                Cargo::First(_, id) => {
                    it.credit -= *whole;
                    it.reserved += *whole;
                    if let Some(partial) = partial.get_mut(&id) {
                        partial.charged = Some(waiting.charge);
                        firsts.push(id);
                    }
                }
                Cargo::Later(id, last) => {
                    let known = partial.get_mut(&id).filter(|p| p.place == place);
                    if let Some(charged) = known.and_then(|p| p.charged.as_mut()) {
                        *charged = charged.saturating_add(waiting.charge);
                        if last {
                            it.credit += *whole - i64::from(*charged);
                            it.reserved -= *whole;
                            partial.remove(&id);
                        }
                    }
                }
                _ => {}
            }
            release(waiting.buffer);
        }
        firsts.retain(|id| partial.contains_key(id));
        if !firsts.is_empty() {
            let goes = |w: &Waiting| matches!(w.cargo, Cargo::Later(id, _) if firsts.contains(&id));
            it.begun.extend(it.queue.iter().filter(|w| goes(w)));
            it.queue.retain(|w| !goes(w));
        }
        self.rest(place);
    }

    /// A place without frames is not served.
    fn rest(&mut self, place: usize) {
        if self.places[place].is_idle() {
            self.active.retain(|&other| other != place);
        }
    }

    /// The first frame of a place can never go.
    pub fn refuse(&mut self, place: usize, release: &mut impl FnMut(u32)) {
        let it = &mut self.places[place];
        if let Some(waiting) = it.begun.pop_front().or_else(|| it.queue.pop_front()) {
            self.counters.too_long += 1;
            release(waiting.buffer);
        }
        self.rest(place);
    }

    /// Gives up datagrams whose last fragment never came; `all` of them if there are too many.
    fn expire(&mut self, now: Instant, all: bool) {
        let (places, whole) = (&mut self.places, self.whole);
        self.partial.retain(|_, partial| {
            let keep = !all && now.since(partial.since) < PARTIAL_LASTS;
            if !keep && partial.charged.is_some() {
                places[partial.place].reserved -= whole;
            }
            keep
        });
    }

    /// How many places have frames.
    pub fn places(&self) -> usize {
        self.active.len()
    }

    /// When a place has to be looked after at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.active.iter().map(|&place| self.places[place].ask_next).min()
    }
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
