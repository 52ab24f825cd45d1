//! Updates between bumps, in band: what this bump forwarded, for bumps that see other links to the same ports, and the reverse
//! (Al-Fares 2012, 5.2.2, "Distributed NetBump").
//!
//! A bump has an address of its own. It announces the address with an update without packets to all stations, so that switches
//! know where updates for it go.

use super::{Bump, Frame, Queues};
use crate::port::Descriptor;
use sluicenet_proto::netbump::{App, Ports, QueueId, Receiver, Reporter, Sequence, UpdateCounts, Verdict};
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::bump::{Forwarded, LEN_MAX, Repr, Update};
use sluicenet_wire::ethernet::MacAddress;

/// How often a bump announces its address: well within the ageing time of switches, 300 s.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(10);
/// The longest age of a packet that an update may claim.
const AGE_MAX: Duration = Duration::from_ms(10);
/// Loops of a bump, which report separately.
pub const LOOPS_MAX: u32 = 64;

/// Another bump.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Its number.
    pub bump: u32,
    /// Its address.
    pub mac: [u8; 6],
    /// The end by which updates to it leave.
    pub end: usize,
    /// Whether it is told what this bump forwards.
    pub tell: bool,
    /// The time that its updates take.
    pub latency: Duration,
}

/// The exchange of updates of a loop.
#[derive(Clone, Debug)]
pub struct Updates {
    key: Key,
    /// The number of this loop: that of the bump times [`LOOPS_MAX`], and the loop's.
    number: u32,
    incarnation: u32,
    /// The number of each virtual queue's port in updates, and the queues by these numbers.
    numbers: Vec<u16>,
    queues: Ports,
    to: Vec<(Neighbour, Reporter)>,
    from: Vec<(u32, Receiver)>,
    announce_at: Instant,
    report: UpdateReport,
}

/// The counters of updates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateReport {
    /// Updates that were sent, if there was room for them.
    pub sent: u64,
    /// Updates with a wrong tag.
    pub forged: u64,
    /// Frames that claim to be updates and cannot be read.
    pub damaged: u64,
    /// Updates of bumps that are no neighbours.
    pub strangers: u64,
    /// The counters of each neighbour.
    pub neighbours: Vec<(u32, UpdateCounts)>,
}

impl Updates {
    /// The exchange of loop `own` of bump `bump`, in this `incarnation`. An update leaves with `batch` packets or after
    /// `interval`. `numbers` are those of the virtual queues' ports.
    pub fn new(
        key: Key,
        (bump, own, incarnation): (u32, u32, u32),
        numbers: Vec<u16>,
        neighbours: Vec<Neighbour>,
        (batch, interval): (usize, Duration),
    ) -> Updates {
        let queues = Ports::new(numbers.iter().copied().zip(0..).collect());
        let from = neighbours
            .iter()
            .flat_map(|n| (0..LOOPS_MAX).map(|k| (n.bump * LOOPS_MAX + k, Receiver::new(n.latency, AGE_MAX))));
        Updates {
            key,
            number: bump * LOOPS_MAX + own % LOOPS_MAX,
            incarnation,
            numbers,
            queues,
            from: from.collect(),
            to: neighbours.into_iter().filter(|n| n.tell).map(|n| (n, Reporter::new(batch, interval))).collect(),
            announce_at: Instant::ZERO,
            report: UpdateReport::default(),
        }
    }

    /// A packet was forwarded.
    #[inline]
    pub(super) fn on_forward(&mut self, now: Instant, wire_bytes: u64, queue: QueueId) {
        let Some(&number) = self.numbers.get(usize::from(queue)) else { return };
        self.to.iter_mut().for_each(|(_, reporter)| reporter.on_forward(now, wire_bytes, number));
    }

    /// When the next update is due.
    pub(super) fn poll_timeout(&self) -> Instant {
        let due = self.to.iter().map(|(_, reporter)| reporter.poll_timeout()).min();
        due.unwrap_or(Instant::MAX).min(self.announce_at)
    }

