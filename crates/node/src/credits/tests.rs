//! Servers with lost, doubled and late messages and lost frames, drawn by seed: no queue is ever too long, and no frame
//! or socket waits for ever.

use super::{Cleared, CreditConfig, Told};
use crate::channels::{Channels, Sending};
use crate::packet::{Address, Packet};
use crate::pool::{Handle, Pool};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zbridge::ChannelConfig;
use sluicenet_proto::transport::zcredit::{Message, ReceptionConfig, TransmissionConfig};

type Credits = super::Credits<Address, Handle>;

const SERVERS: u32 = 3;
const VMS: u8 = 2;
const QUEUE: u32 = 12;
const STEP: Duration = Duration::from_us(20);

const CONFIG: CreditConfig = CreditConfig {
    reception: ReceptionConfig {
        queue: QUEUE,
        batch: 4,
        shares_processors: false,
        sources: 16,
        probe_after: Duration::from_ms(100),
        reclaim_after: Duration::from_ms(500),
        ordered: false,
        deadline: Duration::from_secs(1),
    },
    transmission: TransmissionConfig { batch: 4, resync: Duration::from_ms(1), resync_max: Duration::from_ms(100) },
    waiting: 16,
    destinations: 16,
    first_channel: 1,
    priority: 0,
};

/// A message or frame on its way to a machine.
#[derive(Clone, Copy)]
enum Passing {
    Said(u32, Message),
    Frame(Handle),
}

struct World {
    now: Instant,
    rng: Rng,
    servers: Vec<Credits>,
    pool: Pool<Packet>,
    /// Messages and frames in flight, by arrival time; a number separates simultaneous ones.
    flying: BTreeMap<(Instant, u64), (Address, Address, Passing)>,
    number: u64,
    /// Percentage of faults.
    faults: u64,
    sent: u64,
    received: u64,
    lost: u64,
    lost_messages: u64,
    /// Sockets that wait for room towards a destination.
    parked: u32,
}

impl World {
    fn new(seed: u64, faults: u64) -> World {
        World {
            now: Instant::ZERO,
            rng: Rng::from_words(&[seed, 59]),
            servers: (0..SERVERS).map(|_| Credits::new(CONFIG, usize::from(VMS))).collect(),
            pool: Pool::default(),
            flying: BTreeMap::new(),
            number: 0,
            faults,
            sent: 0,
            received: 0,
            lost: 0,
            lost_messages: 0,
            parked: 0,
        }
    }

    fn is_hit(&mut self) -> bool {
        self.rng.below(100) < self.faults
    }

    fn fly(&mut self, from: Address, to: Address, what: Passing) {
        // Some messages and frames are overtaken by many others.
        let late = if self.is_hit() { 3_000 } else { 30 };
        let at = self.now.saturating_add(Duration::from_us(5 + self.rng.below(late)));
        self.number += 1;
        self.flying.insert((at, self.number), (from, to, what));
    }

    /// Offers a frame from a socket of a machine to another machine, if there is room.
    fn offer(&mut self, vm: Address, to: Address) {
        let credits = &mut self.servers[vm.host() as usize];
        let at = usize::from(vm.vm());
        if !credits.has_room(at) {
            return;
        }
        if credits.parks(at, to, 1) {
            self.parked += 1;
            return;
        }
        credits.on_launch(at, to);
        credits.enqueue(at, to, self.pool.insert(&Packet::default()));
        self.sent += 1;
    }

