//! The keys of a scenario that a `config_db.json` gives.

use super::json::{ConfigDb, Place, Row, Text};
use super::ports::{CLASSES, Ports};
use super::watchdog::PortWatchdog;
use crate::setting::shown;
use crate::tree::{Entry, Node, Span, Table, Value};
use crate::{Error, Length, Quantity, Result, Warning};
use std::collections::{BTreeMap, BTreeSet};

/// The highest rate of a port, in Mb/s: that of a scenario's link.
const SPEED_MAX: u64 = 100_000_000;
/// The largest size in a profile or pool.
const SIZE_MAX: u64 = 1 << 40;
/// Exponents of dynamic thresholds (sonic-buffer-profile.yang).
const DYNAMIC_TH: (i128, i128) = (-8, 7);

/// Tables whose fields give settings, and these fields. `*` is every field.
const MODELLED: &[(&str, &[&str])] = &[
    ("BUFFER_PG", &["profile"]),
    ("BUFFER_POOL", &["type", "mode", "size", "xoff"]),
    ("BUFFER_PROFILE", &["pool", "size", "dynamic_th", "static_th", "xon", "xoff", "xon_offset", "headroom_type"]),
    ("BUFFER_QUEUE", &["profile"]),
    ("CABLE_LENGTH", &["*"]),
    ("DEFAULT_LOSSLESS_BUFFER_PARAMETER", &["default_dynamic_th"]),
    // Tells the ports of a line card.
    ("DEVICE_METADATA", &["*"]),
    ("DSCP_TO_TC_MAP", &["*"]),
    ("MAP_PFC_PRIORITY_TO_QUEUE", &["*"]),
    ("PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", &["*"]),
    ("PFC_WD", &["action", "detection_time", "restoration_time"]),
    ("PORT", &["speed", "admin_status"]),
    (
        "PORT_QOS_MAP",
        &[
            "pfc_enable",
            "pfcwd_sw_enable",
            "dscp_to_tc_map",
            "tc_to_pg_map",
            "tc_to_queue_map",
            "pfc_to_queue_map",
            "pfc_to_pg_map",
        ],
    ),
    ("QUEUE", &["scheduler", "wred_profile"]),
    ("SCHEDULER", &["type", "weight"]),
    ("TC_TO_PRIORITY_GROUP_MAP", &["*"]),
    ("TC_TO_QUEUE_MAP", &["*"]),
    (
        "WRED_PROFILE",
        &["wred_green_enable", "ecn", "green_min_threshold", "green_max_threshold", "green_drop_probability"],
    ),
];

/// Whether a table gives settings.
pub(super) fn is_read(table: &str) -> bool {
    MODELLED.iter().any(|of| of.0 == table)
}

/// The keys that a file gives, and what it says besides.
#[derive(Debug)]
pub struct Settings {
    /// Sections with keys, as in a scenario.
    pub keys: Table,
    /// Every key of the file that has no counterpart, named once, and settings with another meaning here.
    pub warnings: Vec<Warning>,
}

/// The keys of a scenario that a file gives. All ports of the file have the same settings, or those of `port` count for all.
/// `given` says which keys of a section the scenario gives itself.
///
/// # Errors
/// A reference to a row that does not exist, a number out of range, an unknown port, ports that differ.
pub fn settings(db: &ConfigDb, port: Option<&str>, given: &dyn Fn(&str, &str) -> bool) -> Result<Settings> {
    let ports = Ports::new(db)?;
    if let Some(port) = port.filter(|port| !ports.names.contains(port)) {
        let error = Error::file(&*db.name, format!("there is no port `{}` with settings in {}", shown(port), db.name));
        return Err(error.hint(format!("it has {}", list(&ports.names))));
    }
    let mut of = Conversion { db, ports, given, sections: BTreeMap::new(), notes: Vec::new() };
    let chosen: Vec<&str> = port.map_or_else(|| of.ports.names.clone(), |port| vec![port]);
    let outcome = of.read(&chosen);
    let mut warnings = of.notes;
    warnings.extend(not_modelled(db));
    if let Err(e) = outcome {
        return Err(e.after(warnings));
    }
    let mut keys = Table::default();
    for section in SECTIONS {
        if let Some(value) = of.sections.remove(section) {
            let span = Span::attached(0, 0);
            keys.entries.push(Entry { key: section.into(), key_span: span, node: Node { span, value } });
        }
    }
    Ok(Settings { keys, warnings })
}

/// The sections that a file can give, in the order of the reference page.
const SECTIONS: [&str; 5] = ["switch", "buffer", "wred", "ets", "pfc"];

