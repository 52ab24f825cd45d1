//! `sluicenet switch run` and its helper: the process that forwards frames has no privileges, and frames do not need the helper.

use crate::switch_start::{arrive, file, machine, port};
use crate::switching::{Running, text};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use sluicenet_testkit::Dir;
use sluicenet_testkit::netns::{Namespaces, missing, system};
use sluicenet_vswitchd::attach::{self, Attach, add_port};
use sluicenet_vswitchd::control::{Answer, Request};
use sluicenet_vswitchd::status::{Again, HelperStatus, PortStatus, Status};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines of a process's state in `/proc`, without their names.
fn of_process<const N: usize>(pid: u32, names: [&str; N]) -> [String; N] {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    names.map(|name| text.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim().to_owned())
}

/// The bits of `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_SYS_PTRACE` and `CAP_SYS_ADMIN` (capabilities(7)).
const TO_OPEN: u64 = 1 << 12 | 1 << 13 | 1 << 19 | 1 << 21;

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|&other| parent(other) == Some(pid)).collect()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn the_process_that_forwards_frames_has_no_privileges_and_ports_come_all_the_same() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("helper", 4);
    let [switch, a, b, late] = [0, 1, 2, 3].map(|n| all.0[n].as_str());
    [(1, a), (2, b)].into_iter().for_each(|(n, own)| machine(switch, own, n));
    let running = Running::heard("helper", &("user = \"nobody\"\n".to_owned() + &file(switch, &[(1, a), (2, b)])));
    let status = running.until("both", |s| s.ports.len() == 2 && s.ports.iter().all(PortStatus::is_present));
    let helper = status.helper.unwrap();
    assert_eq!(helper.ended, None);
    let [worker] = children(helper.pid.unwrap())[..] else {
        panic!("one worker is expected: {:?}", children(helper.pid.unwrap()))
    };
    let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"];
    let bits = |sets: [String; 5]| sets.map(|set| u64::from_str_radix(&set, 16).unwrap());
    assert_eq!(bits(of_process(running.child.id(), sets)), [0; 5]);
    for pid in [helper.pid.unwrap(), worker] {
        assert_eq!(bits(of_process(pid, sets)), [0, TO_OPEN, TO_OPEN, TO_OPEN, 0]);
    }
    assert_eq!(
        [helper.pid.unwrap(), worker].map(|pid| of_process(pid, ["Name:"])),
        [["sluice-helper"], ["sluice-helper"]]
    );
    let nobody = "65534\t65534\t65534\t65534";
    let same = ["Uid:", "Gid:", "Groups:", "NoNewPrivs:"];
    assert_eq!(of_process(running.child.id(), same), [nobody, nobody, "", "1"]);
    assert_eq!(of_process(helper.pid.unwrap(), ["Uid:", "NoNewPrivs:"]), ["0\t0\t0\t0", "1"]);
    arrive(a, b, "10.0.0.2");
    // A namespace that comes while this switch runs.
    let wanted = Attach {
        netns: late.to_owned(),
        addresses: vec!["10.0.0.3/24".parse().unwrap()],
        switch_netns: Some(switch.to_owned()),
        ..Attach::default()
    };
    let attached = attach::attach(&running.control(), &wanted).unwrap();
    arrive(a, late, "10.0.0.3");
    arrive(late, b, "10.0.0.2");
    attach::detach(&running.control(), &attached.port).unwrap();
}

#[test]
fn the_helper_checks_no_file() {
    for option in ["--check", "--here"] {
        let refused =
            Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(["switch", "helper", option, "vs.toml"]).output();
        let refused = refused.unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("unexpected argument"), "{refused:?}");
    }
}

