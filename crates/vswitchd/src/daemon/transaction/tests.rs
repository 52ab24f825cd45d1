//! Reloads of a switch without its control socket: its ports are programs' and guests', which take no privileges.

use super::*;
use crate::notify::Notify;
use crate::sandbox::Sandbox;
use crate::served::Life;
use rustix::event::{EventfdFlags, eventfd};
use sluicenet_proto::rng::Rng;
use sluicenet_testkit::Dir;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread::JoinHandle;

/// A switch without ports, with its engine on a thread.
struct Switch {
    daemon: Daemon,
    stop: Arc<AtomicBool>,
    engine: Option<JoinHandle<()>>,
    folder: Dir,
}

impl Switch {
    fn new(name: &str) -> Switch {
        let folder = Dir::new(name);
        let file = folder.0.join("vs.toml");
        std::fs::write(&file, "").unwrap();
        std::fs::write(folder.0.join("file"), "").unwrap();
        let config = Config::load(&file).unwrap();
        let mut engine = Engine::new(config.ports_max, config.vale.clone());
        let remote = engine.remote().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let engine = std::thread::spawn(move || engine.run(&stops).unwrap());
        let daemon = Daemon {
            remote,
            state: Mutex::new(State { config, ports: Vec::new(), made: 0 }),
            reloads: Mutex::new(()),
            changes: RwLock::new(()),
            life: Life::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
            notify: Notify::default(),
            sandbox: Sandbox::default(),
            helper: None,
        };
        Switch { daemon, stop, engine: Some(engine), folder }
    }

    fn reload(&self, file: &str) -> Result<String, String> {
        let text = file.replace("FOLDER", self.folder.0.to_str().unwrap());
        std::fs::write(self.folder.0.join("vs.toml"), text).unwrap();
        self.daemon.become_that_of_file()
    }

    fn config(&self) -> Config {
        self.daemon.state().config.clone()
    }

    /// The ports in the engine by name, with their limits, and the absent ones.
    fn ports(&self) -> (Vec<(String, Option<u64>)>, Vec<String>) {
        let reports = |engine: &mut Engine| -> Vec<PortReport> {
            (0..engine.port_count()).filter_map(|k| engine.report(k)).filter(|report| report.present).collect()
        };
        let there = self.daemon.remote.run(reports).unwrap();
        let mut there: Vec<_> = there.into_iter().map(|r| (r.name, r.rate.map(|rate| rate.as_bps()))).collect();
        there.sort();
        let state = self.daemon.state();
        let absent = state.ports.iter().filter(|p| p.absent.is_some()).map(|p| p.config.name.clone()).collect();
        (there, absent)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.daemon.remote.post(|_| {});
        if let Some(engine) = self.engine.take() {
            engine.join().unwrap();
        }
    }
}

/// A random file, and whether a port of it can never be opened.
fn random_file(rng: &mut Rng) -> (String, bool) {
    let mut file = format!("[watchdog]\ndetection_time = \"{} ms\"\n", 100 + rng.below(5));
    let broken = rng.below(2) == 0;
    let names: Vec<u64> = (0..6).filter(|_| rng.below(3) > 0).collect();
    let worst = names.get(rng.below(6) as usize % names.len().max(1)).filter(|_| broken);
    let policy = rng.below(3) == 0;
    if policy {
        file += &format!("[[policy.machine]]\nmac = \"02:00:00:00:01:{:02x}\"\ngroup = \"red\"\n", rng.below(3));
    }
    let first = rng.below(6);
    for n in &names {
        let socket = rng.below(4);
        let kind = match rng.below(4) {
            _ if worst == Some(n) => "kind = \"vhost-user\"\nsocket = \"FOLDER/file/x.sock\"".to_owned(),
            0 => format!("kind = \"shm\"\nbuffers = {}", 64 << rng.below(2)),
            1 => "kind = \"vhost-user\"\nsocket = \"FOLDER/missing/x.sock\"".to_owned(),
            2 => format!("kind = \"vhost-user\"\nconnect = \"FOLDER/c{socket}.sock\""),
            _ => format!("kind = \"vhost-user\"\nsocket = \"FOLDER/s{socket}.sock\"\nagent = {}", rng.below(2) == 0),
        };
        file += &format!("[[port]]\nname = \"p{n}\"\n{kind}\n");
        if policy || rng.below(2) == 0 {
            // Addresses move between ports.
            file += &format!("mac = \"02:00:00:00:00:{:02x}\"\n", (n + first) % 6);
        }
        if rng.below(2) == 0 {
            file += &format!("rate = \"{} Mb/s\"\n", 1 + rng.below(3));
        }
    }
    (file, worst.is_some())
}