/// Names one of many ports.
fn list(names: &[&str]) -> String {
    match names {
        [] => "no port with settings".into(),
        [first, .., last] if names.len() > 4 => format!("{} ports from {first} to {last}", names.len()),
        few => few.join(", "),
    }
}

/// The settings of a traffic class at a port. Sizes that follow from a port's speed and cable are not among them.
#[derive(Clone, PartialEq)]
struct Class {
    is_lossless: bool,
    group: u8,
    queue: u8,
    /// Thresholds of its priority group.
    group_profile: Option<Profile>,
    /// Thresholds of its queue.
    queue_profile: Option<Profile>,
    /// Whether the switch computes the headroom of its group.
    is_dynamic: bool,
    /// Names of scheduler and WRED profile.
    scheduler: Option<String>,
    wred: Option<String>,
}

/// A number and where it stands. Two are equal if the numbers are.
#[derive(Clone, Copy)]
struct Given<T> {
    n: T,
    at: Place,
}

impl<T: PartialEq> PartialEq for Given<T> {
    fn eq(&self, other: &Given<T>) -> bool {
        self.n == other.n
    }
}

/// A buffer profile without the headroom.
#[derive(Clone, PartialEq)]
struct Profile {
    pool: Option<String>,
    /// Bytes of its own.
    reserved: Option<Given<u64>>,
    dynamic_th: Option<Given<i128>>,
    static_th: Option<Given<u64>>,
    xon: Option<Given<u64>>,
    xon_offset: Option<Given<u64>>,
    is_lossless: bool,
}

struct Conversion<'a> {
    db: &'a ConfigDb,
    ports: Ports<'a>,
    given: &'a dyn Fn(&str, &str) -> bool,
    sections: BTreeMap<&'static str, Value>,
    notes: Vec<Warning>,
}

