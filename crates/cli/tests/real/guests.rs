//! Real QEMU guests, under software emulation, that talk to each other through `sluicenet switch`.
//!
//! Needs the requirements of `sluicenet_testbed::guest`, and iperf3. The test reports a missing one, and is skipped.

use crate::switching::Running;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_testbed::guest::{Attachment, Contents, Guest, GuestConfig, GuestError, Image, Nic, Parts, program};
use sluicenet_vswitchd::control::{Answer, Request};
use sluicenet_vswitchd::status::Status;
use std::fs::Permissions;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A switch to which guests are added later. However slow the machine, no guest is given up.
const LATER: &str = "socket_folders = [\"FOLDER\"]\n[watchdog]\naction = \"off\"\n";
/// Time for a short action of a guest, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn said(guest: &mut Guest, command: &str) -> String {
    let outcome = guest.run(command, PATIENCE).unwrap();
    assert_eq!(outcome.code, 0, "{command}: {}", outcome.text);
    outcome.text
}

/// Adds a port and starts a guest at it: number `k`, with these programs, and `agent=true` or nothing besides.
fn guest(running: &Running, parts: &Parts, k: usize, programs: Vec<PathBuf>, besides: &str) -> Guest {
    let name = format!("guest{k}");
    let folder = running.folder.join(&name);
    std::fs::create_dir(&folder).unwrap();
    // A switch that root starts becomes another user, who makes the socket.
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let socket = folder.join("port.sock");
    let address = Ipv4Addr::new(10, 99, 0, k as u8 + 1);
    let settings =
        format!("kind=vhost-user socket={} mac=02:00:00:00:00:0{k} ip={address} {besides}", socket.display());
    let settings = settings.split_whitespace().map(str::to_owned).collect();
    let added = running.ask(Request::AddPort { name, settings });
    assert!(matches!(added, Answer::Ok(_)), "{added:?}");
    let (nic, attachment) = (Nic::Virtio, Attachment::VhostUser(socket));
    let contents = Contents { programs, files: Vec::new() };
    let image = Image::write(parts, &contents, &folder.join("image")).unwrap();
    let mac = [2, 0, 0, 0, 0, k as u8];
    let (prefix, mtu, offloads, memory_mib) = (24, 1500, true, image.memory_mib());
    let config = GuestConfig { mac, address, prefix, mtu, nic, attachment, offloads, queue: None, image, memory_mib };
    Guest::start(parts, &config, &folder, PATIENCE).unwrap()
}

/// The variable that gives a guest's program its role, besides its name: this very file is that program.
const ROLE: &str = "SLUICENET_TEST_ROLE";
const SINK: u16 = 7000;
const DATAGRAM: usize = 1400;

/// In a guest: sends so many datagrams, or receives them slowly, and prints their number.
fn play(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let (count, address) = (words[1].parse().unwrap(), words[2].parse::<Ipv4Addr>().unwrap());
    let to = SocketAddr::from((address, SINK));
    let here = Namespace::current().unwrap();
    match words[0] {
        "send" => {
            let mut sender = Sender::new(&here, 0, to, DATAGRAM).unwrap();
            while sender.sent() < count {
                sender.send(count - sender.sent()).unwrap();
            }
            println!("sent {}", sender.sent());
        }
        "receive" => {
            let mut sink = Sink::bind(&here, to, DATAGRAM, 1).unwrap();
            println!("ready");
            // At first it does not read at all, then slowly, and then as fast as it can.
            std::thread::sleep(Duration::from_secs(2));
            let mut quiet = 0;
            while sink.received() < count && quiet < 60 {
                if sink.received() < 2_000 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                quiet = if sink.receive(1).unwrap() == 0 { quiet + 1 } else { 0 };
            }
            println!("received {} out of order {}", sink.received(), sink.disordered());
        }
        _ => panic!("{role}"),
    }
}

/// A program without debugging information, for the memory of a guest.
fn stripped(program: &std::path::Path, running: &Running, name: &str) -> PathBuf {
    let to = running.folder.join(name);
    let done = Command::new("strip").arg("-o").arg(&to).arg(program).status().unwrap();
    assert!(done.success());
    to
}

