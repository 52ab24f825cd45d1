//! A receive queue and its senders, whose messages are lost and damaged, and one sender that sends arbitrary messages.

use super::wire::Faults;
use super::{Broken, Stream, Tally, Wire};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zcredit::{Message, Reception, ReceptionConfig, Transmission, TransmissionConfig};

/// Faults end after `STEPS` steps; the run has to end after `STEPS_MAX`.
const STEPS: u32 = 3_000;
const STEPS_MAX: u32 = 300_000;

struct Source {
    transmission: Transmission,
    stream: Stream,
    /// Number of the first frame that waits.
    first: u64,
}

/// The receiver, its senders, the wires between them, and the state of the check.
struct Run<'a> {
    rng: Rng,
    tally: &'a mut Tally,
    queue: u32,
    config: TransmissionConfig,
    receiver: Reception<usize>,
    /// The honest senders; the hostile one has the number after theirs.
    sources: Vec<Source>,
    is_hostile: bool,
    /// The receiver takes no frame before this time.
    stopped: Instant,
    faults: Faults,
    to_receiver: Wire<(usize, u32, Message)>,
    to_sources: Wire<(usize, u32, Message)>,
    /// Frames arrive in order and undamaged: the layer below ensures that.
    frames: Wire<(usize, u64)>,
    now: Instant,
    restarted: bool,
}

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut run = Run::new(seed, tally);
    let mut steps = 0;
    loop {
        steps += 1;
        let trouble = steps < STEPS;
        if !trouble {
            run.faults = Faults::default();
            if run.is_idle() {
                return run.finish();
            }
        }
        if steps > STEPS_MAX {
            let waiting: Vec<u32> = run.sources.iter().map(|s| s.transmission.waiting()).collect();
            let (queued, promised) = (run.receiver.queued(), run.receiver.promised());
            return Err(format!("no end: {queued} queued, {promised} promised, {waiting:?} wait"));
        }
        run.now += Duration::from_us(if run.rng.below(200) == 0 { 50_000 } else { 1 + run.rng.below(200) });
        run.receive()?;
        if trouble {
            run.disturb();
            run.offer();
            run.lie();
            run.forge();
        }
        run.send(trouble);
        run.depart(trouble);
        run.check()?;
    }
}