impl<'a> Conversion<'a> {
    /// Gives the keys of these ports.
    fn read(&mut self, ports: &[&'a str]) -> Result<()> {
        let Some(first) = ports.first() else { return Ok(()) };
        let classes = self.agreed(ports)?;
        self.dscps(first)?;
        self.pauses(first, &classes)?;
        self.watchdog(ports)?;
        self.memory(&classes)?;
        self.headrooms(&classes)?;
        self.marks(first, &classes)?;
        self.shares(first, &classes)
    }

    fn note(&mut self, at: Place, message: String) {
        self.notes.push(Warning { file: self.db.name.clone(), line: self.db.line(at), message });
    }

    /// Gives a key of a section.
    fn set(&mut self, section: &'static str, key: &str, value: Value, at: Place) {
        let table = self.sections.entry(section).or_insert_with(|| Value::Table(Table::default()));
        if let Value::Table(table) = table {
            table.entries.push(entry(key, value, at));
        }
    }

    fn set_size(&mut self, section: &'static str, key: &str, size: Given<u64>) {
        self.set(section, key, bytes(size.n), size.at);
    }

    /// Adds a table to the list of a section.
    fn push(&mut self, section: &'static str, list: Option<&str>, table: Table, at: Place) {
        let node = Node { span: span(at), value: Value::Table(table) };
        let Some(list) = list else {
            match self.sections.entry(section).or_insert_with(|| Value::List(Vec::new())) {
                Value::List(all) => all.push(node),
                _ => unreachable!("{section} is a list"),
            }
            return;
        };
        let Value::Table(of) = self.sections.entry(section).or_insert_with(|| Value::Table(Table::default())) else {
            unreachable!("{section} is a table");
        };
        match of.entries.iter_mut().find(|e| e.key == list).map(|e| &mut e.node.value) {
            Some(Value::List(all)) => all.push(node),
            _ => of.entries.push(entry(list, Value::List(vec![node]), at)),
        }
    }

    /// The settings of the ports, which agree.
    fn agreed(&self, ports: &[&str]) -> Result<[Class; CLASSES]> {
        let first = self.classes(ports[0])?;
        for port in &ports[1..] {
            let other = self.classes(port)?;
            if let Some(tc) = (0..CLASSES).find(|&tc| first[tc] != other[tc]) {
                let what = difference(&first[tc], &other[tc]);
                let message = format!("{} and {port} differ in {what} of traffic class {tc}", ports[0]);
                let at = self.ports.row(port).map_or(Place::default(), |row| row.key.at);
                return Err(self.db.error(at, message).hint(self.choice(ports[0])));
            }
        }
        Ok(first)
    }

    /// The hint where ports differ.
    fn choice(&self, port: &str) -> String {
        format!(
            "the switches of a scenario have one setting for all ports: choose one port's with switch.sonic_port = \"{port}\" \
             (`--port {port}` of `sonic read`)"
        )
    }

    fn classes(&self, port: &str) -> Result<[Class; CLASSES]> {
        let groups = self.ports.map(port, "tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP")?;
        let queues = self.ports.map(port, "tc_to_queue_map", "TC_TO_QUEUE_MAP")?;
        let pfc_to_group = self.ports.map(port, "pfc_to_pg_map", "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP")?;
        let paused = self.priorities(port, "pfc_enable")?;
        let class = |tc: usize| {
            let (group, queue) = (groups[tc], queues[tc]);
            let profile = |row: Option<&'a Row>| row.map(|row| self.profile(row)).transpose();
            let name = |row: Option<&'a Row>| row.map(|row| row.key.value.clone());
            let group_profile = profile(self.ports.group(port, group)?)?;
            let has_headroom =
                self.ports.is_dynamic(port, group) || group_profile.as_ref().is_some_and(|profile| profile.is_lossless);
            let is_paused = paused.iter().any(|&p| pfc_to_group[usize::from(p)] == group);
            Ok(Class {
                is_lossless: if self.ports.has_maps { is_paused } else { has_headroom },
                group,
                queue,
                group_profile,
                queue_profile: profile(self.ports.buffer(port, queue)?)?,
                is_dynamic: self.ports.is_dynamic(port, group),
                scheduler: name(self.ports.scheduler(port, queue)?),
                wred: name(self.ports.wred(port, queue)?),
            })
        };
        let all: Vec<Class> = (0..CLASSES).map(class).collect::<Result<_>>()?;
        Ok(core::array::from_fn(|tc| all[tc].clone()))
    }

    /// A list of priorities of a port: those for which it pauses and is paused (`pfc_enable`), or those of its watchdog.
    fn priorities(&self, port: &str, field: &str) -> Result<Vec<u8>> {
        let Some(list) = self.ports.field(port, field) else { return Ok(Vec::new()) };
        let parts = list.value.split(',').map(str::trim).filter(|part| !part.is_empty());
        let number = |part: &str| {
            let part = Text { value: part.into(), at: list.at };
            self.db.number(&part, "a priority", 0, CLASSES as u64 - 1).map(|n| n as u8)
        };
        parts.map(number).collect()
    }

    fn profile(&self, row: &Row) -> Result<Profile> {
        let db = self.db;
        let size = |name: &str| -> Result<Option<Given<u64>>> {
            let Some(text) = row.get(name) else { return Ok(None) };
            Ok(Some(Given { n: db.number(text, name, 0, SIZE_MAX)?, at: text.at }))
        };
        let pool = row.get("pool").map(|name| db.named("BUFFER_POOL", name)).transpose()?;
        let (own, xoff) = (size("size")?, size("xoff")?);
        // With a shared headroom pool, or on Broadcom's chips, `size` does not count the headroom.
        let counts_headroom = pool.is_none_or(|pool| headroom_pool(pool).is_none());
        let reserved = own.map(|own| {
            let headroom = xoff.map_or(0, |xoff| xoff.n);
            Given { n: if counts_headroom && own.n >= headroom { own.n - headroom } else { own.n }, ..own }
        });
        let dynamic_th = row.get("dynamic_th").map(|text| {
            let n = db.signed(text, "dynamic_th", DYNAMIC_TH.0, DYNAMIC_TH.1)?;
            Ok(Given { n, at: text.at })
        });
        Ok(Profile {
            pool: pool.map(|pool| pool.key.value.clone()),
            reserved,
            dynamic_th: dynamic_th.transpose()?,
            static_th: size("static_th")?,
            xon: size("xon")?,
            xon_offset: size("xon_offset")?,
            is_lossless: xoff.is_some(),
        })
    }

    fn dscps(&mut self, port: &str) -> Result<()> {
        if let Some((map, row)) = self.ports.dscps(port)? {
            let at = row.key.at;
            let numbers = map.into_iter().map(|tc| Node { span: span(at), value: Value::Int(tc.into()) });
            self.set("switch", "dscp_to_tc", Value::List(numbers.collect()), at);
        }
        Ok(())
    }

    /// PFC, and pauses that stop another queue than that of their class.
    fn pauses(&mut self, port: &str, classes: &[Class; CLASSES]) -> Result<()> {
        let lossless: Vec<usize> = (0..CLASSES).filter(|&tc| classes[tc].is_lossless).collect();
        let Some(list) = self.ports.field(port, "pfc_enable") else { return Ok(()) };
        self.set("pfc", "enabled", Value::Bool(!lossless.is_empty()), list.at);
        if lossless.is_empty() {
            return Ok(());
        }
        let number = |&tc: &usize| Node { span: span(list.at), value: Value::Int(tc as i128) };
        self.set("pfc", "lossless", Value::List(lossless.iter().map(number).collect()), list.at);
        let stops = self.ports.map(port, "pfc_to_queue_map", "MAP_PFC_PRIORITY_TO_QUEUE")?;
        let pfc_to_group = self.ports.map(port, "pfc_to_pg_map", "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP")?;
        let paused = self.priorities(port, "pfc_enable")?;
        let mut looked_up = BTreeSet::new();
        for tc in lossless {
            let class = &classes[tc];
            let of_class = |&&p: &&u8| pfc_to_group[usize::from(p)] == class.group;
            let stopped: Vec<u8> = paused.iter().filter(of_class).map(|&p| stops[usize::from(p)]).collect();
            if !stopped.contains(&class.queue) {
                let message = format!(
                    "a pause of traffic class {tc} stops queue {}, and its frames are in queue {}: the switch would not obey \
                     it, the simulated one does",
                    stopped[0], class.queue
                );
                self.note(list.at, message);
            }
            let is_profiled = class.group_profile.as_ref().is_some_and(|profile| profile.is_lossless);
            if !is_profiled && !class.is_dynamic {
                looked_up.insert(class.group);
            }
        }
        if !looked_up.is_empty() {
            let groups: Vec<u8> = looked_up.into_iter().collect();
            let message = format!(
                "priority groups {groups:?} have PFC and no profile with an `xoff`: the headroom is computed here and the thresholds \
                 are the scenario's; the switch looks them up in pg_profile_lookup.ini"
            );
            self.note(list.at, message);
        }
        Ok(())
    }

    /// The one profile of several classes.
    fn one<'c>(
        &self,
        classes: impl Iterator<Item = (usize, Option<&'c Profile>)>,
        keys: (&str, &[&str]),
        what: &str,
    ) -> Result<Option<&'c Profile>> {
        let all: Vec<(usize, &Profile)> =
            classes.filter_map(|(tc, profile)| profile.map(|profile| (tc, profile))).collect();
        let Some((tc, first)) = all.first() else { return Ok(None) };
        let is_given = keys.1.iter().all(|key| (self.given)(keys.0, key));
        if let Some((other, profile)) = all.iter().find(|(_, profile)| profile != first).filter(|_| !is_given) {
            let at = profile.dynamic_th.map(|th| th.at).or(profile.reserved.map(|reserved| reserved.at));
            let message = format!("traffic classes {tc} and {other} have different thresholds {what}");
            let error = self.db.error(at.unwrap_or_default(), message);
            if !self.ports.has_maps {
                return Err(error.hint(
                    "the file has no PORT_QOS_MAP, which says which are lossless: give the whole config_db.json",
                ));
            }
            return Err(error.hint(format!(
                "the switches of a scenario have one for all: give {} in the scenario",
                keys.1.iter().map(|key| format!("{}.{key}", keys.0)).collect::<Vec<_>>().join(" and ")
            )));
        }
        Ok(Some(first))
    }

