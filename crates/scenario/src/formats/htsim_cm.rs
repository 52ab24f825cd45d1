//! Connection matrices of htsim: flows which start at a time, or when triggers fire upon the end of other flows.

use std::collections::BTreeMap;

use super::lines::{Line, Reader};
use super::triggers::check_triggers;
use crate::{BYTES_MAX, DURATION_MAX, Error, HOSTS_MAX, Result, Warning};
use sluicenet_proto::time::Duration;

/// When a flow starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Start {
    /// At this time.
    At(Duration),
    /// When the trigger with this index in [`ConnectionMatrix::triggers`] says so.
    Trigger(u32),
}

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its id in the file; 0 where it has none.
    pub id: u32,
    /// Whether it is a message on the connection of its id, which it shares with others of that id.
    pub is_message: bool,
    /// The sending host.
    pub src: u32,
    /// The receiving host.
    pub dst: u32,
    /// Its bytes; endless where absent (or 0, which htsim takes for endless).
    pub bytes: Option<u64>,
    /// When it starts.
    pub start: Start,
    /// Index of the trigger it activates when its sender has every acknowledgement.
    pub send_done: Option<u32>,
    /// Index of the trigger it activates when its receiver has every byte.
    pub recv_done: Option<u32>,
    /// htsim's priority of a flow at its sender; the scenario decides the frames'.
    pub prio: Option<u32>,
    /// Where in the file.
    pub line: u32,
}

/// Effect of a trigger's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// The first activation starts all its flows.
    Oneshot,
    /// Each activation starts the next of its flows.
    Multishot,
    /// The last of so many activations starts all its flows.
    Barrier(u32),
}

/// A trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Its id in the file.
    pub id: u32,
    /// Effect of an activation.
    pub kind: TriggerKind,
    /// Indices of the flows it starts, in the order of the file.
    pub targets: Vec<u32>,
    /// Where it is specified, or first used.
    pub line: u32,
}

/// A tier of switches, as failures name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureSwitch {
    /// Tier 0.
    Tor,
    /// Tier 1.
    Agg,
    /// Tier 2.
    Core,
}

/// A link that is down from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The switch's tier.
    pub switch_type: FailureSwitch,
    /// The switch's number in its tier.
    pub switch_id: u32,
    /// Its uplink's number.
    pub link_id: u32,
    /// Where in the file.
    pub line: u32,
}

/// Flows and their triggers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionMatrix {
    /// Hosts of the network it is meant for.
    pub nodes: u32,
    /// The line that says so.
    pub nodes_line: u32,
    /// The flows, in the order of the file.
    pub connections: Vec<Connection>,
    /// The triggers, ascending by id.
    pub triggers: Vec<Trigger>,
    /// Links that are down.
    pub failures: Vec<Failure>,
}

impl ConnectionMatrix {
    /// Compares the network it is meant for with one of so many hosts.
    ///
    /// # Errors
    /// More nodes than there are hosts: it is another network's. With fewer, some hosts have nothing to do: a warning.
    pub fn check_nodes(&self, file: &str, hosts: u32) -> Result<Option<Warning>> {
        let (nodes, line) = (self.nodes, self.nodes_line);
        if nodes > hosts {
            let message = format!("this matrix is of {nodes} nodes, and the network has {hosts} hosts");
            return Err(Error::line(file, line, &format!("Nodes {nodes}"), message)
                .hint("htsim refuses it too: a matrix belongs to a topology"));
        }
        let message =
            format!("this matrix is of {nodes} nodes, and the network has {hosts} hosts: the others are idle");
        Ok((nodes < hosts).then(|| Warning { file: file.into(), line, message }))
    }

    /// Refuses flows to hosts that are not there.
    ///
    /// # Errors
    /// The first such flow, with its line.
    pub fn check(&self, file: &str, hosts: u32) -> Result<()> {
        for c in &self.connections {
            for host in [c.src, c.dst] {
                if host >= hosts {
                    return Err(Error::line(file, c.line, &format!("{}->{} ...", c.src, c.dst), no_host(host, hosts)));
                }
            }
        }
        Ok(())
    }
}

