//! Many sources with lost, doubled, delayed, reordered and forged messages, against a model that knows where every
//! credit is.

use super::{Wire, sender};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::transport::zcredit::{Message, Reception, ReceptionConfig, Transmission};
use alloc::vec::Vec;

/// Messages get lost, doubled, delayed, reordered and forged. Frames come late and in order; in some runs frames get
/// lost. Sources die, are restarted and withdraw frames. The VM stops and continues.
struct Campaign {
    seed: u64,
    random: Rng,
    now: Instant,
    receiver: Reception<u8>,
    senders: Vec<Transmission>,
    /// Frames in flight from each source.
    frames: Vec<Wire<u32>>,
    to_receiver: Wire<(u8, u32, Message)>,
    to_senders: Wire<(u8, u32, Message)>,
    /// Per source, the number of the next frame to send and of the next frame to arrive.
    sent: Vec<u32>,
    next: Vec<u32>,
    loses_frames: bool,
    dropped: u64,
    config: ReceptionConfig,
}

impl Campaign {
    fn new(seed: u64) -> Campaign {
        let mut random = Rng::from_words(&[seed, 2]);
        let sources = 1 + random.below(5) as usize;
        let queue = 1 + random.below(40) as u32;
        let batch = 1 + random.below(u64::from(queue).min(9)) as u32;
        let ordered = false;
        let config = ReceptionConfig { queue, batch, sources: sources + 1, ordered, ..ReceptionConfig::default() };
        let first = if random.below(3) == 0 { u32::MAX - random.below(100) as u32 } else { 1 };
        let loses_frames = random.below(4) == 0;
        Campaign {
            seed,
            now: Instant::ZERO,
            receiver: Reception::new(config),
            senders: (0..sources).map(|_| sender(first)).collect(),
            frames: (0..sources).map(|_| Wire::new()).collect(),
            to_receiver: Wire::new(),
            to_senders: Wire::new(),
            sent: alloc::vec![0; sources],
            next: alloc::vec![0; sources],
            loses_frames,
            dropped: 0,
            config,
            random,
        }
    }

    /// Arrival times of a message and of its copies: at the worst seconds from now.
    fn fate(&mut self, faulty: bool) -> Vec<Instant> {
        let base = self.now.saturating_add(Duration::from_us(20));
        if !faulty {
            return alloc::vec![base];
        }
        let copies = [0, 0, 1, 1, 1, 1, 1, 2][self.random.below(8) as usize];
        (0..copies)
            .map(|_| match self.random.below(50) {
                0 => base.saturating_add(Duration::from_ms(self.random.below(4_000))),
                _ => base.saturating_add(Duration::from_us(self.random.below(300))),
            })
            .collect()
    }

    fn forge(&mut self) {
        let name = self.random.below(self.senders.len() as u64) as u8;
        let mut word = || match self.random.below(3) {
            0 => self.random.next_u64() as u32,
            _ => self.senders[usize::from(name)].channel().wrapping_add(self.random.below(60) as u32),
        };
        let (channel, a, b, c) = (word(), word(), word(), word());
        // A forger does not know the channel.
        let channel = channel.wrapping_add(u32::from(channel == self.senders[usize::from(name)].channel()) << 31);
        let message = match self.random.below(3) {
            0 => Message::Request { wanted: a, spent: b, granted: c, returned: 1 },
            1 => Message::Close { spent: a, returned: b },
            _ => Message::Grant { granted: a },
        };
        if self.random.below(2) == 0 {
            self.to_receiver.send(self.now, (name, channel, message));
        } else {
            self.to_senders.send(self.now, (name, channel, message));
        }
    }

    fn speak(&mut self, faulty: bool) {
        for name in 0..self.senders.len() {
            while let Some((channel, message)) = self.senders[name].poll_message(self.now) {
                self.fate(faulty).into_iter().for_each(|at| self.to_receiver.send(at, (name as u8, channel, message)));
            }
        }
        while let Some(said) = self.receiver.poll_message() {
            self.fate(faulty).into_iter().for_each(|at| self.to_senders.send(at, said));
        }
    }

    fn arrive(&mut self, faulty: bool) {
        while let Some((name, channel, message)) = self.to_receiver.pop_arrived(self.now) {
            self.receiver.receive(self.now, name, channel, &message);
        }
        while let Some((name, channel, message)) = self.to_senders.pop_arrived(self.now) {
            self.senders[usize::from(name)].receive(self.now, channel, &message);
        }
        for name in 0..self.senders.len() {
            while let Some(number) = self.frames[name].pop_arrived(self.now) {
                if faulty && self.loses_frames && self.random.below(20) == 0 {
                    self.dropped += 1;
                    continue;
                }
                let taken = self.receiver.on_frame(self.now, name as u8);
                assert_eq!(taken, Ok(()), "seed {}: a frame of {name} that was granted found no room", self.seed);
                assert!(number >= self.next[name]);
                self.next[name] = number + 1;
            }
        }
        self.receiver.handle_timeout(self.now);
    }