/// A tenant that has sent nothing for a while: its queue is held.
fn rest(running: &Running) {
    let sleeps = |status: &Status| status.sleeps;
    let before = sleeps(&running.status());
    running.until("it sleeps", |status| sleeps(status) > before + 2);
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_helper_that_dies_is_started_again_and_frames_go_on() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("helper-again", 4);
    let [switch, a, b, late] = [0, 1, 2, 3].map(|n| all.0[n].as_str());
    [(1, a), (2, b), (3, late)].into_iter().for_each(|(n, own)| machine(switch, own, n));
    let running =
        Running::heard("helper-again", &("user = \"nobody\"\n".to_owned() + &file(switch, &[(1, a), (2, b)])));
    let status = running.until("both", |s| s.ports.iter().filter(|p| p.is_present()).count() == 2);
    let helper = status.helper.unwrap().pid.unwrap();
    arrive(a, b, "10.0.0.2");
    for round in 0..3 {
        rest(&running);
        let worker = children(helper)[0];
        // The switch obeys the file that it has read, whatever has become of the file.
        match round {
            1 => running.write("log = \"json\"\n"),
            2 => running.write("[switch"),
            _ => {}
        }
        kill(worker);
        let changes = |status: &Status| -> u64 {
            status.ports.iter().filter_map(|port| port.counters.get("queue_changes")).sum()
        };
        let before = changes(&running.status());
        arrive(a, b, "10.0.0.2");
        arrive(b, a, "10.0.0.1");
        running.until("the new worker opens and shuts queues", |status| changes(status) > before);
        running.line("its death", |l| {
            l["message"] == "helper died; it is started again" && l["status"] == "signal: 9 (SIGKILL)"
        });
        assert_eq!(running.status().helper.unwrap().ended, None, "round {round}");
    }
    let settings = [format!("netns={switch}"), format!("tenant_netns={late}"), "kind=veth".to_owned()];
    add_port(&running.control(), "v3", &settings).unwrap();
    arrive(a, late, "10.0.0.3");
    // A device that was off is polled by new sockets, as often as it is.
    for _ in 0..3 {
        let before = port(&running.status(), "v2").counters["learned_again"];
        ["down", "up"].iter().for_each(|state| system(&format!("ip -n {switch} link set v2 {state}")).unwrap());
        running.until("it is back", |s| port(s, "v2").counters.get("learned_again").is_some_and(|&n| n > before));
        arrive(a, b, "10.0.0.2");
    }
}

#[test]
fn the_end_of_the_whole_helper_is_reported_and_the_switch_goes_on() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("helper-dies", 4);
    let [switch, a, b, late] = [0, 1, 2, 3].map(|n| all.0[n].as_str());
    [(1, a), (2, b), (3, late)].into_iter().for_each(|(n, own)| machine(switch, own, n));
    let ports = file(switch, &[(1, a), (2, b)]) + "[[port]]\nname = \"s\"\nkind = \"shm\"\n";
    let mut running = Running::heard("helper-dies", &ports);
    let status = running.until("both", |s| s.ports.iter().filter(|p| p.is_present()).count() == 2);
    let helper = status.helper.unwrap().pid.unwrap();
    let worker = children(helper)[0];
    // Without the process that would start it again, the worker goes on.
    kill(helper);
    arrive(a, b, "10.0.0.2");
    kill(worker);
    let status = running.until("its end is noticed", |s| s.helper.as_ref().is_some_and(|h| h.ended.is_some()));
    assert_eq!(status.helper.unwrap().ended.unwrap(), "signal: 9 (SIGKILL)");
    let line = running.line("its end", |l| l["message"] == "helper ended");
    assert_eq!((&line["level"], &line["how"]), (&"WARN".into(), &"signal: 9 (SIGKILL)".into()));
    // Ports without a device need no helper.
    let (_attached, _client) = running.attach("s");
    let settings = [format!("netns={switch}"), format!("tenant_netns={late}"), "kind=veth".to_owned()];
    let refused = add_port(&running.control(), "v3", &settings).unwrap_err().to_string();
    assert!(refused.starts_with("port v3: the helper, which opens devices, has ended (signal: 9"), "{refused}");
    // A port that breaks now waits for the next start.
    system(&format!("ip -n {b} link del eth0")).unwrap();
    let status = running.until("it is absent", |s| port(s, "v2").absent.is_some());
    assert_eq!(port(&status, "v2").absent.as_ref().unwrap().again, Again::NextStart);
    assert!(matches!(running.ask(Request::Stop), Answer::Ok(_)));
    assert!(running.child.wait().unwrap().success());
}

