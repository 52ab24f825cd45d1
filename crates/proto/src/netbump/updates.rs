//! Distributed NetBump: bumps that see parts of the traffic to one switch tell each other what they have forwarded (Al-Fares
//! 2012, 5.2.2).
//!
//! Updates carry the sizes of packets and their ports, never estimates, so that nothing counts twice. The receiver enters the
//! packets into its own virtual queues, at the time when they were forwarded.

use super::QueueId;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use sluicenet_wire::bump::{Forwarded, PACKETS_MAX, Repr, Update};

/// The sender's half: collects forwarded packets until an update is due.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Packets of an update: 1 to [`PACKETS_MAX`].
    batch: usize,
    /// The longest time that a packet waits for its update.
    interval: Duration,
    packets: Vec<Forwarded>,
    first: Instant,
    last: Instant,
    sequence: u32,
    bytes: u32,
}

/// The fields of an update, and its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Its sequence number.
    pub sequence: u32,
    /// Bytes in all updates before it, modulo 2^32.
    pub bytes_before: u32,
    /// Time since its last packet.
    pub wait: Duration,
    /// Time from its first packet to its last.
    pub span: Duration,
}

impl From<&Repr> for Sequence {
    fn from(repr: &Repr) -> Sequence {
        let (wait, span) = (Duration::from_ns(repr.wait_ns.into()), Duration::from_ns(repr.span_ns.into()));
        Sequence { sequence: repr.sequence, bytes_before: repr.bytes_before, wait, span }
    }
}

impl Receiver {
    /// [Merges](Receiver::merge) an update in a frame, whose tag has been checked.
    pub fn merge_frame(&mut self, now: Instant, update: &Update<'_>, enter: impl FnMut(u16, Instant, u64) -> bool) {
        self.merge(now, update.repr.incarnation, (&update.repr).into(), update.packets(), enter);
    }
}

impl Reporter {
    /// A reporter that sends an update when it has `batch` packets, and at the latest after `interval`.
    pub fn new(batch: usize, interval: Duration) -> Reporter {
        let batch = batch.clamp(1, PACKETS_MAX);
        let (first, last) = (Instant::ZERO, Instant::ZERO);
        Reporter { batch, interval, packets: Vec::with_capacity(batch), first, last, sequence: 0, bytes: 0 }
    }

    /// A packet was forwarded to a port. An update that is due must have been taken before.
    pub fn on_forward(&mut self, now: Instant, wire_bytes: u64, port: u16) {
        if self.packets.is_empty() {
            self.first = now;
        }
        self.last = now;
        let wire_bytes = u16::try_from(wire_bytes).unwrap_or(u16::MAX);
        if self.packets.len() < self.batch {
            self.packets.push(Forwarded { wire_bytes, port });
        }
    }

    /// When the next update is due: at once when the batch is full; [`Instant::MAX`] if there is nothing to report.
    pub fn poll_timeout(&self) -> Instant {
        match self.packets.len() {
            0 => Instant::MAX,
            n if n >= self.batch => Instant::ZERO,
            _ => self.first.saturating_add(self.interval),
        }
    }

    /// The next update, if it is due. `emit` takes the packets before they are forgotten.
    pub fn poll_transmit(&mut self, now: Instant, emit: impl FnOnce(Sequence, &[Forwarded])) -> bool {
        if self.poll_timeout() > now {
            return false;
        }
        let (wait, span) = (now.since(self.last), self.last.since(self.first));
        emit(Sequence { sequence: self.sequence, bytes_before: self.bytes, wait, span }, &self.packets);
        self.sequence = self.sequence.wrapping_add(1);
        let sum: u32 = self.packets.iter().map(|packet| u32::from(packet.wire_bytes)).sum();
        self.bytes = self.bytes.wrapping_add(sum);
        self.packets.clear();
        true
    }
}

/// The counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Updates that were merged.
    pub merged: u64,
    /// Updates that never came, as the numbers of later ones show.
    pub lost: u64,
    /// Bytes in lost updates that were estimated.
    pub estimated_bytes: u64,
    /// Updates that had come before, or came after a later one or after one of a later start.
    pub stale: u64,
    /// Packets for ports that this bump does not watch.
    pub unknown_ports: u64,
}

