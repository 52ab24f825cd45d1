//! `[[bump]]`: bumps in links, with the applications of NetBump (Al-Fares 2012, chapter 5).

use core::ops::RangeInclusive;
use serde::Serialize;
use sluicenet_proto::aqm::RedConfig;
use sluicenet_proto::cee::qcn::ReactionPointConfig;
use sluicenet_proto::netbump::{BumpCongestionPoint, BumpReactionPoint, Dctcp, Filter, L4s, PACKET_BYTES, Red, Stock};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ipv4::Protocol;
use std::path::Path;
use std::sync::Arc;

use super::record::selected;
use super::{Counts, InputFile, Level, PortSelector};
use crate::error::Result;
use crate::files::Files;
use crate::setting::{Kind, Section, Setting, Settings, Spec, shown};
use crate::tree::{Document, Span, Table, Value};
use crate::units::{BUFFER, Bytes, DELAY, DELAY_MAX, POSITIVE_RATE, POSITIVE_TIME};
use crate::{choices, settings};

/// Bumps of a scenario, links of a bump, and applications of a bump.
const BUMPS_MAX: usize = 4096;
const LINKS_MAX: usize = 64;
const APPS_MAX: usize = 16;
/// Packets of a simulated update.
const BATCH: RangeInclusive<u32> = 1..=8;
/// Delays of the links between bumps: at least 1 ns, so that one bump can be simulated ahead of another.
const UPDATE_DELAY: RangeInclusive<Duration> = Duration::from_ns(1)..=DELAY_MAX;
/// Probabilities.
const PROBABILITY: RangeInclusive<f64> = 0.0..=1.0;
/// The default size of a queue that is given in packets.
const fn packets(n: u32) -> Bytes {
    Bytes((n * PACKET_BYTES) as u64)
}

settings! {
    /// a bump in links, which acts for the switches behind them (NetBump)
    pub model struct Bump in "bump" (s, counts: &Counts, files: &mut Files) {
        /// the links, each by one of its ends: ["switch 2 port 5", "host 3"]
        links: Vec<PortSelector> as (Kind::Ports) = links(s, counts)?,
        /// the time that a frame takes through it, from its last bit in to its first bit out; default 1 us
        // Less than ours takes over shared memory at 99.9 %; the source's bump takes 30 us (Table 5.2).
        latency: Duration [DELAY] = Duration::from_us(1),
        /// bytes at which a virtual queue is full; default: no limit
        #[serde(skip_serializing_if = "Option::is_none")]
        buffer: Option<Bytes> [BUFFER],
        /// the applications, one after the other; default none: the bump only estimates
        app: Vec<BumpApp> as (Kind::Tables(APPS)) = apps(s, files)?,
        /// the priority of its notifications; default 7
        // In a class of their own they pass the frames that they are about, as those of switches do.
        notification_priority: u8 [0..=7] = 7,
        /// the numbers of the bumps to which it reports what it has forwarded; default none
        neighbours: Vec<u32> [0..=BUMPS_MAX as u32 - 1] = Vec::new(),
        /// packets of an update, which leaves when it is full; default 8
        update_packets: u32 [BATCH] = 8,
        /// the longest time that a packet waits for its update; default 20 us
        update_interval: Duration [POSITIVE_TIME] = Duration::from_us(20),
        /// the time that an update takes to a neighbour, over a link of its own; default 1 us
        update_delay: Duration [UPDATE_DELAY] = Duration::from_us(1),
    }
}

impl Bump {
    /// Whether it may mark packets.
    pub fn marks(&self) -> bool {
        use BumpApp::{Dctcp, L4s, Program, Red};
        self.app.iter().any(|app| matches!(app, Red(_) | Dctcp(_) | L4s(_) | Program(_)))
    }
}

