//! Every physical switch: its buffers, priority flow control, framing.

use super::{LEVELS_MAX, ParameterSet, Server};
use crate::error::Result;
use crate::setting::{Kind, Or, Section, Setting};
use crate::topology;
use crate::tree::{Node, Value};
use crate::units::{BUFFER, Bytes, Canonical, DELAY, LINK_RATE, Length, Packets, Quantity};
use crate::{choices, settings};
use serde::{Serialize, Serializer};
use sluicenet_proto::cee;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::tcp::MIN_MSS;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

choices! {
    /// The unit that a switch's buffer limits.
    pub enum BufferPolicy {
        /// Each output's queue holds one buffer.
        Output = "output",
        /// Each input's frames, in whichever queues, fill one buffer.
        Input = "input",
        /// All frames of the switch fill the sum of its ports' buffers.
        Pooled = "pooled",
    }
}

choices! {
    /// When a switch forwards.
    pub enum Forwarding {
        /// As soon as the header has arrived, if the output is free and not faster than the input.
        CutThrough = "cut-through",
        /// When the last bit has arrived.
        StoreAndForward = "store-and-forward",
    }
}

/// The buffer of a port, in the unit in which it is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortBuffer {
    /// Frames of so many bytes together.
    Bytes(Bytes),
    /// So many frames, of whatever length.
    Packets(Packets),
}

impl PortBuffer {
    /// The limit in bytes; none if frames are counted.
    pub fn bytes(self) -> Option<Bytes> {
        match self {
            PortBuffer::Bytes(bytes) => Some(bytes),
            PortBuffer::Packets(_) => None,
        }
    }

    /// As people would write it.
    pub fn written(self) -> String {
        match self {
            PortBuffer::Bytes(bytes) => bytes.written(),
            PortBuffer::Packets(packets) => packets.written(),
        }
    }
}

impl Canonical for PortBuffer {
    fn canonical<S: Serializer>(&self, s: S) -> core::result::Result<S::Ok, S::Error> {
        match self {
            PortBuffer::Bytes(bytes) => bytes.canonical(s),
            PortBuffer::Packets(packets) => packets.canonical(s),
        }
    }
}

/// Its limits are those of a size.
impl Setting for PortBuffer {
    type Limits = core::ops::RangeInclusive<Bytes>;
    const ANY: Self::Limits = BUFFER;

    fn kind(limits: &Self::Limits) -> Kind {
        Kind::Either(Box::new(Bytes::kind(limits)), Box::new(Packets::kind(&Packets::ANY)))
    }

    fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<PortBuffer> {
        // No unit of a size begins with a p, and a misspelt one of packets does.
        let counts = |text: &str| text.trim_start_matches(|c: char| !c.is_alphabetic()).starts_with(['p', 'P']);
        match &node.value {
            Value::Text(text) if counts(text) => Packets::read(s, name, node, &Packets::ANY).map(PortBuffer::Packets),
            _ => match Bytes::read(s, name, node, limits) {
                Ok(bytes) => Ok(PortBuffer::Bytes(bytes)),
                Err(e) if e.diagnostic().expected == Bytes::NAME => {
                    let hint = format!("{}; a number of packets as {}", e.diagnostic().hint, Packets::EXAMPLE);
                    Err(e.expected("a size or a number of packets").hint(hint))
                }
                Err(e) => Err(e),
            },
        }
    }
}

