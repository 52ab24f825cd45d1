//! Segments that tenants leave to be cut: whole where the receiver takes them, cut by the switch where it does not.

use crate::kernel::harness::{Running, possible};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::tap::{TapConfig, TapPort};
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_dataplane::port::Port;
use sluicenet_node::vale::WatchdogConfig;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Valve { offload: bool },
    Tap { offload: bool },
}
use End::{Tap, Valve};

impl End {
    fn open(self, lan: &Lan, i: usize) -> Box<dyn Port> {
        match self {
            Valve { offload } => {
                lan.veth(i).create(Lan::mac(i), 1500).unwrap();
                let config = ValveConfig { watchdog: WatchdogConfig::OFF, offload, ..ValveConfig::default() };
                Box::new(ValvePort::open(lan.veth(i), &config).unwrap())
            }
            Tap { offload } => {
                let config = TapConfig { offload, ..TapConfig::default() };
                Box::new(TapPort::create(lan.tenant(i), DEVICE, Lan::mac(i), 1500, &config).unwrap())
            }
        }
    }

    fn offloads(self) -> bool {
        matches!(self, Valve { offload: true } | Tap { offload: true })
    }
}

fn six(i: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, i as u16 + 1)
}

fn between(tag: &str, ends: [End; 2]) -> Running {
    let lan = Lan::create(tag, 2, Wiring::Bare).unwrap();
    let open = |(i, end): (usize, End)| {
        let port = end.open(&lan, i);
        lan.configure(i).unwrap();
        let set_up = || {
            let mut links = Links::open()?;
            links.add_address(DEVICE, six(i).into(), 64)?;
            links.add_neighbour(DEVICE, six(1 - i).into(), Lan::mac(1 - i))
        };
        lan.tenant(i).enter(set_up).unwrap().unwrap();
        port
    };
    let ports = ends.into_iter().enumerate().map(open).collect();
    Running::start(lan, ports)
}

/// Sends `bytes` from tenant 0 to tenant 1 and back, and checks them.
fn there_and_back(switch: &Running, at: SocketAddr, bytes: &[u8]) {
    let listener = switch.lan().tenant(1).enter(|| TcpListener::bind(at)).unwrap().unwrap();
    let stream = switch.lan().tenant(0).enter(|| TcpStream::connect(at)).unwrap().unwrap();
    let (peer, _) = listener.accept().unwrap();
    let back = std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut from, mut to) = (peer.try_clone().unwrap(), peer);
            std::io::copy(&mut from, &mut to).unwrap();
            to.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut from = stream.try_clone().unwrap();
        let receiving = scope.spawn(move || {
            let mut back = Vec::new();
            from.read_to_end(&mut back).unwrap();
            back
        });
        let mut to = stream;
        to.write_all(bytes).unwrap();
        to.shutdown(std::net::Shutdown::Write).unwrap();
        receiving.join().unwrap()
    });
    assert!(back == bytes, "{} bytes of {} came back as they were", back.len(), bytes.len());
}

#[test]
fn segments_arrive_whatever_the_two_ends_take() {
    if !possible() {
        return;
    }
    let (on, off) = (true, false);
    let bytes: Vec<u8> = (0..8 << 20).map(|at: usize| (at * 31 + at / 251) as u8).collect();
    for (n, ends) in [
        [Valve { offload: on }, Valve { offload: on }],
        [Tap { offload: on }, Tap { offload: on }],
        [Valve { offload: on }, Tap { offload: on }],
        [Valve { offload: on }, Valve { offload: off }],
        [Valve { offload: off }, Valve { offload: on }],
        [Valve { offload: on }, Tap { offload: off }],
        [Tap { offload: on }, Valve { offload: off }],
        [Valve { offload: off }, Tap { offload: off }],
    ]
    .into_iter()
    .enumerate()
    {
        let switch = between(&format!("whole{n}"), ends);
        for address in [Lan::address(1).into(), IpAddr::from(six(1))] {
            there_and_back(&switch, (address, 7000).into(), &bytes);
        }
        assert_eq!(switch.edge(), [], "{ends:?}");
        for (i, end) in ends.into_iter().enumerate() {
            let whole = ["whole_received", "whole_sent"].map(|name| switch.counter(i, name) > 0);
            // No tenant gets unsegmented frames that it does not take, and frames that it takes are not cut.
            assert_eq!(whole, [end.offloads(), end.offloads() && ends[1 - i].offloads()], "{ends:?} {i}");
            // Separate segments are joined for a tenant that takes joined ones, and for no other.
            match (end, ends[1 - i]) {
                (Valve { offload: false }, _) => assert_eq!(switch.counter(i, "joined_sent"), 0, "{ends:?} {i}"),
                (Valve { .. }, Valve { offload: false }) => {
                    assert!(switch.counter(i, "joined_sent") > 0, "{ends:?} {i}")
                }
                _ => {}
            }
            assert_eq!(switch.counter(i, "bad_frames"), 0, "{ends:?} {i}");
            assert_eq!(switch.counter(i, "too_long"), 0, "{ends:?} {i}");
        }
    }
}