    /// The PFC watchdog, on whose settings the ports agree.
    fn watchdog(&mut self, ports: &[&str]) -> Result<()> {
        let read = |row: Option<&Row>| row.map(|row| PortWatchdog::of(self.db, row)).transpose();
        let row = self.ports.watchdog(ports[0]);
        let first = read(row)?;
        for port in &ports[1..] {
            let other = self.ports.watchdog(port);
            if read(other)? != first {
                let at = other.or(row).map_or(Place::default(), |row| row.key.at);
                let message = format!("{} and {port} differ in the PFC watchdog", ports[0]);
                return Err(self.db.error(at, message).hint(self.choice(ports[0])));
            }
        }
        let (Some(watchdog), Some(row)) = (first, row) else { return Ok(()) };
        let at = row.key.at;
        let mut table = Table::default();
        for (key, value) in watchdog.keys() {
            table.entries.push(entry(key, value, at));
        }
        self.set("pfc", "watchdog", Value::Table(table), at);
        if let Some(list) = self.ports.field(ports[0], "pfcwd_sw_enable")
            && self.priorities(ports[0], "pfcwd_sw_enable")? != self.priorities(ports[0], "pfc_enable")?
        {
            let message = "the watchdog is on other priorities than those of pfc_enable; simulated switches have it on all of these";
            self.note(list.at, message.into());
        }
        Ok(())
    }