settings! {
    /// every physical switch
    pub model struct Switch in "switch" (s, set: ParameterSet) {
        /// buffer of a port, in bytes or in packets
        // Tables 2.1 and 3.1: 100 KB a port.
        buffer: PortBuffer [BUFFER] = PortBuffer::Bytes(set.plain_or(Bytes(150_000), Bytes(100_000))),
        /// the unit that the buffer limits
        // Table 2.1: line 708 bounds an output queue by all inputs, but Q_eq of 20 KB is 20 % of "the queue" (827) and
        // replies are lost in both phases (1419): an output queue of 100 KB [d]. Table 3.1: with full sharing (3.2.1)
        // nothing is lost in the first phase.
        policy: BufferPolicy = BufferPolicy::Output,
        /// delay from input to output
        // Tables 2.1 and 3.1.
        delay: Duration [DELAY] = set.of(Duration::ZERO, Duration::from_ns(100), Duration::from_ns(500)),
        /// when a frame is forwarded: at its first or last bit
        // 2.5.2.
        forwarding: Forwarding = set.plain_or(Forwarding::StoreAndForward, Forwarding::CutThrough),
        /// mark frames that find more than this in the queue of their class (DCTCP), if their transport supports ECN;
        /// default off
        #[serde(skip_serializing_if = "Option::is_none")]
        ecn_threshold: Option<Bytes> [BUFFER],
        /// SONiC's config_db.json, relative to the scenario's folder: its QoS part gives the keys of [switch], [buffer],
        /// [[wred]], [ets] and [pfc] that the scenario does not give
        let sonic as (Kind::Text),
        /// the port of that file whose settings all ports have, as "Ethernet0"; default: the ports must agree
        let sonic_port as (Kind::Text),
        /// the priority of frames of each DSCP: 64 numbers from 0 to 7; default none, and workloads have no `dscp`
        #[serde(skip_serializing_if = "Option::is_none")]
        dscp_to_tc: Option<Vec<u8>> [0..=7],
    }
}

/// Code points of a DSCP.
const DSCPS: usize = 64;

impl Switch {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>) -> Result<()> {
        // Read by hand before; another kind of value is refused here.
        for key in ["sonic", "sonic_port"] {
            s.value::<String>(key)?;
        }
        if let Some(map) = self.dscp_to_tc.as_ref().filter(|map| map.len() != DSCPS) {
            let error = s.error("dscp_to_tc", format!("{} priorities, where each DSCP has one", map.len()));
            return Err(error.expected("64 numbers, for the DSCPs 0 to 63"));
        }
        if let (PortBuffer::Packets(_), false) = (self.buffer, self.policy == BufferPolicy::Output) {
            let error = s.error("policy", "a buffer that counts packets is one of an output's queue");
            return Err(error.hint("set policy = \"output\", or give `buffer` in bytes"));
        }
        if s.has("sonic_port") && !s.has("sonic") {
            let error = s.error("sonic_port", "`sonic_port` changes nothing: no file of SONiC is given");
            return Err(error.hint("give switch.sonic, as \"config_db.json\""));
        }
        Ok(())
    }
}

settings! {
    /// the memory of the switches of one level
    struct BufferLevel in "level" (s) {
        /// 1 is next to the hosts
        level: u32 [1..=LEVELS_MAX],
        /// their memory
        size: Bytes [BUFFER],
    }
}

settings! {
    /// one pool of memory for each switch, with dynamic thresholds, instead of a buffer for each port
    pub model struct SharedBuffer in "buffer" (s, set: ParameterSet) {
        /// the memory of a switch; default: each port has switch.buffer
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<Bytes> [BUFFER],
        /// the shared part of the memory, instead of size: reserved bytes and headroom are added to it
        #[serde(skip_serializing_if = "Option::is_none")]
        shared: Option<Bytes> [BUFFER],
        /// the memory of the switches of one level, if it differs
        let level as (Kind::Tables(&[BufferLevel::SPEC])),
        /// Memory of the switches of levels that differ.
        #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_levels")]
        field levels: Vec<(u32, Bytes)> = levels(s)?,
        /// bytes of its own that each priority has at each input, and at each output; default 0
        reserved: Bytes [NO_BUFFER] = Bytes(0),
        /// the same for a lossy priority at an input; default reserved
        #[serde(skip_serializing_if = "Option::is_none")]
        lossy_reserved: Option<Bytes> [NO_BUFFER],
        /// the same for a lossy queue at an output; default reserved
        #[serde(skip_serializing_if = "Option::is_none")]
        egress_reserved: Option<Bytes> [NO_BUFFER],
        /// the part of the free bytes that a lossless priority may hold at an input before it is paused, as a power of 2;
        /// default 0
        lossless_dynamic_th: f64 [DYNAMIC_TH] = 0.0,
        /// the part of the free bytes that a lossy priority may hold at an input, as a power of 2; default 0
        lossy_dynamic_th: f64 [DYNAMIC_TH] = 0.0,
        /// the part of the free bytes that a lossy queue may hold at an output, as a power of 2; default 0
        egress_dynamic_th: f64 [DYNAMIC_TH] = 0.0,
        /// a paused priority goes on when it holds so much less than its threshold
        xon_offset: Bytes [NO_BUFFER] = set.plain_or(Bytes(20_000), Bytes(17_000)),
        /// a paused priority also goes on when it holds no more than this; default 0
        #[serde(skip_serializing_if = "Option::is_none")]
        xon: Option<Bytes> [NO_BUFFER],
        /// memory for data that still arrives after a pause; default the headroom of all inputs and lossless priorities
        #[serde(skip_serializing_if = "Option::is_none")]
        headroom_pool: Option<Bytes> [NO_BUFFER],
    }
}