    fn step(&mut self) {
        self.now = self.now.saturating_add(STEP);
        while let Some(entry) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
            let (from, to, what) = entry.remove();
            let credits = &mut self.servers[to.host() as usize];
            let vm = usize::from(to.vm());
            match what {
                Passing::Said(channel, message) => {
                    credits.on_message(self.now, vm, from, channel, &message);
                }
                Passing::Frame(at) => {
                    credits.receive(self.now, vm, from, at).expect("nobody sends without a credit");
                }
            }
        }
        for host in 0..SERVERS {
            for vm in 0..VMS {
                self.run(Address::new(host, vm));
            }
            assert!(self.servers[host as usize].is_sound(), "{:?}", self.servers[host as usize]);
        }
    }

    fn run(&mut self, me: Address) {
        let (host, vm) = (me.host() as usize, usize::from(me.vm()));
        // The first machine is twenty times as slow as the others.
        let takes = if host == 0 && vm == 0 { self.rng.below(20) == 0 } else { true };
        let credits = &mut self.servers[host];
        if takes && let Some(at) = credits.take(vm) {
            credits.on_departure(self.now, vm);
            self.pool.release(at);
            self.received += 1;
        }
        if credits.armed_at(vm) <= self.now {
            credits.handle_timeout(self.now, vm);
        }
        while let Some((to, channel, message)) = self.servers[host].poll_message(self.now, vm) {
            if self.is_hit() {
                self.lost_messages += 1;
                continue;
            }
            self.fly(me, to, Passing::Said(channel, message));
            if self.is_hit() {
                self.fly(me, to, Passing::Said(channel, message));
            }
        }
        while let Some((at, to, freed)) = self.take(me) {
            self.parked -= freed;
            if self.is_hit() {
                self.lost += 1;
                self.pool.release(at);
            } else {
                self.fly(me, to, Passing::Frame(at));
            }
        }
        self.servers[host].arm(vm);
    }

    /// Takes a frame with a credit. Returns its destination as well: one frame less waits for this destination.
    fn take(&mut self, me: Address) -> Option<(Handle, Address, u32)> {
        let credits = &mut self.servers[me.host() as usize];
        let vm = usize::from(me.vm());
        let counts = |c: &Credits| c.vnics[vm].pairs.iter().map(|p| p.frames.len()).collect::<Vec<_>>();
        let before = counts(credits);
        let (at, freed) = credits.poll_frame(vm, |_| true)?;
        let which = counts(credits).iter().zip(&before).position(|(now, before)| now < before)?;
        Some((at, credits.vnics[vm].pairs[which].destination, freed.len() as u32))
    }

    fn inside(&self) -> u64 {
        let flying = self.flying.values().filter(|f| matches!(f.2, Passing::Frame(_))).count() as u64;
        flying + self.servers.iter().map(Credits::queued).sum::<u64>()
    }
}

fn campaign(seed: u64, faults: u64) -> World {
    let mut w = World::new(seed, faults);
    for _ in 0..2_000 {
        for _ in 0..8 {
            let [from, to] =
                [0, 1].map(|_| Address::new(w.rng.below(SERVERS.into()) as u32, w.rng.below(VMS.into()) as u8));
            w.offer(from, to);
        }
        w.step();
        assert_eq!(w.sent, w.received + w.lost + w.inside(), "seed {seed}");
    }
    // All senders have stopped: the waiting frames are sent, after any number of messages.
    for _ in 0..500_000 {
        if w.inside() == 0 {
            break;
        }
        w.step();
    }
    assert_eq!((w.inside(), w.parked), (0, 0), "seed {seed}: at {:?} somebody still waits", w.now);
    assert_eq!(w.pool.in_use(), 0);
    let longest = w.servers.iter().map(Credits::received_max).max();
    assert!(longest <= Some(QUEUE) && (faults > 0 || longest == Some(QUEUE)), "seed {seed}: {longest:?}");
    w
}

#[test]
fn nothing_is_lost_and_nobody_waits_for_ever_where_nothing_goes_wrong() {
    for seed in 0..20 {
        let w = campaign(seed, 0);
        assert_eq!((w.received, w.lost), (w.sent, 0));
        assert!(w.sent > 5_000, "{}", w.sent);
    }
}

#[test]
fn lost_doubled_and_late_messages_and_lost_frames_stop_nobody() {
    for seed in 0..60 {
        let w = campaign(seed, 1 + seed % 20);
        assert!(w.lost > 0 && w.lost_messages > 10 && w.received + w.lost == w.sent, "seed {seed}");
    }
}

