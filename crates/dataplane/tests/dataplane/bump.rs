//! A bump between programs in shared memory: what passes, what does not, and what is accounted for.

use sluicenet_dataplane::bump::{Applications, Loop, Neighbour, Settings, Updates, loops, number_of};
use sluicenet_dataplane::port::{BrokenPort, Delivery, Descriptor, Offload, Segmentation};
use sluicenet_dataplane::shm::Client;
use sluicenet_dataplane::tap::{Direction, tap};
use sluicenet_dataplane::vhost;
use sluicenet_dataplane::vhost::driver::{Driver, DriverConfig};
use sluicenet_proto::netbump::{BumpCongestionPoint, BumpReactionPoint, Dctcp, Filter, Map, Port, QueueId, Red, Stock};
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_wire::checksum::checksum;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::{bump, qcn};

const OWN: [u8; 6] = [2, 0, 0, 0, 9, 9];

fn mac(n: u32) -> [u8; 6] {
    MacAddress::local(n).0
}

/// A datagram from station `from` to `to`, of `len` bytes, whose last byte is `mark`.
fn datagram(from: u32, to: u32, len: usize, ecn: Ecn, mark: u8) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12..14].copy_from_slice(&[8, 0]);
    let repr = ipv4::Repr {
        source: [10, 0, 0, from as u8].into(),
        destination: [10, 0, 0, to as u8].into(),
        protocol: Protocol::UDP,
        dscp: 0,
        ecn,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: (len - 34) as u16,
    };
    repr.emit(&mut frame[14..]);
    frame[len - 1] = mark;
    frame
}

fn settings(links: usize, maps: Vec<Map>) -> Settings {
    Settings {
        links: (0..links).map(|n| [format!("a{n}"), format!("b{n}")]).collect(),
        maps,
        mac: OWN,
        notification_priority: 7,
        updates: None,
        started: std::time::Instant::now(),
    }
}

/// The map of stations 1 to 8, each with the virtual queue of its number, and the others in queue 0.
fn map() -> Map {
    let entries: Vec<_> = (1..=8).map(|n| (number_of(mac(n)), n as QueueId)).collect();
    Map::new(&entries, Some(0))
}

/// A bump in one link between two programs. Its queues drain so slowly that time plays no part.
struct Rig {
    bump: Box<dyn Loop>,
    ends: [Client; 2],
}

impl Rig {
    fn new(applications: Applications, rate: Rate) -> Rig {
        Rig::with(applications, rate, settings(1, vec![map(), map()]), 128)
    }

    fn with(applications: Applications, rate: Rate, settings: Settings, buffers: u32) -> Rig {
        let ports = [Port { rate, buffer_bytes: None }; 9];
        let mut bump = loops(applications, &ports, vec![settings]).pop().unwrap();
        let mut open = |end| Client::open(bump.plug_shm(end, buffers).unwrap().memory).unwrap();
        let ends = [open(0), open(1)];
        Rig { bump, ends }
    }

    fn send(&mut self, end: usize, frame: &[u8]) -> bool {
        let sent = self.ends[end].send(frame).unwrap();
        let _ = self.ends[end].publish();
        sent
    }

    fn receive(&mut self, end: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut into = [0; 2048];
        while let Some(len) = self.ends[end].receive(&mut into).unwrap() {
            all.push(into[..len].to_vec());
        }
        let _ = self.ends[end].publish();
        all
    }

    /// Sends a frame through the bump; returns what came out at the other end.
    fn pass(&mut self, end: usize, frame: &[u8]) -> Vec<Vec<u8>> {
        assert!(self.send(end, frame));
        self.bump.round();
        self.receive(end ^ 1)
    }
}

fn slow() -> Rate {
    Rate(1_000)
}

#[test]
fn frames_of_any_length_and_kind_pass_unchanged_in_order_and_both_ways() {
    let mut rig = Rig::new(vec![], Rate::gbps(1));
    let mut rng = Rng::from_words(&[5]);
    for n in 0..20_000u32 {
        let len = [14, 60, 63, 64, 65, 127, 128, 129, 1_514, 2_048, 14 + rng.below(2_000) as usize][n as usize % 11];
        let mut frame: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        if n % 3 == 0 && len >= 60 {
            frame[12..15].copy_from_slice(&[[8, 0, 0x45], [0x81, 0, 0x20], [0x86, 0xDD, 0x60]][n as usize / 3 % 3]);
        }
        let from = n as usize % 2;
        assert_eq!(rig.pass(from, &frame), [frame], "{n} {len}");
    }
    let report = rig.bump.report();
    assert_eq!(report.ledger(), [20_000, 20_000, 0, 0]);
    assert_eq!(report.ends[0].counts.taken, 10_000);
}

