//! A plain device: frames get through as they are, both ways.

use crate::harness::possible;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_dataplane::kernel::packet::PacketDevice;

/// Receives until a frame of `kind` comes.
fn next(device: &mut PacketDevice, kind: [u8; 2]) -> Vec<u8> {
    let mut found = None;
    while found.is_none() {
        device.receive(&mut |frame| found = found.take().or((frame[12..14] == kind).then(|| frame.to_vec()))).unwrap();
    }
    found.unwrap()
}

#[test]
fn pfc_tagged_and_long_frames_pass_unchanged() {
    if !possible() {
        return;
    }
    let lan = Lan::create("wire", 1, Wiring::Plain).unwrap();
    let mut here = PacketDevice::open(lan.switch(), "p0", 256).unwrap();
    let mut there = PacketDevice::open(lan.tenant(0), DEVICE, 256).unwrap();
    assert_eq!(here.mtu(), 1500);
    // A PFC frame (802.1Qbb), a priority tag, and the longest there is.
    let mut pfc = vec![0x01, 0x80, 0xc2, 0, 0, 0x01, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 0x01, 0x01, 0, 0x08];
    pfc.resize(60, 0xff);
    let mut tagged = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x81, 0x00, 0x60, 0x05, 0x88, 0xb5];
    tagged.resize(300, 7);
    let mut long = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb6];
    long.extend((0..1500).map(|i| i as u8));
    for frame in [&pfc, &tagged, &long] {
        let kind = [frame[12], frame[13]];
        assert!(here.send(frame));
        assert_eq!(here.flush().unwrap(), 1);
        assert_eq!(&next(&mut there, kind), frame);
        assert!(there.send(frame));
        assert_eq!(there.flush().unwrap(), 1);
        assert_eq!(&next(&mut here, kind), frame);
    }
    // What the device never takes is counted and stands in nobody's way.
    long.resize(1515, 0);
    assert!(here.send(&long[..1515]) && here.send(&pfc));
    assert_eq!(here.flush().unwrap(), 1);
    assert_eq!(next(&mut there, [0x88, 0x08]), pfc);
    assert_eq!((here.counters().too_long, there.counters().socket_drops), (1, 0));
}

#[test]
fn a_full_outbox_says_so() {
    if !possible() {
        return;
    }
    let lan = Lan::create("outbox", 1, Wiring::Plain).unwrap();
    let mut device = PacketDevice::open(lan.switch(), "p0", 2).unwrap();
    let frame = [2; 60];
    assert!(device.send(&frame) && device.send(&frame) && !device.has_room() && !device.send(&frame));
    assert_eq!(device.flush().unwrap(), 2);
    assert!(device.send(&frame));
}

#[test]
fn what_is_missing_is_said() {
    if !possible() {
        return;
    }
    let gone = Namespace::open("sluice-there-is-none").unwrap_err().to_string();
    assert!(gone.contains("/run/netns/sluice-there-is-none: No such file"), "{gone}");
    let named = Namespace::create("mine").unwrap_err().to_string();
    assert!(named.contains("must begin with `sluice-`"), "{named}");
    let lan = Lan::create("missing", 1, Wiring::Plain).unwrap();
    let device = PacketDevice::open(lan.tenant(0), "eth7", 2).unwrap_err().to_string();
    assert!(device.contains("the device eth7: No such device"), "{device}");
    let again = Namespace::create(lan.tenant(0).name()).unwrap_err().to_string();
    assert!(again.contains("File exists"), "{again}");
    assert!(lan.tenant(0).enter_with_sysfs(|| std::path::Path::new("/sys/class/net/eth0").exists()).unwrap());
    drop(lan);
    // What is deleted is gone; what was never ours is left alone.
    assert!(!std::path::Path::new("/run/netns/sluice-missing-0").exists());
    netns::may_make_namespaces().unwrap();
}
