//! Topology files of htsim: a fat tree of two or three tiers of switches.

use super::lines::{Line, Reader};
use crate::{BUFFER_MAX, Bytes, Error, HOSTS_MAX, PORTS_MAX, Result, Warning};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// One tier of switches: tier 0 is next to the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtsimTier {
    /// Rate of the links downwards.
    pub downlink_rate: Rate,
    /// Delay of the links downwards; the scenario's where absent (or 0, which htsim takes for unset).
    pub downlink_delay: Option<Duration>,
    /// A switch's delay; the scenario's where absent (or 0, which htsim takes for unset).
    pub switch_delay: Option<Duration>,
    /// Ports downwards.
    pub radix_down: u32,
    /// Ports upwards; 0 in the top tier.
    pub radix_up: u32,
    /// Bandwidth downwards for each upwards.
    pub oversubscribed: u32,
    /// Parallel links between a switch of this tier and each box below it.
    pub bundle: u32,
    /// Buffer of the ports downwards; the scenario's where absent (or 0, which htsim takes for unset).
    pub queue_down: Option<TierQueue>,
    /// Buffer of the ports upwards; the scenario's where absent (or 0).
    pub queue_up: Option<TierQueue>,
}

/// The size of a queue, and the line that gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierQueue {
    /// The size.
    pub size: Bytes,
    /// The line.
    pub line: u32,
}

/// A fat tree as htsim describes it, checked as htsim checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtsimTopology {
    /// Hosts.
    pub hosts: u32,
    /// Hosts in a pod.
    pub pod_size: u32,
    /// Two or three tiers.
    pub tiers: Vec<HtsimTier>,
    /// Switches of tier 0 in a pod.
    pub tors_per_pod: u32,
    /// Switches of tier 1 in a pod.
    pub aggs_per_pod: u32,
    /// Switches of tier 2; 0 with two tiers.
    pub cores: u32,
}

impl HtsimTopology {
    /// Pods.
    pub fn pods(&self) -> u32 {
        self.hosts / self.pod_size
    }

    /// Switches, counted tier by tier.
    pub fn switches(&self) -> u32 {
        self.pods() * (self.tors_per_pod + self.aggs_per_pod) + self.cores
    }

    /// Children, parents and links to each of these, level by level, as of a PGFT.
    pub fn as_pgft(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let mut m = vec![self.tiers[0].radix_down / self.tiers[0].bundle, self.tors_per_pod];
        let mut w = vec![1, self.aggs_per_pod];
        if self.tiers.len() == 3 {
            m.push(self.pods());
            w.push(self.cores / self.aggs_per_pod);
        }
        (m, w, self.tiers.iter().map(|tier| tier.bundle).collect())
    }
}

/// A number of the file, and where it stands.
#[derive(Clone, Copy)]
struct Given<'a> {
    n: u64,
    at: Line<'a>,
}

/// Statements of a tier's block so far.
#[derive(Clone, Copy, Default)]
struct Block<'a> {
    seen: bool,
    line: u32,
    rate: Option<Given<'a>>,
    delay: Option<Given<'a>>,
    switch_delay: Option<Given<'a>>,
    down: Option<Given<'a>>,
    up: Option<Given<'a>>,
    over: Option<Given<'a>>,
    bundle: Option<Given<'a>>,
    queue_down: Option<Given<'a>>,
    queue_up: Option<Given<'a>>,
}

/// Attributes of a tier.
const ATTRIBUTES: [&str; 9] = [
    "downlink_speed_gbps",
    "radix_up",
    "radix_down",
    "queue_up",
    "queue_down",
    "oversubscribed",
    "bundle",
    "switch_latency_ns",
    "downlink_latency_ns",
];

/// Reads a topology: `Nodes`, `Tiers` and `Podsize`, then a block for each `Tier`.
///
/// # Errors
/// An unknown or doubled attribute, a number out of range, numbers which do not make a fat tree.
pub fn parse_htsim_topology(file: &str, bytes: &[u8]) -> Result<(HtsimTopology, Vec<Warning>)> {
    let mut reader = Reader::new(file, bytes);
    let topology = read(&mut reader);
    reader.ended(topology)
}

