//! The start of a valve: the sockets at the switch's end of a pair, and how the polling sockets learn the number of the receive
//! queue.

use super::config::ValveConfig;
use super::parts::{OpenValve, Sockets};
use super::pollers::{Pollers, Polls};
use crate::kernel::device::open_packet_socket;
use crate::kernel::edge::Edge;
use crate::kernel::error::{KernelError, Tried};
use crate::kernel::keeper::Keeper;
use crate::kernel::link::{Link, Links};
use crate::kernel::netlink::Netlink;
use crate::kernel::netns::Namespace;
use crate::kernel::pool::HEADER_LEN;
use crate::kernel::sys;
use crate::kernel::tenant_queue::{self, TenantQueue};
use crate::kernel::truesize::TrueSize;
use crate::kernel::veth::Veth;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Empty polls after which interrupts are enabled again.
pub(super) const DEFER_INTERRUPTS: u32 = 2;
/// After this time without a poll the kernel itself polls once, and again after each further such time.
///
/// It bounds how long a switch that was killed and starts again waits for the first frame. It also bounds the loss while no
/// switch runs after that: the frames in the ring, each time.
const KERNEL_POLLS_AFTER: std::time::Duration = std::time::Duration::from_secs(2);
/// When a frame that found no room is sent again.
const SEND_AGAIN: std::time::Duration = std::time::Duration::from_millis(5);

/// The open sockets of a valve. From now on no frame is lost that the kernel polls. If several ports are opened after a
/// restart, all of their sockets come first.
#[derive(Debug)]
pub struct Listening {
    sockets: Sockets,
    link: Link,
}

impl Listening {
    /// Opens the switch's end of a pair, and waits for nobody. Frames that wait in it from an earlier switch are kept.
    pub fn open(veth: Veth<'_>, config: &ValveConfig) -> Result<Listening, KernelError> {
        config.check()?;
        veth.prove()?;
        let owner = claim(veth.tenant)?;
        let opened = veth.switch.enter(|| {
            let mut links = Links::open()?;
            let link = links.get(veth.switch_device)?;
            veth.prepare(&mut links)?;
            let program = match config.offload {
                true => None,
                false => Some(
                    sys::attach_pass(link.index)
                        .tried(|| format!("an XDP program at {} (CONFIG_BPF_SYSCALL)", veth.switch_device))?,
                ),
            };
            let socket = sys::packet_socket().and_then(|socket| {
                sys::set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
                open_packet_socket(socket, link.index)
            });
            let socket = socket.tried(|| format!("a packet socket at {}", link.name))?;
            let [pollers, reserve] = [(); 2].map(|()| Pollers::open(&link.name, config.budget));
            let (pollers, reserve) = (pollers?, reserve?);
            links.up(veth.switch_device)?;
            // A socket reports once that its device was off.
            let _ = rustix::net::sockopt::socket_error(&socket);
            Ok::<_, KernelError>(Listening { sockets: Sockets { program, socket, pollers, reserve, owner }, link })
        })?;
        opened.map_err(|e| e.within(veth.switch.name()))
    }

    /// Waits until the device can be polled, and measures what the tenant's kernel charges for a frame.
    pub fn learn(self, veth: Veth<'_>, config: &ValveConfig) -> Result<OpenValve, KernelError> {
        let Listening { sockets, link } = self;
        // Before the tenant's device is touched, and before anything waits for it.
        veth.prove()?;
        // Interrupts as usual, until the number is known.
        set_polling(veth.switch, veth.switch_device, 0, std::time::Duration::ZERO)?;
        let polls = veth.polls(config)?;
        let inside = veth.tenant.enter(|| {
            let mut links = Links::open()?;
            veth.prepare_tenant(&mut links, config.offload)?;
            let diag = Netlink::diag().tried(|| "a netlink socket for sockets (CONFIG_INET_UDP_DIAG)".to_owned())?;
            let routes = Netlink::route().tried(|| "a netlink socket for routes".to_owned())?;
            let sink = sys::packet_socket().tried(|| "a packet socket".to_owned())?;
            let theirs = links.get(veth.tenant_device)?;
            // The queue stays shut until this port is served, however long the other ports take.
            let keeper = tenant_queue::keeper(&mut links, veth.tenant_device, Some(polls))?;
            let tenant_queue = TenantQueue::shut(&mut links, veth.tenant_device, Box::new(keeper))?;
            Ok::<_, KernelError>((diag, routes, theirs, sink, tenant_queue))
        })?;
        let (diag, routes, theirs, sink, tenant_queue) = inside.map_err(|e| e.within(veth.tenant.name()))?;
        veth.check(&link, &theirs)?;
        learn(veth, &sockets.pollers, &tenant_queue)?;
        set_polling(veth.switch, veth.switch_device, DEFER_INTERRUPTS, KERNEL_POLLS_AFTER)?;
        let (device, station, mtu) = (theirs.index, theirs.mac, link.mtu);
        let charges = TrueSize::measure(sockets.socket.as_fd(), sink.as_fd(), device, longest_frame(mtu))?;
        let edge = Edge::open(veth.tenant, veth.tenant_device, veth.switch, veth.switch_device)?;
        Ok(OpenValve { sockets, diag, routes, device, station, tenant_queue, mtu, charges, edge })
    }
}

