//! Active queue management: RED, WRED profiles, and a threshold on the queue's length, by class.

use super::{Backlog, Mark, MarkCounts, PortId, Verdict};
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::aqm::{Decision, Red, RedConfig};
use sluicenet_proto::frame::{Frame, PRIORITIES, Priority};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;

/// The rule of a class that selects frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Select {
    /// By the average length of the queue.
    Red(RedConfig),
    /// Every frame that finds more than this many bytes in the queue (RFC 8257, section 3.1).
    Threshold(u32),
}

/// The queue management of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassRule {
    /// The rule that selects frames.
    pub select: Select,
    /// Whether selected frames are marked if their transport supports ECN.
    pub marks: bool,
    /// Whether frames that are selected for a mark but cannot be marked are dropped. A lossless class must not drop.
    pub drops: bool,
}

/// The queue management of each class that has one.
pub type ClassRules = [Option<ClassRule>; PRIORITIES];

/// The state of a class at one output.
#[derive(Clone, Debug)]
struct Class {
    red: Red,
    counts: MarkCounts,
}

/// The active queue management of one output.
#[derive(Clone, Debug)]
pub struct ActiveQueue {
    /// Of each output of the switch: what a time of RED means depends on the speed of the link.
    rules: Arc<[Arc<ClassRules>]>,
    seed: u64,
    rule: Arc<ClassRules>,
    classes: [Class; PRIORITIES],
}

impl ActiveQueue {
    /// The queue management of a switch, which has this number, with the rules of each output; none without rules.
    pub fn new(rules: Vec<Arc<ClassRules>>, seed: u64, switch: usize) -> Option<ActiveQueue> {
        let seed = Rng::from_words(&[seed, switch as u64]).next_u64();
        let has_rule = |of_port: &Arc<ClassRules>| of_port.iter().any(Option::is_some);
        let rule = rules.iter().find(|of_port| has_rule(of_port))?.clone();
        Some(ActiveQueue { rules: rules.into(), seed, rule, classes: classes(seed, PortId::MAX) })
    }

    /// The same for one output, with random numbers of its own.
    pub fn of_port(&self, port: PortId) -> ActiveQueue {
        let rule = self.rules[port as usize].clone();
        ActiveQueue { rule, classes: classes(self.seed, port), ..self.clone() }
    }
}

/// The classes of an output before the first frame.
fn classes(seed: u64, port: PortId) -> [Class; PRIORITIES] {
    core::array::from_fn(|class| {
        let rng = Rng::from_words(&[seed, u64::from(port), class as u64]);
        Class { red: Red::new(rng), counts: MarkCounts::default() }
    })
}

impl<F: Frame> Mark<F> for ActiveQueue {
    #[inline(always)]
    fn on_arrival(&mut self, now: Instant, backlog: Backlog, frame: &mut F) -> Verdict<F> {
        let Some(rule) = &self.rule[backlog.class as usize] else { return Verdict::Forward };
        let class = &mut self.classes[backlog.class as usize];
        let decision = match &rule.select {
            Select::Red(config) => class.red.on_arrival(config, now, backlog.class_bytes),
            Select::Threshold(bytes) if backlog.class_bytes > *bytes => Decision::Mark,
            Select::Threshold(_) => Decision::Pass,
        };
        match decision {
            Decision::Pass => Verdict::Forward,
            Decision::Mark if rule.marks && frame.mark() => {
                class.counts.frames += 1;
                class.counts.bytes += u64::from(frame.len());
                Verdict::Forward
            }
            Decision::Mark if !rule.drops => Verdict::Forward,
            Decision::Mark | Decision::Drop => Verdict::Drop(DropReason::EarlyDrop),
        }
    }

    #[inline(always)]
    fn on_departure(&mut self, now: Instant, backlog: Backlog, _frame: &mut F) -> Verdict<F> {
        if backlog.class_bytes == 0 {
            self.classes[backlog.class as usize].red.on_empty(now);
        }
        Verdict::Forward
    }

    fn counts(&self, class: Priority) -> MarkCounts {
        self.classes[class as usize].counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, FlowKey, Framing, Packet};
    use alloc::vec;
    use sluicenet_proto::time::Duration;
    use sluicenet_wire::ipv4::Ecn;

