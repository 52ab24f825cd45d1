//! The switch ends, and another one starts: a host goes on with the new one at its control socket.

use crate::common::{PATIENCE, Switch, at, errno, ip, mac, until};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sluicenet_dataplane::region::{Region, RingCells};
use sluicenet_socket::attach::attach;
use sluicenet_socket::{Config, Host, Ready};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A folder for a control socket, gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("sluicenet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn control(&self) -> PathBuf {
        self.0.join("vs.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The answers of a switch to a host that asks for a port.
#[derive(Clone, Copy, Debug)]
enum Says {
    Yes,
    No,
    Garbage,
    Nothing,
    NoDescriptors,
    AnotherAddress,
    TooFewBuffers,
}

/// A switch with a control socket that knows one thing: to attach.
struct Served {
    state: Arc<State>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct State {
    switch: Switch,
    says: Mutex<Says>,
    asked: AtomicUsize,
    taken: Mutex<BTreeSet<u8>>,
    streams: Mutex<Vec<UnixStream>>,
    memory: Mutex<Option<OwnedFd>>,
    stop: AtomicBool,
}

impl Served {
    /// Starts a switch as after one that was killed and left its socket.
    fn start(control: &Path, says: Says) -> Served {
        let _ = std::fs::remove_file(control);
        let listener = UnixListener::bind(control).unwrap();
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(State {
            switch: Switch::start(),
            says: Mutex::new(says),
            asked: AtomicUsize::new(0),
            taken: Mutex::default(),
            streams: Mutex::default(),
            memory: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let served = state.clone();
        let thread = std::thread::spawn(move || {
            let mut talks = Vec::new();
            while !served.stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        served.streams.lock().unwrap().push(stream.try_clone().unwrap());
                        let served = served.clone();
                        talks.push(std::thread::spawn(move || drop(served.converse(stream))));
                    }
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
                }
            }
            drop(listener);
            served.streams.lock().unwrap().drain(..).for_each(|s| drop(s.shutdown(std::net::Shutdown::Both)));
            talks.into_iter().for_each(|talk| talk.join().unwrap());
        });
        Served { state, thread: Some(thread) }
    }

    fn asked(&self) -> usize {
        self.state.asked.load(Ordering::Relaxed)
    }

    /// The switch is gone without notice.
    fn kill(self) {}
}

impl Drop for Served {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(|thread| thread.join());
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

impl State {
    fn converse(&self, mut stream: UnixStream) -> std::io::Result<()> {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let request: serde_json::Value = serde_json::from_str(&line)?;
        let n: u8 = request["name"].as_str().unwrap().parse().unwrap();
        let says = *self.says.lock().unwrap();
        self.asked.fetch_add(1, Ordering::Relaxed);
        let is_free = self.taken.lock().unwrap().insert(n);
        let refusal = match says {
            _ if !is_free => Some("{\"error\":\"somebody is attached\"}\n"),
            Says::No => Some("{\"error\":\"there is no port\"}\n"),
            Says::Garbage => Some("\u{0}what?\n"),
            Says::NoDescriptors => Some("{\"ok\":\"attached\"}\n"),
            Says::Nothing => Some(""),
            Says::Yes | Says::AnotherAddress | Says::TooFewBuffers => None,
        };
        if let Some(refusal) = refusal {
            stream.write_all(refusal.as_bytes())?;
            if is_free {
                self.taken.lock().unwrap().remove(&n);
            }
            return Ok(());
        }
        let port = self.switch.port(n, if matches!(says, Says::TooFewBuffers) { 32 } else { 1024 });
        *self.memory.lock().unwrap() = Some(port.access.memory.try_clone()?);
        let ip = ip(if matches!(says, Says::AnotherAddress) { 200 } else { n });
        let answer = serde_json::json!({"ok": "attached", "mac": mac_text(n), "ip": ip.to_string()}).to_string() + "\n";
        let fds: [BorrowedFd<'_>; 3] = [&port.access.memory, &port.access.kick, &port.access.wake].map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&stream, &[IoSlice::new(answer.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        // The port is the program's until it closes the connection.
        while !matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)) {}
        if !self.stop.load(Ordering::Relaxed) {
            self.switch.unplug(n);
            until("unplugged", || self.switch.vacant(n));
            self.taken.lock().unwrap().remove(&n);
        }
        Ok(())
    }
}

fn mac_text(n: u8) -> String {
    mac(n).0.map(|byte| format!("{byte:02x}")).join(":")
}

fn host(control: &Path, n: u8) -> Host {
    Host::open(attach(control, &n.to_string()).unwrap(), Config::new(ip(n), 24)).unwrap()
}

/// Bytes to and fro between two hosts, by a new stream.
fn talk(from: &Host, listener: &sluicenet_socket::TcplightListener) -> [sluicenet_socket::TcplightStream; 2] {
    let there = from.connect(listener.local_addr()).unwrap();
    let (here, _) = listener.accept().unwrap();
    let mut bytes = [0; 4];
    (&there).write_all(b"ping").unwrap();
    (&here).read_exact(&mut bytes).unwrap();
    (&here).write_all(b"pong").unwrap();
    (&there).read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"pong");
    [there, here]
}

#[test]
fn sockets_outlive_the_switch_and_streams_do_not() {
    let folder = Folder::new("outlive");
    let control = folder.control();
    let mut served = Served::start(&control, Says::Yes);
    let (a, b) = (host(&control, 1), host(&control, 2));
    let listener = b.listen(80, 10).unwrap();
    let (question, answer) = (a.bind_datagram(0).unwrap(), b.bind_datagram(53).unwrap());
    answer.set_nonblocking(true);
    let told = Arc::new(Mutex::new(Vec::<Ready>::new()));
    let tell = told.clone();
    listener.set_watch(Some(Box::new(move |ready| tell.lock().unwrap().push(ready))));
    for round in 1..=3 {
        let [there, here] = talk(&a, &listener);
        // Bytes and datagrams that arrived before the end are read.
        (&here).write_all(b"last").unwrap();
        until("there", || there.readable_bytes() == 4);
        question.send_to(b"early", at(2, 53)).unwrap();
        until("there", || answer.next_len() == Some(5));
        let accepting = {
            let listener = listener.clone();
            std::thread::spawn(move || listener.accept())
        };
        served.kill();
        until("both have heard of it", || there.ready().closed && here.ready().closed);
        assert!(there.ready().error && here.ready().error);
        let mut bytes = [0; 4];
        (&there).read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"last");
        assert_eq!(errno((&there).read(&mut bytes)), Errno::CONNRESET);
        assert_eq!(errno((&here).write(&bytes)), Errno::CONNRESET);
        assert_eq!(errno((&here).write(&bytes)), Errno::PIPE);
        // Nothing arrives, and no change is reported; earlier data is there.
        assert_eq!((listener.ready().readable, listener.ready().closed, listener.ready().error), (false, false, false));
        let before = told.lock().unwrap().len();
        assert_eq!(answer.recv_from(&mut [0; 9]).unwrap().0, 5);
        assert_eq!(errno(answer.recv_from(&mut [0; 9])), Errno::AGAIN);
        assert_eq!(errno(a.connect(at(2, 80))), Errno::NETDOWN);
        assert_eq!(errno(question.send_to(b"lost", at(2, 53))), Errno::NETDOWN);
        let while_away = b.listen(81, 10).unwrap();
        assert!(!accepting.is_finished());
        assert_eq!(told.lock().unwrap().len(), before);
        served = Served::start(&control, Says::Yes);
        until("attached", || [&a, &b].iter().all(|host| host.counters().attached_again == round));
        // The thread that waited all the time in `accept` gets the next connection.
        let there = a.connect(at(2, 80)).unwrap();
        let (here, peer) = accepting.join().unwrap().unwrap();
        assert_eq!((peer, here.local_addr()), (there.local_addr(), at(2, 80)));
        talk(&a, &while_away);
        question.send_to(b"late", at(2, 53)).unwrap();
        until("a datagram", || answer.recv_from(&mut [0; 9]).is_ok_and(|(n, _)| n == 4));
        assert_eq!((a.mac(), b.mac()), (mac(1), mac(2)));
    }
    served.kill();
    // A host may end while there is none.
    drop((a, b, listener, question, answer));
}

