//! The settings of each port, by way of the maps and profiles that its rows name.

use super::json::{ConfigDb, Row, Text};
use crate::setting::shown;
use crate::units::closest;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Priorities of frames, and the queues and priority groups that they can have.
pub const CLASSES: usize = 8;
/// The highest number of a queue: those from 8 on are for other frames than those of the maps.
const QUEUE_MAX: u64 = 63;

/// Rows of a table with keys such as `Ethernet0,Ethernet4|3-4`, by port and number.
type ByPort<'a> = BTreeMap<&'a str, [Option<&'a Row>; CLASSES]>;

/// The rows of all ports.
pub struct Ports<'a> {
    db: &'a ConfigDb,
    /// Whether PORT_QOS_MAP says which priorities are lossless.
    pub has_maps: bool,
    /// Ports with a row in PORT_QOS_MAP, in the order of the file; without them, ports with a buffer or queue. Ports that are
    /// down are left out, unless all are.
    pub names: Vec<&'a str>,
    maps: BTreeMap<&'a str, &'a Row>,
    groups: ByPort<'a>,
    buffers: ByPort<'a>,
    queues: ByPort<'a>,
    watchdogs: BTreeMap<&'a str, &'a Row>,
}

impl<'a> Ports<'a> {
    /// # Errors
    /// A row of an unknown port or with numbers that are none; two rows of one port that differ.
    pub fn new(db: &'a ConfigDb) -> Result<Ports<'a>> {
        let mut names = Vec::new();
        let mut maps = BTreeMap::new();
        for row in db.rows("PORT_QOS_MAP").iter().filter(|row| row.key.value != "global") {
            for port in ports_of(db, &row.key, &row.key.value)? {
                if maps.insert(port, row).is_some() {
                    return Err(db.error(row.key.at, format!("{} has two rows in PORT_QOS_MAP", shown(port))));
                }
                names.push(port);
            }
        }
        let groups = by_port(db, "BUFFER_PG")?;
        let buffers = by_port(db, "BUFFER_QUEUE")?;
        let queues = by_port(db, "QUEUE")?;
        let mut watchdogs = BTreeMap::new();
        for row in db.rows("PFC_WD").iter().filter(|row| row.key.value != "GLOBAL") {
            for port in ports_of(db, &row.key, &row.key.value)? {
                if watchdogs.insert(port, row).is_some() {
                    return Err(db.error(row.key.at, format!("{} has two rows in PFC_WD", shown(port))));
                }
            }
        }
        if names.is_empty() {
            names = groups.keys().chain(buffers.keys()).chain(queues.keys()).copied().collect();
            names.sort_by_key(|name| (name.len(), *name));
            names.dedup();
        }
        let is_down = |name: &str| {
            let status = db.row("PORT", name).and_then(|row| row.get("admin_status"));
            status.is_some_and(|status| status.value == "down")
        };
        if names.iter().any(|name| !is_down(name)) {
            names.retain(|name| !is_down(name));
        }
        Ok(Ports { db, has_maps: !maps.is_empty(), names, maps, groups, buffers, queues, watchdogs })
    }

    /// The first row of a port.
    pub fn row(&self, port: &str) -> Option<&'a Row> {
        let of = |rows: &ByPort<'a>| rows.get(port).and_then(|rows| rows.iter().copied().flatten().next());
        self.maps.get(port).copied().or_else(|| [&self.groups, &self.buffers, &self.queues].into_iter().find_map(of))
    }

