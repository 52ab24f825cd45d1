//! `config_db.json` as tables of rows of fields, each of which knows where it stands.

use crate::setting::shown;
use crate::{Error, Result};
use core::fmt;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The largest file read.
const BYTES_MAX: usize = 64 << 20;

/// The bytes of a value in the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    pub start: usize,
    pub end: usize,
}

/// A text, or a number or word as text. Two of them are equal if they say the same, wherever they stand.
#[derive(Clone, Debug)]
pub struct Text {
    pub value: String,
    pub at: Place,
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.value == other.value
    }
}

/// A field of a row.
#[derive(Debug)]
pub struct Field {
    pub name: Text,
    /// None for a list or an object.
    pub value: Option<Text>,
}

/// A row of a table.
#[derive(Debug)]
pub struct Row {
    pub key: Text,
    pub fields: Vec<Field>,
}

impl Row {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Text> {
        self.fields.iter().find(|field| field.name.value == name)?.value.as_ref()
    }
}

/// A table.
#[derive(Debug)]
pub struct Table {
    pub name: String,
    pub rows: Vec<Row>,
}

/// The tables of a `config_db.json` that are about QoS, and the names of all others.
#[derive(Debug)]
pub struct ConfigDb {
    /// The file's name.
    pub name: String,
    /// All of it.
    pub text: Arc<str>,
    pub(super) tables: Vec<Table>,
    pub(super) others: BTreeSet<String>,
}

impl ConfigDb {
    /// Reads a file; `is_read` says which tables are wanted.
    ///
    /// # Errors
    /// The first fault: no text, no JSON, a key that stands twice, a table or row that is none.
    pub(super) fn parse(name: &str, bytes: &[u8], is_read: impl Fn(&str) -> bool) -> Result<ConfigDb> {
        if bytes.len() > BYTES_MAX {
            let error = Error::file(name, format!("this file is too large: {} bytes", bytes.len()));
            return Err(error.hint(format!("at most {} MiB are read", BYTES_MAX >> 20)));
        }
        let text = core::str::from_utf8(bytes).map_err(|e| Error::not_text(name, bytes, e.valid_up_to()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut db = ConfigDb { name: name.into(), text: text.into(), tables: Vec::new(), others: BTreeSet::new() };
        let reader = Reader { name, text };
        for (key, table) in reader.object(text, "the file")? {
            if !is_read(&key.value) {
                db.others.insert(key.value);
                continue;
            }
            let mut rows = Vec::new();
            for (row, fields) in reader.object(table, &format!("the table {}", shown(&key.value)))? {
                let what = format!("{}|{}", shown(&key.value), shown(&row.value));
                let fields = reader.object(fields, &what)?;
                let fields = fields.into_iter().map(|(name, raw)| Ok(Field { name, value: reader.value(raw)? }));
                rows.push(Row { key: row, fields: fields.collect::<Result<_>>()? });
            }
            db.tables.push(Table { name: key.value, rows });
        }
        Ok(db)
    }

    /// The rows of a table; none if the file has no such table.
    pub(super) fn rows(&self, table: &str) -> &[Row] {
        self.tables.iter().find(|t| t.name == table).map_or(&[], |t| &t.rows)
    }

    /// The row of a table.
    pub(super) fn row(&self, table: &str, key: &str) -> Option<&Row> {
        self.rows(table).iter().find(|row| row.key.value == key)
    }

    /// An error at a place.
    pub(super) fn error(&self, at: Place, message: impl Into<String>) -> Error {
        Error::span(&*self.name, &self.text, at.start, at.end, message)
    }

    /// The line of a place.
    pub(super) fn line(&self, at: Place) -> u32 {
        self.error(at, "").diagnostic().line
    }
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn place(&self, part: &str) -> Place {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        Place { start, end: start + part.len() }
    }

    fn error(&self, at: Place, message: impl Into<String>) -> Error {
        Error::span(self.name, self.text, at.start, at.end, message)
    }

    /// The entries of an object, whose text is a part of the file's.
    fn object(&self, text: &'a str, what: &str) -> Result<Vec<(Text, &'a str)>> {
        let parsed: Object<'a> = serde_json::from_str(text).map_err(|e| self.fault(text, what, &e))?;
        let mut seen = BTreeSet::new();
        let mut entries = Vec::with_capacity(parsed.0.len());
        for (key, raw) in parsed.0 {
            let at = self.key_place(&key, self.place(raw.get()).start);
            if !seen.insert(key.clone()) {
                let error = self.error(at, format!("`{}` stands twice in {what}", shown(&key)));
                return Err(error.hint("remove one of the two: SONiC would keep the second"));
            }
            entries.push((Text { value: key, at }, raw.get()));
        }
        Ok(entries)
    }

    /// Where the key before a value stands; at its last quote if it is written with escapes.
    fn key_place(&self, key: &str, value_start: usize) -> Place {
        let before = self.text[..value_start].trim_end();
        let end = before.strip_suffix(':').unwrap_or(before).trim_end().len();
        let start = end.saturating_sub(key.len() + 2);
        let is_plain = self.text.get(start + 1..end.saturating_sub(1)) == Some(key);
        Place { start: if is_plain { start } else { end.saturating_sub(1) }, end }
    }

    /// A value as text; none for a list or an object.
    fn value(&self, raw: &'a str) -> Result<Option<Text>> {
        let at = self.place(raw);
        let value = match raw.as_bytes().first() {
            Some(b'"') => serde_json::from_str(raw).map_err(|e| self.fault(raw, "this text", &e))?,
            Some(b'{' | b'[') => return Ok(None),
            _ => raw.to_owned(),
        };
        Ok(Some(Text { value, at }))
    }

    fn fault(&self, text: &str, what: &str, e: &serde_json::Error) -> Error {
        if e.classify() == Category::Data {
            let at = self.place(text.trim_start());
            let first = at.start + text.trim_start().chars().next().map_or(0, char::len_utf8);
            let error = self.error(Place { end: first, ..at }, format!("{what} is no JSON object"));
            return error.expected("an object: { \"name\": ... }");
        }
        let before: usize = text.split_inclusive('\n').take(e.line().saturating_sub(1)).map(str::len).sum();
        let start = self.place(text).start + (before + e.column().saturating_sub(1)).min(text.len());
        let whole = e.to_string();
        let message = whole.split(" at line ").next().unwrap_or_default();
        let error = self.error(Place { start, end: start + 1 }, format!("this is not JSON: {message}"));
        match e.classify() {
            Category::Eof => error.hint("the file is cut short"),
            _ => error,
        }
    }
}

/// The entries of a JSON object in their order, with those that stand twice.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> core::result::Result<Object<'de>, D::Error> {
        d.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> core::result::Result<Object<'de>, M::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry::<String, &'de RawValue>()? {
            entries.push(entry);
        }
        Ok(Object(entries))
    }
}
