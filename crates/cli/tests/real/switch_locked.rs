//! Locked ports: a namespace whose root sends arbitrary frames, past its kernel.

use crate::switching::Running;
use sluicenet_testkit::netns::{Namespaces, missing, system};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const SCRIPT: &str = include_str!("../data/raw_frames.py");
/// Frames of each kind.
const EACH: usize = 300;

fn python(namespace: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "python3", "-c", SCRIPT]).args(arguments);
    command
}

/// Reports the words in frames that a namespace receives.
struct Ear(Child, Receiver<String>);

impl Ear {
    fn new(namespace: &str) -> Ear {
        let mut child = python(namespace, &["hear", "FORGED", "HONEST"]).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, heard) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let ear = Ear(child, heard);
        assert_eq!(ear.next(), "ready");
        ear
    }

    fn next(&self) -> String {
        self.1.recv_timeout(Duration::from_secs(60)).expect("a line from the namespace")
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VICTIM: [u8; 6] = [2, 0, 0, 0, 0, 2];
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 3];

fn frame(to: [u8; 6], from: [u8; 6], kind: [u8; 2], payload: &[&[u8]], word: &str) -> Vec<u8> {
    [&to[..], &from, &kind, &payload.concat(), word.as_bytes(), &[0; 20]].concat()
}

/// An IPv4 datagram from 10.0.0.`from` and a UDP port to the victim.
fn ipv4(from: u8, [from_port, to_port]: [u8; 2], word: &str) -> Vec<u8> {
    let header = [0x45, 0, 0, 34, 0, 9, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, 2];
    frame(VICTIM, ATTACKER, [8, 0], &[&header, &[0, from_port, 0, to_port, 0, 14, 0, 0]], word)
}

/// A message of neighbour discovery from the link-local address of the attacker.
fn neighbour(message: &[u8]) -> Vec<u8> {
    let source = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFE, 0, 0, 1];
    let all = [0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let header = [0x60, 0, 0, 0, 0, message.len() as u8, 58, 255];
    frame([0x33, 0x33, 0, 0, 0, 1], ATTACKER, [0x86, 0xDD], &[&header, &source, &all, message], "FORGED")
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 0], &frame[12..]].concat()
}

#[test]
fn a_root_that_forges_frames_reaches_nobody_and_is_named() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        return println!("skipped: no python3");
    }
    let all = Namespaces::new("locked", 4);
    let [switch, attacker, victim, gateway] = [0, 1, 2, 3].map(|n| all.0[n].as_str());
    let mut file = String::new();
    for (n, own) in [(1, attacker), (2, victim), (3, gateway)] {
        for line in [
            format!("ip -n {switch} link add v{n} type veth peer name eth0 netns {own}"),
            format!("ip -n {own} link set eth0 address 02:00:00:00:00:0{n}"),
            format!("ip -n {own} addr add 10.0.0.{n}/24 dev eth0"),
            format!("ip -n {own} link set eth0 up"),
        ] {
            system(&line).unwrap();
        }
        file += &format!(
            "[[port]]\nname = \"v{n}\"\nkind = \"veth\"\nnetns = \"{switch}\"\ntenant_netns = \"{own}\"\n\
             mac = \"02:00:00:00:00:0{n}\"\nip = \"10.0.0.{n}\"\n"
        );
    }
    let running = Running::start("locked", &file);
    running.until("all ports", |s| s.ports.iter().all(|port| port.is_present()));
    let pings = format!("ip netns exec {victim} busybox ping -c 1 -W 20 10.0.0.3");
    system(&pings).unwrap();

    let arp = |mac: [u8; 6], ip: u8| {
        let head = [0, 1, 8, 0, 6, 4, 0, 2];
        let message: [&[u8]; 5] = [&head, &mac, &[10, 0, 0, ip], &VICTIM, &[10, 0, 0, 2]];
        frame([0xFF; 6], ATTACKER, [8, 6], &message, "FORGED")
    };
    let target = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFE, 0, 0, 3];
    let advertisement = [&[136, 0, 0, 0, 0x20, 0, 0, 0], &target[..], &[2, 1], &ATTACKER].concat();
    let forged = [
        ("forged_source", frame(VICTIM, GATEWAY, [8, 0], &[&ipv4(1, [9, 9], "")[14..42]], "FORGED")),
        ("forged_ip", ipv4(3, [9, 9], "FORGED")),
        ("forged_ip", tagged(&ipv4(3, [9, 9], "FORGED"))),
        ("forged_arp", arp(ATTACKER, 3)),
        ("forged_arp", arp(GATEWAY, 1)),
        ("forged_nd", neighbour(&advertisement)),
        ("forged_ra", neighbour(&[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("forged_dhcp", ipv4(1, [67, 68], "FORGED")),
    ];
    let ears = [Ear::new(victim), Ear::new(gateway)];
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    let mut lines = String::new();
    let mut add = |frame: &[u8]| {
        lines.extend(frame.iter().map(|byte| format!("{byte:02x}")));
        lines.push('\n');
    };
    for _ in 0..EACH {
        for (reason, frame) in &forged {
            *expected.entry((*reason).to_owned()).or_default() += 1;
            add(frame);
        }
    }
    // Of a protocol for experiments: a UDP datagram without a socket would be dropped.
    let mut honest = ipv4(1, [9, 9], "HONEST");
    honest[14 + 9] = 253;
    (0..EACH).for_each(|_| add(&honest));
    let mut sender = python(attacker, &["send"]).stdin(Stdio::piped()).spawn().unwrap();
    sender.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(sender.wait().unwrap().success());

    // The honest frames come last.
    for _ in 0..EACH {
        assert_eq!(ears[0].next(), "HONEST");
    }
    let status = running.status();
    assert_eq!(status.ports[0].refused, expected);
    for port in &status.ports[1..] {
        assert!(port.refused.is_empty() && port.dropped.is_empty(), "{port:?}");
    }
    assert!(ears.iter().all(|ear| ear.1.try_recv().is_err()), "a forged frame arrived");
    // The gateway is still where it was.
    let neighbours = Command::new("ip").args(["-n", victim, "neigh", "show", "10.0.0.3"]).output().unwrap();
    assert!(String::from_utf8_lossy(&neighbours.stdout).contains("02:00:00:00:00:03"), "{neighbours:?}");
    system(&pings).unwrap();
}
