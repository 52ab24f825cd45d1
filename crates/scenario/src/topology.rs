//! The shape of a network, counted before anything is built.

use super::error::Result;
use super::files::Files;
use super::model::*;
use super::setting::Section;
use super::units::{LINK_RATE_MIN, Length, RATE_MAX};
use super::{HOSTS_MAX, PORTS_MAX, SWITCH_PORTS_MAX};
use sluicenet_proto::hedera::tree::Tree;
use sluicenet_proto::routing::paths::{PATHS_MAX, Paths};
use sluicenet_proto::routing::xgft::Xgft;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// The keys of shapes.
pub(super) struct Given {
    pub m: Option<Vec<u32>>,
    pub w: Option<Vec<u32>>,
    pub k: Option<u32>,
    pub n: Option<u32>,
    pub slimmed: Option<Vec<u32>>,
    pub hosts: Option<u32>,
    pub file: Option<String>,
}

/// A shape within the limits.
pub(super) fn shape(
    s: &Section<'_>,
    (kind, routing, external): (ShapeKind, Option<Routing>, u32),
    given: Given,
    files: &mut Files,
) -> Result<Shape> {
    only_its_own(s, kind)?;
    let stands_in = matches!(routing, Some(Routing::NonBlocking | Routing::Hierarchical));
    let path = || given.file.as_deref().ok_or_else(|| s.missing("file"));
    let shape = match kind {
        ShapeKind::Xgft => xgft(s, given)?,
        ShapeKind::KAryNTree => k_ary_n_tree(s, given)?,
        ShapeKind::FatTree if stands_in => one_parent(fat_tree(s, given)?),
        ShapeKind::FatTree => fat_tree(s, given)?,
        ShapeKind::SingleSwitch => xgft_of(vec![given.hosts.ok_or_else(|| s.missing("hosts"))?], vec![1]),
        ShapeKind::Hpcc => Shape::Hpcc { file: s.input("file", files.hpcc_topology(path()?))? },
        ShapeKind::Htsim => Shape::Htsim { file: s.input("file", files.htsim_topology(path()?))? },
    };
    let from_file: &[&str] = match shape {
        Shape::Xgft { .. } => &[],
        Shape::Htsim { .. } => &["link_rate", "level"],
        Shape::Hpcc { .. } => {
            &["link_rate", "link_delay", "cable", "delay_per_metre", "bit_error_rate", "level", "external_hosts"]
        }
    };
    if let Some(name) = from_file.iter().find(|n| s.has(n)) {
        return Err(s.error(name, format!("`{name}` cannot be given: the topology's file gives the links")));
    }
    let shape = with_parallel_links(s, shape, (kind, routing))?;
    check_counts(s, &shape, external)?;
    Ok(shape)
}

/// A tree without parallel links.
fn xgft_of(m: Vec<u32>, w: Vec<u32>) -> Shape {
    Shape::Xgft { links: vec![1; m.len()], m, w }
}

/// A tree with the parallel links of its levels.
fn with_parallel_links(s: &Section<'_>, shape: Shape, (kind, routing): (ShapeKind, Option<Routing>)) -> Result<Shape> {
    let Shape::Xgft { m, w, mut links } = shape else { return Ok(shape) };
    for l in s.tables("level")? {
        let LevelKeys { level, links: given, .. } = LevelKeys::read(&l)?;
        // A level that the tree has not is refused when links are made.
        let (Some(given), Some(slot)) = (given, links.get_mut(level as usize - 1)) else { continue };
        let is_fixed = |r: &Routing| r.has_control() || matches!(r, Routing::NonBlocking | Routing::Hierarchical);
        if given > 1 && kind == ShapeKind::FatTree && routing.as_ref().is_some_and(is_fixed) {
            let message = "parallel links, where the routing is made for a fat-tree with one link between two switches";
            return Err(l.error("links", message).hint("leave `links` out, or set topology.routing = \"hash\""));
        }
        *slot = given;
    }
    Ok(Shape::Xgft { m, w, links })
}