fn no_host(host: u32, hosts: u32) -> String {
    format!("there is no host {host}: the network has {hosts}, counted from 0")
}

/// Connections and triggers a file may hold.
const ENTRIES_MAX: usize = 1 << 24;

#[derive(Default)]
struct Header {
    /// Declared number of nodes, with the line.
    nodes: Option<(u64, u32)>,
    /// Declared number of connections, triggers and failures, with the line.
    counts: [Option<(u64, u32)>; 3],
}

/// Reads a connection matrix: `Nodes`, `Connections`, `Triggers`, `Failures`, then one `src->dst ...`, `trigger ...` or
/// `failure ...` a line. Lines with `msg` and the same `id` are messages on one connection.
///
/// Where a header's counts differ from the body's, the body counts, with a warning. A trigger that is used but never
/// specified is taken as `oneshot`, with a warning.
///
/// # Errors
/// An unknown word, a number out of range, a flow with no start or with two, a flow that can never start (the triggers
/// of a cycle are named), a host beyond `Nodes`.
pub fn parse_connection_matrix(file: &str, bytes: &[u8]) -> Result<(ConnectionMatrix, Vec<Warning>)> {
    let mut reader = Reader::new(file, bytes);
    let matrix = read(&mut reader);
    reader.ended(matrix)
}

fn read(reader: &mut Reader<'_>) -> Result<ConnectionMatrix> {
    let file = reader.file;
    let mut header = Header::default();
    let mut draft = Draft::default();
    let mut in_body = false;
    while let Some(line) = reader.next_line()? {
        let Some(first) = line.text.split_whitespace().next().filter(|w| !w.starts_with('#')) else { continue };
        let is_body = first.contains("->") || first == "trigger" || first == "failure";
        in_body |= is_body;
        if !in_body {
            read_header(reader, line, first, &mut header)?;
        } else if first == "trigger" {
            draft.trigger(reader, line)?;
        } else if first == "failure" {
            draft.failure(reader, line)?;
        } else if is_body {
            draft.connection(reader, line)?;
        } else {
            let shown: String = first.chars().take(40).collect();
            return Err(reader
                .at(line, first, format!("unknown word `{shown}`"))
                .expected("`src->dst`, `trigger` or `failure`"));
        }
        if draft.connections.len().max(draft.triggers.len()).max(draft.failures.len()) > ENTRIES_MAX {
            return Err(Error::line(file, line.number, line.text, format!("more than {ENTRIES_MAX} entries")));
        }
    }
    let Some(nodes) = header.nodes.filter(|n| n.0 > 0) else {
        return Err(Error::file(file, "`Nodes` is missing or 0").hint("a connection matrix starts with `Nodes N`"));
    };
    let specified = draft.triggers.values().filter(|t| t.kind.is_some()).count();
    let found = [draft.connections.len(), specified, draft.failures.len()];
    for ((declared, found), name) in header.counts.iter().zip(found).zip(["connections", "triggers", "failures"]) {
        let (count, line) = declared.unwrap_or((0, 1));
        if count != found as u64 {
            reader.warn(line, format!("the header says {count} {name}, the file holds {found}: these are read"));
        }
    }
    let matrix = draft.finish(reader, (nodes.0 as u32, nodes.1))?;
    matrix.check(file, matrix.nodes)?;
    check_triggers(file, &matrix, reader)?;
    Ok(matrix)
}

fn read_header(reader: &mut Reader<'_>, line: Line<'_>, first: &str, header: &mut Header) -> Result<()> {
    let shown: String = first.chars().take(40).collect();
    let Some(value) = line.text.split_whitespace().nth(1) else {
        return Err(reader.at(line, first, format!("`{shown}` has no value")));
    };
    match first {
        "Nodes" => {
            let nodes = reader.number_in(line, value, "the number of nodes", u64::from(HOSTS_MAX))?;
            header.nodes = Some((nodes, line.number));
        }
        "Connections" | "Triggers" | "Failures" => {
            let i = ["Connections", "Triggers", "Failures"].iter().position(|n| *n == first).unwrap_or(0);
            // The number is only compared with the file's content: nothing is allocated for it.
            header.counts[i] = Some((reader.number_in(line, value, first, u64::from(u32::MAX))?, line.number));
        }
        _ => reader.warn(line.number, format!("`{shown}` is unknown and not read, as by htsim")),
    }
    Ok(())
}