/// An application of a bump.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum BumpApp {
    /// Random early detection.
    Red(RedApp),
    /// DCTCP's marking.
    Dctcp(DctcpApp),
    /// The marking ramp of L4S.
    L4s(L4sApp),
    /// QCN's congestion point.
    QcnCongestionPoint(CongestionPointApp),
    /// QCN's reaction point.
    QcnReactionPoint(ReactionPointApp),
    /// A program from outside.
    Program(ProgramApp),
}

settings! {
    /// marks by the average of the virtual queue, and drops above the maximum threshold (Al-Fares 2012, 5.3.1)
    pub model struct RedApp in kind "red" (s) {
        /// the average below which nothing is marked; default 20 packets of 1,518 B
        min_threshold: Bytes [BUFFER] = packets(20),
        /// the average from which every packet is dropped; default 60 packets
        max_threshold: Bytes [BUFFER] = packets(60),
        /// the weight of a packet in the average, w_q; default 0.1
        weight: f64 [f64::MIN_POSITIVE..=1.0] = 0.1,
        /// the probability of a mark just below the maximum threshold, max_p; default 0.1
        // The source shows two values and does not say which; Floyd and Jacobson's is 0.02, and 0.1 is recommended since.
        max_probability: f64 [PROBABILITY] = 0.1,
        /// the packets it acts on; default all
        only: Only as (Kind::Table(Only::SPEC)) = only(s)?,
    }
}

settings! {
    /// marks every packet that finds more than a threshold (Al-Fares 2012, 5.3.2)
    pub model struct DctcpApp in kind "dctcp" (s) {
        /// the threshold K; default 20 packets of 1,518 B
        threshold: Bytes [BUFFER] = packets(20),
        /// the packets it acts on; default all
        only: Only as (Kind::Table(Only::SPEC)) = only(s)?,
    }
}

settings! {
    /// marks packets with ECT(1) by the time that they would wait (RFC 9332, Appendix A.1)
    pub model struct L4sApp in kind "l4s" (s) {
        /// the wait from which packets are marked; default 800 us
        minimum: Duration = Duration::from_us(800),
        /// the width of the ramp, behind which every packet is marked; default 400 us
        range: Duration [POSITIVE_TIME] = Duration::from_us(400),
        /// the packets it acts on; default all
        only: Only as (Kind::Table(Only::SPEC)) = only(s)?,
    }
}

settings! {
    /// notifies senders of congestion (Al-Fares 2012, 5.3.3)
    pub model struct CongestionPointApp in kind "qcn-congestion-point" (s) {
        /// the queue length at equilibrium, Q_eq; default 20 KB
        set_point: Bytes [BUFFER] = Bytes(20_000),
        /// the weight w of the queue's growth in the feedback; default 1
        weight: u32 [0..=100] = 1,
        /// the largest feedback; default 32
        feedback_max: u8 [1..=63] = 32,
        /// the probability of a notification at the smallest feedback; default 0.01
        least_probability: f64 [PROBABILITY] = 0.01,
        /// the probability at the largest feedback; default 0.2
        plateau: f64 [PROBABILITY] = 0.2,
        /// the packets it acts on; default all
        only: Only as (Kind::Table(Only::SPEC)) = only(s)?,
    }
}

settings! {
    /// drops packets above the rates that notifications allow (Al-Fares 2012, 5.3.3)
    pub model struct ReactionPointApp in kind "qcn-reaction-point" (s) {
        /// the lowest rate of a flow; default 1 Mb/s
        min_rate: Rate [POSITIVE_RATE] = Rate::mbps(1),
        /// bytes that a flow may send at once beyond its rate; default 10 packets of 1,518 B
        burst: Bytes [BUFFER] = packets(10),
        /// bytes of a cycle of fast recovery; default 600 packets
        byte_reset: Bytes [BUFFER] = packets(600),
        /// bytes of a cycle after it; default 100 packets
        byte_reset_after: Bytes [BUFFER] = packets(100),
        /// cycles of fast recovery; default 5
        threshold: u32 [1..=100] = 5,
        /// rise of the target rate in active increase; default 1.5 Mb/s
        ai_rate: Rate [POSITIVE_RATE] = Rate(1_500_000),
        /// a feedback of n cuts the rate by n / 2^gd; default 7
        gd: u8 [1..=20] = 7,
        /// the lowest factor of a cut, in percent; default 50
        min_decrease_factor: u8 [1..=100] = 50,
        /// the packets it acts on; default all
        only: Only as (Kind::Table(Only::SPEC)) = only(s)?,
    }
}

