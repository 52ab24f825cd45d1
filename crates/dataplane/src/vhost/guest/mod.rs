//! A guest as its frontend has described it so far: its memory, its queues, and the frames that are in them.

mod receive;
mod send;

use super::header;
use super::memory::Memory;
use super::queue::{Fault, Queue, Setup, Spans};
use crate::port::Offload;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Pairs of queues a guest may have.
pub const MAX_PAIRS: usize = 8;

/// Shortest and longest frame a guest may send: an Ethernet header, and the longest IP packet with two tags in front.
const FRAME_BYTES: std::ops::RangeInclusive<u64> = 14..=65_535 + 22;

/// Longest frame of a guest that takes neither long segments nor mergeable buffers: 1,500 bytes, header and tag.
const PLAIN_FRAME: u32 = 1_518;

/// Chains that are read together, so that the memory of one is fetched while another is read: as many as the switch takes
/// from a port in a round.
const BATCH: usize = 64;

/// Chains for a guest to receive that are read ahead at most, over which a frame may be spread: more than there are segments in
/// the longest.
const READ_AHEAD: usize = 2048;

/// The work per round for a guest's queues. Frames in one piece are counted separately. There are three such budgets: for the
/// descriptors of longer chains to send, for those to receive into, and for frames that are refused or cut. The rest waits
/// for the next round, so that no other guest waits for it.
pub(super) const WORK: u32 = 512;

/// Charges work to the rest of this round's budget.
#[inline]
fn charge(left: &mut u32, work: u32, counters: &mut Counters) {
    if *left > 0 && *left <= work {
        counters.over_budget += 1;
    }
    *left = left.saturating_sub(work);
}

/// Events at a port, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Faults, by kind.
    pub bad_descriptor: u64,
    /// See [`Fault::Chain`].
    pub bad_chain: u64,
    /// See [`Fault::Indirect`].
    pub bad_indirect: u64,
    /// See [`Fault::Index`].
    pub bad_index: u64,
    /// See [`Fault::Entry`].
    pub bad_entry: u64,
    /// Frames shorter than an Ethernet header, or longer than IP allows.
    pub bad_length: u64,
    /// Frames whose header asks for the impossible.
    pub bad_vnet_hdr: u64,
    /// Times the guest's memory was gone.
    pub memory_lost: u64,
    /// Frames for the guest that none of its buffers can hold.
    pub too_long: u64,
    /// Frames whose checksum was finished here, because the guest takes only finished ones.
    pub checksummed: u64,
    /// Frames cut into segments here, because the guest takes no long ones.
    pub segmented: u64,
    /// Frames copied out of the guest's memory because it went away or was stopped.
    pub evacuated: u64,
    /// Frames that a switch before this one owed the guest, taken up again.
    pub resumed: u64,
    /// Times the guest was woken.
    pub calls: u64,
    /// Frames handed to the guest, each segment counted.
    pub handed: u64,
    /// Descriptors read of chains of several.
    pub chained: u64,
    /// Turns in which its queues cost as much as they may, so that the rest had to wait for the next.
    pub over_budget: u64,
}

/// A frame the guest sends.
#[derive(Debug, Default)]
struct Slot {
    spans: Spans,
    /// Bytes of the frame; 0 for one that must not be.
    len: u32,
    head: u16,
    /// The pair of the slot's chain, unless it was evacuated.
    pair: u8,
    shown: bool,
    lent: bool,
    offload: Offload,
    /// The frame's bytes, when they are no longer the guest's.
    private: Option<Box<[u8]>>,
}

/// A chain for a frame towards the guest.
#[derive(Debug, Default)]
struct Chain {
    spans: Spans,
    len: u32,
    head: u16,
}

#[derive(Debug)]
struct Tx {
    queue: Queue,
    /// Chains that a switch before this one took and did not give back.
    owed: VecDeque<u16>,
}

#[derive(Debug)]
struct Rx {
    queue: Queue,
    /// Chains read ahead.
    ready: VecDeque<Chain>,
    spare: Vec<Spans>,
    /// Whether there was no room for a frame.
    starved: bool,
}