#[derive(Default)]
struct DraftTrigger {
    kind: Option<TriggerKind>,
    line: u32,
}

/// Statements read so far. Triggers are kept by id, as flows name them before they are specified.
#[derive(Default)]
struct Draft {
    connections: Vec<Connection>,
    triggers: BTreeMap<u32, DraftTrigger>,
    failures: Vec<Failure>,
    /// The first flow of each id.
    ids: BTreeMap<u32, usize>,
}

/// The words of a line, where each name may need a value.
struct Fields<'a, 'r> {
    reader: &'r Reader<'r>,
    line: Line<'a>,
    words: core::str::SplitWhitespace<'a>,
}

impl<'a, 'r> Fields<'a, 'r> {
    fn new(reader: &'r Reader<'r>, line: Line<'a>) -> (&'a str, Fields<'a, 'r>) {
        let mut words = line.text.split_whitespace();
        let first = words.next().unwrap_or("");
        (first, Fields { reader, line, words })
    }

    fn value(&mut self, name: &str) -> Result<&'a str> {
        let missing =
            || Error::line(self.reader.file, self.line.number, self.line.text, format!("`{name}` has no value"));
        self.words.next().ok_or_else(missing)
    }

    fn number(&mut self, name: &str, max: u64) -> Result<u64> {
        let word = self.value(name)?;
        self.reader.number_in(self.line, word, name, max)
    }

    fn unknown(&self, word: &str, names: &[&'static str]) -> Error {
        let shown: String = word.chars().take(40).collect();
        let hint = crate::closest(word, names.iter().copied());
        self.reader
            .at(self.line, word, format!("unknown word `{shown}`"))
            .hint(hint.map_or_else(|| names.join(", "), |n| format!("did you mean `{n}`?")))
    }

    fn error(&self, message: impl Into<String>) -> Error {
        Error::line(self.reader.file, self.line.number, self.line.text, message)
    }
}

const ID_MAX: u64 = u32::MAX as u64;

fn flow_id(fields: &mut Fields<'_, '_>) -> Result<u32> {
    match fields.number("id", ID_MAX)? as u32 {
        0 => Err(fields.error("a flow's id cannot be 0")),
        id => Ok(id),
    }
}

/// Reads what may follow `msg`: the message's number, which says nothing more, as messages are in the order of the file.
fn message(fields: &mut Fields<'_, '_>) -> Result<bool> {
    let mut ahead = fields.words.clone();
    if ahead.next().is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit())) && fields.number("msg", ID_MAX)? == 0 {
        return Err(fields.error("a message's number cannot be 0").hint("it may be left out"));
    }
    Ok(true)
}

