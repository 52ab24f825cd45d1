//! A plain device: frames get through as they are, both ways.

use crate::kernel::harness::possible;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_dataplane::kernel::packet::{PacketDevice, Pieces};

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
    // Frames that the device never takes are counted and hold up no others.
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
    assert!(device.contains("the device eth7 in sluice-missing-0: No such device"), "{device}");
    let again = Namespace::create(lan.tenant(0).name()).unwrap_err().to_string();
    assert!(again.contains("File exists"), "{again}");
    assert!(lan.tenant(0).enter_with_sysfs(|| std::path::Path::new("/sys/class/net/eth0").exists()).unwrap());
    drop(lan);
    // Deleted namespaces are gone; other namespaces are left alone.
    assert!(!std::path::Path::new("/run/netns/sluice-missing-0").exists());
    netns::may_make_namespaces().unwrap();
}

/// A frame of a tunnel, tagged with a class, with a payload of `payload` bytes `number`.
fn tunnelled(number: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x81, 0x00, 0x60, 0x00, 0x08, 0x00, 0x45, 0];
    frame.extend(((28 + payload) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 172, 16, 0, 1, 172, 16, 0, 2]);
    let sum = sluicenet_wire::checksum::checksum(&frame[18..38]);
    frame[28..30].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0xc0, 0x01]);
    frame.extend(4789u16.to_be_bytes());
    frame.extend(((8 + payload) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(std::iter::repeat_n(number, payload));
    frame
}

/// Frames of the tunnel, until there are `count`.
fn tunnel_frames(device: &mut PacketDevice, count: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < count {
        let mut keep = |frame: &[u8]| found.extend(frame.starts_with(&[2, 0, 0, 0, 0, 9]).then(|| frame.to_vec()));
        device.receive(&mut keep).unwrap();
    }
    found
}

#[test]
fn runs_arrive_as_the_frames_that_were_sent() {
    if !possible() {
        return;
    }
    let lan = Lan::create("runs", 1, Wiring::Plain).unwrap();
    let open = |namespace, name, sends| PacketDevice::open_for(namespace, name, 256, Pieces::Runs { sends }).unwrap();
    let mut here = open(lan.switch(), "p0", true);
    let mut there = open(lan.tenant(0), DEVICE, false);
    // A run that a shorter frame ends, one in the midst of which is a pause, and single frames of every length.
    let mut pause = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 0x01, 0x01];
    pause.resize(60, 0xff);
    let mut sent: Vec<Vec<u8>> = (0..100).map(|n| tunnelled(n, 1_472)).collect();
    sent.extend([tunnelled(100, 700), tunnelled(101, 1_400), pause, tunnelled(102, 1_400), tunnelled(103, 1_400)]);
    sent.extend((1..20).map(|n| tunnelled(n, 100 * usize::from(n))).filter(|f| f.len() <= 1_518));
    assert!(sent.iter().all(|frame| here.send(frame)));
    assert_eq!(here.flush().unwrap(), sent.len());
    let mut received = tunnel_frames(&mut there, sent.len());
    for frame in &mut received {
        if frame[12..14] == [0x81, 0x00] {
            // Which of its run a frame was.
            frame[22..24].copy_from_slice(&[0, 0]);
            frame[28..30].copy_from_slice(&[0, 0]);
            let sum = sluicenet_wire::checksum::checksum(&frame[18..38]);
            frame[28..30].copy_from_slice(&sum.to_be_bytes());
        }
    }
    assert_eq!(received, sent);
    let (ours, theirs) = (here.counters(), there.counters());
    // 44 of the longest frames fit into an IPv4 packet.
    assert_eq!((ours.sent, ours.runs_sent, ours.runs_refused), (sent.len() as u64, 4, 0));
    assert_eq!((theirs.runs_received, theirs.bad, theirs.socket_drops), (4, 0, 0));
    // The other end sends none.
    assert!((0..9).all(|n| there.send(&tunnelled(n, 1_000))));
    assert_eq!((there.flush().unwrap(), there.counters().runs_sent), (9, 0));
    assert_eq!(tunnel_frames(&mut here, 9).len(), 9);
    assert_eq!(here.counters().runs_received, 0);
}

/// Checksums and segmentation that a kernel at the other end leaves undone are done, whatever its offloads are.
#[test]
fn a_kernel_that_leaves_checksums_and_segments_is_understood() {
    if !possible() {
        return;
    }
    let lan = Lan::create("whole", 2, Wiring::Plain).unwrap();
    let open = |i: &str| PacketDevice::open_for(lan.switch(), i, 512, Pieces::Runs { sends: true }).unwrap();
    let mut ends = [open("p0"), open("p1")];
    let done = std::sync::atomic::AtomicBool::new(false);
    let bytes = std::thread::scope(|scope| {
        let listener = lan.tenant(1).enter(|| std::net::TcpListener::bind(Lan::socket(1, 7000)).unwrap()).unwrap();
        let client = scope.spawn(|| {
            use std::io::Write;
            let mut stream =
                lan.tenant(0).enter(|| std::net::TcpStream::connect(Lan::socket(1, 7000)).unwrap()).unwrap();
            stream.write_all(&vec![7; 1 << 20]).unwrap();
        });
        let server = scope.spawn(move || {
            use std::io::Read;
            let mut all = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
            all.len()
        });
        scope.spawn(|| {
            let mut longest = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let [a, b] = &mut ends;
                let mut pass = |from: &mut PacketDevice, to: &mut PacketDevice| {
                    let mut each = |frame: &[u8]| {
                        longest = longest.max(frame.len());
                        to.send(frame);
                    };
                    from.receive(&mut each).unwrap();
                    to.flush().unwrap();
                };
                pass(a, b);
                pass(b, a);
            }
            assert_eq!(longest, 1_514);
        });
        client.join().unwrap();
        let bytes = server.join().unwrap();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        bytes
    });
    assert_eq!(bytes, 1 << 20);
}
