//! Bumps that tell each other what they forward. Updates are lost, doubled, late, out of order, damaged and forged, and bumps
//! start again.
//!
//! The model is a true queue for each port, with the traffic of all bumps. One bump estimates these queues from its own
//! traffic and the updates of the others.

use super::wire::Faults;
use super::{Broken, Tally, Wire};
use sluicenet_proto::netbump::{Receiver, Reporter, Sequence, VirtualQueue};
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::bump::{Forwarded, Repr, Update};
use sluicenet_wire::ethernet::MacAddress;
use std::collections::BTreeMap;

/// Faults and traffic end at this time.
const TROUBLE: Duration = Duration::from_ms(20);
/// Ports of the switch that all bumps lead to, and the speed of their links.
const PORTS: usize = 3;
const RATE: Rate = Rate::gbps(1);
const LIMIT_BYTES: u64 = 40_000;
/// The time that an update takes, and the oldest packet that is believed.
const LATENCY: Duration = Duration::from_us(10);
const AGE_MAX: Duration = Duration::from_ms(10);
/// The most that a lost update is made up for at once (`proto::netbump::updates`).
const ESTIMATE_MAX: u64 = 4 * 65_536;
/// Bytes by which two queues of the same traffic may differ, for rounding.
const ROUNDING: u64 = 2;
/// A frame has been changed in one of so many that are lost on average.
const FLIPPED: u64 = 4;

/// A bump that tells what it forwards.
struct Teller {
    reporter: Reporter,
    incarnation: u32,
    /// Bytes in all updates of this incarnation, and how many are told after each of them.
    told: u64,
}

/// What the estimating bump has of a teller.
struct Known {
    receiver: Receiver,
    /// Bytes that were entered of an incarnation, and the bytes of it that nobody can know.
    entered: BTreeMap<u32, (u64, u64)>,
}

struct Run<'a> {
    rng: Rng,
    tally: &'a mut Tally,
    now: Instant,
    faults: Faults,
    key: Key,
    tellers: Vec<Teller>,
    known: Vec<Known>,
    /// Bytes of a teller's incarnation up to an update, and before it.
    totals: BTreeMap<(usize, u32, u32), (u64, u64)>,
    truth: Vec<VirtualQueue>,
    estimate: Vec<VirtualQueue>,
    /// Bytes that only one of the two has got since both were known to be equal, for each port.
    doubt: Vec<u64>,
    wire: Wire<Vec<u8>>,
    /// Frames that somebody has recorded.
    recorded: Vec<Vec<u8>>,
}

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut run = Run::new(seed, tally);
    let start = run.now;
    // From half the ports' speed to more than it.
    let gap_ns = 2 * (8 * 811 / PORTS as u64) * 100 / (50 + run.rng.below(70));
    while run.now.since(start) < TROUBLE {
        run.now += Duration::from_ns(1 + run.rng.below(gap_ns));
        run.tell(false);
        run.deliver()?;
        run.forward();
        run.trouble();
        run.check()?;
    }
    run.faults = Faults::default();
    run.now += Duration::from_ms(1);
    run.tell(true);
    while let Some(at) = run.wire.next() {
        run.now = at.max(run.now);
        run.deliver()?;
        run.check()?;
    }
    run.end()
}

