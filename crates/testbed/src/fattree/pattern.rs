//! Traffic patterns: those of a scenario's `permutation` and `shuffle`, so that a seed gives the same pairs in testbed
//! and simulation.

use sluicenet_experiment::workload::{permutation_pairs, shuffle_order};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::fat_tree::FatTree;
use sluicenet_scenario::{Scenario, Workload};
use std::fmt;
use std::str::FromStr;

const SHUFFLE: &str = "shuffle";
/// The names of the patterns; a command line cannot give a scenario's pairs from a file.
const NAMES: [&str; 8] =
    ["random", "non-bijective", "stride", "staggered", "inter-pod-incoming", "same-id-outgoing", "hotspot", SHUFFLE];
/// The number of the only workload.
const NUMBER: u8 = 0;

/// A benchmark of the suite in its form on the command line: `stride:4` is a scenario's `stride(4)`,
/// `staggered:0.5/0.3` its `staggered(0.5, 0.3)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// A host's flows, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The sender.
    pub src: HostId,
    /// The receivers in order.
    pub to: Vec<HostId>,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// Parses a pattern; [`Pattern::jobs`] finds unknown names.
    fn from_str(text: &str) -> Result<Pattern, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-:/.".contains(c);
        match !text.is_empty() && text.chars().all(is_plain) {
            true => Ok(Pattern(text.to_owned())),
            false => Err("the name of a pattern, as stride:4 or staggered:0.5/0.3".into()),
        }
    }
}

impl Pattern {
    /// Whether every host sends to every other one, one after the other.
    pub fn is_shuffle(&self) -> bool {
        self.0 == SHUFFLE
    }

    /// The flows of each sender. Equal seeds give equal flows, in the simulation too.
    ///
    /// # Errors
    /// An unknown pattern, or the error of a scenario with this pattern.
    pub fn jobs(&self, tree: FatTree, seed: u64) -> Result<Vec<Job>, String> {
        let hosts = tree.hosts();
        if self.is_shuffle() {
            let order = |src| Job { src, to: shuffle_order(seed, NUMBER, src, hosts).into_iter().rev().collect() };
            return Ok((0..hosts).map(order).collect());
        }
        let name = self.0.split(':').next().unwrap_or_default();
        if !NAMES.contains(&name) {
            return Err(format!("--pattern {self}: there is no such pattern; expected: {}", NAMES.join(", ")));
        }
        let written = match self.0.split_once(':') {
            Some((name, numbers)) => format!("{name}({})", numbers.replace('/', ", ")),
            None => self.0.clone(),
        };
        let text = format!(
            "[scenario]\nduration = \"1 s\"\nseed = {seed}\n[topology]\nkind = \"fat-tree\"\nk = {}\n\
             [[workload]]\nkind = \"permutation\"\npattern = \"{written}\"\n",
            tree.k()
        );
        let loaded = Scenario::parse(&text, "--pattern").map_err(|e| {
            let d = e.diagnostic();
            let expected = if d.expected.is_empty() { String::new() } else { format!("; expected: {}", d.expected) };
            format!("--pattern {self}: {}{expected}", d.message)
        })?;
        let Some(Workload::Permutation(w)) = loaded.scenario.workloads.first() else { return Ok(Vec::new()) };
        let pairs = permutation_pairs(&loaded.scenario, NUMBER, w);
        Ok(pairs.into_iter().map(|(src, _, dst)| Job { src, to: vec![dst] }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_as_it_is_written_and_every_host_sends_to_another() {
        let names = "random stride:1 stride:8 staggered:1/0 staggered:0.5/0.3 inter-pod-incoming same-id-outgoing non-bijective shuffle";
        for (k, name) in [4, 6].into_iter().flat_map(|k| names.split(' ').map(move |name| (k, name))) {
            let (tree, pattern) = (FatTree::new(k).unwrap(), name.parse::<Pattern>().unwrap());
            assert_eq!(pattern.to_string(), name);
            let jobs = pattern.jobs(tree, 3).unwrap();
            assert_eq!(jobs, pattern.jobs(tree, 3).unwrap());
            assert_eq!(jobs.len() as u32, tree.hosts(), "{name}");
            assert!(jobs.iter().all(|job| !job.to.contains(&job.src)), "{name}");
            let others = if pattern.is_shuffle() { tree.hosts() as usize - 1 } else { 1 };
            assert!(jobs.iter().all(|job| job.to.len() == others), "{name}");
        }
        let hot: Pattern = "hotspot:1".parse().unwrap();
        assert_eq!(hot.jobs(FatTree::new(4).unwrap(), 1).unwrap().len(), 15, "who receives has nobody to send to");
    }

    #[test]
    fn what_is_none_is_told() {
        let tree = FatTree::new(4).unwrap();
        for text in
            ["rand", "stride:0", "stride:16", "stride:x", "staggered:0.9/0.9", "staggered:nan/0", "random:1", "file"]
        {
            let why = text.parse::<Pattern>().unwrap().jobs(tree, 0).unwrap_err();
            assert!(why.starts_with(&format!("--pattern {text}: ")), "{why}");
        }
        for text in ["", "random\"", "a b", "stride(4)"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }
}
