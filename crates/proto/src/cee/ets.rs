//! Enhanced transmission selection (802.1Qaz): strict priorities first, then groups of priorities that share the rest of the
//! bandwidth by weight.
//!
//! The groups take turns by deficit round robin (Shreedhar and Varghese 1995). A group with frames gains its quantum when
//! its turn begins, and sends while its deficit lasts. A group without frames loses its deficit: bandwidth that it does not
//! use belongs to the others. A group whose frames are all paused keeps its deficit, but not its turn.

use crate::frame::{PRIORITIES, Priority, PrioritySet};
use alloc::vec::Vec;

/// Bytes that all groups together gain in a round. The quantum of one percent holds a frame of the usual length, and a
/// round takes some 100 us at 10 Gb/s.
const ROUND_BYTES: u32 = 160_000;
/// Bytes between two frames on the wire: preamble and gap take bandwidth, too.
const GAP_BYTES: u32 = 20;

/// Priorities that share a part of the bandwidth. Within the group they take turns, a frame each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The priorities.
    pub priorities: PrioritySet,
    /// Percent of the bandwidth that strict priorities leave, or a weight beside those of the other groups.
    pub bandwidth: u8,
}

/// Reason why settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtsError {
    /// The bandwidths of the groups add up to something else than 100 %.
    Sum(u32),
    /// A group has no bandwidth: its frames would never be sent.
    NoBandwidth,
    /// A group has no priorities, so that no frame uses its bandwidth.
    NoPriority,
    /// A priority is in none of the groups and not strict.
    Missing(Priority),
    /// A priority is in two groups, or in a group and strict.
    Twice(Priority),
}

/// Settings of the transmission selection at an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtsConfig {
    strict: PrioritySet,
    groups: Vec<Group>,
    /// Bytes that a group gains in a round for each percent or unit of its weight.
    unit: u32,
    /// The group of each priority that is not strict.
    group_of: [u8; PRIORITIES],
}

impl EtsConfig {
    /// Strict priorities, the highest first, and groups.
    ///
    /// # Errors
    /// If a priority belongs to none or to two of them, or if the bandwidths are not 100 % in all.
    pub fn new(strict: PrioritySet, groups: Vec<Group>) -> Result<EtsConfig, EtsError> {
        let config = EtsConfig::weighted(strict, groups)?;
        match config.groups.iter().map(|group| u32::from(group.bandwidth)).sum() {
            100 => Ok(config),
            0 if config.groups.is_empty() => Ok(config),
            sum => Err(EtsError::Sum(sum)),
        }
    }

    /// Strict priorities, the highest first, and groups with weights of any sum.
    ///
    /// # Errors
    /// If a priority belongs to none or to two of them, or if a group has no weight.
    pub fn weighted(strict: PrioritySet, groups: Vec<Group>) -> Result<EtsConfig, EtsError> {
        let mut seen = strict;
        for group in &groups {
            if group.bandwidth == 0 {
                return Err(EtsError::NoBandwidth);
            }
            if group.priorities.is_empty() {
                return Err(EtsError::NoPriority);
            }
            if let Some(priority) = PrioritySet(seen.0 & group.priorities.0).iter().next() {
                return Err(EtsError::Twice(priority));
            }
            seen.0 |= group.priorities.0;
        }
        if let Some(priority) = PrioritySet(!seen.0).iter().next() {
            return Err(EtsError::Missing(priority));
        }
        let sum: u32 = groups.iter().map(|group| u32::from(group.bandwidth)).sum();
        let of = |priority| groups.iter().position(|group| group.priorities.contains(priority)).unwrap_or(0);
        let group_of = core::array::from_fn(|priority| of(priority as Priority) as u8);
        Ok(EtsConfig { strict, groups, unit: ROUND_BYTES / sum.max(1), group_of })
    }

    /// The strict priorities.
    pub fn strict(&self) -> PrioritySet {
        self.strict
    }

    /// The groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Bytes that a group gains in a round.
    fn quantum(&self, group: usize) -> u32 {
        self.unit * u32::from(self.groups[group].bandwidth)
    }
}

/// The transmission selection of one output.
#[derive(Clone, Debug, Default)]
pub struct Ets {
    /// The group whose turn it is, and whether it has gained its quantum.
    turn: u8,
    has_gained: bool,
    deficits: [u32; PRIORITIES],
    /// The priority that each group sent last.
    last: [Priority; PRIORITIES],
}