/// The receiver's half, for one neighbour.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Time from the departure of an update to its arrival.
    latency: Duration,
    /// The most time that is believed to have passed since a packet.
    age_max: Duration,
    /// The sender's incarnation, its next sequence number, and the bytes before it.
    expected: Option<(u32, u32, u32)>,
    counts: Counts,
}

/// The most that a lost update is made up for: a neighbour that lies about its bytes can claim no more at once.
const ESTIMATE_MAX: u32 = 4 * 65_536;

impl Receiver {
    /// A receiver of updates that take `latency`, and of packets that waited at most `age_max` for their update.
    pub fn new(latency: Duration, age_max: Duration) -> Receiver {
        Receiver { latency, age_max, expected: None, counts: Counts::default() }
    }

    /// The counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Merges an update whose tag has been checked: `enter` enters a packet of so many bytes into the virtual queue of a port,
    /// at the time when it was forwarded, and returns whether there is such a queue.
    ///
    /// The bytes of lost updates are known from the next one, but not their ports: they are divided like the bytes of that
    /// one. The error of this lasts until the queue is empty or full.
    pub fn merge<I>(
        &mut self,
        now: Instant,
        incarnation: u32,
        fields: Sequence,
        packets: I,
        mut enter: impl FnMut(u16, Instant, u64) -> bool,
    ) where
        I: ExactSizeIterator<Item = Forwarded> + Clone,
    {
        let mut missing = 0;
        let known = self.expected.map(|(known, ..)| incarnation.wrapping_sub(known));
        // An update from before the sender's last start has come late, or somebody has sent it again.
        if known.is_some_and(|later| later >= 1 << 31) {
            self.counts.stale += 1;
            return;
        }
        if let Some((_, sequence, bytes)) = self.expected.filter(|_| known == Some(0)) {
            let ahead = fields.sequence.wrapping_sub(sequence);
            if ahead >= 1 << 31 {
                self.counts.stale += 1;
                return;
            }
            self.counts.lost += u64::from(ahead);
            if ahead > 0 {
                missing = fields.bytes_before.wrapping_sub(bytes).min(ESTIMATE_MAX);
            }
        }
        let sum: u32 = packets.clone().map(|packet| u32::from(packet.wire_bytes)).sum();
        self.expected = Some((incarnation, fields.sequence.wrapping_add(1), fields.bytes_before.wrapping_add(sum)));
        self.counts.merged += 1;
        let (wait, span) = (fields.wait.min(self.age_max), fields.span.min(self.age_max));
        let newest = Instant(now.0.saturating_sub((self.latency + wait).0));
        let count = packets.len() as u64;
        for (i, packet) in (0..count).zip(packets) {
            let before_newest = if count > 1 { span.0 / (count - 1) * (count - 1 - i) } else { 0 };
            let at = Instant(newest.0.saturating_sub(before_newest));
            let own = u64::from(packet.wire_bytes);
            let share = if sum > 0 { own * u64::from(missing) / u64::from(sum) } else { 0 };
            if enter(packet.port, at, own + share) {
                self.counts.estimated_bytes += share;
            } else {
                self.counts.unknown_ports += 1;
            }
        }
    }
}

/// The virtual queues of neighbours' ports, by the ports' numbers.
#[derive(Clone, Debug, Default)]
pub struct Ports(Vec<(u16, QueueId)>);

impl Ports {
    /// The ports with these virtual queues.
    pub fn new(mut ports: Vec<(u16, QueueId)>) -> Ports {
        ports.sort_unstable();
        Ports(ports)
    }

