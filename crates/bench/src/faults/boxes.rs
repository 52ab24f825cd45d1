//! Three servers of two VMs each and their credits, as both worlds have them. There are no channels below the credits,
//! so frames are lost too. One VM may take nothing, another may send arbitrary messages, a VM may leave and a new one
//! take its number, and a server may start again.

use super::wire::Faults;
use super::{Broken, Stream, Tally, Wire};
use sluicenet_node::credits::{Cleared, CreditConfig, Credits};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zcredit::Message;

const SERVERS: usize = 3;
const VMS: usize = 2;
const ALL_VMS: usize = SERVERS * VMS;
const STEP: Duration = Duration::from_us(20);
/// Faults end after `STEPS` steps; the run has to end after `STEPS_MAX`.
const STEPS: u32 = 1_500;
const STEPS_MAX: u32 = 400_000;

/// Sender, receiver, and the frame's number between them.
type Frame = (usize, usize, u64);

#[derive(Clone, Copy)]
enum Passing {
    Message(u32, Message),
    Frame(Frame),
}

type Server = Credits<usize, Frame>;

/// The servers, the wire between them, and the state of the check.
struct Run<'a> {
    rng: Rng,
    tally: &'a mut Tally,
    queue: u32,
    batch: u32,
    servers: Vec<Server>,
    wire: Wire<(usize, usize, Passing)>,
    streams: [[Stream; ALL_VMS]; ALL_VMS],
    faults: Faults,
    /// Each of these is one VM, or none.
    stuck: usize,
    liar: usize,
    /// Whether VMs leave and servers start again.
    leaves: bool,
    now: Instant,
    /// Whether frames may be missing.
    lost: bool,
}

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut run = Run::new(seed, tally);
    let mut steps = 0;
    loop {
        steps += 1;
        run.now += STEP;
        let trouble = steps < STEPS;
        if !trouble {
            run.faults = Faults::default();
            if run.is_idle() {
                return run.finish();
            }
        }
        if steps > STEPS_MAX {
            let queued: Vec<_> = run.servers.iter().map(Credits::queued).collect();
            return Err(format!("no end: {queued:?} wait or are queued"));
        }
        run.receive()?;
        if trouble {
            run.offer();
            run.lie();
            run.restart();
        }
        for vm in 0..ALL_VMS {
            run.serve(vm, trouble)?;
        }
        run.check()?;
    }
}

fn server(queue: u32, batch: u32, first_channel: u32) -> Server {
    let usual = CreditConfig::new(queue, 16, batch, PrioritySet::ALL);
    Credits::new(CreditConfig { first_channel, destinations: 8, ..usual }, VMS)
}

