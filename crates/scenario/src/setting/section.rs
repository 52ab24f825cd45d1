//! Access to one table of a file; every refusal points at the value.

use core::fmt::Display;
use core::ops::RangeInclusive;

use super::{Kind, Setting, Spec};
use crate::error::{Error, Result};
use crate::patterns::PATTERNS;
use crate::tree::{Document, Node, Span, Table, Value, name_hint};
use crate::units::Quantity;

/// Characters of a text from a file that an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// One table with the keys that it may have.
#[derive(Clone, Copy)]
pub struct Section<'a> {
    /// The file.
    pub doc: &'a Document,
    /// The keys.
    pub spec: &'static Spec,
    table: Option<&'a Table>,
    /// Its header; the start of the file where it has none.
    span: Option<Span>,
}

impl<'a> Section<'a> {
    /// A table.
    ///
    /// # Errors
    /// A key that the table cannot have.
    pub fn new(doc: &'a Document, spec: &'static Spec, table: &'a Table, span: Option<Span>) -> Result<Section<'a>> {
        for entry in &table.entries {
            if spec.key(&entry.key).is_none() {
                let names: Vec<_> = spec.keys.iter().map(|k| k.name).collect();
                let message = format!("unknown key `{}` {}", shown(&entry.key), spec.place());
                return Err(doc.error(entry.key_span, message).hint(name_hint(&entry.key, &names)));
            }
        }
        Ok(Section { doc, spec, table: Some(table), span })
    }

    /// The table at the top of a file.
    ///
    /// # Errors
    /// A key that it cannot have.
    pub fn root(doc: &'a Document, spec: &'static Spec) -> Result<Section<'a>> {
        Section::new(doc, spec, &doc.root, None)
    }

    fn kind(&self, name: &str) -> Kind {
        let key = self.spec.key(name);
        (key.unwrap_or_else(|| panic!("`{name}` is no key of [{}]", self.spec.name)).kind)()
    }