impl Veth<'_> {
    /// The device that is polled.
    fn polls(&self, config: &ValveConfig) -> Result<Polls, KernelError> {
        let namespace = self.switch.try_clone()?;
        Ok(Polls { namespace, device: self.switch_device.to_owned(), budget: config.budget })
    }

    /// A keeper for an open valve at the pair, whose own keeper has ended.
    pub fn keeper(&self, config: &ValveConfig) -> Result<Box<dyn Keeper>, KernelError> {
        self.prove()?;
        let polls = self.polls(config)?;
        let keeper =
            self.tenant.enter(|| tenant_queue::keeper(&mut Links::open()?, self.tenant_device, Some(polls)))?;
        Ok(Box::new(keeper.map_err(|e| e.within(self.tenant.name()))?))
    }
}

/// Marks the tenant's namespace as served by a switch: two switches would both fill the same room of its sockets. The mark ends
/// when its socket is closed, also if the process is killed.
fn claim(tenant: &Namespace) -> Result<OwnedFd, KernelError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let what = || format!("serving the network namespace {}", tenant.name());
    tenant.enter(|| {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.tried(what)?;
        let name = SocketAddrUnix::new_abstract_name(b"sluicenet-valve").tried(what)?;
        match rustix::net::bind(&socket, &name) {
            Ok(()) => Ok(socket),
            Err(rustix::io::Errno::ADDRINUSE) => {
                let why = "a switch does already, this one or another; a namespace has one port of kind veth";
                Err(KernelError::new(what(), io::Error::new(io::ErrorKind::AddrInUse, why)))
            }
            Err(e) => Err(e).tried(what),
        }
    })?
}

/// Bytes of a pair's longest frame without a tag.
pub(super) fn longest_frame(mtu: u32) -> u32 {
    mtu + HEADER_LEN as u32
}

/// Sets when a device of a namespace is polled; these settings are only in sysfs.
fn set_polling(
    namespace: &Namespace,
    device: &str,
    defer: u32,
    timeout: std::time::Duration,
) -> Result<(), KernelError> {
    namespace.enter_with_sysfs(|| {
        for (name, value) in
            [("gro_flush_timeout", timeout.as_nanos().to_string()), ("napi_defer_hard_irqs", defer.to_string())]
        {
            let path = format!("/sys/class/net/{device}/{name}");
            std::fs::write(&path, value).tried(|| path)?;
        }
        Ok(())
    })?
}

/// A broadcast datagram without a source address to a port: the only kind that a device without an address receives.
pub(super) fn boot_frame(port: u16) -> Vec<u8> {
    use sluicenet_wire::{ethernet, ipv4, udp};
    const PAYLOAD: usize = 18;
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN + PAYLOAD];
    let header = ethernet::Repr {
        destination: ethernet::MacAddress([0xff; 6]),
        source: ethernet::MacAddress([2, 0, 0, 0, 0, 0]),
        ethertype: ethernet::EtherType::IPV4,
    };
    header.emit(&mut frame);
    let (_, packet) = frame.split_at_mut(ethernet::HEADER_LEN);
    udp::Repr { source_port: port, destination_port: port }.emit(&mut packet[ipv4::HEADER_LEN..], None);
    let header = ipv4::Repr {
        source: std::net::Ipv4Addr::UNSPECIFIED,
        destination: std::net::Ipv4Addr::BROADCAST,
        protocol: ipv4::Protocol::UDP,
        dscp: 0,
        ecn: ipv4::Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        ttl: 1,
        payload_len: (udp::HEADER_LEN + PAYLOAD) as u16,
    };
    header.emit(packet);
    frame
}

/// Sends the frame from the tenant's end, past its queue, and waits until it arrives.
fn learn(veth: Veth<'_>, pollers: &Pollers, tenant_queue: &TenantQueue) -> Result<(), KernelError> {
    let what = || format!("the receive queue of {}", veth.switch_device);
    // A killed switch may have left the ring full; then the next frame waits for the kernel's own poll.
    let until = std::time::Instant::now() + KERNEL_POLLS_AFTER + std::time::Duration::from_secs(5);
    let (mut sent, boot) = (false, boot_frame(pollers.port));
    loop {
        sent = sent || tenant_queue.send_past(&boot).tried(what)?;
        let left = until.saturating_duration_since(std::time::Instant::now());
        let wait = if sent { left } else { left.min(SEND_AGAIN) };
        let timeout = rustix::event::Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&pollers.calm, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).tried(what),
        }
        if pollers.learn().tried(what)? {
            return Ok(());
        }
        if left.is_zero() {
            let why = io::Error::new(io::ErrorKind::TimedOut, "no frame came by it; is the device up, and a veth?");
            return Err(KernelError::new(what(), why));
        }
    }
}