impl<'a> Run<'a> {
    fn new(seed: u64, tally: &'a mut Tally) -> Run<'a> {
        let mut rng = Rng::from_words(&[seed, 0xC4E]);
        let queue = 1 + rng.below(40) as u32;
        let batch = 1 + rng.below(u64::from(queue).min(9)) as u32;
        let honest = 1 + rng.below(4) as usize;
        let reception = ReceptionConfig { queue, batch, sources: honest + 2, ..ReceptionConfig::default() };
        let config = TransmissionConfig { batch, ..TransmissionConfig::default() };
        // In half of the runs the counters wrap.
        let first = |rng: &mut Rng| [1, u32::MAX - rng.below(100) as u32][rng.below(2) as usize];
        let source = |rng: &mut Rng| Source {
            transmission: Transmission::new(config, first(rng)),
            stream: Stream::default(),
            first: 0,
        };
        let sources = (0..honest).map(|_| source(&mut rng)).collect();
        let is_hostile = rng.below(2) == 0;
        let faults = Faults::any(&mut rng);
        Run {
            rng,
            tally,
            queue,
            config,
            receiver: Reception::new(reception),
            sources,
            is_hostile,
            stopped: Instant::ZERO,
            faults,
            to_receiver: Wire::new(),
            to_sources: Wire::new(),
            frames: Wire::new(),
            now: Instant::ZERO,
            restarted: false,
        }
    }

    fn is_idle(&self) -> bool {
        let waits = self.sources.iter().any(|s| s.transmission.waiting() > 0);
        !waits && self.frames.next().is_none() && self.receiver.queued() == 0 && self.receiver.free() == self.queue
    }

    /// Hands over everything that the wires bring now.
    fn receive(&mut self) -> Result<(), Broken> {
        let now = self.now;
        while let Some((name, channel, message)) = self.to_receiver.pop_arrived(now) {
            self.receiver.receive(now, name, channel, &message);
        }
        while let Some((name, channel, message)) = self.to_sources.pop_arrived(now) {
            if let Some(source) = self.sources.get_mut(name) {
                source.transmission.receive(now, channel, &message);
            }
        }
        while let Some((name, number)) = self.frames.pop_arrived(now) {
            match self.receiver.on_frame(now, name) {
                Ok(()) => self.sources[name].stream.on_arrival(number, self.restarted)?,
                Err(_) if self.restarted => {}
                Err(_) => return Err(format!("a frame of {name} that was granted found no room")),
            }
        }
        self.receiver.handle_timeout(now);
        Ok(())
    }

    /// Seldom the receiver stops for a while, or a sender's hypervisor starts again.
    fn disturb(&mut self) {
        match self.rng.below(400) {
            0 => self.stopped = self.now + Duration::from_ms(self.rng.below(300)),
            1 => {
                self.tally.count("restarts");
                let at = self.rng.below(self.sources.len() as u64) as usize;
                self.sources[at].first = self.sources[at].stream.sent;
                // The new number may be smaller, but never a former number of this sender: its frames would be taken
                // for those of its former life.
                self.sources[at].transmission = Transmission::new(self.config, self.rng.next_u64() as u32);
                self.restarted = true;
            }
            _ => {}
        }
    }

    /// A sender gets a few frames to send.
    fn offer(&mut self) {
        let at = self.rng.below(self.sources.len() as u64) as usize;
        let source = &mut self.sources[at];
        for _ in 0..self.rng.below(3) {
            if source.transmission.waiting() < 100 {
                source.transmission.on_arrival();
                source.stream.sent += 1;
            }
        }
    }

    /// The hostile sender asks for all credits, claims to have spent credits that it never had, and sends frames
    /// without a grant.
    fn lie(&mut self) {
        if !self.is_hostile || self.rng.below(4) != 0 {
            return;
        }
        self.tally.count("absurd");
        let (rng, hostile) = (&mut self.rng, self.sources.len());
        let mut word = || match rng.below(4) {
            0 => u32::MAX >> rng.below(2),
            1 => rng.next_u64() as u32,
            _ => rng.below(40) as u32,
        };
        let (channel, a, b, c, d) = (word() % 4, word(), word(), word(), word());
        let message = match a % 5 {
            0 => Message::Close { spent: b, returned: c },
            1 => Message::Grant { granted: b },
            2 => Message::Request {
                wanted: channel.wrapping_add(1 << 30),
                spent: channel,
                granted: channel,
                returned: 0,
            },
            _ => Message::Request { wanted: a, spent: b, granted: c, returned: d },
        };
        self.to_receiver.send(self.now, (hostile, channel, message), self.faults, &mut self.rng, self.tally);
        let _ = self.receiver.on_frame(self.now, hostile);
    }

    /// A stranger that does not know the channel sends a grant.
    fn forge(&mut self) {
        if self.rng.below(20) != 0 {
            return;
        }
        self.tally.count("forged");
        let name = self.rng.below(self.sources.len() as u64) as usize;
        let channel = self.sources[name].transmission.channel().wrapping_add(1 << 31 | self.rng.below(1 << 20) as u32);
        let granted = self.rng.next_u64() as u32;
        let forged = (name, channel, Message::Grant { granted });
        self.to_sources.send(self.now, forged, self.faults, &mut self.rng, self.tally);
    }

    /// Senders send frames and messages, and the receiver sends messages.
    fn send(&mut self, trouble: bool) {
        let Run { rng, tally, receiver, sources, faults, to_receiver, to_sources, frames, now, .. } = self;
        for (name, source) in sources.iter_mut().enumerate() {
            while source.transmission.may_send() && (!trouble || rng.below(8) > 0) {
                source.transmission.on_sent();
                frames.send(*now, (name, source.first), Faults::default(), rng, tally);
                source.first += 1;
            }
            while let Some((channel, message)) = source.transmission.poll_message(*now) {
                to_receiver.send(*now, (name, channel, message), *faults, rng, tally);
            }
        }
        while let Some(message) = receiver.poll_message() {
            to_sources.send(*now, message, *faults, rng, tally);
        }
    }

    /// Frames leave the receive queue: one in a step while there are faults, all afterwards.
    fn depart(&mut self, trouble: bool) {
        for _ in 0..if trouble { 1 } else { self.queue } {
            if self.now >= self.stopped && self.receiver.queued() > 0 {
                self.receiver.on_departure(self.now);
            }
        }
    }

    fn check(&self) -> Result<(), Broken> {
        let Run { receiver, sources, queue, .. } = self;
        let (queued, promised) = (receiver.queued(), receiver.promised());
        if !receiver.is_sound() || receiver.queued_max() > *queue {
            return Err(format!("the accounting: {queued} queued, {promised} promised of {queue}"));
        }
        // Each credit that a sender has, or has spent on a frame on its way, is promised room; credits of an earlier
        // life are void.
        let credits: u32 = sources.iter().map(|s| s.transmission.credits()).sum();
        let flying = self.frames.iter().count() as u32;
        if !self.restarted && credits + flying > promised {
            return Err(format!("senders have {credits} credits, {flying} frames fly, {promised} are promised"));
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Broken> {
        for source in &self.sources {
            self.tally.sent += source.stream.sent;
            self.tally.received += source.stream.received;
            if !self.restarted && source.stream.received != source.stream.sent {
                return Err(format!("{} of {} frames arrived", source.stream.received, source.stream.sent));
            }
        }
        Ok(())
    }
}