impl Draft {
    fn connection(&mut self, reader: &Reader<'_>, line: Line<'_>) -> Result<()> {
        let (first, mut fields) = Fields::new(reader, line);
        let (src, dst) = first.split_once("->").unwrap_or((first, ""));
        let host_max = u64::from(HOSTS_MAX) - 1;
        let src = reader.number_in(line, src, "a source host", host_max)? as u32;
        let dst_word = dst;
        let dst = reader.number_in(line, dst, "a destination host", host_max)? as u32;
        if src == dst {
            return Err(reader.at(line, dst_word, format!("a flow from host {src} to itself")));
        }
        let (mut id, mut bytes, mut start, mut trigger, mut send_done, mut recv_done, mut prio) =
            (0, None, None, None, None, None, None);
        let mut is_message = false;
        while let Some(word) = fields.words.next() {
            match word {
                "start" => {
                    let value = fields.value("start")?;
                    start = Some(picoseconds(reader, line, value)?);
                }
                "size" => bytes = Some(fields.number("size", BYTES_MAX.0)?),
                "id" => id = flow_id(&mut fields)?,
                "msg" => is_message = message(&mut fields)?,
                "trigger" => trigger = Some(self.used(&mut fields, "trigger")?),
                "send_done_trigger" => send_done = Some(self.used(&mut fields, "send_done_trigger")?),
                "recv_done_trigger" => recv_done = Some(self.used(&mut fields, "recv_done_trigger")?),
                "prio" => prio = Some(fields.number("prio", ID_MAX)? as u32),
                _ => {
                    let names =
                        ["id", "msg", "start", "trigger", "size", "send_done_trigger", "recv_done_trigger", "prio"];
                    return Err(fields.unknown(word, &names));
                }
            }
        }
        let start = match (start, trigger) {
            (Some(at), None) => Start::At(at),
            (None, Some(id)) => Start::Trigger(id),
            (None, None) => {
                return Err(fields.error("this flow never starts").hint("give it `start T` or `trigger N`"));
            }
            (Some(_), Some(_)) => return Err(fields.error("this flow has a start and a trigger").hint("give it one")),
        };
        let Some(bytes) = bytes else {
            return Err(fields.error("this flow has no size").hint("`size 0` is an endless flow"));
        };
        let bytes = Some(bytes).filter(|b| *b > 0);
        if is_message && bytes.is_none() {
            return Err(fields.error("a message without end").hint("a message has a `size` of at least 1"));
        }
        self.join(&fields, id, is_message, (src, dst))?;
        let line = line.number;
        self.connections.push(Connection { id, is_message, src, dst, bytes, start, send_done, recv_done, prio, line });
        Ok(())
    }

    /// Enters the id of the next flow. A message joins the connection of earlier flows of its id.
    fn join(&mut self, fields: &Fields<'_, '_>, id: u32, is_message: bool, ends: (u32, u32)) -> Result<()> {
        if id == 0 {
            return match is_message {
                true => Err(fields.error("a message needs the `id` of its connection")),
                false => Ok(()),
            };
        }
        let next = self.connections.len();
        let first = *self.ids.entry(id).or_insert(next);
        let Some(c) = self.connections.get_mut(first) else { return Ok(()) };
        if !is_message {
            return Err(fields
                .error(format!("flow {id} is given twice"))
                .hint(format!("first in line {}; `msg` adds a message to its connection", c.line)));
        }
        if (c.src, c.dst) != ends {
            let message = format!("connection {id} leads from host {} to host {}", c.src, c.dst);
            return Err(fields.error(message).hint(format!("as line {} says", c.line)));
        }
        if c.bytes.is_none() {
            let message = format!("connection {id} begins with a flow without end: no message follows");
            return Err(fields.error(message).hint(format!("line {}", c.line)));
        }
        c.is_message = true;
        Ok(())
    }

    /// A trigger's id, which may be specified later.
    fn used(&mut self, fields: &mut Fields<'_, '_>, name: &str) -> Result<u32> {
        let id = fields.number(name, ID_MAX)? as u32;
        if id == 0 {
            return Err(fields.error("a trigger's id cannot be 0"));
        }
        let line = fields.line.number;
        self.triggers.entry(id).or_insert(DraftTrigger { kind: None, line });
        Ok(id)
    }

    fn trigger(&mut self, reader: &Reader<'_>, line: Line<'_>) -> Result<()> {
        let (_, mut fields) = Fields::new(reader, line);
        let (mut id, mut count, mut kind) = (0, None, None);
        while let Some(word) = fields.words.next() {
            match word {
                "id" => id = fields.number("id", ID_MAX)? as u32,
                "count" => count = Some(fields.number("count", ID_MAX)? as u32),
                "oneshot" | "multishot" | "barrier" if kind.is_some() => {
                    return Err(reader.at(line, word, "this trigger has two kinds"));
                }
                "oneshot" => kind = Some(TriggerKind::Oneshot),
                "multishot" => kind = Some(TriggerKind::Multishot),
                "barrier" => kind = Some(TriggerKind::Barrier(0)),
                _ => return Err(fields.unknown(word, &["id", "count", "oneshot", "multishot", "barrier"])),
            }
        }
        if id == 0 {
            return Err(fields.error("this trigger has no id, or 0").hint("ids start at 1"));
        }
        let kind = match (kind, count) {
            (Some(TriggerKind::Barrier(_)), Some(n)) if n > 0 => TriggerKind::Barrier(n),
            (Some(TriggerKind::Barrier(_)), _) => {
                return Err(fields
                    .error("a barrier needs `count`, of at least 1")
                    .hint("the number of activations it waits for"));
            }
            (Some(kind), _) => kind,
            (None, _) => {
                return Err(fields.error("this trigger has no kind").expected("oneshot, multishot or barrier"));
            }
        };
        let slot = self.triggers.entry(id).or_default();
        if slot.kind.is_some() {
            let first = slot.line;
            return Err(fields
                .error(format!("trigger {id} is specified twice"))
                .hint(format!("first in line {first}")));
        }
        *slot = DraftTrigger { kind: Some(kind), line: line.number };
        Ok(())
    }

