//! `sluicenet switch run` where some of its machines are not as they should be: the others are served, and it is said why not.

use crate::switching::{Running, TWO, frame, kick, spawn, text};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_testkit::netns::{Namespaces, missing, system};
use sluicenet_vswitchd::attach::add_port;
use sluicenet_vswitchd::control::{Answer, Request};
use sluicenet_vswitchd::status::{Again, PortStatus, Status};
use std::fs::Permissions;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

pub fn port<'a>(status: &'a Status, name: &str) -> &'a PortStatus {
    status.ports.iter().find(|p| p.name == name).unwrap()
}

/// A machine whose veth leads to namespace `switch`, with an address of its own.
pub fn machine(switch: &str, own: &str, n: usize) {
    for line in [
        format!("ip -n {switch} link add v{n} type veth peer name eth0 netns {own}"),
        format!("ip -n {own} link set eth0 address 02:00:00:00:00:0{n}"),
        format!("ip -n {own} addr add 10.0.0.{n}/24 dev eth0"),
        format!("ip -n {own} link set eth0 up"),
    ] {
        system(&line).unwrap();
    }
}

fn socket(namespace: &str, at: &str) -> UdpSocket {
    Namespace::open(namespace).unwrap().enter(|| UdpSocket::bind(at)).unwrap().unwrap()
}

/// Three datagrams from a namespace to an address in another one.
pub fn arrive(from: &str, to: &str, address: &str) {
    let sink = socket(to, &format!("{address}:7000"));
    sink.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let sender = socket(from, "0.0.0.0:0");
    for n in 0..3 {
        sender.send_to(&[n; 100], (address, 7000)).unwrap();
        assert_eq!(sink.recv(&mut [0; 200]).unwrap(), 100);
    }
}

pub fn file(switch: &str, ports: &[(usize, &str)]) -> String {
    let port = |(n, own): &(usize, &str)| {
        format!(
            "[[port]]\nname = \"v{n}\"\nkind = \"veth\"\nnetns = \"{switch}\"\ntenant_netns = \"{own}\"\n\
             mac = \"02:00:00:00:00:0{n}\"\n"
        )
    };
    "log = \"json\"\n".to_owned() + &ports.iter().map(port).collect::<String>()
}

#[test]
fn a_machine_that_is_not_as_it_should_be_keeps_no_other_from_being_served() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("start", 6);
    let [switch, a, b, off, short, renamed] = [0, 1, 2, 3, 4, 5].map(|n| all.0[n].as_str());
    for (n, own) in [(1, a), (2, b), (3, off), (4, short), (5, renamed)] {
        machine(switch, own, n);
    }
    for line in [
        format!("ip -n {off} link set eth0 down"),
        format!("ip -n {short} link set eth0 mtu 1400"),
        format!("ip -n {renamed} link set eth0 down"),
        format!("ip -n {renamed} link set eth0 name other"),
        format!("ip -n {renamed} link set other up"),
        // Frames from `a` to a machine whose port is absent.
        format!("ip -n {a} neigh add 10.0.0.3 lladdr 02:00:00:00:00:03 dev eth0"),
    ] {
        system(&line).unwrap();
    }
    let text = file(switch, &[(1, a), (2, b), (3, off), (4, short), (5, renamed), (6, "sluice-no-such")]);
    let mut running = Running::heard("start", &text);
    let status = running.until("the two others", |s| s.ports.len() == 6);
    let there: Vec<bool> = status.ports.iter().map(PortStatus::is_present).collect();
    assert_eq!(there, [true, true, false, false, false, false], "{status:?}");
    for (name, words) in [
        ("v3", format!("the device eth0 of {off}: it is switched off; `ip -n {off} link set eth0 up`")),
        ("v4", format!("the device eth0 of {short}: its MTU is 1400, and that of v4, the switch's end, is 1500")),
        ("v5", format!("the device eth0 in {renamed}: No such device")),
        ("v6", "the network namespace /run/netns/sluice-no-such: No such file".to_owned()),
    ] {
        let absent = port(&status, name).absent.clone().unwrap();
        assert!(absent.reason.starts_with(&words) && absent.again == Again::EverySecond, "{absent:?}");
        let line = running.line("port absent", |l| l["message"] == "port absent" && l["port"] == name);
        assert!(line["reason"].as_str().unwrap().starts_with(&words) && line["level"] == "WARN", "{line}");
    }
    let show = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    let show = { show }.args(["switch", "show", "--control"]).arg(running.control()).output().unwrap();
    let shown = String::from_utf8(show.stdout).unwrap();
    let words = format!("nobody there: the device eth0 of {off}: it is switched off");
    assert!(shown.contains(&words) && shown.contains("(tried again every second)"), "{shown}");
    // Present machines are served.
    arrive(a, b, "10.0.0.2");
    // Frames to an absent machine are dropped as `port_gone`.
    let before = running.status().gone.dropped.get("port_gone").copied().unwrap_or(0);
    let sender = socket(a, "0.0.0.0:0");
    (0..3).for_each(|n| assert_eq!(sender.send_to(&[n; 100], "10.0.0.3:7000").unwrap(), 100));
    running.until("three dropped", |s| s.gone.dropped.get("port_gone").is_some_and(|&n| n >= before + 3));
    assert!(matches!(running.ask(Request::Stop), Answer::Ok(_)));
    assert!(running.child.wait().unwrap().success());
    // Mended, they are served by the next one.
    for line in [
        format!("ip -n {off} link set eth0 up"),
        format!("ip -n {short} link set eth0 mtu 1500"),
        format!("ip -n {renamed} link set other down"),
        format!("ip -n {renamed} link set other name eth0"),
        format!("ip -n {renamed} link set eth0 up"),
    ] {
        system(&line).unwrap();
    }
    let text = file(switch, &[(1, a), (2, b), (3, off), (4, short), (5, renamed)]);
    running.child = spawn(&running.folder, &text, true);
    running.wait();
    running.until("all five", |s| s.ports.len() == 5 && s.ports.iter().all(PortStatus::is_present));
    for (own, address) in [(off, "10.0.0.3"), (short, "10.0.0.4"), (renamed, "10.0.0.5")] {
        arrive(b, own, address);
    }
}

