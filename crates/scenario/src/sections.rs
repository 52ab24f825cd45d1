//! Reading the sections that describe boxes: switches, adapters, servers, stacks, and what to record.

use super::defaults;
use super::error::{Result, Warning};
use super::keys;
use super::model::*;
use super::section::Section;
use super::sweep::Shown;
use super::tree::{Node, Value};
use super::units::{Bytes, Quantity};
use sluicenet_proto::time::Duration;

/// How long samples wait in memory, and how many may.
const EPOCH: Duration = Duration::from_us(500);
const SAMPLES_MAX: u64 = 1 << 22;
/// Machines of a server with two vNICs each: as many ports and two uplinks are what a virtual switch has.
const VMS_OF_TWO: u32 = 31;
/// Bytes the smallest and the largest IP packet may have.
const MTU_RANGE: core::ops::RangeInclusive<u64> = 128..=65_535;

pub(super) fn switch(s: &Section<'_>, set: ParameterSet) -> Result<Switch> {
    let d = defaults::switch(set);
    let policies = [("output", BufferPolicy::Output), ("input", BufferPolicy::Input), ("pooled", BufferPolicy::Pooled)];
    let forwarding = [("cut-through", Forwarding::CutThrough), ("store-and-forward", Forwarding::StoreAndForward)];
    Ok(Switch {
        buffer: s.buffer("buffer")?.unwrap_or(d.buffer),
        policy: s.choice("policy", &policies)?.unwrap_or(d.policy),
        delay: s.quantity("delay")?.unwrap_or(d.delay),
        forwarding: s.choice("forwarding", &forwarding)?.unwrap_or(d.forwarding),
    })
}

/// `[pfc]`; `fixed` is what `flow_control` says of the physical network.
pub(super) fn pfc(
    s: &Section<'_>,
    set: ParameterSet,
    fixed: Option<bool>,
    (buffer, server): (Bytes, &Server),
) -> Result<Pfc> {
    let d = defaults::pfc(set);
    let lossy = server.lossy_vnic.map_or(0, |p| 1u8 << p);
    let deadlock = [("refuse", Deadlock::Refuse), ("warn", Deadlock::Warn), ("ignore", Deadlock::Ignore)];
    let lossless = match s.counts("lossless", 0..=7)? {
        Some(list) if list.is_empty() => {
            return Err(s.error("lossless", "no priority is lossless").hint("write enabled = false instead"));
        }
        Some(list) if list.iter().any(|p| lossy >> p & 1 != 0) => {
            return Err(s
                .error("lossless", "the priority of the lossy vNICs (server.lossy_vnic) is in this list")
                .hint("take it out, or give those vNICs another"));
        }
        Some(list) => list.iter().fold(0u8, |mask, p| mask | 1 << p),
        None => d.lossless & !lossy,
    };
    let headroom = match s.get("headroom") {
        Some(Node { value: Value::Text(t), .. }) if t == "auto" => None,
        Some(node) => Some(s.fits_buffer("headroom", s.quantity_of(node)?)?),
        None => d.headroom,
    };
    let p = Pfc {
        enabled: agree(s, "enabled", fixed, "physical")?.unwrap_or(d.enabled),
        lossless,
        xoff: s.buffer("xoff")?.unwrap_or(d.xoff),
        xon: s.quantity("xon")?.unwrap_or(d.xon),
        headroom,
        response: s.quantity("response")?.unwrap_or(d.response),
        quanta: s.count("quanta", 1..=65_535)?.map_or(d.quanta, |n| n as u16),
        deadlock: s.choice("deadlock", &deadlock)?.unwrap_or(d.deadlock),
    };
    if p.xon > p.xoff {
        return Err(s
            .error_at(&["xon", "xoff"], format!("xon ({} B) is above xoff ({} B)", p.xon.0, p.xoff.0))
            .hint("a pause ends when the occupancy has fallen to xon"));
    }
    if p.enabled && p.xoff > buffer {
        return Err(s
            .error_at(&["xoff"], format!("xoff ({} B) is beyond the switch's buffer ({} B)", p.xoff.0, buffer.0))
            .hint("lower pfc.xoff (and xon) or raise switch.buffer"));
    }
    Ok(p)
}