/// A key that a shape of this kind has no use for is a mistake.
fn only_its_own(s: &Section<'_>, kind: ShapeKind) -> Result<()> {
    let own: &[&str] = match kind {
        ShapeKind::Xgft => &["m", "w"],
        ShapeKind::KAryNTree => &["k", "n", "slimmed"],
        ShapeKind::FatTree => &["k", "oversubscription"],
        ShapeKind::SingleSwitch => &["hosts"],
        ShapeKind::Hpcc | ShapeKind::Htsim => &["file"],
    };
    for name in ["m", "w", "k", "n", "slimmed", "hosts", "file", "oversubscription"] {
        if s.has(name) && !own.contains(&name) {
            return Err(s
                .error(name, format!("`{name}` means nothing to a topology of kind \"{}\"", kind.name()))
                .hint(format!("it takes {}", own.join(", "))));
        }
    }
    Ok(())
}

fn xgft(s: &Section<'_>, given: Given) -> Result<Shape> {
    let m = given.m.ok_or_else(|| s.missing("m"))?;
    let w = given.w.ok_or_else(|| s.missing("w"))?;
    if m.is_empty() || m.len() > LEVELS_MAX as usize {
        return Err(s.error("m", format!("a tree has 1 to {LEVELS_MAX} levels, not {}", m.len())));
    }
    if m.len() != w.len() {
        return Err(s
            .error("w", format!("`m` has {} levels and `w` has {}", m.len(), w.len()))
            .hint("XGFT(h; m_1..m_h; w_1..w_h) has as many of both"));
    }
    Ok(xgft_of(m, w))
}

fn k_ary_n_tree(s: &Section<'_>, given: Given) -> Result<Shape> {
    let k = given.k.ok_or_else(|| s.missing("k"))?;
    let n = given.n.ok_or_else(|| s.missing("n"))? as usize;
    let mut w = vec![1];
    match given.slimmed {
        Some(slimmed) if slimmed.iter().any(|&parents| parents > k) => {
            let error = s.error("slimmed", format!("a switch has more than {k} parents"));
            return Err(error.expected(format!("from 1 to {k}")));
        }
        Some(slimmed) if slimmed.len() + 1 != n => {
            return Err(s
                .error("slimmed", format!("{} levels of switches have parents, not {}", n - 1, slimmed.len()))
                .hint("the parents of a switch of level 1, 2, ... n-1, each from 1 to k"));
        }
        Some(slimmed) => w.extend(slimmed),
        None => w.extend(vec![k; n - 1]),
    }
    Ok(xgft_of(vec![k; n], w))
}

fn fat_tree(s: &Section<'_>, given: Given) -> Result<Shape> {
    let k = given.k.ok_or_else(|| s.missing("k"))?;
    if k % 2 != 0 {
        return Err(s.error("k", format!("a fat tree of switches with {k} ports needs an even number")));
    }
    Ok(xgft_of(vec![k / 2, k / 2, k], vec![1, k / 2, k / 2]))
}

/// Hosts, switches, and ports of all, by arithmetic alone; may be beyond every limit.
fn totals(shape: &Shape, external: u32) -> (u128, u128, u128) {
    let (hosts, switches, ports) = match shape {
        Shape::Xgft { m, w, links } => count_tree(m, w, links),
        Shape::Hpcc { file } => {
            // Every link has two ends.
            let (hosts, ends) = (u128::from(file.content.hosts()), 2 * file.content.links.len() as u128);
            (hosts, file.content.switches.len() as u128, ends)
        }
        Shape::Htsim { file } => {
            let (m, w, links) = file.content.as_pgft();
            count_tree(&m, &w, &links)
        }
    };
    // An external host takes a port of a switch and has one itself.
    (hosts, switches, ports + 2 * u128::from(external))
}

