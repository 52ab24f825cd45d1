//! Credits between the stations of two servers, all in one class: who takes nothing is in nobody's way but its senders'.

use super::*;
use sluicenet_node::fair_share::limit;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::transport::zcredit::{ReceptionConfig, TransmissionConfig};
use sluicenet_wire::zcredit::{Message, Repr};
use std::sync::atomic::AtomicU32;

const CLASS: u8 = 3;
const QUEUE: u32 = 32;

pub fn of_one_class(station: usize) -> Access {
    Access { priority: Some(CLASS), ..access(station) }
}

pub fn config() -> CreditConfig {
    static STARTS: AtomicU32 = AtomicU32::new(1);
    CreditConfig {
        reception: ReceptionConfig {
            queue: QUEUE,
            // As real uplinks have it.
            shares_processors: true,
            probe_after: Duration::from_ms(20),
            reclaim_after: Duration::from_ms(50),
            deadline: Duration::from_ms(200),
            ..ReceptionConfig::default()
        },
        transmission: TransmissionConfig { resync_max: Duration::from_ms(10), ..TransmissionConfig::default() },
        waiting: 64,
        destinations: 64,
        // Who starts again begins with later channels.
        first_channel: STARTS.fetch_add(1, Ordering::Relaxed) << 16,
        priority: CLASS,
    }
}

/// On a machine that does something else meanwhile a frame is sent again late; nobody takes its credit before.
pub fn patient() -> CreditConfig {
    let (usual, minute) = (config(), Duration::from_secs(60));
    let reception = ReceptionConfig { reclaim_after: minute, deadline: minute, ..usual.reception };
    CreditConfig { reception, ..usual }
}

fn with_credits(n: usize, device: impl Device + Send + 'static, address: &impl Fn(u8) -> Ipv4Addr) -> Server {
    overlay_with(n, device, address, of_one_class, Stack { credits: Some(config()), ..Stack::default() })
}

/// The fast station of a server, its second, reads all there is, the slow one a frame in fifty turns.
fn read_slow_and_fast(server: &mut Server, turn: usize, seen: &mut [u64; 2]) {
    server.take(1, &mut seen[1]);
    if turn % 50 == 0
        && let Some(number) = server.number(0)
    {
        assert_eq!(number, seen[0], "in order, each once");
        seen[0] += 1;
    }
}

/// What happened while a slow and a fast station were sent as much as there was room for.
#[derive(Debug, Default)]
struct Seen {
    sent: [u64; 2],
    received: [u64; 2],
    /// Rounds in which the sender to the slow, and to the fast station was held back.
    refused: [u64; 2],
    /// Frames of the fast station that arrived in rounds in which the slow one's sender was held back.
    beside: u64,
}

/// Sends to a slow and to a fast station until `enough` has been seen, for a minute at most: the machine decides how soon that is.
fn slow_and_fast(servers: &mut [Server; 2], turns: usize, enough: impl Fn(&Seen) -> bool) -> Seen {
    let (mut s, start) = (Seen::default(), Instant::now());
    for turn in 0usize.. {
        if turn >= turns && turn % 1_000 == 0 && (enough(&s) || start.elapsed().as_secs() >= 60) {
            break;
        }
        let [a, b] = servers;
        let mut accepted = [false; 2];
        for (k, to) in [(0, 3), (1, 4)] {
            accepted[k] = a.send(k, &frame(k + 1, to, s.sent[k], 100 + turn % 1_300));
            s.sent[k] += u64::from(accepted[k]);
            s.refused[k] += u64::from(!accepted[k]);
        }
        a.engine.round();
        b.engine.round();
        let before = s.received[1];
        read_slow_and_fast(b, turn, &mut s.received);
        if !accepted[0] {
            s.beside += s.received[1] - before;
        }
    }
    s
}

fn receive_the_rest(servers: &mut [Server; 2], sent: [u64; 2], seen: [u64; 2]) {
    take_the_rest(servers, sent, seen);
    for server in servers {
        server.engine.ledger();
        assert_eq!((server.engine.queued(), server.own("credit_unsent")), (0, 0));
        for loss in ["no_credit", "headroom_exceeded", "watchdog", "credit_silent", "credit_strays"] {
            assert_eq!(server.own(loss), 0, "{loss}");
        }
    }
}

