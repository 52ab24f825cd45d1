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
    /// Frames in the retransmission buffer (`BUF`), and waiting before their turn at the receiver. The buffer holds
    /// more frames than the network: twice the period at least.
    pub buffer: u32,
    /// An acknowledgement is asked for every `period` frames (`P`).
    pub period: u32,
    /// An acknowledgement is also asked for when a frame was sent and no message came for this time. The time is long
    /// enough that no frame is sent twice.
    pub timeout: Duration,
    /// All frames take one path each way, so missing frames are reported at once.
    pub single_path: bool,
}

impl Default for ChannelConfig {
    /// `P` of Crisan 2014, 5.3.4. The timeout there is a thousand times the base round trip of 27 us (5.2.1).
    fn default() -> ChannelConfig {
        ChannelConfig { buffer: 4096, period: 1024, timeout: Duration::from_ms(27), single_path: true }
    }
}

/// Counters of a channel, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Frames sent, each counted once.
    pub sent: u64,
    /// Frames sent again.
    pub resent: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// Frames received a second time.
    pub duplicates: u64,
    /// Frames received further ahead than the buffer is long.
    pub too_far: u64,
    /// Frames of another connection, or with an acknowledgement of frames that were never sent.
    pub stale: u64,
    /// Timeouts without an answer from the other end. Each repeats a question, a greeting or an answer.
    pub timeouts: u64,
    /// Connections confirmed by both ends.
    pub connections: u64,
    /// Unacknowledged frames when the other end forgot everything or the channel ended: perhaps delivered.
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

/// Reason why a frame was refused. The frame has to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The frame came before.
    Duplicate,
    /// The frame is further ahead than the buffer is long.
    TooFar,
    /// The frame belongs to no known connection.
    Stale,
}

/// A frame to be sent to the other end: a header and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing<F> {
    /// The header.
    pub header: Header,
    /// A copy of the frame, for [`Kind::Data`].
    pub frame: Option<F>,
}

/// A frame to be sent to the other end, as numbers of its header and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered<F> {
    /// A copy of the frame.
    pub frame: F,
    /// The number of the connection.
    pub connection: u32,
    /// The number of the frame.
    pub sequence: u32,
    /// The number of the next frame of the other end.
    pub acknowledgement: u32,
    /// Whether an acknowledgement is asked for.
    pub ack_request: bool,
    /// Whether the frame has been sent before.
    pub again: bool,
}

impl<F> Numbered<F> {
    /// The header.
    #[inline(always)]
    pub fn header(&self) -> Header {
        let Numbered { connection, sequence, acknowledgement, ack_request, .. } = *self;
        Header { kind: Kind::Data { ack_request }, connection, sequence, acknowledgement }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Neither end has begun.
    Idle,
    /// This end has begun, and waits for an answer.
    Greeting,
    /// The other end has begun, and has not confirmed this end's answer. Data may be received.
    Answered,
    /// Both ends know both numbers.
    Connected,
}

/// A connection that the other end wants in place of the present one.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    peer: u32,
    own: u32,
}

/// An answer that names two connection numbers.
#[derive(Clone, Copy, Debug)]
enum Answer {
    SynAck,
    Reset,
}

/// One end of a channel between two VMs. The fields that every frame touches come first: most channels are not in the
/// cache when a frame comes.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Channel<F> {
    sender: Sender<F>,
    receiver: Receiver<F>,
    /// Time of the next message that this end sends by itself.
    deadline: Instant,
    /// Frames at the front of the retransmission buffer that had been sent when the other end forgot everything.
    unacknowledged: usize,
    /// Connection numbers of this end and of the other end. They are also the first sequence numbers.
    own: u32,
    peer: u32,
    /// Timeouts since the other end's last message.
    tries: u32,
    state: State,
    /// This end sends a message by itself: a greeting, a repeated answer, or a question.
    speaks: bool,
    /// This end asks whether the other end still has the connection, even without frames in flight.
    inquires: bool,
    /// A connection has ended since the last call of `take_ended`.
    has_ended: bool,
    /// A refusal to be sent.
    refuses: Option<u32>,
    /// The attempt to close that waits for an answer.
    closing: Option<u32>,
    candidate: Option<Candidate>,
    /// An answer to a received message. Messages that this end sends by itself are kept elsewhere, so they do not
    /// replace a waiting answer.
    pending_answer: Option<(Answer, u32, u32)>,
    counters: ChannelCounters,
    config: ChannelConfig,
    /// Source of connection numbers.
    random: Rng,
    /// Number of attempts to close so far.
    attempts: u32,
    /// The last refused attempt to close of the other end.
    refused: u32,
}

