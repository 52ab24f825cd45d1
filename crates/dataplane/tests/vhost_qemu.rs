//! Two real QEMU guests, under software emulation, that talk to each other through the switch.
//!
//! Needs `qemu-system-x86_64`, a static `busybox`, and a Debian cloud kernel with its modules (`apt-get install
//! qemu-system-x86 busybox-static linux-image-cloud-amd64`); what is missing is said, and the test skipped.
#![cfg(not(loom))]

mod vhost_rig;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vhost_rig::{Rig, mac};

/// Modules of the network device, each after those it needs.
const MODULES: [&str; 8] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];

struct Needs {
    qemu: PathBuf,
    busybox: PathBuf,
    kernel: PathBuf,
    modules: Vec<PathBuf>,
}

/// What there is, or what is missing.
fn needs() -> Result<Needs, String> {
    let program = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file()).ok_or(format!("no {name}"))
    };
    let qemu = program("qemu-system-x86_64")?;
    let busybox = program("busybox")?;
    let boot = std::fs::read_dir("/boot").map_err(|e| format!("/boot: {e}"))?;
    let mut kernels: Vec<PathBuf> = boot.flatten().map(|f| f.path()).collect();
    kernels.retain(|p| p.to_string_lossy().contains("/vmlinuz-") && p.to_string_lossy().contains("cloud"));
    kernels.sort();
    let kernel = kernels.pop().ok_or("no Debian cloud kernel (/boot/vmlinuz-*cloud*)")?;
    let version = kernel.file_name().unwrap().to_string_lossy()["vmlinuz-".len()..].to_owned();
    let mut found = BTreeMap::new();
    let mut dirs = vec![PathBuf::from(format!("/lib/modules/{version}/kernel"))];
    while let Some(dir) = dirs.pop() {
        for file in std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?.flatten() {
            let path = file.path();
            if path.is_dir() {
                dirs.push(path);
            } else if let Some(name) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".ko")) {
                found.insert(name.to_owned(), path.clone());
            }
        }
    }
    let module =
        |name: &&str| found.get(*name).cloned().ok_or(format!("no module {name} of {version}, not compressed"));
    let modules = MODULES.iter().map(module).collect::<Result<_, _>>()?;
    Ok(Needs { qemu, busybox, kernel, modules })
}

