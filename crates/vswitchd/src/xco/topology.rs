//! `[topology]`: the network that the controller coordinates, in the words of scenarios.

use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::topology::{Link, Topology, TopologyError, VERTICES_MAX};
use sluicenet_scenario::setting::{Kind, Section};
use sluicenet_scenario::units::LINK_RATE;
use sluicenet_scenario::{HOST_MAX, HOSTS_MAX, LEVELS_MAX, Result, choices, settings};

choices! {
    /// The shape of a network.
    pub(crate) enum Shape {
        /// A tree of racks, rows and so on: XGFT(h; m; w) in which every node has one parent.
        Xgft = "xgft",
        /// Hosts at one switch.
        SingleSwitch = "single-switch",
        /// Any links.
        Links = "links",
    }
}

settings! {
    /// the network: hosts, and the links between them and switches
    pub(crate) struct TopologyKeys in "topology" (s) {
        /// xgft: a tree of racks, rows and so on; single-switch: hosts at one switch; links: those of [[topology.link]]
        kind: Shape,
        /// xgft: children of a node of each level: hosts of a rack, racks of a row
        m: Option<Vec<u32>> [1..=HOSTS_MAX],
        /// xgft: parents of a node of each level; default and only value 1
        w: Option<Vec<u32>> [1..=1],
        /// single-switch and links: hosts, numbered from 0
        hosts: Option<u32> [2..=HOSTS_MAX],
        /// links: switches, numbered from the number of hosts
        switches: Option<u32> [1..=HOSTS_MAX],
        /// links: the switches at the roots of the spanning trees; frames to host n take tree n modulo their number;
        /// default the last switch
        roots: Vec<u32> [0..=2 * HOSTS_MAX] = Vec::new(),
        /// the rate of links without one of their own
        link_rate: Option<Rate> [LINK_RATE],
        /// links of one level, if they differ
        let level as (Kind::Tables(&[LevelKeys::SPEC])),
        /// links, of kind "links"
        let link as (Kind::Tables(&[LinkKeys::SPEC])),
    }
}

settings! {
    /// links of one level
    pub(crate) struct LevelKeys in "topology.level" (s) {
        /// 1 is between hosts and the switches of their racks
        level: u32 [1..=LEVELS_MAX],
        /// their rate
        rate: Rate [LINK_RATE],
    }
}

settings! {
    /// a link
    pub(crate) struct LinkKeys in "topology.link" (s) {
        /// one end: a host, or a switch
        a: u32 [0..=2 * HOST_MAX],
        /// the other end
        b: u32 [0..=2 * HOST_MAX],
        /// its rate; default `link_rate`
        rate: Option<Rate> [LINK_RATE],
    }
}

/// Reads the network.
///
/// # Errors
/// The first key that contradicts another one, or a network without a path between two hosts.
pub(crate) fn read(root: &Section<'_>) -> Result<Topology> {
    let s = root.section("topology")?;
    let keys = TopologyKeys::read(&s)?;
    only_its_own(&s, keys.kind)?;
    match keys.kind {
        Shape::Xgft => tree(&s, &keys),
        Shape::SingleSwitch => {
            let hosts = keys.hosts.ok_or_else(|| s.missing("hosts"))?;
            tree(&s, &TopologyKeys { m: Some(vec![hosts]), ..keys })
        }
        Shape::Links => graph(&s, &keys),
    }
}

fn only_its_own(s: &Section<'_>, kind: Shape) -> Result<()> {
    let own: &[&str] = match kind {
        Shape::Xgft => &["m", "w", "level"],
        Shape::SingleSwitch => &["hosts"],
        Shape::Links => &["hosts", "switches", "roots", "link"],
    };
    for name in ["m", "w", "hosts", "switches", "roots", "level", "link"] {
        if s.has(name) && !own.contains(&name) {
            let error = s.error(name, format!("`{name}` means nothing to a topology of kind \"{}\"", kind.name()));
            return Err(error.hint(format!("it takes {}", own.join(", "))));
        }
    }
    Ok(())
}