settings! {
    /// runs a shared library with the interface of netbump.h, in the process of the simulator
    pub model struct ProgramApp in kind "program" (s, files: &mut Files) {
        /// the shared library, relative to the scenario's folder
        file: InputFile<Vec<u8>> as (Kind::Text) = {
            let name = String::read(s, "file", s.get("file").ok_or_else(|| s.missing("file"))?, &())?;
            let content = Arc::new(s.input("file", files.bytes(&name))?.to_vec());
            InputFile { path: name, content }
        },
        /// its arguments, with spaces between them; default none
        arguments: String = String::new(),
    }
}

choices! {
    /// A transport by which packets are chosen.
    pub enum Over {
        /// TCP.
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
    }
}

settings! {
    /// the packets that an application acts on: all that match every key
    #[derive(Default)]
    pub model struct Only in "only" (s) {
        /// the first and the last host of the senders
        #[serde(skip_serializing_if = "Option::is_none")]
        source: Option<[u64; 2]> as (Kind::Counts(0, u32::MAX as u64)) = range(s, "source", u64::from(u32::MAX))?,
        /// the first and the last host of the receivers
        #[serde(skip_serializing_if = "Option::is_none")]
        destination: Option<[u64; 2]> as (Kind::Counts(0, u32::MAX as u64)) = range(s, "destination", u64::from(u32::MAX))?,
        /// the first and the last port of the senders
        #[serde(skip_serializing_if = "Option::is_none")]
        source_port: Option<[u64; 2]> as (Kind::Counts(0, 65_535)) = range(s, "source_port", 65_535)?,
        /// the first and the last port of the receivers
        #[serde(skip_serializing_if = "Option::is_none")]
        destination_port: Option<[u64; 2]> as (Kind::Counts(0, 65_535)) = range(s, "destination_port", 65_535)?,
        /// the transport
        #[serde(skip_serializing_if = "Option::is_none")]
        protocol: Option<Over>,
        /// the priorities
        #[serde(skip_serializing_if = "Option::is_none")]
        priorities: Option<Vec<u8>> as (Kind::Counts(0, 7)) =
            s.get("priorities").map(|node| Vec::<u8>::read(s, "priorities", node, &(0..=7))).transpose()?,
    }
}

impl Only {
    /// The filter of an application.
    pub fn filter(&self) -> Filter {
        let port = |range: Option<[u64; 2]>| range.map(|[first, last]| first as u16..=last as u16);
        Filter {
            source: self.source.map(|[first, last]| first..=last),
            destination: self.destination.map(|[first, last]| first..=last),
            source_port: port(self.source_port),
            destination_port: port(self.destination_port),
            protocol: self.protocol.map(|over| match over {
                Over::Tcp => Protocol::TCP.0,
                Over::Udp => Protocol::UDP.0,
            }),
            priorities: self.priorities.as_ref().map(|list| list.iter().fold(0, |bits, p| bits | 1 << p)),
        }
    }
}

fn only(s: &Section<'_>) -> Result<Only> {
    Only::read(&s.section("only")?)
}

/// The first and the last of a range.
fn range(s: &Section<'_>, name: &str, most: u64) -> Result<Option<[u64; 2]>> {
    let Some(node) = s.get(name) else { return Ok(None) };
    match Vec::<u64>::read(s, name, node, &(0..=most))?[..] {
        [first, last] if first <= last => Ok(Some([first, last])),
        _ => Err(s.error(name, format!("`{name}` is the first and the last of a range")).expected("[0, 7]")),
    }
}

