//! The simulator that a topology file was written for, recognised by the file's header and body.

use crate::formats::lines::{Line, Words};
use crate::{Error, Quantity, Result};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// The simulator whose header a topology file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// HPCC's (alibaba-edu/High-Precision-Congestion-Control), and those that kept its header, as ConWeave's.
    Hpcc,
    /// PowerTCP's (inet-tub/ns3-datacenter).
    PowerTcp,
    /// Reverie's, in the same repository.
    Reverie,
    /// SimAI's (aliyun/SimAI).
    SimAi,
}

/// Words of a link.
const LINK_WORDS: u64 = 5;
/// Those of them before its delay.
const WORDS_TO_DELAY: u64 = 3;
/// Those of them before its rate: the ids of two nodes.
const WORDS_TO_RATE: usize = 2;

impl Dialect {
    /// Every dialect.
    pub const ALL: [Dialect; 4] = [Dialect::Hpcc, Dialect::PowerTcp, Dialect::Reverie, Dialect::SimAi];

    /// The simulator's name.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::Hpcc => "HPCC",
            Dialect::PowerTcp => "PowerTCP",
            Dialect::Reverie => "Reverie",
            Dialect::SimAi => "SimAI",
        }
    }

    /// The words of its header.
    pub const fn header(self) -> &'static str {
        match self {
            Dialect::Hpcc => "nodes switches links",
            Dialect::PowerTcp => "nodes switches tors links",
            Dialect::Reverie => "nodes switches tors links server_bps spine_bps",
            Dialect::SimAi => "nodes gpus_per_server nvswitches switches links gpu_type",
        }
    }

    /// The dialect as it is told to users.
    pub fn described(self) -> String {
        format!("{} ({})", self.name(), self.header())
    }

    fn header_words(self) -> usize {
        self.header().split(' ').count()
    }

    /// Place of the number of links among the words of its header.
    fn links_at(self) -> usize {
        self.header().split(' ').position(|word| word == "links").expect("every header counts links")
    }

    /// Switches that a header declares; none where the header is not one of this dialect.
    fn switches(self, header: &[(Line<'_>, &str)]) -> Option<u64> {
        let number = |i: usize| header.get(i)?.1.parse::<u64>().ok();
        let nodes = number(0)?;
        let switches = match self {
            Dialect::Hpcc => number(1).filter(|_| number(2).is_some())?,
            Dialect::PowerTcp => number(1).filter(|&all| number(2) <= Some(all) && number(3).is_some())?,
            Dialect::Reverie => {
                // One tells; if the other is none, the error is about it.
                let has_rate = [4, 5].iter().any(|&i| header.get(i).is_some_and(|word| is_rate(word.1)));
                number(1).filter(|&all| has_rate && number(2) <= Some(all) && number(3).is_some())?
            }
            Dialect::SimAi => {
                let is_type = header.get(5).is_some_and(|word| !is_number(word.1));
                number(2)?.checked_add(number(3)?).filter(|_| is_type && number(1).is_some() && number(4).is_some())?
            }
        };
        (switches < nodes).then_some(switches)
    }

    /// The error with the name of the dialect.
    pub(super) fn in_error(self, e: Error) -> Error {
        e.with(&format!(" (read as a topology of {}: {})", self.name(), self.header()))
    }
}

/// A file's dialect, and how many words come before its first link if a link's delay shows where it is.
pub(super) struct Recognised {
    pub dialect: Dialect,
    pub before_links: Option<u64>,
}

impl Recognised {
    /// Refuses a header that declares other than as many ids of switches as there are.
    pub fn check(&self, switches: u64) -> core::result::Result<(), String> {
        let Some(before) = self.before_links else { return Ok(()) };
        let header = self.dialect.header_words() as u64;
        match before.checked_sub(header) {
            Some(found) if found == switches => Ok(()),
            found => {
                let found = found.unwrap_or(0);
                Err(format!("the header says {switches} switches, and {found} ids come before the first link"))
            }
        }
    }
}

/// The words of a file up to the delay of its first link, and how many there are in all.
struct Opening<'a> {
    words: Vec<WordLocation<'a>>,
    /// Words before the first link, if its delay shows where it is.
    before_links: Option<u64>,
    all: u64,
}

type WordLocation<'a> = (Line<'a>, &'a str);

