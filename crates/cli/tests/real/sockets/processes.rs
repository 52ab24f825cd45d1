//! A process's sockets in its children, its threads and programs executed anew, and the messages where there are none.

use super::*;

/// Connections that wait to be accepted at the first fork go to any process that accepts, as over the kernel.
#[test]
fn connections_that_wait_at_a_fork_are_accepted_behind_it() {
    if !has("python3") {
        return;
    }
    let place = Place::new("waiting");
    let server = "import os, socket, sys\nl = socket.create_server(('10.1.0.1', 7000))\nprint('ready', flush=True)\n\
        sys.stdin.readline()\nif os.fork() == 0:\n    for _ in range(3):\n        c, peer = l.accept()\n        assert peer[0] == '10.1.0.2', peer\n\
        \x20       while data := c.recv(65536):\n            c.sendall(data)\n        c.close()\n    os._exit(0)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))\n";
    let client = "import os, socket, threading\nto = ('10.1.0.1', 7000)\nwaiting = [socket.create_connection(to) for _ in range(2)]\n\
        waiting[1].sendall(b'early')\nprint('connected', flush=True)\n\
        def echo(s, first=b''):\n    data = os.urandom(2_000_000)\n\
        \x20   def send():\n        s.sendall(data)\n        s.shutdown(socket.SHUT_WR)\n\
        \x20   t = threading.Thread(target=send)\n    t.start()\n    got = b''\n    while more := s.recv(65536):\n        got += more\n\
        \x20   t.join()\n    assert got == first + data, (len(got), len(data))\n    s.close()\n\
        echo(waiting[0])\necho(waiting[1], b'early')\necho(socket.create_connection(to))\nprint('right')\n";
    let mut command = place.command("p1,p3", 1, "python3", &["-c", server]);
    let mut server = Started(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut of_server = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert_eq!(of_server.next().unwrap().unwrap(), "ready");
    let mut command = place.command("p2", 2, "python3", &["-c", client]);
    let mut client = Started(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut of_client = BufReader::new(client.0.stdout.take().unwrap()).lines();
    assert_eq!(of_client.next().unwrap().unwrap(), "connected");
    server.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(of_client.next().unwrap().unwrap(), "right");
    assert_eq!(of_server.next().unwrap().unwrap(), "0");
    assert!(client.0.wait().unwrap().success() && server.0.wait().unwrap().success());
}

/// A thread of the parent is in the middle of a call, with its locks, as often as not.
#[test]
fn a_child_uses_what_a_thread_of_its_parent_had_locked() {
    if !has("python3") {
        return;
    }
    let place = Place::new("locked");
    let forks = "import os, select, signal, socket, threading\nl = socket.create_server(('10.1.0.1', 0))\n\
        b = socket.create_connection(l.getsockname())\na, _ = l.accept()\nep = select.epoll()\nep.register(a, select.EPOLLIN | select.EPOLLET)\n\
        over = False\ndef busy():\n    while not over:\n        b.send(b'x' * 10)\n        a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n        a.recv(100)\n\
        t = threading.Thread(target=busy)\nt.start()\nfailed = 0\n\
        for _ in range(300):\n    child = os.fork()\n    if child == 0:\n        signal.alarm(20)\n        p = select.poll()\n        p.register(a)\n        p.poll(0)\n\
        \x20       a.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)\n        os._exit(0)\n\
        \x20   failed += os.waitpid(child, 0)[1] != 0\n    if failed:\n        break\nover = True\nt.join()\nprint(failed)\n";
    assert_eq!(place.answer("p1,p2", 1, "python3", &["-W", "ignore", "-c", forks]), "0\n");
}

#[test]
fn files_of_sockets_are_opened_anew_and_flushed() {
    if !has("python3") {
        return;
    }
    let place = Place::new("files");
    place.folder.file("read", "a line\n");
    let files = "import ctypes, os, socket, stat\nc = ctypes.CDLL(None)\nc.fdopen.restype = c.freopen.restype = c.fgets.restype = ctypes.c_void_p\n\
        P = ctypes.c_void_p\nl = socket.create_server(('10.1.0.1', 0))\nb = socket.create_connection(l.getsockname())\na, _ = l.accept()\n\
        def file(mode):\n    return P(c.fdopen(os.dup(b.fileno()), mode))\n\
        f = file(b'w')\nn = c.fileno(f)\nc.fputs(b'one', f)\n\
        assert c.freopen(b'written', b'w', f) == f.value\nprint(a.recv(9), c.fileno(f) == n, stat.S_ISREG(os.fstat(n).st_mode))\n\
        c.fputs(b'two', f)\nassert c.fclose(f) == 0\nprint(open('written').read())\n\
        f = file(b'w')\nassert c.freopen(b'read', b'r', f) == f.value\nline = ctypes.create_string_buffer(20)\nassert c.fgets(line, 20, f)\nprint(line.value, c.fputs(b'x', f))\n\
        c.fclose(f)\nf = file(b'r+')\nn = c.fileno(f)\nprint(c.freopen(b'no/such', b'r', f))\n\
        try:\n    os.fstat(n)\nexcept OSError as e:\n    print(e.errno)\n\
        f = file(b'w')\nc.fputs(b'three', f)\nc.fcloseall()\nprint(a.recv(9))\nb.send(b'four')\nprint(a.recv(9))\n";
    let said = place.answer("p1", 1, "python3", &["-c", files]);
    assert_eq!(said, "b'one' True True\ntwo\nb'a line\\n' -1\nNone\n9\nb'three'\nb'four'\n");
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
    assert!(said.contains("SLUICENET_ADDRESS=10.1.0: an address with its prefix"), "{said}");
    let done = place.command("p1", 1, "python3", &["-c", connect]).env("SLUICENET_MUT", "1400").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(said.matches("SLUICENET_MUT is not read").count(), 1, "{said}");
    // Datagrams to the light network never go by the kernel's network, and datagrams of a light socket go nowhere else.
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
    // A child that uses the sockets of its parent.
    let inherited = "import os, socket\nl = socket.create_server(('10.1.0.1', 0))\na = socket.create_connection(l.getsockname())\n\
        if os.fork() == 0:\n    try:\n        a.send(b'x')\n    except OSError as e:\n        print(e.errno == 95, flush=True)\n    os._exit(0)\n\
        os.wait()\n";
    assert_eq!(place.answer("p1,p2", 1, "python3", &["-c", inherited]), "True\n");
}
