//! Opens the uplink of a switch as the file describes it.

use super::config::{
    Coordination, Credits, LimitersOf, Limiting, OverlayConfig, PORTS, TcpTunnel, UPLINK_NAME, UplinkConfig,
};
use super::helper::{Device, Facts, Handed, Helper};
use super::opened::{Begun, begin};
use sluicenet_dataplane::controller::{ControllerLink, first_request, unguessable};
use sluicenet_dataplane::kernel::packet::{OpenPacket, PacketDevice};
use sluicenet_dataplane::kernel::parts::Parts;
use sluicenet_dataplane::port::Port;
use sluicenet_dataplane::uplink::{TcpTunnelConfig, Uplink, UplinkKind};
use sluicenet_node::credits::CreditConfig;
use sluicenet_node::uplink::{GateConfig, Gated, Limits, Link, Managed, Queues};
use sluicenet_node::vale::ValeConfig;
use sluicenet_node::vtep::{Vtep, VtepConfig};
use sluicenet_proto::cee::source_control::RateLimiters;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::overlay::tunnel::TunnelConfig;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zcredit::ReceptionConfig;
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::coordinator::CoordinatorConfig;
use sluicenet_wire::ethernet::{FCS_LEN, HEADER_LEN, MacAddress};
use sluicenet_wire::xco::ENTRIES_MAX;
use sluicenet_wire::{vlan, zbridge};
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::SystemTime;

/// Buffers for frames of the device in each direction, for frames that arrive while the switch is busy.
const BUFFERS: u32 = 8192;
/// The most idle destinations of an endpoint whose channels are kept.
const DESTINATIONS: usize = 1024;
/// The length in bytes of the longest run that a device takes in one piece.
const RUN: u32 = 64 << 10;
/// Receive buffer of a priority, in addition to the headroom of flow control.
const BEYOND: u32 = 64 << 10;

/// Opens the uplink.
///
/// # Errors
/// The device, the namespace or the controller's socket cannot be opened, or the buffer is too small for flow control.
pub fn open(config: &UplinkConfig, vale: &ValeConfig) -> io::Result<Box<dyn Port>> {
    open_by(None, config, vale)
}

/// Opens the uplink, at a device that the helper opens if there is one.
pub(crate) fn open_by(
    helper: Option<&Arc<Helper>>,
    config: &UplinkConfig,
    vale: &ValeConfig,
) -> io::Result<Box<dyn Port>> {
    let device = Device::of_uplink(config);
    let opened = begin(UPLINK_NAME, device, helper).and_then(Begun::open);
    let Handed { parts: Parts { facts, mut descriptors }, .. } = opened.map_err(|e| io::Error::other(e.reason))?;
    let Facts::Packet(facts) = facts else {
        return Err(io::Error::other("the helper's answer is about another kind of port"));
    };
    let controller = config.overlay.is_some().then(|| descriptors.pop()).flatten().map(UdpSocket::from);
    let device = PacketDevice::of(OpenPacket::of(Parts { facts, descriptors })?, BUFFERS);
    let mtu = device.mtu();
    let max_frame = mtu + (HEADER_LEN + vlan::TAG_LEN + FCS_LEN) as u32;
    let mac = MacAddress(config.mac);
    let make = |buffer| Link::new(mac, config.rate, max_frame, config.response, config.lossless, buffer);
    let link = match config.buffer {
        Some(buffer) => make(buffer),
        None => make(0).or_else(|least| make(u32::try_from(least.needs).unwrap_or(u32::MAX - BEYOND) + BEYOND)),
    };
    let link = link.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let link = if config.segmentation { link.with_bursts(RUN) } else { link };
    if let Some(xco) = &config.xco {
        return Ok(assemble(config, vale, (device, controller), link, gate(xco, config.rate)?)?.into());
    }
    match manage(config)? {
        None => Ok(assemble(config, vale, (device, controller), link, Queues::default())?.into()),
        Some(managed) => Ok(assemble(config, vale, (device, controller), link, managed)?.into()),
    }
}

/// Rate limiters and transmission selection, if the file has either.
fn manage(config: &UplinkConfig) -> io::Result<Option<Managed<Vec<u8>>>> {
    let UplinkConfig { rate, limiting, ets, .. } = config;
    if limiting.is_none() && ets.is_none() {
        return Ok(None);
    }
    let limits = match limiting {
        None => None,
        Some(Limiting { limiters, limiter }) => {
            let mut random = unguessable()?;
            let (limiter, by_flow, seed) = (*limiter, *limiters == LimitersOf::Flow, random.next_u64());
            Some(Limits::new(Arc::new(RateLimiters { limiter, by_flow, seed }), *rate, random.next_u64()))
        }
    };
    Ok(Some(Managed::new(limits, ets.clone())))
}