/// How much of everything a shape within the limits has.
pub(super) fn counts(shape: &Shape, external: u32) -> Counts {
    let (hosts, switches, ports) = totals(shape, external);
    Counts { hosts: hosts as u32, external, switches: switches as u32, ports: ports as u32 }
}

/// Refuses networks beyond the limits: 10^9 hosts are refused, not built.
fn check_counts(s: &Section<'_>, shape: &Shape, external: u32) -> Result<()> {
    let names = ["m", "k", "hosts", "file"];
    let (hosts, _, ports) = totals(shape, external);
    let endpoints = hosts + u128::from(external);
    if endpoints > u128::from(HOSTS_MAX) {
        return Err(s
            .error_at(&names, format!("a network of {endpoints} hosts is too large"))
            .hint(format!("at most {HOSTS_MAX} hosts, external ones included")));
    }
    if ports > u128::from(PORTS_MAX) {
        return Err(s
            .error_at(&names, format!("a network of {ports} ports is too large"))
            .hint(format!("at most {PORTS_MAX} ports, those of hosts included")));
    }
    if let Shape::Xgft { w, links, .. } = shape
        && u64::from(w[0]) * u64::from(links[0]) > u64::from(SWITCH_PORTS_MAX)
    {
        let message = format!("a host of {} links is too large", u64::from(w[0]) * u64::from(links[0]));
        return Err(s.error_at(&["w", "level"], message).hint(format!("at most {SWITCH_PORTS_MAX}")));
    }
    let radix = largest_radix(shape, external);
    if radix > u64::from(SWITCH_PORTS_MAX) {
        let alone = largest_radix(shape, 0) > u64::from(SWITCH_PORTS_MAX);
        let fits_without_parallel_links = match shape {
            Shape::Xgft { m, w, .. } => largest_radix(&xgft_of(m.clone(), w.clone()), 0) <= u64::from(SWITCH_PORTS_MAX),
            _ => false,
        };
        let key: &[&str] = match (alone, fits_without_parallel_links) {
            (false, _) => &["external_hosts"],
            (true, true) => &["level"],
            (true, false) => &names,
        };
        return Err(s
            .error_at(key, format!("a switch of {radix} ports is too large"))
            .hint(format!("at most {SWITCH_PORTS_MAX} ports, those of external hosts included")));
    }
    if endpoints < 2 {
        return Err(s.error_at(&names, "a network of one host has nobody to send to"));
    }
    Ok(())
}

/// Ports of the largest switch; those of a graph were counted when its file was read.
fn largest_radix(shape: &Shape, external: u32) -> u64 {
    let (m, w, links) = match shape {
        Shape::Xgft { m, w, links } => (m.clone(), w.clone(), links.clone()),
        Shape::Htsim { file } => file.content.as_pgft(),
        Shape::Hpcc { .. } => return 0,
    };
    let times = |a: u32, b: u32| u64::from(a) * u64::from(b);
    let roots = w.iter().fold(1u64, |p, &w| p.saturating_mul(u64::from(w)));
    let ports = (0..m.len()).map(|l| {
        let up = match w.get(l + 1) {
            Some(&up) => times(up, links[l + 1]),
            None => u64::from(external).div_ceil(roots),
        };
        times(m[l], links[l]).saturating_add(up)
    });
    ports.max().unwrap_or(0)
}

