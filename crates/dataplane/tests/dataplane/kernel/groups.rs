//! Datagrams for groups, and of UDP-Lite, at full speed to programs that read slowly: nothing is lost.

use crate::kernel::harness::{Running, possible, receive_all, send_all};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::load::{Membership, Sender, Sink, Transport};
use sluicenet_dataplane::kernel::valve::ValveConfig;
use sluicenet_node::vale::WatchdogConfig;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const PORT: u16 = 7000;
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT);

fn running(tag: &str) -> Running {
    Running::valves(tag, 3, ValveConfig { watchdog: WatchdogConfig::OFF, ..ValveConfig::default() })
}

fn sender(switch: &Running, to: SocketAddr, payload: usize) -> Sender {
    let from = (IpAddr::V4(Lan::address(0)), 0).into();
    Sender::over(switch.lan().tenant(0), Transport::Udp, 0, from, to, payload).unwrap()
}

fn member(switch: &Running, i: usize, payload: usize) -> Sink {
    let member = Membership::V4(GROUP, Lan::address(i));
    Sink::over(switch.lan().tenant(i), Transport::Udp, ANY, Some(member), payload, 1).unwrap()
}

/// Sends to sinks that read at several paces; each gets everything, in order.
fn all_arrive(switch: &Running, sender: Sender, sinks: Vec<Sink>, count: u64) {
    let sinks: Vec<Sink> = std::thread::scope(|scope| {
        let slow = |(k, sink): (usize, Sink)| {
            let pause = Duration::from_micros(100 * (k as u64 + 1));
            scope.spawn(move || receive_all(sink, count, |_| std::thread::sleep(pause)))
        };
        let sinks: Vec<_> = sinks.into_iter().enumerate().map(slow).collect();
        send_all(sender, count);
        sinks.into_iter().map(|sink| sink.join().unwrap()).collect()
    });
    for sink in sinks {
        assert_eq!((sink.received(), sink.disordered()), (count, 0), "{:?}", switch.kernel_losses());
    }
    let sockets = switch.kernel_losses().into_iter().filter(|(_, name, _)| *name == "edge_sockets");
    assert_eq!(sockets.collect::<Vec<_>>(), []);
}

#[test]
fn multicast_to_slow_readers_in_several_namespaces_loses_nothing() {
    if !possible() {
        return;
    }
    let switch = running("groups");
    // Two sockets in one namespace, one in another.
    let sinks = vec![member(&switch, 1, 1_000), member(&switch, 2, 1_000), member(&switch, 2, 1_000)];
    all_arrive(&switch, sender(&switch, (GROUP, PORT).into(), 1_000), sinks, 100_000);
    assert!(switch.counter(1, "group") >= 100_000);
}

#[test]
fn broadcast_to_slow_readers_in_several_namespaces_loses_nothing() {
    if !possible() {
        return;
    }
    let switch = running("broad");
    let sink = |i: usize, payload| Sink::bind(switch.lan().tenant(i), ANY, payload, 1).unwrap();
    for (to, count) in [(Ipv4Addr::new(10, 77, 0, 255), 100_000), (Ipv4Addr::BROADCAST, 20_000)] {
        let sender = sender(&switch, (to, PORT).into(), 1_472);
        all_arrive(&switch, sender, vec![sink(1, 1_472), sink(2, 1_472)], count);
    }
    // In fragments, too.
    let sender = sender(&switch, (Ipv4Addr::BROADCAST, PORT).into(), 8_000);
    all_arrive(&switch, sender, vec![sink(1, 8_000), sink(2, 8_000)], 2_000);
}

#[test]
fn multicast_over_ipv6_loses_nothing() {
    if !possible() {
        return;
    }
    let switch = running("six6");
    let device = |i: usize| {
        let find = || Links::open().unwrap().get(DEVICE).unwrap().index;
        switch.lan().tenant(i).enter(find).unwrap()
    };
    for i in 0..3 {
        let own = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, i as u16 + 1));
        switch.lan().tenant(i).enter(|| Links::open().unwrap().add_address(DEVICE, own, 64).unwrap()).unwrap();
    }
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x1234);
    let sink = |i: usize| {
        let at = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, PORT, 0, 0).into();
        let member = Membership::V6(group, device(i));
        Sink::over(switch.lan().tenant(i), Transport::Udp, at, Some(member), 1_000, 1).unwrap()
    };
    let sinks = vec![sink(1), sink(2)];
    let to = SocketAddrV6::new(group, PORT, 0, device(0)).into();
    let sender = Sender::new(switch.lan().tenant(0), 0, to, 1_000).unwrap();
    all_arrive(&switch, sender, sinks, 20_000);
}

#[test]
fn udp_lite_loses_nothing_to_one_socket_nor_to_a_group() {
    if !possible() {
        return;
    }
    let switch = running("lite");
    // A socket of UDP at the same port is another one, and is not read.
    let _other = Sink::bind(switch.lan().tenant(1), Lan::socket(1, PORT), 1_472, 1).unwrap();
    let sink = |i: usize, member: Option<Membership>| {
        Sink::over(switch.lan().tenant(i), Transport::UdpLite, ANY, member, 1_472, 1).unwrap()
    };
    let sender = |to: SocketAddr| {
        let from = (IpAddr::V4(Lan::address(0)), 0).into();
        Sender::over(switch.lan().tenant(0), Transport::UdpLite, 0, from, to, 1_472).unwrap()
    };
    all_arrive(&switch, sender(Lan::socket(1, PORT)), vec![sink(1, None)], 50_000);
    let members = [1, 2].map(|i| sink(i, Some(Membership::V4(GROUP, Lan::address(i)))));
    all_arrive(&switch, sender((GROUP, PORT).into()), members.into(), 50_000);
}