    const CLASS: Priority = 3;

    fn of_port(rule: ClassRule) -> ActiveQueue {
        let mut rules = ClassRules::default();
        rules[CLASS as usize] = Some(rule);
        ActiveQueue::new(vec![Arc::new(rules)], 1, 0).unwrap().of_port(0)
    }

    /// What becomes of a frame that finds so many bytes: its ECN field, unless it is dropped.
    fn after(queue: &mut ActiveQueue, class: Priority, class_bytes: u32, ecn: Ecn) -> Option<Ecn> {
        let flow = FlowKey { src: Address::new(0, 0), dst: Address::new(1, 0), sport: 1, dport: 2 };
        let mut frame = Packet::udp(flow, 0, 1_000, class, Framing::ETHERNET);
        frame.set_ecn(ecn);
        let backlog = Backlog { port: 0, class, class_bytes, port_bytes: class_bytes };
        match queue.on_arrival(Instant::ZERO, backlog, &mut frame) {
            Verdict::Forward => Some(frame.ecn()),
            Verdict::Drop(DropReason::EarlyDrop) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_threshold_marks_frames_that_find_more_than_it() {
        let rule = ClassRule { select: Select::Threshold(97_500), marks: true, drops: true };
        let mut queue = of_port(rule);
        assert_eq!(after(&mut queue, CLASS, 97_500, Ecn::Ect0), Some(Ecn::Ect0));
        assert_eq!(after(&mut queue, CLASS, 97_501, Ecn::Ect0), Some(Ecn::Ce));
        assert_eq!(after(&mut queue, CLASS, 97_501, Ecn::NotEct), None);
        assert_eq!(after(&mut queue, CLASS + 1, 1_000_000, Ecn::Ect0), Some(Ecn::Ect0), "a class without a rule");
        let counts = Mark::<Packet>::counts(&queue, CLASS);
        assert_eq!((counts.frames, counts.bytes), (1, 1_046));
    }

    #[test]
    fn without_drops_frames_that_cannot_be_marked_go_on_and_without_marks_all_are_dropped() {
        let rule = ClassRule { select: Select::Threshold(0), marks: true, drops: false };
        assert_eq!(after(&mut of_port(rule), CLASS, 1, Ecn::NotEct), Some(Ecn::NotEct));
        let rule = ClassRule { marks: false, drops: true, ..rule };
        assert_eq!(after(&mut of_port(rule), CLASS, 1, Ecn::Ect0), None);
    }

    #[test]
    fn red_above_its_maximum_drops_frames_of_any_transport_if_it_is_told_to() {
        let red = RedConfig {
            min_threshold: 10_000,
            max_threshold: 20_000,
            weight: 1.0,
            max_probability: 0.1,
            counts: false,
            drops_above: true,
            packet_time: Duration::from_ns(1_200),
        };
        let rule = ClassRule { select: Select::Red(red), marks: true, drops: true };
        let mut queue = of_port(rule);
        assert_eq!(after(&mut queue, CLASS, 9_999, Ecn::Ect0), Some(Ecn::Ect0));
        assert_eq!(after(&mut queue, CLASS, 20_000, Ecn::Ect0), None);
        let marked = (0..1_000).filter(|_| after(&mut queue, CLASS, 15_000, Ecn::Ect0) == Some(Ecn::Ce)).count();
        assert!((25..=80).contains(&marked), "{marked} of 1,000, a twentieth expected");
        let rule = ClassRule { select: Select::Red(RedConfig { drops_above: false, ..red }), ..rule };
        assert_eq!(after(&mut of_port(rule), CLASS, 20_000, Ecn::Ect0), Some(Ecn::Ce));
        // Frames that cannot be marked pass below the maximum alone.
        let rule = ClassRule { select: Select::Red(red), drops: false, ..rule };
        assert_eq!(after(&mut of_port(rule), CLASS, 19_999, Ecn::NotEct), Some(Ecn::NotEct));
        assert_eq!(after(&mut of_port(rule), CLASS, 20_000, Ecn::NotEct), None);
    }
}