/// Exponents of dynamic thresholds.
const DYNAMIC_TH: core::ops::RangeInclusive<f64> = -8.0..=10.0;
/// None at all, or what a buffer can have.
const NO_BUFFER: core::ops::RangeInclusive<Bytes> = Bytes(0)..=*BUFFER.end();

fn serialize_levels<S: Serializer>(levels: &[(u32, Bytes)], s: S) -> core::result::Result<S::Ok, S::Error> {
    levels.iter().map(|&(level, size)| (level, size.as_bytes())).collect::<Vec<_>>().serialize(s)
}

fn levels(s: &Section<'_>) -> Result<Vec<(u32, Bytes)>> {
    let mut all: Vec<(u32, Bytes)> = Vec::new();
    for t in s.tables("level")? {
        let BufferLevel { level, size } = BufferLevel::read(&t)?;
        if all.iter().any(|other| other.0 == level) {
            return Err(t.error("level", format!("level {level} is given twice")));
        }
        all.push((level, size));
    }
    Ok(all)
}

impl SharedBuffer {
    /// Whether switches have one pool.
    pub fn is_on(&self) -> bool {
        self.size.is_some() || self.shared.is_some() || !self.levels.is_empty()
    }

    /// Bytes of its own that a lossy priority has at an input.
    pub fn lossy_reserved(&self) -> Bytes {
        self.lossy_reserved.unwrap_or(self.reserved)
    }

    /// Bytes of its own that a lossy queue has at an output.
    pub fn egress_reserved(&self) -> Bytes {
        self.egress_reserved.unwrap_or(self.reserved)
    }

    /// Whether switches have a buffer for each port.
    pub(crate) fn is_off(&self) -> bool {
        !self.is_on()
    }

    /// Checks how the keys relate, and refuses those of other buffers.
    pub(crate) fn check(&self, s: &Section<'_>, s_switch: &Section<'_>, s_pfc: &Section<'_>) -> Result<()> {
        if self.is_off() {
            let keys = [
                "reserved",
                "lossy_reserved",
                "egress_reserved",
                "lossless_dynamic_th",
                "lossy_dynamic_th",
                "egress_dynamic_th",
                "xon_offset",
                "xon",
                "headroom_pool",
            ];
            return match keys.iter().find(|key| s.has(key)) {
                Some(key) => Err(s
                    .error(key, format!("`{key}` has no effect: switches have no pool"))
                    .hint("set buffer.size or buffer.shared")),
                None => Ok(()),
            };
        }
        if let (Some(_), true) = (self.shared, self.size.is_some() || !self.levels.is_empty()) {
            let error = s.error("shared", "`shared` and the size of the memory exclude each other");
            return Err(
                error.hint("`size` counts reserved bytes and headroom, `shared` does not: remove one of the two")
            );
        }
        if self.size.is_none() && self.shared.is_none() {
            return Err(s
                .error_here("`size` is missing: switches of other levels need it")
                .hint("the memory of a switch"));
        }
        for (section, keys) in [(s_switch, ["buffer", "policy"]), (s_pfc, ["xoff", "xon"])] {
            if let Some(key) = keys.iter().find(|key| section.has(key)) {
                let message = format!("`{key}` has no effect: [buffer] gives the switches one pool");
                return Err(section.error(key, message).hint("remove it, or remove [buffer]"));
            }
        }
        Ok(())
    }
}

choices! {
    /// How to treat a cyclic buffer dependency in lossless priorities.
    pub enum Deadlock {
        /// Do not run.
        Refuse = "refuse",
        /// Run, with a warning.
        Warn = "warn",
        /// Do not look.
        Ignore = "ignore",
    }
}

choices! {
    /// Headroom that is computed.
    pub enum Auto {
        /// By the link.
        Auto = "auto",
    }
}

choices! {
    /// A response time that depends on the link.
    pub enum ByRate {
        /// By the rate of the link.
        ByRate = "by-rate",
    }
}