#[test]
fn a_slow_station_is_in_nobodys_way_where_there_are_credits() {
    for credits in [None, Some(config())] {
        let address = network();
        let _controller = controller(&address);
        let (a, b) = Local::pair().unwrap();
        let with =
            |n, device, credits| overlay_with(n, device, &address, of_one_class, Stack { credits, ..Stack::default() });
        let mut servers = [with(1, a, credits), with(2, b, credits.map(|_| config()))];
        ask_first(&mut servers);
        let seen = slow_and_fast(&mut servers, 60_000, |seen| match credits {
            Some(_) => seen.refused[0] > 1_000 && seen.beside > 1_000,
            None => seen.refused[1] > 1_000,
        });
        let pauses = servers[1].own("pauses_sent");
        println!("credits: {}: {seen:?}, {pauses} pauses", credits.is_some());
        if credits.is_some() {
            assert_eq!(pauses, 0, "no frame is in the link's buffers");
            assert_eq!(
                servers[1].own("credit_queued_max"),
                u64::from(QUEUE),
                "the slow one's queue was full, and never more"
            );
            assert!(seen.beside > 1_000, "the slow station is in the fast one's way: {seen:?}");
        } else {
            assert!(
                pauses > 0 && seen.refused[1] > 1_000,
                "the slow station holds the fast one's sender back, too: {seen:?}"
            );
        }
        receive_the_rest(&mut servers, seen.sent, seen.received);
    }
}

/// The station of one port sends to a slow and to a fast one elsewhere, and has no more of its buffers under way to either than its part.
#[test]
fn one_port_sends_to_a_fast_station_past_what_waits_for_a_slow_one() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [with_credits(1, a, &address), with_credits(2, b, &address)];
    ask_first(&mut servers);
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    let (mut waited, mut beside, start) = (0, 0, Instant::now());
    for turn in 0usize.. {
        let is_seen = turn >= 60_000 && seen[0] > 1_000 && beside > 1_000;
        if turn % 1_000 == 0 && (is_seen || start.elapsed().as_secs() >= 60) {
            break;
        }
        let [a, b] = &mut servers;
        let (mut slow_waits, before) = (false, seen[1]);
        for (k, to) in [(0, 3), (1, 4)] {
            let client = &mut a.clients[0];
            let free = client.sendable(u32::MAX).unwrap();
            let has_room = client.outstanding(0, k as u16 + 1) < limit(client.half(), free);
            slow_waits |= k == 0 && !has_room;
            if has_room {
                let bytes = frame(1, to, sent[k], 100 + turn % 1_300);
                sent[k] += u64::from(client.send_parts_under([k as u16 + 1, 0], &[&bytes]).unwrap());
                let _ = client.publish();
            }
        }
        a.engine.round();
        b.engine.round();
        waited = waited.max(a.engine.report(0).unwrap().input[usize::from(CLASS)]);
        read_slow_and_fast(b, turn, &mut seen);
        // Frames of the fast station that arrived while the port could not send to the slow one.
        beside += if slow_waits { seen[1] - before } else { 0 };
    }
    println!("one port: slow and fast had {seen:?}, {beside} beside, {waited} frames waited at it at most");
    assert!(waited > 1 && servers[0].engine.report(0).unwrap().counters.held_back == 0);
    assert!(seen[0] > 1_000 && beside > 1_000, "{seen:?}, {beside} beside");
    receive_the_rest(&mut servers, sent, seen);
}

/// Two stations of a server send to one elsewhere, which is slower than both: one of them has turns three times as long.
#[test]
fn shares_of_a_slow_station_follow_the_weights() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    const WEIGHTS: &[((u16, MacAddress), u32)] = &[((DOMAIN, MacAddress::local(2)), 3)];
    let stack = Stack { credits: Some(config()), weights: WEIGHTS, ..Stack::default() };
    let with = |n, device| overlay_with(n, device, &address, of_one_class, stack);
    let mut servers = [with(1, a), with(2, b)];
    ask_first(&mut servers);
    // Who of the two has sent it stands in the number.
    let (mut seen, mut turns) = (Vec::new(), 0);
    until(&mut servers, |[a, b]| {
        turns += 1;
        for k in 0..2 {
            a.send(k, &frame(k + 1, 3, k as u64, 100));
        }
        if turns % 8 == 0
            && let Some(number) = b.number(0)
        {
            seen.push(number);
        }
        seen.len() == 4_000
    });
    let shares = |part: &[u64]| [0, 1].map(|k| part.iter().filter(|&&number| number == k).count() as u64);
    let parts: Vec<[u64; 2]> = seen.chunks(500).map(shares).collect();
    println!("weights 1 and 3: {parts:?}");
    // But for parts of a few credits that are rounded. A machine that stops the test for some time changes the shares for a
    // moment.
    let has_weights = |part: &&[u64; 2]| part[1].abs_diff(3 * part[0]) < 4 * u64::from(QUEUE);
    assert!(parts.iter().filter(has_weights).count() > parts.len() / 2, "{parts:?}");
}

