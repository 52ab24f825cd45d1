//! The three sets of defaults. Two are the tables of Crisan 2014 and are never merged; what a table leaves open is a
//! decision, marked [d] and explained in `docs/decisions.md`.

use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

use super::model::*;
use super::units::Bytes;

/// Traffic that the hosts of a pod send, over what the pod's uplink carries (Al-Fares 2012, 3.5.1: 96 Mb/s each, and 106.67).
pub const OVERSUBSCRIPTION: f64 = 3.6;

const KB: u64 = 1_000;

const fn kb(n: u64) -> Bytes {
    Bytes(n * KB)
}

/// 802.1Q (802.1Qbb) lets a station take 614.4 ns from a PFC frame to its effect above the MAC.
const PFC_RESPONSE: Duration = Duration::from_ps(614_400);

pub(super) fn link(set: ParameterSet) -> Link {
    let delay = match set {
        // 10 m of fibre at 5 ns/m [d]: neither table gives a cable.
        ParameterSet::Crisan2014Ch2 | ParameterSet::Crisan2014Ch3 => Duration::from_ns(50),
        ParameterSet::Plain => Duration::from_us(1),
    };
    // Tables 2.1 and 3.1: link speed 10 Gb/s.
    Link { rate: Rate::gbps(10), delay, bit_error_rate: 0.0 }
}

pub(super) fn switch(set: ParameterSet) -> Switch {
    match set {
        // Table 2.1: 100 KB a port, 100 ns; cut-through (2.5.2). Line 708 bounds an output queue by all inputs, but Q_eq of
        // 20 KB is 20 % of "the queue" (827) and replies are lost in both phases (1419): an output queue of 100 KB [d].
        ParameterSet::Crisan2014Ch2 => Switch {
            buffer: kb(100),
            policy: BufferPolicy::Output,
            delay: Duration::from_ns(100),
            forwarding: Forwarding::CutThrough,
        },
        // Table 3.1: 100 KB a port, 500 ns; the bound as above: with full sharing (3.2.1) nothing is lost in the first phase.
        ParameterSet::Crisan2014Ch3 => Switch {
            buffer: kb(100),
            policy: BufferPolicy::Output,
            delay: Duration::from_ns(500),
            forwarding: Forwarding::CutThrough,
        },
        ParameterSet::Plain => Switch {
            buffer: kb(150),
            policy: BufferPolicy::Output,
            delay: Duration::ZERO,
            forwarding: Forwarding::StoreAndForward,
        },
    }
}

pub(super) fn pfc(set: ParameterSet) -> Pfc {
    let (xoff, xon) = match set {
        // Table 2.1: max threshold 97 KB, min threshold 80 KB. Table 3.1 has none: the same switch [d].
        ParameterSet::Crisan2014Ch2 | ParameterSet::Crisan2014Ch3 => (kb(97), kb(80)),
        ParameterSet::Plain => (kb(100), kb(80)),
    };
    Pfc {
        enabled: false,
        lossless: 0xff,
        xoff,
        xon,
        headroom: None,
        response: PFC_RESPONSE,
        quanta: u16::MAX,
        deadlock: Deadlock::Refuse,
    }
}

pub(super) fn adapter(set: ParameterSet) -> Adapter {
    let delay = match set {
        ParameterSet::Crisan2014Ch2 | ParameterSet::Crisan2014Ch3 => Duration::from_ns(500),
        ParameterSet::Plain => Duration::ZERO,
    };
    Adapter { buffer: kb(512), delay, queueing: Queueing::Voq, when_full: WhenFull::Stop, resequencing: None }
}

/// How long frames that overtook others wait where the scenario does not say [d]: longer than any queue of the tables
/// takes to drain (100 KB at 10 Gb/s: 80 us a hop), shorter than any retransmission timeout.
pub(super) const RESEQUENCING_TIMEOUT: Duration = Duration::from_ms(1);

pub(super) fn server(set: ParameterSet) -> Server {
    match set {
        // Slide 19: an HLA, an MLA, a worker and a background machine on each.
        ParameterSet::Crisan2014Ch3 => Server { vms: 4, virtual_network: true, lossy_vnic: None },
        ParameterSet::Crisan2014Ch2 | ParameterSet::Plain => {
            Server { vms: 1, virtual_network: false, lossy_vnic: None }
        }
    }
}

pub(super) fn vswitch() -> VSwitch {
    VSwitch { slots: 1024, lossless: false, vm_rate: Rate::gbps(10), slow: Vec::new() }
}

/// 5.3.3: a receive queue of 512 frames. The source names no transmit queue: as long as a port's of the vSwitch [d].
pub(super) fn zcredit() -> ZCredit {
    ZCredit { enabled: false, rx_queue: 512, batch: 8, tx_queue: 1024, weight: Vec::new() }
}

/// 5.3.4: P is 1024, and the timeout three orders of magnitude above the base round trip, which is 27 us (5.2.1). The buffer is larger
/// than what the network holds; the source does not say how large: four periods [d].
pub(super) fn zbridge() -> ZBridge {
    ZBridge { enabled: false, period: 1024, buffer: 4096, timeout: Duration::from_ms(27) }
}

/// 3.2.3.1: 54 B added, and the MTU lowered from 1500 to 1446 B; by zBridge's header below that, where there is one.
pub(super) fn overlay(virtual_network: bool, zbridge: &ZBridge) -> Overlay {
    Overlay { enabled: virtual_network, encapsulation: Bytes(54), mtu: Bytes(1446 - zbridge.growth()), tcp: false }
}