#[test]
fn a_full_destination_parks_its_own_sockets_alone() {
    let mut w = World::new(1, 0);
    let [me, slow, other] = [(0, 0), (1, 0), (2, 0)].map(|(host, vm)| Address::new(host, vm));
    // No message is delivered: all frames wait for credits.
    (0..20).for_each(|_| w.offer(me, slow));
    let most = u64::from(CONFIG.waiting) / 4;
    assert_eq!((w.sent, w.parked), (most, 16));
    (0..2).for_each(|_| w.offer(me, other));
    assert_eq!(w.sent, most + 2, "the other destination has room");
    // With the first credit, all waiting sockets may try again.
    w.servers[1].on_message(w.now, 0, me, 1, &Message::Request { wanted: 3, spent: 1, granted: 1, returned: 0 });
    let (to, channel, grant) = w.servers[1].poll_message(w.now, 0).expect("a grant");
    assert_eq!(to, me);
    w.servers[0].on_message(w.now, 0, slow, channel, &grant);
    let freed = [0, 1].map(|_| w.servers[0].poll_frame(0, |_| true).expect("a frame").1.len());
    assert_eq!(freed, [16, 0]);
    assert!(w.servers[0].poll_frame(0, |_| true).is_none(), "two credits, two frames");
}

/// Destinations stop one after the other: the last of nine still has room of its own, whatever the earlier ones hold.
#[test]
fn destinations_that_take_nothing_leave_room_for_the_next() {
    let mut w = World::new(1, 0);
    let me = Address::new(0, 0);
    let taken: Vec<u64> = (0..9)
        .map(|k| {
            let sent = w.sent;
            (0..20).for_each(|_| w.offer(me, Address::new(100 + k, 0)));
            w.sent - sent
        })
        .collect();
    assert_eq!(taken, [4, 4, 2, 1, 1, 1, 1, 1, 1]);
    assert!(!w.servers[0].has_room(0) && w.servers[0].is_sound());
}

/// A machine with the usual number of slots, and destinations that give none back.
#[test]
fn a_hundred_that_stop_for_good_leave_room_for_the_next() {
    let mut credits = super::Credits::<Address, u32, ()>::new(CreditConfig { waiting: 1024, ..CONFIG }, 1);
    for k in 0..100 {
        let to = Address::new(100 + k, 0);
        assert!(credits.has_room(0) && credits.has_room_for(0, to), "{k}");
        while credits.has_room(0) && credits.has_room_for(0, to) {
            credits.on_launch(0, to);
            credits.enqueue(0, to, k);
        }
    }
}

#[test]
fn a_forgotten_destination_is_told_and_a_later_channel_begins() {
    let mut w = World::new(1, 0);
    let credits = &mut w.servers[0];
    // One frame is granted and sent to each of as many destinations as are remembered.
    for k in 0..CONFIG.destinations as u32 + 1 {
        let to = Address::new(100 + k, 0);
        credits.on_launch(0, to);
        credits.enqueue(0, to, w.pool.insert(&Packet::default()));
        let forgotten = credits.poll_message(w.now, 0);
        if k == CONFIG.destinations as u32 {
            let (whom, channel, said) = forgotten.expect("last words");
            assert_eq!((whom, channel), (Address::new(100, 0), 1));
            assert!(matches!(said, Message::Close { spent: 2, returned: 0 }), "{said:?}");
            let (_, channel, _) = credits.poll_message(w.now, 0).expect("a request");
            assert_eq!(channel, 2, "none of the numbers that were used");
            break;
        }
        let (whom, channel, _) = forgotten.expect("a request");
        assert_eq!((whom, channel), (to, 1));
        credits.on_message(w.now, 0, to, channel, &Message::Grant { granted: 2 });
        assert!(credits.poll_frame(0, |_| true).is_some() && credits.poll_frame(0, |_| true).is_none());
    }
    assert!(credits.is_sound());
    // A destination with waiting frames cannot be forgotten: it is remembered beyond the limit.
    for k in 0..CONFIG.waiting - 1 {
        let to = Address::new(200 + k, 0);
        credits.on_launch(0, to);
        credits.enqueue(0, to, w.pool.insert(&Packet::default()));
    }
    assert_eq!((credits.waiting(), credits.has_room(0)), (u64::from(CONFIG.waiting), false));
}