impl Ets {
    /// The priority that sends next: one of `ready`, the priorities with frames that are not paused. `backlogged` are all
    /// priorities with frames, `first_bytes` is the length of the first frame of a priority.
    #[inline]
    pub fn next(
        &mut self,
        config: &EtsConfig,
        backlogged: PrioritySet,
        ready: PrioritySet,
        first_bytes: impl Fn(Priority) -> u32,
    ) -> Option<Priority> {
        let strict = ready.0 & config.strict.0;
        if strict != 0 {
            return Some(7 - strict.leading_zeros() as Priority);
        }
        if ready.is_empty() {
            return None;
        }
        if ready == backlogged && ready.0.is_power_of_two() {
            let alone = ready.0.trailing_zeros() as Priority;
            self.on_alone(config, alone, first_bytes(alone) + GAP_BYTES);
            return Some(alone);
        }
        loop {
            let turn = usize::from(self.turn);
            let group = &config.groups[turn];
            let candidates = PrioritySet(ready.0 & group.priorities.0);
            if let Some(priority) = candidates.next_after(self.last[turn]) {
                let bytes = first_bytes(priority) + GAP_BYTES;
                if !self.has_gained {
                    self.has_gained = true;
                    // A group that is paused in the middle of its turns saves no more than one of them.
                    let quantum = config.quantum(turn);
                    self.deficits[turn] = (self.deficits[turn] + quantum).min(quantum + bytes);
                }
                if bytes <= self.deficits[turn] {
                    self.deficits[turn] -= bytes;
                    self.last[turn] = priority;
                    return Some(priority);
                }
            } else if backlogged.0 & group.priorities.0 == 0 {
                self.deficits[turn] = 0;
            }
            self.turn = if turn + 1 == config.groups.len() { 0 } else { self.turn + 1 };
            self.has_gained = false;
        }
    }

