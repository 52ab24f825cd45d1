//! The rate limiters of an uplink (802.1Qau): the reaction points of the frames that it sends.
//!
//! - A congestion notification names the frames of a class to one destination, or those of one flow. From then on they
//!   wait in a queue of their own, under the control of a [`SourceControl`]. Other frames pass them. The queue ends when it
//!   is empty and its control has nothing to limit any more.
//! - No frame is dropped. A queue that is [full](LIMITED_MOST) takes no frames, and the switch holds their senders.
//! - A notification counts only if such a frame was sent a short time ago. So a hostile neighbour makes no more limiters
//!   than there are destinations, and there are at most [`LIMITERS_MOST`].

use super::Waiting;
use super::queues::Queue;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use sluicenet_proto::cee::qcn::{Message, Notification};
use sluicenet_proto::cee::source_control::{QueueName, SourceConfig, SourceControl};
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::overlay::tunnel::flow_hash;
use sluicenet_proto::rng::mix64;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::{FCS_LEN, MacAddress};
use sluicenet_wire::qcn;

/// Bytes above which a limited queue takes no more frames from the switch: some 40 of the longest frames of Ethernet.
pub const LIMITED_MOST: u64 = 64 << 10;
/// Bytes of a class in limited queues above which the class takes no more frames: the frames of channels and streams,
/// which do not ask for the room of a queue, must not fill the memory.
pub(super) const HELD_MOST: u64 = 4 << 20;
/// The most limiters.
const LIMITERS_MOST: usize = 1024;
/// The number of sent frames whose destination or flow is remembered.
const REMEMBERED: usize = 4096;
/// Those with one hash.
const WAYS: usize = 4;
/// Bytes with which a limiter may catch up with its rate: far fewer than the queue of a congestion point at
/// its equilibrium has (20 KB, Crisan 2014, Table 2.1).
const BURST: u64 = 8_000;
/// How long after a frame a notification about it counts. A notification takes a round trip, and the frame may have
/// waited in every buffer of the network.
const LIVES: Duration = Duration::from_secs(1);

/// A limiter without frames and without notifications for this time ends. With a timer its rate recovers by itself, but
/// without one only frames end its cycles.
const IDLE: Duration = Duration::from_secs(10);

/// A frame to be sent, as rate limiters see it.
pub trait Limited: Debug {
    /// The destination.
    fn destination(&self) -> MacAddress;
    /// The flow in the frame's CN-TAG.
    fn flow(&self) -> Option<u16>;
    /// Puts a CN-TAG with the frame's flow into the frame; returns how many bytes longer the frame is.
    fn tag(&mut self) -> u32;
}

impl Limited for Vec<u8> {
    fn destination(&self) -> MacAddress {
        self.first_chunk().map_or(MacAddress::default(), |&address| MacAddress(address))
    }
    fn flow(&self) -> Option<u16> {
        qcn::flow_of(self)
    }
    fn tag(&mut self) -> u32 {
        let at = qcn::tag_position(self).min(self.len());
        let tag = qcn::tag_bytes(flow_number(flow_hash(self)));
        self.splice(at..at, tag);
        tag.len() as u32
    }
}

/// The number in the CN-TAG of a flow with this [hash](flow_hash). Several flows may have one number, and then one limiter.
/// 0 is the number of frames without a tag.
fn flow_number(hash: u64) -> u16 {
    1 + (hash % u64::from(u16::MAX)) as u16
}

/// The name of a limited queue: a class, and a destination or a flow.
type Key = (Priority, u64);

