//! The parts that few adapters have: several links, a second transmit buffer, resequencing.

use super::link::Link;
use super::resequencer::Resequencer;
use super::source::Source;
use super::{Adapter, AdapterConfig, AdapterFrame, Patience, key};
use crate::device::PortId;
use crate::pool::{Handle, Pool};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use sluicenet_proto::cee::ets::{Ets, EtsConfig};
use sluicenet_proto::frame::{Frame, HostId, PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::Instant;

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
#[derive(Debug)]
pub struct Extended {
    pub(super) several: Option<Several>,
    /// Priorities with a transmit buffer of their own, and bytes in that buffer.
    pub(super) apart: PrioritySet,
    pub(super) used_apart: u32,
    pub(super) sequence: Option<Sequence>,
    /// Control of the queues about which there are notifications.
    pub(super) source: Option<Source>,
    /// The transmission selection of each link; the queues take turns without it.
    pub(super) ets: Option<(Arc<EtsConfig>, Vec<Ets>)>,
    /// Whether congestion notifications end in the adapter.
    pub takes_notifications: bool,
}

impl Extended {
    pub(super) fn new(host: HostId, config: &AdapterConfig, several: Option<Several>) -> Extended {
        let links = config.rate.len();
        let sequence =
            config.resequencing.map(|patience| Sequence { patience, serials: BTreeMap::new(), early: BTreeMap::new() });
        Extended {
            several,
            apart: config.apart,
            used_apart: 0,
            sequence,
            source: config.source.as_ref().map(|source| Source::new(host, source.clone(), links)),
            ets: config.ets.as_ref().map(|ets| (ets.clone(), alloc::vec![Ets::default(); links])),
            takes_notifications: config.notifications,
        }
    }

    /// Whether the choice of the next frame is more than a turn among the queues of one link.
    pub(super) fn is_managed(&self) -> bool {
        self.several.is_some() || self.source.is_some() || self.ets.is_some()
    }

    /// Takes the next frame of a link that may leave; `only` is the link where there is one.
    pub(super) fn take_next<F: AdapterFrame>(
        &mut self,
        now: Instant,
        index: usize,
        only: &mut Link,
        pool: &mut Pool<F>,
    ) -> Option<Handle> {
        let Extended { several, source, ets, .. } = self;
        let is_only = several.is_none();
        let link = match several {
            None => only,
            Some(several) => &mut several.links[index],
        };
        let mut controls = source.as_mut().map(|source| &mut source.links[index]).filter(|c| !c.is_empty());
        let turn = match ets {
            None => loop {
                if !link.has_frames() {
                    return None;
                }
                let turn = link.next_turn();
                if !controls.as_mut().is_some_and(|controls| controls.hold_back(now, link, turn)) {
                    break turn;
                }
            },
            Some((config, ets)) => {
                // A choice is charged to its group at once: only queues whose frames may leave can be chosen.
                if let Some(controls) = &mut controls {
                    controls.hold_all_back(now, link);
                }
                if !link.has_frames() {
                    return None;
                }
                select(config, &mut ets[index], link, pool)?
            }
        };
        let key = link.active[turn].key;
        let at = link.pop_of(turn, pool)?;
        let frame = pool.frame_mut(at);
        if let Some(controls) = &mut controls {
            frame.set_path(controls.on_transmit(now, key, frame.len()));
        }
        if !is_only {
            link.used -= frame.len();
            link.frames_out += 1;
        }
        Some(at)
    }

    /// When a queue may leave its hold, or its control has another deadline.
    pub(super) fn source_deadline(&self) -> Option<Instant> {
        self.source.as_ref().and_then(Source::deadline)
    }

    /// Deadlines have passed: queues whose next frame may leave go back to their link.
    pub(super) fn release_held(&mut self, now: Instant, only: &mut Link) {
        let Some(source) = &mut self.source else { return };
        match &mut self.several {
            None => source.links[0].handle_timeout(now, only),
            Some(several) => {
                let links = several.links.iter_mut();
                source.links.iter_mut().zip(links).for_each(|(controls, link)| controls.handle_timeout(now, link));
            }
        }
    }

    /// Whether received frames are put in order.
    pub fn resequences(&self) -> bool {
        self.sequence.is_some()
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

/// The queue of a link that sends next by enhanced transmission selection, by its turn. The link has frames that are not
/// paused.
fn select<F: Frame>(config: &EtsConfig, ets: &mut Ets, link: &Link, pool: &Pool<F>) -> Option<usize> {
    let first = |p: Priority| link.active.iter().position(|voq| (voq.key & 7) as Priority == p);
    let bytes = |p: Priority| {
        let front = first(p).and_then(|turn| link.active[turn].list.front());
        front.map_or(0, |at| pool.frame(at).len())
    };
    let ready = PrioritySet(link.ready_set.0 & !link.paused.0);
    ets.next(config, link.ready_set, ready, bytes).and_then(first)
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
    pub patience: Patience,
    /// The next serial number by destination and priority.
    serials: BTreeMap<u32, u16>,
    /// Early frames by sender and priority.
    early: BTreeMap<u32, Resequencer>,
}

impl Sequence {
    /// Gives a frame the next number of its destination and priority.
    pub fn number<F: AdapterFrame>(&mut self, frame: &mut F) {
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
                released[(key & 7) as usize] += r.give_up(deliver);
            }
        }
        released
    }
}