    /// Pools and thresholds.
    fn memory(&mut self, classes: &[Class; CLASSES]) -> Result<()> {
        let of = |lossless: bool| classes.iter().enumerate().filter(move |(_, class)| class.is_lossless == lossless);

        let lossless =
            self.one(of(true).map(group_profile), ("buffer", &["lossless_dynamic_th", "reserved"]), "at inputs")?;
        let lossy =
            self.one(of(false).map(group_profile), ("buffer", &["lossy_dynamic_th", "lossy_reserved"]), "at inputs")?;
        let egress = of(false).map(|(tc, class)| (tc, class.queue_profile.as_ref()));
        let egress = self.one(egress, ("buffer", &["egress_dynamic_th", "egress_reserved"]), "at outputs")?;
        if let Some((profile, limit)) = lossless.and_then(|profile| profile.static_th.map(|limit| (profile, limit))) {
            self.fixed(profile, limit);
            self.without_pool(egress);
            return Ok(());
        }
        let is_dynamic = classes.iter().any(|class| class.is_lossless && class.is_dynamic);
        let of_pool = lossless.or(lossy).and_then(|profile| profile.pool.as_deref());
        let of_pool = of_pool.or(is_dynamic.then_some("ingress_lossless_pool"));
        let Some(pool) = of_pool.and_then(|name| self.db.row("BUFFER_POOL", name)) else {
            self.without_pool(egress);
            return Ok(());
        };
        self.pool(pool)?;
        self.other_pool(pool, lossy);
        match lossless {
            Some(profile) => self.lossless(profile),
            None if is_dynamic => self.default_th()?,
            None => {}
        }
        self.lossy(lossy, "lossy_dynamic_th", "lossy_reserved");
        self.lossy(egress, "egress_dynamic_th", "egress_reserved");
        Ok(())
    }

    /// The thresholds of lossy traffic classes.
    fn lossy(&mut self, profile: Option<&Profile>, th: &str, own: &str) {
        let Some(profile) = profile else { return };
        match (profile.dynamic_th, profile.static_th) {
            (Some(exponent), _) => self.set("buffer", th, Value::Int(exponent.n), exponent.at),
            (None, Some(limit)) => {
                self.note(
                    limit.at,
                    "`static_th` has no counterpart beside a pool with dynamic thresholds: ignored".into(),
                );
            }
            (None, None) => {}
        }
        if let Some(bytes) = profile.reserved {
            self.set_size("buffer", own, bytes);
        }
    }

    /// A lossless threshold in bytes: the switches have a buffer for each port.
    fn fixed(&mut self, profile: &Profile, limit: Given<u64>) {
        let n = |of: Option<Given<u64>>| of.map_or(0, |of| of.n);
        let xoff = n(profile.reserved) + limit.n;
        let xon = n(profile.xon).max(xoff.saturating_sub(n(profile.xon_offset))).min(xoff);
        self.set("pfc", "xoff", bytes(xoff), limit.at);
        self.set("pfc", "xon", bytes(xon), limit.at);
    }

    /// Queues at outputs with a threshold in bytes.
    fn without_pool(&mut self, egress: Option<&Profile>) {
        let Some((profile, limit)) = egress.and_then(|profile| profile.static_th.map(|limit| (profile, limit))) else {
            return;
        };
        let own = profile.reserved.map_or(0, |reserved| reserved.n);
        self.set("switch", "buffer", bytes(own + limit.n), limit.at);
        self.set("switch", "policy", Value::Text("output".into()), limit.at);
    }

    /// The size of the shared memory.
    fn pool(&mut self, pool: &'a Row) -> Result<()> {
        let has_size = ["size", "shared", "level"].iter().any(|key| (self.given)("buffer", key));
        match pool.get("size") {
            Some(size) => {
                let shared = self.db.number(size, "size", 0, SIZE_MAX)?;
                self.set("buffer", "shared", bytes(shared), size.at);
            }
            None if has_size => {}
            None => {
                let message = format!("BUFFER_POOL|{} has no size", pool.key.value);
                return Err(self.db.error(pool.key.at, message).hint(
                    "the switch computes it (dynamic buffer model): give buffer.shared in the scenario, as `show buffer \
                     information` prints it (`--shared` of `sonic read`)",
                ));
            }
        }
        if let Some(xoff) = headroom_pool(pool) {
            let bytes_of_pool = self.db.number(xoff, "xoff", 0, SIZE_MAX)?;
            self.set("buffer", "headroom_pool", bytes(bytes_of_pool), xoff.at);
        }
        Ok(())
    }

