//! One pool of memory for a whole switch, with dynamic thresholds (Choudhury and Hahne 1998), as SONiC's switches divide it.
//!
//! Each frame counts twice. At its input it is charged to the *priority group* of its port and class: first to the group's
//! reserved bytes, then to the shared pool, of which a group may hold `alpha` times the free bytes. A lossless group beyond
//! that is paused, and frames that still arrive go to the headroom pool. At its output a lossy queue is bounded in the same
//! way. Frames beyond the bounds of a lossy class are dropped.

use super::admit::{Admit, ByOutput, Level, Placement};
use super::flow_control::Pfc;
use crate::device::PortId;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;

/// The part of the free bytes that a group or queue may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alpha {
    /// In units of 2^-16.
    q16: u64,
}

impl Alpha {
    /// This multiple of the free bytes.
    pub fn new(alpha: f64) -> Alpha {
        Alpha { q16: (alpha * 65_536.0 + 0.5) as u64 }
    }

    #[inline(always)]
    fn threshold(self, free: u32) -> u64 {
        (u64::from(free) * self.q16) >> 16
    }
}

/// The division of a switch's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedConfig {
    /// Bytes that priority groups share: the memory without the reserved bytes and the headroom pool.
    pub shared: u32,
    /// Bytes of its own that each priority group, and each queue, has.
    pub reserved: Reserved,
    /// Bytes of the headroom pool.
    pub headroom_pool: u32,
    /// Alpha of lossless groups.
    pub lossless: Alpha,
    /// Alpha of lossy groups at inputs.
    pub lossy: Alpha,
    /// Alpha of lossy queues at outputs.
    pub egress: Alpha,
    /// A paused group may receive again when it holds so much less than its threshold.
    pub xon_offset: u32,
    /// It may also receive again when it holds no more than this.
    pub xon: u32,
}

/// Bytes that a group or queue has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// A lossless group at an input.
    pub lossless: u32,
    /// A lossy group at an input.
    pub lossy: u32,
    /// A lossy queue at an output.
    pub egress: u32,
}

/// The account of a priority group.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    /// Reserved and shared bytes.
    used: u32,
    /// Bytes in the headroom pool.
    headroom: u32,
}

/// The shared buffer of a switch.
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    config: SharedConfig,
    classes: PrioritySet,
    ports: usize,
    shared_used: u32,
    headroom_used: u32,
    /// At `class * ports + port`, as everything below.
    groups: Vec<Group>,
    /// Thresholds as flow control sees them: those at which the group was stopped.
    marks: Vec<Watermarks>,
    /// The most bytes of each input's groups in the headroom pool.
    limits: Vec<u32>,
    /// Lossless classes that are stopped, by input.
    stopped: Vec<PrioritySet>,
    by_output: ByOutput,
}

impl SharedBuffer {
    /// An empty buffer; `marks` has the headroom of each input.
    pub fn new(config: SharedConfig, classes: PrioritySet, marks: &[Watermarks]) -> SharedBuffer {
        let ports = marks.len();
        SharedBuffer {
            config,
            classes,
            ports,
            shared_used: 0,
            headroom_used: 0,
            groups: alloc::vec![Group::default(); ports * PRIORITIES],
            marks: marks.iter().copied().cycle().take(ports * PRIORITIES).collect(),
            limits: marks.iter().map(|marks| marks.capacity - marks.xoff).collect(),
            stopped: alloc::vec![PrioritySet::NONE; ports],
            by_output: ByOutput::new(classes, ports),
        }
    }

    #[inline(always)]
    fn at(&self, port: PortId, class: Priority) -> usize {
        class as usize * self.ports + port as usize
    }

    #[inline(always)]
    fn free(&self) -> u32 {
        self.config.shared - self.shared_used
    }

    /// Bytes of a lossless group beyond the reserved ones.
    #[inline(always)]
    fn beyond(&self, bytes: u32) -> u32 {
        bytes.saturating_sub(self.config.reserved.lossless)
    }

    /// Bytes of a lossy group beyond the reserved ones.
    #[inline(always)]
    fn beyond_lossy(&self, bytes: u32) -> u32 {
        bytes.saturating_sub(self.config.reserved.lossy)
    }

    /// Whether a frame of a lossless class goes to reserved or shared bytes; otherwise it goes to the headroom pool. The frame
    /// that crosses the threshold goes to the former.
    #[inline(always)]
    fn fits_shared(&self, frame: Placement) -> bool {
        let Group { used, .. } = self.groups[self.at(frame.input, frame.class)];
        !self.stopped[frame.input as usize].contains(frame.class)
            && self.beyond(used + frame.bytes) - self.beyond(used) <= self.free()
            && self.is_below_threshold(used)
    }

