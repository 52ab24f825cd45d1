//! One end of a channel: connection, timer, and both halves.

use super::receiver::{Fate, Receiver};
use super::sender::Sender;
use crate::loss::Full;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::zbridge::{Header, Kind, Ranges};

/// How reliable frames are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Frames in the retransmission buffer (`BUF`), and before their turn at the receiver. More than the network holds: twice the
    /// period at least.
    pub buffer: u32,
    /// Every so many frames an acknowledgement is asked for (`P`).
    pub period: u32,
    /// It is asked for where a frame was sent and nothing heard for so long, too; long enough that nothing is sent twice.
    pub timeout: Duration,
    /// All frames take one path each way: what is missing is said at once.
    pub single_path: bool,
}

impl Default for ChannelConfig {
    /// `P` of Crisan 2014, 5.3.4; its timeout is a thousand times the base round trip, which is 27 us there (5.2.1).
    fn default() -> ChannelConfig {
        ChannelConfig { buffer: 4096, period: 1024, timeout: Duration::from_ms(27), single_path: true }
    }
}

/// What happened, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Sent, each counted once.
    pub sent: u64,
    /// Sent again.
    pub resent: u64,
    /// Delivered.
    pub delivered: u64,
    /// That came a second time.
    pub duplicates: u64,
    /// That came further ahead than the buffer is long.
    pub too_far: u64,
    /// Of another connection, or acknowledging what was never sent.
    pub stale: u64,
    /// Acknowledgements asked for where nothing was heard.
    pub timeouts: u64,
    /// Connections that were confirmed by both ends.
    pub connections: u64,
    /// Sent to who forgot everything before acknowledging it, or unacknowledged when the channel ended: perhaps delivered.
    pub given_up: u64,
}

impl core::ops::Add for ChannelCounters {
    type Output = ChannelCounters;
    fn add(self, other: ChannelCounters) -> ChannelCounters {
        ChannelCounters {
            sent: self.sent + other.sent,
            resent: self.resent + other.resent,
            delivered: self.delivered + other.delivered,
            duplicates: self.duplicates + other.duplicates,
            too_far: self.too_far + other.too_far,
            stale: self.stale + other.stale,
            timeouts: self.timeouts + other.timeouts,
            connections: self.connections + other.connections,
            given_up: self.given_up + other.given_up,
        }
    }
}

/// Why a frame was not taken: it has to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It was delivered before.
    Duplicate,
    /// It is further ahead than the buffer is long.
    TooFar,
    /// It is of no connection that is known.
    Stale,
}

/// A frame to be sent to the other end: a header, and what it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing<F> {
    /// The header.
    pub header: Header,
    /// A copy of the frame, for [`Kind::Data`].
    pub frame: Option<F>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has begun.
    Idle,
    /// It has begun, and waits for an answer.
    Greeting,
    /// The other end has begun, and what it got in answer is not confirmed. Data may be received.
    Answered,
    /// Both know both numbers.
    Connected,
}

/// A connection that the other end wants in place of the one there is.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    peer: u32,
    own: u32,
}

/// One end.
#[derive(Clone, Debug)]
pub struct Channel<F> {
    config: ChannelConfig,
    /// Where numbers of connections come from.
    random: Rng,
    state: State,
    /// Numbers of the connection, ours and theirs, which are the first sequence numbers, too.
    own: u32,
    peer: u32,
    candidate: Option<Candidate>,
    sender: Sender<F>,
    receiver: Receiver<F>,
    /// Frames at the front of the retransmission buffer that had been sent when the other end forgot everything.
    unacknowledged: usize,
    /// The attempt to end it that waits for an answer, and how many there were.
    closing: Option<u32>,
    attempts: u32,
    /// Attempts of the other end that were refused: up to this one.
    refused: u32,
    /// A refusal that is to be said.
    refuses: Option<u32>,
    /// An answer to what was heard. What the end says by itself is not among them: it would take the place of an answer that waits.
    pending_answer: Option<(Kind, u32, u32)>,
    /// When it speaks again by itself.
    deadline: Instant,
    /// Times it did since something was heard.
    tries: u32,
    /// It speaks by itself: greets, answers again, or asks.
    speaks: bool,
    /// It asks whether the other end is still the one it was, though nothing is under way.
    inquires: bool,
    /// A connection has ended since that was looked at.
    has_ended: bool,
    counters: ChannelCounters,
}