    /// The table called `name` in this one, or an empty one.
    ///
    /// # Errors
    /// A value that is no table, or a key that the table cannot have.
    pub fn section(&self, name: &str) -> Result<Section<'a>> {
        let Kind::Table(spec) = self.kind(name) else { panic!("`{name}` is no table") };
        match self.table.and_then(|t| t.get(name)) {
            None => Ok(Section { doc: self.doc, spec, table: None, span: self.span }),
            Some(entry) => match &entry.node.value {
                Value::Table(table) => Section::new(self.doc, spec, table, Some(entry.key_span)),
                _ => Err(self.wrong(&entry.node, "a table")),
            },
        }
    }

    /// The tables of the list called `name` in this one, which are all of one kind.
    ///
    /// # Errors
    /// A value that is no list of tables, or a key that a table cannot have.
    pub fn tables(&self, name: &str) -> Result<Vec<Section<'a>>> {
        let Kind::Tables([spec]) = self.kind(name) else { panic!("`{name}` is no list of tables of one kind") };
        let tables = self.raw_tables(name)?;
        tables.into_iter().map(|(table, span)| Section::new(self.doc, spec, table, Some(span))).collect()
    }

    /// The list of tables called `name` in this one, of any kind.
    ///
    /// # Errors
    /// A value that is no list of tables.
    pub fn raw_tables(&self, name: &str) -> Result<Vec<(&'a Table, Span)>> {
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

    /// The value of a key as it is written.
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        debug_assert!(self.spec.key(name).is_some(), "{name} is not a key of {}", self.spec.name);
        self.table.and_then(|t| t.get(name)).map(|e| &e.node)
    }

    /// Whether a key is given.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The value of a key, within the limits of its type.
    ///
    /// # Errors
    /// A value of another kind.
    pub fn value<T: Setting>(&self, name: &str) -> Result<Option<T>> {
        self.get(name).map(|node| T::read(self, name, node, &T::ANY)).transpose()
    }

    /// The file and line of a key; the start of the file where it is not given.
    pub fn line(&self, name: &str) -> (String, u32) {
        self.doc.line_of(self.get(name).map_or(Span::START, |node| node.span))
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

    /// The content of an input file. An error about the file as a whole points at the key that names it.
    ///
    /// # Errors
    /// The error of `outcome`.
    pub fn input<T>(&self, name: &str, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|e| {
            let d = e.diagnostic();
            if d.line > 0 {
                return e;
            }
            let error = self.error(name, format!("{}: {}", d.file, d.message));
            error.expected(d.expected.clone()).hint(d.hint.clone()).after(d.warnings.clone())
        })
    }

    /// The error of a key that must be given; it names the table by the table's own `name`, if it has one.
    pub fn missing(&self, name: &str) -> Error {
        let help = self.spec.key(name).map_or("", |key| key.help());
        let of = match self.table.and_then(|t| t.get("name")).map(|e| &e.node.value) {
            Some(Value::Text(text)) => format!(" in `{}`", shown(text)),
            _ => String::new(),
        };
        // The help of some keys begins with the kind that they are for, which may have the key's own name.
        let help = help.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(help);
        let error = self.error_here(format!("`{name}` is missing{of}")).hint(format!("{name}: {help}"));
        match self.spec.key(name).map(|key| (key.kind)()) {
            Some(Kind::Choice(words)) => error.expected(words.join(", ")),
            Some(Kind::Pattern) => error.expected(PATTERNS.map(|pattern| pattern.0).join(", ")),
            _ => error,
        }
    }

    /// The error of a value of the wrong kind.
    pub fn wrong(&self, node: &Node, want: &str) -> Error {
        self.doc.error(node.span, format!("{} where {want} should be", node.kind())).expected(want)
    }

    /// The error of a word that the key does not take.
    pub fn unknown(&self, node: &Node, name: &str, text: &str, words: &[&'static str]) -> Error {
        self.doc.error(node.span, format!("unknown {name} `{}`", shown(text))).none_of(text, words)
    }

    /// The error of a value beyond the limits.
    pub fn out_of_range<T: Display>(&self, node: &Node, name: &str, value: impl Display, limits: (T, T)) -> Error {
        let message = format!("`{name}` of {value} is out of range {}", self.spec.place());
        self.doc.error(node.span, message).expected(format!("from {} to {}", limits.0, limits.1))
    }

    /// A node as text.
    ///
    /// # Errors
    /// A value of another kind.
    pub fn text_of<'n>(&self, node: &'n Node) -> Result<&'n str> {
        match &node.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong(node, "a string")),
        }
    }

    /// A node as a quantity; 0 needs no unit.
    ///
    /// # Errors
    /// Anything but a quantity within the limits.
    pub fn quantity_of<T: Quantity>(&self, node: &Node, name: &str, limits: &RangeInclusive<T>) -> Result<T> {
        let beyond =
            |value: String| self.out_of_range(node, name, value, (limits.start().written(), limits.end().written()));
        let value = match &node.value {
            Value::Text(text) => match T::parse(text) {
                Ok(value) => value,
                Err(e) => {
                    let error = match e.is_too_large {
                        true => beyond(shown(text)),
                        false => self.doc.error(node.span, e.message).expected(T::NAME),
                    };
                    // The limit of the key is the lower one.
                    let is_beside = e.is_too_large && limits.end().base() < T::MAX;
                    return Err(if e.hint.is_empty() || is_beside { error } else { error.hint(e.hint) });
                }
            },
            Value::Int(0) => T::from_base(0),
            Value::Int(_) | Value::Float(_) => {
                let error = self.doc.error(node.span, format!("{} needs a unit", T::NAME)).expected(T::NAME);
                return Err(error.hint(format!("write it in quotes, as {}", T::EXAMPLE)));
            }
            _ => return Err(self.wrong(node, T::NAME)),
        };
        if limits.contains(&value) { Ok(value) } else { Err(beyond(value.written())) }
    }
}

/// As much of a text from a file as an error repeats.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
