//! Two switches, as processes, joined by a link with priority flow control. A program that reads slowly behind one
//! switch costs programs behind the other nothing but time.

use crate::switching::Running;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns;
use std::time::{Duration, Instant};

const PAYLOAD: usize = 1400;
/// At this rate, full-size frames fill the link many times over the rate at which the sink reads.
const RATE: &str = "1 Gb/s";
/// Datagrams of each sender.
const EACH: u64 = 6_000;

/// A switch with such tenants. However slow the machine, nothing is taken for stuck, and the room is for a neighbour as slow.
fn file(tag: &str, number: u8, tenants: &[usize]) -> String {
    let port = |&i: &usize| {
        format!(
            "[[port]]\nname = \"t{i}\"\nkind = \"veth\"\nnetns = \"sluice-{tag}-switch\"\ndevice = \"p{i}\"\n\
             tenant_netns = \"sluice-{tag}-{i}\"\ntenant_device = \"{DEVICE}\"\n"
        )
    };
    let ports: String = tenants.iter().map(port).collect();
    format!(
        "log = \"json\"\n[watchdog]\ndetection_time = \"3600 s\"\n[uplink]\ndevice = \"up{number}\"\n\
         netns = \"sluice-{tag}-switch\"\nmac = \"02:00:00:00:88:0{number}\"\nrate = \"{RATE}\"\nresponse = \"500 ms\"\n{ports}"
    )
}

#[test]
fn a_slow_reader_behind_another_switch_loses_nothing() {
    if let Err(e) = netns::may_make_namespaces() {
        eprintln!("SKIPPED: {e}");
        return;
    }
    let tag = "two";
    let lan = Lan::create(tag, 3, Wiring::Valve).unwrap();
    let joined = lan.switch().enter(|| {
        let mut links = Links::open()?;
        links.create_veth("up1", "up2", lan.switch())?;
        ["up1", "up2"].into_iter().try_for_each(|name| links.up(name))?;
        Ok::<_, KernelError>(())
    });
    joined.unwrap().unwrap();
    let [ours, theirs] = [(1, &[0, 1][..]), (2, &[2][..])]
        .map(|(number, tenants)| Running::start(&format!("{tag}{number}"), &file(tag, number, tenants)));
    for switch in [&ours, &theirs] {
        switch.until("everybody is there", |s| s.ports.iter().all(|p| p.number.is_some()));
    }
    let to = Lan::socket(2, 7000);
    let mut sink = Sink::bind(lan.tenant(2), to, PAYLOAD, 2).unwrap();
    let senders = [0, 1].map(|i| Sender::new(lan.tenant(i), i as u16, to, PAYLOAD).unwrap());
    std::thread::scope(|scope| {
        for mut sender in senders {
            scope.spawn(move || {
                while sender.sent() < EACH {
                    sender.send(EACH - sender.sent()).unwrap();
                }
            });
        }
        let mut last = Instant::now();
        while sink.received() < 2 * EACH {
            if sink.receive(1).unwrap() > 0 {
                last = Instant::now();
            }
            assert!(last.elapsed() < Duration::from_secs(60), "{} arrived of {}", sink.received(), 2 * EACH);
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    assert_eq!((sink.received(), sink.disordered()), (2 * EACH, 0));
    let [ours, theirs] = [&ours, &theirs].map(|switch| switch.status());
    let uplink = |status: &sluicenet_vswitchd::status::Status, name: &str| {
        let port = status.ports.iter().find(|p| p.name == "uplink").unwrap();
        port.counters.get(name).copied().unwrap_or(0)
    };
    for status in [&ours, &theirs] {
        // A broadcast copy, of frames that kernels send by themselves, waits for no room.
        let dropped = status.ports.iter().flat_map(|p| &p.dropped).filter(|&(reason, _)| reason != "flood_no_room");
        let dropped: u64 = dropped.map(|(_, frames)| frames).sum();
        assert_eq!((dropped, uplink(status, "headroom_exceeded")), (0, 0), "{status:?}");
    }
    let paused = [uplink(&theirs, "pauses_sent"), uplink(&ours, "pauses_received")];
    println!("{} datagrams, none lost; pauses sent and received: {paused:?}", 2 * EACH);
    assert!(paused.iter().all(|&frames| frames > 0), "the link was never paused: {paused:?}");
}