/// The timeout is doubled so many times at most where nobody answers.
const DOUBLINGS_MAX: u32 = 6;

impl<F: Clone> Channel<F> {
    /// An end that has heard and said nothing. `random` makes the numbers of its connections: they must differ from those of any
    /// before.
    pub fn new(config: ChannelConfig, mut random: Rng) -> Channel<F> {
        assert!(config.period >= 1 && config.buffer >= 2 * config.period && config.buffer <= 1 << 24);
        let own = number(&mut random);
        let window = config.buffer as usize;
        Channel {
            sender: Sender::new(window, SeqNumber(own)),
            receiver: Receiver::new(window, SeqNumber(0)),
            config,
            random,
            state: State::Idle,
            own,
            peer: 0,
            candidate: None,
            unacknowledged: 0,
            closing: None,
            attempts: 0,
            refused: 0,
            refuses: None,
            pending_answer: None,
            deadline: Instant::MAX,
            tries: 0,
            speaks: false,
            inquires: false,
            has_ended: false,
            counters: ChannelCounters::default(),
        }
    }

    /// Its first connection has this number: for whoever wants to see it wrap.
    pub fn begin_at(&mut self, own: u32) {
        self.own = own;
        self.sender = Sender::new(self.config.buffer as usize, SeqNumber(own));
    }

