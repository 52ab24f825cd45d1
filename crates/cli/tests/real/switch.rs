//! `sluicenet switch`: a process that serves programs, is asked, reloads and stops; messages of strangers harm nobody.

use crate::switching::{Running, TWO, frame, kick, spawn, text};
use serde_json::Value;
use sluicenet_testkit::Dir;
use sluicenet_vswitchd::control::{Answer, Refusal, Request, attach};
use sluicenet_vswitchd::status::{MacEntry, MacTable};
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;

#[test]
fn programs_attach_and_their_frames_go_through() {
    let running = Running::start("attach", TWO);
    let mode = std::fs::metadata(running.control()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the control socket is its owner's");
    let (at_a, mut a) = running.attach("a");
    let (_at_b, mut b) = running.attach("b");
    assert!(attach(&running.control(), "a").unwrap_err().to_string().contains("somebody is attached"));
    assert!(attach(&running.control(), "c").unwrap_err().to_string().contains("no port c"));
    for _ in 0..10 {
        assert!(a.send(&frame(10, 11)).unwrap());
    }
    if a.publish() {
        kick(&at_a);
    }
    let status = running.until("ten frames", |s| s.ledger.delivered == 10);
    assert_eq!((status.ports[0].accepted, status.ports[1].delivered), (10, 10));
    let mut into = [0; 2048];
    for _ in 0..10 {
        assert_eq!(b.receive(&mut into).unwrap(), Some(60));
        assert_eq!(into[..60], frame(10, 11));
    }
    // A client that leaves takes its port along; the next client finds the port as new.
    drop((at_a, a));
    running.until("the port is free", |s| s.ports[0].number.is_none());
    running.attach("a");
}

#[test]
fn ports_and_watchdog_change_while_traffic_runs() {
    let running = Running::start("reload", TWO);
    let (at_a, mut a) = running.attach("a");
    let (_at_b, mut b) = running.attach("b");
    running.write(&format!("{TWO}[[port]]\nname = \"c\"\nkind = \"shm\"\n").replace("off", "drop"));
    assert!(
        matches!(running.ask(Request::Reload), Answer::Ok(text) if text.starts_with("1 port added, 0 removed, 0 changed"))
    );
    let (_at_c, _c) = running.attach("c");
    // No other machine can be the machine of a port: its address is given.
    assert!(a.send(&frame(11, 12)).unwrap());
    if a.publish() {
        kick(&at_a);
    }
    running.until("a forged frame", |s| s.ports[0].refused.get("forged_source") == Some(&1));
    assert!(a.send(&frame(10, 11)).unwrap());
    if a.publish() {
        kick(&at_a);
    }
    running.until("a frame", |s| s.ports[1].delivered == 1);
    assert_eq!(b.receive(&mut [0; 64]).unwrap(), Some(60));
    // Changes of fixed settings are refused, and nothing changes.
    std::fs::write(
        running.folder.join("vs.toml"),
        text(&running.folder, TWO).replace("[switch]", "[switch]\nslots = 5"),
    )
    .unwrap();
    assert!(matches!(running.ask(Request::Reload), Answer::Error(text) if text.contains("`slots` cannot change")));
    running.write("[[port]]\nname = 3\n");
    assert!(matches!(running.ask(Request::Reload), Answer::Error(text) if text.contains("vs.toml:4")));
    assert_eq!(running.status().ports.len(), 3);
    let settings = vec!["kind=shm".to_owned(), "buffers=8".to_owned()];
    assert!(matches!(running.ask(Request::AddPort { name: "d".into(), settings: settings.clone() }), Answer::Ok(_)));
    assert!(matches!(running.ask(Request::AddPort { name: "d".into(), settings }), Answer::Error(_)));
    let settings = vec!["kind=shm".to_owned(), "mac=zz".to_owned()];
    let refused = "port \"e\": this is no MAC address: mac=zz; expected: as 02:00:00:00:00:01";
    assert!(
        matches!(running.ask(Request::AddPort { name: "e".into(), settings }), Answer::Error(text) if text == refused)
    );
    assert!(matches!(running.ask(Request::DelPort { name: "c".into() }), Answer::Ok(_)));
    let again = running.ask(Request::DelPort { name: "c".into() });
    assert!(matches!(&again, Answer::Refused { reason: Refusal::NoSuchPort, .. }), "{again:?}");
    assert_eq!(running.status().ports.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["a", "b", "d"]);
}

#[test]
fn the_forwarding_table_is_shown_and_ages() {
    let ports = "aging_time = \"1 s\"\n[[port]]\nname = \"a\"\nkind = \"shm\"\n\
        [[port]]\nname = \"b\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0b\"\ntenant = 7\n";
    let running = Running::start("macs", ports);
    let macs = || match running.ask(Request::Macs) {
        Answer::Macs(table) => table,
        other => panic!("{other:?}"),
    };
    let show = |more: &[&str]| {
        let args = ["switch", "show", "--macs", "--control"];
        let shown = Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(more).args(args).arg(running.control()).output();
        String::from_utf8(shown.unwrap().stdout).unwrap()
    };
    let given = |port: Option<&str>| MacEntry {
        mac: "02:00:00:00:00:0b".into(),
        tenant: 7,
        port: port.map(str::to_owned),
        learned: false,
        age_s: None,
    };
    assert_eq!(macs(), MacTable { entries: vec![given(None)], total: 1 });
    let (at_a, mut a) = running.attach("a");
    let (_at_b, _b) = running.attach("b");
    assert!(a.send(&frame(10, 99)).unwrap());
    if a.publish() {
        kick(&at_a);
    }
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while macs().total < 2 {
        assert!(std::time::Instant::now() < until, "{:?}", macs());
    }
    let MacTable { entries, total } = macs();
    // It may have been forgotten already.
    if total == 2 {
        let learned = MacEntry {
            mac: "02:00:00:00:00:0a".into(),
            port: Some("a".into()),
            tenant: 0,
            learned: true,
            age_s: entries[0].age_s,
        };
        assert_eq!(entries, [learned, given(Some("b"))]);
    }
    while macs().total == 2 {
        assert!(std::time::Instant::now() < until, "{:?}", macs());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(macs(), MacTable { entries: vec![given(Some("b"))], total: 1 });
    let shown = show(&[]);
    assert!(shown.contains("02:00:00:00:00:0b  7       b          given\n"), "{shown}");
    let json: Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!((&json["total"], &json["entries"][0]["port"]), (&1.into(), &"b".into()));
}

#[test]
fn who_may_talk_to_whom_is_said_by_the_file_and_reloads() {
    let machine = |n: u8, group: &str| {
        format!("[[policy.machine]]\nname = \"m{n}\"\nmac = \"02:00:00:00:00:{n:02x}\"\ngroup = \"{group}\"\n")
    };
    let apart = format!("{TWO}{}{}", machine(10, "red"), machine(11, "blue"));
    let running = Running::start("policy", &apart);
    let (at_a, mut a) = running.attach("a");
    let (_at_b, mut b) = running.attach("b");
    let mut send = || {
        assert!(a.send(&frame(10, 11)).unwrap());
        if a.publish() {
            kick(&at_a);
        }
    };
    send();
    let status = running.until("a denied frame", |s| s.ports[0].refused.get("denied") == Some(&1));
    assert_eq!(status.ledger.delivered, 0);
    let rule = "[[policy.rule]]\nparty = \"m10\"\npeer = \"blue\"\nallow = true\n";
    running.write(&format!("{apart}{rule}"));
    assert!(matches!(running.ask(Request::Reload), Answer::Ok(text) if text.ends_with("0 changed, policy changed")));
    send();
    running.until("an allowed frame", |s| s.ports[1].delivered == 1);
    assert_eq!(b.receive(&mut [0; 64]).unwrap(), Some(60));
    // A machine at a port without an address could be either of them.
    let add = |settings: &[&str]| {
        let settings = settings.iter().map(|&s| s.to_owned()).collect();
        running.ask(Request::AddPort { name: "c".into(), settings })
    };
    assert!(matches!(add(&["kind=shm"]), Answer::Error(text) if text.contains("port c: with [policy]")));
    assert!(matches!(add(&["kind=shm", "mac=02:00:00:00:00:0c"]), Answer::Ok(_)));
    running.write(&format!("{apart}{rule}").replace("blue\"\nallow", "green\"\nallow"));
    assert!(matches!(running.ask(Request::Reload), Answer::Error(text) if text.contains("nobody is called `green`")));
    running.write(TWO);
    assert!(matches!(running.ask(Request::Reload), Answer::Ok(text) if text.ends_with("policy changed")));
    send();
    running.until("all may talk to all", |s| s.ports[1].delivered == 2);
    assert_eq!(running.status().ports[0].refused.get("denied"), Some(&1));
}

#[test]
fn an_idle_switch_sleeps_and_stops_when_told() {
    let mut running = Running::start("idle", TWO);
    let (_at_a, _a) = running.attach("a");
    running.until("it sleeps", |s| s.sleeps > 2);
    let refused = Command::new(env!("CARGO_BIN_EXE_sluicenet"))
        .args(["switch", "run"])
        .arg(running.folder.join("vs.toml"))
        .output();
    let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(refused.contains("a program answers there already"), "{refused}");
    assert!(matches!(running.ask(Request::Stop), Answer::Ok(_)));
    let mut report = String::new();
    running.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(running.child.wait().unwrap().success());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["ports"][0]["name"], "a");
    assert!(!running.control().exists());
}

#[test]
fn what_strangers_say_harms_nobody() {
    let running = Running::start("strangers", TWO);
    for words in [
        "\n",
        "{}\n",
        "{\"op\": \"fly\"}\n",
        "{\"op\": \"attach\", \"x\": 1}\n",
        "\u{fffd}\u{0}\n",
        &format!("{}\n", "x".repeat(1 << 17)),
    ] {
        let mut stream = UnixStream::connect(running.control()).unwrap();
        // The switch may have hung up before the request is complete.
        let _ = stream.write_all(words.as_bytes());
        let mut answer = String::new();
        let _ = BufReader::new(&stream).read_line(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("{\"error\":"), "{answer}");
    }
    let half: Vec<UnixStream> = (0..50)
        .map(|_| {
            let mut stream = UnixStream::connect(running.control()).unwrap();
            stream.write_all(b"{\"op\":").unwrap();
            stream
        })
        .collect();
    assert_eq!(running.status().ports.len(), 2);
    drop(half);
}

#[test]
fn a_socket_left_behind_is_taken_over_and_a_file_is_not() {
    let mut running = Running::start("left", TWO);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert!(running.control().exists());
    running.child = spawn(&running.folder, TWO, true);
    running.wait();
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    std::fs::remove_file(running.control()).unwrap();
    std::fs::write(running.control(), "mine").unwrap();
    running.child = spawn(&running.folder, TWO, true);
    assert_eq!(running.child.wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::read_to_string(running.control()).unwrap(), "mine");
}

/// The values of a field of all threads of a process.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let value = |status: String| Some(status.lines().find_map(|line| line.strip_prefix(field))?.trim().to_owned());
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end meanwhile.
    threads.filter_map(|thread| value(std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?)).collect()
}

