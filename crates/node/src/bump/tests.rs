use super::*;
use crate::packet::Address;
use sluicenet_proto::cee::qcn;
use sluicenet_proto::frame::{Pause, PrioritySet};
use sluicenet_proto::netbump::{BumpCongestionPoint, BumpReactionPoint, Dctcp, Filter, Link, Stock};
use sluicenet_proto::units::Rate;
use sluicenet_wire::ipv4::Ecn;

struct Idle(bool);

impl Wires for Idle {
    fn idle(&self, _port: PortId) -> bool {
        self.0
    }
}

/// A bump with one link: from port 0 to port 1 there are hosts 0 to 9 at ports of 1 Gb/s.
struct Rig {
    bump: Bump,
    pool: Pool<Packet>,
    woke: PortSet,
}

fn config(app: Stock) -> Config {
    let towards: Vec<(u64, QueueId)> = (0..10).map(|host| (host, host as QueueId)).collect();
    Config {
        maps: [Map::new(&towards, None), Map::new(&[], None)].into(),
        ports: alloc::vec![netbump::Port { rate: Rate::gbps(1), buffer_bytes: None }; 10],
        port_numbers: (100..110).collect(),
        program: Program::Chain(Chain([Link { app, filter: Filter::default() }].into())),
        neighbours: Vec::new(),
        notification_priority: 7,
        framing: Framing::ETHERNET,
    }
}

impl Rig {
    fn new(config: Config) -> Rig {
        Rig { bump: Bump::new(config), pool: Pool::default(), woke: PortSet::default() }
    }

    fn receive(&mut self, now: Instant, port: PortId, packet: &Packet, idle: bool) -> Option<(PortId, Packet)> {
        let at = self.pool.insert(packet);
        let to = self.bump.receive(now, port, at, &mut self.pool, &Idle(idle), &mut self.woke)?;
        let packet = *self.pool.frame(at);
        self.pool.release(at);
        Some((to, packet))
    }

    fn sent(&mut self, port: PortId) -> Option<Packet> {
        let at = self.bump.poll_transmit(Instant::ZERO, port, &mut self.pool, &mut self.woke)?;
        let packet = *self.pool.frame(at);
        self.pool.release(at);
        Some(packet)
    }

    /// Every frame is accounted for.
    fn check(&self) {
        let l = self.bump.ledger();
        assert_eq!(l.frames_in + l.emitted, l.frames_out + l.consumed + l.queued + self.bump.drops().total_frames());
        assert_eq!(l.pauses_in, l.pauses_out + l.pauses_queued);
        assert_eq!(u64::from(self.pool.in_use()), l.queued + l.pauses_queued);
    }
}

fn packet(from: u32, to: u32) -> Packet {
    let flow = FlowKey { src: Address::new(from, 0), dst: Address::new(to, 0), sport: 1, dport: 2 };
    let mut packet = Packet::udp(flow, 0, 1_472, 0, Framing::ETHERNET);
    packet.set_ecn(Ecn::Ect0);
    packet
}

#[test]
fn a_frame_leaves_by_the_other_end_marked_by_the_queue_behind_it() {
    let mut rig = Rig::new(config(Stock::Dctcp(Dctcp::default())));
    let mut marked = 0;
    for _ in 0..30 {
        let (to, packet) = rig.receive(Instant::ZERO, 0, &packet(20, 3), true).unwrap();
        assert_eq!(to, 1);
        marked += u32::from(packet.ecn() == Ecn::Ce);
    }
    // The twentieth packet exceeds K.
    assert_eq!(
        (marked, rig.bump.estimate_qlen(Instant::ZERO, 3), rig.bump.estimate_qlen(Instant::ZERO, 4)),
        (11, 30 * 1_538, 0)
    );
    // The other direction leads to nobody on the list.
    assert_eq!(rig.receive(Instant::ZERO, 1, &packet(3, 20), true).unwrap().0, 0);
    assert_eq!((rig.bump.ledger().unmapped, rig.bump.counts(3).marked), (1, 11));
    rig.check();
}

#[test]
fn frames_wait_only_for_a_wire_that_is_not_idle_and_stay_in_order() {
    let mut rig = Rig::new(config(Stock::Dctcp(Dctcp::default())));
    assert!(rig.receive(Instant::ZERO, 0, &packet(20, 3), false).is_none());
    // The wire is idle, but another frame is first.
    assert!(rig.receive(Instant::ZERO, 0, &packet(21, 3), true).is_none());
    let pause = Packet::from_pause(Pause { classes: PrioritySet(1), quanta: [1; 8] });
    assert!(rig.receive(Instant::ZERO, 0, &pause, false).is_none());
    rig.check();
    let order: Vec<(bool, u32)> = core::iter::from_fn(|| rig.sent(1))
        .map(|p| (p.is_pause(), if p.is_pause() { 0 } else { p.source() }))
        .collect();
    assert_eq!(order, [(true, 0), (false, 20), (false, 21)]);
    rig.check();
}

#[test]
fn pauses_pass_and_damaged_frames_do_not() {
    let mut rig = Rig::new(config(Stock::Dctcp(Dctcp::default())));
    let pause = Packet::from_pause(Pause { classes: PrioritySet(1), quanta: [1; 8] });
    assert_eq!(rig.receive(Instant::ZERO, 1, &pause, true).map(|(to, _)| to), Some(0));
    let mut damaged = packet(20, 3);
    damaged.corrupt();
    assert!(rig.receive(Instant::ZERO, 0, &damaged, true).is_none());
    assert_eq!(rig.bump.drops().frames(DropReason::BadCrc), 1);
    rig.check();
}

