//! Typed access to one table of a scenario; every refusal points at the value.

use core::ops::RangeInclusive;

use super::error::{Error, Result};
use super::keys::Spec;
use super::tree::{Document, Node, Span, Table, Value, name_hint};
use super::units::{BUFFER_MAX, Bytes, LINK_RATE_MIN, Quantity};
use sluicenet_proto::units::Rate;

/// One table with the keys it may have.
#[derive(Clone, Copy)]
pub struct Section<'a> {
    /// The file that the table is in.
    pub doc: &'a Document,
    /// The keys that the table may have.
    pub spec: &'static Spec,
    table: Option<&'a Table>,
    /// Its header; the start of the file where it has none.
    span: Option<Span>,
}

impl<'a> Section<'a> {
    /// A table, all of whose keys must be known.
    pub fn new(doc: &'a Document, spec: &'static Spec, table: &'a Table, span: Option<Span>) -> Result<Section<'a>> {
        for entry in &table.entries {
            if !spec.keys.iter().any(|k| k.name == entry.key) {
                let names: Vec<_> = spec.keys.iter().map(|k| k.name).collect();
                let shown: String = entry.key.chars().take(40).collect();
                let place = if spec.name.is_empty() { "at the top".into() } else { format!("in [{}]", spec.name) };
                return Err(doc
                    .error(entry.key_span, format!("unknown key `{shown}` {place}"))
                    .hint(name_hint(&entry.key, &names)));
            }
        }
        Ok(Section { doc, spec, table: Some(table), span })
    }

    /// The table called `name` in this one, or an empty one.
    pub fn section(&self, name: &str, spec: &'static Spec) -> Result<Section<'a>> {
        match self.table.and_then(|t| t.get(name)) {
            None => Ok(Section { doc: self.doc, spec, table: None, span: self.span }),
            Some(entry) => match &entry.node.value {
                Value::Table(table) => Section::new(self.doc, spec, table, Some(entry.key_span)),
                _ => Err(self.wrong(&entry.node, "a table")),
            },
        }
    }

    /// The list of tables called `name` in this one.
    pub fn tables(&self, name: &str) -> Result<Vec<(&'a Table, Span)>> {
        let Some(node) = self.get(name) else { return Ok(Vec::new()) };
        let Value::List(list) = &node.value else {
            return Err(self.wrong(node, "a list of tables").hint(format!("write [[{name}]], with two brackets")));
        };
        list.iter()
            .map(|node| match &node.value {
                Value::Table(table) => Ok((table, node.span)),
                _ => Err(self.wrong(node, "a table")),
            })
            .collect()
    }

    /// The value of a key.
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        debug_assert!(self.spec.keys.iter().any(|k| k.name == name), "{name} is not a key of {}", self.spec.name);
        self.table.and_then(|t| t.get(name)).map(|e| &e.node)
    }

    /// Whether a key is given.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An error at a key's value, or at the table where the key is not given.
    pub fn error(&self, name: &str, message: impl Into<String>) -> Error {
        match self.get(name) {
            Some(node) => self.doc.error(node.span, message),
            None => self.error_here(message),
        }
    }

    /// An error at the table.
    pub fn error_here(&self, message: impl Into<String>) -> Error {
        self.doc.error(self.span.unwrap_or(Span::START), message)
    }

    /// An error at the first of these keys that is given, or at the table.
    pub fn error_at(&self, names: &[&str], message: impl Into<String>) -> Error {
        match names.iter().find(|n| self.has(n)) {
            Some(name) => self.error(name, message),
            None => self.error_here(message),
        }
    }

    /// What an input file gave; an error about the file as a whole points at the key that names it.
    pub fn input<T>(&self, name: &str, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|e| {
            let d = e.diagnostic();
            if d.line > 0 {
                return e;
            }
            self.error(name, format!("{}: {}", d.file, d.message)).expected(d.expected.clone()).hint(d.hint.clone())
        })
    }

    /// The error of a key that must be given; a table that has a name is called by it.
    pub fn missing(&self, name: &str) -> Error {
        let doc = self.spec.keys.iter().find(|k| k.name == name).map_or("", |k| k.doc);
        let of = match self.table.and_then(|t| t.get("name")).map(|e| &e.node.value) {
            Some(Value::Text(text)) => format!(" in `{}`", text.chars().take(40).collect::<String>()),
            _ => String::new(),
        };
        self.error_here(format!("`{name}` is missing{of}")).hint(format!("{name}: {doc}"))
    }

    /// The error of a value of the wrong kind.
    pub fn wrong(&self, node: &Node, want: &str) -> Error {
        self.doc.error(node.span, format!("{} where {want} should be", node.kind())).expected(want)
    }