/// Hosts, switches and ports of all of a tree. Saturates: each factor is below 2^24, and beyond the limits it only
/// matters that it is beyond.
fn count_tree(m: &[u32], w: &[u32], links: &[u32]) -> (u128, u128, u128) {
    let product =
        |factors: &mut dyn Iterator<Item = &u32>| factors.fold(1u128, |p, f| p.saturating_mul(u128::from(*f)));
    let hosts = product(&mut m.iter());
    let up = |level: usize| w.get(level).zip(links.get(level)).map_or(0, |(&w, &n)| u128::from(w) * u128::from(n));
    let (mut switches, mut ports) = (0u128, hosts.saturating_mul(up(0)));
    for level in 1..=m.len() {
        let nodes = product(&mut m[level..].iter()).saturating_mul(product(&mut w[..level].iter()));
        let radix = u128::from(m[level - 1]) * u128::from(links[level - 1]) + up(level);
        switches = switches.saturating_add(nodes);
        ports = ports.saturating_add(nodes.saturating_mul(radix));
    }
    let limit = u128::from(u64::MAX);
    (hosts.min(limit), switches.min(limit), ports.min(limit))
}

/// The tree of the same hosts in which every switch has one parent.
fn one_parent(shape: Shape) -> Shape {
    match shape {
        Shape::Xgft { m, .. } => xgft_of(m.clone(), vec![1; m.len()]),
        other => other,
    }
}

/// Makes each link above the first level as fast as all links below it together, and links of the top slower by
/// `oversubscription`.
fn fatten(s: &Section<'_>, m: &[u32], levels: &mut [Link], oversubscription: f64) -> Result<()> {
    let mut rate = levels[0].rate.as_bps() as f64;
    let top = levels.len() - 1;
    for (i, link) in levels.iter_mut().enumerate().skip(1) {
        rate *= f64::from(m[i - 1]);
        let of_level = if i == top { rate / oversubscription } else { rate };
        if of_level > RATE_MAX.as_bps() as f64 {
            let error = s.error("routing", format!("a link for all hosts of a pod would have {of_level:.0} b/s"));
            return Err(error.expected(format!("at most {} b/s", RATE_MAX.as_bps())));
        }
        link.rate = Rate((of_level.round() as u64).max(LINK_RATE_MIN.as_bps()));
    }
    Ok(())
}

/// The delay of a cable, which excludes the key `delay`; none without a cable.
pub(super) fn cable_delay(
    s: &Section<'_>,
    (cable, per_metre): (Option<Length>, Duration),
    delay: &str,
) -> Result<Option<Duration>> {
    if cable.is_some() && s.has(delay) {
        let error = s.error("cable", format!("`cable` and `{delay}` both say how long light travels"));
        return Err(error.hint("remove one of the two"));
    }
    Ok(cable.map(|cable| cable.delay(per_metre)))
}

/// `up` is the oversubscription of a tree whose links upwards follow from those of its hosts.
pub(super) fn levels(
    s: &Section<'_>,
    shape: &Shape,
    (link, per_metre): (Link, Duration),
    up: Option<f64>,
) -> Result<Vec<Link>> {
    let mut levels = match shape {
        Shape::Xgft { m, .. } => vec![link; m.len()],
        Shape::Hpcc { .. } => Vec::new(),
        Shape::Htsim { file } => {
            let tiers = file.content.tiers.iter();
            tiers
                .map(|t| Link { rate: t.downlink_rate, delay: t.downlink_delay.unwrap_or(link.delay), ..link })
                .collect()
        }
    };
    let mut seen = vec![false; levels.len()];
    let mut given = Vec::new();
    let mut has_cables = s.has("cable");
    for l in s.tables("level")? {
        let LevelKeys { level, rate, delay, cable, bit_error_rate, .. } = LevelKeys::read(&l)?;
        let delay = cable_delay(&l, (cable, per_metre), "delay")?.or(delay);
        has_cables |= cable.is_some();
        let (index, count) = (level as usize - 1, levels.len());
        let Some(slot) = levels.get_mut(index) else {
            return Err(l.error("level", format!("there is no level {level}: the tree has {count}")));
        };
        if core::mem::replace(&mut seen[index], true) {
            return Err(l.error("level", format!("level {level} is given twice")));
        }
        if let Some(rate) = rate {
            slot.rate = rate;
            given.push((index, rate));
        }
        slot.delay = delay.unwrap_or(slot.delay);
        slot.bit_error_rate = bit_error_rate.unwrap_or(slot.bit_error_rate);
    }
    if s.has("delay_per_metre") && !has_cables {
        let error = s.error("delay_per_metre", "`delay_per_metre` changes nothing: no cable is given");
        return Err(error.hint("give `cable`, as \"40 m\", instead of a delay"));
    }
    if let (Some(oversubscription), Shape::Xgft { m, .. }) = (up, shape) {
        fatten(s, m, &mut levels, oversubscription)?;
        given.into_iter().for_each(|(level, rate)| levels[level].rate = rate);
    }
    Ok(levels)
}

