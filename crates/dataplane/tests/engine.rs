//! The switch over ports in shared memory: nothing lost under overload, hostile programs contained.
#![cfg(not(loom))]

use sluicenet_dataplane::engine::{Access as Rules, Engine, Happened};
use sluicenet_dataplane::port::{BrokenPort, Delivery, Descriptor, Offload, Port, Segmentation};
use sluicenet_dataplane::region::{Region, RingCells};
use sluicenet_dataplane::ring::{Cells, Producer};
use sluicenet_dataplane::shm::{Access, Client, FULL_MAX};
use sluicenet_dataplane::tap::Direction;
use sluicenet_node::vale::{Action, ValeConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn mac(n: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, n as u8]
}

/// A frame of `len` bytes that carries a number.
fn frame(from: usize, to: usize, number: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(22)];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12] = 0x88;
    frame[13] = 0xb5;
    frame[14..22].copy_from_slice(&number.to_le_bytes());
    frame
}

/// No watchdog: however slow the machine, only tests about it may hang on time.
fn patient() -> ValeConfig {
    ValeConfig { detection_time: Duration::from_ms(3_600_000), ..ValeConfig::default() }
}

/// A switch with a program at every port.
fn switch(ports: usize, buffers: u32, config: ValeConfig) -> (Engine, Vec<Client>) {
    let mut engine = Engine::new(ports, config);
    let clients = (0..ports).map(|k| open(plug(&mut engine, k, buffers))).collect();
    (engine, clients)
}
fn plug(engine: &mut Engine, k: usize, buffers: u32) -> Access {
    let access = engine.plug_shm(k, &format!("test-{k}"), buffers).unwrap();
    assert!(engine.give(mac(k), 0, k));
    access
}
fn open(access: Access) -> Client {
    Client::open(access.memory).unwrap()
}

/// The number in the next frame of a program, if there is one.
fn received(client: &mut Client) -> Option<(usize, u64)> {
    let mut bytes = [0; 2048];
    client.receive(&mut bytes).unwrap()?;
    let _ = client.publish();
    Some((bytes[11] as usize, u64::from_le_bytes(bytes[14..22].try_into().unwrap())))
}

#[test]
fn two_senders_at_full_speed_and_a_slow_receiver_lose_nothing() {
    // Experiment 1 of Crisan 2014, 4.2.3, between the ports of the switch.
    let (mut engine, mut clients) = switch(3, 64, patient());
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    let mut refused = 0;
    for turn in 0..40_000 {
        for (j, client) in clients[..2].iter_mut().enumerate() {
            if client.send(&frame(j, 2, sent[j], 64 + turn % 1_400)).unwrap() {
                sent[j] += 1;
            } else {
                refused += 1;
            }
            let _ = client.publish();
        }
        engine.turn();
        if turn % 3 == 0
            && let Some((j, number)) = received(&mut clients[2])
        {
            assert_eq!(number, seen[j], "in order, and each once");
            seen[j] += 1;
        }
    }
    assert!(refused > 10_000, "the senders were held back {refused} times");
    while engine.turn() > 0 || engine.queued() > 0 {
        while let Some((j, number)) = received(&mut clients[2]) {
            assert_eq!(number, seen[j]);
            seen[j] += 1;
        }
    }
    while let Some((j, _)) = received(&mut clients[2]) {
        seen[j] += 1;
    }
    assert_eq!(sent, seen);
    assert!(sent[0].abs_diff(sent[1]) < sent[0] / 10, "{sent:?}");
    let (accepted, delivered, dropped) = engine.ledger();
    assert_eq!((accepted, delivered, dropped), (sent[0] + sent[1], sent[0] + sent[1], 0));
}

#[test]
fn the_lossy_twin_loses_more_than_half() {
    let config = ValeConfig { lossless: PrioritySet::NONE, slots: 16, ..patient() };
    let (mut engine, mut clients) = switch(3, 64, config);
    let mut sent = 0;
    for turn in 0..10_000 {
        for (j, client) in clients[..2].iter_mut().enumerate() {
            sent += u64::from(client.send(&frame(j, 2, 0, 64)).unwrap());
            let _ = client.publish();
        }
        engine.turn();
        if turn % 3 == 0 {
            received(&mut clients[2]);
        }
    }
    let lost = engine.report(2).unwrap().counters.dropped.frames(DropReason::VswitchVm);
    assert!(sent == 20_000 && lost > sent / 2, "{lost} of {sent}");
    engine.ledger();
}

