//! A guest's virtual machine: the QEMU process and its arguments.

use super::{Attachment, GuestConfig, GuestError, Nic, Parts};
use sluicenet_dataplane::process::Program;
use std::path::Path;
use std::process::{Command, Stdio};

/// The size in MiB of QEMU's cache of translated code. The default cache would take up to a gigabyte.
pub const TRANSLATED_MIB: u32 = 64;

/// Features by which a virtio device leaves work to others.
const OFFLOADS: [&str; 10] = [
    "csum",
    "guest_csum",
    "gso",
    "host_tso4",
    "host_tso6",
    "host_ufo",
    "guest_tso4",
    "guest_tso6",
    "guest_ufo",
    "guest_ecn",
];

/// A virtual machine that is killed when dropped, or when this process ends.
#[derive(Debug)]
pub(super) struct Machine(pub Program);

impl Machine {
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

pub(super) fn qemu(parts: &Parts, config: &GuestConfig, console: &Path) -> Result<Command, GuestError> {
    let mut command = Command::new(&parts.qemu);
    let memory = config.memory_mib;
    command.arg("-accel").arg(format!("tcg,tb-size={TRANSLATED_MIB}"));
    command.args([
        "-machine",
        "q35",
        "-cpu",
        "max",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]);
    command.args(["-m", &memory.to_string()]);
    command.arg("-object").arg(format!("memory-backend-memfd,id=mem,size={memory}M,share=on"));
    command.args(["-numa", "node,memdev=mem"]);
    command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(config.image.path());
    // A guest emulated on busy processors may fail the kernel's timer test, and the kernel would stop there.
    command.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check"]);
    command.arg("-chardev").arg(format!("socket,id=console,path={}", console.display()));
    command.args(["-serial", "chardev:console"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    match &config.attachment {
        Attachment::VhostUser(socket) => {
            command.arg("-chardev").arg(format!("socket,id=port,path={},reconnect=1", socket.display()));
            command.args(["-netdev", "vhost-user,id=net,chardev=port"]);
        }
        Attachment::Tap { device, .. } => {
            let vnet_hdr = if config.offloads { "on" } else { "off" };
            let tap = format!("tap,id=net,ifname={device},script=no,downscript=no,vhost=off,vnet_hdr={vnet_hdr}");
            command.arg("-netdev").arg(tap);
        }
        Attachment::Socket(end) => {
            // Standard input is the only descriptor that a child gets without inheriting all.
            command.stdin(end.try_clone().map_err(|e| GuestError::Io("the guest's socket".into(), e))?);
            command.args(["-netdev", "socket,id=net,fd=0"]);
        }
    }
    let mac = config.mac.map(|b| format!("{b:02x}")).join(":");
    command.arg("-device").arg(match config.nic {
        // QEMU 7.2 crashes with vectors under software emulation.
        Nic::Virtio if config.offloads => format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,romfile="),
        Nic::Virtio => {
            format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,romfile=,{}", OFFLOADS.join("=off,") + "=off")
        }
        Nic::E1000 => format!("e1000,netdev=net,mac={mac},romfile="),
    });
    Ok(command)
}