settings! {
    /// the headroom of links of one rate and length, as a row of SONiC's pg_profile_lookup.ini
    struct LinkHeadroomKeys in "pfc.link" (s) {
        /// their rate
        rate: Rate [LINK_RATE],
        /// the length of their cables
        cable: Option<Length>,
        /// their delay, instead of cable
        delay: Option<Duration> [DELAY],
        /// room above xoff for data that still arrives
        headroom: Bytes [NO_BUFFER],
    }
}

/// The headroom of links of one rate and delay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkHeadroom {
    /// Their rate.
    #[serde(serialize_with = "crate::units::canonical")]
    pub rate: Rate,
    /// Their delay.
    #[serde(serialize_with = "crate::units::canonical")]
    pub delay: Duration,
    /// Room above XOFF.
    #[serde(serialize_with = "crate::units::canonical")]
    pub headroom: Bytes,
}

/// Rows of `[[pfc.link]]`.
const LINK_HEADROOMS_MAX: usize = 256;

fn link_headrooms(s: &Section<'_>, per_metre: Duration) -> Result<Vec<LinkHeadroom>> {
    let tables = s.tables("link")?;
    if tables.len() > LINK_HEADROOMS_MAX {
        return Err(s.error("link", format!("{} tables: at most {LINK_HEADROOMS_MAX}", tables.len())));
    }
    let mut all: Vec<LinkHeadroom> = Vec::new();
    for t in tables {
        let LinkHeadroomKeys { rate, cable, delay, headroom } = LinkHeadroomKeys::read(&t)?;
        let of_cable = topology::cable_delay(&t, (cable, per_metre), "delay")?;
        let delay = of_cable.or(delay).ok_or_else(|| t.missing("cable"))?;
        if all.iter().any(|other| (other.rate, other.delay) == (rate, delay)) {
            return Err(
                t.error("rate", format!("links of {} and {} stand here twice", rate.written(), delay.written()))
            );
        }
        all.push(LinkHeadroom { rate, delay, headroom });
    }
    Ok(all)
}

choices! {
    /// What a switch does with a lossless priority in a storm of pauses.
    pub enum WatchdogAction {
        /// Its frames are dropped.
        Drop = "drop",
        /// Pauses have no effect on it.
        Forward = "forward",
        /// Storms are counted.
        Alert = "alert",
    }
}

/// Times of a watchdog.
const WATCHDOG_TIME: core::ops::RangeInclusive<Duration> = Duration::from_us(1)..=Duration::from_ms(60_000);

settings! {
    /// the PFC watchdog of a switch's ports, as in SONiC's PFC_WD
    #[derive(Copy)]
    pub model struct PfcWatchdog in "pfc.watchdog" (s) {
        /// whether there is one; default true in a scenario with this section
        let enabled as (Kind::Bool),
        /// a paused priority that has frames at an output and sends none for this long is in a storm
        detection_time: Duration [WATCHDOG_TIME] = cee::watchdog::DETECTION_TIME,
        /// the storm is over when no pause arrived for this long
        restoration_time: Duration [WATCHDOG_TIME] = cee::watchdog::RESTORATION_TIME,
        /// what happens to the priority at the port meanwhile: its frames to and from the port are dropped, pauses have no
        /// effect, or storms are only counted
        action: WatchdogAction = WatchdogAction::Drop,
    }
}

fn watchdog(s: &Section<'_>) -> Result<Option<PfcWatchdog>> {
    let of = s.section("watchdog")?;
    let watchdog = PfcWatchdog::read(&of)?;
    let is_on = of.value("enabled")?.unwrap_or(s.has("watchdog"));
    Ok(is_on.then_some(watchdog))
}

