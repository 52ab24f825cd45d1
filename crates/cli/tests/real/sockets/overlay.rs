//! nginx and its clients at two servers, over an overlay with credits and zBridge.

use super::*;

/// Two servers of an overlay, joined by a veth pair, and its controller. Ports have no addresses in their files. Where
/// they are `named`, those of the first server have a station each and one IPv4 address.
struct Overlay {
    switches: [Running; 2],
    folder: Dir,
    _controller: Started,
    _namespaces: Namespaces,
}

impl Overlay {
    fn new(name: &str, named: bool) -> Overlay {
        library();
        let folder = Dir::new(&format!("sockets-{name}"));
        let namespaces = Namespaces::new(name, 2);
        let [link, control] = [0, 1].map(|n| namespaces.0[n].clone());
        for line in [
            format!("ip -n {link} link add u1 type veth peer name u2"),
            format!("ip -n {link} link set u1 up"),
            format!("ip -n {link} link set u2 up"),
            format!("ip -n {control} addr add 172.16.0.1/32 dev lo"),
            format!("ip -n {control} addr add 172.16.0.11/32 dev lo"),
            format!("ip -n {control} addr add 172.16.0.12/32 dev lo"),
        ] {
            netns::system(&line).unwrap();
        }
        let mut servers = String::new();
        for n in 1..=2u8 {
            let key = folder.file(&format!("s{n}.key"), &format!("{n:02x}").repeat(32));
            std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
            let _ = writeln!(servers, "[[server]]\naddress = \"172.16.0.1{n}\"\nkey = \"{key}\"");
        }
        let file = format!("[controller]\nlisten = \"172.16.0.1:49789\"\nnetns = \"{control}\"\n{servers}");
        let file = folder.file("controller.toml", &file);
        let program = Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(["--quiet", "controller", &file]).spawn();
        let switches = [1, 2].map(|n| {
            let other = 3 - n;
            let key = folder.path(&format!("s{n}.key"));
            let port = |p: u8| {
                let own = match named && n == 1 {
                    true => format!("mac = \"02:00:00:00:00:0{p}\"\nip = \"10.1.0.1\"\n"),
                    false => String::new(),
                };
                format!("[[port]]\nname = \"p{p}\"\nkind = \"shm\"\ntenant = 7\nbuffers = 2048\n{own}")
            };
            let ports: String = (1..=4).map(port).collect();
            let file = format!(
                "[uplink]\ndevice = \"u{n}\"\nnetns = \"{link}\"\nmac = \"02:00:00:00:01:0{n}\"\nrate = \"1 Gb/s\"\n\
                 [overlay]\naddress = \"172.16.0.1{n}\"\ncontroller = \"172.16.0.1:49789\"\ncontroller_netns = \"{control}\"\n\
                 key = \"{key}\"\n[zcredit]\n[zbridge]\n[[network]]\ntenant = 7\nvni = 7007\n\
                 [[server]]\naddress = \"172.16.0.1{other}\"\nmac = \"02:00:00:00:01:0{other}\"\n{ports}"
            );
            Running::start(&format!("sockets-{name}-{n}"), &file)
        });
        Overlay { switches, folder, _controller: Started(program.unwrap()), _namespaces: namespaces }
    }

    /// A program at a server, 0 or 1, which has the address that ends with its number from 1.
    fn command(&self, server: usize, ports: &str, program: &str, args: &[&str]) -> Command {
        light(&self.switches[server], &self.folder, ports, server as u8 + 1, program, args)
    }