    pub(super) fn report(&self) -> UpdateReport {
        let counts = |(number, receiver): &(u32, Receiver)| (*number / LOOPS_MAX, *receiver.counts());
        let mut neighbours: Vec<(u32, UpdateCounts)> = Vec::new();
        for (bump, more) in self.from.iter().map(counts) {
            match neighbours.last_mut().filter(|(last, _)| *last == bump) {
                None => neighbours.push((bump, more)),
                Some((_, sum)) => {
                    sum.merged += more.merged;
                    sum.lost += more.lost;
                    sum.estimated_bytes += more.estimated_bytes;
                    sum.stale += more.stale;
                    sum.unknown_ports += more.unknown_ports;
                }
            }
        }
        UpdateReport { neighbours, ..self.report.clone() }
    }

    /// The next update that is due, into `bytes`: its length, and the end by which it leaves, or all ends.
    fn poll_transmit(&mut self, now: Instant, mac: [u8; 6], bytes: &mut [u8]) -> Option<(usize, Option<usize>)> {
        let Updates { key, number, incarnation, to, announce_at, report, .. } = self;
        let mut emit = |destination: [u8; 6], fields: Sequence, packets: &[Forwarded]| {
            let repr = Repr {
                destination: MacAddress(destination),
                source: MacAddress(mac),
                bump: *number,
                incarnation: *incarnation,
                sequence: fields.sequence,
                bytes_before: fields.bytes_before,
                wait_ns: (fields.wait.0 / 1_000).min(u32::MAX.into()) as u32,
                span_ns: (fields.span.0 / 1_000).min(u32::MAX.into()) as u32,
            };
            repr.emit(packets, bytes, |signed| key.tag(signed));
            Repr::emitted_len(packets.len())
        };
        for (neighbour, reporter) in to {
            let mut len = 0;
            if reporter.poll_transmit(now, |fields, packets| len = emit(neighbour.mac, fields, packets)) {
                report.sent += 1;
                return Some((len, Some(neighbour.end)));
            }
        }
        if *announce_at <= now {
            *announce_at = now.saturating_add(ANNOUNCE_EVERY);
            let nothing = Sequence { sequence: 0, bytes_before: 0, wait: Duration::ZERO, span: Duration::ZERO };
            return Some((emit(MacAddress::BROADCAST.0, nothing, &[]), None));
        }
        None
    }

    /// Merges an update; `enter` as in [`Receiver::merge_frame`], with the virtual queue of the port.
    pub(super) fn receive(&mut self, now: Instant, bytes: &[u8], mut enter: impl FnMut(QueueId, Instant, u64)) {
        let Updates { key, queues, from, report, .. } = self;
        let Ok(update) = Update::parse(bytes) else {
            report.damaged += 1;
            return;
        };
        // The tag first: a forged number tells nothing.
        if !key.verifies(update.signed, update.tag) {
            report.forged += 1;
            return;
        }
        let Some((_, receiver)) = from.iter_mut().find(|(number, _)| *number == update.repr.bump) else {
            report.strangers += 1;
            return;
        };
        receiver.merge_frame(now, &update, |port, at, wire_bytes| match queues.queue_of(port) {
            Some(queue) => {
                enter(queue, at, wire_bytes);
                true
            }
            None => false,
        });
    }
}

impl<A: App<Frame>, T: Queues<A::State>> Bump<A, T> {
    /// Sends the updates that are due, and the announcement.
    #[cold]
    pub(super) fn send_updates(&mut self) {
        let now = self.now();
        let mut bytes = [0; LEN_MAX];
        loop {
            let Some(updates) = self.updates.as_mut().filter(|updates| updates.poll_timeout() <= now) else { return };
            match updates.poll_transmit(now, self.mac, &mut bytes) {
                None => return,
                Some((len, Some(end))) if end < self.ends.len() => self.send_own(end, &bytes[..len]),
                Some((len, _)) => (0..self.ends.len()).for_each(|end| self.send_own(end, &bytes[..len])),
            }
        }
    }

    /// Takes an update for this bump.
    #[cold]
    pub(super) fn receive_update(&mut self, now: Instant, from: usize, shown: Descriptor) {
        let Bump { updates, queues, ends, scratch, .. } = self;
        if let (Some(updates), Some(port)) = (updates, &ends[from].port) {
            let bytes = &mut scratch[..shown.len as usize];
            port.get().read(shown.buffer, bytes);
            updates.receive(now, bytes, |queue, at, wire_bytes| {
                let mut slot = queues.slot(queue);
                slot.queue.arrive_late(now, at, wire_bytes);
                slot.counts.reported += 1;
            });
        }
        self.finish(from, shown, (Verdict::Consume, None));
    }
}
