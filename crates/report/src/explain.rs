//! Explanations for readers who compare LL, LZ, ZL and ZZ, from the figures themselves.

/// Figures for the comparison of two configurations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Queries or flows that finished.
    pub finished: u64,
    /// Mean, median, p99 and p99.9 of their times.
    pub times: [f64; 4],
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Frames lost in the virtual network.
    pub lost_virtual: u64,
    /// Frames lost in the physical network.
    pub lost_physical: u64,
}

/// The flow controls of one group, as ("LL", figures).
pub type Group<'a> = (String, Vec<(&'a str, Seen)>);

/// A sentence for each thing that the figures show and do not explain; `policy_varies` where the sweep is over
/// `switch.policy` itself. A group's name may be empty.
pub fn notes(groups: &[Group<'_>], policy_varies: bool) -> Vec<String> {
    let find = |group: &Group<'_>, name: &str| group.1.iter().find(|(n, _)| *n == name).map(|(_, seen)| *seen);
    let mut notes = Vec::new();
    for (lossy, lossless) in [("LL", "ZL"), ("LZ", "ZZ")] {
        let pairs: Vec<(&str, Seen, Seen)> =
            groups.iter().filter_map(|g| Some((g.0.as_str(), find(g, lossy)?, find(g, lossless)?))).collect();
        let same = |(_, l, z): &&(&str, Seen, Seen)| l == z && l.lost_virtual == 0 && l.finished > 0;
        let equal: Vec<&str> = pairs.iter().filter(same).map(|pair| pair.0).collect();
        if !equal.is_empty() {
            let place = if equal.len() == pairs.len() { String::new() } else { format!(" ({})", equal.join("; ")) };
            notes.push(format!(
                "{lossless} equals {lossy}{place}: the vSwitch of {lossy} lost nothing, so a lossless one changes nothing."
            ));
        }
    }
    let all = || groups.iter().flat_map(|group| &group.1);
    let lossy_loses = groups.iter().filter_map(|g| find(g, "LL")).any(|ll| ll.lost_physical > 0);
    if lossy_loses && !policy_varies && all().any(|(name, _)| *name != "LL") {
        notes.push(
            "How bad LL is depends on what bounds the switches' queues, switch.policy: \
             docs/results/fig-4-14.md has the figures."
                .into(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(mean: f64, lost_virtual: u64, lost_physical: u64) -> Seen {
        let times = [mean; 4];
        Seen { finished: 10, times, timeouts: 3, retransmissions: 4, lost_virtual, lost_physical }
    }

    #[test]
    fn only_what_the_figures_show_is_said() {
        let group = |name: &str, ll, zl| (name.to_owned(), vec![("LL", ll), ("ZL", zl)]);
        let (equal, other) = (seen(5.0, 0, 9), seen(4.0, 0, 9));
        let said = notes(&[group("cubic", equal, equal), group("vegas", equal, equal)], false);
        assert!(said[0].starts_with("ZL equals LL: the vSwitch of LL lost nothing"), "{said:?}");
        assert!(said[1].contains("switch.policy"), "{said:?}");
        let said = notes(&[group("cubic", equal, equal), group("vegas", equal, other)], true);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("ZL equals LL (cubic): "), "{said:?}");
        // Equal by chance is not equal because the vSwitch lost nothing.
        assert!(notes(&[group("", seen(5.0, 1, 0), seen(5.0, 1, 0))], false).is_empty());
        assert!(notes(&[group("", seen(5.0, 0, 0), seen(4.0, 0, 0))], false).is_empty());
        assert!(notes(&[(String::new(), vec![("LL", equal)])], false).is_empty());
        assert!(notes(&[], false).is_empty());
    }
}