#[test]
fn machines_come_while_the_switch_runs() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("hotplug", 4);
    let [switch, a, late, new] = [0, 1, 2, 3].map(|n| all.0[n].as_str());
    [(1, a), (2, late)].into_iter().for_each(|(n, own)| machine(switch, own, n));
    system(&format!("ip -n {late} link set eth0 down")).unwrap();
    let running = Running::heard("hotplug", &("user = \"nobody\"\n".to_owned() + &file(switch, &[(1, a), (2, late)])));
    let absent = port(&running.status(), "v2").absent.clone().unwrap();
    assert!(absent.again == Again::EverySecond && absent.reason.contains("it is switched off"), "{absent:?}");
    system(&format!("ip -n {late} link set eth0 up")).unwrap();
    running.until("the late one", |s| port(s, "v2").is_present());
    arrive(a, late, "10.0.0.2");
    // A container that is started now.
    machine(switch, new, 3);
    let settings = [
        "kind=veth".to_owned(),
        format!("netns={switch}"),
        format!("tenant_netns={new}"),
        "mac=02:00:00:00:00:03".to_owned(),
    ];
    // The helper asks who says so: root wrote no record of this request.
    let refused = running.ask(Request::AddPort { name: "v3".into(), settings: settings.to_vec() });
    let words = "port v3: neither the file nor a command names it; `sluicenet switch add-port`";
    assert!(matches!(&refused, Answer::Error(why) if why.starts_with(words)), "{refused:?}");
    let line = running.line("the refusal", |l| l["message"] == "helper refused a request");
    assert_eq!(line["level"], "WARN");
    add_port(&running.control(), "v3", &settings).unwrap();
    arrive(a, new, "10.0.0.3");
}

