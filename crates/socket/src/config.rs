//! What a host is to be.

use sluicenet_wire::ethernet::MacAddress;
use std::net::Ipv4Addr;
use std::time::Duration;

/// A host: its address, and how much it takes in.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its address.
    pub address: Ipv4Addr,
    /// Bits of the address that all hosts it can reach have in common, 0 to 32.
    pub prefix: u8,
    /// Its MAC address; that of the port in the switch's file, or one at random, where absent.
    pub mac: Option<MacAddress>,
    /// Whether it answers who looks for the address. Of several hosts with one address only one may.
    pub answers: bool,
    /// Bytes of the largest IP packet, at most what the switch says that reaches other servers: 1500 where frames go on to machines and
    /// links, up to 2034 between ports in shared memory.
    pub mtu: u16,
    /// Bytes a stream takes in before its program reads them: as far as the other end may be ahead, where `memory` has room.
    pub receive_buffer: u32,
    /// Bytes that all streams together take in before their programs read them. Half of it is shared among all that there may be, so that each can go
    /// on; the rest has who reads. At least 4 KiB for each of `streams` count.
    pub memory: u64,
    /// Bytes of datagrams a socket takes in before its program reads them, each counted with 64 more.
    pub datagram_buffer: u32,
    /// Streams there may be, those nobody has accepted yet among them.
    pub streams: usize,
    /// For how long an attempt to connect goes on.
    pub connect_timeout: Duration,
    /// A host that says nothing for so long, asked again and again, is dead: streams to it end.
    pub dead_after: Duration,
    /// A datagram socket whose program reads nothing for so long, while a datagram that it has no room for holds all others
    /// of the host back, loses what comes until it reads again. Without it the watchdog of the switch is what remains.
    pub stall: Option<Duration>,
}

impl Config {
    /// A host with an address in a network of so many common bits, and all else as usual.
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
            // Half of the detection time that the switch's watchdog has where nobody says otherwise.
            stall: Some(Duration::from_millis(100)),
        }
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
}