impl<'a> Run<'a> {
    fn new(seed: u64, tally: &'a mut Tally) -> Run<'a> {
        let mut rng = Rng::from_words(&[seed, 0xB0C]);
        let queue = 4 + rng.below(28) as u32;
        let batch = 1 + rng.below(4) as u32;
        let servers = (0..SERVERS)
            // In half of the runs the counters wrap.
            .map(|_| server(queue, batch, [1, u32::MAX - rng.below(50) as u32][rng.below(2) as usize]))
            .collect();
        let faults = Faults::any(&mut rng);
        let [stuck, liar] = [0, 1].map(|_| rng.below(3 * ALL_VMS as u64) as usize);
        let leaves = rng.below(2) == 0;
        let (wire, streams) = (Wire::new(), [[Stream::default(); ALL_VMS]; ALL_VMS]);
        let (now, lost) = (Instant::ZERO, false);
        Run { rng, tally, queue, batch, servers, wire, streams, faults, stuck, liar, leaves, now, lost }
    }

    fn is_idle(&self) -> bool {
        let flying = self.wire.iter().any(|w| matches!(w.2, Passing::Frame(_)));
        !flying && self.servers.iter().all(|s| s.queued() == 0)
    }

    fn send(&mut self, from: usize, to: usize, channel: u32, message: Message) {
        let passing = (from, to, Passing::Message(channel, message));
        self.wire.send(self.now, passing, self.faults, &mut self.rng, self.tally);
    }

    /// Hands over everything that the wire brings now.
    fn receive(&mut self) -> Result<(), Broken> {
        let now = self.now;
        while let Some((from, to, what)) = self.wire.pop_arrived(now) {
            let (credits, vm) = (&mut self.servers[to / VMS], to % VMS);
            match what {
                Passing::Message(channel, message) => {
                    credits.on_message(now, vm, from, channel, &message);
                }
                Passing::Frame(frame) => {
                    if credits.receive(now, vm, from, frame).is_err() && !self.lost {
                        return Err(format!("a frame of {from} for {to} that was granted found no room"));
                    }
                }
            }
        }
        Ok(())
    }

    /// VMs send a few frames to each other.
    fn offer(&mut self) {
        for _ in 0..4 {
            let [from, to] = [0, 1].map(|_| self.rng.below(ALL_VMS as u64) as usize);
            let (credits, vm) = (&mut self.servers[from / VMS], from % VMS);
            if credits.has_room(vm) && credits.has_room_for(vm, to) {
                let stream = &mut self.streams[from][to];
                credits.on_launch(vm, to);
                credits.enqueue(vm, to, (from, to, stream.sent));
                stream.sent += 1;
            }
        }
    }

    /// A VM sends an arbitrary message.
    fn lie(&mut self) {
        if self.liar >= ALL_VMS || self.rng.below(4) != 0 {
            return;
        }
        self.tally.count("absurd");
        // The VM sends on its own channels and on those of others. A receiver believes the VM about frames sent to it,
        // as far as that is possible.
        self.lost = true;
        let rng = &mut self.rng;
        let to = rng.below(ALL_VMS as u64) as usize;
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
        self.send(self.liar, to, channel, message);
    }

    /// A server starts again, or a VM leaves.
    fn restart(&mut self) {
        if !self.leaves || self.rng.below(800) != 0 {
            return;
        }
        self.tally.count("restarts");
        self.lost = true;
        let at = self.rng.below(SERVERS as u64) as usize;
        if self.rng.below(2) == 0 {
            // Its first channel may be later or earlier than before: its clock may have been set back.
            self.servers[at] = server(self.queue, self.batch, self.rng.next_u64() as u32);
        } else {
            let vm = self.rng.below(VMS as u64) as usize;
            let Cleared { last_words, .. } = self.servers[at].clear(vm);
            for (to, channel, message) in last_words {
                self.send(at * VMS + vm, to, channel, message);
            }
        }
    }

    /// A VM takes a frame; its server sends messages and frames for it.
    fn serve(&mut self, me: usize, trouble: bool) -> Result<(), Broken> {
        let (now, at, vm) = (self.now, me / VMS, me % VMS);
        let credits = &mut self.servers[at];
        if (me != self.stuck || !trouble)
            && let Some((from, to, number)) = credits.take(vm)
        {
            credits.on_departure(now, vm);
            if to != me {
                return Err(format!("{me} has a frame for {to}"));
            }
            // Without channels below, nothing repeats a frame: the wire duplicates only messages.
            self.streams[from][to].on_arrival(number, true)?;
        }
        if credits.armed_at(vm) <= now {
            credits.handle_timeout(now, vm);
        }
        while let Some((to, channel, message)) = self.servers[at].poll_message(now, vm) {
            self.send(me, to, channel, message);
        }
        while let Some((frame, _)) = self.servers[at].poll_frame(vm, |_| true) {
            if self.faults.lost > 0 && self.rng.below(1_000) < self.faults.lost {
                self.tally.count("lost for good");
                self.lost = true;
            } else {
                let passing = (me, frame.1, Passing::Frame(frame));
                self.wire.send(now, passing, Faults::default(), &mut self.rng, self.tally);
            }
        }
        self.servers[at].arm(vm);
        Ok(())
    }

    fn check(&self) -> Result<(), Broken> {
        for credits in &self.servers {
            if !credits.is_sound() || credits.received_max() > self.queue {
                return Err(format!(
                    "the accounting of a server: a queue of {} of {}",
                    credits.received_max(),
                    self.queue
                ));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Broken> {
        for stream in self.streams.iter().flatten() {
            self.tally.sent += stream.sent;
            self.tally.received += stream.received;
            if !self.lost && stream.received != stream.sent {
                return Err(format!("{} of {} frames arrived", stream.received, stream.sent));
            }
        }
        Ok(())
    }
}
