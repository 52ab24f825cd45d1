//! A scenario's text as a tree in which every key and value knows where it was written.

use super::error::{Error, Result};
use super::units::closest;
use std::sync::Arc;

/// A text values come from: the scenario's file, or an override of the command line.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's name; [`SET`] for an override.
    pub name: String,
    /// All of it.
    pub text: Arc<str>,
}

/// Where in which source.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    source: usize,
    start: usize,
    end: usize,
}

impl Span {
    /// The start of the scenario's file.
    pub const START: Span = Span { source: 0, start: 0, end: 0 };

    /// The bytes from `start` to `end` of the first file that is [attached](Document::attached).
    pub fn attached(start: usize, end: usize) -> Span {
        Span { source: ATTACHED, start, end }
    }

    /// Whether it is in an override, not in the file.
    pub fn is_override(&self) -> bool {
        self.source > 0 && self.source < ATTACHED
    }
}

/// A value of TOML.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Int(i128),
    /// A number with a fraction or an exponent, or beyond all integers.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(Table),
    /// A date or a time: no key takes one.
    Date,
}

/// A value and where it is.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it is.
    pub span: Span,
    /// The value.
    pub value: Value,
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key is.
    pub key_span: Span,
    /// The value.
    pub node: Node,
}

/// Entries in the order of the text.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The entries.
    pub entries: Vec<Entry>,
}

impl Table {
    /// The entry of a key.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.key == key)
    }
}

impl Node {
    /// Kind of the value, for people.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Text(_) => "a string",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a number",
            Value::Bool(_) => "true or false",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Date => "a date",
        }
    }

    /// As short text, for labels.
    pub fn label(&self) -> String {
        match &self.value {
            Value::Text(s) => s.clone(),
            Value::Int(n) => n.to_string(),
            Value::Float(n) => n.to_string(),
            Value::Bool(b) => b.to_string(),
            Value::Date => "date".into(),
            Value::List(list) => format!("[{}]", list.iter().map(Node::label).collect::<Vec<_>>().join(",")),
            Value::Table(table) => {
                let parts: Vec<_> = table.entries.iter().map(|e| format!("{}={}", e.key, e.node.label())).collect();
                format!("{{{}}}", parts.join(","))
            }
        }
    }
}

/// A whole scenario as written, with its overrides applied.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file, then each override.
    pub sources: Vec<Source>,
    /// Another file that gives values.
    pub attached: Option<Source>,
    /// The table at the top.
    pub root: Table,
}

/// The number of the source of attached values: beyond those of all overrides.
const ATTACHED: usize = usize::MAX;
/// The name errors give to overrides.
pub const SET: &str = "--set";
/// Parts of an override's key.
const PATH_PARTS_MAX: usize = 8;