/// A file of an archive in the "newc" form of cpio, which the kernel unpacks.
fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
    let inode = archive.len() as u32 + 1;
    let fields = [inode, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
    archive.extend(b"070701");
    fields.iter().for_each(|f| archive.extend(format!("{f:08X}").bytes()));
    archive.extend(name.bytes().chain([0]));
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(data);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

/// An initial file system that loads the modules, gives itself an address and does `script`.
fn initramfs(needs: &Needs, address: &str, script: &str) -> Vec<u8> {
    let (dir, program, file) = (0o040_755, 0o100_755, 0o100_644);
    let mut archive = Vec::new();
    for name in ["bin", "dev", "proc", "sys", "modules"] {
        entry(&mut archive, name, dir, (0, 0), &[]);
    }
    entry(&mut archive, "dev/console", 0o020_600, (5, 1), &[]);
    entry(&mut archive, "bin/busybox", program, (0, 0), &std::fs::read(&needs.busybox).unwrap());
    let mut init = String::from("#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PATH=/bin\n");
    init += "mount -t proc proc /proc\nmount -t sysfs sysfs /sys\nmount -t devtmpfs dev /dev\n";
    for module in &needs.modules {
        let name = module.file_name().unwrap().to_string_lossy();
        entry(&mut archive, &format!("modules/{name}"), file, (0, 0), &std::fs::read(module).unwrap());
        init += &format!("insmod /modules/{name}\n");
    }
    init += &format!("ip addr add {address}/24 dev eth0\nip link set eth0 up\necho GUEST UP\n{script}\n");
    init += "while true; do sleep 100; done\n";
    entry(&mut archive, "init", program, (0, 0), init.as_bytes());
    entry(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    archive
}

/// A guest that is killed when it is no longer needed.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn boot(needs: &Needs, rig: &Rig, k: usize, script: &str) -> (Guest, PathBuf) {
    let (image, console) = (rig.path(k).with_extension("cpio"), rig.path(k).with_extension("console"));
    let mut file = std::fs::File::create(&image).unwrap();
    file.write_all(&initramfs(needs, &format!("10.99.0.{}", k + 1), script)).unwrap();
    let mac = mac(k).map(|b| format!("{b:02x}")).join(":");
    let mut command = Command::new(&needs.qemu);
    command.args([
        "-machine",
        "q35,accel=tcg",
        "-cpu",
        "max",
        "-m",
        "160",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
    ]);
    command.args(["-object", "memory-backend-memfd,id=mem,size=160M,share=on", "-numa", "node,memdev=mem"]);
    command.arg("-kernel").arg(&needs.kernel).arg("-initrd").arg(&image);
    command.args(["-append", "console=ttyS0 quiet panic=-1"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command.arg("-chardev").arg(format!("socket,id=port,path={},reconnect=1", rig.path(k).display()));
    command.args(["-netdev", "vhost-user,id=net,chardev=port"]);
    command.arg("-device").arg(format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,romfile="));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    (Guest(command.spawn().unwrap()), console)
}

fn text(console: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned()
}

#[test]
fn two_guests_ping_and_stream_to_each_other_through_the_switch() {
    let needs = match needs() {
        Ok(needs) => needs,
        Err(missing) => return println!("SKIPPED: {missing}"),
    };
    let mut rig = Rig::empty(2);
    (0..2).for_each(|k| rig.plug(k));
    // The second takes 4 MB over TCP, with the offloads that the two have agreed on; the first sends them.
    let server = "echo BYTES $(nc -l -p 5000 | wc -c)";
    let client = "until ping -c 1 -W 1 10.99.0.2 >/dev/null; do :; done\nping -c 20 -i 0.1 -s 1400 10.99.0.2 | grep loss\n\
                  head -c 4000000 /dev/zero | nc 10.99.0.2 5000\necho DONE";
    let (one, one_console) = boot(&needs, &rig, 1, server);
    let (zero, zero_console) = boot(&needs, &rig, 0, client);
    let started = Instant::now();
    while !text(&zero_console).contains("DONE") || !text(&one_console).contains("BYTES") {
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "guests say:\n{}\n{}\nports: {:#?}",
            text(&zero_console),
            text(&one_console),
            (0..2).map(|k| rig.engine.report(k)).collect::<Vec<_>>()
        );
        for _ in 0..1_000 {
            if rig.engine.turn() == 0 {
                std::thread::yield_now();
            }
        }
    }
    let said = text(&zero_console);
    assert!(said.contains("20 packets transmitted, 20 packets received, 0% packet loss"), "{said}");
    assert!(text(&one_console).contains("BYTES 4000000"), "{}", text(&one_console));
    rig.until("the last frames to arrive", |rig| rig.engine.queued() == 0);
    let (accepted, delivered, dropped) = rig.engine.ledger();
    assert_eq!((accepted, dropped), (delivered, 0));
    for k in 0..2 {
        assert_eq!(rig.counter(k, "connections"), 1);
        for name in ["bad_message", "broken_queues", "bad_vnet_hdr", "bad_length", "too_long", "memory_lost"] {
            assert_eq!(rig.counter(k, name), 0, "{name}");
        }
    }
    // One is killed: the switch has all its buffers, and the other is none the worse.
    drop(one);
    rig.until("the switch to notice", |rig| rig.counter(1, "connected") == 0);
    assert_eq!(rig.counter(0, "connected"), 1);
    drop(zero);
    rig.until("the switch to notice", |rig| rig.counter(0, "connected") == 0);
    println!("two guests: {delivered} frames, none lost, {:.1} s", started.elapsed().as_secs_f64());
}