impl BumpApp {
    /// The machine, and the packets it acts on; `cpid` identifies the first congestion point of the bump.
    ///
    /// Nothing for a program from outside.
    pub fn stock(&self, seed: u64, cpid: u64) -> Option<(Stock, Filter)> {
        Some(match self {
            BumpApp::Program(_) => return None,
            BumpApp::Red(app) => {
                let config = RedConfig {
                    min_threshold: app.min_threshold.as_bytes() as u32,
                    max_threshold: app.max_threshold.as_bytes() as u32,
                    weight: app.weight,
                    ..Red::alfares2012(app.max_probability)
                };
                (Stock::Red(Red { config, seed }), app.only.filter())
            }
            BumpApp::Dctcp(app) => {
                (Stock::Dctcp(Dctcp { threshold: app.threshold.as_bytes() as u32 }), app.only.filter())
            }
            BumpApp::L4s(app) => (Stock::L4s(L4s { minimum: app.minimum, range: app.range, seed }), app.only.filter()),
            BumpApp::QcnCongestionPoint(app) => {
                let point = BumpCongestionPoint {
                    queue_size_set_point: app.set_point.as_bytes() as u32,
                    feedback_weight: app.weight,
                    feedback_max: app.feedback_max,
                    least_probability: app.least_probability,
                    plateau: app.plateau,
                    cpid,
                    seed,
                };
                (Stock::CongestionPoint(point), app.only.filter())
            }
            BumpApp::QcnReactionPoint(app) => {
                let source = BumpReactionPoint::alfares2012(seed);
                let limiter = ReactionPointConfig {
                    min_rate: app.min_rate,
                    byte_reset: app.byte_reset.as_bytes() as u32,
                    byte_reset_after: app.byte_reset_after.as_bytes() as u32,
                    threshold: app.threshold,
                    ai_rate: app.ai_rate,
                    gd: app.gd,
                    min_dec_fac: app.min_decrease_factor,
                    ..source.limiter
                };
                let point = BumpReactionPoint { limiter, burst: app.burst.as_bytes() as u32, seed };
                (Stock::ReactionPoint(point), app.only.filter())
            }
        })
    }
}

/// The links of a bump: each one port.
fn links(s: &Section<'_>, counts: &Counts) -> Result<Vec<PortSelector>> {
    let links = selected(s, "links", counts)?;
    if links.is_empty() {
        return Err(s.missing("links").hint("a bump is in a link: links = [\"switch 0 port 4\"]"));
    }
    if links.len() > LINKS_MAX {
        return Err(s.error("links", format!("{} links: at most {LINKS_MAX}", links.len())));
    }
    if let Some(switch) = links.iter().find(|link| matches!(link, PortSelector::Switch(_))) {
        let error = s.error("links", format!("`{switch}` is all ports of a switch"));
        return Err(error.expected("one end of a link: \"switch 2 port 5\" or \"host 3\""));
    }
    Ok(links)
}

/// The tables of all kinds.
pub const APPS: &[&Spec] =
    &[RedApp::SPEC, DctcpApp::SPEC, L4sApp::SPEC, CongestionPointApp::SPEC, ReactionPointApp::SPEC, ProgramApp::SPEC];

impl BumpApp {
    fn of_kind(s: &Section<'_>, files: &mut Files) -> Result<BumpApp> {
        Ok(match s.spec.name {
            name if name == RedApp::SPEC.name => BumpApp::Red(RedApp::read(s)?),
            name if name == DctcpApp::SPEC.name => BumpApp::Dctcp(DctcpApp::read(s)?),
            name if name == L4sApp::SPEC.name => BumpApp::L4s(L4sApp::read(s)?),
            name if name == CongestionPointApp::SPEC.name => BumpApp::QcnCongestionPoint(CongestionPointApp::read(s)?),
            name if name == ReactionPointApp::SPEC.name => BumpApp::QcnReactionPoint(ReactionPointApp::read(s)?),
            name if name == ProgramApp::SPEC.name => BumpApp::Program(ProgramApp::read(s, files)?),
            name => unreachable!("a kind without a reader: {name}"),
        })
    }
}