/// Recognises a dialect by the number of words in the header's line. If the body contradicts it, the dialect is the only one
/// that fits the body: the first link comes after the header and as many ids as the header says switches, and there are as
/// many links as it says.
pub(super) fn recognise(file: &str, bytes: &[u8]) -> Result<Recognised> {
    let mut words = Words::new(file, bytes);
    let mut opening = Opening { words: Vec::new(), before_links: None, all: 0 };
    while let Some((line, word)) = words.next()? {
        opening.all += 1;
        if opening.before_links.is_none() {
            if is_delay(word) {
                opening.before_links = Some((opening.all - 1).saturating_sub(WORDS_TO_DELAY));
            }
            opening.words.push((line, word));
        }
    }
    let Some(&(line, first)) = opening.words.first() else {
        return Err(words.reader.truncated("the file ends where the number of nodes should be"));
    };
    words.reader.number_in(line, first, "the number of nodes", u64::MAX)?;
    let in_line = line.text.split_whitespace().count();
    let by_line = match (in_line, opening.words.get(5)) {
        // The fifth word is SimAI's number of links, or a rate of Reverie, which may have a unit.
        (6, Some(word)) if !is_number(word.1) && is_number(opening.words[4].1) => Some(Dialect::SimAi),
        (n, _) => Dialect::ALL.into_iter().find(|d| d.header_words() == n),
    };
    let others: Vec<Dialect> = Dialect::ALL.into_iter().filter(|d| opening.fits(*d)).collect();
    let dialect = match (by_line, &others[..]) {
        (Some(dialect), _) if opening.has_ids_of(dialect) => dialect,
        (_, &[dialect]) => dialect,
        (Some(dialect), _) => dialect,
        (None, _) => {
            let message = format!("a header of {in_line} words, which fits no dialect of HPCC's topology files");
            let known: Vec<String> = Dialect::ALL.into_iter().map(Dialect::described).collect();
            return Err(Error::line(file, line.number, line.text, message)
                .hint(format!("a line of its own with the words of one of: {}", known.join(", "))));
        }
    };
    let before_links = match opening.has_ids_of(dialect) {
        true => opening.expected_before(dialect),
        false => opening.before_links,
    };
    Ok(Recognised { dialect, before_links })
}

impl Opening<'_> {
    /// Words before the first link, by a header of this dialect.
    fn expected_before(&self, dialect: Dialect) -> Option<u64> {
        dialect.switches(&self.words)?.checked_add(dialect.header_words() as u64)
    }

    /// Whether as many words as a header of this dialect says switches come before the first link.
    fn has_ids_of(&self, dialect: Dialect) -> bool {
        match (self.expected_before(dialect), self.before_links) {
            (Some(expected), Some(found)) if expected < found => self.has_link_at(dialect, expected as usize),
            (expected, found) => expected.is_some() && expected == found,
        }
    }

    /// Whether a link begins here, by its rate: its delay is none, and that of a later link is the first in the file.
    fn has_link_at(&self, dialect: Dialect, at: usize) -> bool {
        let rate_at = at + WORDS_TO_RATE;
        (dialect.header_words()..rate_at).all(|at| self.is_id(at)) && rate_at < self.words.len() && !self.is_id(rate_at)
    }

    fn number(&self, at: usize) -> Option<u64> {
        self.words.get(at)?.1.parse().ok()
    }

    /// Whether a word can be a node's id.
    fn is_id(&self, at: usize) -> bool {
        self.number(at).is_some_and(|id| Some(id) < self.number(0))
    }

    /// Whether these are ids of nodes, and as many links follow as the header says.
    fn fits(&self, dialect: Dialect) -> bool {
        let (header, before) = (dialect.header_words(), self.expected_before(dialect).unwrap_or(0));
        let links = self.number(dialect.links_at()).and_then(|links| links.checked_mul(LINK_WORDS));
        let are_ids = || (header..before as usize).all(|at| self.is_id(at));
        self.has_ids_of(dialect) && are_ids() && links.is_some_and(|links| links <= self.all - before)
    }
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok()
}

/// Whether a word is a rate, with a unit or in bits a second.
fn is_rate(word: &str) -> bool {
    is_number(word) || Rate::parse(word).is_ok()
}

/// Whether a word is a time with a unit, which only a link's delay is.
fn is_delay(word: &str) -> bool {
    let word = word.trim_start_matches('-');
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    unit.len() < word.len() && Duration::UNITS.iter().any(|(name, _)| *name == unit)
}
