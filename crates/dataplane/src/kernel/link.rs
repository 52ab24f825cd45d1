//! Devices of a namespace, and their settings.

use super::error::{KernelError, Tried};
use super::netlink::{ACK, CREATE, DUMP, EXCLUSIVE, Message, Netlink, REPLACE, attributes, word};
use super::sys;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
const IFF_UP: u32 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
/// The table of routes that all look-ups use (`RT_TABLE_MAIN`).
pub const MAIN_TABLE: u32 = 254;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_H_ROOT: u32 = 0xffff_ffff;

/// The rate of an open token bucket in bytes per second, which is as good as any, and its burst in bytes.
pub(super) const OPEN_RATE: u64 = 12_500_000_000;
pub(super) const OPEN_BURST: u32 = 1_000_000;

/// The handles of our token bucket and of the queue of frames in it. By the first one, a later call recognizes the bucket.
const QUEUE_HANDLE: u32 = 0x51ce_0000;
const QUEUE_INSIDE: u32 = QUEUE_HANDLE | 1;
/// The limit of a new bucket in bytes, until it has its queue of frames.
const MADE_WITH: u32 = 100_000_000;

/// A feature of a device that ethtool(8) switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// `tx`: checksums left to the device.
    TxChecksum,
    /// `tso`: segments left to the device.
    Tso,
    /// `gso`: segments made on the way to the device.
    Gso,
    /// `gro`: received segments merged. A veth whose peer sends no merged segments is then polled like a real device.
    Gro,
}

impl Feature {
    fn command(self) -> u32 {
        match self {
            Feature::TxChecksum => 0x17,
            Feature::Tso => 0x1f,
            Feature::Gso => 0x24,
            Feature::Gro => 0x2c,
        }
    }
}

/// Counters of a device's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Received and thrown away.
    pub rx_dropped: u64,
    /// To be sent and thrown away.
    pub tx_dropped: u64,
}

/// The current state of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name there.
    pub name: String,
    /// Whether the device is switched on.
    pub up: bool,
    /// Its station.
    pub mac: [u8; 6],
    /// The longest payload of its frames, in bytes.
    pub mtu: u32,
    /// The device's traffic counters.
    pub stats: LinkStats,
}

/// A device of a pair, and its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairEnd {
    /// Its number in its namespace.
    pub index: u32,
    /// The number of the other end in its namespace; 0 if the device is no veth.
    pub peer: u32,
    /// The namespace of the other end, by the [number](Links::number_of) that it has here; none if it is this one.
    pub peer_netns: Option<u32>,
}

/// A route by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its destinations: an address and the bits of its prefix.
    pub to: (IpAddr, u8),
    /// The next hop; none if the destinations are on the link.
    pub via: Option<IpAddr>,
    /// The MTU of the path.
    pub mtu: Option<u32>,
    /// The largest TCP segment to announce.
    pub advmss: Option<u32>,
    /// Its priority; the lowest one counts.
    pub priority: Option<u32>,
    /// Its table; default [`MAIN_TABLE`].
    pub table: Option<u32>,
    /// How far its destinations are: 0 anywhere, 253 on the link, 254 the host; default by the next hop.
    pub scope: Option<u8>,
}

/// A token bucket that a device's frames wait at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes that may go at once.
    pub burst: u32,
    /// Bytes that may wait.
    pub limit: u32,
}

/// The devices of the namespace it was opened in.
#[derive(Debug)]
pub struct Links(Netlink);

fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