/// The applications in the list `app` of a real bump; names of files are relative to `folder`.
///
/// # Errors
/// The first error in these tables.
pub fn bump_apps(s: &Section<'_>, folder: Option<&Path>) -> Result<Vec<BumpApp>> {
    apps(s, &mut Files::new(folder.map(Path::to_path_buf)))
}

fn apps(s: &Section<'_>, files: &mut Files) -> Result<Vec<BumpApp>> {
    let tables = s.raw_tables("app")?;
    if tables.len() > APPS_MAX {
        return Err(s.error("app", format!("{} applications: at most {APPS_MAX}", tables.len())));
    }
    let apps: Vec<BumpApp> =
        tables.into_iter().map(|(table, span)| app(s.doc, table, span, files)).collect::<Result<_>>()?;
    if apps.len() > 1 && apps.iter().any(|app| matches!(app, BumpApp::Program(_))) {
        let error = s.error("app", "a program from outside is the only application of its bump");
        return Err(error.hint("put another bump into the same link for the other applications"));
    }
    Ok(apps)
}

fn app(doc: &Document, table: &Table, span: Span, files: &mut Files) -> Result<BumpApp> {
    let names: Vec<&'static str> = APPS.iter().map(|spec| spec.name).collect();
    let Some(entry) = table.get("kind") else {
        let error = doc.error(span, "this application has no `kind`");
        return Err(error.hint(format!("known kinds: {}", names.join(", "))));
    };
    let Value::Text(kind) = &entry.node.value else {
        let message = format!("{} where a kind should be", entry.node.kind());
        return Err(doc.error(entry.node.span, message).expected("a string"));
    };
    let Some(spec) = APPS.iter().find(|spec| spec.name == kind) else {
        let error = doc.error(entry.node.span, format!("unknown kind of application `{}`", shown(kind)));
        return Err(error.none_of(kind, &names));
    };
    let s = Section::new(doc, spec, table, Some(span))?;
    let app = BumpApp::of_kind(&s, files)?;
    match &app {
        BumpApp::Red(red) if red.min_threshold > red.max_threshold => {
            Err(s.error_at(&["max_threshold", "min_threshold"], "the maximum threshold is below the minimum threshold"))
        }
        BumpApp::QcnCongestionPoint(point) if point.least_probability > point.plateau => {
            Err(s.error_at(&["plateau", "least_probability"], "the probability falls: its plateau is below its start"))
        }
        _ => Ok(app),
    }
}

/// The bumps of a scenario.
pub(crate) fn bumps(root: &Section<'_>, counts: &Counts, level: Level, files: &mut Files) -> Result<Vec<Bump>> {
    let tables = root.tables("bump")?;
    if tables.len() > BUMPS_MAX {
        return Err(root.error("bump", format!("{} bumps: at most {BUMPS_MAX}", tables.len())));
    }
    let count = tables.len() as u32;
    let read = |(i, t): (u32, &Section<'_>)| {
        let bump = Bump::read(t, counts, files)?;
        if level == Level::Flow {
            return Err(t
                .error_here("at the flow level there are no frames for a bump")
                .hint("scenario.level = \"packet\""));
        }
        if let Some(&n) = bump.neighbours.iter().find(|&&n| n >= count || n == i) {
            let message = if n == i { "it is its own neighbour".into() } else { format!("there is no bump {n}") };
            return Err(t.error("neighbours", message).expected(format!("other bumps, 0 to {}", count - 1)));
        }
        let keys = ["update_packets", "update_interval", "update_delay"];
        if let Some(key) = keys.iter().find(|key| t.has(key) && bump.neighbours.is_empty()) {
            return Err(t.error(key, format!("`{key}` has no effect without `neighbours`")));
        }
        Ok(bump)
    };
    (0..).zip(&tables).map(read).collect()
}