#[test]
fn what_the_file_has_wrong_still_keeps_all_of_it_from_starting() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("wrong", 2);
    let (switch, own) = (all.0[0].as_str(), all.0[1].as_str());
    machine(switch, own, 1);
    let folder = std::env::temp_dir().join(format!("sluicenet-switch-wrong-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let refused = |own: &str, other: &str| {
        let refused = spawn(&folder, &file(switch, &[(1, own), (2, other)]), false).wait_with_output().unwrap();
        (refused.status.code(), String::from_utf8(refused.stderr).unwrap())
    };
    let same = |said: &str, namespace: &str| {
        assert!(said.contains(&format!("ports v1 and v2 lead to the same namespace, {namespace}")), "{said}");
    };
    let (code, said) = refused(own, own);
    assert!(code == Some(2) && said.contains("vs.toml:14:16"), "{said}");
    same(&said, own);
    // The file alone does not tell that two names are of one namespace.
    let path = format!("/run/netns/../netns/{own}");
    let (code, said) = refused(own, &path);
    assert_eq!(code, Some(1), "{said}");
    same(&said, &path);
    let check = |more: &[&str]| {
        let check = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
        let checked =
            { check }.args(["switch", "run", "--check"]).args(more).arg(folder.join("vs.toml")).output().unwrap();
        (checked.status.code(), String::from_utf8(checked.stderr).unwrap())
    };
    let (code, said) = check(&[]);
    assert!(code == Some(0) && said.ends_with("vs.toml: valid, 2 ports\n"), "{said}");
    let (code, said) = check(&["--here"]);
    assert_eq!(code, Some(1), "{said}");
    same(&said, &path);
    // Ports that would be absent do not keep the switch from starting.
    system(&format!("ip -n {own} link set eth0 mtu 1400")).unwrap();
    let other = all.0[0].as_str();
    std::fs::write(
        folder.join("vs.toml"),
        text(&folder, &file(switch, &[(1, own), (2, "sluice-no-such"), (3, other)])),
    )
    .unwrap();
    let (code, said) = check(&["--here"]);
    assert!(code == Some(0) && said.ends_with("vs.toml: valid, 3 ports, 3 of them absent here\n"), "{said}");
    let mtu = "`ip link set v1 mtu 1400` in the namespace of the switch's end makes them one";
    let device = format!("warning: port v3: the device v3 in {switch}: No such device");
    for words in [mtu, "warning: port v2: the network namespace /run/netns/sluice-no-such: No such file", &device] {
        assert!(said.contains(words), "{words}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_takes_no_privileges_is_tried_again_while_the_switch_runs() {
    let guest = "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/later/vm.sock\"\n";
    let folder = std::env::temp_dir().join(format!("sluicenet-switch-later-{}", std::process::id()));
    let running = Running::start("later", &format!("{TWO}{}", guest.replace("FOLDER", folder.to_str().unwrap())));
    let absent = port(&running.status(), "vm").absent.clone().unwrap();
    assert_eq!(absent.again, Again::EverySecond, "{absent:?}");
    let folder = running.folder.join("later");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let status = running.until("its socket", |s| port(s, "vm").number.is_some());
    assert_eq!(port(&status, "vm").absent, None);
    assert!(running.folder.join("later/vm.sock").exists());
}

#[test]
fn what_is_for_a_program_that_is_not_there_goes_to_nobody() {
    let running = Running::start("nobody", &format!("{TWO}[[port]]\nname = \"c\"\nkind = \"shm\"\n"));
    let (at_a, mut a) = running.attach("a");
    let (_at_c, mut c) = running.attach("c");
    // The machine of b is 02:...:0b, and no program is at b: neither before one was, nor after.
    for times in 1..3 {
        assert!(a.send(&frame(10, 11)).unwrap());
        if a.publish() {
            kick(&at_a);
        }
        let status = running.until("dropped", |s| s.gone.dropped.get("port_gone") == Some(&times));
        assert_eq!((status.ledger.accepted, status.ledger.dropped), (times, times));
        drop(running.attach("b"));
        running.until("b is free", |s| port(s, "b").number.is_none());
    }
    assert_eq!(c.receive(&mut [0; 2048]).unwrap(), None, "it was flooded");
    // An address that is no port's any more is open to any port.
    assert!(matches!(running.ask(Request::DelPort { name: "b".into() }), Answer::Ok(_)));
    assert!(a.send(&frame(10, 11)).unwrap());
    if a.publish() {
        kick(&at_a);
    }
    running.until("flooded", |s| port(s, "c").delivered == 1);
}

#[test]
fn containers_that_are_deleted_and_made_again_go_and_come() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("again", 3);
    let [switch, a, b] = [0, 1, 2].map(|n| all.0[n].as_str());
    [(1, a), (2, b)].into_iter().for_each(|(n, own)| machine(switch, own, n));
    let ports = file(switch, &[(1, a), (2, b)]).replace("mac = \"02:00:00:00:00:02\"\n", "");
    let running = Running::heard("again", &("user = \"nobody\"\n".to_owned() + &ports));
    running.until("both", |s| s.ports.iter().all(PortStatus::is_present));
    arrive(a, b, "10.0.0.2");
    let gone = |why: &str| {
        let status = running.until("it is absent", |s| port(s, "v2").absent.is_some());
        let absent = port(&status, "v2").absent.clone().unwrap();
        assert!(absent.again == Again::EverySecond && port(&status, "v2").number.is_none(), "{absent:?}");
        // The reason of the first attempt to open it may have come since.
        let words = [why, "No such device", "No such file", "is switched off"];
        assert!(words.iter().any(|words| absent.reason.contains(words)), "{absent:?}");
        // Nobody else hears frames for the station, and none waits for it.
        running.until("nothing waits", |s| s.ledger.queued == 0);
        running.line("the port's end", |l| {
            l["message"] == "port detached" && l["port"] == "v2" || l["message"] == "port broken"
        });
    };
    // The container ends: its namespace has no name any more.
    system(&format!("ip netns del {b}")).unwrap();
    gone("was deleted");
    system(&format!("ip netns add {b}")).unwrap();
    running.until("the old pair is gone", |_| system(&format!("ip -n {switch} link show v2")).is_err());
    machine(switch, b, 2);
    running.until("it is back", |s| port(s, "v2").is_present());
    arrive(a, b, "10.0.0.2");
    // Somebody deletes one end, and with it the other.
    system(&format!("ip -n {b} link del eth0")).unwrap();
    gone("its device is gone");
    machine(switch, b, 2);
    running.until("it is back", |s| port(s, "v2").is_present());
    arrive(a, b, "10.0.0.2");
    system(&format!("ip -n {switch} link del v2")).unwrap();
    gone("its device is gone");
    machine(switch, b, 2);
    running.until("it is back", |s| port(s, "v2").is_present());
    arrive(a, b, "10.0.0.2");
}

#[test]
fn a_reload_replaces_ports_at_devices_or_changes_nothing() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("replace", 4);
    let [switch, a, b, short] = [0, 1, 2, 3].map(|n| all.0[n].as_str());
    [(1, a), (2, b), (4, short)].into_iter().for_each(|(n, own)| machine(switch, own, n));
    system(&format!("ip -n {short} link set eth0 mtu 1400")).unwrap();
    let with = |ports: &[(usize, &str)]| "user = \"nobody\"\n".to_owned() + &file(switch, ports);
    let both = with(&[(1, a), (2, b)]);
    let running = Running::heard("replace", &both);
    running.until("both", |s| s.ports.iter().filter(|p| p.is_present()).count() == 2);
    arrive(a, b, "10.0.0.2");
    let names = |status: &Status| status.ports.iter().map(|p| (p.name.clone(), p.is_present())).collect::<Vec<_>>();
    // One port cannot be opened: the others stay as they are, though the file has neither.
    running.write(&with(&[(4, short)]));
    let refused = running.ask(Request::Reload);
    let words = format!("port v4: the device eth0 of {short}: its MTU is 1400");
    assert!(
        matches!(&refused, Answer::Error(why) if why.starts_with(&words) && why.ends_with("nothing was changed")),
        "{refused:?}"
    );
    assert_eq!(names(&running.status()), [("v1".into(), true), ("v2".into(), true)]);
    arrive(b, a, "10.0.0.1");
    // Two ports for one namespace are a fault of the file.
    running.write(&with(&[(1, a), (2, b), (3, b)]));
    let refused = running.ask(Request::Reload);
    assert!(matches!(&refused, Answer::Error(why) if why.contains("lead to the same namespace")), "{refused:?}");
    // The new port takes the namespace over from the old one; another one waits for its namespace.
    running.write(&(both.replacen("kind", "offload = false\nkind", 1) + &file(switch, &[(5, "sluice-no-such")])[13..]));
    let done = running.ask(Request::Reload);
    let words = "1 port added, 0 removed, 1 changed, port v5 is absent: the network namespace";
    assert!(matches!(&done, Answer::Ok(done) if done.starts_with(words)), "{done:?}");
    assert_eq!(names(&running.status()), [("v1".into(), true), ("v2".into(), true), ("v5".into(), false)]);
    arrive(a, b, "10.0.0.2");
    // A port under another name takes over, too.
    running.write(&both.replacen("name = \"v1\"", "name = \"first\"\ndevice = \"v1\"", 1));
    let done = running.ask(Request::Reload);
    assert!(matches!(&done, Answer::Ok(done) if done == "1 port added, 2 removed, 0 changed"), "{done:?}");
    assert_eq!(names(&running.status()), [("first".into(), true), ("v2".into(), true)]);
    arrive(a, b, "10.0.0.2");
    arrive(b, a, "10.0.0.1");
}
