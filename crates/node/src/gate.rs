//! The gate checks which stations of a switch may talk to each other ([`Policy`]). It checks a frame from a guest before
//! the frame asks for credits. It checks a frame from another server before the frame is kept or answered.
//!
//! A machine has one vNIC or two (Crisan 2014, Table 5.2), each a station: the first is in the lossless stack, the second
//! in the lossy stack. First vNICs talk to first vNICs and second ones to second ones. No frame of a second vNIC is in a
//! lossless class, whoever sent it: frames of the lossy stack never meet the lossless stack.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::overlay::policy::Policy;

/// Verdicts that a gate keeps. As many pairs that talk at a time are checked without looking at rules.
const VERDICTS: usize = 256;

/// The machine of a station, and the station's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vnic {
    /// The machine, by one of its stations; `None` is a host outside.
    pub machine: Option<Station>,
    /// Whether the station is the second vNIC, of the lossy stack.
    pub lossy: bool,
}

/// Policy between stations. A station that is not named is the first vNIC of a machine of no tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StationPolicy {
    policy: Policy<Station>,
    vnics: BTreeMap<Station, Vnic>,
    lossless: PrioritySet,
}

impl StationPolicy {
    /// From the policy between machines, the machines' stations, and the lossless classes.
    pub fn new(policy: Policy<Station>, vnics: BTreeMap<Station, Vnic>, lossless: PrioritySet) -> StationPolicy {
        StationPolicy { policy, vnics, lossless }
    }

    /// The machine of a station, and the station's place in it.
    pub fn vnic(&self, station: Station) -> Vnic {
        self.vnics.get(&station).copied().unwrap_or(Vnic { machine: Some(station), lossy: false })
    }

    /// Whether a station may send another a frame of a class.
    pub fn allows(&self, from: Station, to: Station, class: Priority) -> bool {
        let [a, b] = [from, to].map(|station| self.vnic(station));
        a.lossy == b.lossy && !(a.lossy && self.lossless.contains(class)) && self.policy.allows(a.machine, b.machine)
    }
}

/// A frame's sender, receiver and class, and whether the frame is allowed.
type Verdict = (Station, Station, Priority, bool);

/// A policy and its latest verdicts.
#[derive(Clone, Debug)]
pub struct Gate {
    policy: Arc<StationPolicy>,
    verdicts: Box<[Option<Verdict>; VERDICTS]>,
}

impl Gate {
    /// A gate without verdicts.
    pub fn new(policy: Arc<StationPolicy>) -> Gate {
        Gate { policy, verdicts: Box::new([None; VERDICTS]) }
    }

    /// As [`StationPolicy::allows`].
    #[inline(never)]
    pub fn allows(&mut self, from: Station, to: Station, class: Priority) -> bool {
        let kept = &mut self.verdicts[slot(from, to, class)];
        if let Some((a, b, c, verdict)) = *kept
            && (a, b, c) == (from, to, class)
        {
            return verdict;
        }
        let verdict = self.policy.allows(from, to, class);
        *kept = Some((from, to, class, verdict));
        verdict
    }
}

fn slot(from: Station, to: Station, class: Priority) -> usize {
    let mixed = (from.number() ^ to.number().rotate_left(29) ^ u64::from(class)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 48) as usize % VERDICTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use sluicenet_proto::overlay::policy::{Party, Rule};

    fn at(n: u8) -> Station {
        Station::new([2, 0, 0, 0, 0, n], 7)
    }

    /// Machines 1 and 2 of one tenant, 3 of another, with second vNICs 11 to 13; 20 is outside.
    fn gate(rules: vec::Vec<Rule<Station>>) -> Gate {
        let tenants = [(at(1), 0), (at(2), 0), (at(3), 1)].into();
        let machine = |n| {
            [
                (at(n), Vnic { machine: Some(at(n)), lossy: false }),
                (at(10 + n), Vnic { machine: Some(at(n)), lossy: true }),
            ]
        };
        let outside = (at(20), Vnic { machine: None, lossy: true });
        let vnics = (1..=3).flat_map(machine).chain([outside]).collect();
        Gate::new(Arc::new(StationPolicy::new(Policy::new(tenants, rules), vnics, PrioritySet(0b0001))))
    }

    #[test]
    fn first_vnics_talk_to_first_ones_and_second_ones_to_second_ones_in_their_class() {
        let mut gate = gate(vec![]);
        // Twice: the second time the verdict is known.
        for _ in 0..2 {
            for (from, to, class, may) in [
                (1, 2, 0, true),
                (1, 3, 0, false),
                (11, 12, 1, true),
                (11, 13, 1, false),
                (11, 12, 0, false),
                (1, 12, 0, false),
                (1, 12, 1, false),
                (1, 2, 1, true),
                (20, 11, 1, true),
                (20, 13, 1, true),
                (20, 11, 0, false),
                (20, 1, 1, false),
                (1, 99, 0, false),
                (98, 99, 0, true),
            ] {
                assert_eq!(gate.allows(at(from), at(to), class), may, "{from} to {to} in {class}");
            }
        }
    }

    #[test]
    fn a_rule_holds_for_both_vnics_of_a_machine() {
        let rule = Rule { between: [Party::Machine(at(2)), Party::Tenant(1)], allow: true };
        let mut gate = gate(vec![rule]);
        assert!(gate.allows(at(2), at(3), 0) && gate.allows(at(13), at(12), 1));
        assert!(!gate.allows(at(1), at(3), 0) && !gate.allows(at(11), at(13), 1));
    }

    #[test]
    fn what_is_kept_is_of_its_pair_and_class() {
        let mut gate = gate(vec![]);
        let policy = gate.policy.clone();
        for n in 0..=255 {
            for (from, to, class) in [(at(n), at(2), 0), (at(11), at(n), 1), (at(n), at(12), n % 2)] {
                assert_eq!(gate.allows(from, to, class), policy.allows(from, to, class));
            }
        }
    }
}