#[test]
fn a_station_that_stops_stops_nobody_else_and_goes_on_where_it_was() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [with_credits(1, a, &address), with_credits(2, b, &address)];
    ask_first(&mut servers);
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    let start = Instant::now();
    // Far longer than it takes to ask for credits that nobody is heard of.
    while seen[1] < 20_000 || start.elapsed().as_millis() < 1_000 {
        assert!(start.elapsed().as_secs() < 60, "{seen:?}");
        let [a, b] = &mut servers;
        for (k, to) in [(0, 3), (1, 4)] {
            sent[k] += u64::from(a.send(k, &frame(k + 1, to, sent[k], 500)));
        }
        a.engine.round();
        b.engine.round();
        b.take(1, &mut seen[1]);
    }
    assert!(servers[0].own("credit_unsent") > 0);
    receive_the_rest(&mut servers, sent, seen);
}

#[test]
fn what_a_tenant_says_in_the_name_of_its_hypervisor_goes_nowhere() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [with_credits(1, a, &address), with_credits(2, b, &address)];
    ask_first(&mut servers);
    let messages = [
        Message::Request { wanted: 1 << 31, spent: 0, granted: 0, returned: 0 },
        Message::Grant { granted: u32::MAX },
        Message::Probe,
        Message::Reset { last: 1 << 30 },
        Message::Close { spent: u32::MAX, returned: 1 },
    ];
    let heard = servers[1].own("credit_messages_received");
    for message in messages {
        let forged = Repr { destination: mac(3), source: mac(1), channel: 7, message }.emit();
        until(&mut servers, |[a, _]| a.send(0, &forged));
        // Behind a tag of its priority as well.
        let tagged = [&forged[..12], &[0x81, 0x00, 0x60, 0x00], &forged[12..]].concat();
        until(&mut servers, |[a, _]| a.send(0, &tagged));
    }
    until(&mut servers, |[a, _]| a.own("forged_control") == 10);
    let Seen { sent, received: seen, .. } = slow_and_fast(&mut servers, 2_000, |_| true);
    receive_the_rest(&mut servers, sent, seen);
    assert!(heard < servers[1].own("credit_messages_received"));
    assert_eq!(servers[0].own("reserved"), 10);
}

/// A device that loses one frame in so many of those it is given to send, or damages it.
pub struct Leaky {
    pub device: Local,
    pub rng: Rng,
    pub one_in: u64,
    pub lost: u64,
    pub damages: bool,
}

impl Device for Leaky {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        self.device.receive(take)
    }
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        if self.rng.below(self.one_in) == 0 {
            self.lost += 1;
            if self.damages {
                let mut damaged = frame.to_vec();
                let bit = self.rng.below(frame.len() as u64 * 8) as usize;
                damaged[bit / 8] ^= 1 << (bit % 8);
                return self.device.send(&damaged);
            }
            return Ok(true);
        }
        self.device.send(frame)
    }
    fn wakers<'a>(&'a self, for_room: bool, fds: &mut Vec<PollFd<'a>>) {
        self.device.wakers(for_room, fds);
    }
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        show("leaked", self.lost);
    }
}

/// A link that loses one frame in ten, data and messages alike: what was lost is lost, but no credit is for ever, and what is left of
/// the frames arrives in order.
#[test]
fn a_link_that_loses_one_frame_in_ten_stops_nobody() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let leaky = |device, seed| Leaky { device, rng: Rng::from_words(&[seed]), one_in: 10, lost: 0, damages: false };
    let mut servers = [with_credits(1, leaky(a, 1), &address), with_credits(2, leaky(b, 2), &address)];
    ask_first(&mut servers);
    let (mut sent, mut next, mut seen) = (0, 0, 0u64);
    until(&mut servers, |[a, b]| {
        if sent < 3_000 && a.send(0, &frame(1, 3, sent, 500)) {
            sent += 1;
        }
        while let Some(number) = b.number(0) {
            assert!(number >= next, "in order, each once");
            (next, seen) = (number + 1, seen + 1);
        }
        sent == 3_000 && a.own("credit_unsent") == 0
    });
    // The last of them are on their way.
    for _ in 0..1_000 {
        servers.iter_mut().for_each(|s| {
            s.engine.round();
        });
        while let Some(number) = servers[1].number(0) {
            assert!(number >= next, "in order, each once");
            (next, seen) = (number + 1, seen + 1);
        }
    }
    println!("{seen} of {sent} arrived");
    assert!((2_500..2_950).contains(&seen), "{seen}");
    assert_eq!(servers[1].own("no_credit"), 0);
}

