//! Congestion management as the scenario wants it: queues, congestion points, sources.

use super::{Network, Plan, lossless, wire_bytes};
use sluicenet_node::switch::{
    Adaptive, Alpha, AnyRoute, ClassRule, ClassRules, CongestionPoint, CongestionPoints, Reserved, Select, SharedConfig,
};
use sluicenet_proto::aqm::RedConfig;
use sluicenet_proto::cee::qcn::{self, CongestionPointConfig, ReactionPointConfig};
use sluicenet_proto::cee::source_control::{RateLimiters, SourceConfig};
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::paths::{PathPorts, Paths};
use sluicenet_proto::routing::reactive::Reactive;
use sluicenet_proto::routing::switch_ar::{self, AdaptiveConfig};
use sluicenet_proto::time::Duration;
use sluicenet_scenario::{
    Above, Limiters, NotCapable, Qcn, Quantity, RATE_MAX, Red, Result, Routing, Sampling, Scenario, SharedBuffer,
    Split, Wred, WredEcn,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rules of each output of the `i`th switch.
pub(super) fn rules(network: &Network, i: usize) -> Vec<Arc<ClassRules>> {
    let (s, plan) = (&network.scenario, &network.plan);
    let node = plan.hosts() + i as u32;
    let (largest, _) = wire_bytes(s);
    let mut known: BTreeMap<u64, Arc<ClassRules>> = BTreeMap::new();
    let of_port = |port: usize| {
        let rate = plan.rate(node, port as u16);
        known.entry(rate.as_bps()).or_insert_with(|| Arc::new(of_link(s, rate.time_for(largest.into())))).clone()
    };
    (0..plan.ports(node)).map(of_port).collect()
}

/// The rules of an output that sends a full frame in `packet_time`.
fn of_link(s: &Scenario, packet_time: Duration) -> ClassRules {
    let lossless = lossless(s);
    core::array::from_fn(|class| rule(s, class as Priority, lossless, packet_time))
}

fn rule(s: &Scenario, class: Priority, lossless: PrioritySet, packet_time: Duration) -> Option<ClassRule> {
    if let Some(profile) = s.wred.iter().find(|profile| profile.priorities >> class & 1 != 0) {
        return Some(wred(profile, packet_time));
    }
    if let Some(red) = &s.red {
        return Some(of_red(red, lossless.contains(class), packet_time));
    }
    let threshold = s.switch.ecn_threshold?.as_bytes() as u32;
    Some(ClassRule { select: Select::Threshold(threshold), marks: true, drops: false })
}

fn of_red(red: &Red, is_lossless: bool, packet_time: Duration) -> ClassRule {
    let drops_above = red.above.map_or(!is_lossless, |above| above == Above::Drop);
    let select = Select::Red(RedConfig {
        min_threshold: red.min_threshold.as_bytes() as u32,
        max_threshold: red.max_threshold.as_bytes() as u32,
        weight: red.weight,
        max_probability: red.max_probability,
        counts: red.count,
        drops_above,
        packet_time,
    });
    let drops = red.not_ecn_capable.map_or(!is_lossless, |word| word == NotCapable::Drop);
    ClassRule { select, marks: true, drops }
}

/// SONiC's switches judge by the queue as a frame finds it, and draw independently for each frame.
fn wred(profile: &Wred, packet_time: Duration) -> ClassRule {
    let marks = profile.ecn != WredEcn::None;
    let select = Select::Red(RedConfig {
        min_threshold: profile.green_min_threshold.as_bytes() as u32,
        max_threshold: profile.green_max_threshold.as_bytes() as u32,
        weight: 1.0,
        max_probability: f64::from(profile.green_drop_probability) / 100.0,
        counts: false,
        drops_above: false,
        packet_time,
    });
    ClassRule { select, marks, drops: profile.wred_green_enable }
}

/// The congestion points of the `i`th switch, if the scenario has QCN.
pub(super) fn points(s: &Scenario, i: usize) -> Option<CongestionPoint> {
    let qcn = s.qcn.as_ref()?;
    let sampling = match qcn.sampling {
        Sampling::Bytes => qcn::Sampling::Bytes(qcn.sample_bytes.as_bytes() as u32),
        Sampling::Frames => qcn::Sampling::Frames(qcn.sample_frames),
    };
    let point = CongestionPointConfig {
        queue_size_set_point: qcn.set_point.as_bytes() as u32,
        feedback_weight: qcn.weight,
        sampling,
    };
    let classes = PrioritySet(!(1 << qcn.priority));
    let config = CongestionPoints { point, classes, priority: qcn.priority };
    Some(CongestionPoint::new(config, s.seed, i))
}

/// The control of sources that react to notifications, if there is one.
pub(super) fn source(s: &Scenario, plan: &Plan, qcn: &Qcn) -> Option<Arc<dyn SourceConfig>> {
    if s.topology.routing.is_by_source() {
        let limiter = (s.topology.routing == Routing::R3c2).then(|| limiter(qcn));
        // The scenario's reader has checked that the paths have names.
        let paths = plan.tree().and_then(Paths::new)?;
        return Some(Arc::new(Reactive { paths, limiter, period: qcn.path_timeout, seed: s.seed }));
    }
    if qcn.limiters == Limiters::Off {
        return None;
    }
    Some(Arc::new(RateLimiters { limiter: limiter(qcn), by_flow: qcn.limiters == Limiters::Flow, seed: s.seed }))
}

/// Settings of a rate limiter; its highest rate is that of its link.
fn limiter(qcn: &Qcn) -> ReactionPointConfig {
    ReactionPointConfig {
        max_rate: RATE_MAX,
        min_rate: qcn.min_rate,
        byte_reset: qcn.byte_reset.as_bytes() as u32,
        byte_reset_after: qcn.byte_reset.as_bytes() as u32 / 2,
        time_reset: qcn.time_reset,
        threshold: qcn.threshold,
        ai_rate: qcn.ai_rate,
        hai_rate: qcn.hai_rate,
        gd: qcn.gd,
        min_dec_fac: qcn.min_decrease_factor,
        extra_fast_recovery: qcn.extra_fast_recovery,
    }
}

/// The choice of outputs in the `i`th switch.
pub(super) fn route(s: &Scenario, plan: &Plan, i: usize) -> AnyRoute {
    let router = plan.switches()[i].router.clone();
    let routing = s.topology.routing;
    let Some(qcn) = s.qcn.as_ref().filter(|_| routing.needs_notifications()) else { return router.into() };
    let Some(tree) = plan.tree() else { return router.into() };
    let Some(ports) = tree.switches().nth(i).map(|name| PathPorts::new(tree, name)) else { return router.into() };
    if routing.is_by_source() {
        return AnyRoute::by_source(router, ports);
    }
    let split = match qcn.split {
        Split::Binary => switch_ar::Split::Binary,
        Split::Fraction => switch_ar::Split::Fraction,
    };
    let rng = Rng::from_words(&[s.seed, i as u64, u64::from_be_bytes(*b"adaptive")]);
    let config = AdaptiveConfig { age: qcn.path_timeout, split };
    AnyRoute::Adaptive(Box::new(Adaptive::new(router, ports, config, rng)))
}

/// Refuses limiters that could not limit.
pub(super) fn check_limiters(s: &Scenario, plan: &Plan) -> Result<()> {
    let rates = (0..plan.hosts()).flat_map(|host| plan.ends(host).map(|end| end.link.rate));
    let Some(slowest) = rates.min_by_key(|rate| rate.as_bps()) else { return Ok(()) };
    let of_qcn = s.qcn.as_ref().map(|qcn| ("qcn.min_rate", qcn.min_rate));
    let of_dcqcn = s.dcqcn.as_ref().map(|dcqcn| ("dcqcn.rpg_min_rate", dcqcn.rpg_min_rate));
    for (key, least) in of_qcn.into_iter().chain(of_dcqcn) {
        if least.as_bps() > slowest.as_bps() {
            let (least, slowest) = (least.written(), slowest.written());
            let message = format!("a limiter's lowest rate of {least} is above the rate of a server's link");
            return Err(s.locations.error(key, message).expected(format!("at most {slowest}")));
        }
    }
    Ok(())
}

/// Bytes of the `i`th switch for data that still arrives after pauses.
fn headroom_of(network: &Network, i: usize) -> u64 {
    let classes = lossless(&network.scenario).iter().count() as u64;
    network.ports(i).iter().map(|port| u64::from(port.marks.capacity - port.marks.xoff) * classes).sum()
}

/// The memory of the `i`th switch: all of it, and those parts of it that are not shared.
pub(super) fn memory(network: &Network, i: usize) -> (u64, u64, u64) {
    let (buffer, switch) = (&network.scenario.buffer, &network.plan.switches()[i]);
    let headroom = match buffer.headroom_pool {
        Some(bytes) => bytes.as_bytes(),
        None => headroom_of(network, i),
    };
    let reserved = reserved(buffer);
    let lossless = lossless(&network.scenario).iter().count() as u64;
    let of_port = lossless * u64::from(reserved.lossless) + (PRIORITIES as u64 - lossless) * u64::from(reserved.lossy);
    let reserved = of_port * network.plan.ports(network.plan.hosts() + i as u32) as u64;
    let of_level = buffer.levels.iter().find(|of| of.0 == u32::from(switch.level)).map(|of| of.1);
    let size = of_level.or(buffer.size).map_or(0, |bytes| bytes.as_bytes());
    let size = buffer.shared.map_or(size, |shared| shared.as_bytes() + headroom + reserved);
    (size, headroom, reserved)
}

/// Bytes of its own that a priority has.
fn reserved(buffer: &SharedBuffer) -> Reserved {
    Reserved {
        lossless: buffer.reserved.as_bytes() as u32,
        lossy: buffer.lossy_reserved().as_bytes() as u32,
        egress: buffer.egress_reserved().as_bytes() as u32,
    }
}

/// The division of the memory of the `i`th switch.
pub(super) fn shared_buffer(network: &Network, i: usize) -> SharedConfig {
    let buffer = &network.scenario.buffer;
    let (size, headroom, of_groups) = memory(network, i);
    let alpha = |dynamic_th: f64| Alpha::new(libm::exp2(dynamic_th));
    SharedConfig {
        shared: size.saturating_sub(headroom + of_groups) as u32,
        reserved: reserved(buffer),
        headroom_pool: headroom as u32,
        lossless: alpha(buffer.lossless_dynamic_th),
        lossy: alpha(buffer.lossy_dynamic_th),
        egress: alpha(buffer.egress_dynamic_th),
        xon_offset: buffer.xon_offset.as_bytes() as u32,
        xon: buffer.xon.map_or(0, |xon| xon.as_bytes() as u32),
    }
}

/// Refuses memory that does not hold the headroom, the reserved bytes and a frame.
pub(super) fn check_buffers(network: &Network) -> Result<()> {
    let s = &network.scenario;
    if !s.buffer.is_on() {
        return Ok(());
    }
    let frame = s.framing.mtu.as_bytes() + s.framing.header_bytes();
    for i in 0..network.plan.switches().len() {
        let (size, headroom, reserved) = memory(network, i);
        let least = headroom + reserved + frame;
        if size < least {
            let name = network.plan.name(network.plan.hosts() + i as u32);
            let message = format!(
                "{size} B of memory do not hold {headroom} B of headroom, {reserved} B of reserved bytes and a frame of \
                 {frame} B in {name}"
            );
            let hint = "fewer lossless priorities, shorter links or a smaller buffer.headroom_pool need less headroom";
            let key = if s.buffer.shared.is_some() { "buffer.shared" } else { "buffer.size" };
            return Err(s.locations.error(key, message).expected(format!("at least {least} B")).hint(hint));
        }
    }
    Ok(())
}
