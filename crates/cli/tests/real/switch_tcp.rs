//! TCP between two tenants of a switch as a process: its segments, which the kernel cuts and merges on their way, come
//! in order.

use crate::switching::Running;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::netns;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const BYTES: usize = 1 << 30;
/// As iperf3 writes.
const BLOCK: usize = 128 << 10;

/// Segments that came before those in front of them, at a tenant's kernel.
fn out_of_order(lan: &Lan, i: usize) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat");
    let text = lan.tenant(i).enter(read).unwrap().unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:")).map(str::split_whitespace);
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let count = names.zip(values).find(|&(name, _)| name == "TCPOFOQueue").map(|(_, value)| value.parse().unwrap());
    count.expect("TCPOFOQueue in netstat")
}

#[test]
fn tcp_comes_in_order() {
    if let Err(e) = netns::may_make_namespaces() {
        eprintln!("SKIPPED: {e}");
        return;
    }
    let tag = "tcporder";
    let lan = Lan::create(tag, 2, Wiring::Valve).unwrap();
    let port = |i: usize| {
        format!(
            "[[port]]\nname = \"t{i}\"\nkind = \"veth\"\nnetns = \"sluice-{tag}-switch\"\ndevice = \"p{i}\"\n\
             tenant_netns = \"sluice-{tag}-{i}\"\ntenant_device = \"{DEVICE}\"\n"
        )
    };
    let switch = Running::start(tag, &(port(0) + &port(1)));
    switch.until("both are there", |s| s.ports.len() == 2 && s.ports.iter().all(|p| p.number.is_some()));
    let at = Lan::socket(1, 7000);
    let listener = lan.tenant(1).enter(|| TcpListener::bind(at)).unwrap().unwrap();
    let mut stream = lan.tenant(0).enter(|| TcpStream::connect(at)).unwrap().unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    // By large pieces, or it is the receiver that all wait for.
    let receiving = std::thread::spawn(move || {
        let mut block = vec![0; BLOCK];
        let mut received = 0;
        while let n @ 1.. = peer.read(&mut block).unwrap() {
            received += n;
        }
        received
    });
    let block = vec![0; BLOCK];
    (0..BYTES / BLOCK).for_each(|_| stream.write_all(&block).unwrap());
    drop(stream);
    assert_eq!(receiving.join().unwrap(), BYTES);
    assert_eq!(out_of_order(&lan, 1), 0, "segments overtook others");
}
