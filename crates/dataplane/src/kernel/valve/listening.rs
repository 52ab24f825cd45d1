//! The start of a valve: the sockets at the switch's end of a pair, and how the polling socket learns the number of the receive
//! queue.

use super::config::ValveConfig;
use super::parts::OpenValve;
use crate::kernel::device::open_packet_socket;
use crate::kernel::edge::Edge;
use crate::kernel::error::{KernelError, Tried};
use crate::kernel::link::{Link, Links};
use crate::kernel::netlink::Netlink;
use crate::kernel::netns::Namespace;
use crate::kernel::pool::HEADER_LEN;
use crate::kernel::sys;
use crate::kernel::tenant_queue::TenantQueue;
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
/// The longest time of a busy poll. The device is polled once in any case, but 0 would disable busy polling.
const BUSY_POLL_US: i32 = 20;
/// How often a port's device may be switched off and on; the port keeps one socket for each time.
const RESERVE: usize = 8;

/// The open sockets of a valve. From now on no frame is lost that the kernel polls. If several ports are opened after a
/// restart, all of their sockets come first.
#[derive(Debug)]
pub struct Listening {
    program: Option<OwnedFd>,
    socket: OwnedFd,
    poller: Poller,
    /// For later changes of the number.
    reserve: Vec<Poller>,
    link: Link,
    /// The claim on the namespace, valid while this is open.
    owner: OwnedFd,
}

/// A UDP socket that receives only from the device. It learns the number of the receive queue from the first frame to its port.
#[derive(Debug)]
pub(super) struct Poller {
    pub fd: OwnedFd,
    pub port: u16,
}

impl Listening {
    /// Opens the switch's end of a pair. Frames that wait in it from an earlier switch are kept.
    pub fn open(veth: Veth<'_>, config: &ValveConfig) -> Result<Listening, KernelError> {
        config.check()?;
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
            let poller = poller(&link, config.budget)?;
            let reserve = (0..RESERVE).map(|_| self::poller(&link, config.budget)).collect::<Result<_, _>>()?;
            links.up(veth.switch_device)?;
            // A socket reports once that its device was off.
            let _ = rustix::net::sockopt::socket_error(&socket);
            Ok::<_, KernelError>(Listening { program, socket, poller, reserve, link, owner })
        })?;
        opened.map_err(|e| e.within(veth.switch.name()))
    }

    /// Waits until the device can be polled, and measures what the tenant's kernel charges for a frame.
    pub fn learn(self, veth: Veth<'_>, config: &ValveConfig) -> Result<OpenValve, KernelError> {
        let Listening { program, socket, poller, reserve, link, owner } = self;
        // Interrupts as usual, until the poller knows its number.
        set_polling(veth.switch, veth.switch_device, 0, std::time::Duration::ZERO)?;
        let inside = veth.tenant.enter(|| {
            let mut links = Links::open()?;
            veth.prepare_tenant(&mut links, config.offload)?;
            let diag = Netlink::diag().tried(|| "a netlink socket for sockets (CONFIG_INET_UDP_DIAG)".to_owned())?;
            let routes = Netlink::route().tried(|| "a netlink socket for routes".to_owned())?;
            let sink = sys::packet_socket().tried(|| "a packet socket".to_owned())?;
            let theirs = links.get(veth.tenant_device)?;
            // The queue stays shut until this port is served, however long the other ports take.
            let tenant_queue = TenantQueue::shut(&mut links, veth.tenant_device)?;
            Ok::<_, KernelError>((diag, routes, theirs, sink, tenant_queue))
        })?;
        let (diag, routes, theirs, sink, tenant_queue) = inside.map_err(|e| e.within(veth.tenant.name()))?;
        veth.check(&link, &theirs)?;
        learn(veth, &poller.fd, &tenant_queue, &boot_frame(poller.port))?;
        set_polling(veth.switch, veth.switch_device, DEFER_INTERRUPTS, KERNEL_POLLS_AFTER)?;
        let (device, station, mtu) = (theirs.index, theirs.mac, link.mtu);
        let charges = TrueSize::measure(socket.as_fd(), sink.as_fd(), device, longest_frame(mtu))?;
        let edge = Edge::open(veth.tenant, veth.tenant_device, veth.switch, veth.switch_device)?;
        Ok(OpenValve {
            program,
            socket,
            poller,
            reserve,
            owner,
            diag,
            routes,
            device,
            station,
            tenant_queue,
            mtu,
            charges,
            edge,
        })
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

fn set_busy_poll(poller: &OwnedFd, budget: u32) -> io::Result<()> {
    let set = |name, value| sys::set_option(poller.as_fd(), libc::SOL_SOCKET, name, value);
    set(sys::PREFER_BUSY_POLL, 1)?;
    set(libc::SO_BUSY_POLL, BUSY_POLL_US)?;
    set(sys::BUSY_POLL_BUDGET, budget as i32)
}

fn poller(link: &Link, budget: u32) -> Result<Poller, KernelError> {
    let what = || format!("a UDP socket at {}", link.name);
    let fd = sys::udp_socket().tried(what)?;
    sys::bind_to_device(fd.as_fd(), &link.name).tried(what)?;
    let any = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    rustix::net::bind(&fd, &any).tried(what)?;
    let bound = rustix::net::getsockname(&fd).tried(what)?;
    let bound = std::net::SocketAddr::try_from(bound).tried(what)?;
    set_busy_poll(&fd, budget).tried(|| "busy polling (CONFIG_NET_RX_BUSY_POLL)".to_owned())?;
    Ok(Poller { fd, port: bound.port() })
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
fn learn(veth: Veth<'_>, poller: &OwnedFd, tenant_queue: &TenantQueue, boot: &[u8]) -> Result<(), KernelError> {
    let what = || format!("the receive queue of {}", veth.switch_device);
    // A killed switch may have left the ring full; then the next frame waits for the kernel's own poll.
    let until = std::time::Instant::now() + KERNEL_POLLS_AFTER + std::time::Duration::from_secs(5);
    let mut sent = false;
    loop {
        sent = sent || tenant_queue.send_past(boot).tried(what)?;
        let left = until.saturating_duration_since(std::time::Instant::now());
        let wait = if sent { left } else { left.min(SEND_AGAIN) };
        let timeout = rustix::event::Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(poller, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).tried(what),
        }
        if sys::napi_id(poller.as_fd()).tried(what)? != 0 {
            return Ok(());
        }
        if left.is_zero() {
            let why = io::Error::new(io::ErrorKind::TimedOut, "no frame came by it; is the device up, and a veth?");
            return Err(KernelError::new(what(), why));
        }
    }
}