    /// A priority sends without any other that has frames, which is usual: the turn comes to its group as in [`Ets::next`],
    /// past groups that all lose their deficits.
    #[inline]
    fn on_alone(&mut self, config: &EtsConfig, alone: Priority, bytes: u32) {
        let group = config.group_of[usize::from(alone)];
        let mut deficit = self.deficits[usize::from(group)];
        let keeps_turn = self.turn == group && self.has_gained && deficit >= bytes;
        if !keeps_turn {
            let quantum = config.quantum(usize::from(group));
            deficit += quantum;
            while deficit < bytes {
                deficit += quantum;
            }
        }
        self.deficits = [0; PRIORITIES];
        self.deficits[usize::from(group)] = deficit - bytes;
        (self.turn, self.has_gained) = (group, true);
        self.last[usize::from(group)] = alone;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn group(priorities: u8, bandwidth: u8) -> Group {
        Group { priorities: PrioritySet(priorities), bandwidth }
    }

    /// Priority 7 is strict; the others share as 60, 30 and 10.
    fn config() -> EtsConfig {
        let groups = vec![group(0b0000_0011, 60), group(0b0001_1100, 30), group(0b0110_0000, 10)];
        EtsConfig::new(PrioritySet(0b1000_0000), groups).unwrap()
    }

    /// Bytes that each priority sends of about `total`, where these priorities always have frames of these lengths.
    fn sent(ready: u8, lengths: [u32; 8], total: u32) -> [u32; 8] {
        let (config, mut ets) = (config(), Ets::default());
        let (mut sent, mut sum) = ([0; 8], 0);
        while sum < total {
            let priority =
                ets.next(&config, PrioritySet(ready), PrioritySet(ready), |p| lengths[usize::from(p)]).unwrap();
            sent[usize::from(priority)] += lengths[usize::from(priority)] + GAP_BYTES;
            sum += lengths[usize::from(priority)] + GAP_BYTES;
        }
        sent
    }

    #[test]
    fn weights_have_any_sum() {
        let groups = vec![group(0b0000_0001, 14), group(0b1111_1110, 1)];
        let (config, mut ets) = (EtsConfig::weighted(PrioritySet(0), groups).unwrap(), Ets::default());
        let mut sent = [0; 8];
        for _ in 0..15_000 {
            let ready = PrioritySet(0b11);
            sent[usize::from(ets.next(&config, ready, ready, |_| 1_518).unwrap())] += 1;
        }
        assert!((13_980..=14_020).contains(&sent[0]), "{sent:?}");
        let none = EtsConfig::weighted(PrioritySet(0), vec![group(0xff, 0)]);
        assert_eq!(none, Err(EtsError::NoBandwidth));
    }

    #[test]
    fn groups_share_by_weight_whatever_their_frames_are_long() {
        // 12.5 MB: 10 ms at 10 Gb/s.
        let bytes = sent(0b0010_0101, [1_518, 0, 64, 0, 0, 9_018, 0, 0], 12_500_000);
        for (priority, share) in [(0, 60.0), (2, 30.0), (5, 10.0)] {
            let percent = f64::from(bytes[priority]) / 125_000.0;
            assert!((percent - share).abs() < 1.0, "{priority}: {percent} %");
        }
    }

    #[test]
    fn priorities_of_a_group_take_turns() {
        let bytes = sent(0b0001_1101, [1_000; 8], 10_000_000);
        for (priority, share) in [(0, 66.67), (2, 11.11), (3, 11.11), (4, 11.11)] {
            let percent = f64::from(bytes[priority]) / 100_000.0;
            assert!((percent - share).abs() < 1.0, "{priority}: {percent} %");
        }
    }

    #[test]
    fn bandwidth_of_a_group_without_frames_belongs_to_the_others() {
        let bytes = sent(0b0010_0001, [1_500; 8], 10_000_000);
        assert!((f64::from(bytes[0]) / f64::from(bytes[5]) - 6.0).abs() < 0.2, "{bytes:?}");
        assert_eq!(sent(0b0010_0000, [1_500; 8], 152_000)[5], 152_000);
    }

    #[test]
    fn strict_priorities_go_first_and_the_highest_of_them_before_the_others() {
        let config = EtsConfig::new(PrioritySet(0b1100_0000), vec![group(0b0011_1111, 100)]).unwrap();
        let mut ets = Ets::default();
        let all = PrioritySet::ALL;
        assert_eq!(ets.next(&config, all, all, |_| 64), Some(7));
        assert_eq!(ets.next(&config, all, PrioritySet(0b0100_0001), |_| 64), Some(6));
        assert_eq!(ets.next(&config, all, PrioritySet(0b0000_0001), |_| 64), Some(0));
        assert_eq!(ets.next(&config, all, PrioritySet::NONE, |_| 64), None);
    }

    #[test]
    fn a_paused_group_keeps_its_deficit_but_not_its_turn() {
        let (config, mut ets) = (config(), Ets::default());
        let both = PrioritySet(0b0000_0101);
        // Group 0 has sent one frame of its turn when it is paused.
        assert_eq!(ets.next(&config, both, both, |_| 1_000), Some(0));
        let deficit = ets.deficits[0];
        assert_eq!(ets.next(&config, both, PrioritySet(0b100), |_| 1_000), Some(2));
        assert_eq!((ets.turn, ets.deficits[0]), (1, deficit));
        assert_eq!(ets.next(&config, PrioritySet(0b100), PrioritySet(0b100), |_| 1_000), Some(2));
        // Without frames it loses it: the turn must pass it.
        (0..100).for_each(|_| _ = ets.next(&config, PrioritySet(0b100), PrioritySet(0b100), |_| 1_000));
        assert_eq!(ets.deficits[0], 0);
    }

    #[test]
    fn a_group_that_is_paused_often_saves_one_turn_at_most() {
        let (config, mut ets) = (config(), Ets::default());
        let (both, other) = (PrioritySet(0b0000_0101), PrioritySet(0b100));
        // Group 0 sends one frame and is paused, again and again.
        for _ in 0..100_000 {
            while ets.next(&config, both, both, |_| 1_000) != Some(0) {}
            assert_eq!(ets.next(&config, both, other, |_| 1_000), Some(2));
        }
        // Then group 2 waits for no more than two turns of group 0.
        let frames = (0..1_000).take_while(|_| ets.next(&config, both, both, |_| 1_000) != Some(2)).count();
        assert!(frames <= 2 * 96_000 / 1_020 + 1, "{frames} frames in a row");
    }

    #[test]
    fn settings_are_checked() {
        let new = |strict, groups: &[Group]| EtsConfig::new(PrioritySet(strict), groups.to_vec()).map(|_| ());
        assert_eq!(new(0, &[group(0xff, 99)]), Err(EtsError::Sum(99)));
        assert_eq!(new(0, &[group(0x0f, 100), group(0xf0, 0)]), Err(EtsError::NoBandwidth));
        assert_eq!(new(0, &[group(0xff, 50), group(0, 50)]), Err(EtsError::NoPriority));
        assert_eq!(new(0x80, &[group(0x3f, 100)]), Err(EtsError::Missing(6)));
        assert_eq!(new(0x80, &[group(0xff, 100)]), Err(EtsError::Twice(7)));
        assert_eq!(new(0, &[group(0x1f, 50), group(0xf0, 50)]), Err(EtsError::Twice(4)));
        assert_eq!((new(0xff, &[]), new(0, &[group(0xff, 100)])), (Ok(()), Ok(())));
    }
}