#[test]
fn a_switch_that_does_not_give_the_port_is_asked_again() {
    let folder = Folder::new("asked");
    let control = folder.control();
    let served = Served::start(&control, Says::Yes);
    let a = host(&control, 1);
    let listener = a.listen(80, 10).unwrap();
    served.kill();
    let says = [Says::No, Says::Garbage, Says::Nothing, Says::NoDescriptors, Says::AnotherAddress, Says::TooFewBuffers];
    let served = Served::start(&control, says[0]);
    for says in says {
        *served.state.says.lock().unwrap() = says;
        let before = served.asked();
        until("asked twice", || served.asked() >= before + 2);
        assert_eq!(a.counters().attached_again, 0, "{says:?}");
    }
    *served.state.says.lock().unwrap() = Says::Yes;
    until("attached", || a.counters().attached_again == 1);
    let b = host(&control, 2);
    talk(&b, &listener);
}

#[test]
fn a_switch_that_broke_the_rules_gives_a_new_port() {
    let folder = Folder::new("broke");
    let control = folder.control();
    let served = Served::start(&control, Says::Yes);
    let (b, a) = (host(&control, 2), host(&control, 1));
    let listener = a.listen(80, 10).unwrap();
    let [_, here] = talk(&b, &listener);
    // The program reports more entries than there is room for.
    let region = Region::open(served.state.memory.lock().unwrap().take().unwrap()).unwrap();
    let receive = 256 + 2 * RingCells::bytes(1024);
    region.word(receive).store(100_000, Ordering::Release);
    until("noticed", || here.ready().closed);
    until("attached", || a.counters().attached_again == 1);
    talk(&b, &listener);
}