#[test]
fn a_slow_program_in_a_guest_loses_nothing_with_an_agent() {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let found = || Ok((Parts::find(Nic::Virtio)?, program("iperf3")?, program("strip")?));
    let (parts, iperf3, _) = match found() {
        Ok(found) => found,
        Err(e @ GuestError::Missing(_)) => return println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    };
    let running = Running::start("agent", LATER);
    let started = Instant::now();
    let player = stripped(&std::env::current_exe().unwrap(), &running, "player");
    let sluicenet = stripped(env!("CARGO_BIN_EXE_sluicenet").as_ref(), &running, "sluicenet");
    let mut sender = guest(&running, &parts, 0, vec![player.clone(), iperf3.clone()], "");
    let mut receiver = guest(&running, &parts, 1, vec![player, sluicenet, iperf3], "agent=true");
    let me = "guests::a_slow_program_in_a_guest_loses_nothing_with_an_agent";
    let player = |role: String| format!("{ROLE}='{role}' player --exact {me} --nocapture");

    said(&mut receiver, "sluicenet agent --detection-time off >/tmp/agent 2>&1 &");
    running.until("the agent", |s| s.ports[1].counters.get("agent") == Some(&1));
    // Frames that wait in the sender's kernel for a neighbour's address may be lost there.
    said(&mut sender, "until ping -c 1 -W 1 10.99.0.2 >/dev/null; do :; done");
    let count = 6_000;
    // If the guest gets no processor for three seconds, its agent is silent and limits no sender any more. Then we try again.
    let agent_lost = || running.status().ports[1].counters["agent_lost"];
    let patiently = |attempt: &mut dyn FnMut() -> String| {
        for _ in 0..4 {
            let before = agent_lost();
            let found = attempt();
            if agent_lost() == before {
                return found;
            }
            println!("the guest with the agent had no processor for seconds: once more");
            running.until("the agent again", |s| s.ports[1].counters.get("agent") == Some(&1));
        }
        panic!("the agent was lost each time: {:?}", running.status());
    };
    let received = patiently(&mut || {
        said(&mut receiver, &format!("{} >/tmp/sink 2>&1 &", player(format!("receive {count} 10.99.0.2"))));
        said(&mut receiver, "until grep -q ready /tmp/sink; do :; done");
        let sent = said(&mut sender, &player(format!("send {count} 10.99.0.2")));
        assert!(sent.contains(&format!("sent {count}")), "{sent}");
        said(&mut receiver, "until grep -q received /tmp/sink; do sleep 0.1; done");
        said(&mut receiver, "grep -o 'received.*' /tmp/sink")
    });
    let status = running.status();
    let port = &status.ports[1].counters;
    assert!(received.contains(&format!("received {count} out of order 0")), "{received} {status:?}");
    // Frames were held for the agent.
    assert!(port["agent_held"] > 0 && port["agent_bad"] == 0, "{port:?}");
    // A program that reads as fast as it can, but not as fast as one can send.
    let mut flood = || {
        let json = said(&mut sender, "iperf3 -c 10.99.0.2 -u -b 0 -l 1400 -t 2 -J");
        let json: serde_json::Value = serde_json::from_str(json.trim()).expect(&json);
        let sum = &json["end"]["sum"];
        (sum["lost_packets"].as_i64().unwrap(), sum["packets"].as_i64().unwrap())
    };
    said(&mut receiver, "iperf3 -s -D");
    let mut flooded = (0, 0);
    patiently(&mut || {
        flooded = flood();
        String::new()
    });
    let (lost, of) = flooded;
    assert!(lost == 0 && of > 0, "iperf3: {lost} lost of {of}");
    // An agent that ends in order limits no sender any more.
    let before = agent_lost();
    said(&mut receiver, "killall sluicenet");
    running.until("the agent's end", |s| s.ports[1].counters["agent"] == 0);
    assert_eq!(agent_lost(), before);
    let time = started.elapsed().as_secs_f64();
    println!("with an agent: {received}iperf3: {lost} lost of {of}; {time:.0} s");

    // Without the agent the same programs lose datagrams.
    let (lost, of) = flood();
    said(&mut receiver, &format!("{} >/tmp/sink 2>&1 &", player(format!("receive {count} 10.99.0.2"))));
    said(&mut receiver, "until grep -q ready /tmp/sink; do :; done");
    said(&mut sender, &player(format!("send {count} 10.99.0.2")));
    said(&mut receiver, "until grep -q received /tmp/sink; do sleep 0.1; done");
    let received = said(&mut receiver, "grep -o 'received.*' /tmp/sink");
    println!("without: {received}iperf3: {lost} lost of {of}");
    assert!(!received.contains(&format!("received {count} ")), "{received}");
}

