//! The links of a scenario by kind, and the buffer each needs to lose nothing: for people, before a run.

use super::{Directions, Plan, watermarks};
use serde::Serialize;
use sluicenet_scenario::{Result, Scenario};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Links that are alike, by the boxes at their ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkKind {
    /// Sender and receiver.
    pub name: String,
    /// How many directions there are.
    pub directions: u64,
    /// Whether both directions of a link are of this kind.
    pub both: bool,
    /// Speed.
    pub gbps: f64,
    /// Delay of the cable alone.
    pub delay_ns: f64,
    /// Where the receiver pauses the sender; none where nothing is paused.
    pub xoff_bytes: Option<u64>,
    /// Buffer space that the receiver keeps free above XOFF.
    pub headroom_bytes: Option<u64>,
}

/// Key of links that are alike: levels of sender and receiver, bits a second, picoseconds of cable, XOFF and headroom.
type Likeness = (u8, u8, u64, u64, (Option<u64>, Option<u64>));

/// The links of a scenario by kind, from the hosts up.
pub fn link_kinds(scenario: &Scenario) -> Result<Vec<LinkKind>> {
    let plan = Arc::new(Plan::new(scenario)?);
    let links = Directions::new(scenario, plan.clone());
    let mut kinds: BTreeMap<Likeness, u64> = BTreeMap::new();
    for l in links.iter() {
        let back = links.back(&l);
        let receiver = plan.level(l.to.0);
        // A server's buffer is behind its adapter: it pauses only when its own machines do not take their frames.
        let xoff = if receiver == 0 { scenario.adapter.buffer } else { scenario.pfc.xoff }.as_bytes() as u32;
        // In a pool the threshold follows the free bytes.
        let has_own = receiver == 0 || !scenario.buffer.is_on();
        let marks = scenario.pfc.enabled.then(|| watermarks(scenario, xoff, &l, &back));
        let room =
            (marks.filter(|_| has_own).map(|m| u64::from(m.xoff)), marks.map(|m| u64::from(m.capacity - m.xoff)));
        let delay = plan.link(l.from.0, l.from.1).delay;
        *kinds.entry((plan.level(l.from.0), receiver, l.rate.as_bps(), delay.as_ps(), room)).or_default() += 1;
    }
    let name = |level: u8| if level == 0 { "host".to_string() } else { format!("level {level}") };
    let kind = |((from, to, bps, delay, room), directions): (Likeness, u64)| LinkKind {
        name: format!("{} to {}", name(from), name(to)),
        directions,
        both: from == to,
        gbps: bps as f64 / 1e9,
        delay_ns: delay as f64 / 1e3,
        xoff_bytes: room.0,
        headroom_bytes: room.1,
    };
    Ok(kinds.into_iter().map(kind).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_counted_by_their_ends() {
        let text = "[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 2]\n[pfc]\nenabled = true\n[[workload]]\n\
                    kind = \"flow\"\nsrc = 0\ndst = 7\nbytes = \"1 KB\"\n";
        let kinds = link_kinds(&Scenario::parse(text, "t").unwrap().scenario).unwrap();
        let short: Vec<(&str, u64)> = kinds.iter().map(|k| (k.name.as_str(), k.directions)).collect();
        let want =
            [("host to level 1", 8), ("level 1 to host", 8), ("level 1 to level 2", 4), ("level 2 to level 1", 4)];
        assert_eq!(short, want);
        // At least two frames of 1,538 B, a pause frame of 84 B, and the bytes on a microsecond of cable each way and
        // in 614.4 ns.
        assert!(kinds[0].headroom_bytes >= Some(2 * 1538 + 84 + 2500 + 768), "{:?}", kinds[0]);
        assert_eq!(kinds[0].xoff_bytes, Some(100_000));
    }
}