/// A flag that `flow_control` may have fixed already.
fn agree(s: &Section<'_>, name: &str, fixed: Option<bool>, network: &str) -> Result<Option<bool>> {
    let given = s.bool(name)?;
    match (given, fixed) {
        (Some(given), Some(fixed)) if given != fixed => {
            let word = if fixed { "lossless" } else { "lossy" };
            Err(s
                .error(name, format!("scenario.flow_control says that the {network} network is {word}"))
                .hint(format!("remove `{name}` or flow_control")))
        }
        _ => Ok(given.or(fixed)),
    }
}

pub(super) fn adapter(
    s: &Section<'_>,
    set: ParameterSet,
    (routing, zbridge): (Routing, &ZBridge),
    warn: &mut Vec<Warning>,
) -> Result<Adapter> {
    let d = defaults::adapter(set);
    let queueing = [("voq", Queueing::Voq), ("fifo", Queueing::Fifo)];
    let when_full = [("stop", WhenFull::Stop), ("drop", WhenFull::Drop)];
    let timeout = s.positive("resequencing_timeout")?;
    let resequencing = s.bool("resequencing")?.unwrap_or(routing == Routing::Random && !zbridge.enabled);
    if resequencing && zbridge.enabled {
        return Err(s
            .error("resequencing", "zBridge puts frames in order: adapters need not")
            .hint("remove `resequencing`"));
    }
    if timeout.is_some() && !resequencing {
        let (file, line) = s.get("resequencing_timeout").map_or((String::new(), 0), |n| s.doc.line_of(n.span));
        let message = "`resequencing_timeout` has no effect: resequencing is off".into();
        warn.push(Warning { file, line, message });
    }
    Ok(Adapter {
        buffer: s.buffer("buffer")?.unwrap_or(d.buffer),
        delay: s.quantity("delay")?.unwrap_or(d.delay),
        queueing: s.choice("queueing", &queueing)?.unwrap_or(d.queueing),
        when_full: s.choice("when_full", &when_full)?.unwrap_or(d.when_full),
        resequencing: resequencing.then(|| timeout.unwrap_or(defaults::RESEQUENCING_TIMEOUT)),
    })
}

pub(super) fn server(s: &Section<'_>, set: ParameterSet) -> Result<Server> {
    let d = defaults::server(set);
    let server = Server {
        vms: s.count_u32("vms", 1..=63)?.unwrap_or(d.vms),
        virtual_network: s.bool("virtual_network")?.unwrap_or(d.virtual_network),
        lossy_vnic: s.count("lossy_vnic", 0..=7)?.map(|p| p as u8),
    };
    if server.lossy_vnic.is_none() {
        return Ok(server);
    }
    if !server.virtual_network {
        return Err(s
            .error("lossy_vnic", "there is no virtual network, so that no machine has a vNIC")
            .hint("set server.virtual_network = true"));
    }
    if server.vms > VMS_OF_TWO {
        let message = format!("{} machines with two vNICs each are more than a virtual switch has ports", server.vms);
        return Err(s.error_at(&["vms", "lossy_vnic"], message).expected(format!("at most {VMS_OF_TWO}")));
    }
    Ok(server)
}