    fn failure(&mut self, reader: &Reader<'_>, line: Line<'_>) -> Result<()> {
        let (_, mut fields) = Fields::new(reader, line);
        let (mut switch_type, mut switch_id, mut link_id) = (None, None, None);
        while let Some(word) = fields.words.next() {
            match word {
                "switch_type" => {
                    let value = fields.value("switch_type")?;
                    switch_type = Some(match value {
                        "TOR" => FailureSwitch::Tor,
                        "AGG" => FailureSwitch::Agg,
                        "CORE" => FailureSwitch::Core,
                        _ => return Err(fields.unknown(value, &["TOR", "AGG", "CORE"])),
                    });
                }
                "switch_id" => switch_id = Some(fields.number("switch_id", ID_MAX)? as u32),
                "link_id" => link_id = Some(fields.number("link_id", ID_MAX)? as u32),
                _ => return Err(fields.unknown(word, &["switch_type", "switch_id", "link_id"])),
            }
        }
        match (switch_type, switch_id, link_id) {
            (Some(switch_type), Some(switch_id), Some(link_id)) => {
                self.failures.push(Failure { switch_type, switch_id, link_id, line: line.number });
                Ok(())
            }
            _ => Err(fields.error("a failure needs `switch_type`, `switch_id` and `link_id`")),
        }
    }

    /// The matrix with triggers by index instead of by id.
    fn finish(self, reader: &mut Reader<'_>, (nodes, nodes_line): (u32, u32)) -> Result<ConnectionMatrix> {
        let mut unspecified = self.triggers.iter().filter(|(_, t)| t.kind.is_none());
        if let Some((id, first)) = unspecified.next() {
            let count = 1 + unspecified.count();
            reader.warn(
                first.line,
                format!("{count} triggers are used and nowhere specified, the first is {id}: taken as oneshot"),
            );
        }
        let index: BTreeMap<u32, u32> = self.triggers.keys().zip(0..).map(|(id, i)| (*id, i)).collect();
        let mut triggers: Vec<Trigger> = self
            .triggers
            .into_iter()
            .map(|(id, t)| Trigger {
                id,
                kind: t.kind.unwrap_or(TriggerKind::Oneshot),
                targets: Vec::new(),
                line: t.line,
            })
            .collect();
        let find = |id: u32| index.get(&id).copied();
        let mut connections = self.connections;
        for (i, c) in (0u32..).zip(&mut connections) {
            c.send_done = c.send_done.and_then(find);
            c.recv_done = c.recv_done.and_then(find);
            if let Start::Trigger(id) = c.start {
                // Every id a flow names was entered when it was read.
                let at = find(id).unwrap_or(0);
                c.start = Start::Trigger(at);
                if let Some(t) = triggers.get_mut(at as usize) {
                    t.targets.push(i);
                }
            }
        }
        Ok(ConnectionMatrix { nodes, nodes_line, connections, triggers, failures: self.failures })
    }
}

/// A start in picoseconds, which may have a fraction.
fn picoseconds(reader: &Reader<'_>, line: Line<'_>, word: &str) -> Result<Duration> {
    let whole = word.split('.').next().unwrap_or("");
    if word.bytes().any(|b| !b.is_ascii_digit() && b != b'.') {
        let shown: String = word.chars().take(40).collect();
        return Err(reader.at(line, word, format!("`{shown}` is not a start")).expected("picoseconds"));
    }
    reader.number_in(line, whole, "a start", DURATION_MAX.0).map(Duration)
}