#[test]
fn without_room_frames_stay_with_their_sender_and_none_is_decided_upon_twice() {
    let mut rig = Rig::new(vec![(Stock::Dctcp(Dctcp::default()), Filter::default())], slow());
    let mut sent = 0u32;
    while rig.send(0, &datagram(1, 2, 100, Ecn::Ect0, sent as u8)) {
        sent += 1;
    }
    assert_eq!(sent, 64);
    // The receiver has 64 buffers: after these nothing moves, whatever the loop does.
    for _ in 0..10 {
        rig.bump.round();
        while rig.send(0, &datagram(1, 2, 100, Ecn::Ect0, sent as u8)) {
            sent += 1;
        }
    }
    assert_eq!(sent, 128);
    let report = rig.bump.report();
    assert_eq!((report.ends[0].counts.taken, report.ends[0].counts.held_back), (64, 1));
    assert_eq!(rig.bump.report_queues()[2].counts.packets, 64, "waiting frames have not entered the queue");
    let mut came = 0u32;
    while came < sent {
        for frame in rig.receive(1) {
            assert_eq!(frame[99], came as u8);
            came += 1;
        }
        rig.bump.round();
    }
    assert_eq!(rig.bump.report_queues()[2].counts.packets, 128);
    assert_eq!(rig.bump.report().ledger(), [128, 128, 0, 0]);
}

#[test]
fn a_full_virtual_queue_marks_and_drops_as_the_application_says() {
    let mut rig = Rig::new(vec![(Stock::Dctcp(Dctcp::default()), Filter::default())], slow());
    // 20 packets of 1,518 B are 30,360 B: 19 of 1,538 B are less.
    for n in 1..=40 {
        let frame = datagram(1, 2, 1_514, Ecn::Ect0, n);
        let out = rig.pass(0, &frame).remove(0);
        let ecn = Ecn::from_bits(out[15]);
        assert_eq!(ecn, if n >= 20 { Ecn::Ce } else { Ecn::Ect0 }, "{n}");
        assert_eq!((checksum(&out[14..34]), out[1_513]), (0, n));
    }
    // Another port's queue is another one, and so is the other direction's.
    assert_eq!(rig.pass(0, &datagram(1, 3, 1_514, Ecn::Ect0, 0))[0][15], 2);
    assert_eq!(rig.pass(1, &datagram(2, 1, 1_514, Ecn::Ect0, 0))[0][15], 2);
    let red = Red { config: Red::alfares2012(0.1), seed: 1 };
    let mut rig = Rig::new(vec![(Stock::Red(red), Filter::default())], slow());
    let out: usize = (0..200).map(|_| rig.pass(0, &datagram(1, 2, 1_514, Ecn::NotEct, 0)).len()).sum();
    let report = rig.bump.report();
    assert_eq!(report.ledger(), [200, out as u64, 0, 200 - out as u64]);
    assert!((40..90).contains(&out), "{out}");
    let queue = &rig.bump.report_queues()[2];
    assert!(queue.bytes <= 75 * 1_538 && queue.gauges[0].0 == "average_bytes", "{queue:?}");
}