/// The gate of XCo.
fn gate(xco: &Coordination, rate: Rate) -> io::Result<Gated> {
    let Coordination { host, ref controllers, lease, hysteresis, small_flow, priority, queue, late, ref stations } =
        *xco;
    let coordinator = CoordinatorConfig {
        node: host,
        rate_kbps: rate.as_kbps(),
        controllers: controllers.clone(),
        lease,
        hysteresis,
        small_kbps: small_flow.as_kbps(),
        entries: ENTRIES_MAX,
        flows: stations.len(),
        late,
        nonce: unguessable()?.next_u64() as u32,
    };
    let config = GateConfig { coordinator, stations: stations.clone(), queue: queue.as_bytes(), priority };
    Ok(Gated::new(Instant::ZERO, config))
}

/// An uplink with these queues.
fn assemble<K: UplinkKind>(
    config: &UplinkConfig,
    vale: &ValeConfig,
    (device, controller): (PacketDevice, Option<UdpSocket>),
    link: Link,
    kind: K,
) -> io::Result<Uplink<PacketDevice, K>> {
    let mtu = device.mtu().saturating_sub(kind.growth());
    let mut uplink = match &config.overlay {
        None => Uplink::trunk_of(device, link, kind),
        Some(overlay) => {
            let (vtep, controller) = vtep(overlay, link.address, mtu, controller)?;
            let mut uplink = Uplink::overlay_of(device, link, vtep, controller, kind);
            if let Some(credits) = &overlay.credits {
                let shown = (vale.slots / PORTS as u32).clamp(1, 16);
                let weights =
                    credits.weights.iter().map(|&((tenant, mac), weight)| ((tenant, MacAddress(mac)), weight));
                uplink.set_credits(credit_config(overlay, credits), credits.classes, shown, weights.collect());
            }
            if let Some(zbridge) = &overlay.zbridge {
                uplink.set_zbridge(zbridge.channel, zbridge.classes, unguessable()?);
            }
            if let Some(tunnel) = &overlay.tcp_tunnel {
                let tcp = tunnel.tcp(u16::try_from(mtu).unwrap_or(u16::MAX));
                let tcp = tcp.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, format!("[tcp_tunnel]: {e}")))?;
                let classes = if vale.lossless.is_empty() { PrioritySet::ALL } else { vale.lossless };
                let TcpTunnel { priority, user_timeout, .. } = *tunnel;
                uplink.set_tcp_tunnels(TcpTunnelConfig { tcp, priority, user_timeout, classes }, unguessable()?);
            }
            uplink
        }
    };
    uplink.set_watchdog(vale.watchdog);
    Ok(uplink)
}

/// Channel numbers of this run are larger than those of any earlier run, unless that began in the same 64 ms.
fn credit_config(overlay: &OverlayConfig, credits: &Credits) -> CreditConfig {
    let Credits { rx_queue, tx_queue, batch, classes, .. } = *credits;
    let usual = CreditConfig::new(rx_queue, tx_queue, batch, classes);
    // A frame that zBridge or TCP sends again keeps its credit until it arrives: longer than the time after which its
    // connection ends.
    let longest = overlay.zbridge.map_or(Duration::ZERO, |z| z.channel.timeout.saturating_mul(1 << 9));
    let longest = longest.max(overlay.tcp_tunnel.as_ref().map_or(Duration::ZERO, TcpTunnel::give_up_at_most));
    let ReceptionConfig { reclaim_after, deadline, .. } = usual.reception;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    CreditConfig {
        reception: ReceptionConfig {
            shares_processors: true,
            reclaim_after: reclaim_after.max(longest),
            deadline: deadline.max(longest),
            ..usual.reception
        },
        destinations: DESTINATIONS,
        first_channel: (since.as_millis() / 64) as u32,
        ..usual
    }
}

fn vtep(
    config: &OverlayConfig,
    mac: MacAddress,
    mtu: u32,
    controller: Option<UdpSocket>,
) -> io::Result<(Vtep<u32>, ControllerLink)> {
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    let reserved = if config.zbridge.is_some() { zbridge::GROWTH as u16 } else { 0 };
    let tunnel = TunnelConfig { server: config.address, mac, mtu, reserved };
    let mut vtep = Vtep::new(VtepConfig::new(tunnel), Key::new(&config.key), unguessable()?, first_request());
    for &(tenant, vni) in &config.networks {
        vtep.bind(tenant, vni)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, format!("network {vni}: {e}")))?;
    }
    for &(server, next_hop) in &config.servers {
        vtep.admit(server, MacAddress(next_hop));
    }
    let link = controller.ok_or_else(|| io::Error::other("the helper's answer has no socket to the controller"))?;
    let link = ControllerLink::of(link);
    Ok((vtep, link))
}