/// The queues of a guest and the frames in them.
#[derive(Debug)]
pub struct Guest {
    memory: Arc<Memory>,
    features: u64,
    header_bytes: u32,
    tx: [Option<Tx>; MAX_PAIRS],
    rx: [Option<Rx>; MAX_PAIRS],
    /// Pairs whose receive queue is served, and the number of pairs there is room for.
    live_rx: Vec<u8>,
    pairs: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    lent: u32,
    batch: Vec<u32>,
    batch_from: usize,
    batch_pair: usize,
    scratch: Vec<u8>,
    /// The agent's grant: when this many frames have been handed over, no more are taken.
    pub limit: u64,
    /// Whether frames are taken, and dropped, though no queue receives.
    pub nobody: bool,
    /// The rest of this round's budgets, each of `WORK` at first.
    send_left: u32,
    receive_left: u32,
    look_left: u32,
    /// Events at this port.
    pub counters: Counters,
    /// Frames that were delivered to the guest and that none of its buffers could hold.
    pub lost_too_big: u64,
    /// Frames that were delivered to the guest with offloads left, and that contradicted their header.
    pub lost_malformed: u64,
    /// Frames that were delivered to the guest after it had stopped its queues, or before it had any.
    pub lost_gone: u64,
}

impl Default for Guest {
    fn default() -> Guest {
        Guest {
            memory: Arc::default(),
            features: 0,
            header_bytes: 0,
            tx: Default::default(),
            rx: Default::default(),
            live_rx: Vec::new(),
            pairs: 0,
            slots: Vec::new(),
            free: Vec::new(),
            lent: 0,
            batch: Vec::new(),
            batch_from: 0,
            batch_pair: 0,
            scratch: Vec::new(),
            limit: u64::MAX,
            nobody: false,
            send_left: 0,
            receive_left: 0,
            look_left: 0,
            counters: Counters::default(),
            lost_too_big: 0,
            lost_malformed: 0,
            lost_gone: 0,
        }
    }
}

impl Guest {
    /// Sets the negotiated features, before any queue starts.
    pub fn set_features(&mut self, features: u64) {
        self.features = features;
        self.header_bytes = header::header_bytes(features);
    }

    /// Sets the guest's memory, before any queue starts.
    pub fn set_memory(&mut self, memory: Arc<Memory>) {
        self.memory = memory;
    }

    /// Whether a part of the guest's memory is gone.
    #[inline(always)]
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// Whether any queue was started.
    #[inline(always)]
    pub fn has_queues(&self) -> bool {
        self.pairs > 0
    }

    /// Takes a queue into service: the guest receives by even queues and sends by odd ones.
    pub fn start(&mut self, index: usize, setup: Setup) {
        let pair = index / 2;
        let mut queue = Queue::new(setup);
        if index % 2 == 0 {
            self.rx[pair] = Some(Rx { queue, ready: VecDeque::new(), spare: Vec::new(), starved: false });
        } else {
            let ring = queue.setup.ring.clone();
            let owed: VecDeque<u16> = queue.setup.record.as_mut().map(|r| r.recover(&ring).into()).unwrap_or_default();
            if !owed.is_empty() {
                queue.next = ring.used_idx().wrapping_add(owed.len() as u16);
                self.counters.resumed += owed.len() as u64;
            }
            self.tx[pair] = Some(Tx { queue, owed });
        }
        self.refresh();
    }

    /// Takes a queue out of service; returns its next available entry. Lent frames are copied and given back first, so that
    /// the guest's memory is not touched afterwards and no frame is lost.
    pub fn stop(&mut self, index: usize) -> Option<u16> {
        let pair = index / 2;
        let next = if index % 2 == 0 {
            let _ = self.rx[pair].as_mut()?.queue.publish().then(|| self.call(index));
            self.rx[pair].take()?.queue.next
        } else {
            self.drop_batch(pair);
            self.evacuate(pair);
            let _ = self.tx[pair].as_mut()?.queue.publish().then(|| self.call(index));
            self.tx[pair].take()?.queue.next
        };
        self.refresh();
        Some(next)
    }

    /// Takes all queues out of service and forgets the guest's memory.
    pub fn detach(&mut self) {
        for index in 0..2 * MAX_PAIRS {
            let _ = self.stop(index);
        }
        self.memory = Arc::default();
    }

    /// The queue of this number, if it was started.
    pub fn queue_mut(&mut self, index: usize) -> Option<&mut Queue> {
        match index % 2 {
            0 => self.rx[index / 2].as_mut().map(|rx| &mut rx.queue),
            _ => self.tx[index / 2].as_mut().map(|tx| &mut tx.queue),
        }
    }

    /// Whether a queue may be served.
    pub fn enable(&mut self, index: usize, enabled: bool) {
        if index % 2 == 1 && !enabled {
            self.drop_batch(index / 2);
        }
        if let Some(queue) = self.queue_mut(index) {
            queue.setup.enabled = enabled;
        }
        self.refresh();
    }