    /// The profile of a priority group of a port.
    pub fn group(&self, port: &str, group: u8) -> Result<Option<&'a Row>> {
        self.profile(&self.groups, port, group)
    }

    /// The buffer profile of a queue of a port.
    pub fn buffer(&self, port: &str, queue: u8) -> Result<Option<&'a Row>> {
        self.profile(&self.buffers, port, queue)
    }

    fn profile(&self, rows: &ByPort<'a>, port: &str, number: u8) -> Result<Option<&'a Row>> {
        let row = rows.get(port).and_then(|rows| rows[usize::from(number)]);
        match row.and_then(|row| row.get("profile")) {
            // Computed on the switch.
            Some(name) if name.value == "NULL" => Ok(None),
            Some(name) => self.db.named("BUFFER_PROFILE", name).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the profile of a priority group is computed on the switch.
    pub fn is_dynamic(&self, port: &str, group: u8) -> bool {
        let row = self.groups.get(port).and_then(|rows| rows[usize::from(group)]);
        row.and_then(|row| row.get("profile")).is_some_and(|name| name.value == "NULL")
    }

    /// The scheduler of a queue of a port.
    pub fn scheduler(&self, port: &str, queue: u8) -> Result<Option<&'a Row>> {
        self.of_queue(port, queue, "scheduler", "SCHEDULER")
    }

    /// The WRED profile of a queue of a port.
    pub fn wred(&self, port: &str, queue: u8) -> Result<Option<&'a Row>> {
        self.of_queue(port, queue, "wred_profile", "WRED_PROFILE")
    }

    fn of_queue(&self, port: &str, queue: u8, field: &str, table: &str) -> Result<Option<&'a Row>> {
        let row = self.queues.get(port).and_then(|rows| rows[usize::from(queue)]);
        row.and_then(|row| row.get(field)).map(|name| self.db.named(table, name)).transpose()
    }

    /// A field of the row of a port in PORT_QOS_MAP.
    pub fn field(&self, port: &str, field: &str) -> Option<&'a Text> {
        self.maps.get(port).and_then(|row| row.get(field))
    }

    /// The row of a port in PFC_WD.
    pub fn watchdog(&self, port: &str) -> Option<&'a Row> {
        self.watchdogs.get(port).copied()
    }

    /// The numbers that a map gives the numbers below [`CLASSES`]: themselves, where it has none.
    pub fn map(&self, port: &str, field: &str, table: &str) -> Result<[u8; CLASSES]> {
        let mut map = core::array::from_fn(|i| i as u8);
        let Some(name) = self.field(port, field) else { return Ok(map) };
        for of in &self.db.named(table, name)?.fields {
            let from = self.db.number(&of.name, "a number of this map", 0, QUEUE_MAX)?;
            let Some(value) = &of.value else {
                return Err(self.db.error(of.name.at, "a list where a number should be").expected("from 0 to 63"));
            };
            let to = self.db.number(value, "a number of this map", 0, QUEUE_MAX)?;
            if let (Some(slot), true) = (map.get_mut(from as usize), to < CLASSES as u64) {
                *slot = to as u8;
            }
        }
        Ok(map)
    }

    /// The traffic class of each DSCP by the map of a port or of all ports.
    pub fn dscps(&self, port: &str) -> Result<Option<(Vec<u8>, &'a Row)>> {
        let global = self.db.row("PORT_QOS_MAP", "global").and_then(|row| row.get("dscp_to_tc_map"));
        let Some(name) = self.field(port, "dscp_to_tc_map").or(global) else { return Ok(None) };
        let row = self.db.named("DSCP_TO_TC_MAP", name)?;
        // A DSCP that is not in the map has traffic class 0 (SAI_QOS_MAP_TYPE_DSCP_TO_TC).
        let mut map = vec![0; 64];
        for of in &row.fields {
            let dscp = self.db.number(&of.name, "a DSCP", 0, 63)?;
            let Some(value) = &of.value else {
                return Err(self.db.error(of.name.at, "a list where a traffic class should be"));
            };
            map[dscp as usize] = self.db.number(value, "a traffic class", 0, CLASSES as u64 - 1)? as u8;
        }
        Ok(Some((map, row)))
    }
}

impl ConfigDb {
    /// The row that a reference names, in the old style `[TABLE|name]` or the new one `name`.
    pub(super) fn named(&self, table: &str, reference: &Text) -> Result<&Row> {
        let text = reference.value.trim();
        let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let name = match inside.map(|inside| inside.split_once('|').unwrap_or(("", inside))) {
            Some((of, name)) if of == table => name,
            Some((of, _)) => {
                let message = format!("this reference names a row of `{}`", shown(of));
                return Err(self.error(reference.at, message).expected(format!("a row of {table}")));
            }
            None => text,
        };
        self.row(table, name).ok_or_else(|| {
            let error = self.error(reference.at, format!("there is no {table}|{}", shown(name)));
            let names = self.rows(table).iter().map(|row| row.key.value.as_str());
            match closest(name, names.clone()) {
                Some(near) => error.hint(format!("did you mean `{}`?", shown(near))),
                None if names.clone().next().is_none() => error.hint(format!("the file has no rows of {table}")),
                None => error.hint(format!("it has {}", names.take(8).map(shown).collect::<Vec<_>>().join(", "))),
            }
        })
    }

    /// A text as a whole number within limits.
    pub(super) fn number(&self, text: &Text, what: &str, min: u64, max: u64) -> Result<u64> {
        self.signed(text, what, i128::from(min), i128::from(max)).map(|n| n as u64)
    }

