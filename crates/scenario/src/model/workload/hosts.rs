//! Hosts by number or by name.

use crate::error::Result;
use crate::model::Counts;
use crate::setting::{Section, Setting};
use crate::tree::Value;
use serde::Serialize;
use std::collections::BTreeSet;

/// The forms of a value.
const FORMS: &str = "a count as 16, a list as [0, 2, 5], or ranges as \"0-7, 16\"";

/// Hosts by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hosts {
    /// This many of them; the workload says which.
    Count(u32),
    /// These, in this order, none twice.
    List(Vec<u32>),
}

impl Hosts {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Hosts::Count(n) => *n as usize,
            Hosts::List(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key: a count of hosts of the network, a list of any of them, or ranges of them as text.
    pub(crate) fn read(s: &Section<'_>, name: &str, counts: &Counts) -> Result<Option<Hosts>> {
        let Some(node) = s.get(name) else { return Ok(None) };
        let last = counts.endpoints() - 1;
        let named = match &node.value {
            Value::Int(_) => return u32::read(s, name, node, &(1..=counts.hosts)).map(|n| Some(Hosts::Count(n))),
            Value::List(list) => {
                let one = |node| Ok((u32::read(s, name, node, &(0..=last))?, node));
                list.iter().map(one).collect::<Result<Vec<_>>>()?
            }
            Value::Text(text) => {
                let hosts = ranges(text, last).map_err(|message| s.error(name, message).expected(FORMS))?;
                hosts.into_iter().map(|host| (host, node)).collect()
            }
            _ => return Err(s.wrong(node, FORMS)),
        };
        let mut seen = BTreeSet::new();
        if let Some((host, node)) = named.iter().find(|(host, _)| !seen.insert(*host)) {
            return Err(s.doc.error(node.span, format!("host {host} is listed twice")));
        }
        if named.is_empty() {
            return Err(s.error(name, format!("`{name}` is empty")).expected(FORMS));
        }
        Ok(Some(Hosts::List(named.into_iter().map(|(host, _)| host).collect())))
    }

    /// The hosts that a list names; a count is of the network's own.
    pub(super) fn named(&self) -> &[u32] {
        match self {
            Hosts::List(list) => list,
            Hosts::Count(_) => &[],
        }
    }
}

/// The hosts that a text names in order: numbers, and ranges with both ends, with commas between.
///
/// # Errors
/// Why it is not such a text, or names a host above `last`.
fn ranges(text: &str, last: u32) -> core::result::Result<Vec<u32>, String> {
    let number = |word: &str| -> core::result::Result<u32, String> {
        let word = word.trim();
        let shown: String = word.chars().take(40).collect();
        if word.is_empty() || !word.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("`{shown}` is not a host"));
        }
        let host = word.parse().ok().filter(|host| *host <= last);
        host.ok_or_else(|| format!("there is no host {shown}: the last one is {last}"))
    };
    let mut hosts = Vec::new();
    for part in text.split(',') {
        let (first, end) = part.split_once('-').unwrap_or((part, part));
        let (first, end) = (number(first)?, number(end)?);
        if first > end {
            return Err(format!("the range {first}-{end} ends before it begins"));
        }
        // No more hosts than there are: a host that is named again is refused before the list grows.
        if hosts.len() as u64 + u64::from(end - first) > u64::from(last) {
            return Err(format!("more hosts than the {} there are: some are named twice", u64::from(last) + 1));
        }
        hosts.extend(first..=end);
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_both_ends_and_keep_their_order() {
        assert_eq!(ranges("16-19", 63), Ok(vec![16, 17, 18, 19]));
        assert_eq!(ranges("0-2, 16 ,32-33", 63), Ok(vec![0, 1, 2, 16, 32, 33]));
        assert_eq!((ranges("5", 63), ranges("7-7,3", 63)), (Ok(vec![5]), Ok(vec![7, 3])));
        for (text, message) in [
            ("", "`` is not a host"),
            ("0-7,", "`` is not a host"),
            ("a-7", "`a` is not a host"),
            ("1-2-3", "`2-3` is not a host"),
            ("-7", "`` is not a host"),
            ("7-3", "the range 7-3 ends before it begins"),
            ("0-64", "there is no host 64: the last one is 63"),
            ("0-99999999999999999999", "there is no host 99999999999999999999: the last one is 63"),
            ("0-63, 0-63", "more hosts than the 64 there are: some are named twice"),
        ] {
            assert_eq!(ranges(text, 63), Err(message.to_owned()), "{text}");
        }
    }
}