#[test]
fn notifications_go_back_and_are_obeyed_by_the_bump_nearer_to_the_sender() {
    let point =
        BumpCongestionPoint { least_probability: 1.0, plateau: 1.0, ..BumpCongestionPoint::alfares2012(7 << 16, 1) };
    let mut far = Rig::new(vec![(Stock::CongestionPoint(point), Filter::default())], slow());
    let mut reaction = BumpReactionPoint::alfares2012(1);
    reaction.limiter.min_rate = Rate(10_000);
    let mut near = Rig::new(vec![(Stock::ReactionPoint(reaction), Filter::default())], Rate::mbps(10));
    let mut notices = Vec::new();
    for n in 0..40 {
        assert_eq!(far.pass(0, &datagram(1, 2, 1_514, Ecn::Ect0, n)).len(), 1);
        notices.extend(far.receive(0));
    }
    let report = far.bump.report();
    assert!(notices.len() > 10 && report.ends[0].counts.own == notices.len() as u64, "{}", notices.len());
    let cnm = qcn::Frame::parse(&notices[0]).unwrap();
    assert_eq!((cnm.destination.0, cnm.source.0, cnm.message.destination.0), (mac(1), OWN, mac(2)));
    let limited =
        |near: &mut Rig| near.bump.report_queues()[2].gauges.iter().find(|g| g.0 == "limited_flows").unwrap().1;
    assert_eq!(limited(&mut near), 0.0);
    // Each cuts a quarter: at the end a frame a second is allowed.
    for notice in notices.iter().cycle().take(50) {
        assert_eq!(near.pass(1, notice), Vec::<Vec<u8>>::new(), "consumed");
    }
    assert_eq!(limited(&mut near), 1.0);
    // Beyond the burst of ten packets, frames of the flow are dropped, and of others none.
    let passed: usize = (0..100).map(|n| near.pass(0, &datagram(1, 2, 1_514, Ecn::Ect0, n)).len()).sum();
    assert!(passed < 20, "{passed}");
    assert_eq!(near.pass(0, &datagram(3, 2, 1_514, Ecn::Ect0, 0)).len(), 1);
    near.bump.report();
    // Without room at the sender's end a notification is dropped and counted.
    let mut rig = Rig::with(
        vec![(
            Stock::CongestionPoint(BumpCongestionPoint {
                least_probability: 1.0,
                plateau: 1.0,
                ..BumpCongestionPoint::alfares2012(1, 1)
            }),
            Filter::default(),
        )],
        slow(),
        settings(1, vec![map(), map()]),
        4,
    );
    (0..60).for_each(|n| _ = rig.pass(0, &datagram(1, 2, 1_514, Ecn::Ect0, n)));
    let counts = rig.bump.report().ends[0].counts;
    assert!(counts.own_lost > 0 && counts.own == 2, "{counts:?}");
}

#[test]
fn hostile_frames_pass_or_are_dropped_and_are_accounted_for() {
    let chain = || {
        vec![
            (
                Stock::Red(Red { config: Red::alfares2012(0.1), seed: 1 }),
                Filter { protocol: Some(17), ..Filter::default() },
            ),
            (Stock::ReactionPoint(BumpReactionPoint::alfares2012(1)), Filter::default()),
        ]
    };
    let mut rig = Rig::new(chain(), Rate::gbps(1));
    let mut rng = Rng::from_words(&[9]);
    let templates = [datagram(1, 2, 200, Ecn::Ect1, 0), {
        let mut frame = vec![0; 64];
        qcn::Frame {
            destination: MacAddress(mac(1)),
            source: MacAddress::switch(3),
            priority: 7,
            flow: None,
            message: qcn::Repr::of(1, (3, 4, 5), 0, MacAddress(mac(2))),
        }
        .emit(&mut frame);
        frame
    }];
    for n in 0..200_000 {
        let mut frame = templates[n % 2].clone();
        for _ in 0..rng.below(6) {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] = rng.next_u64() as u8;
        }
        frame.truncate(14 + rng.below(frame.len() as u64 - 13) as usize);
        rig.send(n % 2, &frame);
        rig.bump.round();
        rig.receive(0);
        rig.receive(1);
    }
    let [all, out, consumed, dropped] = rig.bump.report().ledger();
    assert_eq!((all, out + consumed + dropped), (200_000, 200_000));
}

#[test]
fn a_program_that_breaks_the_rules_loses_its_port_and_nothing_else() {
    let mut rig = Rig::new(vec![], Rate::gbps(1));
    let events = rig.bump.events();
    rig.pass(0, &datagram(1, 2, 64, Ecn::Ect0, 0));
    assert!(rig.bump.unplug(1) && !rig.bump.unplug(1));
    rig.send(0, &datagram(1, 2, 64, Ecn::Ect0, 1));
    assert_eq!(rig.bump.round(), 0, "the cable is not plugged in: frames wait");
    rig.ends[1] = Client::open(rig.bump.plug_shm(1, 16).unwrap().memory).unwrap();
    rig.bump.round();
    assert_eq!(rig.receive(1).len(), 1);
    assert!(rig.bump.plug_shm(1, 16).is_err() && rig.bump.plug_shm(7, 16).is_err());
    assert!(events.try_recv().is_err());
    assert_eq!(rig.bump.report().ledger(), [2, 2, 0, 0]);
}

