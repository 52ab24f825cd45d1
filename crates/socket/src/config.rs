//! The configuration of a host.

use sluicenet_wire::ethernet::MacAddress;
use std::net::Ipv4Addr;
use std::time::Duration;

/// The packet size that every host accepts (RFC 791, 3.1).
pub(crate) const MTU_MIN: u16 = 576;
/// A buffer of a port in shared memory without the Ethernet header.
const MTU_MAX: u16 = 2034;
/// On a busy machine no peer can be expected to answer sooner.
const DEAD_AFTER_MIN: Duration = Duration::from_millis(100);

/// A host: its address and its limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its address.
    pub address: Ipv4Addr,
    /// Prefix length of its network, 0 to 32 bits.
    pub prefix: u8,
    /// Its MAC address; default that of the port in the switch's file, or else a random one.
    pub mac: Option<MacAddress>,
    /// Whether the host answers ARP requests for its address. Only one of several hosts with the same address may do so.
    pub answers: bool,
    /// Bytes of the largest IP packet, limited by the switch's value for other servers: 1500 for frames to VMs and links, up to
    /// 2034 between ports in shared memory.
    pub mtu: u16,
    /// Receive buffer of a stream in bytes, if `memory` has room.
    pub receive_buffer: u32,
    /// Receive buffer of all streams together, in bytes. Half of it is divided equally among `streams`, so that each can go on;
    /// the rest goes to streams that are read. At least 4 KiB for each of `streams`.
    pub memory: u64,
    /// Receive buffer of a datagram socket in bytes; each datagram counts 64 bytes more.
    pub datagram_buffer: u32,
    /// The most streams, including those that were not accepted yet.
    pub streams: usize,
    /// The timeout of an attempt to connect.
    pub connect_timeout: Duration,
    /// A host that does not answer repeated requests for this time is dead: streams to it end.
    pub dead_after: Duration,
    /// A full datagram socket may block all other sockets of the host for this time. If its program has not read by then, it
    /// loses datagrams until it reads again. Without this limit, only the watchdog of the switch helps.
    pub stall: Option<Duration>,
}

impl Config {
    /// A host with an address in a network of this prefix length, and default values.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Config {
        Config {
            address,
            prefix,
            mac: None,
            answers: true,
            mtu: 1500,
            receive_buffer: 1 << 20,
            memory: 512 << 20,
            datagram_buffer: 1 << 20,
            streams: 16_384,
            connect_timeout: Duration::from_secs(30),
            dead_after: Duration::from_secs(10),
            // A little less than the isolation time of the switch's watchdog.
            stall: Some(Duration::from_secs(8)),
        }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// The first field with an invalid value, and the expected values.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let (ip, bits) = (u32::from(self.address), 32 - u32::from(self.prefix.min(32)));
        let of_host = ip & ((1u64 << bits) - 1) as u32;
        let is_one =
            |ip: Ipv4Addr| !(ip.octets()[0] == 0 || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast());
        let is = |holds: bool, field, expected| if holds { Ok(()) } else { Err((field, expected)) };
        is(self.prefix <= 32, "prefix", "at most 32 bits")?;
        is(is_one(self.address), "address", "one host's, neither loopback nor of a group nor 0.x.x.x")?;
        // RFC 3021: networks of two addresses or one have no broadcast address.
        let is_taken = bits >= 2 && (of_host == 0 || u64::from(of_host) == (1 << bits) - 1);
        is(!is_taken, "address", "neither the first nor the last of its network, which are the network's own")?;
        is((MTU_MIN..=MTU_MAX).contains(&self.mtu), "mtu", "576 to 2034 bytes")?;
        is(self.dead_after >= DEAD_AFTER_MIN, "dead_after", "at least 100 ms")?;
        is((1..=1 << 30).contains(&self.receive_buffer), "receive_buffer", "1 byte to 1 GiB")?;
        is(self.memory > 0, "memory", "at least a byte")?;
        is(self.mac.is_none_or(|mac| !mac.is_group()), "mac", "one station's")
    }

    /// Whether an address is in the host's network.
    pub fn reaches(&self, address: Ipv4Addr) -> bool {
        let common = |ip: Ipv4Addr| u64::from(u32::from(ip)) >> (32 - u32::from(self.prefix.min(32)));
        common(address) == common(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_any_length() {
        let reaches =
            |prefix, other: &str| Config::new(Ipv4Addr::new(10, 1, 0, 2), prefix).reaches(other.parse().unwrap());
        assert!(reaches(24, "10.1.0.255") && !reaches(24, "10.1.1.2"));
        assert!(reaches(0, "192.0.2.1") && reaches(32, "10.1.0.2") && !reaches(32, "10.1.0.3"));
    }
    #[test]
    fn what_no_host_can_have_is_named() {
        let wrong = |address: &str, prefix| {
            let checked = Config::new(address.parse().unwrap(), prefix).check();
            checked.err().map(|(field, _)| field)
        };
        for (address, prefix) in
            [("10.1.0.2", 24), ("10.1.0.0", 31), ("10.1.0.255", 32), ("10.1.1.0", 16), ("192.0.2.1", 0)]
        {
            assert_eq!(wrong(address, prefix), None, "{address}/{prefix}");
        }
        let of_nobody = [("127.0.0.1", 8), ("0.0.0.0", 0), ("0.1.2.3", 8), ("224.0.0.1", 24), ("255.255.255.255", 32)];
        for (address, prefix) in [("10.1.0.0", 24), ("10.1.0.255", 24), ("10.1.0.3", 30)].into_iter().chain(of_nobody) {
            assert_eq!(wrong(address, prefix), Some("address"), "{address}/{prefix}");
        }
        assert_eq!(wrong("10.1.0.2", 33), Some("prefix"));
        let with = |change: fn(&mut Config)| {
            let mut config = Config::new(Ipv4Addr::new(10, 1, 0, 2), 24);
            change(&mut config);
            config.check().err().map(|(field, _)| field)
        };
        assert_eq!(with(|c| c.mtu = 575), Some("mtu"));
        assert_eq!(with(|c| c.mtu = 2035), Some("mtu"));
        assert_eq!(with(|c| c.dead_after = Duration::from_millis(99)), Some("dead_after"));
        assert_eq!(with(|c| c.receive_buffer = 0), Some("receive_buffer"));
        assert_eq!(with(|c| c.memory = 0), Some("memory"));
        assert_eq!(with(|c| c.mac = Some(MacAddress([1, 0, 0, 0, 0, 1]))), Some("mac"));
    }
}