    /// Whether a lossless group that holds so many reserved and shared bytes is not beyond its threshold.
    #[inline(always)]
    fn is_below_threshold(&self, used: u32) -> bool {
        let shared = self.beyond(used);
        shared == 0 || u64::from(shared) <= self.config.lossless.threshold(self.free())
    }

    /// Whether a frame of a lossy class fits.
    #[inline(always)]
    fn fits_lossy(&self, frame: Placement, queue_bytes: u32) -> bool {
        let Group { used, .. } = self.groups[self.at(frame.input, frame.class)];
        let (before, after) = (self.beyond_lossy(used), self.beyond_lossy(used.saturating_add(frame.bytes)));
        let free = self.free();
        let queue = queue_bytes.saturating_add(frame.bytes).saturating_sub(self.config.reserved.egress);
        let fits = |bytes: u32, alpha: Alpha| bytes == 0 || u64::from(bytes) <= alpha.threshold(free);
        after - before <= free && fits(after, self.config.lossy) && fits(queue, self.config.egress)
    }
}

impl Admit for SharedBuffer {
    type FlowControl = Pfc;

    #[inline(always)]
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason> {
        if !self.classes.contains(frame.class) {
            return if self.fits_lossy(frame, queue_bytes) { Ok(()) } else { Err(DropReason::SwitchBuffer) };
        }
        if self.fits_shared(frame) {
            return Ok(());
        }
        let at = self.at(frame.input, frame.class);
        let limit = self.limits[frame.input as usize];
        let fits = |used: u32, limit: u32| used.saturating_add(frame.bytes) <= limit;
        match fits(self.groups[at].headroom, limit) && fits(self.headroom_used, self.config.headroom_pool) {
            true => Ok(()),
            false => Err(DropReason::HeadroomExceeded),
        }
    }

    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        let at = self.at(frame.input, frame.class);
        let used = self.groups[at].used;
        if !self.classes.contains(frame.class) {
            self.groups[at].used = used + frame.bytes;
            self.shared_used += self.beyond_lossy(used + frame.bytes) - self.beyond_lossy(used);
            return None;
        }
        if self.fits_shared(frame) {
            self.groups[at].used = used + frame.bytes;
            self.shared_used += self.beyond(used + frame.bytes) - self.beyond(used);
        } else {
            self.groups[at].headroom += frame.bytes;
            self.headroom_used += frame.bytes;
        }
        *self.by_output.of(frame) += frame.bytes;
        let group = self.groups[at];
        let bytes = group.used + group.headroom;
        if !self.stopped[frame.input as usize].contains(frame.class) {
            if group.headroom == 0 && self.is_below_threshold(group.used) {
                return None;
            }
            self.stopped[frame.input as usize].insert(frame.class);
            // Flow control stops the other end above this level.
            self.marks[at].xoff = bytes - 1;
        }
        Some(Level { bytes, marks: &self.marks[at] })
    }

    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        let at = self.at(frame.input, frame.class);
        let group = &mut self.groups[at];
        let from_headroom = group.headroom.min(frame.bytes);
        group.headroom -= from_headroom;
        self.headroom_used -= from_headroom;
        let used = group.used;
        group.used = used - (frame.bytes - from_headroom);
        let group = *group;
        if !self.classes.contains(frame.class) {
            self.shared_used -= self.beyond_lossy(used) - self.beyond_lossy(group.used);
            return None;
        }
        self.shared_used -= self.beyond(used) - self.beyond(group.used);
        *self.by_output.of(frame) -= frame.bytes;
        if !self.stopped[frame.input as usize].contains(frame.class) {
            return None;
        }
        let bytes = group.used + group.headroom;
        let threshold = self.config.lossless.threshold(self.free()).saturating_sub(self.config.xon_offset.into());
        let is_low = u64::from(self.beyond(group.used)) <= threshold || group.used <= self.config.xon;
        let goes_on = bytes == 0 || group.headroom == 0 && is_low;
        if goes_on {
            self.stopped[frame.input as usize].remove(frame.class);
        }
        self.marks[at].xon = if goes_on { bytes } else { 0 };
        Some(Level { bytes, marks: &self.marks[at] })
    }

    fn level(&self, input: PortId, class: Priority) -> Option<Level<'_>> {
        let at = self.at(input, class);
        let Group { used, headroom } = self.groups[at];
        let is_stopped = self.stopped[input as usize].contains(class);
        // A group that is not stopped is below its threshold, whatever the threshold is.
        let bytes = if is_stopped { used + headroom } else { 0 };
        self.classes.contains(class).then(|| Level { bytes, marks: &self.marks[at] })
    }

    fn buffered(&self, input: PortId, output: PortId, class: Priority) -> u32 {
        self.by_output.get(input, output, class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSLESS: Priority = 3;
    const LOSSY: Priority = 0;
    const MARKS: Watermarks = Watermarks { xoff: 0, xon: 0, capacity: 5_000, headroom: 5_000 };

    fn buffer(ports: usize, shared: u32, alpha: f64) -> SharedBuffer {
        let alpha = Alpha::new(alpha);
        let config = SharedConfig {
            shared,
            reserved: Reserved::default(),
            headroom_pool: 5_000 * ports as u32,
            lossless: alpha,
            lossy: alpha,
            egress: alpha,
            xon_offset: 2_000,
            xon: 0,
        };
        SharedBuffer::new(config, PrioritySet(1 << LOSSLESS), &alloc::vec![MARKS; ports])
    }

    fn frame(input: PortId, output: PortId, class: Priority) -> Placement {
        Placement { input, output, class, bytes: 1_000 }
    }

    /// Choudhury and Hahne 1998: of N queues that all want more, each gets alpha / (1 + N alpha) of the memory.
    #[test]
    fn with_alpha_one_each_of_n_full_queues_has_a_part_of_n_plus_one() {
        for ports in 1..=15u16 {
            let mut b = buffer(usize::from(ports), 1_600_000, 1.0);
            let mut queues = alloc::vec![0; usize::from(ports)];
            let mut grows = true;
            while grows {
                grows = false;
                for port in 0..ports {
                    let placement = frame(port, port, LOSSY);
                    if b.admit(placement, queues[usize::from(port)]).is_ok() {
                        b.charge(placement);
                        queues[usize::from(port)] += 1_000;
                        grows = true;
                    }
                }
            }
            let part = 1_600_000 / (u32::from(ports) + 1);
            assert!(queues.iter().all(|&bytes| bytes.abs_diff(part) <= 2_000), "{ports}: {queues:?}, {part}");
        }
    }

    #[test]
    fn a_lossless_group_is_stopped_at_its_threshold_and_uses_its_headroom_then() {
        let mut b = buffer(4, 100_000, 1.0);
        let placement = frame(0, 1, LOSSLESS);
        let mut stopped_at = None;
        for n in 1..=60 {
            if b.admit(placement, 0).is_err() {
                break;
            }
            if let Some(level) = b.charge(placement)
                && level.bytes > level.marks.xoff
            {
                stopped_at.get_or_insert(n);
            }
        }
        // Half of the memory, the frame that crosses, and five frames of headroom.
        let group = b.groups[b.at(0, LOSSLESS)];
        assert_eq!((stopped_at, group.used, group.headroom), (Some(51), 51_000, 5_000));
        assert_eq!(b.admit(placement, 0), Err(DropReason::HeadroomExceeded));
        assert_eq!((b.buffered(0, 1, LOSSLESS), b.level(0, LOSSLESS).map(|l| l.bytes)), (56_000, Some(56_000)));
        // Another class, and another input, still find memory.
        assert_eq!((b.admit(frame(1, 1, LOSSLESS), 0), b.admit(frame(0, 1, LOSSY), 0)), (Ok(()), Ok(())));
        // It goes on 2,000 B below the threshold: headroom first, then 49 of 51 frames' worth and the threshold beyond.
        let mut left = 0;
        loop {
            left += 1;
            let level = b.discharge(placement).expect("a stopped group");
            if level.bytes <= level.marks.xon {
                break;
            }
        }
        assert_eq!(left, 7, "49,000 B are used and 51,000 B free");
        assert!(b.stopped[0].is_empty() && b.headroom_used == 0);
        assert_eq!(b.discharge(placement), None);
    }

    #[test]
    fn a_group_stopped_because_others_fill_the_pool_goes_on_when_it_is_empty() {
        let mut b = buffer(2, 10_000, 1.0 / 256.0);
        let placement = frame(0, 1, LOSSLESS);
        // Alpha of 1/256: the first frame is beyond 39 B.
        assert!(b.charge(placement).is_some_and(|level| level.bytes > level.marks.xoff));
        let level = b.discharge(placement).expect("stopped");
        assert!(level.bytes == 0 && level.bytes <= level.marks.xon);
        assert_eq!((b.shared_used, b.headroom_used), (0, 0));
    }

    #[test]
    fn reserved_bytes_belong_to_their_group_alone() {
        let mut b = buffer(2, 10_000, 1.0);
        b.config.reserved = Reserved { lossless: 3_000, lossy: 3_000, egress: 3_000 };
        for _ in 0..3 {
            assert_eq!(b.admit(frame(0, 0, LOSSY), 0), Ok(()));
            b.charge(frame(0, 0, LOSSY));
        }
        assert_eq!(b.shared_used, 0);
        let mut admitted = 3;
        while b.admit(frame(0, 0, LOSSY), 1_000 * admitted).is_ok() {
            b.charge(frame(0, 0, LOSSY));
            admitted += 1;
        }
        assert_eq!((admitted, b.shared_used), (8, 5_000), "half of the shared bytes");
        (0..admitted).for_each(|_| _ = b.discharge(frame(0, 0, LOSSY)));
        assert_eq!(b.shared_used, 0);
    }

    #[test]
    fn reserved_bytes_differ_by_class_and_side() {
        let mut b = buffer(2, 10_000, 1.0);
        b.config.reserved = Reserved { lossless: 1_000, lossy: 0, egress: 2_000 };
        // 5,000 B of 10,000 are as many as are free: a sixth frame is one too many, at an input or in a queue.
        let admitted = |b: &mut SharedBuffer, inputs: u16| {
            let mut n = 0;
            while b.admit(frame(n as PortId % inputs, 0, LOSSY), 1_000 * n).is_ok() {
                b.charge(frame(n as PortId % inputs, 0, LOSSY));
                n += 1;
            }
            n
        };
        assert_eq!(admitted(&mut b, 1), 5);
        let mut b = SharedBuffer { shared_used: 0, groups: alloc::vec![Group::default(); 2 * PRIORITIES], ..b };
        // By two inputs, the queue decides: 2,000 B of its own, and as many as are free.
        assert_eq!(admitted(&mut b, 2), 6);
        assert_eq!(b.shared_used, 6_000);
        b.charge(frame(0, 1, LOSSLESS));
        assert_eq!(b.shared_used, 6_000, "a lossless group has 1,000 B of its own");
    }

    #[test]
    fn a_group_goes_on_at_its_xon() {
        let goes_on = |xon: u32| {
            let mut b = buffer(1, 4_000, 1.0);
            (b.config.xon, b.config.xon_offset) = (xon, 4_000);
            let mut inside = 0;
            while b.charge(frame(0, 0, LOSSLESS)).is_none() {
                inside += 1;
            }
            let mut goes_on = || b.discharge(frame(0, 0, LOSSLESS)).is_some_and(|level| level.bytes <= level.marks.xon);
            (0..=inside).rev().find(|_| goes_on())
        };
        // The threshold less 4,000 B is 0: a group goes on when it is empty, or at XON.
        assert_eq!((goes_on(0), goes_on(1_000), goes_on(2_500)), (Some(0), Some(1), Some(2)));
    }

    #[test]
    fn no_order_of_frames_breaks_the_accounts() {
        let mut rng = sluicenet_proto::rng::Rng::from_words(&[7]);
        let mut b = buffer(3, 30_000, 0.5);
        b.config.reserved = Reserved { lossless: 500, lossy: 500, egress: 500 };
        let mut inside: Vec<Placement> = Vec::new();
        for _ in 0..50_000 {
            if rng.below(2) == 0 || inside.is_empty() {
                let class = if rng.below(2) == 0 { LOSSY } else { LOSSLESS };
                let bytes = 64 + rng.below(1_500) as u32;
                let placement =
                    Placement { input: rng.below(3) as PortId, output: rng.below(3) as PortId, class, bytes };
                let queued = inside.iter().filter(|p| (p.output, p.class) == (placement.output, class));
                if b.admit(placement, queued.map(|p| p.bytes).sum()).is_ok() {
                    b.charge(placement);
                    inside.push(placement);
                }
            } else {
                let placement = inside.swap_remove(rng.below(inside.len() as u64) as usize);
                b.discharge(placement);
            }
            let sum: u32 = inside.iter().map(|p| p.bytes).sum();
            let held: u32 = b.groups.iter().map(|g| g.used + g.headroom).sum();
            let shared: u32 = b.groups.iter().map(|g| b.beyond(g.used)).sum();
            assert_eq!((held, shared), (sum, b.shared_used));
            assert!(b.shared_used <= b.config.shared && b.headroom_used <= b.config.headroom_pool);
            assert_eq!(b.headroom_used, b.groups.iter().map(|g| g.headroom).sum());
        }
        while let Some(placement) = inside.pop() {
            b.discharge(placement);
        }
        assert!(
            b.stopped.iter().all(|classes| classes.is_empty())
                && (0..3).all(|i| (0..3).all(|o| b.buffered(i, o, LOSSLESS) == 0))
        );
    }
}