fn tcmsg(index: u32, handle: u32, parent: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

impl Links {
    /// Opens the devices of this thread's namespace.
    pub fn open() -> Result<Links, KernelError> {
        Netlink::route().map(Links).tried(|| "a netlink socket for devices".to_owned())
    }

    /// Those of the namespace in which this socket was opened.
    pub(super) fn of(socket: OwnedFd) -> Links {
        Links(Netlink::of(socket))
    }

    /// The socket, for another process.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.0.into_socket()
    }

    /// Makes a veth pair with one queue each: `name` here, `peer` in the namespace of the file descriptor `there`.
    pub fn create_veth(&mut self, name: &str, peer: &str, there: impl AsFd) -> Result<(), KernelError> {
        let ns = (there.as_fd().as_raw_fd() as u32).to_ne_bytes();
        let queues =
            |m: Message| m.with(IFLA_NUM_TX_QUEUES, &1u32.to_ne_bytes()).with(IFLA_NUM_RX_QUEUES, &1u32.to_ne_bytes());
        let message =
            Message::new(RTM_NEWLINK, ACK | CREATE | EXCLUSIVE, &ifinfo(0, 0, 0)).with_name(IFLA_IFNAME, name);
        let message = queues(message).with_nested(IFLA_LINKINFO, &[], |m| {
            m.with(IFLA_INFO_KIND, b"veth").with_nested(IFLA_INFO_DATA, &[], |m| {
                m.with_nested(VETH_INFO_PEER, &ifinfo(0, 0, 0), |m| {
                    queues(m.with_name(IFLA_IFNAME, peer)).with(IFLA_NET_NS_FD, &ns)
                })
            })
        });
        self.0.tell(message).tried(|| format!("making the veth pair {name} and {peer}"))
    }

    /// Makes a Linux bridge.
    pub fn create_bridge(&mut self, name: &str) -> Result<(), KernelError> {
        let message = Message::new(RTM_NEWLINK, ACK | CREATE | EXCLUSIVE, &ifinfo(0, 0, 0))
            .with_name(IFLA_IFNAME, name)
            .with_nested(IFLA_LINKINFO, &[], |m| m.with(IFLA_INFO_KIND, b"bridge"));
        self.0.tell(message).tried(|| format!("making the bridge {name}"))
    }

    /// A device by its name; none if there is no such device.
    pub fn find(&mut self, name: &str) -> Result<Option<Link>, KernelError> {
        match self.get(name) {
            Err(e) if e.why().kind() == ErrorKind::NotFound || e.why().raw_os_error() == Some(libc::ENODEV) => Ok(None),
            link => link.map(Some),
        }
    }

    /// A device by its name.
    pub fn get(&mut self, name: &str) -> Result<Link, KernelError> {
        let message = Message::new(RTM_GETLINK, 0, &ifinfo(0, 0, 0)).with_name(IFLA_IFNAME, name);
        let mut link =
            Link { index: 0, name: name.to_owned(), up: false, mac: [0; 6], mtu: 0, stats: LinkStats::default() };
        let asked = self.0.ask(message, |kind, body| {
            if kind != RTM_NEWLINK || body.len() < 16 {
                return;
            }
            link.index = word(body, 4);
            link.up = word(body, 8) & libc::IFF_UP as u32 != 0;
            for (kind, value) in attributes(&body[16..]) {
                match kind {
                    IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                    IFLA_MTU => link.mtu = word(value, 0),
                    IFLA_STATS64 => {
                        // `rtnl_link_stats64`: packets, bytes, errors, dropped, each received and sent.
                        let field = |i: usize| {
                            value.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
                        };
                        let [rx_packets, tx_packets] = [field(0), field(1)];
                        let [rx_dropped, tx_dropped] = [field(6), field(7)];
                        link.stats = LinkStats { rx_packets, tx_packets, rx_dropped, tx_dropped };
                    }
                    _ => {}
                }
            }
        });
        asked.tried(|| format!("the device {name}"))?;
        Ok(link)
    }

    /// A device of a pair by its name.
    pub(super) fn pair_end(&mut self, name: &str) -> Result<PairEnd, KernelError> {
        let message = Message::new(RTM_GETLINK, 0, &ifinfo(0, 0, 0)).with_name(IFLA_IFNAME, name);
        let (mut end, mut is_veth) = (PairEnd { index: 0, peer: 0, peer_netns: None }, false);
        let asked = self.0.ask(message, |kind, body| {
            if kind != RTM_NEWLINK || body.len() < 16 {
                return;
            }
            end.index = word(body, 4);
            for (kind, value) in attributes(&body[16..]) {
                match kind {
                    IFLA_LINK => end.peer = word(value, 0),
                    IFLA_LINK_NETNSID => end.peer_netns = Some(word(value, 0)),
                    IFLA_LINKINFO => is_veth = attributes(value).any(|of| of == (IFLA_INFO_KIND, b"veth\0")),
                    _ => {}
                }
            }
        });
        asked.tried(|| format!("the device {name}"))?;
        Ok(if is_veth { end } else { PairEnd { peer: 0, ..end } })
    }

    /// The number of another namespace here; none if it has none, as none of its devices has an end here.
    pub(super) fn number_of(&mut self, namespace: impl AsFd) -> Result<Option<u32>, KernelError> {
        let descriptor = (namespace.as_fd().as_raw_fd() as u32).to_ne_bytes();
        let message = Message::new(RTM_GETNSID, 0, &[0; 4]).with(NETNSA_FD, &descriptor);
        let mut number = None;
        let asked = self.0.ask(message, |kind, body| {
            let of_it = attributes(body.get(4..).unwrap_or_default()).find(|&(kind, _)| kind == NETNSA_NSID);
            // -1: it has none.
            number = of_it.map(|(_, value)| word(value, 0)).filter(|&n| kind == RTM_NEWNSID && n != u32::MAX);
        });
        asked.tried(|| "the numbers of namespaces".to_owned())?;
        Ok(number)
    }

    fn change(&mut self, name: &str, flags: u32, add: impl FnOnce(Message) -> Message) -> Result<(), KernelError> {
        let index = self.get(name)?.index;
        let message = add(Message::new(RTM_NEWLINK, ACK, &ifinfo(index, flags, flags)));
        self.0.tell(message).tried(|| format!("changing the device {name}"))
    }

    /// Switches a device on.
    pub fn up(&mut self, name: &str) -> Result<(), KernelError> {
        self.change(name, IFF_UP, |m| m)
    }

    /// Switches a device off: the other end of a veth has no carrier any more.
    pub fn down(&mut self, name: &str) -> Result<(), KernelError> {
        let index = self.get(name)?.index;
        let message = Message::new(RTM_NEWLINK, ACK, &ifinfo(index, 0, IFF_UP));
        self.0.tell(message).tried(|| format!("changing the device {name}"))
    }

    /// Gives a device its station.
    pub fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> Result<(), KernelError> {
        self.change(name, 0, |m| m.with(IFLA_ADDRESS, &mac))
    }

    /// Sets the longest payload of a device's frames.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<(), KernelError> {
        self.change(name, 0, |m| m.with(IFLA_MTU, &mtu.to_ne_bytes()))
    }

    /// Sets how many frames a device queues: the ring of a TAP.
    pub fn set_queue_len(&mut self, name: &str, frames: u32) -> Result<(), KernelError> {
        self.change(name, 0, |m| m.with(IFLA_TXQLEN, &frames.to_ne_bytes()))
    }

    /// Makes a device a port of a bridge.
    pub fn set_master(&mut self, name: &str, bridge: &str) -> Result<(), KernelError> {
        let master = self.get(bridge)?.index;
        self.change(name, 0, |m| m.with(IFLA_MASTER, &master.to_ne_bytes()))
    }

    /// Deletes a device, and its peer if it is a veth.
    pub fn delete(&mut self, name: &str) -> Result<(), KernelError> {
        let index = self.get(name)?.index;
        let message = Message::new(RTM_DELLINK, ACK, &ifinfo(index, 0, 0));
        self.0.tell(message).tried(|| format!("deleting the device {name}"))
    }

    /// Gives a device an address in a network of `prefix` bits.
    pub fn add_address(&mut self, name: &str, address: IpAddr, prefix: u8) -> Result<(), KernelError> {
        const NO_DUPLICATE_DETECTION: u8 = 2;
        let index = self.get(name)?.index;
        let mut header = [family(address), prefix, NO_DUPLICATE_DETECTION, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&index.to_ne_bytes());
        let bytes = octets(address);
        let message = Message::new(RTM_NEWADDR, ACK | CREATE | REPLACE, &header).with(1, &bytes).with(2, &bytes);
        self.0.tell(message).tried(|| format!("the address {address}/{prefix} of {name}"))
    }

    /// Adds a route by a device. A next hop in none of the device's networks is assumed to be on its link.
    pub fn add_route(&mut self, name: &str, route: &Route) -> Result<(), KernelError> {
        const STATIC: u8 = 4;
        const ON_LINK_SCOPE: u8 = 253;
        const UNICAST: u8 = 1;
        const ON_LINK: u32 = 4;
        let (index, Route { to, via, .. }) = (self.get(name)?.index, *route);
        let scope = route.scope.unwrap_or(if via.is_none() && to.0.is_ipv4() { ON_LINK_SCOPE } else { 0 });
        let table = route.table.unwrap_or(MAIN_TABLE);
        let mut header =
            [family(to.0), to.1, 0, 0, u8::try_from(table).unwrap_or(0), STATIC, scope, UNICAST, 0, 0, 0, 0];
        let message = |header: &[u8; 12]| {
            let with = |message: Message, kind, value: Option<u32>| match value {
                Some(value) => message.with(kind, &value.to_ne_bytes()),
                None => message,
            };
            let message =
                Message::new(RTM_NEWROUTE, ACK | CREATE | EXCLUSIVE, header).with(RTA_OIF, &index.to_ne_bytes());
            let message = if to.1 > 0 { message.with(RTA_DST, &octets(to.0)) } else { message };
            let message = via.iter().fold(message, |message, via| message.with(RTA_GATEWAY, &octets(*via)));
            let message = with(with(message, RTA_PRIORITY, route.priority), RTA_TABLE, Some(table));
            match (route.mtu, route.advmss) {
                (None, None) => message,
                (mtu, advmss) => {
                    message.with_nested(RTA_METRICS, &[], |m| with(with(m, RTAX_MTU, mtu), RTAX_ADVMSS, advmss))
                }
            }
        };
        let mut told = self.0.tell(message(&header));
        let unreachable =
            |e: &io::Error| matches!(e.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable);
        if via.is_some() && told.as_ref().is_err_and(unreachable) {
            header[8..].copy_from_slice(&ON_LINK.to_ne_bytes());
            told = self.0.tell(message(&header));
        }
        told.tried(|| match via {
            Some(via) => format!("the route to {}/{} through {via} by {name}", to.0, to.1),
            None => format!("the route to {}/{} by {name}", to.0, to.1),
        })
    }

    /// The addresses of a device, with the bits of their networks.
    pub fn addresses(&mut self, name: &str) -> Result<Vec<(IpAddr, u8)>, KernelError> {
        let (index, mut found) = (self.get(name)?.index, Vec::new());
        let asked = self.0.ask(Message::new(RTM_GETADDR, DUMP, &[0; 8]), |kind, body| {
            if kind != RTM_NEWADDR || body.len() < 8 || word(body, 4) != index {
                return;
            }
            // Between two points the first one is that of the other end.
            let of =
                |wanted| attributes(&body[8..]).find(|&(kind, _)| kind == wanted).and_then(|(_, value)| address(value));
            found.extend(of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS)).map(|address| (address, body[1])));
        });
        asked.tried(|| format!("the addresses of {name}"))?;
        Ok(found)
    }

    /// The routes by a device, of all tables.
    pub fn routes(&mut self, name: &str) -> Result<Vec<Route>, KernelError> {
        let (index, mut found) = (self.get(name)?.index, Vec::new());
        let asked = self.0.ask(Message::new(RTM_GETROUTE, DUMP, &[0; 12]), |kind, body| {
            if kind != RTM_NEWROUTE || body.len() < 12 {
                return;
            }
            let v4 = i32::from(body[0]) == libc::AF_INET;
            let all: IpAddr = if v4 { [0; 4].into() } else { [0; 16].into() };
            let (mut by, mut table) = (0, u32::from(body[4]));
            let mut route = Route {
                to: (all, body[1]),
                via: None,
                mtu: None,
                advmss: None,
                priority: None,
                table: None,
                scope: Some(body[6]),
            };
            for (kind, value) in attributes(&body[12..]) {
                match kind {
                    RTA_OIF => by = word(value, 0),
                    RTA_DST => route.to.0 = address(value).unwrap_or(all),
                    RTA_GATEWAY => route.via = address(value),
                    RTA_PRIORITY => route.priority = Some(word(value, 0)),
                    RTA_TABLE => table = word(value, 0),
                    RTA_METRICS => {
                        let of = |wanted| {
                            attributes(value).find(|&(kind, _)| kind == wanted).map(|(_, value)| word(value, 0))
                        };
                        (route.mtu, route.advmss) = (of(RTAX_MTU), of(RTAX_ADVMSS));
                    }
                    _ => {}
                }
            }
            found.extend((by == index).then_some(Route { table: Some(table), ..route }));
        });
        asked.tried(|| format!("the routes by {name}"))?;
        Ok(found)
    }

    /// The number of devices besides the loopback device.
    pub fn count(&mut self) -> Result<usize, KernelError> {
        const LOOPBACK: u32 = 8;
        let mut count = 0;
        let asked = self.0.ask(Message::new(RTM_GETLINK, DUMP, &ifinfo(0, 0, 0)), |kind, body| {
            count += usize::from(kind == RTM_NEWLINK && body.len() >= 16 && word(body, 8) & LOOPBACK == 0);
        });
        asked.tried(|| "the devices of a namespace".to_owned())?;
        Ok(count)
    }

    /// Adds a permanent neighbour entry.
    pub fn add_neighbour(&mut self, name: &str, address: IpAddr, mac: [u8; 6]) -> Result<(), KernelError> {
        const PERMANENT: u16 = 0x80;
        let index = self.get(name)?.index;
        let mut header = [0; 12];
        header[0] = family(address);
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
        let message = Message::new(RTM_NEWNEIGH, ACK | CREATE | REPLACE, &header);
        let message = message.with(1, &octets(address)).with(2, &mac);
        self.0.tell(message).tried(|| format!("the neighbour {address} of {name}"))
    }

    /// Puts a queue of `frames` frames behind a token bucket at a device. A queue from an earlier call stays, with its
    /// waiting frames and its bucket unchanged; any other queue is replaced.
    pub fn set_queue(&mut self, name: &str, bucket: TokenBucket, frames: u32) -> Result<(), KernelError> {
        let index = self.get(name)?.index;
        if self.queue(index)? != Some(("tbf".to_owned(), QUEUE_HANDLE)) {
            let made = TokenBucket { limit: MADE_WITH, ..bucket };
            let mut new = self.bucket(name)?;
            new.apply(ACK | CREATE | REPLACE, QUEUE_HANDLE, made, 0)
                .tried(|| format!("a token bucket at {name} (tbf)"))?;
        }
        // An existing queue only gets this length.
        let message = Message::new(RTM_NEWQDISC, ACK | CREATE | REPLACE, &tcmsg(index, 0, QUEUE_INSIDE))
            .with_name(TCA_KIND, "pfifo")
            .with(TCA_OPTIONS, &frames.to_ne_bytes());
        self.0.tell(message).tried(|| format!("a queue of {frames} frames at {name} (pfifo)"))
    }

    /// Has a device's frames wait at a token bucket.
    pub fn set_bucket(&mut self, name: &str, bucket: TokenBucket) -> Result<(), KernelError> {
        self.bucket(name)?
            .apply(ACK | CREATE | REPLACE, 0, bucket, 0)
            .tried(|| format!("a token bucket at {name} (tbf)"))
    }

    /// The token bucket that is at a device.
    pub(super) fn bucket(&mut self, name: &str) -> Result<Bucket, KernelError> {
        let index = self.get(name)?.index;
        Ok(Bucket { netlink: Netlink::route().tried(|| "a netlink socket".to_owned())?, index })
    }

    /// The name of a device's queueing discipline, and its number.
    fn queue(&mut self, index: u32) -> Result<Option<(String, u32)>, KernelError> {
        let mut kind = None;
        let asked = self.0.ask(Message::new(RTM_GETQDISC, DUMP, &[0; 20]), |_, body| {
            if body.len() < 20 || word(body, 4) != index || word(body, 12) != TC_H_ROOT {
                return;
            }
            if let Some((_, name)) = attributes(&body[20..]).find(|&(kind, _)| kind == TCA_KIND) {
                kind = Some((String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(), word(body, 8)));
            }
        });
        asked.tried(|| "queueing disciplines".to_owned())?;
        Ok(kind)
    }

    /// Frames a device's queueing discipline threw away.
    pub fn queue_drops(&mut self, index: u32) -> Result<u64, KernelError> {
        let mut drops = 0;
        let asked = self.0.ask(Message::new(RTM_GETQDISC, DUMP, &[0; 20]), |_, body| {
            if body.len() < 20 || word(body, 4) != index || word(body, 12) != TC_H_ROOT {
                return;
            }
            let stats = attributes(&body[20..]).filter(|&(kind, _)| kind == TCA_STATS2);
            for (_, queue) in stats.flat_map(|(_, s)| attributes(s)).filter(|&(kind, _)| kind == TCA_STATS_QUEUE) {
                // `gnet_stats_queue`: length, backlog, drops.
                drops += u64::from(word(queue, 8));
            }
        });
        asked.tried(|| "queueing disciplines".to_owned())?;
        Ok(drops)
    }

    /// Switches a feature of a device.
    pub fn set_feature(&mut self, name: &str, feature: Feature, on: bool) -> Result<(), KernelError> {
        let what = || format!("{feature:?} of {name} {}", if on { "on" } else { "off" });
        let socket = sys::udp_socket().tried(what)?;
        sys::set_feature(socket.as_fd(), name, feature.command(), on).tried(what)
    }

    /// Leaves to a device only Internet checksums, which a virtio-net header can describe. The kernel itself makes segments
    /// of every kind, and other checksums, behind the device's queue.
    pub fn only_checksum_offload(&mut self, name: &str) -> Result<(), KernelError> {
        let what = || format!("segmentation offloads of {name}");
        let socket = sys::udp_socket().tried(what)?;
        let wanted = |feature: &str| match feature {
            "tx-checksum-sctp" | "tx-checksum-fcoe-crc" | "tx-gso-partial" | "tx-gso-list" | "tx-gso-robust" => {
                Some(false)
            }
            _ if feature.starts_with("tx-") && feature.ends_with("-segmentation") => Some(false),
            _ => None,
        };
        sys::set_features(socket.as_fd(), name, wanted).tried(what)
    }
}