    /// A note if lossy groups have another pool.
    fn other_pool(&mut self, pool: &Row, lossy: Option<&Profile>) {
        let Some(other) = lossy.and_then(|profile| profile.pool.as_ref()).filter(|name| **name != pool.key.value)
        else {
            return;
        };
        let Some(row) = self.db.row("BUFFER_POOL", other) else { return };
        let message = format!(
            "lossy traffic classes have a pool of their own, {}: simulated switches have one pool, {}",
            shown(other),
            shown(&pool.key.value)
        );
        self.note(row.key.at, message);
    }

    /// The thresholds of lossless traffic classes.
    fn lossless(&mut self, profile: &Profile) {
        if let Some(exponent) = profile.dynamic_th {
            self.set("buffer", "lossless_dynamic_th", Value::Int(exponent.n), exponent.at);
        }
        if let Some(bytes) = profile.reserved {
            self.set_size("buffer", "reserved", bytes);
        }
        // SAI: XON at max(xon, limit - xon_offset), and both are 0 by default.
        let at = profile.xon.or(profile.reserved).map_or(Place::default(), |of| of.at);
        self.set_size("buffer", "xon_offset", profile.xon_offset.unwrap_or(Given { n: 0, at }));
        if let Some(bytes) = profile.xon.filter(|xon| xon.n > 0) {
            self.set_size("buffer", "xon", bytes);
        }
    }

    /// The exponent of lossless groups whose headroom the switch computes.
    fn default_th(&mut self) -> Result<()> {
        let rows = self.db.rows("DEFAULT_LOSSLESS_BUFFER_PARAMETER");
        if let Some(text) = rows.iter().find_map(|row| row.get("default_dynamic_th")) {
            let th = self.db.signed(text, "default_dynamic_th", DYNAMIC_TH.0, DYNAMIC_TH.1)?;
            self.set("buffer", "lossless_dynamic_th", Value::Int(th), text.at);
        }
        Ok(())
    }

    /// The headroom by speed and cable, of all ports of the file.
    fn headrooms(&mut self, classes: &[Class; CLASSES]) -> Result<()> {
        // Rows for links would win over the scenario's `headroom`.
        if ["headroom", "link"].iter().any(|key| (self.given)("pfc", key)) {
            return Ok(());
        }
        let groups: BTreeSet<u8> = classes.iter().filter(|class| class.is_lossless).map(|class| class.group).collect();
        let ports = self.ports.names.clone();
        let mut known: Vec<(u64, Length, u64)> = Vec::new();
        let mut unknown: Vec<(u64, Place)> = Vec::new();
        for (port, &group) in ports.iter().flat_map(|port| groups.iter().map(move |group| (port, group))) {
            let Some(xoff) = self.ports.group(port, group)?.and_then(|profile| profile.get("xoff")) else { continue };
            let headroom = self.db.number(xoff, "xoff", 0, SIZE_MAX)?;
            let (Some(speed), Some((cable, at))) = (self.speed(port)?, self.cable(port)?) else {
                unknown.push((headroom, xoff.at));
                continue;
            };
            match known.iter().find(|of| (of.0, of.1) == (speed, cable)) {
                Some(of) if of.2 == headroom => {}
                Some(of) => {
                    let message = format!(
                        "ports of {speed} Mb/s with {} of cable have headrooms of {} B and {headroom} B",
                        cable.written(),
                        of.2
                    );
                    return Err(self.db.error(xoff.at, message).hint("give pfc.headroom in the scenario"));
                }
                None => {
                    known.push((speed, cable, headroom));
                    let mut row = Table::default();
                    row.entries.push(entry("rate", Value::Text(rate(speed)), at));
                    row.entries.push(entry("cable", Value::Text(cable.written()), at));
                    row.entries.push(entry("headroom", bytes(headroom), xoff.at));
                    self.push("pfc", Some("link"), row, xoff.at);
                }
            }
        }
        let Some(&(headroom, at)) = unknown.first().filter(|_| known.is_empty()) else { return Ok(()) };
        if let Some(other) = unknown.iter().find(|other| other.0 != headroom) {
            let message = format!("ports have headrooms of {headroom} B and {} B, and no speed or cable", other.0);
            return Err(self.db.error(other.1, message).hint("PORT|...|speed and CABLE_LENGTH tell them apart"));
        }
        self.set("pfc", "headroom", bytes(headroom), at);
        Ok(())
    }