impl Document {
    /// Reads TOML.
    pub fn parse(name: &str, text: &str) -> Result<Document> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let root = parse_toml(0, name, text, text, 0)?;
        Ok(Document { sources: vec![Source { name: name.into(), text: text.into() }], attached: None, root })
    }

    /// An error at a place.
    pub fn error(&self, span: Span, message: impl Into<String>) -> Error {
        match self.sources.get(span.source).or(self.attached.as_ref()) {
            Some(s) => Error::span(s.name.clone(), &s.text, span.start, span.end, message),
            None => Error::file("", message),
        }
    }

    /// The line of a place, from 1, and the name of its source.
    pub fn line_of(&self, span: Span) -> (String, u32) {
        let e = self.error(span, "");
        (e.diagnostic().file.clone(), e.diagnostic().line)
    }

    /// Applies an override `key=value`, where the key is dotted and the value is TOML, or else plain text.
    pub fn set_text(&mut self, text: &str) -> Result<()> {
        let source = self.sources.len();
        self.sources.push(Source { name: SET.into(), text: text.into() });
        let span = |start, end| Span { source, start, end };
        let Some(eq) = text.find('=') else {
            return Err(self
                .error(span(0, text.len()), "an override is a key, `=` and a value")
                .hint("write --set tcp.congestion=cubic"));
        };
        let (path, value_text) = (&text[..eq], &text[eq + 1..]);
        let prefix = "v = ";
        let node = match parse_toml(source, SET, text, &format!("{prefix}{value_text}"), eq + 1) {
            Ok(mut table) if table.entries.len() == 1 => table.entries.remove(0).node,
            // Most people mean a string by a bare word: --set topology.link_rate=40 Gb/s.
            _ => Node { span: span(eq + 1, text.len()), value: Value::Text(value_text.trim().into()) },
        };
        let mut at = 0;
        let parts: Vec<(String, Span)> = path
            .split('.')
            .map(|part| {
                let part_span = span(at, at + part.len());
                at += part.len() + 1;
                (part.trim().trim_matches('"').to_string(), part_span)
            })
            .collect();
        self.set(&parts, node)
    }

    /// Where an override set the value at a dotted key, if one did.
    pub fn override_of(&self, key: &str) -> Option<Span> {
        self.overridden(key).map(|e| e.key_span)
    }

    /// The override of a dotted key, if there is one.
    pub fn overridden(&self, key: &str) -> Option<&Entry> {
        let (path, last) = key.rsplit_once('.').unwrap_or(("", key));
        let mut table = &self.root;
        let mut rest = path.split('.').filter(|part| !part.is_empty());
        while let Some(part) = rest.next() {
            table = match &table.get(part)?.node.value {
                Value::Table(table) => table,
                Value::List(list) => match &list.get(rest.next()?.parse::<usize>().ok()?)?.value {
                    Value::Table(table) => table,
                    _ => return None,
                },
                _ => return None,
            };
        }
        table.get(last).filter(|e| e.key_span.is_override())
    }

    /// Takes a key out of a table that the file has put there.
    pub fn take_from_file(&mut self, table: &str, key: &str) {
        let table = self.root.entries.iter_mut().find(|e| e.key == table);
        if let Some(Value::Table(table)) = table.map(|e| &mut e.node.value) {
            table.entries.retain(|e| e.key != key || e.key_span.is_override());
        }
    }

    /// Puts a value at a dotted key; numbers pick an element of a list of tables, counted from 0.
    pub fn set(&mut self, parts: &[(String, Span)], node: Node) -> Result<()> {
        let fail = |doc: &Document, span: Span, message: String| Err(doc.error(span, message));
        let Some(((last, last_span), path)) = parts.split_last() else { return Ok(()) };
        if let Some((_, span)) = parts.get(PATH_PARTS_MAX).or_else(|| parts.iter().find(|p| p.0.is_empty())) {
            return fail(self, *span, "this is not a dotted key, as topology.link_rate".into());
        }
        // Errors need the document while its tree is borrowed: take the tree out meanwhile.
        let mut root = core::mem::take(&mut self.root);
        let outcome = insert(&mut root, path, (last, *last_span), node);
        self.root = root;
        outcome.or_else(|(span, message)| fail(self, span, message))
    }
}

type Stop = (Span, String);

fn insert(
    root: &mut Table,
    path: &[(String, Span)],
    (last, last_span): (&str, Span),
    node: Node,
) -> core::result::Result<(), Stop> {
    let mut table = root;
    let mut rest = path.iter();
    while let Some((part, span)) = rest.next() {
        let index = match table.entries.iter().position(|e| e.key == *part) {
            Some(index) => index,
            None => {
                let node = Node { span: *span, value: Value::Table(Table::default()) };
                table.entries.push(Entry { key: part.clone(), key_span: *span, node });
                table.entries.len() - 1
            }
        };
        table = match &mut table.entries[index].node.value {
            Value::Table(table) => table,
            Value::List(list) => {
                let count = list.len();
                let Some((number, span)) = rest.next() else {
                    return Err((*span, format!("`{part}` is a list: say which, as {part}.0.{last}")));
                };
                let element = number.parse::<usize>().ok().and_then(|i| list.get_mut(i));
                match element.map(|e| &mut e.value) {
                    Some(Value::Table(table)) => table,
                    _ => return Err((*span, format!("`{part}` has {count} tables, counted from 0: not `{number}`"))),
                }
            }
            _ => return Err((*span, format!("`{part}` is not a table"))),
        };
    }
    match table.entries.iter_mut().find(|e| e.key == last) {
        Some(entry) => {
            entry.node = node;
            entry.key_span = last_span;
        }
        None => table.entries.push(Entry { key: last.into(), key_span: last_span, node }),
    }
    Ok(())
}