impl<'a> Run<'a> {
    fn new(seed: u64, tally: &'a mut Tally) -> Run<'a> {
        let mut rng = Rng::from_words(&[seed, 0x6275]);
        let limit = (rng.below(2) == 0).then_some(LIMIT_BYTES);
        let count = 1 + rng.below(3) as usize;
        let (batch, interval) = (1 + rng.below(32) as usize, Duration::from_us(1 + rng.below(100)));
        let teller = |_| Teller { reporter: Reporter::new(batch, interval), incarnation: u32::MAX - 1, told: 0 };
        let known = |_| Known { receiver: Receiver::new(LATENCY, AGE_MAX), entered: BTreeMap::new() };
        Run {
            faults: Faults::any(&mut rng),
            rng,
            tally,
            now: Instant::ZERO + Duration::from_secs(1),
            key: Key::new(&[7; 32]),
            tellers: (0..count).map(teller).collect(),
            known: (0..count).map(known).collect(),
            totals: BTreeMap::new(),
            truth: vec![VirtualQueue::new(RATE, limit); PORTS],
            estimate: vec![VirtualQueue::new(RATE, limit); PORTS],
            doubt: vec![0; PORTS],
            wire: Wire::new(),
            recorded: Vec::new(),
        }
    }

    /// A packet passes one of the bumps.
    fn forward(&mut self) {
        // The first port is the busiest.
        let port = [0, 0, 0, 1, 1, 2][self.rng.below(6) as usize];
        let bytes = 84 + self.rng.below(1_455);
        self.truth[port].arrive(self.now, bytes);
        match self.rng.below(1 + self.tellers.len() as u64) as usize {
            0 => self.estimate[port].arrive(self.now, bytes),
            n => {
                self.tellers[n - 1].reporter.on_forward(self.now, bytes, port as u16);
                self.doubt[port] += bytes;
                self.tally.sent += 1;
            }
        }
    }

    /// Updates that are due leave; at the end `all` do.
    fn tell(&mut self, all: bool) {
        for n in 0..self.tellers.len() {
            let now = if all { self.now + Duration::from_ms(1) } else { self.now };
            let mut frame = None;
            let Teller { reporter, incarnation, told } = &mut self.tellers[n];
            reporter.poll_transmit(now, |fields, packets| {
                let sum: u64 = packets.iter().map(|packet| u64::from(packet.wire_bytes)).sum();
                self.totals.insert((n, *incarnation, fields.sequence), (*told + sum, *told));
                *told += sum;
                frame = Some(emit(&self.key, n as u32, *incarnation, fields, packets));
            });
            if let Some(frame) = frame {
                if self.rng.below(8) == 0 {
                    self.recorded.push(frame.clone());
                }
                self.wire.send(self.now, frame, self.faults, &mut self.rng, self.tally);
            }
        }
    }

    /// Takes the frames that have arrived.
    fn deliver(&mut self) -> Result<(), Broken> {
        while let Some(mut frame) = self.wire.pop_arrived(self.now) {
            if self.faults.lost > 0 && self.rng.below(1_000) < self.faults.lost / FLIPPED {
                self.tally.count("bits flipped");
                let bit = self.rng.below(8 * frame.len() as u64) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            self.receive(&frame)?;
        }
        Ok(())
    }

    /// Takes a frame as a bump does.
    fn receive(&mut self, frame: &[u8]) -> Result<(), Broken> {
        let Ok(update) = Update::parse(frame) else { return Ok(()) };
        if !self.key.verifies(update.signed, update.tag) {
            return Ok(());
        }
        let Update { repr, .. } = update;
        let n = repr.bump as usize;
        let Run { now, known, estimate, doubt, .. } = self;
        let Some(Known { receiver, entered }) = known.get_mut(n) else { return Err("a forged bump".into()) };
        let (mut bytes, before) = (0, *receiver.counts());
        receiver.merge_frame(*now, &update, |port, at, wire_bytes| {
            bytes += wire_bytes;
            doubt[usize::from(port)] += wire_bytes;
            estimate[usize::from(port)].arrive_late(*now, at, wire_bytes);
            true
        });
        if receiver.counts().merged == before.merged {
            return Ok(());
        }
        self.tally.received += update.packets().len() as u64;
        let Some(&(total, before_it)) = self.totals.get(&(n, repr.incarnation, repr.sequence)) else {
            return Err(format!("bump {n} never told update {}", repr.sequence));
        };
        let (sum, unknown) = entered.entry(repr.incarnation).or_insert((0, before_it));
        // A gap that is too long is not believed.
        let missing = before_it - (*sum + *unknown).min(before_it);
        *unknown += missing.saturating_sub(ESTIMATE_MAX);
        *sum += bytes;
        let rounding = update.packets().len() as u64;
        if *sum + *unknown > total {
            return Err(format!("bump {n} told of {total} bytes, and {sum} were entered: some count twice"));
        }
        if *sum + *unknown + rounding < total {
            return Err(format!("bump {n} told of {total} bytes, and only {sum} were entered"));
        }
        *unknown += total - (*sum + *unknown);
        Ok(())
    }

    /// Somebody without the key sends updates, or recorded ones again; a bump starts again.
    fn trouble(&mut self) {
        if self.rng.below(64) == 0 {
            self.tally.count("forged");
            let rng = &mut self.rng;
            let mut word = |n: u64| rng.below(n) as u32;
            let fields = Sequence {
                sequence: word(64),
                bytes_before: word(1 << 31),
                wait: Duration::from_ns(word(1 << 31).into()),
                span: Duration::from_ns(word(1 << 31).into()),
            };
            let packets: Vec<Forwarded> =
                (0..word(30)).map(|_| Forwarded { wire_bytes: word(65_536) as u16, port: word(4) as u16 }).collect();
            let frame = emit(&Key::new(&[8; 32]), word(3), word(4).wrapping_sub(2), fields, &packets);
            self.wire.send(self.now, frame, Faults::default(), &mut self.rng, self.tally);
        }
        if !self.recorded.is_empty() && self.rng.below(64) == 0 {
            self.tally.count("sent again");
            let frame = self.recorded[self.rng.below(self.recorded.len() as u64) as usize].clone();
            self.wire.send(self.now, frame, Faults::default(), &mut self.rng, self.tally);
        }
        if self.rng.below(4_000) == 0 {
            self.tally.count("restarts");
            let n = self.rng.below(self.tellers.len() as u64) as usize;
            // The clock that gives incarnations may wrap.
            let incarnation = self.tellers[n].incarnation.wrapping_add(1);
            let batch = 1 + self.rng.below(32) as usize;
            self.tellers[n] = Teller { reporter: Reporter::new(batch, Duration::from_us(20)), incarnation, told: 0 };
        }
    }

    /// The error is no larger than the bytes in doubt, and none where the queue is known.
    fn check(&mut self) -> Result<(), Broken> {
        for port in 0..PORTS {
            let (now, before) = (self.now, self.estimate[port].bytes(self.now));
            let truth = self.truth[port].bytes(now);
            if truth.abs_diff(before) > self.doubt[port] + ROUNDING {
                return Err(format!(
                    "port {port} has {truth} bytes, and {before} as estimated: {} are in doubt",
                    self.doubt[port]
                ));
            }
            // The estimate runs empty with its queue: no doubt is left.
            if truth == 0 && before == 0 {
                self.doubt[port] = 0;
            }
        }
        Ok(())
    }

    /// In the end both run empty.
    fn end(&mut self) -> Result<(), Broken> {
        self.now += Duration::from_ms(20);
        for (port, (truth, estimate)) in self.truth.iter().zip(&self.estimate).enumerate() {
            if (truth.bytes(self.now), estimate.bytes(self.now)) != (0, 0) {
                return Err(format!("port {port} does not run empty"));
            }
        }
        Ok(())
    }
}

/// An update in a frame.
fn emit(key: &Key, bump: u32, incarnation: u32, fields: Sequence, packets: &[Forwarded]) -> Vec<u8> {
    let repr = Repr {
        destination: MacAddress::local(100),
        source: MacAddress::local(bump),
        bump,
        incarnation,
        sequence: fields.sequence,
        bytes_before: fields.bytes_before,
        wait_ns: (fields.wait.0 / 1_000).min(u32::MAX.into()) as u32,
        span_ns: (fields.span.0 / 1_000).min(u32::MAX.into()) as u32,
    };
    let mut bytes = vec![0; Repr::emitted_len(packets.len())];
    repr.emit(packets, &mut bytes, |signed| key.tag(signed));
    bytes
}