    /// The speed of a port in Mb/s.
    fn speed(&self, port: &str) -> Result<Option<u64>> {
        let speed = self.db.row("PORT", port).and_then(|row| row.get("speed"));
        speed.map(|text| self.db.number(text, "speed", 1, SPEED_MAX)).transpose()
    }

    /// The cable of a port.
    fn cable(&self, port: &str) -> Result<Option<(Length, Place)>> {
        let found = self.db.rows("CABLE_LENGTH").iter().find_map(|row| row.get(port));
        let Some(text) = found else { return Ok(None) };
        let length = Length::parse(&text.value)
            .map_err(|e| self.db.error(text.at, e.message).expected("a length in metres, as \"40m\"").hint(e.hint))?;
        Ok(Some((length, text.at)))
    }

    /// WRED profiles.
    fn marks(&mut self, port: &str, classes: &[Class; CLASSES]) -> Result<()> {
        let mut profiles: BTreeMap<(String, bool), Vec<usize>> = BTreeMap::new();
        for (tc, class) in classes.iter().enumerate() {
            if let Some(name) = &class.wred {
                profiles.entry((name.clone(), class.is_lossless)).or_default().push(tc);
            }
        }
        for ((_, is_lossless), classes_of) in profiles {
            let Some(row) = self.ports.wred(port, classes[classes_of[0]].queue)? else { continue };
            self.wred(row, is_lossless, &classes_of)?;
        }
        Ok(())
    }

    fn wred(&mut self, row: &'a Row, is_lossless: bool, classes: &[usize]) -> Result<()> {
        let ecn = match row.get("ecn").map(|text| (text.value.as_str(), text.at)) {
            None => "ecn_none",
            Some(("ecn_none" | "ecn_yellow" | "ecn_red" | "ecn_yellow_red", _)) => "ecn_none",
            Some(("ecn_green" | "ecn_green_yellow" | "ecn_green_red", _)) => "ecn_green",
            Some(("ecn_all", _)) => "ecn_all",
            Some((word, at)) => {
                let error = self.db.error(at, format!("unknown ecn `{}`", shown(word)));
                return Err(error.expected("ecn_none, ecn_green, ecn_all, or other colours"));
            }
        };
        let drops = match row.get("wred_green_enable").map(|text| (text.value.as_str(), text.at)) {
            None | Some(("false", _)) => None,
            Some(("true", at)) => Some(at),
            Some((word, at)) => {
                let error = self.db.error(at, format!("`{}` is not true or false", shown(word)));
                return Err(error.expected("true or false"));
            }
        };
        let at = row.key.at;
        if drops.is_none() && ecn == "ecn_none" {
            return Ok(());
        }
        if let Some(at) = drops.filter(|_| is_lossless) {
            let message = format!(
                "WRED_PROFILE|{} would drop frames of the lossless traffic classes {classes:?} whose transport does not \
                 support ECN; simulated switches mark and drop nothing there",
                shown(&row.key.value)
            );
            self.note(at, message);
            if ecn == "ecn_none" {
                return Ok(());
            }
        }
        let mut table = Table::default();
        let number = |&tc: &usize| Node { span: span(at), value: Value::Int(tc as i128) };
        table.entries.push(entry("priorities", Value::List(classes.iter().map(number).collect()), at));
        for name in ["green_min_threshold", "green_max_threshold"] {
            let Some(text) = row.get(name) else {
                let error = self.db.error(at, format!("WRED_PROFILE|{} has no {name}", shown(&row.key.value)));
                return Err(error.hint(format!("give \"{name}\" in bytes")));
            };
            let threshold = self.db.number(text, name, 0, SIZE_MAX)?;
            table.entries.push(entry(name, bytes(threshold), text.at));
        }
        if let Some(text) = row.get("green_drop_probability") {
            let percent = self.db.number(text, "green_drop_probability", 0, 100)?;
            table.entries.push(entry("green_drop_probability", Value::Int(percent.into()), text.at));
        }
        let enable = drops.filter(|_| !is_lossless);
        table.entries.push(entry("wred_green_enable", Value::Bool(enable.is_some()), drops.unwrap_or(at)));
        table.entries.push(entry("ecn", Value::Text(ecn.into()), row.get("ecn").map_or(at, |text| text.at)));
        self.push("wred", None, table, at);
        Ok(())
    }

