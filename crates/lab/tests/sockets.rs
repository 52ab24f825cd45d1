//! Unmodified programs over light sockets, `LD_PRELOAD`: right answers, also when one end is killed.

mod common;
mod switching;

use common::{Dir, repository};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use switching::Running;

/// What a test waits for at most.
const PATIENCE: Duration = Duration::from_secs(120);
/// A host that says nothing for so long is dead to others.
const DEAD_AFTER: &str = "2000";

/// The library, built as this test was.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_sluicenet")).parent().unwrap();
        let profile = if folder.ends_with("release") { "release" } else { "test" };
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--offline",
                "--locked",
                "-p",
                "sluicenet-preload",
                "--profile",
                profile,
                "--target-dir",
            ])
            .arg(folder.parent().unwrap())
            .current_dir(repository(""))
            .status();
        assert!(built.unwrap().success(), "libsluicenet_socket.so was not built");
        folder.join("libsluicenet_socket.so")
    })
}

/// A switch with six ports, and what runs at them.
struct Place {
    switch: Running,
    folder: Dir,
}

impl Place {
    fn new(name: &str) -> Place {
        let mut file = String::new();
        for n in 1..=6 {
            let _ = writeln!(
                file,
                "[[port]]\nname = \"p{n}\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:0{n}\"\nbuffers = 2048"
            );
        }
        library();
        Place {
            switch: Running::start(&format!("sockets-{name}"), &file),
            folder: Dir::new(&format!("sockets-{name}")),
        }
    }

    /// A program whose sockets at an address of the light network are light.
    fn command(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(&self.folder.0)
            .env("LD_PRELOAD", library())
            .env("SLUICENET_CONTROL", self.switch.control())
            .env("SLUICENET_PORT", ports)
            .env("SLUICENET_ADDRESS", format!("10.1.0.{n}/24"))
            .env("SLUICENET_DEAD_AFTER_MS", DEAD_AFTER)
            .stdin(Stdio::null());
        command
    }

    fn start(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> Started {
        let log = std::fs::File::create(self.folder.0.join(format!("{program}-{n}.log"))).unwrap();
        let mut command = self.command(ports, n, program, args);
        Started(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    fn run(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> Output {
        let command = self.command(ports, n, program, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Started(command.unwrap()).output()
    }

    /// What a program said that has to succeed.
    fn answer(&self, ports: &str, n: u8, program: &str, args: &[&str]) -> String {
        let done = self.run(ports, n, program, args);
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{program} {args:?}: {}\n{out}\n{err}", done.status);
        out.into_owned()
    }

    /// Waits until a port of the light network takes connections.
    fn wait_for(&self, n: u8, port: u16) {
        let start = Instant::now();
        let try_once = format!("import socket; socket.create_connection(('10.1.0.{n}', {port})).close()");
        while !self.run("p6", 6, "python3", &["-c", &try_once]).status.success() {
            assert!(start.elapsed() < PATIENCE, "nobody listens at 10.1.0.{n}:{port}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A file of so many bytes, each of them of any value.
    fn file(&self, name: &str, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        let mut state = 1u64;
        for chunk in content.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..chunk.len()]);
        }
        std::fs::write(self.folder.0.join(name), &content).unwrap();
        content
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.0.join(name)).unwrap_or_default()
    }

    /// Frames that the switch dropped, but for those to programs that have ended.
    fn dropped(&self) -> u64 {
        self.switch.status().drops().iter().filter(|((_, reason), _)| *reason != "port_gone").map(|(_, n)| n).sum()
    }
}

/// A program, killed with this value.
struct Started(Child);

impl Started {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }

    fn output(mut self) -> Output {
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
                bytes
            })
        };
        let out = read(self.0.stdout.take().map(|pipe| Box::new(pipe) as _));
        let err = read(self.0.stderr.take().map(|pipe| Box::new(pipe) as _));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = self.0.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a program is there; says that the test is skipped where it is not.
fn has(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("PATH=$PATH:/usr/sbin command -v {program}")]).output().unwrap();
    if !found.status.success() {
        println!("SKIPPED: {program} is not installed");
    }
    found.status.success()
}