#[test]
fn two_guests_ping_and_stream_to_each_other_through_the_switch() {
    let (parts, iperf3) = match Parts::find(Nic::Virtio).and_then(|parts| Ok((parts, program("iperf3")?))) {
        Ok(found) => found,
        Err(e @ GuestError::Missing(_)) => return println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    };
    let running = Running::start("guests", LATER);
    let started = Instant::now();
    let mut zero = guest(&running, &parts, 0, vec![iperf3.clone()], "");
    let mut one = guest(&running, &parts, 1, vec![iperf3], "");
    assert!(matches!(zero.run("echo one\necho two", PATIENCE), Err(GuestError::BadCommand(_))));
    assert_eq!(zero.run("false", PATIENCE).unwrap().code, 1);
    said(&mut zero, "until ping -c 1 -W 1 10.99.0.2 >/dev/null; do :; done");
    let ping = said(&mut zero, "ping -c 20 -i 0.1 -s 1400 10.99.0.2");
    assert!(ping.contains("20 packets transmitted, 20 packets received, 0% packet loss"), "{ping}");

    // TCP both ways, with the offloads that the two have agreed on, and UDP as fast as it goes.
    said(&mut one, "iperf3 -s -D");
    let mut figures = Vec::new();
    for flags in ["", "-R", "-u -b 0 -l 1400"] {
        // The server begins to listen a while after its start, and does not listen between two clients.
        let mut measured = || -> serde_json::Value {
            let json = said(&mut zero, &format!("iperf3 -c 10.99.0.2 -t 2 -J {flags}"));
            serde_json::from_str(json.trim()).expect(&json)
        };
        let refused = |json: &serde_json::Value| json["error"].as_str().is_some_and(|e| e.contains("refused"));
        let json = (0..100).map(|_| measured()).find(|json| !refused(json)).expect("the server takes the client");
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
        // The switch does not keep the first guest's broadcasts until the second guest is there.
        let named = port.dropped.keys().all(|reason| reason == "flood_no_room");
        assert!(named, "{:?}", port.dropped);
    }
    // One guest is killed: the switch notices, and the other guest is none the worse.
    drop(one);
    running.until("the switch to notice", |s| s.ports[1].counters.get("connected") == Some(&0));
    assert_eq!(running.status().ports[0].counters.get("connected"), Some(&1));
    said(&mut zero, "true");
    let (frames, time) = (status.ledger.delivered, started.elapsed().as_secs_f64());
    println!("two guests: {frames} frames, none lost, {time:.0} s; {}", figures.join("; "));
}

#[test]
fn guests_killed_with_frames_in_flight_cost_nobody_else() {
    let parts = match Parts::find(Nic::Virtio) {
        Ok(parts) => parts,
        Err(e @ GuestError::Missing(_)) => return println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    };
    let running = Running::start("killed", LATER);
    let sluicenet = PathBuf::from(env!("CARGO_BIN_EXE_sluicenet"));
    let mut zero = guest(&running, &parts, 0, vec![sluicenet], "");
    let one = guest(&running, &parts, 1, vec![], "");
    let mut two = guest(&running, &parts, 2, vec![], "");
    said(&mut zero, "arp -s 10.99.0.2 02:00:00:00:00:01");
    let send = "sluicenet bench tenant send --to 10.99.0.2:7000 --number 0 --payload 1400 --seconds 600";
    said(&mut zero, &format!("{send} >/dev/null 2>&1 &"));
    running.until("frames for one", |s| s.ports[1].delivered > 2_000);

    // The receiver is killed while frames are on their way to it. They wait for it, and so does their sender, but no
    // other guest.
    drop(one);
    running.until("the switch to notice", |s| s.ports[1].counters["connected"] == 0);
    running.until("the sender to wait", |s| {
        s.ports[0].waits_for.iter().any(|port| port == "guest1") || s.ports[0].lent > 0
    });
    said(&mut two, "true");
    // The sender is killed while it sends: the switch first copies held frames out of the sender's memory.
    drop(zero);
    let balance = |s: &Status| s.ledger.accepted == s.ledger.delivered + s.ledger.dropped + s.ledger.queued;
    let left = running.until("the sums to balance", |s| s.ports[0].counters["connected"] == 0 && balance(s));
    assert_eq!(u64::from(left.ports[0].lent), left.ports[0].counters["evacuated"], "{left:?}");
    assert!(left.ports.iter().all(|p| p.counters["broken_queues"] == 0 && p.counters["memory_lost"] == 0), "{left:?}");
    // The receiver comes back, and gets the frames that waited for it: no frame of the dead sender is held any more.
    let folder = running.folder.join("again");
    std::fs::create_dir(&folder).unwrap();
    let config = GuestConfig {
        mac: [2, 0, 0, 0, 0, 1],
        address: [10, 99, 0, 2].into(),
        prefix: 24,
        mtu: 1500,
        nic: Nic::Virtio,
        attachment: Attachment::VhostUser(running.folder.join("guest1/port.sock")),
        offloads: true,
        queue: None,
        image: Image::write(&parts, &Contents::default(), &folder.join("image")).unwrap(),
        memory_mib: 192,
    };
    let _one = Guest::start(&parts, &config, &folder, PATIENCE).unwrap();
    let end =
        running.until("all to be delivered", |s| s.ports[0].lent == 0 && s.ports[1].output == [0; 8] && balance(s));
    assert!(end.ports[1].dropped.is_empty(), "{end:?}");
}