    /// Schedulers.
    fn shares(&mut self, port: &str, classes: &[Class; CLASSES]) -> Result<()> {
        if classes.iter().all(|class| class.scheduler.is_none()) {
            return Ok(());
        }
        let mut strict = Vec::new();
        // By queue, whose classes share its weight.
        let mut groups: BTreeMap<u8, (u64, Place, Vec<usize>)> = BTreeMap::new();
        let mut place = Place::default();
        for (tc, class) in classes.iter().enumerate() {
            let row = self.ports.scheduler(port, class.queue)?;
            let at = row.map_or(place, |row| row.key.at);
            place = at;
            let kind = row.and_then(|row| row.get("type"));
            match kind.map_or("WRR", |kind| kind.value.as_str()) {
                "STRICT" => strict.push((tc, at)),
                // Ours counts bytes, as DWRR does.
                "DWRR" | "WRR" => {
                    let weight = row.and_then(|row| row.get("weight"));
                    let share = weight.map(|text| self.db.number(text, "weight", 1, 100)).transpose()?.unwrap_or(1);
                    groups
                        .entry(class.queue)
                        .or_insert((share, weight.map_or(at, |text| text.at), Vec::new()))
                        .2
                        .push(tc);
                }
                word => {
                    let error =
                        self.db.error(kind.map_or(at, |kind| kind.at), format!("unknown type `{}`", shown(word)));
                    return Err(error.expected("DWRR, WRR or STRICT"));
                }
            }
        }
        let is_percent = groups.values().map(|of| of.0).sum::<u64>() == 100;
        let number = |(tc, at): &(usize, Place)| Node { span: span(*at), value: Value::Int(*tc as i128) };
        if let Some((_, at)) = strict.first() {
            let at = *at;
            self.set("ets", "strict", Value::List(strict.iter().map(number).collect()), at);
        }
        for (share, at, classes) in groups.into_values() {
            let mut table = Table::default();
            let classes: Vec<_> = classes.into_iter().map(|tc| number(&(tc, at))).collect();
            table.entries.push(entry("priorities", Value::List(classes), at));
            table.entries.push(entry(if is_percent { "bandwidth" } else { "weight" }, Value::Int(share.into()), at));
            self.push("ets", Some("group"), table, at);
        }
        Ok(())
    }
}

fn group_profile((tc, class): (usize, &Class)) -> (usize, Option<&Profile>) {
    (tc, class.group_profile.as_ref())
}

/// The size of a shared headroom pool.
fn headroom_pool(pool: &Row) -> Option<&Text> {
    pool.get("xoff").filter(|xoff| xoff.value.trim() != "0")
}

/// What two ports do differently.
fn difference(a: &Class, b: &Class) -> &'static str {
    match () {
        () if a.is_lossless != b.is_lossless => "PFC (pfc_enable)",
        () if a.queue != b.queue => "the queue (tc_to_queue_map)",
        () if a.group != b.group => "the priority group (tc_to_pg_map)",
        () if a.scheduler != b.scheduler => "the scheduler",
        () if a.wred != b.wred => "the WRED profile",
        () if a.queue_profile != b.queue_profile => "the buffer profile of the queue",
        () => "the buffer profile of the priority group",
    }
}

fn span(at: Place) -> Span {
    Span::attached(at.start, at.end)
}

fn entry(key: &str, value: Value, at: Place) -> Entry {
    Entry { key: key.into(), key_span: span(at), node: Node { span: span(at), value } }
}

fn bytes(n: u64) -> Value {
    Value::Text(format!("{n} B"))
}

/// A speed in Mb/s as a rate.
fn rate(speed: u64) -> String {
    sluicenet_proto::units::Rate(speed.saturating_mul(1_000_000)).written()
}

/// Names every key that gives no setting, once.
fn not_modelled(db: &ConfigDb) -> Vec<Warning> {
    let mut fields: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for table in &db.tables {
        let Some((_, known)) = MODELLED.iter().find(|of| of.0 == table.name) else { continue };
        for field in table.rows.iter().flat_map(|row| &row.fields) {
            let name = &field.name.value;
            if !known.contains(&"*") && !known.contains(&name.as_str()) {
                fields.entry(&table.name).or_default().insert(shown(name));
            }
        }
    }
    let mut parts: Vec<String> = fields
        .into_iter()
        .map(|(table, names)| format!("{table} ({})", names.into_iter().collect::<Vec<_>>().join(", ")))
        .collect();
    parts.extend(db.others.iter().map(|name| shown(name)));
    if parts.is_empty() {
        return Vec::new();
    }
    let message = format!("without a counterpart in a scenario, and ignored: {}", parts.join("; "));
    vec![Warning { file: db.name.clone(), line: 0, message }]
}