#[test]
fn a_switch_leaves_no_helper() {
    let two = crate::switching::TWO;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only a switch of root has a helper");
    }
    let gone = |pid: u32| {
        let until = Instant::now() + Duration::from_secs(60);
        while Path::new(&format!("/proc/{pid}")).exists() {
            assert!(Instant::now() < until, "the helper {pid} goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let both = |running: &Running| {
        let helper = running.status().helper.unwrap().pid.unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while children(helper).is_empty() {
            assert!(Instant::now() < until, "the helper has no worker");
        }
        [helper, children(helper)[0]]
    };
    let mut running = Running::start("helper-left", two);
    let pids = both(&running);
    running.kill();
    pids.into_iter().for_each(gone);
    running.again();
    let pids = both(&running);
    // Once it answers, no signal of a terminal ends it.
    let refused = add_port(&running.control(), "v", &["kind=packet".into(), "netns=sluice-no-such".into()]);
    assert!(refused.unwrap_err().to_string().contains("sluice-no-such"));
    for its in pids.map(|pid| Pid::from_raw(pid as i32).unwrap()) {
        [Signal::INT, Signal::TERM, Signal::HUP].into_iter().for_each(|signal| kill_process(its, signal).unwrap());
    }
    assert_eq!(running.status().helper.unwrap().ended, None);
    assert!(matches!(running.ask(Request::Stop), Answer::Ok(_)));
    assert!(running.child.wait().unwrap().success());
    pids.into_iter().for_each(gone);
}

/// Does what a service manager does for a socket with `Accept=true`: starts a helper for each connection, as many as `times`.
fn manager(socket: OwnedFd, file: PathBuf, times: usize) -> JoinHandle<Vec<Child>> {
    let serve = move |_| {
        let connection = accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
        command.args(["--quiet", "switch", "helper"]).arg(&file).stdin(connection).spawn().unwrap()
    };
    std::thread::spawn(move || (0..times).map(serve).collect())
}

#[test]
fn a_service_manager_may_start_the_helper() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("helper-unit", 4);
    let [switch, a, b, late] = [0, 1, 2, 3].map(|n| all.0[n].as_str());
    [(1, a), (2, b)].into_iter().for_each(|(n, own)| machine(switch, own, n));
    let dir = Dir::new("helper-unit");
    let path = dir.0.join("helper.sock");
    let file = "user = \"nobody\"\n".to_owned() + &file(switch, &[(1, a), (2, b)]);
    // Nobody is there yet.
    std::fs::write(dir.0.join("vs.toml"), text(&dir.0, &file)).unwrap();
    let mut alone = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    let alone = alone.args(["switch", "run"]).arg(dir.0.join("vs.toml")).arg("--helper").arg(&path).output().unwrap();
    let said = String::from_utf8(alone.stderr).unwrap();
    assert_eq!(alone.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("the helper at {}: No such file", path.display())), "{said}");

    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&socket, 4).unwrap();
    let helpers = manager(socket, Running::place("helper-unit").join("vs.toml"), 1);
    let running = Running::helped("helper-unit", &file, &path);
    let status = running.until("both", |s| s.ports.len() == 2 && s.ports.iter().all(PortStatus::is_present));
    assert_eq!(status.helper, Some(HelperStatus { pid: None, ended: None }));
    let sets = of_process(running.child.id(), ["CapEff:", "CapBnd:"]);
    assert_eq!(sets, ["0000000000000000"; 2]);
    arrive(a, b, "10.0.0.2");
    // It reads the records of commands, as a child does.
    let wanted = Attach {
        netns: late.to_owned(),
        addresses: vec!["10.0.0.3/24".parse().unwrap()],
        switch_netns: Some(switch.to_owned()),
        ..Attach::default()
    };
    let attached = attach::attach(&running.control(), &wanted).unwrap();
    arrive(a, late, "10.0.0.3");
    attach::detach(&running.control(), &attached.port).unwrap();
    // Its end is noticed.
    let mut helper = helpers.join().unwrap().pop().unwrap();
    let worker = children(helper.id())[0];
    [helper.id(), worker].into_iter().for_each(kill);
    helper.wait().unwrap();
    let status = running.until("its end", |s| s.helper.as_ref().is_some_and(|h| h.ended.is_some()));
    assert_eq!(status.helper.unwrap().ended.unwrap(), "it has closed its socket");
}