#[test]
fn who_is_gone_leaves_nothing_and_who_comes_begins_anew() {
    let mut w = World::new(1, 0);
    let (from, to) = (Address::new(1, 0), Address::new(2, 0));
    let credits = &mut w.servers[0];
    credits.on_launch(0, to);
    credits.enqueue(0, to, w.pool.insert(&Packet::default()));
    credits.on_message(w.now, 0, from, 7, &Message::Request { wanted: 9, spent: 7, granted: 7, returned: 0 });
    credits.receive(w.now, 0, from, w.pool.insert(&Packet::default())).expect("a credit");
    let Cleared { unsent, received, .. } = credits.clear(0);
    assert_eq!((unsent.len(), received.len(), credits.queued()), (1, 1, 0));
    unsent.into_iter().chain(received).for_each(|at| w.pool.release(at));
    assert!(credits.is_sound() && credits.poll_message(w.now, 0).is_none());
    // The old credit is void.
    let frame = w.pool.insert(&Packet::default());
    assert_eq!(credits.receive(w.now, 0, from, frame), Err(frame));
    credits.on_launch(0, to);
    credits.enqueue(0, to, frame);
    assert!(matches!(credits.poll_message(w.now, 0), Some((_, 2, Message::Request { .. }))));
}

/// A machine that waits for credits of a dead machine, or for credits held by it, need not wait for a timeout.
#[test]
fn last_words_free_what_the_dead_had_and_what_was_asked_of_them() {
    let mut w = World::new(1, 0);
    let [dead, other, third] = [(0, 0), (1, 0), (2, 0)].map(|(host, vm)| Address::new(host, vm));
    let bring = |w: &mut World, host: usize, from: Address, said: (Address, u32, Message)| {
        let (to, channel, message) = said;
        assert_eq!((to.host() as usize, to.vm()), (host, 0));
        w.servers[host].on_message(w.now, 0, from, channel, &message);
    };
    // The dead machine has credits for a full queue, and a request for a credit was sent to it.
    (0..CONFIG.waiting / 4).for_each(|_| w.offer(dead, other));
    let said = w.servers[0].poll_message(w.now, 0).unwrap();
    bring(&mut w, 1, dead, said);
    let said = w.servers[1].poll_message(w.now, 0).unwrap();
    bring(&mut w, 0, other, said);
    assert_eq!(w.servers[1].reception(0).promised(), CONFIG.waiting / 4);
    w.offer(third, dead);
    let said = w.servers[2].poll_message(w.now, 0).unwrap();
    bring(&mut w, 0, third, said);
    let Cleared { unsent, last_words, .. } = w.servers[0].clear(0);
    assert_eq!((unsent.len(), last_words.len()), (CONFIG.waiting as usize / 4, 2));
    for said in last_words {
        bring(&mut w, said.0.host() as usize, dead, said);
    }
    assert_eq!((w.servers[1].reception(0).promised(), w.servers[1].reception(0).free()), (0, QUEUE));
    // The third machine sends its request anew, wherever the destination is now.
    let (to, channel, message) = w.servers[2].poll_message(w.now, 0).unwrap();
    assert_eq!((to, channel), (dead, 2));
    assert!(matches!(message, Message::Request { wanted: 3, spent: 2, .. }), "{message:?}");
    assert!(w.servers.iter().all(Credits::is_sound));
}

#[test]
fn what_waits_for_one_who_is_silent_can_be_withdrawn() {
    let mut w = World::new(1, 0);
    let (me, to) = (Address::new(0, 0), Address::new(2, 0));
    w.offer(me, to);
    w.servers[0].poll_message(w.now, 0).expect("a request");
    let mut tries = 0;
    while w.servers[0].silent(0, 5).next().is_none() {
        w.now = w.now.saturating_add(Duration::from_ms(1));
        tries += u32::from(w.servers[0].poll_message(w.now, 0).is_some());
    }
    assert_eq!((tries, w.servers[0].silent(0, 5).next()), (5, Some(to)));
    let (unsent, parked) = w.servers[0].withdraw(0, to);
    assert_eq!((unsent.len(), parked.len(), w.servers[0].queued()), (1, 0, 0));
    assert!(w.servers[0].is_sound() && w.servers[0].silent(0, 1).next().is_none());
}

/// A server of one machine, with channels below its credits, as an uplink has them.
struct End {
    credits: super::Credits<u8, u64>,
    channels: Channels<u8, u64>,
    received: Vec<u64>,
    without_credit: u32,
}