fn of_destination(address: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = address.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Counters of notifications and limiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounters {
    /// Notifications received.
    pub received: u64,
    /// Notifications that cannot be read.
    pub malformed: u64,
    /// Notifications for another station, without feedback, or about frames that were not sent lately.
    pub ignored: u64,
    /// Notifications for which there was no room for another limiter.
    pub refused: u64,
    /// Limiters made.
    pub made: u64,
}

#[derive(Debug)]
struct LimitedQueue<T> {
    control: Box<dyn SourceControl>,
    queue: Queue<T>,
    /// The time of the queue's entry in `due`, if it has one.
    due: Option<Instant>,
    /// The time of the queue's entry in `timers`.
    timer: Instant,
    /// The last frame or notification.
    used: Instant,
}

impl<T> LimitedQueue<T> {
    /// The time at which the first frame leaves as its limiter sees it. A program is seldom polled at the time when a frame
    /// may leave: the rate is kept by bursts of at most [`BURST`].
    fn in_time(&self, now: Instant) -> Instant {
        let Some(due) = self.due.filter(|due| *due < now) else { return now };
        let mut rate = Rate(u64::MAX);
        self.control.rates(&mut |_, current, _| rate = rate.min(current));
        let earliest = Instant(now.0.saturating_sub(rate.time_for(BURST).0));
        due.max(earliest)
    }
}

/// The rate limiters of an uplink, and the frames that wait for them.
#[derive(Debug)]
pub struct Limits<T> {
    config: Arc<dyn SourceConfig>,
    rate: Rate,
    queues: BTreeMap<Key, LimitedQueue<T>>,
    /// When the first frame of each queue may leave, by class.
    due: [BTreeSet<(Instant, u64)>; PRIORITIES],
    /// When each control has its next deadline.
    timers: BTreeSet<(Instant, Key)>,
    /// Bytes in the queues, by class.
    held: [u64; PRIORITIES],
    /// What was sent, and when; each in the set of its hash, where it replaces the oldest.
    sent: Box<[[(Key, Instant); WAYS]]>,
    salt: u64,
    counters: LimitCounters,
}

impl<T: Limited> Limits<T> {
    /// No limiters yet, at a link of this rate. Endpoints must not be able to guess the salt: who knows it can make the
    /// uplink forget which frames it has sent.
    pub fn new(config: Arc<dyn SourceConfig>, rate: Rate, salt: u64) -> Limits<T> {
        Limits {
            config,
            rate,
            queues: BTreeMap::new(),
            due: Default::default(),
            timers: BTreeSet::new(),
            held: [0; PRIORITIES],
            sent: alloc::vec![[((0, 0), Instant::ZERO); WAYS]; REMEMBERED / WAYS].into(),
            salt,
            counters: LimitCounters::default(),
        }
    }

    /// The counters.
    pub fn counters(&self) -> &LimitCounters {
        &self.counters
    }

    /// The number of limiters, the frames that wait for them, and the lowest rate of a limiter.
    pub fn state(&self) -> (usize, usize, Option<Rate>) {
        let mut lowest: Option<Rate> = None;
        for queue in self.queues.values() {
            queue.control.rates(&mut |_, rate, _| lowest = Some(lowest.map_or(rate, |least| least.min(rate))));
        }
        (self.queues.len(), self.frames(), lowest)
    }

    /// Whether there is no limiter now.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether each flow has a limiter of its own, and each frame a CN-TAG.
    pub fn by_flow(&self) -> bool {
        self.config.by_flow()
    }

    pub(super) fn frames(&self) -> usize {
        self.queues.values().map(|limited| limited.queue.frames.len()).sum()
    }

    /// Whether a class may have more frames.
    pub(super) fn class_has_room(&self, p: Priority) -> bool {
        self.held[p as usize] < HELD_MOST
    }

    /// Whether a frame of class `p` to this destination may be handed over. `flow` is the [hash](flow_hash) of the frame's
    /// flow, and is asked only if it counts.
    pub fn has_room(&self, p: Priority, to: MacAddress, flow: impl FnOnce() -> u64) -> bool {
        if self.queues.is_empty() {
            return true;
        }
        let of = if self.by_flow() { flow_number(flow()).into() } else { of_destination(to) };
        self.queues.get(&(p, of)).is_none_or(|limited| limited.queue.bytes < LIMITED_MOST)
    }

    fn key(&self, p: Priority, frame: &T) -> Key {
        match self.by_flow() {
            true => (p, frame.flow().unwrap_or(0).into()),
            false => (p, of_destination(frame.destination())),
        }
    }

    /// Takes a frame whose queue is limited; returns any other frame.
    pub(super) fn hold(&mut self, p: Priority, frame: Waiting<T>) -> Option<Waiting<T>> {
        if self.queues.is_empty() {
            return Some(frame);
        }
        let key = self.key(p, &frame.frame);
        let Some(limited) = self.queues.get_mut(&key) else { return Some(frame) };
        self.held[p as usize] += u64::from(frame.len);
        limited.queue.push(frame);
        schedule(limited, key, &mut self.due, &mut self.timers);
        None
    }

    /// Classes with a limited frame that may leave.
    #[inline]
    pub(super) fn ready(&self, now: Instant) -> PrioritySet {
        if self.queues.is_empty() {
            return PrioritySet::NONE;
        }
        let is_due = |p: &Priority| self.due[*p as usize].first().is_some_and(|(at, _)| *at <= now);
        (0..PRIORITIES as Priority).filter(is_due).collect()
    }

    /// When the first frame of a class that is not `paused` may leave.
    #[inline]
    pub(super) fn next_departure(&self, paused: PrioritySet) -> Option<Instant> {
        if self.queues.is_empty() {
            return None;
        }
        let classes = (0..PRIORITIES as Priority).filter(|p| !paused.contains(*p));
        classes.filter_map(|p| self.due[p as usize].first().map(|(at, _)| *at)).min()
    }

    /// The queue of class `p` whose frame may leave first, if it may now.
    #[inline]
    pub(super) fn first(&self, now: Instant, p: Priority) -> Option<u64> {
        if self.queues.is_empty() {
            return None;
        }
        self.due[p as usize].first().filter(|(at, _)| *at <= now).map(|(_, of)| *of)
    }

    /// The first frame of a queue.
    pub(super) fn front(&self, p: Priority, of: u64) -> Option<&Waiting<T>> {
        self.queues.get(&(p, of))?.queue.frames.front()
    }

    /// Takes the first frame of a queue, which leaves now.
    pub(super) fn pop(&mut self, now: Instant, p: Priority, of: u64) -> Option<Waiting<T>> {
        let key = (p, of);
        let limited = self.queues.get_mut(&key)?;
        let frame = limited.queue.pop()?;
        self.held[p as usize] -= u64::from(frame.len);
        let in_time = limited.in_time(now);
        limited.control.on_transmit(in_time, frame.len + FCS_LEN as u32);
        limited.used = now;
        schedule(limited, key, &mut self.due, &mut self.timers);
        if limited.queue.frames.is_empty() && limited.control.is_idle() {
            self.end(key);
        }
        self.remember(now, key);
        Some(frame)
    }

    /// A frame that was not limited leaves.
    pub(super) fn on_sent(&mut self, now: Instant, p: Priority, frame: &T) {
        self.remember(now, self.key(p, frame));
    }

    fn remember(&mut self, now: Instant, key: Key) {
        let set = &mut self.sent[place(self.salt, key)];
        let entry = match set.iter().position(|(sent, _)| *sent == key) {
            Some(at) => &mut set[at],
            None => set.iter_mut().min_by_key(|(_, at)| *at).expect("a set has entries"),
        };
        *entry = (key, now);
    }

    /// Handles a congestion notification, in its frame. It must be for the station `own`, if one is given. `take` removes
    /// the frames with a given property from the queue of a class.
    pub(super) fn on_notification(
        &mut self,
        now: Instant,
        bytes: &[u8],
        own: Option<MacAddress>,
        take: impl FnOnce(Priority, &dyn Fn(&T) -> bool) -> Vec<Waiting<T>>,
    ) {
        self.counters.received += 1;
        let Ok(frame) = qcn::Frame::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let qcn::Repr { feedback, cpid, offset, delta, priority, destination, .. } = frame.message;
        let of = match self.by_flow() {
            true => frame.flow.unwrap_or(0).into(),
            false => of_destination(destination),
        };
        let key = (priority, of);
        let is_known = self.queues.contains_key(&key);
        let set = &self.sent[place(self.salt, key)];
        let is_recent = |at: Instant| at > Instant::ZERO && now.since(at) <= LIVES;
        let is_live = is_known || set.iter().any(|&(sent, at)| sent == key && is_recent(at));
        if feedback == 0 || !is_live || own.is_some_and(|own| own != frame.destination) {
            self.counters.ignored += 1;
            return;
        }
        if !is_known {
            if self.queues.len() >= LIMITERS_MOST {
                self.counters.refused += 1;
                return;
            }
            self.begin(now, key);
            let by_flow = self.by_flow();
            let is_its = |frame: &T| match by_flow {
                true => u64::from(frame.flow().unwrap_or(0)) == of,
                false => of_destination(frame.destination()) == of,
            };
            for frame in take(priority, &is_its) {
                let other = self.hold(priority, frame);
                debug_assert!(other.is_none(), "its queue is limited");
            }
        }
        let Some(limited) = self.queues.get_mut(&key) else { return };
        let bytes = |units: i16| i64::from(units) * qcn::QUEUE_UNIT;
        let notification = Notification { feedback, offset: bytes(offset), delta: bytes(delta) };
        let message = Message { cpid: u64::from_be_bytes(cpid), notification, priority };
        limited.control.on_notification(now, None, &message);
        limited.used = now;
        schedule(limited, key, &mut self.due, &mut self.timers);
    }

    fn begin(&mut self, now: Instant, key: Key) {
        self.counters.made += 1;
        // The name gives the limiter random numbers of its own.
        let name = QueueName { host: 0, to: mix64(key.1) as u32, priority: key.0 };
        let control = self.config.control(now, name, self.rate);
        let timer = Instant::MAX;
        let limited = LimitedQueue { control, queue: Queue::default(), due: None, timer, used: now };
        self.timers.insert((timer, key));
        self.queues.insert(key, limited);
    }

    fn end(&mut self, key: Key) {
        let Some(limited) = self.queues.remove(&key) else { return };
        debug_assert!(limited.due.is_none() && limited.queue.frames.is_empty());
        self.timers.remove(&(limited.timer, key));
    }

    /// Takes all frames of class `p`.
    pub(super) fn clear(&mut self, p: Priority, each: &mut dyn FnMut(Waiting<T>)) {
        for (&key, limited) in self.queues.range_mut((p, 0)..=(p, u64::MAX)) {
            core::mem::take(&mut limited.queue).frames.into_iter().for_each(&mut *each);
            schedule(limited, key, &mut self.due, &mut self.timers);
        }
        self.held[p as usize] = 0;
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at).filter(|at| *at != Instant::MAX)
    }

    /// Deadlines have passed. A limiter without frames ends if it limits nothing, or if nothing was heard of its frames for
    /// a while.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            let Some(limited) = self.queues.get_mut(&key) else { unreachable!("each timer is that of a queue") };
            if limited.control.poll_timeout() <= now {
                limited.control.handle_timeout(now);
            }
            let is_unused = now.since(limited.used) >= IDLE;
            if limited.queue.frames.is_empty() && (is_unused || limited.control.is_idle()) {
                self.end(key);
            } else {
                schedule(limited, key, &mut self.due, &mut self.timers);
            }
        }
    }
}

/// The set of a queue's last sent frame. Endpoints choose destinations, but do not know the salt.
fn place(salt: u64, key: Key) -> usize {
    mix64(salt ^ mix64(key.1 << 3 | u64::from(key.0))) as usize % (REMEMBERED / WAYS)
}

/// Updates the entries of a queue after a change.
fn schedule<T>(
    limited: &mut LimitedQueue<T>,
    key: Key,
    due: &mut [BTreeSet<(Instant, u64)>; PRIORITIES],
    timers: &mut BTreeSet<(Instant, Key)>,
) {
    let is_empty = limited.queue.frames.is_empty();
    let next = (!is_empty).then(|| limited.control.next_transmit());
    if next != limited.due {
        let due = &mut due[key.0 as usize];
        limited.due.inspect(|&at| _ = due.remove(&(at, key.1)));
        next.inspect(|&at| _ = due.insert((at, key.1)));
        limited.due = next;
    }
    let unused = if is_empty { limited.used.saturating_add(IDLE) } else { Instant::MAX };
    let timer = limited.control.poll_timeout().min(unused);
    if timer != limited.timer {
        timers.remove(&(limited.timer, key));
        timers.insert((timer, key));
        limited.timer = timer;
    }
}