#[test]
fn several_loops_share_the_queues() {
    let all: Vec<_> = (0..2).map(|_| settings(1, vec![map(), map()])).collect();
    let ports = [Port { rate: slow(), buffer_bytes: Some(1 << 20) }; 9];
    let mut bumps = loops(vec![(Stock::Dctcp(Dctcp::default()), Filter::default())], &ports, all);
    let mut rigs: Vec<Rig> = bumps
        .drain(..)
        .map(|mut bump| {
            let mut open = |end| Client::open(bump.plug_shm(end, 64).unwrap().memory).unwrap();
            let ends = [open(0), open(1)];
            Rig { bump, ends }
        })
        .collect();
    for n in 1..=40 {
        let out = rigs[n % 2].pass(0, &datagram(1, 2, 1_514, Ecn::Ect0, 0)).remove(0);
        assert_eq!(Ecn::from_bits(out[15]) == Ecn::Ce, n >= 20, "{n}");
    }
    assert_eq!(rigs[0].bump.report_queues()[2].counts.packets, 40);
    // A new map, and a queue that begins anew.
    let others = Map::new(&[], Some(5));
    rigs[0].bump.set_maps(&[others.clone(), others], &[(2, Port { rate: Rate::gbps(1), buffer_bytes: None })]);
    rigs[0].pass(0, &datagram(1, 2, 64, Ecn::Ect0, 0));
    let queues = rigs[1].bump.report_queues();
    assert_eq!((queues[2].counts.packets, queues[5].counts.packets, queues[2].rate), (0, 1, Rate::gbps(1)));
}

#[test]
fn captures_show_frames_as_they_come_and_as_they_go() {
    let mut rig = Rig::new(vec![(Stock::Dctcp(Dctcp { threshold: 0 }), Filter::default())], slow());
    let ((before, seen), (after, left)) = (tap(2_048), tap(2_048));
    assert!(rig.bump.set_tap(0, before) && rig.bump.set_tap(1, after));
    let frame = datagram(1, 2, 300, Ecn::Ect0, 7);
    let out = rig.pass(0, &frame).remove(0);
    let (came, went) = (seen.next(std::time::Duration::ZERO).unwrap(), left.next(std::time::Duration::ZERO).unwrap());
    assert_eq!((came.direction, &*came.bytes), (Direction::In, &frame[..]));
    assert_eq!((went.direction, &*went.bytes), (Direction::Out, &out[..]));
    assert_eq!((frame[15], out[15]), (2, 3));
    drop((seen, left));
    rig.bump.sweep_taps();
    assert_eq!(rig.pass(0, &frame).len(), 1);
}

/// A port that holds frames for the bump, and takes frames without any offload.
struct Plain {
    frames: Vec<(Vec<u8>, Offload)>,
    room: u32,
    out: std::sync::mpsc::Sender<Vec<u8>>,
    lent: u32,
}