/// Refuses a routing by paths in a network whose paths have no names.
fn check_paths(s: &Section<'_>, shape: &Shape, routing: Routing) -> Result<()> {
    let (m, w, links) = match shape {
        Shape::Xgft { m, w, links } => (m.clone(), w.clone(), links.clone()),
        Shape::Htsim { file } => file.content.as_pgft(),
        Shape::Hpcc { .. } => {
            return Err(s
                .error("routing", "this routing needs a tree whose levels are known")
                .hint("\"hash\" and \"random\" work in every network"));
        }
    };
    // A shape that is no tree is refused later, with a better reason.
    let Ok(tree) = Xgft::with_links(&m, &w, &links) else { return Ok(()) };
    if tree.has_parallel_links() {
        return Err(s
            .error("routing", "this routing names paths by their switches, and parallel links join the same two")
            .hint("\"hash\" and \"random\" choose among parallel links"));
    }
    if routing.is_by_source() && Paths::new(&tree).is_none() {
        let message = match tree.parents(0) {
            1 => format!("VLANs cannot name the {} paths of this tree", tree.positions(tree.levels())),
            _ => "sources choose among paths, not among their own links".to_string(),
        };
        return Err(s.error("routing", message).expected(format!("one link a host, and at most {PATHS_MAX} paths")));
    }
    Ok(())
}

/// The routing, where the shape has it.
pub(super) fn fitting(
    s: &Section<'_>,
    shape: &Shape,
    chosen: Option<Routing>,
    is_fat_tree: bool,
    set: ParameterSet,
) -> Result<Routing> {
    if let Some(routing) = chosen
        && (routing.has_control() || matches!(routing, Routing::NonBlocking | Routing::Hierarchical))
    {
        if !is_fat_tree {
            return Err(s.error("routing", "this routing is a fat-tree's").hint("topology.kind = \"fat-tree\""));
        }
        let k = match shape {
            Shape::Xgft { m, .. } => m.last().copied().unwrap_or(0),
            _ => 0,
        };
        if routing.has_control() && Tree::fat_tree(k).is_err() {
            let message = format!("a fat-tree of {k} ports has more hosts than its control loop can schedule");
            return Err(s.error("k", message).expected("at most 90 ports"));
        }
        if s.has("external_hosts") && routing.has_control() {
            return Err(s.error("external_hosts", "a fat-tree with a control loop has no external hosts"));
        }
        return Ok(routing);
    }
    if let Some(routing) = chosen.filter(|routing| routing.needs_notifications()) {
        check_paths(s, shape, routing)?;
        return Ok(routing);
    }
    let fits = match (shape, chosen) {
        (_, None) | (Shape::Xgft { .. }, _) => true,
        (Shape::Htsim { .. }, Some(r)) => r != Routing::TwoLevel,
        (Shape::Hpcc { .. }, Some(r)) => r.is_per_frame() || matches!(r, Routing::Hash | Routing::HashDestination),
    };
    if !fits {
        return Err(s
            .error("routing", "this routing needs a tree whose levels are known")
            .hint("\"hash\" and \"random\" work in every network"));
    }
    let default =
        if matches!(shape, Shape::Hpcc { .. }) { Routing::Hash } else { set.plain_or(Routing::Hash, Routing::DModK) };
    Ok(chosen.unwrap_or(default))
}