    /// Checks the sums against the state of both ends.
    fn check(&self) {
        let r = &self.receiver;
        assert_eq!(r.queued() + r.promised() + r.free(), self.config.queue);
        assert!(r.is_sound(), "seed {}: {r:?}", self.seed);
        // Every credit that may still be spent, or whose frame is in flight, has room.
        let held: u32 = self.senders.iter().map(Transmission::credits).sum();
        let flying: usize = self.frames.iter().map(|wire| wire.things.len()).sum();
        assert!(
            held + flying as u32 <= r.promised(),
            "seed {}: {held} held and {flying} under way of {} promised",
            self.seed,
            r.promised()
        );
    }

    fn run(&mut self) {
        let mut stopped_until = Instant::ZERO;
        for step in 0..4_000 {
            let faulty = step < 3_000;
            let pause = if self.random.below(200) == 0 { 50_000 } else { self.random.below(100) };
            self.now = self.now.saturating_add(Duration::from_us(pause));
            self.arrive(faulty);
            if faulty {
                self.happen(&mut stopped_until);
            }
            for name in 0..self.senders.len() {
                while self.senders[name].may_send() && self.random.below(8) > 0 {
                    self.senders[name].on_sent();
                    let late = self.now.saturating_add(Duration::from_us(30));
                    self.frames[name].send(late, self.sent[name]);
                    self.sent[name] += 1;
                }
            }
            if self.now >= stopped_until && self.receiver.queued() > 0 {
                self.receiver.on_departure(self.now);
            }
            self.speak(faulty);
            if !self.loses_frames {
                self.check();
            }
        }
        self.finish();
    }

    fn happen(&mut self, stopped_until: &mut Instant) {
        let name = self.random.below(self.senders.len() as u64) as usize;
        match self.random.below(400) {
            0 => *stopped_until = self.now.saturating_add(Duration::from_ms(self.random.below(300))),
            1 => {
                let withdrawn = self.senders[name].waiting() / 2;
                self.senders[name].on_withdrawn(withdrawn);
            }
            // A source ends or dies, and another takes its place later. Its waiting frames are gone.
            2 | 3 => {
                let channel = self.senders[name].channel();
                let next = sender(channel.wrapping_add(1 + self.random.below(9) as u32));
                let old = core::mem::replace(&mut self.senders[name], next);
                if self.random.below(2) == 0 {
                    let (channel, close) = old.close();
                    self.fate(true).into_iter().for_each(|at| self.to_receiver.send(at, (name as u8, channel, close)));
                }
            }
            4..30 => self.forge(),
            30..230 if self.senders[name].waiting() < 100 => {
                (0..self.random.below(12)).for_each(|_| self.senders[name].on_arrival());
            }
            _ => {}
        }
    }

    /// No more faults: everything is sent, everything taken, and every credit comes back.
    fn finish(&mut self) {
        let mut steps = 0;
        while self.receiver.free() < self.config.queue || self.senders.iter().any(|t| t.waiting() > 0) {
            steps += 1;
            let state = || (self.receiver.queued(), self.receiver.promised(), self.senders.clone());
            assert!(steps < 300_000, "seed {}: no end: {:?}", self.seed, state());
            self.now = self.now.saturating_add(Duration::from_us(200));
            self.arrive(false);
            for name in 0..self.senders.len() {
                while self.senders[name].may_send() {
                    self.senders[name].on_sent();
                    self.frames[name].send(self.now.saturating_add(Duration::from_us(30)), self.sent[name]);
                    self.sent[name] += 1;
                }
            }
            while self.receiver.queued() > 0 {
                self.receiver.on_departure(self.now);
            }
            self.speak(false);
        }
        let counters = self.receiver.counters();
        assert_eq!(counters.without_credit, 0, "seed {}", self.seed);
        let frames: u64 = self.sent.iter().map(|&n| u64::from(n)).sum();
        assert_eq!(counters.frames + self.dropped, frames, "seed {}", self.seed);
        // Every granted credit came as a frame, was returned, or is known to be lost.
        assert!(counters.granted >= counters.frames + counters.returned, "seed {}: {counters:?}", self.seed);
        assert_eq!(counters.granted, counters.frames + counters.returned + counters.lost, "seed {}", self.seed);
    }
}

#[test]
fn no_fault_of_messages_overruns_the_queue_or_starves_anybody() {
    (0..2_000).for_each(|seed| Campaign::new(seed).run());
}
