//! A frame from the link at the end of a tunnel, and the same bytes as a frame of a tenant and as a datagram of the controller.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_proto::overlay::mapping::{Mapping, StationId};
use sluicenet_proto::overlay::neighbours::{Asked, Shown, reply, shown, solicits};
use sluicenet_proto::overlay::tunnel::{FrameFragments, Outer, Tunnel, TunnelConfig, too_big_answer};
use sluicenet_wire::controller::Repr;
use sluicenet_wire::ethernet::MacAddress;
use std::net::Ipv4Addr;

/// Addresses of zeros, so that frames that get far are found soon.
const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fuzz_target!(|bytes: &[u8]| {
    let config = TunnelConfig { server: NOBODY, mac: MacAddress::default(), mtu: 1500, reserved: 0 };
    let mut tunnel = Tunnel::new(config);
    tunnel.admit(NOBODY, MacAddress::default());
    tunnel.bind(0, 0).expect("nothing is bound yet");
    if let Outer::Inner(inner) = tunnel.decapsulate(&mut bytes.to_vec()) {
        assert!(inner.frame.end <= bytes.len() && inner.frame.len() >= 14);
    }
    let mut out = Vec::new();
    // In two pieces, of which the first has all headers.
    let (front, rest) = bytes.split_at(bytes.len().min(14 + 60 + 60));
    if tunnel.encapsulate([front, rest], 0, 7, NOBODY, &mut out).is_ok() {
        assert!(matches!(tunnel.decapsulate(&mut out), Outer::Inner(inner) if inner.from == NOBODY));
    }
    if tunnel.put_in_stream([front, rest], 0, 7, NOBODY, &mut out).is_ok() {
        assert!(tunnel.take_from_stream(&out, NOBODY).is_ok_and(|inner| inner.frame.end == out.len()));
    }
    if let Ok(inner) = tunnel.take_from_stream(bytes, NOBODY) {
        assert!(inner.frame.end == bytes.len() && inner.frame.len() >= 14);
    }
    if let Ok(Some(heard)) = tunnel.find_segment(bytes, 0) {
        assert!(heard.payload.end <= bytes.len() && heard.payload.len() == usize::from(heard.segment.len));
    }
    too_big_answer(bytes, tunnel.inner_mtu());
    if let Some(fragments) = FrameFragments::of(bytes, 68) {
        for k in 0..fragments.count() {
            fragments.emit(k, &mut out);
            assert!(out.len() <= 14 + 68);
        }
    }
    if let Some(Asked::For(ip, request)) = solicits(bytes) {
        let station = StationId { vni: 0, mac: MacAddress::default() };
        let answer = reply(&request, &Mapping { station, ip, location: NOBODY, epoch: 1, version: 1 });
        assert!(ip.is_loopback() || matches!(shown(&answer), Some(Shown::Address(own)) if own == ip));
    }
    shown(bytes);
    if let Ok(message) = Repr::parse(bytes) {
        assert_eq!(message.emit()[..64], bytes[..64]);
    }
});
