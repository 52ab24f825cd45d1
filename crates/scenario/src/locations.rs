//! Places of a scenario's settings in its file, for errors that show only when the scenario is built.

use std::sync::Arc;

use super::error::{Error, Warning};
use super::tree::{Document, Node, Span, Table, Value};

/// The text a scenario was read from. Two scenarios are the same wherever they were written.
#[derive(Clone, Debug, Default)]
pub struct Locations(Option<Arc<Document>>);

impl PartialEq for Locations {
    fn eq(&self, _: &Locations) -> bool {
        true
    }
}

impl Locations {
    pub(super) fn new(document: Document) -> Locations {
        Locations(Some(Arc::new(document)))
    }

    /// An error at a dotted key, as "topology.link_delay", or at as much of it as the file gives; at the topology, which
    /// every file gives, where it gives nothing of it.
    pub fn error(&self, key: &str, message: impl Into<String>) -> Error {
        let Some(document) = &self.0 else { return Error::file("scenario", message) };
        let span = find(&document.root, key).or_else(|| find(&document.root, "topology"));
        document.error(span.unwrap_or(Span::START), message)
    }

    /// A warning where [an error](Locations::error) would be.
    pub fn warning(&self, key: &str, message: impl Into<String>) -> Warning {
        let error = self.error(key, "");
        let (file, line) = (error.diagnostic().file.clone(), error.diagnostic().line);
        Warning { file, line, message: message.into() }
    }

    /// File and line of a dotted key that is given.
    pub fn line_of(&self, key: &str) -> Option<(String, u32)> {
        let document = self.0.as_ref()?;
        Some(document.line_of(exact(&document.root, key)?))
    }
}

/// Where a dotted key is given, whole.
fn exact(root: &Table, key: &str) -> Option<Span> {
    let (section, name) = key.rsplit_once('.')?;
    let mut table = root;
    for part in section.split('.') {
        let Value::Table(inner) = &table.get(part)?.node.value else { return None };
        table = inner;
    }
    Some(table.get(name)?.key_span)
}

/// Where the longest part of a dotted key that is given stands. Tables of a list have numbers, as "slowdown.0.port".
fn find(root: &Table, key: &str) -> Option<Span> {
    let mut span = None;
    let (mut table, mut list): (Option<&Table>, &[Node]) = (Some(root), &[]);
    for part in key.split('.') {
        let given = match table {
            Some(table) => table.get(part).map(|entry| (&entry.node, entry.key_span)),
            None => part.parse::<usize>().ok().and_then(|i| list.get(i)).map(|node| (node, node.span)),
        };
        let Some((node, key_span)) = given else { break };
        (table, list) = match &node.value {
            Value::Table(inner) => (Some(inner), &[][..]),
            Value::List(inner) => (None, &inner[..]),
            _ => (None, &[][..]),
        };
        span = Some(if table.is_some() { key_span } else { node.span });
    }
    span
}
