//! The QoS part of a `config_db.json` from a scenario.

use super::watchdog::{DETECTION_MS, RESTORATION_MS};
use crate::model::{BufferPolicy, PfcWatchdog, Scenario, Wred};
use crate::{Quantity, Result};
use core::ops::RangeInclusive;
use serde_json::{Map, Value, json};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// Ports of SONiC are numbered by lanes, four a port.
const LANES: usize = 4;
/// The name of all maps, as in SONiC's templates.
const MAP: &str = "AZURE";
/// Exponents of dynamic thresholds in SONiC.
const DYNAMIC_TH: core::ops::RangeInclusive<f64> = -8.0..=7.0;

/// A port of the switch.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Its speed.
    pub rate: Rate,
    /// The delay of its cable.
    pub delay: Duration,
    /// The headroom of a lossless priority.
    pub headroom: u64,
}

/// The memory of the switch, where it has a pool.
#[derive(Clone, Copy, Debug)]
pub struct SwitchMemory {
    /// All of it.
    pub size: u64,
    /// The part that priorities share.
    pub shared: u64,
}

/// A written file.
#[derive(Debug)]
pub struct Written {
    /// Its tables.
    pub json: Value,
    /// Keys of the scenario that SONiC has no counterpart for, and lengths that were rounded.
    pub notes: Vec<String>,
}

/// The tables of a switch with these ports.
///
/// # Errors
/// A setting that SONiC cannot have, at its place in the scenario.
pub fn write(scenario: &Scenario, ports: &[Port], memory: Option<SwitchMemory>) -> Result<Written> {
    let mut of = Writer { s: scenario, ports, tables: Map::new(), notes: Vec::new() };
    of.maps()?;
    of.cables()?;
    of.buffers(memory)?;
    of.marks();
    of.schedulers();
    of.watchdog()?;
    of.left_out();
    Ok(Written { json: Value::Object(of.tables), notes: of.notes })
}

struct Writer<'a> {
    s: &'a Scenario,
    ports: &'a [Port],
    tables: Map<String, Value>,
    notes: Vec<String>,
}

/// The name of a port.
fn name(index: usize) -> String {
    format!("Ethernet{}", LANES * index)
}