#[test]
fn many_threads_see_the_switch_end_and_come_back() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 3;
    let folder = Folder::new("threads");
    let control = folder.control();
    let mut served = Served::start(&control, Says::Yes);
    let (a, b) = (host(&control, 1), host(&control, 2));
    let listener = b.listen(80, 128).unwrap();
    let (stop, echoed) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (stop, echoed, a, listener) = (&stop, &echoed, &a, &listener);
        let accepting = scope.spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                scope.spawn(move || drop(std::io::copy(&mut &stream, &mut &stream)));
            }
        });
        for _ in 0..THREADS {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(stream) = a.connect(at(2, 80)) else {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        continue;
                    };
                    stream.set_read_timeout(Some(PATIENCE));
                    let mut bytes = [0; 3000];
                    while (&stream).write_all(&[7; 3000]).and_then(|()| (&stream).read_exact(&mut bytes)).is_ok() {
                        assert_eq!(bytes, [7; 3000]);
                        echoed.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                }
            });
        }
        for round in 1..=ROUNDS {
            let before = echoed.load(Ordering::Relaxed);
            until("echoed", || echoed.load(Ordering::Relaxed) > before + 100);
            served.kill();
            served = Served::start(&control, Says::Yes);
            until("attached", || a.counters().attached_again == round && b.counters().attached_again == round);
        }
        let before = echoed.load(Ordering::Relaxed);
        until("echoed", || echoed.load(Ordering::Relaxed) > before + 100);
        stop.store(true, Ordering::Relaxed);
        // Wakes the thread in `accept`. A connection that ends before it is accepted, without a byte, would not.
        until("the end of the thread that accepts", || {
            let _ = a.connect(at(2, 80)).and_then(|stream| (&stream).write_all(&[0]));
            accepting.is_finished()
        });
    });
}