#[test]
fn a_program_sees_what_it_sees_of_the_kernel() {
    if !has("python3") {
        return;
    }
    let place = Place::new("seen");
    let script = repository("crates/lab/tests/data/sockets.py").display().to_string();
    let kernel = Command::new("python3").args([&script, "127.0.0.1"]).output().unwrap();
    assert!(kernel.status.success(), "{}", String::from_utf8_lossy(&kernel.stderr));
    let light = place.answer("p1,p2,p3", 1, "python3", &[&script, "10.1.0.1"]);
    let kernel = String::from_utf8_lossy(&kernel.stdout);
    for (of_kernel, of_light) in kernel.lines().zip(light.lines()) {
        assert_eq!(of_kernel, of_light, "kernel, light");
    }
    assert_eq!(kernel.lines().count(), light.lines().count());
    assert!(kernel.lines().count() > 90, "{kernel}");
}

#[test]
fn iperf3() {
    if !has("iperf3") {
        return;
    }
    let place = Place::new("iperf3");
    let _server = place.start("p1", 1, "iperf3", &["-s", "-B", "10.1.0.1"]);
    place.wait_for(1, 5201);
    for more in [
        &["-n", "200M"][..],
        &["-n", "100M", "-P", "4"],
        &["-n", "100M", "-R"],
        &["-u", "-b", "0", "-l", "1400", "-t", "1"],
    ] {
        let mut args = vec!["-c", "10.1.0.1", "-J"];
        args.extend(more);
        let said = place.answer("p2", 2, "iperf3", &args);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        if more[0] == "-u" {
            let sum = &said["end"]["sum"];
            assert!(sum["lost_packets"] == 0 && sum["packets"].as_u64() > Some(1_000), "{sum}");
        } else {
            let (sent, received) = (&said["end"]["sum_sent"]["bytes"], &said["end"]["sum_received"]["bytes"]);
            assert!(received.as_u64() >= Some(90_000_000) && sent.as_u64() >= received.as_u64(), "{sent} {received}");
        }
    }
    // Its client is killed in the middle, and the next one is served.
    let client = place.start("p2", 2, "iperf3", &["-c", "10.1.0.1", "-t", "60"]);
    std::thread::sleep(Duration::from_millis(700));
    drop(client);
    let start = Instant::now();
    while !place.run("p3", 3, "iperf3", &["-c", "10.1.0.1", "-n", "1M"]).status.success() {
        assert!(start.elapsed() < PATIENCE, "the server serves nobody any more");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_download_whose_bytes_are_compared() {
    if !has("curl") || !has("python3") {
        return;
    }
    let place = Place::new("download");
    let content = place.file("large", 100_000_000);
    let server = place.start("p1", 1, "python3", &["-m", "http.server", "--bind", "10.1.0.1", "8000"]);
    place.wait_for(1, 8000);
    let before = place.dropped();
    place.answer("p2", 2, "curl", &["-s", "-o", "got", "http://10.1.0.1:8000/large"]);
    assert!(place.read("got") == content, "other bytes");
    // The server is killed in the middle: curl says that, and soon.
    let mut curl =
        place.command("p2", 2, "curl", &["-s", "--limit-rate", "5M", "-o", "part", "http://10.1.0.1:8000/large"]);
    let curl = Started(curl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let start = Instant::now();
    while place.read("part").is_empty() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(place.dropped(), before, "nothing is lost but to the dead");
    drop(server);
    let status = curl.output().status;
    assert!([18, 56].contains(&status.code().unwrap_or(0)), "partial file, or failure to receive: {status}");
    assert!(content.starts_with(&place.read("part")), "what came is right");
    // Nobody listens now.
    let server = place.start(
        "p1",
        1,
        "python3",
        &["-c", "import socket, time; s = socket.socket(); s.bind(('10.1.0.1', 0)); s.listen(); time.sleep(100)"],
    );
    let start = Instant::now();
    loop {
        let status = place.run("p2", 2, "curl", &["-s", "http://10.1.0.1:8000/large"]).status;
        if status.code() == Some(7) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{status}");
    }
    drop(server);
}

#[test]
fn redis_with_fifty_clients() {
    if !has("redis-server") || !has("redis-benchmark") {
        return;
    }
    let place = Place::new("redis");
    let args =
        ["--bind", "10.1.0.1", "--protected-mode", "no", "--save", "", "--appendonly", "no", "--loglevel", "warning"];
    let server = place.start("p1", 1, "redis-server", &args);
    place.wait_for(1, 6379);
    let cli = |args: &[&str]| {
        let all: Vec<&str> = ["-h", "10.1.0.1"].iter().chain(args).copied().collect();
        place.answer("p3", 3, "redis-cli", &all).trim().to_owned()
    };
    let said = place.answer(
        "p2",
        2,
        "redis-benchmark",
        &["-h", "10.1.0.1", "-c", "50", "-n", "20000", "-t", "set,get,lpush,incr", "--csv"],
    );
    assert_eq!(said.lines().count(), 5, "{said}");
    assert_eq!(cli(&["get", "counter:__rand_int__"]), "20000", "each of them, once");
    assert_eq!(cli(&["llen", "mylist"]), "20000");
    // A child that saves has the descriptors, and disturbs nobody.
    cli(&["set", "key", "value"]);
    assert_eq!(cli(&["bgsave"]), "Background saving started");
    let start = Instant::now();
    while !cli(&["info", "persistence"]).contains("rdb_saves:1") {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(cli(&["get", "key"]), "value");
    // Clients that are killed are noticed, and others served.
    let clients = place.start("p2", 2, "redis-benchmark", &["-h", "10.1.0.1", "-c", "50", "-n", "100000000", "-q"]);
    let connected = || {
        cli(&["info", "clients"]).lines().find_map(|l| l.strip_prefix("connected_clients:")?.trim().parse::<u32>().ok())
    };
    let until = |what: &str, n: &dyn Fn(u32) -> bool| {
        let start = Instant::now();
        while !connected().is_some_and(n) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", connected());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until("fifty there", &|n| n >= 50);
    drop(clients);
    until("fifty gone", &|n| n <= 2);
    // And the server is killed under its clients.
    let mut clients =
        place.command("p2", 2, "redis-benchmark", &["-h", "10.1.0.1", "-c", "50", "-n", "100000000", "-q"]);
    let clients = Started(clients.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    until("fifty there", &|n| n >= 50);
    server.signal("-9");
    assert!(!clients.output().status.success(), "they say that it is gone");
}

#[test]
fn nginx_with_two_workers() {
    if !has("nginx") || !has("curl") {
        return;
    }
    let place = Place::new("nginx");
    let content = place.file("large", 30_000_000);
    std::fs::write(place.folder.0.join("small"), "small\n").unwrap();
    let folder = place.folder.0.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {folder}/{name};\n"))
        .concat();
    let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 2; daemon off; error_log {folder}/error.log; pid {folder}/pid;\n\
         events {{ worker_connections 512; }}\n\
         http {{ log_format worker '$pid'; access_log {folder}/access.log worker; sendfile on; root {folder};\n{temporary}\
         server {{ listen 10.1.0.1:8080; }} }}\n"
    );
    let config = place.folder.file("nginx.conf", &config);
    let nginx = place.start("p1,p3,p4,p5", 1, "nginx", &["-p", &folder.to_string(), "-c", &config]);
    place.wait_for(1, 8080);
    let urls: Vec<String> =
        (0..20).map(|i| format!("http://10.1.0.1:8080/{}", if i % 5 == 0 { "large" } else { "small" })).collect();
    let mut args = vec!["-s", "-Z", "--parallel-immediate", "--no-keepalive"];
    for (i, url) in urls.iter().enumerate() {
        args.extend(["-o", ["got-0", "got-1", "got-2", "got-3", "got-4"][i % 5], url]);
    }
    let single = |url: &str| place.answer("p2", 2, "curl", &["-s", url]);
    let workers = || {
        let log = String::from_utf8(place.read("access.log")).unwrap();
        let mut pids: Vec<u32> = log.lines().filter_map(|l| l.parse().ok()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    };
    let start = Instant::now();
    while workers().len() < 2 {
        place.answer("p2", 2, "curl", &args);
        assert!(start.elapsed() < PATIENCE, "one worker serves all");
    }
    assert!(place.read("got-0") == content, "other bytes");
    assert_eq!(single("http://10.1.0.1:8080/small"), "small\n");
    // A worker is killed; the master starts another one, and all is served again.
    assert!(Command::new("kill").args(["-9", &workers()[0].to_string()]).status().unwrap().success());
    let start = Instant::now();
    let mut served = 0;
    while served < 10 {
        let done = place.run("p2", 2, "curl", &["-s", "-m", "10", "http://10.1.0.1:8080/small"]);
        served = if done.stdout == b"small\n" { served + 1 } else { 0 };
        assert!(start.elapsed() < PATIENCE, "not served any more");
    }
    nginx.signal("-QUIT");
    let mut nginx = nginx;
    assert!(nginx.0.wait().unwrap().success());
}

#[test]
fn an_asyncio_echo() {
    if !has("python3") {
        return;
    }
    let place = Place::new("asyncio");
    let server = "import asyncio\n\
        async def echo(reader, writer):\n    while data := await reader.read(65536):\n        writer.write(data)\n        await writer.drain()\n    writer.close()\n\
        async def main():\n    server = await asyncio.start_server(echo, '10.1.0.1', 7000)\n    print('ready', flush=True)\n    await server.serve_forever()\n\
        asyncio.run(main())\n";
    let client = "import asyncio, os\n\
        async def one(n):\n    reader, writer = await asyncio.open_connection('10.1.0.1', 7000)\n    data = os.urandom(n)\n\
        \x20   async def send():\n        writer.write(data)\n        await writer.drain()\n        writer.write_eof()\n\
        \x20   _, got = await asyncio.gather(send(), reader.read(-1))\n    writer.close()\n    assert got == data, n\n\
        async def main():\n    await asyncio.gather(*(one(20_000 * i) for i in range(50)))\n\
        asyncio.run(main())\nprint('right')\n";
    let mut command = place.command("p1", 1, "python3", &["-c", server]);
    let mut running = Started(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let before = place.dropped();
    assert_eq!(place.answer("p2", 2, "python3", &["-c", client]), "right\n");
    assert_eq!(place.dropped(), before);
    // One that is killed in the middle is not the others' affair.
    let mut killed = place.start("p3", 3, "python3", &["-c", &client.replace("20_000", "2_000_000")]);
    std::thread::sleep(Duration::from_millis(400));
    let _ = killed.0.kill();
    assert_eq!(place.answer("p2", 2, "python3", &["-c", client]), "right\n");
    // The server is killed: whoever waits for it is told.
    let waiting = "import socket\ns = socket.create_connection(('10.1.0.1', 7000))\nprint('there', flush=True)\n\
        try:\n    print(s.recv(1))\nexcept OSError as e:\n    print(type(e).__name__)\n";
    let mut command = place.command("p2", 2, "python3", &["-c", waiting]);
    let mut told = Started(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(told.0.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "there");
    drop(running);
    assert_eq!(said.next().unwrap().unwrap(), "TimeoutError");
    assert!(told.0.wait().unwrap().success());
}

#[test]
fn what_cannot_be_is_said() {
    if !has("python3") {
        return;
    }
    let place = Place::new("said");
    let connect = "import socket, errno\ntry:\n    socket.create_connection(('10.1.0.9', 1))\nexcept OSError as e:\n    print(errno.errorcode[e.errno])\n";
    assert_eq!(place.answer("p1", 1, "python3", &["-c", connect]), "EHOSTUNREACH\n");
    let done = place.run("nosuchport", 1, "python3", &["-c", connect]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "ENETDOWN\n");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("there is no port nosuchport"), "{said}");
    let done = place.command("p1", 1, "python3", &["-c", connect]).env("SLUICENET_ADDRESS", "10.1.0").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("SLUICENET_ADDRESS=10.1.0: an address with its prefix is expected"), "{said}");
    // Datagrams to the light network never go by the kernel's, and those of a light socket nowhere else.
    let datagrams = "import ctypes, errno, socket\ndef code(f, *a):\n    try:\n        return f(*a)\n    except OSError as e:\n        return errno.errorcode[e.errno]\n\
        d = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        print(code(d().sendto, b'x', ('10.1.0.9', 9)), code(d().sendmsg, [b'x'], [], 0, ('10.1.0.9', 9)), code(d().connect, ('10.1.0.9', 9)))\n\
        s = d()\nprint(code(s.connect, ('10.1.0.9', 9)), code(s.connect, ('127.0.0.1', 9)), code(s.getpeername))\n\
        none = ctypes.create_string_buffer(16)\n\
        print(ctypes.CDLL(None).connect(s.fileno(), none, 16), code(s.getpeername))\n";
    let done = place.run("nosuchport", 1, "python3", &["-c", datagrams]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(said.lines().next(), Some("ENETDOWN ENETDOWN ENETDOWN"), "{said}");
    let said = place.answer("p1", 1, "python3", &["-c", datagrams]);
    assert_eq!(said, "1 1 None\nNone ENETUNREACH ('10.1.0.9', 9)\n0 ENOTCONN\n");
    // A child that uses what its parent has opened.
    let inherited = "import os, socket\nl = socket.create_server(('10.1.0.1', 0))\na = socket.create_connection(l.getsockname())\n\
        if os.fork() == 0:\n    try:\n        a.send(b'x')\n    except OSError as e:\n        print(e.errno == 95, flush=True)\n    os._exit(0)\n\
        os.wait()\n";
    assert_eq!(place.answer("p1,p2", 1, "python3", &["-c", inherited]), "True\n");
    // The switch ends under it.
    let mut waiting = place.command("p1", 1, "python3", &["-c", "import socket\nl = socket.create_server(('10.1.0.1', 0))\nprint('there', flush=True)\ntry:\n    l.accept()\nexcept OSError as e:\n    print(e.errno == 100)\n"]);
    let mut waiting = Started(waiting.stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(waiting.0.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "there");
    drop(place);
    assert_eq!(said.next().unwrap().unwrap(), "True");
}

/// Each pair moves bytes, loses none where nothing may be lost, and says what it costs beside TCP.
#[test]
fn what_a_byte_costs() {
    if let Some(what) = common::netns::missing() {
        println!("SKIPPED: {what}");
        return;
    }
    let bench = |words: &[&str]| {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
        let done = bench.args(["bench", "sockets", "--turns", "1", "--json"]).args(words).output().unwrap();
        (done.status.code(), serde_json::from_slice(&done.stdout), String::from_utf8(done.stderr).unwrap())
    };
    let (code, figures, said): (_, serde_json::Result<serde_json::Value>, _) =
        bench(&["--seconds", "0.2", "--streams", "2"]);
    assert_eq!(code, Some(0), "{said}");
    let figures = figures.unwrap();
    let pairs = figures["pairs"].as_array().unwrap();
    let word = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let names: Vec<_> =
        pairs.iter().map(|p| [&p["placement"], &p["guest"], &p["hypervisor"]].map(word).join(" ")).collect();
    let mut expected = Vec::new();
    for placement in ["servers", "hairpin"] {
        for hypervisor in ["lossy", "pfc", "tcp", "zfabric"] {
            for guest in ["tcp", "tcp-offload", "udp", "tcplight"] {
                if (guest, hypervisor) != ("tcplight", "lossy") {
                    expected.push(format!("{placement} {guest} {hypervisor}"));
                }
            }
        }
    }
    assert_eq!(names, expected);
    for pair in pairs {
        let median = |figure: &serde_json::Value| figure["median"].as_f64().unwrap();
        let [gbps, cpu, switch, machine] =
            ["gbps", "cpu_s_per_gb", "switch_s_per_gb", "machine_s_per_gb"].map(|name| median(&pair[name]));
        assert!(gbps > 0.0 && switch > 0.0 && cpu > switch && machine > 0.0, "{pair}");
        assert!(pair["hypervisor"] == "lossy" || pair["lost"] == 0, "{pair}");
        for (base, name) in [("tcp", "over_tcp"), ("tcp-offload", "over_tcp_offload")] {
            let same = |other: &&serde_json::Value| {
                other["placement"] == pair["placement"] && other["guest"] == base && other["hypervisor"] == "lossy"
            };
            let base = pairs.iter().find(same).unwrap();
            let throughput = median(&pair[name]["throughput"]) * median(&base["gbps"]) / gbps;
            let cpu = median(&pair[name]["less_cpu"]) * cpu / median(&base["cpu_s_per_gb"]);
            assert!((throughput - 1.0).abs() < 1e-6 && (cpu - 1.0).abs() < 1e-6, "{pair} beside {base}");
        }
    }
    // A receiver that sleeps 20 ms after every hundred frames gets some 5,000 of them in a second, whoever sends.
    let slow = ["--placement", "servers", "--hypervisor", "zfabric", "--guest", "tcplight,tcp", "--delay", "20000"];
    let (code, figures, said) = bench(&[&slow[..], &["--seconds", "1"]].concat());
    assert_eq!(code, Some(0), "{said}");
    for pair in figures.unwrap()["pairs"].as_array().unwrap() {
        let gbps = pair["gbps"]["median"].as_f64().unwrap();
        assert!(gbps > 0.0 && gbps < 0.07 && pair["lost"] == 0 && pair["over_tcp"].is_null(), "{pair}");
    }
    let (code, _, said) = bench(&["--guest", "tcplight", "--hypervisor", "lossy"]);
    assert!(code == Some(2) && said.contains("nothing against loss"), "{said}");
}