pub(super) fn framing(set: ParameterSet) -> Framing {
    let mtu = match set {
        // Table 2.1: a frame of 1500 B, 18 of which are header and FCS [d].
        ParameterSet::Crisan2014Ch2 => Bytes(1482),
        // Table 3.1: a frame of 1518 B.
        ParameterSet::Crisan2014Ch3 | ParameterSet::Plain => Bytes(1500),
    };
    Framing { kind: FramingKind::Ethernet, mtu }
}

/// Timeouts, and the delay of acknowledgements which must stay below them.
struct Rto {
    base: Duration,
    min: Duration,
    slop: Duration,
    delayed_ack: Duration,
}

fn rto(set: ParameterSet, preset: TcpPreset) -> Rto {
    let ms = Duration::from_ms;
    match (set, preset) {
        // Table 2.1. FreeBSD delays an acknowledgement by 100 ms, more than these timeouts: half the shortest instead [d].
        (ParameterSet::Crisan2014Ch2, _) => Rto { base: ms(10), min: ms(2), slop: ms(20), delayed_ack: ms(5) },
        // Table 3.2.
        (ParameterSet::Crisan2014Ch3, TcpPreset::Tuned) => {
            Rto { base: ms(20), min: ms(2), slop: ms(20), delayed_ack: ms(10) }
        }
        (ParameterSet::Crisan2014Ch3, TcpPreset::Default) => {
            Rto { base: ms(3000), min: ms(30), slop: ms(200), delayed_ack: ms(100) }
        }
        // RFC 6298 starts at 1 s; Linux's least is 200 ms, its delayed acknowledgement 40 ms.
        (ParameterSet::Plain, _) => Rto { base: ms(1000), min: ms(200), slop: ms(0), delayed_ack: ms(40) },
    }
}

pub(super) fn tcp(set: ParameterSet, preset: TcpPreset) -> Tcp {
    let rto = rto(set, preset);
    let plain = set == ParameterSet::Plain;
    Tcp {
        congestion: if plain { Congestion::Cubic } else { Congestion::NewReno },
        rto_base: rto.base,
        rto_min: rto.min,
        rto_slop: rto.slop,
        // FreeBSD's TCPTV_REXMTMAX; Linux's TCP_RTO_MAX is 120 s.
        rto_max: Duration::from_secs(if plain { 120 } else { 64 }),
        tick: Duration::from_us(1),
        buffer: kb(128),
        max_buffer: if plain { kb(4_000) } else { kb(256) },
        auto_buffer: true,
        tx_delay: if plain { Duration::ZERO } else { Duration::from_ns(9_500) },
        rx_delay: if plain { Duration::ZERO } else { Duration::from_us(24) },
        delayed_ack: Some(rto.delayed_ack),
        ack_every: 2,
        reassembly_limit: if plain { 65_535 } else { 200 },
        initial_window: if plain { InitialWindow::Segments(10) } else { InitialWindow::Rfc3390 },
        sack: true,
        timestamps: true,
        window_scaling: true,
        ecn: false,
        limited_transmit: true,
        // Linux has it, FreeBSD 9, the sources' stack, has not.
        prr: plain,
        restart_after_idle: true,
        // Servers of small messages turn it off; FreeBSD's own default is on [d].
        nagle: false,
        connection_cache: !plain,
    }
}

pub(super) fn udp(set: ParameterSet) -> Udp {
    // Table 3.1; Table 2.1 has no UDP, and chapter 2's stack is the same.
    let plain = set == ParameterSet::Plain;
    Udp {
        buffer: kb(128),
        tx_delay: if plain { Duration::ZERO } else { Duration::from_ns(9_500) },
        rx_delay: if plain { Duration::ZERO } else { Duration::from_us(24) },
    }
}

/// The source has no buffer that could stop a sender before the network does, and no latency of this stack: more than a network of
/// these tables holds, and UDP's latency, a stack that acknowledges nothing either [d].
pub(super) fn tcplight(set: ParameterSet) -> TcpLight {
    let Udp { tx_delay, rx_delay, .. } = udp(set);
    TcpLight { buffer: kb(16_000), tx_delay, rx_delay }
}

/// A program that is woken by a frame stands still after tens of microseconds; on a machine whose cores others want, too, after
/// some of the scheduler's slices [d].
pub(super) fn testbed() -> Testbed {
    Testbed {
        slowdown: 1,
        tenants: TenantKind::Namespaces,
        switch: VirtualSwitch::Zvale,
        response: Duration::from_ms(50),
    }
}

/// Exact, and the quicker of the two. Al-Fares 2012, 4.3.5: a network with a round trip of 100 us, in which 15 MB/s are a segment.
pub(super) fn flow_level() -> FlowLevel {
    FlowLevel { rates: SharedRates::MaxMin, tick: Duration::from_us(100) }
}

/// A step is a frame a tick: below this it is more than links carry.
pub(super) const TICK_MIN: Duration = Duration::from_us(1);

/// Of a control loop: the periods are the source's (Al-Fares 2012, figure 3.11 and 4.3.4), the rest ours: steps as many as the
/// last line of its table 4.6, and a large flow one that a reply is not.
pub(super) fn control(routing: Routing) -> Control {
    let seconds = if matches!(routing, Routing::FlowClassifier | Routing::FlowScheduler) { 1 } else { 5 };
    Control {
        period: Duration::from_secs(seconds),
        iterations: 10_000,
        large: Bytes(100_000),
        dies: None,
        returns: None,
    }
}

/// Until a neighbour is missed: three of BFD's messages that do not come (RFC 5880), of 10 ms each.
pub(super) const DETECTION: Duration = Duration::from_ms(30);

/// The shortest period: what takes as long as a few frames is none.
pub(super) const PERIOD_MIN: Duration = Duration::from_us(10);

/// Rows of a part file: a few MiB of a table.
pub(super) const PART_ROWS: u32 = 1 << 20;