#[test]
fn a_switch_limits_its_system_calls_and_files_and_says_so() {
    let running = Running::heard("sandbox", &format!("log = \"json\"\nsocket_folders = [\"FOLDER/run\"]\n{TWO}"));
    let limits = running.line("the start", |line| line["message"] == "switch started")["sandbox"].clone();
    if limits != "calls files" {
        return println!("skipped: this kernel only limits {limits}");
    }
    let (_at_a, _a) = running.attach("a");
    let seccomp = of_threads(running.child.id(), "Seccomp:");
    assert!(seccomp.len() > 3 && seccomp.iter().all(|mode| mode == "2"), "{seccomp:?}");
    // Also if root starts it and its file names no user.
    let users = of_threads(running.child.id(), "Uid:");
    assert!(users.iter().all(|users| users.split_whitespace().all(|user| user != "0")), "{users:?}");
    let settings = vec!["kind=vhost-user".into(), "connect=/run/docker.sock".into()];
    let refused = running.ask(Request::AddPort { name: "docker".into(), settings });
    assert!(matches!(&refused, Answer::Error(why) if why.contains("may connect to no socket")), "{refused:?}");
    let add = |name: &str, folder: &str| {
        let settings = vec!["kind=vhost-user".into(), format!("socket={}/{folder}/vm.sock", running.folder.display())];
        running.ask(Request::AddPort { name: name.into(), settings })
    };
    assert!(matches!(add("vm", "run"), Answer::Ok(_)));
    // Where it reads its file, it makes none.
    let refused = add("other", ".");
    let words = "name its folder in `socket_folders`";
    assert!(matches!(&refused, Answer::Error(why) if why.contains(words)), "{refused:?}");
    let vm = "[[port]]\nname = \"late\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/late.sock\"\n";
    running.write(&format!("log = \"json\"\nsocket_folders = [\"FOLDER/run\"]\n{TWO}{vm}"));
    let refused = running.ask(Request::Reload);
    assert!(
        matches!(&refused, Answer::Error(why) if why.ends_with("start the switch again; nothing was changed")),
        "{refused:?}"
    );
}

