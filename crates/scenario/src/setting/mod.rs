//! The keys of a table, each declared once: [`settings!`](crate::settings) makes reader, hints, schema and reference
//! page of it.

mod declare;
mod section;
mod values;

pub use section::Section;
pub(crate) use section::shown;
pub use values::{Choice, Or};

use crate::error::Result;
use crate::tree::Node;
use crate::units::{Bytes, Length, Packets};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// The values that a key takes, as the schema describes them. Numbers and quantities have a least and a greatest value.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Text.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Count(u64, u64),
    /// A list of whole numbers.
    Counts(u64, u64),
    /// A number.
    Number(f64, f64),
    /// A rate.
    Rate(Rate, Rate),
    /// A size.
    Size(Bytes, Bytes),
    /// A number of packets.
    Packets(Packets, Packets),
    /// A duration.
    Duration(Duration, Duration),
    /// A length.
    Length(Length, Length),
    /// One of these words.
    Choice(Vec<&'static str>),
    /// A value of another kind, or one of these words.
    OrWord(Box<Kind>, Vec<&'static str>),
    /// A value of either kind.
    Either(Box<Kind>, Box<Kind>),
    /// A count of hosts or a list of them.
    Hosts,
    /// A text, or a list of texts.
    TextOrTexts,
    /// A list of ports by name.
    Ports,
    /// A list of texts.
    Texts,
    /// A quantity, or a table of one of these kinds.
    Distribution(Box<Kind>, &'static [&'static Spec]),
    /// The points of a distribution: lists of such a quantity and a cumulative probability.
    Points(Box<Kind>),
    /// A table.
    Table(&'static Spec),
    /// A list of tables; the key `kind` tells several specifications apart.
    Tables(&'static [&'static Spec]),
    /// Lists of values by dotted key.
    Axes,
    /// The name of a pattern, with numbers in parentheses if it takes any.
    Pattern,
    /// Lists of numbers with gaps.
    Matrix,
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its own description; empty for a table that describes itself.
    pub doc: &'static str,
    /// The values that it takes.
    pub kind: fn() -> Kind,
}

impl Key {
    /// Its description.
    pub fn help(&self) -> &'static str {
        match (self.kind)() {
            Kind::Table(spec) if self.doc.is_empty() => spec.doc,
            Kind::Tables([spec]) if self.doc.is_empty() => spec.doc,
            _ => self.doc,
        }
    }
}

/// A table and its keys.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// As in the file; for one of several kinds of table, its kind.
    pub name: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

impl Spec {
    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Where a key of this table is, for errors.
    pub fn place(&self) -> String {
        if self.name.is_empty() { "at the top".into() } else { format!("in [{}]", self.name) }
    }
}

/// A table that [`settings!`](crate::settings) declares.
pub trait Settings {
    /// The table and its keys.
    const SPEC: &'static Spec;
}

/// A type of values of keys.
pub trait Setting: Sized {
    /// The limits that a key can set: a range, or nothing.
    type Limits;
    /// The limits of the type itself.
    const ANY: Self::Limits;

    /// The kind of these values.
    fn kind(limits: &Self::Limits) -> Kind;

    /// The value of the key `name` of a table.
    ///
    /// # Errors
    /// A value of another kind, or beyond the limits.
    fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<Self>;

    /// The value of a key without a default that is not given.
    ///
    /// # Errors
    /// The key is missing, unless the type has a value for that.
    fn absent(s: &Section<'_>, name: &str) -> Result<Self> {
        Err(s.missing(name))
    }
}
