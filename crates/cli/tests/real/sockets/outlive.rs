//! A switch that is killed and started again under programs that go on.

use super::*;

/// Processor time of a process and its children, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let of: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The fields behind the process's name: its state, its parent, and further on the time in its own code and in
        // the kernel.
        let fields: Vec<u64> = stat.rsplit(')').next()?.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        let is_wanted = of == pid || fields.get(1) == Some(&u64::from(pid));
        is_wanted.then(|| fields[11] + fields[12])
    });
    processes.sum()
}

/// The switch is killed under servers and started again, twice. They serve before and after, and do next to nothing meanwhile.
fn outlive_the_switch(place: &mut Place, servers: &[&Started], mut serve: impl FnMut(&Place)) {
    const WATCHED: Duration = Duration::from_secs(2);
    serve(place);
    for _ in 0..2 {
        place.switch.kill();
        std::thread::sleep(Duration::from_millis(200));
        let spent = || servers.iter().map(|server| ticks(server.0.id())).sum::<u64>();
        let before = spent();
        std::thread::sleep(WATCHED);
        let spent = spent() - before;
        println!("{} servers without a switch: {} ms of processors in {WATCHED:?}", servers.len(), 10 * spent);
        // A program that asks without end uses a whole processor.
        assert!(spent < 100, "{spent} ticks of 10 ms in {WATCHED:?}");
        place.switch.again();
        serve(place);
    }
}

#[test]
fn redis_and_asyncio_outlive_the_switch() {
    if !has("python3") || !has("redis-server") {
        return;
    }
    let mut place = Place::new("outlive");
    let redis = place.start("p1", 1, "redis-server", &["--bind", "10.1.0.1", "--protected-mode", "no", "--save", ""]);
    let echo = "import asyncio\n\
        async def echo(reader, writer):\n    while data := await reader.read(65536):\n        writer.write(data)\n        await writer.drain()\n    writer.close()\n\
        async def main():\n    server = await asyncio.start_server(echo, '10.1.0.2', 7000)\n    await server.serve_forever()\n\
        asyncio.run(main())\n";
    let asyncio = place.start("p2", 2, "python3", &["-c", echo]);
    // A client that is connected when the switch ends. As many programs do, it connects again until it can.
    let client = "import select, socket, time\ndef connect():\n    return socket.create_connection(('10.1.0.2', 7000))\n\
        while True:\n    try:\n        s = connect()\n        break\n    except OSError:\n        time.sleep(0.05)\n\
        for _ in range(2):\n    s.sendall(b'x')\n    print(s.recv(1), flush=True)\n    p = select.poll()\n    p.register(s, select.POLLIN)\n    print(p.poll()[0][1] & select.POLLHUP)\n\
        \x20   try:\n        s.recv(1)\n    except OSError as e:\n        print(type(e).__name__)\n    why = set()\n    s = None\n    while not s:\n        try:\n            s = connect()\n\
        \x20       except OSError as e:\n            why.add(e.errno)\n            time.sleep(0.05)\n    print(100 in why, flush=True)\n";
    let mut command = place.command("p3", 3, "python3", &["-c", client]);
    let mut client = Started(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(client.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut count = 0;
    outlive_the_switch(&mut place, &[&redis, &asyncio], |place| {
        place.wait_for(1, 6379);
        place.wait_for(2, 7000);
        count += 1;
        let seen: &[&str] = match count {
            1 => &["b'x'"],
            2 => &["16", "ConnectionResetError", "True", "b'x'"],
            _ => &["16", "ConnectionResetError", "True"],
        };
        assert_eq!(said.by_ref().take(seen.len()).collect::<Vec<_>>(), seen);
        // The server still has its data.
        let answer = place.answer("p4", 4, "redis-cli", &["-h", "10.1.0.1", "incr", "n"]);
        assert_eq!(answer.trim(), count.to_string());
        let echo =
            "import socket\ns = socket.create_connection(('10.1.0.2', 7000))\ns.sendall(b'there?')\nprint(s.recv(6))\n";
        assert_eq!(place.answer("p4", 4, "python3", &["-c", echo]), "b'there?'\n");
    });
    assert!(client.0.wait().unwrap().success());
}

#[test]
fn nginx_and_its_workers_outlive_the_switch() {
    if !has("python3") || !has("nginx") {
        return;
    }
    let mut place = Place::new("outlive-nginx");
    let content = place.file("content", 200_000);
    let config = nginx_config(&place.folder);
    let nginx = place.start("p1,p2,p3", 1, "nginx", &["-c", &config]);
    let get = "import hashlib, urllib.request\nfor _ in range(20):\n    print(hashlib.sha256(urllib.request.urlopen('http://10.1.0.1:8080/content').read()).hexdigest())\n";
    let hash = "import hashlib, sys\nprint(hashlib.sha256(open('content', 'rb').read()).hexdigest())\n";
    let expected = place.answer("p5", 5, "python3", &["-c", hash]).repeat(20);
    assert_eq!(content.len(), 200_000);
    outlive_the_switch(&mut place, &[&nginx], |place| {
        place.wait_for(1, 8080);
        assert_eq!(place.answer("p4", 4, "python3", &["-c", get]), expected);
    });
    assert!(!nginx_workers(&place.folder).is_empty());
}