#[test]
fn a_switch_without_a_sandbox_has_no_limits() {
    let running = Running::heard("unlimited", &format!("log = \"json\"\nsandbox = false\n{TWO}"));
    assert_eq!(running.line("the start", |line| line["message"] == "switch started")["sandbox"], "none");
    assert!(of_threads(running.child.id(), "Seccomp:").iter().all(|mode| mode == "0"));
    let settings = vec!["kind=vhost-user".into(), format!("socket={}/vm.sock", running.folder.display())];
    assert!(matches!(running.ask(Request::AddPort { name: "vm".into(), settings }), Answer::Ok(_)));
    let file = format!("log = \"json\"\n{TWO}");
    running.write(&file);
    let refused = running.ask(Request::Reload);
    assert!(matches!(&refused, Answer::Error(why) if why.contains("`sandbox` cannot change")), "{refused:?}");
}

/// A service manager that started a switch: the states that it was told.
struct Manager(UnixDatagram);

impl Manager {
    fn hears(&self, words: &str) -> String {
        let mut message = [0; 4096];
        let mut said = Vec::new();
        loop {
            let n = self.0.recv(&mut message).unwrap_or_else(|e| panic!("{words}: {e}; {said:?}"));
            said.push(String::from_utf8(message[..n].to_vec()).unwrap());
            let last = said.last().unwrap();
            if last.lines().any(|line| line.starts_with(words)) {
                return last.clone();
            }
        }
    }
}