impl End {
    fn new(first_channel: u32) -> End {
        let config = ChannelConfig { buffer: 8, period: 2, timeout: Duration::from_ms(27), single_path: true };
        End {
            credits: super::Credits::new(CreditConfig { first_channel, waiting: 99, ..CONFIG }, 1),
            channels: Channels::new(config, 16, |_| 0),
            received: Vec::new(),
            without_credit: 0,
        }
    }

    fn offer(&mut self, frames: core::ops::Range<u64>) {
        for frame in frames {
            self.credits.on_launch(0, 0);
            self.credits.enqueue(0, 0, frame);
        }
    }

    fn hear(&mut self, now: Instant, channel: u32, message: &Message) {
        match self.credits.on_message(now, 0, 0, channel, message) {
            Told::BeganAnew => {
                let unsent = self.channels.take_unsent(0).collect();
                self.credits.restore(0, 0, unsent);
            }
            Told::Keeps if !self.channels.inquire(now, 0) => self.credits.expect_nothing(now, 0, 0),
            _ => {}
        }
    }

    fn receive(&mut self, now: Instant, sent: Sending<u8, u64>, random: u64) {
        let mut in_order = Vec::new();
        let (header, frame) = (sent.outgoing.header, sent.outgoing.frame);
        let random = || Rng::from_words(&[random]);
        let _ = self.channels.receive(now, 0, &header, frame, random, &mut |f| in_order.push(f), &mut |_| {});
        self.channels.free_unacknowledged(0, &mut |_| {});
        if self.channels.take_ended(0) {
            let unsent = self.channels.take_unsent(0).collect();
            self.credits.on_disconnected(now, 0, 0, unsent, true);
        }
        for frame in in_order {
            self.without_credit += u32::from(self.credits.receive(now, 0, 0, frame).is_err());
        }
    }

    /// Moves frames with credits into the channel while it has room.
    fn spend(&mut self, now: Instant, random: u64) {
        while self.channels.has_room(now, 0)
            && let Some((frame, _)) = self.credits.poll_frame(0, |_| true)
        {
            assert!(self.channels.send(now, 0, frame, || Rng::from_words(&[random])).is_ok());
        }
    }

    fn take(&mut self, now: Instant) {
        while let Some(frame) = self.credits.take(0) {
            self.received.push(frame);
            self.credits.on_departure(now, 0);
        }
    }
}

/// Exchanges all pending credit messages in both directions.
fn agree(now: Instant, a: &mut End, b: &mut End) {
    loop {
        let said = [a.credits.poll_message(now, 0), b.credits.poll_message(now, 0)];
        let [from_a, from_b] = &said;
        from_a.iter().for_each(|(_, channel, message)| b.hear(now, *channel, message));
        from_b.iter().for_each(|(_, channel, message)| a.hear(now, *channel, message));
        if said == [None, None] {
            return;
        }
    }
}

/// Delivers everything that is pending; `life` makes the numbers of connections.
fn settle(now: Instant, a: &mut End, b: &mut End, life: u64) {
    for _ in 0..100 {
        agree(now, a, b);
        a.spend(now, 2 * life);
        b.take(now);
        let [from_a, from_b] = [&mut *a, &mut *b].map(|end| end.channels.poll_transmit(now, |_| true));
        from_a.into_iter().for_each(|sent| b.receive(now, sent, 2 * life + 1));
        from_b.into_iter().for_each(|sent| a.receive(now, sent, 2 * life));
    }
}

