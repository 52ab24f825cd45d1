//! Frames that the kernel dropped between `send()` and `recv()` of programs at this port, by location.

use super::error::{KernelError, Tried};
use super::link::Links;
use super::netns::Namespace;
use super::parts::Descriptors;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;

/// Frames and datagrams that the kernel dropped, by location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeCounters {
    /// In the queue of the tenant's device.
    pub qdisc: u64,
    /// At the tenant's device.
    pub tenant_device: u64,
    /// At the switch's device.
    pub switch_device: u64,
    /// On the way from a device to the stack, in the whole system: `softnet_stat`.
    pub softnet: u64,
    /// At full sockets of the namespace, of UDP and UDP-Lite over IPv4 and IPv6: `RcvbufErrors` and `MemErrors`.
    pub sockets: u64,
    /// Fragmented datagrams that never became complete: `ReasmFails` and `Ip6ReasmFails`.
    pub reassembly: u64,
    /// Packets for an address that the namespace neither has nor forwards to: `InAddrErrors`, and `Ip6InNoRoutes`.
    pub address: u64,
}

impl EdgeCounters {
    fn since(self, before: EdgeCounters) -> EdgeCounters {
        EdgeCounters {
            qdisc: self.qdisc.wrapping_sub(before.qdisc),
            tenant_device: self.tenant_device.wrapping_sub(before.tenant_device),
            switch_device: self.switch_device.wrapping_sub(before.switch_device),
            softnet: self.softnet.wrapping_sub(before.softnet),
            sockets: self.sockets.wrapping_sub(before.sockets),
            reassembly: self.reassembly.wrapping_sub(before.reassembly),
            address: self.address.wrapping_sub(before.address),
        }
    }

    /// The sum of all.
    pub fn total(&self) -> u64 {
        let devices = self.qdisc + self.tenant_device + self.switch_device + self.softnet;
        devices + self.sockets + self.reassembly + self.address
    }
}

/// Reads these counters, from any thread and namespace; they count from its opening.
#[derive(Debug)]
pub struct Edge {
    tenant: Stack,
    switch: (Links, String),
    before: EdgeCounters,
}

/// The facts about an [`Edge`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EdgeFacts {
    tenant_device: String,
    switch_device: String,
    has_ipv6: bool,
    before: EdgeCounters,
}

impl Edge {
    /// Its facts and its descriptors.
    pub(super) fn into_parts(self) -> (EdgeFacts, Vec<OwnedFd>) {
        let Edge { tenant: Stack { links, device, snmp, snmp6, softnet }, switch, before } = self;
        let facts = EdgeFacts { tenant_device: device, switch_device: switch.1, has_ipv6: snmp6.is_some(), before };
        let mut all: Vec<OwnedFd> = vec![links.into_socket(), snmp.into(), softnet.into(), switch.0.into_socket()];
        all.extend(snmp6.map(OwnedFd::from));
        (facts, all)
    }

    /// An edge of these parts.
    pub(super) fn of(facts: EdgeFacts, all: &mut Descriptors) -> io::Result<Edge> {
        let EdgeFacts { tenant_device, switch_device, has_ipv6, before } = facts;
        let (links, snmp, softnet) = (Links::of(all.next()?), all.next()?.into(), all.next()?.into());
        let switch = (Links::of(all.next()?), switch_device);
        let snmp6 = all.next_if(has_ipv6)?.map(File::from);
        Ok(Edge { tenant: Stack { links, device: tenant_device, snmp, snmp6, softnet }, switch, before })
    }

    /// Between a tenant's device and its peer at the switch.
    pub fn open(
        tenant: &Namespace,
        tenant_device: &str,
        switch: &Namespace,
        switch_device: &str,
    ) -> Result<Edge, KernelError> {
        let mut edge = Edge {
            tenant: Stack::open(tenant, tenant_device)?,
            switch: (switch.enter(Links::open)??, switch_device.to_owned()),
            before: EdgeCounters::default(),
        };
        edge.before = edge.absolute()?;
        Ok(edge)
    }

    /// Whether the switch's device exists and is switched on.
    pub(super) fn is_up(&mut self) -> bool {
        self.switch.0.get(&self.switch.1).is_ok_and(|link| link.up)
    }

    /// The drops since the opening.
    pub fn read(&mut self) -> Result<EdgeCounters, KernelError> {
        Ok(self.absolute()?.since(self.before))
    }

    fn absolute(&mut self) -> Result<EdgeCounters, KernelError> {
        let ours = self.switch.0.get(&self.switch.1)?;
        let theirs = self.tenant.read()?;
        Ok(EdgeCounters {
            qdisc: theirs.qdisc,
            tenant_device: theirs.not_sent + theirs.not_received,
            // Received frames that no protocol of the kernel took also count as dropped, although the switch has them.
            switch_device: ours.stats.tx_dropped,
            softnet: theirs.softnet,
            sockets: theirs.sockets,
            reassembly: theirs.reassembly,
            address: theirs.address,
        })
    }
}

/// A kernel's counters between programs and one of its devices: frames, and drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    /// Frames that the device sent.
    pub sent: u64,
    /// Frames that it received.
    pub received: u64,
    /// Dropped in its queue.
    pub qdisc: u64,
    /// Dropped at the device, of frames to be sent.
    pub not_sent: u64,
    /// Dropped at the device, of received frames.
    pub not_received: u64,
    /// As in [`EdgeCounters`].
    pub softnet: u64,
    /// As in [`EdgeCounters`].
    pub sockets: u64,
    /// As in [`EdgeCounters`].
    pub reassembly: u64,
    /// As in [`EdgeCounters`].
    pub address: u64,
}