    /// The text of a key.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Node { value: Value::Text(s), .. }) => Ok(Some(s)),
            Some(node) => Err(self.wrong(node, "a string")),
        }
    }

    /// The truth value of a key.
    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(Node { value: Value::Bool(b), .. }) => Ok(Some(*b)),
            Some(node) => Err(self.wrong(node, "true or false")),
        }
    }

    /// The whole number of a key, if it is in `range`.
    pub fn count(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        self.get(name).map(|node| self.count_of(node, name, range)).transpose()
    }

    /// The whole number of a key, if it is in `range`.
    pub fn count_u32(&self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>> {
        let n = self.count(name, u64::from(*range.start())..=u64::from(*range.end()))?;
        Ok(n.map(|n| n as u32))
    }

    /// A node as a whole number within a range.
    pub fn count_of(&self, node: &Node, name: &str, range: RangeInclusive<u64>) -> Result<u64> {
        let Value::Int(n) = node.value else { return Err(self.wrong(node, "a whole number")) };
        match u64::try_from(n) {
            Ok(n) if range.contains(&n) => Ok(n),
            _ => Err(self.doc.error(node.span, format!("`{name}` of {n} is out of range")).expected(format!(
                "from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    /// The number of a key, if it is in `range`.
    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        self.get(name).map(|node| self.number_of(node, name, range)).transpose()
    }

    /// A node as a number within a range: never NaN.
    pub fn number_of(&self, node: &Node, name: &str, range: RangeInclusive<f64>) -> Result<f64> {
        let n = match node.value {
            Value::Int(n) => n as f64,
            Value::Float(n) => n,
            _ => return Err(self.wrong(node, "a number")),
        };
        if range.contains(&n) {
            return Ok(n);
        }
        Err(self.doc.error(node.span, format!("`{name}` of {n} is out of range")).expected(format!(
            "from {} to {}",
            range.start(),
            range.end()
        )))
    }

    /// The quantity of a key, with its unit.
    pub fn quantity<T: Quantity>(&self, name: &str) -> Result<Option<T>> {
        self.get(name).map(|node| self.quantity_of(node)).transpose()
    }

    /// As `quantity`, of more than zero.
    pub fn positive<T: Quantity>(&self, name: &str) -> Result<Option<T>> {
        let value = self.quantity::<T>(name)?;
        if value.is_some_and(|v| v.base() == 0) {
            return Err(self.error(name, format!("`{name}` cannot be 0")));
        }
        Ok(value)
    }

    /// A link's rate.
    pub fn link_rate(&self, name: &str) -> Result<Option<Rate>> {
        match self.positive::<Rate>(name)? {
            Some(rate) if rate < LINK_RATE_MIN => Err(self
                .error(name, format!("`{name}` of {} b/s is too low for a link", rate.as_bps()))
                .expected(format!("at least {} b/s", LINK_RATE_MIN.as_bps()))),
            rate => Ok(rate),
        }
    }

    /// As `positive`, of what counts its bytes in 32 bits.
    pub fn buffer(&self, name: &str) -> Result<Option<Bytes>> {
        self.positive(name)?.map(|bytes| self.fits_buffer(name, bytes)).transpose()
    }

    /// A size that fits the largest buffer.
    pub fn fits_buffer(&self, name: &str, bytes: Bytes) -> Result<Bytes> {
        if bytes <= BUFFER_MAX {
            return Ok(bytes);
        }
        Err(self
            .error(name, format!("`{name}` of {} B is too large", bytes.0))
            .expected(format!("at most {} B (1 GiB)", BUFFER_MAX.0)))
    }

    /// A node as a quantity; nothing needs no unit.
    pub fn quantity_of<T: Quantity>(&self, node: &Node) -> Result<T> {
        match &node.value {
            Value::Text(s) => T::parse(s).map_err(|e| {
                let error = self.doc.error(node.span, e.message).expected(T::NAME);
                if e.hint.is_empty() { error } else { error.hint(e.hint) }
            }),
            Value::Int(0) => Ok(T::from_base(0)),
            Value::Int(_) | Value::Float(_) => Err(self
                .doc
                .error(node.span, format!("{} needs a unit", T::NAME))
                .expected(T::NAME)
                .hint(format!("write it in quotes, as {}", T::EXAMPLE))),
            _ => Err(self.wrong(node, T::NAME)),
        }
    }

    /// One of several words.
    pub fn choice<T: Copy>(&self, name: &str, choices: &[(&'static str, T)]) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<_> = choices.iter().map(|c| c.0).collect();
                let shown: String = text.chars().take(40).collect();
                Err(self
                    .error(name, format!("unknown {name} `{shown}`"))
                    .expected(words.join(", "))
                    .hint(name_hint(text, &words)))
            }
        }
    }

    /// A list of whole numbers.
    pub fn counts(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<Vec<u32>>> {
        let Some(node) = self.get(name) else { return Ok(None) };
        let Value::List(list) = &node.value else { return Err(self.wrong(node, "a list of whole numbers")) };
        list.iter().map(|n| self.count_of(n, name, range.clone()).map(|n| n as u32)).collect::<Result<_>>().map(Some)
    }
}
