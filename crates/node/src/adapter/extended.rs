//! The parts that few adapters have: several links, a second transmit buffer, resequencing.

use super::link::Link;
use super::resequencer::Resequencer;
use super::{Adapter, AdapterConfig, Serial, key};
use crate::device::PortId;
use crate::pool::Handle;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::Debug;
use sluicenet_proto::frame::{Frame, PRIORITIES, PrioritySet};
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::{Duration, Instant};

/// A kind of adapter, for which the code of a server is compiled.
pub trait Kind: Debug + Send {
    /// The adapter's parts beyond those of a basic one, if it has any.
    fn of(adapter: &Adapter) -> Option<&Extended>;
    /// The same, to change.
    fn of_mut(adapter: &mut Adapter) -> Option<&mut Extended>;
}

/// One link, one transmit buffer; frames are delivered as they come.
#[derive(Debug)]
pub struct Basic;

impl Kind for Basic {
    #[inline(always)]
    fn of(_adapter: &Adapter) -> Option<&Extended> {
        None
    }
    #[inline(always)]
    fn of_mut(_adapter: &mut Adapter) -> Option<&mut Extended> {
        None
    }
}

/// Any settings.
#[derive(Debug)]
pub struct Any;

impl Kind for Any {
    #[inline(always)]
    fn of(adapter: &Adapter) -> Option<&Extended> {
        adapter.extended.as_deref()
    }
    #[inline(always)]
    fn of_mut(adapter: &mut Adapter) -> Option<&mut Extended> {
        adapter.extended.as_deref_mut()
    }
}

/// The parts of an adapter beyond those of a basic one.
#[derive(Clone, Debug)]
pub struct Extended {
    pub(super) several: Option<Several>,
    /// Priorities with a transmit buffer of their own, and bytes in that buffer.
    pub(super) apart: PrioritySet,
    pub(super) used_apart: u32,
    pub(super) sequence: Option<Sequence>,
}

impl Extended {
    pub(super) fn new(config: &AdapterConfig, several: Option<Several>) -> Extended {
        let sequence =
            config.resequencing.map(|patience| Sequence { patience, serials: BTreeMap::new(), early: BTreeMap::new() });
        Extended { several, apart: config.apart, used_apart: 0, sequence }
    }

    /// Whether received frames are put in order.
    pub fn resequences(&self) -> bool {
        self.sequence.is_some()
    }

    /// Whether any frame has been put in order so far: then later ones may have to wait, and have a deadline.
    pub(super) fn has_numbered(&self) -> bool {
        self.sequence.as_ref().is_some_and(|sequence| !sequence.early.is_empty())
    }

    /// Frames that wait for earlier ones.
    pub(super) fn early(&self) -> u64 {
        self.sequence.iter().flat_map(|sequence| sequence.early.values()).map(|r| r.early.len() as u64).sum()
    }

    /// When the first missing frame is given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadlines = self.sequence.iter().flat_map(|sequence| sequence.early.values()).map(|r| r.deadline);
        deadlines.min().filter(|&deadline| deadline != Instant::MAX)
    }
}

/// Several links, and the router that chooses among them.
#[derive(Clone, Debug)]
pub(super) struct Several {
    pub router: Router,
    pub links: Vec<Link>,
}

impl Several {
    /// The link of a frame.
    pub fn port<F: Frame>(&self, frame: &F) -> PortId {
        // The switch drops frames without a route and counts them by reason.
        self.router.route(frame).unwrap_or(0)
    }
}

/// The order of the frames between two adapters.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// Longest wait of a frame for an earlier one.
    pub patience: Duration,
    /// The next serial number by destination and priority.
    serials: BTreeMap<u32, u16>,
    /// Early frames by sender and priority.
    early: BTreeMap<u32, Resequencer>,
}

impl Sequence {
    /// Gives a frame the next number of its destination and priority.
    pub fn number<F: Serial>(&mut self, frame: &mut F) {
        let next = self.serials.entry(key(frame.destination(), frame.priority())).or_default();
        frame.set_serial(*next);
        *next = next.wrapping_add(1);
    }

    /// The early frames of a received frame's sender and priority.
    pub fn of_sender<F: Frame>(&mut self, frame: &F) -> &mut Resequencer {
        let of = key(frame.source(), frame.priority());
        self.early.entry(of).or_insert_with(|| Resequencer { next: 0, early: Vec::new(), deadline: Instant::MAX })
    }

    /// Gives up the missing frames whose deadlines have come; returns the released bytes of each priority.
    pub fn give_up(&mut self, now: Instant, deliver: &mut impl FnMut(Handle)) -> [u32; PRIORITIES] {
        let mut released = [0; PRIORITIES];
        for (key, r) in self.early.iter_mut().filter(|(_, r)| r.deadline <= now) {
            while r.deadline <= now {
                released[(key & 7) as usize] += r.give_up(self.patience, deliver);
            }
        }
        released
    }
}
