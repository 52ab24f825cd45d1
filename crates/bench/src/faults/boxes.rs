//! Three servers of two machines each and their credits, as both worlds have them; no channels below, so that frames get lost, too. A
//! machine may take nothing, another say what it likes, leave and be another's place; a server may start again.

use super::wire::Faults;
use super::{Broken, Stream, Tally, Wire};
use sluicenet_node::credits::{Cleared, CreditConfig, Credits};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zcredit::Message;

const SERVERS: usize = 3;
const VMS: usize = 2;
const MACHINES: usize = SERVERS * VMS;
const STEP: Duration = Duration::from_us(20);
/// Faults end after so many steps, and everything has to after so many more.
const STEPS: u32 = 1_500;
const STEPS_MAX: u32 = 400_000;

/// From whom, to whom, and its number there.
type Frame = (usize, usize, u64);

#[derive(Clone, Copy)]
enum Passing {
    Said(u32, Message),
    Frame(Frame),
}

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut rng = Rng::from_words(&[seed, 0xB0C]);
    let queue = 4 + rng.below(28) as u32;
    let batch = 1 + rng.below(4) as u32;
    let new = |first_channel: u32| {
        let usual = CreditConfig::new(queue, 16, batch, PrioritySet::ALL);
        Credits::<usize, Frame>::new(CreditConfig { first_channel, destinations: 8, ..usual }, VMS)
    };
    let mut servers: Vec<Credits<usize, Frame>> = (0..SERVERS)
        // Counters that wrap within the run, in one case of two.
        .map(|_| new([1, u32::MAX - rng.below(50) as u32][rng.below(2) as usize]))
        .collect();
    let mut wire: Wire<(usize, usize, Passing)> = Wire::new();
    let mut streams = [[Stream::default(); MACHINES]; MACHINES];
    let mut faults = Faults::any(&mut rng);
    // Each of these is one machine, or none.
    let [stuck, liar] = [0, 1].map(|_| rng.below(3 * MACHINES as u64) as usize);
    let leaves = rng.below(2) == 0;
    let (mut now, mut lost, mut steps) = (Instant::ZERO, false, 0);
    loop {
        steps += 1;
        now += STEP;
        let trouble = steps < STEPS;
        if !trouble {
            faults = Faults::default();
            let flying = wire.iter().any(|w| matches!(w.2, Passing::Frame(_)));
            if !flying && servers.iter().all(|s| s.queued() == 0) {
                break;
            }
        }
        if steps > STEPS_MAX {
            return Err(format!(
                "no end: {:?} wait or are queued",
                servers.iter().map(Credits::queued).collect::<Vec<_>>()
            ));
        }
        while let Some((from, to, what)) = wire.due(now) {
            let (credits, vm) = (&mut servers[to / VMS], to % VMS);
            match what {
                Passing::Said(channel, message) => {
                    credits.on_message(now, vm, from, channel, &message);
                }
                Passing::Frame(frame) => {
                    if credits.receive(now, vm, from, frame).is_err() {
                        if !lost {
                            return Err(format!("a frame of {from} for {to} that was granted found no room"));
                        }
                    }
                }
            }
        }
        if trouble {
            for _ in 0..4 {
                let [from, to] = [0, 1].map(|_| rng.below(MACHINES as u64) as usize);
                let (credits, vm) = (&mut servers[from / VMS], from % VMS);
                if credits.has_room(vm) && credits.has_room_for(vm, to) {
                    let stream = &mut streams[from][to];
                    credits.on_launch(vm, to);
                    credits.hold(vm, to, (from, to, stream.sent));
                    stream.sent += 1;
                }
            }
            if liar < MACHINES && rng.below(4) == 0 {
                tally.count("absurd");
                // Of its own channels and of others'; what it says about what it was sent is believed only as far as it can be so.
                lost = true;
                let to = rng.below(MACHINES as u64) as usize;
                let mut word =
                    || [rng.next_u64() as u32, rng.below(60) as u32, u32::MAX >> rng.below(2)][rng.below(3) as usize];
                let (channel, a, b, c, d) = (word(), word(), word(), word(), word());
                let message = match d % 5 {
                    0 => Message::Grant { granted: a },
                    1 => Message::Reset { last: a },
                    2 => Message::Close { spent: a, returned: b },
                    3 => Message::Request {
                        wanted: channel.wrapping_add(u32::MAX >> 2),
                        spent: channel,
                        granted: channel,
                        returned: 0,
                    },
                    _ => Message::Request { wanted: a, spent: b, granted: c, returned: d },
                };
                wire.send(now, (liar, to, Passing::Said(channel, message)), faults, &mut rng, tally);
            }
            if leaves && rng.below(800) == 0 {
                tally.count("restarts");
                lost = true;
                let at = rng.below(SERVERS as u64) as usize;
                if rng.below(2) == 0 {
                    // Later than before, or earlier: its clock may have been set back.
                    servers[at] = new(rng.next_u64() as u32);
                } else {
                    let vm = rng.below(VMS as u64) as usize;
                    let Cleared { last_words, .. } = servers[at].clear(vm);
                    for (to, channel, message) in last_words {
                        wire.send(now, (at * VMS + vm, to, Passing::Said(channel, message)), faults, &mut rng, tally);
                    }
                }
            }
        }
        for me in 0..MACHINES {
            let (at, vm) = (me / VMS, me % VMS);
            let credits = &mut servers[at];
            if (me != stuck || !trouble)
                && let Some((from, to, number)) = credits.take(vm)
            {
                credits.on_departure(now, vm);
                if to != me {
                    return Err(format!("{me} has a frame for {to}"));
                }
                // Without channels below, what the wire loses is lost, and what it doubles is not sent twice: only messages are.
                streams[from][to].on_arrival(number, true)?;
            }
            if credits.armed_at(vm) <= now {
                credits.handle_timeout(now, vm);
            }
            while let Some((to, channel, message)) = credits.poll_message(now, vm) {
                wire.send(now, (me, to, Passing::Said(channel, message)), faults, &mut rng, tally);
            }
            while let Some((frame, _)) = credits.poll_frame(vm, |_| true) {
                if faults.lost > 0 && rng.below(1_000) < faults.lost {
                    tally.count("lost for good");
                    lost = true;
                } else {
                    wire.send(now, (me, frame.1, Passing::Frame(frame)), Faults::default(), &mut rng, tally);
                }
            }
            credits.arm(vm);
        }
        for credits in &servers {
            if !credits.is_sound() || credits.received_max() > queue {
                return Err(format!("the books of a server: a queue of {} of {queue}", credits.received_max()));
            }
        }
    }
    for stream in streams.iter().flatten() {
        tally.sent += stream.sent;
        tally.received += stream.received;
        if !lost && stream.received != stream.sent {
            return Err(format!("{} of {} came", stream.received, stream.sent));
        }
    }
    Ok(())
}