    fn run(&self, server: usize, ports: &str, program: &str, args: &[&str]) -> Output {
        let command = self.command(server, ports, program, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Started(command.unwrap()).output()
    }

    /// Runs a program until it succeeds.
    fn until(&self, server: usize, ports: &str, program: &str, args: &[&str]) -> Output {
        let start = Instant::now();
        loop {
            let done = self.run(server, ports, program, args);
            if done.status.success() {
                return done;
            }
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(start.elapsed() < PATIENCE, "{program} {args:?}: {}\n{said}", done.status);
        }
    }

    /// Frames that both uplinks dropped for a reason.
    fn dropped(&self, reason: &str) -> u64 {
        let of = |status: &Status| {
            let uplink = status.ports.iter().find(|p| p.name == "uplink").unwrap();
            uplink.counters.get(reason).copied().unwrap_or(0)
        };
        self.switches.iter().map(|switch| of(&switch.status())).sum()
    }
}

/// Whether this machine lacks a requirement of the overlay tests.
fn lacks_overlay() -> bool {
    if let Some(what) = netns::missing() {
        println!("SKIPPED: {what}");
        return true;
    }
    !has("nginx") || !has("curl") || !has("python3")
}

fn start_nginx(place: &Overlay) -> Started {
    let config = nginx_config(&place.folder);
    let folder = place.folder.0.display().to_string();
    let mut command = place.command(0, "p1,p2,p3,p4", "nginx", &["-p", &folder, "-c", &config]);
    let log = std::fs::File::create(place.folder.0.join("nginx.log")).unwrap();
    Started(command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap())
}

/// An nginx at the first server, of which both workers have served the second one.
fn nginx_serves(place: &Overlay) -> Started {
    let content = file_of(&place.folder, "large", 20_000_000);
    std::fs::write(place.folder.0.join("small"), "small\n").unwrap();
    let nginx = start_nginx(place);
    // The machine has sent no frame yet.
    place.until(1, "p1", "curl", &["-s", "-o", "got", "http://10.1.0.1:8080/large"]);
    assert!(std::fs::read(place.folder.0.join("got")).unwrap() == content, "other bytes");
    let start = Instant::now();
    while nginx_workers(&place.folder).len() < 2 {
        let args = ["-s", "-Z", "--parallel-immediate", "--no-keepalive"];
        let urls = ["-o", "got", "http://10.1.0.1:8080/small"].repeat(20);
        assert!(place.run(1, "p1", "curl", &[&args[..], &urls].concat()).status.success());
        assert!(start.elapsed() < PATIENCE, "one worker serves all");
    }
    for reason in ["forged_source", "too_big", "headroom_exceeded", "no_credit", "stations_lost"] {
        assert_eq!(place.dropped(reason), 0, "{reason}");
    }
    nginx
}

#[test]
fn nginx_with_two_workers_whose_ports_are_named_over_an_overlay() {
    if !lacks_overlay() {
        drop(nginx_serves(&Overlay::new("named", true)));
    }
}

#[test]
fn nginx_with_two_workers_over_an_overlay() {
    if lacks_overlay() {
        return;
    }
    let place = Overlay::new("overlay", false);
    // The port has the largest packet that both tunnel and reliability leave.
    assert_eq!(place.switches[1].attach("p4").0.mtu, Some(1424));
    let nginx = nginx_serves(&place);
    // A connection that is silent for longer than the time-out for dead hosts is still there.
    let idle = "import http.client, time\nc = http.client.HTTPConnection('10.1.0.1', 8080)\n\
        for pause in (5, 0):\n    c.request('GET', '/small')\n    s = c.sock\n    print(c.getresponse().read().decode().strip(), flush=True)\n\
        \x20   time.sleep(pause)\nassert c.sock is s\ntry:\n    s.recv(1)\nexcept OSError as e:\n    print(type(e).__name__)\n";
    let mut waiting = place.command(1, "p2", "python3", &["-c", idle]);
    let mut waiting = Started(waiting.stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(waiting.0.stdout.take().unwrap()).lines();
    assert_eq!([said.next().unwrap().unwrap(), said.next().unwrap().unwrap()], ["small", "small"]);
    // Until its workers are killed, which say nothing of that.
    nginx.signal("-STOP");
    for worker in nginx_workers(&place.folder) {
        assert!(Command::new("kill").args(["-9", &worker.to_string()]).status().unwrap().success());
    }
    assert_eq!(said.next().unwrap().unwrap(), "TimeoutError");
    assert!(waiting.0.wait().unwrap().success());
    // A server that is started anew is found, too, though it is another station.
    drop(nginx);
    let _nginx = start_nginx(&place);
    let done = place.until(1, "p1", "curl", &["-s", "http://10.1.0.1:8080/small"]);
    assert_eq!(done.stdout, b"small\n");
}