impl Writer<'_> {
    fn row(&mut self, table: &str, key: &str, row: Value) {
        let table = self.tables.entry(table).or_insert_with(|| Value::Object(Map::new()));
        if let Some(table) = table.as_object_mut() {
            table.insert(key.into(), row);
        }
    }

    fn lossless(&self) -> PrioritySet {
        if self.s.pfc.enabled { PrioritySet(self.s.pfc.lossless) } else { PrioritySet::NONE }
    }

    /// The queue of each priority. SONiC shares bandwidth by queue: a bandwidth group has one, and a later group a higher one.
    /// They are the first priorities of all groups.
    fn queues(&self) -> Result<[u8; 8]> {
        let mut queues = core::array::from_fn(|p| p as u8);
        let Some(ets) = &self.s.ets.config else { return Ok(queues) };
        let mut numbers: Vec<u8> = ets.groups().iter().filter_map(|group| group.priorities.iter().next()).collect();
        numbers.sort_unstable();
        for (group, queue) in ets.groups().iter().zip(numbers) {
            let Some(first) = group.priorities.iter().next() else { continue };
            for priority in group.priorities.iter() {
                if !self.is_alike(first, priority) {
                    let message = format!(
                        "priorities {first} and {priority} share a group, and SONiC shares bandwidth by queue: both would be in \
                         one queue, where only one is lossless or has a WRED profile"
                    );
                    return Err(self.s.locations.error("ets.group", message).hint("give each a group of its own"));
                }
                queues[usize::from(priority)] = queue;
            }
        }
        Ok(queues)
    }

    /// Whether two priorities can have one queue.
    fn is_alike(&self, a: u8, b: u8) -> bool {
        let lossless = self.lossless();
        let profile = |p: u8| self.s.wred.iter().position(|w| w.priorities >> p & 1 != 0);
        lossless.contains(a) == lossless.contains(b) && profile(a) == profile(b)
    }

    fn maps(&mut self) -> Result<()> {
        let map = |to: &[u8]| -> Value {
            to.iter()
                .enumerate()
                .map(|(from, to)| (from.to_string(), json!(to.to_string())))
                .collect::<Map<_, _>>()
                .into()
        };
        let queues = self.queues()?;
        let groups: [u8; 8] = core::array::from_fn(|p| p as u8);
        self.row("TC_TO_PRIORITY_GROUP_MAP", MAP, map(&groups));
        self.row("TC_TO_QUEUE_MAP", MAP, map(&queues));
        self.row("MAP_PFC_PRIORITY_TO_QUEUE", MAP, map(&queues));
        if let Some(dscps) = &self.s.switch.dscp_to_tc {
            self.row("DSCP_TO_TC_MAP", MAP, map(dscps));
        }
        let enabled: Vec<String> = self.lossless().iter().map(|p| p.to_string()).collect();
        for i in 0..self.ports.len() {
            let mut row = json!({
                "pfc_enable": enabled.join(","),
                "pfc_to_queue_map": MAP,
                "tc_to_pg_map": MAP,
                "tc_to_queue_map": MAP,
            });
            if let (Some(row), Some(_)) = (row.as_object_mut(), &self.s.switch.dscp_to_tc) {
                row.insert("dscp_to_tc_map".into(), json!(MAP));
            }
            // The switch has the watchdog on these priorities only.
            if let (Some(row), Some(_)) = (row.as_object_mut(), self.watched()) {
                row.insert("pfcwd_sw_enable".into(), json!(enabled.join(",")));
            }
            self.row("PORT_QOS_MAP", &name(i), row);
        }
        Ok(())
    }

    fn cables(&mut self) -> Result<()> {
        let mut rounded = false;
        let mut lengths = Map::new();
        for (i, port) in self.ports.iter().enumerate() {
            if port.rate.as_bps() % 1_000_000 != 0 {
                let message = format!("SONiC's ports have whole Mb/s: not {}", port.rate.written());
                return Err(self.s.locations.error("topology.link_rate", message));
            }
            self.row("PORT", &name(i), json!({ "speed": (port.rate.as_bps() / 1_000_000).to_string() }));
            let (metres, is_exact) = self.metres(port.delay);
            rounded |= !is_exact;
            lengths.insert(name(i), json!(format!("{metres}m")));
        }
        self.row("CABLE_LENGTH", MAP, lengths.into());
        if rounded {
            self.notes.push("cables are rounded up to whole metres".into());
        }
        Ok(())
    }

    /// The cable of a delay in whole metres, rounded up, and whether this is exact.
    fn metres(&self, delay: Duration) -> (u64, bool) {
        let per_metre = self.s.topology.delay_per_metre.as_ps();
        (delay.as_ps().div_ceil(per_metre), delay.as_ps() % per_metre == 0)
    }

    fn exponent(&self, key: &str, th: f64) -> Result<String> {
        if DYNAMIC_TH.contains(&th) && th == libm::round(th) {
            return Ok((th as i64).to_string());
        }
        let error = self.s.locations.error(&format!("buffer.{key}"), format!("SONiC cannot have an exponent of {th}"));
        Err(error.expected("a whole number from -8 to 7"))
    }

    fn buffers(&mut self, memory: Option<SwitchMemory>) -> Result<()> {
        match memory {
            Some(memory) => self.pools(memory)?,
            None => self.fixed()?,
        }
        let lossless = self.lossless();
        let queues = self.queues()?;
        let has_egress = self.tables["BUFFER_PROFILE"].get("egress_lossy_profile").is_some();
        for i in 0..self.ports.len() {
            let port = self.ports[i];
            let profile = self.profile_name(&port);
            for (numbers, is_lossless) in ranges(lossless) {
                let profile = if is_lossless { profile.as_str() } else { "ingress_lossy_profile" };
                if is_lossless || memory.is_some() {
                    self.row("BUFFER_PG", &format!("{}|{numbers}", name(i)), json!({ "profile": profile }));
                }
            }
            let is_lossless_queue = |queue: u8| {
                let priority = queues.iter().position(|&of| of == queue)?;
                Some(lossless.contains(priority as u8))
            };
            for (numbers, is_lossless) in ranges_of(is_lossless_queue) {
                if is_lossless && memory.is_none() || !is_lossless && !has_egress {
                    continue;
                }
                let profile = if is_lossless { "egress_lossless_profile" } else { "egress_lossy_profile" };
                self.row("BUFFER_QUEUE", &format!("{}|{numbers}", name(i)), json!({ "profile": profile }));
            }
        }
        Ok(())
    }

    /// The name of the profile of lossless groups of a port, as buffermgrd makes it.
    fn profile_name(&self, port: &Port) -> String {
        format!("pg_lossless_{}_{}m_profile", port.rate.as_bps() / 1_000_000, self.metres(port.delay).0)
    }

    /// One pool of memory.
    fn pools(&mut self, memory: SwitchMemory) -> Result<()> {
        let buffer = &self.s.buffer;
        let text = |bytes: u64| bytes.to_string();
        let lossless = self.exponent("lossless_dynamic_th", buffer.lossless_dynamic_th)?;
        let lossy = self.exponent("lossy_dynamic_th", buffer.lossy_dynamic_th)?;
        let egress = self.exponent("egress_dynamic_th", buffer.egress_dynamic_th)?;
        let mut pool = json!({ "type": "ingress", "mode": "dynamic", "size": text(memory.shared) });
        if let (Some(pool), Some(bytes)) = (pool.as_object_mut(), buffer.headroom_pool) {
            pool.insert("xoff".into(), json!(text(bytes.as_bytes())));
        }
        self.row("BUFFER_POOL", "ingress_lossless_pool", pool);
        let size = text(memory.size);
        self.row("BUFFER_POOL", "egress_lossless_pool", json!({ "type": "egress", "mode": "static", "size": size }));
        let shared = text(memory.shared);
        self.row("BUFFER_POOL", "egress_lossy_pool", json!({ "type": "egress", "mode": "dynamic", "size": shared }));
        let profile = |pool: &str, th: &str, size: u64| json!({ "pool": pool, "dynamic_th": th, "size": text(size) });
        let own = buffer.lossy_reserved().as_bytes();
        self.row("BUFFER_PROFILE", "ingress_lossy_profile", profile("ingress_lossless_pool", &lossy, own));
        let own = buffer.egress_reserved().as_bytes();
        self.row("BUFFER_PROFILE", "egress_lossy_profile", profile("egress_lossy_pool", &egress, own));
        let unbounded = json!({ "pool": "egress_lossless_pool", "static_th": size, "size": "0" });
        self.row("BUFFER_PROFILE", "egress_lossless_profile", unbounded);
        if self.lossless().is_empty() {
            return Ok(());
        }
        let (reserved, is_shared) = (buffer.reserved.as_bytes(), buffer.headroom_pool.is_some_and(|pool| pool.0 > 0));
        for port in self.ports {
            let mut row =
                profile("ingress_lossless_pool", &lossless, reserved + if is_shared { 0 } else { port.headroom });
            let Some(fields) = row.as_object_mut() else { continue };
            fields.insert("xoff".into(), json!(text(port.headroom)));
            fields.insert("xon".into(), json!(text(buffer.xon.map_or(0, |xon| xon.as_bytes()))));
            fields.insert("xon_offset".into(), json!(text(buffer.xon_offset.as_bytes())));
            self.row("BUFFER_PROFILE", &self.profile_name(port), row);
        }
        Ok(())
    }

    /// Thresholds in bytes.
    fn fixed(&mut self) -> Result<()> {
        let (pfc, switch) = (&self.s.pfc, &self.s.switch);
        let text = |bytes: u64| bytes.to_string();
        if switch.policy != BufferPolicy::Output {
            let error =
                self.s.locations.error("switch.policy", "SONiC has no counterpart of this policy without a pool");
            return Err(error.hint("give `[buffer]`, or policy = \"output\""));
        }
        let Some(buffer) = switch.buffer.bytes() else {
            let error = self.s.locations.error("switch.buffer", "SONiC's queues are limited in bytes");
            return Err(error.hint("give switch.buffer in bytes, as \"100 KB\""));
        };
        let (xoff, xon) = (pfc.xoff.as_bytes(), pfc.xon.as_bytes());
        let groups = self.lossless().iter().count() as u64;
        let size: u64 = self.ports.iter().map(|port| (xoff + port.headroom) * groups).sum();
        if groups > 0 {
            let pool = json!({ "type": "ingress", "mode": "static", "size": text(size) });
            self.row("BUFFER_POOL", "ingress_lossless_pool", pool);
        }
        let size = text(buffer.as_bytes() * 8 * self.ports.len() as u64);
        self.row("BUFFER_POOL", "egress_lossy_pool", json!({ "type": "egress", "mode": "static", "size": size }));
        let queue = json!({ "pool": "egress_lossy_pool", "static_th": text(buffer.as_bytes()), "size": "0" });
        self.row("BUFFER_PROFILE", "egress_lossy_profile", queue);
        for port in self.ports.iter().filter(|_| groups > 0) {
            let row = json!({
                "pool": "ingress_lossless_pool",
                "size": text(port.headroom),
                "static_th": text(xoff),
                "xoff": text(port.headroom),
                "xon": "0",
                "xon_offset": text(xoff - xon),
            });
            self.row("BUFFER_PROFILE", &self.profile_name(port), row);
        }
        Ok(())
    }

    fn marks(&mut self) {
        for (i, profile) in self.s.wred.iter().enumerate() {
            self.row("WRED_PROFILE", &format!("WRED_{i}"), self.wred(profile));
        }
    }

    fn wred(&self, profile: &Wred) -> Value {
        let is_lossless = profile.priorities & self.lossless().0 != 0;
        json!({
            "ecn": profile.ecn.name(),
            "green_drop_probability": profile.green_drop_probability.to_string(),
            "green_max_threshold": profile.green_max_threshold.as_bytes().to_string(),
            "green_min_threshold": profile.green_min_threshold.as_bytes().to_string(),
            // SONiC's templates enable WRED to mark; frames of RoCE support ECN.
            "wred_green_enable": (profile.wred_green_enable || is_lossless).to_string(),
        })
    }

    /// Schedulers, and the queues that have them.
    fn schedulers(&mut self) {
        let Ok(queues) = self.queues() else { return };
        let ets = self.s.ets.config.as_ref();
        for (i, group) in ets.iter().flat_map(|ets| ets.groups().iter().enumerate()) {
            let row = json!({ "type": "DWRR", "weight": group.bandwidth.to_string() });
            self.row("SCHEDULER", &format!("scheduler.{i}"), row);
        }
        if ets.is_some_and(|ets| !ets.strict().is_empty()) {
            self.row("SCHEDULER", "scheduler.strict", json!({ "type": "STRICT" }));
        }
        for priority in 0..8u8 {
            let group = ets.and_then(|ets| ets.groups().iter().position(|group| group.priorities.contains(priority)));
            let is_strict = ets.is_some_and(|ets| ets.strict().contains(priority));
            let scheduler = group.map(|i| format!("scheduler.{i}")).or(is_strict.then(|| "scheduler.strict".into()));
            let wred = self.s.wred.iter().position(|w| w.priorities >> priority & 1 != 0);
            let mut row = Map::new();
            row.extend(scheduler.map(|name| ("scheduler".into(), json!(name))));
            row.extend(wred.map(|i| ("wred_profile".into(), json!(format!("WRED_{i}")))));
            if row.is_empty() {
                continue;
            }
            for i in 0..self.ports.len() {
                self.row("QUEUE", &format!("{}|{}", name(i), queues[usize::from(priority)]), row.clone().into());
            }
        }
    }

    /// The watchdog, where a priority is lossless.
    fn watched(&self) -> Option<PfcWatchdog> {
        self.s.pfc.watchdog.filter(|_| !self.lossless().is_empty())
    }

    fn watchdog(&mut self) -> Result<()> {
        let Some(watchdog) = self.watched() else { return Ok(()) };
        let row = json!({
            "action": watchdog.action.name(),
            "detection_time": self.milliseconds("detection_time", watchdog.detection_time, &DETECTION_MS)?,
            "restoration_time": self.milliseconds("restoration_time", watchdog.restoration_time, &RESTORATION_MS)?,
        });
        for i in 0..self.ports.len() {
            self.row("PFC_WD", &name(i), row.clone());
        }
        Ok(())
    }

    /// A time of the watchdog, as SONiC has it.
    fn milliseconds(&self, key: &str, time: Duration, limits: &RangeInclusive<u64>) -> Result<String> {
        let ms = time.as_ps() / Duration::from_ms(1).as_ps();
        if Duration::from_ms(ms) == time && limits.contains(&ms) {
            return Ok(ms.to_string());
        }
        let message = format!("SONiC's watchdog cannot have a time of {}", time.written());
        let error = self.s.locations.error(&format!("pfc.watchdog.{key}"), message);
        Err(error.expected(format!("whole milliseconds from {} to {}", limits.start(), limits.end())))
    }

    /// Names the settings of the scenario's switches that SONiC has no keys for.
    fn left_out(&mut self) {
        let s = self.s;
        let keys = [
            ("red", s.red.is_some()),
            ("switch.ecn_threshold", s.switch.ecn_threshold.is_some()),
            ("qcn", s.qcn.is_some()),
            ("switch.delay", s.switch.delay > Duration::ZERO),
            ("switch.forwarding", s.switch.forwarding == crate::Forwarding::CutThrough),
            ("buffer.level", s.buffer.is_on() && !s.buffer.levels.is_empty()),
        ];
        let left: Vec<&str> = keys.iter().filter(|key| key.1).map(|key| key.0).collect();
        if !left.is_empty() {
            self.notes.push(format!("without a counterpart in SONiC, and left out: {}", left.join(", ")));
        }
    }
}

/// Ranges of priorities that are alike, as `0-2`, each with whether it is lossless.
fn ranges(lossless: PrioritySet) -> Vec<(String, bool)> {
    ranges_of(|priority| Some(lossless.contains(priority)))
}

fn ranges_of(class: impl Fn(u8) -> Option<bool>) -> Vec<(String, bool)> {
    let mut all: Vec<(u8, u8, bool)> = Vec::new();
    for number in 0..8 {
        let Some(is_lossless) = class(number) else { continue };
        match all.last_mut().filter(|last| (last.1 + 1, last.2) == (number, is_lossless)) {
            Some(last) => last.1 = number,
            None => all.push((number, number, is_lossless)),
        }
    }
    let text = |(first, last, is_lossless): (u8, u8, bool)| match first == last {
        true => (first.to_string(), is_lossless),
        false => (format!("{first}-{last}"), is_lossless),
    };
    all.into_iter().map(text).collect()
}