/// The timeout is doubled this many times at most while the other end does not answer.
const DOUBLINGS_MAX: u32 = 6;

impl<F: Clone> Channel<F> {
    /// Returns an end without a connection. `random` makes its connection numbers, which must differ from all earlier
    /// ones.
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

    /// Sets the number of the first connection, for instance to test its wrap.
    pub fn begin_at(&mut self, own: u32) {
        self.own = own;
        self.sender = Sender::new(self.config.buffer as usize, SeqNumber(own));
    }

    /// The counters.
    pub fn counters(&self) -> ChannelCounters {
        self.counters
    }
    /// Sent and unacknowledged frames.
    pub fn in_flight(&self) -> usize {
        self.sender.in_flight()
    }
    /// Frames in the retransmission buffer, unsent frames included.
    pub fn unsent_and_in_flight(&self) -> usize {
        self.sender.len()
    }
    /// Frames that came before their turn and wait.
    pub fn early(&self) -> usize {
        self.receiver.early()
    }
    /// Whether the channel takes a frame.
    pub fn has_room(&self) -> bool {
        self.sender.has_room() && self.unacknowledged == 0 && self.closing.is_none()
    }
    /// Whether the channel keeps no frame, in either direction.
    pub fn is_empty(&self) -> bool {
        self.sender.len() == 0 && self.unacknowledged == 0 && self.receiver.early() == 0
    }
    /// Whether the channel is over: no connection, no frame, no message to send.
    pub fn is_over(&self) -> bool {
        self.state == State::Idle && self.pending_answer.is_none() && self.is_empty()
    }
    /// Whether there is a connection, so that its frames may still be delivered.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Answered | State::Connected)
    }
    /// Whether a connection has ended since the last call. None of its frames is delivered any more, at either end.
    pub fn take_ended(&mut self) -> bool {
        core::mem::take(&mut self.has_ended)
    }
    /// Whether the channel [would end](Channel::close).
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Opens a connection before the first frame, so that the frame need not wait for an answer.
    pub fn open(&mut self, now: Instant) {
        if self.state == State::Idle {
            self.greet(now);
        }
    }

    /// Whether frames are sent at once and need not wait for the other end's answer.
    pub fn is_open(&self) -> bool {
        self.state == State::Connected
    }

    /// Asks the other end to end an idle connection: the other end may have sent frames. The channel takes no frames
    /// until the other end has refused, or has agreed and the channel [is over](Channel::is_over).
    pub fn close(&mut self, now: Instant) {
        if self.state == State::Connected && self.is_empty() && self.closing.is_none() {
            self.attempts = self.attempts.wrapping_add(1);
            (self.closing, self.speaks) = (Some(self.attempts), true);
            self.arm(now);
        }
    }

    /// Asks whether the other end still has the connection, again and again until it answers. If the other end has lost
    /// the connection, this end's [connection ends](Channel::take_ended). Returns `false` without a connection.
    pub fn inquire(&mut self, now: Instant) -> bool {
        // An unconfirmed connection repeats its answer anyway.
        if self.state == State::Connected && !core::mem::replace(&mut self.inquires, true) {
            self.speaks = true;
            self.arm(now);
        }
        self.is_connected()
    }

    /// Takes a frame to be sent.
    ///
    /// # Errors
    /// The retransmission buffer is full, its unacknowledged frames have to be [taken](Channel::take_unacknowledged)
    /// first, or the channel is closing.
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

    /// Takes the frames that were sent before the other end forgot everything; some may have been delivered. The caller
    /// sends them again in this order, or frees them. No new frame is sent before.
    pub fn take_unacknowledged(&mut self) -> Option<impl Iterator<Item = F> + use<F>> {
        let sent = core::mem::take(&mut self.unacknowledged);
        self.counters.given_up += sent as u64;
        (sent > 0).then(|| self.sender.take_first(sent).into_iter())
    }

    /// Takes the frames that were never sent, in their order.
    pub fn take_unsent(&mut self) -> impl Iterator<Item = F> + use<F> {
        self.sender.take_unsent(self.unacknowledged).into_iter()
    }

    /// Timeouts since the other end's last message.
    pub fn unheard(&self) -> u32 {
        self.tries
    }

    /// Ends the channel without a message. `free` gets its unacknowledged frames, its unsent frames, and the frames
    /// that came before their turn.
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

    /// Handles a frame from the other end; `frame` is its content. `deliver` gets frames for the VM here, in order.
    /// `free` gets acknowledged frames of this end, and frames that are of no use any more.
    ///
    /// # Errors
    /// The refused frame and the reason.
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
            // The new greeting really came from the other end.
            self.forget(free);
            self.connect_to(candidate.own, candidate.peer);
        }
        let is_known = matches!(self.state, State::Answered | State::Connected);
        if !is_known || header.connection != self.own {
            if self.pending_answer.is_none() && header.connection != 0 {
                // The other end speaks to an earlier channel of this place, or took another channel's answer for the
                // last one. A connected end says so, too: two ends, each connected to another, would otherwise wait for
                // ever.
                self.pending_answer = Some((Answer::Reset, 0, header.connection));
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
            // The question is repeated at its deadline.
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

    /// The other end has no frames to send and asks to close. A refused attempt is always refused again. Frames sent
    /// after the refusal may be in flight when a copy of the attempt comes.
    fn on_close(&mut self, now: Instant, attempt: SeqNumber, free: &mut impl FnMut(F)) {
        if self.is_empty() && attempt > SeqNumber(self.refused) {
            let number = self.own;
            self.end_connection(now, free);
            self.pending_answer = Some((Answer::Reset, 0, number));
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

    /// The other end greets, to begin a connection.
    fn on_greeting(&mut self, now: Instant, peer: u32) -> Result<(), (Option<F>, Refusal)> {
        match self.state {
            State::Idle | State::Greeting => {
                self.connect_to(self.own, peer);
                self.arm(now);
                self.answer(self.own, peer);
            }
            State::Answered | State::Connected if peer == self.peer => self.answer(self.own, peer),
            State::Answered | State::Connected => {
                // The candidate that was answered first is kept: its end may have begun to send. If its greeting is an
                // old one, the other end resets it, and the next greeting is answered.
                let random = &mut self.random;
                let Candidate { peer, own } =
                    *self.candidate.get_or_insert_with(|| Candidate { peer, own: number(random) });
                self.answer(own, peer);
            }
        }
        Ok(())
    }

    fn answer(&mut self, own: u32, peer: u32) {
        self.pending_answer = Some((Answer::SynAck, peer, own));
    }

    /// The other end answers this end's greeting.
    fn on_answer(&mut self, header: &Header) -> Result<(), (Option<F>, Refusal)> {
        if header.connection != self.own {
            if self.pending_answer.is_none() {
                // The other end waits for an earlier channel, and would do so for ever.
                self.pending_answer = Some((Answer::Reset, 0, header.connection));
            }
            return self.stale(None);
        }
        match self.state {
            State::Greeting => self.connect_to(self.own, header.sequence),
            // Both ends began at once, or this end's confirmation was lost.
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

    /// The other end has forgotten this connection. If the other end has begun another one, this end takes it over. The
    /// number in this end's answer must not be given to any other connection.
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

    /// The other end has forgotten everything. The next connection gets another number, and the caller decides about
    /// the frames that were sent.
    fn forget(&mut self, free: &mut impl FnMut(F)) {
        self.receiver.give_up(free);
        // Sent frames of earlier connections, which the caller has not taken, are at the front of the buffer.
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

    /// Whether there may be something for the other end.
    #[inline(always)]
    pub fn has_output(&self) -> bool {
        self.has_message() || self.may_number() && self.sender.has_output()
    }

    /// Whether there is a message for the other end. It goes before frames.
    #[inline(always)]
    pub fn has_message(&self) -> bool {
        let is_asked = self.receiver.has_answer() || self.refuses.is_some();
        self.pending_answer.is_some()
            || self.speaks && self.state != State::Idle
            || is_asked && self.state == State::Connected
    }

    /// Whether frames are sent.
    #[inline(always)]
    fn may_number(&self) -> bool {
        self.state == State::Connected && self.unacknowledged == 0
    }

    /// Returns the next message or frame for the other end.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing<F>> {
        if self.has_message() {
            return self.poll_message().map(|header| Outgoing { header, frame: None });
        }
        let numbered = self.poll_frame(now)?;
        Some(Outgoing { header: numbered.header(), frame: Some(numbered.frame) })
    }

    fn poll_message(&mut self) -> Option<Header> {
        let answer = self.pending_answer.take().map(|(answer, connection, sequence)| match answer {
            Answer::SynAck => (Kind::SynAck, connection, sequence),
            Answer::Reset => (Kind::Reset, connection, sequence),
        });
        let said = answer.or_else(|| match self.state {
            State::Greeting if core::mem::take(&mut self.speaks) => Some((Kind::Syn, 0, self.own)),
            State::Answered if core::mem::take(&mut self.speaks) => Some((Kind::SynAck, self.peer, self.own)),
            _ => None,
        });
        if let Some((kind, connection, sequence)) = said {
            return Some(Header { kind, connection, sequence, acknowledgement: 0 });
        }
        if self.state != State::Connected {
            return None;
        }
        let (kind, sequence) = if let Some(missing) = self.receiver.poll_answer() {
            let kind = if missing == Ranges::default() { Kind::Ack } else { Kind::Nack(missing) };
            (kind, self.sender.next().0)
        } else if let Some(attempt) = self.refuses.take() {
            (Kind::Keep, attempt)
        } else if core::mem::take(&mut self.speaks) {
            self.closing.map_or((Kind::Ask, self.sender.next().0), |attempt| (Kind::Close, attempt))
        } else {
            return None;
        };
        Some(Header { kind, connection: self.peer, sequence, acknowledgement: self.receiver.next().0 })
    }

    /// Returns the next frame for the other end, if no message goes before it.
    #[inline]
    pub fn poll_frame(&mut self, now: Instant) -> Option<Numbered<F>> {
        if self.has_message() || !self.may_number() {
            return None;
        }
        let (number, frame, again) = self.sender.poll()?;
        let ack_request = !again && self.sender.asks(self.config.period);
        self.counters.sent += u64::from(!again);
        self.counters.resent += u64::from(again);
        // Whichever happens first (5.3.4). A frame without a question does not restart the timer; otherwise the timer
        // of a slow flow would never run out.
        if ack_request || self.deadline == Instant::MAX {
            self.arm(now);
        }
        let (connection, acknowledgement) = (self.peer, self.receiver.next().0);
        Some(Numbered { frame, connection, sequence: number.0, acknowledgement, ack_request, again })
    }

    /// Time of the next message that this end sends by itself.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.deadline != Instant::MAX).then_some(self.deadline)
    }

    /// Handles the deadline.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.deadline {
            return;
        }
        let is_quiet = self.sender.in_flight() == 0 && self.closing.is_none() && !self.inquires;
        if self.state == State::Idle || self.state == State::Connected && is_quiet {
            self.deadline = Instant::MAX;
            return;
        }
        // The other end cannot have answered a message that the link has not sent yet.
        if !core::mem::replace(&mut self.speaks, true) {
            self.tries = self.tries.saturating_add(1);
            self.counters.timeouts += 1;
        }
        self.arm(now);
    }
}

/// Returns a connection number; 0 means none.
fn number(random: &mut Rng) -> u32 {
    loop {
        let number = random.next_u64() as u32;
        if number != 0 {
            return number;
        }
    }
}