fn read(reader: &mut Reader<'_>) -> Result<HtsimTopology> {
    let file = reader.file;
    let (mut hosts, mut tiers, mut pod_size) = (None, None, None);
    let mut blocks = [Block::default(); 3];
    let mut current: Option<usize> = None;
    while let Some(line) = reader.next_line()? {
        let mut words = line.text.split_whitespace();
        let Some(key) = words.next() else { continue };
        if key.starts_with('#') {
            continue;
        }
        let Some(value) = words.next() else {
            return Err(reader.at(line, key, format!("`{}` has no value", short(key))));
        };
        if let Some(more) = words.next().filter(|w| !w.starts_with('#')) {
            reader.warn(line.number, format!("`{}` is not read, as by htsim", short(more)));
        }
        let lower = key.to_ascii_lowercase();
        if lower == "tier" {
            let tier = reader.number_in(line, value, "a tier", 2)? as usize;
            blocks[tier].seen = true;
            blocks[tier].line = line.number;
            current = Some(tier);
            continue;
        }
        if let Some(tier) = current {
            set_attribute(reader, line, (key, &lower, value), tier, &mut blocks[tier])?;
            continue;
        }
        match lower.as_str() {
            "nodes" => hosts = Some(reader.number_in(line, value, "the number of nodes", u64::from(HOSTS_MAX))?),
            "tiers" => tiers = Some(reader.number_in(line, value, "the number of tiers", 3)?),
            "podsize" => pod_size = Some(reader.number_in(line, value, "the size of a pod", u64::from(HOSTS_MAX))?),
            _ => reader.warn(line.number, format!("`{}` is unknown and not read, as by htsim", short(key))),
        }
    }
    let need = |value: Option<u64>, what: &str| match value {
        Some(n) if n > 0 => Ok(n),
        _ => Err(Error::file(file, format!("{what} is missing or 0"))
            .hint("a topology starts with `Nodes`, `Tiers` and `Podsize`")),
    };
    let hosts = need(hosts, "`Nodes`")?;
    let tiers = need(tiers, "`Tiers`")?;
    let pod_size = need(pod_size, "`Podsize`")?;
    if tiers < 2 {
        return Err(Error::file(file, "a topology has 2 or 3 tiers").hint("`Tiers 2` is a leaf-spine network"));
    }
    for (tier, block) in blocks.iter().enumerate().skip(tiers as usize) {
        if block.seen {
            reader.warn(block.line, format!("tier {tier} is not read: the header says {tiers} tiers"));
        }
    }
    build(file, hosts, pod_size, &blocks[..tiers as usize])
}

fn short(word: &str) -> String {
    word.chars().take(40).collect()
}

fn set_attribute<'a>(
    reader: &Reader<'_>,
    line: Line<'a>,
    (key, lower, value): (&str, &str, &str),
    tier: usize,
    block: &mut Block<'a>,
) -> Result<()> {
    let ports = u64::from(PORTS_MAX);
    let (slot, max) = match lower {
        "downlink_speed_gbps" => (&mut block.rate, 100_000),
        "radix_up" => (&mut block.up, ports),
        "radix_down" => (&mut block.down, ports),
        "queue_up" => (&mut block.queue_up, BUFFER_MAX.0),
        "queue_down" => (&mut block.queue_down, BUFFER_MAX.0),
        "oversubscribed" => (&mut block.over, ports),
        "bundle" => (&mut block.bundle, ports),
        "switch_latency_ns" => (&mut block.switch_delay, 1_000_000_000),
        "downlink_latency_ns" => (&mut block.delay, 1_000_000_000),
        _ => {
            let near = crate::closest(lower, ATTRIBUTES.into_iter());
            return Err(reader
                .at(line, key, format!("unknown attribute `{}`", short(key)))
                .hint(near.map_or_else(|| ATTRIBUTES.join(", "), |n| format!("did you mean `{n}`?"))));
        }
    };
    if slot.is_some() {
        return Err(reader.at(line, key, format!("`{}` is given twice for tier {tier}", short(key))));
    }
    if tier == 2 && (lower == "radix_up" || lower == "queue_up") {
        return Err(reader.at(line, key, "tier 2 is the top: nothing leads up from it"));
    }
    *slot = Some(Given { n: reader.number_in(line, value, key, max)?, at: line });
    Ok(())
}