/// `[vswitch]`; `fixed` is what `flow_control` says of the virtual network.
pub(super) fn vswitch(s: &Section<'_>, fixed: Option<bool>, server: &Server, counts: Counts) -> Result<VSwitch> {
    let virtual_network = server.virtual_network;
    let d = defaults::vswitch();
    let vm_rate = s.link_rate("vm_rate")?.unwrap_or(d.vm_rate);
    let mut slow: Vec<SlowVm> = Vec::new();
    for (table, span) in s.tables("slow")? {
        let t = Section::new(s.doc, &keys::SLOW, table, Some(span))?;
        let (host, vm) = machine(&t, server, counts)?;
        if slow.iter().any(|s| (s.host, s.vm) == (host, vm)) {
            return Err(t.error("host", "this machine stands here twice"));
        }
        let rate = t.link_rate("rate")?.ok_or_else(|| t.missing("rate"))?;
        if rate > vm_rate {
            let message = format!("faster than the machine's port, which has vswitch.vm_rate = {}", vm_rate.written());
            return Err(t.error("rate", message));
        }
        slow.push(SlowVm { host, vm, rate });
    }
    if !slow.is_empty() && !virtual_network {
        return Err(s
            .error("slow", "there is no virtual network, so that no machine has a port of its own")
            .hint("set server.virtual_network = true"));
    }
    let v = VSwitch {
        slots: s.count_u32("slots", 1..=1 << 20)?.unwrap_or(d.slots),
        lossless: agree(s, "lossless", fixed, "virtual")?.unwrap_or(d.lossless),
        vm_rate,
        slow,
    };
    if s.bool("lossless")? == Some(true) && !virtual_network {
        return Err(s
            .error("lossless", "there is no virtual network that could be lossless")
            .hint("set server.virtual_network = true"));
    }
    Ok(v)
}

/// `host` and `vm` of a machine of the network.
pub(super) fn machine(t: &Section<'_>, server: &Server, counts: Counts) -> Result<(u32, u32)> {
    let host = t.count_u32("host", 0..=u32::MAX)?.ok_or_else(|| t.missing("host"))?;
    let vm = t.count_u32("vm", 0..=62)?.unwrap_or(0);
    if host >= counts.hosts {
        return Err(t.error("host", format!("there are {} servers, counted from 0", counts.hosts)));
    }
    if vm >= server.vms {
        return Err(t.error("vm", format!("a server has {} virtual machines, counted from 0", server.vms)));
    }
    Ok((host, vm))
}