settings! {
    /// priority flow control (802.1Qbb) on every physical link
    pub model struct Pfc in "pfc" (s, set: ParameterSet, fixed: Option<bool>, server: &Server, per_metre: Duration) {
        /// whether the physical network is lossless
        enabled: bool = fixed.unwrap_or(false),
        /// the lossless priorities; default all but server.lossy_vnic
        let lossless: Option<Vec<u8>> [0..=7],
        /// The lossless priorities, bit p for priority p.
        field lossless: u8 = match lossless {
            Some(list) => list.into_iter().collect::<PrioritySet>().0,
            None => !server.lossy_priority(),
        },
        /// send a pause when an input holds this much
        // Table 2.1: 97 KB and 80 KB. Table 3.1 has none: the same switch [d].
        xoff: Bytes [BUFFER] = set.plain_or(Bytes(100_000), Bytes(97_000)),
        /// resume when it holds this much again
        xon: Bytes = Bytes(80_000),
        /// room above xoff for data that still arrives; auto: computed from the link, and from how many pauses in a row
        /// it may damage
        let headroom: Or<Bytes, Auto> [NO_BUFFER] = Or::Word(Auto::Auto),
        /// Room above XOFF for data that still arrives; computed where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field headroom: Option<Bytes> = headroom.value(),
        /// the headroom of links of one rate and length, instead of headroom
        let link as (Kind::Tables(&[LinkHeadroomKeys::SPEC])),
        /// The headroom of links of one rate and delay.
        #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "plainly")]
        field links: Vec<LinkHeadroom> = link_headrooms(s, per_metre)?,
        /// time from a PFC frame's last bit until the peer has stopped
        response: Duration [DELAY] = RESPONSE,
        /// the longest response that headroom has room for; by-rate: of an adapter at such a link, 3.43 us at 10 Gb/s and
        /// 2.02 us at 100 Gb/s
        let peer_response: Or<Duration, ByRate> [DELAY] = set.plain_or(Or::Word(ByRate::ByRate), Or::Value(RESPONSE)),
        /// The longest response that headroom has room for; by the rate of the link where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field peer_response: Option<Duration> = peer_response.value(),
        /// pause time asked for, in quanta of 512 bit times
        quanta: u16 [1..=u16::MAX] = u16::MAX,
        /// how to treat a cyclic buffer dependency
        deadlock: Deadlock = Deadlock::Refuse,
        /// the watchdog of lossless priorities at every port of a switch; default none
        #[serde(skip_serializing_if = "Option::is_none")]
        watchdog: Option<PfcWatchdog> as (Kind::Table(PfcWatchdog::SPEC)) = watchdog(s)?,
    }
}

fn plainly<T: Serialize, S: Serializer>(all: &[T], s: S) -> core::result::Result<S::Ok, S::Error> {
    all.serialize(s)
}

/// 802.1Q (802.1Qbb) lets a station take 614.4 ns from a PFC frame to its effect above the MAC.
const RESPONSE: Duration = Duration::from_ps(614_400);

impl Pfc {
    /// Checks how the keys relate. `fixed` is whether `[scenario]` says that the network is lossless, `buffer` the
    /// buffer of the smallest switch; none if switches count packets.
    pub(crate) fn check(
        &self,
        s: &Section<'_>,
        fixed: Option<bool>,
        (buffer, server): (Option<Bytes>, &Server),
    ) -> Result<()> {
        agree(s, "enabled", (self.enabled, fixed), "physical")?;
        if s.has("lossless") && self.lossless == 0 {
            return Err(s.error("lossless", "no priority is lossless").hint("write enabled = false instead"));
        }
        if self.lossless & server.lossy_priority() != 0 {
            return Err(s
                .error("lossless", "the priority of the lossy vNICs (server.lossy_vnic) is in this list")
                .hint("take it out, or give those vNICs another"));
        }
        let (xon, xoff) = (self.xon.0, self.xoff.0);
        if xon > xoff {
            return Err(s
                .error_at(&["xon", "xoff"], format!("xon ({xon} B) is above xoff ({xoff} B)"))
                .hint("a pause ends when the occupancy has fallen to xon"));
        }
        if let Some(longest) = self.peer_response.filter(|longest| *longest < self.response) {
            let (longest, response) = (longest.written(), self.response.written());
            return Err(s
                .error_at(
                    &["peer_response", "response"],
                    format!("peer_response ({longest}) is shorter than response ({response})"),
                )
                .hint("headroom must have room for the response that is simulated"));
        }
        if !self.enabled {
            return Ok(());
        }
        let Some(buffer) = buffer else {
            return Err(s
                .error_at(&["enabled"], "a lossless priority waits in bytes, and switch.buffer counts packets")
                .hint("give switch.buffer in bytes, as \"100 KB\""));
        };
        if self.xoff > buffer {
            return Err(s
                .error_at(&["xoff"], format!("xoff ({xoff} B) is beyond the switch's buffer ({} B)", buffer.0))
                .hint("lower pfc.xoff (and xon) or raise switch.buffer"));
        }
        Ok(())
    }
}