/// Reads these counters, from any thread and namespace.
#[derive(Debug)]
pub struct Stack {
    links: Links,
    device: String,
    snmp: File,
    /// `None` if the kernel has no IPv6.
    snmp6: Option<File>,
    softnet: File,
}

impl Stack {
    /// At a device of a namespace.
    pub fn open(namespace: &Namespace, device: &str) -> Result<Stack, KernelError> {
        // A file in /proc/net shows the namespace in which it was opened.
        let open =
            |name: &str| File::open(format!("/proc/thread-self/net/{name}")).tried(|| format!("/proc/net/{name}"));
        let (links, snmp, snmp6, softnet) = namespace.enter(|| {
            Ok::<_, KernelError>((Links::open()?, open("snmp")?, open("snmp6").ok(), open("softnet_stat")?))
        })??;
        Ok(Stack { links, device: device.to_owned(), snmp, snmp6, softnet })
    }

    /// The counters now.
    pub fn read(&mut self) -> Result<StackCounters, KernelError> {
        let link = self.links.get(&self.device)?;
        let snmp = text(&mut self.snmp).tried(|| "/proc/net/snmp".to_owned())?;
        let snmp6 = match &mut self.snmp6 {
            Some(file) => text(file).tried(|| "/proc/net/snmp6".to_owned())?,
            None => String::new(),
        };
        Ok(StackCounters {
            sent: link.stats.tx_packets,
            received: link.stats.rx_packets,
            qdisc: self.links.queue_drops(link.index)?,
            not_sent: link.stats.tx_dropped,
            not_received: link.stats.rx_dropped,
            softnet: softnet_drops(&text(&mut self.softnet).tried(|| "/proc/net/softnet_stat".to_owned())?),
            sockets: at_sockets(&snmp, &snmp6),
            reassembly: snmp_value(&snmp, "Ip:", "ReasmFails") + snmp6_value(&snmp6, "Ip6ReasmFails"),
            address: at_addresses(&snmp, &snmp6),
        })
    }
}

fn text(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// A value of `/proc/net/snmp`: a line of names, then one of values, both beginning with the protocol.
fn snmp_value(text: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|l| l.split_whitespace().next() == Some(protocol));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|&(n, _)| n == name).and_then(|(_, v)| v.parse().ok()).unwrap_or(0)
}

/// A value of `/proc/net/snmp6`: a name and a value on each line.
fn snmp6_value(text: &str, name: &str) -> u64 {
    let mut pairs = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    pairs.find(|&(n, _)| n == name).and_then(|(_, v)| v.trim().parse().ok()).unwrap_or(0)
}

/// Datagrams dropped at full sockets.
fn at_sockets(snmp: &str, snmp6: &str) -> u64 {
    let v4 = ["Udp:", "UdpLite:"].iter().flat_map(|p| ["RcvbufErrors", "MemErrors"].map(|n| snmp_value(snmp, p, n)));
    let v6 = ["Udp6RcvbufErrors", "Udp6MemErrors", "UdpLite6RcvbufErrors", "UdpLite6MemErrors"];
    v4.sum::<u64>() + v6.iter().map(|name| snmp6_value(snmp6, name)).sum::<u64>()
}

/// Packets for an unknown address.
fn at_addresses(snmp: &str, snmp6: &str) -> u64 {
    let v6 = ["Ip6InAddrErrors", "Ip6InNoRoutes"].map(|name| snmp6_value(snmp6, name));
    snmp_value(snmp, "Ip:", "InAddrErrors") + v6.iter().sum::<u64>()
}

/// The second column of each CPU's line, in hexadecimal.
fn softnet_drops(text: &str) -> u64 {
    let second = |line: &str| line.split_whitespace().nth(1).and_then(|v| u64::from_str_radix(v, 16).ok());
    text.lines().filter_map(second).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_what_the_kernel_prints() {
        let snmp = "Ip: Forwarding ReasmFails\nIp: 1 3\nUdp: InDatagrams NoPorts RcvbufErrors\nUdp: 10 2 7\n";
        assert_eq!(snmp_value(snmp, "Udp:", "RcvbufErrors"), 7);
        assert_eq!(snmp_value(snmp, "Ip:", "ReasmFails"), 3);
        assert_eq!(snmp_value(snmp, "Udp:", "MemErrors"), 0, "a kernel that does not count it");
        let lite = "UdpLite: InDatagrams RcvbufErrors MemErrors\nUdpLite: 0 5 1\n";
        let snmp6 = "Ip6ReasmFails                   \t4\nUdp6RcvbufErrors    \t20\nUdp6MemErrors\t300\nUdpLite6RcvbufErrors \t1000\n";
        assert_eq!(at_sockets(&format!("{snmp}{lite}"), snmp6), 7 + 5 + 1 + 20 + 300 + 1000);
        assert_eq!(at_sockets(snmp, ""), 7, "a kernel without IPv6");
        let snmp = "Ip: Forwarding InAddrErrors\nIp: 2 5\n";
        assert_eq!(at_addresses(snmp, "Ip6InAddrErrors 700\nIp6InNoRoutes 8000\n"), 8705);
        assert_eq!((snmp6_value(snmp6, "Ip6ReasmFails"), snmp6_value(snmp6, "Ip6Reasm")), (4, 0));
        assert_eq!(softnet_drops("0000ff 0000000a 0\n000001 00000001 0\n"), 11);
    }
}