#[test]
fn a_stopped_receiver_stops_nobody_else() {
    let (mut engine, mut clients) = switch(4, 64, ValeConfig { slots: 32, ..patient() });
    let mut through = 0;
    for number in 0..20_000 {
        // Port 0 sends to the one that never takes anything, port 1 to one that does.
        clients[0].send(&frame(0, 2, number, 64)).unwrap();
        clients[1].send(&frame(1, 3, number, 64)).unwrap();
        let _ = (clients[0].publish(), clients[1].publish());
        engine.turn();
        through += u64::from(received(&mut clients[3]).is_some());
    }
    assert_eq!(through, 20_000);
    assert_eq!(engine.report(2).unwrap().counters.dropped.total_frames(), 0);
    engine.ledger();
}

#[test]
fn the_watchdog_frees_who_waits_for_a_stuck_receiver() {
    let config = ValeConfig {
        slots: 16,
        detection_time: Duration::from_ms(20),
        restoration_time: Duration::from_ms(20),
        ..patient()
    };
    let (mut engine, mut clients) = switch(3, 64, config);
    let start = std::time::Instant::now();
    let mut through = 0;
    while through < 100 {
        assert!(start.elapsed().as_secs() < 60, "still held back");
        clients[0].send(&frame(0, 2, 0, 64)).unwrap();
        clients[0].send(&frame(0, 1, 0, 64)).unwrap();
        let _ = clients[0].publish();
        engine.turn();
        // It goes on only when what it sent to port 2 is dropped.
        if engine.report(2).unwrap().isolated {
            through += u64::from(received(&mut clients[1]).is_some());
        }
    }
    let stuck = engine.report(2).unwrap();
    assert!(stuck.counters.isolated == 1 && stuck.counters.dropped.frames(DropReason::Watchdog) > 0);
    // It takes frames again, and is restored.
    while engine.report(2).unwrap().isolated {
        assert!(start.elapsed().as_secs() < 60, "never restored");
        received(&mut clients[2]);
        engine.turn();
    }
    engine.ledger();
}