/// Found by the fault campaign (seed 569 of the uplinks): frames had left for a server with its credits, and had not been
/// sent when the server restarted. They arrived with credits of other frames, so that much later one of these frames had
/// no credit.
#[test]
fn what_was_not_sent_before_a_receiver_starts_again_waits_for_its_new_credits() {
    for connected in [false, true] {
        let now = Instant::ZERO;
        let (mut a, mut b) = (End::new(5), End::new(9));
        let first = if connected { 20 } else { 0 };
        a.offer(0..first);
        settle(now, &mut a, &mut b, 0);
        assert_eq!((b.received.len() as u64, b.without_credit), (first, 0));
        // The credits are spent, and the frames for which they were spent have not left.
        a.offer(first..first + 20);
        agree(now, &mut a, &mut b);
        a.spend(now, 0);
        let waiting = a.credits.waiting();
        assert!(waiting < 20, "{waiting}");
        b = End::new(70);
        a.offer(first + 20..first + 40);
        settle(now, &mut a, &mut b, 1);
        // Frames that the channel had sent may have arrived. Frames that it had not sent have arrived, and all later
        // ones.
        let lost = 40 - b.received.len() as u64;
        let all: Vec<u64> = (first + lost..first + 40).collect();
        assert_eq!((&b.received, b.without_credit), (&all, 0), "connected: {connected}");
        assert!(lost <= if connected { 8 } else { 0 }, "{lost}");
        assert!(a.credits.is_sound() && b.credits.is_sound());
        assert_eq!(b.credits.reception(0).promised(), 0);
    }
}

/// The opposite direction: the room promised to the sender is free after its first message and one round trip of the
/// channel.
#[test]
fn a_sender_that_starts_again_finds_the_whole_queue() {
    let now = Instant::ZERO;
    let (mut a, mut b) = (End::new(5), End::new(9));
    a.offer(0..20);
    settle(now, &mut a, &mut b, 0);
    a.offer(20..60);
    agree(now, &mut a, &mut b);
    let had = b.credits.reception(0).promised();
    assert!(had >= QUEUE / 2);
    a = End::new(70);
    a.offer(0..40);
    agree(now, &mut a, &mut b);
    let promised = b.credits.reception(0).promised();
    assert!(promised >= had && a.credits.waiting() == 40, "all of the last life may be on its way: {promised} {had}");
    assert_eq!(a.credits.vnics[0].pairs[0].transmission.credits(), promised - had);
    settle(now, &mut a, &mut b, 1);
    assert_eq!(b.received.len(), 60);
    assert_eq!((b.credits.reception(0).promised(), b.without_credit), (0, 0));
    assert!(b.credits.reception(0).counters().lost > 0 && b.credits.is_sound());
}

/// A machine restarts and has nothing to send. In its last life it had credits for which no frame arrived, and could not
/// report its end. On a probe it reports the end, and the receiver keeps no room for it until a timeout.
#[test]
fn who_is_asked_about_a_life_before_says_that_it_is_over() {
    let now = Instant::ZERO;
    let (mut a, mut b) = (End::new(u32::MAX - 2), End::new(9));
    a.offer(0..5);
    agree(now, &mut a, &mut b);
    let had = b.credits.reception(0).promised();
    assert!(had > 0);
    a = End::new(3);
    // The last life is probed again after a period of silence, and long before its credits are taken back.
    let mut later = now;
    while b.credits.reception(0).promised() > 0 {
        let _ = b.credits.arm(0);
        later = b.credits.armed_at(0);
        assert!(later < now + CONFIG.reception.deadline, "still {} of {had}", b.credits.reception(0).promised());
        b.credits.handle_timeout(later, 0);
        agree(later, &mut a, &mut b);
    }
    assert!(later >= now + CONFIG.reception.probe_after);
    let counters = b.credits.reception(0).counters();
    assert_eq!((counters.returned, counters.revoked, counters.lost), (u64::from(had), 0, 0));
    // A probe of this life gets a different answer, and a late probe changes nothing.
    a.offer(0..1);
    agree(later, &mut a, &mut b);
    let own = a.credits.vnics[0].pairs[0].transmission.channel();
    a.hear(later, own, &Message::Probe);
    assert!(matches!(a.credits.poll_message(later, 0), Some((0, channel, Message::Request { .. })) if channel == own));
    a.hear(later, u32::MAX - 2, &Message::Probe);
    let (_, channel, said) = a.credits.poll_message(later, 0).expect("an answer");
    assert_eq!((channel, said), (u32::MAX - 2, Message::Close { spent: u32::MAX - 2, returned: 0 }));
    let before = b.credits.reception(0).promised();
    b.hear(later, channel, &said);
    assert_eq!(b.credits.reception(0).promised(), before);
    settle(later, &mut a, &mut b, 1);
    assert!(b.received == [0] && b.without_credit == 0 && b.credits.is_sound());
}