impl sluicenet_dataplane::port::Port for Plain {
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(self.frames.first().map(|(frame, _)| Descriptor { buffer: 0, len: frame.len() as u32 }))
    }
    fn first_bytes(&self, _: u32) -> [u64; 2] {
        [0; 2]
    }
    fn accept(&mut self) {
        self.lent += 1;
    }
    fn read(&self, _: u32, into: &mut [u8]) {
        into.copy_from_slice(&self.frames[0].0[..into.len()]);
    }
    fn offload(&self, _: u32) -> Offload {
        self.frames[0].1
    }
    fn give_back(&mut self, _: u32) {
        self.lent -= 1;
        self.frames.remove(0);
    }
    fn lent(&self) -> u32 {
        self.lent
    }
    fn max_frame(&self) -> u32 {
        1_514
    }
    fn reserve(&mut self, _: u32, _: &Offload) -> Result<bool, BrokenPort> {
        Ok(self.room > 0)
    }
    fn deliver(&mut self, frame: &Delivery<'_>) {
        assert!(frame.offload.is_none());
        self.room -= 1;
        self.out.send(frame.bytes.to_vec()).unwrap();
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.room += 2;
        Ok(())
    }
    fn fall_asleep(&mut self, _: bool) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn wake_up(&mut self) {}
    fn wakers<'a>(&'a self, _: &mut Vec<rustix::event::PollFd<'a>>) {}
    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn a_large_frame_is_marked_once_and_cut_as_there_is_room() {
    let mut large = datagram(1, 2, 54 + 5_000, Ecn::Ect0, 9);
    large[23] = Protocol::TCP.0;
    large[46] = 0x50;
    large[24..26].fill(0);
    let sum = checksum(&large[14..34]);
    large[24..26].copy_from_slice(&sum.to_be_bytes());
    let offload = Offload {
        checksum: Some((34, 16)),
        segmentation: Segmentation::Tcp4,
        segment: 1_000,
        headers: 54,
        verified: false,
    };
    let ports = [Port { rate: slow(), buffer_bytes: None }; 9];
    let application = vec![(Stock::Dctcp(Dctcp { threshold: 0 }), Filter::default())];
    let mut bump = loops(application, &ports, vec![settings(1, vec![map(), map()])]).pop().unwrap();
    let (out, came) = std::sync::mpsc::channel();
    let port = |frames| Plain { frames, room: 2, out: out.clone(), lent: 0 };
    bump.plug(0, Box::new(port(vec![(large, offload), (vec![0; 1_600], Offload::NONE), (vec![0; 9], Offload::NONE)])))
        .unwrap();
    bump.plug(1, Box::new(port(vec![]))).unwrap();
    for _ in 0..5 {
        bump.round();
        let report = bump.report();
        assert!(report.ends[0].counts.held_back <= 2);
    }
    let all: Vec<Vec<u8>> = came.try_iter().collect();
    assert_eq!(all.len(), 5);
    for frame in &all {
        assert_eq!((frame.len(), Ecn::from_bits(frame[15]), checksum(&frame[14..34])), (1_054, Ecn::Ce, 0));
    }
    let report = bump.report();
    let counts = report.ends[1].counts;
    assert_eq!(
        (counts.delivered, counts.segments, report.ledger()),
        (5, 4, [3, 1, 0, 2]),
        "two were too long and too short"
    );
    assert_eq!(bump.report_queues()[2].counts.packets, 1);
}

/// Two bumps that see one link each to the ports behind them.
fn pair(batch: usize) -> (Rig, Rig) {
    let key = |n| Key::new(&[n; 32]);
    let updates = |own: u32, other: u32, tell| {
        let neighbour =
            Neighbour { bump: other, mac: [2, 0, 0, 0, 9, other as u8], end: 1, tell, latency: Duration::from_us(1) };
        let numbers = (100..109).collect();
        Updates::new(key(7), (own, 0, 77), numbers, vec![neighbour], (batch, Duration::from_secs(1)))
    };
    let one = |own: u32, other, tell| {
        let settings = Settings {
            mac: [2, 0, 0, 0, 9, own as u8],
            updates: Some(updates(own, other, tell)),
            ..settings(1, vec![map(), map()])
        };
        Rig::with(vec![], slow(), settings, 64)
    };
    (one(1, 2, true), one(2, 1, false))
}