pub(super) fn overlay(
    s: &Section<'_>,
    (virtual_network, zbridge): (bool, &ZBridge),
    (s_framing, framing): (&Section<'_>, &Framing),
) -> Result<Overlay> {
    let d = defaults::overlay(virtual_network, zbridge);
    let o = Overlay {
        enabled: s.bool("enabled")?.unwrap_or(d.enabled),
        encapsulation: s.quantity("encapsulation")?.unwrap_or(d.encapsulation),
        mtu: mtu(s)?.unwrap_or(d.mtu),
        tcp: d.tcp,
    };
    if o.enabled && !virtual_network {
        return Err(s
            .error("enabled", "an overlay needs virtual switches, and there is no virtual network")
            .hint("set server.virtual_network = true"));
    }
    let (inner, outer) = (o.mtu.0, framing.mtu.0);
    let tunnel = o.encapsulation.0.saturating_add(zbridge.growth());
    if o.enabled && inner.saturating_add(tunnel) > outer {
        let message = format!("{inner} B and {tunnel} B of tunnel do not fit the physical MTU of {outer} B");
        let error = match ["mtu", "encapsulation"].iter().any(|key| s.has(key)) {
            true => s.error_at(&["mtu", "encapsulation"], message),
            false => s_framing.error_at(&["mtu"], message),
        };
        let largest = outer.saturating_sub(tunnel);
        return Err(error.hint(match largest >= *MTU_RANGE.start() {
            true => format!("overlay.mtu is at most {largest} B here"),
            false => {
                let room = outer.saturating_sub(*MTU_RANGE.start() + zbridge.growth());
                format!("overlay.encapsulation is at most {room} B here")
            }
        }));
    }
    Ok(o)
}

fn mtu(s: &Section<'_>) -> Result<Option<Bytes>> {
    let mtu: Option<Bytes> = s.quantity("mtu")?;
    match mtu {
        Some(mtu) if !MTU_RANGE.contains(&mtu.0) => Err(s
            .error("mtu", format!("an MTU of {} B is out of range", mtu.0))
            .expected(format!("from {} B to {} B", MTU_RANGE.start(), MTU_RANGE.end()))),
        _ => Ok(mtu),
    }
}

pub(super) fn framing(s: &Section<'_>, set: ParameterSet) -> Result<Framing> {
    let d = defaults::framing(set);
    let kinds = [("ethernet", FramingKind::Ethernet), ("ppp", FramingKind::Ppp)];
    Ok(Framing { kind: s.choice("kind", &kinds)?.unwrap_or(d.kind), mtu: mtu(s)?.unwrap_or(d.mtu) })
}

pub(super) fn tcp(s: &Section<'_>, set: ParameterSet) -> Result<Tcp> {
    let presets = [("default", TcpPreset::Default), ("tuned", TcpPreset::Tuned)];
    let preset = s.choice("preset", &presets)?;
    if preset.is_some() && set != ParameterSet::Crisan2014Ch3 {
        return Err(s
            .error("preset", "these presets are of Table 3.2, which is of parameters = \"crisan2014-ch3\" alone")
            .hint("give rto_base, rto_min and rto_slop instead"));
    }
    let d = defaults::tcp(set, preset.unwrap_or(TcpPreset::Tuned));
    let congestion = [("newreno", Congestion::NewReno), ("cubic", Congestion::Cubic), ("vegas", Congestion::Vegas)];
    let t = Tcp {
        congestion: s.choice("congestion", &congestion)?.unwrap_or(d.congestion),
        rto_base: s.positive("rto_base")?.unwrap_or(d.rto_base),
        rto_min: s.positive("rto_min")?.unwrap_or(d.rto_min),
        rto_slop: s.quantity("rto_slop")?.unwrap_or(d.rto_slop),
        rto_max: s.positive("rto_max")?.unwrap_or(d.rto_max),
        tick: s.positive("tick")?.unwrap_or(d.tick),
        buffer: s.buffer("buffer")?.unwrap_or(d.buffer),
        max_buffer: s.buffer("max_buffer")?.unwrap_or(d.max_buffer),
        auto_buffer: s.bool("auto_buffer")?.unwrap_or(d.auto_buffer),
        tx_delay: s.quantity("tx_delay")?.unwrap_or(d.tx_delay),
        rx_delay: s.quantity("rx_delay")?.unwrap_or(d.rx_delay),
        delayed_ack: delayed_ack(s)?.unwrap_or(d.delayed_ack),
        ack_every: s.count_u32("ack_every", 1..=64)?.unwrap_or(d.ack_every),
        reassembly_limit: s.count_u32("reassembly_limit", 1..=65_535)?.unwrap_or(d.reassembly_limit),
        initial_window: initial_window(s)?.unwrap_or(d.initial_window),
        sack: s.bool("sack")?.unwrap_or(d.sack),
        timestamps: s.bool("timestamps")?.unwrap_or(d.timestamps),
        window_scaling: s.bool("window_scaling")?.unwrap_or(d.window_scaling),
        ecn: s.bool("ecn")?.unwrap_or(d.ecn),
        limited_transmit: s.bool("limited_transmit")?.unwrap_or(d.limited_transmit),
        prr: s.bool("prr")?.unwrap_or(d.prr),
        restart_after_idle: s.bool("restart_after_idle")?.unwrap_or(d.restart_after_idle),
        nagle: s.bool("nagle")?.unwrap_or(d.nagle),
        connection_cache: s.bool("connection_cache")?.unwrap_or(d.connection_cache),
    };
    check_tcp(s, &t)?;
    Ok(t)
}

/// How long an acknowledgement may wait, if it is said: a time, or `off`.
pub fn delayed_ack(s: &Section<'_>) -> Result<Option<Option<Duration>>> {
    match s.get("delayed_ack") {
        Some(Node { value: Value::Text(t), .. }) if t == "off" => Ok(Some(None)),
        _ => Ok(s.positive("delayed_ack")?.map(Some)),
    }
}

/// How much a connection may send at its start, if it is said.
pub fn initial_window(s: &Section<'_>) -> Result<Option<InitialWindow>> {
    match s.get("initial_window") {
        None => Ok(None),
        Some(Node { value: Value::Text(t), .. }) if t == "rfc3390" => Ok(Some(InitialWindow::Rfc3390)),
        Some(node @ Node { value: Value::Text(_), .. }) => Err(s.wrong(node, "\"rfc3390\" or a number of segments")),
        Some(node) => Ok(Some(InitialWindow::Segments(s.count_of(node, "initial_window", 1..=255)? as u32))),
    }
}

fn check_tcp(s: &Section<'_>, t: &Tcp) -> Result<()> {
    let ps = |d: sluicenet_proto::time::Duration| format!("{} us", d.as_us());
    for (name, value) in [("rto_min", t.rto_min), ("rto_base", t.rto_base), ("rto_slop", t.rto_slop)] {
        if value > t.rto_max {
            return Err(
                s.error_at(&[name, "rto_max"], format!("{name} ({}) is above rto_max ({})", ps(value), ps(t.rto_max)))
            );
        }
    }
    if t.buffer > t.max_buffer {
        return Err(s.error_at(
            &["buffer", "max_buffer"],
            format!("buffer ({} B) is above max_buffer ({} B)", t.buffer.0, t.max_buffer.0),
        ));
    }
    // A timeout is srtt + 4 rttvar + slop, of at least rto_min, and rto_base before there is a measurement: this is as short
    // as it gets.
    let floor = t.rto_min.max(t.rto_slop).min(t.rto_base);
    match t.delayed_ack {
        Some(delay) if delay >= floor => Err(s
            .error_at(
                &["delayed_ack", "rto_min", "rto_slop", "rto_base"],
                format!("delayed_ack ({}) is not below the shortest timeout ({})", ps(delay), ps(floor)),
            )
            .hint("a reply of an odd number of segments would time out every time")),
        _ => Ok(()),
    }
}

pub(super) fn udp(s: &Section<'_>, set: ParameterSet) -> Result<Udp> {
    let d = defaults::udp(set);
    Ok(Udp {
        buffer: s.buffer("buffer")?.unwrap_or(d.buffer),
        tx_delay: s.quantity("tx_delay")?.unwrap_or(d.tx_delay),
        rx_delay: s.quantity("rx_delay")?.unwrap_or(d.rx_delay),
    })
}

pub(super) fn tcplight(s: &Section<'_>, set: ParameterSet) -> Result<TcpLight> {
    let d = defaults::tcplight(set);
    Ok(TcpLight {
        buffer: s.buffer("buffer")?.unwrap_or(d.buffer),
        tx_delay: s.quantity("tx_delay")?.unwrap_or(d.tx_delay),
        rx_delay: s.quantity("rx_delay")?.unwrap_or(d.rx_delay),
    })
}

pub(super) fn record(s: &Section<'_>, counts: &Counts, warn: &mut Vec<Warning>) -> Result<Record> {
    let queues = s.positive("queues")?;
    let queue_ports = ports(s, "queue_ports", counts)?;
    if let (Some(node), None) = (s.get("queue_ports"), queues) {
        let (file, line) = s.doc.line_of(node.span);
        warn.push(Warning { file, line, message: "`queue_ports` has no effect without `queues`".into() });
    }
    if let Some(interval) = queues {
        let ports: u64 = match queue_ports.len() {
            0 => u64::from(counts.ports),
            _ => queue_ports
                .iter()
                .map(|p| match p {
                    PortSelector::Switch(_) => u64::from(counts.ports / counts.switches.max(1)),
                    PortSelector::Host(_) | PortSelector::SwitchPort(..) => 1,
                })
                .sum(),
        };
        check_samples(s, "queues", interval, ports)?;
    }
    let tcp: Option<Duration> = s.positive("tcp")?;
    let tcp_hosts = hosts(s, "tcp_hosts", counts)?;
    if let (Some(node), None) = (s.get("tcp_hosts"), tcp) {
        let (file, line) = s.doc.line_of(node.span);
        warn.push(Warning { file, line, message: "`tcp_hosts` has no effect without `tcp`".into() });
    }
    Ok(Record {
        flows: s.bool("flows")?.unwrap_or(true),
        queries: s.bool("queries")?.unwrap_or(true),
        ports: s.bool("ports")?.unwrap_or(true),
        queues,
        queue_ports,
        tcp,
        tcp_hosts,
        pauses: s.bool("pauses")?.unwrap_or(false),
        csv: s.bool("csv")?.unwrap_or(false),
        pcapng: ports(s, "pcapng", counts)?,
        part_rows: s.count_u32("part_rows", 1..=1 << 30)?.unwrap_or(defaults::PART_ROWS),
    })
}

pub(super) fn testbed(s: &Section<'_>) -> Result<Testbed> {
    let d = defaults::testbed();
    let kinds = [("namespaces", TenantKind::Namespaces), ("guests", TenantKind::Guests)];
    let switches = [("zvale", VirtualSwitch::Zvale), ("bridge", VirtualSwitch::Bridge)];
    Ok(Testbed {
        slowdown: s.count("slowdown", 1..=keys::SLOWDOWN_MAX)?.unwrap_or(d.slowdown),
        tenants: s.choice("tenants", &kinds)?.unwrap_or(d.tenants),
        switch: s.choice("switch", &switches)?.unwrap_or(d.switch),
        response: s.positive("response")?.unwrap_or(d.response),
    })
}

pub(super) fn flow_level(s: &Section<'_>) -> Result<FlowLevel> {
    let d = defaults::flow_level();
    let kinds = [("max-min", SharedRates::MaxMin), ("aimd", SharedRates::Aimd)];
    let tick: Duration = s.positive("tick")?.unwrap_or(d.tick);
    if tick < defaults::TICK_MIN {
        return Err(s
            .error("tick", "in so short a round trip a frame is more than links carry")
            .expected("at least 1 us"));
    }
    Ok(FlowLevel { rates: s.choice("rates", &kinds)?.unwrap_or(d.rates), tick })
}

/// `[control]`, of a routing that has one; what stands there is read and without effect where it has none.
pub(super) fn control(s: &Section<'_>, routing: Routing) -> Result<Option<Control>> {
    let d = defaults::control(routing);
    let period: Duration = s.positive("period")?.unwrap_or(d.period);
    if period < defaults::PERIOD_MIN {
        return Err(s.error("period", "so short a period is no control loop's").expected("at least 10 us"));
    }
    let iterations = s.count("iterations", 1..=keys::ITERATIONS_MAX)?.map_or(d.iterations, |n| n as u32);
    let large = s.positive("large")?.unwrap_or(d.large);
    let (dies, returns): (Option<Duration>, Option<Duration>) = (s.quantity("dies")?, s.quantity("returns")?);
    if returns.is_some() && dies.is_none_or(|dies| returns <= Some(dies)) {
        return Err(s.error("returns", "it returns before it dies").hint("`dies` says when it does"));
    }
    Ok(routing.has_control().then_some(Control { period, iterations, large, dies, returns }))
}

/// `[[failure]]`, of a fat-tree of `k` ports.
pub(super) fn failure(s: &Section<'_>, (topology, counts): (&Topology, &Counts)) -> Result<Failure> {
    let stands_in = matches!(topology.routing, Routing::NonBlocking | Routing::Hierarchical);
    let Some(k) = topology.fat_tree_k().filter(|&k| !stands_in && k <= FAT_TREE_PORTS_MAX && counts.external == 0)
    else {
        let error = s.error_here("what fails is told by the switches of a fat-tree, and this network is none");
        return Err(error.hint("topology.kind = \"fat-tree\" of at most 254 ports, without external hosts"));
    };
    if topology.routing == Routing::Random {
        let error = s.error_here("switches that choose anew for every frame go around nothing");
        return Err(error.hint("another topology.routing"));
    }
    let port = s.get("port").ok_or_else(|| s.missing("port"))?;
    let port = port_of(s, port, counts)?;
    match port {
        PortSelector::Host(_) => return Err(s.error("port", "a host has one link: name a switch, or a port of one")),
        PortSelector::SwitchPort(_, port) if port >= k => {
            return Err(s.error("port", format!("a switch has ports 0 to {}, not {port}", k - 1)));
        }
        // Edge switches are the first of all, and their lower ports lead to hosts.
        PortSelector::SwitchPort(switch, port) if switch < k * k / 2 && port < k / 2 => {
            return Err(s.error("port", "this port leads to a host: name a port between switches"));
        }
        _ => {}
    }
    let at = s.quantity("at")?.ok_or_else(|| s.missing("at"))?;
    let until: Option<Duration> = s.quantity("until")?;
    if until.is_some_and(|until| until <= at) {
        return Err(s.error("until", "it is back before it fails"));
    }
    let detection = s.quantity("detection")?.unwrap_or(defaults::DETECTION);
    Ok(Failure { port, at, until, detection })
}

/// Ports of the largest switch that has an address (Al-Fares 2012, 3.1.2).
const FAT_TREE_PORTS_MAX: u32 = sluicenet_proto::routing::fat_tree::PORTS_MAX;

/// Rows and columns of a source's table.
const CELLS_MAX: usize = 256;

/// `[[table]]`, of which every key names one of the axes. Where an override shortens or fixes an axis, what the file has of a source is cut to
/// the values that are left; there is nothing beside a value that the file does not have.
pub(super) fn table(s: &Section<'_>, axes: &[Shown]) -> Result<Table> {
    let axis = |name: &str| match s.text(name)? {
        None => Ok(None),
        Some(key) => axes.iter().find(|shown| shown.axis.key == key).map(Some).ok_or_else(|| {
            let shown: String = key.chars().take(60).collect();
            let keys: Vec<&str> = axes.iter().map(|shown| shown.axis.key.as_str()).collect();
            s.error(name, format!("`{shown}` is not varied by this scenario")).expected(keys.join(", "))
        }),
    };
    let columns = axis("columns")?.ok_or_else(|| s.missing("columns"))?;
    let rows = axis("rows")?;
    if rows.is_some_and(|rows| rows.axis.key == columns.axis.key) {
        return Err(s.error("rows", "rows and columns are the same axis"));
    }
    let mut source: Vec<Vec<Option<f64>>> = Vec::new();
    if let Some(node) = s.get("source") {
        let Value::List(lines) = &node.value else { return Err(s.wrong(node, "a list of lists of numbers")) };
        // The file's is of the file's axes; one set on top of it is of the axes as they are now.
        let of_file = !node.span.is_override();
        let length = |shown: &Shown| if of_file { shown.in_file } else { shown.axis.values.len() };
        let (height, width) = (rows.map_or(1, length), length(columns));
        if lines.len() != height || height > CELLS_MAX || width > CELLS_MAX {
            return Err(s.error("source", format!("{} rows where the sweep has {height}", lines.len())));
        }
        for line in lines {
            let Value::List(cells) = &line.value else { return Err(s.wrong(line, "a list of numbers")) };
            if cells.len() != width {
                let message = format!("{} numbers where the sweep has {width} columns", cells.len());
                return Err(s.doc.error(line.span, message));
            }
            let cell = |node: &Node| match &node.value {
                Value::Text(t) if t.is_empty() => Ok(None),
                _ => s.number_of(node, "source", 0.0..=1e12).map(Some),
            };
            source.push(cells.iter().map(cell).collect::<Result<_>>()?);
        }
        if of_file {
            let at = |row: Option<usize>, column: Option<usize>| source.get(row?)?.get(column?).copied().flatten();
            let line = |row| columns.places.iter().map(|&column| at(row, column)).collect();
            source = match rows {
                None => vec![line(Some(0))],
                Some(rows) => rows.places.iter().map(|&row| line(row)).collect(),
            };
        }
    }
    Ok(Table {
        title: s.text("title")?.unwrap_or("").to_string(),
        figure: s.choice("figure", &Figure::ALL)?.ok_or_else(|| s.missing("figure"))?,
        rows: rows.map(|rows| rows.axis.clone()),
        columns: columns.axis.clone(),
        source,
    })
}

/// Refuses samples so close that what waits to be written would not fit into memory.
fn check_samples(s: &Section<'_>, name: &str, interval: Duration, sampled: u64) -> Result<()> {
    let count = u128::from(sampled) * u128::from(EPOCH.as_ps()) / u128::from(interval.as_ps());
    if count <= u128::from(SAMPLES_MAX) {
        return Ok(());
    }
    Err(s
        .error(name, format!("{count} samples in every {} us are too many", EPOCH.as_us()))
        .expected(format!("at most {SAMPLES_MAX}"))
        .hint("sample less often, or name fewer in `queue_ports`"))
}

/// A count of hosts of the network, or a list of any of them.
pub(super) fn hosts(s: &Section<'_>, name: &str, counts: &Counts) -> Result<Option<Hosts>> {
    let Some(node) = s.get(name) else { return Ok(None) };
    let Value::List(list) = &node.value else {
        let n = s.count_of(node, name, 1..=u64::from(counts.hosts))?;
        return Ok(Some(Hosts::Count(n as u32)));
    };
    let mut seen = std::collections::BTreeSet::new();
    let mut out = Vec::new();
    for node in list {
        let n = s.count_of(node, name, 0..=u64::from(counts.endpoints() - 1))? as u32;
        if !seen.insert(n) {
            return Err(s.doc.error(node.span, format!("host {n} is listed twice")));
        }
        out.push(n);
    }
    if out.is_empty() {
        return Err(s.error(name, format!("`{name}` is empty")));
    }
    Ok(Some(Hosts::List(out)))
}

/// A list of ports by name.
fn ports(s: &Section<'_>, name: &str, counts: &Counts) -> Result<Vec<PortSelector>> {
    let Some(node) = s.get(name) else { return Ok(Vec::new()) };
    let Value::List(list) = &node.value else { return Err(s.wrong(node, "a list of ports")) };
    list.iter().map(|node| port_of(s, node, counts)).collect()
}

/// A port by name: `host N`, `switch N`, `switch N port P`.
fn port_of(s: &Section<'_>, node: &Node, counts: &Counts) -> Result<PortSelector> {
    const FORMS: &str = "\"host 3\", \"switch 2\" or \"switch 2 port 5\"";
    let Value::Text(text) = &node.value else { return Err(s.wrong(node, FORMS)) };
    let words: Vec<&str> = text.split_whitespace().take(5).collect();
    let none = || {
        let shown: String = text.chars().take(60).collect();
        s.doc.error(node.span, format!("`{shown}` names no port")).expected(FORMS)
    };
    let number = |word: &str, what: &str, count: u32| match word.parse::<u32>() {
        Ok(n) if n < count => Ok(n),
        Ok(n) if what == "port" => Err(s
            .doc
            .error(node.span, format!("there is no port {n}: no switch has more than {count}, counted from 0"))),
        Ok(n) => Err(s.doc.error(node.span, format!("there is no {what} {n}: {count} in all, counted from 0"))),
        Err(_) => Err(none()),
    };
    Ok(match words[..] {
        ["host", n] => PortSelector::Host(number(n, "host", counts.endpoints())?),
        ["switch", n] => PortSelector::Switch(number(n, "switch", counts.switches)?),
        ["switch", n, "port", p] => {
            // Which ports a switch has is known when the network is built; a bound holds already.
            PortSelector::SwitchPort(number(n, "switch", counts.switches)?, number(p, "port", counts.ports)?)
        }
        _ => return Err(none()),
    })
}