/// A token bucket in place, changed without loss of the waiting frames.
#[derive(Debug)]
pub struct Bucket {
    netlink: Netlink,
    index: u32,
}

impl Bucket {
    /// Changes the bucket's numbers; waiting frames go on waiting.
    pub fn change(&mut self, bucket: TokenBucket) -> io::Result<()> {
        self.apply(ACK, 0, bucket, 0)
    }

    /// Changes the bucket's numbers, and charges each frame `more` bytes more than its length.
    pub(super) fn change_charged(&mut self, bucket: TokenBucket, more: u16) -> io::Result<()> {
        self.apply(ACK, 0, bucket, more)
    }

    fn apply(&mut self, flags: u16, handle: u32, bucket: TokenBucket, more: u16) -> io::Result<()> {
        // `tc_tbf_qopt`: rate and peak rate of 12 bytes each, limit, buffer, mtu.
        let mut options = [0; 36];
        options[1] = 1; // Ethernet's bytes count as they are.
        options[2..4].copy_from_slice(&more.to_ne_bytes());
        options[8..12].copy_from_slice(&u32::try_from(bucket.rate).unwrap_or(u32::MAX).to_ne_bytes());
        options[24..28].copy_from_slice(&bucket.limit.to_ne_bytes());
        // The time of a burst: the kernel requires it, but does not use it when the burst is given too.
        options[28..32].copy_from_slice(&1_000_000u32.to_ne_bytes());
        let message =
            Message::new(RTM_NEWQDISC, flags, &tcmsg(self.index, handle, TC_H_ROOT)).with_name(TCA_KIND, "tbf");
        let message = message.with_nested(TCA_OPTIONS, &[], |m| {
            let m = m.with(TCA_TBF_PARMS, &options).with(TCA_TBF_BURST, &bucket.burst.to_ne_bytes());
            if bucket.rate > u64::from(u32::MAX) { m.with(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes()) } else { m }
        });
        self.netlink.tell(message)
    }
}