    /// A text as a whole number within limits, which may be negative.
    pub(super) fn signed(&self, text: &Text, what: &str, min: i128, max: i128) -> Result<i128> {
        let expected = format!("from {min} to {max}");
        let trimmed = text.value.trim();
        let digits = trimmed.strip_prefix('-').unwrap_or(trimmed);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            let message = format!("`{}` is not {what}", shown(&text.value));
            return Err(self.error(text.at, message).expected(format!("a whole number, {expected}")));
        }
        match trimmed.parse::<i128>() {
            Ok(n) if (min..=max).contains(&n) => Ok(n),
            _ => Err(self.error(text.at, format!("{what} of {} is out of range", shown(trimmed))).expected(expected)),
        }
    }

    /// An error unless PORT has this port; a file without PORT has every port.
    fn check_port(&self, port: &str, at: &Text) -> Result<()> {
        let ports = self.rows("PORT");
        if ports.is_empty() || ports.iter().any(|row| row.key.value == port) {
            return Ok(());
        }
        let error: Error = self.error(at.at, format!("there is no port `{}` in PORT", shown(port)));
        Err(match closest(port, ports.iter().map(|row| row.key.value.as_str())) {
            Some(near) => error.hint(format!("did you mean `{}`?", shown(near))),
            None => error.hint("each row of a port names one of PORT"),
        })
    }
}

/// The ports in the key of a row: `Ethernet0,Ethernet4`, or the port of a chassis, `linecard|asic|Ethernet0`, if it is one of
/// this line card.
fn ports_of<'a>(db: &ConfigDb, key: &Text, ports: &'a str) -> Result<Vec<&'a str>> {
    let Some((place, name)) = ports.rsplit_once('|') else {
        let ports: Vec<&str> = ports.split(',').map(str::trim).collect();
        for port in &ports {
            if port.is_empty() {
                return Err(db
                    .error(key.at, "this row names no port")
                    .expected("as \"Ethernet0\" or \"Ethernet0|3-4\""));
            }
            db.check_port(port, key)?;
        }
        return Ok(ports);
    };
    let own = |field: &str| db.row("DEVICE_METADATA", "localhost").and_then(|row| row.get(field));
    let Some(host) = own("hostname") else {
        let error = db.error(key.at, format!("this row is of a port of the line card `{}`", shown(place)));
        return Err(error.hint("DEVICE_METADATA|localhost|hostname says which line card the file is of"));
    };
    let (card, asic) = place.split_once('|').unwrap_or((place, ""));
    let is_own = card == host.value && own("asic_name").is_none_or(|name| name.value.eq_ignore_ascii_case(asic));
    Ok(if is_own { vec![name] } else { Vec::new() })
}

fn by_port<'a>(db: &'a ConfigDb, table: &str) -> Result<ByPort<'a>> {
    let mut all: ByPort<'a> = BTreeMap::new();
    for row in db.rows(table) {
        let Some((ports, numbers)) = row.key.value.rsplit_once('|') else {
            let error = db.error(row.key.at, format!("a row of {table} without numbers"));
            return Err(error.expected("a port and its numbers, as \"Ethernet0|3-4\""));
        };
        let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
        let part = |value: &str| Text { value: value.into(), at: row.key.at };
        let first = db.number(&part(first), "a number of this row", 0, QUEUE_MAX)?;
        let last = db.number(&part(last), "a number of this row", first, QUEUE_MAX)?;
        for port in ports_of(db, &row.key, ports)? {
            let of_port = all.entry(port).or_default();
            for number in first..=last.min(CLASSES as u64 - 1) {
                let slot = &mut of_port[number as usize];
                if let Some(other) = slot.filter(|other| !is_same(other, row)) {
                    let line = db.line(other.key.at);
                    let message = format!("{number} of {} has another row in line {line}", shown(port));
                    return Err(db.error(row.key.at, message).hint("ranges of one port do not overlap"));
                }
                *slot = Some(row);
            }
        }
    }
    Ok(all)
}

/// Whether two rows have the same fields.
fn is_same(a: &Row, b: &Row) -> bool {
    let of = |row: &Row| {
        let mut fields: Vec<_> =
            row.fields.iter().map(|f| (f.name.value.clone(), f.value.clone().map(|v| v.value))).collect();
        fields.sort();
        fields
    };
    of(a) == of(b)
}
