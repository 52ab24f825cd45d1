//! What the environment says: which port of which switch, and with what address.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// What is wanted of this library.
#[derive(Debug)]
pub struct Wanted {
    /// The switch's control socket.
    pub control: String,
    /// Ports of the switch, of which each process takes the first that nobody has.
    pub ports: Vec<String>,
    pub address: Ipv4Addr,
    pub prefix: u8,
    /// Whether sockets at no address in particular are light.
    pub any: bool,
    pub mtu: Option<u16>,
    pub dead_after: Option<Duration>,
    /// Bytes that all streams of a process take ahead of their readers.
    pub memory: Option<u64>,
}

impl Wanted {
    /// Whether sockets at this address are light, for a program that binds one.
    pub fn is_own(&self, ip: Ipv4Addr) -> bool {
        ip == self.address || (ip.is_unspecified() && self.any)
    }

    /// Whether sockets to this address are light.
    pub fn reaches(&self, ip: Ipv4Addr) -> bool {
        let mut config = light::Config::new(self.address, self.prefix);
        config.prefix = self.prefix;
        !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast() && config.reaches(ip)
    }
}

/// What is wanted, if anything is. What makes no sense is said on stderr, once, and then nothing is light.
pub fn wanted() -> Option<&'static Wanted> {
    // Without a lock, which would be taken for ever in what another thread forks meanwhile: one of those who ask at once is believed.
    static WANTED: AtomicPtr<Option<Wanted>> = AtomicPtr::new(std::ptr::null_mut());
    let mut known = WANTED.load(Ordering::Acquire);
    if known.is_null() {
        let (wanted, wrong) = match parse(|name| std::env::var(name).ok()) {
            Ok(wanted) => (wanted, None),
            Err(why) => (None, Some(why)),
        };
        let read = Box::into_raw(Box::new(wanted));
        match WANTED.compare_exchange(known, read, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                known = read;
                wrong.iter().for_each(|why| say(why));
            }
            Err(others) => {
                known = others;
                // SAFETY: made just now, and seen by nobody.
                drop(unsafe { Box::from_raw(read) });
            }
        }
    }
    // SAFETY: made once, and there for good.
    unsafe { &*known }.as_ref()
}

/// Says something on stderr.
pub fn say(what: &str) {
    let line = format!("libsluicenet_socket: {what}\n");
    // SAFETY: bytes of ours, to a descriptor that need not be open.
    unsafe { crate::kernel::write(2, line.as_ptr().cast(), line.len()) };
}

fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Wanted>, String> {
    let Some(ports) = variable("SLUICENET_PORT") else { return Ok(None) };
    let needed = |name: &str| {
        variable(name).ok_or(format!("SLUICENET_PORT is set, {name} is not: every socket is the kernel's"))
    };
    let control = needed("SLUICENET_CONTROL")?;
    let address = needed("SLUICENET_ADDRESS")?;
    let wrong = || format!("SLUICENET_ADDRESS={address}: an address with its prefix is expected, such as 10.1.0.2/24");
    let (ip, prefix) = address.split_once('/').ok_or_else(wrong)?;
    let ip: Ipv4Addr = ip.parse().map_err(|_| wrong())?;
    let prefix = prefix.parse().ok().filter(|&prefix: &u8| prefix <= 32).ok_or_else(wrong)?;
    let any = match variable("SLUICENET_ANY").as_deref() {
        None | Some("kernel") => false,
        Some("light") => true,
        Some(other) => return Err(format!("SLUICENET_ANY={other}: light or kernel is expected")),
    };
    let number = |name: &str| {
        let wrong = |text: &str| format!("{name}={text}: a whole number is expected");
        variable(name).map(|text| text.parse::<u64>().map_err(|_| wrong(&text))).transpose()
    };
    let mtu = number("SLUICENET_MTU")?.map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
    let dead_after = number("SLUICENET_DEAD_AFTER_MS")?.map(Duration::from_millis);
    let memory = number("SLUICENET_MEMORY_MB")?.map(|mb| mb.saturating_mul(1_000_000));
    let ports: Vec<String> = ports.split(',').map(|port| port.trim().to_owned()).collect();
    Ok(Some(Wanted { control, ports, address: ip, prefix, any, mtu, dead_after, memory }))
}