#[test]
fn after_a_reload_the_ports_are_those_of_the_old_file_or_of_the_new_one() {
    let mut rng = Rng::from_words(&[27, 7]);
    let switch = Switch::new("transaction");
    let mut refused = 0;
    for round in 0..1_000 {
        let before = switch.config();
        let there = switch.ports();
        let (file, broken) = random_file(&mut rng);
        let outcome = switch.reload(&file);
        let now = switch.config();
        if broken {
            let why = outcome.unwrap_err();
            assert!(why.contains("/file/x.sock: Not a directory") && why.contains("nothing was changed"), "{why}");
            assert_eq!((&now.ports, now.vale.watchdog), (&before.ports, before.vale.watchdog));
            assert_eq!((switch.ports(), now.policy == before.policy), (there, true), "round {round}: {file}\n{why}");
            refused += 1;
        } else {
            outcome.unwrap();
            let wanted = Config::load(&now.file).unwrap();
            assert_eq!((&now.ports, now.vale.watchdog), (&wanted.ports, wanted.vale.watchdog));
            assert!(now.policy == wanted.policy);
        }
        let names = |state: &State| state.ports.iter().map(|p| p.config.clone()).collect::<Vec<_>>();
        assert_eq!(names(&switch.daemon.state()), now.ports, "round {round}");
        // Each guest's port is in service with its limit, unless it is absent.
        let (there, absent) = switch.ports();
        let guests = now.ports.iter().filter(|p| p.kind.name() != "shm" && !absent.contains(&p.name));
        let mut expected: Vec<_> = guests.map(|p| (p.name.clone(), p.rate.map(|rate| rate.as_bps()))).collect();
        expected.sort();
        assert_eq!(there, expected, "round {round}: {file}");
        for port in now.ports.iter().filter(|p| absent.contains(&p.name)) {
            let sockets = |other: &&PortConfig| other.kind.shares_with(&port.kind) && other.name != port.name;
            let twice = now.ports.iter().any(|other| sockets(&other));
            let crate::config::PortKind::VhostUser { socket, .. } = &port.kind else { panic!("{port:?}") };
            assert!(twice || socket.path().parent().is_some_and(|folder| folder.ends_with("missing")), "{port:?}");
        }
    }
    assert!((300..700).contains(&refused), "{refused}");
    // The last ports go, and so do their sockets.
    switch.reload("").unwrap();
    assert_eq!(switch.ports(), (vec![], vec![]));
    let left = std::fs::read_dir(&switch.folder.0).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| Path::new(name).extension().is_some_and(|ext| ext == "sock")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_port_that_had_to_be_closed_for_a_failed_reload_is_open_again() {
    let switch = Switch::new("rollback");
    let file = |agent: bool, socket: &str| {
        format!("[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/a.sock\"\nagent = {agent}\n")
            + &format!("[[port]]\nname = \"b\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/{socket}\"\nagent = {agent}\n")
    };
    std::fs::create_dir(switch.folder.0.join("d")).unwrap();
    assert_eq!(switch.reload(&file(false, "d/b.sock")).unwrap(), "2 ports added, 0 removed, 0 changed");
    // Both ports take their sockets from themselves, and that of b is under a file now.
    std::fs::rename(switch.folder.0.join("d"), switch.folder.0.join("e")).unwrap();
    std::fs::write(switch.folder.0.join("d"), "").unwrap();
    let before = switch.config().ports;
    let why = switch.reload(&file(true, "d/b.sock")).unwrap_err();
    assert!(
        why.starts_with("port b: ") && why.contains("the ports of the old file stay, but port b is absent"),
        "{why}"
    );
    assert_eq!((switch.config().ports, switch.ports()), (before.clone(), (vec![("a".into(), None)], vec!["b".into()])));
    assert!(switch.folder.0.join("a.sock").exists());
    // It comes back as soon as it can.
    std::fs::remove_file(switch.folder.0.join("d")).unwrap();
    std::fs::create_dir(switch.folder.0.join("d")).unwrap();
    switch.daemon.try_again();
    assert_eq!(switch.ports().1, Vec::<String>::new());
    assert_eq!(switch.config().ports, before);
    // Only a has to be closed, and is the same as before.
    let two = file(true, "file/b.sock");
    let why = switch.reload(&two).unwrap_err();
    assert!(why.ends_with("nothing was changed"), "b is opened first: {why}");
    assert_eq!(switch.ports().0.len(), 2);
    assert_eq!(switch.reload(&file(true, "d/b.sock")).unwrap(), "0 ports added, 0 removed, 2 changed");
}

#[test]
fn a_port_whose_folder_comes_later_is_absent_and_said_so() {
    let switch = Switch::new("later");
    let file = "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/late/vm.sock\"\n";
    let done = switch.reload(file).unwrap();
    assert!(done.starts_with("1 port added, 0 removed, 0 changed, port vm is absent: "), "{done}");
    assert!(done.ends_with("No such file or directory (os error 2) (tried again every second)"), "{done}");
    switch.daemon.try_again();
    assert_eq!(switch.ports(), (vec![], vec!["vm".into()]));
    std::fs::create_dir(switch.folder.0.join("late")).unwrap();
    switch.daemon.try_again();
    assert_eq!(switch.ports(), (vec![("vm".into(), None)], vec![]));
}

#[test]
fn a_port_of_a_command_survives_a_reload_and_a_port_of_the_file_goes_before_it() {
    let switch = Switch::new("reload-attached");
    let settings = ["kind=shm", "mac=02:00:00:00:00:0a"].map(str::to_owned).to_vec();
    let added =
        crate::served::Served::answer(&switch.daemon, crate::control::Request::AddPort { name: "a".into(), settings });
    assert!(matches!(added, crate::control::Answer::Ok(_)), "{added:?}");
    let names = || switch.daemon.configs().into_iter().map(|port| (port.name, port.attached)).collect::<Vec<_>>();
    switch.reload("[[port]]\nname = \"b\"\nkind = \"shm\"").unwrap();
    assert_eq!(names(), [("b".into(), false), ("a".into(), true)]);
    let clash = switch.reload("[[port]]\nname = \"c\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0a\"").unwrap_err();
    assert!(
        clash.starts_with("port c: its `mac` is that of port a") && clash.ends_with("nothing was changed"),
        "{clash}"
    );
    assert_eq!(names(), [("b".into(), false), ("a".into(), true)]);
    // Nor an IP address, whoever asks for it.
    let guest =
        |name: &str| format!("[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/{name}.sock\"\n");
    switch.reload(&format!("{}ip = \"10.0.0.0/24\"", guest("g"))).unwrap();
    let settings = ["kind=shm", "ip=10.0.0.7"].map(str::to_owned).to_vec();
    let add = crate::control::Request::AddPort { name: "h".into(), settings };
    let refused = crate::served::Served::answer(&switch.daemon, add);
    let words = "port h: its `ip` 10.0.0.7 is that of port g already";
    assert!(matches!(&refused, crate::control::Answer::Error(why) if why == words), "{refused:?}");
    let ports = format!("{}ip = \"10.0.0.7\"\n{}ip = \"10.0.0.7\"", guest("g"), guest("h"));
    let refused = switch.reload(&ports).unwrap_err();
    assert!(refused.contains("ports g and h of one tenant have the same `ip` 10.0.0.7"), "{refused}");
    switch.reload("[[port]]\nname = \"a\"\nkind = \"shm\"").unwrap();
    assert_eq!(names(), [("a".into(), false)]);
    switch.reload("").unwrap();
    assert_eq!(names(), []);
}