#[test]
fn a_service_manager_hears_when_it_is_ready_and_the_command_says_whether_a_reload_worked() {
    let folder = Dir::new("managed");
    // A switch that root starts becomes another user, who makes the socket of the guest.
    std::fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).unwrap();
    let manager = Manager(UnixDatagram::bind(folder.0.join("notify")).unwrap());
    manager.0.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let file = folder.0.join("vs.toml");
    let write = |ports: &str| std::fs::write(&file, text(&folder.0, ports)).unwrap();
    let command = || Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    let two = format!("socket_folders = [\"FOLDER\"]\n{TWO}");
    write(&two);
    let mut switch = { command() }
        .args(["--quiet", "--json", "switch", "run", &folder.path("vs.toml")])
        .env("NOTIFY_SOCKET", folder.0.join("notify"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    manager.hears("READY=1");
    assert_eq!(manager.hears("STATUS="), "STATUS=2 ports\n");
    let reload = || {
        let args = ["switch", "reload", "--control", &folder.path("run/vs.sock")];
        let reloaded = { command() }.args(args).output().unwrap();
        let begins = manager.hears("RELOADING=1");
        assert!(begins.contains("MONOTONIC_USEC="), "{begins}");
        manager.hears("READY=1");
        (
            reloaded.status.code(),
            String::from_utf8(reloaded.stdout).unwrap() + &String::from_utf8_lossy(&reloaded.stderr),
        )
    };
    let guest = |socket: &str| format!("{two}[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n");
    write(&guest(&folder.path("missing/vm.sock")));
    let (code, said) = reload();
    assert!(code == Some(0) && said.contains("1 port added, 0 removed, 0 changed, port vm is absent: "), "{said}");
    assert_eq!(manager.hears("STATUS="), "STATUS=3 ports, absent: vm\n");
    // What lasts is refused, with the port and the reason.
    write(&guest(&folder.path("vs.toml/vm.sock")).replace("name = \"vm\"", "name = \"other\""));
    let (code, said) = reload();
    assert!(code == Some(2) && said.contains("port other: ") && said.contains("nothing was changed"), "{said}");
    assert_eq!(manager.hears("STATUS="), "STATUS=3 ports, absent: vm\n");
    let missing = folder.0.join("missing");
    std::fs::create_dir(&missing).unwrap();
    std::fs::set_permissions(&missing, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(manager.hears("STATUS="), "STATUS=3 ports\n");
    let stop = { command() }.args(["switch", "stop", "--control", &folder.path("run/vs.sock")]).output().unwrap();
    assert!(stop.status.success());
    manager.hears("STOPPING=1");
    assert!(switch.wait().unwrap().success());
}
