//! A receive queue and those who send to it, whose messages suffer, and one that says what it likes.

use super::wire::Faults;
use super::{Broken, Stream, Tally, Wire};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zcredit::{Message, Reception, ReceptionConfig, Transmission, TransmissionConfig};

/// Faults end after so many steps, and everything has to after so many more.
const STEPS: u32 = 3_000;
const STEPS_MAX: u32 = 300_000;

struct Source {
    transmission: Transmission,
    stream: Stream,
    /// Number of the first frame that waits.
    first: u64,
}

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut rng = Rng::from_words(&[seed, 0xC4E]);
    let queue = 1 + rng.below(40) as u32;
    let batch = 1 + rng.below(u64::from(queue).min(9)) as u32;
    let honest = 1 + rng.below(4) as usize;
    let config = ReceptionConfig { queue, batch, sources: honest + 2, ..ReceptionConfig::default() };
    let transmission = TransmissionConfig { batch, ..TransmissionConfig::default() };
    // Counters that wrap within the run, in one case of two.
    let first = |rng: &mut Rng| [1, u32::MAX - rng.below(100) as u32][rng.below(2) as usize];
    let mut receiver: Reception<usize> = Reception::new(config);
    let mut sources: Vec<Source> = (0..honest)
        .map(|_| Source {
            transmission: Transmission::new(transmission, first(&mut rng)),
            stream: Stream::default(),
            first: 0,
        })
        .collect();
    let hostile = honest;
    let (is_hostile, mut stopped) = (rng.below(2) == 0, Instant::ZERO);
    let mut faults = Faults::any(&mut rng);
    let mut to_receiver: Wire<(usize, u32, Message)> = Wire::new();
    let mut to_sources: Wire<(usize, u32, Message)> = Wire::new();
    // Frames come in order and whole: what the layer below is for.
    let mut frames: Wire<(usize, u64)> = Wire::new();
    let (mut now, mut steps, mut restarted) = (Instant::ZERO, 0, false);
    loop {
        steps += 1;
        let trouble = steps < STEPS;
        if !trouble {
            faults = Faults::default();
            let waits = sources.iter().any(|s| s.transmission.waiting() > 0);
            if !waits && frames.next().is_none() && receiver.queued() == 0 && receiver.free() == queue {
                break;
            }
        }
        if steps > STEPS_MAX {
            let waiting: Vec<u32> = sources.iter().map(|s| s.transmission.waiting()).collect();
            return Err(format!(
                "no end: {} queued, {} promised, {waiting:?} wait",
                receiver.queued(),
                receiver.promised()
            ));
        }
        now += Duration::from_us(if rng.below(200) == 0 { 50_000 } else { 1 + rng.below(200) });
        while let Some((name, channel, message)) = to_receiver.due(now) {
            receiver.receive(now, name, channel, &message);
        }
        while let Some((name, channel, message)) = to_sources.due(now) {
            if let Some(source) = sources.get_mut(name) {
                source.transmission.receive(now, channel, &message);
            }
        }
        while let Some((name, number)) = frames.due(now) {
            match receiver.on_frame(now, name) {
                Ok(()) => sources[name].stream.on_arrival(number, restarted)?,
                Err(_) if restarted => {}
                Err(_) => return Err(format!("a frame of {name} that was granted found no room")),
            }
        }
        receiver.handle_timeout(now);
        if trouble {
            match rng.below(400) {
                0 => stopped = now + Duration::from_ms(rng.below(300)),
                1 => {
                    // The hypervisor of a sender starts again, with a number that may be an earlier one.
                    tally.count("restarts");
                    let at = rng.below(honest as u64) as usize;
                    sources[at].first = sources[at].stream.sent;
                    // Never one that it had: its frames would be taken for those of that life.
                    sources[at].transmission = Transmission::new(transmission, rng.next_u64() as u32);
                    restarted = true;
                }
                _ => {}
            }
            let source = &mut sources[rng.below(honest as u64) as usize];
            for _ in 0..rng.below(3) {
                if source.transmission.waiting() < 100 {
                    source.transmission.on_arrival();
                    source.stream.sent += 1;
                }
            }
            if is_hostile && rng.below(4) == 0 {
                // Asks for all there are, claims to have spent what it never had, sends what it was not granted.
                tally.count("absurd");
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
                to_receiver.send(now, (hostile, channel, message), faults, &mut rng, tally);
                let _ = receiver.on_frame(now, hostile);
            }
            if rng.below(20) == 0 {
                // Of somebody who does not know the channel.
                tally.count("forged");
                let name = rng.below(honest as u64) as usize;
                let channel = sources[name].transmission.channel().wrapping_add(1 << 31 | rng.below(1 << 20) as u32);
                let granted = rng.next_u64() as u32;
                to_sources.send(now, (name, channel, Message::Grant { granted }), faults, &mut rng, tally);
            }
        }
        for (name, source) in sources.iter_mut().enumerate() {
            while source.transmission.may_send() && (!trouble || rng.below(8) > 0) {
                source.transmission.on_sent();
                frames.send(now, (name, source.first), Faults::default(), &mut rng, tally);
                source.first += 1;
            }
            while let Some((channel, message)) = source.transmission.poll_message(now) {
                to_receiver.send(now, (name, channel, message), faults, &mut rng, tally);
            }
        }
        while let Some(said) = receiver.poll_message() {
            to_sources.send(now, said, faults, &mut rng, tally);
        }
        for _ in 0..if trouble { 1 } else { queue } {
            if now >= stopped && receiver.queued() > 0 {
                receiver.on_departure(now);
            }
        }
        if !receiver.is_sound() || receiver.queued_max() > queue {
            return Err(format!(
                "the books: {} queued, {} promised of {queue}",
                receiver.queued(),
                receiver.promised()
            ));
        }
        // Whoever may spend a credit, or has and its frame is not there yet, has room. Those of a life before are no more.
        let held: u32 = sources.iter().map(|s| s.transmission.credits()).sum();
        let flying = frames.iter().count() as u32;
        if !restarted && held + flying > receiver.promised() {
            return Err(format!("{held} are held and {flying} under way of {} promised", receiver.promised()));
        }
    }
    for source in &sources {
        tally.sent += source.stream.sent;
        tally.received += source.stream.received;
        if !restarted && source.stream.received != source.stream.sent {
            return Err(format!("{} of {} came", source.stream.received, source.stream.sent));
        }
    }
    Ok(())
}