#[test]
fn a_neighbour_learns_what_was_forwarded_and_lies_are_harmless() {
    let (mut here, mut there) = pair(4);
    let mut updates = Vec::new();
    for n in 0..8 {
        for frame in here.pass(0, &datagram(1, 2, 1_514, Ecn::Ect0, n)).into_iter().chain(here.receive(0)) {
            if bump::is_update(&frame) {
                updates.push(frame);
            }
        }
    }
    // Both ends carry the announcement, to all stations, and two updates went to the neighbour.
    let (told, announced): (Vec<_>, Vec<_>) = updates.into_iter().partition(|frame| frame[0] & 1 == 0);
    assert!(
        announced.len() == 2
            && announced.iter().all(|frame| frame[..6] == [0xFF; 6] && frame[6..12] == [2, 0, 0, 0, 9, 1])
    );
    assert_eq!(told.len(), 2);
    // The port drains some bytes while a slow machine runs the test.
    let has = |rig: &mut Rig, frames: u64| rig.bump.report_queues()[2].bytes.abs_diff(frames * 1_538) < 500;
    // Its own announcement.
    there.bump.round();
    assert_eq!((there.receive(0).len(), there.receive(1).len()), (1, 1));
    assert_eq!(there.pass(1, &told[0]), Vec::<Vec<u8>>::new());
    assert!(has(&mut there, 4));
    // Forged, damaged, truncated, repeated, of a stranger: counted and without effect.
    for bit in 0..told[1].len() * 8 {
        let mut forged = told[1].clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        there.pass(1, &forged);
        there.receive(0);
        there.receive(1);
        assert!(has(&mut there, 4), "bit {bit}");
    }
    for len in 18..told[1].len() {
        there.pass(1, &told[1][..len]);
        there.receive(0);
        assert!(has(&mut there, 4), "{len} bytes");
    }
    there.pass(1, &told[0]);
    assert!(has(&mut there, 4));
    there.pass(1, &told[1]);
    assert!(has(&mut there, 8));
    let report = there.bump.report();
    let updates = report.updates.unwrap();
    assert!(updates.forged > 100 && updates.damaged > 10, "{updates:?}");
    assert_eq!((updates.neighbours[0].0, updates.neighbours[0].1.merged, updates.neighbours[0].1.stale), (1, 2, 1));
    // An update for another station passes like any frame.
    let mut foreign = told[1].clone();
    foreign[5] = 77;
    there.receive(0);
    assert_eq!(there.pass(1, &foreign), [foreign]);
}

#[test]
fn what_a_neighbour_says_about_itself_is_kept_and_passes() {
    let mut rig = Rig::new(vec![], Rate::gbps(1));
    let mut frame = vec![0x01, 0x80, 0xC2, 0, 0, 0x0E, 2, 0, 0, 0, 0, 1, 0x88, 0xCC];
    frame.extend([2, 7, 4, 2, 0, 0, 0, 0, 1, 4, 2, 5, b'7', 6, 2, 0, 120, 0, 0]);
    frame.resize(60, 0);
    assert_eq!(rig.pass(1, &frame), [frame.clone()]);
    let report = rig.bump.report();
    assert_eq!((&report.ends[1].lldp.0, report.ends[0].lldp.0.len()), (&frame, 0));
}

#[test]
fn guests_are_the_ends_of_a_link() {
    let folder = std::env::temp_dir().join(format!("sluicenet-bump-guests-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let paths = ["a", "b"].map(|name| folder.join(name));
    let ports = [Port { rate: slow(), buffer_bytes: None }; 9];
    let application = vec![(Stock::Dctcp(Dctcp::default()), Filter::default())];
    let mut bump = loops(application, &ports, vec![settings(1, vec![map(), map()])]).pop().unwrap();
    for (end, path) in paths.iter().enumerate() {
        bump.plug(end, Box::new(vhost::Port::open(vhost::Socket::Listen(path.clone())).unwrap())).unwrap();
    }
    let connecting = std::thread::spawn(move || {
        let config = DriverConfig { queue_size: 32, ..DriverConfig::default() };
        paths.map(|path| Driver::connect(&path, config).unwrap())
    });
    while !connecting.is_finished() {
        bump.round();
        std::thread::yield_now();
    }
    let mut guests = connecting.join().unwrap();
    let (mut sent, mut came, mut marked) = (0u8, 0u8, 0);
    let mut into = [0; 2048];
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while came < 200 {
        assert!(std::time::Instant::now() < until, "{came} of {sent}");
        if sent < 200 && guests[0].send(&datagram(1, 2, 1_000, Ecn::Ect0, sent)).unwrap() {
            sent += 1;
        }
        guests[0].publish_silently();
        bump.round();
        while let Some(len) = guests[1].receive(&mut into).unwrap() {
            assert_eq!((len, into[len - 1]), (1_000, came));
            marked += u32::from(Ecn::from_bits(into[15]) == Ecn::Ce);
            came += 1;
        }
        guests[1].publish_silently();
    }
    // 30 packets of 1,024 B on the wire are more than K.
    assert_eq!(marked, 200 - 29);
    let [all, out, ..] = bump.report().ledger();
    assert_eq!((all, out), (200, 200));
    drop(bump);
    std::fs::remove_dir_all(&folder).unwrap();
}