    /// The virtual queue of a port.
    pub fn queue_of(&self, port: u16) -> Option<QueueId> {
        self.0.binary_search_by_key(&port, |entry| entry.0).ok().map(|at| self.0[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::VirtualQueue;
    use super::*;
    use crate::rng::Rng;
    use crate::units::Rate;
    use sluicenet_wire::ethernet::MacAddress;

    const START: Instant = Instant(1_000_000_000_000);

    /// The next update of a reporter as a frame.
    fn update(reporter: &mut Reporter, now: Instant) -> Option<Vec<u8>> {
        let mut bytes = None;
        reporter.poll_transmit(now, |s, packets| {
            let repr = Repr {
                destination: MacAddress::local(2),
                source: MacAddress::local(1),
                bump: 1,
                incarnation: 9,
                sequence: s.sequence,
                bytes_before: s.bytes_before,
                wait_ns: (s.wait.0 / 1_000) as u32,
                span_ns: (s.span.0 / 1_000) as u32,
            };
            let mut frame = alloc::vec![0; Repr::emitted_len(packets.len())];
            repr.emit(packets, &mut frame, |_| [0; 16]);
            bytes = Some(frame);
        });
        bytes
    }

    /// Merges an update; port 5 has a virtual queue.
    fn merge(receiver: &mut Receiver, now: Instant, frame: &[u8], queue: &mut VirtualQueue) {
        receiver.merge_frame(now, &Update::parse(frame).unwrap(), |port, at, bytes| {
            if port == 5 {
                queue.arrive_late(now, at, bytes);
            }
            port == 5
        });
    }

    #[test]
    fn an_update_is_due_when_it_is_full_or_has_waited() {
        let mut reporter = Reporter::new(3, Duration::from_us(10));
        assert_eq!((reporter.poll_timeout(), update(&mut reporter, START)), (Instant::MAX, None));
        reporter.on_forward(START, 1_538, 5);
        assert_eq!(reporter.poll_timeout(), START + Duration::from_us(10));
        reporter.on_forward(START + Duration::from_us(1), 84, 6);
        assert_eq!(update(&mut reporter, START + Duration::from_us(9)), None);
        let frame = update(&mut reporter, START + Duration::from_us(10)).unwrap();
        let read = Update::parse(&frame).unwrap();
        let packets = [Forwarded { wire_bytes: 1_538, port: 5 }, Forwarded { wire_bytes: 84, port: 6 }];
        assert_eq!(read.packets().collect::<Vec<_>>(), packets);
        assert_eq!((read.repr.sequence, read.repr.wait_ns, read.repr.span_ns), (0, 9_000, 1_000));
        (0..3).for_each(|_| reporter.on_forward(START, 100, 5));
        let frame = update(&mut reporter, START).unwrap();
        let read = Update::parse(&frame).unwrap();
        assert_eq!((read.repr.sequence, read.repr.bytes_before), (1, 1_622));
    }

    #[test]
    fn packets_are_entered_at_the_time_they_were_forwarded() {
        let mut reporter = Reporter::new(3, Duration::from_us(50));
        (0..3).for_each(|i| reporter.on_forward(START + Duration::from_us(10 * i), 1_250, 5));
        let frame = update(&mut reporter, START + Duration::from_us(22)).unwrap();
        let mut receiver = Receiver::new(Duration::from_us(5), Duration::from_ms(1));
        let mut at = Vec::new();
        receiver.merge_frame(START + Duration::from_us(27), &Update::parse(&frame).unwrap(), |port, when, bytes| {
            at.push((when.since(START).as_us(), bytes));
            port == 5
        });
        assert_eq!(at, [(0, 1_250), (10, 1_250), (20, 1_250)]);
        assert_eq!(receiver.counts().unknown_ports, 0);
    }

    #[test]
    fn repeated_and_late_updates_count_once() {
        let mut reporter = Reporter::new(1, Duration::ZERO);
        let mut frame = || {
            reporter.on_forward(START, 1_000, 5);
            update(&mut reporter, START).unwrap()
        };
        let frames = [frame(), frame(), frame()];
        let mut receiver = Receiver::new(Duration::ZERO, Duration::from_ms(1));
        let mut queue = VirtualQueue::new(Rate::gbps(1), None);
        for which in [0, 0, 1, 0, 2, 1] {
            merge(&mut receiver, START, &frames[which], &mut queue);
        }
        assert_eq!(queue.bytes(START), 3_000);
        assert_eq!(*receiver.counts(), Counts { merged: 3, stale: 3, ..Counts::default() });
    }

    #[test]
    fn a_lost_update_is_made_up_for_by_the_next() {
        let mut reporter = Reporter::new(2, Duration::ZERO);
        let mut frame = |port| {
            (0..2).for_each(|_| reporter.on_forward(START, 1_000, port));
            update(&mut reporter, START).unwrap()
        };
        let (first, _lost, third) = (frame(5), frame(5), frame(5));
        let mut receiver = Receiver::new(Duration::ZERO, Duration::from_ms(1));
        let mut queue = VirtualQueue::new(Rate::gbps(1), None);
        merge(&mut receiver, START, &first, &mut queue);
        merge(&mut receiver, START, &third, &mut queue);
        assert_eq!(queue.bytes(START), 6_000);
        assert_eq!(*receiver.counts(), Counts { merged: 2, lost: 1, estimated_bytes: 2_000, ..Counts::default() });
        // After a restart its numbers begin anew: nothing is missing.
        let mut restarted = third.clone();
        restarted[27] = 10;
        restarted[31] = 0;
        merge(&mut receiver, START, &restarted, &mut queue);
        assert_eq!(receiver.counts().lost, 1);
        // What it said before that counts no more.
        merge(&mut receiver, START, &third, &mut queue);
        assert_eq!((receiver.counts().stale, queue.bytes(START)), (1, 8_000));
    }

    #[test]
    fn a_neighbour_that_lies_claims_a_bounded_number_of_bytes_and_no_time_beyond_the_limit() {
        let mut reporter = Reporter::new(1, Duration::ZERO);
        reporter.on_forward(START, 1_000, 5);
        let first = update(&mut reporter, START).unwrap();
        reporter.on_forward(START, 1_000, 5);
        let mut second = update(&mut reporter, START).unwrap();
        second[28..32].copy_from_slice(&1_000u32.to_be_bytes());
        second[32..40].fill(0xFF);
        let mut receiver = Receiver::new(Duration::ZERO, Duration::from_us(100));
        let mut queue = VirtualQueue::new(Rate::gbps(1), None);
        merge(&mut receiver, START, &first, &mut queue);
        receiver.merge_frame(START, &Update::parse(&second).unwrap(), |_, at, bytes| {
            assert_eq!((START.since(at), bytes), (Duration::from_us(100), 1_000 + u64::from(ESTIMATE_MAX)));
            true
        });
    }

    #[test]
    fn with_lost_and_late_updates_the_estimate_stays_close_and_meets_the_truth_when_the_queue_is_empty() {
        // A port of 1 Gb/s with two links at a load of 0.9; one link is seen, the other reported in batches of eight that take
        // 25 us, and one update in twenty is lost.
        let mut rng = Rng::from_words(&[11]);
        let (mut truth, mut estimate) =
            (VirtualQueue::new(Rate::gbps(1), None), VirtualQueue::new(Rate::gbps(1), None));
        let latency = Duration::from_us(25);
        let mut reporter = Reporter::new(8, Duration::from_us(20));
        let mut receiver = Receiver::new(latency, Duration::from_ms(1));
        let mut under_way: Vec<(Instant, Vec<u8>)> = Vec::new();
        let (mut now, mut close, mut samples) = (START, 0, 0);
        for _ in 0..200_000 {
            now += Duration::from_ns(rng.below(2 * 8 * 811 * 10 / 9));
            let len = 84 + rng.below(1_455);
            if let Some(frame) = update(&mut reporter, now)
                && rng.below(20) != 0
            {
                under_way.push((now + latency, frame));
            }
            while under_way.first().is_some_and(|u| u.0 <= now) {
                let (at, frame) = under_way.remove(0);
                merge(&mut receiver, at, &frame, &mut estimate);
            }
            truth.arrive(now, len);
            if rng.below(2) == 0 {
                estimate.arrive(now, len)
            } else {
                reporter.on_forward(now, len, 5)
            }
            samples += 1;
            close += u32::from(truth.bytes(now).abs_diff(estimate.bytes(now)) <= 3 * 1_538);
        }
        let share = f64::from(close) / f64::from(samples);
        assert!(share > 0.8 && receiver.counts().lost > 100, "{share} {:?}", receiver.counts());
        // Both queues run empty.
        now += Duration::from_ms(10);
        assert_eq!((truth.bytes(now), estimate.bytes(now)), (0, 0));
    }

    #[test]
    fn ports_have_their_queues() {
        let ports = Ports::new(alloc::vec![(9, 1), (3, 0)]);
        assert_eq!([3, 9, 4].map(|port| ports.queue_of(port)), [Some(0), Some(1), None]);
    }
}