    /// All queues that were started.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        let rx = self.rx.iter().flatten().map(|rx| &rx.queue);
        rx.chain(self.tx.iter().flatten().map(|tx| &tx.queue))
    }

    /// How many queues are broken.
    pub fn broken_queues(&self) -> u64 {
        self.queues().filter(|q| q.broken).count() as u64
    }

    fn refresh(&mut self) {
        let live = |rx: &Option<Rx>| rx.as_ref().is_some_and(|rx| rx.queue.is_live());
        self.live_rx = (0..MAX_PAIRS as u8).filter(|&k| live(&self.rx[k as usize])).collect();
        self.nobody &= self.live_rx.is_empty();
        let last = (0..MAX_PAIRS).rfind(|&k| self.rx[k].is_some() || self.tx[k].is_some());
        self.pairs = last.map_or(0, |k| k + 1);
    }

    #[cold]
    fn fault(&mut self, index: usize, fault: Fault) {
        *match fault {
            Fault::Descriptor => &mut self.counters.bad_descriptor,
            Fault::Chain => &mut self.counters.bad_chain,
            Fault::Indirect => &mut self.counters.bad_indirect,
            Fault::Index => &mut self.counters.bad_index,
            Fault::Entry => &mut self.counters.bad_entry,
        } += 1;
        if let Some(queue) = self.queue_mut(index) {
            queue.broken = true;
            if let Some(error) = &queue.setup.error {
                signal(error);
            }
        }
        self.refresh();
    }

    #[cold]
    fn call(&mut self, index: usize) {
        if let Some(call) = self.queue_mut(index).and_then(|q| q.setup.call.as_ref()) {
            signal(call);
            self.counters.calls += 1;
        }
    }

    /// A new round: reads the next chains of each queue that it has none of, so that they are fetched by the time they are
    /// needed.
    #[inline]
    pub fn look_ahead(&mut self) {
        (self.send_left, self.receive_left, self.look_left) = (WORK, WORK, WORK);
        if self.batch_from == self.batch.len() {
            self.fill();
        }
        for pair in 0..self.pairs {
            if self.rx[pair].as_ref().is_some_and(|rx| rx.ready.len() < BATCH / 2 && rx.queue.is_live())
                && let Err(fault) = self.read_ahead(pair)
            {
                self.fault(2 * pair, fault);
            }
        }
    }

    /// Shows the guest the finished chains, and wakes it if it wants to be woken.
    pub fn publish(&mut self) {
        if self.show_used() {
            fence(Ordering::SeqCst);
            self.call_if_wanted();
        }
    }

    /// Shows the guest the finished chains; returns whether there are any. [`Guest::call_if_wanted`] then has to follow a
    /// fence. The indices must be seen before it is asked whether the driver sleeps, because the driver does the two steps in
    /// the other order.
    #[inline]
    #[must_use]
    pub fn show_used(&mut self) -> bool {
        let mut shown = false;
        for pair in 0..self.pairs {
            shown |= self.rx[pair].as_mut().is_some_and(|rx| rx.queue.show_used());
            shown |= self.tx[pair].as_mut().is_some_and(|tx| tx.queue.show_used());
        }
        shown
    }

    /// Wakes the guest if it wants to be woken for the chains shown to it.
    #[inline]
    pub fn call_if_wanted(&mut self) {
        for index in 0..2 * self.pairs {
            if self.queue_mut(index).is_some_and(Queue::wants_call) {
                self.call(index);
            }
        }
    }

    /// Asks to be woken for new frames to send, unless `blocked`, or for new room where there was none; returns whether there
    /// are any already.
    pub fn fall_asleep(&mut self, blocked: bool) -> bool {
        let mut quiet = blocked || self.batch_from == self.batch.len();
        for pair in 0..self.pairs {
            if let Some(rx) = self.rx[pair].as_mut().filter(|rx| rx.starved && rx.queue.is_live()) {
                quiet &= rx.queue.want_kicks(rx.ready.len() as u16) == Ok(0);
            }
            if let Some(tx) = self.tx[pair].as_mut().filter(|tx| tx.queue.is_live()) {
                quiet &= blocked || (tx.owed.is_empty() && tx.queue.want_kicks(0) == Ok(0));
            }
        }
        quiet
    }

    /// Asks for no more kicks, and forgets those that came.
    pub fn wake_up(&mut self) {
        for index in 0..2 * self.pairs {
            if let Some(queue) = self.queue_mut(index) {
                queue.want_no_kicks();
                if let Some(kick) = &queue.setup.kick {
                    // The read does not block, whatever flags the frontend has set meanwhile. An empty counter is no error.
                    let mut bytes = [0u8; 8];
                    let into = &mut [std::io::IoSliceMut::new(&mut bytes)];
                    let _ = rustix::io::preadv2(kick, into, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT);
                }
            }
        }
    }
}

/// Adds one to an event.
fn signal(event: &std::os::fd::OwnedFd) {
    // The write fails only if the counter is full, and then a wake-up is pending already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