/// Each of two servers starts again while flows are open: the other knows channels and credits of which it knows nothing.
#[test]
fn a_server_that_starts_again_is_sent_to_and_sends_again() {
    let address = network();
    let _controller = controller(&address);
    let devices = kept();
    let new = |n: usize| with_credits(n, Kept(devices[n - 1].clone()), &address);
    let mut servers = [new(1), new(2)];
    ask_first(&mut servers);
    for again in [2, 1] {
        for _ in 0..3_000 {
            let [a, b] = &mut servers;
            a.send(0, &frame(1, 3, 0, 100));
            a.send(1, &frame(2, 4, 0, 100));
            a.engine.round();
            b.engine.round();
            b.number(1);
        }
        assert!(servers[0].own("credit_unsent") > 0);
        // It forgets all that waited in it.
        servers = start_again(servers, again, new);
        let mut seen = [0; 2];
        until(&mut servers, |[a, b]| {
            a.send(0, &frame(1, 3, 0, 100));
            a.send(1, &frame(2, 4, 0, 100));
            for (k, seen) in seen.iter_mut().enumerate() {
                while b.number(k).is_some() {
                    *seen += 1;
                }
            }
            seen.iter().all(|&seen| seen > 1_000)
        });
    }
}

#[test]
fn switches_with_credits_that_sleep_wake_for_them() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [with_credits(1, a, &address), with_credits(2, b, &address)];
    ask_first(&mut servers);
    between_sleepers(servers, false);
}

#[test]
fn what_waits_for_or_at_a_station_that_leaves_is_dropped_by_name() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [with_credits(1, a, &address), with_credits(2, b, &address)];
    ask_first(&mut servers);
    let mut sent = 0;
    // Nobody takes anything: a receive queue is full, and frames wait for credits.
    until(&mut servers, |[a, b]| {
        sent += u64::from(a.send(0, &frame(1, 3, sent, 100)));
        a.own("credit_unsent") == 16 && b.own("credit_queued_max") == u64::from(QUEUE)
    });
    let [a, b] = &mut servers;
    a.engine.announce(DOMAIN, mac(1).0, ip(1), false);
    b.engine.announce(DOMAIN, mac(3).0, ip(3), false);
    assert_eq!((a.own("credit_unsent"), a.own("port_gone")), (0, 16));
    assert!(b.own("port_gone") > 0);
    for server in &mut servers {
        server.engine.round();
        server.engine.ledger();
    }
}

/// What waits for a station that is gone does not wait until it counts as silent: here that takes for ever.
#[test]
fn frames_for_a_station_that_leaves_elsewhere_are_given_up_at_once() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let config = CreditConfig {
        transmission: TransmissionConfig {
            resync: Duration::from_ms(100),
            resync_max: FOREVER,
            ..TransmissionConfig::default()
        },
        ..config()
    };
    let with = |n, device| {
        overlay_with(n, device, &address, of_one_class, Stack { credits: Some(config), ..Stack::default() })
    };
    let mut servers = [with(1, a), with(2, b)];
    ask_first(&mut servers);
    let mut sent = 0;
    until(&mut servers, |[a, b]| {
        sent += u64::from(a.send(0, &frame(1, 3, sent, 100)));
        a.own("credit_unsent") == 16 && b.own("credit_queued_max") == u64::from(QUEUE)
    });
    servers[1].engine.announce(DOMAIN, mac(3).0, ip(3), false);
    until(&mut servers, |[a, _]| {
        // What its port still has of them goes the same way.
        a.send(0, &frame(1, 3, sent, 100));
        a.own("unresolved") >= 16
    });
    assert_eq!(servers[0].own("credit_silent"), 0);
    for server in &mut servers {
        server.engine.ledger();
    }
}

/// What the hypervisor says by itself is in no ledger: on a quiet server it would outweigh all that was ever delivered.
#[test]
fn a_frame_for_nobody_leaves_the_books_right() {
    let address = network();
    let _controller = controller(&address);
    let (device, _neighbour) = Local::pair().unwrap();
    let mut server = with_credits(1, device, &address);
    assert!(server.send(0, &frame(1, 50, 0, 100)));
    let start = Instant::now();
    while server.own("unresolved") == 0 || server.own("credit_unsent") > 0 {
        assert!(start.elapsed().as_secs() < 60, "it still waits");
        server.engine.round();
        server.engine.ledger();
        assert!(server.engine.report(UPLINK).unwrap().counters.delivered <= 1);
    }
    assert_eq!(server.own("unresolved"), 1, "the frame itself, and nothing that was said for it");
}