    /// What happened.
    pub fn counters(&self) -> ChannelCounters {
        self.counters
    }
    /// Frames that were sent and not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.sender.in_flight()
    }
    /// Frames in the retransmission buffer, those included that have not been sent.
    pub fn unsent_and_in_flight(&self) -> usize {
        self.sender.len()
    }
    /// Frames that came before their turn, and wait.
    pub fn early(&self) -> usize {
        self.receiver.early()
    }
    /// Whether a frame is taken.
    pub fn has_room(&self) -> bool {
        self.sender.has_room() && self.unacknowledged == 0 && self.closing.is_none()
    }
    /// Whether it keeps no frame, in either direction.
    pub fn is_empty(&self) -> bool {
        self.sender.len() == 0 && self.unacknowledged == 0 && self.receiver.early() == 0
    }
    /// Whether nothing is left of it: no connection, no frame, nothing to say.
    pub fn is_over(&self) -> bool {
        self.state == State::Idle && self.pending_answer.is_none() && self.is_empty()
    }
    /// Whether there is a connection: what was sent by it may be delivered yet.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Answered | State::Connected)
    }
    /// Whether a connection has ended since this was asked last: nothing that was sent by it is delivered any more, at either end.
    pub fn take_ended(&mut self) -> bool {
        core::mem::take(&mut self.has_ended)
    }
    /// Whether it [would end](Channel::close).
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Begins before there is a frame, so that the first one need not wait for an answer.
    pub fn open(&mut self, now: Instant) {
        if self.state == State::Idle {
            self.greet(now);
        }
    }

    /// Whether what is sent goes at once, and not only when the other end has answered.
    pub fn is_open(&self) -> bool {
        self.state == State::Connected
    }

    /// Would end, where nothing is under way: the other end, which may have sent something, is asked. It takes no frames until that has
    /// refused, or agreed and the channel [is over](Channel::is_over).
    pub fn close(&mut self, now: Instant) {
        if self.state == State::Connected && self.is_empty() && self.closing.is_none() {
            self.attempts = self.attempts.wrapping_add(1);
            (self.closing, self.speaks) = (Some(self.attempts), true);
            self.arm(now);
        }
    }

    /// Asks whether the other end is still the one it was, until it says so or that it is not: its [connection
    /// ends](Channel::take_ended) then. `false` where there is no connection.
    pub fn inquire(&mut self, now: Instant) -> bool {
        // One that is not confirmed is answered again and again as it is.
        if self.state == State::Connected && !core::mem::replace(&mut self.inquires, true) {
            self.speaks = true;
            self.arm(now);
        }
        self.is_connected()
    }

    /// Takes a frame that is to be sent.
    ///
    /// # Errors
    /// When the retransmission buffer is full, what was in it has to be [taken](Channel::take_unacknowledged) first, or it would end.
    pub fn send(&mut self, now: Instant, frame: F) -> Result<(), Full<F>> {
        if self.unacknowledged > 0 || self.closing.is_some() {
            return Err(Full(frame));
        }
        self.sender.push(frame)?;
        if self.state == State::Idle {
            self.greet(now);
        }
        Ok(())
    }

    /// What had been sent to the other end, and perhaps delivered there, when that forgot everything: to be sent again, in this order,
    /// or freed. Nothing new is sent before.
    pub fn take_unacknowledged(&mut self) -> Option<impl Iterator<Item = F> + use<F>> {
        let sent = core::mem::take(&mut self.unacknowledged);
        self.counters.given_up += sent as u64;
        (sent > 0).then(|| self.sender.take_first(sent).into_iter())
    }

    /// Those that have never been sent, in their order; they are not here any more.
    pub fn take_unsent(&mut self) -> impl Iterator<Item = F> + use<F> {
        self.sender.take_unsent(self.unacknowledged).into_iter()
    }

    /// Times it asked since it heard anything of the other end.
    pub fn unheard(&self) -> u32 {
        self.tries
    }

    /// Nobody speaks to the other end any more: `free` gets what was sent and not acknowledged, what was not sent, and what came before
    /// its turn.
    pub fn end(&mut self, free: &mut impl FnMut(F)) {
        self.receiver.give_up(free);
        self.counters.given_up += self.sender.in_flight().max(self.unacknowledged) as u64;
        self.sender.take().for_each(free);
        self.closing = None;
        (self.state, self.unacknowledged, self.candidate, self.pending_answer) = (State::Idle, 0, None, None);
        (self.deadline, self.speaks, self.inquires) = (Instant::MAX, false, false);
    }

    fn greet(&mut self, now: Instant) {
        (self.state, self.speaks) = (State::Greeting, true);
        self.arm(now);
    }

    fn arm(&mut self, now: Instant) {
        let wait = self.config.timeout.saturating_mul(1 << self.tries.min(DOUBLINGS_MAX));
        self.deadline = now.saturating_add(wait);
    }

    /// A frame from the other end; `frame` is what it carries. `deliver` gets frames for the VM here, in order; `free` those of
    /// this end that were acknowledged, and what is of no use any more.
    ///
    /// # Errors
    /// The frame, where it is not taken.
    pub fn receive(
        &mut self,
        now: Instant,
        header: &Header,
        frame: Option<F>,
        deliver: &mut impl FnMut(F),
        free: &mut impl FnMut(F),
    ) -> Result<(), (Option<F>, Refusal)> {
        match header.kind {
            Kind::Syn => return self.on_greeting(now, header.sequence),
            Kind::SynAck => return self.on_answer(header),
            Kind::Reset => {
                let is_known = matches!(self.state, State::Answered | State::Connected);
                if self.candidate.is_some_and(|c| c.peer == header.sequence) {
                    self.candidate = None;
                    return Ok(());
                }
                if !is_known || header.sequence != self.peer {
                    return self.stale(frame);
                }
                self.end_connection(now, free);
                return Ok(());
            }
            Kind::Data { .. } | Kind::Ask | Kind::Ack | Kind::Nack(_) | Kind::Close | Kind::Keep => {}
        }
        if let Some(candidate) = self.candidate.filter(|c| c.own == header.connection) {
            // It was really the other end that began anew.
            self.forget(free);
            self.connect_to(candidate.own, candidate.peer);
        }
        let is_known = matches!(self.state, State::Answered | State::Connected);
        if !is_known || header.connection != self.own {
            if self.pending_answer.is_none() && header.connection != 0 {
                // It speaks to somebody who was here before, or took an answer for the last that was another's: said also by who is
                // connected, or two that are each connected to somebody else would wait for ever.
                self.pending_answer = Some((Kind::Reset, 0, header.connection));
            }
            return self.stale(frame);
        }
        self.confirm();
        let Some(acknowledged) = self.sender.acknowledge(SeqNumber(header.acknowledgement), free) else {
            return self.stale(frame);
        };
        let was_patient = core::mem::take(&mut self.tries) > 0;
        if matches!(header.kind, Kind::Ack | Kind::Nack(_)) {
            self.inquires = false;
        }
        if self.closing.is_some() || self.inquires {
            // Asked again in its time.
        } else if self.sender.in_flight() == 0 {
            self.deadline = Instant::MAX;
        } else if acknowledged > 0 || was_patient {
            self.arm(now);
        }
        match header.kind {
            Kind::Nack(ranges) => {
                for &(first, len) in ranges.as_slice() {
                    self.sender.mark(SeqNumber(first), len);
                }
                Ok(())
            }
            Kind::Ask => {
                self.receiver.expect(SeqNumber(header.sequence));
                self.receiver.ask();
                Ok(())
            }
            Kind::Data { ack_request } => {
                let Some(frame) = frame else { return self.stale(None) };
                self.on_data(SeqNumber(header.sequence), ack_request, frame, deliver)
            }
            Kind::Close => {
                self.on_close(now, SeqNumber(header.sequence), free);
                Ok(())
            }
            Kind::Keep => {
                if self.closing == Some(header.sequence) {
                    (self.closing, self.speaks, self.deadline) = (None, false, Instant::MAX);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The other end has nothing to send, and would forget this one. An attempt that was refused once is refused always: what was sent
    /// after that refusal may be under way when a copy of the attempt comes.
    fn on_close(&mut self, now: Instant, attempt: SeqNumber, free: &mut impl FnMut(F)) {
        if self.is_empty() && attempt > SeqNumber(self.refused) {
            let number = self.own;
            self.end_connection(now, free);
            self.pending_answer = Some((Kind::Reset, 0, number));
            return;
        }
        if attempt > SeqNumber(self.refused) {
            self.refused = attempt.0;
        }
        self.refuses = Some(attempt.0);
    }

    fn on_data(
        &mut self,
        number: SeqNumber,
        ack_request: bool,
        frame: F,
        deliver: &mut impl FnMut(F),
    ) -> Result<(), (Option<F>, Refusal)> {
        let counters = &mut self.counters;
        let fate = self.receiver.take(number, frame, &mut |frame| {
            counters.delivered += 1;
            deliver(frame);
        });
        if self.config.single_path {
            self.receiver.ask_for_new_gaps();
        }
        if ack_request {
            self.receiver.ask();
        }
        match fate {
            Fate::Taken => Ok(()),
            Fate::Twice(frame) => {
                self.counters.duplicates += 1;
                Err((Some(frame), Refusal::Duplicate))
            }
            Fate::TooFar(frame) => {
                self.counters.too_far += 1;
                Err((Some(frame), Refusal::TooFar))
            }
        }
    }

    fn stale(&mut self, frame: Option<F>) -> Result<(), (Option<F>, Refusal)> {
        self.counters.stale += 1;
        Err((frame, Refusal::Stale))
    }

    /// The other end wants to begin.
    fn on_greeting(&mut self, now: Instant, peer: u32) -> Result<(), (Option<F>, Refusal)> {
        match self.state {
            State::Idle | State::Greeting => {
                self.connect_to(self.own, peer);
                self.arm(now);
                self.answer(self.own, peer);
            }
            State::Answered | State::Connected if peer == self.peer => self.answer(self.own, peer),
            State::Answered | State::Connected => {
                // The one that was answered first: it may have begun to send. If it is an old one, its other end says so, and the next
                // greeting is answered.
                let random = &mut self.random;
                let Candidate { peer, own } =
                    *self.candidate.get_or_insert_with(|| Candidate { peer, own: number(random) });
                self.answer(own, peer);
            }
        }
        Ok(())
    }

    fn answer(&mut self, own: u32, peer: u32) {
        self.pending_answer = Some((Kind::SynAck, peer, own));
    }

    /// The other end answers what began here.
    fn on_answer(&mut self, header: &Header) -> Result<(), (Option<F>, Refusal)> {
        if header.connection != self.own {
            if self.pending_answer.is_none() {
                // It waits for somebody who was here before, and would for ever.
                self.pending_answer = Some((Kind::Reset, 0, header.connection));
            }
            return self.stale(None);
        }
        match self.state {
            State::Greeting => self.connect_to(self.own, header.sequence),
            // Both began at once, or this one's confirmation was lost.
            State::Answered | State::Connected if header.sequence == self.peer => {}
            _ => return self.stale(None),
        }
        self.confirm();
        self.receiver.ask();
        Ok(())
    }

    /// Both ends know both numbers.
    fn confirm(&mut self) {
        if self.state != State::Connected {
            (self.state, self.speaks) = (State::Connected, false);
            self.counters.connections += 1;
            self.tries = 0;
            self.deadline = Instant::MAX;
        }
    }

    fn connect_to(&mut self, own: u32, peer: u32) {
        (self.own, self.peer, self.candidate, self.inquires) = (own, peer, None, false);
        (self.closing, self.attempts, self.refused, self.refuses) = (None, 0, 0, None);
        self.receiver = Receiver::new(self.config.buffer as usize, SeqNumber(peer));
        (self.state, self.speaks) = (State::Answered, false);
    }

    /// The other end has forgotten this connection. If it has begun another, that is the one: what it was answered has a number in it
    /// that nobody else must be given.
    fn end_connection(&mut self, now: Instant, free: &mut impl FnMut(F)) {
        let candidate = self.candidate;
        self.forget(free);
        if let Some(candidate) = candidate {
            self.connect_to(candidate.own, candidate.peer);
            self.arm(now);
            return;
        }
        (self.state, self.deadline) = (State::Idle, Instant::MAX);
        if self.sender.len() > 0 {
            self.greet(now);
        }
    }

    /// The other end has forgotten everything: another connection, with another number, and the caller decides about what was sent.
    fn forget(&mut self, free: &mut impl FnMut(F)) {
        self.receiver.give_up(free);
        // What had been sent to who began anew before, and was not taken, is in front of it.
        self.unacknowledged = self.unacknowledged.max(self.sender.in_flight());
        let own = match self.candidate {
            Some(candidate) => candidate.own,
            None => number(&mut self.random),
        };
        let frames = self.sender.take();
        self.own = own;
        self.sender = Sender::new(self.config.buffer as usize, SeqNumber(own));
        frames.for_each(|frame| {
            let pushed = self.sender.push(frame);
            assert!(pushed.is_ok(), "there was room for it");
        });
        (self.tries, self.speaks, self.closing, self.refuses) = (0, false, None, None);
        (self.inquires, self.has_ended) = (false, true);
    }

    /// What to send to the other end next.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing<F>> {
        let said = self.pending_answer.take().or_else(|| match self.state {
            State::Greeting if core::mem::take(&mut self.speaks) => Some((Kind::Syn, 0, self.own)),
            State::Answered if core::mem::take(&mut self.speaks) => Some((Kind::SynAck, self.peer, self.own)),
            _ => None,
        });
        if let Some((kind, connection, sequence)) = said {
            let acknowledgement = 0;
            return Some(Outgoing { header: Header { kind, connection, sequence, acknowledgement }, frame: None });
        }
        if self.state != State::Connected {
            return None;
        }
        if let Some(missing) = self.receiver.poll_answer() {
            let kind = if missing == Ranges::default() { Kind::Ack } else { Kind::Nack(missing) };
            return Some(self.outgoing(kind, self.sender.next(), None));
        }
        if let Some(attempt) = self.refuses.take() {
            return Some(self.outgoing(Kind::Keep, SeqNumber(attempt), None));
        }
        if core::mem::take(&mut self.speaks) {
            let (kind, sequence) = match self.closing {
                Some(attempt) => (Kind::Close, SeqNumber(attempt)),
                None => (Kind::Ask, self.sender.next()),
            };
            return Some(self.outgoing(kind, sequence, None));
        }
        if self.unacknowledged > 0 {
            return None;
        }
        let (number, frame, again) = self.sender.poll()?;
        let ack_request = !again && self.sender.asks(self.config.period);
        self.counters.sent += u64::from(!again);
        self.counters.resent += u64::from(again);
        // Whichever happens first (5.3.4): a frame that does not ask puts nothing off, or the timer of a slow flow never ran out.
        if ack_request || self.deadline == Instant::MAX {
            self.arm(now);
        }
        Some(self.outgoing(Kind::Data { ack_request }, number, Some(frame)))
    }

    fn outgoing(&self, kind: Kind, sequence: SeqNumber, frame: Option<F>) -> Outgoing<F> {
        let acknowledgement = self.receiver.next().0;
        Outgoing { header: Header { kind, connection: self.peer, sequence: sequence.0, acknowledgement }, frame }
    }

    /// When it speaks by itself.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.deadline != Instant::MAX).then_some(self.deadline)
    }

    /// Its deadline has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.deadline {
            return;
        }
        let is_quiet = self.sender.in_flight() == 0 && self.closing.is_none() && !self.inquires;
        if self.state == State::Idle || self.state == State::Connected && is_quiet {
            self.deadline = Instant::MAX;
            return;
        }
        // What the link has not let go yet nobody can have answered.
        if !core::mem::replace(&mut self.speaks, true) {
            self.tries = self.tries.saturating_add(1);
            self.counters.timeouts += 1;
        }
        self.arm(now);
    }
}

/// A number of a connection; 0 is none.
fn number(random: &mut Rng) -> u32 {
    loop {
        let number = random.next_u64() as u32;
        if number != 0 {
            return number;
        }
    }
}