#[test]
fn a_congestion_point_notifies_senders_and_a_reaction_point_limits_them() {
    let mut point = Rig::new(config(Stock::CongestionPoint(BumpCongestionPoint::alfares2012(1 << 32, 1))));
    let mut reaction = Rig::new(config(Stock::ReactionPoint(BumpReactionPoint::alfares2012(1))));
    let mut notifications = Vec::new();
    for n in 0..200 {
        point.receive(Instant(n), 0, &packet(20, 3), true);
        notifications.extend(core::iter::from_fn(|| point.sent(0)));
        while point.sent(1).is_some() {}
    }
    point.check();
    let first = notifications[0];
    assert_eq!((first.destination(), first.source(), first.priority()), (20, 3, 7));
    assert_eq!(first.as_notification().unwrap().cpid, (1 << 32) + 3);
    // The reaction point is nearer to the sender: the notification comes to its far end and goes no further.
    for notification in &notifications {
        assert!(reaction.receive(Instant::ZERO, 1, notification, true).is_none());
    }
    assert_eq!(reaction.bump.ledger().consumed, notifications.len() as u64);
    let passed = (0..100).filter(|_| reaction.receive(Instant::ZERO, 0, &packet(20, 3), true).is_some()).count();
    assert!(passed < 15 && reaction.bump.drops().frames(DropReason::Policed) == 100 - passed as u64, "{passed}");
    // A flow that nobody complained about is not limited.
    assert!((0..100).all(|_| reaction.receive(Instant::ZERO, 0, &packet(21, 3), true).is_some()));
    reaction.check();
}

/// Marks every frame, copies it back, and notifies its sender of each tenth; its choices need the time.
#[derive(Debug)]
struct Own(u32);

impl Extension for Own {
    fn init(&mut self, _queue: QueueId, _port: netbump::Port) {}
    fn classify(&mut self, now: Instant, _: PortId, _: &Packet, mapped: Option<QueueId>) -> Option<QueueId> {
        mapped.filter(|_| now > Instant::ZERO)
    }
    fn process(
        &mut self,
        _now: Instant,
        from: PortId,
        frame: &mut Packet,
        _queue: (QueueId, &mut VirtualQueue),
        emitted: &mut Vec<(PortId, Packet)>,
    ) -> Verdict {
        emitted.push((from, *frame));
        if self.0.is_multiple_of(10) {
            let notification = qcn::Notification { feedback: 1, offset: 0, delta: 0 };
            emitted.push((from, frame.notification(&qcn::Message { cpid: 1, notification, priority: 0 }, 7)));
        }
        self.0 += 1;
        frame.set_ecn(Ecn::Ce);
        Verdict::Forward
    }
    fn estimate_qlen(&self, _now: Instant, (_, queue): (QueueId, &VirtualQueue)) -> u64 {
        queue.bytes(Instant::ZERO)
    }
    fn forward(&mut self, now: Instant, from: PortId, _: &Packet) -> PortId {
        from ^ PortId::from(now > Instant::ZERO)
    }
    fn ignored(&self) -> u64 {
        0
    }
}

#[test]
fn a_program_is_told_the_time_and_its_marks_and_notifications_are_counted() {
    let own = Program::Extension(Box::new(Own(0)));
    let mut rig = Rig::new(Config { program: own, ..config(Stock::Dctcp(Dctcp::default())) });
    for n in 0..30 {
        let mut frame = packet(20, 3);
        // Every third one was marked before.
        if n % 3 == 0 {
            frame.set_ecn(Ecn::Ce);
        }
        rig.receive(Instant(1), 0, &frame, false);
        assert!(core::iter::from_fn(|| rig.sent(1)).count() == 1);
        while rig.sent(0).is_some() {}
    }
    let counts = rig.bump.counts(3);
    assert_eq!((counts.packets, counts.marked, counts.notices, rig.bump.ledger().emitted), (30, 20, 3, 33));
    rig.check();
}

#[test]
fn neighbours_tell_each_other_what_they_forwarded() {
    let neighbour = |reports: bool| Neighbour {
        reporter: reports.then(|| Reporter::new(4, Duration::from_us(20))),
        receiver: Receiver::new(Duration::from_us(1), AGE_MAX),
    };
    let with = |reports| Config { neighbours: [neighbour(reports)].into(), ..config(Stock::Dctcp(Dctcp::default())) };
    let (mut sender, mut receiver) = (Rig::new(with(true)), Rig::new(with(false)));
    let start = Instant(1_000_000_000);
    for _ in 0..6 {
        sender.receive(start, 0, &packet(20, 3), true);
    }
    let full = sender.sent(2).unwrap();
    assert!(sender.sent(2).is_none());
    // The other two are due after 20 us.
    let due = start + Duration::from_us(20);
    assert_eq!(sender.bump.poll_timeout(), due);
    sender.bump.handle_timeout(due, &mut sender.pool, &mut sender.woke);
    let rest = sender.sent(2).unwrap();
    sender.check();
    let arrival = due + Duration::from_us(1);
    receiver.receive(arrival, 2, &full, true);
    receiver.receive(arrival, 2, &rest, true);
    // All six came at the start: 21 us have drained 2,625 B since.
    assert_eq!(receiver.bump.estimate_qlen(arrival, 3), 6 * 1_538 - 2_625);
    assert_eq!(sender.bump.estimate_qlen(arrival, 3), 6 * 1_538 - 2_625);
    assert_eq!(receiver.bump.update_counts().next().unwrap().merged, 2);
    receiver.check();
}