/// Refuses a flag that contradicts `flow_control`.
pub(super) fn agree(s: &Section<'_>, name: &str, (flag, fixed): (bool, Option<bool>), network: &str) -> Result<()> {
    if fixed.is_none_or(|fixed| fixed == flag) {
        return Ok(());
    }
    let word = if flag { "lossy" } else { "lossless" };
    Err(s
        .error(name, format!("scenario.flow_control says that the {network} network is {word}"))
        .hint(format!("remove `{name}` or flow_control")))
}

choices! {
    /// A family of framings.
    pub enum FramingKind {
        /// 18 bytes of header and FCS, 20 of preamble and gap, 64 at least.
        Ethernet = "ethernet",
        /// 2 bytes of header and nothing else, as ns-3's point-to-point link.
        Ppp = "ppp",
    }
}

/// The smallest largest IP packet: TCP's smallest MSS and 40 B of headers.
const MTU_MIN: u64 = MIN_MSS as u64 + 40;
/// Bytes the largest IP packet may have; its frame has at most [`FRAME_MAX`].
pub(super) const MTU: core::ops::RangeInclusive<Bytes> = Bytes(MTU_MIN)..=Bytes(FRAME_MAX);
/// Bytes of the longest frame: simulated packets count theirs in 16 bits.
const FRAME_MAX: u64 = u16::MAX as u64;
/// Bytes of a CN-TAG (802.1Qau).
const CN_TAG: u64 = 4;

settings! {
    /// what a frame costs on the wire
    pub model struct Framing in "framing" (s, set: ParameterSet) {
        /// ethernet: 18 B and 20 B of gap; ppp: 2 B, as ns-3's links
        kind: FramingKind = FramingKind::Ethernet,
        /// the largest IP packet of the physical network
        // Table 2.1: a frame of 1500 B, 18 of which are header and FCS [d]. Table 3.1: a frame of 1518 B.
        mtu: Bytes [MTU] = set.of(Bytes(1500), Bytes(1482), Bytes(1500)),
    }
}

/// Settings that bound the MTU. All headers between servers, of tunnels and of zBridge, are within the MTU.
pub(crate) struct Beside {
    /// Whether hosts put a CN-TAG into each frame.
    pub are_tagged: bool,
    /// Whether bumps report frames to each other, in 16 bits each with preamble and gap.
    pub are_reported: bool,
    /// Bytes of zBridge's header, if a virtual machine's packet has to leave room for it.
    pub growth: u64,
}

impl Framing {
    /// Refuses an MTU whose frame is too long, or that leaves no room for TCP's smallest segment.
    pub(crate) fn check(&self, s: &Section<'_>, beside: &Beside) -> Result<()> {
        let tag = if beside.are_tagged && self.kind == FramingKind::Ethernet { CN_TAG } else { 0 };
        let gap = if beside.are_reported { self.gap_bytes() } else { 0 };
        let (mtu, around) = (self.mtu.0, self.header_bytes() + tag + gap);
        let (least, most) = (MTU_MIN + beside.growth, FRAME_MAX - around);
        let message = if mtu > most {
            format!("a packet of {mtu} B and {around} B around it are more than the {FRAME_MAX} B of the longest frame")
        } else if mtu < least {
            format!("a packet of {mtu} B does not hold TCP's smallest segment of {MIN_MSS} B and its headers")
        } else {
            return Ok(());
        };
        let hint = if mtu > most { format!("at most {most} B here") } else { format!("at least {least} B here") };
        Err(s
            .error("mtu", message)
            .expected(format!("from {least} B to {most} B"))
            .hint(format!("framing.mtu is {hint}")))
    }

    /// Bytes of header and trailer which count in buffers too.
    pub fn header_bytes(&self) -> u64 {
        match self.kind {
            FramingKind::Ethernet => 18,
            FramingKind::Ppp => 2,
        }
    }

    /// Bytes of preamble and gap, which take wire time alone.
    pub fn gap_bytes(&self) -> u64 {
        match self.kind {
            FramingKind::Ethernet => 20,
            FramingKind::Ppp => 0,
        }
    }

    /// The shortest frame, header included.
    pub fn min_frame_bytes(&self) -> u64 {
        match self.kind {
            FramingKind::Ethernet => 64,
            FramingKind::Ppp => 0,
        }
    }
}
