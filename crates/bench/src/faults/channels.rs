//! Two ends of a channel of zBridge that send to each other. Either end may start again. It then has forgotten
//! everything, and frames on their way to it are not sent again, as at an uplink.

use super::wire::Faults;
use super::{Broken, Stream, Tally, Wire};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zbridge::{Channel, ChannelConfig, Outgoing};

/// Faults end after so many steps, and the run must end after so many more.
const STEPS: u32 = 20_000;
const STEPS_MAX: u32 = 200_000;

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut rng = Rng::from_words(&[seed, 0xC4A]);
    let period = 1 + rng.below(32) as u32;
    let buffer = period * (2 + rng.below(8) as u32);
    let mut faults = Faults::any(&mut rng);
    let single_path = faults.overtaken == 0 && rng.below(2) == 0;
    let config = ChannelConfig { buffer, period, timeout: Duration::from_ms(1 + rng.below(30)), single_path };
    let (mut lives, wraps) = (0, rng.below(2) == 0);
    let mut end = || {
        lives += 1;
        let mut end = Channel::new(config, Rng::from_words(&[seed, lives]));
        if wraps {
            end.begin_at(u32::MAX - (seed as u32).wrapping_mul(31).wrapping_add(7 * lives as u32) % 100);
        }
        end
    };
    let mut ends: [Channel<u64>; 2] = [end(), end()];
    let mut wires: [Wire<Outgoing<u64>>; 2] = [Wire::new(), Wire::new()];
    let mut streams = [Stream::default(); 2];
    let frames = 100 + rng.below(400);
    let restarts = if rng.below(2) == 0 { 1 + rng.below(4) } else { 0 };
    let mut restarts_at: Vec<u64> = (0..restarts).map(|_| rng.below(frames)).collect();
    let (mut now, mut restarted, mut steps) = (Instant::ZERO, false, 0);
    while ends.iter().zip(&streams).any(|(e, s)| s.sent < frames || e.unsent_and_in_flight() > 0) {
        steps += 1;
        if steps == STEPS {
            faults = Faults::default();
        }
        if steps > STEPS_MAX {
            return Err(format!("no end: {streams:?} of {frames}, {:?}", ends.map(|e| e.unsent_and_in_flight())));
        }
        if let Some(at) = restarts_at.iter().position(|&at| streams[0].sent > at) {
            restarts_at.swap_remove(at);
            tally.count("restarts");
            restarted = true;
            let mut gone = 0;
            let which = rng.below(2) as usize;
            ends[which].end(&mut |_| gone += 1);
            ends[which] = end();
            // At most so many frames were or will be on their way to an end that does not know of them.
            streams.iter_mut().for_each(|stream| stream.excused = stream.sent + u64::from(buffer));
        }
        for at in 0..2 {
            let end = &mut ends[at];
            // A few at a time, now and then.
            for _ in 0..rng.below(4) {
                if streams[at].sent < frames && end.send(now, streams[at].sent).is_ok() {
                    streams[at].sent += 1;
                }
            }
            if end.unsent_and_in_flight() > buffer as usize || end.early() >= buffer as usize {
                return Err("a buffer is longer than it may be".into());
            }
            while let Some(outgoing) = end.poll_transmit(now) {
                wires[at].send(now, outgoing, faults, &mut rng, tally);
            }
            while let Some(sent) = wires[1 - at].pop_arrived(now) {
                let (stream, mut broken) = (&mut streams[1 - at], Ok(()));
                let mut deliver = |number| {
                    broken = broken.clone().and_then(|()| stream.on_arrival(number, false));
                };
                // A refused frame was doubled, or belongs to another life of its sender.
                let _ = ends[at].receive(now, &sent.header, sent.frame, &mut deliver, &mut |_| {});
                broken?;
                if let Some(frames) = ends[at].take_unacknowledged() {
                    if !restarted {
                        return Err("an end forgot everything, and did not start again".into());
                    }
                    drop(frames);
                }
            }
        }
        let timers = ends.iter().filter_map(Channel::poll_timeout).chain(wires.iter().filter_map(Wire::next));
        let idle = streams.iter().all(|s| s.sent == frames);
        let soon = now + Duration::from_us(1 + rng.below(200));
        now = if idle { timers.min().unwrap_or(soon).max(now + Duration::from_us(1)) } else { soon };
        ends.iter_mut().for_each(|end| end.handle_timeout(now));
    }
    for (at, stream) in streams.iter().enumerate() {
        tally.sent += stream.sent;
        tally.received += stream.received;
        if stream.next != frames && frames > stream.excused {
            return Err(format!("end {at} sent {frames}, and {} came, the last {}", stream.received, stream.next));
        }
        if !restarted && ends[1 - at].early() > 0 {
            return Err("something waits for what nobody sends".into());
        }
    }
    Ok(())
}
