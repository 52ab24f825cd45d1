//! Real QEMU guests, under software emulation, that talk to each other through `sluicenet switch`.
//!
//! Needs what `sluicenet_lab::testbed::guest` needs, and iperf3; what is missing is said, and the test skipped.

mod switching;

use sluicenet_lab::switch::control::{Answer, Request};
use sluicenet_lab::testbed::guest::{Attachment, Guest, GuestConfig, GuestError, Nic, Parts, program};
use std::time::{Duration, Instant};
use switching::Running;

/// For a guest to do what takes it a moment, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn said(guest: &mut Guest, command: &str) -> String {
    let outcome = guest.run(command, PATIENCE).unwrap();
    assert_eq!(outcome.code, 0, "{command}: {}", outcome.text);
    outcome.text
}

#[test]
fn two_guests_ping_and_stream_to_each_other_through_the_switch() {
    let (parts, iperf3) = match Parts::find(Nic::Virtio).and_then(|parts| Ok((parts, program("iperf3")?))) {
        Ok(found) => found,
        Err(e @ GuestError::Missing(_)) => return println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    };
    // However slow the machine, nobody is given up.
    let running = Running::start("guests", "[watchdog]\naction = \"off\"\n");
    let started = Instant::now();
    let mut guests = ["zero", "one"].iter().enumerate().map(|(k, name)| {
        let folder = running.folder.join(format!("guest-{name}"));
        std::fs::create_dir(&folder).unwrap();
        let socket = running.folder.join(format!("{name}.sock"));
        let settings =
            format!("kind=vhost-user socket={} mac=02:00:00:00:00:0{k} ip=10.99.0.{}", socket.display(), k + 1);
        let settings = settings.split(' ').map(str::to_owned).collect();
        let added = running.ask(Request::AddPort { name: (*name).into(), settings });
        assert!(matches!(added, Answer::Ok(_)), "{added:?}");
        let config = GuestConfig {
            mac: [2, 0, 0, 0, 0, k as u8],
            address: [10, 99, 0, k as u8 + 1].into(),
            nic: Nic::Virtio,
            attachment: Attachment::VhostUser(socket),
            programs: vec![iperf3.clone()],
            memory_mib: 192,
        };
        Guest::start(&parts, &config, &folder, PATIENCE).unwrap()
    });
    let (mut zero, mut one) = (guests.next().unwrap(), guests.next().unwrap());
    drop(guests);
    assert!(matches!(zero.run("echo one\necho two", PATIENCE), Err(GuestError::BadCommand(_))));
    assert_eq!(zero.run("false", PATIENCE).unwrap().code, 1);
    said(&mut zero, "until ping -c 1 -W 1 10.99.0.2 >/dev/null; do :; done");
    let ping = said(&mut zero, "ping -c 20 -i 0.1 -s 1400 10.99.0.2");
    assert!(ping.contains("20 packets transmitted, 20 packets received, 0% packet loss"), "{ping}");

    // TCP both ways, with the offloads that the two have agreed on, and UDP as fast as it goes.
    said(&mut one, "iperf3 -s -D && sleep 1");
    let mut figures = Vec::new();
    for flags in ["", "-R", "-u -b 0 -l 1400"] {
        let json = said(&mut zero, &format!("iperf3 -c 10.99.0.2 -t 2 -J {flags}"));
        let json: serde_json::Value = serde_json::from_str(json.trim()).expect(&json);
        let end = &json["end"];
        let bits = end["sum_received"]["bits_per_second"].as_f64().or(end["sum"]["bits_per_second"].as_f64());
        assert!(bits.is_some_and(|bits| bits > 0.0), "{json:#}");
        figures.push(format!("iperf3 {flags}: {:.0} Mb/s", bits.unwrap() / 1e6));
    }
    let status = running.until("nothing to wait", |s| s.ledger.queued == 0);
    let ledger = &status.ledger;
    assert_eq!(ledger.accepted, ledger.delivered + ledger.dropped);
    for port in &status.ports {
        let never = ["bad_message", "broken_queues", "bad_vnet_hdr", "bad_length", "too_long", "memory_lost"];
        for (name, expected) in never.map(|name| (name, 0)).into_iter().chain([("connections", 1)]) {
            assert_eq!(port.counters.get(name), Some(&expected), "{}: {name}", port.name);
        }
        assert!(port.refused.is_empty(), "{:?}", port.refused);
        // What the first sends to all before the second is there is not waited with.
        let named = port.dropped.keys().all(|reason| reason == "flood_no_room");
        assert!(named, "{:?}", port.dropped);
    }
    // One is killed: the switch notices, and the other is none the worse.
    drop(one);
    running.until("the switch to notice", |s| s.ports[1].counters.get("connected") == Some(&0));
    assert_eq!(running.status().ports[0].counters.get("connected"), Some(&1));
    said(&mut zero, "true");
    let (frames, time) = (status.ledger.delivered, started.elapsed().as_secs_f64());
    println!("two guests: {frames} frames, none lost, {time:.0} s; {}", figures.join("; "));
}