/// Reads `text`, a part or a prefixed part of the source `whole`; `value_at` is where in the source a value begins that
/// stands after `v = `.
fn parse_toml(source: usize, name: &str, whole: &str, text: &str, value_at: usize) -> Result<Table> {
    let shift = |at: usize| if source == 0 { at } else { (at + value_at).saturating_sub(4) };
    match toml::de::DeTable::parse(text) {
        Ok(root) => Ok(convert_table(source, &shift, root.into_inner())),
        Err(e) => {
            let span = e.span().unwrap_or(0..0);
            let (start, end) = (shift(span.start), shift(span.end));
            let error = Error::span(name, whole, start, end, format!("this is not TOML: {}", e.message()));
            let hint = toml_hint(name, text, span.start);
            Err(if hint.is_empty() { error } else { error.hint(hint) })
        }
    }
}

/// Advice on a text that is no TOML at the byte `at`; empty where only the parser's message helps.
fn toml_hint(name: &str, text: &str, at: usize) -> &'static str {
    let is = |extension: &str| name.to_ascii_lowercase().ends_with(extension);
    if name != SET && (is(".md") || is(".json") || text.trim_start().starts_with('{')) {
        return "a scenario is a TOML file, as those in scenarios/";
    }
    // A word where a value should be; a text that lost a quote, or a key without a value, is something else.
    let before = text.get(..at).unwrap_or("").trim_end();
    let word =
        text.get(at..).is_some_and(|rest| rest.starts_with(|c: char| c.is_alphanumeric() || "+-._/".contains(c)));
    if word && before.ends_with(['=', '[', ',']) {
        "a value that is not a number, true or false needs quotes"
    } else {
        ""
    }
}

fn convert_table(source: usize, shift: &dyn Fn(usize) -> usize, table: toml::de::DeTable<'_>) -> Table {
    let at = |r: core::ops::Range<usize>| Span { source, start: shift(r.start), end: shift(r.end) };
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, value)| Entry {
            key_span: at(key.span()),
            key: key.into_inner().into_owned(),
            node: Node { span: at(value.span()), value: convert(source, shift, value.into_inner()) },
        })
        .collect();
    // The parser orders keys by name; people expect the order they wrote.
    entries.sort_by_key(|e| e.key_span.start);
    Table { entries }
}

fn convert(source: usize, shift: &dyn Fn(usize) -> usize, value: toml::de::DeValue<'_>) -> Value {
    use toml::de::DeValue;
    match value {
        DeValue::String(s) => Value::Text(s.into_owned()),
        // Beyond 128 bits: no key takes so much, and a float says so.
        DeValue::Integer(n) => match i128::from_str_radix(n.as_str(), n.radix()) {
            Ok(n) => Value::Int(n),
            Err(_) => Value::Float(f64::INFINITY),
        },
        DeValue::Float(n) => Value::Float(n.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(b) => Value::Bool(b),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Array(list) => Value::List(
            list.into_iter()
                .map(|v| Node {
                    span: Span { source, start: shift(v.span().start), end: shift(v.span().end) },
                    value: convert(source, shift, v.into_inner()),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(convert_table(source, shift, table)),
    }
}

/// The hint of an unknown name.
pub fn name_hint(name: &str, names: &[&'static str]) -> String {
    match closest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known here: {}", names.join(", ")),
    }
}
