//! `sluicenet bump` between the devices of a link: what passes while it lives, when it is killed, and when it is back.

use crate::command::{command, expect};
use serde_json::Value;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_dataplane::shm::Client;
use sluicenet_testkit::netns::{Namespaces, missing, system};
use sluicenet_testkit::{Dir, netbump_program};
use sluicenet_vswitchd::control::{Answer, Attachment, Request, ask};
use sluicenet_vswitchd::status::Status;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PAYLOAD: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts and the namespace of a bump between them.
struct Cable {
    spaces: Namespaces,
    folder: PathBuf,
}

impl Cable {
    fn new(test: &str) -> Option<Cable> {
        let lack = missing().or_else(|| netns::may_make_namespaces().err().map(|e| e.to_string()));
        if let Some(why) = lack {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let spaces = Namespaces::new(test, 3);
        let [a, bump, b] = [&spaces.0[0], &spaces.0[1], &spaces.0[2]];
        for (host, device, address) in [(a, "west", "10.9.0.1/24"), (b, "east", "10.9.0.2/24")] {
            system(&format!("ip -n {bump} link add {device} type veth peer name eth0 netns {host}")).unwrap();
            system(&format!("ip -n {host} addr add {address} dev eth0")).unwrap();
            system(&format!("ip netns exec {bump} sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1")).unwrap();
            system(&format!("ip netns exec {host} sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1")).unwrap();
            system(&format!("ip netns exec {host} ethtool -K eth0 tx off tso off gso off")).unwrap();
            system(&format!("ip -n {host} link set eth0 up")).unwrap();
            system(&format!("ip -n {bump} link set {device} up")).unwrap();
        }
        let folder = std::env::temp_dir().join(format!("sluicenet-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Some(Cable { spaces, folder })
    }

    fn control(&self) -> PathBuf {
        self.folder.join("b.sock")
    }

    /// Starts a bump with these keys in [bump] and waits until it serves.
    fn start(&self, keys: &str, more: &str, options: &[&str]) -> Bump {
        let netns = &self.spaces.0[1];
        let file = self.folder.join("b.toml");
        let port = |name: &str| format!("[[port]]\nname = \"{name}\"\nkind = \"packet\"\nnetns = \"{netns}\"\n");
        let text = format!(
            "[bump]\ncontrol = \"{}\"\n{}{keys}\n{}{}[[link]]\na = \"west\"\nb = \"east\"\n{more}",
            self.control().display(),
            if keys.contains("others = \"9 Gb/s\"") { "" } else { "sleep_after = \"50 us\"\n" },
            port("west"),
            port("east")
        );
        std::fs::write(&file, text).unwrap();
        let mut args = vec!["bump", "run", file.to_str().unwrap()];
        args.extend(options);
        let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let bump = Bump { child, control: self.control() };
        bump.wait_for(|_| true);
        bump
    }

    fn traffic(&self) -> (Sender, Sink) {
        let to: SocketAddr = "10.9.0.2:7000".parse().unwrap();
        let space = |n: usize| Namespace::open(&self.spaces.0[n]).unwrap();
        let sink = Sink::bind(&space(2), to, PAYLOAD, 1).unwrap();
        (Sender::new(&space(0), 0, to, PAYLOAD).unwrap(), sink)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
        // The record of the wire, whose devices go with their namespaces.
        let space = Namespace::open(&self.spaces.0[1]);
        if let Ok(space) = space {
            for device in ["west", "east"] {
                let _ = sluicenet_dataplane::kernel::wire::Wire::remove(&space, device);
            }
        }
    }
}

struct Bump {
    child: Child,
    control: PathBuf,
}

impl Bump {
    fn status(&self) -> Option<Status> {
        match ask(&self.control, &Request::Show) {
            Ok(Answer::Status(status)) => Some(*status),
            _ => None,
        }
    }

    fn wait_for(&self, is: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.status().filter(&is) {
                return status;
            }
            assert!(Instant::now() < until, "the bump does not answer");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(&self, pid: u32) {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

impl Drop for Bump {
    fn drop(&mut self) {
        // The supervisor passes this on; a dead child needs none.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Sends until `wanted` more datagrams have arrived, slowly enough for any socket; whether they came in time.
fn passes(sender: &mut Sender, sink: &mut Sink, wanted: u64, patience: Duration) -> bool {
    let (goal, until) = (sink.received() + wanted, Instant::now() + patience);
    while sink.received() < goal && Instant::now() < until {
        let _ = sender.send(8);
        std::thread::sleep(Duration::from_micros(200));
        while matches!(sink.receive(32), Ok(n) if n > 0) && sink.received() < goal {}
    }
    sink.received() >= goal
}

#[test]
fn a_killed_bump_is_a_wire_until_another_one_comes_or_clean_removes_it() {
    let Some(cable) = Cable::new("bumpwire") else { return };
    // Of another test `clean` would remove the wire, too.
    let _lock = crate::testbed_lock();
    let keys = "others = \"10 Gb/s\"\nwhen_dead = \"wire\"";
    let (mut sender, mut sink) = cable.traffic();
    let bump = cable.start(keys, "[[app]]\nkind = \"dctcp\"\n", &["--once"]);
    assert!(passes(&mut sender, &mut sink, 500, PATIENCE), "through the bump");
    let status = bump.wait_for(|s| s.ledger.delivered >= 500);
    assert!(status.bump.unwrap().queues.iter().any(|q| q.packets >= 500));
    bump.kill(status.pid);
    drop(bump);
    let disordered = sink.disordered();
    assert!(passes(&mut sender, &mut sink, 500, PATIENCE), "over the wire in the kernel");
    assert!(sink.disordered() <= disordered + 1, "once, at the death");
    // A second bump takes the frames from the wire.
    let bump = cable.start(keys, "[[app]]\nkind = \"dctcp\"\n", &["--once"]);
    assert!(passes(&mut sender, &mut sink, 500, PATIENCE), "through the second bump");
    bump.wait_for(|s| s.ledger.delivered >= 500);
    // Ended in order, it leaves the wire too.
    drop(bump);
    assert!(passes(&mut sender, &mut sink, 500, PATIENCE), "over the wire again");
    let (cleaned, _) = expect(0, &["clean"]);
    assert!(cleaned.contains("the wire at west") && cleaned.contains("the wire at east"), "{cleaned}");
    assert!(!passes(&mut sender, &mut sink, 1, Duration::from_secs(1)), "the wire is gone");
}

#[test]
fn a_killed_bump_that_blocks_is_started_again_by_its_supervisor() {
    let Some(cable) = Cable::new("bumpblock") else { return };
    let (mut sender, mut sink) = cable.traffic();
    let bump = cable.start("others = \"10 Gb/s\"", "", &[]);
    assert!(passes(&mut sender, &mut sink, 100, PATIENCE));
    let first = bump.wait_for(|_| true).pid;
    bump.kill(first);
    let second = bump.wait_for(|s| s.pid != first).pid;
    assert!(second != first && passes(&mut sender, &mut sink, 100, PATIENCE), "started again");
    let (out, _) = expect(0, &["bump", "stop", "--control", cable.control().to_str().unwrap()]);
    assert_eq!(out, "stopped\n");
    drop(bump);
    assert!(!passes(&mut sender, &mut sink, 1, Duration::from_secs(1)), "blocked");
}

#[test]
fn a_program_on_a_cable_runs_as_a_user_of_its_own_and_is_started_again() {
    let Some(cable) = Cable::new("bumpprogram") else { return };
    let (mut sender, mut sink) = cable.traffic();
    let dir = Dir::new("bump-program");
    // It ends at the thousandth frame of each process.
    let source = "#include <netbump.h>\n#include <stdlib.h>\n#include <unistd.h>\nNETBUMP_PROGRAM\n
        int netbump_open(int argc, const char *const *argv) { return argc != 1 || atoi(argv[0]) != 7; }
        int netbump_process(Packet *p, vQueue *vq)
        {
            static int n;
            (void)p; (void)vq;
            if (getuid() < (1u << 31) || getgid() != getuid())
                return NETBUMP_DROP;
            if (++n == 1000)
                abort();
            return NETBUMP_FORWARD;
        }";
    let file = netbump_program(&dir, "mine", source);
    let file = file.to_str().unwrap();
    let keys = "others = \"10 Gb/s\"\nprogram_deadline = \"10 s\"";
    let bump = cable.start(keys, "", &["--once", "--app", file, "--args", "7"]);
    let lane = |status: &Status, counter: &str| -> u64 {
        status.bump.iter().flat_map(|b| &b.lanes).filter_map(|lane| lane.counters.get(counter)).sum()
    };
    assert!(passes(&mut sender, &mut sink, 500, PATIENCE));
    let until = Instant::now() + PATIENCE;
    while lane(&bump.wait_for(|_| true), "starts") < 3 {
        assert!(passes(&mut sender, &mut sink, 100, PATIENCE) && Instant::now() < until);
    }
    let status = bump.wait_for(|_| true);
    assert!(lane(&status, "crashes") >= 1 && lane(&status, "called") >= 500);
    assert_eq!(status.ledger.dropped, 0, "{status:?}");
    drop(bump);
    // A program that refuses its arguments is an error at the start.
    let file_of_bump = cable.folder.join("b.toml");
    let (_, why) = expect(1, &["bump", "run", "--once", file_of_bump.to_str().unwrap(), "--app", file]);
    assert!(why.contains("refuses its arguments"), "{why}");
}

#[test]
fn a_bump_shows_its_queues_and_takes_a_new_map() {
    let Some(cable) = Cable::new("bumpmap") else { return };
    let (mut sender, mut sink) = cable.traffic();
    let show = |n: usize| {
        let out =
            std::process::Command::new("ip").args(["-n", &cable.spaces.0[n], "-j", "link", "show", "eth0"]).output();
        let links: Value = serde_json::from_slice(&out.unwrap().stdout).unwrap();
        links[0]["address"].as_str().unwrap().to_owned()
    };
    let map = |rate: &str| {
        format!(
            "[[map]]\nport = 3\nrate = \"{rate}\"\nmacs = [\"{}\"]\n[[map]]\nport = 4\nrate = \"1 Gb/s\"\nmacs = [\"{}\"]\n",
            show(2),
            show(0)
        )
    };
    let bump = cable.start("pipelines = 2\nbuffer = \"100 KB\"", &map("1 Gb/s"), &["--once"]);
    assert!(passes(&mut sender, &mut sink, 200, PATIENCE));
    let control = cable.control();
    let control = control.to_str().unwrap();
    let status = crate::command::json(0, &["bump", "status", "--control", control]);
    assert_eq!(status["bump"]["loops"], 2);
    let (queues, _) = expect(0, &["bump", "queues", "--control", control]);
    assert!(queues.lines().count() == 4 && queues.contains("100,000"), "{queues}");
    let packets = |port: &str| {
        let queues = crate::command::json(0, &["bump", "queues", "--control", control]);
        queues.as_array().unwrap().iter().find(|q| q["port"] == port).unwrap().clone()
    };
    assert!(packets("3")["packets"].as_u64().unwrap() >= 200);
    let file = cable.folder.join("b.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&map("1 Gb/s"), &map("2 Gb/s"))).unwrap();
    let (said, _) = expect(0, &["bump", "reload", "--control", control]);
    assert_eq!(said, "2 stations, 1 virtual queues begin anew\n");
    assert_eq!(packets("3")["rate_bps"], 2_000_000_000u64);
    let top = crate::command::json(0, &["top", "--once", "--interval", "0.1", "--control", control]);
    assert_eq!(top["ports"][0]["kind"], "packet");
    let (_, error) = expect(2, &["bump", "capture", "west", "-w", "/dev/null", "--control", control]);
    assert!(error.contains("several pipelines"), "{error}");
    drop(bump);
}

/// Sends steadily while `event` happens half a second later; returns frames lost, and the longest silence at the sink in ms.
fn gap_of(sender: &mut Sender, sink: &mut Sink, event: impl FnOnce() + Send) -> (u64, f64) {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (sent_before, received_before) = (sender.sent(), sink.received());
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // A burst of frames that waited meanwhile must fit into the sink's socket, some 250 of them.
                let _ = sender.send(1);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            event();
            std::thread::sleep(Duration::from_millis(1_500));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            if matches!(sink.receive(32), Ok(n) if n > 0) {
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
        }
        longest
    });
    while matches!(sink.receive(32), Ok(n) if n > 0) {}
    let lost = (sender.sent() - sent_before).saturating_sub(sink.received() - received_before);
    (lost, longest.as_secs_f64() * 1e3)
}

/// Prints the frames that are lost and the silence when a bump is killed and when it comes back. No rate and no time is
/// asserted. Run it with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn the_gap_at_a_death_and_at_the_return() {
    let Some(cable) = Cable::new("bumpgap") else { return };
    let (mut sender, mut sink) = cable.traffic();
    let keys = "others = \"10 Gb/s\"\nwhen_dead = \"wire\"";
    for turn in 0..5 {
        let bump = cable.start(keys, "", &["--once"]);
        assert!(passes(&mut sender, &mut sink, 100, PATIENCE));
        let (nothing, calm) = gap_of(&mut sender, &mut sink, || {});
        let pid = bump.wait_for(|_| true).pid;
        let (died, dead) = gap_of(&mut sender, &mut sink, || bump.kill(pid));
        drop(bump);
        let mut back = None;
        let (returned, again) = gap_of(&mut sender, &mut sink, || back = Some(cable.start(keys, "", &["--once"])));
        println!(
            "GAP turn {turn}: alive {nothing} lost {calm:.2} ms; killed {died} lost {dead:.2} ms; back {returned} lost {again:.2} ms"
        );
        drop(back);
    }
    for turn in 0..5 {
        let space = Namespace::open(&cable.spaces.0[1]).unwrap();
        for device in ["west", "east"] {
            let _ = sluicenet_dataplane::kernel::wire::Wire::remove(&space, device);
        }
        let bump = cable.start("others = \"10 Gb/s\"", "", &[]);
        assert!(passes(&mut sender, &mut sink, 100, PATIENCE));
        let pid = bump.wait_for(|_| true).pid;
        let (died, dead) = gap_of(&mut sender, &mut sink, || bump.kill(pid));
        println!("GAP turn {turn}: blocks, and its supervisor starts it again: {died} lost {dead:.2} ms");
    }
}

/// Prints how many small datagrams a second cross the cable as it is, and how long one takes.
fn print_speed(what: &str, sender: &mut Sender, sink: &mut Sink) {
    if !passes(sender, sink, 100, PATIENCE) {
        println!("SPEED {what}: nothing passes");
        return;
    }
    while matches!(sink.receive(32), Ok(n) if n > 0) {}
    let mut times = Vec::new();
    for _ in 0..3_000 {
        let start = Instant::now();
        if matches!(sender.send(1), Ok(1)) && matches!(sink.receive(1), Ok(1)) {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
    let (sent, received, time) = (sender.sent(), sink.received(), Duration::from_secs(2));
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while started.elapsed() < time {
                let _ = sender.send(32);
            }
        });
        while started.elapsed() < time {
            let _ = sink.receive(32);
        }
    });
    while matches!(sink.receive(32), Ok(n) if n > 0) {}
    let (sent, received) = (sender.sent() - sent, sink.received() - received);
    println!(
        "SPEED {what}: {:.0} frames/s sent, {:.0} received; one frame {:.1} us in the median, {:.1} us at 99 %",
        sent as f64 / 2.0,
        received as f64 / 2.0,
        at(0.5),
        at(0.99)
    );
}

/// Prints the speed of a bump and of others in its place, between two veths. Nothing is asserted. Run it with `--ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speeds_of_a_bump_and_of_others() {
    let Some(cable) = Cable::new("bumpspeed") else { return };
    let (mut sender, mut sink) = cable.traffic();
    let space = cable.spaces.0[1].clone();
    for (what, keys) in [
        ("a bump that polls", "others = \"9 Gb/s\"\nwhen_dead = \"wire\""),
        ("a bump that sleeps", "others = \"10 Gb/s\"\nwhen_dead = \"wire\""),
    ] {
        let bump = cable.start(keys, "[[app]]\nkind = \"dctcp\"\n", &["--once"]);
        print_speed(what, &mut sender, &mut sink);
        drop(bump);
    }
    print_speed("the wire of a dead bump", &mut sender, &mut sink);
    let inside = Namespace::open(&space).unwrap();
    for device in ["west", "east"] {
        let _ = sluicenet_dataplane::kernel::wire::Wire::remove(&inside, device);
    }
    for line in ["link add br0 type bridge", "link set br0 up", "link set west master br0", "link set east master br0"]
    {
        system(&format!("ip -n {space} {line}")).unwrap();
    }
    print_speed("a Linux bridge", &mut sender, &mut sink);
    for (what, lines) in [
        (
            "a Linux bridge and htb",
            &[
                "qdisc add dev east root handle 1: htb default 1",
                "class add dev east parent 1: classid 1:1 htb rate 10gbit",
            ][..],
        ),
        ("a Linux bridge and tbf", &["qdisc add dev east root tbf rate 10gbit burst 1mb latency 10ms"][..]),
    ] {
        let set = lines.iter().try_for_each(|line| system(&format!("ip netns exec {space} tc {line}")));
        match set {
            Ok(()) => print_speed(what, &mut sender, &mut sink),
            Err(e) => println!("SPEED {what}: {e}"),
        }
        let _ = system(&format!("ip netns exec {space} tc qdisc del dev east root"));
    }
    system(&format!("ip -n {space} link del br0")).unwrap();
    let testpmd = "--no-huge -m 256 --no-pci -l 0-1 --vdev=net_af_packet0,iface=west --vdev=net_af_packet1,iface=east \
                   --no-telemetry -- --auto-start --stats-period=100 --total-num-mbufs=8192";
    let mut args = vec!["netns", "exec", &space, "dpdk-testpmd"];
    args.extend(testpmd.split_whitespace());
    let started = std::process::Command::new("ip")
        .args(&args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut testpmd = started.unwrap();
    std::thread::sleep(Duration::from_secs(3));
    match testpmd.try_wait().unwrap() {
        None => print_speed("testpmd with af_packet", &mut sender, &mut sink),
        Some(ended) => println!("SPEED testpmd: {ended} (is dpdk-testpmd installed?)"),
    }
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&testpmd), rustix::process::Signal::TERM);
    let _ = testpmd.wait();
}

/// Waits until `is`, up to a minute.
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn programs_attach_to_a_bump_and_its_metrics_and_captures_show_their_frames() {
    let folder = std::env::temp_dir().join(format!("sluicenet-bumpshm-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let control = folder.join("b.sock");
    let port = |name: &str| format!("[[port]]\nname = \"{name}\"\nkind = \"shm\"\nbuffers = 64\n");
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!(
        "[bump]\ncontrol = \"{}\"\nothers = \"10 kb/s\"\nmetrics = \"{metrics}\"\nsleep_after = \"50 us\"\n{}{}\
         [[link]]\na = \"a\"\nb = \"b\"\n[[app]]\nkind = \"dctcp\"\nthreshold = \"1 KB\"\n",
        control.display(),
        port("a"),
        port("b")
    );
    let file = folder.join("b.toml");
    std::fs::write(&file, text).unwrap();
    let child = command(&["bump", "run", "--once", file.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
    let bump = Bump { child, control: control.clone() };
    bump.wait_for(|_| true);
    let attach = |name: &str| sluicenet_vswitchd::control::attach(&control, name).unwrap();
    let (a, b) = (attach("a"), attach("b"));
    let client = |of: &Attachment| Client::open(of.access.memory.try_clone().unwrap()).unwrap();
    let (mut from, mut to) = (client(&a), client(&b));
    let (_, error) = expect(2, &["bump", "queues", "--control", "/nonexistent"]);
    assert!(error.contains("nothing runs there"), "{error}");
    let capture = folder.join("a.pcapng");
    let mut capturing = command(&["bump", "capture", "a", "-c", "3", "-w", capture.to_str().unwrap(), "--control"])
        .arg(&control)
        .spawn()
        .unwrap();
    let mut frame = vec![0; 600];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 2, 2, 0x4A, 0, 0, 0, 0, 64, 17]);
    let (mut came, mut marked) = (0, 0);
    let mut into = [0; 2048];
    wait_until("frames pass and the capture ends", || {
        if from.send(&frame).unwrap() && from.publish() {
            let _ = rustix::io::write(&a.access.kick, &1u64.to_ne_bytes());
        }
        while let Some(len) = to.receive(&mut into).unwrap() {
            assert_eq!(len, 600);
            came += 1;
            marked += u32::from(into[15] & 3 == 3);
        }
        if to.publish() {
            let _ = rustix::io::write(&b.access.kick, &1u64.to_ne_bytes());
        }
        capturing.try_wait().unwrap().is_some()
    });
    assert!(came >= 2 && marked > 0, "{came} {marked}");
    assert!(std::fs::metadata(&capture).unwrap().len() > 1_800);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", metrics)).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    std::io::Read::read_to_string(&mut stream, &mut page).unwrap();
    let wanted = "sluicenet_bump_queue_rate_bps{switch=\"b\",downstream=\"others at b\"} 10000";
    assert!(page.contains(wanted) && page.contains("sluicenet_port_frames_total{switch=\"b\",port=\"a\""), "{page}");
    drop(a);
    bump.wait_for(|s| s.ports[0].number.is_none() && s.ports[1].number.is_some());
    drop(bump);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_veth_with_backpressure_and_a_tap_are_the_ends_of_a_link() {
    let lack = missing().or_else(|| netns::may_make_namespaces().err().map(|e| e.to_string()));
    if let Some(why) = lack {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let spaces = Namespaces::new("bumpkinds", 3);
    let [a, own, b] = [&spaces.0[0], &spaces.0[1], &spaces.0[2]];
    system(&format!("ip -n {own} link add west type veth peer name eth0 netns {a}")).unwrap();
    system(&format!("ip -n {a} addr add 10.9.0.1/24 dev eth0")).unwrap();
    system(&format!("ip -n {a} link set eth0 up")).unwrap();
    system(&format!("ip -n {own} link set west up")).unwrap();
    let folder = std::env::temp_dir().join(format!("sluicenet-bumpkinds-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let control = folder.join("b.sock");
    let text = format!(
        "[bump]\ncontrol = \"{}\"\nothers = \"10 Gb/s\"\nsleep_after = \"50 us\"\n\
         [[port]]\nname = \"west\"\nkind = \"veth\"\nnetns = \"{own}\"\ntenant_netns = \"{a}\"\n\
         [[port]]\nname = \"east\"\nkind = \"tap\"\nmac = \"02:00:00:00:09:02\"\ntenant_netns = \"{b}\"\n\
         [[link]]\na = \"west\"\nb = \"east\"\n[[app]]\nkind = \"red\"\n",
        control.display()
    );
    let file = folder.join("b.toml");
    std::fs::write(&file, text).unwrap();
    let child = command(&["bump", "run", "--once", file.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
    let bump = Bump { child, control };
    bump.wait_for(|_| true);
    system(&format!("ip -n {b} addr add 10.9.0.2/24 dev east")).unwrap();
    system(&format!("ip -n {b} link set east up")).unwrap();
    let space = |name: &str| Namespace::open(name).unwrap();
    let to: SocketAddr = "10.9.0.2:7000".parse().unwrap();
    let mut sink = Sink::bind(&space(b), to, PAYLOAD, 1).unwrap();
    let mut sender = Sender::new(&space(a), 0, to, PAYLOAD).unwrap();
    assert!(passes(&mut sender, &mut sink, 500, PATIENCE), "from the veth to the TAP");
    let back: SocketAddr = "10.9.0.1:7000".parse().unwrap();
    let mut sink = Sink::bind(&space(a), back, PAYLOAD, 1).unwrap();
    let mut sender = Sender::new(&space(b), 0, back, PAYLOAD).unwrap();
    assert!(passes(&mut sender, &mut sink, 500, PATIENCE), "and back");
    bump.wait_for(|s| s.ports.iter().all(|port| port.delivered >= 500));
    drop(bump);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_bump_learns_from_another_what_it_does_not_see() {
    let lack = missing().or_else(|| netns::may_make_namespaces().err().map(|e| e.to_string()));
    if let Some(why) = lack {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let spaces = Namespaces::new("bumptold", 3);
    let [a, own, b] = [&spaces.0[0], &spaces.0[1], &spaces.0[2]];
    let ip = |space: &str, line: &str| system(&format!("ip -n {space} {line}")).unwrap();
    // a - [bump 1] - bridge - b, and [bump 2] at the bridge too.
    ip(own, "link add br0 type bridge");
    ip(own, &format!("link add west1 type veth peer name eth0 netns {a}"));
    ip(own, &format!("link add host type veth peer name eth0 netns {b}"));
    for pair in ["east1 type veth peer name e1", "east2 type veth peer name e2", "west2 type veth peer name w2"] {
        ip(own, &format!("link add {pair}"));
    }
    for device in ["host", "e1", "e2"] {
        ip(own, &format!("link set {device} master br0"));
    }
    for device in ["br0", "west1", "host", "east1", "e1", "east2", "e2", "west2", "w2"] {
        ip(own, &format!("link set {device} up"));
    }
    for (space, address) in [(a, "10.9.0.1/24"), (b, "10.9.0.2/24")] {
        ip(space, &format!("addr add {address} dev eth0"));
        system(&format!("ip netns exec {space} ethtool -K eth0 tx off tso off gso off")).unwrap();
    }
    ip(b, "link set eth0 address 02:00:00:00:09:02");
    ip(a, "link set eth0 up");
    ip(b, "link set eth0 up");
    let folder = std::env::temp_dir().join(format!("sluicenet-bumptold-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let key = folder.join("key");
    std::fs::write(&key, "5".repeat(64)).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let start = |n: u32, other: u32, tell: bool| {
        let control = folder.join(format!("b{n}.sock"));
        let port = |name: &str| format!("[[port]]\nname = \"{name}{n}\"\nkind = \"packet\"\nnetns = \"{own}\"\n");
        let text = format!(
            "[bump]\ncontrol = \"{}\"\nmac = \"06:01:00:00:00:0{n}\"\nsleep_after = \"50 us\"\n{}{}\
             [[link]]\na = \"west{n}\"\nb = \"east{n}\"\n\
             [[map]]\nport = 5\nrate = \"1 Gb/s\"\nmacs = [\"02:00:00:00:09:02\"]\n\
             [updates]\nbump = {n}\nkey = \"key\"\n\
             [[neighbour]]\nbump = {other}\nmac = \"06:01:00:00:00:0{other}\"\nvia = \"east{n}\"\ntell = {tell}\n",
            control.display(),
            port("west"),
            port("east")
        );
        let file = folder.join(format!("b{n}.toml"));
        std::fs::write(&file, text).unwrap();
        let child = command(&["bump", "run", "--once", file.to_str().unwrap()]).stdout(Stdio::piped()).spawn().unwrap();
        let bump = Bump { child, control };
        bump.wait_for(|_| true);
        bump
    };
    let (second, first) = (start(2, 1, false), start(1, 2, true));
    let space = |name: &str| Namespace::open(name).unwrap();
    let to: SocketAddr = "10.9.0.2:7000".parse().unwrap();
    let mut sink = Sink::bind(&space(b), to, PAYLOAD, 1).unwrap();
    let mut sender = Sender::new(&space(a), 0, to, PAYLOAD).unwrap();
    assert!(passes(&mut sender, &mut sink, 300, PATIENCE));
    let told = second.wait_for(|s| s.bump.as_ref().is_some_and(|bump| bump.queues[0].reported >= 300));
    let told = told.bump.unwrap();
    let updates = told.updates.unwrap();
    assert!(updates.neighbours[&1][0] > 0 && updates.forged + updates.damaged + updates.strangers == 0, "{updates:?}");
    assert_eq!(told.queues[0].packets, 0, "it sees none of these packets itself");
    assert!(first.wait_for(|_| true).bump.unwrap().updates.unwrap().sent > 0);
    drop((first, second));
    std::fs::remove_dir_all(&folder).unwrap();
}