/// The tree these numbers make, checked before anything is allocated for it.
fn build(file: &str, hosts: u64, pod_size: u64, blocks: &[Block<'_>]) -> Result<HtsimTopology> {
    let fail = |tier: usize, message: String| {
        Err(Error::line(file, blocks[tier].line, &format!("Tier {tier}"), message)
            .hint("the numbers of all tiers must make one fat tree"))
    };
    let number = |given: Option<Given<'_>>, default: u64| given.map_or(default, |g| g.n);
    let mut tiers = Vec::new();
    for (i, b) in blocks.iter().enumerate() {
        let top = i + 1 == blocks.len();
        if !b.seen {
            return Err(Error::file(file, format!("`Tier {i}` is missing")));
        }
        for (value, name) in [(b.rate, "Downlink_speed_Gbps"), (b.down, "Radix_Down")] {
            if number(value, 0) == 0 {
                return fail(i, format!("`{name}` of tier {i} is missing or 0"));
            }
        }
        if !top && number(b.up, 0) == 0 {
            return fail(i, format!("`Radix_Up` of tier {i} is missing or 0"));
        }
        if number(b.over, 1) == 0 || number(b.bundle, 1) == 0 {
            return fail(i, format!("`Oversubscribed` and `Bundle` of tier {i} are at least 1"));
        }
        check_bundle(file, i, blocks)?;
        let queue = |given: Option<Given<'_>>| {
            given.filter(|q| q.n > 0).map(|q| TierQueue { size: Bytes(q.n), line: q.at.number })
        };
        tiers.push(HtsimTier {
            downlink_rate: Rate(number(b.rate, 0) * 1_000_000_000),
            downlink_delay: b.delay.filter(|d| d.n > 0).map(|d| Duration::from_ns(d.n)),
            switch_delay: b.switch_delay.filter(|d| d.n > 0).map(|d| Duration::from_ns(d.n)),
            radix_down: number(b.down, 0) as u32,
            radix_up: if top { 0 } else { number(b.up, 0) as u32 },
            oversubscribed: number(b.over, 1) as u32,
            bundle: number(b.bundle, 1) as u32,
            queue_down: queue(b.queue_down),
            queue_up: queue(b.queue_up),
        });
    }
    if hosts % pod_size != 0 {
        return Err(Error::file(file, format!("{hosts} nodes are not pods of {pod_size}")));
    }
    let pods = hosts / pod_size;
    let (t0, t1) = (tiers[0], tiers[1]);
    let (down0, up0) = (u64::from(t0.radix_down), u64::from(t0.radix_up));
    let (down1, bundle1) = (u64::from(t1.radix_down), u64::from(t1.bundle));
    if pod_size % down0 != 0 {
        return fail(0, format!("a pod of {pod_size} hosts is not filled by switches of {down0}"));
    }
    let tors = pod_size / down0;
    if down0 / up0 != u64::from(t0.oversubscribed) {
        return fail(0, format!("{down0} ports down and {up0} up are not oversubscribed {}:1", t0.oversubscribed));
    }
    // All numbers are below 2^22, so products of two fit.
    let aggs = up0 / bundle1;
    if tors != down1 / bundle1 {
        let message = format!("{tors} switches of tier 0 in a pod do not fill {down1} ports in bundles of {bundle1}");
        return fail(1, message);
    }
    let mut cores = 0;
    if let Some(t2) = tiers.get(2) {
        let (up1, down2, bundle2) = (u64::from(t1.radix_up), u64::from(t2.radix_down), u64::from(t2.bundle));
        if down1 / up1 != u64::from(t1.oversubscribed) {
            return fail(1, format!("{down1} ports down and {up1} up are not oversubscribed {}:1", t1.oversubscribed));
        }
        if pods != down2 / bundle2 {
            return fail(2, format!("{pods} pods do not fill {down2} ports in bundles of {bundle2}"));
        }
        cores = aggs * (up1 / bundle2);
    } else if pods != 1 {
        return Err(Error::file(
            file,
            format!("two tiers make one pod: {pods} pods of {pod_size} would not be joined"),
        ));
    }
    // Each switch has at most as many ports up as down, and all tiers have at most as many ports as there are hosts.
    let switches = pods * tors * (down0 + up0);
    let ports = hosts + switches + pods * aggs * (down1 + u64::from(t1.radix_up));
    let ports = ports + cores * tiers.get(2).map_or(0, |t| u64::from(t.radix_down));
    if ports > u64::from(PORTS_MAX) {
        return Err(Error::file(file, format!("a network of {ports} ports is too large"))
            .hint(format!("at most {PORTS_MAX} ports, those of hosts included")));
    }
    Ok(HtsimTopology {
        hosts: hosts as u32,
        pod_size: pod_size as u32,
        tiers,
        tors_per_pod: tors as u32,
        aggs_per_pod: aggs as u32,
        cores: cores as u32,
    })
}

/// Refuses a bundle that does not divide the ports at both of its ends, and bundles to hosts, which htsim has not.
fn check_bundle(file: &str, tier: usize, blocks: &[Block<'_>]) -> Result<()> {
    let Some(bundle) = blocks[tier].bundle.filter(|bundle| bundle.n != 1) else { return Ok(()) };
    let fail = |message: String| Err(Error::line(file, bundle.at.number, bundle.at.text, message));
    let n = bundle.n;
    if tier == 0 {
        return fail(format!("a `Bundle` of {n} to each host: htsim's hosts have one link"));
    }
    let ends = [(blocks[tier].down, "Radix_Down", tier), (blocks[tier - 1].up, "Radix_Up", tier - 1)];
    for (radix, name, of) in ends {
        if let Some(radix) = radix.filter(|radix| radix.n % n != 0) {
            let message = format!("a `Bundle` of {n} does not divide `{name} {}` of tier {of}", radix.n);
            return fail(message).map_err(|e| e.hint("a radix is a multiple of the bundle"));
        }
    }
    Ok(())
}