/// A UDP datagram to a port, as short as may be.
fn datagram(from: usize, to: usize, udp_port: u16) -> Vec<u8> {
    let mut bytes = [&mac(to)[..], &mac(from), &[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
    bytes.extend([10, 0, 0, from as u8, 10, 0, 0, to as u8, 0, 9]);
    bytes.extend(udp_port.to_be_bytes());
    bytes.extend([0, 8, 0, 0]);
    bytes.resize(60, 0);
    bytes
}

/// The UDP ports and numbers of what a program gets.
fn datagrams(client: &mut Client) -> Vec<(u16, u64)> {
    let (mut got, mut bytes) = (Vec::new(), [0; 64]);
    while client.receive(&mut bytes).unwrap().is_some() {
        got.push((u16::from_be_bytes([bytes[36], bytes[37]]), u64::from_le_bytes(bytes[44..52].try_into().unwrap())));
    }
    let _ = client.publish();
    got
}
fn numbered(from: usize, to: usize, udp_port: u16, number: u64) -> Vec<u8> {
    let mut bytes = datagram(from, to, udp_port);
    bytes[44..52].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn a_datagram_to_a_full_socket_waits_and_nothing_else_does() {
    let (mut engine, mut clients) = switch(3, 64, patient());
    let [a, b, c] = &mut clients[..] else { panic!() };
    let ports = |client: &mut Client| datagrams(client).into_iter().map(|(port, _)| port).collect::<Vec<u16>>();
    let full: Vec<u16> = (100..100 + FULL_MAX as u16).collect();
    c.set_full(&full);
    for port in [1, 163, 2] {
        assert!(a.send(&datagram(0, 2, port)).unwrap());
    }
    assert!(b.send(&datagram(1, 2, 3)).unwrap() && b.send(&datagram(1, 2, 164)).unwrap());
    let (_, _) = (a.publish(), b.publish());
    for _ in 0..10 {
        engine.turn();
    }
    assert_eq!(ports(c), [1, 2, 3, 164]);
    let report = engine.report(0).unwrap();
    assert_eq!((report.waits_for, report.lent, report.input[0], engine.queued()), (1 << 2, 1, 1, 1));
    c.set_full(&full[..63]);
    engine.turn();
    assert_eq!(ports(c), [163]);
    assert_eq!((engine.ledger(), engine.queued()), ((5, 5, 0), 0));
}

#[test]
fn who_sends_to_one_that_admits_nothing_reaches_another_one() {
    let (mut engine, mut clients) = switch(4, 64, patient());
    clients[2].set_full(&[7]);
    let (mut sent, mut got) = ([0; 2], Vec::new());
    // As many as one may have to wait, of 32, and whatever goes to the other.
    for turn in 0..2_000 {
        if sent[0] < 12 && turn % 2 == 0 {
            assert!(clients[0].send(&numbered(0, 2, 7, sent[0])).unwrap());
            sent[0] += 1;
        }
        assert!(clients[0].send(&numbered(0, 3, 7, sent[1])).unwrap(), "nothing is in its way");
        sent[1] += 1;
        let _ = clients[0].publish();
        engine.turn();
        got.extend(datagrams(&mut clients[3]));
    }
    assert_eq!(got, (0..2_000).map(|number| (7, number)).collect::<Vec<_>>());
    assert_eq!((engine.queued(), engine.report(0).unwrap().lent), (12, 12));
    // One more waits as the next frame of the port, and what is behind it, too.
    assert!(clients[0].send(&numbered(0, 2, 7, 12)).unwrap() && clients[0].send(&numbered(0, 3, 7, 2_000)).unwrap());
    // Who has sent nothing so far has places of its own.
    assert!(clients[1].send(&numbered(1, 2, 7, 100)).unwrap());
    let _ = (clients[0].publish(), clients[1].publish());
    for _ in 0..10 {
        engine.turn();
    }
    assert_eq!((datagrams(&mut clients[3]), datagrams(&mut clients[2])), (vec![], vec![]));
    assert_eq!((engine.queued(), engine.report(0).unwrap().counters.held_back), (13, 1));
    clients[2].set_full(&[]);
    for _ in 0..10 {
        engine.turn();
    }
    let (mine, others): (Vec<_>, Vec<_>) = datagrams(&mut clients[2]).into_iter().partition(|&(_, n)| n < 100);
    assert_eq!((mine, others), ((0..13).map(|number| (7, number)).collect(), vec![(7, 100)]));
    assert_eq!(datagrams(&mut clients[3]), [(7, 2_000)]);
    assert_eq!((engine.ledger(), engine.queued()), ((2_015, 2_015, 0), 0));
}

#[test]
fn lines_end_with_their_receiver_and_not_with_their_sender() {
    for receiver_leaves in [true, false] {
        let (mut engine, mut clients) = switch(3, 64, patient());
        clients[2].set_full(&[7]);
        for number in 0..5 {
            assert!(clients[0].send(&numbered(0, 2, 7, number)).unwrap());
        }
        let _ = clients[0].publish();
        engine.turn();
        assert_eq!((engine.ledger(), engine.queued()), ((5, 0, 0), 5));
        if receiver_leaves {
            engine.unplug(2);
            assert_eq!((engine.ledger(), engine.queued()), ((5, 0, 5), 0));
            assert_eq!(engine.gone().dropped.frames(DropReason::PortGone), 5);
            assert_eq!((clients[0].sendable(32).unwrap(), engine.report(0).unwrap().lent), (27, 0), "not shown yet");
            engine.turn();
            assert_eq!(clients[0].sendable(32).unwrap(), 32);
        } else {
            engine.unplug(0);
            engine.turn();
            assert!(!engine.report(0).unwrap().present && engine.queued() == 5);
            clients[2].set_full(&[]);
            engine.turn();
            engine.turn();
            assert_eq!(datagrams(&mut clients[2]), (0..5).map(|number| (7, number)).collect::<Vec<_>>());
            assert!(engine.report(0).is_none());
            assert_eq!((engine.ledger(), engine.queued()), ((5, 5, 0), 0));
        }
    }
}

#[test]
fn a_socket_that_stays_full_is_not_believed_for_ever() {
    let config = ValeConfig { detection_time: Duration::from_ms(20), ..ValeConfig::default() };
    let (mut engine, mut clients) = switch(2, 64, config);
    let [a, b] = &mut clients[..] else { panic!() };
    b.set_full(&[7]);
    assert!(a.send(&datagram(0, 1, 7)).unwrap());
    let _ = a.publish();
    engine.turn();
    assert_eq!(b.receive(&mut [0; 64]), Ok(None));
    let start = std::time::Instant::now();
    while b.receive(&mut [0; 64]) == Ok(None) {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "held back for ever");
        engine.turn();
    }
    assert!(start.elapsed() >= std::time::Duration::from_millis(15));
}

#[test]
fn a_full_socket_is_waited_for_where_the_watchdog_does_not_drop() {
    for (action, stuck) in [(Action::Alert, 1), (Action::Off, 0)] {
        let config = ValeConfig { action, detection_time: Duration::from_ms(1), ..ValeConfig::default() };
        let (mut engine, mut clients) = switch(2, 64, config);
        let [a, b] = &mut clients[..] else { panic!() };
        b.set_full(&[7]);
        assert!(a.send(&datagram(0, 1, 7)).unwrap());
        let _ = a.publish();
        let own = |engine: &Engine| engine.report(1).unwrap().own;
        let start = std::time::Instant::now();
        // Many times the detection time, and until it was found stuck, where it is to be.
        while start.elapsed().as_millis() < 30 || own(&engine)[1] != ("sockets_stuck", stuck) {
            assert!(start.elapsed().as_secs() < 60, "{action:?}: {:?}", own(&engine));
            engine.turn();
            assert_eq!(b.receive(&mut [0; 64]), Ok(None), "{action:?}");
        }
        assert_eq!(own(&engine)[1..], [("sockets_stuck", stuck), ("sockets_ignored", 0)]);
        // One that is told to drop meanwhile drops, and whoever reads has it.
        if action == Action::Alert {
            b.set_full(&[]);
        } else {
            engine.set_watchdog(Action::Drop, Duration::from_ms(1), Duration::from_ms(1));
        }
        while b.receive(&mut [0; 64]) == Ok(None) {
            assert!(start.elapsed().as_secs() < 60, "held back for ever");
            engine.turn();
        }
    }
}

#[test]
fn broadcasts_reach_all_and_come_back_once() {
    let (mut engine, mut clients) = switch(4, 16, patient());
    for number in 0..1_000 {
        let mut all = frame(0, 1, number, 64);
        all[..6].fill(0xff);
        assert!(clients[0].send(&all).unwrap(), "its buffers came back");
        let _ = clients[0].publish();
        engine.turn();
        for client in &mut clients[1..] {
            assert_eq!(received(client), Some((0, number)));
        }
        engine.turn();
    }
    assert_eq!(engine.ledger(), (3_000, 3_000, 0));
}

#[test]
fn a_port_that_leaves_leaves_nothing_behind() {
    let (mut engine, mut clients) = switch(3, 16, patient());
    for number in 0..8 {
        clients[1].send(&frame(1, 2, number, 64)).unwrap();
        clients[0].send(&frame(0, 1, number, 64)).unwrap();
    }
    let _ = (clients[0].publish(), clients[1].publish());
    // Port 1 goes away with frames on their way to and from it.
    for _ in 0..3 {
        engine.turn();
    }
    engine.unplug(1);
    drop(clients.remove(1));
    let mut seen = 0;
    for _ in 0..10 {
        engine.turn();
        while received(&mut clients[1]).is_some() {
            seen += 1;
        }
    }
    assert_eq!(seen, 8);
    engine.ledger();
    assert!(engine.report(1).is_none());
    // Somebody else comes to it.
    let mut newcomer = open(plug(&mut engine, 1, 32));
    assert!(clients[0].send(&frame(0, 1, 7, 64)).unwrap());
    let _ = clients[0].publish();
    engine.turn();
    assert_eq!(received(&mut newcomer), Some((0, 7)));
}

/// The producing end of the ring of a port by which its program sends, for one that keeps no rules.
fn rogue(access: &Access, buffers: u32) -> (Arc<Region>, RingCells) {
    let region = Arc::new(Region::open(access.memory.try_clone().unwrap()).unwrap());
    let send = RingCells::new(&region, 256, buffers);
    (region, send)
}

#[test]
fn entries_that_name_nothing_are_counted_and_skipped() {
    let mut engine = Engine::new(2, patient());
    let access = plug(&mut engine, 0, 16);
    let (_region, cells) = rogue(&access, 16);
    let mut good = open(plug(&mut engine, 1, 16));
    let mut send = Producer::new(cells);
    for entry in [16, u64::MAX, 3, 3 | 13 << 32, 3 | 2_049 << 32, 5 | 60 << 32] {
        send.push(entry);
    }
    let _ = send.publish();
    engine.turn();
    // The last one is a frame of zeros, for a station nobody has and from one that is no machine's.
    let report = engine.report(0).unwrap();
    assert_eq!(report.own, [("bad_entries", 5), ("sockets_stuck", 0), ("sockets_ignored", 0)]);
    assert_eq!(report.counters.refused.total_frames() + report.counters.accepted, 1);
    assert!(good.send(&frame(1, 0, 1, 64)).unwrap());
    engine.ledger();
}

#[test]
fn an_index_that_jumps_costs_the_port_and_nothing_else() {
    for (ring, word) in [(0, 0), (1, 1), (2, 1), (3, 0)] {
        let mut engine = Engine::new(3, patient());
        let accesses: Vec<Access> = (0..3).map(|k| plug(&mut engine, k, 16)).collect();
        let region = Arc::new(Region::open(accesses[0].memory.try_clone().unwrap()).unwrap());
        let mut clients: Vec<Client> = accesses.into_iter().map(open).collect();
        let cells = RingCells::new(&region, 256 + ring * RingCells::bytes(16), 16);
        let index = if word == 0 { cells.produced() } else { cells.consumed() };
        index.store(1_000_000, Ordering::Relaxed);
        for number in 0..200 {
            // It sends on, somebody sends to it, and two others talk to each other.
            let _ = clients[0].send(&frame(0, 2, number, 64));
            let _ = clients[0].publish();
            clients[1].send(&frame(1, 0, number, 64)).unwrap();
            clients[1].send(&frame(1, 2, number, 64)).unwrap();
            clients[2].send(&frame(2, 1, number, 64)).unwrap();
            let _ = (clients[1].publish(), clients[2].publish());
            engine.turn();
            engine.turn();
            while received(&mut clients[2]).is_some() {}
            while received(&mut clients[1]).is_some() {}
        }
        let report = |k| engine.report(k).unwrap().counters;
        assert!(report(2).delivered >= 180 && report(1).delivered >= 180, "ring {ring}: {}", report(2).delivered);
        engine.ledger();
    }
}

#[test]
fn a_program_that_sleeps_is_woken_and_so_is_the_switch() {
    let mut engine = Engine::new(2, patient());
    let (a, b) = (plug(&mut engine, 0, 16), plug(&mut engine, 1, 16));
    let (kick_a, wake_b, kick_b) =
        (a.kick.try_clone().unwrap(), b.wake.try_clone().unwrap(), b.kick.try_clone().unwrap());
    let (mut sender, mut receiver) = (open(a), open(b));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let switch = std::thread::spawn(move || {
        engine.run(&stopped).unwrap();
        engine.ledger()
    });
    let wait = |fd: &std::os::fd::OwnedFd| {
        let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "nobody woke the program");
        rustix::io::read(fd, &mut [0u8; 8]).unwrap();
    };
    let ring = |fd: &std::os::fd::OwnedFd| assert!(rustix::io::write(fd, &1u64.to_ne_bytes()).is_ok());
    for number in 0..200 {
        // Long enough for everybody to fall asleep, now and then.
        if number % 20 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        assert!(sender.send(&frame(0, 1, number, 64)).unwrap());
        if sender.publish() {
            ring(&kick_a);
        }
        loop {
            let mut bytes = [0; 2048];
            if receiver.receive(&mut bytes).unwrap().is_some() {
                assert_eq!(bytes[14..22], number.to_le_bytes());
                if receiver.publish() {
                    ring(&kick_b);
                }
                break;
            }
            if receiver.fall_asleep().unwrap() {
                wait(&wake_b);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    ring(&kick_a);
    assert_eq!(switch.join().unwrap(), (200, 200, 0));
}

/// Frames a port was given, each with its domain and class.
type Taken = Arc<std::sync::Mutex<Vec<(Vec<u8>, u16, u8)>>>;

/// A port whose other side sends what it is told, and takes what comes.
struct Scripted {
    frames: Vec<(Vec<u8>, Offload)>,
    next: usize,
    lent: u32,
    taken: Taken,
    takes: PrioritySet,
}

impl Port for Scripted {
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(self.frames.get(self.next).map(|(f, _)| Descriptor { buffer: self.next as u32, len: f.len() as u32 }))
    }
    fn head(&self, buffer: u32) -> [u64; 2] {
        let bytes = &self.frames[buffer as usize].0;
        [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    }
    fn accept(&mut self) {
        (self.next, self.lent) = (self.next + 1, self.lent + 1);
    }
    fn read(&self, buffer: u32, into: &mut [u8]) {
        into.copy_from_slice(&self.frames[buffer as usize].0[..into.len()]);
    }
    fn offload(&self, buffer: u32) -> Offload {
        self.frames[buffer as usize].1
    }
    fn give_back(&mut self, _buffer: u32) {
        self.lent -= 1;
    }
    fn lent(&self) -> u32 {
        self.lent
    }
    fn takes(&mut self) -> PrioritySet {
        self.takes
    }
    fn max_frame(&self) -> u32 {
        1_514
    }
    fn reserve(&mut self, _len: u32, offload: &Offload) -> Result<bool, BrokenPort> {
        assert!(offload.is_none());
        Ok(true)
    }
    fn deliver(&mut self, frame: &Delivery<'_>) {
        self.taken.lock().unwrap().push((frame.bytes.to_vec(), frame.domain, frame.priority));
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        Ok(())
    }
    fn fall_asleep(&mut self, _blocked: bool) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn wake_up(&mut self) {}
    fn wakers<'a>(&'a self, _fds: &mut Vec<rustix::event::PollFd<'a>>) {}
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

fn scripted(frames: Vec<(Vec<u8>, Offload)>, takes: PrioritySet) -> (Box<Scripted>, Taken) {
    let taken = Taken::default();
    (Box::new(Scripted { frames, next: 0, lent: 0, taken: taken.clone(), takes }), taken)
}

/// A TCP segment of `payload` bytes over IPv4 that is to be cut into segments of 1,000.
fn long_segment(payload: usize) -> (Vec<u8>, Offload) {
    let mut bytes = frame(0, 1, 0, 54 + payload);
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..54].copy_from_slice(&[0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    for (i, byte) in bytes[54..].iter_mut().enumerate() {
        *byte = i as u8;
    }
    let offload = Offload {
        checksum: Some((34, 16)),
        segmentation: Segmentation::Tcp4,
        segment: 1_000,
        headers: 54,
        verified: false,
    };
    (bytes, offload)
}

#[test]
fn what_a_sender_left_to_be_done_is_done_for_a_receiver_that_cannot() {
    let mut engine = Engine::new(2, patient());
    let (segment, offload) = long_segment(4_500);
    let long = (frame(0, 1, 0, 3_000), Offload::NONE);
    let (port, _) = scripted(vec![(segment.clone(), offload), long, (segment.clone(), offload)], PrioritySet::ALL);
    engine.plug(0, "sender", port, Default::default()).unwrap();
    let mut client = open(plug(&mut engine, 1, 4));
    // Two buffers at a time: each segment is cut in several goes.
    let mut received = Vec::new();
    for _ in 0..100 {
        engine.turn();
        let mut bytes = [0; 2048];
        while let Some(len) = client.receive(&mut bytes).unwrap() {
            received.push(bytes[..len].to_vec());
        }
        let _ = client.publish();
    }
    assert_eq!(received.len(), 10);
    for cut in received.chunks(5) {
        let payload: Vec<u8> = cut.iter().flat_map(|f| f[54..].iter().copied()).collect();
        assert_eq!(payload, segment[54..]);
        for (k, f) in cut.iter().enumerate() {
            assert_eq!(u32::from_be_bytes(f[38..42].try_into().unwrap()), 1 + 1_000 * k as u32);
            assert_eq!(usize::from(u16::from_be_bytes([f[16], f[17]])), f.len() - 14);
        }
    }
    assert_eq!(engine.report(1).unwrap().counters.dropped.frames(DropReason::TooBig), 1);
    // A segment counts as a frame.
    assert_eq!(engine.ledger(), (11, 10, 1));
    assert_eq!(engine.report(0).unwrap().lent, 0);
}

#[test]
fn a_port_says_of_which_classes_and_where_its_machine_may_be() {
    let mut engine = Engine::new(3, patient());
    let tagged = |tag: u16, number: u64| {
        let mut bytes = frame(0, 2, number, 64);
        bytes[12..14].copy_from_slice(&[0x81, 0x00]);
        bytes[14..16].copy_from_slice(&tag.to_be_bytes());
        (bytes, Offload::NONE)
    };
    let ip = |last: u8| {
        let mut bytes = frame(0, 2, 0, 64);
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[26..30].copy_from_slice(&[10, 0, 0, last]);
        (bytes, Offload::NONE)
    };
    let frames = vec![tagged(3 << 13, 1), tagged(5, 2), tagged(7 << 13, 3), ip(1), ip(9)];
    let (sender, _) = scripted(frames, PrioritySet::ALL);
    let access = Rules { domain: Some(40), priority: Some(6), address: Some([10, 0, 0, 1].into()) };
    engine.plug(0, "sender", sender, access).unwrap();
    // The receiver is held for the class of all of them.
    let (receiver, taken) = scripted(Vec::new(), PrioritySet(!(1 << 6)));
    engine.plug(2, "receiver", receiver, Rules { domain: Some(40), ..Rules::default() }).unwrap();
    assert!(engine.give(mac(0), 40, 0) && engine.give(mac(2), 40, 2));
    for _ in 0..10 {
        engine.turn();
    }
    assert!(taken.lock().unwrap().is_empty());
    // A VLAN of its own is refused; the rest waits, class 6 whatever its tag said.
    let refused = engine.report(0).unwrap().counters.refused.frames(DropReason::ForgedSource);
    assert_eq!((refused, engine.queued(), engine.report(2).unwrap().output[6]), (1, 4, 4));
    engine.unplug(2);
    let (receiver, taken) = scripted(Vec::new(), PrioritySet::ALL);
    engine.plug(2, "receiver", receiver, Rules { domain: Some(40), ..Rules::default() }).unwrap();
    engine.give(mac(2), 40, 2);
    let (sender, _) = scripted(vec![ip(1), ip(9), tagged(0, 4)], PrioritySet::ALL);
    engine.unplug(0);
    engine.plug(0, "sender", sender, access).unwrap();
    engine.give(mac(0), 40, 0);
    for _ in 0..10 {
        engine.turn();
    }
    // Of another address than its own nothing is delivered.
    let of: Vec<(u16, u8)> = taken.lock().unwrap().iter().map(|&(_, domain, priority)| (domain, priority)).collect();
    assert_eq!(of, [(40, 6); 2]);
    assert_eq!(engine.report(2).unwrap().counters.dropped.frames(DropReason::ForgedSource), 1);
    engine.ledger();
}

#[test]
fn who_looks_on_sees_what_passes_and_what_is_dropped() {
    let (mut engine, mut clients) = switch(3, 8, ValeConfig { slots: 4, ..patient() });
    let (tap_a, at_a) = sluicenet_dataplane::tap::tap(40);
    let (tap_b, at_b) = sluicenet_dataplane::tap::tap(2048);
    assert!(engine.set_tap(0, tap_a) && engine.set_tap(1, tap_b));
    let next = |capture: &sluicenet_dataplane::tap::Capture| capture.next(std::time::Duration::ZERO).ok();
    // Straight through: in at one, out at the other.
    assert!(clients[0].send(&frame(0, 1, 1, 100)).unwrap());
    let _ = clients[0].publish();
    engine.turn();
    let (a, b) = (next(&at_a).unwrap(), next(&at_b).unwrap());
    assert_eq!((a.direction, a.len, a.dropped, &a.bytes[..]), (Direction::In, 100, None, &frame(0, 1, 1, 100)[..40]));
    assert_eq!((b.direction, b.len, b.dropped, &b.bytes[..]), (Direction::Out, 100, None, &frame(0, 1, 1, 100)[..]));
    assert_eq!(received(&mut clients[1]), Some((0, 1)));
    // Refused on arrival: somebody else's address.
    assert!(clients[0].send(&frame(2, 1, 2, 60)).unwrap());
    let _ = clients[0].publish();
    engine.turn();
    assert_eq!(next(&at_a).unwrap().dropped, Some(DropReason::ForgedSource));
    // Four of six are delivered into the four buffers to receive with; the others are seen when they are.
    for number in 3..9 {
        assert!(clients[2].send(&frame(2, 1, number, 60)).unwrap());
        let _ = clients[2].publish();
        engine.turn();
    }
    let outs = |capture| std::iter::from_fn(|| next(capture)).filter(|f| f.direction == Direction::Out).count();
    assert_eq!((outs(&at_b), engine.report(1).unwrap().output[0]), (4, 2));
    assert_eq!(received(&mut clients[1]), Some((2, 3)));
    engine.turn();
    assert_eq!((outs(&at_b), engine.report(1).unwrap().output[0]), (1, 1));
    // What waits for a port that goes away is dropped by name before its eyes close.
    let waiting: u32 = engine.report(1).unwrap().output.iter().sum();
    assert_eq!(waiting, 1);
    engine.unplug(1);
    let gone = std::iter::from_fn(|| next(&at_b)).filter(|f| f.dropped == Some(DropReason::PortGone)).count();
    assert_eq!(gone as u32, waiting);
    assert_eq!(
        at_b.next(std::time::Duration::ZERO),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected),
        "a capture ends with its port"
    );
    // One looks on at a time.
    assert!(
        !engine.set_tap(0, sluicenet_dataplane::tap::tap(60).0)
            && !engine.set_tap(1, sluicenet_dataplane::tap::tap(60).0)
    );
    at_a.close();
    assert!(engine.set_tap(0, sluicenet_dataplane::tap::tap(60).0));
    let (a, c) = (engine.report(0).unwrap(), engine.report(2).unwrap());
    assert_eq!((a.bytes_from, c.bytes_from), (100 + 60, 6 * 60));
    engine.ledger();
}

#[test]
fn what_happens_seldom_is_told() {
    let config =
        ValeConfig { detection_time: Duration::from_ms(1), restoration_time: Duration::from_ms(1), ..patient() };
    let (mut engine, mut clients) = switch(2, 2, config);
    let events = engine.events();
    let told = |engine: &mut Engine, wanted: Happened| loop {
        engine.turn();
        match events.try_recv() {
            Ok(event) => break assert_eq!((event.port.as_str(), event.what), ("test-1", wanted)),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    // One buffer to receive with: the second frame waits, and nobody takes the first.
    for number in 0..2 {
        while !clients[0].send(&frame(0, 1, number, 60)).unwrap() {
            engine.turn();
        }
        let _ = clients[0].publish();
        engine.turn();
    }
    told(&mut engine, Happened::Isolated);
    assert!(received(&mut clients[1]).is_some());
    told(&mut engine, Happened::Restored);
    engine.ledger();
}