fn tree(s: &Section<'_>, keys: &TopologyKeys) -> Result<Topology> {
    let m = keys.m.as_deref().ok_or_else(|| s.missing("m"))?;
    if m.is_empty() || m.len() > LEVELS_MAX as usize {
        return Err(s.error("m", format!("a tree has 1 to {LEVELS_MAX} levels, not {}", m.len())));
    }
    if keys.w.as_ref().is_some_and(|w| w.len() != m.len()) {
        return Err(s.error("w", "`w` has as many levels as `m`").hint("every value is 1: a tree"));
    }
    let hosts = m.iter().try_fold(1u32, |all, &n| all.checked_mul(n)).filter(|&n| (2..=HOSTS_MAX).contains(&n));
    let hosts = hosts
        .ok_or_else(|| s.error("m", "the tree has too many or too few hosts").expected(format!("2 to {HOSTS_MAX}")))?;
    let mut rates = vec![keys.link_rate; m.len()];
    for t in s.tables("level")? {
        let level = LevelKeys::read(&t)?;
        let rate = rates.get_mut(level.level as usize - 1);
        *rate.ok_or_else(|| t.error("level", format!("the tree has {} levels", m.len())))? = Some(level.rate);
    }
    let mut links = Vec::new();
    let (mut below, mut first) = (hosts, 0);
    for (&children, rate) in m.iter().zip(rates) {
        let kbps = rate.ok_or_else(|| s.missing("link_rate"))?.as_kbps();
        let parents = first + below;
        links.extend((0..below).map(|n| Link { ends: [first + n, parents + n / children], kbps }));
        (first, below) = (parents, below / children);
    }
    let vertices = first as usize + 1;
    build(s, (hosts, vertices), &links, &[first])
}

fn graph(s: &Section<'_>, keys: &TopologyKeys) -> Result<Topology> {
    let hosts = keys.hosts.ok_or_else(|| s.missing("hosts"))?;
    let switches = keys.switches.ok_or_else(|| s.missing("switches"))?;
    let vertices = hosts + switches;
    let mut links = Vec::new();
    for t in s.tables("link")? {
        let LinkKeys { a, b, rate } = LinkKeys::read(&t)?;
        for (key, end) in [("a", a), ("b", b)] {
            if end >= vertices {
                let why = format!("there are {hosts} hosts, then {switches} switches");
                return Err(t.error(key, why).expected(format!("0 to {}", vertices - 1)));
            }
        }
        if a == b {
            return Err(t.error("b", "a link has two ends"));
        }
        let kbps = rate.or(keys.link_rate).ok_or_else(|| t.missing("rate"))?.as_kbps();
        links.push(Link { ends: [a, b], kbps });
    }
    let roots = if keys.roots.is_empty() { vec![vertices - 1] } else { keys.roots.clone() };
    if let Some(root) = roots.iter().find(|&&root| root < hosts || root >= vertices) {
        let error = s.error("roots", format!("{root} is no switch"));
        return Err(error.expected(format!("{hosts} to {}", vertices - 1)));
    }
    build(s, (hosts, vertices as usize), &links, &roots)
}

fn build(s: &Section<'_>, (hosts, vertices): (u32, usize), links: &[Link], roots: &[u32]) -> Result<Topology> {
    let wrong = |e: TopologyError| {
        s.error_here(match e {
            TopologyError::Size => format!("the network has more than {VERTICES_MAX} hosts and switches"),
            TopologyError::TooManyCapacities => "links have more than eight different rates".to_owned(),
            TopologyError::NotATree { node } => format!("no path leads from a root to host {node}"),
            TopologyError::NoSuchVertex { link } | TopologyError::NoCapacity { link } => {
                format!("link {link} has no ends or no rate")
            }
            TopologyError::Root => "a root is a switch".to_owned(),
        })
    };
    let mut topology = Topology::new(hosts, vertices, links).map_err(wrong)?;
    roots.iter().try_for_each(|&root| topology.add_tree(root)).map_err(wrong)?;
    Ok(topology)
}
